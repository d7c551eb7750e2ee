//! RocksDB, in two ways: [`RocksDb`], a plain database whose batches are `WriteBatch`es ([`plain`]), and [`RocksDbTxn`], an
//! `OptimisticTransactionDB` whose batches are its own transactions ([`transactions`]). Everything else is here and the same for both.
//!
//! Settings, as its tuning guide has them: `increase_parallelism` to the number of cores, bloom filters of 10 bits a key, index and filter
//! blocks in the cache with those of level 0 pinned, background writes flushed by the megabyte, level sizes dynamic (its default). The cache
//! is one of the HyperClock kind, of a gibibyte unless a size is given; write buffer size and compression are taken as given, without compression
//! unless asked for. Blocks stay at 4 KiB: larger ones make point reads slower.
//!
//! Sync modes: the log is always written before a commit returns. `none` leaves it to the operating system; `async` flushes it
//! from a thread every tenth of a second (`FlushWAL(true)`), if something was written; `sync` and `write-through` set `sync` in each
//! write, which RocksDB does once for all writers that wait.
//!
//! A bulk load is what RocksDB recommends: the entries are sorted, written into table files of the size that its
//! compactions make (`SstFileWriter`), and those are moved into the database, all at once (`IngestExternalFile` with `move_files`).
//! RocksDB flushes the files and its manifest in doing so, so that they are durable in every sync mode,
//! also where commits before them are not yet.
//!
//! Options of reads and writes are made once, those of a snapshot's reads once a snapshot: the C interface allocates them. A read of the newest state
//! needs no snapshot. Many keys are read with the batched `MultiGet`, which does not copy values.
//! Failures: those of RocksDB, with its messages; one of the flushing thread comes at `close`.
mod plain;
mod transactions;

use crate::flusher::{Flusher, INTERVAL};
use anyhow::{Result, anyhow};
use psitri_bench::engine::{
    Batch, Capabilities, Compression, Cursor, Description, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer, Writes,
};
use rocksdb::{
    BlockBasedOptions, Cache, DBAccess, DBCompressionType, DBRawIteratorWithThreadMode, Options,
    ReadOptions, SnapshotWithThreadMode, SstFileWriter, WriteOptions,
};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io, mem, thread};

pub use plain::Plain;
pub use transactions::Transactions;

pub type RocksDb = Rocks<Plain>;
pub type RocksDbTxn = Rocks<Transactions>;

const BLOOM_BITS: f64 = 10.0;
const BYTES_PER_SYNC: u64 = 1 << 20;
/// RocksDB's `target_file_size_base`.
const LOAD_TABLE_BYTES: u64 = 64 << 20;
/// Where a bulk load writes its tables: in the database's directory, so that they are on its file system. RocksDB leaves files alone
/// whose names are not of its kind.
const LOAD_DIRECTORY: &str = "load";

/// The functions that both kinds of database have by the same names but share no trait for.
pub trait Database: DBAccess + Send + Sync + Sized + 'static {
    type Writes: Default + Send;

    fn open_with(options: &Options, path: &Path) -> Result<Self>;
    fn put_to(writes: &mut Self::Writes, key: &[u8], value: &[u8]);
    fn delete_from(writes: &mut Self::Writes, key: &[u8]);
    fn write_all(&self, writes: Self::Writes, options: &WriteOptions) -> Result<()>;
    fn ingest(&self, tables: Vec<PathBuf>) -> Result<()>;
    fn read_batch(
        &self,
        keys: &[&[u8]],
        options: &ReadOptions,
        look: impl FnMut(Option<&[u8]>),
    ) -> Result<()>;
    fn flush_log(&self) -> Result<()>;
    fn flush_buffers(&self) -> Result<()>;
    fn wait_for_compactions(&self) -> Result<()>;
    fn compact_everything(&self);
    fn last_sequence(&self) -> u64;
    fn property(&self, name: &str) -> Result<Option<u64>>;
}

