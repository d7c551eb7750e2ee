//! Counting keys without visiting them: the tree's counts, corrected by what the buffers say.
//!
//! The tree answers in O(log n). Every buffered key of the range is looked at once, as only a look at the tree tells whether
//! it adds a key, replaces one or removes one; ranges deleted in a buffer are subtracted as a whole.
//!
//! Where entries expire, the tree's counts are too high by those that have: there the keys are visited.

use std::{cmp::Ordering, ops::Bound};

use crate::{
    Cursor, Result,
    buffer::{BufferCursor, Found, KeyspaceBuffer},
    changes::union_push,
    layers::View,
    tree::{self, KeyRange},
};

/// Number of keys from `lo` up to, but not including, `hi`.
pub(crate) fn count<'a>(view: View<'a>, lo: &[u8], hi: Option<&'a [u8]>) -> Result<u64> {
    if hi.is_some_and(|hi| hi <= lo) {
        return Ok(0);
    }
    if view.now != 0 {
        return walk(view, lo, hi, u64::MAX).map(|(passed, _)| passed);
    }
    let ranges = deleted_ranges(view, lo, hi);
    let mut total = live_in_tree(view, &ranges, lo, hi)?;
    let mut buffered = Buffered::new(view, lo, hi);
    while let Some((key, present)) = buffered.next() {
        let in_tree = is_live_in_tree(view, &ranges, key)?;
        // The keys that forged nodes count may be fewer than they have.
        total = total
            .saturating_add(u64::from(present && !in_tree))
            .saturating_sub(u64::from(!present && in_tree));
    }
    Ok(total)
}

/// The key that `rank` keys are less than.
pub(crate) fn nth(view: View<'_>, rank: u64) -> Result<Option<Vec<u8>>> {
    if view.now != 0 {
        return walk(view, &[], None, rank).map(|(_, found)| found);
    }
    let ranges = deleted_ranges(view, &[], None);
    let mut left = rank;
    let mut from = Vec::new();
    let mut buffered = Buffered::new(view, &[], None);
    while let Some((key, present)) = buffered.next() {
        // Tree keys between two buffered ones, then the buffered one itself.
        let between = live_in_tree(view, &ranges, &from, Some(key))?;
        if left < between {
            return nth_live_in_tree(view, &ranges, &from, left);
        }
        left -= between;
        if present {
            if left == 0 {
                return Ok(Some(key.to_vec()));
            }
            left -= 1;
        }
        from.clear();
        from.extend_from_slice(key);
        from.push(0);
    }
    nth_live_in_tree(view, &ranges, &from, left)
}

/// Visits keys from `lo` on until `rank` were passed. How many were, and the key behind them.
fn walk(view: View<'_>, lo: &[u8], hi: Option<&[u8]>, rank: u64) -> Result<(u64, Option<Vec<u8>>)> {
    let hi = hi.map_or(Bound::Unbounded, Bound::Excluded);
    let mut cursor = Cursor::over(view).with_range((Bound::Included(lo), hi));
    let mut passed = 0;
    let mut found = cursor.seek_first()?;
    while found {
        if passed == rank {
            return Ok((passed, Some(cursor.key().to_vec())));
        }
        passed += 1;
        found = cursor.next()?;
    }
    Ok((passed, None))
}

/// The ranges that the buffers delete, as disjoint ascending ones; of those that have nothing of `lo..hi` none.
fn deleted_ranges(view: View<'_>, lo: &[u8], hi: Option<&[u8]>) -> Vec<KeyRange> {
    let mut all = Vec::new();
    for buffer in view.buffers() {
        if buffer.has_range_tombstones() {
            all.extend(buffer.range_tombstones_in(lo, hi, view.csn));
        }
    }
    all.sort_by(|a, b| a.lo().cmp(b.lo()));
    let mut union = Vec::new();
    for range in &all {
        union_push(&mut union, range.lo(), range.hi());
    }
    union
}

fn in_tree(view: View<'_>, lo: &[u8], hi: Option<&[u8]>) -> Result<u64> {
    let end = hi.map_or(Ok(view.root.keys), |hi| {
        tree::rank(view.pager, view.root, hi)
    })?;
    Ok(end.saturating_sub(tree::rank(view.pager, view.root, lo)?))
}

