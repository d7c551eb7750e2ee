//! canopydb 0.2. A B+tree of compressed keys with versions in memory, a write-ahead log and checkpoints in the background.
//!
//! Settings: canopydb's defaults, the log included. Batches are exclusive write transactions: they may begin while another runs and wait
//! for it, and never conflict. Values over 12 KiB are compressed only where it is asked for.
//!
//! Durability: `none` is `commit` without sync, which writes the log to the system. `async` has canopydb flush the log every 100 ms.
//! `sync` and `write-through` are `commit_with(true)`; commits that wait at the same time share flushes. Closing flushes the log in every
//! mode but `none`, in which every commit is with the system already.
//!
//! A batch and a snapshot open the tree once and keep it; tree and transaction are one value by way of self_cell.
use crate::flusher::INTERVAL;
use anyhow::{Context, Result};
use canopydb::{
    Bytes, Database, DbOptions, EnvOptions, RangeIter, ReadTransaction, Tree, TreeOptions,
    WriteTransaction,
};
use psitri_bench::engine::{
    Batch, Capabilities, Compression, Cursor, Description, End, Engine, EngineSizes, ReadMode,
    Settings, Snapshot, SyncMode, Writer,
};
use self_cell::self_cell;
use std::path::{Path, PathBuf};

/// Checked against the lock file by a test.
pub const VERSION: &str = "0.2.5";

const TREE: &[u8] = b"default";
const COMPRESS_OVER_BYTES: u32 = 12 << 10;

pub struct Canopydb {
    database: Database,
    path: PathBuf,
    flush_at_commit: bool,
    flushes_at_close: bool,
}

self_cell!(
    struct OpenForWriting {
        owner: WriteTransaction,
        #[not_covariant]
        dependent: Tree,
    }
);

self_cell!(
    struct OpenForReading {
        owner: ReadTransaction,
        #[not_covariant]
        dependent: Tree,
    }
);

pub struct CanopydbBatch {
    open: OpenForWriting,
    flush_at_commit: bool,
}

pub struct CanopydbSnapshot(OpenForReading);

pub struct CanopydbCursor<'c> {
    tree: &'c Tree<'c>,
    entries: Option<RangeIter<'c>>,
    at: Option<(Bytes, Bytes)>,
}

