//! `Arena`: the bump memory of one generation of the write buffer, shared by the buffers of all keyspaces.
//!
//! One reserved range of address space; memory appears when it is first touched. Places in it are named by 32-bit
//! references in units of 8 bytes, with 3 bits to spare for a tag: 2^29 units = 4 GiB.
//!
//! # Thread safety
//! Chunks are taken by any thread with one compare-and-swap; inside its chunk a writer bumps without atomics. Words that change
//! after publication are accessed as atomics only; everything else is written before the store that publishes
//! it and never again while readers may look.
//!
//! # Invariants
//! 1. Every offset that reaches [`Memory`] was handed out by [`Arena::claim`] of the same arena (with at least the accessed
//!    length behind it) and is aligned to the access. Buffers keep it by construction: references come from their own
//!    allocator and are stored only in their own nodes.
//! 2. A word is either *shared* (accessed through `a32`/`a64` only, after initialisation) or *plain* (written before the
//!    release store that makes its owner reachable, read only after the acquire load that found it).
//!    There are two exceptions. The payload of an uncommitted version: its writer may rewrite it, because nobody else reads
//!    payload or length of a version before its commit sequence number. And versions that nobody can look at any more (invariants 5 and 6 of
//!    `entry.rs`), which begin anew.
//! 3. The mapping lives as long as the `Arena`; `reset` and `release_over` need `&mut`, so no reader exists then.
//!
//! # Failure modes
//! No address space: `BufferError::Map`. Limit reached: `BufferError::Full`, nothing changed.
#![allow(unsafe_code)] // raw memory shared between one writer and many readers

use super::error::BufferError;
#[cfg(loom)]
use crate::sync::AtomicU32;
use crate::sync::{AtomicBool, AtomicU64, Ordering, OwnLines};
use std::time::Duration;

/// Granularity of references.
pub(super) const UNIT_BYTES: usize = 8;
/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;
/// Largest address range that 29-bit unit references can name.
pub const ARENA_BYTES_MAX: usize = 1 << 32;
/// The first line is never handed out, so that reference 0 can mean "none".
const RESERVED_BYTES: u64 = 64;
/// Writers that fill less than this do without memory that is touched ahead.
const POPULATE_FROM_BYTES: u64 = 1 << 20;
const POPULATE_AHEAD_BYTES: u64 = 8 << 20;
const CHUNK_ALIGN_BYTES: u64 = 64;
/// Size of a huge page on the processors that have them most.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// A huge page that takes more of a processor's time than this is dearer than the 512 pages that it stands for. Where its memory is at hand,
/// it takes a sixth of that; where the system has to move pages to make room, or the host of a virtual machine has to find memory, ten times that.
const HUGE_PAGE_TIME_MAX: Duration = Duration::from_micros(600);

const _: () = assert!(ARENA_BYTES_MAX / UNIT_BYTES == 1 << 29);

/// Bump memory of one generation. See the module text.
#[derive(Debug)]
pub struct Arena {
    memory: Mapping,
    bytes_max: u64,
    /// End of the part that was handed out.
    next: OwnLines<AtomicU64>,
    /// See [`Arena::charge`].
    charged: OwnLines<AtomicU64>,
    /// End of the part that was touched ahead of the writers.
    populated: AtomicU64,
    /// No part behind this was handed out in earlier lives and not given back since.
    used_before: u64,
    /// A huge page was found to be dear.
    is_small: AtomicBool,
    /// See [`Arena::note_passed`].
    passed: AtomicU64,
}

/// A part of an arena that belongs to one writer: bytes `start..end`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub start: u64,
    pub end: u64,
}

