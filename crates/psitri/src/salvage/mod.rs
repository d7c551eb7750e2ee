//! Rebuilding what can be read of a damaged database into a new one, and saying what is lost.
//!
//! What is done, in this order:
//!
//! 1. (`catalog.rs`) The catalog of the newest valid superblock is read, past what cannot be read. If a superblock or a part of the
//!    catalog is damaged, the file is scanned for nodes ([`scan`]), and the newest catalog leaves found tell what is missing.
//! 2. Every tree is walked, past what cannot be read ([`walk`]). What is reached goes into the new database. Inner nodes tell the bounds
//!    of what is not, and how many keys it had.
//! 3. (`orphans.rs`) For lost ranges the file is scanned. Entries in these ranges, of leaves that no tree reaches and that are not of
//!    another keyspace's family, go into a keyspace of their own, `possibly-old/NAME`, the newest of each key. They are never mixed with
//!    what is certain.
//! 4. If keyspaces are still missing, families of nodes that belong to nobody become keyspaces `salvaged-N`, single leaves together
//!    `salvaged-leaves`.
//! 5. The log is applied up to the first damage ([`log`]).
//!
//! Subtrees become keyspaces of their own, `subtree-ID`, and are not put back where they were. Saved snapshots are not copied. The report counts
//! both.
//!
//! # Invariants
//! (1) Nothing is written to the damaged directory, no lock file either. If it has one, it is locked as by a reader.
//! (2) An entry of a keyspace whose report says [`SalvagedFrom::Checkpoint`] was stored there and is as new as the part of the log that was
//!     applied.
//! (3) What a tree had and the new database has not is in the report.
//! (4) The new database appears under its name when it is complete, verified and durable.
//!
//! # Failure modes
//! Errors of writing the new database, a format of another release, a database in use. Damage is never an error. What a salvage that failed
//! has written has another name than was asked for; remove it.

mod catalog;
mod file;
mod log;
mod orphans;
mod report;
mod scan;
mod walk;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use crate::{
    Database, Keyspace, KeyspaceOptions, Result,
    backup::{beside, check_free, create_target, ingest, move_to},
    catalog::CatalogEntry,
    error::Error,
    keyspace::{KEYSPACE_NAME_BYTES_MAX, Place},
    node::{Delta, Leaf, Mark, NodeRef, Stored},
    storage::{LOCK_FILE_NAME, LockMode, OsStorage, Storage},
};

use file::DamagedFile;
pub use report::{LostRange, SalvageReport, SalvagedFrom, SalvagedKeyspace, SalvagedLogReport};
use scan::Scan;
use walk::Walk;

/// What the new database is called until it is complete, behind its name.
const STAGING_SUFFIX: &str = ".salvaging";
/// Trees without a name that are written, the largest first.
const TREES_MAX: usize = 4096;
/// Entries between two reports of progress.
const PROGRESS_ENTRIES: u64 = 4096;

/// What a salvage is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SalvagePhase {
    /// Walks the trees; counted in keys.
    Trees,
    /// Looks for nodes in the whole file; counted in bytes.
    Scan,
    /// Applies the log; counted in commits, of which the number is not known.
    Log,
}

/// How a salvage is made.
///
/// ```
/// use psitri::{SalvageOptions, SalvagePhase};
/// let mut report = |phase: SalvagePhase, done: u64, all: u64| println!("{phase:?}: {done} of {all}");
/// let options = SalvageOptions::new().past_damage(true).progress(&mut report);
/// # drop(options);
/// ```
#[derive(Default)]
pub struct SalvageOptions<'o> {
    past_damage: bool,
    progress: Option<&'o mut dyn FnMut(SalvagePhase, u64, u64)>,
}

