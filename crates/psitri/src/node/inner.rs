//! Inner node views: routing a key to a child, and key counts for ranks.
//!
//! Child `i >= 1` covers the keys from separator `i` up to the next separator; child 0 covers everything below separator 1. The
//! prefix that all separators share is stored once.
//!
//! Layout after the 24-byte header, for `n` children (`docs/format.md` draws it):
//!
//! ```text
//! both        24: prefix_bytes u32, zero u32
//! bytes       32: routing byte[n-1], zeros to 8, child[n] u64, keys[n] u16|u32|u64, prefix
//! separators  32: head[n-1] u32, length[n-1] u8, zeros to 8, child[n] u64, keys[n], tail offset[n] u16|u32, prefix, tails
//! ```
//!
//! Bytes: every separator is the prefix and one byte. Separators: a head is the 4 bytes after the prefix as a big-endian number,
//! zero-filled, stored like all numbers little endian; the length is that of the separator after the prefix, 5 standing for all
//! above 4; what is behind the head is the tail. Tail offsets are absent when there are no tails.
//!
//! Thread safety: views are `Copy` borrows of immutable bytes.
//!
//! Invariants, established by `inner_validate::structure` and relied on without checks here:
//! (1) The sections of the layout lie inside the image, in this order.
//! (2) Tail offsets ascend and stay inside the image. A separator with length 5 exists only where there are tail offsets.
//! (3) `count >= 1`, and the count's key widths are as the flags say.
//!
//! Failure modes: none for validated bytes. An index that is out of range panics.
// Unsafe: reads without bounds checks under the invariants above; see the module documentation.
#![allow(unsafe_code)]

use super::bytes::{head, load_u16, load_u32, load_u64, partition, strip};
use super::error::NodeError;
use super::header::{self, FLAGS_AT, HEADER_BYTES, KIND_AT, LEVEL_AT, NodeKind};
use super::reference::NodeRef;
use super::simd;
use std::cmp::Ordering;
use std::marker::PhantomData;

pub(super) const PREFIX_BYTES_AT: usize = HEADER_BYTES;
pub(super) const ZERO_AT: usize = 28;
pub(super) const SECTIONS_AT: usize = 32;
const _: () = assert!(ZERO_AT + 4 == SECTIONS_AT && SECTIONS_AT.is_multiple_of(simd::BLOCK_BYTES));

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 4;
/// Stored length of separators that have a tail.
pub(super) const LENGTH_TAILED: u8 = HEAD_BYTES as u8 + 1;
/// Two bits: key counts take 2, 4 or 8 bytes for 0, 1, 2.
pub(super) const FLAG_KEYS_WIDTH: u8 = 3;
/// There are tails.
pub(super) const FLAG_TAILS: u8 = 4;
/// Tail offsets take four bytes.
pub(super) const FLAG_TAILS_WIDE: u8 = 8;

/// A packed inner node.
///
/// ```
/// use psitri::node::{Inner, InnerPacker, NodeRef};
/// let mut packer = InnerPacker::new(1);
/// packer.push(b"", NodeRef::new(1, 0, 64), 100);
/// packer.push(b"k", NodeRef::new(2, 0, 64), 50);
/// let image = packer.pop_last().unwrap();
/// let inner = Inner::open(image.bytes).unwrap();
/// assert_eq!((inner.search(b"house"), inner.search(b"mouse")), (0, 1));
/// assert_eq!((inner.total_keys(), inner.keys_before(1)), (150, 100));
/// ```
#[derive(Clone, Copy)]
pub struct Inner<'a> {
    pub(super) base: *const u8,
    pub(super) count: u32,
    pub(super) prefix_bytes: u32,
    pub(super) lengths_at: u32,
    pub(super) children_at: u32,
    pub(super) keys_at: u32,
    pub(super) offsets_at: u32,
    pub(super) prefix_at: u32,
    pub(super) tails_at: u32,
    pub(super) by_bytes: bool,
    pub(super) flags: u8,
    bytes: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of immutable bytes, like `&[u8]`.
unsafe impl Send for Inner<'_> {}
// SAFETY: as above.
unsafe impl Sync for Inner<'_> {}

