//! Commits that change which keyspaces there are: subtrees that come, move and go, clones, saved snapshots, and keyspaces that are dropped.
//!
//! Such a commit is that of a direct transaction over every keyspace it concerns, so that their buffers are merged and their roots stand
//! still. What it does to entries and what it does to keyspaces becomes visible at once.
//!
//! # Invariants
//! (1) Where no trees are shared, the commit is one record of the log. A clone or a saved snapshot refers to roots, which a log cannot name: it
//!     is made durable by a checkpoint before anybody sees it. So is the end of a saved snapshot.
//! (2) A root that is referred to once more is counted before its version is published.
//! (3) Handles change only when the commit cannot fail any more.
//!
//! # Failure modes
//! Any error leaves everything as it was.

use std::collections::{HashMap, HashSet};

use super::WriteTxn;
use crate::{
    Keyspace, Result,
    buffer::Kind,
    engine::{KeyspaceChanges, RootUpdate},
    error::Error,
    keyspace::{KeyspaceCore, Place},
    node::{SubtreeRef, ValuePointer},
    pager::{Changes, Sink},
    saved::{SavedKeyspace, SavedSnapshot, not_found},
    state::{Aliases, KeyspaceState},
    sync::{Arc, Ordering},
    tree::{Root, kill_tree},
};

/// Where the content of a new keyspace comes from.
pub(crate) enum Content {
    Empty,
    /// It begins as that of a keyspace of the transaction.
    CloneOf(u32),
    /// Or as that of a keyspace in a saved snapshot.
    Saved(Arc<SavedSnapshot>, u32),
}

pub(crate) struct NewKeyspace {
    pub id: u32,
    pub place: Place,
    pub content: Content,
    /// As in [`KeyspaceCore`].
    pub expiry: Option<u64>,
    pub aliases: Aliases,
}

/// What happens to keyspaces.
#[derive(Default)]
pub(crate) struct Structure {
    pub create: Vec<NewKeyspace>,
    /// Subtrees that go to another place.
    pub place: Vec<(Arc<KeyspaceCore>, Place)>,
    /// Keyspaces of the transaction that go, with their subtrees.
    pub drop: Vec<Arc<KeyspaceCore>>,
    /// Name of a snapshot to save. The transaction has all keyspaces.
    pub save: Option<String>,
    /// Name of a saved snapshot to drop.
    pub unsave: Option<String>,
}

impl Structure {
    fn is_logged(&self) -> bool {
        let is_empty = |new: &NewKeyspace| matches!(new.content, Content::Empty);
        self.save.is_none() && self.unsave.is_none() && self.create.iter().all(is_empty)
    }
}

/// How a structural commit ended, where it did not fail.
pub(crate) enum Committed {
    /// With these new keyspaces.
    Done(Vec<Keyspace>),
    /// Not at all: there are keyspaces which the transaction does not have. Begin it again.
    Outdated,
}

impl WriteTxn {
    /// Makes a subtree the value of a key.
    pub(crate) fn put_subtree(&mut self, keyspace: &Keyspace, key: &[u8], id: u32) -> Result<()> {
        let index = self.part_index(keyspace)?;
        super::check_key(key)?;
        if keyspace.core.expires() {
            let name = keyspace.core.title();
            return Err(Error::SubtreeExpires { name });
        }
        let put_in = keyspace.core.id;
        let pointer = ValuePointer::of_subtree(SubtreeRef { put_in, id }).encode();
        self.put_version(index, key, Kind::Large, &pointer)
    }

    /// Removes a key whose value is a subtree.
    pub(crate) fn remove_subtree(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let index = self.part_index(keyspace)?;
        self.put_version(index, key, Kind::Tombstone, &[])
    }

    /// Commits with the database's durability. The transaction is a direct one.
    pub(crate) fn commit_structure(mut self, structure: Structure) -> Result<Committed> {
        let result = self.try_commit_structure(&structure);
        match &result {
            Ok(Committed::Done(_)) => {
                for part in &mut self.parts {
                    part.guard.touched.clear();
                    part.guard.ends = None;
                }
            }
            _ => self.undo_to(None),
        }
        self.leave();
        result
    }

