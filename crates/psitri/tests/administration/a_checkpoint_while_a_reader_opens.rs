//! Story: a reader opens beside a writer. It has read the superblock and said which version it is going to see; before it reads on, the writer
//! takes checkpoints and uses what they made free, the pages of that page map among them. The reader finds out, begins again, and
//! sees the newest checkpoint. If that happens every time, it says so.
use psitri::{
    Database, Error, Options,
    storage::{
        LockMode, OpenMode, OsStorage, ReadMap, ReaderPin, ReaderSlot, Storage, StorageError,
        StorageFile, StorageLock, WriteMap,
    },
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

type Hook = Arc<dyn Fn() + Send + Sync>;

/// A directory whose data file calls `hook` before something behind the superblocks is read for the first time after them.
struct Hooked {
    inner: OsStorage,
    hook: Hook,
}

struct HookedFile {
    inner: Arc<dyn StorageFile>,
    hook: Hook,
    is_armed: AtomicBool,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl std::fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Storage for Hooked {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError> {
        let inner = self.inner.open(name, mode)?;
        if name != "data" {
            return Ok(inner);
        }
        Ok(Arc::new(HookedFile {
            inner,
            hook: Arc::clone(&self.hook),
            is_armed: AtomicBool::new(false),
        }))
    }
    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        self.inner.exists(name)
    }
    fn list(&self) -> Result<Vec<String>, StorageError> {
        self.inner.list()
    }
    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self) -> Result<(), StorageError> {
        self.inner.sync_dir()
    }
    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        self.inner.lock(mode)
    }
    fn take_reader_slot(&self) -> Result<ReaderSlot, StorageError> {
        self.inner.take_reader_slot()
    }
    fn reader_pins(&self) -> Result<Vec<ReaderPin>, StorageError> {
        self.inner.reader_pins()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn boot_id(&self) -> Option<[u8; 16]> {
        self.inner.boot_id()
    }
}

impl StorageFile for HookedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> Result<u64, StorageError> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        self.inner.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        self.inner.allocate(offset, len)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        if offset < 8192 {
            self.is_armed.store(true, Ordering::Relaxed);
        } else if self.is_armed.swap(false, Ordering::Relaxed) {
            (self.hook)();
        }
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        self.inner.write_at(bytes, offset)
    }
    fn sync_data(&self) -> Result<(), StorageError> {
        self.inner.sync_data()
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        self.inner.punch_hole(offset, len)
    }
    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        self.inner.allocated_bytes()
    }
    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        self.inner.map_read(reserve_bytes)
    }
    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        self.inner.map_write(offset, len)
    }
}

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
}

/// Overwrites every key with a version.
fn overwrite(db: &Database, version: u32) {
    let keyspace = db.keyspace("ks").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for key in 0..2000u32 {
        let value = version.to_le_bytes().repeat(16);
        txn.upsert(&keyspace, &key.to_be_bytes(), &value).unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
}

/// The version of every key, which must be one.
fn version(db: &Database) -> u32 {
    let keyspace = db.open_keyspace("ks").unwrap();
    let snapshot = db.snapshot();
    let mut versions = Vec::new();
    let mut cursor = snapshot.cursor(&keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found {
        let value = cursor.value();
        assert_eq!(value, value[..4].repeat(16));
        versions.push(u32::from_le_bytes(value[..4].try_into().unwrap()));
        found = cursor.next().unwrap();
    }
    assert_eq!(versions.len(), 2000);
    versions.dedup();
    assert_eq!(versions.len(), 1, "{versions:?}");
    versions[0]
}

fn open_with_hook(path: &Path, hook: Hook) -> Result<Database, Error> {
    let inner = OsStorage::open(path).unwrap();
    Database::open_beside_writer_on(Arc::new(Hooked { inner, hook }), options())
}

#[test]
fn a_reader_that_was_overtaken_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = options().open(&path).unwrap();
    overwrite(&writer, 1);
    let (again, has_run) = (writer.clone(), AtomicBool::new(false));
    let hook = move || {
        if !has_run.swap(true, Ordering::Relaxed) {
            (2..6).for_each(|version| overwrite(&again, version));
        }
    };
    let reader = open_with_hook(&path, Arc::new(hook)).unwrap();
    assert_eq!(version(&reader), 5);
    (6..12).for_each(|version| overwrite(&writer, version));
    assert_eq!(version(&reader), 5);
    assert_eq!(reader.verify().unwrap().errors, Vec::<String>::new());
}

#[test]
fn a_reader_that_is_always_overtaken_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let writer = options().open(&path).unwrap();
    overwrite(&writer, 1);
    let again = writer.clone();
    let next = std::sync::atomic::AtomicU32::new(2);
    let hook = move || overwrite(&again, next.fetch_add(1, Ordering::Relaxed));
    let error = open_with_hook(&path, Arc::new(hook)).unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
    assert_eq!(writer.stats().unwrap().readers_beside, 0);
}
