//! Leaf views: point and range search, keys and values of a packed leaf.
//!
//! Layout after the 24-byte header (`docs/format.md` draws it):
//!
//! ```text
//! all      24: prefix_bytes u32, suffix_bytes u16, value_bytes u16
//! slotted  32: fingerprint[n] u8, offset[n+1] u16, suffix length[n] u8|u16 (absent if values are uniform), prefix, {suffix, value}[n]
//! fixed    32: suffix[n], offset[n+1] u16 (absent if values are uniform), prefix, value[n]
//! dense    32: first suffix as u64, offset[n+1] u16 (absent if values are uniform), prefix, value[n]
//! ```
//!
//! Thread safety: views are `Copy` borrows of immutable bytes.
//!
//! Invariants, established by `leaf_validate::structure` and relied on without checks here:
//! (1) The sections of the layout lie inside the image, in this order, and at least `TAIL_BYTES` bytes follow the last one.
//! (2) Offsets ascend and stay inside the image; an entry is at least as long as its suffix; suffix lengths stay inside entries.
//! (3) An entry that is marked external has exactly `ValuePointer::ENCODED_BYTES` bytes of value.
//! (4) `suffix_bytes <= 8` in a dense leaf, and the last suffix fits it.
//! (5) `count >= 1`.
//!
//! Failure modes: none for validated bytes. An index that is out of range panics.
// Unsafe: reads without bounds checks under the invariants above; see the module documentation.
#![allow(unsafe_code)]

use super::bytes::{copy, load_u16, load_u32, load_u64, store_u64};
use super::error::NodeError;
use super::header::{self, FLAGS_AT, HEADER_BYTES, KIND_AT, NodeKind};
use super::reference::{Stored, ValuePointer};
use super::simd;
use std::marker::PhantomData;

pub(super) const PREFIX_BYTES_AT: usize = HEADER_BYTES;
pub(super) const SUFFIX_BYTES_AT: usize = 28;
pub(super) const VALUE_BYTES_AT: usize = 30;
pub(super) const SECTIONS_AT: usize = 32;
const _: () =
    assert!(VALUE_BYTES_AT + 2 == SECTIONS_AT && SECTIONS_AT.is_multiple_of(simd::BLOCK_BYTES));

/// Bytes of padding, at least, at the end of every leaf, so that a key head can be loaded from any suffix.
pub(super) const TAIL_BYTES: usize = 8;
/// All values have `value_bytes` bytes; there are no offsets for them.
pub(super) const FLAG_VALUES_UNIFORM: u8 = 1;
/// With uniform values: all of them are external.
pub(super) const FLAG_VALUES_EXTERNAL: u8 = 2;
/// Suffix lengths of a slotted leaf take two bytes.
pub(super) const FLAG_SUFFIX_WIDE: u8 = 4;
/// Most entries of a leaf. Only dense leaves of tiny values come near.
pub(super) const LEAF_COUNT_MAX: usize = 4096;
/// Mark of an external value in an offset.
pub(super) const OFFSET_EXTERNAL: usize = 0x8000;

/// How a leaf stores its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafEncoding {
    /// Keys of any length, with fingerprints.
    Slotted,
    /// Keys of one length.
    Fixed,
    /// Consecutive big-endian integers.
    Dense,
}

/// Room that a suffix is written into, at least.
pub(super) const SUFFIX_BYTES_MIN: usize = 8;
const _: () = assert!(SUFFIX_BYTES_MIN <= TAIL_BYTES);
/// Most suffixes take no more.
const SUFFIX_BYTES_EXPECTED: usize = 32;

/// Copies a suffix of a leaf, for most lengths without a branch on it: they differ from entry to entry.
///
/// # Safety
/// `from` points into an image, to a suffix of `len` bytes there; `len` bytes and at least [`SUFFIX_BYTES_MIN`] are writable at `to`.
#[inline(always)]
pub(super) unsafe fn copy_suffix(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: behind a suffix are at least `TAIL_BYTES` of the image (1).
    unsafe {
        if len <= 16 {
            let last = len.saturating_sub(8);
            let (a, b) = (load_u64(from), load_u64(from.add(last)));
            store_u64(to, a);
            store_u64(to.add(last), b);
        } else {
            copy(from, to, len);
        }
    }
}

