//! What every engine's adapter must show before it is timed: the rules of [`crate::engine`], one check each.
//!
//! A check works on a database of its own and fails with the rule that was broken. What an engine declares not to keep in its
//! [`Capabilities`] is not asked of it; the parts of a rule that make sense without are. [`conformance_tests!`](crate::conformance_tests)
//! makes a test of every check, so that a failure has a name, and one more that fails when an engine lacks something which the test
//! file does not say it lacks: nothing is left out in silence.
//!
//! Keys have at most 40 bytes and none is empty, for engines differ there and no workload asks for more.
use crate::engine::{
    self, Batch, Capabilities, Compression, Cursor, Engine, ReadMode, Settings, Snapshot, SyncMode,
};
use crate::rng::Draws;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const SYNC_MODES: [SyncMode; 4] = [
    SyncMode::None,
    SyncMode::Async,
    SyncMode::Sync,
    SyncMode::WriteThrough,
];

/// How long a check waits for a commit that an open snapshot may keep out; the check is weaker if it does, not wrong.
const COMMIT_WAIT: Duration = Duration::from_millis(500);

/// Commits and reads, at the most, that run beside one another. Engines that keep old versions walk over all of them.
const PAIRED_COMMITS: u64 = 3_000;
const PAIRED_READS: u64 = 400;

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
            dropped_batch_leaves_nothing,
            scan_is_complete_and_ordered,
            cursor_seeks_and_moves,
            cursor_in_an_empty_database_is_nowhere,
            count_is_exact,
            batch_is_visible_as_a_whole,
            snapshot_stays_as_it_was_and_a_new_one_is_fresh,
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

/// A report names the version and how the engine was set up.
pub fn description_names_a_version<E: Engine>() -> Result<()> {
    let description = E::describe(&Settings::default());
    ensure!(
        description.version.contains(|c: char| c.is_ascii_digit()),
        "the version is '{}'",
        description.version
    );
    ensure!(
        !description.settings.is_empty(),
        "the description says nothing of the settings"
    );
    Ok(())
}

/// What was put and committed is read, by a snapshot and by the next batch; what was not is absent.
pub fn committed_values_are_read<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    expect(engine, &Map::new(), "a new database")?;
    commit(engine, &[(b"key", b"value")], &[])?;
    expect(
        engine,
        &Map::from([(b"key".to_vec(), b"value".to_vec())]),
        "after a commit",
    )?;
    for absent in [&b"ke"[..], b"key\0", b"kez", b"a", b"z"] {
        let found = get_latest(engine, absent)?;
        ensure!(found.is_none(), "a key that was never put has a value");
    }
    let mut batch = engine.begin()?;
    let seen = batch.read(b"key", |value| value == Some(b"value"))?;
    ensure!(seen, "a batch does not read what an earlier one committed");
    let absent = batch.read(b"kez", |value| value.is_none())?;
    ensure!(absent, "a batch reads a key that was never put");
    batch.commit().context("commit of a batch that only read")
}

/// The last put of a key counts, in one batch and over several, with values that shrink and grow.
pub fn overwriting_replaces<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    for bytes in [10, 1_000, 0, 500, 3] {
        let value = vec![bytes as u8; bytes];
        commit(&fresh.engine, &[(b"key", b"first"), (b"key", &value)], &[])?;
        let when = format!("after overwriting with {bytes} bytes");
        expect(&fresh.engine, &Map::from([(b"key".to_vec(), value)]), &when)?;
    }
    Ok(())
}

/// A deleted key is gone, deleting one that is not there is no error, and a deleted key can be put again.
pub fn deleting_removes<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[], &[b"never there"])?;
    commit(engine, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], &[])?;
    commit(engine, &[], &[b"b", b"never there", b"b"])?;
    let mut expected = Map::from([
        (b"a".to_vec(), b"1".to_vec()),
        (b"c".to_vec(), b"3".to_vec()),
    ]);
    expect(engine, &expected, "after a delete")?;
    commit(engine, &[(b"b", b"again"), (b"d", b"4")], &[b"d"])?;
    expected.insert(b"b".to_vec(), b"again".to_vec());
    expect(engine, &expected, "after putting what was deleted")?;
    let mut writes = engine.begin_writes()?;
    engine::Writes::put(&mut writes, b"e", b"5")?;
    engine::Writes::delete(&mut writes, b"a")?;
    engine::Writes::commit(writes)?;
    expected.remove(&b"a"[..]);
    expected.insert(b"e".to_vec(), b"5".to_vec());
    expect(engine, &expected, "after a blind delete")
}

