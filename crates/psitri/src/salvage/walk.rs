//! One tree, leaf by leaf, past what cannot be read.
//!
//! # Invariants
//! (1) A leaf is given only if every node on its path passed its own checks and is what its parent says: level, number of keys, keys
//!     within its separators, not younger than the tree. A node that was never written (the place holds an older one, with a right checksum)
//!     fails by that.
//! (2) A child that fails is one lost range, with the number of keys that its parent says. Lost ranges come in order; neighbours are one.
//! (3) A leaf with a delta is given as leaves in memory that have the changes in them. If the leaf cannot be read, its range is lost but for the
//!     entries of the delta.

use std::collections::VecDeque;

use super::{LostRange, file::DamagedFile, file::Unreadable, for_each_entry};
use crate::{
    node::{self, Delta, Inner, Leaf, LeafPacker, NodeRef},
    tree::{ChangedLeaf, Root},
};

/// A node that something refers to, and what it must be.
struct Claim {
    at: NodeRef,
    /// `None` for a root.
    level: Option<u8>,
    keys: u64,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl Claim {
    /// Whether what a node names lies within its bounds.
    fn holds(&self, named: &Named) -> bool {
        named.as_ref().is_none_or(|(first, last)| {
            *first >= self.lower && self.upper.as_ref().is_none_or(|upper| last < upper)
        })
    }
}

/// An inner node on the way down.
struct Step {
    bytes: Vec<u8>,
    next: usize,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

pub(super) struct Walk<'f> {
    file: &'f DamagedFile,
    root: Option<Claim>,
    path: Vec<Step>,
    /// Leaves of a delta that were not given yet (3).
    joined: VecDeque<Vec<u8>>,
    birth_max: u64,
    pub lost: Vec<LostRange>,
    /// Every node on the way to a leaf that was given, and the leaves: references without what they say of deltas.
    pub reached: Vec<NodeRef>,
}

impl<'f> Walk<'f> {
    /// `birth_max`: version of the tree. A younger node is one that took the place of what belonged here.
    pub fn new(file: &'f DamagedFile, root: Root, birth_max: u64) -> Walk<'f> {
        let claim = Claim {
            at: root.node,
            level: None,
            keys: root.keys,
            lower: Vec::new(),
            upper: None,
        };
        Walk {
            file,
            root: Some(claim).filter(|_| !root.node.is_null()),
            path: Vec::new(),
            joined: VecDeque::new(),
            birth_max,
            lost: Vec::new(),
            reached: Vec::new(),
        }
    }

    /// The next leaf that can be read.
    pub fn next_leaf(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(leaf) = self.joined.pop_front() {
                return Some(leaf);
            }
            let claim = self.root.take().or_else(|| self.next_claim())?;
            match self.open(&claim) {
                Ok(bytes) => {
                    self.reached.push(claim.at.with_deltas(false));
                    if node::is_leaf(&bytes) {
                        return Some(bytes);
                    }
                    if let Ok(delta) = Delta::open(&bytes) {
                        self.join(claim, delta, &bytes);
                        continue;
                    }
                    self.path.push(Step {
                        bytes,
                        next: 0,
                        lower: claim.lower,
                        upper: claim.upper,
                    });
                }
                Err(what) => self.lose(claim, what),
            }
        }
    }

    fn next_claim(&mut self) -> Option<Claim> {
        loop {
            let step = self.path.last_mut()?;
            let inner = Inner::open(&step.bytes).ok()?;
            let index = step.next;
            if index == inner.len() {
                self.path.pop();
                continue;
            }
            step.next += 1;
            let (lower, upper) = child_bounds(&inner, index);
            return Some(Claim {
                at: inner.child(index),
                level: Some(inner.level() - 1),
                keys: inner.child_keys(index),
                lower: lower.unwrap_or_else(|| step.lower.clone()),
                upper: upper.or_else(|| step.upper.clone()),
            });
        }
    }

