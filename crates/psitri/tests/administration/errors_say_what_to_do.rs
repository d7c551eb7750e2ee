//! Story: a caller makes every mistake there is to make, and the disk fails in every way that a caller notices. Each error is
//! the right variant with a message that says what was wrong, and what was committed before is still there afterwards.

use psitri::{
    Database, Durability, Error, KEY_BYTES_MAX, KEYSPACE_NAME_BYTES_MAX, Keyspace, Options,
    WriteBatch,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};
use std::sync::Arc;

/// A database with one commit, which `check` finds again.
fn database() -> (Database, Keyspace) {
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    (db, keyspace)
}

fn commit(db: &Database, keyspace: &Keyspace, key: &[u8]) -> psitri::Result<()> {
    let mut txn = db.begin(&[keyspace])?;
    txn.upsert(keyspace, key, b"value")?;
    txn.commit()
}

fn check(db: &Database, keyspace: &Keyspace) {
    assert_eq!(
        db.get(keyspace, b"kept").unwrap().as_deref(),
        Some(&b"value"[..])
    );
}

macro_rules! assert_error {
    ($result:expr, $variant:pat, $message:expr) => {
        match $result {
            Err(error @ $variant) => assert_eq!(error.to_string(), $message),
            Err(other) => panic!("another error: {other:?}"),
            Ok(_) => panic!("no error"),
        }
    };
}

#[test]
fn keys_and_values_of_transactions() {
    let (db, keyspace) = database();
    let long = vec![1; KEY_BYTES_MAX + 1];
    let message = "key of 65537 bytes; at most 65536 are allowed";
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"before", b"1").unwrap();
    assert_error!(
        txn.upsert(&keyspace, &long, b""),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.upsert(&keyspace, &long, &[0; 20_000]),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.insert(&keyspace, &long, b""),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.remove(&keyspace, &long),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.remove_range(&keyspace, &long, None),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.remove_range(&keyspace, b"", Some(&long)),
        Error::KeyTooLong { .. },
        message
    );
    assert_error!(
        txn.insert(&keyspace, b"kept", b""),
        Error::KeyExists,
        "the key exists already; upsert and update replace its value, and a subtree goes to a key that does not exist"
    );
    assert_error!(
        txn.update(&keyspace, b"absent", b""),
        Error::KeyAbsent,
        "update: the key does not exist; use upsert or insert to add it"
    );
    // Reading with a key that cannot exist is no mistake.
    assert_eq!(txn.get(&keyspace, &long).unwrap(), None);
    assert_eq!(db.get(&keyspace, &long).unwrap(), None);
    assert!(txn.cursor(&keyspace).unwrap().seek(&long).unwrap());
    assert_eq!(db.snapshot().rank(&keyspace, &long).unwrap(), 0);
    // The transaction is as good as before.
    txn.upsert(&keyspace, &long[1..], b"longest").unwrap();
    txn.commit().unwrap();
    check(&db, &keyspace);
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 3);
    let mut batch = WriteBatch::new();
    batch.upsert(&keyspace, b"half", b"");
    batch.upsert(&keyspace, &long, b"");
    assert_error!(db.write(batch), Error::KeyTooLong { .. }, message);
    assert_eq!(db.get(&keyspace, b"half").unwrap(), None);
}

/// Needs 4 GiB of address space for a value that is never touched.
#[test]
fn values_of_more_than_four_gibibytes() {
    let (db, keyspace) = database();
    let value = vec![0; psitri::VALUE_BYTES_MAX as usize + 1];
    let mut txn = db.begin(&[&keyspace]).unwrap();
    assert_error!(
        txn.upsert(&keyspace, b"k", &value),
        Error::ValueTooLong { .. },
        "value of 4294967296 bytes; at most 4294967295 are allowed"
    );
    txn.commit().unwrap();
    check(&db, &keyspace);
}

