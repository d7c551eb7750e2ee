//! Parameters of the bank workload, with the success counts that are known for some of them.
use super::{reader::READS_AT_ONCE_MAX, transfers::ANNOUNCE_MAX};
use crate::engine::ReadMode;
use crate::names::NAMES_MAX;
use crate::workload::{EngineOptions, RunOptions};
use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
pub struct BankConfig {
    /// Number of accounts
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(2..=NAMES_MAX as u64))]
    pub num_accounts: u64,

    /// Transfers attempted in each of the two measured phases
    #[arg(long, default_value_t = 10_000_000)]
    pub num_transactions: u64,

    /// Attempts in one commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch_size: u64,

    /// One run on a new database for each of the batch sizes 1, 100, 1,000 and so on to 1,000,000. Phases have as many attempts as
    /// one batch at least
    #[arg(long, conflicts_with_all = ["batch_size", "limit"])]
    pub sweep: bool,

    /// Where the sweep ends
    #[arg(long, default_value_t = 1_000_000, requires = "sweep", value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep_batch_max: u64,

    /// Sync after every so many commits; 0 is never
    #[arg(long, default_value_t = 0)]
    pub sync_every: u64,

    /// An engine that can make use of it is told the accounts of so many transfers at once, none beyond the batch; 1 is each transfer on its own,
    /// 0 is none at all
    #[arg(long, default_value_t = ANNOUNCE_MAX, value_parser = clap::value_parser!(u64).range(..=ANNOUNCE_MAX))]
    pub announce: u64,

    /// Seed of all random choices
    #[arg(long, default_value_t = 12345)]
    pub seed: u64,

    /// Balance of each account at the start, and the largest amount
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub initial_balance: u64,

    /// Point reads in each batch of the reader thread, each batch at a fresh snapshot
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads_per_tx: u64,

    /// Reads of a batch that are handed over at once, to engines with a call that looks up many keys; 1 is one read after the other
    #[arg(long, default_value_t = READS_AT_ONCE_MAX, value_parser = clap::value_parser!(u64).range(1..=READS_AT_ONCE_MAX))]
    pub reads_at_once: u64,

    /// What the reader's snapshots see
    #[arg(long, value_enum, default_value_t)]
    pub read_mode: ReadMode,

    /// While transfers run beside the reader, sum all balances at one snapshot after another in a third thread
    #[arg(long)]
    pub audit: bool,

    /// Afterwards run the same attempts against a hash map and a mapped log, and report the share of that speed
    #[arg(long)]
    pub limit: bool,

    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineOptions,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

/// Successful transfers of the three phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Successes {
    pub warm_up: u64,
    pub write_only: u64,
    pub write_read: u64,
}

impl Successes {
    /// Log entries at the end. The sequence starts again after the warm-up, whose entries are overwritten.
    pub fn log_entries(&self) -> u64 {
        self.warm_up.max(self.write_only + self.write_read)
    }
}

impl BankConfig {
    pub fn warm_up_attempts(&self) -> u64 {
        (self.num_transactions / 10).min(100_000)
    }

    pub fn warm_up_seed(&self) -> u64 {
        self.seed ^ 0xDEAD
    }

    pub fn write_only_seed(&self) -> u64 {
        self.seed
    }

    pub fn write_read_seed(&self) -> u64 {
        self.seed.wrapping_add(1)
    }

    pub fn reader_seed(&self) -> u64 {
        self.write_read_seed().wrapping_add(999)
    }

    /// The sum of all balances, at every commit.
    pub fn balance_total(&self) -> u128 {
        u128::from(self.num_accounts) * u128::from(self.initial_balance)
    }

    /// The counts that other implementations of this workload arrive at, where they are published. They are the same at every batch size.
    pub fn known_successes(&self) -> Option<Successes> {
        if (self.seed, self.initial_balance) != (12345, 1_000_000) {
            return None;
        }
        match (self.num_accounts, self.num_transactions) {
            (100_000, 500_000) => Some(Successes {
                warm_up: 44_497,
                write_only: 347_804,
                write_read: 325_993,
            }),
            (1_000_000, 1_000_000) => Some(Successes {
                warm_up: 97_020,
                write_only: 811_292,
                write_read: 715_997,
            }),
            _ => None,
        }
    }
}
