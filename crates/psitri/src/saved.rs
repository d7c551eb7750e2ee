//! Saved snapshots: everything as of one commit, under a name, until it is dropped.
//!
//! A saved snapshot refers to the roots of all keyspaces like a clone of each. What changes afterwards is written beside it; what does not
//! change is there once.
//!
//! # Invariants
//! (1) A saved snapshot is of one commit: it is taken with the write locks of all keyspaces held, and their buffers merged.
//! (2) It is durable before its name can be used.
//!
//! # Failure modes
//! Those of a checkpoint. A snapshot that could not be saved is not there, one that could not be dropped still is.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Database, Keyspace, Result, Snapshot,
    error::Error,
    keyspace::{Place, check_name, check_snapshot_name},
    state::Aliases,
    subtrees::clone_of,
    sync::Arc,
    tree::Root,
    txn::{Committed, Content, Structure},
};

/// A keyspace in a saved snapshot.
#[derive(Debug, Clone)]
pub(crate) struct SavedKeyspace {
    pub root: Root,
    pub place: Place,
    /// As in [`KeyspaceCore`](crate::keyspace::KeyspaceCore).
    pub expiry: Option<u64>,
    pub aliases: Aliases,
}

#[derive(Debug)]
pub(crate) struct SavedSnapshot {
    pub id: u32,
    pub name: String,
    pub csn: u64,
    /// Milliseconds since 1970.
    pub saved_ms: u64,
    pub keyspaces: BTreeMap<u32, SavedKeyspace>,
}

impl SavedSnapshot {
    pub fn new(
        id: u32,
        name: &str,
        csn: u64,
        saved_ms: u64,
        keyspaces: BTreeMap<u32, SavedKeyspace>,
    ) -> SavedSnapshot {
        SavedSnapshot {
            id,
            name: name.to_owned(),
            csn,
            saved_ms,
            keyspaces,
        }
    }

    /// The keyspace of this name, as it was called then.
    pub fn named(&self, name: &str) -> Option<u32> {
        let is_it =
            |keyspace: &SavedKeyspace| matches!(&keyspace.place, Place::Named(n) if **n == *name);
        let found = self.keyspaces.iter().find(|(_, keyspace)| is_it(keyspace));
        found.map(|(&id, _)| id)
    }
}

/// What is known about a saved snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedSnapshotInfo {
    /// Its name.
    pub name: String,
    /// The newest commit in it.
    pub csn: u64,
    /// When it was saved, by [`Options::clock`](crate::Options::clock): entries that had expired then are not read in it.
    pub saved: SystemTime,
    /// Keyspaces in it, subtrees included.
    pub keyspaces: u64,
    /// Keys in them, those that had expired but were not dropped included.
    pub keys: u64,
}

impl Database {
    /// Saves everything as of now under a name: a snapshot that survives closing the database. It costs no copy; what changes later is
    /// written beside it, and what it holds takes space until it is [dropped](Database::drop_snapshot).
    ///
    /// Waits for the transactions that are open, and merges what is buffered. When this returns, the snapshot is durable. Names are 1 to 255
    /// bytes of UTF-8.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let accounts = db.create_keyspace("accounts")?;
    /// let set = |value: &[u8]| {
    ///     let mut txn = db.begin(&[&accounts])?;
    ///     txn.upsert(&accounts, b"alice", value)?;
    ///     txn.commit()
    /// };
    /// set(b"100")?;
    /// db.save_snapshot("before the audit")?;
    /// set(b"90")?;
    /// let before = db.saved_snapshot("before the audit")?;
    /// assert_eq!(before.get(&accounts, b"alice")?, Some(&b"100"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::SnapshotName`], and those of a checkpoint.
    pub fn save_snapshot(&self, name: &str) -> Result<()> {
        check_snapshot_name(name)?;
        let engine = &self.core.engine;
        engine.check_writable()?;
        // What is buffered now need not be merged while everybody waits.
        engine.drain_all()?;
        loop {
            let all: Vec<Keyspace> = {
                let names = engine.keyspaces.read();
                let cores = names.by_id.values().map(Arc::clone);
                cores.map(|core| Keyspace { core }).collect()
            };
            let txn = match self.begin_direct(&all.iter().collect::<Vec<_>>()) {
                // Dropped meanwhile.
                Err(Error::KeyspaceGone { .. }) => continue,
                other => other?,
            };
            let structure = Structure {
                save: Some(name.to_owned()),
                ..Structure::default()
            };
            if let Committed::Done(_) = txn.commit_structure(structure)? {
                return Ok(());
            }
        }
    }

