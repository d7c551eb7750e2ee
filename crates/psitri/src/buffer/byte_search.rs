//! Searches among the key bytes of a node: 16 bytes in two words, the first in the lowest byte, or a bitmap of all 256; and among the slots of a
//! line of a hash table.
//!
//! Values only, no memory. Other processors than x86-64 have the same without vector instructions, which tests compare.

/// Index of the lowest zero byte, or at least 4. Bytes above a zero byte may be reported falsely, the lowest never is.
#[inline(always)]
pub(super) fn lowest_zero_byte32(word: u32) -> usize {
    let zeros = word.wrapping_sub(0x0101_0101) & !word & 0x8080_8080;
    zeros.trailing_zeros() as usize / 8
}

/// One bit for each of the 16 bytes that equals `byte`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code)] // vector intrinsics on values
pub(super) fn equal_mask(keys: [u64; 2], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64; values only, no memory.
    unsafe {
        let keys = _mm_set_epi64x(keys[1] as i64, keys[0] as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(keys, _mm_set1_epi8(byte as i8))) as u32
    }
}

/// One bit for each half of the words, the lower half first, that equals `value` in the bits of `mask`.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
#[allow(unsafe_code)] // vector intrinsics on values
pub(crate) fn equal_slots(words: [u64; 8], mask: u32, value: u32) -> u32 {
    use std::arch::x86_64::*;
    // SAFETY: SSE2 is part of x86-64; values only, no memory.
    unsafe {
        let (mask, value) = (_mm_set1_epi32(mask as i32), _mm_set1_epi32(value as i32));
        let equal = |pair: usize| {
            let slots = _mm_set_epi64x(words[2 * pair + 1] as i64, words[2 * pair] as i64);
            _mm_cmpeq_epi32(_mm_and_si128(slots, mask), value)
        };
        let low = _mm_packs_epi32(equal(0), equal(1));
        let high = _mm_packs_epi32(equal(2), equal(3));
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
    }
}

/// `equal_slots` without vector instructions, for any number of words.
#[cfg(any(test, loom, not(target_arch = "x86_64")))]
#[inline(always)]
pub(crate) fn equal_slots_portable<const N: usize>(words: [u64; N], mask: u32, value: u32) -> u32 {
    let is_equal = |slot: u64| u32::from((slot as u32 ^ value) & mask == 0);
    (words.iter().zip((0..).step_by(2)))
        .map(|(&word, at)| is_equal(word) << at | is_equal(word >> 32) << (at + 1))
        .sum()
}

#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) use self::equal_slots_portable as equal_slots;
#[cfg(not(target_arch = "x86_64"))]
pub(super) use self::{equal_mask_portable as equal_mask, least_from_portable as least_from};

