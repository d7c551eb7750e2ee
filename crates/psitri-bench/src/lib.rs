//! The workloads that PsiTri is measured with.
//!
//! A workload is written once, against the traits of [`engine`], and compiled separately for every engine of a [`registry`]:
//! nothing on a measured path goes through a virtual call. [`cli`] is the command line, [`driver`] gives each engine a process of its own,
//! [`summary`] puts runs side by side. What all workloads share has a file of its own:
//! random draws ([`rng`]), names ([`names`]), time and latency ([`clock`], [`latency`]), throughput over time ([`throughput`]),
//! memory and disk ([`memory`], [`disk`], [`device`]), progress ([`progress`]) and the report of a run ([`report`]).
#![deny(unsafe_code)]

pub mod bank;
pub mod cli;
pub mod clock;
pub mod conformance;
pub mod db_bench;
pub mod device;
pub mod disk;
pub mod driver;
pub mod emdb;
pub mod engine;
pub mod engines;
pub mod fan_out;
pub mod keys;
pub mod latency;
pub mod lmdb_style;
pub mod memory;
pub mod names;
pub mod page;
pub mod pairs;
pub mod power_loss;
mod prefetch;
pub mod progress;
pub mod reading;
pub mod registry;
mod reopening;
pub mod report;
pub mod rng;
pub mod rows;
pub mod sampling;
pub mod soak;
pub mod space;
pub mod sql;
pub mod suite;
pub mod summary;
pub mod tatp;
pub mod throughput;
pub mod tides;
pub mod upsert;
pub mod usage;
pub mod values;
mod words;
pub mod workers;
pub mod workload;
