//! What a workload in SQL asks of an engine: statements that are prepared once, with parameters and rows.
//!
//! Rules: (1) a statement outside of BEGIN and COMMIT is a transaction of its own; (2) `run` and `query` leave the statement reset, also
//! when they fail, so that no read transaction stays open behind a row; (3) an engine is used by one thread at a time.
//! The SQL is what SQLite understands.
use crate::engine::Description;
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// When a commit is flushed, in SQLite's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Synchronous {
    /// Never: commits survive the death of the process.
    #[default]
    Off,
    /// With a write-ahead log at checkpoints, in the background.
    Normal,
    /// At every commit.
    Full,
}

/// Where changes go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Journal {
    /// To a write-ahead log.
    #[default]
    Wal,
    /// To the database, after a copy of the old pages to a file that is deleted at the commit: SQLite's default.
    Delete,
}

/// How an engine is opened.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SqlSettings {
    /// When a commit is flushed
    #[arg(long, value_enum, default_value_t)]
    pub synchronous: Synchronous,

    /// Where changes go first, in engines that have a choice
    #[arg(long, value_enum, default_value_t)]
    pub journal: Journal,
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'v> {
    Integer(i64),
    Text(&'v str),
    Blob(&'v [u8]),
}

pub trait Row {
    /// A column, counted from zero. An error if it is of another type.
    fn integer(&self, column: usize) -> Result<i64>;

    fn text(&self, column: usize) -> Result<&str>;
}

pub trait Statement {
    type Row<'r>: Row;

    /// Runs a statement without rows; returns how many it changed.
    fn run(&mut self, parameters: &[Value<'_>]) -> Result<u64>;

    /// Calls `each` for every row; returns how many there were.
    fn query(
        &mut self,
        parameters: &[Value<'_>],
        each: impl FnMut(&Self::Row<'_>) -> Result<()>,
    ) -> Result<u64>;
}

pub trait SqlEngine: Sized {
    type Statement<'c>: Statement
    where
        Self: 'c;

    /// Version and settings as this program uses them.
    fn describe(settings: &SqlSettings) -> Description;

    /// Creates an empty database at `path`, which does not exist or is an empty directory.
    fn create(path: &Path, settings: &SqlSettings) -> Result<Self>;

    /// Runs statements without parameters and rows, separated by semicolons.
    fn execute(&self, sql: &str) -> Result<()>;

    fn prepare(&self, sql: &str) -> Result<Self::Statement<'_>>;

    fn close(self) -> Result<()>;
}

/// The only row of a query for integers, column by column.
pub fn integers<E: SqlEngine>(engine: &E, sql: &str, columns: usize) -> Result<Vec<i64>> {
    let mut values = Vec::with_capacity(columns);
    let rows = engine.prepare(sql)?.query(&[], |row| {
        for column in 0..columns {
            values.push(row.integer(column)?);
        }
        Ok(())
    })?;
    anyhow::ensure!(rows == 1, "`{sql}` returned {rows} rows instead of one");
    Ok(values)
}
