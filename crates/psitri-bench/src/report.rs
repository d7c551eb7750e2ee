//! What a run reports, as tables for people and as JSON for programs.
//!
//! A run that failed its checks has failures and no figures: [`Report::fail`] takes them out.
use crate::latency::LatencyMicroseconds;
use crate::throughput::Steadiness;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Validation {
    Pass,
    Fail,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub workload: &'static str,
    pub engine: String,
    pub config: serde_json::Value,
    pub validation: Validation,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// What was checked, in words.
    pub checks: Vec<String>,
    pub phases: Vec<Phase>,
    pub size: Option<Size>,
    /// Peak resident set, mapped files included.
    pub peak_rss_bytes: Option<u64>,
    /// Peak of the resident set that no file backs.
    pub peak_anonymous_bytes: Option<u64>,
    /// Speed of the write-only phase as a share of the upper bound measured right after it.
    pub limit_share: Option<f64>,
    pub limit_ops_per_second: Option<f64>,
    pub wall_seconds: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    pub ops: u64,
    pub ops_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_us: Option<LatencyMicroseconds>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub steadiness: Option<Steadiness>,
    /// What the database took on disk at the end of the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
}

impl Phase {
    pub fn new(name: &'static str, ops: u64, seconds: f64) -> Self {
        Self {
            name,
            seconds,
            ops,
            ops_per_second: if seconds > 0.0 {
                ops as f64 / seconds
            } else {
                0.0
            },
            ..Self::default()
        }
    }
}

/// Sizes at the end, after the checkpoint.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Size {
    /// Given by the file system to all files, logs included.
    pub file_bytes: u64,
    pub file_length_bytes: u64,
    /// The engine's word for its data file and its log.
    pub data_bytes: Option<u64>,
    pub log_bytes: Option<u64>,
    pub reachable_bytes: Option<u64>,
    /// Keys and values.
    pub raw_bytes: u64,
}

impl Report {
    /// Turns the report into that of a failed run, which has no figures.
    pub fn fail(&mut self, failures: Vec<String>) {
        self.validation = Validation::Fail;
        self.failures = failures;
        self.phases.clear();
        self.size = None;
        self.limit_share = None;
        self.limit_ops_per_second = None;
    }

    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

fn phase_table(phases: &[Phase]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "phase",
        "seconds",
        "ops",
        "ops/s",
        "ok",
        "reads/s",
        "p50 µs",
        "p99",
        "p99.9",
        "max",
        "worst s",
        "of median",
        "file",
    ]);
    for phase in phases {
        let commit = |pick: fn(&LatencyMicroseconds) -> f64| {
            or_dash(phase.commit_us.as_ref().map(pick), |micros| {
                format!("{micros:.2}")
            })
        };
        let steadiness = phase.steadiness.as_ref();
        table.add_row([
            phase.name.to_owned(),
            format!("{:.3}", phase.seconds),
            grouped(phase.ops),
            or_dash((phase.ops > 0).then_some(phase.ops_per_second), |rate| {
                grouped(rate as u64)
            }),
            or_dash(phase.successes, grouped),
            or_dash(phase.reads_per_second, |rate| grouped(rate as u64)),
            commit(|latency| latency.p50),
            commit(|latency| latency.p99),
            commit(|latency| latency.p999),
            commit(|latency| latency.max),
            or_dash(
                steadiness.and_then(|steadiness| steadiness.worst_second),
                grouped,
            ),
            or_dash(
                steadiness.and_then(|steadiness| steadiness.worst_to_median),
                |ratio| format!("{ratio:.2}"),
            ),
            or_dash(phase.file_bytes, mebibytes),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.validation == Validation::Pass {
            writeln!(f, "{}", phase_table(&self.phases))?;
            if let Some(size) = &self.size {
                write!(
                    f,
                    "size: reachable {}",
                    or_dash(size.reachable_bytes, mebibytes)
                )?;
                write!(f, ", file {}", mebibytes(size.file_bytes))?;
                write!(f, " (data {}", or_dash(size.data_bytes, mebibytes))?;
                write!(f, ", log {})", or_dash(size.log_bytes, mebibytes))?;
                writeln!(f, ", keys and values {}", mebibytes(size.raw_bytes))?;
            }
            let resident = or_dash(self.peak_rss_bytes, mebibytes);
            let anonymous = or_dash(self.peak_anonymous_bytes, mebibytes);
            writeln!(
                f,
                "peak memory: {resident} resident, {anonymous} of it not backed by a file"
            )?;
            if let (Some(share), Some(rate)) = (self.limit_share, self.limit_ops_per_second) {
                writeln!(
                    f,
                    "share of limit: {:.1} % of {} attempts/s",
                    share * 100.0,
                    grouped(rate as u64)
                )?;
            }
        }
        for check in &self.checks {
            writeln!(f, "checked: {check}")?;
        }
        for failure in &self.failures {
            writeln!(f, "failed: {failure}")?;
        }
        let verdict = if self.validation == Validation::Pass {
            "PASS"
        } else {
            "FAIL"
        };
        write!(
            f,
            "{verdict}  {} {} in {:.1} s",
            self.workload, self.engine, self.wall_seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
