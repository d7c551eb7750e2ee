//! What the database must hold: the pairs that are in it, in the order of their keys, and those that were removed.
//!
//! It is computed from the definition of each phase alone, never from what an engine returned.
use crate::engine::Snapshot;
use crate::pairs::{KEY_BYTES, Pairs};
use anyhow::{Result, ensure};
use std::collections::VecDeque;

pub const SORTED_KEY_BYTES: usize = KEY_BYTES + 8;
pub type SortedKey = [u8; SORTED_KEY_BYTES];

/// Keys past all of 24 bytes: the greatest of those and a counter.
pub fn sorted_keys(count: u64) -> Vec<SortedKey> {
    (0..count)
        .map(|number| {
            let mut key = [0xFF; SORTED_KEY_BYTES];
            key[KEY_BYTES..].copy_from_slice(&number.to_be_bytes());
            key
        })
        .collect()
}

pub struct Live<'p> {
    pairs: &'p Pairs,
    /// Numbers of the pairs that are there, ascending by key.
    order: Vec<u32>,
    /// Numbers of the pairs that are not, the first removed first.
    removed: VecDeque<u32>,
    /// After all others; their values are those of the pairs from the first on, around at the end.
    sorted: Vec<SortedKey>,
}

/// What many range reads must find in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeTotals {
    pub entries: u64,
    /// Sum of the first bytes of the values.
    pub first_bytes: u64,
}

impl<'p> Live<'p> {
    /// All pairs, whose keys must be distinct.
    pub fn new(pairs: &'p Pairs) -> Result<Self> {
        let mut order: Vec<u32> = (0..pairs.len() as u32).collect();
        order.sort_unstable_by_key(|&index| pairs.key(index as usize));
        let distinct = order
            .windows(2)
            .all(|two| pairs.key(two[0] as usize) < pairs.key(two[1] as usize));
        ensure!(distinct, "the stream of pairs has a key twice");
        Ok(Self {
            pairs,
            order,
            removed: VecDeque::new(),
            sorted: Vec::new(),
        })
    }

    /// Without the sorted keys.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let pairs = self.pairs;
        let random = self.order.iter().map(|&index| pairs.get(index as usize));
        let sorted = self.sorted.iter().enumerate().map(|(number, key)| {
            let (_, value) = pairs.get(number % pairs.len());
            (key.as_slice(), value)
        });
        random.chain(sorted)
    }

    /// Removes where `unwanted` says so of position and number; how many.
    pub fn remove(&mut self, mut unwanted: impl FnMut(usize, usize) -> bool) -> u64 {
        let (mut position, before) = (0, self.order.len());
        let removed = &mut self.removed;
        self.order.retain(|&index| {
            let gone = unwanted(position, index as usize);
            position += 1;
            if gone {
                removed.push_back(index);
            }
            !gone
        });
        (before - self.order.len()) as u64
    }

    /// Takes the oldest `count` of the removed pairs in again, and says which: as many were removed at least.
    pub fn put_back(&mut self, count: u64) -> Vec<usize> {
        let back: Vec<u32> = self.removed.drain(..count as usize).collect();
        self.order.extend(&back);
        let pairs = self.pairs;
        self.order
            .sort_by(|&one, &other| pairs.key(one as usize).cmp(pairs.key(other as usize)));
        back.into_iter().map(|index| index as usize).collect()
    }

    pub fn add_sorted(&mut self, keys: Vec<SortedKey>) {
        self.sorted = keys;
    }

    /// What reads of `length` entries from the keys of `starts` on find, all of which are there.
    pub fn ranges(&self, starts: impl Iterator<Item = usize>, length: usize) -> RangeTotals {
        let mut totals = RangeTotals::default();
        for start in starts {
            let key = self.pairs.key(start);
            let rank = self
                .order
                .partition_point(|&index| self.pairs.key(index as usize) < key);
            for &index in self.order[rank..].iter().take(length) {
                totals.entries += 1;
                totals.first_bytes += u64::from(self.pairs.get(index as usize).1[0]);
            }
        }
        totals
    }

    /// Compares every entry of a snapshot, and the order if there is one; what is wrong, in words.
    pub fn audit<S: Snapshot>(
        &self,
        snapshot: &mut S,
        ordered: bool,
        after: &str,
    ) -> Result<Option<String>> {
        let (mut found, mut wrong) = (0u64, 0u64);
        let mut expected = self.entries();
        snapshot.scan(|key, value| {
            found += 1;
            if ordered && expected.next() != Some((key, value)) {
                wrong += 1;
            }
        })?;
        if !ordered {
            for (key, value) in self.entries() {
                wrong += snapshot.read(key, |found| u64::from(found != Some(value)))?;
            }
        }
        let all = (self.order.len() + self.sorted.len()) as u64;
        Ok((wrong > 0 || found != all).then(|| {
            format!("after {after}: {found} entries, {wrong} of them wrong or out of place, expected {all}")
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, ReadMode, Settings, Writer};
    use crate::engines::model::Model;
    use crate::pairs::Stream;
    use std::path::Path;

    #[test]
    fn an_audit_finds_every_difference() -> Result<()> {
        let pairs = Pairs::new(Stream::Filled, 100);
        let mut live = Live::new(&pairs)?;
        let model = Model::create(Path::new(""), &Settings::default())?;
        model.bulk_load(pairs.range(0..100))?;
        let audit = |live: &Live<'_>, ordered| -> Result<bool> {
            let failure = live.audit(&mut model.snapshot(ReadMode::Latest)?, ordered, "it")?;
            Ok(failure.is_none())
        };
        for ordered in [true, false] {
            assert!(audit(&live, ordered)?);
        }
        assert_eq!(live.remove(|position, _| position % 2 == 1), 50);
        for ordered in [true, false] {
            assert!(!audit(&live, ordered)?);
        }
        let back = live.put_back(50);
        assert_eq!(back.len(), 50);
        assert!(audit(&live, true)?);
        use crate::engine::Batch;
        let mut batch = model.begin()?;
        batch.put(pairs.key(7), b"other")?;
        batch.commit()?;
        for ordered in [true, false] {
            assert!(!audit(&live, ordered)?);
        }
        Ok(())
    }

    #[test]
    fn ranges_end_with_the_last_key() -> Result<()> {
        let pairs = Pairs::new(Stream::ByteByByte, 20);
        let live = Live::new(&pairs)?;
        let all = live.ranges(0..20, 1);
        assert_eq!(all.entries, 20);
        // 11 starts find 10, the last nine find 9, 8, ... 1.
        assert_eq!(live.ranges(0..20, 10).entries, 110 + 45);
        let sum: u64 = pairs
            .range(0..20)
            .map(|(_, value)| u64::from(value[0]))
            .sum();
        assert_eq!(all.first_bytes, sum);
        Ok(())
    }
}
