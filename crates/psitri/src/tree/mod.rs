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
//! (5) On level 0 there are leaves, and [deltas](crate::node::Delta) in front of leaves. A leaf belongs to its delta like a child to an inner
//!     node; values outside of either belong to the node that refers to them, also where a delta hides them.
//!
//! # Failure modes
//! A reference to a node of the wrong level is reported as corruption, so that no damage can make a descent endless.
#![allow(unsafe_code)] // node views of checked bytes

mod changed_leaf;
mod cursor;
mod merge;
mod verify;
mod walk;

use crate::{
    Result,
    buffer::PREFETCH_KEYS_MAX,
    error::Error,
    node::{self, Delta, Inner, Leaf, Mark, NodeRef, Stepwise, Stored},
    pager::{DATA_FILE, Pager},
};

pub(crate) use changed_leaf::ChangedLeaf;
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
    Delta(Delta<'a>),
    Inner(Inner<'a>),
}

/// Reads the root of a tree, whatever its level.
#[inline]
pub(crate) fn open_root(pager: &Pager, at: NodeRef) -> Result<Node<'_>> {
    Ok(view(pager.node(at)?))
}

/// Reads a node: a root, whatever its level, or a child of a node on level `parent_level`.
#[inline]
pub(crate) fn open_below(pager: &Pager, at: NodeRef, parent_level: Option<u8>) -> Result<Node<'_>> {
    match parent_level {
        None => open_root(pager, at),
        Some(level) => open_child(pager, at, level),
    }
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
        if node::is_leaf(bytes) {
            Node::Leaf(Leaf::new_validated(bytes))
        } else if node::is_delta(bytes) {
            Node::Delta(Delta::new_validated(bytes))
        } else {
            Node::Inner(Inner::new_validated(bytes))
        }
    }
}

