//! Addresses: where a node or an out-of-line value lives in the data file, and what a leaf stores for a key.
//!
//! Invariants:
//! (1) `NodeRef(0)` is null. Page 0 holds the superblocks, so no node has page 0.
//! (2) A node of at most one page never straddles a page boundary; a longer one starts at offset 0 of a run of pages.
//! (3) A reference says whether it leads to [deltas](super::Delta). That is no part of the address.

use super::{PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE};
use std::fmt;

const OFFSET_SHIFT: u32 = 18;
const PAGE_SHIFT: u32 = 24;
const DELTAS_BIT: u64 = 1 << (OFFSET_SHIFT - 1);
const UNITS_MASK: u64 = DELTAS_BIT - 1;
const OFFSET_MASK: u64 = (1 << (PAGE_SHIFT - OFFSET_SHIFT)) - 1;
const PAGE_BITS: u32 = 64 - PAGE_SHIFT;
const _: () = assert!(PAGE_BITS == 40);
const _: () = assert!(UNITS_PER_PAGE as u64 == OFFSET_MASK + 1);

/// Address and length of a node: page (40 bits), offset in the page in units of 64 bytes (6 bits), whether it leads to deltas (1 bit), length in
/// units (17 bits).
///
/// ```
/// use psitri::node::NodeRef;
/// let at = NodeRef::new(12, 3, 5);
/// assert_eq!((at.byte_offset(), at.bytes()), (12 * 4096 + 3 * 64, 5 * 64));
/// assert_eq!(NodeRef::from_bits(at.to_bits()), at);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct NodeRef(u64);

impl NodeRef {
    /// No node: the tree of an empty keyspace.
    pub const NULL: NodeRef = NodeRef(0);
    /// Longest node, in units.
    pub const UNITS_MAX: u32 = UNITS_MASK as u32;

    /// Makes an address. In debug builds asserts that every part fits its field.
    #[inline]
    pub fn new(page: u64, offset_units: u32, units: u32) -> NodeRef {
        debug_assert!(page < 1 << PAGE_BITS, "page number fits 40 bits");
        debug_assert!(u64::from(offset_units) <= OFFSET_MASK && u64::from(units) <= UNITS_MASK);
        NodeRef(
            (page << PAGE_SHIFT)
                | ((u64::from(offset_units) & OFFSET_MASK) << OFFSET_SHIFT)
                | (u64::from(units) & UNITS_MASK),
        )
    }

    /// Page of the first byte.
    #[inline]
    pub fn page(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Offset of the first byte in its page, in units.
    #[inline]
    pub fn offset_units(self) -> u32 {
        ((self.0 >> OFFSET_SHIFT) & OFFSET_MASK) as u32
    }

    /// Length in units.
    #[inline]
    pub fn units(self) -> u32 {
        (self.0 & UNITS_MASK) as u32
    }

    /// Whether the node is a delta, or has one below it.
    #[inline]
    pub fn has_deltas(self) -> bool {
        self.0 & DELTAS_BIT != 0
    }

    /// The reference to the same node that says so.
    #[inline]
    pub fn with_deltas(self, has_deltas: bool) -> NodeRef {
        NodeRef(self.0 & !DELTAS_BIT | if has_deltas { DELTAS_BIT } else { 0 })
    }

    /// Offset of the first byte in the data file.
    #[inline]
    pub fn byte_offset(self) -> u64 {
        // Page and offset are neighbours in the word, so together they already count units.
        (self.0 >> OFFSET_SHIFT) * UNIT_BYTES as u64
    }

    /// Offset of the first byte in the data file, in units.
    #[inline]
    pub fn address_units(self) -> u64 {
        self.0 >> OFFSET_SHIFT
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.units() as usize * UNIT_BYTES
    }

    /// Whether this is [`NodeRef::NULL`].
    #[inline]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address as it is stored.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The address from its stored form. Any value is accepted; the reader of the node checks it.
    #[inline]
    pub fn from_bits(bits: u64) -> NodeRef {
        NodeRef(bits)
    }

    /// Number of pages the node touches.
    #[inline]
    pub fn page_count(self) -> u64 {
        (u64::from(self.offset_units()) + u64::from(self.units())).div_ceil(UNITS_PER_PAGE as u64)
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        write!(
            f,
            "page {}+{} ({} bytes)",
            self.page(),
            self.offset_units() as usize * UNIT_BYTES,
            self.bytes()
        )
    }
}

impl fmt::Debug for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Address of a value that is stored outside its leaf, as raw bytes without a header.
///
/// Values of up to a page share pages, one right behind the other, and never straddle them. Space is counted in units: a value has those
/// that begin inside of it. So each value of [`ValuePointer::SHARING_BYTES_MIN`] bytes or more has units of its own, though its first bytes may lie
/// in the last one of its neighbour.
///
/// ```
/// use psitri::node::ValuePointer;
/// // The second of two values of 100 bytes in page 7 has the units at bytes 128 and 192. The first one has those at bytes 0 and 64.
/// let second = ValuePointer::new(7, 100, 100, 0, 1);
/// assert_eq!(second.byte_offset(), 7 * 4096 + 100);
/// assert_eq!((second.address_units(), second.units()), (7 * 64 + 2, 2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValuePointer {
    /// Offset of the first byte in the data file.
    address: u64,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C of the value.
    pub crc: u32,
    /// Tree version which wrote the value.
    pub birth: u64,
}

