//! Few changes of a leaf go in front of it, as a [delta](crate::node::Delta), while buffers come faster than they are merged.
//!
//! A merge of entries all over a tree meets nearly every leaf, and has an entry or ten for each. Written anew, a leaf costs its whole length for
//! these. A delta costs no more than the changes since the leaf was written, and takes the changes of the delta before it; the leaf is
//! written when its deltas have cost as much as that would have. So if a merge changes one part in `n` of a leaf, the bytes
//! written for one changed go from `n` to about the square root of `2n`.
//!
//! All leaves below an inner node are treated alike, as some of them show, and their deltas are written again together wherever there are any changes:
//! so they lie side by side, and leave space side by side. Such groups take turns, so that merges cost about the same.
//!
//! The price: a lookup there reads a node more, and a scan joins two. Therefore there are deltas only where a merge is pressed; any other merge that
//! comes by, and compaction, puts them into their leaves, and what is left goes there when merges rest (`merger/tidy.rs`).
//!
//! # Invariants
//! (1) A delta counts what it keeps from being free, beside what was written: values that it hides and that are outside of the leaf.
//! (2) What is pending for a leaf was taken from the stream: it goes either into a delta or, with the leaf, into the packer.
//! (3) Where a delta takes the place of one, values that only the older one referred to are dead; those that the leaf refers to are dead with
//!     the leaf.

use super::{ChangeStream, Content, Merger};
use crate::{
    Result,
    node::{
        self, Delta, DeltaPacker, Inner, Leaf, Mark, NODE_BYTES_SOFT_MAX, NodeRef, Stored,
        ValuePointer,
    },
    pager::Pager,
    tree::{ChangedLeaf, Node, Root, leaf_behind, open_child},
};

/// Shorter leaves are written anew: less is saved than the delta has beside its entries.
const LEAF_BYTES_MIN: usize = NODE_BYTES_SOFT_MAX / 4;
/// The first deltas of leaves are expected to have no more than one part in so many of these.
const FIRST_SHARE: usize = 8;
/// And none has more than one part in so many.
const SHARE: usize = 2;
/// How many leaves of a group are looked at.
const SAMPLES: usize = 8;
/// What a delta has beside keys and values.
const FRAME_BYTES: usize = 128;
/// The average goes over about as many leaves.
const LEAVES: usize = 32;

/// What becomes of the leaves at which a merge is.
#[derive(Debug)]
pub(super) struct Deltas {
    is_pressed: bool,
    /// What becomes of the changes of the group.
    way: Way,
    /// It is to be decided, for a group begins or there is something known of leaves for the first time.
    pub is_way_open: bool,
    /// Of the last leaves with changes, [`LEAVES`] times the average: what the changes take in a leaf. It begins with what the first one has.
    changed: Option<usize>,
    /// Of this leaf.
    changing: usize,
    pending: Pending,
    packer: DeltaPacker,
}

/// Where the changes of a leaf go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Front,
    Leaf,
}

/// Changes of a leaf, in order of keys.
#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// Key, and value if that is in the leaf, lie side by side from `at` on.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: usize,
    key_bytes: usize,
    value: Held,
    mark: Mark,
}

#[derive(Debug, Clone, Copy)]
enum Held {
    Inline(usize),
    External(ValuePointer),
}

