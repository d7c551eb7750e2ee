//! Story: small entries all over a tree that is large beside the write buffer come faster than they are merged. Their leaves are not written for them,
//! but deltas in front of these. Whoever reads, counts, clones, compacts, crashes or salvages sees nothing of it.
use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use crate::common::{
    self, Random,
    in_no_order::{self, Model},
};
use psitri::{Database, Keyspace, Options, SalvageOptions, WriteBatch, salvage};

/// Keys that there may be.
const KEYS: u64 = 120_000;

fn open(dir: &Path) -> (Database, Keyspace) {
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(4)
        .checkpoint_on_close(false)
        .idle_flush(Duration::from_secs(3600));
    let db = options.open(dir).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    (db, keyspace)
}

fn new() -> (tempfile::TempDir, Database, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(dir.path());
    (dir, db, keyspace)
}

fn key(n: u64) -> Vec<u8> {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match n % 5 {
        0 => format!("{n:016x}").into_bytes(),
        _ => n.to_be_bytes().to_vec(),
    }
}

/// Most stay in leaves.
fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(40) {
        0 => 0,
        1 => random.between(130, 700),
        _ => random.between(20, 60),
    };
    let word = random.next().to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

/// Writes `count` entries in no order, one in `remove_one_in` of which removes a key. The last four hundred are still in a buffer afterwards.
fn write(
    db: &Database,
    keyspace: &Keyspace,
    model: &mut Model,
    random: &mut Random,
    how_many: (usize, usize),
) {
    let draw_key = |random: &mut Random| key(random.next() % KEYS);
    in_no_order::write(db, keyspace, model, random, how_many, draw_key, value);
}

fn check(db: &Database, keyspace: &Keyspace, model: &Model) {
    let snapshot = db.snapshot();
    assert_eq!(snapshot.len(keyspace).unwrap(), model.len() as u64);
    in_no_order::check(&snapshot, keyspace, model);
    for n in (0..KEYS).step_by(611) {
        let key = key(n);
        let found = snapshot.get(keyspace, &key).unwrap();
        assert_eq!(found, model.get(&key).map(Vec::as_slice));
        let before = snapshot.count(keyspace, ..key.as_slice()).unwrap();
        assert_eq!(before, model.range(..key).count() as u64);
    }
}

fn deltas(db: &Database) -> u64 {
    let report = db.verify().unwrap();
    assert_eq!(report.errors, Vec::<String>::new());
    report.deltas
}

/// A database with many deltas in its tree, and what is in it.
fn changed(seed: u64) -> (tempfile::TempDir, Database, Keyspace, Model, Random) {
    let (dir, db, keyspace) = new();
    let (mut random, mut model) = (Random::new(common::seed(seed)), Model::new());
    write(&db, &keyspace, &mut model, &mut random, (200_000, 50));
    for _ in 0..20 {
        write(&db, &keyspace, &mut model, &mut random, (10_000, 10));
        if deltas(&db) > 300 {
            return (dir, db, keyspace, model, random);
        }
    }
    panic!("no deltas");
}

/// A closed database with deltas in the tree of its last checkpoint, which has all there is.
fn changed_and_closed(seed: u64) -> (tempfile::TempDir, Model) {
    let (dir, mut db, mut keyspace, mut model, mut random) = changed(seed);
    for _ in 0..20 {
        write(&db, &keyspace, &mut model, &mut random, (10_000, 10));
        // Its last merges wait for nobody, and put deltas into the leaves that they change.
        db.checkpoint().unwrap();
        drop((keyspace, db));
        let at_rest = Options::new().open_read_only(dir.path()).unwrap();
        if deltas(&at_rest) > 0 {
            return (dir, model);
        }
        drop(at_rest);
        (db, keyspace) = open(dir.path());
    }
    panic!("no deltas");
}

