//! Story: a drive that says it has flushed and has not, once, and then loses power. What was acknowledged may be lost then; no engine can
//! help that. But what comes back is a state that was committed, or the damage is named: never half a transaction, a wrong value, or a panic.
//! `docs/durability.md` says what finds a lie out, and which one could pass.
//!
//! `PSITRI_SEED` replays one story; `PSITRI_LIES` sets how many lies are told at least.
use crate::crash_world::{Client, Oracle, Random, parameter, read_all, small_options_with};
use psitri::{Database, Durability, Error, storage::sim::SimStorage};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Told {
    /// No flush was lied about before the work was done.
    Nothing,
    StateOfBefore,
    Damage,
}

fn story(seed: u64) -> Told {
    let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0x11e);
    let mut oracle = Oracle::new();
    let storage = SimStorage::new(seed);
    let durability = [Durability::None, Durability::Sync][random.below(2) as usize];
    let options = small_options_with(&mut random, durability, &oracle.clock);
    let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
    storage.lie_about_sync(1 + random.below(60));
    let steps = 20 + random.below(100);
    let mut client = Client::new(db.clone(), &storage, &mut oracle, &mut random);
    client.durability = durability;
    client.work(steps);
    if random.one_in(4) {
        db.checkpoint().unwrap();
    }
    if storage.lied_about().is_none() {
        return Told::Nothing;
    }
    storage.crash_now();
    let after = storage.crash(random.next());
    drop(db);
    let context = format!("seed {seed}");
    let found = Database::open_on(Arc::new(after), options).and_then(|db| {
        let found = read_all(&db);
        let report = db.verify()?;
        match report.errors.is_empty() {
            true => found,
            false => Err(Error::Corrupted {
                what: "found by verify".to_owned(),
                file: String::new(),
                offset: 0,
            }),
        }
    });
    match found {
        Ok(content) => {
            oracle.forget_what_is_durable();
            oracle.settle(content, &context);
            Told::StateOfBefore
        }
        Err(Error::Corrupted { .. }) => Told::Damage,
        Err(other) => panic!("{context}: {other}"),
    }
}

#[test]
fn loses_what_it_covered_or_is_found_out() {
    if let Some(seed) = parameter("PSITRI_SEED") {
        story(seed);
        return;
    }
    let wanted = parameter("PSITRI_LIES").unwrap_or(60);
    let (mut states, mut damage) = (0, 0);
    for seed in 0.. {
        match story(seed) {
            Told::Nothing => {}
            Told::StateOfBefore => states += 1,
            Told::Damage => damage += 1,
        }
        if states + damage >= wanted {
            break;
        }
    }
    assert!(states > damage, "{states} states, damage {damage} times");
    println!("{states} states of before, damage {damage} times");
}

/// A transaction that outgrew the buffer is in no log: a checkpoint holds it. If the drive lost the superblock of that, the commits after it
/// are in the log, and must not be shown without it.
#[test]
fn a_commit_that_only_a_lost_checkpoint_held_takes_later_ones_with_it() {
    let (mut whole, mut lost, mut damage) = (0, 0, 0);
    for nth in 1..=12 {
        for seed in 0..6 {
            let storage = SimStorage::new(seed);
            storage.set_early_write_back(false);
            let options = || {
                psitri::Options::new()
                    .buffer_bytes(256 << 10)
                    .wal_segment_bytes(64 << 10)
                    .checkpoint_bytes(64 << 20)
                    .idle_flush(std::time::Duration::from_secs(3600))
            };
            let db = Database::open_on(Arc::new(storage.clone()), options()).unwrap();
            let ks = db.create_keyspace("k").unwrap();
            db.flush().unwrap();
            storage.lie_about_sync(nth);
            let mut txn = db.begin_direct(&[&ks]).unwrap();
            for key in 0..200u8 {
                txn.upsert(&ks, &[b'l', key], &[key; 4000]).unwrap();
            }
            txn.commit().unwrap();
            let mut txn = db.begin(&[&ks]).unwrap();
            txn.upsert(&ks, b"after", b"1").unwrap();
            txn.commit_with(Durability::Sync).unwrap();
            storage.crash_now();
            let after = storage.crash(seed);
            drop(db);
            let db = match Database::open_on(Arc::new(after), options()) {
                Ok(db) => db,
                Err(Error::Corrupted { .. }) => {
                    damage += 1;
                    continue;
                }
                Err(other) => panic!("flush {nth}, seed {seed}: {other}"),
            };
            let found = db.open_keyspace("k").and_then(|ks| {
                let large = db.snapshot().count(&ks, &b"l"[..]..&b"m"[..])?;
                Ok((large, db.get(&ks, b"after")?.is_some()))
            });
            match found {
                Ok((200, _)) => whole += 1,
                Ok((0, false)) | Err(Error::KeyspaceNotFound { .. }) => lost += 1,
                Err(Error::Corrupted { .. }) => damage += 1,
                other => panic!("flush {nth}, seed {seed}: {other:?}"),
            }
        }
    }
    assert!(whole > 0 && lost + damage > 0, "{whole} {lost} {damage}");
    println!("{whole} times whole, {lost} times lost, {damage} times damage");
}
