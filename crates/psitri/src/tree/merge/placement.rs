//! Where values of moderate length go: into their leaf, or out of it.
//!
//! A merge of entries all over a tree writes each leaf anew for the few changes in it. If the values are in the leaves, that is the whole
//! database, again and again; if the leaves have their places only, it is a small part of it, and each value is written once. (Lu et al., "WiscKey:
//! separating keys from values in SSD-conscious storage", 2016.) But values in leaves are read with fewer misses and lie in the order of their keys. So
//! they are there as long as merges can keep up: they leave where changes are few and far between while buffers pile up, and come back where changes
//! are so many that the leaf is written for little more than these.
//!
//! Values that are out of leaves share pages, and a page is free when the last of them is gone. One that has lost much is emptied by the merges that
//! meet what is left in it.
//!
//! # Invariants
//! (1) A merge moves a value only if it can be read: what is damaged stays where it is, and the merge goes on. A rewrite says so.
//! (2) Where trees share nodes, merges move nothing: a copy would take more space, not less, and values that several leaves refer to are counted
//!     one by one ([`Terms`]).
//! (3) A value that a leaf gives up for another place counts as dead, like one that is replaced.

use std::ops::Add;

use super::{Change, ChangeStream, Merger};
use crate::{
    Result,
    node::{
        Leaf, PAGE_BYTES, Stored, UNIT_BYTES, UNITS_PER_PAGE, VALUE_INLINE_BYTES_MAX, ValuePointer,
    },
    pager::{Pager, Sink},
};

/// Shorter values stay in their leaves in any case: a pointer has a fifth of that, and less is gained by it.
const APART_BYTES_MIN: usize = 128;
/// Values leave where that makes leaves smaller by more than so many times what is changed in them: if all changes are new keys, and
/// if all of them replace or remove others. What is replaced leaves pages half empty, and emptying these writes other values once or twice more.
const APART_WRITES_NEW: usize = 2;
const APART_WRITES_REPLACING: usize = 8;
/// They come back where leaves with all their values are less than so many times as large as the changes: what is written once more then is not much
/// more than the changes, or pages that would be left half empty.
const TOGETHER_WRITES_NEW: usize = 1;
const TOGETHER_WRITES_REPLACING: usize = 5;
/// Where there are many pages that are not full, those are emptied that will have no more units than this, thirteen in sixteen of what values of that length can fill.
const LIVE_UNITS_FEW: usize = UNITS_PER_PAGE / 16 * 13;
/// Longer values leave more than that of their pages unused from the beginning: only a rewrite moves them.
const MOVED_BYTES_MAX: usize = 768;
/// The averages go over about as many leaves.
const LEAVES: usize = 8;
/// What a change has beside key and value.
const CHANGE_BYTES: usize = 16;

/// What a merge may do beside what it must.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Time of the merge; 0 for a tree whose entries do not expire.
    pub now: u64,
    /// Writers wait for it, or soon will: values may leave their leaves, and changes go in front of them.
    pub is_pressed: bool,
    /// Values come back where there are many changes.
    pub brings_back: bool,
    /// Pages that lost much of what was in them are emptied.
    pub empties_pages: bool,
}

