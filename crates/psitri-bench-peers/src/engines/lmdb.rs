//! LMDB, through heed. A copy-on-write B+tree in a memory map; one writer at a time, readers that never wait.
//!
//! Settings: `MDB_WRITEMAP`, which LMDB documents as its faster way to write, where commits are not flushed. Where they are it is the slower one: a
//! commit then flushes all pages of the map that are in use, where else it writes and flushes those that it changed. Read transactions are not tied to
//! threads, for a workload may hold two at once. The map has four times the bytes that the workload is going to keep, at least 16 GiB:
//! addresses cost nothing, and a map that is full ends the run. LMDB has no cache, write buffer, merge or compression of its own.
//!
//! Durability: `none` is `MDB_NOSYNC`. A commit is in the map when it returns and survives the process, but without flushes the order of
//! page writes is up to the system, so that a power failure may cost the whole database, not only the newest commits. `async` is the same
//! with a flush every 100 ms; `sync` and `write-through` are LMDB's default, a flush at each commit, by the only writer.
//!
//! Keys have up to 511 bytes. A file becomes smaller only by copying it, without its free pages: compaction makes such a copy, puts it in
//! the place of the file and opens that. In `none` the copy is not flushed, in the other modes it is before it replaces anything.
#![allow(unsafe_code)] // heed leaves it to its user that nobody else changes the mapped file, and that nobody looks at what was deleted.
use crate::flusher::{Flusher, INTERVAL};
use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{
    CompactionOption, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn, WithoutTls,
};
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use std::fs::{self, File};
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// Checked against the lock file by a test.
pub const VERSION: &str = "0.9.70 (heed 0.22.1)";

/// LMDB names them so.
const FILE_NAME: &str = "data.mdb";
const LOCK_FILE_NAME: &str = "lock.mdb";
const COPY_NAME: &str = "compacted.mdb";

const MAP_BYTES_MIN: u64 = 16 << 30;
const READERS_MAX: u32 = 512;

type Tree = Database<Bytes, Bytes>;

pub struct Lmdb {
    /// Absent after a compaction that could not open the file again.
    opened: Option<Opened>,
    flusher: Option<Flusher>,
    path: PathBuf,
    settings: Settings,
}

struct Opened {
    env: Env<WithoutTls>,
    tree: Tree,
}

pub struct LmdbBatch<'a> {
    transaction: RwTxn<'a>,
    tree: Tree,
}

pub struct LmdbSnapshot<'a> {
    transaction: RoTxn<'a, WithoutTls>,
    tree: Tree,
}

enum Entries<'c> {
    None,
    Forward(heed::RoRange<'c, Bytes, Bytes>),
    Backward(heed::RoRevRange<'c, Bytes, Bytes>),
}

pub struct LmdbCursor<'c> {
    transaction: &'c RoTxn<'c, WithoutTls>,
    tree: Tree,
    entries: Entries<'c>,
    at: Option<(&'c [u8], &'c [u8])>,
}

fn map_bytes(settings: &Settings) -> u64 {
    let wanted = settings.data_bytes_expected.unwrap_or(0).saturating_mul(4);
    wanted.max(MAP_BYTES_MIN).next_multiple_of(1 << 20)
}

fn flushes_commits(settings: &Settings) -> bool {
    matches!(settings.sync_mode, SyncMode::Sync | SyncMode::WriteThrough)
}

fn open_env(path: &Path, settings: &Settings) -> Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options
        .map_size(usize::try_from(map_bytes(settings))?)
        .max_readers(READERS_MAX);
    let flags = if flushes_commits(settings) {
        EnvFlags::empty()
    } else {
        EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC
    };
    // SAFETY: the flags are ones that heed documents as safe for a file that only this process has open, and the benchmark's database is
    // in a directory of its own that nobody else touches.
    unsafe {
        options.flags(flags);
        Ok(options.open(path)?)
    }
}

impl Lmdb {
    fn new(env: Env<WithoutTls>, tree: Tree, path: &Path, settings: &Settings) -> Result<Self> {
        let flusher = match settings.sync_mode {
            SyncMode::Async => {
                let env = env.clone();
                Some(Flusher::new(move || Ok(env.force_sync()?))?)
            }
            _ => None,
        };
        Ok(Self {
            opened: Some(Opened { env, tree }),
            flusher,
            path: path.to_owned(),
            settings: *settings,
        })
    }

    #[inline]
    fn opened(&self) -> Result<&Opened> {
        self.opened
            .as_ref()
            .context("the database could not be opened again after a compaction")
    }

    /// Ends the thread, then the environment.
    fn shut(&mut self) -> Result<()> {
        // Ended before the environment is waited for, whatever the outcome of its flushes.
        let flushed = self.flusher.take().map_or(Ok(()), Flusher::finish);
        if let Some(opened) = self.opened.take() {
            opened.env.prepare_for_closing().wait();
        }
        flushed
    }

