//! The operations of a transaction that change something.

use std::{ops::Bound, time::Duration};

use super::{Part, VALUE_BUFFERED_BYTES_MAX, WriteTxn};
use crate::{
    Expiry, KEY_BYTES_MAX, Keyspace, Result, VALUE_BYTES_MAX,
    buffer::{EntryRef, Kind},
    engine::buffer_error,
    error::Error,
    expiry::{check_expiring_value, stored},
    keyspace::{Touched, WriterSlot},
    node::ValuePointer,
    pager::{Extent, Sink},
    state::ArenaPool,
};

/// What an entry takes in the buffer beside its key and value, about.
const ENTRY_OVERHEAD_BYTES: u64 = 48;

/// Whether steps with so many bytes of keys and values are more than one transaction may put into the buffer.
pub(crate) fn outgrows_buffer(steps: usize, bytes: usize, buffer_bytes: usize) -> bool {
    steps as u64 * ENTRY_OVERHEAD_BYTES + bytes as u64 > buffer_bytes as u64 / 2
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    check_key_bytes(key.len())
}

#[inline(always)]
pub(crate) fn check_key_bytes(bytes: usize) -> Result<()> {
    if bytes > KEY_BYTES_MAX {
        return Err(Error::KeyTooLong {
            bytes,
            max: KEY_BYTES_MAX,
        });
    }
    Ok(())
}

pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    check_value_bytes(value.len())
}

pub(crate) fn check_value_bytes(bytes: usize) -> Result<()> {
    if bytes as u64 > VALUE_BYTES_MAX {
        return Err(Error::ValueTooLong {
            bytes: bytes as u64,
            max: VALUE_BYTES_MAX,
        });
    }
    Ok(())
}

fn is_subtree(key: &[u8]) -> Error {
    Error::IsSubtree {
        key: key.escape_ascii().to_string(),
    }
}

/// An error if entries of a keyspace do not expire.
pub(crate) fn check_expires(keyspace: &Keyspace) -> Result<()> {
    if !keyspace.core.expires() {
        return Err(Error::NoExpiry {
            name: keyspace.core.title(),
        });
    }
    Ok(())
}

