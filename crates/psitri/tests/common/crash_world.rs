//! A database under a random workload, beside the oracle that knows every state it went through.
//!
//! The workload and the crash points repeat with the seed; what the background threads have got to by then does not.
#![allow(dead_code)] // each test uses its part
use psitri::{
    Database, Durability, Error, Keyspace, Options, Snapshot, WriteTxn, storage::sim::SimStorage,
};
use std::{sync::Arc, time::Duration};

#[path = "changes.rs"]
mod changes;
#[path = "clock.rs"]
mod clock;
#[path = "crash_points.rs"]
mod crash_points;
#[path = "entries.rs"]
mod entries;
#[path = "expiring.rs"]
mod expiring;
#[path = "operations.rs"]
mod operations;
#[path = "oracle.rs"]
mod oracle;
#[path = "structures.rs"]
mod structures;
pub use clock::Clock;
#[allow(unused_imports)] // each test uses its part
pub use crash_points::{CLIENT_THREAD, CrashPoints};
use entries::Map;
use operations::{OPERATIONS, Operation};
#[allow(unused_imports)] // as above
pub use oracle::{Content, Oracle, read_all};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Half of it compressible, so that torn values are told from whole ones by content and not by noise alone.
        let salt = self.next();
        (0..len)
            .map(|i| (salt >> (i % 8 * 8)) as u8 ^ (i / 64) as u8)
            .collect()
    }
}

/// A number from the environment.
pub fn parameter(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Sizes at which everything happens often: spills, freezes, merges, checkpoints, recycled segments.
pub fn small_options(random: &mut Random, clock: &Clock) -> Options {
    small_options_with(random, Durability::None, clock)
}

/// Any durability; those that wait as often as those that do not.
pub fn some_durability(random: &mut Random) -> Durability {
    let all = [
        Durability::None,
        Durability::Async,
        Durability::Sync,
        Durability::WriteThrough,
    ];
    all[random.below(all.len() as u64) as usize]
}

/// As [`small_options`], with the durability of commits that name none, and of changes of keyspaces.
pub fn small_options_with(random: &mut Random, durability: Durability, clock: &Clock) -> Options {
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(1 + random.below(3) as usize)
        .wal_segment_bytes(64 << 10)
        .checkpoint_bytes(1 << 20)
        .map_reserve_bytes(16 << 20)
        .merge_threads(1 + random.below(2) as usize)
        .async_interval(Duration::from_millis(2))
        .idle_flush(Duration::from_millis(if random.one_in(2) {
            10
        } else {
            3_600_000
        }))
        .durability(durability);
    clock.tells(options)
}

/// How a piece of work ended.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Done,
    Crashed,
    /// The database refuses writes, after this first cause.
    Poisoned(String),
}

/// Opens, compares with the oracle, verifies. `None`: the disk crashed meanwhile.
pub fn open_and_check(
    storage: &SimStorage,
    options: Options,
    oracle: &mut Oracle,
    context: &str,
) -> Option<Database> {
    open_and_explore(storage, options, oracle, context, |_| ())
}

/// As [`open_and_check`]; `explore` may look at crash points before the oracle goes on from what was found.
pub fn open_and_explore(
    storage: &SimStorage,
    options: Options,
    oracle: &mut Oracle,
    context: &str,
    explore: impl FnOnce(&Oracle),
) -> Option<Database> {
    let opened = Database::open_on(Arc::new(storage.clone()), options);
    let db = match opened {
        Ok(db) => db,
        Err(error) => {
            assert!(
                storage.is_crashed(),
                "{context}: opening failed without a crash: {error}"
            );
            explore(oracle);
            return None;
        }
    };
    let found = read_all(&db).unwrap_or_else(|error| panic!("{context}: reading failed: {error}"));
    explore(oracle);
    if storage.is_crashed() {
        // Opened just before the crash: what was seen may not have been durable yet.
        drop(db);
        return None;
    }
    oracle.settle(found, context);
    // What was kept meanwhile refers to states that the oracle has forgotten.
    CrashPoints::note_opening(storage, oracle);
    drop(storage.take_captures());
    let report = db.verify().expect("verify");
    assert!(report.errors.is_empty(), "{context}: {:?}", report.errors);
    Some(db)
}

/// A transaction that is left open while others go on.
struct LongTxn {
    txn: WriteTxn,
    keyspace: Keyspace,
    name: String,
    map: Map,
    /// It has looked at the clock.
    is_timed: bool,
}

/// A snapshot, with what it has to show for ever.
struct HeldSnapshot {
    snapshot: Snapshot,
    keyspaces: Vec<(Keyspace, Arc<Map>)>,
    /// The time that it goes by, if it has looked at the clock.
    now: Option<u64>,
}

