//! PsiTri, in both of its ways to commit.
//!
//! [`Psitri`] begins buffered transactions, [`PsitriDirect`] direct ones. The bulk load is one direct transaction in both, which ingests.
use crate::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer, Writes,
};
use anyhow::Result;
use psitri::{Database, Durability, Keyspace, Options, WriteBatch, WriteTxn};
use rustix::process::{Resource, getrlimit};
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// Buffered transactions.
pub type Psitri = Native<false>;
/// Direct transactions.
pub type PsitriDirect = Native<true>;

pub struct Native<const DIRECT: bool> {
    database: Database,
    keyspace: Keyspace,
}

pub struct NativeBatch<'a> {
    transaction: WriteTxn,
    keyspace: &'a Keyspace,
}

/// Blind writes: a write batch where transactions are buffered, a transaction where they are direct.
pub enum NativeWrites<'a> {
    Batch {
        batch: WriteBatch,
        database: &'a Database,
        keyspace: &'a Keyspace,
    },
    Direct(NativeBatch<'a>),
}

pub struct NativeSnapshot<'a> {
    snapshot: psitri::Snapshot,
    keyspace: &'a Keyspace,
}

pub struct NativeCursor<'c>(psitri::Cursor<'c>);

impl<const DIRECT: bool> Native<DIRECT> {
    /// For workloads that only this engine is measured with.
    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
}

fn durability(sync_mode: SyncMode) -> Durability {
    match sync_mode {
        SyncMode::None => Durability::None,
        SyncMode::Async => Durability::Async,
        SyncMode::Sync => Durability::Sync,
        SyncMode::WriteThrough => Durability::WriteThrough,
    }
}

fn read_mode(mode: ReadMode) -> psitri::ReadMode {
    match mode {
        ReadMode::Latest => psitri::ReadMode::Latest,
        ReadMode::Buffered => psitri::ReadMode::Buffered,
        ReadMode::Trie => psitri::ReadMode::Trie,
    }
}

/// Bytes of the cache to pin: those asked for, as far as the system lets this process lock memory. Where that is little, as for users that
/// may not change their limits, the system's cache is what there is.
fn pinned_bytes(settings: &Settings) -> Option<u64> {
    let asked = settings.cache_bytes?;
    match lockable_bytes() {
        // Locks are of whole pages.
        Some(limit) => Some(asked.min(limit & !(PAGE_BYTES_MAX - 1))),
        None => Some(asked),
    }
}

/// Systems have pages of at most this size.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// The system's limit on locked memory; none for processes that it does not hold for.
fn lockable_bytes() -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    if capabilities.is_some_and(|set| set & CAP_IPC_LOCK != 0) {
        return None;
    }
    getrlimit(Resource::Memlock).current
}

fn options(settings: &Settings) -> Options {
    // Where nothing waits for the disk, closing does not either; other engines leave what they have in their logs, too.
    let mut options = Options::new()
        .durability(durability(settings.sync_mode))
        .checkpoint_on_close(settings.sync_mode != SyncMode::None);
    if let Some(bytes) = pinned_bytes(settings) {
        options = options.pinned_cache_bytes(bytes);
    }
    if let Some(bytes) = settings.write_buffer_bytes {
        options = options.buffer_bytes(bytes as usize);
    }
    if let Some(threads) = settings.merge_threads {
        options = options.merge_threads(threads);
    }
    if let Some(percent) = settings.file_slack_percent {
        options = options.file_slack_percent(percent);
    }
    options
}

impl<const DIRECT: bool> Writer for Native<DIRECT> {
    type Batch<'a> = NativeBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<NativeBatch<'_>> {
        let keyspaces = &[&self.keyspace];
        let transaction = if DIRECT {
            self.database.begin_direct(keyspaces)?
        } else {
            self.database.begin(keyspaces)?
        };
        Ok(NativeBatch {
            transaction,
            keyspace: &self.keyspace,
        })
    }

    #[inline]
    fn foretell(&self, keys: &[&[u8]]) {
        self.database.prefetch(&self.keyspace, keys);
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.flush()?)
    }
}

impl Batch for NativeBatch<'_> {
    #[inline]
    fn announce(&self, keys: &[&[u8]]) {
        self.transaction.prefetch(self.keyspace, keys);
    }

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.transaction.get(self.keyspace, key)?))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.upsert(self.keyspace, key, value)?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.transaction.remove(self.keyspace, key)?;
        Ok(())
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let popped = match end {
            End::First => self.transaction.pop_first(self.keyspace)?,
            End::Last => self.transaction.pop_last(self.keyspace)?,
        };
        Ok(popped.map(|(key, value)| look(&key, &value)).is_some())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}

