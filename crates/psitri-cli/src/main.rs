//! `psitri`: look into a database, change single keys, and make copies, from the command line.
//!
//! Commands that only read open the database read-only, or beside the process that writes to it. What a command does is in [`commands`],
//! [`copies`], [`salvage`] and [`top`]; [`bar`] shows how far it is; [`text`] turns bytes into text and back; [`failure`] decides exit codes.
#![deny(unsafe_code)]

mod arguments;
mod bar;
mod commands;
mod copies;
mod failure;
mod salvage;
mod text;
mod top;

use arguments::Cli;
use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    // clap itself ends the process with code 2 when the usage is wrong.
    let cli = Cli::parse();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let outcome = commands::run(&cli, &mut out).and_then(|code| match out.flush() {
        // What was found stands, whoever reads it.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(code),
    });
    match outcome {
        Ok(code) => code,
        // Whoever read our output has enough of it (`psitri scan ... | head`).
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            failure::warn(&failure);
            failure.exit_code()
        }
    }
}
