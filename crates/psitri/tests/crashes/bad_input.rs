//! Story: the files are not what they should be, or somebody else is at them. Every bit may flip and every file may be cut:
//! opening and reading give `Corrupted` with a file and an offset, or what was committed (of the log: a prefix of it), never a
//! panic and never wrong data. A newer format, a second process, a directory that may only be read, and opening for reading
//! each have an error or a meaning of their own.
//!
//! `PSITRI_SEED` repeats the damage; `PSITRI_DAMAGES` sets how much of each kind is done.
use crate::crash_world::{Content, Random, parameter, read_all};
use psitri::{
    Database, Error, Options,
    node::{self, Inner, NodeRef},
    storage::{OsStorage, StorageError},
};
use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    os::unix::{
        fs::{FileExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(64 << 20)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
}

fn temporary() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.unwrap()
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Content of every file, by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

/// A directory as a process that was killed leaves it: a checkpoint, and a log behind it. Returns every content that the
/// database had since the checkpoint.
fn killed_database(dir: &Path) -> Vec<Content> {
    let work = dir.join("work");
    let db = options().create(&work).unwrap();
    let mut random = Random(5);
    let keyspaces = ["a", "b"].map(|name| db.create_keyspace(name).unwrap());
    let mut history = Vec::new();
    for number in 0..120u64 {
        let mut txn = db.begin(&[&keyspaces[0], &keyspaces[1]]).unwrap();
        for keyspace in &keyspaces {
            for _ in 0..8 {
                let key = format!("key {:05}", random.below(2000));
                let len = random.below(if number % 10 == 0 { 3000 } else { 150 });
                let value = random.bytes(len as usize);
                txn.upsert(keyspace, key.as_bytes(), &value).unwrap();
            }
        }
        if number % 15 == 0 {
            let value = random.bytes(40_000);
            txn.upsert(&keyspaces[1], b"large", &value).unwrap();
        }
        txn.commit().unwrap();
        if number == 80 {
            db.checkpoint().unwrap();
            history.clear();
        }
        if number == 105 {
            // Behind the last large value: damage to a value that nothing proves durable is taken for a value that never
            // reached the disk, and ends the log before its record.
            db.flush().unwrap();
        }
        if number >= 80 {
            history.push(read_all(&db).unwrap());
        }
    }
    copy(&work, &dir.join("killed"));
    drop(db);
    history
}

/// Announces keys from everywhere. Damage that is met on the way is for those to report who read.
fn announce(db: &Database) {
    for name in ["a", "b"] {
        let Ok(keyspace) = db.keyspace(name) else {
            continue;
        };
        for first in (0..2000).step_by(97) {
            let keys = [0, 1, 5, 300, 600, 900, 1200, 1500]
                .map(|step| format!("key {:05}", (first + step) % 2000));
            db.prefetch(&keyspace, &keys.each_ref().map(|key| key.as_bytes()));
        }
    }
}

/// Opens and reads a damaged copy. `None`: damage was reported, as it should be.
fn examine(dir: &Path, read_only: bool, what: &str) -> Option<Content> {
    let check = |error: Error| match error {
        Error::Corrupted {
            file,
            what: found,
            offset: _,
        } => {
            let path = Path::new(&file);
            let there = dir.join(path).exists() || path.exists();
            assert!(there, "{what}: {found} is said of {file:?}");
        }
        Error::UnsupportedVersion { .. } => {
            assert!(what.contains("log"), "{what}: taken for a newer version")
        }
        other => panic!("{what}: {other}"),
    };
    let opened = if read_only {
        options().open_read_only(dir)
    } else {
        options().open(dir)
    };
    let db = match opened {
        Ok(db) => db,
        Err(error) => {
            check(error);
            return None;
        }
    };
    announce(&db);
    let content = read_all(&db);
    announce(&db);
    match content {
        Ok(content) => Some(content),
        Err(error) => {
            check(error);
            assert!(
                db.verify().map_or(true, |report| !report.errors.is_empty()),
                "{what}: verify does not see it"
            );
            None
        }
    }
}

enum Damage {
    Flip,
    Cut,
}

fn damage_files(damage: Damage, is_log: bool) {
    let seed = parameter("PSITRI_SEED").unwrap_or(1);
    let count = parameter("PSITRI_DAMAGES").unwrap_or(250);
    let dir = temporary();
    let history = killed_database(dir.path());
    let (killed, damaged) = (dir.path().join("killed"), dir.path().join("damaged"));
    let names: Vec<String> = files(&killed)
        .into_keys()
        .filter(|name| name.starts_with(if is_log { "log-" } else { "data" }))
        .collect();
    let mut random = Random(seed);
    let (mut reported, mut shortened) = (0, 0);
    for round in 0..count {
        copy(&killed, &damaged);
        let name = &names[random.below(names.len() as u64) as usize];
        let path = damaged.join(name);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let len = file.metadata().unwrap().len();
        let what = match damage {
            Damage::Cut => {
                let len = random.below(len);
                file.set_len(len).unwrap();
                format!("{name} cut to {len} bytes")
            }
            Damage::Flip => {
                // Headers are small and matter: they get their share.
                let head = random.one_in(4);
                let at = random.below(if head { 4200 } else { len });
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0] ^= 1 << random.below(8);
                file.write_all_at(&byte, at).unwrap();
                format!("bit flipped at byte {at} of {name}")
            }
        };
        let what = format!("PSITRI_SEED={seed}, round {round}: {what}");
        match examine(&damaged, round % 5 > 0, &what) {
            None => reported += 1,
            Some(content) => {
                let at = history.iter().position(|state| *state == content);
                let at = at.unwrap_or_else(|| panic!("{what}: wrong data"));
                if !is_log {
                    assert_eq!(at + 1, history.len(), "{what}: commits of the log are gone");
                }
                shortened += u64::from(at + 1 < history.len());
            }
        }
    }
    println!("{reported} reported, {shortened} shortened of {count}");
    assert!(reported > 0, "nothing was ever hit");
    assert!(
        !is_log || shortened > 0,
        "the tail of the log was never hit"
    );
}

