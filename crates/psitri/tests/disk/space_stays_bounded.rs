//! Story: values are overwritten, keys removed and keyspaces dropped, all in random order and as fast as it goes. At no time is the data
//! file much larger than what can be reached in it, and nobody calls for a checkpoint.
use crate::common::{Random, seed};
use psitri::{Database, Keyspace, Options, storage::sim::SimStorage};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ITEMS: u64 = 300_000;
const BATCH: u64 = 100;
const FIXED_BYTES: u64 = 12 * MIB;

/// Sizes that were seen.
#[derive(Default)]
struct Sizes {
    seen: usize,
    over: usize,
}

impl Sizes {
    /// The file may have a quarter more than it holds, and some MiB that small databases take: slices, and blocks by which it grows. A
    /// transaction that loses the processor is a reader, and holds at most all that it sees: that must be rare, and not more.
    fn look(&mut self, db: &Database, when: &str) {
        let stats = db.stats().unwrap();
        let reachable = stats.reachable_bytes;
        let allowed = reachable + reachable / 4 + FIXED_BYTES;
        self.seen += 1;
        self.over += usize::from(stats.file_bytes > allowed);
        assert!(
            stats.file_bytes <= allowed + reachable,
            "{when}: {} bytes in the file for {reachable} reachable ones, {} of them pending, {} free",
            stats.file_bytes,
            stats.pending_bytes,
            stats.free_bytes
        );
    }
}

impl Drop for Sizes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(
                self.over <= self.seen / 4,
                "{} of {} times",
                self.over,
                self.seen
            );
        }
    }
}

/// At rest, nothing of that is needed.
fn assert_packed(db: &Database) {
    let stats = db.stats().unwrap();
    let allowed = stats.reachable_bytes + stats.reachable_bytes / 8 + MIB;
    assert!(stats.file_bytes <= allowed, "{stats:?}");
}

/// With checkpoints for their own sake so rare that none of them would help.
fn open(dir: &std::path::Path) -> Database {
    Options::new()
        .buffer_bytes(4 << 20)
        .checkpoint_bytes(1 << 30)
        .wal_segment_bytes(1 << 20)
        .open(dir)
        .unwrap()
}

fn key(number: u64) -> [u8; 8] {
    // An odd factor permutes the numbers.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn write(db: &Database, keyspace: &Keyspace, numbers: &[u64], fill: u8) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    for &number in numbers {
        txn.upsert(keyspace, &key(number), &[fill; 100]).unwrap();
    }
    txn.commit().unwrap();
}

fn load(db: &Database, keyspace: &Keyspace, items: u64) {
    let mut sizes = Sizes::default();
    let numbers: Vec<u64> = (0..items).collect();
    for (round, numbers) in numbers.chunks(BATCH as usize).enumerate() {
        write(db, keyspace, numbers, 0);
        if round % 100 == 0 {
            sizes.look(db, "load");
        }
    }
}

#[test]
fn while_values_are_overwritten() {
    let mut random = Random::new(seed(41));
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut sizes = Sizes::default();
    let keyspace = db.keyspace("values").unwrap();
    load(&db, &keyspace, ITEMS);
    for round in 0..5 * ITEMS / BATCH {
        let numbers: Vec<u64> = (0..BATCH).map(|_| random.next() % ITEMS).collect();
        write(&db, &keyspace, &numbers, round as u8);
        if round % 50 == 0 {
            sizes.look(&db, "overwrite");
        }
    }
    db.checkpoint().unwrap();
    assert_packed(&db);
    db.compact().unwrap();
    let stats = db.stats().unwrap();
    assert!(
        stats.file_bytes <= stats.reachable_bytes + stats.reachable_bytes / 50 + MIB,
        "{stats:?}"
    );
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
}

