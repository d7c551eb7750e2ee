//! What the workload asks of an engine: the load, the seven transactions, and the sums that it is checked by.
//!
//! A transaction returns what it read or whether it succeeded; one that does not succeed changes nothing.
use super::mix::Transaction;
use super::population::{AccessInfo, Number, Rows, Subscriber};
use anyhow::Result;

/// Numbers that calls are forwarded to, in the order of their start times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    numbers: [Number; 3],
    count: usize,
}

impl Destinations {
    /// Adds one; there are no more than three start times.
    pub fn push(&mut self, number: Number) -> Result<()> {
        anyhow::ensure!(self.count < 3, "more than three call forwardings match");
        self.numbers[self.count] = number;
        self.count += 1;
        Ok(())
    }

    pub fn numbers(&self) -> &[Number] {
        &self.numbers[..self.count]
    }
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Subscriber(Option<Subscriber>),
    Destinations(Destinations),
    Access(Option<AccessInfo>),
    /// Whether it changed what it was to change.
    Done(bool),
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        match self {
            Self::Subscriber(row) => row.is_some(),
            Self::Destinations(destinations) => destinations.count > 0,
            Self::Access(row) => row.is_some(),
            Self::Done(done) => *done,
        }
    }

    /// A number that is another one if anything that was read is other.
    pub fn digest(&self) -> u64 {
        let checksum = match self {
            Self::Subscriber(Some(row)) => [
                &row.number[..],
                &row.bits,
                &row.hexes,
                &row.bytes,
                &row.msc_location.to_le_bytes(),
                &row.vlr_location.to_le_bytes(),
            ]
            .into_iter()
            .fold(1, crc32c::crc32c_append),
            Self::Destinations(destinations) => {
                destinations.numbers().iter().fold(2, |checksum, number| {
                    crc32c::crc32c_append(checksum, number)
                })
            }
            Self::Access(Some(row)) => [&[row.data1, row.data2][..], &row.data3, &row.data4]
                .into_iter()
                .fold(3, crc32c::crc32c_append),
            Self::Subscriber(None) | Self::Access(None) => 4,
            Self::Done(done) => 5 + u32::from(*done),
        };
        u64::from(checksum)
    }
}

/// Of all tables, at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub subscribers: i64,
    pub vlr_locations: i64,
    pub bits_1: i64,
    pub access_infos: i64,
    pub facilities: i64,
    pub data_a: i64,
    pub forwardings: i64,
    pub end_times: i64,
}

pub trait Store {
    /// Inserts the rows of some subscribers in one transaction.
    fn load(&mut self, rows: &[Rows]) -> Result<()>;

    fn run(&mut self, transaction: &Transaction) -> Result<Outcome>;

    fn sums(&mut self) -> Result<Sums>;
}
