//! The command line of the benchmark programs. They differ in their engines only.
use crate::bank::{BankConfig, HarnessConfig};
use crate::db_bench::DbBenchConfig;
use crate::driver::{self, Job, PEERS_PROGRAM};
use crate::emdb;
use crate::engine::Description;
use crate::lmdb_style::LmdbStyle;
use crate::page::ReportConfig;
use crate::power_loss::PowerLossConfig;
use crate::registry::Engines;
use crate::soak::SoakConfig;
use crate::space::SpaceConfig;
use crate::sql::InsertConfig;
use crate::sql::workload::SqlJob;
use crate::suite::SuiteOptions;
use crate::tatp::TatpConfig;
use crate::tides::TidesConfig;
use crate::upsert::UpsertConfig;
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
    /// Prepared INSERTs by integer and text keys, one by one and in one transaction, on engines that understand SQL
    #[command(name = "sql-insert", args_override_self = true, mut_arg("engine", |argument| argument.default_value("sqlite")))]
    SqlInsert(InsertConfig),
    /// TATP: seven short transactions on a register of subscribers, in SQL or on `psitri` itself
    #[command(args_override_self = true)]
    Tatp(TatpConfig),
    /// Bulk load, durable and unsynced writes, random reads, removals and sizes, as the redb and emdb projects measure them
    #[command(args_override_self = true)]
    LmdbStyle(LmdbStyle),
    /// A thousand small entries inserted, read and removed, one at a time
    #[command(args_override_self = true)]
    Kv(emdb::Kv),
    /// The same entries inserted one by one, as one batch and as a bulk load, and read back
    #[command(args_override_self = true)]
    Comparative(emdb::Comparative),
    /// Point reads from one to eight threads
    #[command(args_override_self = true)]
    ConcurrentReads(emdb::ConcurrentReads),
    /// Durable writes from several threads, against the same writes from one
    #[command(args_override_self = true)]
    GroupCommit(emdb::GroupCommit),
    /// Durable writes from one thread, in the sync modes `sync` and `write-through`
    #[command(args_override_self = true)]
    WriteThrough(emdb::WriteThrough),
    /// Gets, replacements and mixtures of them on a set that stays the same, from one to eight threads
    #[command(args_override_self = true)]
    IndexHotpath(emdb::IndexHotpath),
    /// Random upserts, round after round, into a database that grows
    #[command(args_override_self = true)]
    Upsert(UpsertConfig),
    /// Puts, gets, deletes, seeks and ranges by several threads, in the way of TidesDB's benchmark tool
    #[command(args_override_self = true)]
    Tides(TidesConfig),
    /// A list of benchmarks on one database, in the way of RocksDB's db_bench
    #[command(args_override_self = true)]
    DbBench(DbBenchConfig),
    /// The bank's attempts against an engine that does nothing and, with --limit, against the upper bound
    Harness(HarnessConfig),
    /// Power losses on real file systems while `psitri` commits: what is left must be a state that was committed. For root
    #[command(args_override_self = true)]
    PowerLoss(PowerLossConfig),
    /// Everything at once on one database of `psitri`, with kills and reopens, under checks: memory and file sizes over time
    Soak(SoakConfig),
    /// How much larger than what it holds a database of `psitri` becomes: files and reachable bytes over time
    Space(SpaceConfig),
    /// All of them on all engines, resumed where it was interrupted
    Suite(SuiteOptions),
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
        Task::SqlInsert(workload) => driver::run(registry, &SqlJob(workload)),
        Task::Tatp(workload) => driver::run(registry, &SqlJob(workload)),
        Task::LmdbStyle(workload) => driver::run(registry, workload),
        Task::Kv(workload) => driver::run(registry, workload),
        Task::Comparative(workload) => driver::run(registry, workload),
        Task::ConcurrentReads(workload) => driver::run(registry, workload),
        Task::GroupCommit(workload) => driver::run(registry, workload),
        Task::WriteThrough(workload) => driver::run(registry, workload),
        Task::IndexHotpath(workload) => driver::run(registry, workload),
        Task::Upsert(workload) => driver::run(registry, workload),
        Task::Tides(workload) => driver::run(registry, workload),
        Task::DbBench(workload) => driver::run(registry, workload),
        Task::Harness(config) => config.run(),
        Task::PowerLoss(config) => config.run(),
        Task::Soak(config) => config.run(),
        Task::Space(config) => config.run(),
        Task::Suite(options) => options.run(registry),
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
    /// The `--engine` of a workload, and the engines that there are for it.
    fn engine<R: Engines>(&self, registry: &R) -> Option<(String, Vec<String>)> {
        fn of<R: Engines, J: Job>(registry: &R, job: &J) -> Option<(String, Vec<String>)> {
            Some((job.options().engine.clone(), job.engines(registry)))
        }
        match self {
            Self::Bank(workload) => of(registry, workload),
            Self::SqlInsert(workload) => of(registry, &SqlJob(workload)),
            Self::Tatp(workload) => of(registry, &SqlJob(workload)),
            Self::LmdbStyle(workload) => of(registry, workload),
            Self::Kv(workload) => of(registry, workload),
            Self::Comparative(workload) => of(registry, workload),
            Self::ConcurrentReads(workload) => of(registry, workload),
            Self::GroupCommit(workload) => of(registry, workload),
            Self::WriteThrough(workload) => of(registry, workload),
            Self::IndexHotpath(workload) => of(registry, workload),
            Self::Upsert(workload) => of(registry, workload),
            Self::Tides(workload) => of(registry, workload),
            Self::DbBench(workload) => of(registry, workload),
            Self::Suite(options) => {
                let entries = registry.entries().into_iter().map(|entry| entry.name);
                Some((options.engine.clone(), entries.collect()))
            }
            Self::Harness(_)
            | Self::PowerLoss(_)
            | Self::Soak(_)
            | Self::Space(_)
            | Self::Report(_)
            | Self::Engines { .. } => None,
        }
    }
}

/// Runs the program with more engines instead, if this one lacks what is asked for and that one is there.
fn hand_over<R: Engines>(registry: &R, task: &Task) -> Option<ExitCode> {
    let (engine, known) = task.engine(registry)?;
    if engine != "all" && driver::choose(known, &engine).is_ok() {
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
    let show = |name: &str, kind: &str, description: Description| {
        println!("{name} {}{kind}", description.version);
        for line in description.settings {
            println!("    {line}");
        }
    };
    for entry in entries {
        show(&entry.name, "", entry.description);
    }
    for entry in registry.sql_entries() {
        show(&entry.name, ", in SQL", entry.description);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Entry;
    use crate::suite::cases::{self, Profile};
    use clap::ValueEnum;

    #[test]
    fn every_case_of_the_suite_is_a_command() {
        let template = crate::registry::Builtin.entries().remove(0);
        let entries: Vec<Entry> = ["psitri", "rocksdb", "mdbx", "lmdb", "sqlite", "emdb"]
            .map(|name| Entry {
                name: name.to_owned(),
                ..template.clone()
            })
            .into();
        for &profile in Profile::value_variants() {
            let cases = cases::of(profile, &entries, &["sqlite".to_owned()]);
            assert!(cases.len() > 20, "{} cases", cases.len());
            for case in cases {
                let line = ["psitri-bench"]
                    .into_iter()
                    .chain(case.arguments.iter().map(String::as_str))
                    .chain([
                        "--engine",
                        "psitri",
                        "--json",
                        "out",
                        "--db-path",
                        "db",
                        "--overwrite",
                    ]);
                if let Err(error) = Cli::try_parse_from(line) {
                    panic!("{}: {error}", case.id);
                }
            }
        }
    }
}
