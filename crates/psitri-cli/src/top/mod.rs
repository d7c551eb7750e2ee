//! `psitri top`: what a database is doing that another process has open.
//!
//! Everything comes from the statistics file, which is read without a lock: looking on disturbs nobody. [`rates`] compares two records,
//! [`frame`] puts what they say into words, [`screen`] draws it.
mod frame;
mod rates;
mod screen;

use crate::commands::{FOUND, Outcome, not_found, print_json};
use crate::failure::Failure;
use frame::Frame;
use psitri::{Error, StatsRecord};
use rates::{Rates, View};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one frame waits for a second record: a database that is in use writes two a second.
const SECOND_RECORD: Duration = Duration::from_millis(1200);
const POLL: Duration = Duration::from_millis(25);

/// Shortest and longest time between two looks.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

pub fn top(
    path: &Path,
    interval_seconds: f64,
    once: bool,
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    if !INTERVAL_SECONDS.contains(&interval_seconds) {
        let (min, max) = (INTERVAL_SECONDS.start(), INTERVAL_SECONDS.end());
        let what = format!("--interval {interval_seconds}: {min} to {max} seconds are allowed");
        return Err(Failure::Usage(what));
    }
    let first = read(path)?;
    if once {
        return print_once(path, first, json, out);
    }
    if json {
        let what = "--json prints one frame; add --once".to_owned();
        return Err(Failure::Usage(what));
    }
    if !io::stdout().is_terminal() {
        let what = "this is no terminal; --once prints one frame as text".to_owned();
        return Err(Failure::Usage(what));
    }
    screen::run(path, first, Duration::from_secs_f64(interval_seconds))?;
    Ok(FOUND)
}

fn read(path: &Path) -> Result<StatsRecord, Failure> {
    StatsRecord::read(path).map_err(|error| match error {
        Error::NoStatistics { .. } if path.exists() => Failure::NoStatistics(error),
        error => Failure::open(path, error),
    })
}

/// Prints one frame, with rates over the time between two records.
fn print_once(path: &Path, first: StatsRecord, json: bool, out: &mut impl Write) -> Outcome {
    let mut view = View::new(first);
    let started = Instant::now();
    while view.rates.is_none() && !view.record.is_stale() && started.elapsed() < SECOND_RECORD {
        std::thread::sleep(POLL);
        match StatsRecord::read(path) {
            Ok(record) => view = view.followed_by(record),
            // It was closed a moment ago: what it said last is true.
            Err(Error::NoStatistics { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if view.rates.is_none() && started.elapsed() >= SECOND_RECORD && !view.record.is_stale() {
        view.rates = Some(Rates::default());
    }
    if json {
        print_json(out, &as_json(&view))?;
    } else {
        write!(out, "{}", Frame::new(path, &view))?;
    }
    Ok(if view.record.is_stale() {
        not_found()
    } else {
        FOUND
    })
}

/// All figures by their names, and the rates.
fn as_json(view: &View) -> serde_json::Value {
    let record = &view.record;
    let figures: serde_json::Map<String, serde_json::Value> = record
        .stats
        .figures()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let rates = view.rates.map(|rates| {
        json!({
            "commits": rates.commits,
            "merged_entries": rates.merged_entries,
            "merged_bytes": rates.merged_bytes,
            "written_bytes": rates.written_bytes,
            "wal_appended_bytes": rates.logged_bytes,
        })
    });
    json!({
        "process_id": record.process_id,
        "age_us": record.age().as_micros() as u64,
        "stale": record.is_stale(),
        "failure": record.stats.failure,
        "figures": figures,
        "per_second": rates,
    })
}
