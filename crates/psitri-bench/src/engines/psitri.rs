//! PsiTri, in both of its ways to commit.
//!
//! [`Psitri`] begins buffered transactions, [`PsitriDirect`] direct ones. The bulk load is one direct transaction in both: it needs no log.
use crate::engine::{Batch, Engine, EngineSizes, ReadMode, Settings, Snapshot, SyncMode, Writer};
use anyhow::Result;
use psitri::{Database, Durability, Keyspace, Options, WriteTxn};
use std::ops::ControlFlow;
use std::path::Path;

/// Buffered transactions.
pub type Psitri = Native<false>;
/// Direct transactions.
pub type PsitriDirect = Native<true>;

pub struct Native<const DIRECT: bool> {
    database: Database,
    keyspace: Keyspace,
}

pub struct NativeBatch<'a> {
    transaction: WriteTxn,
    keyspace: &'a Keyspace,
}

pub struct NativeSnapshot<'a> {
    snapshot: psitri::Snapshot,
    keyspace: &'a Keyspace,
}

fn durability(sync_mode: SyncMode) -> Durability {
    match sync_mode {
        SyncMode::None => Durability::None,
        SyncMode::Async => Durability::Async,
        SyncMode::Sync => Durability::Sync,
        SyncMode::WriteThrough => Durability::WriteThrough,
    }
}

fn read_mode(mode: ReadMode) -> psitri::ReadMode {
    match mode {
        ReadMode::Latest => psitri::ReadMode::Latest,
        ReadMode::Buffered => psitri::ReadMode::Buffered,
        ReadMode::Trie => psitri::ReadMode::Trie,
    }
}

impl<const DIRECT: bool> Writer for Native<DIRECT> {
    type Batch<'a> = NativeBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<NativeBatch<'_>> {
        let keyspaces = &[&self.keyspace];
        let transaction = if DIRECT {
            self.database.begin_direct(keyspaces)?
        } else {
            self.database.begin(keyspaces)?
        };
        Ok(NativeBatch {
            transaction,
            keyspace: &self.keyspace,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.flush()?)
    }
}

impl Batch for NativeBatch<'_> {
    #[inline]
    fn announce(&self, keys: &[&[u8]]) {
        self.transaction.prefetch(self.keyspace, keys);
    }

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.transaction.get(self.keyspace, key)?))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.upsert(self.keyspace, key, value)?)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}

impl<const DIRECT: bool> Engine for Native<DIRECT> {
    type Snapshot<'a> = NativeSnapshot<'a>;

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let options = Options::new().durability(durability(settings.sync_mode));
        let database = options.create(path)?;
        let keyspace = database.keyspace("default")?;
        Ok(Self { database, keyspace })
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut transaction = self.database.begin_direct(&[&self.keyspace])?;
        for (key, value) in entries {
            transaction.upsert(&self.keyspace, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    #[inline]
    fn snapshot(&self, mode: ReadMode) -> Result<NativeSnapshot<'_>> {
        Ok(NativeSnapshot {
            snapshot: self.database.snapshot_with(read_mode(mode)),
            keyspace: &self.keyspace,
        })
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.database.checkpoint()?)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let stats = self.database.stats()?;
        Ok(EngineSizes {
            reachable_bytes: Some(stats.reachable_bytes),
            data_bytes: Some(stats.file_bytes),
            log_bytes: Some(stats.wal_bytes),
        })
    }

    fn close(self) -> Result<()> {
        drop(self.keyspace);
        Ok(self.database.close()?)
    }
}

impl Snapshot for NativeSnapshot<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.snapshot.get(self.keyspace, key)?))
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.snapshot.for_each(self.keyspace, .., |key, value| {
            each(key, value);
            ControlFlow::Continue(())
        })?;
        Ok(())
    }
}
