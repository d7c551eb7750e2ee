//! The background merge: frozen buffers into the tree.
//!
//! # Thread safety
//! One thread runs [`run`]; it may spread the keyspaces of a generation over helpers. Transactions that spill and direct
//! transactions use [`merge_buffer`] in their own thread, for keyspaces whose write lock they hold.
//!
//! # Invariants
//! (1) Generations are merged oldest first, in each keyspace.
//! (2) A keyspace's buffer is merged only when no open transaction can write to it, and when all its commits are visible.
//! (3) A merge that fails publishes nothing, gives its pages back and is tried again.
//! (4) A direct transaction owns the roots of its keyspaces: when it begins, only empty buffers of theirs are left, and the
//!     merge of an empty buffer does not touch the root.

use std::time::{Duration, Instant};

use crate::{
    Result,
    buffer::{BufferCursor, Found, KeyspaceBuffer},
    engine::{Engine, RootUpdate, drop_finished, is_finished},
    error::Error,
    layers::CSN_NEWEST,
    node::ValuePointer,
    pager::{Changes, Sink, value_extent},
    state::{Generation, State},
    sync::{Arc, Ordering},
    tree::{self, Change, ChangeStream, KeyRange, Root},
};

/// How often the thread looks for an idle buffer.
const TICK: Duration = Duration::from_millis(50);
/// The same while states that nobody may need any more are not freed yet.
const TICK_RETIRED: Duration = Duration::from_millis(5);
/// Pause after a merge that failed.
const RETRY: Duration = Duration::from_millis(100);

/// The resolved entries of one buffer, in key order.
pub(crate) struct OwnChanges<'a, 'l> {
    cursor: BufferCursor<'a>,
    csn: u64,
    current: Option<Change<'a>>,
    /// Addresses of the out-of-line values that the tree takes over.
    adopted: &'l mut Vec<u64>,
    count: u64,
}

impl<'a, 'l> OwnChanges<'a, 'l> {
    /// All versions, uncommitted ones too: for the transaction that wrote them.
    pub fn new(cursor: BufferCursor<'a>, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, u64::MAX, adopted)
    }

    /// All committed versions.
    pub fn committed(cursor: BufferCursor<'a>, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        OwnChanges::at(cursor, CSN_NEWEST, adopted)
    }

    fn at(mut cursor: BufferCursor<'a>, csn: u64, adopted: &'l mut Vec<u64>) -> OwnChanges<'a, 'l> {
        let positioned = cursor.first();
        let mut changes = OwnChanges {
            cursor,
            csn,
            current: None,
            adopted,
            count: 0,
        };
        if positioned {
            changes.settle();
        }
        changes
    }

    /// Moves on to the first entry, from the present one, that says something.
    fn settle(&mut self) {
        loop {
            let change = match self.cursor.resolve(self.csn) {
                Found::Absent => None,
                Found::Deleted => Some(Change::Delete),
                Found::Value(value) => Some(Change::Put(value)),
                Found::Large(pointer) => Some(Change::Adopt(ValuePointer::decode(pointer))),
            };
            if change.is_some() {
                self.current = change;
                self.count += 1;
                return;
            }
            if !self.cursor.next() {
                self.current = None;
                return;
            }
        }
    }
}

impl ChangeStream for OwnChanges<'_, '_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.is_some().then(|| self.cursor.key())
    }

    #[inline]
    fn change(&self) -> Change<'_> {
        self.current.expect("called only while there is a key")
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Some(Change::Adopt(pointer)) = self.current {
            self.adopted.push(pointer.address_units);
        }
        self.current = None;
        if self.cursor.next() {
            self.settle();
        }
        Ok(())
    }
}

/// Merges one buffer into a tree.
pub(crate) fn merge_buffer(
    sink: &mut Sink<'_>,
    root: Root,
    buffer: &KeyspaceBuffer,
    mut changes: OwnChanges<'_, '_>,
) -> Result<(Root, u64)> {
    let ranges = flatten(buffer, changes.csn);
    let root = tree::merge(sink, root, &ranges, &mut changes)?;
    Ok((root, changes.count))
}

