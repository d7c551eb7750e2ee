//! Sorting things by their keys: as numbers, of the 8 bytes behind those that all keys share, and of where the key is. That is several times as
//! fast as comparing keys. Those that are alike in these bytes are sorted by the next in which they differ, and so on for a few rounds; what is alike then is
//! compared, as keys may be made so that every round tells one of them from the others.
//!
//! # Invariants
//! (1) What waits to be sorted agrees in as many bytes as are noted with it, none of its keys is shorter, and all of it lies between what is less and what is
//!     greater.
//! (2) Until it is sorted by comparing, what waits is in the order of numbers: of equal keys the one that lies first comes first.
//!
//! # Failure modes
//! None.

use crate::node::{common_prefix, head};

/// So few are compared at once.
const FEW: usize = 16;
/// So often what is alike is sorted further.
const ROUNDS_MAX: usize = 4;
const HEAD_BYTES: usize = size_of::<u64>();

/// Where a key is, below a number that may stand for its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u128);

impl Place {
    #[inline(always)]
    pub fn new(number: u64, at: u32) -> Place {
        Place(u128::from(number) << 64 | u128::from(at))
    }

    /// Of two places behind one another after a sort of both, it is the same where the keys are.
    #[inline(always)]
    pub fn number(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[inline(always)]
    pub fn at(self) -> u32 {
        self.0 as u32
    }
}

/// Sorts places by the keys there, all of which agree in the first `shared` bytes; where keys are equal, by where they are.
pub(crate) fn sort_by_key<'k>(places: &mut [Place], shared: usize, key: impl Fn(u32) -> &'k [u8]) {
    let mut waiting = vec![(0..places.len(), shared, 0)];
    while let Some((range, shared, rounds)) = waiting.pop() {
        let first = range.start;
        let places = &mut places[range];
        let rest = |place: Place| &key(place.at())[shared..];
        for place in &mut *places {
            *place = Place::new(head(rest(*place)), place.at());
        }
        places.sort_unstable();
        let mut done = 0;
        for alike in places.chunk_by_mut(|a, b| a.number() == b.number()) {
            let from = first + done;
            done += alike.len();
            if alike.len() > 1 {
                let more = (rounds < ROUNDS_MAX).then(|| sort_further(alike, &rest));
                match more.flatten() {
                    Some(more) => waiting.push((from..first + done, shared + more, rounds + 1)),
                    None => alike.sort_by(|a, b| rest(*a).cmp(rest(*b))),
                }
            }
        }
    }
}

/// In how many bytes more keys agree that have one head, if it is worth to sort them by the bytes behind those: not where they are few, nor where some
/// end so soon that a head does not tell zeros from the end.
fn sort_further<'k>(alike: &[Place], rest: &impl Fn(Place) -> &'k [u8]) -> Option<usize> {
    if alike.len() <= FEW {
        return None;
    }
    let (first, others) = alike.split_first()?;
    let first = rest(*first);
    let mut shared = first.len();
    for other in others {
        shared = common_prefix(&first[..shared], rest(*other));
        if shared < HEAD_BYTES {
            return None;
        }
    }
    Some(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};

    fn check(keys: &[Vec<u8>], shared: usize, what: &str) {
        let mut places: Vec<_> = (0..keys.len()).map(|at| Place::new(0, at as u32)).collect();
        sort_by_key(&mut places, shared, |at| &keys[at as usize]);
        let mut expected: Vec<u32> = (0..keys.len() as u32).collect();
        expected.sort_by_key(|&at| &keys[at as usize]);
        let sorted: Vec<u32> = places.iter().map(|place| place.at()).collect();
        assert_eq!(sorted, expected, "{what}");
        for pair in places.windows(2) {
            let are_equal = keys[pair[0].at() as usize] == keys[pair[1].at() as usize];
            assert!(!are_equal || pair[0].number() == pair[1].number(), "{what}");
        }
    }

    #[test]
    fn places_come_in_the_order_of_their_keys_and_of_equal_ones_as_they_were() {
        for seed in 0..400 {
            let mut random = SmallRng::seed_from_u64(seed);
            // Some zeros, some keys that begin others, prefixes longer than a head, and many that are equal.
            let prefixes: Vec<Vec<u8>> = (0..random.random_range(1..5))
                .map(|_| vec![random.random_range(0..2); random.random_range(0..40)])
                .collect();
            let shared = vec![7; random.random_range(0..20)];
            let keys: Vec<Vec<u8>> = (0..random.random_range(0..300))
                .map(|_| {
                    let mut key = shared.clone();
                    key.extend(&prefixes[random.random_range(0..prefixes.len())]);
                    let tail = random.random_range(0..12);
                    key.extend((0..tail).map(|_| random.random_range(0..2u8)));
                    key
                })
                .collect();
            check(
                &keys,
                random.random_range(0..=shared.len()),
                &format!("seed {seed}"),
            );
        }
    }

    #[test]
    fn keys_each_of_which_begins_the_next_and_long_ones_that_differ_at_the_end() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut keys: Vec<Vec<u8>> = (0..500).map(|n| vec![b'k'; n]).collect();
        keys.extend((0..500).map(|n| vec![0; n]));
        keys.extend((0..500u32).map(|n| [&[b'l'; 3000][..], &n.to_be_bytes()].concat()));
        // Each round would tell one from the others.
        keys.extend((0..500).map(|n| {
            let mut key = vec![1; 8 * 500];
            key[8 * n] = 2;
            key
        }));
        keys.shuffle(&mut random);
        check(&keys, 0, "shuffled");
        check(&vec![vec![b'e'; 30]; 1000], 0, "all equal");
    }
}
