//! `index-hotpath`: gets and replacements on a set of keys that stays the same, from one thread and from several.
//!
//! What is different from emdb's `index_hotpath` and why:
//! - the original measures a hash index in memory; here the keys are visited in steps of a fixed prime, so that an ordered engine cannot
//!   find all of them in the page that it read last;
//! - a get between writes has to see them, so each get reads the newest state wherever somebody writes, in the way that is cheapest for the engine; where
//!   nobody does, there is one snapshot for each thread of an iteration;
//! - a replacement changes the last byte of the value, in each sample to another letter. Readers accept every letter; after each sample
//!   what it replaced is read again, and the whole set after each phase;
//! - the harness asks the processor for the keys and values that come next, so that an engine waits for its own memory only;
//! - all threads are started inside of the timer, also the one of the `single` groups.
use super::databases::Databases;
use super::entries::{self, Entry, NUMBERED_MAX, borrowed};
use crate::engine::{Engine, Needs, ReadMode, Settings, Snapshot};
use crate::fan_out::fan_out;
use crate::memory::MemorySampler;
use crate::prefetch::prefetch;
use crate::report::{Report, Series, grouped};
use crate::sampling::{self, SteadyOptions};
use crate::workload::{EngineOptions, Run, RunOptions, Workload};
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::iter;

const VALUE_BYTES: usize = 32;
const STEP: usize = 7_919;
/// One operation in so many is a write, in the mixed groups.
const WRITE_EVERY: usize = 5;
/// An entry of the harness is asked for so many operations ahead, and its bytes so many.
const ENTRY_AHEAD: usize = 16;
const BYTES_AHEAD: usize = 8;

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
    pub sampling: SteadyOptions,

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
    /// The last byte of a value that replaces another.
    version: u8,
}

impl Visit<'_> {
    fn targets(&self) -> impl Iterator<Item = (usize, bool)> {
        let operations = 0..self.operations;
        self.indexes(0)
            .zip(operations.map(|operation| self.mixture.writes(operation)))
    }

    /// Where one operation after another goes, without end, from one on.
    fn indexes(&self, operation: usize) -> impl Iterator<Item = usize> {
        let count = self.entries.len();
        let step = STEP % count;
        let mut next = (self.start + operation * step) % count;
        iter::repeat_with(move || {
            let index = next;
            next += step;
            if next >= count {
                next -= count;
            }
            index
        })
    }

    /// [`targets`](Visit::targets), with what the harness will need for those to come on its way to the caches.
    fn targets_ahead(&self) -> impl Iterator<Item = (usize, bool)> {
        let ahead = self.indexes(ENTRY_AHEAD).zip(self.indexes(BYTES_AHEAD));
        self.targets().zip(ahead).map(|(target, (entry, bytes))| {
            prefetch(&self.entries[entry]);
            let (key, value) = &self.entries[bytes];
            key.first().into_iter().for_each(prefetch);
            value.first().into_iter().for_each(prefetch);
            target
        })
    }

    /// How many gets found a wrong value.
    fn run<E: Engine>(&self, engine: &E) -> Result<u64> {
        let mut wrong = 0;
        if self.mixture == Mixture::Get {
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            for (index, _) in self.targets_ahead() {
                let entry = &self.entries[index];
                wrong += snapshot.read(&entry.0, |found| wrong_version(found, entry))?;
            }
            return Ok(wrong);
        }
        let mut replacement = [0; VALUE_BYTES];
        for (index, is_write) in self.targets_ahead() {
            let entry = &self.entries[index];
            if is_write {
                replacement.copy_from_slice(&entry.1);
                replacement[VALUE_BYTES - 1] = self.version;
                entries::put(engine, &entry.0, &replacement)?;
            } else {
                wrong += engine.read_latest(&entry.0, |found| wrong_version(found, entry))?;
            }
        }
        Ok(wrong)
    }
}

/// One if what was found for a key is no value that this workload writes.
fn wrong_version(found: Option<&[u8]>, (_, value): &Entry) -> u64 {
    let right = found
        .and_then(<[u8]>::split_last)
        .is_some_and(|(version, rest)| {
            version.is_ascii_lowercase() && rest == &value[..VALUE_BYTES - 1]
        });
    u64::from(!right)
}

struct Group<'a, E> {
    config: &'a IndexHotpath,
    run: &'a Run<'a>,
    engine: &'a E,
    /// What the database must hold now.
    entries: Vec<Entry>,
    version: u8,
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
        let (engine, clock) = (self.engine, self.run.clock);
        let (entries, version) = (&mut self.entries, &mut self.version);
        let (mut wrong, mut lost) = (0, 0);
        let spread = self.config.sampling.take(|| {
            *version = if *version == b'z' { b'a' } else { *version + 1 };
            let visit = |thread: usize| Visit {
                entries: entries.as_slice(),
                mixture,
                start: thread * (entries.len() / threads),
                operations: operations as usize,
                version: *version,
            };
            let (seconds, outcomes) = fan_out(clock, threads, |thread| visit(thread).run(engine))?;
            wrong += outcomes.iter().sum::<u64>();
            let replaced: Vec<usize> = (0..threads)
                .flat_map(|thread| visit(thread).targets().collect::<Vec<_>>())
                .filter_map(|(index, is_write)| is_write.then_some(index))
                .collect();
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            for index in replaced {
                entries[index].1[VALUE_BYTES - 1] = *version;
                lost += entries::wrong(&mut snapshot, &entries[index])?;
            }
            Ok(seconds)
        })?;
        for (count, what) in [
            (wrong, "gets of a wrong value"),
            (lost, "replacements that are not there"),
        ] {
            if count > 0 {
                self.failures.push(format!("{name}: {count} {what}"));
            }
        }
        self.failures
            .extend(entries::audit(engine, name, &self.entries)?);
        let phase = sampling::phase(name, operations * threads as u64, &spread);
        let rate = phase.ops_per_second;
        self.report.phases.push(phase);
        Ok(rate)
    }
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
        database.engine.recall_load()?;
        let mut group = Group {
            config: self,
            run,
            engine: &database.engine,
            entries,
            version: b'a',
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
            "the value of every get, every replacement after its sample, and all {} values after every phase",
            grouped(self.records)
        ));
        report.memory_of::<E>(&memory.finish());
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}
