//! Visiting every node of a tree that goes away as a whole.

use super::{Node, open_child, open_root};
use crate::{
    Result,
    node::{self, Leaf, NodeRef, Stored},
    pager::Sink,
};

/// Counts every node and out-of-line value below `root` as dead.
pub(crate) fn kill_tree(sink: &mut Sink<'_>, root: NodeRef) -> Result<()> {
    if root.is_null() {
        return Ok(());
    }
    let node = open_root(sink.pager(), root)?;
    kill_node(sink, root, node)
}

/// Counts a child of a node on level `parent_level`, and all below it, as dead.
pub(super) fn kill_child(sink: &mut Sink<'_>, at: NodeRef, parent_level: u8) -> Result<()> {
    let node = open_child(sink.pager(), at, parent_level)?;
    kill_node(sink, at, node)
}

/// The recursion is as deep as the tree is high: a dozen at most, as a node has two children or more.
fn kill_node(sink: &mut Sink<'_>, at: NodeRef, node: Node<'_>) -> Result<()> {
    let birth = node::birth(sink.pager().node(at)?);
    match node {
        Node::Leaf(leaf) => kill_values(sink, leaf),
        Node::Inner(inner) => {
            for index in 0..inner.len() {
                kill_child(sink, inner.child(index), inner.level())?;
            }
        }
    }
    sink.kill_node(at, birth);
    Ok(())
}

fn kill_values(sink: &mut Sink<'_>, leaf: Leaf<'_>) {
    for index in 0..leaf.len() {
        if let Stored::External(pointer) = leaf.value(index) {
            sink.kill_value(&pointer);
        }
    }
}
