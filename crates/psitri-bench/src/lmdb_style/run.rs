//! One run, phase by phase.
use super::live::{self, Live, RangeTotals};
use super::{LmdbStyle, Variant};
use crate::clock::Clock;
use crate::disk::{self, DiskUsage};
use crate::engine::{Batch, Cursor, End, Engine, ReadMode, Settings, Snapshot, SyncMode, Writes};
use crate::fan_out::fan_out;
use crate::latency::Latency;
use crate::memory::MemorySampler;
use crate::pairs::{KEY_BYTES, PAIR_BYTES, Pairs};
use crate::reopening;
use crate::report::{Phase, Report, Series, Size, grouped};
use crate::sampling;
use crate::summary::Spread;
use crate::workload::{Run, Workload};
use anyhow::{Context, Result};

/// The third of all keys that extract_if visits, the end not included.
const EXTRACT_FROM: [u8; KEY_BYTES] = [0x55; KEY_BYTES];
const EXTRACT_TO: [u8; KEY_BYTES] = [0xAA; KEY_BYTES];

/// Where the first of so many parts of the pops takes longer than this, the time of all is worked out from what was popped by then, much as published.
const POP_PARTS: usize = 100;
const POP_PART_SECONDS_MAX: f64 = 1.0;
/// The same for the parts behind it: pops that become slower and slower would take for ever.
const POPS_SECONDS_MAX: f64 = 10.0;

/// `len()` is called so often, each time on a snapshot of its own, or for so long.
const LEN_SAMPLES_MAX: usize = 101;
const LEN_SECONDS_MAX: f64 = 1.0;

pub fn run<E: Engine>(config: &LmdbStyle, run: &Run<'_>) -> Result<Report> {
    let clock = run.clock;
    let start = clock.ticks();
    let pairs = Pairs::new(config.stream(), config.pairs() as usize);
    let generation = timed("generate_pairs", config.pairs(), since(clock, start));
    // What must be there is the harness's own memory too, and there before sampling begins.
    let live = Live::new(&pairs)?;
    let memory = MemorySampler::start();

    let mut report = Report::new(LmdbStyle::NAME, run.engine, serde_json::to_value(config)?);
    report.phases.push(generation);
    let mut bench = Bench {
        config,
        run,
        clock,
        pairs: &pairs,
        live,
        report,
        failures: Vec::new(),
    };
    let engine = E::create(run.path, &config.settings()).context("cannot create the database")?;
    bench.durable_writes(&engine)?;
    let mut engine = bench.nosync_writes(engine)?;
    bench.reads(&engine)?;
    bench.removals(&engine)?;
    if config.variant == Variant::Redb && E::CAPABILITIES.ordered {
        bench.retain(&engine)?;
        bench.extract_if(&engine)?;
        if E::CAPABILITIES.pops {
            bench.pop(&engine)?;
        }
    }
    bench.sizes(&mut engine)?;
    if config.sorted_inserts() > 0 {
        bench.sorted_inserts(&engine)?;
    }
    let size = bench.size(&engine)?;
    let keys = reopening::keys(&engine)?;
    engine.close().context("cannot close the database")?;

    let Bench {
        mut report,
        mut failures,
        ..
    } = bench;
    let peak = memory.finish();
    let checks = &mut report.checks;
    reopening::check::<E>(run.path, &config.settings(), keys, checks, &mut failures)?;
    if !E::CAPABILITIES.ordered {
        report
            .checks
            .push("N/A: range reads, retain, extract_if, pop: the keys have no order".to_owned());
    } else if !E::CAPABILITIES.pops {
        let line = "N/A: pop: batches do not read in order";
        report.checks.push(line.to_owned());
    }
    report.checks.push(format!(
        "the value of every read, the entries of all range reads, and all of the database after every removal: {} pairs",
        grouped(config.pairs())
    ));
    report.size = Some(size);
    report.memory(&peak);
    if !failures.is_empty() {
        report.fail(failures);
    }
    Ok(report)
}

fn since(clock: &Clock, start: u64) -> f64 {
    clock.seconds(start, clock.ticks())
}

fn timed(name: impl Into<String>, ops: u64, seconds: f64) -> Phase {
    Phase::new(name, ops, seconds).with("ms", seconds * 1e3)
}

