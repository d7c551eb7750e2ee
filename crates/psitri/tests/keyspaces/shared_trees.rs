//! Story: trees that share their nodes. Keyspaces and subtrees are cloned, saved in snapshots, changed, moved and deleted in any order, with
//! reopenings and backups in between, beside maps that are copied for real. Content, counts of shared nodes and the page map have to agree at every step;
//! in the end, when everything is dropped, no page may be left over.
//!
//! `PSITRI_SEED` replays one run.
use psitri::{BackupOptions, Database, Error, Keyspace, Options, Snapshot};
use std::{collections::BTreeMap, path::PathBuf};

use crate::common::{Random, env_number};

type Map = BTreeMap<Vec<u8>, Value>;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Bytes(Vec<u8>),
    Subtree(Map),
}

type World = BTreeMap<String, Map>;

fn small() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(64 << 20)
}

fn read(snapshot: &Snapshot, keyspace: &Keyspace) -> Map {
    let mut map = Map::new();
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found {
        let value = match snapshot.subtree(keyspace, cursor.key()).unwrap() {
            None => Value::Bytes(cursor.value().to_vec()),
            Some(subtree) => Value::Subtree(read(snapshot, &subtree)),
        };
        map.insert(cursor.key().to_vec(), value);
        found = cursor.next().unwrap();
    }
    assert_eq!(snapshot.count(keyspace, ..).unwrap(), map.len() as u64);
    map
}

fn read_world(snapshot: &Snapshot) -> World {
    let names = snapshot.keyspaces().into_iter();
    names
        .map(|name| {
            let keyspace = snapshot.keyspace(&name).unwrap();
            let map = read(snapshot, &keyspace);
            (name, map)
        })
        .collect()
}

/// A path to a keyspace or subtree: a name, then keys.
type Path = (String, Vec<Vec<u8>>);

fn paths(world: &World) -> Vec<Path> {
    fn below(map: &Map, path: &Path, out: &mut Vec<Path>) {
        out.push(path.clone());
        for (key, value) in map {
            if let Value::Subtree(map) = value {
                let mut path = path.clone();
                path.1.push(key.clone());
                below(map, &path, out);
            }
        }
    }
    let mut out = Vec::new();
    for (name, map) in world {
        below(map, &(name.clone(), Vec::new()), &mut out);
    }
    out
}

fn map_at<'w>(world: &'w mut World, path: &Path) -> &'w mut Map {
    let mut map = world.get_mut(&path.0).unwrap();
    for key in &path.1 {
        let Some(Value::Subtree(below)) = map.get_mut(key) else {
            panic!("no subtree at {key:?}");
        };
        map = below;
    }
    map
}

fn keyspace_at(db: &Database, path: &Path) -> Keyspace {
    let mut keyspace = db.open_keyspace(&path.0).unwrap();
    for key in &path.1 {
        keyspace = db.subtree(&keyspace, key).unwrap().unwrap();
    }
    keyspace
}

/// What differs, in words.
fn difference(found: &World, expected: &World) -> String {
    fn below(found: &Map, expected: &Map, at: &str, out: &mut Vec<String>) {
        let keys: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        for key in keys {
            let at = format!("{at}/{}", key.escape_ascii());
            match (found.get(key), expected.get(key)) {
                (Some(Value::Subtree(found)), Some(Value::Subtree(expected))) => {
                    below(found, expected, &at, out);
                }
                (found, expected) if found == expected => {}
                (found, expected) => {
                    let what = |value: Option<&Value>| match value {
                        None => "nothing".to_owned(),
                        Some(Value::Bytes(bytes)) => {
                            format!("{} x {:?}", bytes.len(), bytes.first())
                        }
                        Some(Value::Subtree(map)) => format!("subtree of {}", map.len()),
                    };
                    out.push(format!("{at}: {}, not {}", what(found), what(expected)));
                }
            }
        }
    }
    let mut out = Vec::new();
    let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    for name in names {
        match (found.get(name), expected.get(name)) {
            (Some(found), Some(expected)) => below(found, expected, name, &mut out),
            (found, _) => out.push(format!(
                "{name}: {}",
                if found.is_some() {
                    "too many"
                } else {
                    "missing"
                }
            )),
        }
    }
    out.truncate(20);
    out.join("; ")
}

fn assert_same(found: &World, expected: &World, context: &str) {
    let same = found == expected;
    assert!(same, "{context}: {}", difference(found, expected));
}

fn check(db: &Database, world: &World, saved: &BTreeMap<String, World>, context: &str) {
    assert_same(&read_world(&db.snapshot()), world, context);
    for (name, world) in saved {
        let snapshot = db.saved_snapshot(name).unwrap();
        assert_same(
            &read_world(&snapshot),
            world,
            &format!("{context}, saved as {name}"),
        );
    }
    let names: Vec<String> = db.saved_snapshots().into_iter().map(|s| s.name).collect();
    assert_eq!(
        names,
        saved.keys().cloned().collect::<Vec<_>>(),
        "{context}"
    );
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
}

