//! Searches in byte arrays, 16 bytes at a time: SSE2 on x86-64 and NEON on aarch64, which every such processor has, so that
//! nothing is detected at run time and everything inlines; 8 bytes at a time in a word elsewhere.
//!
//! Thread safety: pure functions.
//!
//! Invariants the callers uphold:
//! (1) `at` points to `n` readable bytes, and reading on to the next multiple of 16 bytes (counted from `at`) stays inside the
//!     same allocation. Leaves and inner nodes place these arrays at an offset that is a multiple of 16 in an image whose length
//!     is a multiple of 64, which implies it.
// Unsafe: vector loads by pointer.
#![allow(unsafe_code)]

pub(super) const BLOCK_BYTES: usize = 16;

/// Bit `i` of the result: byte `i` of the block at `at` equals `needle`.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn equal_mask(at: *const u8, needle: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: (1); SSE2 is part of x86-64.
    unsafe {
        let block = _mm_loadu_si128(at.cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8(needle.cast_signed()))) as u32
    }
}

/// Bit `i` of the result: byte `i` of the block at `at` is `needle` or less.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn at_most_mask(at: *const u8, needle: u8) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_max_epu8, _mm_movemask_epi8, _mm_set1_epi8,
    };
    // SAFETY: (1); SSE2 is part of x86-64. x <= needle exactly if max(x, needle) is needle.
    unsafe {
        let block = _mm_loadu_si128(at.cast());
        let needles = _mm_set1_epi8(needle.cast_signed());
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(block, needles), needles)) as u32
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn neon_mask(matches: std::arch::aarch64::uint8x16_t) -> u32 {
    use std::arch::aarch64::{vaddv_u8, vand_u8, vget_high_u8, vget_low_u8, vld1_u8};
    const BITS: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: NEON is part of aarch64; BITS has the 8 bytes that are loaded.
    unsafe {
        let bits = vld1_u8(BITS.as_ptr());
        let low = vaddv_u8(vand_u8(vget_low_u8(matches), bits));
        let high = vaddv_u8(vand_u8(vget_high_u8(matches), bits));
        u32::from(low) | u32::from(high) << 8
    }
}

/// See the x86-64 version.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn equal_mask(at: *const u8, needle: u8) -> u32 {
    use std::arch::aarch64::{vceqq_u8, vdupq_n_u8, vld1q_u8};
    // SAFETY: (1); NEON is part of aarch64.
    unsafe { neon_mask(vceqq_u8(vld1q_u8(at), vdupq_n_u8(needle))) }
}

/// See the x86-64 version.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn at_most_mask(at: *const u8, needle: u8) -> u32 {
    use std::arch::aarch64::{vcleq_u8, vdupq_n_u8, vld1q_u8};
    // SAFETY: (1); NEON is part of aarch64.
    unsafe { neon_mask(vcleq_u8(vld1q_u8(at), vdupq_n_u8(needle))) }
}

/// Portable form, also the oracle of the tests.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline(always)]
unsafe fn portable_mask(at: *const u8, test: impl Fn(u8) -> bool) -> u32 {
    // SAFETY: (1).
    let block = unsafe { at.cast::<[u8; BLOCK_BYTES]>().read() };
    block
        .iter()
        .enumerate()
        .fold(0, |mask, (i, byte)| mask | u32::from(test(*byte)) << i)
}

/// See the x86-64 version.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn equal_mask(at: *const u8, needle: u8) -> u32 {
    // SAFETY: (1).
    unsafe { portable_mask(at, |byte| byte == needle) }
}

/// See the x86-64 version.
///
/// # Safety
/// (1) with `n` = 16.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn at_most_mask(at: *const u8, needle: u8) -> u32 {
    // SAFETY: (1).
    unsafe { portable_mask(at, |byte| byte <= needle) }
}

/// First index whose byte is `needle` and for which `accept` holds.
///
/// # Safety
/// (1).
#[inline(always)]
pub(super) unsafe fn find(
    at: *const u8,
    n: usize,
    needle: u8,
    mut accept: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut start = 0;
    while start < n {
        // Two blocks a round: the second lies inside the array too, or is not looked at.
        // SAFETY: (1), for blocks that start before `n`.
        let mut mask = unsafe { equal_mask(at.add(start), needle) };
        if start + BLOCK_BYTES < n {
            // SAFETY: (1), as above.
            mask |= unsafe { equal_mask(at.add(start + BLOCK_BYTES), needle) } << BLOCK_BYTES;
        }
        while mask != 0 {
            let index = start + mask.trailing_zeros() as usize;
            if index >= n {
                return None;
            }
            if accept(index) {
                return Some(index);
            }
            mask &= mask - 1;
        }
        start += 2 * BLOCK_BYTES;
    }
    None
}

/// How many of `n` sorted, distinct bytes are `needle` or less.
///
/// # Safety
/// (1).
#[inline(always)]
pub(super) unsafe fn count_at_most(at: *const u8, n: usize, needle: u8) -> usize {
    let mut total = 0;
    let mut start = 0;
    while start < n {
        // SAFETY: (1): the block starts before `n`.
        let mut mask = unsafe { at_most_mask(at.add(start), needle) };
        if n - start < BLOCK_BYTES {
            mask &= (1 << (n - start)) - 1;
        }
        total += mask.count_ones() as usize;
        if mask & 0x8000 == 0 {
            break;
        }
        start += BLOCK_BYTES;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_and_portable_masks_agree() {
        let mut bytes = [0u8; 16];
        for seed in 0..2_000u32 {
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = (seed.wrapping_mul(2_654_435_761).rotate_left(i as u32 * 5) >> 24) as u8;
            }
            let needle = (seed % 256) as u8;
            // SAFETY: (1): the array has 16 bytes.
            unsafe {
                assert_eq!(
                    equal_mask(bytes.as_ptr(), bytes[3]),
                    portable_mask(bytes.as_ptr(), |b| b == bytes[3])
                );
                assert_eq!(
                    equal_mask(bytes.as_ptr(), needle),
                    portable_mask(bytes.as_ptr(), |b| b == needle)
                );
                assert_eq!(
                    at_most_mask(bytes.as_ptr(), needle),
                    portable_mask(bytes.as_ptr(), |b| b <= needle)
                );
            }
        }
    }

    #[test]
    fn searches_agree_with_loops() {
        let sorted: Vec<u8> = (0..=255).collect();
        for n in 0..=240 {
            for needle in [0, 1, 15, 16, 17, 100, 239, 240, 255] {
                // SAFETY: (1): the array has 256 bytes.
                let (count, found) = unsafe {
                    (
                        count_at_most(sorted.as_ptr(), n, needle),
                        find(sorted.as_ptr(), n, needle, |_| true),
                    )
                };
                assert_eq!(count, sorted[..n].iter().filter(|b| **b <= needle).count());
                assert_eq!(found, sorted[..n].iter().position(|b| *b == needle));
            }
        }
        let same = [7u8; 64];
        // SAFETY: (1): the array has 64 bytes.
        assert_eq!(unsafe { find(same.as_ptr(), 50, 7, |i| i == 49) }, Some(49));
        // SAFETY: (1): the array has 64 bytes.
        assert_eq!(unsafe { find(same.as_ptr(), 50, 7, |i| i == 50) }, None);
    }
}
