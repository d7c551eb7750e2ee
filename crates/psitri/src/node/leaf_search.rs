//! Searches in a leaf: exact, by fingerprint (slotted), binary (fixed) or arithmetic (dense), and the first key not below another.
//!
//! Thread safety: pure functions of immutable bytes.
//!
//! Invariants: those of `leaf.rs`, named here by their numbers there.
// Unsafe: reads without bounds checks under the invariants of `leaf.rs`.
#![allow(unsafe_code)]

use super::bytes::{
    be_integer, compare_behind_heads, equal, fingerprint, head, load_head, partition, strip,
};
use super::leaf::{Leaf, LeafEncoding, SECTIONS_AT};
use super::reference::Stored;
use super::simd;
use std::cmp::Ordering;

/// A key to compare the keys of one leaf with: what these have in common was looked at.
#[derive(Clone, Copy)]
pub enum Sought<'k> {
    /// It begins like all of them.
    Among {
        suffix: &'k [u8],
        /// Of the suffix.
        head: u64,
    },
    /// How it is to all of them.
    Outside(Ordering),
}

/// How the first of some entries that is not less is looked for.
trait Way {
    fn partition(self, n: usize, less: impl FnMut(usize) -> bool) -> usize;
}

/// By halves.
struct Binary;

/// From an index on, all before which are less, in growing strides.
struct Galloping(usize);

impl Way for Binary {
    #[inline(always)]
    fn partition(self, n: usize, less: impl FnMut(usize) -> bool) -> usize {
        partition(n, less)
    }
}

impl Way for Galloping {
    #[inline(always)]
    fn partition(self, n: usize, mut less: impl FnMut(usize) -> bool) -> usize {
        let (mut from, mut stride) = (self.0.min(n), 1);
        while from + stride <= n && less(from + stride - 1) {
            from += stride;
            stride *= 2;
        }
        let rest = (stride - 1).min(n - from);
        from + partition(rest, |i| less(from + i))
    }
}

