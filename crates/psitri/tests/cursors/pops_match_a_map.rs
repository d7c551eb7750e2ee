//! Pops read ahead and are owed, so whatever else a transaction does must show in what they find, and they in whatever it reads: against a
//! `BTreeMap` that is popped the same way.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use crate::common::{Random, seed};
use psitri::{Database, KEY_BYTES_MAX, Keyspace, Options, WriteTxn, storage::sim::SimStorage};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Few enough that both ends meet now and then, with one that is a prefix of others, and the empty one.
fn some_key(random: &mut Random) -> Vec<u8> {
    let number = random.below(200) as u8;
    match random.below(8) {
        0 => Vec::new(),
        1 => vec![number, 0],
        2 => vec![number / 16],
        3 if number == 77 => vec![255; KEY_BYTES_MAX],
        _ => vec![number],
    }
}

fn some_value(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(50) {
        0 => 20_000,
        1 => 9_000,
        _ => random.below(40),
    };
    vec![random.next() as u8; bytes]
}

/// What a transaction reads, in every way.
fn look(txn: &WriteTxn, keyspace: &Keyspace, map: &Map, random: &mut Random) {
    let key = some_key(random);
    let found = txn.get(keyspace, &key).unwrap();
    assert_eq!(found, map.get(&key).map(Vec::as_slice));
    let (a, b) = (some_key(random), some_key(random));
    let (lo, hi) = (a.clone().min(b.clone()), a.max(b));
    let bounds = match random.below(4) {
        0 => (Bound::Unbounded, Bound::Unbounded),
        1 => (Bound::Included(&*lo), Bound::Unbounded),
        2 => (Bound::Unbounded, Bound::Excluded(&*hi)),
        _ => (Bound::Excluded(&*lo), Bound::Included(&*hi)),
    };
    let expected: Vec<_> = match lo == hi && bounds.0 == Bound::Excluded(&*lo) {
        true => Vec::new(),
        false => map.range::<[u8], _>(bounds).collect(),
    };
    let count = txn.count(keyspace, bounds).unwrap();
    assert_eq!(count, expected.len() as u64);
    let mut cursor = txn.cursor(keyspace).unwrap().with_range(bounds);
    let mut found = cursor.seek_last().unwrap();
    for (key, value) in expected.iter().rev() {
        assert!(found);
        assert_eq!(cursor.entry(), Some((&key[..], &value[..])));
        found = cursor.prev().unwrap();
    }
    assert!(!found);
    let mut cursor = txn.cursor(keyspace).unwrap();
    let at = cursor.seek(&key).unwrap().then(|| cursor.key().to_vec());
    assert_eq!(at.as_ref(), map.range(key.clone()..).next().map(|it| it.0));
    let at = (cursor.seek_back(&key).unwrap()).then(|| cursor.key().to_vec());
    let before = map.range(..=key.clone()).next_back();
    assert_eq!(at.as_ref(), before.map(|it| it.0));
    let prefix = &key[..key.len().min(1)];
    let mut cursor = txn.cursor(keyspace).unwrap().with_prefix(prefix);
    let first = map.keys().find(|key| key.starts_with(prefix));
    let at = (cursor.seek_first().unwrap()).then(|| cursor.key().to_vec());
    assert_eq!(at.as_ref(), first);
}

