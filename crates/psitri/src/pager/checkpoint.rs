//! Storing the page map and the superblock, and giving space back to the file system.
//!
//! The map is stored in pieces of one page, each covering 4,096 pages of the file. A checkpoint writes the pieces that
//! changed to free pages, then a table with the place and checksum of every piece, then the superblock that names the
//! table. Pieces and table are not counted in the map they store; the table names them.
//!
//! # Invariants
//! (1) The old pieces, table and superblock stay untouched until the new superblock is durable.
//! (2) While a superblock is being written its tree version counts as pinned; if writing it failed, until the next one
//!     is durable in the same slot.
//! (3) The file is cut and punched only where nothing is held, under the lock that hands space out.

use std::ops::Range;

use super::{Extent, PageMap, Pager, SUPERBLOCK_PAGES, Space, Superblock, page_map::CHUNK_PAGES};
use crate::{
    Result,
    error::Error,
    node::{NodeRef, PAGE_BYTES, UNITS_PER_PAGE},
    pager::{DATA_FILE, superblock::SUPERBLOCK_BYTES},
    storage::StorageFile,
    sync::Ordering,
};

/// Bytes of one entry of the piece table: page u64, checksum u32, padding u32.
const TABLE_ENTRY_BYTES: usize = 16;
const _: () = assert!(CHUNK_PAGES as usize == PAGE_BYTES);

/// Where a piece of the map is stored; page 0 stands for a piece of zeros that is not stored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Piece {
    page: u64,
    crc: u32,
}

/// The page map as of one tree version.
pub(crate) struct Captured {
    version: u64,
    dirty: Vec<(usize, Vec<u8>)>,
    written_bytes: u64,
}

impl Captured {
    /// Bytes written since the checkpoint before.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Pieces of the map that it stores.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.dirty.len()
    }
}

/// Holes punched at a time.
const HOLES_MAX: usize = 1024;
/// Pages of one call. Nobody can use them while it is made: 64 MiB.
const HOLE_PAGES_MAX: u64 = 16 << 10;

/// What the caller knows and the superblock stores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckpointRecord {
    pub generation: u64,
    pub csn: u64,
    pub tree_csn: u64,
    pub catalog: NodeRef,
    pub catalog_keys: u64,
    pub catalog_csn: u64,
    pub keyspace_next: u32,
    pub wal_start_lsn: u64,
    pub wal_durable_lsn: u64,
}

impl CheckpointRecord {
    /// Of a database that holds nothing.
    pub fn of_nothing(generation: u64) -> CheckpointRecord {
        CheckpointRecord {
            generation,
            csn: 0,
            tree_csn: 0,
            catalog: NodeRef::NULL,
            catalog_keys: 0,
            catalog_csn: 0,
            keyspace_next: 1,
            wal_start_lsn: 0,
            wal_durable_lsn: 0,
        }
    }
}

