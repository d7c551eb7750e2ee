//! Byte work shared by the codecs: unaligned little-endian loads, big-endian key heads, fingerprints, comparisons.
//!
//! Thread safety: pure functions.
//!
//! Invariants the callers of the `unsafe` functions uphold:
//! (1) the bytes named in each function's safety section lie inside one live allocation.
//!
//! Key *heads*: the first 8 bytes of a key as a big-endian integer, zero-filled. Heads order like keys; equal heads decide nothing
//! because of the zero fill.
// Unsafe: loads without bounds checks from validated images; searches are the hottest code of the product.
#![allow(unsafe_code)]

use std::cmp::Ordering;

/// # Safety
/// (1): `at` points to 2 readable bytes.
#[inline(always)]
pub(super) unsafe fn load_u16(at: *const u8) -> usize {
    // SAFETY: (1), and read_unaligned needs no alignment.
    u16::from_le(unsafe { at.cast::<u16>().read_unaligned() }) as usize
}

/// # Safety
/// (1): `at` points to 4 readable bytes.
#[inline(always)]
pub(super) unsafe fn load_u32(at: *const u8) -> u32 {
    // SAFETY: (1), and read_unaligned needs no alignment.
    u32::from_le(unsafe { at.cast::<u32>().read_unaligned() })
}

/// # Safety
/// (1): `at` points to 8 readable bytes.
#[inline(always)]
pub(super) unsafe fn load_u64(at: *const u8) -> u64 {
    // SAFETY: (1), and read_unaligned needs no alignment.
    u64::from_le(unsafe { at.cast::<u64>().read_unaligned() })
}

/// # Safety
/// (1): `at` points to 8 writable bytes.
#[inline(always)]
pub(super) unsafe fn store_u64(at: *mut u8, word: u64) {
    // SAFETY: (1), and write_unaligned needs no alignment.
    unsafe { at.cast::<u64>().write_unaligned(word.to_le()) }
}

/// Head of a key of `len` bytes at `at`.
///
/// # Safety
/// (1): `at` points to 8 readable bytes, whatever `len` is.
#[inline(always)]
pub(super) unsafe fn load_head(at: *const u8, len: usize) -> u64 {
    // SAFETY: (1).
    let word = unsafe { load_u64(at) }.swap_bytes();
    // From 8 bytes on the shift is "unbounded" and clears the mask's complement.
    word & !u64::MAX.unbounded_shr(len as u32 * 8)
}

/// The up to 8 bytes of `key`, as a little-endian word with zero fill.
#[inline(always)]
fn load_short(key: &[u8]) -> u64 {
    let n = key.len();
    let p = key.as_ptr();
    debug_assert!(n < 8);
    if n >= 4 {
        // SAFETY: (1): 4 bytes from the front and 4 up to the end, inside the slice.
        let (low, high) = unsafe { (load_u32(p), load_u32(p.add(n - 4))) };
        u64::from(low) | u64::from(high) << ((n - 4) * 8)
    } else if n > 0 {
        let (a, b, c) = (
            u64::from(key[0]),
            u64::from(key[n / 2]),
            u64::from(key[n - 1]),
        );
        a | b << ((n / 2) * 8) | c << ((n - 1) * 8)
    } else {
        0
    }
}

/// The first 8 bytes of `key`, as a little-endian word with zero fill.
#[inline(always)]
fn load_front(key: &[u8]) -> u64 {
    if key.len() < 8 {
        return load_short(key);
    }
    // SAFETY: (1): the slice has 8 bytes.
    unsafe { load_u64(key.as_ptr()) }
}

/// Head of a slice.
#[inline(always)]
pub(crate) fn head(key: &[u8]) -> u64 {
    load_front(key).swap_bytes()
}

/// Keys of one length up to this one are compared word by word.
const BY_WORDS_BYTES_MAX: usize = 48;

/// Order of two keys. Those that differ in the first 8 bytes, and those of one length up to [`BY_WORDS_BYTES_MAX`], are compared without a call.
///
/// A call for nothing can be dear: where an empty slice has no memory, the C library's vector loads are masked out, which took 200 ns and more
/// on an AMD EPYC.
#[cfg(any(not(loom), test))]
#[inline(always)]
pub(crate) fn compare_keys(a: &[u8], b: &[u8]) -> Ordering {
    match head(a).cmp(&head(b)) {
        Ordering::Equal => compare_behind_heads(a, b),
        order => order,
    }
}

