//! A full check of one tree: checksums, structure, key order, bounds, levels, counts and out-of-line values.

use std::collections::HashMap;

use super::{Node, Root, leaf_behind, open_root};
use crate::{
    Result,
    error::Error,
    node::{self, Leaf, NodeRef, Stored, UNIT_BYTES},
    pager::{DATA_FILE, Extent, Pager, Share, node_extent, value_extent},
    progress::Watch,
};

/// What the check of several trees found.
pub(crate) struct TreeCheck<'w, 'r, 'f> {
    /// No node is younger.
    version: u64,
    pub nodes: u64,
    /// Nodes that are deltas.
    pub deltas: u64,
    pub keys: u64,
    pub values_out_of_line: u64,
    /// The least that a value has.
    pub value_bytes_min: usize,
    /// Space in use, to be compared with the page map.
    pub extents: Vec<Extent>,
    /// What there should be several references to, by address, and what was found of it.
    shared: HashMap<u64, Shared>,
    watch: &'w mut Watch<'r, 'f>,
}

#[derive(Debug)]
struct Shared {
    expected: Share,
    found: u32,
    /// Keys below it, once it was visited.
    keys: u64,
}

impl<'w, 'r, 'f> TreeCheck<'w, 'r, 'f> {
    /// A check of trees of one version that share these nodes and values. `watch` is told of the bytes that were checked.
    pub fn new(
        shares: HashMap<u64, Share>,
        version: u64,
        watch: &'w mut Watch<'r, 'f>,
    ) -> TreeCheck<'w, 'r, 'f> {
        let shared = shares.into_iter().map(|(address, expected)| {
            let shared = Shared {
                expected,
                found: 0,
                keys: 0,
            };
            (address, shared)
        });
        TreeCheck {
            version,
            nodes: 0,
            deltas: 0,
            keys: 0,
            values_out_of_line: 0,
            extents: Vec::new(),
            value_bytes_min: 0,
            shared: shared.collect(),
            watch,
        }
    }

    /// Counts a reference. Of something that was visited before: the keys below it.
    fn revisit(&mut self, address: u64) -> Option<u64> {
        let shared = self.shared.get_mut(&address)?;
        shared.found += 1;
        (shared.found > 1).then_some(shared.keys)
    }

    /// Says where there are other references than the counts of shared nodes say, once all trees were checked.
    pub fn wrong_count(&self) -> Option<String> {
        let wrong = |shared: &Shared| shared.found != shared.expected.more + 1;
        let (address, shared) = self.shared.iter().find(|(_, shared)| wrong(shared))?;
        Some(format!(
            "{DATA_FILE}: {} references are counted to what is at byte {}, the trees have {}",
            shared.expected.more + 1,
            address * UNIT_BYTES as u64,
            shared.found
        ))
    }

    /// Notes an extent that was checked.
    fn passed(&mut self, extent: Extent) -> Result<()> {
        self.extents.push(extent);
        self.watch
            .advance(u64::from(extent.units) * UNIT_BYTES as u64)
    }
}

/// Checks every node below `root`. The first damage found is the error.
pub(crate) fn verify_tree(
    pager: &Pager,
    root: Root,
    check: &mut TreeCheck<'_, '_, '_>,
) -> Result<()> {
    if root.node.is_null() {
        return Ok(());
    }
    let level = node::level(pager.recheck_node(root.node)?);
    let keys = verify_node(pager, root.node, level, &[], None, check)?;
    if keys != root.keys {
        return Err(damaged(
            root.node,
            "the tree holds another number of keys than its root says",
        ));
    }
    Ok(())
}

fn damaged(at: NodeRef, what: &str) -> Error {
    Error::corrupted(DATA_FILE, at.byte_offset(), what)
}

fn verify_node(
    pager: &Pager,
    at: NodeRef,
    level: u8,
    lower: &[u8],
    upper: Option<&[u8]>,
    check: &mut TreeCheck<'_, '_, '_>,
) -> Result<u64> {
    if let Some(keys) = check.revisit(at.address_units()) {
        return Ok(keys);
    }
    let keys = verify_first(pager, at, level, lower, upper, check)?;
    if let Some(shared) = check.shared.get_mut(&at.address_units()) {
        shared.keys = keys;
    }
    Ok(keys)
}

