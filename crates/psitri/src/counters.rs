//! What is counted for `stats`, the statistics file and metrics.

use std::time::Instant;

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// Counters for `stats`. Commits touch none of them.
pub(crate) struct Counters {
    pub merges: AtomicU64,
    /// Slices of trees whose deltas went into their leaves.
    pub tidied: AtomicU64,
    /// More of them are about to follow.
    pub is_tidying: AtomicBool,
    pub merged_entries: AtomicU64,
    pub merged_bytes: AtomicU64,
    pub merging: Activity,
    pub checkpoints: AtomicU64,
    pub checkpointing: Activity,
    pub stalls: AtomicU64,
    pub stalled_us: AtomicU64,
    pub paced: AtomicU64,
    pub paced_us: AtomicU64,
    /// When the database was opened, with which commit as its newest, and where the log ended.
    pub opened_at: Instant,
    pub opened_csn: u64,
    pub opened_lsn: u64,
}

impl Counters {
    pub fn new(opened_csn: u64, opened_lsn: u64) -> Counters {
        Counters {
            merges: AtomicU64::new(0),
            tidied: AtomicU64::new(0),
            is_tidying: AtomicBool::new(false),
            merged_entries: AtomicU64::new(0),
            merged_bytes: AtomicU64::new(0),
            merging: Activity::default(),
            checkpoints: AtomicU64::new(0),
            checkpointing: Activity::default(),
            stalls: AtomicU64::new(0),
            stalled_us: AtomicU64::new(0),
            paced: AtomicU64::new(0),
            paced_us: AtomicU64::new(0),
            opened_at: Instant::now(),
            opened_csn,
            opened_lsn,
        }
    }
}

/// Work that is done now and then, by one thread at a time: how long it takes.
#[derive(Default)]
pub(crate) struct Activity {
    /// Of all that ended, in microseconds.
    pub total_us: AtomicU64,
    /// Of the one that ended last.
    pub last_us: AtomicU64,
    /// When the one at work began.
    since: Mutex<Option<Instant>>,
}

impl Activity {
    /// Work begins; it ends when what is returned is dropped.
    pub fn begin(&self) -> Busy<'_> {
        *self.since.lock() = Some(Instant::now());
        Busy(self)
    }

    /// Whether one is at work.
    pub fn is_busy(&self) -> bool {
        self.since.lock().is_some()
    }

    /// For how long the one at work has been at it; zero if there is none.
    pub fn now_us(&self) -> u64 {
        (*self.since.lock()).map_or(0, |since| since.elapsed().as_micros() as u64)
    }
}

/// Work that goes on.
pub(crate) struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let Some(since) = self.0.since.lock().take() else {
            return;
        };
        let took = since.elapsed().as_micros() as u64;
        self.0.total_us.fetch_add(took, Ordering::Relaxed);
        self.0.last_us.store(took, Ordering::Relaxed);
    }
}
