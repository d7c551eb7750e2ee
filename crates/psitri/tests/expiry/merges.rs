//! What merges, sweeps and compaction drop, and that nothing comes back in its place.

use std::sync::Arc;

use psitri::{Database, Expiry, storage::sim::SimStorage};

use super::{Hand, after, assert_sound, expiring, held, keys, put};

/// The value that an expired one replaced must not be seen again: not while the expired one is in a buffer, nor after it was merged.
#[test]
fn nothing_older_comes_back_in_the_place_of_what_has_expired() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for n in 0..100u8 {
        put(&db, &ks, &[n], b"old, and for ever", Expiry::Never);
    }
    db.checkpoint().unwrap();
    // Of the same length, so that the leaf could be patched; of others; out of line; written straight to the file.
    for (n, bytes) in [(10u8, 17), (20, 5), (30, 600), (40, 20_000)] {
        put(&db, &ks, &[n], &vec![n; bytes], after(50));
    }
    let gone = [10u8, 20, 30, 40];
    hand.pass(50);
    let check = |when: &str| {
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 96, "{when}");
        for n in gone {
            assert_eq!(db.get(&ks, &[n]).unwrap(), None, "{when}");
        }
    };
    check("before the merge");
    db.checkpoint().unwrap();
    assert_eq!(held(&db, &ks), (96, 0));
    check("after the merge");
    // What the merge dropped stays so.
    hand.set_back(50);
    check("with the clock set back");
    assert_sound(&db);
}

/// The same where several buffers are merged at once, the newest with the expired version: recovery makes several of one log.
#[test]
fn nothing_older_comes_back_from_buffers_that_are_merged_together() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(2));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let other = db.create_keyspace("other").unwrap();
    put(&db, &ks, b"k", b"oldest", Expiry::Never);
    db.checkpoint().unwrap();
    let fill = || {
        let mut txn = db.begin(&[&other]).unwrap();
        for n in 0..100u32 {
            txn.upsert(&other, &n.to_be_bytes(), &[7; 2000]).unwrap();
        }
        txn.commit().unwrap();
    };
    put(&db, &ks, b"k", b"older", Expiry::Never);
    fill();
    put(&db, &ks, b"k", b"newest", after(50));
    fill();
    assert_eq!(held(&db, &ks), (1, 1), "nothing was merged meanwhile");
    hand.pass(50);
    let left = disk.process_crash(2);
    let options = hand.options().buffer_bytes(256 << 10);
    let db = Database::open_on(Arc::new(left), options).unwrap();
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
    db.checkpoint().unwrap();
    assert_eq!(held(&db, &ks), (0, 0));
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
    hand.set_back(50);
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
}

#[test]
fn merges_drop_what_they_come_by_and_a_sweep_drops_the_rest() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    let entries = (0..20_000u32).map(|n| {
        let expiry = if n % 10 == 0 {
            Expiry::Never
        } else {
            after(50)
        };
        (n.to_be_bytes(), [n as u8; 100], expiry)
    });
    txn.ingest_expiring(&ks, entries).unwrap();
    txn.commit().unwrap();
    assert_eq!(held(&db, &ks), (20_000, 0));
    hand.pass(50);
    // One leaf is taken apart: it loses its expired entries, others keep theirs.
    put(&db, &ks, &7000u32.to_be_bytes(), b"short", Expiry::Never);
    db.checkpoint().unwrap();
    let (merged, _) = held(&db, &ks);
    assert!((10_000..19_999).contains(&merged), "{merged}");
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2000);
    assert_sound(&db);
    let before = db.stats().unwrap().reachable_bytes;
    db.drop_expired(&ks).unwrap();
    assert_eq!(held(&db, &ks), (2000, 0));
    let after = db.stats().unwrap().reachable_bytes;
    assert!(after < before / 5, "{after} of {before} bytes");
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2000);
    assert_sound(&db);
    // Nothing is left to do: no checkpoint.
    let checkpoints = db.stats().unwrap().checkpoints;
    db.drop_expired(&ks).unwrap();
    assert_eq!(db.stats().unwrap().checkpoints, checkpoints);
}

