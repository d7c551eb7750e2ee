//! Bulk loads, and batches that would outgrow the write buffer: entries in any order, sorted outside of it, and merged into the private root.
//!
//! The entries are collected in a [`Run`]. Each run that fills up, and the last one, is sorted and merged. Entries that come in order are
//! appended to the tree in small runs, which stay in the processor's cache. Entries in no order rewrite what the runs before have written: their
//! runs are as large as memory allows.
//!
//! # Failure modes
//! Any error undoes the transaction: some of what it wrote is in no buffer any more.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    VALUE_BUFFERED_BYTES_MAX, WriteTxn,
    run::Run,
    write::{check_expires, check_key},
};
use crate::{
    Expiry, Keyspace, Result,
    batch::BatchStep,
    expiry::{check_expiring_value, stored},
    pager::Sink,
    recovery::OP_BYTES_EXPECTED,
    sync::Arc,
    tree::{self, Root, Terms},
    wal::ops::{EntryOp, OpsBuilder, Write},
};

/// Operations that are still logged, if the buffer is not smaller. More are cheaper in a checkpoint, which writes them once.
const LOGGED_BYTES_MAX: usize = 8 << 20;
/// What they take in the buffer into which recovery reads them, at most: half of the smallest one.
const RECOVERED_BYTES_MAX: usize = 32 << 20;
/// What a keyspace takes there, whatever is in it.
const RECOVERED_KEYSPACE_BYTES: usize = 1 << 10;
/// Least memory for runs: a tiny write buffer does not make tiny merges.
const RUN_BYTES_MIN: usize = 64 << 10;
/// Most of it. Places in a run are 32-bit offsets; what is pushed last may lie behind this.
const RUN_BYTES_MAX: usize = 1 << 31;
/// A run of entries that come in order. It stays in the cache, and another one in order behind it costs the nodes at the seam.
const ORDERED_RUN_BYTES: usize = 4 << 20;

/// When an entry expires that is loaded.
#[derive(Clone, Copy)]
enum Expires {
    /// Its value is as it is to be stored.
    AsStored,
    ByDefault,
    At(Expiry),
}

impl Expires {
    fn unless_said(keyspace: &Keyspace) -> Expires {
        match keyspace.core.expires() {
            false => Expires::AsStored,
            true => Expires::ByDefault,
        }
    }
}

/// What a load does with a key.
enum Step<'a> {
    Put(&'a [u8], Expires),
    Remove,
}

/// What is not merged yet of each part.
struct Load {
    collected: SmallVec<[Collected; 1]>,
    /// Of all runs.
    bytes_used: usize,
    bytes_max: usize,
}

impl Load {
    /// Makes room in the run of a part for so many entries of this size, within reason: memory that grows step by step is new, and touched for the
    /// first time, at each.
    fn expect(&mut self, part: usize, entries: usize, entry_bytes: usize) {
        let bytes_max = self.bytes_max.min(ORDERED_RUN_BYTES);
        self.collected[part]
            .run
            .reserve(entries, entry_bytes, bytes_max);
    }
}

struct Collected {
    run: Run,
    /// The greatest key of the runs before, if they were in order and there are any.
    last: Option<Vec<u8>>,
    /// Some key was not above the one before it.
    is_mixed: bool,
}

impl Collected {
    fn new(keyspace: u32) -> Collected {
        Collected {
            run: Run::new(keyspace),
            last: None,
            is_mixed: false,
        }
    }

    /// Notes whether a key that is about to be added comes behind the runs before.
    #[inline]
    fn look_at(&mut self, key: &[u8]) {
        if self.run.is_empty() && self.last.as_deref().is_some_and(|last| key <= last) {
            self.is_mixed = true;
        }
    }

