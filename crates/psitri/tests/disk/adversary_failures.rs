//! Failed calls of the disk at every place of a commit, a spill and a checkpoint: what failed left nothing behind, and what
//! was there before is still there, now and after the next opening.

use crate::common::checkpoint_and_let_go;
use std::{sync::Arc, time::Duration};

use psitri::{
    Database, Durability, Keyspace, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600))
}

fn open(storage: &SimStorage) -> Database {
    Database::open_on(Arc::new(storage.clone()), options()).expect("the database opens")
}

fn check_sound(db: &Database, what: &str) {
    let report = db.verify().unwrap();
    assert_eq!(report.errors, Vec::<String>::new(), "{what}");
}

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert(ks, key, value).unwrap();
    txn.commit().unwrap();
}

/// A spilled transaction, with each of its calls to the disk failing in turn.
#[test]
fn a_spilled_transaction_that_fails_leaves_nothing_behind() {
    let mut succeeded = 0;
    for nth in 1..40 {
        for (kind, error) in [
            (CallKind::Write, FaultError::OutOfSpace),
            (CallKind::Allocate, FaultError::OutOfSpace),
            (CallKind::Sync, FaultError::Io),
        ] {
            let what = format!("{kind:?} {nth}");
            let disk = SimStorage::new(nth);
            disk.set_early_write_back(false);
            let db = open(&disk);
            let ks = db.keyspace("k").unwrap();
            for name in 0..40 {
                db.keyspace(&format!(
                    "a keyspace with a long name to fill the catalog {name:100}"
                ))
                .unwrap();
            }
            put(&db, &ks, b"before", b"1");
            db.checkpoint().unwrap();
            disk.inject(Fault::nth(kind, nth, error));
            let result = spilling(&db, &ks);
            disk.clear_faults();
            succeeded += usize::from(result.is_ok());
            let expected = if result.is_ok() { 3001 } else { 1 };
            assert_eq!(db.snapshot().count(&ks, ..).unwrap(), expected, "{what}");
            check_sound(&db, &what);
            if kind != CallKind::Sync {
                put(&db, &ks, b"after", b"1");
                db.checkpoint().unwrap();
                check_sound(&db, &what);
                assert_eq!(
                    db.snapshot().count(&ks, ..).unwrap(),
                    expected + 1,
                    "{what}"
                );
                let stats = checkpoint_and_let_go(&db);
                // All free space was given back: what is left is reachable, but for the map and partly filled pages.
                let lost = stats.file_bytes.saturating_sub(stats.reachable_bytes);
                assert!(lost < 150 << 10, "{what}: {lost} bytes are lost");
            }
            disk.crash_now();
            let left = disk.crash(nth);
            drop(db);
            let db = open(&left);
            let ks = db.open_keyspace("k").unwrap();
            assert_eq!(db.get(&ks, b"before").unwrap().as_deref(), Some(&b"1"[..]));
            let found = db.snapshot().count(&ks, b"key".as_slice()..).unwrap();
            assert!(found == 0 || found == 3000, "{what}: half a transaction");
            assert!(result.is_err() || found == 3000, "{what}: lost");
            check_sound(&db, &what);
        }
    }
    assert!(succeeded > 0, "no fault came too late");
}

fn spilling(db: &Database, ks: &Keyspace) -> psitri::Result<()> {
    let mut txn = db.begin(&[ks])?;
    for number in 0..3000u32 {
        let key = [b"key", &number.to_be_bytes()[..]].concat();
        txn.upsert(ks, &key, &[7; 100])?;
    }
    txn.commit()
}

/// When room cannot be made for a transaction it can only be aborted: a commit must not report what it did not write.
#[test]
fn a_transaction_that_could_not_spill_does_not_commit() {
    let disk = SimStorage::new(1);
    let db = open(&disk);
    let ks = db.keyspace("k").unwrap();
    // Has to be merged before the transaction can spill.
    put(&db, &ks, b"before", b"1");
    let mut txn = db.begin(&[&ks]).unwrap();
    disk.inject(Fault::random(CallKind::Allocate, 1, FaultError::OutOfSpace));
    disk.inject(Fault::random(CallKind::Write, 1, FaultError::OutOfSpace));
    let mut failed = 0;
    for number in 0..3000u32 {
        failed += u32::from(txn.upsert(&ks, &number.to_be_bytes(), &[7; 100]).is_err());
        if failed == 3 {
            break;
        }
    }
    assert!(failed > 0);
    assert!(txn.get(&ks, b"before").is_err());
    assert!(txn.cursor(&ks).is_err());
    drop(txn.nested());
    disk.clear_faults();
    assert!(txn.commit().is_err());
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 1);
    put(&db, &ks, b"after", b"1");
    spilling(&db, &ks).unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 3002);
    check_sound(&db, "after the failure");
}

/// A checkpoint holds the merged half of a transaction; the log must hold the other half.
#[test]
fn a_checkpoint_does_not_tear_a_transaction_that_is_merged_in_part() {
    for seed in 0..20 {
        let disk = SimStorage::new(seed);
        disk.set_early_write_back(false);
        let db = open(&disk);
        let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
        db.checkpoint().unwrap();
        let mut txn = db.begin(&[&a, &b]).unwrap();
        txn.upsert(&a, b"key", b"1").unwrap();
        txn.upsert(&b, b"key", b"1").unwrap();
        txn.commit_with(Durability::None).unwrap();
        // Holds back the merge of `b`, not that of `a`.
        let open_txn = db.begin(&[&b]).unwrap();
        db.begin_direct(&[&a]).unwrap().abort();
        db.checkpoint().unwrap();
        disk.crash_now();
        let left = disk.crash(seed);
        drop(open_txn);
        drop(db);
        let db = open(&left);
        let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
        let (a, b) = (db.get(&a, b"key").unwrap(), db.get(&b, b"key").unwrap());
        assert!(a.is_some(), "a checkpoint is durable");
        assert_eq!(a, b, "seed {seed}: half a transaction");
    }
}
