//! How a database is opened: sizes, limits and durability.

use std::{
    fmt,
    path::Path,
    str::FromStr,
    time::{Duration, SystemTime},
};

use crate::{Database, Error, Event, Result, events::Events, expiry::Clock};

/// Frozen buffers, where nobody says how many: so many, and of small ones as many as take so much. What a merge writes to a tree much larger than a
/// buffer is divided by their number; what a kill leaves to be replayed grows with what they take.
const FROZEN_LEAST: usize = 4;
const FROZEN_BYTES_LEAST: usize = 48 << 20;
const FROZEN_MAX: usize = 16;

/// What a returned commit survives. Each mode survives `kill -9`; none can corrupt the database.
///
/// | mode | power loss | a commit costs |
/// |---|---|---|
/// | `None` | loses a suffix of the commits | a copy into the mapped log; a system call from 64 KiB on |
/// | `Async` | loses at most about the flush interval | as `None`; a thread flushes the log |
/// | `Sync` | loses nothing that was acknowledged | a shared flush of the log |
/// | `WriteThrough` | loses nothing that was acknowledged | a flush by its own thread |
///
/// ```
/// use psitri::Durability;
/// assert_eq!("write-through".parse(), Ok(Durability::WriteThrough));
/// assert_eq!(Durability::default().to_string(), "none");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Durability {
    /// Survives the death of the process; power loss may cut off the newest commits.
    #[default]
    None,
    /// Like `None`, with a flush of the log in the background every
    /// [`async_interval`](Options::async_interval).
    Async,
    /// The commit returns, and snapshots see it, when it is on the disk. Concurrent commits share flushes. The next transaction that writes to the
    /// same keyspaces sees it before: its own commit waits for both, also if it wrote nothing.
    Sync,
    /// Like `Sync`, but the committing thread flushes itself as soon as no other flush runs, where `Sync` queues up for a shared one. A flush that
    /// began after a commit was appended serves it too. Other commits go on meanwhile.
    WriteThrough,
}

impl Durability {
    pub(crate) fn waits(self) -> bool {
        matches!(self, Durability::Sync | Durability::WriteThrough)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::None => "none",
            Durability::Async => "async",
            Durability::Sync => "sync",
            Durability::WriteThrough => "write-through",
        })
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "none" => Ok(Durability::None),
            "async" => Ok(Durability::Async),
            "sync" => Ok(Durability::Sync),
            "write-through" => Ok(Durability::WriteThrough),
            other => Err(format!(
                "{other:?} is not a durability; use none, async, sync or write-through"
            )),
        }
    }
}

/// Which layers a snapshot reads.
///
/// ```
/// use psitri::ReadMode;
/// assert_eq!("trie".parse(), Ok(ReadMode::Trie));
/// assert_eq!(ReadMode::default().to_string(), "latest");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum ReadMode {
    /// Everything committed when the snapshot was taken.
    #[default]
    Latest,
    /// Frozen buffers and the tree: what was committed up to the last freeze of the active buffer. A transaction that began before the freeze and is
    /// committed after it is seen too, as it writes to the buffer that was frozen.
    Buffered,
    /// The trees: what has been merged. What is merged in part, or in some keyspaces and not in others, is seen as a whole: the rest of it comes
    /// from the buffers.
    Trie,
}

impl FromStr for ReadMode {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "latest" => Ok(ReadMode::Latest),
            "buffered" => Ok(ReadMode::Buffered),
            "trie" => Ok(ReadMode::Trie),
            other => Err(format!(
                "{other:?} is not a read mode; use latest, buffered or trie"
            )),
        }
    }
}

impl fmt::Display for ReadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadMode::Latest => "latest",
            ReadMode::Buffered => "buffered",
            ReadMode::Trie => "trie",
        })
    }
}