#[test]
fn nobody_sees_it() {
    let (dir, db, keyspace, mut model, mut random) = changed(1);
    let old = db.snapshot();
    let old_model = model.clone();
    check(&db, &keyspace, &model);
    for _ in 0..4 {
        write(&db, &keyspace, &mut model, &mut random, (40_000, 4));
        check(&db, &keyspace, &model);
    }
    for (key, value) in old_model.iter().step_by(17) {
        assert_eq!(old.get(&keyspace, key).unwrap(), Some(value.as_slice()));
    }
    drop(old);
    drop((keyspace, db));
    let (db, keyspace) = open(dir.path());
    check(&db, &keyspace, &model);
    deltas(&db);
}

#[test]
fn compaction_puts_changes_into_their_leaves() {
    let (_dir, db, keyspace, model, _) = changed(2);
    db.compact().unwrap();
    assert_eq!(deltas(&db), 0);
    check(&db, &keyspace, &model);
}

/// They wait for nobody, and for nothing but merges.
#[test]
fn they_go_into_their_leaves_while_merges_rest() {
    let (dir, db, keyspace, mut model, mut random) = changed(6);
    let before = db.snapshot();
    let model_before = model.clone();
    let start = Instant::now();
    while deltas(&db) > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "deltas stay");
        // Few enough not to be merged.
        write(&db, &keyspace, &mut model, &mut random, (100, 10));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(db.stats().unwrap().frozen_buffers, 0);
    check(&db, &keyspace, &model);
    for (key, value) in model_before.iter().step_by(7) {
        assert_eq!(before.get(&keyspace, key).unwrap(), Some(value.as_slice()));
    }
    drop(before);
    db.compact().unwrap();
    check(&db, &keyspace, &model);
    drop((keyspace, db));
    let (db, keyspace) = open(dir.path());
    check(&db, &keyspace, &model);
}

/// What was in their place is given back by itself, also if the database has come to rest before.
#[test]
fn what_they_replaced_is_given_back() {
    let (dir, _) = changed_and_closed(8);
    let db = Options::new()
        .idle_flush(Duration::from_millis(50))
        .open(dir.path())
        .unwrap();
    let start = Instant::now();
    while deltas(&db) > 0 || db.stats().unwrap().pending_bytes > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?}",
            db.stats().unwrap()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whoever closes meanwhile, kills, or holds the keyspace, finds it as it was.
#[test]
fn that_may_end_anywhere() {
    let (dir, db, keyspace, mut model, mut random) = changed(7);
    drop((keyspace, db));
    for round in 0..5 {
        let (db, keyspace) = open(dir.path());
        write(&db, &keyspace, &mut model, &mut random, (10_000, 10));
        let txn = (round == 1).then(|| db.begin(&[&keyspace]).unwrap());
        std::thread::sleep(Duration::from_millis(1_000 + 15 * round));
        drop(txn);
        write(&db, &keyspace, &mut model, &mut random, (200, 10));
        deltas(&db);
    }
    let (db, keyspace) = open(dir.path());
    check(&db, &keyspace, &model);
}

#[test]
fn ranges_go_through_them() {
    let (_dir, db, keyspace, mut model, mut random) = changed(3);
    for _ in 0..10 {
        let mut ends = [key(random.next() % KEYS), key(random.next() % KEYS)];
        ends.sort();
        // Not most of it at once.
        ends[1] = ends[0].iter().copied().chain([7]).collect();
        ends[1][1] = ends[1][1].saturating_add(9);
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.remove_range(&keyspace, &ends[0], Some(&ends[1]))
            .unwrap();
        txn.commit().unwrap();
        model.retain(|key, _| *key < ends[0] || *key >= ends[1]);
        write(&db, &keyspace, &mut model, &mut random, (4_000, 10));
    }
    check(&db, &keyspace, &model);
    db.checkpoint().unwrap();
    check(&db, &keyspace, &model);
    deltas(&db);
}

