//! One run, from the load to the report.
use super::check::{self, Tallies};
use super::config::TatpConfig;
use super::mix::{DEFINITIONS, Mix};
use super::native::{self, Native};
use super::population::{Rows, population};
use super::sql::{SqlStore, create_tables};
use super::store::{Store, Sums};
use crate::clock::Clock;
use crate::disk;
use crate::latency::Latency;
use crate::memory::{MemorySampler, PeakMemory};
use crate::progress::Progress;
use crate::report::{Phase, Report, Size, grouped};
use crate::sql::engine::{SqlEngine, SqlSettings};
use crate::sql::workload::SqlWorkload;
use crate::throughput::Throughput;
use crate::workload::{Run, RunOptions};
use anyhow::{Context, Result};

const LOAD_BATCH_SUBSCRIBERS: usize = 500;
const NATIVE: &str = "psitri";

impl SqlWorkload for TatpConfig {
    const NAME: &'static str = "tatp";

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> SqlSettings {
        self.settings
    }

    fn native_engines(&self) -> Vec<String> {
        vec![NATIVE.to_owned()]
    }

    fn run_native(&self, run: &Run<'_>) -> Result<Option<Report>> {
        if run.engine != NATIVE {
            return Ok(None);
        }
        let start = run.clock.ticks();
        let memory = MemorySampler::start();
        let mut store =
            Native::create(run.path, &self.settings).context("cannot create the database")?;
        let measured = measure(self, &mut store, run.clock)?;
        let peak = memory.finish();
        store.close().context("cannot close the database")?;
        let mut report = report(self, run, &measured, &peak)?;
        report.description = Some(native::describe(&self.settings));
        report.wall_seconds = run.clock.seconds(start, run.clock.ticks());
        Ok(Some(report))
    }

    fn run<E: SqlEngine>(&self, run: &Run<'_>) -> Result<Report> {
        let memory = MemorySampler::start();
        let engine = E::create(run.path, &self.settings).context("cannot create the database")?;
        create_tables(&engine)?;
        let mut store = SqlStore::new(&engine)?;
        let measured = measure(self, &mut store, run.clock)?;
        drop(store);
        let peak = memory.finish();
        engine.close().context("cannot close the database")?;
        report(self, run, &measured, &peak)
    }
}

struct Measured {
    phases: Vec<Phase>,
    tallies: Tallies,
    sums: Sums,
}

fn measure<S: Store>(config: &TatpConfig, store: &mut S, clock: &Clock) -> Result<Measured> {
    let load = load(config, store, clock).context("the load failed")?;
    let (mut phases, tallies) =
        transactions(config, store, clock).context("the transactions failed")?;
    phases.insert(0, load);
    Ok(Measured {
        phases,
        tallies,
        sums: store.sums().context("cannot add the tables up")?,
    })
}

fn load<S: Store>(config: &TatpConfig, store: &mut S, clock: &Clock) -> Result<Phase> {
    let progress = Progress::new("load", u64::from(config.subscribers));
    let mut rows = population(config.subscribers, config.load_seed);
    let mut loaded = 0;
    let mut ticks = 0;
    loop {
        // Drawing the rows is the harness's own time.
        let batch: Vec<Rows> = rows.by_ref().take(LOAD_BATCH_SUBSCRIBERS).collect();
        if batch.is_empty() {
            break;
        }
        let start = clock.ticks();
        store.load(&batch)?;
        ticks += clock.ticks() - start;
        loaded += batch.len() as u64;
        progress.at(loaded);
    }
    Ok(Phase::new("load", loaded, clock.seconds(0, ticks)))
}

