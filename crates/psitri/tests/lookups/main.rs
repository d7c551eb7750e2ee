//! Stories of lookups of single keys, with and without a table that says where they are.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use common::{Random, seed};
use psitri::{Database, Expiry, Keyspace, KeyspaceOptions, Options, Snapshot};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::new().idle_flush(Duration::from_secs(3600))
}

fn load(db: &Database, keyspace: &Keyspace, model: &Model) {
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    txn.ingest(keyspace, model).unwrap();
    txn.commit().unwrap();
}

fn table_bytes(db: &Database) -> u64 {
    db.stats().unwrap().lookup_table_bytes
}

/// Looks keys up until there is a table for it.
fn look_up_until_there_is_a_table(db: &Database, keyspace: &Keyspace, model: &Model) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let before = table_bytes(db);
    while table_bytes(db) == before {
        assert!(Instant::now() < deadline, "no table");
        let snapshot = db.snapshot();
        for (key, value) in model {
            assert_eq!(snapshot.get(keyspace, key).unwrap(), Some(&value[..]));
        }
    }
}

/// Every key of the model one by one and in lists, and keys that are nearly the same.
fn check(snapshot: &Snapshot, keyspace: &Keyspace, model: &Model) {
    let mut missing = Vec::new();
    for (key, value) in model {
        assert_eq!(snapshot.get(keyspace, key).unwrap(), Some(&value[..]));
        let (mut longer, mut other) = (key.clone(), key.clone());
        longer.push(0);
        match other.last_mut() {
            Some(last) => *last ^= 1,
            None => other.push(7),
        }
        let shorter = key[..key.len().saturating_sub(1)].to_vec();
        missing.extend([longer, other, shorter]);
    }
    for key in &missing {
        let expected = model.get(key).map(|value| &value[..]);
        assert_eq!(snapshot.get(keyspace, key).unwrap(), expected, "{key:?}");
    }
    let keys: Vec<&[u8]> = (model.keys().zip(&missing))
        .flat_map(|(present, missing)| [&present[..], &missing[..]])
        .collect();
    for keys in keys.chunks(50) {
        let found = snapshot.get_many(keyspace, keys).unwrap();
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found, model.get(*key).map(|value| &value[..]));
        }
    }
}

/// Keys and values of a kind that leaves store in a way of their own.
fn models(random: &mut Random) -> Vec<(&'static str, Model)> {
    let mut bytes = |len: usize| -> Vec<u8> { (0..len).map(|_| random.next() as u8).collect() };
    let mut models = Vec::new();
    let mut add = |name, entries: Vec<(Vec<u8>, Vec<u8>)>| {
        models.push((name, entries.into_iter().collect::<Model>()));
    };
    add(
        "a sequence",
        (0..40_000_u64)
            .map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 20]))
            .collect(),
    );
    add(
        "numbers",
        (0..5_000).map(|n| (bytes(8), vec![n as u8; 100])).collect(),
    );
    add(
        "words of all lengths, some values outside of the leaf",
        (0..5_000_usize)
            .map(|n| {
                (
                    bytes(n % 30),
                    vec![n as u8; if n % 97 == 0 { 3_000 } else { n % 200 }],
                )
            })
            .collect(),
    );
    add(
        "keys that go on where others end",
        (0..1_500_usize)
            .map(|n| (vec![b'a'; n], vec![n as u8; 3]))
            .collect(),
    );
    add(
        "long prefixes, leaves of more than a page among them",
        (0..1_200_usize)
            .map(|n| {
                let mut key = vec![b'p'; if n % 100 == 0 { 9_000 } else { 300 }];
                key.extend((n as u32).to_be_bytes());
                (key, vec![n as u8; 40])
            })
            .collect(),
    );
    models
}

#[test]
fn a_table_says_what_the_tree_says() {
    for (name, model) in models(&mut Random::new(seed(1))) {
        let dir = tempfile::tempdir().unwrap();
        let db = options().open(dir.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        load(&db, &keyspace, &model);
        let early = db.snapshot();
        look_up_until_there_is_a_table(&db, &keyspace, &model);
        println!("{name}: {} keys, {} bytes", model.len(), table_bytes(&db));
        check(&db.snapshot(), &keyspace, &model);
        check(&early, &keyspace, &model);
        drop(early);
        drop(keyspace);
        db.close().unwrap();
        let db = options().open(dir.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        look_up_until_there_is_a_table(&db, &keyspace, &model);
        check(&db.snapshot(), &keyspace, &model);
    }
}

/// Writes go on, and merges exchange the tree; every snapshot keeps what it saw, and tables go with the last that may use them.
#[test]
fn tables_come_and_go_with_their_trees() {
    let mut random = Random::new(seed(2));
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut model: Model = (0..3_000_u32)
        .map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 50]))
        .collect();
    load(&db, &keyspace, &model);
    let mut seen: Vec<(Snapshot, Model)> = Vec::new();
    for round in 0..8 {
        look_up_until_there_is_a_table(&db, &keyspace, &model);
        seen.push((db.snapshot(), model.clone()));
        for _ in 0..300 {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            let key = ((random.next() % 4_000) as u32).to_be_bytes().to_vec();
            if random.next().is_multiple_of(3) {
                txn.remove(&keyspace, &key).unwrap();
                model.remove(&key);
            } else {
                txn.upsert(&keyspace, &key, &[round; 60]).unwrap();
                model.insert(key, vec![round; 60]);
            }
            txn.commit().unwrap();
        }
        check(&db.snapshot(), &keyspace, &model);
        db.checkpoint().unwrap();
        for (snapshot, model) in &seen {
            check(snapshot, &keyspace, model);
        }
    }
    assert!(table_bytes(&db) > 8 * 3_000 * 8, "{}", table_bytes(&db));
    seen.clear();
    db.checkpoint().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while table_bytes(&db) > 0 {
        assert!(Instant::now() < deadline, "{} bytes stay", table_bytes(&db));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(db.verify().unwrap().errors.is_empty());
}

