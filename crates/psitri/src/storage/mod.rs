//! All file access of the engine.
//!
//! The engine never names the operating system's files: it sees one directory ([`Storage`]) of named files
//! ([`StorageFile`]), so that the same code runs on a disk ([`OsStorage`]), in memory ([`MemoryStorage`]) and on a
//! simulated disk that loses power at a chosen call ([`sim::SimStorage`]).
//!
//! Thread safety: every trait object may be used from any thread. Two calls that touch the same bytes at the same time are
//! ordered by the caller, as with a plain file.
//!
//! Durability, stated as weakly as real disks make it:
//! 1. Nothing written is durable before `sync_data` of that file returns `Ok`; any part of it may be durable earlier, in any order,
//!    in units of 512 bytes.
//! 2. A created, removed or renamed name is durable once `sync_dir` returned `Ok`; `sync_data` of the file is not enough.
//! 3. After a failed `sync_data` the state of every byte not yet durable is unknown for good; trying again proves nothing.
//!
//! Failure modes: a full disk is an error of `allocate`, `write_at` or `set_len`. A store through a [`WriteMap`] to a range that
//! `allocate` reserved does not fail; a store to a hole may kill the process, so no such map is made by the engine.
mod file_lock;
pub(crate) mod image;
mod map;
mod memory;
mod os;
mod readers;
#[doc(hidden)]
pub mod sim;
mod transfer;

pub use map::{ReadMap, WriteMap};
pub use memory::MemoryStorage;
pub use os::OsStorage;
pub use readers::{READER_SLOTS_MAX, ReaderPin, ReaderSlot};

use std::{any::Any, fmt, io, path::Path, sync::Arc};

/// Name of the file that carries the lock; never listed.
pub const LOCK_FILE_NAME: &str = "lock";

/// Offsets given to [`StorageFile::map_write`] are multiples of this (the largest page size of the supported systems).
pub const MAP_ALIGNMENT_BYTES: u64 = 16 * 1024;

/// How [`Storage::open`] treats the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing file, reads only.
    Read,
    /// Existing file, reads and writes.
    ReadWrite,
    /// New empty file; an error when the name is taken.
    Create,
}

/// Who may hold the directory's lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Any number of readers.
    Shared,
    /// One owner.
    Exclusive,
}

/// What the operating system or the disk refused: the source of [`Error::Storage`](crate::Error::Storage). Every message names the operation and the
/// file.
///
/// ```
/// # #[cfg(not(loom))]
/// # fn main() -> Result<(), psitri::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("db");
/// use psitri::{Database, Error, StorageError};
/// let db = Database::open(&path)?;
/// match Database::open(&path) {
///     Err(Error::Storage(StorageError::Locked { holder, .. })) => println!("{holder:?} has it open"),
///     Err(Error::Storage(error)) if error.is_out_of_space() => println!("no space: {error}"),
///     other => drop(other?),
/// }
/// # Ok(()) }
/// # #[cfg(loom)]
/// # fn main() {}
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The system refused an operation.
    #[error("{operation} of {file} failed: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// File (with the directory where it is known).
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The name is not in the directory.
    #[error("{file} does not exist")]
    NotFound {
        /// File (with the directory where it is known).
        file: String,
    },
    /// A file was to be made whose name is taken.
    #[error("{file} exists already")]
    AlreadyExists {
        /// File (with the directory where it is known).
        file: String,
    },
    /// Someone else holds the directory's lock.
    #[error("{path} is locked by {}; close it there first", holder_text(*holder))]
    Locked {
        /// The directory.
        path: String,
        /// Process that holds it, when it could be told.
        holder: Option<u32>,
    },
    /// As many readers as there can be are open beside the writer.
    #[error("{path}: {max} readers are open beside the writer; close one of them first")]
    NoReaderSlot {
        /// The directory.
        path: String,
        /// The limit.
        max: u32,
    },
    /// A range that the file or mapping does not have.
    #[error("{file}: range {offset}+{len} is outside of {limit} bytes")]
    OutOfRange {
        /// File.
        file: String,
        /// Start of the range.
        offset: u64,
        /// Length of the range.
        len: u64,
        /// Bytes there are.
        limit: u64,
    },
}

fn holder_text(holder: Option<u32>) -> String {
    holder.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

impl StorageError {
    pub(crate) fn io(operation: &'static str, file: &str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::NotFound => StorageError::NotFound {
                file: file.to_owned(),
            },
            io::ErrorKind::AlreadyExists => StorageError::AlreadyExists {
                file: file.to_owned(),
            },
            _ => StorageError::Io {
                operation,
                file: file.to_owned(),
                source,
            },
        }
    }

    /// True when the file system cannot do what was asked at all.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        let StorageError::Io { source, .. } = self else {
            return false;
        };
        source.kind() == io::ErrorKind::Unsupported
            || source.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
    }

    /// True when the cause is a full disk or quota, or a file that may not grow: the caller may free space and try again.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        match self {
            StorageError::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull
                        | io::ErrorKind::QuotaExceeded
                        | io::ErrorKind::FileTooLarge
                )
            }
            _ => false,
        }
    }

    /// Whether a flush failed, for whatever reason: what is on the disk is unknown then.
    #[must_use]
    pub fn is_failed_flush(&self) -> bool {
        matches!(
            self,
            StorageError::Io {
                operation: "sync_data" | "sync_dir",
                ..
            }
        )
    }
}