impl Pending {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    fn push(&mut self, key: &[u8], stored: Stored<'_>, mark: Mark) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value = match stored {
            Stored::Inline(value) => {
                self.bytes.extend_from_slice(value);
                Held::Inline(value.len())
            }
            Stored::External(pointer) => Held::External(pointer),
        };
        self.entries.push(Entry {
            at,
            key_bytes: key.len(),
            value,
            mark,
        });
    }

    /// Takes entries of a delta over as they are.
    fn extend(&mut self, delta: Delta<'_>, range: std::ops::Range<usize>, key: &mut Vec<u8>) {
        let entries = delta.entries();
        for index in range {
            entries.copy_key(index, key);
            self.push(key, entries.value(index), delta.mark(index));
        }
    }

    /// No more than what a leaf needs for them, without common prefix.
    fn leaf_bytes(&self) -> usize {
        let pointers = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.value, Held::External(_)));
        self.bytes.len() + pointers.count() * ValuePointer::ENCODED_BYTES
    }

    fn get(&self, index: usize) -> (&[u8], Stored<'_>, Mark) {
        let entry = self.entries[index];
        let (key, rest) = self.bytes[entry.at..].split_at(entry.key_bytes);
        let stored = match entry.value {
            Held::Inline(bytes) => Stored::Inline(&rest[..bytes]),
            Held::External(pointer) => Stored::External(pointer),
        };
        (key, stored, entry.mark)
    }
}

impl Deltas {
    pub fn new(is_pressed: bool) -> Deltas {
        Deltas {
            is_pressed,
            way: Way::Leaf,
            is_way_open: false,
            changed: None,
            changing: 0,
            pending: Pending::default(),
            packer: DeltaPacker::default(),
        }
    }

    /// A change that takes so much in a leaf.
    pub fn note_change(&mut self, key: &[u8], stored: Option<Stored<'_>>) {
        let value_bytes = match stored {
            Some(Stored::Inline(value)) => value.len(),
            Some(Stored::External(_)) => ValuePointer::ENCODED_BYTES,
            None => 0,
        };
        self.changing += key.len() + value_bytes;
    }

    /// All changes of a leaf were noted.
    pub fn end_leaf(&mut self) {
        let changing = std::mem::take(&mut self.changing);
        self.is_way_open |= self.changed.is_none();
        self.changed = Some(match self.changed {
            None => LEAVES * changing,
            Some(changed) => changed - changed / LEAVES + changing,
        });
    }

    /// What the changes of a leaf are expected to take in front of it, if anything is known.
    fn expected_bytes(&self) -> Option<usize> {
        Some(FRAME_BYTES + self.changed? / LEAVES)
    }
}

/// A leaf with changes, and the delta that is in front of it now.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub at: NodeRef,
    pub leaf: Leaf<'a>,
    pub delta: Option<Delta<'a>>,
}

impl<'a> Found<'a> {
    pub fn new(at: NodeRef, leaf: Leaf<'a>, delta: Option<Delta<'a>>) -> Found<'a> {
        Found { at, leaf, delta }
    }
}

impl<S: ChangeStream> Merger<'_, '_, S> {
    /// Decides where changes of the leaves below a node on level 1 go.
    pub(super) fn choose_way(&mut self, inner: Inner<'_>) {
        self.deltas.is_way_open = false;
        self.deltas.way = Way::Leaf;
        let expected = self.deltas.expected_bytes();
        let Some(expected) = expected.filter(|_| self.deltas.is_pressed) else {
            return;
        };
        #[cfg(test)]
        if let Some(way) = at_random::way() {
            self.deltas.way = way;
            return;
        }
        let pager = self.sink.pager();
        let samples = SAMPLES.min(inner.len());
        let (mut leaf_bytes, mut delta_bytes, mut spent) = (0, 0, 0);
        let mut turn = 0;
        for sample in 0..samples {
            let at = inner.child(sample * inner.len() / samples);
            let behind = match changes_of(pager, at) {
                Some(delta) => {
                    delta_bytes += delta.entries_bytes();
                    spent += delta.spent() as usize;
                    delta.base()
                }
                None => at,
            };
            leaf_bytes += behind.bytes();
            turn ^= behind.to_bits();
        }
        let bytes = samples * expected + delta_bytes;
        let bytes_max = leaf_bytes / if spent == 0 { FIRST_SHARE } else { SHARE };
        if bytes <= bytes_max && spent + bytes <= spent_max(leaf_bytes, turn) {
            self.deltas.way = Way::Front;
        }
    }

