//! libmdbx 0.14, from the crate `mdbx-sys`, which has the newest source of all crates that bring one (others have 0.13).
//!
//! Settings: a file that may grow to sixteen times what the workload expects to keep, at least 64 GiB, in steps of 128 MiB, so that growing
//! is rare (a step also makes a flush in `async`); its addresses are reserved when it is opened, so that it grows in place under WRITEMAP
//! too. LIFORECLAIM, which reuses the pages freed last and is compatible with all sync modes; NOMEMINIT.
//!
//! Sync modes: `none` is UTTERLY_NOSYNC with WRITEMAP, libmdbx's equivalent of LMDB's NOSYNC with WRITEMAP, without the options `sync_bytes`
//! and `sync_period`: pages are reused without a flush in between, and nothing is flushed unless `sync` or `checkpoint` ask for it, nor when
//! the database is closed (`dont_sync`); only the three pages of the roots are, when the first page that a flushed root needs is to be reused,
//! which is once after creation or after a flush that was asked for. A commit is in a shared map, so in the kernel's hands, when it returns, and survives the death
//! of the process. What was never flushed ends with a root that libmdbx calls weak. It opens with such a root as long as the system has
//! not been started anew since, which it knows from the system's boot id; afterwards it goes back to a root that was flushed, or finds the
//! database unusable if there is none any more. A power failure may cost the whole database, as with LMDB.
//!
//! [`MdbxSafe`] differs in `none` alone: SAFE_NOSYNC with WRITEMAP, the fastest mode of libmdbx in which a power failure costs the newest commits
//! and never the database. It may reuse no page that the last flushed root needs; a flush is therefore asked for after every 64 MiB (`sync_bytes`),
//! by the commit that comes to it, and it flushes when it is closed.
//!
//! `async` is SAFE_NOSYNC with a flush every tenth of a second, by a thread. It cannot corrupt the file, but frees no page for reuse until the
//! next flush, so the file becomes larger by every commit; a flush is therefore asked for after every 64 MiB as well (`sync_bytes`),
//! which the documentation offers for this. `sync` and `write-through` are SYNC_DURABLE: data, then the root, both flushed. These have no
//! WRITEMAP, as is libmdbx's default: a stray store of the process could otherwise reach the file.
//!
//! Bulk load sorts the entries and adds them with APPEND. Compaction copies what is reachable to another file, which then takes the place
//! of the first.
//!
//! One writer at a time; a snapshot is a reader of this thread's pool, renewed and reset, which keeps its slot, of which there are at least
//! 512. To retain or extract is one transaction with a cursor that deletes what it is on. Keys can have up to 2,022 bytes.
//! Failures: those of libmdbx, with its messages.
mod raw;

use crate::flusher::{Flusher, INTERVAL};
use crate::reader_pool::ReaderPool;
use anyhow::{Context, Result};
use mdbx_sys as ffi;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, SyncMode, Writer,
};
use raw::{Entries, Environment, Geometry, ReadTransaction, WriteTransaction};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_NAME: &str = "data.mdbx";
/// libmdbx names it so.
const LOCK_FILE_NAME: &str = "data.mdbx-lck";
const COPY_NAME: &str = "compacted.mdbx";
const LOWER_BYTES: u64 = 1 << 20;
const UPPER_BYTES_MIN: u64 = 64 << 30;
const GROWTH_STEP_BYTES: u64 = 128 << 20;
const SYNC_BYTES: u64 = 64 << 20;
/// Threads do not share the readers of their pools, and libmdbx has only about 120 slots by default.
const READERS_MAX: u64 = 512;

/// UTTERLY_NOSYNC in `none`.
pub type Mdbx = MdbxIn<false>;
/// SAFE_NOSYNC in `none`.
pub type MdbxSafe = MdbxIn<true>;

pub struct MdbxIn<const SAFE: bool> {
    // Readers and the thread end before the environment.
    readers: ReaderPool<ReadTransaction>,
    flusher: Option<Flusher>,
    /// Absent after a compaction that could not open the file again.
    environment: Option<Arc<Environment>>,
    path: PathBuf,
    settings: Settings,
}

