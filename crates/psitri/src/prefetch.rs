//! Asking the processor for memory that will be needed soon.
#![allow(unsafe_code)] // one intrinsic

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
const AHEAD_LINES_MAX: usize = 4;
/// So many lines are asked for at once where more follow: a processor has room for a dozen misses, and waits with more.
#[cfg(not(loom))]
const PART_LINES: usize = 8;

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

/// Lines that follow one another, to be asked for part by part while something else is read.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Lines {
    /// An address, of which nothing is read.
    next: usize,
    left: usize,
}

#[cfg(not(loom))]
impl Lines {
    pub const NONE: Lines = Lines { next: 0, left: 0 };

    /// So many lines from that of an address on.
    #[inline(always)]
    pub fn new(first: *const u8, lines: usize) -> Lines {
        Lines {
            next: first.addr(),
            left: lines,
        }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.left
    }

    /// How many parts are left, at least one.
    #[inline(always)]
    pub fn parts(&self) -> usize {
        self.left.div_ceil(PART_LINES).max(1)
    }

    /// Asks for the next part.
    #[inline(always)]
    pub fn ask_for_part(&mut self) {
        self.ask_for(PART_LINES);
    }

    /// Asks for so many of the next lines, if there are as many.
    #[inline(always)]
    pub fn ask_for(&mut self, lines: usize) {
        let lines = self.left.min(lines);
        for number in 0..lines {
            let address = self.next.wrapping_add(number * LINE_BYTES);
            line(std::ptr::without_provenance(address));
        }
        self.next = self.next.wrapping_add(lines * LINE_BYTES);
        self.left -= lines;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_asked_for_in_as_many_parts_as_there_are() {
        for count in 0..=3 * PART_LINES {
            let mut lines = Lines::new(std::ptr::without_provenance(1 << 20), count);
            let parts = lines.parts();
            assert!(parts >= 1);
            for _ in 0..parts {
                lines.ask_for_part();
            }
            assert!(lines.is_empty());
            assert_eq!(lines.next, (1 << 20) + count * LINE_BYTES);
        }
    }

    #[test]
    fn no_more_lines_are_asked_for_than_there_are() {
        let mut lines = Lines::new(std::ptr::without_provenance(1 << 20), 5);
        lines.ask_for(3);
        assert_eq!(lines.len(), 2);
        lines.ask_for(usize::MAX);
        assert!(lines.is_empty());
        assert_eq!(lines.next, (1 << 20) + 5 * LINE_BYTES);
    }
}
