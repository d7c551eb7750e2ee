//! What readers see of entries that have expired: nothing, at once, and at one time each.

use std::time::{Duration, UNIX_EPOCH};

use psitri::{Expiry, ReadMode};

use super::{Hand, LAYERS, Layer, after, assert_sound, expiring, held, hundred, keys, put};

#[test]
fn an_entry_is_there_up_to_its_moment_and_not_at_it() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let moment = hand.now() + Duration::from_millis(10);
    put(&db, &ks, b"a", b"1", after(10));
    put(&db, &ks, b"b", b"2", Expiry::At(moment));
    put(&db, &ks, b"c", b"3", Expiry::Never);
    put(&db, &ks, b"d", b"4", Expiry::At(UNIX_EPOCH));
    assert_eq!(
        db.snapshot().expiry(&ks, b"a").unwrap(),
        Some(Expiry::At(moment))
    );
    hand.pass(9);
    assert_eq!(keys(&db, &ks), [b"a", b"b", b"c"]);
    assert_eq!(db.get(&ks, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    hand.pass(1);
    assert_eq!(keys(&db, &ks), [b"c"]);
    assert_eq!(db.get(&ks, b"a").unwrap(), None);
    assert_eq!(db.snapshot().expiry(&ks, b"a").unwrap(), None);
    assert_eq!(
        db.snapshot().expiry(&ks, b"c").unwrap(),
        Some(Expiry::Never)
    );
}

#[test]
fn every_kind_of_read_passes_by_what_has_expired() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        hand.pass(50);
        let snapshot = db.snapshot();
        let even: Vec<u8> = (0..100).filter(|n| n % 2 == 0).collect();

        let mut cursor = snapshot.cursor(&ks).unwrap();
        let mut forward = Vec::new();
        let mut found = cursor.seek_first().unwrap();
        while found {
            forward.push(cursor.key()[0]);
            assert_eq!(cursor.value(), [cursor.key()[0]; 20]);
            assert_eq!(cursor.expiry(), Some(Expiry::Never));
            found = cursor.next().unwrap();
        }
        assert_eq!(forward, even, "{layer:?}");
        let mut backward = Vec::new();
        let mut found = cursor.seek_last().unwrap();
        while found {
            backward.push(cursor.key()[0]);
            found = cursor.prev().unwrap();
        }
        backward.reverse();
        assert_eq!(backward, even, "{layer:?}");
        assert!(cursor.seek(&[31]).unwrap());
        assert_eq!(cursor.key(), [32], "{layer:?}");
        assert!(cursor.prev().unwrap());
        assert_eq!(cursor.key(), [30], "{layer:?}");
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.key(), [32], "{layer:?}");
        assert!(cursor.seek_back(&[31]).unwrap());
        assert_eq!(cursor.key(), [30], "{layer:?}");
        assert!(!cursor.seek(&[99]).unwrap(), "{layer:?}");

        assert_eq!(
            keys(&db, &ks).concat(),
            even,
            "{layer:?}: for_each, which reads leaves whole"
        );
        let (two, three) = ([2], [3]);
        let many = snapshot.get_many(&ks, &[&two, &three]).unwrap();
        assert_eq!(many, [Some(&[2; 20][..]), None], "{layer:?}");
        assert_eq!(snapshot.count(&ks, ..).unwrap(), 50, "{layer:?}");
        let (lo, hi) = ([11], [21]);
        assert_eq!(snapshot.count(&ks, &lo[..]..&hi[..]).unwrap(), 5);
        assert_eq!(snapshot.count(&ks, &lo[..]..=&lo[..]).unwrap(), 0);
        assert_eq!(snapshot.rank(&ks, &[31]).unwrap(), 16, "{layer:?}");
        assert_eq!(snapshot.nth(&ks, 16).unwrap(), Some(vec![32]), "{layer:?}");
        assert_eq!(snapshot.nth(&ks, 50).unwrap(), None, "{layer:?}");

        let txn = db.begin(&[&ks]).unwrap();
        assert_eq!(txn.get(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.get(&ks, &[4]).unwrap(), Some(&[4; 20][..]));
        assert_eq!(txn.expiry(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.count(&ks, ..).unwrap(), 50, "{layer:?}");
    }
}

#[test]
fn readers_go_by_the_time_of_their_first_look() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        let (early, late) = (db.snapshot(), db.snapshot());
        assert!(early.get(&ks, &[1]).unwrap().is_some());
        let mut txn = db.begin(&[&ks]).unwrap();
        assert!(txn.get(&ks, &[1]).unwrap().is_some());
        hand.pass(50);
        assert_eq!(early.count(&ks, ..).unwrap(), 100, "{layer:?}");
        assert_eq!(early.get(&ks, &[3]).unwrap(), Some(&[3; 20][..]));
        assert_eq!(late.count(&ks, ..).unwrap(), 50, "{layer:?}");
        assert_eq!(db.get(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.count(&ks, ..).unwrap(), 100, "{layer:?}");
        // The time of the transaction counts for what it writes, too.
        txn.upsert_expiring(&ks, b"mine", b"-", after(20)).unwrap();
        assert!(txn.get(&ks, b"mine").unwrap().is_some());
        txn.commit().unwrap();
        assert_eq!(db.get(&ks, b"mine").unwrap(), None, "it ended 30 ms ago");
        // What merges drop stays for those who have seen it.
        put(&db, &ks, &[0], b"-", Expiry::Never);
        db.drop_expired(&ks).unwrap();
        assert_eq!(held(&db, &ks).0, 50, "{layer:?}");
        assert_eq!(early.count(&ks, ..).unwrap(), 100, "{layer:?}");
        assert_eq!(early.get(&ks, &[99]).unwrap(), Some(&[99; 20][..]));
        assert_eq!(late.count(&ks, ..).unwrap(), 50, "{layer:?}");
        assert_sound(&db);
    }
}

#[test]
fn read_modes_and_range_deletes_know_of_expiry() {
    let hand = Hand::new();
    let (db, ks) = hundred(&hand, Layer::Tree);
    let count = |mode| db.snapshot_with(mode).count(&ks, ..).unwrap();
    assert_eq!(count(ReadMode::Trie), 100);
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.remove_range(&ks, &[0], Some(&[10])).unwrap();
    txn.upsert_expiring(&ks, &[5], b"again", after(100))
        .unwrap();
    txn.upsert_expiring(&ks, &[6], b"again", after(20)).unwrap();
    txn.commit().unwrap();
    assert_eq!(count(ReadMode::Latest), 92);
    hand.pass(50);
    assert_eq!((count(ReadMode::Latest), count(ReadMode::Trie)), (46, 50));
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(&ks).unwrap();
    assert!(cursor.seek_first().unwrap());
    assert_eq!(cursor.key(), [5]);
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.key(), [10]);
    assert!(cursor.prev().unwrap());
    assert_eq!(cursor.value(), b"again");
    db.checkpoint().unwrap();
    assert_eq!((count(ReadMode::Latest), count(ReadMode::Trie)), (46, 46));
    assert_sound(&db);
}

#[test]
fn several_threads_of_one_snapshot_see_one_time() {
    let hand = Hand::new();
    let (db, ks) = hundred(&hand, Layer::Both);
    for _ in 0..20 {
        let snapshot = db.snapshot();
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| snapshot.count(&ks, ..).unwrap()))
                .collect();
            hand.pass(5);
            readers.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 50);
}
