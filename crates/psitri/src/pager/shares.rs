//! How many references there are to a node or a value, where there is more than one.
//!
//! A clone of a tree begins with a second reference to its root, and shares everything below without a count of its own. When one of the
//! two takes a shared node apart, the other keeps it, and its children are referred to by both from then on: the counts move down with the
//! changes. A tree that was never cloned has no counts, and pays for one look at an empty table. (Rodeh, "B-trees, shadowing, and clones",
//! 2008.)
//!
//! # Thread safety
//! Counts change under the lock that orders tree versions. Others may ask [`Shares::is_shared`] at any time.
//!
//! # Invariants
//! (1) The count of a node is the number of references to it from published nodes and roots, less one. A node without a count has one.
//! (2) A node dies with its last reference. One that is given up while there are others leaves the node as it is.
//! (3) A list of deaths names a node before what is below it: taking a shared node apart adds to the counts of its children first, and
//!     those that were taken apart as well give the reference up again.
//! (4) What a checkpoint stores are the counts of its tree version.

use std::collections::{BTreeSet, HashMap};

use super::{Changes, Extent, Pager};
use crate::{
    Result,
    sync::{AtomicBool, Mutex, MutexGuard, Ordering},
    tree::Root,
};

/// A count that is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// References beyond the first.
    pub more: u32,
    /// It has nothing below it.
    pub is_value: bool,
}

/// The count at an address, in units, as it was before a change.
pub(crate) type Before = (u64, Option<Share>);

#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Whether there is any count: what most databases look at only.
    any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    counts: HashMap<u64, Share>,
    /// What changed since the last checkpoint took the changes.
    dirty: BTreeSet<u64>,
}

impl Table {
    fn set(&mut self, address: u64, share: Option<Share>) -> Before {
        self.dirty.insert(address);
        let before = match share {
            Some(share) => self.counts.insert(address, share),
            None => self.counts.remove(&address),
        };
        (address, before)
    }

    fn add(&mut self, address: u64, is_value: bool) -> Before {
        let more = self.counts.get(&address).map_or(0, |share| share.more);
        let more = more
            .checked_add(1)
            .expect("fewer references than bytes of the file");
        self.set(address, Some(Share { more, is_value }))
    }

    /// Gives one reference up. `None` if it was the only one.
    fn give_up(&mut self, address: u64) -> Option<(Share, Before)> {
        let share = *self.counts.get(&address)?;
        let left = (share.more > 1).then(|| Share {
            more: share.more - 1,
            ..share
        });
        Some((share, self.set(address, left)))
    }
}

impl Shares {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    fn note_any(&self, table: &Table) {
        self.any.store(!table.counts.is_empty(), Ordering::Release);
    }

    /// Puts back what a checkpoint stored.
    pub fn load(&self, counts: impl IntoIterator<Item = (u64, Share)>) {
        let mut table = self.lock();
        table.counts.extend(counts);
        self.note_any(&table);
    }

    /// Adds a reference to a tree, if it has any node; what was before goes to `undo`.
    pub fn refer(&self, root: Root, undo: &mut Vec<Before>) {
        if !root.node.is_null() {
            let mut table = self.lock();
            undo.push(table.add(root.node.address_units(), false));
            self.note_any(&table);
        }
    }

    /// Gives a reference up. Says whether there are others; what was before goes to `undo`.
    pub fn give_up(&self, address: u64, undo: &mut Vec<Before>) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut table = self.lock();
        let Some((_, before)) = table.give_up(address) else {
            return false;
        };
        undo.push(before);
        self.note_any(&table);
        true
    }

    /// Whether anything has more than one reference.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    #[inline]
    pub fn is_shared(&self, address: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().counts.contains_key(&address)
    }

    /// Takes changes back, the newest first.
    pub fn undo(&self, undo: &[Before]) {
        if undo.is_empty() {
            return;
        }
        let mut table = self.lock();
        for &(address, before) in undo.iter().rev() {
            table.set(address, before);
        }
        self.note_any(&table);
    }

    /// (3): turns the references that a merge gave up into deaths of nodes and values that nobody refers to any more.
    pub fn resolve(&self, pager: &Pager, changes: &mut Changes) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut table = self.lock();
        let mut undo = Vec::new();
        let mut dead = Vec::with_capacity(changes.deaths.len());
        let mut result = Ok(());
        for extent in std::mem::take(&mut changes.deaths) {
            let Some((share, before)) = table.give_up(extent.address) else {
                dead.push(extent);
                continue;
            };
            undo.push(before);
            if !share.is_value && result.is_ok() {
                result = crate::tree::references(pager, extent.node(), |address, is_value| {
                    undo.push(table.add(address, is_value));
                });
            }
        }
        changes.deaths = dead;
        changes.shares_before.append(&mut undo);
        self.note_any(&table);
        result
    }

    /// What changed since the last call, by address.
    pub fn take_dirty(&self) -> Vec<(u64, Option<Share>)> {
        let mut table = self.lock();
        let dirty = std::mem::take(&mut table.dirty);
        dirty
            .into_iter()
            .map(|address| (address, table.counts.get(&address).copied()))
            .collect()
    }

    /// Has the next checkpoint store these as well.
    pub fn mark_dirty(&self, addresses: impl IntoIterator<Item = u64>) {
        let mut table = self.lock();
        table.dirty.extend(addresses);
    }

    /// All counts, for `verify`.
    pub fn counts(&self) -> HashMap<u64, Share> {
        self.lock().counts.clone()
    }
}

impl Extent {
    /// The node in it.
    fn node(self) -> crate::node::NodeRef {
        crate::node::NodeRef::new(self.page(), self.offset_units(), self.units)
    }
}
