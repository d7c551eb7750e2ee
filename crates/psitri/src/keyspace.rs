//! Handles of keyspaces, and what their writers share.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

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
    /// Its name now: a rename shows in all handles. That of a [subtree](crate::Database::create_subtree) is empty.
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
            .field("name", &self.core.title())
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
    place: RwLock<Place>,
    /// Its subtrees, by key. Changes under its write lock.
    pub subtrees: Mutex<BTreeMap<Vec<u8>, u32>>,
    /// Whether there are any.
    pub has_subtrees: AtomicBool,
    pub dropped: AtomicBool,
    /// The write lock. Held by the one transaction that may write here.
    pub writer: Arc<Mutex<WriterSlot>>,
    /// Generation that the holder of the write lock writes to; 0 while it is unknown or nobody holds the lock.
    pub generation_open: AtomicU64,
}

/// What a keyspace belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing: it has a name.
    Named(Arc<str>),
    /// It is the value of a key in another keyspace.
    Subtree { parent: u32, key: Arc<[u8]> },
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
    pub fn new(id: u32, slot: u32, database: u64, place: Place) -> KeyspaceCore {
        KeyspaceCore {
            id,
            slot,
            database,
            place: RwLock::new(place),
            subtrees: Mutex::default(),
            has_subtrees: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            writer: Arc::default(),
            generation_open: AtomicU64::new(0),
        }
    }

    /// Empty for one that has no name.
    pub fn name(&self) -> String {
        match &*self.place.read() {
            Place::Named(name) => name.to_string(),
            _ => String::new(),
        }
    }

    /// What messages call it.
    pub fn title(&self) -> String {
        match &*self.place.read() {
            Place::Named(name) => name.to_string(),
            Place::Subtree { key, .. } => format!("subtree {}", key.escape_ascii()),
        }
    }

    pub fn place(&self) -> Place {
        self.place.read().clone()
    }

    pub fn set_place(&self, place: Place) {
        *self.place.write() = place;
    }

    /// Id of the keyspace that it is a subtree of.
    pub fn parent(&self) -> Option<u32> {
        match *self.place.read() {
            Place::Subtree { parent, .. } => Some(parent),
            _ => None,
        }
    }

    pub fn gone(&self) -> Error {
        Error::KeyspaceGone { name: self.title() }
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

/// How keyspaces are found.
#[derive(Default)]
pub(crate) struct Names {
    pub by_name: HashMap<String, Arc<KeyspaceCore>>,
    /// All of them.
    pub by_id: HashMap<u32, Arc<KeyspaceCore>>,
}

impl Names {
    /// Those of all keyspaces. Tells each its subtrees.
    pub fn of<'k>(cores: impl Iterator<Item = &'k Arc<KeyspaceCore>>) -> Names {
        let mut names = Names::default();
        let mut subtrees = Vec::new();
        for core in cores {
            names.add_alone(core);
            subtrees.extend(core.parent().is_some().then_some(core));
        }
        for core in subtrees {
            names.tell_parent(core);
        }
        names
    }

    fn add_alone(&mut self, core: &Arc<KeyspaceCore>) {
        if let Place::Named(name) = core.place() {
            self.by_name.insert(name.to_string(), Arc::clone(core));
        }
        self.by_id.insert(core.id, Arc::clone(core));
    }

    pub fn add(&mut self, core: &Arc<KeyspaceCore>) {
        self.add_alone(core);
        self.tell_parent(core);
    }

    pub fn remove(&mut self, core: &KeyspaceCore) {
        self.take_from_parent(core);
        self.by_name.remove(&core.name());
        self.by_id.remove(&core.id);
    }

    /// Has the keyspace that a subtree belongs to know of it.
    pub fn tell_parent(&self, core: &KeyspaceCore) {
        if let Place::Subtree { parent, key } = core.place()
            && let Some(parent) = self.by_id.get(&parent)
        {
            parent.subtrees.lock().insert(key.to_vec(), core.id);
            parent.has_subtrees.store(true, Ordering::Relaxed);
        }
    }

    /// Has it know of it no more.
    pub fn take_from_parent(&self, core: &KeyspaceCore) {
        if let Place::Subtree { parent, key } = core.place()
            && let Some(parent) = self.by_id.get(&parent)
        {
            let mut subtrees = parent.subtrees.lock();
            subtrees.remove(&*key);
            let any = !subtrees.is_empty();
            parent.has_subtrees.store(any, Ordering::Relaxed);
        }
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
