//! Story: a transaction of a million operations outgrows the write buffer. It stays atomic, its memory stays bounded, an abort
//! leaves nothing behind, it can be nested, and when the disk is full it is undone with a clear error.

use psitri::{Database, Error, Keyspace, Options, ReadMode, WriteTxn, storage::sim::SimStorage};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, sync::Arc};

fn key(number: u32) -> [u8; 4] {
    // Not in order, so that every spill changes the whole tree.
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

#[test]
fn a_million_operations_are_one_transaction() {
    const COUNT: u32 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(16 << 20)
        .open(dir.path())
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"early", b"1").unwrap();
    for number in 0..COUNT {
        txn.upsert(&keyspace, &key(number), &number.to_le_bytes())
            .unwrap();
        if number % 250_000 == 1000 {
            assert_eq!(
                txn.get(&keyspace, &key(number / 2)).unwrap(),
                Some(&(number / 2).to_le_bytes()[..])
            );
            assert_eq!(
                db.snapshot().count(&keyspace, ..).unwrap(),
                0,
                "seen before the commit"
            );
            let buffered = db.stats().unwrap().buffer_bytes;
            assert!(
                buffered <= 16 << 20,
                "{buffered} bytes in the shared buffer"
            );
        }
    }
    assert_eq!(txn.count(&keyspace, ..).unwrap(), u64::from(COUNT) + 1);
    txn.commit().unwrap();
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    let snapshot = db.snapshot_with(ReadMode::Trie);
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), u64::from(COUNT) + 1);
    for number in (0..COUNT).step_by(997) {
        assert_eq!(
            snapshot.get(&keyspace, &key(number)).unwrap(),
            Some(&number.to_le_bytes()[..])
        );
    }
    let stats = db.stats().unwrap();
    let live = stats.reachable_bytes;
    assert!(stats.file_bytes < live + live / 4 + (1 << 20), "{stats:?}");
}

#[test]
fn an_aborted_spill_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    for direct in [false, true] {
        let mut txn = match direct {
            false => db.begin(&[&keyspace]).unwrap(),
            true => db.begin_direct(&[&keyspace]).unwrap(),
        };
        for number in 0..30_000 {
            txn.upsert(&keyspace, &key(number), &[5; 50]).unwrap();
        }
        txn.upsert(&keyspace, b"large", &[6; 100_000]).unwrap();
        txn.remove_range(&keyspace, b"", Some(b"\x80")).unwrap();
        txn.abort();
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 0);
        db.checkpoint().unwrap();
        let stats = db.stats().unwrap();
        assert!(stats.file_bytes <= 64 << 10, "{stats:?}");
    }
}

#[test]
fn levels_inside_of_a_spilled_transaction_can_be_undone() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..20_000 {
        txn.upsert(&keyspace, &key(number), b"outer").unwrap();
    }
    let mut nested = txn.nested();
    nested.remove_range(&keyspace, b"", None).unwrap();
    for number in 0..5_000 {
        nested.upsert(&keyspace, &key(number), b"inner").unwrap();
    }
    assert_eq!(nested.count(&keyspace, ..).unwrap(), 5_000);
    nested.abort();
    assert_eq!(txn.count(&keyspace, ..).unwrap(), 20_000);
    let mut nested = txn.nested();
    for number in 0..5_000 {
        nested.upsert(&keyspace, &key(number), b"inner").unwrap();
    }
    nested.commit();
    txn.commit().unwrap();
    let snapshot = db.snapshot();
    for number in 0..20_000 {
        let wanted: &[u8] = if number < 5_000 { b"inner" } else { b"outer" };
        assert_eq!(snapshot.get(&keyspace, &key(number)).unwrap(), Some(wanted));
    }
}

