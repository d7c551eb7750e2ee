//! Sources that share their keys, as a buffer does with older ones and with the tree when everything was overwritten: they are joined for many keys
//! in a row, and a step takes the next entry that was found.
//!
//! Only what layers have to say is found ahead. A key that only the tree has, a value outside of its entry, the end of the tree's leaf and of the
//! bounds are where it ends, and the general way goes on.
//!
//! # Invariants
//! (1) With a position that was found ahead, every source stands at its first key behind all that was found. `order` are the sources that
//!     stand on a key, in no order. The exception is the tree if it `is_behind`: it stands on the last key that was met, at the end of its leaf.
//! (2) Ahead nothing is read but memory and the leaf of the tree's position: damage behind the position is not met.
//! (3) Nothing that was found ahead changes: the cursor is of a snapshot, or of a transaction that cannot write while the cursor lives.
//!
//! # Failure modes
//! The next leaf of the tree cannot be read: the cursor loses its position.

use std::cmp::Ordering;

use super::{At, Cursor};
use crate::{Result, buffer::Found};

/// Most entries that are found ahead.
const AHEAD_MAX: usize = 32;
/// More sources are not joined ahead: there is a bit for each.
const SOURCES_MAX: usize = 32;

/// Entries that were found ahead.
pub(super) struct Lockstep<'a> {
    found: Vec<(&'a [u8], &'a [u8])>,
    /// How many of them were taken. The last one of these is the position.
    taken: usize,
    /// How many to look for the next time: a short range pays for no more than twice its length.
    want: usize,
    is_behind: bool,
}

impl<'a> Lockstep<'a> {
    pub fn new() -> Lockstep<'a> {
        Lockstep {
            found: Vec::new(),
            taken: 0,
            want: 1,
            is_behind: false,
        }
    }

    /// Forgets everything: the sources are somewhere else.
    pub fn restart(&mut self) {
        self.found.clear();
        (self.taken, self.want, self.is_behind) = (0, 1, false);
    }

    /// Key of the position.
    #[inline(always)]
    pub fn key(&self) -> &'a [u8] {
        self.found[self.taken - 1].0
    }
}

impl<'a> Cursor<'a> {
    /// Whether the sources may be joined ahead: nothing has to be asked of an entry but whether it is there.
    #[inline(always)]
    pub(super) fn may_look_ahead(&self) -> bool {
        !self.has_ranges && self.view.now == 0 && self.order.len() <= SOURCES_MAX
    }

    /// To the next entry that was found ahead; false if there is none.
    #[inline(always)]
    pub(super) fn take_ahead(&mut self) -> bool {
        let Lockstep { found, taken, .. } = &mut self.lockstep;
        let Some(&(_, value)) = found.get(*taken) else {
            return false;
        };
        self.value = value;
        *taken += 1;
        true
    }

    /// A step, in the direction of the cursor, from a position that several sources share, or from the last one that was found ahead.
    #[inline(never)]
    pub(super) fn step_ahead(&mut self) -> Result<bool> {
        let mut passed = match self.at {
            At::Ahead => 0u64,
            _ => (1 << self.sharing) - 1,
        };
        self.sharing = 1;
        loop {
            if self.lockstep.is_behind {
                self.pass_leaf()?;
            }
            self.look_ahead(passed);
            if self.take_ahead() {
                (self.at, self.run) = (At::Ahead, 0..0);
                return Ok(true);
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
        self.settle()
    }

    /// Moves the tree to its next leaf.
    fn pass_leaf(&mut self) -> Result<()> {
        self.lockstep.is_behind = false;
        let moved = match self.forward {
            true => self.tree.next(),
            false => self.tree.prev(),
        };
        match moved {
            Ok(true) => {}
            Ok(false) => self.order.retain(|&source| source != At::Tree),
            Err(error) => {
                self.at = At::Nowhere;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves the sources at the places in `passed` on, and joins all of them from there.
    #[inline(always)]
    fn look_ahead(&mut self, mut passed: u64) {
        let forward = self.forward;
        self.lockstep.found.clear();
        self.lockstep.taken = 0;
        let want = self.lockstep.want;
        self.lockstep.want = (2 * want).min(AHEAD_MAX);
        loop {
            let mut has_ended = false;
            while passed != 0 {
                match self.order[passed.trailing_zeros() as usize] {
                    At::Layer(layer) => has_ended |= !self.layers[layer].cursor.step(forward),
                    At::Tree => match self.neighbour_in_leaf() {
                        Some((_, index)) => self.tree.move_to(index),
                        None => self.lockstep.is_behind = true,
                    },
                    At::Nowhere | At::Ahead => {}
                }
                passed &= passed - 1;
            }
            if has_ended {
                let layers = &self.layers;
                self.order.retain(|&source| match source {
                    At::Layer(layer) => layers[layer].cursor.is_valid(),
                    _ => true,
                });
            }
            if self.lockstep.is_behind || self.lockstep.found.len() == want {
                return;
            }
            let Some(&first) = self.order.first() else {
                return;
            };
            let (mut least, mut sharing) = (first, 1u64);
            for (place, &source) in self.order.iter().enumerate().skip(1) {
                match self.compare(least, source) {
                    Ordering::Less => {}
                    Ordering::Equal => (least, sharing) = (least.min(source), sharing | 1 << place),
                    Ordering::Greater => (least, sharing) = (source, 1 << place),
                }
            }
            let At::Layer(layer) = least else {
                return;
            };
            let layer = &self.layers[layer];
            let key = layer.cursor.key();
            if self.is_outside(key) {
                return;
            }
            match layer.cursor.resolve(layer.csn) {
                Found::Value(value) => self.lockstep.found.push((key, value)),
                Found::Deleted => {}
                Found::Absent | Found::Large(_) => return,
            }
            passed = sharing;
        }
    }
}
