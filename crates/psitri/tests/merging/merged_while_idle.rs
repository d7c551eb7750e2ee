//! Story: nobody writes any more. What fills a good part of the buffer is merged soon, so that it is read in one place; little waits for longer, and so does
//! what would have much of a tree written anew.
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use psitri::{Database, Error, Keyspace, Options, storage::sim::SimStorage};

/// A twentieth of it is two seconds.
const IDLE: Duration = Duration::from_secs(40);

fn options() -> Options {
    Options::new().buffer_bytes(8 << 20).idle_flush(IDLE)
}

fn put(db: &Database, keyspace: &Keyspace, n: u32) {
    put_value(db, keyspace, n, &[1; 100]);
}

fn put_value(db: &Database, keyspace: &Keyspace, n: u32, value: &[u8]) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, &n.to_be_bytes(), value).unwrap();
    txn.commit().unwrap();
}

fn written(entries: u32) -> (tempfile::TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for n in 0..entries {
        put(&db, &keyspace, n);
    }
    (dir, db)
}

#[test]
fn much_is_merged_soon_and_little_is_not() {
    let start = Instant::now();
    let (_much_dir, much) = written(8_000);
    let (_little_dir, little) = written(200);
    let size = |db: &Database| db.stats().unwrap().buffer_bytes;
    let (large, small) = (size(&much), size(&little));
    assert!(large > 1 << 19 && small < 1 << 19, "{large}, {small}");
    while much.stats().unwrap().merges == 0 {
        assert!(start.elapsed() < IDLE / 2, "not merged");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() >= IDLE / 20);
    thread::sleep(Duration::from_millis(500));
    let stats = much.stats().unwrap();
    let keyspace = &stats.keyspaces[0];
    assert_eq!(
        (keyspace.keys_merged, keyspace.entries_buffered),
        (8_000, 0)
    );
    // The log is let go of with the checkpoint that an idle database takes later.
    assert_eq!((stats.merges, stats.checkpoints), (1, 0));
    assert!(stats.wal_replay_bytes > 800_000);
    let stats = little.stats().unwrap();
    assert_eq!(
        (stats.merges, stats.keyspaces[0].entries_buffered),
        (0, 200)
    );
}

/// Small writes take memory that is counted only now and then. Who goes on with them is not idle.
#[test]
fn who_writes_a_little_is_not_idle() {
    // Unless the machine stood still meanwhile.
    let is_shown = (0..5).any(|_| {
        let (_dir, db) = written(8_000);
        let keyspace = db.keyspace("k").unwrap();
        let start = Instant::now();
        let (mut last, mut longest) = (start, Duration::ZERO);
        let mut n = 8_000;
        while start.elapsed() < IDLE / 20 * 3 / 2 {
            put(&db, &keyspace, n);
            n += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            thread::sleep(Duration::from_millis(20));
        }
        let is_steady = longest < IDLE / 40;
        assert!(!is_steady || db.stats().unwrap().merges == 0, "merged");
        is_steady
    });
    assert!(is_shown);
}

/// Entries all over a tree that is much larger than they are.
#[test]
fn what_would_write_much_waits() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut load = db.begin_direct(&[&keyspace]).unwrap();
    for n in 0..80_000u32 {
        (load.upsert(&keyspace, &n.to_be_bytes(), &[0; 200])).unwrap();
    }
    load.commit().unwrap();
    for n in 0..8_000 {
        put(&db, &keyspace, n * 10);
    }
    assert!(db.stats().unwrap().buffer_bytes > 1 << 19);
    thread::sleep(IDLE / 20 + Duration::from_millis(500));
    let buffered = db.stats().unwrap().keyspaces[0].entries_buffered;
    assert_eq!(buffered, 8_000);
}

/// The disk is full, and a writer pauses again and again. What cannot be merged waits in as many buffers as may wait.
#[test]
fn what_cannot_be_merged_does_not_pile_up() {
    let disk = SimStorage::new(1);
    let options = Options::new()
        .idle_flush(Duration::from_millis(10))
        .frozen_buffers(2);
    let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    put(&db, &keyspace, 0);
    db.checkpoint().unwrap();
    disk.set_capacity_bytes(Some(disk.allocated_bytes()));
    // More than is free in the file, and less than in the log.
    let value = vec![1; 6 << 10];
    for n in 0..25 {
        put_value(&db, &keyspace, n, &value);
        thread::sleep(Duration::from_millis(120));
        let stats = db.stats().unwrap();
        assert!(stats.frozen_buffers <= 2, "{}", stats.frozen_buffers);
    }
    // Nor for those who want it merged, however often they try.
    for n in 0..3 {
        put_value(&db, &keyspace, n, &value);
        let stalled = db.begin_direct(&[&keyspace]);
        assert!(
            matches!(stalled, Err(Error::Stalled { .. })),
            "{n}: {:?}",
            stalled.map(|_| db.stats())
        );
        let stats = db.stats().unwrap();
        assert!(stats.frozen_buffers <= 2, "{}", stats.frozen_buffers);
    }
    disk.set_capacity_bytes(None);
    db.checkpoint().unwrap();
    let keyspace = &db.stats().unwrap().keyspaces[0];
    assert_eq!((keyspace.keys_merged, keyspace.entries_buffered), (25, 0));
}
