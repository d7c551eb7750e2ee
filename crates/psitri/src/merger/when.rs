//! When the active buffer is merged although it is not full: after a while without commits, where it is read in order again and again, and where its
//! log is long for what is in it. And when full ones are not merged yet: while others are about to join them.
//!
//! # Thread safety
//! Plain data of the merge thread.
//!
//! # Invariants
//! (1) Nothing is frozen here unless there is room for another frozen buffer and merges succeed: buffers would pile up.
//! (2) No buffer is merged early while somebody commits, whether or not that takes memory that is counted.
//!
//! # Failure modes
//! Without memory for another buffer the data stay where they are; the next tick tries again.

use std::time::{Duration, Instant};

use crate::{
    Options,
    engine::{Engine, frozen_count, ready},
    node::PAGE_BYTES,
    state::{Generation, State},
    sync::Ordering,
};

/// How often the thread looks for an idle buffer.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// The same while states that nobody may need any more are not freed yet, or the buffer is read in order.
const TICK_BUSY: Duration = Duration::from_millis(5);
/// A buffer that takes at least this share of its memory is merged when it was idle for this share of `idle_flush`: what is read next, in order or one by
/// one, is then read in one place.
const LARGE_SHARE: u64 = 16;
const IDLE_SHARE_OF_LARGE: u32 = 20;
/// Unless the merge writes more than so many times as much as the buffer takes: where entries are all over a tree, a larger buffer is merged for less.
const EARLY_WRITES_MAX: u64 = 4;
/// Reading an entry in order from a buffer, rather than from the tree, costs as much as merging this many bytes: 60 ns, at 0.5 GB/s.
const BYTES_PER_PASSED_ENTRY: u64 = 32;
/// What a merge costs at least, in bytes: a new buffer for the writers, a new state for everybody.
const MERGE_BYTES_LEAST: u64 = 1 << 20;
/// A merge that costs no more is begun beside writers, too. A longer one takes a processor from them and from the readers, who join three sources
/// meanwhile.
const MERGE_BYTES_SHORT: u64 = 4 << 20;
/// Buffers whose merge would write more than so many times what they take wait for others: a merge of entries all over a large tree writes all of
/// it, for one buffer or for four.
const GATHER_WRITES_MIN: u64 = 2;
/// A merge that writes so many times what one buffer takes waits for as many as there may be. With `m` for the time of a merge and `f` for that
/// in which writers fill a buffer, four of five are merged in `m + 3f`, and three in `m + f`, which is more for `m < 5f`; up to about `10f`, or this, it is
/// less by about a tenth, and those who write beside the merge do so at twice the speed. Of nine and more, a merge that waits at all writes more than that.
const GATHER_ALL_WRITES_MIN: u64 = 16;
/// The next one is waited for as long as this share of the merge takes, at 0.5 GB/s, and no longer than that. In tests all is slower, and small.
const GATHER_SHARE: u64 = 4;
const GATHER_BYTES_PER_MS: u64 = if cfg!(debug_assertions) {
    10_000
} else {
    500_000
};
const GATHER_MAX: Duration = Duration::from_millis(200);
/// The least that an entry takes in a buffer, roughly: key, value, version, and its share of the radix tree and the directory.
const ENTRY_BYTES_LEAST: u64 = 128;

/// What is known of the active buffer from one tick to the next.
pub(super) struct Watch {
    /// Which one it is and how much memory it takes, and since when.
    seen: (u64, u64),
    since: Instant,
    /// The newest commit, and when it was first seen (2).
    newest: (u64, Instant),
    /// How many of its entries had been read in order, and when that changed last.
    passed: u64,
    read_at: Option<Instant>,
    share: Share,
}

impl Watch {
    pub fn new() -> Watch {
        let now = Instant::now();
        Watch {
            seen: (0, 0),
            since: now,
            newest: (0, now),
            passed: 0,
            read_at: None,
            share: Share::ALL,
        }
    }

    /// How long to wait for the next tick, if nobody wakes the thread.
    pub fn pause(&self, engine: &Engine) -> Duration {
        let is_read = self.read_at.is_some_and(|at| at.elapsed() < TICK);
        // A transaction may hold on to a merged buffer for a moment: its memory is wanted back soon.
        if is_read || engine.states.retired_len() > 0 {
            TICK_BUSY
        } else {
            TICK
        }
    }

