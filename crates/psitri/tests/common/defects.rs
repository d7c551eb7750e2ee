//! What the tests of known defects share: small sizes, so that everything happens often, and short ways of saying things.
#![allow(dead_code)] // each test uses its part
use psitri::{Database, Error, Keyspace, Options, storage::sim::SimStorage};
use std::{sync::Arc, time::Duration};

pub fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
}

pub fn open(storage: &SimStorage) -> Result<Database, Error> {
    Database::open_on(Arc::new(storage.clone()), options())
}

pub fn put(db: &Database, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, key, value).unwrap();
    txn.commit().unwrap();
}

pub fn count(db: &Database, keyspace: &Keyspace) -> u64 {
    db.snapshot().count(keyspace, ..).unwrap()
}

/// Keys in an order that has nothing to do with theirs.
pub fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Ends the process without closing anything, and opens what it leaves.
pub fn after_the_process(storage: &SimStorage, db: Database) -> (SimStorage, Database) {
    storage.crash_now();
    let next = storage.process_crash(1);
    drop(db);
    let db = open(&next).unwrap();
    (next, db)
}
