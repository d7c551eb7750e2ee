//! What writers see and store: defaults of keyspaces, optimistic transactions, spills.

use std::{ops::ControlFlow, time::Duration};

use psitri::{Error, Expiry, Isolation, KeyspaceOptions, WriteBatch};

use super::{Hand, LAYERS, after, assert_sound, expiring, held, hundred, keys, put};

#[test]
fn every_kind_of_write_takes_what_has_expired_for_absent() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        hand.pass(50);
        let mut txn = db.begin(&[&ks]).unwrap();
        assert!(!txn.remove(&ks, &[1]).unwrap(), "{layer:?}");
        assert!(matches!(
            txn.update(&ks, &[1], b"new"),
            Err(Error::KeyAbsent)
        ));
        txn.insert(&ks, &[1], b"new").unwrap();
        assert_eq!(txn.get(&ks, &[1]).unwrap(), Some(&b"new"[..]));
        assert!(
            !txn.compare_and_swap(&ks, &[3], Some(&[3; 20]), None)
                .unwrap()
        );
        assert!(txn.compare_and_swap(&ks, &[3], None, Some(b"x")).unwrap());
        assert!(txn.remove(&ks, &[3]).unwrap());
        let first = txn.pop_first(&ks).unwrap().unwrap();
        assert_eq!(first, (vec![0], vec![0; 20]), "{layer:?}");
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [1]);
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [2]);
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [4]);
        assert_eq!(txn.pop_last(&ks).unwrap().unwrap().0, [98], "{layer:?}");
        let (lo, hi) = ([10], [20]);
        let extracted = txn.extract(&ks, &lo[..]..&hi[..], |_, _| true).unwrap();
        assert_eq!(extracted.len(), 5, "{layer:?}");
        assert_eq!(txn.retain(&ks, .., |key, _| key[0] < 30).unwrap(), 34);
        txn.commit().unwrap();
        assert_eq!(
            keys(&db, &ks).concat(),
            [6, 8, 20, 22, 24, 26, 28],
            "{layer:?}"
        );
    }
}

#[test]
fn a_keyspace_has_a_default_and_writes_without_a_moment_take_it() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let hour = Duration::from_secs(3600);
    let ks = db
        .create_keyspace_with("ks", KeyspaceOptions::new().expire_after(hour))
        .unwrap();
    assert_eq!(ks.options().expires_after(), Some(hour));
    let moment = Some(Expiry::At(hand.now() + hour));
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"upsert", b"-").unwrap();
    txn.insert(&ks, b"insert", b"-").unwrap();
    txn.upsert(&ks, b"update", b"-").unwrap();
    txn.update(&ks, b"update", b"=").unwrap();
    txn.compare_and_swap(&ks, b"swap", None, Some(b"-"))
        .unwrap();
    txn.upsert_expiring(&ks, b"never", b"-", Expiry::Never)
        .unwrap();
    txn.upsert_expiring(&ks, b"sooner", b"-", after(1000))
        .unwrap();
    txn.nested().upsert(&ks, b"undone", b"-").unwrap();
    txn.commit().unwrap();
    let mut batch = WriteBatch::new();
    batch.upsert(&ks, b"batch", b"-");
    batch.upsert_expiring(&ks, b"batch sooner", b"-", after(1000));
    batch.upsert_expiring(&ks, b"batch never", b"-", Expiry::Never);
    db.write(batch).unwrap();
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    txn.upsert(&ks, b"optimistic", b"-").unwrap();
    txn.upsert_expiring(&ks, b"optimistic never", b"-", Expiry::Never)
        .unwrap();
    txn.commit().unwrap();
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.upsert(&ks, b"direct", b"-").unwrap();
    txn.ingest(&ks, [(b"ingest", b"-")]).unwrap();
    txn.ingest_expiring(&ks, [(b"ingest sooner", b"-", after(1000))])
        .unwrap();
    let mut inner = txn.nested();
    inner.ingest(&ks, [(b"nested ingest", b"-")]).unwrap();
    inner
        .ingest_expiring(&ks, [(b"nested ingest never", b"-", Expiry::Never)])
        .unwrap();
    inner.commit();
    txn.commit().unwrap();

    let snapshot = db.snapshot();
    for (key, count) in [("sooner", 3), ("never", 4)] {
        let wanted = match key {
            "never" => Some(Expiry::Never),
            _ => Some(Expiry::At(hand.now() + Duration::from_secs(1))),
        };
        let all = keys(&db, &ks);
        let of = all.iter().filter(|k| k.ends_with(key.as_bytes()));
        assert_eq!(of.clone().count(), count, "{key}");
        for key in of {
            assert_eq!(snapshot.expiry(&ks, key).unwrap(), wanted, "{key:?}");
        }
    }
    for key in [
        "upsert",
        "insert",
        "update",
        "swap",
        "batch",
        "optimistic",
        "direct",
        "ingest",
        "nested ingest",
    ] {
        let found = snapshot.expiry(&ks, key.as_bytes()).unwrap();
        assert_eq!(found, moment, "{key}");
    }
    hand.pass(3_600_000);
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4);
    // Another write starts the time anew.
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"never", b"no more").unwrap();
    txn.commit().unwrap();
    hand.pass(3_600_000);
    assert_eq!(db.get(&ks, b"never").unwrap(), None);
}

