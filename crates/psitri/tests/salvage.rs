//! Story: a database was damaged: a bit flipped, a file is cut short or gone, a sector holds nonsense. `salvage` rebuilds what can be read. It
//! never panics, never loses what intact nodes lead to, never gives what was not stored as certain, and names each loss.
//!
//! `PSITRI_SEED` repeats a run; `PSITRI_DAMAGES` sets how often each kind of damage is done.
#[path = "common/mod.rs"]
mod common;

use common::{Random, env_number, seed};
use psitri::{
    Database, Error, Options, SalvageOptions, SalvageReport, SalvagedFrom, SalvagedKeyspace,
    node::{self, Inner, Leaf, NodeRef, Stored, ValuePointer},
    salvage,
};
use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

type Table = BTreeMap<Vec<u8>, Vec<u8>>;
type State = BTreeMap<String, Table>;
/// Keyspace, key, and the value that was put; `None`: removed.
type Write = (String, Vec<u8>, Option<Vec<u8>>);

const NAMES: [&str; 3] = ["accounts", "journal", "photos"];

/// What was stored: the state of the checkpoint and the commits after it.
struct Story {
    dir: tempfile::TempDir,
    base: State,
    tail: Vec<Vec<Write>>,
    versions: u32,
}

impl Story {
    fn path(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    fn state_after(&self, commits: usize) -> State {
        let mut state = self.base.clone();
        for (name, key, value) in self.tail[..commits].iter().flatten() {
            let table = state.get_mut(name).unwrap();
            match value {
                Some(value) => drop(table.insert(key.clone(), value.clone())),
                None => drop(table.remove(key)),
            }
        }
        state
    }
}

fn temporary() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.unwrap()
}

fn options() -> Options {
    Options::new()
        // The last commits stay in the log, whatever takes how long.
        .buffer_bytes(64 << 20)
        .file_slack_percent(10_000)
        .wal_segment_bytes(64 << 10)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
        .stats_file(false)
}

fn key_of(name: &str, number: usize) -> Vec<u8> {
    match name {
        "accounts" => (number as u64 * 3).to_be_bytes().to_vec(),
        "journal" => format!("entry {number:05} of the journal").into_bytes(),
        _ => format!("{:04x}", number * 7919 % 65_536).into_bytes(),
    }
}

/// The value that a key has in a version: nothing else was ever stored for it.
fn value_of(name: &str, key: &[u8], version: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(version) << 32 | u64::from(crc(key)));
    let len = match name {
        "accounts" => 8,
        "journal" => random.between(0, 100),
        _ => *random.pick(&[10, 600, 3000, 9000, 20_000]),
    };
    let mut value = version.to_le_bytes().to_vec();
    value.extend((0..len).map(|_| random.next() as u8));
    value
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash: u32, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

fn was_stored(name: &str, key: &[u8], value: &[u8], versions: u32) -> bool {
    let Some(version) = value.first_chunk::<4>() else {
        return false;
    };
    let version = u32::from_le_bytes(*version);
    version < versions && value == value_of(name, key, version)
}

/// Made once: several checkpoints with overwrites between them, so that there are old nodes, and commits that are in the log only.
fn story() -> &'static Story {
    static STORY: OnceLock<Story> = OnceLock::new();
    STORY.get_or_init(|| {
        let dir = temporary();
        let live = dir.path().join("live");
        let db = options().open(&live).unwrap();
        let mut random = Random::new(7);
        let mut state = State::new();
        let mut version = 0;
        for name in NAMES {
            db.create_keyspace(name).unwrap();
            state.insert(name.to_owned(), Table::new());
        }
        let counts = [4000, 2500, 120];
        for round in 0..4 {
            for (name, count) in NAMES.into_iter().zip(counts) {
                let ks = db.open_keyspace(name).unwrap();
                let mut txn = db.begin(&[&ks]).unwrap();
                let table = state.get_mut(name).unwrap();
                for number in 0..count {
                    if round > 0 && !random.percent(12) {
                        continue;
                    }
                    let key = key_of(name, number);
                    if round > 0 && random.percent(10) {
                        txn.remove(&ks, &key).unwrap();
                        table.remove(&key);
                    } else {
                        let value = value_of(name, &key, version);
                        txn.upsert(&ks, &key, &value).unwrap();
                        table.insert(key, value);
                    }
                }
                txn.commit().unwrap();
            }
            db.checkpoint().unwrap();
            version += 1;
        }
        let base = state.clone();
        let mut tail = Vec::new();
        for _ in 0..60 {
            let spaces: Vec<_> = NAMES
                .iter()
                .map(|name| db.open_keyspace(name).unwrap())
                .collect();
            let refs: Vec<_> = spaces.iter().collect();
            let mut txn = db.begin(&refs).unwrap();
            let mut ops = Vec::new();
            for _ in 0..random.between(1, 30) {
                let at = random.below(3);
                let key = key_of(NAMES[at], random.below(counts[at] + 50));
                if random.percent(20) {
                    txn.remove(&spaces[at], &key).unwrap();
                    ops.push((NAMES[at].to_owned(), key, None));
                } else {
                    let value = value_of(NAMES[at], &key, version);
                    txn.upsert(&spaces[at], &key, &value).unwrap();
                    ops.push((NAMES[at].to_owned(), key, Some(value)));
                }
            }
            txn.commit().unwrap();
            tail.push(ops);
            version += 1;
        }
        db.flush().unwrap();
        copy(&live, &dir.path().join("db"));
        drop(db);
        fs::remove_dir_all(&live).unwrap();
        Story {
            dir,
            base,
            tail,
            versions: version,
        }
    })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    });
    entries.collect()
}

