//! Story: a client works on a database over several keyspaces, in all durability modes, with large values, range deletes,
//! direct and spilled transactions, keyspaces that come, go and change their names, merges and checkpoints. The power fails, or
//! the process ends, at any call that changes the disk: of commits, merges, checkpoints, recycled log segments, and of the
//! recovery from the crash before. What comes back is exactly a state that the client had committed, complete up to what was
//! acknowledged as durable (after the end of a process: as committed), `verify` finds nothing, and the work goes on.
//!
//! `PSITRI_SEED` replays one story; `PSITRI_CRASH_POINTS` sets how many crashes are tried at least, `PSITRI_CRASH_SECONDS` for how long at
//! least.
#[path = "common/crash_world.rs"]
mod crash_world;

use crash_world::{
    Client, Oracle, Outcome, Random, open_and_check, parameter, small_options, small_options_with,
};
use psitri::{Durability, storage::sim::SimStorage};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const ROUNDS: u64 = 8;
/// Stories told at a time: they wait for timers and background threads more than they compute.
const STORIES_AT_ONCE: u64 = 6;

/// Returns how many crashes hit a call (and not the time after the last one).
fn story(seed: u64) -> u64 {
    let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut oracle = Oracle::new();
    let mut storage = SimStorage::new(seed);
    let mut crashes = 0;
    let mut reapers = Vec::new();
    for round in 0..ROUNDS {
        let context = format!("seed {seed}, round {round}");
        // Early: in recovery. Late: in commits, merges, checkpoints.
        let calls = [25, 120, 600][random.below(3) as usize];
        storage.crash_at_call(1 + random.below(calls));
        let durability = [Durability::None, Durability::Async, Durability::Sync];
        let durability = durability[random.below(3) as usize];
        let options = small_options_with(&mut random, durability);
        if let Some(db) = open_and_check(&storage, options, &mut oracle, &context) {
            let steps = 20 + random.below(120);
            let mut client = Client::new(db.clone(), &storage, &mut oracle, &mut random);
            client.durability = durability;
            let done = client.work(steps) == Outcome::Done;
            // Some end well before the power fails: then everything is durable.
            if done && random.one_in(3) && db.clone().close().is_ok() && !storage.is_crashed() {
                oracle.flushed("close");
            }
            if done && !storage.is_crashed() {
                storage.crash_now();
            } else {
                crashes += 1;
            }
            // The dead process: its closing must do no harm.
            reapers.push(std::thread::spawn(move || drop(db)));
        } else {
            crashes += 1;
        }
        let process_crash = random.one_in(3);
        oracle.complete &= process_crash;
        let outcome = random.next();
        storage = if process_crash {
            storage.process_crash(outcome)
        } else {
            storage.crash(outcome)
        };
    }
    let options = small_options(&mut random);
    let context = format!("seed {seed}, in the end");
    let db = open_and_check(&storage, options, &mut oracle, &context)
        .expect("the last opening is left in peace");
    let outcome = Client::new(db.clone(), &storage, &mut oracle, &mut random).work(40);
    assert_eq!(outcome, Outcome::Done, "{context}: the work goes on");
    let found = crash_world::read_all(&db).unwrap();
    oracle.settle(found, &context);
    db.checkpoint().unwrap();
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
    for reaper in reapers {
        reaper.join().expect("closing a crashed database");
    }
    crashes
}

#[test]
fn any_crash_leaves_a_prefix_of_the_commits() {
    if let Some(seed) = parameter("PSITRI_SEED") {
        story(seed);
        return;
    }
    let wanted = parameter("PSITRI_CRASH_POINTS").unwrap_or(2_000);
    let seconds = parameter("PSITRI_CRASH_SECONDS").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (crashes, seed_next) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..STORIES_AT_ONCE {
            scope.spawn(|| {
                while (crashes.load(Ordering::Relaxed) < wanted || Instant::now() < end)
                    && failed.lock().unwrap().is_none()
                {
                    let seed = seed_next.fetch_add(1, Ordering::Relaxed);
                    match std::panic::catch_unwind(|| story(seed)) {
                        Ok(count) => drop(crashes.fetch_add(count, Ordering::Relaxed)),
                        Err(panic) => {
                            eprintln!("seed {seed} failed: PSITRI_SEED={seed} replays it");
                            *failed.lock().unwrap() = Some(panic);
                        }
                    }
                }
            });
        }
    });
    if let Some(panic) = failed.into_inner().unwrap() {
        std::panic::resume_unwind(panic);
    }
    let (crashes, stories) = (crashes.into_inner(), seed_next.into_inner());
    assert!(crashes >= wanted);
    println!("{crashes} crashes in {stories} stories");
}