impl<'o> SalvageOptions<'o> {
    /// The log up to the first damage, without reports.
    ///
    /// ```
    /// # fn run(path: &std::path::Path) -> Result<(), psitri::Error> {
    /// let report = psitri::salvage(path, path.with_extension("salvaged"), psitri::SalvageOptions::new())?;
    /// println!("{report}");
    /// # Ok(()) }
    /// ```
    pub fn new() -> SalvageOptions<'o> {
        SalvageOptions::default()
    }

    /// Whether commits behind damage in the log are applied too. They may depend on those that are lost: the result may be a state that
    /// never was. Default: no.
    ///
    /// ```
    /// # fn run(path: &std::path::Path) -> Result<(), psitri::Error> {
    /// let options = psitri::SalvageOptions::new().past_damage(true);
    /// let report = psitri::salvage(path, path.with_extension("more"), options)?;
    /// println!("{} values are lost", report.log.values_lost);
    /// # Ok(()) }
    /// ```
    pub fn past_damage(mut self, past_damage: bool) -> SalvageOptions<'o> {
        self.past_damage = past_damage;
        self
    }

    /// Is told, now and then, how far the work is: done, and of how much (0 if that is not known).
    ///
    /// ```
    /// use psitri::{SalvageOptions, SalvagePhase};
    /// let mut report = |phase: SalvagePhase, done, all| eprintln!("{phase:?}: {done} of {all}");
    /// let options = SalvageOptions::new().progress(&mut report);
    /// # drop(options);
    /// ```
    pub fn progress(
        mut self,
        report: &'o mut dyn FnMut(SalvagePhase, u64, u64),
    ) -> SalvageOptions<'o> {
        self.progress = Some(report);
        self
    }

    fn report(&mut self, phase: SalvagePhase, done: u64, all: u64) {
        if let Some(report) = &mut self.progress {
            report(phase, done, all);
        }
    }
}

/// Rebuilds what can be read of the damaged database in directory `path` into a new one in directory `target`, and says what is lost. The
/// damaged one is not changed, and must not be in use. It works on a sound database too, and then copies it, but for saved
/// snapshots and the places of subtrees.
///
/// What is read on a path of intact nodes is what was stored. Entries that are found without one may be old: they go into keyspaces of
/// their own (`possibly-old/NAME`, `salvaged-N`), and the report says so. Subtrees become keyspaces of their own, and saved snapshots are left out.
/// See `docs/recovery.md`.
///
/// # Errors
/// [`Error::NotFound`] if there is neither a data file nor a log, [`Error::Backup`] if `target` is not empty, a lock held by somebody else, a format of another release, and all that can go
/// wrong when the new database is written. Damage is no error.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (path, target) = (dir.path().join("db"), dir.path().join("rebuilt"));
/// use psitri::{Database, SalvageOptions, salvage};
/// let db = Database::open(&path)?;
/// let fruit = db.keyspace("fruit")?;
/// let mut txn = db.begin(&[&fruit])?;
/// txn.upsert(&fruit, b"apple", b"red")?;
/// txn.commit()?;
/// # drop(fruit);
/// db.close()?;
///
/// let report = salvage(&path, &target, SalvageOptions::new())?;
/// assert!(report.is_whole(), "{report}");
/// let rebuilt = Database::open(&target)?;
/// let fruit = rebuilt.open_keyspace("fruit")?;
/// assert_eq!(rebuilt.get(&fruit, b"apple")?.as_deref(), Some(&b"red"[..]));
/// # Ok(()) }
/// ```
pub fn salvage(
    path: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: SalvageOptions<'_>,
) -> Result<SalvageReport> {
    let (path, target) = (path.as_ref(), target.as_ref());
    let not_found = || Error::NotFound {
        path: path.to_owned(),
    };
    if !path.is_dir() {
        return Err(not_found());
    }
    let storage = OsStorage::open(path)?;
    // (1)
    let _lock = match storage.exists(LOCK_FILE_NAME)? {
        true => Some(storage.lock(LockMode::Shared)?),
        false => None,
    };
    let file = DamagedFile::open(&storage)?;
    let has_log = storage.list()?.iter().any(|name| name.starts_with("log-"));
    if file.len() == 0 && !has_log {
        return Err(not_found());
    }
    check_free(target)?;
    let staging = beside(target, STAGING_SUFFIX);
    let database = create_target(&staging)?;
    let mut job = Job {
        file: &file,
        target: &database,
        options,
        report: SalvageReport::default(),
        scan: None,
        owners: HashMap::new(),
        ids: BTreeMap::new(),
    };
    let replay = job.read_trees()?;
    job.apply_log(&storage, replay)?;
    let report = job.report;
    database.checkpoint()?;
    if let Some(first) = database.verify()?.errors.first() {
        return Err(Error::corrupted("salvage", 0, first.to_string()));
    }
    database.close()?;
    move_to(&staging, target)?;
    Ok(report)
}