/// What lies where in the data file, by the newest superblock.
struct Layout {
    slot: usize,
    map_table: Range<usize>,
    map_piece: Range<usize>,
    catalog: Vec<Place>,
    trees: BTreeMap<String, Vec<Place>>,
    values: Vec<Range<usize>>,
}

#[derive(Clone)]
struct Place {
    bytes: Range<usize>,
    level: u8,
    is_root: bool,
}

impl Layout {
    fn of(data: &[u8]) -> Layout {
        let u64_at = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        let slot = if u64_at(16) > u64_at(4096 + 16) {
            0
        } else {
            4096
        };
        let table = u64_at(slot + 72) as usize * 4096;
        let piece = u64_at(table) as usize * 4096;
        let mut layout = Layout {
            slot,
            map_table: table..table + 16,
            map_piece: piece..piece + 4096,
            catalog: Vec::new(),
            trees: BTreeMap::new(),
            values: Vec::new(),
        };
        let mut entries = Vec::new();
        let (mut places, mut values) = (Vec::new(), Vec::new());
        let catalog = NodeRef::from_bits(u64_at(slot + 40));
        walk(
            data,
            catalog,
            true,
            &mut places,
            &mut values,
            &mut |value| {
                let root = u64::from_le_bytes(value[..8].try_into().unwrap());
                // Behind the flags, the parent and the number of aliases, all 0.
                let name = String::from_utf8(value[33..].to_vec()).unwrap();
                entries.push((name, NodeRef::from_bits(root)));
            },
        );
        layout.catalog = places;
        for (name, root) in entries {
            let mut places = Vec::new();
            walk(data, root, true, &mut places, &mut values, &mut |_| ());
            layout.trees.insert(name, places);
        }
        let at = |value: &ValuePointer| value.byte_offset() as usize;
        layout.values = values
            .iter()
            .map(|value| at(value)..at(value) + value.len as usize)
            .collect();
        layout
    }
}

fn walk(
    data: &[u8],
    at: NodeRef,
    is_root: bool,
    places: &mut Vec<Place>,
    values: &mut Vec<ValuePointer>,
    each: &mut impl FnMut(&[u8]),
) {
    if at.is_null() {
        return;
    }
    let start = at.byte_offset() as usize;
    let bytes = &data[start..start + at.bytes()];
    places.push(Place {
        bytes: start..start + at.bytes(),
        level: node::level(bytes),
        is_root,
    });
    if let Ok(inner) = Inner::open(bytes) {
        for index in 0..inner.len() {
            walk(data, inner.child(index), false, places, values, each);
        }
        return;
    }
    let leaf = Leaf::open(bytes).unwrap();
    for index in 0..leaf.len() {
        match leaf.value(index) {
            Stored::Inline(value) => each(value),
            Stored::External(pointer) => values.push(pointer),
        }
    }
}

