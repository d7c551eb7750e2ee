//! The full scan at the end, which is measured, and what it must have found.
use super::config::TidesConfig;
use super::operations::{Found, RangeRead};
use super::patterns;
use crate::clock::Clock;
use crate::engine::{Engine, ReadMode, Snapshot};
use crate::report::grouped;
use crate::values::Values;
use anyhow::Result;
use std::collections::HashMap;

/// One full forward scan by one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    pub seconds: f64,
    pub entries: u64,
}

/// Reads every key and value once, for the figure.
pub fn timed_scan<E: Engine>(engine: &E, clock: &Clock) -> Result<Scan> {
    let start = clock.ticks();
    let mut entries = 0;
    engine.snapshot(ReadMode::Latest)?.scan(|key, value| {
        std::hint::black_box(value.iter().chain(key).fold(0u8, |all, byte| all ^ byte));
        entries += 1;
    })?;
    Ok(Scan {
        seconds: clock.seconds(start, clock.ticks()),
        entries,
    })
}

/// Scans again, and compares order, values, the number of keys, and the ranges that threads have remembered.
pub fn contents<E: Engine>(
    engine: &E,
    config: &TidesConfig,
    values: &Values,
    expected: u64,
    ranges: &[RangeRead],
    failures: &mut Vec<String>,
) -> Result<()> {
    let ends = ranges.iter().flat_map(|range| [&range.first, &range.last]);
    let mut positions: HashMap<&[u8], Option<u64>> =
        ends.map(|key| (key.as_slice(), None)).collect();
    let (mut entries, mut wrong, mut disordered) = (0u64, 0u64, 0u64);
    let mut previous = Vec::new();
    engine.snapshot(ReadMode::Latest)?.scan(|key, value| {
        disordered += u64::from(entries > 0 && previous.as_slice() >= key);
        previous.clear();
        previous.extend_from_slice(key);
        let number = patterns::number_of(config.pattern, key)
            .filter(|_| key.len() as u64 == config.key_size);
        wrong += u64::from(number.is_none_or(|number| values.at(number) != value));
        if let Some(position) = positions.get_mut(key) {
            *position = Some(entries);
        }
        entries += 1;
    })?;
    if entries != expected {
        failures.push(format!(
            "a full scan finds {entries} keys, expected {expected}"
        ));
    }
    let mut wrong_ranges = 0u64;
    for range in ranges {
        let ends = positions[range.first.as_slice()].zip(positions[range.last.as_slice()]);
        let complete = ends.is_some_and(|(first, last)| {
            // A range that ends early must have come to the last entry of all.
            last + 1 == first + range.entries
                && (range.entries == config.range_size + 1 || last + 1 == entries)
        });
        wrong_ranges += u64::from(!complete);
    }
    for (count, what) in [
        (disordered, "keys of a full scan are out of order"),
        (wrong, "entries of a full scan are none that were written"),
        (wrong_ranges, "ranges left out entries or ended too early"),
    ] {
        if count > 0 {
            failures.push(format!("{count} {what}"));
        }
    }
    Ok(())
}

/// Reads that did not find what was written.
pub fn found(what: &str, operations: u64, found: &[Found], failures: &mut Vec<String>) {
    let missing: u64 = found.iter().map(|found| found.missing).sum();
    let wrong: u64 = found.iter().map(|found| found.wrong).sum();
    for (count, defect) in [
        (missing, "did not find a key that is there"),
        (wrong, "found a value that was not written"),
    ] {
        if count > 0 {
            let all = grouped(operations);
            failures.push(format!("{count} of {all} {what} operations {defect}"));
        }
    }
}