/// Clones share nodes, not tables.
#[test]
fn a_clone_has_a_table_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let model: Model = (0..2_000_u32)
        .map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 50]))
        .collect();
    load(&db, &keyspace, &model);
    look_up_until_there_is_a_table(&db, &keyspace, &model);
    let clone = db.clone_keyspace("k", "clone").unwrap();
    look_up_until_there_is_a_table(&db, &clone, &model);
    let mut txn = db.begin_direct(&[&clone]).unwrap();
    txn.remove(&clone, &7_u32.to_be_bytes()).unwrap();
    txn.commit().unwrap();
    let mut without = model.clone();
    without.remove(&7_u32.to_be_bytes()[..]);
    check(&db.snapshot(), &clone, &without);
    check(&db.snapshot(), &keyspace, &model);
}

/// What has expired is found by the table, and by nobody else.
#[test]
fn what_expires_is_not_there_in_spite_of_a_table() {
    let millis = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&millis);
    let now = move || SystemTime::UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::SeqCst));
    let db = options().clock(now).in_memory().unwrap();
    let kind = KeyspaceOptions::new().entries_expire();
    let keyspace = db.create_keyspace_with("k", kind).unwrap();
    let mut model = Model::new();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for n in 0..3_000_u32 {
        let (key, value) = (n.to_be_bytes().to_vec(), vec![n as u8; 50]);
        if n % 2 == 0 {
            txn.upsert(&keyspace, &key, &value).unwrap();
        } else {
            let after = Expiry::After(Duration::from_millis(50));
            txn.upsert_expiring(&keyspace, &key, &value, after).unwrap();
        }
        model.insert(key, value);
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    look_up_until_there_is_a_table(&db, &keyspace, &model);
    let early = db.snapshot();
    check(&early, &keyspace, &model);
    millis.fetch_add(100, Ordering::SeqCst);
    check(&early, &keyspace, &model);
    model.retain(|key, _| key[3] % 2 == 0);
    check(&db.snapshot(), &keyspace, &model);
}

fn numbered(keys: u32, value_bytes: usize) -> Model {
    (0..keys)
        .map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; value_bytes]))
        .collect()
}

/// What a table of so many keys takes.
fn bytes_for(keys: u64) -> u64 {
    (keys * 16 / 11 / 8 + 1) * 64
}

/// Keyspaces `a` and `b`.
fn two(options: Options, a: &Model, b: &Model) -> (tempfile::TempDir, Database, [Keyspace; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let db = options.open(dir.path()).unwrap();
    let keyspaces = [("a", a), ("b", b)].map(|(name, model)| {
        let keyspace = db.keyspace(name).unwrap();
        load(&db, &keyspace, model);
        keyspace
    });
    (dir, db, keyspaces)
}

#[test]
fn there_is_no_table_without_room_for_it() {
    let model = numbered(3_000, 50);
    for bytes in [0, bytes_for(3_000) - 1] {
        let options = options().lookup_table_bytes(bytes);
        let (_dir, db, keyspaces) = two(options, &model, &model);
        for _ in 0..5 {
            for keyspace in &keyspaces {
                check(&db.snapshot(), keyspace, &model);
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(table_bytes(&db), 0);
        }
    }
}

/// Of two trees there is room for one table. Who is not asked any more makes room.
#[test]
fn a_table_goes_when_nobody_asks_it_and_another_one_is_wanted() {
    let (a, b) = (numbered(3_000, 50), numbered(4_000, 50));
    let options = options().lookup_table_bytes(bytes_for(4_000) + 100);
    let (_dir, db, [in_a, in_b]) = two(options, &a, &b);
    for (keyspace, model) in [(&in_a, &a), (&in_b, &b), (&in_a, &a)] {
        let deadline = Instant::now() + Duration::from_secs(60);
        while table_bytes(&db) != bytes_for(model.len() as u64) {
            assert!(Instant::now() < deadline, "no table of {}", keyspace.name());
            check(&db.snapshot(), keyspace, model);
        }
    }
}

/// Lookups that take turns are counted for both trees, also where one of them cannot have a table.
#[test]
fn lookups_that_take_turns_are_counted_for_both() {
    let (a, b) = (numbered(2_000, 50), numbered(8_000, 50));
    let options = options().lookup_table_bytes(bytes_for(2_000));
    let (_dir, db, [in_a, in_b]) = two(options, &a, &b);
    let deadline = Instant::now() + Duration::from_secs(60);
    while table_bytes(&db) == 0 {
        assert!(Instant::now() < deadline, "no table");
        let snapshot = db.snapshot();
        for key in a.keys() {
            assert!(snapshot.get(&in_a, key).unwrap().is_some());
            assert!(snapshot.get(&in_b, key).unwrap().is_some());
        }
    }
    assert_eq!(table_bytes(&db), bytes_for(2_000));
}

/// A tree that takes little more than a table of it would has none: it is in nearer caches.
#[test]
fn a_tree_that_is_small_for_its_keys_has_no_table() {
    let model = numbered(20_000, 2);
    let (_dir, db, [keyspace, _]) = two(options(), &model, &model);
    for _ in 0..5 {
        check(&db.snapshot(), &keyspace, &model);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(table_bytes(&db), 0);
}
