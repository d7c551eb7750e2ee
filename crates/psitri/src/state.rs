//! What readers pin: the layers of every keyspace at one moment.
//!
//! # Thread safety
//! A [`State`] is immutable once published. A [`Generation`] is written by the holders of keyspace write locks, each in
//! its own keyspace buffer, and read by anyone.
//!
//! # Invariants
//! (1) `generations` is ordered newest first; the first is active, the others are frozen.
//! (2) A generation counts for a keyspace only if its id is greater than the keyspace's `generation_merged`: the tree
//!     holds what older ones held.
//! (3) Within one keyspace every commit in a newer generation has a greater CSN than any in an older one, as a
//!     transaction takes the active generation when it already holds the keyspace's write lock.
//! (4) A slot is used again only while the active generation has no buffer of the keyspace that was dropped from it.
//! (5) A buffered transaction is in one generation, with all its keyspaces; the others exchange all their roots at once. So readers of old
//!     layers see whole transactions if they see whole generations: mode `trie` those up to `generation_in_trees`. Trees may have a part of
//!     these, or some keyspaces have merged them and others have not; what a tree lacks is still in the buffers.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::{
    Result,
    buffer::{ARENA_BYTES_MAX, Arena, KeyspaceBuffer},
    keyspace::KeyspaceCore,
    lookup::Lookups,
    node::{SubtreeRef, ValuePointer},
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, OwnLines},
    tree::Root,
};

/// Keyspaces that may exist at a time.
pub(crate) const KEYSPACES_MAX: usize = 1 << 16;
const TABLE_WIDTH: usize = 256;
const _: () = assert!(TABLE_WIDTH * TABLE_WIDTH == KEYSPACES_MAX);

/// One keyspace as a state sees it.
#[derive(Clone)]
pub(crate) struct KeyspaceState {
    pub core: Arc<KeyspaceCore>,
    pub root: Root,
    /// Generations up to this one are in the tree, or never concerned this keyspace.
    pub generation_merged: u64,
    /// Commits up to this one are in the tree.
    pub csn_merged: u64,
    /// What a merge that goes on has put into the tree so far.
    pub sliced: Option<Arc<Sliced>>,
    /// Of this root.
    pub lookups: Option<Arc<Lookups>>,
    /// Subtrees of entries that it has from what it was cloned from: what those call them, and which they are here.
    pub aliases: Aliases,
    /// Differs from what the last checkpoint stored.
    pub dirty: bool,
}

impl KeyspaceState {
    /// One that no checkpoint has stored.
    pub fn new(core: Arc<KeyspaceCore>, root: Root, generation_merged: u64) -> KeyspaceState {
        KeyspaceState {
            core,
            root,
            generation_merged,
            csn_merged: 0,
            sliced: None,
            lookups: Lookups::of(root),
            aliases: None,
            dirty: true,
        }
    }

    /// Exchanges the tree.
    pub fn set_root(&mut self, root: Root) {
        if self.root != root {
            self.root = root;
            self.lookups = Lookups::of(root);
        }
    }
}

/// What is in a tree of buffers that count for its keyspace: those of generations up to one, with keys below one.
#[derive(Debug)]
pub(crate) struct Sliced {
    pub generation: u64,
    pub below: Box<[u8]>,
}

/// What entries that were cloned call subtrees, and the ids of those that they mean here. `None` if there are none.
pub(crate) type Aliases = Option<Arc<BTreeMap<SubtreeRef, u32>>>;

/// Keyspaces by slot.
pub(crate) type KeyspaceTable = Vec<Option<KeyspaceState>>;

pub(crate) struct State {
    /// Counts publications that changed a root.
    pub tree_version: u64,
    /// Trees may have entries of generations up to this one, and of no newer one. Never goes back.
    pub generation_in_trees: u64,
    /// The newest commit that came with its trees and is in no buffer: who sees the state sees it, though its number may not be published yet.
    pub csn_direct: u64,
    pub generations: Vec<Arc<Generation>>,
    pub keyspaces: Arc<KeyspaceTable>,
    /// When another one took its place, and whether somebody who still holds it was reported.
    pub replaced: Replaced,
}

#[derive(Debug, Default)]
pub(crate) struct Replaced {
    pub at: OnceLock<Instant>,
    pub reported: AtomicBool,
}

impl State {
    /// The same once more, to be changed and published.
    pub fn successor(&self) -> State {
        State {
            tree_version: self.tree_version,
            generation_in_trees: self.generation_in_trees,
            csn_direct: self.csn_direct,
            generations: self.generations.clone(),
            keyspaces: Arc::clone(&self.keyspaces),
            replaced: Replaced::default(),
        }
    }

    pub fn active(&self) -> &Arc<Generation> {
        &self.generations[0]
    }

