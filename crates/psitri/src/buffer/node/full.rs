//! Full nodes: the largest, with nearly all children that they can have, most of them entries. A sequence of keys makes them.
//!
//! Their entries are visited block by block: what follows is asked for once a block, and nothing is kept for an entry but what is left of its block.
//!
//! # Invariants
//! Those of `node.rs`. Children that are added while the node is visited may be met or not.

use super::super::entry::Entry;
use super::{N256_CHILDREN, Node, Position, TAG_N256, is_entry, offset};
use crate::sync::Ordering;

/// So many children fill a node. In tests any of the largest nodes are full.
const FULL_MIN: u32 = if cfg!(debug_assertions) { 1 } else { 192 };
/// Children of a full node are visited in blocks of so many. While one is, the versions of the next are asked for, and the entries some blocks ahead.
const BLOCK: usize = 16;
const BLOCKS_AHEAD: usize = 3;
const _: () = assert!(64 % BLOCK == 0);

impl<'a> Node<'a> {
    /// Whether this is one of the largest nodes, with nearly all children that it can have: those of a sequence of keys are.
    pub fn is_full(self) -> bool {
        let present = || (0..4).map(|word| self.bitmap(word).count_ones());
        self.tag == TAG_N256 && present().sum::<u32>() >= FULL_MIN
    }

    /// Calls with the children behind a position of a [full](Node::is_full) node, in order, as long as they are entries and `visit` goes on. Those that follow are
    /// asked for, with so many bytes of their newest version. Returns the last of them with its position, or what it was given.
    #[inline(always)]
    pub fn visit_entries(
        self,
        mut last: (Position, u32),
        version_bytes: usize,
        mut visit: impl FnMut(Entry<'a>) -> bool,
    ) -> (Position, u32) {
        // The position behind that of a byte is the next byte.
        let from = last.0 as usize;
        let mut rest = u64::MAX << (from % BLOCK);
        for block in from / BLOCK..256 / BLOCK {
            self.prefetch_block(block + BLOCKS_AHEAD);
            self.prefetch_versions(block + 1, version_bytes);
            let first = block * BLOCK;
            let mut bits = self.bitmap(first / 64) >> (first % 64) & ((1 << BLOCK) - 1) & rest;
            rest = u64::MAX;
            while bits != 0 {
                let byte = first + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let child = self.largest_child(byte);
                if !is_entry(child) {
                    return last;
                }
                last = (1 + byte as Position, child);
                if !visit(Entry::new(self.memory, offset(child))) {
                    return last;
                }
            }
        }
        last
    }

    /// Asks for the first children behind a position of a [full](Node::is_full) node.
    #[inline]
    pub fn prefetch_entries(self, from: Position) {
        let block = from as usize / BLOCK;
        for ahead in 0..BLOCKS_AHEAD {
            self.prefetch_block(block + ahead);
        }
    }

    #[inline(always)]
    fn prefetch_block(self, block: usize) {
        if block < 256 / BLOCK {
            for byte in block * BLOCK..(block + 1) * BLOCK {
                self.memory.prefetch(offset(self.largest_child(byte)));
            }
        }
    }

    #[inline(always)]
    fn prefetch_versions(self, block: usize, version_bytes: usize) {
        if block < 256 / BLOCK {
            for byte in block * BLOCK..(block + 1) * BLOCK {
                let child = self.largest_child(byte);
                if is_entry(child) {
                    Entry::new(self.memory, offset(child)).prefetch_newest(version_bytes);
                }
            }
        }
    }

    #[inline(always)]
    fn largest_child(self, byte: usize) -> u32 {
        let slot = self.at + N256_CHILDREN + 4 * byte;
        self.memory.a32(slot).load(Ordering::Acquire)
    }
}
