//! Deltas: the changes of one leaf, in a node of their own in front of it. A merge that has few changes for a leaf writes these
//! instead of the leaf.
//!
//! Layout after the 24-byte header (`docs/format.md` draws it):
//!
//! ```text
//! 24: base NodeRef, keys u32, spent u32
//! 40: mark[n], two bits each, then zeros to a multiple of 64
//!     a leaf image with the n keys that are changed, of which checksum and birth are zero
//! ```
//!
//! Thread safety: views are `Copy` borrows of immutable bytes.
//!
//! Invariants, established by `structure` and relied on without checks here:
//! (1) The marks and the leaf inside lie in the image; the leaf has as many entries as the header counts, and leaf invariants of its own.
//! (2) A mark is one of [`Mark`]'s, and no key or value is longer than those of leaves: a merge packs them again.
//!
//! Established by `content`, or by who reads the base, and only ever a matter of right or wrong results:
//! (3) An entry that removes has an empty value.
//! (4) `keys` is the number of keys of the base, more those that are new, less those that are removed.
//!
//! Failure modes: none for validated bytes. An index that is out of range panics.
// Unsafe: the view of the leaf inside, and fields of the first unit, both known to be good by (1).
#![allow(unsafe_code)]

use super::bytes::{load_u32, load_u64};
use super::error::NodeError;
use super::header::{self, FLAGS_AT, HEADER_BYTES, NodeKind};
use super::leaf::Leaf;
use super::leaf_pack::LeafPacker;
use super::leaf_validate;
use super::reference::{NodeRef, Stored};
use super::{KEY_BYTES_MAX, UNIT_BYTES, VALUE_INLINE_BYTES_MAX};

const BASE_AT: usize = HEADER_BYTES;
const KEYS_AT: usize = 32;
const SPENT_AT: usize = 36;
const MARKS_AT: usize = 40;
const MARKS_PER_BYTE: usize = 4;
const _: () = assert!(SPENT_AT + 4 == MARKS_AT && MARKS_AT < UNIT_BYTES);

/// What an entry of a delta does to the leaf behind it. The values are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// The leaf does not have the key.
    New = 0,
    /// The leaf has the key, with another value.
    Replaces = 1,
    /// The leaf has the key, which is gone.
    Removes = 2,
}

/// Where the leaf inside begins in a delta of `count` entries.
fn leaf_at(count: usize) -> usize {
    (MARKS_AT + count.div_ceil(MARKS_PER_BYTE)).next_multiple_of(UNIT_BYTES)
}

/// A delta.
#[derive(Debug, Clone, Copy)]
pub struct Delta<'a> {
    bytes: &'a [u8],
    leaf: Leaf<'a>,
}

