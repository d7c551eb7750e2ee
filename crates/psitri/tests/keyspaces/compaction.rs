//! Story: a file that random inserts and deletes left half empty is packed. What is in it stays, readers that were there before see
//! what they saw, and the packed database opens again.
use crate::common::{Random, seed};
use psitri::{Database, Keyspace, Options};
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn fill(db: &Database, keyspace: &Keyspace, random: &mut Random, model: &mut Map, steps: usize) {
    for _ in 0..steps / 100 {
        let mut txn = db.begin(&[keyspace]).unwrap();
        for _ in 0..100 {
            let key = random.next().to_be_bytes()[..random.between(4, 8)].to_vec();
            if random.percent(30)
                && let Some(old) = model
                    .range(key.clone()..)
                    .next()
                    .map(|(key, _)| key.clone())
            {
                assert!(txn.remove(keyspace, &old).unwrap());
                model.remove(&old);
                continue;
            }
            // In leaves, out of line, and, now and then, over several pages.
            let bytes = *random.pick(&[0, 8, 100, 256, 256, 700, 4_000, 40_000]);
            let value = vec![
                random.next() as u8;
                if random.percent(90) {
                    bytes % 300
                } else {
                    bytes
                }
            ];
            txn.upsert(keyspace, &key, &value).unwrap();
            model.insert(key, value);
        }
        txn.commit().unwrap();
    }
}

fn assert_holds(db: &Database, keyspace: &Keyspace, model: &Map) {
    let snapshot = db.snapshot();
    let mut expected = model.iter();
    snapshot
        .for_each(keyspace, .., |key, value| {
            let (wanted_key, wanted_value) = expected.next().expect("no more keys than written");
            assert_eq!((key, value), (&wanted_key[..], &wanted_value[..]));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(expected.next(), None);
    assert_eq!(snapshot.count(keyspace, ..).unwrap(), model.len() as u64);
}

#[test]
fn a_file_with_holes_becomes_small_and_nothing_else_changes() {
    let mut random = Random::new(seed(11));
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new()
        .buffer_bytes(1 << 20)
        .checkpoint_bytes(2 << 20);
    let db = options.clone().open(dir.path()).unwrap();
    let keyspaces: Vec<Keyspace> = (0..3)
        .map(|n| db.keyspace(&format!("k{n}")).unwrap())
        .collect();
    let mut models = vec![Map::new(); 3];
    for round in 0..3 {
        for (keyspace, model) in keyspaces.iter().zip(&mut models) {
            fill(&db, keyspace, &mut random, model, 8_000);
            if round == 1 {
                // Leaves that are nearly empty.
                let mut txn = db.begin(&[keyspace]).unwrap();
                let gone: Vec<Vec<u8>> = model
                    .keys()
                    .filter(|_| !random.percent(20))
                    .cloned()
                    .collect();
                for key in gone {
                    assert!(txn.remove(keyspace, &key).unwrap());
                    model.remove(&key);
                }
                txn.commit().unwrap();
            }
        }
        let before = db.snapshot();
        let count = before.count(&keyspaces[0], ..).unwrap();
        db.compact().unwrap();
        assert_eq!(before.count(&keyspaces[0], ..).unwrap(), count);
        drop(before);
        db.compact().unwrap();
        let stats = db.stats().unwrap();
        assert!(
            stats.file_bytes * 100 <= stats.reachable_bytes * 112 + (64 << 10) * 100,
            "round {round}: {} bytes for {}",
            stats.file_bytes,
            stats.reachable_bytes
        );
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        for (keyspace, model) in keyspaces.iter().zip(&models) {
            assert_holds(&db, keyspace, model);
        }
    }
    drop(keyspaces);
    db.close().unwrap();
    let db = options.open_existing(dir.path()).unwrap();
    for (number, model) in models.iter().enumerate() {
        assert_holds(
            &db,
            &db.open_keyspace(&format!("k{number}")).unwrap(),
            model,
        );
    }
}

#[test]
fn a_packed_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    for number in 0..50_000u64 {
        txn.upsert(&keyspace, &number.to_be_bytes(), &[1; 50])
            .unwrap();
    }
    txn.commit().unwrap();
    db.compact().unwrap();
    let checkpoints = db.stats().unwrap().checkpoints;
    db.compact().unwrap();
    // Those that bring it to rest, none for a pass over the tree.
    assert!(db.stats().unwrap().checkpoints <= checkpoints + 2);
}

/// Nothing keeps the end of the file but what a checkpoint stored there when all pages before it were in use. It takes no space worth speaking of,
/// but whoever copies the file, or looks at its length, does not see the holes.
#[test]
fn a_compacted_file_is_as_long_as_its_content() {
    const KEYS: u64 = 300_000;
    for kept in [30_000u64, 180_000] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        let entries = (0..KEYS).map(|number| (number.to_be_bytes(), [7; 150]));
        txn.ingest(&keyspace, entries).unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        let gone = kept.to_be_bytes();
        txn.remove_range(&keyspace, &gone, None).unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        db.compact().unwrap();
        let bytes = std::fs::metadata(dir.path().join("data")).unwrap().len();
        let content = db.stats().unwrap().reachable_bytes;
        let most = content + content / 8 + (64 << 10);
        assert!(bytes <= most, "{bytes} bytes for {content}");
        drop((keyspace, db));
        let db = Database::open(dir.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), kept);
        assert_eq!(db.verify().unwrap().errors.len(), 0);
    }
}
