//! Story: one process writes, takes checkpoints, gives space back, is killed and begins again. Others read beside it, at the last checkpoint.
//! What a reader sees is one state that was committed, whole, and does not change under it, however long it looks and whatever becomes
//! of the writer. When the reader is gone, however it went, the space that was kept for it is used again.
//!
//! `PSITRI_SEED` repeats the draws; `PSITRI_BESIDE_SECONDS` sets how long the processes run.
#[path = "common/mod.rs"]
mod common;

use common::{Random, env_number, seed};
use psitri::storage::{OsStorage, Storage};
use psitri::{Database, Error, Event, Keyspace, Options, Snapshot};
use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const DIR: &str = "PSITRI_BESIDE_DIR";
const ROLE: &str = "PSITRI_BESIDE_ROLE";
const DRAWS: &str = "PSITRI_BESIDE_DRAWS";
const SIGKILL: i32 = 9;

const ACCOUNTS: u64 = 1500;
const BALANCE: i64 = 1000;
const PHOTOS: u64 = 12;

/// One test at a time: a process that is being started has copies of all open files, and their locks, for a moment.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(256 << 20)
        .idle_flush(Duration::from_millis(50))
}

fn temporary() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.unwrap()
}

/// Keyspaces of the ledger: transfers go from one side to the other, so that half of a transaction is another sum.
struct Ledger {
    left: Keyspace,
    right: Keyspace,
    photos: Keyspace,
}

fn account(number: u64, balance: i64) -> Vec<u8> {
    // Filled up, so that there is much to overwrite.
    let mut value = balance.to_le_bytes().to_vec();
    value.extend(number.to_le_bytes().repeat(4));
    value
}

fn balance(number: u64, value: &[u8]) -> i64 {
    let (balance, rest) = value.split_first_chunk::<8>().expect("an account");
    assert_eq!(rest, number.to_le_bytes().repeat(4), "account {number}");
    i64::from_le_bytes(*balance)
}

/// Some fit into the log, some do not.
fn photo(number: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(number << 32 | version);
    let len = *random.pick(&[700, 3000, 18_000, 40_000]);
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|_| random.next() as u8));
    bytes
}

impl Ledger {
    fn open(db: &Database) -> Result<Ledger, Error> {
        Ok(Ledger {
            left: db.open_keyspace("left")?,
            right: db.open_keyspace("right")?,
            photos: db.open_keyspace("photos")?,
        })
    }

    fn create(db: &Database) -> Ledger {
        for name in ["left", "right", "photos"] {
            db.keyspace(name).unwrap();
        }
        let ledger = Ledger::open(db).unwrap();
        if db.get(&ledger.left, b"marker").unwrap().is_none() {
            let mut txn = db
                .begin(&[&ledger.left, &ledger.right, &ledger.photos])
                .unwrap();
            for side in [&ledger.left, &ledger.right] {
                for number in 0..ACCOUNTS {
                    let value = account(number, BALANCE);
                    txn.upsert(side, &number.to_be_bytes(), &value).unwrap();
                }
                txn.upsert(side, b"marker", &0u64.to_le_bytes()).unwrap();
            }
            for number in 0..PHOTOS {
                let value = photo(number, 0);
                txn.upsert(&ledger.photos, &number.to_be_bytes(), &value)
                    .unwrap();
            }
            txn.commit().unwrap();
            db.checkpoint().unwrap();
        }
        ledger
    }

    /// One commit: transfers from side to side, a photo now and then, and the number of the commit on both sides.
    fn commit(&self, db: &Database, random: &mut Random) -> u64 {
        let mut txn = db.begin(&[&self.left, &self.right, &self.photos]).unwrap();
        let read = |side: &Keyspace, number: u64| {
            let value = db.get(side, &number.to_be_bytes()).unwrap();
            balance(number, &value.expect("an account"))
        };
        for _ in 0..random.between(1, 20) {
            let number = random.below(ACCOUNTS as usize) as u64;
            let amount = random.below(100) as i64;
            let mut change = |side: &Keyspace, amount: i64| {
                let now = match txn.get(side, &number.to_be_bytes()).unwrap() {
                    Some(value) => balance(number, value),
                    None => read(side, number),
                };
                let value = account(number, now + amount);
                txn.upsert(side, &number.to_be_bytes(), &value).unwrap();
            };
            change(&self.left, -amount);
            change(&self.right, amount);
        }
        let marker = marker(db.get(&self.left, b"marker").unwrap().as_deref()) + 1;
        for side in [&self.left, &self.right] {
            txn.upsert(side, b"marker", &marker.to_le_bytes()).unwrap();
        }
        if random.percent(20) {
            let number = random.below(PHOTOS as usize) as u64;
            let value = photo(number, marker);
            txn.upsert(&self.photos, &number.to_be_bytes(), &value)
                .unwrap();
        }
        txn.commit().unwrap();
        marker
    }

