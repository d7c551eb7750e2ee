//! A database: opening, keyspaces, and the beginning of everything else. Its threads and its end are in `database/lifetime.rs`.

mod lifetime;

use std::path::Path;

use crate::{
    Keyspace, KeyspaceOptions, Options, ReadMode, Result, Snapshot, WriteTxn,
    buffer::PREFETCH_KEYS_MAX,
    engine::Engine,
    error::Error,
    keyspace::{KeyspaceCore, Place, check_name},
    layers::View,
    options::OpenKind,
    recovery,
    state::{KeyspaceState, Reach},
    storage::{MemoryStorage, OsStorage, Storage},
    sync::Arc,
    tree::Root,
    txn::TxnKind,
    wal::ops::OpsBuilder,
};
use lifetime::HOLDS;
pub(crate) use lifetime::{DatabaseCore, Hold};

/// An open database. A handle: cheap to clone, usable from any thread.
///
/// The last handle that goes away, snapshots and transactions included, closes the database. [`Database::close`] does so
/// too if it is the last, and reports errors.
///
/// Handles belong to the process that opened the database. A child that `fork` made a copy of it must use none of them, not even to read: it has no
/// background threads, and what locks and pins the database ends with the parent's handles. Let it open the database itself. Starting
/// another program is harmless.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = psitri::Database::open(dir.path().join("db"))?;
/// let fruit = db.keyspace("fruit")?;
/// let mut txn = db.begin(&[&fruit])?;
/// txn.upsert(&fruit, b"apple", b"red")?;
/// txn.commit()?;
/// assert_eq!(db.get(&fruit, b"apple")?.as_deref(), Some(&b"red"[..]));
/// db.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Database {
    pub(crate) core: Arc<DatabaseCore>,
    holds: Arc<[Arc<Hold>; HOLDS]>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("path", &self.core.engine.storage.describe())
            .finish()
    }
}

impl Database {
    /// What a pin's owner keeps the database open by.
    #[inline]
    pub(crate) fn hold(&self, cell: u32) -> &Arc<Hold> {
        &self.holds[cell as usize % HOLDS]
    }

