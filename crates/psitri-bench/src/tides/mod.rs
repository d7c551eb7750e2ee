//! Puts, gets, deletes, seeks and ranges by several threads: the workloads of TidesDB's benchmark tool, with checked results.
//!
//! Threads share the numbers `0..operations` in equal parts; a pattern turns a number into a key, and the key decides the value, so that
//! every read knows what it must find whoever wrote last. What the original leaves unmeasured or gets wrong is named where it is mended:
//! misses count as failures, latencies have nanoseconds, memory is the peak, and the row of the full scan has all its columns.
mod check;
mod config;
mod operations;
mod patterns;
mod row;
mod run;
mod suite;

pub use config::{Kind, Pattern, TidesConfig};
pub use suite::cases;
