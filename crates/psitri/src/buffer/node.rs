//! Nodes of the adaptive radix tree: layout, search, ordered steps, and the two ways to change one.
//!
//! A reference to a node, a bucket (`bucket.rs`) or an entry is a `u32`: its place in the arena in units of 8 bytes, shifted left by the 3 tag bits that say
//! what is there; 0 is "nothing". The idea of node sizes that follow the number of children is from Leis, Kemper and
//! Neumann, "The adaptive radix tree" (ICDE 2013); keeping only the depth of a node and verifying the whole key at the entry is
//! their optimistic path compression, with an entry named in place of stored prefix bytes.
//!
//! ```text
//! inner node  0 count u32 (shared)   4 depth u32   8 terminal u32 (shared)   12 sample u32
//!   N4, N16, N32, N48    16 keys, one byte a child, in order of arrival (shared)   16+capacity children u32 (shared)
//!   N256                 16 bitmap of present bytes, 4 x u64 (shared)              48 children u32 (shared)
//! ```
//! `depth` is the index of the key byte that tells the children apart: all keys below agree in the bytes before it. `terminal` is the
//! entry of the key that ends there. `sample` is some entry below the node: the place to read the bytes that all agree in.
//!
//! # Thread safety
//! One writer, any number of readers that neither lock nor write nor restart.
//!
//! # Invariants
//! 1. `depth`, `sample` and the kind never change. Depth grows along every path.
//! 2. Key byte and child of an appended slot are stored before the count that covers it (release), and never removed or
//!    moved; a child or terminal slot only ever goes from nothing to something, or to a reference that leads to
//!    at least the same entries.
//! 3. In an N256 the child is stored before its bit in the bitmap (release).
//! 4. A node that was replaced stays as it was: a reader that is inside of it misses only entries that were inserted after it
//!    looked, which no snapshot it may serve can see.
//!
//! # Failure modes
//! None here; memory is allocated by the caller.

#[cfg(not(loom))]
mod full;

use super::arena::{LINE_BYTES, Memory, UNIT_BYTES};
use super::byte_search::{
    Bytes, byte_from, byte_up_to, equal_mask, least_from, lowest_zero_byte32,
};
use crate::sync::Ordering;

pub(super) const TAG_ENTRY: u32 = 1;
const TAG_N4: u32 = 2;
const TAG_N16: u32 = 3;
const TAG_N32: u32 = 4;
const TAG_N48: u32 = 5;
const TAG_N256: u32 = 6;
const TAG_BUCKET: u32 = 7;

/// The smallest kind of node that is taken in runs. In tests all are.
const TAG_RUNS_FROM: u32 = if cfg!(any(loom, debug_assertions)) {
    TAG_N4
} else {
    TAG_N16
};

const COUNT: usize = 0;
const DEPTH: usize = 4;
const TERMINAL: usize = 8;
const SAMPLE: usize = 12;
const KEYS: usize = 16;
const N256_CHILDREN: usize = KEYS + 32;

const _: () = assert!(KEYS.is_multiple_of(8) && N256_CHILDREN.is_multiple_of(4));

/// Place of a child in the order of its node: 0 is the terminal entry, `1 + b` the child of byte `b`.
pub(super) type Position = u32;
pub(super) const POSITION_LAST: Position = 256;

#[inline(always)]
pub(super) fn tag(reference: u32) -> u32 {
    reference & 7
}

#[inline(always)]
pub(super) fn offset(reference: u32) -> usize {
    (reference >> 3) as usize * UNIT_BYTES
}

#[inline(always)]
fn make(offset: usize, tag: u32) -> u32 {
    debug_assert!(offset.is_multiple_of(UNIT_BYTES));
    ((offset / UNIT_BYTES) as u32) << 3 | tag
}

#[inline(always)]
pub(super) fn entry_reference(offset: usize) -> u32 {
    make(offset, TAG_ENTRY)
}