    /// Opens the database in directory `path` with default options; creates it if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::Database;
    /// let db = Database::open(&path)?;
    /// let same = db.clone(); // another handle
    /// assert!(Database::open(&path).is_err(), "one process, one opening at a time");
    /// # Ok(()) }
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Options::new().open(path)
    }

    pub(crate) fn open_at(path: &Path, options: Options, kind: OpenKind) -> Result<Database> {
        options.check()?;
        let creates = matches!(kind, OpenKind::OpenOrCreate | OpenKind::Create);
        if !creates && !path.is_dir() {
            return Err(Error::NotFound {
                path: path.to_owned(),
            });
        }
        let storage = if creates {
            OsStorage::create(path)?
        } else {
            OsStorage::open(path)?
        };
        if kind == OpenKind::BesideWriter {
            return Database::start(recovery::open_beside_writer(Arc::new(storage), options)?);
        }
        Database::start(recovery::open(Arc::new(storage), options, kind, false)?)
    }

    pub(crate) fn open_in_memory(options: Options) -> Result<Database> {
        let storage = Arc::new(MemoryStorage::new());
        Database::start(recovery::open(storage, options, OpenKind::Create, true)?)
    }

    /// Opens a database on another storage: the simulated disk of the tests.
    #[doc(hidden)]
    pub fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Database> {
        Database::start(recovery::open(
            storage,
            options,
            OpenKind::OpenOrCreate,
            false,
        )?)
    }

    /// As [`Options::open_beside_writer`], on another storage.
    #[doc(hidden)]
    pub fn open_beside_writer_on(storage: Arc<dyn Storage>, options: Options) -> Result<Database> {
        Database::start(recovery::open_beside_writer(storage, options)?)
    }

    fn start(engine: Engine) -> Result<Database> {
        let core = DatabaseCore::start(engine)?;
        let holds = Arc::new(Hold::several(&core));
        Ok(Database { core, holds })
    }

    /// The keyspace `name`; created if there is none. Names are 1 to 255 bytes of UTF-8.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let accounts = db.keyspace("accounts")?; // created
    /// let same = db.keyspace("accounts")?; // found
    /// assert_eq!(db.keyspaces(), ["accounts"]);
    /// # Ok(()) }
    /// ```
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        match self.open_keyspace(name) {
            Err(Error::KeyspaceNotFound { .. }) => match self.create_keyspace(name) {
                Err(Error::KeyspaceExists { .. }) => self.open_keyspace(name),
                created => created,
            },
            found => found,
        }
    }

    /// The keyspace `name`; [`Error::KeyspaceNotFound`] if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::Error;
    /// assert!(matches!(db.open_keyspace("no such"), Err(Error::KeyspaceNotFound { .. })));
    /// # Ok(()) }
    /// ```
    pub fn open_keyspace(&self, name: &str) -> Result<Keyspace> {
        let keyspaces = self.core.engine.keyspaces.read();
        let core = keyspaces
            .by_name
            .get(name)
            .ok_or_else(|| Error::KeyspaceNotFound {
                name: name.to_owned(),
            })?;
        Ok(Keyspace {
            core: Arc::clone(core),
        })
    }

    /// Creates keyspace `name`; [`Error::KeyspaceExists`] if there is one. At most 65,536 exist at a time.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::Error;
    /// let accounts = db.create_keyspace("accounts")?;
    /// assert!(matches!(db.create_keyspace("accounts"), Err(Error::KeyspaceExists { .. })));
    /// # Ok(()) }
    /// ```
    pub fn create_keyspace(&self, name: &str) -> Result<Keyspace> {
        self.create_keyspace_with(name, KeyspaceOptions::new())
    }

    /// Creates keyspace `name` whose entries expire, if `options` say so. That cannot be changed later.
    ///
    /// An entry that has expired is absent, at once and for everybody but the snapshots and transactions that looked at the clock before: they
    /// go on seeing it. Its space is used again after a merge that comes by it, [`Database::drop_expired`] or [`Database::compact`]. What was
    /// dropped stays so if the clock is set back; what was not may be seen again.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let options = KeyspaceOptions::new().expire_after(Duration::from_secs(3600));
    /// let cache = db.create_keyspace_with("cache", options)?;
    /// let mut txn = db.begin(&[&cache])?;
    /// txn.upsert(&cache, b"page", b"gone in an hour")?;
    /// txn.upsert_expiring(&cache, b"logo", b"stays", Expiry::Never)?;
    /// txn.upsert_expiring(&cache, b"flash", b"gone already", Expiry::After(Duration::ZERO))?;
    /// txn.commit()?;
    /// assert_eq!(db.snapshot().count(&cache, ..)?, 2);
    /// # Ok(()) }
    /// ```
    pub fn create_keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        check_name(name)?;
        let expiry = options.to_stored()?;
        let engine = &self.core.engine;
        engine.check_writable()?;
        let mut tree = engine.tree.lock();
        let mut keyspaces = engine.keyspaces.write();
        if keyspaces.by_name.contains_key(name) {
            return Err(Error::KeyspaceExists {
                name: name.to_owned(),
            });
        }
        let (slots, active) = engine.free_slots(&tree, 1)?;
        let slot = slots[0];
        let id = tree.keyspace_next;
        let mut ops = OpsBuilder::new();
        ops.create_keyspace(id, expiry, name.as_bytes());
        tree.note_keyspace_change(self.log_keyspace_change(&ops)?);
        tree.keyspace_next = id + 1;
        tree.free_slots.retain(|&(free, _)| free != slot);
        let place = Place::Named(Arc::from(name));
        let core = Arc::new(KeyspaceCore::new(id, slot, engine.id, place, expiry));
        let keyspace = KeyspaceState::new(Arc::clone(&core), Root::default(), active - 1);
        engine.change_layers(|state| {
            let mut table = (*state.keyspaces).clone();
            let slot = slot as usize;
            if table.len() <= slot {
                table.resize(slot + 1, None);
            }
            table[slot] = Some(keyspace);
            state.keyspaces = Arc::new(table);
        });
        keyspaces.add(&core);
        drop((tree, keyspaces));
        // Each has a table of all keyspaces.
        engine.reclaim_states();
        Ok(Keyspace { core })
    }

    /// Logs a change of the catalog with the database's durability. Called with `tree` held, so that no checkpoint comes
    /// between the record and the change. Returns its CSN and the end of its record.
    fn log_keyspace_change(&self, ops: &OpsBuilder) -> Result<Reach> {
        let engine = &self.core.engine;
        let mut commits = engine.commits.lock();
        let mut reach = Reach::default();
        let logged = engine.log_commit(
            &mut commits,
            ops.op_count(),
            ops.payload(),
            engine.options.durability,
            |csn, record| {
                let lsn = record.end;
                reach = Reach { csn, lsn };
            },
        )?;
        drop(commits);
        engine.finish_commit(logged)?;
        Ok(reach)
    }

    /// Removes keyspace `name` with all it holds, its subtrees included. Waits for the transaction that writes to it. Snapshots taken before go on
    /// reading it; other uses of its handles fail with [`Error::KeyspaceGone`].
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
    /// let before = db.snapshot();
    /// db.drop_keyspace("ks")?;
    /// assert!(db.keyspaces().is_empty());
    /// assert!(db.get(&ks, b"a").is_err());
    /// assert_eq!(before.get(&ks, b"a")?, Some(&b"1"[..]));
    /// # Ok(()) }
    /// ```
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.core.engine.check_writable()?;
        self.drop_family(name)?;
        self.core.engine.wait_for_space();
        Ok(())
    }

    /// Renames a keyspace. Handles stay valid.
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
    /// db.rename_keyspace("ks", "accounts")?;
    /// assert_eq!(ks.name(), "accounts");
    /// assert!(db.get(&ks, b"a")?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn rename_keyspace(&self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let engine = &self.core.engine;
        engine.check_writable()?;
        let mut tree = engine.tree.lock();
        let mut keyspaces = engine.keyspaces.write();
        if keyspaces.by_name.contains_key(to) {
            return Err(Error::KeyspaceExists {
                name: to.to_owned(),
            });
        }
        let core = keyspaces
            .by_name
            .get(from)
            .cloned()
            .ok_or_else(|| Error::KeyspaceNotFound {
                name: from.to_owned(),
            })?;
        let mut ops = OpsBuilder::new();
        ops.rename_keyspace(core.id, to.as_bytes());
        tree.note_keyspace_change(self.log_keyspace_change(&ops)?);
        core.set_place(Place::Named(Arc::from(to)));
        keyspaces.by_name.remove(from);
        keyspaces.by_name.insert(to.to_owned(), Arc::clone(&core));
        engine.change_layers(|state| {
            let mut table = (*state.keyspaces).clone();
            if let Some(keyspace) = &mut table[core.slot as usize] {
                keyspace.dirty = true;
            }
            state.keyspaces = Arc::new(table);
        });
        drop((tree, keyspaces));
        engine.reclaim_states();
        Ok(())
    }

    /// Names of all keyspaces, sorted.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// db.create_keyspace("owners")?;
    /// db.create_keyspace("accounts")?;
    /// assert_eq!(db.keyspaces(), ["accounts", "owners"]);
    /// # Ok(()) }
    /// ```
    pub fn keyspaces(&self) -> Vec<String> {
        let mut names: Vec<String> = {
            let keyspaces = self.core.engine.keyspaces.read();
            keyspaces.by_name.keys().cloned().collect()
        };
        names.sort_unstable();
        names
    }

    /// Begins a transaction that may write to `keyspaces` and read all. Waits for the transactions that write to them now.
    /// No keyspace may be named twice.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let accounts = db.create_keyspace("accounts")?;
    /// let journal = db.create_keyspace("journal")?;
    /// let mut txn = db.begin(&[&accounts, &journal])?;
    /// txn.upsert(&accounts, b"alice", b"90")?;
    /// txn.upsert(&journal, b"0001", b"alice -10")?;
    /// txn.commit()?; // both or, after a crash, neither
    /// # Ok(()) }
    /// ```
    pub fn begin(&self, keyspaces: &[&Keyspace]) -> Result<WriteTxn> {
        WriteTxn::begin(&self.core, keyspaces, TxnKind::Buffered)
    }

    /// Announces that these keys will be read or written soon, as [`WriteTxn::prefetch`] does. Call it as soon as the keys of a transaction are
    /// known, before [`begin`](Database::begin): their entries come while that does its work. It waits for what leads to them: directories, and inner nodes of
    /// the tree, which may have to be read from the disk; with four keys or more for the memory of their leaves, too, where these were read or written since the opening. A hint; it
    /// changes nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let keys: [&[u8]; 2] = [b"alice", b"bob"];
    /// db.prefetch(&ks, &keys);
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"alice", b"90")?;
    /// txn.upsert(&ks, b"bob", b"30")?;
    /// # txn.commit() }
    /// ```
    #[inline]
    pub fn prefetch(&self, keyspace: &Keyspace, keys: &[&[u8]]) {
        let core = &keyspace.core;
        if core.database != self.core.engine.id {
            return;
        }
        let engine = &self.core.engine;
        for keys in keys.chunks(PREFETCH_KEYS_MAX) {
            let (state, csn) = engine.states.acquire(&engine.visible_csn);
            let Some(found) = state.keyspace(core.slot, core.id) else {
                return;
            };
            let mode = ReadMode::Latest;
            let view = View::new(&engine.pager, &state, found, core.slot, csn, mode, 0);
            view.announce(keys);
        }
    }

    /// Begins a transaction whose changes are merged into the tree by its commit, in the caller's thread: for bulk loads.
    /// It needs bounded memory, however much it writes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut load = db.begin_direct(&[&ks])?;
    /// for n in 0..100_000u32 {
    ///     load.upsert(&ks, &n.to_be_bytes(), b"value")?;
    /// }
    /// load.commit()?;
    /// assert_eq!(db.snapshot().count(&ks, ..)?, 100_000);
    /// # Ok(()) }
    /// ```
    pub fn begin_direct(&self, keyspaces: &[&Keyspace]) -> Result<WriteTxn> {
        WriteTxn::begin(&self.core, keyspaces, TxnKind::Direct)
    }

    /// A snapshot of all keyspaces: everything committed so far, nothing later. O(1), without locks.
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
    /// let snapshot = db.snapshot();
    /// let total = std::thread::scope(|s| s.spawn(|| snapshot.count(&ks, ..)).join().unwrap())?;
    /// assert_eq!(total, 3);
    /// # Ok(()) }
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(ReadMode::Latest)
    }

    /// A snapshot that reads only some layers.
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
    /// use psitri::ReadMode;
    /// db.checkpoint()?; // merges what was committed
    /// assert_eq!(db.snapshot_with(ReadMode::Trie).count(&ks, ..)?, 3);
    /// # Ok(()) }
    /// ```
    pub fn snapshot_with(&self, mode: ReadMode) -> Snapshot {
        Snapshot::new(self, mode)
    }

    /// The newest committed value of a key, copied. A [`Snapshot`] reads without a copy.
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
    /// assert_eq!(db.get(&ks, b"a")?, Some(b"1".to_vec()));
    /// assert_eq!(db.get(&ks, b"x")?, None);
    /// # Ok(()) }
    /// ```
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.snapshot().get(keyspace, key)?.map(<[u8]>::to_vec))
    }

    /// Makes every commit that returned so far durable, whatever its durability.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Database::open(&path)?; // durability `none`
    /// let ks = db.keyspace("ks")?;
    /// for n in 0..100u32 {
    ///     let mut txn = db.begin(&[&ks])?;
    ///     txn.upsert(&ks, &n.to_be_bytes(), b"-")?;
    ///     txn.commit()?;
    /// }
    /// db.flush()?; // all hundred survive a power loss from here on
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.core.engine.flush_log()
    }

    /// Merges the write buffer, writes a checkpoint, and gives free space back to the file system. Writers may go on.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Database::open(&path)?;
    /// let ks = db.keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// db.checkpoint()?;
    /// assert_eq!(db.stats()?.keyspaces[0].keys_merged, 1);
    /// # Ok(()) }
    /// ```
    pub fn checkpoint(&self) -> Result<()> {
        self.core.engine.check_writable()?;
        self.core.engine.checkpoint_fully()
    }

    /// Opens the newest checkpoint, if this database was opened with [`open_beside_writer`](crate::Options::open_beside_writer) and there is
    /// a newer one than it sees. This database stays as it is; the writer keeps its checkpoint until it is closed. Handles of keyspaces belong
    /// to the database that they were opened with. `None` if there is nothing newer, or the database was opened in another way.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// # let writer = psitri::Database::open(&path)?;
    /// # let ks = writer.keyspace("ks")?;
    /// # writer.checkpoint()?;
    /// let mut reader = psitri::Options::new().open_beside_writer(&path)?;
    /// assert!(reader.refresh()?.is_none());
    /// let mut txn = writer.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// writer.checkpoint()?;
    /// if let Some(newer) = reader.refresh()? {
    ///     reader = newer;
    /// }
    /// let ks = reader.open_keyspace("ks")?;
    /// assert_eq!(reader.get(&ks, b"k")?.as_deref(), Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    pub fn refresh(&self) -> Result<Option<Database>> {
        let engine = &self.core.engine;
        if !engine.beside_writer || !recovery::is_replaced(engine)? {
            return Ok(None);
        }
        let storage = Arc::clone(&engine.storage);
        let newer = recovery::open_beside_writer(storage, engine.options.clone())?;
        Database::start(newer).map(Some)
    }

    /// Closes the database if this is the last handle, and reports any error. Everything is durable then, unless
    /// [`Options::checkpoint_on_close`](crate::Options::checkpoint_on_close) is false. With other handles, snapshots or transactions alive the same is
    /// written, and the database stays open until the last of them goes away.
    ///
    /// What was written is merged too, unless that would write several times as much, as a few entries all over a large database would. Those
    /// stay in the log, up to 10,000 of them and 8 MiB; the next opening replays them. [`Database::checkpoint`] merges them
    /// in any case. With [`Options::checkpoint_on_close`](crate::Options::checkpoint_on_close) false, what is not merged most often stays in the
    /// log, and is made durable only if the commits in it were to be: those of durability `none` survive the process, and may be lost with
    /// power.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Database::open(&path)?;
    /// let ks = db.keyspace("ks")?;
    /// drop(ks);
    /// db.close()?;
    /// # Ok(()) }
    /// ```
    pub fn close(self) -> Result<()> {
        if self.core.engine.read_only {
            return Ok(());
        }
        self.core.engine.check_writable()?;
        self.core.engine.checkpoint_to_close()
    }
}
