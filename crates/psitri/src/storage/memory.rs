//! Storage without a disk, for in-memory databases.
//!
//! Thread safety: the directory and each file's length are behind locks; bytes are copied outside of them.
//!
//! Invariants:
//! 1. A file's image is usable up to the file's length at least, and zero above it.
//! 2. A removed file lives on while a handle or mapping refers to it.
//!
//! Failure modes: a file longer than the range reserved for it is out of space. `sync_data` does nothing and never fails: there is
//! nothing that outlives the process.
#![allow(unsafe_code)] // copies to and from images
use super::{
    LockMode, OpenMode, ReadMap, Storage, StorageError, StorageFile, StorageLock, WriteMap,
    check_map_write, image::Image,
};
use crate::sync::Mutex;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
};

/// Addresses reserved for each file. They cost nothing until they are used; 47 bits of them hold two thousand such files.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// Granularity in which occupied space is counted.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// A directory in memory; gone when the last handle is.
#[derive(Debug)]
pub struct MemoryStorage {
    files: Mutex<BTreeMap<String, Arc<MemoryFile>>>,
    locks: Arc<LockTable>,
    file_bytes_max: u64,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        MemoryStorage::new()
    }
}

impl MemoryStorage {
    /// An empty directory whose files may grow to 64 GiB each.
    ///
    /// ```
    /// use psitri::storage::{MemoryStorage, OpenMode, Storage};
    /// let storage = MemoryStorage::new();
    /// storage.open("data", OpenMode::Create)?.write_at(b"hello", 0)?;
    /// assert!(storage.exists("data")?);
    /// # Ok::<(), psitri::storage::StorageError>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        MemoryStorage::with_file_bytes_max(FILE_BYTES_MAX)
    }

    /// An empty directory whose files may grow to `file_bytes_max` each, in addresses reserved when a file is created.
    #[must_use]
    pub fn with_file_bytes_max(file_bytes_max: u64) -> Self {
        MemoryStorage {
            files: Mutex::new(BTreeMap::new()),
            locks: Arc::default(),
            file_bytes_max,
        }
    }
}

fn not_found(name: &str) -> StorageError {
    StorageError::NotFound {
        file: name.to_owned(),
    }
}

impl Storage for MemoryStorage {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError> {
        let mut files = self.files.lock();
        match (files.get(name), mode) {
            (Some(_), OpenMode::Create) => Err(StorageError::AlreadyExists {
                file: name.to_owned(),
            }),
            (Some(file), _) => Ok(Arc::clone(file) as Arc<dyn StorageFile>),
            (None, OpenMode::Create) => {
                let image = Image::new(self.file_bytes_max)
                    .map_err(|error| StorageError::io("open", name, error))?;
                let file = Arc::new(MemoryFile {
                    name: name.to_owned(),
                    image: Arc::new(image),
                    shape: Mutex::new(Shape::default()),
                });
                files.insert(name.to_owned(), Arc::clone(&file));
                Ok(file)
            }
            (None, _) => Err(not_found(name)),
        }
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        Ok(self.files.lock().contains_key(name))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.files
            .lock()
            .remove(name)
            .map(drop)
            .ok_or_else(|| not_found(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or_else(|| not_found(from))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        LockTable::take(&self.locks, mode, &self.describe())
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Lock of a directory that only this process can see.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    /// Number of shared holders, or `EXCLUSIVE`.
    holders: Mutex<u32>,
}

const EXCLUSIVE: u32 = u32::MAX;

struct HeldLock {
    table: Weak<LockTable>,
}

impl LockTable {
    pub fn take(
        table: &Arc<LockTable>,
        mode: LockMode,
        path: &str,
    ) -> Result<StorageLock, StorageError> {
        let mut holders = table.holders.lock();
        *holders = match (mode, *holders) {
            (LockMode::Exclusive, 0) => EXCLUSIVE,
            (LockMode::Shared, count) if count < EXCLUSIVE - 1 => count + 1,
            _ => {
                return Err(StorageError::Locked {
                    path: path.to_owned(),
                    holder: Some(std::process::id()),
                });
            }
        };
        Ok(StorageLock::new(HeldLock {
            table: Arc::downgrade(table),
        }))
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut holders = table.holders.lock();
            *holders = if *holders == EXCLUSIVE {
                0
            } else {
                holders.saturating_sub(1)
            };
        }
    }
}

/// Length and occupied blocks of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    pub len: u64,
    blocks: Vec<u64>,
}

impl Shape {
    /// Counts the blocks that a range would add.
    pub fn missing_blocks(&self, offset: u64, len: u64) -> u64 {
        block_range(offset, len)
            .filter(|&block| !self.has(block))
            .count() as u64
    }

