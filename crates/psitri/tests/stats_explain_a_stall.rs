//! Story: writes have become slow, and somebody asks the database why.
#![cfg(not(loom))]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use psitri::{Database, Options, Stats};

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(2)
        .idle_flush(Duration::from_secs(3600))
}

/// One commit of `bytes`, at a key of its own.
fn write(db: &Database, name: &str, n: u32, bytes: usize) {
    let keyspace = db.keyspace(name).unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    let key = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
    txn.upsert(&keyspace, &key, &vec![1; bytes]).unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_transaction_that_holds_buffers_back_is_seen() {
    let db = options().in_memory().unwrap();
    let held = db.keyspace("held").unwrap();
    let mut open = db.begin(&[&held]).unwrap();
    open.upsert(&held, b"k", b"v").unwrap();
    let blocked = |stats: &Stats| (stats.blocked_buffers, stats.frozen_bytes > 200 << 10);
    for n in 0..2000 {
        write(&db, "other", n, 300);
    }
    std::thread::sleep(Duration::from_millis(200));
    let stats = db.stats().unwrap();
    assert_eq!(blocked(&stats), (1, true), "{stats:?}");
    assert_eq!(
        (stats.buffer_bytes_max, stats.frozen_buffers_max),
        (256 << 10, 2)
    );
    open.commit().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((blocked(&stats), stats.frozen_bytes), ((0, false), 0));
    assert_eq!(stats.merged_entries, 2001);
    assert!(stats.merged_bytes > 2000 * 300 && stats.merge_us > 0);
    assert!(stats.written_bytes >= stats.reachable_bytes);
}

#[test]
fn small_buffers_may_wait_in_greater_number_unless_somebody_says_how_many() {
    let may_wait = |options: Options| {
        let db = options.in_memory().unwrap();
        db.stats().unwrap().frozen_buffers_max
    };
    let by_size = |bytes: usize| may_wait(Options::new().buffer_bytes(bytes));
    assert_eq!(may_wait(Options::new()), 4);
    assert_eq!(
        [12 << 20, 6 << 20, 3 << 20, 256 << 10].map(by_size),
        [4, 8, 16, 16]
    );
    let said = Options::new().buffer_bytes(256 << 10).frozen_buffers(5);
    assert_eq!(may_wait(said), 5);
}

#[test]
fn commits_log_and_checkpoints_are_counted_from_the_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    for n in 0..100 {
        write(&db, "k", n, 1000);
    }
    let stats = db.stats().unwrap();
    // A hundred, and the creation of the keyspace.
    assert_eq!((stats.commits, stats.csn), (101, 101));
    assert!((100_000..150_000).contains(&stats.wal_appended_bytes));
    assert_eq!(stats.wal_replay_bytes, stats.wal_appended_bytes);
    assert_eq!(stats.wal_undurable_bytes, stats.wal_appended_bytes);
    assert!(stats.wal_segments > 0 && stats.uptime_us > 0);
    db.flush().unwrap();
    assert_eq!(db.stats().unwrap().wal_undurable_bytes, 0);
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.wal_replay_bytes, stats.checkpointing_us), (0, 0));
    assert!(stats.checkpoint_us >= stats.checkpoint_last_us && stats.checkpoint_last_us > 0);
    db.close().unwrap();
    let db = options().open(&path).unwrap();
    let stats = db.stats().unwrap();
    assert_eq!(
        (stats.commits, stats.csn, stats.wal_appended_bytes),
        (0, 101, 0)
    );
}

#[test]
fn free_space_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path().join("db")).unwrap();
    for n in 0..3000 {
        write(&db, "k", n, 1000);
    }
    db.checkpoint().unwrap();
    for n in (0..3000).filter(|n| n % 3 > 0) {
        write(&db, "k", n, 900);
    }
    let free_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            db.checkpoint().unwrap();
            free_seen.store(true, Ordering::Relaxed);
        });
        // Figures may be asked for at any moment, and are never contradictory.
        while !free_seen.load(Ordering::Relaxed) {
            let stats = db.stats().unwrap();
            assert!(stats.free_run_max_bytes <= stats.free_bytes);
            assert!(stats.hole_bytes <= stats.free_bytes);
            assert_eq!(stats.free_runs == 0, stats.free_bytes == 0);
            assert!(stats.free_runs * 4096 <= stats.free_bytes);
        }
    });
}
