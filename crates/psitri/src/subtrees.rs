//! Subtrees: keyspaces that are values of keys in other keyspaces. And clones of keyspaces, with theirs.
//!
//! A subtree is a keyspace like any other, but for its name: it is found at a key of its parent, and goes where that key goes. Snapshots see
//! parent and subtree as of the same commit, transactions write to both. In the parent's tree the value is a reference with the subtree's
//! number, and that of the keyspace that it was written to. Entries that a clone has from the original refer to the subtrees of that one: the
//! clone has a list of which of its own they mean.
//!
//! # Thread safety
//! Where a subtree belongs changes under the write locks of its parents and of itself.
//!
//! # Invariants
//! (1) The keys whose values are subtrees are those in `KeyspaceCore::subtrees`. Nothing else writes to them.
//! (2) Following parents ends at a keyspace with a name.

use std::collections::{BTreeMap, HashMap};

use crate::{
    Database, Keyspace, Result, Snapshot, WriteTxn,
    engine::Engine,
    error::Error,
    keyspace::{KeyspaceCore, Names, Place, check_name},
    node::SubtreeRef,
    state::Aliases,
    sync::{Arc, Ordering},
    txn::{Committed, Content, NewKeyspace, Structure},
};

/// A keyspace to be cloned: its id, and for a subtree that goes with its parent, where in that one it is.
pub(crate) type Member = (u32, Option<(u32, Arc<[u8]>)>);

impl Database {
    /// Makes the value of a key a subtree: a keyspace of its own, empty, that belongs to the key. It is written to like any other, in
    /// transactions together with its parent or alone, and may have subtrees itself.
    ///
    /// Reading the key gives an empty value; [`Database::subtree`] and [`Snapshot::subtree`] open the subtree. The key cannot be written to
    /// or removed, alone or in a range, before the subtree is moved or deleted. Each subtree counts as one of the 65,536 keyspaces that there
    /// may be. Entries of the subtree do not expire; the parent must be a keyspace whose entries do not, either. Waits for the transaction that is open on the parent, and merges what is buffered for it.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let users = db.create_keyspace("users")?;
    /// let inbox = db.create_subtree(&users, b"alice/inbox")?;
    /// let mut txn = db.begin(&[&users, &inbox])?;
    /// txn.upsert(&inbox, b"1", b"hello")?;
    /// txn.upsert(&users, b"alice/unread", b"1")?;
    /// txn.commit()?;
    /// let inbox = db.subtree(&users, b"alice/inbox")?.unwrap();
    /// assert_eq!(db.get(&inbox, b"1")?.as_deref(), Some(&b"hello"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyExists`], [`Error::SubtreeExpires`], [`Error::TooManyKeyspaces`], and those of a commit.
    pub fn create_subtree(&self, parent: &Keyspace, key: &[u8]) -> Result<Keyspace> {
        let mut txn = self.begin_direct(&[parent])?;
        check_absent(&txn, parent, key)?;
        let id = self.core.engine.new_keyspace_id();
        txn.put_subtree(parent, key, id)?;
        let create = vec![NewKeyspace {
            id,
            place: place_at(parent, key),
            content: Content::Empty,
            expiry: None,
            aliases: None,
        }];
        let structure = Structure {
            create,
            ..Structure::default()
        };
        commit_one(txn, structure)
    }

