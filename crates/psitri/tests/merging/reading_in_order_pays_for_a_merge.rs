//! Story: a report that is run again and again over what was just written. Reading a buffer in order costs more than reading a tree; once
//! that has cost as much as a merge would have, the buffer is merged, although it is neither full nor idle.
use crate::common::SetAtEnd;
use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use psitri::{Cursor, Database, Keyspace, Options};

const ENTRIES: u32 = 20_000;

#[test]
fn and_points_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    fill(&db, &keyspace);

    let snapshot = db.snapshot();
    for n in 0..20 * ENTRIES {
        let key = (n % ENTRIES).wrapping_mul(0x9e37_79b9).to_be_bytes();
        assert!(snapshot.get(&keyspace, &key).unwrap().is_some());
    }
    drop(snapshot);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(db.stats().unwrap().merges, 0, "lookups ask for no merge");

    let deadline = Instant::now() + Duration::from_secs(60);
    while db.stats().unwrap().merges == 0 {
        assert!(Instant::now() < deadline, "scans ask for a merge");
        assert_eq!(scan(&db, &keyspace), ENTRIES);
    }
    let stats = db.stats().unwrap();
    assert_eq!(
        (stats.merges, stats.merged_entries),
        (1, u64::from(ENTRIES))
    );
    db.close().unwrap();
}

#[test]
fn while_somebody_writes_too() {
    let db = Options::new().buffer_bytes(256 << 20).in_memory().unwrap();
    let (keyspace, other) = (
        db.keyspace("entries").unwrap(),
        db.keyspace("other").unwrap(),
    );
    fill(&db, &keyspace);

    let is_merged = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_merged);
        // Always something new, and never enough to fill the buffer before the deadline. The merge is a short one.
        scope.spawn(|| {
            for n in 0u64.. {
                if is_merged.load(Ordering::Relaxed) {
                    return;
                }
                let mut txn = db.begin(&[&other]).unwrap();
                txn.upsert(&other, &n.to_be_bytes(), &[1; 1000]).unwrap();
                txn.commit().unwrap();
                thread::sleep(Duration::from_millis(2));
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut merges = 0;
        while merges == 0 && Instant::now() < deadline {
            assert_eq!(scan(&db, &keyspace), ENTRIES);
            merges = db.stats().unwrap().merges;
        }
        assert!(merges > 0, "scans ask for a merge");
    });
}

/// The first entry is read and removed, in commits of their own, as a queue is used by those who do not know of pops.
#[test]
fn and_a_queue_stays_quick() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    fill(&db, &keyspace);
    db.checkpoint().unwrap();
    let merges = db.stats().unwrap().merges;

    for left in (0..ENTRIES).rev() {
        let snapshot = db.snapshot();
        let mut first = snapshot.cursor(&keyspace).unwrap();
        assert!(first.seek_first().unwrap());
        let mut txn = db.begin(&[&keyspace]).unwrap();
        assert!(txn.remove(&keyspace, first.key()).unwrap());
        txn.commit().unwrap();
        if left % 1000 == 0 {
            assert_eq!(db.snapshot().len(&keyspace).unwrap(), u64::from(left));
        }
    }
    assert!(
        db.stats().unwrap().merges - merges >= 3,
        "{ENTRIES} removed entries are not passed again and again"
    );
}

/// What a deleted range left in the buffer is passed at once, from both ends, in a transaction and in snapshots: nobody reads so much that a merge would pay.
#[test]
fn and_a_deleted_range_is_not_read() {
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.in_memory().unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    fill(&db, &keyspace);
    let mut txn = db.begin(&[&keyspace]).unwrap();
    let (lo, hi) = (&[0x10][..], &[0xf0][..]);
    txn.remove_range(&keyspace, lo, Some(hi)).unwrap();
    for key in [&[0x80][..], &[0x80, 0, 0, 0, 7]] {
        txn.upsert(&keyspace, key, b"written since").unwrap();
    }
    let look = |seek: &dyn Fn(&[u8], bool) -> Vec<u8>| {
        assert_eq!(seek(lo, true), [0x80]);
        assert_eq!(seek(&[0x81], true)[0], 0xf0);
        assert_eq!(seek(hi, false), [0x80, 0, 0, 0, 7]);
        assert_eq!(seek(&[0x7f], false)[0], 0x0f);
    };
    let seek = |mut cursor: Cursor<'_>, key: &[u8], forward: bool| {
        let found = match forward {
            true => cursor.seek(key),
            false => cursor.seek_back(key),
        };
        assert!(found.unwrap());
        cursor.key().to_vec()
    };
    (0..50).for_each(|_| look(&|key, forward| seek(txn.cursor(&keyspace).unwrap(), key, forward)));
    txn.commit().unwrap();
    for _ in 0..50 {
        let snapshot = db.snapshot();
        look(&|key, forward| seek(snapshot.cursor(&keyspace).unwrap(), key, forward));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(db.stats().unwrap().merges, 0);
}

fn fill(db: &Database, keyspace: &Keyspace) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    for n in 0..ENTRIES {
        let key = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        txn.upsert(keyspace, &key, &n.to_le_bytes()).unwrap();
    }
    txn.commit().unwrap();
}

/// Entries of a scan.
fn scan(db: &Database, keyspace: &Keyspace) -> u32 {
    let mut passed = 0;
    let snapshot = db.snapshot();
    let cursor = snapshot.cursor(keyspace).unwrap();
    cursor
        .for_each(|_, _| {
            passed += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    passed
}