/// Bounds that begin and end among changes of a leaf, with newer ones in a buffer: both ways, step by step and in one go.
#[test]
fn bounds_end_among_them() {
    let (_dir, db, keyspace, mut model, mut random) = changed(11);
    let mut checked = 0;
    for _ in 0..15 {
        write(&db, &keyspace, &mut model, &mut random, (500, 5));
        let snapshot = db.snapshot();
        for _ in 0..200 {
            let lo = key(random.next() % KEYS);
            let Some((hi, _)) = model.range(lo.clone()..).nth(random.between(1, 90)) else {
                continue;
            };
            let bounds = &lo[..]..&hi[..];
            let wanted: Vec<_> = model.range(lo.clone()..hi.clone()).collect();
            let mut cursor = snapshot.cursor(&keyspace).unwrap();
            cursor = cursor.with_range(bounds.clone());
            let mut found = cursor.seek_last().unwrap();
            for (key, value) in wanted.iter().rev() {
                assert!(found);
                assert_eq!(cursor.entry(), Some((&key[..], &value[..])));
                found = cursor.prev().unwrap();
            }
            assert!(!found, "{:?} is before {lo:?}", cursor.key());
            found = cursor.seek_first().unwrap();
            for (key, value) in &wanted {
                assert!(found);
                assert_eq!(cursor.entry(), Some((&key[..], &value[..])));
                found = cursor.next().unwrap();
            }
            assert!(!found, "{:?} is not before {hi:?}", cursor.key());
            let mut visited = Vec::new();
            let each = |key: &[u8], value: &[u8]| {
                visited.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            snapshot.for_each(&keyspace, bounds, each).unwrap();
            let visited: Vec<_> = visited.iter().map(|(key, value)| (key, value)).collect();
            assert_eq!(visited, wanted);
            checked += 1;
        }
    }
    assert!(checked > 2000 && deltas(&db) > 0);
}

/// Clones share leaves and deltas; merges of a tree that is shared take deltas apart and make none.
#[test]
fn clones_share_them() {
    let (_dir, db, keyspace, mut model, mut random) = changed(4);
    let clone = db.clone_keyspace("entries", "clone").unwrap();
    db.save_snapshot("saved").unwrap();
    let (mut clone_model, saved_model) = (model.clone(), model.clone());
    for _ in 0..3 {
        write(&db, &keyspace, &mut model, &mut random, (20_000, 5));
        write(&db, &clone, &mut clone_model, &mut random, (20_000, 20));
        deltas(&db);
    }
    check(&db, &keyspace, &model);
    check(&db, &clone, &clone_model);
    let restored = db.restore_keyspace("saved", "entries", "restored").unwrap();
    check(&db, &restored, &saved_model);
    db.drop_snapshot("saved").unwrap();
    drop((restored, clone));
    for name in ["restored", "clone"] {
        db.drop_keyspace(name).unwrap();
    }
    check(&db, &keyspace, &model);
    in_no_order::drop_last(&db, keyspace, "entries");
}

/// Where the superblocks are lost, and the catalog too, their trees are found as those without deltas are: whole, and once.
#[test]
fn their_trees_are_found_without_a_catalog() {
    let (dir, model) = changed_and_closed(9);
    let data = dir.path().join("data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[..8192].fill(0);
    for is_catalog_lost in [false, true] {
        if is_catalog_lost {
            let name = b"entries";
            let places: Vec<_> = bytes.windows(name.len()).enumerate().collect();
            let places: Vec<usize> = places
                .into_iter()
                .filter_map(|(at, found)| (found == name).then_some(at))
                .collect();
            places.iter().for_each(|&at| bytes[at] ^= 1);
        }
        fs::write(&data, &bytes).unwrap();
        let target = tempfile::tempdir().unwrap();
        let target = target.path().join("target");
        let report = salvage(dir.path(), &target, SalvageOptions::new()).unwrap();
        let largest = report
            .keyspaces
            .iter()
            .max_by_key(|told| told.keys)
            .unwrap();
        assert_eq!(largest.keys, model.len() as u64, "{report}");
        assert_eq!(largest.name == "entries", !is_catalog_lost, "{report}");
        let (db, _) = open(&target);
        let found = db.open_keyspace(&largest.name).unwrap();
        check(&db, &found, &model);
    }
}

/// What is shared stays. As soon as nobody shares it any more, it goes.
#[test]
fn they_go_when_a_saved_snapshot_goes() {
    let (_dir, db, keyspace, mut model, mut random) = changed(10);
    for attempt in 0.. {
        write(&db, &keyspace, &mut model, &mut random, (10_000, 10));
        db.save_snapshot("saved").unwrap();
        if deltas(&db) > 0 {
            break;
        }
        assert!(attempt < 20, "no deltas");
        db.drop_snapshot("saved").unwrap();
    }
    std::thread::sleep(Duration::from_secs(2));
    assert!(deltas(&db) > 0, "they are shared");
    db.drop_snapshot("saved").unwrap();
    let start = Instant::now();
    while deltas(&db) > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "deltas stay");
        std::thread::sleep(Duration::from_millis(100));
    }
    check(&db, &keyspace, &model);
}