impl<'a> Delta<'a> {
    /// Validates the bytes and makes a view.
    ///
    /// # Errors
    /// The bytes are not a well-formed delta.
    pub fn open(bytes: &'a [u8]) -> Result<Delta<'a>, NodeError> {
        match header::validate(bytes)? {
            // SAFETY: just validated.
            NodeKind::Delta => Ok(unsafe { Delta::new_validated(bytes) }),
            kind => Err(NodeError::Kind(kind as u8)),
        }
    }

    /// Makes a view without looking at more than the headers.
    ///
    /// # Safety
    /// [`super::validate`] accepted the node that begins here as a delta, and it has not changed since. `bytes` may be cut short, behind the header: a
    /// forged reference is.
    #[inline]
    pub unsafe fn new_validated(bytes: &'a [u8]) -> Delta<'a> {
        let units = header::units(bytes) as usize;
        // SAFETY: the caller's promise: so long was the node that was validated.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), units * UNIT_BYTES) };
        let inside = &bytes[leaf_at(header::count(bytes) as usize)..];
        // SAFETY: the caller's promise gives (1).
        let leaf = unsafe { Leaf::new_validated(inside) };
        Delta { bytes, leaf }
    }

    /// The leaf that is changed. It is no delta.
    #[inline]
    pub fn base(&self) -> NodeRef {
        // SAFETY: the fields lie in the first unit.
        NodeRef::from_bits(unsafe { load_u64(self.bytes.as_ptr().add(BASE_AT)) })
    }

    /// Number of keys of the leaf with its changes.
    #[inline]
    pub fn keys(&self) -> u64 {
        // SAFETY: as above.
        u64::from(unsafe { load_u32(self.bytes.as_ptr().add(KEYS_AT)) })
    }

    /// What deltas in front of this leaf have cost since it was written, in bytes: their own, and those outside of the leaf that they keep
    /// from being free.
    #[inline]
    pub fn spent(&self) -> u32 {
        // SAFETY: as above.
        unsafe { load_u32(self.bytes.as_ptr().add(SPENT_AT)) }
    }

    /// The changed keys, with their values.
    #[inline]
    pub fn entries(&self) -> Leaf<'a> {
        self.leaf
    }

    /// Bytes of the leaf inside.
    #[inline]
    pub fn entries_bytes(&self) -> usize {
        self.bytes.len() - leaf_at(self.leaf.len())
    }

    /// What entry `index` does.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[inline]
    pub fn mark(&self, index: usize) -> Mark {
        assert!(index < self.leaf.len(), "delta entry index is out of range");
        match mark_bits(self.bytes, index) {
            0 => Mark::New,
            1 => Mark::Replaces,
            _ => Mark::Removes,
        }
    }

    /// Whether what this says of the leaf behind it is so: which keys it has, and how many with the changes.
    pub fn fits(&self, leaf: Leaf<'_>) -> bool {
        let mut key = Vec::new();
        let is_marked = |index| {
            self.leaf.copy_key(index, &mut key);
            leaf.find(&key).is_some() == (self.mark(index) != Mark::New)
        };
        (0..self.leaf.len()).all(is_marked)
            && self.index_with_changes(leaf.len(), self.leaf.len()) as u64 == self.keys()
    }

    /// Index in the leaf with its changes of what has index `index` in the leaf behind it, if `changes` entries of the delta come before.
    pub fn index_with_changes(&self, index: usize, changes: usize) -> usize {
        let marks = (0..changes).map(|change| self.mark(change));
        marks.fold(index, |index, mark| match mark {
            Mark::New => index + 1,
            Mark::Replaces => index,
            Mark::Removes => index.saturating_sub(1),
        })
    }
}

#[inline]
fn mark_bits(bytes: &[u8], index: usize) -> u8 {
    bytes[MARKS_AT + index / MARKS_PER_BYTE] >> (2 * (index % MARKS_PER_BYTE)) & 3
}

/// Establishes (1) and (2). The header was checked.
pub(super) fn structure(bytes: &[u8]) -> Result<(), NodeError> {
    if bytes[FLAGS_AT] != 0 {
        return Err(NodeError::Malformed("delta: unknown flags"));
    }
    let count = header::count(bytes) as usize;
    // Marks take a quarter of a byte each, so that no sum wraps.
    let inside = (count <= MARKS_PER_BYTE * bytes.len())
        .then(|| bytes.get(leaf_at(count)..))
        .flatten()
        .filter(|inside| inside.len() >= UNIT_BYTES)
        .ok_or(NodeError::Malformed(
            "delta: marks are longer than the node",
        ))?;
    let kind = header::check_header(inside)?;
    if !kind.is_leaf() {
        return Err(NodeError::Malformed("delta: what is inside is no leaf"));
    }
    leaf_validate::structure(inside, kind)?;
    if header::count(inside) as usize != count {
        return Err(NodeError::Malformed("delta: another number of entries"));
    }
    if (0..count).any(|index| mark_bits(bytes, index) > Mark::Removes as u8) {
        return Err(NodeError::Malformed("delta: unknown mark"));
    }
    // SAFETY: just validated.
    let leaf = unsafe { Leaf::new_validated(inside) };
    let is_too_long = |index| {
        leaf.key_bytes(index) > KEY_BYTES_MAX
            || matches!(leaf.value(index), Stored::Inline(value) if value.len() > VALUE_INLINE_BYTES_MAX)
    };
    if (0..count).any(is_too_long) {
        return Err(NodeError::Malformed("delta: a key or value is too long"));
    }
    // Each entry hides what the leaf behind has of its key, once.
    leaf_validate::content(inside)
}

/// (3). `structure` accepted the bytes.
pub(super) fn content(bytes: &[u8]) -> Result<(), NodeError> {
    // SAFETY: the caller's promise.
    let delta = unsafe { Delta::new_validated(bytes) };
    if delta.base().is_null() || delta.base().has_deltas() {
        return Err(NodeError::Malformed("delta: no leaf behind it"));
    }
    if delta.keys() == 0 {
        return Err(NodeError::Malformed("delta: nothing is left of the leaf"));
    }
    let is_wrong = |index| {
        delta.mark(index) == Mark::Removes && delta.leaf.value(index) != Stored::Inline(&[])
    };
    if (0..delta.leaf.len()).any(is_wrong) {
        return Err(NodeError::Malformed("delta: a removal has a value"));
    }
    Ok(())
}

/// Builds the image of a delta from entries pushed in ascending key order. Reuses its buffers.
///
/// ```
/// use psitri::node::{Delta, DeltaPacker, Mark, NodeRef, Stored};
/// let mut packer = DeltaPacker::default();
/// packer.push(b"apple", Stored::Inline(b"green"), Mark::Replaces);
/// packer.push(b"plum", Stored::Inline(b""), Mark::Removes);
/// let leaf = NodeRef::new(7, 0, 64);
/// let image = packer.finish(leaf, 40, 0).unwrap();
/// let delta = Delta::open(image).unwrap();
/// assert_eq!((delta.base(), delta.keys(), delta.spent()), (leaf, 40, 128));
/// assert_eq!(delta.entries().get(b"apple"), Some(Stored::Inline(b"green")));
/// assert_eq!(delta.mark(1), Mark::Removes);
/// ```
#[derive(Debug, Default)]
pub struct DeltaPacker {
    leaf: LeafPacker,
    marks: Vec<u8>,
    count: usize,
    image: Vec<u8>,
}

impl DeltaPacker {
    /// Adds an entry behind all others.
    ///
    /// # Panics
    /// As [`LeafPacker::push`].
    pub fn push(&mut self, key: &[u8], value: Stored<'_>, mark: Mark) {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        self.leaf.push(key, value);
        if self.count.is_multiple_of(MARKS_PER_BYTE) {
            self.marks.push(0);
        }
        let last = self.marks.last_mut().expect("there is room for the mark");
        *last |= (mark as u8) << (2 * (self.count % MARKS_PER_BYTE));
        self.count += 1;
    }

