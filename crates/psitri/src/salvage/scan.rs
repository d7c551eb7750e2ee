//! Every node that lies in the file, whether or not something refers to it: for what no tree leads to any more.
//!
//! A node is known by its checksum, which covers its own address. Dead ones look like live ones; the newest has the highest birth. Which
//! keyspace a node belongs to is not in it. But merges share what they do not change: a parent and the children that are still what
//! they were when it was written are one *family*, and one node of a family that a readable tree reaches tells whose it is.
//!
//! Memory: about 200 bytes a node.

use std::collections::HashMap;

use super::{
    file::DamagedFile,
    walk::{Named, child_bounds, summary},
};
use crate::{
    catalog::{CatalogEntry, is_keyspace},
    node::{self, Delta, Inner, Leaf, NodeRef, PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE},
    pager::SUPERBLOCK_PAGES,
};

/// Pages that are read at a time.
const READ_PAGES: u64 = 256;
/// Bytes of a header, of which the scan looks at kind, level, zero and units before it computes a checksum.
const HEADER_BYTES: usize = 24;

pub(super) struct Found {
    pub at: NodeRef,
    pub birth: u64,
    pub level: u8,
    pub is_leaf: bool,
    pub keys: u64,
    pub named: Named,
    has_parent: bool,
}

pub(super) struct Scan {
    pub nodes: Vec<Found>,
    /// References without what they say of deltas: where a node lies does not tell.
    by_ref: HashMap<NodeRef, usize>,
    /// Union-find: towards the first of the family.
    family: Vec<usize>,
}

/// A leaf of a catalog.
pub(super) struct CatalogLeaf {
    pub index: usize,
    pub birth: u64,
    pub entries: Vec<CatalogEntry>,
    pub unknown: u64,
}

impl Scan {
    /// Reads the whole file. `progress`: bytes read.
    pub fn new(file: &DamagedFile, mut progress: impl FnMut(u64)) -> Scan {
        let mut scan = Scan {
            nodes: Vec::new(),
            by_ref: HashMap::new(),
            family: Vec::new(),
        };
        let (mut page, mut unit) = (SUPERBLOCK_PAGES, 0);
        while page < file.pages() {
            let first = page;
            let count = READ_PAGES.min(file.pages() - first);
            let chunk = read_pages(file, first, count);
            while page < first + count {
                let at = (page - first) as usize * PAGE_BYTES + unit * UNIT_BYTES;
                let units = candidate(&chunk[at..], unit)
                    .map(|units| NodeRef::new(page, unit as u32, units))
                    .filter(|&at| scan.add(file, at))
                    .map_or(1, |at| at.units() as usize);
                let next = unit + units;
                page += (next / UNITS_PER_PAGE) as u64;
                unit = next % UNITS_PER_PAGE;
            }
            progress(page.min(file.pages()) * PAGE_BYTES as u64);
        }
        scan.find_families(file);
        scan
    }

    fn add(&mut self, file: &DamagedFile, at: NodeRef) -> bool {
        let Ok(bytes) = file.node(at) else {
            return false;
        };
        let (keys, named) = summary(&bytes);
        self.by_ref.insert(at, self.nodes.len());
        self.family.push(self.nodes.len());
        self.nodes.push(Found {
            at,
            birth: node::birth(&bytes),
            level: node::level(&bytes),
            is_leaf: node::is_leaf(&bytes),
            keys,
            named,
            has_parent: false,
        });
        true
    }

    fn find_families(&mut self, file: &DamagedFile) {
        for parent in 0..self.nodes.len() {
            let Found { at, is_leaf, .. } = self.nodes[parent];
            if is_leaf {
                continue;
            }
            let Ok(bytes) = file.node(at) else {
                continue;
            };
            if let Ok(delta) = Delta::open(&bytes) {
                let is_behind = |found: &Found| found.is_leaf;
                self.adopt(parent, delta.base(), is_behind);
            } else if let Ok(inner) = Inner::open(&bytes) {
                for index in 0..inner.len() {
                    let (lower, upper) = child_bounds(&inner, index);
                    let is_child = |found: &Found| {
                        let is_inside = found.named.as_ref().is_none_or(|(first, last)| {
                            lower.as_ref().is_none_or(|lower| first >= lower)
                                && upper.as_ref().is_none_or(|upper| last < upper)
                        });
                        found.level + 1 == inner.level()
                            && found.keys == inner.child_keys(index)
                            && is_inside
                    };
                    self.adopt(parent, inner.child(index), is_child);
                }
            }
        }
    }

