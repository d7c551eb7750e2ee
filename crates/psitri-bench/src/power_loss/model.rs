//! What a database has after transaction `n`: everything follows from the number.
use std::collections::BTreeMap;

/// Keys that transactions write to, in each of two keyspaces.
const KEYS: u64 = 997;

/// One step of a transaction.
pub enum Step {
    Put {
        keyspace: usize,
        key: [u8; 8],
        value: Vec<u8>,
    },
    Remove {
        keyspace: usize,
        key: [u8; 8],
    },
    RemoveRange {
        keyspace: usize,
        lo: [u8; 8],
        hi: [u8; 8],
    },
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What transaction `number` does.
pub fn steps(number: u64) -> impl Iterator<Item = Step> {
    // Ten of forty in a row are large: what the log prepares depends on how much its flushes write.
    let count = if number.is_multiple_of(400) || number / 10 % 4 == 3 {
        300
    } else {
        1 + mix(number) % 5
    };
    (0..count).map(move |step| {
        let draw = mix(number << 20 | step);
        let keyspace = (draw >> 60) as usize % 2;
        let key = (draw % KEYS).to_be_bytes();
        match (draw >> 32) % 100 {
            0..15 => Step::Remove { keyspace, key },
            15 => Step::RemoveRange {
                keyspace,
                lo: key,
                hi: (draw % KEYS + 20).to_be_bytes(),
            },
            kind => {
                let len = match kind {
                    16 => 20_000,
                    17..20 => 3_000,
                    _ => 8 + (draw >> 40) % 100,
                };
                let word = mix(draw).to_le_bytes();
                let value = word.iter().copied().cycle().take(len as usize).collect();
                Step::Put {
                    keyspace,
                    key,
                    value,
                }
            }
        }
    })
}

/// The content of both keyspaces after some number of transactions.
#[derive(Debug, Default)]
pub struct Model {
    transactions: u64,
    pub keyspaces: [BTreeMap<Vec<u8>, Vec<u8>>; 2],
}

impl Model {
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    pub fn advance_to(&mut self, transactions: u64) {
        while self.transactions < transactions {
            self.transactions += 1;
            for step in steps(self.transactions) {
                match step {
                    Step::Put {
                        keyspace,
                        key,
                        value,
                    } => drop(self.keyspaces[keyspace].insert(key.to_vec(), value)),
                    Step::Remove { keyspace, key } => {
                        drop(self.keyspaces[keyspace].remove(&key[..]));
                    }
                    Step::RemoveRange { keyspace, lo, hi } => {
                        self.keyspaces[keyspace]
                            .retain(|key, _| key[..] < lo[..] || key[..] >= hi[..]);
                    }
                }
            }
        }
    }
}