    /// The unsealed image of what was pushed, in front of the leaf at `base`: with its changes that has `keys` keys, and `spent` was spent on it
    /// before this delta. `None` if it is empty, or does not fit a node. The packer is empty afterwards.
    pub fn finish(&mut self, base: NodeRef, keys: u32, spent: u32) -> Option<&mut [u8]> {
        let (marks, count) = (
            std::mem::take(&mut self.marks),
            std::mem::take(&mut self.count),
        );
        self.image.clear();
        let inside = self.leaf.pop_only().map(|leaf| {
            self.image.resize(leaf_at(count), 0);
            self.image.extend_from_slice(leaf.bytes);
        });
        self.leaf.clear();
        inside?;
        let bytes = self.image.len() as u32;
        header::write(&mut self.image, NodeKind::Delta, 0, 0, count);
        let mut put =
            |at: usize, field: &[u8]| self.image[at..at + field.len()].copy_from_slice(field);
        put(BASE_AT, &base.to_bits().to_le_bytes());
        put(KEYS_AT, &keys.to_le_bytes());
        put(SPENT_AT, &spent.saturating_add(bytes).to_le_bytes());
        put(MARKS_AT, &marks);
        self.marks = marks;
        self.marks.clear();
        Some(&mut self.image)
    }
}
