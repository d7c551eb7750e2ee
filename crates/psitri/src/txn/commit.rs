//! The commit of a transaction: encode, log, stamp, publish.

use super::{Part, WriteTxn};
use crate::{
    Durability, Result,
    buffer::{BufferWriter, EntryRef, Kind, VersionRef},
    commit::Logged,
    keyspace::{Steps, Touched, WriterSlot},
    wal::ops::{OpsBuilder, Write},
};

impl WriteTxn {
    pub(super) fn commit_parts(&mut self, durability: Durability) -> Result<()> {
        match self.log_parts(durability)? {
            Some(logged) => self.db.engine.finish_commit(logged),
            None => Ok(()),
        }
    }

    /// Commits up to the point where the disk may have to be waited for. The write locks are free afterwards.
    pub(crate) fn log_parts(&mut self, durability: Durability) -> Result<Option<Logged>> {
        self.log_parts_as(None, durability)
    }

    /// The same; `record` says for the log what the transaction did, no range among it. It is not used if a key was written more than once, of which the
    /// log needs the last.
    pub(crate) fn log_parts_as(
        &mut self,
        record: Option<&OpsBuilder>,
        durability: Durability,
    ) -> Result<Option<Logged>> {
        self.check_not_undone()?;
        self.settle_all()?;
        if self.is_untouched() {
            // It may have read commits that still wait for the disk, or will be there some time: it reports nothing that could be lost.
            // Nobody waits for that with it.
            self.abandon();
            match durability.waits() {
                true => self.db.engine.flush_log()?,
                false => self.db.engine.flush_unseen()?,
            }
            return Ok(None);
        }
        if self.private.is_some() {
            return self.commit_private(durability).map(|()| None);
        }
        // Before the lock that all commits take.
        for part in &mut self.parts {
            part.writer().settle();
        }
        let engine = &self.db.engine;
        // The record is built in the first part, which keeps the memory for the next transaction.
        let (first, others) = self.parts.split_at_mut(1);
        let first_id = first[0].id;
        let WriterSlot {
            buffer,
            touched,
            ops,
            ..
        } = &mut *first[0].guard;
        let buffer = buffer.as_mut().expect("an open part has a writer");
        ops.clear();
        let record = record.filter(|record| record.op_count() as usize == touched.len());
        if engine.log.is_some() && record.is_none() {
            encode(ops, first_id, buffer, touched);
            for part in &*others {
                part.encode(ops);
            }
        }
        let record = record.unwrap_or(ops);
        let large_values = &mut self.large_values;
        let pin = self.pin.as_ref().expect("a transaction has a pin");
        #[expect(
            unsafe_code,
            reason = "the pin and its registry live together in this structure"
        )]
        // SAFETY: the registry lives in the engine, which `self.db` keeps alive longer than the pin.
        let generation = unsafe { pin.get() }.active();
        let mut commits = engine.commits.lock();
        let logged = engine.log_commit(
            &mut commits,
            record.op_count(),
            record.payload(),
            durability,
            |csn, record| {
                generation.note_commit(csn, record);
                if !large_values.is_empty() {
                    generation.take_large_values(large_values);
                }
                stamp(buffer, touched, csn);
                for part in others {
                    part.stamp(csn);
                }
            },
        );
        drop(commits);
        let logged = logged?;
        self.leave();
        Ok(Some(logged))
    }
}

impl Part {
    /// Adds what the part changed to a log record.
    pub(super) fn encode(&self, ops: &mut OpsBuilder) {
        let buffer = self.guard.buffer.as_ref();
        let buffer = buffer.expect("an open part has a writer");
        encode(ops, self.id, buffer, &self.guard.touched);
    }

    /// Gives every version of the part its CSN.
    pub(super) fn stamp(&mut self, csn: u64) {
        let slot = &mut *self.guard;
        let buffer = slot.buffer.as_mut().expect("an open part has a writer");
        stamp(buffer, &mut slot.touched, csn);
    }
}

/// Adds steps to a log record: of several versions of a key, the newest.
fn encode(ops: &mut OpsBuilder, keyspace: u32, buffer: &BufferWriter, touched: &[Touched]) {
    for step in touched {
        match step {
            Touched::Range(range) => {
                let (lo, hi) = &range.1;
                ops.delete_range(keyspace, lo, hi.as_deref());
            }
            Touched::Version(entry, version) => {
                if let Some((key, write)) = written(buffer, *entry, *version) {
                    ops.write(keyspace, key, write);
                }
            }
        }
    }
}

/// What a step wrote to an entry, if no later one did.
#[inline(always)]
pub(super) fn written(
    buffer: &BufferWriter,
    entry: EntryRef,
    version: VersionRef,
) -> Option<(&[u8], Write<'_>)> {
    if buffer.newest(entry) != Some(version) {
        return None;
    }
    let payload = buffer.payload(version);
    let write = match buffer.kind(version) {
        Kind::Value => Write::Put(payload),
        Kind::Large => Write::PutLarge(payload.try_into().expect("24 bytes")),
        Kind::Tombstone => Write::Delete,
    };
    Some((buffer.key(entry), write))
}

/// Gives the versions of steps their CSN, and forgets the steps.
fn stamp(buffer: &mut BufferWriter, touched: &mut Steps, csn: u64) {
    for step in touched.drain() {
        match step {
            Touched::Version(_, version) => buffer.stamp(version, csn),
            Touched::Range(range) => buffer.stamp_range_tombstone(&range.0, csn),
        }
    }
}
