//! What threads do: each function is one measured operation, run by all threads on their parts of the keys.
//!
//! Keys are made before a sample of latency begins, and values are slices of a buffer; both are within the time of the phase. Reads compare
//! what they find with what was written; the comparison is within the sample, the same for every engine.
use super::config::TidesConfig;
use super::patterns::Keys;
use crate::clock::Clock;
use crate::engine::{Cursor, Engine, ReadMode, Snapshot, Writes};
use crate::reading::FreshReads;
use crate::values::Values;
use crate::workers::{self, Outcome, Recorder};
use anyhow::Result;

/// Ranges of each thread that are remembered, to be checked against the full scan at the end.
const RANGES_REMEMBERED: u64 = 2_000;

pub struct Context<'a, E> {
    pub engine: &'a E,
    pub config: &'a TidesConfig,
    pub values: &'a Values,
    pub clock: &'a Clock,
}

/// A range that was read: its ends and how many entries it gave.
#[derive(Clone, Debug)]
pub struct RangeRead {
    pub first: Vec<u8>,
    pub last: Vec<u8>,
    pub entries: u64,
}

/// What reads of a thread found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Keys that are there but were not found.
    pub missing: u64,
    /// Values that are not those written.
    pub wrong: u64,
    /// Entries that ranges read.
    pub entries: u64,
    pub ranges: Vec<RangeRead>,
}

impl Found {
    fn look(&mut self, value: Option<&[u8]>, expected: &[u8]) {
        match value {
            None => self.missing += 1,
            Some(value) => self.wrong += u64::from(value != expected),
        }
    }
}

/// The keys of a batch, one behind another, and their numbers.
struct Block {
    key_size: usize,
    keys: Vec<u8>,
    numbers: Vec<u64>,
}

impl Block {
    fn new(key_size: usize) -> Self {
        Self {
            key_size,
            keys: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Takes the next `batch` keys, fewer at the end. False if there are none.
    fn fill(&mut self, stream: &mut Keys, batch: u64) -> bool {
        let count = batch.min(stream.left()) as usize;
        self.numbers.clear();
        self.keys.resize(count * self.key_size, 0);
        for key in self.keys.chunks_exact_mut(self.key_size) {
            let Some(number) = stream.number() else { break };
            stream.write(number, key);
            self.numbers.push(number);
        }
        !self.numbers.is_empty()
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let keys = self.keys.chunks_exact(self.key_size);
        keys.zip(self.numbers.iter().copied())
    }
}

impl<E: Engine> Context<'_, E> {
    fn for_each_thread<T: Send>(
        &self,
        work: impl Fn(Keys, &mut Recorder<'_>) -> Result<T> + Sync,
    ) -> Result<Outcome<T>> {
        workers::run(self.clock, Keys::for_threads(self.config), work)
    }

    /// Fills batches with `add` and commits them; a batch is one sample.
    fn batches(
        &self,
        batch: u64,
        add: impl Fn(&mut E::Writes<'_>, &[u8], u64) -> Result<()> + Sync,
    ) -> Result<Outcome<()>> {
        self.for_each_thread(|mut stream, recorder| {
            let mut block = Block::new(self.config.key_size as usize);
            while block.fill(&mut stream, batch) {
                recorder.timed(block.numbers.len() as u64, || {
                    let mut writes = self.engine.begin_writes()?;
                    for (key, number) in block.entries() {
                        add(&mut writes, key, number)?;
                    }
                    writes.commit()
                })?;
            }
            Ok(())
        })
    }

    pub fn put(&self, batch: u64) -> Result<Outcome<()>> {
        self.batches(batch, |writes, key, number| {
            writes.put(key, self.values.at(number))
        })
    }

    pub fn delete(&self, batch: u64) -> Result<Outcome<()>> {
        self.batches(batch, |writes, key, _| writes.delete(key))
    }

    pub fn get(&self) -> Result<Outcome<Found>> {
        self.for_each_thread(|mut stream, recorder| {
            let mut found = Found::default();
            let mut key = vec![0; self.config.key_size as usize];
            let mut reads = FreshReads::new(self.engine, self.config.reads_per_snapshot);
            while let Some(number) = stream.number() {
                stream.write(number, &mut key);
                let expected = self.values.at(number);
                recorder.timed(1, || reads.read(&key, |value| found.look(value, expected)))?;
            }
            Ok(found)
        })
    }

    /// Every key is there, so a seek must arrive at the key itself.
    pub fn seek(&self) -> Result<Outcome<Found>> {
        self.for_each_thread(|mut stream, recorder| {
            let mut found = Found::default();
            let mut key = vec![0; self.config.key_size as usize];
            let mut snapshot = self.engine.snapshot(ReadMode::Latest)?;
            let mut cursor = snapshot.cursor()?;
            while let Some(number) = stream.number() {
                stream.write(number, &mut key);
                let expected = self.values.at(number);
                recorder.timed(1, || {
                    cursor.seek(&key)?;
                    let entry = cursor.entry().filter(|(at, _)| *at == key);
                    found.look(entry.map(|(_, value)| value), expected);
                    Ok(())
                })?;
            }
            Ok(found)
        })
    }

    /// A seek and up to `range_size` steps, each of which reads key and value.
    pub fn range(&self) -> Result<Outcome<Found>> {
        let remember_every =
            (self.config.operations / self.config.threads / RANGES_REMEMBERED).max(1);
        self.for_each_thread(|mut stream, recorder| {
            let mut found = Found::default();
            let mut key = vec![0; self.config.key_size as usize];
            let mut last = Vec::with_capacity(key.len());
            let mut snapshot = self.engine.snapshot(ReadMode::Latest)?;
            let mut cursor = snapshot.cursor()?;
            let mut ranges = 0u64;
            while let Some(number) = stream.number() {
                stream.write(number, &mut key);
                let expected = self.values.at(number);
                let entries = recorder.timed(1, || {
                    cursor.seek(&key)?;
                    let entry = cursor.entry().filter(|(at, _)| *at == key);
                    found.look(entry.map(|(_, value)| value), expected);
                    last.clear();
                    let mut entries = u64::from(entry.is_some());
                    while entries > 0 && entries <= self.config.range_size && cursor.next()? {
                        let Some((at, value)) = cursor.entry() else {
                            break;
                        };
                        last.clear();
                        last.extend_from_slice(at);
                        std::hint::black_box(value.iter().fold(0u8, |all, byte| all ^ byte));
                        entries += 1;
                    }
                    Ok(entries)
                })?;
                found.entries += entries;
                if entries > 0 && ranges.is_multiple_of(remember_every) {
                    found.ranges.push(RangeRead {
                        first: key.clone(),
                        last: if entries == 1 {
                            key.clone()
                        } else {
                            last.clone()
                        },
                        entries,
                    });
                }
                ranges += 1;
            }
            Ok(found)
        })
    }
}
