//! `Runs`: sorted runs of range tombstones, each an interval tree, and the searches in them.
//!
//! The runs are of falling length: a new tombstone is a run of one, and runs of similar length are folded, as in a binary counter. Bounds are compared by their heads, the 8 bytes behind what
//! all lower bounds of a run begin with: a search looks at few tombstones, each of which is elsewhere in memory.
//!
//! # Thread safety
//! Immutable but for the numbers of commits in tombstones.
//!
//! # Invariants
//! 1. A run is sorted by lower bound.
//! 2. Where heads differ, keys differ in the same way. Of a key that does not begin with the run's prefix it is all zeros, if it is less than those that do, or all ones.
//! 3. Serials and numbers of commits grow together, but for tombstones that were undone, which say 0.

use super::RangeTombstone;
use crate::{
    buffer::entry::CSN_UNCOMMITTED,
    node::{common_prefix, head},
    sync::Arc,
};

/// Tombstones that [`Runs::last_end`] looks at which its reader does not see. Few in tests.
const UNSEEN_MAX: u32 = if cfg!(debug_assertions) { 3 } else { 64 };

/// See the module text.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs(Vec<Arc<Run>>);

/// Tombstones sorted by lower bound, as an implicit balanced tree: the root of `from..to` is its middle.
#[derive(Debug)]
struct Run {
    items: Vec<Arc<RangeTombstone>>,
    /// Heads (2): of every item's lower bound, and of the end that reaches furthest of it and those before.
    los: Vec<u64>,
    reaches: Vec<u64>,
    /// For every item what is known of it, and of the whole subtree of which it is the middle.
    subtrees: Vec<Subtree>,
    /// How many bytes all lower bounds begin with.
    prefix_bytes: usize,
    /// Index of the item with the highest serial.
    newest: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Subtree {
    serial: u32,
    /// Highest serial in the subtree.
    serial_max: u32,
    /// Index of the item with the lowest serial.
    oldest: u32,
    /// Index of the item that reaches furthest, and the head of its end (2).
    furthest: u32,
    furthest_hi: u64,
}

/// What is looked for in a run.
struct Sought<'k> {
    key: &'k [u8],
    /// Of the key (2).
    head: u64,
    csn_max: u64,
    /// Every tombstone of the run that was not undone has a number of at most `csn_max`.
    sees_all: bool,
}

/// What is looked for beside a key: tombstones with a higher serial and a number of at most `csn_max`.
struct Newer<'k> {
    key: &'k [u8],
    serial: u32,
    csn_max: u64,
}

/// The newest tombstone found so far; serial 0 is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Best<'r> {
    pub serial: u32,
    pub csn: u64,
    pub item: Option<&'r RangeTombstone>,
}

impl Runs {
    /// Number of tombstones.
    pub fn len(&self) -> usize {
        self.0.iter().map(|run| run.items.len()).sum()
    }

    /// Takes the older half out, and returns it.
    pub fn split_off_older(&mut self) -> Vec<Arc<RangeTombstone>> {
        let mut items: Vec<_> = self.iter().cloned().collect();
        items.sort_unstable_by_key(|item| item.serial);
        let mut newer = items.split_off(items.len() / 2);
        newer.sort_by(|a, b| a.lo.cmp(&b.lo));
        self.0 = vec![Arc::new(Run::new(newer))];
        items
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<RangeTombstone>> {
        self.0.iter().flat_map(|run| &run.items)
    }

    /// Adds a tombstone. `thin` may take others out of a run that is made anew.
    pub fn add(
        &mut self,
        tombstone: &Arc<RangeTombstone>,
        thin: impl Fn(&mut Vec<Arc<RangeTombstone>>),
    ) {
        let mut items = vec![Arc::clone(tombstone)];
        while let Some(last) = (self.0).pop_if(|last| last.items.len() <= items.len()) {
            items = merge(&last.items, &items);
            thin(&mut items);
        }
        if !items.is_empty() {
            self.0.push(Arc::new(Run::new(items)));
        }
    }

    /// The newest tombstone over a key, of those with a number of at most `csn_max`.
    #[cold]
    pub fn cover(&self, key: &[u8], csn_max: u64) -> Best<'_> {
        let mut best = Best::default();
        // The last run holds the newest tombstones.
        for run in self.0.iter().rev() {
            run.cover(key, csn_max, &mut best);
        }
        best
    }

