//! Reading a leaf's entries in order, with the key materialised: the prefix is written once, then only suffixes.
//!
//! Thread safety: a cursor owns its key buffer and borrows an immutable leaf.
//!
//! Invariants:
//! (1) `next <= end <= leaf.len()`.
//! (2) the key buffer holds at least the leaf's prefix, initialised.
// Unsafe: skips the per-entry checks that (1) and (2) make superfluous.
#![allow(unsafe_code)]

use super::bytes::store_u64;
use super::leaf::{
    FLAG_VALUES_EXTERNAL, Leaf, LeafEncoding, OFFSET_EXTERNAL, SECTIONS_AT, copy_suffix, dense_word,
};
use super::reference::Stored;
use std::ops::{ControlFlow, Range};

/// Forward reader over a range of a leaf's entries.
///
/// ```
/// use psitri::node::{Leaf, LeafCursor, LeafPacker, Stored};
/// let mut packer = LeafPacker::new();
/// packer.push(b"a", Stored::Inline(b"1"));
/// packer.push(b"b", Stored::Inline(b"2"));
/// let image = packer.pop_last(false).unwrap();
/// let leaf = Leaf::open(image.bytes).unwrap();
/// let mut cursor = LeafCursor::new(leaf, 1..2);
/// assert_eq!(cursor.next(), Some((&b"b"[..], Stored::Inline(b"2"))));
/// assert_eq!(cursor.next(), None);
/// ```
#[derive(Debug)]
pub struct LeafCursor<'a> {
    leaf: Leaf<'a>,
    next: usize,
    end: usize,
    key: Vec<u8>,
}

impl<'a> LeafCursor<'a> {
    /// A cursor over the entries `range`, cut to what the leaf has.
    pub fn new(leaf: Leaf<'a>, range: Range<usize>) -> LeafCursor<'a> {
        LeafCursor::with_buffer(leaf, range, Vec::new())
    }

    /// As [`LeafCursor::new`], reusing the memory of `key`.
    pub fn with_buffer(leaf: Leaf<'a>, range: Range<usize>, mut key: Vec<u8>) -> LeafCursor<'a> {
        leaf.load_prefix(&mut key);
        let end = range.end.min(leaf.len());
        LeafCursor {
            leaf,
            next: range.start.min(end),
            end,
            key,
        }
    }

    /// Gives the key buffer back for the next leaf.
    pub fn into_buffer(self) -> Vec<u8> {
        self.key
    }

    /// Index of the entry that [`LeafCursor::next`] will give.
    pub fn peek_index(&self) -> usize {
        self.next
    }

    /// Entries left.
    pub fn remaining(&self) -> usize {
        self.end - self.next
    }

    /// The next entry.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "the key is lent until the next call"
    )]
    pub fn next(&mut self) -> Option<(&[u8], Stored<'a>)> {
        if self.next >= self.end {
            return None;
        }
        let i = self.next;
        self.next += 1;
        // SAFETY: (1) and (2).
        let value = unsafe { self.leaf.load_entry_unchecked(i, &mut self.key) };
        Some((&self.key, value))
    }
}

/// How [`Leaf::visit`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visited {
    /// Behind the last entry of the range.
    All,
    /// In front of an entry whose value is outside of the leaf.
    External(usize),
    /// The visitor broke.
    Broken,
}

