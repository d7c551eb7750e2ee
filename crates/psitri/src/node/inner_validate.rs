//! Validation of inner nodes: establishes the invariants of `inner.rs` for any bytes, without panicking.
//!
//! Invariants used here:
//! (1) the header was checked: the image is a whole number of units and `count >= 1`.
//! (2) `structure` accepted the image.
// Unsafe: parses the section table by pointer, and uses the view once the structure is known to be good.
#![allow(unsafe_code)]

use super::error::NodeError;
use super::header::NodeKind;
use super::inner::{
    FLAG_KEYS_WIDTH, FLAG_TAILS, FLAG_TAILS_WIDE, HEAD_BYTES, Inner, LENGTH_TAILED, SECTIONS_AT,
    ZERO_AT,
};
use super::{KEY_BYTES_MAX, UNIT_BYTES};

const fn malformed(what: &'static str) -> NodeError {
    NodeError::Malformed(what)
}

/// Establishes inner (1) to (3).
pub(super) fn structure(bytes: &[u8], kind: NodeKind) -> Result<(), NodeError> {
    debug_assert!(bytes.len() >= UNIT_BYTES && !kind.is_leaf(), "(1)");
    // SAFETY: (1): the image has 64 bytes. Only fields are read below, no accessor is called.
    let inner = unsafe { Inner::parse(bytes.as_ptr()) };
    let tails = inner.flags & (FLAG_TAILS | FLAG_TAILS_WIDE);
    if inner.flags & !(FLAG_KEYS_WIDTH | FLAG_TAILS | FLAG_TAILS_WIDE) != 0
        || inner.flags & FLAG_KEYS_WIDTH > 2
        || tails == FLAG_TAILS_WIDE
        || (inner.by_bytes && tails != 0)
    {
        return Err(malformed("inner: unknown flags"));
    }
    if bytes[ZERO_AT..SECTIONS_AT] != [0; SECTIONS_AT - ZERO_AT] {
        return Err(malformed("inner: reserved bytes are not zero"));
    }
    // A child takes at least 10 bytes. With that bound, no 32-bit sum in `parse` has wrapped.
    let n = inner.count as usize;
    if n > bytes.len() / 10 || inner.prefix_bytes as usize > KEY_BYTES_MAX {
        return Err(malformed("inner: count or prefix is out of bounds"));
    }
    let tails_at = inner.tails_at as usize;
    if tails_at > bytes.len() {
        return Err(malformed("inner: sections are longer than the node"));
    }
    let prefix_bytes = inner.prefix_bytes as usize;
    let fits = |rest_bytes: usize| prefix_bytes + rest_bytes <= KEY_BYTES_MAX;
    let too_long = malformed("inner: separator is too long");
    if inner.by_bytes {
        return if fits(1) { Ok(()) } else { Err(too_long) };
    }
    let lengths_at = inner.lengths_at as usize;
    let lengths = bytes
        .get(lengths_at..lengths_at + n - 1)
        .ok_or(malformed("inner: lengths are outside the node"))?;
    if tails == 0 {
        let longest = lengths.iter().max().map_or(0, |length| *length);
        return if longest >= LENGTH_TAILED {
            Err(malformed("inner: separator length without tails"))
        } else if fits(usize::from(longest)) {
            Ok(())
        } else {
            Err(too_long)
        };
    }
    let width = if tails & FLAG_TAILS_WIDE == 0 { 2 } else { 4 };
    let offsets_at = inner.offsets_at as usize;
    let offsets = bytes
        .get(offsets_at..offsets_at + n * width)
        .ok_or(malformed("inner: offsets are outside the node"))?;
    let mut before = 0;
    for (i, word) in offsets.chunks_exact(width).enumerate() {
        let offset = word
            .iter()
            .rev()
            .fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
        if offset < before || offset > bytes.len() - tails_at {
            return Err(malformed(
                "inner: tail offsets do not ascend inside the node",
            ));
        }
        // Tail i - 1 ends here.
        if i > 0 {
            let length = lengths[i - 1];
            if length > LENGTH_TAILED || (length == LENGTH_TAILED) != (offset > before) {
                return Err(malformed("inner: separator length and tail disagree"));
            }
            let head_bytes = usize::from(length.min(HEAD_BYTES as u8));
            if !fits(head_bytes + offset - before) {
                return Err(too_long);
            }
        } else if offset != 0 {
            return Err(malformed("inner: first tail offset is not zero"));
        }
        before = offset;
    }
    Ok(())
}

/// Strictly ascending separators no longer than a key, no null child.
pub(super) fn content(bytes: &[u8]) -> Result<(), NodeError> {
    // SAFETY: (2).
    let inner = unsafe { Inner::new_validated(bytes) };
    let (mut before, mut separator) = (Vec::new(), Vec::new());
    for i in 0..inner.len() {
        if inner.child(i).is_null() {
            return Err(malformed("inner: null child"));
        }
        inner.separator(i, &mut separator);
        if separator.len() > KEY_BYTES_MAX {
            return Err(malformed("inner: separator is too long"));
        }
        if i > 1 && before >= separator {
            return Err(malformed("inner: separators do not ascend"));
        }
        std::mem::swap(&mut before, &mut separator);
    }
    Ok(())
}
