//! Story: a database was damaged: a bit flipped, a file is cut short or gone, a sector holds nonsense. `salvage` rebuilds what can be read. It
//! never panics, never loses what intact nodes lead to, never gives what was not stored as certain, and names each loss.
//!
//! `PSITRI_SEED` repeats a run; `PSITRI_DAMAGES` sets how often each kind of damage is done.

#[path = "../common/mod.rs"]
mod common;

mod case;
mod data_file;
mod layout;
mod log;
mod story;
mod whole;

use std::ops::Range;

use common::{Random, env_number};

fn rounds(default: u64) -> u64 {
    env_number("PSITRI_DAMAGES").unwrap_or(default)
}

/// Writes nonsense somewhere in a range.
fn spoil(bytes: &mut [u8], place: &Range<usize>, random: &mut Random) {
    let at = place.start + random.below(place.len());
    let len = random.between(1, 64).min(place.end - at);
    for byte in &mut bytes[at..at + len] {
        *byte ^= random.between(1, 255) as u8;
    }
}
