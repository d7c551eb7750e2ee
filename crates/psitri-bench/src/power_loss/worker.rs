//! The process that commits until its file system is gone.
use super::{
    model::{Model, Step, steps},
    options,
};
use anyhow::{Result, ensure};
use psitri::{Database, Durability, Keyspace};
use std::{io::Write, ops::ControlFlow, path::Path};

const KEYSPACES: [&str; 2] = ["left", "right"];
const META: &str = "meta";
const COUNT_KEY: &[u8] = b"transactions";

fn open_keyspaces(db: &Database) -> Result<[Keyspace; 2]> {
    Ok([db.keyspace(KEYSPACES[0])?, db.keyspace(KEYSPACES[1])?])
}

/// Number of transactions that a database has seen.
pub fn transactions(db: &Database) -> Result<u64> {
    let count = db.get(&db.keyspace(META)?, COUNT_KEY)?;
    Ok(count
        .map_or(Ok([0; 8]), |count| count[..].try_into())
        .map(u64::from_le_bytes)?)
}

pub fn run(database: &Path, durability: Durability, seed: u64) -> Result<bool> {
    let db = options(durability).open(database)?;
    let keyspaces = open_keyspaces(&db)?;
    let meta = db.keyspace(META)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut out = std::io::stdout().lock();
    let mut number = transactions(&db)?;
    loop {
        number += 1;
        let parts = [&keyspaces[0], &keyspaces[1], &meta];
        let is_direct = number.is_multiple_of(700);
        let mut txn = if is_direct {
            db.begin_direct(&parts)?
        } else {
            db.begin(&parts)?
        };
        for step in steps(number) {
            match step {
                Step::Put {
                    keyspace,
                    key,
                    value,
                } => txn.upsert(&keyspaces[keyspace], &key, &value)?,
                Step::Remove { keyspace, key } => drop(txn.remove(&keyspaces[keyspace], &key)?),
                Step::RemoveRange { keyspace, lo, hi } => {
                    txn.remove_range(&keyspaces[keyspace], &lo, Some(&hi))?;
                }
            }
        }
        txn.upsert(&meta, COUNT_KEY, &number.to_le_bytes())?;
        txn.commit()?;
        writeln!(out, "{number}.")?;
        out.flush()?;
        if random.u32(..3_000) == 0 {
            db.checkpoint()?;
        }
    }
}

/// Whether a database has what the model has, and nothing else.
pub fn compare(db: &Database, model: &Model) -> Result<()> {
    // Those that did not come back are made anew, before the snapshot.
    let keyspaces = open_keyspaces(db)?;
    let snapshot = db.snapshot();
    for (keyspace, expected) in keyspaces.iter().zip(&model.keyspaces) {
        let mut wanted = expected.iter();
        let mut is_same = true;
        snapshot.for_each(keyspace, .., |key, value| {
            is_same = wanted.next().is_some_and(|(k, v)| k == key && v == value);
            if is_same {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        ensure!(
            is_same && wanted.next().is_none(),
            "keyspace {} has another content than was committed",
            keyspace.name()
        );
    }
    Ok(())
}
