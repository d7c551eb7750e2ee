//! Story: a batch that would outgrow the write buffer goes past it. It is applied like a small one: its steps count in their order, all of them or
//! none, beside what was written before and after, and it survives a kill and, if it was asked to, a power loss.

use crate::common::{Random, SetAtEnd, seed};
use psitri::{
    Database, Durability, Error, Expiry, Keyspace, KeyspaceOptions, Options, Stats, WriteBatch,
    storage::sim::SimStorage,
};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const BUFFER_BYTES: usize = 256 << 10;
/// So many steps are too many for the buffer.
const STEPS: usize = 4_000;
const TABLES: [&str; 3] = ["plain", "other", "expiring"];

type Model = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

fn open(disk: &SimStorage) -> Database {
    let options = Options::new()
        .buffer_bytes(BUFFER_BYTES)
        .durability(Durability::None);
    Database::open_on(Arc::new(disk.clone()), options).unwrap()
}

fn tables(db: &Database) -> Vec<Keyspace> {
    TABLES
        .iter()
        .map(|&name| match name {
            "expiring" => {
                let options = KeyspaceOptions::new().entries_expire();
                db.create_keyspace_with(name, options)
            }
            _ => db.create_keyspace(name),
        })
        .map(Result::unwrap)
        .collect()
}

fn tables_again(db: &Database) -> Vec<Keyspace> {
    let open = |&name| db.open_keyspace(name).unwrap();
    TABLES.iter().map(open).collect()
}

/// What a batch is about: all tables, or one of entries that are small and stay, which are logged and merged where the batch has them.
fn some_of<'t>(random: &mut Random, tables: &'t [Keyspace]) -> &'t [Keyspace] {
    match random.percent(50) {
        true => tables,
        false => &tables[..1],
    }
}

/// Keys repeat within a batch and between batches.
fn step(random: &mut Random, batch: &mut WriteBatch, tables: &[Keyspace], model: &mut Model) {
    let table = random.below(tables.len());
    let key = (random.below(3 * STEPS) as u32).to_be_bytes();
    let keyspace = &tables[table];
    let place = (table, key.to_vec());
    if random.percent(30) {
        batch.remove(keyspace, &key);
        model.remove(&place);
        return;
    }
    let len = match random.below(1_000) {
        0 if tables.len() > 1 => 20_000,
        n if n < 20 => 2_000,
        _ => random.below(12),
    };
    let value = (random.next() as u8..=u8::MAX).cycle().take(len);
    let value: Vec<u8> = value.collect();
    match TABLES[table] == "expiring" && random.percent(50) {
        true => batch.upsert_expiring(keyspace, &key, &value, Expiry::Never),
        false => batch.upsert(keyspace, &key, &value),
    }
    model.insert(place, value);
}

