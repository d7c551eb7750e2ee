//! Choosing and writing the encoding of a run of entries.
//!
//! A [`Run`] sums up its entries, so that for most of a leaf "does one more fit" is answered by an upper bound of its size. Only
//! where the bound says no are the first and the last key compared: they tell the common prefix and, because keys ascend,
//! whether all keys are consecutive.
//! The smallest encoding that applies is taken: dense where keys are consecutive integers, fixed where they have one length,
//! slotted otherwise. Uniform values drop their offsets in each of them.
//!
//! Invariants:
//! (1) Entry `e` occupies `arena[e.at..e.at + e.key_bytes + e.value_bytes]`: the key, then the value or the encoded pointer; at
//!     least `PADDING_BYTES` initialised bytes follow the last entry.
//! (2) Entries of a run ascend strictly by key, so that the common prefix of the first and the last is that of all.
//! (3) `Run::plan().bytes` is exactly what `encode` writes, without padding. The buffer has `PADDING_BYTES` more; sections are
//!     written in ascending order, so that what a copy writes behind its end is overwritten or zeroed later.
// Unsafe: copies of known length into an image of computed size, (1) and (3).
#![allow(unsafe_code)]

use super::bytes::{PADDING_BYTES, be_integer, common_prefix, copy_padded, fingerprint_padded};
use super::header::{self, NodeKind};
use super::leaf::{
    FLAG_SUFFIX_WIDE, FLAG_VALUES_EXTERNAL, FLAG_VALUES_UNIFORM, LEAF_COUNT_MAX, OFFSET_EXTERNAL,
    PREFIX_BYTES_AT, SECTIONS_AT, SUFFIX_BYTES_AT, TAIL_BYTES, VALUE_BYTES_AT,
};
use super::{NODE_BYTES_SOFT_MAX, UNIT_BYTES};

const _: () = assert!(NODE_BYTES_SOFT_MAX < OFFSET_EXTERNAL);

/// One entry in the packer's arena; see (1).
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u16,
    pub(super) external: bool,
}

impl Entry {
    #[inline(always)]
    pub(super) fn key<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at..self.at + self.key_bytes as usize]
    }
}

/// Neighbouring entries that would share a leaf, summed up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    /// Index of the first entry.
    pub(super) start: usize,
    pub(super) count: usize,
    keys_bytes: usize,
    values_bytes: usize,
    key_bytes_min: u32,
    key_bytes_max: u32,
    value_bytes: u16,
    external: bool,
    values_uniform: bool,
}

/// What `encode` will write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) kind: NodeKind,
    /// Length without padding.
    pub(super) bytes: usize,
    prefix_bytes: usize,
    suffix_wide: bool,
}

impl Plan {
    /// Length of the image.
    pub(super) fn image_bytes(&self) -> usize {
        self.bytes.next_multiple_of(UNIT_BYTES)
    }
}

impl Run {
    /// A run of one entry.
    pub(super) fn single(index: usize, entry: Entry) -> Run {
        Run {
            start: index,
            count: 1,
            keys_bytes: entry.key_bytes as usize,
            values_bytes: entry.value_bytes as usize,
            key_bytes_min: entry.key_bytes,
            key_bytes_max: entry.key_bytes,
            value_bytes: entry.value_bytes,
            external: entry.external,
            values_uniform: true,
        }
    }

    /// Adds the entry that follows the run, unless the leaf would be longer than `bytes_max` then: gives whether it was added.
    #[inline(always)]
    pub(super) fn extend(
        &mut self,
        entry: Entry,
        entries: &[Entry],
        arena: &[u8],
        bytes_max: usize,
    ) -> bool {
        let longer = Run {
            start: self.start,
            count: self.count + 1,
            keys_bytes: self.keys_bytes + entry.key_bytes as usize,
            values_bytes: self.values_bytes + entry.value_bytes as usize,
            key_bytes_min: self.key_bytes_min.min(entry.key_bytes),
            key_bytes_max: self.key_bytes_max.max(entry.key_bytes),
            value_bytes: self.value_bytes,
            external: self.external,
            values_uniform: self.values_uniform
                & (entry.value_bytes == self.value_bytes)
                & (entry.external == self.external),
        };
        if longer.bytes_bound() > bytes_max && !longer.fits(entries, arena, bytes_max) {
            return false;
        }
        *self = longer;
        true
    }

    /// At least what any encoding takes: that of a wide slotted leaf without a prefix.
    #[inline(always)]
    fn bytes_bound(&self) -> usize {
        SECTIONS_AT + 5 * self.count + 2 + self.keys_bytes + self.values_bytes + TAIL_BYTES
    }

