//! Buckets: the ends of the radix tree where a few entries are, in order, without a node for every byte in which they differ.
//!
//! ```text
//! bucket  0 order u64 (shared): number of entries in the lowest 4 bits, then the slot of each entry, 4 bits, by the order of keys
//!         8 depth u32   12 capacity u32
//!        16 entries, a reference u32 a slot (shared)   16 + 4 * capacity heads, u32 a slot (shared)
//! ```
//! All keys agree in the bytes before `depth`. The head of an entry are the four bytes of its key from there on, big-endian, filled with zeros:
//! heads that differ are ordered as the keys are. The word that has the order of the slots is from Mao, Kohler and Morris, "Cache craftiness for
//! fast multicore key-value storage" (EuroSys 2012); a bucket without room for a key bursts into a node of the tree, as in Heinz, Zobel and Williams,
//! "Burst tries" (2002). Where the key has less in common with the others than they have, the bucket stays, below a node that has both.
//!
//! # Thread safety
//! One writer, any number of readers that neither lock nor write nor restart.
//!
//! # Invariants
//! 1. `depth` and `capacity` never change. A bucket has at least two entries.
//! 2. Entry and head of a slot are stored before an order that names it (release), and never change. No entry is taken out.
//! 3. A bucket that was replaced stays as it was, as a node does (invariant 4 of `node.rs`).
//!
//! # Failure modes
//! None here; memory is allocated by the caller.

use super::arena::Memory;
use super::entry::Entry;
use super::node;
use crate::sync::Ordering;
use std::cmp;

const ORDER: usize = 0;
const DEPTH: usize = 8;
const CAPACITY: usize = 12;
const ENTRIES: usize = 16;

/// Entries of the smaller kind of bucket, which takes one cache line.
pub(super) const CAPACITY_SMALL: usize = if cfg!(loom) { 3 } else { 6 };
/// Entries of the larger kind, which takes two.
pub(super) const CAPACITY_LARGE: usize = if cfg!(loom) { 4 } else { 14 };

/// Bytes of a bucket.
pub(super) const fn bucket_bytes(capacity: usize) -> usize {
    ENTRIES + 8 * capacity
}

const _: () = assert!(cfg!(loom) || bucket_bytes(CAPACITY_SMALL) == 64);
const _: () = assert!(cfg!(loom) || bucket_bytes(CAPACITY_LARGE) == 128);
// The order has room for a count and as many slots.
const _: () = assert!(4 + 4 * CAPACITY_LARGE <= 64);

/// The smaller capacity that is enough.
pub(super) fn capacity_for(entries: usize) -> usize {
    match entries <= CAPACITY_SMALL {
        true => CAPACITY_SMALL,
        false => CAPACITY_LARGE,
    }
}

/// Which slots of a bucket are taken, by the order of their keys, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Order(u64);

impl Order {
    #[inline(always)]
    pub fn len(self) -> usize {
        self.0 as usize & 15
    }

    #[inline(always)]
    fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + 4 * rank)) as usize & 15
    }

    /// With the next slot inserted at a rank.
    fn with(self, rank: usize) -> Order {
        let below = (1 << (4 + 4 * rank)) - 1;
        let slot = (self.len() as u64) << (4 + 4 * rank);
        let above = (self.0 & !below) << 4;
        Order((above | slot | self.0 & below) + 1)
    }
}

/// The bytes of a key from `depth` on that tell it from others, as a number.
#[inline(always)]
fn head_of(key: &[u8], depth: usize) -> u32 {
    let rest = key.get(depth..).unwrap_or_default();
    (crate::node::head(rest) >> 32) as u32
}

/// A few entries in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket<'a> {
    memory: Memory<'a>,
    at: usize,
}

