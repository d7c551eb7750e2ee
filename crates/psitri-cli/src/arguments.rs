//! The command line.
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Look into PsiTri databases and change single keys.
///
/// Keys and values are text, or hexadecimal digits with --hex. What is not printable is shown with escapes such as \x00.
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit codes:
  0  done
  1  key not found, verify found damage, salvage lost something, or top found no process that has the database open and is alive
  2  wrong usage
  3  the database cannot be opened: missing, locked by another process, or corrupted
  4  the database was opened, but the operation failed"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// The database and the keyspace in it.
#[derive(Args)]
pub struct Target {
    /// Path of the database
    pub database: PathBuf,

    /// Keyspace to work on
    #[arg(long, default_value = "default")]
    pub keyspace: String,

    /// Keys and values are given and printed as hexadecimal digits
    #[arg(long)]
    pub hex: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Sizes, counts and progress of the database
    Stat {
        /// Path of the database
        database: PathBuf,
    },
    /// Watch a database that another process has open; q ends it
    Top {
        /// Path of the database
        database: PathBuf,
        /// Time between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
        interval: f64,
        /// Print one frame as text, or as JSON with --json, and end
        #[arg(long)]
        once: bool,
    },
    /// Check every page and every entry up to the first damage of each keyspace, and how the space of the file is used. What only the log has is checked when it is replayed, which opening does
    Verify {
        /// Path of the database
        database: PathBuf,
    },
    /// Print the value of a key
    Get {
        #[command(flatten)]
        target: Target,
        key: String,
    },
    /// Write a key, whether it exists or not. The keyspace is made if it is missing
    Put {
        #[command(flatten)]
        target: Target,
        key: String,
        /// The value; `-` reads it from standard input, byte for byte
        value: String,
        /// Create the database if it is missing
        #[arg(long)]
        create: bool,
        /// Let the entry expire after so many seconds; a keyspace that is missing is made for entries that expire
        #[arg(long, value_name = "SECONDS")]
        expire_after: Option<u64>,
    },
    /// Delete a key
    Del {
        #[command(flatten)]
        target: Target,
        key: String,
    },
    /// Print entries in the order of their keys
    Scan {
        #[command(flatten)]
        target: Target,
        /// Only keys that begin with this
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
        /// At most so many entries
        #[arg(long)]
        limit: Option<u64>,
        /// From the last key to the first
        #[arg(long)]
        reverse: bool,
    },
    /// Names of the keyspaces
    Keyspaces {
        /// Path of the database
        database: PathBuf,
    },
    /// Make the data file as small as its content allows
    Compact {
        /// Path of the database
        database: PathBuf,
    },
    /// Merge everything, write a checkpoint and make it durable
    Checkpoint {
        /// Path of the database
        database: PathBuf,
    },
    /// Copy the database to a new directory, or what has changed since other backups
    ///
    /// Saved snapshots are not copied.
    Backup {
        /// Path of the database
        database: PathBuf,
        /// Where the backup goes: a directory that is empty or does not exist
        directory: PathBuf,
        /// Only what has changed since this backup; more than once for a chain: the full one first, then the incremental ones
        #[arg(long, value_name = "BACKUP")]
        since: Vec<PathBuf>,
    },
    /// Make a database from a full backup and the incremental ones after it
    Restore {
        /// Where the database goes: a directory that is empty or does not exist
        database: PathBuf,
        /// The full backup, then the incremental ones, oldest first
        #[arg(required = true)]
        backups: Vec<PathBuf>,
    },
    /// Rebuild what can be read of a damaged database into a new one, and say what is lost
    ///
    /// Subtrees become keyspaces of their own, and saved snapshots are left out: the report counts both.
    Salvage {
        /// Path of the damaged database; it is not changed
        damaged: PathBuf,
        /// Where the new database goes: a directory that is empty or does not exist
        target: PathBuf,
        /// Apply commits behind damage in the log too: the result may be a state that never was
        #[arg(long)]
        past_damage: bool,
    },
    /// Print all keyspaces and entries as text, for `load`, but no subtrees and no saved snapshots
    ///
    /// How many of these there are is said on standard error.
    Dump {
        /// Path of the database
        database: PathBuf,
    },
    /// Write what `dump` printed, from standard input, to a database that may exist
    Load {
        /// Path of the database
        database: PathBuf,
    },
}
