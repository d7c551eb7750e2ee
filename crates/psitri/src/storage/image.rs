//! The content of one file in memory: a reserved range of addresses that becomes usable as the file grows.
//!
//! The address of a byte never changes, so mappings handed out stay valid and see later growth, as with a real file.
//!
//! Thread safety: growth is serialised by a lock; access to the bytes is the caller's affair (`unsafe` methods).
//!
//! Invariants:
//! 1. `[base, base + reserved)` is one anonymous private mapping from `new` to `drop`.
//! 2. `[base, base + usable)` is readable and writable; `usable` only grows.
//!
//! Failure modes: growth beyond the reserved range is an out-of-space error.
#![allow(unsafe_code)] // owns an anonymous mapping
use crate::sync::Mutex;
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use std::{io, ptr::NonNull};

const GROWTH_BYTES: usize = 256 * 1024;
const RESERVED_BYTES_MIN: usize = 1024 * 1024;

pub(crate) struct Image {
    base: NonNull<u8>,
    reserved_bytes: usize,
    usable_bytes: Mutex<usize>,
}

// SAFETY: memory owned by this value (invariant 1); access goes through `unsafe` methods.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("reserved_bytes", &self.reserved_bytes)
            .finish()
    }
}

impl Image {
    /// Reserves addresses, halving the wish while it cannot be granted.
    pub fn new(reserve_bytes: u64) -> io::Result<Image> {
        let wish = usize::try_from(reserve_bytes).unwrap_or(usize::MAX / 2);
        let mut reserved_bytes = wish.max(RESERVED_BYTES_MIN).next_multiple_of(GROWTH_BYTES);
        loop {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a null hint and no MAP_FIXED: no memory in use is replaced.
            let mapped = unsafe {
                mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    reserved_bytes,
                    ProtFlags::empty(),
                    flags,
                )
            };
            match mapped.map(|base| NonNull::new(base.cast::<u8>())) {
                Ok(Some(base)) => {
                    return Ok(Image {
                        base,
                        reserved_bytes,
                        usable_bytes: Mutex::new(0),
                    });
                }
                Ok(None) => return Err(io::ErrorKind::OutOfMemory.into()),
                Err(error) if reserved_bytes <= RESERVED_BYTES_MIN => return Err(error.into()),
                Err(_) => {
                    reserved_bytes = (reserved_bytes / 2)
                        .max(RESERVED_BYTES_MIN)
                        .next_multiple_of(GROWTH_BYTES);
                }
            }
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Makes the first `len` bytes usable.
    pub fn grow(&self, len: u64) -> io::Result<()> {
        let mut usable = self.usable_bytes.lock();
        let want = usize::try_from(len).unwrap_or(usize::MAX);
        if want <= *usable {
            return Ok(());
        }
        if want > self.reserved_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let want = want.next_multiple_of(GROWTH_BYTES).min(self.reserved_bytes);
        // SAFETY: a range of our own mapping (invariant 1) that nobody uses yet (invariant 2) gains rights.
        unsafe {
            let start = self.base.as_ptr().add(*usable).cast();
            mm::mprotect(
                start,
                want - *usable,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        *usable = want;
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> usize {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let usable = *self.usable_bytes.lock();
        assert!(
            start <= usable && len <= usable - start,
            "range outside of the usable part of the image"
        );
        start
    }

    /// Copies bytes in; the range is usable.
    ///
    /// # Safety
    /// Nobody accesses the range at the same time, as far as the outcome matters to them.
    pub unsafe fn write(&self, offset: u64, bytes: &[u8]) {
        let start = self.check(offset, bytes.len());
        // SAFETY: usable (checked; invariant 2); the contract excludes concurrent access.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.base.as_ptr().add(start),
                bytes.len(),
            )
        };
    }

    /// Copies bytes out; the range is usable.
    ///
    /// # Safety
    /// Bytes stored at the same time by others may come out old, new or mixed; the caller can live with each.
    pub unsafe fn read(&self, offset: u64, buffer: &mut [u8]) {
        let start = self.check(offset, buffer.len());
        // SAFETY: usable (checked; invariant 2); the contract covers concurrent stores.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(start),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
    }

    /// Makes a range read as zeros and gives whole pages back to the system.
    ///
    /// # Safety
    /// As for [`Image::write`].
    pub unsafe fn zero(&self, offset: u64, len: usize) {
        let start = self.check(offset, len);
        let end = start + len;
        // Whole pages of any supported size are dropped by the system, the edges are overwritten.
        let page_bytes = super::MAP_ALIGNMENT_BYTES as usize;
        let (first, last) = (
            start.next_multiple_of(page_bytes),
            end / page_bytes * page_bytes,
        );
        // SAFETY: usable (checked; invariant 2) and private anonymous, so dropped pages come back as zeros.
        unsafe {
            let base = self.base.as_ptr();
            #[cfg(target_os = "linux")]
            if first < last
                && mm::madvise(
                    base.add(first).cast(),
                    last - first,
                    mm::Advice::LinuxDontNeed,
                )
                .is_ok()
            {
                std::ptr::write_bytes(base.add(start), 0, first - start);
                std::ptr::write_bytes(base.add(last), 0, end - last);
                return;
            }
            let _ = (first, last);
            std::ptr::write_bytes(base.add(start), 0, len);
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: our own mapping (invariant 1); maps made from it hold a reference and so are gone.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.reserved_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
