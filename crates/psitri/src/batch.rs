//! Blind write batches from many threads.
//!
//! Batches queue behind one leader, which applies all that are waiting, each atomically.
//!
//! The leader never waits for a write lock: a batch whose keyspaces are being written to goes back to its own thread, which
//! waits by itself. Else one open transaction would stop the batches of all keyspaces, and who holds it could not write
//! any.

use crate::{
    Durability, Keyspace, Result, WriteTxn,
    database::{Database, DatabaseCore},
    sync::{Arc, Condvar, Mutex},
    txn::TxnKind,
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
    steps: Vec<Step>,
    durability: Option<Durability>,
}

#[derive(Clone)]
enum Step {
    Upsert(Keyspace, Vec<u8>, Vec<u8>),
    Remove(Keyspace, Vec<u8>),
    RemoveRange(Keyspace, Vec<u8>, Option<Vec<u8>>),
}

impl Step {
    fn keyspace(&self) -> &Keyspace {
        match self {
            Step::Upsert(keyspace, ..)
            | Step::Remove(keyspace, _)
            | Step::RemoveRange(keyspace, ..) => keyspace,
        }
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
        self.steps
            .push(Step::Upsert(keyspace.clone(), key.to_vec(), value.to_vec()));
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
        self.steps
            .push(Step::Remove(keyspace.clone(), key.to_vec()));
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
        self.steps.push(Step::RemoveRange(
            keyspace.clone(),
            lo.to_vec(),
            hi.map(<[u8]>::to_vec),
        ));
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
        self.steps.len()
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
        self.steps.is_empty()
    }

    fn apply(&self, txn: &mut WriteTxn) -> Result<()> {
        for step in &self.steps {
            match step {
                Step::Upsert(keyspace, key, value) => txn.upsert(keyspace, key, value)?,
                Step::Remove(keyspace, key) => txn.remove_blind(keyspace, key)?,
                Step::RemoveRange(keyspace, lo, hi) => {
                    txn.remove_range(keyspace, lo, hi.as_deref())?
                }
            }
        }
        Ok(())
    }
}

/// Batches that wait for a leader.
#[derive(Default)]
pub(crate) struct BatchQueue {
    waiting: Mutex<Vec<Arc<Waiting>>>,
    leader: Mutex<()>,
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
        let own = Arc::new(Waiting {
            batch,
            result: Mutex::new(None),
            done: Condvar::new(),
        });
        let queue = &self.core.batches;
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
            Outcome::Busy => {
                let committed = write_logged(&self.core, &own.batch, true)?;
                self.finish_write(committed.expect("it may wait"))
            }
        }
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
    let mut keyspaces: Vec<&Keyspace> = batch.steps.iter().map(Step::keyspace).collect();
    keyspaces.sort_unstable_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
    keyspaces.dedup_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
    let begun = WriteTxn::begin_or_give_up(db, &keyspaces, TxnKind::Buffered, waits)?;
    let Some(mut txn) = begun else {
        return Ok(None);
    };
    batch.apply(&mut txn)?;
    txn.log_parts(batch.durability.unwrap_or(db.engine.options.durability))
        .map(Some)
}
