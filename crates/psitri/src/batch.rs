//! Blind write batches from many threads.
//!
//! Batches queue behind one leader, which applies all that are waiting, each atomically.
//!
//! The leader never waits for a write lock: a batch whose keyspaces are being written to goes back to its own thread, which
//! waits by itself. Else one open transaction would stop the batches of all keyspaces, and who holds it could not write
//! any.

use smallvec::SmallVec;

use crate::{
    Durability, Expiry, Keyspace, Result, WriteTxn,
    database::{Database, DatabaseCore},
    engine::Engine,
    state::{Generation, State},
    sync::{Arc, Condvar, Mutex},
    txn::{BatchStep, TxnKind, VALUE_BUFFERED_BYTES_MAX, outgrows_buffer},
};

/// Puts and removals to be applied at once, without reading. Applied by [`Database::write`].
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// # let ks = db.create_keyspace("k")?;
/// let mut batch = psitri::WriteBatch::new();
/// batch.upsert(&ks, b"a", b"1");
/// batch.remove(&ks, b"b");
/// db.write(batch)?;
/// assert_eq!(db.get(&ks, b"a")?.as_deref(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
#[derive(Default, Clone)]
pub struct WriteBatch {
    /// All that steps are about, each once.
    keyspaces: SmallVec<[Keyspace; 1]>,
    /// The steps one behind the other: [`Header`], first bytes, second bytes.
    bytes: Vec<u8>,
    steps: usize,
    /// Bytes of keys and values that would go through the write buffer.
    buffered_bytes: usize,
    has_ranges: bool,
    /// Of the steps that name one, in their order.
    expiries: Vec<Expiry>,
    durability: Option<Durability>,
}

/// What a step does with its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// A key and a value.
    Upsert,
    /// A key and a value that expires: the next of `expiries`.
    UpsertExpiring,
    /// A key.
    Remove,
    /// A range's ends.
    RemoveRange,
    /// A range's lower end.
    RemoveTail,
}

/// What is in front of a step's bytes: native words, as a batch never leaves the process.
struct Header {
    action: Action,
    keyspace: u32,
    first_bytes: usize,
    second_bytes: usize,
}

const HEADER_BYTES: usize = 1 + 4 + 8 + 8;

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [self.action as u8; HEADER_BYTES];
        bytes[1..5].copy_from_slice(&self.keyspace.to_ne_bytes());
        bytes[5..13].copy_from_slice(&self.first_bytes.to_ne_bytes());
        bytes[13..].copy_from_slice(&self.second_bytes.to_ne_bytes());
        bytes
    }

    /// The header at the front, and what is behind it.
    fn decode(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let word =
            |at: usize| usize::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let actions = [
            Action::Upsert,
            Action::UpsertExpiring,
            Action::Remove,
            Action::RemoveRange,
            Action::RemoveTail,
        ];
        let header = Header {
            action: actions[usize::from(header[0])],
            keyspace: u32::from_ne_bytes(header[1..5].try_into().expect("4 bytes")),
            first_bytes: word(5),
            second_bytes: word(13),
        };
        Some((header, rest))
    }
}

