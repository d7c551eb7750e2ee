//! Backups of a database in use: whole ones, and what has changed since another one.
//!
//! A backup is a directory with a database and a manifest. The database of a *full* backup has the keyspaces and entries of one snapshot, and
//! can be opened like any other. That of an *incremental* one has what differs from its base: under the number of each keyspace the keys that
//! were put or removed, and in the keyspace [`NAMES`] which number stands for which keyspace or subtree, and whether entries expire there.
//! Reading is by entry and not by page, so that every node is checked on the way, and the copy is packed. What clones share is in the copy once
//! for each; saved snapshots are not copied.
//!
//! # Invariants
//! (1) The manifest is written last, by renaming, when everything else is durable and was verified: without one a directory is no backup.
//! (2) A manifest names the backup that it is based on by its number, which is drawn at random; a chain that does not fit is refused.
//! (3) A keyspace that an incremental backup does not list did not exist. What older backups have under its name does not count.
//! (4) Values are copied as they are stored, with the moments of their expiry: nothing expires in a backup. What had expired already is left out.
//!
//! # Failure modes
//! Errors of reading and of writing, with the file's name. The directory of a backup that failed has no manifest; remove it. One of a
//! restoration that failed has another name than was asked for.
//!
//! # Limits
//! An incremental backup takes values of one byte less than others, and one keyspace less.

mod chain;
mod manifest;
mod place;

pub(crate) use manifest::remove as forget;

use std::{
    collections::HashMap,
    fs,
    hash::{BuildHasher, RandomState},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use crate::{
    Database, Entry, Keyspace, Options, Progress, ProgressUnit, Result, Snapshot, count,
    error::Error,
    expiry::write_keyspace_expiry,
    progress::{Report, Watch},
    storage::StorageError,
};

use chain::{Chain, Layered};
use place::Values;

/// Keyspace of an incremental backup: number, as a big-endian u32, to expiry (as in the catalog) and where the keyspace is.
const NAMES: &str = "names";
/// First byte of a value in an incremental backup.
const REMOVED: u8 = 0;
const PUT: u8 = 1;
/// What a database is called while it is restored, behind its name.
const STAGING_SUFFIX: &str = ".restoring";

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
/// use psitri::{BackupOptions, Progress};
/// use std::ops::ControlFlow;
/// let mut report = |progress: Progress| {
///     println!("{} of {} {}", progress.done, progress.total, progress.unit);
///     ControlFlow::Continue(())
/// };
/// let options = BackupOptions::new().progress(&mut report);
/// # drop(options);
/// ```
#[derive(Default)]
pub struct BackupOptions<'o> {
    base: Vec<PathBuf>,
    progress: Option<&'o mut Report<'o>>,
}

impl<'o> BackupOptions<'o> {
    /// A full backup, without reports.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// use psitri::{BackupKind, BackupOptions};
    /// let info = db.backup_with(dir.path().join("monday"), BackupOptions::new())?;
    /// assert_eq!(info.kind, BackupKind::Full);
    /// # Ok(()) }
    /// ```
    pub fn new() -> BackupOptions<'o> {
        BackupOptions::default()
    }

    /// Only what has changed since another backup. `chain`: the full backup that it goes back to, and the incremental ones after that, oldest
    /// first.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// use psitri::BackupOptions;
    /// let [monday, tuesday, wednesday] = ["mon", "tue", "wed"].map(|day| dir.path().join(day));
    /// db.backup(&monday)?;
    /// db.backup_with(&tuesday, BackupOptions::new().since(&[&monday]))?;
    /// db.backup_with(&wednesday, BackupOptions::new().since(&[&monday, &tuesday]))?;
    /// # Ok(()) }
    /// ```
    pub fn since<P: AsRef<Path>>(mut self, chain: &[P]) -> BackupOptions<'o> {
        self.base = chain.iter().map(|path| path.as_ref().to_owned()).collect();
        self
    }

    /// Is told, now and then, how many entries were read, and about how many there are; and, with all of them done, while the copy is verified.
    /// [`ControlFlow::Break`] ends the backup with [`Error::Cancelled`]: what it left in its directory is no backup, and can be removed.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// use psitri::{BackupOptions, Error, Progress};
    /// use std::ops::ControlFlow;
    /// let mut stop = |_: Progress| ControlFlow::Break(());
    /// let stopped = db.backup_with(dir.path().join("copy"), BackupOptions::new().progress(&mut stop));
    /// assert!(matches!(stopped, Err(Error::Cancelled { .. })));
    /// # Ok(()) }
    /// ```
    pub fn progress(
        mut self,
        report: &'o mut (dyn FnMut(Progress) -> ControlFlow<()> + 'o),
    ) -> BackupOptions<'o> {
        self.progress = Some(report);
        self
    }
}