/// `equal_mask` without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
pub(super) fn equal_mask_portable(keys: [u64; 2], byte: u8) -> u32 {
    const LOW7: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let pattern = u64::from(byte) * 0x0101_0101_0101_0101;
    let mut mask = 0;
    for (half, word) in keys.into_iter().enumerate() {
        let x = word ^ pattern;
        // Exact: the high bit of each byte is set where the byte is zero.
        let zeros = !(((x & LOW7) + LOW7) | x | LOW7);
        // Gathers the eight high bits into one byte.
        let bits = (zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= (bits as u32) << (8 * half);
    }
    mask
}

/// The least byte from `least` on in a bitmap of four words.
#[inline(always)]
pub(super) fn byte_from(least: u32, word_at: impl Fn(usize) -> u64) -> Option<u8> {
    let mut word = (least / 64) as usize;
    if word == 4 {
        return None;
    }
    let mut bits = word_at(word) & (u64::MAX << (least % 64));
    while bits == 0 {
        word += 1;
        if word == 4 {
            return None;
        }
        bits = word_at(word);
    }
    Some(64 * word as u8 + bits.trailing_zeros() as u8)
}

/// The greatest byte up to `most` in a bitmap of four words.
#[inline(always)]
pub(super) fn byte_up_to(most: u32, word_at: impl Fn(usize) -> u64) -> Option<u8> {
    let mut word = (most / 64) as usize;
    let mut bits = word_at(word) & (u64::MAX >> (63 - most % 64));
    while bits == 0 {
        word = word.checked_sub(1)?;
        bits = word_at(word);
    }
    Some(64 * word as u8 + 63 - bits.leading_zeros() as u8)
}

/// The bytes of a bitmap of four words, in order.
pub(super) struct Bytes {
    bitmap: [u64; 4],
    forward: bool,
    /// The present word, and what is left of it.
    word: usize,
    bits: u64,
}

impl Bytes {
    /// Those at or above a number (to 256), or, going backward, those that are less than it by two or more.
    #[inline(always)]
    pub fn behind(bitmap: [u64; 4], number: u32, forward: bool) -> Bytes {
        let (word, bits) = if forward {
            match number {
                256 => (3, 0),
                _ => (number / 64, u64::MAX << (number % 64)),
            }
        } else {
            match number.checked_sub(2) {
                None => (0, 0),
                Some(most) => (most / 64, u64::MAX >> (63 - most % 64)),
            }
        };
        let word = word as usize;
        Bytes {
            bits: bitmap[word] & bits,
            bitmap,
            forward,
            word,
        }
    }

    #[inline(always)]
    pub fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            let last = if self.forward { 3 } else { 0 };
            if self.word == last {
                return None;
            }
            self.word = if self.forward {
                self.word + 1
            } else {
                self.word - 1
            };
            self.bits = self.bitmap[self.word];
        }
        let bit = if self.forward {
            self.bits.trailing_zeros()
        } else {
            63 - self.bits.leading_zeros()
        };
        self.bits &= !(1 << bit);
        Some(64 * self.word + bit as usize)
    }
}

/// The least of the first `count` bytes at or above `least`, and its index; every byte is inverted by `flip` first.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code)] // vector intrinsics on values
pub(super) fn least_from(keys: [u64; 2], count: usize, least: u8, flip: u8) -> Option<(u8, usize)> {
    use std::arch::x86_64::*;
    debug_assert!(count <= 16);
    // SAFETY: SSE2 is part of x86-64; values only, no memory.
    unsafe {
        let keys = _mm_xor_si128(
            _mm_set_epi64x(keys[1] as i64, keys[0] as i64),
            _mm_set1_epi8(flip as i8),
        );
        let floor = _mm_set1_epi8(least as i8);
        let fits = _mm_cmpeq_epi8(_mm_max_epu8(keys, floor), keys);
        let fits_mask = _mm_movemask_epi8(fits) as u32 & ((1u32 << count) - 1);
        if fits_mask == 0 {
            return None;
        }
        // Bytes behind `count` count as 255, like those that do not fit.
        let lanes = _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let valid = _mm_and_si128(fits, _mm_cmplt_epi8(lanes, _mm_set1_epi8(count as i8)));
        let candidates = _mm_or_si128(keys, _mm_xor_si128(valid, _mm_set1_epi8(-1)));
        let mut low = _mm_min_epu8(candidates, _mm_srli_si128::<8>(candidates));
        low = _mm_min_epu8(low, _mm_srli_si128::<4>(low));
        low = _mm_min_epu8(low, _mm_srli_si128::<2>(low));
        low = _mm_min_epu8(low, _mm_srli_si128::<1>(low));
        let key = _mm_cvtsi128_si32(low) as u8;
        let same = _mm_cmpeq_epi8(keys, _mm_set1_epi8(key as i8));
        let index = (_mm_movemask_epi8(same) as u32 & fits_mask).trailing_zeros();
        Some((key, index as usize))
    }
}

