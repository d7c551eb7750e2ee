//! A database under a random workload, beside the oracle that knows every state it went through.
//!
//! The workload and the crash points repeat with the seed; what the background threads have got to by then does not.
#![allow(dead_code)] // each test uses its part
use psitri::{
    Database, Durability, Error, Isolation, Keyspace, Options, WriteBatch, WriteTxn,
    storage::sim::SimStorage,
};
use std::{sync::Arc, time::Duration};

#[path = "oracle.rs"]
mod oracle;
#[allow(unused_imports)] // as above
pub use oracle::{Content, Map, Oracle, read_all};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Half of it compressible, so that torn values are told from whole ones by content and not by noise alone.
        let salt = self.next();
        (0..len)
            .map(|i| (salt >> (i % 8 * 8)) as u8 ^ (i / 64) as u8)
            .collect()
    }
}

/// A number from the environment.
pub fn parameter(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Sizes at which everything happens often: spills, freezes, merges, checkpoints, recycled segments.
pub fn small_options(random: &mut Random) -> Options {
    small_options_with(random, Durability::None)
}

/// As [`small_options`], with the durability of commits that name none, and of changes of keyspaces.
pub fn small_options_with(random: &mut Random, durability: Durability) -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(1 + random.below(3) as usize)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(16 << 20)
        .merge_threads(1 + random.below(2) as usize)
        .async_interval(Duration::from_millis(2))
        .idle_flush(Duration::from_millis(if random.one_in(2) {
            10
        } else {
            3_600_000
        }))
        .durability(durability)
}

/// How a piece of work ended.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Done,
    Crashed,
    /// The database refuses writes, after this first cause.
    Poisoned(String),
}

/// Opens, compares with the oracle, verifies. `None`: the disk crashed meanwhile.
pub fn open_and_check(
    storage: &SimStorage,
    options: Options,
    oracle: &mut Oracle,
    context: &str,
) -> Option<Database> {
    let opened = Database::open_on(Arc::new(storage.clone()), options);
    let db = match opened {
        Ok(db) => db,
        Err(error) => {
            assert!(
                storage.is_crashed(),
                "{context}: opening failed without a crash: {error}"
            );
            return None;
        }
    };
    let found = read_all(&db).unwrap_or_else(|error| panic!("{context}: reading failed: {error}"));
    if storage.is_crashed() {
        // Opened just before the crash: what was seen may not have been durable yet.
        drop(db);
        return None;
    }
    oracle.settle(found, context);
    let report = db.verify().expect("verify");
    assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
    Some(db)
}

/// A transaction that is left open while others go on.
struct LongTxn {
    txn: WriteTxn,
    keyspace: Keyspace,
    name: String,
    map: Map,
}

/// A client that does random things to a database, one at a time.
pub struct Client<'a> {
    pub db: Database,
    pub storage: SimStorage,
    pub oracle: &'a mut Oracle,
    pub random: &'a mut Random,
    /// Faults are being injected: failures without a crash are to be expected.
    pub faults: bool,
    /// Durability of the database.
    pub durability: Durability,
    long: Option<LongTxn>,
}

/// Why a step ended early.
enum Stop {
    Ended(Outcome),
    /// A step failed and left no trace.
    Failed,
}

type Step = Result<(), Stop>;

