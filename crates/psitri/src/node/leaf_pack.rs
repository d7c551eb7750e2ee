//! Packing entries that arrive in key order into leaves.
//!
//! Up to two leaves' worth is held back: the first is handed out as full only when the second is full too, so that at the end
//! the last two can be balanced when the last would be less than half full.
//!
//! Thread safety: a packer belongs to one thread at a time.
//!
//! Invariants:
//! (1) `closed` runs, then `current`, cover `entries[head..]` without gaps, in order.
//! (2) Every run of more than one entry fits [`NODE_BYTES_SOFT_MAX`].
//! (3) `arena[..filled]` starts with the first entry of `entries` and holds nothing but entries, in order. All of `arena` is
//!     initialised, and at least `PADDING_BYTES` follow `filled`.
//!
//! Failure modes: keys out of order are a defect of the caller, caught by assertions in debug builds and by
//! [`super::validate_deep`] afterwards.
// Unsafe: copies keys and values into reserved memory.
#![allow(unsafe_code)]

use super::bytes::{PADDING_BYTES, copy, copy_padded};
use super::leaf::Leaf;
use super::leaf_encode::{Entry, Run};
use super::reference::{Stored, ValuePointer};
use super::{KEY_BYTES_MAX, NODE_BYTES_SOFT_MAX, VALUE_INLINE_BYTES_MAX};
use std::collections::VecDeque;
use std::ops::Range;

/// Forget handed-out entries when they are this many: often enough to stay in the cache, seldom enough to cost nothing.
const FORGET_ENTRIES: usize = 512;
const FORGET_BYTES: usize = 128 << 10;

const _: () = assert!(VALUE_INLINE_BYTES_MAX <= u16::MAX as usize);

/// Builds leaf images from entries pushed in ascending key order. Reuses its buffers; see [`super::Leaf`] for an example.
#[derive(Debug, Default)]
pub struct LeafPacker {
    arena: Vec<u8>,
    filled: usize,
    entries: Vec<Entry>,
    head: usize,
    closed: VecDeque<Run>,
    current: Run,
    image: Vec<u8>,
}

/// A packed leaf: seal `bytes` in place once its address is known, then write it.
#[derive(Debug)]
pub struct LeafImage<'p> {
    /// The image, a multiple of 64 bytes, without birth and checksum.
    pub bytes: &'p mut [u8],
    /// Number of entries.
    pub count: u32,
    /// Key of the first entry.
    pub first_key: &'p [u8],
    /// Key of the last entry.
    pub last_key: &'p [u8],
}

impl LeafPacker {
    /// An empty packer.
    pub fn new() -> LeafPacker {
        LeafPacker::default()
    }

