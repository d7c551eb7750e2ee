//! `merge(root, changes) -> new root`: the only way in which a tree changes.
//!
//! The merge walks the tree in key order beside the sorted stream of changes. Subtrees without changes are attached as
//! they are. Leaves with changes are patched, if every change replaces a value by one of the same length that stays in the leaf ([`placement`]) and they
//! fill their pages ([`slack`]), or taken apart and packed anew, what lies between two changes as a whole; neighbouring leaves with changes flow through one packer, so that runs of them
//! come out full. The same holds for inner nodes, one packer a level. Where there are few changes, an inner node whose children with changes
//! become one node each is patched as well, and its other children are not looked at ([`patch`]). While buffers pile up, few changes of a leaf go in front
//! of it ([`deltas`]). All new nodes are written in key order.
//!
//! # Invariants
//! (1) What the packers of levels `0..=l` hold precedes, in key order, what is pushed next; before a subtree of level `l`
//!     is attached, the packers of levels `0..=l` are empty. (Where a node turns out not to be patched, what was held back goes to the packer
//!     of its level, which is empty, and precedes what those below it hold.)
//! (2) A packer that would leave a node less than half full takes in the next neighbour instead, once. Where keys are
//!     appended, a small last leaf stays: the next keys will fill it.
//! (3) Old nodes that are taken apart, and out-of-line values that are replaced, are counted as dead, exactly once.
//! (4) Entries that have expired are dropped from the leaves that are taken apart; there is nothing older below them. The stream of changes
//!     drops its own: as a removal, for there may be.
//!
//! # Failure modes
//! Any error leaves the old root as it was; the sink gives the new pages back.
#![allow(unsafe_code)] // node views of checked bytes

mod deltas;
mod emit;
mod patch;
mod placement;
mod rewrite;
mod slack;

use std::{cmp::Ordering, ops::Range};

use deltas::{Deltas, Found};
use emit::Level;
use placement::{Content, Placement};
use slack::Slack;

use super::{Node, Root, ask_for_leaf_behind, leaf_behind, open_below, open_child, walk};
use crate::{
    Result,
    expiry::Judge,
    node::{
        self, Inner, Leaf, LeafCursor, LeafPacker, NODE_BYTES_SOFT_MAX, NodeRef, Stored,
        ValuePointer, patch_value, shortest_separator,
    },
    pager::Sink,
};

pub(crate) use placement::Terms;
pub(crate) use rewrite::{Rewrite, rewrite};

/// What happens to one key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Put(&'a [u8]),
    /// A value that its transaction wrote to the data file.
    Adopt(ValuePointer),
    Delete,
}

/// Changes in ascending order of distinct keys.
pub(crate) trait ChangeStream {
    /// Key of the current change; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The current change. Called only while `key` is `Some`.
    fn change(&self) -> Change<'_>;
    fn advance(&mut self) -> Result<()>;
    /// Hears, in a rewrite, of the keys of leaves that were looked at. An error ends it.
    fn passed(&mut self, _keys: u64) -> Result<()> {
        Ok(())
    }
    /// No less than the number of changes.
    fn len_max(&self) -> u64 {
        u64::MAX
    }
}

/// A half-open range of keys; without `hi` it has no upper end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub lo: Vec<u8>,
    pub hi: Option<Vec<u8>>,
}

/// Deletes what the tree holds in `ranges` (disjoint, ascending), then applies `changes`. What has expired at the time of the merge goes from the
/// leaves on the way.
pub(crate) fn merge<S: ChangeStream>(
    sink: &mut Sink<'_>,
    root: Root,
    ranges: &[KeyRange],
    changes: &mut S,
    terms: Terms,
) -> Result<Root> {
    if ranges.is_empty() && changes.key().is_none() {
        return Ok(root);
    }
    let judge = Judge::new(sink.pager(), terms.now);
    let mut merger = Merger::new(sink, changes, ranges, judge, terms);
    if root.node.is_null() {
        merger.insert_below(None)?;
    } else {
        merger.visit(root.node, None, &[], None)?;
    }
    merger.close()
}

