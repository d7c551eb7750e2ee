//! Pops: an end of a keyspace is read and removed at once, by queues say.
//!
//! What lies beyond the keys that were popped is known to be dead, and what comes next is read ahead, more of it with every pop: a pop then costs what
//! a removal does.
//!
//! # Invariants
//! (1) `Ends` of a keyspace say where nothing lives in what the holder of its write lock sees. A put inside of them, and undoing anything,
//!     forgets them; so does a time before the one at which that was seen. They belong to the write lock, not to a transaction: a queue that is
//!     emptied by one transaction an entry does not pass by what was popped before, again and again.
//! (2) What is `Coming` is all that lives from its end of the keyspace to the last of its keys, as the holder of the write lock sees it. Whatever
//!     changes a key there, or many keys at once, forgets it. Where entries expire, nothing is read ahead.
//!
//! # Failure modes
//! A pop that fails forgets the ends; so it may be repeated.

use std::ops::Range;

use super::WriteTxn;
use crate::{
    Keyspace, Result,
    buffer::{Kind, hash_of},
};

/// Most entries that are read ahead.
const AHEAD_MAX: usize = 64;
/// Most bytes of their keys and values.
const AHEAD_BYTES: usize = 16 << 10;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Parts of a keyspace without a live key, and what is next to them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// There is none below this one.
    before: Vec<u8>,
    /// There is none above this one; all there are, if it is `None`.
    after: Option<Vec<u8>>,
    /// Latest time at which that was seen, in a keyspace whose entries expire: before it some may be live still.
    now: u64,
    first: Coming,
    last: Coming,
}

impl Ends {
    /// Notes that `key` is about to be put or removed. False if there are no such ends then.
    #[inline]
    pub fn admit(&mut self, key: &[u8], kind: Kind) -> bool {
        let is_beyond =
            key < &*self.before || self.after.as_ref().is_some_and(|after| key > &**after);
        if is_beyond && kind != Kind::Tombstone {
            return false;
        }
        self.note_at_first(key);
        self.note_at_last(key);
        true
    }

    #[inline]
    fn note_at_first(&mut self, key: &[u8]) {
        if self.first.furthest().is_some_and(|it| key <= it) {
            self.first.forget();
        }
    }

    #[inline]
    fn note_at_last(&mut self, key: &[u8]) {
        if self.last.furthest().is_some_and(|it| key >= it) {
            self.last.forget();
        }
    }

    /// Notes that any keys are about to be removed.
    pub fn note_removals(&mut self) {
        self.first.forget();
        self.last.forget();
    }

    /// Notes what was popped. The other end may have been waiting for the same entry.
    fn note_popped(&mut self, key: &[u8], first: bool) {
        if first {
            key.clone_into(&mut self.before);
            self.note_at_last(key);
        } else {
            key.clone_into(self.after.get_or_insert_default());
            self.note_at_first(key);
        }
    }

    fn coming(&mut self, first: bool) -> &mut Coming {
        match first {
            true => &mut self.first,
            false => &mut self.last,
        }
    }
}

/// Entries that the next pops at one end will find.
#[derive(Debug, Clone, Default)]
struct Coming {
    bytes: Vec<u8>,
    /// Where in `bytes` their keys and values are, in the order of the pops.
    places: Vec<(Range<usize>, Range<usize>)>,
    /// How many of them were popped.
    popped: usize,
    /// How many to read the next time: twice as many as the last, if nothing was in the way since.
    wanted: usize,
}

impl Coming {
    fn forget(&mut self) {
        self.places.clear();
        self.popped = 0;
        self.wanted = 0;
    }

    /// The key that is furthest from the end.
    #[inline]
    fn furthest(&self) -> Option<&[u8]> {
        let (key, _) = self.places[self.popped..].last()?;
        Some(&self.bytes[key.clone()])
    }

