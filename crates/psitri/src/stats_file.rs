//! The statistics file: figures of an open database for other processes, `psitri top` among them.
//!
//! One record of [`RECORD_BYTES`] at the start of the file `stats` in the database directory, written in place by one call, about twice a second
//! while anything changes and every [`HEARTBEAT`] otherwise. `docs/format.md` has the fields.
//!
//! # Thread safety
//! One process writes: the one that holds the directory's exclusive lock; in it, one thread. Anybody may read at any time, without a lock.
//!
//! # Invariants
//! (1) Nothing depends on the file: it is never flushed, and the engine never reads it. If it cannot be written, it is not written.
//! (2) A reader takes a record only if its checksum is right; one that is torn is read again.
//! (3) A database that is closed has no such file. One that is old was left by a process that was killed, or hangs.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{Result, Stats, error::Error, stats::FIGURES, storage::StorageError};

/// Name of the file in the database directory.
const STATS_FILE: &str = "stats";
const MAGIC: [u8; 8] = *b"PsiStats";
const VERSION: u32 = 1;
/// Size of the record.
const RECORD_BYTES: usize = 1024;
const VERSION_AT: usize = 8;
const FIGURES_AT: usize = 12;
const PROCESS_AT: usize = 16;
const FAILURE_LEN_AT: usize = 20;
const WRITTEN_AT: usize = 24;
const BODY_AT: usize = 32;
const FAILURE_AT: usize = BODY_AT + FIGURES * 8;
const CRC_AT: usize = RECORD_BYTES - 4;
const _: () = assert!(FAILURE_AT + 256 <= CRC_AT, "room for a cause");

/// An idle database writes a record this often, to show that its process is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A record of this age is not from a process that is well.
const STALE: Duration = Duration::from_secs(12);
/// How often, and after what pause, a torn record is read again.
const READ_TRIES: usize = 20;
const READ_PAUSE: Duration = Duration::from_millis(1);

/// What a process that has a database open said about it last.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("db");
/// use psitri::{Database, Error, StatsRecord};
/// let db = Database::open(&path)?;
/// let record = loop {
///     // In this or any other process; the first record is there a moment after the opening.
///     match StatsRecord::read(&path) {
///         Err(Error::NoStatistics { .. }) => std::thread::yield_now(),
///         other => break other?,
///     }
/// };
/// assert_eq!(record.process_id, std::process::id());
/// assert!(!record.is_stale());
/// db.close()?;
/// assert!(StatsRecord::read(&path).is_err(), "nobody has it open");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StatsRecord {
    /// Process that has the database open for writing.
    pub process_id: u32,
    /// When the record was written, by the clock of the machine that wrote it.
    pub written_at: SystemTime,
    /// The figures; without those of keyspaces.
    pub stats: Stats,
}

/// Why bytes are no record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Damaged(&'static str),
    #[error("the statistics are of version {0}, and this release reads version {VERSION}")]
    Newer(u32),
}

impl StatsRecord {
    /// Reads the record of the database in directory `path`. Takes no lock, and does not disturb the process that has it open.
    ///
    /// # Errors
    /// [`Error::NoStatistics`] if there is no record: nobody has the database open for writing, or its process keeps no statistics.
    /// [`Error::Statistics`] if what is there is no record, or was written by a newer release.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use psitri::{Error, StatsRecord};
    /// assert!(matches!(StatsRecord::read(dir.path()), Err(Error::NoStatistics { .. })));
    /// ```
    pub fn read(path: impl AsRef<Path>) -> Result<StatsRecord> {
        let directory = path.as_ref();
        let path = directory.join(STATS_FILE);
        let mut tries = 0;
        loop {
            tries += 1;
            let mut bytes = [0; RECORD_BYTES];
            let found = File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, 0));
            let problem = match found {
                Ok(()) => match StatsRecord::decode(&bytes) {
                    Ok(record) => return Ok(record),
                    Err(problem) => problem,
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Error::NoStatistics {
                        path: directory.to_owned(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Problem::Damaged("the file is too short for a record of statistics")
                }
                Err(error) => {
                    let shown = path.display().to_string();
                    return Err(StorageError::io("read", &shown, error).into());
                }
            };
            // (2)
            match problem {
                Problem::Damaged(_) if tries < READ_TRIES => std::thread::sleep(READ_PAUSE),
                problem => {
                    let what = problem.to_string();
                    return Err(Error::Statistics { path, what });
                }
            }
        }
    }