    /// (1)
    fn open(&self, claim: &Claim) -> Result<Vec<u8>, Unreadable> {
        let bytes = self.file.node(claim.at)?;
        if claim
            .level
            .is_some_and(|level| level != node::level(&bytes))
        {
            return Err("a node of another level lies there".to_owned());
        }
        if node::birth(&bytes) > self.birth_max {
            return Err("a younger node took its place".to_owned());
        }
        let (keys, named) = summary(&bytes);
        if keys != claim.keys || !claim.holds(&named) {
            return Err("another node lies there, perhaps an older one".to_owned());
        }
        Ok(bytes)
    }

    /// (3)
    fn join(&mut self, mut claim: Claim, delta: Delta<'_>, bytes: &[u8]) {
        let mut packer = LeafPacker::new();
        match self.open_behind(&claim, delta, node::birth(bytes)) {
            Ok(base) => {
                self.reached.push(delta.base());
                let leaf = Leaf::open(&base).expect("it was opened as one");
                let mut changed = ChangedLeaf::new(leaf, delta);
                while let Some((leaf, run)) = changed.next_run() {
                    packer.push_range(&leaf, run);
                }
            }
            Err(what) => {
                for_each_entry(bytes, |key, stored| packer.push(key, stored));
                claim.keys = claim.keys.saturating_sub(packer.pending_len() as u64);
                claim.at = delta.base();
                self.lose(claim, what);
            }
        }
        while let Some(image) = packer.pop_last(false) {
            self.joined.push_back(image.bytes.to_vec());
        }
    }

    /// The leaf behind a delta, if it is what the delta and its parent say.
    fn open_behind(
        &self,
        claim: &Claim,
        delta: Delta<'_>,
        birth_max: u64,
    ) -> Result<Vec<u8>, Unreadable> {
        let bytes = self.file.node(delta.base())?;
        if node::birth(&bytes) > birth_max {
            return Err("a younger node took its place".to_owned());
        }
        let fits = Leaf::open(&bytes).is_ok_and(|leaf| delta.fits(leaf));
        if !fits || !claim.holds(&summary(&bytes).1) {
            return Err("another node lies there, perhaps an older one".to_owned());
        }
        Ok(bytes)
    }

    /// (2)
    fn lose(&mut self, claim: Claim, what: Unreadable) {
        if let Some(before) = self.lost.last_mut()
            && before.to.as_ref() == Some(&claim.lower)
        {
            before.keys = before.keys.saturating_add(claim.keys);
            before.to = claim.upper;
            return;
        }
        self.lost.push(LostRange {
            from: claim.lower,
            to: claim.upper,
            keys: claim.keys,
            offset: claim.at.byte_offset(),
            what,
        });
    }
}

/// What an inner node says of the keys below a child; `None` where it is the bound of the node itself.
pub(super) fn child_bounds(inner: &Inner<'_>, index: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let separator = |index: usize| {
        let mut key = Vec::new();
        inner.separator(index, &mut key);
        key
    };
    (
        (index > 0).then(|| separator(index)),
        (index + 1 < inner.len()).then(|| separator(index + 1)),
    )
}

/// First and last key or separator that a node names; `None` for an inner node with one child.
pub(super) type Named = Option<(Vec<u8>, Vec<u8>)>;

/// Number of keys below a checked node, and the first and last key that it names itself.
pub(super) fn summary(bytes: &[u8]) -> (u64, Named) {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let entries = match Delta::open(bytes) {
        Ok(delta) => Some((delta.keys(), delta.entries())),
        Err(_) => Leaf::open(bytes).ok().map(|leaf| (leaf.len() as u64, leaf)),
    };
    if let Some((keys, leaf)) = entries {
        leaf.first_key(&mut first);
        leaf.last_key(&mut last);
        return (keys, Some((first, last)));
    }
    let Ok(inner) = Inner::open(bytes) else {
        return (0, None);
    };
    if inner.len() == 1 {
        return (inner.total_keys(), None);
    }
    inner.separator(1, &mut first);
    inner.separator(inner.len() - 1, &mut last);
    (inner.total_keys(), Some((first, last)))
}
