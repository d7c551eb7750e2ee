//! Transactions: what they see, what others see of them, and who waits for whom.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod adversary_waiting;
mod batches_from_many_threads;
mod commits_of_few_keys;
mod commits_without_writes;
mod conservation;
mod direct_beside_merge;
mod direct_commit_beside_a_merge;
mod large_batches;
mod numbers_of_snapshots;
mod optimistic;
mod snapshots_across_threads;
mod spill;
mod trie_sees_whole_transactions;
mod txn_sees_own_writes;
mod writers_in_parallel;