#[inline(always)]
pub(super) fn is_entry(reference: u32) -> bool {
    tag(reference) == TAG_ENTRY
}

#[inline(always)]
pub(super) fn is_bucket(reference: u32) -> bool {
    tag(reference) == TAG_BUCKET
}

#[inline(always)]
pub(super) fn bucket_reference(offset: usize) -> u32 {
    make(offset, TAG_BUCKET)
}

/// Whether a reference leads to an inner node: neither to nothing, nor to an entry or a bucket.
#[inline(always)]
pub(super) fn is_inner(reference: u32) -> bool {
    (TAG_N4..=TAG_N256).contains(&tag(reference))
}

#[inline(always)]
const fn capacity(tag: u32) -> usize {
    match tag {
        TAG_N4 => 4,
        TAG_N16 => 16,
        TAG_N32 => 32,
        TAG_N48 => 48,
        _ => 256,
    }
}

/// Bytes of a node with this tag.
const fn node_bytes(tag: u32) -> usize {
    if tag == TAG_N256 {
        return N256_CHILDREN + 4 * 256;
    }
    let slots = capacity(tag);
    (KEYS + slots + 4 * slots).next_multiple_of(UNIT_BYTES)
}

/// Asks for the first line of an entry or a bucket; for all of a node, but for the children of the largest.
#[inline(always)]
pub(super) fn prefetch(memory: Memory<'_>, reference: u32) {
    let at = offset(reference);
    memory.prefetch(at);
    let bytes = match tag(reference) {
        TAG_N16 => node_bytes(TAG_N16),
        TAG_N32 => node_bytes(TAG_N32),
        TAG_N48 => node_bytes(TAG_N48),
        _ => LINE_BYTES,
    };
    for line in (LINE_BYTES..bytes).step_by(LINE_BYTES) {
        memory.prefetch(at + line);
    }
}

/// Bytes of the smallest node.
pub(super) const NODE_BYTES_MIN: usize = node_bytes_for(2);

/// Bytes of the smallest node for so many children.
pub(super) const fn node_bytes_for(children: usize) -> usize {
    node_bytes(tag_for(children))
}

const fn tag_for(children: usize) -> u32 {
    let mut tag = TAG_N4;
    while capacity(tag) < children {
        tag += 1;
    }
    tag
}

/// An inner node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    memory: Memory<'a>,
    at: usize,
    tag: u32,
}

/// What [`Node::run`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// Entries.
    pub count: usize,
    /// Position of the last of them; where it started if there are none.
    pub last: Position,
    /// The child that follows it: a node, the terminal, or the entry for which there was no room.
    pub coming: Option<(Position, u32)>,
}

