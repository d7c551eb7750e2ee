//! Crash points: what becomes of the disk of each, and how many fell into what.
//!
//! The disk of every so many calls of a run is kept while the run goes on. From each the database is opened, after a power loss or the end of
//! the process: it must be in a state that was tried by then, and not before what was acknowledged by then. The opening has crash points
//! of its own, and so on, three deep. The clock stands still over the crash, or goes on, or is set back.
use super::{
    Clock, Content, Oracle, Random,
    clock::some_time_later,
    entries::Time,
    operations::OPERATIONS,
    oracle::{Note, shows},
    read_all, small_options_with, some_durability,
};
use psitri::{
    Database,
    storage::sim::{CallKind, Capture, CrashPoint, SimStorage},
};
use std::{cmp::Ordering, collections::BTreeMap, fmt::Write, sync::Arc, sync::Mutex};

/// Crashes in a row.
const DEPTH_MAX: usize = 3;
/// Name of the threads that clients work in.
pub const CLIENT_THREAD: &str = "client";
/// A clock is set back by less than so many milliseconds: most of what has expired shows again, if it was not dropped.
const SET_BACK_MAX: u64 = 400;
/// What the note says when a database is being opened.
const OPENING: usize = OPERATIONS.len();
/// The first bytes of a segment: its header.
const HEADER_END: u64 = 512;
/// Header and marks of a segment.
const HEADER_PAGE_END: u64 = 4096;

/// What must have been interrupted at least once in a run of thousands of crash points.
const EXPECTED: [&str; 16] = [
    "recovery",
    "recovery, second crash",
    "recovery, third crash",
    "commit",
    "commit, direct",
    "commit, spilling",
    "large values",
    "keyspaces",
    "merge",
    "checkpoint",
    "compaction",
    "log: segments begun, recycled, given back",
    "log: flushes in the background",
    "close and reopen",
    "drop_expired",
    "expiry",
];

/// How many crash points there were, by what was interrupted and by what the call did.
#[derive(Default)]
pub struct CrashPoints {
    counts: Mutex<BTreeMap<&'static str, BTreeMap<&'static str, u64>>>,
    /// Of those that were looked at: what the clock did over the crash.
    clocks: Mutex<BTreeMap<&'static str, u64>>,
}

/// What a state that is found must be.
#[derive(Clone, Copy)]
enum Wanted<'w> {
    /// From the acknowledged or durable state that the crash point names, to the newest tried.
    AsNoted { complete: bool },
    /// Exactly this: it was shown by a database that had been opened.
    Same(&'w Content),
}

impl CrashPoints {
    pub fn total(&self) -> u64 {
        let counts = self.counts.lock().unwrap();
        counts.values().flat_map(BTreeMap::values).sum()
    }

    pub fn count(&self, point: &CrashPoint, depth: usize) {
        let mut counts = self.counts.lock().unwrap();
        let calls = counts.entry(interrupted(point, depth)).or_default();
        *calls.entry(kind_of(point.kind)).or_default() += 1;
    }

