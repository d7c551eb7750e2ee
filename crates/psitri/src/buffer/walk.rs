//! `Walk`: a path through the radix tree of a buffer to an entry, and from there to its neighbours in order.
//!
//! The path is a stack of (node, position in the node), with a bucket on top if there is one on the path. The walk looks for the next position in
//! the node on top and goes down to the first entry below it; entries of one bucket, and those that are children of one node in a row, are taken together. What a node leads to is asked for when the walk
//! comes to the node, or to the sibling before it; the largest nodes have too many children for that, and ask for the next few as the walk
//! goes on. Nothing recurses: a path may be as long as a key.
//!
//! # Thread safety
//! Any number of walks on any threads beside the one writer.
//!
//! # Invariants
//! 1. Every frame's node is on the path of the entry `walked`, with growing depth; the frame's position is where the path goes on.
//!    There are no frames if `walked` is 0: the walk left the last (first) entry behind.
//! 2. The frame of a bucket has the order of its entries as it was when the walk came there: no others are of concern, as below.
//! 3. What a frame knows to be `coming` is next to its position, as it was when the walk looked; children that were added between since are of
//!    no concern (invariants 2 and 3 of `cursor.rs`).
//!
//! # Failure modes
//! None but memory for the stack.

#[cfg(not(loom))]
mod siblings;

use super::arena::Memory;
use super::bucket::{Bucket, Order};
use super::entry::Entry;
use super::keyspace::KeyspaceBuffer;
use super::node::{self, Node, POSITION_LAST, Position, Run};

/// Paths of ordinary keys fit without growing the stack.
const FRAMES_EXPECTED: usize = 16;

/// How many children of a node that has too many to ask for all of them are asked for in advance.
const CHILDREN_AHEAD: usize = 6;

#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Reference of a node or a bucket.
    node: u32,
    /// In a bucket: `2 * rank + 1` at an entry, `2 * rank` in front of it.
    position: Position,
    /// Of a bucket.
    order: Order,
    coming: Option<Coming>,
    /// How far the children of a node that has too many to ask for all of them were asked for, in the direction of `coming`.
    asked: Position,
}

/// What is next to a frame's position, which is asked for while the walk is still there.
#[derive(Debug, Clone, Copy)]
struct Coming {
    forward: bool,
    child: Option<(Position, u32)>,
}

impl Frame {
    fn new(node: u32, position: Position) -> Frame {
        Frame {
            node,
            position,
            order: Order::default(),
            coming: None,
            asked: 0,
        }
    }

    fn of_bucket(bucket: Bucket<'_>, order: Order, position: Position) -> Frame {
        Frame {
            order,
            ..Frame::new(bucket.reference(), position)
        }
    }

    /// Rank of the next entry of a bucket.
    #[inline(always)]
    fn next_rank(&self, forward: bool) -> Option<usize> {
        let position = self.position as usize;
        match forward {
            true => Some(position.div_ceil(2)).filter(|&rank| rank < self.order.len()),
            false => (position / 2).checked_sub(1),
        }
    }
}

/// A path to an entry. See the module text.
#[derive(Debug, Clone)]
pub(super) struct Walk<'b> {
    memory: Memory<'b>,
    frames: Vec<Frame>,
    /// Reference of the entry that the frames lead to, 0 if there is none.
    walked: u32,
}

