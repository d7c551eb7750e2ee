//! The write buffer: the mutable head of the engine.
//!
//! One generation is an [`Arena`] and a [`KeyspaceBuffer`] for each keyspace that was written to. Writers put uncommitted versions
//! in place, stamp them with the number of their commit, and publish that number; readers see a version when its number is
//! not above that of their snapshot. Nobody ever waits: the one writer of a buffer changes it by single atomic stores
//! or by replacing nodes. Nothing is freed before the whole generation is; versions that nobody can look at any more are overwritten.
//!
//! | file | noun |
//! |---|---|
//! | `arena.rs` | memory of a generation |
//! | `node.rs` | inner nodes of the radix tree |
//! | `bucket.rs` | its ends, where there are a few entries |
//! | `byte_search.rs` | searches among their key bytes |
//! | `entry.rs` | entries, versions |
//! | `directory.rs` | hash table for point lookups |
//! | `sequence.rs` | ascending keys that are not in it |
//! | `keyspace.rs` | a buffer: point lookups |
//! | `writer.rs` | the one writer of a buffer |
//! | `writer/insert.rs` | how it finds or inserts keys |
//! | `writer/grow.rs` | how the radix tree takes them |
//! | `writer/placing.rs` | memory for that, and keys that wait for their places in the tree |
//! | `writer/run.rs` | ascending keys, as they are inserted |
//! | `walk.rs` | paths through the radix tree |
//! | `cursor.rs` | ordered positions; `cursor/coming.rs`: many entries of one at once |
//! | `range_tombstones.rs` | deletions of ranges |
//!
//! # Order of a commit
//! Write versions; append to the log; stamp every version; store the visible commit sequence number (release).
//! A reader loads that number (acquire) before it looks into a buffer.

mod arena;
mod bucket;
mod byte_search;
mod cursor;
mod directory;
mod entry;
mod error;
mod keyspace;
mod node;
mod range_tombstones;
mod sequence;
mod walk;
mod writer;

pub use arena::{ARENA_BYTES_MAX, Arena};
#[cfg(not(loom))]
pub(crate) use byte_search::equal_slots;
pub use cursor::BufferCursor;
#[cfg(not(loom))]
pub(crate) use cursor::{Coming, Standing, Visits};
#[cfg(not(loom))]
pub(crate) use entry::Prefix;
pub use entry::{CSN_UNCOMMITTED, EntryRef, Found, Kind, LARGE_BYTES, VersionRef};
pub use error::BufferError;
pub use keyspace::{BufferStats, KeyspaceBuffer};
#[cfg(not(loom))]
pub(crate) use keyspace::{PREFETCH_KEYS_MAX, hash_of, hashes_of, wide_hash_of};
pub use range_tombstones::{Dead, RangeTombstone, TombstoneRef};
pub use writer::{BufferWriter, Watermark, WriteOutcome};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 65_536;
