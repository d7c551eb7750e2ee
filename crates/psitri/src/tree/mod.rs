//! The merged body of a keyspace: a balanced tree of immutable, packed nodes.
//!
//! The tree is purely functional. [`merge`] is its only way to change: it takes a root and a sorted stream of changes and
//! gives a new root; nodes that nothing changed below are shared by both.
//!
//! # Thread safety
//! Everything here reads nodes that a pin keeps from being overwritten, or writes new ones that nobody else knows of.
//!
//! # Invariants
//! (1) All leaves are on level 0, and the children of a node on level `l` are on level `l - 1`.
//! (2) Child `i` of an inner node holds the keys from separator `i` (from its own lower bound if `i` is 0) up to, but not
//!     including, separator `i + 1`.
//! (3) An inner node knows the number of keys below each child.
//! (4) Nodes come from `Pager::node`, which checks those that this process did not write: accessors may trust them.
//!
//! # Failure modes
//! A reference to a node of the wrong level is reported as corruption, so that no damage can make a descent endless.
#![allow(unsafe_code)] // node views of checked bytes

mod cursor;
mod merge;
mod verify;
mod walk;

use crate::{
    Result,
    buffer::PREFETCH_KEYS_MAX,
    error::Error,
    node::{self, Inner, Leaf, NodeRef, Stored},
    pager::{DATA_FILE, Pager},
};

pub(crate) use cursor::TreeCursor;
pub(crate) use merge::{Change, ChangeStream, KeyRange, Rewrite, Terms, merge, rewrite};
pub(crate) use verify::{TreeCheck, verify_tree};
pub(crate) use walk::{each_leaf, kill_tree, references};

/// A tree: its root node, null for no keys, and the number of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Root {
    pub node: NodeRef,
    pub keys: u64,
}

/// A node as its level says.
#[derive(Clone, Copy)]
pub(crate) enum Node<'a> {
    Leaf(Leaf<'a>),
    Inner(Inner<'a>),
}

/// Reads the root of a tree, whatever its level.
#[inline]
pub(crate) fn open_root(pager: &Pager, at: NodeRef) -> Result<Node<'_>> {
    Ok(view(pager.node(at)?))
}

/// Reads a child of a node on level `parent_level`.
#[inline]
pub(crate) fn open_child(pager: &Pager, at: NodeRef, parent_level: u8) -> Result<Node<'_>> {
    Ok(view(child_bytes(pager, at, parent_level)?))
}

#[inline]
fn child_bytes(pager: &Pager, at: NodeRef, parent_level: u8) -> Result<&[u8]> {
    let bytes = pager.node(at)?;
    if node::level(bytes) + 1 != parent_level {
        return Err(wrong_level(at));
    }
    Ok(bytes)
}

#[cold]
fn wrong_level(at: NodeRef) -> Error {
    Error::corrupted(DATA_FILE, at.byte_offset(), "a child is on the wrong level")
}

#[inline]
fn view(bytes: &[u8]) -> Node<'_> {
    // SAFETY: (4): the bytes come from `Pager::node`.
    unsafe {
        if node::level(bytes) == 0 {
            Node::Leaf(Leaf::new_validated(bytes))
        } else {
            Node::Inner(Inner::new_validated(bytes))
        }
    }
}

/// Looks into a node that somebody knows to be a leaf. The view does not leave this: it would go through memory.
#[inline(always)]
pub(crate) fn in_leaf<'a, R>(
    pager: &'a Pager,
    at: NodeRef,
    look: impl FnOnce(Leaf<'a>) -> R,
) -> Result<R> {
    let bytes = pager.node(at)?;
    if node::level(bytes) != 0 {
        return Err(wrong_level(at));
    }
    // SAFETY: (4).
    Ok(look(unsafe { Leaf::new_validated(bytes) }))
}

