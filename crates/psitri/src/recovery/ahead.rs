//! The log, read ahead of the recovery that puts it back: on a thread of its own, which checks records, takes them apart into [`Step`]s, and
//! touches the memory that the buffers will need.
//!
//! Putting back is nothing but misses of the caches in one buffer after the other, each of which has one writer; what else replay has to do is
//! a third of its time, and needs to know nothing of what was put back.
//!
//! # Thread safety
//! The thread ends before [`read_ahead`] returns. It has storage, parts that nobody else has, and the arena of a generation, of which it only
//! touches memory.
//!
//! # Invariants
//! (1) Parts come in the order of the log, each with whole records.
//! (2) All that the log has was applied when `read_ahead` returns what the reading found, or `apply` said that no more is wanted.
//! (3) Of a log that is shorter than a part nothing is applied before all of it was read.

use std::{
    panic::resume_unwind,
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread,
};

use crate::{
    Result,
    buffer::{Kind, hash_of},
    state::Generation,
    storage::StorageError,
    sync::Arc,
    wal::{
        Record, WalError,
        ops::{Op, OpsIter},
    },
};

/// Payload of a part, but for the last record in it. Little in tests, whose logs are short.
const PART_BYTES: usize = if cfg!(debug_assertions) {
    4 << 10
} else {
    256 << 10
};
/// Parts that wait to be put back.
const PARTS_AHEAD: usize = 3;
const THREAD_NAME: &str = "psitri-replay";

/// Records of the log, one after the other, with their operations.
#[derive(Default)]
pub(super) struct Part {
    payloads: Vec<u8>,
    records: Vec<RecordAt>,
    /// Of all records that consist of nothing else.
    steps: Vec<Step>,
}

struct RecordAt {
    csn: u64,
    lsn: u64,
    end_lsn: u64,
    op_count: u32,
    payload: usize,
    payload_bytes: usize,
    /// How many steps it has, if it is made of steps.
    steps: Option<usize>,
}

/// A value or a tombstone that is to be put back. Places are those in the payload of the record.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub keyspace: u32,
    pub hash: u32,
    pub kind: Kind,
    key: u32,
    key_bytes: u32,
    value: u32,
    value_bytes: u32,
}

impl Step {
    pub fn key<'r>(&self, record: &Record<'r>) -> &'r [u8] {
        &record.payload[self.key as usize..][..self.key_bytes as usize]
    }

    pub fn value<'r>(&self, record: &Record<'r>) -> &'r [u8] {
        &record.payload[self.value as usize..][..self.value_bytes as usize]
    }

    /// `None` if it is another operation than a value or a tombstone.
    fn of(payload: &[u8], op: Op<'_>) -> Option<Step> {
        let (keyspace, kind, key, value) = match op {
            Op::Put {
                keyspace,
                key,
                value,
            } => (keyspace, Kind::Value, key, value),
            Op::Delete { keyspace, key } => (keyspace, Kind::Tombstone, key, &payload[..0]),
            _ => return None,
        };
        // Less than the 4 GiB of a payload.
        let place = |bytes: &[u8]| (bytes.as_ptr().addr() - payload.as_ptr().addr()) as u32;
        Some(Step {
            keyspace,
            hash: hash_of(key),
            kind,
            key: place(key),
            key_bytes: key.len() as u32,
            value: place(value),
            value_bytes: value.len() as u32,
        })
    }
}

impl Part {
    fn clear(&mut self) {
        self.payloads.clear();
        self.records.clear();
        self.steps.clear();
    }