impl Arena {
    /// Reserves address space for `reserve_bytes` (at most 4 GiB, rounded up to 64 KiB). Memory is used only as it is written.
    pub fn new(reserve_bytes: usize) -> Result<Arena, BufferError> {
        let bytes = reserve_bytes
            .clamp(1 << 16, ARENA_BYTES_MAX)
            .next_multiple_of(1 << 16);
        Ok(Arena {
            memory: Mapping::new(bytes)?,
            bytes_max: bytes as u64,
            next: OwnLines(AtomicU64::new(RESERVED_BYTES)),
            charged: OwnLines::default(),
            populated: AtomicU64::new(0),
            used_before: 0,
            is_small: AtomicBool::new(false),
            passed: AtomicU64::new(0),
        })
    }

    /// Bytes handed out to writers so far, and charged.
    pub fn bytes_used(&self) -> u64 {
        self.next.load(Ordering::Relaxed) + self.charged.load(Ordering::Relaxed)
    }

    /// Counts what fills the buffer but is not handed out: memory of the generation outside of the arena, and versions in memory that was used
    /// before.
    pub(super) fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts entries of the generation that were read in order, those of short ranges left out.
    pub(super) fn note_passed(&self, entries: u64) {
        self.passed.fetch_add(entries, Ordering::Relaxed);
    }

    /// Entries that were read in order so far.
    pub fn entries_passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// The limit.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Forgets the content, keeps the memory.
    pub fn reset(&mut self) {
        let used = self.next.swap(RESERVED_BYTES, Ordering::Relaxed);
        self.used_before = self.used_before.max(used);
        self.charged.store(0, Ordering::Relaxed);
        self.passed.store(0, Ordering::Relaxed);
        self.is_small.store(false, Ordering::Relaxed);
        self.memory.forget();
    }

    /// Touches the memory of `from_bytes..to_bytes` ahead of the writers, on a background thread: the first store to a page
    /// costs microseconds, and much more on virtual machines. In huge pages, as long as these prove cheaper than small ones; writers that are
    /// there first take small pages, if the system is not set to give huge ones to all. Content is left alone. A hint: where the system cannot do it,
    /// nothing happens.
    pub fn populate(&self, from_bytes: u64, to_bytes: u64) {
        let to = to_bytes.min(self.bytes_max);
        let mut at = from_bytes;
        while at < to {
            let end = self.memory.huge_boundary(at + 1).min(to);
            let is_untouched = || self.next.load(Ordering::Relaxed) <= at;
            let is_whole = end - at == HUGE_PAGE_BYTES;
            if is_whole && !self.is_small.load(Ordering::Relaxed) && is_untouched() {
                let time = self.memory.populate_huge(at as usize, end as usize);
                // A writer that came in between has made small pages of it, which take longer than a cheap huge one.
                let share = if is_untouched() { 1 } else { 4 };
                let is_dear = time > share * HUGE_PAGE_TIME_MAX;
                self.is_small.store(is_dear, Ordering::Relaxed);
            } else {
                self.memory.populate(at as usize, end as usize);
            }
            at = end;
        }
    }

    /// Touches the next megabytes in front of the writers, once they have filled some. Call it now and then from one
    /// background thread; memory that was touched in an earlier life of the arena is not touched again.
    pub fn populate_ahead(&self, bytes_max: u64) {
        let used = self.next.load(Ordering::Relaxed);
        let populated = self.populated.load(Ordering::Relaxed);
        if used < POPULATE_FROM_BYTES || used + POPULATE_AHEAD_BYTES / 2 < populated {
            return;
        }
        // The next time goes on with a whole huge page.
        let to = self.memory.huge_boundary(used + POPULATE_AHEAD_BYTES);
        let to = to.min(bytes_max).max(populated);
        self.populate(populated.max(used), to);
        self.populated.store(to, Ordering::Relaxed);
    }

