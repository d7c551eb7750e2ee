//! The disk, real and simulated, and what the engine makes of one that is full, fails, or keeps less than it said.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod a_flush_out_of_space_poisons;
mod a_full_disk_beside_a_scan;
mod a_reference_beyond_the_file;
mod adversary_failures;
mod adversary_large_values;
mod adversary_recovery;
mod checkpoint_never_tears_a_transaction;
mod file_systems_without_holes;
mod large_values;
mod power_loss_with_large_values;
mod space_held_by_a_reader;
mod space_returned_in_use;
mod space_stays_bounded;
mod storage_contract;
mod storage_sim;

use psitri::Options;
use std::time::Duration;

/// Only what a story asks for is merged and stored.
fn options() -> Options {
    Options::new()
        .wal_segment_bytes(64 << 10)
        .idle_flush(Duration::from_secs(3600))
}

/// The seed to replay, or forty.
fn seeds() -> Vec<u64> {
    match std::env::var("PSITRI_SEED") {
        Ok(seed) => vec![seed.parse().expect("PSITRI_SEED is a number")],
        Err(_) => (1..=40).collect(),
    }
}
