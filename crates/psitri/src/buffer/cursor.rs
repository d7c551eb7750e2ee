//! `BufferCursor`: ordered positions over the entries of a buffer.
//!
//! A [`Walk`] finds the entries in their order. In long ranges it is 32 to 64 entries ahead of the present one, so that they have arrived by the
//! time they are reached.
//!
//! # Thread safety
//! Any number of cursors on any threads beside the one writer.
//!
//! # Invariants
//! 1. `ahead.entries[ahead.next..ahead.count]` are the entries between the present one and that of the walk, the latter included, in the direction
//!    `ahead.forward`; all that are left in it if the walk is nowhere. If the walk is at the present entry, there are none.
//! 2. A cursor for a snapshot was made after the snapshot. All that the snapshot may see was linked before, so nodes that
//!    have been replaced since (invariant 4 of `node.rs`) still lead to all of it.
//! 3. A cursor of the writer's own transaction borrows the writer, which puts all entries into the tree before: nothing is inserted while it lives.
//! 4. The walk goes on at `ahead.low`: half way through what is ahead in a long range, else at its end.
//!
//! # Failure modes
//! None but memory for the path.

#[cfg(not(loom))]
mod coming;

use super::arena::LINE_BYTES;
use super::entry::{Entry, EntryRef, Found};
use super::keyspace::KeyspaceBuffer;
use super::node;
use super::walk::Walk;
use crate::sync::Ordering;

#[cfg(not(loom))]
pub(crate) use coming::{Coming, Standing, Visits};

/// Most entries to walk ahead: enough to hide a miss each, few enough to stay in the first cache.
const AHEAD_MAX: usize = 64;
/// With room for fewer entries than these, they are walked one by one: not worth a look at all keys of a node. In tests any room will do.
const RUN_MIN: usize = if cfg!(any(loom, debug_assertions)) {
    1
} else {
    8
};

/// The newest version of an entry is asked for at most so many entries in front of its use: the entry itself has arrived by then.
const VERSION_AHEAD_MAX: usize = 16;

/// Ranges shorter than this are not counted as read.
const PASSED_FROM: usize = 32;

/// How many bytes of a version are asked for; what follows them is a stream that the processor notices.
const VERSION_BYTES_MAX: usize = 4 * LINE_BYTES;

/// Entries that the walk passed already.
#[derive(Debug, Clone)]
struct Ahead {
    entries: [u32; AHEAD_MAX],
    next: usize,
    count: usize,
    /// Where the walk goes on: in long ranges so far before the end that what it comes to has arrived by the time it is reached.
    low: usize,
    forward: bool,
    /// How many entries to walk the next time: a short range pays for no more than twice its length.
    want: usize,
    /// How far in front of its use the newest version of an entry is asked for.
    version_ahead: usize,
    /// Bytes of a version, going by the last entry before these.
    version_bytes: usize,
    /// Entries walked that the arena does not count yet.
    passed: usize,
}

/// An ordered position over the entries of one buffer. See the module text.
#[derive(Debug, Clone)]
pub struct BufferCursor<'b> {
    buffer: &'b KeyspaceBuffer,
    walk: Walk<'b>,
    /// Reference of the present entry, 0 if there is none.
    entry: u32,
    /// Its key.
    key: &'b [u8],
    ahead: Ahead,
    csn_max: u64,
}

impl<'b> BufferCursor<'b> {
    pub(super) fn new(buffer: &'b KeyspaceBuffer, csn_max: u64) -> BufferCursor<'b> {
        BufferCursor {
            buffer,
            walk: Walk::new(buffer),
            entry: 0,
            key: &[],
            ahead: Ahead {
                entries: [0; AHEAD_MAX],
                next: 0,
                count: 0,
                low: 0,
                forward: true,
                want: 1,
                version_ahead: 1,
                version_bytes: 1,
                passed: 0,
            },
            csn_max,
        }
    }

    /// Whether the cursor stands on an entry.
    #[inline(always)]
    pub fn is_valid(&self) -> bool {
        self.entry != 0
    }

    /// The present entry.
    pub fn entry(&self) -> Option<EntryRef> {
        self.present().map(Entry::reference)
    }

    /// Key of the present entry; empty if there is none.
    #[inline(always)]
    pub fn key(&self) -> &'b [u8] {
        self.key
    }