impl WriteBatch {
    /// An empty batch.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// let batch = psitri::WriteBatch::new();
    /// assert!(batch.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Sets the value of a key.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// batch.upsert(&ks, b"k", b"v");
    /// db.write(batch)?;
    /// assert!(db.get(&ks, b"k")?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn upsert(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
        self.push(Action::Upsert, keyspace, key, value);
    }

    /// Sets the value of a key until it expires; see [`WriteTxn::upsert_expiring`]. The time counts from when the batch is applied. In a
    /// keyspace whose entries do not expire the batch fails with [`Error::NoExpiry`](crate::Error::NoExpiry).
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut batch = psitri::WriteBatch::new();
    /// batch.upsert_expiring(&ks, b"k", b"v", Expiry::After(Duration::from_secs(60)));
    /// db.write(batch)?;
    /// assert!(matches!(db.snapshot().expiry(&ks, b"k")?, Some(Expiry::At(_))));
    /// # Ok(()) }
    /// ```
    pub fn upsert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) {
        self.expiries.push(expiry);
        self.push(Action::UpsertExpiring, keyspace, key, value);
    }

    /// Removes a key, present or not.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// batch.upsert(&ks, b"k", b"v");
    /// batch.remove(&ks, b"k"); // later steps win
    /// db.write(batch)?;
    /// assert_eq!(db.get(&ks, b"k")?, None);
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.push(Action::Remove, keyspace, key, &[]);
    }

    /// Removes the keys from `lo` up to, but not including, `hi`.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// batch.upsert(&ks, b"a", b"1");
    /// batch.upsert(&ks, b"b", b"1");
    /// batch.remove_range(&ks, b"b", None); // to the end
    /// db.write(batch)?;
    /// assert_eq!(db.snapshot().count(&ks, ..)?, 1);
    /// # Ok(()) }
    /// ```
    pub fn remove_range(&mut self, keyspace: &Keyspace, lo: &[u8], hi: Option<&[u8]>) {
        match hi {
            Some(hi) => self.push(Action::RemoveRange, keyspace, lo, hi),
            None => self.push(Action::RemoveTail, keyspace, lo, &[]),
        }
    }

    /// Asks for a durability other than the database's.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// batch.upsert(&ks, b"k", b"v");
    /// batch.durability(psitri::Durability::Sync);
    /// db.write(batch)?;
    /// # Ok(()) }
    /// ```
    pub fn durability(&mut self, durability: Durability) {
        self.durability = Some(durability);
    }

    /// Number of steps.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// batch.upsert(&ks, b"k", b"v");
    /// batch.remove(&ks, b"k");
    /// assert_eq!(batch.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.steps
    }

    /// Whether there are no steps.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut batch = psitri::WriteBatch::new();
    /// assert!(batch.is_empty());
    /// db.write(batch)?; // does nothing
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    #[inline]
    fn push(&mut self, action: Action, keyspace: &Keyspace, first: &[u8], second: &[u8]) {
        let known = |other: &Keyspace| Arc::ptr_eq(&other.core, &keyspace.core);
        // Most batches are about one keyspace, or go on with the last.
        let keyspace = match self.keyspaces.iter().rposition(known) {
            Some(index) => index,
            None => {
                self.keyspaces.push(keyspace.clone());
                self.keyspaces.len() - 1
            }
        };
        let header = Header {
            action,
            keyspace: u32::try_from(keyspace).expect("there are no more than 65,536 keyspaces"),
            first_bytes: first.len(),
            second_bytes: second.len(),
        };
        self.bytes
            .reserve(HEADER_BYTES + first.len() + second.len());
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        self.steps += 1;
        self.buffered_bytes += first.len();
        if second.len() <= VALUE_BUFFERED_BYTES_MAX {
            self.buffered_bytes += second.len();
        }
        self.has_ranges |= matches!(action, Action::RemoveRange | Action::RemoveTail);
    }

    /// Its steps in their order. `second` of a range is its end.
    fn steps(&self) -> impl Iterator<Item = BatchEntry<'_>> {
        let mut bytes = &self.bytes[..];
        let mut expiries = self.expiries.iter().copied();
        std::iter::from_fn(move || {
            let (header, rest) = Header::decode(bytes)?;
            let (first, rest) = rest.split_at(header.first_bytes);
            let (second, rest) = rest.split_at(header.second_bytes);
            bytes = rest;
            let expiry = (header.action == Action::UpsertExpiring)
                .then(|| expiries.next().expect("each of these steps has one"));
            Some(BatchEntry {
                action: header.action,
                keyspace: &self.keyspaces[header.keyspace as usize],
                first,
                second,
                expiry: expiry.unwrap_or(Expiry::Never),
            })
        })
    }

    fn apply(&self, txn: &mut WriteTxn) -> Result<()> {
        if self.steps < STEPS_AHEAD / 4 {
            return self.steps().try_for_each(|step| step.apply(txn));
        }
        let mut ahead = self.steps();
        let mut ask = |txn: &WriteTxn| {
            let step = ahead.next()?;
            txn.prefetch_own_place(step.keyspace, step.first)
        };
        let mut asked: [_; STEPS_AHEAD] = std::array::from_fn(|_| ask(txn));
        for (number, step) in self.steps().enumerate() {
            if let Some(place) = asked[(number + STEPS_AHEAD / 2) % STEPS_AHEAD].take() {
                txn.prefetch_own_entry(place);
            }
            asked[number % STEPS_AHEAD] = ask(txn);
            step.apply(txn)?;
        }
        Ok(())
    }

    /// As [`WriteBatch::apply`], to a direct transaction, past its buffer. Ranges go through the buffer: the batch has none.
    fn load(&self, txn: &mut WriteTxn) -> Result<()> {
        let steps = self.steps().map(|step| {
            let does = match step.action {
                Action::Upsert => BatchStep::Upsert(step.second),
                Action::UpsertExpiring => BatchStep::UpsertExpiring(step.second, step.expiry),
                Action::Remove => BatchStep::Remove,
                Action::RemoveRange | Action::RemoveTail => unreachable!("the batch has no ranges"),
            };
            (step.keyspace, step.first, does)
        });
        let step_bytes = self.buffered_bytes.div_ceil(self.steps.max(1));
        txn.load_batch(steps, self.steps, step_bytes)
    }

    /// Whether it is not to go through the buffer: it would outgrow it, or is most of what its keyspaces will hold, which is merged sooner than
    /// it is put into a buffer in order.
    fn passes_buffer(&self, engine: &Engine) -> bool {
        if self.has_ranges {
            return false;
        }
        let buffer_bytes = engine.options.buffer_bytes;
        outgrows_buffer(self.steps, self.buffered_bytes, buffer_bytes)
            || (self.steps >= FILL_STEPS_MIN && self.fills(&engine.states.current()))
    }

    /// Whether its keyspaces have few entries beside its steps, and none that wait to be merged.
    fn fills(&self, state: &State) -> bool {
        let mut entries = 0;
        for keyspace in &self.keyspaces {
            let (slot, id) = (keyspace.core.slot, keyspace.core.id);
            let Some(keyspace) = state.keyspace(slot, id) else {
                return false;
            };
            let is_waiting = |generation: &Arc<Generation>| {
                generation.id > keyspace.generation_merged
                    && (generation.buffer(slot)).is_some_and(|buffer| !buffer.is_empty())
            };
            if state.generations.iter().any(is_waiting) {
                return false;
            }
            entries += keyspace.root.keys;
        }
        entries <= self.steps as u64 / 2
    }

    /// The keyspaces it writes to: two handles may be of one.
    fn distinct_keyspaces(&self) -> SmallVec<[&Keyspace; 4]> {
        let mut keyspaces: SmallVec<[&Keyspace; 4]> = self.keyspaces.iter().collect();
        keyspaces.sort_unstable_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
        keyspaces.dedup_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
        keyspaces
    }
}

