//! The one error type that users of the crate see.

use std::path::PathBuf;

use crate::storage::StorageError;

/// What can go wrong. Every message says what was wrong and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system or the disk refused an operation.
    #[error("{0}")]
    Storage(#[from] StorageError),

    /// Stored bytes are not what was written. Nothing was returned from the damaged place.
    #[error(
        "corrupted database: {what} in {file} at offset {offset}; restore a backup of the database, or rebuild what can be read with `psitri salvage` (docs/recovery.md)"
    )]
    Corrupted {
        /// What was found to be wrong.
        what: String,
        /// File name inside the database directory. `log` stands for the log as a whole; `backup` and `salvage` stand for a copy that was
        /// found to be wrong when it was checked.
        file: String,
        /// Byte offset in that file; in the log as a whole the position of a record (its LSN); 0 if there is no one place.
        offset: u64,
    },

    /// The database was written by another release.
    #[error(
        "the database has format version {found}, this release reads version {supported}; open it with the release that wrote it"
    )]
    UnsupportedVersion {
        /// Version in the file.
        found: u32,
        /// The version that this release reads.
        supported: u32,
    },

    /// An earlier write or flush failed, so that the state of the disk is unknown. Reads go on; reopen to write again.
    #[error(
        "the database refuses writes after an earlier failure: {cause}; reads go on, reopen the database to write again"
    )]
    Poisoned {
        /// The first failure.
        cause: String,
    },

    /// `create` found a database at the path.
    #[error("{path}: a database exists already; use open, or remove it first")]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },

    /// There is no database at the path: that of `open_existing`, `open_read_only`, `open_beside_writer` or `salvage`.
    #[error("{path}: there is no database here; open and create make one")]
    NotFound {
        /// The directory.
        path: PathBuf,
    },

    /// A write was attempted on a database opened with `open_read_only` or `open_beside_writer`.
    #[error(
        "the database is open for reading only; Options::open opens it for writing, in one process at a time"
    )]
    ReadOnly,

    /// The key is longer than [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX).
    #[error("key of {bytes} bytes; at most {max} are allowed")]
    KeyTooLong {
        /// Length given.
        bytes: usize,
        /// The limit.
        max: usize,
    },

    /// The value is longer than [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX), or 8 bytes less in a keyspace whose entries expire.
    #[error("value of {bytes} bytes; at most {max} are allowed")]
    ValueTooLong {
        /// Length given.
        bytes: u64,
        /// The limit.
        max: u64,
    },

    /// `insert` found the key present, or a subtree was to be put there.
    #[error(
        "the key exists already; upsert and update replace its value, and a subtree goes to a key that does not exist"
    )]
    KeyExists,

    /// `update` found the key absent.
    #[error("update: the key does not exist; use upsert or insert to add it")]
    KeyAbsent,

    /// No keyspace has this name.
    #[error("keyspace {name:?} does not exist; create it first")]
    KeyspaceNotFound {
        /// The name asked for.
        name: String,
    },

    /// A keyspace of this name exists.
    #[error("keyspace {name:?} exists already")]
    KeyspaceExists {
        /// The name asked for.
        name: String,
    },

    /// The handle's keyspace was dropped, or did not exist yet when the snapshot was taken.
    #[error(
        "keyspace {name:?} does not exist here: it was dropped, or created after the snapshot was taken"
    )]
    KeyspaceGone {
        /// Name when the handle was made.
        name: String,
    },

    /// A value was to be written where a subtree is.
    #[error(
        "the value of key {key} is a subtree; delete_subtree removes it, move_subtree takes it elsewhere"
    )]
    IsSubtree {
        /// The key, escaped.
        key: String,
    },

    /// The value of the key is no subtree, or there is none.
    #[error("there is no subtree at key {key}; create_subtree makes one")]
    NoSubtree {
        /// The key, escaped.
        key: String,
    },

    /// A subtree was to be put where entries expire.
    #[error("entries of keyspace {name:?} expire, and subtrees do not: put the subtree elsewhere")]
    SubtreeExpires {
        /// The keyspace.
        name: String,
    },

    /// A subtree was to be moved into itself.
    #[error("the subtree at key {key} cannot be moved into itself")]
    SubtreeCycle {
        /// The key, escaped.
        key: String,
    },

    /// No saved snapshot has this name.
    #[error("there is no saved snapshot {name:?}; save_snapshot makes one")]
    SnapshotNotFound {
        /// The name asked for.
        name: String,
    },

    /// A saved snapshot of this name exists.
    #[error("a saved snapshot {name:?} exists already; drop it first, or choose another name")]
    SnapshotExists {
        /// The name asked for.
        name: String,
    },

    /// Keyspace names are 1 to 255 bytes long.
    #[error("keyspace name of {bytes} bytes; 1 to {max} are allowed")]
    KeyspaceName {
        /// Length given.
        bytes: usize,
        /// The limit.
        max: usize,
    },

    /// Names of saved snapshots are 1 to 255 bytes long.
    #[error("name of a saved snapshot of {bytes} bytes; 1 to {max} are allowed")]
    SnapshotName {
        /// Length given.
        bytes: usize,
        /// The limit.
        max: usize,
    },

    /// Too many keyspaces.
    #[error("{max} keyspaces exist; drop one before creating another")]
    TooManyKeyspaces {
        /// The limit.
        max: usize,
    },

    /// The transaction wrote to a keyspace that it was not begun with.
    #[error("keyspace {name:?} is not part of this write transaction; name it in begin")]
    NotInTransaction {
        /// The keyspace.
        name: String,
    },

    /// The same keyspace was named twice in `begin`.
    #[error("keyspace {name:?} is named twice in begin")]
    NamedTwice {
        /// The keyspace.
        name: String,
    },

    /// A time of expiry was given for an entry of a keyspace whose entries do not expire.
    #[error(
        "the entries of keyspace {name:?} do not expire; create a keyspace with KeyspaceOptions::entries_expire for those that do"
    )]
    NoExpiry {
        /// The keyspace.
        name: String,
    },

    /// A moment of expiry that the system cannot express.
    #[error("the moment of expiry is too far in the future; use an earlier one, or Expiry::Never")]
    ExpiryTooFar,

    /// A handle of one database was used with another.
    #[error("the keyspace handle belongs to another database")]
    ForeignKeyspace,

    /// An option has a value that cannot work.
    #[error("option {option}: {what}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with it.
        what: String,
    },

    /// The call could not go on: the write buffer is full or was to be merged, and the merge fails, for want of disk space say; or a reader that
    /// opens beside a writer was overtaken by one checkpoint after the other. Nothing is lost; try again when the cause is gone.
    #[error("{what}; nothing is lost, try again when the cause is gone")]
    Stalled {
        /// What keeps the call from going on.
        what: String,
        /// Whether that is a lack of space: [`Error::is_out_of_space`].
        is_out_of_space: bool,
    },

    /// A transaction that outgrew the write buffer could not be moved to the tree, and was undone by that.
    #[error("the transaction was undone: {cause}; begin it again when the cause is gone")]
    Undone {
        /// The failure that undid it.
        cause: String,
        /// Whether that was a lack of space: [`Error::is_out_of_space`].
        is_out_of_space: bool,
    },

    /// Somebody else changed what an optimistic transaction depends on. Nothing was written.
    #[error(
        "another transaction changed what this one depends on in keyspace {keyspace:?}; begin it again, or use transact"
    )]
    Conflict {
        /// The keyspace.
        keyspace: String,
    },

    /// The caller's progress function ended the call. What it did to the database before is sound, and calling it again does the rest. What a backup or
    /// a restore left of the directory that it was making has to be removed.
    #[error(
        "{call} was cancelled by its caller; the database is sound, and an unfinished copy can be removed"
    )]
    Cancelled {
        /// The call.
        call: &'static str,
    },

    /// No process keeps statistics of the database.
    #[error(
        "{path}: no statistics; open the database for writing, with the option stats_file, in the process to be watched"
    )]
    NoStatistics {
        /// The directory.
        path: PathBuf,
    },

    /// The file with the statistics of a database is damaged, or of a newer release. The database has nothing to do with it.
    #[error(
        "{path}: {what}; the file can be removed, and the process that has the database open writes another one"
    )]
    Statistics {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },

    /// A backup cannot be made, read or restored, or a database cannot be rebuilt where something else is.
    #[error("{path}: {what}")]
    Backup {
        /// Directory of the backup, or of the database to be restored or rebuilt.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },

    /// The write buffer has no room for what is written inside of a nested transaction, which cannot go to the tree before that ends.
    #[error(
        "the write buffer's address space of {bytes} bytes is exhausted; write less inside of one nested transaction"
    )]
    BufferFull {
        /// Size of the address space.
        bytes: usize,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True when the cause is a full disk or quota, or a file that may not grow: the caller may free space and try again. It is one of three errors:
    /// the system's ([`Error::Storage`]), that of a merge for which the call waited ([`Error::Stalled`]), and that which undid a transaction
    /// ([`Error::Undone`]). Where it was a flush that failed for it, trying again gives [`Error::Poisoned`].
    ///
    /// ```
    /// # #[cfg(not(loom))]
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let keyspace = db.create_keyspace("orders")?;
    /// let mut txn = db.begin(&[&keyspace])?;
    /// txn.upsert(&keyspace, b"7", b"two of them")?;
    /// match txn.commit() {
    ///     Err(error) if error.is_out_of_space() => println!("not ordered, please free some space: {error}"),
    ///     other => other?,
    /// }
    /// # Ok(()) }
    /// # #[cfg(loom)]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Error::Storage(source) => source.is_out_of_space(),
            Error::Stalled {
                is_out_of_space, ..
            }
            | Error::Undone {
                is_out_of_space, ..
            } => *is_out_of_space,
            _ => false,
        }
    }

    pub(crate) fn corrupted(file: &str, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupted {
            what: what.into(),
            file: file.to_owned(),
            offset,
        }
    }
}

/// What is remembered of an error, for those who come later.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub cause: String,
    pub is_out_of_space: bool,
}

impl Failure {
    pub fn of(error: &Error) -> Failure {
        Failure {
            cause: error.to_string(),
            is_out_of_space: error.is_out_of_space(),
        }
    }

    /// The error of a call that waited for a merge; `what` is to go on with the cause.
    pub fn stalled(&self, what: &str) -> Error {
        Error::Stalled {
            what: format!("{what}: {}", self.cause),
            is_out_of_space: self.is_out_of_space,
        }
    }

    pub fn undone(&self) -> Error {
        Error::Undone {
            cause: self.cause.clone(),
            is_out_of_space: self.is_out_of_space,
        }
    }
}
