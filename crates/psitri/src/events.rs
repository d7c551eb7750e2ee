//! What a database tells its program of its own accord: that writers wait, that something failed, that somebody holds a snapshot for long.
//!
//! # Thread safety
//! The handler is called from the thread in which something happened: a background thread, or that of a writer. It waits for the handler, and may
//! hold locks: the handler should be quick, and must not use the database.

use std::{fmt, time::Duration};

use crate::{engine::Engine, sync::Arc};

/// Something that happened. More kinds may come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Buffers were merged into the trees.
    Merged {
        /// Entries that were merged.
        entries: u64,
        /// How long it took.
        took: Duration,
    },
    /// A checkpoint is durable. Those by which transactions commit that are not in the log are counted in [`Stats::checkpoints`](crate::Stats::checkpoints) only.
    Checkpoint {
        /// How long it took.
        took: Duration,
    },
    /// A writer waited, because buffers fill faster than they are merged.
    Stalled {
        /// How long.
        waited: Duration,
    },
    /// A merge or a checkpoint failed, for want of space say. It is tried again. Told once, until it succeeds, and once for all of them while the disk is full; and once for each keyspace in which nothing is
    /// merged, but deltas could not be put into their leaves, until that succeeds.
    Failed {
        /// What was wrong.
        cause: String,
    },
    /// The database refuses writes from now on. Told once.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// A snapshot or transaction keeps space from being used again. Told once for each state of the database that is held for longer than
    /// [`Options::slow_reader_after`](crate::Options::slow_reader_after).
    SlowReader {
        /// How long ago what it sees was replaced.
        age: Duration,
        /// Dead nodes and values that are kept for snapshots, this one or others, and for the durable checkpoint.
        pending_bytes: u64,
    },
}

type Handler = dyn Fn(&Event) + Send + Sync;

/// The program's function, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Events(Option<Arc<Handler>>);

impl Events {
    pub fn new(handler: impl Fn(&Event) + Send + Sync + 'static) -> Events {
        Events(Some(Arc::new(handler)))
    }

    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    fn tell(&self, event: &Event) {
        if let Some(handler) = &self.0 {
            // Others may wait for whoever tells it: a panic goes no further than what the panic hook says of it.
            let call = std::panic::AssertUnwindSafe(|| handler(event));
            let _ = std::panic::catch_unwind(call);
        }
    }
}

impl Engine {
    /// Whether anybody might hear of events.
    pub fn is_heard(&self) -> bool {
        cfg!(any(feature = "tracing", feature = "metrics")) || self.options.events.is_heard()
    }

    /// Tells the program, `tracing` and `metrics` what happened; `event` is made only if one of them might hear it.
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if !self.is_heard() {
            return;
        }
        let event = event();
        #[cfg(feature = "tracing")]
        crate::trace::event(&event);
        #[cfg(feature = "metrics")]
        self.metrics.record(&event);
        self.options.events.tell(&event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_heard() { "a handler" } else { "none" })
    }
}