#[test]
fn names_and_handles_of_keyspaces() {
    let (db, keyspace) = database();
    let (other_db, foreign) = database();
    let longest = "n".repeat(KEYSPACE_NAME_BYTES_MAX);
    db.create_keyspace(&longest).unwrap();
    let too_long = format!("{longest}n");
    for (name, bytes) in [("", 0), (&too_long[..], 256)] {
        let message = format!("keyspace name of {bytes} bytes; 1 to 255 are allowed");
        assert_error!(
            db.create_keyspace(name),
            Error::KeyspaceName { .. },
            message
        );
        assert_error!(
            db.rename_keyspace("k", name),
            Error::KeyspaceName { .. },
            message
        );
        assert_error!(
            db.save_snapshot(name),
            Error::SnapshotName { .. },
            format!("name of a saved snapshot of {bytes} bytes; 1 to 255 are allowed")
        );
    }
    let exists = "keyspace \"k\" exists already";
    assert_error!(
        db.create_keyspace("k"),
        Error::KeyspaceExists { .. },
        exists
    );
    assert_error!(
        db.rename_keyspace(&longest, "k"),
        Error::KeyspaceExists { .. },
        exists
    );
    let absent = "keyspace \"absent\" does not exist; create it first";
    assert_error!(
        db.open_keyspace("absent"),
        Error::KeyspaceNotFound { .. },
        absent
    );
    assert_error!(
        db.drop_keyspace("absent"),
        Error::KeyspaceNotFound { .. },
        absent
    );
    assert_error!(
        db.rename_keyspace("absent", "new"),
        Error::KeyspaceNotFound { .. },
        absent
    );

    let twice = "keyspace \"k\" is named twice in begin";
    assert_error!(
        db.begin(&[&keyspace, &keyspace]),
        Error::NamedTwice { .. },
        twice
    );
    assert_error!(
        db.begin_direct(&[&keyspace, &keyspace.clone()]),
        Error::NamedTwice { .. },
        twice
    );

    // The handles have the same number in both databases.
    let elsewhere = "the keyspace handle belongs to another database";
    assert_error!(db.begin(&[&foreign]), Error::ForeignKeyspace, elsewhere);
    assert_error!(
        db.begin(&[&keyspace, &foreign]),
        Error::ForeignKeyspace,
        elsewhere
    );
    assert_error!(db.get(&foreign, b"kept"), Error::ForeignKeyspace, elsewhere);
    assert_error!(
        db.snapshot().count(&foreign, ..),
        Error::ForeignKeyspace,
        elsewhere
    );
    let mut txn = db.begin(&[&keyspace]).unwrap();
    assert_error!(
        txn.upsert(&foreign, b"k", b""),
        Error::ForeignKeyspace,
        elsewhere
    );
    assert_error!(txn.get(&foreign, b"k"), Error::ForeignKeyspace, elsewhere);
    let mut batch = WriteBatch::new();
    batch.upsert(&keyspace, b"half", b"");
    batch.upsert(&foreign, b"half", b"");
    drop(txn);
    assert_error!(db.write(batch), Error::ForeignKeyspace, elsewhere);

    let unnamed = db.create_keyspace("unnamed").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    let message = "keyspace \"unnamed\" is not part of this write transaction; name it in begin";
    assert_error!(
        txn.upsert(&unnamed, b"k", b""),
        Error::NotInTransaction { .. },
        message
    );
    assert_error!(
        txn.insert(&unnamed, b"k", b""),
        Error::NotInTransaction { .. },
        message
    );
    assert_error!(
        txn.update(&unnamed, b"k", b""),
        Error::NotInTransaction { .. },
        message
    );
    assert_error!(
        txn.remove(&unnamed, b"k"),
        Error::NotInTransaction { .. },
        message
    );
    assert_error!(
        txn.remove_range(&unnamed, b"k", None),
        Error::NotInTransaction { .. },
        message
    );
    // It may be read.
    assert_eq!(txn.get(&unnamed, b"k").unwrap(), None);
    drop(txn);
    check(&db, &keyspace);
    check(&other_db, &foreign);
    assert_eq!(db.get(&keyspace, b"half").unwrap(), None);
}

