//! Story: merges publish long keyspaces slice by slice, several keyspaces one after the other, and leave out those that an open
//! transaction holds back. So the trees have parts of transactions, and checkpoints store such trees. A reader of mode `trie` or `buffered`
//! sees every transaction as a whole or not at all: while the merge goes on, after the process was killed or the power failed in the middle
//! of it, and beside the writer.

use crate::common::{Random, SetAtEnd, env_number, seed, within_seconds};
use psitri::{
    Database, Event, Keyspace, Options, ReadMode, Snapshot,
    storage::{OpenMode, Storage, sim::SimStorage},
};
use std::{
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const OLD_MODES: [ReadMode; 2] = [ReadMode::Trie, ReadMode::Buffered];
/// Each a place in every leaf or so.
const PLACES: u64 = 2000;
const FILLER: [u8; 400] = [7; 400];

/// Only what a story asks for is merged.
fn options() -> Options {
    Options::new()
        .buffer_bytes(4 << 20)
        .wal_segment_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600))
}

/// Key of a transaction at a place. Transaction 0 is what was there before.
fn key(place: u64, transaction: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&place.to_be_bytes());
    key[8..].copy_from_slice(&transaction.to_be_bytes());
    key
}

/// Keyspaces that every transaction writes to.
struct Tables(Vec<Keyspace>);

impl Tables {
    fn create(db: &Database, count: usize, places: u64) -> Tables {
        let create = |n| db.create_keyspace(&format!("table {n}")).unwrap();
        let tables = Tables((0..count).map(create).collect());
        let all: Vec<&Keyspace> = tables.0.iter().collect();
        let mut txn = db.begin_direct(&all).unwrap();
        for table in &tables.0 {
            let filler = (0..places)
                .flat_map(|place| (0..4u64).map(move |n| (key(place, n << 32), &FILLER)));
            txn.ingest(table, filler).unwrap();
        }
        txn.commit().unwrap();
        tables
    }

    fn open(db: &Database, count: usize) -> Tables {
        let open = |n| db.open_keyspace(&format!("table {n}")).unwrap();
        Tables((0..count).map(open).collect())
    }

    /// One entry at every `step`th place, not the same places as those of the transaction before.
    fn commit(&self, db: &Database, transaction: u64, places: u64, step: u64) {
        let all: Vec<&Keyspace> = self.0.iter().collect();
        let mut txn = db.begin(&all).unwrap();
        for table in &self.0 {
            for place in (transaction % step..places).step_by(step as usize) {
                txn.upsert(table, &key(place, transaction), b"new").unwrap();
            }
        }
        txn.commit().unwrap();
    }

