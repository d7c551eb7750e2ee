//! The reading side: batches of point reads, each at a fresh snapshot, while transfers run.
//!
//! Every read must find its account. In mode `latest`, every snapshot must also hold the newest log entry whose commit had returned
//! before the snapshot was taken: one read a batch, not counted, that finds a stale snapshot.
use super::encoding;
use crate::clock::Clock;
use crate::engine::{Engine, ReadMode, Snapshot};
use crate::names::Name;
use crate::rng::Draws;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub struct Plan<'a> {
    pub names: &'a [Name],
    pub seed: u64,
    pub reads_per_batch: u64,
    pub mode: ReadMode,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub seconds: f64,
    pub reads: u64,
    /// Reads that found a balance.
    pub found: u64,
    pub snapshots: u64,
    /// Snapshots that missed a commit which had returned before.
    pub stale_snapshots: u64,
}

/// Reads until told to stop, at least one batch.
pub fn run<E: Engine>(
    engine: &E,
    plan: &Plan<'_>,
    clock: &Clock,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> Result<Outcome> {
    let mut draws = Draws::new(plan.seed);
    let mut outcome = Outcome::default();
    let start = clock.ticks();
    loop {
        let sequence = committed.load(Ordering::Acquire);
        let mut snapshot = engine.snapshot(plan.mode)?;
        outcome.snapshots += 1;
        if plan.mode == ReadMode::Latest && sequence > 0 {
            let fresh = snapshot.read(&encoding::log_key(sequence), |value| value.is_some())?;
            outcome.stale_snapshots += u64::from(!fresh);
        }
        for _ in 0..plan.reads_per_batch {
            let name = &plan.names[draws.triangular(plan.names.len() as u64) as usize];
            let balance =
                snapshot.read(name.as_bytes(), |value| value.and_then(encoding::balance))?;
            outcome.found += u64::from(balance.is_some());
        }
        outcome.reads += plan.reads_per_batch;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    outcome.seconds = clock.seconds(start, clock.ticks());
    Ok(outcome)
}
