//! Story: calls of the disk fail while a client works: EIO and ENOSPC at random calls, a full disk, a flush that fails.
//!
//! A failed step says so and leaves no trace, or, where the state of the disk is unknown afterwards, the database refuses every
//! later write and names the first cause, while reads go on. Nothing that was acknowledged is lost: not by the fault, not by
//! the end of the process after it, not by a power loss after that, though the system forgot to write what it called clean.
//!
//! `PSITRI_SEED` replays one story; `PSITRI_FAULT_STORIES` sets how many are told.
use crate::crash_world::{
    Client, Oracle, Outcome, Random, open_and_check, parameter, read_all, small_options,
    small_options_with, some_durability,
};
use psitri::{
    Database, Durability, Error, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const STORIES_AT_ONCE: u64 = 8;

fn plan_faults(storage: &SimStorage, random: &mut Random) {
    if random.one_in(3) {
        let room = random.below(400 << 10);
        storage.set_capacity_bytes(Some(storage.allocated_bytes() + room));
        return;
    }
    let kinds = [
        CallKind::Write,
        CallKind::Allocate,
        CallKind::Create,
        CallKind::Sync,
        CallKind::SyncDir,
        CallKind::SetLen,
        CallKind::PunchHole,
        CallKind::Remove,
        CallKind::Map,
    ];
    for _ in 0..1 + random.below(3) {
        let kind = kinds[random.below(kinds.len() as u64) as usize];
        let error = if random.one_in(2) {
            FaultError::Io
        } else {
            FaultError::OutOfSpace
        };
        if random.one_in(2) {
            storage.inject(Fault::nth(kind, 1 + random.below(30), error));
        } else {
            storage.inject(Fault::random(kind, 4 + random.below(30), error));
        }
    }
}

/// Every way of writing is refused, for the same cause; reading is not.
fn check_poisoned(db: &Database, cause: &str) {
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Poisoned { cause: named }) => assert_eq!(named, cause),
        other => panic!("a poisoned database answers {other:?}"),
    };
    refused(db.begin(&[]).map(drop));
    refused(db.begin_direct(&[]).map(drop));
    refused(db.create_keyspace("new").map(drop));
    refused(db.drop_keyspace("any"));
    refused(db.rename_keyspace("any", "other"));
    refused(db.flush());
    refused(db.checkpoint());
}

/// Returns whether the database was poisoned.
fn story(seed: u64) -> bool {
    let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0xfa17);
    let mut oracle = Oracle::new();
    let mut storage = SimStorage::new(seed);
    let mut poisoned = false;
    for round in 0..3 {
        let context = format!("seed {seed}, round {round}");
        let durability = some_durability(&mut random);
        let options = small_options_with(&mut random, durability, &oracle.clock);
        let db = open_and_check(&storage, options, &mut oracle, &context).unwrap();
        let steps = random.below(40);
        let mut client = Client::new(db.clone(), &storage, &mut oracle, &mut random);
        client.durability = durability;
        let outcome = client.work(steps);
        assert_eq!(outcome, Outcome::Done, "{context}");
        plan_faults(&storage, &mut random);
        let mut client = Client::new(db.clone(), &storage, &mut oracle, &mut random);
        client.faults = true;
        client.durability = durability;
        client.only_waits = true;
        let outcome = client.work(25);
        storage.clear_faults();
        storage.set_capacity_bytes(None);
        let found = read_all(&db).expect("reads go on");
        oracle.check_shown(&found, &format!("{context}, {outcome:?}"));
        match outcome {
            Outcome::Poisoned(cause) => {
                poisoned = true;
                check_poisoned(&db, &cause);
                drop(found);
            }
            Outcome::Done => {
                // The cause is gone. What was poisoned in the background shows at the next write.
                let mut client = Client::new(db.clone(), &storage, &mut oracle, &mut random);
                client.faults = true;
                client.durability = durability;
                match client.work(25) {
                    Outcome::Done => {
                        db.checkpoint()
                            .unwrap_or_else(|error| panic!("{context}: {error}"));
                        let report = db.verify().unwrap();
                        assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
                    }
                    Outcome::Poisoned(cause) => {
                        poisoned = true;
                        check_poisoned(&db, &cause);
                    }
                    Outcome::Crashed => unreachable!("no crash is planned"),
                }
            }
            Outcome::Crashed => unreachable!("no crash is planned"),
        }
        storage.crash_now();
        let next = storage.process_crash(random.next());
        drop(db);
        // What the next process sees, it must also make last.
        let context = format!("{context}, the next process");
        let options = small_options(&mut random, &oracle.clock);
        let db = open_and_check(&next, options, &mut oracle, &context).unwrap();
        next.crash_now();
        drop(db);
        oracle.complete = false;
        oracle.flushed("opening");
        storage = next.crash(random.next());
    }
    let context = format!("seed {seed}, in the end");
    let options = small_options(&mut random, &oracle.clock);
    drop(open_and_check(&storage, options, &mut oracle, &context).unwrap());
    poisoned
}

