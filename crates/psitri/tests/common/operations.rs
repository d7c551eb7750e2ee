//! What a client does: one function for each operation, named in [`OPERATIONS`].
use super::{
    Client, HeldSnapshot, LongTxn, Step, Stop,
    changes::{change, own_expiry, put, some_key, some_value},
    entries::{Map, Time},
    expiring::some_default,
    oracle::{is_saved, shows},
    read_all, waits,
};
use psitri::{
    BackupOptions, Database, Durability, Isolation, Keyspace, KeyspaceOptions, Options, WriteBatch,
};
use std::{ops::ControlFlow, sync::Arc, time::Duration};

const SNAPSHOTS_MAX: usize = 3;

/// Something that a client can do; how often, of all; and where the crash points are counted that come while it does it.
pub struct Operation {
    pub name: &'static str,
    share: u64,
    perform: fn(&mut Client<'_>) -> Step,
}

/// The names are headings of the table of crash points: operations that do alike share one.
#[rustfmt::skip]
pub const OPERATIONS: [Operation; 24] = [
    Operation { name: "keyspaces", share: 4, perform: |client| client.create() },
    Operation { name: "keyspaces", share: 2, perform: |client| client.drop_keyspace() },
    Operation { name: "keyspaces", share: 4, perform: |client| client.rename() },
    Operation { name: "clones", share: 3, perform: |client| client.clone_keyspace() },
    Operation { name: "saved snapshots", share: 4, perform: |client| client.saved_snapshot() },
    Operation { name: "subtrees", share: 14, perform: |client| client.subtree() },
    Operation { name: "flush", share: 4, perform: |client| client.flush() },
    Operation { name: "checkpoint", share: 4, perform: |client| client.checkpoint() },
    Operation { name: "compaction", share: 4, perform: |client| client.compact() },
    Operation { name: "at rest", share: 6, perform: |client| client.wait() },
    Operation { name: "commit", share: 12, perform: |client| client.long_step() },
    Operation { name: "commit", share: 8, perform: |client| client.batch() },
    Operation { name: "commit", share: 6, perform: |client| client.optimistic() },
    Operation { name: "commit, direct", share: 16, perform: |client| client.transaction(true, 0) },
    Operation { name: "commit, direct", share: 6, perform: |client| client.transaction(true, 60) },
    Operation { name: "commit, spilling", share: 8, perform: |client| client.transaction(false, 60) },
    Operation { name: "commit", share: 110, perform: |client| client.transaction(false, 0) },
    Operation { name: "commit", share: 8, perform: |client| client.hold_snapshot() },
    Operation { name: "large values", share: 3, perform: |client| client.large_value() },
    Operation { name: "close and reopen", share: 4, perform: |client| client.reopen() },
    Operation { name: "backup", share: 1, perform: |client| client.backup() },
    Operation { name: "expiry", share: 16, perform: |client| client.let_time_pass() },
    Operation { name: "expiry", share: 4, perform: |client| client.merge_what_expired() },
    Operation { name: "drop_expired", share: 5, perform: |client| client.drop_expired() },
];

impl Operation {
    /// The index of one of them, each with its share.
    pub fn draw(random: &mut super::Random) -> usize {
        let all: u64 = OPERATIONS.iter().map(|operation| operation.share).sum();
        let mut draw = random.below(all);
        OPERATIONS
            .iter()
            .position(|operation| {
                let hit = draw < operation.share;
                draw = draw.saturating_sub(operation.share);
                hit
            })
            .expect("the draw is below the sum")
    }

