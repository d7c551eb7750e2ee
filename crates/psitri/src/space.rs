//! How much larger than its content the data file may become while it is in use.
//!
//! What a merge replaces stays in the file until a checkpoint is durable that does not know of it any more, and what is written takes other
//! pages meanwhile. The file has therefore to be larger than its content by what dies between two checkpoints, and by no more if
//! those who let things die wait for checkpoints. The slack, [`Options::file_slack_percent`](crate::Options::file_slack_percent)
//! of the content, is divided between
//!
//! * the ends of pages that are not full, and the growth of the file by whole pieces;
//! * large values that were written and are not merged yet: what they replace is not dead before;
//! * what is dead and waits for a checkpoint, with the next slice of a merge: whatever the ends of pages leave. Half of it asks for a
//!   checkpoint, so that merges go on while that is written; all of it makes merges wait ([`Engine::wait_for_space`]);
//! * free space, which is what was waiting before: beyond it, space is given back to the file system after each checkpoint.
//!
//! # Thread safety
//! Called by merges and by those who drop keyspaces, between publications, with no lock held; checkpoints take turns.
//!
//! # Invariants
//! (1) What only readers hold does not count as waiting for a checkpoint. Merges wait for readers, too, but not for one that sees a state
//!     which was replaced [`PATIENCE`] ago, and no longer than that at a time.
//! (2) A checkpoint that fails holds nobody up. The merge goes on, and fails by itself if it has to. Until one has succeeded, which the thread for
//!     checkpoints tries again and again, nobody else takes one for space.

use std::time::{Duration, Instant};

use crate::{
    checkpoint::LogPart, engine::Engine, node::PAGE_BYTES, pager::Held, state::Generation,
    sync::Ordering,
};

/// Parts of a hundred of the slack that may always be dead and wait for a checkpoint, however empty the pages are.
const AWAITING_PARTS_MIN: u64 = 32;
/// Parts of a hundred of the slack that are used at all: the file grows by more than it needs, and transactions that are not given the
/// processor hold what died since they began.
const USED_PARTS: u64 = 80;
/// Parts of what may wait for a checkpoint that a merge writes between two publications.
const SLICE_PARTS: u64 = 4;
/// Databases smaller than some tens of MiB may have this much waiting: checkpoints for less cost more than the space is worth.
const AWAITING_BYTES_MIN: u64 = 2 << 20;
/// While they are written to, so much of their file may be something else than content. Direct commits write all of a small tree between two
/// checkpoints; holes would be punched after each of them only to be written to again, and nobody else can write to the file meanwhile.
const SMALL_SLACK_BYTES: u64 = 6 << 20;
/// Smaller slices publish more than they write.
const SLICE_BYTES_MIN: u64 = 1 << 20;
/// The longest slices are this share of the write buffer (one in so many): longer ones keep space from being used again.
const SLICE_BUFFER_SHARE: u64 = 2;

/// At least this share of the write buffer's size (one in so many) may be written as large values before they are merged.
const LARGE_BUFFER_SHARE: u64 = 8;

/// How long merges wait for a reader to end. A transaction that commits holds what it sees for microseconds; now and then its thread loses the
/// processor in the middle of it, or waits for a page of the log.
const PATIENCE: Duration = Duration::from_millis(50);
const PATIENCE_POLL: Duration = Duration::from_millis(1);

/// Runs of 256 KiB and more are given back first, then shorter ones, down to single pages: dropping keyspaces that grew side by side, and
/// removing keys at random, leave little else.
const RUN_PAGES: [usize; 4] = [64, 16, 4, 1];
/// While merges are under way, runs shorter than this many pages stay, up to so much and to half of the content: merges write to them, and a hole stops all
/// threads that have the file mapped. Databases of some tens of MiB would make hundreds of holes after every checkpoint, which take longer
/// than the merges. [`Engine::settle`] gives them back.
const SHORT_RUN_PAGES: usize = 16;
const SHORT_RUNS_BYTES: u64 = 16 << 20;