/// A keyspace none of whose leaves can be read, and that comes first, leaves the others their turn.
#[test]
fn damage_keeps_no_other_keyspace_from_its_turn() {
    const MARK: &[u8] = b"of the first";
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut random = Random::new(common::seed(12));
    let deltas_at_rest = || {
        let at_rest = Options::new().open_read_only(dir.path()).unwrap();
        at_rest.verify().unwrap().deltas
    };
    let mut rounds = (0..20).map(|round| if round == 0 { 150_000 } else { 10_000 });
    let have_deltas = rounds.any(|count| {
        let (db, first) = open(dir.path());
        let second = db.keyspace("second").unwrap();
        let marked = |random: &mut Random| [MARK, &value(random)].concat();
        let draw_key = |random: &mut Random| key(random.next() % KEYS);
        let mut model = Model::new();
        in_no_order::write(
            &db,
            &first,
            &mut model,
            &mut random,
            (count, 50),
            draw_key,
            marked,
        );
        in_no_order::write(
            &db,
            &second,
            &mut model,
            &mut random,
            (count, 50),
            draw_key,
            value,
        );
        db.checkpoint().unwrap();
        drop((first, second, db));
        let all = deltas_at_rest();
        let whole = fs::read(&data).unwrap();
        let mut bytes = whole.clone();
        for at in 0..bytes.len() - MARK.len() {
            if bytes[at..].starts_with(MARK) {
                bytes[at] ^= 1;
            }
        }
        fs::write(&data, bytes).unwrap();
        let of_the_second = deltas_at_rest();
        let both_have = all > of_the_second && of_the_second > 0;
        if !both_have {
            fs::write(&data, whole).unwrap();
        }
        both_have
    });
    assert!(have_deltas, "no deltas");
    let (db, _first) = open(dir.path());
    let start = Instant::now();
    while db.verify().unwrap().deltas > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "deltas stay");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!db.verify().unwrap().errors.is_empty());
}

/// Whatever page is damaged: what is found is right, and what is not is named.
#[test]
fn they_are_salvaged() {
    let (dir, db, keyspace, model, mut random) = changed(5);
    drop((keyspace, db));
    let bytes = fs::read(dir.path().join("data")).unwrap();
    for round in 0..6 {
        let work = tempfile::tempdir().unwrap();
        let (damaged, target) = (work.path().join("damaged"), work.path().join("target"));
        fs::create_dir(&damaged).unwrap();
        for file in fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, damaged.join(path.file_name().unwrap())).unwrap();
        }
        let mut bytes = bytes.clone();
        for _ in 0..round * 8 {
            let at = random.between(8192, bytes.len() - 1);
            bytes[at] ^= 0x20;
        }
        fs::write(damaged.join("data"), &bytes).unwrap();
        let report = salvage(&damaged, &target, SalvageOptions::new()).unwrap();
        let (db, keyspace) = open(&target);
        let told = report.keyspaces.iter().find(|told| told.name == "entries");
        let told = told.expect("the keyspace is found");
        assert!(round > 0 || report.is_whole(), "{report}");
        let snapshot = db.snapshot();
        for (key, value) in &model {
            match snapshot.get(&keyspace, key).unwrap() {
                Some(found) => assert_eq!(found, value.as_slice(), "{report}"),
                None => assert!(
                    told.values_lost.contains(key)
                        || told.lost.iter().any(|range| *key >= range.from
                            && range.to.as_ref().is_none_or(|to| key < to)),
                    "{key:?} is lost and not named\n{report}"
                ),
            }
        }
        let mut cursor = snapshot.cursor(&keyspace).unwrap();
        let mut is_at_entry = cursor.seek_first().unwrap();
        while is_at_entry {
            assert!(model.contains_key(cursor.key()), "{report}");
            is_at_entry = cursor.next().unwrap();
        }
    }
}

