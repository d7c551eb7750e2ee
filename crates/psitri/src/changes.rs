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
//! (5) An entry that has expired comes out as a removal: it hides what is older, in the buffers and in the tree.

use std::rc::Rc;

use crate::{
    Result,
    buffer::{BufferCursor, Found, KeyspaceBuffer},
    expiry::Judge,
    layers::CSN_NEWEST,
    merger::Tally,
    node::{Stored, ValuePointer, head},
    pager::Pager,
    tree::{Change, ChangeStream, KeyRange},
};

/// The entries of one buffer that say something, in key order.
struct Entries<'a> {
    cursor: BufferCursor<'a>,
    csn: u64,
    /// (5)
    judge: Option<Judge<'a>>,
    current: Option<Change<'a>>,
}

impl<'a> Entries<'a> {
    fn new(mut cursor: BufferCursor<'a>, csn: u64, judge: Option<Judge<'a>>) -> Entries<'a> {
        let positioned = cursor.first();
        let mut entries = Entries {
            cursor,
            csn,
            judge,
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
            if let Some(judge) = self.judge {
                self.drop_expired(judge);
            }
            if self.current.is_some() || !self.cursor.next() {
                return;
            }
        }
    }

    /// (5)
    #[inline(never)]
    fn drop_expired(&mut self, judge: Judge<'_>) {
        let is_expired = match self.current {
            Some(Change::Put(stored)) => judge.is_expired(Stored::Inline(stored)),
            Some(Change::Adopt(pointer)) => judge.is_expired(Stored::External(pointer)),
            Some(Change::Delete) | None => false,
        };
        if is_expired {
            self.current = Some(Change::Delete);
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
    tally: Tally<'l>,
    len_max: u64,
}

impl<'a, 'l> OwnChanges<'a, 'l> {
    /// All versions, uncommitted and expired ones too: for the transaction that wrote them. Its log names the values outside the buffers.
    pub fn new(cursor: BufferCursor<'a>, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, u64::MAX, None, adopted, Tally::default())
    }

    /// All committed versions.
    pub fn committed(
        cursor: BufferCursor<'a>,
        judge: Option<Judge<'a>>,
        adopted: &'l mut Vec<u64>,
        tally: Tally<'l>,
    ) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, CSN_NEWEST, judge, adopted, tally)
    }

    fn at(
        cursor: BufferCursor<'a>,
        csn: u64,
        judge: Option<Judge<'a>>,
        adopted: &'l mut Vec<u64>,
        tally: Tally<'l>,
    ) -> OwnChanges<'a, 'l> {
        OwnChanges {
            entries: Entries::new(cursor, csn, judge),
            adopted,
            passed: 0,
            tally,
            len_max: u64::MAX,
        }
    }

    /// Says how many changes there are at most.
    pub fn expect_at_most(&mut self, len: u64) {
        self.len_max = len;
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
            self.adopted.push(pointer.address_units());
        }
        self.passed += 1;
        self.tally.note(1);
        self.entries.advance();
        Ok(())
    }

    fn len_max(&self) -> u64 {
        self.len_max
    }
}

/// One of the folded buffers.
struct Layer<'a> {
    entries: Entries<'a>,
    /// The first bytes of its present key; all ones when it has none.
    head: u64,
    /// Ranges that newer buffers deleted, disjoint and ascending; those before the present key are passed.
    hidden: Rc<Vec<KeyRange>>,
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

/// The committed entries of several frozen buffers of one keyspace.
pub(crate) struct FoldedChanges<'a, 'l> {
    /// Newest first.
    layers: Vec<Layer<'a>>,
    /// The layer whose entry comes next: the newest of those with the least key.
    next: Option<usize>,
    adopted: &'l mut Vec<u64>,
    passed: u64,
    tally: Tally<'l>,
}

impl<'a, 'l> FoldedChanges<'a, 'l> {
    /// `buffers` are ordered newest first. With the stream come the ranges that they delete from what is below all of them.
    pub fn new(
        buffers: &[&'a KeyspaceBuffer],
        judge: Option<Judge<'a>>,
        adopted: &'l mut Vec<u64>,
        tally: Tally<'l>,
    ) -> (FoldedChanges<'a, 'l>, Vec<KeyRange>) {
        let mut deleted: Rc<Vec<KeyRange>> = Rc::default();
        let mut layers = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let mut layer = Layer {
                entries: Entries::new(buffer.cursor(), CSN_NEWEST, judge),
                head: 0,
                hidden: Rc::clone(&deleted),
                hidden_passed: 0,
            };
            layer.settle();
            layers.push(layer);
            let ranges = flatten(buffer, CSN_NEWEST);
            if !ranges.is_empty() {
                deleted = Rc::new(union(deleted.to_vec(), ranges));
            }
        }
        let mut folded = FoldedChanges {
            layers,
            next: None,
            adopted,
            passed: 0,
            tally,
        };
        folded.choose();
        (folded, deleted.to_vec())
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
            self.adopted.push(pointer.address_units());
        }
        // (2): older buffers do not get a say. Newer ones have no entry of this key, or theirs would have been chosen.
        let key = passed.entries.key();
        let mut entries = 1;
        for layer in older {
            if layer.head == passed.head && layer.entries.key() == key {
                layer.entries.advance();
                layer.settle();
                entries += 1;
            }
        }
        self.tally.note(entries);
        passed.entries.advance();
        passed.settle();
        self.passed += 1;
        self.choose();
        Ok(())
    }
}

