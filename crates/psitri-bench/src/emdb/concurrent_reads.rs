//! `concurrent-reads`: threads that read one after another of 20,000 entries, each from a part of its own, around at the end.
//!
//! What is different from emdb's `concurrent_reads` and why: emdb has no snapshots, its get reads what is newest. An engine with snapshots
//! can be asked for the same (`newest_per_get`, in the way that is cheapest for the engine) or for what its users do when they read much
//! (`snapshot_per_thread`). Both are measured, so that neither kind of engine is misrepresented. Starting and joining the threads is
//! inside of the timer in both, as there.
use super::databases::Databases;
use super::entries::{self, Entry, NUMBERED_MAX, borrowed};
use crate::engine::{Engine, Needs, ReadMode, Settings, SyncMode};
use crate::fan_out::fan_out;
use crate::memory::MemorySampler;
use crate::report::{Report, Series, grouped};
use crate::sampling::{self, SteadyOptions};
use crate::workload::{Run, RunOptions, TuningOptions, Workload};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

const VALUE_BYTES: usize = 64;

#[derive(Args, Clone, Debug, Serialize)]
pub struct ConcurrentReads {
    /// Number of entries
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=NUMBERED_MAX))]
    pub records: u64,

    /// Reads of each thread
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads_per_thread: u64,

    /// Numbers of threads, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub threads: Vec<u64>,

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

impl ConcurrentReads {
    /// How many reads of one thread found a wrong value.
    fn read<E: Engine>(
        &self,
        engine: &E,
        entries: &[Entry],
        start: usize,
        newest_per_get: bool,
    ) -> Result<u64> {
        let mut wrong = 0;
        let wanted = entries
            .iter()
            .cycle()
            .skip(start)
            .take(self.reads_per_thread as usize);
        if newest_per_get {
            for entry in wanted {
                wrong += engine.read_latest(&entry.0, |found| entries::is_wrong(found, entry))?;
            }
        } else {
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            for entry in wanted {
                wrong += entries::wrong(&mut snapshot, entry)?;
            }
        }
        Ok(wrong)
    }
}

impl Workload for ConcurrentReads {
    const NAME: &'static str = "concurrent-reads";
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
        let clock = run.clock;
        let entries = entries::numbered(self.records, VALUE_BYTES);
        let memory = MemorySampler::start();
        let database = Databases::new(run).create::<E>(self.settings())?;
        let engine = &database.engine;
        engine.bulk_load(borrowed(&entries))?;
        engine.recall_load()?;
        engine.sync()?;

        let mut failures = Vec::new();
        for (group, newest_per_get) in [("newest_per_get", true), ("snapshot_per_thread", false)] {
            let mut points = Vec::new();
            for &threads in &self.threads {
                let mut wrong = 0;
                let spread = self.sampling.take(|| {
                    let (seconds, outcomes) = fan_out(clock, threads as usize, |thread| {
                        let start = thread * (entries.len() / threads as usize);
                        self.read(engine, &entries, start, newest_per_get)
                    })?;
                    wrong += outcomes.iter().sum::<u64>();
                    Ok(seconds)
                })?;
                let name = format!("{group}_{threads}_threads");
                if wrong > 0 {
                    failures.push(format!("{name}: {wrong} reads of a wrong value"));
                }
                let phase = sampling::phase(name, self.reads_per_thread * threads, &spread);
                points.push((threads as f64, phase.ops_per_second));
                report.phases.push(phase);
            }
            report.series.push(Series {
                name: group.to_owned(),
                x_label: "threads".to_owned(),
                y_label: "reads/s".to_owned(),
                points,
            });
        }
        failures.extend(entries::audit(engine, "after the reads", &entries)?);
        database.discard()?;

        report.checks.push(format!(
            "the value of every read, {} entries at the end",
            grouped(self.records)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
