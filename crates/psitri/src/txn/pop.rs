//! Pops: an end of a keyspace is read and removed at once, by queues say.
//!
//! What lies beyond the keys that were popped is known to be dead, and what comes next is read ahead, more of it each time. Where many pops follow
//! one another, the entries are not removed one by one, but owed: their range is removed as a whole before anything else is changed.
//!
//! # Invariants
//! (1) `Ends` of a keyspace say where nothing lives in what the holder of its write lock sees. A put beyond them moves them, undoing anything
//!     forgets them; so does a time before the one at which that was seen. They belong to the write lock, not to a transaction: a queue that is
//!     emptied by one transaction an entry does not pass by what was popped before, again and again.
//! (2) What is `Coming` is all that lives from its end of the keyspace to the last of its keys, as the holder of the write lock sees it. Whatever
//!     changes a key there, or many keys at once, forgets it; so does the end of the transaction, as there may be many keyspaces. Where entries
//!     expire, nothing is read ahead.
//! (3) What is `Owed` belongs to a transaction and one of its keyspaces: of the entries in those ranges all were popped, and none lives beyond them,
//!     but buffer and tree have them still. The transaction's own reads leave them out. Whatever it writes to the keyspace comes after
//!     `settle`, and so does its commit. A nested transaction that is undone owes what was owed when it began.
//!
//! # Failure modes
//! A pop that fails forgets the ends; so it may be repeated. What fails while reading ahead ends that, and shows when the entry is popped.

use std::ops::{Bound, Range};

use super::WriteTxn;
use crate::{
    KEY_BYTES_MAX, Keyspace, Result,
    buffer::{Kind, hash_of},
};

/// Most entries that are read ahead.
const AHEAD_MAX: usize = 64;
/// Most bytes of their keys and values.
const AHEAD_BYTES: usize = 16 << 10;

/// Most times that nothing is read ahead, after what was read ahead had to be forgotten.
const PAUSES_MAX: usize = 64;

/// How many pops follow one another before further ones are owed: a range costs more than an entry to remove. Few in tests, so that there are
/// such everywhere.
const OWED_AFTER: usize = if cfg!(debug_assertions) { 3 } else { 64 };

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Parts of a keyspace without a live key, and what is next to them.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// There is none below this one.
    before: Vec<u8>,
    /// There is none above this one; any number, if it is `None`.
    after: Option<Vec<u8>>,
    /// Latest time at which that was seen, in a keyspace whose entries expire: before it some may be live still.
    now: u64,
    first: Coming,
    last: Coming,
    /// How many pops followed one another without another change.
    in_a_row: usize,
}

impl Ends {
    /// Notes that `key` is about to be put or removed.
    #[inline(never)]
    pub fn note_change(&mut self, key: &[u8], kind: Kind) {
        self.in_a_row = 0;
        let is_below = key < &*self.before;
        let is_above = self.after.as_ref().is_some_and(|after| key > &**after);
        if is_below | is_above {
            if kind == Kind::Tombstone {
                return;
            }
            self.set_end(key, is_below);
        }
        self.note_at_first(key);
        self.note_at_last(key);
    }

