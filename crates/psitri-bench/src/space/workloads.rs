//! What is done to the databases whose size is watched.
use super::{Kind, Space};
use crate::{
    bank::transfers,
    clock::Clock,
    engine::Engine,
    engines::psitri::Psitri,
    keys,
    names::{self, Name},
    progress::Progress,
    values::{ValueKind, Values},
};
use anyhow::{Result, ensure};
use psitri::{Database, Keyspace};
use std::sync::atomic::AtomicU64;

const ACCOUNTS: u64 = 1_000_000;
const ATTEMPTS: u64 = 10_000_000;
const BALANCE: u64 = 1_000_000;
const OVERWRITE_ITEMS: u64 = 5_000_000;
const OVERWRITE_ROUNDS: u64 = 20;
const DELETE_ITEMS: u64 = 10_000_000;
const VALUE_BYTES: usize = 100;
const KEYSPACES: u64 = 1_000;
const KEYSPACE_ITEMS: u64 = 5_000;
/// Entries in one transaction.
const BATCH: u64 = 100;
/// What is written of each size of value, but at least one value.
const VALUES_BYTES: u64 = 256 << 20;
const VALUE_SIZES: [u64; 4] = [256, 4 << 10, 1 << 20, 1 << 30];

/// Keys in no order: those of neighbouring numbers are far apart.
fn key(number: u64) -> [u8; 8] {
    keys::hash(number).to_be_bytes()
}

