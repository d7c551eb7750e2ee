//! What a run reports, as tables for people and as JSON for programs.
//!
//! A run that failed its checks has failures and no figures: [`Report::fail`] takes them out.
use crate::engine::{Description, Engine};
use crate::latency::LatencyMicroseconds;
use crate::memory::PeakMemory;
use crate::throughput::Steadiness;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    Pass,
    Fail,
    /// The engine lacks what the workload needs; `failures` says what.
    NotApplicable,
}

/// The outcome of one workload on one engine, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub workload: String,
    pub engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
    pub config: serde_json::Value,
    pub validation: Validation,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// What was checked, in words.
    #[serde(default)]
    pub checks: Vec<String>,
    pub phases: Vec<Phase>,
    /// Figures over time or over a parameter, for charts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    pub size: Option<Size>,
    /// Peak resident set, mapped files included.
    pub peak_rss_bytes: Option<u64>,
    /// Peak of the resident set that no file backs.
    pub peak_anonymous_bytes: Option<u64>,
    /// Speed of the write-only phase as a share of the upper bound measured right after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_share: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ops_per_second: Option<f64>,
    pub wall_seconds: f64,
}

/// A line of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub x_label: String,
    pub y_label: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// Words joined by underscores; the same name in every report of a workload.
    pub name: String,
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
    /// Of a batch, with its commit, where batches are timed, else of an operation.
    #[serde(alias = "commit_us", skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencyMicroseconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steadiness: Option<Steadiness>,
    /// What the database took on disk at the end of the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Figures that only this workload has, by name; the unit comes last in the name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

impl Phase {
    pub fn new(name: impl Into<String>, ops: u64, seconds: f64) -> Self {
        Self {
            name: name.into(),
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

    pub fn with(mut self, figure: &str, value: f64) -> Self {
        self.figures.insert(figure.to_owned(), value);
        self
    }
}

/// Sizes at the end, after the checkpoint.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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
    /// A report without figures yet, of a run that passes until told otherwise.
    pub fn new(workload: &str, engine: &str, config: serde_json::Value) -> Self {
        Self {
            workload: workload.to_owned(),
            engine: engine.to_owned(),
            description: None,
            config,
            validation: Validation::Pass,
            failures: Vec::new(),
            checks: Vec::new(),
            phases: Vec::new(),
            series: Vec::new(),
            size: None,
            peak_rss_bytes: None,
            peak_anonymous_bytes: None,
            limit_share: None,
            limit_ops_per_second: None,
            wall_seconds: 0.0,
        }
    }

    /// Of an engine of this process: one with a server of its own uses the memory there.
    pub fn memory_of<E: Engine>(&mut self, peak: &PeakMemory) {
        if !E::CAPABILITIES.networked {
            self.memory(peak);
        }
    }

    pub fn memory(&mut self, peak: &PeakMemory) {
        self.peak_rss_bytes = peak.resident_bytes;
        self.peak_anonymous_bytes = peak.anonymous_bytes;
    }

    /// Turns the report into that of a failed run, which has no figures.
    pub fn fail(&mut self, failures: Vec<String>) {
        self.validation = Validation::Fail;
        self.failures = failures;
        self.phases.clear();
        self.series.clear();
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

pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// A column of the table of phases: its heading and its text for a phase, absent where the phase has no such figure.
type Column = (String, Box<dyn Fn(&Phase) -> Option<String>>);

fn latency_column(heading: &str, pick: fn(&LatencyMicroseconds) -> f64) -> Column {
    let text = move |phase: &Phase| {
        let latency = phase.latency_us.as_ref()?;
        Some(format!("{:.2}", pick(latency)))
    };
    (heading.to_owned(), Box::new(text))
}

fn columns(phases: &[Phase]) -> Vec<Column> {
    fn column(heading: &str, text: impl Fn(&Phase) -> Option<String> + 'static) -> Column {
        (heading.to_owned(), Box::new(text))
    }
    let mut columns = vec![
        column("phase", |phase| Some(phase.name.clone())),
        column("seconds", |phase| Some(format!("{:.3}", phase.seconds))),
        column("ops", |phase| (phase.ops > 0).then(|| grouped(phase.ops))),
        column("ops/s", |phase| {
            (phase.ops > 0).then(|| grouped(phase.ops_per_second as u64))
        }),
        column("ok", |phase| phase.successes.map(grouped)),
        column("reads/s", |phase| {
            phase.reads_per_second.map(|rate| grouped(rate as u64))
        }),
        latency_column("p50 µs", |latency| latency.p50),
        latency_column("p99", |latency| latency.p99),
        latency_column("p99.9", |latency| latency.p999),
        latency_column("max", |latency| latency.max),
        column("worst s", |phase| {
            phase.steadiness.as_ref()?.worst_second.map(grouped)
        }),
        column("of median", |phase| {
            let ratio = phase.steadiness.as_ref()?.worst_to_median?;
            Some(format!("{ratio:.2}"))
        }),
        column("file", |phase| phase.file_bytes.map(mebibytes)),
    ];
    let figures: std::collections::BTreeSet<&String> = phases
        .iter()
        .flat_map(|phase| phase.figures.keys())
        .collect();
    for figure in figures {
        let name = figure.clone();
        columns.push(column(figure, move |phase| {
            phase.figures.get(&name).map(|&value| number(value))
        }));
    }
    columns
}

/// A figure with as many digits as say something.
pub fn number(value: f64) -> String {
    if value.abs() >= 1_000.0 || value == value.trunc() {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(value.abs().round() as u64))
    } else {
        format!("{value:.3}")
    }
}

/// The phases, with the columns that any of them fills.
fn phase_table(phases: &[Phase]) -> Table {
    let columns: Vec<Column> = columns(phases)
        .into_iter()
        .filter(|(_, text)| phases.iter().any(|phase| text(phase).is_some()))
        .collect();
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(heading, _)| heading));
    for phase in phases {
        table.add_row(
            columns
                .iter()
                .map(|(_, text)| or_dash(text(phase), |text| text)),
        );
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
        let verdict = match self.validation {
            Validation::Pass => "PASS",
            Validation::Fail => "FAIL",
            Validation::NotApplicable => "N/A",
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
