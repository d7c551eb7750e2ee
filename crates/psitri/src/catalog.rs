//! The catalog: a tree from keyspace id to root and name, written by checkpoints.
//!
//! What entries there are, and their bytes, is in `docs/format.md`.

use std::collections::BTreeMap;

use crate::{
    Result,
    error::Error,
    expiry::{read_keyspace_expiry, write_keyspace_expiry},
    keyspace::Place,
    layers::read_stored,
    node::{NodeRef, SubtreeRef},
    pager::{DATA_FILE, Pager, Share, Sink},
    saved::{SavedKeyspace, SavedSnapshot},
    state::Aliases,
    sync::Arc,
    tree::{self, Change, ChangeStream, Root, Terms, TreeCursor},
};

/// Root, keys, merged CSN, expiry (8 bytes more where entries expire), parent, number of aliases.
const BYTES_MIN: usize = 33;
/// Behind the expiry.
const ALIASES_AT: usize = 8;
const ALIAS_BYTES: usize = 12;
/// CSN and time of a saved snapshot, before its name.
const SAVED_BYTES: usize = 16;
/// Parent of a keyspace that is no subtree.
const PARENT_NONE: u32 = 0;

/// Whether an entry of the catalog is that of a keyspace, by its key; others are counts of shared nodes and saved snapshots.
pub(crate) fn is_keyspace(key: &[u8]) -> bool {
    !key.starts_with(&SHARES_KEY)
}

/// Whether an entry of the catalog is that of a saved snapshot; the keyspaces in it have entries of their own.
pub(crate) fn is_saved_snapshot(key: &[u8]) -> bool {
    let id = key.strip_prefix(&SHARES_KEY);
    id.is_some_and(|id| id.len() == size_of::<u32>())
}

/// The root of the counts of shared nodes, if that is what an entry of the catalog has.
pub(crate) fn shares_root(key: &[u8], value: &[u8]) -> Option<Root> {
    (key == SHARES_KEY).then(|| decode_root(value)).flatten()
}

/// A keyspace as the catalog stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CatalogEntry {
    pub id: u32,
    pub root: Root,
    pub csn_merged: u64,
    pub place: Place,
    /// As in [`KeyspaceCore`](crate::keyspace::KeyspaceCore).
    pub expiry: Option<u64>,
    pub aliases: Aliases,
}

impl CatalogEntry {
    /// A keyspace without entries.
    pub fn empty(id: u32, place: Place, expiry: Option<u64>) -> CatalogEntry {
        CatalogEntry {
            id,
            root: Root::default(),
            csn_merged: 0,
            place,
            expiry,
            aliases: None,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (parent, name): (u32, &[u8]) = match &self.place {
            Place::Named(name) => (PARENT_NONE, name.as_bytes()),
            Place::Subtree { parent, key } => (*parent, key),
        };
        let aliases = self.aliases.iter().flat_map(|aliases| aliases.iter());
        let count = aliases.clone().count();
        let mut out = Vec::with_capacity(BYTES_MIN + 8 + count * ALIAS_BYTES + name.len());
        out.extend_from_slice(&encode_root(self.root));
        out.extend_from_slice(&self.csn_merged.to_le_bytes());
        write_keyspace_expiry(&mut out, self.expiry);
        out.extend_from_slice(&parent.to_le_bytes());
        out.extend_from_slice(&(count as u32).to_le_bytes());
        for (from, to) in aliases {
            out.extend_from_slice(&from.put_in.to_le_bytes());
            out.extend_from_slice(&from.id.to_le_bytes());
            out.extend_from_slice(&to.to_le_bytes());
        }
        out.extend_from_slice(name);
        out
    }

    pub fn decode(id: &[u8], value: &[u8]) -> Option<CatalogEntry> {
        let id = u32::from_be_bytes(id.try_into().ok()?);
        // The next one has an id, too.
        if id == u32::MAX {
            return None;
        }
        let csn_merged = u64::from_le_bytes(value.get(16..24)?.try_into().ok()?);
        let (expiry, rest) = read_keyspace_expiry(value.get(24..)?)?;
        let number = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let (parent, count) = (number(0)?, number(4)? as usize);
        let name_at = ALIASES_AT.checked_add(count.checked_mul(ALIAS_BYTES)?)?;
        let name = rest.get(name_at..)?;
        let place = match parent {
            PARENT_NONE => {
                Place::Named(str::from_utf8(name).ok().filter(|n| !n.is_empty())?.into())
            }
            parent => Place::Subtree {
                parent,
                key: name.into(),
            },
        };
        let alias = |index: usize| {
            let at = ALIASES_AT + index * ALIAS_BYTES;
            let from = SubtreeRef {
                put_in: number(at)?,
                id: number(at + 4)?,
            };
            Some((from, number(at + 8)?))
        };
        let aliases = (0..count).map(alias).collect::<Option<BTreeMap<_, _>>>()?;
        Some(CatalogEntry {
            id,
            root: decode_root(value)?,
            csn_merged,
            place,
            expiry,
            aliases: (count > 0).then(|| Arc::new(aliases)),
        })
    }
}

/// Key of the entry with the counts of shared nodes: no keyspace has the id 0.
const SHARES_KEY: [u8; 4] = [0; 4];
/// Low bit of a count: it is that of a value.
const SHARE_OF_VALUE: u32 = 1;

/// Changes of a tree that is small enough to have them in memory.
#[derive(Debug, Default)]
struct Changes {
    /// Sorted by key, each key once.
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    at: usize,
}

impl ChangeStream for Changes {
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

