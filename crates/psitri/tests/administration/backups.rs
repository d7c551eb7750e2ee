//! Story: a ledger that is backed up while it is in use: everything on Sunday, what has changed on the other days; and the day on which it has to
//! be restored.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::common::{Random, SetAtEnd};
use psitri::{BackupKind, BackupOptions, Database, Error, Options, Progress};

/// Every keyspace with its entries.
type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn open(path: &Path) -> Database {
    let options = Options::new()
        .buffer_bytes(1 << 20)
        .wal_segment_bytes(64 << 10);
    options.open(path).unwrap()
}

fn content(db: &Database) -> Content {
    let snapshot = db.snapshot();
    let read = |name: String| {
        let keyspace = db.open_keyspace(&name).unwrap();
        let mut entries = BTreeMap::new();
        let visit = |key: &[u8], value: &[u8]| {
            entries.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        snapshot.for_each(&keyspace, .., visit).unwrap();
        (name, entries)
    };
    db.keyspaces().into_iter().map(read).collect()
}

fn restored(chain: &[PathBuf], path: &Path) -> Content {
    Database::restore(chain, path).unwrap();
    let db = open(path);
    assert!(db.verify().unwrap().errors.is_empty());
    content(&db)
}

/// Changes a few entries, and the keyspaces sometimes.
fn live_a_day(db: &Database, random: &mut Random) {
    match random.below(4) {
        0 => drop(db.keyspace(&format!("k{}", random.below(6))).unwrap()),
        1 => {
            let names = db.keyspaces();
            if names.len() > 1 {
                db.drop_keyspace(random.pick::<String>(&names)).unwrap();
            }
        }
        2 => {
            let names = db.keyspaces();
            let _ = db.rename_keyspace(
                random.pick::<String>(&names),
                &format!("k{}", random.below(6)),
            );
        }
        _ => {}
    }
    for name in db.keyspaces() {
        let keyspace = db.open_keyspace(&name).unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for _ in 0..random.below(300) {
            let mut key = vec![7; *random.pick(&[0, 3, 3, 3, 3, 200])];
            key.extend_from_slice(&(random.below(2000) as u16).to_be_bytes());
            match random.below(4) {
                0 => drop(txn.remove(&keyspace, &key).unwrap()),
                _ => {
                    let len = *random.pick(&[0, 8, 8, 100, 100, 3000, 40_000]);
                    txn.upsert(&keyspace, &key, &vec![random.next() as u8; len])
                        .unwrap();
                }
            }
        }
        txn.commit().unwrap();
    }
    if random.percent(30) {
        db.checkpoint().unwrap();
    }
}

#[test]
fn any_chain_restores_the_day_it_ends_with() {
    for seed in 1..=6 {
        let mut random = Random::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let db = open(&dir.path().join("db"));
        drop(db.keyspace("k0").unwrap());
        let (mut chain, mut days) = (Vec::new(), Vec::new());
        for day in 0..6 {
            live_a_day(&db, &mut random);
            let path = dir.path().join(format!("day {day}"));
            let info = db
                .backup_with(&path, BackupOptions::new().since(&chain))
                .unwrap();
            assert_eq!(info.kind == BackupKind::Full, chain.is_empty());
            assert_eq!(Database::backup_info(&path).unwrap(), info);
            chain.push(path);
            days.push(content(&db));
        }
        for day in 0..6 {
            let place = dir.path().join(format!("restored {day}"));
            let found = restored(&chain[..=day], &place);
            assert!(found == days[day], "seed {seed}, day {day}");
        }
        // Without changes there is nothing to write.
        let quiet = dir.path().join("quiet");
        let info = db.backup_with(&quiet, BackupOptions::new().since(&chain));
        assert_eq!(info.unwrap().entries, 0);
    }
}

#[test]
fn a_backup_is_one_moment_whoever_writes_meanwhile() {
    const ACCOUNTS: u32 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("db"));
    let (left, right) = (db.keyspace("left").unwrap(), db.keyspace("right").unwrap());
    let mut txn = db.begin(&[&left, &right]).unwrap();
    for n in 0..ACCOUNTS {
        txn.upsert(&left, &n.to_be_bytes(), &1000u64.to_le_bytes())
            .unwrap();
        txn.upsert(&right, &n.to_be_bytes(), &0u64.to_le_bytes())
            .unwrap();
    }
    txn.commit().unwrap();
    let stop = AtomicBool::new(false);
    let backups = std::thread::scope(|scope| {
        let _end = SetAtEnd(&stop);
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !stop.load(Ordering::Relaxed) {
                let key = (random.below(ACCOUNTS as usize) as u32).to_be_bytes();
                let mut txn = db.begin(&[&left, &right]).unwrap();
                let balance = |value: &[u8]| u64::from_le_bytes(value.try_into().unwrap());
                let from = balance(txn.get(&left, &key).unwrap().unwrap());
                let to = balance(txn.get(&right, &key).unwrap().unwrap());
                let amount = from.min(random.below(10) as u64);
                txn.upsert(&left, &key, &(from - amount).to_le_bytes())
                    .unwrap();
                txn.upsert(&right, &key, &(to + amount).to_le_bytes())
                    .unwrap();
                txn.commit().unwrap();
            }
        });
        let mut backups: Vec<PathBuf> = Vec::new();
        for round in 0..4 {
            let path = dir.path().join(format!("backup {round}"));
            let mut last = None;
            let mut report = |progress: Progress| {
                assert!(progress.done <= progress.total);
                last = Some((progress.done, progress.total));
                ControlFlow::Continue(())
            };
            let options = BackupOptions::new().since(&backups).progress(&mut report);
            db.backup_with(&path, options).unwrap();
            assert_eq!(
                last,
                Some((u64::from(ACCOUNTS) * 2, u64::from(ACCOUNTS) * 2))
            );
            backups.push(path);
        }
        backups
    });
    for round in 1..=backups.len() {
        let found = restored(
            &backups[..round],
            &dir.path().join(format!("restored {round}")),
        );
        let sum = |name: &str| -> u64 {
            let values = found[name].values();
            values
                .map(|v| u64::from_le_bytes(v[..].try_into().unwrap()))
                .sum()
        };
        assert_eq!(sum("left") + sum("right"), u64::from(ACCOUNTS) * 1000);
    }
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Error>, part: &str) {
    match result {
        Err(error @ Error::Backup { .. }) => {
            let text = error.to_string();
            assert!(text.contains(part), "{text}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let db = open(&at("db"));
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"a", b"1").unwrap();
    txn.commit().unwrap();
    db.backup(at("full")).unwrap();
    db.backup(at("another")).unwrap();
    let since =
        |chain: &[PathBuf], name: &str| db.backup_with(at(name), BackupOptions::new().since(chain));
    since(&[at("full")], "one").unwrap();
    since(&[at("full"), at("one")], "two").unwrap();

    assert_refused(db.backup(at("full")), "not empty");
    assert_refused(Database::restore(&[at("full")], at("db")), "not empty");
    assert_refused(Database::restore::<PathBuf>(&[], at("new")), "no backup");
    assert_refused(Database::restore(&[at("one")], at("new")), "incremental");
    assert_refused(
        Database::restore(&[at("another"), at("one")], at("new")),
        "not based on",
    );
    assert_refused(
        Database::restore(&[at("full"), at("two")], at("new")),
        "not based on",
    );
    assert_refused(
        Database::restore(&[at("full"), at("another")], at("new")),
        "begins a chain",
    );
    assert_refused(since(&[at("one")], "new"), "incremental");
    assert_refused(Database::restore(&[at("db")], at("new")), "not finished");
    assert_refused(
        Database::restore(&[at("nowhere")], at("new")),
        "there is no backup here",
    );
    assert!(!at("new").exists(), "nothing was begun");

    // A backup that was interrupted before its manifest was there; one whose manifest is damaged.
    std::fs::rename(at("one").join("backup"), at("saved")).unwrap();
    assert_refused(
        Database::restore(&[at("full"), at("one")], at("new")),
        "not finished",
    );
    let mut manifest = std::fs::read(at("saved")).unwrap();
    manifest[40] ^= 1;
    std::fs::write(at("one").join("backup"), manifest).unwrap();
    assert_refused(Database::backup_info(at("one")), "damaged");
}

#[test]
fn a_database_that_is_opened_for_reading_can_be_backed_up_and_a_full_backup_opened() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("db"));
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"a", b"1").unwrap();
    txn.commit().unwrap();
    drop(db.keyspace("empty").unwrap());
    let before = content(&db);
    drop(keyspace);
    db.close().unwrap();
    let db = Options::new()
        .open_read_only(dir.path().join("db"))
        .unwrap();
    db.backup(dir.path().join("copy")).unwrap();
    let copy = Options::new()
        .open_read_only(dir.path().join("copy"))
        .unwrap();
    assert_eq!(content(&copy), before);
    drop(copy);
    let copy = dir.path().join("copy");
    Database::backup_info(&copy).unwrap();
    // It may have been written to since.
    open(&copy).close().unwrap();
    assert_refused(Database::backup_info(&copy), "there is no backup here");
    let next = BackupOptions::new().since(&[&copy]);
    assert_refused(db.backup_with(dir.path().join("next"), next), "no backup");
}

