//! What a workload asks of an engine.
//!
//! Traits for what an engine does, so that a thing which can only write (the upper bound of the bank workload) need not pretend to more:
//! [`Writer`] begins batches, a [`Batch`] reads, writes and commits; an [`Engine`] adds opening, bulk load, snapshots and sizes; a
//! [`Snapshot`] reads and makes a [`Cursor`]. Workloads are generic over them and compiled once per engine. Values are handed to a
//! closure, because engines differ in how long a value that was read stays where it is.
//!
//! Rules for every implementation, which the conformance tests and the bank workload check:
//! (1) a read in a batch sees the batch's own earlier writes;
//! (2) a batch becomes visible at once and as a whole when `commit` returns, to every snapshot taken afterwards in mode `latest`;
//! (3) a snapshot sees the same state for as long as it lives;
//! (4) a batch that is dropped leaves nothing behind;
//! (5) keys are ordered bytewise, a prefix before what it is a prefix of.
//!
//! An engine that cannot keep one of them says so in its [`Capabilities`], and workloads that need it leave the engine out.
use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMode {
    /// Survives the death of the process.
    #[default]
    None,
    /// As `none`, and flushed in the background, every 100 ms unless the engine has an interval of its own.
    Async,
    /// Flushed, together with the commits that wait at the same time.
    Sync,
    /// As `sync`, without waiting for others to join: a commit is flushed as soon as no other flush runs.
    WriteThrough,
}

/// Which layers a snapshot reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReadMode {
    /// Everything that was committed.
    #[default]
    Latest,
    /// Frozen write buffers and the tree.
    Buffered,
    /// The tree only.
    Trie,
}

/// How an engine packs its blocks, where it can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    #[default]
    None,
    Lz4,
}

/// What an engine is opened with. An engine takes what it has an equivalent for; its [`Description`] says what that is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    pub sync_mode: SyncMode,
    /// Bytes for caches of blocks or pages. Without, those that an engine takes by default, and at least [`CACHE_BYTES_COMMON`].
    pub cache_bytes: Option<u64>,
    /// Bytes of the write buffer (memtable); the engine's default without.
    pub write_buffer_bytes: Option<u64>,
    /// Threads for merges and compactions; the engine's default without.
    pub merge_threads: Option<usize>,
    /// How much larger than its content the data file may become, in percent; the engine's default without.
    pub file_slack_percent: Option<u32>,
    pub compression: Compression,
    /// Bytes of keys and values that the workload is going to keep, for engines that reserve a map of addresses.
    pub data_bytes_expected: Option<u64>,
}

/// Bytes of cache that every engine with a cache of its own may use where a run does not say how many: what redb, sled and canopydb take by
/// default. Others are content with 32 MiB by default, and were compared with less than the data, where the former have all of it.
pub const CACHE_BYTES_COMMON: u64 = 1 << 30;

impl Settings {
    /// For engines whose default is smaller than [`CACHE_BYTES_COMMON`].
    #[must_use]
    pub fn cache_bytes_or_common(&self) -> u64 {
        self.cache_bytes.unwrap_or(CACHE_BYTES_COMMON)
    }
}

/// Which rules of this module an engine keeps, and what else it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Rule (5): cursors, scans.
    pub ordered: bool,
    /// Cursors have `seek_last` and `prev`.
    #[serde(default)]
    pub backwards: bool,
    /// Batches have `pop`: their reads in the order of the keys see their own writes.
    #[serde(default)]
    pub pops: bool,
    /// Rule (3). Without it, a snapshot reads what is newest at each read.
    pub snapshots: bool,
    /// Rules (1), (2) and (4) for more than one key.
    pub atomic_batches: bool,
    /// What was committed is there after `close` and `open`.
    pub persistent: bool,
    /// `commit` may be called by several threads at the same time and they do not all wait for one another's flush.
    pub group_commit: bool,
    /// Behind a socket: latencies include two system calls and a change of process.
    pub networked: bool,
    /// Commits survive less than the sync mode promises: its figures stand beside the others', and are not compared with them.
    #[serde(default)]
    pub weaker_durability: bool,
    /// In mode `none` a power failure may cost the whole database. Of the others it costs the newest commits at most.
    #[serde(default)]
    pub none_risks_database: bool,
    /// Bytes of the largest key and value together, if values of 100 KiB are too large for the engine.
    #[serde(default)]
    pub record_bytes_max: Option<usize>,
}

