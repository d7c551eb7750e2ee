//! TidesDB, through its own Rust crate, which brings the C library with it and builds it with CMake.
//!
//! Settings: one column family; bloom filters are on (its default, 1 % false positives); compression as the run asks, where TidesDB would take
//! LZ4 by itself; threads for flushes and compactions one each for every core, or as given; a cache of a gibibyte, or as
//! given; write buffer as given. The log
//! of events goes to a file, errors only.
//!
//! Sync modes: TidesDB's own mode without sync buffers the log in the process and loses commits when the process dies, which is less than
//! `none` promises here. `none` is therefore its interval mode with an interval of an hour: the log is written at every commit and
//! left to the operating system. `async` is the interval mode at a tenth of a second; `sync` and `write-through` are a flush at each commit.
//!
//! Batches are its transactions at READ COMMITTED, its default, which read their own writes; snapshots are transactions at SNAPSHOT
//! isolation whose reads are not tracked. Values are copied out: the C library hands out memory that it allocates. The bulk load is
//! transactions of 10,000 writes, since a transaction is held in memory.
//!
//! The column family is looked up once. A read of the newest state goes through a transaction at READ COMMITTED that is kept for the
//! next one: TidesDB takes what such a transaction sees anew at each read and holds nothing back for it in between. Batches keep one as well, which is
//! reset for the next, as TidesDB's own benchmark tool does. There is a number of
//! them, one a thread as long as there are no more threads than that; whoever finds its own in use begins another.
//!
//! # Invariants
//! Kept transactions and the column family borrow the database; [`Store`] owns all three, lends none of them for longer than itself, and drops the database
//! last.
//!
//! Closing is TidesDB's own in mode `none`, which leaves what is in the buffer to the log; in the other modes a checkpoint goes before it.
//! Failures: those of TidesDB, with its codes; a transaction that lost against another one fails as a conflict.
#![allow(unsafe_code)] // A database and what borrows it, in one value.

use crate::flusher::INTERVAL;
use anyhow::{Context, Result};
use psitri_bench::engine::{
    Batch, Capabilities, Compression, Cursor, Description, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tidesdb::{
    ColumnFamily, ColumnFamilyConfig, CompressionAlgorithm, Config, IsolationLevel, LogLevel,
    Transaction,
};

const FAMILY: &str = "kv";
const LOAD_TRANSACTION_WRITES: usize = 10_000;
const INTERVAL_NONE_US: u64 = 3_600_000_000;

/// Threads that keep transactions.
const KEPT: usize = 64;

/// The transactions that a thread keeps, on cache lines of their own: one that reads the newest state, and one for batches that nobody uses.
#[derive(Default)]
#[repr(align(128))]
struct Kept {
    reader: Mutex<Option<Transaction<'static>>>,
    batch: Mutex<Option<Transaction<'static>>>,
}

/// What borrows the database.
struct Opened {
    family: ColumnFamily<'static>,
    kept: Vec<Kept>,
}

struct Store {
    opened: ManuallyDrop<Opened>,
    database: NonNull<tidesdb::TidesDB>,
}

// SAFETY: the pointer is that of a box, which may be sent and shared as what is in it.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: neither is used again. What borrows the database goes first, and what was lent borrows the store.
        unsafe {
            ManuallyDrop::drop(&mut self.opened);
            drop(Box::from_raw(self.database.as_ptr()));
        }
    }
}

pub struct TidesDb {
    store: Store,
    checkpoints_at_close: bool,
}

/// The place of what this thread keeps: threads count up when they come for the first time.
#[inline]
fn place() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    PLACE.get().unwrap_or_else(|| {
        let place = THREADS.fetch_add(1, Ordering::Relaxed) % KEPT;
        PLACE.set(Some(place));
        place
    })
}

fn sync_mode(sync_mode: SyncMode) -> (tidesdb::SyncMode, u64) {
    match sync_mode {
        SyncMode::None => (tidesdb::SyncMode::Interval, INTERVAL_NONE_US),
        SyncMode::Async => (tidesdb::SyncMode::Interval, INTERVAL.as_micros() as u64),
        SyncMode::Sync | SyncMode::WriteThrough => (tidesdb::SyncMode::Full, 0),
    }
}

