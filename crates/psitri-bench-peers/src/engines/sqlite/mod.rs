//! SQLite as a key-value store: one table `kv(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID`, whose rows lie in the key's own B-tree.
//!
//! Settings: journal in WAL mode, which lets readers and the writer run side by side and needs one flush a commit; the automatic checkpoint
//! stays at SQLite's 1,000 pages and works, because readers renew their snapshots; statements are prepared once a connection and reset
//! after each use; files are mapped up to SQLite's limit of 2 GiB, which saves a system call a page. One connection writes, behind a lock:
//! SQLite has one writer at a time anyhow, and waiting for a lock is cheaper than trying again. Each snapshot is a read transaction of
//! a connection of its own, taken from a pool and given back. A read of the newest state is a single SELECT outside of a transaction,
//! which SQLite makes one of its own for it. A bulk load inserts in the order of the keys, which fills the B-tree from left to right.
//!
//! Sync modes: `none` is `synchronous=OFF`; `async` is NORMAL, which flushes at checkpoints and survives a power failure without the
//! last commits; `sync` and `write-through` are FULL, a flush at each commit. SQLite has no group commit.
//!
//! Failures: a statement that does not end as it should is an error with SQLite's message; a busy checkpoint is an error, too.
pub mod sql;
mod statement;

use anyhow::{Context, Result, ensure};
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use rusqlite::{Connection, OpenFlags};
use statement::Statement;
use std::ffi::CStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const FILE_NAME: &str = "kv.sqlite";
/// The largest that SQLite is compiled for.
const MAPPED_BYTES_MAX: u64 = 0x7fff_0000;
/// The VFS of a database that one process has for itself, with as many connections as it likes: one lock for as long as it is open, and the index of the
/// log in the heap, where others call the system at the beginning and the end of each transaction.
const ONE_PROCESS: &CStr = c"unix-excl";

pub struct Sqlite {
    writer: Mutex<Connected>,
    /// Connections that no snapshot uses.
    readers: Mutex<Vec<Connected>>,
    directory: PathBuf,
    settings: Settings,
    // Held open for flushing until all connections are closed: closing any handle of a file gives up all of a process's locks on it.
    data: File,
    log: File,
}

/// A connection with its statements, which go first.
struct Connected {
    statements: Statements,
    connection: Connection,
}

struct Statements {
    get: Statement,
    put: Statement,
    delete: Statement,
    from_key: Statement,
    from_first: Statement,
    from_last: Statement,
    pop_first: Statement,
    pop_last: Statement,
    count: Statement,
    begin_write: Statement,
    begin_read: Statement,
    take_snapshot: Statement,
    commit: Statement,
    rollback: Statement,
}

pub fn synchronous(sync_mode: SyncMode) -> &'static str {
    match sync_mode {
        SyncMode::None => "OFF",
        SyncMode::Async => "NORMAL",
        SyncMode::Sync | SyncMode::WriteThrough => "FULL",
    }
}

impl Connected {
    fn open(directory: &Path, settings: &Settings, creates: bool) -> Result<Self> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if creates {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let file = directory.join(FILE_NAME);
        let connection = Connection::open_with_flags_and_vfs(&file, flags, ONE_PROCESS)
            .with_context(|| format!("cannot open {}", file.display()))?;
        let journal: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        ensure!(
            journal == "wal",
            "SQLite chose the journal mode {journal} instead of wal"
        );
        connection.pragma_update(None, "synchronous", synchronous(settings.sync_mode))?;
        connection.pragma_update(None, "mmap_size", MAPPED_BYTES_MAX as i64)?;
        // Negative is in KiB.
        let cache_kib = (settings.cache_bytes_or_common() >> 10) as i64;
        connection.pragma_update(None, "cache_size", -cache_kib)?;
        if creates {
            connection
                .execute_batch("CREATE TABLE kv(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")?;
        }
        let prepare = |sql: &str| Statement::prepare(&connection, sql);
        let statements = Statements {
            get: prepare("SELECT v FROM kv WHERE k = ?1")?,
            put: prepare(
                "INSERT INTO kv(k, v) VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET v = ?2",
            )?,
            delete: prepare("DELETE FROM kv WHERE k = ?1")?,
            from_key: prepare("SELECT k, v FROM kv WHERE k >= ?1 ORDER BY k")?,
            from_first: prepare("SELECT k, v FROM kv ORDER BY k")?,
            from_last: prepare("SELECT k, v FROM kv ORDER BY k DESC")?,
            // SQLite makes all changes before the first row.
            pop_first: prepare("DELETE FROM kv WHERE k = (SELECT min(k) FROM kv) RETURNING k, v")?,
            pop_last: prepare("DELETE FROM kv WHERE k = (SELECT max(k) FROM kv) RETURNING k, v")?,
            count: prepare("SELECT COUNT(*) FROM kv")?,
            begin_write: prepare("BEGIN IMMEDIATE")?,
            begin_read: prepare("BEGIN")?,
            take_snapshot: prepare("SELECT 1 FROM sqlite_schema LIMIT 1")?,
            commit: prepare("COMMIT")?,
            rollback: prepare("ROLLBACK")?,
        };
        Ok(Self {
            statements,
            connection,
        })
    }

