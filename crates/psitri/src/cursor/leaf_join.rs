//! The tree's leaf and the layers, joined for many keys in a row: nearly all that is joined is of a leaf and of a few layers that have keys among
//! its own, and takes half of the time here, or less, of the way that joins any sources (`lockstep.rs`, whose invariants hold here).
//!
//! What is ahead in a layer is read where the cursor of its buffer keeps it, up to the first key that does not begin like all of the leaf.
//! That leaves heads to compare, the next 8 bytes of both keys, and what is behind them where these are the same. Several layers are one to the
//! leaf (`several.rs`). What is found is kept for the steps of a cursor, or visited at once.
//!
//! # Invariants
//! 1. No entry that is found comes after the last one of the leaf that is inside of the bounds; so no bounds need to be looked at, and a layer that
//!    stands behind all keys which begin like the leaf's is left out.
//! 2. The tree's cursor is moved to the leaf's index at the end, those of the layers after every batch.

use std::{cmp::Ordering, ops::ControlFlow};

use super::{
    At, Cursor, Layer,
    lockstep::{ALONE_MAX, DEAD_MAX, Key, WANT_FIRST},
    several::{Filled, Sources},
};
use crate::{
    Result,
    buffer::{BufferCursor, Coming, Found, Prefix, Standing},
    node::{Leaf, Stored, Visited, leaf_search::Sought},
};

/// What an entry was found in, beside bits for layers.
const TREE: u64 = 1 << 63;

/// Heads of the leaf that are loaded at once.
const HEADS: usize = 16;
/// So many entries of a leaf are not worth a run.
const LEFT_MAX: usize = 16;

/// Where the tree stands.
pub(super) struct LeafSide<'a> {
    pub leaf: Leaf<'a>,
    index: usize,
    /// Entries of the leaf in the direction of the cursor up to the end of the bounds, that at the index included.
    left: usize,
    /// Whether the leaf goes on behind these.
    is_cut: bool,
    pub forward: bool,
    /// Of the suffixes of coming entries. They are turned, as all heads are here.
    heads: [u64; HEADS],
    /// Which of them is that of the index, and how many there are. How many to load next.
    at: usize,
    loaded: usize,
    to_load: usize,
    /// Bits to turn in a head, so that heads are in the order of the cursor's direction: none going forward, all going backward.
    turn: u64,
    /// What all keys begin with.
    prefix: Prefix<'a>,
}

/// Layers as the leaf is joined with them: one source, which stands on the first of their keys.
pub(super) trait Layers<'a> {
    /// The first key.
    fn key(&self) -> &'a [u8];

    /// Its head.
    fn head(&self) -> u64;

    /// A bit for each layer that stands on it.
    fn sharing(&self) -> u64;

    /// What they say about it.
    fn resolve(&self) -> Found<'a>;

    /// Moves those that stand on it to their next keys. Nothing is to be asked any more unless they go on.
    fn pass(&mut self, leaf: &LeafSide<'a>) -> Passed;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    GoesOn,
    /// One has come to the end of what is known to be coming.
    Ended,
    /// All that go on do so behind the leaf.
    Beyond,
}

/// Takes what is found, and says whether it takes more.
trait Sink<'a> {
    /// So many keys of the leaf in a row are left to the general way.
    const RUN_MAX: usize;

    /// An entry of a layer.
    fn take(&mut self, key: &'a [u8], value: &'a [u8]) -> bool;

    /// Entries of a leaf that follow one another in the direction, at least one. Returns how many were taken: fewer where the next one has its value outside of
    /// the leaf, or no more are.
    fn take_run(
        &mut self,
        leaf: &Leaf<'a>,
        index: usize,
        steps: usize,
        forward: bool,
    ) -> (usize, bool);

    /// Whether something that was found waits for more.
    fn is_waiting(&self) -> bool;
}

