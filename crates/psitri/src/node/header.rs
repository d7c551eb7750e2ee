//! The 24 bytes every node starts with, and the checks that admit a node.
//!
//! ```text
//!  0        4      5       6       7      8            16        20        24
//!  +--------+------+-------+-------+------+------------+---------+---------+
//!  | crc32c | kind | level | flags | zero | birth u64  | units   | count   |
//!  +--------+------+-------+-------+------+------------+---------+---------+
//! ```
//!
//! The checksum covers the node's own address (the 8 bytes of its `NodeRef`), then every byte after the checksum field. A node
//! that is read from another place than it was written for, or at another length, therefore fails.
//!
//! Invariants:
//! (1) An image's length is `units * 64` and at least one unit.
//! (2) `count >= 1`. Level is 0 for leaves and deltas, and at least 1 for inner nodes.

use super::error::NodeError;
use super::reference::NodeRef;
use super::{UNIT_BYTES, delta, inner_validate, leaf_validate};

pub(super) const HEADER_BYTES: usize = 24;
pub(super) const KIND_AT: usize = 4;
pub(super) const LEVEL_AT: usize = 5;
pub(super) const FLAGS_AT: usize = 6;
const ZERO_AT: usize = 7;
const BIRTH_AT: usize = 8;
pub(super) const UNITS_AT: usize = 16;
pub(super) const COUNT_AT: usize = 20;
/// No tree is so high: with two children a node it would have more leaves than an address can name.
const LEVEL_MAX: u8 = 64;
const _: () = assert!(COUNT_AT + 4 == HEADER_BYTES && HEADER_BYTES <= UNIT_BYTES);

/// How a node is laid out. The values are part of the format; 0 is no kind, so that zeroed space is no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// Leaf with variable keys: fingerprints, offsets, then suffix and value side by side.
    LeafSlotted = 1,
    /// Leaf with keys of one length in a plain array.
    LeafFixed = 2,
    /// Leaf with consecutive integer keys, of which only the first is stored.
    LeafDense = 3,
    /// Changes of a leaf, in front of it.
    Delta = 8,
    /// Inner node that routes on one byte.
    InnerBytes = 16,
    /// Inner node that routes on truncated separators.
    InnerSeparators = 17,
}

impl NodeKind {
    /// The kind with this stored value.
    #[inline]
    pub fn from_u8(kind: u8) -> Option<NodeKind> {
        Some(match kind {
            1 => NodeKind::LeafSlotted,
            2 => NodeKind::LeafFixed,
            3 => NodeKind::LeafDense,
            8 => NodeKind::Delta,
            16 => NodeKind::InnerBytes,
            17 => NodeKind::InnerSeparators,
            _ => return None,
        })
    }

    /// Whether nodes of this kind hold all entries of a range of keys.
    #[inline]
    pub fn is_leaf(self) -> bool {
        (self as u8) < NodeKind::Delta as u8
    }

    /// Whether nodes of this kind hold children.
    #[inline]
    pub fn is_inner(self) -> bool {
        self as u8 >= NodeKind::InnerBytes as u8
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Writes a fresh header; `birth` and the checksum come with [`seal`]. The image must be a whole number of units.
pub(super) fn write(bytes: &mut [u8], kind: NodeKind, level: u8, flags: u8, count: usize) {
    debug_assert!(
        bytes.len() >= HEADER_BYTES && bytes.len().is_multiple_of(UNIT_BYTES),
        "header (1)"
    );
    debug_assert!(count >= 1 && kind.is_inner() == (level > 0), "header (2)");
    let units = (bytes.len() / UNIT_BYTES) as u32;
    bytes[..HEADER_BYTES].fill(0);
    bytes[KIND_AT] = kind as u8;
    bytes[LEVEL_AT] = level;
    bytes[FLAGS_AT] = flags;
    bytes[UNITS_AT..UNITS_AT + 4].copy_from_slice(&units.to_le_bytes());
    bytes[COUNT_AT..COUNT_AT + 4].copy_from_slice(&(count as u32).to_le_bytes());
}

/// With the address only: what is below a node is for its parent to say.
fn checksum(bytes: &[u8], at: NodeRef) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(&at.with_deltas(false).to_bits().to_le_bytes()),
        bytes.get(KIND_AT..).unwrap_or_default(),
    )
}

