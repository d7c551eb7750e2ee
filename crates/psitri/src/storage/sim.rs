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
//! - a drive may lie about one flush;
//! - calls are interrupted, and read or write a part of what was asked: the loops of the real disk go on from there;
//! - stores through mappings are calls like others: the power may fail, and sectors or pages may be written back, in the middle of each.
//!
//! A test may look at many crash points of one run: [`SimStorage::capture_every`] keeps the disk of every so many calls, while the run
//! goes on.
//!
//! Thread safety: all state is behind one lock. Bytes stored through mappings are not; they show as dirty sectors.
//!
//! Invariants:
//! 1. An image is usable up to the file's volatile length.
//! 2. Images are read here while others may store into them: each byte then comes out old or new, as with a real power loss.
//!
//! Failure modes: those that the test asked for. After the crash point every call fails with "crashed".
use super::{
    LockMode, OpenMode, ReadMap, Storage, StorageError, StorageFile, StorageLock, WriteMap,
    check_map_write,
    image::Image,
    map::StoreWatch,
    memory::{LockTable, Shape},
    transfer::{read_fully, uninterrupted, write_fully},
};
use crate::sync::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

mod capture;
mod disk;
mod fault;
mod file;

use capture::CapturePlan;
pub use capture::{Capture, CrashPoint};
use disk::Disk;
use fault::FaultPlan;
pub use fault::{CallKind, Fault, FaultError};
use file::SimFile;

