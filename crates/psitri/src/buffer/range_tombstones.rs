//! Range tombstones of one buffer: deletions of whole key ranges, kept beside the radix tree.
//!
//! A published set is immutable: a few sorted runs of falling length (a new tombstone is a run of one, and runs of similar length are
//! folded, as in a binary counter), each of them searched as an interval tree. Adding n tombstones costs O(n log n)
//! in time and in retained memory. Only the commit sequence number of a tombstone changes, and [what was written in it since](Written). Bounds are compared by their heads, the 8 bytes behind what all lower
//! bounds of a run begin with: a search looks at few tombstones, each of which is elsewhere in memory.
//!
//! # Thread safety
//! One writer (`add`, `stamp`, `undo`), any number of readers that neither lock nor write.
//!
//! # Invariants
//! 1. `current` leads to a set that was complete before it was published (release / acquire). Sets are freed only with
//!    the whole value, when nobody can be reading.
//! 2. A tombstone's number is `CSN_UNCOMMITTED`, then the number of its commit; or 0, which no reader ever counts, once it is undone.
//! 3. A run is sorted by lower bound.
//! 4. Where heads differ, keys differ in the same way. Of a key that does not begin with the run's prefix it is all zeros, if it is less than those that do, or all ones.
//!
//! # Failure modes
//! None but memory.
#![allow(unsafe_code)] // a published pointer to an immutable set

mod written;

use super::arena::Memory;
use super::entry::{CSN_UNCOMMITTED, Entry, EntryRef};
use crate::node::{common_prefix, head};
use crate::sync::{Arc, AtomicPtr, AtomicU64, Ordering};
pub use written::Dead;
pub(super) use written::Written;

/// More that know what was written in them would cost writers more than they save readers. Few in tests.
const KNOWN_MAX: usize = if cfg!(debug_assertions) { 12 } else { 1 << 10 };

/// Deletion of all keys in `lo..hi`.
#[derive(Debug)]
pub struct RangeTombstone {
    lo: Box<[u8]>,
    hi: Option<Box<[u8]>>,
    csn: AtomicU64,
    /// Counts the tombstones of the buffer. One writer commits one transaction after the other, so later serials never have
    /// smaller numbers.
    serial: u32,
    written: Written,
}

impl RangeTombstone {
    /// First key of the range.
    pub fn lo(&self) -> &[u8] {
        &self.lo
    }

    /// First key behind the range; `None` if it has no end.
    pub fn hi(&self) -> Option<&[u8]> {
        self.hi.as_deref()
    }

    /// Number of the commit that deleted the range; `CSN_UNCOMMITTED` before it.
    pub fn csn(&self) -> u64 {
        self.csn.load(Ordering::Acquire)
    }

    fn ends_after(&self, key: &[u8]) -> bool {
        self.hi.as_deref().is_none_or(|hi| key < hi)
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

/// A range tombstone of one buffer, for stamping or undoing it.
#[derive(Debug, Clone)]
pub struct TombstoneRef(Arc<RangeTombstone>);

impl TombstoneRef {
    pub fn tombstone(&self) -> &RangeTombstone {
        &self.0
    }
}

/// Tombstones sorted by lower bound, as an implicit balanced tree: the root of `from..to` is its middle.
#[derive(Debug)]
struct Run {
    items: Vec<Arc<RangeTombstone>>,
    /// Heads (4): of every item's lower bound, and of the end that reaches furthest of it and those before.
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
    /// Index of the item that reaches furthest, and the head of its end (4).
    furthest: u32,
    furthest_hi: u64,
}

/// What is looked for in a run.
struct Sought<'k> {
    key: &'k [u8],
    /// Of the key (4).
    head: u64,
    csn_max: u64,
    /// Every tombstone of the run that was not undone has a number of at most `csn_max`.
    sees_all: bool,
}

/// The newest tombstone found so far; serial 0 is none.
#[derive(Debug, Clone, Copy, Default)]
struct Best<'r> {
    serial: u32,
    csn: u64,
    item: Option<&'r RangeTombstone>,
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

