//! `Run`: the entries of a bulk load, the steps of a large batch, or what a transaction wrote until it spilled, kept as they come, and put in order once.
//!
//! The write buffer would keep them in order all the time, in a tree and a hash table: two cache misses an entry. A run appends, and notes whether keys
//! ascend. If they do not, it notes in how many bytes all agree, and sorts by those behind.
//!
//! It keeps them as the log has them: a load that is small enough to be logged has its record at once.
//!
//! # Invariants
//! (1) `places` says where operations of `ops` begin.
//! (2) As long as `is_mixed` is false, every key was above the one before it; `agreed` is the first one and `last` the last. After that all keys begin with
//!     `agreed`.
//! (3) After [`Run::sort`], keys ascend, and of equal keys only the entry that came last is left. `ops` still has all, in the order of their arrival.

use crate::{
    Result,
    key_sort::{Place, sort_by_key},
    node::{ValuePointer, common_prefix},
    prefetch,
    tree::{Change, ChangeStream},
    wal::ops::{EntryOp, OpsBuilder, Write},
};

/// What an entry takes beside its key and payload, about.
const HEADER_BYTES: usize = 5;
/// How many entries ahead of its use an entry is asked for.
const AHEAD: usize = 8;
/// How many of its cache lines.
const LINES_AHEAD: usize = 3;
const NO_RANGES: &str = "loads are without ranges";
/// An entry's share of `places`.
const PLACE_BYTES: usize = size_of::<Place>();

/// Entries of a keyspace, and removals, in the order of their arrival, then of their keys. See the module text.
pub(super) struct Run {
    keyspace: u32,
    ops: OpsBuilder,
    places: Vec<Place>,
    agreed: Vec<u8>,
    last: Vec<u8>,
    is_mixed: bool,
}

impl Run {
    pub fn new(keyspace: u32) -> Run {
        Run {
            keyspace,
            ops: OpsBuilder::new(),
            places: Vec::new(),
            agreed: Vec::new(),
            last: Vec::new(),
            is_mixed: false,
        }
    }

    /// Of puts and removals that are there already, all of the keyspace. `check` may refuse a key.
    pub fn of(keyspace: u32, ops: OpsBuilder, check: impl Fn(&[u8]) -> Result<()>) -> Result<Run> {
        let mut run = Run::new(keyspace);
        run.places.reserve(ops.op_count() as usize);
        let mut at = 0;
        while at < ops.bytes_len() {
            let op = ops.entry_at(at);
            check(op.key)?;
            run.note(op.key);
            run.places.push(Place::new(0, at as u32));
            at = op.end;
        }
        run.ops = ops;
        Ok(run)
    }

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

    /// Memory that a run of these takes.
    pub fn bytes_of(ops: &OpsBuilder) -> usize {
        ops.bytes_len() + ops.op_count() as usize * PLACE_BYTES
    }

    /// Memory in use.
    pub fn bytes_used(&self) -> usize {
        self.ops.bytes_len() + self.places.len() * PLACE_BYTES
    }

    /// Of these, what its operations take: as many as the log would.
    pub fn ops_bytes(&self) -> usize {
        self.ops.bytes_len()
    }

    /// Forgets everything but the memory. Adds what is left of it to the operations for the log, if there are any to add to.
    pub fn clear(&mut self, ops: Option<&mut OpsBuilder>) {
        match ops {
            Some(ops) if self.places.len() == self.ops.op_count() as usize => {
                ops.take(&mut self.ops);
            }
            Some(ops) => {
                for place in &self.places {
                    let EntryOp { key, write, .. } = self.ops.entry_at(place.at() as usize);
                    ops.write(self.keyspace, key, write);
                }
            }
            None => {}
        }
        self.ops.clear();
        self.places.clear();
        self.is_mixed = false;
    }

    /// Makes room for so many entries of this size, or as many of them as take `bytes_max`.
    pub fn reserve(&mut self, entries: usize, entry_bytes: usize, bytes_max: usize) {
        let entry_bytes = HEADER_BYTES + entry_bytes;
        let entries = entries.min(bytes_max / (entry_bytes + PLACE_BYTES));
        self.ops.reserve(entries * entry_bytes);
        self.places.reserve(entries);
    }

    /// Adds an entry. The run, and a value, are smaller than 4 GiB.
    #[inline]
    pub fn push(&mut self, key: &[u8], write: Write<'_>) {
        self.note(key);
        let at = self.ops.bytes_len();
        debug_assert!(u32::try_from(at).is_ok(), "places are 32-bit offsets");
        self.places.push(Place::new(0, at as u32));
        self.ops.write(self.keyspace, key, write);
    }

