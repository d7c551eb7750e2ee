//! One test for each defect of upstream that must not come back here, named after the defect.
//!
//! Where a defect needs a crash, the disk is a simulated one: the power fails at every single call of what is tested.
use crate::common::SetAtEnd;
use crate::defects::{after_the_process, count, open, options, put, scattered};
use psitri::{Database, Durability, Keyspace, ReadMode, storage::sim::SimStorage};
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
        .args(["--exact", "upstream_defects::child_process", "--nocapture"])
        .env(CHILD, dir)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

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
        let end = SetAtEnd(&stop);
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
        // However slow the machine: until the buffer was swapped often enough.
        let swapped = || db.stats().unwrap().merges > 3;
        while start.elapsed() < Duration::from_millis(700)
            || (!number.is_multiple_of(64) || !swapped())
                && start.elapsed() < Duration::from_secs(60)
        {
            number += 1;
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, b"counter", &number.to_le_bytes())
                .unwrap();
            // Fills the buffer, so that it is swapped all the time.
            txn.upsert(&keyspace, &scattered(number % 500), &[1; 2000])
                .unwrap();
            txn.commit().unwrap();
        }
        drop(end);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(swapped(), "the buffer was hardly swapped");
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
            "test upstream_defects::child_process",
            "test result: ok",
            ".",
        ];
        !line.is_empty() && !harness.iter().any(|known| line.starts_with(known))
    });
    assert_eq!(foreign, None);
}