    /// The subtree at a key; `None` if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let users = db.create_keyspace("users")?;
    /// db.create_subtree(&users, b"alice")?;
    /// assert!(db.subtree(&users, b"alice")?.is_some());
    /// assert!(db.subtree(&users, b"bob")?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn subtree(&self, parent: &Keyspace, key: &[u8]) -> Result<Option<Keyspace>> {
        self.snapshot().subtree(parent, key)
    }

    /// Takes the subtree at a key, with all it holds, to another key: of the same keyspace, or of another one. Handles stay valid. It costs
    /// no copy.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let (open, done) = (db.create_keyspace("open")?, db.create_keyspace("done")?);
    /// db.create_subtree(&open, b"ticket 1")?;
    /// db.move_subtree(&open, b"ticket 1", &done, b"2026/1")?;
    /// assert!(db.subtree(&open, b"ticket 1")?.is_none());
    /// assert!(db.subtree(&done, b"2026/1")?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSubtree`], [`Error::KeyExists`], [`Error::SubtreeExpires`], [`Error::SubtreeCycle`], and those of a commit.
    pub fn move_subtree(
        &self,
        from: &Keyspace,
        key: &[u8],
        to: &Keyspace,
        new_key: &[u8],
    ) -> Result<()> {
        let Some((mut txn, family)) = self.begin_with_family(&[from, to], from, key)? else {
            return Err(no_subtree(key));
        };
        if family.iter().any(|member| member.id == to.core.id) {
            return Err(Error::SubtreeCycle {
                key: key.escape_ascii().to_string(),
            });
        }
        check_absent(&txn, to, new_key)?;
        let subtree = Arc::clone(&family[0]);
        txn.remove_subtree(from, key)?;
        txn.put_subtree(to, new_key, subtree.id)?;
        let structure = Structure {
            place: vec![(subtree, place_at(to, new_key))],
            ..Structure::default()
        };
        txn.commit_structure(structure).map(drop)
    }

    /// Removes the subtree at a key with all it holds. Says whether there was one. Snapshots taken before go on reading it; other uses of its
    /// handles fail with [`Error::KeyspaceGone`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let users = db.create_keyspace("users")?;
    /// db.create_subtree(&users, b"alice")?;
    /// assert!(db.delete_subtree(&users, b"alice")?);
    /// assert!(!db.delete_subtree(&users, b"alice")?);
    /// assert_eq!(db.get(&users, b"alice")?, None);
    /// # Ok(()) }
    /// ```
    pub fn delete_subtree(&self, parent: &Keyspace, key: &[u8]) -> Result<bool> {
        let Some((mut txn, family)) = self.begin_with_family(&[parent], parent, key)? else {
            return Ok(false);
        };
        txn.remove_subtree(parent, key)?;
        let structure = Structure {
            drop: family,
            ..Structure::default()
        };
        txn.commit_structure(structure)?;
        Ok(true)
    }

    /// Makes a copy of the subtree at a key, its own subtrees included, at another key. The two share what neither has changed since: it costs
    /// no copy of entries, whatever the size.
    ///
    /// The content of the subtree is merged before, and the copy is durable when this returns.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let docs = db.create_keyspace("docs")?;
    /// let draft = db.create_subtree(&docs, b"draft")?;
    /// let mut txn = db.begin(&[&draft])?;
    /// txn.upsert(&draft, b"title", b"one")?;
    /// txn.commit()?;
    /// let copy = db.clone_subtree(&docs, b"draft", &docs, b"version 1")?;
    /// let mut txn = db.begin(&[&draft])?;
    /// txn.upsert(&draft, b"title", b"two")?;
    /// txn.commit()?;
    /// assert_eq!(db.get(&copy, b"title")?.as_deref(), Some(&b"one"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSubtree`], [`Error::KeyExists`], [`Error::SubtreeExpires`], [`Error::TooManyKeyspaces`], and those of a checkpoint.
    pub fn clone_subtree(
        &self,
        from: &Keyspace,
        key: &[u8],
        to: &Keyspace,
        new_key: &[u8],
    ) -> Result<Keyspace> {
        let Some((mut txn, family)) = self.begin_with_family(&[from, to], from, key)? else {
            return Err(no_subtree(key));
        };
        check_absent(&txn, to, new_key)?;
        let create = self.clone_family(&family, place_at(to, new_key));
        txn.put_subtree(to, new_key, create[0].id)?;
        let structure = Structure {
            create,
            ..Structure::default()
        };
        commit_one(txn, structure)
    }

    /// Makes a copy of keyspace `source`, its subtrees included, under a new name. The two share what neither has changed since: it costs no
    /// copy of entries, whatever the size.
    ///
    /// Waits for the transaction that is open on the source, and merges what is buffered for it. The copy is durable when this returns.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("accounts")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # txn.upsert(&ks, b"alice", b"100")?;
    /// # txn.commit()?;
    /// let copy = db.clone_keyspace("accounts", "what if")?;
    /// let mut txn = db.begin(&[&copy])?;
    /// txn.remove(&copy, b"alice")?;
    /// txn.commit()?;
    /// assert!(db.get(&ks, b"alice")?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyspaceNotFound`], [`Error::KeyspaceExists`], [`Error::TooManyKeyspaces`], and those of a checkpoint.
    pub fn clone_keyspace(&self, source: &str, target: &str) -> Result<Keyspace> {
        check_name(target)?;
        let find = |names: &Names| names.by_name.get(source).map(Arc::clone);
        let not_found = || Error::KeyspaceNotFound {
            name: source.to_owned(),
        };
        let begun = self.begin_with(&[], find)?;
        let (txn, family) = begun.ok_or_else(not_found)?;
        let create = self.clone_family(&family, Place::Named(Arc::from(target)));
        let structure = Structure {
            create,
            ..Structure::default()
        };
        commit_one(txn, structure)
    }

    /// Removes a keyspace with its subtrees: the one that has the name when that counts, and not one that had it before this waited for a lock.
    pub(crate) fn drop_family(&self, name: &str) -> Result<()> {
        loop {
            // That it is not there is found here, without a lock.
            self.open_keyspace(name)?;
            let find = |names: &Names| names.by_name.get(name).map(Arc::clone);
            let Some((txn, family)) = self.begin_with(&[], find)? else {
                continue;
            };
            let structure = Structure {
                drop: family,
                drop_name: Some(name.to_owned()),
                ..Structure::default()
            };
            if let Committed::Done(_) = txn.commit_structure(structure)? {
                return Ok(());
            }
        }
    }

    fn begin_with_family(
        &self,
        keyspaces: &[&Keyspace],
        parent: &Keyspace,
        key: &[u8],
    ) -> Result<Option<(WriteTxn, Vec<Arc<KeyspaceCore>>)>> {
        let find = |names: &Names| {
            let id = *parent.core.subtrees.lock().get(key)?;
            names.by_id.get(&id).map(Arc::clone)
        };
        self.begin_with(keyspaces, find)
    }

    /// Begins a direct transaction over some keyspaces, one that `find` gives, and all subtrees of that one, which come with it: each
    /// before its own. `None` if there is no such keyspace.
    fn begin_with(
        &self,
        keyspaces: &[&Keyspace],
        find: impl Fn(&Names) -> Option<Arc<KeyspaceCore>>,
    ) -> Result<Option<(WriteTxn, Vec<Arc<KeyspaceCore>>)>> {
        let engine = &self.core.engine;
        let family = || {
            let names = engine.keyspaces.read();
            find(&names).map(|top| family_of(&names, top))
        };
        // Snapshots show what a commit created before names do; it holds this lock until they do.
        drop(engine.tree.lock());
        let mut seen = family();
        loop {
            let mut all: Vec<Keyspace> =
                keyspaces.iter().map(|&keyspace| keyspace.clone()).collect();
            let members = seen.iter().flatten().map(Arc::clone);
            all.extend(members.map(|core| Keyspace { core }));
            all.sort_unstable_by_key(|keyspace| keyspace.core.id);
            all.dedup_by_key(|keyspace| keyspace.core.id);
            let begun = self.begin_direct(&all.iter().collect::<Vec<_>>());
            // It may have changed before the locks were held.
            let now = family();
            let ids = |family: &Option<Vec<Arc<KeyspaceCore>>>| -> Vec<u32> {
                family.iter().flatten().map(|core| core.id).collect()
            };
            if ids(&now) == ids(&seen) {
                let txn = begun?;
                return Ok(now.map(|family| (txn, family)));
            }
            match begun {
                Err(error @ Error::KeyspaceGone { .. })
                    if (keyspaces.iter()).any(|k| k.core.dropped.load(Ordering::Acquire)) =>
                {
                    return Err(error);
                }
                Ok(_) | Err(Error::KeyspaceGone { .. }) => seen = now,
                Err(error) => return Err(error),
            }
        }
    }

    fn clone_family(&self, family: &[Arc<KeyspaceCore>], place: Place) -> Vec<NewKeyspace> {
        let engine = &self.core.engine;
        let state = engine.states.current();
        let member = |core: &Arc<KeyspaceCore>| match core.place() {
            Place::Subtree { parent, key } => (core.id, Some((parent, key))),
            Place::Named(_) => (core.id, None),
        };
        let members: Vec<Member> = family.iter().map(member).collect();
        let slots: HashMap<u32, u32> = family.iter().map(|core| (core.id, core.slot)).collect();
        let aliases = |id: u32| {
            let keyspace = state.keyspace(slots[&id], id);
            keyspace.and_then(|keyspace| keyspace.aliases.clone())
        };
        let expiries: HashMap<u32, Option<u64>> =
            family.iter().map(|core| (core.id, core.expiry)).collect();
        let expiry = |id: u32| expiries[&id];
        clone_of(engine, &members, place, aliases, expiry, Content::CloneOf)
    }
}

