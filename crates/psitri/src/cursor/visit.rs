//! Runs of one source, visited without a step for each entry: of the tree, leaf by leaf, and of a layer that comes before the others.
//!
//! # Invariants
//! Those of `join.rs`. Behind what was visited the position is the last entry that was, unless the visitor broke: then nobody asks for it.

use std::ops::{ControlFlow, Range};

use super::{
    At, Cursor, Layer,
    join::{VALUES_AHEAD, ask_for_value},
};
use crate::{
    Error, Result,
    buffer::{Found, Standing, Visits},
    layers::read_large,
    node::{Stored, Visited},
    pager::Pager,
};

/// Shows entries of a layer, which decides alone, to somebody who wants keys and values.
struct LedVisitor<'v, 'a, F> {
    csn: u64,
    pager: &'a Pager,
    visit: &'v mut F,
    failure: Option<Error>,
}

impl<'a, F: FnMut(&[u8], &[u8]) -> ControlFlow<()>> Visits<'a> for LedVisitor<'_, 'a, F> {
    #[inline(always)]
    fn visit(&mut self, entry: Standing<'a>) -> ControlFlow<()> {
        match entry.resolve_alone(self.csn) {
            Found::Absent | Found::Deleted => ControlFlow::Continue(()),
            Found::Value(value) => (self.visit)(entry.key(), value),
            Found::Large(pointer) => match read_large(self.pager, pointer) {
                Ok(value) => (self.visit)(entry.key(), value),
                Err(error) => {
                    self.failure = Some(error);
                    ControlFlow::Break(())
                }
            },
        }
    }
}

impl<'a> Cursor<'a> {
    /// Visits entries of the tree's leaf, the last of which is the position then.
    #[inline(always)]
    pub(super) fn visit_entries(
        &mut self,
        entries: Range<usize>,
        key_buffer: &mut Vec<u8>,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let (leaf, _) = self.tree.leaf().expect("the position is in the tree");
        let Range {
            start: mut index,
            end,
        } = entries;
        self.tree.set_index(end - 1);
        let part = (end - index).div_ceil(self.tree.parts_coming());
        leaf.prepare(key_buffer);
        loop {
            let part_end = end.min(index + part);
            self.tree.ask_for_part();
            match leaf.visit_prepared(index..part_end, key_buffer, &mut *visit) {
                Visited::All if part_end < end => {
                    index = part_end;
                    continue;
                }
                Visited::All => return Ok(ControlFlow::Continue(())),
                Visited::Broken => return Ok(ControlFlow::Break(())),
                Visited::External(at) => index = at,
            }
            leaf.load_prefix(key_buffer);
            while index < end
                && let Stored::External(pointer) = leaf.value(index)
            {
                ask_for_value(self.view.pager, leaf, index + VALUES_AHEAD);
                let value = self.view.pager.value(&pointer)?;
                leaf.load_suffix(index, key_buffer);
                if visit(key_buffer, value).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                index += 1;
            }
        }
    }

    /// Visits the leaves that follow that of the position, its last entry, as long as they come as a whole before the other sources and the end of the bounds.
    /// Then to the next position: whether there is one.
    #[inline(always)]
    pub(super) fn visit_leaves(
        &mut self,
        key_buffer: &mut Vec<u8>,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), bool>> {
        while self.next_whole_leaf()? {
            let (leaf, first) = self.tree.leaf().expect("the position is in the tree");
            if self
                .visit_entries(first..leaf.len(), key_buffer, visit)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.settle().map(ControlFlow::Continue)
    }

    /// Whether the position, which is in the tree, is the last of its leaf, and nobody else has to move on with it.
    #[inline(always)]
    pub(super) fn ends_leaf(&self) -> bool {
        let (leaf, index) = self.tree.leaf().expect("the position is in the tree");
        index + 1 == leaf.len() && self.sharing == 1 && !self.has_ranges
    }

    /// Moves the tree, which is alone the first source, forward to its next leaf. Whether all of that comes before the other sources and the end of the bounds;
    /// otherwise the sources are in order.
    #[inline]
    fn next_whole_leaf(&mut self) -> Result<bool> {
        let moved = self.tree.next_leaf();
        if let (Ok(true), Some((leaf, first))) = (&moved, self.tree.leaf()) {
            let next_key = self.order.get(1).map(|&next| self.source_key(next));
            let last = leaf.len() - 1;
            let mut ends = [next_key, self.hi.as_deref()].into_iter().flatten();
            if ends.all(|end| leaf.cmp_key(last, end).is_lt()) {
                self.ask_for_first_values(leaf, first);
                return Ok(true);
            }
        }
        self.moved(0, moved)?;
        Ok(false)
    }

    /// Visits the position, which is in the layer that leads, and what follows it there as long as it does.
    #[inline(always)]
    pub(super) fn visit_led(
        &mut self,
        layer: usize,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let next_key = match self.order.get(1) {
            Some(&At::Layer(next)) => Some(self.layers[next].cursor.key()),
            Some(At::Tree) => Some(self.tree.key()),
            _ => None,
        };
        let Layer { cursor, csn, .. } = &mut self.layers[layer];
        let mut flow = visit(cursor.key(), self.value);
        let mut visitor = LedVisitor {
            csn: cursor.csn_seen(*csn),
            pager: self.view.pager,
            visit,
            failure: None,
        };
        let mut coming = cursor.coming(true);
        while flow.is_continue()
            && coming.passed() < self.lead
            && let Some(entry) = coming.next()
        {
            flow = visitor.visit(entry);
        }
        let passed = coming.passed();
        cursor.pass_coming(passed);
        self.lead -= passed;
        if self.lead == 0 && flow.is_continue() {
            let ends = [next_key, self.hi.as_deref()];
            let comes_first = |front: &[u8]| {
                // Keys that begin like an end may be before and behind it.
                let is_before = |end: &[u8]| front < &end[..front.len().min(end.len())];
                ends.into_iter().flatten().all(is_before)
            };
            flow = cursor.visit_siblings(comes_first, &mut visitor);
        }
        visitor.failure.map_or(Ok(flow), Err)
    }
}
