//! What a workload asks of an engine.
//!
//! Three traits, so that a thing which can only write (the upper bound of the bank workload) need not pretend to more:
//! [`Writer`] begins batches, a [`Batch`] reads and writes and commits, and an [`Engine`] adds opening, bulk load, snapshots and sizes.
//! Workloads are generic over them and compiled once per engine. Values are handed to a closure, because engines differ in how long
//! a value that was read stays where it is.
//!
//! Rules for every implementation, which the bank workload checks:
//! (1) a read in a batch sees the batch's own earlier writes;
//! (2) a batch becomes visible at once and as a whole when `commit` returns, to every snapshot taken afterwards in mode `latest`;
//! (3) a snapshot sees the same state for as long as it lives.
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use std::path::Path;

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMode {
    /// Survives the death of the process.
    #[default]
    None,
    /// As `none`, and flushed in the background every few milliseconds.
    Async,
    /// Flushed, together with the commits that wait at the same time.
    Sync,
    /// Every commit written and flushed on its own.
    WriteThrough,
}

/// Which layers a snapshot reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
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

/// What an engine is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub sync_mode: SyncMode,
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

pub trait Writer {
    type Batch<'a>: Batch
    where
        Self: 'a;

    fn begin(&self) -> Result<Self::Batch<'_>>;

    /// Makes everything that was committed durable.
    fn sync(&self) -> Result<()>;
}

pub trait Batch {
    /// Announces the keys that the next operations need, for engines that can make use of it.
    #[inline]
    fn announce(&self, _keys: &[&[u8]]) {}

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    fn commit(self) -> Result<()>;
}

pub trait Engine: Writer + Sync + Sized {
    type Snapshot<'a>: Snapshot
    where
        Self: 'a;

    /// Creates an empty database at `path`, which does not exist or is an empty directory.
    fn create(path: &Path, settings: &Settings) -> Result<Self>;

    /// Writes all entries, none of which exists, in one transaction, in the way the engine recommends for the purpose.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()>;

    fn snapshot(&self, mode: ReadMode) -> Result<Self::Snapshot<'_>>;

    /// Brings the database into its resting state: buffers merged, checkpoint durable.
    fn checkpoint(&self) -> Result<()>;

    fn sizes(&self) -> Result<EngineSizes>;

    fn close(self) -> Result<()>;
}

pub trait Snapshot {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;

    /// Calls `each` for every entry, in the order of the keys.
    fn scan(&mut self, each: impl FnMut(&[u8], &[u8])) -> Result<()>;
}
