//! The write-ahead log: one stream of logical records for all keyspaces, in preallocated, mapped, recycled segments.
//!
//! A commit copies its record into the mapping of the current segment, without a system call; a record of 64 KiB or more is written with one.
//! The kernel owns the pages, so the record survives the end of the process at once, and a power loss after
//! [`WalShared::wait_durable`]. The bytes on disk are described in `docs/format.md`.
//!
//! | file | noun |
//! |---|---|
//! | `record` | fragment of a record: header, checksum |
//! | `segment` | file of the log: header, durable marks |
//! | `appender` | [`Wal`]: puts records at the end |
//! | `shared` | [`WalShared`]: flush, spares, release |
//! | `group` | [`GroupCommit`]: one flush for many waiters |
//! | `replay` | reads the log back and finds its end |
//! | `resume` | continues a log after replay |
//! | `salvage` | reads what can be read of a damaged log |
//! | `ops` | what the engine puts into a record |
//!
//! Words: LSN = position in the stream of records, in bytes since the log began, without segment headers; always a multiple of 8.
//!
//! Thread safety: one appender (`&mut Wal`); everything in [`WalShared`] from any thread.
//!
//! Invariants of the log as a whole:
//! 1. Segments form a chain: each starts at the LSN where its predecessor stopped, and has a higher sequence number.
//! 2. A durable mark never exceeds what was durable when it was stored, so it proves that the log once reached that LSN.
//! 3. A segment is reused or removed only when it lies wholly below a durable checkpoint and the header of the first segment that
//!    is kept is durable.
//! 4. What records refer to outside of the log ([`Referred`]) is durable before the records count as durable.
//! 5. What follows the end that replay found is removed or made invalid, durably, before anything new is written, so that old records cannot
//!    join the new log.
mod appender;
mod group;
pub mod ops;
mod record;
mod replay;
mod resume;
mod salvage;
mod segment;
mod shared;

pub use appender::{Appended, Wal};
pub use group::GroupCommit;
pub use replay::{Record, ReplayEnd, replay, replay_between, replay_while};
pub use salvage::{LogDamage, SalvagedLog, salvage};
pub use segment::files_bytes;
pub use shared::{Referred, SmallSegment, WalShared};

use crate::storage::{MAP_ALIGNMENT_BYTES, StorageError};
use std::{error::Error, sync::Arc};

/// How a log is laid out. May change from one opening to the next.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Size of a segment file: a multiple of 16 KiB, from 16 KiB to 1 GiB.
    pub segment_bytes: u64,
    /// Segments kept ready beside those in use.
    pub spares_max: usize,
    /// Touch spare segments ahead of the writer. Good for commits that are not flushed one by one; where each commit is flushed the
    /// touched pages would be written once more for nothing.
    pub populate: bool,
    /// Store all records with system calls, not only large ones: not through the mapping. Good where each commit is flushed: a flush of a mapped page takes it from
    /// all processors, and the next store has to ask for it again.
    pub store_by_call: bool,
    /// Seed of the nonces that tell a recycled segment's records from new ones; `None`: from the system. For repeatable tests.
    pub nonce_seed: Option<u64>,
}

impl Default for WalOptions {
    fn default() -> Self {
        WalOptions {
            segment_bytes: 16 * 1024 * 1024,
            spares_max: 2,
            populate: true,
            store_by_call: false,
            nonce_seed: None,
        }
    }
}

/// Largest segment.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The first segment after an opening, and after everything before was given back, is so many times smaller than the others: 256 KiB and 1 MiB
/// with the default size. Spares follow quickly where they are touched ahead of the appender; where they are written and flushed first, that
/// would be in the way of commits that wait for the disk.
const FIRST_SEGMENT_SHARE: u64 = 16;
const FIRST_FLUSHED_SEGMENT_SHARE: u64 = 4;

impl WalOptions {
    /// Opening need not wait for a whole segment of zeros, and a log at rest takes no more space than it needs.
    fn first_segment_bytes(&self) -> u64 {
        let share = if self.populate {
            FIRST_SEGMENT_SHARE
        } else {
            FIRST_FLUSHED_SEGMENT_SHARE
        };
        (self.segment_bytes / share).next_multiple_of(MAP_ALIGNMENT_BYTES)
    }

    fn check(&self) -> Result<(), WalError> {
        let bytes = self.segment_bytes;
        if bytes == 0 || !bytes.is_multiple_of(MAP_ALIGNMENT_BYTES) || bytes > SEGMENT_BYTES_MAX {
            return Err(WalError::InvalidOption {
                what: "segment_bytes must be a multiple of 16 KiB, up to 1 GiB",
            });
        }
        Ok(())
    }
}

/// What can go wrong with the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// A file operation failed; the log is as it was.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Bytes that were durable are not what was written.
    #[error(
        "log segment {file} is damaged at byte {offset}: {what}; restore a backup or the missing file"
    )]
    Corrupted {
        /// Segment.
        file: String,
        /// Byte in the file.
        offset: u64,
        /// What was found.
        what: &'static str,
    },
    /// The log was written by another release.
    #[error(
        "log segment {file} has format version {found}, this release reads version {supported}; use the release that wrote it"
    )]
    UnsupportedVersion {
        /// Segment.
        file: String,
        /// Its version.
        found: u32,
        /// The version known here.
        supported: u32,
    },
    /// A flush failed earlier; what is on disk is unknown, so nothing more is accepted.
    #[error("the log takes no more writes because a flush failed: {cause}; reopen the database")]
    Poisoned {
        /// The first failure.
        cause: Arc<StorageError>,
    },
    /// An option has a value that cannot be honoured.
    #[error("invalid log option: {what}")]
    InvalidOption {
        /// Which and why.
        what: &'static str,
    },
    /// The caller's own error, passed through by `replay`.
    #[error("replay was stopped: {0}")]
    Visitor(Box<dyn Error + Send + Sync>),
}

/// Spreads the bits of a number over the whole word (the finaliser of SplitMix64).
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