    /// How many transactions there are; each is there in all places, and none is after one that is not.
    fn check(&self, snapshot: &Snapshot, places: u64, step: u64, what: &str) -> u64 {
        let expected = places / step;
        let newest: Vec<u64> = (self.0.iter().enumerate())
            .map(|(table, keyspace)| {
                let mut counts: Vec<u64> = Vec::new();
                snapshot
                    .for_each(keyspace, .., |key, _| {
                        let number = u64::from_be_bytes(key[8..].try_into().unwrap());
                        if let Some(index) = (number as u32).checked_sub(1) {
                            let length = counts.len().max(index as usize + 1);
                            counts.resize(length, 0);
                            counts[index as usize] += 1;
                        }
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                for (index, &count) in counts.iter().enumerate() {
                    let number = index + 1;
                    assert_eq!(
                        count, expected,
                        "{what}: transaction {number} of table {table}"
                    );
                }
                counts.len() as u64
            })
            .collect();
        assert!(
            newest.windows(2).all(|pair| pair[0] == pair[1]),
            "{what}: {newest:?}"
        );
        newest[0]
    }
}

fn keys_merged(db: &Database, name: &str) -> u64 {
    let stats = db.stats().unwrap();
    let found = stats
        .keyspaces
        .iter()
        .find(|keyspace| keyspace.name == name);
    found.unwrap().keys_merged
}

/// Disks as they are left if the process or the machine dies after a checkpoint.
#[derive(Clone, Default)]
struct Left {
    disks: Arc<Mutex<Vec<SimStorage>>>,
    listening: Arc<AtomicBool>,
}

impl Left {
    fn open(&self, disk: &SimStorage, options: Options) -> Database {
        let (left, watched) = (self.clone(), disk.clone());
        let options = options.on_event(move |event| {
            if matches!(event, Event::Checkpoint { .. }) && left.listening.load(Ordering::Acquire) {
                let mut disks = left.disks.lock().unwrap();
                let seed = disks.len() as u64;
                disks.push(watched.process_crash(seed));
                disks.push(watched.crash(seed));
            }
        });
        Database::open_on(Arc::new(disk.clone()), options).unwrap()
    }

    fn listen(&self, on: bool) {
        self.listening.store(on, Ordering::Release);
    }

    fn take(&self) -> Vec<SimStorage> {
        std::mem::take(&mut *self.disks.lock().unwrap())
    }
}

/// Merges transactions over two tables.
fn disks_of_a_long_merge(seed: u64) -> Vec<SimStorage> {
    let left = Left::default();
    let db = left.open(&SimStorage::new(seed), options());
    let tables = Tables::create(&db, 2, PLACES);
    for transaction in 1..=8 {
        tables.commit(&db, transaction, PLACES, 8);
    }
    left.listen(true);
    let merged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What is committed while the merge goes on is not a part of it.
            for transaction in 9..20 {
                if !merged.load(Ordering::Acquire) {
                    tables.commit(&db, transaction, PLACES, 8);
                }
            }
        });
        db.checkpoint().unwrap();
        merged.store(true, Ordering::Release);
    });
    left.take()
}

/// Reads a disk that was left in both ways that merge nothing. True if a tree has a part of transactions.
fn check_read_only(disk: &SimStorage, what: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    copy(disk, dir.path());
    let mut in_the_middle = false;
    for how in ["read-only", "beside"] {
        let reader = match how {
            "beside" => options().open_beside_writer(dir.path()),
            _ => options().open_read_only(dir.path()),
        };
        let reader = reader.unwrap();
        let tables = Tables::open(&reader, 2);
        for number in 0..2 {
            let keys = keys_merged(&reader, &format!("table {number}"));
            in_the_middle |= !keys.is_multiple_of(PLACES / 8);
        }
        for mode in OLD_MODES {
            let snapshot = reader.snapshot_with(mode);
            tables.check(&snapshot, PLACES, 8, &format!("{what}, {how}, {mode}"));
        }
    }
    in_the_middle
}

