//! What somebody who runs a database asks of it: backups, figures, progress, errors that say what to do, and readers beside it.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod a_checkpoint_while_a_reader_opens;
mod backups;
mod errors_say_what_to_do;
mod progress;
mod statistics_file;