    /// Opens a saved snapshot. Handles of keyspaces work as with other snapshots; those that were dropped since are found by
    /// [`Snapshot::keyspace`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.create_keyspace("old")?;
    /// db.save_snapshot("monday")?;
    /// db.drop_keyspace("old")?;
    /// let monday = db.saved_snapshot("monday")?;
    /// assert_eq!(monday.keyspaces(), ["old"]);
    /// assert_eq!(monday.count(&monday.keyspace("old")?, ..)?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`].
    pub fn saved_snapshot(&self, name: &str) -> Result<Snapshot> {
        // Under the lock, so that the pin comes before the version that drops it.
        let tree = self.core.engine.tree.lock();
        let saved = tree.saved.get(name).ok_or_else(|| not_found(name))?;
        Ok(Snapshot::of_saved(self, Arc::clone(saved)))
    }

    /// All saved snapshots, by name.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.save_snapshot("monday")?;
    /// let saved = db.saved_snapshots();
    /// assert_eq!((saved.len(), saved[0].name.as_str()), (1, "monday"));
    /// # Ok(()) }
    /// ```
    pub fn saved_snapshots(&self) -> Vec<SavedSnapshotInfo> {
        let tree = self.core.engine.tree.lock();
        let info = |saved: &Arc<SavedSnapshot>| SavedSnapshotInfo {
            name: saved.name.clone(),
            csn: saved.csn,
            saved: UNIX_EPOCH + Duration::from_millis(saved.saved_ms),
            keyspaces: saved.keyspaces.len() as u64,
            keys: saved
                .keyspaces
                .values()
                .map(|keyspace| keyspace.root.keys)
                .sum(),
        };
        tree.saved.values().map(info).collect()
    }

    /// Drops a saved snapshot: durably, when this returns. What only it held is free again, as soon as nobody reads it any more.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.save_snapshot("monday")?;
    /// db.drop_snapshot("monday")?;
    /// assert!(db.saved_snapshot("monday").is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`], and those of a checkpoint.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        let structure = Structure {
            unsave: Some(name.to_owned()),
            ..Structure::default()
        };
        let txn = self.begin_direct(&[])?;
        txn.commit_structure(structure).map(drop)
    }

    /// Makes a new keyspace of one in a saved snapshot, its subtrees included. It costs no copy. The keyspace that the snapshot was taken of,
    /// if it is still there, stays as it is.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let accounts = db.create_keyspace("accounts")?;
    /// # let mut txn = db.begin(&[&accounts])?;
    /// # txn.upsert(&accounts, b"alice", b"100")?;
    /// # txn.commit()?;
    /// db.save_snapshot("monday")?;
    /// db.drop_keyspace("accounts")?; // by mistake
    /// let accounts = db.restore_keyspace("monday", "accounts", "accounts")?;
    /// assert_eq!(db.get(&accounts, b"alice")?.as_deref(), Some(&b"100"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`], [`Error::KeyspaceNotFound`], [`Error::KeyspaceExists`], and those of a checkpoint.
    pub fn restore_keyspace(&self, snapshot: &str, name: &str, target: &str) -> Result<Keyspace> {
        check_name(target)?;
        let engine = &self.core.engine;
        engine.check_writable()?;
        let saved = {
            let tree = engine.tree.lock();
            Arc::clone(
                tree.saved
                    .get(snapshot)
                    .ok_or_else(|| not_found(snapshot))?,
            )
        };
        let top = saved.named(name).ok_or_else(|| Error::KeyspaceNotFound {
            name: name.to_owned(),
        })?;
        // Each keyspace before its subtrees.
        let mut family = vec![(top, None)];
        let mut at = 0;
        while let Some(&(parent, _)) = family.get(at) {
            for (&id, keyspace) in &saved.keyspaces {
                match &keyspace.place {
                    Place::Subtree { parent: of, key } if *of == parent => {
                        family.push((id, Some((parent, Arc::clone(key)))));
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        let create = clone_of(
            engine,
            &family,
            Place::Named(Arc::from(target)),
            |id| saved.keyspaces[&id].aliases.clone(),
            |id| saved.keyspaces[&id].expiry,
            |id| Content::Saved(Arc::clone(&saved), id),
        );
        let txn = self.begin_direct(&[])?;
        let structure = Structure {
            create,
            ..Structure::default()
        };
        match txn.commit_structure(structure)? {
            Committed::Done(created) => {
                Ok(created.into_iter().next().expect("the first is the top"))
            }
            Committed::Outdated => unreachable!("only saving a snapshot needs all keyspaces"),
        }
    }
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::SnapshotNotFound {
        name: name.to_owned(),
    }
}