    /// Head of a key, or of an end that there is not (4).
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

    /// The least lower bound above the key, of tombstones with a serial above `serial` and a number of at most `csn_max`.
    fn next_lo(&self, key: &[u8], serial: u32, csn_max: u64) -> Option<&[u8]> {
        let head = self.head_sought(key);
        let index = self.next_in(0, self.items.len(), key, head, serial, csn_max)?;
        Some(self.items[index].lo())
    }

    /// As [`Run::next_lo`], the index in `from..to`. No head: the key is less than all lower bounds.
    fn next_in(
        &self,
        from: usize,
        to: usize,
        key: &[u8],
        head: Option<u64>,
        serial: u32,
        csn_max: u64,
    ) -> Option<usize> {
        if !self.has_newer(from, to, serial, csn_max) {
            return None;
        }
        let middle = from + (to - from) / 2;
        if head.is_some_and(|head| self.begins(middle, key, head)) {
            return self.next_in(middle + 1, to, key, head, serial, csn_max);
        }
        self.next_in(from, middle, key, head, serial, csn_max)
            .or_else(|| self.is_newer(middle, serial, csn_max).then_some(middle))
            .or_else(|| self.next_in(middle + 1, to, key, head, serial, csn_max))
    }

    fn is_newer(&self, index: usize, serial: u32, csn_max: u64) -> bool {
        let item = &self.items[index];
        item.serial > serial && (1..=csn_max).contains(&item.csn())
    }

    /// Whether there may be one in `from..to`.
    fn has_newer(&self, from: usize, to: usize, serial: u32, csn_max: u64) -> bool {
        self.newest_serial(from, to) > serial && {
            let all = &self.subtrees[from + (to - from) / 2];
            self.item(all.oldest).csn() <= csn_max
        }
    }

    /// Raises `best` to the last end in `from..to` of those that begin before the key, with a serial above `serial` and a number of at most `csn_max`. None of
    /// them covers the key.
    fn last_end<'r>(
        &'r self,
        (from, to): (usize, usize),
        key: &[u8],
        serial: u32,
        csn_max: u64,
        best: &mut &'r [u8],
    ) {
        if !self.has_newer(from, to, serial, csn_max) {
            return;
        }
        let middle = from + (to - from) / 2;
        let furthest = self.item(self.subtrees[middle].furthest);
        if !furthest.ends_after(best) {
            return;
        }
        let item = &self.items[middle];
        if *item.lo < *key {
            self.last_end((middle + 1, to), key, serial, csn_max, best);
            let hi = item.hi().filter(|hi| hi > best);
            if let Some(hi) = hi.filter(|_| self.is_newer(middle, serial, csn_max)) {
                *best = hi;
            }
        }
        self.last_end((from, middle), key, serial, csn_max, best);
    }
}

/// One published state.
#[derive(Debug)]
struct Set {
    runs: Vec<Arc<Run>>,
    /// Those of which it is known what was written in them since, once more.
    known: Vec<Arc<Run>>,
    /// Tombstones ever added.
    serial: u32,
    older: *mut Set,
}

/// The range tombstones of a buffer. See the module text.
#[derive(Debug)]
pub(super) struct RangeTombstones {
    current: AtomicPtr<Set>,
}

// SAFETY: sets are immutable and made of `Send + Sync` parts; the pointers are owned by this value (invariant 1).
unsafe impl Send for RangeTombstones {}
// SAFETY: as above.
unsafe impl Sync for RangeTombstones {}