/// The union of a buffer's range deletes, as disjoint ascending ranges.
pub(crate) fn flatten(buffer: &KeyspaceBuffer, csn: u64) -> Vec<KeyRange> {
    let mut union: Vec<KeyRange> = Vec::new();
    if !buffer.has_range_tombstones() {
        return union;
    }
    for tombstone in buffer.range_tombstones(csn) {
        union_push(&mut union, tombstone.lo(), tombstone.hi());
    }
    union
}

/// Adds a range whose `lo` is not less than that of any range before it.
pub(crate) fn union_push(union: &mut Vec<KeyRange>, lo: &[u8], hi: Option<&[u8]>) {
    match union.last_mut() {
        Some(last) if last.hi.as_deref().is_none_or(|end| end >= lo) => {
            let ends_later = match (last.hi.as_deref(), hi) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(end), Some(hi)) => hi > end,
            };
            if ends_later {
                last.hi = hi.map(<[u8]>::to_vec);
            }
        }
        _ => union.push(KeyRange {
            lo: lo.to_vec(),
            hi: hi.map(<[u8]>::to_vec),
        }),
    }
}

/// Body of the merge thread; returns when the engine stops.
pub(crate) fn run(engine: &Engine) {
    let mut seen = (0, 0);
    let mut since = Instant::now();
    loop {
        {
            let mut signals = engine.signals.lock.lock();
            if signals.stopping {
                return;
            }
            // What is left after a round waits for a transaction, which wakes this thread at its end.
            if signals.failure.is_some() {
                engine.signals.work.wait_for(&mut signals, RETRY);
            } else if !signals.merge_wanted {
                // A transaction may hold on to a merged buffer for a moment: its memory is wanted back soon.
                let pause = if engine.states.retired_len() > 0 {
                    TICK_RETIRED
                } else {
                    TICK
                };
                engine.signals.work.wait_for(&mut signals, pause);
            }
            if signals.stopping {
                return;
            }
            signals.merge_wanted = false;
        }
        if engine.is_poisoned() {
            let mut signals = engine.signals.lock.lock();
            if !signals.stopping {
                engine.signals.work.wait_for(&mut signals, TICK);
            }
            continue;
        }
        let now = {
            let state = engine.states.current();
            (state.active().id, state.active().bytes_used())
        };
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= engine.options.idle_flush {
            since = Instant::now();
            idle(engine, now.0);
        }
        if engine.states.retired_len() > 0 {
            engine.reclaim_states();
        }
        let result = merge_all(engine);
        note(engine, result.map(drop));
    }
}

/// Records how a round went and tells those who wait.
pub(crate) fn note(engine: &Engine, result: Result<()>) {
    let mut signals = engine.signals.lock.lock();
    signals.rounds += 1;
    match result {
        Ok(()) => signals.failure = None,
        Err(error) => signals.failure = Some(error.to_string()),
    }
    engine.signals.done.notify_all();
}

/// Nothing was written for a while: merge what is there, checkpoint it, give space back.
fn idle(engine: &Engine, generation: u64) {
    // Without memory for another buffer the data stay where they are; the next tick tries again.
    let _ = engine.freeze(generation);
    engine.reclaim(&mut engine.tree.lock());
    engine.signals.lock.lock().checkpoint_wanted = true;
    engine.signals.work.notify_all();
}

/// Merges every frozen generation as far as open transactions allow. Says whether anything was merged.
pub(crate) fn merge_all(engine: &Engine) -> Result<bool> {
    let mut progress = false;
    loop {
        // The oldest first (1); each round takes the first generation that has something to do.
        let next = {
            let state = engine.states.current();
            let mut taken: Vec<u32> = Vec::new();
            let mut found = None;
            for generation in state.generations[1..].iter().rev() {
                let slots = ready_slots(&state, generation, &mut taken);
                if !slots.is_empty() {
                    found = Some((Arc::clone(generation), slots));
                    break;
                }
            }
            found
        };
        let Some((generation, slots)) = next else {
            retire_finished(engine);
            return Ok(progress);
        };
        merge_generation(engine, &generation, &slots)?;
        progress = true;
        note(engine, Ok(()));
    }
}

/// Lets go of frozen generations that are finished without a merge: their keyspaces were dropped.
fn retire_finished(engine: &Engine) {
    let any = {
        let state = engine.states.current();
        state.generations[1..]
            .iter()
            .any(|generation| is_finished(&state, generation))
    };
    if any {
        engine.change_layers(drop_finished);
        engine.reclaim(&mut engine.tree.lock());
        note(engine, Ok(()));
    }
}