impl Capabilities {
    /// An embedded, ordered, transactional engine.
    pub const FULL: Self = Self {
        ordered: true,
        backwards: true,
        pops: true,
        snapshots: true,
        atomic_batches: true,
        persistent: true,
        group_commit: false,
        networked: false,
        weaker_durability: false,
        none_risks_database: false,
        record_bytes_max: None,
    };

    /// The first of what `needed` asks for that is missing, in words.
    pub fn missing(&self, needed: &Needs) -> Option<&'static str> {
        [
            (needed.ordered && !self.ordered, "ordered keys"),
            (needed.snapshots && !self.snapshots, "snapshots"),
            (
                needed.atomic_batches && !self.atomic_batches,
                "atomic batches",
            ),
            (
                needed.persistent && !self.persistent,
                "reopening a database",
            ),
        ]
        .into_iter()
        .find_map(|(is_missing, what)| is_missing.then_some(what))
    }
}

/// What a workload cannot do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub ordered: bool,
    pub snapshots: bool,
    pub atomic_batches: bool,
    pub persistent: bool,
}

/// What a report says about an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The version that is linked or connected to.
    pub version: String,
    /// The settings that differ from the engine's defaults, how a sync mode is mapped, and why: a line for each.
    pub settings: Vec<String>,
}

/// What an engine says about its own sizes; a figure it does not know is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineSizes {
    /// Bytes of what can be reached from the roots.
    pub reachable_bytes: Option<u64>,
    /// Bytes the data file occupies, logs not included.
    pub data_bytes: Option<u64>,
    pub log_bytes: Option<u64>,
}

/// One of the two ends of the keys' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    First,
    Last,
}

pub trait Writer {
    type Batch<'a>: Batch
    where
        Self: 'a;

    fn begin(&self) -> Result<Self::Batch<'_>>;

    /// Announces the keys that the batch that is begun next will need first, for engines that can make use of it. They are not announced again.
    #[inline]
    fn foretell(&self, _keys: &[&[u8]]) {}

    /// Makes everything that was committed durable.
    fn sync(&self) -> Result<()>;
}

pub trait Batch {
    /// Announces the keys that the next operations need, for engines that can make use of it.
    #[inline]
    fn announce(&self, _keys: &[&[u8]]) {}

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes the key; one that is not there is no error.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Removes the entry at an end of the order, in the way that is cheapest for the engine, and shows it. False if there is none. An error in an
    /// engine without the capability.
    fn pop(&mut self, _end: End, _look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        bail!("batches of this engine do not read in order")
    }

    fn commit(self) -> Result<()>;
}

/// A batch that reads nothing. Several threads may fill one each at the same time.
///
/// Every [`Batch`] is one; an engine that has something cheaper for blind writes names that instead.
pub trait Writes {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    fn delete(&mut self, key: &[u8]) -> Result<()>;

    fn commit(self) -> Result<()>;
}

impl<B: Batch> Writes for B {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Batch::put(self, key, value)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Batch::delete(self, key)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Batch::commit(self)
    }
}

pub trait Engine: Writer + Sync + Sized {
    const CAPABILITIES: Capabilities = Capabilities::FULL;

    type Snapshot<'a>: Snapshot
    where
        Self: 'a;

    type Writes<'a>: Writes
    where
        Self: 'a;

    /// Version and settings as this program uses them.
    fn describe(settings: &Settings) -> Description;

    /// Creates an empty database at `path`, which does not exist or is an empty directory.
    fn create(path: &Path, settings: &Settings) -> Result<Self>;

    /// Opens a database that was created at `path` and closed.
    fn open(path: &Path, settings: &Settings) -> Result<Self>;

    /// Writes all entries, none of which exists, in one transaction, in the way the engine recommends for the purpose. An engine
    /// whose transactions are bounded may use several.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()>;

    /// Brings back to memory what the system forgot of a bulk load because the engine asked it to. Called after each, and in no figure: what comes next finds
    /// the same as after any other way to load.
    fn recall_load(&self) -> Result<()> {
        Ok(())
    }

