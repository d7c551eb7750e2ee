//! Many siblings in a row, visited where they are: the entries of a [full](Node::is_full) node.

use super::super::entry::Entry;
use super::super::node::{self, Node};
use super::Walk;

impl<'b> Walk<'b> {
    /// Whether the siblings of the entry are so many that [`visit_siblings`](Walk::visit_siblings) is worth it, and `fits` says yes to what the keys of all
    /// of them begin with. Asks for some of those behind the entry then.
    #[inline(always)]
    pub fn has_siblings(&self, fits: impl FnOnce(&[u8]) -> bool) -> bool {
        let Some(frame) = self.frames.last() else {
            return false;
        };
        if !node::is_inner(frame.node) {
            return false;
        }
        let node = Node::new(self.memory, frame.node);
        if !node.is_full() {
            return false;
        }
        let sample = Entry::new(self.memory, node::offset(node.sample())).key();
        let fits = fits(&sample[..node.depth()]);
        if fits {
            node.prefetch_entries(frame.position);
        }
        fits
    }

    /// Goes on over the siblings behind the entry as far as they are entries and `visit` goes on. Returns how many they are.
    #[inline(always)]
    pub fn visit_siblings(
        &mut self,
        version_bytes: usize,
        mut visit: impl FnMut(Entry<'b>) -> bool,
    ) -> usize {
        let memory = self.memory;
        let Some(frame) = self.frames.last_mut() else {
            return 0;
        };
        let node = Node::new(memory, frame.node);
        let mut count = 0;
        let last = (frame.position, self.walked);
        (frame.position, self.walked) = node.visit_entries(last, version_bytes, |entry| {
            count += 1;
            visit(entry)
        });
        let coming = node.neighbour(frame.position, true);
        Self::look_ahead(memory, frame, coming, true);
        count
    }
}
