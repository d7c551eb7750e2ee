//! A workload in SQL, as [`crate::workload`] is for the others: the value of its arguments, generic over the engine.
use super::engine::{SqlEngine, SqlSettings};
use crate::driver::Job;
use crate::engine::Description;
use crate::registry::Engines;
use crate::report::Report;
use crate::workload::{Run, RunOptions};
use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

pub trait SqlWorkload: Args + Serialize + Clone {
    const NAME: &'static str;

    fn options(&self) -> &RunOptions;

    fn settings(&self) -> SqlSettings;

    /// Engines that need no SQL for this workload: their names.
    fn native_engines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Runs on one of the engines that need no SQL; nothing if there is none of that name.
    fn run_native(&self, _run: &Run<'_>) -> Result<Option<Report>> {
        Ok(None)
    }

    /// Runs on a new database. An error is one of the engine or of the system; a check that fails is in the report.
    fn run<E: SqlEngine>(&self, run: &Run<'_>) -> Result<Report>;
}

/// An SQL engine of a registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SqlEntry {
    pub name: String,
    /// With default settings.
    pub description: Description,
}

impl SqlEntry {
    pub fn of<E: SqlEngine>(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: E::describe(&SqlSettings::default()),
        }
    }
}

/// Runs `workload` on `E` and completes the report.
pub fn run<W: SqlWorkload, E: SqlEngine>(workload: &W, run: &Run<'_>) -> Result<Report> {
    let start = run.clock.ticks();
    let mut report = workload.run::<E>(run)?;
    report.description = Some(E::describe(&workload.settings()));
    report.wall_seconds = run.clock.seconds(start, run.clock.ticks());
    Ok(report)
}

/// A workload in SQL as something that the driver runs.
pub struct SqlJob<'w, W>(pub &'w W);

impl<W: SqlWorkload> Job for SqlJob<'_, W> {
    fn options(&self) -> &RunOptions {
        self.0.options()
    }

    fn engines<R: Engines>(&self, registry: &R) -> Vec<String> {
        let mut names = self.0.native_engines();
        names.extend(registry.sql_entries().into_iter().map(|entry| entry.name));
        names
    }

    fn run<R: Engines>(&self, registry: &R, run: &Run<'_>) -> Result<Option<Report>> {
        match self.0.run_native(run)? {
            Some(report) => Ok(Some(report)),
            None => registry.run_sql(self.0, run),
        }
    }
}
