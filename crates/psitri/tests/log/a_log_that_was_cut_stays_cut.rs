//! Story: the log was cut before a record whose large value the disk had lost. The records behind the cut are whole, and what made replay
//! stop may be gone later: a checkpoint covers the number of the record, or the same value is written to the same place again. However
//! often, and wherever, the openings after that are interrupted, what was cut off does not come back over what was committed since.
use psitri::{
    Database, Durability, Keyspace, Options,
    storage::{
        OpenMode, Storage,
        sim::{CallKind, Fault, FaultError, SimStorage},
    },
    wal::{Wal, WalOptions, replay, replay_while},
};
use std::{sync::Arc, time::Duration};

const VALUE_BYTES: usize = 100_000;
/// More than a write buffer holds, so that the commit goes into a checkpoint and not into the log.
const BULK_ENTRIES: u32 = 800;

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .checkpoint_bytes(1 << 40)
        .idle_flush(Duration::from_secs(3600))
}

fn open(disk: &SimStorage) -> Result<Database, psitri::Error> {
    Database::open_on(Arc::new(disk.clone()), options())
}

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8], durability: Durability) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert(ks, key, value).unwrap();
    txn.commit_with(durability).unwrap();
}

fn big() -> Vec<u8> {
    (0..VALUE_BYTES)
        .map(|at| (at as u8).wrapping_mul(37) ^ (at >> 8) as u8)
        .collect()
}

/// The disk after its process ended.
fn end(db: Database, disk: &SimStorage, seed: u64) -> SimStorage {
    disk.crash_now();
    let left = disk.process_crash(seed);
    drop(db);
    left
}

