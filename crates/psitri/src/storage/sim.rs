//! A simulated disk: loses power at a chosen call, tears and reorders writes, fails calls. For tests; everything is repeatable by
//! seed.
//!
//! Each file has a *volatile* image (what the process and the system see; mappings point into it) and a *durable* one (what is
//! there after a power loss). They differ in 512-byte sectors: those are dirty. The model is as unkind as real disks may be:
//!
//! - any dirty sector may become durable at any call that changes something, in any order, and any subset at a power loss;
//! - a name is durable after `sync_dir`, not before, whatever was done with the file; unsynced names survive in any subset;
//! - a length is durable after `sync_data`; before, the old one, the new one or one between may survive;
//! - a failed `sync_data` leaves some sectors unwritten and calls them clean: a later `sync_data` does not write them, unless they
//!   are written again;
//! - a drive may lie about one flush.
//!
//! Thread safety: all state is behind one lock. Stores through mappings are not seen by it; they show as dirty sectors.
//!
//! Invariants:
//! 1. An image is usable up to the file's volatile length.
//! 2. Images are read here while others may store into them: each byte then comes out old or new, as with a real power loss.
//!
//! Failure modes: those that the test asked for. After the crash point every call fails with "crashed".
#![allow(unsafe_code)] // copies to and from images
use super::{
    LockMode, OpenMode, ReadMap, Storage, StorageError, StorageFile, StorageLock, WriteMap,
    check_map_write,
    image::Image,
    memory::{LockTable, Shape},
};
use crate::sync::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

mod disk;
mod fault;

use disk::Disk;
use fault::FaultPlan;
pub use fault::{CallKind, Fault, FaultError};

/// Addresses reserved for each simulated file.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Unit in which a disk writes all or nothing.
const SECTOR_BYTES: usize = 512;

/// A simulated directory; clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct SimStorage {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    random: Random,
    locks: Arc<LockTable>,
    plan: FaultPlan,
    calls: u64,
    crash_at: Option<u64>,
    /// The disk at the moment of the crash point.
    crashed: Option<Disk>,
    capacity_bytes: Option<u64>,
    early_write_back: bool,
    /// Flushes that are still honest.
    lie_after: Option<u64>,
    has_lied: bool,
    boot_id: u64,
    boots: u64,
}

/// SplitMix64: small, and every seed is a good one.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

impl SimStorage {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimStorage::with_disk(Disk::default(), seed, seed, 0)
    }

    fn with_disk(disk: Disk, seed: u64, boot_id: u64, boots: u64) -> Self {
        let state = State {
            disk,
            random: Random(seed),
            locks: Arc::default(),
            plan: FaultPlan::default(),
            calls: 0,
            crash_at: None,
            crashed: None,
            capacity_bytes: None,
            early_write_back: true,
            lie_after: None,
            has_lied: false,
            boot_id,
            boots,
        };
        SimStorage {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Number of calls so far that change something: the crash points that [`SimStorage::crash_at_call`] can choose.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Lets the call with this number (the first is 1; counted like [`SimStorage::calls`]) and all later ones fail. The disk that
    /// [`SimStorage::crash`] returns is the one of that moment, later stores through mappings excluded.
    pub fn crash_at_call(&self, call: u64) {
        self.state.lock().crash_at = Some(call);
    }

    /// Crashes now, as at a crash point.
    pub fn crash_now(&self) {
        let mut state = self.state.lock();
        if state.crashed.is_none() {
            state.crashed = Some(state.disk.copy());
        }
    }

    /// True once the crash point was reached.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.state.lock().crashed.is_some()
    }

    /// The disk after a power loss at the crash point (or now), as the next boot finds it. Each seed is another outcome.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimStorage {
        let state = self.state.lock();
        let mut random = Random(seed ^ 0xc4a5_4000_0000_0000);
        let disk = state
            .crashed
            .as_ref()
            .unwrap_or(&state.disk)
            .after_power_loss(&mut random);
        SimStorage::with_disk(disk, random.next(), random.next(), state.boots + 1)
    }

    /// The disk after the end of the process at the crash point (or now): everything written is there, and as durable as before.
    #[must_use]
    pub fn process_crash(&self, seed: u64) -> SimStorage {
        let state = self.state.lock();
        let disk = state.crashed.as_ref().unwrap_or(&state.disk).copy();
        SimStorage::with_disk(disk, seed, state.boot_id, state.boots)
    }

    /// Makes calls fail.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().plan.add(fault);
    }

    /// Takes all faults back.
    pub fn clear_faults(&self) {
        self.state.lock().plan = FaultPlan::default();
    }

    /// Size of the disk: what goes beyond fails with ENOSPC. `None`: no limit.
    pub fn set_capacity_bytes(&self, capacity_bytes: Option<u64>) {
        self.state.lock().capacity_bytes = capacity_bytes;
    }

    /// Lets the `nth` flush of a file from now on (1: the next) succeed without making anything durable, as a drive does that loses its cache.
    pub fn lie_about_sync(&self, nth: u64) {
        self.state.lock().lie_after = Some(nth.saturating_sub(1));
    }

    /// Whether a flush was lied about.
    #[must_use]
    pub fn has_lied(&self) -> bool {
        self.state.lock().has_lied
    }

    /// Whether dirty sectors and names may become durable before they are synced (default: yes).
    pub fn set_early_write_back(&self, on: bool) {
        self.state.lock().early_write_back = on;
    }

    /// Bytes of blocks in use.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.state.lock().disk.allocated_bytes()
    }

    /// Changes bytes behind everybody's back, durably: a damaged disk.
    pub fn damage(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        let Some(&inode) = state.disk.names.get(name) else {
            return Err(StorageError::NotFound {
                file: name.to_owned(),
            });
        };
        state.disk.inode(inode).damage(offset, bytes);
        Ok(())
    }
}

