//! How far a merge is, for those who wait for its end.
//!
//! # Thread safety
//! The merge thread begins and ends; its helpers tell how many entries they passed, a few dozen at a time. Everybody may look.
//!
//! # Invariants
//! (1) What is counted are entries of buffers: a key that several buffers have counts once for each of them. Those that a range delete hides
//!     are not counted, and some dozens of each keyspace are told late: the end may come early. All entries count alike, whatever their place in
//!     a tree costs: what is left is an estimate.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Mutex, Ordering, OwnLines};

/// Entries that are told at once.
const TOLD_AT_ONCE: u64 = 64;
/// A merge that has passed less than this share of its entries is expected to take as long as the one before.
const KNOWN_SHARE: u64 = 32;

/// The merge that is under way, if there is one.
#[derive(Default)]
pub(crate) struct Headway {
    course: Mutex<Course>,
    passed: OwnLines<AtomicU64>,
}

#[derive(Default)]
struct Course {
    /// Since when, and how many entries there are.
    running: Option<(Instant, u64)>,
    /// How long the last one took for an entry, in nanoseconds.
    entry_ns: u64,
}

impl Headway {
    /// A merge of so many entries begins.
    pub fn begin(&self, entries: u64) {
        self.passed.store(0, Ordering::Relaxed);
        self.course.lock().running = Some((Instant::now(), entries));
    }

    /// It is done, or has failed.
    pub fn end(&self, is_done: bool) {
        let mut course = self.course.lock();
        if let (Some((since, entries @ 1..)), true) = (course.running.take(), is_done) {
            course.entry_ns = since.elapsed().as_nanos() as u64 / entries;
        }
    }

    /// How long the merge that is under way will take from now on, about.
    pub fn left(&self) -> Option<Duration> {
        let course = self.course.lock();
        let (since, entries) = course.running?;
        let passed = self.passed.load(Ordering::Relaxed).min(entries);
        Some(left(since.elapsed(), passed, entries, course.entry_ns))
    }
}

fn left(spent: Duration, passed: u64, entries: u64, entry_ns: u64) -> Duration {
    if passed * KNOWN_SHARE < entries {
        return Duration::from_nanos(entry_ns.saturating_mul(entries)).saturating_sub(spent);
    }
    let left = u128::from(entries - passed) * spent.as_nanos() / u128::from(passed.max(1));
    Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

/// Counts the entries that a stream of changes passes.
#[derive(Default)]
pub(crate) struct Tally<'a> {
    to: Option<&'a AtomicU64>,
    untold: u64,
}

impl<'a> Tally<'a> {
    pub fn of(headway: &'a Headway) -> Tally<'a> {
        Tally {
            to: Some(&headway.passed.0),
            untold: 0,
        }
    }

    #[inline]
    pub fn note(&mut self, entries: u64) {
        self.untold += entries;
        if self.untold >= TOLD_AT_ONCE {
            self.tell();
        }
    }

    #[inline(never)]
    fn tell(&mut self) {
        if let Some(to) = self.to {
            to.fetch_add(self.untold, Ordering::Relaxed);
        }
        self.untold = 0;
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_passed_and_at_first_from_the_merge_before() {
        let ms = Duration::from_millis;
        // A quarter took 300 ms.
        assert_eq!(left(ms(300), 250, 1000, 7), ms(900));
        assert_eq!(left(ms(300), 1000, 1000, 7), ms(0));
        // It has hardly begun: 1 µs for an entry.
        assert_eq!(left(ms(10), 1, 50_000, 1000), ms(40));
        assert_eq!(left(ms(100), 1, 50_000, 1000), ms(0));
        // There is nothing to merge.
        assert_eq!(left(ms(100), 0, 0, 1000), ms(0));
    }

    #[test]
    fn entries_are_told_while_a_merge_goes_on_and_forgotten_when_the_next_begins() {
        let headway = Headway::default();
        assert_eq!(headway.left(), None);
        headway.begin(4 * TOLD_AT_ONCE);
        let mut tally = Tally::of(&headway);
        tally.note(TOLD_AT_ONCE - 1);
        assert_eq!(headway.passed.load(Ordering::Relaxed), 0);
        tally.note(2);
        assert_eq!(headway.passed.load(Ordering::Relaxed), TOLD_AT_ONCE + 1);
        tally.note(1);
        drop(tally);
        assert_eq!(headway.passed.load(Ordering::Relaxed), TOLD_AT_ONCE + 2);
        std::thread::sleep(Duration::from_millis(5));
        assert!(headway.left().expect("it is under way") >= Duration::from_millis(5));
        headway.end(true);
        assert_eq!(headway.left(), None);
        headway.begin(1 << 30);
        assert_eq!(headway.passed.load(Ordering::Relaxed), 0);
        // 5 ms for 256 entries: hours for so many.
        assert!(headway.left().expect("it is under way") > Duration::from_secs(3600));
    }
}