/// In place of what a key does not have.
static NOTHING: [u8; 8] = [0; 8];

/// Order of two keys with equal heads.
#[inline(always)]
pub(super) fn compare_behind_heads(a: &[u8], b: &[u8]) -> Ordering {
    let len = a.len();
    if len == b.len() && len <= 16 {
        // No branch would foresee whether there is something behind the head.
        let last = |key: &[u8]| {
            let from = len.saturating_sub(8);
            let at =
                std::hint::select_unpredictable(len < 8, NOTHING.as_ptr(), key[from..].as_ptr());
            // SAFETY: (1): 8 bytes, up to the end of the slice where it has so many.
            unsafe { load_u64(at) }.swap_bytes()
        };
        return last(a).cmp(&last(b));
    }
    if len < 8 || b.len() < 8 {
        // The shorter one, filled with zeros, is the other's beginning.
        return len.cmp(&b.len());
    }
    if len != b.len() || len > BY_WORDS_BYTES_MAX {
        return a[8..].cmp(&b[8..]);
    }
    let mut at = 8;
    while at < len {
        let word_at = at.min(len - 8);
        // SAFETY: (1): both slices have `len` bytes, at least 8.
        let (a_word, b_word) = unsafe {
            (
                load_u64(a.as_ptr().add(word_at)),
                load_u64(b.as_ptr().add(word_at)),
            )
        };
        if a_word != b_word {
            return a_word.swap_bytes().cmp(&b_word.swap_bytes());
        }
        at += 8;
    }
    Ordering::Equal
}

/// The big-endian integer made of the whole of a slice of at most 8 bytes.
#[inline(always)]
pub(super) fn be_integer(suffix: &[u8]) -> u64 {
    debug_assert!(suffix.len() <= 8);
    if suffix.is_empty() {
        0
    } else {
        head(suffix) >> (64 - 8 * suffix.len())
    }
}

/// Bytes that may be read or written behind the end of a range by the `_padded` functions.
pub(super) const PADDING_BYTES: usize = 32;

const MIX_A: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_B: u64 = 0xc2b2_ae3d_27d4_eb4f;

#[inline(always)]
fn mix(hash: u64, a: u64, b: u64) -> u64 {
    let x = (hash ^ a).wrapping_mul(MIX_A) ^ b.wrapping_mul(MIX_B).rotate_left(32);
    x ^ (x >> 32)
}

/// Fingerprint of a key suffix: the top byte of a multiplicative hash over blocks of two 8-byte words, the last block (the only
/// one, of an empty suffix) filled with zeros. Part of the format.
#[inline(always)]
pub(super) fn fingerprint(suffix: &[u8]) -> u8 {
    let mut hash = suffix.len() as u64;
    let mut rest = suffix;
    loop {
        let (a, b);
        if rest.len() >= 8 {
            let behind = &rest[8..];
            // SAFETY: (1): `rest` has 8 bytes.
            a = unsafe { load_u64(rest.as_ptr()) };
            b = load_front(behind);
            rest = behind.get(8..).unwrap_or_default();
        } else {
            (a, b) = (load_short(rest), 0);
            rest = &[];
        }
        hash = mix(hash, a, b);
        if rest.is_empty() {
            return (hash.wrapping_mul(MIX_A) >> 56) as u8;
        }
    }
}

/// [`fingerprint`] without a branch for suffixes of up to 16 bytes.
///
/// # Safety
/// (1): `at` points to `len + PADDING_BYTES` readable bytes.
#[inline(always)]
pub(super) unsafe fn fingerprint_padded(at: *const u8, len: usize) -> u8 {
    let low = |bytes: usize| !u64::MAX.unbounded_shl(bytes as u32 * 8);
    let (mut at, mut left, mut hash) = (at, len, len as u64);
    // SAFETY: (1): 16 bytes are read at fewer than `len` bytes from the start, or at the start.
    unsafe {
        while left > 16 {
            hash = mix(hash, load_u64(at), load_u64(at.add(8)));
            at = at.add(16);
            left -= 16;
        }
        hash = mix(
            hash,
            load_u64(at) & low(left),
            load_u64(at.add(8)) & low(left.saturating_sub(8)),
        );
    }
    (hash.wrapping_mul(MIX_A) >> 56) as u8
}