impl WriteTxn {
    /// Sets the value of `key`, present or not.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"1")?;
    /// txn.upsert(&ks, b"k", b"2")?;
    /// assert_eq!(txn.get(&ks, b"k")?, Some(&b"2"[..]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn upsert(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let index = self.part_index(keyspace)?;
        check_key(key)?;
        let part = &mut self.parts[index];
        if !part.is_plain() || value.len() > VALUE_BUFFERED_BYTES_MAX {
            return self.upsert_specially(index, key, value);
        }
        if let Err(error) = part.put_version(&self.db.engine.pool, key, Kind::Value, value) {
            self.put_elsewhere(index, key, Kind::Value, value, error)?;
        }
        self.wrote((key.len() + value.len()) as u64)
    }

    /// What few upserts need. Not inlined, to leave the others short.
    #[inline(never)]
    fn upsert_specially(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if self.parts[index].expires {
            let expires = self.default_expiry(index)?;
            return self.put_expiring(index, key, value, expires);
        }
        self.put_value(index, key, value)
    }

    fn put_value(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > VALUE_BUFFERED_BYTES_MAX {
            return self.put_large(index, key, value);
        }
        self.put(index, key, Kind::Value, value)
    }

    /// Sets the value of `key`, present or not, until it expires. [`Error::NoExpiry`] in a keyspace whose entries do not.
    ///
    /// The other ways to write leave it to the keyspace when an entry expires, and forget what was said of an older value.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let locks = db.create_keyspace_with("locks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&locks])?;
    /// txn.upsert_expiring(&locks, b"leader", b"node 1", Expiry::After(Duration::from_secs(10)))?;
    /// assert!(txn.get(&locks, b"leader")?.is_some());
    /// txn.upsert_expiring(&locks, b"leader", b"node 2", Expiry::After(Duration::ZERO))?;
    /// assert_eq!(txn.get(&locks, b"leader")?, None);
    /// # Ok(()) }
    /// ```
    pub fn upsert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<()> {
        let index = self.part_index(keyspace)?;
        check_key(key)?;
        check_expires(keyspace)?;
        let expires = expiry.resolve(|| self.now())?;
        self.put_expiring(index, key, value, expires)
    }

    /// As stored: when an entry expires that does not say itself.
    pub(super) fn default_expiry(&self, index: usize) -> Result<u64> {
        match self.parts[index].core().expiry {
            None | Some(0) => Ok(0),
            Some(after) => Expiry::After(Duration::from_millis(after)).resolve(|| self.now()),
        }
    }

    /// Sets the value of `key` where entries expire.
    pub(super) fn put_expiring(
        &mut self,
        index: usize,
        key: &[u8],
        value: &[u8],
        expires: u64,
    ) -> Result<()> {
        check_expiring_value(value)?;
        self.put_value(index, key, &stored(expires, value))
    }

    /// As [`WriteTxn::upsert`], or with the moment of expiry as stored where entries expire.
    pub(crate) fn upsert_until(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expires: u64,
    ) -> Result<()> {
        if !keyspace.core.expires() {
            return self.upsert(keyspace, key, value);
        }
        let index = self.part_index(keyspace)?;
        check_key(key)?;
        self.put_expiring(index, key, value, expires)
    }

    /// Adds `key`; [`Error::KeyExists`] if it is present.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// use psitri::Error;
    /// txn.insert(&ks, b"k", b"1")?;
    /// assert!(matches!(txn.insert(&ks, b"k", b"2"), Err(Error::KeyExists)));
    /// txn.commit()?; // an error of one operation does not end the transaction
    /// # Ok(()) }
    /// ```
    pub fn insert(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.part_index(keyspace)?;
        if self.get(keyspace, key)?.is_some() {
            return Err(Error::KeyExists);
        }
        self.upsert(keyspace, key, value)
    }

    /// Replaces the value of `key`; [`Error::KeyAbsent`] if it is absent.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// use psitri::Error;
    /// assert!(matches!(txn.update(&ks, b"k", b"1"), Err(Error::KeyAbsent)));
    /// # Ok(()) }
    /// ```
    pub fn update(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.part_index(keyspace)?;
        if self.get(keyspace, key)?.is_none() {
            return Err(Error::KeyAbsent);
        }
        self.upsert(keyspace, key, value)
    }

    /// Removes `key`. Says whether it was there.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"1")?;
    /// assert!(txn.remove(&ks, b"k")?);
    /// assert!(!txn.remove(&ks, b"k")?);
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        let index = self.part_index(keyspace)?;
        check_key(key)?;
        if self.get(keyspace, key)?.is_none() {
            return Ok(false);
        }
        self.put(index, key, Kind::Tombstone, &[])?;
        Ok(true)
    }

    /// Removes `key`, present or not, without looking.
    pub(crate) fn remove_blind(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let index = self.part_index(keyspace)?;
        check_key(key)?;
        self.put(index, key, Kind::Tombstone, &[])
    }

    /// Removes every key from `lo` up to, but not including, `hi`; to the end if `hi` is `None`. The cost does not depend
    /// on how many keys there are, but for those written by this transaction.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let log = db.create_keyspace("log")?;
    /// let mut txn = db.begin(&[&log])?;
    /// for day in [b"2026-01-01", b"2026-02-01", b"2026-03-01"] {
    ///     txn.upsert(&log, day, b"...")?;
    /// }
    /// txn.remove_range(&log, b"2026-01", Some(b"2026-03"))?;
    /// txn.upsert(&log, b"2026-01-02", b"a later put stays")?;
    /// txn.commit()?;
    /// assert_eq!(db.snapshot().count(&log, ..)?, 2);
    /// # Ok(()) }
    /// ```
    pub fn remove_range(
        &mut self,
        keyspace: &Keyspace,
        lo: &[u8],
        hi: Option<&[u8]>,
    ) -> Result<()> {
        let index = self.part_index(keyspace)?;
        check_key(lo)?;
        if let Some(hi) = hi {
            check_key(hi)?;
            if hi <= lo {
                return Ok(());
            }
        }
        self.parts[index].check_no_subtree_in(lo, hi)?;
        self.settle(index)?;
        if let Some(ends) = &mut self.parts[index].guard.ends {
            ends.forget_coming();
        }
        self.put_range(index, lo, hi)?;
        self.wrote((lo.len() + hi.map_or(0, <[u8]>::len)) as u64)
    }

    /// Deletes a range.
    pub(super) fn put_range(&mut self, index: usize, lo: &[u8], hi: Option<&[u8]>) -> Result<()> {
        // At the commit's CSN a version beats a range, so that later puts stay. Versions written so far are earlier:
        // they become tombstones. What was ingested has none here, so the log cannot tell that it came earlier.
        if let Some(private) = &mut self.private
            && private.merged
        {
            private.ops = None;
        }
        let reserve = self.db.engine.pool.reserve_bytes();
        let part = &mut self.parts[index];
        let own = part.own_in_range(lo, hi);
        let floor = part.floor;
        // All of them, or the error leaves the transaction as it was.
        part.writer()
            .reserve_tombstones(&own, floor)
            .map_err(|error| buffer_error(error, reserve))?;
        for entry in own {
            part.write(entry, Kind::Tombstone, &[], reserve)?;
        }
        let tombstone = part.writer().add_range_tombstone(lo, hi);
        let bounds = (Box::from(lo), hi.map(Box::from));
        part.guard.touched.push_range(tombstone, bounds);
        Ok(())
    }

    pub(super) fn put(
        &mut self,
        index: usize,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
    ) -> Result<()> {
        self.settle(index)?;
        let part = &mut self.parts[index];
        part.check_no_subtree(key)?;
        if let Err(error) = part.put_version(&self.db.engine.pool, key, kind, payload) {
            self.put_elsewhere(index, key, kind, payload, error)?;
        }
        self.wrote((key.len() + payload.len()) as u64)
    }

    /// Writes a version that the buffer had no room for. Others may have filled it, or levels that were undone, whose memory is not used again: the
    /// transaction goes on in a buffer of its own, unless it is inside of a level.
    #[cold]
    fn put_elsewhere(
        &mut self,
        index: usize,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
        error: Error,
    ) -> Result<()> {
        if !matches!(error, Error::BufferFull { .. }) || !self.frames.is_empty() {
            return Err(error);
        }
        self.spill()?;
        self.parts[index].put_version(&self.db.engine.pool, key, kind, payload)
    }

    /// Writes a large value to the data file, and its place to the buffer.
    fn put_large(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.parts[index].check_no_subtree(key)?;
        self.settle(index)?;
        let (pointer, births) = self.place_large(value)?;
        let engine = &self.db.engine;
        let payload = pointer.encode();
        let part = &mut self.parts[index];
        if let Err(error) = part.put_version(&engine.pool, key, Kind::Large, &payload)
            && let Err(error) = self.put_elsewhere(index, key, Kind::Large, &payload, error)
        {
            self.db.engine.pager.discard(&births);
            return Err(error);
        }
        // Before the spill that `wrote` may bring: the value is handed to the tree there.
        self.large_values.push((self.parts[index].slot, pointer));
        self.wrote((key.len() + payload.len()) as u64)
    }

    /// Writes a value to the data file, where the transaction alone knows of it.
    pub(super) fn place_large(&mut self, value: &[u8]) -> Result<(ValuePointer, Vec<Extent>)> {
        check_value(value)?;
        let engine = &self.db.engine;
        // Readers see it through the shared buffer before any later version of the tree is published.
        let birth = self.state().tree_version + u64::from(self.private.is_some());
        let mut sink = Sink::new(&engine.pager, birth);
        let pointer = sink.place_value(value)?;
        let written = sink.finish()?;
        engine.pager.data_sync.note_value();
        Ok((pointer, written.births))
    }

    /// Counts what was written, and looks now and then how much that is.
    #[inline]
    fn wrote(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes + ENTRY_OVERHEAD_BYTES;
        if self.bytes > self.look_at_bytes {
            return self.look_at_fill();
        }
        Ok(())
    }

    /// Spills if the transaction outgrew half of the buffer. Tells those who are let in later what it put into the active buffer.
    #[cold]
    fn look_at_fill(&mut self) -> Result<()> {
        let half = self.db.engine.options.buffer_bytes as u64 / 2;
        if self.bytes <= half {
            self.look_at_bytes = (2 * self.bytes).min(self.bytes + half / 8).min(half);
        } else if self.frames.is_empty() {
            return self.spill();
        }
        if self.private.is_none() {
            self.db.engine.note_filled(self.state().active());
        }
        Ok(())
    }

    /// The same where a level ends. If the spill fails, what comes next says why.
    pub(super) fn look_behind_level(&mut self) {
        if self.frames.is_empty() && self.undone.is_none() && self.bytes > self.look_at_bytes {
            // It is remembered.
            let _ = self.look_at_fill();
        }
    }
}

