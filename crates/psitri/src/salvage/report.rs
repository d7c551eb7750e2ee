//! What a salvage found, and what is lost.

use std::fmt;

/// Where the trees of a keyspace came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SalvagedFrom {
    /// The newest checkpoint: what was read is what was stored.
    Checkpoint,
    /// An entry of a catalog that was found by scanning the file, as no superblock leads to it. It is the newest that was found.
    FoundCatalog,
    /// A tree without a name that was found by scanning the file.
    FoundTree,
    /// The log alone, which has its creation.
    Log,
    /// The log alone, which has entries of it. It has no name: what said it is lost.
    LogWithoutName,
}

/// Keys that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRange {
    /// First key that may be lost.
    pub from: Vec<u8>,
    /// First key behind it that is not; `None`: up to the end.
    pub to: Option<Vec<u8>>,
    /// How many keys there were.
    pub keys: u64,
    /// Where the damage is in the data file; the first of several places.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// What became of one keyspace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SalvagedKeyspace {
    /// Its name in the new database.
    pub name: String,
    /// Its number in the damaged one, if known.
    pub id: Option<u32>,
    /// Where its trees came from. All but those of a checkpoint are possibly old as a whole.
    pub from: SalvagedFrom,
    /// Keys that were read on a path of intact nodes, with their values. What the log adds is not counted.
    pub keys: u64,
    /// Keys that cannot be read, in order.
    pub lost: Vec<LostRange>,
    /// Keys that can be read and whose values cannot.
    pub values_lost: Vec<Vec<u8>>,
    /// The keyspace of the new database with entries that were found in the lost ranges by scanning the file. They may be old: overwritten
    /// or deleted later, and, if another keyspace has such keys, they may belong to that.
    pub possibly_old_in: Option<String>,
    /// Entries in it.
    pub possibly_old: u64,
    /// Whether it was a subtree: the value of a key. In the new database it is a keyspace of its own, and the key is not there.
    pub was_subtree: bool,
}

impl SalvagedKeyspace {
    /// Keys in the lost ranges.
    ///
    /// ```
    /// # fn print(report: &psitri::SalvageReport) {
    /// for keyspace in &report.keyspaces {
    ///     println!("{}: {} of its keys are lost", keyspace.name, keyspace.keys_lost());
    /// }
    /// # }
    /// ```
    pub fn keys_lost(&self) -> u64 {
        (self.lost.iter()).fold(0, |sum, range| sum.saturating_add(range.keys))
    }

    /// Whether every entry that the checkpoint had is there, unchanged; true if it had no such keyspace, and the log has its creation. Keys whose values were subtrees do not count: see
    /// [`SalvageReport::subtrees_detached`].
    ///
    /// ```
    /// # fn print(report: &psitri::SalvageReport) {
    /// for keyspace in report.keyspaces.iter().filter(|keyspace| !keyspace.is_whole()) {
    ///     println!("look at {keyspace}");
    /// }
    /// # }
    /// ```
    pub fn is_whole(&self) -> bool {
        matches!(self.from, SalvagedFrom::Checkpoint | SalvagedFrom::Log)
            && self.lost.is_empty()
            && self.values_lost.is_empty()
    }
}

/// What became of the log.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SalvagedLogReport {
    /// Commits that were read and applied, or are in the trees already.
    pub commits: u64,
    /// Commits behind the damage that can be read and were not applied: they may depend on what is lost.
    pub commits_passed_by: u64,
    /// Large values that the applied commits refer to and that cannot be read; their keys are not in the new database. Only with
    /// [`SalvageOptions::past_damage`](crate::SalvageOptions::past_damage).
    pub values_lost: u64,
    /// Places that cannot be read, as file, byte and finding. Applying stopped at the first.
    pub damage: Vec<String>,
}

/// What [`salvage`](crate::salvage) found. `Display` tells it in lines of text.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Number of the checkpoint whose superblock was read; `None` if there is none.
    pub checkpoint: Option<u64>,
    /// Damage to what holds the rest together: superblocks, page map, catalog. What it hid may be found nevertheless.
    pub damage: Vec<String>,
    /// Keyspaces that the catalog counts and that were not found.
    pub keyspaces_lost: u64,
    /// Entries of the catalog of a kind that this release does not know. What they stand for is not in the new database.
    pub entries_unknown: u64,
    /// Saved snapshots that were found. They are not in the new database.
    pub snapshots_left_out: u64,
    /// Trees without a name that were found beyond the number that is written.
    pub trees_left_out: u64,
    /// Every keyspace.
    pub keyspaces: Vec<SalvagedKeyspace>,
    /// The log.
    pub log: SalvagedLogReport,
}