fn flushes_at_commit(sync_mode: SyncMode) -> bool {
    matches!(sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

impl Canopydb {
    fn new(path: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let mut environment = EnvOptions::new(path);
        if settings.sync_mode == SyncMode::Async {
            environment.wal_background_sync_interval = Some(INTERVAL);
        }
        if let Some(bytes) = settings.cache_bytes {
            environment.page_cache_size = usize::try_from(bytes)?;
        }
        let mut options = DbOptions::new();
        if let Some(bytes) = settings.write_buffer_bytes {
            options.checkpoint_target_size = usize::try_from(bytes)?;
            // The defaults leave room for four checkpoints as well.
            let limit = options
                .throttle_memory_limit
                .max(4 * options.checkpoint_target_size);
            options.throttle_memory_limit = limit;
            options.stall_memory_limit = limit;
        }
        Ok(Self {
            database: Database::with_options(environment, options)?,
            path: path.to_owned(),
            flush_at_commit: flushes_at_commit(settings.sync_mode),
            flushes_at_close: settings.sync_mode != SyncMode::None,
        })
    }
}

impl Writer for Canopydb {
    type Batch<'a> = CanopydbBatch;

    #[inline]
    fn begin(&self) -> Result<CanopydbBatch> {
        let transaction = self.database.begin_write()?;
        let open = OpenForWriting::try_new(transaction, |owner| {
            owner.get_tree(TREE)?.context("the tree is gone")
        })?;
        Ok(CanopydbBatch {
            open,
            flush_at_commit: self.flush_at_commit,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.sync()?)
    }
}

impl Batch for CanopydbBatch {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = self.open.with_dependent(|_, tree| tree.get(key))?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self
            .open
            .with_dependent_mut(|_, tree| tree.insert(key, value))?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.open.with_dependent_mut(|_, tree| tree.delete(key))?;
        Ok(())
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        self.open.with_dependent_mut(|_, tree| {
            let found = match end {
                End::First => tree.first()?,
                End::Last => tree.last()?,
            };
            let Some((key, value)) = found else {
                return Ok(false);
            };
            look(&key, &value);
            // Both are lent by a page, which must not be shared when it changes.
            let copied = key.to_vec();
            drop((key, value));
            Ok(tree.delete(&copied)?)
        })
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.open.into_owner().commit_with(self.flush_at_commit)?;
        Ok(())
    }
}

impl Engine for Canopydb {
    const CAPABILITIES: Capabilities = Capabilities {
        group_commit: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = CanopydbSnapshot;
    type Writes<'a> = CanopydbBatch;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => "commit without sync: the log is written to the system".to_owned(),
            SyncMode::Async => format!(
                "commit without sync, wal_background_sync_interval {} ms",
                INTERVAL.as_millis()
            ),
            SyncMode::Sync => "commit with sync".to_owned(),
            SyncMode::WriteThrough => "commit with sync, as in sync".to_owned(),
        };
        let mut lines = vec![sync];
        if let Some(bytes) = settings.cache_bytes {
            lines.push(format!("page_cache_size {bytes}"));
        }
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!("checkpoint_target_size {bytes}"));
        }
        lines.push(match settings.compression {
            Compression::None => "no compression".to_owned(),
            Compression::Lz4 => format!("lz4 for values over {COMPRESS_OVER_BYTES} bytes"),
        });
        lines.push("one thread for checkpoints: the engine has no setting".to_owned());
        Description {
            version: VERSION.to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let engine = Self::new(path, settings)?;
        let mut options = TreeOptions::new();
        options.compress_overflow_values = match settings.compression {
            Compression::None => None,
            Compression::Lz4 => Some(COMPRESS_OVER_BYTES),
        };
        let transaction = engine.database.begin_write()?;
        drop(transaction.get_or_create_tree_with(TREE, options)?);
        transaction.commit_with(engine.flush_at_commit)?;
        Ok(engine)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(path, settings)
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
    fn snapshot(&self, _mode: ReadMode) -> Result<CanopydbSnapshot> {
        let transaction = self.database.begin_read()?;
        Ok(CanopydbSnapshot(OpenForReading::try_new(
            transaction,
            |owner| owner.get_tree(TREE)?.context("the tree is gone"),
        )?))
    }

    #[inline]
    fn begin_writes(&self) -> Result<CanopydbBatch> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.database.checkpoint()?)
    }

    fn compact(&mut self) -> Result<bool> {
        self.database.compact()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        // Each database has a directory named by canopydb; there is one.
        let mut data_bytes = 0;
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(file) = std::fs::metadata(entry?.path().join("DATA")) {
                data_bytes += file.len();
            }
        }
        Ok(EngineSizes {
            reachable_bytes: None,
            data_bytes: Some(data_bytes),
            log_bytes: None,
        })
    }

    /// What is not in the data file yet comes back from the log.
    fn close(self) -> Result<()> {
        if self.flushes_at_close {
            self.database.sync()?;
        }
        Ok(())
    }
}

impl Snapshot for CanopydbSnapshot {
    type Cursor<'c>
        = CanopydbCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = self.0.with_dependent(|_, tree| tree.get(key))?;
        Ok(look(value.as_deref()))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.0.with_dependent(|_, tree| {
            for entry in tree.iter()? {
                let (key, value) = entry?;
                each(&key, &value);
            }
            Ok(())
        })
    }

    fn cursor(&mut self) -> Result<CanopydbCursor<'_>> {
        Ok(CanopydbCursor {
            tree: self.0.with_dependent(|_, tree| tree),
            entries: None,
            at: None,
        })
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.0.with_dependent(|_, tree| tree.len()))
    }
}

impl Cursor for CanopydbCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries = Some(self.tree.range(key..)?);
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries = Some(self.tree.iter()?);
        self.next()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.entries = Some(self.tree.iter()?);
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
        Some((key, value))
    }
}