/// A step of a batch.
struct BatchEntry<'b> {
    action: Action,
    keyspace: &'b Keyspace,
    first: &'b [u8],
    second: &'b [u8],
    /// Of a step that names one.
    expiry: Expiry,
}

impl BatchEntry<'_> {
    fn apply(&self, txn: &mut WriteTxn) -> Result<()> {
        let (keyspace, first, second) = (self.keyspace, self.first, self.second);
        match self.action {
            Action::Upsert => txn.upsert(keyspace, first, second),
            Action::UpsertExpiring => txn.upsert_expiring(keyspace, first, second, self.expiry),
            Action::Remove => txn.remove_blind(keyspace, first),
            Action::RemoveRange => txn.remove_range(keyspace, first, Some(second)),
            Action::RemoveTail => txn.remove_range(keyspace, first, None),
        }
    }
}

/// How many steps ahead of its search a key is asked for: first its place in the directory, halfway its entry. The misses of several steps overlap
/// then; those of searches that follow one another do not. Batches of a few steps are not worth it.
const STEPS_AHEAD: usize = 16;

/// Steps from which a batch may fill a keyspace past the buffer. Fewer are not worth a root of their own.
const FILL_STEPS_MIN: usize = 4096;

/// Batches that wait for a leader.
#[derive(Default)]
pub(crate) struct BatchQueue {
    waiting: Mutex<Vec<Arc<Waiting>>>,
    leader: Mutex<()>,
}