#[test]
fn keyspaces_that_are_gone_or_not_there_yet() {
    let (db, keyspace) = database();
    let before = db.snapshot();
    let brief = db.create_keyspace("brief").unwrap();
    commit(&db, &brief, b"kept").unwrap();
    let during = db.snapshot();
    db.drop_keyspace("brief").unwrap();
    let message = "keyspace \"brief\" does not exist here: it was dropped, or created after the snapshot was taken";
    assert_error!(
        before.get(&brief, b"kept"),
        Error::KeyspaceGone { .. },
        message
    );
    assert_error!(db.get(&brief, b"kept"), Error::KeyspaceGone { .. }, message);
    assert_error!(db.begin(&[&brief]), Error::KeyspaceGone { .. }, message);
    assert_error!(
        db.begin_direct(&[&keyspace, &brief]),
        Error::KeyspaceGone { .. },
        message
    );
    assert_eq!(during.get(&brief, b"kept").unwrap(), Some(&b"value"[..]));
    // A namesake is another keyspace.
    let namesake = db.create_keyspace("brief").unwrap();
    assert_error!(db.get(&brief, b"kept"), Error::KeyspaceGone { .. }, message);
    assert_eq!(db.get(&namesake, b"kept").unwrap(), None);
    // Nothing is left locked.
    commit(&db, &keyspace, b"more").unwrap();
    check(&db, &keyspace);
}