/// What is found is kept, up to a number.
struct Keep<'f, 'a> {
    found: &'f mut Vec<(Key<'a>, &'a [u8])>,
    want: usize,
}

/// Who visits entries.
pub(super) type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// What is found is visited.
struct Visit<'v> {
    /// Begins with the leaf's prefix.
    key: &'v mut Vec<u8>,
    visit: &'v mut Visitor<'v>,
    flow: ControlFlow<()>,
}

/// One layer: where it stands, and what it comes to.
pub(super) struct OneLayer<'c, 'a> {
    entry: Standing<'a>,
    pub head: u64,
    coming: Coming<'c, 'a>,
    has_ended: bool,
    csn: u64,
}

/// How many keys of one source were met in a row, and how many without a value.
struct Met {
    alone: usize,
    /// Which one: bits for layers, or the tree; several while there is no row.
    source: u64,
    dead: usize,
}

/// Why a join has ended.
struct Ending {
    /// Whether the general way may find more; `None` if this one may, once the layers have been asked what is coming.
    goes_on: Option<bool>,
    is_behind: bool,
    is_alone: bool,
}

impl<'a> LeafSide<'a> {
    /// Of a leaf that is read from `first` on, at an index. `end` is where the bounds end, if it is in the leaf; `want` are so many entries as will
    /// be taken.
    #[inline(always)]
    fn new(
        leaf: Leaf<'a>,
        (first, index): (usize, usize),
        forward: bool,
        end: Option<usize>,
        want: usize,
    ) -> LeafSide<'a> {
        // Bounds that end before `first` do so in what comes then.
        let end = end.filter(|&end| forward || end > first);
        let left = if forward {
            end.unwrap_or(leaf.len()).saturating_sub(index)
        } else {
            (index + 1).saturating_sub(end.unwrap_or(first))
        };
        LeafSide {
            leaf,
            index,
            left,
            is_cut: end.is_some(),
            forward,
            heads: [0; HEADS],
            at: 0,
            loaded: 0,
            to_load: want.min(HEADS),
            turn: if forward { 0 } else { u64::MAX },
            prefix: Prefix::new(leaf.key_prefix()),
        }
    }

    #[inline(always)]
    fn load_heads(&mut self) {
        (self.at, self.loaded) = (0, self.left.min(self.to_load));
        self.to_load = HEADS;
        let (heads, rest) = self.heads.split_at_mut(self.loaded);
        self.leaf.load_heads(self.index, self.forward, heads);
        if !self.forward {
            heads.iter_mut().for_each(|head| *head = !*head);
        }
        // Nothing comes behind them.
        rest.fill(u64::MAX);
    }

    /// Head of the key of an entry that begins like all of the leaf.
    #[inline(always)]
    pub fn head_of(&self, entry: Standing<'a>) -> Option<u64> {
        Some(entry.head_behind(&self.prefix)? ^ self.turn)
    }

    /// Whether a key that does not begin like the leaf's comes before all of them.
    #[inline(always)]
    pub fn is_behind(&self, key: &[u8]) -> bool {
        match self.leaf.sought(key) {
            Sought::Outside(side) => self.turned(side).is_lt(),
            Sought::Among { .. } => false,
        }
    }

    /// An order in the direction of the cursor.
    #[inline(always)]
    pub fn turned(&self, order: Ordering) -> Ordering {
        if self.forward { order } else { order.reverse() }
    }

    /// To the index by as many steps. False if the leaf ends, and it stands on the last entry, or the bounds do.
    #[inline(always)]
    fn pass(&mut self, steps: usize) -> bool {
        let goes_on = steps < self.left;
        let moved = steps - usize::from(!goes_on && !self.is_cut);
        self.left -= moved;
        self.at += steps;
        self.index = self.neighbour(moved);
        goes_on
    }

    /// The index so many steps from the present one.
    #[inline(always)]
    fn neighbour(&self, steps: usize) -> usize {
        // Going backward, each step adds -1.
        self.index
            .wrapping_add((steps ^ self.turn as usize).wrapping_sub(self.turn as usize))
    }

    /// Order of its key and that of the layers in the direction of the cursor.
    #[inline(always)]
    fn compare(&self, layers: &impl Layers<'a>) -> Ordering {
        match self.heads[self.at % HEADS].cmp(&layers.head()) {
            Ordering::Equal => {
                let suffix = self.leaf.suffix_of(layers.key());
                self.turned(self.leaf.cmp_behind_head(self.index, suffix))
            }
            order => order,
        }
    }

    /// How many entries, of which the one at the index is the first, are known to come before the layers: as far as heads are loaded, or, where all of these
    /// do, further.
    #[inline(always)]
    fn steps_before(&self, layers: &impl Layers<'a>) -> usize {
        let steps = before(&self.heads, layers.head()).saturating_sub(self.at);
        let steps = if steps == HEADS && self.forward {
            self.leaf.lower_bound_from(self.index + HEADS, layers.key()) - self.index
        } else {
            steps.min(self.loaded - self.at)
        };
        // A forged leaf may have its keys in any order.
        steps.clamp(1, self.left)
    }

    /// Joins the leaf with the layers as long as what is found is taken.
    ///
    /// Entries of the leaf that come before the layers are taken together: how many there are is found without branches, which nobody would foresee.
    #[inline(always)]
    fn join<S: Sink<'a>>(
        &mut self,
        layers: &mut impl Layers<'a>,
        sink: &mut S,
        met: &mut Met,
    ) -> Ending {
        let mut ending = Ending {
            goes_on: Some(true),
            is_behind: false,
            is_alone: false,
        };
        loop {
            if self.at >= self.loaded {
                self.load_heads();
            }
            let order = self.compare(layers);
            if order.is_lt() {
                met.alone = if met.source == TREE { met.alone } else { 0 };
                met.source = TREE;
                let steps = self.steps_before(layers).min(S::RUN_MAX - met.alone);
                let (taken, takes_more) =
                    sink.take_run(&self.leaf, self.index, steps, self.forward);
                if taken == 0 {
                    return ending;
                }
                met.alone += taken;
                if !self.pass(taken) {
                    if self.is_cut {
                        return ending;
                    }
                    ending.is_behind = true;
                }
                ending.is_alone = met.alone == S::RUN_MAX;
                if ending.is_behind || ending.is_alone || !takes_more {
                    ending.goes_on = Some(false);
                    return ending;
                }
                if taken == steps {
                    continue;
                }
                return ending;
            }
            let sharing = layers.sharing();
            let mut shares_tree = order.is_eq();
            let takes_more = match layers.resolve() {
                Found::Value(value) => sink.take(layers.key(), value),
                Found::Large(_) => return ending,
                Found::Deleted => {
                    met.dead += 1;
                    true
                }
                Found::Absent => {
                    met.dead += 1;
                    // The tree has its say.
                    shares_tree = false;
                    true
                }
            };
            let passed = layers.pass(self);
            if shares_tree {
                met.source = 0;
                if !self.pass(1) {
                    if self.is_cut {
                        return ending;
                    }
                    ending.is_behind = true;
                }
            } else {
                met.alone = if met.source == sharing {
                    met.alone + 1
                } else {
                    1
                };
                met.source = sharing;
                ending.is_alone = met.alone >= ALONE_MAX && sharing.is_power_of_two();
            }
            let is_enough = !takes_more || met.dead >= DEAD_MAX && sink.is_waiting();
            if ending.is_behind || ending.is_alone || is_enough {
                ending.goes_on = Some(false);
                return ending;
            }
            match passed {
                Passed::GoesOn => {}
                Passed::Ended => {
                    ending.goes_on = None;
                    return ending;
                }
                Passed::Beyond => return self.end_alone(sink, ending),
            }
        }
    }

    /// Takes what is left of the leaf, if it is little; more is a run, which the general way reads.
    #[inline(always)]
    fn end_alone(&mut self, sink: &mut impl Sink<'a>, mut ending: Ending) -> Ending {
        if self.left > LEFT_MAX {
            (ending.goes_on, ending.is_alone) = (Some(false), true);
            return ending;
        }
        let (taken, takes_more) = sink.take_run(&self.leaf, self.index, self.left, self.forward);
        if taken > 0 && !self.pass(taken) {
            if !self.is_cut {
                (ending.goes_on, ending.is_behind) = (Some(false), true);
            }
        } else if !takes_more {
            ending.goes_on = Some(false);
        }
        ending
    }
}