    pub fn perform(&self, client: &mut Client<'_>) -> Step {
        (self.perform)(client)
    }
}

impl Client<'_> {
    pub(super) fn names(&self) -> Vec<String> {
        let all = self.oracle.newest().keys();
        all.filter(|name| name.starts_with('k')).cloned().collect()
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
        let options = match self.random.below(5) {
            0 => KeyspaceOptions::new().entries_expire(),
            1 => KeyspaceOptions::new().expire_after(some_default(self.random)),
            _ => KeyspaceOptions::new(),
        };
        let mut next = self.oracle.newest().clone();
        next.insert(name.clone(), Arc::new(Map::new(options)));
        self.try_for(next, format!("create {name}, {options:?}"));
        let result = self.db.create_keyspace_with(&name, options).map(drop);
        self.committed(result, waits(self.durability))
    }

    fn drop_keyspace(&mut self) -> Step {
        let Some(name) = self.pick_free_keyspace() else {
            return Ok(());
        };
        let mut next = self.oracle.newest().clone();
        next.remove(&name);
        self.try_for(next, format!("drop {name}"));
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
        self.try_for(next, format!("rename {from} to {to}"));
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
        self.all_is_durable("flush");
        Ok(())
    }

    fn checkpoint(&mut self) -> Step {
        let result = self.db.checkpoint();
        self.check(result)?;
        self.all_is_durable("checkpoint");
        Ok(())
    }

    fn compact(&mut self) -> Step {
        // It waits for open transactions.
        if self.long.is_some() {
            return Ok(());
        }
        let mut next = self.oracle.newest().clone();
        let now = self.oracle.clock.now();
        let expiring = next
            .iter_mut()
            .filter(|(path, map)| map.expires() && !is_saved(path));
        expiring.for_each(|(_, map)| Arc::make_mut(map).drop_expired(now));
        self.try_for(next, "compaction".to_owned());
        let result = self.db.compact();
        self.committed(result, false)?;
        self.all_is_durable("compaction");
        Ok(())
    }

    fn wait(&mut self) -> Step {
        std::thread::sleep(Duration::from_millis(self.random.below(25)));
        Ok(())
    }

    /// Closes the database, or forgets to, and opens it again.
    fn reopen(&mut self) -> Step {
        let Some(options) = self.reopen_with.clone() else {
            return Ok(());
        };
        (self.long, self.held) = (None, Vec::new());
        let closes = !self.random.one_in(4);
        if closes {
            let result = self.db.clone().close();
            self.check(result)?;
            if self.closes_with_checkpoint {
                self.all_is_durable("close");
            }
        }
        self.closes_with_checkpoint = self.random.one_in(2);
        let options = options.checkpoint_on_close(self.closes_with_checkpoint);
        let place: Arc<dyn psitri::storage::Storage> = Arc::new(self.storage.clone());
        // The last handle goes before the new one comes: one process has one.
        self.db = psitri::Options::new()
            .in_memory()
            .expect("a database in memory");
        let opened = Database::open_on(place, options);
        self.db = self.check(opened)?;
        let found = read_all(&self.db);
        let found = self.check(found)?;
        assert!(self.oracle.is_newest(&found), "all is there after a close");
        self.all_is_durable("reopening");
        Ok(())
    }

    /// Takes a snapshot of everything, looks at one of those that are held, or lets one go.
    fn hold_snapshot(&mut self) -> Step {
        if self.held.len() >= SNAPSHOTS_MAX || self.random.one_in(4) {
            if !self.held.is_empty() {
                let which = self.random.below(self.held.len() as u64) as usize;
                let held = self.held.swap_remove(which);
                return self.look_at(&held);
            }
            return Ok(());
        }
        let mut keyspaces = Vec::new();
        for name in self.names() {
            let map = Arc::clone(&self.oracle.newest()[&name]);
            let keyspace = self.db.open_keyspace(&name);
            keyspaces.push((self.check(keyspace)?, map));
        }
        let snapshot = self.db.snapshot();
        let mut now = None;
        let expiring = keyspaces.iter().find(|(_, map)| map.expires());
        if let Some((keyspace, _)) = expiring
            && self.random.one_in(2)
        {
            let looked = snapshot.get(keyspace, b"any").map(drop);
            self.check(looked)?;
            now = Some(self.oracle.clock.now());
        }
        self.held.push(HeldSnapshot {
            snapshot,
            keyspaces,
            now,
        });
        Ok(())
    }

