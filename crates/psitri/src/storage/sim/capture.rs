//! Crash points, and the disk as it was at them.
//!
//! Thread safety: plain data; the plan is behind the disk's lock.
use super::{CallKind, Disk, Random, SimStorage};

/// The call that a crash came in, or that a disk was captured at.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    /// Its number, as [`SimStorage::calls`] counts.
    pub call: u64,
    /// What it does.
    pub kind: CallKind,
    /// The file.
    pub file: String,
    /// Where in the file, if it is a write or a store.
    pub offset: u64,
    /// Name of the thread; empty if it has none.
    pub thread: String,
    /// What the test had noted, see [`SimStorage::set_note`].
    pub note: [u64; 4],
}

/// The disk as it was at a crash point.
#[derive(Debug)]
pub struct Capture {
    point: CrashPoint,
    disk: Disk,
    boot_id: u64,
    boots: u64,
}

impl Capture {
    pub(super) fn new(point: CrashPoint, disk: Disk, boot_id: u64, boots: u64) -> Capture {
        Capture {
            point,
            disk,
            boot_id,
            boots,
        }
    }

    /// The crash point.
    #[must_use]
    pub fn point(&self) -> &CrashPoint {
        &self.point
    }

    /// The disk after a power loss, as the next boot finds it. Each seed is another outcome.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimStorage {
        let mut random = Random(seed ^ 0xc4a5_4000_0000_0000);
        let disk = self.disk.after_power_loss(&mut random);
        SimStorage::with_disk(disk, random.next(), random.next(), self.boots + 1)
    }

    /// The disk after the end of the process: everything written is there, and as durable as before.
    #[must_use]
    pub fn process_crash(&self, seed: u64) -> SimStorage {
        SimStorage::with_disk(self.disk.copy(), seed, self.boot_id, self.boots)
    }
}

/// Which disks are kept.
#[derive(Debug, Default)]
pub(super) struct CapturePlan {
    every: u64,
    next: u64,
    kept_max: usize,
    kept: Vec<Capture>,
}

impl CapturePlan {
    pub fn plan(&mut self, every: u64, first: u64, kept_max: usize) {
        (self.every, self.next, self.kept_max) = (every, first, kept_max);
    }

    pub fn is_due(&self, call: u64) -> bool {
        self.every > 0 && call >= self.next && self.kept.len() < self.kept_max
    }

    pub fn keep(&mut self, capture: Capture) {
        self.next = capture.point.call + self.every;
        self.kept.push(capture);
    }

    pub fn take(&mut self) -> Vec<Capture> {
        std::mem::take(&mut self.kept)
    }
}
