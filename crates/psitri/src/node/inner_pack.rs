//! Packing children that arrive in key order into inner nodes.
//!
//! Like the leaf packer it holds back up to two nodes' worth and balances the last two. A node gets at least four children, so
//! that it may be longer than [`NODE_BYTES_SOFT_MAX`] where separators are huge.
//!
//! Thread safety: a packer belongs to one thread at a time.
//!
//! Invariants:
//! (1) `closed` groups, then the current one, cover `children[head..]` without gaps, in order.
//! (2) A group of more than [`CHILDREN_MIN`] children fits [`NODE_BYTES_SOFT_MAX`].
//!
//! Failure modes: separators out of order are a defect of the caller, caught by assertions in debug builds and by
//! [`super::validate_deep`] afterwards.

use super::NODE_BYTES_SOFT_MAX;
use super::UNIT_BYTES;
use super::bytes::{common_prefix, head};
use super::header::{self, NodeKind};
use super::inner::{
    FLAG_TAILS, FLAG_TAILS_WIDE, HEAD_BYTES, LENGTH_TAILED, PREFIX_BYTES_AT, SECTIONS_AT,
};
use super::reference::NodeRef;
use std::collections::VecDeque;
use std::ops::Range;

/// Groups are closed only from this many children on.
const CHILDREN_MIN: usize = 4;
/// Fewer make a small node, if their separators are short.
const CHILDREN_SMALL: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Child {
    at: usize,
    separator_bytes: usize,
    node: NodeRef,
    keys: u64,
}

impl Child {
    fn separator<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at..self.at + self.separator_bytes]
    }
}

/// What decides the size of a node of `count` children.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    start: usize,
    count: usize,
    prefix_bytes: usize,
    separator_bytes_min: usize,
    separator_bytes_max: usize,
    tails_bytes: usize,
    keys_max: u64,
}

impl Group {
    fn end(&self) -> usize {
        self.start + self.count
    }

    fn by_bytes(&self) -> bool {
        self.count == 1
            || (self.separator_bytes_min == self.separator_bytes_max
                && self.separator_bytes_max == self.prefix_bytes + 1)
    }

    /// 0, 1 or 2 for key counts of 2, 4 or 8 bytes.
    fn keys_width_code(&self) -> u8 {
        if self.keys_max <= u64::from(u16::MAX) {
            0
        } else if self.keys_max <= u64::from(u32::MAX) {
            1
        } else {
            2
        }
    }

    fn tail_offset_bytes(&self) -> usize {
        match self.tails_bytes {
            0 => 0,
            1..=0xffff => 2,
            _ => 4,
        }
    }

    /// Start of the children.
    fn children_at(&self) -> usize {
        let separators = self.count - 1;
        let routing = if self.by_bytes() {
            separators
        } else {
            separators * (HEAD_BYTES + 1)
        };
        (SECTIONS_AT + routing).next_multiple_of(8)
    }

    /// Length of the node without padding.
    fn bytes(&self) -> usize {
        let tails = if self.by_bytes() {
            0
        } else {
            self.tails_bytes + self.count * self.tail_offset_bytes()
        };
        self.children_at()
            + self.count * (8 + (2 << self.keys_width_code()))
            + self.prefix_bytes
            + tails
    }
}

/// Builds inner node images of one level from children pushed in key order. See [`super::Inner`] for an example.
#[derive(Debug)]
pub struct InnerPacker {
    level: u8,
    arena: Vec<u8>,
    children: Vec<Child>,
    head: usize,
    closed: VecDeque<Group>,
    current: Group,
    image: Vec<u8>,
}

/// A packed inner node: seal `bytes` in place once its address is known, then write it.
#[derive(Debug)]
pub struct InnerImage<'p> {
    /// The image, a multiple of 64 bytes, without birth and checksum.
    pub bytes: &'p mut [u8],
    /// The separator that was pushed with the first child: the node's own separator one level up.
    pub first_separator: &'p [u8],
    /// Number of children.
    pub count: u32,
    /// Keys below the node.
    pub keys: u64,
    /// Height above the leaves.
    pub level: u8,
}

impl InnerPacker {
    /// A packer for nodes of this level.
    ///
    /// # Panics
    /// If `level` is 0: leaves have no children.
    pub fn new(level: u8) -> InnerPacker {
        assert!(level >= 1, "leaves have no children");
        InnerPacker {
            level,
            arena: Vec::new(),
            children: Vec::new(),
            head: 0,
            closed: VecDeque::new(),
            current: Group::default(),
            image: Vec::new(),
        }
    }