/// Where the log begins to count.
struct Replay {
    from_lsn: Option<u64>,
    durable_lsn: u64,
    catalog_csn: u64,
    /// The newest commit in the trees, or applied; `None` if that is not known.
    csn: Option<u64>,
    /// Whether every keyspace that there was is known, so that an operation on another one is an old one on one that was dropped.
    knows_all: bool,
}

/// A keyspace to be read.
struct Source {
    entry: CatalogEntry,
    from: SalvagedFrom,
    /// Version of the tree.
    version: u64,
}

/// What the log needs of a keyspace.
struct Written {
    keyspace: Keyspace,
    /// Index in the report.
    index: usize,
    csn_merged: u64,
    possibly_old: Option<Keyspace>,
}

struct Job<'j, 'o> {
    file: &'j DamagedFile,
    target: &'j Database,
    options: SalvageOptions<'o>,
    report: SalvageReport,
    scan: Option<Scan>,
    /// Nodes that are reached, and by which keyspace (an index in the report), or by the catalog.
    owners: HashMap<NodeRef, usize>,
    /// By number.
    ids: BTreeMap<u32, Written>,
}

/// Owner of the nodes of catalogs.
const CATALOG: usize = usize::MAX;

impl Job<'_, '_> {
    /// Steps 1 to 4.
    fn read_trees(&mut self) -> Result<Replay> {
        let superblocks = self.file.superblocks()?;
        let (mut sources, keyspaces_expected) = self.read_catalog(&superblocks);
        sources.sort_by_key(|source| source.entry.id);
        let all = sources.iter().map(|source| source.entry.root.keys).sum();
        let mut done = 0;
        for source in &sources {
            self.read_keyspace(source, &mut done, all)?;
        }
        let known = sources.len() as u64;
        let missing = keyspaces_expected.map(|expected| expected.saturating_sub(known));
        self.report.keyspaces_lost = missing.unwrap_or(0);
        let is_any_lost = |told: &SalvagedKeyspace| !told.lost.is_empty();
        if missing != Some(0) || self.report.keyspaces.iter().any(is_any_lost) {
            let orphans = self.orphans();
            for source in &sources {
                self.fill_lost_ranges(source.entry.id, &orphans)?;
            }
            if missing != Some(0) {
                self.write_trees_without_name(&orphans)?;
            }
        }
        let is_found = |source: &Source| source.from != SalvagedFrom::Checkpoint;
        let newest = superblocks.newest.filter(|_| !sources.iter().any(is_found));
        Ok(Replay {
            // Trees of a newer catalog than that of the superblock: their part of the log begins later.
            from_lsn: newest.map(|superblock| superblock.wal_start_lsn),
            durable_lsn: newest.map_or(0, |superblock| superblock.wal_durable_lsn),
            catalog_csn: newest.map_or(0, |superblock| superblock.catalog_csn),
            csn: newest.map(|superblock| superblock.csn),
            knows_all: missing == Some(0),
        })
    }

    fn scan(&mut self) -> &mut Scan {
        let options = &mut self.options;
        let all = self.file.len();
        self.scan.get_or_insert_with(|| {
            Scan::new(self.file, |done| {
                options.report(SalvagePhase::Scan, done, all);
            })
        })
    }

    /// Step 2.
    fn read_keyspace(&mut self, source: &Source, done: &mut u64, all: u64) -> Result<()> {
        let entry = &source.entry;
        let name = match &entry.place {
            Place::Named(name) => name.to_string(),
            Place::Subtree { .. } => format!("subtree-{}", entry.id),
        };
        let keyspace = self.create_keyspace(&name, entry.expiry)?;
        let index = self.report.keyspaces.len();
        let walk = Walk::new(self.file, entry.root, source.version);
        let mut told = self.copy(walk, &keyspace, index, done, all)?;
        told.id = Some(entry.id);
        told.from = source.from;
        told.was_subtree = matches!(entry.place, Place::Subtree { .. });
        self.report.keyspaces.push(told);
        let written = Written {
            keyspace,
            index,
            csn_merged: entry.csn_merged,
            possibly_old: None,
        };
        self.ids.insert(entry.id, written);
        Ok(())
    }