const _: () = assert!(ValuePointer::ENCODED_BYTES == 24);

impl ValuePointer {
    /// Bytes of a pointer in a leaf.
    pub const ENCODED_BYTES: usize = 24;
    /// The least length of a value that may begin where its neighbour ends: whatever it begins at, a unit begins inside of it.
    pub const SHARING_BYTES_MIN: usize = UNIT_BYTES;

    /// Makes a pointer from the page and the offset of the first byte in it.
    pub fn new(page: u64, offset_bytes: u32, len: u32, crc: u32, birth: u64) -> ValuePointer {
        let is_aligned = offset_bytes.is_multiple_of(UNIT_BYTES as u32);
        debug_assert!(is_aligned || len as usize >= Self::SHARING_BYTES_MIN);
        ValuePointer {
            address: page * PAGE_BYTES as u64 + u64::from(offset_bytes),
            len,
            crc,
            birth,
        }
    }

    /// What stands for a subtree, in place of a value: an address where no value can be.
    pub fn of_subtree(subtree: SubtreeRef) -> ValuePointer {
        ValuePointer {
            address: 0,
            len: 0,
            crc: subtree.put_in,
            birth: u64::from(subtree.id),
        }
    }

    /// The subtree, if this stands for one.
    #[inline]
    pub fn subtree(&self) -> Option<SubtreeRef> {
        let subtree = SubtreeRef {
            id: self.birth as u32,
            put_in: self.crc,
        };
        (self.address == 0).then_some(subtree)
    }

    /// The first unit of the value, counted from the start of the data file. No other value has it.
    #[inline]
    pub fn address_units(&self) -> u64 {
        self.address.div_ceil(UNIT_BYTES as u64)
    }

    /// Number of units of the value; one for an empty one.
    #[inline]
    pub fn units(&self) -> u32 {
        let end = self.address.saturating_add(u64::from(self.len));
        let units = end.div_ceil(UNIT_BYTES as u64) - self.address_units();
        (units as u32).max(1)
    }

    /// Page of the first unit, which is that of the first byte.
    pub fn page(&self) -> u64 {
        self.address_units() / UNITS_PER_PAGE as u64
    }

    /// Offset of the first unit in its page, in units.
    pub fn offset_units(&self) -> u32 {
        (self.address_units() % UNITS_PER_PAGE as u64) as u32
    }

    /// Offset of the first byte in the data file.
    #[inline]
    pub fn byte_offset(&self) -> u64 {
        self.address
    }

