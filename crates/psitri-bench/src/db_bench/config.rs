//! Parameters of the list, and what its keys look like.
use crate::keys;
use crate::values::TAG_BYTES;
use crate::workload::{EngineOptions, RunOptions};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Benchmark {
    /// An empty database; puts in the order of keys.
    FillSeq,
    /// An empty database; puts of random keys.
    FillRandom,
    /// Puts of random keys.
    Overwrite,
    /// Gets of random keys.
    ReadRandom,
    /// Gets of keys that nobody ever wrote.
    ReadMissing,
    /// All entries forwards, one thread.
    ReadSeq,
    /// All entries backwards, one thread.
    ReadReverse,
    /// Seeks of random keys, and so many steps as `--seek-nexts` says.
    SeekRandom,
    /// Deletes of random keys.
    DeleteRandom,
    /// Gets of random keys, while one more thread overwrites.
    ReadWhileWriting,
    /// Each thread scans everything once, while one more thread overwrites.
    ScanWhileWriting,
}

impl Benchmark {
    pub fn name(self) -> &'static str {
        match self {
            Self::FillSeq => "fillseq",
            Self::FillRandom => "fillrandom",
            Self::Overwrite => "overwrite",
            Self::ReadRandom => "readrandom",
            Self::ReadMissing => "readmissing",
            Self::ReadSeq => "readseq",
            Self::ReadReverse => "readreverse",
            Self::SeekRandom => "seekrandom",
            Self::DeleteRandom => "deleterandom",
            Self::ReadWhileWriting => "readwhilewriting",
            Self::ScanWhileWriting => "scanwhilewriting",
        }
    }

    pub fn empties(self) -> bool {
        matches!(self, Self::FillSeq | Self::FillRandom)
    }
}

#[derive(Args, Clone, Debug, Serialize)]
pub struct DbBenchConfig {
    /// What to run, in this order
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fillrandom,fillseq,overwrite,readrandom,readmissing,readseq,readreverse,seekrandom,readwhilewriting,scanwhilewriting,deleterandom"
    )]
    pub benchmarks: Vec<Benchmark>,

    /// Numbers that keys are drawn from, and operations of each benchmark, of all threads together
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=u32::MAX as u64))]
    pub num: u64,

    /// Bytes of a key: decimal digits
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(10..=1024))]
    pub key_size: u64,

    /// Bytes of a value; the first eight say which write it is of
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(TAG_BYTES as u64..=1 << 30))]
    pub value_size: u64,

    /// Puts or deletes in a commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch_size: u64,

    /// Threads of a benchmark
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub threads: u64,

    /// Gets at each fresh snapshot
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads_per_snapshot: u64,

    /// Entries that seekrandom reads after the one it seeks
    #[arg(long, default_value_t = 0)]
    pub seek_nexts: u64,

    /// Seed of all random choices
    #[arg(long, default_value_t = 301)]
    pub seed: u64,

    /// Values of ascending bytes in place of pseudo random ones
    #[arg(long)]
    pub compressible: bool,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

impl DbBenchConfig {
    pub fn entry_bytes(&self) -> u64 {
        self.key_size + self.value_size
    }

    /// The number that operation `operation` of the benchmark at `step` of the list draws.
    #[inline]
    pub fn draw(&self, step: u64, operation: u64) -> u64 {
        let stream = keys::hash(self.seed ^ (step << 48));
        keys::below(keys::hash(stream.wrapping_add(operation)), self.num)
    }

    #[inline]
    pub fn write_key(&self, number: u64, key: &mut [u8]) {
        keys::decimal(number, key);
    }
}
