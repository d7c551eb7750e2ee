//! One run: the list from front to back, and after each benchmark the check of everything that is there.
//!
//! The check is not timed. It reads the whole database, so each benchmark finds caches as warm as they get.
use super::config::{Benchmark, DbBenchConfig};
use super::contents::Contents;
use super::points::{Found, Order, Step};
use super::scans::Direction;
use super::while_writing::Beside;
use crate::disk;
use crate::engine::{Engine, Needs, Settings};
use crate::memory::MemorySampler;
use crate::reopening;
use crate::report::{Phase, Report, Size, grouped};
use crate::workers::Outcome;
use crate::workload::{Run, RunOptions, Workload};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

impl Workload for DbBenchConfig {
    const NAME: &'static str = "db-bench";

    const NEEDS: Needs = Needs {
        ordered: true,
        snapshots: true,
        atomic_batches: false,
        persistent: false,
    };

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> Settings {
        self.engine.settings(self.num * self.entry_bytes())
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        run_list::<E>(self, run)
    }
}

fn run_list<E: Engine>(config: &DbBenchConfig, run: &Run<'_>) -> Result<Report> {
    let memory = MemorySampler::start();
    let mut contents = Contents::new(config);
    let mut place = Place::new(run.path);
    let mut engine = create::<E>(config, &place)?;
    let mut report = Report::new(
        DbBenchConfig::NAME,
        run.engine,
        serde_json::to_value(config)?,
    );
    let mut failures = Vec::new();
    let mut is_new = true;
    for (step, &benchmark) in (1u64..).zip(&config.benchmarks) {
        if benchmark.empties() && !is_new {
            engine.close().context("cannot close the database")?;
            place.next()?;
            engine = create::<E>(config, &place)?;
            contents.clear();
        }
        is_new = false;
        let done = measure(&engine, &mut contents, run, step, benchmark, &mut failures)
            .with_context(|| format!("{} failed", benchmark.name()))?;
        let name = phase_name(&report.phases, benchmark);
        report.phases.push(Phase { name, ..done });
        contents.check(&engine, &mut failures)?;
        if !failures.is_empty() {
            // What comes next would be measured on a database that is already wrong.
            failures.push(format!("the list ends after {}", benchmark.name()));
            break;
        }
    }
    let start = run.clock.ticks();
    engine.checkpoint().context("the checkpoint failed")?;
    let seconds = run.clock.seconds(start, run.clock.ticks());
    report.phases.push(Phase::new("checkpoint", 0, seconds));
    contents.check(&engine, &mut failures)?;
    let engine_sizes = engine.sizes().context("cannot ask for sizes")?;
    let peak = memory.finish();
    engine.close().context("cannot close the database")?;

    let usage = disk::usage(&place.database())?;
    let keys = contents.keys();
    reopening::check::<E>(
        &place.database(),
        &config.settings(),
        keys,
        &mut report.checks,
        &mut failures,
    )?;
    report.checks.push(format!(
        "after each benchmark and at the end, the number, order and values of all keys; at the end {}",
        grouped(keys)
    ));
    report
        .checks
        .push("whether each get and seek found what is there, and only that".to_owned());
    report.size = Some(Size {
        file_bytes: usage.allocated_bytes,
        file_length_bytes: usage.length_bytes,
        data_bytes: engine_sizes.data_bytes,
        log_bytes: engine_sizes.log_bytes,
        reachable_bytes: engine_sizes.reachable_bytes,
        raw_bytes: keys * config.entry_bytes(),
    });
    report.memory(&peak);
    if !failures.is_empty() {
        report.fail(failures);
    }
    Ok(report)
}

/// Where the database is: below the path of the run, in a directory of its own for each time the list begins anew.
struct Place {
    below: PathBuf,
    generation: u32,
}

impl Place {
    fn new(path: &Path) -> Self {
        Self {
            below: path.to_owned(),
            generation: 1,
        }
    }

    fn directory(&self) -> PathBuf {
        self.below.join(self.generation.to_string())
    }

    fn database(&self) -> PathBuf {
        self.directory().join("db")
    }

    /// Removes the database, which is closed.
    fn next(&mut self) -> Result<()> {
        fs::remove_dir_all(self.directory()).context("cannot remove the database before")?;
        self.generation += 1;
        Ok(())
    }
}

fn create<E: Engine>(config: &DbBenchConfig, place: &Place) -> Result<E> {
    fs::create_dir_all(place.directory())?;
    E::create(&place.database(), &config.settings()).context("cannot create the database")
}

