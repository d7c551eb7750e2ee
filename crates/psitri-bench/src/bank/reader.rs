//! The reading side: batches of point reads, each at a fresh snapshot, while transfers run.
//!
//! Every read must find its account. In mode `latest`, every snapshot must also hold the newest log entry whose commit had returned
//! before the snapshot was taken: one read a batch, not counted, that finds a stale snapshot.
//!
//! The reads of a batch are handed over several at a time, for engines with a call that looks up many keys at once; the others read one after the other.
//!
//! Accounts are drawn some reads ahead and their names asked for then, as the writing side does: an engine is charged for its own cache misses only.
use super::encoding;
use crate::clock::Clock;
use crate::engine::{Engine, ReadMode, Snapshot};
use crate::names::Name;
use crate::prefetch::prefetch;
use crate::rng::Draws;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// At most so many reads are handed over at once.
pub const READS_AT_ONCE_MAX: u64 = 32;

/// More than are handed over at once, so that names are asked for well before they are needed.
const AHEAD_READS: usize = 48;

const _: () = assert!(AHEAD_READS > READS_AT_ONCE_MAX as usize);

pub struct Plan<'a> {
    pub names: &'a [Name],
    pub seed: u64,
    pub reads_per_batch: u64,
    /// How many of a batch are handed over at once, at most [`READS_AT_ONCE_MAX`].
    pub reads_at_once: u64,
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

/// The accounts to read, one after the other.
struct Accounts<'a> {
    names: &'a [Name],
    draws: Draws,
    /// The next ones, from `position` on and round to it.
    coming: [usize; AHEAD_READS],
    position: usize,
}

impl<'a> Accounts<'a> {
    fn start(names: &'a [Name], seed: u64) -> Self {
        let mut accounts = Self {
            names,
            draws: Draws::new(seed),
            coming: [0; AHEAD_READS],
            position: 0,
        };
        for _ in 0..AHEAD_READS {
            accounts.next();
        }
        accounts
    }

    #[inline]
    fn next(&mut self) -> &'a Name {
        let drawn = self.draws.triangular(self.names.len() as u64) as usize;
        prefetch(&self.names[drawn]);
        let next = std::mem::replace(&mut self.coming[self.position], drawn);
        self.position = (self.position + 1) % AHEAD_READS;
        &self.names[next]
    }
}

/// Reads until told to stop, at least one batch.
pub fn run<E: Engine>(
    engine: &E,
    plan: &Plan<'_>,
    clock: &Clock,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> Result<Outcome> {
    let mut accounts = Accounts::start(plan.names, plan.seed);
    let mut outcome = Outcome::default();
    let mut keys = [&[][..]; READS_AT_ONCE_MAX as usize];
    let start = clock.ticks();
    loop {
        let sequence = committed.load(Ordering::Acquire);
        let mut snapshot = engine.snapshot(plan.mode)?;
        outcome.snapshots += 1;
        if plan.mode == ReadMode::Latest && sequence > 0 {
            let fresh = snapshot.read(&encoding::log_key(sequence), |value| value.is_some())?;
            outcome.stale_snapshots += u64::from(!fresh);
        }
        let mut left = plan.reads_per_batch;
        while left > 0 {
            let count = left.min(plan.reads_at_once) as usize;
            for key in &mut keys[..count] {
                *key = accounts.next().as_bytes();
            }
            let mut look = |value: Option<&[u8]>| {
                outcome.found += u64::from(value.and_then(encoding::balance).is_some());
            };
            match &keys[..count] {
                [key] => snapshot.read(key, look)?,
                keys => snapshot.read_many(keys, &mut look)?,
            }
            left -= count as u64;
        }
        outcome.reads += plan.reads_per_batch;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    outcome.seconds = clock.seconds(start, clock.ticks());
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;

    #[test]
    fn accounts_come_in_the_order_in_which_they_are_drawn() {
        let names = names::names(1000, 1);
        let mut draws = Draws::new(7);
        let mut accounts = Accounts::start(&names, 7);
        for _ in 0..10 * AHEAD_READS {
            let expected = &names[draws.triangular(names.len() as u64) as usize];
            assert_eq!(accounts.next().as_bytes(), expected.as_bytes());
        }
    }
}
