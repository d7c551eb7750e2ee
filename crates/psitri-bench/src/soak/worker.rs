//! What a worker of the soak does, until it is killed or its input ends.
//!
//! # Checks
//! (1) At the beginning: no acknowledged commit is missing, and the balances have the sum that they began with.
//! (2) Every scan of every snapshot finds that sum, over two keyspaces; a snapshot that was held finds the same entries again.
//! (3) Every backup, opened, has that sum, and so has the last one of a chain of incremental ones, restored.
//! (4) At a clean end the database is verified.
use super::{SoakConfig, say};
use anyhow::{Context, Result, bail, ensure};
use psitri::{
    BackupOptions, Database, Durability, Isolation, Keyspace, Options, Snapshot, WriteTxn,
};
use std::{
    fmt, fs,
    io::Read,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

const BALANCE: u64 = 1_000;
const COMMITS_KEY: &[u8] = b"commits";
const READY_KEY: &[u8] = b"ready";
const SAY_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time for which a snapshot is held.
const HELD_MS_MAX: u64 = 4_000;
/// Keyspaces that come and go.
const PASSING_KEYSPACES_MAX: usize = 6;

/// What was done since the worker began; commits since the database began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub commits: u64,
    pub scans: u64,
    pub held_snapshots: u64,
    pub backups: u64,
}

/// A line of a worker's output.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    Opened { ms: f64 },
    Progress(Progress),
    Failed(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { ms } => write!(f, "opened {ms:.3} ."),
            Self::Progress(Progress {
                commits,
                scans,
                held_snapshots,
                backups,
            }) => write!(f, "progress {commits} {scans} {held_snapshots} {backups} ."),
            Self::Failed(what) => write!(f, "failed {}", what.replace('\n', " ")),
        }
    }
}

impl Line {
    /// `None` for lines that were cut off: all but the last kind end with a dot.
    pub fn parse(line: &str) -> Option<Line> {
        if let Some(what) = line.strip_prefix("failed ") {
            return Some(Line::Failed(what.to_owned()));
        }
        let mut words = line.strip_suffix(" .")?.split(' ');
        match words.next()? {
            "opened" => Some(Line::Opened {
                ms: words.next()?.parse().ok()?,
            }),
            "progress" => {
                let mut number = || words.next()?.parse().ok();
                Some(Line::Progress(Progress {
                    commits: number()?,
                    scans: number()?,
                    held_snapshots: number()?,
                    backups: number()?,
                }))
            }
            _ => None,
        }
    }
}

struct Worker {
    db: Database,
    /// Beside the database, for backups.
    directory: PathBuf,
    left: Keyspace,
    right: Keyspace,
    meta: Keyspace,
    accounts: u32,
    stop: AtomicBool,
    commits: AtomicU64,
    scans: AtomicU64,
    held_snapshots: AtomicU64,
    backups: AtomicU64,
}

pub fn run(config: &SoakConfig, database: &Path) -> Result<bool> {
    let result = Worker::open(config, database).and_then(|worker| worker.work(config.seed));
    if let Err(error) = &result {
        say(&Line::Failed(format!("{error:#}")));
    }
    result.map(|()| true)
}

fn number(value: &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(value.try_into()?))
}

/// Waits, but not longer than until the worker stops.
fn pause(stop: &AtomicBool, time: Duration) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// (2)
fn check_sum(snapshot: &Snapshot, keyspaces: [&Keyspace; 2], accounts: u32) -> Result<()> {
    let mut sum = 0;
    for keyspace in keyspaces {
        snapshot.for_each(keyspace, .., |_, value| match number(value) {
            Ok(balance) => {
                sum += balance;
                ControlFlow::Continue(())
            }
            Err(_) => ControlFlow::Break(()),
        })?;
    }
    let expected = u64::from(accounts) * BALANCE;
    ensure!(
        sum == expected,
        "the sum of the balances is {sum}, not {expected}"
    );
    Ok(())
}

impl Worker {
    fn open(config: &SoakConfig, database: &Path) -> Result<Worker> {
        let start = Instant::now();
        let buffer_bytes = (config.write_buffer_mib as usize) << 20;
        let db = Options::new().buffer_bytes(buffer_bytes).open(database)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let worker = Worker {
            left: db.keyspace("left")?,
            right: db.keyspace("right")?,
            meta: db.keyspace("meta")?,
            db,
            directory: database.with_file_name("backups"),
            accounts: config.accounts,
            stop: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            scans: AtomicU64::new(0),
            held_snapshots: AtomicU64::new(0),
            backups: AtomicU64::new(0),
        };
        if worker.db.get(&worker.meta, READY_KEY)?.is_none() {
            ensure!(config.acknowledged == 0, "the accounts are gone");
            worker.create_accounts()?;
        }
        let stored = worker.db.get(&worker.meta, COMMITS_KEY)?;
        let commits = stored.map_or(Ok(0), |value| number(&value))?;
        ensure!(
            commits >= config.acknowledged,
            "{} commits were acknowledged, {commits} are there",
            config.acknowledged
        );
        worker.commits.store(commits, Ordering::Relaxed);
        worker.check_sum(&worker.db.snapshot())?; // (1)
        say(&Line::Opened { ms });
        Ok(worker)
    }

