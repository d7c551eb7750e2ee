//! Housekeeping for the writers: log segments and buffer memory are touched ahead of them, full segments are flushed ahead of commits that
//! wait for the disk, and with [`Durability::Async`](crate::Durability::Async) the log is flushed at intervals. The thread also writes the
//! statistics file: it goes on while others merge and take checkpoints.
//!
//! Where no commit waits, full segments are left to the system: flushing a mapped segment takes every page from all processors once, which
//! was a fifth of the work of loads, and most of it is never needed, as the next checkpoint releases the segment.

use std::time::{Duration, Instant};

use crate::{Durability, engine::Engine, error::Error, monitor::Monitor, sync::Arc};

/// How often the thread looks whether the appender needs a segment.
const TICK: Duration = Duration::from_millis(2);

/// A log that nothing was appended to for so long is idle.
const IDLE: Duration = Duration::from_millis(20);

impl Engine {
    /// Body of the log thread; returns when the engine stops.
    pub fn run_log(&self) {
        let Some(log) = &self.log else {
            return;
        };
        let interval = self.options.async_interval;
        let flushes = self.options.durability == Durability::Async;
        let commits_wait = self.options.durability.waits();
        let mut flushed_at = Instant::now();
        let mut seen = log.appended_lsn();
        let mut moved_at = None;
        let mut monitor = Monitor::new(self);
        loop {
            if self.signals.lock.lock().stopping {
                return;
            }
            monitor.tick();
            if self.check_writable().is_ok() {
                let now = log.appended_lsn();
                if now != seen {
                    (seen, moved_at) = (now, Some(Instant::now()));
                }
                // An idle log needs no spare segments: they would only take space.
                let busy = moved_at.is_some_and(|at: Instant| at.elapsed() < IDLE);
                let for_waiting = commits_wait || log.was_waited_for();
                let for_flushes = for_waiting || flushes;
                if busy && !log.is_at_leisure(for_waiting) && log.needs_spare() {
                    // Without space for a spare the appender tries itself, and reports the error to its caller.
                    let _ = log
                        .prepare_spare(for_waiting)
                        .map_err(|error| self.log_failed(error));
                }
                let active = Arc::clone(self.states.current().active());
                active.populate_ahead(self.options.buffer_bytes as u64);
                drop(active);
                if busy
                    && for_flushes
                    && let Err(error) = log.flush_full_segments()
                {
                    self.poison(&Error::from(error));
                }
                let is_wanted = flushes || self.is_flush_wanted(log);
                if is_wanted && flushed_at.elapsed() >= interval {
                    flushed_at = Instant::now();
                    if log.durable_lsn() < log.appended_lsn()
                        && let Err(error) = self.flush_log()
                    {
                        self.poison(&error);
                    }
                }
            }
            let mut signals = self.signals.lock.lock();
            if !signals.stopping {
                self.signals.work.wait_for(&mut signals, TICK.min(interval));
            }
        }
    }
}