    /// Adds a child behind all others. The separator of the first child of a node is not stored in it but given back as
    /// [`InnerImage::first_separator`]; for the leftmost node of a level it may be empty.
    pub fn push(&mut self, separator: &[u8], child: NodeRef, keys: u64) {
        debug_assert!(
            self.children
                .last()
                .is_none_or(|last| last.separator(&self.arena) < separator),
            "separators ascend"
        );
        if self.head >= 1024 || (self.head > 0 && self.arena.len() >= 1 << 20) {
            self.forget();
        }
        let at = self.arena.len();
        self.arena.extend_from_slice(separator);
        self.children.push(Child {
            at,
            separator_bytes: separator.len(),
            node: child,
            keys,
        });
        let index = self.children.len() - 1;
        if self.current.count > 0 {
            let longer = self.longer(self.current);
            if longer.count <= CHILDREN_MIN || longer.bytes() <= NODE_BYTES_SOFT_MAX {
                self.current = longer;
                return;
            }
            self.closed.push_back(self.current);
        }
        self.current = self.single(index);
    }

    fn single(&self, index: usize) -> Group {
        Group {
            start: index,
            count: 1,
            keys_max: self.children[index].keys,
            ..Group::default()
        }
    }

    /// The group with the next child in `children` added.
    fn longer(&self, mut group: Group) -> Group {
        let child = self.children[group.end()];
        let separator = child.separator(&self.arena);
        group.count += 1;
        group.keys_max = group.keys_max.max(child.keys);
        if group.count == 2 {
            // One separator: its last byte routes, the rest is prefix.
            group.separator_bytes_min = separator.len();
            group.separator_bytes_max = separator.len();
            group.prefix_bytes = separator.len().saturating_sub(1);
            return group;
        }
        group.separator_bytes_min = group.separator_bytes_min.min(separator.len());
        group.separator_bytes_max = group.separator_bytes_max.max(separator.len());
        let first = self.children[group.start + 1].separator(&self.arena);
        let prefix_bytes = common_prefix(&first[..group.prefix_bytes], separator);
        let tail_bytes = |bytes: usize| bytes.saturating_sub(prefix_bytes + HEAD_BYTES);
        if prefix_bytes == group.prefix_bytes {
            group.tails_bytes += tail_bytes(separator.len());
        } else {
            group.prefix_bytes = prefix_bytes;
            let inside = &self.children[group.start + 1..group.end()];
            group.tails_bytes = inside
                .iter()
                .map(|child| tail_bytes(child.separator_bytes))
                .sum();
        }
        group
    }

    fn group(&self, children: Range<usize>) -> Group {
        children
            .clone()
            .skip(1)
            .fold(self.single(children.start), |group, _| self.longer(group))
    }

    /// The next node that is certainly full, if there is one.
    pub fn pop_full(&mut self) -> Option<InnerImage<'_>> {
        if self.closed.len() < 2 {
            return None;
        }
        self.pop()
    }

    /// At the end of the input: the next of the remaining nodes. After `None` the packer is empty and may be used again.
    pub fn pop_last(&mut self) -> Option<InnerImage<'_>> {
        if self.current.count > 0 && self.closed.len() < 2 {
            self.finish_current();
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

    /// Closes the current group; balances it with the group before when it would be less than half full.
    fn finish_current(&mut self) {
        let current = std::mem::take(&mut self.current);
        let small = current.count < 2 || current.bytes() < NODE_BYTES_SOFT_MAX / 2;
        if small
            && let Some(&before) = self.closed.back()
            && let Some((left, right)) = self.balance(before, current)
        {
            self.closed.pop_back();
            self.closed.push_back(left);
            self.closed.push_back(right);
            return;
        }
        self.closed.push_back(current);
    }

    /// Cuts the children of two neighbouring groups anew, so that both halves have about the same size. A lone child gets at
    /// least a sibling.
    fn balance(&self, before: Group, current: Group) -> Option<(Group, Group)> {
        let (start, end) = (before.start, current.end());
        let size = |child: &Child| child.separator_bytes + 8;
        let total: usize = self.children[start..end].iter().map(size).sum();
        let mut taken = 0;
        let front = self.children[start..end].iter().take_while(|child| {
            taken += size(child);
            2 * taken <= total
        });
        let middle = (start + front.count()).clamp(start + 2, end - 2);
        let fits =
            |group: &Group| group.count <= CHILDREN_MIN || group.bytes() <= NODE_BYTES_SOFT_MAX;
        let lone = (current.count == 1).then_some(end - 2);
        [Some(middle), lone].into_iter().flatten().find_map(|cut| {
            let (left, right) = (self.group(start..cut), self.group(cut..end));
            (fits(&left) && fits(&right)).then_some((left, right))
        })
    }

    /// Children held.
    pub fn pending_len(&self) -> usize {
        self.children.len() - self.head
    }

    /// Whether what is held makes a small node, so that the next ones should come in. Where separators are long, few children are no small node.
    pub fn is_underfull(&self) -> bool {
        let held = self.pending_len();
        let is_small = held < CHILDREN_MIN || self.current.bytes() < NODE_BYTES_SOFT_MAX / 2;
        self.closed.is_empty() && held < CHILDREN_SMALL && is_small
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.pending_len() == 0
    }

    /// Drops what is held; keeps the memory and the level.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.children.clear();
        self.head = 0;
        self.closed.clear();
        self.current = Group::default();
    }

    /// Forgets the children that were handed out; keeps (1).
    fn forget(&mut self) {
        let head = std::mem::take(&mut self.head);
        let bytes = self
            .children
            .get(head)
            .map_or(self.arena.len(), |child| child.at);
        self.arena.drain(..bytes);
        self.children.drain(..head);
        for child in &mut self.children {
            child.at -= bytes;
        }
        for group in self
            .closed
            .iter_mut()
            .chain(Some(&mut self.current))
            .filter(|group| group.count > 0)
        {
            group.start -= head;
        }
    }

    fn pop(&mut self) -> Option<InnerImage<'_>> {
        let group = self.closed.pop_front()?;
        encode(
            &group,
            self.level,
            &self.children[group.start..group.end()],
            &self.arena,
            &mut self.image,
        );
        self.head = group.end();
        let children = &self.children[group.start..group.end()];
        Some(InnerImage {
            bytes: &mut self.image,
            first_separator: children[0].separator(&self.arena),
            count: group.count as u32,
            keys: children
                .iter()
                .fold(0, |sum, child| sum.saturating_add(child.keys)),
            level: self.level,
        })
    }
}

