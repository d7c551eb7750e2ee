//! `Sequence`: the keys of a buffer that came in ascending order, which do without a place in the directory.
//!
//! New keys of a log or a queue ascend. In the directory each of them costs a cache miss, for a slot that is in no cache, and makes the table larger
//! and slower for all other keys. Once a long run of them was seen, those that follow are left out. A lookup that the directory cannot answer goes to the
//! radix tree if the key may be one of them: it has the length and the leading bytes of the first that was left out, and its last eight bytes, as a number,
//! lie between those of the first and the last one.
//!
//! # Thread safety
//! One writer appends; any number of readers ask, without locks.
//!
//! # Invariants
//! 1. `first` is set once, after its entry is complete and the last number is stored. The last number only grows.
//! 2. An entry that is left out lies between both, and is in the tree, before any of its versions is committed.
//!
//! # Failure modes
//! None. A lookup of a key between both costs a walk through the tree: a node or two that no cache has, as the keys are dense.

use super::arena::Memory;
use super::entry::{Entry, EntryRef};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// See the module text. The last number is kept with what the writer stores all the time: few readers come to ask for it.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The first entry that was left out, 0 before there is one.
    first: AtomicU32,
}

/// The last eight bytes of a key as a number, all bytes of a shorter one; and what is before them.
#[inline(always)]
pub(super) fn split(key: &[u8]) -> (&[u8], u64) {
    match key.split_last_chunk() {
        Some((rest, number)) => (rest, u64::from_be_bytes(*number)),
        None => {
            let number = |number, &byte| number << 8 | u64::from(byte);
            (&[], key.iter().fold(0, number))
        }
    }
}

impl Sequence {
    pub fn new() -> Sequence {
        Sequence {
            first: AtomicU32::new(0),
        }
    }

    /// Whether no entry was left out.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.load(Ordering::Acquire) == 0
    }

    /// Whether a key may be one that was left out.
    pub fn may_have(&self, memory: Memory<'_>, last: &AtomicU64, key: &[u8]) -> bool {
        let first = self.first.load(Ordering::Acquire);
        if first == 0 {
            return false;
        }
        let first = Entry::of(memory, EntryRef(first)).key();
        if first.len() != key.len() {
            return false;
        }
        let ((rest, number), (first_rest, first_number)) = (split(key), split(first));
        // The numbers first: long keys may have all of the rest in common.
        number >= first_number && number <= last.load(Ordering::Acquire) && rest == first_rest
    }

    /// Whether a key is behind all that were left out before.
    #[inline(always)]
    pub fn takes(&self, memory: Memory<'_>, last: &AtomicU64, key: &[u8]) -> bool {
        let first = self.first.load(Ordering::Relaxed);
        if first == 0 {
            return true;
        }
        let first = Entry::of(memory, EntryRef(first)).key();
        let (rest, number) = split(key);
        first.len() == key.len() && number > last.load(Ordering::Relaxed) && split(first).0 == rest
    }

    /// Leaves an entry, which is in the tree and which the sequence takes, out of the directory.
    #[inline(always)]
    pub fn append(&self, memory: Memory<'_>, last: &AtomicU64, entry: EntryRef) {
        last.store(split(Entry::of(memory, entry).key()).1, Ordering::Release);
        if self.first.load(Ordering::Relaxed) == 0 {
            self.first.store(entry.0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn numbers_are_the_last_eight_bytes() {
        assert_eq!(split(b""), (&b""[..], 0));
        assert_eq!(split(&[1, 2]), (&b""[..], 0x0102));
        assert_eq!(split(&[7, 0, 0, 0, 0, 0, 0, 1, 0]), (&[7][..], 0x0100));
    }
}