/// A damaged copy of the story, and what salvage makes of it.
struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Case {
        let case = Case { dir: temporary() };
        copy(&story().path(), &case.damaged());
        case
    }

    fn damaged(&self) -> PathBuf {
        self.dir.path().join("damaged")
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.damaged().join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    fn salvage(&self) -> SalvageReport {
        self.salvage_with(SalvageOptions::new())
    }

    fn salvage_with(&self, options: SalvageOptions<'_>) -> SalvageReport {
        let before = files(&self.damaged());
        let report = salvage(self.damaged(), self.target(), options).unwrap();
        assert!(before == files(&self.damaged()), "the damaged one changed");
        report
    }

    /// All that holds whatever the damage is. Returns the new database.
    fn check(&self, report: &SalvageReport) -> State {
        let story = story();
        let found = read(&self.target());
        let expected = story.state_after(report.log.commits as usize);
        let nothing = Table::new();
        for told in &report.keyspaces {
            let name = &told.name;
            if let Some(possibly_old) = &told.possibly_old_in {
                for (key, value) in &found[possibly_old] {
                    let is_lost = told.lost.iter().any(|range| {
                        *key >= range.from && range.to.as_ref().is_none_or(|to| key < to)
                    });
                    assert!(is_lost, "{name}: a key that is not lost is possibly old");
                    let whose = NAMES
                        .iter()
                        .any(|name| was_stored(name, key, value, story.versions));
                    assert!(whose, "{name}: a value that never was\n{report}");
                }
            }
            if told.from == SalvagedFrom::Checkpoint {
                self.check_certain(told, &found[name], &expected, report);
            } else {
                for (key, value) in found.get(name).unwrap_or(&nothing) {
                    let whose = NAMES
                        .iter()
                        .any(|name| was_stored(name, key, value, story.versions));
                    assert!(whose, "{name}: a value that never was\n{report}");
                }
            }
        }
        found
    }

    fn check_certain(
        &self,
        told: &SalvagedKeyspace,
        found: &Table,
        expected: &State,
        report: &SalvageReport,
    ) {
        let story = story();
        let name = told.name.as_str();
        let (base, expected) = (&story.base[name], &expected[name]);
        for (key, value) in found {
            assert_eq!(expected.get(key), Some(value), "{name}: {key:?}\n{report}");
        }
        let lost = |key: &Vec<u8>| {
            told.values_lost.contains(key)
                || told
                    .lost
                    .iter()
                    .any(|range| *key >= range.from && range.to.as_ref().is_none_or(|to| key < to))
        };
        for key in expected.keys().filter(|key| !found.contains_key(*key)) {
            assert!(lost(key), "{name}: {key:?} is lost and not named\n{report}");
        }
        for range in &told.lost {
            let inside = base
                .keys()
                .filter(|key| **key >= range.from && range.to.as_ref().is_none_or(|to| *key < to));
            assert_eq!(inside.count() as u64, range.keys, "{name}\n{report}");
        }
        let all = told.keys + told.keys_lost() + told.values_lost.len() as u64;
        assert_eq!(all, base.len() as u64, "{name}\n{report}");
    }
}

fn read(path: &Path) -> State {
    let db = Database::open(path).unwrap();
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
    let snapshot = db.snapshot();
    let mut state = State::new();
    for name in db.keyspaces() {
        let keyspace = db.open_keyspace(&name).unwrap();
        let mut table = Table::new();
        let visit = |key: &[u8], value: &[u8]| {
            table.insert(key.to_vec(), value.to_vec());
            true
        };
        for_each(&snapshot, &keyspace, visit);
        state.insert(name, table);
    }
    state
}

fn for_each(
    snapshot: &psitri::Snapshot,
    keyspace: &psitri::Keyspace,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) {
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found && visit(cursor.key(), cursor.value()) {
        found = cursor.next().unwrap();
    }
}

fn rounds(default: u64) -> u64 {
    env_number("PSITRI_DAMAGES").unwrap_or(default)
}

/// Writes nonsense somewhere in a range.
fn spoil(bytes: &mut [u8], place: &Range<usize>, random: &mut Random) {
    let at = place.start + random.below(place.len());
    let len = random.between(1, 64).min(place.end - at);
    for byte in &mut bytes[at..at + len] {
        *byte ^= random.between(1, 255) as u8;
    }
}

fn logs(dir: &Path) -> Vec<String> {
    let names = files(dir).into_keys();
    names.filter(|name| name.starts_with("log-")).collect()
}

/// The segments that hold records of the story's tail.
fn live_logs() -> Vec<(String, usize)> {
    let story = story();
    let with_records = logs(&story.path()).into_iter().filter_map(|name| {
        let bytes = fs::read(story.path().join(&name)).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0);
        (used > 4096 + 64).then_some((name, used))
    });
    with_records.collect()
}