fn flags(sync_mode: SyncMode, safe: bool) -> ffi::MDBX_env_flags_t {
    let sync = match sync_mode {
        SyncMode::None if safe => ffi::MDBX_SAFE_NOSYNC | ffi::MDBX_WRITEMAP,
        SyncMode::None => ffi::MDBX_UTTERLY_NOSYNC | ffi::MDBX_WRITEMAP,
        SyncMode::Async => ffi::MDBX_SAFE_NOSYNC,
        SyncMode::Sync | SyncMode::WriteThrough => ffi::MDBX_SYNC_DURABLE,
    };
    sync | ffi::MDBX_LIFORECLAIM | ffi::MDBX_NOMEMINIT
}

fn geometry(settings: &Settings) -> Geometry {
    let expected = settings.data_bytes_expected.unwrap_or(0);
    Geometry {
        lower: LOWER_BYTES,
        now: None,
        upper: expected.saturating_mul(16).clamp(UPPER_BYTES_MIN, 1 << 42),
        growth_step: GROWTH_STEP_BYTES,
        shrink_threshold: 2 * GROWTH_STEP_BYTES,
    }
}

/// As small steps as a compacted copy's length is rounded up to. The step is in the file, and a file that is opened with another changes its
/// length: so it is opened with this one and given its own back afterwards.
fn tight_geometry(settings: &Settings) -> Geometry {
    Geometry {
        growth_step: LOWER_BYTES,
        ..geometry(settings)
    }
}

impl<const SAFE: bool> MdbxIn<SAFE> {
    fn start(path: &Path, settings: &Settings, geometry: &Geometry, creates: bool) -> Result<Self> {
        fs::create_dir_all(path)?;
        let environment = Environment::open(
            &path.join(FILE_NAME),
            flags(settings.sync_mode, SAFE),
            geometry,
            READERS_MAX,
            creates,
        )?;
        if settings.sync_mode == SyncMode::Async || SAFE && settings.sync_mode == SyncMode::None {
            environment.set_option(ffi::MDBX_opt_sync_bytes, SYNC_BYTES)?;
        }
        let environment = Arc::new(environment);
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
            Arc::into_inner(environment)
                .context("the database is in use")?
                .close()?;
        }
        flushed
    }

    /// Puts the copy in the place of the data file, which is closed.
    fn put_copy_in_place(&self) -> Result<()> {
        fs::rename(self.path.join(COPY_NAME), self.path.join(FILE_NAME))?;
        // It described the old file. libmdbx makes another.
        fs::remove_file(self.path.join(LOCK_FILE_NAME))?;
        if self.settings.sync_mode != SyncMode::None {
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

pub struct MdbxBatch<'a>(WriteTransaction<'a>);

impl<const SAFE: bool> Writer for MdbxIn<SAFE> {
    type Batch<'a> = MdbxBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<MdbxBatch<'_>> {
        Ok(MdbxBatch(self.environment()?.begin_write()?))
    }

    fn sync(&self) -> Result<()> {
        self.environment()?.sync()
    }
}

impl Batch for MdbxBatch<'_> {
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

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        self.0.pop(end == End::First, look)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.0.commit()
    }
}