struct Merger<'m, 'p, S> {
    sink: &'m mut Sink<'p>,
    changes: &'m mut S,
    ranges: &'m [KeyRange],
    judge: Option<Judge<'p>>,
    leaves: LeafPacker,
    /// Lower bound of what the leaf packer began with.
    lower: Vec<u8>,
    /// Last key of the leaf emitted before what the packer holds, if that leaf came from the same run.
    last_key: Option<Vec<u8>>,
    /// The packer's newest entry is new and came after all old ones of its leaf: keys are being appended.
    appending: bool,
    /// The packer's newest entry is new, and its key follows the one before it like the next of a sequence.
    sequential: bool,
    /// Packers of levels 1, 2, ...
    inners: Vec<Level>,
    scratch: Vec<u8>,
    key_buffer: Vec<u8>,
    rewrite: Option<Rewrite>,
    /// There are so few changes that it is worth while to patch inner nodes.
    is_patching: bool,
    slack: Slack,
    placement: Placement,
    deltas: Deltas,
}

impl<'m, 'p, S: ChangeStream> Merger<'m, 'p, S> {
    fn new(
        sink: &'m mut Sink<'p>,
        changes: &'m mut S,
        ranges: &'m [KeyRange],
        judge: Option<Judge<'p>>,
        terms: Terms,
    ) -> Merger<'m, 'p, S> {
        Merger {
            sink,
            is_patching: ranges.is_empty() && changes.len_max() <= patch::CHANGES_MAX,
            changes,
            ranges,
            judge,
            leaves: LeafPacker::new(),
            lower: Vec::new(),
            last_key: None,
            appending: false,
            sequential: false,
            inners: Vec::new(),
            scratch: Vec::new(),
            key_buffer: Vec::new(),
            rewrite: None,
            slack: Slack::default(),
            deltas: Deltas::new(terms.is_pressed),
            placement: Placement::new(terms),
        }
    }

    /// Whether the stream has a change below `upper`.
    fn has_change(&self, upper: Option<&[u8]>) -> bool {
        self.changes
            .key()
            .is_some_and(|key| upper.is_none_or(|upper| key < upper))
    }

    /// Drops ranges that end at or before `key`: keys only grow.
    fn pass_ranges(&mut self, key: &[u8]) {
        while let Some((first, rest)) = self.ranges.split_first() {
            if first.hi.as_deref().is_some_and(|hi| hi <= key) {
                self.ranges = rest;
            } else {
                break;
            }
        }
    }

    /// Whether `key` is in a deleted range. Keys must be asked for in ascending order.
    fn is_deleted(&mut self, key: &[u8]) -> bool {
        self.pass_ranges(key);
        self.ranges
            .first()
            .is_some_and(|range| range.lo.as_slice() <= key)
    }