impl Database {
    /// Copies the database, as of its last commit, to a new directory while it is in use. The copy is verified, and durable, when this
    /// returns. It is a database itself, with a file more: open it for reading, or [restore](Database::restore) it to another place. Once it was
    /// opened for writing, it is a database like any other, and a backup no more.
    ///
    /// Every entry is read once. A snapshot is held meanwhile. Subtrees are copied with their keyspaces; [saved snapshots](Database::save_snapshot)
    /// are not copied.
    ///
    /// # Errors
    /// [`Error::Backup`] where the directory is not empty; [`Error::Corrupted`] if the database, or the copy when it is verified, is damaged; and what can go
    /// wrong when a database is written. What is left in the directory then is no backup, and can be removed.
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
    /// # Errors
    /// Those of [`Database::backup`]; [`Error::Backup`] too where the older ones are no backups, or no chain; [`Error::Cancelled`].
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
        trace_span!(INFO, "backup", path = %path.display());
        let chain = Chain::open(&options.base)?;
        let target = create_target(path)?;
        let (snapshot, keyspaces) = self.snapshot_with_names();
        let mut watch = Watch::new("backup", options.progress, ProgressUnit::Entries);
        for (_, keyspace) in &keyspaces {
            watch.expect(count::count(snapshot.view_stored(keyspace)?, &[], None)?);
        }
        let mut job = Job {
            target: &target,
            watch,
            written: 0,
        };
        let kind = match chain.newest() {
            None => {
                let mut made = HashMap::new();
                for (path, keyspace) in &keyspaces {
                    let copy = path.create(&target, &made, keyspace.options())?;
                    job.copy_whole(&snapshot, keyspace, &copy)?;
                    made.insert(path.clone(), copy);
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
        job.watch.finish()?;
        let mut cancelled = Ok(());
        let verified = target.verify_with(|_| {
            cancelled = job.watch.tell();
            match cancelled {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        cancelled?;
        let damage = verified?.errors;
        if let Some(first) = damage.first() {
            return Err(Error::corrupted("backup", 0, first.to_string()));
        }
        target.close()?;
        manifest::write(path, &info)?;
        Ok(info)
    }

    /// A snapshot, and what its keyspaces are called: names change at any time.
    fn snapshot_with_names(&self) -> (Snapshot, Vec<(place::Path, Keyspace)>) {
        // Names and the states that have their keyspaces change under this lock.
        let _tree = self.core.engine.tree.lock();
        let names = self.core.engine.keyspaces.read();
        let snapshot = self.snapshot();
        (snapshot, place::all_of(&names))
    }

    /// Reads what is known about the backup in a directory.
    ///
    /// # Errors
    /// [`Error::Backup`] if there is none, or its manifest is damaged.
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
    /// # Errors
    /// [`Error::Backup`] where `path` is not empty, or the backups are none, or no chain; [`Error::Corrupted`] if one is damaged; and what can go wrong
    /// when a database is written. There is no database at `path` then; what was begun beside it, `path` with `.restoring` behind, can be removed.
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
        restore_watched(chain, path.as_ref(), None)
    }

    /// As [`Database::restore`], and tells how many entries were written, of those in the backups: a few less if the incremental ones change
    /// or remove what the others have. [`ControlFlow::Break`] ends it with [`Error::Cancelled`]; there is no database at `path` then, and what
    /// was begun under another name can be removed.
    ///
    /// # Errors
    /// Those of [`Database::restore`], and [`Error::Cancelled`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # db.backup(dir.path().join("monday"))?;
    /// use psitri::Database;
    /// use std::ops::ControlFlow;
    /// Database::restore_with(&[dir.path().join("monday")], dir.path().join("again"), |progress| {
    ///     println!("{} of {} {}", progress.done, progress.total, progress.unit);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn restore_with<P: AsRef<Path>>(
        chain: &[P],
        path: impl AsRef<Path>,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        restore_watched(chain, path.as_ref(), Some(&mut progress))
    }
}

fn restore_watched<P: AsRef<Path>>(
    chain: &[P],
    path: &Path,
    report: Option<&mut Report<'_>>,
) -> Result<()> {
    trace_span!(INFO, "restore", path = %path.display());
    let paths: Vec<PathBuf> = chain.iter().map(|path| path.as_ref().to_owned()).collect();
    let chain = Chain::open(&paths)?;
    if chain.newest().is_none() {
        return Err(Error::Backup {
            path: path.to_owned(),
            what: "there is no backup to restore it from".to_owned(),
        });
    }
    // Under another name until it is complete: half of it would open like the whole.
    check_free(path)?;
    let mut watch = Watch::new("restore", report, ProgressUnit::Entries);
    watch.expect(chain.entries_stored());
    let staging = beside(path, STAGING_SUFFIX);
    let target = create_target(&staging)?;
    let mut made = HashMap::new();
    for (place, options) in chain.keyspaces() {
        let keyspace = place.create(&target, &made, options)?;
        let mut source = chain.entries(&place)?;
        let mut failure = None;
        let entries = std::iter::from_fn(|| {
            let next = source.next().and_then(|next| {
                watch.advance(u64::from(next.is_some()))?;
                Ok(next)
            });
            let next = next.transpose()?;
            next.map_err(|error| failure = Some(error)).ok()
        });
        ingest(&target, &keyspace, entries)?;
        if let Some(error) = failure {
            return Err(error);
        }
        made.insert(place, keyspace);
    }
    target.checkpoint()?;
    target.close()?;
    watch.finish()?;
    move_to(&staging, path)
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

/// A path with a suffix behind its name. A slash at its end does not count: behind that the suffix would be a name inside.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.components().collect::<PathBuf>().into_os_string();
    name.push(suffix);
    PathBuf::from(name)
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

/// A new database in a directory that does not exist, or is empty. Nothing expires in it (4).
pub(crate) fn create_target(path: &Path) -> Result<Database> {
    check_free(path)?;
    Options::new().clock(|| UNIX_EPOCH).create(path)
}

pub(crate) fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    target: &Database,
    keyspace: &Keyspace,
    entries: impl Iterator<Item = (K, V)>,
) -> Result<u64> {
    let mut txn = target.begin_direct(&[keyspace])?;
    let written = txn.ingest_stored(keyspace, entries)?;
    txn.commit()?;
    Ok(written)
}

/// A backup while it is made.
struct Job<'j, 'o> {
    target: &'j Database,
    /// Counts entries that were read.
    watch: Watch<'o, 'o>,
    written: u64,
}

impl Job<'_, '_> {
    fn copy_whole(
        &mut self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        target: &Keyspace,
    ) -> Result<()> {
        let mut cursor = Values::of(snapshot, keyspace)?;
        let (mut found, mut failure) = (cursor.first(), None);
        let database = self.target;
        let entries = std::iter::from_fn(|| match found {
            Ok(true) => {
                let entry = (cursor.key().to_vec(), cursor.value());
                found = cursor.next();
                if let Err(error) = self.watch.advance(1) {
                    failure = Some(error);
                    found = Ok(false);
                }
                Some(entry)
            }
            Ok(false) => None,
            Err(_) => {
                failure = std::mem::replace(&mut found, Ok(false)).err();
                None
            }
        });
        let written = ingest(database, target, entries)?;
        self.written += written;
        failure.map_or(Ok(()), Err)
    }

    fn copy_differences(
        &mut self,
        snapshot: &Snapshot,
        keyspaces: &[(place::Path, Keyspace)],
        chain: &Chain,
    ) -> Result<()> {
        let database = self.target;
        let names = database.create_keyspace(NAMES)?;
        for (number, (path, keyspace)) in keyspaces.iter().enumerate() {
            let mut txn = database.begin(&[&names])?;
            let number = number as u32;
            let mut described = Vec::new();
            write_keyspace_expiry(&mut described, keyspace.core.expiry);
            described.extend_from_slice(&path.encode());
            txn.insert(&names, &number.to_be_bytes(), &described)?;
            txn.commit()?;
            let target = database.create_keyspace(&number.to_string())?;
            let mut now = Values::of(snapshot, keyspace)?;
            let mut then = chain.entries(path)?;
            let mut differences = Differences {
                found: now.first()?,
                now: &mut now,
                old: then.next()?,
                then: &mut then,
            };
            let mut failure = None;
            let entries = std::iter::from_fn(|| {
                let next = differences.next(|| self.watch.advance(1)).transpose()?;
                next.map_err(|error| failure = Some(error)).ok()
            });
            let written = ingest(database, &target, entries)?;
            self.written += written;
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// What differs between a keyspace and an older state of it.
struct Differences<'d, 's, 'c> {
    now: &'d mut Values<'s>,
    found: bool,
    then: &'d mut Layered<'c>,
    old: Option<Entry>,
}

impl Differences<'_, '_, '_> {
    fn next(&mut self, mut passed: impl FnMut() -> Result<()>) -> Result<Option<Entry>> {
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
                let now = &self.now;
                let mut value = Vec::with_capacity(1 + now.value().len());
                value.push(PUT);
                value.extend_from_slice(now.value());
                (now.key().to_vec(), value)
            });
            self.found = self.now.next()?;
            if order.is_eq() {
                self.old = self.then.next()?;
            }
            passed()?;
            if changed.is_some() {
                return Ok(changed);
            }
        }
    }
}
