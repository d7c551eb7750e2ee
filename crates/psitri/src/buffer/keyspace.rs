//! `KeyspaceBuffer`: what one generation of the write buffer holds of one keyspace; point lookups.
//!
//! # Thread safety
//! Lookups and cursors from any thread, at any time, without locks. At most one [`BufferWriter`] exists at a time.
//!
//! # Invariants
//! 1. Everything reachable from `root` obeys the invariants of `node.rs` and `entry.rs`.
//! 2. Readers other than the writer look only at versions with a number below `CSN_UNCOMMITTED`.
//!
//! # Failure modes
//! None: reading allocates nothing.
#![allow(unsafe_code)] // an `unsafe fn`, whose contract is between a transaction and itself

use super::arena::{Arena, Memory};
use super::bucket::Bucket;
use super::cursor::BufferCursor;
use super::directory::{self, Directory, Table};
use super::entry::{CSN_UNCOMMITTED, Entry, EntryRef, Found};
use super::node::{self, Node};
use super::range_tombstones::{Dead, RangeTombstone, RangeTombstones};
use super::sequence::Sequence;
use super::writer::BufferWriter;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, OwnLines};
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

/// Newest number that a reader other than the writer may ask for (invariant 2).
pub(super) const CSN_COMMITTED_MAX: u64 = CSN_UNCOMMITTED - 1;

/// Keys that [`KeyspaceBuffer::prefetch`] takes at once.
pub(crate) const PREFETCH_KEYS_MAX: usize = 16;

/// Fewer keys are not waited for to ask for their newest versions, too, most of which lie beside their entries: the lookups wait soon enough.
const NEWEST_FROM_KEYS: usize = 4;

/// Hash of a key, the same in all buffers of the process. Seeded at random, so that keys cannot be chosen to collide.
#[inline(always)]
pub(crate) fn hash_of(key: &[u8]) -> u32 {
    wide_hash_of(key) as u32
}

/// Twice as many bits of it.
#[inline(always)]
pub(crate) fn wide_hash_of(key: &[u8]) -> u64 {
    static STATE: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);
    // Without the length that `Hash` for slices puts before the bytes: the seed is rotated by it.
    let mut hasher = STATE.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Hashes of at most [`PREFETCH_KEYS_MAX`] keys; the others are 0.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn hashes_of(keys: &[&[u8]]) -> [u32; PREFETCH_KEYS_MAX] {
    let mut hashes = [0; PREFETCH_KEYS_MAX];
    for (hash, key) in hashes.iter_mut().zip(keys) {
        *hash = hash_of(key);
    }
    hashes
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferStats {
    /// Keys that were ever inserted, those without a visible version included.
    pub entries: u64,
    /// Arena memory taken.
    pub bytes: u64,
    /// Newest number that a version was stamped with; 0 if none was.
    pub csn_last: u64,
}

/// One keyspace in one generation of the write buffer.
#[derive(Debug)]
pub struct KeyspaceBuffer {
    pub(super) root: AtomicU32,
    pub(super) directory: Directory,
    pub(super) sequence: Sequence,
    pub(super) range_tombstones: RangeTombstones,
    arena: Arc<Arena>,
    pub(super) entries_expected: u64,
    pub(super) has_writer: AtomicBool,
    pub(super) written: OwnLines<Written>,
}

/// What the writer stores all the time. The other fields are what readers go by.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub entries: AtomicU64,
    pub bytes: AtomicU64,
    pub csn_last: AtomicU64,
    /// Entries that are in no directory as they came in ascending order, and the last number of these.
    pub sequence_entries: AtomicU64,
    pub sequence_last: AtomicU64,
}

impl KeyspaceBuffer {
    /// An empty buffer in an arena that it shares with the other keyspaces of the generation.
    pub fn new(arena: Arc<Arena>) -> Arc<KeyspaceBuffer> {
        KeyspaceBuffer::with_expected(arena, 0)
    }

    /// An empty buffer whose directory will probably take about this many entries.
    pub fn with_expected(arena: Arc<Arena>, entries_expected: u64) -> Arc<KeyspaceBuffer> {
        Arc::new(KeyspaceBuffer {
            root: AtomicU32::new(0),
            directory: Directory::new(),
            sequence: Sequence::new(),
            entries_expected,
            range_tombstones: RangeTombstones::new(),
            arena,
            has_writer: AtomicBool::new(false),
            written: OwnLines::default(),
        })
    }

    /// The arena of the generation.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The one writer; `None` while another one exists.
    pub fn writer(self: &Arc<Self>) -> Option<BufferWriter> {
        BufferWriter::claim(self)
    }