/// Addresses reserved for each simulated file.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// How rough calls are: see `rough_one_in`.
const ROUGH_ONE_IN: u64 = 6;
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
    /// The crash point, and the disk at that moment.
    crashed: Option<Capture>,
    captures: CapturePlan,
    note: [u64; 4],
    /// Of the write or store under way.
    offset: u64,
    capacity_bytes: Option<u64>,
    early_write_back: bool,
    /// One in so many calls is interrupted, and one in so many transfers short. Draws of their own: they change nothing else.
    rough_one_in: Option<u64>,
    rough: Random,
    /// The last call was.
    interrupted: bool,
    /// Flushes that are still honest.
    lie_after: Option<u64>,
    lied_about: Option<String>,
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
            captures: CapturePlan::default(),
            note: [0; 4],
            offset: 0,
            capacity_bytes: None,
            early_write_back: true,
            rough_one_in: Some(ROUGH_ONE_IN),
            rough: Random(seed ^ 0x5067_0000_0000_0000),
            interrupted: false,
            lie_after: None,
            lied_about: None,
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
            state.crashed = Some(state.capture(CallKind::Look, "none"));
        }
    }

    /// True once the crash point was reached.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.state.lock().crashed.is_some()
    }

    /// The call that the crash came in.
    #[must_use]
    pub fn crash_point(&self) -> Option<CrashPoint> {
        let state = self.state.lock();
        state
            .crashed
            .as_ref()
            .map(|crashed| crashed.point().clone())
    }

    /// The disk after a power loss at the crash point (or now), as the next boot finds it. Each seed is another outcome.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimStorage {
        let state = self.state.lock();
        match &state.crashed {
            Some(capture) => capture.crash(seed),
            None => state.capture(CallKind::Look, "none").crash(seed),
        }
    }

    /// The disk after the end of the process at the crash point (or now): everything written is there, and as durable as before.
    #[must_use]
    pub fn process_crash(&self, seed: u64) -> SimStorage {
        let state = self.state.lock();
        match &state.crashed {
            Some(capture) => capture.process_crash(seed),
            None => state.capture(CallKind::Look, "none").process_crash(seed),
        }
    }

    /// Keeps the disk as it is at every `every`th call that changes something, `kept_max` at a time: further ones are passed over until
    /// [`SimStorage::take_captures`] makes room.
    pub fn capture_every(&self, every: u64, kept_max: usize) {
        let mut state = self.state.lock();
        let first = state.calls + every;
        state.captures.plan(every, first, kept_max);
    }

    /// What was captured since it was last asked for.
    #[must_use]
    pub fn take_captures(&self) -> Vec<Capture> {
        self.state.lock().captures.take()
    }

    /// What the test knows of this moment; each crash point carries what was last noted before it.
    pub fn set_note(&self, note: [u64; 4]) {
        self.state.lock().note = note;
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

    /// The file whose flush was lied about.
    #[must_use]
    pub fn lied_about(&self) -> Option<String> {
        self.state.lock().lied_about.clone()
    }

    /// Interrupts one in so many calls, and cuts one in so many reads and writes short. A part of a write is a call of its own. `None`: never.
    pub fn set_rough_transfers(&self, one_in: Option<u64>) {
        self.state.lock().rough_one_in = one_in;
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
    fn enter(&mut self, kind: CallKind, file: &str) -> io::Result<()> {
        if self.crashed.is_some() {
            return Err(io::Error::other("crashed"));
        }
        if kind.changes_disk() {
            self.calls += 1;
            if self.early_write_back && self.random.one_in(4) {
                self.disk.write_back_some(&mut self.random);
            }
            if self.captures.is_due(self.calls) {
                let capture = self.capture(kind, file);
                self.captures.keep(capture);
            }
        }
        match self.plan.next(kind, &mut self.random) {
            Some(error) => Err(error.into_io()),
            None => Ok(()),
        }
    }

    /// The disk of this moment.
    fn capture(&self, kind: CallKind, file: &str) -> Capture {
        let thread = std::thread::current();
        let point = CrashPoint {
            call: self.calls,
            kind,
            file: file.to_owned(),
            offset: self.offset,
            thread: thread.name().unwrap_or_default().to_owned(),
            note: self.note,
        };
        Capture::new(point, self.disk.copy(), self.boot_id, self.boots)
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
    ) -> io::Error {
        if self.random.one_in(2) {
            half_done(&mut self.disk, &mut self.random);
        }
        self.crashed = Some(self.capture(kind, file));
        io::Error::other("crashed")
    }

    /// One changing call: counted, failed or crashed as planned, otherwise done.
    fn change<T>(
        &mut self,
        kind: CallKind,
        file: &str,
        work: impl FnOnce(&mut Disk, &mut Random) -> io::Result<T>,
    ) -> Result<T, StorageError> {
        let fail = |error: io::Error| StorageError::io(kind.name(), file, error);
        uninterrupted(|| self.interrupt()).map_err(fail)?;
        self.enter(kind, file).map_err(fail)?;
        if self.crash_due() {
            return Err(fail(
                self.crash_in(kind, file, |disk, random| drop(work(disk, random))),
            ));
        }
        work(&mut self.disk, &mut self.random).map_err(fail)
    }

    /// One call that changes nothing: failed as planned.
    fn look(&mut self, kind: CallKind, file: &str) -> Result<(), StorageError> {
        self.enter(kind, file)
            .map_err(|error| StorageError::io(kind.name(), file, error))
    }

    /// A signal, now and then; never for ever.
    fn interrupt(&mut self) -> io::Result<()> {
        let may_be = !std::mem::take(&mut self.interrupted);
        match self.rough_one_in {
            Some(one_in) if may_be && self.rough.one_in(one_in) => {
                self.interrupted = true;
                Err(io::ErrorKind::Interrupted.into())
            }
            _ => Ok(()),
        }
    }

    /// How much of `len` bytes the next transfer does; at least one.
    fn transfer_bytes(&mut self, len: usize) -> usize {
        match self.rough_one_in {
            Some(one_in) if len > 1 && self.rough.one_in(one_in) => {
                1 + self.rough.below(len as u64 - 1) as usize
            }
            _ => len,
        }
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

    /// How much of a write there is room for: whole blocks, and an error when there is none for the first.
    fn room_for(&self, inode: u64, offset: u64, len: usize) -> io::Result<usize> {
        let block_bytes = super::memory::BLOCK_BYTES as usize;
        let mut room = len;
        loop {
            match self.check_capacity(inode, offset, room as u64) {
                Err(error) if room <= block_bytes => return Err(error),
                Err(_) => room = (room - 1) / block_bytes * block_bytes,
                Ok(()) => return Ok(room),
            }
        }
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
                state.look(CallKind::Open, name)?;
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
        Ok(Arc::new(SimFile::new(&self.state, name, inode, image)))
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        let mut state = self.state.lock();
        state.look(CallKind::Look, name)?;
        Ok(state.disk.names.contains_key(name))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        let mut state = self.state.lock();
        state.look(CallKind::Look, "directory")?;
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
        let fail = |error| StorageError::io(CallKind::SyncDir.name(), "directory", error);
        state.enter(CallKind::SyncDir, "directory").map_err(fail)?;
        if state.crash_due() {
            let crash = state.crash_in(CallKind::SyncDir, "directory", Disk::write_back_some);
            return Err(fail(crash));
        }
        state.disk.sync_dir();
        Ok(())
    }

    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        let mut state = self.state.lock();
        state.look(CallKind::Look, super::LOCK_FILE_NAME)?;
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