impl<'a> Leaf<'a> {
    /// Calls `visit` with each entry of `range` (cut to what the leaf has) in order, until it breaks or a value is outside of the leaf. `key_buffer`
    /// is scratch memory, which holds the leaf's prefix afterwards.
    ///
    /// The encoding is looked at once, so that this is the fastest way through a leaf.
    #[inline]
    pub fn visit(
        &self,
        range: Range<usize>,
        key_buffer: &mut Vec<u8>,
        visit: impl FnMut(&[u8], &'a [u8]) -> ControlFlow<()>,
    ) -> Visited {
        self.prepare(key_buffer);
        self.visit_prepared(range, key_buffer, visit)
    }

    /// Prepares a key buffer for [`Leaf::visit_prepared`]: it holds the leaf's prefix then.
    #[inline]
    pub fn prepare(&self, key_buffer: &mut Vec<u8>) {
        self.load_prefix(key_buffer);
        // No suffix is longer than the image, and each may be written with `SUFFIX_BYTES_MIN`.
        key_buffer.reserve(self.image_bytes());
    }

    /// As [`Leaf::visit`], for short ranges, with a key buffer that was [prepared](Leaf::prepare) for this leaf; it is afterwards, too.
    ///
    /// # Panics
    /// If the buffer is too small: it was prepared for another leaf.
    #[inline(always)]
    pub fn visit_prepared(
        &self,
        range: Range<usize>,
        key_buffer: &mut Vec<u8>,
        mut visit: impl FnMut(&[u8], &'a [u8]) -> ControlFlow<()>,
    ) -> Visited {
        let end = range.end.min(self.len());
        if range.start >= end {
            return Visited::All;
        }
        if self.flags & FLAG_VALUES_EXTERNAL != 0 {
            return Visited::External(range.start);
        }
        let prefix_bytes = self.prefix_bytes as usize;
        assert!(
            key_buffer.len() >= prefix_bytes
                && key_buffer.capacity() - prefix_bytes >= self.image_bytes(),
            "the key buffer was prepared for the leaf"
        );
        let key = key_buffer.as_mut_ptr();
        let (value_bytes, width) = (self.value_bytes as usize, self.suffix_bytes as usize);
        // SAFETY: entries below `end` are in the image, leaf (1) and (2), and none of these values is external. In `key` the prefix is followed by
        // room for every suffix, and what is lent to the visitor was written before.
        unsafe {
            let suffix_at = key.add(prefix_bytes);
            let mut lend = |suffix_bytes: usize, value_at: usize, bytes: usize| {
                let key = std::slice::from_raw_parts(key, prefix_bytes + suffix_bytes);
                visit(key, std::slice::from_raw_parts(self.at(value_at), bytes))
            };
            if self.encoding == LeafEncoding::Slotted {
                let mut word = self.offset_word(range.start);
                for i in range.start..end {
                    if word & OFFSET_EXTERNAL != 0 {
                        return Visited::External(i);
                    }
                    let next = self.offset_word(i + 1);
                    let entry_bytes = (next & !OFFSET_EXTERNAL) - word;
                    let suffix_bytes = self.slot_suffix_bytes(i, entry_bytes);
                    copy_suffix(self.at(word), suffix_at, suffix_bytes);
                    if lend(
                        suffix_bytes,
                        word + suffix_bytes,
                        entry_bytes - suffix_bytes,
                    )
                    .is_break()
                    {
                        return Visited::Broken;
                    }
                    word = next;
                }
                return Visited::All;
            }
            let is_dense = self.encoding == LeafEncoding::Dense;
            let first = if is_dense { self.dense_first() } else { 0 };
            let load_suffix = |i: usize| match is_dense {
                true => store_u64(suffix_at, dense_word(first.wrapping_add(i as u64), width)),
                false => copy_suffix(self.at(SECTIONS_AT + i * width), suffix_at, width),
            };
            if self.uniform() {
                for i in range.start..end {
                    load_suffix(i);
                    let value_at = self.data_at as usize + i * value_bytes;
                    if lend(width, value_at, value_bytes).is_break() {
                        return Visited::Broken;
                    }
                }
                return Visited::All;
            }
            let mut word = self.offset_word(range.start);
            for i in range.start..end {
                if word & OFFSET_EXTERNAL != 0 {
                    return Visited::External(i);
                }
                let next = self.offset_word(i + 1);
                load_suffix(i);
                if lend(width, word, (next & !OFFSET_EXTERNAL) - word).is_break() {
                    return Visited::Broken;
                }
                word = next;
            }
        }
        Visited::All
    }
}