impl<'a> Bucket<'a> {
    #[inline(always)]
    pub fn new(memory: Memory<'a>, reference: u32) -> Bucket<'a> {
        debug_assert!(node::is_bucket(reference));
        Bucket {
            memory,
            at: node::offset(reference),
        }
    }

    #[inline(always)]
    pub fn reference(self) -> u32 {
        node::bucket_reference(self.at)
    }

    #[inline(always)]
    pub fn depth(self) -> usize {
        self.memory.read_u32(self.at + DEPTH) as usize
    }

    #[inline(always)]
    fn capacity(self) -> usize {
        self.memory.read_u32(self.at + CAPACITY) as usize
    }

    /// The present order. What it names does not change.
    #[inline(always)]
    pub fn order(self) -> Order {
        Order(self.memory.a64(self.at + ORDER).load(Ordering::Acquire))
    }

    pub fn has_room(self) -> bool {
        self.order().len() < self.capacity()
    }

    /// Reference of the entry at a rank.
    #[inline(always)]
    pub fn entry(self, order: Order, rank: usize) -> u32 {
        self.entry_in(order.slot(rank))
    }

    /// Some entry: the place to read the bytes that all keys agree in.
    #[inline(always)]
    pub fn sample(self) -> u32 {
        self.entry_in(0)
    }

    #[inline(always)]
    fn entry_in(self, slot: usize) -> u32 {
        let at = self.at + ENTRIES + 4 * slot;
        self.memory.a32(at).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn head_in(self, slot: usize) -> u32 {
        let at = self.at + ENTRIES + 4 * self.capacity() + 4 * slot;
        self.memory.a32(at).load(Ordering::Relaxed)
    }

    /// Whether a key agrees with those of the entries in the bytes before `depth`.
    pub fn agrees(self, key: &[u8]) -> bool {
        let sample = Entry::new(self.memory, node::offset(self.sample())).key();
        let depth = self.depth();
        key.get(..depth)
            .is_some_and(|front| front == &sample[..depth])
    }

    /// Rank of a key that agrees with the others in the bytes before `depth`; where it would be, if it is not here.
    pub fn search(self, order: Order, key: &[u8]) -> Result<usize, usize> {
        let depth = self.depth();
        let head = head_of(key, depth);
        let len = order.len();
        let mut rank = 0;
        while rank < len && self.head_in(order.slot(rank)) < head {
            rank += 1;
        }
        while rank < len && self.head_in(order.slot(rank)) == head {
            let entry = node::offset(self.entry(order, rank));
            match Entry::new(self.memory, entry).key()[depth..].cmp(&key[depth..]) {
                cmp::Ordering::Less => rank += 1,
                cmp::Ordering::Equal => return Ok(rank),
                cmp::Ordering::Greater => break,
            }
        }
        Err(rank)
    }

    /// Reference of an entry that has this key if any has, 0 if none does. Any key may be asked for.
    pub fn find(self, key: &[u8]) -> u32 {
        let depth = self.depth();
        if key.len() < depth {
            return 0;
        }
        let (head, len) = (head_of(key, depth), self.order().len());
        let is_here = |&slot: &usize| {
            self.head_in(slot) == head
                && Entry::new(self.memory, node::offset(self.entry_in(slot))).key() == key
        };
        (0..len).find(is_here).map_or(0, |slot| self.entry_in(slot))
    }

    /// Asks for the entries.
    #[inline(always)]
    pub fn prefetch_entries(self, order: Order) {
        let ask = |slot| self.memory.prefetch(node::offset(self.entry_in(slot)));
        let ask_or_not = |slot| ask(if slot < order.len() { slot } else { 0 });
        // As many for each bucket of a kind: no branch would foresee how many there are.
        (0..CAPACITY_SMALL).for_each(ask_or_not);
        if order.len() > CAPACITY_SMALL {
            (CAPACITY_SMALL..CAPACITY_LARGE).for_each(ask_or_not);
        }
    }

    /// The entries from a rank on in a direction, as many as there is room for, which is at least one. Returns how many they are, and the rank of the last one.
    #[inline(always)]
    pub fn copy_entries(
        self,
        order: Order,
        first: usize,
        forward: bool,
        to: &mut [u32],
    ) -> (usize, usize) {
        let left = if forward {
            order.len() - first
        } else {
            first + 1
        };
        let count = left.min(to.len());
        let rank = |step: usize| if forward { first + step } else { first - step };
        // As many of each small bucket, as above.
        for (step, entry) in to.iter_mut().take(CAPACITY_SMALL).enumerate() {
            *entry = self.entry(order, rank(step.min(count - 1)));
        }
        for (step, entry) in to[..count].iter_mut().enumerate().skip(CAPACITY_SMALL) {
            *entry = self.entry(order, rank(step));
        }
        (count, rank(count - 1))
    }

    // ---- the writer's part ----

    /// Makes a bucket without entries in `bucket_bytes(capacity)` fresh bytes at `at`.
    pub fn create(memory: Memory<'a>, at: usize, capacity: usize, depth: usize) -> Bucket<'a> {
        memory.write_u32(at + DEPTH, depth as u32);
        memory.write_u32(at + CAPACITY, capacity as u32);
        memory.a64(at + ORDER).store(0, Ordering::Relaxed);
        Bucket { memory, at }
    }

    /// Inserts an entry at the rank of its key (invariant 2). Room is expected.
    pub fn insert(self, rank: usize, entry: u32) {
        let key = Entry::new(self.memory, node::offset(entry)).key();
        self.insert_headed(rank, entry, head_of(key, self.depth()));
    }

    /// [`insert`](Bucket::insert), where the head is known.
    pub fn insert_headed(self, rank: usize, entry: u32, head: u32) {
        let order = Order(self.memory.a64(self.at + ORDER).load(Ordering::Relaxed));
        let (slot, capacity) = (order.len(), self.capacity());
        debug_assert!(rank <= slot && slot < capacity);
        let at = self.at + ENTRIES + 4 * slot;
        self.memory.a32(at).store(entry, Ordering::Relaxed);
        let at = at + 4 * capacity;
        self.memory.a32(at).store(head, Ordering::Relaxed);
        self.memory
            .a64(self.at + ORDER)
            .store(order.with(rank).0, Ordering::Release);
    }

    /// Head of the entry at a rank, for a bucket of this depth, which is at most that of this one. Of the keys no more than that of the
    /// sample is looked at: the others have in common with it what is missing.
    pub fn head_at_depth(self, order: Order, rank: usize, depth: usize) -> u32 {
        let head = self.head_in(order.slot(rank));
        let missing = self.depth() - depth;
        if missing == 0 {
            return head;
        }
        let sample = Entry::new(self.memory, node::offset(self.sample())).key();
        let bits = 8 * missing as u32;
        let in_common = head_of(sample, depth) & !u32::MAX.unbounded_shr(bits);
        in_common | head.unbounded_shr(bits)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::Arena;

    #[test]
    fn an_order_takes_slots_at_any_rank() {
        let mut model: Vec<usize> = Vec::new();
        let mut order = Order::default();
        for (slot, rank) in [0, 0, 2, 1, 4, 0, 6, 3, 8, 2, 5, 11, 0, 13]
            .into_iter()
            .enumerate()
        {
            order = order.with(rank);
            model.insert(rank, slot);
            assert_eq!(order.len(), model.len());
            let slots: Vec<usize> = (0..order.len()).map(|rank| order.slot(rank)).collect();
            assert_eq!(slots, model);
        }
        assert_eq!(order.len(), CAPACITY_LARGE);
    }

    #[test]
    fn heads_move_to_a_smaller_depth() {
        let arena = Arena::new(1 << 16).unwrap();
        let memory = arena.memory();
        let keys: [&[u8]; 4] = [b"abcdefgh", b"abcdefghi", b"abcdefghijk", b"abcdefghijklmn"];
        let bucket = Bucket::create(memory, 1024, CAPACITY_SMALL, 8);
        for (rank, key) in keys.into_iter().enumerate() {
            let at = 2048 + 64 * rank;
            Entry::create(memory, at, key);
            bucket.insert(rank, node::entry_reference(at));
        }
        for depth in 0..=8 {
            for (rank, key) in keys.into_iter().enumerate() {
                let head = bucket.head_at_depth(bucket.order(), rank, depth);
                assert_eq!(head, head_of(key, depth), "{rank} at {depth}");
            }
        }
    }

    #[test]
    fn heads_that_differ_are_ordered_as_the_keys_are() {
        let keys: [&[u8]; 8] = [
            b"x",
            b"x\0",
            b"x\0\0\0\0\0",
            b"x\0a",
            b"xa",
            b"xab",
            b"xabcd",
            b"xabce",
        ];
        for a in keys {
            for b in keys {
                let (head, other) = (head_of(a, 1), head_of(b, 1));
                assert!(head == other || head.cmp(&other) == a.cmp(b));
            }
        }
        assert_eq!(head_of(b"xabcde", 1), u32::from_be_bytes(*b"abcd"));
        assert_eq!((head_of(b"x", 1), head_of(b"", 1)), (0, 0));
    }
}