    fn len_max(&self) -> u64 {
        self.changes.len() as u64
    }
}

/// What changes in the catalog.
#[derive(Debug, Default)]
pub(crate) struct CatalogUpdate {
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl CatalogUpdate {
    pub fn keyspace(&mut self, entry: &CatalogEntry) {
        let key = entry.id.to_be_bytes().to_vec();
        self.changes.insert(key, Some(entry.encode()));
    }

    pub fn no_keyspace(&mut self, id: u32) {
        self.changes.insert(id.to_be_bytes().to_vec(), None);
    }

    /// A saved snapshot that came or went.
    pub fn saved(&mut self, saved: &SavedSnapshot, exists: bool) {
        let header = saved_key(saved.id, None);
        let value = exists.then(|| {
            let mut out = Vec::with_capacity(SAVED_BYTES + saved.name.len());
            out.extend_from_slice(&saved.csn.to_le_bytes());
            out.extend_from_slice(&saved.saved_ms.to_le_bytes());
            out.extend_from_slice(saved.name.as_bytes());
            out
        });
        self.changes.insert(header, value);
        for (&id, keyspace) in &saved.keyspaces {
            let entry = CatalogEntry {
                id,
                root: keyspace.root,
                csn_merged: saved.csn,
                place: keyspace.place.clone(),
                expiry: keyspace.expiry,
                aliases: keyspace.aliases.clone(),
            };
            let value = exists.then(|| entry.encode());
            self.changes.insert(saved_key(saved.id, Some(id)), value);
        }
    }

    /// The tree with the counts of shared nodes.
    pub fn shares(&mut self, root: Root) {
        let entry = (!root.node.is_null()).then(|| encode_root(root).to_vec());
        self.changes.insert(SHARES_KEY.to_vec(), entry);
    }

    /// Merges the changes into the catalog.
    pub fn write(self, sink: &mut Sink<'_>, catalog: Root) -> Result<Root> {
        let changes = self.changes.into_iter().collect();
        tree::merge(
            sink,
            catalog,
            &[],
            &mut Changes { changes, at: 0 },
            Terms::default(),
        )
    }
}

/// Key of a saved snapshot, or of a keyspace in it: behind that of the counts, before all keyspaces.
fn saved_key(snapshot: u32, keyspace: Option<u32>) -> Vec<u8> {
    let mut key = SHARES_KEY.to_vec();
    key.extend_from_slice(&snapshot.to_be_bytes());
    key.extend(keyspace.into_iter().flat_map(u32::to_be_bytes));
    key
}

fn encode_root(root: Root) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&root.node.to_bits().to_le_bytes());
    out[8..].copy_from_slice(&root.keys.to_le_bytes());
    out
}