/// Copies `len` bytes, and up to [`PADDING_BYTES`] more, without a branch for up to 32 bytes.
///
/// # Safety
/// (1): `len + PADDING_BYTES` bytes are readable at `from` and writable at `to`, no overlap.
#[inline(always)]
pub(super) unsafe fn copy_padded(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    loop {
        // SAFETY: (1): `done` is 0 or less than `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), 16);
            std::ptr::copy_nonoverlapping(from.add(done + 16), to.add(done + 16), 16);
        }
        done += 32;
        if done >= len {
            return;
        }
    }
}

/// Whether `len` bytes at `a` and `b` are the same. Short lengths, the usual case, do not call `memcmp`.
///
/// # Safety
/// (1): `a` and `b` each point to `len` readable bytes.
#[inline(always)]
pub(super) unsafe fn equal(a: *const u8, b: *const u8, len: usize) -> bool {
    // SAFETY: (1): every load below lies inside the `len` bytes; pairs of loads overlap where `len` is no power of two.
    unsafe {
        if len > 16 {
            return std::slice::from_raw_parts(a, len) == std::slice::from_raw_parts(b, len);
        }
        if len >= 8 {
            let last = len - 8;
            return (load_u64(a) ^ load_u64(b)) | (load_u64(a.add(last)) ^ load_u64(b.add(last)))
                == 0;
        }
        if len >= 4 {
            let last = len - 4;
            return (load_u32(a) ^ load_u32(b)) | (load_u32(a.add(last)) ^ load_u32(b.add(last)))
                == 0;
        }
        for i in 0..len {
            if *a.add(i) != *b.add(i) {
                return false;
            }
        }
    }
    true
}

/// Copies `len` bytes; short lengths do not call `memcpy`.
///
/// # Safety
/// (1): `len` readable bytes at `from`, `len` writable bytes at `to`, no overlap.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: (1): every access lies inside the `len` bytes.
    unsafe {
        let ends = |bytes: usize| {
            std::ptr::copy_nonoverlapping(from, to, bytes);
            std::ptr::copy_nonoverlapping(from.add(len - bytes), to.add(len - bytes), bytes);
        };
        if len > 32 {
            std::ptr::copy_nonoverlapping(from, to, len);
        } else if len >= 16 {
            ends(16);
        } else if len >= 8 {
            ends(8);
        } else if len >= 4 {
            ends(4);
        } else if len > 0 {
            let (a, b, c) = (*from, *from.add(len / 2), *from.add(len - 1));
            *to = a;
            *to.add(len / 2) = b;
            *to.add(len - 1) = c;
        }
    }
}

/// Length of the longest common prefix.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let n = a.len().min(b.len());
    let mut i = 0;
    while i + 8 <= n {
        // SAFETY: (1): both slices have 8 bytes at `i`.
        let diff = unsafe { load_u64(a.as_ptr().add(i)) ^ load_u64(b.as_ptr().add(i)) };
        if diff != 0 {
            return i + diff.trailing_zeros() as usize / 8;
        }
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}

/// Compares `key` with a node's common `prefix`: `Ok(rest)` if it starts with it, otherwise on which side of all the node's keys
/// it lies (a proper prefix of `prefix` lies before them).
#[inline(always)]
pub(super) fn strip<'k>(key: &'k [u8], prefix: &[u8]) -> Result<&'k [u8], Ordering> {
    // SAFETY: (1): the first test makes `key` at least as long as `prefix`.
    if key.len() >= prefix.len() && unsafe { equal(key.as_ptr(), prefix.as_ptr(), prefix.len()) } {
        Ok(&key[prefix.len()..])
    } else {
        // Never equal: an equal key would start with the prefix.
        Err(key.cmp(prefix))
    }
}

/// Number of items, of `n` sorted ones, for which `less` holds; `less` is true for a front part only. No data-dependent branches.
#[inline(always)]
pub(super) fn partition(n: usize, mut less: impl FnMut(usize) -> bool) -> usize {
    if n == 0 {
        return 0;
    }
    let (mut base, mut len) = (0, n);
    while len > 1 {
        let half = len / 2;
        base = std::hint::select_unpredictable(less(base + half - 1), base + half, base);
        len -= half;
    }
    base + usize::from(less(base))
}