/// The log has room left, the data file has none: at every capacity something else fails first.
#[test]
fn a_spill_without_space_is_undone_and_loses_nothing_else() {
    let mut undone = 0;
    for extra_kilobytes in [0, 64, 300, 600, 1000, 1500, 2000] {
        let disk = SimStorage::new(9);
        let options = Options::new()
            .buffer_bytes(256 << 10)
            .wal_segment_bytes(64 << 10);
        let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
        let keyspace = db.create_keyspace("k").unwrap();
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"before", b"kept").unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        disk.set_capacity_bytes(Some(disk.allocated_bytes() + (extra_kilobytes << 10)));
        let mut txn = db.begin(&[&keyspace]).unwrap();
        let mut failure = None;
        for number in 0..20_000 {
            // Where there is room for some, values that lie in the data file already: one of them is overwritten.
            let bytes = match number {
                0..6 if extra_kilobytes >= 300 => 20_000,
                _ => 80,
            };
            if let Err(error) = txn.upsert(&keyspace, &key(number.max(2)), &[7; 20_000][..bytes]) {
                failure = Some(error);
                break;
            }
        }
        match failure {
            Some(first) => {
                undone += 1;
                assert!(!matches!(first, Error::Undone { .. }), "{first}");
                assert!(first.is_out_of_space(), "{first}");
                for again in [
                    txn.upsert(&keyspace, b"k", b"v"),
                    txn.get(&keyspace, b"before").map(drop),
                    txn.count(&keyspace, ..).map(drop),
                    txn.remove(&keyspace, b"before").map(drop),
                ] {
                    let again = again.unwrap_err();
                    assert!(matches!(again, Error::Undone { .. }), "{again:?}");
                    assert!(again.is_out_of_space(), "{again:?}");
                }
                let message = txn.commit().unwrap_err().to_string();
                assert!(
                    message.starts_with("the transaction was undone: "),
                    "{message}"
                );
                assert!(message.contains(&first.to_string()), "{message}");
            }
            None => drop(txn.commit()),
        }
        disk.set_capacity_bytes(None);
        let number = db.snapshot().count(&keyspace, ..).unwrap();
        assert!(number == 1 || number == 19_999, "{number} keys");
        assert_eq!(
            db.get(&keyspace, b"before").unwrap().as_deref(),
            Some(&b"kept"[..])
        );
        // A full disk is no reason to refuse later writes, unless a flush was the one to find out.
        if db.checkpoint().is_ok() {
            let report = db.verify().unwrap();
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            let mut txn = db.begin(&[&keyspace]).unwrap();
            txn.remove_range(&keyspace, b"", None).unwrap();
            txn.commit().unwrap();
            db.checkpoint().unwrap();
            let stats = db.stats().unwrap();
            assert!(stats.file_bytes <= 64 << 10, "pages were lost: {stats:?}");
        }
    }
    assert!(undone >= 3, "the disk was never full in a spill");
}

/// Two keyspaces with overwrites, removals, deleted ranges, values of every kind and pops, in a transaction that spills at some step: nothing that is read
/// before or after tells where that was.
#[test]
fn a_transaction_that_spills_reads_as_a_map_does() {
    let mut spilled = 0;
    for seed in 0..60 {
        let mut random = SmallRng::seed_from_u64(seed);
        let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
        let keyspaces = ["a", "b"].map(|name| db.create_keyspace(name).unwrap());
        let outside = db.create_keyspace("outside").unwrap();
        let put_outside = |value: &[u8]| {
            let mut txn = db.begin(&[&outside]).unwrap();
            txn.upsert(&outside, b"k", value).unwrap();
            txn.commit().unwrap();
        };
        let mut maps = [const { BTreeMap::new() }; 2];
        let any_key = |random: &mut SmallRng| {
            let number: u16 = random.random_range(0..700);
            let mut key = number.to_be_bytes().to_vec();
            // Some begin others.
            key.truncate(random.random_range(1..=2));
            key
        };
        let begin = || {
            put_outside(b"before");
            let txn = db.begin(&[&keyspaces[0], &keyspaces[1]]).unwrap();
            put_outside(b"since");
            txn
        };
        let mut txn = begin();
        for step in 0..3_000u32 {
            let which = random.random_range(0..2);
            let (keyspace, map) = (&keyspaces[which], &mut maps[which]);
            let key = any_key(&mut random);
            match random.random_range(0..100) {
                0..70 => {
                    let bytes = match random.random_range(0..100) {
                        0 => 20_000,
                        1..4 => 1_000,
                        _ => random.random_range(0..120),
                    };
                    let value = vec![step as u8; bytes];
                    txn.upsert(keyspace, &key, &value).unwrap();
                    map.insert(key, value);
                }
                70..80 => {
                    let was_there = txn.remove(keyspace, &key).unwrap();
                    assert_eq!(was_there, map.remove(&key).is_some(), "seed {seed}");
                }
                80..83 => {
                    let hi = (random.random_range(0..8) > 0).then(|| any_key(&mut random));
                    txn.remove_range(keyspace, &key, hi.as_deref()).unwrap();
                    map.retain(|k, _| *k < key || hi.as_ref().is_some_and(|hi| k >= hi));
                }
                83..88 => {
                    let popped = match random.random_bool(0.5) {
                        true => (txn.pop_first(keyspace).unwrap(), map.pop_first()),
                        false => (txn.pop_last(keyspace).unwrap(), map.pop_last()),
                    };
                    assert_eq!(popped.0, popped.1, "seed {seed}");
                }
                88 if random.random_bool(0.02) => {
                    txn.commit().unwrap();
                    txn = begin();
                }
                _ => {
                    let found = txn.get(keyspace, &key).unwrap();
                    assert_eq!(found, map.get(&key).map(Vec::as_slice), "seed {seed}");
                }
            }
        }
        let check = |contents: [Vec<(Vec<u8>, Vec<u8>)>; 2], what: &str| {
            for (found, map) in contents.into_iter().zip(&maps) {
                let expected: Vec<_> = map.clone().into_iter().collect();
                assert!(found == expected, "seed {seed}, {what}");
            }
        };
        let read = |mut cursor: psitri::Cursor<'_>| {
            let mut entries = Vec::new();
            let mut found = cursor.seek_first().unwrap();
            while found {
                entries.push((cursor.key().to_vec(), cursor.value().to_vec()));
                found = cursor.next().unwrap();
            }
            entries
        };
        let inside = keyspaces.each_ref();
        check(inside.map(|ks| read(txn.cursor(ks).unwrap())), "inside");
        // Whoever spills reads other keyspaces from a newer snapshot.
        let seen = txn.get(&outside, b"k").unwrap();
        spilled += u32::from(seen == Some(b"since"));
        txn.commit().unwrap();
        let snapshot = db.snapshot();
        check(inside.map(|ks| read(snapshot.cursor(ks).unwrap())), "after");
        drop(snapshot);
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "seed {seed}: {:?}", report.errors);
    }
    assert!(spilled > 30, "{spilled} transactions of 60 had spilled");
}

