//! How a buffer's writer finds the entry of a key, or inserts it: into the radix tree, and into the directory.
//!
//! Thread safety and invariants are those of `writer.rs`; the order of the stores that readers rely on is in `node.rs` and `directory.rs`.

use super::super::KEY_BYTES_MAX;
use super::super::arena::{LINE_BYTES, UNIT_BYTES};
use super::super::directory::{self, Table};
use super::super::entry::{Entry, EntryRef, entry_bytes};
use super::super::error::BufferError;
use super::super::keyspace::hash_of;
use super::super::node::{self, NODE_BYTES_MIN, Node, Position};
use super::super::walk::mismatch;
use super::BufferWriter;
use crate::sync::{AtomicU32, Ordering};

/// Keys whose last bytes are no further apart than this are taken for neighbours in a sequence.
const SEQUENCE_GAP_MAX: u8 = 8;

/// Where a child reference is kept: byte offset in the arena, or the root.
type Slot = Option<usize>;

impl BufferWriter {
    #[inline(always)]
    fn slot(&self, slot: Slot) -> &AtomicU32 {
        match slot {
            None => &self.buffer.root,
            Some(at) => self.memory().a32(at),
        }
    }

    /// Finds or inserts the entry of a key; `room_bytes` are reserved right behind a new one.
    #[inline]
    pub(super) fn find_or_insert(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            let before = self.entries();
            let entry = self.find_or_insert_in_tree(key, room_bytes)?;
            if self.entries() != before && self.entries() == directory::ENTRIES_MIN {
                self.build_directory();
            }
            return Ok(entry);
        };
        let hash = hash_of(key);
        if self.follows_newest(key) {
            table.prefetch(hash);
        } else if let Some(entry) = self.buffer.find_in(table, key, hash) {
            return Ok(entry.reference());
        }
        let before = self.entries();
        let entry = self.find_or_insert_in_tree(key, room_bytes)?;
        if self.entries() == before {
            return Ok(entry);
        }
        if let Some(table) = self.buffer.directory.table(self.memory()) {
            if table.is_full(self.entries()) {
                self.grow_directory(hash, entry);
            } else {
                table.insert(hash, entry.0);
            }
        }
        Ok(entry)
    }

    /// Whether the key comes right behind the one inserted last, as those of a sequence do. Then it is looked for in the tree, on the way
    /// that was gone a moment ago; the place in the directory of a key that was never there is in no cache.
    #[inline(always)]
    fn follows_newest(&self, key: &[u8]) -> bool {
        if self.newest.0 == 0 {
            return false;
        }
        let newest = Entry::of(self.memory(), self.newest).key();
        let (Some((rest, [low])), Some((newest_rest, [newest_low]))) =
            (key.split_last_chunk::<1>(), newest.split_last_chunk::<1>())
        else {
            return false;
        };
        rest == newest_rest && (1..=SEQUENCE_GAP_MAX).contains(&low.wrapping_sub(*newest_low))
    }

    fn entries(&self) -> u64 {
        self.buffer.written.entries.load(Ordering::Relaxed)
    }

    /// Arena memory for a table; `None` if there is no room.
    fn claim_table(&self, slots: u64) -> Option<Table<'_>> {
        let bytes = directory::table_bytes(slots);
        let chunk = self.buffer.arena().claim(bytes, bytes).ok()?;
        let taken = self.buffer.written.bytes.load(Ordering::Relaxed) + bytes;
        self.buffer.written.bytes.store(taken, Ordering::Relaxed);
        Some(Table::create(self.memory(), chunk.start as usize, slots))
    }

    #[cold]
    fn build_directory(&self) {
        // Half of what the last buffer took: a directory that is too small grows once, one that is too large is wasted.
        let expected = self.entries().max(self.buffer.entries_expected / 2);
        let Some(table) = self.claim_table(directory::slots_for(expected)) else {
            return;
        };
        let mut cursor = self.buffer.cursor();
        let mut more = cursor.first();
        while more {
            if let Some(entry) = cursor.entry() {
                table.insert(hash_of(cursor.key()), entry.0);
            }
            more = cursor.next();
        }
        self.buffer.directory.publish(table);
    }

    #[cold]
    fn grow_directory(&self, hash: u32, entry: EntryRef) {
        let Some(old) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        match self.claim_table(directory::slots_for(self.entries() * 2)) {
            Some(table) => {
                table.insert_all(old);
                table.insert(hash, entry.0);
                self.buffer.directory.publish(table);
            }
            None => self.buffer.directory.give_up(),
        }
    }

    #[inline]
    fn find_or_insert_in_tree(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let memory = self.memory();
        let mut reference = self.buffer.root.load(Ordering::Relaxed);
        let mut slot: Slot = None;
        // The node that has no child for the key, and the slot that leads to it.
        let mut last: Option<(u32, Slot)> = None;
        while !node::is_entry(reference) {
            if reference == 0 {
                break;
            }
            let node = Node::new(memory, reference);
            let depth = node.depth();
            last = Some((reference, slot));
            let Some(position) = position_in(key, depth) else {
                reference = 0;
                break;
            };
            slot = node.slot_at(position);
            reference = match slot {
                Some(at) => memory.a32(at).load(Ordering::Relaxed),
                None => 0,
            };
        }
        let sample = if reference != 0 {
            reference
        } else if let Some((last, _)) = last {
            Node::new(memory, last).sample()
        } else {
            return self.insert_first(key, room_bytes);
        };
        let sample_key = Entry::new(memory, node::offset(sample)).key();
        if reference != 0 && sample_key == key {
            return Ok(Entry::new(memory, node::offset(reference)).reference());
        }
        let differs_at = mismatch(key, sample_key);
        let room_bytes = entry_bytes_checked(key)? + room_bytes;
        if reference == 0
            && let Some((last, slot)) = last
            && Node::new(memory, last).depth() == differs_at
        {
            return self.add_child(last, slot, key, room_bytes);
        }
        self.split(key, differs_at, sample, room_bytes)
    }

    #[cold]
    fn insert_first(&mut self, key: &[u8], room_bytes: usize) -> Result<EntryRef, BufferError> {
        let room_bytes = entry_bytes_checked(key)? + room_bytes;
        self.reserve(room_bytes + LINE_BYTES)?;
        let entry = self.create_entry(key, room_bytes)?;
        self.publish(None, entry_reference_of(entry));
        Ok(entry)
    }

    /// Adds the key below a node that has no child for it yet.
    fn add_child(
        &mut self,
        reference: u32,
        slot: Slot,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let node = Node::new(self.memory(), reference);
        // The key shares all bytes before the depth, so it is not shorter.
        let position = position_in(key, node.depth()).unwrap_or(0);
        if position == 0 || node.has_room() {
            self.reserve(room_bytes + LINE_BYTES)?;
            let entry = self.create_entry(key, room_bytes)?;
            Node::new(self.memory(), reference).add(position, entry_reference_of(entry));
            self.count_entry();
            return Ok(entry);
        }
        let grown_bytes = node.grown_bytes();
        self.reserve(grown_bytes + room_bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(grown_bytes, grown_bytes)?;
        let entry = self.create_entry(key, room_bytes)?;
        let grown = Node::new(self.memory(), reference).grow(at);
        grown.add(position, entry_reference_of(entry));
        self.publish(slot, grown.reference());
        Ok(entry)
    }

    /// Puts a new node above the subtree that first differs from the key at byte `differs_at`.
    fn split(
        &mut self,
        key: &[u8],
        differs_at: usize,
        sample: u32,
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        // Everything above the difference agrees with the key, so all slots on the way exist.
        let memory = self.memory();
        let mut slot: Slot = None;
        let mut below = self.buffer.root.load(Ordering::Relaxed);
        while !node::is_entry(below) {
            let node = Node::new(memory, below);
            let depth = node.depth();
            if depth > differs_at {
                break;
            }
            debug_assert!(depth < differs_at);
            slot = position_in(key, depth).and_then(|position| node.slot_at(position));
            below = self.slot(slot).load(Ordering::Relaxed);
        }
        let sample_key = Entry::new(memory, node::offset(sample)).key();
        let position_below = position_in(sample_key, differs_at).unwrap_or(0);
        let position_key = position_in(key, differs_at).unwrap_or(0);
        debug_assert_ne!(position_below, position_key);
        self.reserve(NODE_BYTES_MIN + room_bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(NODE_BYTES_MIN, NODE_BYTES_MIN)?;
        let entry = self.create_entry(key, room_bytes)?;
        let node = Node::create(self.memory(), at, differs_at, sample);
        node.add(position_below, below);
        node.add(position_key, entry_reference_of(entry));
        self.publish(slot, node.reference());
        Ok(entry)
    }

    /// `use_bytes`: the entry and what will be put behind it.
    fn create_entry(&mut self, key: &[u8], use_bytes: usize) -> Result<EntryRef, BufferError> {
        let at = self.allocate_lined(entry_bytes(key.len()), use_bytes)?;
        self.newest = Entry::create(self.memory(), at, key).reference();
        Ok(self.newest)
    }

    /// Makes a new subtree reachable, with one entry more than before.
    fn publish(&self, slot: Slot, reference: u32) {
        self.slot(slot).store(reference, Ordering::Release);
        self.count_entry();
    }

    fn count_entry(&self) {
        let entries = self.buffer.written.entries.load(Ordering::Relaxed) + 1;
        self.buffer
            .written
            .entries
            .store(entries, Ordering::Relaxed);
    }
}

#[inline(always)]
fn entry_reference_of(entry: EntryRef) -> u32 {
    node::entry_reference(entry.0 as usize * UNIT_BYTES)
}

/// Where a key goes on in a node of this depth; `None` if it ends before.
#[inline(always)]
fn position_in(key: &[u8], depth: usize) -> Option<Position> {
    match key.get(depth) {
        Some(&byte) => Some(1 + Position::from(byte)),
        None if depth == key.len() => Some(0),
        None => None,
    }
}

fn entry_bytes_checked(key: &[u8]) -> Result<usize, BufferError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(BufferError::KeyTooLong { bytes: key.len() });
    }
    Ok(entry_bytes(key.len()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::{Arena, KeyspaceBuffer};
    use crate::sync::Arc;

    /// Keys that follow the newest one, new and present ones, over the ends of a byte: each has one entry, once in the tree and once in
    /// the directory.
    #[test]
    fn a_sequence_has_every_key_once() {
        let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(4 << 20).unwrap()));
        let mut writer = buffer.writer().unwrap();
        let mut entries = std::collections::BTreeMap::new();
        let mut followed = 0;
        let mut put = |number: u32| {
            let key = number.to_be_bytes();
            let is_new = !entries.contains_key(&key);
            followed += u32::from(!is_new && writer.follows_newest(&key));
            let entry = writer.entry(&key).unwrap();
            assert_eq!(*entries.entry(key).or_insert(entry), entry);
        };
        (0..1000).step_by(4).for_each(&mut put);
        for number in (1..1000).step_by(4) {
            put(number);
            put(number + 1);
            put(number + 3);
        }
        assert!(
            followed > 200,
            "only {followed} keys were there and followed"
        );
        assert_eq!(buffer.stats().entries, entries.len() as u64);
        let table = buffer.directory.table(buffer.memory()).unwrap();
        for (key, entry) in entries {
            assert_eq!(writer.find_entry(&key), Some(entry));
            let places = table.candidates(hash_of(&key));
            assert_eq!(places.filter(|&place| place == entry.0).count(), 1);
        }
    }
}
