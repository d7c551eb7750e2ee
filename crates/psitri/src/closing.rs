//! What is done when a database is closed: how much is merged, and what stays in the log.
//!
//! # Invariants
//! (1) Commits that were promised a flush have it when closing returns, whatever else fails; before anything is tried that may leave an engine
//!     that flushes nothing any more.
//! (2) What stays in the log is little, or was to stay there (`Options::checkpoint_on_close`) and is not out of date for the most part.

use crate::{
    Result,
    buffer::{Found, KeyspaceBuffer},
    checkpoint::{
        KEEP_SHARE, LogPart, REPLAYED_BYTES_MAX, REPLAYED_ENTRIES_MAX, REPLAYED_SEGMENTS_MAX,
        entries_of, is_harmless, logged_of,
    },
    engine::Engine,
    layers::CSN_NEWEST,
    merger::merge_bytes,
    options::Durability,
    state::Generation,
    sync::Arc,
    wal::WalShared,
};

/// How many times as much as there is to merge a merge may write when the database is closed.
const CLOSE_WRITES_MAX: u64 = 3;

/// How many times as large as the entries that it brings back a log may be that is left without need.
const LEFT_LOG_MAX: u64 = 2;
/// Pages that are worth a hole then: one costs the file system as much time as it takes to write a few.
const LEFT_HOLE_PAGES: usize = 4;
/// So much free space is worth none. In tests little is much.
const LEFT_FREE_BYTES: u64 = if cfg!(debug_assertions) {
    32 << 10
} else {
    256 << 10
};
/// What of the live bytes may wait for a checkpoint to be free.
const LEFT_AWAITING_SHARE: u64 = 32;
/// So much is worth none.
const LEFT_AWAITING_BYTES: u64 = if cfg!(debug_assertions) {
    128 << 10
} else {
    1 << 20
};
/// What a commit of one entry takes in the log beside its key and value.
const LOGGED_BYTES: u64 = 32;
/// Entries of a buffer that are looked at to know what the others are like.
const ENTRIES_SAMPLED: u64 = 1_000;

impl Engine {
    /// Makes everything durable, as the database may be closed now. What is in the active buffer stays in the log where merging it would
    /// write several times as much: closing takes time for what was written last, not for what there is.
    ///
    /// Without checkpoints on closing the log stays as it is, if replaying it is worth that, but for what the trees have of it. Commits that
    /// were promised a flush get it now, also where the rest fails.
    pub fn checkpoint_to_close(&self) -> Result<()> {
        let rested = self.rest_to_close();
        if rested.is_err() {
            self.flush_promised_at_last();
        }
        rested
    }

    fn rest_to_close(&self) -> Result<()> {
        if !self.options.checkpoint_on_close
            && let Some(log) = &self.log
        {
            // (1).
            self.flush_promised()?;
            // A merge that is at work is waited for anyway, when the threads are stopped. And where the log is longer than may be left, what is frozen
            // is merged in any case; the active buffer with it, if that is to be merged, too. What is not merged for a failure stays in the log.
            let is_little =
                self.states.current().frozen_bytes() < 2 * self.options.buffer_bytes as u64;
            let is_long = log.live_segments() > REPLAYED_SEGMENTS_MAX;
            if is_little || is_long && self.is_active_mostly_live(log) {
                let _ = self.drain_frozen();
            }
            // What the opening replayed is to be merged in any case.
            if !self.is_merging_replayed() && self.is_log_mostly_live(log) {
                let _closing = NoMerges::begin(self);
                if (self.is_part_let_go_of(log) || self.is_space_left())
                    && let Err(error) = self.checkpoint(LogPart::Merged)
                    && !(is_harmless(&error) && log.live_segments() <= REPLAYED_SEGMENTS_MAX)
                {
                    return Err(error);
                }
                let keep = (self.pager.live_bytes() / KEEP_SHARE).max(LEFT_FREE_BYTES);
                // What failed meanwhile is no error of a step here, but the engine writes nothing any more.
                let _one = self.checkpointing.lock();
                self.check_writable()?;
                return match self.pager.give_back(LEFT_HOLE_PAGES, 0, keep) {
                    // Some file systems need room to cut a file.
                    Err(error) if !is_harmless(&error) => Err(error),
                    _ => Ok(()),
                };
            }
        }
        if !self.stays_in_log() {
            return self.checkpoint_fully();
        }
        self.drain_frozen()?;
        self.checkpoint_drained()
    }

    /// Flushes the log if there may be commits in it whose flush is to come.
    fn flush_promised(&self) -> Result<()> {
        match &self.log {
            Some(log) if self.is_flush_promised(log) => self.flush_log(),
            _ => Ok(()),
        }
    }

    /// The same if no checkpoint has those commits, where nothing else can be done any more (1): a flush needs no room on the disk, and the log may
    /// be sound where the engine is not. It refuses if it is not, or what its records refer to.
    pub fn flush_promised_at_last(&self) {
        if let Some(log) = &self.log
            && !self.read_only
            && self.is_flush_promised(log)
            && self.kept_bytes(log) > 0
        {
            // Why is what the first error says.
            let _ = log.flush(u64::MAX);
        }
    }

