//! What the database must hold: which keys exist, and how to tell from a value which key and which benchmark it was written for.
//!
//! A tag has the place of the benchmark in the list in its upper half, counted from one, and the number of the key in its lower half.
//! Several threads may write one key within one benchmark; their values are the same, so the order among them does not matter.
use super::config::DbBenchConfig;
use crate::engine::{Engine, ReadMode, Snapshot};
use crate::values::{TaggedValues, ValueKind};
use anyhow::Result;

pub struct Contents<'a> {
    pub config: &'a DbBenchConfig,
    values: TaggedValues,
    /// The place in the list of the benchmark that wrote a key last; zero where there is no key.
    written_at: Vec<u32>,
}

/// The value that belongs to a key written by the benchmark at `step`.
#[inline]
pub fn tag(step: u64, number: u64) -> u64 {
    (step << 32) | number
}

impl<'a> Contents<'a> {
    pub fn new(config: &'a DbBenchConfig) -> Self {
        let kind = ValueKind::new(config.compressible);
        Self {
            config,
            values: TaggedValues::new(kind, config.value_size as usize),
            written_at: vec![0; config.num as usize],
        }
    }

    pub fn values(&self) -> &TaggedValues {
        &self.values
    }

    pub fn clear(&mut self) {
        self.written_at.fill(0);
    }

    pub fn put(&mut self, step: u64, number: u64) {
        self.written_at[number as usize] = step as u32;
    }

    pub fn delete(&mut self, number: u64) {
        self.written_at[number as usize] = 0;
    }

    #[inline]
    pub fn has(&self, number: u64) -> bool {
        self.written_at[number as usize] != 0
    }

    pub fn keys(&self) -> u64 {
        self.written_at.iter().filter(|&&step| step != 0).count() as u64
    }

    /// The first existing number that is not below `number`.
    #[inline]
    pub fn successor(&self, number: u64) -> Option<u64> {
        (number..self.config.num).find(|&number| self.has(number))
    }

    /// Whether `value` is the one that the key has.
    #[inline]
    pub fn is_current(&self, number: u64, value: &[u8]) -> bool {
        let step = u64::from(self.written_at[number as usize]);
        step != 0 && self.values.tag(value) == Some(tag(step, number))
    }

    /// Whether `value` is the one that the key has, or the one that the benchmark at `step`, which is writing, gives to it.
    #[inline]
    pub fn is_current_or_of(&self, step: u64, number: u64, value: &[u8]) -> bool {
        self.values.tag(value) == Some(tag(step, number)) || self.is_current(number, value)
    }

    /// The number of a key of this workload.
    #[inline]
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        if key.len() as u64 != self.config.key_size {
            return None;
        }
        let mut number = 0u64;
        for &digit in key {
            let digit = char::from(digit).to_digit(10)?;
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
        }
        (number < self.config.num).then_some(number)
    }

    /// Scans everything, not timed: number, order, values.
    pub fn check<E: Engine>(&self, engine: &E, failures: &mut Vec<String>) -> Result<()> {
        let (mut entries, mut wrong, mut disordered) = (0u64, 0u64, 0u64);
        let mut previous = None;
        engine.snapshot(ReadMode::Latest)?.scan(|key, value| {
            entries += 1;
            let number = self.number(key);
            wrong += u64::from(number.is_none_or(|number| !self.is_current(number, value)));
            disordered += u64::from(number.is_some() && previous >= number);
            previous = number;
        })?;
        let expected = self.keys();
        if entries != expected {
            failures.push(format!(
                "a full scan finds {entries} keys, expected {expected}"
            ));
        }
        for (count, what) in [
            (
                wrong,
                "entries of a full scan do not have the last value of their key",
            ),
            (disordered, "keys of a full scan are out of order"),
        ] {
            if count > 0 {
                failures.push(format!("{count} {what}"));
            }
        }
        Ok(())
    }
}