/// Rule (1): a read in a batch sees the batch's own earlier writes.
pub fn batch_reads_its_own_writes<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"old", b"before"), (b"gone", b"before")], &[])?;
    let keys: u32 = if E::CAPABILITIES.atomic_batches {
        500
    } else {
        1
    };
    let mut batch = engine.begin()?;
    let rule = "rule 1: a read in a batch sees the batch's own earlier writes";
    for number in 0..keys {
        let key = format!("new {number}").into_bytes();
        for value in [&b"first"[..], b"second"] {
            batch.put(&key, value)?;
            let seen = batch.read(&key, |found| found == Some(value))?;
            ensure!(seen, "{rule}; a put is not seen");
        }
    }
    if E::CAPABILITIES.atomic_batches {
        batch.put(b"old", b"after")?;
        batch.delete(b"gone")?;
        let seen = batch.read(b"old", |found| found == Some(b"after"))?;
        ensure!(seen, "{rule}; an overwrite is not seen");
        let seen = batch.read(b"gone", |found| found.is_none())?;
        ensure!(seen, "{rule}; a delete is not seen");
        batch.put(b"gone", b"back")?;
        let seen = batch.read(b"gone", |found| found == Some(b"back"))?;
        ensure!(seen, "{rule}; a put after a delete is not seen");
        for number in 0..keys {
            let key = format!("new {number}").into_bytes();
            let seen = batch.read(&key, |found| found == Some(b"second"))?;
            ensure!(seen, "{rule}; the first of many writes is not seen");
        }
    }
    batch.commit()?;
    let kept = get_latest(engine, b"new 0")?;
    ensure!(
        kept.as_deref() == Some(b"second"),
        "the last put of a batch is not what it committed"
    );
    Ok(())
}

/// Rule (4): a batch that is dropped leaves nothing behind.
pub fn dropped_batch_leaves_nothing<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"kept", b"1"), (b"also kept", b"2")], &[])?;
    let expected = Map::from([
        (b"kept".to_vec(), b"1".to_vec()),
        (b"also kept".to_vec(), b"2".to_vec()),
    ]);
    let rule = "rule 4: a batch that is dropped leaves nothing behind";
    let mut batch = engine.begin()?;
    batch.put(b"kept", b"other")?;
    if E::CAPABILITIES.atomic_batches {
        for number in 0..500u32 {
            batch.put(&number.to_be_bytes(), b"dropped")?;
        }
        batch.delete(b"also kept")?;
    }
    drop(batch);
    expect(engine, &expected, rule)?;
    let mut writes = engine.begin_writes()?;
    engine::Writes::put(&mut writes, b"blind", b"dropped")?;
    drop(writes);
    expect(engine, &expected, rule)?;
    commit(engine, &[], &[])?;
    expect(engine, &expected, "after an empty batch")
}

/// Rule (5), as far as a scan shows it, with values of all sizes; in any order if the engine is not ordered.
pub fn scan_is_complete_and_ordered<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let mut entries = awkward_entries(&E::CAPABILITIES);
    commit_map(&fresh.engine, &entries)?;
    let rule = "rule 5: keys are ordered bytewise, a prefix before what it is a prefix of";
    expect(&fresh.engine, &entries, rule)?;
    let more = random_entries(5, 2_000);
    commit_map(&fresh.engine, &more)?;
    entries.extend(more);
    expect(&fresh.engine, &entries, rule)
}

