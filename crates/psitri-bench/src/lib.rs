//! The workloads that PsiTri is measured with.
//!
//! A workload (today [`bank`]) is written once, against the traits of [`engine`], and compiled separately for every engine in
//! [`engines`]: nothing on a measured path goes through a virtual call. What all workloads share has a file of its own:
//! random draws ([`rng`]), names ([`names`]), time and latency ([`clock`], [`latency`]), throughput over time ([`throughput`]),
//! memory and disk ([`memory`], [`disk`]), progress ([`progress`]) and the report ([`report`]).
#![deny(unsafe_code)]

pub mod bank;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod engines;
pub mod latency;
pub mod memory;
pub mod names;
pub mod progress;
pub mod report;
pub mod rng;
pub mod throughput;
mod words;
