//! Stories in which the log grows although little is in it, or is written by somebody with more memory than who reads it.
use psitri::{Database, Keyspace, Options, storage::Storage, storage::sim::SimStorage};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;

/// Nothing happens because time passes.
fn options() -> Options {
    Options::new()
        .buffer_bytes(MIB as usize)
        .checkpoint_bytes(MIB)
        .wal_segment_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600))
}

fn open(storage: &SimStorage, options: Options) -> Database {
    Database::open_on(Arc::new(storage.clone()), options).expect("the database opens")
}

fn put(db: &Database, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, key, value).unwrap();
    txn.commit().unwrap();
}

/// Waits until a replay would read less than `bytes_max`: merges and checkpoints happen beside the writers.
fn assert_replay_below(db: &Database, bytes_max: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let bytes = db.stats().unwrap().wal_replay_bytes;
        if bytes < bytes_max {
            return;
        }
        assert!(Instant::now() < deadline, "{bytes} bytes to replay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One commit waits in the buffer, while another keyspace is written past it.
#[test]
fn a_forgotten_entry_does_not_hold_the_log_of_direct_commits() {
    let db = open(&SimStorage::new(1), options());
    let (small, busy) = (db.keyspace("small").unwrap(), db.keyspace("busy").unwrap());
    put(&db, &small, b"k", b"v");
    for number in 0..300u32 {
        let mut txn = db.begin_direct(&[&busy]).unwrap();
        for entry in 0..50u32 {
            let key = (number * 50 + entry).to_be_bytes();
            txn.upsert(&busy, &key, &[7; 1_000]).unwrap();
        }
        txn.commit().unwrap();
    }
    assert_replay_below(&db, 4 * MIB);
    assert_eq!(db.get(&small, b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// What is overwritten in memory takes little of the buffer, and its long key all the more of the log.
#[test]
fn a_long_key_that_is_overwritten_does_not_fill_the_disk() {
    let db = open(&SimStorage::new(2), options());
    let keyspace = db.keyspace("k").unwrap();
    let key = vec![b'k'; 60_000];
    for number in 0..2_000u64 {
        put(&db, &keyspace, &key, &number.to_le_bytes());
    }
    assert_replay_below(&db, 4 * MIB);
    let found = db.get(&keyspace, &key).unwrap();
    assert_eq!(found.as_deref(), Some(&1_999u64.to_le_bytes()[..]));
}

/// So many keys that their versions take the place of older ones: each fills a little of the buffer, which so changes all the time.
#[test]
fn long_keys_that_are_overwritten_without_a_pause_do_not_fill_the_disk() {
    let db = open(&SimStorage::new(8), options().buffer_bytes(4 << 20));
    let keyspace = db.keyspace("k").unwrap();
    let mut key = vec![b'k'; 2_000];
    let mut replay_max = 0;
    for number in 0..60_000u64 {
        key[..8].copy_from_slice(&(number % 600).to_be_bytes());
        put(&db, &keyspace, &key, &number.to_le_bytes());
        if number.is_multiple_of(100) {
            replay_max = replay_max.max(db.stats().unwrap().wal_replay_bytes);
            // Or a tick of the merging thread would be worth much of all that is written here.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(replay_max < 24 * MIB, "{replay_max} bytes to replay");
}

/// A process that is started, writes, and is killed, again and again.
#[test]
fn short_lives_do_not_pile_up_segments() {
    let mut disk = SimStorage::new(3);
    for number in 0..200u32 {
        let db = open(&disk, options());
        let keyspace = db.keyspace("k").unwrap();
        put(&db, &keyspace, &number.to_be_bytes(), b"v");
        disk.crash_now();
        let left = disk.process_crash(u64::from(number));
        drop((keyspace, db));
        disk = left;
        let files = disk.list().unwrap();
        let segments = files.iter().filter(|name| name.starts_with("log-")).count();
        assert!(segments <= 40, "{segments} segments after {number} lives");
    }
    let db = open(&disk, options());
    let keyspace = db.keyspace("k").unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 200);
}

/// Loads of nothing between writes do not make a record that is too large to be replayed.
#[test]
fn loads_of_nothing_do_not_gather_operations() {
    let disk = SimStorage::new(4);
    let options = || options().buffer_bytes(256 << 10).checkpoint_bytes(1 << 40);
    let db = open(&disk, options());
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..900u32 {
        for entry in 0..100u32 {
            let key = (number * 100 + entry).to_be_bytes();
            txn.upsert(&keyspace, &key, &[7; 1_000]).unwrap();
        }
        let nothing = std::iter::empty::<([u8; 4], [u8; 1])>();
        txn.ingest(&keyspace, nothing).unwrap();
    }
    let logged_before = db.stats().unwrap().wal_appended_bytes;
    txn.commit().unwrap();
    let logged = db.stats().unwrap().wal_appended_bytes - logged_before;
    assert!(logged < MIB, "{logged} bytes of log");
    disk.crash_now();
    let left = disk.process_crash(5);
    drop((keyspace, db));
    let db = open(&left, options());
    let keyspace = db.keyspace("k").unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 90_000);
}

/// The log of a database with a large buffer, opened with a small one.
#[test]
fn a_small_buffer_opens_what_a_large_one_logged() {
    let disk = SimStorage::new(6);
    let db = open(
        &disk,
        options().buffer_bytes(256 << 20).checkpoint_bytes(1 << 40),
    );
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..10_000u32 {
        txn.upsert(&keyspace, &number.to_be_bytes(), &[7; 10_000])
            .unwrap();
    }
    txn.commit().unwrap();
    disk.crash_now();
    let left = disk.process_crash(7);
    drop((keyspace, db));
    let db = open(&left, options());
    let keyspace = db.keyspace("k").unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 10_000);
    put(&db, &keyspace, b"more", b"v");
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 10_001);
}
