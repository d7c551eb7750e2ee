//! Which transaction comes next, on whom and with what: a stream that is the same for every engine and for the model.
use super::population::{Number, START_TIMES, digits, random_location, random_number};
use crate::rng::Draws;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which subscribers transactions choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// As the definition has it: two draws joined by OR, which prefers some
    #[default]
    NonUniform,
    /// All alike
    Uniform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    GetSubscriberData,
    GetNewDestination,
    GetAccessData,
    UpdateSubscriberData,
    UpdateLocation,
    InsertCallForwarding,
    DeleteCallForwarding,
}

/// A kind of transaction as the definition has it.
pub struct Definition {
    pub kind: Kind,
    /// Of the phase in a report.
    pub name: &'static str,
    pub percent: u64,
    /// How often it succeeds, by the proportions of the population: between what holds after the load and what holds when every call
    /// forwarding has been replaced by one that was inserted in a transaction and ends at any hour.
    pub success_share: (f64, f64),
}

/// In the order of the definition; a kind's number is its place.
pub const DEFINITIONS: [Definition; 7] = [
    define(
        Kind::GetSubscriberData,
        "get_subscriber_data",
        35,
        (1.0, 1.0),
    ),
    define(
        Kind::GetNewDestination,
        "get_new_destination",
        10,
        (0.1479, 0.2043),
    ),
    define(Kind::GetAccessData, "get_access_data", 35, (0.625, 0.625)),
    define(
        Kind::UpdateSubscriberData,
        "update_subscriber_data",
        2,
        (0.625, 0.625),
    ),
    define(Kind::UpdateLocation, "update_location", 14, (1.0, 1.0)),
    define(
        Kind::InsertCallForwarding,
        "insert_call_forwarding",
        2,
        (0.3125, 0.3125),
    ),
    define(
        Kind::DeleteCallForwarding,
        "delete_call_forwarding",
        2,
        (0.3125, 0.3125),
    ),
];

const fn define(
    kind: Kind,
    name: &'static str,
    percent: u64,
    success_share: (f64, f64),
) -> Definition {
    Definition {
        kind,
        name,
        percent,
        success_share,
    }
}

const _: () = {
    let (mut sum, mut place) = (0, 0);
    while place < DEFINITIONS.len() {
        sum += DEFINITIONS[place].percent;
        assert!(DEFINITIONS[place].kind as usize == place);
        place += 1;
    }
    assert!(sum == 100);
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transaction {
    GetSubscriberData {
        s_id: u32,
    },
    GetNewDestination {
        s_id: u32,
        sf_type: u8,
        start_time: u8,
        end_time: u8,
    },
    GetAccessData {
        s_id: u32,
        ai_type: u8,
    },
    UpdateSubscriberData {
        s_id: u32,
        bit_1: u8,
        sf_type: u8,
        data_a: u8,
    },
    UpdateLocation {
        number: Number,
        vlr_location: u32,
    },
    InsertCallForwarding {
        number: Number,
        sf_type: u8,
        start_time: u8,
        end_time: u8,
        to: Number,
    },
    DeleteCallForwarding {
        number: Number,
        sf_type: u8,
        start_time: u8,
    },
}

pub struct Mix {
    draws: Draws,
    subscribers: u64,
    distribution: Distribution,
}

impl Mix {
    pub fn new(subscribers: u32, distribution: Distribution, seed: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            subscribers: u64::from(subscribers),
            distribution,
        }
    }

    /// The constant A of the definition's distribution, which depends on the number of subscribers.
    fn spread(&self) -> u64 {
        match self.subscribers {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        }
    }

    fn s_id(&mut self) -> u32 {
        let uniform = 1 + self.draws.below(self.subscribers);
        let s_id = match self.distribution {
            Distribution::Uniform => uniform,
            Distribution::NonUniform => {
                let other = self.draws.below(self.spread() + 1);
                (other | uniform) % self.subscribers + 1
            }
        };
        s_id as u32
    }

    /// Of how many subscribers, equally likely, a choice would repeat itself as often as it does here.
    pub fn subscribers_effective(&self) -> f64 {
        let all = self.subscribers as f64;
        match self.distribution {
            Distribution::Uniform => all,
            // Each bit that two draws are joined in is set with 3/4, so two choices agree in it with 9/16 + 1/16.
            Distribution::NonUniform => {
                let bits = ((self.spread() + 1) as f64).min(all).log2();
                (1.6f64.powf(bits)).min(all)
            }
        }
    }

    fn number(&mut self) -> Number {
        digits(u64::from(self.s_id()))
    }

    fn one_to_four(&mut self) -> u8 {
        1 + self.draws.below(4) as u8
    }

    fn start_time(&mut self) -> u8 {
        START_TIMES[self.draws.below(START_TIMES.len() as u64) as usize]
    }

    fn end_time(&mut self) -> u8 {
        1 + self.draws.below(24) as u8
    }

    fn kind(&mut self) -> Kind {
        let mut left = self.draws.below(100);
        for definition in &DEFINITIONS {
            if left < definition.percent {
                return definition.kind;
            }
            left -= definition.percent;
        }
        unreachable!("the percents add up to 100, as is asserted above")
    }
}

impl Iterator for Mix {
    type Item = (Kind, Transaction);

    /// There is always another one.
    fn next(&mut self) -> Option<(Kind, Transaction)> {
        let kind = self.kind();
        let transaction = match kind {
            Kind::GetSubscriberData => Transaction::GetSubscriberData { s_id: self.s_id() },
            Kind::GetNewDestination => Transaction::GetNewDestination {
                s_id: self.s_id(),
                sf_type: self.one_to_four(),
                start_time: self.start_time(),
                end_time: self.end_time(),
            },
            Kind::GetAccessData => Transaction::GetAccessData {
                s_id: self.s_id(),
                ai_type: self.one_to_four(),
            },
            Kind::UpdateSubscriberData => Transaction::UpdateSubscriberData {
                s_id: self.s_id(),
                bit_1: self.draws.below(2) as u8,
                sf_type: self.one_to_four(),
                data_a: self.draws.below(256) as u8,
            },
            Kind::UpdateLocation => Transaction::UpdateLocation {
                number: self.number(),
                vlr_location: random_location(&mut self.draws),
            },
            Kind::InsertCallForwarding => Transaction::InsertCallForwarding {
                number: self.number(),
                sf_type: self.one_to_four(),
                start_time: self.start_time(),
                end_time: self.end_time(),
                to: random_number(&mut self.draws),
            },
            Kind::DeleteCallForwarding => Transaction::DeleteCallForwarding {
                number: self.number(),
                sf_type: self.one_to_four(),
                start_time: self.start_time(),
            },
        };
        Some((kind, transaction))
    }
}
