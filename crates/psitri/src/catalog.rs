//! The catalog: a tree from keyspace id to root and name, written by checkpoints.
//!
//! An entry's key is the id as a big-endian u32; its value is root u64, keys u64, merged CSN u64, all little-endian, and the
//! name in UTF-8.

use crate::{
    Result,
    error::Error,
    layers::read_stored,
    node::NodeRef,
    pager::{DATA_FILE, Pager, Sink},
    tree::{self, Change, ChangeStream, Root, TreeCursor},
};

const FIXED_BYTES: usize = 24;

/// A keyspace as the catalog stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CatalogEntry {
    pub id: u32,
    pub root: Root,
    pub csn_merged: u64,
    pub name: String,
}

impl CatalogEntry {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + self.name.len());
        out.extend_from_slice(&self.root.node.to_bits().to_le_bytes());
        out.extend_from_slice(&self.root.keys.to_le_bytes());
        out.extend_from_slice(&self.csn_merged.to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    pub fn decode(key: &[u8], value: &[u8]) -> Option<CatalogEntry> {
        let id = u32::from_be_bytes(key.try_into().ok()?);
        let field = |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
        Some(CatalogEntry {
            id,
            root: Root {
                node: NodeRef::from_bits(field(0)?),
                keys: field(8)?,
            },
            csn_merged: field(16)?,
            name: String::from_utf8(value.get(FIXED_BYTES..)?.to_vec()).ok()?,
        })
    }
}

/// Entries that changed, and ids that go: sorted by id.
struct CatalogChanges {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    at: usize,
}

impl ChangeStream for CatalogChanges {
    fn key(&self) -> Option<&[u8]> {
        self.changes.get(self.at).map(|(key, _)| key.as_slice())
    }

    fn change(&self) -> Change<'_> {
        match &self.changes[self.at].1 {
            Some(value) => Change::Put(value),
            None => Change::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

/// Writes changed entries and removes dropped ids.
pub(crate) fn update_catalog(
    sink: &mut Sink<'_>,
    catalog: Root,
    entries: &[CatalogEntry],
    dropped: &[u32],
) -> Result<Root> {
    let mut changes: Vec<_> = entries
        .iter()
        .map(|entry| (entry.id.to_be_bytes().to_vec(), Some(entry.encode())))
        .chain(dropped.iter().map(|id| (id.to_be_bytes().to_vec(), None)))
        .collect();
    changes.sort();
    changes.dedup_by(|a, b| a.0 == b.0);
    tree::merge(sink, catalog, &[], &mut CatalogChanges { changes, at: 0 })
}

/// Reads all entries.
pub(crate) fn read_catalog(pager: &Pager, catalog: Root) -> Result<Vec<CatalogEntry>> {
    let mut entries = Vec::new();
    let mut cursor = TreeCursor::new(pager, catalog);
    let mut found = cursor.seek_ge(&[])?;
    while found {
        let value = read_stored(pager, cursor.value())?;
        let entry = CatalogEntry::decode(cursor.key(), value).ok_or_else(|| {
            Error::corrupted(
                DATA_FILE,
                catalog.node.byte_offset(),
                "an entry of the catalog cannot be read",
            )
        })?;
        entries.push(entry);
        found = cursor.next()?;
    }
    Ok(entries)
}