/// How many of the heads, which ascend, are less.
#[inline(always)]
fn before(heads: &[u64; HEADS], head: u64) -> usize {
    let mut count = 0;
    for half in [8, 4, 2, 1] {
        count += half * usize::from(heads[count + half - 1] < head);
    }
    count + usize::from(heads[count] < head)
}

const _: () = assert!(HEADS == 16);

impl<'a> Sink<'a> for Keep<'_, 'a> {
    const RUN_MAX: usize = ALONE_MAX;

    #[inline(always)]
    fn take(&mut self, key: &'a [u8], value: &'a [u8]) -> bool {
        self.found.push((Key::Here(key), value));
        self.found.len() < self.want
    }

    #[inline(always)]
    fn take_run(
        &mut self,
        leaf: &Leaf<'a>,
        index: usize,
        steps: usize,
        forward: bool,
    ) -> (usize, bool) {
        for step in 0..steps {
            let index = if forward { index + step } else { index - step };
            let Stored::Inline(value) = leaf.value(index) else {
                return (step, true);
            };
            self.found.push((Key::InLeaf(index), value));
            if self.found.len() >= self.want {
                return (step + 1, false);
            }
        }
        (steps, true)
    }

    #[inline(always)]
    fn is_waiting(&self) -> bool {
        !self.found.is_empty()
    }
}