/// Writes the birth and the checksum of a packed image that will be stored at `at`. Nothing may change afterwards.
///
/// # Panics
/// If `bytes` is not `at.bytes()` long or too short for a header: the caller allocated the wrong space.
pub fn seal(bytes: &mut [u8], at: NodeRef, birth: u64) {
    assert!(
        bytes.len() == at.bytes() && bytes.len() >= UNIT_BYTES,
        "a node is sealed for a place of its own length"
    );
    bytes[BIRTH_AT..BIRTH_AT + 8].copy_from_slice(&birth.to_le_bytes());
    let crc = checksum(bytes, at);
    bytes[..KIND_AT].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies that `bytes` is the node that was sealed for `at`: length, checksum and header.
///
/// # Errors
/// [`NodeError::Length`], [`NodeError::Checksum`], [`NodeError::Kind`] or [`NodeError::Malformed`].
pub fn check(bytes: &[u8], at: NodeRef) -> Result<(), NodeError> {
    if bytes.len() != at.bytes() || bytes.len() < UNIT_BYTES {
        return Err(NodeError::Length {
            expected: at.bytes().max(UNIT_BYTES),
            found: bytes.len(),
        });
    }
    let (expected, found) = (checksum(bytes, at), u32_at(bytes, 0));
    if expected != found {
        return Err(NodeError::Checksum { expected, found });
    }
    check_header(bytes).map(|_| ())
}

/// Header invariants (1) and (2).
pub(super) fn check_header(bytes: &[u8]) -> Result<NodeKind, NodeError> {
    if bytes.len() < UNIT_BYTES || !bytes.len().is_multiple_of(UNIT_BYTES) {
        return Err(NodeError::Length {
            expected: bytes.len().next_multiple_of(UNIT_BYTES).max(64),
            found: bytes.len(),
        });
    }
    let kind = NodeKind::from_u8(bytes[KIND_AT]).ok_or(NodeError::Kind(bytes[KIND_AT]))?;
    let units_expected = bytes.len() / UNIT_BYTES;
    if units(bytes) as usize != units_expected || units_expected > NodeRef::UNITS_MAX as usize {
        return Err(NodeError::Length {
            expected: units(bytes) as usize * UNIT_BYTES,
            found: bytes.len(),
        });
    }
    if bytes[ZERO_AT] != 0 {
        return Err(NodeError::Malformed(
            "node header: reserved byte is not zero",
        ));
    }
    if kind.is_inner() != (bytes[LEVEL_AT] > 0) {
        return Err(NodeError::Malformed(
            "node header: level does not fit the kind",
        ));
    }
    if bytes[LEVEL_AT] > LEVEL_MAX {
        return Err(NodeError::Malformed("node header: level is too high"));
    }
    if count(bytes) == 0 {
        return Err(NodeError::Malformed("node header: count is zero"));
    }
    Ok(kind)
}

/// Checks the whole structure of a node of any kind: everything the views rely on for memory safety. Never panics.
///
/// # Errors
/// Says what is wrong. The checksum is not looked at; that is [`check`].
pub fn validate(bytes: &[u8]) -> Result<NodeKind, NodeError> {
    let kind = check_header(bytes)?;
    match kind {
        NodeKind::Delta => delta::structure(bytes)?,
        _ if kind.is_leaf() => leaf_validate::structure(bytes, kind)?,
        _ => inner_validate::structure(bytes, kind)?,
    }
    Ok(kind)
}

/// [`validate`], and the content: strictly ascending keys or separators, right fingerprints, no null child.
///
/// # Errors
/// Says what is wrong.
pub fn validate_deep(bytes: &[u8]) -> Result<NodeKind, NodeError> {
    let kind = validate(bytes)?;
    match kind {
        NodeKind::Delta => delta::content(bytes)?,
        _ if kind.is_leaf() => leaf_validate::content(bytes)?,
        _ => inner_validate::content(bytes)?,
    }
    Ok(kind)
}

/// Tree version which wrote the node.
#[inline]
pub fn birth(bytes: &[u8]) -> u64 {
    u64::from(u32_at(bytes, BIRTH_AT)) | u64::from(u32_at(bytes, BIRTH_AT + 4)) << 32
}

/// Height of the node above the leaves; leaves and deltas are 0.
#[inline]
pub fn level(bytes: &[u8]) -> u8 {
    bytes.get(LEVEL_AT).copied().unwrap_or(0)
}

/// Whether the kind byte names a leaf.
#[inline]
pub fn is_leaf(bytes: &[u8]) -> bool {
    bytes
        .get(KIND_AT)
        .is_some_and(|kind| *kind < NodeKind::Delta as u8)
}

/// Whether the kind byte names a delta.
#[inline]
pub fn is_delta(bytes: &[u8]) -> bool {
    bytes.get(KIND_AT) == Some(&(NodeKind::Delta as u8))
}

/// Whether the kind byte names an inner node.
#[inline]
pub(super) fn is_inner(bytes: &[u8]) -> bool {
    bytes
        .get(KIND_AT)
        .is_some_and(|kind| *kind >= NodeKind::InnerBytes as u8)
}

/// Length of the node in units, as its header says.
#[inline]
pub fn units(bytes: &[u8]) -> u32 {
    u32_at(bytes, UNITS_AT)
}

/// Entries or children, as the header says.
#[inline]
pub(super) fn count(bytes: &[u8]) -> u32 {
    u32_at(bytes, COUNT_AT)
}
