//! Bulk loads: entries in any order, sorted outside of the write buffer, and merged into the private root.
//!
//! The entries are collected in a [`Run`]. Each run that fills up, and the last one, is sorted and merged. Entries that come in order are
//! appended to the tree in small runs, which stay in the processor's cache. Entries in no order rewrite what the runs before have written: their
//! runs are as large as memory allows.
//!
//! # Failure modes
//! Any error undoes the transaction: some of what it wrote is in no buffer any more.

use super::{
    VALUE_BUFFERED_BYTES_MAX, WriteTxn,
    run::Run,
    write::{check_expires, check_key},
};
use crate::{
    Expiry, Keyspace, Result,
    buffer::Kind,
    expiry::{check_expiring_value, stored},
    pager::Sink,
    recovery::OP_BYTES_EXPECTED,
    sync::Arc,
    tree,
};

/// Operations that are still logged, if the buffer is not smaller. More are cheaper in a checkpoint, which writes them once.
const LOGGED_BYTES_MAX: usize = 8 << 20;
/// What they take in the buffer into which recovery reads them, at most: half of the smallest one.
const RECOVERED_BYTES_MAX: usize = 32 << 20;
/// Smallest run: a tiny write buffer does not make tiny merges.
const RUN_BYTES_MIN: usize = 64 << 10;
/// A run of entries that come in order. It stays in the cache, and another one in order behind it costs the nodes at the seam.
const ORDERED_RUN_BYTES: usize = 4 << 20;
/// Places in a run are 32-bit offsets; what is pushed last may lie behind this.
const RUN_BYTES_MAX: usize = 1 << 31;

/// When an ingested entry expires.
#[derive(Clone, Copy)]
enum Expires {
    /// Its value is as it is to be stored.
    AsStored,
    ByDefault,
    At(Expiry),
}

impl WriteTxn {
    /// Writes many entries, in any order, as [`upsert`](WriteTxn::upsert) would one by one: of equal keys the last one counts. Returns how
    /// many were written, those of equal keys included.
    ///
    /// This is the fast way to load data. The entries do not go through the write buffer: they are sorted and merged into the tree, up to
    /// twice `buffer_bytes` at a time. Nobody sees them before the commit, which makes a checkpoint if they were more than a few MiB. The
    /// transaction becomes a direct one ([`Database::begin_direct`](crate::Database::begin_direct)); inside of a
    /// [nested](WriteTxn::nested) transaction the entries are written one by one. Keyspaces outside of the transaction are read from a newer
    /// snapshot afterwards.
    ///
    /// # Errors
    /// Those of `upsert`. They undo the transaction, as when one outgrows the buffer and the disk is full.
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
        let expires = match keyspace.core.expires() {
            false => Expires::AsStored,
            true => Expires::ByDefault,
        };
        let entries = entries.into_iter();
        self.ingest_all(keyspace, entries.map(|(key, value)| (key, value, expires)))
    }

    /// As [`ingest`](WriteTxn::ingest), each entry with the moment of its expiry.
    ///
    /// # Errors
    /// Those of `upsert_expiring`. They undo the transaction.
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
            let mut written = 0;
            for (key, value, expires) in entries {
                let (key, value) = (key.as_ref(), value.as_ref());
                match expires {
                    Expires::At(expiry) => self.upsert_expiring(keyspace, key, value, expiry)?,
                    _ => self.upsert(keyspace, key, value)?,
                }
                written += 1;
            }
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
        if self.private.is_none() {
            self.turn_private()?;
        }
        self.parts[index].guard.ends = None;
        // What was written before comes first, in the tree and in the log.
        if !self.is_buffer_untouched() {
            if !self.large_values.is_empty() {
                self.forgo_log();
            }
            self.keep_ops();
            self.merge_and_go_on()?;
        }
        let buffer_bytes = self.db.engine.options.buffer_bytes;
        let run_bytes = (2 * buffer_bytes).clamp(RUN_BYTES_MIN, RUN_BYTES_MAX);
        let ordered_run_bytes = run_bytes.min(ORDERED_RUN_BYTES);
        let mut run = Run::default();
        // The greatest key of the runs before, as long as every key was above the one before it.
        let mut in_order = Some(Vec::new());
        let mut written = 0;
        for (key, value, expires) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            check_key(key)?;
            self.parts[index].check_no_subtree(key)?;
            if run.is_empty() && written > 0 && in_order.as_ref().is_some_and(|last| key <= last) {
                in_order = None;
            }
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
                run.push(key, Kind::Value, value);
            } else {
                self.forgo_log();
                let (pointer, _) = self.place_large(value)?;
                self.large_values.push((self.parts[index].slot, pointer));
                run.push(key, Kind::Large, &pointer.encode());
            }
            written += 1;
            let bytes_used = run.bytes_used();
            if bytes_used >= ordered_run_bytes {
                if run.is_mixed() {
                    in_order = None;
                }
                if let Some(last) = &mut in_order {
                    last.clear();
                    last.extend_from_slice(key);
                }
                if in_order.is_some() || bytes_used >= run_bytes {
                    self.merge_run(index, &mut run)?;
                }
            }
        }
        self.merge_run(index, &mut run)?;
        Ok(written)
    }

    /// The log names no value outside of it that is merged before the commit: what is merged next may overwrite it, and its space is used
    /// again at once.
    fn forgo_log(&mut self) {
        self.private
            .as_mut()
            .expect("the transaction is direct")
            .ops = None;
    }

    /// Merges a run into the private root of a part, and empties it.
    fn merge_run(&mut self, index: usize, run: &mut Run) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        run.sort();
        let engine = Arc::clone(&self.db.engine);
        let birth = self.birth();
        let now = self.part_now(&self.parts[index]);
        let private = self.private.as_mut().expect("the transaction is direct");
        if let Some(ops) = &private.ops {
            let bytes = ops.bytes_len() + run.bytes_used();
            let entries = ops.op_count() as usize + run.len();
            let recovered = bytes + entries * OP_BYTES_EXPECTED as usize;
            let logged_max = LOGGED_BYTES_MAX.min(engine.options.buffer_bytes);
            if bytes > logged_max || recovered > RECOVERED_BYTES_MAX {
                private.ops = None;
            }
        }
        let part = &mut self.parts[index];
        let ops = private.ops.as_mut().filter(|_| engine.log.is_some());
        let ops = ops.map(|ops| (ops, part.id));
        let mut adopted = Vec::new();
        let mut sink = Sink::new(&engine.pager, birth);
        let mut changes = run.changes(&mut adopted, ops);
        let root = tree::merge(&mut sink, part.root, &[], &mut changes, now)?;
        let changes = sink.finish()?;
        part.root = root;
        self.note_merged(changes, &mut adopted);
        run.clear();
        Ok(())
    }
}
