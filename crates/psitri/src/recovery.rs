//! Opening a database: superblock, page map, catalog, counts of shared nodes, and the tail of the log. Of what keyspaces hold, only the
//! large values that the tail refers to are read, and the trees of keyspaces whose end it has.
//!
//! # Invariants
//! (1) A data file appears under its name only when it holds a valid superblock: creation is a rename. Its name becomes durable together with
//!     that of the log, before anything can be committed.
//! (2) Replay puts records back into the write buffer; nothing it reads is removed before a checkpoint covers it, so a
//!     crash during recovery is just another crash.
//! (3) Operations of a keyspace up to its merged CSN are in its tree and are skipped.
//! (4) The log ends before the first record that refers to a value which is not in the data file, and before the first that follows
//!     a commit which is neither in the log nor covered by the superblock: numbers have no gaps, and what is not in the log is in a
//!     checkpoint that was durable before the next number was given. If the log was durable beyond that point it is damage.
//! (5) What was read but is not proven to be durable is written again and flushed before the log goes on: the process that
//!     wrote it may have been killed before its flush, or after one that failed, and then the system may call pages clean
//!     that never reached the disk.
//! (6) A writer looks for readers in other processes before anything can be written to free pages.
//! (7) Trees may have parts of commits up to the superblock's tree CSN. Replay puts what they lack of those into generations of their own, none
//!     of which is the active one: readers of old layers see them whole.

mod ahead;
mod apply;
mod beside;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64 as PlainAtomicU64, Ordering as PlainOrdering},
};

use crate::{
    Durability, Options, Result, backup,
    buffer::BufferWriter,
    catalog::{CatalogEntry, read_catalog},
    engine::{Engine, EngineKind, TreeState},
    error::Error,
    keyspace::{KeyspaceCore, Names},
    node::PAGE_BYTES,
    options::OpenKind,
    pager::{
        CheckpointRecord, DATA_FILE, Extent, PageMap, Pager, SUPERBLOCK_PAGES, SlotError,
        Superblock,
    },
    state::{ArenaPool, Generation, KEYSPACES_MAX, KeyspaceState, State},
    storage::{LockMode, OpenMode, Storage, StorageFile},
    sync::{Arc, Ordering},
    tree::Root,
    wal::{self, Wal, WalError, WalOptions},
};
use ahead::read_ahead;
use apply::{Lost, Target};

pub(crate) use beside::{is_replaced, open_beside_writer};

const DATA_FILE_NEW: &str = "data.new";
/// Arenas of finished buffers kept for the next ones.
const ARENAS_KEPT_MAX: usize = 1;
/// Spare log segments kept for reuse.
const WAL_SPARES_MAX: usize = 2;
/// What an operation takes in the buffer beside its bytes in the log, at most about.
pub(crate) const OP_BYTES_EXPECTED: u64 = 128;

fn next_database_id() -> u64 {
    static NEXT: PlainAtomicU64 = PlainAtomicU64::new(1);
    NEXT.fetch_add(1, PlainOrdering::Relaxed)
}

fn wal_options(options: &Options) -> WalOptions {
    let flushes_each = matches!(
        options.durability,
        Durability::Sync | Durability::WriteThrough
    );
    WalOptions {
        segment_bytes: options.wal_segment_bytes.next_multiple_of(16 << 10),
        spares_max: WAL_SPARES_MAX,
        populate: !flushes_each,
        store_by_call: flushes_each,
        ..WalOptions::default()
    }
}

