//! Story: money moves between accounts in transactions of 1, 1,000 and 100,000 transfers while a scanner sums all balances
//! at its snapshot. The sum never changes: a transaction is seen whole or not at all, also while it spills, while buffers
//! are exchanged under the scanner and while they are merged.

use crate::common::{Random, SetAtEnd, env_number, seed};
use psitri::{Database, Keyspace, Options, ReadMode, Snapshot};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ACCOUNTS: u64 = 10_000;
const BALANCE: u64 = 1_000_000;

fn amount(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

fn transfer(txn: &mut psitri::WriteTxn, accounts: &Keyspace, random: &mut Random) {
    let from = (random.next() % ACCOUNTS).to_be_bytes();
    let to = (random.next() % ACCOUNTS).to_be_bytes();
    let sum = 1 + random.next() % 100;
    let source = amount(txn.get(accounts, &from).unwrap().unwrap());
    if from == to || source < sum {
        return;
    }
    let target = amount(txn.get(accounts, &to).unwrap().unwrap());
    txn.update(accounts, &from, &(source - sum).to_le_bytes())
        .unwrap();
    txn.update(accounts, &to, &(target + sum).to_le_bytes())
        .unwrap();
}

/// Sum and number of accounts, by a scan in one of two ways.
fn total(snapshot: &Snapshot, accounts: &Keyspace, by_cursor: bool) -> (u64, u64) {
    let (mut sum, mut number) = (0, 0);
    if by_cursor {
        let mut cursor = snapshot.cursor(accounts).unwrap();
        let mut found = cursor.seek_last().unwrap();
        while found {
            sum += amount(cursor.value());
            number += 1;
            found = cursor.prev().unwrap();
        }
    } else {
        let visit = |_: &[u8], value: &[u8]| {
            sum += amount(value);
            number += 1;
            ControlFlow::Continue(())
        };
        snapshot.for_each(accounts, .., visit).unwrap();
    }
    (sum, number)
}

fn run(batch: usize) {
    let seed = seed(batch as u64);
    let time = Duration::from_millis(env_number("PSITRI_STRESS_MS").unwrap_or(1500));
    let dir = tempfile::tempdir().unwrap();
    let db: Database = Options::new()
        .buffer_bytes(1 << 20)
        .open(dir.path())
        .unwrap();
    let accounts = db.create_keyspace("accounts").unwrap();
    let mut txn = db.begin(&[&accounts]).unwrap();
    for account in 0..ACCOUNTS {
        txn.insert(&accounts, &account.to_be_bytes(), &BALANCE.to_le_bytes())
            .unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let done = AtomicBool::new(false);
    let (mut scans, mut newest) = (0u32, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = SetAtEnd(&done);
            let mut random = Random::new(seed);
            let start = Instant::now();
            let mut commits = 0;
            while start.elapsed() < time || commits < 3 {
                let mut txn = db.begin(&[&accounts]).unwrap();
                for _ in 0..batch {
                    transfer(&mut txn, &accounts, &mut random);
                }
                txn.commit().unwrap();
                commits += 1;
            }
        });
        while !done.load(Ordering::Acquire) {
            for mode in [
                ReadMode::Latest,
                ReadMode::Latest,
                ReadMode::Buffered,
                ReadMode::Trie,
            ] {
                let snapshot = db.snapshot_with(mode);
                let seen = total(&snapshot, &accounts, scans % 2 == 0);
                assert_eq!(seen, (ACCOUNTS * BALANCE, ACCOUNTS), "{mode}, scan {scans}");
                assert_eq!(snapshot.count(&accounts, ..).unwrap(), ACCOUNTS);
                assert!(snapshot.csn() >= newest, "time went back");
                newest = snapshot.csn();
                scans += 1;
            }
        }
    });
    assert!(scans > 10, "the scanner never got a turn");
    drop(accounts);
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let accounts = db.open_keyspace("accounts").unwrap();
    assert_eq!(
        total(&db.snapshot(), &accounts, false),
        (ACCOUNTS * BALANCE, ACCOUNTS)
    );
}

#[test]
fn one_transfer_a_transaction() {
    run(1);
}

#[test]
fn a_thousand_transfers_a_transaction() {
    run(1000);
}

#[test]
fn a_hundred_thousand_transfers_a_transaction() {
    run(100_000);
}