/// Rule (5), as far as a cursor shows it.
pub fn cursor_seeks_and_moves<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.ordered {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    let mut entries = awkward_entries(&E::CAPABILITIES);
    entries.extend(random_entries(6, 1_000));
    commit_map(&fresh.engine, &entries)?;
    let sorted: Vec<(&[u8], &[u8])> = slices(&entries).collect();
    let mut snapshot = fresh.engine.snapshot(ReadMode::Latest)?;
    let mut cursor = snapshot.cursor()?;
    ensure!(cursor.entry().is_none(), "a new cursor is on an entry");

    let mut at = cursor.seek_first()?;
    for &entry in &sorted {
        ensure!(at, "next ends before the last entry");
        ensure!(
            cursor.entry() == Some(entry),
            "next skips or repeats entries"
        );
        at = cursor.next()?;
    }
    ensure!(!at && cursor.entry().is_none(), "next goes past the end");
    ensure!(!cursor.next()?, "next at the end begins again");

    if E::CAPABILITIES.backwards {
        let mut at = cursor.seek_last()?;
        for &entry in sorted.iter().rev() {
            ensure!(at, "prev ends before the first entry");
            ensure!(
                cursor.entry() == Some(entry),
                "prev skips or repeats entries"
            );
            at = cursor.prev()?;
        }
        ensure!(!at && cursor.entry().is_none(), "prev goes past the start");
    }

    let mut targets: Vec<Vec<u8>> = entries.keys().step_by(7).cloned().collect();
    let probes: [&[u8]; 6] = [
        b"\x00",
        b"a",
        b"a\x00\x01",
        b"a\xff\xff",
        b"\xff",
        b"\xff\xff",
    ];
    targets.extend(probes.map(<[u8]>::to_vec));
    targets.extend(random_entries(8, 100).into_keys());
    targets.push(vec![0xff; 20]);
    for target in &targets {
        let position = sorted.partition_point(|(key, _)| *key < target.as_slice());
        let expected = sorted.get(position).copied();
        ensure!(
            cursor.seek(target)? == expected.is_some() && cursor.entry() == expected,
            "seek to {target:02x?} is not on the first key at or after it"
        );
        for expected in sorted.iter().skip(position + 1).take(5) {
            ensure!(
                cursor.next()? && cursor.entry() == Some(*expected),
                "next after seek to {target:02x?} is not on the following key"
            );
        }
    }
    Ok(())
}

/// A cursor finds nothing where there is nothing, also after everything was deleted.
pub fn cursor_in_an_empty_database_is_nowhere<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.ordered {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    for when in ["in a new database", "after everything was deleted"] {
        let mut snapshot = fresh.engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        ensure!(!cursor.seek_first()?, "seek_first finds an entry {when}");
        if E::CAPABILITIES.backwards {
            ensure!(!cursor.seek_last()?, "seek_last finds an entry {when}");
        }
        ensure!(!cursor.seek(b"a")?, "seek finds an entry {when}");
        ensure!(cursor.entry().is_none(), "the cursor is on an entry {when}");
        drop(cursor);
        drop(snapshot);
        commit(&fresh.engine, &[(b"a", b"1"), (b"b", b"2")], &[])?;
        commit(&fresh.engine, &[], &[b"b", b"a"])?;
    }
    Ok(())
}

/// The count follows puts, overwrites and deletes.
pub fn count_is_exact<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let count = |expected: u64| -> Result<()> {
        let found = engine.snapshot(ReadMode::Latest)?.count()?;
        ensure!(found == expected, "the count is {found}, not {expected}");
        Ok(())
    };
    count(0)?;
    let entries = random_entries(9, 300);
    commit_map(engine, &entries)?;
    count(300)?;
    commit_map(engine, &entries)?;
    count(300)?;
    let deleted: Vec<&[u8]> = entries.keys().step_by(3).map(Vec::as_slice).collect();
    commit(engine, &[], &deleted)?;
    count(200)?;
    commit(engine, &[], &deleted)?;
    count(200)
}