/// Opens the database that `storage` holds.
pub(crate) fn open(
    storage: Arc<dyn Storage>,
    options: Options,
    kind: OpenKind,
    in_memory: bool,
) -> Result<Engine> {
    trace_span!(INFO, "open", path = %storage.describe(), read_only = (kind == OpenKind::ReadOnly));
    options.check()?;
    let read_only = kind == OpenKind::ReadOnly;
    let path = || storage.describe().into();
    let must_exist = matches!(kind, OpenKind::OpenExisting | OpenKind::ReadOnly);
    // Before the lock, whose file would stay where there is no database.
    if must_exist && !storage.exists(DATA_FILE)? {
        return Err(Error::NotFound { path: path() });
    }
    let lock = storage.lock(if read_only {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    })?;
    let exists = storage.exists(DATA_FILE)?;
    match kind {
        OpenKind::Create if exists => return Err(Error::AlreadyExists { path: path() }),
        _ if must_exist && !exists => return Err(Error::NotFound { path: path() }),
        _ => {}
    }
    if !exists {
        check_log_goes_without_data(storage.as_ref())?;
        create_data_file(storage.as_ref())?;
    }
    let mode = if read_only {
        OpenMode::Read
    } else {
        OpenMode::ReadWrite
    };
    let file = storage.open(DATA_FILE, mode)?;
    let superblock = read_superblock(file.as_ref())?;
    let (map, loaded) = Pager::load_map(file.as_ref(), &superblock)?;
    let pager = Pager::new(
        Arc::clone(&file),
        map,
        superblock.tree_version,
        options.map_reserve_bytes,
        options.pinned_cache_bytes,
        !exists,
    )?;
    pager.adopt_map(loaded);

    let pool = Arc::new(ArenaPool::new(options.buffer_bytes, ARENAS_KEPT_MAX));
    let mut recovery = Recovery::new(
        next_database_id(),
        &options,
        &pager,
        &superblock,
        Arc::clone(&pool),
    )?;
    if in_memory {
        return recovery.finish(
            EngineOf {
                options,
                storage,
                kind: EngineKind::Memory,
                pool,
                lock: Some(lock),
            },
            pager,
            None,
        );
    }
    let end = {
        trace_span!(INFO, "recover", from_lsn = superblock.wal_start_lsn);
        let replay = |visitor: &mut dyn FnMut(wal::Record<'_>) -> Result<bool, WalError>| {
            wal::replay_while(
                storage.as_ref(),
                superblock.wal_start_lsn,
                superblock.wal_durable_lsn,
                visitor,
            )
        };
        let mut lost = None;
        let replayed = read_ahead(options.buffer_bytes as u64, replay, |part| {
            lost = recovery.apply(&pager, part)?;
            Ok(lost.is_none().then(|| Arc::clone(recovery.newest())))
        })?;
        trace_event!(
            INFO,
            csn_checkpoint = superblock.csn,
            csn = recovery.csn,
            "the log was read"
        );
        match (replayed, lost) {
            (Some(end), _) => end,
            (None, Some(Lost { lsn, damage })) => {
                match replay(&mut |record| Ok(record.lsn < lsn)) {
                    // (4): the log was durable beyond the record, so what is missing was too.
                    Err(WalError::Corrupted { .. }) => return Err(damage),
                    replayed => replayed?,
                }
            }
            (None, None) => unreachable!("only what is missing ends the reading"),
        }
    };
    let log = if read_only {
        None
    } else {
        // (5); what was created above was flushed above.
        if exists {
            let place = Superblock::offset(superblock.generation);
            file.write_at(&superblock.encode(), place)?;
            for (end_lsn, extent) in &recovery.values {
                if *end_lsn > end.proven_lsn {
                    pager.write_again(*extent)?;
                }
            }
            file.sync_data()?;
        }
        Some(Wal::resume(
            Arc::clone(&storage),
            wal_options(&options),
            end,
        )?)
    };
    let kind = if read_only {
        EngineKind::ReadOnly
    } else {
        EngineKind::Disk
    };
    let engine = recovery.finish(
        EngineOf {
            options,
            storage,
            kind,
            pool,
            lock: Some(lock),
        },
        pager,
        log,
    )?;
    if !engine.read_only {
        engine.find_stale_readers(superblock.tree_version)?;
        backup::forget(engine.storage.as_ref())?;
    }
    Ok(engine)
}

/// A log with commits whose data file is gone: a new one in its place would hide that, from salvage too. Nothing is committed before the name of the
/// data file is durable (1).
fn check_log_goes_without_data(storage: &dyn Storage) -> Result<()> {
    match wal::replay(storage, 0, 0, |_| Ok(())) {
        Ok(end) if end.records == 0 => Ok(()),
        Ok(_) | Err(WalError::Corrupted { .. }) => Err(Error::corrupted(
            DATA_FILE,
            0,
            "the file is missing, and the log beside it has commits",
        )),
        Err(other) => Err(other.into()),
    }
}

