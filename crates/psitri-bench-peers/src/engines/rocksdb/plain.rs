//! A plain database: a batch reads the newest state through a map of its own writes, and writes them as one `WriteBatch`.
use super::{Access, Database, Kind, database};
use anyhow::Result;
use psitri_bench::engine::Batch;
use psitri_bench::engines::pending::Pending;
use rocksdb::{DB, WriteBatch};

database!(DB, WriteBatch);

pub struct Plain;

impl Kind for Plain {
    type Database = DB;
    type Batch<'a> = PlainBatch<'a>;
    const LINE: &'static str = "batches are write batches; their own writes are read from a map";
    const POPS: bool = false;

    #[inline]
    fn begin<'a>(database: &'a DB, options: &'a Access) -> PlainBatch<'a> {
        PlainBatch {
            database,
            options,
            pending: Pending::new(),
        }
    }
}

pub struct PlainBatch<'a> {
    database: &'a DB,
    options: &'a Access,
    pending: Pending,
}

impl Batch for PlainBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if let Some(own) = self.pending.get(key) {
            return Ok(look(own));
        }
        let value = self.database.get_pinned_opt(key, &self.options.read)?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pending.put(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.pending.delete(key);
        Ok(())
    }

    fn commit(self) -> Result<()> {
        let mut writes = WriteBatch::default();
        for (key, value) in self.pending.iter() {
            match value {
                Some(value) => writes.put(key, value),
                None => writes.delete(key),
            }
        }
        self.database.write_all(writes, &self.options.write)
    }
}