struct Bench<'a> {
    config: &'a LmdbStyle,
    run: &'a Run<'a>,
    clock: &'a Clock,
    pairs: &'a Pairs,
    live: Live<'a>,
    report: Report,
    failures: Vec<String>,
}

impl Bench<'_> {
    /// Bulk load, individual writes, batches.
    fn durable_writes<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let (config, pairs) = (self.config, self.pairs);
        let records = config.records as usize;
        let start = self.clock.ticks();
        engine
            .bulk_load(pairs.range(0..records))
            .context("the bulk load failed")?;
        let seconds = since(self.clock, start);
        engine.recall_load()?;
        self.report.phases.push(Phase {
            file_bytes: self.file_bytes()?,
            ..timed("bulk_load", config.records, seconds)
        });

        let individual = self
            .write(engine, records, config.individual_writes, 1)
            .context("the individual writes failed")?;
        self.report.phases.push(Phase {
            name: "individual_writes".to_owned(),
            ..individual
        });
        let written = records + config.individual_writes as usize;
        let batches = self
            .write(engine, written, config.batches, config.batch_size)
            .context("the batch writes failed")?;
        self.report.phases.push(Phase {
            name: "batch_writes".to_owned(),
            ..batches
        });
        Ok(())
    }

    /// Commits of `batch_size` pairs each, from the pair `first` on; a phase that has no name yet.
    fn write<E: Engine>(
        &self,
        engine: &E,
        first: usize,
        commits: u64,
        batch_size: u64,
    ) -> Result<Phase> {
        let mut latency = Latency::new();
        let mut next = first;
        let start = self.clock.ticks();
        for _ in 0..commits {
            let commit_start = self.clock.ticks();
            let mut writes = engine.begin_writes()?;
            for (key, value) in self.pairs.range(next..next + batch_size as usize) {
                writes.put(key, value)?;
            }
            writes.commit()?;
            next += batch_size as usize;
            latency.record(self.clock.nanoseconds(commit_start, self.clock.ticks()));
        }
        let seconds = since(self.clock, start);
        Ok(Phase {
            commits: Some(commits),
            latency_us: latency.summary(),
            file_bytes: self.file_bytes()?,
            ..timed("", commits * batch_size, seconds)
        })
    }

    /// Between two changes of the sync mode, which mean opening the database again.
    fn nosync_writes<E: Engine>(&mut self, engine: E) -> Result<E> {
        let config = self.config;
        let first = (config.pairs() - config.nosync_writes) as usize;
        if !E::CAPABILITIES.persistent {
            self.report
                .checks
                .push("N/A: nosync_writes: what was closed cannot be opened again".to_owned());
            let mut writes = engine.begin_writes()?;
            for (key, value) in self.pairs.range(first..self.pairs.len()) {
                writes.put(key, value)?;
            }
            writes.commit()?;
            return Ok(engine);
        }
        let durable = config.settings();
        let nosync = Settings {
            sync_mode: SyncMode::None,
            ..durable
        };
        let engine = self.reopen(engine, &nosync)?;
        let phase = self
            .write(&engine, first, config.nosync_writes, 1)
            .context("the writes without sync failed")?;
        engine.sync()?;
        self.report.phases.push(Phase {
            name: "nosync_writes".to_owned(),
            ..phase
        });
        self.report.checks.push(
            "every commit was made in sync mode sync, those of nosync_writes in none".to_owned(),
        );
        self.reopen(engine, &durable)
    }

    /// In its resting state: what is measured next does not depend on how an engine closes, which is not measured here.
    fn reopen<E: Engine>(&self, engine: E, settings: &Settings) -> Result<E> {
        engine.checkpoint().context("the checkpoint failed")?;
        engine.close().context("cannot close the database")?;
        E::open(self.run.path, settings).context("cannot open the database again")
    }

    fn reads<E: Engine>(&mut self, engine: &E) -> Result<()> {
        self.len(engine)?;
        let (config, clock, pairs) = (self.config, self.clock, self.pairs);
        let rounds = config.read_rounds();
        let mut wrong = 0;
        let spread = rounds.take(|| {
            let start = clock.ticks();
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            wrong += read(&mut snapshot, pairs, reads(pairs, config.reads))?;
            Ok(since(clock, start))
        })?;
        self.expect_none("random_reads", wrong);
        self.report
            .phases
            .push(sampling::phase("random_reads", config.reads, &spread));

        if E::CAPABILITIES.ordered {
            self.range_reads(engine)?;
        }

        let mut points = Vec::new();
        for &threads in config.thread_counts() {
            let name = format!("random_reads_{threads}_threads");
            let share = pairs.len() / threads as usize;
            let (seconds, outcomes) = fan_out(clock, threads as usize, |thread| {
                let mut snapshot = engine.snapshot(ReadMode::Latest)?;
                let first = thread * share;
                read(&mut snapshot, pairs, first..first + share)
            })?;
            self.expect_none(&name, outcomes.iter().sum());
            let phase = timed(name, share as u64 * threads, seconds);
            points.push((threads as f64, phase.ops_per_second));
            self.report.phases.push(phase);
        }
        self.report.series.push(Series {
            name: "random_reads".to_owned(),
            x_label: "threads".to_owned(),
            y_label: "reads/s".to_owned(),
            points,
        });
        Ok(())
    }

    /// As published, the snapshot is there already when the clock starts. One call is shorter than what the first of all takes to bring its code to the caches,
    /// so the median of many is reported, and the first beside it.
    fn len<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let (config, clock) = (self.config, self.clock);
        let (mut seconds, mut wrong) = (Vec::new(), None);
        while seconds.len() < LEN_SAMPLES_MAX && seconds.iter().sum::<f64>() < LEN_SECONDS_MAX {
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            let start = clock.ticks();
            let counted = snapshot.count()?;
            seconds.push(since(clock, start));
            wrong = wrong.or((counted != config.pairs()).then_some(counted));
        }
        if let Some(counted) = wrong {
            self.failures
                .push(format!("len: {counted}, expected {}", config.pairs()));
        }
        let first = seconds.first().copied().context("there is a first call")?;
        let spread = Spread::of(&seconds).context("there is a first call")?;
        self.report
            .phases
            .push(sampling::phase("len", 1, &spread).with("first_ms", first * 1e3));
        Ok(())
    }

    fn range_reads<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let (config, clock, pairs) = (self.config, self.clock, self.pairs);
        let length = config.range_length as usize;
        let expected = self.live.ranges(reads(pairs, config.range_reads), length);
        let mut wrong = 0;
        let spread = config.read_rounds().take(|| {
            let start = clock.ticks();
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            let mut found = RangeTotals::default();
            for index in reads(pairs, config.range_reads) {
                let mut cursor = snapshot.cursor()?;
                let mut on_entry = cursor.seek(pairs.key(index))?;
                let mut visited = 0;
                while let (true, Some((_, value))) = (on_entry, cursor.entry()) {
                    found.first_bytes += u64::from(value.first().copied().unwrap_or(0));
                    visited += 1;
                    if visited == length {
                        break;
                    }
                    on_entry = cursor.next()?;
                }
                found.entries += visited as u64;
            }
            let seconds = since(clock, start);
            wrong += u64::from(found != expected);
            Ok(seconds)
        })?;
        self.expect_none("random_range_reads", wrong);
        let phase = sampling::phase("random_range_reads", config.range_reads, &spread).with(
            "entries_per_second",
            expected.entries as f64 / spread.median,
        );
        self.report.phases.push(phase);
        Ok(())
    }

    /// The first half of the stream, in one transaction.
    fn removals<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let half = self.pairs.len() / 2;
        let start = self.clock.ticks();
        let mut writes = engine.begin_writes()?;
        for index in 0..half {
            writes.delete(self.pairs.key(index))?;
        }
        writes.commit().context("the removals failed")?;
        let seconds = since(self.clock, start);
        self.live.remove(|_, index| index < half);
        self.report.phases.push(Phase {
            file_bytes: self.file_bytes()?,
            ..timed("removals", half as u64, seconds)
        });
        self.audit(engine, "removals")
    }

    /// Keeps every other entry.
    fn retain<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let start = self.clock.ticks();
        let mut position = 0u64;
        engine.retain(|_, _| {
            position += 1;
            position % 2 == 1
        })?;
        let seconds = since(self.clock, start);
        let removed = self.live.remove(|position, _| position % 2 == 1);
        self.removed(engine, "retain", removed, seconds)
    }

    /// Removes every other entry of a third.
    fn extract_if<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let start = self.clock.ticks();
        let mut position = 0u64;
        let extracted = engine.extract(&EXTRACT_FROM[..]..&EXTRACT_TO[..], |_, _| {
            position += 1;
            position.is_multiple_of(2)
        })?;
        let seconds = since(self.clock, start);
        let (pairs, mut in_range) = (self.pairs, 0u64);
        let removed = self.live.remove(|_, index| {
            if !(EXTRACT_FROM.as_slice()..EXTRACT_TO.as_slice()).contains(&pairs.key(index)) {
                return false;
            }
            in_range += 1;
            in_range % 2 == 0
        });
        if extracted != removed {
            self.failures.push(format!(
                "extract_if took {extracted} entries out instead of {removed}"
            ));
        }
        self.removed(engine, "extract_if", removed, seconds)
    }

    /// Removes the first and the last entry in turn, one by one. What the commit takes is not counted, as published.
    fn pop<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let length = self.live.len();
        let pops = (self.config.pops() as usize).min(length);
        let part = pops.div_ceil(POP_PARTS);
        let mut batch = engine.begin()?;
        let (mut popped, mut bytes, mut is_estimate) = (0, 0, false);
        let start = self.clock.ticks();
        let seconds = loop {
            let end = match popped % 2 {
                0 => End::First,
                _ => End::Last,
            };
            if popped == pops || !batch.pop(end, |key, value| bytes += key.len() + value.len())? {
                break since(self.clock, start);
            }
            popped += 1;
            let is_first_part = popped <= part;
            if is_first_part || popped % part == 0 {
                let taken = since(self.clock, start);
                if taken > POPS_SECONDS_MAX || (is_first_part && taken > POP_PART_SECONDS_MAX) {
                    is_estimate = true;
                    break taken * pops as f64 / popped as f64;
                }
            }
        };
        Batch::commit(batch).context("the pops failed")?;
        if bytes != popped * PAIR_BYTES {
            self.failures.push(format!(
                "pop: {bytes} bytes in {popped} entries, expected {PAIR_BYTES} in each"
            ));
        }
        let (from_front, from_back) = (pops.div_ceil(2), pops / 2);
        if is_estimate {
            self.report.checks.push(format!(
                "pop: {popped} entries took too long, the time of {pops} is worked out from theirs"
            ));
            self.remove_ends(
                engine,
                from_front - popped.div_ceil(2),
                from_back - popped / 2,
            )?;
        }
        let removed = self
            .live
            .remove(|position, _| position < from_front || position >= length - from_back);
        self.removed(engine, "pop", removed, seconds)
    }

    /// Removes entries at both ends, quickly.
    fn remove_ends<E: Engine>(&self, engine: &E, front: usize, back: usize) -> Result<()> {
        let mut keys = Vec::with_capacity((front + back) * KEY_BYTES);
        {
            let mut snapshot = engine.snapshot(ReadMode::Latest)?;
            let mut cursor = snapshot.cursor()?;
            let mut on_entry = cursor.seek_first()?;
            while keys.len() < front * KEY_BYTES
                && let (true, Some((key, _))) = (on_entry, cursor.entry())
            {
                keys.extend_from_slice(key);
                on_entry = cursor.next()?;
            }
            drop(cursor);
            let mut cursor = snapshot.cursor()?;
            let mut on_entry = cursor.seek_last()?;
            while keys.len() < (front + back) * KEY_BYTES
                && let (true, Some((key, _))) = (on_entry, cursor.entry())
            {
                keys.extend_from_slice(key);
                on_entry = cursor.prev()?;
            }
        }
        delete(engine, keys.chunks_exact(KEY_BYTES))
    }

    /// Notes the phase, checks, and puts as many pairs back.
    fn removed<E: Engine>(
        &mut self,
        engine: &E,
        name: &str,
        removed: u64,
        seconds: f64,
    ) -> Result<()> {
        self.report.phases.push(timed(name, removed, seconds));
        self.audit(engine, name)?;
        let mut writes = engine.begin_writes()?;
        for index in self.live.put_back(removed) {
            let (key, value) = self.pairs.get(index);
            writes.put(key, value)?;
        }
        writes.commit()
    }

    fn sizes<E: Engine>(&mut self, engine: &mut E) -> Result<()> {
        let start = self.clock.ticks();
        engine.checkpoint().context("the checkpoint failed")?;
        let seconds = since(self.clock, start);
        self.push_size("uncompacted_size", seconds)?;
        let start = self.clock.ticks();
        let compacted = engine.compact().context("the compaction failed")?;
        let seconds = since(self.clock, start);
        if compacted {
            self.push_size("compacted_size", seconds)?;
        } else {
            self.report
                .checks
                .push("N/A: compacted_size: the engine has no compaction".to_owned());
        }
        self.audit(engine, "compaction")
    }

    fn sorted_inserts<E: Engine>(&mut self, engine: &E) -> Result<()> {
        let keys = live::sorted_keys(self.config.sorted_inserts());
        let start = self.clock.ticks();
        engine
            .bulk_load(keys.iter().enumerate().map(|(number, key)| {
                let (_, value) = self.pairs.get(number % self.pairs.len());
                (key.as_slice(), value)
            }))
            .context("the sorted inserts failed")?;
        let seconds = since(self.clock, start);
        engine.recall_load()?;
        self.report
            .phases
            .push(timed("sorted_inserts", keys.len() as u64, seconds));
        self.live.add_sorted(keys);
        self.audit(engine, "sorted inserts")
    }

    fn audit<E: Engine>(&mut self, engine: &E, after: &str) -> Result<()> {
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let failure = self
            .live
            .audit(&mut snapshot, E::CAPABILITIES.ordered, after)?;
        self.failures.extend(failure);
        Ok(())
    }

    fn expect_none(&mut self, phase: &str, wrong: u64) {
        if wrong > 0 {
            self.failures
                .push(format!("{phase}: {wrong} reads found something else"));
        }
    }

    /// Nothing for an engine that has no files here.
    fn usage(&self) -> Result<Option<DiskUsage>> {
        let usage = disk::usage(self.run.path)?;
        Ok((usage.length_bytes > 0).then_some(usage))
    }

    fn file_bytes(&self) -> Result<Option<u64>> {
        Ok(self.usage()?.map(|usage| usage.allocated_bytes))
    }

    fn push_size(&mut self, name: &str, seconds: f64) -> Result<()> {
        if let Some(usage) = self.usage()? {
            let raw_bytes = self.live.len() * PAIR_BYTES;
            self.report.phases.push(Phase {
                file_bytes: Some(usage.allocated_bytes),
                ..timed(name, 0, seconds)
                    .with("length_bytes", usage.length_bytes as f64)
                    .with("allocated_bytes", usage.allocated_bytes as f64)
                    .with("raw_bytes", raw_bytes as f64)
            });
        }
        Ok(())
    }

    /// At the end.
    fn size<E: Engine>(&self, engine: &E) -> Result<Size> {
        let engine_sizes = engine.sizes().context("cannot ask for sizes")?;
        let usage = disk::usage(self.run.path)?;
        let raw_bytes = self
            .live
            .entries()
            .map(|(key, value)| key.len() + value.len());
        Ok(Size {
            file_bytes: usage.allocated_bytes,
            file_length_bytes: usage.length_bytes,
            data_bytes: engine_sizes.data_bytes,
            log_bytes: engine_sizes.log_bytes,
            reachable_bytes: engine_sizes.reachable_bytes,
            raw_bytes: raw_bytes.sum::<usize>() as u64,
        })
    }
}

/// The pairs that `count` reads ask for: from the first on, around at the end.
fn reads(pairs: &Pairs, count: u64) -> impl Iterator<Item = usize> + use<> {
    (0..pairs.len()).cycle().take(count as usize)
}

/// How many of the reads found something else than the pair's value.
fn read<S: Snapshot>(
    snapshot: &mut S,
    pairs: &Pairs,
    indexes: impl Iterator<Item = usize>,
) -> Result<u64> {
    let mut wrong = 0;
    for index in indexes {
        let (key, value) = pairs.get(index);
        wrong += snapshot.read(key, |found| u64::from(found != Some(value)))?;
    }
    Ok(wrong)
}

/// In one transaction.
fn delete<'k, E: Engine>(engine: &E, keys: impl Iterator<Item = &'k [u8]>) -> Result<()> {
    let mut writes = engine.begin_writes()?;
    for key in keys {
        writes.delete(key)?;
    }
    writes.commit()
}
