//! Where a tree writer puts its new nodes and values: whole pages of free space, in the order they are placed.
//!
//! A node takes a multiple of 64 bytes. Nodes share pages while they fit; a packed leaf fills one alone. Values of up to a page begin where what is
//! before them ends ([`ValuePointer`]). Values longer than a page, and nodes that are, take runs of pages.
//!
//! # Invariants
//! (1) A page is written once, when the extent it belongs to is full or the sink is finished.
//! (2) Nobody reads a node before `finish` returned and its version was published, except the sink's owner, after a
//!     `finish`.
//! (3) A sink that is dropped unfinished gives everything back: a failed merge leaks nothing.

use std::collections::HashMap;

use super::{Extent, Pager, shares::Before};
use crate::{
    Result,
    node::{
        self, NodeRef, PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE, VALUE_INLINE_BYTES_MAX, ValuePointer,
    },
    sync::Ordering,
};

pub(crate) struct Sink<'p> {
    pager: &'p Pager,
    /// Bytes of the nodes that were placed.
    placed_bytes: u64,
    /// Lower bound of the version that will publish what is written here.
    birth: u64,
    nodes: Lane,
    /// For values that left their leaves. They live longer than leaves, and would keep the pages of these, and runs of such pages, from being free.
    short_values: Lane,
    /// For deltas, and inner nodes beside them. The next merge replaces them, but not the leaves.
    short_lived: Lane,
    births: Vec<Extent>,
    adopted: Vec<Extent>,
    deaths: Vec<Extent>,
    shares_before: Vec<Before>,
}

/// Pages that are filled one after the other: those of one extent at a time.
#[derive(Default)]
struct Lane {
    first_page: u64,
    page_count: usize,
    /// Bytes used of each page of the extent, up to the page being filled.
    used: Vec<u32>,
    /// A page of the extent, not the newest, that small nodes and values still go to: leaves fill most of a page, and what is much smaller
    /// would otherwise waste the page it begins.
    roomy: Option<usize>,
    buffer: Vec<u8>,
}

impl Lane {
    /// Finds room for so many bytes, at least one and at most a page, in one of the two pages being filled or in a new one: page, offset in bytes, and
    /// the place to fill. The offset is a multiple of `align`, and what is skipped for that is zero.
    fn room(
        &mut self,
        pager: &Pager,
        bytes: usize,
        align: usize,
    ) -> Result<(u64, usize, &mut [u8])> {
        let offset = |used: u32| (used as usize).next_multiple_of(align);
        let with_room = [self.used.len().checked_sub(1), self.roomy]
            .into_iter()
            .flatten()
            .find(|&index| offset(self.used[index]) + bytes <= PAGE_BYTES);
        let index = match with_room {
            Some(index) => index,
            None => self.begin_page(pager)?,
        };
        let used = self.used[index];
        let offset = offset(used);
        self.used[index] = (offset + bytes) as u32;
        let page = &mut self.buffer[index * PAGE_BYTES..][..PAGE_BYTES];
        page[used as usize..offset].fill(0);
        let place = &mut page[offset..offset + bytes];
        Ok((self.first_page + index as u64, offset, place))
    }

    fn is_in_use(&self) -> bool {
        self.page_count > 0
    }

    fn begin_page(&mut self, pager: &Pager) -> Result<usize> {
        if self.used.len() == self.page_count {
            self.flush(pager)?;
            (self.first_page, self.page_count) = pager.reserve_extent()?;
            self.buffer.resize(self.page_count * PAGE_BYTES, 0);
        } else if let Some(newest) = self.used.len().checked_sub(1)
            && (self.roomy).is_none_or(|roomy| self.used[newest] < self.used[roomy])
        {
            self.roomy = Some(newest);
        }
        self.used.push(0);
        Ok(self.used.len() - 1)
    }

    /// Writes the pages of the extent and settles what each of them holds.
    fn flush(&mut self, pager: &Pager) -> Result<()> {
        self.settle(pager);
        let used = std::mem::take(&mut self.used);
        self.roomy = None;
        self.page_count = 0;
        if used.is_empty() {
            return Ok(());
        }
        for (index, &bytes) in used.iter().enumerate() {
            let start = index * PAGE_BYTES + bytes as usize;
            self.buffer[start..(index + 1) * PAGE_BYTES].fill(0);
        }
        let bytes = &self.buffer[..used.len() * PAGE_BYTES];
        (pager.file).write_at(bytes, self.first_page * PAGE_BYTES as u64)?;
        pager.note_written(self.first_page, used.len() as u64);
        Ok(())
    }

