//! fjall 3. A log-structured merge tree with a journal; background threads flush and compact.
//!
//! Settings: fjall's defaults (memtables of 64 MiB, bloom filters, up to four threads), but for a cache of a gibibyte unless a size is given; compression only where it is asked for. Batches
//! are transactions of the single-writer database, which read their own writes; blind writes are write batches, which take no
//! turn. A bulk load is an ingestion, sorted, as fjall recommends for filling a database.
//!
//! Durability: `none` is fjall's default, `PersistMode::Buffer`: every commit is written to the system. `async` flushes the journal every 100 ms in a thread
//! of the adapter, for fjall has left that to its user since version 3. `sync` and `write-through` are `PersistMode::SyncData` at each
//! commit, which happens under the journal's lock: commits wait for one another's flush. Closing flushes the journal in the modes that
//! flush, so that an error is told; in `none` it is fjall's own, which flushes the journal as well and tells nobody.
//!
//! A read of the newest state is the keyspace's `get`, without a snapshot.
use crate::flusher::{Flusher, INTERVAL};
use anyhow::{Context, Result};
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Iter, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx, UserKey, UserValue,
};
use psitri_bench::engine::{
    Batch, Capabilities, Compression, Cursor, Description, End, Engine, EngineSizes, ReadMode,
    Settings, Snapshot, SyncMode, Writer, Writes,
};
use std::path::Path;

/// Checked against the lock file by a test.
pub const VERSION: &str = "3.1.13";

pub struct Fjall {
    database: SingleWriterTxDatabase,
    keyspace: SingleWriterTxKeyspace,
    persist: PersistMode,
    flusher: Option<Flusher>,
    flushes_at_close: bool,
}

pub struct FjallBatch<'a> {
    transaction: SingleWriterWriteTx<'a>,
    keyspace: &'a SingleWriterTxKeyspace,
}

pub struct FjallWrites<'a> {
    batch: OwnedWriteBatch,
    keyspace: &'a SingleWriterTxKeyspace,
}

pub struct FjallSnapshot<'a> {
    snapshot: fjall::Snapshot,
    keyspace: &'a SingleWriterTxKeyspace,
}

pub struct FjallCursor<'c> {
    snapshot: &'c fjall::Snapshot,
    keyspace: &'c SingleWriterTxKeyspace,
    entries: Option<Iter>,
    at: Option<(UserKey, UserValue)>,
}

fn persist(sync_mode: SyncMode) -> PersistMode {
    match sync_mode {
        SyncMode::None | SyncMode::Async => PersistMode::Buffer,
        SyncMode::Sync | SyncMode::WriteThrough => PersistMode::SyncData,
    }
}

impl Fjall {
    fn new(path: &Path, settings: &Settings) -> Result<Self> {
        let mut builder = SingleWriterTxDatabase::builder(path);
        builder = builder.cache_size(settings.cache_bytes_or_common());
        if let Some(threads) = settings.merge_threads {
            builder = builder.worker_threads(threads);
        }
        let compression = match settings.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
        };
        let database = builder.journal_compression(compression).open()?;
        let keyspace = database.keyspace("default", || {
            let options = KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::all(compression));
            match settings.write_buffer_bytes {
                Some(bytes) => options.max_memtable_size(bytes),
                None => options,
            }
        })?;
        let flusher = match settings.sync_mode {
            SyncMode::Async => {
                let database = database.inner().clone();
                Some(Flusher::new(move || {
                    Ok(database.persist(PersistMode::SyncData)?)
                })?)
            }
            _ => None,
        };
        Ok(Self {
            database,
            keyspace,
            persist: persist(settings.sync_mode),
            flusher,
            flushes_at_close: settings.sync_mode != SyncMode::None,
        })
    }
}

