//! When leaves are packed anew although their changes could be patched in: where a run of neighbours leaves much of its pages unused.
//!
//! A leaf that got one entry too many becomes two of a little more than half a page, and two such leaves do not share a page. Where keys
//! are added here and there and values replaced everywhere else, patching would keep that for ever. In a merge that meets most leaves it
//! costs little to let them flow through the packer, and they come out full. A leaf alone could only come out as it went in.

use crate::node::{PAGE_BYTES, UNIT_BYTES, UNITS_PER_PAGE};

/// The average goes over about as many leaves.
const LEAVES: usize = 8;
/// Leaves that leave so much of a page unused, one in so many parts, are packed anew.
const SHARE: usize = 8;

/// What the leaves of a run, up to the one at which a merge is, leave unused.
#[derive(Debug, Default)]
pub(super) struct Slack {
    /// Of the last leaves, [`LEAVES`] times the average. A run begins with none.
    bytes: usize,
}

impl Slack {
    /// The next leaf has no changes: a run ends.
    pub(super) fn end_run(&mut self) {
        self.bytes = 0;
    }

    /// The next leaf has changes; it has `entries` in `image_bytes`. Whether it is to be packed anew.
    pub(super) fn is_much_with(&mut self, image_bytes: usize, entries: usize) -> bool {
        self.bytes = self.bytes - self.bytes / LEAVES + unused_bytes(image_bytes, entries);
        self.bytes > LEAVES * PAGE_BYTES / SHARE
    }
}

/// How much of its share of a page a leaf leaves unused, if all were like it, and more than one of its entries would fit.
fn unused_bytes(image_bytes: usize, entries: usize) -> usize {
    let units = (image_bytes / UNIT_BYTES).clamp(1, UNITS_PER_PAGE);
    let share = UNITS_PER_PAGE / (UNITS_PER_PAGE / units);
    ((share - units) * UNIT_BYTES).saturating_sub(image_bytes / entries.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_much_at(leaves: &[usize]) -> Option<usize> {
        let mut slack = Slack::default();
        leaves
            .iter()
            .position(|&bytes| slack.is_much_with(bytes, 32))
    }

    #[test]
    fn long_runs_of_leaves_that_do_not_fill_pages_have_much() {
        assert_eq!(is_much_at(&[2112; 2]), None);
        assert!(is_much_at(&[2112; 8]).is_some());
        assert!(is_much_at(&[4096, 2112, 2112].repeat(8)).is_some());
        assert!(is_much_at(&[3008; 32]).is_some());
    }

    #[test]
    fn full_leaves_and_such_as_share_pages_have_not() {
        for bytes in [4096, 4032, 3840, 2048, 1984, 1344, 64] {
            assert_eq!(is_much_at(&[bytes; 100]), None, "{bytes}");
        }
        // One in twenty.
        let mut leaves = [4096; 20];
        leaves[7] = 2112;
        assert_eq!(is_much_at(&leaves.repeat(10)), None);
    }

    #[test]
    fn leaves_with_room_for_less_than_an_entry_have_not() {
        let mut slack = Slack::default();
        assert!((0..100).all(|_| !slack.is_much_with(3200, 4)));
    }

    #[test]
    fn a_run_begins_with_none() {
        let mut slack = Slack::default();
        for _ in 0..100 {
            slack.end_run();
            assert!(!slack.is_much_with(2112, 32));
            assert!(!slack.is_much_with(2112, 32));
        }
    }
}
