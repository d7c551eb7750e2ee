//! Adds up the bank: at one snapshot, and at one snapshot after another while transfers run.
use super::encoding;
use crate::engine::{Engine, ReadMode, Snapshot};
use anyhow::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What one ordered scan counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub accounts: u64,
    pub balance: u128,
    pub log_entries: u64,
    /// Entries that are neither an account nor a log entry.
    pub strangers: u64,
    /// Bytes of all keys and values.
    pub raw_bytes: u64,
}

impl Totals {
    pub fn entries(&self) -> u64 {
        self.accounts + self.log_entries + self.strangers
    }

    pub fn scan<S: Snapshot>(snapshot: &mut S) -> Result<Self> {
        let mut totals = Self::default();
        snapshot.scan(|key, value| totals.add(key, value))?;
        Ok(totals)
    }

    #[inline]
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.raw_bytes += (key.len() + value.len()) as u64;
        if encoding::log_sequence(key).is_some() {
            self.log_entries += 1;
        } else if let Some(balance) = encoding::balance(value) {
            self.accounts += 1;
            self.balance += u128::from(balance);
        } else {
            self.strangers += 1;
        }
    }
}

/// What every snapshot must hold.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub accounts: u64,
    pub balance: u128,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub audits: u64,
    pub failures: Vec<String>,
}

/// Audits snapshot after snapshot until told to stop, at least one; stops at the first failure.
pub fn run<E: Engine>(
    engine: &E,
    mode: ReadMode,
    expected: Expected,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut log_entries_before = 0;
    while outcome.failures.is_empty() && (outcome.audits == 0 || !stop.load(Ordering::Relaxed)) {
        let committed_before = if mode == ReadMode::Latest {
            committed.load(Ordering::Acquire)
        } else {
            0
        };
        let totals = Totals::scan(&mut engine.snapshot(mode)?)?;
        outcome.audits += 1;
        let audit = outcome.audits;
        let mut fail = |what: String| {
            outcome
                .failures
                .push(format!("audit {audit} during transfers: {what}"))
        };
        if (totals.accounts, totals.balance) != (expected.accounts, expected.balance) {
            let Expected { accounts, balance } = expected;
            fail(format!(
                "{} accounts with {} in all, expected {accounts} with {balance}",
                totals.accounts, totals.balance
            ));
        }
        // Log entries are numbered without gaps, so their count is the newest number.
        if totals.log_entries < committed_before.max(log_entries_before) {
            fail(format!(
                "{} log entries, but {committed_before} were committed and {log_entries_before} seen before",
                totals.log_entries
            ));
        }
        if totals.strangers > 0 {
            fail(format!(
                "{} entries that are neither account nor log",
                totals.strangers
            ));
        }
        log_entries_before = totals.log_entries;
    }
    Ok(outcome)
}
