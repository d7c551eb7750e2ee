//! One run: rounds of upserts, the time to close, and the check of what is there when the database is opened again.
use super::config::UpsertConfig;
use super::reader::{self, Shared};
use super::verify;
use crate::clock::Clock;
use crate::device::DeviceWrites;
use crate::disk;
use crate::engine::{Engine, Needs, Settings, Writes};
use crate::memory::MemorySampler;
use crate::progress::Progress;
use crate::report::{Phase, Report, Series, Size, grouped};
use crate::rows;
use crate::values::{TaggedValues, ValueKind};
use crate::workers::{Recorder, StopOnDrop};
use crate::workload::{Run, RunOptions, Workload};
use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::Ordering;

impl Workload for UpsertConfig {
    const NAME: &'static str = "upsert";

    /// Values are checked where they are read; nothing depends on order or on batches being atomic.
    const NEEDS: Needs = Needs {
        ordered: false,
        snapshots: false,
        atomic_batches: false,
        persistent: false,
    };

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> Settings {
        self.engine.settings(self.data_bytes())
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        run_upserts::<E>(self, run)
    }
}

/// A round, as a row of the file.
#[derive(Clone, Debug, Serialize)]
struct Round<'a> {
    engine: &'a str,
    round: u64,
    upserts_total: u64,
    seconds: f64,
    upserts_per_second: f64,
    reads_per_second: f64,
    file_bytes: u64,
}

/// What all rounds together came to.
struct Written<'a> {
    rounds: Vec<Round<'a>>,
    recorder: Recorder<'a>,
    reads: u64,
    checks: Vec<String>,
    failures: Vec<String>,
}

impl Written<'_> {
    fn seconds(&self) -> f64 {
        self.rounds.iter().map(|round| round.seconds).sum()
    }

    /// The rounds do the same work, so this is what one rate for all of them would have to be to take as long.
    fn harmonic_mean(&self) -> f64 {
        let inverse = |round: &Round<'_>| 1.0 / round.upserts_per_second;
        self.rounds.len() as f64 / self.rounds.iter().map(inverse).sum::<f64>()
    }

    fn worst_round(&self) -> f64 {
        let rates = self.rounds.iter().map(|round| round.upserts_per_second);
        rates.fold(f64::INFINITY, f64::min)
    }

    fn best_round(&self) -> f64 {
        let rates = self.rounds.iter().map(|round| round.upserts_per_second);
        rates.fold(0.0, f64::max)
    }

    fn series(&self, name: &str, y_label: &str, y: impl Fn(&Round<'_>) -> f64) -> Series {
        Series {
            name: name.to_owned(),
            x_label: "round".to_owned(),
            y_label: y_label.to_owned(),
            points: self
                .rounds
                .iter()
                .map(|round| (round.round as f64, y(round)))
                .collect(),
        }
    }
}

fn run_upserts<E: Engine>(config: &UpsertConfig, run: &Run<'_>) -> Result<Report> {
    let clock = run.clock;
    let settings = config.settings();
    let kind = ValueKind::new(config.compressible);
    let values = TaggedValues::new(kind, config.value_size as usize);
    let memory = MemorySampler::start();
    let engine = E::create(run.path, &settings).context("cannot create the database")?;

    let writes = DeviceWrites::begin(run.path).context("cannot flush the file system")?;
    let mut written = write_beside_readers(&engine, config, &values, run)?;
    // Without a database to open again, the check must come before the end.
    let mut keys = 0;
    if !E::CAPABILITIES.persistent {
        let (checks, failures) = (&mut written.checks, &mut written.failures);
        keys = verify::contents(&engine, config, &values, checks, failures)?;
    }
    let engine_sizes = engine.sizes().context("cannot ask for sizes")?;
    let close_start = clock.ticks();
    engine.close().context("cannot close the database")?;
    let close_seconds = clock.seconds(close_start, clock.ticks());
    let device_bytes = writes.end().context("cannot flush the file system")?;
    let disk = disk::usage(run.path)?;
    let peak = memory.finish();

    let mut checks = std::mem::take(&mut written.checks);
    let mut failures = std::mem::take(&mut written.failures);
    if E::CAPABILITIES.persistent {
        let engine = E::open(run.path, &settings).context("cannot open the closed database")?;
        keys = verify::contents(&engine, config, &values, &mut checks, &mut failures)?;
        engine.close()?;
    }

    let mut report = Report::new(
        UpsertConfig::NAME,
        run.engine,
        serde_json::to_value(config)?,
    );
    report.checks = checks;
    if !failures.is_empty() {
        report.fail(failures);
        report.memory(&peak);
        return Ok(report);
    }
    let raw_bytes = keys * config.entry_bytes();
    report.phases = phases::<E>(
        config,
        &written,
        close_seconds,
        device_bytes,
        disk,
        raw_bytes,
    );
    report
        .series
        .push(written.series("upserts by round", "upserts/s", |round| {
            round.upserts_per_second
        }));
    report
        .series
        .push(written.series("file size by round", "bytes", |round| {
            round.file_bytes as f64
        }));
    if config.readers > 0 {
        report
            .series
            .push(written.series("reads by round", "reads/s", |round| round.reads_per_second));
    }
    report.size = Some(Size {
        file_bytes: disk.allocated_bytes,
        file_length_bytes: disk.length_bytes,
        data_bytes: engine_sizes.data_bytes,
        log_bytes: engine_sizes.log_bytes,
        reachable_bytes: engine_sizes.reachable_bytes,
        raw_bytes,
    });
    report.memory(&peak);
    if let Some(file) = &config.csv {
        rows::append(file, &written.rounds)?;
    }
    Ok(report)
}

