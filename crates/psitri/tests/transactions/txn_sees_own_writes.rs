//! Story: inside of a transaction everything reads through its own writes: look-ups, counts and cursors in both directions,
//! over what is merged and what is still in the buffer, with ranges deleted above and written again. A cursor of the
//! transaction cannot outlive the next write; a snapshot taken beside it sees nothing of it.

use psitri::{Database, Keyspace, Options, WriteTxn, storage::sim::SimStorage};
use std::{collections::BTreeMap, sync::Arc};

fn scan(txn: &WriteTxn, keyspace: &Keyspace, backward: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = txn.cursor(keyspace).unwrap();
    let mut entries = Vec::new();
    let mut found = if backward {
        cursor.seek_last()
    } else {
        cursor.seek_first()
    }
    .unwrap();
    while found {
        entries.push((cursor.key().to_vec(), cursor.value().to_vec()));
        found = if backward {
            cursor.prev()
        } else {
            cursor.next()
        }
        .unwrap();
    }
    if backward {
        entries.reverse();
    }
    entries
}

fn check(txn: &WriteTxn, keyspace: &Keyspace, expected: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let expected: Vec<_> = expected.clone().into_iter().collect();
    assert_eq!(scan(txn, keyspace, false), expected);
    assert_eq!(scan(txn, keyspace, true), expected);
    assert_eq!(txn.count(keyspace, ..).unwrap(), expected.len() as u64);
    for (key, value) in &expected {
        assert_eq!(txn.get(keyspace, key).unwrap(), Some(&value[..]));
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Keys in the tree, in the buffer, and in both.
fn layered() -> (Database, Keyspace, BTreeMap<Vec<u8>, Vec<u8>>) {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut expected = BTreeMap::new();
    for (step, value) in [(2, "tree"), (3, "buffer")] {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in (0..900).step_by(step) {
            txn.upsert(&keyspace, &key(number), value.as_bytes())
                .unwrap();
            expected.insert(key(number), value.as_bytes().to_vec());
        }
        txn.commit().unwrap();
        if step == 2 {
            db.checkpoint().unwrap();
        }
    }
    (db, keyspace, expected)
}

#[test]
fn puts_removals_and_ranges_show_at_once() {
    for direct in [false, true] {
        let (db, keyspace, mut expected) = layered();
        let before = db.snapshot();
        let committed = expected.len() as u64;
        let mut txn = match direct {
            false => db.begin(&[&keyspace]).unwrap(),
            true => db.begin_direct(&[&keyspace]).unwrap(),
        };
        check(&txn, &keyspace, &expected);
        for number in (0..900).step_by(5) {
            txn.upsert(&keyspace, &key(number), b"own").unwrap();
            expected.insert(key(number), b"own".to_vec());
        }
        check(&txn, &keyspace, &expected);
        for number in (0..900).step_by(7) {
            let there = txn.remove(&keyspace, &key(number)).unwrap();
            assert_eq!(there, expected.remove(&key(number)).is_some());
        }
        check(&txn, &keyspace, &expected);
        txn.remove_range(&keyspace, &key(100), Some(&key(300)))
            .unwrap();
        expected.retain(|k, _| *k < key(100) || *k >= key(300));
        check(&txn, &keyspace, &expected);
        txn.insert(&keyspace, &key(200), b"later").unwrap();
        expected.insert(key(200), b"later".to_vec());
        check(&txn, &keyspace, &expected);
        // Nested: an overlapping range and a put into it, undone.
        let mut nested = txn.nested();
        nested.remove_range(&keyspace, &key(150), None).unwrap();
        nested.upsert(&keyspace, &key(500), b"nested").unwrap();
        assert_eq!(nested.get(&keyspace, &key(200)).unwrap(), None);
        assert_eq!(
            nested.get(&keyspace, &key(500)).unwrap(),
            Some(&b"nested"[..])
        );
        nested.abort();
        check(&txn, &keyspace, &expected);
        assert_eq!(
            db.snapshot().count(&keyspace, ..).unwrap(),
            committed,
            "seen before the commit"
        );
        txn.commit().unwrap();
        check(&db.begin(&[&keyspace]).unwrap(), &keyspace, &expected);
        assert_eq!(before.count(&keyspace, ..).unwrap(), committed);
    }
}

/// Before it deletes a range of many keys, the transaction has written a few of them, or more than there are: both are looked for in ways of their own.
#[test]
fn a_range_takes_what_the_transaction_wrote_there_before() {
    for (direct, own_writes) in [(false, 3), (false, 1500), (true, 3), (true, 1500)] {
        let (db, keyspace, mut expected) = layered();
        let mut txn = match direct {
            false => db.begin(&[&keyspace]).unwrap(),
            true => db.begin_direct(&[&keyspace]).unwrap(),
        };
        let own = |n: u32| key(n % 1000);
        for n in 400..400 + own_writes {
            txn.upsert(&keyspace, &own(n), b"own").unwrap();
            expected.insert(own(n), b"own".to_vec());
        }
        txn.remove(&keyspace, &key(400)).unwrap();
        expected.remove(&key(400));
        let mut nested = txn.nested();
        nested.upsert(&keyspace, &key(401), b"nested").unwrap();
        nested.upsert(&keyspace, &key(403), b"nested").unwrap();
        nested.remove_range(&keyspace, &key(402), None).unwrap();
        let mut left = expected.clone();
        left.retain(|k, _| *k < key(402));
        left.insert(key(401), b"nested".to_vec());
        check(&nested, &keyspace, &left);
        nested.abort();
        check(&txn, &keyspace, &expected);
        txn.remove_range(&keyspace, &key(1), Some(&key(402)))
            .unwrap();
        expected.retain(|k, _| *k < key(1) || *k >= key(402));
        txn.upsert(&keyspace, &key(401), b"later").unwrap();
        expected.insert(key(401), b"later".to_vec());
        check(&txn, &keyspace, &expected);
        txn.commit().unwrap();
        check(&db.begin(&[&keyspace]).unwrap(), &keyspace, &expected);
        db.checkpoint().unwrap();
        check(&db.begin(&[&keyspace]).unwrap(), &keyspace, &expected);
    }
}

#[test]
fn what_was_aborted_is_not_there_for_the_next_transaction() {
    let (db, keyspace, expected) = layered();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.remove_range(&keyspace, b"", None).unwrap();
    for number in 0..2000 {
        txn.upsert(&keyspace, &key(number), b"aborted").unwrap();
    }
    drop(txn);
    let txn = db.begin(&[&keyspace]).unwrap();
    check(&txn, &keyspace, &expected);
    drop(txn);
    db.checkpoint().unwrap();
    check(&db.begin(&[&keyspace]).unwrap(), &keyspace, &expected);
}

/// A keyspace that is only read shows what was committed when the transaction began.
#[test]
fn other_keyspaces_are_read_as_of_the_begin() {
    let (db, keyspace, expected) = layered();
    let other = db.create_keyspace("other").unwrap();
    let txn = db.begin(&[&other]).unwrap();
    let mut beside = db.begin(&[&keyspace]).unwrap();
    beside.remove_range(&keyspace, b"", None).unwrap();
    beside.commit().unwrap();
    check(&txn, &keyspace, &expected);
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 0);
}

/// What a transaction found in a keyspace that it does not write to stays as it was found, however often others overwrite it meanwhile.
#[test]
fn what_was_found_in_other_keyspaces_stays() {
    let db = Options::new().in_memory().unwrap();
    let [own, other] = ["own", "other"].map(|name| db.create_keyspace(name).unwrap());
    let key = |number: u64| number.to_be_bytes();
    let overwrite = |round: u64| {
        for first in (0..100).step_by(10) {
            let mut txn = db.begin(&[&other]).unwrap();
            for number in first..first + 10 {
                let value = (1000 * round + number).to_le_bytes();
                txn.upsert(&other, &key(number), &value).unwrap();
            }
            let mut nested = txn.nested();
            nested.upsert(&other, &key(first), b"aborted.").unwrap();
            nested.remove(&other, &key(first + 1)).unwrap();
            nested.abort();
            txn.commit().unwrap();
        }
    };
    let value = |number: u64| (1000 * 9 + number).to_le_bytes();
    (0..10).for_each(overwrite);
    let txn = db.begin(&[&own]).unwrap();
    let found: Vec<_> = (0..50)
        .map(|number| txn.get(&other, &key(number)).unwrap().unwrap())
        .collect();
    let mut cursor = txn.cursor(&other).unwrap();
    assert!(cursor.seek(&key(50)).unwrap());
    for round in 10..40 {
        overwrite(round);
    }
    for (number, found) in found.iter().enumerate() {
        assert_eq!(found, &value(number as u64));
    }
    for number in 50..100 {
        assert_eq!(cursor.key(), key(number));
        assert_eq!(cursor.value(), value(number));
        cursor.next().unwrap();
    }
    for number in 0..100 {
        let found = txn.get(&other, &key(number)).unwrap();
        assert_eq!(found, Some(&value(number)[..]));
    }
}

/// Nested changes are in the log; more operations than 16 bits count are, too.
#[test]
fn nested_commits_and_many_operations_survive_the_process() {
    let disk = psitri::storage::sim::SimStorage::new(1);
    let options = || Options::new().idle_flush(std::time::Duration::from_secs(3600));
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..70_000u32 {
        txn.upsert(&keyspace, &number.to_be_bytes(), b"").unwrap();
    }
    txn.commit().unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.remove_range(
        &keyspace,
        &100u32.to_be_bytes(),
        Some(&200u32.to_be_bytes()),
    )
    .unwrap();
    let mut outer = txn.nested();
    outer
        .upsert(&keyspace, &150u32.to_be_bytes(), b"outer")
        .unwrap();
    let mut inner = outer.nested();
    inner
        .upsert(&keyspace, &151u32.to_be_bytes(), b"inner")
        .unwrap();
    inner
        .upsert(&keyspace, &150u32.to_be_bytes(), b"inner")
        .unwrap();
    inner.commit();
    outer.commit();
    let mut undone = txn.nested();
    undone
        .upsert(&keyspace, &152u32.to_be_bytes(), b"undone")
        .unwrap();
    undone.remove(&keyspace, &151u32.to_be_bytes()).unwrap();
    undone.abort();
    txn.commit().unwrap();
    let db = Database::open_on(Arc::new(disk.process_crash(2)), options()).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), 70_000 - 100 + 2);
    for number in [150u32, 151] {
        assert_eq!(
            snapshot.get(&keyspace, &number.to_be_bytes()).unwrap(),
            Some(&b"inner"[..])
        );
    }
    assert_eq!(
        snapshot.get(&keyspace, &152u32.to_be_bytes()).unwrap(),
        None
    );
}