    fn look_at(&mut self, held: &HeldSnapshot) -> Step {
        let now = held.now.unwrap_or(self.oracle.clock.now());
        for (keyspace, map) in &held.keyspaces {
            let mut wanted = map.at(now);
            let read = held.snapshot.for_each(keyspace, .., |key, value| {
                let next = wanted.next().map(|(key, entry)| (key, &entry.value[..]));
                assert_eq!(next, Some((key, value)), "a snapshot does not change");
                ControlFlow::Continue(())
            });
            self.check(read)?;
            assert!(wanted.next().is_none(), "a snapshot loses nothing");
            let (keys, wanted): (Vec<&[u8]>, Vec<_>) = map
                .at(now)
                .take(5)
                .map(|(key, entry)| (key, Some(&entry.value[..])))
                .unzip();
            let found = held.snapshot.get_many(keyspace, &keys);
            let found = self.check(found)?;
            assert_eq!(found, wanted, "many keys at once");
        }
        Ok(())
    }

    /// A full backup and one on top of it, to real files, and a restored database that has what was there.
    fn backup(&mut self) -> Step {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let path = |name: &str| directory.path().join(name);
        let content = self.oracle.newest().clone();
        let made = self.db.backup(path("full"));
        self.check(made)?;
        self.transaction(false, 0)?;
        let newer = self.oracle.newest().clone();
        let options = BackupOptions::new().since(&[path("full")]);
        let made = self.db.backup_with(path("more"), options);
        self.check(made)?;
        for (chain, wanted) in [(&["full"][..], content), (&["full", "more"], newer)] {
            let chain: Vec<_> = chain.iter().map(|name| path(name)).collect();
            let place = path(if chain.len() == 1 { "one" } else { "two" });
            Database::restore(&chain, &place).expect("restoring");
            let options = self.oracle.clock.tells(Options::new());
            let restored = options.open(&place).expect("a restored database");
            let found = read_all(&restored).expect("a restored database");
            // Saved snapshots are not copied.
            let mut wanted = wanted;
            wanted.retain(|name, _| !is_saved(name));
            let time = Time::exactly(self.oracle.clock.now());
            let is_there = shows(&wanted, &found, time);
            assert!(is_there, "a backup has what was there");
        }
        Ok(())
    }

    /// A keyspace that the open transaction does not hold.
    pub(super) fn pick_free_keyspace(&mut self) -> Option<String> {
        let mut names = self.free_names();
        if names.is_empty() {
            return None;
        }
        Some(names.swap_remove(self.random.below(names.len() as u64) as usize))
    }

    pub(super) fn free_names(&self) -> Vec<String> {
        let held = self.long.as_ref().map(|long| long.name.clone());
        let mut names = self.names();
        names.retain(|name| Some(name) != held.as_ref());
        names
    }

