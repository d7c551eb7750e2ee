//! `Run`: the entries of a bulk load, or the steps of a large batch, kept as they come, and put in order once.
//!
//! The write buffer would keep them in order all the time, in a tree and a hash table: two cache misses an entry. A run appends, notes
//! in how many bytes all keys agree, and sorts by those behind.
//!
//! # Invariants
//! (1) `bytes` holds whole entries, each where `places` says: key length u32, payload length u32, kind u8, key, payload.
//! (2) All keys agree in their first `shared_bytes` bytes.
//! (3) After [`Run::sort`], keys ascend, and of equal keys only the entry that came last is left.

use crate::{
    Result,
    buffer::Kind,
    key_sort::{Place, sort_by_key},
    node::{ValuePointer, common_prefix},
    prefetch,
    tree::{Change, ChangeStream},
    wal::ops::OpsBuilder,
};

const HEADER_BYTES: usize = 9;
/// How many entries ahead of its use an entry is asked for.
const AHEAD: usize = 8;
/// How many of its cache lines.
const LINES_AHEAD: usize = 3;
/// An entry's share of `places`.
const PLACE_BYTES: usize = size_of::<Place>();

/// Entries, and removals as entries of kind `Tombstone`, in the order of their arrival, then of their keys. See the module text.
#[derive(Default)]
pub(super) struct Run {
    bytes: Vec<u8>,
    places: Vec<Place>,
    shared_bytes: usize,
    is_mixed: bool,
}

impl Run {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether some key was not above the one before it.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Memory in use.
    pub fn bytes_used(&self) -> usize {
        self.bytes.len() + self.places.len() * PLACE_BYTES
    }

    /// Bytes of the entries, what says where they are left out.
    pub fn content_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        (self.shared_bytes, self.is_mixed) = (0, false);
    }

    /// Makes room for so many entries of this size, or as many of them as take `bytes_max`.
    pub fn reserve(&mut self, entries: usize, entry_bytes: usize, bytes_max: usize) {
        let entry_bytes = HEADER_BYTES + entry_bytes;
        let entries = entries.min(bytes_max / (entry_bytes + PLACE_BYTES));
        self.bytes.reserve(entries * entry_bytes);
        self.places.reserve(entries);
    }

    /// Adds an entry. The run is smaller than 2 GiB, a payload than 4 GiB.
    #[inline]
    pub fn push(&mut self, key: &[u8], kind: Kind, payload: &[u8]) {
        match (self.places.first(), self.places.last()) {
            (Some(first), Some(last)) => {
                let agreed = &self.key(first.at())[..self.shared_bytes];
                if !key.starts_with(agreed) {
                    self.shared_bytes = common_prefix(agreed, key);
                }
                self.is_mixed |= self.key(last.at()) >= key;
            }
            _ => self.shared_bytes = key.len(),
        }
        let at = self.bytes.len() as u32;
        self.places.push(Place::new(0, at));
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[8] = kind as u8;
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(payload);
    }

    #[inline(always)]
    fn header(&self, at: u32) -> (usize, usize, u8) {
        let header = &self.bytes[at as usize..][..HEADER_BYTES];
        let word = |at: usize| {
            let bytes = header[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        (word(0), word(4), header[8])
    }

    #[inline(always)]
    fn key(&self, at: u32) -> &[u8] {
        let (key_bytes, ..) = self.header(at);
        &self.bytes[at as usize + HEADER_BYTES..][..key_bytes]
    }

    fn change(&self, at: u32) -> (&[u8], Change<'_>) {
        let (key_bytes, payload_bytes, kind) = self.header(at);
        let entry = &self.bytes[at as usize + HEADER_BYTES..][..key_bytes + payload_bytes];
        let (key, payload) = entry.split_at(key_bytes);
        let change = if kind == Kind::Value as u8 {
            Change::Put(payload)
        } else if kind == Kind::Tombstone as u8 {
            Change::Delete
        } else {
            let pointer = payload.try_into().expect("a pointer has a fixed size");
            Change::Adopt(ValuePointer::decode(pointer))
        };
        (key, change)
    }

    /// Brings the entries in the order of their keys (3).
    pub fn sort(&mut self) {
        if !self.is_mixed {
            return;
        }
        let mut places = std::mem::take(&mut self.places);
        let shared = self.shared_bytes;
        sort_by_key(&mut places, shared, |at| self.key(at));
        places.dedup_by(|next, kept| {
            let rest = |place: Place| &self.key(place.at())[shared..];
            let is_same = next.number() == kept.number() && rest(*next) == rest(*kept);
            if is_same {
                *kept = *next;
            }
            is_same
        });
        self.places = places;
        self.is_mixed = false;
    }

    /// The entries as a stream for a merge. What passes is added to `ops` as operations on the keyspace, if there are any to add to; values
    /// outside of the run are not, but their addresses are added to `adopted`.
    pub fn changes<'r>(
        &'r self,
        adopted: &'r mut Vec<u64>,
        ops: Option<(&'r mut OpsBuilder, u32)>,
    ) -> RunChanges<'r> {
        debug_assert!(!self.is_mixed, "the run is sorted");
        RunChanges {
            run: self,
            next: 0,
            adopted,
            ops,
        }
    }
}

