//! Merges of random changes and ranges, with deltas and without, beside a map; every unit of space is accounted for after each.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::{
    pager::{DATA_FILE, PageMap, Pager, SUPERBLOCK_PAGES},
    progress::{ProgressUnit, Watch},
    storage::{MemoryStorage, OpenMode, Storage},
    tree::{self, TreeCheck, TreeCursor, verify_tree},
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % n
    }
}

struct Changes {
    entries: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    next: usize,
}

impl ChangeStream for Changes {
    fn key(&self) -> Option<&[u8]> {
        Some(&self.entries.get(self.next)?.0)
    }

    fn change(&self) -> Change<'_> {
        match &self.entries[self.next].1 {
            Some(value) => Change::Put(value),
            None => Change::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.next += 1;
        Ok(())
    }

    fn len_max(&self) -> u64 {
        self.entries.len() as u64
    }
}

struct World {
    pager: Pager,
    version: u64,
    trees: Vec<(Root, Model)>,
    random: Random,
}

fn key(n: usize) -> Vec<u8> {
    match n % 3 {
        0 => format!("key {n:05}").into_bytes(),
        1 => [b"key ", &(n as u32).to_be_bytes()[..]].concat(),
        _ => vec![b'k'; n % 40 + 1],
    }
}

impl World {
    fn new(seed: u64) -> World {
        let file = MemoryStorage::new()
            .open(DATA_FILE, OpenMode::Create)
            .unwrap();
        let pages = SUPERBLOCK_PAGES;
        file.allocate(0, pages * node::PAGE_BYTES as u64).unwrap();
        World {
            pager: Pager::new(file, PageMap::new(pages), 0, 1 << 26, 0, true).unwrap(),
            version: 0,
            trees: vec![(Root::default(), Model::new())],
            random: Random(seed),
        }
    }

    fn publish(&mut self, mut changes: crate::pager::Changes) {
        self.version += 1;
        self.pager.publish(self.version, &mut changes);
        self.pager.set_durable(self.version);
        self.pager.reclaim(&[self.version], &[]);
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(12) {
            0 => 0,
            1 => 600,
            2..=4 => 200,
            n => n,
        };
        vec![self.random.below(256) as u8; len]
    }

    fn merge(&mut self, index: usize) {
        let (root, mut model) = self.trees[index].clone();
        let keys = [40, 3_000, 3_000][self.random.below(3)];
        let mut changes = BTreeMap::new();
        let count_max = [5, 60, 60, 900][self.random.below(4)];
        for _ in 0..self.random.below(count_max) + 1 {
            let value = (self.random.below(3) > 0).then(|| self.value());
            changes.insert(key(self.random.below(keys)), value);
        }
        let mut ranges = Vec::new();
        if self.random.below(8) == 0 {
            let mut ends = [key(self.random.below(keys)), key(self.random.below(keys))];
            ends.sort();
            let [lo, hi] = ends;
            let range = match self.random.below(3) {
                0 => KeyRange {
                    lo: vec![],
                    hi: Some(hi),
                },
                1 => KeyRange { lo, hi: None },
                _ => KeyRange { lo, hi: Some(hi) },
            };
            model.retain(|key, _| *key < range.lo || range.hi.as_ref().is_some_and(|hi| key >= hi));
            ranges.push(range);
        }
        for (key, value) in &changes {
            match value {
                Some(value) => drop(model.insert(key.clone(), value.clone())),
                None => drop(model.remove(key)),
            }
        }
        let terms = Terms {
            now: 0,
            is_pressed: self.random.below(8) > 0,
            brings_back: self.random.below(2) == 0,
            empties_pages: self.random.below(2) == 0,
        };
        let mut stream = Changes {
            entries: changes.into_iter().collect(),
            next: 0,
        };
        let mut sink = Sink::new(&self.pager, self.version + 1);
        let root = merge(&mut sink, root, &ranges, &mut stream, terms).unwrap();
        let changes = sink.finish().unwrap();
        self.publish(changes);
        self.trees[index] = (root, model);
    }

    fn rewrite(&mut self, index: usize) {
        let from = self.random.below(self.pager.page_end() as usize) as u64;
        let what = [Rewrite::Leaves, Rewrite::From(from)][self.random.below(2)];
        self.rewrite_as(index, what);
    }

