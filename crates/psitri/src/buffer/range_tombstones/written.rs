//! `Written`: which keys of a deleted range have values in the same buffer that the deletion does not hide.
//!
//! A range that is deleted leaves the entries of its keys behind, until they are merged. Who comes upon them goes on behind the range at once, or where something
//! was written later, in place of passing them one by one.
//!
//! # Thread safety
//! One writer; any number of readers, who see at least what was noted before the commits that they see.
//!
//! # Invariants
//! 1. Who writes a value notes it with the newest tombstone over the key of those that know, before the version can be found. So what a reader sees of a range for which one of them
//!    is the newest tombstone (of all that it sees) lies from `first` to `last`, up to where a newer one begins. A tombstone is undone after all that was written over it.
//! 2. A tombstone knows from its beginning, or never. It does not where a transaction is written anew, from the log or into another buffer: versions may come before a tombstone that
//!    they win over. Nor where few entries lie in the range: writers would look for nothing worth it. Where many know, the older ones forget, before anything else is written.

use std::cmp::Ordering as Order;

use super::RangeTombstone;
use crate::{
    buffer::{
        arena::Memory,
        entry::{Entry, EntryRef},
    },
    sync::{AtomicU32, Ordering},
};

/// Of no entry: anything may have been written.
const UNKNOWN: u32 = u32::MAX;

/// See the module text. References of entries, 0 if there are none.
#[derive(Debug)]
pub(in crate::buffer) struct Written {
    first: AtomicU32,
    last: AtomicU32,
}

impl Written {
    pub fn nothing() -> Written {
        Written {
            first: AtomicU32::new(0),
            last: AtomicU32::new(0),
        }
    }

    pub fn unknown() -> Written {
        Written {
            first: AtomicU32::new(UNKNOWN),
            last: AtomicU32::new(UNKNOWN),
        }
    }

    pub fn is_known(&self) -> bool {
        self.first.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Nothing is noted any more. Writer only.
    pub fn forget(&self) {
        self.first.store(UNKNOWN, Ordering::Release);
    }

    /// A value is about to be written to an entry. Writer only, where it is known what was written before.
    pub fn note(&self, memory: Memory<'_>, entry: EntryRef) {
        let key = Entry::of(memory, entry).key();
        debug_assert!(self.is_known());
        let is_further = |place: &AtomicU32, order: Order| match place.load(Ordering::Relaxed) {
            0 => true,
            place => key.cmp(Entry::of(memory, EntryRef(place)).key()) == order,
        };
        if is_further(&self.first, Order::Less) {
            self.first.store(entry.0, Ordering::Release);
        }
        if is_further(&self.last, Order::Greater) {
            self.last.store(entry.0, Ordering::Release);
        }
    }

    fn keys<'m>(&self, memory: Memory<'m>) -> Keys<'m> {
        // Each once: it may be forgotten meanwhile.
        let places = [&self.first, &self.last].map(|place| place.load(Ordering::Acquire));
        if places.contains(&UNKNOWN) {
            return Keys::Unknown;
        }
        // Where one is there before the other, it is of a commit that the reader does not see.
        if places.contains(&0) {
            return Keys::None;
        }
        let [first, last] = places.map(|place| Entry::of(memory, EntryRef(place)).key());
        Keys::Between(first, last)
    }
}

enum Keys<'m> {
    Unknown,
    None,
    Between(&'m [u8], &'m [u8]),
}

/// Where nothing ends that a reader could see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dead<'b> {
    /// There is nothing between a key and this one, which is further in the direction of the search.
    Until(&'b [u8]),
    /// There is nothing more at all.
    ToTheEnd,
}

