//! Opening the newest checkpoint for reading while another process may be writing. The protocol, and why it holds: `storage/readers.rs`.

use std::time::{Duration, Instant};

use super::{
    ARENAS_KEPT_MAX, EngineOf, Recovery, ahead::read_ahead, next_database_id, read_superblock,
};
use crate::{
    Options, Result,
    engine::{Engine, EngineKind},
    error::Error,
    pager::{DATA_FILE, Pager, Superblock},
    state::ArenaPool,
    storage::{OpenMode, Storage, StorageFile},
    sync::{Arc, Ordering, fence},
    wal::{self, WalError},
};

/// How often, and for how long, a newer checkpoint makes the opening begin again.
const ATTEMPTS_MIN: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the newest checkpoint while another process may be writing: see `storage/readers.rs`.
pub(crate) fn open_beside_writer(storage: Arc<dyn Storage>, options: Options) -> Result<Engine> {
    options.check()?;
    if !storage.exists(DATA_FILE)? {
        return Err(Error::NotFound {
            path: storage.describe().into(),
        });
    }
    let slot = storage.take_reader_slot()?;
    let file = storage.open(DATA_FILE, OpenMode::Read)?;
    let pool = Arc::new(ArenaPool::new(options.buffer_bytes, ARENAS_KEPT_MAX));
    let (start, mut attempts) = (Instant::now(), 0);
    while attempts < ATTEMPTS_MIN || start.elapsed() < PATIENCE {
        attempts += 1;
        let superblock = read_superblock(file.as_ref())?;
        let is_newest = || -> Result<bool> {
            fence(Ordering::SeqCst);
            // One that was taken back leaves its number to the next.
            let newest = read_superblock(file.as_ref())?;
            let same = |a: &Superblock, b: &Superblock| {
                (a.generation, a.tree_version) == (b.generation, b.tree_version)
            };
            Ok(same(&newest, &superblock))
        };
        slot.pin(superblock.tree_version)?;
        // Before that nothing keeps the file as long as it was: what is mapped may be gone.
        if !is_newest()? {
            continue;
        }
        let read = read_checkpoint(storage.as_ref(), &file, &superblock, &options, &pool);
        // Page map and log may be of a later time, or half of it.
        if !is_newest()? {
            continue;
        }
        let (recovery, pager) = read?;
        let of = EngineOf {
            options,
            storage,
            kind: EngineKind::BesideWriter,
            pool,
            lock: Some(slot.into()),
        };
        return recovery.finish(of, pager, None);
    }
    let what = "the writer takes checkpoints faster than one can be opened beside it".to_owned();
    Err(Error::Stalled {
        what,
        is_out_of_space: false,
    })
}

/// Whether the checkpoint that a reader beside a writer sees was replaced.
pub(crate) fn is_replaced(engine: &Engine) -> Result<bool> {
    let file = engine.storage.open(DATA_FILE, OpenMode::Read)?;
    let newest = read_superblock(file.as_ref())?;
    let seen = engine.tree.lock().checkpoint_generation;
    let version = engine.states.current().tree_version;
    Ok(newest.generation != seen || newest.tree_version > version)
}

/// Page map, catalog and log of a checkpoint: its trees may have parts of commits, the rest of which is in the log up to where it was
/// durable.
fn read_checkpoint(
    storage: &dyn Storage,
    file: &Arc<dyn StorageFile>,
    superblock: &Superblock,
    options: &Options,
    pool: &Arc<ArenaPool>,
) -> Result<(Recovery, Pager)> {
    let (map, loaded) = Pager::load_map(file.as_ref(), superblock)?;
    let pager = Pager::new(
        Arc::clone(file),
        map,
        superblock.tree_version,
        options.map_reserve_bytes,
        options.pinned_cache_bytes,
        false,
    )?;
    pager.adopt_map(loaded);
    let id = next_database_id();
    let mut recovery = Recovery::new(id, options, &pager, superblock, Arc::clone(pool))?;
    let read = |visitor: &mut dyn FnMut(wal::Record<'_>) -> Result<bool, WalError>| {
        wal::replay_between(
            storage,
            superblock.wal_start_lsn,
            superblock.wal_durable_lsn,
            |record| match visitor(record)? {
                true => Ok(()),
                // Whatever the reason is, it comes before this one.
                false => Err(WalError::Visitor("nobody reads on".into())),
            },
        )
    };
    read_ahead(options.buffer_bytes as u64, read, |part| {
        match recovery.apply(&pager, part)? {
            Some(lost) => Err(lost.damage),
            None => Ok(Some(Arc::clone(recovery.newest()))),
        }
    })?;
    Ok((recovery, pager))
}
