//! Putting back what the log has: into write buffers, into the table of keyspaces, and what refers to values in the data file.
//!
//! Invariants are those of `recovery.rs`.

use super::{
    OP_BYTES_EXPECTED, Recovery,
    ahead::{Part, Step},
};
use crate::{
    Result,
    buffer::{BufferWriter, KeyspaceBuffer, Kind},
    catalog::CatalogEntry,
    engine::buffer_error,
    error::Error,
    expiry::EXPIRY_BYTES,
    keyspace::Place,
    node::ValuePointer,
    pager::{Pager, value_extent},
    state::Generation,
    sync::Arc,
    wal::{
        Record,
        ops::{Op, OpsIter},
    },
};

/// Address space for a record, as a multiple of the bytes of memory that it is expected to take: the directory doubles, chains of prefixes take more.
const ROOM_PER_BYTE_EXPECTED: u64 = 3;
/// And for each keyspace in it, as buffers take memory by chunks.
const BUFFER_BYTES_EXPECTED: u64 = 4 << 10;
/// How many operations ahead of the one that is put back the buffer is asked for where its directory has the key, and how many for the entry that
/// it has there: misses overlap, and the second needs what the first brought.
const DIRECTORY_STEPS_AHEAD: usize = 16;
const ENTRY_STEPS_AHEAD: usize = 8;

/// Where operations on a keyspace go.
#[derive(Clone, Copy)]
pub(super) struct Target {
    keyspace: u32,
    slot: u32,
    /// (3) of `recovery.rs`.
    csn_merged: u64,
    expires: bool,
}

impl Target {
    /// An error if a value must begin with the moment of its expiry and is too short for it.
    fn check_value(&self, record: &Record<'_>, bytes: usize) -> Result<()> {
        if self.expires && bytes < EXPIRY_BYTES {
            let what = "a value lacks its moment of expiry";
            return Err(Error::corrupted("log", record.lsn, what));
        }
        Ok(())
    }
}

/// What the log refers to and is not there: the log ends before the record.
pub(super) struct Lost {
    pub lsn: u64,
    pub damage: Error,
}

impl Recovery {
    /// (4): what a record needs that is not there. It need not be if the record was not durable. Steps need nothing.
    fn missing(&self, pager: &Pager, record: &Record<'_>, is_steps: bool) -> Result<Option<Error>> {
        if record.csn > self.csn + 1 {
            let what = format!(
                "commit {} is neither in the log nor in the newest checkpoint; the disk lost a checkpoint that it had confirmed",
                self.csn + 1
            );
            return Ok(Some(Error::corrupted("log", record.lsn, what)));
        }
        if is_steps {
            return Ok(None);
        }
        for op in OpsIter::new(record.payload, record.op_count) {
            let op = op.map_err(|e| Error::corrupted("log", record.lsn, e.what))?;
            if let Op::PutLarge {
                keyspace, pointer, ..
            } = op
                && self.is_news(record, keyspace)
                && let Err(damage) = pager.recheck_value(&ValuePointer::decode(&pointer))
            {
                return Ok(Some(damage));
            }
        }
        Ok(None)
    }

    /// Puts a part of the log back, as far as nothing is missing that it refers to.
    pub(super) fn apply(&mut self, pager: &Pager, part: &Part) -> Result<Option<Lost>> {
        for (record, steps, coming) in part.records() {
            if let Some(damage) = self.missing(pager, &record, steps.is_some())? {
                let lsn = record.lsn;
                return Ok(Some(Lost { lsn, damage }));
            }
            self.begin_record(&record)?;
            match steps {
                Some(steps) => self.put_back(&record, steps, coming)?,
                None => self.apply_ops(pager, &record)?,
            }
        }
        Ok(None)
    }

    /// The generation that takes what comes next.
    pub(super) fn newest(&self) -> &Arc<Generation> {
        &self.generations[0]
    }

    /// Makes room for a record.
    fn begin_record(&mut self, record: &Record<'_>) -> Result<()> {
        self.csn = self.csn.max(record.csn);
        if record.csn > self.tree_csn {
            self.end_trees()?;
        }
        // A transaction may have filled the address space of its generation, and that of a larger buffer than ours: it fits if it does not
        // begin behind others, and has room enough.
        let expected = record.payload.len() as u64 + u64::from(record.op_count) * OP_BYTES_EXPECTED;
        let newest = self.newest();
        let buffers = u64::from(record.op_count).min(self.table.len() as u64);
        let room = ROOM_PER_BYTE_EXPECTED * expected + buffers * BUFFER_BYTES_EXPECTED;
        if newest.is_empty() {
            if room > self.reserve_bytes as u64 {
                let roomy = Generation::with_room(newest.id, &self.pool, room)?;
                self.generations[0] = Arc::new(roomy);
                self.writers.clear();
            }
        } else if newest.bytes_used() + expected > self.buffer_bytes {
            self.begin_generation(room)?;
        }
        Ok(())
    }

