//! Asking the processor for memory that will be needed soon.
#![allow(unsafe_code)] // one intrinsic

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
const AHEAD_LINES_MAX: usize = 4;

/// Asks for the cache line of an address, whatever is there. A hint: where there is no such instruction, nothing happens.
#[inline(always)]
pub(crate) fn line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch has no effect but on caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the lines behind that of `end`, where as many bytes were just written, for as many again: stores to lines that no cache has
/// keep the next locked instruction waiting.
#[inline(always)]
pub(crate) fn ahead(end: *const u8, bytes: usize) {
    for number in 1..=(bytes / LINE_BYTES + 1).min(AHEAD_LINES_MAX) {
        line(end.wrapping_add(number * LINE_BYTES));
    }
}
