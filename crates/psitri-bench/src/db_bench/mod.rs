//! A list of benchmarks, one after another on one database, in the way of RocksDB's `db_bench`.
//!
//! As there, `fillseq` and `fillrandom` begin with an empty database and everything else works on what is there, and random keys are drawn
//! with repetition. Unlike there, values are incompressible unless asked for, the operations are divided among the threads, and the
//! outcome is known: which keys exist is kept beside the database, every value says which write it is of, and finds are counted against it.
mod config;
mod contents;
mod points;
mod run;
mod scans;
mod while_writing;

pub use config::{Benchmark, DbBenchConfig};