/// (1): writes an empty database beside its name and renames it.
fn create_data_file(storage: &dyn Storage) -> Result<()> {
    if storage.exists(DATA_FILE_NEW)? {
        storage.remove(DATA_FILE_NEW)?;
    }
    let file = storage.open(DATA_FILE_NEW, OpenMode::Create)?;
    file.allocate(0, SUPERBLOCK_PAGES * PAGE_BYTES as u64)?;
    let pager = Pager::new(
        Arc::clone(&file),
        PageMap::new(SUPERBLOCK_PAGES),
        0,
        1 << 20,
        0,
        true,
    )?;
    let record = CheckpointRecord::of_nothing(1);
    let captured = pager.capture(1);
    pager.write_checkpoint(&captured, &record)?;
    drop(pager);
    storage.rename(DATA_FILE_NEW, DATA_FILE)?;
    Ok(())
}

/// The newer of the two valid slots.
fn read_superblock(file: &dyn StorageFile) -> Result<Superblock> {
    let mut newest: Option<Superblock> = None;
    let mut why = "no PsiTri superblock";
    for slot in 0..2 {
        let mut bytes = [0; 512];
        let offset = Superblock::offset(slot);
        if file.len()? < offset + bytes.len() as u64 {
            why = "the file is too short for a superblock";
            continue;
        }
        file.read_at(&mut bytes, offset)?;
        match Superblock::decode(&bytes) {
            Ok(found) if newest.is_none_or(|best| found.generation > best.generation) => {
                newest = Some(found)
            }
            Ok(_) => {}
            Err(SlotError::Version(found)) => {
                return Err(Error::UnsupportedVersion {
                    found,
                    supported: crate::pager::FORMAT_VERSION,
                });
            }
            Err(SlotError::Invalid(what)) => why = what,
        }
    }
    newest.ok_or_else(|| Error::corrupted(DATA_FILE, 0, why))
}

/// What opening leaves to the engine.
struct EngineOf {
    options: Options,
    storage: Arc<dyn Storage>,
    kind: EngineKind,
    pool: Arc<ArenaPool>,
    lock: Option<crate::storage::StorageLock>,
}

/// The state that replay builds up.
struct Recovery {
    database: u64,
    buffer_bytes: u64,
    reserve_bytes: usize,
    table: Vec<Option<KeyspaceState>>,
    /// All slots before this one are taken.
    slots_taken: usize,
    by_id: HashMap<u32, u32, foldhash::fast::RandomState>,
    /// Of the operation before.
    target: Option<Target>,
    generations: Vec<Arc<Generation>>,
    /// Writers of the newest generation by slot, kept from one operation to the next: each holds a piece of the arena.
    writers: Vec<Option<BufferWriter>>,
    tree: TreeState,
    /// Changes of keyspaces up to this commit are in the catalog that was read.
    catalog_csn_stored: u64,
    tree_version: u64,
    csn: u64,
    /// (7): known as soon as all commits up to the tree CSN were replayed.
    generation_in_trees: Option<u64>,
    tree_csn: u64,
    pool: Arc<ArenaPool>,
    log_start: u64,
    /// Large values that the log refers to, with the end of the record.
    values: Vec<(u64, Extent)>,
}

