//! Measurements that are repeated within a run: some to warm up, then those that count.
//!
//! A sample says its own seconds, so that what it prepares and cleans up is not timed. The median is the phase's time, the fastest and the
//! slowest stand beside it. No sample is thrown away as an outlier.
//!
//! Where a sample takes a fraction of a millisecond, ten of them measure how cold the code and the caches are. [`SteadyOptions`] goes on for a
//! time, as criterion does, which the originals of these workloads are measured with.
use crate::report::Phase;
use crate::summary::Spread;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::time::Instant;

#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct SamplingOptions {
    /// Measurements of each figure, of which the median is reported
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: u32,

    /// Measurements that are made before those and forgotten
    #[arg(long, default_value_t = 1)]
    pub warm_up_samples: u32,
}

impl SamplingOptions {
    /// Takes samples in seconds, each from one call of `once`.
    pub fn take(&self, once: impl FnMut() -> Result<f64>) -> Result<Spread> {
        self.take_for(0.0, 0.0, once)
    }

    /// The same, with more of them until so many seconds have passed, to warm up and then.
    fn take_for(
        &self,
        warm_up_seconds: f64,
        sample_seconds: f64,
        mut once: impl FnMut() -> Result<f64>,
    ) -> Result<Spread> {
        repeat(self.warm_up_samples, warm_up_seconds, &mut once)?;
        let seconds = repeat(self.samples, sample_seconds, &mut once)?;
        Spread::of(&seconds).context("there is at least one sample")
    }
}

/// Samples of what is fast, until it has been warm for a while and measured for a while.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct SteadyOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SamplingOptions,

    /// Seconds that pass before samples count, what is not timed included
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub warm_up_seconds: f64,

    /// Seconds in which samples are taken, more than were asked for if there is time, what is not timed included
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub sample_seconds: f64,
}

fn seconds(argument: &str) -> Result<f64> {
    let seconds: f64 = argument.parse()?;
    ensure!(
        (0.0..=3_600.0).contains(&seconds),
        "{argument} is not between 0 and 3600 seconds"
    );
    Ok(seconds)
}

impl SteadyOptions {
    /// Takes samples in seconds, each from one call of `once`.
    pub fn take(&self, once: impl FnMut() -> Result<f64>) -> Result<Spread> {
        self.sampling
            .take_for(self.warm_up_seconds, self.sample_seconds, once)
    }
}

/// At least so many samples, and more until so many seconds have passed.
fn repeat(samples: u32, seconds: f64, once: &mut impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < samples as usize || start.elapsed().as_secs_f64() < seconds {
        taken.push(once()?);
    }
    Ok(taken)
}

/// A phase of `ops` operations a sample.
pub fn phase(name: impl Into<String>, ops: u64, seconds: &Spread) -> Phase {
    Phase::new(name, ops, seconds.median)
        .with("ms", seconds.median * 1e3)
        .with("min_ms", seconds.min * 1e3)
        .with("max_ms", seconds.max * 1e3)
        .with("samples", seconds.runs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn warm_up_does_not_count() -> Result<()> {
        let options = SamplingOptions {
            samples: 3,
            warm_up_samples: 2,
        };
        let mut samples = [100.0, 90.0, 4.0, 2.0, 3.0].into_iter();
        let spread = options.take(|| samples.next().context("no sixth sample"))?;
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 2.0, 4.0));
        let phase = phase("p", 6, &spread);
        assert_eq!(
            (phase.ops_per_second, phase.figures["max_ms"]),
            (2.0, 4_000.0)
        );
        assert!(options.take(|| samples.next().context("none")).is_err());
        Ok(())
    }

    #[test]
    fn samples_go_on_for_as_long_as_they_are_asked_to() -> Result<()> {
        let sampling = SamplingOptions {
            samples: 3,
            warm_up_samples: 2,
        };
        let taken = |warm_up_seconds, sample_seconds| -> Result<(u32, usize)> {
            let options = SteadyOptions {
                sampling,
                warm_up_seconds,
                sample_seconds,
            };
            let mut calls = 0;
            let spread = options.take(|| {
                calls += 1;
                std::thread::sleep(Duration::from_millis(1));
                Ok(1.0)
            })?;
            Ok((calls, spread.runs))
        };
        assert_eq!(taken(0.0, 0.0)?, (5, 3));
        let (calls, runs) = taken(0.02, 0.0)?;
        assert!(runs == 3 && calls > 3);
        // However slow the machine: a sample that takes all of the time is followed by those that were asked for.
        let (calls, runs) = taken(0.0, 0.02)?;
        assert!(runs >= 3 && calls as usize == runs + 2);
        assert!(
            ["-1", "nan", "inf", "3601", "s"]
                .iter()
                .all(|argument| seconds(argument).is_err())
        );
        assert_eq!(seconds("0.5")?, 0.5);
        Ok(())
    }
}