#[test]
fn options_that_cannot_work() {
    type Change = fn(Options) -> Options;
    let cases: [(Change, &str); 8] = [
        (
            |o| o.buffer_bytes(1),
            "option buffer_bytes: 1 is outside 262144 to 2147483648",
        ),
        (
            |o| o.frozen_buffers(0),
            "option frozen_buffers: 0 is outside 1 to 16",
        ),
        (
            |o| o.merge_threads(65),
            "option merge_threads: 65 is outside 1 to 64",
        ),
        (
            |o| o.wal_segment_bytes(1),
            "option wal_segment_bytes: 1 is outside 65536 to 1073741824",
        ),
        (
            |o| o.checkpoint_bytes(1),
            "option checkpoint_bytes: 1 is outside 1048576 to 1099511627776",
        ),
        (
            |o| o.map_reserve_bytes(1),
            "option map_reserve_bytes: 1 is outside 16777216 to 70368744177664",
        ),
        (
            |o| o.async_interval(std::time::Duration::ZERO),
            "option async_interval (ms): 0 is outside 1 to 3600000",
        ),
        (
            |o| o.idle_flush(std::time::Duration::from_millis(9)),
            "option idle_flush (ms): 9 is outside 10 to 3600000",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (change, message) in cases {
        let result = change(Options::new()).open(dir.path().join("db"));
        assert_error!(result, Error::BadOption { .. }, message);
        assert!(
            !dir.path().join("db").exists(),
            "{message}: something was made"
        );
        assert!(change(Options::new()).in_memory().is_err());
    }
}

#[test]
fn ways_of_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let shown = path.display();
    let absent = format!("{shown}: there is no database here; open and create make one");
    assert_error!(
        Options::new().open_existing(&path),
        Error::NotFound { .. },
        absent
    );
    assert_error!(
        Options::new().open_read_only(&path),
        Error::NotFound { .. },
        absent
    );
    let db = Options::new().create(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    let locked = Database::open(&path).unwrap_err();
    assert!(matches!(locked, Error::Storage(_)), "{locked:?}");
    let message = locked.to_string();
    assert!(message.contains("is locked by"), "{message}");
    db.close().unwrap();
    let exists = format!("{shown}: a database exists already; use open, or remove it first");
    assert_error!(
        Options::new().create(&path),
        Error::AlreadyExists { .. },
        exists
    );

    let db = Options::new().open_read_only(&path).unwrap();
    let second = Options::new().open_read_only(&path).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let read_only = "the database is open for reading only; Options::open opens it for writing, in one process at a time";
    assert_error!(db.begin(&[&keyspace]), Error::ReadOnly, read_only);
    assert_error!(db.begin_direct(&[&keyspace]), Error::ReadOnly, read_only);
    assert_error!(db.create_keyspace("new"), Error::ReadOnly, read_only);
    assert_error!(db.keyspace("new"), Error::ReadOnly, read_only);
    assert_error!(db.drop_keyspace("k"), Error::ReadOnly, read_only);
    assert_error!(db.rename_keyspace("k", "l"), Error::ReadOnly, read_only);
    assert_error!(db.checkpoint(), Error::ReadOnly, read_only);
    assert_error!(db.write(WriteBatch::new()), Error::ReadOnly, read_only);
    check(&db, &keyspace);
    drop((db, second));
    // Handles do not survive the database.
    let db = Database::open(&path).unwrap();
    assert_error!(
        db.get(&keyspace, b"kept"),
        Error::ForeignKeyspace,
        "the keyspace handle belongs to another database"
    );
    check(&db, &db.open_keyspace("k").unwrap());
}

fn closed_database(dir: &std::path::Path) {
    let db = Database::open(dir).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    db.close().unwrap();
}

fn write_at(path: &std::path::Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn files_of_another_release() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    closed_database(&path);
    let data = path.join("data");
    let sound = std::fs::read(&data).unwrap();
    let set_version = |version: u32| {
        for slot in [0, 4096] {
            let mut superblock = sound[slot..slot + 128].to_vec();
            superblock[8..12].copy_from_slice(&version.to_le_bytes());
            let checksum = crc32c::crc32c(&superblock[..124]);
            superblock[124..].copy_from_slice(&checksum.to_le_bytes());
            write_at(&data, slot as u64, &superblock);
        }
    };
    set_version(99);
    assert_error!(
        Database::open(&path),
        Error::UnsupportedVersion { found: 99, .. },
        "the database has format version 99, this release reads version 3; open it with the release that wrote it"
    );
    set_version(1);
    assert_error!(
        Database::open(&path),
        Error::UnsupportedVersion { found: 1, .. },
        "the database has format version 1, this release reads version 3; open it with the release that wrote it"
    );
    std::fs::write(&data, &sound).unwrap();
    let db = Database::open(&path).unwrap();
    check(&db, &db.open_keyspace("k").unwrap());
}

#[test]
fn damage_is_an_error_that_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    closed_database(&path);
    let data = path.join("data");
    let sound = std::fs::read(&data).unwrap();
    let mut noticed = 0;
    for page in 2..sound.len() / 4096 {
        if sound[page * 4096..(page + 1) * 4096]
            .iter()
            .all(|&byte| byte == 0)
        {
            continue;
        }
        std::fs::write(&data, &sound).unwrap();
        write_at(&data, page as u64 * 4096 + 20, &[0xa5; 100]);
        let read = Database::open(&path).and_then(|db| {
            let keyspace = db.open_keyspace("k")?;
            db.get(&keyspace, b"kept")
        });
        match read {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"value"[..]), "a wrong answer"),
            Err(Error::Corrupted { file, .. }) => {
                assert_eq!(file, "data");
                noticed += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(noticed >= 2, "only {noticed} damaged pages were noticed");
    std::fs::write(&data, &sound).unwrap();
    let db = Database::open(&path).unwrap();
    check(&db, &db.open_keyspace("k").unwrap());
}

fn simulated(disk: &SimStorage) -> Database {
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(4)
        .wal_segment_bytes(64 << 10);
    Database::open_on(Arc::new(disk.clone()), options).unwrap()
}

#[test]
fn a_failed_flush_poisons_writes_and_not_reads() {
    let disk = SimStorage::new(1);
    let db = simulated(&disk);
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    db.flush().unwrap();
    disk.inject(Fault::random(CallKind::Sync, 1, FaultError::Io));
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"doubtful", b"").unwrap();
    let failure = txn.commit_with(Durability::Sync).unwrap_err();
    assert!(
        matches!(failure, Error::Poisoned { .. } | Error::Storage(_)),
        "{failure:?}"
    );
    disk.clear_faults();
    let refused = commit(&db, &keyspace, b"later").unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
    let message = refused.to_string();
    assert!(
        message.starts_with("the database refuses writes after an earlier failure: "),
        "{message}"
    );
    assert!(
        message.contains("sync_data"),
        "the first cause is not named: {message}"
    );
    assert!(
        message.ends_with("reopen the database to write again"),
        "{message}"
    );
    for again in [
        db.checkpoint(),
        db.flush(),
        db.create_keyspace("new").map(drop),
        db.drop_keyspace("k"),
    ] {
        assert!(matches!(again, Err(Error::Poisoned { .. })), "{again:?}");
    }
    check(&db, &keyspace);
    assert_eq!(
        db.get(&keyspace, b"doubtful").unwrap(),
        None,
        "seen, but not acknowledged"
    );
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 1);
    drop(db);
    let db = simulated(&disk.process_crash(2));
    let keyspace = db.open_keyspace("k").unwrap();
    check(&db, &keyspace);
    commit(&db, &keyspace, b"later").unwrap();
}

