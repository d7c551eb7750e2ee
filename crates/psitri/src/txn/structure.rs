//! Commits that change which keyspaces there are: subtrees that come, move and go, clones, saved snapshots, and keyspaces that are dropped.
//!
//! Such a commit is that of a direct transaction over every keyspace it concerns, so that their buffers are merged and their roots stand
//! still. What it does to entries and what it does to keyspaces becomes visible at once.
//!
//! Its steps: under `tree`, prepare (check, count references); with the locks of names and commits as well, log (give the number) and publish;
//! without that of commits, hand out (handles and names).
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
    engine::{Commits, Engine, TreeState},
    error::Error,
    keyspace::{KeyspaceCore, Names, Place},
    node::{SubtreeRef, ValuePointer},
    pager::{Changes, Sink},
    publication::{KeyspaceChanges, RootUpdate},
    saved::{SavedKeyspace, SavedSnapshot, not_found},
    state::{Aliases, KeyspaceState},
    sync::{Arc, MutexGuard, Ordering},
    tree::{Root, kill_tree},
    wal::ops::OpsBuilder,
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
    /// Name by which the first of these is to go: if it has another one by now, the transaction is outdated.
    pub drop_name: Option<String>,
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
    /// Not at all: there are keyspaces which the transaction does not have, or another one has the name. Begin it again.
    Outdated,
}

/// A structural commit on its way.
struct Prepared {
    /// Of the new keyspaces.
    slots: Vec<u32>,
    /// The active generation: of those before it, nothing counts for the keyspaces of the transaction.
    active: u64,
    keyspaces: KeyspaceChanges,
    /// Trees given up, and counts of references as they were before.
    changes: Changes,
    /// The time of a snapshot that is saved. Read before anything is changed: the clock may be the user's, and panic.
    saved_ms: u64,
}

/// Saved snapshots that came and went with a commit.
struct SavedChanges {
    came: Option<Arc<SavedSnapshot>>,
    went: Option<Arc<SavedSnapshot>>,
}

