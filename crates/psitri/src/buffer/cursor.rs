//! `BufferCursor`: ordered positions over the entries of a buffer.
//!
//! The path to an entry is a stack of (node, position in the node). The walk looks for the next position in the node on top and goes down to
//! the first entry below it; entries that are children of one node in a row are taken together. In long ranges the walk is 16 to 32 entries
//! ahead of the present one, so that they have arrived by the time they are reached. Nothing recurses: a path may be as long as a key.
//!
//! # Thread safety
//! Any number of cursors on any threads beside the one writer.
//!
//! # Invariants
//! 1. Every frame's node is on the path of the entry `walked`, with growing depth; the frame's position is where the path goes on.
//!    There are no frames if `walked` is 0: the walk left the last (first) entry behind. What a frame knows to be `coming` is next to
//!    its position; children that were added between since are of no concern (2, 3).
//! 2. A cursor for a snapshot was made after the snapshot. All that the snapshot may see was linked before, so nodes that
//!    have been replaced since (invariant 4 of `node.rs`) still lead to all of it.
//! 3. A cursor of the writer's own transaction compares the number of entries with the one it has seen, and finds its
//!    place again from the root when there are new ones.
//! 4. `ahead.entries[ahead.next..ahead.count]` are the entries between the present one and `walked`, that one included, in the direction
//!    `ahead.forward`; all that are left in it if `walked` is 0. If `walked` is the present entry, there are none.
//! 5. The walk goes on at `ahead.low`: half way through what is ahead in a long range, else at its end.
//!
//! # Failure modes
//! None but memory for the stack.

use super::arena::LINE_BYTES;
use super::entry::{CSN_UNCOMMITTED, Entry, EntryRef, Found};
use super::keyspace::KeyspaceBuffer;
use super::node::{self, Node, POSITION_LAST, Position, Run};
use crate::sync::Ordering;

/// Paths of ordinary keys fit without growing the stack.
const FRAMES_EXPECTED: usize = 16;

/// Most entries to walk ahead: enough to hide a miss each, few enough to stay in the first cache.
const AHEAD_MAX: usize = 32;
/// With room for fewer entries than these, they are walked one by one: not worth a look at all keys of a node. In tests any room will do.
const RUN_MIN: usize = if cfg!(any(loom, debug_assertions)) {
    1
} else {
    8
};

/// How far in front of its use the newest version of an entry is asked for.
const VERSION_AHEAD: usize = 6;

/// How many of its lines are asked for; what follows them is a stream that the processor notices.
const VERSION_LINES_MAX: usize = 4;

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
    /// Cache lines of a version, going by the last entry before these.
    version_lines: usize,
    /// Entries walked that the arena does not count yet.
    passed: usize,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    node: u32,
    position: Position,
    coming: Coming,
}

/// The child behind a frame's position, which is asked for while the walk is still at the one before.
#[derive(Debug, Clone, Copy)]
enum Coming {
    Unknown,
    Forward(Option<(Position, u32)>),
    Backward(Option<(Position, u32)>),
}

impl Frame {
    fn new(node: u32, position: Position) -> Frame {
        Frame {
            node,
            position,
            coming: Coming::Unknown,
        }
    }
}

/// An ordered position over the entries of one buffer. See the module text.
#[derive(Debug, Clone)]
pub struct BufferCursor<'b> {
    buffer: &'b KeyspaceBuffer,
    frames: Vec<Frame>,
    /// Reference of the present entry, 0 if there is none.
    entry: u32,
    /// Reference of the entry that the frames lead to, 0 if there is none.
    walked: u32,
    ahead: Ahead,
    csn_max: u64,
    entries_seen: u64,
}

