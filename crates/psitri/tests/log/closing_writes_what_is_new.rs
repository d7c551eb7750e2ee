//! Story: a large database that is opened, changed in a few thousand places, and closed. The changes stay in the log, as merging them would
//! write nearly every leaf anew: the close is quick, the file does not grow, and the next opening has everything.

use std::{path::Path, time::Duration};

use crate::{allocated, key};
use psitri::{Database, Options};

const ENTRIES: u32 = 60_000;
const CHANGES: u32 = 2_000;

fn open(path: &Path) -> Database {
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    options.open(path).unwrap()
}

#[test]
fn and_opening_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("entries").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for n in 0..ENTRIES {
        txn.upsert(&keyspace, &key(n), &[1; 100]).unwrap();
    }
    txn.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    let packed = allocated(dir.path(), "data");
    assert!(
        allocated(dir.path(), "log-") < 64 << 10,
        "merged, as that writes what there is"
    );

    for round in 1..=3u32 {
        let db = open(dir.path());
        let keyspace = db.keyspace("entries").unwrap();
        for n in 0..CHANGES {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            let place = key(n.wrapping_mul(29) % ENTRIES);
            txn.upsert(&keyspace, &place, &[1 + round as u8; 100])
                .unwrap();
            txn.commit().unwrap();
        }
        drop(keyspace);
        db.close().unwrap();
        let (data, log) = (allocated(dir.path(), "data"), allocated(dir.path(), "log-"));
        assert!(data <= packed + packed / 16, "{packed} bytes became {data}");
        let written = u64::from(round * CHANGES) * 170;
        assert!(
            log > written / 2 && log < 2 * written + (64 << 10),
            "log of {log} bytes"
        );
    }

    let db = open(dir.path());
    let keyspace = db.keyspace("entries").unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), u64::from(ENTRIES));
    for n in 0..CHANGES {
        let value = snapshot
            .get(&keyspace, &key(n.wrapping_mul(29) % ENTRIES))
            .unwrap();
        assert_eq!(value, Some(&[4; 100][..]));
    }
    drop(snapshot);
    db.checkpoint().unwrap();
    assert!(db.stats().unwrap().wal_retained_bytes == 0);
    assert!(db.verify().unwrap().errors.is_empty());
}

#[test]
fn and_not_more_and_more_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("entries").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for n in 0..20_000 {
        txn.upsert(&keyspace, &key(n), &[1; 100]).unwrap();
    }
    txn.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    for round in 0..60u8 {
        let db = open(dir.path());
        let keyspace = db.keyspace("entries").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(round.into()), &[round; 100])
            .unwrap();
        txn.commit().unwrap();
        drop(keyspace);
        db.close().unwrap();
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert!(files < 30, "{files} files after {round} rounds");
    }
}
