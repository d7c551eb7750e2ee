//! Checkpoints: making a tree version durable, and letting go of the log that led to it.
//!
//! # Invariants
//! (1) A superblock is written only after everything it refers to was flushed, and the log up to the newest commit of which trees or
//!     catalog have anything: its predecessors, or its other half in another keyspace, may be in the log only. That commit is the superblock's
//!     CSN, or a later one up to which the log was flushed, too: replay must find what comes next without a gap. Where the trees hold all
//!     commits before the first that is replayed, the log is needed only as the place to go on from.
//! (2) Replay starts at the first commit that is in no merged tree; segments before it are recycled only when the
//!     superblock that says so is durable.
//! (3) Every checkpoint has a tree version of its own: what it replaces in the catalog dies with it.
//! (4) One checkpoint runs at a time. Readers and commits go on meanwhile.
//!
//! # Failure modes
//! No space: nothing changes, the next checkpoint tries again. A failed flush or write poisons the engine.

use std::time::Instant;

use crate::{
    Result,
    catalog::{CatalogEntry, CatalogUpdate, update_shares},
    engine::{Commits, Engine, SignalState, TreeState},
    error::{Error, Failure},
    events::Event,
    merger::Retry,
    pager::{Captured, Changes, CheckpointRecord, Sink},
    publication::{KeyspaceChanges, RootUpdate, apply_roots},
    saved::SavedSnapshot,
    state::{Generation, KeyspaceTable, Reach},
    sync::{Arc, MutexGuard, Ordering},
    tree::Root,
    wal::WalShared,
};

/// What of the live bytes a database at rest may keep as free space in the middle of its file.
pub(crate) const KEEP_SHARE: u64 = 128;

/// How often it gives back as many holes as one call makes.
const GIVE_BACK_ROUNDS: usize = 16;

/// What a database that was closed may have to replay: about a hundredth of a second. Until it is merged, counts and lookups pass by it.
pub(crate) const REPLAYED_ENTRIES_MAX: u64 = 10_000;
pub(crate) const REPLAYED_BYTES_MAX: u64 = 8 << 20;
/// More than a full buffer needs: each opening and closing adds one.
pub(crate) const REPLAYED_SEGMENTS_MAX: usize = 24;
/// The active buffer is frozen when its log is longer than so many times `buffer_bytes`.
const LOG_PER_BUFFER_MAX: u64 = 2;

/// How much of the log a checkpoint makes durable with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPart {
    /// What the trees have of it. Flushing the segment in use is dear: it is mapped, and the next commit waits for each of its pages.
    Merged,
    /// All of it.
    Whole,
}

/// What follows a checkpoint.
enum AfterCheckpoint {
    /// The log and the space that it let go of are given back.
    GiveBack,
    /// Another checkpoint. On file systems that discard the blocks of removed files, a flush waits for that: nothing is removed before it.
    Another,
}

/// A checkpoint between capture and superblock.
struct Prepared {
    captured: Captured,
    record: CheckpointRecord,
    catalog_changes: Changes,
    dropped: Vec<u32>,
    saved_changed: Vec<(Arc<SavedSnapshot>, bool)>,
    version: u64,
    /// Catalog and counts of shared nodes of the checkpoint before.
    before: (Root, Root),
    /// Addresses whose counts it stores.
    shares_stored: Vec<u64>,
    /// No commit in the trees lies beyond it in the log.
    log_end: u64,
}

impl Engine {
    /// Takes a checkpoint now.
    pub fn checkpoint(&self, log: LogPart) -> Result<()> {
        self.checkpoint_and(log, AfterCheckpoint::GiveBack)
    }

    fn checkpoint_and(&self, log: LogPart, after: AfterCheckpoint) -> Result<()> {
        if self.in_memory {
            return Ok(());
        }
        let one = self.checkpointing.lock();
        let start = Instant::now();
        let busy = self.counters.checkpointing.begin();
        trace_span!(DEBUG, "checkpoint");
        // Under the lock: after a flush that failed for the one before, another proves nothing.
        self.check_writable()?;
        let prepared = self.take_checkpoint(log).inspect_err(|error| {
            self.note_failure_of(error, |signals| &mut signals.checkpoint_failure);
        })?;
        self.count();
        let result = match after {
            AfterCheckpoint::GiveBack => self.after_checkpoint(&prepared),
            AfterCheckpoint::Another => Ok(()),
        };
        drop(busy);
        drop(one);
        let took = start.elapsed();
        self.tell(|| Event::Checkpoint { took });
        result
    }

