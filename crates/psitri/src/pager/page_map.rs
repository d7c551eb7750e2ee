//! Which pages of the data file hold something, and which may be written.
//!
//! # Thread safety
//! A plain structure; the pager keeps it under one lock. Nothing here does I/O.
//!
//! # Invariants
//! (1) `live[p]` counts the 64-byte units of page `p` that the *published* tree, catalog and value pages use. It is
//!     what a checkpoint stores, and all that a reopened database needs to know.
//! (2) `held[p] >= live[p]`: a page with held units is never handed out. Units stay held after their node died until no
//!     reader and no superblock can reach it.
//! (3) Units of one page are handed out by one writer at a time and a page is handed out again only when it holds
//!     nothing: no page with a live unit is ever overwritten.
//! (4) Pages at and beyond `page_end` do not exist in the file.
//! (5) No free page is before `free_hint`.
//!
//! # Failure modes
//! A count that would underflow means that a node was freed twice; it panics in tests, and in release builds the page is
//! kept as held for ever rather than handed out.

use super::{free_use::FreeUse, run_hints::RunHints};
use crate::node::UNITS_PER_PAGE;

/// Pages of one stored piece of the map: one byte a page fills a page.
pub(crate) const CHUNK_PAGES: u64 = 4096;

/// Pages of an aligned 2 MiB block. Operating systems that keep such a block of a file in one piece of memory can map it with one entry,
/// which spares lookups most of their misses in the translation cache; they do so if the block was first written as a whole.
pub(crate) const BLOCK_PAGES: usize = 512;

/// Pages at the head of the file that hold the two superblocks.
pub(crate) const SUPERBLOCK_PAGES: u64 = 2;

/// `held` value of a page handed out to a writer that has not said yet what it put there.
pub(super) const RESERVED: u8 = 0xff;
/// `held` value of a free page whose blocks were given back to the file system.
pub(super) const PUNCHED: u8 = 0xfe;
/// `held` value of such a page that was handed out like a [`RESERVED`] one: unless something is put there, it is a hole as before.
pub(super) const RESERVED_HOLE: u8 = 0xfd;

/// A run of units: a node, a value, or whole pages. `units` may exceed a page for runs that start at a page boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// In units from the start of the file.
    pub address: u64,
    pub units: u32,
    /// Tree version that wrote it, or a lower bound of it.
    pub birth: u64,
}

impl Extent {
    #[inline]
    pub fn page(self) -> u64 {
        self.address / UNITS_PER_PAGE as u64
    }

    #[inline]
    pub fn offset_units(self) -> u32 {
        (self.address % UNITS_PER_PAGE as u64) as u32
    }

    /// Whole pages, or a run that begins with one.
    #[inline]
    pub fn of_pages(page: u64, units: u32, birth: u64) -> Extent {
        let address = page * UNITS_PER_PAGE as u64;
        Extent {
            address,
            units,
            birth,
        }
    }

    /// Whether the two can be one: the other begins where this one ends, in the same page, and was born with it.
    pub fn can_absorb(&self, next: &Extent) -> bool {
        self.address + u64::from(self.units) == next.address
            && self.birth == next.birth
            && self.page() == next.page()
            && next.offset_units() + next.units <= UNITS_PER_PAGE as u32
    }

