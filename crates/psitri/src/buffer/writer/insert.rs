//! How a buffer's writer finds the entry of a key, or inserts it: into the directory, and into the radix tree.
//!
//! Thread safety and invariants are those of `writer.rs` and `placing.rs`; the order of the stores that readers rely on is in `node.rs` and
//! `directory.rs`.

use super::super::KEY_BYTES_MAX;
use super::super::arena::{LINE_BYTES, UNIT_BYTES};
use super::super::bucket::{Bucket, CAPACITY_LARGE, CAPACITY_SMALL, bucket_bytes, capacity_for};
use super::super::directory::{self, Table};
use super::super::entry::{Entry, EntryRef, entry_bytes};
use super::super::error::BufferError;
use super::super::keyspace::hash_of;
use super::super::node::{self, NODE_BYTES_MIN, Node, Position};
use super::super::walk::mismatch;
use super::placing::Inserter;
use super::run::Step;
use crate::sync::{AtomicU32, Ordering};

/// What takes the place of a bucket that is full takes no more: a node, and buckets of two entries or more. Each may begin a line.
pub(super) const BURST_BYTES_MAX: usize = {
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

/// What a slot leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    slot: Slot,
    pub reference: u32,
}

/// What is to be inserted.
#[derive(Clone, Copy)]
pub(super) enum New {
    /// A key, with so many bytes for what is put behind its entry.
    Key { room_bytes: usize },
    /// An entry that waits.
    Waiting(EntryRef),
}

/// What is to be inserted, and what it takes.
#[derive(Clone, Copy)]
struct Insertion {
    waiting: Option<EntryRef>,
    bytes: usize,
}

impl New {
    #[inline(always)]
    fn insertion(self, key: &[u8]) -> Result<Insertion, BufferError> {
        Ok(match self {
            New::Key { room_bytes } => Insertion {
                waiting: None,
                bytes: entry_bytes_checked(key)? + room_bytes,
            },
            New::Waiting(entry) => Insertion {
                waiting: Some(entry),
                bytes: 0,
            },
        })
    }
}

