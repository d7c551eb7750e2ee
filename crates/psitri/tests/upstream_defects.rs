//! One test for each defect of other stores that must not come back here, named after the defect. The first group is upstream's,
//! the others are those of two younger stores.
//!
//! Where a defect needs a crash, the disk is a simulated one: the power fails at every single call of what is tested.
use psitri::{
    Database, Durability, Error, Keyspace, Options, ReadMode,
    storage::{Storage, sim::SimStorage},
};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
}

fn open(storage: &SimStorage) -> Result<Database, Error> {
    Database::open_on(Arc::new(storage.clone()), options())
}

fn put(db: &Database, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, key, value).unwrap();
    txn.commit().unwrap();
}

fn count(db: &Database, keyspace: &Keyspace) -> u64 {
    db.snapshot().count(keyspace, ..).unwrap()
}

/// Keys in an order that has nothing to do with theirs.
fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Ends the process without closing anything, and opens what it leaves.
fn after_the_process(storage: &SimStorage, db: Database) -> (SimStorage, Database) {
    storage.crash_now();
    let next = storage.process_crash(1);
    drop(db);
    let db = open(&next).unwrap();
    (next, db)
}

// ---- a child process that runs one scenario

const CHILD: &str = "PSITRI_DEFECT_CHILD";

#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let dir = PathBuf::from(dir);
    if dir.join("be quiet").exists() {
        return noisy_scenario(&dir);
    }
    let db = options().open(dir.join("db")).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    put(&db, &keyspace, b"returned", b"1");
    // No destructor runs, nothing of the process's memory is left.
    std::process::abort();
}

fn run_child(dir: &Path) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(CHILD, dir)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

// ---- upstream

#[test]
fn log_kept_in_user_memory() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!run_child(dir.path()).status.success(), "the child aborts");
    let db = options().open_existing(dir.path().join("db")).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    assert_eq!(
        db.get(&keyspace, b"returned").unwrap().as_deref(),
        Some(&b"1"[..])
    );
}

#[test]
fn log_deleted_before_the_checkpoint_that_covers_it_is_durable() {
    for call in 1.. {
        let storage = SimStorage::new(call);
        let db = open(&storage).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        for number in 0..200u64 {
            put(&db, &keyspace, &scattered(number), &[7; 500]);
        }
        db.flush().unwrap();
        storage.crash_at_call(storage.calls() + call);
        let finished = db.checkpoint().is_ok() && !storage.is_crashed();
        storage.crash_now();
        let next = storage.crash(call);
        drop(db);
        let db = open(&next).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        assert_eq!(count(&db, &keyspace), 200, "crash at call {call}");
        if finished {
            assert!(call > 5, "a checkpoint has more calls than {call}");
            break;
        }
    }
}

#[test]
fn recovery_deleting_the_log_before_its_content_is_safe() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for number in 0..300u64 {
        put(&db, &keyspace, &scattered(number), &[7; 300]);
    }
    db.flush().unwrap();
    storage.crash_now();
    for call in 1.. {
        let first = storage.crash(call);
        first.crash_at_call(call);
        let opened = open(&first);
        let finished = opened.is_ok() && !first.is_crashed();
        first.crash_now();
        let second = first.crash(call);
        drop(opened);
        let db = open(&second).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        assert_eq!(
            count(&db, &keyspace),
            300,
            "crash at call {call} of recovery"
        );
        if finished {
            assert!(call > 5, "recovery has more calls than {call}");
            break;
        }
    }
}