/// A piece of a stream: it ends when so many bytes were written, or replaced, by whoever writes to the file. The rest stays in the stream.
pub(crate) struct Slice<'s, 'p, S> {
    changes: &'s mut S,
    pager: &'p Pager,
    written_end: u64,
    killed_end: u64,
    is_over: bool,
}

impl<'s, 'p, S: ChangeStream> Slice<'s, 'p, S> {
    pub fn new(changes: &'s mut S, pager: &'p Pager, bytes: u64) -> Slice<'s, 'p, S> {
        Slice {
            changes,
            pager,
            written_end: pager.written_total() + bytes,
            killed_end: pager.killed_total() + bytes,
            is_over: false,
        }
    }
}

impl<S: ChangeStream> ChangeStream for Slice<'_, '_, S> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        if self.is_over {
            return None;
        }
        self.changes.key()
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        self.changes.change()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.changes.advance()?;
        self.is_over = self.pager.written_total() >= self.written_end
            || self.pager.killed_total() >= self.killed_end;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        buffer::{Arena, Kind},
        sync::Arc,
    };
    use rand::{Rng, SeedableRng, rngs::SmallRng};
    use std::collections::BTreeMap;

    /// What a tree would hold after the changes; `None` is a key that is to be removed.
    type Outcome = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn key(number: u32) -> Vec<u8> {
        // Of several lengths, some with equal first eight bytes.
        match number % 4 {
            0 => number.to_be_bytes().to_vec(),
            1 => [b"common prefix ".as_slice(), &number.to_be_bytes()].concat(),
            2 => vec![0; number as usize % 12],
            _ => vec![0xff; number as usize % 12],
        }
    }

    #[test]
    fn folding_comes_to_the_same_as_one_buffer_after_the_other() {
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let before: Vec<Vec<u8>> = (0..60).map(key).collect();
            let mut expected: Outcome = before
                .iter()
                .map(|key| (key.clone(), Some(b"old".to_vec())))
                .collect();
            let mut csn = 1;
            let buffers: Vec<Arc<KeyspaceBuffer>> = (0..random.random_range(2..5u32))
                .map(|number| fill(&mut random, number, &mut csn, &mut expected))
                .collect();

            let newest_first: Vec<&KeyspaceBuffer> = buffers.iter().rev().map(|b| &**b).collect();
            let mut adopted = Vec::new();
            let (mut folded, ranges) =
                FoldedChanges::new(&newest_first, None, &mut adopted, Tally::default());
            assert!(
                ranges
                    .windows(2)
                    .all(|pair| pair[0].hi.as_ref().is_some_and(|hi| *hi < pair[1].lo)),
                "seed {seed}: {ranges:?}"
            );
            let mut found: Outcome = before
                .into_iter()
                .map(|key| (key, Some(b"old".to_vec())))
                .collect();
            for (key, value) in &mut found {
                if is_inside(&ranges, key) {
                    *value = None;
                }
            }
            let mut last: Option<Vec<u8>> = None;
            while let Some(key) = folded.key().map(<[u8]>::to_vec) {
                assert!(last.is_none_or(|last| last < key), "seed {seed}: {key:?}");
                let value = match folded.change() {
                    Change::Put(value) => Some(value.to_vec()),
                    Change::Delete => None,
                    Change::Adopt(_) => panic!("nothing was adopted"),
                };
                found.insert(key.clone(), value);
                last = Some(key);
                folded.advance().unwrap();
            }
            let present = |outcome: Outcome| -> Vec<_> {
                outcome
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value?)))
                    .collect()
            };
            assert_eq!(present(found), present(expected), "seed {seed}");
        }
    }

    fn is_inside(ranges: &[KeyRange], key: &[u8]) -> bool {
        ranges.iter().any(|range| {
            range.lo.as_slice() <= key && range.hi.as_deref().is_none_or(|hi| key < hi)
        })
    }

    /// A buffer of random puts, deletes and range deletes, each a commit, and what they come to.
    fn fill(
        random: &mut SmallRng,
        number: u32,
        csn: &mut u64,
        expected: &mut Outcome,
    ) -> Arc<KeyspaceBuffer> {
        let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(1 << 20).unwrap()));
        let mut writer = buffer.writer().unwrap();
        for _ in 0..random.random_range(0..40) {
            *csn += 1;
            let floor = writer.watermark();
            let chosen = key(random.random_range(0..80));
            match random.random_range(0..10) {
                0 => {
                    let other = key(random.random_range(0..80));
                    let (lo, hi) = (chosen.clone().min(other.clone()), chosen.max(other));
                    let hi = random.random_bool(0.9).then_some(hi);
                    let tombstone = writer.add_range_tombstone(&lo, hi.as_deref());
                    writer.stamp_range_tombstone(&tombstone, *csn);
                    let range = [KeyRange { lo, hi }];
                    for (key, value) in expected.iter_mut() {
                        if is_inside(&range, key) {
                            *value = None;
                        }
                    }
                }
                kind => {
                    let value = (kind > 3).then(|| format!("{number} {csn}").into_bytes());
                    let (tag, payload) = match &value {
                        Some(value) => (Kind::Value, value.as_slice()),
                        None => (Kind::Tombstone, [].as_slice()),
                    };
                    let (_, outcome) = writer.put(&chosen, tag, payload, floor).unwrap();
                    writer.stamp(outcome.version, *csn);
                    expected.insert(chosen, value);
                }
            }
        }
        drop(writer);
        buffer
    }
}