    /// Puts the values and tombstones of a record back, the first of those that are coming.
    fn put_back(&mut self, record: &Record<'_>, steps: usize, coming: &[Step]) -> Result<()> {
        for (index, step) in coming[..steps].iter().enumerate() {
            if let Some((buffer, hash)) = self.looked_for(coming, index + DIRECTORY_STEPS_AHEAD) {
                buffer.prefetch_directory(&[hash]);
            }
            if let Some((buffer, hash)) = self.looked_for(coming, index + ENTRY_STEPS_AHEAD) {
                buffer.prefetch_entry(hash);
            }
            let Some(target) = self.target(step.keyspace) else {
                continue;
            };
            let value = step.value(record);
            if step.kind == Kind::Value {
                target.check_value(record, value.len())?;
            }
            self.put(record, target, step.key(record), step.kind, value)?;
        }
        Ok(())
    }

    /// Where a step is going to look, and for what.
    #[inline]
    fn looked_for(&mut self, coming: &[Step], index: usize) -> Option<(&KeyspaceBuffer, u32)> {
        let step = coming.get(index)?;
        let target = self.target(step.keyspace)?;
        let writer = self.writers.get(target.slot as usize)?.as_ref()?;
        Some((writer.buffer(), step.hash))
    }

    /// Where operations on a keyspace go, if there is one with this id: remembered until keyspaces change.
    #[inline]
    fn target(&mut self, keyspace: u32) -> Option<Target> {
        match self.target {
            Some(target) if target.keyspace == keyspace => Some(target),
            _ => {
                let slot = *self.by_id.get(&keyspace)?;
                let state = self.table[slot as usize].as_ref()?;
                self.target = Some(Target {
                    keyspace,
                    slot,
                    csn_merged: state.csn_merged,
                    expires: state.core.expires(),
                });
                self.target
            }
        }
    }

    /// Applies the operations of a record that has others than values and tombstones.
    fn apply_ops(&mut self, pager: &Pager, record: &Record<'_>) -> Result<()> {
        for op in OpsIter::new(record.payload, record.op_count) {
            let op = op.map_err(|e| Error::corrupted("log", record.lsn, e.what))?;
            match op {
                Op::Put { keyspace, .. }
                | Op::Delete { keyspace, .. }
                | Op::PutLarge { keyspace, .. }
                | Op::DeleteRange { keyspace, .. } => {
                    if let Some(target) = self.target(keyspace) {
                        self.apply_to(target, pager, record, op)?;
                    }
                }
                _ => {
                    self.target = None;
                    self.apply_to_catalog(pager, record, op)?;
                }
            }
        }
        Ok(())
    }

    /// (7): what is replayed from here on is in no tree.
    pub(super) fn end_trees(&mut self) -> Result<()> {
        if self.generation_in_trees.is_none() {
            if !self.generations[0].is_empty() {
                self.begin_generation(0)?;
            }
            self.generation_in_trees = Some(self.generations[0].id - 1);
        }
        Ok(())
    }

    pub(super) fn begin_generation(&mut self, room: u64) -> Result<()> {
        let next = Generation::with_room(self.generations[0].id + 1, &self.pool, room)?;
        self.generations.insert(0, Arc::new(next));
        self.writers.clear();
        Ok(())
    }

    /// An operation on the entries of a keyspace.
    fn apply_to(
        &mut self,
        target: Target,
        pager: &Pager,
        record: &Record<'_>,
        op: Op<'_>,
    ) -> Result<()> {
        match op {
            Op::Put { key, value, .. } => {
                target.check_value(record, value.len())?;
                self.put(record, target, key, Kind::Value, value)
            }
            Op::Delete { key, .. } => self.put(record, target, key, Kind::Tombstone, &[]),
            Op::PutLarge { key, pointer, .. } => {
                if record.csn <= target.csn_merged {
                    return Ok(());
                }
                let value = ValuePointer::decode(&pointer);
                if value.subtree().is_some() {
                    return self.put(record, target, key, Kind::Large, &pointer);
                }
                target.check_value(record, value.len as usize)?;
                // Versions that were not durable are forgotten, their births are not: versions go on after them.
                self.tree_version = self.tree_version.max(value.birth);
                pager.hold(value_extent(&value));
                self.values.push((record.end_lsn, value_extent(&value)));
                let mut values = self.generations[0].large_values.lock();
                values.push((target.slot, value));
                drop(values);
                self.put(record, target, key, Kind::Large, &pointer)
            }
            Op::DeleteRange { lo, hi, .. } => {
                if let Some(writer) = self.writer(record, target) {
                    let range = writer.put_back_range_tombstone(lo, hi);
                    writer.stamp_range_tombstone(&range, record.csn);
                }
                Ok(())
            }
            _ => unreachable!("operations on keyspaces as a whole have no target"),
        }
    }

