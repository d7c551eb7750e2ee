//! Parameters of the tides.
use crate::values::ValueKind;
use crate::workload::{EngineOptions, RunOptions};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Ascending, in decimal digits.
    Seq,
    /// The number with the order of its eight bytes turned around, in hexadecimal digits. Not random, and where a key has
    /// less than 17 bytes some keys come twice: digits that have no room are cut off at the end.
    #[default]
    Random,
    /// The number with the order of its four bytes turned around: neither random, but no key comes twice.
    Random32,
    /// Every number once, in pseudo random order.
    Permutation,
    /// Few keys very often.
    Zipfian,
    /// Uniform with repetitions: about 63 in a hundred of the keys come at all.
    Uniform,
    /// A constant time of day in seconds, then the number.
    Timestamp,
    /// Descending.
    Reverse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Write,
    Read,
    /// All puts, then all gets.
    #[default]
    Mixed,
    Delete,
    Seek,
    Range,
}

impl Kind {
    /// Whether the database is filled before anything is measured.
    pub fn populates(self) -> bool {
        !matches!(self, Self::Write | Self::Mixed)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Mixed => "mixed",
            Self::Delete => "delete",
            Self::Seek => "seek",
            Self::Range => "range",
        }
    }
}

impl Pattern {
    pub fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Random => "random",
            Self::Random32 => "random32",
            Self::Permutation => "permutation",
            Self::Zipfian => "zipfian",
            Self::Uniform => "uniform",
            Self::Timestamp => "timestamp",
            Self::Reverse => "reverse",
        }
    }
}

#[derive(Args, Clone, Debug, Serialize)]
pub struct TidesConfig {
    /// Operations, of all threads together
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=u32::MAX as u64))]
    pub operations: u64,

    /// Bytes of a key: digits with zeros in front, and a zero byte at the end
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(11..=1024))]
    pub key_size: u64,

    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub value_size: u64,

    /// Threads, of which each does its part of the operations
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub threads: u64,

    /// Puts or deletes in a commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,

    /// Order and kind of keys
    #[arg(long, value_enum, default_value_t)]
    pub pattern: Pattern,

    /// What is measured. All but write and mixed fill the database first, and close it, without measuring that
    #[arg(long, value_enum, default_value_t)]
    pub workload: Kind,

    /// Entries that a range reads after its first, at most
    #[arg(long, default_value_t = 100)]
    pub range_size: u64,

    /// Gets at each fresh snapshot
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads_per_snapshot: u64,

    /// Bytes that values are made of
    #[arg(long, value_enum, default_value_t)]
    pub values: ValueKind,

    /// Add a row for each measured operation, and one for the full scan, to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub csv: Option<PathBuf>,

    /// What those rows are called
    #[arg(long, default_value = "tides")]
    pub test_name: String,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

impl TidesConfig {
    pub fn entry_bytes(&self) -> u64 {
        self.key_size + self.value_size
    }

    /// Puts in a commit while the database is filled.
    pub fn populate_batch(&self) -> u64 {
        match self.workload {
            Kind::Delete => self.batch,
            _ => 1_000,
        }
    }
}