/// The number of an entry of a dense leaf as its suffix, of `width` bytes and more, is to be stored.
#[inline(always)]
pub(super) fn dense_word(number: u64, width: usize) -> u64 {
    number
        .unbounded_shl(64 - 8 * width.min(8) as u32)
        .swap_bytes()
}

/// A packed leaf.
///
/// ```
/// use psitri::node::{Leaf, LeafPacker, Stored};
/// let mut packer = LeafPacker::new();
/// packer.push(b"apple", Stored::Inline(b"red"));
/// packer.push(b"plum", Stored::Inline(b"blue"));
/// let image = packer.pop_last(false).unwrap();
/// let leaf = Leaf::open(image.bytes).unwrap();
/// assert_eq!(leaf.get(b"plum"), Some(Stored::Inline(b"blue")));
/// assert_eq!(leaf.lower_bound(b"b"), 1);
/// ```
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    pub(super) base: *const u8,
    pub(super) count: u32,
    pub(super) prefix_bytes: u32,
    /// Start of the fingerprints, the suffix array or the first integer.
    /// Always [`SECTIONS_AT`]; the other sections' starts, in bytes from `base`:
    pub(super) offsets_at: u32,
    pub(super) lengths_at: u32,
    pub(super) prefix_at: u32,
    /// Start of the entries (slotted) or the values.
    pub(super) data_at: u32,
    pub(super) suffix_bytes: u16,
    pub(super) value_bytes: u16,
    pub(super) encoding: LeafEncoding,
    pub(super) flags: u8,
    bytes: PhantomData<&'a [u8]>,
}

/// Offsets and lengths of the parts of an entry; the suffix of a dense leaf is nowhere in the image.
pub(super) struct RawEntry {
    pub(super) suffix_at: Option<usize>,
    pub(super) suffix_bytes: usize,
    pub(super) value_at: usize,
    pub(super) value_bytes: usize,
    pub(super) external: bool,
}

// SAFETY: a view is a shared borrow of immutable bytes, like `&[u8]`.
unsafe impl Send for Leaf<'_> {}
// SAFETY: as above.
unsafe impl Sync for Leaf<'_> {}