    /// Whether a deleted range meets `[lower, upper)`, and whether it covers all of it.
    fn range_over(&mut self, lower: &[u8], upper: Option<&[u8]>) -> (bool, bool) {
        self.pass_ranges(lower);
        let Some(range) = self.ranges.first() else {
            return (false, false);
        };
        let meets = upper.is_none_or(|upper| range.lo.as_slice() < upper);
        let ends_after = match (range.hi.as_deref(), upper) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(hi), Some(upper)) => hi >= upper,
        };
        (meets, meets && ends_after && range.lo.as_slice() <= lower)
    }

    /// Takes a node apart that has changes below it, or that a neighbour needs to be filled with.
    fn visit(
        &mut self,
        at: NodeRef,
        parent_level: Option<u8>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        let pager = self.sink.pager();
        let bytes = pager.node(at)?;
        let node = open_below(pager, at, parent_level)?;
        if let Node::Leaf(leaf) = node {
            let found = Found::new(at, leaf, None);
            if self.wants_delta(found) {
                return self.put_in_front(found, lower, upper);
            }
        }
        self.sink.kill_node(at, node::birth(bytes));
        match node {
            Node::Leaf(leaf) => self.visit_leaf(leaf, bytes, lower, upper),
            Node::Delta(delta) => {
                let leaf = leaf_behind(pager, delta)?;
                let found = Found::new(delta.base(), leaf, Some(delta));
                match self.wants_delta(found) {
                    true => self.put_in_front(found, lower, upper),
                    false => self.visit_changed(delta, leaf, lower, upper),
                }
            }
            Node::Inner(inner) => match self.patch_inner(inner, bytes, lower, upper)? {
                Some(from) => self.visit_children(inner, from, lower, upper),
                None => Ok(()),
            },
        }
    }

    /// Takes an inner node apart from child `from` on; those before it were seen to.
    fn visit_children(
        &mut self,
        inner: Inner<'_>,
        from: usize,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        if from == inner.len() {
            return Ok(());
        }
        let mut child_lower = Vec::new();
        let mut child_upper = Vec::new();
        lower_bound(inner, from, lower, &mut child_lower);
        self.deltas.is_way_open = inner.level() == 1;
        let mut was_visited = false;
        for index in from..inner.len() {
            if inner.level() == 1 && self.deltas.is_way_open {
                self.choose_way(inner);
            }
            let child = inner.child(index);
            let was_before = std::mem::take(&mut was_visited);
            let bound = if index + 1 < inner.len() {
                inner.separator(index + 1, &mut child_upper);
                Some(child_upper.as_slice())
            } else {
                upper
            };
            let (meets, covers) = self.range_over(&child_lower, bound);
            let changed = self.has_change(bound);
            if covers && !changed {
                walk::give_up_child(self.sink, child, inner.level())?;
            } else if changed
                || meets
                || self.is_rewritten(child, inner.level())?
                || inner.level() == 1 && self.is_delta_moved(child)
            {
                was_visited = true;
                // Where one leaf after the other has changes, the next ones arrive while this one is merged.
                if was_before && inner.level() == 1 {
                    self.ask_for_children_behind(inner, index);
                }
                self.visit(child, Some(inner.level()), &child_lower, bound)?;
            } else {
                self.attach(
                    inner.level() - 1,
                    child,
                    &child_lower,
                    inner.child_keys(index),
                )?;
            }
            std::mem::swap(&mut child_lower, &mut child_upper);
        }
        Ok(())
    }

    /// Asks for the child after the next, and for the leaf behind the next one if that is a delta.
    fn ask_for_children_behind(&self, inner: Inner<'_>, index: usize) {
        let pager = self.sink.pager();
        if index + 2 < inner.len() {
            pager.prefetch_whole(inner.child(index + 2));
        }
        if index + 1 < inner.len() {
            ask_for_leaf_behind(pager, inner.child(index + 1));
        }
    }

    /// Hangs a subtree without changes, whose root is on `level`, behind what was emitted so far.
    fn attach(&mut self, level: u8, at: NodeRef, lower: &[u8], keys: u64) -> Result<()> {
        self.slack.end_run();
        for pending in 0..=level {
            if self.is_level_empty(pending) {
                continue;
            }
            if !self.is_underfull(pending) {
                self.flush_level(pending)?;
                continue;
            }
            // (2): the neighbour is opened down to the level that needs filling.
            let pager = self.sink.pager();
            let bytes = pager.node(at)?;
            self.sink.kill_node(at, node::birth(bytes));
            match open_child(pager, at, level + 1)? {
                Node::Leaf(leaf) => self.push_leaf_entries(leaf, lower)?,
                Node::Delta(delta) => {
                    self.push_changed_entries(delta, leaf_behind(pager, delta)?, lower)?;
                }
                Node::Inner(inner) => {
                    let mut separator = lower.to_vec();
                    for index in 0..inner.len() {
                        if index > 0 {
                            inner.separator(index, &mut separator);
                        }
                        let (child, keys) = (inner.child(index), inner.child_keys(index));
                        if pending == level {
                            self.push_child(level, &separator, Root { node: child, keys })?;
                        } else {
                            self.attach(level - 1, child, &separator, keys)?;
                        }
                    }
                }
            }
            return Ok(());
        }
        self.push_child(level + 1, lower, Root { node: at, keys })
    }

    /// A leaf with changes.
    fn visit_leaf(
        &mut self,
        leaf: Leaf<'_>,
        bytes: &[u8],
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        if self.rewrite.is_some() {
            return self.push_leaf_entries(leaf, lower);
        }
        let has_much_slack = self.slack.is_much_with(bytes.len(), leaf.len());
        if has_much_slack || self.range_over(lower, upper).0 || !self.may_patch(leaf, upper) {
            return self.repack_leaf(leaf, lower, upper);
        }
        let mut image = std::mem::take(&mut self.scratch);
        image.clear();
        image.extend_from_slice(bytes);
        let patched = self.patch_leaf(leaf, &mut image, upper)?;
        if patched {
            self.end_leaf(Content::of_leaf(leaf));
        }
        // SAFETY: (4) of the parent: a copy of a checked node in which only value bytes were replaced is still one.
        let leaf_now = unsafe { Leaf::new_validated(&image) };
        let result = if !patched {
            self.repack_leaf(leaf_now, lower, upper)
        } else if !self.leaves.is_empty() && self.is_underfull(0) {
            self.push_leaf_entries(leaf_now, lower)
        } else {
            let keys = leaf_now.len() as u64;
            self.flush_level(0).and_then(|()| {
                let node = self.sink.place(&mut image)?;
                self.push_child(1, lower, Root { node, keys })
            })
        };
        self.scratch = image;
        result
    }

    /// Whether the first change below `upper` replaces a value of the leaf: without a look at the others, there is something to patch.
    fn may_patch(&self, leaf: Leaf<'_>, upper: Option<&[u8]>) -> bool {
        !self.has_change(upper)
            || matches!(self.changes.change(), Change::Put(_))
                && self
                    .changes
                    .key()
                    .is_some_and(|key| leaf.find(key).is_some())
    }

    /// Replaces values in place while every change allows it. True if no change is left for this leaf.
    fn patch_leaf(
        &mut self,
        leaf: Leaf<'_>,
        image: &mut [u8],
        upper: Option<&[u8]>,
    ) -> Result<bool> {
        while self.has_change(upper) {
            let Change::Put(value) = self.changes.change() else {
                return Ok(false);
            };
            let key = self.changes.key().expect("there is a change");
            let Some(index) = leaf.find(key) else {
                return Ok(false);
            };
            if self.placement.is_apart(value.len())
                || matches!(leaf.value(index), Stored::External(_))
                || !patch_value(image, index, Stored::Inline(value))
            {
                return Ok(false);
            }
            self.placement.note_change(key, value.len());
            self.placement.note_replaced(key.len() + value.len());
            self.deltas.note_change(key, Some(Stored::Inline(value)));
            self.changes.advance()?;
        }
        Ok(true)
    }

    /// All changes of a leaf with so much content were made.
    fn end_leaf(&mut self, content: Content) {
        self.placement.end_leaf(content);
        self.deltas.end_leaf();
    }

    /// Merges the entries of a leaf with the changes below `upper` into the packer.
    fn repack_leaf(&mut self, leaf: Leaf<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        self.begin_run(lower);
        self.repack_from(leaf, 0, upper)
    }

    /// Merges the entries of a leaf from index `from` on with the changes below `upper` into the packer.
    fn repack_from(&mut self, leaf: Leaf<'_>, from: usize, upper: Option<&[u8]>) -> Result<()> {
        let content = Content::of_leaf(leaf);
        let stays = self.stays(content);
        self.repack_run(leaf, from, stays, upper)?;
        self.insert_below(upper)?;
        self.end_leaf(content);
        Ok(())
    }

    /// Whether the entries of a leaf with this content stay as they are but for the changes.
    fn stays(&self, content: Content) -> bool {
        self.ranges.is_empty() && self.judge.is_none() && self.keeps_places(content)
    }

    /// Merges entries of a leaf from index `from` on with the changes below `upper`, up to the last entry.
    fn repack_run(
        &mut self,
        leaf: Leaf<'_>,
        from: usize,
        stays: bool,
        upper: Option<&[u8]>,
    ) -> Result<()> {
        match stays {
            true => self.splice_changes(leaf, from, upper),
            false => self.repack_entries(leaf, from),
        }
    }

    /// Merges entries that stay as they are but for the changes, up to the last of them: what lies between two changes is carried over as a whole.
    fn splice_changes(
        &mut self,
        leaf: Leaf<'_>,
        mut from: usize,
        upper: Option<&[u8]>,
    ) -> Result<()> {
        while let Some(key) = self.changes.key()
            && upper.is_none_or(|upper| key < upper)
        {
            // The key may come before what is left of the leaf.
            let at = leaf.lower_bound_from(from, key).max(from);
            let replaces = at < leaf.len() && leaf.cmp_key(at, key).is_eq();
            self.carry_over(leaf, from..at)?;
            from = at;
            if at == leaf.len() {
                return Ok(());
            }
            if replaces && let Some(key) = self.changes.key() {
                let stored = leaf.value(at);
                self.placement
                    .note_replaced(Content::of(key.len(), stored).bytes);
                if let Stored::External(pointer) = stored {
                    self.sink.kill_value(&pointer);
                }
                from += 1;
            }
            self.take_change()?;
            // A new value for an old key does not make the leaf grow.
            self.sequential &= !replaces;
        }
        self.carry_over(leaf, from..leaf.len())
    }

    fn carry_over(&mut self, leaf: Leaf<'_>, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.sequential {
            let mut key = std::mem::take(&mut self.key_buffer);
            leaf.copy_key(range.start, &mut key);
            self.cut_behind_sequence(leaf, leaf.len() - range.start, &key)?;
            self.key_buffer = key;
        }
        self.appending = false;
        self.leaves.push_range(&leaf, range);
        self.emit_full_leaves()
    }

    /// Merges entries of a leaf, one by one, with the changes up to the last of them.
    fn repack_entries(&mut self, leaf: Leaf<'_>, from: usize) -> Result<()> {
        self.ask_for_values(leaf, from);
        let mut entries =
            LeafCursor::with_buffer(leaf, from..leaf.len(), std::mem::take(&mut self.key_buffer));
        let mut entry_index = from;
        while let Some((key, stored)) = entries.next() {
            let mut replaced = false;
            while let Some(change_key) = self.changes.key() {
                match change_key.cmp(key) {
                    Ordering::Less => self.take_change()?,
                    Ordering::Equal => {
                        replaced = true;
                        self.take_change()?;
                        // A new value for an old key does not make the leaf grow.
                        self.sequential = false;
                        break;
                    }
                    Ordering::Greater => break,
                }
            }
            if replaced || self.is_deleted(key) || self.has_expired(stored) {
                self.placement
                    .note_replaced(Content::of(key.len(), stored).bytes);
                if let Stored::External(pointer) = stored {
                    self.sink.kill_value(&pointer);
                }
            } else {
                if self.sequential {
                    self.cut_behind_sequence(leaf, leaf.len() - entry_index, key)?;
                }
                let stored = self.place_old(stored)?;
                self.push_entry(key, stored)?;
            }
            entry_index += 1;
        }
        self.key_buffer = entries.into_buffer();
        Ok(())
    }

    /// A sequence that grows in the middle of a leaf: if the leaf must be split, it is split behind the sequence, so that the
    /// left part stays full and the sequence goes on at the end of a leaf. `key` is the next old key.
    fn cut_behind_sequence(&mut self, leaf: Leaf<'_>, left: usize, key: &[u8]) -> Result<()> {
        self.sequential = false;
        let left_bytes = left * NODE_BYTES_SOFT_MAX / leaf.len().max(1);
        // The left part alone may have a denser encoding than the whole: it is cut a little early rather than too late.
        if self.leaves.pending_bytes() + left_bytes <= NODE_BYTES_SOFT_MAX / 4 * 3 {
            return Ok(());
        }
        let Some(last) = self.leaves.last_key() else {
            return Ok(());
        };
        if step(last, key).is_some_and(|step| step < GAP_MIN) {
            // Old keys go on where the new ones end: numbers are filled in, not appended.
            return Ok(());
        }
        let mut separator = Vec::new();
        shortest_separator(last, key, &mut separator);
        self.appending = true;
        self.flush_level(0)?;
        self.begin_run(&separator);
        Ok(())
    }

    /// (4)
    #[inline]
    fn has_expired(&self, stored: Stored<'_>) -> bool {
        self.judge.is_some_and(|judge| judge.is_expired(stored))
    }

    /// Pushes a leaf's entries as they are.
    fn push_leaf_entries(&mut self, leaf: Leaf<'_>, lower: &[u8]) -> Result<()> {
        self.begin_run(lower);
        self.push_entries(leaf, 0..leaf.len())
    }

    fn push_entries(&mut self, leaf: Leaf<'_>, range: Range<usize>) -> Result<()> {
        if self.rewrite == Some(Rewrite::Leaves) {
            self.ask_for_values(leaf, range.start);
        }
        let mut entries =
            LeafCursor::with_buffer(leaf, range, std::mem::take(&mut self.key_buffer));
        while let Some((key, stored)) = entries.next() {
            if self.has_expired(stored) {
                if let Stored::External(pointer) = stored {
                    self.sink.kill_value(&pointer);
                }
                continue;
            }
            match stored {
                Stored::External(old)
                    if (self.rewrite).is_some_and(|r| r.wants_value(self.sink.pager(), stored)) =>
                {
                    let value = self.sink.pager().value_to_move(&old)?;
                    let moved = self.sink.place_value(value)?;
                    self.sink.kill_value(&old);
                    self.push_entry(key, Stored::External(moved))?;
                }
                _ if self.rewrite == Some(Rewrite::Leaves) => {
                    let stored = self.place_old(stored)?;
                    self.push_entry(key, stored)?;
                }
                _ => self.push_entry(key, stored)?,
            }
        }
        self.key_buffer = entries.into_buffer();
        Ok(())
    }

    /// Applies the changes below `upper` where the tree has no entries left.
    fn insert_below(&mut self, upper: Option<&[u8]>) -> Result<()> {
        while self.has_change(upper) {
            self.appending = !matches!(self.changes.change(), Change::Delete);
            self.take_change()?;
        }
        Ok(())
    }

    /// Applies the current change to the packer and moves on.
    fn take_change(&mut self) -> Result<()> {
        let stored = self
            .placement
            .store_change(self.sink, self.changes.change())?;
        self.sequential = false;
        let value_bytes = stored.map_or(0, |stored| Content::of(0, stored).bytes);
        let key = self.changes.key().unwrap_or_default();
        self.placement.note_change(key, value_bytes);
        self.deltas.note_change(key, stored);
        if let (Some(stored), Some(key)) = (stored, self.changes.key()) {
            self.sequential = self
                .leaves
                .last_key()
                .and_then(|last| step(last, key))
                .is_some_and(|step| step <= STEP_MAX);
            self.leaves.push(key, stored);
            self.emit_full_leaves()?;
        }
        self.changes.advance()
    }
}

/// The lower bound of a child of a node that has this one.
fn lower_bound(inner: Inner<'_>, index: usize, lower: &[u8], out: &mut Vec<u8>) {
    inner.separator(index, out);
    if index == 0 {
        out.extend_from_slice(lower);
    }
}

/// Keys this close look like neighbours in a sequence of numbers.
const STEP_MAX: u64 = 256;
/// Keys this far apart do not look like parts of one sequence, binary or decimal.
const GAP_MIN: u64 = 1 << 32;

/// How far `key` comes after `last` as a number, if they are as long and differ in the last 8 bytes only.
fn step(last: &[u8], key: &[u8]) -> Option<u64> {
    let tail_at = key.len().saturating_sub(8);
    let number = |tail: &[u8]| tail.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    (last.len() == key.len() && last[..tail_at] == key[..tail_at])
        .then(|| number(&key[tail_at..]).wrapping_sub(number(&last[tail_at..])))
}

#[cfg(all(test, not(loom)))]
mod tests;
