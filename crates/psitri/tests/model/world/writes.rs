//! Transactions that take locks, one of which may stay open beside the others, and write batches.

use std::collections::HashMap;
use std::ops::Bound;
use std::time::{Duration, UNIX_EPOCH};

use psitri::{Durability, Error, Expiry, Keyspace, WriteBatch, WriteTxn};

use super::super::{
    check,
    common::Random,
    keys::{self, Keys},
    oracle::{Entries, Overlay, Value},
};
use super::{World, some_range};

const DEPTH_MAX: usize = 3;

/// A transaction that stays open while others run.
pub(super) struct Open {
    txn: WriteTxn,
    pub(super) changes: HashMap<usize, Overlay>,
    /// When it looked at the clock.
    time: u64,
}

impl World {
    fn begin(&mut self) -> Option<Open> {
        let tables = self.some_free_tables();
        if tables.is_empty() {
            return None;
        }
        let handles: Vec<Keyspace> = tables.iter().map(|&table| self.handle(table)).collect();
        let handles: Vec<&Keyspace> = handles.iter().collect();
        let txn = if self.random.percent(20) {
            self.db().begin_direct(&handles)
        } else {
            self.db().begin(&handles)
        };
        let txn = txn.unwrap();
        for handle in handles {
            // It looks at the clock now, for all its life.
            txn.expiry(handle, b"").unwrap();
        }
        Some(Open {
            txn,
            time: self.time(),
            changes: tables.iter().map(|&t| (t, Overlay::new())).collect(),
        })
    }

    pub(super) fn transact(&mut self) {
        let Some(mut open) = self.begin() else { return };
        self.work(&mut open);
        if self.open.is_none() && self.random.percent(15) {
            self.open = Some(open);
        } else {
            self.end(open);
        }
    }

    fn work(&mut self, open: &mut Open) {
        let operations = match self.random.below(40) {
            0 => self.random.between(800, 4000),
            1..5 => self.random.between(50, 300),
            _ => self.random.between(1, 30),
        };
        let Open { txn, changes, time } = open;
        self.body(txn, changes, *time, operations, 0);
    }

    pub(super) fn end(&mut self, open: Open) {
        let Open { txn, changes, .. } = open;
        match self.random.below(10) {
            0 => txn.abort(),
            1 => drop(txn),
            2 => {
                txn.commit_with(Durability::Sync).unwrap();
                self.oracle.commit(&changes);
            }
            _ => {
                txn.commit().unwrap();
                self.oracle.commit(&changes);
            }
        }
    }

    pub(super) fn go_on_with_open(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        if self.random.percent(50) {
            self.work(&mut open);
            self.open = Some(open);
        } else {
            self.end(open);
        }
    }

