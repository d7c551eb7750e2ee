//! Range tombstones of one buffer: deletions of whole key ranges, kept beside the radix tree.
//!
//! A published set is immutable: a few [sorted runs](Runs). Adding n tombstones costs O(n log n) in time and in retained memory. Only the commit sequence number of a tombstone changes,
//! and [what was written in it since](Written).
//!
//! # Thread safety
//! One writer (`add`, `stamp`, `undo`), any number of readers that neither lock nor write.
//!
//! # Invariants
//! 1. `current` leads to a set that was complete before it was published (release / acquire). Sets are freed only with
//!    the whole value, when nobody can be reading.
//! 2. A tombstone's number is `CSN_UNCOMMITTED`, then the number of its commit; or 0, which no reader ever counts, once it is undone.
//!
//! # Failure modes
//! None but memory.
#![allow(unsafe_code)] // a published pointer to an immutable set

mod run;
mod written;

use super::arena::Memory;
use super::entry::{CSN_UNCOMMITTED, Entry, EntryRef};
use crate::sync::{Arc, AtomicPtr, AtomicU64, Ordering};
use run::{Best, Runs, forget_covered};
pub use written::Dead;
pub(super) use written::Written;

/// More that know what was written in them would cost writers more than they save readers: the older ones forget it. Few in tests.
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

/// A range tombstone of one buffer, for stamping or undoing it.
#[derive(Debug, Clone)]
pub struct TombstoneRef(Arc<RangeTombstone>);

impl TombstoneRef {
    pub fn tombstone(&self) -> &RangeTombstone {
        &self.0
    }
}

/// One published state.
#[derive(Debug)]
struct Set {
    all: Runs,
    /// Those of which it is known what was written in them since.
    known: Runs,
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
            Some(set) => set.all.cover(key, csn_max).csn,
        }
    }

    /// The newest tombstone over the key, of those with a number of at most `csn_max`.
    pub fn covering(&self, key: &[u8], csn_max: u64) -> Option<&RangeTombstone> {
        self.set()?.all.cover(key, csn_max).item
    }

    /// The least lower bound above the key, of tombstones of any number: none begins between.
    pub fn next_lo(&self, key: &[u8]) -> Option<&[u8]> {
        self.set()?.all.next_lo(key, 0)
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
        let all = &self.set()?.all;
        let Best { item, serial, .. } = all.cover(key, csn_max);
        let dead = item?.dead_after(memory, key)?;
        // Where a newer one begins, it is that which knows.
        Some(match (dead, all.next_lo(key, serial)) {
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
        let all = &self.set()?.all;
        let Best { item, serial, .. } = all.cover(key, csn_max);
        let end = item?.dead_before(memory, key)?;
        let end = all.last_end(key, serial, csn_max, end)?;
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
        let (mut all, mut known) = match self.set() {
            Some(set) => (set.all.clone(), set.known.clone()),
            None => Default::default(),
        };
        all.add(&tombstone, |_| ());
        if tombstone.written.is_known() {
            if known.len() >= KNOWN_MAX {
                for older in known.split_off_older() {
                    older.written.forget();
                }
            }
            known.add(&tombstone, forget_covered);
        }
        let set = Box::into_raw(Box::new(Set {
            all,
            known,
            serial,
            older: self.current.load(Ordering::Relaxed),
        }));
        self.current.store(set, Ordering::Release);
        TombstoneRef(tombstone)
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
        let Some(set) = self.set() else {
            return Vec::new();
        };
        let mut found = set.all.overlapping(lo, hi);
        found.retain(|item| (1..=csn_max).contains(&item.csn()));
        found
    }

    /// All tombstones with a number of at most `csn_max`, by lower bound and number.
    pub fn list(&self, csn_max: u64) -> Vec<Arc<RangeTombstone>> {
        let all = self.set().into_iter().flat_map(|set| set.all.iter());
        let seen = all.filter(|item| (1..=csn_max).contains(&item.csn()));
        let mut list: Vec<_> = seen.cloned().collect();
        list.sort_by(|a, b| a.lo.cmp(&b.lo).then(a.csn().cmp(&b.csn())));
        list
    }
}

impl Set {
    #[cold]
    fn note_written(&self, memory: Memory<'_>, entry: EntryRef) {
        let key = Entry::of(memory, entry).key();
        if let Some(item) = self.known.cover(key, CSN_UNCOMMITTED).item {
            item.written.note(memory, entry);
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