fn check(db: &Database, tables: &[Keyspace], model: &Model) {
    let snapshot = db.snapshot();
    let mut expected = model.iter();
    for (table, keyspace) in tables.iter().enumerate() {
        snapshot
            .for_each(keyspace, .., |key, value| {
                let (place, model) = expected.next().expect("no more than was written");
                assert_eq!((table, key), (place.0, &place.1[..]));
                assert!(value == model, "{table} {key:?}");
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    assert_eq!(expected.next(), None);
}

#[test]
fn steps_count_in_their_order() {
    let mut random = Random::new(seed(21));
    let disk = SimStorage::new(random.next());
    let mut db = open(&disk);
    let mut tables = tables(&db);
    let mut model = Model::new();
    for round in 0..12 {
        // A large batch, and a small one that goes through the buffer, in either order.
        for steps in [STEPS, 20, 1].into_iter().take(1 + random.below(3)) {
            let mut batch = WriteBatch::new();
            let some = some_of(&mut random, &tables);
            for _ in 0..steps {
                step(&mut random, &mut batch, some, &mut model);
            }
            db.write(batch).unwrap();
        }
        check(&db, &tables, &model);
        if round % 4 == 3 {
            let report = db.verify().unwrap();
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            drop(tables);
            db.close().unwrap();
            db = open(&disk);
            tables = tables_again(&db);
            check(&db, &tables, &model);
        }
    }
}

/// As many steps as are still logged, and more, which take a checkpoint.
#[test]
fn they_survive_kills_and_power_losses() {
    for (round, power, steps, is_plain) in [
        (0, false, STEPS, false),
        (1, true, STEPS, false),
        (2, false, 5 * STEPS, false),
        (3, true, 5 * STEPS, false),
        (4, false, STEPS, true),
        (5, true, STEPS, true),
        (6, false, STEPS / 20, true),
        (7, true, STEPS / 20, true),
        (8, false, 5 * STEPS, true),
    ] {
        let mut random = Random::new(seed(22) + round);
        let disk = SimStorage::new(random.next());
        let db = open(&disk);
        let tables = tables(&db);
        let some = if is_plain { &tables[..1] } else { &tables };
        let mut model = Model::new();
        for _ in 0..3 {
            let mut batch = WriteBatch::new();
            for _ in 0..steps {
                step(&mut random, &mut batch, some, &mut model);
            }
            // Keys that a small batch has several times, in the log as well.
            for _ in 0..3 {
                let key = (random.below(3 * STEPS) as u32).to_be_bytes();
                batch.upsert(&some[0], &key, b"first");
                batch.remove(&some[0], &key);
                model.remove(&(0, key.to_vec()));
                if random.percent(50) {
                    batch.upsert(&some[0], &key, b"last");
                    model.insert((0, key.to_vec()), b"last".to_vec());
                }
            }
            batch.durability(match power {
                true => Durability::Sync,
                false => Durability::None,
            });
            db.write(batch).unwrap();
        }
        disk.crash_now();
        let left = match power {
            true => disk.crash(random.next()),
            false => disk.process_crash(random.next()),
        };
        drop((tables, db));
        let db = open(&left);
        check(&db, &tables_again(&db), &model);
    }
}

/// A batch that fits the buffer, into keyspaces with nothing or little in them.
#[test]
fn one_that_fills_keyspaces_goes_past_the_buffer() {
    for power in [false, true] {
        let mut random = Random::new(seed(27));
        let disk = SimStorage::new(random.next());
        let open = |disk: &SimStorage| {
            let options = Options::new()
                .buffer_bytes(8 << 20)
                .idle_flush(Duration::from_secs(3600));
            Database::open_on(Arc::new(disk.clone()), options).unwrap()
        };
        let db = open(&disk);
        let tables = tables(&db);
        let mut model = Model::new();
        let mut write = |steps: usize| {
            let mut batch = WriteBatch::new();
            for _ in 0..steps {
                step(&mut random, &mut batch, &tables, &mut model);
            }
            batch.durability(match power {
                true => Durability::Sync,
                false => Durability::None,
            });
            let before = db.stats().unwrap();
            db.write(batch).unwrap();
            let after = db.stats().unwrap();
            // Either the trees or the buffer have got it.
            let trees = after.tree_version > before.tree_version;
            let buffered = |stats: &Stats| -> u64 {
                (stats.keyspaces.iter())
                    .map(|keyspace| keyspace.entries_buffered)
                    .sum()
            };
            assert_ne!(trees, buffered(&after) > buffered(&before));
            trees
        };
        assert!(write(5_000));
        assert!(write(3 * STEPS), "there are half as many entries at most");
        assert!(!write(5_000), "there are more now");
        assert!(!write(100));
        assert!(!write(5 * STEPS), "entries wait to be merged");
        db.checkpoint().unwrap();
        assert!(!write(STEPS), "there are many entries");
        check(&db, &tables, &model);
        disk.crash_now();
        let left = match power {
            true => disk.crash(random.next()),
            false => disk.process_crash(random.next()),
        };
        drop((tables, db));
        let db = open(&left);
        check(&db, &tables_again(&db), &model);
        assert!(db.verify().unwrap().errors.is_empty());
    }
}

#[test]
fn an_error_undoes_all_of_it() {
    let disk = SimStorage::new(23);
    let db = open(&disk);
    let tables = tables(&db);
    let mut model = Model::new();
    let mut random = Random::new(23);
    let mut batch = WriteBatch::new();
    for _ in 0..STEPS {
        step(&mut random, &mut batch, &tables, &mut model);
    }
    db.write(batch).unwrap();
    let file_bytes = db.stats().unwrap().file_bytes;
    type Fault = fn(&mut WriteBatch, &[Keyspace]);
    let faults: [Fault; 2] = [
        |batch, tables| batch.upsert(&tables[1], &vec![0; psitri::KEY_BYTES_MAX + 1], b""),
        |batch, tables| batch.upsert_expiring(&tables[1], b"k", b"", Expiry::Never),
    ];
    for (number, fault) in faults.into_iter().cycle().take(20).enumerate() {
        let mut batch = WriteBatch::new();
        for _ in 0..STEPS {
            step(&mut random, &mut batch, &tables, &mut Model::new());
        }
        fault(&mut batch, &tables);
        let error = db.write(batch).unwrap_err();
        match number % 2 {
            0 => assert!(matches!(error, Error::KeyTooLong { .. }), "{error}"),
            _ => assert!(matches!(error, Error::NoExpiry { .. }), "{error}"),
        }
        check(&db, &tables, &model);
    }
    let now = db.stats().unwrap().file_bytes;
    assert!(now <= 3 * file_bytes, "{file_bytes} grew to {now} bytes");
    // Nobody holds a lock.
    let mut batch = WriteBatch::new();
    step(&mut random, &mut batch, &tables, &mut model);
    db.write(batch).unwrap();
    check(&db, &tables, &model);
}

/// One of many keyspaces gets most of a batch, in no order: its leaves are written a few times, not once for its share of the memory.
#[test]
fn one_of_many_keyspaces_gets_most() {
    let disk = SimStorage::new(25);
    let db =
        Database::open_on(Arc::new(disk.clone()), Options::new().buffer_bytes(4 << 20)).unwrap();
    let all: Vec<_> = (0..300)
        .map(|number| db.create_keyspace(&format!("k{number}")).unwrap())
        .collect();
    let mut random = Random::new(25);
    let mut batch = WriteBatch::new();
    for number in 0..100_000 {
        let keyspace = &all[if number % 100 == 0 {
            number / 100 % all.len()
        } else {
            7
        }];
        batch.upsert(keyspace, &random.next().to_be_bytes(), &[7; 100]);
    }
    let before = db.stats().unwrap();
    db.write(batch).unwrap();
    let after = db.stats().unwrap();
    let written = after.written_bytes - before.written_bytes;
    let grown = after.reachable_bytes - before.reachable_bytes;
    assert!(written < 4 * grown, "{written} bytes written for {grown}");
}

/// Trees of a few entries share pages.
#[test]
fn many_keyspaces_get_little() {
    let disk = SimStorage::new(26);
    let db = open(&disk);
    let all: Vec<_> = (0..1000)
        .map(|number| db.create_keyspace(&format!("k{number}")).unwrap())
        .collect();
    let mut batch = WriteBatch::new();
    for keyspace in &all {
        for number in 0..3u8 {
            batch.upsert(keyspace, &[number], b"small");
        }
    }
    let before = db.stats().unwrap().written_bytes;
    db.write(batch).unwrap();
    let written = db.stats().unwrap().written_bytes - before;
    assert!(written < 1 << 20, "{written} bytes written");
    let snapshot = db.snapshot();
    for keyspace in &all {
        assert_eq!(snapshot.count(keyspace, ..).unwrap(), 3);
        assert_eq!(snapshot.get(keyspace, &[2]).unwrap(), Some(&b"small"[..]));
    }
}

#[test]
fn readers_see_all_of_it_or_nothing() {
    let disk = SimStorage::new(24);
    let db = open(&disk);
    let tables = tables(&db);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetAtEnd(&done);
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let snapshot = db.snapshot();
                let get = |table: usize, number: u32| {
                    let value = snapshot.get(&tables[table], &number.to_be_bytes()).unwrap();
                    value.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()))
                };
                let round = get(0, 0);
                assert!(round >= last, "a snapshot is stale");
                last = round;
                for number in (0..STEPS as u32).step_by(371) {
                    assert_eq!(get(0, number), round);
                    assert_eq!(get(1, number), round);
                }
            }
            last
        });
        for round in 1..=40u32 {
            let mut batch = WriteBatch::new();
            for number in 0..STEPS as u32 {
                for table in &tables[..2] {
                    batch.upsert(table, &number.to_be_bytes(), &round.to_be_bytes());
                }
            }
            db.write(batch).unwrap();
        }
        drop(end);
        assert!(reader.join().unwrap() > 0);
    });
}
