//! From numbers to keys.
//!
//! A key is the digits of a number, filled up with zeros in front, and a zero byte. The number alone is what tells keys apart: it is
//! computed first, and can be read back from a key.
use super::config::{Pattern, TidesConfig};
use crate::keys::{self, Permutation, Zipfian};
use std::ops::Range;

/// Seconds since 1970 that timestamps begin with. Constant, so that every run writes the same keys.
const TIMESTAMP_SECONDS: u64 = 1_767_225_600;
const HEXADECIMAL_DIGITS: u32 = u64::BITS / 4;

/// The keys of one thread, one after another.
#[derive(Clone, Debug)]
pub struct Keys {
    pattern: Pattern,
    operations: u64,
    digits: usize,
    permutation: Permutation,
    zipfian: Zipfian,
    positions: Range<u64>,
}

impl Keys {
    /// The keys of the positions in `positions`. Draws of other threads before them are skipped, which takes some time.
    pub fn new(config: &TidesConfig, positions: Range<u64>) -> Self {
        let mut zipfian = Zipfian::new(config.operations);
        if config.pattern == Pattern::Zipfian {
            zipfian.skip(positions.start);
        }
        Self {
            pattern: config.pattern,
            operations: config.operations,
            digits: config.key_size as usize - 1,
            permutation: Permutation::new(config.operations),
            zipfian,
            positions,
        }
    }

    /// One stream for each thread.
    pub fn for_threads(config: &TidesConfig) -> Vec<Self> {
        let threads = config.threads as usize;
        (0..threads)
            .map(|thread| {
                Self::new(
                    config,
                    crate::workers::share(config.operations, thread, threads),
                )
            })
            .collect()
    }

    pub fn left(&self) -> u64 {
        self.positions.end - self.positions.start
    }

    /// The number of the next key, if there is one.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        let position = self.positions.next()?;
        Some(match self.pattern {
            Pattern::Seq => position,
            Pattern::Random => {
                let swapped = position.swap_bytes();
                let significant = (HEXADECIMAL_DIGITS - swapped.leading_zeros() / 4) as usize;
                // Cut off at the end, as a formatting function does whose buffer is short.
                swapped >> (4 * significant.saturating_sub(self.digits))
            }
            Pattern::Random32 => u64::from((position as u32).swap_bytes()),
            Pattern::Permutation => self.permutation.at(position),
            Pattern::Zipfian => self.zipfian.draw(),
            Pattern::Uniform => keys::below(keys::hash(position), self.operations),
            // Digits that have no room are cut off in front, or fifteen keys of sixteen would be lost.
            Pattern::Timestamp => {
                let bits = (4 * self.digits as u32).min(u64::BITS);
                ((TIMESTAMP_SECONDS << 32) | position) & (u64::MAX >> (u64::BITS - bits))
            }
            Pattern::Reverse => self.operations - position,
        })
    }

    /// Writes the key of `number` to `key`, which has the size of a key.
    #[inline]
    pub fn write(&self, number: u64, key: &mut [u8]) {
        let (digits, end) = key.split_at_mut(self.digits);
        if is_hexadecimal(self.pattern) {
            keys::hexadecimal(number, digits);
        } else {
            keys::decimal(number, digits);
        }
        end[0] = 0;
    }
}

fn is_hexadecimal(pattern: Pattern) -> bool {
    matches!(
        pattern,
        Pattern::Random | Pattern::Random32 | Pattern::Timestamp
    )
}

/// The number whose value belongs to `key`, if it is a key of the pattern.
#[inline]
pub fn number_of(pattern: Pattern, key: &[u8]) -> Option<u64> {
    let (&end, digits) = key.split_last()?;
    let radix = if is_hexadecimal(pattern) { 16 } else { 10 };
    let mut number = 0u64;
    for &digit in digits {
        let digit = char::from(digit).to_digit(radix)?;
        number = number
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))?;
    }
    (end == 0).then_some(number)
}

