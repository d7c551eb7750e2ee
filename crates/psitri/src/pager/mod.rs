//! The data file: nodes and values are read through one mapping and written, whole pages at a time, to free space.
//!
//! # Thread safety
//! Reads take no lock. Space is handed out, published and given back under one short lock; writers fill the pages they
//! were handed without it.
//!
//! # Invariants
//! (1) No store ever goes through the mapping, which is `PROT_READ`.
//! (2) A byte that a reader can reach does not change while it can be reached: pages are written while only their
//!     writer knows of them, and written again only when no tree version pinned here or in another process, no durable superblock
//!     and no superblock in flight, or of unknown fate, reaches a node in them (`reclaim`, `quarantine`).
//! (3) A node dead since version `d` and born at version `b` is reachable from version `v` if and only if `b <= v < d`.
//!     What the log may name is kept longer: until the durable superblock covers its death, as replay reads it before.
//! (4) A node that this process did not write is checked, checksum and structure, before its first use. It lies in a page that was there at
//!     the opening; a reference to a page that the file does not have is damage, whatever says so. What this process wrote it does not check: a
//!     node from disk whose checksum is right and which names a page that was free at the opening leads to what is written there now.
//! (5) Mappings live as long as the pager. A larger one replaces a smaller one; both show the same file.
//!
//! # Failure modes
//! A full disk is an error of `Sink::place` before anything depends on the page. A damaged node is `Error::Corrupted`
//! with its offset. A media error under the mapping is `SIGBUS`, as with every mapped store.
#![allow(unsafe_code)] // slices of the read-only mapping

mod checkpoint;
mod data_sync;
mod free_use;
mod growth;
mod page_map;
mod run_hints;
mod shares;
mod sink;
mod superblock;

use std::{ops::Range, slice};

use crate::{
    Result,
    error::Error,
    lookup::LookupBoard,
    node::{
        self, NodeRef, PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE, VALUE_INLINE_BYTES_MAX, ValuePointer,
    },
    prefetch::{LINE_BYTES, Lines},
    storage::{ReadMap, StorageFile},
    sync::{Arc, AtomicPtr, AtomicU64, Mutex, Ordering},
    txn::VALUE_BUFFERED_BYTES_MAX,
};

pub(crate) use checkpoint::{Captured, CheckpointRecord};
pub(crate) use data_sync::DataSync;
pub(crate) use page_map::{Extent, PageMap, SUPERBLOCK_PAGES};
pub(crate) use shares::{Share, Shares};

/// Cache lines that a prefetch asks for; most processors have room for about as many misses at a time.
const PREFETCH_LINES: usize = 10;
/// Of nodes that are larger than this, because their keys or values are, not all is asked for.
const WHOLE_LINES_MAX: usize = 128;
pub(crate) use sink::{Changes, Sink, node_extent, value_extent};
pub(crate) use superblock::{FORMAT_VERSION, SlotError, Superblock};

/// Name of the data file in the database directory.
pub(crate) const DATA_FILE: &str = "data";

/// Dead extents that are worth a look.
const RECLAIM_EXTENTS_MIN: usize = 256;

/// A dead extent that something may still reach; several, where they lay side by side and died together.
#[derive(Debug, Clone, Copy)]
struct Pending {
    extent: Extent,
    death: u64,
}

#[derive(Debug)]
struct Space {
    map: PageMap,
    pending: Vec<Pending>,
    /// Number of pending extents from which a look at them is worth while.
    reclaim_at: usize,
    pending_units: u64,
    /// Units of pending extents that a superblock, durable or being written, reaches.
    awaiting_units: u64,
    /// Tree version of the superblock on disk, and of the one being written.
    durable_version: u64,
    in_flight_version: Option<u64>,
    /// Units of each page that are held for readers in other processes whose versions are older than the opening.
    quarantine: Option<Vec<u8>>,
    /// Tree versions, and pages of the stored map, of superblocks whose writing failed: one may be on disk nevertheless.
    doubtful_versions: Vec<u64>,
    doubtful_pages: Vec<Extent>,
    map_table: Option<Extent>,
    /// Location and checksum of each stored piece of the map.
    pieces: Vec<checkpoint::Piece>,
}

