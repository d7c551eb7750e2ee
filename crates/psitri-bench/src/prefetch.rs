//! Asking the processor for memory that the harness will need soon, so that no engine waits for it.
#![allow(unsafe_code)] // one intrinsic

/// Asks for the cache line in which a value begins. A hint: where there is no such instruction, nothing happens.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch has no effect but on caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