    /// Whether every key so far was above the one before it; `key` is the last one. The run is merged if so.
    #[cold]
    fn is_in_order(&mut self, key: &[u8]) -> bool {
        self.is_mixed |= self.run.is_mixed();
        if !self.is_mixed {
            let last = self.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        !self.is_mixed
    }
}

impl WriteTxn {
    /// Writes many entries, in any order, as [`upsert`](WriteTxn::upsert) would one by one: of equal keys the last one counts. Returns how
    /// many were written, those of equal keys included.
    ///
    /// This is the fast way to load data. The entries do not go through the write buffer: they are sorted and merged into the tree, up to
    /// twice `buffer_bytes` at a time. Nobody sees them before the commit, which makes a checkpoint if they were more than a few MiB, or if one
    /// value has more than 16 KiB. The transaction becomes a direct one ([`Database::begin_direct`](crate::Database::begin_direct)); inside of a
    /// [nested](WriteTxn::nested) transaction the entries are written one by one. Keyspaces outside of the transaction are read from a newer
    /// snapshot afterwards.
    ///
    /// # Errors
    /// Those of `upsert`. They undo the transaction, as when one outgrows the buffer and the disk is full; inside of a nested transaction they undo what was
    /// written of these entries.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin_direct(&[&ks])?;
    /// let written = txn.ingest(&ks, (0..1_000u32).map(|n| (n.to_be_bytes(), b"value")))?;
    /// txn.commit()?;
    /// assert_eq!(written, 1_000);
    /// assert_eq!(db.snapshot().count(&ks, ..)?, 1_000);
    /// # Ok(()) }
    /// ```
    pub fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let expires = Expires::unless_said(keyspace);
        let entries = entries.into_iter();
        self.ingest_all(keyspace, entries.map(|(key, value)| (key, value, expires)))
    }

