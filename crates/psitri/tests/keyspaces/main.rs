//! Keyspaces that come and go, share their trees, are loaded in bulk and packed.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod adversary_keyspaces;
mod bulk_loads;
mod checkpoint_after_a_drop;
mod compaction;
mod many_keyspaces;
mod shared_trees;