    /// The least lower bound above a key, of tombstones that are newer than `serial`, whoever sees them.
    pub fn next_lo(&self, key: &[u8], serial: u32) -> Option<&[u8]> {
        let begins = (self.0.iter()).filter_map(|run| run.next_lo(key, serial));
        begins.min()
    }

    /// Raises `end` to where none ends behind, up to a key, that begins before the key, is newer than `serial` and was committed up to `csn_max`. None of them
    /// covers the key. `None`: that was not found out.
    pub fn last_end<'r>(
        &'r self,
        key: &[u8],
        serial: u32,
        csn_max: u64,
        mut end: &'r [u8],
    ) -> Option<&'r [u8]> {
        let mut left = UNSEEN_MAX;
        for run in &self.0 {
            let newer = Newer {
                key,
                serial,
                csn_max,
            };
            run.last_end((0, run.items.len()), &newer, &mut left, &mut end)?;
        }
        Some(end)
    }

    /// Those that overlap `lo..hi`, by lower bound in each run.
    pub fn overlapping(&self, lo: &[u8], hi: Option<&[u8]>) -> Vec<&RangeTombstone> {
        let mut found = Vec::new();
        for run in &self.0 {
            run.overlapping(0, run.items.len(), lo, hi, &mut found);
        }
        found
    }
}

impl Run {
    fn new(items: Vec<Arc<RangeTombstone>>) -> Run {
        debug_assert!(items.is_sorted_by(|a, b| a.lo <= b.lo));
        let prefix_bytes = match &items[..] {
            [first, .., last] => common_prefix(&first.lo, &last.lo),
            _ => 0,
        };
        let mut run = Run {
            los: Vec::with_capacity(items.len()),
            reaches: Vec::with_capacity(items.len()),
            subtrees: vec![Subtree::default(); items.len()],
            items,
            prefix_bytes,
            newest: 0,
        };
        let mut reach = 0;
        for (index, item) in run.items.iter().enumerate() {
            reach = run.head_of(item.hi()).max(reach);
            run.reaches.push(reach);
            run.los.push(run.head_of(Some(&item.lo)));
            if run.item(run.newest).serial < item.serial {
                run.newest = index as u32;
            }
        }
        run.index(0, run.items.len());
        run
    }

    fn prefix(&self) -> &[u8] {
        self.items
            .first()
            .map_or(&[], |first| &first.lo[..self.prefix_bytes])
    }

    /// Head of a key, or of an end that there is not (2).
    fn head_of(&self, key: Option<&[u8]>) -> u64 {
        let Some(key) = key else { return u64::MAX };
        match key.strip_prefix(self.prefix()) {
            Some(rest) => head(rest),
            None if *key < *self.prefix() => 0,
            None => u64::MAX,
        }
    }

    /// Fills `subtrees` for `from..to`. Depth is the logarithm of the length.
    fn index(&mut self, from: usize, to: usize) -> Option<Subtree> {
        if from == to {
            return None;
        }
        let middle = from + (to - from) / 2;
        let item = &self.items[middle];
        let mut all = Subtree {
            serial: item.serial,
            serial_max: item.serial,
            oldest: middle as u32,
            furthest: middle as u32,
            furthest_hi: self.head_of(item.hi()),
        };
        for side in [self.index(from, middle), self.index(middle + 1, to)] {
            let Some(side) = side else { continue };
            if !reaches_further(self.item(all.furthest), self.item(side.furthest)) {
                (all.furthest, all.furthest_hi) = (side.furthest, side.furthest_hi);
            }
            all.serial_max = all.serial_max.max(side.serial_max);
            if self.item(all.oldest).serial > self.item(side.oldest).serial {
                all.oldest = side.oldest;
            }
        }
        self.subtrees[middle] = all;
        Some(all)
    }