/// `least_from` without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
pub(super) fn least_from_portable(
    keys: [u64; 2],
    count: usize,
    least: u8,
    flip: u8,
) -> Option<(u8, usize)> {
    (0..count)
        .map(|index| ((keys[index / 8] >> (8 * (index % 8))) as u8 ^ flip, index))
        .filter(|(key, _)| *key >= least)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_search_finds_the_lowest_match() {
        for position in 0..16usize {
            let mut bytes = [7u8; 16];
            bytes[position] = 200;
            let keys = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
            assert_eq!(equal_mask(keys, 200), 1 << position);
            assert_eq!(equal_mask(keys, 7), 0xffff & !(1 << position));
            assert_eq!(equal_mask(keys, 0), 0);
            for byte in 0..=255 {
                assert_eq!(equal_mask_portable(keys, byte), equal_mask(keys, byte));
            }
        }
        for position in 0..4u32 {
            let word = 0x0101_0101 & !(0xff << (8 * position));
            assert_eq!(lowest_zero_byte32(word), position as usize);
        }
        assert!(lowest_zero_byte32(0x0101_0101) >= 4);
    }

    #[cfg(not(loom))]
    #[test]
    fn slots_are_compared_in_the_bits_of_the_mask() {
        let mut words = [0; 8];
        for (at, word) in words.iter_mut().enumerate() {
            *word = (at as u64) << 28 | 0xff00_0000 >> (at % 4) | 0x8000_0000_0000_0000;
        }
        for mask in [0, 1 << 31, 0xff00_0000, 0xe000_0000, u32::MAX] {
            for slot in 0..16 {
                let value = (words[slot / 2] >> (32 * (slot % 2))) as u32 & mask;
                let equal = equal_slots(words, mask, value);
                assert_eq!(equal >> slot & 1, 1);
                assert_eq!(equal, equal_slots_portable(words, mask, value));
            }
            let none = equal_slots_portable(words, mask, 0x7aaa_aaaa & mask);
            assert_eq!(equal_slots(words, mask, 0x7aaa_aaaa & mask), none);
        }
    }

    #[test]
    fn bytes_of_a_bitmap_come_in_order() {
        let bitmaps = [
            [0; 4],
            [u64::MAX; 4],
            [1 << 63, 0, 1, 1 << 63],
            [0, 0x8000_0000_0000_0001, 0, 0],
            [0x5555, 0, u64::MAX << 7, 1],
        ];
        for bitmap in bitmaps {
            let has = |byte: &usize| bitmap[byte / 64] >> (byte % 64) & 1 != 0;
            for number in 0..=256u32 {
                let mut bytes = Bytes::behind(bitmap, number, true);
                let found: Vec<usize> = std::iter::from_fn(|| bytes.next()).collect();
                let expected: Vec<usize> = (number as usize..256).filter(has).collect();
                assert_eq!(found, expected, "from {number}");
                let mut bytes = Bytes::behind(bitmap, number, false);
                let found: Vec<usize> = std::iter::from_fn(|| bytes.next()).collect();
                let below = (number as usize).saturating_sub(1);
                let expected: Vec<usize> = (0..below).rev().filter(has).collect();
                assert_eq!(found, expected, "below {number}");
            }
        }
    }

    #[test]
    fn the_least_byte_from_a_bound() {
        let bytes: [u8; 16] = [
            9, 255, 0, 128, 127, 3, 1, 254, 77, 78, 79, 2, 200, 100, 50, 25,
        ];
        let keys = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
        for count in 0..=16 {
            for bound in 0..=255u8 {
                let all = || bytes[..count].iter().copied().enumerate();
                let above = all().filter(|(_, key)| *key >= bound);
                let expected = above.map(|(index, key)| (key, index)).min();
                assert_eq!(least_from(keys, count, bound, 0), expected);
                assert_eq!(least_from_portable(keys, count, bound, 0), expected);
                let below = all().filter(|(_, key)| *key <= bound);
                let expected = below.map(|(index, key)| (key, index)).max();
                let found = least_from(keys, count, !bound, 0xff);
                assert_eq!(found.map(|(key, index)| (!key, index)), expected);
            }
        }
    }
}