/// Holds the directory's lock until dropped.
pub struct StorageLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl StorageLock {
    pub(crate) fn new(held: impl Any + Send + Sync) -> Self {
        StorageLock {
            _held: Box::new(held),
        }
    }
}

impl From<ReaderSlot> for StorageLock {
    fn from(slot: ReaderSlot) -> Self {
        StorageLock::new(slot)
    }
}

impl fmt::Debug for StorageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageLock")
    }
}

/// One directory that belongs to one database.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Opens or creates a file. The name has no path separator.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError>;
    /// True when the name is there.
    fn exists(&self, name: &str) -> Result<bool, StorageError>;
    /// All names in order, without the lock file.
    fn list(&self) -> Result<Vec<String>, StorageError>;
    /// Removes a name; open handles and mappings of the file stay usable.
    fn remove(&self, name: &str) -> Result<(), StorageError>;
    /// Renames atomically, replacing `to` when it exists.
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError>;
    /// Makes created, removed and renamed names durable.
    fn sync_dir(&self) -> Result<(), StorageError>;
    /// Takes the directory's lock without waiting.
    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError>;
    /// Takes a slot for a reader beside a writer in another process, given back when it is dropped. `Io` with `Unsupported` where there are none.
    fn take_reader_slot(&self) -> Result<ReaderSlot, StorageError> {
        let error = io::Error::from(io::ErrorKind::Unsupported);
        Err(StorageError::io(
            "take_reader_slot",
            &self.describe(),
            error,
        ))
    }
    /// What readers beside this writer see, in other processes and in this one.
    fn reader_pins(&self) -> Result<Vec<ReaderPin>, StorageError> {
        Ok(Vec::new())
    }
    /// Where this is, for messages.
    fn describe(&self) -> String;
    /// Identity of the running system: another value means that everything not made durable may be gone. `None`: not known.
    fn boot_id(&self) -> Option<[u8; 16]>;
    /// A directory of the operating system for files beside the database's that it does not depend on. `None`: there is none, and such files
    /// are not written.
    fn side_directory(&self) -> Option<&Path> {
        None
    }
}

/// One open file.
pub trait StorageFile: Send + Sync + fmt::Debug {
    /// Name inside the directory.
    fn name(&self) -> &str;
    /// Length in bytes.
    fn len(&self) -> Result<u64, StorageError>;
    /// True when the length is zero.
    fn is_empty(&self) -> Result<bool, StorageError> {
        Ok(self.len()? == 0)
    }
    /// Cuts the file or extends it with a hole that reads as zeros.
    fn set_len(&self, len: u64) -> Result<(), StorageError>;
    /// Reserves real blocks for a range, extending the file if needed; a full disk is an error here and not later.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError>;
    /// Fills the buffer; a range that passes the end is `Io` with `UnexpectedEof`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError>;
    /// Writes all bytes, extending the file if needed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError>;
    /// Makes content and length durable, stores through mappings included.
    fn sync_data(&self) -> Result<(), StorageError>;
    /// Gives the blocks of a range back; it reads as zeros, the length stays. `Io` with `Unsupported` where it cannot be done.
    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError>;
    /// Bytes of blocks that the file occupies.
    fn allocated_bytes(&self) -> Result<u64, StorageError>;
    /// Maps the file for reading from its start over a range that may be longer than the file, which may grow into it. Where so
    /// much address space cannot be had the range is halved until it can, down to the file's length.
    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError>;
    /// Maps an allocated range for reading and writing. `offset` is a multiple of [`MAP_ALIGNMENT_BYTES`].
    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError>;
}

/// Checks that a range lies inside the file before it is mapped for writing: a store past the end would kill the process.
fn check_map_write(file: &str, offset: u64, len: u64, file_len: u64) -> Result<(), StorageError> {
    let end = offset.checked_add(len);
    let inside = end.is_some_and(|end| end <= file_len);
    if len == 0
        || !inside
        || !offset.is_multiple_of(MAP_ALIGNMENT_BYTES)
        || usize::try_from(len).is_err()
    {
        return Err(StorageError::OutOfRange {
            file: file.to_owned(),
            offset,
            len,
            limit: file_len,
        });
    }
    Ok(())
}
