//! `Run`: where the last key of an ascending run was inserted, so that the next one finds its place without a search.
//!
//! The keys of a log come among others: a run is followed over some insertions that have nothing to do with it, and then given up for the key that came last.
//!
//! # Invariants
//! 1. `node` is 0, or a node that can be reached from the root, below which the last key is. Whoever replaces it says so.

use super::super::arena::Memory;
use super::super::entry::{Entry, EntryRef};
use super::super::sequence::split;

/// Insertions without a key of the run after which it is given up.
const OTHERS_MAX: u32 = 16;
/// A key further above the last one does not follow it. Decimal digits that are carried over stay below, if they are not many.
const GAP_MAX: u64 = 1 << 16;
/// How far apart the keys of a dense run are, on average. Decimal digits are further.
const SPACING_MAX: u64 = 16;
/// Keys after which a run is long. Few in tests.
const LONG: u32 = if cfg!(any(loom, debug_assertions)) {
    2
} else {
    64
};

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Its last entry, 0 if there is none.
    last: u32,
    node: u32,
    length: u32,
    /// Number of its first key.
    begin: u64,
    /// Insertions since the last one that were none of the run's.
    others: u32,
}

/// How a key stands to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It differs from the last one in the last byte, and is above it.
    Beside,
    /// It is a little above the last one.
    Near,
    Other,
}

impl Run {
    #[inline(always)]
    pub fn step(&self, memory: Memory<'_>, key: &[u8]) -> Step {
        if self.last == 0 {
            return Step::Other;
        }
        let last = Entry::of(memory, EntryRef(self.last)).key();
        if last.len() != key.len() {
            return Step::Other;
        }
        let ((rest, number), (last_rest, last_number)) = (split(key), split(last));
        let is_above = number > last_number && number - last_number <= GAP_MAX;
        if !is_above || rest != last_rest {
            return Step::Other;
        }
        if number ^ last_number < 1 << 8 {
            Step::Beside
        } else {
            Step::Near
        }
    }

    /// Above the last key; 0 if not known.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Whether there are many keys, so near to one another that the tree has few nodes for them.
    #[inline(always)]
    pub fn is_long(&self, memory: Memory<'_>) -> bool {
        self.length >= LONG && self.is_dense(memory)
    }

    #[inline(always)]
    fn is_dense(&self, memory: Memory<'_>) -> bool {
        let (_, last) = split(Entry::of(memory, EntryRef(self.last)).key());
        last - self.begin <= u64::from(self.length) * SPACING_MAX
    }

    /// A key was inserted below `node`.
    #[inline(always)]
    pub fn inserted(&mut self, memory: Memory<'_>, step: Step, entry: EntryRef, node: u32) {
        if step == Step::Other {
            self.others += 1;
            if self.last != 0 && self.others <= OTHERS_MAX {
                return;
            }
            self.length = 0;
            self.begin = split(Entry::of(memory, entry).key()).1;
        }
        (self.last, self.node, self.others) = (entry.0, node, 0);
        self.length = self.length.saturating_add(1);
    }

    /// A node was replaced by another.
    #[inline(always)]
    pub fn replaced(&mut self, node: u32, by: u32) {
        if self.node == node {
            self.node = by;
        }
    }
}
