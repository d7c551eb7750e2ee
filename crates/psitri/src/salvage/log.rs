//! Applying the log to the new database.
//!
//! Each record becomes a transaction, so that what is applied is a prefix of the commits. Operations of a keyspace up to its merged CSN are in
//! its tree and are skipped, as at an opening. What a commit puts or deletes goes out of the keyspace with possibly old entries.

use std::{borrow::Cow, collections::BTreeMap};

use super::{Job, Replay, SalvagePhase, SalvagedFrom, SalvagedKeyspace, Written};
use crate::{
    Expiry, Keyspace, Result, WriteTxn,
    error::Error,
    expiry::EXPIRY_BYTES,
    node::ValuePointer,
    storage::Storage,
    wal::{
        self, Record, WalError,
        ops::{Op, OpsIter},
    },
};

const PROGRESS_RECORDS: u64 = 1024;

/// An operation on an entry, with its large value read.
enum Change<'r> {
    Put(u32, &'r [u8], Cow<'r, [u8]>),
    Delete(u32, &'r [u8]),
    DeleteRange(u32, &'r [u8], Option<&'r [u8]>),
}

impl Change<'_> {
    fn id(&self) -> u32 {
        match self {
            Change::Put(id, ..) | Change::Delete(id, _) | Change::DeleteRange(id, ..) => *id,
        }
    }
}

impl Job<'_, '_> {
    /// Step 5.
    pub(super) fn apply_log(&mut self, storage: &dyn Storage, mut replay: Replay) -> Result<()> {
        let past_damage = self.options.past_damage;
        let mut records = 0;
        let log = wal::salvage(
            storage,
            replay.from_lsn,
            replay.durable_lsn,
            past_damage,
            |record| {
                records += 1;
                if records % PROGRESS_RECORDS == 0 {
                    self.options.report(SalvagePhase::Log, records, 0);
                }
                self.apply(&record, &mut replay)
                    .map_err(|error| WalError::Visitor(Box::new(error)))
            },
        )?;
        self.options.report(SalvagePhase::Log, records, records);
        let told = &mut self.report.log;
        told.commits = log.visited;
        told.commits_passed_by = log.passed_by;
        let places = log.damage.iter();
        told.damage.extend(
            places
                .map(|damage| format!("{}, byte {}: {}", damage.file, damage.offset, damage.what)),
        );
        Ok(())
    }

    /// Applies a record, all of it or nothing. False if it, or a value that it refers to, cannot be read.
    fn apply(&mut self, record: &Record<'_>, replay: &mut Replay) -> Result<bool> {
        // Numbers have no gaps: what was between was in a checkpoint that is lost.
        if let Some(csn) = replay.csn.filter(|csn| record.csn > csn + 1) {
            let what = format!("commits {} to {} are nowhere", csn + 1, record.csn - 1);
            self.report.log.damage.push(what);
            if !self.options.past_damage {
                return Ok(false);
            }
        }
        let mut changes = Vec::new();
        let mut others = Vec::new();
        let mut values_lost = 0;
        for op in OpsIter::new(record.payload, record.op_count) {
            let Ok(op) = op else { return Ok(false) };
            match op {
                Op::Put {
                    keyspace,
                    key,
                    value,
                } if self.is_news(record, keyspace, replay)? => {
                    changes.push(Change::Put(keyspace, key, value.into()));
                }
                Op::PutLarge {
                    keyspace,
                    key,
                    pointer,
                } if self.is_news(record, keyspace, replay)?
                    && ValuePointer::decode(&pointer).subtree().is_none() =>
                {
                    match self.file.value(&ValuePointer::decode(&pointer)) {
                        Ok(value) => changes.push(Change::Put(keyspace, key, value.into())),
                        Err(_) if self.options.past_damage => {
                            values_lost += 1;
                            changes.push(Change::Delete(keyspace, key));
                        }
                        Err(what) => {
                            // Behind the last record nothing else tells of it.
                            let offset = ValuePointer::decode(&pointer).byte_offset();
                            self.report.log.damage.push(format!(
                                "data, byte {offset}: a value of commit {} cannot be read: {what}",
                                record.csn
                            ));
                            return Ok(false);
                        }
                    }
                }
                Op::Delete { keyspace, key } if self.is_news(record, keyspace, replay)? => {
                    changes.push(Change::Delete(keyspace, key));
                }
                Op::DeleteRange { keyspace, lo, hi }
                    if self.is_news(record, keyspace, replay)? =>
                {
                    changes.push(Change::DeleteRange(keyspace, lo, hi));
                }
                Op::CreateKeyspace { .. }
                | Op::DropKeyspace { .. }
                | Op::RenameKeyspace { .. }
                | Op::PlaceSubtree { .. } => others.push(op),
                // Of the past, or the place of a subtree.
                Op::Put { .. }
                | Op::PutLarge { .. }
                | Op::Delete { .. }
                | Op::DeleteRange { .. } => {}
            }
        }
        self.write(&changes)?;
        for op in others {
            if record.csn > replay.catalog_csn {
                self.change_catalog(op)?;
            }
        }
        self.report.log.values_lost += values_lost;
        replay.csn = replay.csn.map(|csn| csn.max(record.csn));
        Ok(true)
    }