    fn try_commit_structure(&mut self, structure: &Structure) -> Result<Committed> {
        let engine = Arc::clone(&self.db.engine);
        self.keep_ops();
        self.merge_private()?;
        let private = self.private.as_mut().expect("the transaction is direct");
        let mut ops = private.ops.take().expect("a few operations are logged");
        let by_checkpoint = !structure.is_logged() && !engine.in_memory;
        if by_checkpoint {
            // Most of the flush, before others have to wait for it. If it fails, the one that counts fails as well.
            let _ = engine.pager.data_sync.sync();
        }
        let checkpointing = by_checkpoint.then(|| engine.checkpointing.lock());
        let mut tree = engine.tree.lock();
        engine.check_writable()?;
        for new in &structure.create {
            // Whoever changes names holds `tree`.
            if let Place::Named(name) = &new.place
                && engine.keyspaces.read().by_name.contains_key(&**name)
            {
                let name = name.to_string();
                return Err(Error::KeyspaceExists { name });
            }
        }
        let (slots, active) = engine.free_slots(&tree, structure.create.len())?;
        let version = engine.states.current().tree_version + 1;
        let parts: HashMap<u32, usize> = (self.parts.iter().enumerate())
            .map(|(index, part)| (part.id, index))
            .collect();
        let mut keyspaces = KeyspaceChanges::default();
        let mut changes = Changes::default();
        let prepared = (|| {
            if let Some(name) = &structure.save {
                if tree.saved.contains_key(name) {
                    let name = name.clone();
                    return Err(Error::SnapshotExists { name });
                }
                let state = engine.states.current();
                let mut all = state.keyspaces.iter().flatten();
                if !all.all(|keyspace| parts.contains_key(&keyspace.core.id)) {
                    return Ok(false);
                }
            }
            let mut sink = Sink::new(&engine.pager, version);
            if let Some(name) = &structure.unsave {
                let saved = tree.saved.get(name).ok_or_else(|| not_found(name))?;
                for keyspace in saved.keyspaces.values() {
                    kill_tree(&mut sink, keyspace.root.node)?;
                }
            }
            for core in &structure.drop {
                kill_tree(&mut sink, self.parts[parts[&core.id]].root.node)?;
                ops.drop_keyspace(core.id);
                keyspaces.dropped.push((core.slot, core.id));
            }
            changes = sink.finish()?;
            for (new, &slot) in structure.create.iter().zip(&slots) {
                let root = match &new.content {
                    Content::Empty => Root::default(),
                    Content::CloneOf(id) => self.root_before(parts[id]),
                    Content::Saved(saved, id) => {
                        // Dropped meanwhile, it has no say in what lives.
                        let now = tree.saved.get(&saved.name);
                        if !now.is_some_and(|now| Arc::ptr_eq(now, saved)) {
                            return Err(not_found(&saved.name));
                        }
                        saved.keyspaces[id].root
                    }
                };
                if let Place::Subtree { parent, key } = &new.place {
                    ops.place_subtree(new.id, *parent, key);
                }
                engine.pager.shares.refer(root, &mut changes.shares_before);
                let core =
                    KeyspaceCore::new(new.id, slot, engine.id, new.place.clone(), new.expiry);
                keyspaces.created.push(KeyspaceState {
                    core: Arc::new(core),
                    root,
                    generation_merged: active - 1,
                    csn_merged: 0,
                    aliases: new.aliases.clone(),
                    dirty: true,
                });
            }
            for (core, place) in &structure.place {
                let Place::Subtree { parent, key } = place else {
                    unreachable!("only subtrees are placed");
                };
                ops.place_subtree(core.id, *parent, key);
                keyspaces.touched.push((core.slot, core.id));
            }
            Ok(true)
        })();
        let take_back = |changes: &Changes| engine.pager.shares.undo(&changes.shares_before);
        match prepared {
            Ok(true) => {}
            Ok(false) => return Ok(Committed::Outdated),
            Err(error) => {
                take_back(&changes);
                return Err(error);
            }
        }

        let mut names = engine.keyspaces.write();
        let mut commits = engine.commits.lock();
        let csn = commits.csn_next;
        // Commits that still wait for the disk come before this one.
        let logged = if commits.waiting.is_empty() {
            Ok(())
        } else {
            engine.flush_under_lock(&mut commits)
        };
        let durability = engine.options.durability;
        let logged = logged.and_then(|()| match &mut commits.log {
            Some(log) if !by_checkpoint => {
                log.append(csn, ops.op_count(), ops.payload())?;
                engine.note_async(durability);
                commits.csn_next = csn + 1;
                if durability.waits() {
                    engine.flush_under_lock(&mut commits)?;
                }
                Ok(())
            }
            _ => Ok(()),
        });
        if let Err(error) = logged {
            take_back(&changes);
            return Err(error);
        }
        commits.csn_next = csn + 1;
        let catalog_csn = std::mem::replace(&mut tree.catalog_csn, csn);
        if let Some(name) = &structure.save {
            let saved = self.save(name, tree.saved_next, csn, &mut changes);
            tree.saved_next += 1;
            tree.saved_changed.push((Arc::clone(&saved), true));
            tree.saved.insert(name.clone(), saved);
        }
        let unsaved = (structure.unsave.as_ref()).and_then(|name| tree.saved.remove(name));
        (tree.saved_changed).extend(unsaved.iter().map(|saved| (Arc::clone(saved), false)));
        let updates = self.changed_roots(active, csn);
        let private = self.private.as_mut().expect("the transaction is direct");
        let mut all = std::mem::take(&mut private.changes);
        all.append(changes);
        if by_checkpoint {
            let published =
                engine.publish_roots_durably(&mut tree, &mut commits, &updates, &keyspaces, all);
            if let Err(error) = published {
                if let Some(name) = &structure.save {
                    let id = tree.saved.remove(name).map(|saved| saved.id);
                    tree.saved_changed.retain(|(saved, _)| Some(saved.id) != id);
                }
                if let Some(saved) = unsaved {
                    tree.saved_changed
                        .retain(|(other, exists)| *exists || other.id != saved.id);
                    tree.saved.insert(saved.name.clone(), saved);
                }
                // Nobody saw the number, and numbers have no gaps. Where it may be on the disk the engine is poisoned, and gives none.
                (commits.csn_next, tree.catalog_csn) = (csn, catalog_csn);
                return Err(error);
            }
        } else {
            engine.publish_roots(&mut tree, &updates, &keyspaces, all);
        }
        engine.visible_csn.store(csn, Ordering::Release);
        drop(commits);

        // (3)
        for core in &structure.drop {
            core.dropped.store(true, Ordering::Release);
            names.remove(core);
            tree.dropped.push(core.id);
            let state = engine.states.current();
            // The slot is free at once if the active generation has nothing in it.
            let untouched = state.active().buffer(core.slot).is_none();
            let used_in = state.active().id - u64::from(untouched);
            tree.free_slots.push((core.slot, used_in));
        }
        for (core, place) in &structure.place {
            names.take_from_parent(core);
            core.set_place(place.clone());
            names.tell_parent(core);
        }
        let mut created = Vec::new();
        if !slots.is_empty() {
            let taken: HashSet<u32> = slots.into_iter().collect();
            tree.free_slots.retain(|(free, _)| !taken.contains(free));
        }
        for keyspace in keyspaces.created {
            let core = keyspace.core;
            names.add(&core);
            created.push(Keyspace { core });
        }
        if engine.in_memory {
            // No checkpoint will ask for them.
            tree.dropped.clear();
            tree.saved_changed.clear();
            engine.pager.shares.take_dirty();
        }
        drop(names);
        drop(tree);
        drop(checkpointing);
        Ok(Committed::Done(created))
    }

