//! libmdbx 0.14, from the crate `mdbx-sys`, which has the newest source of all crates that bring one (others have 0.13).
//!
//! Settings: a file that may grow to sixteen times what the workload expects to keep, at least 64 GiB, in steps of 128 MiB, so that growing
//! is rare (a step also makes a flush in the modes without sync); LIFORECLAIM, which reuses the pages freed last; NOMEMINIT. No WRITEMAP,
//! as is its default: a stray store of the process could otherwise reach the file. Either way a commit without sync is in the kernel's
//! hands when it returns, and survives the death of the process.
//!
//! Sync modes: `none` is SAFE_NOSYNC, which flushes nothing at a commit and cannot corrupt the file. It frees no page for reuse until the
//! next flush, and flushes only before the file must grow, so the file becomes larger by every commit; a flush is therefore asked for
//! after every 64 MiB (the option `sync_bytes`), which the documentation offers for this. `async` is the same
//! with a flush every tenth of a second, by a thread. `sync` and `write-through` are SYNC_DURABLE: data, then the root, both flushed.
//!
//! One writer at a time; a snapshot is a reader of a pool, renewed and reset, which keeps its slot. Keys can have up to 2,022 bytes.
//! Failures: those of libmdbx, with its messages.
mod raw;

use crate::flusher::{Flusher, INTERVAL};
use anyhow::{Context, Result};
use mdbx_sys as ffi;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot,
    SyncMode, Writer,
};
use raw::{Entries, Environment, Geometry, ReadTransaction, WriteTransaction};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const FILE_NAME: &str = "data.mdbx";
const UPPER_BYTES_MIN: u64 = 64 << 30;
const GROWTH_STEP_BYTES: u64 = 128 << 20;
const SYNC_BYTES: u64 = 64 << 20;

pub struct Mdbx {
    // Readers and the thread end before the environment.
    readers: Mutex<Vec<ReadTransaction>>,
    flusher: Option<Flusher>,
    environment: Arc<Environment>,
}

fn flags(sync_mode: SyncMode) -> ffi::MDBX_env_flags_t {
    let sync = match sync_mode {
        SyncMode::None | SyncMode::Async => ffi::MDBX_SAFE_NOSYNC,
        SyncMode::Sync | SyncMode::WriteThrough => ffi::MDBX_SYNC_DURABLE,
    };
    sync | ffi::MDBX_LIFORECLAIM | ffi::MDBX_NOMEMINIT
}

fn geometry(settings: &Settings) -> Geometry {
    let expected = settings.data_bytes_expected.unwrap_or(0);
    Geometry {
        lower: GROWTH_STEP_BYTES,
        upper: expected.saturating_mul(16).clamp(UPPER_BYTES_MIN, 1 << 42),
        growth_step: GROWTH_STEP_BYTES,
    }
}

impl Mdbx {
    fn start(path: &Path, settings: &Settings, creates: bool) -> Result<Self> {
        fs::create_dir_all(path)?;
        let environment = Environment::open(
            &path.join(FILE_NAME),
            flags(settings.sync_mode),
            &geometry(settings),
            creates,
        )?;
        if matches!(settings.sync_mode, SyncMode::None | SyncMode::Async) {
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
            readers: Mutex::new(Vec::new()),
            flusher,
            environment,
        })
    }

    fn readers(&self) -> MutexGuard<'_, Vec<ReadTransaction>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct MdbxBatch<'a>(WriteTransaction<'a>);

impl Writer for Mdbx {
    type Batch<'a> = MdbxBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<MdbxBatch<'_>> {
        Ok(MdbxBatch(self.environment.begin_write()?))
    }

    fn sync(&self) -> Result<()> {
        self.environment.sync()
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
    fn commit(self) -> Result<()> {
        self.0.commit()
    }
}

impl Engine for Mdbx {
    const CAPABILITIES: Capabilities = Capabilities::FULL;

    type Snapshot<'a> = MdbxSnapshot<'a>;
    type Writes<'a> = MdbxBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        let sync = match settings.sync_mode {
            SyncMode::None => format!("SAFE_NOSYNC, a flush after every {SYNC_BYTES} bytes"),
            SyncMode::Async => format!("SAFE_NOSYNC, a flush every {INTERVAL:?} by a thread"),
            SyncMode::Sync | SyncMode::WriteThrough => "SYNC_DURABLE".to_owned(),
        };
        let geometry = geometry(settings);
        Description {
            version: raw::version(),
            settings: vec![
                format!("{sync}, LIFORECLAIM, NOMEMINIT, no WRITEMAP"),
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
        Self::start(path, settings, true)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings, false)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut batch = self.begin()?;
        for (key, value) in entries {
            batch.put(key, value)?;
        }
        batch.commit()
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<MdbxSnapshot<'_>> {
        let pooled = self.readers().pop();
        let reader = match pooled {
            Some(mut reader) => {
                reader.renew()?;
                reader
            }
            None => self.environment.begin_read()?,
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

    fn checkpoint(&self) -> Result<()> {
        self.environment.sync()
    }

    /// There is no compaction in place: pages that were freed are reused, and the file shrinks by what is free at its end.
    fn compact(&mut self) -> Result<bool> {
        self.environment.sync()?;
        Ok(false)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let info = self.environment.info()?;
        let snapshot = self.snapshot(ReadMode::Latest)?;
        let stat = snapshot.reader()?.stat()?;
        let pages = stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
        Ok(EngineSizes {
            reachable_bytes: Some(pages * u64::from(stat.ms_psize)),
            data_bytes: Some(info.mi_dxb_fsize),
            log_bytes: None,
        })
    }

    fn close(self) -> Result<()> {
        self.readers().clear();
        if let Some(flusher) = self.flusher {
            flusher.finish()?;
        }
        Arc::into_inner(self.environment)
            .context("the database is in use")?
            .close()
    }
}

pub struct MdbxSnapshot<'a> {
    engine: &'a Mdbx,
    /// Present until dropped.
    reader: Option<ReadTransaction>,
}

impl MdbxSnapshot<'_> {
    #[inline]
    fn reader(&self) -> Result<&ReadTransaction> {
        self.reader.as_ref().context("the snapshot is closed")
    }
}

impl Drop for MdbxSnapshot<'_> {
    fn drop(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            // One that cannot be reset ends instead.
            if reader.reset().is_ok() {
                self.engine.readers().push(reader);
            }
        }
    }
}

impl Snapshot for MdbxSnapshot<'_> {
    type Cursor<'c>
        = MdbxCursor<'c>
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
