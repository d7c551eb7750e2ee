//! Runs the cases of a profile: one process for each engine and round, in alternating order, resumed where it was interrupted.
//!
//! The engines that are close to one another are quick; what takes minutes is far behind, whatever the machine's noise. So runs that are
//! short are repeated more often. A round goes through all cases before the next one begins: what the machine does meanwhile is in one of them.
//!
//! (1) A run that is complete has its report (or the reason why there is none) under its final name, put there by a rename: a suite that
//!     is killed at any moment goes on with the run that it was in.
//! (2) Results of different profiles or cases are never mixed: a directory belongs to the suite that began it, and is refused to another. It
//!     may be given more rounds of the same commit.
//! (3) A run that hangs is killed after a limit of time, and that is its reason.
use super::cases::{self, Profile};
use super::results::{Case, SuiteInfo, case_directory, failed_file, report_file};
use super::{machine, results};
use crate::driver;
use crate::registry::{Engines, NOT_IN_ALL};
use crate::report::Report;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};
use wait_timeout::ChildExt;

/// Runs all workloads on all engines.
#[derive(Args, Clone, Debug)]
pub struct SuiteOptions {
    /// How much: quick is under ten minutes on two cores with all engines, standard an hour or two, full a day
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,

    /// Engines, separated by commas; `all` for every one that is built
    #[arg(long, default_value = "all")]
    pub engine: String,

    /// Runs of each engine in each case; the profile's number without
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,

    /// Runs of those that are short, if that is more; without, what --repeat says, else the profile's number
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat_short: Option<u32>,

    /// A run is short if the first one took no more seconds
    #[arg(long, default_value_t = 45)]
    short_seconds: u64,

    /// Directory of the results, kept from one call to the next; `psitri-bench-PROFILE` without
    #[arg(long)]
    out: Option<PathBuf>,

    /// Directory for the databases; the one for temporary files without
    #[arg(long)]
    db_dir: Option<PathBuf>,

    /// Only cases whose id contains one of these words, separated by commas
    #[arg(long)]
    only: Option<String>,

    /// Throw away what is in the directory of the results and begin anew
    #[arg(long)]
    restart: bool,

    /// Run again what left no report the last time
    #[arg(long)]
    retry_failed: bool,

    /// Seconds after which a run is killed; the profile's number without
    #[arg(long)]
    timeout_seconds: Option<u64>,

    /// Say what would be run, and run nothing
    #[arg(long)]
    list: bool,
}

/// One process.
struct Run<'a> {
    case: &'a Case,
    engine: &'a str,
    round: u32,
}

impl SuiteOptions {
    /// True if every run left a report that passed or does not apply.
    pub fn run<R: Engines>(&self, registry: &R) -> Result<bool> {
        let directory = match &self.out {
            Some(directory) => directory.clone(),
            None => PathBuf::from(format!("psitri-bench-{}", self.profile.name())),
        };
        let info = self.info(registry)?;
        if self.list {
            for case in &info.cases {
                println!("{}: {}", case.id, case.arguments.join(" "));
            }
            return Ok(true);
        }
        if info.cases.is_empty() {
            bail!("no case has one of the words of --only in its id");
        }
        let info = self.begin(&directory, info)?;
        self.run_all(&directory, &info)?;
        let finished = SuiteInfo {
            finished: Some(now()),
            ..info
        };
        finished.save(&directory)?;
        let passed = tell_outcome(&directory)?;
        println!(
            "results in {0}; `psitri-bench report {0}` makes pages of them",
            directory.display()
        );
        Ok(passed)
    }

    fn info<R: Engines>(&self, registry: &R) -> Result<SuiteInfo> {
        let mut entries = registry.entries();
        let mut sql_engines: Vec<String> = registry
            .sql_entries()
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        if self.engine == "all" {
            entries.retain(|entry| !NOT_IN_ALL.contains(&entry.name.as_str()));
        } else {
            let wanted = driver::engines(registry, &self.engine)?;
            entries.retain(|entry| wanted.contains(&entry.name));
            sql_engines.retain(|engine| wanted.contains(engine));
        }
        let mut cases = cases::of(self.profile, &entries, &sql_engines);
        if let Some(only) = &self.only {
            let words: Vec<&str> = only.split(',').map(str::trim).collect();
            cases.retain(|case| words.iter().any(|word| case.id.contains(word)));
        }
        let databases = self.db_dir.clone().unwrap_or_else(std::env::temp_dir);
        Ok(SuiteInfo {
            profile: self.profile.name().to_owned(),
            started: now(),
            finished: None,
            commit: machine::commit(),
            machine: machine::this(&databases),
            engines: entries,
            repeat: self.repeat.unwrap_or_else(|| self.profile.repeat()),
            repeat_short: (self.repeat_short.or(self.repeat))
                .unwrap_or_else(|| self.profile.repeat_short()),
            short_seconds: self.short_seconds,
            cases,
        })
    }