pub(crate) struct Pager {
    file: Arc<dyn StorageFile>,
    pub data_sync: Arc<DataSync>,
    base: AtomicPtr<u8>,
    mapped_bytes: AtomicU64,
    maps: Mutex<Vec<ReadMap>>,
    /// One bit a unit of the pages that were there at open; set when the node that begins there was checked.
    checked: Vec<AtomicU64>,
    /// Version of the trees that were there at open.
    version_opened: u64,
    /// Length of the file as the page map has it: whoever was given a reference sees that its page is there.
    end_bytes: AtomicU64,
    space: Mutex<Space>,
    /// Nodes and values with more than one reference.
    pub shares: Shares,
    pub lookups: LookupBoard,
    /// Bytes of pages written since the last checkpoint.
    written_bytes: AtomicU64,
    /// Since the database was opened.
    written_total: AtomicU64,
    killed_total: AtomicU64,
    pinned_cache_bytes: u64,
}

impl Pending {
    /// Whether the log may name it: (3). Only values do that are too long for the log itself; other extents of that size are
    /// few.
    fn may_be_logged(&self) -> bool {
        self.extent.units as usize * UNIT_BYTES > VALUE_BUFFERED_BYTES_MAX
    }
}

impl Space {
    /// Whether the next checkpoint lets go of something: the durable superblock, or the one being written, reaches it.
    fn is_awaiting(&self, dead: &Pending) -> bool {
        let reaches = |version: u64| dead.extent.birth <= version && version < dead.death;
        reaches(self.durable_version)
            || self.in_flight_version.is_some_and(reaches)
            || (self.durable_version < dead.death && dead.may_be_logged())
    }

    /// Counts anew, after another superblock became durable.
    fn count_awaiting(&mut self) {
        let awaiting = self.pending.iter().filter(|dead| self.is_awaiting(dead));
        self.awaiting_units = awaiting.map(|dead| u64::from(dead.extent.units)).sum();
    }

    /// Bytes that are dead and that something may still reach.
    fn pending_bytes(&self) -> u64 {
        self.pending_units * UNIT_BYTES as u64
    }

    /// The number of their units, counted anew.
    fn count_pending(&self) -> u64 {
        let units = self.pending.iter().map(|p| u64::from(p.extent.units));
        units.sum()
    }

    fn bury(&mut self, dead: Pending) {
        if self.is_awaiting(&dead) {
            self.awaiting_units += u64::from(dead.extent.units);
        }
        self.pending_units += u64::from(dead.extent.units);
        // Short values with neighbouring keys were often written, and die, side by side.
        if let Some(last) = self.pending.last_mut()
            && last.death == dead.death
            && last.extent.can_absorb(&dead.extent)
        {
            last.extent.units += dead.extent.units;
            return;
        }
        self.pending.push(dead);
    }
}

/// How much of the data file is what.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpaceUse {
    pub file_bytes: u64,
    pub reachable_bytes: u64,
    pub free_bytes: u64,
    /// Of the free bytes, those without blocks in the file system.
    pub hole_bytes: u64,
    /// Runs of free pages, and the longest.
    pub free_runs: u64,
    pub free_run_max_bytes: u64,
    pub pending_bytes: u64,
}

/// What keeps pages of the data file from being free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub live_bytes: u64,
    /// Dead, and reached by somebody.
    pub pending_bytes: u64,
    /// Of these, what the durable superblock reaches, or the one being written.
    pub awaiting_bytes: u64,
    /// Pages that are not free.
    pub page_bytes: u64,
}

impl Held {
    /// Parts of pages that hold nothing.
    pub fn page_end_bytes(&self) -> u64 {
        self.page_bytes
            .saturating_sub(self.live_bytes + self.pending_bytes)
    }
}