impl<'b> Walk<'b> {
    pub fn new(buffer: &'b KeyspaceBuffer) -> Walk<'b> {
        Walk {
            memory: buffer.memory(),
            frames: Vec::with_capacity(FRAMES_EXPECTED),
            walked: 0,
        }
    }

    /// Reference of the entry at the end of the path, 0 if there is none.
    #[inline(always)]
    pub fn entry(&self) -> u32 {
        self.walked
    }

    /// Goes nowhere.
    pub fn leave(&mut self) {
        self.frames.clear();
        self.walked = 0;
    }

    /// Goes to the first entry of all.
    pub fn first(&mut self, root: u32) {
        self.leave();
        self.descend(root, true);
    }

    /// Goes to the last entry of all.
    pub fn last(&mut self, root: u32) {
        self.leave();
        self.descend(root, false);
    }

    /// Goes to the first entry with a key of at least `key`.
    pub fn seek_ge(&mut self, root: u32, key: &[u8]) {
        match self.descend_to(root, key) {
            Landing::Exact | Landing::Empty => {}
            Landing::Subtree {
                reference,
                above: true,
            } => self.descend(reference, true),
            Landing::Gap | Landing::Subtree { .. } => self.step(true),
        }
    }

    /// Goes to the last entry with a key of at most `key`.
    pub fn seek_le(&mut self, root: u32, key: &[u8]) {
        match self.descend_to(root, key) {
            Landing::Exact | Landing::Empty => {}
            Landing::Subtree {
                reference,
                above: false,
            } => self.descend(reference, false),
            Landing::Gap | Landing::Subtree { .. } => self.step(false),
        }
    }

    /// Goes down to the first (last) entry of a subtree; the frames lead to it.
    #[inline(always)]
    fn descend(&mut self, mut reference: u32, first: bool) {
        while node::is_inner(reference) {
            let node = Node::new(self.memory, reference);
            node.prefetch_children();
            let outermost = match first {
                true => node.next(0),
                false => node.prev(POSITION_LAST),
            };
            // A linked node has at least two children.
            let (position, child) = outermost.unwrap_or_default();
            self.frames.push(Frame::new(reference, position));
            reference = child;
        }
        if node::is_bucket(reference) {
            let bucket = Bucket::new(self.memory, reference);
            let order = bucket.order();
            bucket.prefetch_entries(order);
            let rank = if first { 0 } else { order.len() - 1 };
            let position = 2 * rank as Position + 1;
            self.frames.push(Frame::of_bucket(bucket, order, position));
            reference = bucket.entry(order, rank);
        }
        self.walked = reference;
    }

    /// Asks for what lies below the child that a walk will reach next: by then it has arrived. The children of the largest nodes were not
    /// asked for when the walk came to the node, so it asks for some that are further away, too.
    #[inline(always)]
    fn look_ahead(
        memory: Memory<'b>,
        frame: &mut Frame,
        coming: Option<(Position, u32)>,
        forward: bool,
    ) {
        let node = Node::new(memory, frame.node);
        let goes_on = frame.coming.is_some_and(|it| it.forward == forward);
        frame.coming = Some(Coming {
            forward,
            child: coming,
        });
        let Some((position, child)) = coming else {
            return;
        };
        if node.is_largest() {
            // Runs of entries can leave behind what was asked for.
            let is_beyond = if forward {
                frame.asked > position
            } else {
                frame.asked < position
            };
            let more = if goes_on && is_beyond {
                1
            } else {
                frame.asked = position;
                CHILDREN_AHEAD
            };
            for _ in 0..more {
                let Some((position, child)) = node.neighbour(frame.asked, forward) else {
                    break;
                };
                node::prefetch(memory, child);
                frame.asked = position;
            }
        }
        if node::is_entry(child) {
            memory.prefetch(node::offset(child));
        } else if node::is_bucket(child) {
            let bucket = Bucket::new(memory, child);
            bucket.prefetch_entries(bucket.order());
        } else {
            Node::new(memory, child).prefetch_children();
        }
    }

    /// The memory of the buffer.
    #[inline(always)]
    pub fn memory(&self) -> Memory<'b> {
        self.memory
    }