/// A client that does random things to a database, one at a time.
pub struct Client<'a> {
    pub db: Database,
    pub storage: SimStorage,
    pub oracle: &'a mut Oracle,
    pub random: &'a mut Random,
    /// Faults are being injected: failures without a crash are to be expected.
    pub faults: bool,
    /// Durability of the database.
    pub durability: Durability,
    /// If that of the database waits for the disk, so does each commit.
    pub only_waits: bool,
    /// With what the database is opened again, if it is.
    pub reopen_with: Option<Options>,
    /// Where the crash points of the storage are looked at, and what is said if one is bad.
    pub explores: Option<(&'a CrashPoints, String)>,
    /// A close takes a checkpoint.
    closes_with_checkpoint: bool,
    long: Option<LongTxn>,
    held: Vec<HeldSnapshot>,
    operation: usize,
}

/// Why a step ended early.
enum Stop {
    Ended(Outcome),
    /// A step failed and left no trace.
    Failed,
}

type Step = Result<(), Stop>;

impl<'a> Client<'a> {
    pub fn new(
        db: Database,
        storage: &SimStorage,
        oracle: &'a mut Oracle,
        random: &'a mut Random,
    ) -> Client<'a> {
        let only_waits = random.one_in(2);
        Client {
            db,
            storage: storage.clone(),
            oracle,
            random,
            faults: false,
            durability: Durability::None,
            only_waits,
            reopen_with: None,
            closes_with_checkpoint: true,
            explores: None,
            long: None,
            held: Vec::new(),
            operation: 0,
        }
    }

    /// Does `steps` things. Drops its handle of the database in the end.
    pub fn work(mut self, steps: u64) -> Outcome {
        self.work_on(steps)
    }

    /// As [`Client::work`], but keeps its handle, and gives the one that it has in the end, and whether closing that takes a checkpoint.
    pub fn work_and_return(mut self, steps: u64) -> (Outcome, Database, bool) {
        let outcome = self.work_on(steps);
        (outcome, self.db, self.closes_with_checkpoint)
    }

    fn work_on(&mut self, steps: u64) -> Outcome {
        for _ in 0..steps {
            self.operation = Operation::draw(self.random);
            self.note();
            let step = OPERATIONS[self.operation].perform(self);
            if let Some((points, context)) = &self.explores {
                let context = format!("{context}, {}", OPERATIONS[self.operation].name);
                points.explore(&self.storage, self.oracle, self.random, &context);
            }
            if self.storage.is_crashed() {
                return Outcome::Crashed;
            }
            match step {
                Ok(()) | Err(Stop::Failed) => {}
                Err(Stop::Ended(outcome)) => return outcome,
            }
        }
        Outcome::Done
    }

    /// Tells the disk what is acknowledged, for those who look at a crash point later.
    fn note(&self) {
        self.storage
            .set_note(self.oracle.note(self.operation).words());
    }

    /// A commit is under way that would lead here.
    fn try_for(&mut self, next: Content, step: String) {
        self.oracle.push(next, step);
        self.note();
    }

    /// Something that makes everything durable has returned.
    fn all_is_durable(&mut self, how: &str) {
        if !self.storage.is_crashed() {
            self.oracle.flushed(how);
            self.note();
        }
    }

    /// Judges the result of a step that changes nothing by itself.
    fn check<T>(&mut self, result: Result<T, Error>) -> Result<T, Stop> {
        match result {
            Ok(value) => Ok(value),
            Err(_) if self.storage.is_crashed() => Err(Stop::Ended(Outcome::Crashed)),
            Err(error) => {
                assert!(self.faults, "failed without a crash or fault: {error}");
                match self.db.begin(&[]) {
                    Err(Error::Poisoned { cause }) => Err(Stop::Ended(Outcome::Poisoned(cause))),
                    _ => Err(Stop::Failed),
                }
            }
        }
    }

    /// Judges a commit whose outcome the oracle has as its newest state.
    fn committed(&mut self, result: Result<(), Error>, durable: bool) -> Step {
        if self.storage.is_crashed() {
            return Err(Stop::Ended(Outcome::Crashed));
        }
        let ok = result.is_ok();
        let step = self.check(result);
        match &step {
            Ok(()) => self.oracle.acknowledge(durable),
            Err(Stop::Failed) => self.oracle.undo(),
            Err(Stop::Ended(_)) => debug_assert!(!ok),
        }
        self.note();
        step
    }
}

fn waits(durability: Durability) -> bool {
    matches!(durability, Durability::Sync | Durability::WriteThrough)
}