impl Terms {
    /// Nothing but the changes.
    pub fn at(now: u64) -> Terms {
        Terms {
            now,
            ..Terms::default()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Values leave.
    Apart,
    /// New ones go into leaves, old ones stay where they are.
    Stay,
    /// All are in leaves.
    Together,
}

/// How much there is in the leaves at which a merge is, and how much is changed there.
#[derive(Debug)]
pub(super) struct Placement {
    terms: Terms,
    /// Of the last leaves, [`LEAVES`] times the averages: keys, and values that are in leaves or might be; and keys and values of changes.
    content: usize,
    /// What of it is not in leaves where values are apart.
    movable: usize,
    changes: usize,
    /// What the changes replace or remove of the content.
    replacing: usize,
    mode: Mode,
    /// A page with no more live units now will have few after the merge.
    live_units_few: usize,
    /// Values of more bytes stay in their pages.
    moved_bytes_max: usize,
    /// The page that was looked at last, and its live units: values with neighbouring keys share pages.
    looked_at: (u64, usize),
}

impl Placement {
    pub fn new(terms: Terms) -> Placement {
        Placement {
            terms,
            content: 0,
            movable: 0,
            changes: 0,
            replacing: 0,
            live_units_few: LIVE_UNITS_FEW,
            moved_bytes_max: MOVED_BYTES_MAX,
            mode: Mode::Stay,
            looked_at: (0, 0),
        }
    }

    /// A change of a key, with so many bytes of value.
    pub fn note_change(&mut self, key: &[u8], value: usize) {
        self.changes += key.len() + value + CHANGE_BYTES;
    }

    /// The change replaces or removes so many bytes of content.
    pub fn note_replaced(&mut self, content: usize) {
        self.replacing += content;
    }

    /// A leaf that has changes had so much content.
    pub fn end_leaf(&mut self, content: Content) {
        self.content += content.bytes;
        self.movable += content.movable;
        let new = self.changes.saturating_sub(self.replacing);
        let weigh = |by_new, by_replacing| by_new * new + by_replacing * self.replacing;
        self.mode = if self.terms.is_pressed
            && self.movable > weigh(APART_WRITES_NEW, APART_WRITES_REPLACING)
        {
            Mode::Apart
        } else if self.terms.brings_back
            && self.content < weigh(TOGETHER_WRITES_NEW, TOGETHER_WRITES_REPLACING)
        {
            Mode::Together
        } else {
            Mode::Stay
        };
        // Those that share a page have keys that are near to one another, and will lose as many.
        let staying = self.content.saturating_sub(self.replacing).max(1);
        self.live_units_few = (LIVE_UNITS_FEW * self.content / staying).min(UNITS_PER_PAGE);
        for sum in [
            &mut self.content,
            &mut self.movable,
            &mut self.changes,
            &mut self.replacing,
        ] {
            *sum -= *sum / LEAVES;
        }
    }

    fn has_few_units(&mut self, pager: &Pager, page: u64, value_bytes: usize) -> bool {
        if self.looked_at.0 != page {
            self.looked_at = (page, pager.live_units_of(page));
        }
        self.are_few(self.looked_at.1, value_bytes)
    }

    /// Whether a page with a value of so many bytes has few live units, for one that could be full of such values.
    fn are_few(&self, live_units: usize, value_bytes: usize) -> bool {
        let value_bytes = value_bytes.clamp(1, PAGE_BYTES);
        let full = (PAGE_BYTES / value_bytes * value_bytes).div_ceil(UNIT_BYTES);
        self.live_units_few == UNITS_PER_PAGE
            || live_units * UNITS_PER_PAGE <= self.live_units_few * full
    }

    /// Whether a value of so many bytes goes out of its leaf.
    pub fn is_apart(&self, bytes: usize) -> bool {
        bytes > VALUE_INLINE_BYTES_MAX || (self.mode == Mode::Apart && bytes >= APART_BYTES_MIN)
    }

    /// Stores what a change puts; `None` if it deletes.
    pub fn store_change<'v>(
        &self,
        sink: &mut Sink<'_>,
        change: Change<'v>,
    ) -> Result<Option<Stored<'v>>> {
        Ok(match change {
            Change::Delete => None,
            Change::Adopt(pointer) => {
                sink.adopt_value(&pointer);
                Some(Stored::External(pointer))
            }
            Change::Put(value) => Some(self.store(sink, value)?),
        })
    }

    /// Stores a value where it goes, or says that it is to be in the leaf.
    pub fn store<'v>(&self, sink: &mut Sink<'_>, value: &'v [u8]) -> Result<Stored<'v>> {
        Ok(if self.is_apart(value.len()) {
            Stored::External(sink.place_value(value)?)
        } else {
            Stored::Inline(value)
        })
    }
}

/// What is in a leaf, or would be if all values of up to 512 bytes were: bytes of keys and values, and what of them goes if values leave.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Content {
    pub bytes: usize,
    movable: usize,
    /// Values that are in the leaf and would leave, and values that are outside.
    might_leave: usize,
    outside: usize,
}

impl Content {
    pub fn of(key_bytes: usize, stored: Stored<'_>) -> Content {
        let (value, is_outside) = match stored {
            Stored::Inline(value) => (value.len(), false),
            Stored::External(pointer) => (pointer.len as usize, true),
        };
        let bytes = if value <= VALUE_INLINE_BYTES_MAX {
            value
        } else {
            ValuePointer::ENCODED_BYTES
        };
        let is_movable = bytes >= APART_BYTES_MIN;
        Content {
            bytes: key_bytes + bytes,
            movable: if is_movable {
                bytes - ValuePointer::ENCODED_BYTES
            } else {
                0
            },
            might_leave: usize::from(is_movable && !is_outside),
            outside: usize::from(is_outside),
        }
    }

