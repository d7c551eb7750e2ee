//! The upper bound for the bank workload: a hash map of balances and a mapped, checksummed log.
//!
//! No order, no snapshots, no tree, no readers: no engine can be faster by much. What a batch writes goes to the log ring as it is
//! written, and commit adds a length and a checksum; the ring starts again at its beginning when it is full. Log entries of the workload live only in the log.
//! One thread.
//!
//! Invariant (1): the mapped file has no name and no other handle, so nobody else changes or truncates it while it is mapped.
#![allow(unsafe_code)] // Mapping a file is unsafe; nothing else here is.
use crate::bank::encoding;
use crate::engine::{Batch, Writer};
use crate::names::Name;
use anyhow::{Context, Result};
use hashbrown::HashMap;
use memmap2::MmapMut;
use std::cell::{RefCell, RefMut};
use std::path::Path;

const RING_BYTES: usize = 64 << 20;
const RECORD_BYTES_MAX: usize = 256;
const HEADER_BYTES: usize = 8;

pub struct Hash {
    state: RefCell<State>,
}

struct State {
    balances: HashMap<Box<[u8]>, [u8; 8]>,
    ring: MmapMut,
    /// Where the open batch's record starts.
    record: usize,
    end: usize,
}

impl Hash {
    /// All accounts at `balance`; the log is a file without a name in `directory`.
    pub fn new(directory: &Path, names: &[Name], balance: u64) -> Result<Self> {
        let file = tempfile::tempfile_in(directory).context("cannot create the log ring")?;
        file.set_len(RING_BYTES as u64)?;
        // SAFETY: invariant (1): the file was made by this function, has no name, and its handle is dropped when the mapping exists.
        let mut ring = unsafe { MmapMut::map_mut(&file)? };
        // An engine touches its log ahead of the writer, so the bound does as well.
        ring.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let balances = names
            .iter()
            .map(|name| (Box::from(name.as_bytes()), balance.to_le_bytes()))
            .collect();
        Ok(Self {
            state: RefCell::new(State {
                balances,
                ring,
                record: 0,
                end: HEADER_BYTES,
            }),
        })
    }
}

impl State {
    #[inline]
    fn log(&mut self, bytes: &[u8]) {
        self.ring[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    #[inline]
    fn finish_record(&mut self) {
        let payload = self.record + HEADER_BYTES;
        let checksum = crc32c::crc32c(&self.ring[payload..self.end]);
        let bytes = (self.end - payload) as u32;
        self.ring[self.record..self.record + 4].copy_from_slice(&bytes.to_le_bytes());
        self.ring[self.record + 4..payload].copy_from_slice(&checksum.to_le_bytes());
        self.record = self.end;
        self.end += HEADER_BYTES;
    }

    /// Makes room for one more entry: a batch that reaches the end of the ring is checksummed in two parts.
    #[inline]
    fn reserve(&mut self) {
        if self.end + RECORD_BYTES_MAX > RING_BYTES {
            self.finish_record();
            self.record = 0;
            self.end = HEADER_BYTES;
        }
    }
}

pub struct HashBatch<'a> {
    state: RefMut<'a, State>,
}

impl Writer for Hash {
    type Batch<'a> = HashBatch<'a>;

    fn begin(&self) -> Result<HashBatch<'_>> {
        Ok(HashBatch {
            state: self.state.borrow_mut(),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.state.borrow().ring.flush()?)
    }
}

impl Batch for HashBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.state.balances.get(key).map(<[u8; 8]>::as_slice)))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let state = &mut *self.state;
        state.reserve();
        state.log(&[key.len() as u8, value.len() as u8]);
        state.log(key);
        state.log(value);
        if encoding::log_sequence(key).is_none() {
            let balance = value.try_into().context("a balance has eight bytes")?;
            *state.balances.get_mut(key).context("no such account")? = balance;
        }
        Ok(())
    }

    /// Logged like a write. Transfers remove nothing, so this is here for the trait's sake only.
    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let state = &mut *self.state;
        state.reserve();
        state.log(&[key.len() as u8, 0]);
        state.log(key);
        state.balances.remove(key);
        Ok(())
    }

    #[inline]
    fn commit(mut self) -> Result<()> {
        self.state.finish_record();
        self.state.reserve();
        Ok(())
    }
}
