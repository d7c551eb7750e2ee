//! Keyspaces that come and go: their places are used again, while the database is open and when it is recovered.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use psitri::{Database, Error, Options, storage::sim::SimStorage};

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

/// A drop that waits for a transaction drops what has the name when it ends, and not what had it before.
#[test]
fn a_drop_that_waits_goes_by_the_name() {
    let db = Options::new().in_memory().unwrap();
    let first = db.create_keyspace("a").unwrap();
    let mut txn = db.begin(&[&first]).unwrap();
    txn.upsert(&first, b"key", b"value").unwrap();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| db.drop_keyspace("a"));
        // Time to begin to wait. Without it the drop begins later, which is as good.
        std::thread::sleep(Duration::from_millis(100));
        db.rename_keyspace("a", "archive").unwrap();
        db.create_keyspace("a").unwrap();
        txn.commit().unwrap();
        dropping.join().unwrap().unwrap();
    });
    assert_eq!(db.keyspaces(), ["archive"]);
    assert_eq!(
        db.get(&first, b"key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    assert!(matches!(
        db.drop_keyspace("a"),
        Err(Error::KeyspaceNotFound { .. })
    ));
    assert!(matches!(
        db.clone_keyspace("a", "b"),
        Err(Error::KeyspaceNotFound { .. })
    ));
}

/// A snapshot knows keyspaces by the names of now: a subtree has none, and one that was dropped gives way to one that has its name since.
#[test]
fn snapshots_find_keyspaces_by_their_names() {
    let db = Options::new().in_memory().unwrap();
    let a = db.create_keyspace("a").unwrap();
    let b = db.create_keyspace("b").unwrap();
    db.create_subtree(&a, b"sub").unwrap();
    for (keyspace, key) in [(&a, b"of a"), (&b, b"of b")] {
        let mut txn = db.begin(&[keyspace]).unwrap();
        txn.upsert(keyspace, key, b"").unwrap();
        txn.commit().unwrap();
    }
    let snapshot = db.snapshot();
    assert!(matches!(
        snapshot.keyspace(""),
        Err(Error::KeyspaceNotFound { .. })
    ));
    db.drop_keyspace("a").unwrap();
    let dropped = snapshot.keyspace("a").unwrap();
    assert!(snapshot.get(&dropped, b"of a").unwrap().is_some());
    db.rename_keyspace("b", "a").unwrap();
    assert_eq!(snapshot.keyspaces(), ["a"]);
    let renamed = snapshot.keyspace("a").unwrap();
    assert!(snapshot.get(&renamed, b"of b").unwrap().is_some());
}
