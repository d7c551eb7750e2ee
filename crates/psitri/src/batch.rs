//! Blind write batches from many threads.
//!
//! Batches queue behind one leader, which applies all that are waiting, each atomically, while it holds the write locks.

use crate::{
    Durability, Keyspace, Result, WriteTxn,
    database::{Database, DatabaseCore},
    error::Error,
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
    result: Mutex<Option<Result<()>>>,
    done: Condvar,
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
                    let committed = write_logged(&self.core, &waiting.batch);
                    (waiting, committed)
                })
                .collect::<Vec<_>>()
        };
        // Outside the lock: the next leader logs its group while this one waits for the disk.
        for (waiting, committed) in group {
            let result = committed.and_then(|logged| match logged {
                Some(logged) => self.core.engine.finish_commit(logged),
                None => Ok(()),
            });
            *waiting.result.lock() = Some(result);
            waiting.done.notify_all();
        }
        let mut result = own.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            own.done.wait(&mut result);
        }
    }
}

fn write_logged(
    db: &Arc<DatabaseCore>,
    batch: &WriteBatch,
) -> Result<Option<crate::commit::Logged>> {
    let mut keyspaces: Vec<&Keyspace> = batch.steps.iter().map(Step::keyspace).collect();
    keyspaces.sort_unstable_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
    keyspaces.dedup_by_key(|keyspace| (keyspace.core.database, keyspace.core.id));
    if keyspaces
        .iter()
        .any(|keyspace| keyspace.core.database != db.engine.id)
    {
        return Err(Error::ForeignKeyspace);
    }
    let mut txn = WriteTxn::begin(db, &keyspaces, TxnKind::Buffered)?;
    batch.apply(&mut txn)?;
    txn.log_parts(batch.durability.unwrap_or(db.engine.options.durability))
}