    /// Gives all memory behind the first `keep_bytes` back to the operating system. Only after [`Arena::reset`]:
    /// content there is lost.
    pub fn release_over(&mut self, keep_bytes: u64) {
        let from = keep_bytes
            .max(self.bytes_used())
            .next_multiple_of(1 << 16)
            .min(self.bytes_max);
        let populated = self.populated.load(Ordering::Relaxed);
        // Memory that was never touched has nothing to give back, and it takes the system a while to find that out.
        if populated.max(self.used_before) > from {
            self.memory.release(from as usize);
            self.used_before = from;
            self.populated.store(populated.min(from), Ordering::Relaxed);
        }
    }

    /// A chunk without memory, behind all that was handed out.
    pub(super) fn nothing(&self) -> Chunk {
        let start = self.next.load(Ordering::Relaxed);
        Chunk { start, end: start }
    }

    /// Takes between `min_bytes` and `want_bytes` of memory, aligned to a cache line.
    pub(super) fn claim(&self, min_bytes: u64, want_bytes: u64) -> Result<Chunk, BufferError> {
        debug_assert!(min_bytes <= want_bytes);
        let want = want_bytes.next_multiple_of(CHUNK_ALIGN_BYTES);
        let mut start = self.next.load(Ordering::Relaxed);
        loop {
            let end = (start + want).min(self.bytes_max);
            if end - start < min_bytes {
                return Err(BufferError::Full);
            }
            match self
                .next
                .compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(Chunk { start, end }),
                Err(now) => start = now,
            }
        }
    }

    #[inline(always)]
    pub(super) fn memory(&self) -> Memory<'_> {
        self.memory.view()
    }
}

#[cfg(not(loom))]
use native::Mapping;
#[cfg(not(loom))]
pub(super) use native::Memory;

#[cfg(not(loom))]
mod native {
    use super::{BufferError, HUGE_PAGE_BYTES};
    use crate::sync::{AtomicU32, AtomicU64};
    use rustix::mm;
    #[cfg(target_os = "linux")]
    use rustix::time::{ClockId, clock_gettime};
    use std::marker::PhantomData;
    use std::ptr::NonNull;
    use std::time::Duration;

    /// Systems have pages of at most this size.
    #[cfg(target_os = "linux")]
    const PAGE_BYTES_MAX: usize = 64 << 10;

    /// The reserved range.
    #[derive(Debug)]
    pub struct Mapping {
        base: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: the range belongs to this value alone (invariant 3) and all sharing goes through invariant 2.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        pub fn new(bytes: usize) -> Result<Mapping, BufferError> {
            let failed = |error: rustix::io::Errno| BufferError::Map {
                bytes,
                source: error.into(),
            };
            #[cfg(target_os = "linux")]
            let flags = mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE;
            #[cfg(not(target_os = "linux"))]
            let flags = mm::MapFlags::PRIVATE;
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
            let base = unsafe {
                mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    bytes,
                    mm::ProtFlags::READ | mm::ProtFlags::WRITE,
                    flags,
                )
            }
            .map_err(failed)?;
            Ok(Mapping {
                base: NonNull::new(base.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?,
                bytes,
            })
        }

        pub fn forget(&mut self) {}

        /// The first place from `at` on where a huge page may begin.
        pub fn huge_boundary(&self, at: u64) -> u64 {
            let base = self.base.as_ptr().addr() as u64;
            (base + at).next_multiple_of(HUGE_PAGE_BYTES) - base
        }

        /// Makes the pages of `from..to` present.
        pub fn populate(&self, from: usize, to: usize) {
            #[cfg(target_os = "linux")]
            let _ = self.advise(from, to, mm::Advice::LinuxPopulateWrite);
            #[cfg(not(target_os = "linux"))]
            let _ = (from, to);
        }

        /// Makes the huge page `from..to` present. Returns the time that a processor spent for it; where that cannot be told, a long one.
        #[cfg(target_os = "linux")]
        pub fn populate_huge(&self, from: usize, to: usize) -> Duration {
            let start = thread_time();
            let populated = self
                .advise(from, to, mm::Advice::LinuxHugepage)
                .and_then(|()| self.advise(from, to, mm::Advice::LinuxPopulateWrite));
            if populated.is_err() {
                // Nor is a writer to take a huge page there.
                let _ = self.advise(from, to, mm::Advice::LinuxNoHugepage);
                return Duration::MAX;
            }
            thread_time().saturating_sub(start)
        }