    /// Pages touched, with the units used in each.
    pub fn parts(self) -> impl Iterator<Item = (usize, u8)> {
        let per_page = UNITS_PER_PAGE as u32;
        let pages = self.units.div_ceil(per_page).max(1);
        (0..pages).map(move |i| {
            let left = self.units - i * per_page;
            (
                (self.page() + u64::from(i)) as usize,
                left.min(per_page) as u8,
            )
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct PageMap {
    live: Vec<u8>,
    held: Vec<u8>,
    dirty: Vec<bool>,
    /// See (5).
    free_hint: usize,
    run_hints: RunHints,
    live_units: u64,
    /// Pages with live units.
    live_pages: u64,
    /// Pages that are free, and those of them without blocks.
    free_pages: u64,
    hole_pages: u64,
}

impl PageMap {
    /// A map of `page_end` pages in which the superblocks are taken.
    pub fn new(page_end: u64) -> PageMap {
        assert!(page_end >= SUPERBLOCK_PAGES);
        let mut map = PageMap::default();
        map.grow(page_end);
        map.fill(0..SUPERBLOCK_PAGES as usize, UNITS_PER_PAGE as u8);
        map.free_hint = SUPERBLOCK_PAGES as usize;
        map
    }

    pub fn page_end(&self) -> u64 {
        self.held.len() as u64
    }

    /// Pages that the published trees use something of.
    pub fn live_pages(&self) -> u64 {
        debug_assert_eq!(
            self.live_pages,
            self.live.iter().filter(|&&live| live > 0).count() as u64
        );
        self.live_pages
    }

    /// Bytes in use by the published tree.
    pub fn live_bytes(&self) -> u64 {
        self.live_units * crate::node::UNIT_BYTES as u64
    }

    /// Units of a page that the published tree uses; all of them if there is no such page.
    pub fn live_units_of(&self, page: u64) -> usize {
        let live = usize::try_from(page)
            .ok()
            .and_then(|page| self.live.get(page));
        live.map_or(UNITS_PER_PAGE, |&live| usize::from(live))
    }

    /// What is free, and how it lies. Costs a look at one byte a page.
    pub fn free_use(&self) -> FreeUse {
        let found = FreeUse::count(&self.held);
        debug_assert_eq!(
            (found.pages, found.hole_pages),
            (self.free_pages, self.hole_pages)
        );
        found
    }

    pub fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// Free pages that have blocks in the file system.
    pub fn unpunched_pages(&self) -> u64 {
        self.free_pages - self.hole_pages
    }

    /// Adds pages at the end of the file, free.
    pub fn grow(&mut self, page_end: u64) {
        let len = page_end as usize;
        assert!(len >= self.held.len());
        self.note_freed(self.held.len());
        self.free_pages += (len - self.held.len()) as u64;
        self.live.resize(len, 0);
        self.held.resize(len, 0);
        self.dirty.resize(len.div_ceil(CHUNK_PAGES as usize), true);
    }

    /// Makes the map as long as the file is found to be at open. Pages in use are in the file.
    pub fn fit(&mut self, file_pages: u64) {
        if file_pages > self.page_end() {
            return self.grow(file_pages);
        }
        debug_assert!(self.live[file_pages as usize..].iter().all(|&l| l == 0));
        self.truncate(file_pages as usize);
    }

    /// A page is free, or is about to be.
    fn note_freed(&mut self, page: usize) {
        self.free_hint = self.free_hint.min(page);
        self.run_hints.note_freed(page);
    }

    /// Every change of `held` but those of its length goes through here, or through `change`.
    fn set(&mut self, page: usize, held: u8) {
        let old = std::mem::replace(&mut self.held[page], held);
        self.free_pages += u64::from(is_free(held));
        self.free_pages -= u64::from(is_free(old));
        self.hole_pages += u64::from(held == PUNCHED);
        self.hole_pages -= u64::from(old == PUNCHED);
    }

    fn fill(&mut self, pages: std::ops::Range<usize>, held: u8) {
        self.change(pages, |run| run.fill(held));
    }

    /// As [`PageMap::set`], for many pages at once.
    fn change(&mut self, pages: std::ops::Range<usize>, change: impl FnOnce(&mut [u8])) {
        let run = &mut self.held[pages];
        let (free, holes) = count_free(run);
        change(run);
        let (free_now, holes_now) = count_free(run);
        self.free_pages = self.free_pages + free_now - free;
        self.hole_pages = self.hole_pages + holes_now - holes;
    }

    fn hand_out(&mut self, pages: std::ops::Range<usize>) {
        self.change(pages, |run| {
            for held in run {
                *held = match *held {
                    PUNCHED => RESERVED_HOLE,
                    _ => RESERVED,
                };
            }
        });
    }

    fn truncate(&mut self, len: usize) {
        let (free, holes) = count_free(&self.held[len..]);
        self.free_pages -= free;
        self.hole_pages -= holes;
        self.live.truncate(len);
        self.held.truncate(len);
        self.dirty.truncate(len.div_ceil(CHUNK_PAGES as usize));
        self.free_hint = self.free_hint.min(len);
    }

    /// Free pages at the end, holes or not.
    pub fn tail_pages(&self) -> u64 {
        (self.held.len() - self.used_end()) as u64
    }

    /// Cuts free pages off the end, as the file was.
    pub fn cut_tail(&mut self) {
        self.truncate(self.used_end());
    }

    fn used_end(&self) -> usize {
        let last = self.held.iter().rposition(|&held| !is_free(held));
        last.map_or(SUPERBLOCK_PAGES as usize, |last| last + 1)
    }

    /// Hands out a run of free pages within one aligned block, at most `want` and at least one, lowest address first.
    pub fn reserve(&mut self, want: usize) -> Option<(u64, usize)> {
        let start = self.free_hint
            + self.held[self.free_hint..]
                .iter()
                .position(|&h| is_free(h))?;
        let run = self.held[start..]
            .iter()
            .take(want.min(BLOCK_PAGES - start % BLOCK_PAGES))
            .take_while(|&&h| is_free(h))
            .count();
        self.hand_out(start..start + run);
        self.free_hint = start + run;
        Some((start as u64, run))
    }

    /// Hands out exactly `count` neighbouring free pages, at least one, lowest address first.
    pub fn reserve_run(&mut self, count: usize) -> Option<u64> {
        let mut search = self.run_hints.search(count);
        let mut at = search.from.max(self.free_hint).min(self.held.len());
        let found = loop {
            let Some(skip) = self.held[at..].iter().position(|&h| is_free(h)) else {
                at = self.held.len();
                break None;
            };
            let start = at + skip;
            let run = self.held[start..]
                .iter()
                .take(count)
                .take_while(|&&h| is_free(h))
                .count();
            at = start + run;
            if run == count {
                self.hand_out(start..at);
                break Some(start as u64);
            }
            search.pass(start, run);
        };
        self.run_hints.end(search, at);
        found
    }

    /// Says how many units of a reserved page were used; zero gives it back.
    pub fn settle(&mut self, page: u64, units: u32) {
        let held = self.held[page as usize];
        assert!(is_reserved(held), "page {page} settled but not reserved");
        let now = match (units, held) {
            (0, RESERVED_HOLE) => PUNCHED,
            _ => units as u8,
        };
        self.set(page as usize, now);
        if units == 0 {
            self.note_freed(page as usize);
        }
    }

    /// Marks an extent that recovery found in use by the log.
    pub fn hold(&mut self, extent: Extent) {
        for (page, units) in extent.parts() {
            let held = match self.held[page] {
                free if is_free(free) => units,
                held => (held + units).min(UNITS_PER_PAGE as u8),
            };
            self.set(page, held);
        }
    }

    /// Counts a published extent as live.
    pub fn born(&mut self, extent: Extent) {
        for (page, units) in extent.parts() {
            self.live_pages += u64::from(self.live[page] == 0);
            self.live[page] += units;
            debug_assert!(self.live[page] <= self.held[page]);
            self.dirty[page / CHUNK_PAGES as usize] = true;
        }
        self.live_units += u64::from(extent.units);
    }

    /// Takes an extent out of the published tree; it stays held.
    pub fn died(&mut self, extent: Extent) {
        for (page, units) in extent.parts() {
            match self.live[page].checked_sub(units) {
                Some(left) => {
                    self.live_pages -= u64::from(left == 0);
                    self.live[page] = left;
                }
                None => debug_assert!(false, "page {page} died twice"),
            }
            self.dirty[page / CHUNK_PAGES as usize] = true;
        }
        self.live_units = self.live_units.saturating_sub(u64::from(extent.units));
    }

    /// Lets go of an extent that nothing can reach any more.
    pub fn release(&mut self, extent: Extent) {
        for (page, units) in extent.parts() {
            let held = self.held[page];
            match held.checked_sub(units) {
                Some(left) if !is_free(held) && !is_reserved(held) => {
                    self.set(page, left);
                    if left == 0 {
                        self.note_freed(page);
                    }
                }
                _ => debug_assert!(false, "page {page} released twice"),
            }
        }
    }

    /// Pages that hold something, and the page behind which nothing would be left if what is there moved to free pages before it.
    pub fn packing(&self) -> (u64, u64) {
        let used = self.page_end() - self.free_pages;
        // Free pages before the cut must take what is behind it, and a little more: inner nodes and nodes that share pages.
        let (mut behind, mut free_before) = (0, self.free_pages);
        let mut cut = self.held.len();
        while cut > SUPERBLOCK_PAGES as usize {
            if !is_free(self.held[cut - 1]) {
                if behind + behind / 32 + 8 >= free_before {
                    break;
                }
                behind += 1;
            } else {
                free_before -= 1;
            }
            cut -= 1;
        }
        (used, cut as u64)
    }

    /// Free runs of at least `min_pages` whose blocks are still allocated: the longest, at most `runs_max` of them, as few as leave
    /// no more than `keep_pages` of such pages.
    pub fn unpunched_runs(
        &self,
        min_pages: usize,
        keep_pages: u64,
        runs_max: usize,
    ) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut free = 0;
        let mut at = SUPERBLOCK_PAGES as usize;
        while at < self.held.len() {
            let run = self.held[at..].iter().take_while(|&&h| h == 0).count();
            free += run as u64;
            if run >= min_pages.max(1) {
                runs.push((at as u64, run as u64));
            }
            at += run.max(1);
        }
        runs.sort_unstable_by_key(|&(page, count)| (std::cmp::Reverse(count), page));
        runs.truncate(runs_max);
        let enough = runs
            .iter()
            .take_while(|(_, count)| {
                let more = free > keep_pages;
                free = free.saturating_sub(*count);
                more
            })
            .count();
        runs.truncate(enough);
        runs
    }

    /// Reserves the first run of at least `min_pages` in a range that is free and has its blocks, until `put_back`.
    pub fn take_unpunched(
        &mut self,
        pages: std::ops::Range<u64>,
        min_pages: u64,
    ) -> Option<(u64, u64)> {
        let end = (pages.end as usize).min(self.held.len());
        let mut at = pages.start as usize;
        while at < end {
            let run = self.held[at..end].iter().take_while(|&&h| h == 0).count();
            if run as u64 >= min_pages.max(1) {
                self.fill(at..at + run, RESERVED);
                return Some((at as u64, run as u64));
            }
            at += run.max(1);
        }
        None
    }

    /// Makes a run from `take_unpunched` free again: without blocks, if it `is_hole` now.
    pub fn put_back(&mut self, page: u64, count: u64, is_hole: bool) {
        let run = page as usize..(page + count) as usize;
        debug_assert!(self.held[run.clone()].iter().all(|&h| h == RESERVED));
        self.fill(run, if is_hole { PUNCHED } else { 0 });
        self.note_freed(page as usize);
    }

    /// Holds everything that is free, units in pages that are in use included. Returns what it added to each page. Nothing may be reserved.
    pub fn hold_all(&mut self) -> Vec<u8> {
        let full = UNITS_PER_PAGE as u8;
        let added: Vec<u8> = self
            .held
            .iter()
            .map(|&held| full - if is_free(held) { 0 } else { held })
            .collect();
        self.fill(0..self.held.len(), full);
        added
    }

    /// Lets go of what `hold_all` added.
    pub fn release_all(&mut self, added: &[u8]) {
        for (page, &units) in added.iter().enumerate().filter(|(_, units)| **units > 0) {
            self.release(Extent::of_pages(page as u64, u32::from(units), 0));
        }
    }

    /// Stored pieces that changed since the last call, with their bytes.
    pub fn take_dirty(&mut self) -> Vec<(usize, Vec<u8>)> {
        let chunk = CHUNK_PAGES as usize;
        let mut pieces = Vec::new();
        for (index, dirty) in self.dirty.iter_mut().enumerate() {
            if std::mem::take(dirty) {
                let start = index * chunk;
                pieces.push((
                    index,
                    self.live[start..self.live.len().min(start + chunk)].to_vec(),
                ));
            }
        }
        pieces
    }

    /// Has the next checkpoint store a piece, changed or not, unless the file has been cut in front of it.
    pub fn mark_dirty(&mut self, index: usize) {
        if let Some(dirty) = self.dirty.get_mut(index) {
            *dirty = true;
        }
    }

    /// Marks pieces as changed again after a checkpoint that failed.
    pub fn mark_all_dirty(&mut self) {
        self.dirty.fill(true);
    }

    /// Puts a stored piece back at open. False if a count is impossible, or behind the end of the file.
    pub fn load(&mut self, index: usize, bytes: &[u8]) -> bool {
        let start = index * CHUNK_PAGES as usize;
        let end = self.live.len().min(start + CHUNK_PAGES as usize);
        if start >= end || bytes[end - start..].iter().any(|&b| b != 0) {
            return false;
        }
        let bytes = &bytes[..end - start];
        if bytes.iter().any(|&units| units > UNITS_PER_PAGE as u8) {
            return false;
        }
        self.live[start..end].copy_from_slice(bytes);
        self.change(start..end, |run| {
            for (held, &live) in run.iter_mut().zip(bytes) {
                *held = (*held).max(live);
            }
        });
        self.live_units += bytes.iter().map(|&u| u64::from(u)).sum::<u64>();
        self.live_pages += bytes.iter().filter(|&&u| u > 0).count() as u64;
        self.dirty[index] = false;
        true
    }

    /// Live units of each page, for `verify`.
    pub fn live(&self) -> &[u8] {
        &self.live
    }
}

/// How many pages are free, and how many of them have no blocks.
fn count_free(held: &[u8]) -> (u64, u64) {
    let free = held.iter().filter(|&&h| is_free(h)).count();
    let holes = held.iter().filter(|&&h| h == PUNCHED).count();
    (free as u64, holes as u64)
}

pub(super) fn is_free(held: u8) -> bool {
    held == 0 || held == PUNCHED
}

fn is_reserved(held: u8) -> bool {
    held == RESERVED || held == RESERVED_HOLE
}

#[cfg(test)]
mod tests;