/// The name of the benchmark, and from its second time on a number.
fn phase_name(before: &[Phase], benchmark: Benchmark) -> String {
    let name = benchmark.name();
    let is_same = |phase: &&Phase| {
        phase
            .name
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    match before.iter().filter(is_same).count() {
        0 => name.to_owned(),
        times => format!("{name}_{}", times + 1),
    }
}

fn measure<E: Engine>(
    engine: &E,
    contents: &mut Contents<'_>,
    run: &Run<'_>,
    place: u64,
    benchmark: Benchmark,
    failures: &mut Vec<String>,
) -> Result<Phase> {
    let config = contents.config;
    let step = Step {
        engine,
        contents,
        clock: run.clock,
        step: place,
    };
    let name = benchmark.name();
    let phase = match benchmark {
        Benchmark::FillSeq => wrote(name, config, &step.put(Order::Sequential)?),
        Benchmark::FillRandom | Benchmark::Overwrite => {
            wrote(name, config, &step.put(Order::Random)?)
        }
        Benchmark::DeleteRandom => wrote(name, config, &step.delete()?),
        Benchmark::ReadRandom => read_points(name, &step.get()?, failures),
        Benchmark::ReadMissing => read_points(name, &step.get_missing()?, failures),
        Benchmark::ReadSeq => scanned(
            name,
            &step.scan(Direction::Forwards)?,
            contents.keys(),
            failures,
        ),
        Benchmark::ReadReverse => scanned(
            name,
            &step.scan(Direction::Backwards)?,
            contents.keys(),
            failures,
        ),
        Benchmark::SeekRandom => read_points(name, &step.seek()?, failures),
        Benchmark::ReadWhileWriting => {
            let beside = step.get_while_writing()?;
            note_writes(contents, place, beside.written);
            with_writes(read_points(name, &beside.read, failures), &beside)
        }
        Benchmark::ScanWhileWriting => {
            let beside = step.scan_while_writing()?;
            note_writes(contents, place, beside.written);
            with_writes(read(name, &beside.read, failures), &beside)
        }
    };
    match benchmark {
        Benchmark::FillSeq => (0..config.num).for_each(|number| contents.put(place, number)),
        Benchmark::FillRandom | Benchmark::Overwrite => note_writes(contents, place, config.num),
        Benchmark::DeleteRandom => {
            (0..config.num).for_each(|operation| contents.delete(config.draw(place, operation)));
        }
        _ => {}
    }
    let bytes = disk::usage(run.path)?.allocated_bytes;
    Ok(Phase {
        file_bytes: (bytes > 0).then_some(bytes),
        ..phase
    })
}

/// The first `operations` puts of the benchmark at `step` have happened.
fn note_writes(contents: &mut Contents<'_>, step: u64, operations: u64) {
    let config = contents.config;
    (0..operations).for_each(|operation| contents.put(step, config.draw(step, operation)));
}

fn phase<T>(name: &str, outcome: &Outcome<T>, bytes: u64) -> Phase {
    Phase {
        latency_us: outcome.latency.summary(),
        steadiness: Some(outcome.throughput.steadiness()),
        ..Phase::new(name, outcome.operations, outcome.seconds)
    }
    .with(
        "mib_per_second",
        bytes as f64 / f64::from(1u32 << 20) / outcome.seconds,
    )
}

fn wrote(name: &str, config: &DbBenchConfig, outcome: &Outcome<()>) -> Phase {
    let phase = phase(name, outcome, outcome.operations * config.entry_bytes());
    Phase {
        commits: phase.latency_us.map(|latency| latency.count),
        ..phase
    }
}

fn read(name: &str, outcome: &Outcome<Found>, failures: &mut Vec<String>) -> Phase {
    let found = Found::sum(&outcome.results);
    for (count, defect) in [
        (found.unexpected, "finds are not those expected"),
        (found.wrong, "values are not those written"),
    ] {
        if count > 0 {
            let all = grouped(outcome.operations);
            failures.push(format!("{name}: {count} {defect}, in {all} operations"));
        }
    }
    phase(name, outcome, found.bytes)
}

/// As [`read`], with the share of operations that found their key.
fn read_points(name: &str, outcome: &Outcome<Found>, failures: &mut Vec<String>) -> Phase {
    let found = Found::sum(&outcome.results).found;
    let share = found as f64 / outcome.operations.max(1) as f64;
    read(name, outcome, failures).with("found_share", share)
}

fn scanned(name: &str, outcome: &Outcome<Found>, keys: u64, failures: &mut Vec<String>) -> Phase {
    if outcome.operations != keys {
        let found = outcome.operations;
        failures.push(format!("{name}: {found} entries, expected {keys}"));
    }
    read(name, outcome, failures)
}

fn with_writes(phase: Phase, beside: &Beside) -> Phase {
    let rate = beside.written as f64 / beside.write_seconds;
    phase.with("writes_per_second", rate)
}