impl Snapshot {
    /// The subtree at a key, as of the snapshot; `None` if there was none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let users = db.create_keyspace("users")?;
    /// let alice = db.create_subtree(&users, b"alice")?;
    /// let mut txn = db.begin(&[&alice])?;
    /// txn.upsert(&alice, b"age", b"30")?;
    /// txn.commit()?;
    /// let before = db.snapshot();
    /// db.delete_subtree(&users, b"alice")?;
    /// let alice = before.subtree(&users, b"alice")?.unwrap();
    /// assert_eq!(before.get(&alice, b"age")?, Some(&b"30"[..]));
    /// # Ok(()) }
    /// ```
    pub fn subtree(&self, parent: &Keyspace, key: &[u8]) -> Result<Option<Keyspace>> {
        let Some(named) = self.view(parent)?.subtree(key)? else {
            return Ok(None);
        };
        let aliases = self.aliases(parent);
        let id = aliases.and_then(|aliases| aliases.get(&named).copied());
        self.keyspace_by_id(id.unwrap_or(named.id)).map(Some)
    }
}

impl Engine {
    /// A number for a new keyspace. It is not used again, whatever becomes of it.
    pub fn new_keyspace_id(&self) -> u32 {
        let mut tree = self.tree.lock();
        let id = tree.keyspace_next;
        tree.keyspace_next += 1;
        id
    }
}

