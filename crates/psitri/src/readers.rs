//! What the writer knows of readers in other processes: see `storage/readers.rs` for the protocol.
//!
//! # Invariants
//! (1) The version that is durable is noted before the slots are read; both are pins of the reclaim that follows.
//! (2) A pin that was there when the database was opened and is not of the version that was durable then is *stale*. As long as one is
//!     there, the pager keeps its quarantine, and the version of the opening counts as pinned.
//! (3) If the slots cannot be read, or one of them cannot, nothing is given back.
//! (4) No tree gets a version that was pinned when the database was opened. It may have been that of a superblock which a reader saw and the disk
//!     did not keep: with another tree under its number, the pin would be of that one, and stale no more at the opening after.

use std::time::{Duration, Instant};

use crate::{Result, engine::Engine, error::Error, sync::MutexGuard};

/// Pins of other processes, as of the last look.
#[derive(Default)]
pub(crate) struct OtherReaders {
    seen: Vec<Seen>,
    /// (2): slot and what it said, and the version that was durable.
    stale: Vec<(u32, Option<u64>)>,
    opened_at: u64,
    /// Why the slots could not be read, the last time.
    failure: Option<String>,
}

struct Seen {
    slot: u32,
    version: Option<u64>,
    /// When its version was first seen to be the durable one no more.
    replaced: Option<Instant>,
    reported: bool,
}

impl Seen {
    fn age(&self) -> Duration {
        self.replaced.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

impl Engine {
    /// The first look, before anything is written to the data file. `durable`: tree version of the superblock.
    pub fn find_stale_readers(&self, durable: u64) -> Result<()> {
        let pins = self.storage.reader_pins()?;
        // (4)
        let newest = pins.iter().filter_map(|pin| pin.version).max();
        if let Some(newest) = newest.filter(|newest| *newest > durable) {
            self.change_layers(|state| state.tree_version = state.tree_version.max(newest));
        }
        let mut others = self.readers.lock();
        others.opened_at = durable;
        others.stale = pins
            .into_iter()
            .filter(|pin| pin.version != Some(durable))
            .map(|pin| (pin.slot, pin.version))
            .collect();
        if !others.stale.is_empty() {
            self.pager.quarantine();
        }
        Ok(())
    }

    /// Versions that must be kept for other processes, with the durable one. `None` if that cannot be told (3).
    pub fn pins_of_others(&self) -> Option<Vec<u64>> {
        // (1)
        let durable = self.pager.durable_version();
        let mut pins = vec![durable];
        let others = self.look_at_readers(durable)?;
        for seen in &others.seen {
            pins.push(seen.version?);
        }
        if !others.stale.is_empty() {
            pins.push(others.opened_at);
        }
        Some(pins)
    }

    fn look_at_readers(&self, durable: u64) -> Option<MutexGuard<'_, OtherReaders>> {
        let mut others = self.readers.lock();
        let pins = match self.storage.reader_pins() {
            Ok(pins) => pins,
            Err(error) => {
                others.failure = Some(Error::from(error).to_string());
                return None;
            }
        };
        others.failure = None;
        if pins.is_empty() && others.seen.is_empty() && others.stale.is_empty() {
            return Some(others);
        }
        let before = std::mem::take(&mut others.seen);
        others.seen = pins
            .iter()
            .map(|pin| {
                let known = before
                    .iter()
                    .find(|seen| (seen.slot, seen.version) == (pin.slot, pin.version));
                let is_replaced = pin.version != Some(durable);
                let replaced = known
                    .and_then(|seen| seen.replaced)
                    .or_else(|| Some(Instant::now()))
                    .filter(|_| is_replaced);
                Seen {
                    slot: pin.slot,
                    version: pin.version,
                    replaced,
                    reported: known.is_some_and(|seen| seen.reported),
                }
            })
            .collect();
        if !others.stale.is_empty() {
            others
                .stale
                .retain(|stale| pins.iter().any(|pin| (pin.slot, pin.version) == *stale));
            if others.stale.is_empty() {
                self.pager.end_quarantine();
            }
        }
        Some(others)
    }

    /// Number of readers in other processes, and how long ago the oldest checkpoint that one of them sees was replaced.
    pub fn readers_beside(&self) -> (u64, Duration) {
        if self.read_only || self.in_memory {
            return (0, Duration::ZERO);
        }
        let Some(others) = self.look_at_readers(self.pager.durable_version()) else {
            return (0, Duration::ZERO);
        };
        let oldest = others.seen.iter().map(Seen::age).max();
        (others.seen.len() as u64, oldest.unwrap_or_default())
    }

    /// Why nothing is given back (3), if that is so.
    pub fn readers_failure(&self) -> Option<String> {
        self.readers.lock().failure.clone()
    }

    /// Ages of the readers in other processes that are slow and were not reported yet, as of the last look.
    pub fn slow_readers_beside(&self, slow_after: Duration) -> Vec<Duration> {
        let mut others = self.readers.lock();
        let slow = others
            .seen
            .iter_mut()
            .filter(|seen| !seen.reported && seen.age() >= slow_after);
        slow.map(|seen| {
            seen.reported = true;
            seen.age()
        })
        .collect()
    }

    /// Whether the last look found a reader in another process whose checkpoint was replaced.
    pub fn has_old_readers_beside(&self) -> bool {
        let others = self.readers.lock();
        others.seen.iter().any(|seen| seen.replaced.is_some())
    }
}