    /// Makes a checkpoint durable. The caller holds `checkpointing`.
    fn take_checkpoint(&self, log: LogPart) -> Result<Prepared> {
        let mut tree = self.tree.lock();
        let (version, table) = {
            let state = self.states.current();
            (state.tree_version + 1, Arc::clone(&state.keyspaces))
        };
        let mut prepared = {
            let commits = self.commits.lock();
            self.prepare(&mut tree, &commits, version, &table, log)?
        };
        // (3): readers move on to the version; its roots are those of the state before.
        self.change_layers(|state| {
            state.tree_version = version;
            state.keyspaces = Arc::new(cleaned(&state.keyspaces));
        });
        drop(tree);
        let result = self.write(&mut prepared);
        let mut tree = self.tree.lock();
        if result.is_err() {
            // The catalog nodes stay published: the next checkpoint replaces them like any others. It takes the same slot:
            // the other one holds the only valid superblock.
            tree.checkpoint_generation -= 1;
            tree.dropped.append(&mut prepared.dropped);
            tree.saved_changed.append(&mut prepared.saved_changed);
            self.change_layers(|state| state.keyspaces = Arc::new(soiled(&state.keyspaces)));
        }
        self.reclaim(&mut tree);
        result.map(|()| prepared)
    }

    /// Publishes the roots of a transaction that is not in the log, durable before anybody sees them. The caller holds
    /// `checkpointing` too. On an error nothing is published, and what the transaction wrote is given back. A superblock that may be on the
    /// disk all the same is taken back. If that fails too, the transaction may be there after the next opening: the engine is poisoned, as after
    /// a failed flush.
    pub fn publish_roots_durably(
        &self,
        tree: &mut MutexGuard<'_, TreeState>,
        commits: &mut MutexGuard<'_, Commits>,
        updates: &[RootUpdate],
        keyspaces: &KeyspaceChanges,
        mut changes: Changes,
    ) -> Result<()> {
        let _busy = self.counters.checkpointing.begin();
        let (version, table) = {
            let state = self.states.current();
            let mut next = state.successor();
            apply_roots(&mut next, state.tree_version + 1, updates, keyspaces);
            (next.tree_version, next.keyspaces)
        };
        self.pager.publish(version, &mut changes);
        let prepared = self.prepare(tree, commits, version, &table, LogPart::Whole);
        let result = prepared.and_then(|mut prepared| match self.write(&mut prepared) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                changes.append(std::mem::take(&mut prepared.catalog_changes));
                (tree.catalog, tree.shares) = prepared.before;
                (self.pager.shares).mark_dirty(prepared.shares_stored.drain(..));
                tree.checkpoint_generation -= 1;
                tree.dropped.append(&mut prepared.dropped);
                tree.saved_changed.append(&mut prepared.saved_changed);
                Err(error)
            }
        });
        let prepared = match result {
            Ok(prepared) => prepared,
            Err(error) => {
                if self.pager.is_doubtful(version)
                    && !self.is_poisoned()
                    && let Err(doubt) = self
                        .pager
                        .take_back_superblock(tree.checkpoint_generation + 1)
                {
                    self.poison(&doubt);
                }
                self.pager.unpublish(version, &changes);
                // The superblock may be on disk for all we know: no other tree may have its version, nor die with what
                // was written for it.
                self.change_layers(|state| state.tree_version = version + 1);
                self.reclaim(tree);
                return Err(error);
            }
        };
        self.change_layers(|state| {
            apply_roots(state, version, updates, keyspaces);
            state.keyspaces = Arc::new(cleaned(&state.keyspaces));
        });
        self.reclaim(tree);
        self.count();
        // The commit is done, whatever becomes of the space that it made free: the next checkpoint tries again.
        let _ = self.after_checkpoint(&prepared);
        Ok(())
    }

    /// Writes the catalog and captures the page map as of `version`.
    fn prepare(
        &self,
        tree: &mut MutexGuard<'_, TreeState>,
        commits: &MutexGuard<'_, Commits>,
        version: u64,
        table: &KeyspaceTable,
        log: LogPart,
    ) -> Result<Prepared> {
        let entries: Vec<CatalogEntry> = table
            .iter()
            .flatten()
            .filter(|keyspace| keyspace.dirty)
            .map(|keyspace| CatalogEntry {
                id: keyspace.core.id,
                root: keyspace.root,
                csn_merged: keyspace.csn_merged,
                place: keyspace.core.place(),
                expiry: keyspace.core.expiry,
                aliases: keyspace.aliases.clone(),
            })
            .collect();
        let mut sink = Sink::new(&self.pager, version);
        let before = (tree.catalog, tree.shares);
        let counts = self.pager.shares.take_dirty();
        let shares_stored: Vec<u64> = counts.iter().map(|&(address, _)| address).collect();
        let mut update = CatalogUpdate::default();
        entries.iter().for_each(|entry| update.keyspace(entry));
        tree.dropped.iter().for_each(|&id| update.no_keyspace(id));
        for (saved, exists) in &tree.saved_changed {
            update.saved(saved, *exists);
        }
        let written = update_shares(&mut sink, tree.shares, &counts).and_then(|shares| {
            if shares != tree.shares {
                update.shares(shares);
            }
            let catalog = update.write(&mut sink, tree.catalog)?;
            Ok((catalog, shares, sink.finish()?))
        });
        let (catalog, shares, mut catalog_changes) = written.inspect_err(|_| {
            self.pager.shares.mark_dirty(shares_stored.iter().copied());
        })?;
        self.pager.publish(version, &mut catalog_changes);
        (tree.catalog, tree.shares) = (catalog, shares);
        tree.checkpoint_generation += 1;
        let end = commits.reach();
        let reach = match log {
            LogPart::Merged => self.reach_of_trees(tree.reach),
            LogPart::Whole => end,
        };
        let record = CheckpointRecord {
            generation: tree.checkpoint_generation,
            csn: reach.csn,
            tree_csn: self.tree_csn(table).min(reach.csn),
            catalog: catalog.node,
            catalog_keys: catalog.keys,
            catalog_csn: tree.catalog_csn,
            keyspace_next: tree.keyspace_next,
            wal_start_lsn: self.unmerged_lsn().min(end.lsn),
            wal_durable_lsn: 0,
        };
        let captured = self.pager.capture(version);
        let dropped = std::mem::take(&mut tree.dropped);
        let saved_changed = std::mem::take(&mut tree.saved_changed);
        Ok(Prepared {
            captured,
            record,
            catalog_changes,
            dropped,
            saved_changed,
            version,
            before,
            shares_stored,
            log_end: reach.lsn,
        })
    }

    /// With what was committed to generations that are merged in part: read mode `trie` is to see all of it after an opening.
    fn reach_of_trees(&self, mut reach: Reach) -> Reach {
        let state = self.states.current();
        reach.extend(state.reach(state.generation_in_trees));
        reach
    }

    /// No tree of these keyspaces has anything of a commit after this one. Read mode `trie` sees all commits up to it after an opening. Those
    /// of generations that are merged in part, or not in every keyspace, are among them: a little more than the trees have.
    fn tree_csn(&self, table: &KeyspaceTable) -> u64 {
        let state = self.states.current();
        let merged = table.iter().flatten().map(|keyspace| keyspace.csn_merged);
        let in_trees = |generation: &&Arc<Generation>| generation.id <= state.generation_in_trees;
        let buffered = state
            .generations
            .iter()
            .filter(in_trees)
            .flat_map(|generation| {
                let slots = generation.slots().into_iter();
                slots.filter_map(|slot| {
                    let keyspace = table.get(slot as usize)?.as_ref()?;
                    let buffer = generation.buffer(slot)?;
                    (keyspace.generation_merged < generation.id).then(|| buffer.stats().csn_last)
                })
            });
        merged.chain(buffered).max().unwrap_or(0)
    }

    /// Position in the log of the first commit that is in no merged tree; `u64::MAX` if there is none.
    fn unmerged_lsn(&self) -> u64 {
        let state = self.states.current();
        state
            .generations
            .iter()
            .map(|g| g.first_lsn.load(Ordering::Acquire))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// (1): log, data, superblock.
    fn write(&self, prepared: &mut Prepared) -> Result<()> {
        if let Some(log) = &self.log {
            // Some commits are in the log only (1).
            let start = prepared.record.wal_start_lsn;
            let flushed = if start < prepared.log_end {
                log.flush(prepared.log_end)
            } else {
                log.secure_segment_of(start)
            };
            match flushed.map_err(Error::from) {
                Ok(durable) => prepared.record.wal_durable_lsn = durable,
                Err(error) => {
                    self.pager.cancel_checkpoint();
                    self.poison(&error);
                    return Err(error);
                }
            }
        }
        debug_assert!(prepared.version > 0);
        let result = self
            .pager
            .write_checkpoint(&prepared.captured, &prepared.record);
        if let Err(error) = &result
            && !is_harmless(error)
        {
            self.poison(error);
        }
        result
    }

    /// The superblock is durable.
    fn count(&self) {
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.signals.lock.lock().checkpoint_failure = None;
    }

    /// (2): the superblock is durable.
    fn after_checkpoint(&self, prepared: &Prepared) -> Result<()> {
        let wal_start_lsn = prepared.record.wal_start_lsn;
        self.replay_from.store(wal_start_lsn, Ordering::Relaxed);
        let released = self.log.as_ref().map_or(Ok(()), |log| {
            log.release_below(wal_start_lsn)
                .map_err(|error| self.log_failed(error))
        });
        // What was written since the checkpoint before will be needed again for the next: space that goes back and forth costs more than
        // it is worth.
        released.inspect_err(|error| self.note_give_back_failure(error))?;
        self.give_back(prepared.captured.written_bytes())
    }

    /// Merges everything, takes a checkpoint, and gives all free space back to the file system.
    pub fn checkpoint_fully(&self) -> Result<()> {
        if self.in_memory {
            return self.drain_all();
        }
        self.drain_all()?;
        // The first flush is then one of a new file, and not of all that the segment in use has seen. Without space for another segment, the
        // log stays in the one that it is in.
        if let Some(log) = &self.log
            && let Ok(Some(segment)) = log
                .make_small_segment()
                .map_err(|error| self.log_failed(error))
            && let Some(log) = &mut self.commits.lock().log
        {
            log.go_on_in(segment);
        }
        self.checkpoint_drained()
    }

    /// Two checkpoints, and all free space given back.
    pub fn checkpoint_drained(&self) -> Result<()> {
        self.checkpoint_and(LogPart::Whole, AfterCheckpoint::Another)?;
        // Pages that the first checkpoint replaced are free once a second one is durable.
        self.checkpoint(LogPart::Whole)?;
        let keep = self.pager.space_use()?.reachable_bytes / KEEP_SHARE;
        for _ in 0..GIVE_BACK_ROUNDS {
            if self.pager.give_back(1, keep, keep)? <= keep {
                break;
            }
        }
        if let Some(log) = &self.log {
            log.shrink()?;
        }
        Ok(())
    }

    /// Bytes of log that the next opening would read.
    pub fn kept_bytes(&self, log: &WalShared) -> u64 {
        (log.appended_lsn()).saturating_sub(self.replay_from.load(Ordering::Relaxed))
    }

    /// Bytes of log that a checkpoint could let go of.
    pub fn merged_bytes(&self, log: &WalShared) -> u64 {
        let merged = self.unmerged_lsn().min(log.appended_lsn());
        merged.saturating_sub(self.replay_from.load(Ordering::Relaxed))
    }

    /// Whether the log of the active buffer is so long, compared to what is in it, that it holds the log's space for little: small entries
    /// that are overwritten again and again, or much that other buffers and the trees have by now.
    pub fn is_log_long(&self) -> bool {
        let Some(log) = &self.log else {
            return false;
        };
        let limit = LOG_PER_BUFFER_MAX * self.options.buffer_bytes as u64;
        logged_of(self.states.current().active(), log) >= limit.max(self.options.checkpoint_bytes)
    }

    /// Whether processes that did not live long have left so many segments with so little in each that they are more work for every opening
    /// than what is in them.
    pub fn has_many_short_segments(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let segments = log.live_segments();
            let kept = self.kept_bytes(log);
            let filled = segments as u64 * self.options.wal_segment_bytes / 4;
            segments > REPLAYED_SEGMENTS_MAX && kept < filled
        })
    }

    /// Has merged, beside what comes, what the opening found in the log, unless that is little: reads are faster in the tree. A checkpoint
    /// follows, so that the next opening need not do it again.
    pub fn merge_what_was_replayed(&self) {
        let Some(log) = &self.log else {
            return;
        };
        let state = self.states.current();
        let active = state.active();
        let is_much = entries_of(active) > REPLAYED_ENTRIES_MAX
            || logged_of(active, log) > REPLAYED_BYTES_MAX;
        if is_much || state.generations.len() > 1 {
            let newest = if is_much { active.id } else { active.id - 1 };
            self.replayed.store(newest, Ordering::Relaxed);
        }
        if is_much {
            // Without memory for another buffer the data stay where they are.
            let _ = self.freeze(active.id);
        }
    }

    /// Whether something that the opening replayed is still to be merged, of what is to be merged at once.
    pub fn is_merging_replayed(&self) -> bool {
        let newest = self.replayed.load(Ordering::Relaxed);
        (self.states.current().generations.iter()).any(|generation| generation.id <= newest)
    }

    /// Asks for the checkpoint that is due once what was replayed is merged.
    pub fn checkpoint_what_was_replayed(&self) {
        if self.replayed.load(Ordering::Relaxed) != 0 && !self.is_merging_replayed() {
            self.replayed.store(0, Ordering::Relaxed);
            self.signals.lock.lock().checkpoint_wanted = true;
            self.signals.work.notify_all();
        }
    }

    /// Whether enough was written since the last checkpoint. While a merge has published a part of a generation, twice as much: the whole log of that
    /// would have to be flushed (1), which nobody needs when the merge has ended.
    pub fn is_checkpoint_due(&self) -> bool {
        // Only log that a checkpoint could let go of: what an open transaction holds back would ask for one after another.
        let log_bytes = self.log.as_ref().map_or(0, |log| self.merged_bytes(log));
        let bytes = self.pager.written_bytes().max(log_bytes);
        let limit = self.options.checkpoint_bytes;
        bytes >= 2 * limit
            || (bytes >= limit && !self.is_better_taken_later())
            || self.is_space_due()
    }

    /// Whether a checkpoint would have to flush the log of a generation of which trees have a part. After a failure space may be what is missing.
    fn is_better_taken_later(&self) -> bool {
        let state = self.states.current();
        let reach = state.reach(state.generation_in_trees);
        let log = self.log.as_ref();
        log.is_some_and(|log| log.durable_lsn() < reach.lsn)
            && !self.signals.lock.lock().is_failing()
    }

    /// Remembers why what a checkpoint let go of could not be given back.
    pub fn note_give_back_failure(&self, error: &Error) {
        self.note_failure_of(error, |signals| &mut signals.give_back_failure);
    }

    /// Remembers why a merge failed.
    pub fn note_failure(&self, error: &Error) {
        self.note_failure_of(error, |signals| &mut signals.failure);
    }

    /// Tells of it unless that which failed had failed before. A disk that is full is told once, whatever has no room.
    fn note_failure_of(
        &self,
        error: &Error,
        of: impl Fn(&mut SignalState) -> &mut Option<Failure>,
    ) {
        let failure = Failure::of(error);
        let cause = failure.cause.clone();
        let is_known = {
            let mut signals = self.signals.lock.lock();
            let is_full =
                failure.is_out_of_space && (signals.failures()).any(|other| other.is_out_of_space);
            of(&mut signals).replace(failure).is_some() || is_full
        };
        if !is_known {
            self.tell(|| Event::Failed { cause });
        }
    }

    /// Body of the checkpoint thread.
    pub fn run_checkpoints(&self) {
        let mut clean_at = (0, 0, 0);
        let mut retry = Retry::default();
        loop {
            let (is_asked_for, is_owed) = {
                let mut signals = self.signals.lock.lock();
                if signals.stopping {
                    return;
                }
                self.signals
                    .work
                    .wait_for(&mut signals, std::time::Duration::from_millis(50));
                if signals.stopping {
                    return;
                }
                let is_asked_for = std::mem::take(&mut signals.checkpoint_wanted);
                (is_asked_for, signals.checkpoint_failure.is_some())
            };
            if !is_owed {
                retry = Retry::default();
            }
            if self.check_writable().is_err() {
                continue;
            }
            if !retry.is_due(false) {
                self.signals.lock.lock().checkpoint_wanted |= is_asked_for;
                continue;
            }
            // What an idle database has to store: nothing, if neither tree nor log moved.
            let now = (
                self.counters.merges.load(Ordering::Relaxed),
                self.counters.tidied.load(Ordering::Relaxed),
                self.log.as_ref().map_or(0, |log| log.appended_lsn()),
            );
            let is_wanted = is_owed || is_asked_for && now != clean_at;
            if !is_wanted && !self.is_checkpoint_due() {
                continue;
            }
            let log = if is_wanted {
                LogPart::Whole
            } else {
                LogPart::Merged
            };
            let result = self.checkpoint(log);
            retry.note(&result);
            if is_wanted && self.signals.lock.lock().checkpoint_failure.is_none() {
                clean_at = now;
            }
        }
    }
}