impl RangeTombstones {
    pub fn new() -> RangeTombstones {
        RangeTombstones {
            current: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline(always)]
    fn set(&self) -> Option<&Set> {
        let set = self.current.load(Ordering::Acquire);
        // SAFETY: null, or complete and alive as long as `self` (invariant 1).
        unsafe { set.as_ref() }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.current.load(Ordering::Acquire).is_null()
    }

    /// The newest number of at most `csn_max` of a tombstone over the key, 0 if there is none.
    #[inline(always)]
    pub fn cover(&self, key: &[u8], csn_max: u64) -> u64 {
        match self.set() {
            None => 0,
            Some(set) => set.cover(key, csn_max).csn,
        }
    }

    /// The newest tombstone over the key, of those with a number of at most `csn_max`.
    pub fn covering(&self, key: &[u8], csn_max: u64) -> Option<&RangeTombstone> {
        self.set()?.cover(key, csn_max).item
    }

    /// The least lower bound above the key, of tombstones of any number: none begins between.
    pub fn next_lo(&self, key: &[u8]) -> Option<&[u8]> {
        self.set()?.next_lo(key, 0, u64::MAX)
    }

    /// A value is about to be written to an entry. Writer only.
    #[inline(always)]
    pub fn note_written(&self, memory: Memory<'_>, entry: EntryRef) {
        if let Some(set) = self.set() {
            set.note_written(memory, entry);
        }
    }

    /// Up to where a reader who comes upon a deleted key finds nothing more in the buffer; `None` if the key is not deleted by a range, or this is not known.
    /// Costs two searches.
    pub fn dead_after<'b>(
        &'b self,
        memory: Memory<'b>,
        key: &[u8],
        csn_max: u64,
    ) -> Option<Dead<'b>> {
        let set = self.set()?;
        let Best { item, serial, .. } = set.cover(key, csn_max);
        let dead = item?.dead_after(memory, key)?;
        // Where a newer one begins, it is that which knows.
        Some(match (dead, set.next_lo(key, serial, csn_max)) {
            (Dead::Until(end), Some(lo)) => Dead::Until(end.min(lo)),
            (Dead::ToTheEnd, Some(lo)) => Dead::Until(lo),
            (dead, None) => dead,
        })
    }

    /// The same for who goes backward: there is nothing between what this gives and the key.
    pub fn dead_before<'b>(
        &'b self,
        memory: Memory<'b>,
        key: &[u8],
        csn_max: u64,
    ) -> Option<&'b [u8]> {
        let set = self.set()?;
        let Best { item, serial, .. } = set.cover(key, csn_max);
        let mut end = item?.dead_before(memory, key)?;
        for run in &set.runs {
            run.last_end((0, run.items.len()), key, serial, csn_max, &mut end);
        }
        (end < key).then_some(end)
    }

    /// Adds an uncommitted tombstone. Writer only.
    pub fn add(&self, lo: &[u8], hi: Option<&[u8]>, written: Written) -> TombstoneRef {
        let before = self.set().map_or(0, |set| set.serial);
        let serial = before.checked_add(1);
        let serial = serial.expect("a buffer's memory is less than what so many take");
        let tombstone = Arc::new(RangeTombstone {
            lo: lo.into(),
            hi: hi.map(Into::into),
            csn: AtomicU64::new(CSN_UNCOMMITTED),
            serial,
            written,
        });
        let (mut runs, mut known) = match self.set() {
            Some(set) => (set.runs.clone(), set.known.clone()),
            None => Default::default(),
        };
        fold(&mut runs, &tombstone, |_| ());
        if tombstone.written.is_known() {
            fold(&mut known, &tombstone, forget_covered);
        }
        let set = Box::into_raw(Box::new(Set {
            runs,
            known,
            serial,
            older: self.current.load(Ordering::Relaxed),
        }));
        self.current.store(set, Ordering::Release);
        TombstoneRef(tombstone)
    }

    /// Whether another one may know what is written in it.
    pub fn may_know_more(&self) -> bool {
        let known = self.set().map_or(&[][..], |set| &set.known);
        known.iter().map(|run| run.items.len()).sum::<usize>() < KNOWN_MAX
    }

    /// Gives a tombstone the number of its commit. Writer only.
    pub fn stamp(&self, tombstone: &TombstoneRef, csn: u64) {
        debug_assert!(csn != 0 && csn != CSN_UNCOMMITTED);
        tombstone.0.csn.store(csn, Ordering::Release);
    }

    /// Makes an uncommitted tombstone void. Writer only.
    pub fn undo(&self, tombstone: &TombstoneRef) {
        debug_assert_eq!(tombstone.0.csn(), CSN_UNCOMMITTED);
        tombstone.0.csn.store(0, Ordering::Release);
    }

    /// The tombstones with a number of at most `csn_max` that delete something of `lo..hi`, by lower bound in each run.
    pub fn overlapping(&self, lo: &[u8], hi: Option<&[u8]>, csn_max: u64) -> Vec<&RangeTombstone> {
        let mut found = Vec::new();
        for run in self.set().into_iter().flat_map(|set| &set.runs) {
            run.overlapping(0, run.items.len(), lo, hi, &mut found);
        }
        found.retain(|item| (1..=csn_max).contains(&item.csn()));
        found
    }

    /// All tombstones with a number of at most `csn_max`, by lower bound and number.
    pub fn list(&self, csn_max: u64) -> Vec<Arc<RangeTombstone>> {
        let mut list: Vec<_> = self
            .set()
            .into_iter()
            .flat_map(|set| &set.runs)
            .flat_map(|run| &run.items)
            .filter(|item| (1..=csn_max).contains(&item.csn()))
            .cloned()
            .collect();
        list.sort_by(|a, b| a.lo.cmp(&b.lo).then(a.csn().cmp(&b.csn())));
        list
    }
}

