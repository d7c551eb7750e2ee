//! Parameters of the upserts, and which key each of them is for.
use crate::keys;
use crate::values::TAG_BYTES;
use crate::workload::{EngineOptions, RunOptions};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

pub const KEY_BYTES: usize = 8;

#[derive(Args, Clone, Debug, Serialize)]
pub struct UpsertConfig {
    /// Rounds; each is a row and a point of the curve
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub rounds: u64,

    /// Upserts in a round
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub items: u64,

    /// Upserts in a commit
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,

    /// Bytes of a value; the first eight are the number of the upsert
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(TAG_BYTES as u64..=1 << 30))]
    pub value_size: u64,

    /// Values of ascending bytes in place of pseudo random ones
    #[arg(long)]
    pub compressible: bool,

    /// Threads that read keys which were written before, and check their values
    #[arg(long, default_value_t = 0)]
    pub readers: usize,

    /// Point reads of a reader at each fresh snapshot
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads_per_snapshot: u64,

    /// Draw keys from a fixed set, so that upserts really overwrite
    #[arg(long)]
    pub true_overwrite: bool,

    /// Number of keys in that set; the upserts of one round without
    #[arg(long, requires = "true_overwrite", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub key_space: Option<u64>,

    /// Add a row for each round to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub csv: Option<PathBuf>,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

impl UpsertConfig {
    pub fn upserts(&self) -> u64 {
        self.rounds * self.items
    }

    /// The number of keys that upserts draw from, where they repeat.
    pub fn key_space(&self) -> Option<u64> {
        self.true_overwrite
            .then(|| self.key_space.unwrap_or(self.items))
    }

    /// Which key an upsert is for, as a number: its own, or one of the set.
    #[inline]
    pub fn key_number(&self, upsert: u64) -> u64 {
        match self.key_space() {
            None => upsert,
            // Not the hash that the key is made of, or keys would be in the order of their draws.
            Some(size) => keys::below(keys::hash(!upsert), size),
        }
    }

    #[inline]
    pub fn key(&self, upsert: u64) -> [u8; KEY_BYTES] {
        keys::hash(self.key_number(upsert)).to_le_bytes()
    }

    pub fn entry_bytes(&self) -> u64 {
        KEY_BYTES as u64 + self.value_size
    }

    /// Bytes of keys and values at the end, at most.
    pub fn data_bytes(&self) -> u64 {
        self.key_space()
            .unwrap_or(u64::MAX)
            .min(self.upserts())
            .saturating_mul(self.entry_bytes())
    }
}
