//! One test for each defect of TidesDB that must not be here, named after the defect.
use crate::common::SetAtEnd;
use crate::defects::{after_the_process, count, open, options, put, scattered};
use psitri::{Keyspace, storage::sim::SimStorage};
use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};

#[test]
fn full_scans_that_miss_keys_after_reopen() {
    let mut storage = SimStorage::new(1);
    const ROUNDS: u64 = 6;
    const EACH: u64 = 1500;
    for round in 0..ROUNDS {
        let db = open(&storage).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        for number in round * EACH..(round + 1) * EACH {
            put(
                &db,
                &keyspace,
                &scattered(number),
                &vec![1; (number % 400) as usize],
            );
        }
        let mut keys = 0;
        let check = |key: &[u8], value: &[u8]| {
            let key = u64::from_be_bytes(key.try_into().unwrap());
            let number = key.wrapping_mul(0xf1de_83e1_9937_733d);
            assert!(number < (round + 1) * EACH, "the inverse of `scattered`");
            assert_eq!(value.len() as u64, number % 400);
            keys += 1;
            ControlFlow::Continue(())
        };
        db.snapshot().for_each(&keyspace, .., check).unwrap();
        assert_eq!(keys, (round + 1) * EACH);
        // Every second time without a close.
        if round % 2 == 0 {
            storage.crash_now();
            storage = storage.process_crash(round);
        } else {
            db.close().unwrap();
        }
    }
    let db = open(&storage).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let mut cursor_keys = 0;
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(&keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found {
        cursor_keys += 1;
        found = cursor.next().unwrap();
    }
    assert_eq!(cursor_keys, ROUNDS * EACH);
}

#[test]
fn deleted_keys_coming_back_during_compaction() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let stop = AtomicBool::new(false);
    for number in 0..1000u64 {
        put(&db, &keyspace, &scattered(number), &[1; 100]);
    }
    db.checkpoint().unwrap();
    // Deleted in the buffer above a tree that has them, by keys and by a range.
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..1000u64 {
        let key = scattered(number);
        if key[0] < 0x80 {
            assert!(txn.remove(&keyspace, &key).unwrap());
        }
    }
    txn.remove_range(&keyspace, &[0x80], None).unwrap();
    txn.commit().unwrap();
    std::thread::scope(|scope| {
        let _end = SetAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = db.snapshot();
                for number in 0..1000u64 {
                    let found = snapshot.get(&keyspace, &scattered(number)).unwrap();
                    assert_eq!(found, None, "key {number} came back");
                }
                assert_eq!(snapshot.count(&keyspace, ..&b"\xff\xff~"[..]).unwrap(), 0);
            }
        });
        for round in 0..12u64 {
            for number in 0..300u64 {
                let key = [
                    &b"\xff\xff~"[..],
                    &(round * 1000 + number % 100).to_be_bytes(),
                ]
                .concat();
                put(&db, &keyspace, &key, &[2; 500]);
            }
            db.checkpoint().unwrap();
        }
    });
}

#[test]
fn prefix_lookups_with_false_misses() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for number in 0..3000u64 {
        // Keys that are prefixes of each other, of all lengths, also around 0xff.
        let mut key = format!("{:b}", number % 700).into_bytes();
        key.resize(key.len() + (number % 5) as usize, 0xff);
        if number % 3 == 0 {
            key.insert(0, 0xff);
        }
        keys.push(key);
    }
    keys.sort();
    keys.dedup();
    let (tree, buffer): (Vec<_>, Vec<_>) = keys.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for (_, key) in &tree {
        txn.upsert(&keyspace, key, b"tree").unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for (_, key) in &buffer {
        txn.upsert(&keyspace, key, b"buffer").unwrap();
    }
    txn.commit().unwrap();
    for merged in [false, true] {
        if merged {
            db.checkpoint().unwrap();
        }
        let snapshot = db.snapshot();
        for key in &keys {
            for len in 0..=key.len() {
                let prefix = &key[..len];
                let mut cursor = snapshot.cursor(&keyspace).unwrap().with_prefix(prefix);
                assert!(cursor.seek_first().unwrap(), "{prefix:?} misses {key:?}");
                assert!(cursor.key().starts_with(prefix));
                assert!(cursor.seek(key).unwrap() && cursor.key() == key.as_slice());
            }
            let expected = keys.iter().filter(|k| k.starts_with(key)).count();
            let mut found = 0;
            let cursor = snapshot.cursor(&keyspace).unwrap().with_prefix(key);
            let mut cursor = cursor;
            let mut more = cursor.seek_first().unwrap();
            while more {
                found += 1;
                more = cursor.next().unwrap();
            }
            assert_eq!(found, expected, "below {key:?}, merged {merged}");
        }
    }
}

#[test]
fn transaction_size_caps() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspaces: Vec<Keyspace> = (0..2)
        .map(|i| db.create_keyspace(&format!("k{i}")).unwrap())
        .collect();
    const KEYS: u64 = 60_000;
    // Thirty times what the buffer holds, in one transaction.
    let mut txn = db.begin(&[&keyspaces[0], &keyspaces[1]]).unwrap();
    for number in 0..KEYS {
        let keyspace = &keyspaces[number as usize % 2];
        txn.upsert(keyspace, &number.to_be_bytes(), &[9; 100])
            .unwrap();
    }
    assert_eq!(
        count(&db, &keyspaces[0]),
        0,
        "nobody sees it before the commit"
    );
    txn.commit().unwrap();
    let (_, db) = after_the_process(&storage, db);
    for i in 0..2 {
        let keyspace = db.open_keyspace(&format!("k{i}")).unwrap();
        assert_eq!(count(&db, &keyspace), KEYS / 2);
    }
    // And aborted: nothing of it stays.
    let keyspace = db.open_keyspace("k0").unwrap();
    let before = db.stats().unwrap().reachable_bytes;
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..KEYS / 6 {
        txn.upsert(&keyspace, &number.to_le_bytes(), &[8; 100])
            .unwrap();
    }
    txn.abort();
    assert_eq!(count(&db, &keyspace), KEYS / 2);
    assert_eq!(db.stats().unwrap().reachable_bytes, before);
    assert!(db.verify().unwrap().errors.is_empty());
}
