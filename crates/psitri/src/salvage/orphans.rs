//! Steps 3 and 4: what no tree leads to.

use std::collections::HashMap;

use super::{
    CATALOG, Job, LostRange, SalvagedFrom, SalvagedKeyspace, TREES_MAX, for_each_entry, walk::Walk,
};
use crate::{
    Keyspace, Result,
    backup::ingest,
    expiry::EXPIRY_BYTES,
    node::{Delta, NodeRef, Stored},
    tree::Root,
};

/// What no tree leads to.
pub(super) struct Orphans {
    /// Whose each family is, as far as a tree that was walked tells, or what is in it.
    families: HashMap<usize, usize>,
    /// Leaves by whose they are, if that is known; without those of catalogs.
    leaves: HashMap<Option<usize>, Vec<usize>>,
}

/// Whether something with keys from `first` to `last` has one in one of the ranges, which are disjoint and in order.
fn is_lost(lost: &[LostRange], first: &[u8], last: &[u8]) -> bool {
    let ends_before = |range: &LostRange| range.to.as_ref().is_some_and(|to| &to[..] <= first);
    let next = lost.partition_point(ends_before);
    lost.get(next).is_some_and(|range| &range.from[..] <= last)
}

impl Job<'_, '_> {
    /// To be called when all trees were read that something leads to.
    pub(super) fn orphans(&mut self) -> Orphans {
        let mut families = self.families();
        let file = self.file;
        self.scan();
        let scan = self.scan.as_mut().expect("just made");
        for leaf in scan.catalogs(file) {
            families
                .entry(scan.family_of(leaf.index))
                .or_insert(CATALOG);
        }
        let mut leaves: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
        for leaf in 0..scan.nodes.len() {
            if scan.nodes[leaf].level > 0 || self.owners.contains_key(&scan.nodes[leaf].at) {
                continue;
            }
            let owner = families.get(&scan.family_of(leaf)).copied();
            if owner != Some(CATALOG) {
                leaves.entry(owner).or_default().push(leaf);
            }
        }
        Orphans { families, leaves }
    }

    /// Step 3.
    pub(super) fn fill_lost_ranges(&mut self, id: u32, orphans: &Orphans) -> Result<()> {
        let index = self.ids[&id].index;
        if self.report.keyspaces[index].lost.is_empty() {
            return Ok(());
        }
        let lost = std::mem::take(&mut self.report.keyspaces[index].lost);
        let mut leaves = Vec::new();
        let scan = self.scan.as_ref().expect("there are orphans");
        for owner in [None, Some(index)] {
            for &leaf in orphans.leaves.get(&owner).into_iter().flatten() {
                let found = &scan.nodes[leaf];
                let named = found.named.as_ref();
                if named.is_some_and(|(first, last)| is_lost(&lost, first, last)) {
                    leaves.push((found.birth, found.at));
                }
            }
        }
        // Of equal keys the last one counts.
        leaves.sort();
        let name = format!("possibly-old/{}", self.report.keyspaces[index].name);
        let expiry = self
            .ids
            .get(&id)
            .and_then(|written| written.keyspace.core.expiry);
        // A leaf without a family may be of any keyspace: what cannot be an entry of this one is none.
        let value_bytes_min = if expiry.is_some() { EXPIRY_BYTES } else { 0 };
        if let Some((keyspace, entries)) =
            self.write_leaves(&leaves, &name, expiry, |key, value| {
                value.len() >= value_bytes_min && is_lost(&lost, key, key)
            })?
        {
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
        is_wanted: impl Fn(&[u8], &[u8]) -> bool,
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
                if let Some(value) = value.ok().filter(|value| is_wanted(key, value)) {
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
    pub(super) fn write_trees_without_name(&mut self, orphans: &Orphans) -> Result<()> {
        let mut trees = Vec::new();
        let mut leaves = Vec::new();
        let scan = self.scan.as_mut().expect("there are orphans");
        for (family, root) in scan.roots() {
            let found = &scan.nodes[root];
            if orphans.families.contains_key(&family) {
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
            self.write_leaves(&leaves, "salvaged-leaves", None, |_, _| true)?
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
