//! Operations that read and write at once: compare and swap, extract, retain.
//!
//! # Failure modes
//! An error in the middle of [`WriteTxn::extract`] and [`WriteTxn::retain`], which is one of reading if it does not undo the transaction, leaves removed what was
//! removed so far. Inside of a nested transaction it leaves nothing.

use std::ops::{Bound, RangeBounds};

use super::{Entry, WriteTxn};
use crate::{Keyspace, Result, buffer::Kind, cursor::key_range};

/// Keys that are collected before they are removed, in bytes.
const BATCH_BYTES: usize = 64 << 10;

impl WriteTxn {
    /// Makes `new` the value of `key` if its value is `expected`; `None` stands for an absent key. Says whether it was.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// assert!(txn.compare_and_swap(&ks, b"leader", None, Some(b"node 1"))?);
    /// assert!(!txn.compare_and_swap(&ks, b"leader", None, Some(b"node 2"))?);
    /// assert!(txn.compare_and_swap(&ks, b"leader", Some(b"node 1"), None)?);
    /// assert_eq!(txn.get(&ks, b"leader")?, None);
    /// # Ok(()) }
    /// ```
    pub fn compare_and_swap(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        // A keyspace of another transaction is refused before anything is compared.
        self.part_index(keyspace)?;
        if self.get(keyspace, key)? != expected {
            return Ok(false);
        }
        match new {
            Some(value) => self.upsert(keyspace, key, value)?,
            None if expected.is_some() => self.remove_blind(keyspace, key)?,
            None => {}
        }
        Ok(true)
    }

    /// Removes the entries of a range for which `wanted` says so, and gives them in order.
    ///
    /// # Errors
    /// If the disk cannot be read, or is full when the transaction outgrows the buffer. The latter undoes the transaction; the former may come after some
    /// entries were removed, unless it is in a [nested](WriteTxn::nested) transaction, which stays as it was.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let carts = db.create_keyspace("carts")?;
    /// let mut txn = db.begin(&[&carts])?;
    /// for (key, value) in [(b"a1", b"paid"), (b"a2", b"open"), (b"b1", b"paid")] {
    ///     txn.upsert(&carts, key, value)?;
    /// }
    /// let paid = txn.extract(&carts, &b"a"[..]..&b"b"[..], |_key, value| value == b"paid")?;
    /// assert_eq!(paid, [(b"a1".to_vec(), b"paid".to_vec())]);
    /// assert_eq!(txn.count(&carts, ..)?, 2);
    /// # Ok(()) }
    /// ```
    pub fn extract<'k>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<&'k [u8]>,
        mut wanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Vec<Entry>> {
        let mut extracted = Vec::new();
        self.remove_where(keyspace, &range, |key, value| {
            let is_wanted = wanted(key, value);
            if is_wanted {
                extracted.push((key.to_vec(), value.to_vec()));
            }
            is_wanted
        })?;
        Ok(extracted)
    }

    /// Removes the entries of a range for which `keep` does not say so. Says how many they were.
    ///
    /// # Errors
    /// As for [`extract`](WriteTxn::extract).
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let sessions = db.create_keyspace("sessions")?;
    /// let mut txn = db.begin(&[&sessions])?;
    /// txn.upsert(&sessions, b"alice", &[9])?;
    /// txn.upsert(&sessions, b"bob", &[1])?;
    /// assert_eq!(txn.retain(&sessions, .., |_key, value| value[0] > 5)?, 1);
    /// assert_eq!(txn.get(&sessions, b"bob")?, None);
    /// # Ok(()) }
    /// ```
    pub fn retain<'k>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<&'k [u8]>,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        self.remove_where(keyspace, &range, |key, value| !keep(key, value))
    }

    fn remove_where<'k>(
        &mut self,
        keyspace: &Keyspace,
        range: &impl RangeBounds<&'k [u8]>,
        is_removed: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        if self.frames.is_empty() {
            return self.remove_in_batches(keyspace, range, is_removed);
        }
        let mut level = self.nested();
        let removed = level.remove_in_batches(keyspace, range, is_removed)?;
        level.commit();
        Ok(removed)
    }

    /// A cursor reads what a transaction cannot write meanwhile: the keys are collected batch by batch.
    fn remove_in_batches<'k>(
        &mut self,
        keyspace: &Keyspace,
        range: &impl RangeBounds<&'k [u8]>,
        mut is_removed: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let index = self.part_index(keyspace)?;
        let (mut lo, hi) = key_range(range);
        self.parts[index].check_no_subtree_in(&lo, hi.as_deref())?;
        let hi = hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut removed = 0;
        let (mut keys, mut key_ends) = (Vec::new(), Vec::new());
        loop {
            keys.clear();
            key_ends.clear();
            let mut cursor = self
                .cursor(keyspace)?
                .with_range((Bound::Included(lo.as_slice()), hi));
            let mut found = cursor.seek_first()?;
            while found && keys.len() < BATCH_BYTES {
                if is_removed(cursor.key(), cursor.value()) {
                    keys.extend_from_slice(cursor.key());
                    key_ends.push(keys.len());
                }
                found = cursor.next()?;
            }
            let next = found.then(|| cursor.key().to_vec());
            drop(cursor);
            let mut start = 0;
            for &end in &key_ends {
                self.put(index, &keys[start..end], Kind::Tombstone, &[])?;
                start = end;
            }
            removed += key_ends.len() as u64;
            match next {
                Some(key) => lo = key,
                None => return Ok(removed),
            }
        }
    }
}
