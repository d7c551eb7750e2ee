//! Mappings of files: [`ReadMap`] for the data file, [`WriteMap`] for log segments.
//!
//! Thread safety: both may be shared between threads; what may be accessed at the same time is the caller's affair, hence the
//! `unsafe` accessors.
//!
//! Invariants:
//! 1. `[base, base + len)` stays mapped while the value lives: the owner is released in `drop` and nowhere else.
//! 2. A map over a real file is unmapped once, by the `Owner` that made it; a map over an image keeps the image alive.
//!
//! Failure modes: a range past the end of the file is mapped but not there; touching it kills the process. The accessors say so.
#![allow(unsafe_code)] // the one place that makes references from mapped memory
use super::{StorageError, image::Image};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, fmt, os::fd::BorrowedFd, ptr::NonNull, sync::Arc};

/// Smallest unit of population and prefetch; a multiple of any smaller page, and rounded outwards by the system for larger ones.
const PAGE_BYTES: usize = 4096;

/// Keeps a mapping alive.
enum Owner {
    File {
        _held: FileMapping,
    },
    Image {
        _held: Arc<Image>,
        watch: Option<Arc<dyn StoreWatch>>,
    },
}

/// Is asked about stores through a mapping of an image: the simulated disk has no other way to see them.
pub(super) trait StoreWatch: Send + Sync {
    /// How many bytes of a store of `len` bytes are to be there when `stored_a_part` is called.
    fn part_of(&self, len: usize) -> usize;
    /// In the middle of a store to `offset` in the mapping.
    fn stored_a_part(&self, offset: u64);
}

/// A mapping of a real file, unmapped on drop.
struct FileMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address and a length that only `drop` uses (invariant 2); no thread affinity.
unsafe impl Send for FileMapping {}
// SAFETY: as above; nothing is reachable through a shared reference.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, rustix::io::Errno> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a null hint and no MAP_FIXED: the new mapping cannot replace memory that is in use (invariant 1).
        let base = unsafe {
            mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) => Ok(FileMapping { base, len }),
            None => Err(rustix::io::Errno::NOMEM),
        }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: this value made exactly this mapping and is its only owner (invariants 1 and 2).
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Read-only mapping from the start of a file.
pub struct ReadMap {
    base: NonNull<u8>,
    len: usize,
    file: String,
    _owner: Owner,
}

// SAFETY: memory that stays mapped (invariant 1); every access goes through `unsafe` methods that state what they need.
unsafe impl Send for ReadMap {}
// SAFETY: as above.
unsafe impl Sync for ReadMap {}

impl fmt::Debug for ReadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadMap")
            .field("file", &self.file)
            .field("len", &self.len)
            .finish()
    }
}

impl ReadMap {
    /// Maps `reserve_bytes`, or as much as can be had but at least `len_min`.
    pub(super) fn of_file(
        fd: BorrowedFd<'_>,
        file: &str,
        reserve_bytes: u64,
        len_min: u64,
    ) -> Result<Self, StorageError> {
        let round = |bytes: u64| {
            bytes
                .max(1)
                .checked_next_multiple_of(super::MAP_ALIGNMENT_BYTES)
                .unwrap_or(bytes)
        };
        let floor = round(len_min);
        let mut want = round(reserve_bytes).max(floor);
        loop {
            let attempt = match usize::try_from(want) {
                Ok(len) => FileMapping::new(fd, 0, len, false),
                Err(_) => Err(rustix::io::Errno::NOMEM),
            };
            match attempt {
                Ok(mapping) => {
                    return Ok(ReadMap {
                        base: mapping.base,
                        len: mapping.len,
                        file: file.to_owned(),
                        _owner: Owner::File { _held: mapping },
                    });
                }
                Err(error) if want == floor => {
                    return Err(StorageError::io("map_read", file, error));
                }
                Err(_) => want = round(want / 2).max(floor),
            }
        }
    }

    pub(super) fn of_image(image: &Arc<Image>, file: &str, reserve_bytes: u64) -> Self {
        let len = usize::try_from(reserve_bytes)
            .unwrap_or(usize::MAX)
            .min(image.reserved_bytes());
        ReadMap {
            base: image.base(),
            len,
            file: file.to_owned(),
            _owner: Owner::Image {
                _held: Arc::clone(image),
                watch: None,
            },
        }
    }

    /// Address of the file's first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Bytes of address space mapped; the file may be shorter.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// True when nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A range of the file, or `None` when the mapping does not reach that far.
    ///
    /// # Safety
    /// The range lies below the file's current length and is not written, cut off or punched while the slice lives.
    #[must_use]
    #[inline]
    pub unsafe fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        if start.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping (checked; invariant 1); present and unchanging by this function's contract.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) })
    }

    /// Asks the system to read a range ahead. Advice only: errors do not matter.
    pub fn will_need(&self, offset: u64, len: u64) {
        if let Some((start, bytes)) = page_range(offset, len, self.len) {
            // SAFETY: inside the mapping (invariant 1); this advice does not change content.
            let _ = unsafe {
                mm::madvise(
                    self.base.as_ptr().add(start).cast(),
                    bytes,
                    Advice::WillNeed,
                )
            };
        }
    }

    /// No longer keeps the pages of a range in memory.
    pub fn unlock(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let (address, bytes) = self.locked_range(offset, len)?;
        // SAFETY: inside the mapping (invariant 1); this does not change content.
        let unlocked = unsafe { mm::munlock(address, bytes) };
        unlocked.map_err(|error| StorageError::io("unlock", &self.file, error))
    }

    fn locked_range(&self, offset: u64, len: u64) -> Result<(*mut c_void, usize), StorageError> {
        let (start, bytes) = page_range(offset, len, self.len).ok_or(StorageError::OutOfRange {
            file: self.file.clone(),
            offset,
            len,
            limit: self.len(),
        })?;
        // SAFETY: inside the mapping (invariant 1).
        Ok((unsafe { self.base.as_ptr().add(start) }.cast(), bytes))
    }

    /// Keeps the pages of a range in memory once they have been read. The range lies below the file's length.
    pub fn lock(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let (address, bytes) = self.locked_range(offset, len)?;
        // SAFETY: inside the mapping (invariant 1); locking does not change content.
        let locked = unsafe {
            #[cfg(target_os = "linux")]
            {
                mm::mlock_with(address, bytes, mm::MlockFlags::ONFAULT)
            }
            #[cfg(not(target_os = "linux"))]
            {
                mm::mlock(address, bytes)
            }
        };
        locked.map_err(|error| StorageError::io("lock", &self.file, error))
    }
}

