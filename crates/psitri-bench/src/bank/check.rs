//! The final check, not timed: every entry of the database against the oracle.
use super::audit::Totals;
use super::config::{BankConfig, Successes};
use super::encoding::{self, LogValue};
use super::oracle::Oracle;
use crate::engine::Snapshot;
use crate::names::Name;
use anyhow::Result;

/// Compares success counts with the oracle's and, where there are any, the published ones.
pub fn successes(
    config: &BankConfig,
    oracle: &Oracle,
    counted: Successes,
    failures: &mut Vec<String>,
) {
    if counted != oracle.successes {
        failures.push(format!(
            "successful transfers are {counted:?}, expected {:?}",
            oracle.successes
        ));
    }
    if let Some(known) = config.known_successes()
        && counted != known
    {
        failures.push(format!(
            "successful transfers are {counted:?}, published are {known:?}"
        ));
    }
}

/// Compares the totals of a scan.
pub fn totals(
    config: &BankConfig,
    expected: Successes,
    what: &str,
    totals: &Totals,
    failures: &mut Vec<String>,
) {
    let mut expect = |noun: &str, found: u128, expected: u128| {
        if found != expected {
            failures.push(format!("{what}: {noun} is {found}, expected {expected}"));
        }
    };
    expect(
        "the sum of balances",
        totals.balance,
        config.balance_total(),
    );
    expect(
        "the number of accounts",
        totals.accounts.into(),
        config.num_accounts.into(),
    );
    expect(
        "the number of log entries",
        totals.log_entries.into(),
        expected.log_entries().into(),
    );
    expect("the number of other entries", totals.strangers.into(), 0);
}

/// Compares the order of keys, every log entry and every balance.
pub fn contents<S: Snapshot>(
    config: &BankConfig,
    oracle: &Oracle,
    names: &[Name],
    snapshot: &mut S,
    failures: &mut Vec<String>,
) -> Result<()> {
    let (mut disordered, mut wrong_log_entries, mut log_entries) = (0u64, 0u64, 0u64);
    let mut transfers = oracle.transfers(config);
    let mut previous: Option<Vec<u8>> = None;
    snapshot.scan(|key, value| {
        match &mut previous {
            None => previous = Some(key.to_vec()),
            Some(previous) => {
                disordered += u64::from(previous.as_slice() >= key);
                previous.clear();
                previous.extend_from_slice(key);
            }
        }
        if let Some(sequence) = encoding::log_sequence(key) {
            log_entries += 1;
            // Past the measured transfers there can only be entries of a warm-up that was longer than they were.
            let right = transfers.next().is_none_or(|transfer| {
                let (source, destination) = (
                    &names[transfer.source as usize],
                    &names[transfer.destination as usize],
                );
                value == LogValue::new(source, destination, transfer.amount).as_bytes()
            });
            wrong_log_entries += u64::from(!right || sequence != log_entries);
        }
    })?;
    let mut wrong_balances = 0u64;
    for (name, &expected) in names.iter().zip(oracle.balances.as_slice()) {
        let found = snapshot.read(name.as_bytes(), |value| value.and_then(encoding::balance))?;
        wrong_balances += u64::from(found != Some(expected));
    }
    for (count, what) in [
        (disordered, "keys out of order in a full scan"),
        (
            wrong_log_entries,
            "log entries that are wrong or out of place",
        ),
        (
            wrong_balances,
            "accounts that are missing or have a wrong balance",
        ),
    ] {
        if count > 0 {
            failures.push(format!("{count} {what}"));
        }
    }
    Ok(())
}
