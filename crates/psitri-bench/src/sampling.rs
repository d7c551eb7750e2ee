//! Measurements that are repeated within a run: some to warm up, then those that count.
//!
//! A sample says its own seconds, so that what it prepares and cleans up is not timed. The median is the phase's time, the fastest and the
//! slowest stand beside it. No sample is thrown away as an outlier.
use crate::report::Phase;
use crate::summary::Spread;
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

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
    pub fn take(&self, mut once: impl FnMut() -> Result<f64>) -> Result<Spread> {
        for _ in 0..self.warm_up_samples {
            once()?;
        }
        let seconds = (0..self.samples)
            .map(|_| once())
            .collect::<Result<Vec<f64>>>()?;
        Spread::of(&seconds).context("there is at least one sample")
    }
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
}
