//! Crashes, faults and damage under a random workload, beside an oracle that knows every state it went through.
#![cfg(not(loom))]

#[path = "../common/crash_world.rs"]
mod crash_world;

mod a_flush_that_was_a_lie;
mod bad_input;
mod crash_leaves_a_prefix;
mod faults_lose_nothing;
mod kill_nine_loses_no_commit;
