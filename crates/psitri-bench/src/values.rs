//! Values that every engine gets byte for byte, and that can be computed again to check what comes back.
//!
//! A value is a slice of one buffer, so that making it costs a hash and no copy. Incompressible values begin anywhere in a megabyte of
//! pseudo random bytes; a block compressor, which sees far less than a megabyte at a time, finds nothing in them. In compressible values
//! each byte is one more than the one before: byte `j` of value `n` is `(n + j) mod 256`.
//!
//! [`TaggedValues`] begin with a number of the writer's choice, so that a reader that does not know which of several writes it sees can
//! still check every byte.
use crate::keys;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

const INCOMPRESSIBLE_OFFSETS: usize = 1 << 20;
const COMPRESSIBLE_OFFSETS: usize = 256;
pub const TAG_BYTES: usize = 8;

const _: () = assert!(TAG_BYTES == size_of::<u64>());

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ValueKind {
    /// Pseudo random bytes.
    #[default]
    Incompressible,
    /// Ascending bytes.
    Compressible,
}

impl ValueKind {
    pub fn new(compressible: bool) -> Self {
        if compressible {
            Self::Compressible
        } else {
            Self::Incompressible
        }
    }
}

pub struct Values {
    kind: ValueKind,
    value_bytes: usize,
    buffer: Vec<u8>,
}

impl Values {
    pub fn new(kind: ValueKind, value_bytes: usize) -> Self {
        let buffer = match kind {
            ValueKind::Incompressible => {
                let length = INCOMPRESSIBLE_OFFSETS + value_bytes;
                let mut bytes: Vec<u8> = (0..length.div_ceil(8) as u64)
                    .flat_map(|word| keys::hash(!word).to_le_bytes())
                    .collect();
                bytes.truncate(length);
                bytes
            }
            ValueKind::Compressible => (0..COMPRESSIBLE_OFFSETS + value_bytes)
                .map(|position| position as u8)
                .collect(),
        };
        Self {
            kind,
            value_bytes,
            buffer,
        }
    }

    /// The value of that number, always the same.
    #[inline]
    pub fn at(&self, number: u64) -> &[u8] {
        let offset = match self.kind {
            ValueKind::Incompressible => {
                keys::below(keys::hash(number), INCOMPRESSIBLE_OFFSETS as u64) as usize
            }
            ValueKind::Compressible => number as usize % COMPRESSIBLE_OFFSETS,
        };
        &self.buffer[offset..offset + self.value_bytes]
    }
}

/// Values that begin with a little-endian number, which the rest follows from.
pub struct TaggedValues {
    values: Values,
}

impl TaggedValues {
    /// `value_bytes` includes the tag and is not less than [`TAG_BYTES`].
    pub fn new(kind: ValueKind, value_bytes: usize) -> Self {
        assert!(value_bytes >= TAG_BYTES, "a value has room for its tag");
        Self {
            values: Values::new(kind, value_bytes - TAG_BYTES),
        }
    }

    /// Puts the value with that tag into `value`, in place of what was there.
    #[inline]
    pub fn fill(&self, tag: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(self.values.at(tag));
    }

    /// The tag, if every byte of the value is as it was made.
    #[inline]
    pub fn tag(&self, value: &[u8]) -> Option<u64> {
        let (tag, rest) = value.split_first_chunk::<TAG_BYTES>()?;
        let tag = u64::from_le_bytes(*tag);
        (self.values.at(tag) == rest).then_some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_values_ascend_from_their_number() {
        let values = Values::new(ValueKind::Compressible, 300);
        let value = values.at(259);
        assert_eq!((value[0], value[1], value[255]), (3, 4, 2));
        assert_eq!(value.len(), 300);
    }

    #[test]
    fn incompressible_values_have_no_favourite_byte_and_differ() {
        let values = Values::new(ValueKind::Incompressible, 4096);
        let mut counts = [0u32; 256];
        (0..100).for_each(|number| {
            for &byte in values.at(number) {
                counts[byte as usize] += 1;
            }
        });
        // 1,600 of each are expected, give or take 40.
        assert!(
            counts.iter().all(|count| (1_300..1_900).contains(count)),
            "{counts:?}"
        );
        assert_ne!(values.at(1), values.at(2));
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed() {
        let values = TaggedValues::new(ValueKind::Incompressible, 40);
        let mut value = Vec::new();
        values.fill(77, &mut value);
        assert_eq!((value.len(), values.tag(&value)), (40, Some(77)));
        for position in 0..value.len() {
            value[position] ^= 1;
            assert_eq!(values.tag(&value), None, "byte {position}");
            value[position] ^= 1;
        }
        assert_eq!(values.tag(&value[..39]), None);
        assert_eq!(values.tag(b"short"), None);
    }
}
