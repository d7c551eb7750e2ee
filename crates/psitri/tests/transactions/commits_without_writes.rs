//! A commit that is to wait for the disk makes durable what came before it, whether it wrote something or not: who found that something is there
//! already, and says so, must not be the only one who remembers.
use std::sync::Arc;

use psitri::{Database, Durability, Keyspace, Options, WriteBatch, storage::sim::SimStorage};

fn check(way: impl Fn(&Database, &Keyspace) -> psitri::Result<()>) {
    for seed in 0..20 {
        let disk = SimStorage::new(seed);
        let options = || Options::new().durability(Durability::None);
        let db = Database::open_on(Arc::new(disk.clone()), options()).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"key", b"value").unwrap();
        txn.commit().unwrap();
        way(&db, &keyspace).unwrap();
        let left = disk.crash(seed);
        drop((keyspace, db));
        let db = Database::open_on(Arc::new(left), options()).unwrap();
        let keyspace = db.open_keyspace("k").unwrap();
        assert_eq!(
            db.get(&keyspace, b"key").unwrap().as_deref(),
            Some(&b"value"[..])
        );
    }
}

#[test]
fn of_a_transaction() {
    check(|db, keyspace| db.begin(&[keyspace])?.commit_with(Durability::Sync));
}

#[test]
fn of_a_transaction_that_wrote_what_was_there_and_took_it_back() {
    check(|db, keyspace| {
        let mut txn = db.begin(&[keyspace])?;
        let mut level = txn.nested();
        level.upsert(keyspace, b"key", b"other")?;
        level.abort();
        txn.commit_with(Durability::Sync)
    });
}

#[test]
fn of_an_optimistic_transaction() {
    check(|db, keyspace| {
        let txn = db.begin_optimistic(psitri::Isolation::Serializable);
        assert!(txn.get(keyspace, b"key")?.is_some());
        txn.commit_with(Durability::Sync)
    });
}

#[test]
fn of_a_batch() {
    check(|db, _| {
        let mut batch = WriteBatch::new();
        batch.durability(Durability::Sync);
        db.write(batch)
    });
}