impl Writer for Fjall {
    type Batch<'a> = FjallBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<FjallBatch<'_>> {
        Ok(FjallBatch {
            transaction: self.database.write_tx().durability(Some(self.persist)),
            keyspace: &self.keyspace,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

impl Batch for FjallBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.transaction.get(self.keyspace, key)?.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.insert(self.keyspace, key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.transaction.remove(self.keyspace, key);
        Ok(())
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let found = match end {
            End::First => self.transaction.first_key_value(self.keyspace),
            End::Last => self.transaction.last_key_value(self.keyspace),
        };
        let Some(entry) = found else {
            return Ok(false);
        };
        let (key, value) = entry.into_inner()?;
        look(&key, &value);
        self.transaction.remove(self.keyspace, key);
        Ok(true)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}

impl Writes for FjallWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.insert(self.keyspace.inner(), key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.remove(self.keyspace.inner(), key);
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.batch.commit()?)
    }
}

impl Engine for Fjall {
    const CAPABILITIES: Capabilities = Capabilities::FULL;

    type Snapshot<'a> = FjallSnapshot<'a>;
    type Writes<'a> = FjallWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => "PersistMode::Buffer at each commit".to_owned(),
            SyncMode::Async => format!(
                "PersistMode::Buffer at each commit, a flush of the journal every {} ms",
                INTERVAL.as_millis()
            ),
            SyncMode::Sync => "PersistMode::SyncData at each commit".to_owned(),
            SyncMode::WriteThrough => "PersistMode::SyncData at each commit, as in sync".to_owned(),
        };
        let mut lines = vec![
            sync,
            format!("cache_size {}", settings.cache_bytes_or_common()),
        ];
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!("max_memtable_size {bytes}"));
        }
        if let Some(threads) = settings.merge_threads {
            lines.push(format!("worker_threads {threads}"));
        }
        lines.push(match settings.compression {
            Compression::None => "no compression of blocks and journal".to_owned(),
            Compression::Lz4 => "lz4 for blocks and journal".to_owned(),
        });
        Description {
            version: VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(path, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(path, settings)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        if sorted.is_empty() {
            return Ok(());
        }
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let mut ingestion = self.keyspace.inner().start_ingestion()?;
        for (key, value) in sorted {
            ingestion.write(key, value)?;
        }
        Ok(ingestion.finish()?)
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<FjallSnapshot<'_>> {
        Ok(FjallSnapshot {
            snapshot: self.database.read_tx(),
            keyspace: &self.keyspace,
        })
    }

    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.keyspace.get(key)?.as_deref()))
    }

    #[inline]
    fn begin_writes(&self) -> Result<FjallWrites<'_>> {
        Ok(FjallWrites {
            batch: self.database.inner().batch().durability(Some(self.persist)),
            keyspace: &self.keyspace,
        })
    }

    fn checkpoint(&self) -> Result<()> {
        self.keyspace.inner().rotate_memtable_and_wait()?;
        self.sync()
    }

    fn compact(&mut self) -> Result<bool> {
        self.keyspace.inner().rotate_memtable_and_wait()?;
        self.keyspace.inner().major_compact()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let log_bytes = self.database.inner().journal_disk_space()?;
        let data_bytes = self.keyspace.inner().disk_space();
        Ok(EngineSizes {
            reachable_bytes: None,
            data_bytes: Some(data_bytes),
            log_bytes: Some(log_bytes),
        })
    }

    fn close(self) -> Result<()> {
        if let Some(flusher) = self.flusher {
            flusher.finish()?;
        }
        if self.flushes_at_close {
            self.database
                .persist(PersistMode::SyncData)
                .context("last flush")?;
        }
        Ok(())
    }
}

impl Snapshot for FjallSnapshot<'_> {
    type Cursor<'c>
        = FjallCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.snapshot.get(self.keyspace, key)?.as_deref()))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.snapshot.iter(self.keyspace) {
            let (key, value) = entry.into_inner()?;
            each(&key, &value);
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<FjallCursor<'_>> {
        Ok(FjallCursor {
            snapshot: &self.snapshot,
            keyspace: self.keyspace,
            entries: None,
            at: None,
        })
    }

    /// fjall counts by reading all keys.
    fn count(&mut self) -> Result<u64> {
        Ok(self.snapshot.len(self.keyspace)? as u64)
    }
}

impl Cursor for FjallCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries = Some(self.snapshot.range(self.keyspace, key..));
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries = Some(self.snapshot.iter(self.keyspace));
        self.next()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.entries = Some(self.snapshot.iter(self.keyspace));
        self.prev()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        let entry = self.entries.as_mut().and_then(Iterator::next);
        self.at = entry.map(fjall::Guard::into_inner).transpose()?;
        Ok(self.at.is_some())
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        let entry = self
            .entries
            .as_mut()
            .and_then(DoubleEndedIterator::next_back);
        self.at = entry.map(fjall::Guard::into_inner).transpose()?;
        Ok(self.at.is_some())
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.at.as_ref()?;
        Some((key, value))
    }
}