    /// Invariant (2): what is there already belongs to the same suite, or is thrown away because the user said so.
    fn begin(&self, directory: &Path, info: SuiteInfo) -> Result<SuiteInfo> {
        let known = SuiteInfo::load(directory);
        match known {
            Ok(known) if !self.restart => {
                let is_other = (&known.profile, &known.cases) != (&info.profile, &info.cases);
                let has_more = known.repeat > info.repeat || known.rounds() > info.rounds();
                let is_limit_other =
                    known.rounds() > known.repeat && known.short_seconds != info.short_seconds;
                if is_other || has_more || is_limit_other {
                    bail!(
                        "{} holds results of other cases or engines, of more rounds (--repeat, --repeat-short), or of another --short-seconds; choose another --out, or add --restart to throw them away",
                        directory.display()
                    );
                }
                if known.machine != info.machine || known.engines != info.engines {
                    bail!(
                        "{} holds results of another machine or file system, or of other versions or settings of engines: they would be mixed; choose another --out, or add --restart to throw them away",
                        directory.display()
                    );
                }
                if known.commit != info.commit {
                    bail!(
                        "{} holds results of commit {}: those of {} would be mixed with them; choose another --out, or add --restart to throw them away",
                        directory.display(),
                        known.commit.as_deref().unwrap_or("unknown"),
                        info.commit.as_deref().unwrap_or("unknown")
                    );
                }
                let known = SuiteInfo {
                    repeat: info.repeat,
                    repeat_short: info.repeat_short,
                    short_seconds: info.short_seconds,
                    finished: None,
                    ..known
                };
                known.save(directory)?;
                Ok(known)
            }
            Ok(_) => {
                fs::remove_dir_all(directory.join("runs")).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
                info.save(directory)?;
                Ok(info)
            }
            Err(_) if is_free(directory)? => {
                fs::create_dir_all(directory)?;
                info.save(directory)?;
                Ok(info)
            }
            Err(error) => Err(error.context(format!(
                "{} is neither empty nor a directory of results",
                directory.display()
            ))),
        }
    }