#[test]
fn a_full_disk_stalls_writers_with_an_error_and_heals() {
    let disk = SimStorage::new(2);
    let db = simulated(&disk);
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    db.checkpoint().unwrap();
    disk.set_capacity_bytes(Some(disk.allocated_bytes() + (3 << 20)));
    let mut failure = None;
    let mut committed = 0u32;
    while failure.is_none() && committed < 200_000 {
        let key = committed.wrapping_mul(0x9e37_79b1).to_be_bytes();
        let result = db.begin(&[&keyspace]).and_then(|mut txn| {
            txn.upsert(&keyspace, &key, &[3; 200])?;
            txn.commit()
        });
        match result {
            Ok(()) => committed += 1,
            Err(error) => failure = Some(error),
        }
    }
    let failure = failure.expect("three megabytes are not endless");
    let message = failure.to_string();
    assert!(
        matches!(failure, Error::Stalled { .. } | Error::Storage(_)),
        "{message}"
    );
    if let Error::Stalled { .. } = failure {
        assert!(
            message.ends_with("nothing is lost, try again when the cause is gone"),
            "{message}"
        );
    }
    check(&db, &keyspace);
    assert_eq!(
        db.snapshot().count(&keyspace, ..).unwrap(),
        u64::from(committed) + 1
    );
    disk.set_capacity_bytes(None);
    // The merge tries again by itself.
    let start = std::time::Instant::now();
    while let Err(error) = commit(&db, &keyspace, b"healed") {
        assert!(start.elapsed().as_secs() < 20, "{error}");
    }
    db.checkpoint().unwrap();
    assert_eq!(
        db.snapshot().count(&keyspace, ..).unwrap(),
        u64::from(committed) + 2
    );
    assert_eq!(db.stats().unwrap().failure, None);
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

/// What a nested transaction changes must fit into the address space of the buffer.
#[test]
fn a_nested_transaction_that_is_too_large_can_be_aborted() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    commit(&db, &keyspace, b"kept").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"outer", b"").unwrap();
    let mut nested = txn.nested();
    let mut failure = None;
    for number in 0..10_000u32 {
        if let Err(error) = nested.upsert(&keyspace, &number.to_be_bytes(), &[1; 16_000]) {
            failure = Some(error);
            break;
        }
    }
    let failure = failure.expect("160 MB fit into 64");
    assert!(matches!(failure, Error::BufferFull { .. }), "{failure:?}");
    assert_eq!(
        failure.to_string(),
        "the write buffer's address space of 67108864 bytes is exhausted; write less inside of one nested transaction"
    );
    nested.abort();
    assert_eq!(txn.count(&keyspace, ..).unwrap(), 2);
    txn.abort();
    check(&db, &keyspace);
    commit(&db, &keyspace, b"after").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 2);
}

/// 65,536 take half a minute to make.
#[test]
fn too_many_keyspaces() {
    if std::env::var_os("PSITRI_LONG").is_none() {
        return;
    }
    let db = Options::new().in_memory().unwrap();
    for number in 0..65_536 {
        db.create_keyspace(&number.to_string()).unwrap();
    }
    let message = "65536 keyspaces exist; drop one before creating another";
    assert_error!(
        db.create_keyspace("one more"),
        Error::TooManyKeyspaces { .. },
        message
    );
    db.drop_keyspace("77").unwrap();
    db.create_keyspace("one more").unwrap();
}