        #[cfg(not(target_os = "linux"))]
        pub fn populate_huge(&self, _from: usize, _to: usize) -> Duration {
            Duration::MAX
        }

        /// Takes advice that changes no content.
        #[cfg(target_os = "linux")]
        fn advise(&self, from: usize, to: usize, advice: mm::Advice) -> rustix::io::Result<()> {
            assert!(from < to && to <= self.bytes);
            // The kernel wants the start of a page.
            let base = self.base.as_ptr().addr();
            let from = ((base + from) / PAGE_BYTES_MAX * PAGE_BYTES_MAX).max(base) - base;
            // SAFETY: inside our own range (invariant 3); the advice changes no content. A refusal costs speed only.
            unsafe { mm::madvise(self.base.as_ptr().add(from).cast(), to - from, advice) }
        }

        pub fn release(&mut self, from: usize) {
            if from < self.bytes {
                // SAFETY: inside our own range, and nobody looks at it (invariant 3); anonymous memory reads as
                // zero afterwards. On other systems than Linux this is a hint.
                let _ = unsafe {
                    mm::madvise(
                        self.base.as_ptr().add(from).cast(),
                        self.bytes - from,
                        #[cfg(target_os = "linux")]
                        mm::Advice::LinuxDontNeed,
                        #[cfg(not(target_os = "linux"))]
                        mm::Advice::DontNeed,
                    )
                };
            }
        }

        #[inline(always)]
        pub fn view(&self) -> Memory<'_> {
            Memory {
                base: self.base,
                #[cfg(debug_assertions)]
                bytes: self.bytes,
                arena: PhantomData,
            }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, unmapped once, and every `Memory` borrows from the arena (invariant 3).
            let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }

    /// Time that the processor spent for this thread.
    #[cfg(target_os = "linux")]
    fn thread_time() -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// Access to the words and bytes of an arena. Offsets are bytes from its start.
    #[derive(Debug, Clone, Copy)]
    pub struct Memory<'a> {
        base: NonNull<u8>,
        #[cfg(debug_assertions)]
        bytes: usize,
        arena: PhantomData<&'a Mapping>,
    }

    impl<'a> Memory<'a> {
        #[inline(always)]
        fn at(self, offset: usize, len: usize, align: usize) -> *mut u8 {
            #[cfg(debug_assertions)]
            assert!(
                offset >= 64 && offset.is_multiple_of(align) && offset + len <= self.bytes,
                "reference {offset} is not of this arena"
            );
            let _ = (len, align);
            // SAFETY: in bounds of the mapping by invariant 1.
            unsafe { self.base.as_ptr().add(offset) }
        }

        #[inline(always)]
        pub fn a32(self, offset: usize) -> &'a AtomicU32 {
            // SAFETY: in bounds and aligned (1), a shared word (2), mapped for 'a (3).
            unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
        }

        #[inline(always)]
        pub fn a64(self, offset: usize) -> &'a AtomicU64 {
            // SAFETY: in bounds and aligned (1), a shared word (2), mapped for 'a (3).
            unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
        }

        /// A plain word.
        #[inline(always)]
        pub fn read_u32(self, offset: usize) -> u32 {
            // SAFETY: in bounds and aligned (1), a plain word (2).
            unsafe { self.at(offset, 4, 4).cast::<u32>().read() }
        }

        /// The eight plain bytes of a word, as a big-endian number.
        #[inline(always)]
        pub fn read_u64_be(self, offset: usize) -> u64 {
            // SAFETY: in bounds and aligned (1), plain bytes (2).
            u64::from_be(unsafe { self.at(offset, 8, 8).cast::<u64>().read() })
        }

        /// Plain bytes.
        #[inline(always)]
        pub fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
            // SAFETY: in bounds (1), plain bytes (2), mapped for 'a (3).
            unsafe { std::slice::from_raw_parts(self.at(offset, len, 1), len) }
        }

        /// Writes a plain word that nobody else can reach yet.
        #[inline(always)]
        pub fn write_u32(self, offset: usize, value: u32) {
            // SAFETY: in bounds and aligned (1), not reachable by readers (2).
            unsafe { self.at(offset, 4, 4).cast::<u32>().write(value) }
        }

        /// Writes plain bytes that nobody else can reach yet.
        #[inline(always)]
        pub fn write_bytes(self, offset: usize, bytes: &[u8]) {
            let to = self.at(offset, bytes.len(), 1);
            // SAFETY: in bounds (1), not reachable by readers (2), and `bytes` is either outside of the arena or
            // another, published part of it, hence disjoint.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        }

        /// Zeroes words that nobody else can reach yet.
        pub fn zero(self, offset: usize, len: usize) {
            // SAFETY: in bounds (1), not reachable by readers (2).
            unsafe { std::ptr::write_bytes(self.at(offset, len, 8), 0, len) }
        }

        /// Asks for the cache line of `offset`. Any offset is fine.
        #[inline(always)]
        pub fn prefetch(self, offset: usize) {
            crate::prefetch::line(self.base.as_ptr().wrapping_add(offset));
        }

        /// Asks for the lines behind that of `offset`, for `bytes` bytes. Any offset is fine.
        #[inline(always)]
        pub fn prefetch_ahead(self, offset: usize, bytes: usize) {
            crate::prefetch::ahead(self.base.as_ptr().wrapping_add(offset), bytes);
        }
    }
}