    fn run_all(&self, directory: &Path, info: &SuiteInfo) -> Result<()> {
        let runs = all_runs(info);
        let timeout = Duration::from_secs(
            self.timeout_seconds
                .unwrap_or_else(|| self.profile.timeout_seconds()),
        );
        let databases = match &self.db_dir {
            Some(parent) => tempfile::Builder::new()
                .prefix("psitri-bench-")
                .tempdir_in(parent)?,
            None => tempfile::Builder::new().prefix("psitri-bench-").tempdir()?,
        };
        let mut durations = Durations::default();
        let bar = overall_bar(runs.len());
        for (done, run) in runs.iter().enumerate() {
            let (report, failed) = run.files(directory);
            if self.retry_failed && failed.exists() {
                fs::remove_file(&failed)?;
            }
            let is_wanted = run.round < info.repeat || run.is_short(directory, info);
            if !is_wanted || report.exists() || failed.exists() {
                bar.inc(1);
                continue;
            }
            let short = Duration::from_secs(info.short_seconds);
            let left = durations.left(runs[done..].iter().map(|run| {
                let limit = (run.round >= info.repeat).then_some(short);
                (run.case.id.as_str(), run.engine, limit)
            }));
            let message = format!(
                "{} · {}{}{}",
                run.case.id,
                run.engine,
                if info.rounds() > 1 {
                    format!(" (round {} of {})", run.round + 1, info.rounds())
                } else {
                    String::new()
                },
                left.map_or_else(String::new, |left| format!(
                    " · {} left",
                    indicatif::HumanDuration(left)
                ))
            );
            if bar.is_hidden() {
                eprintln!("[{}/{}] {message}", done + 1, runs.len());
            }
            bar.set_message(message);
            let start = Instant::now();
            run.execute(directory, databases.path(), timeout)?;
            durations.note(&run.case.id, run.engine, start.elapsed());
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

fn is_free(directory: &Path) -> Result<bool> {
    match fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", directory.display())),
    }
}

/// Round by round; within a round, case by case, engines in alternating order.
fn all_runs(info: &SuiteInfo) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    for round in 0..info.rounds() {
        for (turn, case) in info.cases.iter().enumerate() {
            for engine in driver::alternating(&case.engines, round, turn) {
                runs.push(Run {
                    case,
                    engine,
                    round,
                });
            }
        }
    }
    runs
}

fn overall_bar(runs: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(4);
    let bar = ProgressBar::with_draw_target(Some(runs as u64), target);
    let template = "{wide_bar} {pos}/{len} [{elapsed}] {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

impl Run<'_> {
    fn files(&self, directory: &Path) -> (PathBuf, PathBuf) {
        (
            report_file(directory, &self.case.id, self.engine, self.round),
            failed_file(directory, &self.case.id, self.engine, self.round),
        )
    }

    /// Whether the first run of the engine in the case was short. One that failed was not.
    fn is_short(&self, directory: &Path, info: &SuiteInfo) -> bool {
        let (report, failed) = Run { round: 0, ..*self }.files(directory);
        let report = driver::read_json::<Report>(&report);
        !failed.exists()
            && report.is_ok_and(|report| report.wall_seconds <= info.short_seconds as f64)
    }

    /// Runs the process. What it prints goes to a file beside its report; only failures of this program are errors.
    fn execute(&self, directory: &Path, databases: &Path, timeout: Duration) -> Result<()> {
        fs::create_dir_all(case_directory(directory, &self.case.id))?;
        let (report, failed) = self.files(directory);
        let log = report.with_extension("log");
        let unfinished = report.with_extension("unfinished");
        let database = databases.join("db");
        let arguments: Vec<OsString> = self.case.arguments.iter().map(OsString::from).collect();
        let output = File::create(&log)?;
        // What a run before left, if this program was killed in it, is not to be taken for what this one leaves.
        remove(&unfinished)?;
        let mut child = driver::child(&arguments, self.engine, &unfinished)?
            .arg("--db-path")
            .arg(&database)
            .arg("--overwrite")
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start a run")?;
        let reason = wait(&mut child, timeout)?;
        remove(&database)?;
        match reason {
            None if unfinished.exists() => {
                fs::rename(&unfinished, &report)?;
                fs::remove_file(&log)?;
            }
            reason => {
                let reason = reason.unwrap_or_else(|| "no report was left".to_owned());
                let said = last_lines(&log, 5);
                fs::write(&failed, format!("{reason}\n{said}"))?;
                remove(&unfinished)?;
            }
        }
        Ok(())
    }
}

/// Why the process left no valid end: a signal, an exit code that is neither 0 (passed) nor 1 (failed, with a report), or the limit.
fn wait(child: &mut Child, timeout: Duration) -> Result<Option<String>> {
    match child.wait_timeout(timeout)? {
        None => {
            // A server that it started would go on beside everything that is measured after it.
            let own = children(child.id());
            child.kill()?;
            child.wait()?;
            for process in own {
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
            Ok(Some(format!("killed after {} s", timeout.as_secs())))
        }
        Some(status) => {
            Ok((!matches!(status.code(), Some(0 | 1))).then(|| format!("ended with {status}")))
        }
    }
}

/// Processes that a process has started itself, as far as the system says.
fn children(process: u32) -> Vec<rustix::process::Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten();
    let listed = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let all: Vec<String> = listed.collect();
    let words = all.iter().flat_map(|line| line.split_whitespace());
    words
        .filter_map(|word| rustix::process::Pid::from_raw(word.parse().ok()?))
        .collect()
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn last_lines(file: &Path, count: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What a run of a case takes, in seconds: the mean of all engines in a standard run on two cores. Only the proportions count: the cases that come first
/// take many times as long as most of the others.
const USUAL_SECONDS: [(&str, f64); 19] = [
    ("bank-batch-1", 55.0),
    ("bank-batch-100", 24.0),
    ("bank-batch-1-one-by-one", 25.0),
    ("bank-batch-100-one-by-one", 13.0),
    ("bank-large", 15.0),
    ("bank-sweep", 37.0),
    ("upsert", 11.0),
    ("upsert-overwrite", 5.0),
    ("upsert-readers", 6.0),
    ("lmdb-style-redb", 39.0),
    ("lmdb-style-emdb", 30.0),
    ("comparative", 4.0),
    ("kv", 1.0),
    ("concurrent-reads", 1.0),
    ("group-commit", 10.0),
    ("write-through", 9.0),
    ("index-hotpath", 8.0),
    ("db-bench", 13.0),
    ("db-bench-threads", 4.0),
];
/// Of a case that is not among them.
const OTHER_SECONDS: f64 = 2.0;

fn usual_seconds(case: &str) -> f64 {
    let known = USUAL_SECONDS.iter().find(|(id, _)| *id == case);
    known.map_or(OTHER_SECONDS, |(_, seconds)| *seconds)
}

/// How long runs took, to say how long the others will take.
#[derive(Default)]
struct Durations {
    cases: BTreeMap<String, Vec<Duration>>,
    /// By case and engine, the last one.
    engines: BTreeMap<(String, String), Duration>,
    seconds: f64,
    usual_seconds: f64,
}

impl Durations {
    fn note(&mut self, case: &str, engine: &str, duration: Duration) {
        let run = (case.to_owned(), engine.to_owned());
        self.engines.insert(run, duration);
        self.cases
            .entry(case.to_owned())
            .or_default()
            .push(duration);
        self.seconds += duration.as_secs_f64();
        self.usual_seconds += usual_seconds(case);
    }

    /// For runs of each of these cases and engines, those left out that take longer than a limit: what the last of the engine in the case took, else the mean
    /// of the case, else what is usual there times what the runs took of what was usual. Nothing before the first.
    fn left<'c>(
        &self,
        runs: impl Iterator<Item = (&'c str, &'c str, Option<Duration>)>,
    ) -> Option<Duration> {
        let speed = (self.usual_seconds > 0.0).then(|| self.seconds / self.usual_seconds)?;
        let of = |case: &str, engine: &str| {
            let own = self.engines.get(&(case.to_owned(), engine.to_owned()));
            match (own, self.cases.get(case)) {
                (Some(own), _) => *own,
                (None, Some(runs)) => runs.iter().sum::<Duration>() / runs.len() as u32,
                (None, None) => Duration::from_secs_f64(usual_seconds(case) * speed),
            }
        };
        let counted = runs.filter_map(|(case, engine, limit)| {
            let duration = of(case, engine);
            limit
                .is_none_or(|limit| duration <= limit)
                .then_some(duration)
        });
        Some(counted.sum())
    }
}

fn tell_outcome(directory: &Path) -> Result<bool> {
    let results = results::Results::load(directory)?;
    let (mut passed, mut without) = (0, Vec::new());
    for case in &results.info.cases {
        for run in results.runs(case) {
            match run.trouble() {
                None => passed += 1,
                Some(why) => without.push(format!("{} · {}: {why}", case.id, run.engine)),
            }
        }
    }
    println!("{passed} runs passed or do not apply");
    without.sort();
    without.dedup();
    for line in &without {
        println!("no figures: {line}");
    }
    Ok(without.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_by_the_case_and_by_the_speed_of_the_machine() {
        let mut durations = Durations::default();
        assert_eq!(durations.left([("kv", "a", None)].into_iter()), None);
        durations.note("bank-batch-1", "a", Duration::from_secs(100));
        durations.note("bank-batch-1", "b", Duration::from_secs(10));
        // As long as is usual: 110 seconds for two runs. A run takes what that engine's took, else the mean of the case, the others what is usual.
        let left = durations.left(
            ["a", "b", "c"]
                .map(|engine| ("bank-batch-1", engine, None))
                .into_iter()
                .chain([("kv", "a", None), ("tides-any", "a", None)]),
        );
        assert_eq!(left, Some(Duration::from_secs(100 + 10 + 55 + 1 + 2)));
        // A case of its own, at a tenth of the speed.
        durations.note("upsert", "a", Duration::from_secs(1100));
        let left = durations
            .left([("upsert", "a", None), ("comparative", "a", None)].into_iter())
            .unwrap();
        assert_eq!(left.as_secs(), 1100 + 4 * 10);
        // Of what is repeated if it is short, the long ones are not.
        let limit = Some(Duration::from_secs(15));
        let left = durations.left(
            ["a", "b", "c"]
                .map(|engine| ("bank-batch-1", engine, limit))
                .into_iter(),
        );
        assert_eq!(left, Some(Duration::from_secs(10)));
    }
}