impl<'a> Node<'a> {
    #[inline(always)]
    pub fn new(memory: Memory<'a>, reference: u32) -> Node<'a> {
        debug_assert!(is_inner(reference));
        Node {
            memory,
            at: offset(reference),
            tag: tag(reference),
        }
    }

    #[inline(always)]
    pub fn depth(self) -> usize {
        self.memory.read_u32(self.at + DEPTH) as usize
    }

    /// Some entry below this node.
    #[inline(always)]
    pub fn sample(self) -> u32 {
        self.memory.read_u32(self.at + SAMPLE)
    }

    /// Number of children besides the terminal.
    pub fn len(self) -> usize {
        self.memory.a32(self.at + COUNT).load(Ordering::Acquire) as usize
    }

    #[inline(always)]
    pub fn terminal(self) -> u32 {
        self.memory.a32(self.at + TERMINAL).load(Ordering::Acquire)
    }

    /// The child for a byte, 0 if there is none.
    #[inline(always)]
    pub fn child(self, byte: u8) -> u32 {
        match self.slot(byte) {
            Some(slot) => self.memory.a32(slot).load(Ordering::Acquire),
            None => 0,
        }
    }

    /// The child at a position, 0 if there is none.
    #[inline(always)]
    pub fn child_at(self, position: Position) -> u32 {
        match position.checked_sub(1) {
            None => self.terminal(),
            Some(byte) => self.child(byte as u8),
        }
    }

    /// Byte offset of the slot of the child at a position; `None` where there is none for it. The slot may be empty: that of the terminal, and all in
    /// the largest nodes.
    pub fn slot_at(self, position: Position) -> Option<usize> {
        match position.checked_sub(1) {
            None => Some(self.at + TERMINAL),
            Some(byte) => self.slot(byte as u8),
        }
    }

    #[inline(always)]
    fn slot(self, byte: u8) -> Option<usize> {
        if self.tag == TAG_N256 {
            return Some(self.at + N256_CHILDREN + 4 * byte as usize);
        }
        let count = self.len();
        // Slots behind `count` may hold anything, hence the check of the index; byte searches report the lowest match.
        let index = match self.tag {
            TAG_N4 => lowest_zero_byte32(self.keys32() ^ (u32::from(byte) * 0x0101_0101)),
            TAG_N16 => self.find::<1>(byte),
            TAG_N32 => self.find::<2>(byte),
            _ => self.find::<3>(byte),
        };
        (index < count).then(|| self.at + KEYS + capacity(self.tag) + 4 * index)
    }

    #[inline(always)]
    fn keys32(self) -> u32 {
        self.memory
            .a32(self.at + KEYS)
            .load(Ordering::Relaxed)
            .to_le()
    }

    /// 16 key bytes, the first in the lowest byte.
    #[inline(always)]
    fn keys128(self, block: usize) -> [u64; 2] {
        let at = self.at + KEYS + 16 * block;
        [
            self.memory.a64(at).load(Ordering::Relaxed).to_le(),
            self.memory.a64(at + 8).load(Ordering::Relaxed).to_le(),
        ]
    }

    /// Index of the first key byte equal to `byte` among `16 * BLOCKS`, or at least 256.
    #[inline(always)]
    fn find<const BLOCKS: usize>(self, byte: u8) -> usize {
        let mut mask = 0u64;
        for block in 0..BLOCKS {
            mask |= u64::from(equal_mask(self.keys128(block), byte)) << (16 * block);
        }
        if mask == 0 {
            256
        } else {
            mask.trailing_zeros() as usize
        }
    }

    /// The first child at or after a position.
    #[inline]
    pub fn next(self, from: Position) -> Option<(Position, u32)> {
        if from == 0 {
            let terminal = self.terminal();
            if terminal != 0 {
                return Some((0, terminal));
            }
        }
        let least = from.saturating_sub(1);
        if least > 255 {
            return None;
        }
        if self.tag != TAG_N256 {
            return self.nearest(least as u8, 0);
        }
        let byte = byte_from(least, |word| self.bitmap(word))?;
        Some((1 + Position::from(byte), self.child(byte)))
    }

    /// The last child at or before a position.
    #[inline]
    pub fn prev(self, from: Position) -> Option<(Position, u32)> {
        if let Some(most) = from.checked_sub(1)
            && let Some(found) = self.prev_child(most.min(255))
        {
            return Some(found);
        }
        let terminal = self.terminal();
        (terminal != 0).then_some((0, terminal))
    }

    /// The child next to a position.
    #[inline(always)]
    pub fn neighbour(self, position: Position, forward: bool) -> Option<(Position, u32)> {
        if forward {
            self.next(position + 1)
        } else {
            self.prev(position.checked_sub(1)?)
        }
    }

    #[inline]
    fn prev_child(self, most: u32) -> Option<(Position, u32)> {
        if self.tag != TAG_N256 {
            // The greatest byte up to `most` is the one whose complement is the least from the complement of `most` on.
            return self.nearest(!(most as u8), 0xff);
        }
        let byte = byte_up_to(most, |word| self.bitmap(word))?;
        Some((1 + Position::from(byte), self.child(byte)))
    }

    /// The child whose key, with the bits of `flip` inverted, is the least at or above `least`. Not for N256.
    #[inline(always)]
    fn nearest(self, least: u8, flip: u8) -> Option<(Position, u32)> {
        let count = self.len();
        let found = if self.tag == TAG_N4 {
            least_from([u64::from(self.keys32()), 0], count, least, flip)
        } else {
            let mut found = least_from(self.keys128(0), count.min(16), least, flip);
            for block in 1..count.div_ceil(16) {
                let here = (count - 16 * block).min(16);
                if let Some((key, index)) = least_from(self.keys128(block), here, least, flip)
                    && found.is_none_or(|(best, _)| key < best)
                {
                    found = Some((key, index + 16 * block));
                }
            }
            found
        };
        let (key, index) = found?;
        let slot = self.at + KEYS + capacity(self.tag) + 4 * index;
        let child = self.memory.a32(slot).load(Ordering::Acquire);
        Some((1 + Position::from(key ^ flip), child))
    }

    #[inline(always)]
    fn bitmap(self, word: usize) -> u64 {
        self.memory
            .a64(self.at + KEYS + 8 * word)
            .load(Ordering::Acquire)
    }

    /// Calls with every key byte, in order of arrival. Not for N256.
    #[inline(always)]
    fn for_each_key(self, mut visit: impl FnMut(u8)) {
        let count = self.len();
        if self.tag == TAG_N4 {
            let mut keys = self.keys32();
            for _ in 0..count {
                visit(keys as u8);
                keys >>= 8;
            }
            return;
        }
        let mut left = count;
        let mut at = self.at + KEYS;
        while left > 0 {
            let mut keys = self.memory.a64(at).load(Ordering::Relaxed).to_le();
            for _ in 0..left.min(8) {
                visit(keys as u8);
                keys >>= 8;
            }
            left = left.saturating_sub(8);
            at += 8;
        }
    }

    /// Whether [`Node::run`] is worth it: many children can be entries in a row.
    #[inline(always)]
    pub fn has_runs(self) -> bool {
        self.tag >= TAG_RUNS_FROM
    }

    /// Puts the children behind (before) a position into `run`, in order, as long as they are entries and there is room.
    ///
    /// One look at the keys serves them all; [`Node::next`] and [`Node::prev`] look at them for every child.
    pub fn run(self, from: Position, forward: bool, run: &mut [u32]) -> Run {
        // Compiled once for each direction.
        match forward {
            true => self.run_to(from, true, run),
            false => self.run_to(from, false, run),
        }
    }

    #[inline(always)]
    fn run_to(self, from: Position, forward: bool, run: &mut [u32]) -> Run {
        if self.tag == TAG_N256 {
            let present = [0, 1, 2, 3].map(|word| self.bitmap(word));
            let children = self.at + N256_CHILDREN;
            return self.run_over(present, from, forward, run, |byte| children + 4 * byte);
        }
        let (mut present, mut indices) = ([0u64; 4], [0u8; 256]);
        let mut index = 0;
        self.for_each_key(|byte| {
            present[usize::from(byte / 64)] |= 1 << (byte % 64);
            indices[usize::from(byte)] = index;
            index += 1;
        });
        let children = self.at + KEYS + capacity(self.tag);
        self.run_over(present, from, forward, run, |byte| {
            children + 4 * usize::from(indices[byte])
        })
    }

    #[inline(always)]
    fn run_over(
        self,
        present: [u64; 4],
        from: Position,
        forward: bool,
        run: &mut [u32],
        slot_of: impl Fn(usize) -> usize,
    ) -> Run {
        let (mut count, mut last) = (0, from);
        let mut bytes = Bytes::behind(present, from, forward);
        let coming = loop {
            let Some(byte) = bytes.next() else {
                // Before the child of byte 0 there is the terminal.
                let terminal = if forward || last == 0 {
                    0
                } else {
                    self.terminal()
                };
                break (terminal != 0).then_some((0, terminal));
            };
            let slot = self.memory.a32(slot_of(byte));
            let (position, child) = (1 + byte as Position, slot.load(Ordering::Acquire));
            if count == run.len() || !is_entry(child) {
                break Some((position, child));
            }
            run[count] = child;
            (count, last) = (count + 1, position);
        };
        Run {
            count,
            last,
            coming,
        }
    }

    /// Asks for every child but the terminal, if they are not too many.
    #[inline(always)]
    pub fn prefetch_children(self) {
        if !self.is_largest() {
            let slots = self.at + KEYS + capacity(self.tag);
            for index in 0..self.len() {
                let child = self.memory.a32(slots + 4 * index).load(Ordering::Relaxed);
                prefetch(self.memory, child);
            }
        }
    }

    /// Whether there are too many children to ask for all of them.
    #[inline(always)]
    pub fn is_largest(self) -> bool {
        self.tag == TAG_N256
    }

    /// Whether a child can be added in place.
    pub fn has_room(self) -> bool {
        self.tag == TAG_N256 || self.len() < capacity(self.tag)
    }

    /// Bytes that [`Node::grow`] needs.
    pub fn grown_bytes(self) -> usize {
        node_bytes(self.tag + 1)
    }

    // ---- the writer's part ----

    /// Makes a node without children, which has room for so many, in `node_bytes_for(children)` fresh bytes at `at`.
    pub fn create(
        memory: Memory<'a>,
        at: usize,
        children: usize,
        depth: usize,
        sample: u32,
    ) -> Node<'a> {
        let node = Node {
            memory,
            at,
            tag: tag_for(children),
        };
        node.init(depth, sample);
        node
    }

