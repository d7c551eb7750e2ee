//! LMDB, from the crate `lmdb-master-sys`, which has the source of its branch `mdb.master`. A copy-on-write B+tree in a memory map; one writer
//! at a time, readers that never wait.
//!
//! Not through heed, the safe crate over the same source: it can neither renew a reader nor seek with a cursor that it has, so that each
//! snapshot takes the lock of the readers' table and each seek makes a cursor. An application in C does not pay for that.
//!
//! Settings: `MDB_WRITEMAP`, which LMDB documents as its faster way to write, where commits are not flushed. Where they are it is the slower one: a
//! commit then flushes all pages of the map that are in use, where else it writes and flushes those that it changed. Read transactions are not tied to
//! threads (`MDB_NOTLS`), for a workload may hold two at once. The map has four times the bytes that the workload is going to keep, at least 16 GiB:
//! addresses cost nothing, and a map that is full ends the run. LMDB has no cache, write buffer, merge or compression of its own.
//!
//! Durability: `none` is `MDB_NOSYNC`. A commit is in the map when it returns and survives the process, but without flushes the order of
//! page writes is up to the system, so that a power failure may cost the whole database, not only the newest commits. `async` is the same
//! with a flush every 100 ms; `sync` and `write-through` are LMDB's default, a flush at each commit, by the only writer.
//!
//! A snapshot is a reader of this thread's pool, renewed and reset, which keeps its slot; a cursor is one of LMDB's, kept over seeks. To
//! retain or extract is one transaction with a cursor that deletes what it is on. Bulk load sorts the entries and adds them with
//! `MDB_APPEND`. Keys have 1 to 511 bytes: LMDB refuses the empty key, and a seek to it is to the first entry. A file becomes smaller only by
//! copying it, without its free pages: compaction makes such a copy, puts it in the place of the file and opens that. In `none` the copy is
//! not flushed, in the other modes it is before it replaces anything.
//! Failures: those of LMDB, with its messages.
mod raw;

use crate::flusher::{Flusher, INTERVAL};
use crate::reader_pool::ReaderPool;
use anyhow::{Context, Result, ensure};
use lmdb_master_sys as ffi;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use raw::{Entries, Environment, ReadTransaction, WriteTransaction};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// LMDB names them so.
const FILE_NAME: &str = "data.mdb";
const LOCK_FILE_NAME: &str = "lock.mdb";
const COPY_NAME: &str = "compacted.mdb";

const MAP_BYTES_MIN: u64 = 16 << 30;
const READERS_MAX: u32 = 512;

pub struct Lmdb {
    // Readers and the thread end before the environment.
    readers: ReaderPool<ReadTransaction>,
    flusher: Option<Flusher>,
    /// Absent after a compaction that could not open the file again.
    environment: Option<Arc<Environment>>,
    path: PathBuf,
    settings: Settings,
}

fn map_bytes(settings: &Settings) -> u64 {
    let wanted = settings.data_bytes_expected.unwrap_or(0).saturating_mul(4);
    wanted.max(MAP_BYTES_MIN).next_multiple_of(1 << 20)
}

