//! A database and its oracle, and the random operations on both.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, UNIX_EPOCH};

use psitri::{
    Database, Durability, Error, Expiry, Keyspace, KeyspaceOptions, Options, ReadMode, Snapshot,
    WriteBatch, WriteTxn, storage::sim::SimStorage,
};

use super::{
    check,
    common::Random,
    keys::{self, Keys},
    oracle::{Entries, Key, Oracle, Overlay, Value, digest},
};

mod backup;
mod optimistic;

/// Where the database lives.
enum Place {
    Disk(tempfile::TempDir),
    Simulated(Arc<SimStorage>),
}

/// A transaction that stays open while others run.
struct Open {
    txn: WriteTxn,
    changes: HashMap<usize, Overlay>,
    /// When it looked at the clock.
    time: u64,
}

pub struct World {
    place: Place,
    db: Option<Database>,
    oracle: Oracle,
    handles: Vec<Option<Keyspace>>,
    /// With the newest commit in it, and the time at which it looked at the clock.
    snapshots: Vec<(Snapshot, u64, u64)>,
    /// In milliseconds.
    clock: Arc<AtomicU64>,
    open: Option<Open>,
    tentative: Vec<optimistic::Tentative>,
    chain: Option<backup::Chain>,
    keys: Keys,
    random: Random,
    names: u32,
    /// For messages.
    pub done: usize,
}