    /// Reads everything and checks that it is one committed state. Returns the number of its last commit.
    fn check(&self, snapshot: &Snapshot) -> u64 {
        let mut sum = 0;
        let mut markers = Vec::new();
        for side in [&self.left, &self.right] {
            let mut expected = 0;
            let visit = |key: &[u8], value: &[u8]| {
                if key == b"marker" {
                    markers.push(marker(Some(value)));
                } else {
                    assert_eq!(key, u64::to_be_bytes(expected));
                    sum += balance(expected, value);
                    expected += 1;
                }
                ControlFlow::Continue(())
            };
            snapshot.for_each(side, .., visit).unwrap();
            assert_eq!(expected, ACCOUNTS);
        }
        assert_eq!(markers.len(), 2);
        assert_eq!(markers[0], markers[1], "half of a transaction");
        assert_eq!(sum, 2 * BALANCE * ACCOUNTS as i64, "the balances");
        for number in 0..PHOTOS {
            let value = snapshot.get(&self.photos, &number.to_be_bytes()).unwrap();
            let value = value.expect("a photo");
            let version = marker(value.get(..8));
            assert!(version <= markers[0]);
            assert!(value == photo(number, version), "photo {number}");
        }
        markers[0]
    }
}

fn marker(value: Option<&[u8]>) -> u64 {
    u64::from_le_bytes(value.expect("a marker").try_into().expect("8 bytes"))
}

fn beside(path: &Path) -> Database {
    options().open_beside_writer(path).unwrap()
}

fn check(db: &Database) -> u64 {
    Ledger::open(db).unwrap().check(&db.snapshot())
}

#[test]
fn a_reader_sees_its_checkpoint_and_nothing_later() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let none = options().open_beside_writer(&path);
    assert!(matches!(none, Err(Error::NotFound { .. })), "{none:?}");
    let writer = options()
        .idle_flush(Duration::from_secs(3600))
        .open(&path)
        .unwrap();
    let ledger = Ledger::create(&writer);
    let mut random = Random::new(seed(1));
    for _ in 0..50 {
        ledger.commit(&writer, &mut random);
    }
    writer.checkpoint().unwrap();
    ledger.commit(&writer, &mut random);

    let reader = beside(&path);
    assert_eq!(check(&reader), 50);
    assert!(reader.refresh().unwrap().is_none());
    let refused = reader.begin(&[&Ledger::open(&reader).unwrap().left]);
    assert!(matches!(refused, Err(Error::ReadOnly)));
    assert_eq!(reader.verify().unwrap().errors, Vec::<String>::new());

    writer.checkpoint().unwrap();
    assert_eq!(check(&reader), 50);
    let newer = reader.refresh().unwrap().expect("a newer checkpoint");
    assert_eq!((check(&newer), check(&reader)), (51, 50));
    assert_eq!(writer.stats().unwrap().readers_beside, 2);
    drop((reader, newer));
    assert_eq!(writer.stats().unwrap().readers_beside, 0);
}

/// A reader saw a checkpoint whose superblock the disk did not keep. No later tree has its version: with it, the pin would be taken for one of that
/// tree by the writer after, and what the reader sees be used again.
#[test]
fn a_version_that_was_pinned_is_never_that_of_another_tree() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let open = || {
        let unhurried = options().idle_flush(Duration::from_secs(3600));
        unhurried.open(&path).unwrap()
    };
    let version_of = |db: &Database| db.stats().unwrap().tree_version;
    let writer = open();
    let ledger = Ledger::create(&writer);
    writer.checkpoint().unwrap();
    let durable = version_of(&writer);
    drop((ledger, writer));
    let slot = OsStorage::open(&path).unwrap().take_reader_slot().unwrap();
    let mut last = durable;
    for ahead in [1, 2, 9] {
        slot.pin(last + ahead).unwrap();
        let writer = open();
        let ledger = Ledger::open(&writer).unwrap();
        ledger.commit(&writer, &mut Random::new(seed(1)));
        writer.checkpoint().unwrap();
        assert!(version_of(&writer) > last + ahead);
        assert_eq!(writer.stats().unwrap().readers_beside, 1);
        last = version_of(&writer);
    }
}