    fn body(
        &mut self,
        txn: &mut WriteTxn,
        changes: &mut HashMap<usize, Overlay>,
        time: u64,
        operations: usize,
        depth: usize,
    ) {
        let mut tables: Vec<usize> = changes.keys().copied().collect();
        tables.sort_unstable();
        for _ in 0..operations {
            let table = *self.random.pick(&tables);
            let keyspace = &self.handle(table);
            let overlay = changes.get_mut(&table).unwrap();
            let model = &self.oracle.tables[table];
            let random = &mut self.random;
            let choice = random.below(1000);
            match choice {
                0..820 => {
                    let key = self.keys.draw(random);
                    let before = model.get(overlay, &key, time);
                    let mut value = keys::value(random);
                    value.expires = model.expires_by_default(time);
                    match choice {
                        0..220 if model.expiry.is_some() => {
                            let expiry = some_expiry(&mut value, time, random);
                            let bytes = value.bytes();
                            txn.upsert_expiring(keyspace, &key, &bytes, expiry).unwrap();
                            overlay.insert(key, Some(value));
                        }
                        0..440 => {
                            txn.upsert(keyspace, &key, &value.bytes()).unwrap();
                            overlay.insert(key, Some(value));
                        }
                        440..560 => match txn.insert(keyspace, &key, &value.bytes()) {
                            Ok(()) => {
                                assert!(before.is_none(), "insert of a key that exists");
                                overlay.insert(key, Some(value));
                            }
                            Err(Error::KeyExists) => assert!(before.is_some()),
                            Err(other) => panic!("{other}"),
                        },
                        560..680 => match txn.update(keyspace, &key, &value.bytes()) {
                            Ok(()) => {
                                assert!(before.is_some(), "update of a key that does not exist");
                                overlay.insert(key, Some(value));
                            }
                            Err(Error::KeyAbsent) => assert!(before.is_none()),
                            Err(other) => panic!("{other}"),
                        },
                        _ => {
                            let there = txn.remove(keyspace, &key).unwrap();
                            assert_eq!(there, before.is_some(), "remove");
                            overlay.insert(key, None);
                        }
                    }
                }
                820..824 => {
                    // Several of one key too, and none at all.
                    let mut entries = Vec::new();
                    for _ in 0..random.below(30) * random.below(30) {
                        let (key, mut value) = (self.keys.draw(random), keys::value(random));
                        let mut expiry = Expiry::Never;
                        if model.expiry.is_some() {
                            expiry = some_expiry(&mut value, time, random);
                        }
                        overlay.insert(key.clone(), Some(value));
                        entries.push((key, value.bytes(), expiry));
                    }
                    let all = entries.iter();
                    let written = match model.expiry {
                        None => txn.ingest(keyspace, all.map(|(k, v, _)| (k, v))),
                        Some(_) => txn.ingest_expiring(keyspace, all.map(|(k, v, e)| (k, v, *e))),
                    };
                    let written = written.unwrap();
                    assert_eq!(written, entries.len() as u64);
                }
                824..850 => {
                    let (lo, hi) = some_range(&self.keys, random);
                    txn.remove_range(keyspace, &lo, hi.as_deref()).unwrap();
                    model.remove_range(overlay, &lo, hi.as_deref());
                }
                850..856 if operations < 100 => {
                    let expected = model.with(overlay, time);
                    let expires = model.expires_by_default(time);
                    let keys = &self.keys;
                    read_and_write(txn, keyspace, &expected, overlay, expires, keys, random);
                }
                850..930 => {
                    let key = self.keys.near(random);
                    let wanted = model.get(overlay, &key, time).map(|value| value.bytes());
                    assert!(txn.get(keyspace, &key).unwrap() == wanted.as_deref());
                }
                930..950 if operations < 100 => {
                    let expected = model.with(overlay, time);
                    check::some(txn, keyspace, &expected, &self.keys, random);
                }
                950..1000 if depth < DEPTH_MAX => {
                    let before = changes.clone();
                    let operations = random.between(1, 12);
                    let mut nested = txn.nested();
                    self.body(&mut nested, changes, time, operations, depth + 1);
                    match self.random.below(5) {
                        0 => nested.abort(),
                        1 => drop(nested),
                        _ => {
                            nested.commit();
                            continue;
                        }
                    }
                    *changes = before;
                }
                _ => {}
            }
        }
        if operations < 100 && self.random.percent(10) {
            for &table in &tables {
                let expected = self.oracle.tables[table].with(&changes[&table], time);
                check::all(txn, &self.handle(table), &expected);
            }
        }
    }

    pub(super) fn batch(&mut self) {
        let tables = self.some_free_tables();
        if tables.is_empty() {
            return;
        }
        let mut changes: HashMap<usize, Overlay> = HashMap::new();
        let mut batch = WriteBatch::new();
        let time = self.time();
        for _ in 0..self.random.below(40) {
            let table = *self.random.pick(&tables);
            let keyspace = self.handle(table);
            let overlay = changes.entry(table).or_default();
            let random = &mut self.random;
            let key = self.keys.draw(random);
            match random.below(20) {
                0 => {
                    let (lo, hi) = some_range(&self.keys, random);
                    batch.remove_range(&keyspace, &lo, hi.as_deref());
                    self.oracle.tables[table].remove_range(overlay, &lo, hi.as_deref());
                }
                1..6 => {
                    batch.remove(&keyspace, &key);
                    overlay.insert(key, None);
                }
                _ => {
                    let mut value = keys::value(random);
                    let model = &self.oracle.tables[table];
                    if model.expiry.is_some() && random.percent(50) {
                        let expiry = some_expiry(&mut value, time, random);
                        batch.upsert_expiring(&keyspace, &key, &value.bytes(), expiry);
                    } else {
                        value.expires = model.expires_by_default(time);
                        batch.upsert(&keyspace, &key, &value.bytes());
                    }
                    overlay.insert(key, Some(value));
                }
            }
        }
        self.db().write(batch).unwrap();
        self.oracle.commit(&changes);
    }
}