#[test]
fn faults_at_random_calls_lose_nothing() {
    if let Some(seed) = parameter("PSITRI_SEED") {
        story(seed);
        return;
    }
    let stories = parameter("PSITRI_FAULT_STORIES").unwrap_or(80);
    let (poisoned, seed_next) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..STORIES_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let seed = seed_next.fetch_add(1, Ordering::Relaxed);
                    if seed >= stories || failed.lock().unwrap().is_some() {
                        break;
                    }
                    match std::panic::catch_unwind(|| story(seed)) {
                        Ok(hit) => drop(poisoned.fetch_add(u64::from(hit), Ordering::Relaxed)),
                        Err(panic) => {
                            eprintln!("seed {seed} failed: PSITRI_SEED={seed} replays it");
                            *failed.lock().unwrap() = Some(panic);
                        }
                    }
                }
            });
        }
    });
    if let Some(panic) = failed.into_inner().unwrap() {
        std::panic::resume_unwind(panic);
    }
    let poisoned = poisoned.into_inner();
    println!("{poisoned} of {stories} stories came to a poisoned database");
    assert!(poisoned > 0 && poisoned < stories, "both endings are told");
}

fn quiet_options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .idle_flush(Duration::from_secs(3600))
}

/// Lets the background make the log's spare segments, so that the next flush is not one of theirs.
fn let_settle() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_failed_flush_refuses_all_later_writes_and_names_the_first_cause() {
    for error in [FaultError::Io, FaultError::OutOfSpace] {
        let storage = SimStorage::new(3);
        let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
        let ks = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"old", b"1").unwrap();
        txn.commit().unwrap();
        let_settle();
        storage.inject(Fault::nth(CallKind::Sync, 1, error));
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"new", b"2").unwrap();
        let first = txn.commit_with(Durability::Sync).unwrap_err().to_string();
        assert!(first.contains("sync_data"), "{first}");
        let Err(Error::Poisoned { cause }) = db.begin(&[&ks]) else {
            panic!("writes go on after a failed flush");
        };
        assert!(cause.contains("sync_data"), "{cause}");
        check_poisoned(&db, &cause);
        // The disk works again, and the cause is still the first.
        storage.inject(Fault::nth(CallKind::Write, 1, FaultError::Io));
        check_poisoned(&db, &cause);
        let snapshot = db.snapshot();
        assert_eq!(snapshot.get(&ks, b"old").unwrap(), Some(&b"1"[..]));
        assert_eq!(snapshot.get(&ks, b"new").unwrap(), None);
        assert!(matches!(db.clone().close(), Err(Error::Poisoned { .. })));
    }
}

/// Ends the process after a failed flush, lets the next one open the database, cuts the power under that one, and returns what
/// the third finds. The second sees everything in the system's cache, which calls pages clean that it never wrote.
fn two_lives_later(storage: &SimStorage, db: Database, seed: u64) -> Database {
    storage.crash_now();
    let next = storage.process_crash(seed);
    drop(db);
    next.set_early_write_back(false);
    let db = Database::open_on(Arc::new(next.clone()), quiet_options()).unwrap();
    next.crash_now();
    drop(db);
    Database::open_on(Arc::new(next.crash(seed)), quiet_options()).unwrap()
}