pub(super) struct RunChanges<'r> {
    run: &'r Run,
    next: usize,
    adopted: &'r mut Vec<u64>,
    ops: Option<(&'r mut OpsBuilder, u32)>,
}

impl ChangeStream for RunChanges<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        let place = self.run.places.get(self.next)?;
        Some(self.run.key(place.at()))
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        self.run.change(self.run.places[self.next].at()).1
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let run = self.run;
        let (key, change) = run.change(run.places[self.next].at());
        match (change, &mut self.ops) {
            (Change::Adopt(pointer), _) => self.adopted.push(pointer.address_units()),
            (Change::Put(value), Some((ops, keyspace))) => ops.put(*keyspace, key, value),
            (Change::Delete, Some((ops, keyspace))) => ops.delete(*keyspace, key),
            (_, None) => {}
        }
        self.next += 1;
        if let Some(coming) = run.places.get(self.next + AHEAD) {
            let at = run.bytes.as_ptr().wrapping_add(coming.at() as usize);
            for line in 0..LINES_AHEAD {
                prefetch::line(at.wrapping_add(line * prefetch::LINE_BYTES));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};
    use std::collections::BTreeMap;

    fn drain(run: &mut Run) -> Vec<(Vec<u8>, Vec<u8>)> {
        run.sort();
        let mut adopted = Vec::new();
        let mut changes = run.changes(&mut adopted, None);
        let mut drained = Vec::new();
        while let Some(key) = changes.key().map(<[u8]>::to_vec) {
            let Change::Put(value) = changes.change() else {
                panic!("only values were pushed");
            };
            drained.push((key, value.to_vec()));
            changes.advance().unwrap();
        }
        drained
    }

    #[test]
    fn a_run_comes_out_as_a_map_would() {
        for seed in 0..300 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut run = Run::default();
            for _ in 0..3 {
                let mut expected = BTreeMap::new();
                let prefix = vec![b'p'; random.random_range(0..20)];
                for number in 0..random.random_range(0..200u32) {
                    let mut key = prefix.clone();
                    let tail = random.random_range(0..12);
                    key.extend((0..tail).map(|_| random.random_range(0..3u8)));
                    run.push(&key, Kind::Value, &number.to_le_bytes());
                    expected.insert(key, number.to_le_bytes().to_vec());
                }
                assert_eq!(run.is_empty(), expected.is_empty());
                let expected: Vec<_> = expected.into_iter().collect();
                assert_eq!(drain(&mut run), expected, "seed {seed}");
                run.clear();
            }
        }
    }

    #[test]
    fn ascending_keys_are_left_where_they_are() {
        let mut run = Run::default();
        for number in 0..1000u32 {
            run.push(&number.to_be_bytes(), Kind::Value, b"v");
        }
        assert!(!run.is_mixed);
        assert_eq!(drain(&mut run).len(), 1000);
        run.push(&999u32.to_be_bytes(), Kind::Value, b"w");
        assert!(run.is_mixed, "an equal key is not above the last");
        let entries = drain(&mut run);
        assert_eq!(entries.len(), 1000);
        assert_eq!(entries[999].1, b"w");
    }
}
