//! Cursors: ordered positions over buffers and tree, joined.
//!
//! Every layer has a cursor of its own. Going forward all of them stand at or after the position, going backward at or
//! before it; the position is the least (greatest) of them, and the newest layer that has something to say about its key
//! decides. How that is done, and how it is left out for runs of entries of one source, is in `cursor/join.rs`; how it is done for many keys at
//! once where the keys of several sources alternate, in `cursor/lockstep.rs`, and where they are of layers and one leaf, in `cursor/leaf_join.rs`. How runs are
//! visited, without a step for each entry, is in `cursor/visit.rs`.

mod join;
mod leaf_join;
mod lockstep;
mod several;
mod visit;

use std::ops::{Bound, ControlFlow, Range, RangeBounds};

use crate::{
    Expiry, Result,
    buffer::{BufferCursor, KeyspaceBuffer},
    layers::View,
    sync::Arc,
    tree::TreeCursor,
};
use lockstep::Lockstep;
use smallvec::SmallVec;

/// So many sources need no memory of their own.
const SOURCES_EXPECTED: usize = 4;

/// An ordered position in a keyspace, from [`Snapshot::cursor`](crate::Snapshot::cursor) or
/// [`WriteTxn::cursor`](crate::WriteTxn::cursor). Moves return whether they found an entry; an error leaves the cursor
/// without a position.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// # let ks = db.create_keyspace("k")?;
/// # let mut txn = db.begin(&[&ks])?;
/// for key in [&b"a1"[..], b"a2", b"b1"] {
///     txn.upsert(&ks, key, b"-")?;
/// }
/// txn.commit()?;
/// let snapshot = db.snapshot();
/// let mut cursor = snapshot.cursor(&ks)?.with_prefix(b"a");
/// let mut found = cursor.seek_last()?;
/// let mut keys = Vec::new();
/// while found {
///     keys.push(cursor.key().to_vec());
///     found = cursor.prev()?;
/// }
/// assert_eq!(keys, [b"a2", b"a1"]);
/// # Ok(()) }
/// ```
///
/// A cursor cannot outlive what it reads:
///
/// ```compile_fail
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// # let ks = db.create_keyspace("k")?;
/// let txn = db.begin(&[&ks])?;
/// let cursor = txn.cursor(&ks)?;
/// txn.commit()?;
/// assert!(!cursor.is_valid());
/// # Ok(()) }
/// ```
pub struct Cursor<'a> {
    view: View<'a>,
    layers: Vec<Layer<'a>>,
    tree: TreeCursor<'a>,
    lo: Vec<u8>,
    hi: Option<Vec<u8>>,
    /// Where keys live at all, from the first to before the second: bounds that no other ones exceed.
    living: (&'a [u8], Option<&'a [u8]>),
    /// The source that stands on the position's key.
    at: At,
    value: &'a [u8],
    /// Moment of the value's expiry as stored; 0 for never.
    expires: u64,
    forward: bool,
    /// Whether a layer deleted ranges: then every entry is decided on its own.
    has_ranges: bool,
    /// With a position in the tree: entries of the leaf that follow one another without an entry of a layer between them.
    run: Range<usize>,
    /// The sources that stand on a key, as their keys follow one another; in no order if the position was found ahead.
    order: SmallVec<[At; SOURCES_EXPECTED]>,
    /// How many of them stand on the position's key, if it was not found ahead.
    sharing: usize,
    /// What was found ahead.
    lockstep: Lockstep<'a>,
    /// With a position in a layer that is followed: the next steps in it that come before all other sources and the end of the bounds.
    lead: usize,
}

/// One buffer.
struct Layer<'a> {
    cursor: BufferCursor<'a>,
    buffer: Option<&'a KeyspaceBuffer>,
    csn: u64,
    /// What it has before this key is in the tree: going forward, it begins here.
    from: &'a [u8],
}

/// A source; of two that have the same key, the lesser one is asked first. Or none: what was found ahead in several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Nowhere,
    Layer(usize),
    Tree,
    Ahead,
}

impl<'a> Cursor<'a> {
    pub(crate) fn over(view: View<'a>) -> Cursor<'a> {
        Cursor::new(view, layers_of(view).collect())
    }

    /// A cursor of a transaction: its own buffer over what is below.
    pub(crate) fn over_own(
        own: BufferCursor<'a>,
        buffer: &'a Arc<KeyspaceBuffer>,
        view: View<'a>,
    ) -> Cursor<'a> {
        let mut layers = vec![Layer {
            cursor: own,
            buffer: Some(buffer),
            csn: u64::MAX,
            from: &[],
        }];
        layers.extend(layers_of(view));
        Cursor::new(view, layers)
    }