/// One step of a transaction and of the map.
fn step(txn: &mut WriteTxn, keyspace: &Keyspace, map: &mut Map, random: &mut Random) {
    match random.below(100) {
        0..8 => look(txn, keyspace, map, random),
        8..70 => {
            let first = random.percent(50);
            for _ in 0..random.below(12) {
                let (found, expected) = match first {
                    true => (txn.pop_first(keyspace).unwrap(), map.pop_first()),
                    false => (txn.pop_last(keyspace).unwrap(), map.pop_last()),
                };
                assert!(
                    found == expected,
                    "{:?} in place of {:?}",
                    found.map(|it| it.0),
                    expected.map(|it| it.0)
                );
            }
        }
        70..85 => {
            let (key, value) = (some_key(random), some_value(random));
            txn.upsert(keyspace, &key, &value).unwrap();
            map.insert(key, value);
        }
        85..90 => {
            let key = some_key(random);
            let found = txn.remove(keyspace, &key).unwrap();
            assert_eq!(found, map.remove(&key).is_some());
        }
        90..92 => {
            let (a, b) = (some_key(random), some_key(random));
            let (lo, hi) = (a.clone().min(b.clone()), a.max(b));
            txn.remove_range(keyspace, &lo, Some(&hi)).unwrap();
            map.retain(|key, _| *key < lo || *key >= hi);
        }
        92..93 => {
            let odd = |value: &[u8]| value.first().is_some_and(|byte| byte % 2 == 1);
            txn.retain(keyspace, .., |_, value| !odd(value)).unwrap();
            map.retain(|_, value| !odd(value));
        }
        93..97 => {
            let mut within = map.clone();
            let mut nested = txn.nested();
            for _ in 0..random.below(4) {
                step(&mut nested, keyspace, &mut within, random);
            }
            if random.percent(50) {
                nested.commit();
                *map = within;
            } else {
                nested.abort();
            }
        }
        97..98 => {
            let entries: Map = (0..random.below(30))
                .map(|_| (some_key(random), some_value(random)))
                .collect();
            let load = entries.iter().map(|(key, value)| (&key[..], &value[..]));
            txn.ingest(keyspace, load).unwrap();
            map.extend(entries);
        }
        _ => {
            // Many of the longer values outgrow the buffer.
            let is_long = random.percent(30);
            for _ in 0..random.below(120) {
                let value = match is_long {
                    true => vec![random.next() as u8; 4_000],
                    false => some_value(random),
                };
                let key = some_key(random);
                txn.upsert(keyspace, &key, &value).unwrap();
                map.insert(key, value);
            }
        }
    }
}

fn transaction(db: &Database, keyspace: &Keyspace, map: &mut Map, random: &mut Random) {
    let mut within = map.clone();
    let mut txn = match random.percent(20) {
        true => db.begin_direct(&[keyspace]).unwrap(),
        false => db.begin(&[keyspace]).unwrap(),
    };
    for _ in 0..random.below(30) {
        step(&mut txn, keyspace, &mut within, random);
    }
    if random.percent(20) {
        look(&txn, keyspace, &within, random);
    }
    if random.percent(80) {
        txn.commit().unwrap();
        *map = within;
    }
}

/// All that the others see.
fn assert_holds(db: &Database, keyspace: &Keyspace, map: &Map) {
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    for (key, value) in map {
        assert!(found);
        assert_eq!(cursor.entry(), Some((&key[..], &value[..])));
        found = cursor.next().unwrap();
    }
    assert!(!found);
    assert_eq!(snapshot.len(keyspace).unwrap(), map.len() as u64);
}

#[test]
fn whatever_happens_between_pops() {
    let mut random = Random::new(seed(20_261_124));
    for _ in 0..20 {
        let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
        let keyspace = db.create_keyspace("queue").unwrap();
        let mut map = Map::new();
        for _ in 0..60 {
            transaction(&db, &keyspace, &mut map, &mut random);
            if random.percent(20) {
                db.checkpoint().unwrap();
            }
            let mut batch = psitri::WriteBatch::new();
            for _ in 0..random.below(20) {
                let (key, value) = (some_key(&mut random), some_value(&mut random));
                batch.upsert(&keyspace, &key, &value);
                map.insert(key, value);
            }
            db.write(batch).unwrap();
        }
        assert_holds(&db, &keyspace, &map);
    }
}

/// What was popped is gone for those who read the log, too.
#[test]
fn pops_survive_a_kill() {
    let mut random = Random::new(seed(20_261_125));
    for round in 0..10 {
        let mut disk = SimStorage::new(round);
        let mut map = Map::new();
        for _ in 0..6 {
            let options = Options::new().buffer_bytes(256 << 10);
            let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
            let keyspace = db.keyspace("queue").unwrap();
            assert_holds(&db, &keyspace, &map);
            for _ in 0..random.below(10) {
                transaction(&db, &keyspace, &mut map, &mut random);
            }
            assert_holds(&db, &keyspace, &map);
            disk.crash_now();
            disk = disk.process_crash(random.next());
        }
    }
}