    /// What the buffer knows about a key for a snapshot with this number. Uncommitted versions are never seen.
    #[inline]
    pub fn get(&self, key: &[u8], csn: u64) -> Found<'_> {
        self.lookup(key, csn.min(CSN_COMMITTED_MAX))
    }

    /// The newest version of a key, committed or not.
    ///
    /// # Safety
    /// Only for the holder of the [`BufferWriter`], and the result must be gone before its next call that takes `&mut`:
    /// it may rewrite an uncommitted version in place.
    #[inline]
    pub unsafe fn get_own(&self, key: &[u8]) -> Found<'_> {
        self.lookup(key, CSN_UNCOMMITTED)
    }

    /// A cursor for snapshots.
    pub fn cursor(&self) -> BufferCursor<'_> {
        BufferCursor::new(self, CSN_COMMITTED_MAX)
    }

    /// Number of the newest range deletion over a key that a snapshot sees, 0 if there is none.
    #[inline(always)]
    pub fn cover(&self, key: &[u8], csn: u64) -> u64 {
        self.range_tombstones.cover(key, csn)
    }

    /// The newest range deletion over a key that a snapshot sees.
    pub fn covering(&self, key: &[u8], csn: u64) -> Option<&RangeTombstone> {
        self.range_tombstones.covering(key, csn)
    }

    /// The least lower bound above a key of a range deletion, whoever sees it.
    pub fn next_range(&self, key: &[u8]) -> Option<&[u8]> {
        self.range_tombstones.next_lo(key)
    }

    /// Up to where a snapshot that comes upon a deleted key finds nothing more here, if that is known.
    pub fn dead_after(&self, key: &[u8], csn: u64) -> Option<Dead<'_>> {
        self.range_tombstones.dead_after(self.memory(), key, csn)
    }

    /// The same backward: there is nothing between what this gives and the key.
    pub fn dead_before(&self, key: &[u8], csn: u64) -> Option<&[u8]> {
        self.range_tombstones.dead_before(self.memory(), key, csn)
    }

    /// Whether a range was ever deleted here.
    #[inline(always)]
    pub fn has_range_tombstones(&self) -> bool {
        !self.range_tombstones.is_empty()
    }

    /// Range deletions with a number of at most `csn`, by lower bound.
    pub fn range_tombstones(&self, csn: u64) -> Vec<Arc<RangeTombstone>> {
        self.range_tombstones.list(csn)
    }

    /// Those of them that delete something of `lo..hi`, in no order.
    pub fn range_tombstones_in(
        &self,
        lo: &[u8],
        hi: Option<&[u8]>,
        csn: u64,
    ) -> Vec<&RangeTombstone> {
        self.range_tombstones.overlapping(lo, hi, csn)
    }

    /// Whether nothing was ever written here.
    pub fn is_empty(&self) -> bool {
        self.root.load(Ordering::Acquire) == 0 && self.range_tombstones.is_empty()
    }

    pub fn stats(&self) -> BufferStats {
        BufferStats {
            entries: self.written.entries.load(Ordering::Relaxed),
            bytes: self.written.bytes.load(Ordering::Relaxed),
            csn_last: self.written.csn_last.load(Ordering::Relaxed),
        }
    }

    #[inline(always)]
    pub(super) fn memory(&self) -> Memory<'_> {
        self.arena.memory()
    }

    /// The entry of a key.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8]) -> Option<Entry<'_>> {
        match self.directory.table(self.memory()) {
            Some(table) => self.find_in(table, key, hash_of(key)),
            None => self.find_in_tree(key),
        }
    }

    /// Entries of the directory that the keyspace's next buffer is to expect: as many as here, and where keys were left out at least so many
    /// that they are from the beginning.
    pub fn entries_expected_next(&self) -> u64 {
        match self.sequence.is_empty() {
            true => self.directory_entries(),
            false => self.directory_entries().max(directory::SEQUENCE_FROM),
        }
    }

    /// Entries that have, or would have, a place in the directory.
    pub(super) fn directory_entries(&self) -> u64 {
        let left_out = self.written.sequence_entries.load(Ordering::Relaxed);
        let entries = self.written.entries.load(Ordering::Relaxed);
        // Read beside the writer, the two may be of different moments.
        entries.saturating_sub(left_out)
    }

    /// The entry of a key whose hash is known, where there is a directory.
    #[inline(always)]
    pub(super) fn find_in<'b>(
        &'b self,
        table: Table<'b>,
        key: &[u8],
        hash: u32,
    ) -> Option<Entry<'b>> {
        table
            .candidates(hash)
            .map(|reference| Entry::of(self.memory(), EntryRef(reference)))
            .inspect(|entry| entry.prefetch(key.len()))
            .find(|entry| entry.key() == key)
            .or_else(|| self.find_left_out(key))
    }

    /// The entry of a key that the directory does not have.
    #[inline(always)]
    fn find_left_out(&self, key: &[u8]) -> Option<Entry<'_>> {
        if self.sequence.is_empty() {
            return None;
        }
        self.find_in_sequence(key)
    }

    #[inline(never)]
    fn find_in_sequence(&self, key: &[u8]) -> Option<Entry<'_>> {
        self.is_left_out(key)
            .then(|| self.find_in_tree(key))
            .flatten()
    }

    /// Whether a key that the directory does not have may be here all the same.
    #[inline(always)]
    fn is_left_out(&self, key: &[u8]) -> bool {
        let last = &self.written.sequence_last;
        self.sequence.may_have(self.memory(), last, key)
    }

    /// Asks for the lines of the directory in which a search for keys with these hashes begins: those of several buffers arrive side by side.
    #[inline]
    pub fn prefetch_directory(&self, hashes: &[u32]) {
        if let Some(table) = self.directory.table(self.memory()) {
            hashes.iter().for_each(|&hash| table.prefetch(hash));
        }
    }

    /// Asks for the first entry that may be that of a key with this hash; the line of the directory was asked for.
    #[inline]
    pub fn prefetch_entry(&self, hash: u32) {
        let memory = self.memory();
        if let Some(table) = self.directory.table(memory)
            && let Some(reference) = table.candidates(hash).next()
        {
            Entry::of(memory, EntryRef(reference)).prefetch(0);
        }
    }

    /// Asks for the cache lines that a lookup of keys with these hashes will need, one bit each in `wanted`, once those of the directory
    /// are there: their misses overlap, those of lookups that follow one another do not. Returns the keys that are probably not here.
    #[inline]
    pub fn prefetch(&self, keys: &[&[u8]], hashes: &[u32], wanted: u32) -> u32 {
        let memory = self.memory();
        let Some(table) = self.directory.table(memory) else {
            return wanted;
        };
        let mut entries = [0; PREFETCH_KEYS_MAX];
        let mut missing = 0;
        for index in (0..hashes.len()).filter(|&index| wanted >> index & 1 != 0) {
            match table.candidates(hashes[index]).next() {
                Some(reference) => {
                    entries[index] = reference;
                    Entry::of(memory, EntryRef(reference)).prefetch(keys[index].len());
                }
                None if self.is_left_out(keys[index]) => {}
                None => missing |= 1 << index,
            }
        }
        if hashes.len() < NEWEST_FROM_KEYS {
            return missing;
        }
        for &reference in entries[..hashes.len()]
            .iter()
            .filter(|&&reference| reference != 0)
        {
            Entry::of(memory, EntryRef(reference)).prefetch_newest(1);
        }
        missing
    }

    /// The entry of a key, by the order of its bytes.
    #[inline]
    pub(super) fn find_in_tree(&self, key: &[u8]) -> Option<Entry<'_>> {
        let memory = self.memory();
        let mut reference = self.root.load(Ordering::Acquire);
        while node::is_inner(reference) {
            let node = Node::new(memory, reference);
            let depth = node.depth();
            reference = match key.get(depth) {
                Some(&byte) => node.child(byte),
                None if depth == key.len() => node.terminal(),
                None => return None,
            };
        }
        if node::is_bucket(reference) {
            reference = Bucket::new(memory, reference).find(key);
        }
        if reference == 0 {
            return None;
        }
        let entry = Entry::new(memory, node::offset(reference));
        (entry.key() == key).then_some(entry)
    }

    #[inline(always)]
    fn lookup(&self, key: &[u8], csn_max: u64) -> Found<'_> {
        let version = match self.find(key) {
            Some(entry) => entry.visible(csn_max),
            None => None,
        };
        let covered = self.range_tombstones.cover(key, csn_max);
        match version {
            // At equal numbers the point wins: within a transaction, later puts into a deleted range do.
            Some((version, csn)) if csn >= covered => version.found(),
            None if covered == 0 => Found::Absent,
            _ => Found::Deleted,
        }
    }

    /// Whether ranges are deleted here, and what an entry says need not be looked for in them: it is a tombstone.
    #[inline(always)]
    pub(super) fn is_deleted_alone(&self, entry: Entry<'_>, csn_max: u64) -> bool {
        !self.range_tombstones.is_empty()
            && entry
                .visible(csn_max)
                .is_some_and(|(version, _)| version.kind() == super::Kind::Tombstone)
    }

    /// What an entry says, and the number that decided (0 for `Absent`).
    #[inline(always)]
    pub(super) fn resolve(&self, entry: Entry<'_>, csn_max: u64) -> (Found<'_>, u64) {
        // The entry is of this buffer, so its memory lives as long as `self`.
        let entry = Entry::of(self.memory(), entry.reference());
        let covered = if self.range_tombstones.is_empty() {
            0
        } else {
            self.range_tombstones.cover(entry.key(), csn_max)
        };
        match entry.visible(csn_max) {
            Some((version, csn)) if csn >= covered => (version.found(), csn),
            None if covered == 0 => (Found::Absent, 0),
            _ => (Found::Deleted, covered),
        }
    }
}
