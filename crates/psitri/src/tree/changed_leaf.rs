//! A leaf and the delta in front of it, as one sequence of entries: runs of the leaf, and between them entries of the delta.
//!
//! # Invariants
//! (1) A position is a pair: how many entries of the leaf, and how many of the delta, come before it.
//! (2) The order of keys alone decides what is passed. Marks that do not fit the leaf, which `verify` would name, make for wrong results and
//!     nothing worse.

use std::{cmp::Ordering, ops::Range};

use crate::node::{Delta, Leaf, Mark};

/// Entries of the leaf, and of the delta.
type Position = (usize, usize);

#[derive(Debug)]
pub(crate) struct ChangedLeaf<'a> {
    pub base: Leaf<'a>,
    pub delta: Delta<'a>,
    /// Before and behind the run that was given last.
    before: Position,
    behind: Position,
    key: Vec<u8>,
}

impl<'a> ChangedLeaf<'a> {
    /// Before the first entry.
    pub fn new(base: Leaf<'a>, delta: Delta<'a>) -> ChangedLeaf<'a> {
        ChangedLeaf {
            base,
            delta,
            before: (0, 0),
            behind: (0, 0),
            key: Vec::new(),
        }
    }

    pub fn place(&mut self, position: Position) {
        (self.before, self.behind) = (position, position);
    }

    /// Before the first entry that is not less than `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.place((
            self.base.lower_bound(key),
            self.delta.entries().lower_bound(key),
        ));
    }

    /// Behind the last entry.
    pub fn seek_end(&mut self) {
        self.place((self.base.len(), self.delta.entries().len()));
    }

    /// Entries of the delta behind the position.
    pub fn changes_behind(&self) -> Range<usize> {
        self.behind.1..self.delta.entries().len()
    }

    /// The next entries that lie side by side: those at the given indexes of a leaf, which is cut off behind them.
    pub fn next_run(&mut self) -> Option<(Leaf<'a>, Range<usize>)> {
        let entries = self.delta.entries();
        let (mut base, mut delta) = self.behind;
        loop {
            if delta == entries.len() {
                return (base < self.base.len())
                    .then(|| self.take_base(base..self.base.len(), delta));
            }
            entries.copy_key(delta, &mut self.key);
            let to = self.base.lower_bound_from(base, &self.key);
            if to > base {
                return Some(self.take_base(base..to, delta));
            }
            let is_over = to < self.base.len() && self.base.cmp_key(to, &self.key).is_eq();
            if self.delta.mark(delta) != Mark::Removes {
                (self.before, self.behind) =
                    ((base, delta), (base + usize::from(is_over), delta + 1));
                return Some((entries.up_to(delta + 1), delta..delta + 1));
            }
            (base, delta) = (to.max(base) + usize::from(is_over), delta + 1);
        }
    }

    /// The entries before these.
    pub fn previous_run(&mut self) -> Option<(Leaf<'a>, Range<usize>)> {
        let entries = self.delta.entries();
        let (mut base, mut delta) = self.before;
        loop {
            if delta == 0 {
                return (base > 0).then(|| self.take_base(0..base, delta));
            }
            entries.copy_key(delta - 1, &mut self.key);
            let from = self.base.lower_bound(&self.key).min(base);
            let order = match from < base {
                true => self.base.cmp_key(from, &self.key),
                false => Ordering::Greater,
            };
            // What the leaf has under the key of the delta is not seen.
            let is_over = order.is_eq();
            if from + usize::from(is_over) < base {
                return Some(self.take_base(from + usize::from(is_over)..base, delta));
            }
            let hidden = base - usize::from(is_over);
            if self.delta.mark(delta - 1) != Mark::Removes {
                (self.before, self.behind) = ((hidden, delta - 1), (base, delta));
                return Some((entries.up_to(delta), delta - 1..delta));
            }
            (base, delta) = (hidden, delta - 1);
        }
    }

    fn take_base(&mut self, run: Range<usize>, delta: usize) -> (Leaf<'a>, Range<usize>) {
        (self.before, self.behind) = ((run.start, delta), (run.end, delta));
        (self.base.up_to(run.end), run)
    }
}