    /// Whether a leaf without changes has a delta, which goes the way of its group: it would keep a page that is free but for it. What cannot be read
    /// stays where it is.
    pub(super) fn is_delta_moved(&self, at: NodeRef) -> bool {
        let pager = self.sink.pager();
        self.deltas.is_pressed
            && changes_of(pager, at).is_some_and(|delta| leaf_behind(pager, delta).is_ok())
    }

    /// Whether the changes of a leaf go in front of it. Where values are to leave it, it has to be written.
    pub(super) fn wants_delta(&self, found: Found<'_>) -> bool {
        let leaf_bytes = found.at.bytes();
        let delta_bytes = found.delta.map_or(0, |delta| delta.entries_bytes());
        self.deltas.is_pressed
            && self.deltas.way == Way::Front
            && self.rewrite.is_none()
            && self.ranges.is_empty()
            && self.judge.is_none()
            && self.is_expected_to_fit(leaf_bytes, delta_bytes)
            && (self.leaves.is_empty() || !self.is_underfull(0))
            && !self.would_move_values(found.leaf)
    }

    fn is_expected_to_fit(&self, leaf_bytes: usize, delta_bytes: usize) -> bool {
        #[cfg(test)]
        if let Some(way) = at_random::way() {
            return way == Way::Front;
        }
        (LEAF_BYTES_MIN..=NODE_BYTES_SOFT_MAX).contains(&leaf_bytes)
            && (self.deltas.expected_bytes())
                .is_some_and(|expected| expected + delta_bytes <= leaf_bytes / SHARE)
    }

    /// Puts the changes below `upper` in front of a leaf; or with the leaf into the packer, if they are more than was expected. An older delta counts
    /// as dead already.
    pub(super) fn put_in_front(
        &mut self,
        found: Found<'_>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        let Found { at, leaf, delta } = found;
        let bytes_max = (at.bytes() / SHARE).saturating_sub(FRAME_BYTES);
        let mut pending = std::mem::take(&mut self.deltas.pending);
        pending.clear();
        let taken = self.take_changes(found, upper, bytes_max, &mut pending)?;
        let is_all = !self.has_change(upper);
        if is_all && let Some(delta) = delta {
            let mut key = std::mem::take(&mut self.key_buffer);
            pending.extend(delta, taken.of_delta..delta.entries().len(), &mut key);
            self.key_buffer = key;
        }
        let spent = delta.map_or(0, |delta| delta.spent() as usize) + taken.hidden_bytes;
        let fits = is_all && pending.leaf_bytes() <= bytes_max;
        let root = match fits {
            true => self.place_delta(at, leaf, &pending, spent)?,
            false => None,
        };
        match root {
            Some(root) => {
                self.slack.end_run();
                self.flush_level(0)?;
                self.push_child(1, lower, root)?;
                self.end_leaf(Content::of_leaf(leaf));
            }
            None => {
                // Changes are dense here, and not as few as elsewhere. But one leaf of a group with deltas says nothing of the others.
                if delta.is_none() {
                    self.deltas.way = Way::Leaf;
                }
                self.kill_leaf_behind(at)?;
                self.begin_run(lower);
                let from = self.push_pending(leaf, &pending)?;
                match delta {
                    Some(delta) if !is_all => {
                        let mut changed = ChangedLeaf::new(leaf, delta);
                        changed.place((from, taken.of_delta));
                        self.repack_changed(changed, upper)?;
                    }
                    _ => self.repack_from(leaf, from, upper)?,
                }
            }
        }
        self.deltas.pending = pending;
        Ok(())
    }

