//! Story: on some file systems a flush may fail for want of space. The system may call the pages clean that it did not write, so
//! this is as bad as any failed flush: nothing is written any more, and a checkpoint must not be tried again as if nothing had
//! happened. A full disk before anything was flushed is harmless, and heals.

use std::{sync::Arc, time::Duration};

use psitri::{
    Database, Error, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};

fn options() -> Options {
    Options::new()
        .wal_segment_bytes(64 << 10)
        .idle_flush(Duration::from_secs(3600))
}

fn put(db: &Database, n: u32) -> Result<(), Error> {
    let ks = db.keyspace("ks")?;
    let mut txn = db.begin(&[&ks])?;
    txn.upsert(&ks, &n.to_be_bytes(), &[1; 1000])?;
    txn.commit()
}

#[test]
fn the_database_takes_no_more_writes() {
    // Which flush fails: of log, pages, superblock, or of a spare segment that the log thread makes meanwhile.
    let mut failed = 0;
    for nth in 1..=6 {
        let storage = SimStorage::new(nth);
        let db = Database::open_on(Arc::new(storage.clone()), options()).unwrap();
        for n in 0..100 {
            put(&db, n).unwrap();
        }
        storage.inject(Fault::nth(CallKind::Sync, nth, FaultError::OutOfSpace));
        let Err(_) = db.checkpoint() else {
            continue; // the fault hit a spare segment, which nobody needs
        };
        failed += 1;
        assert!(
            matches!(put(&db, 100), Err(Error::Poisoned { .. })),
            "flush {nth} failed, and writes go on"
        );
        assert!(
            db.checkpoint().is_err(),
            "flush {nth} failed, and a checkpoint went through"
        );
        let ks = db.open_keyspace("ks").unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 100, "reads go on");
        drop((ks, db));

        let db = Database::open_on(Arc::new(storage.crash(nth)), options()).unwrap();
        assert!(db.verify().unwrap().errors.is_empty());
    }
    assert!(failed > 0, "no checkpoint failed, nothing is shown");
}

#[test]
fn a_full_disk_before_the_flush_heals() {
    let storage = SimStorage::new(7);
    let db = Database::open_on(Arc::new(storage.clone()), options()).unwrap();
    for n in 0..100 {
        put(&db, n).unwrap();
    }
    storage.set_capacity_bytes(Some(storage.allocated_bytes()));
    let full = (100..3000).find_map(|n| put(&db, n).err().map(|e| (n, e)));
    let failed = db.checkpoint();
    assert!(full.is_some() || failed.is_err(), "the disk was never full");
    storage.set_capacity_bytes(None);
    put(&db, 5000).unwrap();
    db.checkpoint().unwrap();
    assert!(db.verify().unwrap().errors.is_empty());
}