impl Engine {
    fn slack_bytes(&self, live_bytes: u64) -> u64 {
        live_bytes / 100 * u64::from(self.options.file_slack_percent)
    }

    /// How much may at least be dead and wait for a checkpoint.
    fn awaiting_bytes_least(&self, live_bytes: u64) -> u64 {
        (self.slack_bytes(live_bytes) / 100 * AWAITING_PARTS_MIN).max(AWAITING_BYTES_MIN)
    }

    /// How much may be dead and wait for a checkpoint: what the ends of pages leave, less a slice that may be written when that is reached.
    fn awaiting_bytes_max(&self, held: &Held) -> u64 {
        let room = self
            .used_slack_bytes(held)
            .saturating_sub(held.page_end_bytes());
        (room / (SLICE_PARTS + 1) * SLICE_PARTS).max(self.awaiting_bytes_least(held.live_bytes))
    }

    fn used_slack_bytes(&self, held: &Held) -> u64 {
        self.slack_bytes(held.live_bytes) / 100 * USED_PARTS
    }

    /// Whether what is unused of the pages that trees use something of takes half of the slack.
    pub fn are_pages_wasteful(&self) -> bool {
        let (pages, live_bytes) = self.pager.live_use();
        let unused = (pages * PAGE_BYTES as u64).saturating_sub(live_bytes);
        unused > self.slack_bytes(live_bytes) / 2
    }

    /// How much `threads` that merge at a time write, or let die, all together between two publications of one of them.
    pub fn slice_bytes(&self, threads: usize) -> u64 {
        let buffer_share = self.options.buffer_bytes as u64 / SLICE_BUFFER_SHARE;
        if self.in_memory {
            return buffer_share;
        }
        (self.awaiting_bytes_max(&self.pager.held()) / SLICE_PARTS)
            .max(SLICE_BYTES_MIN * threads as u64)
            .min(buffer_share)
    }

    /// How full a generation is, in bytes of the write buffer. Large values are in the data file and take little of the buffer; there
    /// is room for as many as may die until the next checkpoint.
    #[inline]
    pub fn filled_bytes(&self, generation: &Generation) -> u64 {
        let used = generation.bytes_used();
        match generation.large_bytes.load(Ordering::Relaxed) {
            0 => used,
            large => used.max(self.filled_by_large_values(large)),
        }
    }

    #[cold]
    fn filled_by_large_values(&self, bytes: u64) -> u64 {
        let buffer_bytes = self.options.buffer_bytes as u64;
        let bytes_max = self
            .awaiting_bytes_least(self.pager.live_bytes())
            .max(buffer_bytes / LARGE_BUFFER_SHARE)
            .min(self.options.checkpoint_bytes);
        // What all buffers together have that is not merged is what the file grows by, and what an opening reads after a kill.
        let bytes_max = self.options.per_buffer(bytes_max);
        let filled = u128::from(bytes) * u128::from(buffer_bytes) / u128::from(bytes_max);
        u64::try_from(filled).unwrap_or(u64::MAX).min(buffer_bytes)
    }

    /// Whether so much is dead that a checkpoint is worth while for its space.
    pub fn is_space_due(&self) -> bool {
        let held = self.pager.held();
        held.awaiting_bytes * 2 >= self.awaiting_bytes_max(&held)
    }

    /// Asks for a checkpoint if much is dead, and waits for one if too much is. Called after something died, with no lock held but write
    /// locks of keyspaces.
    pub fn wait_for_space(&self) {
        if self.in_memory {
            return;
        }
        self.wait_for_readers();
        // What readers held became free without a checkpoint. If this fails, it is remembered.
        if self.check_writable().is_ok() {
            let _ = self.give_back(u64::MAX);
        }
        if !self.is_space_due() {
            return;
        }
        let is_too_much = || {
            let held = self.pager.held();
            held.awaiting_bytes >= self.awaiting_bytes_max(&held)
        };
        if !is_too_much() {
            self.signals.work.notify_all();
            return;
        }
        // The one that is being written may be enough.
        drop(self.checkpointing.lock());
        // (2)
        let is_owed = self.signals.lock.lock().checkpoint_failure.is_some();
        if !is_owed && is_too_much() {
            let _ = self.checkpoint(LogPart::Merged);
        }
    }

