//! Samples of file sizes and reachable bytes, taken by a thread of their own.
use super::file_bytes;
use anyhow::{Result, anyhow};
use psitri::Database;
use serde::Serialize;
use std::{
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// Sizes at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reading {
    /// Blocks of the data file.
    pub data_bytes: u64,
    /// Blocks of all other files: the log.
    pub log_bytes: u64,
    pub reachable_bytes: u64,
    /// Dead, and still held by a snapshot or by the durable checkpoint.
    pub pending_bytes: u64,
    pub free_bytes: u64,
    pub checkpoints: u64,
}

impl Reading {
    pub fn ratio(&self) -> f64 {
        self.data_bytes as f64 / self.reachable_bytes.max(1) as f64
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Sample {
    pub second: f64,
    pub phase: String,
    pub reading: Reading,
}

/// The csv crate does not flatten.
impl Serialize for Sample {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            second: String,
            phase: &'a str,
            data_bytes: u64,
            log_bytes: u64,
            reachable_bytes: u64,
            pending_bytes: u64,
            free_bytes: u64,
            ratio: String,
        }
        let reading = &self.reading;
        Line {
            second: format!("{:.2}", self.second),
            phase: &self.phase,
            data_bytes: reading.data_bytes,
            log_bytes: reading.log_bytes,
            reachable_bytes: reading.reachable_bytes,
            pending_bytes: reading.pending_bytes,
            free_bytes: reading.free_bytes,
            ratio: format!("{:.4}", reading.ratio()),
        }
        .serialize(serializer)
    }
}

pub struct Sampler<'a> {
    pub database: &'a Database,
    pub directory: &'a Path,
    pub start: Instant,
    pub phase: &'a str,
}

impl Sampler<'_> {
    /// The sizes now. What is reachable may change between the two looks, by what a merge publishes at once.
    pub fn take(&self) -> Result<Sample> {
        let stats = self.database.stats()?;
        let (data_bytes, log_bytes) = file_bytes(self.directory)?;
        Ok(Sample {
            second: self.start.elapsed().as_secs_f64(),
            phase: self.phase.to_owned(),
            reading: Reading {
                data_bytes,
                log_bytes,
                reachable_bytes: stats.reachable_bytes,
                pending_bytes: stats.pending_bytes,
                free_bytes: stats.free_bytes,
                checkpoints: stats.checkpoints,
            },
        })
    }

    /// Does the work in this thread, and takes samples in another one.
    pub fn beside<R>(
        &self,
        interval: Duration,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<(R, Vec<Sample>)> {
        let (stop, stopped) = channel::<()>();
        std::thread::scope(|scope| {
            let sampling = scope.spawn(move || -> Result<Vec<Sample>> {
                let mut samples = vec![self.take()?];
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    samples.push(self.take()?);
                }
                Ok(samples)
            });
            let done = work();
            drop(stop);
            let samples = sampling
                .join()
                .map_err(|_| anyhow!("the thread that takes samples panicked"))??;
            Ok((done?, samples))
        })
    }
}