impl<'a> Sink<'a> for Visit<'_> {
    /// They are visited as they would be there.
    const RUN_MAX: usize = usize::MAX;

    #[inline(always)]
    fn take(&mut self, key: &'a [u8], value: &'a [u8]) -> bool {
        self.flow = (self.visit)(key, value);
        self.flow.is_continue()
    }

    #[inline(always)]
    fn take_run(
        &mut self,
        leaf: &Leaf<'a>,
        index: usize,
        steps: usize,
        _forward: bool,
    ) -> (usize, bool) {
        match leaf.visit_prepared(index..index + steps, self.key, &mut *self.visit) {
            Visited::All => (steps, true),
            Visited::External(stopped) => (stopped - index, true),
            Visited::Broken => {
                self.flow = ControlFlow::Break(());
                (steps, false)
            }
        }
    }

    #[inline(always)]
    fn is_waiting(&self) -> bool {
        false
    }
}

impl<'c, 'a> OneLayer<'c, 'a> {
    /// Of a cursor that stands on a key which begins like the leaf's.
    #[inline(always)]
    pub fn new(
        cursor: &'c BufferCursor<'a>,
        csn: u64,
        leaf: &LeafSide<'a>,
    ) -> Option<OneLayer<'c, 'a>> {
        let entry = cursor.standing()?;
        Some(OneLayer {
            entry,
            head: leaf.head_of(entry)?,
            coming: cursor.coming(leaf.forward),
            has_ended: false,
            csn: cursor.csn_seen(csn),
        })
    }

    /// How many entries were passed, but for the one that the cursor stands on; and whether the last of all was, too.
    #[inline(always)]
    pub fn passed(&self) -> (usize, bool) {
        (self.coming.passed(), self.has_ended)
    }
}