    /// Adds an entry behind all others.
    ///
    /// # Panics
    /// If the key is longer than [`KEY_BYTES_MAX`] or an inline value longer than [`VALUE_INLINE_BYTES_MAX`]; in debug builds, if
    /// the key is not greater than the one before.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: Stored<'_>) {
        assert!(
            key.len() <= KEY_BYTES_MAX,
            "keys were checked on the way in"
        );
        let pointer;
        let (bytes, external) = match value {
            Stored::Inline(bytes) => {
                assert!(
                    bytes.len() <= VALUE_INLINE_BYTES_MAX,
                    "longer values are stored externally"
                );
                (bytes, false)
            }
            Stored::External(value_pointer) => {
                pointer = value_pointer.encode();
                (&pointer[..], true)
            }
        };
        self.make_room(key.len() + bytes.len());
        let at = self.filled;
        // SAFETY: (3) after `make_room`: there is room for both at `at`.
        unsafe {
            let to = self.arena.as_mut_ptr().add(at);
            copy(key.as_ptr(), to, key.len());
            copy(bytes.as_ptr(), to.add(key.len()), bytes.len());
        }
        self.append(Entry {
            at,
            key_bytes: key.len() as u32,
            value_bytes: bytes.len() as u16,
            external,
        });
    }

    /// Adds the entries `range` of a leaf (cut to what it has), as if each were pushed, but without taking them apart: the way
    /// of a merge to carry over what did not change. May make several leaves full: call [`LeafPacker::pop_full`] afterwards.
    pub fn push_range(&mut self, leaf: &Leaf<'_>, range: Range<usize>) {
        let prefix = leaf.key_prefix();
        let image_bytes = leaf.image_bytes();
        for i in range.start..range.end.min(leaf.len()) {
            // SAFETY: i < count.
            let raw = unsafe { leaf.raw_entry(i) };
            let (suffix_bytes, value_bytes) = (raw.suffix_bytes, raw.value_bytes);
            debug_assert!(
                value_bytes <= u16::MAX as usize,
                "lengths and offsets of values have 16 bits"
            );
            let key_bytes = prefix.len() + suffix_bytes;
            self.make_room(key_bytes + value_bytes);
            let at = self.filled;
            // SAFETY: (3) after `make_room` for the target. The sources lie in the image; padded copies are taken only where the
            // image goes on for long enough.
            unsafe {
                let to = self.arena.as_mut_ptr().add(at);
                if prefix.len() + PADDING_BYTES <= image_bytes - leaf.prefix_at as usize {
                    copy_padded(leaf.base.add(leaf.prefix_at as usize), to, prefix.len());
                } else {
                    copy(prefix.as_ptr(), to, prefix.len());
                }
                let to = to.add(prefix.len());
                let carry = |at: usize, to: *mut u8, bytes: usize| {
                    if at + bytes + PADDING_BYTES <= image_bytes {
                        copy_padded(leaf.base.add(at), to, bytes);
                    } else {
                        copy(leaf.base.add(at), to, bytes);
                    }
                };
                match raw.suffix_at {
                    // In a slotted leaf suffix and value are neighbours, as in the arena.
                    Some(suffix_at) if suffix_at + suffix_bytes == raw.value_at => {
                        carry(suffix_at, to, suffix_bytes + value_bytes);
                    }
                    Some(suffix_at) => {
                        carry(suffix_at, to, suffix_bytes);
                        carry(raw.value_at, to.add(suffix_bytes), value_bytes);
                    }
                    None => {
                        let (bytes, start) = leaf.dense_suffix(i);
                        copy(bytes.as_ptr().add(start), to, suffix_bytes);
                        carry(raw.value_at, to.add(suffix_bytes), value_bytes);
                    }
                }
            }
            let (key_bytes, value_bytes) = (key_bytes as u32, value_bytes as u16);
            self.append(Entry {
                at,
                key_bytes,
                value_bytes,
                external: raw.external,
            });
        }
    }

    /// Makes (3) hold for `needed` more bytes, with padding for copies.
    #[inline(always)]
    fn make_room(&mut self, needed: usize) {
        if self.head >= FORGET_ENTRIES || self.filled >= FORGET_BYTES {
            self.forget();
        }
        if self.arena.len() < self.filled + needed + 2 * PADDING_BYTES {
            self.grow(needed);
        }
    }

    #[cold]
    fn grow(&mut self, needed: usize) {
        let bytes = (self.filled + needed + 2 * PADDING_BYTES)
            .next_power_of_two()
            .max(16 << 10);
        self.arena.resize(bytes, 0);
    }

    /// Takes over the entry that was written to `arena[filled..]`.
    #[inline(always)]
    fn append(&mut self, entry: Entry) {
        debug_assert!(entry.at == self.filled, "(3)");
        self.filled += entry.key_bytes as usize + entry.value_bytes as usize;
        let index = self.entries.len();
        self.entries.push(entry);
        if self.current.count > 0 {
            debug_assert!(
                self.entries[index - 1].key(&self.arena) < entry.key(&self.arena),
                "keys ascend"
            );
            if self
                .current
                .extend(entry, &self.entries, &self.arena, NODE_BYTES_SOFT_MAX)
            {
                return;
            }
            self.closed.push_back(self.current);
        }
        self.current = Run::single(index, entry);
    }

    /// The next leaf that is certainly full, if there is one. Call it after each push, or after some.
    #[inline]
    pub fn pop_full(&mut self) -> Option<LeafImage<'_>> {
        if self.closed.len() < 2 {
            return None;
        }
        self.pop()
    }

    /// At the end of the input: the next of the remaining leaves. After `None` the packer is empty and may be used again.
    ///
    /// A last leaf that would be less than half full shares with the one before, but not if keys are being `appended`: then
    /// the leaf before stays full and the last one is filled by what comes next.
    pub fn pop_last(&mut self, appended: bool) -> Option<LeafImage<'_>> {
        if self.current.count > 0 && self.closed.len() < 2 {
            if appended {
                let current = std::mem::take(&mut self.current);
                self.closed.push_back(current);
            } else {
                self.finish_current();
            }
        }
        if self.closed.is_empty() {
            if self.current.count == 0 {
                self.clear();
                return None;
            }
            let current = std::mem::take(&mut self.current);
            self.closed.push_back(current);
        }
        self.pop()
    }

    /// All that is held as one leaf; `None` if it is nothing or takes more than one. The packer may be used again after [`LeafPacker::clear`].
    pub(super) fn pop_only(&mut self) -> Option<LeafImage<'_>> {
        if !self.closed.is_empty() || self.current.count == 0 {
            return None;
        }
        self.pop_last(true)
    }

    /// Bytes of the leaves that the held entries would make now.
    pub fn pending_bytes(&self) -> usize {
        let current = if self.current.count > 0 {
            self.image_bytes(&self.current)
        } else {
            0
        };
        self.closed
            .iter()
            .map(|run| self.image_bytes(run))
            .sum::<usize>()
            + current
    }

    fn image_bytes(&self, run: &Run) -> usize {
        run.plan(&self.entries, &self.arena).image_bytes()
    }

    /// Key of the entry pushed last, while it is held.
    pub fn last_key(&self) -> Option<&[u8]> {
        let held = self.entries.get(self.head..)?;
        Some(held.last()?.key(&self.arena))
    }

    /// Entries held.
    pub fn pending_len(&self) -> usize {
        self.entries.len() - self.head
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.pending_len() == 0
    }

    /// Drops what is held; keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.entries.clear();
        self.head = 0;
        self.closed.clear();
        self.current = Run::default();
    }

    /// Closes the current run; balances it with the run before when it would be less than half full.
    fn finish_current(&mut self) {
        let current = std::mem::take(&mut self.current);
        if current.plan(&self.entries, &self.arena).bytes < NODE_BYTES_SOFT_MAX / 2
            && let Some(&before) = self.closed.back()
            && let Some((left, right)) = self.balance(before.start, current.end())
        {
            self.closed.pop_back();
            self.closed.push_back(left);
            self.closed.push_back(right);
            return;
        }
        self.closed.push_back(current);
    }

    /// Cuts the entries `start..end` into two leaves of about the same size, if both fit.
    fn balance(&self, start: usize, end: usize) -> Option<(Run, Run)> {
        let size = |entry: &Entry| entry.key_bytes as usize + entry.value_bytes as usize;
        let total: usize = self.entries[start..end].iter().map(size).sum();
        let mut taken = 0;
        let front = self.entries[start..end].iter().take_while(|entry| {
            taken += size(entry);
            2 * taken <= total
        });
        let middle = (start + front.count()).clamp(start + 1, end - 1);
        Some((self.run(start, middle)?, self.run(middle, end)?))
    }

    fn run(&self, start: usize, end: usize) -> Option<Run> {
        let mut run = Run::single(start, self.entries[start]);
        // A run that does not get to its end does not fit either.
        while run.end() < end
            && run.extend(
                self.entries[run.end()],
                &self.entries,
                &self.arena,
                NODE_BYTES_SOFT_MAX,
            )
        {}
        (run.end() == end).then_some(run)
    }

    fn pop(&mut self) -> Option<LeafImage<'_>> {
        let run = self.closed.pop_front()?;
        let image_bytes = run.encode(&self.entries, &self.arena, &mut self.image);
        self.head = run.end();
        Some(LeafImage {
            bytes: &mut self.image[..image_bytes],
            count: run.count as u32,
            first_key: self.entries[run.start].key(&self.arena),
            last_key: self.entries[run.end() - 1].key(&self.arena),
        })
    }

    /// Forgets the entries that were handed out; keeps (1) and (3).
    #[cold]
    fn forget(&mut self) {
        if self.head == 0 {
            return;
        }
        let head = std::mem::take(&mut self.head);
        let bytes = self.entries.get(head).map_or(self.filled, |entry| entry.at);
        self.arena.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        self.entries.drain(..head);
        for entry in &mut self.entries {
            entry.at -= bytes;
        }
        for run in self
            .closed
            .iter_mut()
            .chain(Some(&mut self.current))
            .filter(|run| run.count > 0)
        {
            run.start -= head;
        }
    }
}

const _: () = assert!(ValuePointer::ENCODED_BYTES <= VALUE_INLINE_BYTES_MAX);