impl std::fmt::Debug for Inner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("by_bytes", &self.by_bytes)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<'a> Inner<'a> {
    /// Validates the bytes and makes a view.
    ///
    /// # Errors
    /// The bytes are not a well-formed inner node.
    pub fn open(bytes: &'a [u8]) -> Result<Inner<'a>, NodeError> {
        let kind = header::validate(bytes)?;
        if !kind.is_inner() {
            return Err(NodeError::Kind(kind as u8));
        }
        // SAFETY: just validated.
        Ok(unsafe { Inner::new_validated(bytes) })
    }

    /// Makes a view without looking at more than the header.
    ///
    /// # Safety
    /// [`super::validate`] accepted exactly these bytes as an inner node, and they have not changed since.
    #[inline]
    pub unsafe fn new_validated(bytes: &'a [u8]) -> Inner<'a> {
        debug_assert!(!header::is_leaf(bytes));
        // SAFETY: the caller's promise gives (1).
        unsafe { Inner::parse(bytes.as_ptr()) }
    }

    /// Reads the section table. Does arithmetic only, so the result may be inspected before anything is known about the bytes.
    ///
    /// # Safety
    /// `base` points to at least 64 readable bytes that live for `'a`. Accessors need (1) to (3).
    #[inline(always)]
    pub(super) unsafe fn parse(base: *const u8) -> Inner<'a> {
        // SAFETY: the caller gives 64 bytes; all header fields lie in the first 32.
        let (count, prefix_bytes, flags, kind) = unsafe {
            let count = load_u32(base.add(header::COUNT_AT));
            (
                count,
                load_u32(base.add(PREFIX_BYTES_AT)),
                *base.add(FLAGS_AT),
                *base.add(KIND_AT),
            )
        };
        let by_bytes = kind == NodeKind::InnerBytes as u8;
        let separators = count.wrapping_sub(1);
        let heads_bytes = if by_bytes {
            0
        } else {
            separators.wrapping_mul(HEAD_BYTES as u32)
        };
        let lengths_at = (SECTIONS_AT as u32).wrapping_add(heads_bytes);
        let children_at = lengths_at.wrapping_add(separators).wrapping_add(7) & !7;
        let keys_at = children_at.wrapping_add(count.wrapping_mul(8));
        let offsets_at = keys_at.wrapping_add(count.wrapping_mul(2 << (flags & FLAG_KEYS_WIDTH)));
        let offset_bytes = match flags & (FLAG_TAILS | FLAG_TAILS_WIDE) {
            FLAG_TAILS => 2,
            0 => 0,
            _ => 4,
        };
        let prefix_at = offsets_at.wrapping_add(count.wrapping_mul(offset_bytes));
        Inner {
            base,
            count,
            prefix_bytes,
            lengths_at,
            children_at,
            keys_at,
            offsets_at,
            prefix_at,
            tails_at: prefix_at.wrapping_add(prefix_bytes),
            by_bytes,
            flags,
            bytes: PhantomData,
        }
    }

    /// Number of children; at least 1.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "an inner node is never empty")]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Height above the leaves; at least 1.
    #[inline]
    pub fn level(&self) -> u8 {
        // SAFETY: the header lies in the first unit.
        unsafe { *self.base.add(LEVEL_AT) }
    }

    #[inline(always)]
    fn prefix(&self) -> &'a [u8] {
        // SAFETY: (1).
        unsafe {
            std::slice::from_raw_parts(
                self.base.add(self.prefix_at as usize),
                self.prefix_bytes as usize,
            )
        }
    }

    #[inline(always)]
    fn assert_index(&self, i: usize) {
        assert!(i < self.len(), "inner child index is out of range");
    }

