//! A full check of one tree: checksums, structure, key order, bounds, levels, counts and out-of-line values.

use super::{Node, Root, open_root};
use crate::{
    Result,
    error::Error,
    node::{self, NodeRef, Stored},
    pager::{DATA_FILE, Extent, Pager, value_extent},
};

/// What the check of a tree found.
#[derive(Debug, Default)]
pub(crate) struct TreeCheck {
    pub nodes: u64,
    pub keys: u64,
    pub values_out_of_line: u64,
    /// The least that a value has.
    pub value_bytes_min: usize,
    /// Space in use, to be compared with the page map.
    pub extents: Vec<Extent>,
}

/// Checks every node below `root`. The first damage found is the error.
pub(crate) fn verify_tree(pager: &Pager, root: Root, check: &mut TreeCheck) -> Result<()> {
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
    check: &mut TreeCheck,
) -> Result<u64> {
    let bytes = pager.recheck_node(at)?;
    node::validate_deep(bytes).map_err(|e| damaged(at, &e.to_string()))?;
    if node::level(bytes) != level {
        return Err(damaged(at, "a child is on the wrong level"));
    }
    check.nodes += 1;
    check.extents.push(Extent {
        page: at.page(),
        units: at.units(),
        birth: node::birth(bytes),
    });
    match open_root(pager, at)? {
        Node::Leaf(leaf) => {
            let mut key = Vec::new();
            leaf.first_key(&mut key);
            let starts_inside = leaf.len() > 0 && key.as_slice() >= lower;
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
                if let Stored::External(pointer) = stored {
                    pager.recheck_value(&pointer)?;
                    check.values_out_of_line += 1;
                    check.extents.push(value_extent(&pointer));
                }
            }
            check.keys += leaf.len() as u64;
            Ok(leaf.len() as u64)
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