    /// As [`ingest`](WriteTxn::ingest), each entry with the moment of its expiry.
    ///
    /// # Errors
    /// Those of `upsert_expiring`. They undo the transaction, or in a nested one these entries.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin_direct(&[&ks])?;
    /// let hour = Expiry::After(Duration::from_secs(3600));
    /// txn.ingest_expiring(&ks, [(b"a", b"1", hour), (b"b", b"2", Expiry::Never)])?;
    /// txn.commit()?;
    /// assert_eq!(db.snapshot().expiry(&ks, b"b")?, Some(Expiry::Never));
    /// # Ok(()) }
    /// ```
    pub fn ingest_expiring<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        entries: impl IntoIterator<Item = (K, V, Expiry)>,
    ) -> Result<u64> {
        check_expires(keyspace)?;
        let entries = entries.into_iter();
        let entries = entries.map(|(key, value, expiry)| (key, value, Expires::At(expiry)));
        self.ingest_all(keyspace, entries)
    }

    /// As [`ingest`](WriteTxn::ingest), of values as they are stored. Not inside of a nested transaction.
    pub(crate) fn ingest_stored<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        debug_assert!(self.frames.is_empty());
        let entries = entries.into_iter();
        let entries = entries.map(|(key, value)| (key, value, Expires::AsStored));
        self.ingest_all(keyspace, entries)
    }

    fn ingest_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        entries: impl Iterator<Item = (K, V, Expires)>,
    ) -> Result<u64> {
        let index = self.part_index(keyspace)?;
        if !self.frames.is_empty() {
            // An error undoes this level, and not those around it.
            let mut level = self.nested();
            let mut written = 0;
            for (key, value, expires) in entries {
                let (key, value) = (key.as_ref(), value.as_ref());
                match expires {
                    Expires::At(expiry) => level.upsert_expiring(keyspace, key, value, expiry)?,
                    _ => level.upsert(keyspace, key, value)?,
                }
                written += 1;
            }
            level.commit();
            return Ok(written);
        }
        let result = self.try_ingest(index, entries);
        self.undone_by(result)
    }

    fn try_ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        index: usize,
        entries: impl Iterator<Item = (K, V, Expires)>,
    ) -> Result<u64> {
        let mut load = self.begin_load()?;
        let mut written = 0;
        let (expected, _) = entries.size_hint();
        for (key, value, expires) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            if written == 0 {
                load.expect(index, expected, key.len() + value.len());
            }
            self.load(&mut load, index, key, Step::Put(value, expires))?;
            written += 1;
        }
        self.finish_load(load)?;
        Ok(written)
    }

    /// Takes the steps of a batch, in their order, past the buffer: so many, with as many bytes each. The transaction is direct. An error undoes
    /// it.
    pub(crate) fn load_batch<'b>(
        &mut self,
        steps: impl Iterator<Item = BatchStep<'b>>,
        count: usize,
        step_bytes: usize,
    ) -> Result<()> {
        let result = self.try_load_batch(steps, count, step_bytes);
        self.undone_by(result)
    }

    /// The same for steps that are all puts and removals in the one keyspace of the transaction, whose entries do not expire, of values that go through buffers. They are
    /// not copied.
    pub(crate) fn load_ops(&mut self, ops: OpsBuilder) -> Result<()> {
        let result = self.try_load_ops(ops);
        self.undone_by(result)
    }

    /// Whether they do not take more memory than other loads.
    pub(crate) fn may_load_ops(&self, ops: &OpsBuilder) -> bool {
        Run::bytes_of(ops) <= self.run_bytes_max()
    }

    /// Memory for runs.
    fn run_bytes_max(&self) -> usize {
        let buffer_bytes = self.db.engine.options.buffer_bytes;
        (2 * buffer_bytes).clamp(RUN_BYTES_MIN, RUN_BYTES_MAX)
    }

    fn try_load_batch<'b>(
        &mut self,
        steps: impl Iterator<Item = BatchStep<'b>>,
        count: usize,
        step_bytes: usize,
    ) -> Result<()> {
        let mut load = self.begin_load()?;
        if self.parts.len() == 1 {
            load.expect(0, count, step_bytes);
        }
        for step in steps {
            let index = self.part_index(step.keyspace)?;
            let EntryOp { key, write, .. } = step.op;
            let step = match (write, step.expiry) {
                (Write::Put(value), Some(expiry)) => {
                    check_expires(step.keyspace)?;
                    Step::Put(value, Expires::At(expiry))
                }
                (Write::Put(value), None) => Step::Put(value, Expires::unless_said(step.keyspace)),
                (Write::Delete, _) => Step::Remove,
                _ => unreachable!("batches with other steps go through the buffer"),
            };
            self.load(&mut load, index, key, step)?;
        }
        self.finish_load(load)
    }

    fn try_load_ops(&mut self, ops: OpsBuilder) -> Result<()> {
        let mut load = self.begin_load()?;
        let part = &self.parts[0];
        let run = Run::of(part.id, ops, |key| part.check_no_subtree(key))?;
        load.bytes_used += run.bytes_used();
        load.collected[0].run = run;
        self.finish_load(load)
    }

    fn begin_load(&mut self) -> Result<Load> {
        self.settle_all()?;
        for part in &mut self.parts {
            part.guard.ends = None;
        }
        // What was written before comes first, in the tree and in the log.
        let is_untouched = self.is_buffer_untouched();
        let taken = match self.private {
            None => Some(self.leave_shared()?),
            Some(_) => None,
        };
        if !is_untouched {
            if !self.large_values.is_empty() {
                self.forgo_log();
            }
            match taken {
                Some(taken) => self.merge_taken(taken)?,
                None => {
                    self.keep_ops();
                    self.look_at_log(0, 0);
                    self.merge_and_go_on()?;
                }
            }
        }
        Ok(Load {
            collected: self
                .parts
                .iter()
                .map(|part| Collected::new(part.id))
                .collect(),
            bytes_used: 0,
            bytes_max: self.run_bytes_max(),
        })
    }

    fn load(&mut self, load: &mut Load, index: usize, key: &[u8], step: Step<'_>) -> Result<()> {
        check_key(key)?;
        self.parts[index].check_no_subtree(key)?;
        let collected = &mut load.collected[index];
        let bytes_before = collected.run.bytes_used();
        collected.look_at(key);
        match step {
            Step::Remove => collected.run.push(key, Write::Delete),
            Step::Put(value, expires) => {
                let with_moment;
                let value = match expires {
                    Expires::AsStored => value,
                    Expires::ByDefault | Expires::At(_) => {
                        check_expiring_value(value)?;
                        let expires = match expires {
                            Expires::At(expiry) => expiry.resolve(|| self.now())?,
                            _ => self.default_expiry(index)?,
                        };
                        with_moment = stored(expires, value);
                        &with_moment
                    }
                };
                if value.len() <= VALUE_BUFFERED_BYTES_MAX {
                    collected.run.push(key, Write::Put(value));
                } else {
                    self.forgo_log();
                    let (pointer, _) = self.place_large(value)?;
                    self.large_values.push((self.parts[index].slot, pointer));
                    collected.run.push(key, Write::PutLarge(&pointer.encode()));
                }
            }
        }
        let bytes_used = collected.run.bytes_used();
        load.bytes_used += bytes_used - bytes_before;
        if bytes_used >= ORDERED_RUN_BYTES && collected.is_in_order(key) {
            self.merge_runs(load, index..index + 1)?;
        }
        if load.bytes_used >= load.bytes_max {
            self.merge_runs(load, 0..self.parts.len())?;
        }
        Ok(())
    }

    fn finish_load(&mut self, mut load: Load) -> Result<()> {
        self.merge_runs(&mut load, 0..self.parts.len())
    }

    /// The log names no value outside of it that is merged before the commit: what is merged next may overwrite it, and its space is used
    /// again at once.
    pub(super) fn forgo_log(&mut self) {
        self.private
            .as_mut()
            .expect("the transaction is direct")
            .ops = None;
    }

    /// Merges the runs of some parts into their private roots, and empties them: of one part, or of all.
    fn merge_runs(&mut self, load: &mut Load, which: Range<usize>) -> Result<()> {
        let only_slot = (which.len() == 1).then(|| self.parts[which.start].slot);
        let runs = &mut load.collected[which.clone()];
        let runs = runs.iter_mut().map(|collected| &mut collected.run);
        let mut runs: SmallVec<[_; 1]> = which.zip(runs).filter(|(_, r)| !r.is_empty()).collect();
        if runs.is_empty() {
            return Ok(());
        }
        let engine = Arc::clone(&self.db.engine);
        let birth = self.birth();
        let entries: usize = runs.iter().map(|(_, run)| run.len()).sum();
        let bytes: usize = runs.iter().map(|(_, run)| run.bytes_used()).sum();
        self.look_at_log(entries, runs.iter().map(|(_, run)| run.ops_bytes()).sum());
        let mut adopted = Vec::new();
        let mut sink = Sink::new(&engine.pager, birth);
        let mut roots: SmallVec<[Root; 1]> = SmallVec::new();
        for (index, run) in &mut runs {
            run.sort();
            let part = &self.parts[*index];
            let now = self.part_now(part);
            let mut changes = run.changes(&mut adopted);
            roots.push(tree::merge(
                &mut sink,
                part.root,
                &[],
                &mut changes,
                Terms::at(now),
            )?);
        }
        let changes = sink.finish()?;
        let private = self.private.as_mut().expect("the transaction is direct");
        for ((index, run), root) in runs.into_iter().zip(roots) {
            self.parts[index].root = root;
            run.clear(private.ops.as_mut().filter(|_| engine.log.is_some()));
        }
        // As they were added: a sorted run has forgotten what equal keys took.
        load.bytes_used -= bytes;
        self.note_merged(only_slot, changes, &mut adopted);
        Ok(())
    }

    /// Gives the operations for the log up if they become too many with so many more.
    pub(super) fn look_at_log(&mut self, entries: usize, bytes: usize) {
        let logged_max = LOGGED_BYTES_MAX.min(self.db.engine.options.buffer_bytes);
        let private = self.private.as_mut().expect("the transaction is direct");
        if let Some(ops) = &private.ops {
            let bytes = ops.bytes_len() + bytes;
            let entries = ops.op_count() as usize + entries;
            let recovered = bytes
                + entries * OP_BYTES_EXPECTED as usize
                + self.parts.len() * RECOVERED_KEYSPACE_BYTES;
            if bytes > logged_max || recovered > RECOVERED_BYTES_MAX {
                private.ops = None;
            }
        }
    }
}
