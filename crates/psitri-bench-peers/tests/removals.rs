//! What adapters that delete with a cursor of their own leave is what a map leaves, and they ask about each entry once, in order.
//!
//! A deletion may merge the page that the cursor is on with its neighbour, empty it, or free the pages of a large value; so the trees are
//! several levels deep here, and what goes is every entry, most, half or few, alone and in rows. In mode `none` pages change in the map,
//! in `sync` they are copied.
#![cfg(any(feature = "lmdb", feature = "mdbx"))]
use psitri_bench::engine::{Engine, ReadMode, Settings, Snapshot, SyncMode};
use psitri_bench::rng::Draws;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const ENTRIES: usize = 10_000;
const ROUNDS: u64 = 12;

/// Keys of 1 to 200 bytes, so that branches have few; one value in 500 has pages of its own.
fn add_entries(map: &mut Map, draws: &mut Draws) -> Map {
    let mut added = Map::new();
    while map.len() < ENTRIES {
        let length = 1 + draws.below(200) as usize;
        let mut key = draws.below(1 << 40).to_be_bytes()[3..].to_vec();
        key.resize(length, 7);
        let bytes = match draws.below(500) {
            0 => 10_000,
            _ => draws.below(300) as usize,
        };
        let value = vec![draws.below(256) as u8; bytes];
        if let Entry::Vacant(place) = map.entry(key) {
            added.insert(place.key().clone(), value.clone());
            place.insert(value);
        }
    }
    added
}

fn contents<E: Engine>(engine: &E) -> anyhow::Result<Map> {
    let mut found = Map::new();
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    let mut last = Vec::new();
    snapshot.scan(|key, value| {
        assert!(last.as_slice() < key, "a scan is in order");
        last = key.to_vec();
        found.insert(key.to_vec(), value.to_vec());
    })?;
    assert_eq!(snapshot.count()?, found.len() as u64);
    Ok(found)
}

/// Whether the next entry goes: all, or rows of random lengths of which `weight` of eight do.
struct Choice {
    draws: Draws,
    weight: u64,
    row_max: u64,
    left: u64,
    goes: bool,
}

impl Choice {
    fn new(seed: u64, round: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            weight: [8, 7, 4, 1][round as usize % 4],
            row_max: [1, 3, 400][round as usize % 3],
            left: 0,
            goes: false,
        }
    }

    fn next(&mut self) -> bool {
        if self.left == 0 {
            self.left = 1 + self.draws.below(self.row_max);
            self.goes = self.draws.below(8) < self.weight;
        }
        self.left -= 1;
        self.goes
    }
}

fn removals_are_those_of_a_map<E: Engine>(sync_mode: SyncMode) -> anyhow::Result<()> {
    let settings = Settings {
        sync_mode,
        ..Settings::default()
    };
    let directory = tempfile::tempdir()?;
    let engine = E::create(&directory.path().join("db"), &settings)?;
    let (mut map, mut draws) = (Map::new(), Draws::new(1));
    for round in 0..ROUNDS {
        let added = add_entries(&mut map, &mut draws);
        engine.bulk_load(added.iter().map(|(key, value)| (&key[..], &value[..])))?;
        assert_eq!(contents(&engine)?, map, "before round {round}");

        let (from, to) = ([(round * 20) as u8; 2], [200 + (round * 4) as u8; 1]);
        let mut choice = Choice::new(round, round + 1);
        let mut asked = Vec::new();
        let extracted = engine.extract(&from[..]..&to[..], |key, value| {
            asked.push((key.to_vec(), value.to_vec()));
            choice.next()
        })?;
        let in_range = map.range(from.to_vec()..to.to_vec());
        assert!(
            asked
                .iter()
                .map(|(key, value)| (key, value))
                .eq(in_range.clone()),
            "round {round}: every entry of the range is asked about, once and in order"
        );
        let mut choice = Choice::new(round, round + 1);
        let gone: Vec<Vec<u8>> = in_range
            .filter(|_| choice.next())
            .map(|(key, _)| key.clone())
            .collect();
        for key in &gone {
            map.remove(key);
        }
        assert_eq!(extracted, gone.len() as u64, "round {round}");
        assert_eq!(contents(&engine)?, map, "round {round}: extracted");

        let mut choice = Choice::new(round + 100, round);
        let mut entries = map.iter();
        engine.retain(|key, value| {
            let entry = entries.next().map(|(key, value)| (&key[..], &value[..]));
            assert_eq!(entry, Some((key, value)), "round {round}");
            !choice.next()
        })?;
        assert_eq!(entries.next(), None, "round {round}");
        let mut choice = Choice::new(round + 100, round);
        map.retain(|_, _| !choice.next());
        assert_eq!(contents(&engine)?, map, "round {round}: retained");
    }
    let none = engine.extract(&b"m"[..]..&b"c"[..], |_, _| true)?;
    assert_eq!(none, 0, "a range that ends before it starts has no entries");
    engine.retain(|_, _| false)?;
    assert_eq!(contents(&engine)?, Map::new());
    engine.retain(|_, _| panic!("nothing is left to ask about"))?;
    assert_eq!(engine.extract(&b""[..]..&b"z"[..], |_, _| true)?, 0);
    engine.close()
}

macro_rules! removals {
    ($($(#[$attribute:meta])* $name:ident: $engine:ty),* $(,)?) => {
        $($(#[$attribute])*
        mod $name {
            use super::*;

            #[test]
            fn in_the_map() -> anyhow::Result<()> {
                removals_are_those_of_a_map::<$engine>(SyncMode::None)
            }

            #[test]
            fn in_copies_of_pages() -> anyhow::Result<()> {
                removals_are_those_of_a_map::<$engine>(SyncMode::Sync)
            }
        })*
    };
}

removals! {
    #[cfg(feature = "lmdb")]
    lmdb: psitri_bench_peers::engines::lmdb::Lmdb,
    #[cfg(feature = "mdbx")]
    mdbx: psitri_bench_peers::engines::mdbx::Mdbx,
}
