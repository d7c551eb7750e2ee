//! Puts, deletes, gets and seeks of single keys, by all threads.
//!
//! A put or delete is a sample of latency when it is a commit of its own, else the commit with its batch is. Keys and values are made before
//! a sample begins.
use super::contents::{Contents, tag};
use crate::clock::Clock;
use crate::engine::{Cursor, Engine, ReadMode, Snapshot, Writes};
use crate::reading::FreshReads;
use crate::workers::{self, Outcome, Recorder, share};
use anyhow::Result;
use std::ops::Range;

#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub found: u64,
    /// Keys found that should not be there, or the other way round.
    pub unexpected: u64,
    /// Values that are not those of their key.
    pub wrong: u64,
    pub bytes: u64,
}

impl Found {
    pub fn sum(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |sum, one| Self {
            found: sum.found + one.found,
            unexpected: sum.unexpected + one.unexpected,
            wrong: sum.wrong + one.wrong,
            bytes: sum.bytes + one.bytes,
        })
    }
}

pub struct Step<'a, E> {
    pub engine: &'a E,
    pub contents: &'a Contents<'a>,
    pub clock: &'a Clock,
    /// Place in the list, counted from one.
    pub step: u64,
}

/// How a benchmark comes from an operation to the number of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Sequential,
    Random,
}

impl<E: Engine> Step<'_, E> {
    fn for_each_thread<T: Send>(
        &self,
        work: impl Fn(Range<u64>, &mut Recorder<'_>) -> Result<T> + Sync,
    ) -> Result<Outcome<T>> {
        workers::run(self.clock, self.shares(), work)
    }

    /// The operations of each thread.
    pub fn shares(&self) -> Vec<Range<u64>> {
        let config = self.contents.config;
        let threads = config.threads as usize;
        (0..threads)
            .map(|thread| share(config.num, thread, threads))
            .collect()
    }

    #[inline]
    pub fn number(&self, order: Order, operation: u64) -> u64 {
        match order {
            Order::Sequential => operation,
            Order::Random => self.contents.config.draw(self.step, operation),
        }
    }

    pub fn put(&self, order: Order) -> Result<Outcome<()>> {
        self.for_each_thread(|operations, recorder| {
            self.write(operations, order, recorder, |writes, key, value| {
                writes.put(key, value)
            })
        })
    }

    pub fn delete(&self) -> Result<Outcome<()>> {
        self.for_each_thread(|operations, recorder| {
            self.write(operations, Order::Random, recorder, |writes, key, _| {
                writes.delete(key)
            })
        })
    }

    fn write(
        &self,
        operations: Range<u64>,
        order: Order,
        recorder: &mut Recorder<'_>,
        add: impl Fn(&mut E::Writes<'_>, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let config = self.contents.config;
        let (key_size, value_size) = (config.key_size as usize, config.value_size as usize);
        let (mut keys, mut values, mut value) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = operations.start;
        while next < operations.end {
            let end = operations.end.min(next + config.batch_size);
            let count = (end - next) as usize;
            keys.resize(count * key_size, 0);
            values.clear();
            for (operation, key) in (next..end).zip(keys.chunks_exact_mut(key_size)) {
                let number = self.number(order, operation);
                config.write_key(number, key);
                self.contents
                    .values()
                    .fill(tag(self.step, number), &mut value);
                values.extend_from_slice(&value);
            }
            recorder.timed(count as u64, || {
                let mut writes = self.engine.begin_writes()?;
                let entries = keys
                    .chunks_exact(key_size)
                    .zip(values.chunks_exact(value_size));
                for (key, value) in entries {
                    add(&mut writes, key, value)?;
                }
                writes.commit()
            })?;
            next = end;
        }
        Ok(())
    }

    pub fn get(&self) -> Result<Outcome<Found>> {
        self.for_each_thread(|operations, recorder| {
            let config = self.contents.config;
            let mut found = Found::default();
            let mut key = vec![0; config.key_size as usize];
            let mut reads = FreshReads::new(self.engine, config.reads_per_snapshot);
            for operation in operations {
                let number = self.number(Order::Random, operation);
                config.write_key(number, &mut key);
                let exists = self.contents.has(number);
                recorder.timed(1, || {
                    reads.read(&key, |value| {
                        found.unexpected += u64::from(value.is_some() != exists);
                        if let Some(value) = value {
                            found.found += 1;
                            found.bytes += (key.len() + value.len()) as u64;
                            let right = self.contents.is_current(number, value);
                            found.wrong += u64::from(!right);
                        }
                    })
                })?;
            }
            Ok(found)
        })
    }

    /// Keys with a byte after the last digit: they lie between those that exist, and none is there.
    pub fn get_missing(&self) -> Result<Outcome<Found>> {
        self.for_each_thread(|operations, recorder| {
            let config = self.contents.config;
            let mut found = Found::default();
            let digits = config.key_size as usize;
            let mut key = vec![b'.'; digits + 1];
            let mut reads = FreshReads::new(self.engine, config.reads_per_snapshot);
            for operation in operations {
                let number = self.number(Order::Random, operation);
                config.write_key(number, &mut key[..digits]);
                let is_there = recorder.timed(1, || reads.read(&key, |value| value.is_some()))?;
                found.unexpected += u64::from(is_there);
            }
            Ok(found)
        })
    }

    pub fn seek(&self) -> Result<Outcome<Found>> {
        self.for_each_thread(|operations, recorder| {
            let config = self.contents.config;
            let mut found = Found::default();
            let mut key = vec![0; config.key_size as usize];
            let mut snapshot = self.engine.snapshot(ReadMode::Latest)?;
            let mut cursor = snapshot.cursor()?;
            for operation in operations {
                let number = self.number(Order::Random, operation);
                config.write_key(number, &mut key);
                let steps = recorder.timed(1, || {
                    cursor.seek(&key)?;
                    let mut steps = 0;
                    while steps < config.seek_nexts && cursor.next()? {
                        steps += 1;
                    }
                    Ok(steps)
                })?;
                // Where the cursor must be now.
                let mut expected = self.contents.successor(number);
                found.found += u64::from(expected == Some(number));
                for _ in 0..config.seek_nexts {
                    expected = expected.and_then(|at| self.contents.successor(at + 1));
                }
                match (cursor.entry(), expected) {
                    (Some((key, value)), Some(expected)) => {
                        found.bytes += (steps + 1) * (key.len() + value.len()) as u64;
                        let arrived = self.contents.number(key) == Some(expected);
                        found.unexpected += u64::from(!arrived);
                        let right = self.contents.is_current(expected, value);
                        found.wrong += u64::from(arrived && !right);
                    }
                    (None, None) => {}
                    _ => found.unexpected += 1,
                }
            }
            Ok(found)
        })
    }
}
