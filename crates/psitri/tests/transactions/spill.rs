//! Story: a transaction of a million operations outgrows the write buffer. It stays atomic, its memory stays bounded, an abort
//! leaves nothing behind, it can be nested, and when the disk is full it is undone with a clear error.

use psitri::{Database, Error, Options, ReadMode, storage::sim::SimStorage};
use std::sync::Arc;

fn key(number: u32) -> [u8; 4] {
    // Not in order, so that every spill changes the whole tree.
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

#[test]
fn a_million_operations_are_one_transaction() {
    const COUNT: u32 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(16 << 20)
        .open(dir.path())
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"early", b"1").unwrap();
    for number in 0..COUNT {
        txn.upsert(&keyspace, &key(number), &number.to_le_bytes())
            .unwrap();
        if number % 250_000 == 1000 {
            assert_eq!(
                txn.get(&keyspace, &key(number / 2)).unwrap(),
                Some(&(number / 2).to_le_bytes()[..])
            );
            assert_eq!(
                db.snapshot().count(&keyspace, ..).unwrap(),
                0,
                "seen before the commit"
            );
            let buffered = db.stats().unwrap().buffer_bytes;
            assert!(
                buffered <= 16 << 20,
                "{buffered} bytes in the shared buffer"
            );
        }
    }
    assert_eq!(txn.count(&keyspace, ..).unwrap(), u64::from(COUNT) + 1);
    txn.commit().unwrap();
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let snapshot = db.snapshot_with(ReadMode::Trie);
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), u64::from(COUNT) + 1);
    for number in (0..COUNT).step_by(997) {
        assert_eq!(
            snapshot.get(&keyspace, &key(number)).unwrap(),
            Some(&number.to_le_bytes()[..])
        );
    }
    let stats = db.stats().unwrap();
    let live = stats.reachable_bytes;
    assert!(stats.file_bytes < live + live / 4 + (1 << 20), "{stats:?}");
}

#[test]
fn an_aborted_spill_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for direct in [false, true] {
        let mut txn = match direct {
            false => db.begin(&[&keyspace]).unwrap(),
            true => db.begin_direct(&[&keyspace]).unwrap(),
        };
        for number in 0..30_000 {
            txn.upsert(&keyspace, &key(number), &[5; 50]).unwrap();
        }
        txn.upsert(&keyspace, b"large", &[6; 100_000]).unwrap();
        txn.remove_range(&keyspace, b"", Some(b"\x80")).unwrap();
        txn.abort();
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 0);
        db.checkpoint().unwrap();
        let stats = db.stats().unwrap();
        assert!(stats.file_bytes <= 64 << 10, "{stats:?}");
    }
}

#[test]
fn levels_inside_of_a_spilled_transaction_can_be_undone() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..20_000 {
        txn.upsert(&keyspace, &key(number), b"outer").unwrap();
    }
    let mut nested = txn.nested();
    nested.remove_range(&keyspace, b"", None).unwrap();
    for number in 0..5_000 {
        nested.upsert(&keyspace, &key(number), b"inner").unwrap();
    }
    assert_eq!(nested.count(&keyspace, ..).unwrap(), 5_000);
    nested.abort();
    assert_eq!(txn.count(&keyspace, ..).unwrap(), 20_000);
    let mut nested = txn.nested();
    for number in 0..5_000 {
        nested.upsert(&keyspace, &key(number), b"inner").unwrap();
    }
    nested.commit();
    txn.commit().unwrap();
    let snapshot = db.snapshot();
    for number in 0..20_000 {
        let wanted: &[u8] = if number < 5_000 { b"inner" } else { b"outer" };
        assert_eq!(snapshot.get(&keyspace, &key(number)).unwrap(), Some(wanted));
    }
}

/// The log has room left, the data file has none: at every capacity something else fails first.
#[test]
fn a_spill_without_space_is_undone_and_loses_nothing_else() {
    let mut undone = 0;
    for extra_kilobytes in [0, 64, 300, 600, 1000, 1500, 2000] {
        let disk = SimStorage::new(9);
        let options = Options::new()
            .buffer_bytes(256 << 10)
            .wal_segment_bytes(64 << 10);
        let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"before", b"kept").unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        disk.set_capacity_bytes(Some(disk.allocated_bytes() + (extra_kilobytes << 10)));
        let mut txn = db.begin(&[&keyspace]).unwrap();
        let mut failure = None;
        for number in 0..20_000 {
            if let Err(error) = txn.upsert(&keyspace, &key(number), &[7; 80]) {
                failure = Some(error);
                break;
            }
        }
        match failure {
            Some(first) => {
                undone += 1;
                assert!(!matches!(first, Error::Undone { .. }), "{first}");
                assert!(first.is_out_of_space(), "{first}");
                for again in [
                    txn.upsert(&keyspace, b"k", b"v"),
                    txn.get(&keyspace, b"before").map(drop),
                    txn.count(&keyspace, ..).map(drop),
                    txn.remove(&keyspace, b"before").map(drop),
                ] {
                    let again = again.unwrap_err();
                    assert!(matches!(again, Error::Undone { .. }), "{again:?}");
                    assert!(again.is_out_of_space(), "{again:?}");
                }
                let message = txn.commit().unwrap_err().to_string();
                assert!(
                    message.starts_with("the transaction was undone: "),
                    "{message}"
                );
                assert!(message.contains(&first.to_string()), "{message}");
            }
            None => drop(txn.commit()),
        }
        disk.set_capacity_bytes(None);
        let number = db.snapshot().count(&keyspace, ..).unwrap();
        assert!(number == 1 || number == 20_001, "{number} keys");
        assert_eq!(
            db.get(&keyspace, b"before").unwrap().as_deref(),
            Some(&b"kept"[..])
        );
        // A full disk is no reason to refuse later writes, unless a flush was the one to find out.
        if db.checkpoint().is_ok() {
            let report = db.verify().unwrap();
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.remove_range(&keyspace, b"", None).unwrap();
            txn.commit().unwrap();
            db.checkpoint().unwrap();
            let stats = db.stats().unwrap();
            assert!(stats.file_bytes <= 64 << 10, "pages were lost: {stats:?}");
        }
    }
    assert!(undone >= 3, "the disk was never full in a spill");
}
