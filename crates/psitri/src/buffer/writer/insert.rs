//! How a buffer's writer finds the entry of a key, or inserts it: into the radix tree, and into the directory.
//!
//! Thread safety and invariants are those of `writer.rs`; the order of the stores that readers rely on is in `node.rs` and `directory.rs`.

use super::super::KEY_BYTES_MAX;
use super::super::arena::{LINE_BYTES, UNIT_BYTES};
use super::super::bucket::{Bucket, CAPACITY_LARGE, CAPACITY_SMALL, bucket_bytes, capacity_for};
use super::super::directory::{self, Table};
use super::super::entry::{Entry, EntryRef, entry_bytes};
use super::super::error::BufferError;
use super::super::keyspace::hash_of;
use super::super::node::{self, NODE_BYTES_MIN, Node, Position};
use super::super::walk::mismatch;
use super::BufferWriter;
use super::run::Step;
use crate::sync::{AtomicU32, Ordering};

/// What takes the place of a bucket that is full takes no more: a node, and buckets of two entries or more. Each may begin a line.
const BURST_BYTES_MAX: usize = {
    let entries = CAPACITY_LARGE + 1;
    let buckets = entries / 2;
    node::node_bytes_for(entries)
        + LINE_BYTES
        + buckets * (bucket_bytes(CAPACITY_SMALL) + LINE_BYTES)
        + bucket_bytes(CAPACITY_LARGE)
};