    pub fn reference(self) -> u32 {
        make(self.at, self.tag)
    }

    fn init(self, depth: usize, sample: u32) {
        self.memory.write_u32(self.at + DEPTH, depth as u32);
        self.memory.write_u32(self.at + SAMPLE, sample);
        self.memory.a32(self.at + COUNT).store(0, Ordering::Relaxed);
        self.memory
            .a32(self.at + TERMINAL)
            .store(0, Ordering::Relaxed);
        match self.tag {
            TAG_N4 => self.memory.a32(self.at + KEYS).store(0, Ordering::Relaxed),
            TAG_N256 => {
                for at in (KEYS..N256_CHILDREN).step_by(8) {
                    self.memory.a64(self.at + at).store(0, Ordering::Relaxed);
                }
                for byte in 0..256 {
                    self.memory
                        .a32(self.at + N256_CHILDREN + 4 * byte)
                        .store(0, Ordering::Relaxed);
                }
            }
            tag => {
                for at in (0..capacity(tag)).step_by(8) {
                    self.memory
                        .a64(self.at + KEYS + at)
                        .store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// Adds a child that is not there yet (invariants 2 and 3). Room is expected.
    pub fn add(self, position: Position, child: u32) {
        let Some(byte) = position.checked_sub(1) else {
            return self
                .memory
                .a32(self.at + TERMINAL)
                .store(child, Ordering::Release);
        };
        debug_assert!(self.has_room() && self.child(byte as u8) == 0);
        let count = self.memory.a32(self.at + COUNT).load(Ordering::Relaxed) as usize;
        if self.tag == TAG_N256 {
            self.memory
                .a32(self.at + N256_CHILDREN + 4 * byte as usize)
                .store(child, Ordering::Release);
            let word = self.memory.a64(self.at + KEYS + 8 * (byte as usize / 64));
            let bits = word.load(Ordering::Relaxed) | 1 << (byte % 64);
            word.store(bits, Ordering::Release);
        } else {
            self.memory
                .a32(self.at + KEYS + capacity(self.tag) + 4 * count)
                .store(child, Ordering::Relaxed);
            if self.tag == TAG_N4 {
                let word = self.memory.a32(self.at + KEYS);
                let keys = with_byte(u64::from(word.load(Ordering::Relaxed).to_le()), count, byte);
                word.store((keys as u32).to_le(), Ordering::Relaxed);
            } else {
                let word = self.memory.a64(self.at + KEYS + (count & !7));
                let keys = with_byte(word.load(Ordering::Relaxed).to_le(), count & 7, byte);
                word.store(keys.to_le(), Ordering::Relaxed);
            }
        }
        self.memory
            .a32(self.at + COUNT)
            .store(count as u32 + 1, Ordering::Release);
    }

    /// Copies this node to `at` (`grown_bytes` fresh bytes) as the next larger kind; this one stays as it is (invariant 4).
    pub fn grow(self, at: usize) -> Node<'a> {
        debug_assert!(self.tag < TAG_N256);
        let grown = Node {
            memory: self.memory,
            at,
            tag: self.tag + 1,
        };
        grown.init(self.depth(), self.sample());
        let terminal = self.terminal();
        if terminal != 0 {
            grown.add(0, terminal);
        }
        let slots = self.at + KEYS + capacity(self.tag);
        let mut index = 0;
        self.for_each_key(|key| {
            let child = self.memory.a32(slots + 4 * index).load(Ordering::Relaxed);
            grown.add(1 + Position::from(key), child);
            index += 1;
        });
        grown
    }
}

#[inline(always)]
fn with_byte(word: u64, index: usize, byte: u32) -> u64 {
    let shift = 8 * index as u32;
    word & !(0xff << shift) | u64::from(byte) << shift
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(loom))]
    use crate::buffer::arena::Arena;

    /// A run has what single steps give, from any position and for any room, in all kinds of nodes, with children of both kinds.
    #[test]
    #[cfg(not(loom))]
    fn a_run_is_what_single_steps_give() {
        let random = |seed: u32| seed.wrapping_mul(0x9e37_79b9).rotate_left(13);
        for children in [2u32, 4, 5, 16, 17, 32, 33, 48, 49, 100, 256] {
            for seed in 0..20 {
                let arena = Arena::new(1 << 16).unwrap();
                let mut bytes: Vec<u32> = (0..256).collect();
                bytes.sort_by_key(|byte| random(random(256 * seed + byte)));
                let mut at = 64;
                let mut node = Node::create(arena.memory(), at, 2, 0, 0);
                let terminal = (seed % 2) * entry_reference(1 << 15);
                if terminal != 0 {
                    node.add(0, terminal);
                }
                for &byte in &bytes[..children as usize] {
                    if !node.has_room() {
                        at += 2048;
                        node = node.grow(at);
                    }
                    // Every eighth child is a node, or none is.
                    let is_node = seed % 4 > 1 && random(byte + seed).is_multiple_of(8);
                    let child_at = 1024 * 40 + 8 * byte as usize;
                    let tag = if is_node { TAG_N4 } else { TAG_ENTRY };
                    node.add(1 + byte, make(child_at, tag));
                }
                for position in 0..=256 {
                    for room in [1, 8, 31, 300] {
                        let mut run = vec![0; room];
                        for forward in [true, false] {
                            let step = |from: Position| match forward {
                                true => node.next(from + 1),
                                false => node.prev(from.checked_sub(1)?),
                            };
                            let (mut expected, mut last) = (Vec::new(), position);
                            while expected.len() < room
                                && let Some((next, child)) = step(last)
                                && next != 0
                                && is_entry(child)
                            {
                                expected.push(child);
                                last = next;
                            }
                            let found = node.run(position, forward, &mut run);
                            assert_eq!(run[..found.count], expected);
                            assert_eq!((found.last, found.coming), (last, step(last)));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_are_what_the_text_says() {
        assert_eq!(NODE_BYTES_MIN, 40);
        assert_eq!(node_bytes(TAG_N16), 96);
        assert_eq!(node_bytes(TAG_N48), 256);
        assert_eq!(node_bytes(TAG_N256), 1072);
    }
}