#[test]
fn a_sound_database_is_copied_whole() {
    let case = Case::new();
    let _ = fs::remove_file(case.damaged().join("lock"));
    let report = case.salvage();
    assert!(report.is_whole(), "{report}");
    assert_eq!(report.log.commits as usize, story().tail.len());
    assert_eq!(case.check(&report), story().state_after(story().tail.len()));
    assert!(report.to_string().ends_with("nothing is lost"), "{report}");
}

#[test]
fn damaged_nodes_of_keyspaces_are_lost_ranges() {
    let mut random = Random::new(seed(1));
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    let leaf: fn(&Place) -> bool = |place| place.level == 0;
    let inner: fn(&Place) -> bool = |place| place.level > 0 && !place.is_root;
    let root: fn(&Place) -> bool = |place| place.is_root;
    let mut found_again = 0;
    for kind in [leaf, inner, root, |_| true] {
        for _ in 0..rounds(8) {
            let case = Case::new();
            let mut damaged = 0;
            case.edit("data", |data| {
                for _ in 0..random.between(1, 3) {
                    let name = *random.pick(&NAMES);
                    let places: Vec<_> = layout.trees[name].iter().filter(|p| kind(p)).collect();
                    if !places.is_empty() {
                        spoil(data, &random.pick(&places).bytes, &mut random);
                        damaged += 1;
                    }
                }
            });
            let report = case.salvage();
            case.check(&report);
            assert_eq!(report.is_whole(), damaged == 0, "{report}");
            assert_eq!(report.keyspaces.len(), 3, "{report}");
            assert_eq!(report.log.commits as usize, story().tail.len());
            found_again += report.keyspaces.iter().map(|k| k.possibly_old).sum::<u64>();
        }
    }
    assert!(found_again > 0, "the scan never found an old leaf");
}

#[test]
fn damaged_values_are_named() {
    let mut random = Random::new(seed(2));
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    for _ in 0..rounds(8) {
        let case = Case::new();
        case.edit("data", |data| {
            spoil(data, random.pick(&layout.values), &mut random);
        });
        let report = case.salvage();
        case.check(&report);
        let lost: usize = report.keyspaces.iter().map(|k| k.values_lost.len()).sum();
        assert_eq!((lost, report.is_whole()), (1, false), "{report}");
    }
}

#[test]
fn a_damaged_superblock_or_page_map_hides_nothing() {
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    let mut random = Random::new(seed(3));
    let all = story().state_after(story().tail.len());
    let (newest, older) = (layout.slot, 4096 - layout.slot);
    for _ in 0..rounds(3) {
        for place in [
            older..older + 128,
            layout.map_table.clone(),
            layout.map_piece.clone(),
        ] {
            let case = Case::new();
            case.edit("data", |data| spoil(data, &place, &mut random));
            let report = case.salvage();
            assert_eq!(case.check(&report), all, "{report}");
            assert!(report.is_whole() && !report.damage.is_empty(), "{report}");
        }
        for both in [false, true] {
            let case = Case::new();
            case.edit("data", |data| {
                spoil(data, &(newest..newest + 128), &mut random);
                if both {
                    spoil(data, &(older..older + 128), &mut random);
                }
            });
            let report = case.salvage();
            assert_eq!(report.checkpoint.is_none(), both);
            let found = case.check(&report);
            for name in NAMES {
                assert!(found[name] == all[name], "{name}\n{report}");
            }
            // Without a superblock nothing proves that it is all. With the one before: its trees and the log together do.
            assert_eq!(report.is_whole(), !both, "{report}");
        }
    }
}