impl SalvageReport {
    /// Subtrees that became keyspaces of their own: their content is there, and the keys whose values they were are not.
    ///
    /// ```
    /// # fn print(report: &psitri::SalvageReport) {
    /// println!("{} subtrees are to be put back by hand", report.subtrees_detached());
    /// # }
    /// ```
    pub fn subtrees_detached(&self) -> u64 {
        let subtrees = self.keyspaces.iter().filter(|told| told.was_subtree);
        subtrees.count() as u64
    }

    /// Whether the new database has everything that the damaged one had, where it was, as far as can be known.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, target) = (dir.path().join("db"), dir.path().join("rebuilt"));
    /// use psitri::{Database, SalvageOptions, salvage};
    /// let db = Database::open(&path)?;
    /// db.save_snapshot("monday")?; // salvage does not copy it
    /// db.close()?;
    /// let report = salvage(&path, &target, SalvageOptions::new())?;
    /// assert!(!report.is_whole());
    /// assert_eq!(report.snapshots_left_out, 1);
    /// # Ok(()) }
    /// ```
    pub fn is_whole(&self) -> bool {
        self.checkpoint.is_some()
            && self.keyspaces_lost == 0
            && self.entries_unknown == 0
            && self.snapshots_left_out == 0
            && self.subtrees_detached() == 0
            && self.trees_left_out == 0
            && self.log.damage.is_empty()
            && self.log.values_lost == 0
            && self.keyspaces.iter().all(SalvagedKeyspace::is_whole)
    }
}

/// Bytes as text on one line.
struct Key<'k>(&'k [u8]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for SalvagedKeyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "keyspace {}: {} keys read",
            Key(self.name.as_bytes()),
            self.keys
        )?;
        f.write_str(match self.from {
            SalvagedFrom::Checkpoint => "",
            SalvagedFrom::FoundCatalog => {
                ", of the newest catalog found by scanning; possibly old as a whole"
            }
            SalvagedFrom::FoundTree => {
                ", of a tree found by scanning, without its name; possibly old as a whole"
            }
            SalvagedFrom::Log => "; it is in the log only",
            SalvagedFrom::LogWithoutName => "; it is in the log only, without its name",
        })?;
        for range in &self.lost {
            write!(f, "\n  lost: {} keys from {}", range.keys, Key(&range.from))?;
            match &range.to {
                Some(to) => write!(f, " up to below {}", Key(to))?,
                None => f.write_str(" to the end")?,
            }
            write!(f, " (data, offset {}: {})", range.offset, range.what)?;
        }
        for key in &self.values_lost {
            write!(f, "\n  lost: the value of {}", Key(key))?;
        }
        if let Some(name) = &self.possibly_old_in {
            write!(
                f,
                "\n  possibly old: {} entries found in the lost ranges are in keyspace {}",
                self.possibly_old,
                Key(name.as_bytes())
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for SalvageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.checkpoint {
            Some(number) => writeln!(f, "checkpoint {number}")?,
            None => writeln!(f, "no checkpoint: both superblocks are damaged")?,
        }
        for damage in &self.damage {
            writeln!(f, "damage: {damage}")?;
        }
        for keyspace in &self.keyspaces {
            writeln!(f, "{keyspace}")?;
        }
        if self.keyspaces_lost > 0 {
            writeln!(f, "lost: {} keyspaces", self.keyspaces_lost)?;
        }
        if self.entries_unknown > 0 {
            writeln!(
                f,
                "left out: {} entries of the catalog that this release does not know",
                self.entries_unknown
            )?;
        }
        if self.snapshots_left_out > 0 {
            writeln!(f, "left out: {} saved snapshots", self.snapshots_left_out)?;
        }
        if self.subtrees_detached() > 0 {
            writeln!(
                f,
                "not where they were: {} subtrees; each is a keyspace of its own, its key is not there",
                self.subtrees_detached()
            )?;
        }
        if self.trees_left_out > 0 {
            writeln!(f, "left out: {} trees without names", self.trees_left_out)?;
        }
        writeln!(f, "log: {} commits", self.log.commits)?;
        for damage in &self.log.damage {
            writeln!(f, "  damage: {damage}")?;
        }
        if self.log.commits_passed_by > 0 {
            writeln!(
                f,
                "  left out: {} commits behind the damage",
                self.log.commits_passed_by
            )?;
        }
        if self.log.values_lost > 0 {
            writeln!(f, "  lost: {} values", self.log.values_lost)?;
        }
        f.write_str(if self.is_whole() {
            "nothing is lost"
        } else {
            "something is lost, or may be"
        })
    }
}
