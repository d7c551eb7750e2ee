//! `Directory`: a hash table beside the radix tree, from key to entry, for point lookups.
//!
//! The radix tree keeps the order; a lookup in it costs a cache miss a level. The directory finds the entry, or its absence,
//! with one miss. It holds every entry of its buffer but those that `sequence.rs` names, or does not exist: a buffer with few entries does without
//! one, and so does one for whose table the arena has no room.
//!
//! ```text
//! slot    entry reference, `reference_bits` bits | the highest bits of the key's hash, the tag (0: empty)
//! line    64 bytes: 16 slots, two to a word of 64 bits, filled from the first one on
//! table   a power of two of lines; a search begins with the line that the lowest bits of the hash name, and goes on to
//!         the next one where a line is full; at most 13/16 full
//! ```
//! A slot has half the bytes of a hash and a reference: a table of 100,000 entries is as large as a core's second cache, where one with
//! whole hashes, half full, had four times that. What a tag says falsely costs a look at the entry: one in 256 slots as long as the arena has handed
//! out no more than 128 MiB, one in 32 at a gigabyte, one in eight at four.
//!
//! # Thread safety
//! One writer inserts and grows; any number of readers probe, without locks.
//!
//! # Invariants
//! 1. A slot is written once, with a release store of its word, after its entry is complete. The other slot of the word keeps its value.
//! 2. A table is published, with a release store, after it holds every entry of the one before. Older tables stay in the arena: a
//!    reader that still uses one misses only entries inserted after it took its snapshot.
//! 3. An entry is in the directory, or in the sequence, before any of its versions is committed.
//! 4. Every reference in a table has at most its `reference_bits`: an entry beyond them comes with a new table.
//!
//! # Failure modes
//! No room for a larger table: the directory is given up, lookups go through the tree.

use super::arena::{ARENA_BYTES_MAX, LINE_BYTES, Memory, UNIT_BYTES};
use super::byte_search::equal_slots;
use super::entry::{Entry, EntryRef};
use super::keyspace::hash_of;
use crate::sync::{AtomicU64, Ordering};

/// Entries from which a directory is too large for the nearest cache, so that it pays to leave a sequence out. Few in tests.
pub(super) const SEQUENCE_FROM: u64 = if cfg!(any(loom, debug_assertions)) {
    ENTRIES_MIN
} else {
    1 << 15
};
/// Entries from which a directory pays.
pub(super) const ENTRIES_MIN: u64 = if cfg!(loom) { 2 } else { 24 };
const LINES_MIN: u64 = if cfg!(loom) { 1 } else { 8 };
/// Words of a line that are used. Few where all interleavings are tried.
const LINE_WORDS: usize = if cfg!(loom) { 2 } else { LINE_BYTES / 8 };
const LINE_SLOTS: u32 = 2 * LINE_WORDS as u32;
/// Entries for each line of a table that is full.
const LINE_ENTRIES_MAX: u64 = LINE_SLOTS as u64 * 13 / 16;
/// References of the first 128 MiB.
const REFERENCE_BITS_MIN: u32 = 24;
const REFERENCE_BITS_MAX: u32 = (ARENA_BYTES_MAX / UNIT_BYTES).ilog2();

/// Where the table is: byte offset in the arena (a multiple of 64) with the power of two of its lines in the lowest six bits and the reference bits
/// in the highest. 0: no table.
#[derive(Debug)]
pub(super) struct Directory {
    table: AtomicU64,
}

/// A table, as found at one moment.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    memory: Memory<'a>,
    at: usize,
    line_mask: u32,
    reference_bits: u32,
}

const REFERENCE_BITS_SHIFT: u32 = 58;

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
            at: (word & ((1 << REFERENCE_BITS_SHIFT) - LINE_BYTES as u64)) as usize,
            line_mask: ((1u64 << (word & 63)) - 1) as u32,
            reference_bits: (word >> REFERENCE_BITS_SHIFT) as u32,
        })
    }

    /// Publishes a complete table (invariant 2).
    pub fn publish(&self, table: Table<'_>) {
        let power = u64::from((table.line_mask + 1).trailing_zeros());
        let reference_bits = u64::from(table.reference_bits) << REFERENCE_BITS_SHIFT;
        self.table
            .store(reference_bits | table.at as u64 | power, Ordering::Release);
    }

    /// Gives the directory up.
    pub fn give_up(&self) {
        self.table.store(0, Ordering::Release);
    }
}

/// Lines of a table for this many entries.
pub(super) fn lines_for(entries: u64) -> u64 {
    entries
        .div_ceil(LINE_ENTRIES_MAX)
        .max(LINES_MIN)
        .next_power_of_two()
}

/// Bytes of a table.
pub(super) fn table_bytes(lines: u64) -> u64 {
    lines * LINE_BYTES as u64
}