    /// Whether the tree of a keyspace does not hold a record yet. A keyspace that nothing tells of is made, unless it must have been dropped.
    fn is_news(&mut self, record: &Record<'_>, id: u32, replay: &Replay) -> Result<bool> {
        if let Some(written) = self.ids.get(&id) {
            return Ok(record.csn > written.csn_merged);
        }
        if !replay.knows_all {
            let name = format!("unnamed-{id}");
            self.add_keyspace(id, &name, None, SalvagedFrom::LogWithoutName)?;
        }
        Ok(!replay.knows_all)
    }

    fn add_keyspace(
        &mut self,
        id: u32,
        name: &str,
        expiry: Option<u64>,
        from: SalvagedFrom,
    ) -> Result<()> {
        let keyspace = self.create_keyspace(name, expiry)?;
        let index = self.report.keyspaces.len();
        self.report.keyspaces.push(SalvagedKeyspace {
            name: keyspace.name(),
            id: Some(id),
            from,
            keys: 0,
            lost: Vec::new(),
            values_lost: Vec::new(),
            possibly_old_in: None,
            possibly_old: 0,
            was_subtree: false,
        });
        let written = Written {
            keyspace,
            index,
            csn_merged: 0,
            possibly_old: None,
        };
        self.ids.insert(id, written);
        Ok(())
    }

    fn change_catalog(&mut self, op: Op<'_>) -> Result<()> {
        match op {
            Op::CreateKeyspace { id, name, expiry } if !self.ids.contains_key(&id) => self
                .add_keyspace(
                    id,
                    &String::from_utf8_lossy(name),
                    expiry,
                    SalvagedFrom::Log,
                ),
            Op::PlaceSubtree { id, .. } if !self.ids.contains_key(&id) => {
                self.add_keyspace(id, &format!("subtree-{id}"), None, SalvagedFrom::Log)?;
                let index = self.ids[&id].index;
                self.report.keyspaces[index].was_subtree = true;
                Ok(())
            }
            Op::DropKeyspace { id } => {
                let Some(Written {
                    keyspace,
                    index,
                    possibly_old,
                    ..
                }) = self.ids.remove(&id)
                else {
                    return Ok(());
                };
                self.target.drop_keyspace(&keyspace.name())?;
                if let Some(possibly_old) = possibly_old {
                    self.target.drop_keyspace(&possibly_old.name())?;
                }
                self.report.keyspaces.remove(index);
                for written in self.ids.values_mut() {
                    written.index -= usize::from(written.index > index);
                }
                Ok(())
            }
            Op::RenameKeyspace { id, name } => {
                let Some(Written {
                    keyspace, index, ..
                }) = self.ids.get(&id)
                else {
                    return Ok(());
                };
                let name = String::from_utf8_lossy(name);
                // Under a name that is taken it keeps the one it has.
                match self.target.rename_keyspace(&keyspace.name(), &name) {
                    Err(Error::KeyspaceExists { .. } | Error::KeyspaceName { .. }) => {}
                    other => other?,
                }
                self.report.keyspaces[*index].name = keyspace.name();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn write(&self, changes: &[Change<'_>]) -> Result<()> {
        let mut parts: BTreeMap<u32, &Written> = BTreeMap::new();
        for change in changes {
            parts.entry(change.id()).or_insert(&self.ids[&change.id()]);
        }
        if parts.is_empty() {
            return Ok(());
        }
        let keyspaces: Vec<&Keyspace> = parts
            .values()
            .flat_map(|part| std::iter::once(&part.keyspace).chain(&part.possibly_old))
            .collect();
        let mut txn = self.target.begin(&keyspaces)?;
        // A range delete takes effect before the operations on keys of its record.
        for change in changes {
            if let Change::DeleteRange(id, lo, hi) = change {
                let part = parts[id];
                txn.remove_range(&part.keyspace, lo, *hi)?;
                if let Some(possibly_old) = &part.possibly_old {
                    txn.remove_range(possibly_old, lo, *hi)?;
                }
            }
        }
        for change in changes {
            let part = parts[&change.id()];
            match change {
                Change::Put(_, key, value) => {
                    if part.keyspace.core.expires() {
                        let Some((moment, value)) = value.split_first_chunk::<EXPIRY_BYTES>()
                        else {
                            return Err(Error::corrupted(
                                "log",
                                0,
                                "a value lacks its moment of expiry",
                            ));
                        };
                        let expiry = Expiry::from_stored(u64::from_le_bytes(*moment));
                        txn.upsert_expiring(&part.keyspace, key, value, expiry)?;
                    } else {
                        txn.upsert(&part.keyspace, key, value)?;
                    }
                    forget(&mut txn, part, key)?;
                }
                Change::Delete(_, key) => {
                    txn.remove(&part.keyspace, key)?;
                    forget(&mut txn, part, key)?;
                }
                Change::DeleteRange(..) => {}
            }
        }
        txn.commit()
    }
}

fn forget(txn: &mut WriteTxn, part: &Written, key: &[u8]) -> Result<()> {
    if let Some(possibly_old) = &part.possibly_old {
        txn.remove(possibly_old, key)?;
    }
    Ok(())
}