    fn push(&mut self, record: &Record<'_>) {
        let steps_before = self.steps.len();
        let mut is_steps = true;
        for op in OpsIter::new(record.payload, record.op_count) {
            // An error is reported where the record is put back, if it comes to that.
            let step = op.ok().and_then(|op| Step::of(record.payload, op));
            match step {
                Some(step) => self.steps.push(step),
                None => {
                    self.steps.truncate(steps_before);
                    is_steps = false;
                    break;
                }
            }
        }
        self.records.push(RecordAt {
            csn: record.csn,
            lsn: record.lsn,
            end_lsn: record.end_lsn,
            op_count: record.op_count,
            payload: self.payloads.len(),
            payload_bytes: record.payload.len(),
            steps: is_steps.then(|| self.steps.len() - steps_before),
        });
        self.payloads.extend_from_slice(record.payload);
    }

    /// Each record with the number of its steps, if it is made of steps; and the steps that come, its own first.
    pub fn records(&self) -> impl Iterator<Item = (Record<'_>, Option<usize>, &[Step])> {
        let mut next = 0;
        self.records.iter().map(move |at| {
            let record = Record {
                csn: at.csn,
                op_count: at.op_count,
                payload: &self.payloads[at.payload..][..at.payload_bytes],
                lsn: at.lsn,
                end_lsn: at.end_lsn,
            };
            let coming = &self.steps[next..];
            next += at.steps.unwrap_or(0);
            (record, at.steps, coming)
        })
    }
}

/// The thread's side.
struct Collector {
    part: Part,
    full: SyncSender<Part>,
    /// Parts to be used again, with what is filled next.
    spent: Receiver<(Part, Arc<Generation>)>,
    buffer_bytes: u64,
}

impl Collector {
    /// Adds a record. `false`: no more are wanted.
    fn add(&mut self, record: &Record<'_>) -> bool {
        self.part.push(record);
        self.part.payloads.len() < PART_BYTES || self.hand_over()
    }

    fn hand_over(&mut self) -> bool {
        let mut next = Part::default();
        while let Ok((spent, generation)) = self.spent.try_recv() {
            generation.populate_ahead(self.buffer_bytes);
            // What a large record made of it is not needed again.
            if spent.payloads.capacity() <= 2 * PART_BYTES {
                next = spent;
                next.clear();
            }
        }
        let full = std::mem::replace(&mut self.part, next);
        self.full.send(full).is_ok()
    }
}

/// Has `read` read the log on a thread of its own, and what it finds put back by `apply`, which says what generation it is going to fill next.
/// Returns what `read` did; `None` if `apply` did, which is that no more is wanted.
pub(super) fn read_ahead<T: Send>(
    buffer_bytes: u64,
    read: impl FnOnce(&mut dyn FnMut(Record<'_>) -> Result<bool, WalError>) -> Result<T, WalError>
    + Send,
    apply: impl FnMut(&Part) -> Result<Option<Arc<Generation>>>,
) -> Result<Option<T>> {
    let (full, parts) = sync_channel(PARTS_AHEAD);
    let (give_back, spent) = channel();
    let mut collector = Collector {
        part: Part::default(),
        full,
        spent,
        buffer_bytes,
    };
    thread::scope(|scope| {
        let reading = thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn_scoped(scope, move || {
                let found = read(&mut |record| Ok(collector.add(&record)));
                // What comes before damage is put back, and may be what is wrong.
                collector.hand_over();
                found
            });
        let reading = reading.map_err(|source| {
            StorageError::io("start", &format!("thread {THREAD_NAME}"), source)
        })?;
        let applied = apply_all(parts, give_back, apply);
        let found = reading.join().unwrap_or_else(|panic| resume_unwind(panic));
        match applied? {
            true => Ok(Some(found?)),
            false => Ok(None),
        }
    })
}

/// Applies parts as they come. Returns whether that was to their end. The thread that reads stops when it finds nobody there any more.
fn apply_all(
    parts: Receiver<Part>,
    give_back: Sender<(Part, Arc<Generation>)>,
    mut apply: impl FnMut(&Part) -> Result<Option<Arc<Generation>>>,
) -> Result<bool> {
    for part in parts {
        let Some(generation) = apply(&part)? else {
            return Ok(false);
        };
        // It is at its end if it does not want it.
        let _ = give_back.send((part, generation));
    }
    Ok(true)
}
