//! Step 1: which keyspaces there are, and where their trees begin.

use super::{CATALOG, Job, SalvagedFrom, Source, file::Superblocks, for_each_entry, walk::Walk};
use crate::{
    catalog::{CatalogEntry, is_keyspace, is_saved_snapshot, shares_root},
    tree::Root,
};

impl Job<'_, '_> {
    /// Step 1. Returns the keyspaces, and how many there should be, if that is known.
    pub(super) fn read_catalog(&mut self, superblocks: &Superblocks) -> (Vec<Source>, Option<u64>) {
        let damage = &mut self.report.damage;
        let mut sources: Vec<Source> = Vec::new();
        let mut lost = Vec::new();
        let mut expected = None;
        let mut others = 0;
        let mut version = 0;
        if superblocks.is_one_damaged || superblocks.newest.is_none() {
            damage.push("a superblock is damaged".to_owned());
        }
        if let Some(superblock) = &superblocks.newest {
            self.report.checkpoint = Some(superblock.generation);
            version = superblock.tree_version;
            expected = Some(superblock.catalog_keys);
            if let Some(what) = self.file.page_map_damage(superblock) {
                damage.push(format!("page map: {what}; it is not needed"));
            }
            let catalog = Root {
                node: superblock.catalog,
                keys: superblock.catalog_keys,
            };
            let mut shares = None;
            let mut walk = Walk::new(self.file, catalog, version);
            while let Some(bytes) = walk.next_leaf() {
                for_each_entry(&bytes, |key, stored| {
                    if !is_keyspace(key) {
                        others += 1;
                        self.report.snapshots_left_out += u64::from(is_saved_snapshot(key));
                        let value = self.file.stored(stored);
                        shares = shares.or(value.and_then(|value| shares_root(key, &value)));
                        return;
                    }
                    let value = self.file.stored(stored);
                    let entry = value.and_then(|value| CatalogEntry::decode(key, &value));
                    match entry {
                        Some(entry) => sources.push(Source {
                            entry,
                            from: SalvagedFrom::Checkpoint,
                            version,
                        }),
                        None => self.report.entries_unknown += 1,
                    }
                });
            }
            self.owners
                .extend(walk.reached.iter().map(|&at| (at, CATALOG)));
            // Its leaves are no entries of any keyspace.
            if let Some(root) = shares {
                let mut walk = Walk::new(self.file, root, version);
                while walk.next_leaf().is_some() {}
                self.owners
                    .extend(walk.reached.iter().map(|&at| (at, CATALOG)));
            }
            for range in &walk.lost {
                damage.push(format!(
                    "catalog: {} entries at offset {}: {}",
                    range.keys, range.offset, range.what
                ));
            }
            lost = walk.lost;
        }
        if superblocks.newest.is_none() || superblocks.is_one_damaged || !lost.is_empty() {
            let found = self.find_catalogs();
            let newer = found.iter().any(|(_, birth)| *birth > version);
            if newer || superblocks.newest.is_none() {
                expected = self.keyspaces_of_found_catalog();
            }
            for (entry, birth) in found {
                let known = sources
                    .iter_mut()
                    .find(|source| source.entry.id == entry.id);
                let is_lost = lost.iter().any(|range| {
                    let id = entry.id.to_be_bytes();
                    id[..] >= range.from[..] && range.to.as_ref().is_none_or(|to| id[..] < to[..])
                });
                let source = Source {
                    entry,
                    from: SalvagedFrom::FoundCatalog,
                    version: birth,
                };
                match known {
                    Some(known) if birth > known.version => *known = source,
                    None if birth > version || is_lost => sources.push(source),
                    _ => {}
                }
            }
        }
        // Saved snapshots, and counts of what they share.
        (
            sources,
            expected.map(|expected| expected.saturating_sub(others)),
        )
    }

    /// Entries of catalogs that no superblock leads to, with the versions of their leaves: of each keyspace the newest, and none that a newer
    /// leaf would have if the keyspace still existed.
    fn find_catalogs(&mut self) -> Vec<(CatalogEntry, u64)> {
        let file = self.file;
        let leaves = self.scan().catalogs(file);
        let mut newer: Vec<(u32, u32)> = Vec::new();
        let mut found: Vec<(CatalogEntry, u64)> = Vec::new();
        for leaf in leaves {
            let at = self.scan().nodes[leaf.index].at;
            let is_read = self.owners.insert(at, CATALOG).is_some();
            let Some((first, last)) = leaf.entries.first().zip(leaf.entries.last()) else {
                continue;
            };
            let span = (first.id, last.id);
            for entry in leaf.entries {
                let is_old = newer
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&entry.id));
                if !is_old && !is_read {
                    found.push((entry, leaf.birth));
                }
            }
            newer.push(span);
        }
        found
    }

    /// How many keyspaces the newest catalog that was found has.
    fn keyspaces_of_found_catalog(&mut self) -> Option<u64> {
        let owners = std::mem::take(&mut self.owners);
        let scan = self.scan();
        let roots = scan.roots();
        let mut newest: Option<(u64, u64)> = None;
        for (&at, _) in owners.iter().filter(|(_, owner)| **owner == CATALOG) {
            if let Some(index) = scan.index_of(at)
                && let Some(&root) = roots.get(&scan.family_of(index))
            {
                let found = (scan.nodes[root].birth, scan.nodes[root].keys);
                newest = newest.max(Some(found));
            }
        }
        self.owners = owners;
        newest.map(|(_, keys)| keys)
    }
}
