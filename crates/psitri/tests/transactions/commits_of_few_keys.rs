//! Direct commits of a few keys patch the nodes above what they change. Whatever they do to a tree of several levels, it holds what a map
//! holds, its counts are right, a clone keeps what it had, and nodes stay about as full as those that were packed at once.

use std::collections::BTreeMap;

use crate::common::{Random, seed as seeded};
use psitri::{Database, Keyspace, Options, WriteTxn};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Entries that a tree begins with.
const ENTRIES: usize = 12_000;
const COMMITS: usize = 400;

#[derive(Clone, Copy)]
enum Keys {
    /// Agree for long, and differ at any place: separators are long, and nodes have few children.
    Deep,
    Short,
    Numbers,
}

impl Keys {
    fn draw(self, random: &mut Random) -> Vec<u8> {
        match self {
            Keys::Deep => {
                let bytes = random.between(60, 200);
                (0..bytes)
                    .map(|_| b'a' + u8::from(random.percent(40)))
                    .collect()
            }
            Keys::Short => {
                let bytes = random.between(0, 5);
                (0..bytes).map(|_| random.next() as u8).collect()
            }
            Keys::Numbers => (random.next() >> 20).to_be_bytes().to_vec(),
        }
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    let bytes = *random.pick(&[8, 8, 8, 40, 200, 5000]);
    vec![random.next() as u8; bytes]
}

/// A key that is there, most often.
fn known(model: &Model, keys: Keys, random: &mut Random) -> Vec<u8> {
    let from = keys.draw(random);
    match model.range(from.clone()..).next() {
        Some((key, _)) => key.clone(),
        None => from,
    }
}

fn put(txn: &mut WriteTxn, keyspace: &Keyspace, model: &mut Model, key: Vec<u8>, value: Vec<u8>) {
    txn.upsert(keyspace, &key, &value).unwrap();
    model.insert(key, value);
}

fn commit(db: &Database, keyspace: &Keyspace, model: &mut Model, keys: Keys, random: &mut Random) {
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    let few = random.between(1, 4);
    match random.below(20) {
        // Values of the same length: leaves are patched as well.
        0..=7 => {
            for _ in 0..few {
                let key = known(model, keys, random);
                let bytes = model.get(&key).map_or(8, Vec::len);
                put(
                    &mut txn,
                    keyspace,
                    model,
                    key,
                    vec![random.next() as u8; bytes],
                );
            }
        }
        8..=10 => {
            for _ in 0..few {
                let key = known(model, keys, random);
                put(&mut txn, keyspace, model, key, value(random));
            }
        }
        11..=13 => {
            for _ in 0..few {
                put(&mut txn, keyspace, model, keys.draw(random), value(random));
            }
        }
        // A run of neighbours, which leaves are taken apart for side by side.
        14 => {
            let mut key = known(model, keys, random);
            for _ in 0..random.between(5, 200) {
                key.push(random.next() as u8);
                key.truncate(210);
                put(
                    &mut txn,
                    keyspace,
                    model,
                    key.clone(),
                    vec![1; random.between(0, 100)],
                );
            }
        }
        15..=17 => {
            let count = if random.percent(4) { 300 } else { few };
            let from = known(model, keys, random);
            let gone: Vec<_> = model
                .range(from..)
                .map(|(key, _)| key.clone())
                .take(count)
                .collect();
            for key in gone {
                assert!(txn.remove(keyspace, &key).unwrap());
                model.remove(&key);
            }
        }
        18 => {
            let lo = known(model, keys, random);
            let hi = model
                .range(lo.clone()..)
                .nth(random.between(1, 60))
                .map(|(key, _)| key.clone());
            txn.remove_range(keyspace, &lo, hi.as_deref()).unwrap();
            model.retain(|key, _| *key < lo || hi.as_ref().is_some_and(|hi| key >= hi));
            let key = known(model, keys, random);
            put(&mut txn, keyspace, model, key, value(random));
        }
        // Keys behind all others.
        _ => {
            let mut key = model
                .last_key_value()
                .map_or_else(Vec::new, |(key, _)| key.clone());
            for _ in 0..few {
                key.truncate(220);
                match key.iter().rposition(|&byte| byte < 0xff) {
                    Some(at) => key[at] += 1,
                    None => key.push(0),
                }
                put(&mut txn, keyspace, model, key.clone(), value(random));
            }
        }
    }
    txn.commit().unwrap();
}

fn check(db: &Database, keyspace: &Keyspace, model: &Model, random: &mut Random) {
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut expected = model.iter();
    let mut is_valid = cursor.seek_first().unwrap();
    while is_valid {
        let (key, value) = expected.next().expect("no more entries than the map has");
        assert_eq!((cursor.key(), cursor.value()), (&key[..], &value[..]));
        is_valid = cursor.next().unwrap();
    }
    assert!(expected.next().is_none(), "as many entries as the map has");
    for _ in 0..20 {
        let rank = random.below(model.len() + 2);
        let key = model.keys().nth(rank);
        assert_eq!(snapshot.nth(keyspace, rank as u64).unwrap().as_ref(), key);
        if let Some(key) = key {
            assert_eq!(snapshot.rank(keyspace, key).unwrap(), rank as u64);
        }
    }
}

/// Nodes that the entries of a map take when they are packed at once.
fn nodes_packed(model: &Model) -> u64 {
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("packed").unwrap();
    fill(&db, &keyspace, model);
    db.verify().unwrap().nodes
}

fn fill(db: &Database, keyspace: &Keyspace, model: &Model) {
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    for (key, value) in model {
        txn.upsert(keyspace, key, value).unwrap();
    }
    txn.commit().unwrap();
}

fn story(keys: Keys, seed: u64) {
    let mut random = Random::new(seed);
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("entries").unwrap();
    let mut model: Model = (0..ENTRIES)
        .map(|_| (keys.draw(&mut random), value(&mut random)))
        .collect();
    fill(&db, &keyspace, &model);
    let mut clone: Option<(Keyspace, Model)> = None;
    for round in 0..COMMITS {
        commit(&db, &keyspace, &mut model, keys, &mut random);
        if round == COMMITS / 3 {
            let copy = db.clone_keyspace("entries", "clone").unwrap();
            clone = Some((copy, model.clone()));
        }
        if let Some((copy, model)) = &mut clone
            && round % 4 == 0
        {
            commit(&db, copy, model, keys, &mut random);
        }
        if round % 40 == 39 {
            check(&db, &keyspace, &model, &mut random);
            if let Some((copy, model)) = &clone {
                check(&db, copy, model, &mut random);
            }
        }
    }
    db.drop_keyspace("clone").unwrap();
    let (nodes, packed) = (db.verify().unwrap().nodes, nodes_packed(&model));
    println!("{nodes} nodes, {packed} when packed at once");
    assert!(
        nodes <= packed * 7 / 4 + 20,
        "{nodes} nodes, {packed} when packed at once"
    );
}

fn stories(keys: Keys) {
    for seed in 0..3 {
        story(keys, seeded(seed));
    }
}

#[test]
fn deep_keys() {
    stories(Keys::Deep);
}

#[test]
fn short_keys() {
    stories(Keys::Short);
}

#[test]
fn numbers() {
    stories(Keys::Numbers);
}

/// Removals from all leaves at once leave what a load of the rest would have made, also where inner nodes have few children.
#[test]
fn a_tree_that_is_thinned_at_once_is_packed() {
    let key = |number: u32| {
        let mut key = Vec::new();
        for byte in &number.to_be_bytes()[1..] {
            key.extend_from_slice(&[b'k'; 150]);
            key.push(*byte);
        }
        key
    };
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("entries").unwrap();
    let mut model: Model = (0..20_000).map(|n| (key(n * 37), vec![1; 40])).collect();
    fill(&db, &keyspace, &model);
    for keep in [3, 40] {
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        let mut index = 0;
        model.retain(|key, _| {
            index += 1;
            let is_kept = index % keep == 0;
            assert!(is_kept || txn.remove(&keyspace, key).unwrap());
            is_kept
        });
        txn.commit().unwrap();
        let (nodes, packed) = (db.verify().unwrap().nodes, nodes_packed(&model));
        println!("one of {keep}: {nodes} nodes, {packed} when packed at once");
        assert!(
            nodes <= packed * 21 / 20,
            "one of {keep}: {nodes} nodes, {packed} when packed at once"
        );
    }
}
