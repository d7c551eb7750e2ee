//! Reading a leaf's entries in order, with the key materialised: the prefix is written once, then only suffixes.
//!
//! Thread safety: a cursor owns its key buffer and borrows an immutable leaf.
//!
//! Invariants:
//! (1) `next <= end <= leaf.len()`.
//! (2) the key buffer holds at least the leaf's prefix, initialised.
// Unsafe: skips the per-entry checks that (1) and (2) make superfluous.
#![allow(unsafe_code)]

use super::bytes::copy;
use super::leaf::{FLAG_VALUES_EXTERNAL, Leaf, LeafEncoding, OFFSET_EXTERNAL, SECTIONS_AT};
use super::reference::{Stored, ValuePointer};
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
        let value = unsafe {
            self.leaf.load_suffix_unchecked(i, &mut self.key);
            self.leaf.value_unchecked(i)
        };
        Some((&self.key, value))
    }
}

impl<'a> Leaf<'a> {
    /// Calls `f` with each entry of `range` (cut to what the leaf has) in order, until it breaks. `key_buffer`
    /// is scratch memory; what it holds afterwards is unspecified.
    ///
    /// The encoding is looked at once, so that this is the fastest way through a leaf.
    #[inline]
    pub fn for_each(
        &self,
        range: Range<usize>,
        key_buffer: &mut Vec<u8>,
        mut f: impl FnMut(&[u8], Stored<'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let end = range.end.min(self.len());
        if range.start >= end {
            return ControlFlow::Continue(());
        }
        // The buffer only ever grows, so that no leaf pays for clearing it. No suffix is longer than the image.
        let prefix_bytes = self.prefix_bytes as usize;
        let key_bytes_max = prefix_bytes + self.image_bytes();
        if key_buffer.len() < key_bytes_max {
            key_buffer.resize(key_bytes_max, 0);
        }
        key_buffer[..prefix_bytes].copy_from_slice(self.key_prefix());
        let key = key_buffer.as_mut_slice();
        match self.encoding {
            LeafEncoding::Slotted => {
                // SAFETY: leaf (1) and (2): offsets and lengths of entries below `end` are in the image; the buffer has room for
                // every suffix.
                unsafe {
                    let mut word = self.offset_word(range.start);
                    for i in range.start..end {
                        let next = self.offset_word(i + 1);
                        let start = word & !OFFSET_EXTERNAL;
                        let entry_bytes = (next & !OFFSET_EXTERNAL) - start;
                        let suffix_bytes = self.slot_suffix_bytes(i, entry_bytes);
                        let from = self.base.add(start);
                        copy(from, key.as_mut_ptr().add(prefix_bytes), suffix_bytes);
                        let external = (word & OFFSET_EXTERNAL != 0)
                            | (self.flags & FLAG_VALUES_EXTERNAL != 0);
                        let value =
                            stored(from.add(suffix_bytes), entry_bytes - suffix_bytes, external);
                        f(key.get_unchecked(..prefix_bytes + suffix_bytes), value)?;
                        word = next;
                    }
                }
            }
            LeafEncoding::Fixed => {
                let width = self.suffix_bytes as usize;
                let key = &mut key[..prefix_bytes + width];
                for i in range.start..end {
                    // SAFETY: i < count; the buffer has room for the suffix.
                    let value = unsafe {
                        copy(
                            self.base.add(SECTIONS_AT + i * width),
                            key.as_mut_ptr().add(prefix_bytes),
                            width,
                        );
                        self.value_unchecked(i)
                    };
                    f(key, value)?;
                }
            }
            LeafEncoding::Dense => {
                let width = self.suffix_bytes as usize;
                let key = &mut key[..prefix_bytes + width];
                for i in range.start..end {
                    let (bytes, start) = self.dense_suffix(i);
                    // SAFETY: i < count; the suffix has `width` bytes, leaf (4), and the buffer has room for it.
                    let value = unsafe {
                        copy(
                            bytes.as_ptr().add(start),
                            key.as_mut_ptr().add(prefix_bytes),
                            width,
                        );
                        self.value_unchecked(i)
                    };
                    f(key, value)?;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// # Safety
/// `at` points to `bytes` readable bytes that live for `'a`; leaf (3).
#[inline(always)]
unsafe fn stored<'a>(at: *const u8, bytes: usize, external: bool) -> Stored<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        if external {
            return Stored::External(ValuePointer::decode(&*at.cast()));
        }
        Stored::Inline(std::slice::from_raw_parts(at, bytes))
    }
}