    /// Address of child `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn child(&self, i: usize) -> NodeRef {
        self.assert_index(i);
        // SAFETY: (1), i < count.
        NodeRef::from_bits(unsafe { load_u64(self.base.add(self.children_at as usize + 8 * i)) })
    }

    /// Number of keys below child `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn child_keys(&self, i: usize) -> u64 {
        self.assert_index(i);
        // SAFETY: i < count.
        unsafe { self.child_keys_unchecked(i) }
    }

    /// # Safety
    /// `i < count`.
    #[inline(always)]
    unsafe fn child_keys_unchecked(&self, i: usize) -> u64 {
        // SAFETY: (1) and (3).
        unsafe {
            let at = self.base.add(self.keys_at as usize);
            match self.flags & FLAG_KEYS_WIDTH {
                0 => load_u16(at.add(2 * i)) as u64,
                1 => u64::from(load_u32(at.add(4 * i))),
                _ => load_u64(at.add(8 * i)),
            }
        }
    }

    /// Number of keys below all children together. Saturates.
    pub fn total_keys(&self) -> u64 {
        self.keys_before(self.len())
    }

    /// Number of keys below the children before child `i`; `i` may be `len()`. Saturates.
    ///
    /// # Panics
    /// If `i` is greater than `len()`.
    pub fn keys_before(&self, i: usize) -> u64 {
        assert!(i <= self.len(), "inner child index is out of range");
        // SAFETY: (1), and indices below i <= count. 16- and 32-bit counts of one node cannot overflow the sum.
        unsafe {
            let at = self.base.add(self.keys_at as usize);
            match self.flags & FLAG_KEYS_WIDTH {
                0 => (0..i).map(|j| load_u16(at.add(2 * j)) as u64).sum(),
                1 => (0..i).map(|j| u64::from(load_u32(at.add(4 * j)))).sum(),
                _ => (0..i).fold(0u64, |sum, j| sum.saturating_add(load_u64(at.add(8 * j)))),
            }
        }
    }

    /// The child that holds the key of this rank (counted from 0 below this node), and the key's rank below that child; `None`
    /// if there are not that many keys.
    pub fn find_rank(&self, rank: u64) -> Option<(usize, u64)> {
        let mut rest = rank;
        for i in 0..self.len() {
            // SAFETY: i < count.
            let keys = unsafe { self.child_keys_unchecked(i) };
            if rest < keys {
                return Some((i, rest));
            }
            rest -= keys;
        }
        None
    }

    /// Head of separator `i + 1`.
    ///
    /// # Safety
    /// `i + 1 < count`, routed by separators.
    #[inline(always)]
    pub(super) unsafe fn head(&self, i: usize) -> u32 {
        // SAFETY: (1).
        unsafe { load_u32(self.base.add(SECTIONS_AT + HEAD_BYTES * i)) }
    }

    /// Stored length of separator `i + 1`.
    ///
    /// # Safety
    /// `i + 1 < count`, routed by separators.
    #[inline(always)]
    pub(super) unsafe fn length(&self, i: usize) -> u8 {
        // SAFETY: (1).
        unsafe { *self.base.add(self.lengths_at as usize + i) }
    }

    /// Tail of separator `i + 1`; empty if it has none.
    ///
    /// # Safety
    /// `i + 1 < count`, routed by separators.
    #[inline]
    pub(super) unsafe fn tail(&self, i: usize) -> &'a [u8] {
        if self.flags & FLAG_TAILS == 0 {
            return &[];
        }
        // SAFETY: (1) and (2).
        unsafe {
            let at = self.base.add(self.offsets_at as usize);
            let (start, end) = if self.flags & FLAG_TAILS_WIDE == 0 {
                (load_u16(at.add(2 * i)), load_u16(at.add(2 * i + 2)))
            } else {
                (
                    load_u32(at.add(4 * i)) as usize,
                    load_u32(at.add(4 * i + 4)) as usize,
                )
            };
            std::slice::from_raw_parts(self.base.add(self.tails_at as usize + start), end - start)
        }
    }

    /// Index of the child that covers `key`.
    #[inline]
    pub fn search(&self, key: &[u8]) -> usize {
        let separators = self.len() - 1;
        if separators == 0 {
            return 0;
        }
        let rest = match strip(key, self.prefix()) {
            Ok(rest) => rest,
            Err(Ordering::Less) => return 0,
            Err(_) => return separators,
        };
        if self.by_bytes {
            return match rest.first() {
                // SAFETY: (1): the bytes start at a multiple of 16 in an image of a multiple of 64 bytes: simd (1).
                Some(byte) => unsafe {
                    simd::count_at_most(self.base.add(SECTIONS_AT), separators, *byte)
                },
                None => 0,
            };
        }
        let wanted = (head(rest) >> 32) as u32;
        // SAFETY: `partition` calls with i < separators.
        let below = partition(separators, |i| unsafe { self.head(i) } < wanted);
        // SAFETY: the index is below separators.
        if below == separators || unsafe { self.head(below) } != wanted {
            return below;
        }
        // Usually one separator has this head, and decides.
        // SAFETY: the indices are below separators.
        unsafe {
            if !self.at_most(below, wanted, rest) {
                return below;
            }
            if below + 1 == separators || self.head(below + 1) != wanted {
                return below + 1;
            }
        }
        // SAFETY: `partition` calls with an index below separators - below.
        below
            + partition(separators - below, |i| unsafe {
                self.at_most(below + i, wanted, rest)
            })
    }

    /// Whether separator `i + 1`, whose head is not less than `wanted`, is `rest` or less.
    ///
    /// # Safety
    /// `i + 1 < count`, routed by separators.
    #[inline]
    unsafe fn at_most(&self, i: usize, wanted: u32, rest: &[u8]) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.head(i) != wanted {
                return false;
            }
            let length = usize::from(self.length(i));
            // Equal zero-filled heads: the shorter of the two extends to the other, unless both go on behind the head.
            if length <= HEAD_BYTES {
                return length <= rest.len();
            }
            rest.len() > HEAD_BYTES && self.tail(i) <= &rest[HEAD_BYTES..]
        }
    }

    /// Replaces `out` by the separator in front of child `i`; empty for child 0, which has none.
    ///
    /// # Panics
    /// If `i` is out of range.
    pub fn separator(&self, i: usize, out: &mut Vec<u8>) {
        self.assert_index(i);
        out.clear();
        if i == 0 {
            return;
        }
        out.extend_from_slice(self.prefix());
        // SAFETY: (1), and 1 <= i < count.
        unsafe {
            if self.by_bytes {
                out.push(*self.base.add(SECTIONS_AT + i - 1));
                return;
            }
            let length = usize::from(self.length(i - 1)).min(HEAD_BYTES);
            out.extend_from_slice(&self.head(i - 1).to_be_bytes()[..length]);
            out.extend_from_slice(self.tail(i - 1));
        }
    }
}

