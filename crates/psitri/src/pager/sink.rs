//! Where a tree writer puts its new nodes and values: whole pages of free space, in the order they are placed.
//!
//! A node takes a multiple of 64 bytes. Nodes share pages while they fit; a packed leaf fills one alone.
//! Values longer than a page, and nodes that are, take runs of pages.
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
    node::{self, NodeRef, PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE, ValuePointer},
    sync::Ordering,
};

pub(crate) struct Sink<'p> {
    pager: &'p Pager,
    /// Lower bound of the version that will publish what is written here.
    birth: u64,
    first_page: u64,
    page_count: usize,
    /// Units used in each page of the extent, up to the page being filled.
    used: Vec<u32>,
    /// A page of the extent, not the newest, that small nodes and values still go to: leaves fill most of a page, and what is much smaller
    /// would otherwise waste the page it begins.
    roomy: Option<usize>,
    buffer: Vec<u8>,
    births: Vec<Extent>,
    adopted: Vec<Extent>,
    deaths: Vec<Extent>,
    shares_before: Vec<Before>,
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
        let mut dead: HashMap<(u64, u32), usize> = HashMap::new();
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
            birth,
            first_page: 0,
            page_count: 0,
            used: Vec::new(),
            roomy: None,
            buffer: Vec::new(),
            births: Vec::new(),
            adopted: Vec::new(),
            deaths: Vec::new(),
            shares_before: Vec::new(),
        }
    }

    pub fn pager(&self) -> &'p Pager {
        self.pager
    }

    /// Places an unsealed node image and seals it.
    pub fn place(&mut self, image: &mut [u8]) -> Result<NodeRef> {
        assert!(!image.is_empty() && image.len().is_multiple_of(UNIT_BYTES));
        let units = image.len() / UNIT_BYTES;
        if units > UNITS_PER_PAGE {
            let page = self.pager.reserve_run(image.len().div_ceil(PAGE_BYTES))?;
            let at = NodeRef::new(page, 0, units as u32);
            node::seal(image, at, self.birth);
            self.write_run(page, units as u32, image)?;
            return Ok(at);
        }
        let (page, offset_units, start) = self.room(units)?;
        let at = NodeRef::new(page, offset_units, units as u32);
        node::seal(image, at, self.birth);
        self.buffer[start..start + image.len()].copy_from_slice(image);
        self.births.push(node_extent(at, self.birth));
        Ok(at)
    }

    /// Stores a value outside the leaves.
    pub fn place_value(&mut self, value: &[u8]) -> Result<ValuePointer> {
        let units = value.len().div_ceil(UNIT_BYTES).max(1);
        let crc = crc32c::crc32c(value);
        let len = u32::try_from(value.len()).expect("value length was checked");
        if units > UNITS_PER_PAGE {
            let page = self.pager.reserve_run(value.len().div_ceil(PAGE_BYTES))?;
            self.write_run(page, units as u32, value)?;
            return Ok(ValuePointer::new(page, 0, len, crc, self.birth));
        }
        let (page, offset_units, start) = self.room(units)?;
        let place = &mut self.buffer[start..start + units * UNIT_BYTES];
        place[..value.len()].copy_from_slice(value);
        place[value.len()..].fill(0);
        let pointer = ValuePointer::new(page, offset_units, len, crc, self.birth);
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
        if pointer.subtree().is_none() {
            self.kill(value_extent(pointer));
        }
    }

    fn kill(&mut self, extent: Extent) {
        let bytes = u64::from(extent.units) * UNIT_BYTES as u64;
        self.pager.killed_total.fetch_add(bytes, Ordering::Relaxed);
        self.deaths.push(extent);
    }

    /// Finds room for a node of `units` in one of the two pages being filled or in a new one: page, offset in units, place in the buffer.
    fn room(&mut self, units: usize) -> Result<(u64, u32, usize)> {
        let left = |used: &[u32], index: usize| UNITS_PER_PAGE - used[index] as usize;
        let newest = self.used.len().checked_sub(1);
        let open = [newest, self.roomy]
            .into_iter()
            .flatten()
            .find(|&index| units <= left(&self.used, index));
        let index = match open {
            Some(index) => index,
            None => {
                if self.used.len() == self.page_count {
                    self.flush()?;
                    (self.first_page, self.page_count) = self.pager.reserve_extent()?;
                    self.buffer.resize(self.page_count * PAGE_BYTES, 0);
                } else if let Some(newest) = newest
                    && self
                        .roomy
                        .is_none_or(|roomy| left(&self.used, newest) > left(&self.used, roomy))
                {
                    self.roomy = Some(newest);
                }
                self.used.push(0);
                self.used.len() - 1
            }
        };
        let offset = self.used[index];
        self.used[index] += units as u32;
        let start = index * PAGE_BYTES + offset as usize * UNIT_BYTES;
        Ok((self.first_page + index as u64, offset, start))
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
        self.note_written(page, pages);
        Ok(())
    }

    /// Nodes that this process wrote need no check.
    fn note_written(&self, page: u64, pages: u64) {
        self.pager
            .written_total
            .fetch_add(pages * PAGE_BYTES as u64, Ordering::Relaxed);
        self.pager
            .written_bytes
            .fetch_add(pages * PAGE_BYTES as u64, Ordering::Relaxed);
        for page in page..page + pages {
            if let Some(word) = self.pager.checked.get(page as usize) {
                word.store(u64::MAX, Ordering::Relaxed);
            }
        }
    }

    /// Writes the pages of the extent and settles what each of them holds.
    fn flush(&mut self) -> Result<()> {
        let used = std::mem::take(&mut self.used);
        self.roomy = None;
        let page_count = std::mem::take(&mut self.page_count);
        {
            let mut space = self.pager.space.lock();
            for index in 0..page_count {
                space.map.settle(
                    self.first_page + index as u64,
                    used.get(index).copied().unwrap_or(0),
                );
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        for (index, &units) in used.iter().enumerate() {
            let start = index * PAGE_BYTES + units as usize * UNIT_BYTES;
            self.buffer[start..(index + 1) * PAGE_BYTES].fill(0);
        }
        let bytes = &self.buffer[..used.len() * PAGE_BYTES];
        self.pager
            .file
            .write_at(bytes, self.first_page * PAGE_BYTES as u64)?;
        self.note_written(self.first_page, used.len() as u64);
        Ok(())
    }

    /// Writes what is left. The nodes can be read now; the caller publishes or discards the changes.
    pub fn finish(mut self) -> Result<Changes> {
        self.flush()?;
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
        let mut space = self.pager.space.lock();
        for index in 0..self.page_count {
            let units = self.used.get(index).copied().unwrap_or(0);
            space.map.settle(self.first_page + index as u64, units);
        }
        for &extent in &self.births {
            space.map.release(extent);
        }
    }
}

/// Space that a value outside its leaf takes.
pub(crate) fn value_extent(pointer: &ValuePointer) -> Extent {
    let units = (pointer.len as usize).div_ceil(UNIT_BYTES).max(1) as u32;
    Extent {
        address: pointer.address_units,
        units,
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
