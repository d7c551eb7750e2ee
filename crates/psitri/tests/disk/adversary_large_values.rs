//! Large values lie in the data file, but the log and the write buffer refer to them, not only the tree.
//!
//! Each test here is a way in which the space of such a value was once given to somebody else, or its record in the log
//! once kept the database from opening: the file had grown since the checkpoint, the value was overwritten before the next
//! checkpoint, a snapshot read it through the buffer, its record was on the disk before it was.

use crate::common::checkpoint_and_let_go;
use std::{sync::Arc, time::Duration};

use psitri::{Database, Durability, Keyspace, Options, storage::sim::SimStorage};

const VALUE_BYTES: usize = 100_000;

fn options() -> Options {
    Options::new()
        .buffer_bytes(1 << 20)
        .wal_segment_bytes(1 << 20)
        .idle_flush(Duration::from_secs(3600))
}

fn open(storage: &SimStorage) -> Database {
    Database::open_on(Arc::new(storage.clone()), options()).expect("the database opens")
}

fn value(tag: u8) -> Vec<u8> {
    (0..VALUE_BYTES)
        .map(|at| (at as u8).wrapping_mul(31) ^ tag)
        .collect()
}

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert(ks, key, value).unwrap();
    txn.commit().unwrap();
}

/// Merges what is buffered, without a checkpoint.
fn merge(db: &Database, ks: &Keyspace) {
    db.begin_direct(&[ks]).unwrap().abort();
}

/// The disk as the death of the process leaves it.
fn kill(db: Database, storage: &SimStorage) -> SimStorage {
    storage.crash_now();
    let left = storage.process_crash(7);
    drop(db);
    left
}

fn check_sound(db: &Database) {
    let report = db.verify().unwrap();
    assert_eq!(report.errors, Vec::<String>::new());
}

#[test]
fn a_value_beyond_the_end_that_the_checkpoint_knew_is_recovered() {
    let disk = SimStorage::new(1);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    for tag in 0..20 {
        put(&db, &ks, &[tag], &value(tag));
    }
    let disk = kill(db, &disk);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    for tag in 0..20 {
        assert!(db.get(&ks, &[tag]).unwrap() == Some(value(tag)));
    }
    merge(&db, &ks);
    check_sound(&db);
}

#[test]
fn a_value_that_the_log_names_keeps_its_space_until_a_checkpoint_covers_its_end() {
    let disk = SimStorage::new(2);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    db.checkpoint().unwrap();
    // Overwritten in one buffer, and in the next.
    put(&db, &ks, b"a", &value(1));
    put(&db, &ks, b"a", &value(2));
    merge(&db, &ks);
    put(&db, &ks, b"a", &value(3));
    merge(&db, &ks);
    for tag in 10..20 {
        put(&db, &ks, &[tag], &value(tag));
    }
    let disk = kill(db, &disk);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    assert!(db.get(&ks, b"a").unwrap() == Some(value(3)));
    for tag in 10..20 {
        assert!(db.get(&ks, &[tag]).unwrap() == Some(value(tag)));
    }
    check_sound(&db);
    // And is given back then.
    db.checkpoint().unwrap();
    checkpoint_and_let_go(&db);
}

#[test]
fn a_snapshot_keeps_the_values_that_it_sees_through_the_buffer() {
    let db = options().in_memory().unwrap();
    let ks = db.keyspace("k").unwrap();
    put(&db, &ks, b"a", &value(1));
    let before = db.snapshot();
    put(&db, &ks, b"a", &value(2));
    merge(&db, &ks);
    let between = db.snapshot();
    put(&db, &ks, b"a", &value(3));
    merge(&db, &ks);
    for tag in 10..30 {
        put(&db, &ks, &[tag], &value(tag));
    }
    assert!(before.get(&ks, b"a").unwrap() == Some(&value(1)[..]));
    assert!(between.get(&ks, b"a").unwrap() == Some(&value(2)[..]));
    drop((before, between));
    merge(&db, &ks);
    merge(&db, &ks);
    check_sound(&db);
}

#[test]
fn a_snapshot_keeps_a_value_that_an_earlier_run_wrote() {
    let disk = SimStorage::new(3);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    db.checkpoint().unwrap();
    // Versions of the tree that the crash forgets.
    for tag in 0..30 {
        put(&db, &ks, b"counter", &[tag]);
        merge(&db, &ks);
    }
    put(&db, &ks, b"a", &value(1));
    let disk = kill(db, &disk);

    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    merge(&db, &ks);
    db.checkpoint().unwrap();
    let before = db.snapshot();
    put(&db, &ks, b"a", &value(2));
    merge(&db, &ks);
    db.checkpoint().unwrap();
    for tag in 10..30 {
        put(&db, &ks, &[tag], &value(tag));
    }
    assert!(before.get(&ks, b"a").unwrap() == Some(&value(1)[..]));
    drop(before);
    // A direct transaction that overwrites what an earlier run wrote.
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.upsert(&ks, b"a", b"small").unwrap();
    txn.commit().unwrap();
    check_sound(&db);
}

/// Everything that was committed is there up to some commit, and everything acknowledged as durable.
#[test]
fn a_record_whose_value_the_disk_lost_ends_the_log() {
    let seed = std::env::var("PSITRI_SEED").map_or(11, |seed| seed.parse().unwrap());
    for round in 0..25 {
        let disk = SimStorage::new(seed + round);
        let db = open(&disk);
        let ks = db.keyspace("k").unwrap();
        let mut durable = 0;
        for number in 0..12u8 {
            let mut txn = db.begin(&[&ks]).unwrap();
            txn.upsert(&ks, &[number], &value(number)).unwrap();
            let sync = (u64::from(number) + round) % 5 == 0;
            txn.commit_with(if sync {
                durable = number + 1;
                Durability::Sync
            } else {
                Durability::None
            })
            .unwrap();
        }
        disk.crash_now();
        let left = disk.crash(seed ^ round);
        drop(db);
        let db = open(&left);
        let Ok(ks) = db.open_keyspace("k") else {
            assert_eq!(durable, 0, "seed {seed}, round {round}");
            continue;
        };
        let found = db.snapshot().count(&ks, ..).unwrap() as u8;
        assert!(found >= durable, "seed {seed}, round {round}");
        for number in 0..found {
            let read = db.get(&ks, &[number]).unwrap();
            assert!(read == Some(value(number)), "seed {seed}, round {round}");
        }
        check_sound(&db);
    }
}