    /// Whether files are flushed at all when nobody asks.
    fn flushes(&self) -> bool {
        self.settings.sync_mode != SyncMode::None
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
}

impl Writer for Lmdb {
    type Batch<'a> = LmdbBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<LmdbBatch<'_>> {
        let opened = self.opened()?;
        Ok(LmdbBatch {
            transaction: opened.env.write_txn()?,
            tree: opened.tree,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.opened()?.env.force_sync()?)
    }
}

impl Batch for LmdbBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.tree.get(&self.transaction, key)?))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.tree.put(&mut self.transaction, key, value)?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.tree.delete(&mut self.transaction, key)?;
        Ok(())
    }

    /// By one cursor: a second search would find what it stands on.
    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        match end {
            End::First => {
                let mut entries = self.tree.iter_mut(&mut self.transaction)?;
                let Some((key, value)) = entries.next().transpose()? else {
                    return Ok(false);
                };
                look(key, value);
                // SAFETY: neither key nor value is looked at any more.
                Ok(unsafe { entries.del_current()? })
            }
            End::Last => {
                let mut entries = self.tree.rev_iter_mut(&mut self.transaction)?;
                let Some((key, value)) = entries.next().transpose()? else {
                    return Ok(false);
                };
                look(key, value);
                // SAFETY: as above.
                Ok(unsafe { entries.del_current()? })
            }
        }
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
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
            version: VERSION.to_owned(),
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
        let env = open_env(path, settings)?;
        let mut transaction = env.write_txn()?;
        let tree = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Self::new(env, tree, path, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let env = open_env(path, settings)?;
        let transaction = env.read_txn()?;
        let tree = env
            .open_database(&transaction, None)?
            .context("there is no database in the file")?;
        // Committed, so that the handle outlives the transaction.
        transaction.commit()?;
        Self::new(env, tree, path, settings)
    }

    /// In the order of the keys, at the end of the tree as long as nothing is behind them.
    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = entries.collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let Opened { env, tree } = self.opened()?;
        let mut transaction = env.write_txn()?;
        let last = tree.last(&transaction)?.map(|(key, _)| key.to_vec());
        for (key, value) in sorted {
            let flags = match &last {
                Some(last) if key <= last.as_slice() => PutFlags::empty(),
                _ => PutFlags::APPEND,
            };
            tree.put_with_flags(&mut transaction, flags, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<LmdbSnapshot<'_>> {
        let opened = self.opened()?;
        Ok(LmdbSnapshot {
            transaction: opened.env.read_txn()?,
            tree: opened.tree,
        })
    }

    #[inline]
    fn begin_writes(&self) -> Result<LmdbBatch<'_>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// LMDB compacts by copying: the copy takes the place of the file, which is opened again.
    fn compact(&mut self) -> Result<bool> {
        let copy = self
            .opened()?
            .env
            .copy_to_path(self.path.join(COPY_NAME), CompactionOption::Enabled)?;
        if self.flushes() {
            copy.sync_all()?;
        }
        let replaced = self.shut().and_then(|()| self.put_copy_in_place());
        // Opened in any case: without the copy in its place, the old file is as good as it was.
        *self = Self::open(&self.path, &self.settings)?;
        replaced?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let opened = self.opened()?;
        let transaction = opened.env.read_txn()?;
        let tree = opened.tree.stat(&transaction)?;
        let page_bytes = u64::from(tree.page_size);
        let pages = tree.branch_pages + tree.leaf_pages + tree.overflow_pages;
        Ok(EngineSizes {
            reachable_bytes: Some(pages as u64 * page_bytes),
            data_bytes: Some((opened.env.info().last_page_number as u64 + 1) * page_bytes),
            log_bytes: None,
        })
    }

    fn close(mut self) -> Result<()> {
        self.shut()
    }
}

impl Snapshot for LmdbSnapshot<'_> {
    type Cursor<'c>
        = LmdbCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.tree.get(&self.transaction, key)?))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.tree.iter(&self.transaction)? {
            let (key, value) = entry?;
            each(key, value);
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<LmdbCursor<'_>> {
        Ok(LmdbCursor {
            transaction: &self.transaction,
            tree: self.tree,
            entries: Entries::None,
            at: None,
        })
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.tree.len(&self.transaction)?)
    }
}

impl<'c> LmdbCursor<'c> {
    #[inline]
    fn forward(&mut self, from: Bound<&[u8]>) -> Result<bool> {
        let range = (from, Bound::Unbounded);
        self.entries = Entries::Forward(self.tree.range(self.transaction, &range)?);
        self.next()
    }
}

impl Cursor for LmdbCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.forward(Bound::Included(key))
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.forward(Bound::Unbounded)
    }

    fn seek_last(&mut self) -> Result<bool> {
        let all: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);
        self.entries = Entries::Backward(self.tree.rev_range(self.transaction, &all)?);
        self.prev()
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        self.at = match &mut self.entries {
            Entries::Forward(entries) => entries.next().transpose()?,
            _ => None,
        };
        Ok(self.at.is_some())
    }

    #[inline]
    fn prev(&mut self) -> Result<bool> {
        self.at = match &mut self.entries {
            Entries::Backward(entries) => entries.next().transpose()?,
            _ => None,
        };
        Ok(self.at.is_some())
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.at
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
}
