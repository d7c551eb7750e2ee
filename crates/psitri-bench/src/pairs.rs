//! Random pairs of 24-byte keys and 150-byte values, as the benchmarks of LMDB's style define them: one stream from one seed.
//!
//! All of them are generated before anything is timed and stay in memory, 174 bytes each: neither the generator nor a copy of a pair is
//! ever inside a timer, and every read can be compared with the whole value.
use std::ops::Range;

pub const KEY_BYTES: usize = 24;
pub const VALUE_BYTES: usize = 150;
pub const PAIR_BYTES: usize = KEY_BYTES + VALUE_BYTES;
const SEED: u64 = 3;

/// How the generator's numbers become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The key is filled at once, then the value: eight bytes a number.
    Filled,
    /// One number for each byte.
    ByteByByte,
}

/// The first pairs of a stream.
pub struct Pairs {
    bytes: Vec<u8>,
}

impl Pairs {
    pub fn new(stream: Stream, count: usize) -> Self {
        let mut generator = fastrand::Rng::with_seed(SEED);
        let mut bytes = vec![0; count * PAIR_BYTES];
        for pair in bytes.chunks_exact_mut(PAIR_BYTES) {
            match stream {
                Stream::Filled => {
                    let (key, value) = pair.split_at_mut(KEY_BYTES);
                    generator.fill(key);
                    generator.fill(value);
                }
                Stream::ByteByByte => pair.iter_mut().for_each(|byte| *byte = generator.u8(..)),
            }
        }
        Self { bytes }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() / PAIR_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Key and value number `index`. Panics if there are fewer pairs.
    #[inline]
    pub fn get(&self, index: usize) -> (&[u8], &[u8]) {
        let start = index * PAIR_BYTES;
        self.bytes[start..start + PAIR_BYTES].split_at(KEY_BYTES)
    }

    #[inline]
    pub fn key(&self, index: usize) -> &[u8] {
        self.get(index).0
    }

    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = (&[u8], &[u8])> {
        range.map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_come_from_the_seed_alone() {
        for stream in [Stream::Filled, Stream::ByteByByte] {
            let (few, many) = (Pairs::new(stream, 3), Pairs::new(stream, 30));
            assert_eq!((few.len(), many.len()), (3, 30));
            assert!(few.range(0..3).eq(many.range(0..3)));
            let mut keys: Vec<_> = (0..30).map(|index| many.key(index)).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 30);
        }
        let mut generator = fastrand::Rng::with_seed(3);
        let first: Vec<u8> = (0..KEY_BYTES).map(|_| generator.u8(..)).collect();
        assert_eq!(Pairs::new(Stream::ByteByByte, 1).key(0), first);
        assert_ne!(Pairs::new(Stream::Filled, 1).key(0), first);
    }
}
