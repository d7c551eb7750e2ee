//! How fast the attempts can be at all: against a hash map with a log, and against nothing.
use super::config::BankConfig;
use super::oracle::Oracle;
use super::transfers;
use crate::clock::Clock;
use crate::engine::Writer;
use crate::engines::hash::Hash;
use crate::engines::noop::Noop;
use crate::names::Name;
use crate::progress::Progress;
use anyhow::{Result, ensure};
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A bound is what was possible once, so the best of so many runs counts.
const LIMIT_RUNS: usize = 3;

/// Attempts a second of the write-only phase against the upper bound, each run after the same warm-up. Counts are checked like an engine's.
pub fn limit_attempts_per_second(
    config: &BankConfig,
    names: &[Name],
    directory: &Path,
    clock: &Clock,
) -> Result<f64> {
    let expected = Oracle::new(config).successes;
    let mut best = 0.0f64;
    for _ in 0..LIMIT_RUNS {
        let hash = Hash::new(directory, names, config.initial_balance)?;
        let progress = Progress::new("limit", config.num_transactions);
        let warm_up_seed = config.warm_up_seed();
        let warm_up_attempts = config.warm_up_attempts();
        let hidden = Progress::hidden();
        let warm_up = phase(
            &hash,
            config,
            names,
            warm_up_seed,
            warm_up_attempts,
            clock,
            &hidden,
        )?;
        let seed = config.write_only_seed();
        let measured = phase(
            &hash,
            config,
            names,
            seed,
            config.num_transactions,
            clock,
            &progress,
        )?;
        let counted = (warm_up.successes, measured.successes);
        ensure!(
            counted == (expected.warm_up, expected.write_only),
            "the upper bound counted {counted:?} transfers, expected {expected:?}"
        );
        best = best.max(config.num_transactions as f64 / measured.seconds);
    }
    Ok(best)
}

/// Attempts a second of the harness alone.
pub fn harness_attempts_per_second(
    config: &BankConfig,
    names: &[Name],
    clock: &Clock,
) -> Result<f64> {
    let progress = Progress::new("harness", config.num_transactions);
    let outcome = phase(
        &Noop,
        config,
        names,
        config.write_only_seed(),
        config.num_transactions,
        clock,
        &progress,
    )?;
    Ok(config.num_transactions as f64 / outcome.seconds)
}

fn phase<W: Writer>(
    writer: &W,
    config: &BankConfig,
    names: &[Name],
    seed: u64,
    attempts: u64,
    clock: &Clock,
    progress: &Progress,
) -> Result<transfers::Outcome> {
    let plan = transfers::Plan {
        names,
        attempts,
        seed,
        amount_max: config.initial_balance,
        sequence_start: 0,
        batch_size: config.batch_size,
        sync_every: 0,
        announce: config.announce,
    };
    transfers::run(writer, &plan, clock, progress, &AtomicU64::new(0))
}
