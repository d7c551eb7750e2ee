//! Story: a transaction over two keyspaces commits. An open transaction keeps the merge from one of them, so that a checkpoint stores
//! the other keyspace's tree with the commit in it, while the first keyspace's half is in the log only. Then the power fails, and
//! the disk keeps of the log no more than it was told to. The commit is there in both keyspaces or in none.
//!
//! The same for two commits: when the later one survives, so does the earlier one.
//!
//! `PSITRI_SEED` replays one seed.

use std::sync::Arc;

use crate::{options, seeds};
use psitri::{Database, storage::sim::SimStorage};

fn put(db: &Database, keyspaces: &[&str], key: &[u8]) {
    let handles: Vec<_> = keyspaces
        .iter()
        .map(|name| db.open_keyspace(name).unwrap())
        .collect();
    let mut txn = db.begin(&handles.iter().collect::<Vec<_>>()).unwrap();
    for keyspace in &handles {
        txn.upsert(keyspace, key, b"there").unwrap();
    }
    txn.commit().unwrap();
}

fn has(db: &Database, keyspace: &str, key: &[u8]) -> bool {
    let keyspace = db.open_keyspace(keyspace).unwrap();
    db.get(&keyspace, key).unwrap().is_some()
}

/// Runs the story up to the power loss; `commits` happen before the checkpoint that cannot merge keyspace `right`.
fn after_power_loss(seed: u64, commits: impl Fn(&Database)) -> Database {
    let storage = SimStorage::new(seed);
    let db = Database::open_on(Arc::new(storage.clone()), options()).unwrap();
    db.create_keyspace("left").unwrap();
    let right = db.create_keyspace("right").unwrap();
    db.checkpoint().unwrap();
    commits(&db);
    let open = db.begin(&[&right]).unwrap();
    db.checkpoint().unwrap();
    storage.crash_now();
    drop(open);
    drop((right, db));
    Database::open_on(Arc::new(storage.crash(seed)), options()).unwrap()
}

#[test]
fn both_halves_or_none() {
    for seed in seeds() {
        let db = after_power_loss(seed, |db| put(db, &["left", "right"], b"k"));
        let (left, right) = (has(&db, "left", b"k"), has(&db, "right", b"k"));
        assert_eq!(left, right, "a torn transaction; PSITRI_SEED={seed}");
        assert!(
            left,
            "a checkpoint covers the commits before it; PSITRI_SEED={seed}"
        );
    }
}

#[test]
fn what_survives_is_a_prefix() {
    for seed in seeds() {
        let db = after_power_loss(seed, |db| {
            put(db, &["right"], b"earlier");
            put(db, &["left"], b"later");
        });
        let (earlier, later) = (has(&db, "right", b"earlier"), has(&db, "left", b"later"));
        assert!(
            earlier || !later,
            "a hole in the commits; PSITRI_SEED={seed}"
        );
    }
}

/// A transaction that outgrows the buffer is made durable by its commit; what was committed before it must not be lost then.
#[test]
fn a_spilled_transaction_does_not_outlive_its_predecessors() {
    for seed in seeds().into_iter().take(8) {
        let storage = SimStorage::new(seed);
        let small = || options().buffer_bytes(256 << 10);
        let db = Database::open_on(Arc::new(storage.clone()), small()).unwrap();
        db.create_keyspace("left").unwrap();
        let right = db.create_keyspace("right").unwrap();
        db.checkpoint().unwrap();
        put(&db, &["left"], b"earlier");
        let mut large = db.begin(&[&right]).unwrap();
        for n in 0..4000u32 {
            large.upsert(&right, &n.to_be_bytes(), &[7; 100]).unwrap();
        }
        large.commit().unwrap();
        storage.crash_now();
        drop((right, db));
        let db = Database::open_on(Arc::new(storage.crash(seed)), small()).unwrap();
        assert!(has(&db, "right", &0u32.to_be_bytes()), "PSITRI_SEED={seed}");
        assert!(
            has(&db, "left", b"earlier"),
            "a hole in the commits; PSITRI_SEED={seed}"
        );
    }
}