/// Rule (2): a batch becomes visible as a whole. A thread commits batches that write the same number to two keys, and a third key while
/// the number is odd. Another thread reads: in one snapshot all agree; without snapshots, a later read is never older than an
/// earlier one.
pub fn batch_is_visible_as_a_whole<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.atomic_batches {
        return Ok(());
    }
    let (first, odd, last) = (&b"first"[..], &b"odd"[..], &b"zlast"[..]);
    let rule = "rule 2: a batch becomes visible as a whole";
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit_map(engine, &random_entries(10, 50))?;
    let write = |number: u64| {
        let value = number.to_be_bytes();
        if number % 2 == 1 {
            commit(engine, &[(first, &value), (odd, b""), (last, &value)], &[])
        } else {
            commit(engine, &[(first, &value), (last, &value)], &[odd])
        }
    };
    write(0)?;
    let number = |value: Option<Vec<u8>>| -> Result<u64> {
        let value = value.with_context(|| format!("{rule}; a key is missing"))?;
        Ok(u64::from_be_bytes(value.as_slice().try_into()?))
    };
    let stop = AtomicBool::new(false);
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let outcome = (1..=PAIRED_COMMITS)
                .take_while(|_| !stop.load(Ordering::Relaxed))
                .try_for_each(write);
            finished.store(true, Ordering::Release);
            outcome
        });
        let read = || -> Result<()> {
            let mut newest = 0;
            let mut round = 0;
            loop {
                let is_last =
                    finished.load(Ordering::Acquire) || (round >= PAIRED_READS && newest > 0);
                round += 1;
                let mut snapshot = engine.snapshot(ReadMode::Latest)?;
                let (one, other) = if round % 2 == 0 {
                    (first, last)
                } else {
                    (last, first)
                };
                let earlier = number(get(&mut snapshot, one)?)?;
                let is_odd = get(&mut snapshot, odd)?.is_some();
                let later = number(get(&mut snapshot, other)?)?;
                ensure!(earlier >= newest, "a snapshot is older than the one before");
                newest = later;
                ensure!(
                    later >= earlier,
                    "{rule}; the keys have {earlier} and {later}"
                );
                if E::CAPABILITIES.snapshots {
                    ensure!(
                        earlier == later && is_odd == (later % 2 == 1),
                        "{rule}; the keys have {earlier} and {later}, a third key is {} there",
                        if is_odd { "" } else { "not" }
                    );
                    let mut entries = 0;
                    snapshot.scan(|_, _| entries += 1)?;
                    ensure!(
                        entries == 52 + later % 2,
                        "{rule}; a scan of the snapshot yields {entries} entries"
                    );
                }
                if is_last {
                    ensure!(newest > 0, "nothing was committed meanwhile");
                    return Ok(());
                }
            }
        };
        let outcome = read();
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends")?;
        outcome
    })
}

/// Rules (2) and (3): a snapshot does not see what is committed after it was taken, and one that is taken when `commit` has returned
/// does, whichever thread committed. An engine without snapshots is asked for the second only.
pub fn snapshot_stays_as_it_was_and_a_new_one_is_fresh<E: Engine>() -> Result<()> {
    let rule = "rule 3: a snapshot sees the same state for as long as it lives";
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"changed", b"0"), (b"deleted", b"0")], &[])?;
    if E::CAPABILITIES.snapshots {
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let committed = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(|| {
                let puts: [(&[u8], &[u8]); 2] = [(b"changed", b"1"), (b"new", b"1")];
                let outcome = commit(engine, &puts, &[b"deleted"]);
                committed.store(true, Ordering::Release);
                outcome
            });
            let start = Instant::now();
            let mut look = || -> Result<()> {
                loop {
                    // Looked at before reading, so that the last round comes after the commit.
                    let is_last =
                        committed.load(Ordering::Acquire) || start.elapsed() > COMMIT_WAIT;
                    for key in [b"changed", b"deleted"] {
                        let value = get(&mut snapshot, key)?;
                        ensure!(value.as_deref() == Some(b"0"), "{rule}; a value changed");
                    }
                    let value = get(&mut snapshot, b"new")?;
                    ensure!(value.is_none(), "{rule}; a key appeared");
                    let mut entries = 0;
                    snapshot.scan(|_, value| entries += u64::from(value == b"0"))?;
                    ensure!(entries == 2, "{rule}; a scan sees a later commit");
                    let count = snapshot.count()?;
                    ensure!(count == 2, "{rule}; the count includes a later commit");
                    if is_last {
                        return Ok(());
                    }
                    thread::yield_now();
                }
            };
            let outcome = look();
            drop(snapshot);
            writer.join().expect("the writer ends")?;
            outcome
        })?;
    } else {
        commit(engine, &[(b"changed", b"1"), (b"new", b"1")], &[b"deleted"])?;
    }
    let expected = Map::from([
        (b"changed".to_vec(), b"1".to_vec()),
        (b"new".to_vec(), b"1".to_vec()),
    ]);
    expect(engine, &expected, "a snapshot taken after a commit")?;
    for number in 0..200u32 {
        let value = number.to_be_bytes();
        commit(engine, &[(b"changed", &value)], &[])?;
        let seen = get_latest(engine, b"changed")?;
        ensure!(
            seen.as_deref() == Some(&value[..]),
            "rule 2: a snapshot that is taken when commit has returned misses the commit"
        );
    }
    Ok(())
}

