//! What recovery must cope with: transactions as large as the buffer let them be, whatever they took in memory then.

use std::{sync::Arc, time::Duration};

use psitri::{Database, Options, storage::sim::SimStorage};

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
