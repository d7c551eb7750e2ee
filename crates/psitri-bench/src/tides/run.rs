//! One run: the database filled and closed if that is not what is measured, the operations, the full scan, the end.
use super::check::{self, Scan};
use super::config::{Kind, TidesConfig};
use super::operations::{Context, Found, RangeRead};
use super::patterns;
use super::row::{Resources, Row};
use crate::device::DeviceWrites;
use crate::disk;
use crate::engine::{Engine, Needs, Settings};
use crate::memory::MemorySampler;
use crate::reopening;
use crate::report::{Phase, Report, Size, grouped};
use crate::rows;
use crate::usage::{self, Usage};
use crate::values::Values;
use crate::workers::Outcome;
use crate::workload::{Run, RunOptions, Workload};
use anyhow::{Context as _, Result};

impl Workload for TidesConfig {
    const NAME: &'static str = "tides";

    /// A full scan in order ends every run.
    const NEEDS: Needs = Needs {
        ordered: true,
        snapshots: false,
        atomic_batches: false,
        persistent: false,
    };

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> Settings {
        self.engine.settings(self.operations * self.entry_bytes())
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        run_tides::<E>(self, run)
    }
}

/// What the measured part leaves behind.
#[derive(Default)]
struct Measured {
    phases: Vec<Phase>,
    ranges: Vec<RangeRead>,
    checks: Vec<String>,
    failures: Vec<String>,
}

impl Measured {
    fn add<T>(&mut self, name: &str, outcome: &Outcome<T>) {
        self.phases.push(Phase {
            commits: None,
            latency_us: outcome.latency.summary(),
            steadiness: Some(outcome.throughput.steadiness()),
            ..Phase::new(name, outcome.operations, outcome.seconds)
        });
    }

    fn add_reads(&mut self, name: &str, mut outcome: Outcome<Found>) {
        self.add(name, &outcome);
        let operations = outcome.operations;
        check::found(name, operations, &outcome.results, &mut self.failures);
        let operations = grouped(operations);
        self.checks.push(format!(
            "key and value of each of {operations} {name} operations"
        ));
        let entries: u64 = outcome.results.iter().map(|found| found.entries).sum();
        if entries > 0
            && let Some(phase) = self.phases.last_mut()
        {
            let rate = entries as f64 / outcome.seconds;
            phase.figures.insert("entries_per_second".to_owned(), rate);
        }
        for found in &mut outcome.results {
            self.ranges.append(&mut found.ranges);
        }
    }

    /// Puts and deletes: a sample is a batch.
    fn add_writes(&mut self, name: &str, outcome: &Outcome<()>) {
        self.add(name, outcome);
        if let Some(phase) = self.phases.last_mut() {
            phase.commits = phase.latency_us.map(|latency| latency.count);
        }
    }
}

fn run_tides<E: Engine>(config: &TidesConfig, run: &Run<'_>) -> Result<Report> {
    let clock = run.clock;
    let settings = config.settings();
    let values = Values::new(config.values, config.value_size as usize);
    let mut memory = MemorySampler::start();
    let mut engine = E::create(run.path, &settings).context("cannot create the database")?;
    let mut measured = Measured::default();

    if config.workload.populates() {
        let start = clock.ticks();
        let context = Context {
            engine: &engine,
            config,
            values: &values,
            clock,
        };
        context
            .put(config.populate_batch())
            .context("filling the database failed")?;
        engine = at_rest(engine, run, &settings)?;
        let seconds = clock.seconds(start, clock.ticks());
        measured.phases.push(Phase::new("populate", 0, seconds));
        memory.forget_peaks();
    }

    let writes = DeviceWrites::begin(run.path).context("cannot flush the file system")?;
    let usage_before = Usage::now();
    let start = clock.ticks();
    let context = Context {
        engine: &engine,
        config,
        values: &values,
        clock,
    };
    operations(&context, &mut measured).context("an operation failed")?;
    let usage_of_operations = Usage::now().since(&usage_before);
    let scan = check::timed_scan(&engine, clock).context("the full scan failed")?;
    measured
        .phases
        .push(Phase::new("iter", scan.entries, scan.seconds));
    let usage_with_scan = Usage::now();

    // The harness's own work, which is in none of the figures.
    let paused = clock.ticks();
    let peak = memory.finish();
    let keys = verify(&engine, config, &values, scan, &mut measured)?;
    let engine_sizes = engine.sizes().context("cannot ask for sizes")?;
    let usage_resumed = Usage::now();
    let resumed = clock.ticks();

    engine.close().context("cannot close the database")?;
    let end = clock.ticks();
    let closing = Usage::now().since(&usage_resumed);
    let device_bytes = writes.end().context("cannot flush the file system")?;
    measured
        .phases
        .push(Phase::new("close", 0, clock.seconds(resumed, end)));
    let disk = disk::usage(run.path)?;
    let (checks, failures) = (&mut measured.checks, &mut measured.failures);
    reopening::check::<E>(run.path, &settings, keys, checks, failures)?;

    let mut report = Report::new(TidesConfig::NAME, run.engine, serde_json::to_value(config)?);
    report.checks = measured.checks;
    report.memory(&peak);
    if !measured.failures.is_empty() {
        report.fail(measured.failures);
        return Ok(report);
    }
    let seconds = clock.seconds(start, paused) + clock.seconds(resumed, end);
    let logical_bytes = config.operations * config.entry_bytes();
    let used = usage_with_scan.since(&usage_before);
    let sum = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
    let embedded = !E::CAPABILITIES.networked;
    let writes = matches!(config.workload, Kind::Write | Kind::Mixed | Kind::Delete);
    let reads = config.workload != Kind::Write && config.workload != Kind::Delete;
    let user_seconds = sum(used.user_seconds, closing.user_seconds).filter(|_| embedded);
    let system_seconds = sum(used.system_seconds, closing.system_seconds).filter(|_| embedded);
    let read_bytes = usage_of_operations.read_bytes.filter(|_| embedded);
    let written_bytes = device_bytes.filter(|_| embedded);
    let ratio = |bytes: u64, of: u64| bytes as f64 / of as f64;
    let raw_bytes = keys * config.entry_bytes();
    let resources = Resources {
        resident_bytes_peak: peak.resident_bytes,
        address_space_bytes_peak: usage::address_space_bytes_peak(),
        read_bytes,
        written_bytes,
        user_seconds,
        system_seconds,
        cpu_percent: sum(user_seconds, system_seconds).map(|used| 100.0 * used / seconds),
        database_bytes: disk.allocated_bytes,
        write_amplification: written_bytes
            .filter(|_| writes)
            .map(|bytes| ratio(bytes, logical_bytes)),
        read_amplification: read_bytes
            .filter(|_| reads)
            .map(|bytes| ratio(bytes, logical_bytes)),
        space_amplification: (raw_bytes > 0).then(|| ratio(disk.allocated_bytes, raw_bytes)),
    };
    measured.phases.push(total(seconds, &resources));
    if let Some(file) = &config.csv {
        let row = |phase| Row::new(run.engine, config, phase, &resources);
        let all: Vec<Row> = measured.phases.iter().filter_map(row).collect();
        rows::append(file, &all)?;
    }
    report.phases = measured.phases;
    report.size = Some(Size {
        file_bytes: disk.allocated_bytes,
        file_length_bytes: disk.length_bytes,
        data_bytes: engine_sizes.data_bytes,
        log_bytes: engine_sizes.log_bytes,
        reachable_bytes: engine_sizes.reachable_bytes,
        raw_bytes,
    });
    Ok(report)
}

