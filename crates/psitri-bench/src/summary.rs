//! Several runs of one workload side by side: a row for each figure, a column for each engine, the median of the runs and their spread.
use crate::report::{Report, Validation, number};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::fmt;

/// Median, smallest and largest of some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Spread {
    /// Nothing for no values. The median of an even number of values is the mean of the two in the middle.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        } else {
            sorted[middle]
        };
        Some(Self {
            median,
            min,
            max,
            runs: sorted.len(),
        })
    }
}

/// What is said of an engine in a row.
pub type Cell = Option<Spread>;

/// A figure of all engines.
#[derive(Clone, Debug)]
pub struct Row {
    /// Phase and figure: `write_only ops/s`.
    pub label: String,
    pub cells: Vec<Cell>,
}

/// The runs of a workload with one configuration.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub workload: String,
    pub engines: Vec<String>,
    pub rows: Vec<Row>,
    /// Engines without figures, and why.
    pub failures: Vec<String>,
}

/// All figures of a report, in order, with labels that are the same in every report of the workload.
pub fn figures(report: &Report) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for phase in &report.phases {
        let mut add = |figure: &str, value: Option<f64>| {
            if let Some(value) = value {
                figures.push((format!("{} {figure}", phase.name), value));
            }
        };
        if phase.ops > 0 {
            add("ops/s", Some(phase.ops_per_second));
        } else {
            add("seconds", Some(phase.seconds));
        }
        add("reads/s", phase.reads_per_second);
        let latency = phase.latency_us.as_ref();
        add("p50 µs", latency.map(|latency| latency.p50));
        add("p99 µs", latency.map(|latency| latency.p99));
        add("max µs", latency.map(|latency| latency.max));
        let worst = phase.steadiness.as_ref();
        add(
            "worst second",
            worst
                .and_then(|steadiness| steadiness.worst_second)
                .map(|ops| ops as f64),
        );
        for (name, &value) in &phase.figures {
            add(name, Some(value));
        }
    }
    if let Some(size) = &report.size {
        figures.push(("file bytes".to_owned(), size.file_bytes as f64));
    }
    if let Some(bytes) = report.peak_rss_bytes {
        figures.push(("peak resident bytes".to_owned(), bytes as f64));
    }
    figures
}

impl Summary {
    pub fn new(reports: &[Report]) -> Self {
        let mut summary = Self {
            workload: reports
                .first()
                .map(|report| report.workload.clone())
                .unwrap_or_default(),
            ..Self::default()
        };
        // Order of first appearance, of engines and of figures.
        let mut values: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
        for report in reports {
            if report.validation != Validation::Pass {
                let line = format!("{}: {}", report.engine, report.failures.join("; "));
                if !summary.failures.contains(&line) {
                    summary.failures.push(line);
                }
                continue;
            }
            let engine = summary
                .engines
                .iter()
                .position(|engine| *engine == report.engine)
                .unwrap_or_else(|| {
                    summary.engines.push(report.engine.clone());
                    summary.engines.len() - 1
                });
            for (label, value) in figures(report) {
                let row = values
                    .iter()
                    .position(|(known, _)| *known == label)
                    .unwrap_or_else(|| {
                        values.push((label, Vec::new()));
                        values.len() - 1
                    });
                let cells = &mut values[row].1;
                if cells.len() <= engine {
                    cells.resize(engine + 1, Vec::new());
                }
                cells[engine].push(value);
            }
        }
        let engines = summary.engines.len();
        summary.rows = values
            .into_iter()
            .map(|(label, mut cells)| {
                cells.resize(engines, Vec::new());
                let cells = cells.iter().map(|values| Spread::of(values)).collect();
                Row { label, cells }
            })
            .collect();
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_preset(UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(
            std::iter::once(self.workload.as_str()).chain(self.engines.iter().map(String::as_str)),
        );
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| match cell {
                None => "-".to_owned(),
                Some(spread) if spread.runs == 1 => number(spread.median),
                Some(spread) => format!(
                    "{} ({}..{})",
                    number(spread.median),
                    number(spread.min),
                    number(spread.max)
                ),
            });
            table.add_row(std::iter::once(row.label.clone()).chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(f, "{table}")?;
        for failure in &self.failures {
            write!(f, "\nno figures for {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Phase;

    fn report(engine: &str, rate: u64) -> Report {
        let mut report = Report::new("w", engine, serde_json::Value::Null);
        report.phases.push(Phase::new("put", rate, 1.0));
        report
    }

    #[test]
    fn medians_and_spreads_by_engine() {
        let mut failed = report("c", 9);
        failed.fail(vec!["lost a key".to_owned()]);
        let summary = Summary::new(&[
            report("a", 10),
            report("b", 7),
            report("a", 30),
            report("a", 11),
            failed,
        ]);
        assert_eq!(summary.engines, ["a", "b"]);
        assert_eq!(summary.rows[0].label, "put ops/s");
        let cell = summary.rows[0].cells[0].expect("three runs");
        assert_eq!((cell.median, cell.min, cell.max), (11.0, 10.0, 30.0));
        assert_eq!(summary.rows[0].cells[1].expect("one run").median, 7.0);
        assert_eq!(summary.failures, ["c: lost a key"]);
    }
}
