//! Snapshots: every keyspace as of one commit.

use std::ops::{ControlFlow, RangeBounds};

use crate::{
    Cursor, Expiry, Keyspace, ReadMode, Result,
    buffer::PREFETCH_KEYS_MAX,
    count,
    cursor::key_range,
    database::{Database, Hold},
    error::Error,
    expiry::Moment,
    keyspace::{KeyspaceCore, Place},
    layers::View,
    pins::RawPin,
    saved::SavedSnapshot,
    state::{Aliases, KeyspaceState, State},
    sync::{Arc, Ordering},
};

/// Slot of a keyspace that is in a saved snapshot only.
const NO_SLOT: u32 = u32::MAX;

/// A consistent view of all keyspaces. Taking one is O(1) and takes no lock; any number may live for any time, move
/// between threads and be shared by them.
///
/// Of keyspaces whose entries expire it sees what had not expired when it first read from one of them, as long as it lives.
///
/// What a snapshot can see is kept while it lives: the buffers of its moment in memory, and the tree's nodes in the file.
/// What was written and overwritten later is not, except in the write buffer of its moment: what is overwritten there while the snapshot lives
/// goes with the buffer.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// # let ks = db.create_keyspace("k")?;
/// let before = db.snapshot();
/// let mut txn = db.begin(&[&ks])?;
/// txn.upsert(&ks, b"a", b"1")?;
/// txn.commit()?;
/// assert_eq!(before.get(&ks, b"a")?, None);
/// assert_eq!(db.snapshot().get(&ks, b"a")?, Some(&b"1"[..]));
/// # Ok(()) }
/// ```
pub struct Snapshot {
    pin: Option<RawPin<State>>,
    csn: u64,
    mode: ReadMode,
    /// What it reads instead of the pinned state's keyspaces, if it was opened by name.
    saved: Option<Arc<SavedSnapshot>>,
    now: Moment,
    db: Arc<Hold>,
}

impl Snapshot {
    pub(crate) fn new(db: &Database, mode: ReadMode) -> Snapshot {
        let engine = &db.core.engine;
        let (pin, csn) = engine.states.acquire_raw(&engine.visible_csn);
        let mut snapshot = Snapshot {
            db: Arc::clone(db.hold(pin.index())),
            pin: Some(pin),
            csn,
            mode,
            saved: None,
            now: Moment::default(),
        };
        snapshot.csn = csn.max(snapshot.state().csn_direct);
        snapshot
    }

    /// Call under the lock that orders tree versions, while there is such a saved snapshot: its nodes live until a later version.
    pub(crate) fn of_saved(db: &Database, saved: Arc<SavedSnapshot>) -> Snapshot {
        let mut snapshot = Snapshot::new(db, ReadMode::Latest);
        snapshot.csn = saved.csn;
        // What had expired then has, and nothing else.
        snapshot.now.set(saved.saved_ms);
        snapshot.saved = Some(saved);
        snapshot
    }

