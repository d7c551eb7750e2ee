//! `Inserter`: memory for insertions, and entries that wait for their places in the tree.
//!
//! New keys in no order wait, up to [`WAITING_MAX`] of them: what leads to their places is asked for side by side, where one insertion after the
//! other would wait for every node. The directory has them at once, so that they are found. Keys that ascend do not wait: the way to their places
//! was gone a moment ago.
//!
//! # Thread safety
//! That of `writer.rs`.
//!
//! # Invariants
//! 1. An entry that waits is in the directory and not in the tree. Nobody but the writer sees a version of it: they are uncommitted, or nobody
//!    reads the buffer yet.
//! 2. The chunk ends [`PLACE_BYTES_MAX`] before its end for each entry that waits: putting it into the tree does not fail.
//! 3. Entries are put into the tree between walks through it, never during one: a walk goes by what it found.
//! 4. No key is put into the tree while it waits: who does not ask the directory asks those that wait.

use super::super::arena::{Chunk, LINE_BYTES, Memory, UNIT_BYTES};
use super::super::bucket::Bucket;
use super::super::entry::{Entry, EntryRef, entry_bytes};
use super::super::error::BufferError;
use super::super::keyspace::KeyspaceBuffer;
use super::super::node::{self, Node};
use super::grow::{BURST_BYTES_MAX, New, Place, entry_bytes_checked};
use super::run::Run;
use crate::sync::Ordering;

/// Under loom there is room for keys that wait.
const CHUNK_BYTES_MIN: u64 = if cfg!(loom) { 8 << 10 } else { 1 << 10 };
const CHUNK_BYTES_MAX: u64 = 256 << 10;

/// What putting an entry into the tree takes, at most: the largest node, or what takes the place of a full bucket, on lines of their own.
const PLACE_BYTES_MAX: u64 = {
    let node = node::node_bytes_for(256);
    let most = if node > BURST_BYTES_MAX {
        node
    } else {
        BURST_BYTES_MAX
    };
    (most + 2 * LINE_BYTES) as u64
};

/// New entries that wait for their places in the tree: about as many as a processor waits for at a time.
pub(super) const WAITING_MAX: usize = match (cfg!(loom), cfg!(debug_assertions)) {
    (true, _) => 2,
    (_, true) => 5,
    _ => 16,
};

/// What insertions go by, from one to the next.
#[derive(Debug)]
pub(super) struct Placing {
    pub chunk: Chunk,
    chunk_bytes_next: u64,
    pub run: Run,
    /// The node above the key that was inserted last; 0 if there was none.
    pub parent: u32,
    /// Since it was last cleared, an inner node took the place of another or came above it: ways that were gone before may be wrong.
    pub has_moved: bool,
    waiting: Waiting,
}

/// New entries that the tree does not have yet.
#[derive(Debug, Default)]
struct Waiting {
    entries: [u32; WAITING_MAX],
    count: usize,
    /// Which last bytes their keys have, some of them taken together.
    tails: u64,
}

/// The bit of a key in [`Waiting::tails`].
#[inline(always)]
fn tail_of(key: &[u8]) -> u64 {
    1 << (key.last().copied().unwrap_or(0) % 64)
}

impl Placing {
    pub fn new(buffer: &KeyspaceBuffer) -> Placing {
        Placing {
            chunk: buffer.arena().nothing(),
            chunk_bytes_next: CHUNK_BYTES_MIN,
            run: Run::default(),
            parent: 0,
            has_moved: false,
            waiting: Waiting::default(),
        }
    }

    /// How many entries wait.
    #[cfg(all(test, not(loom)))]
    pub fn waiting(&self) -> usize {
        self.waiting.count
    }

    /// Whether the tree has all entries.
    #[inline(always)]
    pub fn is_settled(&self) -> bool {
        self.waiting.count == 0
    }
}

/// See the module text.
pub(super) struct Inserter<'b> {
    pub buffer: &'b KeyspaceBuffer,
    pub placing: &'b mut Placing,
}

