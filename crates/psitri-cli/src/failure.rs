//! Why a command failed, and the exit code that says so.
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const NOT_FOUND: u8 = 1;
const USAGE: u8 = 2;
const CANNOT_OPEN: u8 = 3;
const OPERATION: u8 = 4;

#[derive(Debug)]
pub enum Failure {
    /// Arguments that clap accepts and we cannot use.
    Usage(String),
    /// A keyspace that is not there.
    NoKeyspace(String),
    /// Nobody has the database open, or without statistics.
    NoStatistics(psitri::Error),
    Missing(PathBuf),
    Open(PathBuf, psitri::Error),
    Operation(psitri::Error),
    Io(io::Error),
}

/// Says something on standard error, where somebody may listen.
pub fn warn(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "psitri: {what}");
}

impl Failure {
    /// What an error of opening `path` means: a path that is not there is told apart, the engine's own message says the rest.
    pub fn open(path: &Path, error: psitri::Error) -> Self {
        if path.exists() {
            Self::Open(path.to_owned(), error)
        } else {
            Self::Missing(path.to_owned())
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => USAGE,
            Self::NoKeyspace(_) | Self::NoStatistics(_) => NOT_FOUND,
            Self::Missing(_) | Self::Open(..) => CANNOT_OPEN,
            Self::Operation(_) | Self::Io(_) => OPERATION,
        })
    }

    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) => f.write_str(what),
            Self::NoKeyspace(name) => write!(
                f,
                "there is no keyspace {name:?}; `psitri keyspaces` lists them"
            ),
            Self::Missing(path) => write!(f, "there is no database at {}", path.display()),
            Self::Open(path, error) => write!(f, "cannot open {}: {error}", path.display()),
            Self::Operation(error) | Self::NoStatistics(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<psitri::Error> for Failure {
    fn from(error: psitri::Error) -> Self {
        Self::Operation(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