    /// Says what the pages of the extent hold; those that nothing was placed in are given back.
    fn settle(&self, pager: &Pager) {
        let mut space = pager.space.lock();
        for index in 0..self.page_count {
            let bytes = self.used.get(index).copied().unwrap_or(0);
            let page = self.first_page + index as u64;
            (space.map).settle(page, bytes.div_ceil(UNIT_BYTES as u32));
        }
    }
}

/// What a finished sink wrote and what it made obsolete.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub births: Vec<Extent>,
    /// Values that transactions wrote before; they are live from now on, but not this sink's to give back.
    pub adopted: Vec<Extent>,
    pub deaths: Vec<Extent>,
    /// Counts of shared nodes that were changed for it, as they were before.
    pub shares_before: Vec<Before>,
    /// Births and deaths that were looked at for what was short-lived.
    looked_at: usize,
}

impl Changes {
    pub fn append(&mut self, mut other: Changes) {
        self.births.append(&mut other.births);
        self.adopted.append(&mut other.adopted);
        self.deaths.append(&mut other.deaths);
        self.shares_before.append(&mut other.shares_before);
    }

    /// Gives back at once what was both written and made obsolete by the one who holds these changes. `birth` is the
    /// birth of everything written under them, and greater than that of anything else. Looks only if there is an eighth more to look at
    /// than the last time: what is not given back here is when the changes are published.
    pub fn forget_short_lived(&mut self, pager: &Pager, birth: u64) {
        let size = |changes: &Changes| changes.births.len() + changes.deaths.len();
        if size(self) < self.looked_at + self.looked_at / 8 {
            return;
        }
        self.give_back_short_lived(pager, birth);
        self.looked_at = size(self);
    }

    fn give_back_short_lived(&mut self, pager: &Pager, birth: u64) {
        let mut dead: HashMap<(u64, u32), usize, foldhash::fast::RandomState> = HashMap::default();
        self.deaths.retain(|extent| {
            let own = extent.birth >= birth;
            if own {
                *dead.entry((extent.address, extent.units)).or_default() += 1;
            }
            !own
        });
        if dead.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        let mut keep = |extent: &Extent| match dead.get_mut(&(extent.address, extent.units)) {
            Some(count) if *count > 0 => {
                *count -= 1;
                gone.push(*extent);
                false
            }
            _ => true,
        };
        self.births.retain(&mut keep);
        self.adopted.retain(&mut keep);
        pager.discard(&gone);
    }
}

impl<'p> Sink<'p> {
    pub fn new(pager: &'p Pager, birth: u64) -> Sink<'p> {
        Sink {
            pager,
            placed_bytes: 0,
            birth,
            nodes: Lane::default(),
            short_values: Lane::default(),
            short_lived: Lane::default(),
            births: Vec::new(),
            adopted: Vec::new(),
            deaths: Vec::new(),
            shares_before: Vec::new(),
        }
    }

    pub fn pager(&self) -> &'p Pager {
        self.pager
    }

    pub fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    /// Places an unsealed node image and seals it.
    pub fn place(&mut self, image: &mut [u8]) -> Result<NodeRef> {
        let at = self.place_somewhere(image)?;
        self.placed_bytes += image.len() as u64;
        Ok(at.with_deltas(node::leads_to_deltas(image)))
    }

    fn place_somewhere(&mut self, image: &mut [u8]) -> Result<NodeRef> {
        assert!(!image.is_empty() && image.len().is_multiple_of(UNIT_BYTES));
        let units = image.len() / UNIT_BYTES;
        if units > UNITS_PER_PAGE {
            let page = self.pager.reserve_run(image.len().div_ceil(PAGE_BYTES))?;
            let at = NodeRef::new(page, 0, units as u32);
            node::seal(image, at, self.birth);
            self.write_run(page, units as u32, image)?;
            return Ok(at);
        }
        let is_delta = node::is_delta(image);
        let lane = if is_delta || !node::is_leaf(image) && self.short_lived.is_in_use() {
            &mut self.short_lived
        } else {
            &mut self.nodes
        };
        let (page, offset, place) = lane.room(self.pager, image.len(), UNIT_BYTES)?;
        let at = NodeRef::new(page, (offset / UNIT_BYTES) as u32, units as u32);
        node::seal(image, at, self.birth);
        place.copy_from_slice(image);
        self.births.push(node_extent(at, self.birth));
        Ok(at)
    }

