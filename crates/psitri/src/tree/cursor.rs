//! Ordered positions in one tree.
//!
//! The path from the root is kept on a stack; leaves have no links to each other, as copy-on-write could not keep them.
//! The key of the position lies in one buffer whose prefix is written once a leaf.

use std::cmp::Ordering;

use super::{Root, child_bytes, descend};
use crate::{
    Result,
    node::{Inner, Leaf, NodeRef, Stored},
    pager::Pager,
};

/// A range that goes on for more leaves than these is a long one.
const LEAVES_OF_SHORT_RANGES: usize = 2;

/// A position between or on entries. Not positioned after it left either end.
pub(crate) struct TreeCursor<'a> {
    pager: &'a Pager,
    root: Root,
    path: Vec<(Inner<'a>, usize)>,
    leaf: Option<Leaf<'a>>,
    index: usize,
    key: Vec<u8>,
    /// Nodes that were asked for since the last search, up to `LEAVES_OF_SHORT_RANGES`.
    asked: usize,
}

impl<'a> TreeCursor<'a> {
    pub fn new(pager: &'a Pager, root: Root) -> TreeCursor<'a> {
        TreeCursor {
            pager,
            root,
            path: Vec::new(),
            leaf: None,
            index: 0,
            key: Vec::new(),
            asked: 0,
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

    /// The leaf of the position, and the index in it.
    pub fn leaf(&self) -> Option<(Leaf<'a>, usize)> {
        self.leaf.map(|leaf| (leaf, self.index))
    }

    /// Moves within the leaf of the position; `index` must be in it.
    pub fn set_index(&mut self, index: usize) {
        let leaf = self.leaf.expect("the cursor is positioned");
        self.index = index;
        leaf.load_suffix(index, &mut self.key);
    }

    /// [`set_index`](TreeCursor::set_index), but for the key: [`load_key`](TreeCursor::load_key) has to follow before it is asked for.
    #[inline(always)]
    pub fn move_to(&mut self, index: usize) {
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

    fn descend(&mut self, mut choose: impl FnMut(&Inner<'a>) -> usize) -> Result<Option<Leaf<'a>>> {
        self.path.clear();
        self.leaf = None;
        self.asked = 0;
        if self.root.node.is_null() {
            return Ok(None);
        }
        let path = &mut self.path;
        let leaf = descend(self.pager, self.pager.node(self.root.node)?, |inner| {
            let index = choose(&inner);
            path.push((inner, index));
            inner.child(index)
        })?;
        Ok(Some(leaf))
    }

    fn settle(&mut self, leaf: Leaf<'a>, index: usize) {
        leaf.load_prefix(&mut self.key);
        leaf.load_suffix(index, &mut self.key);
        self.leaf = Some(leaf);
        self.index = index;
    }

    /// First key at or after `key`.
    pub fn seek_ge(&mut self, key: &[u8]) -> Result<bool> {
        let Some(leaf) = self.descend(|inner| inner.search(key))? else {
            return Ok(false);
        };
        let index = leaf.lower_bound(key);
        if index < leaf.len() {
            self.settle(leaf, index);
            return Ok(true);
        }
        self.next_leaf()
    }

    /// Last key before `key`; the last of all if `key` is `None`.
    pub fn seek_lt(&mut self, key: Option<&[u8]>) -> Result<bool> {
        let last = |inner: &Inner<'a>| inner.len() - 1;
        let leaf =
            self.descend(|inner| key.map_or_else(|| last(inner), |key| inner.search(key)))?;
        let Some(leaf) = leaf else {
            return Ok(false);
        };
        match key.map_or(leaf.len(), |key| leaf.lower_bound(key)) {
            0 => self.previous_leaf(),
            index => {
                self.settle(leaf, index - 1);
                Ok(true)
            }
        }
    }

    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        let Some(leaf) = self.leaf else {
            return Ok(false);
        };
        if self.index + 1 < leaf.len() {
            self.index += 1;
            leaf.load_suffix(self.index, &mut self.key);
            return Ok(true);
        }
        self.next_leaf()
    }

    #[inline]
    pub fn prev(&mut self) -> Result<bool> {
        let Some(leaf) = self.leaf else {
            return Ok(false);
        };
        if self.index > 0 {
            self.index -= 1;
            leaf.load_suffix(self.index, &mut self.key);
            return Ok(true);
        }
        self.previous_leaf()
    }

    /// Asks for the leaf after the next, or the node above it: for all of it in a long range, where it will be read from end to end.
    fn ask_for(&mut self, node: NodeRef) {
        if self.asked < LEAVES_OF_SHORT_RANGES {
            self.asked += 1;
            self.pager.prefetch(node);
        } else {
            self.pager.prefetch_whole(node);
        }
    }

    /// First entry of the next leaf.
    pub fn next_leaf(&mut self) -> Result<bool> {
        self.leaf = None;
        while let Some((inner, index)) = self.path.pop() {
            if index + 1 == inner.len() {
                continue;
            }
            self.path.push((inner, index + 1));
            if index + 2 < inner.len() {
                self.ask_for(inner.child(index + 2));
            }
            let leaf = self.edge(inner.child(index + 1), inner.level(), |_| 0)?;
            if leaf.len() > 0 {
                self.settle(leaf, 0);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Last entry of the leaf before.
    fn previous_leaf(&mut self) -> Result<bool> {
        self.leaf = None;
        while let Some((inner, index)) = self.path.pop() {
            if index == 0 {
                continue;
            }
            self.path.push((inner, index - 1));
            if index > 1 {
                self.ask_for(inner.child(index - 2));
            }
            let leaf = self.edge(inner.child(index - 1), inner.level(), |inner| {
                inner.len() - 1
            })?;
            if leaf.len() > 0 {
                self.settle(leaf, leaf.len() - 1);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn edge(
        &mut self,
        at: NodeRef,
        parent_level: u8,
        choose: impl Fn(&Inner<'a>) -> usize,
    ) -> Result<Leaf<'a>> {
        let path = &mut self.path;
        descend(
            self.pager,
            child_bytes(self.pager, at, parent_level)?,
            |inner| {
                let index = choose(&inner);
                path.push((inner, index));
                inner.child(index)
            },
        )
    }
}
