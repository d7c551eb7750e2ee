//! Story: a process ends with thousands of small commits in the log. The next one puts them back into about as many write
//! buffers as they filled before: recovery takes time and memory in proportion to the log's bytes, not to its operations.
use psitri::{Database, Options, storage::sim::SimStorage};
use std::{sync::Arc, time::Duration};

#[test]
fn small_commits_are_replayed_into_few_buffers() {
    let options = Options::new()
        .buffer_bytes(1 << 20)
        .idle_flush(Duration::from_secs(3600));
    let storage = SimStorage::new(1);
    let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
    let keyspaces = ["a", "b", "c"].map(|name| db.create_keyspace(name).unwrap());
    for number in 0..3000u64 {
        let mut txn = db.begin(&keyspaces.each_ref()).unwrap();
        for keyspace in &keyspaces {
            let key = (number % 500).to_be_bytes();
            txn.upsert(keyspace, &key, &number.to_le_bytes()).unwrap();
        }
        txn.commit().unwrap();
    }
    let frozen = db.stats().unwrap().frozen_buffers;
    assert_eq!(frozen, 0, "it all fits in one buffer");
    storage.crash_now();
    let db = Database::open_on(Arc::new(storage.process_crash(2)), options).unwrap();
    let stats = db.stats().unwrap();
    assert_eq!(stats.frozen_buffers, 0, "and in one buffer again");
    assert!(stats.buffer_bytes < 1 << 20);
    for name in ["a", "b", "c"] {
        let keyspace = db.open_keyspace(name).unwrap();
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 500);
    }
}