#[test]
fn a_transaction_is_whole_though_the_checkpoint_has_half_of_it() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let writer = options()
        .idle_flush(Duration::from_secs(3600))
        .open(&path)
        .unwrap();
    let ledger = Ledger::create(&writer);
    let mut random = Random::new(seed(2));
    for _ in 0..10 {
        ledger.commit(&writer, &mut random);
    }
    // Keeps the merge from this keyspace, so that its part of the commits is in the log only.
    let open = writer.begin(&[&ledger.right]).unwrap();
    writer.checkpoint().unwrap();
    let reader = beside(&path);
    assert_eq!(check(&reader), 10);
    drop(open);
    for _ in 0..100 {
        ledger.commit(&writer, &mut random);
    }
    writer.checkpoint().unwrap();
    assert_eq!(check(&reader), 10);
}

/// Overwrites everything several times, with checkpoints that give space back and compaction that moves what is left.
fn churn(writer: &Database, ledger: &Ledger, random: &mut Random, rounds: usize) {
    for round in 0..rounds {
        for _ in 0..150 {
            ledger.commit(writer, random);
        }
        writer.checkpoint().unwrap();
        if round % 3 == 2 {
            writer.compact().unwrap();
        }
    }
}

#[test]
fn what_a_reader_sees_is_kept_until_it_is_gone() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let told = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&told);
    let writer = options()
        .slow_reader_after(Duration::from_millis(1))
        .on_event(move |event| {
            if let Event::SlowReader { pending_bytes, .. } = event {
                count.fetch_max(pending_bytes + 1, Ordering::Relaxed);
            }
        })
        .open(&path)
        .unwrap();
    let ledger = Ledger::create(&writer);
    let mut random = Random::new(seed(3));
    churn(&writer, &ledger, &mut random, 2);
    let before = writer.stats().unwrap();
    let reader = beside(&path);
    let seen = check(&reader);
    churn(&writer, &ledger, &mut random, 6);
    let during = writer.stats().unwrap();
    assert_eq!(during.readers_beside, 1);
    assert!(during.pending_bytes > before.pending_bytes + 50_000);
    assert!(during.oldest_pin_us > 0, "the pin has an age");
    assert_eq!(check(&reader), seen);
    assert_eq!(reader.verify().unwrap().errors, Vec::<String>::new());
    let end = Instant::now() + Duration::from_secs(20);
    while told.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < end, "the slow reader was not told of");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(reader);
    writer.checkpoint().unwrap();
    let after = writer.stats().unwrap();
    assert!(after.pending_bytes < during.pending_bytes / 2, "{after:?}");
    assert_eq!(after.readers_beside, 0);
}

#[test]
fn a_reader_outlives_writers_and_they_respect_it() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let mut random = Random::new(seed(4));
    let writer = options().open(&path).unwrap();
    let ledger = Ledger::create(&writer);
    churn(&writer, &ledger, &mut random, 2);
    let reader = beside(&path);
    let seen = check(&reader);
    churn(&writer, &ledger, &mut random, 2);
    drop(ledger);
    writer.close().unwrap();
    assert_eq!(check(&reader), seen);
    // This writer's page map knows nothing of what the reader sees.
    let writer = options().open(&path).unwrap();
    let ledger = Ledger::create(&writer);
    churn(&writer, &ledger, &mut random, 4);
    assert_eq!(check(&reader), seen);
    assert_eq!(reader.verify().unwrap().errors, Vec::<String>::new());
    let during = writer.stats().unwrap();
    drop(reader);
    churn(&writer, &ledger, &mut random, 3);
    let after = writer.stats().unwrap();
    assert!(
        after.file_bytes <= during.file_bytes,
        "what was kept for the reader is used again: {} then {}",
        during.file_bytes,
        after.file_bytes
    );
    assert_eq!(writer.verify().unwrap().errors, Vec::<String>::new());
    drop(ledger);
    drop(writer);

    // Without a writer, and one that comes later.
    let reader = beside(&path);
    let seen = check(&reader);
    let writer = options().open(&path).unwrap();
    let ledger = Ledger::create(&writer);
    churn(&writer, &ledger, &mut random, 4);
    assert_eq!(check(&reader), seen);
}

