//! Where the keys of a tree are: a table of hashes beside it, for lookups of single keys.
//!
//! A lookup that begins at the root waits for memory at each level that is in no cache, and searches each node. Where a tree is asked often
//! while it stays the same, the merge thread makes a table that says in which leaf a key is and where: a lookup then waits for a line of the
//! table, and for the lines of the entry, which arrive side by side.
//!
//! # Thread safety
//! A table is immutable. [`Lookups`] is shared by all states with the same root; its table is made once, while readers go on without it.
//!
//! # Invariants
//! (1) A table belongs to the tree that it was made of: who may read the root may follow the table, and no page that it names is written to
//!     meanwhile. A keyspace with another root has other [`Lookups`].
//! (2) Each key of the tree is in the first bucket that has room, from where its hash says on. So it is in none behind the first that is not
//!     full, and what is not found up to there is not in the tree; unless the table is not complete, as leaves of more than a page, and those
//!     behind the first tebibyte, have no room in a slot.
//! (3) What a slot says of a key is checked in the leaf: another key may have the same hash. Only that the leaf is one of the tree is taken
//!     from it.
//!
//! # Failure modes
//! Without memory, within [`Options::lookup_table_bytes`](crate::Options::lookup_table_bytes) or at all, there is no table. A leaf that cannot be read ends the making of it.

use std::{cell::Cell, ops::ControlFlow, sync::OnceLock};

use crate::{
    Result,
    buffer::{PREFETCH_KEYS_MAX, wide_hash_of},
    engine::{Engine, Signals},
    node::{Leaf, NodeRef, Stored},
    pager::Pager,
    prefetch,
    sync::{Arc, AtomicU64, Ordering, OwnLines},
    tree::{self, Root},
};

/// Lookups are counted in steps of so many by each thread.
const COUNTED: u64 = 64;
/// A tree of fewer keys is in the caches, or does not matter.
const KEYS_MIN: u64 = 1_000;

const SLOTS: usize = 8;
/// Of 16 slots that there are, so many are taken.
const TAKEN_OF_16: u64 = 11;
/// Keys whose buckets are asked for at once as a table is made.
const BATCH: usize = 32;

/// Bits of a slot, from the highest on: page, place in it, length, line of the entry, index, tag.
const PAGE_BITS: u32 = 28;
const UNIT_BITS: u32 = 6;
const INDEX_BITS: u32 = 9;
const TAG_BITS: u32 = 9;
const _: () = assert!(PAGE_BITS + 3 * UNIT_BITS + INDEX_BITS + TAG_BITS == 64);
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// An entry of a leaf that has more: it is looked for there.
const INDEX_UNKNOWN: usize = (1 << INDEX_BITS) - 1;

/// Lines of a leaf with its header and its fingerprints, and of an entry.
const HEAD_LINES: usize = 3;
const ENTRY_LINES: usize = 3;

/// How often a tree was asked for a key, and its table once that was often enough.
#[derive(Default)]
pub(crate) struct Lookups {
    table: OnceLock<LookupTable>,
    counted: OwnLines<AtomicU64>,
}

/// What all tables of a database take, and who makes them.
#[derive(Default)]
pub(crate) struct LookupBoard {
    bytes: Arc<AtomicU64>,
    maker: OnceLock<Arc<Signals>>,
}

pub(crate) struct LookupTable {
    buckets: Box<[Bucket]>,
    is_complete: bool,
    /// Of the board.
    bytes: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// Where an entry is: a slot, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    leaf: NodeRef,
    line: usize,
    index: usize,
}

/// Makes the tables that lookups have asked for, until there is something to merge.
pub(crate) fn make_tables(engine: &Engine) {
    // Who wants one from now on is heard in the next round.
    let is_wanted = &engine.signals.are_tables_wanted;
    is_wanted.swap(false, Ordering::Acquire);
    let state = engine.states.current();
    let is_stopped = || {
        let signals = engine.signals.lock.lock();
        signals.stopping || signals.merge_wanted
    };
    for keyspace in state.keyspaces.iter().flatten() {
        if let Some(lookups) = &keyspace.lookups {
            let bytes_max = engine.options.lookup_table_bytes;
            lookups.make_table(&engine.pager, keyspace.root, bytes_max, is_stopped);
        }
    }
}

