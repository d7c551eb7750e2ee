//! Sources whose keys alternate: they are joined for many keys in a row, and a step takes the next entry that was found.
//!
//! Values outside of their entry, the end of the tree's leaf, of the bounds and of the last layer are where it ends, and the general way goes on; as it
//! does where one source has many keys in a row, which costs less there.
//!
//! # Invariants
//! (1) With a position that was found ahead, every source stands behind all that was found, and at its first key there but for keys without a
//!     value. `order` are the sources that stand on a key, in no order. The exception is the tree if it `is_behind`: it stands on the last key that
//!     was met, at the end of its leaf.
//! (2) Ahead nothing is read but memory and the leaf of the tree's position: damage behind the position is not met. All entries of the tree that
//!     were found are in that leaf; with a position on one of these, its key is that of the tree's cursor.
//! (3) Nothing that was found ahead changes: the cursor is of a snapshot, or of a transaction that cannot write while the cursor lives.
//!
//! # Failure modes
//! The next leaf of the tree cannot be read: the cursor loses its position.

use std::{cmp::Ordering, ops::ControlFlow};

use super::{At, Cursor, join::neighbour};
use crate::{
    Result,
    buffer::Found,
    node::{Leaf, Stored, leaf_search::Sought},
};

/// Most entries that are found ahead.
const AHEAD_MAX: usize = 64;
/// How many are looked for first.
pub(super) const WANT_FIRST: usize = 4;
/// More sources are not joined ahead: there is a bit for each.
const SOURCES_MAX: usize = 32;
/// So many keys of one source in a row are taken to be the beginning of more.
pub(super) const ALONE_MAX: usize = 8;
/// What was found does not wait for more behind so many keys without a value.
pub(super) const DEAD_MAX: usize = 8;

/// Entries that were found ahead.
pub(super) struct Lockstep<'a> {
    pub found: Vec<(Key<'a>, &'a [u8])>,
    /// How many of them were taken. The last one of these is the position.
    taken: usize,
    /// How many to look for the next time: twice as many as the last time, so that a short range pays for little more than twice its length.
    pub want: usize,
    pub is_behind: bool,
    /// The last keys that were met are of one source, and its next ones may be.
    pub is_alone: bool,
}

/// The newest of the layers that stand on the first key of all layers, and the places of all of these; if there are any.
type FirstLayer = Option<(usize, u64)>;

/// Where the key of an entry is.
#[derive(Clone, Copy)]
pub(super) enum Key<'a> {
    Here(&'a [u8]),
    /// At an index of the tree's leaf.
    InLeaf(usize),
}

impl<'a> Lockstep<'a> {
    pub fn new() -> Lockstep<'a> {
        Lockstep {
            found: Vec::new(),
            taken: 0,
            want: WANT_FIRST,
            is_behind: false,
            is_alone: false,
        }
    }

    /// Forgets everything: the sources are somewhere else.
    pub fn restart(&mut self) {
        self.found.clear();
        (self.taken, self.want) = (0, WANT_FIRST);
        (self.is_behind, self.is_alone) = (false, false);
    }

    /// Makes room for what is found next.
    #[inline(always)]
    pub fn empty(&mut self) {
        self.found.clear();
        self.taken = 0;
    }

    /// Looks for more the next time if all was found that was looked for.
    #[inline(always)]
    pub fn want_more(&mut self) {
        if self.found.len() == self.want {
            self.want = (2 * self.want).min(AHEAD_MAX);
        }
    }
}

impl<'a> Cursor<'a> {
    /// Whether the sources are joined ahead: there are several, and nothing has to be asked of an entry but whether it is there.
    #[inline(always)]
    pub(super) fn may_look_ahead(&self) -> bool {
        !self.has_ranges && self.view.now == 0 && (2..=SOURCES_MAX).contains(&self.order.len())
    }

    /// Key of the position, which was found ahead.
    #[inline(always)]
    pub(super) fn key_found(&self) -> &[u8] {
        match self.lockstep.found[self.lockstep.taken - 1].0 {
            Key::Here(key) => key,
            Key::InLeaf(_) => self.tree.key(),
        }
    }

    /// To the next entry that was found ahead; false if there is none.
    #[inline(always)]
    pub(super) fn take_ahead(&mut self) -> bool {
        let Lockstep { found, taken, .. } = &mut self.lockstep;
        let Some(&(key, value)) = found.get(*taken) else {
            return false;
        };
        if let Key::InLeaf(index) = key {
            self.tree.load_key_of(index);
        }
        self.value = value;
        *taken += 1;
        true
    }