    /// How full the frozen buffers are.
    pub fn frozen_bytes(&self) -> u64 {
        let frozen = self.generations[1..].iter();
        frozen.map(|generation| generation.bytes_used()).sum()
    }

    /// How far the commits in generations up to one reach, of those that are not merged everywhere.
    pub fn reach(&self, generation_newest: u64) -> Reach {
        let mut reach = Reach::default();
        for generation in &self.generations {
            if generation.id <= generation_newest {
                reach.extend(generation.reach());
            }
        }
        reach
    }

    /// How long ago another one took its place; zero for the current one.
    pub fn age(&self) -> Duration {
        (self.replaced.at.get()).map_or(Duration::ZERO, Instant::elapsed)
    }

    /// The keyspace in `slot`, if it is the one with this id.
    #[inline]
    pub fn keyspace(&self, slot: u32, id: u32) -> Option<&KeyspaceState> {
        self.keyspaces
            .get(slot as usize)?
            .as_ref()
            .filter(|keyspace| keyspace.core.id == id)
    }
}

/// No more entries are expected in a generation than one for each so many bytes of it: a directory for them takes a quarter of that, and leaves room
/// for the entries. What came before may have been larger: a transaction that outgrew its buffer, a log that a larger one left.
const EXPECTED_BYTES_MIN: u64 = 32;

type BufferTable = [OnceLock<Box<[OnceLock<Arc<KeyspaceBuffer>>; TABLE_WIDTH]>>; TABLE_WIDTH];

/// A commit, and an end of a record in the log up to which it and all before it are: not necessarily that of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub csn: u64,
    pub lsn: u64,
}

impl Reach {
    pub fn extend(&mut self, other: Reach) {
        self.csn = self.csn.max(other.csn);
        self.lsn = self.lsn.max(other.lsn);
    }
}

/// What each commit stores in its generation. The other fields are what readers go by.
#[derive(Default)]
struct LastCommit {
    csn: AtomicU64,
    end_lsn: AtomicU64,
}

/// One filling of the write buffer: an arena, and a radix tree for each keyspace that has writes in it.
pub(crate) struct Generation {
    pub id: u64,
    arena: Option<Arc<Arena>>,
    buffers: Box<BufferTable>,
    slots: Mutex<Vec<u32>>,
    /// Log position of the first commit in it; `u64::MAX` before there is one.
    pub first_lsn: AtomicU64,
    /// The newest commit in it, and the end of its record; see [`Generation::reach`].
    last: OwnLines<LastCommit>,
    /// Values that committed transactions wrote straight to the data file.
    pub large_values: Mutex<Vec<(u32, ValuePointer)>>,
    /// Bytes of all such values so far.
    pub large_bytes: AtomicU64,
    /// A transaction that is still open keeps the merge from finishing it.
    pub blocked: AtomicBool,
    pool: Arc<ArenaPool>,
}

impl Generation {
    pub fn new(id: u64, pool: &Arc<ArenaPool>) -> Result<Generation> {
        Ok(Generation::over(pool.take()?, id, pool))
    }

    /// As [`new`](Generation::new), with room for at least so many bytes: what is replayed may have been written with a larger buffer.
    pub fn with_room(id: u64, pool: &Arc<ArenaPool>, bytes: u64) -> Result<Generation> {
        if bytes <= pool.reserve_bytes as u64 {
            return Generation::new(id, pool);
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Generation::over(reserve(bytes)?, id, pool))
    }

    fn over(arena: Arena, id: u64, pool: &Arc<ArenaPool>) -> Generation {
        Generation {
            id,
            arena: Some(Arc::new(arena)),
            buffers: Box::new([const { OnceLock::new() }; TABLE_WIDTH]),
            slots: Mutex::new(Vec::new()),
            first_lsn: AtomicU64::new(u64::MAX),
            last: OwnLines::default(),
            large_values: Mutex::new(Vec::new()),
            large_bytes: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            pool: Arc::clone(pool),
        }
    }

    fn arena(&self) -> &Arc<Arena> {
        self.arena
            .as_ref()
            .expect("the arena is taken only by drop")
    }

    /// Touches memory in front of the writers; see [`Arena::populate_ahead`].
    pub fn populate_ahead(&self, bytes_max: u64) {
        self.arena().populate_ahead(bytes_max);
    }

    #[inline]
    pub fn bytes_used(&self) -> u64 {
        self.arena().bytes_used()
    }

    pub fn entries_passed(&self) -> u64 {
        self.arena().entries_passed()
    }

    /// The buffer of a keyspace, if it has one.
    #[inline]
    pub fn buffer(&self, slot: u32) -> Option<&Arc<KeyspaceBuffer>> {
        let slot = slot as usize;
        self.buffers[slot / TABLE_WIDTH].get()?[slot % TABLE_WIDTH].get()
    }

