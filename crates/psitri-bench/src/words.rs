//! Invented words: lower-case, pronounceable, distinct, of the lengths that words have.
//!
//! They stand in for the dictionary file that some systems have and others do not, so that a run needs nothing from its machine
//! and is the same everywhere. The list depends on nothing but its length.
use crate::rng::Draws;
use hashbrown::HashSet;

/// As many words as a large English dictionary file has.
pub const WORDS_MAX: usize = 104_334;

/// Longest word, in bytes.
pub const WORD_BYTES_MAX: usize = 15;

const SEED: u64 = 0x776f_7264;

// Repeated entries are likelier: the mix of sounds is what makes lengths and shared prefixes look like those of a language.
const ONSETS: &[&str] = &[
    "b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "b", "c", "d", "l", "m",
    "n", "p", "r", "s", "t", "br", "ch", "cl", "cr", "dr", "fl", "gr", "pl", "pr", "qu", "sh",
    "sp", "st", "str", "th", "tr", "w", "j", "k",
];
const VOWELS: &[&str] = &[
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "e", "ai", "ea", "ee", "io", "ou", "y",
];
const CODAS: &[&str] = &[
    "", "", "", "", "", "n", "r", "s", "l", "t", "m", "d", "ck", "nd", "nt", "ng", "st", "x",
];
const ENDINGS: &[&str] = &[
    "", "", "", "", "s", "ed", "er", "ing", "ly", "ness", "able", "al", "ment", "tion", "ist", "y",
];
const PREFIXES: &[&str] = &[
    "", "", "", "", "", "", "", "un", "re", "in", "over", "dis", "pre", "con", "sub", "non",
];

fn pick(draws: &mut Draws, parts: &'static [&'static str]) -> &'static str {
    parts[draws.below(parts.len() as u64) as usize]
}

/// The first `count` invented words (at most [`WORDS_MAX`]).
pub fn words(count: usize) -> Vec<String> {
    let count = count.min(WORDS_MAX);
    let mut draws = Draws::new(SEED);
    let mut seen = HashSet::with_capacity(count);
    let mut words = Vec::with_capacity(count);
    while words.len() < count {
        let mut word = String::with_capacity(WORD_BYTES_MAX + 8);
        word.push_str(pick(&mut draws, PREFIXES));
        for _ in 0..1 + draws.below(3) {
            word.push_str(pick(&mut draws, ONSETS));
            word.push_str(pick(&mut draws, VOWELS));
            word.push_str(pick(&mut draws, CODAS));
        }
        word.push_str(pick(&mut draws, ENDINGS));
        if (2..=WORD_BYTES_MAX).contains(&word.len()) && seen.insert(word.clone()) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct_lower_case_and_of_natural_length() {
        let words = words(WORDS_MAX);
        assert_eq!(words.len(), WORDS_MAX);
        assert_eq!(words.iter().collect::<HashSet<_>>().len(), WORDS_MAX);
        assert!(
            words
                .iter()
                .all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()))
        );
        let mean = words.iter().map(String::len).sum::<usize>() as f64 / words.len() as f64;
        assert!((7.5..10.5).contains(&mean), "mean length {mean}");
    }

    #[test]
    fn a_shorter_list_is_a_prefix_of_a_longer_one() {
        assert_eq!(words(50), words(500)[..50]);
    }
}