fn decode_root(bytes: &[u8]) -> Option<Root> {
    let field = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Root {
        node: NodeRef::from_bits(field(0)?),
        keys: field(8)?,
    })
}

/// Writes changed counts of shared nodes: in ascending order of addresses.
pub(crate) fn update_shares(
    sink: &mut Sink<'_>,
    root: Root,
    counts: &[(u64, Option<Share>)],
) -> Result<Root> {
    let changes = counts
        .iter()
        .map(|&(address, share)| {
            let value = share.map(|share| {
                let count = share.more << 1 | if share.is_value { SHARE_OF_VALUE } else { 0 };
                count.to_le_bytes().to_vec()
            });
            (address.to_be_bytes().to_vec(), value)
        })
        .collect();
    tree::merge(
        sink,
        root,
        &[],
        &mut Changes { changes, at: 0 },
        Terms::default(),
    )
}

/// Everything in the catalog.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub keyspaces: Vec<CatalogEntry>,
    pub shares: Root,
    pub counts: Vec<(u64, Share)>,
    pub saved: Vec<SavedSnapshot>,
}

impl Catalog {
    /// Takes an entry up. `None` if it cannot be read.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let Some(saved) = key.strip_prefix(&SHARES_KEY) else {
            self.keyspaces.push(CatalogEntry::decode(key, value)?);
            return Some(());
        };
        let number = |at: usize| Some(u32::from_be_bytes(saved.get(at..at + 4)?.try_into().ok()?));
        match saved.len() {
            0 => self.shares = decode_root(value)?,
            4 => {
                let word =
                    |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
                let name = str::from_utf8(value.get(SAVED_BYTES..)?).ok()?;
                let saved =
                    SavedSnapshot::new(number(0)?, name, word(0)?, word(8)?, BTreeMap::new());
                self.saved.push(saved);
            }
            8 => {
                let snapshot = self.saved.last_mut().filter(|s| Some(s.id) == number(0))?;
                let entry = CatalogEntry::decode(&saved[4..], value)?;
                let keyspace = SavedKeyspace {
                    root: entry.root,
                    place: entry.place,
                    expiry: entry.expiry,
                    aliases: entry.aliases,
                };
                snapshot.keyspaces.insert(entry.id, keyspace);
            }
            _ => return None,
        }
        Some(())
    }
}

/// Reads all entries, and the counts of shared nodes.
pub(crate) fn read_catalog(pager: &Pager, root: Root) -> Result<Catalog> {
    let mut catalog = Catalog::default();
    let unreadable = |what: &str| Error::corrupted(DATA_FILE, root.node.byte_offset(), what);
    for_each(pager, root, |key, value| catalog.add(key, value))?
        .ok_or_else(|| unreadable("an entry of the catalog cannot be read"))?;
    for_each(pager, catalog.shares, |key, value| {
        let address = u64::from_be_bytes(key.try_into().ok()?);
        let count = u32::from_le_bytes(value.try_into().ok()?);
        let share = Share {
            more: count >> 1,
            is_value: count & SHARE_OF_VALUE != 0,
        };
        (share.more > 0).then(|| catalog.counts.push((address, share)))
    })?
    .ok_or_else(|| unreadable("a count of shared nodes cannot be read"))?;
    Ok(catalog)
}

/// Visits the entries of a tree in order, until `visit` gives `None`.
fn for_each(
    pager: &Pager,
    root: Root,
    mut visit: impl FnMut(&[u8], &[u8]) -> Option<()>,
) -> Result<Option<()>> {
    let mut cursor = TreeCursor::new(pager, root);
    let mut found = cursor.seek_ge(&[])?;
    let mut last: Option<Vec<u8>> = None;
    while found {
        // A forged node may have a child many times, and so on below: that would have no end.
        if last.as_deref().is_some_and(|last| cursor.key() <= last) {
            return Ok(None);
        }
        let value = read_stored(pager, cursor.value())?;
        if visit(cursor.key(), value).is_none() {
            return Ok(None);
        }
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(cursor.key());
        found = cursor.next()?;
    }
    Ok(Some(()))
}