#[test]
fn compaction_drops_everything_that_has_expired() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let all_gone = db.create_keyspace_with("gone", expiring()).unwrap();
    for keyspace in [&ks, &all_gone] {
        let mut txn = db.begin_direct(&[keyspace]).unwrap();
        for n in 0..3000u32 {
            let keeps = n % 100 == 0 && keyspace.name() == "ks";
            let expiry = if keeps { Expiry::Never } else { after(50) };
            // In leaves, out of line, in pages of their own.
            let bytes = [50, 1000, 20_000][usize::from(n % 10 == 1) + usize::from(n % 100 == 1)];
            let value = vec![n as u8; bytes];
            txn.upsert_expiring(keyspace, &n.to_be_bytes(), &value, expiry)
                .unwrap();
        }
        txn.commit().unwrap();
    }
    db.checkpoint().unwrap();
    let before = db.stats().unwrap().file_bytes;
    hand.pass(50);
    db.compact().unwrap();
    assert_eq!((held(&db, &ks), held(&db, &all_gone)), ((30, 0), (0, 0)));
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes < before / 20, "{stats:?}");
    assert_sound(&db);
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 30);
}

/// Values that transactions wrote to the file, and that expire before they are merged: their space is given back, and the log that names them
/// can be replayed.
#[test]
fn large_values_that_expire_in_the_buffer_leave_nothing_behind() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(7));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    put(&db, &ks, b"never", b"-", Expiry::Never);
    // A direct transaction merges what it wrote, and logs it: the value has expired by then.
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.upsert_expiring(&ks, b"direct", &[1; 50_000], after(0))
        .unwrap();
    txn.commit().unwrap();
    for n in 0..20u8 {
        put(&db, &ks, &[n], &vec![n; 50_000], after(50));
    }
    hand.pass(50);
    let after_crash = disk.process_crash(1);
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let kept = db.stats().unwrap();
    assert!(kept.reachable_bytes < 100_000, "{kept:?}");
    assert_eq!(keys(&db, &ks), [b"never"]);
    assert_sound(&db);

    let again = Database::open_on(Arc::new(after_crash), hand.options()).unwrap();
    let ks = again.open_keyspace("ks").unwrap();
    assert_eq!(keys(&again, &ks), [b"never"]);
    again.checkpoint().unwrap();
    assert_eq!(keys(&again, &ks), [b"never"]);
    assert_sound(&again);
}

/// Expired entries that are in the tree in part only, because the process ended in the middle of a merge that is published in slices.
#[test]
fn a_merge_that_was_cut_short_brings_nothing_back() {
    for crash in 0..6 {
        let hand = Hand::new();
        let disk = Arc::new(SimStorage::new(crash));
        let options = || hand.options().buffer_bytes(256 << 10);
        let db = Database::open_on(Arc::clone(&disk) as _, options()).unwrap();
        let ks = db.create_keyspace_with("ks", expiring()).unwrap();
        let mut txn = db.begin_direct(&[&ks]).unwrap();
        let old = (0..5000u32).map(|n| (n.to_be_bytes(), b"old", Expiry::Never));
        txn.ingest_expiring(&ks, old).unwrap();
        txn.commit().unwrap();
        for n in 0..600u32 {
            let key = (n * 8).to_be_bytes();
            put(&db, &ks, &key, b"new", after(50));
        }
        hand.pass(50);
        let start = disk.calls();
        disk.crash_at_call(start + 3 + crash * 9);
        let _ = db.checkpoint();
        let left = disk.process_crash(crash);
        drop((ks, db));
        let db = Database::open_on(Arc::new(left), options()).unwrap();
        let ks = db.open_keyspace("ks").unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        db.checkpoint().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        hand.set_back(50);
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        assert_sound(&db);
    }
}