impl<const SAFE: bool> Engine for MdbxIn<SAFE> {
    const CAPABILITIES: Capabilities = Capabilities {
        none_risks_database: !SAFE,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = MdbxSnapshot<'a, SAFE>;
    type Writes<'a> = MdbxBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None if SAFE => format!(
                "SAFE_NOSYNC, WRITEMAP, a flush after every {SYNC_BYTES} bytes and when it is closed: a power failure costs the newest commits"
            ),
            SyncMode::None => {
                "UTTERLY_NOSYNC, WRITEMAP, closed without a flush: survives the process; a power failure may cost the database"
                    .to_owned()
            }
            SyncMode::Async => format!(
                "SAFE_NOSYNC, no WRITEMAP, a flush every {INTERVAL:?} by a thread and after every {SYNC_BYTES} bytes"
            ),
            SyncMode::Sync | SyncMode::WriteThrough => "SYNC_DURABLE, no WRITEMAP".to_owned(),
        };
        let geometry = geometry(settings);
        Description {
            version: raw::version(),
            settings: vec![
                format!("{sync}, LIFORECLAIM, NOMEMINIT"),
                format!(
                    "growth step {} bytes, at most {} bytes",
                    geometry.growth_step, geometry.upper
                ),
                "no cache, write buffer, merge threads or compression: the engine has none"
                    .to_owned(),
            ],
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let initial = Geometry {
            now: Some(GROWTH_STEP_BYTES),
            ..geometry(settings)
        };
        Self::start(path, settings, &initial, true)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, &geometry(settings), false)
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
    fn snapshot(&self, _mode: ReadMode) -> Result<MdbxSnapshot<'_, SAFE>> {
        let reader = match self.readers.take() {
            Some(mut reader) => {
                reader.renew()?;
                reader
            }
            None => self.environment()?.begin_read()?,
        };
        Ok(MdbxSnapshot {
            engine: self,
            reader: Some(reader),
        })
    }

    #[inline]
    fn begin_writes(&self) -> Result<MdbxBatch<'_>> {
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
        self.environment()?.sync()
    }

    /// libmdbx compacts by copying: the copy takes the place of the file, which is opened again.
    fn compact(&mut self) -> Result<bool> {
        let environment = self.environment()?;
        let (usual, tight) = (geometry(&self.settings), tight_geometry(&self.settings));
        let flushes = self.settings.sync_mode != SyncMode::None;
        environment.set_geometry(&tight)?;
        if let Err(error) = environment.copy_compacted(&self.path.join(COPY_NAME), flushes) {
            environment.set_geometry(&usual)?;
            return Err(error);
        }
        let replaced = self.shut().and_then(|()| self.put_copy_in_place());
        // Opened in any case: without the copy in its place, the old file is as good as it was.
        *self = Self::start(&self.path, &self.settings, &tight, false)?;
        self.environment()?.set_geometry(&usual)?;
        replaced?;
        Ok(true)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let info = self.environment()?.info()?;
        let snapshot = self.snapshot(ReadMode::Latest)?;
        let stat = snapshot.reader()?.stat()?;
        let pages = stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
        Ok(EngineSizes {
            reachable_bytes: Some(pages * u64::from(stat.ms_psize)),
            // Less than the length, which grows ahead of what is written.
            data_bytes: Some(info.mi_dxb_fallocated),
            log_bytes: None,
        })
    }

    fn close(mut self) -> Result<()> {
        self.shut()
    }
}

pub struct MdbxSnapshot<'a, const SAFE: bool> {
    engine: &'a MdbxIn<SAFE>,
    /// Present until dropped.
    reader: Option<ReadTransaction>,
}

impl<const SAFE: bool> MdbxSnapshot<'_, SAFE> {
    #[inline]
    fn reader(&self) -> Result<&ReadTransaction> {
        self.reader.as_ref().context("the snapshot is closed")
    }
}

impl<const SAFE: bool> Drop for MdbxSnapshot<'_, SAFE> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            // One that cannot be reset ends instead.
            if reader.reset().is_ok() {
                self.engine.readers.give(reader);
            }
        }
    }
}

impl<const SAFE: bool> Snapshot for MdbxSnapshot<'_, SAFE> {
    type Cursor<'c>
        = MdbxCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.reader()?.get(key)?))
    }

    fn scan(&mut self, each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.reader()?.cursor()?.all(each)
    }

    #[inline]
    fn cursor(&mut self) -> Result<MdbxCursor<'_>> {
        Ok(MdbxCursor(self.reader()?.cursor()?))
    }

    fn count(&mut self) -> Result<u64> {
        Ok(self.reader()?.stat()?.ms_entries)
    }
}

pub struct MdbxCursor<'c>(Entries<'c>);

