//! Streams of changes for [`tree::merge`](crate::tree::merge): one write buffer, or several folded into one.
//!
//! A tree that is much larger than a buffer is rewritten in large part by every merge. Folding the buffers that wait has it rewritten
//! once for all of them.
//!
//! # Thread safety
//! A stream borrows frozen buffers, or those of the transaction that owns it, and is used by one thread.
//!
//! # Invariants
//! (1) Within a keyspace, everything in a newer buffer was committed after everything in an older one.
//! (2) A key comes out once, as its newest buffer has it.
//! (3) A range delete of a newer buffer takes effect on all older ones before the stream is made: their entries in the range do not come
//!     out.
//! (4) A value outside the buffers is noted as adopted when its entry is passed, and only then.

use crate::{
    Result,
    buffer::{BufferCursor, Found, KeyspaceBuffer},
    layers::CSN_NEWEST,
    node::ValuePointer,
    tree::{Change, ChangeStream, KeyRange},
};

/// The entries of one buffer that say something, in key order.
struct Entries<'a> {
    cursor: BufferCursor<'a>,
    csn: u64,
    current: Option<Change<'a>>,
}

impl<'a> Entries<'a> {
    fn new(mut cursor: BufferCursor<'a>, csn: u64) -> Entries<'a> {
        let positioned = cursor.first();
        let mut entries = Entries {
            cursor,
            csn,
            current: None,
        };
        if positioned {
            entries.settle();
        }
        entries
    }

    /// Moves on to the first entry, from the present one, that says something.
    fn settle(&mut self) {
        loop {
            self.current = match self.cursor.resolve(self.csn) {
                Found::Absent => None,
                Found::Deleted => Some(Change::Delete),
                Found::Value(value) => Some(Change::Put(value)),
                Found::Large(pointer) => Some(Change::Adopt(ValuePointer::decode(pointer))),
            };
            if self.current.is_some() || !self.cursor.next() {
                return;
            }
        }
    }

    #[inline]
    fn key(&self) -> Option<&'a [u8]> {
        self.current.is_some().then(|| self.cursor.key())
    }

    #[inline]
    fn advance(&mut self) {
        self.current = None;
        if self.cursor.next() {
            self.settle();
        }
    }
}

/// The resolved entries of one buffer.
pub(crate) struct OwnChanges<'a, 'l> {
    entries: Entries<'a>,
    /// Addresses of the out-of-line values that the tree takes over.
    adopted: &'l mut Vec<u64>,
    passed: u64,
}

impl<'a, 'l> OwnChanges<'a, 'l> {
    /// All versions, uncommitted ones too: for the transaction that wrote them.
    pub fn new(cursor: BufferCursor<'a>, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, u64::MAX, adopted)
    }

    /// All committed versions.
    pub fn committed(cursor: BufferCursor<'a>, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, CSN_NEWEST, adopted)
    }

    fn at(cursor: BufferCursor<'a>, csn: u64, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges {
            entries: Entries::new(cursor, csn),
            adopted,
            passed: 0,
        }
    }

    /// Up to which commit the stream looks.
    pub fn csn(&self) -> u64 {
        self.entries.csn
    }

    /// Number of changes so far.
    pub fn passed(&self) -> u64 {
        self.passed
    }
}

impl ChangeStream for OwnChanges<'_, '_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.entries.key()
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        self.entries
            .current
            .expect("called only while there is a key")
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Some(Change::Adopt(pointer)) = self.entries.current {
            self.adopted.push(pointer.address_units);
        }
        self.passed += 1;
        self.entries.advance();
        Ok(())
    }
}

/// One of the folded buffers.
struct Layer<'a> {
    entries: Entries<'a>,
    /// The first bytes of its present key; all ones when it has none.
    head: u64,
    /// Ranges that newer buffers deleted, disjoint and ascending; those before the present key are passed.
    hidden: Vec<KeyRange>,
    hidden_passed: usize,
}

impl Layer<'_> {
    /// Passes entries that a newer buffer deleted (3), and notes where the layer is now.
    fn settle(&mut self) {
        while let Some(key) = self.entries.key() {
            while let Some(range) = self.hidden.get(self.hidden_passed)
                && range.hi.as_deref().is_some_and(|hi| hi <= key)
            {
                self.hidden_passed += 1;
            }
            let is_hidden = self
                .hidden
                .get(self.hidden_passed)
                .is_some_and(|range| range.lo.as_slice() <= key);
            if !is_hidden {
                self.head = head(key);
                return;
            }
            self.entries.advance();
        }
        self.head = u64::MAX;
    }
}

