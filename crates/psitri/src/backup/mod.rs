//! Backups of a database in use: whole ones, and what has changed since another one.
//!
//! A backup is a directory with a database and a manifest. The database of a *full* backup has the keyspaces and entries of one snapshot, and
//! can be opened like any other. That of an *incremental* one has what differs from its base: under the number of each keyspace the keys that
//! were put or removed, and in the keyspace [`NAMES`] which number stands for which name. Reading is by entry and not by page, so that every
//! node is checked on the way, and the copy is packed.
//!
//! # Invariants
//! (1) The manifest is written last, by renaming, when everything else is durable and was verified: without one a directory is no backup.
//! (2) A manifest names the backup that it is based on by its number, which is drawn at random; a chain that does not fit is refused.
//! (3) A keyspace that an incremental backup does not list did not exist. What older backups have under its name does not count.
//!
//! # Failure modes
//! Errors of reading and of writing, with the file's name. The directory of a backup that failed has no manifest; remove it. One of a
//! restoration that failed has another name than was asked for.
//!
//! # Limits
//! An incremental backup takes values of one byte less than others, and one keyspace less.

mod chain;
mod manifest;

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
};

use crate::{
    Cursor, Database, Entry, Keyspace, Options, Result, Snapshot, error::Error,
    storage::StorageError, sync::Arc,
};

use chain::{Chain, Layered};

/// Keyspace of an incremental backup: number, as a big-endian u32, to name.
const NAMES: &str = "names";
/// First byte of a value in an incremental backup.
const REMOVED: u8 = 0;
const PUT: u8 = 1;
/// What a database is called while it is restored, behind its name.
const STAGING_SUFFIX: &str = ".restoring";
/// Entries between two reports of progress.
const PROGRESS_ENTRIES: u64 = 4096;

/// Whether a backup stands by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupKind {
    /// It has everything.
    Full,
    /// It has what differs from another backup, and is of no use without it.
    Incremental {
        /// Number of that backup.
        base: u64,
    },
}

/// What is known about a backup: its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Drawn at random, to tell backups apart.
    pub id: u64,
    /// Full or incremental.
    pub kind: BackupKind,
    /// Newest commit in it.
    pub csn: u64,
    /// Keyspaces of the database.
    pub keyspaces: u64,
    /// Entries in this directory: all, or those that differ.
    pub entries: u64,
}

/// How a backup is made.
///
/// ```
/// use psitri::BackupOptions;
/// let mut report = |done: u64, all: u64| println!("{done} of {all} entries");
/// let options = BackupOptions::new().progress(&mut report);
/// # drop(options);
/// ```
#[derive(Default)]
pub struct BackupOptions<'o> {
    base: Vec<PathBuf>,
    progress: Option<&'o mut dyn FnMut(u64, u64)>,
}

impl<'o> BackupOptions<'o> {
    /// A full backup, without reports.
    pub fn new() -> BackupOptions<'o> {
        BackupOptions::default()
    }

    /// Only what has changed since another backup. `chain`: the full backup that it goes back to, and the incremental ones after that, oldest
    /// first.
    pub fn since<P: AsRef<Path>>(mut self, chain: &[P]) -> BackupOptions<'o> {
        self.base = chain.iter().map(|path| path.as_ref().to_owned()).collect();
        self
    }

    /// Is told, now and then, how many entries were read, and about how many there are.
    pub fn progress(mut self, report: &'o mut dyn FnMut(u64, u64)) -> BackupOptions<'o> {
        self.progress = Some(report);
        self
    }
}