fn threads(settings: &Settings) -> usize {
    settings
        .merge_threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

fn config(path: &Path, settings: &Settings) -> Config {
    let (mode, interval_us) = sync_mode(settings.sync_mode);
    let mut config = Config::new(path)
        .log_level(LogLevel::Error)
        .log_to_file(true)
        .num_flush_threads(threads(settings) as i32)
        .num_compaction_threads(threads(settings) as i32)
        .memtable_sync_mode(mode);
    if interval_us > 0 {
        config = config.memtable_sync_interval_us(interval_us);
    }
    config = config.block_cache_size(settings.cache_bytes_or_common() as usize);
    if let Some(bytes) = settings.write_buffer_bytes {
        config = config.memtable_write_buffer_size(bytes as usize);
    }
    config
}

fn compression(settings: &Settings) -> CompressionAlgorithm {
    match settings.compression {
        Compression::None => CompressionAlgorithm::None,
        Compression::Lz4 => CompressionAlgorithm::Lz4,
    }
}

impl Store {
    fn new(database: tidesdb::TidesDB) -> Result<Store> {
        let database = NonNull::from(Box::leak(Box::new(database)));
        // SAFETY: the box lives as long as the store, and this borrow no longer.
        let family = unsafe { database.as_ref() }.get_column_family(FAMILY);
        match family.context("not a database of this program") {
            Ok(family) => Ok(Store {
                opened: ManuallyDrop::new(Opened {
                    family,
                    kept: (0..KEPT).map(|_| Kept::default()).collect(),
                }),
                database,
            }),
            Err(error) => {
                // SAFETY: nothing borrows it.
                drop(unsafe { Box::from_raw(database.as_ptr()) });
                Err(error)
            }
        }
    }

    #[inline]
    fn database(&self) -> &tidesdb::TidesDB {
        // SAFETY: the box is there until the store is dropped.
        unsafe { self.database.as_ref() }
    }

    #[inline]
    fn begin(&self, isolation: IsolationLevel) -> Result<Transaction<'static>> {
        // SAFETY: as above; what is begun is kept in the store, or with a borrow of it.
        let database: &'static tidesdb::TidesDB = unsafe { self.database.as_ref() };
        Ok(database.begin_transaction_with_isolation(isolation)?)
    }

    #[inline]
    fn transaction(&self, isolation: IsolationLevel) -> Result<TidesTransaction<'_>> {
        Ok(TidesTransaction {
            transaction: self.begin(isolation)?,
            store: self,
        })
    }

    /// A batch, in the transaction that this thread keeps if nobody uses it.
    #[inline]
    fn batch(&self) -> Result<TidesBatch<'_>> {
        let kept = (self.opened.kept[place()].batch.try_lock())
            .ok()
            .and_then(|mut kept| kept.take());
        let transaction = match kept {
            Some(mut transaction) => {
                transaction.reset(IsolationLevel::ReadCommitted)?;
                transaction
            }
            None => self.begin(IsolationLevel::ReadCommitted)?,
        };
        Ok(TidesBatch(TidesTransaction {
            transaction,
            store: self,
        }))
    }

    /// Keeps a transaction that is over for the next batch.
    #[inline]
    fn keep(&self, transaction: Transaction<'static>) {
        if let Ok(mut kept) = self.opened.kept[place()].batch.try_lock() {
            *kept = Some(transaction);
        }
    }

    /// The newest value.
    #[inline]
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Opened { family, kept } = &*self.opened;
        let begin = || self.begin(IsolationLevel::ReadCommitted);
        let Ok(mut reader) = kept[place()].reader.try_lock() else {
            return found(begin()?.get(family, key));
        };
        let transaction = match reader.take() {
            Some(transaction) => transaction,
            None => begin()?,
        };
        // A transaction that failed is not used again.
        let value = found(transaction.get(family, key))?;
        *reader = Some(transaction);
        Ok(value)
    }
}

fn start(path: &Path, settings: &Settings) -> Result<tidesdb::TidesDB> {
    std::fs::create_dir_all(path)?;
    Ok(tidesdb::TidesDB::open(config(path, settings))?)
}

impl TidesDb {
    fn new(database: tidesdb::TidesDB, settings: &Settings) -> Result<Self> {
        Ok(Self {
            store: Store::new(database)?,
            checkpoints_at_close: settings.sync_mode != SyncMode::None,
        })
    }
}

/// A transaction on the column family. It rolls back when dropped.
pub struct TidesTransaction<'a> {
    transaction: Transaction<'static>,
    store: &'a Store,
}

/// A transaction of a batch. Its transaction is kept when it is committed.
pub struct TidesBatch<'a>(TidesTransaction<'a>);

impl TidesTransaction<'_> {
    #[inline]
    fn entries(&self) -> Result<tidesdb::Iterator<'_>> {
        let TidesTransaction { transaction, store } = self;
        Ok(transaction.new_iterator(&store.opened.family)?)
    }
}

