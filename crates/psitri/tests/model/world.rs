//! A database and its oracle, and the random operations on both.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, UNIX_EPOCH};

use psitri::{
    Database, Error, Keyspace, KeyspaceOptions, Options, ReadMode, Snapshot,
    storage::sim::SimStorage,
};

use super::{
    check,
    common::Random,
    keys::Keys,
    oracle::{Key, Oracle, digest},
};

mod backup;
mod optimistic;
mod reads;
mod writes;

/// Where the database lives.
enum Place {
    Disk(tempfile::TempDir),
    Simulated(Arc<SimStorage>),
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
    open: Option<writes::Open>,
    tentative: Vec<optimistic::Tentative>,
    chain: Option<backup::Chain>,
    keys: Keys,
    random: Random,
    names: u32,
    /// For messages.
    pub done: usize,
}

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

    fn some_live_table(&mut self) -> Option<usize> {
        let live = self.oracle.live();
        (!live.is_empty()).then(|| *self.random.pick(&live))
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

fn options_of(expiry: Option<u64>) -> KeyspaceOptions {
    match expiry {
        None => KeyspaceOptions::new(),
        Some(0) => KeyspaceOptions::new().entries_expire(),
        Some(after) => KeyspaceOptions::new().expire_after(Duration::from_millis(after)),
    }
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
