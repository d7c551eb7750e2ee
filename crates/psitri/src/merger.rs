//! The background merge: frozen buffers into the tree.
//!
//! # Thread safety
//! One thread runs [`run`]; it may spread the keyspaces of a generation over helpers. Transactions that spill and direct
//! transactions use [`merge_buffer`] in their own thread, for keyspaces whose write lock they hold.
//!
//! # Invariants
//! (1) Generations are merged oldest first, in each keyspace; several that wait are folded into one merge. A merge that would write several times
//!     what it merges waits for more of them, while they come quickly and nobody waits for it.
//! (2) A keyspace's buffer is merged only when no open transaction can write to it, and when all its commits are visible.
//! (3) A merge that fails publishes nothing, gives its pages back and is tried again.
//! (4) A long merge is published slice by slice, so that the space of what it replaced can be used again while it goes on. The buffers
//!     stay until the last slice and hide what of theirs the tree has already (cursors that go forward leave it out: [`Sliced`]); recovery
//!     puts them back in front of it, and readers of old layers are told how far to read them (`generation_in_trees`, and the superblock's
//!     `tree_csn`). Only streams that may be applied twice are sliced: without range deletes and without values that the tree takes over. A
//!     merge of many keyspaces is published a few at a time, for the same reason: those that are done are done with their buffers.
//! (5) A direct transaction owns the roots of its keyspaces: when it begins, only empty buffers of theirs are left, and the
//!     merge of an empty buffer does not touch the root.
//! (6) A merge looks at the clock once. What it drops as expired was so for everybody who looks later, unless the clock is set back; those
//!     who looked before have pinned what it replaces, or are asked for their time.

mod headway;
mod retry;
mod tidy;
mod when;

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    Result,
    buffer::KeyspaceBuffer,
    changes::{FoldedChanges, OwnChanges, Slice, flatten},
    engine::Engine,
    events::Event,
    expiry::{Judge, Moment},
    layers::CSN_NEWEST,
    monitor::Monitor,
    node::PAGE_BYTES,
    pager::{Changes, Sink, value_extent},
    publication::{KeyspaceChanges, RootUpdate, drop_finished, is_finished},
    state::{Generation, Sliced, State},
    sync::{Arc, Mutex, Ordering},
    tree::{self, ChangeStream, KeyRange, Root, Terms},
};

pub(crate) use headway::{Headway, Tally};
pub(crate) use retry::Retry;
use tidy::Tidy;
pub(crate) use when::merge_bytes;
use when::{TICK, Watch, merge_bytes_of};

/// A merge is long if it takes more entries than there are pieces of this size in a slice: each may be in a leaf of its own.
const LONG_ENTRY_BYTES: u64 = PAGE_BYTES as u64 / 4;
/// A keyspace with this much in the buffers shares no pages with those merged before and after it, so that its pages are free when it is dropped:
/// about eight pages.
const OWN_PAGES_BYTES: u64 = 64 << 10;
/// The next merge may write to what the last one left free, if it comes before this is over.
const SETTLES_AFTER: Duration = Duration::from_secs(1);

/// Merges one buffer into a tree. What has expired at `now` goes from the leaves on the way; 0 for nothing.
pub(crate) fn merge_buffer(
    sink: &mut Sink<'_>,
    root: Root,
    buffer: &KeyspaceBuffer,
    mut changes: OwnChanges<'_, '_>,
    now: u64,
) -> Result<(Root, u64)> {
    let ranges = flatten(buffer, changes.csn());
    changes.expect_at_most(buffer.stats().entries);
    let root = tree::merge(sink, root, &ranges, &mut changes, Terms::at(now))?;
    Ok((root, changes.passed()))
}

