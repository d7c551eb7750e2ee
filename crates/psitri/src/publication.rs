//! Publication: a new state from the current one, and the end of what only older ones need.
//!
//! A state changes when a buffer is frozen, when a merge or a transaction has new roots, when keyspaces come and go, and when a frozen
//! generation is finished. Commits to the active buffer change none.
//!
//! # Thread safety
//! Anyone may publish; `layers` puts them in order. Readers pin the state that is current and never wait.
//!
//! # Invariants
//! (1) A state is made from the current one and published under `layers`. Roots change only under `tree` as well, so tree versions are ordered.
//! (2) Space is reclaimed under `tree`, with the pins of all states and of other processes: no version is published in between.
//! (3) How far a keyspace is merged only grows, and an update for a keyspace that was dropped meanwhile changes nothing, whoever has its slot.
//! (4) A frozen generation leaves the state when no keyspace needs it: each has merged its buffer, or is gone.
//! (5) `generation_active` is stored before the state that has the generation is published: who makes a buffer and then still reads the id of
//!     its generation there has made it before any merge looked for it.
//!
//! # Failure modes
//! Without memory for another buffer nothing is frozen. If the pins of other processes cannot be read no space is freed. Nothing else here
//! can fail.

use std::time::Instant;

use crate::{
    Result,
    engine::{Engine, TreeState},
    pager::Changes,
    state::{Generation, KeyspaceState, KeyspaceTable, Sliced, State},
    sync::{Arc, MutexGuard, Ordering},
    tree::Root,
};

/// What was merged for one keyspace.
pub(crate) struct RootUpdate {
    pub slot: u32,
    pub id: u32,
    /// The new root. `None` leaves the present one, whatever it is by then: a direct transaction may exchange it while the
    /// merge passes over an empty buffer.
    pub root: Option<Root>,
    pub generation_merged: u64,
    /// The root has entries of generations up to this one, all or a part of them. 0 for a transaction that exchanges all its roots at once.
    pub generation_in_root: u64,
    pub csn_merged: u64,
    /// Of a merge that goes on: which part of the buffers the root has.
    pub sliced: Option<Arc<Sliced>>,
}

/// Which keyspaces come and go with a version.
#[derive(Default)]
pub(crate) struct KeyspaceChanges {
    /// The commit that the version is, if it is one; 0 for a merge.
    pub commit: u64,
    pub created: Vec<KeyspaceState>,
    /// Slots and ids.
    pub dropped: Vec<(u32, u32)>,
    /// Slots and ids of those whose entries in the catalog change.
    pub touched: Vec<(u32, u32)>,
}

impl KeyspaceChanges {
    /// None, with a commit.
    pub fn none_by(commit: u64) -> KeyspaceChanges {
        KeyspaceChanges {
            commit,
            ..KeyspaceChanges::default()
        }
    }

    fn apply(&self, table: &mut KeyspaceTable) {
        for keyspace in &self.created {
            let slot = keyspace.core.slot as usize;
            if table.len() <= slot {
                table.resize(slot + 1, None);
            }
            table[slot] = Some(keyspace.clone());
        }
        for &(slot, id) in &self.dropped {
            debug_assert!(
                table[slot as usize]
                    .as_ref()
                    .is_some_and(|k| k.core.id == id)
            );
            table[slot as usize] = None;
        }
        for &(slot, id) in &self.touched {
            let keyspace = table[slot as usize].as_mut();
            if let Some(keyspace) = keyspace.filter(|keyspace| keyspace.core.id == id) {
                keyspace.dirty = true;
            }
        }
    }
}