impl Lookups {
    /// For a tree that is new, if it is large enough.
    pub fn of(root: Root) -> Option<Arc<Lookups>> {
        (root.keys >= KEYS_MIN).then(Arc::default)
    }

    /// The stored value of `key` in the tree of this root.
    #[inline]
    pub fn get<'a>(&self, pager: &'a Pager, root: Root, key: &[u8]) -> Result<Option<Stored<'a>>> {
        match self.table.get() {
            Some(table) => table.get(pager, root, key),
            None => {
                self.count(pager, root);
                tree::get(pager, root, key)
            }
        }
    }

    /// Asks for what lookups of these keys (one bit each in `wanted`) will need.
    pub fn prefetch(&self, pager: &Pager, root: Root, keys: &[&[u8]], wanted: u32) {
        match self.table.get() {
            Some(table) => table.prefetch(pager, keys, wanted),
            None => tree::prefetch(pager, root, keys, wanted),
        }
    }

    #[inline(always)]
    fn count(&self, pager: &Pager, root: Root) {
        thread_local! {
            static COUNT: Cell<u64> = const { Cell::new(0) };
        }
        let count = COUNT.get() + 1;
        COUNT.set(count);
        if count.is_multiple_of(COUNTED) {
            self.add_counted(&pager.lookups, root.keys);
        }
    }

    #[cold]
    fn add_counted(&self, board: &LookupBoard, keys: u64) {
        let before = self.counted.fetch_add(COUNTED, Ordering::Relaxed);
        if before < keys && before + COUNTED >= keys {
            board.want();
        }
    }

    /// A key is put into a table in about the time that a lookup wins by it.
    fn is_wanted(&self, keys: u64) -> bool {
        self.table.get().is_none() && self.counted.load(Ordering::Relaxed) >= keys
    }

    /// Makes the table of a tree that the caller has pinned, if it is wanted and takes no more than `bytes_max` together with the others.
    /// Gives up where `is_stopped` says so.
    pub fn make_table(
        &self,
        pager: &Pager,
        root: Root,
        bytes_max: u64,
        is_stopped: impl Fn() -> bool,
    ) {
        if !self.is_wanted(root.keys) {
            return;
        }
        // Whatever comes of it, it is not tried again for the next lookups.
        self.counted.store(0, Ordering::Relaxed);
        if let Some(table) = LookupTable::make(pager, root, bytes_max, is_stopped) {
            let _ = self.table.set(table);
        }
    }
}

impl LookupBoard {
    /// Wakes the merge thread from now on when a table is wanted.
    pub fn let_wake(&self, merge_thread: &Arc<Signals>) {
        let _ = self.maker.set(Arc::clone(merge_thread));
    }