impl Part {
    /// Whether values are stored as they are, no key is a subtree's, and nothing is owed.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        !(self.expires | self.has_subtrees | self.owed.is_some())
    }

    /// Writes an uncommitted version to the buffer.
    #[inline]
    pub(super) fn put_version(
        &mut self,
        pool: &ArenaPool,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
    ) -> Result<()> {
        let slot = &mut *self.guard;
        slot.note_change(key, kind);
        let buffer = slot.buffer.as_mut().expect("an open part has a writer");
        let (entry, outcome) = buffer
            .put(key, kind, payload, self.floor)
            .map_err(|error| buffer_error(error, pool.reserve_bytes()))?;
        if outcome.pushed {
            slot.touched.push_version(entry, outcome.version);
        }
        Ok(())
    }

    /// An error if the value of a key is a subtree.
    #[inline(always)]
    pub(super) fn check_no_subtree(&self, key: &[u8]) -> Result<()> {
        if self.has_subtrees {
            return self.look_for_subtree(key);
        }
        Ok(())
    }

    #[cold]
    fn look_for_subtree(&self, key: &[u8]) -> Result<()> {
        if self.core().subtrees.lock().contains_key(key) {
            return Err(is_subtree(key));
        }
        Ok(())
    }

    /// An error if a value in a range is a subtree.
    pub(super) fn check_no_subtree_in(&self, lo: &[u8], hi: Option<&[u8]>) -> Result<()> {
        if !self.has_subtrees || hi.is_some_and(|hi| hi <= lo) {
            return Ok(());
        }
        let hi = hi.map_or(Bound::Unbounded, Bound::Excluded);
        let subtrees = self.core().subtrees.lock();
        let first = subtrees.range::<[u8], _>((Bound::Included(lo), hi)).next();
        first.map_or(Ok(()), |(key, _)| Err(is_subtree(key)))
    }

    /// The entries in a range whose newest version the transaction wrote. They are looked for in the range, or among all that it wrote if these are
    /// fewer: most transactions delete a range before they write anything.
    fn own_in_range(&self, lo: &[u8], hi: Option<&[u8]>) -> Vec<EntryRef> {
        let WriterSlot {
            buffer, touched, ..
        } = &*self.guard;
        let buffer = buffer.as_ref().expect("an open part has a writer");
        let mut own = Vec::new();
        let most = touched.versions();
        if most == 0 || buffer.uncommitted_in_range(lo, hi, most, &mut own) {
            return own;
        }
        own.clear();
        for step in touched.iter() {
            if let Touched::Version(entry, version) = step
                && buffer.newest(*entry) == Some(*version)
                && buffer.key(*entry) >= lo
                && hi.is_none_or(|hi| buffer.key(*entry) < hi)
            {
                own.push(*entry);
            }
        }
        own
    }

    pub(super) fn writer(&mut self) -> &mut crate::buffer::BufferWriter {
        self.guard
            .buffer
            .as_mut()
            .expect("an open part has a writer")
    }

    fn write(&mut self, entry: EntryRef, kind: Kind, payload: &[u8], reserve: usize) -> Result<()> {
        let floor = self.floor;
        let outcome = self
            .writer()
            .write(entry, kind, payload, floor)
            .map_err(|e| buffer_error(e, reserve))?;
        if outcome.pushed {
            self.guard.touched.push_version(entry, outcome.version);
        }
        Ok(())
    }
}