#[test]
fn transactions_over_several_keyspaces_half_recovered() {
    for call in 1..60 {
        let storage = SimStorage::new(call);
        let db = open(&storage).unwrap();
        let keyspaces: Vec<Keyspace> = (0..5)
            .map(|i| db.create_keyspace(&format!("k{i}")).unwrap())
            .collect();
        let all: Vec<&Keyspace> = keyspaces.iter().collect();
        db.flush().unwrap();
        storage.crash_at_call(storage.calls() + call);
        let mut durable = 0;
        for number in 1..40u64 {
            let attempt = db.begin(&all).and_then(|mut txn| {
                for keyspace in &all {
                    txn.upsert(keyspace, b"number", &number.to_le_bytes())?;
                    txn.upsert(keyspace, &scattered(number), &[3; 700])?;
                }
                txn.commit_with(Durability::Sync)
            });
            if attempt.is_err() || storage.is_crashed() {
                break;
            }
            durable = number;
            // Checkpoints in between, so that some of a transaction's keyspaces are merged and some are not.
            if number % 10 == 0 && db.checkpoint().is_err() {
                break;
            }
        }
        storage.crash_now();
        let next = storage.crash(call);
        drop(db);
        let db = open(&next).unwrap();
        let numbers: Vec<(u64, u64)> = (0..5)
            .map(|i| {
                let keyspace = db.open_keyspace(&format!("k{i}")).unwrap();
                let number = db.get(&keyspace, b"number").unwrap().map_or(0, |bytes| {
                    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
                });
                (number, count(&db, &keyspace))
            })
            .collect();
        assert!(
            numbers.iter().all(|found| *found == numbers[0]),
            "crash at call {call}: {numbers:?}"
        );
        assert!(
            numbers[0].0 >= durable,
            "crash at call {call}: {numbers:?}, {durable} durable"
        );
        assert_eq!(numbers[0].1, numbers[0].0 + u64::from(numbers[0].0 > 0));
    }
}

#[test]
fn clean_close_during_a_merge_replaying_old_data_over_new() {
    for round in 0..12u64 {
        let storage = SimStorage::new(round);
        let db = open(&storage).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        for value in 0..4u64 {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for number in 0..500u64 {
                txn.upsert(&keyspace, &scattered(number), &[value as u8; 100])
                    .unwrap();
            }
            txn.commit().unwrap();
        }
        put(&db, &keyspace, &scattered(0), b"newest");
        // Frozen buffers are being merged now.
        std::thread::sleep(Duration::from_micros(round * 150));
        if round % 2 == 0 {
            db.close().unwrap();
        } else {
            drop(db);
        }
        let db = open(&storage.process_crash(round)).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        let snapshot = db.snapshot();
        assert_eq!(
            snapshot.get(&keyspace, &scattered(0)).unwrap(),
            Some(&b"newest"[..])
        );
        for number in 1..500u64 {
            assert_eq!(
                snapshot.get(&keyspace, &scattered(number)).unwrap(),
                Some(&[3; 100][..]),
                "round {round}"
            );
        }
    }
}

#[test]
fn operation_counts_that_wrap_at_65535() {
    let options = options().buffer_bytes(64 << 20).checkpoint_bytes(256 << 20);
    for operations in [65_535u64, 65_536, 65_537, 140_000] {
        let storage = SimStorage::new(operations);
        let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in 0..operations {
            txn.upsert(&keyspace, &number.to_be_bytes(), b"").unwrap();
        }
        txn.commit().unwrap();
        storage.crash_now();
        let next = storage.process_crash(1);
        let db = Database::open_on(Arc::new(next), options.clone()).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        assert_eq!(count(&db, &keyspace), operations);
    }
}

#[test]
fn range_delete_applied_after_later_puts() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for key in [b"a", b"b", b"c", b"d"] {
        put(&db, &keyspace, key, b"old");
    }
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"b", b"before the delete").unwrap();
    txn.remove_range(&keyspace, b"b", Some(b"d")).unwrap();
    txn.upsert(&keyspace, b"bb", b"same transaction").unwrap();
    txn.commit().unwrap();
    put(&db, &keyspace, b"c", b"later transaction");
    let check = |db: &Database, when: &str| {
        let keyspace = db.open_keyspace("k").unwrap();
        let mut found = Vec::new();
        db.snapshot()
            .for_each(&keyspace, .., |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        let expected: Vec<(Vec<u8>, Vec<u8>)> = [
            ("a", "old"),
            ("bb", "same transaction"),
            ("c", "later transaction"),
            ("d", "old"),
        ]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
        assert_eq!(found, expected, "{when}");
    };
    check(&db, "buffered");
    let (storage, db) = after_the_process(&storage, db);
    check(&db, "replayed");
    db.checkpoint().unwrap();
    check(&db, "merged");
    let (_, db) = after_the_process(&storage, db);
    check(&db, "merged and reopened");
}

