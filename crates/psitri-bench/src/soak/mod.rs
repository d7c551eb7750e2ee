//! `soak`: what happens to a database in days of use, in minutes.
//!
//! A worker process transfers, scans, holds snapshots, makes and drops keyspaces, makes backups, checkpoints and compacts, all at
//! once, and checks what it sees. This process lets it run for some seconds, kills it or lets it close the database, and starts
//! another one on what is left, which first checks that nothing is missing. Meanwhile it writes down memory and file sizes: a table (CSV),
//! and charts (SVG).
mod chart;
mod worker;

use crate::{disk, memory};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a worker runs before it is killed or asked to stop.
const RUN_SECONDS: std::ops::Range<u64> = 3..15;
/// How many of a hundred workers are killed; the others close the database.
const KILLED_PERCENT: u32 = 60;
/// How long a worker that was asked to stop may take: it holds snapshots for some seconds, and finishes the backup that it makes.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory and files may grow by this between the first third of the run and the last, and not more.
const GROWTH_FACTOR_MAX: u64 = 2;
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `soak`.
#[derive(Args, Clone, Debug)]
pub struct SoakConfig {
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Accounts that transfers go to and from
    #[arg(long, default_value_t = 100_000)]
    accounts: u32,
    /// Size of the write buffer in MiB
    #[arg(long, default_value_t = 16)]
    write_buffer_mib: u64,
    /// Seed of everything random; threads still meet by chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the table and the charts
    #[arg(long, default_value = "psitri-bench-soak")]
    out: PathBuf,
    /// Directory for the database; one for temporary files without
    #[arg(long)]
    db_dir: Option<PathBuf>,
    /// Runs a worker on this database
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
    /// What the workers before are known to have committed
    #[arg(long, hide = true, default_value_t = 0)]
    acknowledged: u64,
}

/// One line of the table.
#[derive(Clone, Debug, Default, serde::Serialize)]
struct Sample {
    second: f64,
    worker: u32,
    anonymous_bytes: u64,
    data_bytes: u64,
    log_bytes: u64,
    commits: u64,
    scans: u64,
    held_snapshots: u64,
    backups: u64,
}

/// A column of the table that must not grow without bound.
struct Figure {
    label: &'static str,
    of: fn(&Sample) -> u64,
}

/// What workers say: the last line of each kind.
#[derive(Clone, Debug, Default)]
struct Said {
    progress: worker::Progress,
    opened: bool,
    open_ms_max: f64,
    failure: Option<String>,
}

impl SoakConfig {
    pub fn run(&self) -> Result<bool> {
        if let Some(database) = &self.worker {
            return worker::run(self, database);
        }
        fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot create {}", self.out.display()))?;
        let directory = match &self.db_dir {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        let mut soak = Soak {
            config: self,
            database: directory.path().join("db"),
            random: fastrand::Rng::with_seed(self.seed),
            start: Instant::now(),
            said: Arc::default(),
            done: worker::Progress::default(),
            samples: Vec::new(),
            table: csv::Writer::from_path(self.out.join("soak.csv"))?,
        };
        let (mut workers, mut killed) = (0, 0);
        while soak.start.elapsed().as_secs() < self.seconds {
            workers += 1;
            killed += u32::from(soak.run_worker(workers)?);
        }
        soak.table.flush()?;
        chart::write(&self.out, &soak.samples)?;
        let said = soak.said();
        println!(
            "{workers} workers, {killed} of them killed; {} commits, {} scans, {} held snapshots, {} backups; opened in {:.0} ms at most",
            soak.done.commits,
            soak.done.scans,
            soak.done.held_snapshots,
            soak.done.backups,
            said.open_ms_max,
        );
        let is_bounded = soak.is_bounded();
        println!("table and charts in {}", self.out.display());
        println!("{}", if is_bounded { "PASS" } else { "FAIL" });
        Ok(is_bounded)
    }
}

struct Soak<'c> {
    config: &'c SoakConfig,
    database: PathBuf,
    random: fastrand::Rng,
    start: Instant,
    said: Arc<Mutex<Said>>,
    /// What workers that are gone did.
    done: worker::Progress,
    samples: Vec<Sample>,
    table: csv::Writer<fs::File>,
}