#[test]
fn keyspaces_without_expiry_say_what_to_do() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    assert!(!plain.options().do_entries_expire());
    let refused = |result: Result<(), Error>| {
        let error = result.expect_err("entries do not expire here");
        assert!(matches!(error, Error::NoExpiry { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("KeyspaceOptions::entries_expire")
        );
    };
    let mut txn = db.begin(&[&plain]).unwrap();
    refused(txn.upsert_expiring(&plain, b"k", b"v", Expiry::Never));
    refused(
        txn.ingest_expiring(&plain, [(b"k", b"v", Expiry::Never)])
            .map(drop),
    );
    txn.upsert(&plain, b"k", b"v").unwrap();
    assert_eq!(txn.expiry(&plain, b"k").unwrap(), Some(Expiry::Never));
    txn.commit().unwrap();
    assert_eq!(
        db.snapshot().expiry(&plain, b"k").unwrap(),
        Some(Expiry::Never)
    );
    let mut batch = WriteBatch::new();
    batch.upsert_expiring(&plain, b"k", b"w", Expiry::Never);
    refused(db.write(batch));
    let mut txn = db.begin_optimistic(Isolation::Snapshot);
    refused(txn.upsert_expiring(&plain, b"k", b"w", Expiry::Never));
    assert_eq!(db.get(&plain, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.drop_expired(&plain).unwrap();
    assert_eq!(db.snapshot().count(&plain, ..).unwrap(), 1);
    for options in [
        KeyspaceOptions::new(),
        KeyspaceOptions::new().entries_expire(),
    ] {
        let gone = db.create_keyspace_with("gone", options).unwrap();
        db.drop_keyspace("gone").unwrap();
        let dropped = db.drop_expired(&gone);
        assert!(
            matches!(dropped, Err(Error::KeyspaceGone { .. })),
            "{dropped:?}"
        );
    }
    let elsewhere = psitri::Options::new().in_memory().unwrap();
    let dropped = elsewhere.drop_expired(&plain);
    assert!(
        matches!(dropped, Err(Error::ForeignKeyspace)),
        "{dropped:?}"
    );

    let too_long = Duration::from_millis((1 << 62) + 1);
    for after in [Duration::ZERO, too_long, Duration::MAX] {
        let options = KeyspaceOptions::new().expire_after(after);
        let made = db.create_keyspace_with("never made", options);
        assert!(matches!(made, Err(Error::BadOption { .. })), "{after:?}");
    }
    assert_eq!(db.keyspaces(), ["plain"]);
    let longest = KeyspaceOptions::new().expire_after(Duration::from_millis(1 << 62));
    let aeons = db.create_keyspace_with("aeons", longest).unwrap();
    let mut txn = db.begin(&[&aeons]).unwrap();
    txn.upsert(&aeons, b"k", b"v").unwrap();
    txn.commit().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    for far in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let error = txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(far));
        assert!(matches!(error, Err(Error::ExpiryTooFar)), "{far:?}");
    }
    assert_eq!(txn.get(&ks, b"k").unwrap(), None);
}

#[test]
fn pops_pass_what_has_expired_and_find_it_again_if_the_clock_is_set_back() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for n in 0..10u8 {
        let expiry = if n < 5 { after(50) } else { Expiry::Never };
        put(&db, &ks, &[n], &[n], expiry);
    }
    hand.pass(50);
    let pop = || {
        let mut txn = db.begin(&[&ks]).unwrap();
        let popped = txn.pop_first(&ks).unwrap().map(|(key, _)| key[0]);
        txn.commit().unwrap();
        popped
    };
    assert_eq!((pop(), pop()), (Some(5), Some(6)));
    hand.set_back(50);
    assert_eq!((pop(), pop()), (Some(0), Some(1)));
    hand.pass(50);
    assert_eq!(
        (pop(), pop(), pop(), pop()),
        (Some(7), Some(8), Some(9), None)
    );
}