fn flushes_commits(settings: &Settings) -> bool {
    matches!(settings.sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

impl Lmdb {
    fn start(path: &Path, settings: &Settings) -> Result<Self> {
        let flags = match flushes_commits(settings) {
            true => 0,
            false => ffi::MDB_WRITEMAP | ffi::MDB_NOSYNC,
        };
        let map_bytes = usize::try_from(map_bytes(settings))?;
        let environment = Arc::new(Environment::open(path, flags, map_bytes, READERS_MAX)?);
        let flusher = (settings.sync_mode == SyncMode::Async)
            .then(|| {
                let environment = Arc::clone(&environment);
                Flusher::new(move || environment.sync())
            })
            .transpose()?;
        Ok(Self {
            readers: ReaderPool::new(),
            flusher,
            environment: Some(environment),
            path: path.to_owned(),
            settings: *settings,
        })
    }

    #[inline]
    fn environment(&self) -> Result<&Environment> {
        self.environment
            .as_deref()
            .context("the database could not be opened again after a compaction")
    }

    /// Ends readers, thread and environment, in this order.
    fn shut(&mut self) -> Result<()> {
        self.readers.clear();
        // Ended before the environment is taken apart, whatever the outcome of its flushes.
        let flushed = self.flusher.take().map_or(Ok(()), Flusher::finish);
        if let Some(environment) = self.environment.take() {
            drop(Arc::into_inner(environment).context("the database is in use")?);
        }
        flushed
    }

    /// Whether files are flushed at all when nobody asks.
    fn flushes(&self) -> bool {
        self.settings.sync_mode != SyncMode::None
    }

    /// A copy without free pages beside the data file.
    fn write_copy(&self) -> Result<()> {
        let environment = self.environment()?;
        let path = self.path.join(COPY_NAME);
        let copy = File::create(&path)?;
        let mut written = environment.copy_compacted(&copy);
        if self.flushes() {
            written = written.and_then(|()| Ok(copy.sync_all()?));
        }
        if written.is_err() {
            // What is told is the first failure.
            let _left = fs::remove_file(&path);
        }
        written
    }

    /// Puts the copy in the place of the data file, which is closed.
    fn put_copy_in_place(&self) -> Result<()> {
        fs::rename(self.path.join(COPY_NAME), self.path.join(FILE_NAME))?;
        // It described the old file. LMDB makes another.
        fs::remove_file(self.path.join(LOCK_FILE_NAME))?;
        if self.flushes() {
            File::open(&self.path)?.sync_all()?;
        }
        Ok(())
    }

    fn remove_where(
        &self,
        range: Option<Range<&[u8]>>,
        is_unwanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let mut transaction = self.environment()?.begin_write()?;
        let removed = transaction.remove_where(range, is_unwanted)?;
        transaction.commit()?;
        Ok(removed)
    }
}

pub struct LmdbBatch<'a>(WriteTransaction<'a>);

impl Writer for Lmdb {
    type Batch<'a> = LmdbBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<LmdbBatch<'_>> {
        Ok(LmdbBatch(self.environment()?.begin_write()?))
    }

    fn sync(&self) -> Result<()> {
        self.environment()?.sync()
    }
}

impl Batch for LmdbBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.0.get(key)?))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.delete(key)
    }

    /// By one cursor: a second search would find what it stands on.
    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        self.0.pop(end == End::First, look)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.0.commit()
    }
}

impl Engine for Lmdb {
    const CAPABILITIES: Capabilities = Capabilities {
        none_risks_database: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = LmdbSnapshot<'a>;
    type Writes<'a> = LmdbBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => {
                "MDB_NOSYNC: survives the process; a power failure may cost the database".to_owned()
            }
            SyncMode::Async => format!(
                "MDB_NOSYNC and mdb_env_sync every {} ms; a power failure may cost the database",
                INTERVAL.as_millis()
            ),
            SyncMode::Sync => "a flush at each commit".to_owned(),
            SyncMode::WriteThrough => {
                "a flush at each commit, as in sync: there is one writer".to_owned()
            }
        };
        Description {
            version: raw::version(),
            settings: vec![
                sync,
                match flushes_commits(settings) {
                    true => "no MDB_WRITEMAP",
                    false => "MDB_WRITEMAP",
                }
                .to_owned(),
                format!("map of {} MiB", map_bytes(settings) >> 20),
                "no cache, write buffer, merges or compression: the engine has none".to_owned(),
            ],
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        fs::create_dir_all(path)?;
        Self::start(path, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        // LMDB would make one.
        ensure!(
            path.join(FILE_NAME).exists(),
            "there is no database in {}",
            path.display()
        );
        Self::start(path, settings)
    }

    /// In the order of the keys, at the end of the tree as long as nothing is behind them.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let mut transaction = self.environment()?.begin_write()?;
        let last = transaction.last_key()?;
        for (key, value) in sorted {
            match &last {
                Some(last) if key <= last.as_slice() => transaction.put(key, value)?,
                _ => transaction.append(key, value)?,
            }
        }
        transaction.commit()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<LmdbSnapshot<'_>> {
        let reader = match self.readers.take() {
            Some(mut reader) => {
                reader.renew()?;
                reader
            }
            None => self.environment()?.begin_read()?,
        };
        Ok(LmdbSnapshot {
            engine: self,
            reader: Some(reader),
        })
    }

    #[inline]
    fn begin_writes(&self) -> Result<LmdbBatch<'_>> {
        self.begin()
    }

    fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.remove_where(None, |key, value| !keep(key, value))
            .map(drop)
    }

    fn extract(
        &self,
        range: Range<&[u8]>,
        wanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        self.remove_where(Some(range), wanted)
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// LMDB compacts by copying: the copy takes the place of the file, which is opened again.
    fn compact(&mut self) -> Result<bool> {
        self.write_copy()?;
        let replaced = self.shut().and_then(|()| self.put_copy_in_place());
        // Opened in any case: without the copy in its place, the old file is as good as it was.
        *self = Self::open(&self.path, &self.settings)?;
        replaced?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let info = self.environment()?.info()?;
        let snapshot = self.snapshot(ReadMode::Latest)?;
        let stat = snapshot.reader()?.stat()?;
        let page_bytes = u64::from(stat.ms_psize);
        let pages = stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
        Ok(EngineSizes {
            reachable_bytes: Some(pages as u64 * page_bytes),
            data_bytes: Some((info.me_last_pgno as u64 + 1) * page_bytes),
            log_bytes: None,
        })
    }

    fn close(mut self) -> Result<()> {
        self.shut()
    }
}