/// Body of the merge thread; returns when the engine stops.
pub(crate) fn run(engine: &Engine) {
    let mut watch = Watch::new();
    // Without a log thread.
    let mut monitor = engine.in_memory.then(|| Monitor::new(engine));
    // There may be more to merge.
    let mut is_more = false;
    // When something was merged, and whether its space is settled.
    let (mut merged_at, mut is_settled) = (Instant::now(), true);
    let mut tidy = Tidy::default();
    // How long to wait before it goes on.
    let mut tidies_after: Option<Duration> = None;
    let mut retry = Retry::default();
    loop {
        if let Some(monitor) = &mut monitor {
            monitor.tick();
        }
        let is_asked_for = {
            let mut signals = engine.signals.lock.lock();
            if signals.stopping {
                return;
            }
            // What is left after a round waits for a transaction, which wakes this thread at its end.
            if !signals.merge_wanted && !is_more {
                let pause = match signals.failure {
                    Some(_) => retry.wait(),
                    None => tidies_after.unwrap_or_else(|| watch.pause(engine)),
                };
                engine.signals.work.wait_for(&mut signals, pause);
            }
            if signals.stopping {
                return;
            }
            std::mem::take(&mut signals.merge_wanted)
        };
        if engine.is_poisoned() {
            let mut signals = engine.signals.lock.lock();
            if !signals.stopping {
                engine.signals.work.wait_for(&mut signals, TICK);
            }
            continue;
        }
        if watch.look(engine) {
            rest(engine);
        }
        if engine.states.retired_len() > 0 {
            engine.reclaim_states();
            engine.report_slow_readers();
        } else if engine.has_old_readers_beside() {
            engine.report_slow_readers();
        }
        if !retry.is_due(is_asked_for) {
            continue;
        }
        watch.gather(engine);
        let result = merge_next(engine, &mut watch);
        is_more = matches!(result, Ok(true));
        retry.note(&result);
        tidies_after = None;
        if is_more {
            (merged_at, is_settled) = (Instant::now(), false);
        } else if merged_at.elapsed() >= SETTLES_AFTER {
            if !std::mem::replace(&mut is_settled, true) {
                engine.settle();
            }
            tidies_after = tidy.go_on(engine);
        }
        engine.checkpoint_what_was_replayed();
        note(engine, result.map(drop));
    }
}

/// Records how a round went and tells those who wait.
pub(crate) fn note(engine: &Engine, result: Result<()>) {
    if let Err(error) = &result {
        engine.note_failure(error);
    }
    let mut signals = engine.signals.lock.lock();
    signals.rounds += 1;
    if result.is_ok() {
        signals.failure = None;
    }
    engine.signals.done.notify_all();
}

/// Nothing was written for a while: checkpoint what there is, give space back.
fn rest(engine: &Engine) {
    engine.reclaim(&mut engine.tree.lock());
    engine.settle();
    engine.signals.lock.lock().checkpoint_wanted = true;
    engine.signals.work.notify_all();
}

/// What one merge takes up.
struct Fold {
    /// Oldest first (1).
    generations: Vec<Arc<Generation>>,
    slots: Vec<u32>,
}

/// The oldest generation that has something to do, with those after it as long as no transaction holds any of them back.
fn next_fold(state: &State) -> Option<Fold> {
    let mut taken: Vec<u32> = Vec::new();
    let mut fold: Option<Fold> = None;
    for generation in state.generations[1..].iter().rev() {
        let taken_before = taken.len();
        let slots = ready_slots(state, generation, &mut taken);
        let is_free = taken.len() == taken_before;
        match &mut fold {
            None if slots.is_empty() => {}
            None => {
                fold = Some(Fold {
                    generations: vec![Arc::clone(generation)],
                    slots,
                });
                if !is_free {
                    break;
                }
            }
            Some(fold) if is_free => {
                fold.generations.push(Arc::clone(generation));
                for slot in slots {
                    if !fold.slots.contains(&slot) {
                        fold.slots.push(slot);
                    }
                }
            }
            Some(_) => break,
        }
    }
    fold
}

/// Merges the frozen generations that there are, as far as open transactions allow. False if there was nothing to merge.
fn merge_next(engine: &Engine, watch: &mut Watch) -> Result<bool> {
    // Whoever closes has decided what is to be merged.
    let is_over = {
        let signals = engine.signals.lock.lock();
        signals.stopping || signals.is_closing
    };
    if is_over || engine.is_poisoned() {
        return Ok(false);
    }
    // Not bound to a name: what it pins would keep memory from being freed while merging.
    let fold = next_fold(&engine.states.current());
    let Some(fold) = fold else {
        retire_finished(engine);
        return Ok(false);
    };
    let written = engine.pager.written_total();
    if let expected @ 1.. = merge_fold(engine, &fold)? {
        watch.note_merge(engine.pager.written_total() - written, expected);
    }
    if engine.is_checkpoint_due() {
        engine.signals.work.notify_all();
    }
    Ok(true)
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
                    writer.entries_last = last.buffer().entries_expected_next();
                }
                writer.generation = 0;
            }
            true
        }
        None => core.generation_open.load(Ordering::SeqCst) > generation,
    }
}