impl std::fmt::Debug for Leaf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaf")
            .field("encoding", &self.encoding)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<'a> Leaf<'a> {
    /// Validates the bytes and makes a view.
    ///
    /// # Errors
    /// The bytes are not a well-formed leaf.
    pub fn open(bytes: &'a [u8]) -> Result<Leaf<'a>, NodeError> {
        let kind = header::validate(bytes)?;
        if !kind.is_leaf() {
            return Err(NodeError::Kind(kind as u8));
        }
        // SAFETY: just validated.
        Ok(unsafe { Leaf::new_validated(bytes) })
    }

    /// Makes a view without looking at more than the header.
    ///
    /// # Safety
    /// [`super::validate`] accepted exactly these bytes as a leaf, and they have not changed since.
    #[inline]
    pub unsafe fn new_validated(bytes: &'a [u8]) -> Leaf<'a> {
        debug_assert!(header::is_leaf(bytes));
        // SAFETY: the caller's promise gives (1).
        unsafe { Leaf::parse(bytes.as_ptr()) }
    }

    /// Reads the section table. Does arithmetic only, so the result may be inspected before anything is known about the bytes.
    ///
    /// # Safety
    /// `base` points to at least 64 readable bytes that live for `'a`. Accessors need (1) to (5).
    #[inline(always)]
    pub(super) unsafe fn parse(base: *const u8) -> Leaf<'a> {
        // SAFETY: the caller gives 64 bytes; all header fields lie in the first 32.
        let (word, flags, kind) = unsafe {
            (
                load_u64(base.add(PREFIX_BYTES_AT)),
                *base.add(FLAGS_AT),
                *base.add(KIND_AT),
            )
        };
        // SAFETY: as above.
        let count = unsafe { load_u32(base.add(header::COUNT_AT)) };
        let (prefix_bytes, suffix_bytes, value_bytes) =
            (word as u32, (word >> 32) as u16, (word >> 48) as u16);
        let uniform = flags & FLAG_VALUES_UNIFORM != 0;
        let offsets_bytes = if uniform {
            0
        } else {
            count.wrapping_mul(2).wrapping_add(2)
        };
        let sections_at = SECTIONS_AT as u32;
        let (encoding, offsets_at, lengths_at, prefix_at);
        if kind == NodeKind::LeafSlotted as u8 {
            encoding = LeafEncoding::Slotted;
            offsets_at = sections_at.wrapping_add(count);
            lengths_at = offsets_at
                .wrapping_add(count.wrapping_mul(2))
                .wrapping_add(2);
            let width = if uniform {
                0
            } else {
                1 + u32::from(flags & FLAG_SUFFIX_WIDE != 0)
            };
            prefix_at = lengths_at.wrapping_add(count.wrapping_mul(width));
        } else {
            let keys_bytes;
            if kind == NodeKind::LeafFixed as u8 {
                encoding = LeafEncoding::Fixed;
                keys_bytes = count.wrapping_mul(u32::from(suffix_bytes));
            } else {
                encoding = LeafEncoding::Dense;
                keys_bytes = 8;
            }
            offsets_at = sections_at.wrapping_add(keys_bytes);
            lengths_at = offsets_at;
            prefix_at = offsets_at.wrapping_add(offsets_bytes);
        }
        Leaf {
            base,
            count,
            prefix_bytes,
            offsets_at,
            lengths_at,
            prefix_at,
            data_at: prefix_at.wrapping_add(prefix_bytes),
            suffix_bytes,
            value_bytes,
            encoding,
            flags,
            bytes: PhantomData,
        }
    }

    /// The leaf without the entries from index `end` on.
    #[inline]
    pub fn up_to(mut self, end: usize) -> Leaf<'a> {
        // All sections were found with the count of the image.
        self.count = self.count.min(end as u32);
        self
    }

    /// Number of entries; at least 1 in a whole leaf.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a leaf is never empty")]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// How the leaf stores its keys.
    #[inline]
    pub fn encoding(&self) -> LeafEncoding {
        self.encoding
    }

    /// The prefix that all keys share.
    #[inline(always)]
    pub fn key_prefix(&self) -> &'a [u8] {
        // SAFETY: (1).
        unsafe {
            std::slice::from_raw_parts(self.at(self.prefix_at as usize), self.prefix_bytes as usize)
        }
    }

    #[inline(always)]
    pub(super) fn uniform(&self) -> bool {
        self.flags & FLAG_VALUES_UNIFORM != 0
    }

    /// Length of the image, from its header.
    #[inline(always)]
    pub(super) fn image_bytes(&self) -> usize {
        // SAFETY: the header lies in the first unit.
        unsafe { load_u32(self.base.add(header::UNITS_AT)) as usize * super::UNIT_BYTES }
    }

    /// Pointer to the byte at `offset` of the image.
    ///
    /// # Safety
    /// `offset` is inside the image.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.base.add(offset) }
    }

    /// Offset word `i` of `0..=count`, with its mark.
    ///
    /// # Safety
    /// `i <= count`, and the leaf has offsets.
    #[inline(always)]
    pub(super) unsafe fn offset_word(&self, i: usize) -> usize {
        // SAFETY: (1): there are count + 1 offsets.
        unsafe { load_u16(self.at(self.offsets_at as usize + 2 * i)) }
    }

    /// Suffix length of entry `i` of a slotted leaf whose entry takes `entry_bytes`.
    ///
    /// # Safety
    /// `i < count`, slotted.
    #[inline(always)]
    pub(super) unsafe fn slot_suffix_bytes(&self, i: usize, entry_bytes: usize) -> usize {
        if self.uniform() {
            return entry_bytes.wrapping_sub(self.value_bytes as usize);
        }
        // SAFETY: (1): there are count lengths of this width.
        unsafe {
            if self.flags & FLAG_SUFFIX_WIDE == 0 {
                usize::from(*self.at(self.lengths_at as usize + i))
            } else {
                load_u16(self.at(self.lengths_at as usize + 2 * i))
            }
        }
    }

    /// Start and suffix length of entry `i` of a slotted leaf.
    ///
    /// # Safety
    /// `i < count`, slotted.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, i: usize) -> (usize, usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let start = self.offset_word(i) & !OFFSET_EXTERNAL;
            let suffix_bytes = if self.uniform() {
                let end = self.offset_word(i + 1) & !OFFSET_EXTERNAL;
                self.slot_suffix_bytes(i, end - start)
            } else {
                self.slot_suffix_bytes(i, 0)
            };
            (start, suffix_bytes)
        }
    }

    /// Suffix of entry `i` of a slotted leaf.
    ///
    /// # Safety
    /// `i < count`, slotted.
    #[inline(always)]
    pub(super) unsafe fn slot_suffix(&self, i: usize) -> &'a [u8] {
        // SAFETY: (2).
        unsafe {
            let (start, suffix_bytes) = self.slot(i);
            std::slice::from_raw_parts(self.at(start), suffix_bytes)
        }
    }

    /// Suffix of entry `i` of a fixed leaf.
    ///
    /// # Safety
    /// `i < count`, fixed.
    #[inline(always)]
    pub(super) unsafe fn fixed_suffix(&self, i: usize) -> &'a [u8] {
        let width = self.suffix_bytes as usize;
        // SAFETY: (1): the array has count suffixes.
        unsafe { std::slice::from_raw_parts(self.at(SECTIONS_AT + i * width), width) }
    }

    /// First integer of a dense leaf.
    #[inline(always)]
    pub(super) fn dense_first(&self) -> u64 {
        debug_assert!(self.encoding == LeafEncoding::Dense);
        // SAFETY: (1): the section is inside the first unit.
        unsafe { load_u64(self.at(SECTIONS_AT)) }
    }

    #[inline(always)]
    pub(super) fn assert_index(&self, i: usize) {
        assert!(i < self.len(), "leaf entry index is out of range");
    }

    /// The integer of entry `i` in eight big-endian bytes, and where its suffix starts in them.
    #[inline(always)]
    pub(super) fn dense_suffix(&self, i: usize) -> ([u8; 8], usize) {
        // (4): the suffix has at most 8 bytes.
        (
            self.dense_first().wrapping_add(i as u64).to_be_bytes(),
            8usize.saturating_sub(self.suffix_bytes as usize),
        )
    }

    /// Whether keys have one length, and values too, all of them in the leaf.
    pub fn has_uniform_entries(&self) -> bool {
        self.uniform()
            && self.encoding != LeafEncoding::Slotted
            && self.flags & FLAG_VALUES_EXTERNAL == 0
    }

    /// Length of the key of entry `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn key_bytes(&self, i: usize) -> usize {
        self.assert_index(i);
        // SAFETY: i < count.
        self.prefix_bytes as usize + unsafe { self.raw_entry(i) }.suffix_bytes
    }

    /// What is stored in entry `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn value(&self, i: usize) -> Stored<'a> {
        self.assert_index(i);
        // SAFETY: i < count.
        unsafe { self.value_unchecked(i) }
    }

    /// Offset, length and external mark of the value of entry `i`.
    ///
    /// # Safety
    /// `i < count`.
    #[inline(always)]
    unsafe fn value_place(&self, i: usize) -> (usize, usize, bool) {
        // SAFETY: the caller's promise; (2).
        unsafe {
            if self.uniform() {
                let bytes = self.value_bytes as usize;
                let start = if self.encoding == LeafEncoding::Slotted {
                    (self.offset_word(i + 1) & !OFFSET_EXTERNAL) - bytes
                } else {
                    self.data_at as usize + i * bytes
                };
                return (start, bytes, self.flags & FLAG_VALUES_EXTERNAL != 0);
            }
            let word = self.offset_word(i);
            let end = self.offset_word(i + 1) & !OFFSET_EXTERNAL;
            let mut start = word & !OFFSET_EXTERNAL;
            if self.encoding == LeafEncoding::Slotted {
                start += self.slot_suffix_bytes(i, 0);
            }
            (start, end - start, word & OFFSET_EXTERNAL != 0)
        }
    }

    /// Where the parts of entry `i` lie in the image.
    ///
    /// # Safety
    /// `i < count`.
    #[inline(always)]
    pub(super) unsafe fn raw_entry(&self, i: usize) -> RawEntry {
        // SAFETY: the caller's promise.
        unsafe {
            let (value_at, value_bytes, external) = self.value_place(i);
            let width = self.suffix_bytes as usize;
            let (suffix_at, suffix_bytes) = match self.encoding {
                LeafEncoding::Slotted => {
                    let start = self.offset_word(i) & !OFFSET_EXTERNAL;
                    (Some(start), value_at - start)
                }
                LeafEncoding::Fixed => (Some(SECTIONS_AT + i * width), width),
                LeafEncoding::Dense => (None, width),
            };
            RawEntry {
                suffix_at,
                suffix_bytes,
                value_at,
                value_bytes,
                external,
            }
        }
    }

    /// Where in the image the last of entry `i` begins that a lookup reads: its suffix where the value follows it, or its value.
    ///
    /// # Panics
    /// If `i` is out of range.
    pub fn place_of(&self, i: usize) -> usize {
        self.assert_index(i);
        // SAFETY: i < count.
        let entry = unsafe { self.raw_entry(i) };
        match (self.encoding, entry.suffix_at) {
            (LeafEncoding::Slotted, Some(suffix_at)) => suffix_at,
            _ => entry.value_at,
        }
    }

    /// # Safety
    /// `i < count`.
    #[inline(always)]
    pub(super) unsafe fn value_unchecked(&self, i: usize) -> Stored<'a> {
        // SAFETY: (2), and (3) for the pointer.
        unsafe {
            let (start, bytes, external) = self.value_place(i);
            self.stored(start, bytes, external)
        }
    }

    /// What lies in the place of a value.
    ///
    /// # Safety
    /// It is that of an entry.
    #[inline(always)]
    unsafe fn stored(&self, start: usize, bytes: usize, external: bool) -> Stored<'a> {
        // SAFETY: (2), and (3) for the pointer.
        unsafe {
            if external {
                return Stored::External(ValuePointer::decode(&*self.at(start).cast()));
            }
            Stored::Inline(std::slice::from_raw_parts(self.at(start), bytes))
        }
    }

    /// Replaces `out` by the key of entry `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    pub fn copy_key(&self, i: usize, out: &mut Vec<u8>) {
        self.load_prefix(out);
        self.load_suffix(i, out);
    }

    /// Replaces `out` by the first key.
    pub fn first_key(&self, out: &mut Vec<u8>) {
        self.copy_key(0, out);
    }

    /// Replaces `out` by the last key.
    pub fn last_key(&self, out: &mut Vec<u8>) {
        self.copy_key(self.len() - 1, out);
    }

    /// Replaces `out` by the shared prefix: what [`Leaf::load_suffix`] needs to be done once per leaf.
    #[inline]
    pub fn load_prefix(&self, out: &mut Vec<u8>) {
        out.clear();
        // Once for both parts of most keys.
        out.reserve(self.prefix_bytes as usize + SUFFIX_BYTES_EXPECTED);
        out.extend_from_slice(self.key_prefix());
    }

    /// Whether both are views of one image.
    #[inline]
    pub fn is_same(&self, other: Leaf<'_>) -> bool {
        std::ptr::eq(self.base, other.base)
    }

    /// Makes `out`, which holds this leaf's prefix in front, the key of entry `i`.
    ///
    /// # Panics
    /// If `i` is out of range, or `out` is shorter than the prefix.
    #[inline]
    pub fn load_suffix(&self, i: usize, out: &mut Vec<u8>) {
        self.assert_index(i);
        assert!(
            out.len() >= self.prefix_bytes as usize,
            "the key buffer holds the leaf's prefix"
        );
        // SAFETY: i < count.
        unsafe { self.load_suffix_unchecked(i, out) };
    }

    /// [`load_suffix`](Leaf::load_suffix), and what is stored in the entry: both for little more than one.
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn load_entry(&self, i: usize, out: &mut Vec<u8>) -> Stored<'a> {
        self.assert_index(i);
        assert!(
            out.len() >= self.prefix_bytes as usize,
            "the key buffer holds the leaf's prefix"
        );
        // SAFETY: i < count.
        unsafe { self.load_entry_unchecked(i, out) }
    }

    /// # Safety
    /// `i < count`; `out` holds at least `prefix_bytes` bytes.
    #[inline(always)]
    pub(super) unsafe fn load_entry_unchecked(&self, i: usize, out: &mut Vec<u8>) -> Stored<'a> {
        // SAFETY: the caller's promise; (2), and (3) for the pointer.
        unsafe {
            let entry = self.raw_entry(i);
            self.write_suffix(i, entry.suffix_at, entry.suffix_bytes, out);
            self.stored(entry.value_at, entry.value_bytes, entry.external)
        }
    }

    /// # Safety
    /// `i < count`; `out` holds at least `prefix_bytes` bytes.
    #[inline(always)]
    unsafe fn load_suffix_unchecked(&self, i: usize, out: &mut Vec<u8>) {
        let width = self.suffix_bytes as usize;
        // SAFETY: i < count.
        unsafe {
            let (suffix_at, suffix_bytes) = match self.encoding {
                LeafEncoding::Slotted => {
                    let (start, suffix_bytes) = self.slot(i);
                    (Some(start), suffix_bytes)
                }
                LeafEncoding::Fixed => (Some(SECTIONS_AT + i * width), width),
                LeafEncoding::Dense => (None, width),
            };
            self.write_suffix(i, suffix_at, suffix_bytes, out);
        }
    }

    /// Writes the suffix of entry `i`, which lies in the image at `suffix_at` unless the leaf is dense, behind the prefix.
    ///
    /// # Safety
    /// As for what it is a part of.
    #[inline(always)]
    unsafe fn write_suffix(
        &self,
        i: usize,
        suffix_at: Option<usize>,
        suffix_bytes: usize,
        out: &mut Vec<u8>,
    ) {
        let prefix_bytes = self.prefix_bytes as usize;
        // SAFETY: The front `prefix_bytes` bytes of `out` are initialised (caller), the rest is written before the length is set, inside the
        // reserved capacity: no suffix of a dense leaf is longer than a word (4).
        unsafe {
            out.set_len(prefix_bytes);
            out.reserve(suffix_bytes.max(SUFFIX_BYTES_MIN));
            let to = out.as_mut_ptr().add(prefix_bytes);
            match suffix_at {
                Some(start) => copy_suffix(self.at(start), to, suffix_bytes),
                None => {
                    let number = self.dense_first().wrapping_add(i as u64);
                    store_u64(to, dense_word(number, suffix_bytes));
                }
            }
            out.set_len(prefix_bytes + suffix_bytes);
        }
    }
}

/// Overwrites the value of entry `index` in a copy of a leaf, if the new one has the same kind and length: the fast path of a
/// merge. `image` must have passed [`super::validate`]; the checksum is stale afterwards, so seal it again.
///
/// Returns false, and changes nothing, if the value does not fit in place, the index is out of range or the image is no leaf.
pub fn patch_value(image: &mut [u8], index: usize, new: Stored<'_>) -> bool {
    // The header is looked at again, cheaply, because a safe function cannot trust its caller; the place is checked below.
    if image.len() < super::UNIT_BYTES
        || !header::is_leaf(image)
        || index >= header::count(image) as usize
    {
        return false;
    }
    let Some((start, bytes, external)) = super::leaf_validate::value_place(image, index) else {
        return false;
    };
    let Some(place) = image.get_mut(start..start + bytes) else {
        return false;
    };
    match new {
        Stored::Inline(value) if !external && value.len() == bytes => place.copy_from_slice(value),
        Stored::External(pointer) if external && bytes == ValuePointer::ENCODED_BYTES => {
            place.copy_from_slice(&pointer.encode());
        }
        _ => return false,
    }
    true
}
