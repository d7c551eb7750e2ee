//! Story: cursors that are walked at random over tree, buffers and a transaction's own writes, against a sorted map. Key spaces are small, so
//! that runs of removed keys, overwritten ones, bounds and ends of leaves collide.
//!
//! `PSITRI_SEED` is the first seed, `PSITRI_WALK_SEEDS` their number, and `PSITRI_WALK_SECONDS` how long to go on with further ones.

use crate::common::SetAtEnd;
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use crate::pile::Pile;

use psitri::{Cursor, Expiry, Keyspace, KeyspaceOptions, Options, ReadMode, Snapshot, WriteTxn};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Values, and the second at which they expire: 0 for never.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn living(model: &Model, now: u64) -> Entries {
    let is_there = |expires: u64| expires == 0 || expires > now;
    (model.iter())
        .filter(|(_, (_, expires))| is_there(*expires))
        .map(|(key, (value, _))| (key.clone(), value.clone()))
        .collect()
}

/// The keys there can be, sorted.
fn key_space(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = match rng.random_range(0..7) {
        // Everything is a prefix of something.
        0 => {
            let mut keys = vec![vec![]];
            for from in 0..rng.random_range(5..120) {
                for byte in [0, b'a', 0xff] {
                    let key: &Vec<u8> = &keys[from];
                    keys.push([&key[..], &[byte]].concat());
                }
            }
            keys
        }
        // Dense integers.
        1 => (0..rng.random_range(3..1500u32))
            .map(|n| n.to_be_bytes().to_vec())
            .collect(),
        // Fixed width, gaps, a long prefix in common.
        2 => (0..rng.random_range(3..900u32))
            .map(|n| format!("a prefix in common, {:06}", n * 37).into_bytes())
            .collect(),
        // Any length.
        3 => (0..rng.random_range(3..900))
            .map(|_| {
                let len = rng.random_range(0..40);
                (0..len)
                    .map(|_| *b"ab\0\xff".get(rng.random_range(0..4)).unwrap())
                    .collect()
            })
            .collect(),
        // Few.
        4 => (0..rng.random_range(1..8u32))
            .map(|n| vec![b'k'; n as usize])
            .collect(),
        // Few stems with much in common behind them.
        5 => (0..rng.random_range(10..900u32))
            .map(|n| {
                let stem = b"ab\xff"[n as usize % 3];
                [&[stem; 1][..], b"in common", &n.to_be_bytes()].concat()
            })
            .collect(),
        // Groups with long keys.
        _ => (0..rng.random_range(10..400u32))
            .map(|n| {
                let mut key = vec![(n / 50) as u8; 1 + (n / 50) as usize * 30];
                key.extend(format!("{}", n % 50).as_bytes());
                key
            })
            .collect(),
    };
    keys.sort();
    keys.dedup();
    keys
}

struct World {
    rng: StdRng,
    seed: u64,
    keys: Vec<Vec<u8>>,
    /// Fill of values.
    value_len: usize,
    has_large: bool,
    has_ranges: bool,
    expires: bool,
    has_pops: bool,
    written: u64,
}

impl World {
    fn key(&mut self) -> Vec<u8> {
        let at = self.rng.random_range(0..self.keys.len());
        let mut key = self.keys[at].clone();
        match self.rng.random_range(0..16) {
            0 => key.push(0),
            1 => key.push(0xff),
            2 => drop(key.pop()),
            _ => {}
        }
        key
    }

