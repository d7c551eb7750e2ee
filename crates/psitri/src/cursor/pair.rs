//! The tree and one layer, joined for many keys in a row: nearly all that is joined is of these two, and they take half the time of the way that
//! joins any number of sources (`lockstep.rs`, whose invariants hold here).
//!
//! What is ahead in the layer is read where the cursor of its buffer keeps it, up to the first key that does not begin like all of the leaf or is
//! outside of the bounds. That leaves heads to compare, the next 8 bytes of both keys, and what is behind them where these are the same.
//!
//! # Invariants
//! 1. While entries of the layer are read ahead of its cursor, the leaf's prefix begins all of their keys, and none is outside of the bounds; nor is
//!    an entry of the leaf, then, that comes before one of them.
//! 2. The tree's cursor is moved to the leaf's index at the end, the layer's after every batch.

use std::cmp::Ordering;

use super::{
    At, Cursor, Layer,
    join::neighbour,
    lockstep::{ALONE_MAX, DEAD_MAX, Key},
};
use crate::{
    buffer::{Found, Standing},
    node::{Leaf, Stored, head},
};

/// What an entry was found in, and what moves on from it.
const TREE: u8 = 1;
const LAYER: u8 = 2;
const BOTH: u8 = TREE | LAYER;

/// Where the tree stands.
struct LeafSide<'a> {
    leaf: Leaf<'a>,
    /// The first index that is read.
    first: usize,
    index: usize,
    /// Of the suffix at the index. It is turned, as all heads are here.
    head: u64,
    /// Bits to turn in a head, so that heads are in the order of the cursor's direction: none going forward, all going backward.
    turn: u64,
    /// What leads from one index to the next, wrapping.
    stride: usize,
}

/// The entry where the layer stands.
struct LayerSide<'a> {
    entry: Standing<'a>,
    key: &'a [u8],
    head: u64,
}

impl<'a> LeafSide<'a> {
    fn new(leaf: Leaf<'a>, first: usize, index: usize, forward: bool) -> LeafSide<'a> {
        let mut side = LeafSide {
            leaf,
            first,
            index,
            head: 0,
            turn: if forward { 0 } else { u64::MAX },
            stride: neighbour(0, forward),
        };
        side.load_head();
        side
    }

    #[inline(always)]
    fn load_head(&mut self) {
        self.head = self.leaf.suffix_head(self.index) ^ self.turn;
    }

    /// To the next index. False if the leaf ends, and nothing was moved.
    #[inline(always)]
    fn pass(&mut self) -> bool {
        let next = self.index.wrapping_add(self.stride);
        if !(self.first..self.leaf.len()).contains(&next) {
            return false;
        }
        self.index = next;
        self.load_head();
        true
    }

    /// An entry of the layer, whose key begins with the leaf's prefix.
    #[inline(always)]
    fn beside(&self, entry: Standing<'a>) -> LayerSide<'a> {
        let key = entry.key();
        let head = head(self.leaf.suffix_of(key)) ^ self.turn;
        LayerSide { entry, key, head }
    }

    /// Order of its key and that of the layer's entry in the direction of the cursor.
    #[inline(always)]
    fn compare(&self, layer: &LayerSide<'a>) -> Ordering {
        match self.head.cmp(&layer.head) {
            Ordering::Equal => {
                let suffix = self.leaf.suffix_of(layer.key);
                let order = self.leaf.cmp_behind_head(self.index, suffix);
                if self.turn == 0 {
                    order
                } else {
                    order.reverse()
                }
            }
            order => order,
        }
    }
}

impl<'a> Cursor<'a> {
    /// Moves those of the tree and a layer on whose places are in `passed`, and joins the two from there, as
    /// [`look_ahead`](Cursor::look_ahead) does, which goes on where keys cannot be compared by their heads.
    #[inline(never)]
    pub(super) fn look_ahead_in_two(&mut self, layer: usize, passed: u64) {
        let place = self.place_of(At::Tree);
        let passes_tree = passed & place != 0;
        if passed & !place != 0 && !self.layers[layer].cursor.step(self.forward) {
            self.order.retain(|&source| source == At::Tree);
            return self.look_ahead(u64::from(passes_tree));
        }
        let (leaf, index) = self.tree.leaf().expect("the tree is a source");
        let mut tree = LeafSide::new(leaf, self.tree.first(), index, self.forward);
        self.lockstep.empty();
        if passes_tree && !tree.pass() {
            self.lockstep.is_behind = true;
            return;
        }
        let goes_on = self.join_two(&mut tree, layer);
        self.tree.move_to(tree.index);
        if goes_on && self.lockstep.found.is_empty() {
            return self.look_ahead(0);
        }
        self.lockstep.want_more();
    }

    /// Whether the general way may find more from where this ends.
    #[inline(always)]
    fn join_two(&mut self, tree: &mut LeafSide<'a>, layer: usize) -> bool {
        debug_assert!(!self.has_ranges, "entries of the layer decide alone");
        let leaf = tree.leaf;
        let want = self.lockstep.want;
        let (mut alone, mut dead, mut passed_last) = (0, 0, 0);
        loop {
            let Layer { cursor, csn, .. } = &self.layers[layer];
            let csn = cursor.csn_seen(*csn);
            let is_inside = |key: &[u8]| leaf.begins(key) && !self.is_outside(key);
            let Some(standing) = cursor.standing().filter(|it| is_inside(it.key())) else {
                return true;
            };
            let mut coming = cursor.coming(self.forward);
            coming.keep(want, is_inside);
            let mut side = tree.beside(standing);
            let found = &mut self.lockstep.found;
            let (mut has_more, mut is_behind, mut is_alone) = (true, false, false);
            let end = loop {
                let order = tree.compare(&side);
                let passed = if order.is_lt() {
                    let Stored::Inline(value) = leaf.value(tree.index) else {
                        break Some(true);
                    };
                    found.push((Key::InLeaf(tree.index), value));
                    TREE
                } else {
                    let all = if order.is_eq() { BOTH } else { LAYER };
                    match side.entry.resolve_alone(csn) {
                        Found::Value(value) => {
                            found.push((Key::Here(side.key), value));
                            all
                        }
                        Found::Large(_) => break Some(true),
                        Found::Deleted => {
                            dead += 1;
                            all
                        }
                        Found::Absent => {
                            dead += 1;
                            // The tree has its say.
                            LAYER
                        }
                    }
                };
                if passed & LAYER != 0 {
                    match coming.next() {
                        Some(entry) => side = tree.beside(entry),
                        None => has_more = false,
                    }
                }
                is_behind = passed & TREE != 0 && !tree.pass();
                alone = if passed == passed_last { alone + 1 } else { 1 };
                passed_last = passed;
                is_alone = alone == ALONE_MAX && passed != BOTH;
                let is_enough = found.len() == want || !found.is_empty() && dead >= DEAD_MAX;
                if is_behind || is_alone || is_enough {
                    break Some(false);
                }
                if !has_more {
                    break None;
                }
            };
            let count = coming.passed();
            (self.lockstep.is_behind, self.lockstep.is_alone) = (is_behind, is_alone);
            let cursor = &mut self.layers[layer].cursor;
            cursor.pass_coming(count);
            if !has_more && !cursor.step(self.forward) {
                self.order.retain(|&source| source == At::Tree);
                return end.unwrap_or(true);
            }
            if let Some(goes_on) = end {
                return goes_on;
            }
        }
    }
}