    /// Takes changes below `upper`, with the entries of the older delta that come before them, until these are more than `bytes_max`.
    fn take_changes(
        &mut self,
        Found { leaf, delta, .. }: Found<'_>,
        upper: Option<&[u8]>,
        bytes_max: usize,
        pending: &mut Pending,
    ) -> Result<Taken> {
        let mut taken = Taken::default();
        let mut of_leaf = 0;
        let mut old_key = std::mem::take(&mut self.key_buffer);
        while pending.leaf_bytes() <= bytes_max
            && let Some(key) = self.changes.key()
            && upper.is_none_or(|upper| key < upper)
        {
            let mut was_changed = false;
            if let Some(delta) = delta {
                let entries = delta.entries();
                let to = entries.lower_bound_from(taken.of_delta, key);
                pending.extend(delta, taken.of_delta..to, &mut old_key);
                taken.of_delta = to;
                if to < entries.len() && entries.cmp_key(to, key).is_eq() {
                    (was_changed, taken.of_delta) = (true, to + 1);
                    let stored = entries.value(to);
                    if delta.mark(to) != Mark::Removes {
                        (self.placement).note_replaced(Content::of(key.len(), stored).bytes);
                    }
                    // (3)
                    if let Stored::External(pointer) = stored {
                        self.sink.kill_value(&pointer);
                    }
                }
            }
            of_leaf = leaf.lower_bound_from(of_leaf, key);
            let is_in_leaf = of_leaf < leaf.len() && leaf.cmp_key(of_leaf, key).is_eq();
            if is_in_leaf && !was_changed {
                let stored = leaf.value(of_leaf);
                (self.placement).note_replaced(Content::of(key.len(), stored).bytes);
                // (1)
                if let Stored::External(pointer) = stored {
                    taken.hidden_bytes += pointer.len as usize;
                }
            }
            let stored = self
                .placement
                .store_change(self.sink, self.changes.change())?;
            self.placement
                .note_change(key, stored.map_or(0, |stored| Content::of(0, stored).bytes));
            self.deltas.note_change(key, stored);
            match (stored, is_in_leaf) {
                (Some(stored), true) => pending.push(key, stored, Mark::Replaces),
                (Some(stored), false) => pending.push(key, stored, Mark::New),
                (None, true) => pending.push(key, Stored::Inline(&[]), Mark::Removes),
                (None, false) => {}
            }
            self.changes.advance()?;
        }
        self.key_buffer = old_key;
        Ok(taken)
    }

    /// Writes a delta in front of a leaf, if there is anything to change. `None`, and nothing is written, if it would be too large, or too little of
    /// the leaf would be left.
    fn place_delta(
        &mut self,
        at: NodeRef,
        leaf: Leaf<'_>,
        pending: &Pending,
        spent: usize,
    ) -> Result<Option<Root>> {
        let count = |mark| {
            pending
                .entries
                .iter()
                .filter(|entry| entry.mark == mark)
                .count()
        };
        let keys = (leaf.len() + count(Mark::New)).saturating_sub(count(Mark::Removes));
        if 2 * keys < leaf.len() {
            return Ok(None);
        }
        let mut root = Root {
            node: at,
            keys: keys as u64,
        };
        if pending.entries.is_empty() {
            return Ok(Some(root));
        }
        let packer = &mut self.deltas.packer;
        for index in 0..pending.entries.len() {
            let (key, stored, mark) = pending.get(index);
            packer.push(key, stored, mark);
        }
        let spent = u32::try_from(spent).unwrap_or(u32::MAX);
        let Some(image) = packer.finish(at, keys as u32, spent) else {
            return Ok(None);
        };
        root.node = self.sink.place(image)?;
        Ok(Some(root))
    }

    /// Pushes what is pending, with the leaf's entries up to the last of it. Returns how many entries of the leaf were passed.
    fn push_pending(&mut self, leaf: Leaf<'_>, pending: &Pending) -> Result<usize> {
        let mut from = 0;
        for index in 0..pending.entries.len() {
            let (key, stored, mark) = pending.get(index);
            let to = leaf.lower_bound_from(from, key);
            self.carry_over(leaf, from..to)?;
            from = to;
            if to < leaf.len() && leaf.cmp_key(to, key).is_eq() {
                if let Stored::External(pointer) = leaf.value(to) {
                    self.sink.kill_value(&pointer);
                }
                from += 1;
            }
            if mark != Mark::Removes {
                self.push_entry(key, stored)?;
            }
        }
        Ok(from)
    }