    /// Stores a value outside the leaves.
    pub fn place_value(&mut self, value: &[u8]) -> Result<ValuePointer> {
        let crc = crc32c::crc32c(value);
        let len = u32::try_from(value.len()).expect("value length was checked");
        if value.len() > PAGE_BYTES {
            let page = self.pager.reserve_run(value.len().div_ceil(PAGE_BYTES))?;
            self.write_run(page, value.len().div_ceil(UNIT_BYTES) as u32, value)?;
            return Ok(ValuePointer::new(page, 0, len, crc, self.birth));
        }
        let lane = if value.len() <= VALUE_INLINE_BYTES_MAX {
            &mut self.short_values
        } else {
            &mut self.nodes
        };
        let align = if value.len() < ValuePointer::SHARING_BYTES_MIN {
            UNIT_BYTES
        } else {
            1
        };
        // An empty value takes a byte.
        let (page, offset, place) = lane.room(self.pager, value.len().max(1), align)?;
        place[0] = 0;
        place[..value.len()].copy_from_slice(value);
        let pointer = ValuePointer::new(page, offset as u32, len, crc, self.birth);
        self.births.push(value_extent(&pointer));
        Ok(pointer)
    }

    /// Counts a value that a transaction wrote earlier as published with this sink.
    pub fn adopt_value(&mut self, pointer: &ValuePointer) {
        if pointer.subtree().is_none() {
            self.adopted.push(value_extent(pointer));
        }
    }

    /// Counts a node as dead once this sink's version is published.
    pub fn kill_node(&mut self, at: NodeRef, birth: u64) {
        self.kill(node_extent(at, birth));
    }

    /// Gives a reference to a node or value up, at once. False if it was the only one: the caller counts it as dead. Call under the lock
    /// that orders tree versions.
    pub fn give_up_shared(&mut self, address: u64) -> bool {
        (self.pager.shares).give_up(address, &mut self.shares_before)
    }

    /// Counts an out-of-line value as dead once this sink's version is published.
    pub fn kill_value(&mut self, pointer: &ValuePointer) {
        // A pointer that somebody forged may lead anywhere, and be from the future: what it frees waits for all readers then.
        if pointer.subtree().is_none() && self.pager.has_place(pointer) {
            let mut extent = value_extent(pointer);
            if extent.birth > self.birth {
                extent.birth = 0;
            }
            self.kill(extent);
        }
    }

    fn kill(&mut self, extent: Extent) {
        let bytes = u64::from(extent.units) * UNIT_BYTES as u64;
        self.pager.killed_total.fetch_add(bytes, Ordering::Relaxed);
        self.deaths.push(extent);
    }

    fn write_run(&mut self, page: u64, units: u32, bytes: &[u8]) -> Result<()> {
        let extent = Extent::of_pages(page, units, self.birth);
        let pages = bytes.len().div_ceil(PAGE_BYTES) as u64;
        {
            let mut space = self.pager.space.lock();
            for i in 0..pages {
                let left = units - i as u32 * UNITS_PER_PAGE as u32;
                space.map.settle(page + i, left.min(UNITS_PER_PAGE as u32));
            }
        }
        self.births.push(extent);
        let whole = bytes.len() / PAGE_BYTES * PAGE_BYTES;
        let offset = page * PAGE_BYTES as u64;
        self.pager.file.write_at(&bytes[..whole], offset)?;
        if whole < bytes.len() {
            let mut tail = [0; PAGE_BYTES];
            tail[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.pager.file.write_at(&tail, offset + whole as u64)?;
        }
        self.pager.note_written(page, pages);
        Ok(())
    }

    /// Writes what is left. The nodes can be read now; the caller publishes or discards the changes.
    pub fn finish(mut self) -> Result<Changes> {
        self.nodes.flush(self.pager)?;
        self.short_values.flush(self.pager)?;
        self.short_lived.flush(self.pager)?;
        Ok(Changes {
            births: std::mem::take(&mut self.births),
            adopted: std::mem::take(&mut self.adopted),
            deaths: std::mem::take(&mut self.deaths),
            shares_before: std::mem::take(&mut self.shares_before),
            looked_at: 0,
        })
    }
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        self.pager.shares.undo(&self.shares_before);
        self.nodes.settle(self.pager);
        self.short_values.settle(self.pager);
        self.short_lived.settle(self.pager);
        let mut space = self.pager.space.lock();
        for &extent in &self.births {
            space.map.release(extent);
        }
    }
}

impl Pager {
    /// Nodes that this process wrote need no check.
    fn note_written(&self, page: u64, pages: u64) {
        let bytes = pages * PAGE_BYTES as u64;
        self.written_total.fetch_add(bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        for page in page..page + pages {
            if let Some(word) = self.checked.get(page as usize) {
                word.store(u64::MAX, Ordering::Relaxed);
            }
        }
    }
}

/// Space that a value outside its leaf takes.
pub(crate) fn value_extent(pointer: &ValuePointer) -> Extent {
    Extent {
        address: pointer.address_units(),
        units: pointer.units(),
        birth: pointer.birth,
    }
}

/// Space that a node takes.
pub(crate) fn node_extent(at: NodeRef, birth: u64) -> Extent {
    Extent {
        address: at.address_units(),
        units: at.units(),
        birth,
    }
}
