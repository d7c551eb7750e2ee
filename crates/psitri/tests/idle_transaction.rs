//! Story: a transaction is begun, writes a little, and is then forgotten for a long time. Writers of other keyspaces go on
//! at full speed and their data are merged; only its own keyspace's buffer waits. Nobody burns a processor meanwhile, and
//! when it ends, everything is merged.

mod common;

use common::within_seconds;
use psitri::{Options, ReadMode};
use std::time::{Duration, Instant};

fn put(db: &psitri::Database, keyspace: &psitri::Keyspace, key: u64) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, &key.to_be_bytes(), &[7; 100]).unwrap();
    txn.commit().unwrap();
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
fn others_go_on_and_are_merged() {
    within_seconds(60, "writers beside an idle transaction", || {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().buffer_bytes(256 << 10).frozen_buffers(1);
        let db = options.open(dir.path()).unwrap();
        let idle = db.create_keyspace("idle").unwrap();
        let busy = db.create_keyspace("busy").unwrap();
        put(&db, &idle, 1);
        let mut open = db.begin(&[&idle]).unwrap();
        open.upsert(&idle, &2u64.to_be_bytes(), b"open").unwrap();
        // Some twenty buffers full.
        for key in 0..30_000 {
            put(&db, &busy, key);
        }
        db.checkpoint().unwrap();
        let trie = db.snapshot_with(ReadMode::Trie);
        assert_eq!(trie.count(&busy, ..).unwrap(), 30_000);
        let waits = |stats: psitri::Stats| {
            stats
                .keyspaces
                .iter()
                .all(|k| k.name != "idle" || k.keys_merged == 0)
        };
        assert!(waits(db.stats().unwrap()), "the open keyspace waits");
        assert_eq!(
            trie.count(&idle, ..).unwrap(),
            1,
            "what is of the same age is seen"
        );
        drop(trie);
        assert_eq!(db.snapshot().count(&idle, ..).unwrap(), 1);
        assert_eq!(open.count(&idle, ..).unwrap(), 2);
        open.commit().unwrap();
        // At once: what has just become free is not overlooked.
        db.checkpoint().unwrap();
        let trie = db.snapshot_with(ReadMode::Trie);
        assert_eq!(trie.count(&idle, ..).unwrap(), 2);
        assert_eq!(db.stats().unwrap().frozen_buffers, 0);
    });
}

#[test]
fn nobody_spins_while_a_buffer_waits() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let idle = db.create_keyspace("idle").unwrap();
    let busy = db.create_keyspace("busy").unwrap();
    let mut open = db.begin(&[&idle]).unwrap();
    open.upsert(&idle, b"k", b"v").unwrap();
    for key in 0..5000 {
        put(&db, &busy, key);
    }
    std::thread::sleep(Duration::from_millis(200));
    let (before, start) = (processor_time(), Instant::now());
    std::thread::sleep(Duration::from_millis(1000));
    let (used, time) = (processor_time() - before, start.elapsed());
    assert!(used < time / 3, "{used:?} of {time:?} went into waiting");
    open.commit().unwrap();
}

#[test]
fn an_idle_buffer_is_merged_without_being_asked() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().idle_flush(Duration::from_millis(50));
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    put(&db, &keyspace, 1);
    let start = Instant::now();
    while db
        .snapshot_with(ReadMode::Trie)
        .count(&keyspace, ..)
        .unwrap()
        == 0
    {
        assert!(start.elapsed() < Duration::from_secs(10), "never merged");
        std::thread::sleep(Duration::from_millis(10));
    }
    // And made durable.
    while db.stats().unwrap().checkpoints == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            db.stats()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
