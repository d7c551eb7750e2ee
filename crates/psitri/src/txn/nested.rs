//! Nested transactions.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::{Frame, Mark, Part, WriteTxn};
use crate::{buffer::Watermark, keyspace::Touched};

/// A transaction inside another. Aborted when dropped; a commit hands its changes to the one around it.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// # let stock = db.create_keyspace("stock")?;
/// let mut txn = db.begin(&[&stock])?;
/// txn.upsert(&stock, b"apples", b"10")?;
/// {
///     let mut attempt = txn.nested();
///     attempt.upsert(&stock, b"apples", b"0")?;
///     attempt.abort();
/// }
/// assert_eq!(txn.get(&stock, b"apples")?, Some(&b"10"[..]));
/// # txn.commit() }
/// ```
pub struct NestedTxn<'t> {
    parent: &'t mut WriteTxn,
    open: bool,
}

impl WriteTxn {
    /// Begins a nested transaction. It may be nested again, to any depth. What it changes must fit in the write buffer's
    /// address space: eight times `buffer_bytes`, but at least 64 MiB and at most 4 GiB.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// let mut outer = txn.nested();
    /// outer.upsert(&ks, b"a", b"1")?;
    /// let mut inner = outer.nested();
    /// inner.upsert(&ks, b"b", b"1")?;
    /// drop(inner); // aborts it
    /// outer.commit();
    /// assert_eq!(txn.count(&ks, ..)?, 1);
    /// # Ok(()) }
    /// ```
    pub fn nested(&mut self) -> NestedTxn<'_> {
        let large_values = self.large_values.len();
        let marks: SmallVec<_> = self
            .parts
            .iter_mut()
            .map(|part| Mark {
                touched: part.guard.touched.len(),
                floor: part.raise_floor(),
                owed: part.owed.clone(),
            })
            .collect();
        self.frames.push(Frame {
            marks,
            large_values,
        });
        NestedTxn {
            parent: self,
            open: true,
        }
    }

    /// Ends the innermost level; its changes belong to the level around it. `None` if there is none: a level lends its transaction, and somebody has put another
    /// one in its place.
    fn pop_frame(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        for (part, mark) in self.parts.iter_mut().zip(&frame.marks) {
            part.floor = mark.floor;
        }
        Some(frame)
    }
}

impl NestedTxn<'_> {
    /// Hands the changes to the transaction around this one. If that outgrows the buffer, and there is no room for it on the disk, it is undone, which its
    /// next operation and its commit say.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// let mut step = txn.nested();
    /// step.upsert(&ks, b"k", b"v")?;
    /// step.commit();
    /// txn.commit()?;
    /// assert!(db.get(&ks, b"k")?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn commit(mut self) {
        self.open = false;
        self.parent.pop_frame();
        self.parent.look_behind_level();
    }

    /// Undoes the changes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// let mut step = txn.nested();
    /// step.upsert(&ks, b"k", b"v")?;
    /// step.abort();
    /// assert_eq!(txn.get(&ks, b"k")?, None);
    /// # Ok(()) }
    /// ```
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for NestedTxn<'_> {
    fn drop(&mut self) {
        if self.open
            && let Some(frame) = self.parent.pop_frame()
        {
            self.parent.undo_to(Some(&frame));
        }
    }
}

impl Deref for NestedTxn<'_> {
    type Target = WriteTxn;
    fn deref(&self) -> &WriteTxn {
        self.parent
    }
}

impl DerefMut for NestedTxn<'_> {
    fn deref_mut(&mut self) -> &mut WriteTxn {
        self.parent
    }
}

impl Part {
    /// Versions written from now on belong to a new level. Returns the floor of the level before.
    fn raise_floor(&mut self) -> Watermark {
        let floor = self
            .guard
            .buffer
            .as_mut()
            .expect("an open part has a writer")
            .watermark();
        std::mem::replace(&mut self.floor, floor)
    }

    /// Undoes steps, newest first, until the part is as it was.
    pub(super) fn undo_to(&mut self, mark: &Mark) {
        let slot = &mut *self.guard;
        if slot.touched.len() > mark.touched || self.owed.is_some() {
            slot.ends = None;
        }
        self.owed.clone_from(&mark.owed);
        while slot.touched.len() > mark.touched {
            let step = slot
                .touched
                .pop()
                .expect("the list is longer than the mark");
            let buffer = slot.buffer.as_mut().expect("an open part has a writer");
            match step {
                Touched::Version(entry, version) => buffer.undo(entry, version),
                Touched::Range(range) => buffer.undo_range_tombstone(&range.0),
            }
        }
    }
}
