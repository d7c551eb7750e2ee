//! Micro-benchmarks of the engine: commit, snapshot, point lookups in tree and buffer, cursor and scan.
//!
//! `cargo bench -p psitri --bench engine`

use std::ops::ControlFlow;

use divan::{Bencher, black_box};
use psitri::{Database, Keyspace, Options};

const KEYS: u64 = 1_000_000;

fn main() {
    divan::main();
}

fn key(index: u64) -> [u8; 8] {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()
}

/// A database in memory with `KEYS` merged entries.
fn merged() -> (Database, Keyspace) {
    let db = Options::new().in_memory().expect("memory");
    let keyspace = db.create_keyspace("bench").expect("a new name");
    let mut txn = db.begin_direct(&[&keyspace]).expect("nobody else writes");
    for index in 0..KEYS {
        txn.upsert(&keyspace, &key(index), &index.to_le_bytes())
            .expect("memory");
    }
    txn.commit().expect("memory");
    (db, keyspace)
}

#[divan::bench]
fn snapshot_acquire_and_release(bencher: Bencher) {
    let (db, _) = merged();
    bencher.bench_local(|| black_box(db.snapshot().csn()));
}

#[divan::bench(sample_size = 10_000)]
fn get_from_tree(bencher: Bencher) {
    let (db, keyspace) = merged();
    let snapshot = db.snapshot();
    let mut index = 0;
    bencher.bench_local(|| {
        index = (index + 7_919) % KEYS;
        let value = snapshot.get(&keyspace, &key(index)).expect("sound");
        assert!(black_box(value).is_some());
    });
}

/// Sixteen keys a call.
#[divan::bench(sample_size = 600)]
fn get_many_from_tree(bencher: Bencher) {
    const TOGETHER: usize = 16;
    let (db, keyspace) = merged();
    let snapshot = db.snapshot();
    let mut index = 0;
    bencher.counter(TOGETHER).bench_local(|| {
        let keys: [_; TOGETHER] = std::array::from_fn(|_| {
            index = (index + 7_919) % KEYS;
            key(index)
        });
        let keys = keys.each_ref().map(|key| &key[..]);
        let values = snapshot.get_many(&keyspace, &keys).expect("sound");
        assert!(black_box(values).iter().all(Option::is_some));
    });
}

#[divan::bench(sample_size = 10_000)]
fn get_absent(bencher: Bencher) {
    let (db, keyspace) = merged();
    let snapshot = db.snapshot();
    let mut index = KEYS;
    bencher.bench_local(|| {
        index += 1;
        let value = snapshot.get(&keyspace, &key(index)).expect("sound");
        assert!(black_box(value).is_none());
    });
}

#[divan::bench(sample_size = 10_000)]
fn commit_one_update(bencher: Bencher) {
    let (db, keyspace) = merged();
    let mut index = 0;
    bencher.bench_local(|| {
        index = (index + 7_919) % KEYS;
        let mut txn = db.begin(&[&keyspace]).expect("nobody else writes");
        txn.upsert(&keyspace, &key(index), &[1; 8]).expect("memory");
        txn.commit().expect("memory");
    });
}

#[divan::bench]
fn scan_million_for_each(bencher: Bencher) {
    let (db, keyspace) = merged();
    let snapshot = db.snapshot();
    bencher.counter(KEYS).bench_local(|| {
        let mut sum = 0u64;
        snapshot
            .for_each(&keyspace, .., |_, value| {
                sum += u64::from(value[0]);
                ControlFlow::Continue(())
            })
            .expect("sound");
        black_box(sum)
    });
}

#[divan::bench]
fn scan_million_cursor(bencher: Bencher) {
    let (db, keyspace) = merged();
    let snapshot = db.snapshot();
    bencher.counter(KEYS).bench_local(|| {
        let mut cursor = snapshot.cursor(&keyspace).expect("sound");
        let mut found = cursor.seek_first().expect("sound");
        let mut sum = 0u64;
        while found {
            sum += u64::from(cursor.value()[0]);
            found = cursor.next().expect("sound");
        }
        black_box(sum)
    });
}

#[divan::bench]
fn merge_into_empty_tree_100k(bencher: Bencher) {
    bencher
        .with_inputs(|| {
            let db = Options::new().in_memory().expect("memory");
            let keyspace = db.create_keyspace("bench").expect("a new name");
            let mut txn = db.begin_direct(&[&keyspace]).expect("nobody else writes");
            for index in 0..100_000 {
                txn.upsert(&keyspace, &key(index), &[0; 8]).expect("memory");
            }
            (db, txn)
        })
        .counter(100_000u64)
        .bench_local_values(|(db, txn)| {
            txn.commit().expect("memory");
            db
        });
}
