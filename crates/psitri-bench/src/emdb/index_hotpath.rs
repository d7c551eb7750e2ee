//! `index-hotpath`: gets and replacements on a set of keys that stays the same, from one thread and from several.
//!
//! What is different from emdb's `index_hotpath` and why:
//! - the original measures a hash index in memory; here the keys are visited in steps of a fixed prime, so that an ordered engine cannot
//!   find all of them in the page that it read last;
//! - a get between writes has to see them, so each get takes a fresh snapshot wherever somebody writes; where nobody does, there is one
//!   snapshot for each thread of an iteration;
//! - a replacement changes the last byte of the value. Readers accept both versions, and what was replaced is checked after the phase.
use super::databases::Databases;
use super::entries::{self, Entry, NUMBERED_MAX, borrowed};
use crate::engine::{Engine, Needs, ReadMode, Settings, Snapshot, Writes};
use crate::fan_out::fan_out;
use crate::memory::MemorySampler;
use crate::report::{Report, Series, grouped};
use crate::sampling::{self, SamplingOptions};
use crate::workload::{EngineOptions, Run, RunOptions, Workload};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

const VALUE_BYTES: usize = 32;
const STEP: usize = 7_919;
/// One operation in so many is a write, in the mixed groups.
const WRITE_EVERY: usize = 5;
const VERSIONS: [u8; 2] = [b'x', b'y'];

#[derive(Args, Clone, Debug, Serialize)]
pub struct IndexHotpath {
    /// Number of entries
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=NUMBERED_MAX))]
    pub records: u64,

    /// Operations of a sample with one thread
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,

    /// Operations of each thread of a sample with several
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations_per_thread: u64,

    /// Numbers of threads, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub threads: Vec<u64>,

    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

#[derive(Clone, Copy, PartialEq)]
enum Mixture {
    Get,
    Replace,
    Mixed,
}

impl Mixture {
    fn writes(self, operation: usize) -> bool {
        match self {
            Self::Get => false,
            Self::Replace => true,
            Self::Mixed => operation % WRITE_EVERY == WRITE_EVERY - 1,
        }
    }
}

/// What one thread does: `operations` from the entry number `start` on.
struct Visit<'a> {
    entries: &'a [Entry],
    mixture: Mixture,
    start: usize,
    operations: usize,
}

impl Visit<'_> {
    fn targets(&self) -> impl Iterator<Item = (usize, bool)> {
        (0..self.operations).map(|operation| {
            let index = (self.start + operation * STEP) % self.entries.len();
            (index, self.mixture.writes(operation))
        })
    }

    /// How many gets found a wrong value.
    fn run<E: Engine>(&self, engine: &E) -> Result<u64> {
        let mut wrong = 0;
        if self.mixture == Mixture::Get {
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            for (index, _) in self.targets() {
                wrong += wrong_in_either_version(&mut snapshot, &self.entries[index])?;
            }
            return Ok(wrong);
        }
        let mut replacement = [0; VALUE_BYTES];
        for (index, is_write) in self.targets() {
            let entry = &self.entries[index];
            if is_write {
                replacement.copy_from_slice(&entry.1);
                replacement[VALUE_BYTES - 1] = VERSIONS[1];
                entries::put(engine, &entry.0, &replacement)?;
            } else {
                let mut snapshot = engine.snapshot(ReadMode::Latest)?;
                wrong += wrong_in_either_version(&mut snapshot, entry)?;
            }
        }
        Ok(wrong)
    }
}

fn wrong_in_either_version<S: Snapshot>(snapshot: &mut S, (key, value): &Entry) -> Result<u64> {
    snapshot.read(key, |found| {
        let right = found
            .and_then(<[u8]>::split_last)
            .is_some_and(|(version, rest)| {
                VERSIONS.contains(version) && rest == &value[..VALUE_BYTES - 1]
            });
        u64::from(!right)
    })
}

struct Group<'a, E> {
    config: &'a IndexHotpath,
    run: &'a Run<'a>,
    engine: &'a E,
    entries: &'a [Entry],
    report: &'a mut Report,
    failures: Vec<String>,
}

impl<E: Engine> Group<'_, E> {
    /// One phase, and the operations a second of its median sample.
    fn measure(
        &mut self,
        name: &str,
        mixture: Mixture,
        threads: usize,
        operations: u64,
    ) -> Result<f64> {
        let (entries, engine) = (self.entries, self.engine);
        let visit = |thread: usize| Visit {
            entries,
            mixture,
            start: thread * (entries.len() / threads),
            operations: operations as usize,
        };
        // Every phase begins with the first version of all values.
        restore(engine, entries)?;
        let mut wrong = 0;
        let clock = self.run.clock;
        let spread = self.config.sampling.take(|| {
            let (seconds, outcomes) = fan_out(clock, threads, |thread| visit(thread).run(engine))?;
            wrong += outcomes.iter().sum::<u64>();
            Ok(seconds)
        })?;
        if wrong > 0 {
            self.failures
                .push(format!("{name}: {wrong} gets of a wrong value"));
        }
        let mut expected = entries.to_vec();
        for thread in 0..threads {
            for (index, _) in visit(thread).targets().filter(|&(_, is_write)| is_write) {
                expected[index].1[VALUE_BYTES - 1] = VERSIONS[1];
            }
        }
        self.failures
            .extend(entries::audit(engine, name, &expected)?);
        let phase = sampling::phase(name, operations * threads as u64, &spread);
        let rate = phase.ops_per_second;
        self.report.phases.push(phase);
        Ok(rate)
    }
}

/// Puts the first version of every value.
fn restore<E: Engine>(engine: &E, entries: &[Entry]) -> Result<()> {
    let mut writes = engine.begin_writes()?;
    for (key, value) in entries {
        writes.put(key, value)?;
    }
    writes.commit()
}

impl Workload for IndexHotpath {
    const NAME: &'static str = "index-hotpath";
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
        self.engine.settings(self.records * entry_bytes)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let entries = entries::numbered(self.records, VALUE_BYTES);
        let memory = MemorySampler::start();
        let database = Databases::new(run).create::<E>(self.settings())?;
        database.engine.bulk_load(borrowed(&entries))?;
        let mut group = Group {
            config: self,
            run,
            engine: &database.engine,
            entries: &entries,
            report: &mut report,
            failures: Vec::new(),
        };
        for (name, mixture) in [
            ("single_get", Mixture::Get),
            ("single_replace", Mixture::Replace),
            ("single_mixed_80r_20w", Mixture::Mixed),
        ] {
            group.measure(name, mixture, 1, self.operations)?;
        }
        for (name, mixture) in [
            ("concurrent_get", Mixture::Get),
            ("concurrent_mixed_80r_20w", Mixture::Mixed),
        ] {
            let mut points = Vec::new();
            for &threads in &self.threads {
                let phase = format!("{name}_{threads}_threads");
                let rate = group.measure(
                    &phase,
                    mixture,
                    threads as usize,
                    self.operations_per_thread,
                )?;
                points.push((threads as f64, rate));
            }
            group.report.series.push(Series {
                name: name.to_owned(),
                x_label: "threads".to_owned(),
                y_label: "operations/s".to_owned(),
                points,
            });
        }
        let failures = group.failures;
        database.discard()?;

        report.checks.push(format!(
            "the value of every get, and all {} values after every phase",
            grouped(self.records)
        ));
        report.memory(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