/// Enough for inner nodes above inner nodes.
fn load(random: &mut Random, db: &Database, keyspace: &Keyspace, map: &mut Map) {
    let mut entries = Map::new();
    for _ in 0..random.between(1_000, 20_000) {
        let key = format!("{:04}/{:08x}", random.below(2000), random.next() as u32);
        entries.insert(
            key.into_bytes(),
            Value::Bytes(vec![random.next() as u8; 30]),
        );
    }
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    let bytes = entries.iter().map(|(key, value)| match value {
        Value::Bytes(bytes) => (key, bytes),
        Value::Subtree(_) => unreachable!("only values are loaded"),
    });
    txn.ingest(keyspace, bytes).unwrap();
    txn.commit().unwrap();
    map.extend(entries);
}

fn write(random: &mut Random, db: &Database, keyspace: &Keyspace, map: &mut Map) {
    if random.percent(5) {
        return load(random, db, keyspace, map);
    }
    let mut txn = if random.below(4) == 0 {
        db.begin_direct(&[keyspace]).unwrap()
    } else {
        db.begin(&[keyspace]).unwrap()
    };
    for _ in 0..random.below(300) {
        let mut key = format!("{:04}", random.below(2000)).into_bytes();
        if random.below(2) == 0
            && let Some((old, Value::Bytes(_))) = map.range(key.clone()..).next()
        {
            key = old.clone();
        }
        let is_subtree = matches!(map.get(&key), Some(Value::Subtree(_)));
        if random.below(4) == 0 {
            let removed = txn.remove(keyspace, &key);
            if is_subtree {
                assert!(matches!(removed, Err(Error::IsSubtree { .. })));
            } else {
                assert_eq!(removed.unwrap(), map.remove(&key).is_some());
            }
            continue;
        }
        let len = match random.below(200) {
            0 => 20_000,
            1..10 => 700,
            _ => 20,
        };
        let value = vec![random.next() as u8; len];
        let written = txn.upsert(keyspace, &key, &value);
        if is_subtree {
            assert!(matches!(written, Err(Error::IsSubtree { .. })));
        } else {
            written.unwrap();
            map.insert(key, Value::Bytes(value));
        }
    }
    if random.below(5) == 0 {
        let lo = format!("{:04}", random.below(2000)).into_bytes();
        let hi = format!("{:04}", random.below(2000)).into_bytes();
        let holds_subtree = lo < hi
            && (map.range(lo.clone()..hi.clone()))
                .any(|(_, value)| matches!(value, Value::Subtree(_)));
        let removed = txn.remove_range(keyspace, &lo, Some(&hi));
        if holds_subtree {
            assert!(matches!(removed, Err(Error::IsSubtree { .. })));
        } else {
            removed.unwrap();
            map.retain(|key, _| !(lo <= *key && *key < hi));
        }
    }
    txn.commit().unwrap();
}