#[test]
fn nested_writes_missing_from_the_log() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"outer", b"1").unwrap();
    let mut middle = txn.nested();
    middle.upsert(&keyspace, b"middle", b"2").unwrap();
    let mut inner = middle.nested();
    inner.upsert(&keyspace, b"inner", b"3").unwrap();
    inner.commit();
    let mut gone = middle.nested();
    gone.upsert(&keyspace, b"aborted", b"4").unwrap();
    gone.upsert(&keyspace, b"outer", b"4").unwrap();
    gone.abort();
    middle.commit();
    txn.commit().unwrap();
    let (_, db) = after_the_process(&storage, db);
    let keyspace = db.open_keyspace("k").unwrap();
    for (key, value) in [("outer", "1"), ("middle", "2"), ("inner", "3")] {
        let found = db.get(&keyspace, key.as_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(value.as_bytes()), "{key}");
    }
    assert_eq!(count(&db, &keyspace), 3);
}

#[test]
fn readers_racing_with_the_buffer_swap() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    put(&db, &keyspace, b"counter", &0u64.to_le_bytes());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let snapshot = db.snapshot();
                        let bytes = snapshot.get(&keyspace, b"counter").unwrap();
                        let bytes = bytes.expect("the counter is never absent");
                        let now = u64::from_le_bytes(bytes.try_into().unwrap());
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                })
            })
            .collect();
        let start = Instant::now();
        let mut number = 0u64;
        while start.elapsed() < Duration::from_millis(700) {
            number += 1;
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, b"counter", &number.to_le_bytes())
                .unwrap();
            // Fills the buffer, so that it is swapped all the time.
            txn.upsert(&keyspace, &scattered(number % 500), &[1; 2000])
                .unwrap();
            txn.commit().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(
            db.stats().unwrap().merges > 3,
            "the buffer was hardly swapped"
        );
    });
}

#[test]
fn reader_counters_of_6_bits() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut snapshots = Vec::new();
    for number in 0..1000u64 {
        put(&db, &keyspace, b"number", &number.to_le_bytes());
        snapshots.push((number, db.snapshot()));
        if number % 100 == 0 {
            db.checkpoint().unwrap();
        }
    }
    std::thread::scope(|scope| {
        for part in snapshots.chunks(10) {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for (number, snapshot) in part {
                    let found = snapshot.get(keyspace, b"number").unwrap();
                    assert_eq!(found, Some(&number.to_le_bytes()[..]));
                }
            });
        }
    });
    drop(snapshots);
    db.checkpoint().unwrap();
    assert_eq!(db.stats().unwrap().pins, 0);
}

