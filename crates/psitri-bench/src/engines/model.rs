//! The obviously correct engine: an ordered map behind a lock, and a map of the batch's own writes.
//!
//! It is the oracle of the workloads' tests and checks. Snapshots hold the read lock, so writers wait for them: it is no measure of anything.
//! Who wants to commit holds the turnstile while waiting, so that snapshots, one after another, cannot keep a commit out for ever.
use crate::engine::{Batch, Engine, EngineSizes, ReadMode, Settings, Snapshot, Writer};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
pub struct Model {
    committed: RwLock<Map>,
    turnstile: Mutex<()>,
}

impl Model {
    fn turnstile(&self) -> MutexGuard<'_, ()> {
        self.turnstile
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, Map> {
        // A panic elsewhere leaves the map as it was: writers only extend it.
        self.committed
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct ModelBatch<'a> {
    model: &'a Model,
    own: Map,
}

impl Writer for Model {
    type Batch<'a> = ModelBatch<'a>;

    fn begin(&self) -> Result<ModelBatch<'_>> {
        Ok(ModelBatch {
            model: self,
            own: Map::new(),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Batch for ModelBatch<'_> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if let Some(value) = self.own.get(key) {
            return Ok(look(Some(value)));
        }
        Ok(look(self.model.read_lock().get(key).map(Vec::as_slice)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.own.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn commit(self) -> Result<()> {
        let _turn = self.model.turnstile();
        self.model
            .committed
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(self.own);
        Ok(())
    }
}

impl Engine for Model {
    type Snapshot<'a> = ModelSnapshot<'a>;

    fn create(_path: &Path, _settings: &Settings) -> Result<Self> {
        Ok(Self::default())
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut batch = self.begin()?;
        for (key, value) in entries {
            batch.put(key, value)?;
        }
        batch.commit()
    }

    fn snapshot(&self, _mode: ReadMode) -> Result<ModelSnapshot<'_>> {
        let _turn = self.turnstile();
        Ok(ModelSnapshot {
            committed: self.read_lock(),
        })
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn sizes(&self) -> Result<EngineSizes> {
        Ok(EngineSizes::default())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

pub struct ModelSnapshot<'a> {
    committed: RwLockReadGuard<'a, Map>,
}

impl Snapshot for ModelSnapshot<'_> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.committed.get(key).map(Vec::as_slice)))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.committed
            .iter()
            .for_each(|(key, value)| each(key, value));
        Ok(())
    }
}
