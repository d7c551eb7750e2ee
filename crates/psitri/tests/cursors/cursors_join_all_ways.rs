//! Story: a cursor joins what lies in the tree with what lies in a buffer. Every way in which a few keys can be spread over both
//! is tried, one keyspace each, at a snapshot before the writes and at one after: forwards, backwards, from every key on, and turning.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use psitri::{Database, Keyspace, Options, Snapshot};

use crate::pile::Pile;

const KEYS: [&[u8]; 4] = [b"key a", b"key b", b"key bb", b"key c"];

/// What a step does to a key.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    Nothing,
    Put,
    Delete,
}

const CHANGES: [Change; 3] = [Change::Nothing, Change::Put, Change::Delete];

type Model = BTreeMap<&'static [u8], Vec<u8>>;

fn check(snapshot: &Snapshot, keyspace: &Keyspace, model: &Model) {
    let expected: Vec<_> = model.iter().map(|(k, v)| (k.to_vec(), v.clone())).collect();
    let mut visited = Vec::new();
    snapshot
        .for_each(keyspace, .., |key, value| {
            visited.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(visited, expected);

    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    for (key, value) in model {
        assert!(found);
        assert_eq!(cursor.entry(), Some((*key, &value[..])));
        found = cursor.next().unwrap();
    }
    assert!(!found);
    found = cursor.seek_last().unwrap();
    for (key, value) in model.iter().rev() {
        assert!(found);
        assert_eq!(cursor.entry(), Some((*key, &value[..])));
        found = cursor.prev().unwrap();
    }
    assert!(!found);

    // From every key on; and one step there, one back, and on.
    for from in KEYS {
        let rest: Vec<_> = model.range(from..).collect();
        found = cursor.seek(from).unwrap();
        for (at, (key, value)) in rest.iter().enumerate() {
            assert!(found);
            assert_eq!(cursor.entry(), Some((**key, &value[..])));
            if at + 1 < rest.len() {
                assert!(cursor.next().unwrap());
                assert_eq!(cursor.key(), *rest[at + 1].0);
                assert!(cursor.prev().unwrap());
                assert_eq!(cursor.entry(), Some((**key, &value[..])));
            }
            found = cursor.next().unwrap();
        }
        assert!(!found);
    }
}

/// All sequences of `len` numbers below `base`.
fn sequences(base: usize, len: u32) -> impl Iterator<Item = Vec<usize>> {
    (0..base.pow(len)).map(move |mut code| {
        (0..len)
            .map(|_| {
                let digit = code % base;
                code /= base;
                digit
            })
            .collect()
    })
}

/// Keys behind the others.
fn fillers(count: usize) -> Vec<&'static [u8]> {
    let key = |n| &*format!("key d{n:04}").into_bytes().leak();
    (0..count).map(key).collect()
}

/// Puts what the model has, and fillers behind.
fn fill(db: &Database, keyspace: &Keyspace, model: &mut Model, fillers: &[&'static [u8]]) {
    model.extend(fillers.iter().map(|&key| (key, vec![b'-'; 100])));
    let mut txn = db.begin(&[keyspace]).unwrap();
    for (key, value) in model.iter() {
        txn.upsert(keyspace, key, value).unwrap();
    }
    txn.commit().unwrap();
}

/// For every key whether the tree has it, and what the buffer does to it. A keyspace whose tree goes on in more leaves has `filler` behind.
fn every_way(filler: usize) {
    let db = Options::new().in_memory().unwrap();
    let mut cases = Vec::new();
    for digits in sequences(2 * CHANGES.len(), KEYS.len() as u32) {
        let keyspace = db.create_keyspace(&format!("{digits:?}")).unwrap();
        cases.push((keyspace, digits, Model::new()));
    }
    let fillers = fillers(filler);
    for (keyspace, digits, model) in &mut cases {
        for (key, digit) in KEYS.iter().zip(digits) {
            if *digit >= CHANGES.len() {
                model.insert(key, b"tree".to_vec());
            }
        }
        fill(&db, keyspace, model, &fillers);
    }
    db.checkpoint().unwrap();
    let before = db.snapshot();
    let old: Vec<Model> = cases.iter().map(|(_, _, model)| model.clone()).collect();
    for (keyspace, digits, model) in &mut cases {
        let mut txn = db.begin(&[&*keyspace]).unwrap();
        for (key, digit) in KEYS.iter().zip(digits) {
            match CHANGES[*digit % CHANGES.len()] {
                Change::Nothing => {}
                Change::Put => {
                    txn.upsert(keyspace, key, b"buffer").unwrap();
                    model.insert(key, b"buffer".to_vec());
                }
                Change::Delete => {
                    txn.remove(keyspace, key).unwrap();
                    model.remove(key);
                }
            }
        }
        txn.commit().unwrap();
    }
    let after = db.snapshot();
    for ((keyspace, _, model), old) in cases.iter().zip(&old) {
        check(&after, keyspace, model);
        check(&before, keyspace, old);
    }
}

#[test]
fn in_one_leaf() {
    every_way(0);
}

#[test]
fn with_leaves_behind() {
    every_way(100);
}

/// For two keys, whether the tree has them, and what an older and a newer buffer do to them. Behind them there are leaves of the tree, and keys of
/// both buffers: the older one's come first, or the newer one's.
#[test]
fn over_two_buffers() {
    check_over_two_buffers([b"key a", b"key b"]);
}

/// The same where all keys of the leaf have four bytes in common, and these two twelve more.
#[test]
fn over_two_buffers_with_much_in_common() {
    check_over_two_buffers([b"key a, in common: 1", b"key a, in common: 2"]);
}

fn check_over_two_buffers(two: [&'static [u8]; 2]) {
    const WAYS: usize = 2 * CHANGES.len() * CHANGES.len();
    let (db, mut pile) = Pile::open(Options::new());
    let mut cases = Vec::new();
    for digits in sequences(2 * WAYS, two.len() as u32) {
        // Who comes first behind is one more bit of the first digit; that of the others is for nothing.
        if digits[1] >= WAYS {
            continue;
        }
        let keyspace = db.create_keyspace(&format!("{digits:?}")).unwrap();
        cases.push((keyspace, digits, Model::new()));
    }
    let fillers = fillers(100);
    for (keyspace, digits, model) in &mut cases {
        for (key, digit) in two.iter().zip(digits) {
            if digit.is_multiple_of(2) {
                model.insert(key, b"tree".to_vec());
            }
        }
        fill(&db, keyspace, model, &fillers);
    }
    db.checkpoint().unwrap();
    // One to be held up with, and one that waits.
    pile.freeze(&db);
    for buffer in 0..2 {
        for (keyspace, digits, model) in &mut cases {
            let mut txn = db.begin(&[&*keyspace]).unwrap();
            for (key, digit) in two.iter().zip(&*digits) {
                let change = digit % WAYS / 2 / CHANGES.len().pow(buffer) % CHANGES.len();
                match CHANGES[change] {
                    Change::Nothing => {}
                    Change::Put => {
                        let value = format!("buffer {buffer}").into_bytes();
                        txn.upsert(keyspace, key, &value).unwrap();
                        model.insert(key, value);
                    }
                    Change::Delete => {
                        txn.remove(keyspace, key).unwrap();
                        model.remove(key);
                    }
                }
            }
            let is_first = (digits[0] >= WAYS) == (buffer == 0);
            let behind: &'static [u8] = if is_first {
                b"key d0050 -"
            } else {
                b"key d0070 -"
            };
            txn.upsert(keyspace, behind, b"behind").unwrap();
            model.insert(behind, b"behind".to_vec());
            txn.commit().unwrap();
        }
        if buffer == 0 {
            pile.freeze(&db);
            assert!(db.stats().unwrap().frozen_buffers > 0);
        }
    }
    let snapshot = db.snapshot();
    for (keyspace, _, model) in &cases {
        check(&snapshot, keyspace, model);
    }
}

/// Runs of deleted keys, from less than a leaf to many leaves, with what interrupts them: a key that stays, one that is only in the buffer,
/// one that is put again. Snapshots from before see all of it.
#[test]
fn over_runs_of_deleted_keys() {
    const KEYS: u32 = 4_000;
    let key = |n: u32| &*format!("key {n:05}").into_bytes().leak() as &'static [u8];
    for run in [1, 2, 7, 90, 1_000, KEYS] {
        for change in 0..4 {
            let db = Options::new().in_memory().unwrap();
            let keyspace = db.create_keyspace("entries").unwrap();
            let mut model = Model::new();
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for n in (0..KEYS).step_by(2) {
                txn.upsert(&keyspace, key(n), b"tree").unwrap();
                model.insert(key(n), b"tree".to_vec());
            }
            txn.commit().unwrap();
            db.checkpoint().unwrap();
            let (before, old) = (db.snapshot(), model.clone());
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for n in (0..KEYS).step_by(2) {
                let ends_run = n % run + 2 >= run;
                if !ends_run || change == 3 {
                    txn.remove(&keyspace, key(n)).unwrap();
                    model.remove(key(n));
                } else if change == 1 {
                    txn.upsert(&keyspace, key(n + 1), b"buffer").unwrap();
                    model.insert(key(n + 1), b"buffer".to_vec());
                } else if change == 2 {
                    txn.remove(&keyspace, key(n)).unwrap();
                    txn.upsert(&keyspace, key(n), b"again").unwrap();
                    model.insert(key(n), b"again".to_vec());
                }
            }
            // Deletes of what was never there.
            for n in (1..KEYS)
                .step_by(58)
                .filter(|n| !model.contains_key(key(*n)))
            {
                txn.remove(&keyspace, key(n)).unwrap();
            }
            txn.commit().unwrap();
            for (snapshot, model) in [(db.snapshot(), &model), (before, &old)] {
                let mut ahead = model.iter();
                let mut cursor = snapshot.cursor(&keyspace).unwrap();
                let mut found = cursor.seek_first().unwrap();
                while found {
                    assert_eq!(cursor.entry(), ahead.next().map(|(k, v)| (*k, &v[..])));
                    found = cursor.next().unwrap();
                }
                assert_eq!(
                    ahead.next(),
                    None,
                    "forwards, runs of {run}, change {change}"
                );
                let mut back = model.iter().rev();
                let mut found = cursor.seek_last().unwrap();
                while found {
                    assert_eq!(cursor.entry(), back.next().map(|(k, v)| (*k, &v[..])));
                    found = cursor.prev().unwrap();
                }
                assert_eq!(
                    back.next(),
                    None,
                    "backwards, runs of {run}, change {change}"
                );
                for n in (0..KEYS).step_by(97) {
                    let (lo, hi) = (key(n), key((n * 3 + 500) % KEYS));
                    cursor.seek(lo).unwrap();
                    assert_eq!(
                        cursor.entry().map(|(k, _)| k),
                        model.range(lo..).next().map(|(k, _)| *k)
                    );
                    cursor.seek_back(lo).unwrap();
                    assert_eq!(
                        cursor.entry().map(|(k, _)| k),
                        model.range(..=lo).next_back().map(|(k, _)| *k)
                    );
                    if lo < hi {
                        let expected = model.range(lo..hi).count() as u64;
                        let mut counted = 0;
                        let each = |_: &[u8], _: &[u8]| {
                            counted += 1;
                            ControlFlow::Continue(())
                        };
                        snapshot.for_each(&keyspace, lo..hi, each).unwrap();
                        assert_eq!(counted, expected);
                        let inside = snapshot.cursor(&keyspace).unwrap().with_range(lo..hi);
                        zigzag(inside, model.range(lo..hi).map(|(k, _)| *k).collect());
                    }
                }
            }
        }
    }
}

/// A buffer has many keys in a row where the leaves of the tree, what all keys of a leaf begin with, and the bounds of a cursor end. Some values
/// there are outside of their entries, some keys are deleted, and the keys are of several lengths.
#[test]
fn where_leaves_and_bounds_end() {
    const KEYS: u32 = 450;
    let key = |n: u32| {
        // Groups begin with other bytes, of which the second one's are the end of the first one's.
        let group = [&b"a"[..], b"a/", b"b/group/of/keys/"][n as usize / 150];
        let number = format!("{:03}", n % 150);
        let tail: &[u8] = match n % 7 {
            0 => b"",
            1 => b" and a long tail behind it, of more bytes than are compared word by word",
            _ => b" tail of keys",
        };
        &*[group, number.as_bytes(), tail].concat().leak() as &'static [u8]
    };
    let value = |n: u32, of: &[u8]| match n % 150 {
        // Not within the entry.
        2 | 70 | 148 => of.repeat(20_000),
        _ => of.to_vec(),
    };
    for seldom in [2, 3, 20] {
        for way in 0..4 {
            let db = Options::new().in_memory().unwrap();
            let keyspace = db.create_keyspace("entries").unwrap();
            let mut model = Model::new();
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for n in (0..KEYS).filter(|n| (n % seldom == 0) != (way == 0)) {
                txn.upsert(&keyspace, key(n), &value(n, b"tree ")).unwrap();
                model.insert(key(n), value(n, b"tree "));
            }
            txn.commit().unwrap();
            db.checkpoint().unwrap();
            let (before, old) = (db.snapshot(), model.clone());
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for n in (0..KEYS).filter(|n| (n % seldom != 0) != (way == 0) || way == 1) {
                txn.upsert(&keyspace, key(n), &value(n, b"buffer "))
                    .unwrap();
                model.insert(key(n), value(n, b"buffer "));
            }
            for n in (0..KEYS).filter(|n| way == 2 && n % 5 == 0 || way == 3 && n % 40 < 20) {
                txn.remove(&keyspace, key(n)).unwrap();
                model.remove(key(n));
            }
            txn.commit().unwrap();
            for (snapshot, model) in [(db.snapshot(), &model), (before, &old)] {
                for (first, end) in
                    sequences(19, 2).map(|at| (25 * at[0] as u32, 25 * at[1] as u32))
                {
                    let (lo, hi) = (key(first.min(KEYS - 1)), key(end.min(KEYS - 1)));
                    if lo >= hi {
                        continue;
                    }
                    let expected: Vec<_> = model.range(lo..hi).collect();
                    let mut visited = expected.iter();
                    let visit = |key: &[u8], value: &[u8]| {
                        let (expected, expected_value) = visited.next().unwrap();
                        assert_eq!((key, value), (**expected, &expected_value[..]));
                        ControlFlow::Continue(())
                    };
                    snapshot.for_each(&keyspace, lo..hi, visit).unwrap();
                    assert_eq!(visited.next(), None);
                    let mut cursor = snapshot.cursor(&keyspace).unwrap().with_range(lo..hi);
                    let mut found = cursor.seek_first().unwrap();
                    for (key, value) in &expected {
                        assert!(found);
                        assert_eq!(cursor.entry(), Some((**key, &value[..])));
                        found = cursor.next().unwrap();
                    }
                    assert!(!found);
                    found = cursor.seek_last().unwrap();
                    for (key, value) in expected.iter().rev() {
                        assert!(found);
                        assert_eq!(cursor.entry(), Some((**key, &value[..])));
                        found = cursor.prev().unwrap();
                    }
                    assert!(!found);
                    zigzag(cursor, expected.iter().map(|(k, _)| **k).collect());
                }
            }
        }
    }
}

/// Both ends of a range, and its entries from the end: two steps back, one forward.
fn zigzag(mut cursor: psitri::Cursor<'_>, keys: Vec<&[u8]>) {
    assert_eq!(cursor.seek_first().unwrap(), !keys.is_empty());
    assert_eq!(cursor.entry().map(|(k, _)| k), keys.first().copied());
    let mut at = keys.len();
    let mut found = cursor.seek_last().unwrap();
    while let Some(before) = at.checked_sub(1) {
        assert!(found);
        assert_eq!(cursor.key(), keys[before]);
        if !cursor.prev().unwrap() {
            assert_eq!(before, 0);
            return;
        }
        assert_eq!(cursor.key(), keys[before - 1]);
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.key(), keys[before]);
        found = cursor.prev().unwrap();
        at = before;
    }
    assert!(!found);
}