impl SavedChanges {
    /// Leaves the saved snapshots as they were.
    fn take_back(self, tree: &mut TreeState) {
        if let Some(saved) = self.came {
            tree.saved.remove(&saved.name);
            (tree.saved_changed).retain(|(other, _)| other.id != saved.id);
        }
        if let Some(saved) = self.went {
            (tree.saved_changed).retain(|(other, exists)| *exists || other.id != saved.id);
            tree.saved.insert(saved.name.clone(), saved);
        }
    }
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
        self.parts[index].put_version(&self.db.engine.pool, key, Kind::Large, &pointer)
    }

    /// Removes a key whose value is a subtree.
    pub(crate) fn remove_subtree(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let index = self.part_index(keyspace)?;
        self.parts[index].put_version(&self.db.engine.pool, key, Kind::Tombstone, &[])
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
        let Some(mut prepared) = self.prepare(structure, &tree, &mut ops)? else {
            return Ok(Committed::Outdated);
        };
        let mut commits = engine.commits.lock();
        let record = (!by_checkpoint).then_some(&ops);
        let csn = log_structure(&engine, &mut commits, record).inspect_err(|_| {
            engine.pager.shares.undo(&prepared.changes.shares_before);
        })?;
        self.publish_structure(
            structure,
            &mut prepared,
            &mut tree,
            &mut commits,
            csn,
            by_checkpoint,
        )?;
        engine.visible_csn.store(csn, Ordering::Release);
        drop(commits);
        // Not before: who opens a keyspace does not wait for a checkpoint.
        let mut names = engine.keyspaces.write();
        let created = hand_out(&engine, structure, prepared, &mut tree, &mut names);
        drop(names);
        drop(tree);
        drop(checkpointing);
        Ok(Committed::Done(created))
    }

    /// Checks what can be wrong with the changes, and works out what they come to: `ops` gets them, and the counts of what is referred to
    /// once more, or once less, are as they will be (2). On an error, and on `None`, for an outdated transaction, they are as they were.
    fn prepare(
        &self,
        structure: &Structure,
        tree: &MutexGuard<'_, TreeState>,
        ops: &mut OpsBuilder,
    ) -> Result<Option<Prepared>> {
        let engine = &self.db.engine;
        let saved_ms = match structure.save {
            Some(_) => engine.options.clock.now(),
            None => 0,
        };
        check_names(engine, structure)?;
        // Names change under the lock of the trees, too.
        if let Some(name) = &structure.drop_name {
            let named = engine
                .keyspaces
                .read()
                .by_name
                .get(name)
                .map(|core| core.id);
            if named != Some(structure.drop[0].id) {
                return Ok(None);
            }
        }
        let (slots, active) = engine.free_slots(tree, structure.create.len())?;
        if let Some(name) = &structure.save {
            if tree.saved.contains_key(name) {
                let name = name.clone();
                return Err(Error::SnapshotExists { name });
            }
            if !self.has_all_keyspaces() {
                return Ok(None);
            }
        }
        let roots = (structure.create.iter())
            .map(|new| self.first_root(new, tree))
            .collect::<Result<Vec<Root>>>()?;
        let mut changes = self.give_up(structure, tree)?;

        // From here on nothing fails.
        let mut keyspaces = KeyspaceChanges::default();
        for core in &structure.drop {
            ops.drop_keyspace(core.id);
            keyspaces.dropped.push((core.slot, core.id));
        }
        let mut created: HashMap<u32, Arc<KeyspaceCore>> = HashMap::new();
        for ((new, &slot), root) in structure.create.iter().zip(&slots).zip(roots) {
            if let Place::Subtree { parent, key } = &new.place {
                ops.place_subtree(new.id, *parent, key);
                // Who writes to a new parent, as soon as it is published, has to know.
                if let Some(parent) = created.get(parent) {
                    parent.adopt(key, new.id);
                }
            }
            engine.pager.shares.refer(root, &mut changes.shares_before);
            let place = new.place.clone();
            let core = Arc::new(KeyspaceCore::new(
                new.id, slot, engine.id, place, new.expiry,
            ));
            created.insert(new.id, Arc::clone(&core));
            keyspaces.created.push(KeyspaceState {
                aliases: new.aliases.clone(),
                ..KeyspaceState::new(core, root, active - 1)
            });
        }
        for (core, place) in &structure.place {
            let Place::Subtree { parent, key } = place else {
                unreachable!("only subtrees are placed");
            };
            ops.place_subtree(core.id, *parent, key);
            keyspaces.touched.push((core.slot, core.id));
        }
        Ok(Some(Prepared {
            slots,
            active,
            keyspaces,
            changes,
            saved_ms,
        }))
    }

    fn has_all_keyspaces(&self) -> bool {
        let state = self.db.engine.states.current();
        let mut all = state.keyspaces.iter().flatten();
        all.all(|keyspace| self.index_of(keyspace.core.id).is_some())
    }

    /// Index of the part of a keyspace.
    fn index_of(&self, id: u32) -> Option<usize> {
        // Locks were taken in the order of ids.
        (self.parts.binary_search_by_key(&id, |part| part.id)).ok()
    }

    /// What a new keyspace begins with.
    fn first_root(&self, new: &NewKeyspace, tree: &MutexGuard<'_, TreeState>) -> Result<Root> {
        match &new.content {
            Content::Empty => Ok(Root::default()),
            Content::CloneOf(id) => {
                let index = self.index_of(*id);
                Ok(self.root_before(index.expect("the transaction has it")))
            }
            Content::Saved(saved, id) => {
                // Dropped meanwhile, it has no say in what lives.
                let now = tree.saved.get(&saved.name);
                if !now.is_some_and(|now| Arc::ptr_eq(now, saved)) {
                    return Err(not_found(&saved.name));
                }
                Ok(saved.keyspaces[id].root)
            }
        }
    }

    /// Gives up the trees of keyspaces and of a saved snapshot that go.
    fn give_up(&self, structure: &Structure, tree: &MutexGuard<'_, TreeState>) -> Result<Changes> {
        let engine = &self.db.engine;
        let version = engine.states.current().tree_version + 1;
        // If it is not finished it takes back what it counted.
        let mut sink = Sink::new(&engine.pager, version);
        if let Some(name) = &structure.unsave {
            let saved = tree.saved.get(name).ok_or_else(|| not_found(name))?;
            for keyspace in saved.keyspaces.values() {
                kill_tree(&mut sink, keyspace.root.node)?;
            }
        }
        for core in &structure.drop {
            let index = self.index_of(core.id).expect("the transaction has it");
            kill_tree(&mut sink, self.parts[index].root.node)?;
        }
        sink.finish()
    }

    /// Publishes roots, keyspaces and saved snapshots as of commit `csn`; durable before anybody sees them if it is `by_checkpoint` (1). On
    /// an error all of that is as it was.
    fn publish_structure(
        &mut self,
        structure: &Structure,
        prepared: &mut Prepared,
        tree: &mut MutexGuard<'_, TreeState>,
        commits: &mut MutexGuard<'_, Commits>,
        csn: u64,
        by_checkpoint: bool,
    ) -> Result<()> {
        let engine = Arc::clone(&self.db.engine);
        let updates = self.changed_roots(prepared.active, csn);
        let catalog_csn = std::mem::replace(&mut tree.catalog_csn, csn);
        let saved = self.change_saved(structure, tree, csn, prepared);
        let private = self.private.as_mut().expect("the transaction is direct");
        let mut changes = std::mem::take(&mut private.changes);
        changes.append(std::mem::take(&mut prepared.changes));
        prepared.keyspaces.commit = csn;
        let keyspaces = &prepared.keyspaces;
        if !by_checkpoint {
            engine.publish_roots(tree, &updates, keyspaces, changes);
            tree.reach.extend(commits.reach());
            return Ok(());
        }
        let published = engine.publish_roots_durably(tree, commits, &updates, keyspaces, changes);
        if published.is_ok() {
            tree.reach.extend(commits.reach());
        } else {
            saved.take_back(tree);
            // Nobody saw the number, and numbers have no gaps. Where it may be on the disk the engine is poisoned, and gives none.
            (commits.csn_next, tree.catalog_csn) = (csn, catalog_csn);
        }
        published
    }

    /// Enters and removes saved snapshots. References of the one that comes are counted in the changes (2).
    fn change_saved(
        &self,
        structure: &Structure,
        tree: &mut TreeState,
        csn: u64,
        prepared: &mut Prepared,
    ) -> SavedChanges {
        let came = structure.save.as_ref().map(|name| {
            let saved = self.save(name, tree.saved_next, csn, prepared);
            tree.saved_next += 1;
            tree.saved_changed.push((Arc::clone(&saved), true));
            tree.saved.insert(name.clone(), Arc::clone(&saved));
            saved
        });
        let went = (structure.unsave.as_ref()).and_then(|name| tree.saved.remove(name));
        (tree.saved_changed).extend(went.iter().map(|saved| (Arc::clone(saved), false)));
        SavedChanges { came, went }
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
            sliced: None,
        };
        self.parts.iter().filter(is_changed).map(update).collect()
    }

    /// Everything as of this transaction, under a name.
    fn save(&self, name: &str, id: u32, csn: u64, prepared: &mut Prepared) -> Arc<SavedSnapshot> {
        let state = self.state();
        let mut keyspaces = std::collections::BTreeMap::new();
        for part in &self.parts {
            let shares_before = &mut prepared.changes.shares_before;
            self.db.engine.pager.shares.refer(part.root, shares_before);
            let aliases = state.keyspace(part.slot, part.id);
            let saved = SavedKeyspace {
                root: part.root,
                place: part.core().place(),
                expiry: part.core().expiry,
                aliases: aliases.and_then(|keyspace| keyspace.aliases.clone()),
            };
            keyspaces.insert(part.id, saved);
        }
        let saved_ms = prepared.saved_ms;
        Arc::new(SavedSnapshot::new(id, name, csn, saved_ms, keyspaces))
    }
}

