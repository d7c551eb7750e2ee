//! What the harness itself costs: the attempts without an engine, and against the upper bound.
use super::config::BankConfig;
use super::limit;
use crate::clock::Clock;
use crate::names::{self, NAMES_MAX};
use crate::report::grouped;
use anyhow::Result;
use clap::{Args, Parser};

#[derive(Args, Clone, Debug)]
pub struct HarnessConfig {
    /// Number of accounts
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(2..=NAMES_MAX as u64))]
    num_accounts: u64,

    /// Transfers attempted
    #[arg(long, default_value_t = 10_000_000)]
    num_transactions: u64,

    /// Attempts in one commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: u64,

    /// Seed of all random choices
    #[arg(long, default_value_t = 12345)]
    seed: u64,

    /// Also run them against a hash map and a mapped log
    #[arg(long)]
    limit: bool,
}

/// The defaults of the bank's other parameters come from its own command line.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    bank: BankConfig,
}

impl HarnessConfig {
    pub fn run(&self) -> Result<bool> {
        let config = BankConfig {
            num_accounts: self.num_accounts,
            num_transactions: self.num_transactions,
            batch_size: self.batch_size,
            seed: self.seed,
            ..Defaults::parse_from(["harness"]).bank
        };
        let names = names::names(config.num_accounts as usize, config.seed);
        let clock = Clock::new();
        let rate = limit::harness_attempts_per_second(&config, &names, &clock)?;
        println!("{} attempts/s without an engine", grouped(rate as u64));
        if self.limit {
            let directory = std::env::temp_dir();
            let rate = limit::limit_attempts_per_second(&config, &names, &directory, &clock)?;
            println!("{} attempts/s at the limit", grouped(rate as u64));
        }
        Ok(true)
    }
}
