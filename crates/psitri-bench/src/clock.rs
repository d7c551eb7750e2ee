//! A clock that is cheap enough to read twice in every commit.
//!
//! Ticks come from the processor's time stamp counter where it is steady, and from the operating system otherwise; they are
//! turned into nanoseconds only when something is reported. A `Clock` may be copied to any thread.
use quanta::Clock as Source;

#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Calibrates the counter against the operating system once a process; that can take a fifth of a second.
    pub fn new() -> Self {
        Self {
            source: Source::new(),
        }
    }

    /// The time now, in ticks.
    #[inline]
    pub fn ticks(&self) -> u64 {
        self.source.raw()
    }

    /// Nanoseconds between two readings; zero when they are out of order.
    #[inline]
    pub fn nanoseconds(&self, start_ticks: u64, end_ticks: u64) -> u64 {
        self.source.delta_as_nanos(start_ticks, end_ticks)
    }

    /// Seconds between two readings.
    pub fn seconds(&self, start_ticks: u64, end_ticks: u64) -> f64 {
        self.nanoseconds(start_ticks, end_ticks) as f64 / 1e9
    }

    /// How many ticks `nanoseconds` take, approximately: good for "when to look next", not for a measurement.
    pub fn ticks_in(&self, nanoseconds: u64) -> u64 {
        // One million ticks give the rate to six digits.
        let nanoseconds_per_million = self.nanoseconds(0, 1_000_000).max(1);
        (u128::from(nanoseconds) * 1_000_000 / u128::from(nanoseconds_per_million)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn ticks_agree_with_the_operating_system() {
        let clock = Clock::new();
        let (instant, start) = (Instant::now(), clock.ticks());
        std::thread::sleep(Duration::from_millis(50));
        let (elapsed, end) = (instant.elapsed().as_secs_f64(), clock.ticks());
        let seconds = clock.seconds(start, end);
        assert!(
            (seconds / elapsed - 1.0).abs() < 0.02,
            "{seconds} against {elapsed}"
        );
        let ticks = clock.ticks_in(50_000_000) as f64;
        assert!((ticks / (end - start) as f64 - 50e-3 / seconds).abs() < 0.02);
    }
}