    /// Makes room for more. Returns for how many.
    fn grow(&mut self) -> usize {
        self.bytes.clear();
        self.places.clear();
        self.popped = 0;
        let wanted = self.wanted;
        self.wanted = (2 * wanted + 1).min(AHEAD_MAX);
        wanted
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    /// False if there is no room for it.
    fn push(&mut self, (key, value): (&[u8], &[u8])) -> bool {
        let start = self.bytes.len();
        let (key_end, end) = (start + key.len(), start + key.len() + value.len());
        if end > AHEAD_BYTES {
            return false;
        }
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.places.push((start..key_end, key_end..end));
        true
    }

    fn pop(&mut self) -> Option<Entry> {
        let (key, value) = self.places.get(self.popped)?;
        let (key, value) = (key.clone(), value.clone());
        self.popped += 1;
        Some((self.bytes[key].to_vec(), self.bytes[value].to_vec()))
    }
}

impl WriteTxn {
    /// Removes the entry with the least key, and gives it.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let jobs = db.create_keyspace("jobs")?;
    /// let mut txn = db.begin(&[&jobs])?;
    /// txn.upsert(&jobs, b"2", b"second")?;
    /// txn.upsert(&jobs, b"1", b"first")?;
    /// assert_eq!(txn.pop_first(&jobs)?, Some((b"1".to_vec(), b"first".to_vec())));
    /// assert_eq!(txn.pop_first(&jobs)?, Some((b"2".to_vec(), b"second".to_vec())));
    /// assert_eq!(txn.pop_first(&jobs)?, None);
    /// # Ok(()) }
    /// ```
    pub fn pop_first(&mut self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        self.pop(keyspace, true)
    }

    /// Removes the entry with the greatest key, and gives it.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let undo = db.create_keyspace("undo")?;
    /// let mut txn = db.begin(&[&undo])?;
    /// txn.upsert(&undo, b"1", b"open")?;
    /// txn.upsert(&undo, b"2", b"write")?;
    /// assert_eq!(txn.pop_last(&undo)?, Some((b"2".to_vec(), b"write".to_vec())));
    /// # Ok(()) }
    /// ```
    pub fn pop_last(&mut self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        self.pop(keyspace, false)
    }

    fn pop(&mut self, keyspace: &Keyspace, first: bool) -> Result<Option<Entry>> {
        let index = self.part_index(keyspace)?;
        let now = self.part_now(&self.parts[index]);
        let ends = &mut self.parts[index].guard.ends;
        if ends.as_ref().is_some_and(|ends| ends.now > now) {
            *ends = None;
        }
        // The ends are put back when all went well.
        let mut ends = ends.take().unwrap_or_default();
        ends.now = now;
        let next = match ends.coming(first).pop() {
            Some(next) => Some(next),
            None => self.look_ahead(keyspace, index, &mut ends, first)?,
        };
        let Some((key, value)) = next else {
            self.parts[index].guard.ends = Some(ends);
            return Ok(None);
        };
        self.put(index, &key, Kind::Tombstone, &[])?;
        // A spill that failed has undone the transaction.
        if let Some(part) = self.parts.get_mut(index) {
            ends.note_popped(&key, first);
            part.guard.ends = Some(ends);
        }
        Ok(Some((key, value)))
    }

    /// Finds the entry at an end, and reads what the pops after it will find.
    fn look_ahead(
        &self,
        keyspace: &Keyspace,
        index: usize,
        ends: &mut Ends,
        first: bool,
    ) -> Result<Option<Entry>> {
        let mut cursor = self.cursor(keyspace)?;
        let mut found = match (first, &ends.after) {
            (true, _) => cursor.seek(&ends.before)?,
            (false, Some(after)) => cursor.seek_back(after)?,
            (false, None) => cursor.seek_last()?,
        };
        let next = cursor
            .entry()
            .map(|(key, value)| (key.to_vec(), value.to_vec()));
        let coming = ends.coming(first);
        let wanted = match self.parts[index].expires {
            true => 0,
            false => coming.grow(),
        };
        let own = self.own_buffer(index);
        while found && coming.len() < wanted {
            found = match first {
                true => cursor.next()?,
                false => cursor.prev()?,
            };
            if !cursor.entry().is_some_and(|it| coming.push(it)) {
                break;
            }
            // Where the tombstone will be put.
            own.prefetch_directory(&[hash_of(cursor.key())]);
        }
        Ok(next)
    }
}
