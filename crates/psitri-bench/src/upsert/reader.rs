//! The reading side: random keys that were committed before, at fresh snapshots, until told to stop; one block of
//! them at least.
//!
//! Every read must find its key, with a value that was written to it, whole, and not earlier than the commit that the reader knows of.
use super::config::UpsertConfig;
use crate::engine::Engine;
use crate::keys;
use crate::reading::FreshReads;
use crate::values::TaggedValues;
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Reads between two looks at what has been committed.
const BLOCK_READS: u64 = 1_000;

/// What writer and readers share.
#[derive(Default)]
pub struct Shared {
    /// Upserts whose commits have returned.
    pub committed: AtomicU64,
    pub stop: AtomicBool,
    /// Reads of all readers.
    pub reads: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub missing: u64,
    /// Values that were never written to that key.
    pub wrong: u64,
    /// Values older than a commit that had returned before the snapshot.
    pub stale: u64,
}

pub fn run<E: Engine>(
    engine: &E,
    config: &UpsertConfig,
    values: &TaggedValues,
    reader: u64,
    shared: &Shared,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let salt = keys::hash(reader * 999_983 + 1);
    let mut drawn = 0u64;
    // The block and the snapshots within it begin together.
    loop {
        let is_last = shared.stop.load(Ordering::Relaxed);
        let committed = shared.committed.load(Ordering::Acquire);
        if committed == 0 {
            if is_last {
                return Ok(outcome);
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut reads = FreshReads::new(engine, config.reads_per_snapshot);
        for _ in 0..BLOCK_READS {
            drawn += 1;
            let known = keys::below(keys::hash(drawn.wrapping_add(salt)), committed);
            let key_number = config.key_number(known);
            let found = reads.read(&config.key(known), |value| {
                value.map(|value| values.tag(value))
            })?;
            match found {
                None => outcome.missing += 1,
                Some(None) => outcome.wrong += 1,
                Some(Some(upsert)) if config.key_number(upsert) != key_number => outcome.wrong += 1,
                Some(Some(upsert)) => outcome.stale += u64::from(upsert < known),
            }
        }
        shared.reads.fetch_add(BLOCK_READS, Ordering::Relaxed);
        if is_last {
            return Ok(outcome);
        }
    }
}
