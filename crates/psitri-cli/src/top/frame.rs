//! A record in words: titled groups of lines, the same on the screen and as text.
use super::rates::View;
use indicatif::{HumanBytes, HumanCount};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Lines about one thing.
pub struct Group {
    pub title: &'static str,
    /// What it is, and its value.
    pub lines: Vec<(&'static str, String)>,
}

/// All that is known about a database at one moment.
pub struct Frame {
    pub database: String,
    /// Who has it open, or why nobody knows.
    pub state: String,
    pub is_stale: bool,
    pub failure: Option<String>,
    pub groups: Vec<Group>,
}

pub fn bytes(value: u64) -> String {
    HumanBytes(value).to_string()
}

pub fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// A time, to two or three digits.
pub fn time(value: Duration) -> String {
    let seconds = value.as_secs();
    match seconds {
        0..60 if value.is_zero() => "0 s".to_owned(),
        0 if value.as_millis() == 0 => format!("{} µs", value.as_micros()),
        0 => format!("{} ms", value.as_millis()),
        1..10 => format!("{:.1} s", value.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn us(value: u64) -> String {
    time(Duration::from_micros(value))
}

/// Work that goes on, or does not.
fn at_work(us_so_far: u64) -> String {
    match us_so_far {
        0 => "no".to_owned(),
        so_far => format!("for {}", us(so_far)),
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / whole.max(1) as f64)
}

impl Frame {
    pub fn new(path: &Path, view: &View) -> Frame {
        let (record, stats) = (&view.record, &view.record.stats);
        let age = time(record.age());
        let is_stale = record.is_stale();
        let state = if is_stale {
            let process = record.process_id;
            format!("no news for {age}: process {process} was killed, or hangs; what it said last:")
        } else {
            let (process, uptime) = (record.process_id, us(stats.uptime_us));
            format!("open in process {process} for {uptime}; as of {age} ago")
        };
        let rate = |of: fn(&super::Rates) -> f64| view.rates.as_ref().map(of);
        let number = |rate: Option<f64>| rate.map_or("-".into(), |rate| count(rate.round() as u64));
        let size = |rate: Option<f64>| rate.map_or("-".into(), |rate| bytes(rate.round() as u64));
        let groups = vec![
            Group {
                title: "throughput",
                lines: vec![
                    ("commits /s", number(rate(|r| r.commits))),
                    ("merged entries /s", number(rate(|r| r.merged_entries))),
                    ("merged buffers /s", size(rate(|r| r.merged_bytes))),
                    ("data file, written /s", size(rate(|r| r.written_bytes))),
                    ("log, written /s", size(rate(|r| r.logged_bytes))),
                    ("commits since opening", count(stats.commits)),
                ],
            },
            Group {
                title: "layers",
                lines: vec![
                    (
                        "active buffer",
                        format!(
                            "{} of {}, {}",
                            bytes(stats.buffer_bytes),
                            bytes(stats.buffer_bytes_max),
                            percent(stats.buffer_bytes, stats.buffer_bytes_max)
                        ),
                    ),
                    (
                        "frozen, waiting",
                        format!("{} of {}", stats.frozen_buffers, stats.frozen_buffers_max),
                    ),
                    ("held back by a transaction", count(stats.blocked_buffers)),
                    ("frozen, memory", bytes(stats.frozen_bytes)),
                ],
            },
            Group {
                title: "merge",
                lines: vec![
                    ("at work", at_work(stats.merging_us)),
                    (
                        "merges",
                        format!("{} in {}", count(stats.merges), us(stats.merge_us)),
                    ),
                    ("entries", count(stats.merged_entries)),
                ],
            },
            Group {
                title: "checkpoints",
                lines: vec![
                    ("at work", at_work(stats.checkpointing_us)),
                    (
                        "checkpoints",
                        format!(
                            "{} in {}",
                            count(stats.checkpoints),
                            us(stats.checkpoint_us)
                        ),
                    ),
                    ("the last took", us(stats.checkpoint_last_us)),
                ],
            },
            Group {
                title: "log",
                lines: vec![
                    ("to replay", bytes(stats.wal_replay_bytes)),
                    ("not flushed", bytes(stats.wal_undurable_bytes)),
                    (
                        "files",
                        format!(
                            "{} in {} segments and {} spare",
                            bytes(stats.wal_bytes),
                            stats.wal_segments,
                            stats.wal_spares
                        ),
                    ),
                ],
            },
            Group {
                title: "readers",
                lines: vec![
                    ("snapshots and transactions", count(stats.pins)),
                    ("oldest sees the past of", us(stats.oldest_pin_us)),
                    ("dead, but held", bytes(stats.pending_bytes)),
                ],
            },
            Group {
                title: "space",
                lines: vec![
                    ("data file", bytes(stats.file_bytes)),
                    (
                        "reachable",
                        format!(
                            "{}, {}",
                            bytes(stats.reachable_bytes),
                            percent(stats.reachable_bytes, stats.file_bytes)
                        ),
                    ),
                    (
                        "free",
                        format!(
                            "{} in {} runs",
                            bytes(stats.free_bytes),
                            count(stats.free_runs)
                        ),
                    ),
                    ("longest free run", bytes(stats.free_run_max_bytes)),
                    ("holes", bytes(stats.hole_bytes)),
                ],
            },
            Group {
                title: "stalls",
                lines: vec![
                    (
                        "writers waited",
                        format!("{} times, {}", count(stats.stalls), us(stats.stalled_us)),
                    ),
                    (
                        "slowed down",
                        format!("{} times, {}", count(stats.paced), us(stats.paced_us)),
                    ),
                ],
            },
        ];
        Frame {
            database: path.display().to_string(),
            state,
            is_stale,
            failure: stats.failure.clone(),
            groups,
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.database)?;
        writeln!(f, "{}", self.state)?;
        if let Some(failure) = &self.failure {
            writeln!(f, "the last merge or checkpoint failed: {failure}")?;
        }
        for group in &self.groups {
            for (index, (name, value)) in group.lines.iter().enumerate() {
                let title = if index == 0 { group.title } else { "" };
                writeln!(f, "{title:<12} {name:<27} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let shown = |us: u64| time(Duration::from_micros(us));
        assert_eq!(shown(0), "0 s");
        assert_eq!(shown(17), "17 µs");
        assert_eq!(shown(17_900), "17 ms");
        assert_eq!(shown(1_250_000), "1.2 s");
        assert_eq!(shown(59_999_999), "59 s");
        assert_eq!(shown(61_000_000), "1 min 1 s");
        assert_eq!(shown(3_700_000_000), "1 h 1 min");
        assert_eq!(shown(90_000_000_000), "1 d 1 h");
    }
}