impl State {
    /// What every call goes through. `Err`: the call fails before it does anything.
    fn enter(&mut self, kind: CallKind, file: &str) -> Result<(), StorageError> {
        let fail = |error: io::Error| StorageError::Io {
            operation: kind.name(),
            file: file.to_owned(),
            source: error,
        };
        if self.crashed.is_some() {
            return Err(fail(io::Error::other("crashed")));
        }
        if kind.changes_disk() {
            self.calls += 1;
            if self.early_write_back && self.random.one_in(4) {
                self.disk.write_back_some(&mut self.random);
            }
        }
        match self.plan.next(kind, &mut self.random) {
            Some(error) => Err(fail(error.into_io())),
            None => Ok(()),
        }
    }

    fn crash_due(&self) -> bool {
        self.crash_at.is_some_and(|call| self.calls >= call)
    }

    /// The crash point: some of the call's work may be done already.
    fn crash_in(
        &mut self,
        kind: CallKind,
        file: &str,
        half_done: impl FnOnce(&mut Disk, &mut Random),
    ) -> StorageError {
        if self.random.one_in(2) {
            half_done(&mut self.disk, &mut self.random);
        }
        self.crashed = Some(self.disk.copy());
        StorageError::Io {
            operation: kind.name(),
            file: file.to_owned(),
            source: io::Error::other("crashed"),
        }
    }

    /// One changing call: counted, failed or crashed as planned, otherwise done.
    fn change<T>(
        &mut self,
        kind: CallKind,
        file: &str,
        work: impl FnOnce(&mut Disk, &mut Random) -> io::Result<T>,
    ) -> Result<T, StorageError> {
        self.enter(kind, file)?;
        if self.crash_due() {
            return Err(self.crash_in(kind, file, |disk, random| drop(work(disk, random))));
        }
        work(&mut self.disk, &mut self.random)
            .map_err(|error| StorageError::io(kind.name(), file, error))
    }

    fn check_capacity(&self, inode: u64, offset: u64, len: u64) -> io::Result<()> {
        let Some(capacity_bytes) = self.capacity_bytes else {
            return Ok(());
        };
        let missing =
            self.disk.inodes[&inode].shape.missing_blocks(offset, len) * super::memory::BLOCK_BYTES;
        if missing > 0 && self.disk.allocated_bytes() + missing > capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Storage for SimStorage {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError> {
        let mut state = self.state.lock();
        let inode = match (state.disk.names.get(name).copied(), mode) {
            (Some(_), OpenMode::Create) => {
                return Err(StorageError::AlreadyExists {
                    file: name.to_owned(),
                });
            }
            (Some(inode), _) => {
                state.enter(CallKind::Open, name)?;
                inode
            }
            (None, OpenMode::Create) => {
                state.change(CallKind::Create, name, |disk, _| disk.create(name))?
            }
            (None, _) => {
                return Err(StorageError::NotFound {
                    file: name.to_owned(),
                });
            }
        };
        let image = Arc::clone(&state.disk.inodes[&inode].image);
        Ok(Arc::new(SimFile {
            state: Arc::clone(&self.state),
            name: name.to_owned(),
            inode,
            image,
        }))
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Look, name)?;
        Ok(state.disk.names.contains_key(name))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Look, "directory")?;
        Ok(state.disk.names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        if !state.disk.names.contains_key(name) {
            return Err(StorageError::NotFound {
                file: name.to_owned(),
            });
        }
        state.change(CallKind::Remove, name, |disk, _| {
            disk.remove(name);
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        if !state.disk.names.contains_key(from) {
            return Err(StorageError::NotFound {
                file: from.to_owned(),
            });
        }
        state.change(CallKind::Rename, from, |disk, _| {
            disk.rename(from, to);
            Ok(())
        })
    }

    fn sync_dir(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::SyncDir, "directory")?;
        if state.crash_due() {
            return Err(state.crash_in(CallKind::SyncDir, "directory", Disk::write_back_some));
        }
        state.disk.sync_dir();
        Ok(())
    }

    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Look, super::LOCK_FILE_NAME)?;
        LockTable::take(&state.locks, mode, &self.describe())
    }

    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        let state = self.state.lock();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&state.boot_id.to_le_bytes());
        id[8..].copy_from_slice(&state.boots.to_le_bytes());
        Some(id)
    }
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    name: String,
    inode: u64,
    image: Arc<Image>,
}

