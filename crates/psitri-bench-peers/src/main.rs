//! `psitri-bench-peers`: `psitri-bench` with more engines. It has the same command line.
#![deny(unsafe_code)]

use psitri_bench::cli;
use psitri_bench_peers::Peers;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(&Peers)
}
