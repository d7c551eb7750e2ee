//! A clock that stands until a test moves it, in milliseconds since the Unix epoch.
use super::{Content, Random};
use psitri::{Expiry, Options};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const BEGINNING: u64 = 1_000_000_000;
/// Most entries that expire do so within this time.
const SOON: u64 = 300;

#[derive(Clone)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn new() -> Clock {
        Clock::at(BEGINNING)
    }

    pub fn at(now: u64) -> Clock {
        Clock(Arc::new(AtomicU64::new(now)))
    }

    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::SeqCst);
    }

    /// Options of a database that goes by this clock.
    pub fn tells(&self, options: Options) -> Options {
        let clock = self.clone();
        options.clock(move || to_system(clock.now()))
    }
}

pub fn to_system(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

pub fn from_system(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).expect("after the epoch");
    since.as_millis() as u64
}

/// When an entry is to expire: never, soon, late, or before it is written.
pub fn some_expiry(random: &mut Random, now: u64) -> Expiry {
    let soon = 1 + random.below(SOON);
    match random.below(16) {
        0..4 => Expiry::Never,
        4..9 => Expiry::After(Duration::from_millis(soon)),
        9..12 => Expiry::At(to_system(now + soon)),
        12..14 => Expiry::After(Duration::from_secs(3600)),
        14 => Expiry::After(Duration::ZERO),
        _ => Expiry::At(to_system(now - soon)),
    }
}

/// A later time: a little, to the very moment at which an entry expires or just before it, or so much that most of what expires soon has.
pub fn some_time_later(content: &Content, now: u64, random: &mut Random) -> u64 {
    match random.below(8) {
        0..3 => now + 1 + random.below(20),
        3..6 => some_moment(content, now, random).unwrap_or(now + 1),
        6 => some_moment(content, now, random).map_or(now, |moment| moment - 1),
        _ => now + random.below(2 * SOON),
    }
}

/// The moment, not far from now, at which some entry expires.
fn some_moment(content: &Content, now: u64, random: &mut Random) -> Option<u64> {
    let is_near = |&moment: &u64| moment > now && moment <= now + 2 * SOON;
    let moments: Vec<u64> = content
        .values()
        .filter(|map| map.options.do_entries_expire())
        .flat_map(|map| map.values().map(|entry| entry.expires).filter(is_near))
        .collect();
    let which = random.next();
    let count = moments.len() as u64;
    (count != 0).then(|| moments[(which % count) as usize])
}
