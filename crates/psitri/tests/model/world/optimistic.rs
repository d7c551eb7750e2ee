//! Optimistic transactions, several at a time, and whether each may commit.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

use psitri::{Durability, Error, Isolation, OptimisticTxn};

use super::super::{
    keys,
    oracle::{Key, Overlay},
};
use super::{World, some_range};

const OPEN_MAX: usize = 4;

/// A transaction under way, with what its outcome depends on.
pub(super) struct Tentative {
    txn: OptimisticTxn,
    isolation: Isolation,
    /// What it sees is the state after this commit.
    step: u64,
    changes: HashMap<usize, Overlay>,
    keys: Vec<(usize, Key)>,
    ranges: Vec<(usize, Key, Option<Key>)>,
}

impl Tentative {
    /// Keyspaces whose locks its commit takes: what was read counts in one isolation only.
    fn tables(&self) -> Vec<usize> {
        let mut tables: Vec<usize> = self.changes.keys().copied().collect();
        if self.isolation == Isolation::Serializable {
            tables.extend(self.keys.iter().map(|(table, _)| *table));
            tables.extend(self.ranges.iter().map(|(table, ..)| *table));
        }
        tables
    }
}

impl World {
    /// Begins, goes on with, or ends one of the transactions that take no locks.
    pub(super) fn go_on_optimistically(&mut self) {
        if self.tentative.is_empty() || (self.tentative.len() < OPEN_MAX && self.random.percent(40))
        {
            let isolation = *(self.random).pick(&[Isolation::Serializable, Isolation::Snapshot]);
            let txn = self.db().begin_optimistic(isolation);
            self.tentative.push(Tentative {
                txn,
                isolation,
                step: self.oracle.step,
                changes: HashMap::new(),
                keys: Vec::new(),
                ranges: Vec::new(),
            });
        }
        let at = self.random.below(self.tentative.len());
        let mut tentative = self.tentative.swap_remove(at);
        for _ in 0..self.random.between(1, 6) {
            self.do_something(&mut tentative);
        }
        match self.random.below(10) {
            0 => drop(tentative),
            1..6 => self.end_optimistically(tentative),
            _ => self.tentative.push(tentative),
        }
    }

    fn do_something(&mut self, tentative: &mut Tentative) {
        // Entries that expire change without a commit.
        let known = |table: &usize| {
            let table = &self.oracle.tables[*table];
            table.expiry.is_none() && table.exists_at(tentative.step)
        };
        let tables: Vec<usize> = self.oracle.live().into_iter().filter(known).collect();
        if tables.is_empty() {
            return;
        }
        let table = *self.random.pick(&tables);
        let keyspace = self.handle(table);
        let model = &self.oracle.tables[table];
        let overlay = tentative.changes.entry(table).or_default();
        let key = self.keys.draw(&mut self.random);
        let expected = match overlay.get(&key) {
            Some(change) => *change,
            None => model.value_at(&key, tentative.step),
        };
        match self.random.below(10) {
            0..3 => {
                let found = tentative.txn.get(&keyspace, &key).unwrap();
                assert!(found == expected.map(|value| value.bytes()).as_deref());
                tentative.keys.push((table, key));
            }
            3 => {
                let (lo, hi) = some_range(&self.keys, &mut self.random);
                let inside = |key: &[u8]| key >= &lo[..] && hi.as_deref().is_none_or(|hi| key < hi);
                let mut content: Overlay = (model.at(tentative.step, 0).into_iter())
                    .map(|(key, value)| (key, Some(value)))
                    .collect();
                content.extend(overlay.iter().map(|(key, change)| (key.clone(), *change)));
                let mut wanted =
                    (content.iter()).filter(|(key, value)| inside(key) && value.is_some());
                let range = (
                    Bound::Included(&lo[..]),
                    hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
                );
                let visit = |key: &[u8], value: &[u8]| {
                    let (wanted, wanted_value) = wanted.next().expect("no more than there is");
                    let wanted_value = wanted_value.expect("filtered").bytes();
                    assert!(key == &wanted[..] && value == wanted_value, "scan");
                    ControlFlow::Continue(())
                };
                tentative.txn.for_each(&keyspace, range, visit).unwrap();
                assert!(wanted.next().is_none(), "the scan ended early");
                tentative.ranges.push((table, lo, hi));
            }
            4..6 => {
                let there = tentative.txn.remove(&keyspace, &key).unwrap();
                assert_eq!(there, expected.is_some(), "remove");
                // It says what was there: that is a read. Where nothing is there, nothing is written.
                tentative.keys.push((table, key.clone()));
                if there {
                    overlay.insert(key, None);
                }
            }
            _ => {
                let value = keys::value(&mut self.random);
                let written = tentative.txn.upsert(&keyspace, &key, &value.bytes());
                written.unwrap();
                overlay.insert(key, Some(value));
            }
        }
        if tentative.changes[&table].is_empty() {
            tentative.changes.remove(&table);
        }
    }

    /// Commits, if no lock stands in the way: it fails if, and only if, what it depends on has another value now.
    fn end_optimistically(&mut self, tentative: Tentative) {
        let free = self.free_tables();
        let tables = tentative.tables();
        let gone = tables
            .iter()
            .any(|&table| self.oracle.tables[table].dropped);
        let held = tables.iter().any(|table| !free.contains(table));
        if held && !gone {
            self.tentative.push(tentative);
            return;
        }
        if gone {
            // Refused without waiting only if nothing else is held.
            let blocked = (tables.iter())
                .any(|&table| !self.oracle.tables[table].dropped && !free.contains(&table));
            if !blocked && !tentative.changes.is_empty() {
                tentative.txn.commit().expect_err("a keyspace is gone");
            }
            return;
        }
        let is_same = |table: usize, key: &Key| {
            let model = &self.oracle.tables[table];
            let (then, now) = (model.value_at(key, tentative.step), model.now.get(key));
            then.map(|value| value.bytes()) == now.map(|value| value.bytes())
        };
        let written_same = (tentative.changes.iter())
            .all(|(&table, overlay)| overlay.keys().all(|key| is_same(table, key)));
        let read_same = tentative.isolation == Isolation::Snapshot
            || (tentative
                .keys
                .iter()
                .all(|(table, key)| is_same(*table, key))
                && tentative.ranges.iter().all(|(table, lo, hi)| {
                    self.oracle.tables[*table].is_same_since(lo, hi.as_deref(), tentative.step)
                }));
        let durability = if self.random.percent(10) {
            Durability::Sync
        } else {
            Durability::None
        };
        let may_commit = tentative.changes.is_empty() || (written_same && read_same);
        match tentative.txn.commit_with(durability) {
            Ok(()) => {
                assert!(may_commit, "committed although something had changed");
                self.oracle.commit(&tentative.changes);
            }
            Err(Error::Conflict { .. }) => assert!(!may_commit, "a conflict without a cause"),
            Err(other) => panic!("{other}"),
        }
    }
}