impl<'a> Table<'a> {
    /// An empty table in `table_bytes(lines)` fresh bytes at `at`: behind all that the arena has handed out, and so behind all entries so far. It has
    /// room for references up to the power of two above its end.
    pub fn create(memory: Memory<'a>, at: usize, lines: u64) -> Table<'a> {
        debug_assert!(lines.is_power_of_two() && lines <= 1 << 31 && at.is_multiple_of(LINE_BYTES));
        memory.zero(at, table_bytes(lines) as usize);
        let end = (at + table_bytes(lines) as usize) / UNIT_BYTES;
        let bits = end.ilog2() + 1;
        Table {
            memory,
            at,
            line_mask: (lines - 1) as u32,
            reference_bits: bits.clamp(REFERENCE_BITS_MIN, REFERENCE_BITS_MAX),
        }
    }

    #[inline(always)]
    fn lines(self) -> u64 {
        u64::from(self.line_mask) + 1
    }

    /// Whether so many entries, a new one among them, need another table.
    #[inline(always)]
    pub fn is_too_small(self, entries: u64, entry: EntryRef) -> bool {
        entries > self.lines() * LINE_ENTRIES_MAX || entry.0 >> self.reference_bits != 0
    }

    #[inline(always)]
    fn word(self, line: u32, index: usize) -> &'a AtomicU64 {
        self.memory
            .a64(self.at + line as usize * LINE_BYTES + index * 8)
    }

    #[inline(always)]
    fn reference_mask(self) -> u32 {
        (1 << self.reference_bits) - 1
    }

    /// Entries whose key probably has this hash: references in units.
    #[inline(always)]
    pub fn candidates(self, hash: u32) -> Candidates<'a> {
        Candidates::begin(self, hash)
    }

    /// Adds an entry that is not there yet. The table has room, and its references are large enough.
    #[inline(always)]
    pub fn insert(self, hash: u32, entry: EntryRef) {
        debug_assert!(entry.0 != 0 && entry.0 >> self.reference_bits == 0);
        let slot = u64::from(hash & !self.reference_mask() | entry.0);
        let mut line = hash & self.line_mask;
        loop {
            for index in 0..LINE_WORDS {
                let word = self.word(line, index);
                let both = word.load(Ordering::Relaxed);
                // The second slot of a word is filled after the first.
                if both >> 32 == 0 {
                    let shift = if both == 0 { 0 } else { 32 };
                    word.store(both | slot << shift, Ordering::Release);
                    return;
                }
            }
            line = (line + 1) & self.line_mask;
        }
    }

    /// Lines of the table after this one.
    pub fn lines_after(self, entries: u64) -> u64 {
        lines_for(entries).max(self.lines())
    }

    /// Copies every entry of a table before.
    pub fn insert_all(self, old: Table<'_>) {
        let entries_of = |line: u32| {
            (0..LINE_SLOTS)
                .map(move |slot| old.reference_at(line, slot))
                .take_while(|&reference| reference != 0)
                .map(|reference| Entry::of(self.memory, EntryRef(reference)))
        };
        // Their keys say the hashes; those of a line are asked for together, and arrive while the line before is copied.
        entries_of(0).for_each(|entry| entry.prefetch(0));
        for line in 0..=old.line_mask {
            if line < old.line_mask {
                entries_of(line + 1).for_each(|entry| entry.prefetch(0));
            }
            for entry in entries_of(line) {
                self.insert(hash_of(entry.key()), entry.reference());
            }
        }
    }

    /// The reference in a slot; 0 if it is empty.
    #[inline(always)]
    fn reference_at(self, line: u32, slot: u32) -> u32 {
        let both = self.word(line, slot as usize / 2).load(Ordering::Acquire);
        (both >> (32 * (slot % 2))) as u32 & self.reference_mask()
    }

    /// Asks for the cache line where the search for a hash begins.
    #[inline(always)]
    pub fn prefetch(self, hash: u32) {
        self.memory
            .prefetch(self.at + (hash & self.line_mask) as usize * LINE_BYTES);
    }
}

/// See [`Table::candidates`].
pub(super) struct Candidates<'a> {
    table: Table<'a>,
    hash: u32,
    line: u32,
    /// One bit each for the slots of the line with the tag that were not given out yet.
    equal: u32,
    /// The line has an empty slot: the search ends there.
    is_last: bool,
}

