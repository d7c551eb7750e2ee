//! emdb 1. A log with all keys in memory: a hash table of positions and, if wanted, a sorted list of keys for ranges.
//!
//! [`Emdb`] is emdb as it comes, without ranges and without order; [`EmdbRanges`] has the sorted list. Settings: emdb's defaults without
//! times to live, which is a feature of the build. A batch is the cheapest call that does what it says: `insert` or `remove` for one write, `insert_many`
//! for puts, else a transaction; one append each. A map of the batch's writes stands in front where it reads. emdb has no cache, write buffer, merge or compression of its own.
//!
//! Not kept: rule (2) for more than one key: others see a batch in parts, and a crash may keep a part of it. Rule (3): reads see
//! what is newest. Cursors do not move backwards. Iterators leave out records that cannot be decoded, which emdb documents; counts
//! come from the hash table, so that a workload which checks both notices.
//!
//! Durability: `none` is emdb's default, every write is in the system when it returns. `async` flushes every 100 ms in a thread of the
//! adapter. `sync` flushes after each commit; flushes that wait at the same time are shared. `write-through` is emdb's own policy.
//! Loading and closing flush in every mode but `none`, in which everything is with the system already; emdb flushes once more by
//! itself when it is dropped.
use crate::flusher::{Flusher, INTERVAL};
use anyhow::{Result, bail};
use emdb::{EmdbRangeIter, FlushPolicy};
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot,
    SyncMode, Writer,
};
use psitri_bench::engines::pending::Pending;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Checked against the lock file by a test.
pub const VERSION: &str = "1.0.3";

/// Without ranges.
pub type Emdb = Log<false>;
/// With ranges.
pub type EmdbRanges = Log<true>;

const BULK_ENTRIES: usize = 50_000;

pub struct Log<const RANGES: bool> {
    database: emdb::Emdb,
    flush_at_commit: bool,
    /// After a bulk load, and at the end.
    flushes: bool,
    flusher: Option<Flusher>,
    /// Held by the batch that reads and writes.
    batch: Mutex<()>,
}

pub struct LogBatch<'a> {
    log: LogOf<'a>,
    pending: Pending,
    _one_at_a_time: MutexGuard<'a, ()>,
}

/// Blind writes, in their order. They need no turn.
pub struct LogWrites<'a> {
    log: LogOf<'a>,
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

/// Where a write's key and value are.
#[derive(Clone, Copy)]
struct Step {
    start: usize,
    key_end: usize,
    /// None for a removal.
    value_end: Option<usize>,
}

/// What a commit needs.
#[derive(Clone, Copy)]
struct LogOf<'a> {
    database: &'a emdb::Emdb,
    flush_at_commit: bool,
}

pub struct LogSnapshot<'a, const RANGES: bool>(&'a emdb::Emdb);

pub struct LogCursor<'c> {
    database: &'c emdb::Emdb,
    entries: Option<EmdbRangeIter>,
    at: Option<(Vec<u8>, Vec<u8>)>,
}

#[inline]
fn read<R>(database: &emdb::Emdb, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
    Ok(look(database.get_zerocopy(key)?.as_deref()))
}

impl<const RANGES: bool> Log<RANGES> {
    fn new(path: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let policy = match settings.sync_mode {
            SyncMode::WriteThrough => FlushPolicy::WriteThrough,
            SyncMode::None | SyncMode::Async | SyncMode::Sync => FlushPolicy::OnEachFlush,
        };
        let database = emdb::Emdb::builder()
            .path(path.join("emdb"))
            .enable_range_scans(RANGES)
            .flush_policy(policy)
            .build()?;
        let flusher = match settings.sync_mode {
            SyncMode::Async => {
                let database = database.clone_handle();
                Some(Flusher::new(move || Ok(database.flush()?))?)
            }
            _ => None,
        };
        Ok(Self {
            database,
            flush_at_commit: settings.sync_mode == SyncMode::Sync,
            flushes: settings.sync_mode != SyncMode::None,
            flusher,
            batch: Mutex::new(()),
        })
    }

    #[inline]
    fn log(&self) -> LogOf<'_> {
        LogOf {
            database: &self.database,
            flush_at_commit: self.flush_at_commit,
        }
    }
}

impl<const RANGES: bool> Writer for Log<RANGES> {
    type Batch<'a> = LogBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<LogBatch<'_>> {
        Ok(LogBatch {
            log: self.log(),
            pending: Pending::new(),
            _one_at_a_time: self.batch.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.flush()?)
    }
}

impl Batch for LogBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        match self.pending.get(key) {
            Some(own) => Ok(look(own)),
            None => read(self.log.database, key, look),
        }
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

    #[inline]
    fn commit(self) -> Result<()> {
        self.log.apply(self.pending.iter())
    }
}