/// Replaces `out` by the unsealed image of a group.
fn encode(group: &Group, level: u8, children: &[Child], arena: &[u8], out: &mut Vec<u8>) {
    let (n, bytes, by_bytes) = (group.count, group.bytes(), group.by_bytes());
    out.clear();
    out.resize(bytes.next_multiple_of(UNIT_BYTES), 0);
    let offset_bytes = if by_bytes {
        0
    } else {
        group.tail_offset_bytes()
    };
    let tail_flags = match offset_bytes {
        0 => 0,
        2 => FLAG_TAILS,
        _ => FLAG_TAILS | FLAG_TAILS_WIDE,
    };
    let kind = if by_bytes {
        NodeKind::InnerBytes
    } else {
        NodeKind::InnerSeparators
    };
    header::write(out, kind, level, group.keys_width_code() | tail_flags, n);
    out[PREFIX_BYTES_AT..PREFIX_BYTES_AT + 4]
        .copy_from_slice(&(group.prefix_bytes as u32).to_le_bytes());

    let keys_bytes = 2usize << group.keys_width_code();
    let children_at = group.children_at();
    let keys_at = children_at + 8 * n;
    let offsets_at = keys_at + keys_bytes * n;
    let prefix_at = offsets_at + offset_bytes * n;
    let tails_at = prefix_at + group.prefix_bytes;
    let lengths_at = SECTIONS_AT + HEAD_BYTES * (n - 1);
    if n > 1 {
        let prefix = &children[1].separator(arena)[..group.prefix_bytes];
        out[prefix_at..tails_at].copy_from_slice(prefix);
    }
    let mut tail_end = 0;
    for (i, child) in children.iter().enumerate() {
        let (child_at, count_at) = (children_at + 8 * i, keys_at + keys_bytes * i);
        out[child_at..child_at + 8].copy_from_slice(&child.node.to_bits().to_le_bytes());
        out[count_at..count_at + keys_bytes]
            .copy_from_slice(&child.keys.to_le_bytes()[..keys_bytes]);
        let Some(slot) = i.checked_sub(1) else {
            continue;
        };
        let rest = &child.separator(arena)[group.prefix_bytes..];
        if by_bytes {
            out[SECTIONS_AT + slot] = rest[0];
            continue;
        }
        let head_at = SECTIONS_AT + HEAD_BYTES * slot;
        out[head_at..head_at + HEAD_BYTES]
            .copy_from_slice(&((head(rest) >> 32) as u32).to_le_bytes());
        out[lengths_at + slot] = rest.len().min(usize::from(LENGTH_TAILED)) as u8;
        let tail = rest.get(HEAD_BYTES..).unwrap_or_default();
        out[tails_at + tail_end..tails_at + tail_end + tail.len()].copy_from_slice(tail);
        tail_end += tail.len();
        let offset_at = offsets_at + offset_bytes * i;
        out[offset_at..offset_at + offset_bytes]
            .copy_from_slice(&(tail_end as u32).to_le_bytes()[..offset_bytes]);
    }
    debug_assert!(
        by_bytes || tail_end == group.tails_bytes,
        "the size that was planned is the size that was written"
    );
}
