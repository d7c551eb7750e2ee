//! What a cursor stands on and comes to next, to read many entries at once: for joins, which the cursor tells afterwards how many were passed.
//!
//! # Invariants
//! Those of `cursor.rs`: what is coming are the entries ahead up to `ahead.low`, all of which have arrived in the caches.

use std::ops::ControlFlow;

use super::super::arena::Memory;
use super::super::entry::{Entry, Found, Prefix};
use super::super::node;
use super::{BufferCursor, PASSED_FROM};

/// The entries that a cursor will come to next, as far as they have arrived in the caches: to read many of them at once. The cursor is to be told
/// afterwards how many were passed.
pub(crate) struct Coming<'c, 'b> {
    memory: Memory<'b>,
    entries: &'c [u32],
    /// For each of the first entries, one behind it: its newest version is asked for with the first one's turn.
    in_front: &'c [u32],
    version_bytes: usize,
    passed: usize,
}

impl<'b> Coming<'_, 'b> {
    /// The next entry.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Standing<'b>> {
        let &entry = self.entries.get(self.passed)?;
        if let Some(&later) = self.in_front.get(self.passed) {
            self.entry(later).prefetch_newest(self.version_bytes);
        }
        self.passed += 1;
        Some(Standing(self.entry(entry)))
    }

    /// How many were passed.
    pub fn passed(&self) -> usize {
        self.passed
    }

    #[inline(always)]
    fn entry(&self, entry: u32) -> Entry<'b> {
        Entry::new(self.memory, node::offset(entry))
    }
}

/// An entry that a cursor stands on, or comes to.
#[derive(Clone, Copy)]
pub(crate) struct Standing<'b>(Entry<'b>);

/// Who is shown entries. In place of a closure, which compilers would call.
pub(crate) trait Visits<'b> {
    /// To be inlined.
    fn visit(&mut self, entry: Standing<'b>) -> ControlFlow<()>;
}

impl<'b> Standing<'b> {
    #[inline(always)]
    pub fn key(self) -> &'b [u8] {
        self.0.key()
    }

    /// See [`Entry::head_behind`].
    #[inline(always)]
    pub fn head_behind(self, prefix: &Prefix<'_>) -> Option<u64> {
        self.0.head_behind(prefix)
    }

    /// See [`Entry::resolve_alone`].
    #[inline(always)]
    pub fn resolve_alone(self, csn: u64) -> Found<'b> {
        self.0.resolve_alone(csn)
    }
}

impl<'b> BufferCursor<'b> {
    /// The present entry, to be read beside those that are [`coming`](BufferCursor::coming).
    #[inline(always)]
    pub(crate) fn standing(&self) -> Option<Standing<'b>> {
        self.present().map(Standing)
    }

    /// Up to which number the cursor sees what is there, with another limit.
    #[inline(always)]
    pub(crate) fn csn_seen(&self, csn: u64) -> u64 {
        csn.min(self.csn_max)
    }

    /// What the cursor comes to in `forward`. It may be nothing though there are more entries.
    #[inline(always)]
    pub(crate) fn coming(&self, forward: bool) -> Coming<'_, 'b> {
        let ahead = &self.ahead;
        let next = ahead.next;
        let is_known = ahead.forward == forward && next < ahead.low;
        let (low, count) = match is_known {
            true => (ahead.low, ahead.count),
            false => (next, next),
        };
        let front = (next + 1 + ahead.version_ahead).min(count);
        Coming {
            memory: self.walk.memory(),
            entries: &ahead.entries[next..low],
            in_front: &ahead.entries[front..count],
            version_bytes: ahead.version_bytes,
            passed: 0,
        }
    }

    /// Goes on, forward, to the last of those siblings of the entry that the walk has come to which are entries, and shows all that are passed. Nothing
    /// happens unless they are many, and `comes_first` says of what all of their keys begin with that these are all before what others have. Where the cursor stands
    /// after a break is not known.
    #[inline(always)]
    pub(crate) fn visit_siblings(
        &mut self,
        comes_first: impl FnOnce(&[u8]) -> bool,
        visitor: &mut impl Visits<'b>,
    ) -> ControlFlow<()> {
        let memory = self.walk.memory();
        let ahead = &mut self.ahead;
        let is_ahead = ahead.forward || ahead.next == ahead.count;
        if !is_ahead || !self.walk.has_siblings(comes_first) {
            return ControlFlow::Continue(());
        }
        for &entry in &ahead.entries[ahead.next..ahead.count] {
            visitor.visit(Standing(Entry::new(memory, node::offset(entry))))?;
        }
        (ahead.next, ahead.count, ahead.low) = (0, 0, 0);
        let mut flow = ControlFlow::Continue(());
        let passed = self.walk.visit_siblings(ahead.version_bytes, |entry| {
            flow = visitor.visit(Standing(entry));
            flow.is_continue()
        });
        if passed >= PASSED_FROM {
            self.buffer.arena().note_passed(passed as u64);
        }
        self.stand_on(self.walk.entry());
        flow
    }

    /// Makes the last of the first `count` entries that were coming the present one.
    #[inline(always)]
    pub(crate) fn pass_coming(&mut self, count: usize) {
        let ahead = &mut self.ahead;
        assert!(
            ahead.next + count <= ahead.low || count == 0,
            "no more were coming"
        );
        if count > 0 {
            ahead.next += count;
            let entry = ahead.entries[ahead.next - 1];
            self.stand_on(entry);
        }
    }
}
