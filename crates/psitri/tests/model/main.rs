//! Story: random transactions (buffered, direct, spilling, nested, aborted, held open beside others), optimistic ones that run beside all
//! of these and commit if nothing that they depend on has changed, write batches, range
//! deletes, swaps and pops, backups that are restored, snapshots, merges, checkpoints, keyspaces that come and go, closed databases and killed processes, on keys and
//! values that are hard on the codecs, some of which expire by a clock that moves on between operations. A map of versions beside the database says at every moment what must be there: in
//! the newest state, for every old snapshot, for readers of the merged layers, and after every reopening. In the end
//! everything is removed, and no space may be left behind.
//!
//! `PSITRI_SEED` replays one seed, `PSITRI_MODEL_SEEDS` and `PSITRI_MODEL_STEPS` set how many and how long.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod keys;
mod oracle;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn run(seed: u64, steps: usize) {
    let mut world = world::World::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..steps {
            world.step();
        }
        world.finish();
    }));
    if let Err(panic) = result {
        eprintln!(
            "failed at step {}: PSITRI_SEED={seed} PSITRI_MODEL_STEPS={steps} replays it",
            world.done
        );
        // Closing a database whose state is in doubt could hide the first failure behind a second.
        std::mem::forget(world);
        resume_unwind(panic);
    }
}

fn run_seeds(seeds: impl Iterator<Item = u64>) {
    let steps = common::env_number("PSITRI_MODEL_STEPS").unwrap_or(300) as usize;
    match common::env_number("PSITRI_SEED") {
        Some(seed) => run(seed, steps),
        None => seeds.for_each(|seed| run(seed, steps)),
    }
}

fn seeds() -> u64 {
    common::env_number("PSITRI_MODEL_SEEDS").unwrap_or(5)
}

#[test]
fn random_operations_match_the_oracle_on_a_simulated_disk() {
    run_seeds((0..seeds()).map(|round| 2 * round));
}

#[test]
fn random_operations_match_the_oracle_on_the_file_system() {
    run_seeds((0..seeds()).map(|round| 2 * round + 1));
}
