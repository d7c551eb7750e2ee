//! Gets and scans beside one more thread that overwrites random keys, in batches, for as long as they take.
//!
//! A key that existed before must be found all the time; one that the writer adds may be found or not. A value may be the one from before or
//! the writer's.
use super::contents::tag;
use super::points::{Found, Order, Step};
use super::scans::Direction;
use crate::engine::{Engine, Writes};
use crate::reading::FreshReads;
use crate::workers::{self, Outcome};
use anyhow::{Context, Result, anyhow};
use std::sync::atomic::{AtomicBool, Ordering};

/// The readers' outcome, and how many operations the writer did in what time: those from zero on, all committed.
pub struct Beside {
    pub read: Outcome<Found>,
    pub written: u64,
    pub write_seconds: f64,
}

impl<E: Engine> Step<'_, E> {
    pub fn get_while_writing(&self) -> Result<Beside> {
        self.beside_writer(|| {
            workers::run(self.clock, self.shares(), |operations, recorder| {
                let config = self.contents.config;
                let mut found = Found::default();
                let mut key = vec![0; config.key_size as usize];
                let mut reads = FreshReads::new(self.engine, config.reads_per_snapshot);
                for operation in operations {
                    // Far from the writer's operations, which draw from the same stream.
                    let number = self.number(Order::Random, !operation);
                    config.write_key(number, &mut key);
                    let existed = self.contents.has(number);
                    recorder.timed(1, || {
                        reads.read(&key, |value| match value {
                            None => found.unexpected += u64::from(existed),
                            Some(value) => {
                                found.found += 1;
                                found.bytes += (key.len() + value.len()) as u64;
                                let right =
                                    self.contents.is_current_or_of(self.step, number, value);
                                found.wrong += u64::from(!right);
                            }
                        })
                    })?;
                }
                Ok(found)
            })
        })
    }

    pub fn scan_while_writing(&self) -> Result<Beside> {
        let keys_before = self.contents.keys();
        self.beside_writer(|| {
            workers::run(self.clock, self.shares(), |_, recorder| {
                let mut found =
                    self.scan_once(Direction::Forwards, recorder, |number, value| {
                        self.contents.is_current_or_of(self.step, number, value)
                    })?;
                // Nothing is deleted, so no snapshot has less.
                found.unexpected += keys_before.saturating_sub(found.found);
                Ok(found)
            })
        })
    }

    fn beside_writer(&self, read: impl FnOnce() -> Result<Outcome<Found>>) -> Result<Beside> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.overwrite_until(&stop));
            let read = read();
            // Also when a reader failed, or the writer would go on for ever.
            stop.store(true, Ordering::Relaxed);
            let (written, write_seconds) = writer
                .join()
                .map_err(|_| anyhow!("the writer panicked"))?
                .context("the writer failed")?;
            Ok(Beside {
                read: read?,
                written,
                write_seconds,
            })
        })
    }

    /// One batch at least.
    fn overwrite_until(&self, stop: &AtomicBool) -> Result<(u64, f64)> {
        let config = self.contents.config;
        let mut key = vec![0; config.key_size as usize];
        let mut value = Vec::with_capacity(config.value_size as usize);
        let mut operation = 0u64;
        let start = self.clock.ticks();
        loop {
            let mut writes = self.engine.begin_writes()?;
            for _ in 0..config.batch_size {
                let number = self.number(Order::Random, operation);
                config.write_key(number, &mut key);
                self.contents
                    .values()
                    .fill(tag(self.step, number), &mut value);
                writes.put(&key, &value)?;
                operation += 1;
            }
            writes.commit()?;
            if stop.load(Ordering::Relaxed) {
                let seconds = self.clock.seconds(start, self.clock.ticks());
                return Ok((operation, seconds));
            }
        }
    }
}
