//! Handles of keyspaces, and what their writers share.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use crate::{
    Result,
    buffer::{BufferWriter, EntryRef, Kind, TombstoneRef, VersionRef},
    error::Error,
    expiry::millis,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, OwnLines, RwLock},
    txn::Ends,
    wal::ops::OpsBuilder,
    writer_guard::WriterGuard,
};

/// Longest keyspace name, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The longest [`KeyspaceOptions::expire_after`]: added to any moment that a clock tells it is still one.
const EXPIRES_AFTER_MS_MAX: u64 = 1 << 62;

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

    /// What was decided when it was created.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// let ks = db.create_keyspace("ks")?;
    /// assert!(!ks.options().do_entries_expire());
    /// # Ok(()) }
    /// ```
    pub fn options(&self) -> KeyspaceOptions {
        KeyspaceOptions::from_stored(self.core.expiry)
    }
}

/// What is decided about a keyspace when it is created. See [`Database::create_keyspace_with`](crate::Database::create_keyspace_with).
///
/// ```
/// use psitri::KeyspaceOptions;
/// use std::time::Duration;
/// let options = KeyspaceOptions::new().expire_after(Duration::from_secs(3600));
/// assert!(options.do_entries_expire());
/// assert_eq!(options.expires_after(), Some(Duration::from_secs(3600)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyspaceOptions {
    /// `Some` if entries expire: after how long, if they do not say themselves.
    expiry: Option<Option<Duration>>,
}

impl KeyspaceOptions {
    /// Entries stay until they are removed, and cost nothing for the time of their expiry.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::KeyspaceOptions;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new())?; // as create_keyspace does
    /// assert!(!ks.options().do_entries_expire());
    /// # Ok(()) }
    /// ```
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// Entries may expire: those that are written with [`WriteTxn::upsert_expiring`](crate::WriteTxn::upsert_expiring). Others stay. Each
    /// entry takes 8 bytes more, and counts, ranks and the n-th key walk over the entries instead of being known.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(txn.expiry(&ks, b"k")?, Some(Expiry::Never));
    /// # Ok(()) }
    /// ```
    pub fn entries_expire(mut self) -> KeyspaceOptions {
        self.expiry.get_or_insert_default();
        self
    }

    /// As [`KeyspaceOptions::entries_expire`], and entries that do not say when, expire so long after they were written. At least 1 ms, at most
    /// 2^62 ms (146 million years).
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let options = KeyspaceOptions::new().expire_after(Duration::from_secs(3600));
    /// let ks = db.create_keyspace_with("ks", options)?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert!(matches!(txn.expiry(&ks, b"k")?, Some(Expiry::At(_))));
    /// # Ok(()) }
    /// ```
    pub fn expire_after(mut self, after: Duration) -> KeyspaceOptions {
        self.expiry = Some(Some(after));
        self
    }

    /// Whether entries may expire.
    ///
    /// ```
    /// use psitri::KeyspaceOptions;
    /// assert!(KeyspaceOptions::new().entries_expire().do_entries_expire());
    /// ```
    pub fn do_entries_expire(&self) -> bool {
        self.expiry.is_some()
    }

    /// After how long entries expire that do not say themselves; `None` if they stay.
    ///
    /// ```
    /// use psitri::KeyspaceOptions;
    /// assert_eq!(KeyspaceOptions::new().entries_expire().expires_after(), None);
    /// ```
    pub fn expires_after(&self) -> Option<Duration> {
        self.expiry.flatten()
    }

    /// As stored: `Some` if entries expire, after so many milliseconds, or 0 if they stay.
    pub(crate) fn to_stored(self) -> Result<Option<u64>> {
        let bad = |what: &str| Error::BadOption {
            option: "expire_after",
            what: what.to_owned(),
        };
        match self.expiry {
            None => Ok(None),
            Some(None) => Ok(Some(0)),
            Some(Some(Duration::ZERO)) => {
                Err(bad("entries that expire at once; give 1 ms or more"))
            }
            Some(Some(after)) => match millis(after) {
                Some(after) if after <= EXPIRES_AFTER_MS_MAX => Ok(Some(after)),
                _ => Err(bad("more than 2^62 milliseconds; use entries_expire")),
            },
        }
    }

