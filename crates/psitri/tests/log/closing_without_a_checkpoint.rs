//! Story: a database that is closed without a checkpoint, again and again. Nothing is merged for it, and the data file stays as it is but for
//! space that nobody needs; the next opening has everything, in every durability, whatever was written; and where commits were promised a
//! flush, the power may fail right after the close.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{allocated, key};
use psitri::{
    Database, Durability, Error, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};

const ENTRIES: u32 = 30_000;

fn options(durability: Durability) -> Options {
    Options::new()
        .durability(durability)
        .checkpoint_on_close(false)
        .idle_flush(Duration::from_secs(3600))
        .async_interval(Duration::from_secs(3600))
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(db: &Database, model: &Model, when: &str) {
    let keyspace = db.keyspace("entries").unwrap();
    let snapshot = db.snapshot();
    let mut expected = model.iter();
    snapshot
        .for_each(&keyspace, .., |key, value| {
            let (k, v) = expected
                .next()
                .unwrap_or_else(|| panic!("{when}: too much"));
            assert!(k == key && v == value, "{when}: {key:?}");
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(expected.next(), None, "{when}");
}

/// Changes that differ from round to round: puts, large values, deletes of points and of a range.
fn change(db: &Database, model: &mut Model, round: u32) {
    let keyspace = db.keyspace("entries").unwrap();
    for batch in 0..30 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for i in 0..200 {
            let k = key((round * 7_919 + batch * 200 + i) % ENTRIES).to_vec();
            if i % 5 == 0 {
                txn.remove(&keyspace, &k).unwrap();
                model.remove(&k);
            } else {
                let bytes = if i == 3 { 4_000 } else { 40 };
                let value = vec![(round * 31 + i) as u8; bytes];
                txn.upsert(&keyspace, &k, &value).unwrap();
                model.insert(k, value);
            }
        }
        txn.commit().unwrap();
    }
    let (from, to) = (vec![round as u8 * 9], vec![round as u8 * 9 + 4]);
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.remove_range(&keyspace, &from, Some(&to)).unwrap();
    txn.commit().unwrap();
    model.retain(|key, _| *key < from || *key >= to);
}

#[test]
fn and_opening_has_everything() {
    for durability in [
        Durability::None,
        Durability::Async,
        Durability::Sync,
        Durability::WriteThrough,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut model, mut logs) = (Model::new(), Vec::new());
        for round in 0..6 {
            let when = format!("{durability}, round {round}");
            let db = options(durability).open(dir.path()).unwrap();
            check(&db, &model, &when);
            let merges = db.stats().unwrap().merges;
            change(&db, &mut model, round);
            check(&db, &model, &when);
            // What is more than ten thousand entries is merged when it was replayed.
            let merged = db.stats().unwrap().merges - merges;
            assert!(round > 1 || merged == 0, "{when}: merged meanwhile");
            if round == 3 {
                drop(db); // Dropping is closing.
            } else {
                db.close().unwrap();
            }
            logs.push(allocated(dir.path(), "log-"));
        }
        assert!(
            logs.iter().filter(|&&log| log > 400 << 10).count() >= 3,
            "{logs:?}"
        );
        let db = options(durability).open_existing(dir.path()).unwrap();
        check(&db, &model, "at the end");
        db.checkpoint().unwrap();
        check(&db, &model, "merged");
        assert!(db.verify().unwrap().errors.is_empty());
        drop(db);
        let read_only = options(durability).open_read_only(dir.path()).unwrap();
        check(&read_only, &model, "read-only");
    }
}

/// What is in no checkpoint is in the log once, and the data file is as small as before.
#[test]
fn and_files_are_as_large_as_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let db = options(Durability::None).open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    for n in 0..ENTRIES {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(n), &[1; 100]).unwrap();
        txn.commit().unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    let (data, log) = (allocated(dir.path(), "data"), allocated(dir.path(), "log-"));
    let written = u64::from(ENTRIES) * 104;
    assert!(data <= 32 << 10, "a data file of {data} bytes");
    assert!(
        log >= written && log < written * 3 / 2 + (64 << 10),
        "a log of {log} bytes for {written}"
    );
}

