//! Background threads that have nothing to do take no processor time.
//!
//! In a file of its own: it looks at all threads of its process.
#![cfg(target_os = "linux")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use psitri::{Database, Keyspace, Options, storage::sim::SimStorage};

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert(ks, key, value).unwrap();
    txn.commit().unwrap();
}

/// An open transaction keeps a frozen buffer from being merged; the merge thread must sleep meanwhile.
#[test]
fn the_merge_thread_sleeps_while_an_open_transaction_holds_it_back() {
    let _alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
    /// How often the merge thread went to sleep.
    fn sleeps() -> u64 {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
            .filter(|status| status.starts_with("Name:\tpsitri-merge\n"))
            .filter_map(|status| {
                let line = status
                    .lines()
                    .find(|l| l.starts_with("voluntary"))?
                    .to_owned();
                line.split_whitespace().next_back()?.parse::<u64>().ok()
            })
            .sum()
    }
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = Database::open_on(Arc::new(SimStorage::new(2)), options).unwrap();
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    put(&db, &a, b"key", b"value");
    let mut open_txn = db.begin(&[&a]).unwrap();
    open_txn.upsert(&a, b"key", b"other").unwrap();
    put(&db, &b, b"key", b"value");
    db.begin_direct(&[&b]).unwrap().abort();
    let before = sleeps();
    std::thread::sleep(Duration::from_millis(1000));
    // Every 50 ms if it sleeps, never if it goes round and round.
    let slept = sleeps() - before;
    assert!(slept > 4, "the merge thread slept {slept} times");
    open_txn.commit().unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.get(&a, b"key").unwrap().as_deref(), Some(&b"other"[..]));
}

/// Log that an open transaction holds back is no reason for a checkpoint: it could not let go of it.
#[test]
fn no_checkpoint_follows_the_other_while_an_open_transaction_holds_the_log() {
    let _alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(256 << 10)
        .checkpoint_bytes(4 << 20)
        .idle_flush(Duration::from_secs(3600));
    let db = Database::open_on(Arc::new(SimStorage::new(3)), options).unwrap();
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    put(&db, &a, b"key", b"value");
    let open_txn = db.begin(&[&a]).unwrap();
    for number in 0..80u32 {
        put(&db, &b, &(number % 8).to_be_bytes(), &[7; 15_000]);
        put(&db, &b, &(number % 8).to_be_bytes(), &[8; 15_000]);
        put(&db, &b, &(number % 8).to_be_bytes(), &[9; 15_000]);
        put(&db, &b, &(number % 8).to_be_bytes(), &[10; 15_000]);
    }
    let stats = db.stats().unwrap();
    assert!(stats.wal_retained_bytes > 4 << 20, "the log is held");
    let before = stats.checkpoints;
    std::thread::sleep(Duration::from_millis(800));
    let taken = db.stats().unwrap().checkpoints - before;
    assert!(taken <= 2, "{taken} checkpoints for nothing");
    open_txn.abort();
}