impl<'b> Inserter<'b> {
    #[inline(always)]
    pub fn memory(&self) -> Memory<'b> {
        self.buffer.memory()
    }

    /// Bytes that are left of the chunk, but for those that are kept for entries that wait.
    #[inline(always)]
    fn left(&self) -> u64 {
        self.placing.chunk.end - self.placing.chunk.start
    }

    /// Memory for `bytes` (a multiple of 8), between walks: its offset.
    #[inline(always)]
    pub fn allocate_between(&mut self, bytes: usize) -> Result<usize, BufferError> {
        if self.left() < bytes as u64 {
            self.settle();
        }
        self.allocate(bytes)
    }

    /// Puts what waits into the tree.
    #[inline(always)]
    pub fn settle(&mut self) {
        if !self.placing.is_settled() {
            self.settle_waiting();
        }
    }

    #[inline(never)]
    fn settle_waiting(&mut self) {
        let Waiting { entries, count, .. } = std::mem::take(&mut self.placing.waiting);
        self.placing.chunk.end += count as u64 * PLACE_BYTES_MAX;
        if let [entry] = entries[..count] {
            return self.place(EntryRef(entry), self.top());
        }
        let mut places = [self.top(); WAITING_MAX];
        if !cfg!(loom) {
            self.find_places(&entries[..count], &mut places);
        }
        self.placing.has_moved = false;
        for (&entry, place) in entries[..count].iter().zip(places) {
            let is_valid = node::is_inner(place.reference) && !self.placing.has_moved;
            let from = if is_valid { place } else { self.top() };
            self.place(EntryRef(entry), from);
        }
    }

    /// Puts a waiting entry into the tree, whose way leads through `from`.
    #[inline]
    fn place(&mut self, entry: EntryRef, from: Place) {
        let key = Entry::of(self.memory(), entry).key();
        debug_assert!(self.leads_to(from, key));
        let placed = self.find_or_insert_in_tree(key, New::Waiting(entry), from, false);
        let placed = placed.expect("its memory was kept");
        assert_eq!(placed, entry, "the key was new");
    }

    /// Whether the way of a key to its place leads through `place`.
    fn leads_to(&self, place: Place, key: &[u8]) -> bool {
        let mut way = self.top();
        while way != place {
            let below = node::is_inner(way.reference)
                .then(|| self.below(Node::new(self.memory(), way.reference), key));
            match below.flatten() {
                Some(below) => way = below,
                None => return false,
            }
        }
        true
    }

    /// Goes the ways of entries as far as there are inner nodes, level by level, and asks for what is next on each before it goes on.
    fn find_places(&self, entries: &[u32], places: &mut [Place; WAITING_MAX]) {
        let memory = self.memory();
        let mut going = u32::MAX >> (32 - entries.len());
        let mut next = *places;
        while going != 0 {
            let mut level = going;
            while level != 0 {
                let index = level.trailing_zeros() as usize;
                level &= level - 1;
                let reference = next[index].reference;
                if node::is_inner(reference) {
                    places[index] = next[index];
                    let key = Entry::of(memory, EntryRef(entries[index])).key();
                    if let Some(below) = self.below(Node::new(memory, reference), key) {
                        node::prefetch(memory, below.reference);
                        next[index] = below;
                        continue;
                    }
                } else if node::is_bucket(reference) {
                    node::prefetch(memory, Bucket::new(memory, reference).sample());
                }
                going &= !(1 << index);
            }
        }
    }

    /// Memory for `bytes` (a multiple of 8): its offset.
    #[inline(always)]
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, BufferError> {
        debug_assert!(bytes.is_multiple_of(UNIT_BYTES));
        self.reserve(bytes)?;
        let at = self.placing.chunk.start as usize;
        self.placing.chunk.start += bytes as u64;
        self.memory().prefetch_ahead(at + bytes, bytes);
        Ok(at)
    }

    /// As [`Inserter::allocate`], but begins a new cache line where the first `use_bytes` would touch one line more
    /// in the present one than they have to. Look-ups cost as much as the lines they touch.
    #[inline(always)]
    pub fn allocate_lined(&mut self, bytes: usize, use_bytes: usize) -> Result<usize, BufferError> {
        let in_line = self.placing.chunk.start as usize % LINE_BYTES;
        if (in_line + use_bytes).div_ceil(LINE_BYTES) > use_bytes.div_ceil(LINE_BYTES) {
            let skip = LINE_BYTES - in_line;
            self.reserve(skip + bytes)?;
            // The reservation may have begun a new chunk, which begins with a line.
            if !(self.placing.chunk.start as usize).is_multiple_of(LINE_BYTES) {
                self.placing.chunk.start += skip as u64;
            }
        }
        self.allocate(bytes)
    }

    /// Makes sure that the next `bytes` come from one chunk, so that several allocations succeed or fail together.
    #[inline(always)]
    pub fn reserve(&mut self, bytes: usize) -> Result<(), BufferError> {
        if self.left() < bytes as u64 {
            self.next_chunk(bytes as u64)?;
        }
        Ok(())
    }

    /// The rest of the present chunk is given up: offsets must grow (invariant 2 of `writer.rs`).
    #[cold]
    fn next_chunk(&mut self, bytes: u64) -> Result<(), BufferError> {
        assert!(self.placing.is_settled(), "a part of the chunk is kept");
        let want = bytes.max(self.placing.chunk_bytes_next);
        self.placing.chunk = self.buffer.arena().claim(bytes, want)?;
        self.placing.chunk_bytes_next = (2 * self.placing.chunk_bytes_next).min(CHUNK_BYTES_MAX);
        let taken = self.left();
        let bytes = self.buffer.written.bytes.load(Ordering::Relaxed) + taken;
        self.buffer.written.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Before a walk through the tree for a key: where it would not fit beside what is kept for entries that wait, these are put into the tree
    /// first (3).
    #[inline(always)]
    pub fn make_room(&mut self, key: &[u8], room_bytes: usize) {
        let bytes = entry_bytes(key.len()) + room_bytes + LINE_BYTES;
        if self.left() < bytes as u64 + PLACE_BYTES_MAX {
            self.settle();
        }
    }

    /// Before a walk for a key that was not looked for in the directory: it may be there and wait.
    #[inline(always)]
    pub fn settle_key(&mut self, key: &[u8]) {
        let waiting = &self.placing.waiting;
        if waiting.tails & tail_of(key) != 0 {
            let memory = self.memory();
            let mut entries = waiting.entries[..waiting.count].iter();
            if entries.any(|&entry| Entry::of(memory, EntryRef(entry)).key() == key) {
                self.settle();
            }
        }
    }

    /// Makes an entry that waits for its place in the tree. `None` if the chunk has no room for that.
    #[inline(always)]
    pub fn insert_waiting(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<Option<EntryRef>, BufferError> {
        let bytes = entry_bytes_checked(key)? + room_bytes;
        if self.placing.waiting.count == WAITING_MAX {
            // Not behind the last of them: its version was to lie there.
            self.settle();
        }
        if self.left() < (bytes + LINE_BYTES) as u64 + PLACE_BYTES_MAX {
            return Ok(None);
        }
        let entry = self.create_entry(key, bytes)?;
        self.placing.chunk.end -= PLACE_BYTES_MAX;
        let waiting = &mut self.placing.waiting;
        waiting.entries[waiting.count] = entry.0;
        waiting.count += 1;
        waiting.tails |= tail_of(key);
        Ok(Some(entry))
    }

    /// `use_bytes`: the entry and what will be put behind it.
    pub fn create_entry(&mut self, key: &[u8], use_bytes: usize) -> Result<EntryRef, BufferError> {
        let at = self.allocate_lined(entry_bytes(key.len()), use_bytes)?;
        let entry = Entry::create(self.memory(), at, key).reference();
        let entries = &self.buffer.written.entries;
        entries.store(entries.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(entry)
    }
}