    /// Counts a leaf as dead whose changes are put into it.
    fn kill_leaf_behind(&mut self, at: NodeRef) -> Result<()> {
        let birth = node::birth(self.sink.pager().node(at)?);
        self.sink.kill_node(at, birth);
        Ok(())
    }

    /// Counts the values as dead that a delta hides in its leaf, which counts as dead already: those behind the position.
    fn kill_hidden(&mut self, changed: &ChangedLeaf<'_>) {
        let mut key = std::mem::take(&mut self.key_buffer);
        for index in changed.changes_behind() {
            if changed.delta.mark(index) == Mark::New {
                continue;
            }
            changed.delta.entries().copy_key(index, &mut key);
            if let Some(Stored::External(pointer)) = changed.base.get(&key) {
                self.sink.kill_value(&pointer);
            }
        }
        self.key_buffer = key;
    }

    /// Merges what a leaf with a delta has behind the position, and the changes below `upper`, into the packer.
    fn repack_changed(&mut self, mut changed: ChangedLeaf<'_>, upper: Option<&[u8]>) -> Result<()> {
        self.kill_hidden(&changed);
        let content = Content::of_leaf(changed.base) + Content::of_leaf(changed.delta.entries());
        let stays = self.stays(content);
        while let Some((leaf, run)) = changed.next_run() {
            self.repack_run(leaf, run.start, stays, upper)?;
        }
        self.insert_below(upper)?;
        self.end_leaf(content);
        Ok(())
    }

    /// A leaf with a delta, which counts as dead already; its changes are put into it.
    pub(super) fn visit_changed(
        &mut self,
        delta: Delta<'_>,
        leaf: Leaf<'_>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        if self.rewrite.is_some() {
            return self.push_changed_entries(delta, leaf, lower);
        }
        self.kill_leaf_behind(delta.base())?;
        self.slack.end_run();
        self.begin_run(lower);
        self.repack_changed(ChangedLeaf::new(leaf, delta), upper)
    }

    /// Pushes the entries of a leaf with a delta as they are.
    pub(super) fn push_changed_entries(
        &mut self,
        delta: Delta<'_>,
        leaf: Leaf<'_>,
        lower: &[u8],
    ) -> Result<()> {
        self.kill_leaf_behind(delta.base())?;
        let mut changed = ChangedLeaf::new(leaf, delta);
        self.kill_hidden(&changed);
        self.begin_run(lower);
        while let Some((leaf, run)) = changed.next_run() {
            self.push_entries(leaf, run)?;
        }
        Ok(())
    }
}

/// The delta below a node on level 1 that a reference leads to. What is damaged is for a merge to say that has changes for it.
fn changes_of(pager: &Pager, at: NodeRef) -> Option<Delta<'_>> {
    if !at.has_deltas() {
        return None;
    }
    match open_child(pager, at, 1) {
        Ok(Node::Delta(delta)) => Some(delta),
        _ => None,
    }
}

/// How much deltas in front of leaves may cost until these are written: about as much as the leaves. Not the same for all, so that they take turns.
fn spent_max(leaf_bytes: usize, turn: u64) -> usize {
    let turn = (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
    leaf_bytes / 2 + leaf_bytes * turn / 256
}

/// What the changes of a leaf met.
#[derive(Debug, Default)]
struct Taken {
    /// Entries of the older delta that were passed.
    of_delta: usize,
    /// Of values outside of the leaf that were not hidden before.
    hidden_bytes: usize,
}

/// Ways that are drawn by lot, for tests with small trees.
#[cfg(test)]
pub(super) mod at_random {
    use std::cell::Cell;

    use super::Way;

    thread_local! {
        /// State of a linear congruential generator; 0 for ways as they are.
        pub static LOT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn way() -> Option<Way> {
        let lot = LOT.get();
        if lot == 0 {
            return None;
        }
        let next = lot.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        LOT.set(next);
        Some(if next >> 62 > 0 {
            Way::Front
        } else {
            Way::Leaf
        })
    }
}