#[test]
fn bits_flipped_in_the_data_file() {
    damage_files(Damage::Flip, false);
}

#[test]
fn bits_flipped_in_the_log() {
    damage_files(Damage::Flip, true);
}

#[test]
fn data_file_cut_short() {
    damage_files(Damage::Cut, false);
}

#[test]
fn log_cut_short() {
    damage_files(Damage::Cut, true);
}

#[test]
fn log_segment_missing() {
    let dir = temporary();
    let history = killed_database(dir.path());
    let (killed, damaged) = (dir.path().join("killed"), dir.path().join("damaged"));
    for name in files(&killed).keys().filter(|name| name.starts_with("log")) {
        copy(&killed, &damaged);
        fs::remove_file(damaged.join(name)).unwrap();
        if let Some(content) = examine(&damaged, false, &format!("without {name}, a log")) {
            assert!(history.contains(&content), "without {name}");
        }
    }
}

#[test]
fn data_file_missing_beside_a_log() {
    let dir = temporary();
    let history = killed_database(dir.path());
    assert!(history.len() > 10);
    let killed = dir.path().join("killed");
    fs::remove_file(killed.join("data")).unwrap();
    let before = files(&killed).len();
    // A new database must not be put over what is left of the old one.
    let error = options().open(&killed).unwrap_err();
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    assert!(error.to_string().contains("is missing"), "{error}");
    assert!(!killed.join("data").exists(), "salvage would trust it");
    assert!(matches!(
        options().open_existing(&killed),
        Err(Error::NotFound { .. } | Error::Corrupted { .. })
    ));
    let logs = |dir: &Path| files(dir).keys().filter(|n| n.starts_with("log")).count();
    assert!(
        logs(&killed) + 2 >= before,
        "the log is still there for a repair"
    );
}

