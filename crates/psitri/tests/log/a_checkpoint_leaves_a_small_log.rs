//! Story: a database that is kept open at rest. What an explicit checkpoint covers is given back, the log's segment in use included;
//! writing goes on in a small one, and recovery finds the way from one to the other.

use std::time::Duration;

use psitri::{Database, Durability, Options};

fn write(db: &Database, from: u32, to: u32) {
    let keyspace = db.keyspace("accounts").unwrap();
    for n in from..to {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &n.to_be_bytes(), &[7; 100]).unwrap();
        txn.commit().unwrap();
    }
}

#[test]
fn and_recovery_follows_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::new().idle_flush(Duration::from_secs(3600));
    let db = options().open(dir.path()).unwrap();
    write(&db, 0, 10_000);
    assert!(db.stats().unwrap().wal_bytes > 1 << 20);
    for round in 1..=2 {
        db.checkpoint().unwrap();
        // Spare segments are prepared as long as the log is busy, which it was a moment ago.
        std::thread::sleep(Duration::from_millis(50));
        db.checkpoint().unwrap();
        assert_eq!(db.stats().unwrap().wal_bytes, 256 << 10);
        // Nothing is in it yet, and what came before is in the tree.
        db.flush().unwrap();
        // Across the end of the small segment, and into those of the usual size.
        write(&db, round * 10_000, (round + 1) * 10_000);
    }
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    // The copy is what a killed process leaves: nothing was written since.
    let recovered = options().open(copy.path()).unwrap();
    let keyspace = recovered.keyspace("accounts").unwrap();
    assert_eq!(recovered.snapshot().count(&keyspace, ..).unwrap(), 30_000);
    assert!(recovered.verify().unwrap().errors.is_empty());
    recovered.close().unwrap();
    db.close().unwrap();
}

/// The log's thread flushes what is not durable, and there is nothing; closing waits for the thread.
#[test]
fn and_nothing_is_left_to_be_flushed() {
    for durability in [Durability::Async, Durability::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new()
            .durability(durability)
            .async_interval(Duration::from_secs(3600));
        let db = options.open(dir.path()).unwrap();
        let keyspace = db.keyspace("accounts").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for n in 0..20_000u32 {
            txn.upsert(&keyspace, &n.to_be_bytes(), &[7; 100]).unwrap();
        }
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        db.flush().unwrap();
        write(&db, 0, 10);
        drop(keyspace);
        db.close().unwrap();
    }
}