    fn pick_durability(&mut self) -> Durability {
        if self.only_waits && waits(self.durability) {
            return [Durability::Sync, Durability::WriteThrough][self.random.below(2) as usize];
        }
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
            let mut long = LongTxn {
                txn,
                keyspace,
                name,
                map,
                is_timed: false,
            };
            if self.random.one_in(2) {
                let timed = long.look_at_clock(self.oracle.clock.now());
                self.check(timed)?;
            }
            self.long = Some(long);
            return Ok(());
        };
        if self.random.one_in(3) {
            let mut next = self.oracle.newest().clone();
            next.insert(long.name.clone(), Arc::new(long.map));
            let durability = self.pick_durability();
            let step = format!("long transaction on {}, {durability}", long.name);
            self.try_for(next, step);
            let result = long.txn.commit_with(durability);
            return self.committed(result, waits(durability));
        }
        let timed = long.look_at_clock(self.oracle.clock.now());
        self.check(timed)?;
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
        let now = self.oracle.clock.now();
        let mut batch = WriteBatch::new();
        for (name, keyspace) in &picked {
            let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
            map.go_by(now);
            for _ in 0..1 + self.random.below(5) {
                let key = some_key(self.random);
                if self.random.one_in(3) {
                    batch.remove(keyspace, &key);
                    map.remove(&key);
                } else {
                    let value = some_value(self.random);
                    match own_expiry(map, self.random) {
                        Some(expiry) => {
                            batch.upsert_expiring(keyspace, &key, &value, expiry);
                            map.put_until(key, value, expiry);
                        }
                        None => {
                            batch.upsert(keyspace, &key, &value);
                            map.put(key, value);
                        }
                    }
                }
            }
        }
        let durability = self.pick_durability();
        batch.durability(durability);
        self.try_for(next, format!("batch, {durability}"));
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
        let now = self.oracle.clock.now();
        let mut txn = self.db.begin_optimistic(Isolation::Serializable);
        for (name, keyspace) in &picked {
            let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
            map.go_by(now);
            for _ in 0..1 + self.random.below(5) {
                let (key, other) = (some_key(self.random), some_key(self.random));
                let found = txn.get(keyspace, &other).map(|v| v.map(<[u8]>::to_vec));
                let found = self.check(found)?;
                assert_eq!(found.as_deref(), map.get(&other).map(|e| &e.value[..]));
                let result = if self.random.one_in(3) {
                    map.remove(&key);
                    txn.remove(keyspace, &key).map(drop)
                } else {
                    let value = some_value(self.random);
                    match own_expiry(map, self.random) {
                        Some(expiry) => {
                            let result = txn.upsert_expiring(keyspace, &key, &value, expiry);
                            map.put_until(key, value, expiry);
                            result
                        }
                        None => {
                            let result = txn.upsert(keyspace, &key, &value);
                            map.put(key, value);
                            result
                        }
                    }
                };
                self.check(result)?;
            }
        }
        let durability = self.pick_durability();
        self.try_for(next, format!("optimistic, {durability}"));
        let result = txn.commit_with(durability);
        self.committed(result, waits(durability))
    }

    /// A value of several pages, far from every node.
    fn large_value(&mut self) -> Step {
        let picked = self.pick_keyspaces(1)?;
        let Some((name, keyspace)) = picked.first() else {
            return self.create();
        };
        let len = 40_000 + self.random.below(160_000);
        let (key, value) = (some_key(self.random), self.random.bytes(len as usize));
        let mut next = self.oracle.newest().clone();
        let map = Arc::make_mut(next.get_mut(name).expect("it was listed"));
        map.go_by(self.oracle.clock.now());
        let txn = self.db.begin(&[keyspace]);
        let mut txn = self.check(txn)?;
        let written = put(&mut txn, keyspace, map, self.random, (key, value));
        self.check(written)?;
        let durability = self.pick_durability();
        self.try_for(next, format!("a value of {len} bytes, {durability}"));
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
        let now = self.oracle.clock.now();
        for (name, _) in &picked {
            Arc::make_mut(next.get_mut(name).expect("it was listed")).go_by(now);
        }
        let expiring = picked.iter().find(|(name, _)| next[name].expires());
        let puts = bulk * self.random.below(3) / 2;
        let count = 1 + self.random.below(8) + puts;
        // Now and then time passes in the middle, but not for the transaction.
        let passes_at = self.random.below(4 * count);
        for number in 0..count {
            if let Some((_, keyspace)) = expiring
                && number == passes_at
            {
                let looked = txn.cursor(keyspace).map(drop);
                self.check(looked)?;
                self.pass_time();
            }
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
        self.try_for(next, step);
        let result = txn.commit_with(durability);
        self.committed(result, waits(durability))
    }
}