fn transactions<S: Store>(
    config: &TatpConfig,
    store: &mut S,
    clock: &Clock,
) -> Result<(Vec<Phase>, Tallies)> {
    let mix = Mix::new(config.subscribers, config.distribution, config.seed);
    let mut tallies = Tallies::default();
    let mut latencies: Vec<Latency> = DEFINITIONS.iter().map(|_| Latency::new()).collect();
    let mut all = Latency::new();
    let progress = match config.transactions {
        Some(transactions) => Progress::new("transactions", transactions),
        None => Progress::new("seconds", config.duration),
    };
    let start = clock.ticks();
    let duration_nanoseconds = config.duration * 1_000_000_000;
    let mut throughput = Throughput::start(clock, start);
    let mut done = 0;
    let mut now = start;
    for (kind, transaction) in mix {
        let elapsed = clock.nanoseconds(start, now);
        match config.transactions {
            Some(transactions) if done >= transactions => break,
            None if elapsed >= duration_nanoseconds => break,
            _ => {}
        }
        let before = clock.ticks();
        let outcome = store
            .run(&transaction)
            .with_context(|| format!("{transaction:?}"))?;
        now = clock.ticks();
        let nanoseconds = clock.nanoseconds(before, now);
        latencies[kind as usize].record(nanoseconds);
        all.record(nanoseconds);
        tallies[kind as usize].add(&outcome);
        done += 1;
        if throughput.at(now, done) {
            let seconds = elapsed / 1_000_000_000;
            progress.at(config.transactions.map_or(seconds, |_| done));
        }
    }
    let seconds = clock.seconds(start, now);
    let successes = tallies.iter().map(|tally| tally.successes).sum();
    let mut phases = vec![Phase {
        successes: Some(successes),
        latency_us: all.summary(),
        steadiness: Some(throughput.steadiness()),
        ..Phase::new("transactions", done, seconds)
    }];
    for ((definition, tally), latency) in DEFINITIONS.iter().zip(&tallies).zip(&latencies) {
        let Some(latency) = latency.summary() else {
            continue;
        };
        // The time that went into this kind alone.
        let seconds = latency.mean * tally.count as f64 / 1e6;
        let phase = Phase {
            successes: Some(tally.successes),
            latency_us: Some(latency),
            ..Phase::new(definition.name, tally.count, seconds)
        };
        phases.push(
            phase
                .with("average_us", latency.mean)
                .with("success_percent", 100.0 * tally.success_share()),
        );
    }
    Ok((phases, tallies))
}

fn report(
    config: &TatpConfig,
    run: &Run<'_>,
    measured: &Measured,
    peak: &PeakMemory,
) -> Result<Report> {
    let usage = disk::usage(run.path)?;
    let mut report = Report::new(TatpConfig::NAME, run.engine, serde_json::to_value(config)?);
    report.memory(peak);
    report.phases = measured.phases.clone();
    report.size = Some(Size {
        file_bytes: usage.allocated_bytes,
        file_length_bytes: usage.length_bytes,
        raw_bytes: raw_bytes(&measured.sums),
        ..Size::default()
    });
    let mut failures = check::compare(config, &measured.tallies, &measured.sums)?;
    let mix = Mix::new(config.subscribers, config.distribution, config.seed);
    for (definition, tally) in DEFINITIONS.iter().zip(&measured.tallies) {
        if tally.count > 0 && !check::is_explained(definition, tally, &mix) {
            failures.push(format!(
                "{}: {:.1} % succeeded, by the definition {:.1} to {:.1} %",
                definition.name,
                100.0 * tally.success_share(),
                100.0 * definition.success_share.0,
                100.0 * definition.success_share.1
            ));
        }
    }
    let count: u64 = measured.tallies.iter().map(|tally| tally.count).sum();
    report.checks.push(format!(
        "the outcomes of {} transactions and all values they read, and at the end rows and sums of all tables, against a model",
        grouped(count)
    ));
    report
        .checks
        .push("the shares of success against the definition".to_owned());
    if !failures.is_empty() {
        report.fail(failures);
    }
    Ok(report)
}

/// Of the fields of all rows, with integers as narrow as their values.
fn raw_bytes(sums: &Sums) -> u64 {
    let bytes = sums.subscribers * (4 + 15 + 30 + 8)
        + sums.access_infos * (5 + 10)
        + sums.facilities * (5 + 8)
        + sums.forwardings * (6 + 16);
    bytes as u64
}
