//! Visiting every node of a tree that goes away as a whole.

use std::ops::ControlFlow;

use super::{Node, Root, leaf_behind, open_child, open_root};
use crate::{
    Result,
    node::{self, Leaf, NodeRef, Stored},
    pager::{Pager, Sink},
};

/// Counts every node and out-of-line value below `root` as dead, but for those that other trees refer to. Call under the lock that orders
/// tree versions.
pub(crate) fn kill_tree(sink: &mut Sink<'_>, root: NodeRef) -> Result<()> {
    if root.is_null() {
        return Ok(());
    }
    let node = open_root(sink.pager(), root)?;
    kill_node(sink, root, node, Others::Spared)
}

/// Counts a child of a node on level `parent_level`, and all below it, as given up by the tree that is being merged. What other trees refer
/// to is sorted out when the merge is published.
pub(super) fn give_up_child(sink: &mut Sink<'_>, at: NodeRef, parent_level: u8) -> Result<()> {
    let node = open_child(sink.pager(), at, parent_level)?;
    kill_node(sink, at, node, Others::SortedOutLater)
}

/// What becomes of nodes that other trees refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Spared,
    SortedOutLater,
}

/// The recursion is as deep as the tree is high: a dozen at most, as a node has two children or more. A node is named before what is below
/// it.
fn kill_node(sink: &mut Sink<'_>, at: NodeRef, node: Node<'_>, others: Others) -> Result<()> {
    if others == Others::Spared && sink.give_up_shared(at.address_units()) {
        return Ok(());
    }
    let birth = node::birth(sink.pager().node(at)?);
    sink.kill_node(at, birth);
    match node {
        Node::Leaf(leaf) => kill_values(sink, leaf, others),
        Node::Delta(delta) => {
            kill_values(sink, delta.entries(), others);
            let leaf = leaf_behind(sink.pager(), delta)?;
            kill_node(sink, delta.base(), Node::Leaf(leaf), others)?;
        }
        Node::Inner(inner) => {
            for index in 0..inner.len() {
                let child = inner.child(index);
                let node = open_child(sink.pager(), child, inner.level())?;
                kill_node(sink, child, node, others)?;
            }
        }
    }
    Ok(())
}

fn kill_values(sink: &mut Sink<'_>, leaf: Leaf<'_>, others: Others) {
    for index in 0..leaf.len() {
        if let Stored::External(pointer) = leaf.value(index) {
            let spared = others == Others::Spared && sink.give_up_shared(pointer.address_units());
            if !spared {
                sink.kill_value(&pointer);
            }
        }
    }
}

/// Visits the leaves of a tree in order, until it is told to stop. A delta is where it stops, too.
pub(crate) fn each_leaf(
    pager: &Pager,
    root: Root,
    visit: &mut impl FnMut(NodeRef, Leaf<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    if root.node.is_null() {
        return Ok(ControlFlow::Continue(()));
    }
    each_leaf_below(pager, root.node, open_root(pager, root.node)?, visit)
}

fn each_leaf_below(
    pager: &Pager,
    at: NodeRef,
    node: Node<'_>,
    visit: &mut impl FnMut(NodeRef, Leaf<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let inner = match node {
        Node::Leaf(leaf) => return Ok(visit(at, leaf)),
        Node::Delta(_) => return Ok(ControlFlow::Break(())),
        Node::Inner(inner) => inner,
    };
    for index in 0..inner.len() {
        let child = inner.child(index);
        if index + 1 < inner.len() {
            pager.prefetch_whole(inner.child(index + 1));
        }
        let node = open_child(pager, child, inner.level())?;
        if each_leaf_below(pager, child, node, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Calls `visit` for everything that a node refers to: the address in units, and whether it is a value.
pub(crate) fn references(
    pager: &Pager,
    at: NodeRef,
    mut visit: impl FnMut(u64, bool),
) -> Result<()> {
    match open_root(pager, at)? {
        Node::Leaf(leaf) => value_references(leaf, visit),
        Node::Delta(delta) => {
            visit(delta.base().address_units(), false);
            value_references(delta.entries(), visit);
        }
        Node::Inner(inner) => {
            for index in 0..inner.len() {
                visit(inner.child(index).address_units(), false);
            }
        }
    }
    Ok(())
}

fn value_references(leaf: Leaf<'_>, mut visit: impl FnMut(u64, bool)) {
    for index in 0..leaf.len() {
        if let Stored::External(pointer) = leaf.value(index)
            && pointer.subtree().is_none()
        {
            visit(pointer.address_units(), true);
        }
    }
}
