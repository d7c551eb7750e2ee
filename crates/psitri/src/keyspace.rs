//! Handles of keyspaces, and what their writers share.

use std::fmt;

use parking_lot::{ArcMutexGuard, RawMutex};

use crate::{
    Result,
    buffer::{BufferWriter, EntryRef, TombstoneRef, VersionRef},
    error::Error,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock},
    wal::ops::OpsBuilder,
};

/// Longest keyspace name, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// A named ordered map of a database. A handle: cheap to clone, usable from any thread.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// let db = psitri::Options::new().in_memory()?;
/// let accounts = db.create_keyspace("accounts")?;
/// assert_eq!(accounts.name(), "accounts");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) core: Arc<KeyspaceCore>,
}

impl Keyspace {
    /// Its name now: a rename shows in all handles.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let ks = db.create_keyspace("old")?;
    /// db.rename_keyspace("old", "new")?;
    /// assert_eq!(ks.name(), "new");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> String {
        self.core.name()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace")
            .field("name", &self.name())
            .field("id", &self.core.id)
            .finish()
    }
}

/// What all handles of one keyspace share.
pub(crate) struct KeyspaceCore {
    pub id: u32,
    pub slot: u32,
    /// Identity of the database it belongs to.
    pub database: u64,
    name: RwLock<Arc<str>>,
    pub dropped: AtomicBool,
    /// The write lock. Held by the one transaction that may write here.
    pub writer: Arc<Mutex<WriterSlot>>,
    /// Generation that the holder of the write lock writes to; 0 while it is unknown or nobody holds the lock.
    pub generation_open: AtomicU64,
}

/// What belongs to the holder of a write lock.
#[derive(Default)]
pub(crate) struct WriterSlot {
    /// Writer of the buffer of `generation`.
    pub buffer: Option<BufferWriter>,
    pub generation: u64,
    /// Entries that the last buffer took, as an estimate for the next.
    pub entries_last: u64,
    /// Everything the open transaction did here, oldest first.
    pub touched: Vec<Touched>,
    pub ops: OpsBuilder,
    /// Where nothing lives, if that is known (`txn/extract.rs`).
    pub ends: Option<Box<Ends>>,
}

/// Parts of a keyspace without a live key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// There is none below this one.
    pub before: Vec<u8>,
    /// There is none above this one; all there are, if it is `None`.
    pub after: Option<Vec<u8>>,
}

impl WriterSlot {
    /// Notes that `key` has a value now.
    #[inline]
    pub fn note_live(&mut self, key: &[u8]) {
        if let Some(ends) = &self.ends
            && (*key < *ends.before || ends.after.as_ref().is_some_and(|after| key > &**after))
        {
            self.ends = None;
        }
    }
}

/// One undoable step of a transaction.
pub(crate) enum Touched {
    Version(EntryRef, VersionRef),
    Range(Box<(TombstoneRef, KeyBounds)>),
}

/// Bounds of a range delete, for the log.
pub(crate) type KeyBounds = (Box<[u8]>, Option<Box<[u8]>>);

/// The write lock of a keyspace, held.
pub(crate) type WriterGuard = ArcMutexGuard<RawMutex, WriterSlot>;

impl KeyspaceCore {
    pub fn new(id: u32, slot: u32, database: u64, name: &str) -> KeyspaceCore {
        KeyspaceCore {
            id,
            slot,
            database,
            name: RwLock::new(Arc::from(name)),
            dropped: AtomicBool::new(false),
            writer: Arc::default(),
            generation_open: AtomicU64::new(0),
        }
    }

    pub fn name(&self) -> String {
        self.name.read().to_string()
    }

    pub fn set_name(&self, name: Arc<str>) {
        *self.name.write() = name;
    }

    pub fn gone(&self) -> Error {
        Error::KeyspaceGone { name: self.name() }
    }

    /// Takes the write lock; waits for the transaction that holds it.
    pub fn lock(&self) -> Result<WriterGuard> {
        let guard = self.writer.lock_arc();
        self.check_exists()?;
        Ok(guard)
    }

    /// Takes the write lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Result<Option<WriterGuard>> {
        let guard = self.writer.try_lock_arc();
        self.check_exists()?;
        Ok(guard)
    }

    #[inline]
    fn check_exists(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(self.gone());
        }
        Ok(())
    }
}

/// Refuses names that are empty or too long.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > KEYSPACE_NAME_BYTES_MAX {
        return Err(Error::KeyspaceName {
            bytes: name.len(),
            max: KEYSPACE_NAME_BYTES_MAX,
        });
    }
    Ok(())
}
