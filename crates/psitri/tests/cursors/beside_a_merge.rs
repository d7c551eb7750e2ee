//! Story: a long merge publishes slice by slice, and forward moves leave out what the tree has of the buffers by then. No cursor can tell.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::common::{Random, seed};
use psitri::{Cursor, Database, Keyspace, Options};

const KEYS: u64 = 30_000;
/// Of entries in the tree: it is several slices long.
const VALUE: [u8; 200] = [0; 200];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Even numbers in the tree; in buffers over it, some of them with other values, some removed, and odd ones.
fn fill(db: &Database, keyspace: &Keyspace, random: &mut Random) -> Model {
    let mut model: Model = (0..KEYS).map(|n| (key(2 * n), VALUE.to_vec())).collect();
    let mut txn = db.begin_direct(&[keyspace]).unwrap();
    txn.ingest(keyspace, model.iter()).unwrap();
    txn.commit().unwrap();
    for _ in 0..KEYS / 100 {
        let mut txn = db.begin(&[keyspace]).unwrap();
        for _ in 0..100 {
            let key = key(random.next() % (2 * KEYS));
            if random.next().is_multiple_of(3) {
                txn.remove(keyspace, &key).unwrap();
                model.remove(&key);
            } else {
                let value = vec![random.next() as u8; 60 + random.next() as usize % 100];
                txn.upsert(keyspace, &key, &value).unwrap();
                model.insert(key, value);
            }
        }
        txn.commit().unwrap();
    }
    model
}

fn check_position(cursor: &Cursor<'_>, expected: Option<(&Vec<u8>, &Vec<u8>)>) {
    let expected = expected.map(|(key, value)| (&key[..], &value[..]));
    assert_eq!(cursor.entry(), expected);
}

/// A seek, and steps to and fro.
fn walk(cursor: &mut Cursor<'_>, model: &Model, random: &mut Random) {
    let from = key(random.next() % (2 * KEYS));
    let mut at = model.range(from.clone()..).next();
    cursor.seek(&from).unwrap();
    check_position(cursor, at);
    for _ in 0..40 {
        let Some((here, _)) = at else { return };
        let (here, forward) = (here.clone(), !random.next().is_multiple_of(4));
        at = if forward {
            cursor.next().unwrap();
            model.range(here..).nth(1)
        } else {
            cursor.prev().unwrap();
            model.range(..here).next_back()
        };
        check_position(cursor, at);
    }
}

/// How often the tree had changed when a cursor was made.
fn states_seen_by_cursors(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().buffer_bytes(2 << 20);
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let model = fill(&db, &keyspace, &mut random);
    let mut seen = Vec::new();
    let mut snapshots = 0;
    std::thread::scope(|scope| {
        let merge = scope.spawn(|| db.checkpoint().unwrap());
        while !merge.is_finished() {
            let merged = db.stats().unwrap().keyspaces[0].keys_merged;
            let snapshot = db.snapshot();
            let mut cursor = snapshot.cursor(&keyspace).unwrap();
            for _ in 0..5 {
                walk(&mut cursor, &model, &mut random);
            }
            if seen.last() != Some(&merged) {
                seen.push(merged);
            }
            // All of it takes as long as several slices.
            snapshots += 1;
            if snapshots % 4 != 0 {
                continue;
            }
            cursor.seek_first().unwrap();
            for entry in &model {
                check_position(&cursor, Some(entry));
                cursor.next().unwrap();
            }
            assert!(!cursor.is_valid());
            let mut visited = model.iter();
            let visit = |key: &[u8], value: &[u8]| {
                let (expected, expected_value) = visited.next().unwrap();
                assert_eq!((key, value), (&expected[..], &expected_value[..]));
                ControlFlow::Continue(())
            };
            snapshot.for_each(&keyspace, .., visit).unwrap();
            assert_eq!(visited.next(), None);
        }
    });
    assert_eq!(
        db.snapshot().count(&keyspace, ..).unwrap(),
        model.len() as u64
    );
    seen.len()
}

#[test]
fn cursors_see_the_same_whatever_is_merged() {
    // How many slices cursors meet is up to the threads, and they may be many more than there are processors.
    let mut seen = 0;
    for number in 1..=60 {
        seen = seen.max(states_seen_by_cursors(seed(number)));
        if number >= 5 && seen > 2 {
            return;
        }
    }
    panic!("no cursor in the middle of a merge: at most {seen} states were seen");
}