impl<'a> Client<'a> {
    pub fn new(
        db: Database,
        storage: &SimStorage,
        oracle: &'a mut Oracle,
        random: &'a mut Random,
    ) -> Client<'a> {
        Client {
            db,
            storage: storage.clone(),
            oracle,
            random,
            faults: false,
            durability: Durability::None,
            long: None,
        }
    }

    /// Does `steps` things. Drops its handle of the database in the end.
    pub fn work(mut self, steps: u64) -> Outcome {
        for _ in 0..steps {
            let step = self.step();
            if self.storage.is_crashed() {
                return Outcome::Crashed;
            }
            match step {
                Ok(()) | Err(Stop::Failed) => {}
                Err(Stop::Ended(outcome)) => return outcome,
            }
        }
        Outcome::Done
    }

    fn step(&mut self) -> Step {
        match self.random.below(100) {
            0..2 => self.create(),
            2..3 => self.drop_keyspace(),
            3..5 => self.rename(),
            5..7 => self.flush(),
            7..10 => self.checkpoint(),
            10..13 => {
                std::thread::sleep(Duration::from_millis(self.random.below(25)));
                Ok(())
            }
            13..19 => self.long_step(),
            19..23 => self.batch(),
            23..25 => self.optimistic(),
            25..28 => self.transaction(true, 60),
            28..36 => self.transaction(true, 0),
            36..40 => self.transaction(false, 60),
            _ => self.transaction(false, 0),
        }
    }

    /// Judges the result of a step that changes nothing by itself.
    fn check<T>(&mut self, result: Result<T, Error>) -> Result<T, Stop> {
        match result {
            Ok(value) => Ok(value),
            Err(_) if self.storage.is_crashed() => Err(Stop::Ended(Outcome::Crashed)),
            Err(error) => {
                assert!(self.faults, "failed without a crash or fault: {error}");
                match self.db.begin(&[]) {
                    Err(Error::Poisoned { cause }) => Err(Stop::Ended(Outcome::Poisoned(cause))),
                    _ => Err(Stop::Failed),
                }
            }
        }
    }

    /// Judges a commit whose outcome the oracle has as its newest state.
    fn committed(&mut self, result: Result<(), Error>, durable: bool) -> Step {
        if self.storage.is_crashed() {
            return Err(Stop::Ended(Outcome::Crashed));
        }
        let ok = result.is_ok();
        let step = self.check(result);
        match &step {
            Ok(()) => self.oracle.acknowledge(durable),
            Err(Stop::Failed) => self.oracle.undo(),
            Err(Stop::Ended(_)) => debug_assert!(!ok),
        }
        step
    }

    fn names(&self) -> Vec<String> {
        self.oracle.newest().keys().cloned().collect()
    }

    fn create(&mut self) -> Step {
        let names = self.names();
        if names.len() >= 6 {
            return Ok(());
        }
        let name = format!("k{}", self.random.below(12));
        if names.contains(&name) {
            return Ok(());
        }
        let mut next = self.oracle.newest().clone();
        next.insert(name.clone(), Arc::default());
        self.oracle.push(next, format!("create {name}"));
        let result = self.db.create_keyspace(&name).map(drop);
        self.committed(result, waits(self.durability))
    }

    fn drop_keyspace(&mut self) -> Step {
        let Some(name) = self.pick_free_keyspace() else {
            return Ok(());
        };
        let mut next = self.oracle.newest().clone();
        next.remove(&name);
        self.oracle.push(next, format!("drop {name}"));
        let result = self.db.drop_keyspace(&name);
        self.committed(result, waits(self.durability))
    }

    fn rename(&mut self) -> Step {
        let names = self.names();
        let to = format!("k{}", self.random.below(12));
        if names.is_empty() || names.contains(&to) {
            return Ok(());
        }
        let from = &names[self.random.below(names.len() as u64) as usize];
        let mut next = self.oracle.newest().clone();
        let map = next.remove(from).expect("it was listed");
        next.insert(to.clone(), map);
        self.oracle.push(next, format!("rename {from} to {to}"));
        if let Some(long) = &mut self.long
            && long.name == *from
        {
            long.name.clone_from(&to);
        }
        let result = self.db.rename_keyspace(from, &to);
        let failed = result.is_err();
        let step = self.committed(result, waits(self.durability));
        if failed
            && let Some(long) = &mut self.long
            && long.name == to
        {
            long.name.clone_from(from);
        }
        step
    }

    fn flush(&mut self) -> Step {
        let result = self.db.flush();
        self.check(result)?;
        if !self.storage.is_crashed() {
            self.oracle.flushed("flush");
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Step {
        let result = if self.long.is_none() && self.random.below(3) == 0 {
            self.db.compact()
        } else {
            self.db.checkpoint()
        };
        self.check(result)?;
        if !self.storage.is_crashed() {
            self.oracle.flushed("checkpoint");
        }
        Ok(())
    }

    /// A keyspace that the open transaction does not hold.
    fn pick_free_keyspace(&mut self) -> Option<String> {
        let held = self.long.as_ref().map(|long| long.name.clone());
        let mut names = self.names();
        names.retain(|name| Some(name) != held.as_ref());
        if names.is_empty() {
            return None;
        }
        Some(names.swap_remove(self.random.below(names.len() as u64) as usize))
    }

    fn pick_durability(&mut self) -> Durability {
        match self.random.below(12) {
            0 => Durability::Sync,
            1 => Durability::WriteThrough,
            2 => Durability::Async,
            _ => Durability::None,
        }
    }

    /// Begins, goes on with, or ends the transaction that stays open.
    fn long_step(&mut self) -> Step {
        let Some(mut long) = self.long.take() else {
            let Some(name) = self.pick_free_keyspace() else {
                return Ok(());
            };
            let keyspace = self.db.open_keyspace(&name);
            let keyspace = self.check(keyspace)?;
            let map = (*self.oracle.newest()[&name]).clone();
            let txn = self.db.begin(&[&keyspace]);
            let txn = self.check(txn)?;
            self.long = Some(LongTxn {
                txn,
                keyspace,
                name,
                map,
            });
            return Ok(());
        };
        if self.random.one_in(3) {
            let mut next = self.oracle.newest().clone();
            next.insert(long.name.clone(), Arc::new(long.map));
            let durability = self.pick_durability();
            let step = format!("long transaction on {}, {durability}", long.name);
            self.oracle.push(next, step);
            let result = long.txn.commit_with(durability);
            return self.committed(result, waits(durability));
        }
        for _ in 0..self.random.below(6) {
            let result = change(
                &mut long.txn,
                &long.keyspace,
                &mut long.map,
                self.random,
                false,
            );
            self.check(result)?;
        }
        self.long = Some(long);
        Ok(())
    }

    fn pick_keyspaces(&mut self, count: u64) -> Result<Vec<(String, Keyspace)>, Stop> {
        let mut picked: Vec<(String, Keyspace)> = Vec::new();
        for _ in 0..count {
            if let Some(name) = self.pick_free_keyspace()
                && picked.iter().all(|(known, _)| *known != name)
            {
                let keyspace = self.db.open_keyspace(&name);
                picked.push((name, self.check(keyspace)?));
            }
        }
        Ok(picked)
    }

    fn batch(&mut self) -> Step {
        let picked = self.pick_keyspaces(2)?;
        if picked.is_empty() {
            return self.create();
        }
        let mut next = self.oracle.newest().clone();
        let mut batch = WriteBatch::new();
        for (name, keyspace) in &picked {
            let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
            for _ in 0..1 + self.random.below(5) {
                let key = some_key(self.random);
                if self.random.one_in(3) {
                    batch.remove(keyspace, &key);
                    map.remove(&key);
                } else {
                    let value = some_value(self.random);
                    batch.upsert(keyspace, &key, &value);
                    map.insert(key, value.into());
                }
            }
        }
        let durability = self.pick_durability();
        batch.durability(durability);
        self.oracle.push(next, format!("batch, {durability}"));
        let result = self.db.write(batch);
        self.committed(result, waits(durability))
    }

    /// A transaction that takes its locks when it commits. Nobody else writes meanwhile, so that it cannot lose.
    fn optimistic(&mut self) -> Step {
        let picked = self.pick_keyspaces(2)?;
        if picked.is_empty() {
            return self.create();
        }
        let mut next = self.oracle.newest().clone();
        let mut txn = self.db.begin_optimistic(Isolation::Serializable);
        for (name, keyspace) in &picked {
            let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
            for _ in 0..1 + self.random.below(5) {
                let (key, other) = (some_key(self.random), some_key(self.random));
                let found = txn.get(keyspace, &other).map(|v| v.map(<[u8]>::to_vec));
                let found = self.check(found)?;
                assert_eq!(found.as_deref(), map.get(&other).map(|v| &v[..]));
                let result = if self.random.one_in(3) {
                    map.remove(&key);
                    txn.remove(keyspace, &key).map(drop)
                } else {
                    let value = some_value(self.random);
                    let result = txn.upsert(keyspace, &key, &value);
                    map.insert(key, value.into());
                    result
                };
                self.check(result)?;
            }
        }
        let durability = self.pick_durability();
        self.oracle.push(next, format!("optimistic, {durability}"));
        let result = txn.commit_with(durability);
        self.committed(result, waits(durability))
    }

    /// One transaction over some keyspaces; with `bulk` so many large puts that it may spill.
    fn transaction(&mut self, direct: bool, bulk: u64) -> Step {
        let count = 1 + self.random.below(3);
        let picked = self.pick_keyspaces(count)?;
        if picked.is_empty() {
            return self.create();
        }
        let mut next = self.oracle.newest().clone();
        let handles: Vec<&Keyspace> = picked.iter().map(|(_, keyspace)| keyspace).collect();
        let txn = if direct {
            self.db.begin_direct(&handles)
        } else {
            self.db.begin(&handles)
        };
        let mut txn = self.check(txn)?;
        let puts = bulk * self.random.below(3) / 2;
        for _ in 0..1 + self.random.below(8) + puts {
            let (name, keyspace) = &picked[self.random.below(picked.len() as u64) as usize];
            let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
            let result = if self.random.one_in(8) {
                // A level of its own, taken back or kept.
                let mut level_map = map.clone();
                let mut nested = txn.nested();
                let result = change(&mut nested, keyspace, &mut level_map, self.random, false);
                if self.random.one_in(2) && result.is_ok() {
                    nested.commit();
                    *map = level_map;
                } else {
                    nested.abort();
                }
                result
            } else {
                change(&mut txn, keyspace, map, self.random, puts > 0)
            };
            self.check(result)?;
        }
        if self.random.one_in(10) {
            txn.abort();
            return Ok(());
        }
        let durability = self.pick_durability();
        let names: Vec<&str> = picked.iter().map(|(name, _)| name.as_str()).collect();
        let step = format!("transaction on {names:?}, direct {direct}, bulk {puts}, {durability}");
        self.oracle.push(next, step);
        let result = txn.commit_with(durability);
        self.committed(result, waits(durability))
    }
}

fn waits(durability: Durability) -> bool {
    matches!(durability, Durability::Sync | Durability::WriteThrough)
}

fn some_key(random: &mut Random) -> Vec<u8> {
    let number = random.below(150);
    match random.below(60) {
        0 => Vec::new(),
        1 => format!("long {number} {}", "x".repeat(1500)).into_bytes(),
        _ => format!("key {number:04}").into_bytes(),
    }
}

fn some_value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(40) {
        0 => 16_385 + random.below(30_000),
        1..3 => 4_000 + random.below(9_000),
        3..8 => 200 + random.below(2_000),
        _ => random.below(60),
    };
    random.bytes(len as usize)
}