    fn bounds(&mut self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self.rng.random_range(0..8) {
            0 => (vec![], None),
            1 => (vec![], Some(self.key())),
            2 => (self.key(), None),
            3 => {
                let key = self.key();
                (key.clone(), Some(key))
            }
            4 | 5 => {
                // A few keys.
                let at = self.rng.random_range(0..self.keys.len());
                let to = at + self.rng.random_range(0..20);
                (self.keys[at].clone(), self.keys.get(to).cloned())
            }
            _ => (self.key(), Some(self.key())),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        self.written += 1;
        let mut value = self.written.to_le_bytes().to_vec();
        let len = match self.rng.random_range(0..40) {
            0 if self.has_large => self.rng.random_range(16_000..40_000),
            1 if self.has_large => self.rng.random_range(500..3000),
            2 => 0,
            _ => self.rng.random_range(0..=self.value_len),
        };
        value.resize(len, b'v');
        value
    }
}

/// Walks at random.
fn walk<'c>(w: &mut World, mut cursor: Cursor<'c>, entries: &Entries, steps: usize) -> Cursor<'c> {
    let mut done = 0;
    while done < steps {
        let (mut lo, mut hi) = (vec![], None);
        if w.rng.random_bool(0.7) {
            if w.rng.random_bool(0.2) {
                let prefix = w.key();
                let prefix = prefix[..w.rng.random_range(0..=prefix.len())].to_vec();
                cursor = cursor.with_prefix(&prefix);
                let mut end = prefix.clone();
                while end.last() == Some(&0xff) {
                    end.pop();
                }
                if let Some(last) = end.last_mut() {
                    *last += 1;
                    hi = Some(end);
                }
                lo = prefix;
            } else {
                (lo, hi) = w.bounds();
                cursor = match &hi {
                    Some(hi) => cursor.with_range(&lo[..]..&hi[..]),
                    None => cursor.with_range(&lo[..]..),
                };
            }
        } else {
            cursor = cursor.with_range(..);
        }
        assert!(!cursor.is_valid());
        let is_in = |key: &[u8]| key >= &lo[..] && hi.as_deref().is_none_or(|hi| key < hi);
        let inside: Vec<_> = entries.iter().filter(|(key, _)| is_in(key)).collect();
        let mut at: Option<usize> = None;
        let legs = w.rng.random_range(1..25);
        for _ in 0..legs {
            let what = w.rng.random_range(0..12);
            let mut times = 1;
            if what >= 4 {
                times = match w.rng.random_range(0..6) {
                    0 => 1 + inside.len() / 2,
                    1 => 40,
                    2 => 7,
                    _ => w.rng.random_range(1..4),
                };
            }
            if what == 11 {
                // To and fro.
                times = 12;
            }
            for time in 0..times {
                done += 1;
                let (found, expected, name) = match what {
                    0 => (
                        cursor.seek_first(),
                        (!inside.is_empty()).then_some(0),
                        "first",
                    ),
                    1 => (cursor.seek_last(), inside.len().checked_sub(1), "last"),
                    2 => {
                        let key = w.key();
                        let next = inside.iter().position(|(k, _)| *k >= key);
                        (cursor.seek(&key), next, "seek")
                    }
                    3 => {
                        let key = w.key();
                        let last = inside.iter().rposition(|(k, _)| *k <= key);
                        // Behind the end: the last. Before the bounds: nothing.
                        (cursor.seek_back(&key), last, "seek_back")
                    }
                    4..=6 => {
                        let next = at.map(|at| at + 1).filter(|&next| next < inside.len());
                        (cursor.next(), next, "next")
                    }
                    7..=9 => (cursor.prev(), at.and_then(|at| at.checked_sub(1)), "prev"),
                    _ if (time + what) % 3 == 0 => {
                        let next = at.map(|at| at + 1).filter(|&next| next < inside.len());
                        (cursor.next(), next, "next")
                    }
                    _ => (cursor.prev(), at.and_then(|at| at.checked_sub(1)), "prev"),
                };
                let found = found.unwrap();
                at = expected;
                let wanted = at.map(|at| (&inside[at].0[..], &inside[at].1[..]));
                if found != at.is_some() || cursor.entry() != wanted {
                    panic!(
                        "seed {}: {name} {found} {:?} instead of {:?}, in {lo:?}..{hi:?}",
                        w.seed,
                        cursor.entry().map(|(k, v)| (k, v.len())),
                        wanted.map(|(k, v)| (k, v.len()))
                    );
                }
                assert_eq!(cursor.is_valid(), found);
                if !found {
                    assert!(cursor.key().is_empty() && cursor.value().is_empty());
                    if time > 2 {
                        break;
                    }
                }
            }
        }
        done += 1;
    }
    cursor
}