/// Address space for each entry that is expected, at least: a table takes no more than a fiftieth of it at first.
const ADDRESS_BYTES_PER_ENTRY: u64 = 512;

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

    /// Finds or inserts the entry of a key; `room_bytes` are reserved for what is put behind a new one, and right behind it
    /// but where a bucket bursts.
    #[inline]
    pub(super) fn find_or_insert(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            let before = self.entries();
            let entry = self.find_or_insert_in_tree(key, room_bytes, false)?;
            if self.entries() != before && self.entries() == directory::ENTRIES_MIN {
                self.build_directory();
            }
            return Ok(entry);
        };
        let step = self.run.step(self.memory(), key);
        let is_left_out = step != Step::Other && self.leaves_out(key);
        let hash = match step == Step::Beside && is_left_out {
            true => 0,
            false => hash_of(key),
        };
        let inserted = if step == Step::Beside {
            // The neighbour's place in the tree was gone to a moment ago; that in the directory of a key that was never there is in no cache.
            if !is_left_out {
                table.prefetch(hash);
            }
            self.insert_beside_run(key, room_bytes)?
        } else if let Some(entry) = self.buffer.find_in(table, key, hash) {
            return Ok(entry.reference());
        } else {
            None
        };
        let entry = match inserted {
            Some(entry) => entry,
            None => {
                let before = self.entries();
                let is_beside = step == Step::Beside;
                let entry = self.find_or_insert_in_tree(key, room_bytes, is_beside)?;
                if self.entries() == before {
                    return Ok(entry);
                }
                entry
            }
        };
        let memory = self.buffer.memory();
        self.run.inserted(memory, step, entry, self.parent);
        if is_left_out {
            self.leave_out(entry);
        } else {
            self.add_to_directory(hash, entry);
        }
        Ok(entry)
    }

    /// Inserts a key beside the last one of the run, if that takes no search: the node has room, and no child for it.
    #[inline(always)]
    fn insert_beside_run(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<Option<EntryRef>, BufferError> {
        let reference = self.run.node();
        if reference == 0 {
            return Ok(None);
        }
        let node = Node::new(self.memory(), reference);
        // All keys below the node agree up to there: with the last one of the run, and so with this one.
        let depth = node.depth();
        if depth + 1 != key.len() || !node.has_room() {
            return Ok(None);
        }
        if position_in(key, depth).is_none_or(|position| node.child_at(position) != 0) {
            return Ok(None);
        }
        let room_bytes = entry_bytes_checked(key)? + room_bytes;
        self.add_child(reference, None, key, room_bytes).map(Some)
    }

    /// Whether a key of the run, if it is new, does without a place in the directory.
    #[inline(always)]
    fn leaves_out(&self, key: &[u8]) -> bool {
        let last = &self.buffer.written.sequence_last;
        self.run.is_long(self.memory())
            && self
                .buffer
                .directory_entries()
                .max(self.buffer.entries_expected)
                >= directory::SEQUENCE_FROM
            && self.buffer.sequence.takes(self.memory(), last, key)
    }

    #[inline(always)]
    fn leave_out(&self, entry: EntryRef) {
        let written = &self.buffer.written;
        let last = &written.sequence_last;
        self.buffer.sequence.append(self.memory(), last, entry);
        let entries = written.sequence_entries.load(Ordering::Relaxed) + 1;
        written.sequence_entries.store(entries, Ordering::Relaxed);
    }

    #[inline]
    fn add_to_directory(&self, hash: u32, entry: EntryRef) {
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        if table.is_too_small(self.buffer.directory_entries(), entry) {
            self.grow_directory(hash, entry);
        } else {
            table.insert(hash, entry);
        }
    }

    fn entries(&self) -> u64 {
        self.buffer.written.entries.load(Ordering::Relaxed)
    }

    /// An empty table; `None` if there is no room.
    fn claim_table(&self, lines: u64) -> Option<Table<'_>> {
        let bytes = directory::table_bytes(lines);
        let chunk = self.buffer.arena().claim(bytes, bytes).ok()?;
        let taken = self.buffer.written.bytes.load(Ordering::Relaxed) + bytes;
        self.buffer.written.bytes.store(taken, Ordering::Relaxed);
        let at = chunk.start as usize;
        Some(Table::create(self.memory(), at, lines))
    }

    #[cold]
    fn build_directory(&self) {
        // However many there were in a buffer that was larger.
        let most = self.buffer.arena().bytes_max() / ADDRESS_BYTES_PER_ENTRY;
        let expected = self.buffer.entries_expected.min(most);
        let lines = directory::lines_for(self.entries().max(expected));
        let Some(table) = self.claim_table(lines) else {
            return;
        };
        let mut cursor = self.buffer.cursor();
        let mut more = cursor.first();
        while more {
            if let Some(entry) = cursor.entry() {
                table.insert(hash_of(cursor.key()), entry);
            }
            more = cursor.next();
        }
        self.buffer.directory.publish(table);
    }

    /// A table with a new entry, in the place of one that has no room for it.
    #[cold]
    fn grow_directory(&self, hash: u32, entry: EntryRef) {
        let Some(old) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        match self.claim_table(old.lines_after(self.buffer.directory_entries())) {
            Some(table) => {
                table.insert_all(old);
                table.insert(hash, entry);
                self.buffer.directory.publish(table);
            }
            None => self.buffer.directory.give_up(),
        }
    }

    /// `is_beside`: the key is the next of many that differ in the last byte. Nodes suit them better than buckets.
    #[inline]
    fn find_or_insert_in_tree(
        &mut self,
        key: &[u8],
        room_bytes: usize,
        is_beside: bool,
    ) -> Result<EntryRef, BufferError> {
        let memory = self.memory();
        let mut reference = self.buffer.root.load(Ordering::Relaxed);
        let mut slot: Slot = None;
        // The node that has no child for the key, and the slot that leads to it.
        let mut last: Option<(u32, Slot)> = None;
        while node::is_inner(reference) {
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
        let sample = if node::is_bucket(reference) {
            let bucket = Bucket::new(memory, reference);
            if bucket.agrees(key) {
                let order = bucket.order();
                return match bucket.search(order, key) {
                    Ok(rank) => {
                        let at = node::offset(bucket.entry(order, rank));
                        Ok(Entry::new(memory, at).reference())
                    }
                    Err(rank) => {
                        let room_bytes = entry_bytes_checked(key)? + room_bytes;
                        self.add_to_bucket(reference, slot, rank, key, room_bytes)
                    }
                };
            }
            bucket.sample()
        } else if reference != 0 {
            reference
        } else if let Some((last, _)) = last {
            Node::new(memory, last).sample()
        } else {
            return self.insert_first(key, room_bytes);
        };
        let sample_key = Entry::new(memory, node::offset(sample)).key();
        if node::is_entry(reference) && sample_key == key {
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
        self.split(key, differs_at, sample, room_bytes, is_beside)
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
            self.parent = reference;
            self.count_entry();
            return Ok(entry);
        }
        let grown_bytes = node.grown_bytes();
        self.reserve(grown_bytes + room_bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(grown_bytes, grown_bytes)?;
        let entry = self.create_entry(key, room_bytes)?;
        let grown = Node::new(self.memory(), reference).grow(at);
        grown.add(position, entry_reference_of(entry));
        let grown = grown.reference();
        self.publish(slot, grown);
        self.run.replaced(reference, grown);
        self.parent = grown;
        Ok(entry)
    }

    /// Adds the key to what first differs from it at byte `differs_at`: the key and an entry become a bucket, a bucket with room takes the key, a
    /// node above others has both as children.
    fn split(
        &mut self,
        key: &[u8],
        differs_at: usize,
        sample: u32,
        room_bytes: usize,
        is_beside: bool,
    ) -> Result<EntryRef, BufferError> {
        // Everything above the difference agrees with the key, so all slots on the way exist.
        let memory = self.memory();
        let mut slot: Slot = None;
        let mut below = self.buffer.root.load(Ordering::Relaxed);
        while node::is_inner(below) {
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
        let is_above = key.get(differs_at) > sample_key.get(differs_at);
        if node::is_bucket(below)
            && let order = Bucket::new(memory, below).order()
            && order.len() < CAPACITY_LARGE
        {
            let rank = if is_above { order.len() } else { 0 };
            return self.replace_bucket(below, slot, differs_at, rank, key, room_bytes);
        }
        if node::is_entry(below) && !is_beside {
            let bytes = bucket_bytes(CAPACITY_SMALL);
            self.reserve(bytes + room_bytes + 2 * LINE_BYTES)?;
            let at = self.allocate_lined(bytes, bytes)?;
            let entry = self.create_entry(key, room_bytes)?;
            let bucket = Bucket::create(self.memory(), at, CAPACITY_SMALL, differs_at);
            bucket.insert(0, below);
            bucket.insert(usize::from(is_above), entry_reference_of(entry));
            let bucket = bucket.reference();
            self.publish(slot, bucket);
            self.parent = 0;
            return Ok(entry);
        }
        let position_below = position_in(sample_key, differs_at).unwrap_or(0);
        let position_key = position_in(key, differs_at).unwrap_or(0);
        debug_assert_ne!(position_below, position_key);
        self.reserve(NODE_BYTES_MIN + room_bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(NODE_BYTES_MIN, NODE_BYTES_MIN)?;
        let entry = self.create_entry(key, room_bytes)?;
        let node = Node::create(self.memory(), at, 2, differs_at, sample);
        node.add(position_below, below);
        node.add(position_key, entry_reference_of(entry));
        let node = node.reference();
        self.publish(slot, node);
        self.parent = node;
        Ok(entry)
    }

    /// Inserts a key, which agrees with the others as far as they all do, at a rank of a bucket.
    fn add_to_bucket(
        &mut self,
        reference: u32,
        slot: Slot,
        rank: usize,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let bucket = Bucket::new(self.memory(), reference);
        if !bucket.has_room() {
            let depth = bucket.depth();
            return self.replace_bucket(reference, slot, depth, rank, key, room_bytes);
        }
        self.reserve(room_bytes + LINE_BYTES)?;
        let entry = self.create_entry(key, room_bytes)?;
        Bucket::new(self.memory(), reference).insert(rank, entry_reference_of(entry));
        self.count_entry();
        self.parent = 0;
        Ok(entry)
    }

    /// Puts another bucket, or a node if there are too many entries, in the place of a bucket, with a key more. All keys agree before `depth`.
    #[cold]
    fn replace_bucket(
        &mut self,
        reference: u32,
        slot: Slot,
        depth: usize,
        rank: usize,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let bucket = Bucket::new(self.memory(), reference);
        let order = bucket.order();
        let count = order.len() + 1;
        if count > CAPACITY_LARGE {
            bucket.prefetch_entries(order);
            self.reserve(room_bytes + LINE_BYTES + BURST_BYTES_MAX)?;
            let entry = self.create_entry(key, room_bytes)?;
            let bucket = Bucket::new(self.memory(), reference);
            let mut entries = [0; CAPACITY_LARGE + 1];
            entries[rank] = entry_reference_of(entry);
            for (at, old) in (0..count).filter(|&at| at != rank).zip(0..) {
                entries[at] = bucket.entry(order, old);
            }
            let node = self.burst(&entries, entry)?;
            self.publish(slot, node);
            return Ok(entry);
        }
        let capacity = capacity_for(count);
        let bytes = bucket_bytes(capacity);
        self.reserve(room_bytes + bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(bytes, bytes)?;
        let entry = self.create_entry(key, room_bytes)?;
        let bucket = Bucket::new(self.memory(), reference);
        let replacement = Bucket::create(self.memory(), at, capacity, depth);
        for old in 0..order.len() {
            let head = bucket.head_at_depth(order, old, depth);
            replacement.insert_headed(old, bucket.entry(order, old), head);
        }
        replacement.insert(rank, entry_reference_of(entry));
        let replacement = replacement.reference();
        self.publish(slot, replacement);
        self.parent = 0;
        Ok(entry)
    }

    /// A bucket of entries in order. The caller has reserved its memory.
    fn create_bucket(&mut self, depth: usize, entries: &[u32]) -> Result<u32, BufferError> {
        let capacity = capacity_for(entries.len());
        let bytes = bucket_bytes(capacity);
        let at = self.allocate_lined(bytes, bytes)?;
        let bucket = Bucket::create(self.memory(), at, capacity, depth);
        for (rank, &entry) in entries.iter().enumerate() {
            bucket.insert(rank, entry);
        }
        Ok(bucket.reference())
    }

    /// A node over entries in order, those that agree in the byte where others differ in buckets. `new` is one of them.
    fn burst(&mut self, entries: &[u32], new: EntryRef) -> Result<u32, BufferError> {
        let depth = self.shared_bytes(entries);
        let position =
            |writer: &Self, entry: u32| position_in(writer.key_at(entry), depth).unwrap_or(0);
        let children = 1
            + (entries.windows(2))
                .filter(|pair| position(self, pair[0]) != position(self, pair[1]))
                .count();
        let bytes = node::node_bytes_for(children);
        let at = self.allocate_lined(bytes, bytes)?;
        let node = Node::create(self.memory(), at, children, depth, entries[0]).reference();
        self.parent = 0;
        let mut rest = entries;
        while let Some(&first) = rest.first() {
            let here = position(self, first);
            let count = (rest.iter())
                .take_while(|&&entry| position(self, entry) == here)
                .count();
            let (group, others) = rest.split_at(count);
            let child = match group {
                [entry] => {
                    if *entry == entry_reference_of(new) {
                        self.parent = node;
                    }
                    *entry
                }
                _ => self.create_bucket(self.shared_bytes(group), group)?,
            };
            Node::new(self.memory(), node).add(here, child);
            rest = others;
        }
        Ok(node)
    }

    /// Bytes in which the keys of entries in order agree.
    fn shared_bytes(&self, entries: &[u32]) -> usize {
        let [first, .., last] = entries else {
            return 0;
        };
        mismatch(self.key_at(*first), self.key_at(*last))
    }

    fn key_at(&self, reference: u32) -> &[u8] {
        Entry::new(self.memory(), node::offset(reference)).key()
    }

    /// `use_bytes`: the entry and what will be put behind it.
    fn create_entry(&mut self, key: &[u8], use_bytes: usize) -> Result<EntryRef, BufferError> {
        let at = self.allocate_lined(entry_bytes(key.len()), use_bytes)?;
        Ok(Entry::create(self.memory(), at, key).reference())
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
    use std::collections::BTreeMap;

    /// Puts keys, and checks that each has one entry, in one place: in the directory, or in what was left out of it.
    struct Checked {
        buffer: Arc<KeyspaceBuffer>,
        writer: BufferWriter,
        entries: BTreeMap<Vec<u8>, EntryRef>,
    }

    impl Checked {
        fn new() -> Checked {
            let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(4 << 20).unwrap()));
            Checked {
                writer: buffer.writer().unwrap(),
                buffer,
                entries: BTreeMap::new(),
            }
        }

        fn put(&mut self, key: &[u8]) {
            let entry = self.writer.entry(key).unwrap();
            assert_eq!(*self.entries.entry(key.to_vec()).or_insert(entry), entry);
        }

        /// Returns how many were left out.
        fn check(&self) -> u64 {
            let buffer = &self.buffer;
            assert_eq!(buffer.stats().entries, self.entries.len() as u64);
            let table = buffer.directory.table(buffer.memory()).unwrap();
            let mut left_out = 0;
            for (key, &entry) in &self.entries {
                assert_eq!(self.writer.find_entry(key), Some(entry));
                let places = table.candidates(hash_of(key));
                match places.filter(|&place| place == entry.0).count() {
                    0 => left_out += 1,
                    places => assert_eq!(places, 1),
                }
                let above = [key, &[0][..]].concat();
                let found = self.entries.get(&above).copied();
                assert_eq!(self.writer.find_entry(&above), found);
                let in_tree = |key: &[u8]| buffer.find_in_tree(key).map(Entry::reference);
                assert_eq!((in_tree(key), in_tree(&above)), (Some(entry), found));
            }
            let (mut cursor, mut back) = (buffer.cursor(), buffer.cursor());
            let (mut more, mut less) = (cursor.first(), back.last());
            for (key, &entry) in &self.entries {
                assert!(more && cursor.key() == key && cursor.entry() == Some(entry));
                more = cursor.next();
            }
            for (key, &entry) in self.entries.iter().rev() {
                assert!(less && back.key() == key && back.entry() == Some(entry));
                less = back.prev();
            }
            assert!(!more && !less);
            let in_directory = self.entries.len() as u64 - left_out;
            assert_eq!(buffer.directory_entries(), in_directory);
            left_out
        }
    }

    #[test]
    fn a_sequence_has_every_key_once() {
        let mut checked = Checked::new();
        (0..1000u32)
            .step_by(4)
            .for_each(|n| checked.put(&n.to_be_bytes()));
        assert!(checked.check() > 200);
        for number in (1..1000u32).step_by(4) {
            checked.put(&number.to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&(number + 3).to_be_bytes());
        }
        (500..3000u32).for_each(|n| checked.put(&n.to_be_bytes()));
        assert!(checked.check() > 2000);
    }

    /// Keys that end where others go on, with zeros behind; random ones of few letters; words over one stem; keys as long as may be.
    #[test]
    fn buckets_have_every_key_once_whatever_keys_have_in_common() {
        let random = |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        for seed in 1..40u64 {
            let mut checked = Checked::new();
            let letters = 2 + random(seed) % 5;
            for number in 0..1500u64 {
                let mut word = random(seed << 32 | number);
                let mut key = match word % 4 {
                    0 => b"a stem in common ".to_vec(),
                    1 => vec![0; (word >> 60) as usize],
                    _ => Vec::new(),
                };
                for _ in 0..(word >> 8) % 12 {
                    word = random(word);
                    key.push([0, b'a', 1, 0xff, b'b', b'c', b'd'][(word % letters) as usize]);
                }
                checked.put(&key);
                if number % 500 == 0 {
                    key.resize(KEY_BYTES_MAX, number as u8);
                    checked.put(&key);
                    *key.last_mut().unwrap() ^= 1;
                    checked.put(&key);
                }
            }
            checked.check();
        }
    }

    #[test]
    fn decimal_numbers_are_found_and_have_their_places() {
        let mut checked = Checked::new();
        for number in 0..5000 {
            checked.put(format!("user:{number:09}").as_bytes());
        }
        assert!(checked.check() < 50, "they are not dense");
    }

    /// A log among accounts that are new as well, a second log, and keys that others are prefixes of.
    #[test]
    fn a_sequence_among_others_is_left_out() {
        let mut checked = Checked::new();
        for number in 0..3000u64 {
            checked.put(&[b"log", &number.to_be_bytes()[..]].concat());
            checked.put(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            if number % 3 == 0 {
                checked.put(&[b"lot", &number.to_be_bytes()[..]].concat());
                checked.put(&[b"log", &number.to_be_bytes()[..], b"x"].concat());
            }
            if number > 2500 {
                checked.put(&[b"log", &(2 * number).to_be_bytes()[..]].concat());
            }
            if number % 7 == 0 {
                checked.put(&vec![7; number as usize / 50]);
            }
        }
        assert!(checked.check() > 1000);
    }
}