    fn snapshot(&self, mode: ReadMode) -> Result<Self::Snapshot<'_>>;

    /// Reads one key at the newest state, in the way that is cheapest for the engine: one that must take a snapshot for that takes it here.
    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.snapshot(ReadMode::Latest)?.read(key, look)
    }

    fn begin_writes(&self) -> Result<Self::Writes<'_>>;

    /// Keeps the entries for which `keep` holds, with the engine's own call for that if it has one. The others go in one transaction. Entries are asked about in the
    /// order of their keys. For engines with that order.
    fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        remove_where(self, None, |key, value| !keep(key, value)).map(drop)
    }

    /// Takes the entries of a range out for which `wanted` holds, as [`Engine::retain`] does, and says how many they were.
    fn extract(
        &self,
        range: Range<&[u8]>,
        wanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        remove_where(self, Some(range), wanted)
    }

    /// Brings the database into its resting state: buffers merged, checkpoint durable.
    fn checkpoint(&self) -> Result<()>;

    /// Makes the files as small as the engine can. False if the engine has no such operation.
    fn compact(&mut self) -> Result<bool>;

    fn sizes(&self) -> Result<EngineSizes>;

    fn close(self) -> Result<()>;
}

/// What any engine can do: a cursor that collects the keys, then one batch that removes them. Returns how many they were.
fn remove_where<E: Engine>(
    engine: &E,
    range: Option<Range<&[u8]>>,
    mut is_unwanted: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<u64> {
    let (mut keys, mut ends) = (Vec::new(), Vec::new());
    {
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        let mut on_entry = match &range {
            Some(range) => cursor.seek(range.start)?,
            None => cursor.seek_first()?,
        };
        while let (true, Some((key, value))) = (on_entry, cursor.entry()) {
            if range.as_ref().is_some_and(|range| key >= range.end) {
                break;
            }
            if is_unwanted(key, value) {
                keys.extend_from_slice(key);
                ends.push(keys.len());
            }
            on_entry = cursor.next()?;
        }
    }
    let mut writes = engine.begin_writes()?;
    let mut start = 0;
    for &end in &ends {
        writes.delete(&keys[start..end])?;
        start = end;
    }
    writes.commit()?;
    Ok(ends.len() as u64)
}

pub trait Snapshot {
    type Cursor<'c>: Cursor
    where
        Self: 'c;

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;

    /// Reads several keys, and calls `look` for each in their order: with the engine's own call for that, if it has one that is faster
    /// than one read after the other. There may be no key, and a key may come twice.
    #[inline]
    fn read_many(&mut self, keys: &[&[u8]], mut look: impl FnMut(Option<&[u8]>)) -> Result<()> {
        for key in keys {
            self.read(key, &mut look)?;
        }
        Ok(())
    }

    /// Calls `each` for every entry, in the order of the keys; in any order if the engine is not ordered.
    fn scan(&mut self, each: impl FnMut(&[u8], &[u8])) -> Result<()>;

    /// A cursor over all entries, on none at first.
    fn cursor(&mut self) -> Result<Self::Cursor<'_>>;

    /// How many entries there are, in the way that is cheapest for the engine.
    fn count(&mut self) -> Result<u64> {
        let mut entries = 0;
        self.scan(|_, _| entries += 1)?;
        Ok(entries)
    }
}

/// A position among the entries of a snapshot.
///
/// `next` may be called after `seek` or `seek_first`, `prev` after `seek_last`; turning around is not asked of an engine. The
/// functions that move say whether the cursor is on an entry now. `seek_last` and `prev` are an error in an engine that cannot move
/// backwards, all of them in one that is not ordered.
pub trait Cursor {
    /// To the first entry whose key is `key` or greater.
    fn seek(&mut self, key: &[u8]) -> Result<bool>;

    fn seek_first(&mut self) -> Result<bool>;

    fn seek_last(&mut self) -> Result<bool>;

    fn next(&mut self) -> Result<bool>;

    fn prev(&mut self) -> Result<bool>;

    /// Key and value, if the cursor is on an entry.
    fn entry(&self) -> Option<(&[u8], &[u8])>;
}
