//! `Directory`: a hash table beside the radix tree, from key to entry, for point lookups.
//!
//! The radix tree keeps the order; a lookup in it costs a cache miss a level. The directory finds the entry, or its absence,
//! with one miss. It holds every entry of its buffer but those that `sequence.rs` names, or does not exist: a buffer with few entries does without
//! one, and so does one for whose table the arena has no room.
//!
//! ```text
//! slot    entry reference u32 (0: empty) | hash of the key u32 << 32
//! table   a power of two of slots, linear probing, at most half full
//! ```
//!
//! # Thread safety
//! One writer inserts and grows; any number of readers probe, without locks.
//!
//! # Invariants
//! 1. A slot is written once, with a release store, after its entry is complete.
//! 2. A table is published, with a release store, after it holds every entry of the one before. Older tables stay in the arena: a
//!    reader that still uses one misses only entries inserted after it took its snapshot.
//! 3. An entry is in the directory, or in the sequence, before any of its versions is committed.
//!
//! # Failure modes
//! No room for a larger table: the directory is given up, lookups go through the tree.

use super::arena::Memory;
use crate::sync::{AtomicU64, Ordering};

/// Entries from which a directory is too large for the nearer caches, so that it pays to leave a sequence out. Few in tests.
pub(super) const SEQUENCE_FROM: u64 = if cfg!(any(loom, debug_assertions)) {
    ENTRIES_MIN
} else {
    1 << 15
};
/// Entries from which a directory pays.
pub(super) const ENTRIES_MIN: u64 = if cfg!(loom) { 2 } else { 24 };
const SLOTS_MIN: u64 = if cfg!(loom) { 8 } else { 128 };
const SLOT_BYTES: usize = 8;

/// Where the table is: byte offset in the arena (a multiple of 64), with the power of two in the low bits. 0: no table.
#[derive(Debug)]
pub(super) struct Directory {
    table: AtomicU64,
}

/// A table, as found at one moment.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    memory: Memory<'a>,
    at: usize,
    mask: u32,
}

impl Directory {
    pub fn new() -> Directory {
        Directory {
            table: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub fn table<'a>(&self, memory: Memory<'a>) -> Option<Table<'a>> {
        let word = self.table.load(Ordering::Acquire);
        (word != 0).then(|| Table {
            memory,
            at: (word & !63) as usize,
            mask: ((1u64 << (word & 63)) - 1) as u32,
        })
    }

    /// Publishes a complete table (invariant 2).
    pub fn publish(&self, table: Table<'_>) {
        let power = u64::from((table.mask + 1).trailing_zeros());
        self.table.store(table.at as u64 | power, Ordering::Release);
    }

    /// Gives the directory up.
    pub fn give_up(&self) {
        self.table.store(0, Ordering::Release);
    }
}

/// Slots of a table for this many entries.
pub(super) fn slots_for(entries: u64) -> u64 {
    (entries * 2).max(SLOTS_MIN).next_power_of_two()
}

/// Bytes of a table.
pub(super) fn table_bytes(slots: u64) -> u64 {
    slots * SLOT_BYTES as u64
}

impl<'a> Table<'a> {
    /// An empty table in `table_bytes(slots)` fresh bytes at `at`.
    pub fn create(memory: Memory<'a>, at: usize, slots: u64) -> Table<'a> {
        debug_assert!(slots.is_power_of_two() && slots <= 1 << 31 && at.is_multiple_of(64));
        memory.zero(at, table_bytes(slots) as usize);
        Table {
            memory,
            at,
            mask: (slots - 1) as u32,
        }
    }

    /// Whether one more entry makes it more than half full.
    #[inline(always)]
    pub fn is_full(self, entries: u64) -> bool {
        entries * 2 > u64::from(self.mask)
    }

    #[inline(always)]
    fn slot(self, index: u32) -> &'a AtomicU64 {
        self.memory.a64(self.at + index as usize * SLOT_BYTES)
    }

    /// Entries whose key has this hash: references in units.
    #[inline(always)]
    pub fn candidates(self, hash: u32) -> impl Iterator<Item = u32> {
        let mut index = hash & self.mask;
        std::iter::from_fn(move || {
            loop {
                let word = self.slot(index).load(Ordering::Acquire);
                if word == 0 {
                    return None;
                }
                index = (index + 1) & self.mask;
                if (word >> 32) as u32 == hash {
                    return Some(word as u32);
                }
            }
        })
    }

    /// Adds an entry that is not there yet. The table has room.
    #[inline(always)]
    pub fn insert(self, hash: u32, entry: u32) {
        debug_assert!(entry != 0);
        let mut index = hash & self.mask;
        while self.slot(index).load(Ordering::Relaxed) != 0 {
            index = (index + 1) & self.mask;
        }
        let word = u64::from(hash) << 32 | u64::from(entry);
        self.slot(index).store(word, Ordering::Release);
    }

    /// Copies every entry of a smaller table.
    pub fn insert_all(self, old: Table<'_>) {
        for index in 0..=old.mask {
            let word = old.slot(index).load(Ordering::Relaxed);
            if word != 0 {
                self.insert((word >> 32) as u32, word as u32);
            }
        }
    }

    /// Asks for the cache line where the search for a hash begins.
    #[inline(always)]
    pub fn prefetch(self, hash: u32) {
        self.memory
            .prefetch(self.at + (hash & self.mask) as usize * SLOT_BYTES);
    }
}