    fn count_clock(&self, before: u64, after: u64) {
        let what = match after.cmp(&before) {
            Ordering::Equal => "stood",
            Ordering::Greater => "went on",
            Ordering::Less => "was set back",
        };
        *self.clocks.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Looks at all crash points that the storage has kept.
    pub fn explore(
        &self,
        storage: &SimStorage,
        oracle: &Oracle,
        random: &mut Random,
        context: &str,
    ) {
        let wanted = Wanted::AsNoted {
            complete: oracle.complete,
        };
        for capture in storage.take_captures() {
            let note = Note::of(capture.point().note);
            let time = time_after_crash(note.now, oracle.newest_of(note), random);
            let crash = (1, wanted, time);
            self.explore_one(&capture, oracle, random, crash, context);
        }
    }

    /// Tells the storage that a database is about to be opened on it.
    pub fn note_opening(storage: &SimStorage, oracle: &Oracle) {
        storage.set_note(oracle.note(OPENING).words());
    }

    fn explore_one(
        &self,
        capture: &Capture,
        oracle: &Oracle,
        random: &mut Random,
        (depth, wanted, time): (usize, Wanted<'_>, Time),
        context: &str,
    ) {
        let point = capture.point();
        self.count(point, depth);
        self.count_clock(Note::of(point.note).now, time.now);
        let context = format!(
            "{context}; crash {depth} at call {} ({:?} of {} in thread {:?}), then {time:?}",
            point.call, point.kind, point.file, point.thread
        );
        let process_crash = random.one_in(3);
        let outcome = random.next();
        let after = if process_crash {
            capture.process_crash(outcome)
        } else {
            capture.crash(outcome)
        };
        let note = Note::of(point.note);
        let opening = Note {
            operation: OPENING,
            now: time.now,
            ..note
        };
        after.set_note(opening.words());
        if depth < DEPTH_MAX && random.one_in(3) {
            after.capture_every(1 + random.below(12), 1);
        }
        let durability = some_durability(random);
        let options = small_options_with(random, durability, &Clock::at(time.now));
        let db = Database::open_on(Arc::new(after.clone()), options)
            .unwrap_or_else(|error| panic!("{context}: opening failed: {error}"));
        let opened_at = after.calls();
        let found =
            read_all(&db).unwrap_or_else(|error| panic!("{context}: reading failed: {error}"));
        let wanted = match wanted {
            Wanted::Same(content) => {
                let as_shown = shows(content, &found, Time::exactly(time.now));
                assert!(as_shown, "{context}: what was shown is gone");
                wanted
            }
            Wanted::AsNoted { complete } => {
                let complete = complete && process_crash;
                let least = if complete {
                    note.acknowledged
                } else {
                    note.durable
                };
                oracle.check_within(&found, (least, note.end), time, &context);
                Wanted::AsNoted { complete }
            }
        };
        let report = db.verify().expect("verify");
        assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
        after.crash_now();
        drop(db);
        for next in after.take_captures() {
            // What an opened database shows it has made durable.
            let wanted = if next.point().call > opened_at {
                Wanted::Same(&found)
            } else {
                wanted
            };
            let time = match random.one_in(4) {
                true => later(time, &found, random),
                false => time,
            };
            let crash = (depth + 1, wanted, time);
            self.explore_one(&next, oracle, random, crash, &context);
        }
    }

    /// A line for each activity.
    pub fn table(&self) -> String {
        let counts = self.counts.lock().unwrap();
        let mut table = String::from("crash points while\n");
        for (activity, calls) in counts.iter() {
            let total: u64 = calls.values().sum();
            let calls: Vec<String> = calls
                .iter()
                .map(|(call, count)| format!("{call} {count}"))
                .collect();
            let _ = writeln!(table, "{activity:<42} {total:>8}   {}", calls.join(", "));
        }
        let clocks = self.clocks.lock().unwrap();
        let clocks: Vec<String> = (clocks.iter())
            .map(|(what, count)| format!("{what} {count} times"))
            .collect();
        let _ = writeln!(table, "the clock {}", clocks.join(", "));
        table
    }

    /// What was never interrupted and should have been.
    pub fn missed(&self) -> Vec<&'static str> {
        let counts = self.counts.lock().unwrap();
        EXPECTED
            .into_iter()
            .filter(|activity| !counts.contains_key(activity))
            .collect()
    }
}

/// What the clock says when a database is opened after a crash at `now`.
fn time_after_crash(now: u64, content: &Content, random: &mut Random) -> Time {
    let time = Time::exactly(now);
    match random.below(8) {
        0..4 => time,
        4..6 => later(time, content, random),
        _ => Time {
            now: now - random.below(SET_BACK_MAX),
            ..time
        },
    }
}

fn later(time: Time, content: &Content, random: &mut Random) -> Time {
    let now = some_time_later(content, time.now, random);
    let latest = now.max(time.latest);
    Time { now, latest }
}

fn kind_of(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Store => "stores",
        CallKind::Write => "writes",
        CallKind::Sync | CallKind::SyncDir => "flushes",
        CallKind::Create | CallKind::Remove | CallKind::Rename => "names",
        _ => "lengths and holes",
    }
}

/// What a crash came in: known from the thread, the file, and what the client was about to do.
fn interrupted(point: &CrashPoint, depth: usize) -> &'static str {
    let on_log = point.file.starts_with("log-");
    let in_header = on_log && matches!(point.kind, CallKind::Write | CallKind::Store);
    let upkeep = matches!(
        point.kind,
        CallKind::Create
            | CallKind::Allocate
            | CallKind::SetLen
            | CallKind::Remove
            | CallKind::Rename
            | CallKind::PunchHole
    );
    let operation = Note::of(point.note).operation;
    match (point.thread.as_str(), depth) {
        (CLIENT_THREAD, 2) => "recovery, second crash",
        (CLIENT_THREAD, 3) => "recovery, third crash",
        (CLIENT_THREAD, _) if operation == OPENING => "recovery",
        _ if (on_log && upkeep) || (in_header && point.offset < HEADER_END) => {
            "log: segments begun, recycled, given back"
        }
        _ if in_header && point.offset < HEADER_PAGE_END => "log: marks",
        (CLIENT_THREAD, _) => OPERATIONS[operation].name,
        ("psitri-ckpt", _) => "checkpoint",
        ("psitri-log", _) => "log: flushes in the background",
        // Helpers of a merge have no name.
        _ => "merge",
    }
}
