//! All entries in a row, by a cursor: forwards and backwards on one thread.
//!
//! The bytes of each entry are read and the order of its key is looked at; one in some dozens is compared with what it should be. Comparing all of
//! them takes several times what an engine does for an entry. That is done after all benchmarks, in a scan that is not timed.
use super::points::{Found, Step};
use crate::engine::{Cursor, Engine, ReadMode, Snapshot};
use crate::workers::{self, Outcome, Recorder};
use anyhow::Result;

/// Entries between two looks at the clock.
const COUNT_EVERY: u64 = 1_024;
/// Of so many entries one is compared.
const COMPARE_EVERY: u64 = 61;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forwards,
    Backwards,
}

impl<E: Engine> Step<'_, E> {
    pub fn scan(&self, direction: Direction) -> Result<Outcome<Found>> {
        workers::run(self.clock, vec![()], |(), recorder| {
            self.scan_once(direction, recorder, |number, value| {
                self.contents.is_current(number, value)
            })
        })
    }

    /// A scan at one snapshot. Entries out of order, or of no key of ours, are unexpected; values that `is_right` refuses are wrong.
    pub fn scan_once(
        &self,
        direction: Direction,
        recorder: &mut Recorder<'_>,
        is_right: impl Fn(u64, &[u8]) -> bool,
    ) -> Result<Found> {
        let mut found = Found::default();
        let mut snapshot = self.engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        let mut is_on_entry = match direction {
            Direction::Forwards => cursor.seek_first()?,
            Direction::Backwards => cursor.seek_last()?,
        };
        let mut previous = Vec::new();
        let mut uncounted = 0;
        while is_on_entry {
            let Some((key, value)) = cursor.entry() else {
                break;
            };
            // All keys are equally long, so they are in the order of their numbers.
            let in_order = match direction {
                _ if found.found == 0 => true,
                Direction::Forwards => previous.as_slice() < key,
                Direction::Backwards => previous.as_slice() > key,
            };
            found.unexpected += u64::from(!in_order);
            previous.clear();
            previous.extend_from_slice(key);
            std::hint::black_box(value.iter().fold(0u8, |all, byte| all ^ byte));
            if found.found.is_multiple_of(COMPARE_EVERY) {
                match self.contents.number(key) {
                    None => found.unexpected += 1,
                    Some(number) => found.wrong += u64::from(!is_right(number, value)),
                }
            }
            found.found += 1;
            found.bytes += (key.len() + value.len()) as u64;
            uncounted += 1;
            if uncounted == COUNT_EVERY {
                recorder.count(uncounted);
                uncounted = 0;
            }
            is_on_entry = match direction {
                Direction::Forwards => cursor.next()?,
                Direction::Backwards => cursor.prev()?,
            };
        }
        recorder.count(uncounted);
        Ok(found)
    }
}