#[test]
fn a_lost_catalog_is_found_again_or_its_trees_are_without_names() {
    let data = fs::read(story().path().join("data")).unwrap();
    let layout = Layout::of(&data);
    for has_old_one in [true, false] {
        let case = Case::new();
        case.edit("data", |data| {
            assert_eq!(layout.catalog.len(), 1);
            let place = layout.catalog[0].bytes.clone();
            let mut leaf = data[place.clone()].to_vec();
            data[place].fill(0);
            wipe_names(data);
            if has_old_one {
                // As it may lie about from an earlier checkpoint.
                let page = data.len().div_ceil(4096);
                let at = NodeRef::new(page as u64, 0, node::units(&leaf));
                let birth = node::birth(&leaf);
                node::seal(&mut leaf, at, birth);
                data.resize(page * 4096, 0);
                data.extend_from_slice(&leaf);
            }
        });
        let report = case.salvage();
        let found = case.check(&report);
        assert!(!report.is_whole(), "{report}");
        if has_old_one {
            assert_eq!(report.keyspaces.len(), 3, "{report}");
            let is_found = |k: &SalvagedKeyspace| k.from == SalvagedFrom::FoundCatalog;
            assert!(report.keyspaces.iter().all(is_found), "{report}");
            assert_eq!(found, story().state_after(story().tail.len()), "{report}");
            continue;
        }
        assert_eq!(report.keyspaces_lost, 3, "{report}");
        // A tree found is that of the checkpoint or a newer one, which a merge had written when the files were copied.
        for name in NAMES {
            let base = &story().base[name];
            let has_most = |(_, table): (&String, &Table)| {
                base.keys().filter(|key| table.contains_key(*key)).count() * 10 > base.len() * 9
            };
            let mut salvaged = found
                .iter()
                .filter(|(name, _)| name.starts_with("salvaged-"));
            assert!(salvaged.any(has_most), "{name}\n{report}");
        }
    }
}