    /// A merge wrote so many bytes and might have written up to `expected`, which is not 0.
    pub fn note_merge(&mut self, written: u64, expected: u64) {
        self.share = Share::of(written, expected);
    }

    /// Waits for buffers to be merged with those that are frozen, if that is worth it: while they come quickly, there is room for them, somebody
    /// commits, and nobody waits for the merge.
    pub fn gather(&self, engine: &Engine) {
        let (mut known, mut since) = (0, Instant::now());
        let mut commit = self.newest;
        loop {
            let waiting = Waiting::of(&engine.states.current());
            if waiting.count > known {
                since = Instant::now();
            }
            known = waiting.count;
            let csn = engine.visible_csn.load(Ordering::Acquire);
            if csn != commit.0 {
                commit = (csn, Instant::now());
            }
            let merge = self.share.cost(merge_bytes_of(engine, waiting.bytes));
            let is_enough = waiting.count >= buffers_gathered(&engine.options, merge);
            if waiting.count == 0
                || is_enough
                || waiting.has_large_values
                || commit.1.elapsed() >= TICK
            {
                return;
            }
            let left = patience(waiting.bytes, merge).saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            // As between merges: what was merged holds memory until nobody reads it.
            engine.reclaim_states();
            let mut signals = engine.signals.lock.lock();
            if signals.stopping || signals.draining > 0 || signals.is_failing() {
                return;
            }
            // Whoever freezes a buffer notifies under this lock.
            if Waiting::of(&engine.states.current()).count == waiting.count {
                let pause = self.pause(engine).min(TICK / 2).min(left);
                engine.signals.work.wait_for(&mut signals, pause);
            }
        }
    }

    /// Looks at the active buffer, and freezes it if that is worth it. True if nothing was written for so long that the database is to come to rest.
    pub fn look(&mut self, engine: &Engine) -> bool {
        let now = {
            let state = engine.states.current();
            let active = state.active();
            let before = std::mem::replace(&mut self.passed, active.entries_passed());
            if self.passed > before {
                self.read_at = Some(Instant::now());
            }
            (active.id, active.bytes_used())
        };
        let csn = engine.visible_csn.load(Ordering::Acquire);
        if csn != self.newest.0 {
            self.newest = (csn, Instant::now());
        }
        let (is_changed, unchanged) = (now != self.seen, self.since.elapsed());
        let quiet = unchanged.min(self.newest.1.elapsed());
        let is_written = is_changed || unchanged < TICK;
        let rests = !is_changed && unchanged >= engine.options.idle_flush;
        let is_enough = rests
            || (!is_changed && self.is_early_enough(engine, now.1, quiet))
            || self.is_read_enough(engine, is_written)
            || engine.is_log_long();
        if is_enough && may_freeze(engine) {
            let _ = engine.freeze(now.0);
        }
        if is_changed || rests {
            (self.seen, self.since) = (now, Instant::now());
        }
        rests
    }

    /// Whether reading the active buffer in order has cost so much, compared to reading a tree, that it would have paid to merge it before:
    /// what comes will probably be like what was.
    fn is_read_enough(&self, engine: &Engine, is_written: bool) -> bool {
        let state = engine.states.current();
        let read = state.active().entries_passed() * BYTES_PER_PASSED_ENTRY;
        let merge = self.share.cost(merge_bytes(engine, state.active()));
        read >= merge && (!is_written || merge <= MERGE_BYTES_SHORT)
    }

    /// Whether a buffer that takes `bytes`, and was not written to for so long, is merged though it is far from full.
    fn is_early_enough(&self, engine: &Engine, bytes: u64, quiet: Duration) -> bool {
        bytes >= engine.options.buffer_bytes as u64 / LARGE_SHARE
            && quiet >= (engine.options.idle_flush / IDLE_SHARE_OF_LARGE).max(TICK)
            && self.share.cost(merge_bytes_of(engine, bytes)) <= EARLY_WRITES_MAX * bytes
    }
}

/// Frozen generations that the merge can take up.
#[derive(Default)]
struct Waiting {
    count: usize,
    /// Memory that they take.
    bytes: u64,
    /// Large values are in the data file: what they replace waits for this merge to be dead.
    has_large_values: bool,
}