fn run(seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let open = || small().open(dir.path().join("db")).unwrap();
    let mut db = open();
    let mut world = World::new();
    let mut saved: BTreeMap<String, World> = BTreeMap::new();
    let mut chain: Vec<PathBuf> = Vec::new();
    for step in 0..steps {
        let context = format!("seed {seed}, step {step}");
        let action = random.below(16);
        if env_number("PSITRI_VERBOSE").is_some() {
            eprintln!("{step}: action {action}");
        }
        let all = paths(&world);
        let any = |random: &mut Random| random.pick(&all).clone();
        let name = format!("k{}", random.below(5));
        let key = format!("{:04}", random.below(2000)).into_bytes();
        match action {
            _ if all.is_empty() => {
                db.create_keyspace(&name).unwrap();
                world.insert(name, Map::new());
            }
            0 => {
                let created = db.create_keyspace(&name);
                assert_eq!(created.is_err(), world.contains_key(&name), "{context}");
                world.entry(name).or_default();
            }
            1 => {
                let dropped = db.drop_keyspace(&name);
                assert_eq!(dropped.is_ok(), world.remove(&name).is_some(), "{context}");
            }
            2 => {
                let (source, _) = any(&mut random);
                let cloned = db.clone_keyspace(&source, &name);
                assert_eq!(cloned.is_err(), world.contains_key(&name), "{context}");
                if cloned.is_ok() {
                    let copy = world[&source].clone();
                    world.insert(name, copy);
                }
            }
            3 | 4 => {
                let path = any(&mut random);
                let parent = keyspace_at(&db, &path);
                let map = map_at(&mut world, &path);
                if env_number("PSITRI_VERBOSE").is_some() {
                    eprintln!("create {path:?} {key:?}");
                }
                let created = db.create_subtree(&parent, &key);
                assert_eq!(created.is_err(), map.contains_key(&key), "{context}");
                map.entry(key).or_insert(Value::Subtree(Map::new()));
            }
            5 | 6 => {
                let (from, to) = (any(&mut random), any(&mut random));
                let Some(at) = from.1.last().cloned() else {
                    continue;
                };
                let parent: Path = (from.0.clone(), from.1[..from.1.len() - 1].to_vec());
                let (source, target) = (keyspace_at(&db, &parent), keyspace_at(&db, &to));
                let exists = map_at(&mut world, &to).contains_key(&key);
                let moves = random.below(2) == 0;
                if env_number("PSITRI_VERBOSE").is_some() {
                    eprintln!("move {moves} {from:?} {to:?} {key:?}");
                }
                let is_cycle = to.0 == from.0 && to.1.starts_with(&from.1);
                let result = if moves {
                    db.move_subtree(&source, &at, &target, &key)
                } else {
                    db.clone_subtree(&source, &at, &target, &key).map(drop)
                };
                let refused = exists || (moves && is_cycle);
                assert_eq!(result.is_err(), refused, "{context}: {result:?}");
                if !refused {
                    let copy = map_at(&mut world, &from).clone();
                    if moves {
                        map_at(&mut world, &parent).remove(&at);
                    }
                    map_at(&mut world, &to).insert(key, Value::Subtree(copy));
                }
            }
            7 => {
                let path = any(&mut random);
                if let Some((last, above)) = path.1.split_last() {
                    let parent: Path = (path.0.clone(), above.to_vec());
                    let keyspace = keyspace_at(&db, &parent);
                    assert!(db.delete_subtree(&keyspace, last).unwrap());
                    map_at(&mut world, &parent).remove(last);
                }
            }
            8 => {
                let name = format!("s{}", random.below(3));
                let result = db.save_snapshot(&name);
                assert_eq!(result.is_err(), saved.contains_key(&name), "{context}");
                saved.entry(name).or_insert_with(|| world.clone());
            }
            9 => {
                let name = format!("s{}", random.below(3));
                let result = db.drop_snapshot(&name);
                assert_eq!(result.is_ok(), saved.remove(&name).is_some(), "{context}");
            }
            10 => {
                let snapshot = format!("s{}", random.below(3));
                let source = format!("k{}", random.below(5));
                let result = db.restore_keyspace(&snapshot, &source, &name);
                let copy = saved.get(&snapshot).and_then(|world| world.get(&source));
                let refused = copy.is_none() || world.contains_key(&name);
                assert_eq!(result.is_err(), refused, "{context}");
                if !refused {
                    let copy = copy.unwrap().clone();
                    world.insert(name, copy);
                }
            }
            11 => {
                if random.below(2) == 0 {
                    db.checkpoint().unwrap();
                } else {
                    db.compact().unwrap();
                }
            }
            12 => {
                if random.below(2) == 0 {
                    db.close().unwrap();
                } else {
                    drop(db);
                }
                db = open();
            }
            13 if step % 3 == 0 => {
                let backup = dir.path().join(format!("backup {step}"));
                let options = BackupOptions::new().since(&chain);
                db.backup_with(&backup, options).unwrap();
                chain.push(backup);
                let target = dir.path().join(format!("restored {step}"));
                Database::restore(&chain, &target).unwrap();
                let restored = small().open(&target).unwrap();
                assert_same(&read_world(&restored.snapshot()), &world, &context);
            }
            _ => {
                let path = any(&mut random);
                let keyspace = keyspace_at(&db, &path);
                if env_number("PSITRI_VERBOSE").is_some() {
                    eprintln!("write {path:?}");
                }
                let before = db.snapshot();
                let old = map_at(&mut world, &path).clone();
                write(&mut random, &db, &keyspace, map_at(&mut world, &path));
                assert_eq!(read(&before, &keyspace), old, "{context}");
            }
        }
        if random.below(4) == 0 || env_number("PSITRI_VERBOSE").is_some() {
            check(&db, &world, &saved, &context);
        }
    }
    let context = format!("seed {seed}, at the end");
    check(&db, &world, &saved, &context);
    for name in saved.keys() {
        db.drop_snapshot(name).unwrap();
    }
    for name in world.keys() {
        db.drop_keyspace(name).unwrap();
    }
    db.checkpoint().unwrap();
    check(&db, &World::new(), &BTreeMap::new(), &context);
    let left = db.stats().unwrap().reachable_bytes;
    assert!(left <= 4096, "{context}: {left} bytes are left");
}

#[test]
fn agree_with_copies() {
    if let Some(seed) = env_number("PSITRI_SEED") {
        return run(seed, 300);
    }
    let seeds = env_number("PSITRI_SEEDS").unwrap_or(6);
    let first = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    for index in 0..seeds {
        run(first.wrapping_add(index), 120);
    }
}