impl SimFile {
    fn end_of(&self, offset: u64, len: u64) -> Result<u64, StorageError> {
        offset
            .checked_add(len)
            .filter(|&end| end <= self.image.reserved_bytes() as u64)
            .ok_or_else(|| {
                StorageError::io(
                    "write_at",
                    &self.name,
                    io::Error::from(io::ErrorKind::StorageFull),
                )
            })
    }
}

impl StorageFile for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64, StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Look, &self.name)?;
        Ok(state.disk.inode(self.inode).shape.len)
    }

    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        self.end_of(0, len)?;
        let mut state = self.state.lock();
        state.change(CallKind::SetLen, &self.name, |disk, _| {
            disk.inode(self.inode).set_len(len)
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let end = self.end_of(offset, len)?;
        let mut state = self.state.lock();
        let room = state.check_capacity(self.inode, offset, len);
        state.change(CallKind::Allocate, &self.name, |disk, _| {
            room?;
            let inode = disk.inode(self.inode);
            inode.image.grow(end)?;
            inode.shape.add_blocks(offset, len);
            inode.shape.len = inode.shape.len.max(end);
            Ok(())
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Read, &self.name)?;
        let inode = state.disk.inode(self.inode);
        if offset
            .checked_add(buffer.len() as u64)
            .is_none_or(|end| end > inode.shape.len)
        {
            return Err(StorageError::io(
                "read_at",
                &self.name,
                io::Error::from(io::ErrorKind::UnexpectedEof),
            ));
        }
        // SAFETY: usable by invariant 1; concurrent stores are covered by invariant 2.
        unsafe { inode.image.read(offset, buffer) };
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        self.end_of(offset, bytes.len() as u64)?;
        let mut state = self.state.lock();
        let room = state.check_capacity(self.inode, offset, bytes.len() as u64);
        let done = state.enter(CallKind::Write, &self.name);
        if state.crashed.is_some() {
            return done;
        }
        // A write that fails or is cut off by the crash has done a part of its work.
        let crash = state.crash_due();
        let part = if crash || done.is_err() {
            state.random.below(bytes.len() as u64 + 1) as usize
        } else {
            bytes.len()
        };
        if room.is_ok() {
            let written = state.disk.inode(self.inode).write(offset, &bytes[..part]);
            written.map_err(|error| StorageError::io("write_at", &self.name, error))?;
        }
        if crash {
            return Err(state.crash_in(CallKind::Write, &self.name, |_, _| ()));
        }
        done?;
        room.map_err(|error| StorageError::io("write_at", &self.name, error))
    }

    fn sync_data(&self) -> Result<(), StorageError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let entered = state.enter(CallKind::Sync, &self.name);
        if state.crashed.is_some() {
            return entered;
        }
        if state.crash_due() {
            return Err(state.crash_in(CallKind::Sync, &self.name, Disk::write_back_some));
        }
        let lies = match &mut state.lie_after {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if lies && entered.is_ok() {
            (state.lie_after, state.has_lied) = (None, true);
            return Ok(());
        }
        let inode = state.disk.inode(self.inode);
        match entered {
            Ok(()) => {
                inode.sync();
                Ok(())
            }
            Err(error) => {
                inode.fail_sync(&mut state.random);
                Err(error)
            }
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.change(CallKind::PunchHole, &self.name, |disk, _| {
            disk.inode(self.inode).punch_hole(offset, len);
            Ok(())
        })
    }

    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        let mut state = self.state.lock();
        state.enter(CallKind::Look, &self.name)?;
        Ok(state.disk.inode(self.inode).shape.allocated_bytes())
    }

    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        let len = self.len()?;
        self.state.lock().enter(CallKind::Map, &self.name)?;
        Ok(ReadMap::of_image(
            &self.image,
            &self.name,
            reserve_bytes.max(len),
        ))
    }

    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        let file_len = self.len()?;
        self.state.lock().enter(CallKind::Map, &self.name)?;
        check_map_write(&self.name, offset, len, file_len)?;
        Ok(WriteMap::of_image(&self.image, &self.name, offset, len))
    }
}
