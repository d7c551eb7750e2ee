//! Story: a process commits one small transaction at a time, from two threads, and notes in a file how
//! far each has come. Neither waits for the disk, or both do, or one does in a database whose commits wait. It is killed with SIGKILL at a random moment: while committing, merging, taking a checkpoint, or still
//! recovering from the kill before. The next process opens the same database, finds every commit that was noted and at most
//! one more of each thread, all balances as that many transfers leave them, and goes on. No kill is followed by a clean close.
//!
//! `PSITRI_SEED` repeats the moments; `PSITRI_KILLS` sets how many there are.
use crate::crash_world::{Random, parameter};
use psitri::{Database, Durability, Keyspace, Options};
use std::{
    fs::{File, OpenOptions},
    ops::ControlFlow,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const DIR: &str = "PSITRI_KILL_TEST_DIR";
/// Which of [`MODES`] the process is in.
const MODE: &str = "PSITRI_KILL_TEST_MODE";
const WRITERS: u64 = 2;
/// Durability of each writer's commits; that of the first is the database's.
const MODES: [[Durability; WRITERS as usize]; 3] = [
    [Durability::None, Durability::None],
    [Durability::Sync, Durability::WriteThrough],
    [Durability::Sync, Durability::None],
];
const ACCOUNTS: u64 = 300;
const BALANCE: i64 = 1000;
const SIGKILL: i32 = 9;

fn options(durability: Durability) -> Options {
    Options::new()
        .durability(durability)
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .idle_flush(Duration::from_millis(10))
}

/// The transfer with this number: from, to, amount.
fn transfer(writer: u64, number: u64) -> (u64, u64, i64) {
    let mut random = Random(writer << 56 | number);
    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
    (from, to, random.below(50) as i64)
}

fn apply(balances: &mut [i64], writer: u64, number: u64) {
    let (from, to, amount) = transfer(writer, number);
    balances[from as usize] -= amount;
    balances[to as usize] += amount;
}

/// One writer's keyspaces: balances, and one entry for each transfer.
struct Ledger {
    writer: u64,
    accounts: Keyspace,
    journal: Keyspace,
    /// Transfers in the database.
    count: u64,
    balances: Vec<i64>,
}

fn balance(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes[..8].try_into().expect("a balance has 8 bytes"))
}

impl Ledger {
    /// Opens the ledger and checks it against what was noted before.
    fn recover(db: &Database, writer: u64, noted: u64) -> Result<Ledger, String> {
        let show = |error: psitri::Error| error.to_string();
        let accounts = db.keyspace(&format!("accounts {writer}")).map_err(show)?;
        let journal = db.keyspace(&format!("journal {writer}")).map_err(show)?;
        let snapshot = db.snapshot();
        let mut balances = vec![BALANCE; ACCOUNTS as usize];
        let mut found = Vec::new();
        snapshot
            .for_each(&accounts, .., |key, value| {
                found.push((key.to_vec(), balance(value)));
                ControlFlow::Continue(())
            })
            .map_err(show)?;
        let count = match snapshot.get(&journal, b"count").map_err(show)? {
            Some(bytes) => balance(bytes) as u64,
            None => 0,
        };
        if count < noted || count > noted + 1 {
            return Err(format!(
                "writer {writer}: {noted} commits were noted, {count} are there"
            ));
        }
        if found.is_empty() && count == 0 {
            let mut txn = db.begin(&[&accounts]).map_err(show)?;
            for account in 0..ACCOUNTS {
                txn.insert(&accounts, &account.to_be_bytes(), &BALANCE.to_le_bytes())
                    .map_err(show)?;
            }
            txn.commit().map_err(show)?;
        } else {
            for number in 0..count {
                apply(&mut balances, writer, number);
            }
            let right = found.len() as u64 == ACCOUNTS
                && found.iter().zip(0u64..).all(|((key, value), account)| {
                    *key == account.to_be_bytes() && *value == balances[account as usize]
                });
            if !right {
                let sum: i64 = found.iter().map(|(_, value)| value).sum();
                return Err(format!(
                    "writer {writer}: balances are not those after {count} transfers; their sum is {sum}"
                ));
            }
        }
        // The journal keeps the last 1,000 entries.
        let entries = snapshot
            .count(&journal, &b"entry"[..]..&b"entrz"[..])
            .map_err(show)?;
        if entries != count.min(1000) {
            return Err(format!(
                "writer {writer}: {entries} journal entries after {count} transfers"
            ));
        }
        Ok(Ledger {
            writer,
            accounts,
            journal,
            count,
            balances,
        })
    }