/// Levels do not spill: their buffer may be full. A range is deleted as a whole then, or not at all.
#[test]
fn a_range_for_which_there_is_no_room_is_not_deleted_in_part() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..500u32 {
        let outer = [b"outer", &number.to_be_bytes()[..]].concat();
        txn.upsert(&keyspace, &outer, &[1; 100]).unwrap();
    }
    let mut nested = txn.nested();
    let mut inner = 0u32;
    for bytes in [4_000, 100, 0] {
        let value = vec![2; bytes];
        while let Ok(()) = nested.upsert(&keyspace, &inner.to_be_bytes(), &value) {
            inner += 1;
        }
    }
    for (lo, hi) in [(&b""[..], None), (b"outer", Some(&b"outes"[..]))] {
        let error = nested.remove_range(&keyspace, lo, hi).unwrap_err();
        assert!(matches!(error, Error::BufferFull { .. }), "{error:?}");
        let found = nested.count(&keyspace, ..).unwrap();
        assert_eq!(found, u64::from(inner) + 500);
    }
    // What the level itself wrote is overwritten in place.
    nested.remove_range(&keyspace, b"", Some(b"o")).unwrap();
    nested.commit();
    txn.commit().unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 500);
}

/// Fills the address space of the buffers, and takes back what it wrote. The memory is not used again until a merge.
fn fill_in_a_level(txn: &mut WriteTxn, keyspace: &Keyspace) {
    let mut nested = txn.nested();
    for bytes in [16_000, 1_000, 0] {
        let value = vec![1; bytes];
        let mut number = 0u32;
        while let Ok(()) = nested.upsert(keyspace, &number.to_be_bytes(), &value) {
            number += 1;
        }
        assert!(number < 10_000, "160 MB fit into 64");
    }
    nested.abort();
}

#[test]
fn a_transaction_goes_on_where_the_buffer_is_full() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| db.create_keyspace(name).unwrap());
    // It has written nothing when another one fills the buffer that both are in.
    let mut bystander = db.begin(&[&c]).unwrap();
    let mut txn = db.begin(&[&a, &b]).unwrap();
    txn.upsert(&a, b"before", b"1").unwrap();
    fill_in_a_level(&mut txn, &a);
    txn.upsert(&b, b"after", &[2; 16_000]).unwrap();
    txn.upsert(&a, b"large", &[3; 100_000]).unwrap();
    bystander.upsert(&c, b"large", &[4; 100_000]).unwrap();
    bystander.upsert(&c, b"small", b"5").unwrap();
    bystander.commit().unwrap();
    fill_in_a_level(&mut txn, &b);
    txn.upsert(&a, b"last", b"6").unwrap();
    txn.commit().unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&a, ..).unwrap(), 3);
    assert_eq!(snapshot.get(&b, b"after").unwrap(), Some(&[2; 16_000][..]));
    assert_eq!(snapshot.get(&a, b"large").unwrap(), Some(&[3; 100_000][..]));
    assert_eq!(snapshot.get(&c, b"large").unwrap(), Some(&[4; 100_000][..]));
    assert_eq!(snapshot.count(&c, ..).unwrap(), 2);
    assert_eq!(snapshot.get(&a, b"last").unwrap(), Some(&b"6"[..]));
    drop(snapshot);
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

/// As many levels as their sum has no room for.
#[test]
fn a_transaction_of_many_levels_spills_between_them() {
    const LEVELS: u32 = 6_000;
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..LEVELS {
        let mut nested = txn.nested();
        nested
            .upsert(&keyspace, &number.to_be_bytes(), &[number as u8; 16_000])
            .unwrap();
        nested.commit();
    }
    txn.commit().unwrap();
    assert_eq!(
        db.snapshot().count(&keyspace, ..).unwrap(),
        u64::from(LEVELS)
    );
}