#[test]
fn idle_buffers_never_flushed() {
    let storage = SimStorage::new(1);
    let options = options().idle_flush(Duration::from_millis(20));
    let db = Database::open_on(Arc::new(storage.clone()), options).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for number in 0..200u64 {
        put(&db, &keyspace, &scattered(number), &[1; 1000]);
    }
    put(&db, &keyspace, b"a", b"1");
    let retained = db.stats().unwrap().wal_retained_bytes;
    assert!(retained > 3 * (64 << 10), "{retained} bytes of log");
    let start = Instant::now();
    loop {
        let merged = db.snapshot_with(ReadMode::Trie);
        let seen = merged.get(&keyspace, b"a").is_ok_and(|v| v == Some(b"1"));
        // All segments but the one that is being written go.
        if seen && db.stats().unwrap().wal_retained_bytes <= 64 << 10 {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "merged: {seen}, {:?}",
            db.stats().unwrap()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Everything that a library might be tempted to print about.
fn noisy_scenario(dir: &Path) {
    let path = dir.join("db");
    let db = options().create(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for number in 0..2000u64 {
        put(&db, &keyspace, &scattered(number), &[1; 300]);
    }
    assert!(options().open(&path).is_err(), "locked");
    assert!(options().create(&path).is_err());
    db.close().unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path.join("data"))
        .unwrap();
    file.set_len(5000).unwrap();
    assert!(options().open(&path).is_err(), "cut short");
    // A disk that fails.
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    put(&db, &keyspace, b"a", b"1");
    storage.crash_now();
    assert!(db.checkpoint().is_err());
}

#[test]
fn printing_from_a_library() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("be quiet"), "").unwrap();
    let output = run_child(dir.path());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let foreign = stdout.lines().find(|line| {
        let harness = [
            "running 1 test",
            "test child_process",
            "test result: ok",
            ".",
        ];
        !line.is_empty() && !harness.iter().any(|known| line.starts_with(known))
    });
    assert_eq!(foreign, None);
}

// ---- emdb

#[test]
fn writes_after_compaction_going_to_an_unlinked_file() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let inode = || std::fs::metadata(path.join("data")).unwrap().ino();
    let before = inode();
    for round in 0..3u64 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in 0..2000u64 {
            txn.upsert(&keyspace, &scattered(number), &round.to_le_bytes())
                .unwrap();
        }
        txn.commit().unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.remove_range(&keyspace, &[0x40], Some(&[0xc0])).unwrap();
        txn.commit().unwrap();
        // Compacts: gives the free space of the file back.
        db.checkpoint().unwrap();
        put(&db, &keyspace, b"after", &round.to_le_bytes());
        assert_eq!(inode(), before, "the file stays the same one");
    }
    let expected = count(&db, &keyspace);
    drop(db);
    let db = options().open_existing(&path).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    assert_eq!(
        db.get(&keyspace, b"after").unwrap().as_deref(),
        Some(&2u64.to_le_bytes()[..])
    );
    assert_eq!(count(&db, &keyspace), expected);
}

#[test]
fn clear_and_drop_undone_by_reopen() {
    for checkpoint in [false, true] {
        let storage = SimStorage::new(1);
        let db = open(&storage).unwrap();
        let cleared = db.create_keyspace("cleared").unwrap();
        let dropped = db.create_keyspace("dropped").unwrap();
        for number in 0..500u64 {
            put(&db, &cleared, &scattered(number), &[1; 200]);
            put(&db, &dropped, &scattered(number), &[1; 200]);
        }
        db.checkpoint().unwrap();
        put(&db, &cleared, b"buffered", b"1");
        put(&db, &dropped, b"buffered", b"1");
        let mut txn = db.begin(&[&cleared]).unwrap();
        txn.remove_range(&cleared, b"", None).unwrap();
        txn.commit().unwrap();
        db.drop_keyspace("dropped").unwrap();
        if checkpoint {
            db.checkpoint().unwrap();
        }
        let (storage, db) = after_the_process(&storage, db);
        assert_eq!(db.keyspaces(), ["cleared"]);
        assert_eq!(count(&db, &db.open_keyspace("cleared").unwrap()), 0);
        db.close().unwrap();
        let db = open(&storage).unwrap();
        assert_eq!(db.keyspaces(), ["cleared"]);
        // A new keyspace of the old name is empty.
        let again = db.create_keyspace("dropped").unwrap();
        assert_eq!(count(&db, &again), 0);
        assert_eq!(count(&db, &db.open_keyspace("cleared").unwrap()), 0);
    }
}