    fn close(self) -> Result<()> {
        let Self {
            statements,
            connection,
        } = self;
        drop(statements);
        connection.close().map_err(|(_, error)| error.into())
    }

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.statements.get.bind(1, key)?;
        let found = self.statements.get.step();
        let result = found.map(|found| look(found.then(|| self.statements.get.column(0))));
        self.statements.get.reset();
        result
    }
}

impl Sqlite {
    fn start(path: &Path, settings: &Settings, creates: bool) -> Result<Self> {
        fs::create_dir_all(path)?;
        let writer = Connected::open(path, settings, creates)?;
        let file = |suffix: &str| {
            let path = path.join(format!("{FILE_NAME}{suffix}"));
            File::open(&path).with_context(|| format!("cannot open {}", path.display()))
        };
        // The log is there from the first statement on, and stays until the last connection is closed.
        let mut this = Self {
            data: file("")?,
            log: file("-wal")?,
            writer: Mutex::new(writer),
            readers: Mutex::new(Vec::new()),
            directory: path.to_owned(),
            settings: *settings,
        };
        this.readers = Mutex::new(vec![this.reader()?]);
        Ok(this)
    }

    fn reader(&self) -> Result<Connected> {
        Connected::open(&self.directory, &self.settings, false)
    }

    fn writer(&self) -> MutexGuard<'_, Connected> {
        // After a panic the batch was rolled back by its drop.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Connected>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of the pool, or a new one if all are in use.
    #[inline]
    fn lend(&self) -> Result<Connected> {
        let pooled = self.readers().pop();
        match pooled {
            Some(connected) => Ok(connected),
            None => self.reader(),
        }
    }
}

pub struct SqliteBatch<'a> {
    connected: MutexGuard<'a, Connected>,
    is_open: bool,
}

impl Writer for Sqlite {
    type Batch<'a> = SqliteBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<SqliteBatch<'_>> {
        let mut connected = self.writer();
        connected.statements.begin_write.run()?;
        Ok(SqliteBatch {
            connected,
            is_open: true,
        })
    }

    fn sync(&self) -> Result<()> {
        // Commits are in the log, and what a checkpoint took out of the log is in the data.
        self.log.sync_data()?;
        Ok(self.data.sync_data()?)
    }
}

impl Batch for SqliteBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.connected.read(key, look)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = &mut self.connected.statements.put;
        put.bind(1, key)?;
        put.bind(2, value)?;
        put.run()
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let delete = &mut self.connected.statements.delete;
        delete.bind(1, key)?;
        delete.run()
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let statements = &mut self.connected.statements;
        let pop = match end {
            End::First => &mut statements.pop_first,
            End::Last => &mut statements.pop_last,
        };
        let found = pop.step();
        if let Ok(true) = found {
            look(pop.column(0), pop.column(1));
        }
        pop.reset();
        found
    }

    #[inline]
    fn commit(mut self) -> Result<()> {
        self.connected.statements.commit.run()?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for SqliteBatch<'_> {
    fn drop(&mut self) {
        // An error that rolled the transaction back by itself leaves nothing to roll back.
        if self.is_open && !self.connected.connection.is_autocommit() {
            let _ = self.connected.statements.rollback.run();
        }
    }
}