/// Implements [`Database`] by the functions that both types have.
macro_rules! database {
    ($database:ty, $writes:ty) => {
        impl $crate::engines::rocksdb::Database for $database {
            type Writes = $writes;

            fn open_with(
                options: &rocksdb::Options,
                path: &std::path::Path,
            ) -> anyhow::Result<Self> {
                // By its name, so that there is a handle of it.
                let family = rocksdb::ColumnFamilyDescriptor::new(
                    rocksdb::DEFAULT_COLUMN_FAMILY_NAME,
                    options.clone(),
                );
                Ok(Self::open_cf_descriptors(options, path, [family])?)
            }

            #[inline]
            fn put_to(writes: &mut $writes, key: &[u8], value: &[u8]) {
                writes.put(key, value);
            }

            #[inline]
            fn delete_from(writes: &mut $writes, key: &[u8]) {
                writes.delete(key);
            }

            #[inline]
            fn write_all(
                &self,
                writes: $writes,
                options: &rocksdb::WriteOptions,
            ) -> anyhow::Result<()> {
                Ok(self.write_opt(writes, options)?)
            }

            fn ingest(&self, tables: Vec<std::path::PathBuf>) -> anyhow::Result<()> {
                let mut options = rocksdb::IngestExternalFileOptions::default();
                options.set_move_files(true);
                Ok(self.ingest_external_file_opts(&options, tables)?)
            }

            fn read_batch(
                &self,
                keys: &[&[u8]],
                options: &rocksdb::ReadOptions,
                mut look: impl FnMut(Option<&[u8]>),
            ) -> anyhow::Result<()> {
                let family = self.cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME);
                let family = anyhow::Context::context(family, "there is a default family")?;
                let keys = keys.iter().copied();
                for value in self.batched_multi_get_cf_opt(family, keys, false, options) {
                    look(value?.as_deref());
                }
                Ok(())
            }

            fn flush_log(&self) -> anyhow::Result<()> {
                Ok(self.flush_wal(true)?)
            }

            fn flush_buffers(&self) -> anyhow::Result<()> {
                Ok(self.flush()?)
            }

            fn wait_for_compactions(&self) -> anyhow::Result<()> {
                Ok(self.wait_for_compact(&rocksdb::WaitForCompactOptions::default())?)
            }

            fn compact_everything(&self) {
                // Unless told otherwise it leaves files at the bottom alone, which hold what was overwritten before.
                let mut options = rocksdb::CompactOptions::default();
                options.set_bottommost_level_compaction(
                    rocksdb::BottommostLevelCompaction::ForceOptimized,
                );
                self.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
            }

            fn last_sequence(&self) -> u64 {
                self.latest_sequence_number()
            }

            fn property(&self, name: &str) -> anyhow::Result<Option<u64>> {
                Ok(self.property_int_value(name)?)
            }
        }
    };
}
use database;

/// One of the two ways to read and write in a batch.
pub trait Kind: Send + Sync + Sized + 'static {
    type Database: Database;
    type Batch<'a>: Batch;
    const LINE: &'static str;
    /// Whether a batch reads in order what it wrote.
    const POPS: bool;

    fn begin<'a>(database: &'a Self::Database, options: &'a Access) -> Self::Batch<'a>;
}

/// The options of single operations.
pub struct Access {
    read: ReadOptions,
    write: WriteOptions,
}

pub struct Rocks<K: Kind> {
    // Before the database, which it uses.
    flusher: Option<Flusher>,
    database: Arc<K::Database>,
    access: Access,
    options: Options,
    path: PathBuf,
    /// Tables of bulk loads. Their writer has the system forget a file's pages when it is done.
    loaded: Mutex<Vec<File>>,
}

