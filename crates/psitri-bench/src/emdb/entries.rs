//! The entries of these workloads, and what is asked of an engine about all of them: put them, check that they are there.
use crate::engine::{Engine, ReadMode, Snapshot, Writes};
use anyhow::Result;

pub type Entry = (Vec<u8>, Vec<u8>);

/// Eight digits follow the prefixes of keys and values.
pub const NUMBERED_MAX: u64 = 100_000_000;

/// `key-00000000`, `key-00000001` and so on; values are `-` and the same digits and then as many `x` as make `value_bytes`.
pub fn numbered(count: u64, value_bytes: usize) -> Vec<Entry> {
    assert!(count <= NUMBERED_MAX && value_bytes >= 9);
    (0..count)
        .map(|number| {
            let mut value = format!("-{number:08}").into_bytes();
            value.resize(value_bytes, b'x');
            (format!("key-{number:08}").into_bytes(), value)
        })
        .collect()
}

pub fn borrowed(entries: &[Entry]) -> impl Iterator<Item = (&[u8], &[u8])> {
    entries
        .iter()
        .map(|(key, value)| (key.as_slice(), value.as_slice()))
}

/// One commit.
#[inline]
pub fn put<E: Engine>(engine: &E, key: &[u8], value: &[u8]) -> Result<()> {
    let mut writes = engine.begin_writes()?;
    writes.put(key, value)?;
    writes.commit()
}

/// One commit.
#[inline]
pub fn delete<E: Engine>(engine: &E, key: &[u8]) -> Result<()> {
    let mut writes = engine.begin_writes()?;
    writes.delete(key)?;
    writes.commit()
}

/// One if the key does not have this value, else zero.
#[inline]
pub fn wrong<S: Snapshot>(snapshot: &mut S, entry: &Entry) -> Result<u64> {
    snapshot.read(&entry.0, |found| is_wrong(found, entry))
}

/// 1 unless what was found for the key of an entry is its value.
pub fn is_wrong(found: Option<&[u8]>, (_, value): &Entry) -> u64 {
    u64::from(found != Some(value.as_slice()))
}

pub fn count<E: Engine>(engine: &E) -> Result<u64> {
    engine.snapshot(ReadMode::Latest)?.count()
}

/// What is wrong if the database holds anything but `entries`: a line for the count and one for the values.
pub fn audit<E: Engine>(engine: &E, what: &str, entries: &[Entry]) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    let (found, expected) = (snapshot.count()?, entries.len() as u64);
    if found != expected {
        failures.push(format!("{what}: {found} entries, expected {expected}"));
    }
    let mut wrong_values = 0;
    for entry in entries {
        wrong_values += wrong(&mut snapshot, entry)?;
    }
    if wrong_values > 0 {
        failures.push(format!(
            "{what}: {wrong_values} of {expected} entries are missing or have a wrong value"
        ));
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Settings;
    use crate::engines::model::Model;
    use std::path::Path;

    #[test]
    fn keys_and_values_are_as_published() {
        let entries = numbered(12, 12);
        assert_eq!(
            entries[11],
            (b"key-00000011".to_vec(), b"-00000011xxx".to_vec())
        );
    }

    #[test]
    fn an_audit_finds_what_is_missing_wrong_or_too_much() -> Result<()> {
        let entries = numbered(3, 9);
        let model = Model::create(Path::new(""), &Settings::default())?;
        model.bulk_load(borrowed(&entries))?;
        assert_eq!(audit(&model, "a", &entries)?, Vec::<String>::new());
        put(&model, b"more", b"")?;
        assert_eq!(audit(&model, "a", &entries)?.len(), 1);
        delete(&model, b"more")?;
        put(&model, &entries[1].0, b"other")?;
        assert_eq!(audit(&model, "a", &entries)?.len(), 1);
        delete(&model, &entries[1].0)?;
        assert_eq!(audit(&model, "a", &entries)?.len(), 2);
        Ok(())
    }
}