    fn new(view: View<'a>, layers: Vec<Layer<'a>>) -> Cursor<'a> {
        let has_ranges = layers
            .iter()
            .any(|l| l.buffer.is_some_and(|b| b.has_range_tombstones()));
        Cursor {
            tree: TreeCursor::new(view.pager, view.root),
            view,
            layers,
            lo: Vec::new(),
            hi: None,
            living: (&[], None),
            at: At::Nowhere,
            value: &[],
            expires: 0,
            forward: true,
            has_ranges,
            run: 0..0,
            order: SmallVec::new(),
            sharing: 1,
            lockstep: Lockstep::new(),
            lead: 0,
        }
    }

    /// Keeps the cursor inside a range of keys. It loses its position.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// let mut cursor = snapshot.cursor(&ks)?.with_range(&b"b"[..]..);
    /// assert!(cursor.seek_first()?);
    /// assert_eq!(cursor.key(), b"b");
    /// # Ok(()) }
    /// ```
    pub fn with_range<'k>(self, range: impl RangeBounds<&'k [u8]>) -> Cursor<'a> {
        let (lo, hi) = key_range(&range);
        self.bounded(lo, hi)
    }

    /// Keeps the cursor inside the keys that begin with `prefix`. It loses its position.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// let mut cursor = snapshot.cursor(&ks)?.with_prefix(b"c");
    /// assert!(cursor.seek_first()?);
    /// assert_eq!(cursor.key(), b"c");
    /// assert!(!cursor.next()?);
    /// # Ok(()) }
    /// ```
    pub fn with_prefix(self, prefix: &[u8]) -> Cursor<'a> {
        self.bounded(prefix.to_vec(), prefix_end(prefix))
    }

    fn bounded(mut self, mut lo: Vec<u8>, mut hi: Option<Vec<u8>>) -> Cursor<'a> {
        let (first, end) = self.living;
        if *lo < *first {
            first.clone_into(&mut lo);
        }
        if let Some(end) = end
            && hi.as_deref().is_none_or(|hi| hi > end)
        {
            hi = Some(end.to_vec());
        }
        (self.lo, self.hi) = (lo, hi);
        self.at = At::Nowhere;
        self
    }

    /// Keeps the cursor from `first` to before `end`, whatever its bounds will be.
    pub(crate) fn living_within(mut self, first: &'a [u8], end: Option<&'a [u8]>) -> Cursor<'a> {
        self.living = (first, end);
        self.bounded(Vec::new(), None)
    }

    /// Whether the cursor is on an entry.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(!cursor.is_valid());
    /// cursor.seek_first()?;
    /// assert!(cursor.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn is_valid(&self) -> bool {
        self.at != At::Nowhere
    }

    /// Key of the entry; empty if there is no position.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// cursor.seek_last()?;
    /// assert_eq!(cursor.key(), b"c");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.at {
            // First of all: it is where steps cost least.
            At::Tree => self.tree.key(),
            at => self.source_key(at),
        }
    }

    /// Value of the entry, not copied; empty if there is no position.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// cursor.seek_first()?;
    /// let value = cursor.value();
    /// cursor.seek_last()?; // the value belongs to the snapshot, it stays where it is
    /// assert_eq!(value, b"1");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        if self.at == At::Nowhere {
            &[]
        } else {
            self.value
        }
    }

    /// Key and value, if there is a position.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert_eq!(cursor.entry(), None);
    /// cursor.seek_first()?;
    /// assert_eq!(cursor.entry(), Some((&b"a"[..], &b"1"[..])));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn entry(&self) -> Option<(&[u8], &'a [u8])> {
        self.is_valid().then(|| (self.key(), self.value))
    }

    /// When the entry expires: [`Expiry::Never`] or [`Expiry::At`]; `None` if there is no position. Entries of a keyspace without expiry
    /// never do.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::{Duration, UNIX_EPOCH};
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// let far = UNIX_EPOCH + Duration::from_secs(1 << 36);
    /// txn.upsert_expiring(&ks, b"k", b"v", Expiry::At(far))?;
    /// let mut cursor = txn.cursor(&ks)?;
    /// assert!(cursor.seek_first()?);
    /// assert_eq!(cursor.expiry(), Some(Expiry::At(far)));
    /// # Ok(()) }
    /// ```
    pub fn expiry(&self) -> Option<Expiry> {
        self.is_valid().then(|| Expiry::from_stored(self.expires))
    }

    /// Moves to the first entry of the bounds.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(cursor.seek_first()?);
    /// assert_eq!(cursor.key(), b"a");
    /// # Ok(()) }
    /// ```
    pub fn seek_first(&mut self) -> Result<bool> {
        let lo = std::mem::take(&mut self.lo);
        let result = self.seek_forward(&lo);
        self.lo = lo;
        result
    }

    /// Moves to the last entry of the bounds.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(cursor.seek_last()?);
    /// assert_eq!(cursor.key(), b"c");
    /// # Ok(()) }
    /// ```
    pub fn seek_last(&mut self) -> Result<bool> {
        let hi = self.hi.take();
        let result = self.seek_backward(hi.as_deref());
        self.hi = hi;
        result
    }

    /// Moves to the first entry at or after `key`.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(cursor.seek(b"aa")?);
    /// assert_eq!(cursor.key(), b"b");
    /// assert!(!cursor.seek(b"d")?);
    /// # Ok(()) }
    /// ```
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if self.is_before(key) {
            return self.seek_first();
        }
        self.seek_forward(key)
    }

    /// Moves to the last entry at or before `key`.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// assert!(cursor.seek_back(b"bb")?);
    /// assert_eq!(cursor.key(), b"b");
    /// # Ok(()) }
    /// ```
    pub fn seek_back(&mut self, key: &[u8]) -> Result<bool> {
        if self.hi.as_deref().is_some_and(|hi| key >= hi) {
            return self.seek_last();
        }
        let mut after = Vec::with_capacity(key.len() + 1);
        after.extend_from_slice(key);
        after.push(0);
        self.seek_backward(Some(&after))
    }

    /// Moves to the next entry. Without a position it stays without one.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// let mut found = cursor.seek_first()?;
    /// let mut entries = 0;
    /// while found {
    ///     entries += 1;
    ///     found = cursor.next()?;
    /// }
    /// assert_eq!(entries, 3);
    /// # Ok(()) }
    /// ```
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "it can fail, and lends what it finds"
    )]
    pub fn next(&mut self) -> Result<bool> {
        self.step(true)
    }

    /// Moves to the entry before. Without a position it stays without one.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// cursor.seek(b"b")?;
    /// assert!(cursor.prev()?);
    /// assert_eq!(cursor.key(), b"a");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn prev(&mut self) -> Result<bool> {
        self.step(false)
    }

    /// Calls `visit` for every entry of the bounds in order, until it breaks.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// # let snapshot = db.snapshot();
    /// # let mut cursor = snapshot.cursor(&ks)?;
    /// use std::ops::ControlFlow;
    /// let mut first_two = Vec::new();
    /// cursor.for_each(|key, _value| {
    ///     first_two.push(key.to_vec());
    ///     if first_two.len() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// })?;
    /// assert_eq!(first_two, [b"a", b"b"]);
    /// # Ok(()) }
    /// ```
    pub fn for_each(
        mut self,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        // Each is kept as its user leaves it.
        let (mut key_buffer, mut joined_key) = (Vec::new(), Vec::new());
        let mut found = self.seek_first()?;
        while found {
            // Where entries expire they are taken one by one: a second copy of these loops, for them, costs the first a sixth of its speed.
            let flow = match self.at {
                At::Tree if !self.run.is_empty() && self.view.now == 0 => {
                    let run = self.run.clone();
                    let flow = self.visit_entries(run, &mut key_buffer, &mut visit)?;
                    if flow.is_continue() && self.ends_leaf() {
                        match self.visit_leaves(&mut key_buffer, &mut visit)? {
                            ControlFlow::Continue(is_found) => found = is_found,
                            ControlFlow::Break(()) => return Ok(()),
                        }
                        continue;
                    }
                    flow
                }
                At::Layer(layer) if self.lead > 0 && self.view.now == 0 => {
                    self.visit_led(layer, &mut visit)?
                }
                At::Ahead => match self.visit_found(&mut visit) {
                    ControlFlow::Continue(()) => self.visit_joined(&mut joined_key, &mut visit)?,
                    flow => flow,
                },
                _ => visit(self.key(), self.value),
            };
            if flow.is_break() {
                return Ok(());
            }
            found = self.step(true)?;
        }
        Ok(())
    }
}

fn layers_of<'a>(view: View<'a>) -> impl Iterator<Item = Layer<'a>> {
    let buffers = view.buffers_beside_the_tree();
    buffers.map(move |(buffer, from)| Layer {
        cursor: buffer.cursor(),
        buffer: Some(buffer),
        csn: view.csn,
        from,
    })
}

/// A range of keys as an inclusive lower and an exclusive upper bound.
pub(crate) fn key_range<'k>(range: &impl RangeBounds<&'k [u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    let after = |key: &[u8]| [key, &[0]].concat();
    let lo = match range.start_bound() {
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Vec::new(),
    };
    let hi = match range.end_bound() {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    };
    (lo, hi)
}

/// The least key greater than every key with this prefix; `None` if there is none.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
