//! Moments and options of keyspaces last: through every way of storing a value, closing, crashes, backups.

use std::{sync::Arc, time::Duration};

use psitri::{Database, Expiry, KeyspaceOptions, storage::sim::SimStorage};

use super::{Hand, after, assert_sound, expiring, held, keys, put};

#[test]
fn values_of_every_size_keep_their_moment() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let sizes = [
        0usize,
        1,
        503,
        504,
        505,
        512,
        4087,
        4088,
        16_375,
        16_376,
        16_377,
        16_384,
        100_000,
        3 << 20,
    ];
    let db = hand.options().open(&path).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    for (n, &bytes) in sizes.iter().enumerate() {
        let value = vec![n as u8; bytes];
        txn.upsert_expiring(&ks, &[n as u8], &value, after(50))
            .unwrap();
        assert_eq!(txn.get(&ks, &[n as u8]).unwrap(), Some(&value[..]));
    }
    txn.commit().unwrap();
    let moment = Some(Expiry::At(hand.now() + Duration::from_millis(50)));
    let check = |db: &Database, when: &str| {
        let ks = db.open_keyspace("ks").unwrap();
        let snapshot = db.snapshot();
        for (n, &bytes) in sizes.iter().enumerate() {
            let value = snapshot.get(&ks, &[n as u8]).unwrap();
            assert_eq!(value, Some(&vec![n as u8; bytes][..]), "{when}");
            assert_eq!(snapshot.expiry(&ks, &[n as u8]).unwrap(), moment);
        }
    };
    check(&db, "in the buffer");
    db.checkpoint().unwrap();
    check(&db, "in the tree");
    db.close().unwrap();
    let db = hand.options().open(&path).unwrap();
    check(&db, "after opening");
    assert_sound(&db);
    hand.pass(50);
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(keys(&db, &ks), [[0u8; 0]; 0]);
    db.compact().unwrap();
    assert_eq!(held(&db, &ks), (0, 0));
    let stats = db.stats().unwrap();
    assert!(stats.reachable_bytes <= 16 << 10, "{stats:?}");
    assert_sound(&db);
}

#[test]
fn moments_and_options_survive_closing_and_crashes() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(3));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let day = Duration::from_secs(86_400);
    let options = KeyspaceOptions::new().expire_after(day);
    let merged = db.create_keyspace_with("merged", options).unwrap();
    let mut txn = db.begin(&[&merged]).unwrap();
    txn.upsert(&merged, b"k", b"v").unwrap();
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let logged = db.create_keyspace_with("logged", options).unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    let mut txn = db.begin(&[&merged, &logged, &plain]).unwrap();
    txn.upsert(&logged, b"k", b"v").unwrap();
    txn.upsert(&plain, b"k", b"v").unwrap();
    txn.upsert_expiring(&merged, b"soon", b"v", after(10))
        .unwrap();
    txn.commit().unwrap();
    let created = hand.now();
    db.flush().unwrap();
    for power in [false, true] {
        let left = if power {
            disk.crash(5)
        } else {
            disk.process_crash(5)
        };
        let db = Database::open_on(Arc::new(left), hand.options()).unwrap();
        for name in ["merged", "logged"] {
            let ks = db.open_keyspace(name).unwrap();
            assert_eq!(ks.options(), options, "{name}");
            let found = db.snapshot().expiry(&ks, b"k").unwrap();
            assert_eq!(found, Some(Expiry::At(created + day)), "{name}");
            assert_eq!(db.get(&ks, b"k").unwrap().as_deref(), Some(&b"v"[..]));
        }
        let plain = db.open_keyspace("plain").unwrap();
        assert_eq!(plain.options(), KeyspaceOptions::new());
        assert_eq!(db.get(&plain, b"k").unwrap().as_deref(), Some(&b"v"[..]));
        hand.pass(10);
        let merged = db.open_keyspace("merged").unwrap();
        assert_eq!(db.get(&merged, b"soon").unwrap(), None);
        assert_sound(&db);
        db.close().unwrap();
        hand.set_back(10);
    }
}

#[test]
fn backups_keep_moments_and_options() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let day = KeyspaceOptions::new().expire_after(Duration::from_secs(86_400));
    let ks = db.create_keyspace_with("ks", day).unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    put(&db, &ks, b"gone", b"-", after(10));
    put(&db, &ks, b"later", b"1", after(1000));
    put(&db, &ks, b"same", b"1", after(2000));
    let mut txn = db.begin(&[&ks, &plain]).unwrap();
    txn.upsert(&ks, b"default", b"1").unwrap();
    txn.upsert(&plain, b"k", b"1").unwrap();
    txn.commit().unwrap();
    hand.pass(10);
    let (full, more) = (dir.path().join("full"), dir.path().join("more"));
    assert_eq!(db.backup(&full).unwrap().entries, 4, "but not what is gone");
    put(&db, &ks, b"later", b"1", after(5000));
    let late = db.create_keyspace_with("late", expiring()).unwrap();
    put(&db, &late, b"k", b"1", after(700));
    let since = psitri::BackupOptions::new().since(&[&full]);
    let info = db.backup_with(&more, since).unwrap();
    assert_eq!(info.entries, 2, "another moment is a difference");

    for (chain, name) in [(vec![&full], "a"), (vec![&full, &more], "b")] {
        let path = dir.path().join(name);
        Database::restore(&chain, &path).unwrap();
        let again = hand.options().open(&path).unwrap();
        let restored = again.open_keyspace("ks").unwrap();
        assert_eq!(restored.options(), day);
        assert_eq!(
            keys(&again, &restored),
            [&b"default"[..], b"later", b"same"]
        );
        for key in [&b"default"[..], b"same"] {
            let wanted = db.snapshot().expiry(&ks, key).unwrap();
            assert_eq!(again.snapshot().expiry(&restored, key).unwrap(), wanted);
        }
        let later = again.snapshot().expiry(&restored, b"later").unwrap();
        let is_newer = later == db.snapshot().expiry(&ks, b"later").unwrap();
        assert_eq!(is_newer, name == "b");
        let plain = again.open_keyspace("plain").unwrap();
        assert_eq!(plain.options(), KeyspaceOptions::new());
        assert_eq!(again.get(&plain, b"k").unwrap().as_deref(), Some(&b"1"[..]));
        if name == "b" {
            let late = again.open_keyspace("late").unwrap();
            assert_eq!(late.options(), expiring());
            assert!(again.get(&late, b"k").unwrap().is_some());
            hand.pass(700);
            assert_eq!(again.get(&late, b"k").unwrap(), None);
        }
        assert_sound(&again);
    }
}

/// A dropped keyspace leaves nothing of its kind to the next one in its place.
#[test]
fn a_name_may_come_back_with_other_options() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(11));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    for (round, options) in [expiring(), KeyspaceOptions::new(), expiring()]
        .into_iter()
        .enumerate()
    {
        let ks = db.create_keyspace_with("ks", options).unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"k", &[round as u8; 3]).unwrap();
        txn.commit().unwrap();
        assert_eq!(db.get(&ks, b"k").unwrap(), Some(vec![round as u8; 3]));
        let left = disk.process_crash(round as u64);
        let again = Database::open_on(Arc::new(left), hand.options()).unwrap();
        let reopened = again.open_keyspace("ks").unwrap();
        assert_eq!(reopened.options(), options);
        assert_eq!(
            again.get(&reopened, b"k").unwrap(),
            Some(vec![round as u8; 3])
        );
        drop((reopened, again));
        db.drop_keyspace("ks").unwrap();
    }
}