#[test]
fn processes_come_and_go() {
    let _alone = alone();
    let dir = temporary();
    let path = dir.path().join("db");
    let mut random = Random::new(seed(5));
    {
        let writer = options().open(&path).unwrap();
        Ledger::create(&writer);
    }
    let seconds = env_number("PSITRI_BESIDE_SECONDS").unwrap_or(12);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut writer = Some(Process::start("writer", &path, &mut random));
    let mut readers: Vec<Process> = (0..3)
        .map(|_| Process::start("reader", &path, &mut random))
        .collect();
    let (mut checks, mut written, mut kills) = (0, 0, 0);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(random.between(50, 400) as u64));
        let what = random.below(10);
        if what < 4 {
            // The first reader lives as long as the test.
            let at = 1 + random.below(2);
            let new = Process::start("reader", &path, &mut random);
            checks += std::mem::replace(&mut readers[at], new).kill();
            kills += 1;
        } else if what < 7 {
            if let Some(writer) = writer.take() {
                written += writer.kill();
                kills += 1;
            }
            writer = Some(Process::start("writer", &path, &mut random));
        }
        for process in readers.iter_mut().chain(&mut writer) {
            process.assert_alive();
        }
    }
    written += writer.map_or(0, Process::kill);
    for reader in readers {
        checks += reader.kill();
    }
    println!("{written} states written, {checks} checked, {kills} kills");
    assert!(written > 10 && checks > 10 && kills > 3);
    let writer = options().open(&path).unwrap();
    check(&writer);
    assert_eq!(writer.verify().unwrap().errors, Vec::<String>::new());
    assert_eq!(writer.stats().unwrap().readers_beside, 0);
}

struct Process {
    child: Child,
    lines: Option<JoinHandle<u64>>,
}

impl Process {
    fn start(role: &str, path: &Path, random: &mut Random) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(ROLE, role)
            .env(DIR, path)
            .env(DRAWS, random.next().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out: ChildStdout = child.stdout.take().unwrap();
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines
                .filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("state ")))
                .count() as u64
        });
        Process {
            child,
            lines: Some(lines),
        }
    }

    fn assert_alive(&mut self) {
        let status = self.child.try_wait().unwrap();
        assert!(status.is_none(), "a process ended by itself: {status:?}");
    }

    /// Ends it. Returns how many states it told of.
    fn kill(mut self) -> u64 {
        self.assert_alive();
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(SIGKILL));
        self.lines.take().unwrap().join().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: what the processes of `processes_come_and_go` run.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let path = PathBuf::from(std::env::var_os(DIR).unwrap());
    let mut random = Random::new(env_number(DRAWS).unwrap());
    match role.as_str() {
        "writer" => write_for_ever(&path, &mut random),
        _ => read_for_ever(&path, &mut random),
    }
}

fn write_for_ever(path: &Path, random: &mut Random) {
    // The one before was killed a moment ago.
    let db = loop {
        match options().open(path) {
            Ok(db) => break db,
            Err(error) if error.to_string().contains("locked") => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let ledger = Ledger::create(&db);
    ledger.check(&db.snapshot());
    loop {
        for _ in 0..random.between(1, 120) {
            ledger.commit(&db, random);
        }
        match random.below(20) {
            0 => db.compact().unwrap(),
            _ => db.checkpoint().unwrap(),
        }
        println!("state written");
    }
}

fn read_for_ever(path: &Path, random: &mut Random) {
    let mut newest = 0;
    let mut db = beside(path);
    loop {
        let seen = check(&db);
        assert!(seen >= newest, "time goes backwards: {newest}, then {seen}");
        newest = seen;
        for _ in 0..random.below(6) {
            std::thread::sleep(Duration::from_millis(random.below(60) as u64));
            assert_eq!(check(&db), seen);
        }
        let damage = db.verify().unwrap().errors;
        assert_eq!(damage, Vec::<String>::new());
        println!("state {seen}");
        if random.percent(70) {
            if let Some(newer) = db.refresh().unwrap() {
                db = newer;
            }
        } else {
            drop(db);
            db = beside(path);
        }
    }
}
