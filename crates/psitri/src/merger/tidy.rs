//! Deltas go into their leaves once merges have had nothing to do for a while. Each costs a lookup a node more, and a scan twice the time, and merges
//! that are pressed leave them behind wherever they have been.
//!
//! A tree is gone through in slices, with a pause after each that is as long: nobody waits for this. References say where there are deltas, so
//! that nothing else is read.
//!
//! # Invariants
//! (1) A root is changed in the merge's thread, between merges, and under the keyspace's write lock: nobody else changes it meanwhile. No buffer waits, so
//!     that no merge of it is done in part.
//! (2) Where there was nothing to do, nothing is looked at before another version is published: what is shared with clones keeps its deltas, and so does
//!     a leaf that cannot be read.
//! (3) While somebody reads a state that was replaced [`READER_AGE`] ago, nothing is done: what is replaced would stay in the file until he is done.
//!
//! # Failure modes
//! An error is told once, and leaves the tree as it was. Nothing depends on what was to be done: that keyspace is tried again after a minute, or when
//! something was merged into it, and the others have their turn.

use std::time::{Duration, Instant};

use super::new_sink;
use crate::{
    Result,
    engine::{Engine, frozen_count},
    events::Event,
    keyspace::KeyspaceCore,
    progress::{ProgressUnit, Watch},
    publication::{KeyspaceChanges, RootUpdate},
    sync::{Arc, Ordering},
    tree::{self, Rewrite, Root},
};

/// What a slice writes, about.
const SLICE_BYTES: u64 = 1 << 20;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_secs(60);
/// See (3).
const READER_AGE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Tidy {
    /// The version in which there was nothing to do (2).
    done: Option<u64>,
    /// Something was published since the last checkpoint that was asked for.
    is_dirty: bool,
    failed: Failures,
}

/// The last failure of each keyspace that has not had a turn since.
#[derive(Default)]
struct Failures(Vec<Failure>);

struct Failure {
    id: u32,
    /// Another one came of a merge: what was in its way, a full disk for example, may be gone.
    root: Root,
    at: Instant,
}

impl Failures {
    /// Whether it is too soon to try a keyspace again.
    fn hold_back(&self, id: u32, root: Root) -> bool {
        let mut failures = self.0.iter();
        failures.any(|of| of.id == id && of.root == root && of.at.elapsed() < RETRY)
    }

    /// Notes a failure. Says whether it is the first.
    fn note(&mut self, id: u32, root: Root) -> bool {
        let known = self.0.len();
        self.forget(id);
        let is_first = self.0.len() == known;
        let at = Instant::now();
        self.0.push(Failure { id, root, at });
        is_first
    }

    fn forget(&mut self, id: u32) {
        self.0.retain(|of| of.id != id);
    }
}

/// What became of a keyspace's turn.
enum Turn {
    /// Something was published.
    Taken,
    /// There is nothing to do.
    Idle,
    /// Somebody writes to it.
    Held,
}

impl Tidy {
    /// Puts some deltas into their leaves. Returns how long to wait for the next time, if there may be more.
    pub fn go_on(&mut self, engine: &Engine) -> Option<Duration> {
        let start = Instant::now();
        let is_at_work = may_begin(engine) && self.slice(engine);
        engine
            .counters
            .is_tidying
            .store(is_at_work, Ordering::Relaxed);
        if is_at_work {
            self.is_dirty = true;
            return Some(start.elapsed().max(PAUSE_MIN));
        }
        // What was replaced is free after a checkpoint only.
        if std::mem::take(&mut self.is_dirty) {
            engine.signals.lock.lock().checkpoint_wanted = true;
            engine.signals.work.notify_all();
        }
        None
    }

    /// False if there is nothing to do now.
    fn slice(&mut self, engine: &Engine) -> bool {
        let (version, found): (u64, Vec<_>) = {
            let state = engine.states.current();
            if frozen_count(&state) > 0 || self.done == Some(state.tree_version) {
                return false;
            }
            let keyspaces = state.keyspaces.iter().flatten();
            let with_deltas = keyspaces.filter(|keyspace| keyspace.root.node.has_deltas());
            let found = with_deltas.map(|keyspace| (Arc::clone(&keyspace.core), keyspace.root));
            (state.tree_version, found.collect())
        };
        if !found.is_empty() && engine.oldest_pin_age() >= READER_AGE {
            return false;
        }
        let mut is_done = true;
        for (core, root) in found {
            if self.failed.hold_back(core.id, root) {
                is_done = false;
                continue;
            }
            match take_turn(engine, &core) {
                Ok(turn) => {
                    self.failed.forget(core.id);
                    match turn {
                        Turn::Taken => return true,
                        Turn::Idle => {}
                        Turn::Held => is_done = false,
                    }
                }
                Err(error) => {
                    is_done = false;
                    if self.failed.note(core.id, root) {
                        let cause = error.to_string();
                        engine.tell(|| Event::Failed { cause });
                    }
                }
            }
        }
        if is_done {
            self.done = Some(version);
        }
        false
    }
}

/// Whether nobody waits for the thread, and the roots are not to stay as they are.
fn may_begin(engine: &Engine) -> bool {
    let signals = engine.signals.lock.lock();
    let is_wanted = signals.merge_wanted || signals.draining > 0;
    !(is_wanted || signals.stopping || signals.is_closing || signals.is_failing())
}

/// Puts some deltas of a keyspace into their leaves.
fn take_turn(engine: &Engine, core: &KeyspaceCore) -> Result<Turn> {
    // (1)
    let Some(writer) = core.writer.try_lock() else {
        return Ok(Turn::Held);
    };
    let before = {
        let state = engine.states.current();
        state
            .keyspace(core.slot, core.id)
            .map(|keyspace| keyspace.root)
    };
    let Some(before) = before else {
        return Ok(Turn::Idle);
    };
    let rewrite = Rewrite::Deltas {
        bytes_max: SLICE_BYTES,
    };
    let mut sink = new_sink(engine);
    let mut watch = Watch::new("tidy", None, ProgressUnit::Entries);
    let root = tree::rewrite(&mut sink, before, rewrite, 0, &mut watch)?;
    if root == before {
        return Ok(Turn::Idle);
    }
    let changes = sink.finish()?;
    engine.counters.is_tidying.store(true, Ordering::Relaxed);
    let update = RootUpdate {
        slot: core.slot,
        id: core.id,
        root: Some(root),
        generation_merged: 0,
        generation_in_root: 0,
        csn_merged: 0,
        sliced: None,
    };
    let mut tree = engine.tree.lock();
    engine.publish_roots(&mut tree, &[update], &KeyspaceChanges::default(), changes);
    if engine.in_memory {
        engine.reclaim(&mut tree);
    }
    drop(tree);
    drop(writer);
    engine.counters.tidied.fetch_add(1, Ordering::Relaxed);
    engine.wait_for_space();
    Ok(Turn::Taken)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_that_failed_waits_unless_something_was_merged_into_it() {
        let before = Root::default();
        let merged = Root { keys: 1, ..before };
        let mut failed = Failures::default();
        assert!(!failed.hold_back(7, before));
        assert!(failed.note(7, before));
        assert!(failed.hold_back(7, before));
        assert!(!failed.hold_back(8, before));
        assert!(!failed.hold_back(7, merged));
        assert!(!failed.note(7, merged), "it was told");
        assert!(failed.hold_back(7, merged));
        failed.forget(7);
        assert!(!failed.hold_back(7, merged));
    }
}
