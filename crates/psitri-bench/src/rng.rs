//! Random draws that are the same on every machine and in every language.
//!
//! The generator is the 64-bit Mersenne twister (`mt19937_64`). A uniform integer is drawn by multiplication and rejection
//! (Lemire, "Fast random integer generation in an interval"): the high half of the 128-bit product of one draw and the size of
//! the range, redrawn while the low half is one of the few that would make some results likelier than others. The counts
//! that the bank workload checks itself with hold for exactly this method.
use rand_mt::Mt64;

/// A seeded stream of uniform integers.
pub struct Draws {
    twister: Mt64,
}

impl Draws {
    pub fn new(seed: u64) -> Self {
        Self {
            twister: Mt64::new(seed),
        }
    }

    /// A uniform integer in `0..size`.
    ///
    /// `size` must not be zero; zero would be an empty range.
    #[inline]
    pub fn below(&mut self, size: u64) -> u64 {
        debug_assert!(size > 0);
        let mut product = u128::from(self.twister.next_u64()) * u128::from(size);
        // The division is needed only when the low half is small enough to matter at all, that is once in 2^64 / size draws.
        if (product as u64) < size {
            let rejected_below = size.wrapping_neg() % size;
            while (product as u64) < rejected_below {
                product = u128::from(self.twister.next_u64()) * u128::from(size);
            }
        }
        (product >> 64) as u64
    }

    /// The sum of two uniform integers below half of `count`: a triangular pick of an index, with its peak in the middle.
    #[inline]
    pub fn triangular(&mut self, count: u64) -> u64 {
        self.below(count / 2) + self.below(count / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twister_is_the_standard_one() {
        // The C++ standard defines the 10,000th number of the generator with the default seed.
        let mut twister = Mt64::new(5489);
        let last = (0..10_000).map(|_| twister.next_u64()).last();
        assert_eq!(last, Some(9_981_545_732_273_789_042));
    }

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut draws = Draws::new(7);
        let seen = (0..10_000).fold([0u32; 5], |mut seen, _| {
            seen[draws.below(5) as usize] += 1;
            seen
        });
        assert!(
            seen.iter().all(|&count| (1_800..2_200).contains(&count)),
            "{seen:?}"
        );
    }

    #[test]
    fn rejection_redraws_what_would_be_biased() {
        // Two thirds of the 64-bit range: without rejection, one result in two would be twice as likely as the other.
        let size = (u64::MAX / 3) * 2;
        let mut draws = Draws::new(1);
        let low = (0..30_000).filter(|_| draws.below(size) < size / 2).count();
        assert!((14_500..15_500).contains(&low), "{low}");
    }
}
