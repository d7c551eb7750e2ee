//! redb 4. A copy-on-write B+tree in one file with a cache of its own; one writer at a time, readers that never wait.
//!
//! Settings: redb's defaults, which its documentation gives as the fast ones (one-phase commit, no quick repair, cache of 1 GiB). It has no
//! write buffer, merges or compression.
//!
//! Durability: `sync` and `write-through` are `Durability::Immediate` (one flush at each commit, by the only writer). redb's
//! `Durability::None` keeps commits in the memory of the process, so that they die with it: less than `none` promises. `none` is
//! therefore `Durability::Immediate` on a storage backend whose flush does nothing: every commit is written to the system, which keeps
//! it when the process dies. `async` is the same with a flush every 100 ms. Without flushes the order of page writes is up to
//! the system, so that a power failure may cost the whole database, not only the newest commits.
//!
//! A batch and a snapshot open the table once and keep it; table and transaction are one value by way of self_cell.
use crate::flusher::{Flusher, INTERVAL};
use anyhow::Result;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use redb::backends::FileBackend;
use redb::{
    AccessGuard, Builder, Database, Range, ReadOnlyTable, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageBackend, Table, TableDefinition, WriteTransaction,
};
use self_cell::self_cell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Checked against the lock file by a test.
pub const VERSION: &str = "4.5.0";

type Bytes = &'static [u8];

const TABLE: TableDefinition<'static, Bytes, Bytes> = TableDefinition::new("default");

pub struct Redb {
    database: Database,
    path: PathBuf,
    flusher: Option<Flusher>,
}

type OpenTable<'t> = Table<'t, Bytes, Bytes>;

self_cell!(
    struct Transaction {
        owner: WriteTransaction,
        #[not_covariant]
        dependent: OpenTable,
    }
);

pub struct RedbBatch(Transaction);

pub struct RedbSnapshot(ReadOnlyTable<Bytes, Bytes>);

pub struct RedbCursor<'c> {
    table: &'c ReadOnlyTable<Bytes, Bytes>,
    entries: Option<Range<'c, Bytes, Bytes>>,
    at: Option<(AccessGuard<'c, Bytes>, AccessGuard<'c, Bytes>)>,
}

/// A file that leaves flushing to the system.
#[derive(Debug)]
struct Unflushed(FileBackend);

impl StorageBackend for Unflushed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