pub struct LmdbSnapshot<'a> {
    engine: &'a Lmdb,
    /// Present until dropped.
    reader: Option<ReadTransaction>,
}

impl LmdbSnapshot<'_> {
    #[inline]
    fn reader(&self) -> Result<&ReadTransaction> {
        self.reader.as_ref().context("the snapshot is closed")
    }
}

impl Drop for LmdbSnapshot<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            reader.reset();
            self.engine.readers.give(reader);
        }
    }
}

impl Snapshot for LmdbSnapshot<'_> {
    type Cursor<'c>
        = LmdbCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.reader()?.get(key)?))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut entries = self.reader()?.cursor()?;
        entries.first()?;
        while let Some((key, value)) = entries.entry() {
            each(key, value);
            entries.next()?;
        }
        Ok(())
    }

    #[inline]
    fn cursor(&mut self) -> Result<LmdbCursor<'_>> {
        Ok(LmdbCursor(self.reader()?.cursor()?))
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.reader()?.stat()?.ms_entries as u64)
    }
}

pub struct LmdbCursor<'c>(Entries<'c>);

impl Cursor for LmdbCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.0.seek(key)
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.0.first()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.0.last()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        self.0.next()
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        self.0.previous()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.0.entry()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u32 = 20_000;

    fn write_all(engine: &Lmdb) -> Result<()> {
        let mut batch = engine.begin()?;
        for number in 0..ENTRIES {
            Batch::put(&mut batch, &number.to_be_bytes(), &[1; 200])?;
        }
        Batch::commit(batch)?;
        assert_eq!(count(engine)?, u64::from(ENTRIES));
        Ok(())
    }

    fn count(engine: &Lmdb) -> Result<u64> {
        engine.snapshot(ReadMode::Latest)?.count()
    }

    #[test]
    fn compaction_makes_the_file_smaller_in_every_mode() -> Result<()> {
        for sync_mode in [
            SyncMode::None,
            SyncMode::Async,
            SyncMode::Sync,
            SyncMode::WriteThrough,
        ] {
            let settings = Settings {
                sync_mode,
                ..Settings::default()
            };
            let directory = tempfile::tempdir()?;
            let mut engine = Lmdb::create(directory.path(), &settings)?;
            write_all(&engine)?;
            let mut batch = engine.begin()?;
            for number in 100..ENTRIES {
                Batch::delete(&mut batch, &number.to_be_bytes())?;
            }
            Batch::commit(batch)?;
            let before = engine.sizes()?.data_bytes;
            assert!(engine.compact()?);
            assert_eq!(count(&engine)?, 100, "{sync_mode:?}");
            let after = engine.sizes()?.data_bytes;
            assert!(
                after < before.map(|bytes| bytes / 10),
                "{sync_mode:?}: {before:?} bytes before and {after:?} after"
            );
            assert!(!directory.path().join(COPY_NAME).exists());
            write_all(&engine)?;
            engine.close()?;
        }
        Ok(())
    }

    #[test]
    fn a_compaction_that_fails_leaves_the_database_open() -> Result<()> {
        let settings = Settings {
            sync_mode: SyncMode::Async,
            ..Settings::default()
        };
        let directory = tempfile::tempdir()?;
        let mut engine = Lmdb::create(directory.path(), &settings)?;
        fs::create_dir(directory.path().join(COPY_NAME))?;
        assert!(engine.compact().is_err());
        write_all(&engine)?;
        engine.close()
    }

    /// The keys `a` to `f` with values that are equal to them, where `b` and `d` were there before the others.
    fn letters() -> Result<(tempfile::TempDir, Lmdb)> {
        let directory = tempfile::tempdir()?;
        let engine = Lmdb::create(directory.path(), &Settings::default())?;
        let loads: [&[&[u8]]; 2] = [&[b"d", b"b"], &[b"e", b"a", b"f", b"c"]];
        for keys in loads {
            engine.bulk_load(keys.iter().map(|key| (*key, *key)))?;
        }
        Ok((directory, engine))
    }

    #[test]
    fn entries_are_loaded_between_and_behind_others() -> Result<()> {
        let (_directory, engine) = letters()?;
        let mut found = Vec::new();
        engine.snapshot(ReadMode::Latest)?.scan(|key, value| {
            assert_eq!(key, value);
            found.extend_from_slice(key);
        })?;
        assert_eq!(found, b"abcdef");
        engine.close()
    }

    #[test]
    fn the_empty_key_is_refused_and_a_seek_to_it_is_to_the_first_entry() -> Result<()> {
        let (_directory, engine) = letters()?;
        let mut batch = engine.begin()?;
        assert!(Batch::put(&mut batch, b"", b"value").is_err());
        drop(batch);
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        for key in [b"c".as_slice(), b""] {
            assert!(cursor.seek(key)?);
        }
        assert_eq!(cursor.entry(), Some((b"a".as_slice(), b"a".as_slice())));
        Ok(())
    }

    #[test]
    fn a_cursor_may_be_moved_after_it_found_nothing() -> Result<()> {
        let (_directory, engine) = letters()?;
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        assert!(!cursor.seek(b"g")?);
        assert!(!cursor.next()?);
        assert!(cursor.seek(b"bb")?);
        assert_eq!(cursor.entry(), Some((b"c".as_slice(), b"c".as_slice())));
        assert!(cursor.seek_first()?);
        assert!(!cursor.prev()?);
        assert!(cursor.seek(b"f")?);
        assert!(!cursor.next()?);
        assert_eq!(cursor.entry(), None);
        assert!(cursor.seek_last()?);
        assert_eq!(cursor.entry(), Some((b"f".as_slice(), b"f".as_slice())));
        Ok(())
    }

    #[test]
    fn readers_are_used_again_and_see_what_is_newest() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let engine = Lmdb::create(directory.path(), &Settings::default())?;
        for number in 0..2 * READERS_MAX {
            let mut batch = engine.begin()?;
            Batch::put(&mut batch, b"number", &number.to_be_bytes())?;
            let older = engine.snapshot(ReadMode::Latest)?;
            Batch::commit(batch)?;
            let mut newer = engine.snapshot(ReadMode::Latest)?;
            let is_newest = newer.read(b"number", |found| {
                found == Some(number.to_be_bytes().as_slice())
            })?;
            assert!(is_newest, "{number}");
            drop(older);
        }
        assert_eq!(engine.environment()?.info()?.me_numreaders, 2);
        engine.close()
    }

    #[test]
    fn nothing_is_opened_where_nothing_was_created() -> Result<()> {
        let directory = tempfile::tempdir()?;
        assert!(Lmdb::open(directory.path(), &Settings::default()).is_err());
        Ok(())
    }
}
