//! Reading one key through the layers: buffers newest first, then the tree.

use crate::{
    ReadMode, Result,
    buffer::{Found, hashes_of},
    expiry,
    lookup::Lookups,
    node::{Stored, SubtreeRef, ValuePointer},
    pager::Pager,
    state::{Generation, KeyspaceState, Sliced, State},
    sync::Arc,
    tree::{self, Root},
};

/// CSN bound for the holder of a write lock: it sees every stamped version of its keyspace.
pub(crate) const CSN_NEWEST: u64 = u64::MAX - 1;

/// What one keyspace is made of for one reader.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub pager: &'a Pager,
    /// Newest first. Those up to `generation_merged` are in the tree.
    pub generations: &'a [Arc<Generation>],
    pub slot: u32,
    pub generation_merged: u64,
    /// Which part of the others the tree has.
    pub sliced: Option<&'a Sliced>,
    pub lookups: Option<&'a Lookups>,
    pub csn: u64,
    pub root: Root,
    /// Time of the reader; 0 for values without expiry, and to see them as they are stored.
    pub now: u64,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub fn new(
        pager: &'a Pager,
        state: &'a State,
        keyspace: &'a KeyspaceState,
        slot: u32,
        csn: u64,
        mode: ReadMode,
        now: u64,
    ) -> View<'a> {
        let generations = match mode {
            ReadMode::Latest => &state.generations[..],
            ReadMode::Buffered => &state.generations[1..],
            // What the tree has a part of, or other trees have, is seen as a whole.
            ReadMode::Trie if state.generation_in_trees > keyspace.generation_merged => {
                let in_trees =
                    |generation: &Arc<Generation>| generation.id <= state.generation_in_trees;
                let first = state.generations.iter().position(in_trees);
                &state.generations[first.unwrap_or(state.generations.len())..]
            }
            ReadMode::Trie => &[],
        };
        View {
            pager,
            generations,
            slot,
            generation_merged: keyspace.generation_merged,
            // Where entries expire the buffers say all they have: the merge may have dropped what had not expired yet when this reader looked at
            // the clock.
            sliced: (keyspace.sliced.as_deref()).filter(|_| !keyspace.core.expires()),
            lookups: keyspace.lookups.as_deref(),
            csn,
            root: keyspace.root,
            now,
        }
    }

    /// Buffers that count for the keyspace, newest first.
    pub fn buffers(self) -> impl Iterator<Item = &'a Arc<crate::buffer::KeyspaceBuffer>> {
        self.buffers_beside_the_tree().map(|(buffer, _)| buffer)
    }

    /// The same, and from which key on they have something to say that the tree does not.
    pub fn buffers_beside_the_tree(
        self,
    ) -> impl Iterator<Item = (&'a Arc<crate::buffer::KeyspaceBuffer>, &'a [u8])> {
        self.generations
            .iter()
            .take_while(move |generation| generation.id > self.generation_merged)
            .filter_map(move |generation| {
                let sliced = self.sliced.filter(|s| generation.id <= s.generation);
                let from = sliced.map_or(&[][..], |sliced| &sliced.below);
                Some((generation.buffer(self.slot)?, from))
            })
    }

    /// Asks for what lookups of these keys, at most `PREFETCH_KEYS_MAX`, will need. A hint: errors are for the lookup.
    #[inline]
    pub fn announce(self, keys: &[&[u8]]) {
        let hashes = &hashes_of(keys)[..keys.len()];
        self.prefetch_directories(hashes);
        self.prefetch(keys, hashes, u32::MAX >> (32 - keys.len()));
    }

    /// Asks for the lines in which searches of the buffers begin.
    #[inline]
    pub fn prefetch_directories(self, hashes: &[u32]) {
        for buffer in self.buffers() {
            buffer.prefetch_directory(hashes);
        }
    }

    /// Asks for what lookups of these keys (one bit each in `missing`) will need; the lines of the directories were asked for. A hint:
    /// errors are for the lookup.
    pub fn prefetch(self, keys: &[&[u8]], hashes: &[u32], mut missing: u32) {
        for buffer in self.buffers() {
            missing = buffer.prefetch(keys, hashes, missing);
            if missing == 0 {
                return;
            }
        }
        match self.lookups {
            Some(lookups) => lookups.prefetch(self.pager, self.root, keys, missing),
            None => tree::prefetch(self.pager, self.root, keys, missing),
        }
    }

    #[inline]
    pub fn get(self, key: &[u8]) -> Result<Option<&'a [u8]>> {
        for buffer in self.buffers() {
            match buffer.get(key, self.csn) {
                Found::Absent => {}
                Found::Deleted => return Ok(None),
                Found::Value(stored) => return self.open(stored),
                Found::Large(pointer) => return self.open(read_large(self.pager, pointer)?),
            }
        }
        match self.get_in_tree(key)? {
            None => Ok(None),
            Some(stored) => self.open(read_stored(self.pager, stored)?),
        }
    }

    /// Not a part of [`get`](View::get), most of whose lookups may end in a buffer.
    #[inline(never)]
    fn get_in_tree(self, key: &[u8]) -> Result<Option<Stored<'a>>> {
        match self.lookups {
            Some(lookups) => lookups.get(self.pager, self.root, key),
            None => tree::get(self.pager, self.root, key),
        }
    }

    /// The value in one as it is stored.
    #[inline(always)]
    fn open(self, stored: &'a [u8]) -> Result<Option<&'a [u8]>> {
        if self.now == 0 {
            return Ok(Some(stored));
        }
        expiry::open_value(stored, self.now)
    }

    /// A value, and the moment of its expiry as stored: 0 for never.
    pub fn get_expiring(self, key: &[u8]) -> Result<Option<(u64, &'a [u8])>> {
        match (View { now: 0, ..self }).get(key)? {
            Some(stored) if self.now != 0 => expiry::open(stored, self.now),
            found => Ok(found.map(|value| (0, value))),
        }
    }
}

impl View<'_> {
    /// What is the value of a key, if that is a subtree.
    pub fn subtree(self, key: &[u8]) -> Result<Option<SubtreeRef>> {
        for buffer in self.buffers() {
            match buffer.get(key, self.csn) {
                Found::Absent => {}
                Found::Deleted | Found::Value(_) => return Ok(None),
                Found::Large(pointer) => return Ok(ValuePointer::decode(pointer).subtree()),
            }
        }
        Ok(match self.get_in_tree(key)? {
            Some(Stored::External(pointer)) => pointer.subtree(),
            _ => None,
        })
    }
}

/// Bytes of a value that a buffer refers to.
pub(crate) fn read_large<'a>(pager: &'a Pager, pointer: &[u8; 24]) -> Result<&'a [u8]> {
    pager.value(&ValuePointer::decode(pointer))
}

/// Bytes of a value that a leaf holds or refers to.
#[inline]
pub(crate) fn read_stored<'a>(pager: &'a Pager, stored: Stored<'a>) -> Result<&'a [u8]> {
    match stored {
        Stored::Inline(value) => Ok(value),
        Stored::External(pointer) => pager.value(&pointer),
    }
}