fn flushes_at_commit(sync_mode: SyncMode) -> bool {
    matches!(sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

impl Redb {
    fn new(path: &Path, settings: &Settings) -> Result<Self> {
        let mut builder = Builder::new();
        if let Some(bytes) = settings.cache_bytes {
            builder.set_cache_size(usize::try_from(bytes)?);
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let flusher = match settings.sync_mode {
            SyncMode::Async => {
                let file = Arc::new(file.try_clone()?);
                Some(Flusher::new(move || Ok(file.sync_data()?))?)
            }
            _ => None,
        };
        let backend = FileBackend::new(file)?;
        let database = if flushes_at_commit(settings.sync_mode) {
            builder.create_with_backend(backend)?
        } else {
            builder.create_with_backend(Unflushed(backend))?
        };
        Ok(Self {
            database,
            path: path.to_owned(),
            flusher,
        })
    }

    fn flush(&self) -> Result<()> {
        Ok(File::open(&self.path)?.sync_data()?)
    }
}

impl Writer for Redb {
    type Batch<'a> = RedbBatch;

    #[inline]
    fn begin(&self) -> Result<RedbBatch> {
        let transaction = self.database.begin_write()?;
        Ok(RedbBatch(Transaction::try_new(transaction, |owner| {
            owner.open_table(TABLE)
        })?))
    }

    fn sync(&self) -> Result<()> {
        self.flush()
    }
}

impl Batch for RedbBatch {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.0.with_dependent(|_, table| {
            let value = table.get(key)?;
            Ok(look(value.as_ref().map(AccessGuard::value)))
        })
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.with_dependent_mut(|_, table| {
            table.insert(key, value)?;
            Ok(())
        })
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.with_dependent_mut(|_, table| {
            table.remove(key)?;
            Ok(())
        })
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        self.0.with_dependent_mut(|_, table| {
            let popped = match end {
                End::First => table.pop_first()?,
                End::Last => table.pop_last()?,
            };
            Ok(popped
                .map(|(key, value)| look(key.value(), value.value()))
                .is_some())
        })
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.0.into_owner().commit()?)
    }
}

impl Engine for Redb {
    const CAPABILITIES: Capabilities = Capabilities {
        none_risks_database: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = RedbSnapshot;
    type Writes<'a> = RedbBatch;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => {
                "Durability::Immediate, storage backend without flushes: survives the process; a power failure may cost the database"
                    .to_owned()
            }
            SyncMode::Async => format!(
                "Durability::Immediate, storage backend without flushes, a flush every {} ms; a power failure may cost the database",
                INTERVAL.as_millis()
            ),
            SyncMode::Sync => "Durability::Immediate".to_owned(),
            SyncMode::WriteThrough => {
                "Durability::Immediate, as in sync: there is one writer".to_owned()
            }
        };
        let mut lines = vec![sync];
        if let Some(bytes) = settings.cache_bytes {
            lines.push(format!("cache_size {bytes}"));
        }
        lines.push("no write buffer, merges or compression: the engine has none".to_owned());
        Description {
            version: VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let engine = Self::new(&file_of(path)?, settings)?;
        // The table has to be there before a snapshot can open it.
        engine.begin()?.commit()?;
        Ok(engine)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(&file_of(path)?, settings)
    }

    /// In the order of the keys, which a tree fills fastest in.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let mut batch = self.begin()?;
        for (key, value) in sorted {
            batch.put(key, value)?;
        }
        batch.commit()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<RedbSnapshot> {
        Ok(RedbSnapshot(self.database.begin_read()?.open_table(TABLE)?))
    }

    #[inline]
    fn begin_writes(&self) -> Result<RedbBatch> {
        self.begin()
    }

    fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut batch = self.begin()?;
        batch.0.with_dependent_mut(|_, table| {
            table.retain(|key: &[u8], value: &[u8]| keep(key, value))
        })?;
        batch.commit()
    }

    fn extract(
        &self,
        range: std::ops::Range<&[u8]>,
        mut wanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let mut batch = self.begin()?;
        let extracted = batch.0.with_dependent_mut(|_, table| {
            let wanted = |key: &[u8], value: &[u8]| wanted(key, value);
            let mut extracted = 0;
            for entry in table.extract_from_if::<&[u8], _>(range, wanted)? {
                entry?;
                extracted += 1;
            }
            anyhow::Ok(extracted)
        })?;
        batch.commit()?;
        Ok(extracted)
    }

    fn checkpoint(&self) -> Result<()> {
        self.flush()
    }

    fn compact(&mut self) -> Result<bool> {
        // Each call moves some pages; nothing is left to move when it says so.
        while self.database.compact()? {}
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let transaction = self.database.begin_write()?;
        let stats = transaction.stats()?;
        transaction.abort()?;
        Ok(EngineSizes {
            reachable_bytes: Some(stats.allocated_pages() * stats.page_size() as u64),
            data_bytes: Some(std::fs::metadata(&self.path)?.len()),
            log_bytes: None,
        })
    }

    fn close(self) -> Result<()> {
        if let Some(flusher) = self.flusher {
            flusher.finish()?;
        }
        self.database.close()?;
        Ok(())
    }
}

/// The database file in the directory that the workload gives.
fn file_of(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path)?;
    Ok(path.join("redb"))
}

impl Snapshot for RedbSnapshot {
    type Cursor<'c>
        = RedbCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = self.0.get(key)?;
        Ok(look(value.as_ref().map(AccessGuard::value)))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.0.iter()? {
            let (key, value) = entry?;
            each(key.value(), value.value());
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<RedbCursor<'_>> {
        Ok(RedbCursor {
            table: &self.0,
            entries: None,
            at: None,
        })
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.0.len()?)
    }
}

impl Cursor for RedbCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries = Some(self.table.range::<&[u8]>(key..)?);
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries = Some(self.table.range::<&[u8]>(..)?);
        self.next()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.entries = Some(self.table.range::<&[u8]>(..)?);
        self.prev()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        let entry = self.entries.as_mut().and_then(Iterator::next);
        self.at = entry.transpose()?;
        Ok(self.at.is_some())
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        let entry = self
            .entries
            .as_mut()
            .and_then(DoubleEndedIterator::next_back);
        self.at = entry.transpose()?;
        Ok(self.at.is_some())
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.at.as_ref()?;
        Some((key.value(), value.value()))
    }
}
