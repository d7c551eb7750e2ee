//! Validation of leaves: establishes the invariants of `leaf.rs` for any bytes, without panicking.
//!
//! `structure` costs one pass over the offsets, in proportion to the entry count; `content` also compares all keys.
//!
//! Invariants used here:
//! (1) the header was checked: the image is a whole number of units and `count >= 1`.
//! (2) `structure` accepted the image.
// Unsafe: parses the section table by pointer, and uses the view once the structure is known to be good.
#![allow(unsafe_code)]

use super::bytes::fingerprint;
use super::error::NodeError;
use super::header::{FLAGS_AT, NodeKind};
use super::leaf::{
    FLAG_SUFFIX_WIDE, FLAG_VALUES_EXTERNAL, FLAG_VALUES_UNIFORM, LEAF_COUNT_MAX, Leaf,
    LeafEncoding, OFFSET_EXTERNAL, SECTIONS_AT, TAIL_BYTES,
};
use super::reference::ValuePointer;
use super::{KEY_BYTES_MAX, UNIT_BYTES, VALUE_INLINE_BYTES_MAX};

const fn malformed(what: &'static str) -> NodeError {
    NodeError::Malformed(what)
}

const KEY_TOO_LONG: NodeError = malformed("leaf: key is too long");
const VALUE_TOO_LONG: NodeError = malformed("leaf: value is too long to be in a leaf");

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes
        .get(at..at.checked_add(2)?)
        .map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))
}

/// Establishes leaf (1) to (5).
pub(super) fn structure(bytes: &[u8], kind: NodeKind) -> Result<(), NodeError> {
    debug_assert!(bytes.len() >= UNIT_BYTES && kind.is_leaf(), "(1)");
    // SAFETY: (1): the image has 64 bytes. Only fields are read below, no accessor is called.
    let leaf = unsafe { Leaf::parse(bytes.as_ptr()) };
    let flags_known = FLAG_VALUES_UNIFORM | FLAG_VALUES_EXTERNAL | FLAG_SUFFIX_WIDE;
    if bytes[FLAGS_AT] & !flags_known != 0 {
        return Err(malformed("leaf: unknown flags"));
    }
    if leaf.flags & FLAG_VALUES_EXTERNAL != 0 && !leaf.uniform() {
        return Err(malformed("leaf: external flag without uniform values"));
    }
    if leaf.flags & FLAG_SUFFIX_WIDE != 0
        && (leaf.uniform() || leaf.encoding != LeafEncoding::Slotted)
    {
        return Err(malformed("leaf: suffix width flag without suffix lengths"));
    }
    if leaf.flags & FLAG_VALUES_EXTERNAL != 0
        && leaf.value_bytes as usize != ValuePointer::ENCODED_BYTES
    {
        return Err(malformed(
            "leaf: external values have another length than a pointer",
        ));
    }
    let n = leaf.count as usize;
    if leaf.encoding == LeafEncoding::Dense {
        dense_range(&leaf)?;
    }
    // An entry takes no space at all in a dense leaf of empty values, so that the count is not bounded by the length: bound it.
    // With that, and prefix and suffix bounded by the key length, no 32-bit sum in `parse` has wrapped.
    if n > LEAF_COUNT_MAX || leaf.prefix_bytes as usize > KEY_BYTES_MAX {
        return Err(malformed("leaf: count or prefix is out of bounds"));
    }
    if leaf.encoding == LeafEncoding::Fixed
        && n.saturating_mul(leaf.suffix_bytes as usize) > bytes.len()
    {
        return Err(malformed("leaf: suffixes are longer than the node"));
    }
    // A merge packs the entries again.
    if leaf.encoding != LeafEncoding::Slotted
        && leaf.prefix_bytes as usize + usize::from(leaf.suffix_bytes) > KEY_BYTES_MAX
    {
        return Err(KEY_TOO_LONG);
    }
    if leaf.uniform() && leaf.value_bytes as usize > VALUE_INLINE_BYTES_MAX {
        return Err(VALUE_TOO_LONG);
    }
    let usable = bytes.len() - TAIL_BYTES;
    let data_at = leaf.data_at as usize;
    if data_at > usable {
        return Err(malformed("leaf: sections are longer than the node"));
    }
    if leaf.encoding == LeafEncoding::Slotted || !leaf.uniform() {
        return offsets(bytes, &leaf, data_at, usable);
    }
    if n.saturating_mul(leaf.value_bytes as usize) > usable - data_at {
        return Err(malformed("leaf: values are longer than the node"));
    }
    Ok(())
}

/// Leaf (4).
fn dense_range(leaf: &Leaf<'_>) -> Result<(), NodeError> {
    let width = u32::from(leaf.suffix_bytes);
    if width == 0 || width > 8 {
        return Err(malformed("dense leaf: suffix is not 1 to 8 bytes"));
    }
    let suffix_max = u64::MAX >> (64 - 8 * width);
    // The first integer lies inside the first unit, header (1).
    match leaf.dense_first().checked_add(u64::from(leaf.count) - 1) {
        Some(last) if last <= suffix_max => Ok(()),
        _ => Err(malformed(
            "dense leaf: the last integer does not fit the suffix",
        )),
    }
}

