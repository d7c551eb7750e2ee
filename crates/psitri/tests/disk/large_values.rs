//! Story: large values never enter the log or the buffer; both refer to pages of the data file. Those pages must be there
//! after kill -9 and for every snapshot, and be given back when nothing refers to them any more.

use crate::common::checkpoint_and_let_go;
use psitri::{Database, Options, ReadMode, storage::sim::SimStorage};
use std::sync::Arc;
use std::time::Duration;

fn value(fill: u8, len: usize) -> Vec<u8> {
    vec![fill; len]
}

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600))
}

fn put(db: &Database, name: &str, key: &[u8], value: &[u8]) {
    let keyspace = db.keyspace(name).unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, key, value).unwrap();
    txn.commit().unwrap();
}

#[test]
fn values_beyond_the_end_of_the_last_checkpoint_survive_kill() {
    let disk = SimStorage::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    for i in 0..20u8 {
        put(&db, "k", &[i], &value(i, 70_000));
    }
    let db = Database::open_on(Arc::new(disk.process_crash(2)), options()).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    for i in 0..20u8 {
        assert!(db.get(&keyspace, &[i]).unwrap() == Some(value(i, 70_000)));
    }
}

#[test]
fn a_snapshot_from_before_the_merge_keeps_a_value_that_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    put(&db, "k", b"k", &value(1, 50_000));
    let keyspace = db.keyspace("k").unwrap();
    let snapshot = db.snapshot();
    for round in 2..20 {
        put(&db, "k", b"k", &value(round, 50_000));
        put(&db, "k", &[round], &value(round, 50_000));
        db.checkpoint().unwrap();
        assert!(snapshot.get(&keyspace, b"k").unwrap() == Some(&value(1, 50_000)[..]));
    }
}

#[test]
fn a_snapshot_of_a_recovered_value_keeps_it() {
    let disk = SimStorage::new(3);
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    // Many versions of the tree that the log outlives: the open transaction holds the log back.
    let other = db.keyspace("other").unwrap();
    for i in 0..10u8 {
        let mut txn = db.begin_direct(&[&other]).unwrap();
        txn.upsert(&other, &[i], b"x").unwrap();
        txn.commit().unwrap();
    }
    put(&db, "k", b"k", &value(1, 50_000));
    let db = Database::open_on(Arc::new(disk.process_crash(4)), options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let snapshot = db.snapshot();
    for round in 2..12 {
        put(&db, "k", b"k", &value(round, 50_000));
        put(&db, "k", &[round], &value(round, 50_000));
        // Merged without a checkpoint, whose version would count as a reader.
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"direct", b"x").unwrap();
        txn.commit().unwrap();
        assert!(snapshot.get(&keyspace, b"k").unwrap() == Some(&value(1, 50_000)[..]));
    }
}

#[test]
fn the_put_that_makes_a_transaction_spill_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    let mut keys = 0u32;
    // Keys of a kilobyte: some large put is the one that crosses the limit, several times.
    while keys < 1000 {
        let mut key = vec![0; 1000];
        key[..4].copy_from_slice(&keys.to_be_bytes());
        txn.upsert(&keyspace, &key, &value(keys as u8, 17_000))
            .unwrap();
        keys += 1;
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let snapshot = db.snapshot_with(ReadMode::Trie);
    for number in 0..keys {
        let mut key = vec![0; 1000];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let found = snapshot.get(&keyspace, &key).unwrap();
        assert!(found == Some(&value(number as u8, 17_000)[..]), "{number}");
    }
}

/// Overwritten in the buffer, removed, aborted, nested and undone, dropped with its keyspace, before and after a kill.
#[test]
fn every_page_comes_back() {
    let disk = SimStorage::new(5);
    let mut db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    for round in 0..3u8 {
        for name in ["a", "b"] {
            let keyspace = db.keyspace(name).unwrap();
            for i in 0..5u8 {
                put(&db, name, &[i], &value(i, 40_000));
                put(&db, name, &[i], &value(i, 30_000));
            }
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, b"aborted", &value(9, 100_000))
                .unwrap();
            txn.abort();
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, b"outer", &value(8, 20_000)).unwrap();
            let mut nested = txn.nested();
            nested
                .upsert(&keyspace, b"outer", &value(7, 20_000))
                .unwrap();
            nested.abort();
            assert!(txn.get(&keyspace, b"outer").unwrap() == Some(&value(8, 20_000)[..]));
            txn.commit().unwrap();
        }
        if round == 1 {
            let after = disk.process_crash(6);
            db = Database::open_on(Arc::new(after), options()).unwrap();
        }
        let b = db.keyspace("b").unwrap();
        let mut txn = db.begin(&[&b]).unwrap();
        txn.remove_range(&b, b"", None).unwrap();
        txn.commit().unwrap();
        db.drop_keyspace("a").unwrap();
        let stats = checkpoint_and_let_go(&db);
        assert!(stats.reachable_bytes < 8 << 10, "round {round}: {stats:?}");
        assert!(stats.file_bytes <= 64 << 10, "round {round}: {stats:?}");
    }
}

/// A keyspace whose values were only in the log is dropped, and both come back from the log.
#[test]
fn values_of_a_keyspace_that_was_dropped_before_the_kill_come_back_as_free_space() {
    let disk = SimStorage::new(7);
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    put(&db, "a", b"k", &value(1, 200_000));
    put(&db, "b", b"k", b"small");
    db.drop_keyspace("a").unwrap();
    let db = Database::open_on(Arc::new(disk.process_crash(8)), options()).unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes <= 64 << 10, "{stats:?}");
}