#[cfg(loom)]
use model::Mapping;
#[cfg(loom)]
pub(super) use model::Memory;

/// The arena under loom: words are loom atomics, made when first touched and zero before that (as fresh memory is); plain
/// bytes are ordinary memory. The code above the arena is the same.
#[cfg(loom)]
mod model {
    use super::{AtomicU32, BufferError, HUGE_PAGE_BYTES};
    use crate::sync::{AtomicU64, Ordering};
    use std::cell::UnsafeCell;
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::time::Duration;

    const MODEL_BYTES: usize = 1 << 16;

    #[derive(Default)]
    struct Words {
        w32: HashMap<usize, Box<AtomicU32>>,
        w64: HashMap<usize, Box<AtomicU64>>,
    }

    pub struct Mapping {
        // A std lock on purpose: it is no part of what is modelled. Loom runs one thread at a time, and nothing
        // yields while it is held.
        words: Mutex<Words>,
        plain: Box<[UnsafeCell<u8>]>,
    }

    impl std::fmt::Debug for Mapping {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Mapping")
        }
    }

    // SAFETY: loom runs one thread at a time.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        pub fn new(_bytes: usize) -> Result<Mapping, BufferError> {
            Ok(Mapping {
                words: Mutex::default(),
                plain: (0..MODEL_BYTES).map(|_| UnsafeCell::new(0)).collect(),
            })
        }
        pub fn forget(&mut self) {
            self.words = Mutex::default();
        }
        pub fn release(&mut self, _from: usize) {}
        pub fn populate(&self, _from: usize, _to: usize) {}
        pub fn populate_huge(&self, _from: usize, _to: usize) -> Duration {
            Duration::ZERO
        }
        pub fn huge_boundary(&self, at: u64) -> u64 {
            at.next_multiple_of(HUGE_PAGE_BYTES)
        }
        pub fn view(&self) -> Memory<'_> {
            Memory { mapping: self }
        }
    }

    #[derive(Debug, Clone, Copy)]
    pub struct Memory<'a> {
        mapping: &'a Mapping,
    }

    impl<'a> Memory<'a> {
        pub fn a32(self, offset: usize) -> &'a AtomicU32 {
            let mut words = self.mapping.words.lock().expect("one thread at a time");
            let word: *const AtomicU32 = &**words
                .w32
                .entry(offset)
                .or_insert_with(|| Box::new(AtomicU32::new(0)));
            // SAFETY: boxed words stay where they are until the mapping is dropped or reset (3).
            unsafe { &*word }
        }
        pub fn a64(self, offset: usize) -> &'a AtomicU64 {
            let mut words = self.mapping.words.lock().expect("one thread at a time");
            let word: *const AtomicU64 = &**words
                .w64
                .entry(offset)
                .or_insert_with(|| Box::new(AtomicU64::new(0)));
            // SAFETY: as in `a32`.
            unsafe { &*word }
        }
        pub fn read_u32(self, offset: usize) -> u32 {
            let bytes = self.bytes(offset, 4);
            u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
        pub fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
            let cells = &self.mapping.plain[offset..offset + len];
            // SAFETY: in bounds (checked above); plain bytes (2); one thread at a time.
            unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), len) }
        }
        pub fn write_u32(self, offset: usize, value: u32) {
            self.write_bytes(offset, &value.to_ne_bytes());
        }
        pub fn write_bytes(self, offset: usize, bytes: &[u8]) {
            for (cell, byte) in self.mapping.plain[offset..][..bytes.len()]
                .iter()
                .zip(bytes)
            {
                // SAFETY: in bounds (checked above); not reachable by readers (2); one thread at a time.
                unsafe { *cell.get() = *byte }
            }
        }
        pub fn prefetch(self, _offset: usize) {}
        pub fn prefetch_ahead(self, _offset: usize, _bytes: usize) {}

        pub fn zero(self, offset: usize, len: usize) {
            for at in (offset..offset + len).step_by(8) {
                self.a64(at).store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn claims_do_not_overlap_and_stop_at_the_limit() {
        let arena = Arena::new(1 << 16).unwrap();
        let mut end = RESERVED_BYTES;
        while let Ok(chunk) = arena.claim(8, 1000) {
            assert_eq!(chunk.start, end);
            assert_eq!(chunk.start % 64, 0);
            assert!(chunk.end - chunk.start >= 8);
            end = chunk.end;
        }
        assert_eq!(end, arena.bytes_max());
        assert_eq!(arena.bytes_used(), arena.bytes_max());
        assert!(matches!(arena.claim(8, 8), Err(BufferError::Full)));
    }

    #[test]
    fn reset_makes_the_memory_available_again() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let chunk = arena.claim(1 << 19, 1 << 19).unwrap();
        arena.memory().write_bytes(chunk.start as usize, b"content");
        assert!(arena.claim(1 << 20, 1 << 20).is_err());
        arena.reset();
        arena.release_over(0);
        arena.populate(0, u64::MAX);
        let again = arena.claim(1 << 19, 1 << 19).unwrap();
        assert_eq!(again.start, chunk.start);
    }
    #[test]
    fn touching_ahead_keeps_the_content() {
        // From where pages are small to where they may be huge, and past both ends of one.
        for written in [64, (2 << 20) - 8, 2 << 20, (5 << 20) + 4096, (8 << 20) - 8] {
            let arena = Arena::new(8 << 20).unwrap();
            arena
                .claim(arena.bytes_max() - 64, arena.bytes_max())
                .unwrap();
            arena.memory().write_bytes(written, b"content!");
            arena.populate(0, u64::MAX);
            arena.populate(1 << 20, 7 << 20);
            assert_eq!(arena.memory().bytes(written, 8), b"content!");
            arena.memory().write_bytes(written ^ 4096 ^ 64, b"no fault");
            assert_eq!(arena.memory().bytes(written, 8), b"content!");
        }
    }
}