#[test]
fn what_fails_half_way_inside_of_a_level_leaves_it_as_it_was() {
    let db = Options::new().buffer_bytes(256 << 10).in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..500u32 {
        let outer = [b"outer", &number.to_be_bytes()[..]].concat();
        txn.upsert(&keyspace, &outer, &[1; 100]).unwrap();
    }
    let mut nested = txn.nested();
    let too_long = vec![b'k'; psitri::KEY_BYTES_MAX + 1];
    let entries = [(&b"inner"[..], b"1"), (&too_long, b"2")];
    let error = nested.ingest(&keyspace, entries).unwrap_err();
    assert!(matches!(error, Error::KeyTooLong { .. }), "{error:?}");
    assert_eq!(nested.count(&keyspace, ..).unwrap(), 500);
    let mut inner = 0u32;
    for bytes in [4_000, 100, 0] {
        let value = vec![2; bytes];
        while let Ok(()) = nested.upsert(&keyspace, &inner.to_be_bytes(), &value) {
            inner += 1;
        }
    }
    let all = u64::from(inner) + 500;
    let error = nested.extract(&keyspace, .., |_, _| true).unwrap_err();
    assert!(matches!(error, Error::BufferFull { .. }), "{error:?}");
    assert_eq!(nested.count(&keyspace, ..).unwrap(), all);
    let error = nested.retain(&keyspace, .., |_, _| false).unwrap_err();
    assert!(matches!(error, Error::BufferFull { .. }), "{error:?}");
    assert_eq!(nested.count(&keyspace, ..).unwrap(), all);
    nested.abort();
    assert_eq!(txn.retain(&keyspace, .., |_, _| false).unwrap(), 500);
    txn.commit().unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 0);
}

/// What was written before a load comes first, in the tree and in the log: puts, removals, ranges, of keys that the load has and of others. A small one
/// is logged, and takes no checkpoint; one with a large value before it takes one.
#[test]
fn what_is_written_before_a_load_comes_first() {
    for has_large in [false, true] {
        let disk = SimStorage::new(1);
        let db = Database::open_on(Arc::new(disk.clone()), Options::new()).unwrap();
        let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
        let mut model = BTreeMap::new();
        let mut txn = db.begin(&[&a, &b]).unwrap();
        for number in 0..100u32 {
            txn.upsert(&a, &key(number), b"old").unwrap();
            model.insert(key(number).to_vec(), b"old".to_vec());
        }
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        let before = db.stats().unwrap().checkpoints;

        let mut txn = db.begin(&[&a, &b]).unwrap();
        for number in 40..140u32 {
            txn.upsert(&a, &key(number), b"new").unwrap();
            model.insert(key(number).to_vec(), b"new".to_vec());
        }
        for (lo, hi) in [(&[0x30u8][..], &[0x90u8][..]), (&[0x20], &[0x40])] {
            txn.remove_range(&a, lo, Some(hi)).unwrap();
            model.retain(|key, _| &key[..] < lo || &key[..] >= hi);
        }
        txn.remove(&a, &key(0)).unwrap();
        model.remove(&key(0)[..]);
        for number in 60..80u32 {
            txn.upsert(&a, &key(number), b"back").unwrap();
            model.insert(key(number).to_vec(), b"back".to_vec());
        }
        txn.upsert(&b, b"beside", b"it").unwrap();
        let large = vec![7; 100_000];
        if has_large {
            txn.upsert(&a, b"large", &large).unwrap();
            model.insert(b"large".to_vec(), large);
        }
        let loaded = (70..160u32).map(|number| (key(number), b"loaded"));
        txn.ingest(&a, loaded.clone()).unwrap();
        model.extend(loaded.map(|(key, value)| (key.to_vec(), value.to_vec())));
        txn.commit().unwrap();
        let took = db.stats().unwrap().checkpoints - before;
        assert_eq!(took > 0, has_large, "{took} checkpoints");

        let check = |db: &Database| {
            let (a, b) = (
                db.open_keyspace("a").unwrap(),
                db.open_keyspace("b").unwrap(),
            );
            let snapshot = db.snapshot();
            let mut found = BTreeMap::new();
            snapshot
                .for_each(&a, .., |key, value| {
                    found.insert(key.to_vec(), value.to_vec());
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(found, model);
            assert_eq!(snapshot.get(&b, b"beside").unwrap(), Some(&b"it"[..]));
        };
        check(&db);
        // What the log says of it, and no checkpoint.
        let found = disk.process_crash(1);
        check(&Database::open_on(Arc::new(found), Options::new()).unwrap());
    }
}