/// Slots of a frozen generation that can be merged now. `taken` collects those that must wait, here and in newer ones.
fn ready_slots(state: &State, generation: &Generation, taken: &mut Vec<u32>) -> Vec<u32> {
    let mut ready = Vec::new();
    let mut blocked = false;
    for slot in generation.slots() {
        let Some(keyspace) = state.keyspaces.get(slot as usize).and_then(Option::as_ref) else {
            continue;
        };
        if keyspace.generation_merged >= generation.id {
            continue;
        }
        if taken.contains(&slot) || !is_released(&keyspace.core, generation.id) {
            taken.push(slot);
            blocked = true;
        } else {
            ready.push(slot);
        }
    }
    generation
        .blocked
        .store(blocked && ready.is_empty(), Ordering::Relaxed);
    ready
}

/// (2): whether nobody can write to this generation's buffer of a keyspace any more.
fn is_released(core: &crate::keyspace::KeyspaceCore, generation: u64) -> bool {
    match core.writer.try_lock() {
        Some(mut writer) => {
            if writer.generation <= generation {
                // The writer would keep the arena alive.
                if let Some(last) = writer.buffer.take() {
                    writer.entries_last = last.buffer().stats().entries;
                }
                writer.generation = 0;
            }
            true
        }
        None => core.generation_open.load(Ordering::SeqCst) > generation,
    }
}

/// Whether an open transaction keeps a generation's buffer of a keyspace from being merged. May say no too often, for the
/// moment in which a transaction begins.
fn is_held_back(core: &crate::keyspace::KeyspaceCore, generation: u64) -> bool {
    let open = core.generation_open.load(Ordering::SeqCst);
    open != 0 && open <= generation
}

fn merge_generation(engine: &Engine, generation: &Arc<Generation>, slots: &[u32]) -> Result<()> {
    let state = engine.states.current();
    for &slot in slots {
        if let Some(buffer) = generation.buffer(slot) {
            make_visible(engine, buffer.stats().csn_last)?;
        }
    }
    let threads = engine.options.merge_threads.min(slots.len()).max(1);
    let share = slots.len().div_ceil(threads);
    let parts: Vec<Result<MergedPart>> = if threads == 1 {
        vec![merge_slots(engine, &state, generation, slots)]
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = slots
                .chunks(share)
                .map(|slots| scope.spawn(|| merge_slots(engine, &state, generation, slots)))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a merge does not panic"))
                .collect()
        })
    };
    let mut merged = MergedPart::default();
    let mut failure = None;
    for part in parts {
        match part {
            Ok(mut part) => {
                merged.updates.append(&mut part.updates);
                merged.changes.append(part.changes);
                merged.adopted.append(&mut part.adopted);
                merged.entries += part.entries;
            }
            Err(error) => failure = Some(error),
        }
    }
    if let Some(error) = failure {
        engine.pager.discard(&merged.changes.births);
        return Err(error);
    }
    drop(state);
    publish(engine, generation, slots, merged);
    Ok(())
}

#[derive(Default)]
struct MergedPart {
    updates: Vec<RootUpdate>,
    changes: Changes,
    adopted: Vec<u64>,
    entries: u64,
}

fn merge_slots(
    engine: &Engine,
    state: &State,
    generation: &Generation,
    slots: &[u32],
) -> Result<MergedPart> {
    let mut sink = Sink::new(&engine.pager, state.tree_version + 1);
    let mut merged = MergedPart::default();
    for &slot in slots {
        let (Some(buffer), Some(keyspace)) =
            (generation.buffer(slot), &state.keyspaces[slot as usize])
        else {
            continue;
        };
        // (4)
        let root = if buffer.is_empty() {
            None
        } else {
            let changes = OwnChanges::committed(buffer.cursor(), &mut merged.adopted);
            let (root, entries) = merge_buffer(&mut sink, keyspace.root, buffer, changes)?;
            merged.entries += entries;
            Some(root)
        };
        merged.updates.push(RootUpdate {
            slot,
            id: keyspace.core.id,
            root,
            generation_merged: generation.id,
            csn_merged: buffer.stats().csn_last,
        });
    }
    merged.changes = sink.finish()?;
    Ok(merged)
}

