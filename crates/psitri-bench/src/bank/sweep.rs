//! The bank at one batch size after another, each on a new database that is removed afterwards.
//!
//! All runs are in one process: memory is the peak of all of them, and a run that fails its checks takes the figures of all with it.
use super::config::BankConfig;
use super::run;
use crate::engine::Engine;
use crate::memory::{self, PeakMemory};
use crate::names;
use crate::report::{Report, Series, Validation, grouped};
use crate::workload::{Run, Workload};
use anyhow::{Context, Result};
use std::fs;

const BATCH_SIZES: [u64; 6] = [1, 100, 1_000, 10_000, 100_000, 1_000_000];
const PHASES: [&str; 2] = ["write_only", "write_read"];

/// The batch sizes, and the attempts of a phase for each: what was asked for, or as many as fill one batch.
fn attempts_by_batch_size(attempts: u64, batch_max: u64) -> Vec<(u64, u64)> {
    BATCH_SIZES
        .into_iter()
        .filter(|&size| size <= batch_max)
        .map(|size| (size, attempts.max(size)))
        .collect()
}

pub fn run<E: Engine>(config: &BankConfig, run: &Run<'_>) -> Result<Report> {
    let mut report = Report::new(BankConfig::NAME, run.engine, serde_json::to_value(config)?);
    let mut failures = Vec::new();
    let (mut write_only, mut write_read, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let mut peak = PeakMemory::default();
    // Of all runs: what an engine leaves with the allocator in one is not the harness's in the next.
    let memory_before = {
        let _names = names::names(config.num_accounts as usize, config.seed);
        memory::anonymous_bytes(std::process::id())
    };
    let all = attempts_by_batch_size(config.num_transactions, config.sweep_batch_max);
    for &(batch_size, num_transactions) in &all {
        let directory = run.path.join(format!("batch_{batch_size}"));
        fs::create_dir_all(&directory)?;
        let one = BankConfig {
            batch_size,
            num_transactions,
            sweep: false,
            ..config.clone()
        };
        let one_run = Run {
            path: &directory.join("db"),
            ..*run
        };
        let of_batch = run::run_bank::<E>(&one, &one_run, memory_before)
            .with_context(|| format!("the run with batches of {batch_size} failed"))?;
        fs::remove_dir_all(&directory)?;

        if of_batch.validation != Validation::Pass {
            let prefixed = |failure| format!("batches of {batch_size}: {failure}");
            failures.extend(of_batch.failures.iter().map(prefixed));
            continue;
        }
        peak.resident_bytes = peak.resident_bytes.max(of_batch.peak_rss_bytes);
        peak.anonymous_bytes = peak.anonymous_bytes.max(of_batch.peak_anonymous_bytes);
        let rename = |name: &str| format!("{name}_batch_{batch_size}");
        for mut phase in of_batch.phases {
            if !PHASES.contains(&phase.name.as_str()) {
                continue;
            }
            let x = batch_size as f64;
            if let Some(rate) = phase.reads_per_second {
                reads.push((x, rate));
                write_read.push((x, phase.ops_per_second));
            } else {
                write_only.push((x, phase.ops_per_second));
            }
            phase.name = rename(&phase.name);
            report.phases.push(phase);
        }
    }
    for (name, y_label, points) in [
        ("write-only by batch size", "attempts/s", write_only),
        ("write+read by batch size", "attempts/s", write_read),
        ("reads by batch size", "reads/s", reads),
    ] {
        report.series.push(Series {
            name: name.to_owned(),
            x_label: "batch size".to_owned(),
            y_label: y_label.to_owned(),
            points,
        });
    }
    report.checks.push(format!(
        "balances, log entries, counts and order after each of the runs with batches of {}",
        all.iter()
            .map(|&(batch_size, _)| grouped(batch_size))
            .collect::<Vec<_>>()
            .join("; ")
    ));
    report.memory(&peak);
    if !failures.is_empty() {
        report.fail(failures);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_is_filled_at_least_once() {
        let all = attempts_by_batch_size(20_000, 1_000_000);
        assert_eq!(all[..2], [(1, 20_000), (100, 20_000)]);
        assert_eq!(all[4..], [(100_000, 100_000), (1_000_000, 1_000_000)]);
        assert_eq!(attempts_by_batch_size(5, 99), [(1, 5)]);
    }
}