/// Blind batches of four threads at once: every put and every delete is kept.
pub fn blind_writes_of_several_threads_are_all_kept<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let key = |thread: u64, batch: u64, number: u64| format!("{thread}/{batch:03}/{number:02}");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || -> Result<()> {
                    for batch in 0..50 {
                        let mut writes = engine.begin_writes()?;
                        for number in 0..10 {
                            let key = key(thread, batch, number);
                            engine::Writes::put(&mut writes, key.as_bytes(), key.as_bytes())?;
                        }
                        if batch > 0 {
                            engine::Writes::delete(
                                &mut writes,
                                key(thread, batch - 1, 3).as_bytes(),
                            )?;
                        }
                        engine::Writes::commit(writes)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let mut expected = Map::new();
    for (thread, batch) in (0..4).flat_map(|thread| (0..50).map(move |batch| (thread, batch))) {
        for number in (0..10).filter(|&number| number != 3 || batch == 49) {
            let key = key(thread, batch, number).into_bytes();
            expected.insert(key.clone(), key);
        }
    }
    expect(engine, &expected, "after blind writes of four threads")
}

/// A bulk load of entries in any order, into an empty database and into one that is not.
pub fn bulk_load_writes_everything<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let load = |entries: &Map, seed: u64| -> Result<()> {
        let mut shuffled: Vec<_> = slices(entries).collect();
        let mut draws = Draws::new(seed);
        for position in (1..shuffled.len()).rev() {
            shuffled.swap(position, draws.below(position as u64 + 1) as usize);
        }
        engine.bulk_load(shuffled.into_iter()).context("bulk_load")
    };
    let mut expected = awkward_entries(&E::CAPABILITIES);
    expected.extend(random_entries(11, 3_000));
    load(&expected, 12)?;
    expect(engine, &expected, "after a bulk load")?;
    commit(engine, &[(b"between", b"loads")], &[b"\x00"])?;
    expected.insert(b"between".to_vec(), b"loads".to_vec());
    expected.remove(&b"\x00"[..]);
    let more = random_entries(13, 1_000);
    load(&more, 14)?;
    expected.extend(more);
    expect(engine, &expected, "after a bulk load into a used database")?;
    engine.bulk_load(std::iter::empty())?;
    expect(engine, &expected, "after a bulk load of nothing")
}

/// What was committed is there after closing and opening, twice, and the database can be written again.
pub fn reopened_database_has_everything<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.persistent {
        return Ok(());
    }
    let Fresh {
        mut engine,
        path,
        directory,
    } = Fresh::<E>::new()?;
    let mut expected = awkward_entries(&E::CAPABILITIES);
    engine.bulk_load(slices(&expected))?;
    for round in 0..2u64 {
        let more = random_entries(20 + round, 500);
        commit_map(&engine, &more)?;
        expected.extend(more);
        let deleted: Vec<Vec<u8>> = expected.keys().step_by(5).cloned().collect();
        let deletes: Vec<&[u8]> = deleted.iter().map(Vec::as_slice).collect();
        commit(&engine, &[], &deletes)?;
        expected.retain(|key, _| !deleted.contains(key));
        engine.close().context("close")?;
        engine = E::open(&path, &Settings::default()).context("open")?;
        expect(&engine, &expected, "after close and open")?;
    }
    engine.close()?;
    Ok(directory.close()?)
}