/// The first transaction after an opening overwrites what the log put back, in memory that is there already.
#[test]
fn a_nested_level_is_undone_after_an_opening() {
    let options = Options::new();
    for replayed in 1..4u8 {
        let storage = SimStorage::new(1);
        let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
        let ks = db.keyspace("ks").unwrap();
        for version in 0..replayed {
            let mut txn = db.begin(&[&ks]).unwrap();
            txn.upsert(&ks, b"k", &[version; 8]).unwrap();
            txn.commit().unwrap();
        }
        storage.crash_now();
        drop((ks, db));
        let storage = storage.process_crash(u64::from(replayed));
        let db = Database::open_on(Arc::new(storage), options.clone()).unwrap();
        let ks = db.open_keyspace("ks").unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"k", b"outer...").unwrap();
        for level in [1, 2] {
            let mut nested = txn.nested();
            nested.upsert(&ks, b"k", b"nested..").unwrap();
            if level == 2 {
                let mut inner = nested.nested();
                inner.remove(&ks, b"k").unwrap();
                inner.abort();
                assert_eq!(nested.get(&ks, b"k").unwrap(), Some(&b"nested.."[..]));
            }
            nested.abort();
            assert_eq!(txn.get(&ks, b"k").unwrap(), Some(&b"outer..."[..]));
        }
        txn.commit().unwrap();
        assert_eq!(db.get(&ks, b"k").unwrap().unwrap(), b"outer...");
    }
}

