//! `kv`: a thousand entries `k0` = `v0`, `k1` = `v1` and so on, put, read and removed one at a time.
//!
//! What is different from emdb's `kv` and why:
//! - the original's insert and remove figures contain the opening of a database and, for the removals, the insertions. Here the database is
//!   opened outside of the timer and its time is the figure `open_ms`; `kv_remove` is the removals and nothing else. The count at the end of
//!   both is inside, as there;
//! - the original reads the newest state at each get. Here one iteration reads from one snapshot; `concurrent-reads` measures both ways.
use super::databases::Databases;
use super::entries::{self, Entry, borrowed};
use crate::engine::{Engine, Needs, ReadMode, Settings};
use crate::memory::MemorySampler;
use crate::report::{Report, grouped};
use crate::sampling::{self, SteadyOptions};
use crate::summary::Spread;
use crate::workload::{EngineOptions, Run, RunOptions, Workload};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
pub struct Kv {
    /// Number of entries
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,

    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SteadyOptions,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

fn short(count: u64) -> Vec<Entry> {
    (0..count)
        .map(|number| {
            (
                format!("k{number}").into_bytes(),
                format!("v{number}").into_bytes(),
            )
        })
        .collect()
}

impl Workload for Kv {
    const NAME: &'static str = "kv";
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
        self.engine.settings(self.records * 16)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let (clock, settings) = (run.clock, self.settings());
        let entries = short(self.records);
        let memory = MemorySampler::start();
        let mut databases = Databases::new(run);
        let mut failures = Vec::new();
        let mut open_seconds = Vec::new();

        let inserting = self.sampling.take(|| {
            let database = databases.create::<E>(settings)?;
            let engine = &database.engine;
            let start = clock.ticks();
            for (key, value) in &entries {
                entries::put(engine, key, value)?;
            }
            let counted = entries::count(engine)?;
            let seconds = clock.seconds(start, clock.ticks());
            expect_count(&mut failures, "kv_insert", counted, self.records);
            failures.extend(entries::audit(engine, "kv_insert", &entries)?);
            open_seconds.push(database.open_seconds);
            database.discard()?;
            Ok(seconds)
        })?;
        let opening = Spread::of(&open_seconds).context("at least one database was opened")?;
        report.phases.push(
            sampling::phase("kv_insert", self.records, &inserting)
                .with("open_ms", opening.median * 1e3),
        );

        let database = databases.create::<E>(settings)?;
        database.engine.bulk_load(borrowed(&entries))?;
        database.engine.recall_load()?;
        let mut wrong = 0;
        let getting = self.sampling.take(|| {
            let start = clock.ticks();
            let mut snapshot = database.engine.snapshot(ReadMode::Latest)?;
            for entry in &entries {
                wrong += entries::wrong(&mut snapshot, entry)?;
            }
            Ok(clock.seconds(start, clock.ticks()))
        })?;
        database.discard()?;
        expect_count(&mut failures, "wrong values in kv_get", wrong, 0);
        report
            .phases
            .push(sampling::phase("kv_get", self.records, &getting));

        let removing = self.sampling.take(|| {
            let database = databases.create::<E>(settings)?;
            let engine = &database.engine;
            for (key, value) in &entries {
                entries::put(engine, key, value)?;
            }
            let start = clock.ticks();
            for (key, _) in &entries {
                entries::delete(engine, key)?;
            }
            let counted = entries::count(engine)?;
            let seconds = clock.seconds(start, clock.ticks());
            expect_count(&mut failures, "kv_remove", counted, 0);
            database.discard()?;
            Ok(seconds)
        })?;
        report
            .phases
            .push(sampling::phase("kv_remove", self.records, &removing));

        report.checks.push(format!(
            "{} values after every insertion and at every get, none left after every removal",
            grouped(self.records)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}

fn expect_count(failures: &mut Vec<String>, what: &str, found: u64, expected: u64) {
    if found != expected {
        failures.push(format!("{what}: {found}, expected {expected}"));
    }
}
