//! Ordered positions in one tree.
//!
//! The path from the root is kept on a stack; leaves have no links to each other, as copy-on-write could not keep them.
//! What comes behind a leaf is asked for while the leaf is read, so that it has arrived by then: in long ranges line by line, as a processor has room for
//! a dozen misses, and more at once keep it waiting. The key of the position lies in one buffer whose prefix is written once a leaf. A leaf with a delta is read run by run ([`ChangedLeaf`]), as
//! if each run were a leaf.
//!
//! # Invariants
//! (1) The entries `first..leaf.len()` of `leaf` follow one another in the tree; `index` is one of them.

use std::cmp::Ordering;

use super::{Bottom, ChangedLeaf, Root, ask_for_leaf_behind, bottom, child_bytes, descend};
use crate::{
    Result,
    node::{Inner, Leaf, NodeRef, Stored},
    pager::Pager,
    prefetch::Lines,
};

/// A range that goes on for more leaves than these is a long one.
const LEAVES_OF_SHORT_RANGES: usize = 2;
/// So many searches that stayed in their leaf, more than did not, make the next ones look there first. One alone is chance where some keys are sought
/// more than others, and a leaf that is looked at in vain may be in no cache.
const TRUST: u8 = 2;

/// A position between or on entries. Not positioned after it left either end.
pub(crate) struct TreeCursor<'a> {
    pager: &'a Pager,
    root: Root,
    path: Vec<(Inner<'a>, usize)>,
    /// Cut off where the run ends.
    leaf: Option<Leaf<'a>>,
    /// Where the run begins.
    first: usize,
    index: usize,
    /// What `leaf` is a run of, if it is no whole leaf.
    changed: Option<ChangedLeaf<'a>>,
    /// There was a leaf with a delta: there may be more.
    meets_deltas: bool,
    key: Vec<u8>,
    /// Nodes that were asked for since the last search, up to `LEAVES_OF_SHORT_RANGES`.
    asked: usize,
    /// What is still to be asked for while the leaf is read, and how many lines of it with each entry.
    coming: Lines,
    pace: usize,
    /// How much speaks for it that the next search stays in its leaf, up to `TRUST`: from there on it looks there first.
    trust: u8,
}

impl<'a> TreeCursor<'a> {
    pub fn new(pager: &'a Pager, root: Root) -> TreeCursor<'a> {
        TreeCursor {
            pager,
            root,
            path: Vec::new(),
            leaf: None,
            first: 0,
            index: 0,
            changed: None,
            meets_deltas: false,
            key: Vec::new(),
            asked: 0,
            coming: Lines::NONE,
            pace: 0,
            trust: 0,
        }
    }

    pub fn is_valid(&self) -> bool {
        self.leaf.is_some()
    }

    /// Key of the position; the last one read if not positioned.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Order of the key of the position and `key`. The cursor must be valid.
    #[inline(always)]
    pub fn cmp_key(&self, key: &[u8]) -> Ordering {
        let leaf = self.leaf.expect("the cursor is positioned");
        leaf.cmp_key(self.index, key)
    }

    /// Value of the position. The cursor must be valid.
    #[inline]
    pub fn value(&self) -> Stored<'a> {
        self.leaf
            .expect("the cursor is positioned")
            .value(self.index)
    }

    /// The leaf of the position, and the index in it. It is read from [`first`](TreeCursor::first) on.
    #[inline(always)]
    pub fn leaf(&self) -> Option<(Leaf<'a>, usize)> {
        self.leaf.map(|leaf| (leaf, self.index))
    }

    /// The index in the leaf of the position.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The first index of the leaf of the position that is read.
    #[inline(always)]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Moves within the leaf of the position; `index` must be in it.
    pub fn set_index(&mut self, index: usize) {
        let leaf = self.leaf.expect("the cursor is positioned");
        self.index = index;
        leaf.load_suffix(index, &mut self.key);
    }

