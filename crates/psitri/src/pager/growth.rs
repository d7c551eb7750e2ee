//! Space for what is written next, and the growth of the file when none is free.
//!
//! # Thread safety
//! The lock of the space is held while the file grows: others that want space would wait for it anyway.
//!
//! # Invariants
//! (1) Whoever sees a length of the file sees a mapping that has it.
//! (2) Bytes of the file behind the end of the map belong to nobody: a growth that failed gives back what it got.
//!
//! # Failure modes
//! A disk that is nearly full is used to its end, in ever smaller steps; then the error is that of the last step. Nothing was handed out.

use super::{Pager, Space, page_map::BLOCK_PAGES};
use crate::{Result, node::PAGE_BYTES, sync::Ordering};

/// Pages that a writer asks for at a time: 256 KiB, the size of one write.
const EXTENT_PAGES: usize = 64;
/// The file grows by this share of its size.
const GROWTH_SHARE: u64 = 64;
/// From 16 MiB on, the file grows by whole blocks, and sinks fill them.
const LARGE_FILE_PAGES: u64 = 4096;

impl Pager {
    /// Hands out neighbouring pages for a writer to fill and write at once, growing the file if none is free.
    pub(super) fn reserve_extent(&self) -> Result<(u64, usize)> {
        let mut space = self.space.lock();
        loop {
            let want = if space.map.page_end() < LARGE_FILE_PAGES {
                EXTENT_PAGES
            } else {
                BLOCK_PAGES
            };
            if let Some(run) = space.map.reserve(want) {
                return Ok(run);
            }
            match self.grow(&mut space, want as u64) {
                // A part of it is as good.
                Err(error) if error.is_out_of_space() => {
                    self.grow_ahead(&mut space, 1, want as u64 / 2)?;
                }
                result => result?,
            }
        }
    }

    /// Hands out exactly `count` neighbouring pages.
    pub(super) fn reserve_run(&self, count: usize) -> Result<u64> {
        let mut space = self.space.lock();
        loop {
            if let Some(page) = space.map.reserve_run(count) {
                return Ok(page);
            }
            self.grow(&mut space, count as u64)?;
        }
    }

    /// Extends the file by at least `want` pages, with blocks, so that a later page write cannot run out of space.
    fn grow(&self, space: &mut Space, want: u64) -> Result<()> {
        let more = (space.map.page_end() / GROWTH_SHARE).clamp(16, 16384);
        self.grow_ahead(space, want, more)
    }

    /// The same, by `more` if there is room for them.
    fn grow_ahead(&self, space: &mut Space, want: u64, mut more: u64) -> Result<()> {
        let old = space.map.page_end();
        let start = old * PAGE_BYTES as u64;
        let mut whole_blocks = true;
        let new = loop {
            let step = want.max(more);
            let mut new = old + step;
            if new >= LARGE_FILE_PAGES && whole_blocks {
                new = new.next_multiple_of(BLOCK_PAGES as u64);
            }
            let Err(error) = self.file.allocate(start, new * PAGE_BYTES as u64 - start) else {
                break new;
            };
            // The system may have given a part of it.
            let _ = self.file.set_len(start);
            // What is left of the disk may do for less: for a part of a block in the end.
            let is_last_block = step < BLOCK_PAGES as u64 || more <= want;
            if error.is_out_of_space() && is_last_block && new > old + step {
                whole_blocks = false;
                continue;
            }
            if !error.is_out_of_space() || more <= want {
                return Err(error.into());
            }
            more /= 2;
        };
        let needed = new * PAGE_BYTES as u64;
        if needed > self.mapped_bytes.load(Ordering::Relaxed) {
            self.map_more(needed * 2)
                // (2)
                .inspect_err(|_| drop(self.file.set_len(start)))?;
        }
        space.map.grow(new);
        self.end_bytes.store(needed, Ordering::Release);
        Ok(())
    }

    /// Maps so many bytes of the file. From now on the new mapping keeps the cache in memory, as it is read: the system would count both. Without
    /// the right to so much, reads may be slower.
    fn map_more(&self, bytes: u64) -> Result<()> {
        let map = self.file.map_read(bytes)?;
        let mut maps = self.maps.lock();
        if let (Some(last), pinned @ 1..) = (maps.last(), self.pinned_cache_bytes) {
            let _ = last.unlock(0, pinned.min(last.len()));
            let _ = map.lock(0, pinned.min(map.len()));
        }
        self.base.store(map.as_ptr().cast_mut(), Ordering::Release);
        self.mapped_bytes.store(map.len(), Ordering::Relaxed);
        maps.push(map);
        Ok(())
    }
}