/// New keyspaces with the content of a family, of which `place` is to be the first one's. Each comes before its subtrees in `members`.
pub(crate) fn clone_of(
    engine: &Engine,
    members: &[Member],
    place: Place,
    aliases_of: impl Fn(u32) -> Aliases,
    expiry_of: impl Fn(u32) -> Option<u64>,
    content: impl Fn(u32) -> Content,
) -> Vec<NewKeyspace> {
    let new_ids: HashMap<u32, u32> = members
        .iter()
        .map(|&(id, _)| (id, engine.new_keyspace_id()))
        .collect();
    let mut first = Some(place);
    members
        .iter()
        .map(|(id, at)| {
            let place = first.take().unwrap_or_else(|| {
                let (parent, key) = at.clone().expect("all but the first are subtrees");
                Place::Subtree {
                    parent: new_ids[&parent],
                    key,
                }
            });
            // Entries that were written to the original, and those that it has from what it was cloned from itself.
            let mut aliases = BTreeMap::new();
            for (&from, to) in aliases_of(*id).iter().flat_map(|aliases| aliases.iter()) {
                if let Some(&new) = new_ids.get(to) {
                    aliases.insert(from, new);
                }
            }
            for (child, at) in members {
                if at.as_ref().is_some_and(|(parent, _)| parent == id) && child != &members[0].0 {
                    let written = SubtreeRef {
                        put_in: *id,
                        id: *child,
                    };
                    aliases.insert(written, new_ids[child]);
                }
            }
            NewKeyspace {
                id: new_ids[id],
                place,
                content: content(*id),
                expiry: expiry_of(*id),
                aliases: (!aliases.is_empty()).then(|| Arc::new(aliases)),
            }
        })
        .collect()
}

/// A keyspace and all its subtrees, each before its own.
fn family_of(names: &Names, top: Arc<KeyspaceCore>) -> Vec<Arc<KeyspaceCore>> {
    let mut family = vec![top];
    let mut at = 0;
    while let Some(core) = family.get(at) {
        let children: Vec<u32> = core.subtrees.lock().values().copied().collect();
        let known = children.iter().filter_map(|id| names.by_id.get(id));
        family.extend(known.map(Arc::clone));
        at += 1;
    }
    family
}

fn place_at(parent: &Keyspace, key: &[u8]) -> Place {
    Place::Subtree {
        parent: parent.core.id,
        key: Arc::from(key),
    }
}

fn check_absent(txn: &WriteTxn, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
    match txn.get(keyspace, key)? {
        Some(_) => Err(Error::KeyExists),
        None => Ok(()),
    }
}

fn no_subtree(key: &[u8]) -> Error {
    Error::NoSubtree {
        key: key.escape_ascii().to_string(),
    }
}

fn commit_one(txn: WriteTxn, structure: Structure) -> Result<Keyspace> {
    match txn.commit_structure(structure)? {
        Committed::Done(created) => Ok(created.into_iter().next().expect("one was to be created")),
        Committed::Outdated => unreachable!("only saving a snapshot needs all keyspaces"),
    }
}