/// Entries in the buffers of a generation.
pub(crate) fn entries_of(generation: &Generation) -> u64 {
    let slots = generation.slots().into_iter();
    let buffers = slots.filter_map(|slot| generation.buffer(slot));
    buffers.map(|buffer| buffer.stats().entries).sum()
}

/// Bytes of log since the first commit of a generation.
pub(crate) fn logged_of(generation: &Generation, log: &WalShared) -> u64 {
    (log.appended_lsn()).saturating_sub(generation.first_lsn.load(Ordering::Acquire))
}

fn cleaned(table: &KeyspaceTable) -> KeyspaceTable {
    let mut table = table.clone();
    table
        .iter_mut()
        .flatten()
        .for_each(|keyspace| keyspace.dirty = false);
    table
}

fn soiled(table: &KeyspaceTable) -> KeyspaceTable {
    let mut table = table.clone();
    table
        .iter_mut()
        .flatten()
        .for_each(|keyspace| keyspace.dirty = true);
    table
}

/// No space for pages: nothing refers to what was written. A flush out of space is as bad as any that failed.
pub(crate) fn is_harmless(error: &Error) -> bool {
    matches!(error, Error::Storage(source) if source.is_out_of_space() && !source.is_failed_flush())
}

#[cfg(test)]
mod tests {
    use crate::{Database, Keyspace, Options, sync::Ordering};
    use std::time::{Duration, Instant};

