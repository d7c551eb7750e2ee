//! Keyspaces that come and go: their places are used again, while the database is open and when it is recovered.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use psitri::{Database, Options, storage::sim::SimStorage};

fn open(storage: &SimStorage) -> Database {
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    Database::open_on(Arc::new(storage.clone()), options).expect("the database opens")
}

/// More than there are places; nothing is written, so that no buffer is frozen meanwhile.
#[test]
fn more_keyspaces_are_created_and_dropped_than_may_exist_at_a_time() {
    let disk = SimStorage::new(1);
    disk.set_early_write_back(false);
    let db = open(&disk);
    let kept = db.keyspace("kept").unwrap();
    let mut txn = db.begin(&[&kept]).unwrap();
    txn.upsert(&kept, b"key", b"value").unwrap();
    txn.commit().unwrap();
    for _ in 0..66_000 {
        db.create_keyspace("short").unwrap();
        db.drop_keyspace("short").unwrap();
    }
    disk.crash_now();
    let left = disk.process_crash(2);
    drop(db);
    let db = open(&left);
    assert_eq!(db.keyspaces(), ["kept"]);
    let kept = db.keyspace("kept").unwrap();
    assert_eq!(
        db.get(&kept, b"key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    for name in ["a", "b", "c"] {
        let ks = db.keyspace(name).unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 0);
    }
}

/// What a dropped keyspace left in the buffer belongs to nobody, whoever takes its place.
#[test]
fn a_new_keyspace_is_empty_whatever_was_in_its_place() {
    let disk = SimStorage::new(3);
    let db = open(&disk);
    for round in 0..50u32 {
        let ks = db.create_keyspace("short").unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 0, "round {round}");
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, &round.to_be_bytes(), b"value").unwrap();
        txn.commit().unwrap();
        if round % 3 == 0 {
            db.begin(&[&ks]).unwrap().abort();
        }
        if round < 49 {
            db.drop_keyspace("short").unwrap();
        }
    }
    disk.crash_now();
    let left = disk.process_crash(4);
    drop(db);
    let db = open(&left);
    let ks = db.open_keyspace("short").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 1);
    let new = db.keyspace("new").unwrap();
    assert_eq!(db.snapshot().count(&new, ..).unwrap(), 0);
    db.checkpoint().unwrap();
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 1);
}

/// The clock that a database was given panics while a snapshot is saved: nothing was begun, and no number of a commit is missing.
#[test]
fn a_clock_that_panics_leaves_no_hole_in_the_log() {
    let disk = SimStorage::new(5);
    let is_broken = Arc::new(AtomicBool::new(false));
    let clock = {
        let is_broken = Arc::clone(&is_broken);
        move || {
            assert!(!is_broken.load(Ordering::SeqCst), "the clock is broken");
            SystemTime::UNIX_EPOCH
        }
    };
    let options = Options::new().clock(clock);
    let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let put = |key: &[u8]| {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, key, b"v").unwrap();
        txn.commit().unwrap();
    };
    put(b"before");
    is_broken.store(true, Ordering::SeqCst);
    let saved = catch_unwind(AssertUnwindSafe(|| db.save_snapshot("s")));
    assert!(saved.is_err(), "the clock was not asked");
    is_broken.store(false, Ordering::SeqCst);
    put(b"after");
    let killed = disk.process_crash(1);
    let again = Database::open_on(Arc::new(killed), Options::new()).unwrap();
    let keyspace = again.open_keyspace("k").unwrap();
    assert!(again.get(&keyspace, b"after").unwrap().is_some());
    assert_eq!(again.saved_snapshots().len(), 0);
    let report = again.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // It is saved once the clock goes again.
    db.save_snapshot("s").unwrap();
}