fn publish(engine: &Engine, generation: &Generation, slots: &[u32], merged: MergedPart) {
    let mut tree = engine.tree.lock();
    // A keyspace that was dropped meanwhile took its tree with it: what was merged for it is dead at birth.
    let state = engine.states.current();
    let version = state.tree_version + 1;
    let gone = |slot: u32, id: u32| state.keyspace(slot, id).is_none();
    debug_assert!(
        (merged.updates.iter()).all(|u| u.root.is_none() || !gone(u.slot, u.id)),
        "drop waits for the merge"
    );
    drop(state);
    // Values that were overwritten before they were merged: readers of the buffer may still see them.
    let mut unused = Vec::new();
    generation.large_values.lock().retain(|(slot, pointer)| {
        let here = slots.contains(slot);
        if here && !merged.adopted.contains(&pointer.address_units) {
            unused.push(value_extent(pointer));
        }
        !here
    });
    engine.pager.abandon(&unused, version);
    engine.publish_roots(&mut tree, &merged.updates, &merged.changes);
    engine.counters.merges.fetch_add(1, Ordering::Relaxed);
    engine
        .counters
        .merged_entries
        .fetch_add(merged.entries, Ordering::Relaxed);
}

/// Makes a commit visible that is stamped and waits for the disk. The merge flushes itself: the thread that logged the
/// commit may be waiting for room, hence for this merge, before it flushes.
fn make_visible(engine: &Engine, csn: u64) -> Result<()> {
    while engine.visible_csn.load(Ordering::Acquire) < csn {
        engine.check_writable()?;
        engine.flush_log()?;
        std::thread::yield_now();
    }
    Ok(())
}

impl Engine {
    /// Waits until the buffers hold nothing of these keyspaces and no merge is at work on them. The caller holds their
    /// write locks, marked as writing to no generation.
    pub fn drain(&self, slots: &[u32]) -> Result<()> {
        self.drain_while(|state| {
            let pending = |generation: &Generation, slot: u32| {
                let merged = state.keyspaces[slot as usize]
                    .as_ref()
                    .is_none_or(|k| k.generation_merged >= generation.id);
                !merged
                    && generation
                        .buffer(slot)
                        .is_some_and(|buffer| !buffer.is_empty())
            };
            // An empty buffer may wait: the merge changes no root for it.
            let active = slots.iter().any(|&slot| pending(state.active(), slot));
            let frozen = state.generations[1..]
                .iter()
                .any(|g| slots.iter().any(|&slot| pending(g, slot)));
            (active, frozen)
        })
    }

    /// Freezes the active generation while `pending` says that it is needed, and waits for the merge of frozen ones.
    fn drain_while(&self, pending: impl Fn(&State) -> (bool, bool)) -> Result<()> {
        let first_round = self.signals.lock.lock().rounds;
        loop {
            self.check_writable()?;
            let (generation, (active, frozen)) = {
                let state = self.states.current();
                (state.active().id, pending(&state))
            };
            if active {
                self.freeze(generation)?;
            } else if !frozen {
                return Ok(());
            }
            let mut signals = self.signals.lock.lock();
            if let (Some(cause), true) = (&signals.failure, signals.rounds > first_round + 1) {
                return Err(Error::Stalled {
                    what: format!("the write buffer cannot be merged: {cause}"),
                });
            }
            signals.merge_wanted = true;
            self.signals.work.notify_all();
            self.signals
                .done
                .wait_for(&mut signals, crate::txn::DRAIN_POLL);
        }
    }

    /// Freezes and merges everything that no open transaction holds back.
    pub fn drain_all(&self) -> Result<()> {
        let wanted = self.states.current().active().id;
        self.drain_while(|state| {
            let active = state.active();
            // Asked of the keyspaces and not of `blocked`, which is what the merge last saw.
            let can_be_merged = |generation: &Generation| {
                generation.slots().iter().any(|&slot| {
                    state.keyspaces[slot as usize].as_ref().is_some_and(|k| {
                        k.generation_merged < generation.id && !is_held_back(&k.core, generation.id)
                    })
                })
            };
            let frozen = state.generations[1..].iter().any(|g| can_be_merged(g));
            (active.id == wanted && !active.is_empty(), frozen)
        })
    }
}