    /// Visits the position, which was found ahead, and all others that were.
    #[inline(always)]
    pub(super) fn visit_found(
        &mut self,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        loop {
            visit(self.key_found(), self.value)?;
            if !self.take_ahead() {
                return ControlFlow::Continue(());
            }
        }
    }

    /// A step, in the direction of the cursor, from a position that no source can go on from alone, or from the last one that was found ahead.
    #[inline(never)]
    pub(super) fn step_ahead(&mut self) -> Result<bool> {
        let passed = match self.at {
            At::Ahead => 0,
            _ => (1 << self.sharing) - 1,
        };
        self.settle_ahead(passed)
    }

    /// Finds the position behind the keys of the sources at the places in `passed`. Those that stand on a key are in `order`, which need not be in
    /// order.
    pub(super) fn settle_ahead(&mut self, passed: u64) -> Result<bool> {
        Ok(self.find_ahead(passed)? || self.settle()?)
    }

    /// Finds the position behind the keys of the sources at the places in `passed`, unless joining ahead ends before one is found: false, and the
    /// sources are in order.
    #[inline(never)]
    pub(super) fn find_ahead(&mut self, mut passed: u64) -> Result<bool> {
        self.sharing = 1;
        loop {
            if self.lockstep.is_behind {
                self.pass_leaf()?;
            }
            if !self.take_alone() || passed != 0 {
                if self.order.contains(&At::Tree) {
                    self.look_ahead_in_leaf(passed);
                } else {
                    self.look_ahead(passed, self.lockstep.want);
                }
                if self.take_ahead() {
                    (self.at, self.run) = (At::Ahead, 0..0);
                    return Ok(true);
                }
            }
            if !self.lockstep.is_behind {
                break;
            }
            passed = 0;
        }
        if self.order.contains(&At::Tree) {
            self.tree.load_key();
        }
        self.sort();
        Ok(false)
    }

    /// Whether it was just found that one source has many keys in a row: the general way is better for them.
    #[inline(always)]
    pub(super) fn take_alone(&mut self) -> bool {
        std::mem::take(&mut self.lockstep.is_alone)
    }