const VICTIM: &str = "changes_in_front_of_leaves::victim_of_the_kills";
const KILLED_IN: &str = "PSITRI_DELTAS_KILLED_IN";
const RESTS_AFTER: &str = "PSITRI_DELTAS_REST_AFTER";

/// The batch with this number: keys with a value, or none to be removed.
fn batch(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut random = Random::new(number);
    let mut draw = || {
        let key = key(random.next() % KEYS);
        (key, (random.below(10) > 0).then(|| value(&mut random)))
    };
    (0..100).map(|_| draw()).collect()
}

fn batches_in(db: &Database) -> u64 {
    let count = db.keyspace("count").unwrap();
    let found = db.get(&count, b"batches").unwrap();
    found.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// The process that is killed: this test, with a directory in the environment. It writes batch after batch and notes each, or rests after some.
#[test]
fn victim_of_the_kills() {
    let Some(dir) = std::env::var_os(KILLED_IN) else {
        return;
    };
    let dir = Path::new(&dir);
    let (db, keyspace) = open(&dir.join("db"));
    let count = db.keyspace("count").unwrap();
    let rests_after: u64 = std::env::var(RESTS_AFTER).unwrap().parse().unwrap();
    for number in batches_in(&db)..rests_after {
        let mut writes = WriteBatch::new();
        for (key, value) in batch(number) {
            match value {
                Some(value) => writes.upsert(&keyspace, &key, &value),
                None => writes.remove(&keyspace, &key),
            };
        }
        writes.upsert(&count, b"batches", &(number + 1).to_le_bytes());
        db.write(writes).unwrap();
        fs::write(dir.join("noted.new"), (number + 1).to_le_bytes()).unwrap();
        fs::rename(dir.join("noted.new"), dir.join("noted")).unwrap();
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Killed while it writes deltas, or puts them away.
#[test]
fn kills_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("db")).unwrap();
    let noted = || {
        let bytes = fs::read(dir.path().join("noted")).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    };
    let mut random = Random::new(common::seed(11));
    let (mut model, mut written, mut seen) = (Model::new(), 0, 0);
    for kill in 0..8 {
        // Most of the tree is there before the first kill.
        let goal = written + if kill == 0 { 1_500 } else { 150 };
        let rests = kill % 2 == 1;
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", VICTIM, "--nocapture"])
            .env(KILLED_IN, dir.path())
            .env(RESTS_AFTER, if rests { goal } else { u64::MAX }.to_string())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while noted() < goal {
            assert!(start.elapsed() < Duration::from_secs(120), "it got stuck");
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        let moment = if rests {
            random.between(1_000, 1_100)
        } else {
            random.between(0, 100)
        };
        std::thread::sleep(Duration::from_millis(moment as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let at_rest = Options::new().open_read_only(dir.path().join("db"));
        seen += deltas(&at_rest.unwrap());
        let (db, keyspace) = open(&dir.path().join("db"));
        let found = batches_in(&db);
        let noted = noted();
        assert!(found == noted || found == noted + 1, "{found} of {noted}");
        for (key, value) in (written..found).flat_map(batch) {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        written = found;
        in_no_order::check(&db.snapshot(), &keyspace, &model);
        deltas(&db);
    }
    println!("{seen} deltas were in the checkpoints that the kills left");
}
