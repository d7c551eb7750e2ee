//! How the sources of a cursor, its layers and the tree, are joined into one order.
//!
//! # Invariants
//! (1) Going forward, every source stands at its first key at or after the position; going backward, at its last at or before it. Going
//!     forward, what a layer has before its `from` does not count: the tree has it.
//! (2) Unless the position was found ahead (`lockstep.rs`), `order` are the sources that stand on a key, in the order of their keys in the direction of the cursor; of equal keys the newest
//!     comes first, and the tree last.
//! (3) With such a position, the first `sharing` of `order` stand on its key; the first of them is `at`. What they have to say about the key was
//!     heard. They move on with the next step, so that damage behind the key is not met before.
//! (4) `lead` is 0 but for a position in a layer that is the first source.
//! (5) With a position in the tree, `run` are indices of its leaf without a key of a layer, or an end of the bounds, between them. It is
//!     empty, or the position is inside.

use std::cmp::Ordering;

use super::{At, Cursor, Layer};
use crate::{
    Result,
    buffer::{Dead, Found},
    expiry,
    layers::{read_large, read_stored},
    node::{Leaf, Stored, ValuePointer, compare_keys},
    pager::Pager,
};

/// How many entries ahead the values outside of leaves are asked for.
pub(super) const VALUES_AHEAD: usize = 8;
/// How far a layer that comes before the other sources is looked along for whether it goes on to: as far as is known, then not so far.
const LEADS: [usize; 2] = [usize::MAX, 8];
/// So many entries of a layer without a value are passed before it is asked whether a range deleted them, and what follows them: that costs as much. Few in tests.
const DEAD_ENTRIES_MIN: u32 = if cfg!(debug_assertions) { 1 } else { 16 };

/// The index behind, or before, another in a leaf. One that wraps is in no leaf, and in no run.
#[inline(always)]
pub(super) fn neighbour(index: usize, forward: bool) -> usize {
    if forward {
        index + 1
    } else {
        index.wrapping_sub(1)
    }
}

