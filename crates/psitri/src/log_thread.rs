//! The log's housekeeping: segments are made and touched ahead of the writer, full ones are flushed, and with
//! [`Durability::Async`](crate::Durability::Async) the log is flushed at intervals.

use std::time::{Duration, Instant};

use crate::{Durability, engine::Engine, error::Error};

/// How often the thread looks whether the appender needs a segment.
const TICK: Duration = Duration::from_millis(2);

impl Engine {
    /// Body of the log thread; returns when the engine stops.
    pub fn run_log(&self) {
        let Some(log) = &self.log else {
            return;
        };
        let interval = self.options.async_interval;
        let flushes = self.options.durability == Durability::Async;
        let mut flushed_at = Instant::now();
        loop {
            if self.signals.lock.lock().stopping {
                return;
            }
            if self.check_writable().is_ok() {
                if log.needs_maintenance() {
                    // Without space for a spare the appender tries itself, and reports the error to its caller.
                    let _ = log.prepare_spare();
                    if let Err(error) = log.flush_full_segments() {
                        self.poison(&Error::from(error));
                    }
                }
                if flushes && flushed_at.elapsed() >= interval {
                    flushed_at = Instant::now();
                    if log.durable_lsn() < log.appended_lsn()
                        && let Err(error) = self.flush_log()
                    {
                        self.poison(&error);
                    }
                }
            }
            std::thread::sleep(TICK.min(interval));
        }
    }
}