    fn want(&self) {
        if let Some(signals) = self.maker.get() {
            // With the count before it.
            signals.are_tables_wanted.store(true, Ordering::Release);
            signals.work.notify_all();
        }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl LookupTable {
    fn make(
        pager: &Pager,
        root: Root,
        bytes_max: u64,
        is_stopped: impl Fn() -> bool,
    ) -> Option<LookupTable> {
        let slots = root.keys.checked_mul(16)?.div_ceil(TAKEN_OF_16);
        // One more than there are entries, so that a search comes to an end.
        let buckets = slots / SLOTS as u64 + 1;
        let size = buckets.checked_mul(size_of::<Bucket>() as u64)?;
        if pager.lookups.bytes().saturating_add(size) > bytes_max || buckets > 1 << 32 {
            return None;
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(buckets as usize).ok()?;
        memory.resize(buckets as usize, Bucket::default());
        let bytes = Arc::clone(&pager.lookups.bytes);
        bytes.fetch_add(size, Ordering::Relaxed);
        let mut table = LookupTable {
            buckets: memory.into(),
            is_complete: true,
            bytes,
        };
        let mut left = root.keys;
        let mut fill = Fill::new(&mut table);
        tree::each_leaf(pager, root, &mut |at, leaf| {
            // The counts of a damaged file may be wrong; a full table would be searched for ever.
            left = match left.checked_sub(leaf.len() as u64) {
                Some(left) if !is_stopped() => left,
                _ => return ControlFlow::Break(()),
            };
            fill.leaf(at, leaf);
            ControlFlow::Continue(())
        })
        .ok()?
        .continue_value()?;
        fill.flush();
        Some(table)
    }

    #[inline]
    fn get<'a>(&self, pager: &'a Pager, root: Root, key: &[u8]) -> Result<Option<Stored<'a>>> {
        let hash = wide_hash_of(key);
        let mut at = self.first(hash);
        loop {
            let bucket = &self.buckets[at].0;
            let mut matches = matching(bucket, tag_of(hash));
            while matches != 0 {
                let place = Place::unpack(bucket[matches.trailing_zeros() as usize]);
                place.prefetch(pager);
                let leaf = tree::open_leaf(pager, place.leaf)?;
                let found = match place.index {
                    INDEX_UNKNOWN => leaf.get(key),
                    index => leaf.get_at(index, key),
                };
                if found.is_some() {
                    return Ok(found);
                }
                matches &= matches - 1;
            }
            if bucket[SLOTS - 1] == 0 {
                // (2).
                return match self.is_complete {
                    true => Ok(None),
                    false => tree::get(pager, root, key),
                };
            }
            at = self.next(at);
        }
    }

    #[inline(never)]
    fn prefetch(&self, pager: &Pager, keys: &[&[u8]], wanted: u32) {
        let mut hashes = [0; PREFETCH_KEYS_MAX];
        let wanted = |index: &usize| wanted >> index & 1 != 0;
        for index in (0..keys.len()).filter(wanted) {
            hashes[index] = wide_hash_of(keys[index]);
            prefetch::line((&raw const self.buckets[self.first(hashes[index])]).cast());
        }
        for index in (0..keys.len()).filter(wanted) {
            let bucket = &self.buckets[self.first(hashes[index])].0;
            let matches = matching(bucket, tag_of(hashes[index]));
            if matches != 0 {
                Place::unpack(bucket[matches.trailing_zeros() as usize]).prefetch(pager);
            }
        }
    }

    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() {
            0
        } else {
            bucket + 1
        }
    }

    fn insert(&mut self, hash: u64, slot: u64) {
        let mut at = self.first(hash);
        loop {
            if let Some(free) = self.buckets[at].0.iter_mut().find(|slot| **slot == 0) {
                *free = slot;
                return;
            }
            at = self.next(at);
        }
    }
}

