//! sled 0.34. A log-structured tree of pages with a cache in memory; writers and readers without locks.
//!
//! Settings: sled's defaults but for the flush interval, which its documentation names as the setting that matters for speed. Compression
//! is zstd only and a feature of the build, so none is used. Batches are sled's own, which other reads and batches see as a whole;
//! they cannot be read, so that a map of the batch's writes stands in front. One batch at a time, or two that read and write the same
//! key would lose one of the writes.
//!
//! Not kept: rule (3). sled has no snapshots, a scan sees what is written while it runs.
//!
//! Durability: sled keeps the newest writes in buffers of the process until they are flushed, in every mode. `none` flushes every 500 ms
//! (the default) and `async` every 100 ms, both weaker than asked, for what was not flushed dies with the process; sled has nothing between
//! that and a flush. `sync` and `write-through` flush at each commit; on Linux sled 0.34 does this with `sync_file_range`, which leaves
//! out the file's metadata and the cache of the disk.
use crate::flusher::INTERVAL;
use anyhow::Result;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot,
    SyncMode, Writer,
};
use psitri_bench::engines::pending::Pending;
use sled::{Config, Db, IVec, Mode};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Checked against the lock file by a test.
pub const VERSION: &str = "0.34.7";

const FLUSH_MILLISECONDS: u64 = 500;
const CLOSING_MAX: Duration = Duration::from_secs(10);
const CLOSING_POLL: Duration = Duration::from_millis(1);

pub struct Sled {
    database: Db,
    flush_at_commit: bool,
    /// Held by the batch that reads and writes.
    batch: Mutex<()>,
}

pub struct SledBatch<'a> {
    engine: &'a Sled,
    pending: Pending,
    _one_at_a_time: MutexGuard<'a, ()>,
}

/// Blind writes need no turn.
pub struct SledWrites<'a> {
    engine: &'a Sled,
    batch: sled::Batch,
}

pub struct SledSnapshot<'a>(&'a Db);

pub struct SledCursor<'c> {
    database: &'c Db,
    entries: Option<sled::Iter>,
    at: Option<(IVec, IVec)>,
}

fn flushes_at_commit(sync_mode: SyncMode) -> bool {
    matches!(sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

fn flush_milliseconds(sync_mode: SyncMode) -> u64 {
    match sync_mode {
        SyncMode::Async => INTERVAL.as_millis() as u64,
        _ => FLUSH_MILLISECONDS,
    }
}

/// Opens the database as soon as its files are free: a thread of sled's own may hold them for a moment after it was closed.
fn open_once_closed(config: &Config) -> sled::Result<Db> {
    let start = Instant::now();
    loop {
        match config.open() {
            Err(sled::Error::Io(error))
                if error.to_string().contains("could not acquire lock")
                    && start.elapsed() < CLOSING_MAX =>
            {
                thread::sleep(CLOSING_POLL);
            }
            opened => return opened,
        }
    }
}

impl Sled {
    fn new(path: &Path, settings: &Settings) -> Result<Self> {
        let mut config = Config::new()
            .path(path)
            .mode(Mode::HighThroughput)
            .flush_every_ms(Some(flush_milliseconds(settings.sync_mode)));
        if let Some(bytes) = settings.cache_bytes {
            config = config.cache_capacity(bytes);
        }
        Ok(Self {
            database: open_once_closed(&config)?,
            flush_at_commit: flushes_at_commit(settings.sync_mode),
            batch: Mutex::new(()),
        })
    }

    #[inline]
    fn apply(&self, batch: sled::Batch) -> Result<()> {
        self.database.apply_batch(batch)?;
        if self.flush_at_commit {
            self.database.flush()?;
        }
        Ok(())
    }
}

impl Writer for Sled {
    type Batch<'a> = SledBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<SledBatch<'_>> {
        Ok(SledBatch {
            engine: self,
            pending: Pending::new(),
            _one_at_a_time: self.batch.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    fn sync(&self) -> Result<()> {
        self.database.flush()?;
        Ok(())
    }
}

impl Batch for SledBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if let Some(own) = self.pending.get(key) {
            return Ok(look(own));
        }
        Ok(look(self.engine.database.get(key)?.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pending.put(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.pending.delete(key);
        Ok(())
    }

    fn commit(self) -> Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in self.pending.iter() {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        self.engine.apply(batch)
    }
}

impl psitri_bench::engine::Writes for SledWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.insert(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.remove(key);
        Ok(())
    }

    fn commit(self) -> Result<()> {
        self.engine.apply(self.batch)
    }
}

impl Engine for Sled {
    const CAPABILITIES: Capabilities = Capabilities {
        pops: false,
        snapshots: false,
        group_commit: true,
        weaker_durability: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = SledSnapshot<'a>;
    type Writes<'a> = SledWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        let interval = flush_milliseconds(settings.sync_mode);
        let mut lines = vec![if flushes_at_commit(settings.sync_mode) {
            "flush at each commit, with sync_file_range on Linux: weaker than asked".to_owned()
        } else {
            format!(
                "flush_every_ms {interval}; weaker than asked: up to {interval} ms of commits die with the process"
            )
        }];
        if let Some(bytes) = settings.cache_bytes {
            lines.push(format!("cache_capacity {bytes}"));
        }
        lines.push("mode HighThroughput, no compression".to_owned());
        lines.push("write buffer and merge threads: the engine has no setting".to_owned());
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

    /// Single inserts: a batch has no advantage where nobody else writes, and would need all entries in memory twice.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        for (key, value) in entries {
            self.database.insert(key, value)?;
        }
        self.sync()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<SledSnapshot<'_>> {
        Ok(SledSnapshot(&self.database))
    }

    #[inline]
    fn begin_writes(&self) -> Result<SledWrites<'_>> {
        Ok(SledWrites {
            engine: self,
            batch: sled::Batch::default(),
        })
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        Ok(EngineSizes {
            reachable_bytes: None,
            data_bytes: Some(self.database.size_on_disk()?),
            log_bytes: None,
        })
    }

    /// Flushes in every mode: what was committed last is in buffers of the process, and a thread of sled's own may be the one that drops
    /// the database and writes them, at some time after this returned.
    fn close(self) -> Result<()> {
        self.sync()
    }
}

impl Snapshot for SledSnapshot<'_> {
    type Cursor<'c>
        = SledCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.0.get(key)?.as_deref()))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.0.iter() {
            let (key, value) = entry?;
            each(&key, &value);
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<SledCursor<'_>> {
        Ok(SledCursor {
            database: self.0,
            entries: None,
            at: None,
        })
    }

    /// sled counts by reading everything.
    fn count(&mut self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
}

impl Cursor for SledCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries = Some(self.database.range(key..));
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries = Some(self.database.iter());
        self.next()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.entries = Some(self.database.iter());
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