/// A node on level 0 as what it is, the leaf behind a delta included.
enum Bottom<'a> {
    Leaf(Leaf<'a>),
    Changed(ChangedLeaf<'a>),
}

/// Reads the leaf behind a node on level 0 that is a delta.
#[inline(always)]
fn bottom<'a>(pager: &'a Pager, bytes: &'a [u8]) -> Result<Bottom<'a>> {
    if node::is_leaf(bytes) {
        // SAFETY: (4).
        return Ok(Bottom::Leaf(unsafe { Leaf::new_validated(bytes) }));
    }
    changed_leaf(pager, bytes).map(Bottom::Changed)
}

#[cold]
fn changed_leaf<'a>(pager: &'a Pager, bytes: &'a [u8]) -> Result<ChangedLeaf<'a>> {
    // SAFETY: (4): what is on level 0 and no leaf is a delta.
    let delta = unsafe { Delta::new_validated(bytes) };
    Ok(ChangedLeaf::new(leaf_behind(pager, delta)?, delta))
}

/// The leaf that a delta changes.
fn leaf_behind<'a>(pager: &'a Pager, delta: Delta<'a>) -> Result<Leaf<'a>> {
    in_leaf(pager, delta.base(), |leaf| leaf)
}

/// Asks for the leaf behind a node, which was asked for before, if that is a delta.
fn ask_for_leaf_behind(pager: &Pager, at: NodeRef) {
    // What is wrong with it is for the reader to say.
    if let Ok(Node::Delta(delta)) = open_root(pager, at) {
        pager.prefetch_whole(delta.base());
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
    if !node::is_leaf(bytes) {
        return Err(wrong_level(at));
    }
    // SAFETY: (4).
    Ok(look(unsafe { Leaf::new_validated(bytes) }))
}

/// Goes down from a node to level 0, through the children that `choose` names. There is no [`Node`] on the way: each would go through memory.
#[inline(always)]
fn descend<'a>(
    pager: &'a Pager,
    mut bytes: &'a [u8],
    mut choose: impl FnMut(Inner<'a>) -> NodeRef,
) -> Result<&'a [u8]> {
    loop {
        let level = node::level(bytes);
        if level == 0 {
            return Ok(bytes);
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
    let bytes = descend(pager, pager.node(root.node)?, |inner| {
        inner.child(inner.search(key))
    })?;
    if !node::is_leaf(bytes) {
        return get_changed(pager, bytes, key);
    }
    // SAFETY: (4).
    Ok(unsafe { Leaf::new_validated(bytes) }.get(key))
}

/// The stored value of `key` in a leaf with a delta.
#[cold]
#[inline(never)]
fn get_changed<'a>(pager: &'a Pager, bytes: &'a [u8], key: &[u8]) -> Result<Option<Stored<'a>>> {
    // SAFETY: (4): what is on level 0 and no leaf is a delta.
    let delta = unsafe { Delta::new_validated(bytes) };
    pager.prefetch(delta.base());
    let entries = delta.entries();
    match entries.find(key) {
        Some(index) if delta.mark(index) == Mark::Removes => Ok(None),
        Some(index) => Ok(Some(entries.value(index))),
        None => in_leaf(pager, delta.base(), |leaf| leaf.get(key)),
    }
}

/// From how many keys on it pays to go on in their leaves.
const STEPWISE_FROM_KEYS: u32 = 4;

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
    // Few wait for the lines of one another as long as they would for their own.
    if left.count_ones() >= STEPWISE_FROM_KEYS {
        prefetch_in_leaves(pager, &nodes, keys, left);
    }
}

/// Goes on with the searches in leaves, side by side. Not in those that were neither read nor written yet: they may be on the disk, and the keys only be written.
fn prefetch_in_leaves(
    pager: &Pager,
    leaves: &[NodeRef; PREFETCH_KEYS_MAX],
    keys: &[&[u8]],
    wanted: u32,
) {
    let mut searches = [const { None }; PREFETCH_KEYS_MAX];
    let mut going = 0;
    for (index, key) in keys.iter().enumerate() {
        if wanted >> index & 1 != 0
            && let Some(bytes) = pager.known_node(leaves[index])
            && node::is_leaf(bytes)
        {
            // SAFETY: (4).
            searches[index] = Stepwise::begin(unsafe { Leaf::new_validated(bytes) }, key);
            going |= u32::from(searches[index].is_some()) << index;
        }
    }
    while going != 0 {
        let mut round = going;
        while round != 0 {
            let index = round.trailing_zeros() as usize;
            round &= round - 1;
            if let Some(search) = &mut searches[index]
                && !search.step()
            {
                going &= !(1 << index);
            }
        }
    }
}

/// Number of keys less than `key`. O(log n).
pub(crate) fn rank(pager: &Pager, root: Root, key: &[u8]) -> Result<u64> {
    // Nothing is less than the empty key: a count of everything reads no node.
    if root.node.is_null() || key.is_empty() {
        return Ok(0);
    }
    let mut before = 0u64;
    let bytes = descend(pager, pager.node(root.node)?, |inner| {
        let index = inner.search(key);
        before = before.saturating_add(inner.keys_before(index));
        inner.child(index)
    })?;
    let index = match bottom(pager, bytes)? {
        Bottom::Leaf(leaf) => leaf.lower_bound(key),
        Bottom::Changed(ChangedLeaf { base, delta, .. }) => {
            let changes = delta.entries().lower_bound(key);
            delta.index_with_changes(base.lower_bound(key), changes)
        }
    };
    Ok(before.saturating_add(index as u64))
}

/// What has the key of rank `rank` (0 is the smallest) on level 0, and at which index. `None` if there are not so many keys. O(log n).
fn find_rank(pager: &Pager, root: Root, rank: u64) -> Result<Option<(NodeRef, &[u8], usize)>> {
    if root.node.is_null() || rank >= root.keys {
        return Ok(None);
    }
    let mut left = rank;
    let mut at = root.node;
    let mut bytes = pager.node(at)?;
    loop {
        let level = node::level(bytes);
        if level == 0 {
            return Ok(Some((at, bytes, left as usize)));
        }
        // SAFETY: (4).
        let inner = unsafe { Inner::new_validated(bytes) };
        let Some((index, inside)) = inner.find_rank(left) else {
            return Ok(None);
        };
        (left, at) = (inside, inner.child(index));
        bytes = child_bytes(pager, at, level)?;
    }
}

/// The leaf that has the key of rank `rank`. `None` if there are not so many keys, or the leaf has a delta. O(log n).
pub(crate) fn leaf_at(pager: &Pager, root: Root, rank: u64) -> Result<Option<(NodeRef, Leaf<'_>)>> {
    let Some((at, bytes, _)) = find_rank(pager, root, rank)? else {
        return Ok(None);
    };
    // SAFETY: (4).
    Ok(node::is_leaf(bytes).then(|| (at, unsafe { Leaf::new_validated(bytes) })))
}

/// Copies the key of rank `rank` into `out`. False if there are not so many. O(log n).
pub(crate) fn nth(pager: &Pager, root: Root, rank: u64, out: &mut Vec<u8>) -> Result<bool> {
    let Some((_, bytes, mut index)) = find_rank(pager, root, rank)? else {
        return Ok(false);
    };
    match bottom(pager, bytes)? {
        Bottom::Leaf(leaf) => {
            let is_there = index < leaf.len();
            if is_there {
                leaf.copy_key(index, out);
            }
            Ok(is_there)
        }
        Bottom::Changed(mut changed) => {
            while let Some((leaf, run)) = changed.next_run() {
                if index < run.len() {
                    leaf.copy_key(run.start + index, out);
                    return Ok(true);
                }
                index -= run.len();
            }
            Ok(false)
        }
    }
}