/// The parts of `[lo, hi)` that no range deletes.
fn gaps<'r>(
    ranges: &'r [KeyRange],
    lo: &'r [u8],
    hi: Option<&'r [u8]>,
) -> Vec<(&'r [u8], Option<&'r [u8]>)> {
    let mut parts = Vec::new();
    let mut from = lo;
    let ended = ranges.partition_point(|range| range.hi.as_deref().is_some_and(|end| end <= lo));
    for range in &ranges[ended..] {
        if hi.is_some_and(|hi| range.lo.as_slice() >= hi) {
            break;
        }
        if range.lo.as_slice() > from {
            parts.push((from, Some(range.lo.as_slice())));
        }
        match range.hi.as_deref() {
            None => return parts,
            Some(end) => from = from.max(end),
        }
    }
    if hi.is_none_or(|hi| from < hi) {
        parts.push((from, hi));
    }
    parts
}

fn live_in_tree(view: View<'_>, ranges: &[KeyRange], lo: &[u8], hi: Option<&[u8]>) -> Result<u64> {
    if ranges.is_empty() {
        return in_tree(view, lo, hi);
    }
    gaps(ranges, lo, hi)
        .into_iter()
        .map(|(lo, hi)| in_tree(view, lo, hi))
        .try_fold(0u64, |sum, keys| Ok(sum.saturating_add(keys?)))
}

fn is_live_in_tree(view: View<'_>, ranges: &[KeyRange], key: &[u8]) -> Result<bool> {
    let after = ranges.partition_point(|range| range.lo.as_slice() <= key);
    let covered = after > 0 && ranges[after - 1].hi.as_deref().is_none_or(|hi| key < hi);
    Ok(!covered && tree::get(view.pager, view.root, key)?.is_some())
}

fn nth_live_in_tree(
    view: View<'_>,
    ranges: &[KeyRange],
    lo: &[u8],
    rank: u64,
) -> Result<Option<Vec<u8>>> {
    let mut left = rank;
    for (lo, hi) in gaps(ranges, lo, None) {
        let keys = in_tree(view, lo, hi)?;
        if left < keys {
            let mut key = Vec::new();
            let first = tree::rank(view.pager, view.root, lo)?;
            let found = tree::nth(view.pager, view.root, first.saturating_add(left), &mut key)?;
            return Ok(found.then_some(key));
        }
        left -= keys;
    }
    Ok(None)
}

/// The buffered keys of a view in order, each with whether the buffers say that it is there.
struct Buffered<'a> {
    /// Newest first; without those that have nothing, of which not even a cursor is made.
    layers: Vec<(BufferCursor<'a>, &'a KeyspaceBuffer)>,
    /// Where they end. What nobody sees, or is deleted, is passed without being given: behind this it would be passed in vain.
    hi: Option<&'a [u8]>,
    csn: u64,
}

impl<'a> Buffered<'a> {
    fn new(view: View<'a>, lo: &[u8], hi: Option<&'a [u8]>) -> Buffered<'a> {
        let layers = view
            .buffers()
            .filter(|buffer| !buffer.is_empty())
            .map(|buffer| {
                let mut cursor = buffer.cursor();
                cursor.seek_ge(lo);
                (cursor, &**buffer)
            })
            .collect();
        Buffered {
            layers,
            hi,
            csn: view.csn,
        }
    }

    fn next(&mut self) -> Option<(&'a [u8], bool)> {
        loop {
            let key = self
                .layers
                .iter()
                .filter(|(layer, _)| layer.is_valid())
                .map(|(layer, _)| layer.key())
                .min()?;
            if self.hi.is_some_and(|hi| key >= hi) {
                return None;
            }
            let mut decided = None;
            let mut covered = false;
            for (layer, buffer) in &mut self.layers {
                if layer.is_valid() && layer.key().cmp(key) == Ordering::Equal {
                    if decided.is_none() && !covered {
                        decided = match layer.resolve(self.csn) {
                            Found::Absent => None,
                            Found::Deleted => Some(false),
                            Found::Value(_) | Found::Large(_) => Some(true),
                        };
                    }
                    layer.next();
                }
                covered |= buffer.has_range_tombstones() && buffer.cover(key, self.csn) > 0;
            }
            // A key whose versions are all hidden by a deleted range says nothing: the ranges are counted on their own.
            if let Some(present) = decided {
                return Some((key, present));
            }
        }
    }
}
