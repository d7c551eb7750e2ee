//! An engine that does nothing, to measure the harness itself: every balance is always large enough, every write is forgotten.
use crate::engine::{Batch, Writer};
use anyhow::Result;
use std::hint::black_box;

pub struct Noop;

pub struct NoopBatch;

impl Writer for Noop {
    type Batch<'a> = NoopBatch;

    fn begin(&self) -> Result<NoopBatch> {
        Ok(NoopBatch)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Batch for NoopBatch {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        black_box(key);
        Ok(look(Some(&2_000_000u64.to_le_bytes())))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        black_box(key);
        Ok(())
    }

    fn commit(self) -> Result<()> {
        Ok(())
    }
}