impl BatchQueue {
    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

struct Waiting {
    batch: WriteBatch,
    result: Mutex<Option<Outcome>>,
    done: Condvar,
}

enum Outcome {
    Done(Result<()>),
    /// A write lock is taken: its own thread has to wait for it.
    Busy,
}

impl Database {
    /// Applies a batch atomically. Any number of threads may do so at once; they share the cost of locks and, with
    /// [`Durability::Sync`], of flushes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// std::thread::scope(|s| {
    ///     for n in 0..4u8 {
    ///         let (db, ks) = (&db, &ks);
    ///         s.spawn(move || {
    ///             let mut batch = psitri::WriteBatch::new();
    ///             batch.upsert(ks, &[n], b"-");
    ///             db.write(batch).unwrap();
    ///         });
    ///     }
    /// });
    /// assert_eq!(db.snapshot().count(&ks, ..)?, 4);
    /// # Ok(()) }
    /// ```
    pub fn write(&self, batch: WriteBatch) -> Result<()> {
        if batch.is_empty() {
            return self.core.engine.check_writable();
        }
        if batch.passes_buffer(&self.core.engine) {
            return self.write_past_buffer(&batch);
        }
        let queue = &self.core.batches;
        // Nobody else is at it: no queue.
        if let Some(leader) = queue.leader.try_lock()
            && queue.is_empty()
        {
            let committed = write_logged(&self.core, &batch, false);
            drop(leader);
            return match committed? {
                Some(committed) => self.finish_write(committed),
                None => self.write_waiting(&batch),
            };
        }
        let own = Arc::new(Waiting {
            batch,
            result: Mutex::new(None),
            done: Condvar::new(),
        });
        queue.waiting.lock().push(Arc::clone(&own));
        let group = {
            let _leader = queue.leader.lock();
            // Not held while the group is written: the next one gathers meanwhile.
            let waiting = std::mem::take(&mut *queue.waiting.lock());
            waiting
                .into_iter()
                .map(|waiting| {
                    let committed = write_logged(&self.core, &waiting.batch, false);
                    (waiting, committed)
                })
                .collect::<Vec<_>>()
        };
        // Outside the lock: the next leader logs its group while this one waits for the disk.
        for (waiting, committed) in group {
            let outcome = match committed {
                Ok(None) => Outcome::Busy,
                Ok(Some(committed)) => Outcome::Done(self.finish_write(committed)),
                Err(error) => Outcome::Done(Err(error)),
            };
            *waiting.result.lock() = Some(outcome);
            waiting.done.notify_all();
        }
        let mut result = own.result.lock();
        let outcome = loop {
            match result.take() {
                Some(outcome) => break outcome,
                None => own.done.wait(&mut result),
            }
        };
        drop(result);
        match outcome {
            Outcome::Done(result) => result,
            Outcome::Busy => self.write_waiting(&own.batch),
        }
    }

    /// Writes a batch as a direct transaction. One that would outgrow the buffer would end as one after going through two buffers.
    fn write_past_buffer(&self, batch: &WriteBatch) -> Result<()> {
        let keyspaces = batch.distinct_keyspaces();
        let mut txn = WriteTxn::begin(&self.core, &keyspaces, TxnKind::Direct)?;
        batch.load(&mut txn)?;
        txn.commit_with(
            batch
                .durability
                .unwrap_or(self.core.engine.options.durability),
        )
    }

    /// Writes a batch whose keyspaces are being written to.
    fn write_waiting(&self, batch: &WriteBatch) -> Result<()> {
        let committed = write_logged(&self.core, batch, true)?;
        self.finish_write(committed.expect("it may wait"))
    }

    fn finish_write(&self, committed: Committed) -> Result<()> {
        match committed {
            Some(logged) => self.core.engine.finish_commit(logged),
            None => Ok(()),
        }
    }
}

/// What a commit may still have to wait for.
type Committed = Option<crate::commit::Logged>;

/// Applies a batch and logs it. `None`: a write lock is taken and `waits` is false.
fn write_logged(
    db: &Arc<DatabaseCore>,
    batch: &WriteBatch,
    waits: bool,
) -> Result<Option<Committed>> {
    let keyspaces = batch.distinct_keyspaces();
    let begun = WriteTxn::begin_or_give_up(db, &keyspaces, TxnKind::Buffered, waits)?;
    let Some(mut txn) = begun else {
        return Ok(None);
    };
    batch.apply(&mut txn)?;
    txn.log_parts(batch.durability.unwrap_or(db.engine.options.durability))
        .map(Some)
}
