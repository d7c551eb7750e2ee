//! The final check, not timed: every entry of the database, and gets of keys that must be there.
use super::config::UpsertConfig;
use crate::engine::{Engine, ReadMode, Snapshot};
use crate::keys;
use crate::report::grouped;
use crate::values::TaggedValues;
use anyhow::Result;

const SAMPLED_GETS: u64 = 100_000;

/// The number of keys, and where keys repeat the last upsert of each.
struct Expected {
    keys: u64,
    last: Option<Vec<u64>>,
}

const NEVER: u64 = u64::MAX;

impl Expected {
    fn new(config: &UpsertConfig) -> Self {
        let Some(size) = config.key_space() else {
            return Self {
                keys: config.upserts(),
                last: None,
            };
        };
        let mut last = vec![NEVER; size as usize];
        for upsert in 0..config.upserts() {
            last[config.key_number(upsert) as usize] = upsert;
        }
        Self {
            keys: last.iter().filter(|&&upsert| upsert != NEVER).count() as u64,
            last: Some(last),
        }
    }

    /// Whether this upsert is the one whose value its key must have.
    fn is_last(&self, config: &UpsertConfig, upsert: u64) -> bool {
        upsert < config.upserts()
            && self
                .last
                .as_ref()
                .is_none_or(|last| last[config.key_number(upsert) as usize] == upsert)
    }

    /// The upsert whose value the key of `upsert` must have.
    fn last_of(&self, config: &UpsertConfig, upsert: u64) -> u64 {
        self.last
            .as_ref()
            .map_or(upsert, |last| last[config.key_number(upsert) as usize])
    }
}

/// Checks the contents; gives the number of keys.
pub fn contents<E: Engine>(
    engine: &E,
    config: &UpsertConfig,
    values: &TaggedValues,
    checks: &mut Vec<String>,
    failures: &mut Vec<String>,
) -> Result<u64> {
    let expected = Expected::new(config);
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    let (mut entries, mut wrong, mut disordered) = (0u64, 0u64, 0u64);
    let mut previous: Option<[u8; 8]> = None;
    snapshot.scan(|key, value| {
        entries += 1;
        let right = values
            .tag(value)
            .is_some_and(|upsert| key == config.key(upsert) && expected.is_last(config, upsert));
        wrong += u64::from(!right);
        if E::CAPABILITIES.ordered
            && let Ok(key) = key.try_into()
        {
            disordered += u64::from(previous.is_some_and(|previous| previous >= key));
            previous = Some(key);
        }
    })?;
    if entries != expected.keys {
        failures.push(format!(
            "a full scan finds {entries} keys, expected {}",
            expected.keys
        ));
    }
    let gets = SAMPLED_GETS.min(config.upserts());
    let mut missed = 0u64;
    for get in 0..gets {
        let upsert = keys::below(keys::hash(get), config.upserts());
        let found = snapshot.read(&config.key(upsert), |value| {
            value.and_then(|value| values.tag(value))
        })?;
        missed += u64::from(found != Some(expected.last_of(config, upsert)));
    }
    for (count, what) in [
        (
            wrong,
            "entries of a full scan have a value that is not the last one written to their key",
        ),
        (disordered, "keys of a full scan are out of order"),
        (missed, "gets of known keys do not find the last value"),
    ] {
        if count > 0 {
            failures.push(format!("{count} {what}"));
        }
    }
    checks.push(format!(
        "the number, order and values of {} keys, and {} gets of known keys",
        grouped(expected.keys),
        grouped(gets)
    ));
    Ok(expected.keys)
}
