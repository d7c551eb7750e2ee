//! One keyspace, as some reader sees it, against what the oracle says.

use std::{
    ops::{Bound, ControlFlow},
    time::{Duration, UNIX_EPOCH},
};

use psitri::{Cursor, Expiry, Keyspace, Result, Snapshot, WriteTxn};

use super::{
    common::Random,
    keys::Keys,
    oracle::{Entries, digest},
};

/// What snapshots and transactions have in common.
pub trait Reader {
    fn value(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&[u8]>>;
    fn moment(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Expiry>>;
    fn open(&self, keyspace: &Keyspace) -> Result<Cursor<'_>>;
    fn number(&self, keyspace: &Keyspace, range: Range<'_>) -> Result<u64>;
    /// Rank and nth key, where the reader has them.
    fn rank(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Result<u64>>;
    fn nth(&self, keyspace: &Keyspace, rank: u64) -> Option<Result<Option<Vec<u8>>>>;
}

pub type Range<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

impl Reader for Snapshot {
    fn value(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&[u8]>> {
        self.get(keyspace, key)
    }
    fn moment(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Expiry>> {
        self.expiry(keyspace, key)
    }
    fn open(&self, keyspace: &Keyspace) -> Result<Cursor<'_>> {
        self.cursor(keyspace)
    }
    fn number(&self, keyspace: &Keyspace, range: Range<'_>) -> Result<u64> {
        self.count(keyspace, range)
    }
    fn rank(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Result<u64>> {
        Some(Snapshot::rank(self, keyspace, key))
    }
    fn nth(&self, keyspace: &Keyspace, rank: u64) -> Option<Result<Option<Vec<u8>>>> {
        Some(Snapshot::nth(self, keyspace, rank))
    }
}

impl Reader for WriteTxn {
    fn value(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&[u8]>> {
        self.get(keyspace, key)
    }
    fn moment(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Expiry>> {
        self.expiry(keyspace, key)
    }
    fn open(&self, keyspace: &Keyspace) -> Result<Cursor<'_>> {
        self.cursor(keyspace)
    }
    fn number(&self, keyspace: &Keyspace, range: Range<'_>) -> Result<u64> {
        self.count(keyspace, range)
    }
    fn rank(&self, _: &Keyspace, _: &[u8]) -> Option<Result<u64>> {
        None
    }
    fn nth(&self, _: &Keyspace, _: u64) -> Option<Result<Option<Vec<u8>>>> {
        None
    }
}

fn short(key: &[u8]) -> String {
    let shown = key.len().min(24);
    format!("{:?} ({} bytes)", &key[..shown], key.len())
}

fn assert_entry(cursor: &Cursor<'_>, expected: &Entries, at: Option<usize>, what: &str) {
    assert_eq!(cursor.is_valid(), at.is_some(), "{what}: validity");
    match at {
        None => assert!(
            cursor.key().is_empty() && cursor.entry().is_none(),
            "{what}"
        ),
        Some(at) => {
            let (key, value) = &expected[at];
            let (found, seen) = (short(cursor.key()), short(key));
            assert!(cursor.key() == &key[..], "{what}: {found}, not {seen}");
            assert!(cursor.value() == value.bytes(), "{what}: value of {seen}");
        }
    }
}

/// Everything: both directions, every look-up, counts.
pub fn all<R: Reader>(reader: &R, keyspace: &Keyspace, expected: &Entries) {
    let mut cursor = reader.open(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    for at in 0..expected.len() {
        assert!(found, "the scan ended at {at} of {}", expected.len());
        assert_entry(&cursor, expected, Some(at), "forward scan");
        found = cursor.next().unwrap();
    }
    assert!(!found, "more keys than there are: {}", short(cursor.key()));
    let mut found = cursor.seek_last().unwrap();
    for at in (0..expected.len()).rev() {
        assert!(found, "the scan back ended at {at}");
        assert_entry(&cursor, expected, Some(at), "backward scan");
        found = cursor.prev().unwrap();
    }
    assert!(!found, "backward scan");
    let mut at = 0;
    let visit = |key: &[u8], value: &[u8]| {
        assert!(key == &expected[at].0[..] && value == expected[at].1.bytes());
        at += 1;
        ControlFlow::Continue(())
    };
    reader.open(keyspace).unwrap().for_each(visit).unwrap();
    assert_eq!(at, expected.len(), "for_each");
    for (key, value) in expected {
        let found = reader.value(keyspace, key).unwrap();
        assert!(found == Some(&value.bytes()[..]), "get of {}", short(key));
        let wanted = match value.expires {
            0 => Expiry::Never,
            at => Expiry::At(UNIX_EPOCH + Duration::from_millis(at)),
        };
        let found = reader.moment(keyspace, key).unwrap();
        assert_eq!(found, Some(wanted), "expiry of {}", short(key));
    }
    let everything = (Bound::Unbounded, Bound::Unbounded);
    let number = reader.number(keyspace, everything).unwrap();
    assert_eq!(number, expected.len() as u64, "count of everything");
}

/// Many look-ups at once: keys that are there, keys that are not, some of them twice.
pub fn many(
    snapshot: &Snapshot,
    keyspace: &Keyspace,
    expected: &Entries,
    keys: &Keys,
    random: &mut Random,
) {
    let wanted: Vec<_> = (0..random.below(40)).map(|_| keys.near(random)).collect();
    let asked: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let found = snapshot.get_many(keyspace, &asked).unwrap();
    assert_eq!(found.len(), asked.len());
    for (key, found) in asked.into_iter().zip(found) {
        let at = expected.binary_search_by(|(k, _)| k[..].cmp(key)).ok();
        let wanted = at.map(|at| expected[at].1.bytes());
        assert!(found == wanted.as_deref(), "{} of many", short(key));
    }
}

/// Digest of all that a reader sees.
pub fn digest_of(snapshot: &Snapshot, keyspace: &Keyspace) -> u64 {
    let mut sum = 0u64;
    let add = |key: &[u8], value: &[u8]| {
        sum = sum.wrapping_add(digest(key, value));
        ControlFlow::Continue(())
    };
    snapshot.for_each(keyspace, .., add).unwrap();
    sum
}

/// First entry at or after `key`.
fn lower(expected: &Entries, key: &[u8]) -> usize {
    expected.partition_point(|(k, _)| &k[..] < key)
}

/// Some look-ups, a walk of a cursor, counts, ranks.
pub fn some<R: Reader>(
    reader: &R,
    keyspace: &Keyspace,
    expected: &Entries,
    keys: &Keys,
    random: &mut Random,
) {
    for _ in 0..6 {
        let key = keys.near(random);
        let at = lower(expected, &key);
        let there = expected.get(at).filter(|(k, _)| k[..] == key[..]);
        let found = reader.value(keyspace, &key).unwrap();
        let wanted = there.map(|(_, value)| value.bytes());
        assert!(found == wanted.as_deref(), "get of {}", short(&key));
        if let Some(rank) = reader.rank(keyspace, &key) {
            assert_eq!(rank.unwrap(), at as u64, "rank of {}", short(&key));
        }
        let rank = random.below(expected.len() + 2);
        if let Some(found) = reader.nth(keyspace, rank as u64) {
            let wanted = expected.get(rank).map(|(key, _)| key.to_vec());
            let found = found.unwrap();
            let shown = (found.as_deref().map(short), wanted.as_deref().map(short));
            let len = expected.len();
            assert!(found == wanted, "key number {rank} of {len}: {shown:?}");
        }
    }
    for _ in 0..3 {
        let (a, b) = (keys.near(random), keys.near(random));
        let (from, to) = (lower(expected, &a), lower(expected, &b));
        let here = |at: usize, key: &[u8]| {
            usize::from(expected.get(at).is_some_and(|(k, _)| &k[..] == key))
        };
        let (range, ends): (Range<'_>, _) = match random.below(4) {
            0 => ((Bound::Included(&a), Bound::Excluded(&b)), (from, to)),
            1 => {
                let ends = (from + here(from, &a), to + here(to, &b));
                ((Bound::Excluded(&a), Bound::Included(&b)), ends)
            }
            2 => (
                (Bound::Included(&a), Bound::Unbounded),
                (from, expected.len()),
            ),
            _ => ((Bound::Unbounded, Bound::Excluded(&b)), (0, to)),
        };
        let number = reader.number(keyspace, range).unwrap();
        let wanted = ends.1.saturating_sub(ends.0) as u64;
        assert_eq!(number, wanted, "count from {} to {}", short(&a), short(&b));
    }
    walk(reader, keyspace, expected, keys, random);
}

/// Random moves of a cursor, in bounds or not.
fn walk<R: Reader>(
    reader: &R,
    keyspace: &Keyspace,
    expected: &Entries,
    keys: &Keys,
    random: &mut Random,
) {
    let mut cursor = reader.open(keyspace).unwrap();
    let (mut first, mut end) = (0, expected.len());
    match random.below(4) {
        0 => {
            let (a, b) = (keys.near(random), keys.near(random));
            (first, end) = (lower(expected, &a), lower(expected, &b));
            cursor = cursor.with_range(&a[..]..&b[..]);
        }
        1 => {
            let key = keys.draw(random);
            let prefix = &key[..random.below(key.len() + 1)];
            first = lower(expected, prefix);
            end = first + expected[first..].partition_point(|(k, _)| k.starts_with(prefix));
            cursor = cursor.with_prefix(prefix);
        }
        _ => {}
    }
    let end = end.max(first);
    let inside = |at: Option<usize>| at.filter(|at| (first..end).contains(at));
    let mut at: Option<usize> = None;
    for _ in 0..random.between(5, 40) {
        let (what, found) = match random.below(12) {
            0 => {
                at = inside(Some(first));
                ("seek_first", cursor.seek_first())
            }
            1 => {
                at = inside(end.checked_sub(1));
                ("seek_last", cursor.seek_last())
            }
            2 | 3 => {
                let key = keys.near(random);
                at = inside(Some(lower(expected, &key).max(first)));
                ("seek", cursor.seek(&key))
            }
            4 | 5 => {
                let key = keys.near(random);
                let after = expected.partition_point(|(k, _)| k[..] <= key[..]);
                at = inside(after.min(end).checked_sub(1));
                ("seek_back", cursor.seek_back(&key))
            }
            6..9 => {
                for _ in 1..strides(random) {
                    at = inside(at.map(|at| at + 1));
                    assert_eq!(cursor.next().unwrap(), at.is_some(), "next of several");
                }
                at = inside(at.map(|at| at + 1));
                ("next", cursor.next())
            }
            _ => {
                for _ in 1..strides(random) {
                    at = inside(at.and_then(|at| at.checked_sub(1)));
                    assert_eq!(cursor.prev().unwrap(), at.is_some(), "prev of several");
                }
                at = inside(at.and_then(|at| at.checked_sub(1)));
                ("prev", cursor.prev())
            }
        };
        assert_eq!(found.unwrap(), at.is_some(), "{what} in {first}..{end}");
        assert_entry(&cursor, expected, at, what);
    }
}

/// How often a cursor goes on in one direction: mostly once, sometimes far enough for all that it does ahead of its position.
fn strides(random: &mut Random) -> usize {
    if random.percent(15) {
        random.between(2, 100)
    } else {
        1
    }
}
