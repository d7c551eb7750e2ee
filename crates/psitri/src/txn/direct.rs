//! Direct transactions, and the spill of one that outgrows the buffer.
//!
//! A direct transaction has its own buffer, which is merged into a private tree root when it is full and at the commit.
//! If it never spilled, its commit is logged like any other, so that it costs no flush. If it did, what it wrote is in
//! the tree only, and the commit takes a checkpoint that makes the new roots durable before anybody sees them.
//! What a transaction had written to the shared buffer until its first spill goes from there to the tree, sorted, and not through a private buffer.
//! (What is ingested, and what a large batch writes, goes into the private root at once, but is logged as long as it is little: `ingest.rs`.)

use smallvec::SmallVec;

use super::{LOOK_FIRST_BYTES, Part, Private, WriteTxn, commit::written, run::Run};
use crate::{
    Durability, Result,
    changes::{OwnChanges, union_push},
    error::Failure,
    keyspace::{KeyBounds, Touched, WriterSlot},
    merger::merge_buffer,
    pager::{Changes, Sink, value_extent},
    progress::Watch,
    publication::{KeyspaceChanges, RootUpdate},
    state::Generation,
    sync::{Arc, Ordering},
    tree::{self, KeyRange, Root, Terms},
    wal::ops::OpsBuilder,
};

/// Mark of a keyspace whose writer writes to no shared generation.
pub(crate) const NO_GENERATION: u64 = u64::MAX;

impl WriteTxn {
    /// Takes up writing in a private buffer over the merged tree.
    pub(super) fn enter_private(&mut self) -> Result<()> {
        let engine = Arc::clone(&self.db.engine);
        for part in &mut self.parts {
            part.guard.buffer = None;
            part.guard.generation = 0;
            part.core()
                .generation_open
                .store(NO_GENERATION, Ordering::Release);
        }
        let slots: Vec<u32> = self.parts.iter().map(|part| part.slot).collect();
        engine.drain(&slots)?;
        self.pin_current()?;
        let first = self.parts.first_mut();
        let mut ops =
            first.map_or_else(OpsBuilder::new, |part| std::mem::take(&mut part.guard.ops));
        ops.clear();
        self.private = Some(Box::new(Private {
            generation: Generation::new(NO_GENERATION, &engine.pool)?,
            changes: Changes::default(),
            merged: false,
            ops: Some(ops),
        }));
        (self.bytes, self.look_at_bytes) = (0, LOOK_FIRST_BYTES);
        self.enter_private_buffers();
        Ok(())
    }

    fn enter_private_buffers(&mut self) {
        let private = self.private.as_ref().expect("the transaction is direct");
        for part in &mut self.parts {
            part.guard.buffer = None;
            part.enter(&private.generation);
        }
    }

    /// Makes room: turns a buffered transaction into a direct one, and merges the private buffer. If that fails, some of
    /// what the transaction wrote is in no buffer any more: it is undone and remembers why.
    #[cold]
    pub(super) fn spill(&mut self) -> Result<()> {
        let result = self.try_spill();
        self.undone_by(result)
    }