/// Goes down from a node to a leaf, through the children that `choose` names. There is no [`Node`] on the way: each would go through memory.
#[inline(always)]
fn descend<'a>(
    pager: &'a Pager,
    mut bytes: &'a [u8],
    mut choose: impl FnMut(Inner<'a>) -> NodeRef,
) -> Result<Leaf<'a>> {
    loop {
        let level = node::level(bytes);
        if level == 0 {
            // SAFETY: (4).
            return Ok(unsafe { Leaf::new_validated(bytes) });
        }
        // SAFETY: (4).
        let child = choose(unsafe { Inner::new_validated(bytes) });
        pager.prefetch(child);
        bytes = child_bytes(pager, child, level)?;
    }
}

/// The stored value of `key`.
#[inline]
pub(crate) fn get<'a>(pager: &'a Pager, root: Root, key: &[u8]) -> Result<Option<Stored<'a>>> {
    if root.node.is_null() {
        return Ok(None);
    }
    let leaf = descend(pager, pager.node(root.node)?, |inner| {
        inner.child(inner.search(key))
    })?;
    Ok(leaf.get(key))
}

/// Walks the paths to several keys (one bit each in `wanted`) side by side, so that their cache misses overlap.
pub(crate) fn prefetch(pager: &Pager, root: Root, keys: &[&[u8]], wanted: u32) {
    if root.node.is_null() {
        return;
    }
    // What is wrong with a node is for the lookup to say.
    let Ok(bytes) = pager.node(root.node) else {
        return;
    };
    let mut nodes = [root.node; PREFETCH_KEYS_MAX];
    let mut left = wanted;
    for level in (1..=node::level(bytes)).rev() {
        for (index, key) in keys.iter().enumerate() {
            let bit = 1 << index;
            if left & bit == 0 {
                continue;
            }
            let found = pager.node(nodes[index]).ok();
            let Some(bytes) = found.filter(|it| node::level(it) == level) else {
                left &= !bit;
                continue;
            };
            // SAFETY: (4).
            let inner = unsafe { Inner::new_validated(bytes) };
            nodes[index] = inner.child(inner.search(key));
            pager.prefetch(nodes[index]);
        }
    }
}

/// Number of keys less than `key`. O(log n).
pub(crate) fn rank(pager: &Pager, root: Root, key: &[u8]) -> Result<u64> {
    // Nothing is less than the empty key: a count of everything reads no node.
    if root.node.is_null() || key.is_empty() {
        return Ok(0);
    }
    let mut before = 0;
    let leaf = descend(pager, pager.node(root.node)?, |inner| {
        let index = inner.search(key);
        before += inner.keys_before(index);
        inner.child(index)
    })?;
    Ok(before + leaf.lower_bound(key) as u64)
}

/// The leaf that has the key of rank `rank` (0 is the smallest), and where. `None` if there are not so many keys. O(log n).
pub(crate) fn leaf_at(
    pager: &Pager,
    root: Root,
    rank: u64,
) -> Result<Option<(NodeRef, Leaf<'_>, usize)>> {
    if root.node.is_null() || rank >= root.keys {
        return Ok(None);
    }
    let mut left = rank;
    let mut at = root.node;
    let mut node = open_root(pager, at)?;
    loop {
        match node {
            Node::Leaf(leaf) => {
                return Ok((left < leaf.len() as u64).then_some((at, leaf, left as usize)));
            }
            Node::Inner(inner) => {
                let Some((index, inside)) = inner.find_rank(left) else {
                    return Ok(None);
                };
                left = inside;
                at = inner.child(index);
                node = open_child(pager, at, inner.level())?;
            }
        }
    }
}

/// Copies the key of rank `rank` into `out`. False if there are not so many. O(log n).
pub(crate) fn nth(pager: &Pager, root: Root, rank: u64, out: &mut Vec<u8>) -> Result<bool> {
    let found = leaf_at(pager, root, rank)?;
    if let Some((_, leaf, index)) = found {
        leaf.copy_key(index, out);
    }
    Ok(found.is_some())
}