/// All of it, in both directions, and ranges by `for_each`.
fn check_whole<'c>(w: &mut World, open: impl Fn() -> Cursor<'c>, entries: &Entries) {
    let mut cursor = open();
    for forward in [true, false] {
        let mut found = match forward {
            true => cursor.seek_first().unwrap(),
            false => cursor.seek_last().unwrap(),
        };
        for at in 0..entries.len() {
            let at = if forward { at } else { entries.len() - 1 - at };
            let (key, value) = &entries[at];
            assert!(found, "seed {}", w.seed);
            let expected = Some((&key[..], &value[..]));
            assert_eq!(cursor.entry(), expected, "seed {}", w.seed);
            found = match forward {
                true => cursor.next().unwrap(),
                false => cursor.prev().unwrap(),
            };
        }
        assert!(!found, "seed {}: {:?}", w.seed, cursor.key());
    }
    for _ in 0..3 {
        let (lo, hi) = w.bounds();
        let is_in = |key: &[u8]| key >= &lo[..] && hi.as_deref().is_none_or(|hi| key < hi);
        let wanted: Entries = entries.iter().filter(|(k, _)| is_in(k)).cloned().collect();
        let mut got = Vec::new();
        let ranged = match &hi {
            Some(hi) => open().with_range(&lo[..]..&hi[..]),
            None => open().with_range(&lo[..]..),
        };
        ranged
            .for_each(|key, value| {
                got.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(got == wanted, "seed {}: for_each in {lo:?}..{hi:?}", w.seed);
    }
}

fn check_snapshot(w: &mut World, snapshot: &Snapshot, keyspace: &Keyspace, entries: &Entries) {
    check_whole(w, || snapshot.cursor(keyspace).unwrap(), entries);
    let steps = w.rng.random_range(10..200);
    let cursor = snapshot.cursor(keyspace).unwrap();
    walk(w, cursor, entries, steps);
    let (lo, hi) = w.bounds();
    let inside = |key: &[u8]| key >= &lo[..] && hi.as_deref().is_none_or(|hi| key < hi);
    let counted = match &hi {
        Some(hi) => snapshot.count(keyspace, &lo[..]..&hi[..]),
        None => snapshot.count(keyspace, &lo[..]..),
    };
    let expected = entries.iter().filter(|(key, _)| inside(key)).count() as u64;
    assert_eq!(counted.unwrap(), expected, "seed {}", w.seed);
}

fn check_txn(w: &mut World, txn: &WriteTxn, keyspace: &Keyspace, entries: &Entries) {
    check_whole(w, || txn.cursor(keyspace).unwrap(), entries);
    let steps = w.rng.random_range(10..100);
    let cursor = txn.cursor(keyspace).unwrap();
    walk(w, cursor, entries, steps);
}

/// Changes a transaction and the model.
fn change(
    w: &mut World,
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    model: &mut Model,
    now: u64,
    depth: usize,
) {
    let ops = w.rng.random_range(0..8);
    for _ in 0..ops {
        let count = w.keys.len();
        let at = w.rng.random_range(0..count);
        match w.rng.random_range(0..13) {
            // A run that is removed, of what is there and of what is not.
            0..=2 => {
                let len = w.rng.random_range(1..=count.min(200));
                let step = w.rng.random_range(1..4);
                for key in w.keys[at..].iter().take(len).step_by(step) {
                    let was = model.remove(key).is_some_and(|(_, e)| e == 0 || e > now);
                    assert_eq!(txn.remove(keyspace, key).unwrap(), was, "seed {}", w.seed);
                }
            }
            3..=5 => {
                let len = match w.rng.random_range(0..3) {
                    0 => 1,
                    1 => count.min(8),
                    _ => count.min(150),
                };
                let step = w.rng.random_range(1..5);
                for key in w.keys.clone()[at..].iter().take(len).step_by(step) {
                    let value = w.value();
                    let mut expires = 0;
                    if w.expires && w.rng.random_bool(0.6) {
                        // Odd seconds; the clock is even.
                        expires = (now + w.rng.random_range(0..12)) | 1;
                        let at = Expiry::At(UNIX_EPOCH + Duration::from_secs(expires));
                        txn.upsert_expiring(keyspace, key, &value, at).unwrap();
                    } else {
                        txn.upsert(keyspace, key, &value).unwrap();
                    }
                    model.insert(key.clone(), (value, expires));
                }
            }
            6 => {
                let key = w.key();
                let value = w.value();
                txn.upsert(keyspace, &key, &value).unwrap();
                model.insert(key, (value, 0));
            }
            7 if w.has_ranges => {
                let (lo, hi) = w.bounds();
                txn.remove_range(keyspace, &lo, hi.as_deref()).unwrap();
                model.retain(|key, _| *key < lo || hi.as_ref().is_some_and(|hi| key >= hi));
            }
            8 | 9 if depth < 3 => {
                let mut changed = model.clone();
                let mut nested = txn.nested();
                change(w, &mut nested, keyspace, &mut changed, now, depth + 1);
                if w.rng.random_bool(0.4) {
                    check_txn(w, &nested, keyspace, &living(&changed, now));
                }
                if w.rng.random_bool(0.3) {
                    nested.commit();
                    *model = changed;
                } else {
                    nested.abort();
                }
                if w.rng.random_bool(0.4) {
                    check_txn(w, txn, keyspace, &living(model, now));
                }
            }
            10 if w.has_pops => {
                for _ in 0..w.rng.random_range(1..60) {
                    let is_first = w.rng.random_bool(0.7);
                    let entries = living(model, now);
                    let (popped, wanted) = if is_first {
                        (txn.pop_first(keyspace).unwrap(), entries.first())
                    } else {
                        (txn.pop_last(keyspace).unwrap(), entries.last())
                    };
                    assert_eq!(popped.as_ref(), wanted, "seed {}", w.seed);
                    let Some((key, _)) = popped else { break };
                    model.remove(&key);
                    if w.rng.random_bool(0.1) {
                        let entries = living(model, now);
                        check_txn(w, txn, keyspace, &entries);
                    }
                }
            }
            11 => check_txn(w, txn, keyspace, &living(model, now)),
            _ => {}
        }
    }
}

fn now_of(clock: &AtomicU64) -> u64 {
    clock.load(Ordering::Relaxed)
}

fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let keys = key_space(&mut rng);
    let mut w = World {
        keys,
        seed,
        value_len: *[0, 8, 60, 400].get(rng.random_range(0..4)).unwrap(),
        has_large: rng.random_bool(0.3),
        has_ranges: rng.random_bool(0.2),
        expires: rng.random_bool(0.2),
        has_pops: rng.random_bool(0.3),
        written: 0,
        rng,
    };
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let source = Arc::clone(&clock);
    let options = Options::new()
        .idle_flush(Duration::from_secs(3600))
        .buffer_bytes(16 << 20)
        .clock(move || UNIX_EPOCH + Duration::from_secs(source.load(Ordering::Relaxed)));
    let (db, mut pile) = Pile::open(options);
    let options = if w.expires {
        KeyspaceOptions::new().entries_expire()
    } else {
        KeyspaceOptions::new()
    };
    let keyspace = db.create_keyspace_with("entries", options).unwrap();
    let piles = w.rng.random_bool(0.3);
    let mut model = Model::new();
    let mut held: Vec<(Snapshot, Entries)> = Vec::new();

    // A first tree.
    let mut txn = db.begin(&[&keyspace]).unwrap();
    let density = w.rng.random_range(0.0..1.2f64).min(1.0);
    for key in w.keys.clone() {
        if w.rng.random_bool(density) {
            let value = w.value();
            txn.upsert(&keyspace, &key, &value).unwrap();
            model.insert(key, (value, 0));
        }
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();

    for _ in 0..w.rng.random_range(2..12) {
        if w.expires && w.rng.random_bool(0.5) {
            let step = 2 * w.rng.random_range(0..4);
            clock.fetch_add(step, Ordering::Relaxed);
        }
        let now = now_of(&clock);
        let is_direct = w.rng.random_bool(0.1);
        if is_direct {
            pile.release();
        } else if piles && w.rng.random_bool(0.5) {
            pile.freeze(&db);
        }
        let fresh = db.snapshot();
        fresh.get(&keyspace, b"").unwrap();
        let before = living(&model, now);
        let cursor = fresh.cursor(&keyspace).unwrap();
        let cursor = walk(&mut w, cursor, &before, 20);
        // One beside the changes.
        let mut changed = model.clone();
        {
            let mut txn = if is_direct {
                db.begin_direct(&[&keyspace]).unwrap()
            } else {
                db.begin(&[&keyspace]).unwrap()
            };
            if piles && !is_direct && w.rng.random_bool(0.3) {
                // It goes on in the frozen one.
                pile.freeze(&db);
            }
            txn.get(&keyspace, b"").unwrap();
            change(&mut w, &mut txn, &keyspace, &mut changed, now, 0);
            check_txn(&mut w, &txn, &keyspace, &living(&changed, now));
            if w.rng.random_bool(0.8) {
                txn.commit().unwrap();
                model = changed;
            } else {
                txn.abort();
            }
        }
        let cursor = walk(&mut w, cursor, &before, 20);
        if piles && w.rng.random_bool(0.3) {
            pile.freeze(&db);
        }
        let after = db.snapshot();
        after.get(&keyspace, b"").unwrap();
        let entries = living(&model, now);
        check_snapshot(&mut w, &after, &keyspace, &entries);
        if w.rng.random_bool(0.3) {
            pile.release();
            db.checkpoint().unwrap();
        }
        walk(&mut w, cursor, &before, 40);
        if !held.is_empty() && w.rng.random_bool(0.5) {
            let (snapshot, entries) = held.swap_remove(w.rng.random_range(0..held.len()));
            check_snapshot(&mut w, &snapshot, &keyspace, &entries);
            if w.rng.random_bool(0.5) {
                held.push((snapshot, entries));
            }
        }
        if w.rng.random_bool(0.5) {
            held.push((after, entries));
        }
        for mode in [ReadMode::Trie, ReadMode::Buffered] {
            if w.rng.random_bool(0.3) {
                let snapshot = db.snapshot_with(mode);
                snapshot.get(&keyspace, b"").unwrap();
                let mut all: Vec<_> = w.keys.clone();
                all.extend(model.keys().cloned());
                all.extend(
                    held.iter()
                        .flat_map(|(_, e)| e.iter().map(|(k, _)| k.clone())),
                );
                // What only they know of.
                let mut cursor = snapshot.cursor(&keyspace).unwrap();
                let mut found = cursor.seek_first().unwrap();
                while found {
                    all.push(cursor.key().to_vec());
                    found = cursor.next().unwrap();
                }
                all.sort();
                all.dedup();
                let entries: Entries = (all.into_iter())
                    .filter_map(|key| {
                        let value = snapshot.get(&keyspace, &key).unwrap()?.to_vec();
                        Some((key, value))
                    })
                    .collect();
                check_snapshot(&mut w, &snapshot, &keyspace, &entries);
            }
        }
    }
    for (snapshot, entries) in &held {
        check_snapshot(&mut w, snapshot, &keyspace, entries);
    }
}

#[test]
fn random_walks_match_a_map() {
    let first = number_from("PSITRI_SEED").unwrap_or(1);
    let seconds = number_from("PSITRI_WALK_SECONDS").unwrap_or(0);
    let least = number_from("PSITRI_WALK_SEEDS").unwrap_or(60);
    let start = Instant::now();
    let mut seed = first;
    while seed < first + least || start.elapsed() < Duration::from_secs(seconds) {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("seed {seed}");
        }
        seed += 1;
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Snapshots stay what they are while somebody writes and merges.
#[test]
fn beside_a_writer() {
    let seconds = number_from("PSITRI_WALK_SECONDS").unwrap_or(1);
    let start = Instant::now();
    let mut seed = 500;
    while seed < 503 || start.elapsed() < Duration::from_secs(seconds) {
        seed += 1;
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = key_space(&mut rng);
        let mut w = World {
            keys: keys.clone(),
            seed,
            value_len: 30,
            has_large: false,
            has_ranges: false,
            expires: false,
            has_pops: false,
            written: 0,
            rng,
        };
        let db = Options::new()
            .idle_flush(Duration::from_secs(3600))
            .in_memory()
            .unwrap();
        let keyspace = db.create_keyspace("entries").unwrap();
        let mut model = Model::new();
        for _ in 0..4 {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            change(&mut w, &mut txn, &keyspace, &mut model, 1, 0);
            txn.commit().unwrap();
            if w.rng.random_bool(0.5) {
                db.checkpoint().unwrap();
            }
        }
        let entries = living(&model, 1);
        let snapshot = db.snapshot();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = SetAtEnd(&done);
            scope.spawn(|| {
                let mut rng = StdRng::seed_from_u64(seed);
                while !done.load(Ordering::Relaxed) {
                    let mut txn = db.begin(&[&keyspace]).unwrap();
                    for _ in 0..20 {
                        let mut key = keys[rng.random_range(0..keys.len())].clone();
                        if rng.random_bool(0.3) {
                            key.push(rng.random());
                        }
                        if rng.random_bool(0.6) {
                            txn.remove(&keyspace, &key).unwrap();
                        } else {
                            txn.upsert(&keyspace, &key, b"later").unwrap();
                        }
                    }
                    if rng.random_bool(0.8) {
                        txn.commit().unwrap();
                    } else {
                        txn.abort();
                    }
                    if rng.random_bool(0.005) {
                        db.checkpoint().unwrap();
                    }
                }
            });
            let until = Instant::now() + Duration::from_millis(120);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                while Instant::now() < until {
                    check_snapshot(&mut w, &snapshot, &keyspace, &entries);
                }
            }));
            assert!(result.is_ok(), "seed {seed}");
        });
    }
}