    /// Passes a result on; an error undoes the transaction.
    pub(super) fn undone_by<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.undo_to(None);
            self.leave();
            self.undone = Some(Box::new(Failure::of(error)));
        }
        result
    }

    fn try_spill(&mut self) -> Result<()> {
        if self.private.is_some() {
            self.forgo_log();
            return self.merge_and_go_on();
        }
        let taken = self.leave_shared()?;
        self.forgo_log();
        self.merge_taken(taken)
    }

    /// Merges what parts had written to the shared buffer into their private roots, and adds it to the operations for the log, if they are kept.
    pub(super) fn merge_taken(&mut self, mut taken: Vec<Taken>) -> Result<()> {
        let ops = taken.iter().map(Taken::ops).sum();
        let bytes = taken.iter().map(Taken::bytes).sum();
        self.look_at_log(ops, bytes);
        let engine = Arc::clone(&self.db.engine);
        let mut sink = Sink::new(&engine.pager, self.birth());
        let mut roots: Vec<Root> = Vec::new();
        let mut adopted = Vec::new();
        for (part, Taken { run, ranges }) in self.parts.iter().zip(&mut taken) {
            run.sort();
            let terms = Terms::at(self.part_now(part));
            let mut changes = run.changes(&mut adopted);
            roots.push(tree::merge(
                &mut sink,
                part.root,
                ranges,
                &mut changes,
                terms,
            )?);
        }
        let changes = sink.finish()?;
        self.set_roots(roots);
        let private = self.private.as_mut().expect("the transaction is direct");
        if let Some(ops) = private.ops.as_mut().filter(|_| engine.log.is_some()) {
            for (part, Taken { mut run, ranges }) in self.parts.iter().zip(taken) {
                for KeyRange { lo, hi } in &ranges {
                    ops.delete_range(part.id, lo, hi.as_deref());
                }
                run.clear(Some(ops));
            }
        }
        self.note_merged(None, changes, &mut adopted);
        Ok(())
    }

    fn set_roots(&mut self, roots: Vec<Root>) {
        for (part, root) in self.parts.iter_mut().zip(roots) {
            part.root = root;
        }
    }

    /// Merges the private buffer into the private roots, and takes a new one.
    pub(super) fn merge_and_go_on(&mut self) -> Result<()> {
        self.merge_private()?;
        let engine = Arc::clone(&self.db.engine);
        let private = self.private.as_mut().expect("the transaction is direct");
        for part in &mut self.parts {
            part.guard.touched.clear();
            part.guard.buffer = None;
        }
        private.generation = Generation::new(NO_GENERATION, &engine.pool)?;
        (self.bytes, self.look_at_bytes) = (0, LOOK_FIRST_BYTES);
        self.enter_private_buffers();
        Ok(())
    }

    /// Adds what is in the private buffer to the operations for the log, if there is one, and they are still kept.
    pub(super) fn keep_ops(&mut self) {
        if self.db.engine.log.is_none() {
            return;
        }
        let private = self.private.as_mut().expect("the transaction is direct");
        if let Some(ops) = &mut private.ops {
            for part in &self.parts {
                part.encode(ops);
            }
        }
    }

    /// Turns from the shared buffer to a private one, and takes out what was written to the former: it has to be empty of that before it can be
    /// merged. What is taken out comes before all that is written from now on.
    pub(super) fn leave_shared(&mut self) -> Result<Vec<Taken>> {
        let steps: usize = (self.parts.iter().map(|part| part.guard.touched.len())).sum();
        let step_bytes = self.bytes as usize / steps.max(1);
        let taken = (self.parts.iter())
            .map(|part| part.take_out(step_bytes))
            .collect();
        let large_values = std::mem::take(&mut self.large_values);
        let owed: SmallVec<[_; 1]> = self.parts.iter_mut().map(|part| part.owed.take()).collect();
        self.undo_to(None);
        if let Err(error) = self.enter_private() {
            let extents: Vec<_> = large_values
                .iter()
                .map(|(_, pointer)| value_extent(pointer))
                .collect();
            self.db.engine.pager.discard(&extents);
            return Err(error);
        }
        self.large_values = large_values;
        for (part, owed) in self.parts.iter_mut().zip(owed) {
            part.owed = owed;
        }
        Ok(taken)
    }

    /// Lower bound of the version that will publish what the transaction writes.
    pub(super) fn birth(&self) -> u64 {
        self.pin.as_ref().map_or(0, |_| self.state().tree_version) + 1
    }

    /// Merges the private buffer into the private roots.
    pub(super) fn merge_private(&mut self) -> Result<()> {
        let engine = &self.db.engine;
        let birth = self.birth();
        let mut roots: Vec<Root> = Vec::new();
        let mut sink = Sink::new(&engine.pager, birth);
        let mut adopted = Vec::new();
        for part in &self.parts {
            let writer = part.guard.buffer.as_ref();
            let writer = writer.expect("an open part has a writer");
            let own = OwnChanges::new(writer.cursor(), &mut adopted);
            let now = self.part_now(part);
            roots.push(merge_buffer(&mut sink, part.root, writer.buffer(), own, now)?.0);
        }
        let changes = sink.finish()?;
        self.set_roots(roots);
        self.note_merged(None, changes, &mut adopted);
        Ok(())
    }

    /// Notes what a merge into private roots wrote, that of one slot or all of them, and frees values of the transaction that were overwritten
    /// before they were merged: those that are not at the addresses in `adopted`.
    pub(super) fn note_merged(
        &mut self,
        only_slot: Option<u32>,
        changes: Changes,
        adopted: &mut [u64],
    ) {
        let birth = self.birth();
        let private = self.private.as_mut().expect("the transaction is direct");
        private.changes.append(changes);
        private
            .changes
            .forget_short_lived(&self.db.engine.pager, birth);
        private.merged = true;
        adopted.sort_unstable();
        let unused: Vec<_> = self
            .large_values
            .extract_if(.., |(slot, _)| only_slot.is_none_or(|only| only == *slot))
            .filter(|(_, pointer)| adopted.binary_search(&pointer.address_units()).is_err())
            .map(|(_, pointer)| value_extent(&pointer))
            .collect();
        self.db.engine.pager.discard(&unused);
    }

    /// Writes parts of the trees anew, without a change of their content but for what has expired. False if there was nothing to rewrite: then the
    /// transaction is as it was. The commit publishes the new roots as those of a transaction that spilled.
    pub(crate) fn rewrite(
        &mut self,
        rewrite: tree::Rewrite,
        watch: &mut Watch<'_, '_>,
    ) -> Result<bool> {
        let engine = Arc::clone(&self.db.engine);
        let birth = self.birth();
        let mut sink = Sink::new(&engine.pager, birth);
        let mut roots: Vec<Root> = Vec::new();
        for part in &self.parts {
            let now = self.part_now(part);
            roots.push(tree::rewrite(&mut sink, part.root, rewrite, now, watch)?);
        }
        let private = self.private.as_mut().expect("the transaction is direct");
        private.changes.append(sink.finish()?);
        let mut changed = false;
        for (part, root) in self.parts.iter_mut().zip(roots) {
            changed |= part.root != root;
            part.root = root;
        }
        if changed {
            (private.merged, private.ops) = (true, None);
        }
        Ok(changed)
    }

    pub(super) fn commit_private(&mut self, durability: Durability) -> Result<()> {
        self.keep_ops();
        self.merge_private()?;
        let private = self.private.as_mut().expect("the transaction is direct");
        let ops = private.ops.take();
        let engine = Arc::clone(&self.db.engine);
        if ops.is_none() && !engine.in_memory {
            // Most of the flush, before others have to wait for it. If it fails, the one that counts fails as well.
            let _ = engine.pager.data_sync.sync();
        }
        let checkpointing =
            (ops.is_none() && !engine.in_memory).then(|| engine.checkpointing.lock());
        let mut tree = engine.tree.lock();
        let mut commits = engine.commits.lock();
        engine.check_writable()?;
        // Commits that still wait for the disk come before this one.
        if !commits.waiting.is_empty() {
            engine.flush_under_lock(&mut commits)?;
        }
        let csn = commits.csn_next;
        let active = engine.states.current().active().id;
        let updates: Vec<RootUpdate> = self
            .parts
            .iter()
            .map(|part| RootUpdate {
                slot: part.slot,
                id: part.id,
                root: Some(part.root),
                // What the active generation holds for the keyspace, if anything, was merged before.
                generation_merged: active.saturating_sub(1),
                generation_in_root: 0,
                csn_merged: csn,
                sliced: None,
            })
            .collect();
        if let (Some(ops), Some(log)) = (&ops, &mut commits.log) {
            log.append(csn, ops.op_count(), ops.payload())
                .map_err(|error| engine.log_failed(error))?;
            engine.note_async(durability);
            if durability.waits() {
                engine.flush_under_lock(&mut commits)?;
            }
        }
        commits.csn_next = csn + 1;
        let changes = std::mem::take(
            &mut self
                .private
                .as_mut()
                .expect("the transaction is direct")
                .changes,
        );
        let none = KeyspaceChanges::none_by(csn);
        let result = if checkpointing.is_some() {
            engine.publish_roots_durably(&mut tree, &mut commits, &updates, &none, changes)
        } else {
            engine.publish_roots(&mut tree, &updates, &none, changes);
            Ok(())
        };
        if result.is_ok() {
            tree.reach.extend(commits.reach());
            engine.visible_csn.store(csn, Ordering::Release);
        } else {
            // Nobody saw the number, and numbers have no gaps. Where it may be on the disk the engine is poisoned, and gives none.
            commits.csn_next = csn;
        }
        drop(commits);
        drop(tree);
        drop(checkpointing);
        for part in &mut self.parts {
            part.guard.touched.clear();
            if result.is_err() {
                part.guard.ends = None;
            }
        }
        self.parts[0].guard.ops = ops.unwrap_or_default();
        self.leave();
        result
    }
}

