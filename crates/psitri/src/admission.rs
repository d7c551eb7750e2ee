//! How writers are let in: a full buffer is frozen, too many frozen ones are waited for, and the last one that is free is filled no faster than those
//! before it are merged.
//!
//! # The pace
//! A merge takes up all frozen buffers and gives them all back when it ends; what writers can fill meanwhile is the active one, and another where a
//! merge began before the last was frozen. At full speed they fill them in a fraction of that time, and wait for the rest of it. Instead they
//! go at the speed at which the room is used up shortly before the merge ends, by what is [`left`](crate::merger::Headway::left) of it:
//! whoever comes when they were too fast by [`PAUSE_MIN`] sleeps for as long, and those who need more of the buffer wait behind it. Between merges nothing is foreseen:
//! where the merge thread waits for a checkpoint for the sake of its space, writers may have to wait for both.
//!
//! # Invariants
//! (1) Nobody is slowed down while two more buffers may be frozen, or nothing is merged.
//! (2) A writer sleeps no longer than [`PAUSE_MAX`] at a time: if the merge gets nowhere, those who find the last buffer full learn why.
//! (3) What is waited for at a lock here is a sleep, which ends by itself: a thread may come with transactions open on other keyspaces.
//! (4) Direct transactions do not come here: they fill no shared buffer. What these have of their keyspaces they have merged (`drain.rs`), for which
//!     each of them may freeze one buffer more than may wait, unless merges fail.

use std::time::{Duration, Instant};

use crate::{
    Result,
    engine::{Engine, frozen_count},
    events::Event,
    state::Generation,
    sync::{AtomicBool, AtomicU64, Mutex, Ordering},
};

/// How long a writer waits for the merge before it looks again whether it failed.
const STALL_POLL: Duration = Duration::from_millis(50);
/// A shorter pause is not worth two switches of threads for each of the writers: it adds up with the next one.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// What writers had in hand longer ago does not count.
const STEP_MAX: Duration = Duration::from_millis(10);

pub(crate) struct Admission {
    /// Whether the active buffer may be half full, or its writers are to be slowed down.
    is_filling: AtomicBool,
    /// Fill of the active buffer when a writer was last slowed down or let pass. It grows by chunks: most who come have nothing to do here.
    used_seen: AtomicU64,
    step: Mutex<Step>,
}

/// How full the buffers are.
struct Fill {
    generation: u64,
    used: u64,
    frozen: usize,
}

/// Where the writers were when they were last looked at.
struct Step {
    generation: u64,
    used: u64,
    at: Instant,
}

impl Admission {
    pub fn new() -> Admission {
        Admission {
            is_filling: AtomicBool::new(true),
            used_seen: AtomicU64::new(0),
            step: Mutex::new(Step {
                generation: 0,
                used: 0,
                at: Instant::now(),
            }),
        }
    }
}

impl Engine {
    /// Lets a writer in: freezes a full buffer, and waits while too many are frozen.
    #[inline]
    pub fn admit(&self) -> Result<()> {
        if self.admission.is_filling.load(Ordering::Relaxed) {
            return self.admit_looking();
        }
        Ok(())
    }

    /// Tells those who are let in later to look how full the active buffer is. Called at the end of every transaction that wrote to it,
    /// and in the middle of those that write much; told beside somebody who found it empty a moment ago, it is lost until the next time.
    #[inline]
    pub fn note_filled(&self, generation: &Generation) {
        let is_half_full = self.filled_bytes(generation) * 2 >= self.options.buffer_bytes as u64;
        let is_filling = &self.admission.is_filling;
        if is_half_full && !is_filling.load(Ordering::Relaxed) {
            is_filling.store(true, Ordering::Relaxed);
        }
    }

    #[cold]
    fn admit_looking(&self) -> Result<()> {
        let budget = self.options.buffer_bytes as u64;
        let fill = self.fill();
        if fill.used >= budget {
            if fill.frozen >= self.options.frozen_buffers_max() {
                return self.wait_for_room(fill.generation);
            }
            return self.freeze(fill.generation);
        }
        if self.room_if_short(&fill).is_none() {
            if fill.used * 2 < budget {
                self.admission.is_filling.store(false, Ordering::Relaxed);
            }
        } else if self.admission.used_seen.load(Ordering::Relaxed) != fill.used {
            self.pace();
        }
        Ok(())
    }

    fn fill(&self) -> Fill {
        let state = self.states.current();
        Fill {
            generation: state.active().id,
            used: self.filled_bytes(state.active()),
            frozen: frozen_count(&state),
        }
    }