    fn has(&self, block: u64) -> bool {
        self.blocks
            .get((block / 64) as usize)
            .is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    pub fn add_blocks(&mut self, offset: u64, len: u64) {
        for block in block_range(offset, len) {
            let word = (block / 64) as usize;
            if word >= self.blocks.len() {
                self.blocks.resize(word + 1, 0);
            }
            self.blocks[word] |= 1 << (block % 64);
        }
    }

    /// Drops the blocks that lie wholly inside of the range.
    pub fn drop_blocks(&mut self, offset: u64, end: u64) {
        let last = (end / BLOCK_BYTES).min(self.blocks.len() as u64 * 64);
        for block in offset.div_ceil(BLOCK_BYTES)..last {
            self.blocks[(block / 64) as usize] &= !(1 << (block % 64));
        }
    }

    pub fn allocated_bytes(&self) -> u64 {
        self.blocks
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum::<u64>()
            * BLOCK_BYTES
    }
}

fn block_range(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}

#[derive(Debug)]
struct MemoryFile {
    name: String,
    image: Arc<Image>,
    shape: Mutex<Shape>,
}

impl MemoryFile {
    fn wrap(&self, operation: &'static str) -> impl Fn(io::Error) -> StorageError + '_ {
        move |error| StorageError::io(operation, &self.name, error)
    }

    fn end_of(&self, offset: u64, len: u64) -> Result<u64, StorageError> {
        offset
            .checked_add(len)
            .ok_or_else(|| StorageError::OutOfRange {
                file: self.name.clone(),
                offset,
                len,
                limit: self.image.reserved_bytes() as u64,
            })
    }
}

impl StorageFile for MemoryFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64, StorageError> {
        Ok(self.shape.lock().len)
    }

    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        let mut shape = self.shape.lock();
        self.image.grow(len).map_err(self.wrap("set_len"))?;
        if len < shape.len {
            // SAFETY: usable by invariant 1; bytes past the new end belong to nobody.
            unsafe { self.image.zero(len, (shape.len - len) as usize) };
            let old_len = shape.len.next_multiple_of(BLOCK_BYTES);
            shape.drop_blocks(len, old_len);
        }
        shape.len = len;
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let end = self.end_of(offset, len)?;
        let mut shape = self.shape.lock();
        self.image.grow(end).map_err(self.wrap("allocate"))?;
        shape.add_blocks(offset, len);
        shape.len = shape.len.max(end);
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        let end = self.end_of(offset, buffer.len() as u64)?;
        if end > self.shape.lock().len {
            return Err(self.wrap("read_at")(io::ErrorKind::UnexpectedEof.into()));
        }
        // SAFETY: usable by invariant 1; concurrent writers of the same bytes are ordered by the caller (trait contract).
        unsafe { self.image.read(offset, buffer) };
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        self.allocate(offset, bytes.len() as u64)?;
        // SAFETY: usable by invariant 1; concurrent users of the same bytes are ordered by the caller (trait contract).
        unsafe { self.image.write(offset, bytes) };
        Ok(())
    }

    fn sync_data(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let mut shape = self.shape.lock();
        let end = self.end_of(offset, len)?.min(shape.len);
        if offset < end {
            // SAFETY: usable by invariant 1; the caller gave the range up.
            unsafe { self.image.zero(offset, (end - offset) as usize) };
            shape.drop_blocks(offset, end);
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        Ok(self.shape.lock().allocated_bytes())
    }

    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        Ok(ReadMap::of_image(
            &self.image,
            &self.name,
            reserve_bytes.max(self.len()?),
        ))
    }

    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        check_map_write(&self.name, offset, len, self.len()?)?;
        Ok(WriteMap::of_image(
            &self.image,
            &self.name,
            offset,
            len,
            None,
        ))
    }
}