impl<'a> Layers<'a> for OneLayer<'_, 'a> {
    #[inline(always)]
    fn key(&self) -> &'a [u8] {
        self.entry.key()
    }

    #[inline(always)]
    fn head(&self) -> u64 {
        self.head
    }

    #[inline(always)]
    fn sharing(&self) -> u64 {
        1
    }

    #[inline(always)]
    fn resolve(&self) -> Found<'a> {
        self.entry.resolve_alone(self.csn)
    }

    #[inline(always)]
    fn pass(&mut self, leaf: &LeafSide<'a>) -> Passed {
        let Some(entry) = self.coming.next() else {
            self.has_ended = true;
            return Passed::Ended;
        };
        self.entry = entry;
        let Some(head) = leaf.head_of(entry) else {
            return Passed::Beyond;
        };
        self.head = head;
        Passed::GoesOn
    }
}

impl<'a> Cursor<'a> {
    /// Moves those sources on whose places are in `passed`, and joins the tree, which is one of them, with the layers from there, as
    /// [`look_ahead`](Cursor::look_ahead) does, which goes on where keys cannot be compared by their heads.
    #[inline(never)]
    pub(super) fn look_ahead_in_leaf(&mut self, passed: u64) {
        let place = self.place_of(At::Tree);
        let passes_tree = passed & place != 0;
        self.move_layers(passed & !place);
        if self.order.len() == 1 {
            return self.look_ahead(u64::from(passes_tree), self.lockstep.want);
        }
        let want = self.lockstep.want;
        let mut tree = self.leaf_side(want);
        if passes_tree && tree.left == 0 {
            // Nobody but a forged leaf has its position outside of the bounds.
            return self.look_ahead(self.place_of(At::Tree), WANT_FIRST);
        }
        self.lockstep.empty();
        if passes_tree && !tree.pass(1) && !tree.is_cut {
            self.lockstep.is_behind = true;
            return;
        }
        let mut found = std::mem::take(&mut self.lockstep.found);
        let mut sink = Keep {
            found: &mut found,
            want,
        };
        let more = self.join_leaf(&mut tree, &mut sink);
        self.lockstep.found = found;
        self.tree.move_to(tree.index);
        if more > 0 && self.lockstep.found.is_empty() {
            return self.look_ahead(0, more);
        }
        self.lockstep.want_more();
    }

    /// Visits what follows the position, which was the last that was found ahead, as long as the leaf and the layers are joined: then all sources are
    /// where they are after that was found.
    #[inline(never)]
    pub(super) fn visit_joined(
        &mut self,
        key: &mut Vec<u8>,
        visit: &mut Visitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.lockstep.empty();
        loop {
            if self.lockstep.is_behind {
                self.pass_leaf()?;
            }
            let may_join = self.may_look_ahead() && self.order.contains(&At::Tree);
            if !may_join || self.lockstep.is_alone {
                return Ok(ControlFlow::Continue(()));
            }
            self.tree.ask_for_the_rest();
            let mut tree = self.leaf_side(usize::MAX);
            tree.leaf.prepare(key);
            let flow = ControlFlow::Continue(());
            let mut sink = Visit { key, visit, flow };
            self.join_leaf(&mut tree, &mut sink);
            self.tree.move_to(tree.index);
            if sink.flow.is_break() || !self.lockstep.is_behind {
                return Ok(sink.flow);
            }
        }
    }