impl Recovery {
    fn new(
        database: u64,
        options: &Options,
        pager: &Pager,
        superblock: &Superblock,
        pool: Arc<ArenaPool>,
    ) -> Result<Recovery> {
        let catalog = Root {
            node: superblock.catalog,
            keys: superblock.catalog_keys,
        };
        let mut recovery = Recovery {
            database,
            buffer_bytes: options.buffer_bytes as u64,
            reserve_bytes: pool.reserve_bytes(),
            table: Vec::new(),
            slots_taken: 0,
            by_id: HashMap::default(),
            target: None,
            generations: vec![Arc::new(Generation::new(1, &pool)?)],
            writers: Vec::new(),
            tree: TreeState {
                catalog,
                catalog_csn: superblock.catalog_csn,
                checkpoint_generation: superblock.generation,
                keyspace_next: superblock.keyspace_next,
                ..TreeState::default()
            },
            catalog_csn_stored: superblock.catalog_csn,
            tree_version: superblock.tree_version,
            csn: superblock.csn,
            generation_in_trees: None,
            tree_csn: superblock.tree_csn,
            pool,
            log_start: superblock.wal_start_lsn,
            values: Vec::new(),
        };
        let stored = read_catalog(pager, catalog)?;
        recovery.tree.shares = stored.shares;
        pager.shares.load(stored.counts);
        for saved in stored.saved {
            recovery.tree.saved_next = recovery.tree.saved_next.max(saved.id + 1);
            (recovery.tree.saved).insert(saved.name.clone(), Arc::new(saved));
        }
        for entry in stored.keyspaces {
            recovery.add_keyspace(entry)?;
        }
        // Superblocks did not always say.
        let mut stored = recovery.table.iter().flatten();
        if recovery.tree_csn == 0 && stored.any(|keyspace| keyspace.root != Root::default()) {
            recovery.tree_csn = superblock.csn;
        }
        Ok(recovery)
    }

    fn add_keyspace(&mut self, entry: CatalogEntry) -> Result<()> {
        // A keyspace must not see what a dropped one left in the buffer of its slot.
        let newest = &self.generations[0];
        let is_taken = |slot: &usize| self.table.get(*slot).is_some_and(Option::is_some);
        while is_taken(&self.slots_taken) {
            self.slots_taken += 1;
        }
        let slot = (self.slots_taken..self.table.len())
            .find(|slot| !is_taken(slot) && newest.buffer(*slot as u32).is_none())
            .unwrap_or(self.table.len());
        if slot >= KEYSPACES_MAX && self.table.iter().any(Option::is_none) && !newest.is_empty() {
            self.begin_generation(0)?;
            return self.add_keyspace(entry);
        }
        if slot >= KEYSPACES_MAX {
            return Err(Error::TooManyKeyspaces { max: KEYSPACES_MAX });
        }
        if slot == self.table.len() {
            self.table.push(None);
        }
        let CatalogEntry {
            id, place, expiry, ..
        } = entry;
        let core = KeyspaceCore::new(id, slot as u32, self.database, place, expiry);
        let generation_merged = self.generations[0].id - 1;
        self.table[slot] = Some(KeyspaceState {
            csn_merged: entry.csn_merged,
            aliases: entry.aliases,
            dirty: entry.csn_merged == 0,
            ..KeyspaceState::new(Arc::new(core), entry.root, generation_merged)
        });
        self.by_id.insert(id, slot as u32);
        self.tree.keyspace_next = self.tree.keyspace_next.max(id + 1);
        Ok(())
    }

    fn finish(mut self, of: EngineOf, pager: Pager, log: Option<Wal>) -> Result<Engine> {
        self.end_trees()?;
        let generation_in_trees = self.generation_in_trees.expect("replay is at its end");
        // Transactions want to write there.
        self.writers.clear();
        let active = self.generations[0].id;
        let free = self.table.iter().enumerate().filter(|(_, k)| k.is_none());
        self.tree.free_slots = free.map(|(slot, _)| (slot as u32, active)).collect();
        let names = Names::of(self.table.iter().flatten().map(|keyspace| &keyspace.core));
        let state = State {
            tree_version: self.tree_version,
            generation_in_trees,
            csn_direct: 0,
            replaced: Default::default(),
            generations: self.generations,
            keyspaces: Arc::new(self.table),
        };
        debug_assert!(
            state
                .generations
                .iter()
                .all(|g| g.first_lsn.load(Ordering::Relaxed) >= self.log_start)
        );
        Ok(Engine::new(
            self.database,
            of.options,
            of.storage,
            of.kind,
            pager,
            state,
            self.csn,
            log,
            self.tree,
            names,
            of.pool,
            of.lock,
        ))
    }
}