fn check_names(engine: &Engine, structure: &Structure) -> Result<()> {
    // Whoever changes names holds `tree`.
    let names = engine.keyspaces.read();
    for new in &structure.create {
        if let Place::Named(name) = &new.place
            && names.by_name.contains_key(&**name)
        {
            let name = name.to_string();
            return Err(Error::KeyspaceExists { name });
        }
    }
    Ok(())
}

/// Gives the commit its number, with a record in the log if there is one.
fn log_structure(
    engine: &Engine,
    commits: &mut MutexGuard<'_, Commits>,
    record: Option<&OpsBuilder>,
) -> Result<u64> {
    let csn = commits.csn_next;
    // Commits that still wait for the disk come before this one.
    if !commits.waiting.is_empty() {
        engine.flush_under_lock(commits)?;
    }
    let durability = engine.options.durability;
    if let (Some(ops), Some(log)) = (record, &mut commits.log) {
        log.append(csn, ops.op_count(), ops.payload())
            .map_err(|error| engine.log_failed(error))?;
        engine.note_async(durability);
        commits.csn_next = csn + 1;
        if durability.waits() {
            engine.flush_under_lock(commits)?;
        }
    }
    commits.csn_next = csn + 1;
    Ok(csn)
}

/// (3): lets handles and names follow what was published. Returns handles to the new keyspaces.
fn hand_out(
    engine: &Engine,
    structure: &Structure,
    prepared: Prepared,
    tree: &mut TreeState,
    names: &mut Names,
) -> Vec<Keyspace> {
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
    if !prepared.slots.is_empty() {
        let taken: HashSet<u32> = prepared.slots.into_iter().collect();
        tree.free_slots.retain(|(free, _)| !taken.contains(free));
    }
    let mut created = Vec::new();
    for keyspace in prepared.keyspaces.created {
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
    created
}