/// No checkpoint let go of the beginning of the log: it has all, but for what is in the data file alone.
#[test]
fn data_file_missing_beside_a_log_from_the_beginning() {
    let dir = temporary();
    let (path, killed) = (dir.path().join("db"), dir.path().join("killed"));
    let db = options().create(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for value in [&b"small"[..], &[7; 40_000], b"later"] {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, value.get(..4).unwrap(), value)
            .unwrap();
        txn.commit().unwrap();
    }
    copy(&path, &killed);
    fs::remove_file(killed.join("data")).unwrap();
    let logs = files(&killed);
    let error = options().open(&killed).unwrap_err();
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    let left = files(&killed);
    assert!(!left.contains_key("data"));
    for (name, bytes) in logs.iter().filter(|(name, _)| name.starts_with("log")) {
        assert!(left[name] == *bytes, "{name} is as it was");
    }
}

#[test]
fn newer_format_version() {
    let dir = temporary();
    let path = dir.path().join("db");
    let db = options().create(&path).unwrap();
    db.create_keyspace("k").unwrap();
    db.close().unwrap();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path.join("data"))
        .unwrap();
    for slot in [0, 4096] {
        let mut head = [0; 12];
        file.read_exact_at(&mut head, slot).unwrap();
        let version = u32::from_le_bytes(head[8..].try_into().unwrap());
        // The checksum covers the version, so that damage is told from a newer release. Its place is that of today's format.
        let mut block = vec![0; 128];
        file.read_exact_at(&mut block, slot).unwrap();
        block[8..12].copy_from_slice(&(version + 1).to_le_bytes());
        let crc = crc32c::crc32c(&block[..124]);
        block[124..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&block, slot).unwrap();
    }
    let before = files(&path);
    for opened in [options().open(&path), options().open_read_only(&path)] {
        match opened {
            Err(Error::UnsupportedVersion { found, supported }) => {
                assert_eq!(found, supported + 1);
            }
            other => panic!("{other:?}"),
        }
    }
    let after = files(&path);
    assert!(before.get("data") == after.get("data"), "it was changed");
}

// ---- other processes

const CHILD: &str = "PSITRI_BAD_INPUT_CHILD";

