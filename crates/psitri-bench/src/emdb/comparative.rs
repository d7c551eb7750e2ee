//! `comparative`: the same entries inserted in three ways, and read back in the order of insertion.
//!
//! What is different from emdb's `comparative` and why:
//! - there, emdb and two others are measured with single inserts, another engine with one transaction for all, and emdb once more with its
//!   bulk call; rows of one table were never the same work. Here every engine is measured in all three ways:
//!   `compare_insert_single` (a commit for each entry), `compare_insert_batch` (one commit) and `compare_insert_bulk` (the engine's way to
//!   load). All commits are in sync mode `none` and one flush at the end is timed with them, as there;
//! - there, creating and deleting the database is inside of the timer; here it is not, and creating is the figure `open_ms`;
//! - reads are from one snapshot an iteration.
use super::databases::Databases;
use super::entries::{self, Entry, NUMBERED_MAX, borrowed};
use crate::engine::{Engine, Needs, ReadMode, Settings, SyncMode, Writes};
use crate::memory::MemorySampler;
use crate::report::{Report, grouped};
use crate::sampling::{self, SteadyOptions};
use crate::summary::Spread;
use crate::workload::{Run, RunOptions, TuningOptions, Workload};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

const VALUE_BYTES: usize = 64;

#[derive(Args, Clone, Debug, Serialize)]
pub struct Comparative {
    /// Number of entries
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=NUMBERED_MAX))]
    pub records: u64,

    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SteadyOptions,

    #[command(flatten)]
    #[serde(flatten)]
    pub tuning: TuningOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

/// A way to insert all entries, up to the flush.
type Insert<E> = fn(&E, &[Entry]) -> Result<()>;

fn single<E: Engine>(engine: &E, entries: &[Entry]) -> Result<()> {
    for (key, value) in entries {
        entries::put(engine, key, value)?;
    }
    Ok(())
}

fn batch<E: Engine>(engine: &E, entries: &[Entry]) -> Result<()> {
    let mut writes = engine.begin_writes()?;
    for (key, value) in entries {
        writes.put(key, value)?;
    }
    writes.commit()
}

fn bulk<E: Engine>(engine: &E, entries: &[Entry]) -> Result<()> {
    engine.bulk_load(borrowed(entries))
}

impl Workload for Comparative {
    const NAME: &'static str = "comparative";
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
        let entry_bytes = (12 + VALUE_BYTES) as u64;
        self.tuning
            .settings(SyncMode::None, self.records * entry_bytes)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let (clock, settings) = (run.clock, self.settings());
        let entries = entries::numbered(self.records, VALUE_BYTES);
        let memory = MemorySampler::start();
        let mut databases = Databases::new(run);
        let mut failures = Vec::new();

        let ways: [(&str, Insert<E>); 3] = [
            ("compare_insert_single", single),
            ("compare_insert_batch", batch),
            ("compare_insert_bulk", bulk),
        ];
        for (name, insert) in ways {
            let mut open_seconds = Vec::new();
            let spread = self.sampling.take(|| {
                let database = databases.create::<E>(settings)?;
                let engine = &database.engine;
                let start = clock.ticks();
                insert(engine, &entries)?;
                engine.sync()?;
                let seconds = clock.seconds(start, clock.ticks());
                engine.recall_load()?;
                failures.extend(entries::audit(engine, name, &entries)?);
                open_seconds.push(database.open_seconds);
                database.discard()?;
                Ok(seconds)
            })?;
            let opening = Spread::of(&open_seconds).context("at least one database was opened")?;
            report.phases.push(
                sampling::phase(name, self.records, &spread).with("open_ms", opening.median * 1e3),
            );
        }

        let database = databases.create::<E>(settings)?;
        bulk(&database.engine, &entries)?;
        database.engine.recall_load()?;
        let mut wrong = 0;
        let reading = self.sampling.take(|| {
            let start = clock.ticks();
            let mut snapshot = database.engine.snapshot(ReadMode::Latest)?;
            for entry in &entries {
                wrong += entries::wrong(&mut snapshot, entry)?;
            }
            Ok(clock.seconds(start, clock.ticks()))
        })?;
        database.discard()?;
        if wrong > 0 {
            failures.push(format!("compare_read: {wrong} reads of a wrong value"));
        }
        report
            .phases
            .push(sampling::phase("compare_read", self.records, &reading));

        report.checks.push(format!(
            "{} values after every insertion and at every read",
            grouped(self.records)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
