//! PsiTri: an embedded, transactional, ordered key-value store.
//!
//! Writes land in an in-memory radix tree backed by a write-ahead log, and are merged in the background into an immutable,
//! packed tree in one file. Readers see the newest commit, without locks; a commit that returned survives the death of the
//! process.
//!
//! ```
//! use psitri::Database;
//!
//! # fn main() -> Result<(), psitri::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("ledger");
//! let db = Database::open(&path)?;
//! let accounts = db.keyspace("accounts")?;
//!
//! let mut txn = db.begin(&[&accounts])?;
//! txn.upsert(&accounts, b"alice", b"100")?;
//! txn.upsert(&accounts, b"bob", b"20")?;
//! txn.commit()?;
//!
//! let snapshot = db.snapshot();
//! assert_eq!(snapshot.get(&accounts, b"alice")?, Some(&b"100"[..]));
//! assert_eq!(snapshot.count(&accounts, ..)?, 2);
//! # Ok(()) }
//! ```
//!
//! # Features
//! None is on by default. `docs/observability.md` lists what they emit; single reads, writes and commits emit nothing.
//! * `tracing`: spans and events for openings, merges, checkpoints, compaction, backups, checks, waiting writers, slow readers and failures.
//! * `metrics`: counters, gauges and histograms for the `metrics` crate, pushed twice a second from a background thread.
//!
//! Where to look in the source: `ARCHITECTURE.md`. What is stored: `docs/format.md`. What survives what: `docs/durability.md`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(loom))]
#[macro_use]
mod trace;

// Public for benchmarks and tests of the parts; not part of the supported interface.
#[doc(hidden)]
pub mod buffer;
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod pins;
#[doc(hidden)]
pub mod storage;
mod sync;
#[doc(hidden)]
pub mod wal;

// Under loom only the parts above are built: they hold the concurrent protocols.
#[cfg(not(loom))]
mod admission;
#[cfg(not(loom))]
mod backup;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod catalog;
#[cfg(not(loom))]
mod changes;
#[cfg(not(loom))]
mod checkpoint;
#[cfg(not(loom))]
mod closing;
#[cfg(not(loom))]
mod commit;
#[cfg(not(loom))]
mod compaction;
#[cfg(not(loom))]
mod count;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod cursor;
#[cfg(not(loom))]
mod database;
#[cfg(not(loom))]
mod drain;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod events;
#[cfg(not(loom))]
mod expiry;
#[cfg(not(loom))]
mod key_sort;
#[cfg(not(loom))]
mod keyspace;
#[cfg(not(loom))]
mod layers;
#[cfg(not(loom))]
mod log_thread;
#[cfg(not(loom))]
mod lookup;
#[cfg(not(loom))]
mod merger;
#[cfg(all(feature = "metrics", not(loom)))]
mod metrics;
#[cfg(not(loom))]
mod monitor;
#[cfg(not(loom))]
mod optimistic;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod pager;
mod prefetch;
#[cfg(not(loom))]
mod progress;
#[cfg(not(loom))]
mod publication;
#[cfg(not(loom))]
mod readers;
#[cfg(not(loom))]
mod recovery;
#[cfg(not(loom))]
mod salvage;
#[cfg(not(loom))]
mod saved;
#[cfg(not(loom))]
mod snapshot;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod stats_file;
#[cfg(not(loom))]
mod subtrees;
#[cfg(not(loom))]
mod tree;
#[cfg(not(loom))]
mod txn;
#[cfg(not(loom))]
mod writer_guard;

#[cfg(not(loom))]
pub use {
    backup::{BackupInfo, BackupKind, BackupOptions},
    batch::WriteBatch,
    cursor::Cursor,
    database::Database,
    error::{Error, Result},
    events::Event,
    expiry::Expiry,
    keyspace::{KEYSPACE_NAME_BYTES_MAX, Keyspace, KeyspaceOptions},
    optimistic::{Isolation, OptimisticTxn},
    options::{Durability, Options, ReadMode},
    progress::{Progress, ProgressUnit},
    salvage::{
        LostRange, SalvageOptions, SalvagePhase, SalvageReport, SalvagedFrom, SalvagedKeyspace,
        SalvagedLogReport, salvage,
    },
    saved::SavedSnapshotInfo,
    snapshot::Snapshot,
    stats::{KeyspaceStats, Stats, VerifyReport},
    stats_file::StatsRecord,
    storage::StorageError,
    txn::{Entry, NestedTxn, WriteTxn},
};

/// The examples of the README are compiled and run like any other.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Longest key, in bytes. The empty key is a key.
pub const KEY_BYTES_MAX: usize = node::KEY_BYTES_MAX;

/// Longest value, in bytes: 4 GiB less one. Where entries expire it is 8 bytes less.
pub const VALUE_BYTES_MAX: u64 = u32::MAX as u64;