    /// Puts deltas into their leaves, some at a time, until there are none that may be.
    fn tidy(&mut self, index: usize) {
        let mut slices = 0;
        loop {
            let before = self.trees[index].0;
            let bytes_max = [1, 20_000][self.random.below(2)];
            self.rewrite_as(index, Rewrite::Deltas { bytes_max });
            if self.trees[index].0 == before {
                break;
            }
            slices += 1;
            assert!(slices < 2_000, "it gets nowhere");
        }
        let root = self.trees[index].0;
        assert!(self.trees.len() > 1 || !root.node.has_deltas());
    }

    /// Merges these keys with another value each.
    fn overwrite(&mut self, index: usize, keys: impl Iterator<Item = u32>, is_pressed: bool) {
        let (root, mut model) = self.trees[index].clone();
        let value = vec![self.version as u8; 100];
        let entries: Vec<_> = keys
            .map(|key| (key.to_be_bytes().to_vec(), Some(value.clone())))
            .collect();
        for (key, _) in &entries {
            model.insert(key.clone(), value.clone());
        }
        let mut stream = Changes { entries, next: 0 };
        let terms = Terms {
            is_pressed,
            ..Terms::default()
        };
        let mut sink = Sink::new(&self.pager, self.version + 1);
        let root = merge(&mut sink, root, &[], &mut stream, terms).unwrap();
        let changes = sink.finish().unwrap();
        self.publish(changes);
        self.trees[index] = (root, model);
    }

    fn rewrite_as(&mut self, index: usize, what: Rewrite) {
        let mut sink = Sink::new(&self.pager, self.version + 1);
        let mut watch = Watch::new("", None, ProgressUnit::Bytes);
        let root = rewrite(&mut sink, self.trees[index].0, what, 0, &mut watch).unwrap();
        let changes = sink.finish().unwrap();
        self.publish(changes);
        self.trees[index].0 = root;
    }

    fn clone_tree(&mut self, index: usize) {
        let tree = self.trees[index].clone();
        self.pager.shares.refer(tree.0, &mut Vec::new());
        self.trees.push(tree);
    }

    fn drop_tree(&mut self, index: usize) {
        let (root, _) = self.trees.swap_remove(index);
        let mut sink = Sink::new(&self.pager, self.version + 1);
        tree::kill_tree(&mut sink, root.node).unwrap();
        let changes = sink.finish().unwrap();
        self.publish(changes);
    }

    fn check(&mut self) -> u64 {
        let mut watch = Watch::new("", None, ProgressUnit::Bytes);
        let mut check = TreeCheck::new(self.pager.shares.counts(), u64::MAX, &mut watch);
        for (root, model) in &self.trees {
            assert_eq!(root.keys, model.len() as u64);
            verify_tree(&self.pager, *root, &mut check).unwrap();
        }
        assert_eq!(check.wrong_count(), None);
        let mut used = HashMap::new();
        for extent in &check.extents {
            for (page, units) in extent.parts() {
                *used.entry(page).or_insert(0) += units;
            }
        }
        for (page, units) in self.pager.live_units().into_iter().enumerate() {
            assert_eq!(used.get(&page).copied().unwrap_or(0), units, "page {page}");
        }
        let deltas = check.deltas;
        for (root, model) in &self.trees {
            let mut cursor = TreeCursor::new(&self.pager, *root);
            let mut found = cursor.seek_ge(&[]).unwrap();
            for (rank, (key, value)) in model.iter().enumerate() {
                assert!(found);
                assert_eq!(cursor.key(), key);
                assert_eq!(self.read(cursor.value()), value);
                assert_eq!(tree::rank(&self.pager, *root, key).unwrap(), rank as u64);
                found = cursor.next().unwrap();
            }
            assert!(!found);
            found = cursor.seek_lt(None).unwrap();
            for (key, value) in model.iter().rev() {
                assert!(found);
                assert_eq!(
                    (cursor.key(), self.read(cursor.value())),
                    (&**key, &**value)
                );
                found = cursor.prev().unwrap();
            }
            assert!(!found);
        }
        let (root, model) = &self.trees[0];
        for _ in 0..50 {
            let key = key(self.random.below(3_000));
            let found = tree::get(&self.pager, *root, &key).unwrap();
            assert_eq!(
                found.map(|stored| self.read(stored)),
                model.get(&key).map(Vec::as_slice)
            );
            let mut cursor = TreeCursor::new(&self.pager, *root);
            let found = cursor.seek_ge(&key).unwrap().then(|| cursor.key().to_vec());
            assert_eq!(
                found.as_ref(),
                model.range(key.clone()..).next().map(|(key, _)| key)
            );
            let found = cursor
                .seek_lt(Some(&key))
                .unwrap()
                .then(|| cursor.key().to_vec());
            assert_eq!(
                found.as_ref(),
                model.range(..key.clone()).next_back().map(|(key, _)| key)
            );
            let rank = tree::rank(&self.pager, *root, &key).unwrap();
            assert_eq!(rank as usize, model.range(..key).count());
            let mut nth = Vec::new();
            let is_there = tree::nth(&self.pager, *root, rank, &mut nth).unwrap();
            assert_eq!(is_there.then_some(&nth), model.keys().nth(rank as usize));
        }
        deltas
    }