/// Overwrites the value in the data file, as if its pages had not reached the disk when those of the log did.
fn lose_value(disk: &SimStorage) {
    let file = disk.open("data", OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let value = big();
    let places: Vec<usize> = (0..bytes.len() - value.len())
        .step_by(64)
        .filter(|&at| bytes[at..].starts_with(&value))
        .collect();
    assert_eq!(places.len(), 1);
    disk.damage("data", places[0] as u64, &[0; VALUE_BYTES])
        .unwrap();
}

/// A log whose last two commits, to keyspace `k`, are one that lost its value, and `x` = old. The one before, to `j`, was flushed.
fn disk_to_be_cut() -> SimStorage {
    let disk = SimStorage::new(1);
    let db = open(&disk).unwrap();
    let (j, k) = (db.keyspace("j").unwrap(), db.keyspace("k").unwrap());
    db.checkpoint().unwrap();
    put(&db, &j, b"a", b"1", Durability::Sync);
    put(&db, &k, b"v", &big(), Durability::None);
    put(&db, &k, b"x", b"old", Durability::None);
    let disk = end(db, &disk, 2);
    lose_value(&disk);
    disk
}

fn x_of(db: &Database) -> Option<Vec<u8>> {
    let j = db.open_keyspace("j").unwrap();
    assert_eq!(db.get(&j, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    let k = db.open_keyspace("k").unwrap();
    db.get(&k, b"x").unwrap()
}

/// A commit that is in no log, durable when it returns. It has the number of the one that was cut off. `j` stays in the buffer, so that
/// the old segment of the log is kept.
fn commit_past_the_log(db: &Database) {
    let k = db.open_keyspace("k").unwrap();
    let mut txn = db.begin_direct(&[&k]).unwrap();
    let entries = (0..BULK_ENTRIES).map(|n| (n.to_be_bytes().to_vec(), vec![7; 1000]));
    let last = std::iter::once((b"x".to_vec(), b"new".to_vec()));
    txn.ingest(&k, entries.chain(last)).unwrap();
    txn.commit().unwrap();
}

/// The disk of a process that cut the log, committed past it, and was killed.
fn disk_with_a_commit_past_the_cut() -> SimStorage {
    let disk = disk_to_be_cut();
    let db = open(&disk).unwrap();
    assert_eq!(x_of(&db), None, "the log was cut");
    commit_past_the_log(&db);
    end(db, &disk, 3)
}

#[test]
fn after_an_opening_that_could_not_make_a_segment() {
    let disk = disk_with_a_commit_past_the_cut();
    disk.inject(Fault::nth(CallKind::Create, 1, FaultError::OutOfSpace));
    assert!(open(&disk).is_err());
    assert_eq!(x_of(&open(&disk).unwrap()).as_deref(), Some(&b"new"[..]));
}

/// Opens disks from `make` that end at each call of the opening in turn, until one is through; what each leaves goes to `look`.
fn at_every_call(
    make: impl Fn() -> SimStorage,
    opening: impl Fn(&SimStorage) -> bool,
    look: impl Fn(&SimStorage),
) {
    let mut ended = 0;
    loop {
        let disk = make();
        disk.crash_at_call(disk.calls() + ended + 1);
        let through = opening(&disk);
        disk.crash_now();
        look(&disk.process_crash(ended));
        look(&disk.crash(ended));
        look(&disk.crash(ended + 1000));
        if through {
            break;
        }
        ended += 1;
    }
    assert!(ended > 10, "an opening has only {ended} calls");
}

fn opens(disk: &SimStorage) -> bool {
    let opened = open(disk);
    let through = opened.is_ok() && !disk.is_crashed();
    // Nothing is closed: dropping comes after the end.
    disk.crash_now();
    through
}

#[test]
fn after_an_opening_that_ended_at_any_call() {
    let base = disk_with_a_commit_past_the_cut();
    base.crash_now();
    at_every_call(
        || base.process_crash(4),
        opens,
        |disk| assert_eq!(x_of(&open(disk).unwrap()).as_deref(), Some(&b"new"[..])),
    );
}

#[test]
fn after_a_cut_that_ended_at_any_call() {
    let base = disk_to_be_cut();
    base.crash_now();
    at_every_call(
        || base.process_crash(4),
        opens,
        |disk| {
            let db = open(disk).unwrap();
            assert_eq!(x_of(&db), None);
            commit_past_the_log(&db);
            let disk = end(db, disk, 5);
            disk.inject(Fault::nth(CallKind::Create, 1, FaultError::OutOfSpace));
            assert!(open(&disk).is_err());
            assert_eq!(x_of(&open(&disk).unwrap()).as_deref(), Some(&b"new"[..]));
        },
    );
}

/// Opening for reading cuts the log for itself, and leaves it as it is.
#[test]
fn a_reader_cuts_nothing() {
    let disk = disk_to_be_cut();
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = disk.list().unwrap();
    for name in &names {
        let file = disk.open(name, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let content = || -> Vec<Vec<u8>> {
        let kept = names.iter().filter(|name| *name != "lock");
        kept.map(|name| std::fs::read(dir.path().join(name)).unwrap())
            .collect()
    };
    let before = content();
    for _ in 0..2 {
        let db = options().open_read_only(dir.path()).unwrap();
        assert_eq!(x_of(&db), None);
    }
    assert!(content() == before);
    assert_eq!(x_of(&options().open(dir.path()).unwrap()), None);
}

fn small() -> WalOptions {
    WalOptions {
        segment_bytes: 16 << 10,
        spares_max: 0,
        populate: false,
        store_by_call: false,
        nonce_seed: Some(9),
    }
}

/// The log by itself: records of many sizes, some over several segments, cut before each of them. Afterwards nobody refuses a record.
#[test]
fn wherever_the_cut_is() {
    let sizes = [10, 5_000, 40_000, 16, 3_000, 12_200, 30_000, 8, 12_000, 100];
    let disk = SimStorage::new(7);
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let end = replay(&*storage, 0, 0, |_| Ok(())).unwrap();
    let mut wal = Wal::resume(storage, small(), end).unwrap();
    for (csn, size) in (1..).zip(sizes) {
        wal.append(csn, 1, &vec![csn as u8; size]).unwrap();
    }
    disk.crash_now();
    drop(wal);
    let resume = |disk: &SimStorage, cut: u64| {
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let end = replay_while(&*storage, 0, 0, |record| Ok(record.csn < cut))?;
        Wal::resume(storage, small(), end)
    };
    let csns = |disk: &SimStorage| {
        let mut csns = Vec::new();
        let end = replay(disk, 0, 0, |record| {
            csns.push(record.csn);
            Ok(())
        });
        end.unwrap();
        csns
    };
    for cut in 1..=sizes.len() as u64 {
        let left: Vec<u64> = (1..cut).collect();
        let base = disk.process_crash(cut);
        drop(resume(&base, cut).unwrap());
        assert_eq!(csns(&base), left);
        base.crash_now();
        // Not for the sake of the new segment only.
        let without = base.process_crash(cut);
        let newest = without.list().unwrap();
        let newest = newest.iter().filter(|name| name.starts_with("log-")).max();
        without.remove(newest.unwrap()).unwrap();
        assert_eq!(csns(&without), left);
        // The openings after it know nothing of the cut, and end anywhere, or cannot make a segment.
        at_every_call(
            || base.process_crash(cut),
            |disk| resume(disk, u64::MAX).is_ok() && !disk.is_crashed(),
            |disk| {
                assert_eq!(csns(disk), left, "cut before {cut}");
                // What is appended then is found behind the cut, and nothing else.
                let mut wal = resume(disk, u64::MAX).unwrap();
                wal.append(cut, 1, &[1; 24]).unwrap();
                let with_one: Vec<u64> = (1..=cut).collect();
                assert_eq!(csns(disk), with_one, "cut before {cut}");
            },
        );
    }
}
