//! Story: a client works on a database over several keyspaces, with every feature, in all durability modes: transactions, nested, direct and
//! spilled ones, optimistic ones and batches, range deletes, bulk loads, large values, pops and swaps, snapshots that are held, backups,
//! keyspaces that come, go and change their names, entries that expire while time passes, merges, checkpoints, compaction, closings and
//! reopenings. The power fails, or
//! the process ends, at any call that changes the disk, and in the middle of stores to mapped files: in commits, merges, checkpoints, recycled
//! log segments, compaction, and in the recovery from the crash before, three deep. What comes back is exactly a state that the client had
//! committed, complete up to what was acknowledged as durable (after the end of a process: as committed), `verify` finds nothing, and
//! the work goes on. Of the entries that expire those are there whose moment is still ahead. The clock has stood over the crash, has gone on, up
//! to the very moment of an entry now and then, or was set back: then what had expired may be there or not, but nothing that was older under its
//! key is, and nothing that was dropped for good.
//!
//! A story has rounds that end in a crash. Within a round the disk of every so many calls is kept, and looked at while the round goes on.
//!
//! `PSITRI_SEED` replays one story, but for the timing of background threads; `PSITRI_CRASH_POINTS` sets how many crashes are tried at least,
//! `PSITRI_CRASH_SECONDS` for how long at least. A long run:
//!
//! ```text
//! PSITRI_CRASH_SECONDS=1800 cargo test -p psitri --test crashes crash_leaves_a_prefix -- --nocapture
//! ```
//!
//! The number of crash points is printed, by what was interrupted.
use crate::crash_world::{
    CLIENT_THREAD, Client, CrashPoints, Oracle, Outcome, Random, open_and_check, open_and_explore,
    parameter, read_all, small_options, small_options_with, some_durability,
};
use psitri::storage::sim::SimStorage;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const ROUNDS: u64 = 8;
/// How many there are at least by default.
const CRASH_POINTS: u64 = 4_000;
/// Stories told at a time: they wait for timers and background threads more than they compute.
const STORIES_AT_ONCE: u64 = 6;

/// Crash points of a round are looked at between the client's steps; so many are kept for that.
const KEPT_MAX: usize = 3;

fn story(seed: u64, points: &CrashPoints) {
    let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut oracle = Oracle::new();
    let mut storage = SimStorage::new(seed);
    let mut reapers = Vec::new();
    for round in 0..ROUNDS {
        let context = format!("seed {seed}, round {round}");
        // Early: in recovery. Late: in commits, merges, checkpoints.
        let calls = [25, 200, 1200][random.below(3) as usize];
        storage.crash_at_call(1 + random.below(calls));
        let every = [3, 17, 61, 149][random.below(4) as usize];
        storage.capture_every(every, KEPT_MAX);
        CrashPoints::note_opening(&storage, &oracle);
        let durability = some_durability(&mut random);
        let options = small_options_with(&mut random, durability, &oracle.clock);
        let mut explorer = Random(random.next());
        let opened = open_and_explore(&storage, options.clone(), &mut oracle, &context, |oracle| {
            points.explore(&storage, oracle, &mut explorer, &context)
        });
        if let Some(db) = opened {
            let steps = 20 + random.below(120);
            let mut client = Client::new(db, &storage, &mut oracle, &mut random);
            client.durability = durability;
            client.reopen_with = Some(options);
            client.explores = Some((points, context.clone()));
            let (outcome, db, closes_with_checkpoint) = client.work_and_return(steps);
            let done = outcome == Outcome::Done;
            // Some end well before the power fails: then everything is durable, if there is a checkpoint.
            let is_closed = done && random.one_in(3) && db.clone().close().is_ok();
            if is_closed && closes_with_checkpoint && !storage.is_crashed() {
                oracle.flushed("close");
            }
            // The dead process: its closing must do no harm.
            storage.crash_now();
            reapers.push(std::thread::spawn(move || drop(db)));
        }
        let point = storage.crash_point().expect("it has crashed");
        if point.file != "none" {
            points.count(&point, 1);
        }
        let process_crash = random.one_in(3);
        oracle.complete &= process_crash;
        if random.one_in(2) {
            oracle.wait(&mut random);
        }
        let outcome = random.next();
        storage = if process_crash {
            storage.process_crash(outcome)
        } else {
            storage.crash(outcome)
        };
    }
    let options = small_options(&mut random, &oracle.clock);
    let context = format!("seed {seed}, in the end");
    let db = open_and_check(&storage, options, &mut oracle, &context)
        .expect("the last opening is left in peace");
    let outcome = Client::new(db.clone(), &storage, &mut oracle, &mut random).work(40);
    assert_eq!(outcome, Outcome::Done, "{context}: the work goes on");
    let found = read_all(&db).unwrap();
    oracle.settle(found, &context);
    db.checkpoint().unwrap();
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
    for reaper in reapers {
        reaper.join().expect("closing a crashed database");
    }
}

#[test]
fn any_crash_leaves_a_prefix_of_the_commits() {
    let points = CrashPoints::default();
    let one = parameter("PSITRI_SEED");
    let wanted = parameter("PSITRI_CRASH_POINTS").unwrap_or(CRASH_POINTS);
    let seconds = parameter("PSITRI_CRASH_SECONDS").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let seed_next = AtomicU64::new(one.unwrap_or(0));
    let failed = Mutex::new(None);
    let tell_stories = || {
        while (points.total() < wanted || Instant::now() < end) && failed.lock().unwrap().is_none()
        {
            let seed = seed_next.fetch_add(1, Ordering::Relaxed);
            if one.is_some_and(|one| seed > one) {
                break;
            }
            let told = std::panic::AssertUnwindSafe(|| story(seed, &points));
            if let Err(panic) = std::panic::catch_unwind(told) {
                eprintln!("seed {seed} failed: PSITRI_SEED={seed} replays it");
                *failed.lock().unwrap() = Some(panic);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..STORIES_AT_ONCE {
            let client = std::thread::Builder::new().name(CLIENT_THREAD.to_owned());
            client.spawn_scoped(scope, tell_stories).expect("a thread");
        }
    });
    if let Some(panic) = failed.into_inner().unwrap() {
        std::panic::resume_unwind(panic);
    }
    let total = points.total();
    let stories = seed_next.into_inner() - one.unwrap_or(0);
    println!(
        "{}{total} crash points in {stories} stories",
        points.table()
    );
    if one.is_none() {
        assert!(total >= wanted);
        let missed = points.missed();
        assert!(
            wanted < CRASH_POINTS || missed.is_empty(),
            "never interrupted: {missed:?}"
        );
    }
}