impl Database {
    /// Copies the database, as of its last commit, to a new directory while it is in use. The copy is verified, and durable, when this
    /// returns. It is a database itself, with a file more: open it for reading, or [restore](Database::restore) it to another place. Once it was
    /// written to, it is a backup no more.
    ///
    /// Every entry is read once. A snapshot is held meanwhile.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # let ks = db.keyspace("accounts")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # txn.upsert(&ks, b"alice", b"100")?;
    /// # txn.commit()?;
    /// let info = db.backup(dir.path().join("monday"))?;
    /// assert_eq!((info.keyspaces, info.entries), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<BackupInfo> {
        self.backup_with(path, BackupOptions::new())
    }

    /// As [`Database::backup`], or what has changed since another backup: [`BackupOptions::since`]. For that the older backups are read beside
    /// the database, and only differences are written.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # let ks = db.keyspace("accounts")?;
    /// use psitri::BackupOptions;
    /// let (monday, tuesday) = (dir.path().join("monday"), dir.path().join("tuesday"));
    /// db.backup(&monday)?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"bob", b"20")?;
    /// txn.commit()?;
    /// let info = db.backup_with(&tuesday, BackupOptions::new().since(&[&monday]))?;
    /// assert_eq!(info.entries, 1);
    /// # Ok(()) }
    /// ```
    pub fn backup_with(
        &self,
        path: impl AsRef<Path>,
        options: BackupOptions<'_>,
    ) -> Result<BackupInfo> {
        let path = path.as_ref();
        let chain = Chain::open(&options.base)?;
        let target = create_target(path)?;
        let (snapshot, keyspaces) = self.snapshot_with_names();
        let mut expected = 0;
        for (_, keyspace) in &keyspaces {
            expected += snapshot.count(keyspace, ..)?;
        }
        let mut job = Job {
            target: &target,
            progress: options.progress,
            done: 0,
            expected,
            written: 0,
        };
        let kind = match chain.newest() {
            None => {
                for (name, keyspace) in &keyspaces {
                    job.copy_whole(&snapshot, name, keyspace)?;
                }
                BackupKind::Full
            }
            Some(base) => {
                job.copy_differences(&snapshot, &keyspaces, &chain)?;
                BackupKind::Incremental { base: base.id }
            }
        };
        let info = BackupInfo {
            id: RandomState::new().hash_one(snapshot.csn()),
            kind,
            csn: snapshot.csn(),
            keyspaces: keyspaces.len() as u64,
            entries: job.written,
        };
        drop(snapshot);
        target.checkpoint()?;
        let damage = target.verify()?.errors;
        if let Some(first) = damage.first() {
            return Err(Error::corrupted("backup", 0, first.to_string()));
        }
        target.close()?;
        manifest::write(path, &info)?;
        Ok(info)
    }

    /// A snapshot, and what its keyspaces are called: names change at any time.
    fn snapshot_with_names(&self) -> (Snapshot, Vec<(String, Keyspace)>) {
        // Whoever creates, renames or drops a keyspace holds this lock from the beginning to the end.
        let names = self.core.engine.keyspaces.read();
        let snapshot = self.snapshot();
        let named = names.iter().map(|(name, core)| {
            let core = Arc::clone(core);
            (name.clone(), Keyspace { core })
        });
        let mut keyspaces: Vec<_> = named.collect();
        keyspaces.sort_by(|(a, _), (b, _)| a.cmp(b));
        (snapshot, keyspaces)
    }

    /// Reads what is known about the backup in a directory.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// use psitri::{BackupKind, Database};
    /// let made = db.backup(dir.path().join("monday"))?;
    /// assert_eq!(Database::backup_info(dir.path().join("monday"))?, made);
    /// assert_eq!(made.kind, BackupKind::Full);
    /// # Ok(()) }
    /// ```
    pub fn backup_info(path: impl AsRef<Path>) -> Result<BackupInfo> {
        manifest::read(path.as_ref())
    }

    /// Makes a database at a new path from a full backup and the incremental ones after it, oldest first. It is closed again: open it.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # let ks = db.keyspace("accounts")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # txn.upsert(&ks, b"alice", b"100")?;
    /// # txn.commit()?;
    /// # db.backup(dir.path().join("monday"))?;
    /// use psitri::Database;
    /// Database::restore(&[dir.path().join("monday")], dir.path().join("again"))?;
    /// let again = Database::open(dir.path().join("again"))?;
    /// assert_eq!(again.get(&again.keyspace("accounts")?, b"alice")?.as_deref(), Some(&b"100"[..]));
    /// # Ok(()) }
    /// ```
    pub fn restore<P: AsRef<Path>>(chain: &[P], path: impl AsRef<Path>) -> Result<()> {
        let paths: Vec<PathBuf> = chain.iter().map(|path| path.as_ref().to_owned()).collect();
        let chain = Chain::open(&paths)?;
        if chain.newest().is_none() {
            return Err(Error::Backup {
                path: path.as_ref().to_owned(),
                what: "there is no backup to restore it from".to_owned(),
            });
        }
        // Under another name until it is complete: half of it would open like the whole.
        let path = path.as_ref();
        check_free(path)?;
        let mut staging = path.as_os_str().to_owned();
        staging.push(STAGING_SUFFIX);
        let staging = PathBuf::from(staging);
        let target = create_target(&staging)?;
        for name in chain.names() {
            let keyspace = target.create_keyspace(&name)?;
            let mut source = chain.entries(&name)?;
            let mut failure = None;
            let entries = std::iter::from_fn(|| {
                let next = source.next().transpose()?;
                next.map_err(|error| failure = Some(error)).ok()
            });
            ingest(&target, &keyspace, entries)?;
            if let Some(error) = failure {
                return Err(error);
            }
        }
        target.checkpoint()?;
        target.close()?;
        move_to(&staging, path)
    }
}

/// Gives a directory its name, durably.
pub(crate) fn move_to(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let result = match fs::remove_dir(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::rename(from, to),
    };
    let result = result
        .and_then(|()| fs::File::open(parent.unwrap_or(Path::new("."))))
        .and_then(|parent| parent.sync_all());
    result.map_err(|error| StorageError::io("rename", &to.display().to_string(), error).into())
}

