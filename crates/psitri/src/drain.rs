//! Draining: freezing buffers and waiting for their merge, for those who need what was written to be in the trees. Direct transactions
//! drain their keyspaces; explicit checkpoints, closing, and saved snapshots drain all.
//!
//! # Thread safety
//! The caller holds no locks but write locks of keyspaces and that of the leader of write batches: the merge that it waits for takes others.
//!
//! # Invariants
//! (1) Whoever waits holds the write locks of the keyspaces that it waits for, or does not wait for what an open transaction holds back.
//! (2) The wait ends though others write: only generations that were there when it began are waited for, and those that have something of the
//!     keyspaces whose write locks the caller holds.
//! (3) Where merges fail, no more buffers are frozen than may be: whoever tries again and again would have the next one filled each time.
//!
//! # Failure modes
//! A merge that fails is tried again, without end; who has waited for two attempts is given its error.

use std::time::Duration;

use crate::{
    Result,
    engine::{Engine, frozen_count},
    keyspace::KeyspaceCore,
    state::{Generation, State},
    sync::{Arc, Ordering},
};

/// How long the wait for the merge is before a look whether it failed.
const DRAIN_POLL: Duration = Duration::from_millis(20);

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
            let (generation, has_room, (active, frozen)) = {
                let state = self.states.current();
                let has_room = frozen_count(&state) < self.options.frozen_buffers_max();
                (state.active().id, has_room, pending(&state))
            };
            if active {
                // (3)
                if has_room || self.signals.lock.lock().failure.is_none() {
                    self.freeze(generation)?;
                }
            } else if !frozen {
                return Ok(());
            }
            let mut signals = self.signals.lock.lock();
            if let (Some(failure), true) = (&signals.failure, signals.rounds > first_round + 1) {
                return Err(failure.stalled("the write buffer cannot be merged"));
            }
            signals.merge_wanted = true;
            signals.draining += 1;
            self.signals.work.notify_all();
            self.signals.done.wait_for(&mut signals, DRAIN_POLL);
            signals.draining -= 1;
        }
    }

    /// Freezes and merges everything that no open transaction holds back.
    pub fn drain_all(&self) -> Result<()> {
        let wanted = self.states.current().active().id;
        self.drain_while(|state| {
            let active = state.active();
            let is_wanted = active.id == wanted && !active.is_empty();
            (is_wanted, has_frozen_to_merge(state, wanted))
        })
    }

    /// Merges what is frozen, unless an open transaction holds it back.
    pub fn drain_frozen(&self) -> Result<()> {
        let newest = self.states.current().active().id;
        self.drain_while(|state| (false, has_frozen_to_merge(state, newest - 1)))
    }
}

/// Asked of the keyspaces and not of `blocked`, which is what the merge last saw.
fn has_frozen_to_merge(state: &State, newest: u64) -> bool {
    let can_be_merged = |generation: &Arc<Generation>| {
        generation.slots().iter().any(|&slot| {
            state.keyspaces[slot as usize].as_ref().is_some_and(|k| {
                k.generation_merged < generation.id && !is_held_back(&k.core, generation.id)
            })
        })
    };
    let mut frozen = state.generations[1..].iter();
    frozen.any(|generation| generation.id <= newest && can_be_merged(generation))
}

/// Whether an open transaction keeps a generation's buffer of a keyspace from being merged. May say no too often, for the
/// moment in which a transaction begins.
fn is_held_back(core: &KeyspaceCore, generation: u64) -> bool {
    let open = core.generation_open.load(Ordering::SeqCst);
    open != 0 && open <= generation
}