/// Whether a reference to a node has to say that it leads to deltas: it is one, or a reference in it says so.
///
/// # Panics
/// If the image is no node that [`super::validate`] accepts, it may.
pub fn leads_to_deltas(image: &[u8]) -> bool {
    assert!(image.len() >= super::UNIT_BYTES, "a node has a unit");
    if !header::is_inner(image) {
        return header::is_delta(image);
    }
    // SAFETY: the header lies in the first unit. Only fields are read below, no accessor is called.
    let (from, to) = unsafe {
        let inner = Inner::parse(image.as_ptr());
        (inner.children_at as usize, inner.keys_at as usize)
    };
    let (children, _) = image[from..to].as_chunks::<8>();
    let bits = |&child| u64::from_le_bytes(child);
    let of_any = children.iter().map(bits).fold(0, |all, child| all | child);
    NodeRef::from_bits(of_any).has_deltas()
}

/// Overwrites the address and key count of child `index` in a copy of an inner node, as long as the count fits the width that the
/// node uses: the fast path when a merge replaced a child one for one. The checksum is stale afterwards, so seal it again.
///
/// Returns false, and changes nothing, if it does not fit, the index is out of range or the image is no inner node.
pub fn patch_child(image: &mut [u8], index: usize, child: NodeRef, keys: u64) -> bool {
    if image.len() < super::UNIT_BYTES
        || header::is_leaf(image)
        || index >= header::count(image) as usize
    {
        return false;
    }
    // SAFETY: the image has 64 bytes. Only fields are read below, no accessor is called.
    let (children_at, keys_at, flags) = unsafe {
        let inner = Inner::parse(image.as_ptr());
        (
            inner.children_at as usize,
            inner.keys_at as usize,
            inner.flags,
        )
    };
    let width = 2usize << (flags & FLAG_KEYS_WIDTH);
    if width > 8 || (width < 8 && keys >> (8 * width) != 0) {
        return false;
    }
    let (child_at, count_at) = (children_at + 8 * index, keys_at + width * index);
    if image.len() < count_at + width || child_at + 8 > keys_at {
        return false;
    }
    image[child_at..child_at + 8].copy_from_slice(&child.to_bits().to_le_bytes());
    image[count_at..count_at + width].copy_from_slice(&keys.to_le_bytes()[..width]);
    true
}