impl Cursor for MdbxCursor<'_> {
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
    const MODES: [SyncMode; 4] = [
        SyncMode::None,
        SyncMode::Async,
        SyncMode::Sync,
        SyncMode::WriteThrough,
    ];

    fn settings(sync_mode: SyncMode) -> Settings {
        Settings {
            sync_mode,
            ..Settings::default()
        }
    }

    /// All numbers below `ENTRIES`, in no order.
    fn load(engine: &Mdbx) -> Result<()> {
        let keys: Vec<[u8; 4]> = (0..ENTRIES)
            .map(|number| (number * 7 % ENTRIES).to_be_bytes())
            .collect();
        engine.bulk_load(keys.iter().map(|key| (key.as_slice(), [1; 200].as_slice())))
    }

    fn count(engine: &Mdbx) -> Result<u64> {
        engine.snapshot(ReadMode::Latest)?.count()
    }

    fn delete_below(engine: &Mdbx, end: u32) -> Result<()> {
        let mut batch = engine.begin()?;
        for number in 0..end {
            Batch::delete(&mut batch, &number.to_be_bytes())?;
        }
        Batch::commit(batch)
    }

    #[test]
    fn only_none_is_closed_without_a_flush_and_the_newest_commit_is_there_again() -> Result<()> {
        for mode in MODES {
            let directory = tempfile::tempdir()?;
            let engine = Mdbx::create(directory.path(), &settings(mode))?;
            load(&engine)?;
            engine.checkpoint()?;
            engine.close()?;
            // Each time more pages are reused than roots are kept.
            for round in 1..=5 {
                let engine = Mdbx::open(directory.path(), &settings(mode))?;
                for number in 1..=20 {
                    delete_below(&engine, round * 100 + number)?;
                }
                engine.close()?;
                let left = u64::from(ENTRIES - (round * 100 + 20));
                let engine = Mdbx::open(directory.path(), &settings(mode))?;
                assert_eq!(count(&engine)?, left, "{mode:?}");
                // Roots that were flushed have greater marks than these. Opening adds one that is not, in some modes.
                let marks = engine.environment()?.info()?.mi_meta_sign;
                let any_flushed = marks.iter().any(|mark| *mark > 1);
                assert_eq!(any_flushed, mode != SyncMode::None, "{mode:?}");
                engine.close()?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_database_that_was_not_flushed_opens_in_every_mode() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let engine = Mdbx::create(directory.path(), &settings(SyncMode::None))?;
        load(&engine)?;
        engine.close()?;
        for mode in MODES {
            let engine = Mdbx::open(directory.path(), &settings(mode))?;
            assert_eq!(count(&engine)?, u64::from(ENTRIES), "{mode:?}");
            engine.close()?;
        }
        Ok(())
    }

    #[test]
    fn entries_are_loaded_between_and_behind_others() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let engine = Mdbx::create(directory.path(), &Settings::default())?;
        let loads: [&[&[u8]]; 2] = [&[b"d", b"b"], &[b"e", b"a", b"f", b"c"]];
        for keys in loads {
            engine.bulk_load(keys.iter().map(|key| (*key, *key)))?;
        }
        let mut found = Vec::new();
        engine.snapshot(ReadMode::Latest)?.scan(|key, value| {
            assert_eq!(key, value);
            found.extend_from_slice(key);
        })?;
        assert_eq!(found, b"abcdef");
        engine.close()
    }

    #[test]
    fn compaction_makes_the_file_smaller_in_every_mode() -> Result<()> {
        for mode in MODES {
            let directory = tempfile::tempdir()?;
            let mut engine = Mdbx::create(directory.path(), &settings(mode))?;
            load(&engine)?;
            delete_below(&engine, ENTRIES - 100)?;
            // A reader of the pool.
            assert_eq!(count(&engine)?, 100);
            assert!(engine.compact()?);
            assert_eq!(count(&engine)?, 100, "{mode:?}");
            let bytes = fs::metadata(directory.path().join(FILE_NAME))?.len();
            assert!(bytes <= 2 * LOWER_BYTES, "{mode:?}: {bytes} bytes");
            assert!(!directory.path().join(COPY_NAME).exists());
            load_again(&engine)?;
            engine.close()?;
        }
        Ok(())
    }

    /// What was deleted can be written once more.
    fn load_again(engine: &Mdbx) -> Result<()> {
        let mut batch = engine.begin()?;
        for number in 0..ENTRIES {
            Batch::put(&mut batch, &number.to_be_bytes(), &[2; 200])?;
        }
        Batch::commit(batch)?;
        assert_eq!(count(engine)?, u64::from(ENTRIES));
        Ok(())
    }

    #[test]
    fn a_compaction_that_fails_leaves_the_database_open() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let mut engine = Mdbx::create(directory.path(), &settings(SyncMode::Async))?;
        load(&engine)?;
        fs::create_dir(directory.path().join(COPY_NAME))?;
        assert!(engine.compact().is_err());
        load_again(&engine)?;
        engine.close()
    }
}
