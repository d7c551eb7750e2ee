//! Blind write batches from many threads.
//!
//! Batches queue behind one leader, which applies all that are waiting, each atomically.
//!
//! The leader never waits for a write lock: a batch whose keyspaces are being written to goes back to its own thread, which
//! waits by itself. Else one open transaction would stop the batches of all keyspaces, and who holds it could not write
//! any.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::{
    Durability, Expiry, Keyspace, Result, WriteTxn,
    database::{Database, DatabaseCore},
    engine::Engine,
    state::{Generation, State},
    sync::{Arc, Condvar, Mutex},
    txn::{TxnKind, VALUE_BUFFERED_BYTES_MAX, check_key_bytes, check_value_bytes, outgrows_buffer},
    wal::ops::{EntryOp, OpsBuilder, Write},
};

/// Puts and removals to be applied at once, without reading. Applied by [`Database::write`]. A batch has less than 2^32 steps; one more panics.
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
    /// From which step on they are about which of those, if not about the first.
    turns: Vec<(u32, u32)>,
    /// The steps, as the log will have them.
    ops: OpsBuilder,
    /// Bytes of keys and values that would go through the write buffer.
    buffered_bytes: usize,
    longest_key: usize,
    longest_value: usize,
    has_ranges: bool,
    /// Of the steps that name one, which are the operations with these numbers.
    expiries: Vec<(u32, Expiry)>,
    durability: Option<Durability>,
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
        self.note(keyspace, key, value);
        self.ops.put(keyspace.core.id, key, value);
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
        self.expiries.push((self.ops.op_count(), expiry));
        self.upsert(keyspace, key, value);
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
        self.note(keyspace, key, &[]);
        self.ops.delete(keyspace.core.id, key);
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
        self.note(keyspace, lo, &[]);
        self.note(keyspace, hi.unwrap_or_default(), &[]);
        self.has_ranges = true;
        self.ops.delete_range(keyspace.core.id, lo, hi);
    }

    /// Asks for a durability other than the database's. One that waits for the disk waits for the commits before the batch as well, also if that is empty.
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
        self.ops.op_count() as usize
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
        self.ops.is_empty()
    }

    /// Counts what a step has.
    #[inline]
    fn note(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
        let known = |other: &Keyspace| Arc::ptr_eq(&other.core, &keyspace.core);
        // Most batches are about one keyspace, or go on with the last.
        let index = match self.keyspaces.iter().rposition(known) {
            Some(index) => index as u32,
            None => {
                self.keyspaces.push(keyspace.clone());
                self.keyspaces.len() as u32 - 1
            }
        };
        if self.turns.last().map_or(0, |&(_, last)| last) != index {
            self.turns.push((self.ops.op_count(), index));
        }
        assert!(!self.ops.is_full(), "a batch has less than 2^32 steps");
        self.longest_key = self.longest_key.max(key.len());
        self.longest_value = self.longest_value.max(value.len());
        self.buffered_bytes += key.len();
        if value.len() <= VALUE_BUFFERED_BYTES_MAX {
            self.buffered_bytes += value.len();
        }
    }

    /// An error if a key or a value is too long.
    fn check_lengths(&self) -> Result<()> {
        check_key_bytes(self.longest_key)?;
        check_value_bytes(self.longest_value)
    }

    /// Its steps in their order.
    fn steps(&self) -> impl Iterator<Item = BatchStep<'_>> {
        let mut keyspace = self.keyspaces.first();
        let (mut turns, mut expiries) = (self.turns.iter(), self.expiries.iter());
        let (mut turn, mut expiring) = (turns.next(), expiries.next());
        let (mut number, mut at) = (0, 0);
        std::iter::from_fn(move || {
            if at == self.ops.bytes_len() {
                return None;
            }
            if let Some(&(from, index)) = turn
                && from == number
            {
                (keyspace, turn) = (self.keyspaces.get(index as usize), turns.next());
            }
            let mut expiry = None;
            if let Some(&(of, at)) = expiring
                && of == number
            {
                (expiry, expiring) = (Some(at), expiries.next());
            }
            let op = self.ops.entry_at(at);
            (at, number) = (op.end, number + 1);
            Some(BatchStep {
                keyspace: keyspace.expect("it was noted with the step"),
                op,
                expiry,
            })
        })
    }

    fn apply(&self, txn: &mut WriteTxn) -> Result<()> {
        self.check_lengths()?;
        if self.len() < STEPS_AHEAD / 4 {
            return self.steps().try_for_each(|step| step.apply(txn));
        }
        let mut ahead = self.steps();
        let mut ask = |txn: &WriteTxn| {
            let step = ahead.next()?;
            txn.prefetch_own_place(step.keyspace, step.op.key)
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
    fn load(mut self, txn: &mut WriteTxn) -> Result<()> {
        self.check_lengths()?;
        if self.is_plain() && txn.may_load_ops(&self.ops) {
            return txn.load_ops(std::mem::take(&mut self.ops));
        }
        let step_bytes = self.buffered_bytes.div_ceil(self.len());
        txn.load_batch(self.steps(), self.len(), step_bytes)
    }

    /// Whether its operations, none of which is a range, are as they are stored and logged, in one keyspace.
    fn is_plain(&self) -> bool {
        let [keyspace] = &self.keyspaces[..] else {
            return false;
        };
        !keyspace.core.expires()
            && self.expiries.is_empty()
            && self.longest_value <= VALUE_BUFFERED_BYTES_MAX
    }

    /// Whether it is not to go through the buffer: it would outgrow it, or is most of what its keyspaces will hold, which is merged sooner than
    /// it is put into a buffer in order.
    fn passes_buffer(&self, engine: &Engine) -> bool {
        if self.has_ranges {
            return false;
        }
        let buffer_bytes = engine.options.buffer_bytes;
        outgrows_buffer(self.len(), self.buffered_bytes, buffer_bytes)
            || (self.len() >= FILL_STEPS_MIN && self.fills(&engine.states.current()))
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
        entries <= self.len() as u64 / 2
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
pub(crate) struct BatchStep<'b> {
    pub keyspace: &'b Keyspace,
    pub op: EntryOp<'b>,
    /// Of a put that names one.
    pub expiry: Option<Expiry>,
}

impl BatchStep<'_> {
    #[inline]
    fn apply(&self, txn: &mut WriteTxn) -> Result<()> {
        let (keyspace, key) = (self.keyspace, self.op.key);
        match (self.op.write, self.expiry) {
            (Write::Put(value), None) => txn.upsert(keyspace, key, value),
            (Write::Put(value), Some(expiry)) => txn.upsert_expiring(keyspace, key, value, expiry),
            (Write::Delete, _) => txn.remove_blind(keyspace, key),
            (Write::DeleteRange(hi), _) => txn.remove_range(keyspace, key, hi),
            (Write::PutLarge(_), _) => unreachable!("a batch has values as they are given"),
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

impl Waiting {
    fn tell(&self, outcome: Outcome) {
        *self.result.lock() = Some(outcome);
        self.done.notify_all();
    }
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
            self.core.engine.check_writable()?;
            return match batch.durability {
                Some(durability) if durability.waits() => self.core.engine.flush_log(),
                _ => Ok(()),
            };
        }
        if batch.passes_buffer(&self.core.engine) {
            return self.write_past_buffer(batch);
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
        let mut group = Group::new(self);
        {
            let _leader = queue.leader.lock();
            // Not held while the group is written: the next one gathers meanwhile.
            group.waiting = std::mem::take(&mut *queue.waiting.lock()).into();
            group.log();
        }
        // Outside the lock: the next leader logs its group while this one waits for the disk.
        drop(group);
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
    fn write_past_buffer(&self, batch: WriteBatch) -> Result<()> {
        let durability = batch.durability;
        let mut txn = WriteTxn::begin(&self.core, &batch.distinct_keyspaces(), TxnKind::Direct)?;
        batch.load(&mut txn)?;
        txn.commit_with(durability.unwrap_or(self.core.engine.options.durability))
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

/// Batches that one thread writes for all that wait for them. When it is dropped each has its outcome: also if the clock that the database was given, or
/// a defect, makes that thread panic, which the others could not know.
struct Group<'d> {
    db: &'d Database,
    waiting: VecDeque<Arc<Waiting>>,
    logged: Vec<(Arc<Waiting>, Result<Option<Committed>>)>,
}

impl<'d> Group<'d> {
    fn new(db: &'d Database) -> Group<'d> {
        Group {
            db,
            waiting: VecDeque::new(),
            logged: Vec::new(),
        }
    }

    fn log(&mut self) {
        while let Some(waiting) = self.waiting.front() {
            let committed = write_logged(&self.db.core, &waiting.batch, false);
            let waiting = self.waiting.pop_front().expect("it is still there");
            self.logged.push((waiting, committed));
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for (waiting, committed) in self.logged.drain(..) {
            waiting.tell(match committed {
                Ok(None) => Outcome::Busy,
                Ok(Some(committed)) => Outcome::Done(self.db.finish_write(committed)),
                Err(error) => Outcome::Done(Err(error)),
            });
        }
        // Not written: their own threads try.
        for waiting in self.waiting.drain(..) {
            waiting.tell(Outcome::Busy);
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
    let record = (!batch.has_ranges && batch.is_plain()).then_some(&batch.ops);
    let durability = batch.durability.unwrap_or(db.engine.options.durability);
    txn.log_parts_as(record, durability).map(Some)
}
