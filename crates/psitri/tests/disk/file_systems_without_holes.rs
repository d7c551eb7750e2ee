//! Story: a file system that cannot punch holes (macOS, some network and user-space file systems). Free space in the middle of the
//! file stays with the file and is used again; that is no error of a checkpoint.

use std::{sync::Arc, time::Duration};

use psitri::{
    Database, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};

#[test]
fn checkpoints_succeed() {
    let storage = SimStorage::new(1);
    storage.inject(Fault::random(
        CallKind::PunchHole,
        1,
        FaultError::Unsupported,
    ));
    let options = Options::new()
        .wal_segment_bytes(64 << 10)
        .idle_flush(Duration::from_secs(3600));
    let db = Database::open_on(Arc::new(storage), options).unwrap();
    let (front, back) = (db.keyspace("front").unwrap(), db.keyspace("back").unwrap());
    for keyspace in [&front, &back] {
        let mut txn = db.begin(&[keyspace]).unwrap();
        for n in 0..2000u32 {
            txn.upsert(keyspace, &n.to_be_bytes(), &[3; 200]).unwrap();
        }
        txn.commit().unwrap();
        db.checkpoint().unwrap();
    }
    // Leaves a hole before what `back` holds.
    db.drop_keyspace("front").unwrap();
    // A thread of the engine may look at the state before for a moment.
    let is_free = (0..1000).any(|_| {
        db.checkpoint().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        db.stats().unwrap().free_bytes > 100_000
    });
    assert!(is_free, "{:?}", db.stats());
    assert_eq!(db.snapshot().count(&back, ..).unwrap(), 2000);
    assert!(db.verify().unwrap().errors.is_empty());
}