    /// Moves to a neighbour within the leaf. Returns what is stored there.
    #[inline(always)]
    pub fn step_to(&mut self, index: usize) -> Stored<'a> {
        self.ask_along(1);
        self.index = index;
        let leaf = self.leaf.as_ref().expect("the cursor is positioned");
        leaf.load_entry(index, &mut self.key)
    }

    /// Moves within the leaf, but for the key: [`load_key`](TreeCursor::load_key) has to follow before it is asked for.
    #[inline(always)]
    pub fn move_to(&mut self, index: usize) {
        self.ask_along(index.abs_diff(self.index));
        self.index = index;
    }

    /// Brings the key of another entry of the leaf, in the place of that of the position: [`load_key`](TreeCursor::load_key) has to follow.
    #[inline(always)]
    pub fn load_key_of(&mut self, index: usize) {
        let leaf = self.leaf.expect("the cursor is positioned");
        leaf.load_suffix(index, &mut self.key);
    }

    /// Brings the key of the position after [`move_to`](TreeCursor::move_to).
    pub fn load_key(&mut self) {
        self.set_index(self.index);
    }

    /// Goes down to level 0. `None` for an empty tree.
    fn descend(
        &mut self,
        mut choose: impl FnMut(&Inner<'a>) -> usize,
    ) -> Result<Option<Bottom<'a>>> {
        self.path.clear();
        self.leaf = None;
        self.changed = None;
        (self.asked, self.coming) = (0, Lines::NONE);
        if self.root.node.is_null() {
            return Ok(None);
        }
        let path = &mut self.path;
        let bytes = descend(self.pager, self.pager.node(self.root.node)?, |inner| {
            let index = choose(&inner);
            path.push((inner, index));
            inner.child(index)
        })?;
        bottom(self.pager, bytes).map(Some)
    }

    fn settle(&mut self, leaf: Leaf<'a>, index: usize) {
        leaf.load_prefix(&mut self.key);
        leaf.load_suffix(index, &mut self.key);
        self.leaf = Some(leaf);
        self.first = 0;
        self.index = index;
        if !self.coming.is_empty() {
            self.pace = self.coming.len().div_ceil(leaf.len());
        }
    }

    /// To the first entry of the next run of a leaf with a delta. False if there is none.
    #[cold]
    fn next_run(&mut self) -> bool {
        let Some((leaf, run)) = self.changed.as_mut().and_then(ChangedLeaf::next_run) else {
            self.changed = None;
            return false;
        };
        self.settle(leaf, run.start);
        self.first = run.start;
        true
    }

    /// To the last entry of the run before.
    #[cold]
    fn previous_run(&mut self) -> bool {
        let Some((leaf, run)) = self.changed.as_mut().and_then(ChangedLeaf::previous_run) else {
            self.changed = None;
            return false;
        };
        self.settle(leaf, run.end - 1);
        self.first = run.start;
        true
    }

    /// The first entry at or after `key`, if it is in the leaf of the position and behind another there: then it is the first in the tree, too.
    #[inline]
    fn find_near(&self, key: &[u8]) -> Option<usize> {
        let is_worth_it = self.trust == TRUST && self.changed.is_none();
        let leaf = self.leaf.filter(|_| is_worth_it)?;
        let index = match leaf.cmp_key(self.index, key) {
            Ordering::Less => leaf.lower_bound_from(self.index + 1, key),
            Ordering::Equal => self.index,
            Ordering::Greater => leaf.lower_bound(key),
        };
        (1..leaf.len()).contains(&index).then_some(index)
    }

    /// Ends a search in the leaf of the position.
    #[inline]
    fn stay_at(&mut self, index: usize) -> bool {
        self.asked = 0;
        self.set_index(index);
        true
    }

    /// Notes to which leaf a search from the root came.
    #[inline]
    fn came_to(&mut self, leaf: Leaf<'a>, before: Option<Leaf<'a>>) {
        self.trust = match before {
            Some(before) if before.is_same(leaf) => TRUST.min(self.trust + 1),
            _ => self.trust.saturating_sub(1),
        };
    }

    /// First key at or after `key`.
    pub fn seek_ge(&mut self, key: &[u8]) -> Result<bool> {
        if let Some(index) = self.find_near(key) {
            return Ok(self.stay_at(index));
        }
        let before = self.leaf;
        match self.descend(|inner| inner.search(key))? {
            None => return Ok(false),
            Some(Bottom::Leaf(leaf)) => {
                self.came_to(leaf, before);
                let index = leaf.lower_bound(key);
                if index < leaf.len() {
                    self.settle(leaf, index);
                    return Ok(true);
                }
            }
            Some(Bottom::Changed(mut changed)) => {
                changed.seek(key);
                self.changed = Some(changed);
            }
        }
        self.next_leaf()
    }

    /// Last key before `key`; the last of all if `key` is `None`.
    pub fn seek_lt(&mut self, key: Option<&[u8]>) -> Result<bool> {
        if let Some(index) = key.and_then(|key| self.find_near(key)) {
            return Ok(self.stay_at(index - 1));
        }
        let before = self.leaf;
        let last = |inner: &Inner<'a>| inner.len() - 1;
        let found =
            self.descend(|inner| key.map_or_else(|| last(inner), |key| inner.search(key)))?;
        match found {
            None => return Ok(false),
            Some(Bottom::Leaf(leaf)) => {
                self.came_to(leaf, before);
                let index = key.map_or(leaf.len(), |key| leaf.lower_bound(key));
                if index > 0 {
                    self.settle(leaf, index - 1);
                    return Ok(true);
                }
            }
            Some(Bottom::Changed(mut changed)) => {
                match key {
                    Some(key) => changed.seek(key),
                    None => changed.seek_end(),
                }
                self.changed = Some(changed);
            }
        }
        self.previous_leaf()
    }

    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        let Some(leaf) = self.leaf else {
            return Ok(false);
        };
        if self.index + 1 < leaf.len() {
            self.step_to(self.index + 1);
            return Ok(true);
        }
        self.next_leaf()
    }

    #[inline]
    pub fn prev(&mut self) -> Result<bool> {
        if self.leaf.is_none() {
            return Ok(false);
        }
        if self.index > self.first {
            self.step_to(self.index - 1);
            return Ok(true);
        }
        self.previous_leaf()
    }

    /// How many parts there are to be asked for by somebody who reads the leaf without moving the cursor; at least one.
    #[inline(always)]
    pub fn parts_coming(&self) -> usize {
        self.coming.parts()
    }

    /// Asks for the next of these parts.
    #[inline(always)]
    pub fn ask_for_part(&mut self) {
        self.coming.ask_for_part();
    }

    /// Asks for all of them at once.
    #[inline(always)]
    pub fn ask_for_the_rest(&mut self) {
        self.coming.ask_for(self.coming.len());
    }

    /// Asks for as much of what comes behind the leaf as goes with so many of its entries.
    #[inline(always)]
    fn ask_along(&mut self, entries: usize) {
        if !self.coming.is_empty() {
            self.coming.ask_for(entries.saturating_mul(self.pace));
        }
    }

    /// Asks for the leaf after the next, or the node above it; in a long range, where it will be read from end to end, for all of it, while the leaf before it
    /// is read.
    fn ask_for(&mut self, node: NodeRef) {
        if self.asked < LEAVES_OF_SHORT_RANGES {
            self.asked += 1;
            self.pager.prefetch(node);
        } else {
            self.coming = self.pager.lines(node);
        }
    }

    /// Asks for the leaf after the next; among deltas, for the one after that and the leaf behind that delta. `place(n)`: index of the `n`th after
    /// the next.
    #[inline(always)]
    fn ask_for_next(&mut self, inner: Inner<'a>, place: impl Fn(usize) -> Option<usize>) {
        let child = |by| {
            place(by)
                .filter(|&index| index < inner.len())
                .map(|index| inner.child(index))
        };
        if !self.meets_deltas {
            if let Some(next) = child(0) {
                self.ask_for(next);
            }
            return;
        }
        if let Some(next) = child(1) {
            self.ask_for(next);
        }
        if let Some(next) = child(0) {
            ask_for_leaf_behind(self.pager, next);
        }
    }

    /// First entry of the next leaf, or of the next run of one with a delta.
    pub fn next_leaf(&mut self) -> Result<bool> {
        self.leaf = None;
        if self.changed.is_some() && self.next_run() {
            return Ok(true);
        }
        self.coming = Lines::NONE;
        while let Some((inner, index)) = self.path.pop() {
            if index + 1 == inner.len() {
                continue;
            }
            self.path.push((inner, index + 1));
            self.ask_for_next(inner, |by| index.checked_add(2 + by));
            match self.edge(inner.child(index + 1), inner.level(), |_| 0)? {
                Bottom::Leaf(leaf) if leaf.len() > 0 => {
                    self.settle(leaf, 0);
                    return Ok(true);
                }
                Bottom::Leaf(_) => {}
                Bottom::Changed(changed) => {
                    (self.changed, self.meets_deltas) = (Some(changed), true);
                    if self.next_run() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Last entry of the leaf, or the run, before.
    fn previous_leaf(&mut self) -> Result<bool> {
        self.leaf = None;
        if self.changed.is_some() && self.previous_run() {
            return Ok(true);
        }
        self.coming = Lines::NONE;
        while let Some((inner, index)) = self.path.pop() {
            if index == 0 {
                continue;
            }
            self.path.push((inner, index - 1));
            self.ask_for_next(inner, |by| index.checked_sub(2 + by));
            let last = |inner: &Inner<'_>| inner.len() - 1;
            match self.edge(inner.child(index - 1), inner.level(), last)? {
                Bottom::Leaf(leaf) if leaf.len() > 0 => {
                    self.settle(leaf, leaf.len() - 1);
                    return Ok(true);
                }
                Bottom::Leaf(_) => {}
                Bottom::Changed(mut changed) => {
                    changed.seek_end();
                    (self.changed, self.meets_deltas) = (Some(changed), true);
                    if self.previous_run() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn edge(
        &mut self,
        at: NodeRef,
        parent_level: u8,
        choose: impl Fn(&Inner<'a>) -> usize,
    ) -> Result<Bottom<'a>> {
        let path = &mut self.path;
        let bytes = descend(
            self.pager,
            child_bytes(self.pager, at, parent_level)?,
            |inner| {
                let index = choose(&inner);
                path.push((inner, index));
                inner.child(index)
            },
        )?;
        bottom(self.pager, bytes)
    }
}
