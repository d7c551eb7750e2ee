//! All entries in a row, by a cursor: forwards and backwards on one thread.
use super::points::{Found, Step};
use crate::engine::{Cursor, Engine, ReadMode, Snapshot};
use crate::workers::{self, Outcome, Recorder};
use anyhow::Result;

/// Entries between two looks at the clock.
const COUNT_EVERY: u64 = 1_024;

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
        let mut previous: Option<u64> = None;
        let mut uncounted = 0;
        while is_on_entry {
            let Some((key, value)) = cursor.entry() else {
                break;
            };
            found.found += 1;
            found.bytes += (key.len() + value.len()) as u64;
            match self.contents.number(key) {
                None => found.unexpected += 1,
                Some(number) => {
                    let in_order = previous.is_none_or(|previous| match direction {
                        Direction::Forwards => previous < number,
                        Direction::Backwards => previous > number,
                    });
                    found.unexpected += u64::from(!in_order);
                    found.wrong += u64::from(!is_right(number, value));
                    previous = Some(number);
                }
            }
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
