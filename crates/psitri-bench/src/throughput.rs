//! How many operations were done in each tenth of a second, and what that says about stalls.
//!
//! The worst second is the worst of all windows of ten consecutive tenths, not only of those that start at a full second: a
//! stall of one second cannot hide by falling half into each of two seconds. The incomplete tenth at the end is left out.
use crate::clock::Clock;
use serde::{Deserialize, Serialize};

const SLOT_NANOSECONDS: u64 = 100_000_000;
const SLOTS_PER_SECOND: usize = 10;

pub struct Throughput {
    slot_ticks: u64,
    next_ticks: u64,
    done: u64,
    slots: Vec<u64>,
}

/// What the windows of one second say. Empty when the phase was shorter than a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Operations in the worst window of one second.
    pub worst_second: Option<u64>,
    /// Median over the windows of one second.
    pub median_second: Option<u64>,
    /// `worst_second / median_second`.
    pub worst_to_median: Option<f64>,
    /// Operations in each full second from the start.
    pub per_second: Vec<u64>,
}

impl Throughput {
    pub fn start(clock: &Clock, start_ticks: u64) -> Self {
        let slot_ticks = clock.ticks_in(SLOT_NANOSECONDS).max(1);
        Self {
            slot_ticks,
            next_ticks: start_ticks + slot_ticks,
            done: 0,
            slots: Vec::with_capacity(4_096),
        }
    }

    /// Notes that `done` operations in all were complete at `now_ticks`. Returns true once a tenth of a second, when progress may be shown.
    #[inline]
    pub fn at(&mut self, now_ticks: u64, done: u64) -> bool {
        if now_ticks < self.next_ticks {
            return false;
        }
        self.close_slots(now_ticks, done);
        true
    }

    #[cold]
    fn close_slots(&mut self, now_ticks: u64, done: u64) {
        // What was done since the last look belongs to the slot that just ended; slots slept through stay empty.
        self.slots.push(done - self.done);
        self.done = done;
        self.next_ticks += self.slot_ticks;
        while now_ticks >= self.next_ticks {
            self.slots.push(0);
            self.next_ticks += self.slot_ticks;
        }
    }

    /// Adds what another thread did, which started at the same time.
    pub fn merge(&mut self, other: &Self) {
        if self.slots.len() < other.slots.len() {
            self.slots.resize(other.slots.len(), 0);
        }
        for (slot, &more) in self.slots.iter_mut().zip(&other.slots) {
            *slot += more;
        }
    }

    /// Operations in each window of one second, in ascending order.
    fn windows(&self) -> Vec<u64> {
        let mut windows: Vec<u64> = self
            .slots
            .windows(SLOTS_PER_SECOND)
            .map(|slots| slots.iter().sum())
            .collect();
        windows.sort_unstable();
        windows
    }

    /// What a share `quantile` of the windows of one second does not exceed. Nothing when the phase was shorter than a second.
    pub fn window_quantile(&self, quantile: f64) -> Option<u64> {
        let windows = self.windows();
        let position = (windows.len().saturating_sub(1) as f64 * quantile) as usize;
        windows.get(position).copied()
    }

    pub fn steadiness(&self) -> Steadiness {
        let windows = self.windows();
        let (worst_second, median_second) = (
            windows.first().copied(),
            windows.get(windows.len() / 2).copied(),
        );
        Steadiness {
            worst_second,
            median_second,
            worst_to_median: worst_second
                .zip(median_second)
                .filter(|&(_, median)| median > 0)
                .map(|(worst, median)| worst as f64 / median as f64),
            per_second: self
                .slots
                .chunks_exact(SLOTS_PER_SECOND)
                .map(|slots| slots.iter().sum())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throughput(slot_ticks: u64) -> Throughput {
        Throughput {
            slot_ticks,
            next_ticks: slot_ticks,
            done: 0,
            slots: Vec::new(),
        }
    }

    #[test]
    fn a_stall_across_two_seconds_is_found() {
        let mut throughput = throughput(10);
        let mut done = 0;
        for tick in 0..300 {
            // Nothing gets done between 0.5 s and 1.5 s.
            if !(50..150).contains(&tick) {
                done += 1;
                throughput.at(tick, done);
            }
        }
        let steadiness = throughput.steadiness();
        assert!(
            steadiness.worst_second.expect("three seconds") <= 11,
            "{steadiness:?}"
        );
        assert_eq!(steadiness.per_second.len(), 2);
        assert!(steadiness.worst_to_median.expect("three seconds") < 0.5);
    }

    #[test]
    fn threads_are_added_slot_by_slot() {
        let (mut long, mut short) = (throughput(10), throughput(10));
        for tick in 0..400 {
            long.at(tick, tick);
        }
        for tick in 0..200 {
            short.at(tick, 2 * tick);
        }
        short.merge(&long);
        assert_eq!(short.steadiness().per_second, [300, 280, 100]);
        assert_eq!(short.window_quantile(0.0), Some(100));
    }

    #[test]
    fn a_short_phase_has_no_worst_second() {
        let mut throughput = throughput(10);
        for tick in 0..50 {
            throughput.at(tick, tick);
        }
        assert_eq!(throughput.steadiness(), Steadiness::default());
    }
}