    pub fn of_leaf(leaf: Leaf<'_>) -> Content {
        let mut content = Content::default();
        let mut add = |one: Content, times: usize| {
            content.bytes += one.bytes * times;
            content.movable += one.movable * times;
            content.might_leave += one.might_leave * times;
            content.outside += one.outside * times;
        };
        let entry = |index| Content::of(leaf.key_bytes(index), leaf.value(index));
        match leaf.has_uniform_entries() {
            true => add(entry(0), leaf.len()),
            false => (0..leaf.len()).for_each(|index| add(entry(index), 1)),
        }
        content
    }
}

impl Add for Content {
    type Output = Content;

    fn add(self, other: Content) -> Content {
        Content {
            bytes: self.bytes + other.bytes,
            movable: self.movable + other.movable,
            might_leave: self.might_leave + other.might_leave,
            outside: self.outside + other.outside,
        }
    }
}

impl<'p, S: ChangeStream> Merger<'_, 'p, S> {
    /// Whether all entries of a leaf with this content stay as they are, where nothing changes them.
    pub(super) fn keeps_places(&self, content: Content) -> bool {
        let Placement { mode, terms, .. } = &self.placement;
        let leave = *mode == Mode::Apart && content.might_leave > 0;
        let move_on = *mode == Mode::Together || terms.empties_pages;
        !(leave || move_on && content.outside > 0)
    }

    /// Whether values of a leaf with changes are to move into it or out of it.
    pub(super) fn would_move_values(&self, leaf: Leaf<'_>) -> bool {
        match self.placement.mode {
            Mode::Stay => false,
            Mode::Apart => Content::of_leaf(leaf).might_leave > 0,
            Mode::Together => true,
        }
    }

    /// Where a value goes that stays as it is, in a leaf that is taken apart.
    pub(super) fn place_old<'v>(&mut self, stored: Stored<'v>) -> Result<Stored<'v>>
    where
        'p: 'v,
    {
        match stored {
            Stored::Inline(value) => self.placement.store(self.sink, value),
            Stored::External(pointer) if self.is_moved(&pointer) => {
                let value = match self.sink.pager().value_to_move(&pointer) {
                    Ok(value) => value,
                    // (1)
                    Err(_) if self.rewrite.is_none() => return Ok(stored),
                    Err(error) => return Err(error),
                };
                let placed = self.placement.store(self.sink, value)?;
                self.sink.kill_value(&pointer);
                Ok(placed)
            }
            Stored::External(_) => Ok(stored),
        }
    }

    fn is_moved(&mut self, pointer: &ValuePointer) -> bool {
        let pager = self.sink.pager();
        let bytes = pointer.len as usize;
        let comes_back = self.placement.mode == Mode::Together && bytes <= VALUE_INLINE_BYTES_MAX;
        pointer.subtree().is_none()
            && (comes_back
                || self.placement.terms.empties_pages
                    && bytes <= self.placement.moved_bytes_max
                    && self.placement.has_few_units(pager, pointer.page(), bytes))
            && !pager.shares.is_shared(pointer.address_units())
    }

    /// Asks for the values of a leaf that will be moved, so that they arrive side by side.
    pub(super) fn ask_for_values(&self, leaf: Leaf<'_>, from: usize) {
        if self.placement.mode != Mode::Together {
            return;
        }
        for index in from..leaf.len() {
            if let Stored::External(pointer) = leaf.value(index) {
                self.sink.pager().prefetch_value(&pointer);
            }
        }
    }

    /// Packs everything: values of up to 512 bytes into leaves, longer ones into pages with others.
    pub(super) fn pack_values(&mut self) {
        self.placement.mode = Mode::Together;
        self.placement.live_units_few = UNITS_PER_PAGE;
        self.placement.moved_bytes_max = PAGE_BYTES;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CONTENT: usize = 30_000;

    /// After leaves whose content is `parts` times as much as the changes in them, of which a share replaces others.
    fn after_leaves(is_pressed: bool, parts: f64, replaces: f64) -> Placement {
        let mut place = Placement::new(Terms {
            is_pressed,
            brings_back: true,
            ..Terms::default()
        });
        for _ in 0..20 {
            let changes = CONTENT as f64 / parts;
            place.note_change(&[], changes as usize - CHANGE_BYTES);
            place.note_replaced((changes * replaces) as usize);
            place.end_leaf(Content {
                bytes: CONTENT,
                movable: CONTENT,
                ..Content::default()
            });
        }
        place
    }

    fn mode(is_pressed: bool, parts: f64, replaces: f64) -> Mode {
        after_leaves(is_pressed, parts, replaces).mode
    }

    #[test]
    fn values_leave_where_new_keys_are_few_and_buffers_wait() {
        assert_eq!(mode(true, 10.0, 0.0), Mode::Apart);
        assert_eq!(mode(true, 2.5, 0.0), Mode::Apart);
        assert_eq!(mode(true, 1.5, 0.0), Mode::Stay);
        assert_eq!(mode(true, 0.8, 0.0), Mode::Together);
        assert_eq!(mode(false, 10.0, 0.0), Mode::Stay);
        assert_eq!(mode(false, 0.8, 0.0), Mode::Together);
    }

    #[test]
    fn what_replaces_others_needs_to_be_fewer() {
        assert_eq!(mode(true, 10.0, 1.0), Mode::Apart);
        assert_eq!(mode(true, 6.0, 1.0), Mode::Stay);
        assert_eq!(mode(true, 4.0, 1.0), Mode::Together);
        assert_eq!(mode(true, 6.0, 0.5), Mode::Apart);
    }

    #[test]
    fn moderate_lengths_go_where_the_mode_says() {
        let apart = after_leaves(true, 10.0, 0.0);
        let together = after_leaves(true, 0.8, 0.0);
        for (bytes, leaves) in [
            (8, false),
            (127, false),
            (128, true),
            (512, true),
            (513, true),
        ] {
            assert_eq!(apart.is_apart(bytes), leaves, "{bytes}");
            assert_eq!(together.is_apart(bytes), bytes > 512, "{bytes}");
        }
    }

    /// The more a merge replaces, the fuller a page may be that it empties.
    #[test]
    fn pages_are_judged_by_what_will_be_left() {
        assert_eq!(after_leaves(true, 10.0, 0.0).live_units_few, 52);
        let few = after_leaves(true, 10.0, 1.0).live_units_few;
        assert!(
            (57..=59).contains(&few),
            "{few} of 64, of which a tenth goes"
        );
        assert_eq!(after_leaves(true, 1.5, 1.0).live_units_few, UNITS_PER_PAGE);
    }

    /// Five values of 690 bytes take 54 units and leave no room for a sixth.
    #[test]
    fn a_page_that_is_as_full_as_it_can_be_is_left_alone() {
        let place = after_leaves(true, 10.0, 0.5);
        assert!((52..56).contains(&place.live_units_few));
        for bytes in [300, 512, 586, 683, 690, 768] {
            let full = (PAGE_BYTES / bytes * bytes).div_ceil(UNIT_BYTES);
            assert!(!place.are_few(full, bytes), "{bytes}");
            assert!(place.are_few(full * 3 / 4, bytes), "{bytes}");
        }
        let compacting = Placement {
            live_units_few: UNITS_PER_PAGE,
            ..Placement::new(Terms::default())
        };
        assert!(compacting.are_few(UNITS_PER_PAGE, 690));
    }

    #[test]
    fn what_stays_in_leaves_is_taken_off() {
        let (key, value) = ([0; 16], [0; 128]);
        let content = Content::of(key.len(), Stored::Inline(&value));
        assert_eq!((content.bytes, content.movable), (16 + 128, 128 - 24));
        let pointer = ValuePointer::new(2, 0, 128, 0, 1);
        let outside = Content::of(key.len(), Stored::External(pointer));
        assert_eq!((outside.bytes, outside.movable), (16 + 128, 128 - 24));
        let long = ValuePointer::new(2, 0, 513, 0, 1);
        assert_eq!(Content::of(key.len(), Stored::External(long)).movable, 0);
        assert_eq!(
            Content::of(key.len(), Stored::Inline(&value[1..])).movable,
            0
        );
    }

    #[test]
    fn few_leaves_say_nothing_yet() {
        let place = Placement::new(Terms {
            is_pressed: true,
            ..Terms::default()
        });
        assert_eq!(place.mode, Mode::Stay);
    }
}
