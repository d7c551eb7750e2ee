//! Story: most of a database is removed while another thread goes on committing to a keyspace of its own. The space goes back to the file
//! system, from the middle of the file and from its end, and no commit fails or waits for long.
use crate::common::SetAtEnd;
use psitri::{Database, Keyspace, Options};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Keys in order, each keyspace behind the one before it in the file.
fn load(db: &Database, keyspace: &Keyspace, first: u64, items: u64) {
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    let entries = (first..first + items).map(|number| (key(number), [7; 200]));
    txn.ingest(keyspace, entries).unwrap();
    txn.commit().unwrap();
}

#[test]
fn holes_and_tail_go_back_while_a_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(2 << 20)
        .wal_segment_bytes(1 << 20)
        .open(dir.path())
        .unwrap();
    let (front, middle, end) = (
        db.keyspace("front").unwrap(),
        db.keyspace("middle").unwrap(),
        db.keyspace("end").unwrap(),
    );
    for keyspace in [&front, &middle, &end] {
        load(&db, keyspace, 0, 100_000);
    }
    db.checkpoint().unwrap();
    let loaded = db.stats().unwrap().file_bytes;
    let file = dir.path().join("data");
    let loaded_len = std::fs::metadata(&file).unwrap().len();
    let busy = db.keyspace("busy").unwrap();
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let mut txn = db.begin(&[&busy]).unwrap();
                txn.upsert(&busy, &key(number % 20_000), &[1; 100]).unwrap();
                txn.commit().unwrap();
                number += 1;
                commits.store(number, Ordering::Relaxed);
            }
        });
        let _end = SetAtEnd(&stop);
        let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_so() {
                assert!(!writer.is_finished(), "the writer failed");
                assert!(
                    Instant::now() < deadline,
                    "{what}: {:?}",
                    db.stats().unwrap()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let third = loaded / 3;

        let before = commits.load(Ordering::Relaxed);
        db.drop_keyspace("middle").unwrap();
        wait_until("the middle", &|| {
            db.stats().unwrap().file_bytes < loaded - third / 2 + 8 * MIB
        });
        wait_until("commits go on", &|| {
            commits.load(Ordering::Relaxed) > before
        });

        let before = commits.load(Ordering::Relaxed);
        db.drop_keyspace("end").unwrap();
        wait_until("the end", &|| {
            let stats = db.stats().unwrap();
            stats.file_bytes <= stats.reachable_bytes + stats.reachable_bytes / 4 + 12 * MIB
        });
        wait_until("the length", &|| {
            std::fs::metadata(&file).unwrap().len() < loaded_len - third / 2
        });
        wait_until("commits go on", &|| {
            commits.load(Ordering::Relaxed) > before
        });
    });
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&front, ..).unwrap(), 100_000);
    assert_eq!(snapshot.get(&front, &key(77)).unwrap(), Some(&[7; 200][..]));
    drop(snapshot);
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
}

/// A small file may keep a few MiB while direct commits go on, and no longer.
#[test]
fn a_small_file_shrinks_when_direct_commits_pause() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .idle_flush(Duration::from_millis(100))
        .open(dir.path())
        .unwrap();
    let entries = db.keyspace("entries").unwrap();
    load(&db, &entries, 0, 20_000);
    let excess = || {
        let stats = db.stats().unwrap();
        stats.file_bytes - stats.reachable_bytes
    };
    let mut largest = 0;
    for commit in 0..5000u64 {
        let mut txn = db.begin_direct(&[&entries]).unwrap();
        let number = commit.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 20_000;
        txn.upsert(&entries, &key(number), &[1; 200]).unwrap();
        txn.commit().unwrap();
        largest = largest.max(excess());
    }
    println!(
        "{} KiB more than content while it is written to",
        largest >> 10
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while excess() > 3 * MIB {
        assert!(Instant::now() < deadline, "{:?}", db.stats().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
}
