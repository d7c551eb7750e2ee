//! Parameters of the workload.
use super::mix::Distribution;
use super::population::SUBSCRIBERS_MAX;
use crate::sql::engine::SqlSettings;
use crate::workload::RunOptions;
use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
pub struct TatpConfig {
    /// Number of subscribers
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=SUBSCRIBERS_MAX))]
    pub subscribers: u32,

    /// Seconds to run for
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub duration: u64,

    /// Run this many transactions, however long they take, instead of a number of seconds
    #[arg(long, conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub transactions: Option<u64>,

    /// Which subscribers transactions choose
    #[arg(long, value_enum, default_value_t)]
    pub distribution: Distribution,

    /// Seed of the population
    #[arg(long, default_value_t = 12345)]
    pub load_seed: u64,

    /// Seed of the transactions
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    #[command(flatten)]
    #[serde(flatten)]
    pub settings: SqlSettings,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}