    fn transfer(&mut self, db: &Database, durability: Durability) -> psitri::Result<()> {
        let (from, to, amount) = transfer(self.writer, self.count);
        let entry = |number: u64| [b"entry".as_slice(), &number.to_be_bytes()].concat();
        let mut txn = db.begin(&[&self.accounts, &self.journal])?;
        for (account, amount) in [(from, -amount), (to, amount)] {
            let key = account.to_be_bytes();
            let before = txn.get(&self.accounts, &key)?.map(balance);
            let after = before.expect("accounts stay") + amount;
            txn.update(&self.accounts, &key, &after.to_le_bytes())?;
        }
        txn.insert(&self.journal, &entry(self.count), &amount.to_le_bytes())?;
        if self.count >= 1000 {
            txn.remove(&self.journal, &entry(self.count - 1000))?;
        }
        self.count += 1;
        txn.upsert(&self.journal, b"count", &self.count.to_le_bytes())?;
        txn.commit_with(durability)?;
        apply(&mut self.balances, self.writer, self.count - 1);
        Ok(())
    }
}

fn noted(file: &File, writer: u64) -> u64 {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, writer * 8) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

/// What the killed process does. Returns only when something is wrong.
fn victim(dir: &Path) -> String {
    let notes = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("notes"))
        .expect("the notes can be opened");
    let mode = std::env::var(MODE).map_or(0, |mode| mode.parse().expect("a number"));
    let durability: [Durability; WRITERS as usize] = MODES[mode];
    let db = match options(durability[0]).open(dir.join("db")) {
        Ok(db) => db,
        Err(error) => return format!("opening: {error}"),
    };
    let mut ledgers = Vec::new();
    for writer in 0..WRITERS {
        match Ledger::recover(&db, writer, noted(&notes, writer)) {
            Ok(ledger) => ledgers.push(ledger),
            Err(error) => return error,
        }
    }
    // Now and then the whole file, too.
    if ledgers[0].count % 5 == 0 {
        let report = db.verify().expect("verify");
        if !report.errors.is_empty() {
            return format!("verify: {:?}", report.errors);
        }
    }
    std::thread::scope(|scope| {
        let writers: Vec<_> = ledgers
            .into_iter()
            .map(|mut ledger| {
                let (db, notes) = (&db, &notes);
                let durability = durability[ledger.writer as usize];
                scope.spawn(move || {
                    loop {
                        // A commit that was not noted before the kill counts as noted from now on.
                        notes
                            .write_all_at(&ledger.count.to_le_bytes(), ledger.writer * 8)
                            .expect("the note can be written");
                        if let Err(error) = ledger.transfer(db, durability) {
                            return error.to_string();
                        }
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer does not panic"))
            .next()
            .expect("there are writers")
    })
}

/// The process that is killed: this test, started with the directory in the environment.
#[test]
fn victim_of_the_kills() {
    if let Some(dir) = std::env::var_os(DIR) {
        let wrong = victim(Path::new(&dir));
        eprintln!("{wrong}");
        std::process::exit(1);
    }
}

#[test]
fn every_noted_commit_survives_the_kill() {
    let seed = parameter("PSITRI_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = parameter("PSITRI_KILLS").unwrap_or(200);
    println!("PSITRI_SEED={seed}");
    let mut random = Random(seed);
    // What a kill leaves does not depend on the disk, so a fast one is good; the time goes into commits and not into flushes.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let notes = dir.path().join("notes");
    let (mut opened, mut start_us) = (0, 0);
    for kill in 0..kills {
        let before = File::open(&notes).map_or(0, |file| noted(&file, 0));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "kill_nine_loses_no_commit::victim_of_the_kills",
                "--nocapture",
            ])
            .env(DIR, dir.path())
            .env(MODE, (kill / 2 % MODES.len() as u64).to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if kill % 2 == 0 {
            // Dies while it commits, merges and takes checkpoints.
            let start = Instant::now();
            while File::open(&notes).map_or(0, |file| noted(&file, 0)) <= before {
                let ended = child.try_wait().unwrap().is_some();
                if ended || start.elapsed() > Duration::from_secs(30) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            start_us = start.elapsed().as_micros() as u64;
            std::thread::sleep(Duration::from_micros(random.below(25_000)));
        } else {
            // Dies at any moment from its start on, mostly in recovery.
            std::thread::sleep(Duration::from_micros(random.below(start_us * 3 / 2 + 1)));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.signal(),
            Some(SIGKILL),
            "PSITRI_SEED={seed}, kill {kill}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let after = File::open(&notes).map_or(0, |file| noted(&file, 0));
        opened += u64::from(after > before);
    }
    // In the end a process that lives.
    let notes = File::open(&notes).unwrap();
    let db = options(Durability::None)
        .open(dir.path().join("db"))
        .unwrap();
    let mut total = 0;
    for writer in 0..WRITERS {
        let ledger = Ledger::recover(&db, writer, noted(&notes, writer)).unwrap();
        total += ledger.count;
    }
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    db.close().unwrap();
    println!("{total} transfers, {opened} of {kills} processes came to committing");
    assert!(
        opened * 2 >= kills,
        "only {opened} of {kills} processes came to committing"
    );
}
