//! How the radix tree of a buffer takes an entry: below a node, into a bucket, or where both have to change.
//!
//! Thread safety and invariants are those of `writer.rs` and `placing.rs`; the order of the stores that readers rely on is in `node.rs` and
//! `bucket.rs`.

use super::super::KEY_BYTES_MAX;
use super::super::arena::{LINE_BYTES, UNIT_BYTES};
use super::super::bucket::{Bucket, CAPACITY_LARGE, CAPACITY_SMALL, bucket_bytes, capacity_for};
use super::super::entry::{Entry, EntryRef, entry_bytes};
use super::super::error::BufferError;
use super::super::node::{self, NODE_BYTES_MIN, Node, Position};
use super::super::walk::mismatch;
use super::placing::Inserter;
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

    /// Inserts a key beside the last one of the run, if that takes no search: the node has room, and no child for it.
    #[inline(always)]
    pub fn insert_beside_run(
        &mut self,
        key: &[u8],
        new: New,
    ) -> Result<Option<EntryRef>, BufferError> {
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