fn child(dir: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "bad_input::other_process", "--nocapture"])
        .env(CHILD, format!("{role} {}", dir.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

#[test]
fn other_process() {
    let Ok(order) = std::env::var(CHILD) else {
        return;
    };
    let (role, dir) = order.split_once(' ').unwrap();
    let dir = PathBuf::from(dir);
    match role {
        "hold" => {
            let _db = options().open(dir.join("db")).unwrap();
            fs::write(dir.join("ready"), "").unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        "nobody" => {
            // May only read.
            match options().open(&dir) {
                Err(Error::Storage(StorageError::Io { source, .. })) => {
                    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
                }
                other => panic!("{other:?}"),
            }
            let db = options().open_read_only(&dir).unwrap();
            let content = read_all(&db).unwrap();
            assert_eq!(content["k"].len(), 2);
        }
        other => panic!("{other}"),
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_second_process_is_told_who_holds_the_database() {
    let dir = temporary();
    let holder = Killed(child(dir.path(), "hold").spawn().unwrap());
    let start = Instant::now();
    while !dir.path().join("ready").exists() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = holder.0.id();
    for opened in [
        options().open(dir.path().join("db")),
        options().open_read_only(dir.path().join("db")),
    ] {
        let error = opened.unwrap_err();
        assert!(error.to_string().contains(&pid.to_string()), "{error}");
        match error {
            Error::Storage(StorageError::Locked { holder, .. }) => assert_eq!(holder, Some(pid)),
            other => panic!("{other}"),
        }
    }
    drop(holder);
    // The lock goes with the process, however that ended.
    options().open(dir.path().join("db")).unwrap();
}

fn two_keys(path: &Path) -> Database {
    let db = options().create(path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for key in [b"checkpointed", b"in the log  "] {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, key, b"1").unwrap();
        txn.commit().unwrap();
        if key[0] == b'c' {
            db.checkpoint().unwrap();
        }
    }
    db
}

#[test]
fn a_directory_that_may_only_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    let db = two_keys(&work);
    let path = dir.path().join("db");
    copy(&work, &path);
    drop(db);
    for directory in [dir.path(), &path] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).unwrap();
    }
    for name in files(&path).keys() {
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    let mut command = child(&path, "nobody");
    // The superuser may write anywhere.
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let output = match command.stderr(Stdio::piped()).output() {
        Ok(output) => Some(output),
        // The test's own file is out of reach for anybody else.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{error}"),
    };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(output) = output else {
        println!("skipped: no other user can run this test");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn open_for_reading_changes_nothing_and_refuses_writes() {
    let dir = temporary();
    let (work, path) = (dir.path().join("work"), dir.path().join("db"));
    assert!(matches!(
        options().open_read_only(&path),
        Err(Error::NotFound { .. })
    ));
    assert!(!path.exists(), "nothing is made");
    fs::create_dir(&path).unwrap();
    for opened in [
        options().open_read_only(&path),
        options().open_existing(&path),
    ] {
        assert!(matches!(opened, Err(Error::NotFound { .. })));
    }
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "no lock is left");
    fs::remove_dir(&path).unwrap();
    let db = two_keys(&work);
    copy(&work, &path);
    drop(db);
    let before = files(&path);
    {
        let first = options().open_read_only(&path).unwrap();
        let second = options().open_read_only(&path).unwrap();
        assert!(
            matches!(
                options().open(&path),
                Err(Error::Storage(StorageError::Locked { .. }))
            ),
            "no writer beside readers"
        );
        for db in [&first, &second] {
            let keyspace = db.open_keyspace("k").unwrap();
            assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 2);
            let refused = [
                db.begin(&[&keyspace]).map(drop),
                db.begin_direct(&[&keyspace]).map(drop),
                db.create_keyspace("new").map(drop),
                db.drop_keyspace("k"),
                db.rename_keyspace("k", "l"),
                db.checkpoint(),
            ];
            for result in refused {
                assert!(matches!(result, Err(Error::ReadOnly)), "{result:?}");
            }
            assert!(db.verify().unwrap().errors.is_empty());
        }
        first.close().unwrap();
    }
    assert!(files(&path) == before, "a file was changed");
    let db = options().open(&path).unwrap();
    assert_eq!(read_all(&db).unwrap()["k"].len(), 2);
}

#[test]
fn files_that_are_something_else() {
    let dir = temporary();
    for (name, bytes) in [
        ("empty", Vec::new()),
        ("text", b"this is not a database".repeat(1000)),
        ("zeros", vec![0; 1 << 20]),
        ("ones", vec![0xff; 1 << 20]),
    ] {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("data"), &bytes).unwrap();
        match options().open(&path) {
            Err(Error::Corrupted { file, .. }) => assert_eq!(file, "data"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(fs::read(path.join("data")).unwrap(), bytes, "left alone");
    }
    let file = dir.path().join("a file");
    fs::write(&file, "x").unwrap();
    assert!(options().open(&file).is_err());
    assert!(matches!(
        options().open_existing(&file),
        Err(Error::NotFound { .. })
    ));
    assert!(OsStorage::open(&file).is_err());
    // Foreign files beside ours are nobody's business.
    let path = dir.path().join("shared");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("README"), "mine").unwrap();
    fs::write(path.join("log-notanumber"), "mine").unwrap();
    fs::write(path.join("backup"), "mine, too").unwrap();
    let db = options().open(&path).unwrap();
    db.create_keyspace("k").unwrap();
    db.close().unwrap();
    let found = files(&path);
    assert_eq!(found["README"], b"mine");
    assert_eq!(found["log-notanumber"], b"mine");
    assert_eq!(found["backup"], b"mine, too");
    fs::remove_file(path.join("backup")).unwrap();
    fs::create_dir(path.join("backup")).unwrap();
    options().open(&path).unwrap().close().unwrap();
}

/// Nodes above others whose checksum is right and whose children are themselves: lookups say that they are damaged, and what announces keys ends.
#[test]
fn a_node_that_is_its_own_child_ends_a_descent() {
    const KEYS: u64 = 60_000;
    let dir = temporary();
    let path = dir.path().join("db");
    // Separators of hundreds of bytes: three levels.
    let key = |number: u64| {
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        scattered.repeat(40)
    };
    let db = options().open(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut load = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..KEYS {
        let near = [&key(number / 2), &[number as u8 & 1][..]].concat();
        load.upsert(&keyspace, &near, b"v").unwrap();
    }
    load.commit().unwrap();
    db.close().unwrap();

    let file = path.join("data");
    let mut data = fs::read(&file).unwrap();
    let mut circles = 0;
    for at in (8192..data.len()).step_by(64) {
        let units = node::units(&data[at..]);
        let end = at + 64 * units as usize;
        if !(1..=1024).contains(&units) || end > data.len() {
            continue;
        }
        let place = NodeRef::new(at as u64 / 4096, at as u32 % 4096 / 64, units);
        let bytes = &mut data[at..end];
        if node::check(bytes, place).is_err() || node::level(bytes) < 2 {
            continue;
        }
        let inner = Inner::open(bytes).unwrap();
        let keys: Vec<u64> = (0..inner.len())
            .map(|child| inner.child_keys(child))
            .collect();
        for (child, keys) in keys.into_iter().enumerate() {
            assert!(node::patch_child(bytes, child, place, keys));
        }
        let birth = node::birth(bytes);
        node::seal(bytes, place, birth);
        circles += 1;
    }
    assert!(circles > 0, "the tree is too low");
    fs::write(&file, &data).unwrap();

    let db = options().open_existing(&path).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let keys: Vec<Vec<u8>> = (0..40).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    db.prefetch(&keyspace, &keys);
    let txn = db.begin(&[&keyspace]).unwrap();
    txn.prefetch(&keyspace, &keys);
    drop(txn);
    let snapshot = db.snapshot();
    let is_damage = |result: Result<(), Error>| match result {
        Err(Error::Corrupted { file, .. }) => assert_eq!(file, "data"),
        other => panic!("{other:?}"),
    };
    is_damage(snapshot.get_many(&keyspace, &keys).map(drop));
    is_damage(snapshot.get(&keyspace, keys[0]).map(drop));
    drop(snapshot);
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, keys[0], b"w").unwrap();
    is_damage(txn.commit());
    is_damage(db.compact().map(drop));
}

/// Changes nodes of the data file for which `change` gives true, and seals them again. How many were changed.
fn change_nodes(path: &Path, mut change: impl FnMut(&mut [u8], &mut u64) -> bool) -> usize {
    let file = path.join("data");
    let mut data = fs::read(&file).unwrap();
    let mut changed = 0;
    for at in (8192..data.len()).step_by(64) {
        let units = node::units(&data[at..]);
        let end = at + 64 * units as usize;
        if !(1..=1024).contains(&units) || end > data.len() {
            continue;
        }
        let place = NodeRef::new(at as u64 / 4096, at as u32 % 4096 / 64, units);
        let bytes = &mut data[at..end];
        if node::check(bytes, place).is_err() {
            continue;
        }
        let mut birth = node::birth(bytes);
        if change(bytes, &mut birth) {
            node::seal(bytes, place, birth);
            changed += 1;
        }
    }
    fs::write(&file, &data).unwrap();
    changed
}

/// What says that it was written in the future would be free as soon as something else takes its place, whoever still reads it.
#[test]
fn nodes_from_the_future_are_damage() {
    let dir = temporary();
    let path = dir.path().join("db");
    two_keys(&path).close().unwrap();
    let is_key = |bytes: &[u8]| {
        let leaf = node::Leaf::open(bytes);
        leaf.is_ok_and(|leaf| leaf.len() == 2 && node::birth(bytes) > 0)
    };
    let changed = change_nodes(&path, |bytes, birth| {
        let is_changed = is_key(bytes);
        *birth = if is_changed { u64::MAX } else { *birth };
        is_changed
    });
    assert!(changed > 0, "no leaf has both keys");
    let opened = options().open_existing(&path);
    let Ok(db) = opened else { return };
    let report = db.verify().unwrap();
    assert!(!report.errors.is_empty(), "{report:?}");
    let keyspace = db.open_keyspace(&db.keyspaces()[0]).unwrap();
    let found = db
        .snapshot()
        .for_each(&keyspace, .., |_, _| ControlFlow::Continue(()));
    assert!(matches!(found, Err(Error::Corrupted { .. })), "{found:?}");
}
