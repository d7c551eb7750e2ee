//! The log: its records and segments, what replay makes of them, and what is left in it by checkpoints and by closing.
#![cfg(not(loom))]

mod a_checkpoint_leaves_a_small_log;
mod a_log_that_was_cut_stays_cut;
mod closing_without_a_checkpoint;
mod closing_writes_what_is_new;
mod recovery_needs_little_memory;
mod replay_reads_ahead;
mod the_log_stays_short;
mod wal_crash;
mod wal_ops;
mod wal_replay;
mod what_is_replayed_is_merged;

use std::{os::unix::fs::MetadataExt, path::Path};

/// Bytes on the disk of the files whose names begin with `prefix`.
fn allocated(path: &Path, prefix: &str) -> u64 {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(prefix))
        .map(|file| file.metadata().unwrap().blocks() * 512)
        .sum()
}

/// Keys in no order.
fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(0x9e37_79b9).to_be_bytes()
}