    const LIMIT: u64 = 2 << 20;

    /// Writes half as much again as a checkpoint is taken for, past the buffer.
    fn write(db: &Database, keyspace: &Keyspace, number: u32) {
        let mut txn = db.begin_direct(&[keyspace]).unwrap();
        for entry in 0..3 * LIMIT as u32 / 2 / 500 {
            let key = [number, entry].map(u32::to_be_bytes).concat();
            txn.upsert(keyspace, &key, &[7; 480]).unwrap();
        }
        txn.commit().unwrap();
    }

    #[test]
    fn a_checkpoint_waits_for_the_end_of_a_merge() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new()
            .checkpoint_bytes(LIMIT)
            .idle_flush(Duration::from_secs(3600));
        let db = options.create(dir.path().join("db")).unwrap();
        let keyspace = db.create_keyspace("ks").unwrap();
        let other = db.create_keyspace("other").unwrap();
        db.checkpoint().unwrap();
        let mut txn = db.begin(&[&other]).unwrap();
        txn.upsert(&other, b"k", b"only in the log").unwrap();
        txn.commit().unwrap();
        let engine = &db.core.engine;
        let taken = || engine.counters.checkpoints.load(Ordering::Relaxed);
        let in_trees = |id| engine.change_layers(|state| state.generation_in_trees = id);
        let wait_for_one_more_than = |before| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while taken() == before {
                assert!(Instant::now() < deadline, "no checkpoint");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let (active, before) = {
            let state = engine.states.current();
            (state.active().id, state.generation_in_trees)
        };

        // As if a merge had published a part of it.
        in_trees(active);
        let start = taken();
        write(&db, &keyspace, 1);
        assert!(engine.pager.written_bytes() >= LIMIT && !engine.is_checkpoint_due());
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(taken(), start, "the log would be flushed for it");
        write(&db, &keyspace, 2);
        wait_for_one_more_than(start);

        in_trees(before);
        let start = taken();
        write(&db, &keyspace, 3);
        wait_for_one_more_than(start);
    }
}
