//! One test for each defect of emdb that must not be here, named after the defect.
use crate::defects::{after_the_process, count, open, options, put, scattered};
use psitri::{
    Database, Error, Keyspace, ReadMode,
    storage::{Storage, sim::SimStorage},
};
use std::ops::ControlFlow;

#[test]
fn writes_after_compaction_going_to_an_unlinked_file() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let inode = || std::fs::metadata(path.join("data")).unwrap().ino();
    let before = inode();
    for round in 0..3u64 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in 0..2000u64 {
            txn.upsert(&keyspace, &scattered(number), &round.to_le_bytes())
                .unwrap();
        }
        txn.commit().unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.remove_range(&keyspace, &[0x40], Some(&[0xc0])).unwrap();
        txn.commit().unwrap();
        // Compacts: gives the free space of the file back.
        db.checkpoint().unwrap();
        put(&db, &keyspace, b"after", &round.to_le_bytes());
        assert_eq!(inode(), before, "the file stays the same one");
    }
    let expected = count(&db, &keyspace);
    drop(db);
    let db = options().open_existing(&path).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    assert_eq!(
        db.get(&keyspace, b"after").unwrap().as_deref(),
        Some(&2u64.to_le_bytes()[..])
    );
    assert_eq!(count(&db, &keyspace), expected);
}

#[test]
fn clear_and_drop_undone_by_reopen() {
    for checkpoint in [false, true] {
        let storage = SimStorage::new(1);
        let db = open(&storage).unwrap();
        let cleared = db.create_keyspace("cleared").unwrap();
        let dropped = db.create_keyspace("dropped").unwrap();
        for number in 0..500u64 {
            put(&db, &cleared, &scattered(number), &[1; 200]);
            put(&db, &dropped, &scattered(number), &[1; 200]);
        }
        db.checkpoint().unwrap();
        put(&db, &cleared, b"buffered", b"1");
        put(&db, &dropped, b"buffered", b"1");
        let mut txn = db.begin(&[&cleared]).unwrap();
        txn.remove_range(&cleared, b"", None).unwrap();
        txn.commit().unwrap();
        db.drop_keyspace("dropped").unwrap();
        if checkpoint {
            db.checkpoint().unwrap();
        }
        let (storage, db) = after_the_process(&storage, db);
        assert_eq!(db.keyspaces(), ["cleared"]);
        assert_eq!(count(&db, &db.open_keyspace("cleared").unwrap()), 0);
        db.close().unwrap();
        let db = open(&storage).unwrap();
        assert_eq!(db.keyspaces(), ["cleared"]);
        // A new keyspace of the old name is empty.
        let again = db.create_keyspace("dropped").unwrap();
        assert_eq!(count(&db, &again), 0);
        assert_eq!(count(&db, &db.open_keyspace("cleared").unwrap()), 0);
    }
}

