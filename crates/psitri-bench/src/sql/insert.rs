//! `sql-insert`: prepared INSERTs of one row, by integer key and by text key, each committed on its own and all in one transaction.
//!
//! The four tables are those of a known micro-benchmark: `(id INTEGER PRIMARY KEY, v BLOB)` with ids from 0 and `(k TEXT PRIMARY KEY, v
//! BLOB)` with keys `key00000000` and on, in order; the value is the number 42 in eight bytes. That benchmark gave SQLite its rollback
//! journal, of which every commit creates and deletes a file; here the journal is an option, and a write-ahead log without it.
//! Every statement's count of changes is checked, and each table afterwards: the number of rows, the sum and the extremes of the keys, all values.
use super::engine::{SqlEngine, SqlSettings, Statement, Value, integers};
use super::workload::SqlWorkload;
use crate::clock::Clock;
use crate::disk;
use crate::latency::Latency;
use crate::memory::MemorySampler;
use crate::progress::Progress;
use crate::report::{Phase, Report, Size, grouped};
use crate::workload::{Run, RunOptions};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;

const VALUE: u64 = 42;

#[derive(Args, Clone, Debug, Serialize)]
pub struct InsertConfig {
    /// Rows of each of the four tables
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=99_999_999))]
    pub rows: u64,

    #[command(flatten)]
    #[serde(flatten)]
    pub settings: SqlSettings,

    #[command(flatten)]
    #[serde(skip)]
    pub run: RunOptions,
}

#[derive(Clone, Copy)]
struct Table {
    /// And of the phase.
    name: &'static str,
    has_text_keys: bool,
    is_one_transaction: bool,
}

const TABLES: [Table; 4] = [
    Table {
        name: "integer_autocommit",
        has_text_keys: false,
        is_one_transaction: false,
    },
    Table {
        name: "integer_batched",
        has_text_keys: false,
        is_one_transaction: true,
    },
    Table {
        name: "text_autocommit",
        has_text_keys: true,
        is_one_transaction: false,
    },
    Table {
        name: "text_batched",
        has_text_keys: true,
        is_one_transaction: true,
    },
];

impl SqlWorkload for InsertConfig {
    const NAME: &'static str = "sql-insert";

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> SqlSettings {
        self.settings
    }

    fn run<E: SqlEngine>(&self, run: &Run<'_>) -> Result<Report> {
        let memory = MemorySampler::start();
        let engine = E::create(run.path, &self.settings).context("cannot create the database")?;
        let mut report = Report::new(Self::NAME, run.engine, serde_json::to_value(self)?);
        let mut failures = Vec::new();
        for table in TABLES {
            let phase = self
                .insert(&engine, table, run.clock)
                .with_context(|| format!("the phase {} failed", table.name))?;
            report.phases.push(phase);
            self.check(&engine, table, &mut failures)?;
        }
        let peak = memory.finish();
        report.checks.push(format!(
            "{} rows of each table: their number, the sum and the extremes of the keys, every value",
            grouped(self.rows)
        ));
        engine.close().context("cannot close the database")?;
        let usage = disk::usage(run.path)?;
        report.size = Some(Size {
            file_bytes: usage.allocated_bytes,
            file_length_bytes: usage.length_bytes,
            raw_bytes: self.rows * 2 * (8 + 8) + self.rows * 2 * (11 + 8),
            ..Size::default()
        });
        report.memory(&peak);
        if !failures.is_empty() {
            report.fail(failures);
        }
        Ok(report)
    }
}

impl InsertConfig {
    fn insert<E: SqlEngine>(&self, engine: &E, table: Table, clock: &Clock) -> Result<Phase> {
        let (name, key) = match table {
            Table {
                name,
                has_text_keys: true,
                ..
            } => (name, "k TEXT PRIMARY KEY"),
            Table { name, .. } => (name, "id INTEGER PRIMARY KEY"),
        };
        engine.execute(&format!("CREATE TABLE {name}({key}, v BLOB)"))?;
        let mut insert = engine.prepare(&format!("INSERT INTO {name} VALUES(?1, ?2)"))?;
        let value = VALUE.to_le_bytes();
        let mut text = String::new();
        let mut latency = Latency::new();
        let progress = Progress::new(name, self.rows);
        let start = clock.ticks();
        if table.is_one_transaction {
            engine.execute("BEGIN")?;
        }
        let mut before = clock.ticks();
        for row in 0..self.rows {
            let key = if table.has_text_keys {
                text.clear();
                write!(text, "key{row:08}")?;
                Value::Text(&text)
            } else {
                Value::Integer(row as i64)
            };
            let changed = insert.run(&[key, Value::Blob(&value)])?;
            ensure!(changed == 1, "an INSERT changed {changed} rows");
            let now = clock.ticks();
            latency.record(clock.nanoseconds(before, now));
            before = now;
            if row.is_multiple_of(1 << 12) {
                progress.at(row);
            }
        }
        if table.is_one_transaction {
            engine.execute("COMMIT")?;
        }
        let seconds = clock.seconds(start, clock.ticks());
        Ok(Phase {
            commits: Some(if table.is_one_transaction {
                1
            } else {
                self.rows
            }),
            latency_us: latency.summary(),
            ..Phase::new(name, self.rows, seconds)
        })
    }

    fn check<E: SqlEngine>(
        &self,
        engine: &E,
        table: Table,
        failures: &mut Vec<String>,
    ) -> Result<()> {
        let key = if table.has_text_keys {
            "CAST(substr(k, 4) AS INTEGER)"
        } else {
            "id"
        };
        let value: String = VALUE
            .to_le_bytes()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let name = table.name;
        let found = integers(
            engine,
            &format!(
                "SELECT COUNT(*), SUM({key}), MIN({key}), MAX({key}), SUM(v = x'{value}') FROM {name}"
            ),
            5,
        )?;
        let rows = self.rows as i64;
        let expected = vec![rows, rows * (rows - 1) / 2, 0, rows - 1, rows];
        if found != expected {
            failures.push(format!(
                "{name}: count, sum, smallest and largest key, and count of values are {found:?} instead of {expected:?}"
            ));
        }
        Ok(())
    }
}