    /// An operation on keyspaces as a whole.
    fn apply_to_catalog(&mut self, pager: &Pager, record: &Record<'_>, op: Op<'_>) -> Result<()> {
        let name_of = |name: &[u8]| {
            String::from_utf8(name.to_vec())
                .map_err(|_| Error::corrupted("log", record.lsn, "a keyspace name is not UTF-8"))
        };
        match op {
            Op::Put { .. } | Op::Delete { .. } | Op::PutLarge { .. } | Op::DeleteRange { .. } => {
                unreachable!("operations on entries have a target")
            }
            Op::CreateKeyspace { id, expiry, name } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if !self.by_id.contains_key(&id) {
                        let place = Place::Named(name_of(name)?.into());
                        self.add_keyspace(CatalogEntry::empty(id, place, expiry))?;
                    }
                }
                Ok(())
            }
            Op::PlaceSubtree { id, parent, key } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    let key = key.into();
                    let place = Place::Subtree { parent, key };
                    match self.by_id.get(&id).copied() {
                        None => self.add_keyspace(CatalogEntry::empty(id, place, None))?,
                        Some(slot) => {
                            if let Some(keyspace) = &mut self.table[slot as usize] {
                                keyspace.core.set_place(place);
                                keyspace.dirty = true;
                            }
                        }
                    }
                }
                Ok(())
            }
            Op::DropKeyspace { id } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if let Some(slot) = self.by_id.remove(&id) {
                        self.drop_keyspace(pager, id, slot)?;
                    }
                }
                Ok(())
            }
            Op::RenameKeyspace { id, name } => {
                if self.is_news_of_catalog(record) {
                    self.tree.catalog_csn = record.csn;
                    if let Some(keyspace) = self
                        .by_id
                        .get(&id)
                        .and_then(|&slot| self.table[slot as usize].as_mut())
                    {
                        keyspace.core.set_place(Place::Named(name_of(name)?.into()));
                        keyspace.dirty = true;
                    }
                }
                Ok(())
            }
        }
    }

    /// Frees the tree of a dropped keyspace.
    fn drop_keyspace(&mut self, pager: &Pager, id: u32, slot: u32) -> Result<()> {
        let keyspace = self.table[slot as usize]
            .take()
            .expect("ids name slots that are taken");
        self.slots_taken = self.slots_taken.min(slot as usize);
        let mut sink = crate::pager::Sink::new(pager, self.tree_version + 1);
        crate::tree::kill_tree(&mut sink, keyspace.root.node)?;
        let mut changes = sink.finish()?;
        self.tree_version += 1;
        pager.publish(self.tree_version, &mut changes);
        for generation in &self.generations {
            let mut values = generation.large_values.lock();
            let (gone, kept) = values.iter().partition(|&&(of, _)| of == slot);
            *values = kept;
            let gone: Vec<(u32, ValuePointer)> = gone;
            let extents: Vec<_> = gone.iter().map(|(_, value)| value_extent(value)).collect();
            pager.abandon(&extents, self.tree_version);
        }
        self.tree.dropped.push(id);
        Ok(())
    }

    /// Whether the catalog does not have the record's changes of keyspaces yet. A record may have several.
    fn is_news_of_catalog(&self, record: &Record<'_>) -> bool {
        record.csn > self.catalog_csn_stored
    }

    /// (3): whether a keyspace exists and its tree does not hold the record yet.
    fn is_news(&self, record: &Record<'_>, keyspace: u32) -> bool {
        let slot = self.by_id.get(&keyspace);
        slot.and_then(|&slot| self.table[slot as usize].as_ref())
            .is_some_and(|k| record.csn > k.csn_merged)
    }

    /// The writer of a keyspace's buffer, for a record that its tree does not have.
    fn writer(&mut self, record: &Record<'_>, target: Target) -> Option<&mut BufferWriter> {
        if record.csn <= target.csn_merged {
            return None;
        }
        let generation = &self.generations[0];
        generation.note_commit(record.csn, record.lsn.max(self.log_start)..record.end_lsn);
        let index = target.slot as usize;
        if self.writers.len() <= index {
            self.writers.resize_with(index + 1, || None);
        }
        Some(self.writers[index].get_or_insert_with(|| {
            let before = self.generations.get(1);
            let before = before.and_then(|generation| generation.buffer(target.slot));
            let expected = before.map_or(0, |buffer| buffer.entries_expected_next());
            let writer = generation.buffer_or_new(target.slot, expected).writer();
            let writer = writer.expect("recovery has the only writer");
            #[expect(unsafe_code, reason = "the database is not open yet")]
            // SAFETY: readers come when recovery is finished; it drops its writers before.
            unsafe {
                writer.for_replay()
            }
        }))
    }

    fn put(
        &mut self,
        record: &Record<'_>,
        target: Target,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
    ) -> Result<()> {
        let reserve = self.reserve_bytes;
        if let Some(writer) = self.writer(record, target) {
            let floor = writer.watermark();
            let (_, outcome) = writer
                .put(key, kind, payload, floor)
                .map_err(|e| buffer_error(e, reserve))?;
            writer.stamp(outcome.version, record.csn);
        }
        Ok(())
    }
}