impl Drop for LookupTable {
    fn drop(&mut self) {
        let size = size_of_val(&*self.buckets) as u64;
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Entries on their way into a table: the buckets of several are waited for at once.
struct Fill<'t> {
    table: &'t mut LookupTable,
    batch: [(u64, u64); BATCH],
    len: usize,
    key: Vec<u8>,
}

impl<'t> Fill<'t> {
    fn new(table: &'t mut LookupTable) -> Fill<'t> {
        Fill {
            table,
            batch: [(0, 0); BATCH],
            len: 0,
            key: Vec::new(),
        }
    }

    fn leaf(&mut self, at: NodeRef, leaf: Leaf<'_>) {
        if at.units() > 1 << UNIT_BITS || at.page() >= 1 << PAGE_BITS {
            self.table.is_complete = false;
            return;
        }
        leaf.load_prefix(&mut self.key);
        for index in 0..leaf.len() {
            leaf.load_suffix(index, &mut self.key);
            let hash = wide_hash_of(&self.key);
            let place = Place {
                leaf: at,
                line: leaf.place_of(index) / prefetch::LINE_BYTES,
                index: index.min(INDEX_UNKNOWN),
            };
            let bucket = self.table.first(hash);
            prefetch::line((&raw const self.table.buckets[bucket]).cast());
            self.batch[self.len] = (hash, place.pack(tag_of(hash)));
            self.len += 1;
            if self.len == BATCH {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        for &(hash, slot) in &self.batch[..std::mem::take(&mut self.len)] {
            self.table.insert(hash, slot);
        }
    }
}

impl Place {
    fn pack(self, tag: u64) -> u64 {
        let mut bits = self.leaf.page();
        bits = bits << UNIT_BITS | u64::from(self.leaf.offset_units());
        bits = bits << UNIT_BITS | u64::from(self.leaf.units() - 1);
        bits = bits << UNIT_BITS | self.line as u64;
        bits = bits << INDEX_BITS | self.index as u64;
        bits << TAG_BITS | tag
    }

    #[inline(always)]
    fn unpack(slot: u64) -> Place {
        let mut bits = slot >> TAG_BITS;
        let mut take = |width: u32| {
            let value = bits & ((1 << width) - 1);
            bits >>= width;
            value
        };
        let index = take(INDEX_BITS) as usize;
        let line = take(UNIT_BITS) as usize;
        let units = take(UNIT_BITS) as u32 + 1;
        let offset = take(UNIT_BITS) as u32;
        Place {
            leaf: NodeRef::new(take(PAGE_BITS), offset, units),
            line,
            index,
        }
    }

    #[inline(always)]
    fn prefetch(self, pager: &Pager) {
        pager.prefetch_lines(self.leaf, 0..HEAD_LINES);
        pager.prefetch_lines(self.leaf, self.line..self.line + ENTRY_LINES);
    }
}

/// Which slots have a tag, one bit each.
#[inline(always)]
fn matching(bucket: &[u64; SLOTS], tag: u64) -> u32 {
    let mut matches = 0;
    for (index, slot) in bucket.iter().enumerate() {
        matches |= u32::from(slot & TAG_MASK == tag) << index;
    }
    matches
}

/// A free slot has the tag 0, no other has.
#[inline(always)]
fn tag_of(hash: u64) -> u64 {
    (hash & TAG_MASK).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_was_packed() {
        for (page, offset, units, line, index, tag) in [
            (1, 0, 1, 0, 0, 1),
            ((1 << PAGE_BITS) - 1, 63, 64, 63, INDEX_UNKNOWN, TAG_MASK),
            (0x0a5_a5a5, 0, 64, 17, 300, 0x155),
            (77, 5, 9, 8, 2, 2),
        ] {
            let place = Place {
                leaf: NodeRef::new(page, offset, units),
                line,
                index,
            };
            let slot = place.pack(tag);
            assert_eq!((Place::unpack(slot), slot & TAG_MASK), (place, tag));
            assert_ne!(slot, 0);
        }
    }

    #[test]
    fn free_slots_match_no_hash() {
        for hash in [0, TAG_MASK + 1, u64::MAX << TAG_BITS] {
            assert_eq!(matching(&[0; SLOTS], tag_of(hash)), 0);
        }
        let bucket = [1 << TAG_BITS | 5, 5, 6, 4, 0, 0, 0, 5];
        assert_eq!(matching(&bucket, 5), 0b1000_0011);
    }

    /// Whatever buckets are full, what was put in is found before the first that is not.
    #[test]
    fn full_buckets_are_passed() {
        let mut table = LookupTable {
            buckets: vec![Bucket::default(); 5].into(),
            is_complete: true,
            bytes: Arc::new(AtomicU64::new(5 * 64)),
        };
        // All begin at the last bucket.
        let hashes: Vec<u64> = (1..=20).map(|n| u64::MAX << 32 | n).collect();
        for &hash in &hashes {
            table.insert(hash, hash & TAG_MASK | 1 << TAG_BITS);
        }
        let full = |at: usize| table.buckets[at].0[SLOTS - 1] != 0;
        assert_eq!([4, 0, 1, 2, 3].map(full), [true, true, false, false, false]);
        for &hash in &hashes {
            let mut at = table.first(hash);
            while matching(&table.buckets[at].0, tag_of(hash)) == 0 {
                assert!(full(at));
                at = table.next(at);
            }
        }
        let bytes = Arc::clone(&table.bytes);
        drop(table);
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }
}