    /// How long ago it was written. Zero if the clock was set back since.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # let record = loop {
    /// #     if let Ok(record) = psitri::StatsRecord::read(dir.path().join("db")) {
    /// #         break record;
    /// #     }
    /// # };
    /// assert!(record.age().as_secs() < 60);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn age(&self) -> Duration {
        self.written_at.elapsed().unwrap_or_default()
    }

    /// Whether a process that is well would have written another one by now: it was killed, or hangs.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// # let record = loop {
    /// #     if let Ok(record) = psitri::StatsRecord::read(dir.path().join("db")) {
    /// #         break record;
    /// #     }
    /// # };
    /// assert!(!record.is_stale());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.age() >= STALE
    }

    fn encode(stats: &Stats, written_at: SystemTime) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        let since_epoch = written_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        put(0, &MAGIC);
        put(VERSION_AT, &VERSION.to_le_bytes());
        put(FIGURES_AT, &(FIGURES as u32).to_le_bytes());
        put(PROCESS_AT, &std::process::id().to_le_bytes());
        put(WRITTEN_AT, &(since_epoch.as_micros() as u64).to_le_bytes());
        for (index, (_, value)) in stats.figures().into_iter().enumerate() {
            put(BODY_AT + index * 8, &value.to_le_bytes());
        }
        if let Some(failure) = &stats.failure {
            let mut end = failure.len().min(CRC_AT - FAILURE_AT);
            while !failure.is_char_boundary(end) {
                end -= 1;
            }
            put(FAILURE_LEN_AT, &(end as u32).to_le_bytes());
            put(FAILURE_AT, &failure.as_bytes()[..end]);
        }
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<StatsRecord, Problem> {
        let damaged = |what| Err(Problem::Damaged(what));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..MAGIC.len()] != MAGIC {
            return damaged("this is no record of statistics");
        }
        if crc32c::crc32c(&bytes[..CRC_AT]) != u32_at(CRC_AT) {
            return damaged("the checksum of the statistics does not match");
        }
        if u32_at(VERSION_AT) > VERSION {
            return Err(Problem::Newer(u32_at(VERSION_AT)));
        }
        let failure_len = u32_at(FAILURE_LEN_AT) as usize;
        if u32_at(FIGURES_AT) as usize != FIGURES || failure_len > CRC_AT - FAILURE_AT {
            return damaged("the statistics have other fields than their version says");
        }
        let mut stats = Stats::default();
        for (index, value) in stats.figures_mut().into_iter().enumerate() {
            *value = u64_at(BODY_AT + index * 8);
        }
        let failure = &bytes[FAILURE_AT..FAILURE_AT + failure_len];
        stats.failure = (failure_len > 0).then(|| String::from_utf8_lossy(failure).into_owned());
        let written_at = UNIX_EPOCH.checked_add(Duration::from_micros(u64_at(WRITTEN_AT)));
        Ok(StatsRecord {
            process_id: u32_at(PROCESS_AT),
            written_at: written_at.unwrap_or(UNIX_EPOCH),
            stats,
        })
    }
}

/// The file, for the process that writes it.
#[derive(Debug)]
pub(crate) struct StatsFile {
    path: PathBuf,
    file: Option<File>,
    /// What was written last, and when.
    written: Option<(Stats, Instant)>,
}

impl StatsFile {
    pub fn new(directory: &Path) -> StatsFile {
        StatsFile {
            path: directory.join(STATS_FILE),
            file: None,
            written: None,
        }
    }