const DEPTH_MAX: usize = 3;

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let place = if seed.is_multiple_of(2) {
            Place::Simulated(Arc::new(SimStorage::new(seed)))
        } else {
            Place::Disk(tempfile::tempdir().unwrap())
        };
        let mut world = World {
            place,
            db: None,
            oracle: Oracle::default(),
            handles: Vec::new(),
            snapshots: Vec::new(),
            clock: Arc::new(AtomicU64::new(1_000_000)),
            open: None,
            tentative: Vec::new(),
            chain: None,
            keys: Keys::new(&mut random),
            random,
            names: 0,
            done: 0,
        };
        world.start();
        for number in 0..3 {
            world.create(number == 0);
        }
        world
    }

    fn time(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }

    fn handle(&self, table: usize) -> Keyspace {
        self.handles[table].clone().unwrap()
    }

    /// Options with the model's clock.
    fn by_the_clock(&self) -> Options {
        let clock = Arc::clone(&self.clock);
        let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::SeqCst));
        Options::new().clock(now)
    }

    fn start(&mut self) {
        let options = self.by_the_clock();
        let random = &mut self.random;
        let options = options
            .buffer_bytes(*random.pick(&[256 << 10, 256 << 10, 1 << 20]))
            .frozen_buffers(random.between(1, 3))
            .merge_threads(random.between(1, 2))
            .wal_segment_bytes(*random.pick(&[64 << 10, 256 << 10]))
            .checkpoint_bytes(*random.pick(&[1 << 20, 64 << 20]))
            .map_reserve_bytes(*random.pick(&[16 << 20, 1 << 32]))
            .idle_flush(Duration::from_millis(*random.pick(&[10, 60_000])));
        let db = match &self.place {
            Place::Disk(dir) => options.open(dir.path()),
            Place::Simulated(disk) => Database::open_on(Arc::clone(disk) as _, options),
        };
        let db = db.expect("the database opens");
        self.handles = (self.oracle.tables.iter())
            .map(|table| (!table.dropped).then(|| db.open_keyspace(&table.name).unwrap()))
            .collect();
        let mut names: Vec<_> = (self.oracle.live().into_iter())
            .map(|table| self.oracle.tables[table].name.clone())
            .collect();
        names.sort();
        assert_eq!(db.keyspaces(), names);
        for (table, handle) in self.oracle.tables.iter().zip(&self.handles) {
            let options = handle.as_ref().map(Keyspace::options);
            assert!(options.is_none_or(|options| options == options_of(table.expiry)));
        }
        self.db = Some(db);
    }

    /// One random operation.
    pub fn step(&mut self) {
        self.done += 1;
        if self.random.percent(30) {
            let millis = self.random.between(1, 15) as u64;
            self.clock.fetch_add(millis, Ordering::SeqCst);
        }
        match self.random.below(100) {
            0..38 => self.transact(),
            38..45 => self.batch(),
            45..51 => self.go_on_optimistically(),
            51..60 => self.read_newest(),
            60..67 => self.read_old_layers(),
            67 if self.random.percent(40) => self.back_up(),
            67 => self.read_old_layers(),
            68..75 => self.take_snapshot(),
            75..82 => self.read_snapshot(),
            82..84 => self.drop_snapshot(),
            84..91 => self.go_on_with_open(),
            91..95 => self.checkpoint(),
            95 => {
                let expires = self.random.percent(30);
                self.create(expires);
            }
            96 => self.rename(),
            97 => self.drop_one(),
            98 => std::thread::sleep(Duration::from_millis(15)),
            _ => self.reopen(),
        }
    }

    /// Keyspaces without an open transaction.
    fn free_tables(&self) -> Vec<usize> {
        let taken = |table: &usize| {
            let open = self.open.as_ref();
            open.is_some_and(|open| open.changes.contains_key(table))
        };
        (self.oracle.live().into_iter())
            .filter(|table| !taken(table))
            .collect()
    }

    fn some_free_tables(&mut self) -> Vec<usize> {
        let mut free = self.free_tables();
        let count = self.random.between(1, 3).min(free.len());
        let mut chosen = Vec::new();
        for _ in 0..count {
            chosen.push(free.swap_remove(self.random.below(free.len())));
        }
        chosen
    }

    fn begin(&mut self) -> Option<Open> {
        let tables = self.some_free_tables();
        if tables.is_empty() {
            return None;
        }
        let handles: Vec<Keyspace> = tables.iter().map(|&table| self.handle(table)).collect();
        let handles: Vec<&Keyspace> = handles.iter().collect();
        let txn = if self.random.percent(20) {
            self.db().begin_direct(&handles)
        } else {
            self.db().begin(&handles)
        };
        let txn = txn.unwrap();
        for handle in handles {
            // It looks at the clock now, for all its life.
            txn.expiry(handle, b"").unwrap();
        }
        Some(Open {
            txn,
            time: self.time(),
            changes: tables.iter().map(|&t| (t, Overlay::new())).collect(),
        })
    }

    fn transact(&mut self) {
        let Some(mut open) = self.begin() else { return };
        self.work(&mut open);
        if self.open.is_none() && self.random.percent(15) {
            self.open = Some(open);
        } else {
            self.end(open);
        }
    }

    fn work(&mut self, open: &mut Open) {
        let operations = match self.random.below(40) {
            0 => self.random.between(800, 4000),
            1..5 => self.random.between(50, 300),
            _ => self.random.between(1, 30),
        };
        let Open { txn, changes, time } = open;
        self.body(txn, changes, *time, operations, 0);
    }

    fn end(&mut self, open: Open) {
        let Open { txn, changes, .. } = open;
        match self.random.below(10) {
            0 => txn.abort(),
            1 => drop(txn),
            2 => {
                txn.commit_with(Durability::Sync).unwrap();
                self.oracle.commit(&changes);
            }
            _ => {
                txn.commit().unwrap();
                self.oracle.commit(&changes);
            }
        }
    }

    fn go_on_with_open(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        if self.random.percent(50) {
            self.work(&mut open);
            self.open = Some(open);
        } else {
            self.end(open);
        }
    }

    fn body(
        &mut self,
        txn: &mut WriteTxn,
        changes: &mut HashMap<usize, Overlay>,
        time: u64,
        operations: usize,
        depth: usize,
    ) {
        let mut tables: Vec<usize> = changes.keys().copied().collect();
        tables.sort_unstable();
        for _ in 0..operations {
            let table = *self.random.pick(&tables);
            let keyspace = &self.handle(table);
            let overlay = changes.get_mut(&table).unwrap();
            let model = &self.oracle.tables[table];
            let random = &mut self.random;
            let choice = random.below(1000);
            match choice {
                0..820 => {
                    let key = self.keys.draw(random);
                    let before = model.get(overlay, &key, time);
                    let mut value = keys::value(random);
                    value.expires = model.expires_by_default(time);
                    match choice {
                        0..220 if model.expiry.is_some() => {
                            let expiry = some_expiry(&mut value, time, random);
                            let bytes = value.bytes();
                            txn.upsert_expiring(keyspace, &key, &bytes, expiry).unwrap();
                            overlay.insert(key, Some(value));
                        }
                        0..440 => {
                            txn.upsert(keyspace, &key, &value.bytes()).unwrap();
                            overlay.insert(key, Some(value));
                        }
                        440..560 => match txn.insert(keyspace, &key, &value.bytes()) {
                            Ok(()) => {
                                assert!(before.is_none(), "insert of a key that exists");
                                overlay.insert(key, Some(value));
                            }
                            Err(Error::KeyExists) => assert!(before.is_some()),
                            Err(other) => panic!("{other}"),
                        },
                        560..680 => match txn.update(keyspace, &key, &value.bytes()) {
                            Ok(()) => {
                                assert!(before.is_some(), "update of a key that does not exist");
                                overlay.insert(key, Some(value));
                            }
                            Err(Error::KeyAbsent) => assert!(before.is_none()),
                            Err(other) => panic!("{other}"),
                        },
                        _ => {
                            let there = txn.remove(keyspace, &key).unwrap();
                            assert_eq!(there, before.is_some(), "remove");
                            overlay.insert(key, None);
                        }
                    }
                }
                820..824 => {
                    // Several of one key too, and none at all.
                    let mut entries = Vec::new();
                    for _ in 0..random.below(30) * random.below(30) {
                        let (key, mut value) = (self.keys.draw(random), keys::value(random));
                        let mut expiry = Expiry::Never;
                        if model.expiry.is_some() {
                            expiry = some_expiry(&mut value, time, random);
                        }
                        overlay.insert(key.clone(), Some(value));
                        entries.push((key, value.bytes(), expiry));
                    }
                    let all = entries.iter();
                    let written = match model.expiry {
                        None => txn.ingest(keyspace, all.map(|(k, v, _)| (k, v))),
                        Some(_) => txn.ingest_expiring(keyspace, all.map(|(k, v, e)| (k, v, *e))),
                    };
                    let written = written.unwrap();
                    assert_eq!(written, entries.len() as u64);
                }
                824..850 => {
                    let (lo, hi) = some_range(&self.keys, random);
                    txn.remove_range(keyspace, &lo, hi.as_deref()).unwrap();
                    model.remove_range(overlay, &lo, hi.as_deref());
                }
                850..856 if operations < 100 => {
                    let expected = model.with(overlay, time);
                    let expires = model.expires_by_default(time);
                    let keys = &self.keys;
                    read_and_write(txn, keyspace, &expected, overlay, expires, keys, random);
                }
                850..930 => {
                    let key = self.keys.near(random);
                    let wanted = model.get(overlay, &key, time).map(|value| value.bytes());
                    assert!(txn.get(keyspace, &key).unwrap() == wanted.as_deref());
                }
                930..950 if operations < 100 => {
                    let expected = model.with(overlay, time);
                    check::some(txn, keyspace, &expected, &self.keys, random);
                }
                950..1000 if depth < DEPTH_MAX => {
                    let before = changes.clone();
                    let operations = random.between(1, 12);
                    let mut nested = txn.nested();
                    self.body(&mut nested, changes, time, operations, depth + 1);
                    match self.random.below(5) {
                        0 => nested.abort(),
                        1 => drop(nested),
                        _ => {
                            nested.commit();
                            continue;
                        }
                    }
                    *changes = before;
                }
                _ => {}
            }
        }
        if operations < 100 && self.random.percent(10) {
            for &table in &tables {
                let expected = self.oracle.tables[table].with(&changes[&table], time);
                check::all(txn, &self.handle(table), &expected);
            }
        }
    }

    fn batch(&mut self) {
        let tables = self.some_free_tables();
        if tables.is_empty() {
            return;
        }
        let mut changes: HashMap<usize, Overlay> = HashMap::new();
        let mut batch = WriteBatch::new();
        let time = self.time();
        for _ in 0..self.random.below(40) {
            let table = *self.random.pick(&tables);
            let keyspace = self.handle(table);
            let overlay = changes.entry(table).or_default();
            let random = &mut self.random;
            let key = self.keys.draw(random);
            match random.below(20) {
                0 => {
                    let (lo, hi) = some_range(&self.keys, random);
                    batch.remove_range(&keyspace, &lo, hi.as_deref());
                    self.oracle.tables[table].remove_range(overlay, &lo, hi.as_deref());
                }
                1..6 => {
                    batch.remove(&keyspace, &key);
                    overlay.insert(key, None);
                }
                _ => {
                    let mut value = keys::value(random);
                    let model = &self.oracle.tables[table];
                    if model.expiry.is_some() && random.percent(50) {
                        let expiry = some_expiry(&mut value, time, random);
                        batch.upsert_expiring(&keyspace, &key, &value.bytes(), expiry);
                    } else {
                        value.expires = model.expires_by_default(time);
                        batch.upsert(&keyspace, &key, &value.bytes());
                    }
                    overlay.insert(key, Some(value));
                }
            }
        }
        self.db().write(batch).unwrap();
        self.oracle.commit(&changes);
    }

    fn some_live_table(&mut self) -> Option<usize> {
        let live = self.oracle.live();
        (!live.is_empty()).then(|| *self.random.pick(&live))
    }

    fn read_newest(&mut self) {
        let Some(table) = self.some_live_table() else {
            return;
        };
        let snapshot = self.db().snapshot();
        let expected = self.oracle.tables[table].entries(self.time());
        let keyspace = self.handle(table);
        check::many(
            &snapshot,
            &keyspace,
            &expected,
            &self.keys,
            &mut self.random,
        );
        if self.random.percent(30) {
            check::all(&snapshot, &keyspace, &expected);
        } else {
            check::some(
                &snapshot,
                &keyspace,
                &expected,
                &self.keys,
                &mut self.random,
            );
        }
    }

    /// What has been frozen, and what has been merged, is the state after some earlier commit, and never goes back.
    fn read_old_layers(&mut self) {
        let Some(table) = self.some_live_table() else {
            return;
        };
        if self.oracle.tables[table].expiry.is_some() {
            // Its content changes without a commit, so that it has no digest.
            return;
        }
        let keyspace = self.handle(table);
        for mode in [ReadMode::Trie, ReadMode::Buffered] {
            let snapshot = self.db().snapshot_with(mode);
            let digest = check::digest_of(&snapshot, &keyspace);
            let model = &mut self.oracle.tables[table];
            let from = match mode {
                ReadMode::Trie => model.seen_trie,
                _ => model.seen_buffered.max(model.seen_trie),
            };
            let found = model.digests[from..].iter().position(|&(_, d)| d == digest);
            let Some(found) = found.map(|at| from + at) else {
                panic!(
                    "{mode} reader of {keyspace:?} sees no prefix of the commits from {from} on"
                );
            };
            match mode {
                ReadMode::Trie => model.seen_trie = found,
                _ => model.seen_buffered = found,
            }
            let expected = model.at(model.digests[found].0, 0);
            check::some(
                &snapshot,
                &keyspace,
                &expected,
                &self.keys,
                &mut self.random,
            );
        }
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() < 8 {
            let snapshot = self.db().snapshot();
            for table in self.oracle.live() {
                // It looks at the clock now, for all its life.
                snapshot.expiry(&self.handle(table), b"").unwrap();
            }
            (self.snapshots).push((snapshot, self.oracle.step, self.time()));
        }
    }

    fn read_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let (snapshot, step, time) = &self.snapshots[self.random.below(self.snapshots.len())];
        let table = self.random.below(self.oracle.tables.len());
        let Some(keyspace) = &self.handles[table] else {
            return;
        };
        let model = &self.oracle.tables[table];
        if !model.exists_at(*step) {
            let gone = snapshot.get(keyspace, b"a");
            assert!(matches!(gone, Err(Error::KeyspaceGone { .. })), "{gone:?}");
            return;
        }
        let expected = model.at(*step, *time);
        if self.random.percent(30) {
            check::all(snapshot, keyspace, &expected);
        } else {
            check::some(snapshot, keyspace, &expected, &self.keys, &mut self.random);
        }
    }

    fn drop_snapshot(&mut self) {
        if !self.snapshots.is_empty() {
            let at = self.random.below(self.snapshots.len());
            let (snapshot, ..) = self.snapshots.swap_remove(at);
            if self.random.percent(50) {
                std::thread::spawn(move || drop(snapshot)).join().unwrap();
            }
        }
    }

    fn checkpoint(&mut self) {
        // Compaction waits for transactions, of which there may be one in this thread.
        if self.open.is_none() && self.random.percent(40) {
            self.db().compact().unwrap();
        } else {
            self.db().checkpoint().unwrap();
        }
        let report = self.db().verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        for table in self.free_tables() {
            let expected = self.oracle.tables[table].entries(self.time());
            let keyspace = self.handle(table);
            if self.oracle.tables[table].expiry.is_some() && self.random.percent(30) {
                self.db().drop_expired(&keyspace).unwrap();
                let stats = self.db().stats().unwrap();
                let held = (stats.keyspaces.iter()).find(|k| k.name == keyspace.name());
                assert_eq!(held.unwrap().keys_merged, expected.len() as u64);
            }
            for mode in [ReadMode::Latest, ReadMode::Buffered, ReadMode::Trie] {
                let snapshot = self.db().snapshot_with(mode);
                if self.random.percent(20) {
                    check::all(&snapshot, &keyspace, &expected);
                } else {
                    check::some(
                        &snapshot,
                        &keyspace,
                        &expected,
                        &self.keys,
                        &mut self.random,
                    );
                    let (digest, wanted) = (
                        check::digest_of(&snapshot, &keyspace),
                        expected.iter().fold(0u64, |sum, (key, value)| {
                            sum.wrapping_add(digest(key, &value.bytes()))
                        }),
                    );
                    assert_eq!(digest, wanted, "{mode} after a checkpoint");
                }
            }
            let model = &mut self.oracle.tables[table];
            model.seen_trie = model.digests.len() - 1;
            model.seen_buffered = model.seen_trie;
        }
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("keyspace {}", self.names)
    }

    fn create(&mut self, expires: bool) {
        if self.oracle.live().len() >= 6 {
            return;
        }
        // Names come back after a drop.
        let name = match self.oracle.tables.iter().find(|t| t.dropped) {
            Some(gone) if self.random.percent(50) && self.oracle.find(&gone.name).is_none() => {
                gone.name.clone()
            }
            _ => self.new_name(),
        };
        let expiry = expires.then(|| *self.random.pick(&[0, 40]));
        let created = (self.db()).create_keyspace_with(&name, options_of(expiry));
        let keyspace = created.unwrap();
        self.oracle.create(&name, expiry);
        self.handles.push(Some(keyspace));
    }

    fn rename(&mut self) {
        let Some(table) = self.some_live_table() else {
            return;
        };
        let to = self.new_name();
        let from = self.oracle.tables[table].name.clone();
        self.db().rename_keyspace(&from, &to).unwrap();
        self.oracle.tables[table].name = to.clone();
        assert_eq!(self.handle(table).name(), to);
        let gone = self.db().open_keyspace(&from);
        assert!(matches!(gone, Err(Error::KeyspaceNotFound { .. })));
    }

    fn drop_one(&mut self) {
        let free = self.free_tables();
        if free.len() > 1 {
            let table = *self.random.pick(&free);
            self.drop_table(table);
        }
    }

    fn drop_table(&mut self, table: usize) {
        let name = self.oracle.tables[table].name.clone();
        self.db().drop_keyspace(&name).unwrap();
        self.oracle.drop_table(table);
        let keyspace = self.handle(table);
        let gone = self.db().get(&keyspace, b"a");
        assert!(matches!(gone, Err(Error::KeyspaceGone { .. })));
        assert!(self.db().begin(&[&keyspace]).is_err());
    }

    /// Closes, or ends the process of a simulated disk, and opens again.
    fn reopen(&mut self) {
        let open = self.open.take();
        self.tentative.clear();
        let dies = self.random.percent(70);
        if let Place::Simulated(disk) = &self.place
            && dies
        {
            // Background work goes on while the process dies; the open transaction dies with it.
            let after = disk.process_crash(self.random.next());
            disk.crash_now();
            self.place = Place::Simulated(Arc::new(after));
            drop(open);
            self.snapshots.clear();
            self.db = None;
        } else {
            if let Some(open) = open {
                self.end(open);
            }
            self.snapshots.clear();
            let db = self.db.take().unwrap();
            if self.random.percent(50) {
                db.close().unwrap();
            } else {
                drop(db);
            }
        }
        self.start();
        let db = self.db.clone().unwrap();
        for table in self.oracle.live() {
            let expected = self.oracle.tables[table].entries(self.time());
            check::all(&db.snapshot(), &self.handle(table), &expected);
            let model = &mut self.oracle.tables[table];
            (model.seen_trie, model.seen_buffered) = (0, 0);
        }
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }

    /// At the end nothing is lost, and when everything is removed, nothing is left.
    pub fn finish(&mut self) {
        self.tentative.clear();
        if let Some(open) = self.open.take() {
            self.end(open);
        }
        self.checkpoint();
        while let Some((snapshot, step, time)) = self.snapshots.pop() {
            for table in 0..self.oracle.tables.len() {
                let model = &self.oracle.tables[table];
                if let (Some(keyspace), true) = (&self.handles[table], model.exists_at(step)) {
                    check::all(&snapshot, keyspace, &model.at(step, time));
                }
            }
        }
        let by_drop = self.random.percent(50);
        for table in self.oracle.live() {
            if by_drop {
                self.drop_table(table);
            } else {
                let mut txn = self.db().begin(&[&self.handle(table)]).unwrap();
                txn.remove_range(&self.handle(table), b"", None).unwrap();
                txn.commit().unwrap();
            }
        }
        // Superblocks, the page map and the catalog. Background checkpoints may be on their way.
        for attempt in 1.. {
            self.db().checkpoint().unwrap();
            let stats = self.db().stats().unwrap();
            let clean = stats.pending_bytes == 0
                && stats.reachable_bytes <= 8 << 10
                && stats.file_bytes <= 64 << 10;
            if clean {
                break;
            }
            assert!(attempt < 100, "{stats:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let report = self.db().verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
}

/// An operation that changes what it reads.
fn read_and_write(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    expected: &Entries,
    overlay: &mut Overlay,
    expires: u64,
    keys: &Keys,
    random: &mut Random,
) {
    match random.below(4) {
        0 => {
            let key = keys.draw(random);
            let at = expected.binary_search_by(|(k, _)| k.cmp(&key)).ok();
            let before = at.map(|at| expected[at].1.bytes());
            let guess = if random.percent(70) {
                before.clone()
            } else {
                random.percent(50).then(|| b"a guess".to_vec())
            };
            let new = random.percent(70).then(|| Value {
                expires,
                ..keys::value(random)
            });
            let bytes = new.map(|value| value.bytes());
            let swapped = txn.compare_and_swap(keyspace, &key, guess.as_deref(), bytes.as_deref());
            assert_eq!(swapped.unwrap(), guess == before, "compare and swap");
            if guess == before {
                overlay.insert(key, new);
            }
        }
        1 => {
            // More of them than one, so that what was popped is passed by.
            let (mut first, mut end) = (0, expected.len());
            for _ in 0..random.between(1, 6) {
                let front = random.percent(50);
                let popped = if front {
                    txn.pop_first(keyspace).unwrap()
                } else {
                    txn.pop_last(keyspace).unwrap()
                };
                assert_eq!(popped.is_some(), first < end, "pop");
                let Some((key, value)) = popped else { break };
                let at = if front { first } else { end - 1 };
                let (wanted, wanted_value) = &expected[at];
                assert!(key == wanted[..] && value == wanted_value.bytes(), "pop");
                overlay.insert(wanted.clone(), None);
                if front { first += 1 } else { end -= 1 }
            }
        }
        which => {
            let (lo, hi) = some_range(keys, random);
            let inside = |key: &[u8]| key >= &lo[..] && hi.as_ref().is_none_or(|hi| key < &hi[..]);
            let chosen = |key: &[u8]| key.iter().fold(0u8, |sum, &b| sum.wrapping_add(b)) % 3 == 0;
            let gone: Vec<_> = (expected.iter())
                .filter(|(key, _)| inside(key) && chosen(key))
                .collect();
            let range = (
                Bound::Included(&lo[..]),
                hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            );
            if which == 2 {
                let extracted = txn.extract(keyspace, range, |key, _| chosen(key)).unwrap();
                assert_eq!(extracted.len(), gone.len(), "extract");
                for ((key, value), (wanted, wanted_value)) in extracted.iter().zip(&gone) {
                    assert!(
                        key[..] == wanted[..] && *value == wanted_value.bytes(),
                        "extract"
                    );
                }
            } else {
                let removed = txn.retain(keyspace, range, |key, _| !chosen(key)).unwrap();
                assert_eq!(removed, gone.len() as u64, "retain");
            }
            overlay.extend(gone.into_iter().map(|(key, _)| (key.clone(), None)));
        }
    }
}

fn options_of(expiry: Option<u64>) -> KeyspaceOptions {
    match expiry {
        None => KeyspaceOptions::new(),
        Some(0) => KeyspaceOptions::new().entries_expire(),
        Some(after) => KeyspaceOptions::new().expire_after(Duration::from_millis(after)),
    }
}

/// Lets a value expire: soon, mostly.
fn some_expiry(value: &mut Value, time: u64, random: &mut Random) -> Expiry {
    let millis = random.below(60) as u64;
    let moment = UNIX_EPOCH + Duration::from_millis(time + millis);
    let (expires, expiry) = match random.below(4) {
        0 => (0, Expiry::Never),
        1 => (time + millis, Expiry::At(moment)),
        _ => (time + millis, Expiry::After(Duration::from_millis(millis))),
    };
    value.expires = expires;
    expiry
}

fn some_range(keys: &Keys, random: &mut Random) -> (Key, Option<Key>) {
    let (a, b) = (keys.draw(random), keys.draw(random));
    match random.below(20) {
        0 => (Key::from(&b""[..]), Some(b)),
        1 => (a, None),
        2 => (a, Some(b)),
        _ => {
            // Mostly short ones, or nothing would be left.
            let mut end = [&a[..], &[random.next() as u8]].concat();
            end.truncate(psitri::KEY_BYTES_MAX);
            (a, Some(end.into()))
        }
    }
}