/// One keyspace of a merge. Nobody else changes its root meanwhile (5), so no state need be pinned, and old pages go free.
struct Task<'f> {
    slot: u32,
    id: u32,
    root: Root,
    /// Newest first; the keyspace may be done with some generations, and may have nothing in others.
    buffers: Vec<(u64, &'f KeyspaceBuffer)>,
    csn_merged: u64,
    /// Time of the merge (6); 0 if entries do not expire.
    now: u64,
}

impl<'f> Task<'f> {
    fn new(
        state: &State,
        generations: &'f [Arc<Generation>],
        slot: u32,
        now: impl FnOnce() -> u64,
    ) -> Option<Task<'f>> {
        let keyspace = state.keyspaces[slot as usize].as_ref()?;
        let buffers: Vec<(u64, &KeyspaceBuffer)> = generations
            .iter()
            .rev()
            .filter(|generation| generation.id > keyspace.generation_merged)
            .filter_map(|generation| Some((generation.id, &**generation.buffer(slot)?)))
            .collect();
        let csn_merged = buffers.iter().map(|(_, buffer)| buffer.stats().csn_last);
        Some(Task {
            slot,
            id: keyspace.core.id,
            root: keyspace.root,
            csn_merged: csn_merged.max()?,
            now: if keyspace.core.expires() {
                merge_time(&keyspace.core, now())
            } else {
                0
            },
            buffers,
        })
    }

    fn entries(&self) -> u64 {
        let buffers = self.buffers.iter();
        buffers.map(|(_, buffer)| buffer.stats().entries).sum()
    }

    /// What becomes of the keyspace: with all of the buffers in the root, or with what they have below a key.
    fn update(&self, root: Option<Root>, below: Option<&[u8]>) -> RootUpdate {
        let newest = self.buffers.first().map_or(0, |&(id, _)| id);
        let is_whole = below.is_none();
        let sliced = below.map(|below| Sliced {
            generation: newest,
            below: below.into(),
        });
        RootUpdate {
            slot: self.slot,
            id: self.id,
            root,
            generation_merged: if is_whole { newest } else { 0 },
            generation_in_root: newest,
            csn_merged: if is_whole { self.csn_merged } else { 0 },
            sliced: sliced.map(Arc::new),
        }
    }
}

/// The time of a merge at `now`: not later than that of the transaction that is open on the keyspace.
fn merge_time(core: &crate::keyspace::KeyspaceCore, now: u64) -> u64 {
    match core.writer_now.load(Ordering::SeqCst) {
        0 => now,
        writer => now.min(writer),
    }
}

/// Returns how many bytes it may have written at most, about.
fn merge_fold(engine: &Engine, fold: &Fold) -> Result<u64> {
    let start = Instant::now();
    let busy = engine.counters.merging.begin();
    trace_span!(
        DEBUG,
        "merge",
        buffers = fold.generations.len(),
        keyspaces = fold.slots.len()
    );
    let time = Moment::default();
    let now = || time.get(&engine.options.clock);
    let mut tasks: Vec<Task<'_>> = {
        let state = engine.states.current();
        fold.slots
            .iter()
            .filter_map(|&slot| Task::new(&state, &fold.generations, slot, now))
            .collect()
    };
    for task in &tasks {
        make_visible(engine, task.csn_merged)?;
    }
    engine
        .headway
        .begin(tasks.iter().map(Task::entries).sum::<u64>());
    let helpers = threads_for(engine, tasks.len()) - 1;
    // One keyspace may be as large as all others.
    let queue = Mutex::new(tasks.iter_mut());
    let work = || merge_tasks(engine, fold, std::iter::from_fn(|| queue.lock().next()));
    let parts: Vec<Result<MergedPart>> = thread::scope(|scope| {
        // Where there is no memory for one more thread, those that there are do it.
        let helpers: Vec<_> = (0..helpers)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let own = work();
        helpers
            .into_iter()
            .map(|helper| helper.join().expect("a merge does not panic"))
            .chain([own])
            .collect()
    });
    let mut merged = MergedPart::default();
    let mut failure = None;
    for part in parts {
        match part {
            Ok(mut part) => {
                merged.updates.append(&mut part.updates);
                merged.changes.append(part.changes);
                merged.adopted.append(&mut part.adopted);
                merged.entries += part.entries;
                merged.bytes += part.bytes;
            }
            Err(error) => failure = Some(error),
        }
    }
    engine.headway.end(failure.is_none());
    if let Some(error) = failure {
        engine.pager.discard(&merged.changes.births);
        return Err(error);
    }
    let entries = merged.entries;
    let expected = merge_bytes_of(engine, merged.bytes);
    publish(engine, fold, merged);
    engine.wait_for_space();
    drop(busy);
    let took = start.elapsed();
    engine.tell(|| Event::Merged { entries, took });
    Ok(expected)
}

