//! New databases, one after another, for workloads that begin with an empty one many times.
//!
//! Each is in a directory of its own below the run's path, so that an engine may keep its files beside one another there.
use crate::clock::Clock;
use crate::engine::{Engine, Settings};
use crate::workload::Run;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub struct Databases<'a> {
    path: &'a Path,
    clock: &'a Clock,
    created: u32,
}

pub struct Database<E> {
    pub engine: E,
    /// How long it took to create.
    pub open_seconds: f64,
    settings: Settings,
    directory: PathBuf,
}

impl<'a> Databases<'a> {
    pub fn new(run: &Run<'a>) -> Self {
        Self {
            path: run.path,
            clock: run.clock,
            created: 0,
        }
    }

    pub fn create<E: Engine>(&mut self, settings: Settings) -> Result<Database<E>> {
        let directory = self.path.join(self.created.to_string());
        self.created += 1;
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let start = self.clock.ticks();
        let engine =
            E::create(&directory.join("db"), &settings).context("cannot create the database")?;
        Ok(Database {
            engine,
            open_seconds: self.clock.seconds(start, self.clock.ticks()),
            settings,
            directory,
        })
    }
}

impl<E: Engine> Database<E> {
    /// Closes and opens again, if the engine keeps anything; else it stays open.
    pub fn reopen(self) -> Result<Self> {
        if !E::CAPABILITIES.persistent {
            return Ok(self);
        }
        self.engine.close().context("cannot close the database")?;
        let engine = E::open(&self.directory.join("db"), &self.settings)
            .context("cannot open the database again")?;
        Ok(Self { engine, ..self })
    }

    /// Closes, and removes the files.
    pub fn discard(self) -> Result<()> {
        self.engine.close().context("cannot close the database")?;
        fs::remove_dir_all(&self.directory)
            .with_context(|| format!("cannot remove {}", self.directory.display()))
    }
}