impl Pager {
    /// Takes the page map as of `version`, the newest published one. Call under the lock that orders tree versions.
    pub fn capture(&self, version: u64) -> Captured {
        let mut space = self.space.lock();
        assert!(space.in_flight_version.is_none(), "two checkpoints at once");
        space.in_flight_version = Some(version);
        Captured {
            version,
            dirty: space.map.take_dirty(),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// Writes the captured map and a superblock, each durable in turn.
    pub fn write_checkpoint(&self, captured: &Captured, record: &CheckpointRecord) -> Result<()> {
        let mut fresh = Vec::new();
        let mut doubtful = false;
        let result = self.try_checkpoint(captured, record, &mut fresh, &mut doubtful);
        let mut space = self.space.lock();
        space.in_flight_version = None;
        match result {
            Ok((pieces, table)) => {
                // The slot of the one that failed was written again.
                space.doubtful_versions.clear();
                let doubtful = std::mem::take(&mut space.doubtful_pages);
                let old = std::mem::replace(&mut space.pieces, pieces);
                let mut obsolete: Vec<Extent> =
                    space.map_table.replace(table).into_iter().collect();
                for (index, piece) in old.iter().enumerate() {
                    let kept = space
                        .pieces
                        .get(index)
                        .is_some_and(|new| new.page == piece.page);
                    if piece.page != 0 && !kept {
                        obsolete.push(map_page(piece.page));
                    }
                }
                for extent in obsolete.into_iter().chain(doubtful) {
                    space.map.release(extent);
                }
                space.durable_version = captured.version;
                space.count_awaiting();
                self.written_bytes
                    .fetch_sub(captured.written_bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                if doubtful {
                    space.doubtful_versions.push(captured.version);
                    space.doubtful_pages.append(&mut fresh);
                }
                for extent in fresh {
                    space.map.release(extent);
                }
                // The others are stored where they were: what there was no room for does not grow.
                for (index, _) in &captured.dirty {
                    space.map.mark_dirty(*index);
                }
                Err(error)
            }
        }
    }

    /// Has the next checkpoint store the pieces of the map anew that are stored at or behind `page`. They go to the first free pages.
    pub fn move_map(&self, page: u64) {
        let mut space = self.space.lock();
        let space = &mut *space;
        for (index, piece) in space.pieces.iter().enumerate() {
            if piece.page >= page {
                space.map.mark_dirty(index);
            }
        }
    }

    /// Whether writing a superblock with this version failed, so that it may be on the disk or not.
    pub fn is_doubtful(&self, version: u64) -> bool {
        self.space.lock().doubtful_versions.contains(&version)
    }

    /// Empties the slot of a superblock that could not be written, durably, so that it is not found. The other slot holds the checkpoint
    /// before it.
    pub fn take_back_superblock(&self, generation: u64) -> Result<()> {
        self.file
            .write_at(&[0; SUPERBLOCK_BYTES], Superblock::offset(generation))?;
        Ok(self.data_sync.sync()?)
    }

    /// Ends a checkpoint that was captured but is not going to be written.
    pub fn cancel_checkpoint(&self) {
        let mut space = self.space.lock();
        space.in_flight_version = None;
        space.map.mark_all_dirty();
    }

    fn try_checkpoint(
        &self,
        captured: &Captured,
        record: &CheckpointRecord,
        fresh: &mut Vec<Extent>,
        doubtful: &mut bool,
    ) -> Result<(Vec<Piece>, Extent)> {
        let mut pieces = self.space.lock().pieces.clone();
        for (index, bytes) in &captured.dirty {
            if pieces.len() <= *index {
                pieces.resize(index + 1, Piece::default());
            }
            if bytes.iter().all(|&units| units == 0) {
                pieces[*index] = Piece::default();
                continue;
            }
            let mut page = [0; PAGE_BYTES];
            page[..bytes.len()].copy_from_slice(bytes);
            let at = self.write_map_pages(&page, fresh)?;
            pieces[*index] = Piece {
                page: at,
                crc: crc32c::crc32c(&page),
            };
        }
        // The file may have been cut since a piece was last written.
        let pieces_max = (self.space.lock().map.page_end().div_ceil(CHUNK_PAGES)) as usize;
        pieces.truncate(pieces_max);
        let mut table = Vec::with_capacity(pieces.len() * TABLE_ENTRY_BYTES);
        for piece in &pieces {
            table.extend_from_slice(&piece.page.to_le_bytes());
            table.extend_from_slice(&piece.crc.to_le_bytes());
            table.extend_from_slice(&[0; 4]);
        }
        let map_table_crc = crc32c::crc32c(&table);
        table.resize(table.len().next_multiple_of(PAGE_BYTES).max(PAGE_BYTES), 0);
        let map_table_page = self.write_map_pages(&table, fresh)?;
        let table_extent = *fresh.last().expect("the table was written");
        self.data_sync.sync()?;

        let superblock = Superblock {
            generation: record.generation,
            tree_version: captured.version,
            csn: record.csn,
            tree_csn: record.tree_csn,
            catalog: record.catalog,
            catalog_keys: record.catalog_keys,
            catalog_csn: record.catalog_csn,
            keyspace_next: record.keyspace_next,
            page_end: self.space.lock().map.page_end(),
            map_table_page,
            map_pieces: pieces.len() as u32,
            map_table_crc,
            wal_start_lsn: record.wal_start_lsn,
            wal_durable_lsn: record.wal_durable_lsn,
        };
        *doubtful = true;
        self.file
            .write_at(&superblock.encode(), Superblock::offset(record.generation))?;
        self.data_sync.sync()?;
        Ok((pieces, table_extent))
    }

    fn write_map_pages(&self, bytes: &[u8], fresh: &mut Vec<Extent>) -> Result<u64> {
        let count = bytes.len() / PAGE_BYTES;
        let page = self.reserve_run(count)?;
        let mut space = self.space.lock();
        for i in 0..count as u64 {
            space.map.settle(page + i, UNITS_PER_PAGE as u32);
        }
        drop(space);
        fresh.push(Extent::of_pages(page, (count * UNITS_PER_PAGE) as u32, 0));
        self.file.write_at(bytes, page * PAGE_BYTES as u64)?;
        Ok(page)
    }

    /// A database in memory has no superblock: every published version counts as durable.
    pub fn set_durable(&self, version: u64) {
        self.space.lock().durable_version = version;
        self.written_bytes.store(0, Ordering::Relaxed);
    }

    /// If more than `max_bytes` are free, gives free space beyond `keep_bytes` back: the tail by truncation, runs of `min_pages` in the middle by punching holes, the
    /// longest first. A hole costs the file system more than the pages that it frees are worth if it is small, so there are at most
    /// [`HOLES_MAX`] at a time; what is left is used again. A tail of that size is cut also where it is holes already: it takes no space, but whoever
    /// copies the file does not know. Returns the bytes of free pages that are still in the file.
    pub fn give_back(&self, min_pages: usize, max_bytes: u64, keep_bytes: u64) -> Result<u64> {
        let keep_pages = keep_bytes / PAGE_BYTES as u64;
        let runs = {
            let mut space = self.space.lock();
            let max_pages = max_bytes / PAGE_BYTES as u64;
            let is_too_much = space.map.unpunched_pages() > max_pages;
            self.cut_tail(&mut space, if is_too_much { 0 } else { max_pages })?;
            if !is_too_much {
                return Ok(space.map.unpunched_pages() * PAGE_BYTES as u64);
            }
            space.map.unpunched_runs(min_pages, keep_pages, HOLES_MAX)
        };
        for (page, count) in runs {
            for at in (page..page + count).step_by(HOLE_PAGES_MAX as usize) {
                let part = at..(at + HOLE_PAGES_MAX).min(page + count);
                match self.punch(part, min_pages as u64) {
                    // A hole in the middle of a piece of the file takes room for a second piece. Another try may make it.
                    Err(error) if error.is_out_of_space() => {
                        return Ok(self.space.lock().map.unpunched_pages() * PAGE_BYTES as u64);
                    }
                    result => result?,
                }
            }
        }
        Ok(self.space.lock().map.unpunched_pages() * PAGE_BYTES as u64)
    }

    /// Makes holes of the free pages of a range, which others may have taken in part, and of no run of less than `min_pages` unless the range is.
    fn punch(&self, mut pages: Range<u64>, min_pages: u64) -> Result<()> {
        let min_pages = min_pages.min(pages.end - pages.start);
        loop {
            let taken = (self.space.lock().map).take_unpunched(pages.clone(), min_pages);
            let Some((page, count)) = taken else {
                return Ok(());
            };
            let (offset, len) = (page * PAGE_BYTES as u64, count * PAGE_BYTES as u64);
            let punched = self.file.punch_hole(offset, len);
            // Where holes cannot be made at all the space is only used again.
            let failure = punched.err().filter(|error| !error.is_unsupported());
            (self.space.lock().map).put_back(page, count, failure.is_none());
            if let Some(error) = failure {
                return Err(error.into());
            }
            pages.start = page + count;
        }
    }

    /// Cuts the free end of the file off if it has more than `max_pages`. Not while a superblock is being written, which says how long the
    /// file is.
    fn cut_tail(&self, space: &mut Space, max_pages: u64) -> Result<()> {
        let free = space.map.tail_pages();
        if space.in_flight_version.is_some() || free <= max_pages {
            return Ok(());
        }
        // First the file: if that fails, all is as it was.
        let end_bytes = (space.map.page_end() - free) * PAGE_BYTES as u64;
        self.file.set_len(end_bytes)?;
        space.map.cut_tail();
        self.end_bytes.store(end_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the map of a checkpoint back.
    pub fn load_map(
        file: &dyn StorageFile,
        superblock: &Superblock,
    ) -> Result<(PageMap, LoadedMap)> {
        let damaged =
            |page: u64, what: &str| Error::corrupted(DATA_FILE, page * PAGE_BYTES as u64, what);
        let superblock_offset = Superblock::offset(superblock.generation);
        let file_pages = file.len()? / PAGE_BYTES as u64;
        let inside = |page: u64, count: u64| {
            page >= SUPERBLOCK_PAGES && page.checked_add(count).is_some_and(|end| end <= file_pages)
        };
        // A real file cannot have more pages than the references of a tree can name.
        if superblock.page_end < SUPERBLOCK_PAGES || superblock.page_end > 1 << 40 {
            return Err(Error::corrupted(
                DATA_FILE,
                superblock_offset,
                "impossible file length",
            ));
        }
        let table_len = superblock.map_pieces as usize * TABLE_ENTRY_BYTES;
        let table_pages = table_len.div_ceil(PAGE_BYTES).max(1) as u64;
        if !inside(superblock.map_table_page, table_pages) {
            return Err(Error::corrupted(
                DATA_FILE,
                superblock_offset,
                "page map lies outside the file; the file is cut short",
            ));
        }
        let mut table = vec![0; table_len];
        file.read_at(&mut table, superblock.map_table_page * PAGE_BYTES as u64)?;
        if crc32c::crc32c(&table) != superblock.map_table_crc {
            return Err(damaged(
                superblock.map_table_page,
                "page map table checksum does not match",
            ));
        }
        // No longer than the file, however long somebody says that it is.
        let mut map = PageMap::new(superblock.page_end.min(file_pages));
        let mut loaded = LoadedMap {
            pieces: Vec::new(),
            table: Extent::of_pages(
                superblock.map_table_page,
                (table_pages as usize * UNITS_PER_PAGE) as u32,
                0,
            ),
        };
        for (index, entry) in table.chunks_exact(TABLE_ENTRY_BYTES).enumerate() {
            let page = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
            let crc = u32::from_le_bytes(entry[8..12].try_into().expect("4 bytes"));
            loaded.pieces.push(Piece { page, crc });
            if page == 0 {
                continue;
            }
            if !inside(page, 1) {
                return Err(damaged(
                    superblock.map_table_page,
                    "page map piece lies outside the file; the file is cut short",
                ));
            }
            let mut bytes = [0; PAGE_BYTES];
            file.read_at(&mut bytes, page * PAGE_BYTES as u64)?;
            let is_right = crc32c::crc32c(&bytes) == crc;
            let first = index as u64 * CHUNK_PAGES;
            let there = file_pages.saturating_sub(first).min(CHUNK_PAGES) as usize;
            if let Some(lost) = bytes[there..].iter().position(|&units| units > 0)
                && is_right
            {
                return Err(damaged(
                    first + (there + lost) as u64,
                    "the file is cut short: a page in use is missing",
                ));
            }
            if !is_right || !map.load(index, &bytes) {
                return Err(damaged(page, "page map piece does not match its checksum"));
            }
        }
        let pieces = loaded.pieces.iter().map(|piece| piece.page);
        let mut own_pages: Vec<u64> = (superblock.map_table_page..)
            .take(table_pages as usize)
            .chain(pieces.filter(|&page| page != 0))
            .collect();
        own_pages.sort_unstable();
        let is_used = |page: u64| map.live().get(page as usize).is_some_and(|&live| live > 0);
        let is_twice = own_pages.windows(2).find(|pair| pair[0] == pair[1]);
        let wrong = is_twice.map(|pair| pair[0]);
        if let Some(page) = wrong.or_else(|| own_pages.iter().copied().find(|&page| is_used(page)))
        {
            return Err(damaged(
                page,
                "a page of the page map has something else, too",
            ));
        }
        // The file may have grown since the checkpoint, and the log may refer to values there; or it was cut, free pages only.
        map.fit(file_pages.max(SUPERBLOCK_PAGES));
        Ok((map, loaded))
    }

    /// Marks the stored map's own pages as taken.
    pub fn adopt_map(&self, loaded: LoadedMap) {
        let mut space = self.space.lock();
        space.map.hold(loaded.table);
        for piece in &loaded.pieces {
            if piece.page != 0 {
                space.map.hold(map_page(piece.page));
            }
        }
        space.map_table = Some(loaded.table);
        space.pieces = loaded.pieces;
    }
}

/// Places of the stored map, to be taken over by the pager.
pub(crate) struct LoadedMap {
    pieces: Vec<Piece>,
    table: Extent,
}

fn map_page(page: u64) -> Extent {
    Extent::of_pages(page, UNITS_PER_PAGE as u32, 0)
}