/// Options with which a buffer is merged before the database is closed, and no checkpoint was due.
fn merging(durability: Durability) -> Options {
    options(durability)
        .buffer_bytes(4 << 20)
        .wal_segment_bytes(1 << 20)
        .checkpoint_bytes(1 << 30)
}

/// Writes until a buffer is merged, and a little more. Returns how many entries there are, and how many bytes of them are not merged.
fn write_more_than_a_buffer(db: &Database) -> (u32, u64) {
    let keyspace = db.keyspace("entries").unwrap();
    let mut written = 0_u32;
    let mut write = |count| {
        for _ in 0..count {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            let value = written.to_be_bytes().repeat(25);
            txn.upsert(&keyspace, &key(written), &value).unwrap();
            txn.commit().unwrap();
            written += 1;
        }
    };
    loop {
        let stats = db.stats().unwrap();
        if stats.merges > 0 {
            break;
        }
        if stats.frozen_buffers == 0 {
            write(100);
        }
    }
    write(11_000);
    let stats = db.stats().unwrap();
    assert_eq!((stats.merges, stats.checkpoints), (1, 0));
    let rest = stats.keyspaces[0].entries_buffered * 104;
    assert!(rest > 1 << 20, "{rest} bytes are not merged");
    (written, rest)
}

fn check_written(db: &Database, written: u32) {
    let keyspace = db.keyspace("entries").unwrap();
    for n in 0..written {
        let value = db.get(&keyspace, &key(n)).unwrap();
        assert_eq!(value, Some(n.to_be_bytes().repeat(25)), "{n} of {written}");
    }
    assert!(db.verify().unwrap().errors.is_empty());
}

/// What was merged before is in the data file only, and the rest in the log only.
#[test]
fn but_not_what_is_merged() {
    let dir = tempfile::tempdir().unwrap();
    let db = merging(Durability::None).open(dir.path()).unwrap();
    let (written, rest) = write_more_than_a_buffer(&db);
    db.close().unwrap();
    let log = allocated(dir.path(), "log-");
    assert!(
        log >= rest && log < rest * 3 / 2 + (1 << 20),
        "a log of {log} bytes for {rest}"
    );
    check_written(
        &merging(Durability::None).open(dir.path()).unwrap(),
        written,
    );
}

/// A merge that is at work when the database is closed is waited for: what it merged is not in the log as well.
#[test]
fn and_not_what_is_being_merged() {
    for more in [0, 300, 3_000] {
        let dir = tempfile::tempdir().unwrap();
        let db = merging(Durability::None).open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        let mut written = 0_u32;
        let mut write = || {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            let value = written.to_be_bytes().repeat(25);
            txn.upsert(&keyspace, &key(written), &value).unwrap();
            txn.commit().unwrap();
            written += 1;
            db.stats().unwrap()
        };
        loop {
            let stats = write();
            if stats.frozen_buffers + stats.merges > 0 {
                break;
            }
        }
        (0..more).for_each(|_| drop(write()));
        drop(keyspace);
        db.close().unwrap();
        let (data, log) = (allocated(dir.path(), "data"), allocated(dir.path(), "log-"));
        let content = u64::from(written) * 104;
        assert!(
            data + log < content * 5 / 4 + (2 << 20),
            "{data} bytes and a log of {log} for {content}"
        );
        check_written(
            &merging(Durability::None).open(dir.path()).unwrap(),
            written,
        );
    }
}

/// The checkpoint that lets go of what is merged is worth no commit: one that fails takes none with it that was promised a flush, and where there is
/// no room for it nothing has happened.
#[test]
fn and_a_checkpoint_that_fails_takes_nothing_with_it() {
    let close_with = |fault: Fault| {
        let storage = SimStorage::new(1);
        let open = |storage| Database::open_on(Arc::new(storage), merging(Durability::Async));
        let db = open(storage.clone()).unwrap();
        let (written, _) = write_more_than_a_buffer(&db);
        storage.inject(fault);
        let closed = db.close();
        storage.clear_faults();
        let is_of_log = |error: &Error| !error.to_string().contains("of data failed");
        if !closed.as_ref().is_err_and(is_of_log) {
            check_written(&open(storage.crash(1)).unwrap(), written);
        }
        closed.map_err(|error| error.to_string())
    };
    let full = Fault::random(CallKind::Write, 1, FaultError::OutOfSpace);
    assert_eq!(close_with(full), Ok(()));
    for error in [FaultError::Io, FaultError::OutOfSpace] {
        let flush_fails = |nth| close_with(Fault::nth(CallKind::Sync, nth, error));
        let failed: Vec<String> = (1..).map_while(|nth| flush_fails(nth).err()).collect();
        let of_data = |error: &&String| error.contains("of data failed");
        assert!(failed.iter().filter(of_data).count() >= 2, "{failed:?}");
    }
}