/// Orders like the key as far as it goes: the first eight bytes, zeros behind a shorter key.
#[inline]
fn head(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

/// The committed entries of several frozen buffers of one keyspace.
pub(crate) struct FoldedChanges<'a, 'l> {
    /// Newest first.
    layers: Vec<Layer<'a>>,
    /// The layer whose entry comes next: the newest of those with the least key.
    next: Option<usize>,
    adopted: &'l mut Vec<u64>,
    passed: u64,
}

impl<'a, 'l> FoldedChanges<'a, 'l> {
    /// `buffers` are ordered newest first. With the stream come the ranges that they delete from what is below all of them.
    pub fn new(
        buffers: &[&'a KeyspaceBuffer],
        adopted: &'l mut Vec<u64>,
    ) -> (FoldedChanges<'a, 'l>, Vec<KeyRange>) {
        let mut deleted: Vec<KeyRange> = Vec::new();
        let mut layers = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let mut layer = Layer {
                entries: Entries::new(buffer.cursor(), CSN_NEWEST),
                head: 0,
                hidden: deleted.clone(),
                hidden_passed: 0,
            };
            layer.settle();
            layers.push(layer);
            deleted = union(deleted, flatten(buffer, CSN_NEWEST));
        }
        let mut folded = FoldedChanges {
            layers,
            next: None,
            adopted,
            passed: 0,
        };
        folded.choose();
        (folded, deleted)
    }

    pub fn passed(&self) -> u64 {
        self.passed
    }

    fn choose(&mut self) {
        let mut best: Option<usize> = None;
        for (index, layer) in self.layers.iter().enumerate() {
            let Some(key) = layer.entries.key() else {
                continue;
            };
            let is_less = best.is_none_or(|best| {
                let least = &self.layers[best];
                match layer.head.cmp(&least.head) {
                    std::cmp::Ordering::Equal => Some(key) < least.entries.key(),
                    order => order.is_lt(),
                }
            });
            if is_less {
                best = Some(index);
            }
        }
        self.next = best;
    }
}

impl ChangeStream for FoldedChanges<'_, '_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.layers[self.next?].entries.key()
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        self.next
            .and_then(|next| self.layers[next].entries.current)
            .expect("called only while there is a key")
    }

    fn advance(&mut self) -> Result<()> {
        let Some(next) = self.next else {
            return Ok(());
        };
        let (newer, older) = self.layers.split_at_mut(next + 1);
        let passed = &mut newer[next];
        if let Some(Change::Adopt(pointer)) = passed.entries.current {
            self.adopted.push(pointer.address_units);
        }
        // (2): older buffers do not get a say. Newer ones have no entry of this key, or theirs would have been chosen.
        let key = passed.entries.key();
        for layer in older {
            if layer.head == passed.head && layer.entries.key() == key {
                layer.entries.advance();
                layer.settle();
            }
        }
        passed.entries.advance();
        passed.settle();
        self.passed += 1;
        self.choose();
        Ok(())
    }
}

/// The union of a buffer's range deletes, as disjoint ascending ranges.
pub(crate) fn flatten(buffer: &KeyspaceBuffer, csn: u64) -> Vec<KeyRange> {
    let mut union: Vec<KeyRange> = Vec::new();
    if !buffer.has_range_tombstones() {
        return union;
    }
    for tombstone in buffer.range_tombstones(csn) {
        union_push(&mut union, tombstone.lo(), tombstone.hi());
    }
    union
}

/// The union of two lists of disjoint ascending ranges.
fn union(a: Vec<KeyRange>, b: Vec<KeyRange>) -> Vec<KeyRange> {
    if a.is_empty() {
        return b;
    }
    let mut all = a;
    all.extend(b);
    all.sort_by(|x, y| x.lo.cmp(&y.lo));
    let mut union = Vec::with_capacity(all.len());
    for range in &all {
        union_push(&mut union, &range.lo, range.hi.as_deref());
    }
    union
}

/// Adds a range whose `lo` is not less than that of any range before it.
pub(crate) fn union_push(union: &mut Vec<KeyRange>, lo: &[u8], hi: Option<&[u8]>) {
    match union.last_mut() {
        Some(last) if last.hi.as_deref().is_none_or(|end| end >= lo) => {
            let ends_later = match (last.hi.as_deref(), hi) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(end), Some(hi)) => hi > end,
            };
            if ends_later {
                last.hi = hi.map(<[u8]>::to_vec);
            }
        }
        _ => union.push(KeyRange {
            lo: lo.to_vec(),
            hi: hi.map(<[u8]>::to_vec),
        }),
    }
}
