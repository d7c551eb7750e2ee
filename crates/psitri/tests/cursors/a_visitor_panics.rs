//! Story: a program looks at entries with a function that panics now and then, catches that, and goes on. Nothing is held by what was left, and a
//! transaction is where its last whole step has brought it.
use psitri::{Database, Durability, Keyspace, Options, Snapshot};
use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

const ENTRIES: u32 = 30_000;

/// Entries of the tree, of which the buffer overrides every third and removes every fifth; others are in the buffer alone.
fn new() -> (Database, Keyspace) {
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.in_memory().unwrap();
    let keyspace = db.create_keyspace("ks").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in (0..ENTRIES).filter(|number| number % 2 == 0) {
        txn.upsert(&keyspace, &number.to_be_bytes(), b"tree")
            .unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..ENTRIES {
        let key = number.to_be_bytes();
        match number {
            _ if number % 5 == 0 => {
                txn.remove(&keyspace, &key).unwrap();
            }
            _ if number % 3 == 0 || number % 2 == 1 => {
                txn.upsert(&keyspace, &key, b"buffer").unwrap();
            }
            _ => {}
        }
    }
    txn.commit().unwrap();
    (db, keyspace)
}

fn is_there(number: u32) -> bool {
    !number.is_multiple_of(5)
}

/// Calls with something that panics at the entry with this number.
fn panicking<R>(call: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> R, at: u32) {
    let mut look = |key: &[u8]| {
        let number = u32::from_be_bytes(key.try_into().unwrap());
        assert_ne!(number, at, "a bug of the caller's");
        number.is_multiple_of(2)
    };
    let called = catch_unwind(AssertUnwindSafe(|| call(&mut look)));
    assert!(called.is_err());
}

fn numbers_in(snapshot: &Snapshot, keyspace: &Keyspace) -> Vec<u32> {
    let mut numbers = Vec::new();
    snapshot
        .for_each(keyspace, .., |key, _| {
            numbers.push(u32::from_be_bytes(key.try_into().unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
    numbers
}

#[test]
fn a_scan_that_panics_holds_nothing() {
    let (db, keyspace) = new();
    let expected: Vec<u32> = (0..ENTRIES).filter(|&number| is_there(number)).collect();
    for at in [1, 2, 4, 1_001, 14_999, ENTRIES - 1] {
        let snapshot = db.snapshot();
        let each = |look: &mut dyn FnMut(&[u8]) -> bool| {
            snapshot.for_each(&keyspace, .., |key, _| {
                look(key);
                ControlFlow::Continue(())
            })
        };
        panicking(each, at);
        let cursor = snapshot.cursor(&keyspace).unwrap();
        let each = |look: &mut dyn FnMut(&[u8]) -> bool| {
            cursor.for_each(|key, _| {
                look(key);
                ControlFlow::Continue(())
            })
        };
        panicking(each, at);
        assert_eq!(numbers_in(&snapshot, &keyspace), expected, "at {at}");
    }
    // No snapshot is left that would keep what is merged and replaced now.
    db.checkpoint().unwrap();
    assert_eq!(db.stats().unwrap().oldest_pin_us, 0);
    assert_eq!(numbers_in(&db.snapshot(), &keyspace), expected);
}

#[test]
fn a_transaction_goes_on_after_a_panic() {
    for at in [1, 1_001, 14_999, ENTRIES - 1] {
        for commits in [false, true] {
            let (db, keyspace) = new();
            let mut txn = db.begin(&[&keyspace]).unwrap();
            let each = |look: &mut dyn FnMut(&[u8]) -> bool| {
                txn.cursor(&keyspace).unwrap().for_each(|key, _| {
                    look(key);
                    ControlFlow::Continue(())
                })
            };
            panicking(each, at);
            assert_eq!(
                txn.count(&keyspace, ..).unwrap(),
                u64::from(ENTRIES) * 4 / 5
            );
            panicking(
                |look| txn.extract(&keyspace, .., |key, _| look(key)).unwrap(),
                at,
            );
            panicking(
                |look| txn.retain(&keyspace, .., |key, _| !look(key)).unwrap(),
                at,
            );
            // Even numbers before that one may be gone, and nothing else; a nested transaction takes back what its own call removed.
            let left = txn.count(&keyspace, ..).unwrap();
            let mut nested = txn.nested();
            panicking(
                |look| nested.retain(&keyspace, .., |key, _| look(key)).unwrap(),
                at,
            );
            drop(nested);
            assert_eq!(txn.count(&keyspace, ..).unwrap(), left);
            txn.upsert(&keyspace, &ENTRIES.to_be_bytes(), b"new")
                .unwrap();
            if commits {
                txn.commit_with(Durability::None).unwrap();
            } else {
                drop(txn);
            }
            let numbers = numbers_in(&db.snapshot(), &keyspace);
            let expected = u64::from(ENTRIES) * 4 / 5;
            if commits {
                assert_eq!(numbers.len() as u64, left + 1);
                assert_eq!(numbers.last(), Some(&ENTRIES));
                let may_be_gone = |number: &u32| number.is_multiple_of(2) && *number < at;
                for number in (0..ENTRIES).filter(|&it| is_there(it) && !may_be_gone(&it)) {
                    assert!(numbers.binary_search(&number).is_ok(), "{number}, at {at}");
                }
            } else {
                assert_eq!(numbers.len() as u64, expected);
            }
            db.checkpoint().unwrap();
            assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
        }
    }
}
