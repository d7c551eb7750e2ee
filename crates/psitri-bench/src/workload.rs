//! A workload as the command line, the suite and the registry of engines see it.
//!
//! A workload is the value of its command-line arguments. It is generic over the engine; [`crate::registry`] names the types that it is
//! compiled for, and [`crate::driver`] gives each engine a process of its own.
use crate::clock::Clock;
use crate::engine::{Compression, Engine, Needs, Settings, SyncMode};
use crate::report::{Report, Validation};
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Which engines, how often, where, and where to. Every workload has these.
#[derive(Args, Clone, Debug, Serialize)]
pub struct RunOptions {
    /// Engines to run, separated by commas, each in a process of its own; `all` for every one that is built
    #[arg(long, default_value = "psitri")]
    #[serde(skip)]
    pub engine: String,

    /// Runs of each engine, in alternating order; medians and spreads are reported
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip)]
    pub repeat: u32,

    /// Where the database is created: a path that does not exist or an empty directory. Without it, a temporary
    /// directory that is removed at the end
    #[arg(long)]
    #[serde(skip)]
    pub db_path: Option<PathBuf>,

    /// Remove what is at --db-path first
    #[arg(long, requires = "db_path")]
    #[serde(skip)]
    pub overwrite: bool,

    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// How engines are opened, but for the durability: for workloads whose definition says how durable each phase is.
#[derive(Args, Clone, Debug, Serialize)]
pub struct TuningOptions {
    /// Size of block or page caches, in MiB; without, 1 GiB where the engine's own default is less
    #[arg(long, value_name = "MIB")]
    pub cache_mib: Option<u64>,

    /// Size of the write buffer (memtable), in MiB; the engine's default without
    #[arg(long, value_name = "MIB")]
    pub write_buffer_mib: Option<u64>,

    /// Threads for merges and compactions; the engine's default without
    #[arg(long)]
    pub merge_threads: Option<usize>,

    /// How much larger than its content the data file may become while it is in use, in percent, in engines that bound it
    #[arg(long, value_name = "PERCENT")]
    pub file_slack_percent: Option<u32>,

    /// Compression of blocks, in engines that have one
    #[arg(long, value_enum, default_value_t)]
    pub compression: Compression,
}

/// How engines are opened, for workloads that leave it to their user.
#[derive(Args, Clone, Debug, Serialize)]
pub struct EngineOptions {
    /// Durability of each commit
    #[arg(long, value_enum, default_value_t)]
    pub sync_mode: SyncMode,

    #[command(flatten)]
    #[serde(flatten)]
    pub tuning: TuningOptions,
}

impl TuningOptions {
    pub fn settings(&self, sync_mode: SyncMode, data_bytes_expected: u64) -> Settings {
        Settings {
            sync_mode,
            cache_bytes: self.cache_mib.map(|mib| mib << 20),
            write_buffer_bytes: self.write_buffer_mib.map(|mib| mib << 20),
            merge_threads: self.merge_threads,
            file_slack_percent: self.file_slack_percent,
            compression: self.compression,
            data_bytes_expected: Some(data_bytes_expected),
        }
    }
}

impl EngineOptions {
    pub fn settings(&self, data_bytes_expected: u64) -> Settings {
        self.tuning.settings(self.sync_mode, data_bytes_expected)
    }
}

/// One run of a workload on one engine, in this process.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub engine: &'a str,
    /// Does not exist yet, and nothing else is beside it.
    pub path: &'a Path,
    pub clock: &'a Clock,
}

pub trait Workload: Args + Serialize + Clone {
    const NAME: &'static str;

    /// What an engine must have; one that has not is reported as not applicable.
    const NEEDS: Needs;

    fn options(&self) -> &RunOptions;

    /// What the engine is opened with, or would be: for its description.
    fn settings(&self) -> Settings;

    /// Runs on a new database. An error is one of the engine or of the system; a check that fails is in the report.
    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report>;
}

/// Runs `workload` on `E` if `E` has what it needs, and completes the report.
pub fn run<W: Workload, E: Engine>(workload: &W, run: &Run<'_>) -> Result<Report> {
    let start = run.clock.ticks();
    let config = serde_json::to_value(workload)?;
    let mut report = match E::CAPABILITIES.missing(&W::NEEDS) {
        Some(missing) => {
            let mut report = Report::new(W::NAME, run.engine, config);
            report.validation = Validation::NotApplicable;
            report
                .failures
                .push(format!("{} does not have {missing}", run.engine));
            report
        }
        None => workload.run::<E>(run)?,
    };
    report.description = Some(E::describe(&workload.settings()));
    report.wall_seconds = run.clock.seconds(start, run.clock.ticks());
    Ok(report)
}