    fn read<'a>(&'a self, stored: Stored<'a>) -> &'a [u8] {
        match stored {
            Stored::Inline(value) => value,
            Stored::External(pointer) => self.pager.value(&pointer).unwrap(),
        }
    }
}

#[test]
fn whatever_goes_where_the_tree_is_that_of_the_map() {
    let mut deltas = 0;
    for seed in 1..=60 {
        deltas::at_random::LOT.set(seed);
        let mut world = World::new(seed);
        for _ in 0..60 {
            let index = world.random.below(world.trees.len());
            match world.random.below(20) {
                0 => world.rewrite(index),
                3 => world.tidy(index),
                1 if world.trees.len() < 4 => world.clone_tree(index),
                2 if world.trees.len() > 1 => world.drop_tree(index),
                _ => world.merge(index),
            }
            deltas += world.check();
        }
    }

    assert!(deltas > 1_000, "only {deltas} deltas were there to check");
}

/// Deltas that a clone shares stay, and so do the inner nodes above them that only lead to such. Those behind them are reached all the same.
#[test]
fn deltas_that_must_stay_are_not_in_the_way() {
    const KEYS: u32 = 200_000;
    let mut world = World::new(1);
    world.overwrite(0, 0..KEYS, false);
    // More than are patched.
    world.overwrite(0, (0..KEYS).step_by(300), true);
    let made = world.check();
    assert!(made > 100, "{made} deltas");
    world.clone_tree(0);
    // All inner nodes are the original's own again, and the last deltas are nobody else's.
    world.overwrite(0, (0..KEYS).step_by(4_000), false);
    world.overwrite(1, KEYS - KEYS / 10..KEYS, false);
    let before = world.check();
    world.tidy(0);
    let after = world.check();
    assert!(after < before - 10, "{before} deltas, {after} left");
    assert!(after > 50, "only {after} deltas are shared");
    world.drop_tree(1);
    world.tidy(0);
    assert_eq!(world.check(), 0);
}

/// Places a delta with one new key in front of whatever is at `base`.
fn place_delta(sink: &mut Sink<'_>, base: NodeRef) -> NodeRef {
    let mut packer = node::DeltaPacker::default();
    packer.push(b"m", Stored::Inline(b"1"), node::Mark::New);
    sink.place(packer.finish(base, 2, 0).unwrap()).unwrap()
}

#[test]
fn what_is_no_leaf_behind_a_delta_is_damage() {
    let world = World::new(1);
    let mut sink = Sink::new(&world.pager, 1);
    let first = place_delta(&mut sink, NodeRef::NULL);
    // Each in front of the next one, the last in front of itself.
    let next = |at: NodeRef| {
        NodeRef::new(at.page(), at.offset_units() + at.units(), at.units()).with_deltas(true)
    };
    let second = place_delta(&mut sink, next(next(first)));
    let third = place_delta(&mut sink, next(next(first)));
    assert_eq!(third, next(second));
    sink.finish().unwrap();
    for node in [first, second, third] {
        let root = Root { node, keys: 2 };
        let mut watch = Watch::new("", None, ProgressUnit::Bytes);
        let mut check = TreeCheck::new(HashMap::new(), u64::MAX, &mut watch);
        assert!(verify_tree(&world.pager, root, &mut check).is_err());
        assert!(tree::get(&world.pager, root, b"a").is_err());
        assert!(tree::rank(&world.pager, root, b"z").is_err());
        assert!(TreeCursor::new(&world.pager, root).seek_lt(None).is_err());
        let mut changes = Changes {
            entries: vec![(b"a".to_vec(), None)],
            next: 0,
        };
        let mut sink = Sink::new(&world.pager, 2);
        assert!(merge(&mut sink, root, &[], &mut changes, Terms::default()).is_err());
    }
    // A reference that is too short to the same node finds the same entries.
    let short = Root {
        node: NodeRef::new(first.page(), first.offset_units(), 1),
        keys: 2,
    };
    let found = tree::get(&world.pager, short, b"m").unwrap();
    assert_eq!(found, Some(Stored::Inline(b"1")));
}