/// Spoils what holds the name of a keyspace: the old leaves of the catalog.
fn wipe_names(data: &mut [u8]) {
    let mut at = 8192;
    while let Some(found) = find(&data[at..], b"accounts") {
        data[at + found] ^= 0x20;
        at += found + 1;
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[test]
fn catalogs_of_many_keyspaces_lose_what_one_node_holds() {
    let mut random = Random::new(seed(4));
    let dir = temporary();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    let names: Vec<String> = (0..600).map(|n| format!("keyspace number {n}")).collect();
    for name in &names {
        let ks = db.create_keyspace(name).unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, name.as_bytes(), name.as_bytes()).unwrap();
        txn.commit().unwrap();
    }
    db.close().unwrap();
    let good = fs::read(path.join("data")).unwrap();
    let layout = Layout::of(&good);
    assert!(layout.catalog.len() > 3, "the catalog has an inner node");
    for round in 0..rounds(6) as usize {
        let mut data = good.clone();
        let place = &layout.catalog[if round == 0 {
            0
        } else {
            random.below(layout.catalog.len())
        }];
        data[place.bytes.clone()].fill(0x5a);
        fs::write(path.join("data"), data).unwrap();
        let target = dir.path().join(format!("target {round}"));
        let report = salvage(&path, &target, SalvageOptions::new()).unwrap();
        assert!(!report.is_whole(), "{report}");
        let found = read(&target);
        let mut missing = 0;
        for name in &names {
            let entry = (name.clone().into_bytes(), name.clone().into_bytes());
            let is_there = found
                .get(name)
                .is_some_and(|table| *table == Table::from([entry]));
            missing += u64::from(!is_there);
        }
        assert!(missing <= report.keyspaces_lost, "{missing}\n{report}");
        assert!(missing < 600, "{report}");
    }
}

#[test]
fn the_log_counts_up_to_the_damage() {
    let mut random = Random::new(seed(5));
    let tail = story().tail.len() as u64;
    for _ in 0..rounds(12) {
        let logs = live_logs();
        assert!(logs.len() >= 2, "the tail takes several segments");
        let (name, used) = random.pick(&logs).clone();
        let case = Case::new();
        case.edit(&name, |bytes| spoil(bytes, &(4096..used - 32), &mut random));
        let report = case.salvage();
        case.check(&report);
        assert!(report.log.commits < tail, "{report}");
        assert!(!report.is_whole() && !report.log.damage.is_empty());
        assert!(report.log.commits + report.log.commits_passed_by < tail);

        fs::remove_dir_all(case.target()).unwrap();
        let past = case.salvage_with(SalvageOptions::new().past_damage(true));
        let read_again = report.log.commits + report.log.commits_passed_by;
        assert_eq!(
            (past.log.commits, past.log.commits_passed_by),
            (read_again, 0)
        );
        assert!(!past.is_whole());
    }
}

#[test]
fn missing_and_short_segments_are_noticed() {
    let mut random = Random::new(seed(6));
    let tail = story().tail.len() as u64;
    let logs = live_logs();
    let sequence = |name: &String| {
        let bytes = fs::read(story().path().join(name)).unwrap();
        u64::from_le_bytes(bytes[16..24].try_into().unwrap())
    };
    let last = logs
        .iter()
        .map(|(name, _)| name)
        .max_by_key(|name| sequence(name));
    let last = last.unwrap().clone();
    for round in 0..rounds(8) as usize {
        let (name, used) = &logs[round % logs.len()];
        let case = Case::new();
        let is_gone = random.percent(50);
        if is_gone {
            fs::remove_file(case.damaged().join(name)).unwrap();
        } else {
            case.edit(name, |bytes| bytes.truncate(random.below(*used - 32)));
        }
        let report = case.salvage();
        case.check(&report);
        assert!(report.log.commits < tail, "{report}");
        // No other file has a trace of the last segment.
        let has_trace = !is_gone || *name != last;
        assert!(!has_trace || !report.is_whole(), "{name}\n{report}");
    }
    let case = Case::new();
    for name in self::logs(&case.damaged()) {
        fs::remove_file(case.damaged().join(name)).unwrap();
    }
    let report = case.salvage();
    case.check(&report);
    assert!(report.log.commits == 0 && !report.is_whole(), "{report}");
}

#[test]
fn a_data_file_that_is_short_zero_or_gone_leaves_what_is_there() {
    let mut random = Random::new(seed(7));
    for _ in 0..rounds(8) {
        let case = Case::new();
        case.edit("data", |data| data.truncate(random.below(data.len())));
        let report = case.salvage();
        case.check(&report);
    }
    for gone in [false, true] {
        let case = Case::new();
        match gone {
            true => fs::remove_file(case.damaged().join("data")).unwrap(),
            false => case.edit("data", |data| data.fill(0)),
        }
        let report = case.salvage();
        case.check(&report);
        assert!(
            report.checkpoint.is_none() && !report.is_whole(),
            "{report}"
        );
        // What the log has is there, up to the first large value, which is gone.
        let is_unnamed = |k: &SalvagedKeyspace| k.from == SalvagedFrom::Log;
        assert!(report.keyspaces.iter().all(is_unnamed), "{report}");
        assert!(report.log.commits > 0, "{report}");
    }
}

#[test]
fn anything_anywhere_is_no_panic_and_no_wrong_answer() {
    let mut random = Random::new(seed(8));
    for _ in 0..rounds(20) {
        let case = Case::new();
        let mut names = logs(&case.damaged());
        names.push("data".to_owned());
        for _ in 0..random.between(1, 12) {
            let name = random.pick(&names).clone();
            case.edit(&name, |bytes| {
                let all = 0..bytes.len();
                spoil(bytes, &all, &mut random);
            });
        }
        let report = case.salvage();
        case.check(&report);
        let past = SalvageOptions::new().past_damage(true);
        fs::remove_dir_all(case.target()).unwrap();
        case.salvage_with(past);
    }
}

#[test]
fn what_cannot_be_salvaged_is_said() {
    let dir = temporary();
    let (empty, target) = (dir.path().join("empty"), dir.path().join("target"));
    fs::create_dir(&empty).unwrap();
    let none = salvage(&empty, &target, SalvageOptions::new());
    assert!(matches!(none, Err(Error::NotFound { .. })), "{none:?}");
    assert!(!target.exists());

    let case = Case::new();
    fs::create_dir(case.target()).unwrap();
    fs::write(case.target().join("file"), "taken").unwrap();
    let taken = salvage(case.damaged(), case.target(), SalvageOptions::new());
    assert!(taken.unwrap_err().to_string().contains("not empty"));

    let live = dir.path().join("live");
    let db = options().open(&live).unwrap();
    let used = salvage(&live, &target, SalvageOptions::new());
    assert!(used.unwrap_err().to_string().contains("locked"));
    drop(db);
}

#[test]
fn progress_is_told() {
    let case = Case::new();
    let mut calls = Vec::new();
    let mut told = |phase, done, all| calls.push((phase, done, all));
    case.salvage_with(SalvageOptions::new().progress(&mut told));
    let trees = calls
        .iter()
        .rfind(|(phase, ..)| *phase == psitri::SalvagePhase::Trees)
        .unwrap();
    let keys: usize = story().base.values().map(Table::len).sum();
    assert_eq!((trees.1, trees.2), (keys as u64, keys as u64));
    let log = calls.last().unwrap();
    assert_eq!(log.1, story().tail.len() as u64);
}
