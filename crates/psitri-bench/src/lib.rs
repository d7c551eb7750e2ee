//! The workloads that PsiTri is measured with.
//!
//! A workload is written once, against the traits of [`engine`], and compiled separately for every engine of a [`registry`]:
//! nothing on a measured path goes through a virtual call. [`cli`] is the command line, [`driver`] gives each engine a process of its own,
//! [`summary`] puts runs side by side. What all workloads share has a file of its own:
//! random draws ([`rng`]), names ([`names`]), time and latency ([`clock`], [`latency`]), throughput over time ([`throughput`]),
//! memory and disk ([`memory`], [`disk`]), progress ([`progress`]) and the report of a run ([`report`]).
#![deny(unsafe_code)]

pub mod bank;
pub mod cli;
pub mod clock;
pub mod conformance;
pub mod disk;
pub mod driver;
pub mod engine;
pub mod engines;
pub mod latency;
pub mod memory;
pub mod names;
pub mod progress;
pub mod registry;
pub mod report;
pub mod rng;
pub mod sql;
pub mod summary;
pub mod tatp;
pub mod throughput;
mod words;
pub mod workload;