/// What is merged and takes less than a segment of the log is merged for good: large values would be read again by each opening.
#[test]
fn but_not_little_that_is_merged() {
    let dir = tempfile::tempdir().unwrap();
    let db = options(Durability::None).open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    for n in 0..50 {
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(n), &vec![7; 100_000]).unwrap();
        txn.commit().unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    let db = options(Durability::None)
        .open_read_only(dir.path())
        .unwrap();
    let keyspace = &db.stats().unwrap().keyspaces[0];
    assert_eq!((keyspace.keys_merged, keyspace.entries_buffered), (50, 0));
}

/// What a replay would only overwrite or delete again is merged instead: it takes no room in the log.
#[test]
fn but_not_what_is_out_of_date() {
    for deletes in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = options(Durability::None).open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        for round in 0..4 {
            for n in 0..ENTRIES {
                let mut txn = db.begin(&[&keyspace]).unwrap();
                if deletes && round == 3 {
                    txn.remove(&keyspace, &key(n)).unwrap();
                } else {
                    txn.upsert(&keyspace, &key(n), &[round; 100]).unwrap();
                }
                txn.commit().unwrap();
            }
        }
        drop(keyspace);
        db.close().unwrap();
        let log = allocated(dir.path(), "log-");
        assert!(log <= 64 << 10, "a log of {log} bytes, deletes: {deletes}");
        let db = options(Durability::None).open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        let expected = if deletes { 0 } else { u64::from(ENTRIES) };
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), expected);
        assert_eq!(db.get(&keyspace, &key(7)).unwrap().is_some(), !deletes);
    }
}

/// Short lives, one after the other, add a segment each: from time to time one of them takes a checkpoint.
#[test]
fn and_not_more_and_more_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut files_most = 0;
    for n in 0..100 {
        let db = options(Durability::None).open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(n), &[1; 100]).unwrap();
        txn.commit().unwrap();
        assert_eq!(
            db.snapshot().count(&keyspace, ..).unwrap(),
            u64::from(n) + 1
        );
        drop(keyspace);
        db.close().unwrap();
        files_most = std::fs::read_dir(dir.path())
            .unwrap()
            .count()
            .max(files_most);
    }
    assert!((10..40).contains(&files_most), "up to {files_most} files");
}

/// Values outside of the log would all be read when it is replayed.
#[test]
fn and_large_values_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let db = options(Durability::None).open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    for n in 0..300 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        let bytes = if n == 150 { 100_000 } else { 100 };
        txn.upsert(&keyspace, &key(n), &vec![n as u8; bytes])
            .unwrap();
        txn.commit().unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    assert!(allocated(dir.path(), "log-") <= 16 << 10);
    let db = options(Durability::None).open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    assert_eq!(
        db.get(&keyspace, &key(150)).unwrap().unwrap(),
        [150; 100_000]
    );
}

/// Buffers that wait for their merges when the database is closed are left, or merged and made durable: all of it is there again.
#[test]
fn and_buffers_that_wait_for_a_merge() {
    let dir = tempfile::tempdir().unwrap();
    let small = || (options(Durability::None).buffer_bytes(256 << 10)).frozen_buffers(4);
    let (mut written, mut logs) = (0_u32, Vec::new());
    for round in 0..8 {
        let db = small().open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        assert_eq!(
            db.snapshot().count(&keyspace, ..).unwrap(),
            u64::from(written)
        );
        // Large commits come faster than they are merged.
        for _ in 0..round * 6 {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for _ in 0..500 {
                txn.upsert(&keyspace, &key(written), &written.to_be_bytes().repeat(20))
                    .unwrap();
                written += 1;
            }
            txn.commit().unwrap();
        }
        drop(keyspace);
        db.close().unwrap();
        logs.push(allocated(dir.path(), "log-"));
    }
    assert!(logs.iter().any(|&log| log > 200 << 10), "{logs:?}");
    let db = small().open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    for n in 0..written {
        assert_eq!(
            db.get(&keyspace, &key(n)).unwrap().unwrap(),
            n.to_be_bytes().repeat(20)
        );
    }
    assert!(db.verify().unwrap().errors.is_empty());
}