    #[inline(never)]
    fn fits(&self, entries: &[Entry], arena: &[u8], bytes_max: usize) -> bool {
        self.count <= LEAF_COUNT_MAX && self.plan(entries, arena).bytes <= bytes_max
    }

    /// Index behind the last entry.
    pub(super) fn end(&self) -> usize {
        self.start + self.count
    }

    /// The smallest encoding and its size.
    pub(super) fn plan(&self, entries: &[Entry], arena: &[u8]) -> Plan {
        let n = self.count;
        let first = entries[self.start].key(arena);
        let last = entries[self.end() - 1].key(arena);
        debug_assert!(n == 1 || first < last, "(2)");
        // No more than the shortest key has: the entries of a damaged leaf may be in no order.
        let prefix_bytes = common_prefix(first, last).min(self.key_bytes_min as usize);
        let offsets_bytes = 2 * (n + 1);
        let common = SECTIONS_AT + prefix_bytes + self.values_bytes + TAIL_BYTES;
        if self.key_bytes_min == self.key_bytes_max {
            let suffix_bytes = first.len() - prefix_bytes;
            let common = common
                + if self.values_uniform {
                    0
                } else {
                    offsets_bytes
                };
            // Integers that ascend strictly and span as many numbers as there are of them are consecutive.
            if n > 1
                && suffix_bytes <= 8
                && be_integer(&last[prefix_bytes..]) - be_integer(&first[prefix_bytes..])
                    == n as u64 - 1
            {
                return Plan {
                    kind: NodeKind::LeafDense,
                    bytes: common + 8,
                    prefix_bytes,
                    suffix_wide: false,
                };
            }
            let bytes = common + n * suffix_bytes;
            return Plan {
                kind: NodeKind::LeafFixed,
                bytes,
                prefix_bytes,
                suffix_wide: false,
            };
        }
        let suffix_wide = !self.values_uniform && self.key_bytes_max as usize - prefix_bytes > 255;
        let lengths_bytes = if self.values_uniform {
            0
        } else {
            n << u32::from(suffix_wide)
        };
        let suffixes_bytes = self.keys_bytes - n * prefix_bytes;
        let bytes = common + n + offsets_bytes + lengths_bytes + suffixes_bytes;
        debug_assert!(bytes <= self.bytes_bound());
        Plan {
            kind: NodeKind::LeafSlotted,
            bytes,
            prefix_bytes,
            suffix_wide,
        }
    }

    /// Writes the unsealed image of the run to the front of `out`, which grows as needed; gives the image's length.
    pub(super) fn encode(&self, entries: &[Entry], arena: &[u8], out: &mut Vec<u8>) -> usize {
        let plan = self.plan(entries, arena);
        let (image_bytes, prefix_bytes) = (plan.image_bytes(), plan.prefix_bytes);
        let entries = &entries[self.start..self.end()];
        let last = entries[self.count - 1];
        let arena_end = last.at + last.key_bytes as usize + last.value_bytes as usize;
        assert!(arena.len() >= arena_end + PADDING_BYTES, "(1)");
        if out.len() < image_bytes + PADDING_BYTES {
            out.resize(image_bytes + PADDING_BYTES, 0);
        }
        let mut flags = 0;
        if self.values_uniform {
            flags |= FLAG_VALUES_UNIFORM
                | if self.external {
                    FLAG_VALUES_EXTERNAL
                } else {
                    0
                };
        }
        if plan.suffix_wide {
            flags |= FLAG_SUFFIX_WIDE;
        }
        header::write(&mut out[..image_bytes], plan.kind, 0, flags, self.count);
        let slotted = plan.kind == NodeKind::LeafSlotted;
        let suffix_bytes = if slotted {
            0
        } else {
            self.key_bytes_max as usize - prefix_bytes
        };
        let value_bytes = if self.values_uniform {
            self.value_bytes
        } else {
            0
        };
        out[PREFIX_BYTES_AT..SUFFIX_BYTES_AT].copy_from_slice(&(prefix_bytes as u32).to_le_bytes());
        out[SUFFIX_BYTES_AT..VALUE_BYTES_AT].copy_from_slice(&(suffix_bytes as u16).to_le_bytes());
        out[VALUE_BYTES_AT..SECTIONS_AT].copy_from_slice(&value_bytes.to_le_bytes());
        let end = match plan.kind {
            NodeKind::LeafSlotted if self.values_uniform => {
                self.write_slotted::<0>(entries, arena, prefix_bytes, out)
            }
            NodeKind::LeafSlotted if plan.suffix_wide => {
                self.write_slotted::<2>(entries, arena, prefix_bytes, out)
            }
            NodeKind::LeafSlotted => self.write_slotted::<1>(entries, arena, prefix_bytes, out),
            kind => self.write_arrays(entries, arena, prefix_bytes, kind, out),
        };
        assert!(end + TAIL_BYTES == plan.bytes, "(3)");
        out[end..image_bytes].fill(0);
        image_bytes
    }

