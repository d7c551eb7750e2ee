//! Story: a database is opened whose log has much in it. Nobody writes, so nothing would have it merged for a second; reads want it in the tree.
use psitri::{Database, Options, storage::sim::SimStorage};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

fn reopened_with(entries: u32) -> Database {
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let disk = SimStorage::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..entries {
        txn.upsert(&keyspace, &number.to_be_bytes(), b"value")
            .unwrap();
    }
    txn.commit().unwrap();
    disk.crash_now();
    let left = disk.process_crash(2);
    drop((keyspace, db));
    Database::open_on(Arc::new(left), options).unwrap()
}

fn count(db: &Database) -> u64 {
    let keyspace = db.open_keyspace("k").unwrap();
    db.snapshot().count(&keyspace, ..).unwrap()
}

#[test]
fn much_is_merged_at_once() {
    let db = reopened_with(20_000);
    assert_eq!(count(&db), 20_000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while db.stats().unwrap().merges == 0 {
        assert!(Instant::now() < deadline, "nothing is merged");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(count(&db), 20_000);
}

/// And stored, so that it is not merged again and again by processes that do not write.
#[test]
fn much_is_stored_when_it_is_merged() {
    let db = reopened_with(20_000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while db.stats().unwrap().wal_replay_bytes > 64 << 10 {
        assert!(Instant::now() < deadline, "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Closed before its merge can have ended: it is waited for, and stored.
#[test]
fn a_short_life_is_not_for_nothing() {
    let options = || {
        Options::new()
            .idle_flush(Duration::from_secs(3600))
            .checkpoint_on_close(false)
    };
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..50_000u32 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &number.to_be_bytes(), &[7; 100])
            .unwrap();
        txn.commit().unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    let db = options().open(dir.path()).unwrap();
    assert!(
        db.stats().unwrap().wal_replay_bytes > 1 << 20,
        "left in the log"
    );
    db.close().unwrap();
    let db = options().open(dir.path()).unwrap();
    let stats = db.stats().unwrap();
    assert!(
        stats.wal_replay_bytes < 1 << 20,
        "{} bytes",
        stats.wal_replay_bytes
    );
    assert_eq!(count(&db), 50_000);
}

#[test]
fn little_waits_for_more() {
    let db = reopened_with(1_000);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(db.stats().unwrap().merges, 0);
    assert_eq!(count(&db), 1_000);
}