impl Writes for NativeWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Self::Batch {
                batch, keyspace, ..
            } => {
                batch.upsert(keyspace, key, value);
                Ok(())
            }
            Self::Direct(batch) => Batch::put(batch, key, value),
        }
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Self::Batch {
                batch, keyspace, ..
            } => {
                batch.remove(keyspace, key);
                Ok(())
            }
            Self::Direct(batch) => Batch::delete(batch, key),
        }
    }

    #[inline]
    fn commit(self) -> Result<()> {
        match self {
            Self::Batch {
                batch, database, ..
            } => Ok(database.write(batch)?),
            Self::Direct(batch) => Batch::commit(batch),
        }
    }
}

impl<const DIRECT: bool> Engine for Native<DIRECT> {
    const CAPABILITIES: Capabilities = Capabilities {
        group_commit: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = NativeSnapshot<'a>;
    type Writes<'a> = NativeWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        let mut lines = vec![format!("durability {:?}", durability(settings.sync_mode))];
        if settings.sync_mode == SyncMode::None {
            lines.push("no checkpoint on closing".to_owned());
        }
        if let Some(bytes) = settings.write_buffer_bytes {
            lines.push(format!(
                "buffer_bytes {bytes}, and the default number of frozen ones: as many as take 48 MiB, 4 to 16"
            ));
        }
        if let (Some(bytes), Some(asked)) = (pinned_bytes(settings), settings.cache_bytes) {
            lines.push(match bytes < asked {
                true => format!(
                    "pinned_cache_bytes {bytes} of {asked}: the system's limit on locked memory"
                ),
                false => format!("pinned_cache_bytes {bytes}"),
            });
        }
        if let Some(threads) = settings.merge_threads {
            lines.push(format!("merge_threads {threads}"));
        }
        if let Some(percent) = settings.file_slack_percent {
            lines.push(format!("file_slack_percent {percent}"));
        }
        lines.push("no compression: the engine has none".to_owned());
        Description {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let database = options(settings).create(path)?;
        let keyspace = database.keyspace("default")?;
        Ok(Self { database, keyspace })
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let database = options(settings).open_existing(path)?;
        let keyspace = database.open_keyspace("default")?;
        Ok(Self { database, keyspace })
    }

    #[inline]
    fn begin_writes(&self) -> Result<NativeWrites<'_>> {
        Ok(if DIRECT {
            NativeWrites::Direct(self.begin()?)
        } else {
            NativeWrites::Batch {
                batch: WriteBatch::new(),
                database: &self.database,
                keyspace: &self.keyspace,
            }
        })
    }

    fn compact(&mut self) -> Result<bool> {
        self.database.compact()?;
        Ok(true)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut transaction = self.database.begin_direct(&[&self.keyspace])?;
        transaction.ingest(&self.keyspace, entries)?;
        Ok(transaction.commit()?)
    }

    #[inline]
    fn snapshot(&self, mode: ReadMode) -> Result<NativeSnapshot<'_>> {
        Ok(NativeSnapshot {
            snapshot: self.database.snapshot_with(read_mode(mode)),
            keyspace: &self.keyspace,
        })
    }

    fn retain(&self, keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut batch = self.begin()?;
        batch.transaction.retain(&self.keyspace, .., keep)?;
        Batch::commit(batch)
    }

    fn extract(
        &self,
        range: Range<&[u8]>,
        mut wanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        // `WriteTxn::extract` would copy what it takes out, which nobody else does: who asks has seen it.
        let mut batch = self.begin()?;
        let keep = |key: &[u8], value: &[u8]| !wanted(key, value);
        let extracted = batch.transaction.retain(&self.keyspace, range, keep)?;
        Batch::commit(batch)?;
        Ok(extracted)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.database.checkpoint()?)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let stats = self.database.stats()?;
        Ok(EngineSizes {
            reachable_bytes: Some(stats.reachable_bytes),
            data_bytes: Some(stats.file_bytes),
            log_bytes: Some(stats.wal_bytes),
        })
    }

    fn close(self) -> Result<()> {
        drop(self.keyspace);
        Ok(self.database.close()?)
    }
}

impl Snapshot for NativeSnapshot<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.snapshot.get(self.keyspace, key)?))
    }

    #[inline]
    fn read_many(&mut self, keys: &[&[u8]], look: impl FnMut(Option<&[u8]>)) -> Result<()> {
        let values = self.snapshot.get_many(self.keyspace, keys)?;
        values.into_iter().for_each(look);
        Ok(())
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.snapshot.for_each(self.keyspace, .., |key, value| {
            each(key, value);
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    type Cursor<'c>
        = NativeCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn cursor(&mut self) -> Result<NativeCursor<'_>> {
        Ok(NativeCursor(self.snapshot.cursor(self.keyspace)?))
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.snapshot.len(self.keyspace)?)
    }
}

impl Cursor for NativeCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.0.seek(key)?)
    }

    #[inline]
    fn seek_first(&mut self) -> Result<bool> {
        Ok(self.0.seek_first()?)
    }

    #[inline]
    fn seek_last(&mut self) -> Result<bool> {
        Ok(self.0.seek_last()?)
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        Ok(self.0.next()?)
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        Ok(self.0.prev()?)
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.0.entry()
    }
}