/// How many threads share the keyspaces of a merge.
fn threads_for(engine: &Engine, keyspaces: usize) -> usize {
    engine.options.merge_threads.min(keyspaces).max(1)
}

#[derive(Default)]
struct MergedPart {
    updates: Vec<RootUpdate>,
    changes: Changes,
    adopted: Vec<u64>,
    entries: u64,
    /// Memory of the buffers.
    bytes: u64,
}

fn merge_tasks<'t, 'f: 't>(
    engine: &Engine,
    fold: &Fold,
    tasks: impl Iterator<Item = &'t mut Task<'f>>,
) -> Result<MergedPart> {
    let mut merged = MergedPart::default();
    let result = merge_each(engine, fold, tasks, &mut merged);
    if result.is_err() {
        engine.pager.discard(&merged.changes.births);
    }
    result.map(|()| merged)
}

fn merge_each<'t, 'f: 't>(
    engine: &Engine,
    fold: &Fold,
    tasks: impl Iterator<Item = &'t mut Task<'f>>,
    merged: &mut MergedPart,
) -> Result<()> {
    let threads = threads_for(engine, fold.slots.len());
    let mut sink = new_sink(engine);
    let mut published_at = engine.pager.written_total();
    let mut has_values = false;
    let mut had_own_pages = false;
    for task in tasks {
        let filled: Vec<&KeyspaceBuffer> = task
            .buffers
            .iter()
            .map(|&(_, buffer)| buffer)
            .filter(|buffer| !buffer.is_empty())
            .collect();
        let entries = task.entries();
        let bytes = filled.iter().map(|b| b.stats().bytes).sum::<u64>();
        merged.bytes += bytes;
        let has_own_pages = bytes >= OWN_PAGES_BYTES;
        let slice_bytes = engine.slice_bytes(threads);
        // The others write meanwhile.
        let is_long = entries > slice_bytes / threads as u64 / LONG_ENTRY_BYTES;
        if is_long || has_own_pages || had_own_pages {
            // What is published slice by slice must not take with it what belongs to other keyspaces, either.
            let before = std::mem::replace(&mut sink, new_sink(engine));
            merged.changes.append(before.finish()?);
        }
        had_own_pages = has_own_pages;
        let may_be_applied_twice = may_be_applied_twice(fold, task, &filled);
        let slice = (is_long && may_be_applied_twice).then_some(slice_bytes);
        // Buffers come faster than they are merged, and are not only what the opening found or what is to be merged before a rest.
        let is_pressed = filled.len() > 1
            && bytes >= engine.options.buffer_bytes as u64
            && !engine.is_merging_replayed()
            && engine.signals.lock.lock().draining == 0;
        let pace = Pace { is_pressed, slice };
        let adopted = &mut merged.adopted;
        let tally = Tally::of(&engine.headway);
        let judge = Judge::new(&engine.pager, task.now);
        let root = match filled.as_slice() {
            // (5)
            [] => None,
            &[buffer] => {
                let ranges = flatten(buffer, CSN_NEWEST);
                let mut changes = OwnChanges::committed(buffer.cursor(), judge, adopted, tally);
                let root = merge_stream(engine, task, pace, &mut sink, &ranges, &mut changes)?;
                merged.entries += changes.passed();
                Some(root)
            }
            several => {
                let (mut changes, ranges) = FoldedChanges::new(several, judge, adopted, tally);
                let root = merge_stream(engine, task, pace, &mut sink, &ranges, &mut changes)?;
                merged.entries += changes.passed();
                Some(root)
            }
        };
        merged.updates.push(task.update(root, None));
        has_values |= !may_be_applied_twice;
        if !has_values && engine.pager.written_total() >= published_at + slice_bytes {
            // (4): many keyspaces.
            let before = std::mem::replace(&mut sink, new_sink(engine));
            merged.changes.append(before.finish()?);
            publish_some(engine, merged);
            sink = new_sink(engine);
            published_at = engine.pager.written_total();
        }
    }
    merged.changes.append(sink.finish()?);
    Ok(())
}

