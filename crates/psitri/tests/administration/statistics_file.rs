//! Story: somebody looks at a database that another process has open, while it is open, after it was closed, and after the process was killed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use psitri::{Database, Error, Options, StatsRecord};

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    (dir, path)
}

fn write(db: &Database, entries: u32) {
    let keyspace = db.keyspace("k").unwrap();
    for n in 0..entries {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &n.to_be_bytes(), &[1; 100]).unwrap();
        txn.commit().unwrap();
    }
}

/// Waits for a record with what is asked for.
#[track_caller]
fn record(path: &Path, is_it: impl Fn(&StatsRecord) -> bool) -> StatsRecord {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match StatsRecord::read(path) {
            Ok(record) if is_it(&record) => return record,
            Ok(_) | Err(Error::NoStatistics { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "{:?}", StatsRecord::read(path));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_record_follows_the_database_and_goes_with_it() {
    let (_dir, path) = scratch();
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.open(&path).unwrap();
    let snapshot = db.snapshot();
    write(&db, 1000);
    let found = record(&path, |record| record.stats.commits >= 1001);
    assert_eq!(found.process_id, std::process::id());
    assert!(found.age() < Duration::from_secs(30) && !found.is_stale());
    assert_eq!(fs::metadata(path.join("stats")).unwrap().len(), 1024);
    let now = db.stats().unwrap();
    assert_eq!(found.stats.csn, now.csn);
    assert!(found.stats.keyspaces.is_empty());
    let same = [
        "wal_appended_bytes",
        "buffer_bytes",
        "buffer_bytes_max",
        "free_bytes",
        "merged_entries",
    ];
    let figure = |stats: &psitri::Stats, name| stats.figures().into_iter().find(|f| f.0 == name);
    for name in same {
        assert_eq!(figure(&found.stats, name), figure(&now, name));
    }
    // That of the snapshot, and those of the engine's threads, which come and go.
    assert!(found.stats.pins >= 1 && now.pins >= 1);
    assert!(found.stats.wal_appended_bytes > 100_000);

    // The state that the snapshot sees is replaced.
    db.checkpoint().unwrap();
    record(&path, |record| {
        record.stats.oldest_pin_us > 0 && record.stats.merged_entries == 1000
    });
    drop(snapshot);
    record(&path, |record| record.stats.pins == 0);
    drop(db);
    assert!(matches!(
        StatsRecord::read(&path),
        Err(Error::NoStatistics { .. })
    ));
    assert!(!path.join("stats").exists());
}

#[test]
fn what_a_killed_process_left_is_old_until_the_next_opening() {
    let (_dir, path) = scratch();
    let db = Database::open(&path).unwrap();
    record(&path, |_| true);
    let mut left = fs::read(path.join("stats")).unwrap();
    db.close().unwrap();
    // As if the process had been killed a minute ago, before it could remove the file.
    let written_us = u64::from_le_bytes(left[24..32].try_into().unwrap());
    left[24..32].copy_from_slice(&(written_us - 60_000_000).to_le_bytes());
    let crc = crc32c::crc32c(&left[..1020]);
    left[1020..].copy_from_slice(&crc.to_le_bytes());
    fs::write(path.join("stats"), &left).unwrap();
    let found = StatsRecord::read(&path).unwrap();
    assert!(found.is_stale() && found.age() >= Duration::from_secs(60));
    assert_eq!(found.process_id, std::process::id());

    // Reading neither needs the file nor touches it.
    drop(Options::new().open_read_only(&path).unwrap());
    assert_eq!(fs::read(path.join("stats")).unwrap(), left);
    let db = Options::new().stats_file(false).open(&path).unwrap();
    db.close().unwrap();
    assert!(!path.join("stats").exists());
}

#[test]
fn where_none_is_wanted_there_is_none() {
    let (_dir, path) = scratch();
    let db = Options::new().stats_file(false).open(&path).unwrap();
    write(&db, 10);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!path.join("stats").exists());
    let error = StatsRecord::read(&path).unwrap_err();
    assert!(error.to_string().contains("stats_file"), "{error}");
}

#[test]
fn damage_is_no_record_and_does_not_disturb_the_owner() {
    let (_dir, path) = scratch();
    let db = Database::open(&path).unwrap();
    record(&path, |_| true);
    db.close().unwrap();
    for (content, part) in [
        (&b""[..], "too short"),
        (&[0x5a; 1024], "no record"),
        (&[b"PsiStats".as_slice(), &[1; 1016]].concat(), "checksum"),
    ] {
        fs::write(path.join("stats"), content).unwrap();
        let error = StatsRecord::read(&path).unwrap_err();
        assert!(matches!(error, Error::Statistics { .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
    // A directory in the way: no statistics, and everything else as ever.
    fs::remove_file(path.join("stats")).unwrap();
    fs::create_dir(path.join("stats")).unwrap();
    let db = Database::open(&path).unwrap();
    write(&db, 10);
    std::thread::sleep(Duration::from_millis(700));
    assert!(db.verify().unwrap().errors.is_empty());
    db.close().unwrap();
    assert!(path.join("stats").is_dir());
}

#[test]
fn readers_never_see_a_torn_record() {
    let (_dir, path) = scratch();
    let db = Database::open(&path).unwrap();
    record(&path, |_| true);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(2);
            let mut seen = std::collections::BTreeSet::new();
            while Instant::now() < until {
                let record = StatsRecord::read(&path).unwrap();
                assert!(record.stats.commits >= seen.last().copied().unwrap_or(0));
                seen.insert(record.stats.commits);
            }
            seen.len()
        });
        while !reads.is_finished() {
            write(&db, 100);
        }
        assert!(reads.join().unwrap() >= 2, "it moves on");
    });
}