impl Set {
    fn cover(&self, key: &[u8], csn_max: u64) -> Best<'_> {
        cover(&self.runs, key, csn_max)
    }

    fn next_lo(&self, key: &[u8], serial: u32, csn_max: u64) -> Option<&[u8]> {
        let begins = (self.runs.iter()).filter_map(|run| run.next_lo(key, serial, csn_max));
        begins.min()
    }

    #[cold]
    fn note_written(&self, memory: Memory<'_>, entry: EntryRef) {
        let key = Entry::of(memory, entry).key();
        if let Some(item) = cover(&self.known, key, CSN_UNCOMMITTED).item {
            item.written.note(memory, entry);
        }
    }
}

#[cold]
fn cover<'r>(runs: &'r [Arc<Run>], key: &[u8], csn_max: u64) -> Best<'r> {
    let mut best = Best::default();
    // The last run holds the newest tombstones.
    for run in runs.iter().rev() {
        run.cover(key, csn_max, &mut best);
    }
    best
}

/// Adds a tombstone to runs of falling length. `thin` may take others out of those that are folded.
fn fold(
    runs: &mut Vec<Arc<Run>>,
    tombstone: &Arc<RangeTombstone>,
    thin: impl Fn(&mut Vec<Arc<RangeTombstone>>),
) {
    let mut items = vec![Arc::clone(tombstone)];
    while let Some(last) = runs.pop_if(|last| last.items.len() <= items.len()) {
        items = merge(&last.items, &items);
        thin(&mut items);
    }
    if !items.is_empty() {
        runs.push(Arc::new(Run::new(items)));
    }
}

