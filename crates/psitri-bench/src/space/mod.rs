//! `space`: how much larger than what it holds a database becomes, while it is used and afterwards.
//!
//! Each workload runs on a new database of `psitri`. Beside it a thread writes down, several times a second, the blocks of the data file
//! and of the log, and the bytes of nodes and values that are reachable. What is reported is the greatest ratio of data file to reachable
//! bytes, from the moment when the database is larger than 16 MiB, and the ratio at the end, after a checkpoint and after a compaction:
//! a table (CSV), a line of JSON for each phase, and a chart (SVG) for each workload.
mod chart;
mod sampler;
mod workloads;

use crate::{disk, engines::psitri::Psitri};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use psitri::Database;
use sampler::{Reading, Sample, Sampler};
use serde::Serialize;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The ratio that the data file may have to what is reachable, while it is used.
const RATIO_MAX: f64 = 1.25;
/// What comes on top whatever the database holds: pieces by which the file grows and a merge writes, and what is left free for merges that are under way.
const FIXED_BYTES_MAX: u64 = 20 << 20;
/// Name of the phase that compacts.
const COMPACT: &str = "compact";
/// The same after a compaction.
const RATIO_COMPACTED_MAX: f64 = 1.02;
/// Smaller databases than this say little: what they take whatever they hold is a large share of it.
const REACHABLE_BYTES_MIN: u64 = 16 << 20;

/// Arguments of `space`.
#[derive(Args, Clone, Debug)]
pub struct SpaceConfig {
    /// Share of the full size; 0.01 takes seconds
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Only these workloads
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Milliseconds between two samples
    #[arg(long, default_value_t = 200)]
    sample_ms: u64,
    /// Size of the write buffer in MiB; the engine's default without
    #[arg(long)]
    write_buffer_mib: Option<u64>,
    /// Seed of everything random
    #[arg(long, default_value_t = 12345)]
    seed: u64,
    /// Directory of the tables and charts
    #[arg(long, default_value = "psitri-bench-space")]
    out: PathBuf,
    /// Directory for the databases; one for temporary files without
    #[arg(long)]
    db_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// 10M attempts of transfers between 1M accounts
    Bank,
    /// 20 rounds of overwriting 5M values of 100 bytes, in random order
    Overwrite,
    /// Nine of ten of 10M keys removed, in random order
    Delete,
    /// Every second one of 1,000 keyspaces dropped
    Drop,
    /// The bank beside a snapshot from before its first transfer
    Reader,
    /// Values of 256 B, 4 KiB, 1 MiB and 1 GiB written, overwritten, read and removed
    Values,
}

impl Kind {
    fn name(self) -> String {
        self.to_possible_value()
            .expect("none is skipped")
            .get_name()
            .to_owned()
    }

    /// Whether the ratio is promised while the workload runs. A snapshot holds what it sees, and a value that is overwritten is there twice.
    fn is_bounded(self) -> bool {
        !matches!(self, Kind::Reader | Kind::Values)
    }
}

/// What one phase of a workload came to: a line of JSON.
#[derive(Clone, Debug, Serialize)]
struct Row {
    workload: Kind,
    phase: String,
    seconds: f64,
    /// Processor time of the process.
    processor_seconds: Option<f64>,
    operations: u64,
    /// Greatest ratio of a sample, if one was large enough.
    ratio_max: Option<f64>,
    end: Reading,
    /// Samples that were large enough.
    samples: usize,
    /// Those of them with more in the file than [`RATIO_MAX`] and [`FIXED_BYTES_MAX`] allow.
    samples_over: usize,
    /// Ratio at the end.
    ratio_end: Option<f64>,
    /// More about the phase, in words.
    remarks: Vec<String>,
}

/// One workload that goes on.
struct Space<'c> {
    config: &'c SpaceConfig,
    kind: Kind,
    directory: PathBuf,
    start: Instant,
    samples: Vec<Sample>,
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl SpaceConfig {
    pub fn run(&self) -> Result<bool> {
        ensure!(
            self.scale > 0.0 && self.scale <= 100.0,
            "--scale is a number above 0 and up to 100"
        );
        ensure!(self.sample_ms > 0, "--sample-ms is at least 1");
        fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot create {}", self.out.display()))?;
        let kinds = if self.only.is_empty() {
            Kind::value_variants()
        } else {
            &self.only
        };
        let mut json = fs::File::create(self.out.join("space.json"))?;
        let mut is_well = true;
        for &kind in kinds {
            let directory = match &self.db_dir {
                Some(parent) => tempfile::tempdir_in(parent)?,
                None => tempfile::tempdir()?,
            };
            let mut space = Space {
                config: self,
                kind,
                directory: directory.path().join("db"),
                start: Instant::now(),
                samples: Vec::new(),
                rows: Vec::new(),
                failures: Vec::new(),
            };
            match kind {
                Kind::Bank => space.bank()?,
                Kind::Overwrite => space.overwrite()?,
                Kind::Delete => space.delete()?,
                Kind::Drop => space.drop_keyspaces()?,
                Kind::Reader => space.reader()?,
                Kind::Values => space.values()?,
            }
            let mut table = csv::Writer::from_path(self.out.join(format!("{}.csv", kind.name())))?;
            for sample in &space.samples {
                table.serialize(sample)?;
            }
            table.flush()?;
            chart::write(&self.out, &kind.name(), &space.samples)?;
            for row in &space.rows {
                writeln!(json, "{}", serde_json::to_string(row)?)?;
            }
            for failure in &space.failures {
                println!("{}: {failure}", kind.name());
            }
            is_well &= space.failures.is_empty();
        }
        println!("tables and charts in {}", self.out.display());
        println!("{}", if is_well { "PASS" } else { "FAIL" });
        Ok(is_well)
    }

    fn scaled(&self, count: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(1)
    }
}