    /// Moves the tree to its next leaf.
    pub(super) fn pass_leaf(&mut self) -> Result<()> {
        self.lockstep.is_behind = false;
        let moved = match self.forward {
            true => self.tree.next(),
            false => self.tree.prev(),
        };
        match moved {
            Ok(true) => {}
            Ok(false) => self.order.retain(|source| *source != At::Tree),
            Err(error) => {
                self.at = At::Nowhere;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves the sources at the places in `passed` on, and joins all of them from there, up to `want` entries: the first of the layers, which is another one only when
    /// that was passed, with the tree.
    #[inline(never)]
    pub(super) fn look_ahead(&mut self, passed: u64, want: usize) {
        let forward = self.forward;
        self.lockstep.empty();
        let is_leaf_inside = self.is_leaf_inside();
        let tree = self.place_of(At::Tree);
        let (leaf, mut index) = match self.tree.leaf() {
            Some((leaf, index)) if tree != 0 => (Some(leaf), index),
            _ => (None, 0),
        };
        let (mut passes_tree, mut layers_passed) = (passed & tree != 0, passed & !tree);
        let mut first = self.first_layer();
        let mut sought = self.sought(leaf, first);
        let (mut alone, mut dead) = (0, 0);
        loop {
            if layers_passed != 0 {
                self.move_layers(layers_passed);
                first = self.first_layer();
                sought = self.sought(leaf, first);
            }
            if passes_tree && let Some(leaf) = leaf {
                let next = neighbour(index, forward);
                if (self.tree.first()..leaf.len()).contains(&next) {
                    index = next;
                } else {
                    self.lockstep.is_behind = true;
                }
            }
            self.lockstep.is_alone = alone == ALONE_MAX;
            let found = self.lockstep.found.len();
            let is_enough = found == want || found > 0 && dead >= DEAD_MAX;
            if is_enough || self.lockstep.is_behind || self.lockstep.is_alone {
                break;
            }
            let Some((layer, places)) = first else {
                break;
            };
            let source = &self.layers[layer];
            let key = source.cursor.key();
            let order = match (leaf, sought) {
                (Some(leaf), Some(sought)) => {
                    let order = leaf.cmp_sought(index, sought);
                    if forward { order } else { order.reverse() }
                }
                _ => Ordering::Greater,
            };
            let entry = match leaf {
                Some(leaf) if order.is_lt() => {
                    if !is_leaf_inside && self.is_index_outside(leaf, index) {
                        break;
                    }
                    let Stored::Inline(value) = leaf.value(index) else {
                        break;
                    };
                    alone = if layers_passed == 0 { alone + 1 } else { 1 };
                    (layers_passed, passes_tree) = (0, true);
                    (Key::InLeaf(index), value)
                }
                _ => {
                    if self.is_outside(key) {
                        break;
                    }
                    let is_one = order.is_ne() && places.is_power_of_two();
                    let is_alone = is_one && !passes_tree && layers_passed == places;
                    alone = if is_alone { alone + 1 } else { 1 };
                    (layers_passed, passes_tree) = (places, order.is_eq());
                    match source.cursor.resolve_alone(source.csn) {
                        Found::Value(value) => (Key::Here(key), value),
                        Found::Large(_) => break,
                        Found::Deleted => {
                            dead += 1;
                            continue;
                        }
                        Found::Absent => {
                            dead += 1;
                            // The others have their say.
                            (layers_passed, passes_tree) = (self.place_of(At::Layer(layer)), false);
                            continue;
                        }
                    }
                }
            };
            self.lockstep.found.push(entry);
        }
        self.lockstep.want_more();
        if leaf.is_some() {
            self.tree.move_to(index);
        }
    }

    /// Moves the layers at these places on; those that have come to their end are no sources any more.
    #[inline(always)]
    pub(super) fn move_layers(&mut self, mut places: u64) {
        let mut has_ended = false;
        while places != 0 {
            if let At::Layer(layer) = self.order[places.trailing_zeros() as usize] {
                has_ended |= !self.layers[layer].cursor.step(self.forward);
            }
            places &= places - 1;
        }
        if has_ended {
            let layers = &self.layers;
            self.order.retain(|source| match source {
                At::Layer(layer) => layers[*layer].cursor.is_valid(),
                _ => true,
            });
        }
    }

    /// The key of a layer, to compare keys of the leaf with.
    #[inline(always)]
    fn sought(&self, leaf: Option<Leaf<'a>>, first: FirstLayer) -> Option<Sought<'a>> {
        let (layer, _) = first?;
        Some(leaf?.sought(self.layers[layer].cursor.key()))
    }

    #[inline(always)]
    fn first_layer(&self) -> FirstLayer {
        let mut first = None;
        for (place, &source) in self.order.iter().enumerate() {
            let At::Layer(layer) = source else {
                continue;
            };
            first = Some(match first {
                None => (layer, 1 << place),
                Some((least, places)) => match self.compare(At::Layer(least), At::Layer(layer)) {
                    Ordering::Less => (least, places),
                    Ordering::Equal => (least.min(layer), places | 1 << place),
                    Ordering::Greater => (layer, 1 << place),
                },
            });
        }
        first
    }

    /// A bit at the place of a source, 0 if it is none any more.
    #[inline(always)]
    pub(super) fn place_of(&self, source: At) -> u64 {
        let place = self.order.iter().position(|&other| other == source);
        place.map_or(0, |place| 1 << place)
    }

    /// Whether, in the direction of the cursor, the bounds end beyond the leaf of the tree.
    #[inline(always)]
    pub(super) fn is_leaf_inside(&self) -> bool {
        let Some((leaf, _)) = self.tree.leaf() else {
            return true;
        };
        if self.forward {
            let hi = self.hi.as_deref();
            hi.is_none_or(|hi| leaf.cmp_key(leaf.len() - 1, hi).is_lt())
        } else {
            self.lo.is_empty() || leaf.cmp_key(0, &self.lo).is_ge()
        }
    }

    /// Whether, in the direction of the cursor, the bounds end before an entry of the tree.
    fn is_index_outside(&self, leaf: Leaf<'a>, index: usize) -> bool {
        if self.forward {
            let hi = self.hi.as_deref();
            hi.is_some_and(|hi| leaf.cmp_key(index, hi).is_ge())
        } else {
            leaf.cmp_key(index, &self.lo).is_lt()
        }
    }
}
