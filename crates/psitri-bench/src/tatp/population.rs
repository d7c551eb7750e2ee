//! The rows that every engine is loaded with, subscriber by subscriber, from a seed.
//!
//! Each subscriber has one to four rows of access info and one to four special facilities, of different types out of 1 to 4; a facility is
//! active with 85 % and has zero to three call forwardings, of different start times out of 0, 8 and 16 hours.
use crate::rng::Draws;

pub const SUBSCRIBERS_MAX: i64 = 100_000_000;
pub const NUMBER_DIGITS: usize = 15;
pub const START_TIMES: [u8; 3] = [0, 8, 16];

pub type Number = [u8; NUMBER_DIGITS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    pub number: Number,
    pub bits: [u8; 10],
    pub hexes: [u8; 10],
    pub bytes: [u8; 10],
    pub msc_location: u32,
    pub vlr_location: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessInfo {
    pub data1: u8,
    pub data2: u8,
    pub data3: [u8; 3],
    pub data4: [u8; 5],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facility {
    pub is_active: bool,
    pub error_control: u8,
    pub data_a: u8,
    pub data_b: [u8; 5],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    pub end_time: u8,
    pub number: Number,
}

/// A subscriber with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub s_id: u32,
    pub subscriber: Subscriber,
    /// By type, 1 to 4 at 0 to 3.
    pub access: [Option<AccessInfo>; 4],
    /// By type, each with its forwardings by start time.
    pub facilities: [Option<(Facility, [Option<Forwarding>; 3])>; 4],
}

/// A number as its digits, with zeros in front.
pub fn digits(mut number: u64) -> Number {
    let mut digits = [b'0'; NUMBER_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

pub fn text(digits: &[u8]) -> &str {
    // All of them are letters and digits.
    std::str::from_utf8(digits).unwrap_or_default()
}

pub fn random_number(draws: &mut Draws) -> Number {
    digits(draws.below(10u64.pow(NUMBER_DIGITS as u32)))
}

pub fn random_location(draws: &mut Draws) -> u32 {
    1 + draws.below(u64::from(u32::MAX)) as u32
}

fn letters<const N: usize>(draws: &mut Draws) -> [u8; N] {
    std::array::from_fn(|_| b'A' + draws.below(26) as u8)
}

/// As many of the first `from` places as `count`, all choices equally likely.
fn choose<const N: usize>(draws: &mut Draws, count: u64) -> [bool; N] {
    let mut chosen = [false; N];
    let mut missing = count;
    for (place, is_chosen) in chosen.iter_mut().enumerate() {
        let left = (N - place) as u64;
        *is_chosen = draws.below(left) < missing;
        missing -= u64::from(*is_chosen);
    }
    chosen
}

/// Subscribers 1 to `subscribers`.
pub fn population(subscribers: u32, seed: u64) -> impl Iterator<Item = Rows> {
    let mut draws = Draws::new(seed);
    (1..=subscribers).map(move |s_id| rows(s_id, &mut draws))
}

fn rows(s_id: u32, draws: &mut Draws) -> Rows {
    let subscriber = Subscriber {
        number: digits(u64::from(s_id)),
        bits: std::array::from_fn(|_| draws.below(2) as u8),
        hexes: std::array::from_fn(|_| draws.below(16) as u8),
        bytes: std::array::from_fn(|_| draws.below(256) as u8),
        msc_location: random_location(draws),
        vlr_location: random_location(draws),
    };
    let count = 1 + draws.below(4);
    let types: [bool; 4] = choose(draws, count);
    let access = types.map(|is_there| {
        is_there.then(|| AccessInfo {
            data1: draws.below(256) as u8,
            data2: draws.below(256) as u8,
            data3: letters(draws),
            data4: letters(draws),
        })
    });
    let count = 1 + draws.below(4);
    let types: [bool; 4] = choose(draws, count);
    let facilities = types.map(|is_there| is_there.then(|| facility(draws)));
    Rows {
        s_id,
        subscriber,
        access,
        facilities,
    }
}

fn facility(draws: &mut Draws) -> (Facility, [Option<Forwarding>; 3]) {
    let facility = Facility {
        is_active: draws.below(100) < 85,
        error_control: draws.below(256) as u8,
        data_a: draws.below(256) as u8,
        data_b: letters(draws),
    };
    let count = draws.below(4);
    let starts: [bool; 3] = choose(draws, count);
    let mut forwardings = [None; 3];
    for (place, is_there) in starts.into_iter().enumerate() {
        if is_there {
            forwardings[place] = Some(Forwarding {
                end_time: START_TIMES[place] + 1 + draws.below(8) as u8,
                number: random_number(draws),
            });
        }
    }
    (facility, forwardings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_population_has_the_proportions_of_the_definition() {
        let subscribers = 20_000;
        let (mut access, mut facilities, mut active, mut forwardings) = (0u32, 0u32, 0u32, 0u32);
        for rows in population(subscribers, 1) {
            let here = rows.access.iter().flatten().count() as u32;
            assert!((1..=4).contains(&here));
            access += here;
            for (facility, times) in rows.facilities.iter().flatten() {
                facilities += 1;
                active += u32::from(facility.is_active);
                forwardings += times.iter().flatten().count() as u32;
            }
        }
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.03;
        assert!(near(f64::from(access) / f64::from(subscribers), 2.5));
        assert!(near(f64::from(facilities) / f64::from(subscribers), 2.5));
        assert!(near(f64::from(active) / f64::from(facilities), 0.85));
        assert!(near(f64::from(forwardings) / f64::from(facilities), 1.5));
    }

    #[test]
    fn numbers_have_fifteen_digits() {
        assert_eq!(text(&digits(1_234)), "000000000001234");
    }
}
