//! Storage in a directory of the operating system.
//!
//! Thread safety: files are used by offset (pread, pwrite), so handles have no position to share.
//!
//! Invariants:
//! 1. Every call is repeated after an interruption and continued after a short transfer, so `Ok` means all of it.
//! 2. The lock is an advisory lock on the file `lock` (`file_lock.rs`); it goes away with the process, however that ends. The process id in
//!    the file is for messages only and never decides anything.
//!
//! Failure modes: errors of the system, with the operation and the file's path.
use super::{
    LOCK_FILE_NAME, LockMode, OpenMode, ReadMap, ReaderPin, ReaderSlot, Storage, StorageError,
    StorageFile, StorageLock, WriteMap, check_map_write,
    file_lock::FileLock,
    readers,
    transfer::{read_fully, uninterrupted, write_fully},
};
use rustix::{
    fs::{self, FallocateFlags, FlockOperation},
    io::Errno,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What systems say of a file system that cannot reserve blocks, or give them back.
const UNSUPPORTED: [Errno; 3] = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL];

/// Block size in which the system reports the space of a file.
const STAT_BLOCK_BYTES: u64 = 512;
/// How much is written at once where blocks can only be had by writing zeros.
const ZERO_CHUNK_BYTES: u64 = 1024 * 1024;

/// How much is written at once. Systems keep a file in memory in the pieces in which it is written; a piece of 2 MiB or more wants as much
/// contiguous memory, and finding that takes ten times as long as the copying where free memory is in small pieces, or with the host of a
/// virtual machine.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// A directory on disk.
#[derive(Debug)]
pub struct OsStorage {
    dir: PathBuf,
}

impl OsStorage {
    /// Uses an existing directory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use psitri::storage::{OpenMode, OsStorage, Storage};
    /// let storage = OsStorage::open(dir.path())?;
    /// let file = storage.open("data", OpenMode::Create)?;
    /// file.write_at(b"hello", 0)?;
    /// file.sync_data()?;
    /// storage.sync_dir()?;
    /// assert_eq!(storage.list()?, ["data"]);
    /// # Ok::<(), psitri::storage::StorageError>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, StorageError> {
        let dir = dir.as_ref().to_owned();
        let shown = dir.display().to_string();
        let meta =
            std::fs::metadata(&dir).map_err(|error| StorageError::io("open", &shown, error))?;
        if !meta.is_dir() {
            return Err(StorageError::io(
                "open",
                &shown,
                io::Error::from(io::ErrorKind::NotADirectory),
            ));
        }
        Ok(OsStorage { dir })
    }

    /// Makes the directory (and its parents) where it is missing, and makes its name durable.
    pub fn create(dir: impl AsRef<Path>) -> Result<Self, StorageError> {
        let dir = dir.as_ref();
        let shown = dir.display().to_string();
        let wrap = |error: io::Error| StorageError::io("create", &shown, error);
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
        std::fs::create_dir_all(dir).map_err(wrap)?;
        for made in missing {
            let parent = made
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            File::open(parent)
                .and_then(|parent| parent.sync_all())
                .map_err(wrap)?;
        }
        OsStorage::open(dir)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn join(&self, name: &str) -> Result<PathBuf, StorageError> {
        let plain =
            !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
        if !plain {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a plain file name");
            return Err(StorageError::io("open", name, error));
        }
        Ok(self.dir.join(name))
    }
}