    /// The buffer of a keyspace. Only the holder of its write lock may create it.
    pub fn buffer_or_new(&self, slot: u32, entries_expected: u64) -> &Arc<KeyspaceBuffer> {
        let index = slot as usize;
        let row = self.buffers[index / TABLE_WIDTH]
            .get_or_init(|| Box::new([const { OnceLock::new() }; TABLE_WIDTH]));
        row[index % TABLE_WIDTH].get_or_init(|| {
            self.slots.lock().push(slot);
            let entries_expected =
                entries_expected.min(self.pool.buffer_bytes / EXPECTED_BYTES_MIN);
            KeyspaceBuffer::with_expected(Arc::clone(self.arena()), entries_expected)
        })
    }

    /// Slots of the keyspaces with a buffer here, ascending.
    pub fn slots(&self) -> Vec<u32> {
        let mut slots = self.slots.lock().clone();
        slots.sort_unstable();
        slots
    }

    pub fn is_empty(&self) -> bool {
        self.slots.lock().is_empty()
    }

    /// Takes over the values that a transaction wrote straight to the data file, as it commits.
    pub fn take_large_values(&self, values: &mut Vec<(u32, ValuePointer)>) {
        let bytes = values.iter().map(|(_, value)| u64::from(value.len)).sum();
        self.large_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.large_values.lock().append(values);
    }

    /// Notes where the record of a commit is in the log. Commits call it in log order.
    pub fn note_commit(&self, csn: u64, record: Range<u64>) {
        if self.first_lsn.load(Ordering::Relaxed) == u64::MAX {
            self.first_lsn.store(record.start, Ordering::Release);
        }
        self.last.end_lsn.store(record.end, Ordering::Relaxed);
        self.last.csn.store(csn, Ordering::Release);
    }

    /// How far the commits in it reach. Beside a commit the end may be that of a later one.
    pub fn reach(&self) -> Reach {
        let csn = self.last.csn.load(Ordering::Acquire);
        let lsn = self.last.end_lsn.load(Ordering::Relaxed);
        Reach { csn, lsn }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        *self.buffers = [const { OnceLock::new() }; TABLE_WIDTH];
        if let Some(arena) = self
            .arena
            .take()
            .and_then(|arena| Arc::try_unwrap(arena).ok())
        {
            self.pool.put(arena);
        }
    }
}

/// Address space for so many bytes, or for what an arena can address.
fn reserve(bytes: usize) -> Result<Arena> {
    Arena::new(bytes).map_err(|error| crate::engine::buffer_error(error, bytes))
}

/// Arenas of finished generations, kept for the next ones: their pages are already there.
pub(crate) struct ArenaPool {
    arenas: Mutex<Vec<Arena>>,
    reserve_bytes: usize,
    buffer_bytes: u64,
    kept_max: usize,
}

impl ArenaPool {
    pub fn new(buffer_bytes: usize, kept_max: usize) -> ArenaPool {
        ArenaPool {
            arenas: Mutex::new(Vec::new()),
            // A transaction may outgrow the budget before it spills, and writers of other keyspaces go on meanwhile.
            reserve_bytes: (buffer_bytes * 8).clamp(64 << 20, ARENA_BYTES_MAX),
            buffer_bytes: buffer_bytes as u64,
            kept_max,
        }
    }

    pub fn reserve_bytes(&self) -> usize {
        self.reserve_bytes
    }

    fn take(&self) -> Result<Arena> {
        match self.arenas.lock().pop() {
            Some(arena) => Ok(arena),
            None => reserve(self.reserve_bytes),
        }
    }

    fn put(&self, mut arena: Arena) {
        // One that was made for a large record has its memory for nothing else.
        if arena.bytes_max() > (self.reserve_bytes as u64).next_multiple_of(1 << 16) {
            return;
        }
        let mut arenas = self.arenas.lock();
        if arenas.len() < self.kept_max {
            arena.reset();
            arena.release_over(self.buffer_bytes + self.buffer_bytes / 4);
            arenas.push(arena);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::Kind;

    #[test]
    fn what_is_expected_leaves_room_for_entries() {
        let buffer_bytes = 256 << 10;
        let pool = Arc::new(ArenaPool::new(buffer_bytes, 1));
        let generation = Generation::new(1, &pool).unwrap();
        let buffer = generation.buffer_or_new(0, u64::MAX);
        let mut writer = buffer.writer().unwrap();
        for number in 0..500u32 {
            let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
            let floor = writer.watermark();
            writer.put(&key, Kind::Value, b"value", floor).unwrap();
        }
        let used = generation.bytes_used();
        assert!(used < buffer_bytes as u64 / 2, "{used} bytes");
    }
}