#[test]
fn optimistic_transactions_read_expired_entries_as_absent() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    put(&db, &ks, b"a", b"1", after(50));
    put(&db, &ks, b"b", b"2", Expiry::Never);
    hand.pass(50);
    // Two that see it absent and take its place: one of them wins.
    let mut one = db.begin_optimistic(Isolation::Serializable);
    let mut two = db.begin_optimistic(Isolation::Serializable);
    for txn in [&mut one, &mut two] {
        assert_eq!(txn.get(&ks, b"a").unwrap(), None);
        assert!(!txn.remove(&ks, b"a").unwrap());
        let mut seen = 0;
        txn.for_each(&ks, .., |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, 1);
        txn.upsert_expiring(&ks, b"a", b"taken", after(50)).unwrap();
        assert_eq!(txn.get(&ks, b"a").unwrap(), Some(&b"taken"[..]));
    }
    one.commit().unwrap();
    assert!(matches!(two.commit(), Err(Error::Conflict { .. })));
    assert_eq!(db.get(&ks, b"a").unwrap().as_deref(), Some(&b"taken"[..]));

    // What expires while a transaction runs is no change by somebody else.
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    assert_eq!(txn.get(&ks, b"a").unwrap(), Some(&b"taken"[..]));
    put(&db, &ks, b"c", b"3", Expiry::Never);
    hand.pass(50);
    txn.upsert(&ks, b"b", b"4").unwrap();
    txn.commit().unwrap();
    assert_eq!(keys(&db, &ks), [b"b", b"c"]);

    // A longer life is a change, though the value stays.
    put(&db, &ks, b"d", b"5", after(50));
    let mut txn = db.begin_optimistic(Isolation::Snapshot);
    assert!(txn.get(&ks, b"d").unwrap().is_some());
    put(&db, &ks, b"d", b"5", after(500));
    txn.upsert_expiring(&ks, b"d", b"5", after(60)).unwrap();
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));

    // Own writes that are expired when they are written.
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    txn.upsert_expiring(&ks, b"d", b"6", after(0)).unwrap();
    assert_eq!(txn.get(&ks, b"d").unwrap(), None);
    txn.commit().unwrap();
    assert_eq!(db.get(&ks, b"d").unwrap(), None);
}

#[test]
fn spills_and_direct_transactions_keep_moments() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let options = || hand.options().buffer_bytes(256 << 10);
    let db = options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for direct in [false, true] {
        let mut txn = if direct {
            db.begin_direct(&[&ks]).unwrap()
        } else {
            db.begin(&[&ks]).unwrap()
        };
        // Several times the buffer.
        for n in 0..10_000u32 {
            let expiry = if n % 2 == 1 { after(50) } else { Expiry::Never };
            txn.upsert_expiring(&ks, &n.to_be_bytes(), &[direct as u8; 100], expiry)
                .unwrap();
        }
        assert_eq!(txn.count(&ks, ..).unwrap(), 10_000);
        hand.pass(50);
        assert_eq!(
            txn.count(&ks, ..).unwrap(),
            10_000,
            "one time for all its life"
        );
        txn.commit().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 5000);
        let value = db.get(&ks, &4u32.to_be_bytes()).unwrap();
        assert_eq!(value, Some(vec![direct as u8; 100]));
        assert_sound(&db);
    }
    db.close().unwrap();
    let db = options().open(dir.path().join("db")).unwrap();
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 5000);
}

/// A transaction that spills merges what is committed, and reads that from then on: entries that expired while it ran must still be there.
#[test]
fn a_transaction_that_spills_keeps_its_time() {
    for ingests in [false, true] {
        let hand = Hand::new();
        let options = hand.options().buffer_bytes(256 << 10);
        let db = options.in_memory().unwrap();
        let ks = db.create_keyspace_with("ks", expiring()).unwrap();
        for n in 0..100u8 {
            let expiry = if n % 2 == 1 { after(50) } else { Expiry::Never };
            put(&db, &ks, &[n], &[n; 20], expiry);
        }
        db.checkpoint().unwrap();
        // The leaf is taken apart by the next merge.
        put(&db, &ks, &[0], b"shorter", Expiry::Never);
        let mut txn = db.begin(&[&ks]).unwrap();
        assert_eq!(txn.count(&ks, ..).unwrap(), 100);
        hand.pass(50);
        let more = (0..2000u32).map(|n| (n.to_be_bytes(), [7; 100]));
        if ingests {
            txn.ingest(&ks, more).unwrap();
        } else {
            for (key, value) in more {
                txn.upsert(&ks, &key, &value).unwrap();
            }
        }
        assert_eq!(txn.count(&ks, ..).unwrap(), 2100, "ingests: {ingests}");
        txn.commit().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2050);
        db.drop_expired(&ks).unwrap();
        assert_eq!(held(&db, &ks), (2050, 0));
        assert_sound(&db);
    }
}