    fn create_accounts(&self) -> Result<()> {
        let mut txn = self
            .db
            .begin_direct(&[&self.left, &self.right, &self.meta])?;
        for (keyspace, balance) in [(&self.left, BALANCE), (&self.right, 0)] {
            let accounts = (0..self.accounts).map(|n| (n.to_be_bytes(), balance.to_le_bytes()));
            txn.ingest(keyspace, accounts)?;
        }
        txn.upsert(&self.meta, READY_KEY, b"")?;
        Ok(txn.commit()?)
    }

    fn check_sum(&self, snapshot: &Snapshot) -> Result<()> {
        check_sum(snapshot, [&self.left, &self.right], self.accounts)
    }

    fn work(self, seed: u64) -> Result<()> {
        type Task = fn(&Worker, &mut fastrand::Rng) -> Result<()>;
        let tasks: [Task; 6] = [
            Worker::transfer,
            Worker::scan,
            Worker::hold,
            Worker::pass_keyspaces,
            Worker::back_up,
            Worker::maintain,
        ];
        std::thread::scope(|scope| -> Result<()> {
            let worker = &self;
            let threads: Vec<_> = (tasks.into_iter().zip(seed..))
                .map(|(task, seed)| {
                    let mut random = fastrand::Rng::with_seed(seed);
                    scope.spawn(move || {
                        let mut result = Ok(());
                        while result.is_ok() && !worker.stop.load(Ordering::Relaxed) {
                            result = task(worker, &mut random);
                        }
                        worker.stop.store(true, Ordering::Relaxed);
                        result
                    })
                })
                .collect();
            // Ends when the other process closes it; a thread of its own, as nothing else can be done meanwhile.
            let stop = scope.spawn(|| {
                while !worker.stop.load(Ordering::Relaxed) {
                    worker.say_progress();
                    std::thread::sleep(SAY_INTERVAL);
                }
            });
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            worker.stop.store(true, Ordering::Relaxed);
            let _ = stop.join();
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a thread panicked"),
                }
            }
            worker.say_progress();
            Ok(())
        })?;
        let damage = self.db.verify()?.errors;
        ensure!(damage.is_empty(), "damage: {damage:?}"); // (4)
        let Worker {
            db,
            left,
            right,
            meta,
            ..
        } = self;
        drop((left, right, meta));
        Ok(db.close()?)
    }

    fn say_progress(&self) {
        let now = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        say(&Line::Progress(Progress {
            commits: now(&self.commits),
            scans: now(&self.scans),
            held_snapshots: now(&self.held_snapshots),
            backups: now(&self.backups),
        }));
    }

    /// Some transfers in a transaction of a random kind.
    fn transfer(&self, random: &mut fastrand::Rng) -> Result<()> {
        let kind = random.u32(..1000);
        if kind < 100 {
            // Within one keyspace, without a lock before the commit. Not counted.
            let (from, to) = (self.account(random), self.account(random));
            self.db.transact(Isolation::Serializable, |txn| {
                let balance =
                    |value: Option<&[u8]>| value.and_then(|v| number(v).ok()).unwrap_or(0);
                let (a, b) = (
                    balance(txn.get(&self.left, &from)?),
                    balance(txn.get(&self.left, &to)?),
                );
                if from != to && a > 0 {
                    txn.upsert(&self.left, &from, &(a - 1).to_le_bytes())?;
                    txn.upsert(&self.left, &to, &(b + 1).to_le_bytes())?;
                }
                Ok(())
            })?;
            return Ok(());
        }
        let keyspaces = [&self.left, &self.right, &self.meta];
        let (mut txn, transfers) = match kind {
            100 => (self.db.begin_direct(&keyspaces)?, 500),
            101..120 => (self.db.begin(&keyspaces)?, 2_000),
            _ => (self.db.begin(&keyspaces)?, random.usize(1..20)),
        };
        for _ in 0..transfers {
            self.move_one(&mut txn, random)?;
        }
        let commits = txn.get(&self.meta, COMMITS_KEY)?.map_or(Ok(0), number)? + 1;
        txn.upsert(&self.meta, COMMITS_KEY, &commits.to_le_bytes())?;
        let durability = match random.u32(..1000) {
            0..5 => Durability::Sync,
            5..50 => Durability::Async,
            _ => Durability::None,
        };
        txn.commit_with(durability)?;
        self.commits.store(commits, Ordering::Release);
        Ok(())
    }

    fn account(&self, random: &mut fastrand::Rng) -> [u8; 4] {
        random.u32(..self.accounts).to_be_bytes()
    }

    fn move_one(&self, txn: &mut WriteTxn, random: &mut fastrand::Rng) -> Result<()> {
        let sides = [&self.left, &self.right];
        let (from, to) = if random.bool() { (0, 1) } else { (1, 0) };
        let (payer, payee) = (self.account(random), self.account(random));
        let balance = |txn: &WriteTxn, side: usize, key: &[u8]| -> Result<u64> {
            number(
                txn.get(sides[side], key)?
                    .context("an account is missing")?,
            )
        };
        let (a, b) = (balance(txn, from, &payer)?, balance(txn, to, &payee)?);
        let amount = random.u64(..100).min(a);
        txn.upsert(sides[from], &payer, &(a - amount).to_le_bytes())?;
        Ok(txn.upsert(sides[to], &payee, &(b + amount).to_le_bytes())?)
    }

    fn scan(&self, random: &mut fastrand::Rng) -> Result<()> {
        self.check_sum(&self.db.snapshot())?;
        self.scans.fetch_add(1, Ordering::Relaxed);
        pause(&self.stop, Duration::from_millis(random.u64(..50)));
        Ok(())
    }

    /// Holds a snapshot, and finds in it again what it found at first.
    fn hold(&self, random: &mut fastrand::Rng) -> Result<()> {
        let snapshot = self.db.snapshot();
        let digest = |snapshot: &Snapshot| -> Result<u64> {
            let mut digest = 0u64;
            for keyspace in [&self.left, &self.right] {
                snapshot.for_each(keyspace, .., |key, value| {
                    for part in [key, value] {
                        digest = digest.rotate_left(7) ^ xxhash_rust::xxh3::xxh3_64(part);
                    }
                    ControlFlow::Continue(())
                })?;
            }
            Ok(digest)
        };
        let before = digest(&snapshot)?;
        pause(&self.stop, Duration::from_millis(random.u64(..HELD_MS_MAX)));
        ensure!(
            digest(&snapshot)? == before,
            "a snapshot that was held has changed"
        );
        self.held_snapshots.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes keyspaces and fills them, and drops others.
    fn pass_keyspaces(&self, random: &mut fastrand::Rng) -> Result<()> {
        let passing: Vec<String> = (self.db.keyspaces().into_iter())
            .filter(|name| name.starts_with("passing "))
            .collect();
        if passing.len() >= PASSING_KEYSPACES_MAX {
            self.db
                .drop_keyspace(&passing[random.usize(..passing.len())])?;
            return Ok(());
        }
        let keyspace = self
            .db
            .keyspace(&format!("passing {}", random.u32(..1_000_000)))?;
        let mut txn = self.db.begin(&[&keyspace])?;
        for _ in 0..random.u32(..2_000) {
            let bytes = match random.u32(..400) {
                0 => random.usize(20_000..200_000),
                _ => random.usize(..300),
            };
            let key = random.u64(..).to_be_bytes();
            txn.upsert(
                &keyspace,
                &key[..random.usize(1..=8)],
                &vec![random.u8(..); bytes],
            )?;
        }
        txn.commit()?;
        pause(&self.stop, Duration::from_millis(random.u64(..300)));
        Ok(())
    }

    /// (3)
    fn back_up(&self, random: &mut fastrand::Rng) -> Result<()> {
        pause(&self.stop, Duration::from_millis(random.u64(1_000..4_000)));
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        // What a worker that was killed left.
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory)?;
        }
        fs::create_dir_all(&self.directory)?;
        let at = |name: &str| self.directory.join(name);
        let mut chain = Vec::new();
        for name in ["full", "next"] {
            self.db
                .backup_with(at(name), BackupOptions::new().since(&chain))?;
            chain.push(at(name));
        }
        Database::restore(&chain, at("restored"))?;
        for name in ["full", "restored"] {
            let copy = Options::new().open_read_only(at(name))?;
            let (left, right) = (copy.open_keyspace("left")?, copy.open_keyspace("right")?);
            let checked = check_sum(&copy.snapshot(), [&left, &right], self.accounts);
            checked.with_context(|| format!("in the backup {name}"))?;
        }
        fs::remove_dir_all(&self.directory)?;
        self.backups.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn maintain(&self, random: &mut fastrand::Rng) -> Result<()> {
        pause(&self.stop, Duration::from_millis(random.u64(500..5_000)));
        match random.u32(..4) {
            0 => self.db.checkpoint()?,
            1 => self.db.compact()?,
            2 => self.db.flush()?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back_and_torn_ones_are_not() {
        let progress = Progress {
            commits: 10,
            scans: 2,
            held_snapshots: 3,
            backups: 1,
        };
        let text = Line::Progress(progress).to_string();
        assert_eq!(Line::parse(&text), Some(Line::Progress(progress)));
        for end in 0..text.len() {
            assert_eq!(Line::parse(&text[..end]), None);
        }
        let opened = Line::Opened { ms: 1.5 };
        assert_eq!(Line::parse(&opened.to_string()), Some(opened));
        let failed = Line::Failed("a\nb".to_owned());
        assert_eq!(
            Line::parse(&failed.to_string()),
            Some(Line::Failed("a b".to_owned()))
        );
    }
}