fn syncs(sync_mode: SyncMode) -> bool {
    matches!(sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

fn parallelism(settings: &Settings) -> usize {
    settings.merge_threads.unwrap_or_else(|| {
        // RocksDB needs at least two: one flushes while one compacts.
        thread::available_parallelism().map_or(2, |cores| cores.get().max(2))
    })
}

fn options(settings: &Settings) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_bloom_filter(BLOOM_BITS, false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // Zero lets RocksDB work the size of an entry out.
    let cache = Cache::new_hyper_clock_cache(settings.cache_bytes_or_common() as usize, 0);
    blocks.set_block_cache(&cache);
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.increase_parallelism(parallelism(settings) as i32);
    options.set_bytes_per_sync(BYTES_PER_SYNC);
    options.set_compression_type(match settings.compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
    });
    if let Some(bytes) = settings.write_buffer_bytes {
        options.set_write_buffer_size(bytes as usize);
    }
    options
}

impl<K: Kind> Rocks<K> {
    fn start(path: &Path, settings: &Settings, creates: bool) -> Result<Self> {
        let mut options = options(settings);
        options.create_if_missing(creates);
        options.set_error_if_exists(creates);
        let database = Arc::new(K::Database::open_with(&options, path)?);
        let mut write = WriteOptions::default();
        write.set_sync(syncs(settings.sync_mode));
        let flusher = (settings.sync_mode == SyncMode::Async)
            .then(|| flusher(Arc::clone(&database)))
            .transpose()?;
        Ok(Self {
            flusher,
            database,
            access: Access {
                read: ReadOptions::default(),
                write,
            },
            options,
            path: path.to_owned(),
            loaded: Mutex::default(),
        })
    }

    /// Loads sorted entries as table files.
    fn ingest(&self, sorted: &[(&[u8], &[u8])]) -> Result<()> {
        let directory = self.path.join(LOAD_DIRECTORY);
        fs::create_dir_all(&directory)?;
        let outcome = write_tables(&self.options, &directory, sorted).and_then(|tables| {
            // Under the names that they are moved to they are the same files.
            let files = tables.iter().map(File::open);
            let files = files.collect::<io::Result<Vec<File>>>()?;
            self.loaded
                .lock()
                .expect("nothing panics with it")
                .extend(files);
            self.database.ingest(tables)
        });
        let removed = fs::remove_dir_all(&directory);
        outcome?;
        Ok(removed?)
    }
}

/// Writes sorted entries into files of their own, in this order, and returns those.
fn write_tables(
    options: &Options,
    directory: &Path,
    sorted: &[(&[u8], &[u8])],
) -> Result<Vec<PathBuf>> {
    let mut tables = Vec::new();
    let mut entries = sorted.iter().peekable();
    while entries.peek().is_some() {
        let table = directory.join(format!("{}.sst", tables.len()));
        let mut writer = SstFileWriter::create(options);
        writer.open(&table)?;
        while writer.file_size() < LOAD_TABLE_BYTES
            && let Some((key, value)) = entries.next()
        {
            writer.put(key, value)?;
        }
        writer.finish()?;
        tables.push(table);
    }
    Ok(tables)
}

/// Flushes the log if something was written since the last time.
fn flusher<D: Database>(database: Arc<D>) -> Result<Flusher> {
    let mut flushed = 0;
    Flusher::new(move || {
        let written = database.last_sequence();
        if written != flushed {
            database.flush_log()?;
            flushed = written;
        }
        Ok(())
    })
}

impl<K: Kind> Writer for Rocks<K> {
    type Batch<'a> = K::Batch<'a>;

    #[inline]
    fn begin(&self) -> Result<K::Batch<'_>> {
        Ok(K::begin(&self.database, &self.access))
    }

    fn sync(&self) -> Result<()> {
        self.database.flush_log()
    }
}

impl<K: Kind> Engine for Rocks<K> {
    const CAPABILITIES: Capabilities = Capabilities {
        pops: K::POPS,
        group_commit: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = RocksSnapshot<'a, K::Database>;
    type Writes<'a> = RocksWrites<'a, K::Database>;

    fn describe(settings: &Settings) -> Description {
        let log = match settings.sync_mode {
            SyncMode::None => "sync false".to_owned(),
            SyncMode::Async => format!("sync false, FlushWAL(true) every {INTERVAL:?} by a thread"),
            SyncMode::Sync | SyncMode::WriteThrough => "sync true".to_owned(),
        };
        let mut lines = vec![
            K::LINE.to_owned(),
            format!("write-ahead log on, {log}"),
            format!("increase_parallelism {}", parallelism(settings)),
            format!(
                "bloom filters of {BLOOM_BITS} bits, index and filter blocks cached, pinned for level 0"
            ),
            format!("bytes_per_sync {BYTES_PER_SYNC}"),
            format!("compression {:?}", settings.compression),
            "bulk loads by SstFileWriter and IngestExternalFile with move_files".to_owned(),
            format!(
                "HyperClock cache of {} bytes",
                settings.cache_bytes_or_common()
            ),
        ];
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!("write_buffer_size {bytes}"));
        }
        Description {
            version: VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, true)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, false)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        // A table file cannot be empty.
        if sorted.is_empty() {
            return Ok(());
        }
        sorted.sort_unstable_by_key(|(key, _)| *key);
        self.ingest(&sorted)
    }

    fn recall_load(&self) -> Result<()> {
        let files = mem::take(&mut *self.loaded.lock().expect("nothing panics with it"));
        for mut file in files {
            io::copy(&mut file, &mut io::sink())?;
        }
        Ok(())
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<RocksSnapshot<'_, K::Database>> {
        Ok(RocksSnapshot {
            snapshot: SnapshotWithThreadMode::new(&self.database),
            database: &self.database,
            options: None,
        })
    }

    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = self.database.get_pinned_opt(key, &self.access.read)?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn begin_writes(&self) -> Result<RocksWrites<'_, K::Database>> {
        Ok(RocksWrites {
            database: &self.database,
            options: &self.access.write,
            writes: Default::default(),
        })
    }

    fn checkpoint(&self) -> Result<()> {
        self.database.flush_buffers()?;
        self.database.wait_for_compactions()?;
        self.database.flush_log()
    }

    fn compact(&mut self) -> Result<bool> {
        self.checkpoint()?;
        self.database.compact_everything();
        self.database.wait_for_compactions()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let mut log_bytes = 0;
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension() == Some(OsStr::new("log")) {
                // One that is gone by now was deleted by RocksDB.
                log_bytes += fs::metadata(&path).map_or(0, |metadata| metadata.len());
            }
        }
        Ok(EngineSizes {
            reachable_bytes: self.database.property("rocksdb.estimate-live-data-size")?,
            data_bytes: self.database.property("rocksdb.total-sst-files-size")?,
            log_bytes: Some(log_bytes),
        })
    }

    fn close(self) -> Result<()> {
        if let Some(flusher) = self.flusher {
            flusher.finish()?;
        }
        Arc::into_inner(self.database)
            .map(drop)
            .ok_or_else(|| anyhow!("the database is in use"))
    }
}