/// (4)
fn may_be_applied_twice(fold: &Fold, task: &Task<'_>, buffers: &[&KeyspaceBuffer]) -> bool {
    !buffers.iter().any(|buffer| buffer.has_range_tombstones())
        && fold.generations.iter().all(|generation| {
            let values = generation.large_values.lock();
            values.iter().all(|(slot, _)| *slot != task.slot)
        })
}

/// How one keyspace is merged.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Writers wait for it, or soon will.
    is_pressed: bool,
    /// A long merge is one in slices of so many bytes.
    slice: Option<u64>,
}

/// What a merge may do with values. Nothing where trees share nodes, nor after a failure: without room for everything there may be room for what must
/// be. Those that expire stay in their leaves, where they are looked at.
fn terms_of(engine: &Engine, now: u64, is_pressed: bool) -> Terms {
    if engine.pager.shares.any() || engine.signals.lock.lock().is_failing() {
        return Terms::at(now);
    }
    Terms {
        now,
        is_pressed: is_pressed && now == 0,
        brings_back: true,
        empties_pages: engine.are_pages_wasteful(),
    }
}

fn new_sink(engine: &Engine) -> Sink<'_> {
    Sink::new(&engine.pager, engine.states.current().tree_version + 1)
}

/// Merges all of `changes`. Of a merge in slices, all but the last are published (4); that one is left in the sink, which holds nothing else then.
fn merge_stream<'e, S: ChangeStream>(
    engine: &'e Engine,
    task: &mut Task<'_>,
    pace: Pace,
    sink: &mut Sink<'e>,
    ranges: &[KeyRange],
    changes: &mut S,
) -> Result<Root> {
    // Asked for each slice: pages lose what the ones before it replaced.
    let terms = || terms_of(engine, task.now, pace.is_pressed);
    let Some(slice_bytes) = pace.slice else {
        return tree::merge(sink, task.root, ranges, changes, terms());
    };
    loop {
        let mut slice = Slice::new(changes, &engine.pager, slice_bytes);
        let root = tree::merge(sink, task.root, &[], &mut slice, terms())?;
        let Some(next) = changes.key() else {
            return Ok(root);
        };
        let update = task.update(Some(root), Some(next));
        let written = std::mem::replace(sink, new_sink(engine)).finish()?;
        let mut tree = engine.tree.lock();
        debug_assert!(
            engine
                .states
                .current()
                .keyspace(task.slot, task.id)
                .is_some(),
            "drop waits for the merge"
        );
        engine.publish_roots(&mut tree, &[update], &KeyspaceChanges::default(), written);
        // With a file, little is free before the next checkpoint, which looks.
        if engine.in_memory {
            engine.reclaim(&mut tree);
        }
        drop(tree);
        task.root = root;
        engine.wait_for_space();
    }
}

/// Publishes the keyspaces that are merged so far. They have no values that the tree takes over.
fn publish_some(engine: &Engine, merged: &mut MergedPart) {
    let (updates, changes) = (
        std::mem::take(&mut merged.updates),
        std::mem::take(&mut merged.changes),
    );
    let mut tree = engine.tree.lock();
    engine.publish_roots(&mut tree, &updates, &KeyspaceChanges::default(), changes);
    engine.reclaim(&mut tree);
    drop(tree);
    engine.wait_for_space();
}

fn publish(engine: &Engine, fold: &Fold, mut merged: MergedPart) {
    // There may be thousands of values, and of keyspaces.
    merged.adopted.sort_unstable();
    let mut slots = fold.slots.clone();
    slots.sort_unstable();
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
    for generation in &fold.generations {
        generation.large_values.lock().retain(|(slot, pointer)| {
            let here = slots.binary_search(slot).is_ok();
            if here && (merged.adopted.binary_search(&pointer.address_units())).is_err() {
                unused.push(value_extent(pointer));
            }
            !here
        });
    }
    engine.pager.abandon(&unused, version);
    engine.publish_roots(
        &mut tree,
        &merged.updates,
        &KeyspaceChanges::default(),
        merged.changes,
    );
    engine.counters.merges.fetch_add(1, Ordering::Relaxed);
    engine
        .counters
        .merged_entries
        .fetch_add(merged.entries, Ordering::Relaxed);
    engine
        .counters
        .merged_bytes
        .fetch_add(merged.bytes, Ordering::Relaxed);
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
