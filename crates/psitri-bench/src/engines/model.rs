//! The obviously correct engine: an ordered map behind a lock, and a map of the batch's own writes.
//!
//! It is the oracle of the workloads' tests and checks. Snapshots hold the read lock, so writers wait for them: it is no measure of anything.
//! Who wants to commit holds the turnstile while waiting, so that snapshots, one after another, cannot keep a commit out for ever.
use crate::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, Writer,
};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::ops::Bound;
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
    /// What the batch wrote; nothing where it deleted.
    own: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Writer for Model {
    type Batch<'a> = ModelBatch<'a>;

    fn begin(&self) -> Result<ModelBatch<'_>> {
        Ok(ModelBatch {
            model: self,
            own: BTreeMap::new(),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Batch for ModelBatch<'_> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if let Some(value) = self.own.get(key) {
            return Ok(look(value.as_deref()));
        }
        Ok(look(self.model.read_lock().get(key).map(Vec::as_slice)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.own.insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.own.insert(key.to_vec(), None);
        Ok(())
    }

    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let committed = self.model.read_lock();
        let mut old = committed
            .iter()
            .filter(|(key, _)| !self.own.contains_key(*key));
        let mut new = (self.own.iter()).filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let found = match end {
            End::First => [old.next(), new.next()].into_iter().flatten().min(),
            End::Last => [old.next_back(), new.next_back()]
                .into_iter()
                .flatten()
                .max(),
        };
        let Some((key, value)) = found else {
            return Ok(false);
        };
        look(key, value);
        let key = key.clone();
        drop(committed);
        self.delete(&key)?;
        Ok(true)
    }

    fn commit(self) -> Result<()> {
        let _turn = self.model.turnstile();
        let mut committed = self
            .model
            .committed
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for (key, value) in self.own {
            match value {
                Some(value) => committed.insert(key, value),
                None => committed.remove(&key),
            };
        }
        Ok(())
    }
}

impl Engine for Model {
    const CAPABILITIES: Capabilities = Capabilities {
        persistent: false,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = ModelSnapshot<'a>;
    type Writes<'a> = ModelBatch<'a>;

    fn describe(_settings: &Settings) -> Description {
        Description {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: vec!["a map in memory".to_owned()],
        }
    }

    fn open(_path: &Path, _settings: &Settings) -> Result<Self> {
        bail!("the model keeps nothing, there is no database to open")
    }

    fn begin_writes(&self) -> Result<ModelBatch<'_>> {
        self.begin()
    }

    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }

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

    type Cursor<'c>
        = ModelCursor<'c>
    where
        Self: 'c;

    fn cursor(&mut self) -> Result<ModelCursor<'_>> {
        Ok(ModelCursor {
            map: &self.committed,
            at: None,
        })
    }
}

pub struct ModelCursor<'c> {
    map: &'c Map,
    at: Option<(&'c Vec<u8>, &'c Vec<u8>)>,
}

impl Cursor for ModelCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        let from = (Bound::Included(key), Bound::Unbounded);
        self.at = self.map.range::<[u8], _>(from).next();
        Ok(self.at.is_some())
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.at = self.map.first_key_value();
        Ok(self.at.is_some())
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.at = self.map.last_key_value();
        Ok(self.at.is_some())
    }

    fn next(&mut self) -> Result<bool> {
        self.at = self.at.and_then(|(key, _)| {
            let after = (Bound::Excluded(key.as_slice()), Bound::Unbounded);
            self.map.range::<[u8], _>(after).next()
        });
        Ok(self.at.is_some())
    }

    fn prev(&mut self) -> Result<bool> {
        self.at = self.at.and_then(|(key, _)| {
            let before = (Bound::Unbounded, Bound::Excluded(key.as_slice()));
            self.map.range::<[u8], _>(before).next_back()
        });
        Ok(self.at.is_some())
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.at
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}