/// A node that was not visited before.
fn verify_first(
    pager: &Pager,
    at: NodeRef,
    level: u8,
    lower: &[u8],
    upper: Option<&[u8]>,
    check: &mut TreeCheck,
) -> Result<u64> {
    let bytes = pager.recheck_node(at)?;
    node::validate_deep(bytes).map_err(|e| damaged(at, &e.to_string()))?;
    if node::level(bytes) != level {
        return Err(damaged(at, "a child is on the wrong level"));
    }
    if at.has_deltas() != node::leads_to_deltas(bytes) {
        return Err(damaged(
            at,
            "the reference to it says wrongly whether it leads to deltas",
        ));
    }
    if node::birth(bytes) > check.version {
        return Err(damaged(
            at,
            "a node is younger than the tree that it belongs to",
        ));
    }
    check.nodes += 1;
    check.passed(node_extent(at, node::birth(bytes)))?;
    match open_root(pager, at)? {
        Node::Leaf(leaf) => {
            verify_entries(pager, at, leaf, lower, upper, check)?;
            check.keys += leaf.len() as u64;
            Ok(leaf.len() as u64)
        }
        Node::Delta(delta) => {
            verify_entries(pager, at, delta.entries(), lower, upper, check)?;
            check.deltas += 1;
            let keys_before = check.keys;
            // First of all whether it is a leaf: deltas that lead to one another would have no end.
            let leaf = leaf_behind(pager, delta)?;
            verify_node(pager, delta.base(), 0, lower, upper, check)?;
            if !delta.fits(leaf) {
                return Err(damaged(at, "a delta does not fit the leaf behind it"));
            }
            check.keys = keys_before + delta.keys();
            Ok(delta.keys())
        }
        Node::Inner(inner) => {
            let mut total = 0;
            let (mut child_lower, mut child_upper) = (lower.to_vec(), Vec::new());
            for index in 0..inner.len() {
                let bound = if index + 1 < inner.len() {
                    inner.separator(index + 1, &mut child_upper);
                    if child_upper <= child_lower
                        || upper.is_some_and(|upper| child_upper.as_slice() >= upper)
                    {
                        return Err(damaged(at, "separators are out of order"));
                    }
                    Some(child_upper.as_slice())
                } else {
                    upper
                };
                let keys = verify_node(
                    pager,
                    inner.child(index),
                    level - 1,
                    &child_lower,
                    bound,
                    check,
                )?;
                if keys != inner.child_keys(index) {
                    return Err(damaged(
                        at,
                        "a child holds another number of keys than its parent says",
                    ));
                }
                total += keys;
                std::mem::swap(&mut child_lower, &mut child_upper);
            }
            Ok(total)
        }
    }
}

/// The keys and values of a leaf, or of a delta.
fn verify_entries(
    pager: &Pager,
    at: NodeRef,
    leaf: Leaf<'_>,
    lower: &[u8],
    upper: Option<&[u8]>,
    check: &mut TreeCheck,
) -> Result<()> {
    let mut key = Vec::new();
    leaf.first_key(&mut key);
    let starts_inside = key.as_slice() >= lower;
    leaf.last_key(&mut key);
    if !starts_inside || upper.is_some_and(|upper| key.as_slice() >= upper) {
        return Err(damaged(at, "a leaf holds keys outside its bounds"));
    }
    for index in 0..leaf.len() {
        let stored = leaf.value(index);
        let value_bytes = match stored {
            Stored::Inline(value) => value.len(),
            Stored::External(pointer) => pointer.len as usize,
        };
        if value_bytes < check.value_bytes_min {
            return Err(damaged(at, "a value lacks its moment of expiry"));
        }
        if let Stored::External(pointer) = stored
            && pointer.subtree().is_none()
        {
            if check.revisit(pointer.address_units()).is_some() {
                continue;
            }
            pager.recheck_value(&pointer)?;
            if pointer.birth > check.version {
                return Err(damaged(
                    at,
                    "a value is younger than the tree that it belongs to",
                ));
            }
            check.values_out_of_line += 1;
            check.passed(value_extent(&pointer))?;
        }
    }
    Ok(())
}