impl Space<'_> {
    fn create(&self) -> Result<Psitri> {
        use crate::engine::{Engine, Settings};
        let settings = Settings {
            write_buffer_bytes: self.config.write_buffer_mib.map(|mib| mib << 20),
            ..Settings::default()
        };
        Psitri::create(&self.directory, &settings)
    }

    /// Runs a phase, with samples being taken meanwhile. `work` returns the number of operations.
    fn phase(
        &mut self,
        database: &Database,
        name: &str,
        work: impl FnOnce(&mut Vec<String>) -> Result<u64>,
    ) -> Result<&Row> {
        let sampler = Sampler {
            database,
            directory: &self.directory,
            start: self.start,
            phase: name,
        };
        let interval = Duration::from_millis(self.config.sample_ms);
        let usage = crate::usage::Usage::now();
        let start = Instant::now();
        let mut remarks = Vec::new();
        let (operations, mut samples) = sampler.beside(interval, || work(&mut remarks))?;
        let seconds = start.elapsed().as_secs_f64();
        let used = crate::usage::Usage::now().since(&usage);
        let end = sampler.take()?;
        samples.push(end.clone());
        let large: Vec<Reading> = samples
            .iter()
            .map(|sample| sample.reading)
            .filter(|reading| reading.reachable_bytes >= REACHABLE_BYTES_MIN)
            .collect();
        let ratio_max = large.iter().map(Reading::ratio).max_by(f64::total_cmp);
        let is_over = |reading: &&Reading| {
            let allowed = reading.reachable_bytes as f64 * RATIO_MAX + FIXED_BYTES_MAX as f64;
            reading.data_bytes as f64 > allowed
        };
        let samples_over = large.iter().filter(is_over).count();
        let row = Row {
            workload: self.kind,
            phase: name.to_owned(),
            seconds,
            processor_seconds: used
                .user_seconds
                .zip(used.system_seconds)
                .map(|(u, s)| u + s),
            operations,
            ratio_max,
            samples: large.len(),
            samples_over,
            ratio_end: (end.reading.reachable_bytes >= REACHABLE_BYTES_MIN)
                .then(|| end.reading.ratio()),
            end: end.reading,
            remarks,
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let ratio =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        println!(
            "{:<9} {:<22} {:>7.1} s, {:>6.1} s of processors; file {:>7.1} MiB, log {:>6.1} MiB, reachable {:>7.1} MiB; ratio {} at most, {} at the end",
            self.kind.name(),
            row.phase,
            row.seconds,
            row.processor_seconds.unwrap_or(0.0),
            mib(row.end.data_bytes),
            mib(row.end.log_bytes),
            mib(row.end.reachable_bytes),
            ratio(row.ratio_max),
            ratio(row.ratio_end),
        );
        for remark in &row.remarks {
            println!("          {remark}");
        }
        // A compaction writes a keyspace anew beside the old one: that is what it is asked for.
        if self.kind.is_bounded() && name != COMPACT && row.samples_over > 0 {
            self.failures.push(format!(
                "{name}: in {} of {} samples the file was larger than {RATIO_MAX} times what was reachable and {} MiB",
                row.samples_over,
                row.samples,
                FIXED_BYTES_MAX >> 20
            ));
        }
        self.samples.append(&mut samples);
        self.rows.push(row);
        Ok(self.rows.last().expect("just pushed"))
    }

    /// A checkpoint and a compaction, each a phase.
    fn settle(&mut self, database: &Database) -> Result<()> {
        self.phase(database, "checkpoint", |_| {
            database.checkpoint()?;
            Ok(1)
        })?;
        let row = self.phase(database, COMPACT, |_| {
            database.compact()?;
            Ok(1)
        })?;
        if let Some(ratio) = row.ratio_end.filter(|&ratio| ratio > RATIO_COMPACTED_MAX) {
            self.failures
                .push(format!("the ratio is {ratio:.3} after a compaction"));
        }
        let report = database.verify()?;
        if let Some(error) = report.errors.first() {
            bail!("the database is damaged: {error}");
        }
        Ok(())
    }
}

/// Blocks of the data file, and of everything else.
fn file_bytes(directory: &Path) -> Result<(u64, u64)> {
    let data = disk::file_usage(&directory.join("data"))?.allocated_bytes;
    let all = disk::usage(directory)?.allocated_bytes;
    Ok((data, all.saturating_sub(data)))
}