    /// The root that a keyspace had when the transaction began: a subtree may be cloned to a key in itself.
    fn root_before(&self, index: usize) -> Root {
        let part = &self.parts[index];
        let keyspace = self.state().keyspace(part.slot, part.id);
        keyspace.expect("the state was pinned for it").root
    }

    /// Roots that are not those of the state which the transaction began with.
    fn changed_roots(&self, active: u64, csn: u64) -> Vec<RootUpdate> {
        let state = self.state();
        let is_changed = |part: &&super::Part| {
            state
                .keyspace(part.slot, part.id)
                .is_some_and(|keyspace| keyspace.root != part.root)
        };
        let update = |part: &super::Part| RootUpdate {
            slot: part.slot,
            id: part.id,
            root: Some(part.root),
            generation_merged: active - 1,
            generation_in_root: 0,
            csn_merged: csn,
        };
        self.parts.iter().filter(is_changed).map(update).collect()
    }

    /// Everything as of this transaction, under a name.
    fn save(&self, name: &str, id: u32, csn: u64, changes: &mut Changes) -> Arc<SavedSnapshot> {
        let state = self.state();
        let mut keyspaces = std::collections::BTreeMap::new();
        for part in &self.parts {
            (self.db.engine.pager.shares).refer(part.root, &mut changes.shares_before);
            let aliases = state.keyspace(part.slot, part.id);
            let saved = SavedKeyspace {
                root: part.root,
                place: part.core.place(),
                expiry: part.core.expiry,
                aliases: aliases.and_then(|keyspace| keyspace.aliases.clone()),
            };
            keyspaces.insert(part.id, saved);
        }
        let now = self.db.engine.options.clock.now();
        Arc::new(SavedSnapshot::new(id, name, csn, now, keyspaces))
    }
}