    /// Writes a record if anything but the time has changed, or the last one is old (1).
    pub fn write(&mut self, stats: &Stats) {
        let is_news = self.written.as_ref().is_none_or(|(last, at)| {
            at.elapsed() >= HEARTBEAT
                || last.figures_but_time() != stats.figures_but_time()
                || last.failure != stats.failure
        });
        if !is_news {
            return;
        }
        let record = StatsRecord::encode(stats, SystemTime::now());
        match self.try_write(&record) {
            Ok(()) => self.written = Some((stats.clone(), Instant::now())),
            // Without space, say. The next one opens the file anew.
            Err(_) => self.file = None,
        }
    }

    fn try_write(&mut self, record: &[u8]) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).truncate(false);
                self.file.insert(options.open(&self.path)?)
            }
        };
        file.write_all_at(record, 0)
    }
}

/// (3)
impl Drop for StatsFile {
    fn drop(&mut self) {
        // It need not be there: it could not be written, or somebody removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_stats() -> Stats {
        let mut stats = Stats::default();
        for (index, value) in stats.figures_mut().into_iter().enumerate() {
            *value = (index as u64 + 1) << 33 | 7;
        }
        stats.failure = Some("no space ä".repeat(100));
        stats
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let stats = some_stats();
        let at = UNIX_EPOCH + Duration::from_micros(1_234_567_890_123_456);
        let record = StatsRecord::decode(&StatsRecord::encode(&stats, at)).unwrap();
        assert_eq!(record.stats.figures(), stats.figures());
        assert_eq!(
            (record.process_id, record.written_at),
            (std::process::id(), at)
        );
        let failure = record.stats.failure.unwrap();
        assert!(failure.len() >= 256 && stats.failure.unwrap().starts_with(&failure));
    }

    #[test]
    fn the_format_is_the_documented_one() {
        let page = include_str!("../../../docs/format.md");
        let (_, section) = page.split_once("The figures, in this order: ").unwrap();
        let documented = section.split('`').skip(1).step_by(2);
        let names = Stats::default().figures().map(|(name, _)| name);
        assert!(documented.take(FIGURES).eq(names));
        assert!(page.contains(&format!("how many there are: n, {FIGURES} |")));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let bytes = StatsRecord::encode(&some_stats(), SystemTime::now());
        for bit in 0..RECORD_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(StatsRecord::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = StatsRecord::encode(&some_stats(), SystemTime::now());
        bytes[VERSION_AT] = VERSION as u8 + 1;
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(
            StatsRecord::decode(&bytes),
            Err(Problem::Newer(_))
        ));
    }

    #[test]
    fn nothing_is_written_while_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatsFile::new(dir.path());
        let mut stats = some_stats();
        file.write(&stats);
        let first = StatsRecord::read(dir.path()).unwrap();
        stats.uptime_us += 1_000_000;
        file.write(&stats);
        let second = StatsRecord::read(dir.path()).unwrap();
        assert_eq!(first.written_at, second.written_at);
        stats.commits += 1;
        file.write(&stats);
        let third = StatsRecord::read(dir.path()).unwrap();
        assert_eq!(third.stats.figures(), stats.figures());
        drop(file);
        assert!(matches!(
            StatsRecord::read(dir.path()),
            Err(Error::NoStatistics { .. })
        ));
    }

    #[test]
    fn what_cannot_be_written_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        // A directory is in the way, and whoever made it keeps it.
        std::fs::create_dir(dir.path().join(STATS_FILE)).unwrap();
        let mut file = StatsFile::new(dir.path());
        file.write(&some_stats());
        assert!(file.written.is_none());
        std::fs::remove_dir(dir.path().join(STATS_FILE)).unwrap();
        file.write(&some_stats());
        assert!(StatsRecord::read(dir.path()).is_ok(), "it is tried again");
    }
}