#[test]
fn compaction_racing_with_writers() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspaces: Vec<Keyspace> = (0..2)
        .map(|i| db.create_keyspace(&format!("k{i}")).unwrap())
        .collect();
    const EACH: u64 = 6000;
    std::thread::scope(|scope| {
        let writers: Vec<_> = keyspaces
            .iter()
            .map(|keyspace| {
                let db = &db;
                scope.spawn(move || {
                    for number in 0..EACH {
                        put(db, keyspace, &scattered(number), &number.to_le_bytes());
                    }
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            db.checkpoint().unwrap();
        }
    });
    let check = |db: &Database| {
        for i in 0..2 {
            let keyspace = db.open_keyspace(&format!("k{i}")).unwrap();
            let snapshot = db.snapshot();
            assert_eq!(snapshot.count(&keyspace, ..).unwrap(), EACH);
            for number in 0..EACH {
                let found = snapshot.get(&keyspace, &scattered(number)).unwrap();
                assert_eq!(found, Some(&number.to_le_bytes()[..]));
            }
        }
    };
    check(&db);
    let (_, db) = after_the_process(&storage, db);
    check(&db);
}

/// An entry that a cursor finds in the buffer is not lost to damage in the leaf behind it.
#[test]
fn damage_is_met_where_it_is_and_not_before() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    const KEYS: u64 = 2000;
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..KEYS {
        let key = number.to_be_bytes();
        txn.upsert(&keyspace, &key, &[number as u8; 60]).unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
    let file = storage.open("data", psitri::storage::OpenMode::Read);
    let pages = file.unwrap().len().unwrap() / 4096;
    let mut errors = 0;
    for page in 2..pages {
        let damaged = storage.process_crash(page);
        let noise = [0xa5; 16];
        damaged.damage("data", page * 4096 + 1000, &noise).unwrap();
        let Ok(db) = open(&damaged) else { continue };
        let keyspace = db.open_keyspace("k").unwrap();
        let merged = db.snapshot_with(ReadMode::Trie);
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in 0..KEYS {
            txn.upsert(&keyspace, &number.to_be_bytes(), b"new")
                .unwrap();
        }
        txn.commit().unwrap();
        let snapshot = db.snapshot();
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            // The seek has to look for the key in its own leaf, and in no other.
            let in_reach = merged.get(&keyspace, &key).is_ok();
            errors += u64::from(!in_reach);
            let mut cursor = snapshot.cursor(&keyspace).unwrap();
            assert_eq!(cursor.seek(&key).is_ok(), in_reach, "{number}, page {page}");
            assert_eq!(cursor.seek_back(&key).is_ok(), in_reach);
        }
    }
    assert!(errors > 0, "some page held keys");
}

/// What a cursor finds ahead, where keys of the tree and of a buffer take turns, is not lost to damage behind it.
#[test]
fn a_walk_meets_damage_at_the_step_that_leads_to_it() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    const TREE_KEYS: u64 = 1000;
    let is_in_tree = |number: u64| number.is_multiple_of(2);
    let is_in_buffer = |number: u64| number % 4 == 1 || number.is_multiple_of(8);
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in (0..2 * TREE_KEYS).filter(|&number| is_in_tree(number)) {
        let key = number.to_be_bytes();
        txn.upsert(&keyspace, &key, &[number as u8; 60]).unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
    let file = storage.open("data", psitri::storage::OpenMode::Read);
    let pages = file.unwrap().len().unwrap() / 4096;
    let mut errors = [0; 2];
    for page in 2..pages {
        let damaged = storage.process_crash(page);
        let noise = [0xa5; 16];
        damaged.damage("data", page * 4096 + 1000, &noise).unwrap();
        let Ok(db) = open(&damaged) else { continue };
        let keyspace = db.open_keyspace("k").unwrap();
        let merged = db.snapshot_with(ReadMode::Trie);
        let is_whole = |number: u64| merged.get(&keyspace, &number.to_be_bytes()).is_ok();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for number in (0..2 * TREE_KEYS).filter(|&number| is_in_buffer(number)) {
            txn.upsert(&keyspace, &number.to_be_bytes(), b"new")
                .unwrap();
        }
        txn.commit().unwrap();
        let snapshot = db.snapshot();
        for forward in [true, false] {
            let mut numbers: Vec<u64> = (0..2 * TREE_KEYS)
                .filter(|&number| is_in_tree(number) || is_in_buffer(number))
                .collect();
            if !forward {
                numbers.reverse();
            }
            let mut cursor = snapshot.cursor(&keyspace).unwrap();
            let mut walk = numbers.into_iter().peekable();
            while let Some(mut number) = walk.next() {
                let key = number.to_be_bytes();
                let found = if forward {
                    cursor.seek(&key)
                } else {
                    cursor.seek_back(&key)
                };
                if found.is_err() {
                    continue;
                }
                while let Some(&next) = walk.peek() {
                    // The tree's part of the cursor has to leave its leaf behind.
                    let neighbour = if forward {
                        number + 2
                    } else {
                        number.wrapping_sub(2)
                    };
                    let is_met =
                        is_in_tree(number) && neighbour < 2 * TREE_KEYS && !is_whole(neighbour);
                    let moved = if forward {
                        cursor.next()
                    } else {
                        cursor.prev()
                    };
                    assert_eq!(moved.is_err(), is_met, "{number}, page {page}");
                    if is_met {
                        errors[usize::from(forward)] += 1;
                        assert_eq!((cursor.is_valid(), cursor.key()), (false, &[][..]));
                        assert!(!cursor.next().unwrap());
                        break;
                    }
                    assert_eq!(cursor.key(), next.to_be_bytes());
                    if is_in_buffer(next) {
                        assert_eq!(cursor.value(), b"new");
                    } else {
                        assert_eq!(cursor.value(), [next as u8; 60]);
                    }
                    number = next;
                    walk.next();
                }
            }
        }
    }
    assert!(errors[0] > 0 && errors[1] > 0, "{errors:?}");
}

#[test]
fn iterators_swallowing_errors() {
    let storage = SimStorage::new(1);
    let db = open(&storage).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    const KEYS: u64 = 5000;
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..KEYS {
        txn.upsert(&keyspace, &scattered(number), &[number as u8; 60])
            .unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
    let pages = {
        let file = storage
            .open("data", psitri::storage::OpenMode::Read)
            .unwrap();
        file.len().unwrap() / 4096
    };
    let (mut errors, mut clean) = (0, 0);
    for page in 2..pages {
        let damaged = storage.process_crash(page);
        damaged
            .damage("data", page * 4096 + 1000, &[0xa5; 16])
            .unwrap();
        let Ok(db) = open(&damaged) else {
            errors += 1;
            continue;
        };
        let keyspace = db.open_keyspace("k").unwrap();
        let snapshot = db.snapshot();
        // Forward, backward, and by callback: an error, or every key.
        let mut seen = 0;
        let all = snapshot.for_each(&keyspace, .., |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        let scan = |backward: bool| -> Result<u64, Error> {
            let mut cursor = snapshot.cursor(&keyspace)?;
            let mut found = if backward {
                cursor.seek_last()?
            } else {
                cursor.seek_first()?
            };
            let mut seen = 0;
            while found {
                seen += 1;
                found = if backward {
                    cursor.prev()?
                } else {
                    cursor.next()?
                };
            }
            Ok(seen)
        };
        match all {
            Ok(()) => {
                assert_eq!(seen, KEYS, "page {page}");
                assert_eq!(scan(false).unwrap(), KEYS);
                assert_eq!(scan(true).unwrap(), KEYS);
                clean += 1;
            }
            Err(Error::Corrupted { file, offset, .. }) => {
                assert_eq!((file.as_str(), offset / 4096), ("data", page));
                assert!(matches!(scan(false), Err(Error::Corrupted { .. })));
                assert!(matches!(scan(true), Err(Error::Corrupted { .. })));
                errors += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        errors > pages / 2,
        "{errors} errors and {clean} clean scans in {pages} pages"
    );
}