/// Builder for opening a database.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// use psitri::{Durability, Options};
/// let db = Options::new()
///     .buffer_bytes(16 << 20)
///     .durability(Durability::Sync)
///     .open(dir.path().join("ledger"))?;
/// # db.close()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) buffer_bytes: usize,
    frozen_buffers: Option<usize>,
    pub(crate) durability: Durability,
    pub(crate) async_interval: Duration,
    pub(crate) idle_flush: Duration,
    pub(crate) merge_threads: usize,
    pub(crate) pinned_cache_bytes: u64,
    pub(crate) lookup_table_bytes: u64,
    pub(crate) wal_segment_bytes: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoint_on_close: bool,
    pub(crate) file_slack_percent: u32,
    pub(crate) map_reserve_bytes: u64,
    pub(crate) events: Events,
    pub(crate) slow_reader_after: Duration,
    pub(crate) stats_file: bool,
    pub(crate) clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            buffer_bytes: 64 << 20,
            frozen_buffers: None,
            durability: Durability::None,
            async_interval: Duration::from_millis(100),
            idle_flush: Duration::from_secs(1),
            merge_threads: 1,
            pinned_cache_bytes: 0,
            lookup_table_bytes: 64 << 20,
            wal_segment_bytes: 4 << 20,
            checkpoint_bytes: 64 << 20,
            checkpoint_on_close: true,
            file_slack_percent: 25,
            map_reserve_bytes: 1 << 40,
            events: Events::default(),
            slow_reader_after: Duration::from_secs(60),
            stats_file: true,
            clock: Clock::default(),
        }
    }
}

impl Options {
    /// The defaults: 64 MiB buffer, at most four frozen ones, durability `none`, one merge thread.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// let db = psitri::Options::new().in_memory()?;
    /// assert!(db.keyspaces().is_empty());
    /// # Ok(()) }
    /// ```
    pub fn new() -> Options {
        Options::default()
    }

    /// Bytes that the active write buffer takes before it is frozen and merged. 256 KiB to 2 GiB; default 64 MiB. Beside it there may be as many
    /// frozen ones as [`frozen_buffers`](Options::frozen_buffers) says.
    /// A transaction that writes more than half of this spills into the tree and is merged as it goes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// let db = psitri::Options::new().buffer_bytes(8 << 20).in_memory()?;
    /// assert!(psitri::Options::new().buffer_bytes(1).in_memory().is_err());
    /// # Ok(()) }
    /// ```
    pub fn buffer_bytes(mut self, bytes: usize) -> Options {
        self.buffer_bytes = bytes;
        self
    }

    /// Frozen buffers that may wait for merge before writers are stopped. 1 to 16; default: as many of [`buffer_bytes`](Options::buffer_bytes) as take
    /// at most 48 MiB, but at least 4 and at most 16: 8 of 6 MiB, 4 of 10 MiB and more. Writers are slowed down before that: when only one more
    /// may wait, they go at the speed at which the room lasts until the merge ends, and transactions begin up to 50 ms later for it, one after the other.
    ///
    /// Those that wait are merged together: where writes are scattered over a tree much larger than a buffer, a merge rewrites much of the
    /// tree, and more buffers mean fewer merges. They are filled when merges fall behind, and while a merge that would rewrite much waits for more, for 200 ms
    /// each at most. After a kill all of them are replayed from the log. A lookup asks each of them before the tree, and a cursor joins them. Direct
    /// transactions, checkpoints and closing freeze the active one, too, whatever is frozen already, unless merges fail.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// // Writes that wait in memory take about 3 x 8 MiB at most.
    /// let db = psitri::Options::new().buffer_bytes(8 << 20).frozen_buffers(2).in_memory()?;
    /// # Ok(()) }
    /// ```
    pub fn frozen_buffers(mut self, count: usize) -> Options {
        self.frozen_buffers = Some(count);
        self
    }

    /// How much each buffer may have of what four of them may have so many bytes of each.
    pub(crate) fn per_buffer(&self, bytes: u64) -> u64 {
        let (usual, most) = (FROZEN_LEAST as u64, self.frozen_buffers_max() as u64);
        bytes / usual.max(most) * usual
    }

