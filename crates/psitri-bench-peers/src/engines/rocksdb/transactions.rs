//! RocksDB's own optimistic transactions: they read their own writes by themselves, and commit if nobody else has written
//! the keys that they wrote. One that lost fails with RocksDB's "Resource busy"; no workload writes a key from two threads at once.
use super::{Access, Kind, database};
use anyhow::Result;
use psitri_bench::engine::{Batch, End};
use rocksdb::{
    OptimisticTransactionDB, OptimisticTransactionOptions, ReadOptions, Transaction,
    WriteBatchWithTransaction,
};

database!(OptimisticTransactionDB, WriteBatchWithTransaction<true>);

pub struct Transactions;

impl Kind for Transactions {
    type Database = OptimisticTransactionDB;
    type Batch<'a> = TransactionBatch<'a>;
    const LINE: &'static str = "batches are transactions of an OptimisticTransactionDB";
    const POPS: bool = true;

    #[inline]
    fn begin<'a>(
        database: &'a OptimisticTransactionDB,
        options: &'a Access,
    ) -> TransactionBatch<'a> {
        let transaction_options = OptimisticTransactionOptions::default();
        TransactionBatch {
            transaction: database.transaction_opt(&options.write, &transaction_options),
            read_options: &options.read,
        }
    }
}

/// Rolls back when dropped, as RocksDB does with a transaction that is destroyed.
pub struct TransactionBatch<'a> {
    transaction: Transaction<'a, OptimisticTransactionDB>,
    read_options: &'a ReadOptions,
}

impl Batch for TransactionBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let value = self.transaction.get_pinned_opt(key, self.read_options)?;
        Ok(look(value.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.put(key, value)?)
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.transaction.delete(key)?)
    }

    #[inline]
    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let mut entries = self.transaction.raw_iterator();
        match end {
            End::First => entries.seek_to_first(),
            End::Last => entries.seek_to_last(),
        }
        let Some((key, value)) = entries.item() else {
            entries.status()?;
            return Ok(false);
        };
        look(key, value);
        self.transaction.delete(key)?;
        Ok(true)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}
