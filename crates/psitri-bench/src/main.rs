//! `psitri-bench`: runs a workload on an engine, checks the outcome, and reports figures only if the checks passed.
#![deny(unsafe_code)]

use psitri_bench::{cli, registry::Builtin};
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(&Builtin)
}
