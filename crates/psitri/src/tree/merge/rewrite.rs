//! Writing parts of a tree anew although nothing in them changes: to pack leaves, to move them away from the end of the file, to let go of
//! entries that have expired, to put deltas into their leaves. A rewrite is a merge without changes that takes more apart than it must.
//!
//! What other trees share stays where it is: a copy would take more space, not less.

use super::{Change, ChangeStream, Merger, Terms};
use crate::{
    Result,
    expiry::Judge,
    node::{Delta, Leaf, NodeRef, Stored},
    pager::{Pager, Sink},
    progress::Watch,
    tree::{Node, Root, leaf_behind, open_below, open_child},
};

/// Which parts of a tree are written anew although nothing in them changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// All leaves, so that they are packed together with their neighbours.
    Leaves,
    /// Nodes and values on this page and behind it, so that they move to free space before it.
    From(u64),
    /// Leaves with entries that have expired, and the nodes above.
    Expired,
    /// Leaves with deltas, until so many bytes of nodes are written; one at least.
    Deltas { bytes_max: u64 },
}

impl Rewrite {
    /// Packing leaves brings the values back that left them, and packs the others. (Shared leaves are not taken apart, but for one beside
    /// another that is.)
    fn terms(self, now: u64) -> Terms {
        Terms {
            brings_back: self == Rewrite::Leaves,
            empties_pages: self == Rewrite::Leaves,
            ..Terms::at(now)
        }
    }

    fn wants_leaf(
        &self,
        pager: &Pager,
        at: NodeRef,
        leaf: Leaf<'_>,
        judge: Option<Judge<'_>>,
    ) -> bool {
        let is_wanted = |stored| match self {
            Rewrite::Expired => judge.is_some_and(|judge| judge.is_expired(stored)),
            _ => self.wants_value(pager, stored),
        };
        matches!(self, Rewrite::Leaves)
            || self.moves(at.page())
            || (0..leaf.len()).any(|i| is_wanted(leaf.value(i)))
    }

    /// What is shared behind a delta stays there as well.
    fn wants_delta(
        &self,
        pager: &Pager,
        at: NodeRef,
        delta: Delta<'_>,
        judge: Option<Judge<'_>>,
    ) -> Result<bool> {
        if pager.shares.is_shared(delta.base().address_units()) {
            return Ok(false);
        }
        let leaf = leaf_behind(pager, delta);
        // Nobody asked for this one: what is damaged stays where it is.
        if matches!(self, Rewrite::Deltas { .. }) {
            return Ok(leaf.is_ok());
        }
        let leaf = leaf?;
        Ok(self.wants_leaf(pager, at, delta.entries(), judge)
            || self.wants_leaf(pager, delta.base(), leaf, judge))
    }

    pub(super) fn wants_value(&self, pager: &Pager, stored: Stored<'_>) -> bool {
        matches!(stored, Stored::External(pointer)
            if self.moves(pointer.page()) && !pager.shares.is_shared(pointer.address_units()))
    }

    /// Whether nothing below a node is to be rewritten, as its reference says.
    fn passes(&self, at: NodeRef) -> bool {
        matches!(self, Rewrite::Deltas { .. }) && !at.has_deltas()
    }

    fn moves(&self, page: u64) -> bool {
        matches!(self, Rewrite::From(page_min) if page >= *page_min)
    }
}

/// Writes parts of a tree anew. The content stays, but for what has expired at `now` (0 for nothing). A tree in which there is nothing to
/// rewrite stays as it is. `watch` is told of the keys passed.
pub(crate) fn rewrite(
    sink: &mut Sink<'_>,
    root: Root,
    rewrite: Rewrite,
    now: u64,
    watch: &mut Watch<'_, '_>,
) -> Result<Root> {
    let judge = Judge::new(sink.pager(), now);
    if root.node.is_null() || !has_work(sink.pager(), root.node, None, &rewrite, judge)? {
        return Ok(root);
    }
    let mut changes = Nothing { watch };
    let mut merger = Merger::new(sink, &mut changes, &[], judge, rewrite.terms(now));
    merger.rewrite = Some(rewrite);
    if rewrite == Rewrite::Leaves {
        merger.pack_values();
    }
    merger.visit(root.node, None, &[], None)?;
    merger.close()
}

/// Whether anything below a node is to be rewritten.
fn has_work(
    pager: &Pager,
    at: NodeRef,
    parent_level: Option<u8>,
    rewrite: &Rewrite,
    judge: Option<Judge<'_>>,
) -> Result<bool> {
    if pager.shares.is_shared(at.address_units()) {
        return Ok(false);
    }
    if rewrite.passes(at) {
        return Ok(false);
    }
    match open_below(pager, at, parent_level)? {
        Node::Leaf(leaf) => Ok(rewrite.wants_leaf(pager, at, leaf, judge)),
        Node::Delta(delta) => rewrite.wants_delta(pager, at, delta, judge),
        Node::Inner(_) if rewrite.moves(at.page()) => Ok(true),
        Node::Inner(inner) => {
            for index in 0..inner.len() {
                if has_work(
                    pager,
                    inner.child(index),
                    Some(inner.level()),
                    rewrite,
                    judge,
                )? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// No changes.
struct Nothing<'w, 'r, 'f> {
    watch: &'w mut Watch<'r, 'f>,
}

impl ChangeStream for Nothing<'_, '_, '_> {
    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn change(&self) -> Change<'_> {
        unreachable!("called only while there is a key")
    }

    fn advance(&mut self) -> Result<()> {
        Ok(())
    }

    fn passed(&mut self, keys: u64) -> Result<()> {
        self.watch.advance(keys)
    }
}

impl<S: ChangeStream> Merger<'_, '_, S> {
    /// Whether a child of a node on `level` is taken apart without a change below it. Inner nodes always are, as their children move, unless it is for
    /// deltas and none of those below can go: a slice would be full of such nodes and get nowhere.
    pub(super) fn is_rewritten(&mut self, child: NodeRef, level: u8) -> Result<bool> {
        let Some(rewrite) = &self.rewrite else {
            return Ok(false);
        };
        let pager = self.sink.pager();
        if rewrite.passes(child) || pager.shares.is_shared(child.address_units()) {
            return Ok(false);
        }
        if let Rewrite::Deltas { bytes_max } = *rewrite
            && self.sink.placed_bytes() >= bytes_max
        {
            return Ok(false);
        }
        match open_child(pager, child, level)? {
            Node::Leaf(leaf) => {
                self.changes.passed(leaf.len() as u64)?;
                Ok(rewrite.wants_leaf(pager, child, leaf, self.judge))
            }
            Node::Delta(delta) => {
                self.changes.passed(delta.keys())?;
                rewrite.wants_delta(pager, child, delta, self.judge)
            }
            Node::Inner(_) if matches!(rewrite, Rewrite::Deltas { .. }) => {
                has_work(pager, child, Some(level), rewrite, self.judge)
            }
            Node::Inner(_) => Ok(true),
        }
    }
}