/// How many different keys all operations together have.
pub fn distinct(config: &TidesConfig) -> u64 {
    let mut keys = Keys::new(config, 0..config.operations);
    match config.pattern {
        Pattern::Zipfian | Pattern::Uniform => {
            // No number is larger than the number of operations and one.
            let mut seen = vec![false; config.operations as usize + 2];
            while let Some(number) = keys.number() {
                seen[number as usize] = true;
            }
            seen.iter().filter(|&&seen| seen).count() as u64
        }
        Pattern::Random if keys.digits < HEXADECIMAL_DIGITS as usize => {
            let mut numbers: Vec<u64> = std::iter::from_fn(|| keys.number()).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.len() as u64
        }
        _ => config.operations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::HashSet;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        config: TidesConfig,
    }

    fn config(arguments: &[&str]) -> TidesConfig {
        Command::parse_from(std::iter::once(&"test").chain(arguments)).config
    }

    fn written(config: &TidesConfig) -> Vec<Vec<u8>> {
        let mut keys = Keys::new(config, 0..config.operations);
        let mut all = Vec::new();
        while let Some(number) = keys.number() {
            let mut key = vec![0xFF; config.key_size as usize];
            keys.write(number, &mut key);
            all.push(key);
        }
        all
    }

    fn pattern(name: &str, more: &[&str]) -> TidesConfig {
        config(&[&["--pattern", name], more].concat())
    }

    #[test]
    fn the_number_of_distinct_keys_is_that_of_the_keys_themselves() {
        for name in [
            "seq",
            "random",
            "random32",
            "permutation",
            "zipfian",
            "uniform",
            "timestamp",
            "reverse",
        ] {
            for size in ["--key-size=11", "--key-size=16", "--key-size=30"] {
                let config = pattern(name, &["--operations=20000", size]);
                let keys: HashSet<_> = written(&config).into_iter().collect();
                assert_eq!(distinct(&config), keys.len() as u64, "{name} {size}");
            }
        }
    }

    #[test]
    fn the_colliding_pattern_has_the_published_number_of_keys() {
        assert_eq!(
            distinct(&pattern("random", &["--operations=500000"])),
            496_160
        );
        assert_eq!(
            distinct(&pattern("random", &["--operations=1000000"])),
            996_160
        );
        assert_eq!(
            distinct(&pattern("random32", &["--operations=1000000"])),
            1_000_000
        );
    }

    #[test]
    fn values_belong_to_the_number_that_a_key_shows() {
        for name in [
            "seq",
            "random",
            "random32",
            "permutation",
            "zipfian",
            "uniform",
            "timestamp",
            "reverse",
        ] {
            let config = pattern(name, &["--operations=3000"]);
            let mut keys = Keys::new(&config, 0..config.operations);
            let mut key = vec![0; 16];
            while let Some(number) = keys.number() {
                keys.write(number, &mut key);
                assert_eq!(number_of(config.pattern, &key), Some(number), "{name}");
            }
        }
        assert_eq!(number_of(Pattern::Seq, b"12\x01"), None);
        assert_eq!(number_of(Pattern::Seq, b"1a\0"), None);
    }

    #[test]
    fn keys_look_as_described() {
        let key = |name: &str| {
            String::from_utf8(written(&pattern(name, &["--operations=300"]))[1].clone())
        };
        assert_eq!(key("seq").as_deref(), Ok("000000000000001\0"));
        assert_eq!(key("random").as_deref(), Ok("100000000000000\0"));
        assert_eq!(key("random32").as_deref(), Ok("000000001000000\0"));
        assert_eq!(key("reverse").as_deref(), Ok("000000000000299\0"));
    }

    #[test]
    fn threads_have_the_keys_of_one() {
        for name in ["zipfian", "permutation"] {
            let config = pattern(name, &["--operations=1000", "--threads=3"]);
            let together: Vec<u64> = Keys::for_threads(&config)
                .into_iter()
                .flat_map(|mut keys| std::iter::from_fn(move || keys.number()))
                .collect();
            let mut alone = Keys::new(&config, 0..1000);
            let alone: Vec<u64> = std::iter::from_fn(|| alone.number()).collect();
            assert_eq!(together, alone);
        }
    }
}
