//! Searches in a leaf: exact, by fingerprint (slotted), binary (fixed) or arithmetic (dense); the first key not below another; and several side by side.
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
#[cfg(not(loom))]
use crate::prefetch::{self, LINE_BYTES};
use std::cmp::Ordering;

/// Suffixes that take no more are asked for at once.
#[cfg(not(loom))]
const STEPWISE_FROM_BYTES: usize = 4 * LINE_BYTES;

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

/// A search in a leaf whose suffixes have one length, made step by step: those of several leaves take turns, and what each looks at next is asked for
/// meanwhile. It finds nothing out; the lookup behind it then waits for nothing.
#[cfg(not(loom))]
pub(crate) struct Stepwise<'a> {
    leaf: Leaf<'a>,
    wanted: u64,
    /// The place is at one of `len` entries from here on.
    base: u32,
    len: u32,
}

#[cfg(not(loom))]
impl<'a> Stepwise<'a> {
    /// `None` if there is nothing to gain.
    #[inline]
    pub fn begin(leaf: Leaf<'a>, key: &[u8]) -> Option<Stepwise<'a>> {
        let (prefix, width) = (leaf.prefix_bytes as usize, leaf.suffix_bytes as usize);
        let is_long = leaf.len() > 1 && leaf.len() * width > STEPWISE_FROM_BYTES;
        if leaf.encoding != LeafEncoding::Fixed || !is_long || key.len() != prefix + width {
            return None;
        }
        let search = Stepwise {
            leaf,
            wanted: head(&key[prefix..]),
            base: 0,
            len: leaf.count,
        };
        search.ask(search.middle());
        Some(search)
    }

    /// Goes on with half of the entries. When the rest lies in a line or two, these are asked for, with the value that is expected, and it says false.
    #[inline]
    pub fn step(&mut self) -> bool {
        let (width, half) = (self.leaf.suffix_bytes as usize, self.len / 2);
        // SAFETY: (1): the middle is one of the entries, of which there are two at least, and TAIL_BYTES follow every suffix.
        let found =
            unsafe { load_head(self.leaf.at(fixed_at(self.middle() as usize, width)), width) };
        let is_behind = found < self.wanted;
        self.base = std::hint::select_unpredictable(is_behind, self.base + half, self.base);
        self.len -= half;
        if self.len > 1 && self.len as usize * width > LINE_BYTES {
            self.ask(self.middle());
            return true;
        }
        let last = (self.base + self.len).min(self.leaf.count - 1);
        self.ask(self.base);
        self.ask(last);
        let value = if self.leaf.uniform() {
            self.leaf.data_at as usize + self.base as usize * self.leaf.value_bytes as usize
        } else {
            self.leaf.offsets_at as usize + 2 * self.base as usize
        };
        self.ask_at(value);
        self.ask_at(self.leaf.prefix_at as usize);
        false
    }

    /// The entry that is looked at next.
    #[inline(always)]
    fn middle(&self) -> u32 {
        self.base + self.len / 2 - 1
    }

    #[inline(always)]
    fn ask(&self, entry: u32) {
        self.ask_at(fixed_at(entry as usize, self.leaf.suffix_bytes as usize));
    }

    #[inline(always)]
    fn ask_at(&self, at: usize) {
        prefetch::line(self.leaf.base.wrapping_add(at));
    }
}

/// Where the suffix of entry `i` of a fixed leaf begins.
#[inline(always)]
fn fixed_at(i: usize, width: usize) -> usize {
    SECTIONS_AT + i * width
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
        let found = |i: usize| unsafe { load_head(self.at(fixed_at(i, width)), width) };
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
                (fixed_at(i, width), width)
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
                *head = unsafe { load_head(self.at(fixed_at(index(step), width)), width) };
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::node::LeafPacker;

    /// Leaves of keys of each length, one entry to many: where a search ends is the place of the key, if it begins as the others do.
    #[test]
    fn step_by_step_comes_to_the_same_place() {
        let mut searches = 0;
        for width in [1, 2, 3, 5, 8, 9, 12, 40, 300] {
            for count in [1_usize, 2, 3, 7, 31, 32, 33, 64, 150, 256] {
                let key = |number: usize| {
                    let place = (number * 65_536 / count) as u16;
                    let mut suffix = vec![7; width];
                    let first = width.min(2);
                    suffix[..first].copy_from_slice(&place.to_be_bytes()[..first]);
                    [b"all begin so ", &suffix[..]].concat()
                };
                let mut packer = LeafPacker::new();
                let mut keys: Vec<_> = (0..count).map(key).collect();
                keys.dedup();
                keys.iter()
                    .for_each(|key| packer.push(key, Stored::Inline(b"12345678")));
                while let Some(image) = packer.pop_last(false) {
                    let leaf = Leaf::open(image.bytes).unwrap();
                    let others = [
                        &b"shorter"[..],
                        b"all begin so ",
                        b"another beginning, and long enough",
                    ];
                    for key in keys.iter().map(|key| &key[..]).chain(others) {
                        let Some(mut search) = Stepwise::begin(leaf, key) else {
                            continue;
                        };
                        searches += 1;
                        let mut steps = 1;
                        while search.step() {
                            steps += 1;
                        }
                        assert!(steps <= 9, "{steps} steps among {count}");
                        let rest = search.base as usize..=(search.base + search.len) as usize;
                        if key.starts_with(leaf.key_prefix()) {
                            assert!(rest.contains(&leaf.lower_bound(key)), "{key:?} in {rest:?}");
                        }
                    }
                }
            }
        }
        assert!(searches > 1_000, "{searches}");
    }
}