    /// How much room there is in the active buffer and in those that may be frozen after it, where it is so little that writers are slowed down (1).
    fn room_if_short(&self, fill: &Fill) -> Option<u64> {
        let (budget, frozen_max) = (
            self.options.buffer_bytes as u64,
            self.options.frozen_buffers_max(),
        );
        let is_short = fill.frozen > 0 && fill.frozen + 1 >= frozen_max;
        let free = frozen_max.saturating_sub(fill.frozen) as u64 * budget;
        is_short.then(|| budget.saturating_sub(fill.used) + free)
    }

    /// Slows down who comes to a buffer that was filled further since it was looked at.
    fn pace(&self) {
        let mut step = self.admission.step.lock();
        // Others may have slept meanwhile, frozen the buffer, or seen to this one.
        let fill = self.fill();
        let Some(room) = self.room_if_short(&fill) else {
            return;
        };
        self.admission.used_seen.store(fill.used, Ordering::Relaxed);
        let now = Instant::now();
        let begun = Step {
            generation: fill.generation,
            used: fill.used,
            at: now,
        };
        if step.generation != fill.generation || step.used > fill.used {
            *step = begun;
            return;
        }
        let (spent, filled) = (now - step.at, fill.used - step.used);
        if filled == 0 {
            return;
        }
        let left = self.headway.left();
        let pause = left.map_or(Duration::ZERO, |left| {
            pause_after(spent, left, filled, room)
        });
        if pause >= PAUSE_MIN {
            let mut signals = self.signals.lock.lock();
            self.signals.done.wait_for(&mut signals, pause);
            drop(signals);
            let paused = now.elapsed();
            self.counters.paced.fetch_add(1, Ordering::Relaxed);
            (self.counters.paced_us).fetch_add(paused.as_micros() as u64, Ordering::Relaxed);
            // Who wakes late has waited for what comes next.
            *step = Step {
                at: now + pause.min(paused),
                ..begun
            };
        } else if left.is_none() || spent >= STEP_MAX {
            *step = begun;
        }
    }

    fn wait_for_room(&self, generation: u64) -> Result<()> {
        let start = Instant::now();
        let mut signals = self.signals.lock.lock();
        let first_round = signals.rounds;
        let result = loop {
            if let Err(error) = self.check_writable() {
                break Err(error);
            }
            {
                let state = self.states.current();
                if state.active().id != generation
                    || frozen_count(&state) < self.options.frozen_buffers_max()
                {
                    break Ok(());
                }
            }
            // A merge that fails, for want of space say, is tried again; its error goes to those who need the room.
            if let (Some(failure), true) = (&signals.failure, signals.rounds > first_round + 1) {
                break Err(failure.stalled("the write buffer is full and cannot be merged"));
            }
            signals.merge_wanted = true;
            self.signals.work.notify_all();
            self.signals.done.wait_for(&mut signals, STALL_POLL);
        };
        drop(signals);
        let waited = start.elapsed();
        self.counters.stalls.fetch_add(1, Ordering::Relaxed);
        self.counters
            .stalled_us
            .fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
        self.tell(|| Event::Stalled { waited });
        result?;
        self.freeze(generation)
    }
}

/// How long writers who filled `filled` bytes in `spent`, and have `room` for more, are to wait if the room is to last for most of `left`: what of it is
/// not used when the merge ends was waited for in vain.
fn pause_after(spent: Duration, left: Duration, filled: u64, room: u64) -> Duration {
    let time = (spent + left / 8 * 7).as_nanos();
    let due = time * u128::from(filled) / u128::from(filled + room).max(1);
    let due = Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
    due.saturating_sub(spent).min(PAUSE_MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_lasts_until_shortly_before_the_merge_ends() {
        let ms = Duration::from_millis;
        // A hundredth of what was free a millisecond ago is filled, and it is to last for 701: six more are due.
        assert_eq!(pause_after(ms(1), ms(800), 100, 9_900), ms(6) + ms(1) / 100);
        // Writers are slower than that by themselves.
        assert_eq!(pause_after(ms(20), ms(800), 100, 9_900), ms(0));
        // The merge is over, or gets nowhere.
        assert_eq!(pause_after(ms(1), ms(0), 100, 9_900), ms(0));
        assert_eq!(pause_after(ms(1), Duration::MAX / 2, 100, 9_900), PAUSE_MAX);
        // Nothing is free.
        assert_eq!(pause_after(ms(1), ms(8), 100, 0), ms(7));
        assert_eq!(pause_after(ms(1), ms(8), 0, 0), ms(0));
    }
}