    #[inline(always)]
    fn leaf_side(&self, want: usize) -> LeafSide<'a> {
        let (leaf, index) = self.tree.leaf().expect("the tree is a source");
        let end = match self.is_leaf_inside() {
            true => None,
            false if self.forward => self.hi.as_deref().map(|hi| leaf.lower_bound(hi)),
            false => Some(leaf.lower_bound(&self.lo)),
        };
        LeafSide::new(leaf, (self.tree.first(), index), self.forward, end, want)
    }

    /// Joins the leaf of the tree, one of several sources, with the layers. Returns how many entries the general way should look for from where this ends, if
    /// it may find any.
    #[inline(always)]
    fn join_leaf(&mut self, tree: &mut LeafSide<'a>, sink: &mut impl Sink<'a>) -> usize {
        debug_assert!(!self.has_ranges, "entries of layers decide alone");
        if tree.left == 0 {
            return WANT_FIRST;
        }
        match self.order[..] {
            [At::Tree, At::Layer(layer)] | [At::Layer(layer), At::Tree] => {
                self.join_one(tree, layer, sink)
            }
            _ => self.join_several(tree, sink),
        }
    }

    #[inline(always)]
    fn join_one(
        &mut self,
        tree: &mut LeafSide<'a>,
        layer: usize,
        sink: &mut impl Sink<'a>,
    ) -> usize {
        let mut met = Met::new();
        loop {
            let Layer { cursor, csn, .. } = &self.layers[layer];
            let Some(mut one) = OneLayer::new(cursor, *csn, tree) else {
                if tree.is_behind(cursor.key()) {
                    return self.lockstep.want;
                }
                self.lockstep.is_alone = true;
                return 0;
            };
            let ending = tree.join(&mut one, sink, &mut met);
            let (passed, has_ended) = one.passed();
            if let Some(more) = self.end_join(&ending, [(layer, passed, has_ended)]) {
                return more;
            }
        }
    }

    #[inline(never)]
    fn join_several(&mut self, tree: &mut LeafSide<'a>, sink: &mut impl Sink<'a>) -> usize {
        let mut met = Met::new();
        loop {
            // Its bits are places among those that are joined.
            met.source = 0;
            let mut sources = Sources::new();
            match sources.fill(&self.layers, tree) {
                Filled::Joined => {}
                // Any number of its keys may come before the leaf: so many are looked for that it is found out if it is alone there.
                Filled::Before => return self.lockstep.want,
                Filled::Beyond => {
                    self.lockstep.is_alone = true;
                    return 0;
                }
            }
            let ending = match sources.len() {
                // Nearly always, and without loops over them where that is known.
                2 => tree.join(&mut sources.as_one(2, tree), sink, &mut met),
                layers => tree.join(&mut sources.as_one(layers, tree), sink, &mut met),
            };
            let moves = sources.into_moves();
            if let Some(more) = self.end_join(&ending, moves) {
                return more;
            }
        }
    }

    /// Tells the cursors of layers how far they were read: how many entries were passed, and whether the last of them was, too. If the join does not go on,
    /// returns how many entries the general way should look for: no further than it has to.
    #[inline(always)]
    fn end_join(
        &mut self,
        ending: &Ending,
        moves: impl IntoIterator<Item = (usize, usize, bool)>,
    ) -> Option<usize> {
        (self.lockstep.is_behind, self.lockstep.is_alone) = (ending.is_behind, ending.is_alone);
        for (layer, passed, passes_last) in moves {
            let cursor = &mut self.layers[layer].cursor;
            cursor.pass_coming(passed);
            if passes_last && !cursor.step(self.forward) {
                self.order.retain(|source| *source != At::Layer(layer));
            }
        }
        let goes_on = match self.order[..] {
            [At::Tree] => Some(ending.goes_on.unwrap_or(true)),
            _ => ending.goes_on,
        };
        goes_on.map(|goes_on| if goes_on { WANT_FIRST } else { 0 })
    }
}

impl Met {
    fn new() -> Met {
        Met {
            alone: 0,
            source: 0,
            dead: 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn heads_before_another_are_counted() {
        for count in 0..=HEADS {
            // Each head twice, what is not there the greatest.
            let mut heads = [u64::MAX; HEADS];
            for (at, head) in heads[..count].iter_mut().enumerate() {
                *head = 10 * (at as u64 / 2);
            }
            for head in (0..=90).chain([u64::MAX]) {
                let expected = heads.iter().filter(|&&other| other < head).count();
                assert_eq!(before(&heads, head), expected, "{head} among {heads:?}");
            }
        }
    }
}
