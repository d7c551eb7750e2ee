//! What recovery must cope with: transactions as large as the buffer let them be, whatever they took in memory then.

use std::{sync::Arc, time::Duration};

use psitri::{Database, Durability, Options, storage::sim::SimStorage};

fn options() -> Options {
    Options::new()
        .buffer_bytes(8 << 20)
        .wal_segment_bytes(1 << 20)
        .idle_flush(Duration::from_secs(3600))
}

fn open(storage: &SimStorage) -> Database {
    Database::open_on(Arc::new(storage.clone()), options()).expect("the database opens")
}

/// A nested transaction does not spill; here it has a hundred thousand small entries.
#[test]
fn a_transaction_that_fitted_into_the_buffer_fits_again() {
    let disk = SimStorage::new(1);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    let other = db.keyspace("other").unwrap();
    let mut txn = db.begin(&[&ks, &other]).unwrap();
    {
        let mut nested = txn.nested();
        for number in 0..100_000u32 {
            nested.upsert(&ks, &number.to_be_bytes(), b"v").unwrap();
        }
        nested.upsert(&other, b"done", b"v").unwrap();
        nested.commit();
    }
    txn.commit().unwrap();
    disk.crash_now();
    let left = disk.process_crash(2);
    drop(db);
    let db = open(&left);
    let ks = db.keyspace("k").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 100_000);
    // Recovery takes about the memory that the writing took: 5 MB of keys, values and their overhead.
    let used = db.stats().unwrap().buffer_bytes;
    assert!(used < 32 << 20, "{used} bytes");
}

/// Sixty MiB fill nearly all of the address space of a generation: recovery must not put them behind something else.
#[test]
fn a_transaction_that_nearly_filled_the_address_space_fits_behind_others() {
    let disk = SimStorage::new(3);
    disk.set_early_write_back(false);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    let other = db.keyspace("other").unwrap();
    // Seven MiB that do not make the buffer full.
    for number in 0..7u8 {
        let mut txn = db.begin(&[&other]).unwrap();
        for part in 0..100u8 {
            txn.upsert(&other, &[number, part], &[number; 10_000])
                .unwrap();
        }
        txn.commit().unwrap();
    }
    // Frozen and merged by this, but still in the log.
    db.begin_direct(&[&other]).unwrap().abort();
    let mut txn = db.begin(&[&ks]).unwrap();
    {
        let mut nested = txn.nested();
        for number in 0..6_000u32 {
            nested
                .upsert(&ks, &number.to_be_bytes(), &[7; 10_000])
                .unwrap();
        }
        nested.commit();
    }
    txn.commit().unwrap();
    disk.crash_now();
    let left = disk.process_crash(4);
    drop(db);
    let db = open(&left);
    let ks = db.keyspace("k").unwrap();
    let other = db.keyspace("other").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 6_000);
    assert_eq!(db.snapshot().count(&other, ..).unwrap(), 700);
}

/// What is ingested is in no buffer, and logged as long as it is little: little enough to be read back into one.
#[test]
fn many_small_ingests_are_recovered() {
    let disk = SimStorage::new(5);
    disk.set_early_write_back(false);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    const CALLS: u32 = 80;
    const EACH: u32 = 10_000;
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    for call in 0..CALLS {
        let numbers = call * EACH..(call + 1) * EACH;
        let entries = numbers.map(|number| (number.to_be_bytes(), b"v"));
        txn.ingest(&ks, entries).unwrap();
    }
    txn.commit().unwrap();
    disk.crash_now();
    let left = disk.process_crash(6);
    drop(db);
    let db = open(&left);
    let ks = db.keyspace("k").unwrap();
    let expected = u64::from(CALLS * EACH);
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), expected);
}

/// A closed database gives the space of its log back, and opening it needs no more than its own first segment.
#[test]
fn opening_a_closed_database_needs_little_space() {
    let disk = SimStorage::new(7);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    for number in 0..2_000u32 {
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, &number.to_be_bytes(), &[7; 100]).unwrap();
        txn.commit().unwrap();
    }
    drop(ks);
    db.close().unwrap();
    let used = disk.allocated_bytes();
    assert!(used < 400 << 10, "{used} bytes for 200 KB");
    disk.set_capacity_bytes(Some(used + (300 << 10)));
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2_000);
}

/// The mode `async` may be one commit's, whatever that of the database is.
#[test]
fn an_async_commit_in_a_database_without_flushes_is_flushed_soon() {
    let disk = SimStorage::new(9);
    disk.set_early_write_back(false);
    let options = options().async_interval(Duration::from_millis(20));
    let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
    let ks = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"key", b"value").unwrap();
    txn.commit_with(Durability::Async).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    disk.crash_now();
    let left = disk.crash(10);
    drop(db);
    let db = open(&left);
    let ks = db.open_keyspace("k").unwrap();
    assert!(db.get(&ks, b"key").unwrap().is_some());
}

/// The power fails, or the process ends, at any call of a creation, and of the creation after it. What is committed durably after that stays, and
/// with it the names of all files.
#[test]
fn a_creation_may_end_anywhere() {
    let sync = || options().durability(Durability::Sync);
    let create = |disk: &SimStorage, call: u64| {
        disk.crash_at_call(call);
        Database::open_on(Arc::new(disk.clone()), sync()).is_ok() && !disk.is_crashed()
    };
    let after = |disk: &SimStorage, process: bool, seed: u64| match process {
        true => disk.process_crash(seed),
        false => disk.crash(seed),
    };
    for seed in 0..8 {
        let (first_ends, second_ends) = (seed % 2 == 0, seed % 4 < 2);
        for call in 1.. {
            let disk = SimStorage::new(seed);
            let is_done = create(&disk, call);
            let disk = after(&disk, first_ends, seed + call);
            create(&disk, 1 + (seed + call) % 23);
            let disk = after(&disk, second_ends, seed + 2 * call);

            let db = Database::open_on(Arc::new(disk.clone()), sync()).expect("it is created");
            let keyspace = db.keyspace("k").unwrap();
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, b"key", b"value").unwrap();
            txn.commit().unwrap();
            let disk = disk.crash(seed + 3 * call);
            drop(keyspace);
            drop(db);

            let db = Database::open_on(Arc::new(disk), sync());
            let db = db.unwrap_or_else(|error| panic!("seed {seed}, call {call}: {error}"));
            let keyspace = db.keyspace("k").unwrap();
            assert_eq!(
                db.snapshot().get(&keyspace, b"key").unwrap(),
                Some(&b"value"[..]),
                "seed {seed}, call {call}"
            );
            if is_done {
                break;
            }
        }
    }
}
