//! Account names: invented words first, then synthetic binary and decimal names, shuffled.
//!
//! Every name sits in a slot of 16 bytes (one length byte, at most 15 bytes of name), all slots in one allocation: an access costs one
//! cache line and no pointer is followed, so the harness adds as little as it can to what an engine is charged.
//! Names are distinct: words are letters, synthetic names are eight bytes that contain a digit or a zero byte.
use crate::rng::Draws;
use crate::words::{self, WORD_BYTES_MAX};

/// A name and its length, in one copyable value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(16))]
pub struct Name {
    slot: [u8; 16],
}

const _: () = assert!(size_of::<Name>() == 16);
const _: () = assert!(WORD_BYTES_MAX == 15);

impl Name {
    /// A name without bytes, to fill a buffer with.
    pub const EMPTY: Self = Self { slot: [0; 16] };

    fn new(bytes: &[u8]) -> Self {
        assert!(
            bytes.len() <= WORD_BYTES_MAX,
            "a name has at most {WORD_BYTES_MAX} bytes"
        );
        let mut slot = [0; 16];
        slot[0] = bytes.len() as u8;
        slot[1..=bytes.len()].copy_from_slice(bytes);
        Self { slot }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // The mask keeps the bound check out of the way; lengths are at most 15 by construction.
        &self.slot[1..=usize::from(self.slot[0] & 15)]
    }
}

/// The most names there can be: beyond it, decimal names would need more than eight digits.
pub const NAMES_MAX: usize = 3 * 99_999_999;

/// `count` distinct names in an order decided by `seed`.
pub fn names(count: usize, seed: u64) -> Vec<Name> {
    assert!(count <= NAMES_MAX, "at most {NAMES_MAX} names");
    let mut names: Vec<Name> = words::words(count)
        .iter()
        .map(|word| Name::new(word.as_bytes()))
        .collect();
    names.reserve_exact(count - names.len());
    let missing = count - names.len();
    names.extend((0..missing as u64).map(synthetic));
    // Fisher and Yates, from the end.
    let mut draws = Draws::new(seed);
    for last in (1..names.len()).rev() {
        names.swap(last, draws.below(last as u64 + 1) as usize);
    }
    names
}

fn synthetic(position: u64) -> Name {
    let number = position / 3 + 1;
    match position % 3 {
        0 => Name::new(&number.to_be_bytes()),
        1 => Name::new(&number.to_le_bytes()),
        _ => Name::new(format!("{number:08}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hashbrown::HashSet;

    #[test]
    fn names_are_distinct_and_repeatable() {
        let first = names(200_000, 12345);
        assert_eq!(
            first
                .iter()
                .map(Name::as_bytes)
                .collect::<HashSet<_>>()
                .len(),
            200_000
        );
        assert_eq!(first, names(200_000, 12345));
        assert_ne!(first, names(200_000, 12346));
    }

    #[test]
    fn synthetic_names_follow_the_three_forms() {
        assert_eq!(synthetic(3).as_bytes(), &[0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(synthetic(4).as_bytes(), &[2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(synthetic(5).as_bytes(), b"00000002");
    }
}