    /// Commit sequence number of the newest commit it sees (with [`ReadMode::Latest`]).
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// let (earlier, csn) = (db.snapshot(), db.snapshot().csn());
    /// assert_eq!(earlier.csn(), csn);
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"d", b"1")?;
    /// txn.commit()?;
    /// assert!(db.snapshot().csn() > csn);
    /// # Ok(()) }
    /// ```
    pub fn csn(&self) -> u64 {
        self.csn
    }

    fn state(&self) -> &State {
        let pin = self
            .pin
            .as_ref()
            .expect("a snapshot has its pin until it is dropped");
        #[expect(
            unsafe_code,
            reason = "the pin and its registry live together in this structure"
        )]
        // SAFETY: the registry lives in the engine, which `self.db` keeps alive longer than the pin.
        unsafe {
            pin.get()
        }
    }

    #[inline]
    pub(crate) fn view(&self, keyspace: &Keyspace) -> Result<View<'_>> {
        match self.plain_view(keyspace) {
            Some(view) => Ok(view),
            None => self.other_view(keyspace),
        }
    }

    /// The usual case, small enough to be part of every lookup: of a keyspace without expiry in a snapshot that is not a saved one.
    #[inline(always)]
    fn plain_view(&self, keyspace: &Keyspace) -> Option<View<'_>> {
        let engine = &self.db.engine;
        let core = &keyspace.core;
        if core.expires() || self.saved.is_some() || core.database != engine.id {
            return None;
        }
        let state = self.state();
        let found = state.keyspace(core.slot, core.id)?;
        let (pager, csn) = (&engine.pager, self.csn);
        Some(View::new(pager, state, found, core.slot, csn, self.mode, 0))
    }

    #[inline(never)]
    fn other_view(&self, keyspace: &Keyspace) -> Result<View<'_>> {
        let engine = &self.db.engine;
        let core = &keyspace.core;
        if let Some(saved) = &self.saved {
            return self.saved_view(saved, core);
        }
        let state = self.state();
        let found = engine.keyspace_state(state, core)?;
        let now = if core.expires() { self.now() } else { 0 };
        let (pager, csn) = (&engine.pager, self.csn);
        Ok(View::new(
            pager, state, found, core.slot, csn, self.mode, now,
        ))
    }

    /// The time that it goes by.
    pub(crate) fn now(&self) -> u64 {
        self.now.get(&self.db.engine.options.clock)
    }

    /// A view of values as they are stored, those that have expired among them.
    pub(crate) fn view_stored(&self, keyspace: &Keyspace) -> Result<View<'_>> {
        let view = self.view(keyspace)?;
        Ok(View { now: 0, ..view })
    }

    #[cold]
    fn saved_view(&self, saved: &SavedSnapshot, core: &KeyspaceCore) -> Result<View<'_>> {
        let engine = &self.db.engine;
        if core.database != engine.id {
            return Err(Error::ForeignKeyspace);
        }
        let keyspace = saved.keyspaces.get(&core.id).ok_or_else(|| core.gone())?;
        Ok(View {
            pager: &engine.pager,
            generations: &[],
            slot: core.slot,
            generation_merged: u64::MAX,
            sliced: None,
            lookups: None,
            csn: self.csn,
            root: keyspace.root,
            now: if core.expires() { self.now() } else { 0 },
        })
    }

    /// Which subtrees the entries that a keyspace has from another one mean.
    pub(crate) fn aliases(&self, keyspace: &Keyspace) -> Aliases {
        let core = &keyspace.core;
        match &self.saved {
            Some(saved) => saved.keyspaces.get(&core.id)?.aliases.clone(),
            None => {
                let keyspace = self.state().keyspace(core.slot, core.id)?;
                keyspace.aliases.clone()
            }
        }
    }

    /// The keyspace with a number, as of the snapshot.
    pub(crate) fn keyspace_by_id(&self, id: u32) -> Result<Keyspace> {
        let engine = &self.db.engine;
        if let Some(core) = engine.keyspaces.read().by_id.get(&id) {
            let core = Arc::clone(core);
            return Ok(Keyspace { core });
        }
        // Dropped since.
        let core = match &self.saved {
            None => {
                let mut all = self.state().keyspaces.iter().flatten();
                let found = all.find(|keyspace| keyspace.core.id == id);
                found.map(|keyspace| Arc::clone(&keyspace.core))
            }
            Some(saved) => saved.keyspaces.get(&id).map(|keyspace| {
                let core = KeyspaceCore::new(
                    id,
                    NO_SLOT,
                    engine.id,
                    keyspace.place.clone(),
                    keyspace.expiry,
                );
                core.dropped.store(true, Ordering::Release);
                Arc::new(core)
            }),
        };
        let name = || format!("keyspace {id}");
        let core = core.ok_or_else(|| Error::KeyspaceGone { name: name() })?;
        Ok(Keyspace { core })
    }

    /// Names of the keyspaces in the snapshot, sorted. In a [saved](crate::Database::saved_snapshot) one they are those of then, in others those of
    /// now.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.create_keyspace("accounts")?;
    /// let before = db.snapshot();
    /// db.create_keyspace("journal")?;
    /// assert_eq!(before.keyspaces(), ["accounts"]);
    /// # Ok(()) }
    /// ```
    pub fn keyspaces(&self) -> Vec<String> {
        let named = |place: &Place| match place {
            Place::Named(name) => Some(name.to_string()),
            Place::Subtree { .. } => None,
        };
        let mut names: Vec<String> = match &self.saved {
            Some(saved) => {
                let places = saved.keyspaces.values().map(|keyspace| &keyspace.place);
                places.filter_map(named).collect()
            }
            None => {
                let all = self.state().keyspaces.iter().flatten();
                all.filter_map(|keyspace| named(&keyspace.core.place()))
                    .collect()
            }
        };
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The keyspace of this name in the snapshot: also of one that was dropped since.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.create_keyspace("accounts")?;
    /// let before = db.snapshot();
    /// db.drop_keyspace("accounts")?;
    /// let accounts = before.keyspace("accounts")?;
    /// assert_eq!(before.count(&accounts, ..)?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyspaceNotFound`].
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let not_found = || Error::KeyspaceNotFound {
            name: name.to_owned(),
        };
        match &self.saved {
            Some(saved) => self.keyspace_by_id(saved.named(name).ok_or_else(not_found)?),
            None => {
                let all = self.state().keyspaces.iter().flatten();
                // One that was dropped keeps its name, which another one may have by now.
                let mut found: Option<&Arc<KeyspaceCore>> = None;
                for KeyspaceState { core, .. } in all {
                    let is_named = matches!(core.place(), Place::Named(its) if *its == *name);
                    if is_named && found.is_none_or(|found| found.dropped.load(Ordering::Acquire)) {
                        found = Some(core);
                    }
                }
                let core = Arc::clone(found.ok_or_else(not_found)?);
                Ok(Keyspace { core })
            }
        }
    }

    /// The value of `key`. The slice is not a copy; it lives as long as the snapshot.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// let value: Option<&[u8]> = snapshot.get(&ks, b"a")?;
    /// assert_eq!(value, Some(&b"1"[..]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn get<'s>(&'s self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&'s [u8]>> {
        match self.plain_view(keyspace) {
            Some(view) => view.get(key),
            None => self.other_view(keyspace)?.get(key),
        }
    }

    /// When the entry of `key` expires: [`Expiry::Never`] or [`Expiry::At`]; `None` if it is absent. Entries of a keyspace without expiry
    /// never do.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::{Duration, SystemTime};
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(Duration::from_secs(60)))?;
    /// txn.commit()?;
    /// let Some(Expiry::At(at)) = db.snapshot().expiry(&ks, b"k")? else { panic!("it has a moment") };
    /// assert!(at > SystemTime::now());
    /// # Ok(()) }
    /// ```
    pub fn expiry(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Expiry>> {
        let found = self.view(keyspace)?.get_expiring(key)?;
        Ok(found.map(|(expires, _)| Expiry::from_stored(expires)))
    }

    /// The values of several keys, in the order of the keys. Their cache misses overlap instead of following one another: faster than one
    /// [`Snapshot::get`] after the other where the data are larger than the processor's caches.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # txn.upsert(&ks, b"a", b"1")?;
    /// # txn.upsert(&ks, b"c", b"3")?;
    /// # txn.commit()?;
    /// let snapshot = db.snapshot();
    /// let values = snapshot.get_many(&ks, &[b"c", b"b", b"a"])?;
    /// assert_eq!(values, [Some(&b"3"[..]), None, Some(&b"1"[..])]);
    /// # Ok(()) }
    /// ```
    pub fn get_many<'s>(
        &'s self,
        keyspace: &Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<&'s [u8]>>> {
        let view = self.view(keyspace)?;
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(PREFETCH_KEYS_MAX) {
            view.announce(keys);
            for key in keys {
                values.push(view.get(key)?);
            }
        }
        Ok(values)
    }

    /// A cursor over a keyspace, not positioned yet.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(cursor.seek(b"b")?);
    /// assert_eq!(cursor.entry(), Some((&b"b"[..], &b"1"[..])));
    /// # Ok(()) }
    /// ```
    pub fn cursor<'s>(&'s self, keyspace: &Keyspace) -> Result<Cursor<'s>> {
        Ok(Cursor::over(self.view(keyspace)?))
    }

    /// Calls `visit` for every entry of a range in order, until it breaks. The fastest way to read many entries.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("k")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # txn.upsert(&ks, b"a", b"12")?;
    /// # txn.upsert(&ks, b"b", b"3")?;
    /// # txn.commit()?;
    /// let mut bytes = 0;
    /// db.snapshot().for_each(&ks, .., |_key, value| {
    ///     bytes += value.len();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 3);
    /// # Ok(()) }
    /// ```
    pub fn for_each<'k>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<&'k [u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.cursor(keyspace)?.with_range(range).for_each(visit)
    }

    /// Number of keys in a range: O(log n), plus the entries of the range that are buffered; [`len`](Snapshot::len) counts everything. In a keyspace whose entries expire, this, the rank
    /// and the n-th key visit the keys.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// assert_eq!(snapshot.count(&ks, ..)?, 3);
    /// assert_eq!(snapshot.count(&ks, &b"b"[..]..)?, 2);
    /// # Ok(()) }
    /// ```
    pub fn count<'k>(&self, keyspace: &Keyspace, range: impl RangeBounds<&'k [u8]>) -> Result<u64> {
        let (lo, hi) = key_range(&range);
        count::count(self.view(keyspace)?, &lo, hi.as_deref())
    }

    /// Number of keys, as [`count`](Snapshot::count) of everything. Usually it is known where nothing waits for a merge, and no node is read.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// assert_eq!(db.snapshot().len(&ks)?, 3);
    /// db.checkpoint()?;
    /// assert_eq!(db.snapshot().len(&ks)?, 3);
    /// # Ok(()) }
    /// ```
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        match self.plain_view(keyspace) {
            Some(view) if view.buffers().all(|buffer| buffer.is_empty()) => Ok(view.root.keys),
            _ => self.count(keyspace, ..),
        }
    }

    /// Number of keys less than `key`.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// assert_eq!(snapshot.rank(&ks, b"c")?, 2);
    /// # Ok(()) }
    /// ```
    pub fn rank(&self, keyspace: &Keyspace, key: &[u8]) -> Result<u64> {
        count::count(self.view(keyspace)?, &[], Some(key))
    }

    /// The key that `rank` keys are less than; `None` if there are not so many.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// assert_eq!(snapshot.nth(&ks, 2)?, Some(b"c".to_vec()));
    /// assert_eq!(snapshot.nth(&ks, 3)?, None);
    /// # Ok(()) }
    /// ```
    pub fn nth(&self, keyspace: &Keyspace, rank: u64) -> Result<Option<Vec<u8>>> {
        count::nth(self.view(keyspace)?, rank)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            #[expect(
                unsafe_code,
                reason = "the pin and its registry live together in this structure"
            )]
            // SAFETY: the registry lives in the engine, which `self.db` keeps alive; what was borrowed from the snapshot is
            // gone.
            unsafe {
                pin.release();
            }
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("csn", &self.csn)
            .field("mode", &self.mode)
            .finish()
    }
}
