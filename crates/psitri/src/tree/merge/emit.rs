//! What a merge writes. Entries go into the packer of the leaves; a node that is full goes to the sink and, as a child, into the packer of
//! the level above. All of it is pushed in key order, and so nodes are written in that order.

use super::{ChangeStream, Merger};
use crate::{
    Result,
    node::{self, InnerPacker, NODE_BYTES_SOFT_MAX, Stored, shortest_separator},
    pager::Sink,
    tree::Root,
};

/// Packer of one level of inner nodes.
pub(super) struct Level {
    packer: InnerPacker,
    /// The child pushed last.
    newest: Root,
    /// While a node of this level is patched: what the child that was visited last became, with lower bounds.
    pub(super) became: Option<Vec<(Box<[u8]>, Root)>>,
}

impl<S: ChangeStream> Merger<'_, '_, S> {
    pub(super) fn is_level_empty(&self, level: u8) -> bool {
        match level {
            0 => self.leaves.is_empty(),
            _ => self
                .inners
                .get(usize::from(level) - 1)
                .is_none_or(|l| l.packer.is_empty()),
        }
    }

    pub(super) fn is_underfull(&self, level: u8) -> bool {
        match level {
            0 => !self.appending && self.leaves.pending_bytes() < NODE_BYTES_SOFT_MAX / 2,
            _ => self.inners[usize::from(level) - 1].packer.is_underfull(),
        }
    }

    /// Notes the lower bound of what comes next if the packer is empty.
    pub(super) fn begin_run(&mut self, lower: &[u8]) {
        if self.leaves.is_empty() {
            self.lower.clear();
            self.lower.extend_from_slice(lower);
            self.last_key = None;
            self.appending = false;
        }
    }

    pub(super) fn push_entry(&mut self, key: &[u8], stored: Stored<'_>) -> Result<()> {
        self.appending = false;
        self.leaves.push(key, stored);
        self.emit_full_leaves()
    }

    pub(super) fn emit_full_leaves(&mut self) -> Result<()> {
        while let Some(image) = self.leaves.pop_full() {
            let leaf = place_leaf(self.sink, &mut self.lower, &mut self.last_key, image)?;
            let separator = std::mem::take(&mut self.lower);
            self.push_child(1, &separator, leaf)?;
            self.lower = separator;
        }
        Ok(())
    }

    /// Empties the packer of a level into the level above.
    pub(super) fn flush_level(&mut self, level: u8) -> Result<()> {
        if level == 0 {
            while let Some(image) = self.leaves.pop_last(self.appending) {
                let leaf = place_leaf(self.sink, &mut self.lower, &mut self.last_key, image)?;
                let separator = std::mem::take(&mut self.lower);
                self.push_child(1, &separator, leaf)?;
                self.lower = separator;
            }
            self.last_key = None;
            return Ok(());
        }
        let index = usize::from(level) - 1;
        while let Some(image) = self.inners[index].packer.pop_last() {
            let (separator, inner) = place_inner(self.sink, image)?;
            self.push_child(level + 1, &separator, inner)?;
        }
        Ok(())
    }

    /// What is pushed on a level, and the levels below it.
    pub(super) fn level(&mut self, level: u8) -> &mut Level {
        let index = usize::from(level) - 1;
        while self.inners.len() <= index {
            let level = self.inners.len() as u8 + 1;
            self.inners.push(Level {
                packer: InnerPacker::new(level),
                newest: Root::default(),
                became: None,
            });
        }
        &mut self.inners[index]
    }

    /// Pushes a node of level `level - 1` as a child on `level`.
    pub(super) fn push_child(&mut self, level: u8, separator: &[u8], child: Root) -> Result<()> {
        let own = self.level(level);
        if let Some(became) = &mut own.became {
            became.push((separator.into(), child));
            return Ok(());
        }
        own.packer.push(separator, child.node, child.keys);
        own.newest = child;
        let index = usize::from(level) - 1;
        while let Some(image) = self.inners[index].packer.pop_full() {
            let (separator, inner) = place_inner(self.sink, image)?;
            self.push_child(level + 1, &separator, inner)?;
        }
        Ok(())
    }

    /// Empties all packers; what remains alone on its level is the root.
    pub(super) fn close(mut self) -> Result<Root> {
        debug_assert!(self.changes.key().is_none(), "every change has a place");
        self.flush_level(0)?;
        let mut level = 1;
        loop {
            let index = usize::from(level) - 1;
            let Some(own) = self.inners.get(index) else {
                return Ok(Root::default());
            };
            let is_top = self.inners[index + 1..]
                .iter()
                .all(|above| above.packer.is_empty());
            if is_top && own.packer.pending_len() == 1 {
                return Ok(own.newest);
            }
            self.flush_level(level)?;
            level += 1;
        }
    }
}

/// Writes a leaf. Leaves its separator in `lower` and its last key in `last_key`.
fn place_leaf(
    sink: &mut Sink<'_>,
    lower: &mut Vec<u8>,
    last_key: &mut Option<Vec<u8>>,
    image: node::LeafImage<'_>,
) -> Result<Root> {
    let keys = u64::from(image.count);
    match last_key {
        Some(left) => {
            shortest_separator(left, image.first_key, lower);
            left.clear();
            left.extend_from_slice(image.last_key);
        }
        None => *last_key = Some(image.last_key.to_vec()),
    }
    let node = sink.place(image.bytes)?;
    Ok(Root { node, keys })
}

/// Writes an inner node. Returns its separator, too.
fn place_inner(sink: &mut Sink<'_>, image: node::InnerImage<'_>) -> Result<(Vec<u8>, Root)> {
    let separator = image.first_separator.to_vec();
    let keys = image.keys;
    let node = sink.place(image.bytes)?;
    Ok((separator, Root { node, keys }))
}