impl Engine {
    /// Publishes a state made from the current one. Returns what `change` returned.
    pub fn change_layers<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let _layers = self.layers.lock();
        let mut next = self.states.current().successor();
        let result = change(&mut next);
        self.publish_state(next);
        result
    }

    /// Makes a state current. The caller holds `layers` (1).
    fn publish_state(&self, state: State) {
        // Whoever holds the one before sees what is old from now on.
        let _ = self.states.current().replaced.at.set(Instant::now());
        self.states.publish(Box::new(state));
    }

    /// Publishes new roots, and what was written and made obsolete for them. `tree` is the held lock.
    pub fn publish_roots(
        &self,
        tree: &mut MutexGuard<'_, TreeState>,
        updates: &[RootUpdate],
        keyspaces: &KeyspaceChanges,
        mut changes: Changes,
    ) {
        let version = self.states.current().tree_version + 1;
        self.pager.publish(version, &mut changes);
        let merged = updates.iter().filter(|update| update.root.is_some());
        if let Some(newest) = merged.map(|update| update.generation_in_root).max() {
            tree.reach.extend(self.states.current().reach(newest));
        }
        self.change_layers(|state| apply_roots(state, version, updates, keyspaces));
        if self.in_memory {
            self.pager.set_durable(version);
        }
        self.reclaim_sometimes(tree);
    }

    /// Freezes the active generation if it is still `generation` and holds anything.
    pub fn freeze(&self, generation: u64) -> Result<()> {
        let next = Arc::new(Generation::new(generation + 1, &self.pool)?);
        let frozen = {
            let _layers = self.layers.lock();
            let current = self.states.current();
            if current.active().id != generation || current.active().is_empty() {
                false
            } else {
                let mut state = current.successor();
                state.generations.insert(0, next);
                drop(current);
                self.generation_active
                    .store(generation + 1, Ordering::SeqCst);
                self.publish_state(state);
                true
            }
        };
        if frozen {
            self.wake();
        }
        Ok(())
    }

    /// Frees what nobody can reach any more. `_tree` is the held lock (2).
    pub fn reclaim(&self, _tree: &mut MutexGuard<'_, TreeState>) {
        let Some(others) = self.pins_of_others() else {
            return self.reclaim_states();
        };
        let mut pins = vec![self.states.current().tree_version];
        let retired = self.states.reclaim(|state| pins.push(state.tree_version));
        self.pager.reclaim(&pins, &others);
        drop(retired);
    }

    /// Frees states that nobody can reach any more, and space when enough has died to make a look at it worth while.
    fn reclaim_sometimes(&self, tree: &mut MutexGuard<'_, TreeState>) {
        if self.pager.is_reclaim_due() {
            self.reclaim(tree);
        } else {
            self.reclaim_states();
        }
    }

    /// Frees states that nobody can reach any more, and with them merged buffers.
    pub fn reclaim_states(&self) {
        drop(self.states.reclaim(|_| ()));
    }
}

/// Puts new roots into a state and drops the generations that no keyspace needs any more.
pub(crate) fn apply_roots(
    state: &mut State,
    version: u64,
    updates: &[RootUpdate],
    changes: &KeyspaceChanges,
) {
    state.tree_version = version;
    state.csn_direct = state.csn_direct.max(changes.commit);
    let mut keyspaces = (*state.keyspaces).clone();
    changes.apply(&mut keyspaces);
    for update in updates {
        let slot = keyspaces[update.slot as usize].as_mut();
        let Some(keyspace) = slot.filter(|keyspace| keyspace.core.id == update.id) else {
            continue;
        };
        keyspace.generation_merged = keyspace.generation_merged.max(update.generation_merged);
        if let Some(root) = update.root {
            state.generation_in_trees = state.generation_in_trees.max(update.generation_in_root);
            keyspace.set_root(root);
            keyspace.sliced = update.sliced.clone();
            keyspace.csn_merged = keyspace.csn_merged.max(update.csn_merged);
            keyspace.dirty = true;
        }
    }
    state.keyspaces = Arc::new(keyspaces);
    drop_finished(state);
}

/// Whether no keyspace needs a frozen generation any more: all merged it, or were dropped.
pub(crate) fn is_finished(state: &State, generation: &Generation) -> bool {
    !generation.slots().iter().any(|&slot| {
        state.keyspaces[slot as usize]
            .as_ref()
            .is_some_and(|k| k.generation_merged < generation.id)
    })
}

/// Drops the frozen generations that are finished.
pub(crate) fn drop_finished(state: &mut State) {
    let frozen = state.generations.split_off(1);
    let needed: Vec<_> = frozen
        .into_iter()
        .filter(|generation| !is_finished(state, generation))
        .collect();
    state.generations.extend(needed);
}