/// One random change of a keyspace, in the transaction and in the map.
fn change(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    match random.below(if bulk { 60 } else { 14 }) {
        0 => {
            let present = txn.remove(keyspace, &key)?;
            assert_eq!(
                present,
                map.remove(&key).is_some(),
                "remove says what was there"
            );
        }
        1 => {
            let to = some_key(random);
            let hi = (!random.one_in(6)).then_some(&to[..]);
            if hi.is_none_or(|hi| key.as_slice() < hi) && !random.one_in(3) {
                txn.remove_range(keyspace, &key, hi)?;
                map.retain(|k, _| *k < key || hi.is_some_and(|hi| k.as_slice() >= hi));
            }
        }
        2 => {
            let found = txn.get(keyspace, &key)?;
            assert_eq!(found, map.get(&key).map(|v| &v[..]), "reads its own writes");
        }
        3 => {
            let entries: Vec<_> = (0..random.below(40))
                .map(|_| (some_key(random), some_value(random)))
                .collect();
            txn.ingest(keyspace, entries.iter().map(|(k, v)| (k, v)))?;
            map.extend(entries.into_iter().map(|(k, v)| (k, v.into())));
        }
        4 => {
            let expected = map.get(&key).map(|value| value.to_vec());
            let new = (!random.one_in(3)).then(|| some_value(random));
            let swapped =
                txn.compare_and_swap(keyspace, &key, expected.as_deref(), new.as_deref())?;
            assert!(swapped, "compare and swap");
            match new {
                Some(value) => map.insert(key, value.into()),
                None => map.remove(&key),
            };
        }
        5 => {
            for _ in 0..random.below(4) {
                let first = random.one_in(2);
                let popped = if first {
                    txn.pop_first(keyspace)?
                } else {
                    txn.pop_last(keyspace)?
                };
                let wanted = if first {
                    map.pop_first()
                } else {
                    map.pop_last()
                };
                let wanted = wanted.map(|(key, value)| (key, value.to_vec()));
                assert_eq!(popped, wanted, "pop");
            }
        }
        6 => {
            let odd = |key: &[u8]| key.iter().fold(0, |sum, &b| sum ^ b) % 8 == 1;
            txn.retain(keyspace, key.as_slice().., |key, _| !odd(key))?;
            map.retain(|k, _| *k < key || !odd(k));
        }
        _ => {
            let value = if bulk {
                let len = 2_000 + random.below(6_000) as usize;
                random.bytes(len)
            } else {
                some_value(random)
            };
            txn.upsert(keyspace, &key, &value)?;
            map.insert(key, value.into());
        }
    }
    Ok(())
}
