//! Latencies with nanosecond resolution and three significant digits, from one nanosecond to an hour.
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

const HOUR_NANOSECONDS: u64 = 3_600_000_000_000;

pub struct Latency {
    histogram: Histogram<u64>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyMicroseconds {
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub mean: f64,
    pub stddev: f64,
    pub count: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    pub fn new() -> Self {
        // The bounds and the precision are constants that the histogram accepts.
        let histogram = Histogram::new_with_bounds(1, HOUR_NANOSECONDS, 3).expect("valid bounds");
        Self { histogram }
    }

    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds);
    }

    /// Takes in what another thread recorded.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        self.histogram
            .add(&other.histogram)
            .expect("the same bounds");
    }

    /// The percentiles, or nothing when nothing was recorded.
    pub fn summary(&self) -> Option<LatencyMicroseconds> {
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        (!self.histogram.is_empty()).then(|| LatencyMicroseconds {
            min: self.histogram.min() as f64 / 1e3,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: self.histogram.max() as f64 / 1e3,
            mean: self.histogram.mean() / 1e3,
            stddev: self.histogram.stdev() / 1e3,
            count: self.histogram.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_out_in_microseconds() {
        let mut latency = Latency::new();
        assert_eq!(latency.summary(), None);
        (1..=1_000).for_each(|micros| latency.record(micros * 1_000));
        let summary = latency.summary().expect("recorded");
        assert!((summary.p50 - 500.0).abs() < 1.0, "{summary:?}");
        assert!((summary.p99 - 990.0).abs() < 1.0, "{summary:?}");
        assert!((summary.max - 1_000.0).abs() < 1.0, "{summary:?}");
        assert_eq!(summary.count, 1_000);
    }
}
