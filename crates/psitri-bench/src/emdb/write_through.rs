//! `write-through`: one thread, one small entry after another, each durable before the next, in two sync modes.
//!
//! What is different from emdb's `write_through` and why: there, one policy needs a call to flush after each insert and the other makes
//! that call cost nothing. Here a durable write is one commit, in sync mode `sync` in the one phase and `write-through` in the other.
//! An engine that has only one way to be durable says in its settings that both are the same; its two phases then show how much
//! the machine varies. Afterwards the database is opened again, if the engine keeps anything, and every entry is looked for.
use super::databases::Databases;
use super::entries::{self, Entry};
use crate::engine::{Engine, Needs, Settings, SyncMode};
use crate::memory::MemorySampler;
use crate::report::{Report, grouped};
use crate::sampling::{self, SamplingOptions};
use crate::workload::{Run, RunOptions, TuningOptions, Workload};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
pub struct WriteThrough {
    /// Number of writes
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub writes: u64,

    /// Bytes of each value
    #[arg(long, default_value_t = 150)]
    pub value_bytes: usize,

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

impl WriteThrough {
    fn entries(&self) -> Vec<Entry> {
        (0..self.writes)
            .map(|number| {
                (
                    format!("k{number:09}").into_bytes(),
                    vec![b'x'; self.value_bytes],
                )
            })
            .collect()
    }
}

impl Workload for WriteThrough {
    const NAME: &'static str = "write-through";
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
        let entry_bytes = 10 + self.value_bytes as u64;
        self.tuning
            .settings(SyncMode::Sync, self.writes * entry_bytes)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let clock = run.clock;
        let entries = self.entries();
        let memory = MemorySampler::start();
        let mut databases = Databases::new(run);
        let mut failures = Vec::new();

        let modes = [
            ("sync", SyncMode::Sync),
            ("write_through", SyncMode::WriteThrough),
        ];
        for (name, sync_mode) in modes {
            let settings = Settings {
                sync_mode,
                ..self.settings()
            };
            let spread = self.sampling.take(|| {
                let database = databases.create::<E>(settings)?;
                let start = clock.ticks();
                for (key, value) in &entries {
                    entries::put(&database.engine, key, value)?;
                }
                let seconds = clock.seconds(start, clock.ticks());
                let database = database.reopen()?;
                failures.extend(entries::audit(&database.engine, name, &entries)?);
                database.discard()?;
                Ok(seconds)
            })?;
            let phase = sampling::phase(name, self.writes, &spread);
            let phase = match report.phase("sync") {
                Some(first) => {
                    let speedup = first.seconds / phase.seconds;
                    phase.with("speedup", speedup)
                }
                None => phase,
            };
            report.phases.push(phase);
            let lines = E::describe(&settings).settings.join("; ");
            report
                .checks
                .push(format!("phase {name} was run with: {lines}"));
        }

        let reopened = if E::CAPABILITIES.persistent {
            ", after the database was opened again"
        } else {
            ""
        };
        report.checks.push(format!(
            "{} entries after every sample{reopened}",
            grouped(self.writes)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