impl<'b> BufferCursor<'b> {
    pub(super) fn new(buffer: &'b KeyspaceBuffer, csn_max: u64) -> BufferCursor<'b> {
        BufferCursor {
            buffer,
            frames: Vec::with_capacity(FRAMES_EXPECTED),
            entry: 0,
            walked: 0,
            ahead: Ahead {
                entries: [0; AHEAD_MAX],
                next: 0,
                count: 0,
                low: 0,
                forward: true,
                want: 1,
                version_lines: 1,
                passed: 0,
            },
            csn_max,
            entries_seen: 0,
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
        self.present().map_or(&[], Entry::key)
    }

    /// What the present entry says at a commit sequence number, range deletions included. `Absent`: nothing at that number.
    #[inline]
    pub fn resolve(&self, csn: u64) -> Found<'b> {
        self.resolve_csn(csn).0
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
        self.restart();
        self.descend_first(self.root());
        self.arrive()
    }

    /// Goes to the last entry.
    pub fn last(&mut self) -> bool {
        self.restart();
        self.descend_last(self.root());
        self.arrive()
    }

    /// Goes to the first entry with a key of at least `key`.
    pub fn seek_ge(&mut self, key: &[u8]) -> bool {
        match self.descend_to(key) {
            Landing::Exact | Landing::Empty => {}
            Landing::Subtree {
                reference,
                above: true,
            } => self.descend_first(reference),
            Landing::Gap | Landing::Subtree { .. } => self.walk_forward(),
        }
        self.arrive()
    }

    /// Goes to the first entry with a key above `key`.
    pub fn seek_gt(&mut self, key: &[u8]) -> bool {
        self.seek_ge(key) && (self.key() != key || self.next())
    }

    /// Goes to the last entry with a key of at most `key`.
    pub fn seek_le(&mut self, key: &[u8]) -> bool {
        match self.descend_to(key) {
            Landing::Exact | Landing::Empty => {}
            Landing::Subtree {
                reference,
                above: false,
            } => self.descend_last(reference),
            Landing::Gap | Landing::Subtree { .. } => self.walk_backward(),
        }
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
        if self.is_outdated() {
            return self.turn(forward);
        }
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
        self.entry = ahead.entries[ahead.next];
        ahead.next += 1;
        if let Some(&coming) = ahead.entries[..ahead.count].get(ahead.next + VERSION_AHEAD) {
            Entry::new(self.buffer.memory(), node::offset(coming))
                .prefetch_newest(ahead.version_lines);
        }
        true
    }

    /// A step for which the walk goes on, if it has not come to the end.
    fn step_walking(&mut self, forward: bool) -> bool {
        if self.entry == 0 {
            return false;
        }
        if self.walked != self.entry && self.ahead.forward != forward {
            return self.turn(forward);
        }
        let version_bytes = self.present().and_then(Entry::newest_bytes).unwrap_or(0);
        let version_lines = version_bytes.div_ceil(LINE_BYTES);
        let Ahead {
            next, count, want, ..
        } = self.ahead;
        let mut entries = [0; AHEAD_MAX];
        let left = count - next;
        if left > 0 {
            entries[..left].copy_from_slice(&self.ahead.entries[next..count]);
        }
        let mut count = left;
        while count < want && self.walked != 0 {
            if want - count >= RUN_MIN {
                count += self.walk_run(forward, &mut entries[count..want]);
                if count == want {
                    break;
                }
            }
            if forward {
                self.walk_forward();
            } else {
                self.walk_backward();
            }
            if self.walked != 0 {
                let at = node::offset(self.walked);
                self.buffer.memory().prefetch(at);
                entries[count] = self.walked;
                count += 1;
            }
        }
        // Short ranges are not worth a counter that all readers share.
        let mut passed = 0;
        if want == AHEAD_MAX {
            passed = self.ahead.passed + count - left;
            if passed >= AHEAD_MAX {
                self.buffer.arena().note_passed(passed as u64);
                passed = 0;
            }
        }
        let is_long = want == AHEAD_MAX && self.walked != 0;
        self.ahead = Ahead {
            entries,
            next: 0,
            count,
            low: if is_long { count / 2 } else { count },
            forward,
            want: (2 * want).min(AHEAD_MAX),
            version_lines: version_lines.clamp(1, VERSION_LINES_MAX),
            passed,
        };
        if count == 0 {
            self.entry = 0;
            return false;
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
        self.entry = self.walked;
        self.entry != 0
    }

    /// Whether keys were inserted that this cursor must see (invariant 3).
    #[inline(always)]
    fn is_outdated(&self) -> bool {
        self.csn_max == CSN_UNCOMMITTED
            && self.entries_seen != self.buffer.entries.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn present(&self) -> Option<Entry<'b>> {
        (self.entry != 0).then(|| Entry::new(self.buffer.memory(), node::offset(self.entry)))
    }

    fn restart(&mut self) {
        self.frames.clear();
        self.entry = 0;
        self.walked = 0;
        (self.ahead.next, self.ahead.count, self.ahead.low) = (0, 0, 0);
        self.ahead.want = 1;
        self.entries_seen = self.buffer.entries.load(Ordering::Relaxed);
    }

    fn root(&self) -> u32 {
        self.buffer.root.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn node(&self, reference: u32) -> Node<'b> {
        Node::new(self.buffer.memory(), reference)
    }

    /// Goes down to the first entry of a subtree; the frames lead to it.
    #[inline]
    fn descend_first(&mut self, mut reference: u32) {
        while reference != 0 && !node::is_entry(reference) {
            let node = self.node(reference);
            node.prefetch_children();
            // A linked node has at least two children.
            let (position, child) = node.next(0).unwrap_or_default();
            self.frames.push(Frame::new(reference, position));
            reference = child;
        }
        self.walked = reference;
    }

    /// Goes down to the last entry of a subtree; the frames lead to it.
    #[inline]
    fn descend_last(&mut self, mut reference: u32) {
        while reference != 0 && !node::is_entry(reference) {
            let node = self.node(reference);
            node.prefetch_children();
            let (position, child) = node.prev(POSITION_LAST).unwrap_or_default();
            self.frames.push(Frame::new(reference, position));
            reference = child;
        }
        self.walked = reference;
    }

    /// Asks for what lies below the sibling that a walk will reach next: by then it has arrived.
    #[inline(always)]
    fn look_ahead(&self, sibling: Option<(Position, u32)>) {
        if let Some((_, sibling)) = sibling {
            if node::is_entry(sibling) {
                self.buffer.memory().prefetch(node::offset(sibling));
            } else {
                self.node(sibling).prefetch_children();
            }
        }
    }

    /// Goes on over the siblings of the entry as far as they are entries, into `run`. Returns how many they are, which may be 0: single
    /// steps lead on.
    #[inline]
    fn walk_run(&mut self, forward: bool, run: &mut [u32]) -> usize {
        let memory = self.buffer.memory();
        let Some(frame) = self.frames.last_mut() else {
            return 0;
        };
        let node = Node::new(memory, frame.node);
        let leads_to_entry = match frame.coming {
            // The terminal is no part of a run.
            Coming::Forward(coming) | Coming::Backward(coming) => {
                coming.is_some_and(|(position, child)| position != 0 && node::is_entry(child))
            }
            Coming::Unknown => true,
        };
        if !leads_to_entry || !node.has_runs() {
            return 0;
        }
        let Run {
            count,
            last,
            coming,
        } = node.run(frame.position, forward, run);
        frame.position = last;
        frame.coming = match forward {
            true => Coming::Forward(coming),
            false => Coming::Backward(coming),
        };
        for &entry in &run[..count] {
            memory.prefetch(node::offset(entry));
        }
        if count > 0 {
            self.walked = run[count - 1];
        }
        self.look_ahead(coming);
        count
    }

    /// Goes to the first entry behind the place that the frames lead to.
    #[inline]
    fn walk_forward(&mut self) {
        while let Some(frame) = self.frames.last_mut() {
            let node = Node::new(self.buffer.memory(), frame.node);
            let found = match frame.coming {
                Coming::Forward(coming) => coming,
                _ => node.next(frame.position + 1),
            };
            if let Some((position, child)) = found {
                let coming = node.next(position + 1);
                (frame.position, frame.coming) = (position, Coming::Forward(coming));
                self.look_ahead(coming);
                return self.descend_first(child);
            }
            self.frames.pop();
        }
        self.walked = 0;
    }

    /// Goes to the last entry before the place that the frames lead to.
    #[inline]
    fn walk_backward(&mut self) {
        while let Some(frame) = self.frames.last_mut() {
            let node = Node::new(self.buffer.memory(), frame.node);
            let before = |position: Position| node.prev(position.checked_sub(1)?);
            let found = match frame.coming {
                Coming::Backward(coming) => coming,
                _ => before(frame.position),
            };
            if let Some((position, child)) = found {
                let coming = before(position);
                (frame.position, frame.coming) = (position, Coming::Backward(coming));
                self.look_ahead(coming);
                return self.descend_last(child);
            }
            self.frames.pop();
        }
        self.walked = 0;
    }

    /// Finds the place of a key.
    fn descend_to(&mut self, key: &[u8]) -> Landing {
        self.restart();
        let mut reference = self.root();
        if reference == 0 {
            return Landing::Empty;
        }
        // Down without looking at skipped bytes, to any entry that would have to share them.
        let sample = loop {
            if node::is_entry(reference) {
                break reference;
            }
            let node = self.node(reference);
            let depth = node.depth();
            let position = match key.get(depth) {
                Some(&byte) => 1 + Position::from(byte),
                None if depth == key.len() => 0,
                None => break node.sample(),
            };
            self.frames.push(Frame::new(reference, position));
            match node.child_at(position) {
                0 => break node.sample(),
                child => reference = child,
            }
        };
        let sample = Entry::new(self.buffer.memory(), node::offset(sample)).key();
        let differs_at = mismatch(key, sample);
        if differs_at == key.len() && differs_at == sample.len() {
            // Only a path of present children leads to the key itself.
            self.walked = reference;
            return Landing::Exact;
        }
        // What lies deeper than the difference shares it: the place is above. The child is the one seen on the way down,
        // because a slot that is read again may lead to keys on the other side by now.
        while let Some(&frame) = self.frames.last() {
            let depth = self.node(frame.node).depth();
            if depth == differs_at {
                // Children up to here agree with the key, and none has its byte: the frame's position is the gap.
                return Landing::Gap;
            }
            if depth < differs_at {
                break;
            }
            reference = frame.node;
            self.frames.pop();
        }
        Landing::Subtree {
            reference,
            above: key.get(differs_at) < sample.get(differs_at),
        }
    }
}

/// Where a key is, relative to the frames.
enum Landing {
    /// At the entry that the frames lead to.
    Exact,
    /// There is no entry at all.
    Empty,
    /// Nowhere; the top frame's position is where it would be.
    Gap,
    /// Nowhere; the whole subtree that the frames lead to is above or below it.
    Subtree { reference: u32, above: bool },
}

/// Number of leading bytes in which both agree.
#[inline]
pub(super) fn mismatch(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        if x != y {
            break;
        }
        at += 8;
    }
    at + a[at..]
        .iter()
        .zip(&b[at..])
        .take_while(|(x, y)| x == y)
        .count()
}