fn copy(disk: &SimStorage, to: &Path) {
    for name in disk.list().unwrap() {
        let file = disk.open(&name, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        std::fs::write(to.join(&name), bytes).unwrap();
    }
}

#[test]
fn after_an_opening_in_the_middle_of_a_merge() {
    // Whether a checkpoint comes in the middle is up to the threads.
    let found = (1..=5).any(|first| open_in_the_middle_of_a_merge(seed(first)));
    assert!(found, "no checkpoint in the middle");
}

/// Whether there was a checkpoint in the middle, before the opening and after it.
fn open_in_the_middle_of_a_merge(seed: u64) -> bool {
    let (mut in_the_middle, mut again_in_the_middle) = (0, 0);
    for (index, disk) in disks_of_a_long_merge(seed).into_iter().enumerate() {
        let what = format!("disk {index}");
        in_the_middle += u32::from(check_read_only(&disk, &what));
        // The merge that goes on is cut short as well. The log becomes several smaller buffers.
        let left = Left::default();
        left.listen(true);
        let db = left.open(&disk, options().buffer_bytes(1 << 20));
        let tables = Tables::open(&db, 2);
        for mode in OLD_MODES {
            let snapshot = db.snapshot_with(mode);
            tables.check(&snapshot, PLACES, 8, &format!("{what}, opened, {mode}"));
        }
        let newest = tables.check(&db.snapshot(), PLACES, 8, &what);
        assert!(newest >= 8, "{what}: {newest}");
        db.checkpoint().unwrap();
        left.listen(false);
        for mode in OLD_MODES {
            let snapshot = db.snapshot_with(mode);
            let found = tables.check(&snapshot, PLACES, 8, &format!("{what}, merged, {mode}"));
            assert_eq!(found, newest, "{what}, merged, {mode}");
        }
        assert_eq!(db.verify().unwrap().errors, [""; 0]);
        for (again, disk) in left.take().into_iter().enumerate().step_by(2) {
            let what = format!("{what}, opened, disk {again}");
            again_in_the_middle += u32::from(check_read_only(&disk, &what));
        }
    }
    in_the_middle > 0 && again_in_the_middle > 0
}

#[test]
fn while_merges_publish_one_slice_after_the_other() {
    within_seconds(120, "transactions beside readers", || {
        let mut random = Random::new(seed(2));
        let time = Duration::from_secs(env_number("PSITRI_TRIE_SECONDS").unwrap_or(2));
        let dir = tempfile::tempdir().unwrap();
        let small = Options::new().buffer_bytes(256 << 10);
        let db = small.open(dir.path()).unwrap();
        let tables = Tables::create(&db, 3, 1000);
        let done = AtomicBool::new(false);
        let mut newest = [0; 2];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = SetAtEnd(&done);
                let start = Instant::now();
                let mut transaction = 1;
                while start.elapsed() < time {
                    tables.commit(&db, transaction, 1000, 50);
                    transaction += 1;
                }
            });
            while !done.load(Ordering::Acquire) {
                let index = random.below(OLD_MODES.len());
                let mode = OLD_MODES[index];
                let snapshot = db.snapshot_with(mode);
                let found = tables.check(&snapshot, 1000, 50, &mode.to_string());
                assert!(found >= newest[index], "{mode} went back");
                newest[index] = found;
            }
        });
        assert!(newest[0] > 0, "nothing was merged");
    });
}

#[test]
fn while_a_transaction_holds_one_keyspace_back() {
    let disk = SimStorage::new(3);
    let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
    let (left, right) = (
        db.create_keyspace("left").unwrap(),
        db.create_keyspace("right").unwrap(),
    );
    db.checkpoint().unwrap();
    let put = |key: &[u8]| {
        let mut txn = db.begin(&[&left, &right]).unwrap();
        txn.upsert(&left, key, b"").unwrap();
        txn.upsert(&right, key, b"").unwrap();
        txn.commit().unwrap();
    };
    put(b"1");
    let mut open = db.begin(&[&right]).unwrap();
    open.upsert(&right, b"open", b"").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(
        (keys_merged(&db, "left"), keys_merged(&db, "right")),
        (1, 0)
    );
    let seen = |db: &Database, mode| {
        let snapshot = db.snapshot_with(mode);
        let count = |name| {
            snapshot
                .count(&db.open_keyspace(name).unwrap(), ..)
                .unwrap()
        };
        (count("left"), count("right"))
    };
    for mode in OLD_MODES {
        assert_eq!(seen(&db, mode), (1, 1), "{mode}");
    }
    let copied = disk.process_crash(3);
    let dir = tempfile::tempdir().unwrap();
    copy(&copied, dir.path());
    let beside = options().open_beside_writer(dir.path()).unwrap();
    let reopened = Database::open_on(Arc::new(copied), options()).unwrap();
    for mode in OLD_MODES {
        assert_eq!(seen(&beside, mode), (1, 1), "beside, {mode}");
        assert_eq!(seen(&reopened, mode), (1, 1), "reopened, {mode}");
    }
    // What it commits is seen where its generation is; what comes after it is in the active buffer.
    open.commit().unwrap();
    put(b"2");
    for mode in OLD_MODES {
        let (left, right) = seen(&db, mode);
        assert!(
            left == 1 && (1..=2).contains(&right),
            "{mode}: {left}, {right}"
        );
    }
    db.checkpoint().unwrap();
    for mode in OLD_MODES {
        assert_eq!(seen(&db, mode), (2, 3), "{mode}");
    }
}