/// The flushes of a checkpoint: log, data, superblock.
#[test]
fn a_failed_flush_of_a_checkpoint_is_not_tried_again() {
    let mut superblocks = 0;
    for seed in 0..12 {
        for nth in 1..=4 {
            let error = [FaultError::Io, FaultError::OutOfSpace][seed as usize % 2];
            let storage = SimStorage::new(seed);
            storage.set_early_write_back(false);
            let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
            let ks = db.create_keyspace("k").unwrap();
            // More than a segment, so that the log is cut by the checkpoint.
            for key in 0..100u8 {
                let mut txn = db.begin(&[&ks]).unwrap();
                txn.upsert(&ks, &[key], &[key; 1000]).unwrap();
                txn.commit().unwrap();
            }
            let_settle();
            storage.inject(Fault::nth(CallKind::Sync, nth, error));
            if db.checkpoint().is_ok() {
                assert!(nth > 2, "a checkpoint has more flushes than {nth}");
                continue;
            }
            superblocks += u64::from(nth > 2);
            let what = format!("seed {seed}, flush {nth}, {error:?}");
            let refused = db.begin(&[&ks]);
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{what}");
            assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 100, "reads go on");
            let db = two_lives_later(&storage, db, seed);
            let ks = db.open_keyspace("k").unwrap();
            assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 100, "{what}");
            assert!(db.verify().unwrap().errors.is_empty(), "{what}");
        }
    }
    assert!(superblocks > 0, "no superblock's flush failed");
}

#[test]
fn a_large_value_whose_flush_failed_lasts_once_it_was_recovered() {
    for seed in 0..12 {
        let storage = SimStorage::new(seed);
        storage.set_early_write_back(false);
        let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
        let ks = db.create_keyspace("k").unwrap();
        db.flush().unwrap();
        let_settle();
        let value = Random(seed).bytes(50_000);
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"large", &value).unwrap();
        txn.commit().unwrap();
        storage.inject(Fault::nth(CallKind::Sync, 1, FaultError::Io));
        assert!(db.flush().is_err());
        let db = two_lives_later(&storage, db, seed);
        let ks = db.open_keyspace("k").unwrap();
        let found = db.get(&ks, b"large").unwrap();
        assert!(found == Some(value), "seed {seed}");
    }
}

#[test]
fn a_full_disk_fails_the_transaction_and_passes() {
    let storage = SimStorage::new(11);
    let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
    let ks = db.create_keyspace("k").unwrap();
    storage.set_capacity_bytes(Some(storage.allocated_bytes() + (600 << 10)));
    let value = vec![7; 1000];
    let mut committed = 0u64;
    let error = loop {
        let attempt = db.begin(&[&ks]).and_then(|mut txn| {
            txn.upsert(&ks, &committed.to_be_bytes(), &value)?;
            txn.commit()
        });
        match attempt {
            Ok(()) => committed += 1,
            Err(error) => break error,
        }
        assert!(committed < 100_000, "the disk is never full");
    };
    assert!(error.is_out_of_space(), "{error}");
    assert!(committed > 100);
    // A transaction that spills, and a large value, fail the same way and leave nothing.
    let large = db.begin(&[&ks]).and_then(|mut txn| {
        for key in 0..300u64 {
            txn.upsert(&ks, &[b'x', key as u8], &vec![1; 20_000])?;
        }
        txn.commit()
    });
    assert!(large.is_err());
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), committed);
    storage.set_capacity_bytes(None);
    for _ in 0..50 {
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, &committed.to_be_bytes(), &value).unwrap();
        txn.commit().unwrap();
        committed += 1;
    }
    db.checkpoint().unwrap();
    assert!(db.verify().unwrap().errors.is_empty());
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), committed);
    // What the failed attempts wrote is free again.
    let stats = db.stats().unwrap();
    assert!(
        stats.file_bytes < stats.reachable_bytes * 5 / 4 + (256 << 10),
        "{stats:?}"
    );
}