impl RangeTombstone {
    /// Up to where nothing is seen behind `key`, in a range of which this is the newest tombstone, but for others that begin later.
    pub(super) fn dead_after<'b>(&'b self, memory: Memory<'b>, key: &[u8]) -> Option<Dead<'b>> {
        let to_its_end = self.hi().map_or(Dead::ToTheEnd, Dead::Until);
        match self.written.keys(memory) {
            Keys::Unknown => None,
            Keys::Between(first, _) if key < first => Some(Dead::Until(first)),
            Keys::Between(_, last) if key < last => None,
            Keys::Between(..) | Keys::None => Some(to_its_end),
        }
    }

    /// Down to where nothing is seen before `key`, in the same sense.
    pub(super) fn dead_before<'b>(&'b self, memory: Memory<'b>, key: &[u8]) -> Option<&'b [u8]> {
        let end = match self.written.keys(memory) {
            Keys::Unknown => return None,
            Keys::Between(_, last) if key > last => last,
            Keys::Between(first, _) if key > first => return None,
            Keys::Between(..) | Keys::None => self.lo(),
        };
        (end < key).then_some(end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        buffer::{Arena, BufferWriter, CSN_UNCOMMITTED, Found, KeyspaceBuffer, Kind, TombstoneRef},
        sync::Arc,
    };
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    const KEYS: u8 = 40;

    fn buffer() -> (Arc<KeyspaceBuffer>, BufferWriter) {
        let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(1 << 20).unwrap()));
        let writer = buffer.writer().unwrap();
        (buffer, writer)
    }

    /// One step of a transaction that is under way.
    enum Step {
        Version(EntryRef, crate::buffer::VersionRef),
        Range(TombstoneRef),
    }

    #[derive(Default)]
    struct Txn(Vec<Step>);

    impl Txn {
        fn put(&mut self, writer: &mut BufferWriter, key: &[u8], kind: Kind) {
            let payload: &[u8] = if kind == Kind::Value { b"v" } else { b"" };
            let (entry, outcome) = writer.put(key, kind, payload, Default::default()).unwrap();
            if outcome.pushed {
                self.0.push(Step::Version(entry, outcome.version));
            }
        }

        /// As transactions do: what they wrote in the range becomes a tombstone first.
        fn delete(&mut self, writer: &mut BufferWriter, lo: &[u8], hi: Option<&[u8]>) {
            let mut own = Vec::new();
            writer.uncommitted_in_range(lo, hi, usize::MAX, &mut own);
            for entry in own {
                let key = writer.key(entry).to_vec();
                self.put(writer, &key, Kind::Tombstone);
            }
            self.0.push(Step::Range(writer.add_range_tombstone(lo, hi)));
        }

        fn end(self, writer: &mut BufferWriter, csn: Option<u64>) {
            for step in self.0.into_iter().rev() {
                match (step, csn) {
                    (Step::Version(_, version), Some(csn)) => writer.stamp(version, csn),
                    (Step::Version(entry, version), None) => writer.undo(entry, version),
                    (Step::Range(range), Some(csn)) => writer.stamp_range_tombstone(&range, csn),
                    (Step::Range(range), None) => writer.undo_range_tombstone(&range),
                }
            }
        }
    }

    /// How many keys were passed at once.
    fn check(buffer: &KeyspaceBuffer, csn: u64) -> usize {
        let is_there = |key: u8| {
            #[expect(unsafe_code, reason = "what a transaction itself sees")]
            let found = match csn {
                // SAFETY: there is one thread.
                CSN_UNCOMMITTED => unsafe { buffer.get_own(&[key]) },
                _ => buffer.get(&[key], csn),
            };
            matches!(found, Found::Value(_))
        };
        let mut passed = 0;
        for key in (0..KEYS).filter(|&key| !is_there(key)) {
            let end = match buffer.dead_after(&[key], csn) {
                Some(Dead::Until(end)) => end[0].min(KEYS),
                Some(Dead::ToTheEnd) => KEYS,
                None => key + 1,
            };
            assert!(end > key);
            for between in key + 1..end {
                assert!(!is_there(between), "{between} behind {key} at {csn}");
                passed += 1;
            }
            let begin = match buffer.dead_before(&[key], csn) {
                Some(begin) => begin[0],
                None => key,
            };
            for between in begin + 1..key {
                assert!(!is_there(between), "{between} before {key} at {csn}");
                passed += 1;
            }
        }
        passed
    }

    #[test]
    fn nothing_is_passed_that_somebody_sees() {
        let mut passed = 0;
        for seed in 0..300 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (buffer, mut writer) = buffer();
            let mut csn = 0;
            for _ in 0..random.random_range(1..20) {
                let mut txn = Txn::default();
                for _ in 0..random.random_range(1..12) {
                    let key = random.random_range(0..KEYS);
                    match random.random_range(0..8) {
                        0 | 1 => {
                            let hi = random.random_range(key + 1..=KEYS);
                            let hi = (hi < KEYS).then_some([hi]);
                            txn.delete(&mut writer, &[key], hi.as_ref().map(|hi| &hi[..]));
                        }
                        2 => txn.put(&mut writer, &[key], Kind::Tombstone),
                        _ => txn.put(&mut writer, &[key], Kind::Value),
                    }
                    passed += check(&buffer, CSN_UNCOMMITTED);
                }
                let is_committed = random.random_bool(0.8);
                csn += u64::from(is_committed);
                txn.end(&mut writer, is_committed.then_some(csn));
                // Older snapshots, too.
                for csn in 1..=csn {
                    passed += check(&buffer, csn);
                }
            }
        }
        assert!(passed > 100_000, "{passed}");
    }

    #[test]
    fn a_range_is_passed_at_once_but_for_what_was_written_since() {
        let (buffer, mut writer) = buffer();
        let mut txn = Txn::default();
        (0..KEYS).for_each(|key| txn.put(&mut writer, &[key], Kind::Value));
        txn.delete(&mut writer, &[5], Some(&[30]));
        txn.end(&mut writer, Some(1));
        assert_eq!(buffer.dead_after(&[5], 1), Some(Dead::Until(&[30])));
        assert_eq!(buffer.dead_before(&[29], 1), Some(&[5][..]));
        assert_eq!(buffer.dead_after(&[4], 1), None);
        assert_eq!(buffer.dead_after(&[5], 0), None);
        for key in [12, 14, 10] {
            let mut txn = Txn::default();
            txn.put(&mut writer, &[key], Kind::Value);
            txn.end(&mut writer, Some(2));
        }
        assert_eq!(buffer.dead_after(&[5], 2), Some(Dead::Until(&[10])));
        assert_eq!(buffer.dead_after(&[11], 2), None);
        assert_eq!(buffer.dead_after(&[15], 2), Some(Dead::Until(&[30])));
        assert_eq!(buffer.dead_before(&[29], 2), Some(&[14][..]));
        assert_eq!(buffer.dead_before(&[13], 2), None);
        assert_eq!(buffer.dead_before(&[9], 2), Some(&[5][..]));
        // A later deletion knows for itself.
        let mut txn = Txn::default();
        txn.delete(&mut writer, &[8], None);
        txn.end(&mut writer, Some(3));
        assert_eq!(buffer.dead_after(&[6], 3), Some(Dead::Until(&[8])));
        assert_eq!(buffer.dead_after(&[8], 3), Some(Dead::ToTheEnd));
        assert_eq!(buffer.dead_before(&[39], 3), Some(&[8][..]));
    }

    #[test]
    fn nothing_is_known_of_what_is_put_back() {
        let (buffer, mut writer) = buffer();
        let mut txn = Txn::default();
        txn.put(&mut writer, &[7], Kind::Value);
        let range = writer.put_back_range_tombstone(&[0], None);
        txn.0.push(Step::Range(range));
        txn.put(&mut writer, &[9], Kind::Value);
        txn.end(&mut writer, Some(1));
        assert_eq!(buffer.dead_after(&[1], 1), None);
        assert_eq!(buffer.dead_before(&[20], 1), None);
        assert_eq!(buffer.get(&[7], 1), Found::Value(b"v"));
    }
}