    /// Writes the sections of a slotted leaf with suffix lengths of `WIDTH` bytes; gives the end of the data.
    fn write_slotted<const WIDTH: usize>(
        &self,
        entries: &[Entry],
        arena: &[u8],
        prefix_bytes: usize,
        out: &mut [u8],
    ) -> usize {
        let n = self.count;
        let offsets_at = SECTIONS_AT + n;
        let lengths_at = offsets_at + 2 * (n + 1);
        let prefix_at = lengths_at + n * WIDTH;
        out[prefix_at..prefix_at + prefix_bytes]
            .copy_from_slice(&entries[0].key(arena)[..prefix_bytes]);
        let mut at = prefix_at + prefix_bytes;
        let base = out.as_mut_ptr();
        for (i, entry) in entries.iter().enumerate() {
            let suffix_bytes = entry.key_bytes as usize - prefix_bytes;
            let mark = if WIDTH != 0 && entry.external {
                OFFSET_EXTERNAL
            } else {
                0
            };
            let entry_bytes = suffix_bytes + entry.value_bytes as usize;
            // SAFETY: (1) for the source; (3): all sections and entries lie inside the image.
            unsafe {
                let from = arena.as_ptr().add(entry.at + prefix_bytes);
                *base.add(SECTIONS_AT + i) = fingerprint_padded(from, suffix_bytes);
                base.add(offsets_at + 2 * i)
                    .cast::<[u8; 2]>()
                    .write(((at | mark) as u16).to_le_bytes());
                match WIDTH {
                    0 => {}
                    1 => *base.add(lengths_at + i) = suffix_bytes as u8,
                    _ => {
                        base.add(lengths_at + 2 * i)
                            .cast::<[u8; 2]>()
                            .write((suffix_bytes as u16).to_le_bytes());
                    }
                }
                // Key and value are neighbours in the arena as in the leaf: one copy.
                copy_padded(from, base.add(at), entry_bytes);
            }
            at += entry_bytes;
        }
        out[offsets_at + 2 * n..offsets_at + 2 * n + 2].copy_from_slice(&(at as u16).to_le_bytes());
        at
    }

    /// Writes the sections of a fixed or dense leaf; gives the end of the values.
    fn write_arrays(
        &self,
        entries: &[Entry],
        arena: &[u8],
        prefix_bytes: usize,
        kind: NodeKind,
        out: &mut [u8],
    ) -> usize {
        let n = self.count;
        let first_key = entries[0].key(arena);
        let suffix_bytes = self.key_bytes_max as usize - prefix_bytes;
        let offsets_at = if kind == NodeKind::LeafDense {
            let first = be_integer(&first_key[prefix_bytes..]);
            out[SECTIONS_AT..SECTIONS_AT + 8].copy_from_slice(&first.to_le_bytes());
            SECTIONS_AT + 8
        } else {
            for (i, entry) in entries.iter().enumerate() {
                // SAFETY: (1) for the source; (3) for the target.
                unsafe {
                    let from = arena.as_ptr().add(entry.at + prefix_bytes);
                    copy_padded(
                        from,
                        out.as_mut_ptr().add(SECTIONS_AT + i * suffix_bytes),
                        suffix_bytes,
                    );
                }
            }
            SECTIONS_AT + n * suffix_bytes
        };
        let prefix_at = offsets_at + if self.values_uniform { 0 } else { 2 * (n + 1) };
        out[prefix_at..prefix_at + prefix_bytes].copy_from_slice(&first_key[..prefix_bytes]);
        let mut at = prefix_at + prefix_bytes;
        let base = out.as_mut_ptr();
        for (i, entry) in entries.iter().enumerate() {
            let value_bytes = entry.value_bytes as usize;
            // SAFETY: (1) for the source; (3): all sections and values lie inside the image.
            unsafe {
                if !self.values_uniform {
                    let word = at | if entry.external { OFFSET_EXTERNAL } else { 0 };
                    base.add(offsets_at + 2 * i)
                        .cast::<[u8; 2]>()
                        .write((word as u16).to_le_bytes());
                }
                copy_padded(
                    arena.as_ptr().add(entry.at + entry.key_bytes as usize),
                    base.add(at),
                    value_bytes,
                );
            }
            at += value_bytes;
        }
        if !self.values_uniform {
            out[offsets_at + 2 * n..offsets_at + 2 * n + 2]
                .copy_from_slice(&(at as u16).to_le_bytes());
        }
        at
    }
}