/// A transaction owes in one keyspace while another one makes it outgrow the buffer.
#[test]
fn others_spill_what_is_not_owed_by_them() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let queue = db.create_keyspace("queue").unwrap();
    let done = db.create_keyspace("done").unwrap();
    let mut map: Map = (0..=250u8).map(|key| (vec![key], vec![key; 9])).collect();
    let mut txn = db.begin(&[&queue]).unwrap();
    txn.ingest(&queue, map.iter()).unwrap();
    txn.commit().unwrap();
    for commits in [false, true] {
        let mut txn = db.begin(&[&queue, &done]).unwrap();
        let mut within = map.clone();
        for number in 0..100u8 {
            let popped = txn.pop_first(&queue).unwrap();
            assert_eq!(popped, within.pop_first());
            let popped = txn.pop_last(&queue).unwrap();
            assert_eq!(popped, within.pop_last());
            txn.upsert(&done, &[number], &[number; 4_000]).unwrap();
        }
        assert_eq!(txn.count(&queue, ..).unwrap(), 51);
        if commits {
            txn.commit().unwrap();
            map = within;
        }
        assert_holds(&db, &queue, &map);
    }
}

/// Also where all that the transaction did was merged already, and nothing is left to be undone one by one.
#[test]
fn a_transaction_that_is_undone_leaves_what_it_popped() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("queue").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for key in 0..100u8 {
        txn.upsert(&keyspace, &[key], b"waits").unwrap();
    }
    txn.commit().unwrap();
    // One of these puts is the one that outgrows the buffer.
    for puts in 20..60u8 {
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        for key in 0..3u8 {
            let popped = txn.pop_first(&keyspace).unwrap();
            assert_eq!(popped.map(|it| it.0), Some(vec![key]), "{puts} puts");
        }
        for key in 0..puts {
            txn.upsert(&keyspace, &[200, key], &[1; 4_000]).unwrap();
        }
        txn.abort();
    }
}

/// What was ingested before is in the log, and so is what is popped after it: such a commit takes no checkpoint.
#[test]
fn pops_after_a_load_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path().join("db")).unwrap();
    let (queue, other) = (db.keyspace("queue").unwrap(), db.keyspace("other").unwrap());
    let mut txn = db.begin(&[&queue]).unwrap();
    for number in 0..1000u64 {
        txn.upsert(&queue, &number.to_be_bytes(), b"v").unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().unwrap().checkpoints;
    for _ in 0..5 {
        let mut txn = db.begin(&[&queue, &other]).unwrap();
        txn.ingest(&other, [(b"k", b"v")]).unwrap();
        for _ in 0..100 {
            assert!(txn.pop_first(&queue).unwrap().is_some());
        }
        txn.commit().unwrap();
    }
    assert_eq!(db.stats().unwrap().checkpoints, before);
    assert_eq!(db.snapshot().len(&queue).unwrap(), 500);
}

/// Who found nothing is not shown again what is gone, and finds what comes, wherever it is put.
#[test]
fn a_queue_that_was_empty_gives_what_comes_later() {
    let db = Options::new().in_memory().unwrap();
    let queue = db.keyspace("queue").unwrap();
    let put = |key: u8| {
        let mut txn = db.begin(&[&queue]).unwrap();
        txn.upsert(&queue, &[key], b"").unwrap();
        txn.commit().unwrap();
    };
    let pop = |first: bool| {
        let mut txn = db.begin(&[&queue]).unwrap();
        let popped = match first {
            true => txn.pop_first(&queue).unwrap(),
            false => txn.pop_last(&queue).unwrap(),
        };
        txn.commit().unwrap();
        popped.map(|(key, _)| key[0])
    };
    let mut random = Random::new(seed(7));
    let mut waiting = std::collections::BTreeSet::new();
    for _ in 0..2_000 {
        for _ in 0..random.below(3) {
            let key = 100 + random.below(20) as u8;
            put(key);
            waiting.insert(key);
        }
        for _ in 0..random.below(4) {
            let first = random.below(2) == 0;
            let expected = match first {
                true => waiting.pop_first(),
                false => waiting.pop_last(),
            };
            assert_eq!(pop(first), expected);
        }
    }
}
