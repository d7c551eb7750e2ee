//! Searches that come in order look first where the one before ended: they find what a map has, at the edges of leaves too, after steps, in both directions.
use std::{collections::BTreeMap, ops::Bound};

use psitri::{Cursor, Database, Keyspace, Options};

use crate::common::Random;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Numbers with gaps between them, in ways that leaves store differently.
fn keys(count: u64) -> [Vec<Vec<u8>>; 3] {
    let numbers = || (0..count).map(|n| 3 * n);
    [
        // Of one length, many in a leaf.
        numbers().map(|n| n.to_be_bytes().to_vec()).collect(),
        numbers()
            .map(|n| {
                format!(
                    "a beginning that all have/{:08}{}",
                    n,
                    "-".repeat(n as usize % 7)
                )
                .into()
            })
            .collect(),
        // Few in a leaf.
        numbers()
            .map(|n| [&n.to_be_bytes()[..], &vec![b'x'; 300 + n as usize % 50][..]].concat())
            .collect(),
    ]
}

fn fill(db: &Database, keyspace: &Keyspace, map: &mut Map, keys: impl Iterator<Item = Vec<u8>>) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    for key in keys {
        let value = key.iter().rev().take(9).copied().collect::<Vec<_>>();
        txn.upsert(keyspace, &key, &value).unwrap();
        map.insert(key, value);
    }
    txn.commit().unwrap();
}

fn check(cursor: &Cursor<'_>, found: bool, expected: Option<(&Vec<u8>, &Vec<u8>)>) {
    assert_eq!(found, expected.is_some());
    let expected = expected.map(|(key, value)| (&key[..], &value[..]));
    assert_eq!(cursor.entry(), expected);
}

/// A key that is there, one just before or behind it, or one far from all.
fn near(key: &[u8], random: &mut Random) -> Vec<u8> {
    let mut key = key.to_vec();
    match random.below(8) {
        0 => key.push(0),
        1 => *key.last_mut().expect("no key is empty") ^= 1,
        2 => key.truncate(key.len() / 2),
        _ => {}
    }
    key
}

fn seek_about(cursor: &mut Cursor<'_>, map: &Map, random: &mut Random) {
    let all: Vec<&Vec<u8>> = map.keys().collect();
    let mut at = random.below(all.len()) as i64;
    let mut stride = 1;
    for _ in 0..3_000 {
        if random.below(60) == 0 {
            at = random.below(all.len()) as i64;
            stride = [1, -1, 1, -2, 7, 40][random.below(6)];
        }
        at = (at + stride).rem_euclid(all.len() as i64);
        let key = near(all[at as usize], random);
        let after = map.range::<Vec<u8>, _>((Bound::Included(&key), Bound::Unbounded));
        let until = map.range::<Vec<u8>, _>((Bound::Unbounded, Bound::Included(&key)));
        let (mut after, mut until) = (after, until);
        if random.below(3) == 0 {
            let found = cursor.seek_back(&key).unwrap();
            check(cursor, found, until.next_back());
        } else {
            let found = cursor.seek(&key).unwrap();
            check(cursor, found, after.next());
            // Steps lead to other leaves, and the next search begins there.
            for _ in 0..random.below(4) * usize::from(found) {
                let found = cursor.next().unwrap();
                check(cursor, found, after.next());
                if !found {
                    break;
                }
            }
        }
    }
}

#[test]
fn they_find_what_a_map_has() {
    let mut random = Random::new(41);
    for keys in keys(4_000) {
        let db = Options::new().in_memory().unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        let mut map = Map::new();
        fill(&db, &keyspace, &mut map, keys.iter().cloned());
        db.compact().unwrap();
        let check = |map: &Map, random: &mut Random| {
            let snapshot = db.snapshot();
            seek_about(&mut snapshot.cursor(&keyspace).unwrap(), map, random);
        };
        check(&map, &mut random);
        // Some in front of the tree, in a buffer; a transaction's own in front of these.
        let between = |key: &Vec<u8>| [&key[..], &[1]].concat();
        fill(
            &db,
            &keyspace,
            &mut map,
            keys.iter().step_by(9).map(between),
        );
        check(&map, &mut random);
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for key in keys.iter().step_by(5) {
            txn.remove(&keyspace, key).unwrap();
            map.remove(key);
        }
        seek_about(&mut txn.cursor(&keyspace).unwrap(), &map, &mut random);
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        check(&map, &mut random);
    }
}