    /// Goes on over the siblings of the entry as far as they are entries, into `run`. Returns how many they are, which may be 0: single
    /// steps lead on.
    #[inline]
    pub fn run(&mut self, forward: bool, run: &mut [u32]) -> usize {
        let memory = self.memory;
        let Some(frame) = self.frames.last_mut() else {
            return 0;
        };
        if node::is_bucket(frame.node) {
            let Some(rank) = frame.next_rank(forward) else {
                return 0;
            };
            let bucket = Bucket::new(memory, frame.node);
            let (count, last) = bucket.copy_entries(frame.order, rank, forward, run);
            frame.position = 2 * last as Position + 1;
            self.walked = run[count - 1];
            return count;
        }
        let node = Node::new(memory, frame.node);
        // The terminal is no part of a run.
        let leads_to_entry = frame.coming.is_none_or(|it| {
            it.child
                .is_some_and(|(position, child)| position != 0 && node::is_entry(child))
        });
        if !leads_to_entry || !node.has_runs() {
            return 0;
        }
        let Run {
            count,
            last,
            coming,
        } = node.run(frame.position, forward, run);
        frame.position = last;
        Self::look_ahead(memory, frame, coming, forward);
        for &entry in &run[..count] {
            memory.prefetch(node::offset(entry));
        }
        if count > 0 {
            self.walked = run[count - 1];
        }
        count
    }

    /// Goes to the first entry behind, or the last before, the place that the frames lead to.
    #[inline]
    pub fn step(&mut self, forward: bool) {
        // Compiled once for each direction.
        match forward {
            true => self.step_to(true),
            false => self.step_to(false),
        }
    }

    #[inline(always)]
    fn step_to(&mut self, forward: bool) {
        let memory = self.memory;
        while let Some(frame) = self.frames.last_mut() {
            if node::is_bucket(frame.node) {
                if let Some(rank) = frame.next_rank(forward) {
                    frame.position = 2 * rank as Position + 1;
                    self.walked = Bucket::new(memory, frame.node).entry(frame.order, rank);
                    return;
                }
                self.frames.pop();
                continue;
            }
            let node = Node::new(memory, frame.node);
            let found = match frame.coming {
                Some(coming) if coming.forward == forward => coming.child,
                _ => node.neighbour(frame.position, forward),
            };
            if let Some((position, child)) = found {
                let coming = node.neighbour(position, forward);
                frame.position = position;
                Self::look_ahead(memory, frame, coming, forward);
                return self.descend(child, forward);
            }
            self.frames.pop();
        }
        self.walked = 0;
    }

    /// Finds the place of a key that agrees with those of a bucket as far as they all do.
    fn land_in(&mut self, bucket: Bucket<'b>, key: &[u8]) -> Landing {
        let order = bucket.order();
        let (position, landing) = match bucket.search(order, key) {
            Ok(rank) => {
                self.walked = bucket.entry(order, rank);
                (2 * rank + 1, Landing::Exact)
            }
            Err(rank) => (2 * rank, Landing::Gap),
        };
        let frame = Frame::of_bucket(bucket, order, position as Position);
        self.frames.push(frame);
        landing
    }

    /// Finds the place of a key.
    fn descend_to(&mut self, root: u32, key: &[u8]) -> Landing {
        self.leave();
        let mut reference = root;
        if reference == 0 {
            return Landing::Empty;
        }
        // Down without looking at skipped bytes, to any entry that would have to share them.
        let sample = loop {
            if node::is_entry(reference) {
                break reference;
            }
            if node::is_bucket(reference) {
                let bucket = Bucket::new(self.memory, reference);
                if !bucket.agrees(key) {
                    break bucket.sample();
                }
                return self.land_in(bucket, key);
            }
            let node = Node::new(self.memory, reference);
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
        let sample = Entry::new(self.memory, node::offset(sample)).key();
        let differs_at = mismatch(key, sample);
        if differs_at == key.len() && differs_at == sample.len() {
            // Only a path of present children leads to the key itself.
            self.walked = reference;
            return Landing::Exact;
        }
        // What lies deeper than the difference shares it: the place is above. The child is the one seen on the way down,
        // because a slot that is read again may lead to keys on the other side by now.
        while let Some(&frame) = self.frames.last() {
            let depth = Node::new(self.memory, frame.node).depth();
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
    /// Nowhere; the whole subtree, or bucket, that the frames lead to is above or below it.
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