impl Pager {
    /// A pager over `file`, whose pages `map` describes.
    pub fn new(
        file: Arc<dyn StorageFile>,
        map: PageMap,
        tree_version: u64,
        reserve_bytes: u64,
        pinned_cache_bytes: u64,
        fresh: bool,
    ) -> Result<Pager> {
        let needed = map.page_end() * PAGE_BYTES as u64;
        let read_map = file.map_read(reserve_bytes.max(needed))?;
        let checked_pages = if fresh { 0 } else { map.page_end() as usize };
        let mut checked = Vec::new();
        checked.resize_with(checked_pages, || AtomicU64::new(0));
        let pager = Pager {
            data_sync: Arc::new(DataSync::new(Arc::clone(&file))),
            file,
            base: AtomicPtr::new(read_map.as_ptr().cast_mut()),
            mapped_bytes: AtomicU64::new(read_map.len()),
            maps: Mutex::new(vec![read_map]),
            checked,
            version_opened: tree_version,
            end_bytes: AtomicU64::new(needed),
            space: Mutex::new(Space {
                map,
                pending: Vec::new(),
                pending_units: 0,
                reclaim_at: RECLAIM_EXTENTS_MIN,
                awaiting_units: 0,
                durable_version: tree_version,
                in_flight_version: None,
                quarantine: None,
                doubtful_versions: Vec::new(),
                doubtful_pages: Vec::new(),
                map_table: None,
                pieces: Vec::new(),
            }),
            shares: Shares::default(),
            lookups: LookupBoard::default(),
            written_bytes: AtomicU64::new(0),
            written_total: AtomicU64::new(0),
            killed_total: AtomicU64::new(0),
            pinned_cache_bytes,
        };
        pager.lock_cache()?;
        Ok(pager)
    }

    fn lock_cache(&self) -> Result<()> {
        if self.pinned_cache_bytes > 0 {
            let maps = self.maps.lock();
            let map = maps.last().expect("a pager has a mapping");
            map.lock(0, self.pinned_cache_bytes.min(map.len()))?;
        }
        Ok(())
    }

    /// The bytes of a node. The caller holds a pin (or the write lock) under which `at` is reachable.
    #[inline]
    pub fn node(&self, at: NodeRef) -> Result<&[u8]> {
        if (at.page() as usize) < self.checked.len() {
            if !self.is_checked(at) {
                self.check_node(at)?;
            }
        } else if !self.is_inside(at.byte_offset(), at.bytes()) {
            self.check_node_range(at)?;
        }
        Ok(self.bytes(at.byte_offset(), at.bytes()))
    }

    /// The bytes of a node that this process wrote or has checked: they are in memory, unless the system took it back.
    #[inline]
    pub fn known_node(&self, at: NodeRef) -> Option<&[u8]> {
        let is_known = if (at.page() as usize) < self.checked.len() {
            self.is_checked(at)
        } else {
            self.is_inside(at.byte_offset(), at.bytes())
        };
        is_known.then(|| self.bytes(at.byte_offset(), at.bytes()))
    }

    /// Asks for the lines of a node that a search in it looks at first: they then arrive side by side, not one after the other.
    #[inline]
    pub fn prefetch(&self, at: NodeRef) {
        self.prefetch_lines(at, 0..PREFETCH_LINES);
    }

    /// Asks for all lines of a node of usual size.
    #[inline]
    pub fn prefetch_whole(&self, at: NodeRef) {
        let mut lines = self.lines(at);
        lines.ask_for(lines.len());
    }

    /// Asks for some lines of a node.
    #[inline]
    pub fn prefetch_lines(&self, at: NodeRef, lines: Range<usize>) {
        let base = self.base.load(Ordering::Acquire).cast_const();
        for line in lines {
            crate::prefetch::line(base.wrapping_add(at.byte_offset() as usize + line * UNIT_BYTES));
        }
    }

    /// All lines of a node of usual size, to be asked for part by part; none if it is null.
    #[inline]
    pub fn lines(&self, node: NodeRef) -> Lines {
        let base = self.base.load(Ordering::Acquire).cast_const();
        let lines = match node.is_null() {
            true => 0,
            false => (node.units() as usize).min(WHOLE_LINES_MAX),
        };
        Lines::new(base.wrapping_add(node.byte_offset() as usize), lines)
    }

    /// Asks for a value stored outside its leaf, if it is not longer than values in leaves.
    #[inline]
    pub fn prefetch_value(&self, pointer: &ValuePointer) {
        if pointer.len as usize > VALUE_INLINE_BYTES_MAX {
            return;
        }
        let base = self.base.load(Ordering::Acquire).cast_const();
        let first = base.wrapping_add(pointer.byte_offset() as usize);
        for line in 0..pointer.len as usize / LINE_BYTES + 1 {
            crate::prefetch::line(first.wrapping_add(line * LINE_BYTES));
        }
    }

    /// The bytes of a value stored outside its leaf; none of a subtree.
    pub fn value(&self, pointer: &ValuePointer) -> Result<&[u8]> {
        if pointer.subtree().is_some() {
            return Ok(&[]);
        }
        if !self.is_inside(pointer.byte_offset(), pointer.len as usize) {
            self.check_range(pointer.byte_offset(), u64::from(pointer.len))?;
        }
        let at = NodeRef::new(pointer.page(), pointer.offset_units(), 1);
        if (at.page() as usize) < self.checked.len() && !self.is_checked(at) {
            self.recheck_value(pointer)?;
            self.mark_checked(at);
        }
        Ok(self.bytes(pointer.byte_offset(), pointer.len as usize))
    }

