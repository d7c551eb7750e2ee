//! Figures of an open database for those who look on from outside: the statistics file, and `metrics` if that feature is on.
//!
//! A background thread that wakes up anyway calls [`Monitor::tick`]: that of the log, which neither merges nor takes checkpoints, or that of
//! the merge in a database without a log. Commits and reads know nothing of it.

use std::time::{Duration, Instant};

use crate::{engine::Engine, stats_file::StatsFile};

/// How often the figures are looked at.
const INTERVAL: Duration = Duration::from_millis(500);
/// A database that is open for less than this leaves no trace.
const FIRST_AFTER: Duration = Duration::from_millis(50);

pub(crate) struct Monitor<'e> {
    engine: &'e Engine,
    file: Option<StatsFile>,
    due: Instant,
}

impl<'e> Monitor<'e> {
    pub fn new(engine: &'e Engine) -> Monitor<'e> {
        let directory = engine.storage.side_directory();
        let mut file = directory.map(StatsFile::new);
        if !engine.options.stats_file {
            // Dropping it removes what a process that was killed left behind.
            file = None;
        }
        Monitor {
            engine,
            file,
            due: Instant::now() + FIRST_AFTER,
        }
    }

    /// Looks at the figures if it is time to.
    pub fn tick(&mut self) {
        let is_wanted = self.file.is_some() || cfg!(feature = "metrics");
        if is_wanted && Instant::now() >= self.due {
            self.due = Instant::now() + INTERVAL;
            self.look();
        }
    }

    fn look(&mut self) {
        // Figures that cannot be had now are had the next time.
        let Ok(stats) = self.engine.figures() else {
            return;
        };
        if let Some(file) = &mut self.file {
            file.write(&stats);
        }
        #[cfg(feature = "metrics")]
        self.engine.metrics.push(&stats);
    }
}

/// The last figures are those of a database that is closed.
impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        if cfg!(feature = "metrics") {
            self.look();
        }
    }
}