/// The value, or nothing if the error says that there is none.
fn found(value: tidesdb::Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Writer for TidesDb {
    type Batch<'a> = TidesBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<TidesBatch<'_>> {
        self.store.batch()
    }

    fn sync(&self) -> Result<()> {
        Ok(self.store.database().sync_wal()?)
    }
}

impl Batch for TidesBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let TidesTransaction { transaction, store } = &self.0;
        let value = found(transaction.get(&store.opened.family, key))?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let TidesTransaction { transaction, store } = &self.0;
        Ok(transaction.put(&store.opened.family, key, value)?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let TidesTransaction { transaction, store } = &self.0;
        Ok(transaction.delete(&store.opened.family, key)?)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        let TidesTransaction {
            mut transaction,
            store,
        } = self.0;
        transaction.commit()?;
        store.keep(transaction);
        Ok(())
    }
}

impl Engine for TidesDb {
    /// Iterators of a transaction see what it wrote, but the way to an end passes everything that was removed there: hundreds of thousands of pops
    /// would take hours.
    const CAPABILITIES: Capabilities = Capabilities {
        pops: false,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = TidesSnapshot<'a>;
    type Writes<'a> = TidesBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        let (mode, interval_us) = sync_mode(settings.sync_mode);
        let mut lines = vec![
            format!("memtable_sync_mode {mode:?}, interval {interval_us} µs"),
            format!("flush and compaction threads {} each", threads(settings)),
            format!("compression {:?}", settings.compression),
            "batches at READ COMMITTED, snapshots at SNAPSHOT isolation".to_owned(),
            format!("block_cache_size {}", settings.cache_bytes_or_common()),
        ];
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!("memtable_write_buffer_size {bytes}"));
        }
        Description {
            version: tidesdb::TIDESDB_LINKED_VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let database = start(path, settings)?;
        let family = ColumnFamilyConfig::new().compression_algorithm(compression(settings));
        database.create_column_family(FAMILY, family)?;
        Self::new(database, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(start(path, settings)?, settings)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut transaction = self.begin()?;
        let mut writes = 0;
        for (key, value) in entries {
            transaction.put(key, value)?;
            writes += 1;
            if writes == LOAD_TRANSACTION_WRITES {
                transaction.commit()?;
                transaction = self.begin()?;
                writes = 0;
            }
        }
        transaction.commit()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<TidesSnapshot<'_>> {
        let transaction = self.store.transaction(IsolationLevel::Snapshot)?;
        Ok(TidesSnapshot(transaction))
    }

    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.store.read(key)?.as_deref()))
    }

    #[inline]
    fn begin_writes(&self) -> Result<TidesBatch<'_>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.store.database().checkpoint()?)
    }

    fn compact(&mut self) -> Result<bool> {
        self.checkpoint()?;
        self.store.opened.family.compact()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let stats = self.store.database().get_db_stats()?;
        Ok(EngineSizes {
            data_bytes: Some(stats.total_data_size_bytes),
            ..EngineSizes::default()
        })
    }

    /// Dropping the database closes it.
    fn close(self) -> Result<()> {
        if self.checkpoints_at_close {
            self.checkpoint()?;
        }
        Ok(())
    }
}

pub struct TidesSnapshot<'a>(TidesTransaction<'a>);

impl Snapshot for TidesSnapshot<'_> {
    type Cursor<'c>
        = TidesCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let TidesTransaction { transaction, store } = &self.0;
        let value = found(transaction.get_notrack(&store.opened.family, key))?;
        Ok(look(value.as_deref()))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut entries = self.0.entries()?;
        entries.seek_to_first()?;
        while entries.is_valid() {
            let (key, value) = entries.key_value()?;
            each(&key, &value);
            entries.next()?;
        }
        Ok(())
    }

    #[inline]
    fn cursor(&mut self) -> Result<TidesCursor<'_>> {
        Ok(TidesCursor {
            entries: self.0.entries()?,
            entry: None,
        })
    }
}

pub struct TidesCursor<'c> {
    entries: tidesdb::Iterator<'c>,
    entry: Option<(Vec<u8>, Vec<u8>)>,
}

impl TidesCursor<'_> {
    #[inline]
    fn take(&mut self) -> Result<bool> {
        self.entry = if self.entries.is_valid() {
            Some(self.entries.key_value()?)
        } else {
            None
        };
        Ok(self.entry.is_some())
    }
}

impl Cursor for TidesCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries.seek(key)?;
        self.take()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries.seek_to_first()?;
        self.take()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.entries.seek_to_last()?;
        self.take()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        if self.entry.is_none() {
            return Ok(false);
        }
        self.entries.next()?;
        self.take()
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        if self.entry.is_none() {
            return Ok(false);
        }
        self.entries.prev()?;
        self.take()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.entry.as_ref()?;
        Some((key, value))
    }
}