/// Takes out what the newest committed one covers: whatever is written there is noted with that or a later one.
fn forget_covered(items: &mut Vec<Arc<RangeTombstone>>) {
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

impl Drop for RangeTombstones {
    fn drop(&mut self) {
        let mut next = self.current.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: made by `Box::into_raw` in `add`, each once, and nobody is reading any more (invariant 1).
            let set = unsafe { Box::from_raw(next) };
            next = set.older;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_undone_tombstone_covers_nothing() {
        let tombstones = RangeTombstones::new();
        let first = tombstones.add(b"b", Some(b"d"), Written::nothing());
        assert_eq!(tombstones.cover(b"c", 5), 0);
        assert_eq!(tombstones.cover(b"c", CSN_UNCOMMITTED), CSN_UNCOMMITTED);
        tombstones.undo(&first);
        assert_eq!(tombstones.cover(b"c", CSN_UNCOMMITTED), 0);
        let second = tombstones.add(b"", None, Written::nothing());
        tombstones.stamp(&second, 3);
        assert_eq!(tombstones.cover(b"c", 2), 0);
        assert_eq!(tombstones.cover(b"", 3), 3);
        assert_eq!(tombstones.list(9).len(), 1);
    }

    /// Keys in the order of numbers: of one byte; with a long prefix, and some below and above it; each the beginning of the next; with zeros behind.
    fn key_of(shape: i32, n: u8) -> Vec<u8> {
        match shape {
            0 => vec![n],
            1 if n < 10 => vec![6, n],
            1 if n < 30 => [&[7; 12][..], &[n]].concat(),
            1 => vec![8, n],
            2 => vec![0; n.into()],
            _ => [&[9; 9][..], &[n / 8], &vec![0; (n % 8).into()]].concat(),
        }
    }

    proptest! {
        #[test]
        fn covers_like_a_plain_list(
            mut ranges in prop::collection::vec((0u8..40, prop::option::weighted(0.9, 0u8..40), 0u64..30), 0..60),
            undone in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            at in 0u64..32,
            shape in 0..4,
        ) {
            let key_of = |n: u8| key_of(shape, n);
            // Numbers grow with time; 0 stands for undone.
            ranges.sort_by_key(|range| range.2);
            for index in undone {
                if !ranges.is_empty() {
                    let index = index.index(ranges.len());
                    ranges[index].2 = 0;
                }
            }
            let tombstones = RangeTombstones::new();
            for (lo, hi, csn) in &ranges {
                let hi = hi.map(key_of);
                let tombstone = tombstones.add(&key_of(*lo), hi.as_deref(), Written::nothing());
                if *csn == 0 {
                    tombstones.undo(&tombstone);
                } else {
                    tombstones.stamp(&tombstone, *csn);
                }
            }
            for key in 0u8..42 {
                let expected = ranges
                    .iter()
                    .filter(|(lo, hi, csn)| *lo <= key && hi.is_none_or(|hi| key < hi) && *csn <= at)
                    .map(|(_, _, csn)| *csn)
                    .max()
                    .unwrap_or(0);
                prop_assert_eq!(tombstones.cover(&key_of(key), at), expected);
                // Undone ones are there until their run is folded.
                let behind = ranges.iter().filter(|(lo, ..)| *lo > key);
                let next = behind.clone().filter(|(.., csn)| *csn != 0).map(|(lo, ..)| key_of(*lo)).min();
                match tombstones.next_lo(&key_of(key)).map(<[u8]>::to_vec) {
                    Some(found) => {
                        prop_assert!(next.is_none_or(|next| found <= next));
                        prop_assert!(behind.clone().any(|(lo, ..)| key_of(*lo) == found));
                    }
                    None => prop_assert_eq!(next, None),
                }
            }
            let live = ranges.iter().filter(|(_, _, csn)| (1..=at).contains(csn));
            prop_assert_eq!(tombstones.list(at).len(), live.clone().count());
            for (lo, hi) in [(0, None), (0, Some(20)), (7, Some(8)), (15, Some(40)), (41, None)] {
                let expected = live.clone().filter(|(from, to, _)| hi.is_none_or(|hi| *from < hi) && to.is_none_or(|to| lo < to));
                let hi = hi.map(key_of);
                let found = tombstones.overlapping(&key_of(lo), hi.as_deref(), at);
                prop_assert_eq!(found.len(), expected.count());
            }
        }
    }
}