impl Engine for Sqlite {
    const CAPABILITIES: Capabilities = Capabilities {
        none_risks_database: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = SqliteSnapshot<'a>;
    type Writes<'a> = SqliteBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        let mut lines = vec![
            "a table WITHOUT ROWID, keyed by the blob".to_owned(),
            "journal_mode WAL, wal_autocheckpoint 1000 pages".to_owned(),
            format!("synchronous {}", synchronous(settings.sync_mode)),
            format!(
                "VFS unix-excl, mmap_size {MAPPED_BYTES_MAX}, statements prepared once a connection"
            ),
            format!(
                "cache_size {} KiB a connection",
                settings.cache_bytes_or_common() >> 10
            ),
        ];
        lines.push("no compression, write buffer or merge threads: the engine has none".to_owned());
        Description {
            version: rusqlite::version().to_owned(),
            settings: lines,
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, true)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, false)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let mut batch = self.begin()?;
        for (key, value) in sorted {
            batch.put(key, value)?;
        }
        batch.commit()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<SqliteSnapshot<'_>> {
        let mut connected = self.lend()?;
        connected.statements.begin_read.run()?;
        // A transaction has its snapshot from the first read on.
        let read = connected.statements.take_snapshot.step();
        connected.statements.take_snapshot.reset();
        let snapshot = SqliteSnapshot {
            engine: self,
            connected: Some(connected),
        };
        ensure!(read?, "SQLite has no schema");
        Ok(snapshot)
    }

    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let mut connected = self.lend()?;
        let result = connected.read(key, look)?;
        // One that failed is not used again.
        self.readers().push(connected);
        Ok(result)
    }

    #[inline]
    fn begin_writes(&self) -> Result<SqliteBatch<'_>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        {
            let writer = self.writer();
            let busy: i64 =
                writer
                    .connection
                    .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
            ensure!(busy == 0, "a snapshot kept the checkpoint from completing");
        }
        self.sync()
    }

    fn compact(&mut self) -> Result<bool> {
        self.writer().connection.execute_batch("VACUUM")?;
        self.checkpoint()?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let writer = self.writer();
        let pragma = |name: &str| -> Result<u64> {
            let value: i64 = writer
                .connection
                .pragma_query_value(None, name, |row| row.get(0))?;
            Ok(value as u64)
        };
        let pages = pragma("page_count")? - pragma("freelist_count")?;
        Ok(EngineSizes {
            reachable_bytes: Some(pages * pragma("page_size")?),
            data_bytes: Some(self.data.metadata()?.len()),
            log_bytes: Some(self.log.metadata()?.len()),
        })
    }

    /// The last connection checkpoints the log and removes it.
    fn close(self) -> Result<()> {
        let readers = self
            .readers
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for reader in readers {
            reader.close()?;
        }
        let writer = self.writer.into_inner();
        writer.unwrap_or_else(PoisonError::into_inner).close()
    }
}

pub struct SqliteSnapshot<'a> {
    engine: &'a Sqlite,
    /// Present until dropped.
    connected: Option<Connected>,
}

impl SqliteSnapshot<'_> {
    #[inline]
    fn connected(&mut self) -> Result<&mut Connected> {
        self.connected.as_mut().context("the snapshot is closed")
    }
}

impl Drop for SqliteSnapshot<'_> {
    fn drop(&mut self) {
        if let Some(mut connected) = self.connected.take() {
            // A connection whose transaction does not end is not used again.
            if connected.statements.commit.run().is_ok() {
                self.engine.readers().push(connected);
            }
        }
    }
}

impl Snapshot for SqliteSnapshot<'_> {
    type Cursor<'c>
        = SqliteCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.connected()?.read(key, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let rows = &mut self.connected()?.statements.from_first;
        let mut outcome = rows.step();
        while let Ok(true) = outcome {
            each(rows.column(0), rows.column(1));
            outcome = rows.step();
        }
        rows.reset();
        outcome.map(drop)
    }

    fn cursor(&mut self) -> Result<SqliteCursor<'_>> {
        Ok(SqliteCursor {
            connected: self.connected()?,
            way: Way::First,
            on_entry: false,
        })
    }

    fn count(&mut self) -> Result<u64> {
        let count = &mut self.connected()?.statements.count;
        let row = count.step();
        let entries = count.integer(0);
        count.reset();
        ensure!(row?, "COUNT returned no row");
        Ok(entries as u64)
    }
}

/// A statement that was bound and stepped; moving on is stepping.
pub struct SqliteCursor<'c> {
    connected: &'c mut Connected,
    way: Way,
    on_entry: bool,
}

#[derive(Clone, Copy)]
enum Way {
    Key,
    First,
    Last,
}

impl SqliteCursor<'_> {
    #[inline]
    fn rows(&mut self) -> &mut Statement {
        match self.way {
            Way::Key => &mut self.connected.statements.from_key,
            Way::First => &mut self.connected.statements.from_first,
            Way::Last => &mut self.connected.statements.from_last,
        }
    }

    #[inline]
    fn start(&mut self, way: Way, key: Option<&[u8]>) -> Result<bool> {
        self.rows().reset();
        self.way = way;
        self.on_entry = false;
        let rows = self.rows();
        if let Some(key) = key {
            rows.bind(1, key)?;
        }
        self.step()
    }

    #[inline]
    fn step(&mut self) -> Result<bool> {
        self.on_entry = self.rows().step()?;
        Ok(self.on_entry)
    }
}

impl Cursor for SqliteCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.start(Way::Key, Some(key))
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.start(Way::First, None)
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.start(Way::Last, None)
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        // A statement that is stepped after its end begins again.
        if !self.on_entry {
            return Ok(false);
        }
        self.step()
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        self.next()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let rows = match self.way {
            Way::Key => &self.connected.statements.from_key,
            Way::First => &self.connected.statements.from_first,
            Way::Last => &self.connected.statements.from_last,
        };
        self.on_entry.then(|| (rows.column(0), rows.column(1)))
    }
}

impl Drop for SqliteCursor<'_> {
    fn drop(&mut self) {
        self.rows().reset();
    }
}
