//! Story: entries all over a tree that is large beside the write buffer come faster than they are merged. Their values leave the leaves, which are
//! written again and again; they come back where changes are dense and when the keyspace is compacted. Whatever way they go, what is read is the
//! same, and space that they had is free again.
use std::{os::unix::fs::FileExt, path::Path, time::Duration};

use crate::common::{
    self, Random,
    in_no_order::{self, Model},
};
use psitri::{Database, Error, Keyspace, Options, WriteBatch};

const BUFFER_BYTES: usize = 256 << 10;

fn options() -> Options {
    Options::new()
        .buffer_bytes(BUFFER_BYTES)
        .frozen_buffers(4)
        .idle_flush(Duration::from_secs(3600))
}

fn key(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

/// Of any length up to more than leaves take; most have about 200 bytes.
fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(10) {
        0 => random.between(0, 130),
        1 => random.between(400, 1_200),
        _ => random.between(150, 300),
    };
    let word = random.next().to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

/// Writes so many entries with keys below `keys`, in no order; one in `delete_one_in` deletes instead.
fn write(
    db: &Database,
    keyspace: &Keyspace,
    model: &mut Model,
    random: &mut Random,
    (count, keys, delete_one_in): (usize, u64, usize),
) {
    let draw_key = |random: &mut Random| key(random.next() % keys);
    let how_many = (count, delete_one_in);
    in_no_order::write(db, keyspace, model, random, how_many, draw_key, value);
}

fn check(db: &Database, keyspace: &Keyspace, model: &Model) {
    let snapshot = db.snapshot();
    in_no_order::check(&snapshot, keyspace, model);
    for (key, value) in model.iter().step_by(37) {
        let found = snapshot.get(keyspace, key).unwrap();
        assert_eq!(found, Some(value.as_slice()));
    }
}

/// How many values lie outside of leaves, after all is merged and verified.
fn verified(db: &Database) -> u64 {
    db.checkpoint().unwrap();
    let report = db.verify().unwrap();
    assert_eq!(report.errors, Vec::<String>::new());
    report.values_out_of_line
}

fn longer_than_leaves_take(model: &Model) -> u64 {
    model.values().filter(|value| value.len() > 512).count() as u64
}

fn content_bytes(model: &Model) -> u64 {
    model.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn open(dir: &Path) -> (Database, Keyspace) {
    let db = options().open(dir).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    (db, keyspace)
}

fn new() -> (tempfile::TempDir, Database, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(dir.path());
    (dir, db, keyspace)
}

/// A database of 40,000 entries whose values have left the leaves, what is in it, and how many values are outside.
fn apart(seed: u64) -> (tempfile::TempDir, Database, Keyspace, Model, u64) {
    let (dir, db, keyspace) = new();
    let (mut random, mut model) = (Random::new(common::seed(seed)), Model::new());
    write(
        &db,
        &keyspace,
        &mut model,
        &mut random,
        (40_000, u64::MAX, 1_000_000),
    );
    let outside = verified(&db);
    assert!(outside > 10_000);
    (dir, db, keyspace, model, outside)
}

#[test]
fn they_leave_are_overwritten_and_come_back() {
    let (dir, db, keyspace) = new();
    let (mut random, mut model) = (Random::new(common::seed(1)), Model::new());
    write(
        &db,
        &keyspace,
        &mut model,
        &mut random,
        (60_000, u64::MAX, 1_000_000),
    );
    check(&db, &keyspace, &model);
    let apart = verified(&db) - longer_than_leaves_take(&model);
    assert!(apart > 10_000, "{apart} of {} values left", model.len());
    check(&db, &keyspace, &model);

    // Overwritten and deleted all over the tree for long: what is left in pages that lost most of their values moves.
    let keys = 40_000;
    for _ in 0..4 {
        write(&db, &keyspace, &mut model, &mut random, (40_000, keys, 10));
    }
    let apart = verified(&db) - longer_than_leaves_take(&model);
    assert!(apart > 10_000, "{apart} of {} values are out", model.len());
    let content = content_bytes(&model);
    let file = db.stats().unwrap().file_bytes;
    // Leaves that are split far from one another are little more than half full here, wherever the values are.
    assert!(file < content * 2, "{file} bytes for {content}");
    drop((keyspace, db));

    let (db, keyspace) = open(dir.path());
    check(&db, &keyspace, &model);
    assert!(verified(&db) > longer_than_leaves_take(&model));
    db.compact().unwrap();
    assert_eq!(verified(&db), longer_than_leaves_take(&model));
    check(&db, &keyspace, &model);
}

#[test]
fn those_that_are_overwritten_densely_come_back() {
    let (_dir, db, keyspace, mut model, before) = apart(2);
    // All of them in order: leaf after leaf is written for nothing but changes.
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for keys in keys.chunks(100) {
        let mut batch = WriteBatch::new();
        for key in keys {
            batch.upsert(&keyspace, key, &[7; 200]);
            model.insert(key.clone(), vec![7; 200]);
        }
        db.write(batch).unwrap();
    }
    let after = verified(&db);
    assert!(after < before / 20, "{before} values were out, {after} are");
    check(&db, &keyspace, &model);
}

#[test]
fn what_two_clones_share_stays_right() {
    let (_dir, db, keyspace) = new();
    let (mut random, mut model) = (Random::new(common::seed(3)), Model::new());
    write(
        &db,
        &keyspace,
        &mut model,
        &mut random,
        (40_000, 50_000, 20),
    );
    let clone = db.clone_keyspace("entries", "clone").unwrap();
    let mut clone_model = model.clone();
    for _ in 0..3 {
        write(&db, &keyspace, &mut model, &mut random, (20_000, 50_000, 5));
        write(
            &db,
            &clone,
            &mut clone_model,
            &mut random,
            (20_000, 50_000, 20),
        );
    }
    assert!(verified(&db) > 0);
    check(&db, &keyspace, &model);
    check(&db, &clone, &clone_model);
    drop(clone);
    db.drop_keyspace("clone").unwrap();
    db.compact().unwrap();
    verified(&db);
    check(&db, &keyspace, &model);
    in_no_order::drop_last(&db, keyspace, "entries");
}

/// A snapshot that was taken before values moved sees them where they were.
#[test]
fn an_old_snapshot_sees_what_moved() {
    let (_dir, db, keyspace) = new();
    let (mut random, mut model) = (Random::new(common::seed(4)), Model::new());
    write(
        &db,
        &keyspace,
        &mut model,
        &mut random,
        (30_000, 30_000, 20),
    );
    let old = db.snapshot();
    let old_model = model.clone();
    for _ in 0..3 {
        write(
            &db,
            &keyspace,
            &mut model,
            &mut random,
            (30_000, 30_000, 20),
        );
    }
    db.compact().unwrap();
    db.checkpoint().unwrap();
    for (key, value) in &old_model {
        let found = old.get(&keyspace, key).unwrap();
        assert_eq!(found, Some(value.as_slice()));
    }
    check(&db, &keyspace, &model);
}

/// Values that are too long for leaves share pages. What is left of these is packed together, however long they are.
#[test]
fn compaction_packs_pages_of_longer_values() {
    const KEYS: u64 = 4_000;
    for bytes in [600, 1_000, 1_300] {
        let (_dir, db, keyspace) = new();
        for round in 0..2u8 {
            // The second round replaces those of every page but the last one.
            for first in (0..KEYS).step_by(100) {
                let mut batch = WriteBatch::new();
                for n in (first..first + 100).filter(|n| round == 0 || n % 4 != 3) {
                    batch.upsert(&keyspace, &n.to_be_bytes(), &vec![round; bytes]);
                }
                db.write(batch).unwrap();
            }
            db.checkpoint().unwrap();
        }
        db.compact().unwrap();
        let stats = db.stats().unwrap();
        let (file, content) = (stats.file_bytes, KEYS * (8 + bytes as u64));
        let most = content + content / 8 + (512 << 10);
        assert!(file < most, "{bytes}: {file} bytes for {content}");
        let snapshot = db.snapshot();
        for n in 0..KEYS {
            let value = snapshot.get(&keyspace, &n.to_be_bytes()).unwrap();
            let round = u8::from(n % 4 != 3);
            assert_eq!(value.map(<[u8]>::to_vec), Some(vec![round; bytes]));
        }
    }
}

/// A value that is damaged is reported where it is asked for; merges that meet it leave it where it is, and go on.
/// Keys of values that lie outside of the leaves in one piece, recognised by their bytes, and where these lie in the file. Some may be of places that
/// values have left.
fn outside<'m>(file: &'m [u8], model: &'m Model) -> impl Iterator<Item = (&'m [u8], usize)> {
    model
        .iter()
        .filter(|(_, value)| (150..300).contains(&value.len()))
        .filter_map(|(key, value)| {
            let at = find(file, value)?;
            // In a leaf its key lies near.
            let near = &file[at & !4095..(at & !4095) + 4096];
            find(near, &key[2..]).is_none().then_some((&key[..], at))
        })
}

/// Who moves a value gives it a new checksum, and looks at the old one first, however often it was read before.
#[test]
fn a_value_that_was_damaged_after_it_was_read_is_not_moved() {
    let (dir, db, keyspace, model, _) = apart(6);
    let path = dir.path().join("data");
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let is_damaged = outside(&bytes, &model).take(100).any(|(victim, at)| {
        let read = db
            .snapshot()
            .get(&keyspace, victim)
            .unwrap()
            .map(<[u8]>::to_vec);
        assert_eq!(read.as_ref(), Some(&model[victim]));
        file.write_at(&[!bytes[at + 40]], at as u64 + 40).unwrap();
        let is_in_use = db.verify().unwrap().errors.len() == 1;
        if !is_in_use {
            file.write_at(&[bytes[at + 40]], at as u64 + 40).unwrap();
        }
        is_in_use
    });
    assert!(is_damaged);
    assert!(matches!(db.compact(), Err(Error::Corrupted { .. })));
    assert_eq!(db.verify().unwrap().errors.len(), 1);
}

#[test]
fn a_damaged_value_holds_nobody_up() {
    let (dir, db, keyspace, mut model, _) = apart(5);
    drop((keyspace, db));

    let path = dir.path().join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    let (victim, at) = outside(&bytes, &model).next().expect("there is one");
    let victim = victim.to_vec();
    bytes[at + 40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let (db, keyspace) = open(dir.path());
    model.remove(&victim);
    let is_damaged = |db: &Database, keyspace: &Keyspace| {
        let snapshot = db.snapshot();
        matches!(
            snapshot.get(keyspace, &victim),
            Err(Error::Corrupted { .. })
        )
    };
    assert!(is_damaged(&db, &keyspace));
    // Dense changes beside it, which bring values back.
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for keys in keys.chunks(100) {
        let mut batch = WriteBatch::new();
        for key in keys {
            batch.upsert(&keyspace, key, &[7; 200]);
        }
        db.write(batch).unwrap();
    }
    db.checkpoint().unwrap();
    // Merges go on; who asks for all of it hears of it.
    assert!(matches!(db.compact(), Err(Error::Corrupted { .. })));
    assert!(is_damaged(&db, &keyspace));
    let snapshot = db.snapshot();
    for key in &keys {
        assert_eq!(snapshot.get(&keyspace, key).unwrap(), Some(&[7; 200][..]));
    }
    drop(snapshot);
    assert_eq!(db.verify().unwrap().errors.len(), 1);
    // Overwriting it heals the database.
    let mut batch = WriteBatch::new();
    batch.upsert(&keyspace, &victim, b"new");
    db.write(batch).unwrap();
    verified(&db);
}