#[test]
fn compaction_racing_with_writers() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspaces: Vec<Keyspace> = (0..2)
        .map(|i| db.create_keyspace(&format!("k{i}")).unwrap())
        .collect();
    const EACH: u64 = 6000;
    std::thread::scope(|scope| {
        let writers: Vec<_> = keyspaces
            .iter()
            .map(|keyspace| {
                let db = &db;
                scope.spawn(move || {
                    for number in 0..EACH {
                        put(db, keyspace, &scattered(number), &number.to_le_bytes());
                    }
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            db.checkpoint().unwrap();
        }
    });
    let check = |db: &Database| {
        for i in 0..2 {
            let keyspace = db.open_keyspace(&format!("k{i}")).unwrap();
            let snapshot = db.snapshot();
            assert_eq!(snapshot.count(&keyspace, ..).unwrap(), EACH);
            for number in 0..EACH {
                let found = snapshot.get(&keyspace, &scattered(number)).unwrap();
                assert_eq!(found, Some(&number.to_le_bytes()[..]));
            }
        }
    };
    check(&db);
    let (_, db) = after_the_process(&storage, db);
    check(&db);
}

#[test]
fn iterators_swallowing_errors() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    const KEYS: u64 = 5000;
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..KEYS {
        txn.upsert(&keyspace, &scattered(number), &[number as u8; 60])
            .unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
    let pages = {
        let file = storage
            .open("data", psitri::storage::OpenMode::Read)
            .unwrap();
        file.len().unwrap() / 4096
    };
    let (mut errors, mut clean) = (0, 0);
    for page in 2..pages {
        let damaged = storage.process_crash(page);
        damaged
            .damage("data", page * 4096 + 1000, &[0xa5; 16])
            .unwrap();
        let Ok(db) = open(&damaged) else {
            errors += 1;
            continue;
        };
        let keyspace = db.open_keyspace("k").unwrap();
        let snapshot = db.snapshot();
        // Forward, backward, and by callback: an error, or every key.
        let mut seen = 0;
        let all = snapshot.for_each(&keyspace, .., |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        let scan = |backward: bool| -> Result<u64, Error> {
            let mut cursor = snapshot.cursor(&keyspace)?;
            let mut found = if backward {
                cursor.seek_last()?
            } else {
                cursor.seek_first()?
            };
            let mut seen = 0;
            while found {
                seen += 1;
                found = if backward {
                    cursor.prev()?
                } else {
                    cursor.next()?
                };
            }
            Ok(seen)
        };
        match all {
            Ok(()) => {
                assert_eq!(seen, KEYS, "page {page}");
                assert_eq!(scan(false).unwrap(), KEYS);
                assert_eq!(scan(true).unwrap(), KEYS);
                clean += 1;
            }
            Err(Error::Corrupted { file, offset, .. }) => {
                assert_eq!((file.as_str(), offset / 4096), ("data", page));
                assert!(matches!(scan(false), Err(Error::Corrupted { .. })));
                assert!(matches!(scan(true), Err(Error::Corrupted { .. })));
                errors += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        errors > pages / 2,
        "{errors} errors and {clean} clean scans in {pages} pages"
    );
}

// ---- TidesDB

#[test]
fn full_scans_that_miss_keys_after_reopen() {
    let mut storage = SimStorage::new(1);
    const ROUNDS: u64 = 6;
    const EACH: u64 = 1500;
    for round in 0..ROUNDS {
        let db = open(&storage).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        for number in round * EACH..(round + 1) * EACH {
            put(
                &db,
                &keyspace,
                &scattered(number),
                &vec![1; (number % 400) as usize],
            );
        }
        let mut keys = 0;
        let check = |key: &[u8], value: &[u8]| {
            let key = u64::from_be_bytes(key.try_into().unwrap());
            let number = key.wrapping_mul(0xf1de_83e1_9937_733d);
            assert!(number < (round + 1) * EACH, "the inverse of `scattered`");
            assert_eq!(value.len() as u64, number % 400);
            keys += 1;
            ControlFlow::Continue(())
        };
        db.snapshot().for_each(&keyspace, .., check).unwrap();
        assert_eq!(keys, (round + 1) * EACH);
        // Every second time without a close.
        if round % 2 == 0 {
            storage.crash_now();
            storage = storage.process_crash(round);
        } else {
            db.close().unwrap();
        }
    }
    let db = open(&storage).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let mut cursor_keys = 0;
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(&keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found {
        cursor_keys += 1;
        found = cursor.next().unwrap();
    }
    assert_eq!(cursor_keys, ROUNDS * EACH);
}

#[test]
fn deleted_keys_coming_back_during_compaction() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let stop = AtomicBool::new(false);
    for number in 0..1000u64 {
        put(&db, &keyspace, &scattered(number), &[1; 100]);
    }
    db.checkpoint().unwrap();
    // Deleted in the buffer above a tree that has them, by keys and by a range.
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..1000u64 {
        let key = scattered(number);
        if key[0] < 0x80 {
            assert!(txn.remove(&keyspace, &key).unwrap());
        }
    }
    txn.remove_range(&keyspace, &[0x80], None).unwrap();
    txn.commit().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = db.snapshot();
                for number in 0..1000u64 {
                    let found = snapshot.get(&keyspace, &scattered(number)).unwrap();
                    assert_eq!(found, None, "key {number} came back");
                }
                assert_eq!(snapshot.count(&keyspace, ..&b"\xff\xff~"[..]).unwrap(), 0);
            }
        });
        for round in 0..12u64 {
            for number in 0..300u64 {
                let key = [
                    &b"\xff\xff~"[..],
                    &(round * 1000 + number % 100).to_be_bytes(),
                ]
                .concat();
                put(&db, &keyspace, &key, &[2; 500]);
            }
            db.checkpoint().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn prefix_lookups_with_false_misses() {
    let db = options().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for number in 0..3000u64 {
        // Keys that are prefixes of each other, of all lengths, also around 0xff.
        let mut key = format!("{:b}", number % 700).into_bytes();
        key.resize(key.len() + (number % 5) as usize, 0xff);
        if number % 3 == 0 {
            key.insert(0, 0xff);
        }
        keys.push(key);
    }
    keys.sort();
    keys.dedup();
    let (tree, buffer): (Vec<_>, Vec<_>) = keys.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for (_, key) in &tree {
        txn.upsert(&keyspace, key, b"tree").unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for (_, key) in &buffer {
        txn.upsert(&keyspace, key, b"buffer").unwrap();
    }
    txn.commit().unwrap();
    for merged in [false, true] {
        if merged {
            db.checkpoint().unwrap();
        }
        let snapshot = db.snapshot();
        for key in &keys {
            for len in 0..=key.len() {
                let prefix = &key[..len];
                let mut cursor = snapshot.cursor(&keyspace).unwrap().with_prefix(prefix);
                assert!(cursor.seek_first().unwrap(), "{prefix:?} misses {key:?}");
                assert!(cursor.key().starts_with(prefix));
                assert!(cursor.seek(key).unwrap() && cursor.key() == key.as_slice());
            }
            let expected = keys.iter().filter(|k| k.starts_with(key)).count();
            let mut found = 0;
            let cursor = snapshot.cursor(&keyspace).unwrap().with_prefix(key);
            let mut cursor = cursor;
            let mut more = cursor.seek_first().unwrap();
            while more {
                found += 1;
                more = cursor.next().unwrap();
            }
            assert_eq!(found, expected, "below {key:?}, merged {merged}");
        }
    }
}

#[test]
fn transaction_size_caps() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspaces: Vec<Keyspace> = (0..2)
        .map(|i| db.create_keyspace(&format!("k{i}")).unwrap())
        .collect();
    const KEYS: u64 = 60_000;
    // Thirty times what the buffer holds, in one transaction.
    let mut txn = db.begin(&[&keyspaces[0], &keyspaces[1]]).unwrap();
    for number in 0..KEYS {
        let keyspace = &keyspaces[number as usize % 2];
        txn.upsert(keyspace, &number.to_be_bytes(), &[9; 100])
            .unwrap();
    }
    assert_eq!(
        count(&db, &keyspaces[0]),
        0,
        "nobody sees it before the commit"
    );
    txn.commit().unwrap();
    let (_, db) = after_the_process(&storage, db);
    for i in 0..2 {
        let keyspace = db.open_keyspace(&format!("k{i}")).unwrap();
        assert_eq!(count(&db, &keyspace), KEYS / 2);
    }
    // And aborted: nothing of it stays.
    let keyspace = db.open_keyspace("k0").unwrap();
    let before = db.stats().unwrap().reachable_bytes;
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..KEYS / 6 {
        txn.upsert(&keyspace, &number.to_le_bytes(), &[8; 100])
            .unwrap();
    }
    txn.abort();
    assert_eq!(count(&db, &keyspace), KEYS / 2);
    assert_eq!(db.stats().unwrap().reachable_bytes, before);
    assert!(db.verify().unwrap().errors.is_empty());
}