/// Writes to `out` the shortest key `s` with `left_last < s <= right_first`: the separator between two neighbouring nodes.
///
/// ```
/// let mut s = Vec::new();
/// psitri::node::shortest_separator(b"apple", b"azure", &mut s);
/// assert_eq!(s, b"az");
/// ```
pub fn shortest_separator(left_last: &[u8], right_first: &[u8], out: &mut Vec<u8>) {
    debug_assert!(left_last < right_first, "neighbouring nodes are in order");
    let common = common_prefix(left_last, right_first);
    out.clear();
    out.extend_from_slice(&right_first[..right_first.len().min(common + 1)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_is_that_of_their_bytes() {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // Whole words, and what is left of one; and where the C library is called.
        for len in (0..20).chain([23, 24, 25, 32, 33, 47, 48, 49, 56]) {
            for place in 0..=len {
                for byte in [0, 0x7f, 0x80, 0xff] {
                    let mut key = vec![0x80; len];
                    key[..place].fill(0x7f);
                    if let Some(at) = key.get_mut(place) {
                        *at = byte;
                    }
                    keys.push(key);
                }
            }
        }
        for a in &keys {
            for b in &keys {
                assert_eq!(compare_keys(a, b), a.cmp(b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn heads_order_like_keys() {
        let keys: [&[u8]; 9] = [
            b"",
            b"a",
            b"ab",
            b"abc",
            b"abcd",
            b"abcdefg",
            b"abcdefgh",
            b"abcdefgi",
            b"b",
        ];
        for a in keys {
            for b in keys {
                if head(a) != head(b) {
                    assert_eq!(head(a).cmp(&head(b)), a.cmp(b));
                }
            }
            let mut padded = a.to_vec();
            padded.extend([0xff; 8]);
            // SAFETY: (1): eight bytes follow the key.
            assert_eq!(unsafe { load_head(padded.as_ptr(), a.len()) }, head(a));
        }
    }

    #[test]
    fn equal_and_copy_agree_with_slices() {
        let a: Vec<u8> = (0..80).collect();
        for len in 0..80 {
            let mut b = vec![0; len];
            // SAFETY: (1): both have `len` bytes.
            unsafe { copy(a.as_ptr(), b.as_mut_ptr(), len) };
            assert_eq!(a[..len], b[..]);
            for i in 0..len {
                b[i] ^= 1;
                // SAFETY: (1): both have `len` bytes.
                assert!(!unsafe { equal(a.as_ptr(), b.as_ptr(), len) });
                b[i] ^= 1;
            }
            // SAFETY: (1): both have `len` bytes.
            assert!(unsafe { equal(a.as_ptr(), b.as_ptr(), len) });
            assert_eq!(common_prefix(&a, &a[..len]), len);
        }
    }

    #[test]
    fn padded_forms_agree() {
        let a: Vec<u8> = (0..200u32).map(|i| (i * i) as u8).collect();
        let mut seen = [false; 256];
        for len in 0..150 {
            let mut b = vec![0; len + PADDING_BYTES];
            // SAFETY: (1): both have `len + PADDING_BYTES` bytes.
            unsafe {
                assert_eq!(fingerprint_padded(a.as_ptr(), len), fingerprint(&a[..len]));
                copy_padded(a.as_ptr(), b.as_mut_ptr(), len);
            }
            assert_eq!(a[..len], b[..len]);
            seen[usize::from(fingerprint(&a[..len]))] = true;
        }
        assert!(
            seen.iter().filter(|seen| **seen).count() > 90,
            "fingerprints spread"
        );
    }

    #[test]
    fn fingerprints_spread_over_counters() {
        let mut counts = [0u32; 256];
        for i in 0..25_600u32 {
            counts[usize::from(fingerprint(&i.to_be_bytes()[1..]))] += 1;
        }
        assert!(
            counts.iter().all(|count| (30..300).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn separators_separate() {
        let keys: [&[u8]; 6] = [b"", b"a", b"a\0", b"a\0\0", b"ab", b"b"];
        let mut out = Vec::new();
        for pair in keys.windows(2) {
            shortest_separator(pair[0], pair[1], &mut out);
            assert!(pair[0] < &out[..] && &out[..] <= pair[1]);
        }
    }
}