    /// The stored form: address u64, length u32, checksum u32, birth u64, little endian.
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut out = [0; Self::ENCODED_BYTES];
        out[..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..16].copy_from_slice(&self.crc.to_le_bytes());
        out[16..].copy_from_slice(&self.birth.to_le_bytes());
        out
    }

    /// The twin of [`ValuePointer::encode`].
    #[inline]
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> ValuePointer {
        let word = |at: usize| {
            let mut le = [0; 8];
            le.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(le)
        };
        ValuePointer {
            address: word(0),
            len: word(8) as u32,
            crc: (word(8) >> 32) as u32,
            birth: word(16),
        }
    }
}

/// What an entry calls its subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubtreeRef {
    /// Keyspace that the entry was written to. A clone of it has the entry, but subtrees of its own.
    pub put_in: u32,
    /// Number of the subtree in that keyspace.
    pub id: u32,
}

/// What a leaf holds for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    /// The value itself; at most [`super::VALUE_INLINE_BYTES_MAX`] bytes.
    Inline(&'a [u8]),
    /// Where the value is.
    External(ValuePointer),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_word() {
        for (page, offset, units) in [
            (1, 0, 64),
            ((1 << 40) - 1, 63, 1),
            (7, 0, NodeRef::UNITS_MAX),
        ] {
            let at = NodeRef::new(page, offset, units);
            assert_eq!(
                (at.page(), at.offset_units(), at.units()),
                (page, offset, units)
            );
            assert_eq!(at.byte_offset(), page * 4096 + u64::from(offset) * 64);
            assert!(!at.is_null() && !at.has_deltas());
            let with = at.with_deltas(true);
            assert!(with.has_deltas() && with != at && with.with_deltas(false) == at);
            assert_eq!(
                (with.page(), with.offset_units(), with.units()),
                (page, offset, units)
            );
            assert_eq!(
                (with.address_units(), with.byte_offset(), with.bytes()),
                (at.address_units(), at.byte_offset(), at.bytes())
            );
        }
        assert_eq!(
            NodeRef::new(12, 1, 64).to_string(),
            "page 12+64 (4096 bytes)"
        );
        assert_eq!(NodeRef::new(3, 0, 65).page_count(), 2);
        assert_eq!(NodeRef::new(3, 60, 4).page_count(), 1);
        assert!(NodeRef::NULL.is_null());
    }

    #[test]
    fn a_subtree_is_told_from_a_value() {
        let subtree = SubtreeRef {
            put_in: 3,
            id: u32::MAX,
        };
        let stored = ValuePointer::decode(&ValuePointer::of_subtree(subtree).encode());
        assert_eq!(stored.subtree(), Some(subtree));
        assert_eq!(ValuePointer::new(2, 0, 0, 0, 7).subtree(), None);
    }

    #[test]
    fn value_pointer_survives_encoding() {
        let p = ValuePointer::new(99, 320, 4_000_000_000, 0xdead_beef, u64::MAX - 1);
        assert_eq!(ValuePointer::decode(&p.encode()), p);
        assert_eq!(
            (p.page(), p.offset_units(), p.byte_offset()),
            (99, 5, 99 * 4096 + 320)
        );
    }

    #[test]
    fn values_one_behind_the_other_have_each_unit_once() {
        for len in [64, 65, 100, 127, 128, 129, 333, 512, 1000] {
            let mut next_unit = 3 * UNITS_PER_PAGE as u64;
            let mut at = 0;
            while at + len <= PAGE_BYTES as u32 {
                let p = ValuePointer::new(3, at, len, 0, 1);
                assert_eq!(ValuePointer::decode(&p.encode()), p);
                assert_eq!(p.byte_offset(), 3 * PAGE_BYTES as u64 + u64::from(at));
                assert_eq!((p.page(), p.address_units()), (3, next_unit));
                next_unit += u64::from(p.units());
                at += len;
            }
            let used = next_unit - 3 * UNITS_PER_PAGE as u64;
            assert_eq!(used, u64::from(at.div_ceil(UNIT_BYTES as u32)));
        }
    }

    #[test]
    fn damaged_pointers_lead_out_of_the_file() {
        let p = ValuePointer::decode(&[0xff; 24]);
        assert_eq!(p.byte_offset(), u64::MAX);
        assert!(p.units() >= 1);
    }
}