    /// Looks at a key that is about to be added (2).
    #[inline(always)]
    fn note(&mut self, key: &[u8]) {
        if self.places.is_empty() {
            self.agreed.clear();
            self.agreed.extend_from_slice(key);
        } else if !self.is_mixed && key <= self.last.as_slice() {
            self.is_mixed = true;
            let last = common_prefix(&self.agreed, &self.last);
            self.agreed.truncate(last);
        }
        if !self.is_mixed {
            self.last.clear();
            self.last.extend_from_slice(key);
        } else if !key.starts_with(&self.agreed) {
            let agreed = common_prefix(&self.agreed, key);
            self.agreed.truncate(agreed);
        }
    }

    #[inline(always)]
    fn key(&self, at: u32) -> &[u8] {
        self.ops.entry_at(at as usize).key
    }

    /// Brings the entries in the order of their keys (3).
    pub fn sort(&mut self) {
        if !self.is_mixed {
            return;
        }
        let mut places = std::mem::take(&mut self.places);
        let shared = self.agreed.len();
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
        if let (Some(first), Some(last)) = (self.places.first(), self.places.last()) {
            // (2), if there are more to come.
            (self.agreed, self.last) = (self.key(first.at()).into(), self.key(last.at()).into());
        }
    }

    /// The entries as a stream for a merge. The addresses of values outside of the run are added to `adopted`.
    pub fn changes<'r>(&'r self, adopted: &'r mut Vec<u64>) -> RunChanges<'r> {
        debug_assert!(!self.is_mixed, "the run is sorted");
        let mut changes = RunChanges {
            run: self,
            next: 0,
            present: None,
            adopted,
        };
        changes.look();
        changes
    }
}

pub(super) struct RunChanges<'r> {
    run: &'r Run,
    next: usize,
    /// The operation at `next`.
    present: Option<EntryOp<'r>>,
    adopted: &'r mut Vec<u64>,
}

impl RunChanges<'_> {
    #[inline(always)]
    fn look(&mut self) {
        let place = self.run.places.get(self.next);
        self.present = place.map(|place| self.run.ops.entry_at(place.at() as usize));
    }
}

impl ChangeStream for RunChanges<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.present.map(|present| present.key)
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        match self.present.expect("there is a change").write {
            Write::Put(value) => Change::Put(value),
            Write::PutLarge(pointer) => Change::Adopt(ValuePointer::decode(pointer)),
            Write::Delete => Change::Delete,
            Write::DeleteRange(_) => unreachable!("{NO_RANGES}"),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Change::Adopt(pointer) = self.change() {
            self.adopted.push(pointer.address_units());
        }
        self.next += 1;
        self.look();
        let Run { ops, places, .. } = self.run;
        if let Some(coming) = places.get(self.next + AHEAD) {
            let at = ops.payload().as_ptr().wrapping_add(coming.at() as usize);
            for line in 0..LINES_AHEAD {
                prefetch::line(at.wrapping_add(line * prefetch::LINE_BYTES));
            }
        }
        Ok(())
    }

    fn len_max(&self) -> u64 {
        (self.run.len() - self.next) as u64
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
        let mut changes = run.changes(&mut adopted);
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
            let mut run = Run::new(7);
            for _ in 0..3 {
                let mut expected = BTreeMap::new();
                let prefix = vec![b'p'; random.random_range(0..20)];
                for number in 0..random.random_range(0..200u32) {
                    let mut key = prefix.clone();
                    let tail = random.random_range(0..12);
                    key.extend((0..tail).map(|_| random.random_range(0..3u8)));
                    run.push(&key, Write::Put(&number.to_le_bytes()));
                    expected.insert(key, number.to_le_bytes().to_vec());
                }
                assert_eq!(run.is_empty(), expected.is_empty());
                let expected: Vec<_> = expected.into_iter().collect();
                assert_eq!(drain(&mut run), expected, "seed {seed}");
                run.clear(None);
            }
        }
    }

    #[test]
    fn ascending_keys_are_left_where_they_are() {
        let mut run = Run::new(7);
        for number in 0..1000u32 {
            run.push(&number.to_be_bytes(), Write::Put(b"v"));
        }
        assert!(!run.is_mixed);
        assert_eq!(drain(&mut run).len(), 1000);
        run.push(&999u32.to_be_bytes(), Write::Put(b"w"));
        assert!(run.is_mixed, "an equal key is not above the last");
        let entries = drain(&mut run);
        assert_eq!(entries.len(), 1000);
        assert_eq!(entries[999].1, b"w");
    }

    /// Sorted, it is in order; what comes then may not be.
    #[test]
    fn what_comes_behind_a_sorted_run_is_compared_with_its_last() {
        let mut run = Run::new(7);
        for key in [b"5", b"3", b"9"] {
            run.push(key, Write::Put(b"v"));
        }
        run.sort();
        assert!(!run.is_mixed);
        run.push(b"7", Write::Put(b"v"));
        assert!(run.is_mixed);
        let keys: Vec<_> = drain(&mut run).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [b"3", b"5", b"7", b"9"]);
    }
}