/// An operation that changes what it reads.
fn read_and_write(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    expected: &Entries,
    overlay: &mut Overlay,
    expires: u64,
    keys: &Keys,
    random: &mut Random,
) {
    match random.below(4) {
        0 => {
            let key = keys.draw(random);
            let at = expected.binary_search_by(|(k, _)| k.cmp(&key)).ok();
            let before = at.map(|at| expected[at].1.bytes());
            let guess = if random.percent(70) {
                before.clone()
            } else {
                random.percent(50).then(|| b"a guess".to_vec())
            };
            let new = random.percent(70).then(|| Value {
                expires,
                ..keys::value(random)
            });
            let bytes = new.map(|value| value.bytes());
            let swapped = txn.compare_and_swap(keyspace, &key, guess.as_deref(), bytes.as_deref());
            assert_eq!(swapped.unwrap(), guess == before, "compare and swap");
            if guess == before {
                overlay.insert(key, new);
            }
        }
        1 => {
            // More of them than one, so that what was popped is passed by.
            let (mut first, mut end) = (0, expected.len());
            for _ in 0..random.between(1, 9) {
                let front = random.percent(50);
                let popped = if front {
                    txn.pop_first(keyspace).unwrap()
                } else {
                    txn.pop_last(keyspace).unwrap()
                };
                assert_eq!(popped.is_some(), first < end, "pop");
                let Some((key, value)) = popped else { break };
                let at = if front { first } else { end - 1 };
                let (wanted, wanted_value) = &expected[at];
                assert!(key == wanted[..] && value == wanted_value.bytes(), "pop");
                overlay.insert(wanted.clone(), None);
                if front { first += 1 } else { end -= 1 }
            }
        }
        which => {
            let (lo, hi) = some_range(keys, random);
            let inside = |key: &[u8]| key >= &lo[..] && hi.as_ref().is_none_or(|hi| key < &hi[..]);
            let chosen = |key: &[u8]| key.iter().fold(0u8, |sum, &b| sum.wrapping_add(b)) % 3 == 0;
            let gone: Vec<_> = (expected.iter())
                .filter(|(key, _)| inside(key) && chosen(key))
                .collect();
            let range = (
                Bound::Included(&lo[..]),
                hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            );
            if which == 2 {
                let extracted = txn.extract(keyspace, range, |key, _| chosen(key)).unwrap();
                assert_eq!(extracted.len(), gone.len(), "extract");
                for ((key, value), (wanted, wanted_value)) in extracted.iter().zip(&gone) {
                    assert!(
                        key[..] == wanted[..] && *value == wanted_value.bytes(),
                        "extract"
                    );
                }
            } else {
                let removed = txn.retain(keyspace, range, |key, _| !chosen(key)).unwrap();
                assert_eq!(removed, gone.len() as u64, "retain");
            }
            overlay.extend(gone.into_iter().map(|(key, _)| (key.clone(), None)));
        }
    }
}

/// Lets a value expire: soon, mostly.
fn some_expiry(value: &mut Value, time: u64, random: &mut Random) -> Expiry {
    let millis = random.below(60) as u64;
    let moment = UNIX_EPOCH + Duration::from_millis(time + millis);
    let (expires, expiry) = match random.below(4) {
        0 => (0, Expiry::Never),
        1 => (time + millis, Expiry::At(moment)),
        _ => (time + millis, Expiry::After(Duration::from_millis(millis))),
    };
    value.expires = expires;
    expiry
}