impl Inserter<'_> {
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
    pub fn find_or_insert(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let new = New::Key { room_bytes };
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            let before = self.entries();
            let entry = self.find_or_insert_in_tree(key, new, self.top(), false)?;
            if self.entries() != before && self.entries() == directory::ENTRIES_MIN {
                self.build_directory();
            }
            return Ok(entry);
        };
        let step = self.placing.run.step(self.memory(), key);
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
            self.settle_key(key);
            self.make_room(key, room_bytes);
            self.insert_beside_run(key, new)?
        } else if let Some(entry) = self.buffer.find_in(table, key, hash) {
            return Ok(entry.reference());
        } else if step == Step::Other
            && let Some(entry) = self.insert_waiting(key, room_bytes)?
        {
            self.placing.run.inserted(self.memory(), step, entry, 0);
            self.add_to_directory(hash, entry);
            return Ok(entry);
        } else {
            self.make_room(key, room_bytes);
            None
        };
        let entry = match inserted {
            Some(entry) => entry,
            None => {
                let before = self.entries();
                let is_beside = step == Step::Beside;
                let entry = self.find_or_insert_in_tree(key, new, self.top(), is_beside)?;
                if self.entries() == before {
                    return Ok(entry);
                }
                entry
            }
        };
        let parent = self.placing.parent;
        self.placing
            .run
            .inserted(self.memory(), step, entry, parent);
        if is_left_out {
            self.leave_out(entry);
        } else {
            self.add_to_directory(hash, entry);
        }
        Ok(entry)
    }

    /// Inserts a key beside the last one of the run, if that takes no search: the node has room, and no child for it.
    #[inline(always)]
    fn insert_beside_run(&mut self, key: &[u8], new: New) -> Result<Option<EntryRef>, BufferError> {
        let reference = self.placing.run.node();
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
        // There is room: what leads to the node stays.
        let place = Place {
            slot: None,
            reference,
        };
        self.add_child(place, key, new.insertion(key)?).map(Some)
    }

    /// Whether a key of the run, if it is new, does without a place in the directory.
    #[inline(always)]
    fn leaves_out(&self, key: &[u8]) -> bool {
        let last = &self.buffer.written.sequence_last;
        self.placing.run.is_long(self.memory())
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
    fn add_to_directory(&mut self, hash: u32, entry: EntryRef) {
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
    fn grow_directory(&mut self, hash: u32, entry: EntryRef) {
        let Some(old) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        match self.claim_table(old.lines_after(self.buffer.directory_entries())) {
            Some(table) => {
                table.insert_all(old);
                table.insert(hash, entry);
                self.buffer.directory.publish(table);
            }
            None => {
                // Nothing else finds them.
                self.settle();
                self.buffer.directory.give_up();
            }
        }
    }

    /// Where walks begin.
    #[inline(always)]
    pub fn top(&self) -> Place {
        Place {
            slot: None,
            reference: self.buffer.root.load(Ordering::Relaxed),
        }
    }

    /// The place below an inner node on the way to a key's; `None` if the node has no child for the key.
    #[inline(always)]
    pub fn below(&self, node: Node<'_>, key: &[u8]) -> Option<Place> {
        let slot = node.slot_at(position_in(key, node.depth())?);
        let reference = self.memory().a32(slot?).load(Ordering::Relaxed);
        (reference != 0).then_some(Place { slot, reference })
    }

    /// `from`: a place on the way, if need be the top. `is_beside`: the key is the next of many that differ in the last byte. Nodes suit them
    /// better than buckets.
    #[inline]
    pub fn find_or_insert_in_tree(
        &mut self,
        key: &[u8],
        new: New,
        from: Place,
        is_beside: bool,
    ) -> Result<EntryRef, BufferError> {
        let memory = self.memory();
        let mut place = from;
        // Of the last inner node on the way.
        let mut depth_last = None;
        while node::is_inner(place.reference) {
            let node = Node::new(memory, place.reference);
            depth_last = Some(node.depth());
            match self.below(node, key) {
                Some(below) => place = below,
                None => break,
            }
        }
        let Place { slot, reference } = place;
        // The way ends with a node that has no child for the key.
        let is_childless = node::is_inner(reference);
        let sample = if is_childless {
            Node::new(memory, reference).sample()
        } else if node::is_bucket(reference) {
            let bucket = Bucket::new(memory, reference);
            if bucket.agrees(key) {
                let order = bucket.order();
                return match bucket.search(order, key) {
                    Ok(rank) => {
                        let at = node::offset(bucket.entry(order, rank));
                        Ok(Entry::new(memory, at).reference())
                    }
                    Err(rank) => {
                        self.add_to_bucket(reference, slot, rank, key, new.insertion(key)?)
                    }
                };
            }
            bucket.sample()
        } else if reference != 0 {
            reference
        } else {
            return self.insert_first(key, new.insertion(key)?);
        };
        let sample_key = Entry::new(memory, node::offset(sample)).key();
        if node::is_entry(reference) && sample_key == key {
            return Ok(Entry::new(memory, node::offset(reference)).reference());
        }
        let differs_at = mismatch(key, sample_key);
        let insertion = new.insertion(key)?;
        if is_childless && depth_last == Some(differs_at) {
            return self.add_child(place, key, insertion);
        }
        // Where the key differs from what is below the last node, that is where it comes; further up it is elsewhere.
        let place = match depth_last.is_none_or(|depth| depth < differs_at) {
            true => place,
            false => self.above(key, differs_at),
        };
        self.split(key, differs_at, sample, place, insertion, is_beside)
    }

    /// The place for a key that first differs from the others there at byte `differs_at`: the first one below which all agree up to that byte.
    fn above(&self, key: &[u8], differs_at: usize) -> Place {
        let mut place = self.top();
        while node::is_inner(place.reference) {
            let node = Node::new(self.memory(), place.reference);
            let depth = node.depth();
            if depth > differs_at {
                break;
            }
            debug_assert!(depth < differs_at);
            let below = self.below(node, key);
            place = below.expect("all keys there agree with this one up to the difference");
        }
        place
    }

    #[cold]
    fn insert_first(&mut self, key: &[u8], insertion: Insertion) -> Result<EntryRef, BufferError> {
        self.reserve(insertion.bytes + LINE_BYTES)?;
        let entry = self.create(key, insertion)?;
        self.publish(None, entry_reference_of(entry));
        Ok(entry)
    }

    /// Adds the key below a node that has no child for it yet.
    fn add_child(
        &mut self,
        Place { slot, reference }: Place,
        key: &[u8],
        insertion: Insertion,
    ) -> Result<EntryRef, BufferError> {
        let node = Node::new(self.memory(), reference);
        // The key shares all bytes before the depth, so it is not shorter.
        let position = position_in(key, node.depth()).unwrap_or(0);
        if position == 0 || node.has_room() {
            self.reserve(insertion.bytes + LINE_BYTES)?;
            let entry = self.create(key, insertion)?;
            Node::new(self.memory(), reference).add(position, entry_reference_of(entry));
            self.placing.parent = reference;
            return Ok(entry);
        }
        let grown_bytes = node.grown_bytes();
        self.reserve(grown_bytes + insertion.bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(grown_bytes, grown_bytes)?;
        let entry = self.create(key, insertion)?;
        let grown = Node::new(self.memory(), reference).grow(at);
        grown.add(position, entry_reference_of(entry));
        let grown = grown.reference();
        debug_assert_eq!(self.slot(slot).load(Ordering::Relaxed), reference);
        self.publish(slot, grown);
        self.placing.has_moved = true;
        self.placing.run.replaced(reference, grown);
        self.placing.parent = grown;
        Ok(entry)
    }

    /// Adds the key to what first differs from it at byte `differs_at`: the key and an entry become a bucket, a bucket with room takes the key, a
    /// node above others has both as children.
    fn split(
        &mut self,
        key: &[u8],
        differs_at: usize,
        sample: u32,
        Place {
            slot,
            reference: below,
        }: Place,
        insertion: Insertion,
        is_beside: bool,
    ) -> Result<EntryRef, BufferError> {
        let memory = self.memory();
        let sample_key = Entry::new(memory, node::offset(sample)).key();
        let is_above = key.get(differs_at) > sample_key.get(differs_at);
        if node::is_bucket(below)
            && let order = Bucket::new(memory, below).order()
            && order.len() < CAPACITY_LARGE
        {
            let rank = if is_above { order.len() } else { 0 };
            return self.replace_bucket(below, slot, differs_at, rank, key, insertion);
        }
        if node::is_entry(below) && !is_beside {
            let bytes = bucket_bytes(CAPACITY_SMALL);
            self.reserve(bytes + insertion.bytes + 2 * LINE_BYTES)?;
            let at = self.allocate_lined(bytes, bytes)?;
            let entry = self.create(key, insertion)?;
            let bucket = Bucket::create(self.memory(), at, CAPACITY_SMALL, differs_at);
            bucket.insert(0, below);
            bucket.insert(usize::from(is_above), entry_reference_of(entry));
            let bucket = bucket.reference();
            self.publish(slot, bucket);
            self.placing.parent = 0;
            return Ok(entry);
        }
        let position_below = position_in(sample_key, differs_at).unwrap_or(0);
        let position_key = position_in(key, differs_at).unwrap_or(0);
        debug_assert_ne!(position_below, position_key);
        self.reserve(NODE_BYTES_MIN + insertion.bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(NODE_BYTES_MIN, NODE_BYTES_MIN)?;
        let entry = self.create(key, insertion)?;
        let node = Node::create(self.memory(), at, 2, differs_at, sample);
        node.add(position_below, below);
        node.add(position_key, entry_reference_of(entry));
        let node = node.reference();
        self.publish(slot, node);
        self.placing.has_moved |= node::is_inner(below);
        self.placing.parent = node;
        Ok(entry)
    }

    /// Inserts a key, which agrees with the others as far as they all do, at a rank of a bucket.
    fn add_to_bucket(
        &mut self,
        reference: u32,
        slot: Slot,
        rank: usize,
        key: &[u8],
        insertion: Insertion,
    ) -> Result<EntryRef, BufferError> {
        let bucket = Bucket::new(self.memory(), reference);
        if !bucket.has_room() {
            let depth = bucket.depth();
            return self.replace_bucket(reference, slot, depth, rank, key, insertion);
        }
        self.reserve(insertion.bytes + LINE_BYTES)?;
        let entry = self.create(key, insertion)?;
        Bucket::new(self.memory(), reference).insert(rank, entry_reference_of(entry));
        self.placing.parent = 0;
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
        insertion: Insertion,
    ) -> Result<EntryRef, BufferError> {
        let bucket = Bucket::new(self.memory(), reference);
        let order = bucket.order();
        let count = order.len() + 1;
        if count > CAPACITY_LARGE {
            bucket.prefetch_entries(order);
            self.reserve(insertion.bytes + LINE_BYTES + BURST_BYTES_MAX)?;
            let entry = self.create(key, insertion)?;
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
        self.reserve(insertion.bytes + bytes + 2 * LINE_BYTES)?;
        let at = self.allocate_lined(bytes, bytes)?;
        let entry = self.create(key, insertion)?;
        let bucket = Bucket::new(self.memory(), reference);
        let replacement = Bucket::create(self.memory(), at, capacity, depth);
        for old in 0..order.len() {
            let head = bucket.head_at_depth(order, old, depth);
            replacement.insert_headed(old, bucket.entry(order, old), head);
        }
        replacement.insert(rank, entry_reference_of(entry));
        let replacement = replacement.reference();
        self.publish(slot, replacement);
        self.placing.parent = 0;
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
        self.placing.parent = 0;
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
                        self.placing.parent = node;
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

    /// The entry to be inserted, its memory reserved.
    #[inline(always)]
    fn create(&mut self, key: &[u8], insertion: Insertion) -> Result<EntryRef, BufferError> {
        match insertion.waiting {
            Some(entry) => Ok(entry),
            None => self.create_entry(key, insertion.bytes),
        }
    }

    /// Makes a new subtree reachable, with one entry more than before.
    fn publish(&self, slot: Slot, reference: u32) {
        self.slot(slot).store(reference, Ordering::Release);
    }
}

#[inline(always)]
fn entry_reference_of(entry: EntryRef) -> u32 {
    node::entry_reference(entry.0 as usize * UNIT_BYTES)
}

/// Where a key goes on in a node of this depth; `None` if it ends before.
#[inline(always)]
pub(super) fn position_in(key: &[u8], depth: usize) -> Option<Position> {
    match key.get(depth) {
        Some(&byte) => Some(1 + Position::from(byte)),
        None if depth == key.len() => Some(0),
        None => None,
    }
}

pub(super) fn entry_bytes_checked(key: &[u8]) -> Result<usize, BufferError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(BufferError::KeyTooLong { bytes: key.len() });
    }
    Ok(entry_bytes(key.len()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::placing::WAITING_MAX;
    use super::*;
    use crate::buffer::{Arena, BufferWriter, KeyspaceBuffer, Kind};
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
        fn check(&mut self) -> u64 {
            self.writer.settle();
            let buffer = &self.buffer;
            assert_eq!(buffer.stats().entries, self.entries.len() as u64);
            let table = buffer.directory.table(buffer.memory());
            let mut left_out = 0;
            for (key, &entry) in &self.entries {
                assert_eq!(self.writer.find_entry(key), Some(entry));
                let places = table.iter().flat_map(|it| it.candidates(hash_of(key)));
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
            if table.is_some() {
                let in_directory = self.entries.len() as u64 - left_out;
                assert_eq!(buffer.directory_entries(), in_directory);
            }
            left_out
        }
    }

    fn random_key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    #[test]
    fn new_keys_wait_are_found_and_come_into_the_tree_together() {
        let mut checked = Checked::new();
        let mut most = 0;
        for number in 0..2000 {
            let key = random_key(number);
            checked.put(&key);
            let waiting = checked.writer.inserter().placing.waiting();
            most = most.max(waiting);
            let buffer = checked.buffer.clone();
            assert_eq!(buffer.find_in_tree(&key).is_none(), waiting > 0);
            assert!(checked.writer.find_entry(&key).is_some());
            match number % 97 {
                // Keys that are there make nobody wait.
                0 => checked.put(&random_key(number / 2)),
                // Who wants them in order has them all.
                1 => {
                    let mut cursor = checked.writer.cursor();
                    let mut count = usize::from(cursor.first());
                    while cursor.next() {
                        count += 1;
                    }
                    assert_eq!(count, checked.entries.len());
                    assert!(checked.writer.inserter().placing.is_settled());
                }
                _ => {}
            }
        }
        assert_eq!(most, WAITING_MAX);
        checked.check();
    }

    /// A key that is not the first of a run, as it is below the last one, waits; then a lesser one begins a run, in which it is the next.
    #[test]
    fn a_run_comes_upon_keys_that_wait() {
        let mut checked = Checked::new();
        let mut randoms = (0..).map(random_key);
        for number in (0..40_000_u32).rev().step_by(100) {
            for key in randoms.by_ref().take(number as usize % 23) {
                checked.put(&key);
            }
            checked.put(&(number + 2).to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&number.to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&(number + 2).to_be_bytes());
        }
        checked.check();
    }

    /// Memory ends with a key, with a version, or with a table, while others wait: nothing is lost that was said to be there.
    #[test]
    fn what_waits_when_memory_ends_has_its_place() {
        for value_bytes in (0..400).step_by(16) {
            let reserve = (64 << 10) + 512 * value_bytes;
            let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(reserve).unwrap()));
            let mut checked = Checked {
                writer: buffer.writer().unwrap(),
                buffer,
                entries: BTreeMap::new(),
            };
            let value = vec![7; value_bytes];
            let (mut failures, mut gave_up) = (0, false);
            for number in 0.. {
                let key = random_key(number);
                let floor = checked.writer.watermark();
                match checked.writer.put(&key, Kind::Value, &value, floor) {
                    Ok((entry, _)) => drop(checked.entries.insert(key.to_vec(), entry)),
                    // The entry may be there without a version.
                    Err(_) => {
                        failures += 1;
                        if let Some(entry) = checked.writer.find_entry(&key) {
                            checked.entries.insert(key.to_vec(), entry);
                        }
                    }
                }
                let memory = checked.buffer.memory();
                gave_up |= number > 100 && checked.buffer.directory.table(memory).is_none();
                if failures == 20 {
                    break;
                }
            }
            checked.check();
            let buffer = checked.buffer.clone();
            drop(checked);
            assert!(buffer.writer().is_some(), "{gave_up}");
        }
    }

    #[test]
    fn a_writer_that_goes_leaves_no_key_without_a_place() {
        let mut checked = Checked::new();
        for number in 0..1001 {
            checked.put(&random_key(number));
            if number % 10 == 3 {
                let Checked {
                    buffer,
                    writer,
                    entries,
                } = checked;
                drop(writer);
                for key in entries.keys() {
                    assert!(buffer.find_in_tree(key).is_some());
                }
                checked = Checked {
                    writer: buffer.writer().unwrap(),
                    buffer,
                    entries,
                };
            }
        }
        checked.check();
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