impl Waiting {
    fn of(state: &State) -> Waiting {
        let mut waiting = Waiting::default();
        for generation in ready(state) {
            waiting.count += 1;
            waiting.bytes += generation.bytes_used();
            waiting.has_large_values |= generation.large_bytes.load(Ordering::Relaxed) > 0;
        }
        waiting
    }
}

/// How many buffers are gathered for a merge that writes so many bytes. One is left to the writers beside the active one, who fill both in that
/// time, unless there are no more than two or a merge takes so long that it pays to wait for it, too.
fn buffers_gathered(options: &Options, merge: u64) -> usize {
    let all = options.frozen_buffers_max();
    if all <= 2 || merge >= GATHER_ALL_WRITES_MIN * options.buffer_bytes as u64 {
        all
    } else {
        all - 1
    }
}

/// How long the merge of buffers of so many bytes, which writes so many, waits for the next one.
fn patience(bytes: u64, merge: u64) -> Duration {
    if merge <= GATHER_WRITES_MIN * bytes {
        return Duration::ZERO;
    }
    Duration::from_millis(merge / GATHER_SHARE / GATHER_BYTES_PER_MS).min(GATHER_MAX)
}

/// (1)
fn may_freeze(engine: &Engine) -> bool {
    frozen_count(&engine.states.current()) < engine.options.frozen_buffers_max()
        && !engine.signals.lock.lock().is_failing()
}

/// How much a merge of a generation would write at most, about.
pub(crate) fn merge_bytes(engine: &Engine, generation: &Generation) -> u64 {
    merge_bytes_of(engine, generation.bytes_used())
}

/// The same for buffers that take so much memory.
pub(super) fn merge_bytes_of(engine: &Engine, bytes: u64) -> u64 {
    // Each entry may be in a leaf of its own, which is written anew; all leaves together are the tree.
    let leaves = bytes / ENTRY_BYTES_LEAST * PAGE_BYTES as u64;
    bytes + leaves.min(engine.pager.live_bytes())
}

/// What merges write of what they may write at most: less where the entries of a buffer are close together, as those of a queue are, little where
/// they are deletions. What comes will probably be like the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    of_256: u64,
}

impl Share {
    const ALL: Share = Share { of_256: 256 };

    /// `expected` is not 0.
    fn of(written: u64, expected: u64) -> Share {
        Share {
            of_256: (written.saturating_mul(256) / expected).clamp(1, 256),
        }
    }

    /// What a merge costs that may write `bytes`.
    fn cost(self, bytes: u64) -> u64 {
        (bytes / 256 * self.of_256).max(MERGE_BYTES_LEAST)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_of_three_buffers_and_more_is_left_to_writers_unless_merges_are_long() {
        let gathered = |frozen: usize, merge: u64| {
            let options = Options::new().buffer_bytes(1 << 20).frozen_buffers(frozen);
            buffers_gathered(&options, merge << 20)
        };
        assert_eq!([1, 2, 3, 4, 16].map(|n| gathered(n, 15)), [1, 2, 2, 3, 15]);
        assert_eq!([1, 2, 3, 4, 16].map(|n| gathered(n, 16)), [1, 2, 3, 4, 16]);
    }

    #[test]
    fn merges_that_write_much_more_than_they_take_wait_for_others() {
        const MIB: u64 = 1 << 20;
        // A tree that is small beside the buffer, and a queue, of which little is written again.
        assert_eq!(patience(64 * MIB, 100 * MIB), Duration::ZERO);
        assert_eq!(patience(64 * MIB, 70 * MIB), Duration::ZERO);
        // One buffer in a large tree, and the same merge of so many that it pays.
        assert_eq!(patience(64 * MIB, 1_000 * MIB), GATHER_MAX);
        assert_eq!(patience(512 * MIB, 1_000 * MIB), Duration::ZERO);
        // A merge is put off by a quarter of the time that it takes.
        let (short, took) = (patience(MIB, 40 * MIB), 40 * MIB / GATHER_BYTES_PER_MS);
        assert_eq!(short.as_millis() as u64, (took / 4).min(200));
    }
}
