//! What every engine's adapter must show before it is timed: the rules of [`crate::engine`], one check each.
//!
//! A check works on a database of its own and fails with the rule that was broken. What an engine declares not to keep in its
//! [`Capabilities`] is not asked of it; the parts of a rule that make sense without are. [`conformance_tests!`](crate::conformance_tests)
//! makes a test of every check, so that a failure has a name, and one more that fails when an engine lacks something which the test
//! file does not say it lacks: nothing is left out in silence.
//!
//! Keys have at most 40 bytes and none is empty, for engines differ there and no workload asks for more.
use crate::engine::{
    self, Batch, Capabilities, Compression, Cursor, End, Engine, ReadMode, Settings, Snapshot,
    SyncMode,
};
use crate::rng::Draws;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tempfile::TempDir;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

mod contents;
mod isolation;
mod lasting;

pub use contents::*;
pub use isolation::*;
pub use lasting::*;

/// Makes a test of every check for one engine. What the engine lacks is named, in the words of [`missing`]:
/// `conformance_tests!(Engine, lacks "snapshots", "atomic batches")`.
///
/// The tests have fixed names, so that each engine of a file needs a module of its own.
#[macro_export]
macro_rules! conformance_tests {
    ($engine:ty $(, lacks $($lacking:literal),+)? $(,)?) => {
        #[test]
        fn lacks_what_it_is_known_to_lack() {
            let known: &[&str] = &[$($($lacking),+)?];
            let capabilities = <$engine as $crate::engine::Engine>::CAPABILITIES;
            assert_eq!($crate::conformance::missing(&capabilities), known);
        }

        $crate::conformance_tests!(@checks $engine:
            description_names_a_version,
            committed_values_are_read,
            overwriting_replaces,
            deleting_removes,
            batch_reads_its_own_writes,
            pops_remove_what_is_outermost,
            retaining_and_extracting_remove_the_others,
            dropped_batch_leaves_nothing,
            scan_is_complete_and_ordered,
            cursor_seeks_and_moves,
            cursor_in_an_empty_database_is_nowhere,
            count_is_exact,
            batch_is_visible_as_a_whole,
            snapshot_stays_as_it_was_and_a_new_one_is_fresh,
            newest_reads_are_fresh,
            blind_writes_of_several_threads_are_all_kept,
            bulk_load_writes_everything,
            reopened_database_has_everything,
            every_sync_mode_commits,
            settings_are_accepted,
            compact_keeps_the_contents,
            checkpoint_keeps_the_contents,
            sizes_are_known_or_absent,
        );
    };
    (@checks $engine:ty: $($check:ident),+ $(,)?) => {
        $(#[test]
        fn $check() -> anyhow::Result<()> {
            $crate::conformance::$check::<$engine>()
        })+
    };
}

/// What an engine does not have, in words.
pub fn missing(capabilities: &Capabilities) -> Vec<&'static str> {
    [
        (capabilities.ordered, "ordered keys"),
        (capabilities.backwards, "backward cursors"),
        (capabilities.pops, "pops"),
        (capabilities.snapshots, "snapshots"),
        (capabilities.atomic_batches, "atomic batches"),
        (capabilities.persistent, "reopening a database"),
        (capabilities.record_bytes_max.is_none(), "large values"),
    ]
    .into_iter()
    .filter_map(|(has, what)| (!has).then_some(what))
    .collect()
}

/// A new database in a directory that goes away with it.
struct Fresh<E> {
    engine: E,
    path: PathBuf,
    directory: TempDir,
}

impl<E: Engine> Fresh<E> {
    fn new() -> Result<Self> {
        Self::with(&Settings::default())
    }

    fn with(settings: &Settings) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("db");
        let engine = E::create(&path, settings).context("create")?;
        Ok(Self {
            engine,
            path,
            directory,
        })
    }
}

fn commit<E: Engine>(engine: &E, puts: &[(&[u8], &[u8])], deletes: &[&[u8]]) -> Result<()> {
    let mut batch = engine.begin().context("begin")?;
    for (key, value) in puts {
        batch.put(key, value).context("put")?;
    }
    for key in deletes {
        batch.delete(key).context("delete")?;
    }
    batch.commit().context("commit")
}