/// Of the RocksDB that the crate brings with it; a test compares it with what the log of a database says.
pub const VERSION: &str = "11.8.1";

/// A write batch, which both kinds of database take.
pub struct RocksWrites<'a, D: Database> {
    database: &'a D,
    options: &'a WriteOptions,
    writes: D::Writes,
}

impl<D: Database> Writes for RocksWrites<'_, D> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        D::put_to(&mut self.writes, key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        D::delete_from(&mut self.writes, key);
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.database.write_all(self.writes, self.options)
    }
}

pub struct RocksSnapshot<'a, D: Database> {
    snapshot: SnapshotWithThreadMode<'a, D>,
    database: &'a D,
    /// Of reads of keys; there from the first one on.
    options: Option<ReadOptions>,
}

/// The options of reads in a snapshot, made at the first.
fn options_in<'o, D: Database>(
    options: &'o mut Option<ReadOptions>,
    snapshot: &SnapshotWithThreadMode<'_, D>,
) -> &'o ReadOptions {
    options.get_or_insert_with(|| {
        let mut options = ReadOptions::default();
        options.set_snapshot(snapshot);
        options
    })
}

impl<D: Database> Snapshot for RocksSnapshot<'_, D> {
    type Cursor<'c>
        = RocksCursor<'c, D>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let options = options_in(&mut self.options, &self.snapshot);
        let value = self.database.get_pinned_opt(key, options)?;
        Ok(look(value.as_deref()))
    }

    /// `MultiGet`.
    fn read_many(&mut self, keys: &[&[u8]], look: impl FnMut(Option<&[u8]>)) -> Result<()> {
        let options = options_in(&mut self.options, &self.snapshot);
        self.database.read_batch(keys, options, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut entries = self.snapshot.raw_iterator();
        entries.seek_to_first();
        while let Some((key, value)) = entries.item() {
            each(key, value);
            entries.next();
        }
        Ok(entries.status()?)
    }

    #[inline]
    fn cursor(&mut self) -> Result<RocksCursor<'_, D>> {
        Ok(RocksCursor(self.snapshot.raw_iterator()))
    }
}

pub struct RocksCursor<'c, D: Database>(DBRawIteratorWithThreadMode<'c, D>);

impl<D: Database> RocksCursor<'_, D> {
    /// An iterator that is nowhere may be so because of an error.
    #[inline]
    fn is_on_entry(&self) -> Result<bool> {
        let valid = self.0.valid();
        if !valid {
            self.0.status()?;
        }
        Ok(valid)
    }
}

impl<D: Database> Cursor for RocksCursor<'_, D> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.0.seek(key);
        self.is_on_entry()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.0.seek_to_first();
        self.is_on_entry()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.0.seek_to_last();
        self.is_on_entry()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        self.0.next();
        self.is_on_entry()
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        self.0.prev();
        self.is_on_entry()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.0.item()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than one file holds.
    #[test]
    fn a_load_of_several_tables_is_read_back() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("db");
        let engine = RocksDb::create(&path, &Settings::default())?;
        let value = vec![7; 1 << 20];
        let keys: Vec<[u8; 4]> = (0..150u32).rev().map(u32::to_be_bytes).collect();
        engine.bulk_load(keys.iter().map(|key| (&key[..], &value[..])))?;
        assert!(!path.join(LOAD_DIRECTORY).exists());
        let tables = fs::read_dir(&path)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some(OsStr::new("sst")));
        assert_eq!(tables.count(), 3);
        engine.close()?;
        let engine = RocksDb::open(&path, &Settings::default())?;
        assert_eq!(engine.snapshot(ReadMode::Latest)?.count()?, 150);
        for key in &keys {
            assert!(engine.read_latest(key, |found| found == Some(&value[..]))?);
        }
        engine.close()
    }

    #[test]
    fn the_version_is_that_of_the_library() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let engine = RocksDb::create(&directory.path().join("db"), &Settings::default())?;
        engine.close()?;
        let log = fs::read_to_string(directory.path().join("db/LOG"))?;
        let line = format!("RocksDB version: {VERSION}");
        assert!(log.contains(&line), "no `{line}` in {log:.300}");
        Ok(())
    }
}
