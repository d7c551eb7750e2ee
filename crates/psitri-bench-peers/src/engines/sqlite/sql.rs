//! SQLite as an engine for workloads in SQL, through rusqlite.
//!
//! Settings: journal and `synchronous` as the run asks, a write-ahead log without flushes unless told otherwise; the cache of prepared
//! statements is not used, for the workloads keep theirs. Statements are reset after each use, by rusqlite when it drops the rows.
use super::{FILE_NAME, MAPPED_BYTES_MAX, ONE_PROCESS};
use anyhow::{Context, Result, ensure};
use psitri_bench::engine::{CACHE_BYTES_COMMON, Description};
use psitri_bench::sql::engine::{
    Journal, Row, SqlEngine, SqlSettings, Statement, Synchronous, Value,
};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::path::Path;

pub struct SqliteSql {
    connection: Connection,
}

fn synchronous(settings: &SqlSettings) -> &'static str {
    match settings.synchronous {
        Synchronous::Off => "OFF",
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    }
}

fn journal(settings: &SqlSettings) -> &'static str {
    match settings.journal {
        Journal::Wal => "wal",
        Journal::Delete => "delete",
    }
}

struct Parameter<'v>(Value<'v>);

impl ToSql for Parameter<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Integer(value) => ValueRef::Integer(value),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

pub struct SqliteStatement<'c>(rusqlite::Statement<'c>);

pub struct SqliteRow<'r>(&'r rusqlite::Row<'r>);

impl Row for SqliteRow<'_> {
    fn integer(&self, column: usize) -> Result<i64> {
        Ok(self.0.get_ref(column)?.as_i64()?)
    }

    fn text(&self, column: usize) -> Result<&str> {
        Ok(self.0.get_ref(column)?.as_str()?)
    }
}

impl SqliteStatement<'_> {
    fn bind(&mut self, parameters: &[Value<'_>]) -> Result<()> {
        for (place, &value) in parameters.iter().enumerate() {
            self.0.raw_bind_parameter(place + 1, Parameter(value))?;
        }
        Ok(())
    }
}

impl Statement for SqliteStatement<'_> {
    type Row<'r> = SqliteRow<'r>;

    fn run(&mut self, parameters: &[Value<'_>]) -> Result<u64> {
        self.bind(parameters)?;
        // It resets the statement, also when it fails.
        Ok(self.0.raw_execute()? as u64)
    }

    fn query(
        &mut self,
        parameters: &[Value<'_>],
        mut each: impl FnMut(&SqliteRow<'_>) -> Result<()>,
    ) -> Result<u64> {
        self.bind(parameters)?;
        // The rows reset the statement when they are dropped.
        let mut rows = self.0.raw_query();
        let mut count = 0;
        while let Some(row) = rows.next()? {
            each(&SqliteRow(row))?;
            count += 1;
        }
        Ok(count)
    }
}

impl SqlEngine for SqliteSql {
    type Statement<'c> = SqliteStatement<'c>;

    fn describe(settings: &SqlSettings) -> Description {
        Description {
            version: rusqlite::version().to_owned(),
            settings: vec![
                format!("journal_mode {}", journal(settings)),
                format!("synchronous {}", synchronous(settings)),
                format!(
                    "VFS unix-excl, mmap_size {MAPPED_BYTES_MAX}, cache_size {} KiB, prepared statements, one connection",
                    CACHE_BYTES_COMMON >> 10
                ),
            ],
        }
    }

    fn create(path: &Path, settings: &SqlSettings) -> Result<Self> {
        fs::create_dir_all(path)?;
        let file = path.join(FILE_NAME);
        let connection =
            Connection::open_with_flags_and_vfs(&file, OpenFlags::default(), ONE_PROCESS)
                .with_context(|| format!("cannot open {}", file.display()))?;
        let wanted = journal(settings);
        let chosen: String =
            connection.query_row(&format!("PRAGMA journal_mode = {wanted}"), [], |row| {
                row.get(0)
            })?;
        ensure!(
            chosen == wanted,
            "SQLite chose the journal mode {chosen} instead of {wanted}"
        );
        connection.pragma_update(None, "synchronous", synchronous(settings))?;
        connection.pragma_update(None, "mmap_size", MAPPED_BYTES_MAX as i64)?;
        // Pages in the log are not mapped. Negative is in KiB.
        connection.pragma_update(None, "cache_size", -((CACHE_BYTES_COMMON >> 10) as i64))?;
        Ok(Self { connection })
    }

    fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.connection.execute_batch(sql)?)
    }

    fn prepare(&self, sql: &str) -> Result<SqliteStatement<'_>> {
        Ok(SqliteStatement(self.connection.prepare(sql)?))
    }

    fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| error.into())
    }
}