    pub(crate) fn from_stored(expiry: Option<u64>) -> KeyspaceOptions {
        KeyspaceOptions {
            expiry: expiry.map(|after| (after != 0).then(|| Duration::from_millis(after))),
        }
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

/// What all handles of one keyspace share. Writers count their references to it all the time: aligned, it has lines of its own behind the count.
#[repr(align(128))]
pub(crate) struct KeyspaceCore {
    pub id: u32,
    pub slot: u32,
    /// Identity of the database it belongs to.
    pub database: u64,
    /// `Some` if entries expire: after so many milliseconds, if they do not say themselves; 0 if they stay then.
    pub expiry: Option<u64>,
    place: RwLock<Place>,
    /// Its subtrees, by key. Changes under its write lock.
    pub subtrees: Mutex<BTreeMap<Vec<u8>, u32>>,
    /// Whether there are any.
    pub has_subtrees: AtomicBool,
    pub dropped: AtomicBool,
    /// The write lock. Held by the one transaction that may write here.
    pub writer: OwnLines<Mutex<WriterSlot>>,
    /// Generation that the holder of the write lock writes to; 0 while it is unknown or nobody holds the lock.
    pub generation_open: OwnLines<AtomicU64>,
    /// Time that the holder of the write lock goes by, if entries expire; 0 while it goes by none. See invariant (4) of `expiry.rs`.
    pub writer_now: AtomicU64,
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
    /// Entries that the next buffer's directory is to expect, by what the last one had.
    pub entries_last: u64,
    /// Everything the open transaction did here, oldest first.
    pub touched: Steps,
    pub ops: OpsBuilder,
    /// Where nothing lives, if that is known (`txn/pop.rs`).
    pub ends: Option<Box<Ends>>,
}

/// Memory that a writer keeps for the next transaction, whatever that writes.
const KEPT_BYTES: usize = 1 << 20;

impl WriterSlot {
    /// Gives memory back, if the last transaction, of so many bytes, needed little of what one before it did.
    #[inline]
    pub fn shrink(&mut self, used_bytes: u64) {
        let kept_bytes = self.touched.capacity_bytes() + self.ops.capacity_bytes();
        if kept_bytes > KEPT_BYTES && kept_bytes as u64 / 8 > used_bytes {
            (self.touched, self.ops) = (Steps::default(), OpsBuilder::new());
        }
    }

    /// Notes that `key` is about to be put or removed.
    #[inline]
    pub fn note_change(&mut self, key: &[u8], kind: Kind) {
        if let Some(ends) = &mut self.ends {
            ends.note_change(key, kind);
        }
    }
}

/// Undoable steps of a transaction, oldest first.
#[derive(Default)]
pub(crate) struct Steps {
    steps: Vec<Touched>,
    ranges: usize,
}

impl Steps {
    #[inline(always)]
    pub fn push_version(&mut self, entry: EntryRef, version: VersionRef) {
        self.steps.push(Touched::Version(entry, version));
    }

    pub fn push_range(&mut self, tombstone: TombstoneRef, bounds: KeyBounds) {
        self.steps
            .push(Touched::Range(Box::new((tombstone, bounds))));
        self.ranges += 1;
    }

    pub fn capacity_bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Touched>()
    }

    /// How many of them are versions.
    pub fn versions(&self) -> usize {
        self.steps.len() - self.ranges
    }

    pub fn pop(&mut self) -> Option<Touched> {
        let step = self.steps.pop();
        self.ranges -= usize::from(matches!(step, Some(Touched::Range(_))));
        step
    }

    /// All of them; none is left.
    #[inline(always)]
    pub fn drain(&mut self) -> std::vec::Drain<'_, Touched> {
        self.ranges = 0;
        self.steps.drain(..)
    }

    pub fn clear(&mut self) {
        self.drain();
    }
}

impl std::ops::Deref for Steps {
    type Target = [Touched];

    #[inline(always)]
    fn deref(&self) -> &[Touched] {
        &self.steps
    }
}

/// One undoable step of a transaction.
pub(crate) enum Touched {
    Version(EntryRef, VersionRef),
    Range(Box<(TombstoneRef, KeyBounds)>),
}

/// Bounds of a range delete, for the log.
pub(crate) type KeyBounds = (Box<[u8]>, Option<Box<[u8]>>);

impl KeyspaceCore {
    pub fn new(
        id: u32,
        slot: u32,
        database: u64,
        place: Place,
        expiry: Option<u64>,
    ) -> KeyspaceCore {
        KeyspaceCore {
            id,
            slot,
            database,
            expiry,
            place: RwLock::new(place),
            subtrees: Mutex::default(),
            has_subtrees: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            writer: OwnLines::default(),
            generation_open: OwnLines::default(),
            writer_now: AtomicU64::new(0),
        }
    }

    /// Whether values begin with the moment of their expiry.
    #[inline]
    pub fn expires(&self) -> bool {
        self.expiry.is_some()
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

    /// Notes that a subtree is the value of a key.
    pub fn adopt(&self, key: &[u8], subtree: u32) {
        self.subtrees.lock().insert(key.to_vec(), subtree);
        self.has_subtrees.store(true, Ordering::Relaxed);
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
    pub fn lock(self: &Arc<Self>) -> Result<WriterGuard> {
        let held = self.writer.lock();
        self.check_exists()?;
        Ok(WriterGuard::of(self, held))
    }

    /// Takes the write lock if it is free.
    #[inline]
    pub fn try_lock(self: &Arc<Self>) -> Result<Option<WriterGuard>> {
        let held = self.writer.try_lock();
        self.check_exists()?;
        Ok(held.map(|held| WriterGuard::of(self, held)))
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
            parent.adopt(&key, core.id);
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
    if !is_name(name) {
        return Err(Error::KeyspaceName {
            bytes: name.len(),
            max: KEYSPACE_NAME_BYTES_MAX,
        });
    }
    Ok(())
}

/// As [`check_name`], of a saved snapshot.
pub(crate) fn check_snapshot_name(name: &str) -> Result<()> {
    if !is_name(name) {
        return Err(Error::SnapshotName {
            bytes: name.len(),
            max: KEYSPACE_NAME_BYTES_MAX,
        });
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= KEYSPACE_NAME_BYTES_MAX
}
