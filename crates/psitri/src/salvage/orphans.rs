//! Steps 3 and 4: what no tree leads to.

use std::collections::HashMap;

use super::{Job, SalvagedFrom, SalvagedKeyspace, TREES_MAX, for_each_entry, walk::Walk};
use crate::{
    Keyspace, Result,
    backup::ingest,
    node::{Delta, NodeRef, Stored},
    tree::Root,
};

impl Job<'_, '_> {
    /// Step 3.
    pub(super) fn fill_lost_ranges(&mut self, id: u32) -> Result<()> {
        let index = self.ids[&id].index;
        if self.report.keyspaces[index].lost.is_empty() {
            return Ok(());
        }
        let families = self.families();
        let lost = std::mem::take(&mut self.report.keyspaces[index].lost);
        let mut leaves = Vec::new();
        self.scan();
        let scan = self.scan.as_mut().expect("just made");
        for leaf in 0..scan.nodes.len() {
            let is_free = !self.owners.contains_key(&scan.nodes[leaf].at)
                && families
                    .get(&scan.family_of(leaf))
                    .is_none_or(|owner| *owner == index);
            if is_free && (lost.iter()).any(|r| scan.overlaps(leaf, &r.from, r.to.as_deref())) {
                leaves.push((scan.nodes[leaf].birth, scan.nodes[leaf].at));
            }
        }
        // Of equal keys the last one counts.
        leaves.sort();
        let name = format!("possibly-old/{}", self.report.keyspaces[index].name);
        let expiry = self
            .ids
            .get(&id)
            .and_then(|written| written.keyspace.core.expiry);
        if let Some((keyspace, entries)) = self.write_leaves(&leaves, &name, expiry, |key| {
            lost.iter().any(|range| {
                key >= range.from.as_slice()
                    && range.to.as_ref().is_none_or(|to| key < to.as_slice())
            })
        })? {
            let told = &mut self.report.keyspaces[index];
            told.possibly_old = entries;
            told.possibly_old_in = Some(keyspace.name());
            if let Some(written) = self.ids.get_mut(&id) {
                written.possibly_old = Some(keyspace);
            }
        }
        self.report.keyspaces[index].lost = lost;
        Ok(())
    }

    /// Writes what leaves hold and can be read, in their order. None if that is nothing.
    fn write_leaves(
        &mut self,
        leaves: &[(u64, NodeRef)],
        name: &str,
        expiry: Option<u64>,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<(Keyspace, u64)>> {
        let mut entries = leaves.iter().flat_map(|&(_, at)| {
            let mut entries = Vec::new();
            let bytes = self.file.node(at).unwrap_or_default();
            for_each_entry(&bytes, |key, stored| {
                let value = match stored {
                    Stored::Inline(value) => Ok(value.to_vec()),
                    Stored::External(pointer) if pointer.subtree().is_some() => return,
                    Stored::External(pointer) => self.file.value(&pointer),
                };
                if let Some(value) = value.ok().filter(|_| is_wanted(key)) {
                    entries.push((key.to_vec(), value));
                }
            });
            entries
        });
        let Some(first) = entries.next() else {
            return Ok(None);
        };
        let keyspace = self.create_keyspace(name, expiry)?;
        ingest(
            self.target,
            &keyspace,
            std::iter::once(first).chain(entries),
        )?;
        let count = self.target.snapshot().count(&keyspace, ..)?;
        Ok(Some((keyspace, count)))
    }

    /// Whose each family is, as far as a tree that was walked tells.
    fn families(&mut self) -> HashMap<usize, usize> {
        let owners = std::mem::take(&mut self.owners);
        let scan = self.scan();
        let mut families = HashMap::new();
        for (&at, &owner) in &owners {
            if let Some(index) = scan.index_of(at) {
                families.insert(scan.family_of(index), owner);
            }
        }
        self.owners = owners;
        families
    }

    /// Step 4.
    pub(super) fn write_trees_without_name(&mut self) -> Result<()> {
        let families = self.families();
        let mut trees = Vec::new();
        let mut leaves = Vec::new();
        self.scan();
        let scan = self.scan.as_mut().expect("just made");
        for (family, root) in scan.roots() {
            let found = &scan.nodes[root];
            if families.contains_key(&family) {
                continue;
            }
            if found.level == 0 {
                leaves.push((found.birth, found.at));
                // A delta comes after the leaf behind it, and so has the last word.
                let bytes = self.file.node(found.at).unwrap_or_default();
                let base = Delta::open(&bytes).ok().map(|delta| delta.base());
                let leaf = base.and_then(|base| scan.index_of(base));
                leaves.extend(leaf.map(|leaf| (scan.nodes[leaf].birth, scan.nodes[leaf].at)));
            } else {
                let root = Root {
                    node: found.at,
                    keys: found.keys,
                };
                trees.push((root, found.birth));
            }
        }
        trees.sort_by_key(|(root, _)| (std::cmp::Reverse(root.keys), root.node));
        self.report.trees_left_out = trees.len().saturating_sub(TREES_MAX) as u64;
        trees.truncate(TREES_MAX);
        let all = trees.iter().map(|(root, _)| root.keys).sum();
        let mut done = 0;
        for (number, (root, version)) in trees.into_iter().enumerate() {
            let keyspace = self.create_keyspace(&format!("salvaged-{}", number + 1), None)?;
            let index = self.report.keyspaces.len();
            let walk = Walk::new(self.file, root, version);
            let told = self.copy(walk, &keyspace, index, &mut done, all)?;
            self.report.keyspaces.push(told);
        }
        leaves.sort();
        if let Some((keyspace, keys)) =
            self.write_leaves(&leaves, "salvaged-leaves", None, |_| true)?
        {
            self.report.keyspaces.push(SalvagedKeyspace {
                name: keyspace.name(),
                id: None,
                from: SalvagedFrom::FoundTree,
                keys,
                lost: Vec::new(),
                values_lost: Vec::new(),
                possibly_old_in: None,
                possibly_old: 0,
                was_subtree: false,
            });
        }
        Ok(())
    }
}