#[test]
fn names_are_those_of_the_moment() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("db"));
    for name in ["a", "b"] {
        let keyspace = db.keyspace(name).unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"who", name.as_bytes()).unwrap();
        txn.commit().unwrap();
    }
    let stop = AtomicBool::new(false);
    let chain = std::thread::scope(|scope| {
        let _end = SetAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
                    db.rename_keyspace(from, to).unwrap();
                }
            }
        });
        let mut chain: Vec<PathBuf> = Vec::new();
        for round in 0..12 {
            let path = dir.path().join(format!("backup {round}"));
            db.backup_with(&path, BackupOptions::new().since(&chain))
                .unwrap();
            chain.push(path);
        }
        chain
    });
    for round in 1..=chain.len() {
        let found = restored(
            &chain[..round],
            &dir.path().join(format!("restored {round}")),
        );
        let mut who: Vec<&Vec<u8>> = found
            .values()
            .map(|entries| &entries[&b"who"[..]])
            .collect();
        who.sort();
        assert_eq!(who, [b"a", b"b"], "round {round}");
    }
}

/// As shells complete the name of an empty directory.
#[test]
fn a_slash_behind_the_name_of_the_target_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("db"));
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"a", b"1").unwrap();
    txn.commit().unwrap();
    let backup = dir.path().join("backup");
    db.backup(&backup).unwrap();
    for (name, exists) in [("again/", true), ("new/", false)] {
        let target = dir.path().join(name);
        if exists {
            std::fs::create_dir(&target).unwrap();
        }
        assert_eq!(
            restored(std::slice::from_ref(&backup), &target),
            content(&db)
        );
    }
}