/// What was promised a flush has it: by the durability, or by a call before.
#[test]
fn and_the_power_fails_after_it() {
    for seed in 1..=20 {
        for (durability, flushed) in [
            (Durability::Async, false),
            (Durability::Sync, false),
            (Durability::None, true),
        ] {
            let storage = SimStorage::new(seed);
            let open = |storage: &SimStorage| {
                Database::open_on(Arc::new(storage.clone()), options(durability)).unwrap()
            };
            let mut model = Model::new();
            let db = open(&storage);
            change(&db, &mut model, 1);
            if flushed {
                db.flush().unwrap();
            }
            db.close().unwrap();
            let storage = storage.crash(seed);
            check(
                &open(&storage),
                &model,
                &format!("{durability}, seed {seed}"),
            );
        }
    }
}

/// A single commit of a database in mode `none` may be promised a flush, too.
#[test]
fn and_the_power_fails_after_a_commit_that_asked_for_a_flush() {
    for seed in 1..=20 {
        let storage = SimStorage::new(seed);
        let db = Database::open_on(Arc::new(storage.clone()), options(Durability::None)).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        for n in 0..50 {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.upsert(&keyspace, &key(n), &[1; 100]).unwrap();
            if n == 49 {
                txn.commit_with(Durability::Async).unwrap();
            } else {
                txn.commit().unwrap();
            }
        }
        drop(keyspace);
        db.close().unwrap();
        let storage = storage.crash(seed);
        let db = Database::open_on(Arc::new(storage), options(Durability::None)).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        assert_eq!(
            db.snapshot().count(&keyspace, ..).unwrap(),
            50,
            "seed {seed}"
        );
    }
}

/// What is to be merged finds no room on the disk. A flush of the log needs none: who was promised one gets it.
#[test]
fn on_a_full_disk_a_promise_is_kept() {
    for checkpoint_on_close in [false, true] {
        let options = || options(Durability::Async).checkpoint_on_close(checkpoint_on_close);
        let open = |disk: &SimStorage| Database::open_on(Arc::new(disk.clone()), options());
        let disk = SimStorage::new(5);
        let db = open(&disk).unwrap();
        let entries = db.keyspace("entries").unwrap();
        // Overwritten, so that closing merges them rather than leave them in the log.
        for round in 0..4 {
            for batch in 0..20 {
                let mut txn = db.begin(&[&entries]).unwrap();
                for i in 0..1_000 {
                    (txn.upsert(&entries, &key(batch * 1_000 + i), &[round; 300])).unwrap();
                }
                txn.commit().unwrap();
            }
        }
        let mut txn = db.begin(&[&entries]).unwrap();
        txn.upsert(&entries, b"promised", b"").unwrap();
        txn.commit().unwrap();
        disk.set_capacity_bytes(Some(disk.allocated_bytes()));
        drop(entries);
        assert!(db.close().is_err(), "there was room");
        for seed in 0..20 {
            let found = disk.crash(seed);
            found.set_capacity_bytes(None);
            let db = open(&found).unwrap();
            let entries = db.keyspace("entries").unwrap();
            let value = db.get(&entries, b"promised").unwrap();
            assert!(value.is_some(), "{checkpoint_on_close}, {seed}");
        }
    }
}