/// Leaf (2) and (3). The offsets and lengths lie before `data_at`, which lies inside the image.
fn offsets(bytes: &[u8], leaf: &Leaf<'_>, data_at: usize, usable: usize) -> Result<(), NodeError> {
    const OUTSIDE: NodeError = malformed("leaf: offset section is outside the node");
    let n = leaf.count as usize;
    let offsets_at = leaf.offsets_at as usize;
    let words = bytes
        .get(offsets_at..offsets_at + 2 * (n + 1))
        .ok_or(OUTSIDE)?;
    let mut words = words
        .chunks_exact(2)
        .map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let slotted = leaf.encoding == LeafEncoding::Slotted;
    let wide = leaf.flags & FLAG_SUFFIX_WIDE != 0;
    let lengths_at = leaf.lengths_at as usize;
    let mut word = words.next().ok_or(OUTSIDE)?;
    if word & !OFFSET_EXTERNAL != data_at {
        return Err(malformed("leaf: first offset is not the start of the data"));
    }
    for (i, next) in words.enumerate() {
        let (start, end) = (word & !OFFSET_EXTERNAL, next & !OFFSET_EXTERNAL);
        let external = word & OFFSET_EXTERNAL != 0;
        if end < start {
            return Err(malformed("leaf: offsets do not ascend"));
        }
        let suffix_bytes = match (slotted, leaf.uniform(), wide) {
            (false, ..) => 0,
            (true, true, _) => {
                // All that remains is the suffix, and the value must leave room for it.
                if external || end - start < leaf.value_bytes as usize {
                    return Err(malformed("leaf: entry is shorter than its value"));
                }
                end - start - leaf.value_bytes as usize
            }
            (true, false, false) => usize::from(*bytes.get(lengths_at + i).ok_or(OUTSIDE)?),
            (true, false, true) => u16_at(bytes, lengths_at + 2 * i).ok_or(OUTSIDE)?,
        };
        if suffix_bytes > end - start {
            return Err(malformed("leaf: suffix is longer than its entry"));
        }
        if slotted && leaf.prefix_bytes as usize + suffix_bytes > KEY_BYTES_MAX {
            return Err(KEY_TOO_LONG);
        }
        if !leaf.uniform() && end - start - suffix_bytes > VALUE_INLINE_BYTES_MAX {
            return Err(VALUE_TOO_LONG);
        }
        if external && end - start - suffix_bytes != ValuePointer::ENCODED_BYTES {
            return Err(malformed("leaf: external value is not a pointer"));
        }
        word = next;
    }
    if word & OFFSET_EXTERNAL != 0 || word > usable {
        return Err(malformed("leaf: data is longer than the node"));
    }
    Ok(())
}

/// Strictly ascending keys, right fingerprints, keys no longer than the limit.
pub(super) fn content(bytes: &[u8]) -> Result<(), NodeError> {
    // SAFETY: (2).
    let leaf = unsafe { Leaf::new_validated(bytes) };
    let prefix_bytes = leaf.prefix_bytes as usize;
    let suffix = |i: usize| {
        // SAFETY: (2), and callers pass i < count.
        unsafe {
            if leaf.encoding == LeafEncoding::Slotted {
                leaf.slot_suffix(i)
            } else {
                leaf.fixed_suffix(i)
            }
        }
    };
    if leaf.encoding == LeafEncoding::Dense {
        return if prefix_bytes + leaf.suffix_bytes as usize > KEY_BYTES_MAX {
            Err(malformed("leaf: key is too long"))
        } else {
            Ok(())
        };
    }
    for i in 0..leaf.len() {
        let key = suffix(i);
        if i > 0 && suffix(i - 1) >= key {
            return Err(malformed("leaf: keys do not ascend"));
        }
        if prefix_bytes + key.len() > KEY_BYTES_MAX {
            return Err(malformed("leaf: key is too long"));
        }
        if leaf.encoding == LeafEncoding::Slotted && bytes[SECTIONS_AT + i] != fingerprint(key) {
            return Err(malformed("leaf: wrong fingerprint"));
        }
    }
    Ok(())
}

/// Offset, length and external mark of a value, with every read checked: for callers that cannot vouch for the bytes.
pub(super) fn value_place(bytes: &[u8], i: usize) -> Option<(usize, usize, bool)> {
    if bytes.len() < UNIT_BYTES {
        return None;
    }
    // SAFETY: the image has 64 bytes. Only fields are read below, no accessor is called.
    let leaf = unsafe { Leaf::parse(bytes.as_ptr()) };
    let slotted = leaf.encoding == LeafEncoding::Slotted;
    let offset = |i: usize| u16_at(bytes, leaf.offsets_at as usize + 2 * i);
    if leaf.uniform() {
        let value_bytes = leaf.value_bytes as usize;
        let start = if slotted {
            (offset(i + 1)? & !OFFSET_EXTERNAL).checked_sub(value_bytes)?
        } else {
            i.checked_mul(value_bytes)?
                .checked_add(leaf.data_at as usize)?
        };
        return Some((start, value_bytes, leaf.flags & FLAG_VALUES_EXTERNAL != 0));
    }
    let (word, end) = (offset(i)?, offset(i + 1)? & !OFFSET_EXTERNAL);
    let suffix_bytes = match (slotted, leaf.flags & FLAG_SUFFIX_WIDE != 0) {
        (false, _) => 0,
        (true, false) => usize::from(*bytes.get(leaf.lengths_at as usize + i)?),
        (true, true) => u16_at(bytes, leaf.lengths_at as usize + 2 * i)?,
    };
    let start = (word & !OFFSET_EXTERNAL) + suffix_bytes;
    Some((start, end.checked_sub(start)?, word & OFFSET_EXTERNAL != 0))
}