fn phases<E: Engine>(
    config: &UpsertConfig,
    written: &Written<'_>,
    close_seconds: f64,
    device_bytes: Option<u64>,
    disk: disk::DiskUsage,
    raw_bytes: u64,
) -> Vec<Phase> {
    let seconds = written.seconds();
    let (latency, throughput) = (written.recorder.latency(), written.recorder.throughput());
    let mut upserts = Phase {
        commits: Some(config.rounds * config.items.div_ceil(config.batch)),
        latency_us: latency.summary(),
        steadiness: Some(throughput.steadiness()),
        ..Phase::new("upserts", config.upserts(), seconds)
    }
    .with("harmonic_mean_per_second", written.harmonic_mean())
    .with("worst_round_per_second", written.worst_round())
    .with("best_round_per_second", written.best_round());
    if let Some(upserts_in_window) = throughput.window_quantile(0.01) {
        upserts = upserts.with("p1_window_per_second", upserts_in_window as f64);
    }
    if config.readers > 0 {
        upserts.reads = Some(written.reads);
        upserts.reads_per_second = Some(written.reads as f64 / seconds);
    }
    let close = Phase::new("close", 0, close_seconds);
    let mut total = Phase::new("total", config.upserts(), seconds + close_seconds).with(
        "space_amplification",
        disk.allocated_bytes as f64 / raw_bytes as f64,
    );
    total.file_bytes = (disk.allocated_bytes > 0).then_some(disk.allocated_bytes);
    if !E::CAPABILITIES.networked
        && let Some(bytes) = device_bytes
    {
        let written_by_user = config.upserts() * config.entry_bytes();
        total = total.with("write_amplification", bytes as f64 / written_by_user as f64);
    }
    vec![upserts, close, total]
}

fn write_beside_readers<'a, E: Engine>(
    engine: &E,
    config: &UpsertConfig,
    values: &TaggedValues,
    run: &Run<'a>,
) -> Result<Written<'a>> {
    let shared = Shared::default();
    let (written, read) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..config.readers as u64)
            .map(|reader| {
                let shared = &shared;
                scope.spawn(move || reader::run(engine, config, values, reader, shared))
            })
            .collect();
        let stopping = StopOnDrop(&shared.stop);
        let written = write(engine, config, values, run, &shared);
        drop(stopping);
        let read: Result<Vec<reader::Outcome>> = readers
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a reader panicked"))?)
            .collect();
        (written, read)
    });
    let (mut written, read) = (written?, read.context("a reader failed")?);
    written.reads = shared.reads.load(Ordering::Relaxed);
    for (count, what) in [
        (
            read.iter().map(|read| read.missing).sum::<u64>(),
            "did not find their key",
        ),
        (
            read.iter().map(|read| read.wrong).sum(),
            "found a value that was never written to the key",
        ),
        (
            read.iter().map(|read| read.stale).sum(),
            "found a value older than a commit that had returned",
        ),
    ] {
        if count > 0 {
            let failure = format!("{count} of {} concurrent reads {what}", written.reads);
            written.failures.push(failure);
        }
    }
    if config.readers > 0 {
        let reads = grouped(written.reads);
        written
            .checks
            .push(format!("the values of {reads} concurrent reads"));
    }
    Ok(written)
}

/// All rounds, on this thread.
fn write<'a, E: Engine>(
    engine: &E,
    config: &UpsertConfig,
    values: &TaggedValues,
    run: &Run<'a>,
    shared: &Shared,
) -> Result<Written<'a>> {
    let clock: &'a Clock = run.clock;
    let progress = Progress::new("upserts", config.upserts());
    let mut recorder = Recorder::start(clock);
    let mut rounds = Vec::with_capacity(config.rounds as usize);
    let mut value = Vec::with_capacity(config.value_size as usize);
    let mut upsert = 0u64;
    for round in 1..=config.rounds {
        let reads_before = shared.reads.load(Ordering::Relaxed);
        let start = clock.ticks();
        let end = upsert + config.items;
        while upsert < end {
            let batch_end = end.min(upsert + config.batch);
            recorder
                .timed(batch_end - upsert, || {
                    let mut writes = engine.begin_writes()?;
                    for upsert in upsert..batch_end {
                        values.fill(upsert, &mut value);
                        writes.put(&config.key(upsert), &value)?;
                    }
                    writes.commit()
                })
                .with_context(|| format!("a batch of round {round} failed"))?;
            upsert = batch_end;
            shared.committed.store(upsert, Ordering::Release);
        }
        let seconds = clock.seconds(start, clock.ticks());
        progress.at(upsert);
        let reads = shared.reads.load(Ordering::Relaxed) - reads_before;
        rounds.push(Round {
            engine: run.engine,
            round,
            upserts_total: upsert,
            seconds,
            upserts_per_second: config.items as f64 / seconds,
            reads_per_second: reads as f64 / seconds,
            file_bytes: file_bytes(run.path)?,
        });
    }
    Ok(Written {
        rounds,
        recorder,
        reads: 0,
        checks: Vec::new(),
        failures: Vec::new(),
    })
}

fn file_bytes(path: &Path) -> Result<u64> {
    Ok(disk::usage(path)?.allocated_bytes)
}