fn commit_map<E: Engine>(engine: &E, entries: &Map) -> Result<()> {
    let puts: Vec<(&[u8], &[u8])> = slices(entries).collect();
    commit(engine, &puts, &[])
}

fn slices(entries: &Map) -> impl Iterator<Item = (&[u8], &[u8])> {
    entries
        .iter()
        .map(|(key, value)| (key.as_slice(), value.as_slice()))
}

fn get<S: Snapshot>(snapshot: &mut S, key: &[u8]) -> Result<Option<Vec<u8>>> {
    snapshot.read(key, |value| value.map(<[u8]>::to_vec))
}

fn get_latest<E: Engine>(engine: &E, key: &[u8]) -> Result<Option<Vec<u8>>> {
    get(&mut engine.snapshot(ReadMode::Latest)?, key)
}

/// Compares everything that the engine holds with what it should hold: by reads, by a scan and by the count.
fn expect<E: Engine>(engine: &E, expected: &Map, when: &str) -> Result<()> {
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    for (key, value) in expected {
        let found = get(&mut snapshot, key)?;
        ensure!(
            found.as_ref() == Some(value),
            "{when}: key {key:02x?} has {}, expected {} bytes",
            found.map_or("no value".to_owned(), |value| format!(
                "another value of {} bytes",
                value.len()
            )),
            value.len()
        );
    }
    // In an order of its own, so that values which come in another one are seen.
    let keys: Vec<&[u8]> = expected.keys().rev().map(Vec::as_slice).collect();
    let mut values = expected.values().rev();
    let mut equal = 0;
    snapshot.read_many(&keys, |value| {
        equal += usize::from(value == values.next().map(Vec::as_slice));
    })?;
    ensure!(
        equal == expected.len() && values.next().is_none(),
        "{when}: reading {} keys at once finds {equal} of their values",
        expected.len()
    );
    let mut entries = Vec::new();
    snapshot.scan(|key, value| entries.push((key.to_vec(), value.to_vec())))?;
    if !E::CAPABILITIES.ordered {
        entries.sort_unstable();
    }
    ensure!(
        entries.iter().map(|(key, _)| key).eq(expected.keys()),
        "{when}: a scan yields {} keys, expected {} in bytewise order{}",
        entries.len(),
        expected.len(),
        entries
            .iter()
            .map(|(key, _)| key)
            .zip(expected.keys())
            .find(|(found, wanted)| found != wanted)
            .map_or(String::new(), |(found, wanted)| format!(
                "; the first that differs is {found:02x?} instead of {wanted:02x?}"
            ))
    );
    ensure!(
        entries.iter().map(|(_, value)| value).eq(expected.values()),
        "{when}: a scan yields other values than were written"
    );
    let count = snapshot.count()?;
    ensure!(
        count == expected.len() as u64,
        "{when}: the count is {count}, expected {}",
        expected.len()
    );
    Ok(())
}

/// `count` entries with keys of 8 to 40 bytes and values of up to 300.
fn random_entries(seed: u64, count: usize) -> Map {
    let mut draws = Draws::new(seed);
    let mut bytes =
        |length: u64| -> Vec<u8> { (0..length).map(|_| draws.below(256) as u8).collect() };
    let mut entries = Map::new();
    let mut lengths = Draws::new(seed + 1);
    while entries.len() < count {
        let key = bytes(8 + lengths.below(33));
        entries.insert(key, bytes(lengths.below(301)));
    }
    entries
}

/// Keys that tempt an order which is not bytewise, and values of all sizes that the engine takes.
fn awkward_entries(capabilities: &Capabilities) -> Map {
    let keys: [&[u8]; 18] = [
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\xff",
        b"\x01",
        b"A",
        b"a",
        b"a\x00",
        b"a\x00\x00",
        b"a\x00b",
        b"a\xff",
        b"aa",
        b"b",
        b"\x7f",
        b"\x80",
        b"\xfe\xff",
        b"\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    let largest = capabilities
        .record_bytes_max
        .map_or(100 << 10, |bytes| bytes - 16);
    let sizes = [0, 1, 7, 100, 1_000, largest];
    keys.iter()
        .enumerate()
        .map(|(position, key)| {
            let bytes = sizes[position % sizes.len()].min(largest);
            (key.to_vec(), vec![position as u8; bytes])
        })
        .collect()
}