    /// Whether a value lies where the file has values.
    pub fn has_place(&self, pointer: &ValuePointer) -> bool {
        let (offset, bytes) = (pointer.byte_offset(), pointer.len.max(1));
        let is_inside = offset >= SUPERBLOCK_PAGES * PAGE_BYTES as u64
            && self.is_inside(offset, bytes as usize);
        is_inside || self.check_range(offset, u64::from(bytes)).is_ok()
    }

    /// As [`Pager::value`], but checked once more if it was before: who writes it again gives it a new checksum.
    pub fn value_to_move(&self, pointer: &ValuePointer) -> Result<&[u8]> {
        let value = self.value(pointer)?;
        self.recheck_value(pointer)?;
        Ok(value)
    }

    /// Units of a page that the published trees use; all of them if there is no such page.
    pub fn live_units_of(&self, page: u64) -> usize {
        self.space.lock().map.live_units_of(page)
    }

    /// The first `len` bytes of a value, as they are: they are not checked. `None` if it has less, or is not in the file.
    pub fn value_head(&self, pointer: &ValuePointer, len: usize) -> Option<&[u8]> {
        let offset = pointer.byte_offset();
        if (pointer.len as usize) < len || self.check_range(offset, len as u64).is_err() {
            return None;
        }
        Some(self.bytes(offset, len))
    }