/// What a part wrote, away from its buffer: the newest version of each key, and the ranges that were deleted before those.
pub(super) struct Taken {
    run: Run,
    ranges: Vec<KeyRange>,
}

impl Taken {
    /// Number of operations that they are in the log.
    fn ops(&self) -> usize {
        self.run.len() + self.ranges.len()
    }

    /// Bytes of them, about.
    fn bytes(&self) -> usize {
        let bounds = |range: &KeyRange| range.lo.len() + range.hi.as_ref().map_or(0, Vec::len);
        self.run.ops_bytes() + self.ranges.iter().map(bounds).sum::<usize>()
    }
}

impl Part {
    /// What the part wrote, in steps of so many bytes on average.
    fn take_out(&self, step_bytes: usize) -> Taken {
        let WriterSlot {
            buffer, touched, ..
        } = &*self.guard;
        let buffer = buffer.as_ref().expect("an open part has a writer");
        let mut run = Run::new(self.id);
        // The buffer has what others wrote to it, too. What this part wrote takes less here than there.
        let arena_bytes = buffer.buffer().stats().bytes as usize;
        run.reserve(touched.len(), step_bytes, arena_bytes);
        let mut deleted: Vec<&KeyBounds> = Vec::new();
        for step in touched.iter() {
            match step {
                Touched::Range(range) => deleted.push(&range.1),
                Touched::Version(entry, version) => {
                    if let Some((key, write)) = written(buffer, *entry, *version) {
                        run.push(key, write);
                    }
                }
            }
        }
        deleted.sort_by(|a, b| a.0.cmp(&b.0));
        let mut ranges = Vec::new();
        for (lo, hi) in deleted {
            union_push(&mut ranges, lo, hi.as_deref());
        }
        Taken { run, ranges }
    }
}
