//! Reading backups: a full one and the incremental ones after it, as one.
//!
//! # Invariants
//! Those of `mod.rs`; here (2), (3) and (4).

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{
    BackupInfo, BackupKind, NAMES, PUT, REMOVED, manifest,
    place::{self, Values},
};
use crate::{
    Entry, Keyspace, KeyspaceOptions, Options, Result, Snapshot, error::Error,
    expiry::read_keyspace_expiry,
};

/// A full backup and the incremental ones after it.
pub struct Chain {
    links: Vec<Link>,
}

struct Link {
    info: BackupInfo,
    /// Of the backup's own database, which it keeps open.
    snapshot: Snapshot,
    /// The backup's keyspace for each one of the database (3), and the options of that one.
    keyspaces: HashMap<place::Path, (Keyspace, KeyspaceOptions)>,
}

impl Chain {
    /// Opens the backups, and checks that each is based on the one before (2).
    pub fn open(paths: &[PathBuf]) -> Result<Chain> {
        let mut links: Vec<Link> = Vec::new();
        for path in paths {
            let info = manifest::read(path)?;
            let refuse = |what: &str| Error::Backup {
                path: path.clone(),
                what: what.to_owned(),
            };
            match (info.kind, links.last()) {
                (BackupKind::Full, None) => {}
                (BackupKind::Full, Some(_)) => {
                    return Err(refuse("a full backup begins a chain; it follows no other"));
                }
                (BackupKind::Incremental { .. }, None) => {
                    return Err(refuse(
                        "it is incremental: name what it is based on before it",
                    ));
                }
                (BackupKind::Incremental { base }, Some(before)) if base != before.info.id => {
                    return Err(refuse("it is not based on the backup named before it"));
                }
                (BackupKind::Incremental { .. }, Some(_)) => {}
            }
            links.push(Link::open(path, info)?);
        }
        Ok(Chain { links })
    }

    pub fn newest(&self) -> Option<&BackupInfo> {
        self.links.last().map(|link| &link.info)
    }

    /// Entries in all of the backups.
    pub fn entries_stored(&self) -> u64 {
        self.links.iter().map(|link| link.info.entries).sum()
    }

    /// Keyspaces of the database when the newest backup was made.
    pub fn keyspaces(&self) -> Vec<(place::Path, KeyspaceOptions)> {
        let newest = self.links.last();
        let described = newest.into_iter().flat_map(|link| {
            let keyspaces = link.keyspaces.iter();
            keyspaces.map(|(name, &(_, options))| (name.clone(), options))
        });
        let mut keyspaces: Vec<_> = described.collect();
        keyspaces.sort_by(|(a, _), (b, _)| a.cmp(b));
        keyspaces
    }

    /// What a keyspace had when the newest backup was made (3).
    pub fn entries(&self, path: &place::Path) -> Result<Layered<'_>> {
        let mut layers = Vec::new();
        for link in self.links.iter().rev() {
            let Some((keyspace, _)) = link.keyspaces.get(path) else {
                break;
            };
            let mut cursor = Values::all(&link.snapshot, keyspace)?;
            let found = cursor.first()?;
            layers.push(Layer {
                cursor,
                found,
                is_tagged: link.info.kind != BackupKind::Full,
            });
        }
        Ok(Layered { layers })
    }
}

impl Link {
    fn open(path: &Path, info: BackupInfo) -> Result<Link> {
        let db = Options::new().open_read_only(path)?;
        let snapshot = db.snapshot();
        let mut keyspaces = HashMap::new();
        if info.kind == BackupKind::Full {
            for (place, keyspace) in place::all_of(&db.core.engine.keyspaces.read()) {
                let options = keyspace.options();
                keyspaces.insert(place, (keyspace, options));
            }
        } else {
            let names = db.open_keyspace(NAMES)?;
            let mut cursor = snapshot.cursor(&names)?;
            let mut found = cursor.seek_first()?;
            while found {
                let number = cursor.key().try_into().map(u32::from_be_bytes);
                let described = read_keyspace_expiry(cursor.value())
                    .and_then(|(expiry, place)| Some((expiry, place::Path::decode(place)?)));
                let (Ok(number), Some((expiry, of))) = (number, described) else {
                    return Err(Error::Backup {
                        path: path.to_owned(),
                        what: "its list of keyspaces cannot be read".to_owned(),
                    });
                };
                let keyspace = db.open_keyspace(&number.to_string())?;
                let title = of.title();
                let known = (keyspace, KeyspaceOptions::from_stored(expiry));
                if keyspaces.insert(of, known).is_some() {
                    return Err(Error::Backup {
                        path: path.to_owned(),
                        what: format!("it has two keyspaces called {title}"),
                    });
                }
                found = cursor.next()?;
            }
        }
        Ok(Link {
            info,
            snapshot,
            keyspaces,
        })
    }
}

/// One backup's part of a keyspace.
struct Layer<'c> {
    cursor: Values<'c>,
    found: bool,
    is_tagged: bool,
}

/// The entries of a keyspace in a chain, newest layer first.
pub struct Layered<'c> {
    layers: Vec<Layer<'c>>,
}

impl Layered<'_> {
    pub fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            let standing = self.layers.iter().filter(|layer| layer.found);
            let Some(key) = standing.map(|layer| layer.cursor.key()).min() else {
                return Ok(None);
            };
            let key = key.to_vec();
            let mut value = None;
            for layer in &mut self.layers {
                if !layer.found || layer.cursor.key() != key {
                    continue;
                }
                if value.is_none() {
                    let stored = layer.cursor.value();
                    value = Some(match (layer.is_tagged, stored.split_first()) {
                        (false, _) => Some(stored.to_vec()),
                        (true, Some((&PUT, value))) => Some(value.to_vec()),
                        (true, Some((&REMOVED, []))) => None,
                        (true, _) => {
                            let what = "an entry of an incremental backup cannot be read";
                            return Err(Error::corrupted("backup", 0, what));
                        }
                    });
                }
                layer.found = layer.cursor.next()?;
            }
            if let Some(Some(value)) = value {
                return Ok(Some((key, value)));
            }
        }
    }
}