impl LogOf<'_> {
    /// Makes writes, each with its value or none for a removal.
    fn apply<'w>(
        self,
        writes: impl Iterator<Item = (&'w [u8], Option<&'w [u8]>)> + Clone,
    ) -> Result<()> {
        let mut first_two = writes.clone();
        match (first_two.next(), first_two.next()) {
            (None, _) => return Ok(()),
            (Some((key, Some(value))), None) => self.database.insert(key, value)?,
            (Some((key, None)), None) => drop(self.database.remove(key)?),
            _ if writes.clone().all(|(_, value)| value.is_some()) => {
                let puts = writes.filter_map(|(key, value)| Some((key, value?)));
                self.database.insert_many(puts)?;
            }
            _ => self.database.transaction(|transaction| {
                for (key, value) in writes {
                    match value {
                        Some(value) => transaction.insert(key, value)?,
                        None => drop(transaction.remove(key)?),
                    }
                }
                Ok(())
            })?,
        }
        if self.flush_at_commit {
            self.database.flush()?;
        }
        Ok(())
    }
}

impl LogWrites<'_> {
    #[inline]
    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.steps.push(Step {
            start,
            key_end,
            value_end: value.map(|_| self.bytes.len()),
        });
    }
}

impl psitri_bench::engine::Writes for LogWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(key, Some(value));
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.push(key, None);
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        let bytes = &self.bytes;
        self.log.apply(self.steps.iter().map(|step| {
            let value = step.value_end.map(|end| &bytes[step.key_end..end]);
            (&bytes[step.start..step.key_end], value)
        }))
    }
}

impl<const RANGES: bool> Engine for Log<RANGES> {
    const CAPABILITIES: Capabilities = Capabilities {
        pops: false,
        ordered: RANGES,
        backwards: false,
        snapshots: false,
        atomic_batches: false,
        group_commit: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = LogSnapshot<'a, RANGES>;
    type Writes<'a> = LogWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => "FlushPolicy::OnEachFlush, no flush".to_owned(),
            SyncMode::Async => format!(
                "FlushPolicy::OnEachFlush, a flush every {} ms",
                INTERVAL.as_millis()
            ),
            SyncMode::Sync => "FlushPolicy::OnEachFlush, a flush after each commit".to_owned(),
            SyncMode::WriteThrough => "FlushPolicy::WriteThrough".to_owned(),
        };
        Description {
            version: VERSION.to_owned(),
            settings: vec![
                sync,
                format!("enable_range_scans {RANGES}"),
                "no cache, write buffer, merges or compression: the engine has none".to_owned(),
            ],
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(path, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::new(path, settings)
    }

    /// `insert_many`, in portions: it copies what it is given.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            self.database
                .insert_many(entries.by_ref().take(BULK_ENTRIES))?;
        }
        if self.flushes {
            self.database.flush()?;
        }
        Ok(())
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<LogSnapshot<'_, RANGES>> {
        Ok(LogSnapshot(&self.database))
    }

    #[inline]
    fn begin_writes(&self) -> Result<LogWrites<'_>> {
        Ok(LogWrites {
            log: self.log(),
            bytes: Vec::new(),
            steps: Vec::new(),
        })
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.database.checkpoint()?)
    }

    fn compact(&mut self) -> Result<bool> {
        self.database.compact()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let stats = self.database.stats()?;
        Ok(EngineSizes {
            reachable_bytes: None,
            data_bytes: Some(stats.file_size_bytes),
            log_bytes: None,
        })
    }

    fn close(self) -> Result<()> {
        if let Some(flusher) = self.flusher {
            flusher.finish()?;
        }
        if self.flushes {
            self.database.checkpoint()?;
        }
        Ok(())
    }
}

impl<const RANGES: bool> Snapshot for LogSnapshot<'_, RANGES> {
    type Cursor<'c>
        = LogCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        read(self.0, key, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        if RANGES {
            for (key, value) in self.0.range_iter(..)? {
                each(&key, &value);
            }
        } else {
            for (key, value) in self.0.iter()? {
                each(&key, &value);
            }
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<LogCursor<'_>> {
        if !RANGES {
            bail!("emdb has no order without ranges");
        }
        Ok(LogCursor {
            database: self.0,
            entries: None,
            at: None,
        })
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.0.len()? as u64)
    }
}

impl Cursor for LogCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.entries = Some(self.database.iter_from(key)?);
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.entries = Some(self.database.range_iter(..)?);
        self.next()
    }

    fn seek_last(&mut self) -> Result<bool> {
        bail!("emdb does not iterate backwards")
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        self.at = self.entries.as_mut().and_then(Iterator::next);
        Ok(self.at.is_some())
    }

    fn prev(&mut self) -> Result<bool> {
        bail!("emdb does not iterate backwards")
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.at.as_ref()?;
        Some((key, value))
    }
}