/// A size in its largest whole unit.
fn words(bytes: u64) -> String {
    match bytes {
        bytes if bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Writes values for the numbers of a range in batches; those of a `round` differ from those of others.
fn write(
    database: &Database,
    keyspace: &Keyspace,
    values: &Values,
    numbers: impl Iterator<Item = u64>,
    round: u64,
) -> Result<u64> {
    let mut numbers = numbers.peekable();
    let mut written = 0;
    while numbers.peek().is_some() {
        let mut transaction = database.begin(&[keyspace])?;
        for number in numbers.by_ref().take(BATCH as usize) {
            transaction.upsert(keyspace, &key(number), values.at(number + round))?;
            written += 1;
        }
        transaction.commit()?;
    }
    Ok(written)
}

impl Space<'_> {
    fn load_bank(&mut self) -> Result<(Psitri, Vec<Name>)> {
        let names = names::names(
            self.config.scaled(ACCOUNTS).max(2) as usize,
            self.config.seed,
        );
        let engine = self.create()?;
        let balance = BALANCE.to_le_bytes();
        self.phase(engine.database(), "load", |_| {
            engine.bulk_load(names.iter().map(|name| (name.as_bytes(), &balance[..])))?;
            Ok(names.len() as u64)
        })?;
        Ok((engine, names))
    }

    fn transfers(&mut self, engine: &Psitri, names: &[Name]) -> Result<()> {
        let plan = transfers::Plan {
            names,
            attempts: self.config.scaled(ATTEMPTS),
            seed: self.config.seed,
            amount_max: BALANCE,
            sequence_start: 0,
            batch_size: 1,
            sync_every: 0,
            announce: 1,
        };
        let clock = Clock::new();
        let progress = Progress::new("transfers", plan.attempts);
        self.phase(engine.database(), "transfers", |remarks| {
            let outcome = transfers::run(engine, &plan, &clock, &progress, &AtomicU64::new(0))?;
            remarks.push(format!("{} transfers", outcome.successes));
            Ok(plan.attempts)
        })?;
        Ok(())
    }

    pub(super) fn bank(&mut self) -> Result<()> {
        let (engine, names) = self.load_bank()?;
        self.transfers(&engine, &names)?;
        self.settle(engine.database())
    }

    /// The bank beside a snapshot. The file may grow by what the snapshot sees, and by no more.
    pub(super) fn reader(&mut self) -> Result<()> {
        debug_assert_eq!(self.kind, Kind::Reader);
        let (engine, names) = self.load_bank()?;
        let database = engine.database();
        database.checkpoint()?;
        let seen = database.stats()?.reachable_bytes;
        let snapshot = database.snapshot();
        self.transfers(&engine, &names)?;
        let row = self.phase(database, "checkpoint, held", |remarks| {
            database.checkpoint()?;
            let stats = database.stats()?;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            remarks.push(format!(
                "the snapshot sees {:.1} MiB; {:.1} MiB are dead and held; the file is {:.1} MiB larger than what is reachable",
                mib(seen),
                mib(stats.pending_bytes),
                mib(stats.file_bytes.saturating_sub(stats.reachable_bytes)),
            ));
            Ok(1)
        })?;
        let end = row.end;
        let allowed = end.reachable_bytes + end.reachable_bytes / 4 + seen;
        if end.data_bytes > allowed {
            self.failures.push(format!(
                "the file has {} bytes, and {allowed} with all that the snapshot sees",
                end.data_bytes
            ));
        }
        let mut snapshot = Some(snapshot);
        self.phase(database, "checkpoint, released", |_| {
            drop(snapshot.take());
            database.checkpoint()?;
            Ok(1)
        })?;
        self.settle(database)
    }

    pub(super) fn overwrite(&mut self) -> Result<()> {
        let engine = self.create()?;
        let (database, keyspace) = (engine.database(), engine.keyspace());
        let items = self.config.scaled(OVERWRITE_ITEMS);
        let values = Values::new(ValueKind::Incompressible, VALUE_BYTES);
        let seed = self.config.seed;
        self.phase(database, "load", |_| {
            write(database, keyspace, &values, 0..items, 0)
        })?;
        self.phase(database, "overwrite", |_| {
            let mut written = 0;
            for round in 1..=OVERWRITE_ROUNDS {
                let draw = |position| {
                    let draw = keys::hash(seed ^ (round << 40 | position));
                    keys::below(draw, items)
                };
                written += write(database, keyspace, &values, (0..items).map(draw), round)?;
            }
            Ok(written)
        })?;
        self.settle(database)
    }

    pub(super) fn delete(&mut self) -> Result<()> {
        let engine = self.create()?;
        let (database, keyspace) = (engine.database(), engine.keyspace());
        let items = self.config.scaled(DELETE_ITEMS);
        let values = Values::new(ValueKind::Incompressible, VALUE_BYTES);
        self.phase(database, "load", |_| {
            write(database, keyspace, &values, 0..items, 0)
        })?;
        let is_kept = |number: u64| number.is_multiple_of(10);
        self.phase(database, "delete", |_| {
            let mut gone = (0..items).filter(|&number| !is_kept(number)).peekable();
            let mut removed = 0;
            while gone.peek().is_some() {
                let mut transaction = database.begin(&[keyspace])?;
                for number in gone.by_ref().take(BATCH as usize) {
                    removed += u64::from(transaction.remove(keyspace, &key(number))?);
                }
                transaction.commit()?;
            }
            Ok(removed)
        })?;
        self.settle(database)?;
        let kept = database.snapshot().count(keyspace, ..)?;
        ensure!(
            kept == items.div_ceil(10),
            "{kept} keys are left of {items}"
        );
        Ok(())
    }

    pub(super) fn drop_keyspaces(&mut self) -> Result<()> {
        let engine = self.create()?;
        let database = engine.database();
        let items = self.config.scaled(KEYSPACE_ITEMS);
        let values = Values::new(ValueKind::Incompressible, VALUE_BYTES);
        let names: Vec<String> = (0..KEYSPACES).map(|number| format!("k{number}")).collect();
        self.phase(database, "load", |_| {
            let keyspaces = names.iter().map(|name| database.keyspace(name));
            let keyspaces: Vec<Keyspace> = keyspaces.collect::<Result<_, _>>()?;
            let mut written = 0;
            // All grow side by side, as they do in use.
            for start in (0..items).step_by(BATCH as usize) {
                for keyspace in &keyspaces {
                    let numbers = start..items.min(start + BATCH);
                    written += write(database, keyspace, &values, numbers, 0)?;
                }
            }
            Ok(written)
        })?;
        self.phase(database, "drop", |_| {
            let mut dropped = 0;
            for name in names.iter().skip(1).step_by(2) {
                database.drop_keyspace(name)?;
                dropped += 1;
            }
            Ok(dropped)
        })?;
        self.settle(database)
    }

    pub(super) fn values(&mut self) -> Result<()> {
        let engine = self.create()?;
        let (database, keyspace) = (engine.database(), engine.keyspace());
        for bytes in VALUE_SIZES {
            // A smoke run has smaller large values, too.
            let bytes = bytes.min(self.config.scaled(1 << 30).max(256));
            let label = words(bytes);
            let count = (self.config.scaled(VALUES_BYTES) / bytes).max(1);
            let values = Values::new(ValueKind::Incompressible, bytes as usize);
            for (round, what) in ["write", "overwrite"].into_iter().enumerate() {
                self.phase(database, &format!("{label}: {what}"), |_| {
                    // One value a transaction: large ones are what they are about.
                    for number in 0..count {
                        let mut transaction = database.begin(&[keyspace])?;
                        let value = values.at(number + round as u64);
                        transaction.upsert(keyspace, &key(number), value)?;
                        transaction.commit()?;
                    }
                    database.checkpoint()?;
                    Ok(count)
                })?;
            }
            self.phase(database, &format!("{label}: read"), |_| {
                let snapshot = database.snapshot();
                for number in 0..count {
                    let value = snapshot.get(keyspace, &key(number))?;
                    ensure!(
                        value.is_some_and(|value| value == values.at(number + 1)),
                        "value {number} of {bytes} bytes is not what was written"
                    );
                }
                Ok(count)
            })?;
            self.phase(database, &format!("{label}: remove"), |_| {
                for number in 0..count {
                    let mut transaction = database.begin(&[keyspace])?;
                    transaction.remove(keyspace, &key(number))?;
                    transaction.commit()?;
                }
                database.checkpoint()?;
                Ok(count)
            })?;
            let left = self.rows.last().expect("a phase").end;
            // Superblocks, page map, and what the file keeps at least.
            if left.data_bytes > 4 << 20 {
                self.failures.push(format!(
                    "{label}: {} bytes stay in the file when all values are removed",
                    left.data_bytes
                ));
            }
        }
        self.settle(database)
    }
}