impl<'a> Candidates<'a> {
    #[inline(always)]
    fn begin(table: Table<'a>, hash: u32) -> Candidates<'a> {
        let mut candidates = Candidates {
            table,
            hash,
            line: hash & table.line_mask,
            equal: 0,
            is_last: false,
        };
        candidates.look();
        candidates
    }

    #[inline(always)]
    fn look(&mut self) {
        // Relaxed: `reference_at` acquires what is found, and whoever is to see an entry has seen a commit after its store (invariant 3).
        let words: [u64; LINE_WORDS] =
            std::array::from_fn(|index| self.table.word(self.line, index).load(Ordering::Relaxed));
        let mask = !self.table.reference_mask();
        self.equal = equal_slots(words, mask, self.hash & mask);
        self.is_last = words[LINE_WORDS - 1] >> 32 == 0;
    }
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        loop {
            if self.equal != 0 {
                let slot = self.equal.trailing_zeros();
                self.equal &= self.equal - 1;
                let reference = self.table.reference_at(self.line, slot);
                // An empty slot looks like one with tag 0, and nothing comes behind it.
                return (reference != 0).then_some(reference);
            }
            if self.is_last {
                return None;
            }
            self.line = (self.line + 1) & self.table.line_mask;
            self.look();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::Arena;

    /// A table as it is where the arena has handed out so many bytes.
    fn table(arena: &Arena, lines: u64, handed_out: u64) -> Table<'_> {
        if let Some(bytes) = handed_out.checked_sub(arena.bytes_used()) {
            arena.claim(bytes, bytes).unwrap();
        }
        let bytes = table_bytes(lines);
        let at = arena.claim(bytes, bytes).unwrap().start as usize;
        Table::create(arena.memory(), at, lines)
    }

    /// Hashes that all begin with one line, with two, or with the last line, and whose tags are 0, the same, or all there are: what was inserted
    /// is found, once, and nothing else.
    #[test]
    fn full_lines_and_equal_tags_hide_nothing() {
        let hashes: [fn(u32) -> u32; 6] = [
            |_| 0,
            |_| u32::MAX,
            |n| n % 2,
            |n| 7 | n << 24,
            |n| n.wrapping_mul(0x9e37_79b9),
            |n| n.wrapping_mul(0x9e37_79b9) & 0xff_ffff,
        ];
        let count = 8 * LINE_ENTRIES_MAX as u32;
        for largest in [1000, (1 << 24) - 1, (1 << 29) - 16] {
            let arena = Arena::new(ARENA_BYTES_MAX).unwrap();
            for hash_of in hashes {
                let room = hashes.len() as u64 * table_bytes(8);
                let handed_out = (u64::from(largest) * UNIT_BYTES as u64).saturating_sub(room);
                let table = table(&arena, 8, handed_out);
                for n in 0..count {
                    let entry = EntryRef(largest - n);
                    assert!(!table.is_too_small(u64::from(n) + 1, entry));
                    table.insert(hash_of(n), entry);
                    for old in 0..=n {
                        let found: Vec<u32> = table.candidates(hash_of(old)).collect();
                        let is_old = |it: &&u32| **it == largest - old;
                        assert_eq!(found.iter().filter(is_old).count(), 1, "{old} of {n}");
                        assert!(found.iter().all(|&it| it <= largest && it >= largest - n));
                    }
                }
                assert!(table.is_too_small(u64::from(count) + 1, EntryRef(largest)));
            }
        }
    }

    #[test]
    fn a_table_says_when_another_is_needed() {
        let arena = Arena::new(ARENA_BYTES_MAX).unwrap();
        let directory = Directory::new();
        let mut bits = REFERENCE_BITS_MIN;
        for handed_out in [0, 64 << 20, 100 << 20, 200 << 20, 1 << 30, 3 << 30] {
            let small = table(&arena, 16, handed_out);
            assert!(small.reference_bits >= bits);
            bits = small.reference_bits;
            // What was there before has its place.
            let end = (small.at / UNIT_BYTES) as u32;
            assert!(!small.is_too_small(16 * LINE_ENTRIES_MAX, EntryRef(end)));
            assert!(small.is_too_small(16 * LINE_ENTRIES_MAX + 1, EntryRef(end)));
            // A table that is full doubles; one whose references are too small has as many lines as before.
            assert_eq!(small.lines_after(16 * LINE_ENTRIES_MAX + 1), 32);
            assert_eq!(small.lines_after(1), 16);
            assert!(small.is_too_small(1, EntryRef(1 << bits)));
            directory.publish(small);
            let found = directory.table(arena.memory()).unwrap();
            let fields = |it: Table<'_>| (it.at, it.line_mask, it.reference_bits);
            assert_eq!(fields(found), fields(small));
        }
        assert_eq!(bits, REFERENCE_BITS_MAX);
        // One that lies over the limit has room for what comes behind it.
        let arena = Arena::new(ARENA_BYTES_MAX).unwrap();
        let over = table(&arena, 16, (128 << 20) - 512);
        let next = (arena.bytes_used() / UNIT_BYTES as u64) as u32;
        assert!(!over.is_too_small(1, EntryRef(next)));
        assert_eq!(lines_for(0), LINES_MIN);
        assert_eq!(lines_for(8 * LINE_ENTRIES_MAX), 8);
        assert_eq!(lines_for(8 * LINE_ENTRIES_MAX + 1), 16);
    }
}
