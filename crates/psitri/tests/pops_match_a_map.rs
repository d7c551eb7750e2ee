//! Pops read ahead, so whatever else a transaction does must show in what they find: against a `BTreeMap` that is popped the same way.

mod common;

use std::collections::BTreeMap;

use common::{Random, seed};
use psitri::{Database, Keyspace, Options, WriteTxn};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Few enough that both ends meet now and then, with one that is a prefix of others, and the empty one.
fn some_key(random: &mut Random) -> Vec<u8> {
    let number = random.below(200) as u8;
    match random.below(8) {
        0 => Vec::new(),
        1 => vec![number, 0],
        2 => vec![number / 16],
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

/// One step of a transaction and of the map.
fn step(txn: &mut WriteTxn, keyspace: &Keyspace, map: &mut Map, random: &mut Random) {
    match random.below(100) {
        0..70 => {
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
    if random.percent(80) {
        txn.commit().unwrap();
        *map = within;
    }
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
        let snapshot = db.snapshot();
        assert_eq!(snapshot.count(&keyspace, ..).unwrap(), map.len() as u64);
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