/// An error unless a directory is empty, or does not exist.
pub(crate) fn check_free(path: &Path) -> Result<()> {
    let is_taken = match fs::read_dir(path) {
        Ok(mut files) => files.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    if is_taken {
        return Err(Error::Backup {
            path: path.to_owned(),
            what: "the directory is not empty; name a new one, or remove it".to_owned(),
        });
    }
    Ok(())
}

/// A new database in a directory that does not exist, or is empty.
pub(crate) fn create_target(path: &Path) -> Result<Database> {
    check_free(path)?;
    Options::new().create(path)
}

pub(crate) fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    target: &Database,
    keyspace: &Keyspace,
    entries: impl Iterator<Item = (K, V)>,
) -> Result<u64> {
    let mut txn = target.begin_direct(&[keyspace])?;
    let written = txn.ingest(keyspace, entries)?;
    txn.commit()?;
    Ok(written)
}

/// A backup while it is made.
struct Job<'j, 'o> {
    target: &'j Database,
    progress: Option<&'o mut dyn FnMut(u64, u64)>,
    done: u64,
    expected: u64,
    written: u64,
}

impl Job<'_, '_> {
    /// Counts an entry that was read.
    fn passed(&mut self) {
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_ENTRIES) {
            self.report();
        }
    }

    fn report(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress(self.done, self.expected.max(self.done));
        }
    }

    fn copy_whole(&mut self, snapshot: &Snapshot, name: &str, keyspace: &Keyspace) -> Result<()> {
        let target = self.target.create_keyspace(name)?;
        let mut cursor = snapshot.cursor(keyspace)?;
        let (mut found, mut failure) = (cursor.seek_first(), None);
        let database = self.target;
        let entries = std::iter::from_fn(|| match found {
            Ok(true) => {
                let entry = (cursor.key().to_vec(), cursor.value());
                found = cursor.next();
                self.passed();
                Some(entry)
            }
            Ok(false) => None,
            Err(_) => {
                failure = std::mem::replace(&mut found, Ok(false)).err();
                None
            }
        });
        let written = ingest(database, &target, entries)?;
        self.written += written;
        self.report();
        failure.map_or(Ok(()), Err)
    }

    fn copy_differences(
        &mut self,
        snapshot: &Snapshot,
        keyspaces: &[(String, Keyspace)],
        chain: &Chain,
    ) -> Result<()> {
        let database = self.target;
        let names = database.create_keyspace(NAMES)?;
        for (number, (name, keyspace)) in keyspaces.iter().enumerate() {
            let mut txn = database.begin(&[&names])?;
            let number = number as u32;
            txn.insert(&names, &number.to_be_bytes(), name.as_bytes())?;
            txn.commit()?;
            let target = database.create_keyspace(&number.to_string())?;
            let mut now = snapshot.cursor(keyspace)?;
            let mut then = chain.entries(name)?;
            let mut differences = Differences {
                found: now.seek_first()?,
                now: &mut now,
                old: then.next()?,
                then: &mut then,
            };
            let mut failure = None;
            let entries = std::iter::from_fn(|| {
                let next = differences.next(|| self.passed()).transpose()?;
                next.map_err(|error| failure = Some(error)).ok()
            });
            let written = ingest(database, &target, entries)?;
            self.written += written;
            if let Some(error) = failure {
                return Err(error);
            }
        }
        self.report();
        Ok(())
    }
}

/// What differs between a keyspace and an older state of it.
struct Differences<'d, 's, 'c> {
    now: &'d mut Cursor<'s>,
    found: bool,
    then: &'d mut Layered<'c>,
    old: Option<Entry>,
}

impl Differences<'_, '_, '_> {
    fn next(&mut self, mut passed: impl FnMut()) -> Result<Option<Entry>> {
        loop {
            let order = match &self.old {
                None if !self.found => return Ok(None),
                None => std::cmp::Ordering::Less,
                Some(_) if !self.found => std::cmp::Ordering::Greater,
                Some((key, _)) => self.now.key().cmp(key),
            };
            if order.is_gt() {
                let (key, _) = self.old.take().expect("compared with it");
                self.old = self.then.next()?;
                return Ok(Some((key, vec![REMOVED])));
            }
            let is_same = order.is_eq()
                && (self.old.as_ref())
                    .is_some_and(|(_, value)| value.as_slice() == self.now.value());
            let changed = (!is_same).then(|| {
                let mut value = Vec::with_capacity(1 + self.now.value().len());
                value.push(PUT);
                value.extend_from_slice(self.now.value());
                (self.now.key().to_vec(), value)
            });
            self.found = self.now.next()?;
            if order.is_eq() {
                self.old = self.then.next()?;
            }
            passed();
            if changed.is_some() {
                return Ok(changed);
            }
        }
    }
}