impl Soak<'_> {
    fn said(&self) -> Said {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    /// One worker, from its start to its end. Says whether it was killed.
    fn run_worker(&mut self, number: u32) -> Result<bool> {
        let seconds = self.random.u64(RUN_SECONDS);
        let is_killed = self.random.u32(..100) < KILLED_PERCENT;
        let (mut child, reader) = self.start_worker(number)?;
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && child.try_wait()?.is_none() {
            std::thread::sleep(SAMPLE_INTERVAL.min(end - Instant::now()));
            self.sample(number, child.id())?;
        }
        if is_killed {
            child.kill()?;
        } else {
            // It stops when its input ends.
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                bail!("worker {number} did not stop");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // The pipe may hold what it said last.
        let _ = reader.join();
        let said = self.said();
        if let Some(failure) = said.failure {
            bail!("worker {number}: {failure}");
        }
        let is_well = status.success() && said.opened;
        if !is_killed && !is_well {
            bail!("worker {number} ended with {status}");
        }
        // Commits are counted in the database.
        self.done.commits = self.done.commits.max(said.progress.commits);
        self.done.scans += said.progress.scans;
        self.done.held_snapshots += said.progress.held_snapshots;
        self.done.backups += said.progress.backups;
        Ok(is_killed)
    }

    fn start_worker(&self, number: u32) -> Result<(Child, JoinHandle<()>)> {
        let config = self.config;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("soak")
            .args(["--worker".as_ref(), self.database.as_os_str()])
            .args(["--acknowledged", &self.done.commits.to_string()])
            .args(["--accounts", &config.accounts.to_string()])
            .args(["--write-buffer-mib", &config.write_buffer_mib.to_string()])
            .args([
                "--seed",
                &(config.seed * 1000 + u64::from(number)).to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let output = child.stdout.take().expect("piped");
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.progress = worker::Progress::default();
            said.opened = false;
        }
        let said = Arc::clone(&self.said);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                match worker::Line::parse(&line) {
                    Some(worker::Line::Opened { ms }) => {
                        said.opened = true;
                        said.open_ms_max = said.open_ms_max.max(ms);
                    }
                    Some(worker::Line::Progress(progress)) => said.progress = progress,
                    Some(worker::Line::Failed(what)) => said.failure = Some(what),
                    // Cut off by a kill.
                    None => {}
                }
            }
        });
        Ok((child, reader))
    }

    fn sample(&mut self, worker: u32, pid: u32) -> Result<()> {
        let progress = self.said().progress;
        let log_bytes = bytes_of(&self.database, "log-")?;
        let sample = Sample {
            second: self.start.elapsed().as_secs_f64(),
            worker,
            anonymous_bytes: memory::anonymous_bytes(pid).unwrap_or(0),
            data_bytes: bytes_of(&self.database, "data")?,
            log_bytes,
            commits: self.done.commits.max(progress.commits),
            scans: self.done.scans + progress.scans,
            held_snapshots: self.done.held_snapshots + progress.held_snapshots,
            backups: self.done.backups + progress.backups,
        };
        self.table.serialize(&sample)?;
        self.samples.push(sample);
        Ok(())
    }

    /// Whether the last third of the run took about as much as the first.
    fn is_bounded(&self) -> bool {
        let third = self.samples.len() / 3;
        if third == 0 {
            return true;
        }
        let (first, last) = (&self.samples[..third], &self.samples[2 * third..]);
        let figures = [
            Figure {
                label: "memory",
                of: |sample| sample.anonymous_bytes,
            },
            Figure {
                label: "files",
                of: |sample| sample.data_bytes + sample.log_bytes,
            },
        ];
        figures.into_iter().fold(true, |all, Figure { label, of }| {
            let most = |part: &[Sample]| part.iter().map(of).max().unwrap_or(0);
            let (before, after) = (most(first), most(last));
            let is_bounded = after <= before * GROWTH_FACTOR_MAX + GROWTH_BYTES_MAX;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{label}: at most {:.1} MiB in the first third, {:.1} MiB in the last{}",
                mib(before),
                mib(after),
                if is_bounded { "" } else { ": it grows" },
            );
            all && is_bounded
        })
    }
}

/// Blocks of the database's files whose names begin with `prefix`.
fn bytes_of(database: &Path, prefix: &str) -> Result<u64> {
    // Not there yet, or a file that was removed a moment ago.
    let Ok(files) = fs::read_dir(database) else {
        return Ok(0);
    };
    let mut bytes = 0;
    for file in files {
        let file = file?;
        if file
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_bytes())
        {
            bytes += disk::file_usage(&file.path())?.allocated_bytes;
        }
    }
    Ok(bytes)
}

/// Flushes what the worker says; the other end may be gone.
fn say(line: &worker::Line) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
