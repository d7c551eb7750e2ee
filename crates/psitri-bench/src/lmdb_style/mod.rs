//! `lmdb-style`: random pairs of 24-byte keys and 150-byte values, loaded, written durably and not, read from one thread and from many,
//! removed and compacted. The benchmark began with LMDB, redb keeps its present definition, emdb has one of its own.
//!
//! `--variant redb` has all phases of redb's definition, `--variant emdb` those of emdb's `lmdb_style`: another stream of pairs, fewer
//! threads, no retain, extract_if, pop and sorted inserts. What is different from both and why:
//! - pairs are generated before anything is timed (phase `generate_pairs`). There, the generator runs inside of the timers, in emdb's
//!   variant 174 calls for each read; reads are compared with the whole value instead of its first byte, untimed scans compare the whole
//!   database with what it must hold after every phase that removes;
//! - every commit is durable in the phases that are meant to be, for every engine, and no commit is in `nosync_writes`, where the database
//!   is brought to rest, closed and opened again with another sync mode before and after, untimed. Each of those writes is a transaction of its own, in both
//!   variants. emdb's original compares an engine that never flushes there with one whose writes are a single transaction. An engine that
//!   keeps nothing when closed has no such phase; it gets the pairs untimed;
//! - the bulk load is the engine's own way to load, durable, in both variants. emdb's original gives it chunks of 50,000;
//! - retain and extract_if are the engines' own where they have such calls (redb; PsiTri, whose `retain` over a range does both, as nobody else copies what is taken
//!   out); what any engine can do elsewhere: a cursor that
//!   collects the keys, then one batch of deletions. Pops are the engines' own, one by one in a transaction, as published. What was removed is replaced, untimed,
//!   by as many pairs that were removed before, the oldest first; the original takes fresh ones;
//! - a checkpoint comes before the uncompacted size, and its time is the time of that phase: no engine's size depends on what is still in
//!   its log. `compacted_size` has the time of the compaction, and both have lengths and allocated bytes.
//!
//! Phases that need order are absent for engines without, pops for engines whose batches do not read in order, `compacted_size` for engines that have
//! no such operation; the checks say so.
mod live;
mod run;

use crate::engine::{Engine, Needs, Settings, SyncMode};
use crate::pairs::{PAIR_BYTES, Stream};
use crate::report::Report;
use crate::sampling::SamplingOptions;
use crate::workload::{Run, RunOptions, TuningOptions, Workload};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// All phases, 4 to 32 threads
    #[default]
    Redb,
    /// The phases that emdb took over, 4 and 8 threads
    Emdb,
}

#[derive(Args, Clone, Debug, Serialize)]
pub struct LmdbStyle {
    /// Whose definition
    #[arg(long, value_enum, default_value_t)]
    pub variant: Variant,

    /// Pairs in the bulk load
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub records: u64,

    /// Rounds of the reads from one thread, of which the median is reported; 3 in variant redb, 2 in emdb
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub read_iterations: Option<u32>,

    /// Durable commits of one pair
    #[arg(long, default_value_t = 1_000)]
    pub individual_writes: u64,

    /// Durable commits of --batch-size pairs
    #[arg(long, default_value_t = 100)]
    pub batches: u64,

    #[arg(long, default_value_t = 1_000)]
    pub batch_size: u64,

    /// Commits of one pair that are not durable
    #[arg(long, default_value_t = 50_000)]
    pub nosync_writes: u64,

    /// Point reads in a round
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads: u64,

    /// Range reads in a round
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub range_reads: u64,

    /// Entries in a range read
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub range_length: u64,

    /// Numbers of threads that read everything once, separated by commas; 4,8,16,32 in variant redb, 4,8 in emdb
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub threads: Vec<u64>,

    /// Entries removed from both ends in turn, at most all; 500,000 unless given, variant redb only
    #[arg(long)]
    pub pops: Option<u64>,

    /// Pairs with ascending keys past all others; 1,000,000 unless given, variant redb only
    #[arg(long)]
    pub sorted_inserts: Option<u64>,

    #[command(flatten)]
    #[serde(flatten)]
    pub tuning: TuningOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

impl LmdbStyle {
    fn stream(&self) -> Stream {
        match self.variant {
            Variant::Redb => Stream::Filled,
            Variant::Emdb => Stream::ByteByByte,
        }
    }

    fn read_rounds(&self) -> SamplingOptions {
        let definition = match self.variant {
            Variant::Redb => 3,
            Variant::Emdb => 2,
        };
        SamplingOptions {
            samples: self.read_iterations.unwrap_or(definition),
            warm_up_samples: 0,
        }
    }

    fn thread_counts(&self) -> &[u64] {
        match (self.threads.as_slice(), self.variant) {
            ([], Variant::Redb) => &[4, 8, 16, 32],
            ([], Variant::Emdb) => &[4, 8],
            (given, _) => given,
        }
    }

    /// All pairs of the stream that are written.
    fn pairs(&self) -> u64 {
        self.records + self.individual_writes + self.batches * self.batch_size + self.nosync_writes
    }

    fn pops(&self) -> u64 {
        self.pops.unwrap_or(500_000)
    }

    fn sorted_inserts(&self) -> u64 {
        match self.variant {
            Variant::Redb => self.sorted_inserts.unwrap_or(1_000_000),
            Variant::Emdb => 0,
        }
    }
}

impl Workload for LmdbStyle {
    const NAME: &'static str = "lmdb-style";

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
        let pairs = self.pairs() + self.sorted_inserts();
        self.tuning
            .settings(SyncMode::Sync, pairs * (PAIR_BYTES as u64 + 8))
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        if self.variant == Variant::Emdb && (self.pops.is_some() || self.sorted_inserts.is_some()) {
            bail!("--pops and --sorted-inserts are of variant redb");
        }
        if self.pairs() > u64::from(u32::MAX) {
            bail!("{} pairs are too many to keep in memory", self.pairs());
        }
        run::run::<E>(self, run)
    }
}