/// Rounds a range outwards to pages; `None` when it leaves the mapping.
fn page_range(offset: u64, len: u64, mapped: usize) -> Option<(usize, usize)> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    if end > mapped || len == 0 {
        return None;
    }
    let start = start / PAGE_BYTES * PAGE_BYTES;
    Some((start, end.next_multiple_of(PAGE_BYTES).min(mapped) - start))
}

/// Writable mapping of an allocated range of a file.
pub struct WriteMap {
    base: NonNull<u8>,
    len: usize,
    file: String,
    _owner: Owner,
}

// SAFETY: memory that stays mapped (invariant 1); every access goes through `unsafe` methods or the raw pointer.
unsafe impl Send for WriteMap {}
// SAFETY: as above.
unsafe impl Sync for WriteMap {}

impl fmt::Debug for WriteMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteMap")
            .field("file", &self.file)
            .field("len", &self.len)
            .finish()
    }
}

impl WriteMap {
    pub(super) fn of_file(
        fd: BorrowedFd<'_>,
        file: &str,
        offset: u64,
        len: u64,
    ) -> Result<Self, StorageError> {
        let bytes = usize::try_from(len)
            .map_err(|_| StorageError::io("map_write", file, rustix::io::Errno::NOMEM))?;
        let mapping = FileMapping::new(fd, offset, bytes, true)
            .map_err(|error| StorageError::io("map_write", file, error))?;
        Ok(WriteMap {
            base: mapping.base,
            len: bytes,
            file: file.to_owned(),
            _owner: Owner::File { _held: mapping },
        })
    }

    /// The range was checked against the file's length, which the image covers.
    pub(super) fn of_image(
        image: &Arc<Image>,
        file: &str,
        offset: u64,
        len: u64,
        watch: Option<Arc<dyn StoreWatch>>,
    ) -> Self {
        let (start, bytes) = (offset as usize, len as usize);
        assert!(start + bytes <= image.reserved_bytes());
        // SAFETY: inside the image's reserved range (asserted).
        let base = unsafe { image.base().add(start) };
        WriteMap {
            base,
            len: bytes,
            file: file.to_owned(),
            _owner: Owner::Image {
                _held: Arc::clone(image),
                watch,
            },
        }
    }

    /// Address of the range's first byte.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// True when nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes into the range. Panics when they do not fit: a defect of the caller.
    ///
    /// # Safety
    /// No other thread reads or writes these bytes at the same time.
    #[inline]
    pub unsafe fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(
            start <= self.len && bytes.len() <= self.len - start,
            "store outside of the mapped range"
        );
        let (mut start, mut bytes) = (start, bytes);
        if let Owner::Image {
            watch: Some(watch), ..
        } = &self._owner
        {
            let (part, rest) = bytes.split_at(watch.part_of(bytes.len()));
            // SAFETY: as below.
            unsafe {
                let to = self.base.as_ptr().add(start);
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            watch.stored_a_part(offset);
            (start, bytes) = (start + part.len(), rest);
        }
        // SAFETY: inside the mapping (asserted; invariant 1); `bytes` is a Rust slice and so does not overlap a range that only
        // this mapping reaches; no concurrent access by this function's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.base.as_ptr().add(start),
                bytes.len(),
            )
        };
    }

    /// Takes the pages out of the address space, where that is possible without a change of content; the next access brings one back. A flush
    /// that meets no page here has none to take away from all processors, one by one. A hint.
    pub fn unload(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::File { .. } = &self._owner {
            // SAFETY: the whole of our mapping (invariant 1). It is shared with the file: what was stored is in the file's pages, and stays.
            let _ =
                unsafe { mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontNeed) };
        }
    }

    /// Makes the pages of a range present and writable, so that later stores do not fault. Content stays as it is.
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let Some((start, bytes)) = page_range(offset, len, self.len) else {
            return Err(StorageError::OutOfRange {
                file: self.file.clone(),
                offset,
                len,
                limit: self.len(),
            });
        };
        #[cfg(target_os = "linux")]
        {
            // SAFETY: inside the mapping (invariant 1); this advice keeps the content.
            let advised = unsafe {
                mm::madvise(
                    self.base.as_ptr().add(start).cast(),
                    bytes,
                    Advice::LinuxPopulateWrite,
                )
            };
            if advised.is_ok() {
                return Ok(());
            }
        }
        // Older kernels and other systems: one load a page brings it in. A store would be better, but it could overwrite what
        // another thread stores at the same moment.
        for page in (start..start + bytes).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping (invariant 1); the value is thrown away, so a concurrent store cannot matter.
            let _ = unsafe { self.base.as_ptr().add(page).read_volatile() };
        }
        Ok(())
    }
}