/// A transaction that is in no log fails for want of space, wherever it meets that. The number that it would have had is not missed by
/// the commits after it.
#[test]
fn a_spilled_commit_without_space_takes_no_later_commit_with_it() {
    let (mut failed, mut refused) = (0, 0);
    for (kind, lasts) in [
        (CallKind::Write, false),
        (CallKind::Write, true),
        (CallKind::Allocate, false),
    ] {
        // The first calls write the values, the last few the superblock: these one by one.
        let (mut nth, mut step) = (1, 20);
        loop {
            let storage = SimStorage::new(nth);
            storage.set_rough_transfers(None);
            let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
            let ks = db.create_keyspace("k").unwrap();
            let_settle();
            storage.inject(Fault::nth(kind, nth, FaultError::OutOfSpace));
            if lasts {
                storage.inject(Fault::nth(kind, nth + 1, FaultError::OutOfSpace));
            }
            let large = db.begin_direct(&[&ks]).and_then(|mut txn| {
                for key in 0..100u8 {
                    txn.upsert(&ks, &[b'l', key], &[key; 6000])?;
                }
                txn.commit()
            });
            if large.is_ok() && step == 1 {
                break;
            }
            if large.is_ok() {
                (nth, step) = (nth.saturating_sub(step) + 1, 1);
                continue;
            }
            failed += 1;
            storage.clear_faults();
            let after = db.begin(&[&ks]).and_then(|mut txn| {
                txn.upsert(&ks, b"after", b"1")?;
                txn.commit_with(Durability::Sync)
            });
            storage.crash_now();
            let next = if nth % 2 == 0 {
                storage.crash(nth)
            } else {
                storage.process_crash(nth)
            };
            drop(db);
            let db = Database::open_on(Arc::new(next), quiet_options()).unwrap();
            let ks = db.open_keyspace("k").unwrap();
            let count = db.snapshot().count(&ks, ..).unwrap();
            match after {
                Ok(()) => assert_eq!(count, 1, "{kind:?} {nth}"),
                // In doubt: it is there as a whole, or not.
                Err(Error::Poisoned { .. }) => {
                    assert!(lasts, "the superblock could be taken back");
                    refused += 1;
                    assert!(count == 0 || count == 100, "{kind:?} {nth}: {count}");
                }
                Err(other) => panic!("{kind:?} {nth}: {other}"),
            }
            nth += step;
        }
    }
    assert!(failed > refused && refused > 0, "{failed}, {refused}");
}

/// Snapshots that are not saved for want of space leave nothing behind that would hide a keyspace which is created next.
#[test]
fn a_snapshot_that_was_not_saved_takes_no_later_keyspace_with_it() {
    let mut failed = 0;
    for nth in 1..8 {
        let storage = SimStorage::new(nth);
        storage.set_rough_transfers(None);
        let db = Database::open_on(Arc::new(storage.clone()), quiet_options()).unwrap();
        let ks = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"a", b"1").unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        let_settle();
        storage.inject(Fault::nth(CallKind::Write, nth, FaultError::OutOfSpace));
        let saved = db.save_snapshot("s");
        storage.clear_faults();
        if saved.is_ok() || db.checkpoint().is_err() {
            continue;
        }
        failed += 1;
        assert!(db.saved_snapshots().is_empty());
        let after = db.create_keyspace("after").unwrap();
        let mut txn = db.begin(&[&after]).unwrap();
        txn.upsert(&after, b"b", b"2").unwrap();
        txn.commit_with(Durability::Sync).unwrap();
        storage.crash_now();
        let next = storage.crash(nth);
        drop(db);
        let db = Database::open_on(Arc::new(next), quiet_options()).unwrap();
        let after = db.open_keyspace("after").unwrap();
        assert_eq!(db.get(&after, b"b").unwrap().as_deref(), Some(&b"2"[..]));
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
    assert!(failed > 0, "no write was hit");
}
