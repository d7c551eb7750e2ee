//! The command line of the benchmark programs. They differ in their engines only.
use crate::bank::{BankConfig, HarnessConfig};
use crate::driver::{self, PEERS_PROGRAM};
use crate::page::ReportConfig;
use crate::registry::Engines;
use clap::{Parser, Subcommand};
use std::process::{Command, ExitCode};

/// Workloads that PsiTri is measured with.
///
/// Exit codes: 0 passed, 1 failed (a check or an error), 2 wrong usage.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Transfers between accounts, with a concurrent reader
    #[command(args_override_self = true)]
    Bank(BankConfig),
    /// The bank's attempts against an engine that does nothing and, with --limit, against the upper bound
    Harness(HarnessConfig),
    /// A page and a Markdown file of what the suite measured
    Report(ReportConfig),
    /// The engines of this program, with versions and settings
    Engines {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// The whole program.
pub fn main<R: Engines>(registry: &R) -> ExitCode {
    let cli = Cli::parse();
    // A program that was built with more engines takes the run over, so that all engines of a comparison come from one program.
    if let Some(status) = hand_over(registry, &cli.task) {
        return status;
    }
    let outcome = match &cli.task {
        Task::Bank(workload) => driver::run(registry, workload),
        Task::Harness(config) => config.run(),
        Task::Report(config) => config.run(),
        Task::Engines { json } => engines(registry, *json),
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

impl Task {
    /// The `--engine` of a workload.
    fn engine(&self) -> Option<&str> {
        use crate::workload::Workload;
        match self {
            Self::Bank(workload) => Some(&workload.options().engine),
            Self::Harness(_) | Self::Report(_) | Self::Engines { .. } => None,
        }
    }
}

/// Runs the program with more engines instead, if this one lacks what is asked for and that one is there.
fn hand_over<R: Engines>(registry: &R, task: &Task) -> Option<ExitCode> {
    let engine = task.engine()?;
    if engine != "all" && driver::engines(registry, engine).is_ok() {
        return None;
    }
    let program = driver::peers_program()?;
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .status();
    match status {
        Ok(status) if status.success() => Some(ExitCode::SUCCESS),
        Ok(status) => Some(ExitCode::from(status.code().unwrap_or(1) as u8)),
        Err(error) => {
            eprintln!("error: cannot start {PEERS_PROGRAM}: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn engines<R: Engines>(registry: &R, json: bool) -> anyhow::Result<bool> {
    let entries = registry.entries();
    if json {
        println!("{}", serde_json::to_string_pretty(&entries)?);
        return Ok(true);
    }
    for entry in entries {
        println!("{} {}", entry.name, entry.description.version);
        for line in entry.description.settings {
            println!("    {line}");
        }
    }
    Ok(true)
}
