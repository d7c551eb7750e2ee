//! TidesDB, through its own Rust crate, which brings the C library with it and builds it with CMake.
//!
//! Settings: one column family; bloom filters are on (its default, 1 % false positives); compression as the run asks, where TidesDB would take
//! LZ4 by itself; threads for flushes and compactions one each for every core, or as given; cache and write buffer as given. The log
//! of events goes to a file, errors only.
//!
//! Sync modes: TidesDB's own mode without sync buffers the log in the process and loses commits when the process dies, which is less than
//! `none` promises here. `none` is therefore its interval mode with an interval of an hour: the log is written at every commit and
//! left to the operating system. `async` is the interval mode at a tenth of a second; `sync` and `write-through` are a flush at each commit.
//!
//! Batches are its transactions at READ COMMITTED, its default, which read their own writes; snapshots are transactions at SNAPSHOT
//! isolation whose reads are not tracked. Values are copied out: the C library hands out memory that it allocates. The bulk load is
//! transactions of 10,000 writes, since a transaction is held in memory.
//! Failures: those of TidesDB, with its codes; a transaction that lost against another one fails as a conflict.
use crate::flusher::INTERVAL;
use anyhow::{Context, Result};
use psitri_bench::engine::{
    Batch, Capabilities, Compression, Cursor, Description, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use std::path::Path;
use std::thread;
use tidesdb::{
    ColumnFamily, ColumnFamilyConfig, CompressionAlgorithm, Config, IsolationLevel, LogLevel,
    Transaction,
};

const FAMILY: &str = "kv";
const LOAD_TRANSACTION_WRITES: usize = 10_000;
const INTERVAL_NONE_US: u64 = 3_600_000_000;

pub struct TidesDb {
    database: tidesdb::TidesDB,
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
    if let Some(bytes) = settings.cache_bytes {
        config = config.block_cache_size(bytes as usize);
    }
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

impl TidesDb {
    fn start(path: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        Ok(Self {
            database: tidesdb::TidesDB::open(config(path, settings))?,
        })
    }

    fn family(&self) -> Result<ColumnFamily<'_>> {
        Ok(self.database.get_column_family(FAMILY)?)
    }

    fn transaction(&self, isolation: IsolationLevel) -> Result<TidesTransaction<'_>> {
        Ok(TidesTransaction {
            transaction: self.database.begin_transaction_with_isolation(isolation)?,
            family: self.family()?,
        })
    }
}

/// A transaction with the column family that it works on. It rolls back when dropped.
pub struct TidesTransaction<'a> {
    transaction: Transaction<'a>,
    family: ColumnFamily<'a>,
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
    type Batch<'a> = TidesTransaction<'a>;

    #[inline]
    fn begin(&self) -> Result<TidesTransaction<'_>> {
        self.transaction(IsolationLevel::ReadCommitted)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.sync_wal()?)
    }
}

impl Batch for TidesTransaction<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = found(self.transaction.get(&self.family, key))?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.put(&self.family, key, value)?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.transaction.delete(&self.family, key)?)
    }

    #[inline]
    fn commit(mut self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}

impl Engine for TidesDb {
    const CAPABILITIES: Capabilities = Capabilities::FULL;

    type Snapshot<'a> = TidesSnapshot<'a>;
    type Writes<'a> = TidesTransaction<'a>;

    fn describe(settings: &Settings) -> Description {
        let (mode, interval_us) = sync_mode(settings.sync_mode);
        let mut lines = vec![
            format!("memtable_sync_mode {mode:?}, interval {interval_us} µs"),
            format!("flush and compaction threads {} each", threads(settings)),
            format!("compression {:?}", settings.compression),
            "batches at READ COMMITTED, snapshots at SNAPSHOT isolation".to_owned(),
        ];
        if let Some(bytes) = settings.cache_bytes {
            lines.push(format!("block_cache_size {bytes}"));
        }
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!("memtable_write_buffer_size {bytes}"));
        }
        Description {
            version: tidesdb::TIDESDB_LINKED_VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let this = Self::start(path, settings)?;
        let family = ColumnFamilyConfig::new().compression_algorithm(compression(settings));
        this.database.create_column_family(FAMILY, family)?;
        Ok(this)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let this = Self::start(path, settings)?;
        this.family().context("not a database of this program")?;
        Ok(this)
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
        Ok(TidesSnapshot(self.transaction(IsolationLevel::Snapshot)?))
    }

    #[inline]
    fn begin_writes(&self) -> Result<TidesTransaction<'_>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.database.checkpoint()?)
    }

    fn compact(&mut self) -> Result<bool> {
        self.database.checkpoint()?;
        self.family()?.compact()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let stats = self.database.get_db_stats()?;
        Ok(EngineSizes {
            data_bytes: Some(stats.total_data_size_bytes),
            ..EngineSizes::default()
        })
    }

    /// Closing flushes what is in memory.
    fn close(self) -> Result<()> {
        self.database.checkpoint()?;
        drop(self.database);
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
        let TidesTransaction {
            transaction,
            family,
        } = &self.0;
        let value = found(transaction.get_notrack(family, key))?;
        Ok(look(value.as_deref()))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut entries = self.0.transaction.new_iterator(&self.0.family)?;
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
            entries: self.0.transaction.new_iterator(&self.0.family)?,
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
