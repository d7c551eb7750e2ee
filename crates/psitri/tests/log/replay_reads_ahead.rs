//! Story: a process is killed with a long log, which the next one reads on one thread and puts back on another. What it finds is what
//! it would find with one, where the log ends in the middle of what was read ahead, too.
use super::key;
use psitri::{Database, Error, Options, storage::sim::SimStorage};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

type Content = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

/// Nothing is merged before it is killed, and nothing of the log is cut.
fn options() -> Options {
    Options::new()
        .buffer_bytes(8 << 20)
        .idle_flush(Duration::from_secs(3600))
}

fn content(db: &Database) -> Content {
    let snapshot = db.snapshot();
    let names = db.keyspaces();
    let of = |name: &String| {
        let keyspace = db.open_keyspace(name).unwrap();
        let mut cursor = snapshot.cursor(&keyspace).unwrap();
        let mut entries = Vec::new();
        let mut more = cursor.seek_first().unwrap();
        while more {
            entries.push((cursor.key().to_vec(), cursor.value().to_vec()));
            more = cursor.next().unwrap();
        }
        entries
    };
    names.iter().map(|name| (name.clone(), of(name))).collect()
}

#[test]
fn operations_of_all_kinds_come_back() {
    let disk = SimStorage::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    let mut keyspaces: Vec<_> = (0..3)
        .map(|n| db.create_keyspace(&format!("k{n}")).unwrap())
        .collect();
    for commit in 0..1_500u32 {
        let mut txn = db.begin(&keyspaces.iter().collect::<Vec<_>>()).unwrap();
        for n in 0..8 {
            let keyspace = &keyspaces[(n + commit) as usize % keyspaces.len()];
            let value = vec![n as u8; (commit % 90) as usize];
            txn.upsert(keyspace, &key(8 * commit + n), &value).unwrap();
            txn.remove(keyspace, &key(4 * commit + n)).unwrap();
        }
        match commit % 100 {
            30 => txn.remove_range(&keyspaces[1], &key(commit), None).unwrap(),
            60 => txn
                .upsert(&keyspaces[0], b"large", &vec![commit as u8; 40_000])
                .unwrap(),
            _ => {}
        }
        txn.commit().unwrap();
        if commit % 400 == 399 {
            let gone = keyspaces.remove(0);
            db.drop_keyspace(gone.name().as_str()).unwrap();
            keyspaces.push(db.create_keyspace(&format!("k{commit}")).unwrap());
        }
    }
    let before = content(&db);
    let in_log = db.stats().unwrap().wal_replay_bytes;
    assert!(in_log > 512 << 10, "{in_log} bytes of log");
    disk.crash_now();
    drop((keyspaces, db));
    let left = disk.process_crash(2);
    let db = Database::open_on(Arc::new(left), options()).unwrap();
    assert_eq!(content(&db), before);
}

/// Commits with one small value each, a large one after some of them. The directory as the process leaves it when it is killed.
fn killed(dir: &Path, is_flushed: bool) -> PathBuf {
    let (work, left) = (dir.join("work"), dir.join("left"));
    let db = options().create(&work).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for number in 0..COMMITS {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        match number == LARGE {
            true => txn.upsert(&keyspace, b"large", &LARGE_VALUE).unwrap(),
            false => txn.upsert(&keyspace, &key(number), b"some value").unwrap(),
        }
        txn.commit().unwrap();
    }
    if is_flushed {
        db.flush().unwrap();
    }
    fs::create_dir(&left).unwrap();
    for entry in fs::read_dir(&work).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, left.join(path.file_name().unwrap())).unwrap();
    }
    left
}

const COMMITS: u32 = 30_000;
const LARGE: u32 = 12_345;
static LARGE_VALUE: [u8; 40_000] = [0xa7; 40_000];

fn damage_large_value(dir: &Path) {
    let path = dir.join("data");
    let mut bytes = fs::read(&path).unwrap();
    let is_value = |window: &[u8]| window == &LARGE_VALUE[..64];
    let at = bytes.windows(64).position(is_value).unwrap();
    bytes[at + 1_000] ^= 1;
    fs::write(&path, bytes).unwrap();
}

#[test]
fn the_log_ends_before_a_value_that_never_reached_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let left = killed(dir.path(), false);
    damage_large_value(&left);
    for open in 0..2 {
        let db = options().open(&left).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        let snapshot = db.snapshot();
        assert_eq!(
            snapshot.count(&keyspace, ..).unwrap(),
            u64::from(LARGE + open)
        );
        for number in [0, LARGE - 1, LARGE + 1, COMMITS - 1] {
            let found = snapshot.get(&keyspace, &key(number)).unwrap();
            assert_eq!(found.is_some(), number < LARGE, "{number}");
        }
        // The log goes on where it was cut.
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"behind", b"it").unwrap();
        txn.commit().unwrap();
    }
}

#[test]
fn a_value_that_was_durable_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let left = killed(dir.path(), true);
    damage_large_value(&left);
    match options().open(&left).map(drop) {
        Err(Error::Corrupted { file, .. }) => assert!(file.ends_with("data"), "{file}"),
        other => panic!("opened: {other:?}"),
    }
}
