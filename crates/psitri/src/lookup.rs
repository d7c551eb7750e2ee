//! Where the keys of a tree are: a table of hashes beside it, for lookups of single keys.
//!
//! A lookup that begins at the root waits for memory at each level that is in no cache, and searches each node. Where the newest tree of a
//! keyspace is asked often while it stays the same, a thread makes a table that says in which leaf a key is and where: a lookup then waits for
//! a line of the table, and for the lines of the entry, which arrive side by side.
//!
//! A tree gets none that has deltas, that is not much larger than its table would be, unless both are small (its lookups wait for less than a table's), or of which a part
//! is not in memory (all of it would be read). Where there is no room for a table, those go that nobody asked since the last time that there was none.
//!
//! # Thread safety
//! A table is immutable. [`Lookups`] is shared by all states with the same root; its table is made once, by the thread of [`run`], while
//! readers go on without it. That thread has a state pinned meanwhile, as any reader.
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
//! Without memory, within [`Options::lookup_table_bytes`](crate::Options::lookup_table_bytes) or at all, there is no table. A leaf that cannot
//! be read ends the making of it.

use std::{
    cell::Cell,
    iter,
    ops::ControlFlow,
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::{
    Result,
    buffer::{PREFETCH_KEYS_MAX, equal_slots, wide_hash_of},
    engine::{Engine, Signals},
    node::{Leaf, NodeRef, Stored},
    pager::Pager,
    prefetch,
    sync::{Arc, AtomicBool, AtomicU64, Ordering, OwnLines},
    tree::{self, Root},
};

/// One lookup of so many, at random, is counted, for all of them.
const COUNTED: u64 = 64;
/// A table is made for at most so many keys for each lookup that was made without one: that takes 50 to 180 ns a key, and lookups win 35 to 240.
const KEYS_PER_LOOKUP: u64 = 2;
/// A tree of fewer keys is in the caches, or does not matter.
const KEYS_MIN: u64 = 1_000;
/// A tree that takes less for an entry is in nearer caches than its table, with 12 bytes a key, would be. That decides where neither fits a near one;
/// where both do, a lookup by table takes fewer steps, unless keys follow from their places, which leaves at most 8 bytes an entry.
const TREE_BYTES_MIN: usize = 16;
const TREE_BYTES_MIN_NEAR: usize = 9;
/// The largest table of which this is so.
const NEAR_BYTES_MAX: u128 = 1 << 20;
/// Leaves that are looked at to know what a tree is like. It is in memory if no more than a quarter of them take longer than this: a page that is read from
/// the disk takes 50 microseconds, one that is mapped for the first time 2.
const SAMPLES: u64 = 16;
const SLOW_SAMPLES_MAX: usize = 4;
const SAMPLE_TIME_MAX: Duration = Duration::from_micros(10);
/// How long the thread sleeps if it misses that a table is wanted.
const TICK: Duration = Duration::from_millis(200);
/// Leaves between two looks at whether the table is still wanted.
const LEAVES_UNWATCHED: u32 = 64;
/// Buckets that are made at once.
const BUCKETS_AT_ONCE: usize = 1 << 14;

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
const _: () = assert!(TAG_BITS <= 32);
const _: () = assert!(PAGE_BITS + 3 * UNIT_BITS + INDEX_BITS + TAG_BITS == 64);
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// An entry of a leaf that has more: it is looked for there.
const INDEX_UNKNOWN: usize = (1 << INDEX_BITS) - 1;

/// Lines of a leaf with its header and its fingerprints, and of an entry.
const HEAD_LINES: usize = 3;
const ENTRY_LINES: usize = 3;

/// How often a tree was asked for a key, and its table once that was often enough.
pub(crate) struct Lookups {
    table: OnceLock<LookupTable>,
    counts: OwnLines<Counts>,
}

struct Counts {
    lookups: AtomicU64,
    /// So many make a table wanted. Twice as many the next time, where nothing came of it: who is woken for nothing is not woken often.
    wanted_at: AtomicU64,
}

/// What all tables of a database take, and who makes them.
#[derive(Default)]
pub(crate) struct LookupBoard {
    bytes: Arc<AtomicU64>,
    maker: OnceLock<Arc<Signals>>,
}

struct LookupTable {
    buckets: Box<[Bucket]>,
    is_complete: bool,
    /// Somebody asked it since there was no room for another one.
    is_used: AtomicBool,
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

/// Body of the thread that makes the tables; returns when the engine stops.
pub(crate) fn run(engine: &Engine) {
    let signals = &engine.signals;
    loop {
        {
            let mut state = signals.lock.lock();
            if !state.stopping && !signals.are_tables_wanted.load(Ordering::Relaxed) {
                signals.tables.wait_for(&mut state, TICK);
            }
            if state.stopping {
                return;
            }
        }
        // With the counts of those who want one. Who wants one from now on is heard in the next round.
        if signals.are_tables_wanted.swap(false, Ordering::Acquire) {
            make_tables(engine);
        }
    }
}

/// Makes the tables that are wanted.
fn make_tables(engine: &Engine) {
    let state = engine.states.current();
    let mut is_room_missing = false;
    for keyspace in state.keyspaces.iter().flatten() {
        let Some(lookups) = &keyspace.lookups else {
            continue;
        };
        if lookups.take_wanted() {
            let is_stopped = || {
                let now = engine.states.current();
                let now = now.keyspace(keyspace.core.slot, keyspace.core.id);
                let now = now.and_then(|keyspace| keyspace.lookups.as_ref());
                !now.is_some_and(|now| Arc::ptr_eq(now, lookups))
                    || engine.signals.lock.lock().stopping
            };
            let bytes_max = engine.options.lookup_table_bytes;
            match LookupTable::make(&engine.pager, keyspace.root, bytes_max, is_stopped) {
                Made::Table(table) => drop(lookups.table.set(table)),
                Made::NoRoom => is_room_missing = true,
                Made::Nothing => {}
            }
        }
    }
    drop(state);
    if is_room_missing {
        let_unused_go(engine);
    }
}

/// Lets the tables go that nobody asked since the last call.
fn let_unused_go(engine: &Engine) {
    let is_unused = |lookups: &&Arc<Lookups>| {
        let table = lookups.table.get();
        table.is_some_and(|table| !table.is_used.swap(false, Ordering::Relaxed))
    };
    let state = engine.states.current();
    let all = (state.keyspaces.iter().flatten()).filter_map(|keyspace| keyspace.lookups.as_ref());
    let unused: Vec<_> = all.filter(is_unused).cloned().collect();
    drop(state);
    if unused.is_empty() {
        return;
    }
    engine.change_layers(|state| {
        let mut keyspaces = (*state.keyspaces).clone();
        for keyspace in keyspaces.iter_mut().flatten() {
            let is_it = |lookups: &Arc<Lookups>| unused.iter().any(|it| Arc::ptr_eq(it, lookups));
            if keyspace.lookups.as_ref().is_some_and(is_it) {
                keyspace.lookups = Lookups::of(keyspace.root);
            }
        }
        state.keyspaces = Arc::new(keyspaces);
    });
}

impl Lookups {
    /// For a tree that is new, if it is large enough and has no deltas.
    pub fn of(root: Root) -> Option<Arc<Lookups>> {
        (root.keys >= KEYS_MIN && !root.node.has_deltas()).then(|| {
            Arc::new(Lookups {
                table: OnceLock::new(),
                counts: OwnLines(Counts {
                    lookups: AtomicU64::new(0),
                    wanted_at: AtomicU64::new(root.keys / KEYS_PER_LOOKUP),
                }),
            })
        })
    }

    /// The stored value of `key` in the tree of this root.
    #[inline]
    pub fn get<'a>(&self, pager: &'a Pager, root: Root, key: &[u8]) -> Result<Option<Stored<'a>>> {
        match self.table.get() {
            Some(table) => table.get(pager, root, key),
            None => {
                self.count(&pager.lookups);
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
    fn count(&self, board: &LookupBoard) {
        /// Of the next thread.
        static SEED: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static CHANCE: Cell<u64> = const { Cell::new(0) };
        }
        // A linear congruential generator. Lookups that take turns among trees are counted for each of them.
        let mut chance = CHANCE.get();
        if chance == 0 {
            chance = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        }
        chance = chance
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        CHANCE.set(chance);
        if chance >> (u64::BITS - COUNTED.ilog2()) == 0 {
            self.add_counted(board);
        }
    }

    #[cold]
    fn add_counted(&self, board: &LookupBoard) {
        let Counts { lookups, wanted_at } = &*self.counts;
        let before = lookups.fetch_add(COUNTED, Ordering::Relaxed);
        let wanted_at = wanted_at.load(Ordering::Relaxed);
        if before < wanted_at && before + COUNTED >= wanted_at {
            board.want();
        }
    }

    /// Whether the tree was asked so often that a table is wanted; then not again before it was asked twice as often.
    fn take_wanted(&self) -> bool {
        let Counts { lookups, wanted_at } = &*self.counts;
        let lookups = lookups.load(Ordering::Relaxed);
        let is_wanted = self.table.get().is_none() && lookups >= wanted_at.load(Ordering::Relaxed);
        if is_wanted {
            wanted_at.store(2 * lookups, Ordering::Relaxed);
        }
        is_wanted
    }
}

impl LookupBoard {
    /// Wakes the thread that makes tables from now on when one is wanted.
    pub fn let_wake(&self, maker: &Arc<Signals>) {
        let _ = self.maker.set(Arc::clone(maker));
    }

    fn want(&self) {
        if let Some(signals) = self.maker.get() {
            // With the count before it.
            signals.are_tables_wanted.store(true, Ordering::Release);
            signals.tables.notify_one();
        }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What came of an attempt to make a table.
enum Made {
    Table(LookupTable),
    NoRoom,
    Nothing,
}

/// Whether lookups in a tree gain by a table: see the module text.
fn is_worth_a_table(pager: &Pager, root: Root, table_bytes: u128) -> Result<bool> {
    let (mut bytes, mut keys, mut slow) = (0, 0, 0);
    for sample in 0..SAMPLES {
        let start = Instant::now();
        let rank = root.keys / SAMPLES * sample;
        let Some((at, leaf)) = tree::leaf_at(pager, root, rank)? else {
            return Ok(false);
        };
        bytes += at.bytes();
        keys += leaf.len();
        slow += usize::from(start.elapsed() > SAMPLE_TIME_MAX);
    }
    let bytes_min = if table_bytes <= NEAR_BYTES_MAX {
        TREE_BYTES_MIN_NEAR
    } else {
        TREE_BYTES_MIN
    };
    Ok(bytes >= keys * bytes_min && slow <= SLOW_SAMPLES_MAX)
}

impl LookupTable {
    /// Makes the table of a tree that the caller has pinned, if there is room for it beside the others. Gives up where `is_stopped` says so.
    fn make(pager: &Pager, root: Root, bytes_max: u64, is_stopped: impl Fn() -> bool) -> Made {
        // One bucket more than there are entries, so that a search comes to an end.
        let slots = u128::from(root.keys) * 16 / u128::from(TAKEN_OF_16);
        let buckets = slots / SLOTS as u128 + 1;
        let size = buckets * size_of::<Bucket>() as u128;
        if size > u128::from(bytes_max) || !is_worth_a_table(pager, root, size).unwrap_or(false) {
            return Made::Nothing;
        }
        if u128::from(pager.lookups.bytes()) + size > u128::from(bytes_max) {
            return Made::NoRoom;
        }
        let table = LookupTable::reserve(pager, buckets as usize, &is_stopped);
        let table = table.and_then(|table| table.filled(pager, root, is_stopped));
        table.map_or(Made::Nothing, Made::Table)
    }

    fn reserve(
        pager: &Pager,
        buckets: usize,
        is_stopped: impl Fn() -> bool,
    ) -> Option<LookupTable> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(buckets).ok()?;
        while memory.len() < buckets {
            if is_stopped() {
                return None;
            }
            let len = buckets.min(memory.len() + BUCKETS_AT_ONCE);
            memory.resize(len, Bucket::default());
        }
        let bytes = Arc::clone(&pager.lookups.bytes);
        bytes.fetch_add(size_of_val(&*memory) as u64, Ordering::Relaxed);
        Some(LookupTable {
            buckets: memory.into(),
            is_complete: true,
            is_used: AtomicBool::new(true),
            bytes,
        })
    }

    fn filled(
        mut self,
        pager: &Pager,
        root: Root,
        is_stopped: impl Fn() -> bool,
    ) -> Option<LookupTable> {
        let mut left = root.keys;
        let mut unwatched = 0;
        let mut fill = Fill::new(&mut self);
        tree::each_leaf(pager, root, &mut |at, leaf| {
            unwatched += 1;
            let is_stopped = unwatched % LEAVES_UNWATCHED == 0 && is_stopped();
            // The counts of a damaged file may be wrong; a full table would be searched for ever.
            left = match left.checked_sub(leaf.len() as u64) {
                Some(left) if !is_stopped => left,
                _ => return ControlFlow::Break(()),
            };
            fill.leaf(at, leaf);
            ControlFlow::Continue(())
        })
        .ok()?
        .continue_value()?;
        fill.flush();
        Some(self)
    }

    #[inline]
    fn get<'a>(&self, pager: &'a Pager, root: Root, key: &[u8]) -> Result<Option<Stored<'a>>> {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let hash = wide_hash_of(key);
        let mut at = self.first(hash);
        loop {
            let bucket = &self.buckets[at].0;
            for place in matching(bucket, tag_of(hash)) {
                place.prefetch(pager);
                let found = tree::in_leaf(pager, place.leaf, |leaf| match place.index {
                    INDEX_UNKNOWN => leaf.get(key),
                    index => leaf.get_at(index, key),
                })?;
                if found.is_some() {
                    return Ok(found);
                }
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
            if let Some(place) = matching(bucket, tag_of(hashes[index])).next() {
                place.prefetch(pager);
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

/// What is in the slots that have a tag.
#[inline(always)]
fn matching(bucket: &[u64; SLOTS], tag: u64) -> impl Iterator<Item = Place> {
    // A tag is in the lower half of its slot: every second bit is that of one.
    let mut matches = equal_slots(*bucket, TAG_MASK as u32, tag as u32) & 0x5555;
    iter::from_fn(move || {
        let slot = (matches != 0).then(|| bucket[matches.trailing_zeros() as usize / 2 % SLOTS])?;
        matches &= matches - 1;
        Some(Place::unpack(slot))
    })
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
            assert_eq!(matching(&[0; SLOTS], tag_of(hash)).next(), None);
        }
        // What is in the upper half of a slot is no tag.
        let above = 5 << 32 | 7;
        let bucket = [1 << TAG_BITS | 5, 5, 6, 4, above, 0, 0, 1 << 63 | 5];
        let places = [bucket[0], bucket[1], bucket[7]].map(Place::unpack);
        assert!(matching(&bucket, 5).eq(places));
    }

    /// Whatever buckets are full, what was put in is found before the first that is not.
    #[test]
    fn full_buckets_are_passed() {
        let mut table = LookupTable {
            buckets: vec![Bucket::default(); 5].into(),
            is_complete: true,
            is_used: AtomicBool::new(true),
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
            while matching(&table.buckets[at].0, tag_of(hash))
                .next()
                .is_none()
            {
                assert!(full(at));
                at = table.next(at);
            }
        }
        let bytes = Arc::clone(&table.bytes);
        drop(table);
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }
}
