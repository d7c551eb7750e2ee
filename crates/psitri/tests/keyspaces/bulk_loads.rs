//! Story: a bulk load is merged run by run, in small runs while its keys ascend and in large ones from the first key on that does not. Wherever
//! the order ends, and whatever is in the tree before, each key has what was given for it last.

use crate::common::{Random, seed};
use psitri::{Database, Keyspace, Options, storage::sim::SimStorage};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

/// Several small runs' worth.
const ENTRIES: u32 = 24_000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u32) -> Vec<u8> {
    format!("key/{number:08}").into_bytes()
}

/// One in a hundred lies outside of its leaf.
fn value(number: u32, stamp: u32) -> Vec<u8> {
    let words = if number % 100 == 7 { 1_250 } else { 100 };
    stamp.to_le_bytes().repeat(words)
}

struct Loaded {
    disk: SimStorage,
    db: Database,
    ks: Keyspace,
    model: Model,
    /// Entries loaded so far: no value is like another.
    stamp: u32,
}

impl Loaded {
    fn new() -> Loaded {
        let disk = SimStorage::new(1);
        let db = open(&disk);
        let ks = db.create_keyspace("k").unwrap();
        Loaded {
            disk,
            db,
            ks,
            model: Model::new(),
            stamp: 0,
        }
    }

    fn load(&mut self, numbers: &[u32]) {
        let entries = || {
            (self.stamp..)
                .zip(numbers)
                .map(|(s, &n)| (key(n), value(n, s)))
        };
        let mut txn = self.db.begin_direct(&[&self.ks]).unwrap();
        let written = txn.ingest(&self.ks, entries()).unwrap();
        assert_eq!(written, numbers.len() as u64);
        txn.commit().unwrap();
        self.model.extend(entries());
        self.stamp += numbers.len() as u32;
        self.check();
    }

    fn check(&self) {
        let snapshot = self.db.snapshot();
        assert_eq!(
            snapshot.count(&self.ks, ..).unwrap(),
            self.model.len() as u64
        );
        let mut expected = self.model.iter();
        snapshot
            .for_each(&self.ks, .., |key, value| {
                let found = Some((key, value));
                let expected = expected.next().map(|(k, v)| (k.as_slice(), v.as_slice()));
                assert!(found == expected, "at {}", String::from_utf8_lossy(key));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(expected.next().is_none(), "a key is missing");
    }

    fn reopen(mut self) {
        drop(self.ks);
        self.db.close().unwrap();
        self.db = open(&self.disk);
        self.ks = self.db.keyspace("k").unwrap();
        self.check();
        let report = self.db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
}

fn open(disk: &SimStorage) -> Database {
    Database::open_on(Arc::new(disk.clone()), Options::new()).unwrap()
}

#[test]
fn in_order_once_and_again() {
    let mut loaded = Loaded::new();
    let all: Vec<u32> = (0..ENTRIES).collect();
    loaded.load(&all);
    loaded.load(&all);
    let every_third: Vec<u32> = (0..ENTRIES).map(|n| 3 * n).collect();
    loaded.load(&every_third);
    loaded.reopen();
}

/// The order ends at every place of interest: in the first run, at a seam and close to one, by the same key or by a lower one.
#[test]
fn in_order_up_to_some_place() {
    let mut random = Random::new(seed(3));
    let mut loaded = Loaded::new();
    for _ in 0..6 {
        let from = random.below(ENTRIES as usize) as u32;
        let mut numbers: Vec<u32> = (from..from + ENTRIES).collect();
        let at = random.below(numbers.len());
        let back = random.below(at + 1);
        // What was loaded comes again, from here or from long before.
        let again: Vec<u32> = numbers[back..at].to_vec();
        numbers.splice(at..at, again);
        loaded.load(&numbers);
    }
    loaded.reopen();
}

/// Each chunk is in order, and larger than a small run; all of them together go through the same leaves. They are written once or twice, not
/// once a chunk.
#[test]
fn chunks_in_order() {
    const CHUNKS: u32 = 8;
    let mut loaded = Loaded::new();
    let combed: Vec<u32> = (0..CHUNKS)
        .flat_map(|at| (0..ENTRIES / 2).map(move |n| CHUNKS * n + at))
        .collect();
    loaded.load(&combed);
    let stats = loaded.db.stats().unwrap();
    assert!(
        stats.written_bytes < 2 * stats.file_bytes,
        "{} bytes written for a file of {}",
        stats.written_bytes,
        stats.file_bytes
    );
    let backwards: Vec<u32> = (0..ENTRIES).rev().collect();
    loaded.load(&backwards);
    loaded.reopen();
}

/// What equal keys took in a run is free when it is merged: runs do not become smaller and smaller.
#[test]
fn few_keys_again_and_again() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let ks = db.create_keyspace("k").unwrap();
    let mut random = Random::new(seed(4));
    let entries = (0..200_000u32).map(|n| (key(random.below(500) as u32), n.to_le_bytes()));
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.ingest(&ks, entries).unwrap();
    txn.commit().unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 500);
    let written = db.stats().unwrap().written_bytes;
    assert!(written < 4 << 20, "{written} bytes written");
}