    /// Key of an entry that the cursor will come to in `forward`, some steps from here, and how many steps that are, at most `steps_max`: if there is
    /// one that has arrived in the caches.
    #[inline]
    pub fn key_ahead(&self, forward: bool, steps_max: usize) -> Option<(usize, &'b [u8])> {
        let ahead = &self.ahead;
        let steps = ahead.low.saturating_sub(ahead.next).min(steps_max);
        if steps == 0 || ahead.forward != forward {
            return None;
        }
        let entry = ahead.entries[ahead.next + steps - 1];
        Some((
            steps,
            Entry::new(self.walk.memory(), node::offset(entry)).key(),
        ))
    }

    /// What the present entry says at a commit sequence number, range deletions included. `Absent`: nothing at that number.
    #[inline(always)]
    pub fn resolve(&self, csn: u64) -> Found<'b> {
        let csn_max = csn.min(self.csn_max);
        match self.present() {
            // Whether a range deleted it as well makes no difference.
            Some(entry) if self.buffer.is_deleted_alone(entry, csn_max) => Found::Deleted,
            Some(entry) => self.buffer.resolve(entry, csn_max).0,
            None => Found::Absent,
        }
    }

    /// As [`BufferCursor::resolve`], in a buffer without deleted ranges up to that number.
    #[inline(always)]
    pub fn resolve_alone(&self, csn: u64) -> Found<'b> {
        let csn_max = csn.min(self.csn_max);
        debug_assert_eq!(self.buffer.cover(self.key, csn_max), 0);
        let present = self.present();
        present.map_or(Found::Absent, |entry| entry.resolve_alone(csn_max))
    }

    /// As [`BufferCursor::resolve`], with the number that decided (0 for `Absent`).
    #[inline]
    pub fn resolve_csn(&self, csn: u64) -> (Found<'b>, u64) {
        match self.present() {
            Some(entry) => self.buffer.resolve(entry, csn.min(self.csn_max)),
            None => (Found::Absent, 0),
        }
    }

    /// Goes to the first entry. Like all moves: `false` if there is none, and the cursor stands nowhere then.
    pub fn first(&mut self) -> bool {
        let root = self.restart();
        self.walk.first(root);
        self.arrive()
    }

    /// Goes to the last entry.
    pub fn last(&mut self) -> bool {
        let root = self.restart();
        self.walk.last(root);
        self.arrive()
    }

    /// Goes to the first entry with a key of at least `key`.
    pub fn seek_ge(&mut self, key: &[u8]) -> bool {
        let root = self.restart();
        self.walk.seek_ge(root, key);
        self.arrive()
    }

    /// Goes to the first entry with a key above `key`.
    pub fn seek_gt(&mut self, key: &[u8]) -> bool {
        self.seek_ge(key) && (self.key() != key || self.next())
    }

    /// Goes to the last entry with a key of at most `key`.
    pub fn seek_le(&mut self, key: &[u8]) -> bool {
        let root = self.restart();
        self.walk.seek_le(root, key);
        self.arrive()
    }

    /// Goes to the last entry with a key below `key`.
    pub fn seek_lt(&mut self, key: &[u8]) -> bool {
        self.seek_le(key) && (self.key() != key || self.prev())
    }

    /// Goes to the entry behind the present one.
    #[inline]
    #[allow(clippy::should_implement_trait)] // a position that moves; there is no item that an iterator could give
    pub fn next(&mut self) -> bool {
        self.step(true)
    }

    /// Goes to the entry before the present one.
    #[inline]
    pub fn prev(&mut self) -> bool {
        self.step(false)
    }

    /// [`BufferCursor::next`] or [`BufferCursor::prev`].
    #[inline(always)]
    pub(crate) fn step(&mut self, forward: bool) -> bool {
        let ahead = &mut self.ahead;
        if ahead.next < ahead.low && ahead.forward == forward {
            return self.pass();
        }
        self.step_walking(forward)
    }

    /// Makes the next entry ahead the present one.
    #[inline(always)]
    fn pass(&mut self) -> bool {
        let ahead = &mut self.ahead;
        let entry = ahead.entries[ahead.next];
        ahead.next += 1;
        if let Some(&coming) = ahead.entries[..ahead.count].get(ahead.next + ahead.version_ahead) {
            Entry::new(self.walk.memory(), node::offset(coming))
                .prefetch_newest(ahead.version_bytes);
        }
        self.stand_on(entry)
    }

    /// Makes an entry the present one, or none. Whether there is one.
    #[inline(always)]
    fn stand_on(&mut self, entry: u32) -> bool {
        self.entry = entry;
        self.key = self.present().map_or(&[], Entry::key);
        entry != 0
    }

    /// A step for which the walk goes on, if it has not come to the end.
    fn step_walking(&mut self, forward: bool) -> bool {
        if self.entry == 0 {
            return false;
        }
        if self.walk.entry() != self.entry && self.ahead.forward != forward {
            return self.turn(forward);
        }
        let version_bytes = self.present().and_then(Entry::newest_bytes).unwrap_or(0);
        let BufferCursor { walk, ahead, .. } = self;
        ahead.version_bytes = version_bytes.clamp(1, VERSION_BYTES_MAX);
        ahead.forward = forward;
        let left = ahead.count - ahead.next;
        ahead.entries.copy_within(ahead.next..ahead.count, 0);
        let (want, mut count) = (ahead.want, left);
        while count < want && walk.entry() != 0 {
            if want - count >= RUN_MIN {
                count += walk.run(forward, &mut ahead.entries[count..want]);
                if count == want {
                    break;
                }
            }
            walk.step(forward);
            if walk.entry() != 0 {
                let at = node::offset(walk.entry());
                walk.memory().prefetch(at);
                ahead.entries[count] = walk.entry();
                count += 1;
            }
        }
        // Short ranges are not worth a counter that all readers share.
        if want >= PASSED_FROM {
            ahead.passed += count - left;
            if ahead.passed >= PASSED_FROM {
                self.buffer.arena().note_passed(ahead.passed as u64);
                ahead.passed = 0;
            }
        } else {
            ahead.passed = 0;
        }
        let is_long = want == AHEAD_MAX && walk.entry() != 0;
        (ahead.next, ahead.count) = (0, count);
        ahead.low = if is_long { count / 2 } else { count };
        ahead.want = (2 * want).min(AHEAD_MAX);
        ahead.version_ahead = (count / 4).clamp(1, VERSION_AHEAD_MAX);
        if count == 0 {
            return self.stand_on(0);
        }
        self.pass()
    }

    /// Finds the neighbour of the present entry from the root.
    #[cold]
    fn turn(&mut self, forward: bool) -> bool {
        let key = self.key();
        match (self.is_valid(), forward) {
            (false, _) => false,
            (true, true) => self.seek_gt(key),
            (true, false) => self.seek_lt(key),
        }
    }

    /// Makes the entry that the walk found the present one.
    fn arrive(&mut self) -> bool {
        self.stand_on(self.walk.entry())
    }

    #[inline(always)]
    fn present(&self) -> Option<Entry<'b>> {
        (self.entry != 0).then(|| Entry::new(self.walk.memory(), node::offset(self.entry)))
    }

    /// Forgets the position. Returns the root to search from.
    fn restart(&mut self) -> u32 {
        self.stand_on(0);
        (self.ahead.next, self.ahead.count, self.ahead.low) = (0, 0, 0);
        self.ahead.want = 1;
        self.buffer.root.load(Ordering::Acquire)
    }
}