/// A transaction may be shared by threads that only read it. New keys come into their order when the first of them asks for it.
#[test]
fn threads_that_share_a_transaction_see_its_writes_in_order() {
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut expected = BTreeMap::new();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for round in 0..300u64 {
        for number in 0..1 + round % 7 {
            let key = (1000 * round + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (key, value) = (key.to_be_bytes(), round.to_be_bytes());
            txn.upsert(&keyspace, &key, &value).unwrap();
            expected.insert(key.to_vec(), value.to_vec());
        }
        let txn = &txn;
        let (keyspace, expected) = (&keyspace, &expected);
        let start = &std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    start.wait();
                    check(txn, keyspace, expected);
                });
            }
        });
    }
    // Keys of a transaction that is given up may wait beyond its end.
    drop(txn);
    assert_eq!(db.snapshot().len(&keyspace).unwrap(), 0);
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"first", b"1").unwrap();
    txn.upsert(&keyspace, b"last", b"2").unwrap();
    txn.commit().unwrap();
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(&keyspace).unwrap();
    assert!(cursor.seek_first().unwrap());
    assert_eq!(cursor.entry(), Some((&b"first"[..], &b"1"[..])));
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.entry(), Some((&b"last"[..], &b"2"[..])));
    assert!(!cursor.next().unwrap());
}
