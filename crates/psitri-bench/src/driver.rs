//! From the command line to reports: engines one after another, each run in a process of its own, in alternating order.
//!
//! A run of one engine happens in this process. For more, this program starts itself with the same arguments and `--engine` and `--json`
//! put behind them, where they override what stood there. Memory peaks, caches and threads of one engine so never reach the next.
use crate::clock::Clock;
use crate::registry::{Engines, NOT_IN_ALL};
use crate::report::{Report, Validation};
use crate::summary::Summary;
use crate::workload::{Run, RunOptions, Workload};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program with more engines, looked for beside this one.
pub const PEERS_PROGRAM: &str = "psitri-bench-peers";

/// Something that runs on engines of a registry, one at a time, and ends with a report.
pub trait Job {
    fn options(&self) -> &RunOptions;

    /// The engines that it can run on, in the order in which reports show them.
    fn engines<R: Engines>(&self, registry: &R) -> Vec<String>;

    /// Runs on the engine of that name; nothing if there is none.
    fn run<R: Engines>(&self, registry: &R, run: &Run<'_>) -> Result<Option<Report>>;
}

impl<W: Workload> Job for W {
    fn options(&self) -> &RunOptions {
        Workload::options(self)
    }

    fn engines<R: Engines>(&self, registry: &R) -> Vec<String> {
        names(registry)
    }

    fn run<R: Engines>(&self, registry: &R, run: &Run<'_>) -> Result<Option<Report>> {
        registry.run(self, run)
    }
}

/// Runs the job as its options say. True if everything passed or did not apply.
pub fn run<R: Engines, J: Job>(registry: &R, job: &J) -> Result<bool> {
    let options = job.options();
    let engines = choose(job.engines(registry), &options.engine)?;
    if let ([engine], 1) = (engines.as_slice(), options.repeat) {
        let report = run_here(registry, job, engine)?;
        println!("{report}");
        if let Some(file) = &options.json {
            write_json(&report, file)?;
        }
        return Ok(report.validation != Validation::Fail);
    }
    let scratch = tempfile::Builder::new().prefix("psitri-bench-").tempdir()?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (mut reports, mut silent) = (Vec::new(), Vec::new());
    for round in 0..options.repeat {
        for engine in alternating(&engines, round, 0) {
            let json = scratch.path().join("report.json");
            let status = child(&arguments, engine, &json)?.status()?;
            match read_json(&json) {
                Ok(report) => {
                    reports.push(report);
                    fs::remove_file(&json)?;
                }
                // What the others do is worth knowing all the same.
                Err(_) => {
                    silent.push(format!("{engine} ended with {status} and left no report"));
                    eprintln!("{}", silent[silent.len() - 1]);
                }
            }
        }
    }
    let passed = reports
        .iter()
        .all(|report: &Report| report.validation != Validation::Fail);
    if reports.is_empty() {
        bail!("{}", silent.join("; "));
    }
    println!("{}", Summary::new(&reports));
    for line in &silent {
        println!("failed: {line}");
    }
    if let Some(file) = &options.json {
        write_json(&reports, file)?;
    }
    Ok(passed && silent.is_empty())
}

/// The engines that an argument names, all of which the registry has.
pub fn engines<R: Engines>(registry: &R, argument: &str) -> Result<Vec<String>> {
    choose(names(registry), argument)
}

fn names<R: Engines>(registry: &R) -> Vec<String> {
    let entries = registry.entries().into_iter();
    entries.map(|entry| entry.name).collect()
}

/// Those of the engines that are known which an argument names.
pub fn choose(known: Vec<String>, argument: &str) -> Result<Vec<String>> {
    if argument == "all" {
        let in_all = |name: &String| !NOT_IN_ALL.contains(&name.as_str());
        return Ok(known.into_iter().filter(in_all).collect());
    }
    let wanted: Vec<String> = argument
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    if wanted.is_empty() {
        bail!("--engine names no engine; there are: {}", known.join(", "));
    }
    for (position, name) in wanted.iter().enumerate() {
        if !known.contains(name) {
            bail!(
                "there is no engine '{name}' in this program, there are: {}. Other engines are in {PEERS_PROGRAM}: \
                 `cargo build --release -p {PEERS_PROGRAM}`",
                known.join(", ")
            );
        }
        if wanted[..position].contains(name) {
            bail!("--engine names '{name}' twice");
        }
    }
    Ok(wanted)
}

/// The engines in the order of a round: forwards in even rounds, backwards in odd ones, so that none always follows the same other. `turn` says how many
/// go to the end, so that none is always the first: a drive takes what comes first faster.
pub fn alternating(engines: &[String], round: u32, turn: usize) -> Vec<&String> {
    let mut order: Vec<&String> = engines.iter().collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    if !order.is_empty() {
        order.rotate_left(turn % engines.len());
    }
    order
}

/// This program with `arguments`, for one engine.
pub fn child(arguments: &[OsString], engine: &str, json: &Path) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args(["--engine", engine, "--repeat", "1", "--json"])
        .arg(json)
        .stdin(Stdio::null());
    Ok(command)
}

/// The program with more engines, if it was built and is not this one.
pub fn peers_program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let peers = own.with_file_name(format!("{PEERS_PROGRAM}{}", std::env::consts::EXE_SUFFIX));
    (peers != own && peers.is_file()).then_some(peers)
}

fn run_here<R: Engines, J: Job>(registry: &R, job: &J, engine: &str) -> Result<Report> {
    let options = job.options();
    // Both names hold the temporary directory for as long as the database needs it.
    let (temporary, given);
    let path = match &options.db_path {
        Some(path) => {
            given = path.clone();
            make_room(&given, options.overwrite)?;
            given.as_path()
        }
        None => {
            temporary = tempfile::Builder::new().prefix("psitri-bench-").tempdir()?;
            &temporary.path().join("db")
        }
    };
    let run = Run {
        engine,
        path,
        clock: &Clock::new(),
    };
    job.run(registry, &run)?
        .with_context(|| format!("there is no engine '{engine}'"))
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

pub fn write_json<T: serde::Serialize>(value: &T, file: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    fs::write(file, json + "\n").with_context(|| format!("cannot write {}", file.display()))
}

pub fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let json = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&json)
        .with_context(|| format!("{} is not what was written here", file.display()))
}
