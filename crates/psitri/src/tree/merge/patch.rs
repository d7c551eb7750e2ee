//! Inner nodes that keep their shape. Where each child with changes becomes one node again, the node above is a copy of the old one with other
//! addresses and counts in it: a commit of a few keys pays for the paths to them, not for all the siblings beside these.
//!
//! # Invariants
//! (1) A node is patched only while the packers of its level and of those below are empty: nothing is pending that precedes it.
//! (2) What a child becomes is held back until it is known to be one node with nothing pending behind it. If it is not, the children before
//!     it, patched or not, and what it became are pushed, and the rest of the node is taken apart.
//! (3) Leaves beside each other that both have something pending are not patched: they flow through one packer, so that they come out full. In the
//!     last child of a node that is so if there are any more changes, for they may be in the leaf that is next.
//! (4) Merges with more than [`CHANGES_MAX`] changes do not patch: what they leave half full, and inner nodes with few children, is to find
//!     neighbours across the borders of inner nodes.

use super::{ChangeStream, Merger, lower_bound};
use crate::{
    Result,
    error::Error,
    node::{Inner, patch_child},
    pager::DATA_FILE,
    tree::Root,
};

/// See (4). Changes of so few keys seldom meet in a node on the lowest levels.
pub(super) const CHANGES_MAX: u64 = 256;

impl<S: ChangeStream> Merger<'_, '_, S> {
    /// Patches an inner node with changes below it. `None`: it was emitted. Otherwise it has to be taken apart from this child on, which may
    /// be none of them.
    pub(super) fn patch_inner(
        &mut self,
        inner: Inner<'_>,
        bytes: &[u8],
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<usize>> {
        let level = inner.level();
        if !self.is_patching || (0..=level).any(|pending| !self.is_level_empty(pending)) {
            return Ok(Some(0));
        }
        let mut patches: Vec<(usize, Root)> = Vec::new();
        let (mut child_lower, mut child_upper) = (Vec::new(), Vec::new());
        let mut unvisited = 0;
        while let Some(index) = self.next_child(inner, upper) {
            lower_bound(inner, index, lower, &mut child_lower);
            let bound = if index + 1 < inner.len() {
                inner.separator(index + 1, &mut child_upper);
                Some(child_upper.as_slice())
            } else {
                upper
            };
            self.level(level).became = Some(Vec::new());
            // What was merged lies below its bound: the next child is another one, unless the separators are in no order.
            if index < unvisited {
                let at = inner.child(index).byte_offset();
                let what = "the separators of the node above are in no order";
                return Err(Error::corrupted(DATA_FILE, at, what));
            }
            unvisited = index + 1;
            self.visit(inner.child(index), Some(level), &child_lower, bound)?;
            let has_neighbour = match self.next_child(inner, upper) {
                Some(next) => next == index + 1,
                None => index + 1 == inner.len() && self.changes.key().is_some(),
            };
            let is_done = !has_neighbour && self.flush_below(level)?
                || (0..level).all(|pending| self.is_level_empty(pending));
            let became = self.level(level).became.take().unwrap_or_default();
            if let (true, [(_, root)]) = (is_done, &became[..]) {
                patches.push((index, *root));
                continue;
            }
            self.push_children(inner, index, &patches, lower)?;
            for (separator, root) in became {
                self.push_child(level, &separator, root)?;
            }
            return Ok(Some(index + 1));
        }
        let mut image = std::mem::take(&mut self.scratch);
        image.clear();
        image.extend_from_slice(bytes);
        let fits =
            |&(index, root): &(usize, Root)| patch_child(&mut image, index, root.node, root.keys);
        if !patches.iter().all(fits) {
            self.scratch = image;
            self.push_children(inner, inner.len(), &patches, lower)?;
            return Ok(Some(inner.len()));
        }
        // SAFETY: (4) of the tree: a copy of a checked node in which only addresses and counts of children were replaced is still one.
        let keys = unsafe { Inner::new_validated(&image) }.total_keys();
        let node = self.sink.place(&mut image)?;
        self.scratch = image;
        self.push_child(level + 1, lower, Root { node, keys })?;
        Ok(None)
    }

    /// The child with the next change below `upper`.
    fn next_child(&self, inner: Inner<'_>, upper: Option<&[u8]>) -> Option<usize> {
        let key = self.changes.key()?;
        (upper.is_none_or(|upper| key < upper)).then(|| inner.search(key))
    }

    /// Empties the packers below `level`. False if what one of them holds would be a node that is too small.
    fn flush_below(&mut self, level: u8) -> Result<bool> {
        for pending in 0..level {
            if self.is_level_empty(pending) {
                continue;
            }
            if self.is_underfull(pending) {
                return Ok(false);
            }
            self.flush_level(pending)?;
        }
        Ok(true)
    }

    /// Pushes the first `count` children of a node, with patches.
    fn push_children(
        &mut self,
        inner: Inner<'_>,
        count: usize,
        patches: &[(usize, Root)],
        lower: &[u8],
    ) -> Result<()> {
        let mut patches = patches.iter().peekable();
        let mut separator = Vec::new();
        for index in 0..count {
            let child = match patches.next_if(|(patched, _)| *patched == index) {
                Some(&(_, root)) => root,
                None => Root {
                    node: inner.child(index),
                    keys: inner.child_keys(index),
                },
            };
            lower_bound(inner, index, lower, &mut separator);
            self.push_child(inner.level(), &separator, child)?;
        }
        Ok(())
    }
}