impl Storage for OsStorage {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError> {
        let path = self.join(name)?;
        let shown = path.display().to_string();
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => drop(options.write(true)),
            OpenMode::Create => drop(options.write(true).create_new(true)),
        }
        let file = options
            .open(&path)
            .map_err(|error| StorageError::io("open", &shown, error))?;
        Ok(Arc::new(OsFile {
            file,
            name: name.to_owned(),
            shown,
        }))
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        let path = self.join(name)?;
        path.try_exists()
            .map_err(|error| StorageError::io("exists", &path.display().to_string(), error))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        let wrap = |error: io::Error| StorageError::io("list", &self.describe(), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(wrap)? {
            // A name that is not text cannot be one of ours.
            if let Ok(name) = entry.map_err(wrap)?.file_name().into_string()
                && name != LOCK_FILE_NAME
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        let path = self.join(name)?;
        std::fs::remove_file(&path)
            .map_err(|error| StorageError::io("remove", &path.display().to_string(), error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let (from, to) = (self.join(from)?, self.join(to)?);
        std::fs::rename(&from, to)
            .map_err(|error| StorageError::io("rename", &from.display().to_string(), error))
    }

    fn sync_dir(&self) -> Result<(), StorageError> {
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| StorageError::io("sync_dir", &self.describe(), error))
    }

    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        let path = self.dir.join(LOCK_FILE_NAME);
        let shown = path.display().to_string();
        let wrap = |error: io::Error| StorageError::io("lock", &shown, error);
        let writable = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = match (writable, mode) {
            (Ok(file), _) => file,
            // A reader of a directory that it may not write to can lock what is there.
            (Err(_), LockMode::Shared) => File::open(&path).map_err(wrap)?,
            (Err(error), LockMode::Exclusive) => return Err(wrap(error)),
        };
        let operation = match mode {
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let lock = match FileLock::try_take(file, operation).map_err(wrap)? {
            Ok(lock) => lock,
            Err(mut file) => {
                let mut text = String::new();
                let holder = file
                    .read_to_string(&mut text)
                    .ok()
                    .and_then(|_| text.trim().parse().ok());
                return Err(StorageError::Locked {
                    path: self.describe(),
                    holder,
                });
            }
        };
        if mode == LockMode::Exclusive {
            // Invariant 2: for messages only, so a full disk must not keep anyone out.
            let mut file = lock.file();
            let _ = file.set_len(0);
            let _ = writeln!(file, "{}", std::process::id());
        }
        Ok(StorageLock::new(lock))
    }

    fn take_reader_slot(&self) -> Result<ReaderSlot, StorageError> {
        ReaderSlot::take(&self.dir)
    }

    fn reader_pins(&self) -> Result<Vec<ReaderPin>, StorageError> {
        readers::pins(&self.dir)
    }

    fn describe(&self) -> String {
        self.dir.display().to_string()
    }

    fn side_directory(&self) -> Option<&Path> {
        Some(&self.dir)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let mut id = [0; 16];
        if digits.len() != 2 * id.len() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(id)
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    UNSUPPORTED
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

#[derive(Debug)]
struct OsFile {
    file: File,
    name: String,
    shown: String,
}

impl OsFile {
    fn wrap(&self, operation: &'static str) -> impl Fn(io::Error) -> StorageError + '_ {
        move |error| StorageError::io(operation, &self.shown, error)
    }

    /// Reserves blocks past the end by writing zeros, for file systems without fallocate. Existing bytes stay.
    fn allocate_by_writing(&self, offset: u64, end: u64) -> Result<(), StorageError> {
        let mut at = self.len()?.max(offset);
        let zeros =
            vec![0; usize::try_from(ZERO_CHUNK_BYTES.min(end.saturating_sub(at))).unwrap_or(0)];
        while at < end {
            let chunk = (end - at).min(zeros.len() as u64);
            self.write_at(&zeros[..chunk as usize], at)?;
            at += chunk;
        }
        Ok(())
    }
}

impl StorageFile for OsFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64, StorageError> {
        let stat = uninterrupted(|| fs::fstat(&self.file)).map_err(self.wrap("len"))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        uninterrupted(|| fs::ftruncate(&self.file, len)).map_err(self.wrap("set_len"))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        if len == 0 {
            return Ok(());
        }
        let Some(end) = offset.checked_add(len) else {
            return Err(StorageError::OutOfRange {
                file: self.shown.clone(),
                offset,
                len,
                limit: u64::MAX,
            });
        };
        let empty = FallocateFlags::empty();
        match uninterrupted(|| fs::fallocate(&self.file, empty, offset, len)) {
            Ok(()) => {}
            Err(error) if is_unsupported(&error) => self.allocate_by_writing(offset, end)?,
            Err(error) => return Err(self.wrap("allocate")(error)),
        }
        if self.len()? < end {
            // Some systems reserve blocks without moving the end.
            self.set_len(end)?;
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        read_fully(buffer, offset, |part, at| self.file.read_at(part, at))
            .map_err(self.wrap("read_at"))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        write_fully(bytes, offset, |part, at| {
            let piece = &part[..part.len().min(WRITE_BYTES_MAX)];
            self.file.write_at(piece, at)
        })
        .map_err(self.wrap("write_at"))
    }

    fn sync_data(&self) -> Result<(), StorageError> {
        #[cfg(any(target_os = "macos", target_os = "ios"))]
        let synced = uninterrupted(|| fs::fcntl_fullfsync(&self.file));
        #[cfg(not(any(target_os = "macos", target_os = "ios")))]
        let synced = uninterrupted(|| fs::fdatasync(&self.file));
        synced.map_err(self.wrap("sync_data"))
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        if len == 0 {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = uninterrupted(|| fs::fallocate(&self.file, flags, offset, len));
            let as_unsupported = |error: io::Error| match is_unsupported(&error) {
                true => io::Error::new(io::ErrorKind::Unsupported, error),
                false => error,
            };
            punched
                .map_err(as_unsupported)
                .map_err(self.wrap("punch_hole"))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = offset;
            Err(StorageError::io(
                "punch_hole",
                &self.shown,
                io::Error::from(io::ErrorKind::Unsupported),
            ))
        }
    }

    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        let stat = uninterrupted(|| fs::fstat(&self.file)).map_err(self.wrap("allocated_bytes"))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES)
    }

    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        ReadMap::of_file(self.file.as_fd(), &self.shown, reserve_bytes, self.len()?)
    }

    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        check_map_write(&self.shown, offset, len, self.len()?)?;
        WriteMap::of_file(self.file.as_fd(), &self.shown, offset, len)
    }
}
