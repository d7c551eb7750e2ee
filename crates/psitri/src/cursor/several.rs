//! Several layers as one source of a join (`leaf_join.rs`): it stands on the least of their keys, in the direction of the cursor.
//!
//! The least head is found without branches, which no processor would foresee: keys of several layers come in any order. Only where heads are the
//! same is more of the keys looked at.
//!
//! # Invariants
//! 1. The layers are in the order of the cursor's, newest first: of those that stand on one key, the first that has something to say decides.
//! 2. `sharing` has a bit for each of them that stands on the first key, `active` for each that stands on a key which begins like the leaf's.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::{
    Layer,
    leaf_join::{Layers, LeafSide, OneLayer, Passed},
};
use crate::{buffer::Found, node::compare_keys};

/// So many layers need no memory of their own: as many buffers may wait for a merge, and one is written to.
const LAYERS_EXPECTED: usize = 9;

/// The layers that are joined, and where they stand.
pub(super) struct Sources<'c, 'a> {
    /// With their indices among those of the cursor.
    layers: SmallVec<[(usize, OneLayer<'c, 'a>); LAYERS_EXPECTED]>,
    heads: SmallVec<[u64; LAYERS_EXPECTED]>,
}

/// See the module text.
pub(super) struct Several<'s, 'c, 'a> {
    layers: &'s mut [(usize, OneLayer<'c, 'a>)],
    /// Of the keys that they stand on; the greatest if they are not active.
    heads: &'s mut [u64],
    /// One that stands on the first key.
    first: usize,
    sharing: u64,
    active: u64,
}

/// Where the layers stand.
pub(super) enum Filled {
    /// Some of them among the keys of the leaf, the others behind these.
    Joined,
    /// One comes before the leaf.
    Before,
    /// All of them behind the keys of the leaf.
    Beyond,
}

impl<'c, 'a> Sources<'c, 'a> {
    #[inline(always)]
    pub fn new() -> Sources<'c, 'a> {
        Sources {
            layers: SmallVec::new(),
            heads: SmallVec::new(),
        }
    }

    /// Takes those layers that stand on keys which begin like those of the leaf.
    #[inline(always)]
    pub fn fill(&mut self, layers: &'c [Layer<'a>], leaf: &LeafSide<'a>) -> Filled {
        for (index, Layer { cursor, csn, .. }) in layers.iter().enumerate() {
            if let Some(layer) = OneLayer::new(cursor, *csn, leaf) {
                self.heads.push(layer.head);
                self.layers.push((index, layer));
            } else if cursor.is_valid() && leaf.is_behind(cursor.key()) {
                return Filled::Before;
            }
        }
        if self.layers.is_empty() {
            return Filled::Beyond;
        }
        Filled::Joined
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// The first `layers` of them as one; that is at least one.
    #[inline(always)]
    pub fn as_one(&mut self, layers: usize, leaf: &LeafSide<'a>) -> Several<'_, 'c, 'a> {
        let mut several = Several {
            active: u64::MAX >> (u64::BITS - layers as u32),
            layers: &mut self.layers[..layers],
            heads: &mut self.heads[..layers],
            first: 0,
            sharing: 0,
        };
        several.choose(leaf);
        several
    }

    /// The layers, how many entries were passed in each, and whether the last of them was, too.
    #[inline(always)]
    pub fn into_moves(self) -> SmallVec<[(usize, usize, bool); LAYERS_EXPECTED]> {
        let moves = self.layers.iter().map(|(layer, one)| {
            let (passed, has_ended) = one.passed();
            (*layer, passed, has_ended)
        });
        moves.collect()
    }
}

impl<'c, 'a> Several<'_, 'c, 'a> {
    /// Finds the first key.
    #[inline(always)]
    fn choose(&mut self, leaf: &LeafSide<'a>) {
        let heads = &self.heads[..];
        let least = heads.iter().fold(u64::MAX, |least, &head| least.min(head));
        let mut same = 0;
        for (at, &head) in heads.iter().enumerate() {
            same |= u64::from(head == least) << at;
        }
        same &= self.active;
        self.first = same.trailing_zeros() as usize;
        self.sharing = 1 << self.first;
        if same != self.sharing {
            self.choose_among(leaf, same & !self.sharing);
        }
    }

    /// Finds the first of the keys that have the same head, beside the one that was chosen.
    #[inline(always)]
    fn choose_among(&mut self, leaf: &LeafSide<'a>, mut others: u64) {
        let suffix = |(_, layer): &(usize, OneLayer<'c, 'a>)| leaf.leaf.suffix_of(layer.key());
        let mut least = suffix(&self.layers[self.first]);
        while others != 0 {
            let at = others.trailing_zeros() as usize;
            others &= others - 1;
            let other = suffix(&self.layers[at]);
            match leaf.turned(compare_keys(other, least)) {
                Ordering::Less => {
                    (self.first, self.sharing) = (at, 1 << at);
                    least = other;
                }
                Ordering::Equal => self.sharing |= 1 << at,
                Ordering::Greater => {}
            }
        }
    }
}

impl<'a> Layers<'a> for Several<'_, '_, 'a> {
    #[inline(always)]
    fn key(&self) -> &'a [u8] {
        self.layers[self.first].1.key()
    }

    #[inline(always)]
    fn head(&self) -> u64 {
        self.layers[self.first].1.head
    }

    #[inline(always)]
    fn sharing(&self) -> u64 {
        self.sharing
    }

    #[inline(always)]
    fn resolve(&self) -> Found<'a> {
        let mut places = self.sharing;
        loop {
            let found = self.layers[places.trailing_zeros() as usize].1.resolve();
            places &= places - 1;
            if !matches!(found, Found::Absent) || places == 0 {
                return found;
            }
        }
    }

    #[inline(always)]
    fn pass(&mut self, leaf: &LeafSide<'a>) -> Passed {
        let mut places = self.sharing;
        let mut has_ended = false;
        while places != 0 {
            let at = places.trailing_zeros() as usize;
            places &= places - 1;
            let (_, layer) = &mut self.layers[at];
            match layer.pass(leaf) {
                Passed::GoesOn => self.heads[at] = layer.head,
                Passed::Ended => has_ended = true,
                Passed::Beyond => {
                    self.heads[at] = u64::MAX;
                    self.active &= !(1 << at);
                }
            }
        }
        if has_ended {
            return Passed::Ended;
        }
        if self.active == 0 {
            return Passed::Beyond;
        }
        self.choose(leaf);
        Passed::GoesOn
    }
}
