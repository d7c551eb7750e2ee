//! Story: nobody writes any more. What fills a good part of the buffer is merged soon, so that it is read in one place; little waits for longer.
#![cfg(not(loom))]

use std::time::{Duration, Instant};

use psitri::{Database, Options};

/// A twentieth of it is two seconds.
const IDLE: Duration = Duration::from_secs(40);

fn written(entries: u32) -> (tempfile::TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().buffer_bytes(8 << 20).idle_flush(IDLE);
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for n in 0..entries {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &n.to_be_bytes(), &[1; 100]).unwrap();
        txn.commit().unwrap();
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
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() >= IDLE / 20);
    std::thread::sleep(Duration::from_millis(500));
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