/// Leaves that get one entry too many become two of little more than half a page each; only where their neighbours are written as well can
/// they be full again.
#[test]
fn after_keys_were_added_here_and_there() {
    const KEYS: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("values").unwrap();
    let write = |numbers: &[u64], fill| write(&db, &keyspace, numbers, fill);
    let some_of_each_leaf: Vec<u64> = (0..KEYS).step_by(10).collect();
    let unused_bytes_after_overwriting = |fill| {
        write(&some_of_each_leaf, fill);
        db.checkpoint().unwrap();
        let stats = db.stats().unwrap();
        stats.file_bytes + stats.hole_bytes - stats.free_bytes - stats.reachable_bytes
    };
    write(&(0..KEYS).collect::<Vec<_>>(), 0);
    db.checkpoint().unwrap();
    write(&(KEYS..KEYS + KEYS / 100).collect::<Vec<_>>(), 1);
    let split = unused_bytes_after_overwriting(2);
    let packed = unused_bytes_after_overwriting(3);
    let content = KEYS * 108;
    assert!(split > content / 10, "nothing to repair: {split}");
    assert!(packed < content / 20, "{packed} after {split}");
}

#[test]
fn while_nine_of_ten_keys_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut sizes = Sizes::default();
    let keyspace = db.keyspace("values").unwrap();
    load(&db, &keyspace, 2 * ITEMS);
    let gone: Vec<u64> = (0..2 * ITEMS).filter(|number| number % 10 != 0).collect();
    for (round, numbers) in gone.chunks(BATCH as usize).enumerate() {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for &number in numbers {
            assert!(txn.remove(&keyspace, &key(number)).unwrap());
        }
        txn.commit().unwrap();
        if round % 50 == 0 {
            sizes.look(&db, "remove");
        }
    }
    db.checkpoint().unwrap();
    assert_packed(&db);
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 2 * ITEMS / 10);
}

#[test]
fn while_every_second_keyspace_is_dropped() {
    const KEYSPACES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut sizes = Sizes::default();
    let names: Vec<String> = (0..KEYSPACES).map(|number| format!("k{number}")).collect();
    let keyspaces: Vec<Keyspace> = names
        .iter()
        .map(|name| db.keyspace(name).unwrap())
        .collect();
    // All grow side by side.
    for start in (0..6_000).step_by(BATCH as usize) {
        for keyspace in &keyspaces {
            let numbers: Vec<u64> = (start..start + BATCH).collect();
            write(&db, keyspace, &numbers, 1);
        }
        sizes.look(&db, "load");
    }
    db.checkpoint().unwrap();
    for name in names.iter().step_by(2) {
        db.drop_keyspace(name).unwrap();
        sizes.look(&db, "drop");
    }
    db.checkpoint().unwrap();
    // Pages in which one of two keyspaces had a part are half used: the file is within its bounds, and packed when that is asked for.
    sizes.look(&db, "the end");
    db.compact().unwrap();
    assert_packed(&db);
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
}

/// They take next to nothing of the write buffer.
#[test]
fn while_large_values_are_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let keyspace = db.keyspace("values").unwrap();
    for round in 0..300u32 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        let value = vec![round as u8; MIB as usize];
        txn.upsert(&keyspace, &(round % 3).to_be_bytes(), &value)
            .unwrap();
        txn.commit().unwrap();
        assert!(
            db.stats().unwrap().file_bytes <= 60 * MIB,
            "{:?}",
            db.stats()
        );
    }
    assert_eq!(
        db.get(&keyspace, &2u32.to_be_bytes()).unwrap(),
        Some(vec![299u32 as u8; MIB as usize])
    );
}

/// A file grows by a share of itself. Where the disk has less than that, it grows by what it needs.
#[test]
fn the_last_of_a_disk_is_used() {
    const VALUE_BYTES: usize = 60_000;
    let disk = SimStorage::new(3);
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .wal_segment_bytes(64 << 10);
    let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let value = vec![7; VALUE_BYTES];
    let put = |number: u32| {
        let mut txn = db.begin(&[&keyspace])?;
        txn.upsert(&keyspace, &number.to_be_bytes(), &value)?;
        txn.commit()
    };
    let mut number = 0;
    while number < 3_000 {
        put(number).unwrap();
        number += 1;
    }
    db.checkpoint().unwrap();
    // Less than the share of 180 MB.
    let capacity = disk.allocated_bytes() + (3 << 20);
    disk.set_capacity_bytes(Some(capacity));
    let error = loop {
        match put(number) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_out_of_space(), "{error}");
    let left = capacity - disk.allocated_bytes();
    assert!(left < 5 << 19, "{left} bytes were left");
    disk.set_capacity_bytes(None);
    put(number).unwrap();
    db.checkpoint().unwrap();
    let count = db.snapshot().count(&keyspace, ..).unwrap();
    assert_eq!(count, u64::from(number) + 1);
}
