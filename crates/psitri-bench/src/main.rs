//! `psitri-bench`: runs a workload on an engine, checks the outcome, and reports figures only if the checks passed.
#![deny(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use psitri_bench::bank::{self, BankConfig, EngineName};
use psitri_bench::clock::Clock;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::names;
use psitri_bench::report::{Report, Validation, grouped};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Workloads that PsiTri is measured with.
///
/// Exit codes: 0 passed, 1 failed (a check or an error), 2 wrong usage.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// Transfers between accounts, with a concurrent reader
    Bank(BankConfig),
    /// The bank's attempts against an engine that does nothing and, with --limit, against the upper bound
    Harness(BankConfig),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().workload {
        Workload::Bank(config) => run_bank(&config),
        Workload::Harness(config) => run_harness(&config),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            println!("FAIL");
            ExitCode::FAILURE
        }
    }
}

fn run_bank(config: &BankConfig) -> Result<bool> {
    // Both names hold the temporary directory for as long as the database needs it.
    let (temporary, given);
    let path = match &config.db_path {
        Some(path) => {
            given = path.clone();
            make_room(&given, config.overwrite)?;
            given.as_path()
        }
        None => {
            temporary = tempfile::Builder::new().prefix("psitri-bench-").tempdir()?;
            &temporary.path().join("db")
        }
    };
    let report = match config.engine {
        EngineName::Psitri => bank::run::<Psitri>(config, "psitri", path)?,
        EngineName::PsitriDirect => bank::run::<PsitriDirect>(config, "psitri-direct", path)?,
        EngineName::Model => bank::run::<Model>(config, "model", path)?,
    };
    println!("{}", header(config));
    println!("{report}");
    if let Some(file) = &config.json {
        write_json(&report, file)?;
    }
    Ok(report.validation == Validation::Pass)
}

fn run_harness(config: &BankConfig) -> Result<bool> {
    let names = names::names(config.num_accounts as usize, config.seed);
    let clock = Clock::new();
    let rate = bank::harness_attempts_per_second(config, &names, &clock)?;
    println!("{} attempts/s without an engine", grouped(rate as u64));
    if config.limit {
        let limit = bank::limit_attempts_per_second(config, &names, &std::env::temp_dir(), &clock)?;
        println!("{} attempts/s at the limit", grouped(limit as u64));
    }
    Ok(true)
}

/// Makes sure that nothing is at `path`, or only an empty directory. Removes something only when asked to.
fn make_room(path: &Path, overwrite: bool) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if metadata.is_dir() && fs::read_dir(path)?.next().is_none() {
        return Ok(());
    }
    if !overwrite {
        bail!(
            "{} exists; choose another --db-path, or add --overwrite to remove it",
            path.display()
        );
    }
    let removed = if metadata.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn header(config: &BankConfig) -> String {
    format!(
        "bank: {} accounts, {} attempts a phase, batch {}, sync mode {:?} every {} commits, {} reads a snapshot ({:?}), seed {}",
        grouped(config.num_accounts),
        grouped(config.num_transactions),
        grouped(config.batch_size),
        config.sync_mode,
        config.sync_every,
        config.reads_per_tx,
        config.read_mode,
        config.seed
    )
}

fn write_json(report: &Report, file: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    fs::write(file, json + "\n").with_context(|| format!("cannot write {}", file.display()))
}
