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

mod beside;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64 as PlainAtomicU64, Ordering as PlainOrdering},
};

use crate::{
    Durability, Options, Result,
    buffer::{BufferWriter, Kind, hash_of},
    catalog::{CatalogEntry, read_catalog},
    engine::{Engine, EngineKind, TreeState, buffer_error},
    error::Error,
    expiry::EXPIRY_BYTES,
    keyspace::{KeyspaceCore, Names, Place},
    node::{NodeRef, PAGE_BYTES, ValuePointer},
    options::OpenKind,
    pager::{
        CheckpointRecord, DATA_FILE, Extent, PageMap, Pager, SUPERBLOCK_PAGES, SlotError,
        Superblock, value_extent,
    },
    state::{ArenaPool, Generation, KEYSPACES_MAX, KeyspaceState, State},
    storage::{LockMode, OpenMode, Storage, StorageFile},
    sync::{Arc, Ordering},
    tree::Root,
    wal::{
        self, Wal, WalError, WalOptions,
        ops::{Op, OpsError, OpsIter},
    },
};

pub(crate) use beside::{is_replaced, open_beside_writer};

const DATA_FILE_NEW: &str = "data.new";
/// Arenas of finished buffers kept for the next ones.
const ARENAS_KEPT_MAX: usize = 1;
/// Spare log segments kept for reuse.
const WAL_SPARES_MAX: usize = 2;
/// What an operation takes in the buffer beside its bytes in the log, at most about.
pub(crate) const OP_BYTES_EXPECTED: u64 = 128;
/// Address space for a record, as a multiple of the bytes of memory that it is expected to take: the directory doubles, chains of prefixes take more.
const ROOM_PER_BYTE_EXPECTED: u64 = 3;
/// And for each keyspace in it, as buffers take memory by chunks.
const BUFFER_BYTES_EXPECTED: u64 = 4 << 10;