/// Closing takes a checkpoint, which fails to flush the tree. The log has everything, and whoever was promised a flush gets it.
#[test]
fn where_a_flush_of_the_tree_fails_a_promise_is_kept() {
    let close_with = |nth: u64| {
        let storage = SimStorage::new(3);
        let open = |storage| {
            let options = options(Durability::Async).checkpoint_on_close(true);
            Database::open_on(Arc::new(storage), options).unwrap()
        };
        let db = open(storage.clone());
        let entries = db.keyspace("entries").unwrap();
        let mut txn = db.begin(&[&entries]).unwrap();
        txn.upsert(&entries, b"promised", b"").unwrap();
        txn.commit().unwrap();
        drop(entries);
        storage.inject(Fault::nth(CallKind::Sync, nth, FaultError::Io));
        let error = db.close().err().map(|error| error.to_string());
        storage.clear_faults();
        if error
            .as_ref()
            .is_none_or(|it| it.contains("of data failed"))
        {
            for seed in 0..20 {
                let db = open(storage.crash(seed));
                let entries = db.keyspace("entries").unwrap();
                let value = db.get(&entries, b"promised").unwrap();
                assert!(value.is_some(), "{nth}, {seed}: {error:?}");
            }
        }
        error
    };
    let failed: Vec<String> = (1..).map_while(close_with).collect();
    let of_data = |error: &&String| error.contains("of data failed");
    assert!(failed.iter().filter(of_data).count() >= 1, "{failed:?}");
}

/// What merges have left free in the middle of the data file is given back, and so is what is dead and waits for a checkpoint if it is much: the file is
/// about as large as its content. With short segments of the log a checkpoint is taken for these, with a long one for the space.
#[test]
fn and_space_that_merges_left_is_given_back() {
    const KEYS: u32 = 250_000;
    for (segment_bytes, dead_bytes) in [(1 << 20, 0), (256 << 20, 1 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(Durability::None)
            .buffer_bytes(4 << 20)
            .wal_segment_bytes(segment_bytes);
        let db = options.clone().open(dir.path()).unwrap();
        let keyspace = db.keyspace("entries").unwrap();
        for round in 0..2 {
            for first in (0..KEYS).step_by(1_000) {
                let mut txn = db.begin(&[&keyspace]).unwrap();
                for n in first..first + 1_000 {
                    txn.upsert(&keyspace, &key(n), &[round; 100]).unwrap();
                }
                txn.commit().unwrap();
            }
        }
        drop(keyspace);
        while db.stats().unwrap().frozen_bytes > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        db.close().unwrap();
        let in_file = allocated(dir.path(), "data");
        let db = options.open_read_only(dir.path()).unwrap();
        let content = db.stats().unwrap().reachable_bytes;
        // With values as long as these, ends of pages are a hundredth. 256 KiB may be free, and runs of a few pages.
        let most = content + content / 50 + (256 << 10) + dead_bytes;
        assert!(in_file < most, "{in_file} bytes for {content}");
    }
}

/// A log that is too long to be left, for what is frozen and what is merged already: that is let go of, and the active buffer stays in it.
#[test]
fn of_a_long_log_what_was_written_last_stays() {
    let dir = tempfile::tempdir().unwrap();
    let options = || {
        options(Durability::None)
            .buffer_bytes(1 << 20)
            .wal_segment_bytes(64 << 10)
            .checkpoint_bytes(1 << 30)
    };
    let db = options().open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    let put = |n: u32| {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(n), &[n as u8; 200]).unwrap();
        txn.commit().unwrap();
    };
    let mut count = 0;
    // A long log, and an active buffer that is neither empty nor full.
    loop {
        put(count);
        count += 1;
        let stats = db.stats().unwrap();
        let is_part_full =
            (stats.buffer_bytes_max / 4..stats.buffer_bytes_max / 2).contains(&stats.buffer_bytes);
        if stats.wal_appended_bytes > 4 << 20 && is_part_full {
            break;
        }
    }
    drop(keyspace);
    db.close().unwrap();
    let log = allocated(dir.path(), "log-");
    assert!(log < 24 * (64 << 10), "{log} bytes of log");

    let db = options().open(dir.path()).unwrap();
    let stats = db.stats().unwrap();
    assert!(
        stats.wal_replay_bytes > 100 << 10 && stats.wal_replay_bytes < 1 << 20,
        "{} bytes to be replayed",
        stats.wal_replay_bytes
    );
    let keyspace = db.open_keyspace("entries").unwrap();
    let snapshot = db.snapshot();
    for n in 0..count {
        let found = snapshot.get(&keyspace, &key(n)).unwrap();
        assert_eq!(found, Some(&[n as u8; 200][..]), "{n}");
    }
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), u64::from(count));
}