    /// Makes one family of a node and one that it refers to, if that is what is expected there. What was written there later is younger, or is something
    /// else.
    fn adopt(&mut self, parent: usize, child: NodeRef, is_expected: impl Fn(&Found) -> bool) {
        let Some(child) = self.index_of(child) else {
            return;
        };
        let found = &self.nodes[child];
        if found.birth <= self.nodes[parent].birth && is_expected(found) {
            self.nodes[child].has_parent = true;
            let (a, b) = (self.family_of(parent), self.family_of(child));
            self.family[a.max(b)] = a.min(b);
        }
    }

    pub fn family_of(&mut self, mut index: usize) -> usize {
        while self.family[index] != index {
            self.family[index] = self.family[self.family[index]];
            index = self.family[index];
        }
        index
    }

    pub fn index_of(&self, at: NodeRef) -> Option<usize> {
        self.by_ref.get(&at.with_deltas(false)).copied()
    }

    /// For each family the node from which most of it is reached: the newest of those without a parent.
    pub fn roots(&mut self) -> HashMap<usize, usize> {
        let mut roots: HashMap<usize, usize> = HashMap::new();
        for index in 0..self.nodes.len() {
            if self.nodes[index].has_parent {
                continue;
            }
            let family = self.family_of(index);
            let age = |index: usize| (self.nodes[index].birth, self.nodes[index].level);
            let root = roots.entry(family).or_insert(index);
            if age(index) > age(*root) {
                *root = index;
            }
        }
        roots
    }

    /// The leaf as one of a catalog, if it is one: its entries can be read, and one of them at least names a root that is there and has as
    /// many keys as the entry says.
    fn catalog_leaf(&self, file: &DamagedFile, index: usize) -> Option<CatalogLeaf> {
        let found = &self.nodes[index];
        if found.level != 0 {
            return None;
        }
        let bytes = file.node(found.at).ok()?;
        let leaf = Leaf::open(&bytes).ok()?;
        let mut catalog = CatalogLeaf {
            index,
            birth: found.birth,
            entries: Vec::new(),
            unknown: 0,
        };
        let mut key = Vec::new();
        let mut is_proven = false;
        for entry in 0..leaf.len() {
            leaf.copy_key(entry, &mut key);
            if !is_keyspace(&key) {
                catalog.unknown += 1;
                continue;
            }
            let value = file.stored(leaf.value(entry))?;
            let entry = CatalogEntry::decode(&key, &value)?;
            let root = self.index_of(entry.root.node).map(|at| &self.nodes[at]);
            is_proven |=
                root.is_some_and(|root| root.keys == entry.root.keys && root.birth <= found.birth);
            catalog.entries.push(entry);
        }
        is_proven.then_some(catalog)
    }

    /// All leaves of catalogs, the newest first.
    pub fn catalogs(&self, file: &DamagedFile) -> Vec<CatalogLeaf> {
        let mut leaves: Vec<_> = (0..self.nodes.len())
            .filter_map(|index| self.catalog_leaf(file, index))
            .collect();
        leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.birth));
        leaves
    }
}

/// Length in units that a header at the start of `bytes` claims, if it may be one.
fn candidate(bytes: &[u8], unit: usize) -> Option<u32> {
    let header = bytes.get(..HEADER_BYTES)?;
    let is_header = matches!(header[4], 1..=3 | 8 | 16 | 17)
        && (header[4] < 16) == (header[5] == 0)
        && header[7] == 0;
    let units = node::units(bytes);
    let fits = unit + units as usize <= UNITS_PER_PAGE || unit == 0;
    (is_header && fits && (1..=NodeRef::UNITS_MAX).contains(&units)).then_some(units)
}

/// Pages of the file; those that cannot be read, or are not there, as zeros.
fn read_pages(file: &DamagedFile, first: u64, count: u64) -> Vec<u8> {
    let offset = first * PAGE_BYTES as u64;
    let len = (count as usize * PAGE_BYTES).min((file.len() - offset) as usize);
    let mut bytes = file.read(offset, len).unwrap_or_else(|_| {
        let pages = (0..len.div_ceil(PAGE_BYTES)).map(|page| {
            let at = page * PAGE_BYTES;
            let wanted = PAGE_BYTES.min(len - at);
            file.read(offset + at as u64, wanted)
                .unwrap_or_else(|_| vec![0; wanted])
        });
        pages.collect::<Vec<_>>().concat()
    });
    bytes.resize(count as usize * PAGE_BYTES, 0);
    bytes
}