    fn item(&self, index: u32) -> &RangeTombstone {
        &self.items[index as usize]
    }

    /// Highest serial in `from..to`.
    fn newest_serial(&self, from: usize, to: usize) -> u32 {
        if from == to {
            return 0;
        }
        self.subtrees[from + (to - from) / 2].serial_max
    }

    /// Whether the item at an index begins at or before the key.
    fn begins(&self, index: usize, key: &[u8], head: u64) -> bool {
        let order = self.los[index].cmp(&head);
        order
            .then_with(|| self.items[index].lo[..].cmp(key))
            .is_le()
    }

    /// Raises `best` to the newest tombstone with a number of at most `csn_max` among those that cover the key.
    fn cover<'r>(&'r self, key: &[u8], csn_max: u64, best: &mut Best<'r>) {
        let Some(head) = self.head_sought(key) else {
            return;
        };
        // Most keys lie in no range that was deleted; those of a log behind all of them.
        if self.reaches.last().is_none_or(|&reach| reach < head) {
            return;
        }
        let begun = self.begun_about(head);
        if begun == 0 || self.reaches[begun - 1] < head {
            return;
        }
        // Who sees the newest sees all that are older; one that was undone says 0, and nothing of others.
        let sees_all = (1..=csn_max).contains(&self.item(self.newest).csn());
        let sought = Sought {
            key,
            head,
            csn_max,
            sees_all,
        };
        self.cover_in(0, self.items.len(), &sought, best);
    }

    /// How many items begin at or before a key with this head, and those of its head that begin behind it. Without branches on what it finds.
    fn begun_about(&self, head: u64) -> usize {
        let (mut from, mut left) = (0, self.los.len());
        while left > 0 {
            let half = left.div_ceil(2);
            from += if self.los[from + half - 1] <= head {
                half
            } else {
                0
            };
            left -= half;
        }
        from
    }

    /// Head of a key that is looked for; `None` if it is less than all lower bounds.
    fn head_sought(&self, key: &[u8]) -> Option<u64> {
        (*key >= *self.prefix()).then(|| self.head_of(Some(key)))
    }

    /// As [`Run::cover`], of `from..to`. The side with the newer ones is searched first, so that many deletions of the same range cost no more than one.
    fn cover_in<'r>(&'r self, from: usize, to: usize, sought: &Sought<'_>, best: &mut Best<'r>) {
        if self.newest_serial(from, to) <= best.serial {
            return;
        }
        let middle = from + (to - from) / 2;
        let all = &self.subtrees[middle];
        let order = all.furthest_hi.cmp(&sought.head);
        if order.is_lt() || order.is_eq() && !self.item(all.furthest).ends_after(sought.key) {
            return;
        }
        // If the oldest is too new, all are. (An undone one says 0, which proves nothing and stops nothing.)
        if !sought.sees_all && self.item(all.oldest).csn() > sought.csn_max {
            return;
        }
        let begins = self.begins(middle, sought.key, sought.head);
        let item = &self.items[middle];
        if begins && all.serial > best.serial && item.ends_after(sought.key) {
            let csn = item.csn();
            if (1..=sought.csn_max).contains(&csn) {
                *best = Best {
                    serial: all.serial,
                    csn,
                    item: Some(item),
                };
            }
        }
        let left = (from, middle);
        let right = if begins { (middle + 1, to) } else { (to, to) };
        let sides = if self.newest_serial(left.0, left.1) > self.newest_serial(right.0, right.1) {
            [left, right]
        } else {
            [right, left]
        };
        for (from, to) in sides {
            self.cover_in(from, to, sought, best);
        }
    }

    /// Adds the items of `from..to` that overlap `lo..hi`.
    fn overlapping<'r>(
        &'r self,
        from: usize,
        to: usize,
        lo: &[u8],
        hi: Option<&[u8]>,
        found: &mut Vec<&'r RangeTombstone>,
    ) {
        if from == to {
            return;
        }
        let middle = from + (to - from) / 2;
        if !self.item(self.subtrees[middle].furthest).ends_after(lo) {
            return;
        }
        self.overlapping(from, middle, lo, hi, found);
        let item = &*self.items[middle];
        if hi.is_none_or(|hi| item.lo() < hi) {
            if item.ends_after(lo) {
                found.push(item);
            }
            self.overlapping(middle + 1, to, lo, hi, found);
        }
    }

    /// As [`Runs::next_lo`].
    fn next_lo(&self, key: &[u8], serial: u32) -> Option<&[u8]> {
        let index = self.next_in((0, self.items.len()), key, self.head_sought(key), serial)?;
        Some(self.items[index].lo())
    }

    /// As [`Run::next_lo`], the index in `from..to`. No head: the key is less than all lower bounds.
    fn next_in(
        &self,
        (from, to): (usize, usize),
        key: &[u8],
        head: Option<u64>,
        serial: u32,
    ) -> Option<usize> {
        if self.newest_serial(from, to) <= serial {
            return None;
        }
        let middle = from + (to - from) / 2;
        if head.is_some_and(|head| self.begins(middle, key, head)) {
            return self.next_in((middle + 1, to), key, head, serial);
        }
        let is_it = self.items[middle].serial > serial;
        self.next_in((from, middle), key, head, serial)
            .or(is_it.then_some(middle))
            .or_else(|| self.next_in((middle + 1, to), key, head, serial))
    }

    /// Whether there may be one in `from..to`.
    fn has_newer(&self, from: usize, to: usize, newer: &Newer<'_>) -> bool {
        self.newest_serial(from, to) > newer.serial && {
            let all = &self.subtrees[from + (to - from) / 2];
            self.item(all.oldest).csn() <= newer.csn_max
        }
    }

    /// As [`Runs::last_end`], in `from..to`.
    fn last_end<'r>(
        &'r self,
        (from, to): (usize, usize),
        newer: &Newer<'_>,
        left: &mut u32,
        end: &mut &'r [u8],
    ) -> Option<()> {
        if !self.has_newer(from, to, newer) {
            return Some(());
        }
        let middle = from + (to - from) / 2;
        let furthest = self.item(self.subtrees[middle].furthest);
        if !furthest.ends_after(end) {
            return Some(());
        }
        let item = &self.items[middle];
        if *item.lo < *newer.key {
            self.last_end((middle + 1, to), newer, left, end)?;
            if item.serial > newer.serial && item.ends_after(end) {
                if (1..=newer.csn_max).contains(&item.csn()) {
                    *end = item.hi()?;
                } else {
                    *left = left.checked_sub(1)?;
                }
            }
        }
        self.last_end((from, middle), newer, left, end)
    }
}

/// Takes out what the newest committed one covers: whatever is written there is noted with that or a later one.
pub(super) fn forget_covered(items: &mut Vec<Arc<RangeTombstone>>) {
    let committed = items.iter().filter(|item| item.csn() < CSN_UNCOMMITTED);
    let Some(newest) = committed.max_by_key(|item| item.serial).cloned() else {
        return;
    };
    items.retain(|item| {
        let is_covered = newest.lo <= item.lo && reaches_further(&newest, item);
        item.serial >= newest.serial || !is_covered
    });
}

/// Both sorted lists as one; undone tombstones are left out.
fn merge(a: &[Arc<RangeTombstone>], b: &[Arc<RangeTombstone>]) -> Vec<Arc<RangeTombstone>> {
    let mut merged = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if y.lo < x.lo => b.next(),
            (Some(_), _) => a.next(),
            (None, _) => b.next(),
        };
        let Some(next) = next else {
            return merged;
        };
        if next.csn() != 0 {
            merged.push(next.clone());
        }
    }
}

/// The later of two ends.
fn reaches_further(a: &RangeTombstone, b: &RangeTombstone) -> bool {
    match (&a.hi, &b.hi) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(a), Some(b)) => a >= b,
    }
}
