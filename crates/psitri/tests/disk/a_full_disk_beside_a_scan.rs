//! Story: a long report is written from one snapshot while the disk fills up. The report is right to its last line, whoever begins another one is
//! served as well, and when there is space again the writers go on.
use crate::common::SetAtEnd;
use psitri::{Database, Keyspace, Options, Snapshot, storage::sim::SimStorage};
use std::{
    ops::ControlFlow,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

const ENTRIES: u64 = 20_000;

fn put_all(db: &Database, keyspace: &Keyspace, round: u64) -> psitri::Result<()> {
    for first in (0..ENTRIES).step_by(100) {
        let mut txn = db.begin(&[keyspace])?;
        for number in first..first + 100 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            let value = [&round.to_be_bytes()[..], &[round as u8; 92]].concat();
            txn.upsert(keyspace, &key, &value)?;
        }
        txn.commit()?;
    }
    Ok(())
}

/// Checks that all is there, in order, in whole batches and of at most two rounds. Returns the newest of these.
fn check(snapshot: &Snapshot, keyspace: &Keyspace) -> u64 {
    let (mut count, mut before, mut rounds) = (0, None, Vec::new());
    snapshot
        .for_each(keyspace, .., |key, value| {
            assert!(before.as_deref().is_none_or(|before| before < key));
            before = Some(key.to_vec());
            let round = u64::from_be_bytes(value[..8].try_into().unwrap());
            assert!(value[8..].iter().all(|&byte| byte == round as u8));
            if !rounds.contains(&round) {
                rounds.push(round);
            }
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, ENTRIES);
    rounds.sort_unstable();
    assert!(
        rounds.len() <= 2 && rounds[0] + 1 >= rounds[rounds.len() - 1],
        "{rounds:?}"
    );
    rounds[rounds.len() - 1]
}

#[test]
fn reports_are_whole_while_the_disk_is_full() {
    let storage = SimStorage::new(5);
    let options = Options::new()
        .buffer_bytes(512 << 10)
        .wal_segment_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600));
    let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
    let keyspace = db.create_keyspace("ks").unwrap();
    put_all(&db, &keyspace, 1).unwrap();
    db.checkpoint().unwrap();
    let held = db.snapshot();
    let (refused, is_over, reports) =
        (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    storage.set_capacity_bytes(Some(8 << 20));
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        let reports_go_on = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(check(&held, &keyspace), 1);
                check(&db.snapshot(), &keyspace);
                reports.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Until it was full for several reports.
        let mut round = 2;
        let mut reports_then = u64::MAX;
        while refused.load(Ordering::Relaxed) == 0
            || reports.load(Ordering::Relaxed) < reports_then.saturating_add(3)
        {
            match put_all(&db, &keyspace, round) {
                Ok(()) => round += 1,
                Err(error) if error.is_out_of_space() => {
                    if refused.fetch_add(1, Ordering::Relaxed) == 0 {
                        reports_then = reports.load(Ordering::Relaxed);
                    }
                    thread::yield_now();
                }
                Err(other) => panic!("{other}"),
            }
            assert!(round < 2_000, "the disk does not fill up");
            assert!(!reports_go_on.is_finished(), "a report failed");
        }
        storage.set_capacity_bytes(None);
        put_all(&db, &keyspace, round).unwrap();
        assert_eq!(check(&db.snapshot(), &keyspace), round);
    });
    assert_eq!(check(&held, &keyspace), 1);
    drop(held);
    let newest = check(&db.snapshot(), &keyspace);
    db.checkpoint().unwrap();
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
    drop(db);
    let db = Database::open_on(Arc::new(storage), options).unwrap();
    let keyspace = db.open_keyspace("ks").unwrap();
    assert_eq!(check(&db.snapshot(), &keyspace), newest);
}
