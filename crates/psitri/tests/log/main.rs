//! The log: its records and segments, what replay makes of them, and what is left in it by checkpoints and by closing.
#![cfg(not(loom))]

mod a_checkpoint_leaves_a_small_log;
mod a_log_that_was_cut_stays_cut;
mod closing_without_a_checkpoint;
mod closing_writes_what_is_new;
mod recovery_needs_little_memory;
mod wal_crash;
mod wal_ops;
mod wal_replay;
mod what_is_replayed_is_merged;
