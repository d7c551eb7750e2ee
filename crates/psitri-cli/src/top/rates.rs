//! What changed between two records.
use psitri::StatsRecord;
use std::time::Duration;

/// A database that is in use writes a record twice a second; one that wrote none for this long has nothing to say.
const QUIET: Duration = Duration::from_millis(1500);

/// Per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub commits: f64,
    pub merged_entries: f64,
    pub merged_bytes: f64,
    /// Pages of the data file.
    pub written_bytes: f64,
    /// Records of the log.
    pub logged_bytes: f64,
}

impl Rates {
    /// `None` if the records are one, or of two openings of the database.
    fn between(before: &StatsRecord, now: &StatsRecord) -> Option<Rates> {
        let (from, to) = (&before.stats, &now.stats);
        if before.process_id != now.process_id || to.uptime_us <= from.uptime_us {
            return None;
        }
        let seconds = (to.uptime_us - from.uptime_us) as f64 / 1e6;
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        Some(Rates {
            commits: rate(from.commits, to.commits),
            merged_entries: rate(from.merged_entries, to.merged_entries),
            merged_bytes: rate(from.merged_bytes, to.merged_bytes),
            written_bytes: rate(from.written_bytes, to.written_bytes),
            logged_bytes: rate(from.wal_appended_bytes, to.wal_appended_bytes),
        })
    }
}

/// The newest record, and the rates that led to it.
#[derive(Debug, Clone)]
pub struct View {
    pub record: StatsRecord,
    /// `None` before there are two records, and when the last one is old.
    pub rates: Option<Rates>,
}

impl View {
    pub fn new(record: StatsRecord) -> View {
        View {
            record,
            rates: None,
        }
    }

    pub fn followed_by(self, record: StatsRecord) -> View {
        let is_same = self.record.process_id == record.process_id
            && self.record.stats.uptime_us == record.stats.uptime_us;
        let rates = if record.is_stale() {
            None
        } else if !is_same {
            Rates::between(&self.record, &record)
        } else if record.age() >= QUIET {
            Some(Rates::default())
        } else {
            self.rates
        };
        View { record, rates }
    }
}