    #[inline]
    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: (2) and (5): the range lies in the file, as `is_inside` or `check_range` says, or the check of its page; nobody
        // writes it while it can be reached, and the mapping lives as long as `self`.
        unsafe {
            slice::from_raw_parts(self.base.load(Ordering::Acquire).add(offset as usize), len)
        }
    }

    #[inline]
    fn is_checked(&self, at: NodeRef) -> bool {
        let word = self.checked[at.page() as usize].load(Ordering::Relaxed);
        word >> at.offset_units() & 1 != 0
    }

    fn mark_checked(&self, at: NodeRef) {
        if let Some(word) = self.checked.get(at.page() as usize) {
            word.fetch_or(1 << at.offset_units(), Ordering::Relaxed);
        }
    }

    /// Whether the file has these bytes. It may have grown since; `check_range` knows.
    #[inline]
    fn is_inside(&self, offset: u64, len: usize) -> bool {
        len > 0 && offset.saturating_add(len as u64) <= self.end_bytes.load(Ordering::Acquire)
    }

    #[inline(never)]
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        let end = self.space.lock().map.page_end() * PAGE_BYTES as u64;
        if offset < SUPERBLOCK_PAGES * PAGE_BYTES as u64 || offset.saturating_add(len) > end {
            return Err(Error::corrupted(
                DATA_FILE,
                offset,
                format!("a reference to {len} bytes points outside the file's {end} bytes"),
            ));
        }
        Ok(())
    }

    #[cold]
    fn check_node_range(&self, at: NodeRef) -> Result<()> {
        if at.units() == 0 {
            return Err(Error::corrupted(
                DATA_FILE,
                at.byte_offset(),
                "a reference to a node without a length",
            ));
        }
        let behind = at.offset_units() + at.units();
        if at.offset_units() > 0 && behind > UNITS_PER_PAGE as u32 {
            return Err(Error::corrupted(
                DATA_FILE,
                at.byte_offset(),
                "a node that begins inside a page ends in another",
            ));
        }
        self.check_range(at.byte_offset(), at.bytes() as u64)
    }

    /// The first look at a node that this process did not write: (4).
    #[cold]
    fn check_node(&self, at: NodeRef) -> Result<()> {
        self.recheck_node(at)?;
        if node::birth(self.bytes(at.byte_offset(), at.bytes())) > self.version_opened {
            return Err(Error::corrupted(
                DATA_FILE,
                at.byte_offset(),
                "a node is younger than the tree that it belongs to",
            ));
        }
        self.mark_checked(at);
        Ok(())
    }

    /// Checks a node whether or not it was checked before, for `verify`.
    pub fn recheck_node(&self, at: NodeRef) -> Result<&[u8]> {
        self.check_node_range(at)?;
        let bytes = self.bytes(at.byte_offset(), at.bytes());
        node::check(bytes, at)
            .and_then(|()| node::validate(bytes).map(drop))
            .map_err(|e| Error::corrupted(DATA_FILE, at.byte_offset(), e.to_string()))?;
        Ok(bytes)
    }

    /// Checks a value whether or not it was checked before, for `verify` and for replay.
    pub fn recheck_value(&self, pointer: &ValuePointer) -> Result<()> {
        if pointer.subtree().is_some() {
            return Ok(());
        }
        let offset = pointer.byte_offset();
        // One without bytes has a unit all the same.
        let bytes = u64::from(pointer.len).max(1);
        self.check_range(offset, bytes)?;
        let in_page = offset % PAGE_BYTES as u64;
        if in_page > 0 && in_page + bytes > PAGE_BYTES as u64 {
            return Err(Error::corrupted(
                DATA_FILE,
                offset,
                "a value that begins inside a page ends in another",
            ));
        }
        if crc32c::crc32c(self.bytes(offset, pointer.len as usize)) != pointer.crc {
            return Err(Error::corrupted(
                DATA_FILE,
                offset,
                "value checksum does not match",
            ));
        }
        Ok(())
    }

    /// Makes the births and deaths of a new tree version count. Call under the lock that orders tree versions. Of what the deaths name,
    /// that which somebody else refers to stays alive, and is in the list no more.
    pub fn publish(&self, version: u64, changes: &mut Changes) {
        let resolved = self.shares.resolve(self, changes);
        // Whoever took the nodes apart has read them before.
        debug_assert!(resolved.is_ok(), "{resolved:?}");
        let mut space = self.space.lock();
        for &extent in changes.births.iter().chain(&changes.adopted) {
            space.map.born(extent);
        }
        for &extent in &changes.deaths {
            space.map.died(extent);
            space.bury(Pending {
                extent,
                death: version,
            });
        }
    }

    /// Takes back the `publish` of a version that nobody saw, all of it. What was written for it is free as soon as no
    /// superblock on disk can refer to it.
    pub fn unpublish(&self, version: u64, changes: &Changes) {
        self.shares.undo(&changes.shares_before);
        let mut space = self.space.lock();
        space.pending.retain(|dead| dead.death != version);
        for &extent in &changes.deaths {
            space.map.born(extent);
        }
        for &extent in changes.births.iter().chain(&changes.adopted) {
            space.map.died(extent);
            space.pending.push(Pending {
                extent,
                death: version + 1,
            });
        }
        space.pending_units = space.count_pending();
        space.count_awaiting();
    }

    /// Extents that were written but that no published version refers to, and no pinned version before `death`.
    pub fn abandon(&self, extents: &[Extent], death: u64) {
        let mut space = self.space.lock();
        for &extent in extents {
            space.bury(Pending { extent, death });
        }
    }

    /// Extents that nobody but the caller ever knew of.
    pub fn discard(&self, extents: &[Extent]) {
        let mut space = self.space.lock();
        for &extent in extents {
            space.map.release(extent);
        }
    }

    /// Writes an extent again as it is: the system may wrongly believe that it has written it.
    pub fn write_again(&self, extent: Extent) -> Result<()> {
        let offset = extent.page() * PAGE_BYTES as u64;
        let bytes = (extent.units as usize * UNIT_BYTES).next_multiple_of(PAGE_BYTES);
        self.check_range(offset, bytes as u64)?;
        // By way of a copy: not every file can be written from its own mapping.
        let mut copy = Vec::new();
        for (index, chunk) in self.bytes(offset, bytes).chunks(1 << 20).enumerate() {
            copy.clear();
            copy.extend_from_slice(chunk);
            self.file.write_at(&copy, offset + ((index as u64) << 20))?;
        }
        Ok(())
    }

    /// Marks a value that only the log refers to, at recovery.
    pub fn hold(&self, extent: Extent) {
        self.space.lock().map.hold(extent);
    }

    /// Tree version of the superblock that is known to be durable.
    pub fn durable_version(&self) -> u64 {
        self.space.lock().durable_version
    }

    /// Keeps every page that is there, whether or not the page map says that it is free: readers in other processes see versions of which
    /// the map knows nothing.
    pub fn quarantine(&self) {
        let mut space = self.space.lock();
        debug_assert!(space.quarantine.is_none());
        space.quarantine = Some(space.map.hold_all());
    }

    /// Those readers are gone.
    pub fn end_quarantine(&self) {
        let mut space = self.space.lock();
        if let Some(added) = space.quarantine.take() {
            space.map.release_all(&added);
        }
    }

    /// Gives back every dead extent that no pinned version reaches. `pins`: tree versions of all snapshots. `others`: those that other
    /// processes see, with the log that led to them, and the durable version that was noted before they were looked at.
    pub fn reclaim(&self, pins: &[u64], others: &[u64]) {
        let mut space = self.space.lock();
        let space = &mut *space;
        // What has a part of its commits in the log has the values that they name.
        let logged = others.iter().fold(space.durable_version, |a, &b| a.min(b));
        let mut pins = [pins, others].concat();
        pins.push(space.durable_version);
        pins.extend(space.in_flight_version);
        pins.extend(&space.doubtful_versions);
        pins.sort_unstable();
        pins.dedup();
        let mut pending = std::mem::take(&mut space.pending);
        let (mut pending_units, mut awaiting_units) = (0, 0);
        pending.retain(|dead| {
            let first = pins.partition_point(|&pin| pin < dead.extent.birth);
            let pinned = pins.get(first).is_some_and(|&pin| pin < dead.death)
                || (logged < dead.death && dead.may_be_logged());
            let units = u64::from(dead.extent.units);
            if !pinned {
                space.map.release(dead.extent);
                return false;
            }
            pending_units += units;
            if space.is_awaiting(dead) {
                awaiting_units += units;
            }
            true
        });
        (space.pending, space.awaiting_units) = (pending, awaiting_units);
        space.pending_units = pending_units;
        space.reclaim_at = space.pending.len() * 2 + RECLAIM_EXTENTS_MIN;
    }

    /// Whether twice as much has died as the last look left over.
    pub fn is_reclaim_due(&self) -> bool {
        let space = self.space.lock();
        space.pending.len() >= space.reclaim_at
    }

    /// Bytes of nodes and values that were counted as dead since the database was opened.
    #[inline]
    pub fn killed_total(&self) -> u64 {
        self.killed_total.load(Ordering::Relaxed)
    }

    /// Bytes of nodes and values written since the database was opened.
    #[inline]
    pub fn written_total(&self) -> u64 {
        self.written_total.load(Ordering::Relaxed)
    }

    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub fn space_use(&self) -> Result<SpaceUse> {
        let file_bytes = self.file.allocated_bytes()?;
        let space = self.space.lock();
        let free = space.map.free_use();
        Ok(SpaceUse {
            file_bytes,
            reachable_bytes: space.map.live_bytes(),
            free_bytes: free.pages * PAGE_BYTES as u64,
            hole_bytes: free.hole_pages * PAGE_BYTES as u64,
            free_runs: free.runs,
            free_run_max_bytes: free.run_max_pages * PAGE_BYTES as u64,
            pending_bytes: space.pending_bytes(),
        })
    }

    /// What keeps pages from being free.
    pub fn held(&self) -> Held {
        let space = self.space.lock();
        Held {
            live_bytes: space.map.live_bytes(),
            pending_bytes: space.pending_bytes(),
            awaiting_bytes: space.awaiting_units * UNIT_BYTES as u64,
            page_bytes: (space.map.page_end() - space.map.free_pages()) * PAGE_BYTES as u64,
        }
    }

    /// Pages that the published trees use something of, and how many bytes of them.
    pub fn live_use(&self) -> (u64, u64) {
        let space = self.space.lock();
        (space.map.live_pages(), space.map.live_bytes())
    }

    /// Bytes of nodes and values that something can reach.
    pub fn live_bytes(&self) -> u64 {
        self.space.lock().map.live_bytes()
    }

    /// Pages of the file.
    pub fn page_end(&self) -> u64 {
        self.space.lock().map.page_end()
    }

    /// How well what is held is packed: pages used, live units, and the page that the file could be cut at if what is behind it moved.
    pub fn packing(&self) -> (u64, u64, u64) {
        let space = self.space.lock();
        let (used, cut) = space.map.packing();
        (used, space.map.live_bytes() / UNIT_BYTES as u64, cut)
    }

    /// Live units of each page, for `verify`.
    pub fn live_units(&self) -> Vec<u8> {
        self.space.lock().map.live().to_vec()
    }
}

#[cfg(test)]
mod tests;
