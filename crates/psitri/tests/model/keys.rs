//! Keys and values that are hard on radix trees, leaf codecs and size thresholds.

use std::rc::Rc;

use super::{
    common::Random,
    oracle::{Key, Value},
};

/// The keys of one run. Few enough that they meet again.
pub struct Keys {
    sets: Vec<Vec<Key>>,
}

impl Keys {
    pub fn new(random: &mut Random) -> Keys {
        let key = |bytes: &[u8]| -> Key { Rc::from(bytes) };
        let chain = (0..200).map(|len| key(&vec![b'a'; len])).collect();
        let mut prefixed = Vec::new();
        let prefix: Vec<u8> = (0..1000).map(|i| (i % 7) as u8).collect();
        for end in 0..60u16 {
            prefixed.push([&prefix[..], &end.to_be_bytes()].concat().into());
            prefixed.push([&prefix[..end as usize * 3], &[9]].concat().into());
        }
        let mut huge = Vec::new();
        for end in 0..4u8 {
            let mut bytes = vec![b'h'; psitri::KEY_BYTES_MAX];
            bytes[psitri::KEY_BYTES_MAX - 1] = end;
            huge.push(key(&bytes));
            huge.push(key(
                &bytes[..psitri::KEY_BYTES_MAX - 1 - end as usize * 1000]
            ));
        }
        let mut runs: Vec<Key> = (0..40).map(|len| key(&vec![0xff; len])).collect();
        runs.extend((0..40).map(|len| key(&vec![0; len])));
        runs.extend((0..30).map(|len| [&vec![0xff; len][..], &[0]].concat().into()));
        let dense = (0..1500u32).map(|i| key(&i.to_be_bytes())).collect();
        let words = (0..1500)
            .map(|_| {
                let len = random.between(1, 12);
                let word: Vec<u8> = (0..len).map(|_| b'a' + random.below(4) as u8).collect();
                word.into()
            })
            .collect();
        let noise = (0..500)
            .map(|_| {
                let len = random.between(0, 40);
                let word: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                word.into()
            })
            .collect();
        Keys {
            sets: vec![dense, words, noise, chain, prefixed, runs, huge],
        }
    }

    pub fn draw(&self, random: &mut Random) -> Key {
        let set = match random.below(100) {
            0..40 => 0,
            40..70 => 1,
            70..80 => 2,
            80..87 => 3,
            87..93 => 4,
            93..99 => 5,
            _ => 6,
        };
        random.pick(&self.sets[set]).clone()
    }

    /// A key near those of the run, and mostly not one of them.
    pub fn near(&self, random: &mut Random) -> Vec<u8> {
        let mut key = self.draw(random).to_vec();
        match random.below(4) {
            0 => key.push(0),
            1 => {
                key.pop();
            }
            2 => {
                if let Some(last) = key.last_mut() {
                    *last = last.wrapping_add(1);
                }
            }
            _ => {}
        }
        key
    }
}

/// Lengths around the thresholds: inline to out of line, buffered to written straight, one page to several.
pub fn value(random: &mut Random) -> Value {
    let around = |random: &mut Random, len: usize| random.between(len - 2, len + 2);
    let len = match random.below(200) {
        0..130 => random.below(24),
        130..160 => 8,
        160..180 => random.below(600),
        180..190 => around(random, 512),
        190..194 => around(random, 4096),
        194..197 => around(random, 16 << 10),
        197..199 => random.between(600, 20_000),
        _ => random.between(16 << 10, 100_000),
    };
    Value {
        tag: random.next(),
        len,
        expires: 0,
    }
}