    /// Notes that nothing lives beyond `key`.
    fn set_end(&mut self, key: &[u8], first: bool) {
        match first {
            true => key.clone_into(&mut self.before),
            false => key.clone_into(self.after.get_or_insert_default()),
        }
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

    /// Forgets what was read ahead: any keys are about to be removed, or the transaction ends.
    pub fn forget_coming(&mut self) {
        (self.first, self.last) = Default::default();
        self.in_a_row = 0;
    }

    /// Notes what was popped. The other end may have been waiting for the same entry.
    fn note_popped(&mut self, key: &[u8], first: bool) {
        self.in_a_row += 1;
        self.set_end(key, first);
        match first {
            true => self.note_at_last(key),
            false => self.note_at_first(key),
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
#[derive(Debug, Default)]
struct Coming {
    bytes: Vec<u8>,
    /// Where in `bytes` their keys and values are, in the order of the pops.
    places: Vec<(Range<usize>, Range<usize>)>,
    /// How many of them were popped.
    popped: usize,
    /// How many to read ahead the next time; grows as long as they are popped.
    wanted: usize,
    /// How many times not to read ahead, and how many it will be when entries have to be forgotten again.
    pauses: usize,
    pauses_next: usize,
}

impl Coming {
    /// Reading ahead was for nothing.
    fn forget(&mut self) {
        if !self.places.is_empty() {
            let pauses_next = (2 * self.pauses_next + 1).min(PAUSES_MAX);
            *self = Coming {
                pauses: self.pauses_next,
                pauses_next,
                ..Coming::default()
            };
        }
    }

    /// The key that is furthest from the end.
    #[inline]
    fn furthest(&self) -> Option<&[u8]> {
        let (key, _) = self.places.last()?;
        Some(&self.bytes[key.clone()])
    }

    /// How many entries to read ahead.
    fn grow(&mut self) -> usize {
        if self.pauses > 0 {
            self.pauses -= 1;
            return 0;
        }
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
        let (key, value) = self.places.get(self.popped)?.clone();
        let popped = (self.bytes[key].to_vec(), self.bytes[value].to_vec());
        self.popped += 1;
        if self.popped == self.places.len() {
            // Their memory is for those that are read ahead next.
            self.bytes.clear();
            self.places.clear();
            (self.popped, self.pauses_next) = (0, 0);
        }
        Some(popped)
    }
}

/// Ranges at both ends that were popped and are still to be removed (3).
#[derive(Debug, Clone, Default)]
pub(super) struct Owed {
    first: Option<OwedRange>,
    last: Option<OwedRange>,
}

/// The keys from `lo` to before `hi`.
#[derive(Debug, Clone)]
struct OwedRange {
    lo: Vec<u8>,
    hi: Vec<u8>,
}

impl Owed {
    /// Adds the next key at an end.
    fn add(&mut self, key: &[u8], first: bool) {
        let set_behind = |bound: &mut Vec<u8>| {
            key.clone_into(bound);
            bound.push(0);
        };
        let range = match first {
            true => &mut self.first,
            false => &mut self.last,
        };
        match range {
            Some(range) if first => set_behind(&mut range.hi),
            Some(range) => key.clone_into(&mut range.lo),
            None => {
                let mut hi = Vec::new();
                set_behind(&mut hi);
                let lo = key.to_vec();
                *range = Some(OwedRange { lo, hi });
            }
        }
    }

    /// Whether a key is there only because it is not removed yet, if it is there.
    pub fn covers(&self, key: &[u8]) -> bool {
        let (first, end) = self.living();
        key < first || end.is_some_and(|end| key >= end)
    }

    /// Where keys live: from the first to before the second.
    pub fn living(&self) -> (&[u8], Option<&[u8]>) {
        let first = self.first.as_ref().map_or(&[][..], |range| &range.hi);
        (first, self.last.as_ref().map(|range| &*range.lo))
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
            // Who asks again does not pass once more what is expired, or removed and not merged.
            let before = ends.before.clone();
            ends.set_end(&before, false);
            self.parts[index].guard.ends = Some(ends);
            return Ok(None);
        };
        // After something was ingested a range costs the log (`put_range`): better many entries in it than a checkpoint.
        let is_logged_apart =
            (self.private.as_ref()).is_some_and(|private| private.merged && private.ops.is_some());
        let part = &mut self.parts[index];
        if ends.in_a_row >= OWED_AFTER
            && key.len() < KEY_BYTES_MAX
            && !(part.expires | part.has_subtrees | is_logged_apart)
        {
            part.owed.get_or_insert_default().add(&key, first);
        } else {
            self.put(index, &key, Kind::Tombstone, &[])?;
        }
        ends.note_popped(&key, first);
        self.parts[index].guard.ends = Some(ends);
        Ok(Some((key, value)))
    }

    /// Removes what is owed in a keyspace.
    #[inline(always)]
    pub(super) fn settle(&mut self, index: usize) -> Result<()> {
        match self.parts[index].owed {
            None => Ok(()),
            Some(_) => self.remove_owed(index),
        }
    }

    /// Removes what is owed in any keyspace.
    #[inline]
    pub(super) fn settle_all(&mut self) -> Result<()> {
        (0..self.parts.len()).try_for_each(|index| self.settle(index))
    }

    #[cold]
    fn remove_owed(&mut self, index: usize) -> Result<()> {
        let Some(owed) = self.parts[index].owed.clone() else {
            return Ok(());
        };
        for range in [&owed.first, &owed.last].into_iter().flatten() {
            self.put_range(index, &range.lo, Some(&range.hi))?;
            self.bytes += (range.lo.len() + range.hi.len()) as u64;
        }
        self.parts[index].owed = None;
        Ok(())
    }

    /// Finds the entry at an end, and reads what the pops after it will find.
    fn look_ahead(
        &self,
        keyspace: &Keyspace,
        index: usize,
        ends: &mut Ends,
        first: bool,
    ) -> Result<Option<Entry>> {
        let after = ends.after.as_deref();
        let mut cursor = self.cursor(keyspace)?.with_range((
            Bound::Included(&*ends.before),
            after.map_or(Bound::Unbounded, Bound::Included),
        ));
        let mut found = match first {
            true => cursor.seek_first()?,
            false => cursor.seek_last()?,
        };
        let Some((key, value)) = cursor.entry() else {
            return Ok(None);
        };
        let next = (key.to_vec(), value.to_vec());
        let coming = ends.coming(first);
        let wanted = match self.parts[index].expires {
            true => 0,
            false => coming.grow(),
        };
        let own = self.own_buffer(index);
        while coming.len() < wanted {
            let step = match first {
                true => cursor.next(),
                false => cursor.prev(),
            };
            // What is wrong there is told to who asks for it.
            let Ok(is_found) = step else { break };
            found = is_found;
            if !cursor.entry().is_some_and(|it| coming.push(it)) {
                break;
            }
            // Where the tombstone will be put.
            own.prefetch_directory(&[hash_of(cursor.key())]);
        }
        if !found {
            let furthest = coming.furthest().unwrap_or(&next.0).to_vec();
            ends.set_end(&furthest, !first);
        }
        Ok(Some(next))
    }
}
