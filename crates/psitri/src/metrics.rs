//! Figures for the `metrics` crate, behind the feature of that name; without it there is no code.
//!
//! The [`Monitor`](crate::monitor::Monitor) pushes counters and gauges twice a second from a background thread; durations are recorded by those who took
//! the time. Every metric has the label `database`, the path. `docs/observability.md` lists them; a test compares.

use ::metrics::{Label, SharedString, Unit, counter, describe_counter, describe_gauge};
use ::metrics::{describe_histogram, gauge, histogram};

use crate::{
    Event, Stats,
    sync::{Arc, Mutex},
};

/// What becomes of a figure of [`Stats`].
#[derive(Clone, Copy)]
enum Kind {
    /// A total since the database was opened.
    Counter(Unit),
    /// The value of the moment, times a factor.
    Gauge(Unit, f64),
}

const BYTES: Kind = Kind::Gauge(Unit::Bytes, 1.0);
const COUNT: Kind = Kind::Gauge(Unit::Count, 1.0);
const TOTAL: Kind = Kind::Counter(Unit::Count);
const TOTAL_BYTES: Kind = Kind::Counter(Unit::Bytes);
const TOTAL_US: Kind = Kind::Counter(Unit::Microseconds);

/// Field of [`Stats`], name of the metric, kind, description.
const FIGURES: &[(&str, &str, Kind, &str)] = &[
    ("commits", "psitri_commits_total", TOTAL, "Commits"),
    ("merges", "psitri_merges_total", TOTAL, "Merges"),
    (
        "merged_entries",
        "psitri_merged_entries_total",
        TOTAL,
        "Entries merged into the trees",
    ),
    (
        "merged_bytes",
        "psitri_merged_bytes_total",
        TOTAL_BYTES,
        "Memory of the buffers merged",
    ),
    (
        "written_bytes",
        "psitri_written_bytes_total",
        TOTAL_BYTES,
        "Pages written to the data file",
    ),
    (
        "wal_appended_bytes",
        "psitri_log_appended_bytes_total",
        TOTAL_BYTES,
        "Records appended to the log",
    ),
    (
        "checkpoints",
        "psitri_checkpoints_total",
        TOTAL,
        "Checkpoints",
    ),
    (
        "stalls",
        "psitri_stalls_total",
        TOTAL,
        "Times that a writer waited for the merge",
    ),
    (
        "stalled_us",
        "psitri_stalled_microseconds_total",
        TOTAL_US,
        "How long writers waited for the merge",
    ),
    (
        "paced",
        "psitri_paced_total",
        TOTAL,
        "Times that a writer was slowed down",
    ),
    (
        "paced_us",
        "psitri_paced_microseconds_total",
        TOTAL_US,
        "How long writers were slowed down",
    ),
    (
        "buffer_bytes",
        "psitri_buffer_bytes",
        BYTES,
        "How full the active buffer is: memory in use, and versions written over older ones",
    ),
    (
        "frozen_buffers",
        "psitri_frozen_buffers",
        COUNT,
        "Buffers that wait for the merge",
    ),
    (
        "frozen_bytes",
        "psitri_frozen_bytes",
        BYTES,
        "Memory in use by frozen buffers, and versions written over older ones",
    ),
    (
        "wal_bytes",
        "psitri_log_bytes",
        BYTES,
        "Files of the log, spare ones included",
    ),
    (
        "wal_replay_bytes",
        "psitri_log_replay_bytes",
        BYTES,
        "Log that an opening would replay",
    ),
    (
        "wal_undurable_bytes",
        "psitri_log_undurable_bytes",
        BYTES,
        "Log that is not flushed",
    ),
    (
        "file_bytes",
        "psitri_file_bytes",
        BYTES,
        "Blocks of the data file",
    ),
    (
        "reachable_bytes",
        "psitri_reachable_bytes",
        BYTES,
        "Nodes and values of the newest trees",
    ),
    (
        "free_bytes",
        "psitri_free_bytes",
        BYTES,
        "Free pages of the data file",
    ),
    (
        "pending_bytes",
        "psitri_pinned_bytes",
        BYTES,
        "Dead nodes and values held by snapshots or the durable checkpoint",
    ),
    (
        "pins",
        "psitri_pins",
        COUNT,
        "Snapshots and transactions alive",
    ),
    (
        "oldest_pin_us",
        "psitri_oldest_pin_seconds",
        Kind::Gauge(Unit::Seconds, 1e-6),
        "How long ago the oldest state that is still seen was replaced",
    ),
    (
        "lookup_table_bytes",
        "psitri_lookup_table_bytes",
        BYTES,
        "Memory of tables that say where keys are",
    ),
];

/// How full the active buffer is, as a share of its size.
const BUFFER_FILL: &str = "psitri_buffer_fill";
const CHECKPOINT: &str = "psitri_checkpoint_seconds";
const MERGE: &str = "psitri_merge_seconds";
const STALL: &str = "psitri_stall_seconds";

/// The metrics of one database.
#[derive(Debug)]
pub(crate) struct Metrics {
    database: Arc<str>,
    /// What the counters were last raised to. A recorder may have counted for an earlier opening already.
    pushed: Mutex<[u64; FIGURES.len()]>,
}

impl Metrics {
    pub fn new(database: String) -> Metrics {
        for &(_, name, kind, what) in FIGURES {
            match kind {
                Kind::Counter(unit) => describe_counter!(name, unit, what),
                Kind::Gauge(unit, _) => describe_gauge!(name, unit, what),
            }
        }
        describe_gauge!(
            BUFFER_FILL,
            "How full the active buffer is, as a share of its size"
        );
        describe_histogram!(CHECKPOINT, Unit::Seconds, "How long checkpoints took");
        describe_histogram!(MERGE, Unit::Seconds, "How long merges took");
        describe_histogram!(
            STALL,
            Unit::Seconds,
            "How long writers waited for the merge"
        );
        Metrics {
            database: database.into(),
            pushed: Mutex::new([0; FIGURES.len()]),
        }
    }

    fn labels(&self) -> Vec<Label> {
        let database = SharedString::from(Arc::clone(&self.database));
        vec![Label::new("database", database)]
    }

    pub fn push(&self, stats: &Stats) {
        let values = stats.figures();
        let mut pushed = self.pushed.lock();
        for (&(figure, name, kind, _), pushed) in FIGURES.iter().zip(pushed.iter_mut()) {
            let value = values.iter().find(|(found, _)| *found == figure);
            let &(_, value) = value.expect("the table names figures of Stats");
            match kind {
                Kind::Counter(_) => {
                    let before = std::mem::replace(pushed, value);
                    counter!(name, self.labels()).increment(value.saturating_sub(before));
                }
                Kind::Gauge(_, factor) => gauge!(name, self.labels()).set(value as f64 * factor),
            }
        }
        let fill = stats.buffer_bytes as f64 / stats.buffer_bytes_max.max(1) as f64;
        gauge!(BUFFER_FILL, self.labels()).set(fill);
    }

    /// Records the duration of what an event tells of.
    pub fn record(&self, event: &Event) {
        let (name, took) = match event {
            Event::Checkpoint { took } => (CHECKPOINT, took),
            Event::Merged { took, .. } => (MERGE, took),
            Event::Stalled { waited } => (STALL, waited),
            _ => return,
        };
        histogram!(name, self.labels()).record(took.as_secs_f64());
    }
}