    /// Waits while somebody who will soon be done holds more than may wait for a checkpoint anyway.
    fn wait_for_readers(&self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let age = self.oldest_pin_age();
            if age.is_zero() || age >= PATIENCE {
                return;
            }
            let held = self.pager.held();
            // What waits for a checkpoint is not theirs.
            let by_readers = held.pending_bytes.saturating_sub(held.awaiting_bytes);
            if by_readers < 2 * self.awaiting_bytes_least(held.live_bytes) {
                return;
            }
            std::thread::sleep(PATIENCE_POLL);
            self.reclaim(&mut self.tree.lock());
        }
    }

    /// How much free space stays in the file after a checkpoint, where so much was written since the one before.
    fn free_bytes_max(&self, written_bytes: u64) -> u64 {
        let held = self.pager.held();
        let room = self
            .used_slack_bytes(&held)
            .max(written_bytes.min(SMALL_SLACK_BYTES))
            .saturating_sub(held.page_end_bytes());
        // What a merge lets die until a checkpoint, and the slice after that, is free after it, and the next slices are written there: holes in it would
        // be filled again at once. It may take what is not used of the slack otherwise.
        let turnover = match self.is_rewriting() {
            true => self.awaiting_bytes_max(&held) / SLICE_PARTS * (SLICE_PARTS + 1),
            false => 0,
        };
        let turnover = turnover.min(
            self.slack_bytes(held.live_bytes)
                .saturating_sub(held.page_end_bytes()),
        );
        // What readers hold comes on top.
        room.max(turnover)
            .saturating_sub(held.awaiting_bytes)
            .max(AWAITING_BYTES_MIN)
    }

    /// Whether nodes are written that others take the place of, and more will be.
    fn is_rewriting(&self) -> bool {
        self.counters.merging.is_busy() || self.counters.is_tidying.load(Ordering::Relaxed)
    }

    /// How much of that may be free on top in short runs.
    fn short_runs_bytes(&self) -> u64 {
        match self.is_rewriting() {
            true => SHORT_RUNS_BYTES.min(self.pager.live_bytes() / 2),
            false => 0,
        }
    }

    /// Gives back what merges were left to write to. There are none any more, and what they replaced may be free by now, without anything for a
    /// checkpoint to store.
    pub fn settle(&self) {
        if !self.in_memory && self.check_writable().is_ok() {
            // The next checkpoint tries again.
            let _ = self.give_back(self.pager.written_bytes());
        }
    }

    /// Gives free space back of which there is too much. `written_bytes` were written since the checkpoint before: as much will be needed
    /// until the next.
    pub fn give_back(&self, written_bytes: u64) -> crate::Result<()> {
        let result = self.try_give_back(written_bytes);
        match &result {
            Ok(()) => self.signals.lock.lock().give_back_failure = None,
            Err(error) => self.note_give_back_failure(error),
        }
        result
    }

    fn try_give_back(&self, written_bytes: u64) -> crate::Result<()> {
        let free_max = self.free_bytes_max(written_bytes);
        let keep = written_bytes.min(free_max / 4 * 3);
        let short = self.short_runs_bytes();
        for pages in RUN_PAGES {
            let spare = if pages < SHORT_RUN_PAGES { short } else { 0 };
            let free = self
                .pager
                .give_back(pages, free_max + spare, keep + spare)?;
            if free <= free_max + spare {
                break;
            }
        }
        Ok(())
    }
}