    fn is_flush_promised(&self, log: &WalShared) -> bool {
        self.options.durability != Durability::None || self.is_flush_wanted(log)
    }

    /// Whether everything is durable already, and merged as far as it is to be.
    pub fn is_at_rest(&self) -> bool {
        {
            let state = self.states.current();
            let is_clean = state.generations.len() == 1
                && (state.keyspaces.iter().flatten()).all(|keyspace| !keyspace.dirty)
                && self.tree.lock().dropped.is_empty();
            if !is_clean {
                return false;
            }
            if state.active().is_empty() {
                return true;
            }
        }
        let is_durable = |log: &Arc<WalShared>| log.durable_lsn() == log.appended_lsn();
        self.log.as_ref().is_some_and(is_durable) && self.stays_in_log()
    }

    /// Whether enough of the log is merged to take a checkpoint for that, where one is closed without.
    fn is_part_let_go_of(&self, log: &WalShared) -> bool {
        self.merged_bytes(log) >= self.options.wal_segment_bytes
    }

    /// Whether so much is dead and waits for a checkpoint that one is taken, where one is closed without.
    fn is_space_left(&self) -> bool {
        let is_left = || {
            let held = self.pager.held();
            held.awaiting_bytes > (held.live_bytes / LEFT_AWAITING_SHARE).max(LEFT_AWAITING_BYTES)
        };
        // The one that is being written may be enough.
        is_left() && {
            drop(self.checkpointing.lock());
            is_left()
        }
    }

    /// Whether the log, or what a checkpoint would leave of it, is little larger than one that has nothing but the entries that are not merged, so that a
    /// merge would neither give space back nor take less time than a replay. An estimate: an entry of several generations counts several times.
    fn is_log_mostly_live(&self, log: &WalShared) -> bool {
        let let_go_of = match self.is_part_let_go_of(log) {
            true => self.merged_bytes(log),
            false => 0,
        };
        let kept = self.kept_bytes(log).saturating_sub(let_go_of);
        // Its entries are read: as of a commit, like all readers.
        let (state, _) = self.states.acquire(&self.visible_csn);
        may_be_left(log, kept, &state.generations)
    }

    /// The same for a log that has nothing but the active buffer's entries.
    fn is_active_mostly_live(&self, log: &WalShared) -> bool {
        let (state, _) = self.states.acquire(&self.visible_csn);
        let kept = logged_of(state.active(), log);
        may_be_left(log, kept, &state.generations[..1])
    }

    /// Whether the active buffer is better replayed at the next opening than merged now.
    fn stays_in_log(&self) -> bool {
        let Some(log) = &self.log else {
            return false;
        };
        let state = self.states.current();
        let active = state.active();
        // Large values would all be read again, and merging them only notes where they are.
        let has_large_values = !active.large_values.lock().is_empty();
        !has_large_values
            && log.live_segments() <= REPLAYED_SEGMENTS_MAX
            && entries_of(active) <= REPLAYED_ENTRIES_MAX
            && logged_of(active, log) <= REPLAYED_BYTES_MAX
            && merge_bytes(self, active) > CLOSE_WRITES_MAX * active.bytes_used()
    }
}

/// While it lives no merge begins.
struct NoMerges<'e>(&'e Engine);

impl NoMerges<'_> {
    fn begin(engine: &Engine) -> NoMerges<'_> {
        engine.signals.lock.lock().is_closing = true;
        NoMerges(engine)
    }
}

impl Drop for NoMerges<'_> {
    fn drop(&mut self) {
        self.0.signals.lock.lock().is_closing = false;
    }
}

/// Whether `kept` bytes of log, with the entries of these generations, may be left.
fn may_be_left(log: &WalShared, kept: u64, generations: &[Arc<Generation>]) -> bool {
    // All of them would be read at the next opening, however little of the log they are.
    let has_large_values =
        (generations.iter()).any(|generation| !generation.large_values.lock().is_empty());
    let live: u64 = (generations.iter())
        .flat_map(|generation| {
            generation
                .slots()
                .into_iter()
                .filter_map(|slot| generation.buffer(slot))
        })
        .map(|buffer| live_bytes(buffer))
        .sum();
    let kept_from = log.appended_lsn().saturating_sub(kept);
    !has_large_values
        && log.live_segments_from(kept_from) <= REPLAYED_SEGMENTS_MAX
        && kept <= LEFT_LOG_MAX * live
}

/// About how many bytes of log the entries of a buffer would need: those of its first and last ones, times as many as there are.
fn live_bytes(buffer: &KeyspaceBuffer) -> u64 {
    let (mut bytes, mut entries) = (0, 0);
    for forward in [true, false] {
        let mut cursor = buffer.cursor();
        let mut is_valid = if forward {
            cursor.first()
        } else {
            cursor.last()
        };
        for _ in 0..ENTRIES_SAMPLED / 2 {
            if !is_valid {
                break;
            }
            if let Found::Value(value) = cursor.resolve(CSN_NEWEST) {
                bytes += LOGGED_BYTES + (cursor.key().len() + value.len()) as u64;
            }
            entries += 1;
            is_valid = cursor.step(forward);
        }
    }
    bytes * buffer.stats().entries / entries.max(1)
}