    fn copy(
        &mut self,
        walk: Walk<'_>,
        keyspace: &Keyspace,
        index: usize,
        done: &mut u64,
        all: u64,
    ) -> Result<SalvagedKeyspace> {
        let mut entries = Entries {
            walk,
            leaf: Vec::new(),
            next: 0,
            values_lost: Vec::new(),
        };
        let options = &mut self.options;
        let read = std::iter::from_fn(|| {
            let entry = entries.next(self.file);
            *done += u64::from(entry.is_some());
            if done.is_multiple_of(PROGRESS_ENTRIES) {
                options.report(SalvagePhase::Trees, *done, all);
            }
            entry
        });
        let keys = ingest(self.target, keyspace, read)?;
        options.report(SalvagePhase::Trees, *done, all);
        let reached = entries.walk.reached.iter().map(|&at| (at, index));
        self.owners.extend(reached);
        Ok(SalvagedKeyspace {
            name: keyspace.name(),
            id: None,
            from: SalvagedFrom::FoundTree,
            keys,
            lost: entries.walk.lost,
            values_lost: entries.values_lost,
            possibly_old_in: None,
            possibly_old: 0,
            was_subtree: false,
        })
    }

    /// A new keyspace of this name, or of one like it if there is one already.
    fn create_keyspace(&self, name: &str, expiry: Option<u64>) -> Result<Keyspace> {
        let mut candidate = shortened(name, KEYSPACE_NAME_BYTES_MAX).to_owned();
        let mut number = 1;
        while self.target.open_keyspace(&candidate).is_ok() {
            number += 1;
            let suffix = format!("-{number}");
            let room = KEYSPACE_NAME_BYTES_MAX - suffix.len();
            candidate = format!("{}{suffix}", shortened(name, room));
        }
        let options = KeyspaceOptions::from_stored(expiry);
        self.target.create_keyspace_with(&candidate, options)
    }
}

/// As much of a name as fits.
fn shortened(name: &str, bytes_max: usize) -> &str {
    let mut end = name.len().min(bytes_max);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// Entries of a leaf, or of a delta but for those that remove.
fn for_each_entry(bytes: &[u8], mut each: impl FnMut(&[u8], Stored<'_>)) {
    let delta = Delta::open(bytes).ok();
    let entries = delta.map(|delta| delta.entries());
    let Some(leaf) = entries.or_else(|| Leaf::open(bytes).ok()) else {
        return;
    };
    let mut key = Vec::new();
    for index in 0..leaf.len() {
        if delta.is_none_or(|delta| delta.mark(index) != Mark::Removes) {
            leaf.copy_key(index, &mut key);
            each(&key, leaf.value(index));
        }
    }
}

/// Entries of a tree that can be read.
struct Entries<'f> {
    walk: Walk<'f>,
    leaf: Vec<u8>,
    next: usize,
    values_lost: Vec<Vec<u8>>,
}

impl Entries<'_> {
    fn next(&mut self, file: &DamagedFile) -> Option<(Vec<u8>, Vec<u8>)> {
        loop {
            let leaf = Leaf::open(&self.leaf).ok();
            let Some(leaf) = leaf.filter(|leaf| self.next < leaf.len()) else {
                self.leaf = self.walk.next_leaf()?;
                self.next = 0;
                continue;
            };
            let mut key = Vec::new();
            leaf.copy_key(self.next, &mut key);
            let value = leaf.value(self.next);
            self.next += 1;
            match value {
                Stored::Inline(value) => return Some((key, value.to_vec())),
                // It is a keyspace of its own, which the report counts.
                Stored::External(pointer) if pointer.subtree().is_some() => {}
                Stored::External(pointer) => match file.value(&pointer) {
                    Ok(value) => return Some((key, value)),
                    Err(_) => self.values_lost.push(key),
                },
            }
        }
    }
}