impl<'a> Leaf<'a> {
    /// Index of the entry with exactly this key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let suffix = strip(key, self.key_prefix()).ok()?;
        match self.encoding {
            LeafEncoding::Slotted => {
                let accept = |i: usize| {
                    // SAFETY: `simd::find` calls with i < count; (2).
                    unsafe {
                        let (start, suffix_bytes) = self.slot(i);
                        suffix_bytes == suffix.len()
                            && equal(self.at(start), suffix.as_ptr(), suffix_bytes)
                    }
                };
                // SAFETY: (1): the fingerprints start at a multiple of 16 in an image of a multiple of 64 bytes: simd (1).
                unsafe {
                    simd::find(
                        self.at(SECTIONS_AT),
                        self.len(),
                        fingerprint(suffix),
                        accept,
                    )
                }
            }
            LeafEncoding::Fixed => {
                if suffix.len() != self.suffix_bytes as usize {
                    return None;
                }
                let i = self.fixed_lower_bound(suffix, Binary);
                // SAFETY: i < count; both have `suffix.len()` bytes.
                (i < self.len()
                    && unsafe {
                        equal(self.fixed_suffix(i).as_ptr(), suffix.as_ptr(), suffix.len())
                    })
                .then_some(i)
            }
            LeafEncoding::Dense => {
                if suffix.len() != self.suffix_bytes as usize {
                    return None;
                }
                let i = be_integer(suffix).wrapping_sub(self.dense_first());
                (i < u64::from(self.count)).then_some(i as usize)
            }
        }
    }

    /// What is stored under exactly this key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Stored<'a>> {
        self.find(key).map(|i| self.value(i))
    }

    /// What entry `i` stores, if `key` is its key.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn get_at(&self, i: usize, key: &[u8]) -> Option<Stored<'a>> {
        self.assert_index(i);
        let suffix = strip(key, self.key_prefix()).ok()?;
        let has_key = match self.encoding {
            // SAFETY: i < count; what is compared has `suffix_bytes` bytes, as the suffix has.
            LeafEncoding::Slotted => unsafe {
                let (start, suffix_bytes) = self.slot(i);
                suffix_bytes == suffix.len() && equal(self.at(start), suffix.as_ptr(), suffix_bytes)
            },
            LeafEncoding::Fixed => {
                // SAFETY: i < count; as above.
                suffix.len() == self.suffix_bytes as usize
                    && unsafe {
                        equal(self.fixed_suffix(i).as_ptr(), suffix.as_ptr(), suffix.len())
                    }
            }
            LeafEncoding::Dense => {
                suffix.len() == self.suffix_bytes as usize
                    && be_integer(suffix).wrapping_sub(self.dense_first()) == i as u64
            }
        };
        // SAFETY: i < count.
        has_key.then(|| unsafe { self.value_unchecked(i) })
    }

    /// First index whose key is `key` or greater; `len()` if there is none.
    #[inline]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key, Binary)
    }

    /// [`Leaf::lower_bound`] where all keys before `from` are known to be less, and the place is expected near.
    #[inline]
    pub fn lower_bound_from(&self, from: usize, key: &[u8]) -> usize {
        self.search(key, Galloping(from))
    }

    #[inline(always)]
    fn search(&self, key: &[u8], way: impl Way) -> usize {
        let suffix = match strip(key, self.key_prefix()) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return 0,
            Err(_) => return self.len(),
        };
        match self.encoding {
            LeafEncoding::Slotted => {
                let wanted = head(suffix);
                way.partition(self.len(), |i| {
                    // SAFETY: `partition` calls with i < count; (1): TAIL_BYTES follow every suffix.
                    unsafe {
                        let (start, suffix_bytes) = self.slot(i);
                        let found = load_head(self.at(start), suffix_bytes);
                        if found != wanted {
                            found < wanted
                        } else {
                            self.slot_suffix(i) < suffix
                        }
                    }
                })
            }
            LeafEncoding::Fixed => self.fixed_lower_bound(suffix, way),
            LeafEncoding::Dense => self.dense_lower_bound(suffix),
        }
    }

    #[inline(always)]
    fn fixed_lower_bound(&self, suffix: &[u8], way: impl Way) -> usize {
        let width = self.suffix_bytes as usize;
        let wanted = head(suffix);
        // SAFETY: callers pass i < count; (1): TAIL_BYTES follow every suffix.
        let found = |i: usize| unsafe { load_head(self.at(SECTIONS_AT + i * width), width) };
        if width <= 8 {
            // A suffix with an equal head is less exactly if it is shorter: where the heads agree, one extends the other.
            let shorter = width < suffix.len();
            if !shorter {
                return way.partition(self.len(), |i| found(i) < wanted);
            }
            return way.partition(self.len(), |i| found(i) <= wanted);
        }
        way.partition(self.len(), |i| {
            let found = found(i);
            if found != wanted {
                return found < wanted;
            }
            // SAFETY: `partition` calls with i < count.
            unsafe { self.fixed_suffix(i) < suffix }
        })
    }

    fn dense_lower_bound(&self, suffix: &[u8]) -> usize {
        let width = self.suffix_bytes as usize;
        // Compare with the integer made of the first `width` bytes, zero-filled; a longer key lies after the one it extends.
        let cut = &suffix[..suffix.len().min(width)];
        let wanted = if width == 0 {
            0
        } else {
            head(cut) >> (64 - 8 * width)
        };
        let below = wanted
            .saturating_sub(self.dense_first())
            .min(u64::from(self.count)) as usize;
        let extends = suffix.len() > width && wanted >= self.dense_first() && below < self.len();
        below + usize::from(extends)
    }

    /// Compares the key of entry `i` with `key`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    pub fn cmp_key(&self, i: usize, key: &[u8]) -> Ordering {
        self.cmp_sought(i, self.sought(key))
    }

    /// A key to compare keys of this leaf with.
    #[inline(always)]
    pub(crate) fn sought<'k>(&self, key: &'k [u8]) -> Sought<'k> {
        match strip(key, self.key_prefix()) {
            Ok(suffix) => Sought::Among {
                suffix,
                head: head(suffix),
            },
            Err(side) => Sought::Outside(side),
        }
    }

    /// Compares the key of entry `i` with one that was made for this leaf.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline(always)]
    pub(crate) fn cmp_sought(&self, i: usize, sought: Sought<'_>) -> Ordering {
        self.assert_index(i);
        match sought {
            Sought::Among { suffix, head } => match self.suffix_head(i).cmp(&head) {
                Ordering::Equal => self.cmp_behind_head(i, suffix),
                order => order,
            },
            Sought::Outside(side) => side.reverse(),
        }
    }

    /// What follows the leaf's prefix in a key that begins with it.
    ///
    /// # Panics
    /// If the key is shorter than the prefix.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn suffix_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        &key[self.prefix_bytes as usize..]
    }

    /// Head of the suffix of entry `i`.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline(always)]
    pub(crate) fn suffix_head(&self, i: usize) -> u64 {
        self.assert_index(i);
        let (start, bytes) = match self.encoding {
            // SAFETY: i < count.
            LeafEncoding::Slotted => unsafe { self.slot(i) },
            LeafEncoding::Fixed => {
                let width = self.suffix_bytes as usize;
                (SECTIONS_AT + i * width, width)
            }
            LeafEncoding::Dense => {
                let (bytes, start) = self.dense_suffix(i);
                return head(&bytes[start..]);
            }
        };
        // SAFETY: (1): i < count, and TAIL_BYTES follow every suffix.
        unsafe { load_head(self.at(start), bytes) }
    }

    /// Heads of the suffixes of entry `from` and those that follow it, or precede it: as many as there is room for.
    ///
    /// # Panics
    /// If the leaf has not so many.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn load_heads(&self, from: usize, forward: bool, heads: &mut [u64]) {
        let Some(steps) = heads.len().checked_sub(1) else {
            return;
        };
        self.assert_index(from);
        self.assert_index(if forward { from + steps } else { from - steps });
        let index = |step: usize| if forward { from + step } else { from - step };
        let heads = heads.iter_mut().enumerate();
        match self.encoding {
            LeafEncoding::Slotted => heads.for_each(|(step, head)| {
                // SAFETY: (1): the index is between two that were looked at, and TAIL_BYTES follow every suffix.
                *head = unsafe {
                    let (start, bytes) = self.slot(index(step));
                    load_head(self.at(start), bytes)
                };
            }),
            LeafEncoding::Fixed => heads.for_each(|(step, head)| {
                let width = self.suffix_bytes as usize;
                // SAFETY: as above.
                *head = unsafe { load_head(self.at(SECTIONS_AT + index(step) * width), width) };
            }),
            LeafEncoding::Dense => heads.for_each(|(step, head)| {
                let (bytes, start) = self.dense_suffix(index(step));
                *head = super::bytes::head(&bytes[start..]);
            }),
        }
    }

    /// Compares the suffix of entry `i` with another one that has the same head.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline(always)]
    pub(crate) fn cmp_behind_head(&self, i: usize, suffix: &[u8]) -> Ordering {
        self.assert_index(i);
        let own = match self.encoding {
            // SAFETY: i < count.
            LeafEncoding::Slotted => unsafe { self.slot_suffix(i) },
            // SAFETY: as above.
            LeafEncoding::Fixed => unsafe { self.fixed_suffix(i) },
            LeafEncoding::Dense => {
                let (bytes, start) = self.dense_suffix(i);
                return compare_behind_heads(&bytes[start..], suffix);
            }
        };
        compare_behind_heads(own, suffix)
    }
}