    /// How many buffers may be frozen at a time.
    #[inline]
    pub(crate) fn frozen_buffers_max(&self) -> usize {
        let by_bytes = || FROZEN_BYTES_LEAST / self.buffer_bytes.max(1);
        (self.frozen_buffers).unwrap_or_else(|| by_bytes().clamp(FROZEN_LEAST, FROZEN_MAX))
    }

    /// Durability of commits that do not name one. Default [`Durability::None`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Durability, Options};
    /// let db = Options::new().durability(Durability::Sync).open(&path)?;
    /// let ks = db.keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?; // returns when it is on the disk
    /// # Ok(()) }
    /// ```
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    /// Interval of the background flush of [`Durability::Async`]. 1 ms to 1 h; default 100 ms.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Durability, Options};
    /// use std::time::Duration;
    /// let db = Options::new()
    ///     .durability(Durability::Async)
    ///     .async_interval(Duration::from_millis(20))
    ///     .open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn async_interval(mut self, interval: Duration) -> Options {
        self.async_interval = interval;
        self
    }

    /// How long the buffer of an idle database stays unmerged. 10 ms to 1 h; default 1 s. One that takes a sixteenth of
    /// [`buffer_bytes`](Options::buffer_bytes) or more is merged after a twentieth of that (50 ms at least), without the checkpoint that follows when all of it
    /// has passed, unless the merge would write more than four times as much as the buffer takes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// use std::time::Duration;
    /// let db = psitri::Options::new().idle_flush(Duration::from_millis(200)).in_memory()?;
    /// # Ok(()) }
    /// ```
    pub fn idle_flush(mut self, interval: Duration) -> Options {
        self.idle_flush = interval;
        self
    }

    /// Threads that merge different keyspaces of the frozen buffers side by side. 1 to 64; default 1.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// let db = psitri::Options::new().merge_threads(4).in_memory()?;
    /// # Ok(()) }
    /// ```
    pub fn merge_threads(mut self, threads: usize) -> Options {
        self.merge_threads = threads;
        self
    }

    /// Bytes at the head of the data file whose pages, once read, are locked in memory. Default 0.
    /// Opening fails if the system's limit on locked memory is lower. A file that outgrows its address space (1 TiB, where the system gives so
    /// much) is mapped anew: what was locked is then locked again as it is read, unless that limit is in the way.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Options::new().pinned_cache_bytes(64 << 10).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn pinned_cache_bytes(mut self, bytes: u64) -> Options {
        self.pinned_cache_bytes = bytes;
        self
    }

    /// Memory for tables that say where keys are in their trees, those of all keyspaces together. Default 64 MiB; 0 for none.
    ///
    /// Where snapshots look up keys in the newest tree of a keyspace again and again while it stays the same, a table is made beside it in the background:
    /// 12 bytes a key, once there were about half as many lookups as there are keys. They then take half to nine tenths of the time. The next merge into the keyspace
    /// ends the use of it. A tree has none if it has fewer than 1,000 keys, if it takes less than 16 bytes for
    /// one (9 where the table takes a MiB at most), or if it is not in memory. Where there is no room for a table, those go that
    /// were not asked for some time.
    ///
    /// ```
    /// let options = psitri::Options::new().lookup_table_bytes(1 << 30);
    /// ```
    pub fn lookup_table_bytes(mut self, bytes: u64) -> Options {
        self.lookup_table_bytes = bytes;
        self
    }

    /// Size of one log segment. 64 KiB to 1 GiB, rounded up to a multiple of 16 KiB; default 4 MiB.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Options::new().wal_segment_bytes(1 << 20).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn wal_segment_bytes(mut self, bytes: u64) -> Options {
        self.wal_segment_bytes = bytes;
        self
    }

    /// Bytes of new pages, and of log that is merged, after which a checkpoint is taken; twice as many where it would have to flush the log of a
    /// buffer whose merge is not done yet. 1 MiB to 1 TiB; default 64 MiB. It comes earlier in an idle database, and where
    /// [`file_slack_percent`](Options::file_slack_percent) asks for it. The write buffer is merged, full or not, when its log is longer than this and
    /// than twice [`buffer_bytes`](Options::buffer_bytes).
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// // Less log to read after a crash, more checkpoints before it.
    /// let db = psitri::Options::new().checkpoint_bytes(8 << 20).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn checkpoint_bytes(mut self, bytes: u64) -> Options {
        self.checkpoint_bytes = bytes;
        self
    }

    /// Whether closing merges what was written and makes it durable. Default true. Of what was written last, up to 10,000 entries of no more than 8 MiB may
    /// stay in the log, durable, where merging these would write more than they are worth ([`Database::close`](crate::Database::close)).
    ///
    /// If false, closing leaves in the log what is not merged yet, as RocksDB and others do. That takes a few milliseconds, unless a merge is
    /// under way, which is waited for, or a segment of the log or more was merged since the last checkpoint: another one lets go of it.
    /// Where less was merged and nothing was written since, that is checkpointed, too, and so is it where dead pages of the data file wait for
    /// a checkpoint, from 1 MiB and a thirty-second of its content on. Free space in the middle of the file, beyond 256 KiB and 1/128 of the content, is given
    /// back in pieces of 16 KiB and more, which takes about a tenth of a millisecond for each.
    /// Each opening replays the log, as after a crash, until it is merged; one that replays more than 10,000 entries or 8 MiB of log merges them
    /// in the background. On closing, everything is merged nevertheless where that is the better half of the work: if the part of the log that is
    /// not merged is more than twice as large as what it brings back, because most of it was overwritten or deleted, if the log has more than
    /// 24 segments, or if there are values outside of it.
    ///
    /// What was committed is as durable after such a close as its commits were: with [`Durability::None`] it outlives the process, and may
    /// be lost with power until the operating system has written it. [`Database::checkpoint`] or [`Database::flush`] before closing make it
    /// durable in any case. Readers beside the writer see it with the next checkpoint, snapshots in [`ReadMode::Trie`] with the next merge.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let options = psitri::Options::new().checkpoint_on_close(false);
    /// let db = options.clone().open(&path)?;
    /// let ks = db.keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// drop(ks);
    /// db.close()?;
    ///
    /// let db = options.open(&path)?;
    /// assert_eq!(db.get(&db.keyspace("ks")?, b"k")?.as_deref(), Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    pub fn checkpoint_on_close(mut self, checkpoint: bool) -> Options {
        self.checkpoint_on_close = checkpoint;
        self
    }

    /// By how much the data file may exceed its content while it is in use, in percent of the content. 10 to 10,000; default 25.
    ///
    /// What is overwritten stays in the file until a checkpoint is durable. With little slack there are many checkpoints, and merges wait for
    /// the disk that writes them; a disk that is slower than merges then slows writers down. Databases of less than some tens of MiB may
    /// take 6 MiB and more while they are written to, and all up to 16 MiB while they are merged. What snapshots hold comes on top.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// // A file of up to three times its content, for a slow disk.
    /// let db = psitri::Options::new().file_slack_percent(200).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn file_slack_percent(mut self, percent: u32) -> Options {
        self.file_slack_percent = percent;
        self
    }

    /// Address space reserved for the data file. 16 MiB to 64 TiB; default 1 TiB. Where it cannot be had, less is
    /// taken, and the mapping is renewed when the file outgrows it.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Options::new().map_reserve_bytes(1 << 30).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn map_reserve_bytes(mut self, bytes: u64) -> Options {
        self.map_reserve_bytes = bytes;
        self
    }

    /// Calls `handler` when something happens that a program may want to know of: see [`Event`]. It is called from the thread in which it
    /// happened, which waits for it: it should be quick, and must not use the database, but hand on what it was told. A panic in it is caught,
    /// and goes no further than the panic hook.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// use psitri::{Event, Options};
    /// let options = Options::new().on_event(|event| {
    ///     if let Event::Stalled { waited } = event {
    ///         eprintln!("a writer waited for {waited:?}");
    ///     }
    /// });
    /// # options.in_memory()?.close()
    /// # }
    /// ```
    pub fn on_event(mut self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Options {
        self.events = Events::new(handler);
        self
    }

    /// After how long a snapshot or transaction is reported as slow: [`Event::SlowReader`]. 1 ms to 1 day; default 60 s. The time counts from the moment
    /// at which the state that it sees was replaced, by a merge say, and not from the moment at which it was taken.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// use std::time::Duration;
    /// let options = psitri::Options::new().slow_reader_after(Duration::from_secs(5));
    /// # options.in_memory()?.close()
    /// # }
    /// ```
    pub fn slow_reader_after(mut self, age: Duration) -> Options {
        self.slow_reader_after = age;
        self
    }

    /// Whether figures are kept in the file `stats` of the database directory while the database is open for writing, for `psitri top` and
    /// [`StatsRecord::read`](crate::StatsRecord::read) in other processes. Default true. A background thread writes 1 KiB at most twice a second,
    /// without a flush; nothing depends on the file.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// let db = psitri::Options::new().stats_file(false).open(&path)?;
    /// assert!(!path.join("stats").exists());
    /// # Ok(()) }
    /// ```
    pub fn stats_file(mut self, keep: bool) -> Options {
        self.stats_file = keep;
        self
    }

    /// Where the time comes from that decides whether an entry has expired: for tests. Default [`SystemTime::now`]. It is called from any
    /// thread that reads or merges, and must not use the database.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// use psitri::{Expiry, KeyspaceOptions, Options};
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use std::time::{Duration, UNIX_EPOCH};
    /// let seconds = Arc::new(AtomicU64::new(1000));
    /// let clock = Arc::clone(&seconds);
    /// let db = Options::new()
    ///     .clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed)))
    ///     .in_memory()?;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(Duration::from_secs(60)))?;
    /// txn.commit()?;
    /// assert!(db.get(&ks, b"k")?.is_some());
    /// seconds.store(1060, Ordering::Relaxed);
    /// assert_eq!(db.get(&ks, b"k")?, None);
    /// # Ok(()) }
    /// ```
    pub fn clock(mut self, source: impl Fn() -> SystemTime + Send + Sync + 'static) -> Options {
        self.clock = Clock::new(source);
        self
    }

    /// Opens the database in directory `path`; creates it if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// psitri::Options::new().open(&path)?.close()?; // creates it
    /// psitri::Options::new().open(&path)?.close()?; // opens it
    /// # Ok(()) }
    /// ```
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_at(path.as_ref(), self, OpenKind::OpenOrCreate)
    }

    /// Creates a database in directory `path`; fails with [`Error::AlreadyExists`] if there is one, or as any opening does if
    /// somebody has it open.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Error, Options};
    /// Options::new().create(&path)?.close()?;
    /// assert!(matches!(Options::new().create(&path), Err(Error::AlreadyExists { .. })));
    /// # Ok(()) }
    /// ```
    pub fn create(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_at(path.as_ref(), self, OpenKind::Create)
    }

    /// Opens the database in directory `path`; fails with [`Error::NotFound`] if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Error, Options};
    /// assert!(matches!(Options::new().open_existing(&path), Err(Error::NotFound { .. })));
    /// # Ok(()) }
    /// ```
    pub fn open_existing(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_at(path.as_ref(), self, OpenKind::OpenExisting)
    }

    /// Opens the database for reading. Nothing in the directory is changed; several processes may read at once.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Error, Options};
    /// let db = Options::new().create(&path)?;
    /// let ks = db.create_keyspace("ks")?;
    /// drop(ks);
    /// db.close()?;
    ///
    /// let db = Options::new().open_read_only(&path)?;
    /// let ks = db.open_keyspace("ks")?;
    /// assert_eq!(db.get(&ks, b"k")?, None);
    /// assert!(matches!(db.begin(&[&ks]), Err(Error::ReadOnly)));
    /// # Ok(()) }
    /// ```
    pub fn open_read_only(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_at(path.as_ref(), self, OpenKind::ReadOnly)
    }

    /// Opens the database for reading beside a process that writes to it, as of its newest checkpoint. Commits after that are not seen:
    /// [`Database::refresh`] opens the newest checkpoint again. The writer goes on meanwhile, though its merges may wait up to 50 ms for one that has just begun to read, and nothing is written to its data or log.
    ///
    /// What the checkpoint has, with the part of the log that belongs to it, is a state that was committed, whole transactions of all
    /// keyspaces: everything committed before a [`Database::checkpoint`], and of one that the writer takes by itself what was merged by
    /// then, at the latest [`idle_flush`](Options::idle_flush) after the last commit all of it. The writer keeps it as long as the database is open here, and its file grows by what it replaces meanwhile: see
    /// [`Stats::readers_beside`](crate::Stats::readers_beside) and [`Event::SlowReader`]. It may end, and another may begin, without
    /// any effect on this. Without a writer it works as well; [`open_read_only`](Options::open_read_only) sees all commits then.
    ///
    /// The directory must be writable: readers are listed in files of their own, `reader-000` and so on. At most 256 at a time, on the
    /// machine of the writer; not over a network.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Database, Options};
    /// let writer = Database::open(&path)?; // usually in another process
    /// let ks = writer.keyspace("ks")?;
    /// let mut txn = writer.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// writer.checkpoint()?;
    ///
    /// let reader = Options::new().open_beside_writer(&path)?;
    /// let ks = reader.open_keyspace("ks")?;
    /// assert_eq!(reader.get(&ks, b"k")?.as_deref(), Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    pub fn open_beside_writer(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_at(path.as_ref(), self, OpenKind::BesideWriter)
    }

    /// A database in memory. It is gone when the last handle is dropped.
    ///
    /// It has no log and no checkpoints: what is said here about durability, the log, checkpoints, closing, and the file `stats` has no effect.
    /// Its trees and values have at most 64 GiB, beyond which writes fail as on a full disk.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// let db = psitri::Options::new().in_memory()?;
    /// let ks = db.keyspace("ks")?;
    /// assert_eq!(db.get(&ks, b"k")?, None);
    /// # Ok(()) }
    /// ```
    pub fn in_memory(self) -> Result<Database> {
        Database::open_in_memory(self)
    }

    pub(crate) fn check(&self) -> Result<()> {
        fn within<T: PartialOrd + fmt::Display>(
            option: &'static str,
            value: T,
            min: T,
            max: T,
        ) -> Result<()> {
            if value < min || value > max {
                let what = format!("{value} is outside {min} to {max}");
                return Err(Error::BadOption { option, what });
            }
            Ok(())
        }
        within("buffer_bytes", self.buffer_bytes, 256 << 10, 2 << 30)?;
        within("frozen_buffers", self.frozen_buffers_max(), 1, FROZEN_MAX)?;
        within("merge_threads", self.merge_threads, 1, 64)?;
        within(
            "wal_segment_bytes",
            self.wal_segment_bytes,
            64 << 10,
            1 << 30,
        )?;
        within("checkpoint_bytes", self.checkpoint_bytes, 1 << 20, 1 << 40)?;
        within("file_slack_percent", self.file_slack_percent, 10, 10_000)?;
        within(
            "map_reserve_bytes",
            self.map_reserve_bytes,
            16 << 20,
            1 << 46,
        )?;
        within(
            "async_interval (ms)",
            self.async_interval.as_millis(),
            1,
            3_600_000,
        )?;
        within(
            "slow_reader_after (ms)",
            self.slow_reader_after.as_millis(),
            1,
            86_400_000,
        )?;
        within(
            "idle_flush (ms)",
            self.idle_flush.as_millis(),
            10,
            3_600_000,
        )
    }
}

/// What `open_at` may find and may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenKind {
    OpenOrCreate,
    Create,
    OpenExisting,
    ReadOnly,
    BesideWriter,
}
