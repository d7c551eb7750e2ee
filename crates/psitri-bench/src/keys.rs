//! Numbers that keys are made of: hashed, permuted, or drawn with a skew. Nothing here depends on time or on the number of threads.
//!
//! What has no state can be asked for any position, so that a check can compute again what a run has written.
use xxhash_rust::xxh3::xxh3_64;

/// XXH3 of the eight little-endian bytes of `number`. No two numbers have the same hash: for eight bytes the function is a bijection.
#[inline]
pub fn hash(number: u64) -> u64 {
    xxh3_64(&number.to_le_bytes())
}

/// `hash` scaled to `0..size`.
#[inline]
pub fn below(hash: u64, size: u64) -> u64 {
    ((u128::from(hash) * u128::from(size)) >> 64) as u64
}

/// The decimal digits of `number` fill `text`, zeros first; leading digits that have no room are left out.
#[inline]
pub fn decimal(mut number: u64, text: &mut [u8]) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// As [`decimal`], with hexadecimal digits.
#[inline]
pub fn hexadecimal(mut number: u64, text: &mut [u8]) {
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// A pseudo random permutation of `0..size`, computed for one position at a time.
///
/// Additions, odd multiplications and shifted exclusive ors permute the numbers of a power of two that is at most twice the size; where
/// they lead out of the range, they are applied again until they lead back (cycle walking).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    size: u64,
    mask: u64,
    shift: u32,
}

impl Permutation {
    /// Of at least one number.
    pub fn new(size: u64) -> Self {
        assert!(size > 0, "there is something to permute");
        let bits = (u64::BITS - (size - 1).leading_zeros()).max(1);
        Self {
            size,
            mask: u64::MAX >> (u64::BITS - bits),
            shift: bits.div_ceil(2),
        }
    }

    /// Where `position`, which is in the range, goes.
    #[inline]
    pub fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.size);
        let mut number = position;
        loop {
            for factor in [
                0x9E37_79B9_7F4A_7C15,
                0xBF58_476D_1CE4_E5B9,
                0x94D0_49BB_1331_11EB,
            ] {
                number = number.wrapping_add(factor).wrapping_mul(factor) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.size {
                return number;
            }
        }
    }
}

/// The generator behind `rand` of the GNU C library, as it is when nobody has seeded it: a lagged sum of 31 numbers.
///
/// It is here because published figures were made with its draws.
#[derive(Clone, Debug)]
pub struct CLibraryRandom {
    state: [u32; 31],
    position: usize,
}

impl Default for CLibraryRandom {
    fn default() -> Self {
        let mut state = [0u32; 31];
        state[0] = 1;
        for position in 1..state.len() {
            let product = u64::from(state[position - 1]) * 16_807;
            state[position] = (product % 2_147_483_647) as u32;
        }
        // The first three numbers count as the newest.
        let mut random = Self { state, position: 3 };
        random.skip(10 * 31);
        random
    }
}

impl CLibraryRandom {
    pub const MAX: u32 = u32::MAX >> 1;

    /// From zero to [`Self::MAX`].
    #[inline]
    pub fn draw(&mut self) -> u32 {
        let behind = self.position;
        let three_back = (behind + self.state.len() - 3) % self.state.len();
        self.state[behind] = self.state[behind].wrapping_add(self.state[three_back]);
        self.position = if behind + 1 == self.state.len() {
            0
        } else {
            behind + 1
        };
        self.state[behind] >> 1
    }

    pub fn skip(&mut self, draws: u64) {
        (0..draws).for_each(|_| {
            self.draw();
        });
    }
}

/// Numbers from 1 to `size + 1`, small ones far more often: a Zipf distribution with exponent 1.3, drawn by inverting its integral.
#[derive(Clone, Debug)]
pub struct Zipfian {
    random: CLibraryRandom,
    integral_low: f64,
    integral_range: f64,
}

impl Zipfian {
    const EXPONENT: f64 = 1.3;
    const OFFSET: f64 = 0.99;

    pub fn new(size: u64) -> Self {
        let integral =
            |x: f64| (Self::OFFSET + x).powf(1.0 - Self::EXPONENT) / (1.0 - Self::EXPONENT);
        let (low, high) = (integral(0.5), integral(size as f64 + 0.5));
        Self {
            random: CLibraryRandom::default(),
            integral_low: low,
            integral_range: high - low,
        }
    }

    #[inline]
    pub fn draw(&mut self) -> u64 {
        let uniform = f64::from(self.random.draw()) / f64::from(CLibraryRandom::MAX);
        let integral = self.integral_low + uniform * self.integral_range;
        let inverse = 1.0 - Self::EXPONENT;
        ((inverse * integral).ln() / inverse).exp() as u64
    }

    pub fn skip(&mut self, draws: u64) {
        self.random.skip(draws);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_permutation_reaches_every_number_once() {
        for size in [1, 2, 3, 7, 64, 1_000, 65_537] {
            let permutation = Permutation::new(size);
            let reached: HashSet<u64> = (0..size).map(|at| permutation.at(at)).collect();
            assert_eq!(reached.len() as u64, size);
            assert!(reached.iter().all(|&number| number < size));
        }
    }

    #[test]
    fn a_permutation_leaves_nothing_near_its_place() {
        let size = 100_000;
        let permutation = Permutation::new(size);
        let near = (0..size).filter(|&at| permutation.at(at).abs_diff(at) < 1_000);
        // Two in a hundred are near by chance.
        assert!((1_500..2_500).contains(&near.count()));
        let ascents = (1..size).filter(|&at| permutation.at(at) > permutation.at(at - 1));
        assert!((48_000..52_000).contains(&ascents.count()));
    }

    #[test]
    fn the_generator_is_that_of_the_c_library() {
        let mut random = CLibraryRandom::default();
        let first = [0; 3].map(|_: u32| random.draw());
        assert_eq!(first, [1_804_289_383, 846_930_886, 1_681_692_777]);
    }

    #[test]
    fn five_million_zipfian_draws_have_the_published_number_of_keys() {
        let draws = 5_000_000;
        let mut zipfian = Zipfian::new(draws);
        let mut seen = vec![false; draws as usize + 2];
        (0..draws).for_each(|_| seen[zipfian.draw() as usize] = true);
        assert_eq!(seen.iter().filter(|&&seen| seen).count(), 190_019);
    }

    #[test]
    fn skipping_draws_is_drawing_them() {
        let (mut drawn, mut skipped) = (Zipfian::new(1_000), Zipfian::new(1_000));
        (0..100).for_each(|_| {
            drawn.draw();
        });
        skipped.skip(100);
        assert_eq!(drawn.draw(), skipped.draw());
    }

    #[test]
    fn digits_are_padded_and_cut_in_front() {
        let mut text = [0; 4];
        decimal(42, &mut text);
        assert_eq!(&text, b"0042");
        hexadecimal(0x00AB_CDEF, &mut text);
        assert_eq!(&text, b"cdef");
    }
}