/// Asks for the value of an entry that will be come to, if it lies outside of the leaf: such values are anywhere in the file.
#[inline]
pub(super) fn ask_for_value(pager: &Pager, leaf: Leaf<'_>, index: usize) {
    if index < leaf.len()
        && let Stored::External(pointer) = leaf.value(index)
    {
        pager.prefetch_value(&pointer);
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn seek_forward(&mut self, key: &[u8]) -> Result<bool> {
        self.at = At::Nowhere;
        self.forward = true;
        for layer in &mut self.layers {
            layer.cursor.seek_ge(key.max(layer.from));
        }
        self.tree.seek_ge(key)?;
        self.arrange()
    }

    /// To the last entry before `end`.
    pub(super) fn seek_backward(&mut self, end: Option<&[u8]>) -> Result<bool> {
        self.at = At::Nowhere;
        self.forward = false;
        for layer in &mut self.layers {
            match end {
                Some(end) => layer.cursor.seek_lt(end),
                None => layer.cursor.last(),
            };
        }
        self.tree.seek_lt(end)?;
        self.arrange()
    }

    #[inline(always)]
    pub(super) fn step(&mut self, forward: bool) -> Result<bool> {
        if self.forward == forward {
            match self.at {
                At::Tree => {
                    let index = neighbour(self.tree.index(), forward);
                    if self.run.contains(&index) {
                        if self.view.now != 0 {
                            return self.step_in_run(index);
                        }
                        return match self.tree.step_to(index) {
                            Stored::Inline(value) => {
                                self.value = value;
                                Ok(true)
                            }
                            Stored::External(pointer) => self.take_outside(index, &pointer),
                        };
                    }
                }
                At::Ahead => {
                    if self.take_ahead() {
                        return Ok(true);
                    }
                }
                At::Layer(layer) if self.sharing == 1 && !self.has_ranges => {
                    if self.follow(layer)? {
                        return Ok(true);
                    }
                    if self.may_look_ahead() {
                        return self.settle_ahead(0);
                    }
                    return self.settle();
                }
                At::Layer(_) => {}
                At::Nowhere => return Ok(false),
            }
        }
        self.step_joining(forward)
    }

    /// Takes the value of the entry at `index`, which lies outside of the leaf, as those that follow may: one of these is asked for.
    #[inline(never)]
    fn take_outside(&mut self, index: usize, pointer: &ValuePointer) -> Result<bool> {
        let (leaf, _) = self.tree.leaf().expect("the position is in the tree");
        ask_for_value(self.view.pager, leaf, self.ahead_of(index, VALUES_AHEAD));
        let value = self.view.pager.value(pointer);
        self.take(value)
    }

    fn ahead_of(&self, index: usize, steps: usize) -> usize {
        if self.forward {
            index + steps
        } else {
            index.wrapping_sub(steps)
        }
    }

    /// A step from one source to another.
    #[inline(never)]
    fn step_joining(&mut self, forward: bool) -> Result<bool> {
        // A run of the tree that comes to the end of its leaf may go on in the next.
        let meets_others = || self.sharing > 1 || self.leaf_goes_on();
        if forward == self.forward
            && (self.at == At::Ahead || self.may_look_ahead() && meets_others())
        {
            return self.step_ahead();
        }
        self.step_deciding(forward)
    }

    /// Whether the leaf of the tree's position goes on in the direction of the cursor.
    #[inline(always)]
    fn leaf_goes_on(&self) -> bool {
        let leaf = self.tree.leaf();
        leaf.is_some_and(|(leaf, index)| {
            (self.tree.first()..leaf.len()).contains(&neighbour(index, self.forward))
        })
    }

    /// To the entry at `index` of the run, or the first one behind it that has not expired.
    #[inline(never)]
    fn step_in_run(&mut self, mut index: usize) -> Result<bool> {
        while self.run.contains(&index) {
            let stored = read_stored(self.view.pager, self.tree.step_to(index));
            if self.take_live(stored)? {
                return Ok(true);
            }
            index = neighbour(index, self.forward);
        }
        self.step_deciding(self.forward)
    }

    #[inline]
    fn step_deciding(&mut self, forward: bool) -> Result<bool> {
        if self.at == At::Nowhere {
            return Ok(false);
        }
        if self.forward != forward {
            let mut key = self.key().to_vec();
            if !forward {
                return self.seek_backward(Some(&key));
            }
            key.push(0);
            return self.seek_forward(&key);
        }
        self.pass_sharing()?;
        self.advance(0)?;
        self.settle()
    }

    /// Sets up `order` after all sources were moved, and finds the position.
    fn arrange(&mut self) -> Result<bool> {
        self.lockstep.restart();
        self.lead = 0;
        self.order.clear();
        let layers = (0..self.layers.len()).map(At::Layer);
        for source in layers.chain([At::Tree]) {
            let is_valid = match source {
                At::Layer(index) => self.layers[index].cursor.is_valid(),
                _ => self.tree.is_valid(),
            };
            if is_valid {
                self.order.push(source);
            }
        }
        self.sort();
        self.settle()
    }

    /// Puts the sources in order (2).
    pub(super) fn sort(&mut self) {
        for place in (0..self.order.len()).rev() {
            self.sift(place);
        }
    }

    /// Finds the position: the first key, from where the sources stand, that has a value.
    #[inline]
    pub(super) fn settle(&mut self) -> Result<bool> {
        self.run = 0..0;
        let mut patience = DEAD_ENTRIES_MIN;
        loop {
            self.at = self.order.first().copied().unwrap_or(At::Nowhere);
            if self.at == At::Nowhere || self.is_outside(self.key()) {
                self.at = At::Nowhere;
                return Ok(false);
            }
            let has_value = match self.decide() {
                Ok(has_value) => has_value,
                Err(error) => return self.take(Err(error)),
            };
            if has_value {
                if self.at == At::Tree && (self.forward || !self.has_ranges) {
                    self.find_run();
                }
                return Ok(true);
            }
            if self.may_look_ahead() && !self.take_alone() {
                if self.find_ahead((1 << self.sharing) - 1)? {
                    return Ok(true);
                }
                continue;
            }
            self.pass_sharing()?;
            match self.at {
                At::Layer(index) if !self.has_ranges => {
                    if self.follow(index)? {
                        return Ok(true);
                    }
                }
                At::Tree if self.has_ranges => self.pass_covered()?,
                At::Layer(index) if patience == 0 => {
                    self.pass_dead(index)?;
                    patience = DEAD_ENTRIES_MIN;
                }
                _ => {
                    self.advance(0)?;
                    patience = patience.saturating_sub(1);
                }
            }
        }
    }

    /// Moves the tree, the first source, past its key, which has no value, and past what the range has deleted that deleted the key.
    #[inline(never)]
    fn pass_covered(&mut self) -> Result<()> {
        let key = self.tree.key();
        let over = |l: &Layer<'a>| l.buffer.and_then(|buffer| buffer.covering(key, l.csn));
        let Some(range) = self.layers.iter().find_map(over) else {
            return self.advance(0);
        };
        let (leaf, index) = self.tree.leaf().expect("the tree stands on a key");
        let (first, last) = (self.tree.first(), leaf.len() - 1);
        let moved = match (self.forward, range.hi()) {
            (true, None) => Ok(false),
            (true, Some(hi)) if leaf.cmp_key(last, hi).is_lt() => self.tree.seek_ge(hi),
            (true, Some(hi)) => {
                self.tree.set_index(leaf.lower_bound_from(index + 1, hi));
                Ok(true)
            }
            (false, _) if leaf.cmp_key(first, range.lo()).is_ge() => {
                self.tree.seek_lt(Some(range.lo()))
            }
            (false, _) => {
                // A forged leaf may have its keys in any order.
                let index = leaf.lower_bound(range.lo()).max(first + 1) - 1;
                self.tree.set_index(index);
                Ok(true)
            }
        };
        self.moved(0, moved)
    }

    /// Moves a layer, the first source, past its key, which has no value, and past what a range has deleted that deleted the key: one of a newer layer, or of its
    /// own as far as nothing was written there since.
    #[inline(never)]
    fn pass_dead(&mut self, index: usize) -> Result<()> {
        let (newer, rest) = self.layers.split_at_mut(index);
        let Layer {
            cursor,
            buffer: Some(buffer),
            csn,
            ..
        } = &mut rest[0]
        else {
            return self.advance(0);
        };
        let key = cursor.key();
        let over = |l: &Layer<'a>| l.buffer.and_then(|buffer| buffer.covering(key, l.csn));
        let range = newer.iter().find_map(over);
        let has_key = match (range, self.forward) {
            (Some(range), true) => match range.hi() {
                Some(hi) => cursor.seek_ge(hi),
                None => false,
            },
            (Some(range), false) => cursor.seek_lt(range.lo()),
            (None, true) => match buffer.dead_after(key, *csn) {
                Some(Dead::Until(end)) => cursor.seek_ge(end),
                Some(Dead::ToTheEnd) => false,
                None => cursor.next(),
            },
            (None, false) => match buffer.dead_before(key, *csn) {
                Some(end) => cursor.seek_le(end),
                None => cursor.prev(),
            },
        };
        self.moved(0, Ok(has_key))
    }

    /// Moves the source at a place of `order` by one key, and puts it where it belongs then.
    #[inline]
    fn advance(&mut self, place: usize) -> Result<()> {
        let has_key = match self.order[place] {
            At::Nowhere | At::Ahead => Ok(false),
            At::Layer(index) => Ok(self.layers[index].cursor.step(self.forward)),
            At::Tree if self.forward => self.tree.next(),
            At::Tree => self.tree.prev(),
        };
        self.moved(place, has_key)
    }

    /// Puts a source where it belongs that was moved to another key, or has none any more.
    #[inline(always)]
    pub(super) fn moved(&mut self, place: usize, has_key: Result<bool>) -> Result<()> {
        match has_key {
            Ok(true) => self.sift(place),
            Ok(false) => {
                self.order.remove(place);
            }
            Err(error) => {
                self.at = At::Nowhere;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves the source at `place` behind those that come before it (2).
    #[inline]
    fn sift(&mut self, mut place: usize) {
        while let Some(&next) = self.order.get(place + 1) {
            let here = self.order[place];
            let order = self.compare(here, next);
            if order.then(here.cmp(&next)).is_lt() {
                break;
            }
            self.order.swap(place, place + 1);
            place += 1;
        }
    }

    /// Steps within the layer that is the first source. As long as it comes before the others, what it says is all there is to know; an
    /// entry that says nothing, or is deleted, is passed. False if another source comes first now, or nothing more.
    #[inline]
    fn follow(&mut self, index: usize) -> Result<bool> {
        let forward = self.forward;
        loop {
            let layer = &mut self.layers[index];
            if !layer.cursor.step(forward) {
                self.lead = 0;
                self.order.remove(0);
                return Ok(false);
            }
            if self.lead > 0 {
                self.lead -= 1;
            } else if !self.leads(index) {
                return Ok(false);
            }
            let layer = &self.layers[index];
            let stored = match layer.cursor.resolve(layer.csn) {
                Found::Absent | Found::Deleted => continue,
                Found::Value(value) if self.view.now == 0 => {
                    self.value = value;
                    return Ok(true);
                }
                Found::Value(stored) => Ok(stored),
                Found::Large(pointer) => read_large(self.view.pager, pointer),
            };
            if self.take_live(stored)? {
                return Ok(true);
            }
        }
    }

    /// Whether the layer that was the first source still is, inside of the bounds; and for how long it will be.
    #[inline(always)]
    fn leads(&mut self, index: usize) -> bool {
        let cursor = &self.layers[index].cursor;
        let next = self.order.get(1).copied();
        if next.is_some_and(|next| self.compare(At::Layer(index), next).is_ge()) {
            self.sift(0);
            return false;
        }
        if self.is_outside(cursor.key()) {
            return false;
        }
        for steps_max in LEADS {
            if let Some((steps, key)) = cursor.key_ahead(self.forward, steps_max)
                && next.is_none_or(|next| self.compare_key(key, next).is_lt())
                && !self.is_outside(key)
            {
                self.lead = steps;
                break;
            }
        }
        true
    }

    /// Order of a key and that of a source in the direction of the cursor.
    #[inline(always)]
    fn compare_key(&self, key: &[u8], source: At) -> Ordering {
        let order = match source {
            At::Tree => self.tree.cmp_key(key).reverse(),
            _ => compare_keys(key, self.source_key(source)),
        };
        if self.forward { order } else { order.reverse() }
    }

    /// Order of the keys of two sources in the direction of the cursor.
    #[inline(always)]
    pub(super) fn compare(&self, a: At, b: At) -> Ordering {
        let order = match (a, b) {
            (At::Layer(a), At::Layer(b)) => {
                compare_keys(self.layers[a].cursor.key(), self.layers[b].cursor.key())
            }
            // Where it lies in its leaf: what was just copied from there cannot be read at once.
            (At::Tree, _) => self.tree.cmp_key(self.source_key(b)),
            (_, At::Tree) => self.tree.cmp_key(self.source_key(a)).reverse(),
            _ => Ordering::Equal,
        };
        if self.forward { order } else { order.reverse() }
    }

    /// Whether the bounds end before `key`.
    #[inline(always)]
    pub(super) fn is_outside(&self, key: &[u8]) -> bool {
        if self.forward {
            self.hi
                .as_deref()
                .is_some_and(|hi| compare_keys(key, hi).is_ge())
        } else {
            !self.lo.is_empty() && self.is_before(key)
        }
    }

    /// Whether the bounds begin behind `key`.
    #[inline(always)]
    pub(super) fn is_before(&self, key: &[u8]) -> bool {
        compare_keys(key, &self.lo).is_lt()
    }

    #[inline(always)]
    pub(super) fn source_key(&self, source: At) -> &[u8] {
        match source {
            At::Nowhere => &[],
            At::Layer(index) => self.layers[index].cursor.key(),
            At::Tree => self.tree.key(),
            At::Ahead => self.key_found(),
        }
    }

    /// How far the leaf can be read before a layer or the end of the bounds comes in (5).
    fn find_run(&mut self) {
        let (leaf, index) = self.tree.leaf().expect("the position is in the tree");
        let next_key = self.order.get(1).map(|&next| self.source_key(next));
        self.run = if self.forward {
            let next_range = match self.has_ranges {
                true => self.next_range(),
                false => None,
            };
            let ends = [next_key, self.hi.as_deref(), next_range]
                .into_iter()
                .flatten();
            // In a leaf that was just come to, most often neither end is; otherwise it is not far.
            let last = leaf.len() - 1;
            let first = self.tree.first();
            let place = |key| match index - first {
                0 if leaf.cmp_key(last, key).is_lt() => leaf.len(),
                _ => leaf.lower_bound_from(index, key),
            };
            index..ends.map(place).min().unwrap_or(leaf.len())
        } else {
            // The entry at the bound may have the layer's own key.
            let after_layer = next_key.map_or(0, |key| leaf.lower_bound(key) + 1);
            let lo = if self.lo.is_empty() {
                0
            } else {
                leaf.lower_bound(&self.lo)
            };
            let lo = lo.max(self.tree.first());
            lo.max(after_layer).min(index)..index + 1
        };
        let leaf_first = if self.forward {
            self.tree.first()
        } else {
            leaf.len() - 1
        };
        if index == leaf_first {
            self.ask_for_first_values(leaf, index);
        }
    }

    /// Asks for the values behind the first entry of a leaf, if they are outside of it.
    #[inline(always)]
    pub(super) fn ask_for_first_values(&self, leaf: Leaf<'a>, first: usize) {
        if matches!(leaf.value(first), Stored::External(_)) {
            for steps in 1..=VALUES_AHEAD {
                ask_for_value(self.view.pager, leaf, self.ahead_of(first, steps));
            }
        }
    }

    /// Keeps a value as it is stored, unless it has expired. Says whether it was kept.
    #[inline(never)]
    fn keep_live(&mut self, stored: &'a [u8]) -> Result<bool> {
        let opened = match self.view.now {
            0 => Some((0, stored)),
            now => expiry::open(stored, now)?,
        };
        if let Some((expires, value)) = opened {
            (self.expires, self.value) = (expires, value);
        }
        Ok(opened.is_some())
    }

    /// As [`keep_live`](Cursor::keep_live); an error takes the position away.
    #[inline(never)]
    fn take_live(&mut self, stored: Result<&'a [u8]>) -> Result<bool> {
        let kept = stored.and_then(|stored| self.keep_live(stored));
        if kept.is_err() {
            self.at = At::Nowhere;
        }
        kept
    }

    /// Keeps a value that was read; an error takes the position away.
    #[inline(always)]
    fn take(&mut self, value: Result<&'a [u8]>) -> Result<bool> {
        match value {
            Ok(value) => {
                self.value = value;
                Ok(true)
            }
            Err(error) => {
                self.at = At::Nowhere;
                Err(error)
            }
        }
    }

    /// Whether the first key of all has a value; leaves it in `value`. Counts the sources that stand on the key.
    fn decide(&mut self) -> Result<bool> {
        let mut found = self.ask(self.at)?;
        self.sharing = 1;
        while let Some(&source) = self.order.get(self.sharing)
            && self.compare(self.at, source).is_eq()
        {
            if found.is_none() {
                found = self.ask(source)?;
            }
            self.sharing += 1;
        }
        Ok(found.unwrap_or(false))
    }

    /// Moves the sources on the position's key that are not the first. From the last on: those that wait keep their places.
    fn pass_sharing(&mut self) -> Result<()> {
        for place in (1..std::mem::replace(&mut self.sharing, 1)).rev() {
            self.advance(place)?;
        }
        Ok(())
    }

    /// What a source says about its key: whether it has a value, which is left in `value`. `None` if older ones have to be asked.
    #[inline]
    fn ask(&mut self, source: At) -> Result<Option<bool>> {
        let (key, newer) = match source {
            At::Nowhere | At::Ahead => return Ok(None),
            At::Layer(index) => (self.layers[index].cursor.key(), index),
            At::Tree => (self.tree.key(), self.layers.len()),
        };
        if self.has_ranges && self.is_covered(key, newer) {
            return Ok(Some(false));
        }
        let stored = match source {
            At::Layer(index) => {
                let layer = &self.layers[index];
                match layer.cursor.resolve(layer.csn) {
                    Found::Absent => return Ok(None),
                    Found::Deleted => return Ok(Some(false)),
                    Found::Value(value) => value,
                    Found::Large(pointer) => read_large(self.view.pager, pointer)?,
                }
            }
            _ => read_stored(self.view.pager, self.tree.value())?,
        };
        if self.view.now != 0 {
            return self.keep_live(stored).map(Some);
        }
        self.value = stored;
        Ok(Some(true))
    }

    /// Where the next range begins that a layer may have deleted: none is over the position's key.
    #[cold]
    fn next_range(&self) -> Option<&[u8]> {
        let buffers = self.layers.iter().filter_map(|layer| layer.buffer);
        buffers
            .filter_map(|buffer| buffer.next_range(self.tree.key()))
            .min()
    }

    /// Whether one of the newest `count` layers deleted a range over `key`.
    fn is_covered(&self, key: &[u8], count: usize) -> bool {
        self.layers[..count]
            .iter()
            .any(|l| l.buffer.is_some_and(|buffer| buffer.cover(key, l.csn) > 0))
    }
}