/// For how many operations the buffers are asked ahead of the one that is put back, those of the next record included: their misses overlap.
const OPS_AHEAD: usize = 8;

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
    let lock = storage.lock(if read_only {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    })?;
    let exists = storage.exists(DATA_FILE)?;
    match kind {
        OpenKind::Create if exists => return Err(Error::AlreadyExists { path: path() }),
        OpenKind::OpenExisting | OpenKind::ReadOnly if !exists => {
            return Err(Error::NotFound { path: path() });
        }
        _ => {}
    }
    if !exists {
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
    let mut lost = None;
    let replayed = {
        trace_span!(INFO, "recover", from_lsn = superblock.wal_start_lsn);
        let replayed = wal::replay_while(
            storage.as_ref(),
            superblock.wal_start_lsn,
            superblock.wal_durable_lsn,
            |record| {
                let failed = |error| WalError::Visitor(Box::new(error));
                lost = recovery.missing(&pager, &record).map_err(failed)?;
                if lost.is_some() {
                    return Ok(false);
                }
                recovery
                    .apply(&pager, &record)
                    .map_err(failed)
                    .map(|()| true)
            },
        );
        trace_event!(
            INFO,
            csn_checkpoint = superblock.csn,
            csn = recovery.csn,
            "the log was read"
        );
        replayed
    };
    let end = match (replayed, lost) {
        // (4): the log was durable beyond the record, so what is missing was too.
        (Err(WalError::Corrupted { .. }), Some(damage)) => return Err(damage),
        (replayed, _) => replayed?,
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
    }
    Ok(engine)
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
    let record = CheckpointRecord {
        generation: 1,
        csn: 0,
        tree_csn: 0,
        catalog: NodeRef::NULL,
        catalog_keys: 0,
        catalog_csn: 0,
        keyspace_next: 1,
        wal_start_lsn: 0,
        wal_durable_lsn: 0,
    };
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
    by_id: HashMap<u32, u32, foldhash::fast::RandomState>,
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
            by_id: HashMap::default(),
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
        let slot = self
            .table
            .iter()
            .enumerate()
            .position(|(slot, taken)| taken.is_none() && newest.buffer(slot as u32).is_none())
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

    /// (4): what a record needs that is not there. It need not be if the record was not durable.
    fn missing(&self, pager: &Pager, record: &wal::Record<'_>) -> Result<Option<Error>> {
        if record.csn > self.csn + 1 {
            let what = format!(
                "commit {} is neither in the log nor in the newest checkpoint; the disk lost a checkpoint that it had confirmed",
                self.csn + 1
            );
            return Ok(Some(Error::corrupted("log", record.lsn, what)));
        }
        for op in OpsIter::new(record.payload, record.op_count) {
            let op = op.map_err(|e| Error::corrupted("log", record.lsn, e.what))?;
            if let Op::PutLarge {
                keyspace, pointer, ..
            } = op
                && self.is_news(record, keyspace)
                && let Err(damage) = pager.recheck_value(&ValuePointer::decode(&pointer))
            {
                return Ok(Some(damage));
            }
        }
        Ok(None)
    }

    /// Applies one record of the log.
    fn apply(&mut self, pager: &Pager, record: &wal::Record<'_>) -> Result<()> {
        let damaged = |what: &str| Error::corrupted("log", record.lsn, what);
        self.csn = self.csn.max(record.csn);
        if record.csn > self.tree_csn {
            self.end_trees()?;
        }
        // A transaction may have filled the address space of its generation, and that of a larger buffer than ours: it fits if it does not
        // begin behind others, and has room enough.
        let expected = record.payload.len() as u64 + u64::from(record.op_count) * OP_BYTES_EXPECTED;
        let newest = &self.generations[0];
        let buffers = u64::from(record.op_count).min(self.table.len() as u64);
        let room = ROOM_PER_BYTE_EXPECTED * expected + buffers * BUFFER_BYTES_EXPECTED;
        if newest.is_empty() {
            if room > self.reserve_bytes as u64 {
                let roomy = Generation::with_room(newest.id, &self.pool, room)?;
                self.generations[0] = Arc::new(roomy);
                self.writers.clear();
            }
        } else if newest.bytes_used() + expected > self.buffer_bytes {
            self.begin_generation(room)?;
        }
        let next = record.ops_expected().take(OPS_AHEAD);
        next.for_each(|op| self.ask_for(op));
        let ops = || OpsIter::new(record.payload, record.op_count);
        // Those before were asked for with the record before.
        let mut ahead = ops().skip(OPS_AHEAD);
        for op in ops() {
            ahead.next().into_iter().for_each(|op| self.ask_for(op));
            let op = op.map_err(|e| damaged(e.what))?;
            self.apply_op(pager, record, op)?;
        }
        Ok(())
    }

    /// Asks for where the buffer will look for a key.
    fn ask_for(&self, op: Result<Op<'_>, OpsError>) {
        if let Ok(
            Op::Put { keyspace, key, .. }
            | Op::Delete { keyspace, key }
            | Op::PutLarge { keyspace, key, .. },
        ) = op
            && let Some(&slot) = self.by_id.get(&keyspace)
            && let Some(Some(writer)) = self.writers.get(slot as usize)
        {
            writer.buffer().prefetch_directory(&[hash_of(key)]);
        }
    }

    /// (7): what is replayed from here on is in no tree.
    fn end_trees(&mut self) -> Result<()> {
        if self.generation_in_trees.is_none() {
            if !self.generations[0].is_empty() {
                self.begin_generation(0)?;
            }
            self.generation_in_trees = Some(self.generations[0].id - 1);
        }
        Ok(())
    }

    fn begin_generation(&mut self, room: u64) -> Result<()> {
        let next = Generation::with_room(self.generations[0].id + 1, &self.pool, room)?;
        self.generations.insert(0, Arc::new(next));
        self.writers.clear();
        Ok(())
    }

    fn apply_op(&mut self, pager: &Pager, record: &wal::Record<'_>, op: Op<'_>) -> Result<()> {
        let name_of = |name: &[u8]| {
            String::from_utf8(name.to_vec())
                .map_err(|_| Error::corrupted("log", record.lsn, "a keyspace name is not UTF-8"))
        };
        match op {
            Op::Put {
                keyspace,
                key,
                value,
            } => {
                self.check_expiry(record, keyspace, value.len())?;
                self.put(record, keyspace, key, Kind::Value, value)
            }
            Op::Delete { keyspace, key } => self.put(record, keyspace, key, Kind::Tombstone, &[]),
            Op::PutLarge {
                keyspace,
                key,
                pointer,
            } => {
                if !self.is_news(record, keyspace) {
                    return Ok(());
                }
                let value = ValuePointer::decode(&pointer);
                if value.subtree().is_some() {
                    return self.put(record, keyspace, key, Kind::Large, &pointer);
                }
                self.check_expiry(record, keyspace, value.len as usize)?;
                // Versions that were not durable are forgotten, their births are not: versions go on after them.
                self.tree_version = self.tree_version.max(value.birth);
                pager.hold(value_extent(&value));
                self.values.push((record.end_lsn, value_extent(&value)));
                let slot = self.by_id[&keyspace];
                self.generations[0].large_values.lock().push((slot, value));
                self.put(record, keyspace, key, Kind::Large, &pointer)
            }
            Op::DeleteRange { keyspace, lo, hi } => {
                if let Some(writer) = self.writer(record, keyspace)? {
                    let range = writer.add_range_tombstone(lo, hi);
                    writer.stamp_range_tombstone(&range, record.csn);
                }
                Ok(())
            }
            Op::CreateKeyspace { id, expiry, name } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if !self.by_id.contains_key(&id) {
                        let place = Place::Named(name_of(name)?.into());
                        self.add_keyspace(CatalogEntry::empty(id, place, expiry))?;
                    }
                }
                Ok(())
            }
            Op::PlaceSubtree { id, parent, key } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    let key = key.into();
                    let place = Place::Subtree { parent, key };
                    match self.by_id.get(&id).copied() {
                        None => self.add_keyspace(CatalogEntry::empty(id, place, None))?,
                        Some(slot) => {
                            if let Some(keyspace) = &mut self.table[slot as usize] {
                                keyspace.core.set_place(place);
                                keyspace.dirty = true;
                            }
                        }
                    }
                }
                Ok(())
            }
            Op::DropKeyspace { id } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if let Some(slot) = self.by_id.remove(&id) {
                        self.drop_keyspace(pager, id, slot)?;
                    }
                }
                Ok(())
            }
            Op::RenameKeyspace { id, name } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if let Some(keyspace) = self
                        .by_id
                        .get(&id)
                        .and_then(|&slot| self.table[slot as usize].as_mut())
                    {
                        keyspace.core.set_place(Place::Named(name_of(name)?.into()));
                        keyspace.dirty = true;
                    }
                }
                Ok(())
            }
        }
    }

    /// Frees the tree of a dropped keyspace.
    fn drop_keyspace(&mut self, pager: &Pager, id: u32, slot: u32) -> Result<()> {
        let keyspace = self.table[slot as usize]
            .take()
            .expect("ids name slots that are taken");
        let mut sink = crate::pager::Sink::new(pager, self.tree_version + 1);
        crate::tree::kill_tree(&mut sink, keyspace.root.node)?;
        let mut changes = sink.finish()?;
        self.tree_version += 1;
        pager.publish(self.tree_version, &mut changes);
        for generation in &self.generations {
            let mut values = generation.large_values.lock();
            let (gone, kept) = values.iter().partition(|&&(of, _)| of == slot);
            *values = kept;
            let gone: Vec<(u32, ValuePointer)> = gone;
            let extents: Vec<_> = gone.iter().map(|(_, value)| value_extent(value)).collect();
            pager.abandon(&extents, self.tree_version);
        }
        self.tree.dropped.push(id);
        Ok(())
    }

    /// Whether the catalog does not have the record's changes of keyspaces yet. A record may have several.
    fn is_news_of_catalog(&self, record: &wal::Record<'_>) -> bool {
        record.csn > self.catalog_csn_stored
    }

    /// (3): whether a keyspace exists and its tree does not hold the record yet.
    fn is_news(&self, record: &wal::Record<'_>, keyspace: u32) -> bool {
        let slot = self.by_id.get(&keyspace);
        slot.and_then(|&slot| self.table[slot as usize].as_ref())
            .is_some_and(|k| record.csn > k.csn_merged)
    }

    /// An error if a value must begin with the moment of its expiry and is too short for it.
    fn check_expiry(&self, record: &wal::Record<'_>, keyspace: u32, bytes: usize) -> Result<()> {
        let slot = self.by_id.get(&keyspace);
        let keyspace = slot.and_then(|&slot| self.table[slot as usize].as_ref());
        if bytes < EXPIRY_BYTES && keyspace.is_some_and(|k| k.core.expires()) {
            let what = "a value lacks its moment of expiry";
            return Err(Error::corrupted("log", record.lsn, what));
        }
        Ok(())
    }

    fn writer(
        &mut self,
        record: &wal::Record<'_>,
        keyspace: u32,
    ) -> Result<Option<&mut BufferWriter>> {
        if !self.is_news(record, keyspace) {
            return Ok(None);
        }
        let generation = &self.generations[0];
        generation.note_commit(record.csn, record.lsn.max(self.log_start)..record.end_lsn);
        let slot = self.by_id[&keyspace];
        let index = slot as usize;
        if self.writers.len() <= index {
            self.writers.resize_with(index + 1, || None);
        }
        let writer = self.writers[index].get_or_insert_with(|| {
            let writer = generation.buffer_or_new(slot, 0).writer();
            let writer = writer.expect("recovery has the only writer");
            #[expect(unsafe_code, reason = "the database is not open yet")]
            // SAFETY: readers come when recovery is finished; it drops its writers before.
            unsafe {
                writer.for_replay()
            }
        });
        Ok(Some(writer))
    }

    fn put(
        &mut self,
        record: &wal::Record<'_>,
        keyspace: u32,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
    ) -> Result<()> {
        let reserve = self.reserve_bytes;
        let csn = record.csn;
        if let Some(writer) = self.writer(record, keyspace)? {
            let floor = writer.watermark();
            let (_, outcome) = writer
                .put(key, kind, payload, floor)
                .map_err(|e| buffer_error(e, reserve))?;
            writer.stamp(outcome.version, csn);
        }
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
