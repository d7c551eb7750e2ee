//! `group-commit`: threads that write one small entry after another, each durable before the next.
//!
//! What is different from emdb's `group_commit` and why:
//! - there, two flush policies are compared that are the same thing in its current version, and two of the parameters are ignored. Here all
//!   commits are in sync mode `sync`, and what is compared is the same writes from one thread (`one_thread`) and from all
//!   (`many_threads`); the figure `speedup` of the latter is what sharing flushes is worth;
//! - a write and its flush are one durable commit, because that is what engines offer;
//! - afterwards the database is opened again, if the engine keeps anything, and every entry is looked for.
use super::databases::Databases;
use super::entries::{self, Entry};
use crate::engine::{Engine, Needs, Settings, SyncMode};
use crate::fan_out::fan_out;
use crate::memory::MemorySampler;
use crate::report::{Report, grouped};
use crate::sampling::{self, SamplingOptions};
use crate::workload::{Run, RunOptions, TuningOptions, Workload};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
pub struct GroupCommit {
    /// Threads that write at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub threads: u64,

    /// Writes of each thread
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub per_thread: u64,

    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    #[serde(flatten)]
    pub tuning: TuningOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

impl GroupCommit {
    fn entries(&self) -> Vec<Entry> {
        (0..self.threads)
            .flat_map(|thread| (0..self.per_thread).map(move |number| (thread, number)))
            .map(|(thread, number)| {
                (
                    format!("t{thread}-i{number:06}").into_bytes(),
                    format!("payload-{thread}-{number}").into_bytes(),
                )
            })
            .collect()
    }
}

impl Workload for GroupCommit {
    const NAME: &'static str = "group-commit";
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
        self.tuning
            .settings(SyncMode::Sync, self.threads * self.per_thread * 32)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let clock = run.clock;
        let entries = self.entries();
        let memory = MemorySampler::start();
        let mut databases = Databases::new(run);
        let mut failures = Vec::new();

        for (name, threads) in [("one_thread", 1), ("many_threads", self.threads as usize)] {
            let spread = self.sampling.take(|| {
                let database = databases.create::<E>(self.settings())?;
                let engine = &database.engine;
                let (seconds, _) = fan_out(clock, threads, |thread| {
                    let share = entries.len() / threads;
                    for (key, value) in &entries[thread * share..][..share] {
                        entries::put(engine, key, value)?;
                    }
                    Ok(())
                })?;
                let database = database.reopen()?;
                failures.extend(entries::audit(&database.engine, name, &entries)?);
                database.discard()?;
                Ok(seconds)
            })?;
            let phase = sampling::phase(name, entries.len() as u64, &spread)
                .with("threads", threads as f64);
            let phase = match report.phase("one_thread") {
                Some(one) => {
                    let speedup = one.seconds / phase.seconds;
                    phase.with("speedup", speedup)
                }
                None => phase,
            };
            report.phases.push(phase);
        }

        let reopened = if E::CAPABILITIES.persistent {
            ", after the database was opened again"
        } else {
            ""
        };
        report.checks.push(format!(
            "{} entries after every sample{reopened}",
            grouped(entries.len() as u64)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