/// Every sync mode opens, commits, flushes, and keeps what it committed.
pub fn every_sync_mode_commits<E: Engine>() -> Result<()> {
    for sync_mode in SYNC_MODES {
        let settings = Settings {
            sync_mode,
            ..Settings::default()
        };
        let when = format!("sync mode {sync_mode:?}");
        let fresh = Fresh::<E>::with(&settings).context(when.clone())?;
        let expected = random_entries(30, 20);
        for (key, value) in &expected {
            commit(&fresh.engine, &[(key, value)], &[]).context(when.clone())?;
        }
        fresh.engine.sync().context(when.clone())?;
        expect(&fresh.engine, &expected, &when)?;
        if E::CAPABILITIES.persistent {
            fresh.engine.close().context(when.clone())?;
            let engine = E::open(&fresh.path, &settings).context(when.clone())?;
            expect(&engine, &expected, &format!("{when}, reopened"))?;
            engine.close()?;
        }
    }
    Ok(())
}

/// An engine works with all settings given.
pub fn settings_are_accepted<E: Engine>() -> Result<()> {
    let settings = Settings {
        sync_mode: SyncMode::None,
        cache_bytes: Some(64 << 20),
        write_buffer_bytes: Some(16 << 20),
        merge_threads: Some(1),
        compression: Compression::Lz4,
        data_bytes_expected: Some(64 << 20),
    };
    let fresh = Fresh::<E>::with(&settings)?;
    let expected = random_entries(40, 2_000);
    commit_map(&fresh.engine, &expected)?;
    expect(&fresh.engine, &expected, "with all settings given")?;
    fresh.engine.close()
}

/// Making the files small changes nothing else, and what is written afterwards is kept as well.
pub fn compact_keeps_the_contents<E: Engine>() -> Result<()> {
    let Fresh {
        mut engine,
        path,
        directory,
    } = Fresh::<E>::new()?;
    let mut expected = random_entries(50, 2_000);
    engine.bulk_load(slices(&expected))?;
    let deleted: Vec<Vec<u8>> = expected.keys().step_by(2).cloned().collect();
    let deletes: Vec<&[u8]> = deleted.iter().map(Vec::as_slice).collect();
    commit(&engine, &[], &deletes)?;
    deleted.iter().for_each(|key| drop(expected.remove(key)));
    for _ in 0..2 {
        engine.compact().context("compact")?;
        expect(&engine, &expected, "after compact")?;
    }
    commit(&engine, &[(b"after", b"compact")], &[])?;
    expected.insert(b"after".to_vec(), b"compact".to_vec());
    expect(&engine, &expected, "after a commit after compact")?;
    engine.close()?;
    if E::CAPABILITIES.persistent {
        let engine = E::open(&path, &Settings::default()).context("open")?;
        expect(&engine, &expected, "reopened after compact and a commit")?;
        engine.close()?;
    }
    Ok(directory.close()?)
}

/// A checkpoint changes nothing.
pub fn checkpoint_keeps_the_contents<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    fresh.engine.checkpoint().context("checkpoint of nothing")?;
    let mut expected = Map::new();
    for seed in 60..63 {
        let more = random_entries(seed, 500);
        commit_map(&fresh.engine, &more)?;
        expected.extend(more);
        fresh.engine.checkpoint().context("checkpoint")?;
        expect(&fresh.engine, &expected, "after a checkpoint")?;
    }
    Ok(())
}

/// Sizes can be asked for at any time, and a database that holds something is not said to be empty.
pub fn sizes_are_known_or_absent<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    fresh.engine.sizes().context("sizes of an empty database")?;
    commit_map(&fresh.engine, &random_entries(70, 500))?;
    fresh.engine.checkpoint()?;
    let sizes = fresh.engine.sizes().context("sizes")?;
    ensure!(
        sizes.reachable_bytes != Some(0),
        "no byte is said to be reachable in a database that holds entries"
    );
    Ok(())
}