/// Closes the database and opens it again, so that what comes next finds neither a write buffer nor merges under way.
fn at_rest<E: Engine>(engine: E, run: &Run<'_>, settings: &Settings) -> Result<E> {
    engine.checkpoint().context("the checkpoint failed")?;
    if !E::CAPABILITIES.persistent {
        return Ok(engine);
    }
    engine.close().context("cannot close the database")?;
    E::open(run.path, settings).context("cannot open the closed database")
}

fn operations<E: Engine>(context: &Context<'_, E>, measured: &mut Measured) -> Result<()> {
    let batch = context.config.batch;
    match context.config.workload {
        Kind::Write => measured.add_writes("put", &context.put(batch)?),
        Kind::Mixed => {
            measured.add_writes("put", &context.put(batch)?);
            measured.add_reads("get", context.get()?);
        }
        Kind::Read => measured.add_reads("get", context.get()?),
        Kind::Delete => measured.add_writes("delete", &context.delete(batch)?),
        Kind::Seek => measured.add_reads("seek", context.seek()?),
        Kind::Range => measured.add_reads("range", context.range()?),
    }
    Ok(())
}

/// Compares what is there with what was written; gives the number of keys.
fn verify<E: Engine>(
    engine: &E,
    config: &TidesConfig,
    values: &Values,
    scan: Scan,
    measured: &mut Measured,
) -> Result<u64> {
    let expected = match config.workload {
        // Every key that was written was deleted.
        Kind::Delete => 0,
        _ => patterns::distinct(config),
    };
    let failures = &mut measured.failures;
    if scan.entries != expected {
        let found = scan.entries;
        failures.push(format!(
            "the timed scan finds {found} keys, expected {expected}"
        ));
    }
    check::contents(engine, config, values, expected, &measured.ranges, failures)
        .context("the scan that checks failed")?;
    measured.checks.push(format!(
        "the number, order and values of {} keys at the end",
        grouped(expected)
    ));
    if !measured.ranges.is_empty() {
        let ranges = grouped(measured.ranges.len() as u64);
        measured
            .checks
            .push(format!("that {ranges} of the ranges left nothing out"));
    }
    Ok(expected)
}

/// The operations, the full scan and closing together.
fn total(seconds: f64, resources: &Resources) -> Phase {
    let mut phase = Phase::new("total", 0, seconds);
    phase.file_bytes = (resources.database_bytes > 0).then_some(resources.database_bytes);
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    for (name, value) in [
        ("cpu_user_seconds", resources.user_seconds),
        ("cpu_system_seconds", resources.system_seconds),
        ("cpu_percent", resources.cpu_percent),
        ("disk_read_bytes", bytes(resources.read_bytes)),
        ("disk_written_bytes", bytes(resources.written_bytes)),
        ("write_amplification", resources.write_amplification),
        ("read_amplification", resources.read_amplification),
        ("space_amplification", resources.space_amplification),
    ] {
        if let Some(value) = value {
            phase.figures.insert(name.to_owned(), value);
        }
    }
    phase
}
