//! Expiry: entries that are absent from a moment on.
//!
//! In a keyspace whose entries expire every stored value begins with the moment of its expiry: milliseconds since the Unix epoch, as a
//! little-endian u64; 0 is never. Buffers, log, leaves and values out of line hold it like any other bytes, and know nothing of it. Whoever reads
//! for a user takes it off; merges look at it to drop what has expired.
//!
//! # Thread safety
//! Plain data, but for [`Moment`], which several threads may ask at once.
//!
//! # Invariants
//! (1) Each reader looks at the clock at most once, when it first needs the time, and goes by that time for all its life.
//! (2) An entry that has expired is absent, and hides what is older under its key like a removed one. A merge makes a removal of it, so that
//!     nothing older comes back.
//! (3) No time is 0: there it stands for keyspaces without expiry.
//! (4) While a transaction goes by a time, merges of the keyspaces that it writes to go by none that is later: what it sees it goes on seeing when
//!     it spills, and from then on reads what was merged meanwhile. `KeyspaceCore::writer_now` is the time, 1 while the transaction looks at the
//!     clock, and 0 without one; a merge looks at the clock before it asks for it.
//!
//! # Failure modes
//! A stored value that is too short for its moment is damage. A clock that is set back makes expired entries visible again, unless a merge
//! has dropped them by then.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use smallvec::SmallVec;

use crate::{
    Result, VALUE_BYTES_MAX,
    error::Error,
    node::Stored,
    pager::{DATA_FILE, Pager},
    sync::{Arc, AtomicU64, Ordering},
};

/// What is in front of each value.
pub(crate) const EXPIRY_BYTES: usize = 8;

/// When an entry expires. Moments are kept in milliseconds; what lies between two is rounded up.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// use psitri::{Expiry, KeyspaceOptions};
/// use std::time::Duration;
/// let sessions = db.create_keyspace_with("sessions", KeyspaceOptions::new().entries_expire())?;
/// let mut txn = db.begin(&[&sessions])?;
/// txn.upsert_expiring(&sessions, b"alice", b"token", Expiry::After(Duration::from_secs(600)))?;
/// txn.commit()?;
/// assert!(matches!(db.snapshot().expiry(&sessions, b"alice")?, Some(Expiry::At(_))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// It stays until it is removed.
    Never,
    /// So long after the moment at which its transaction first looked at the clock.
    After(Duration),
    /// At this moment: from then on it is absent. One that has passed is allowed.
    At(SystemTime),
}

impl Expiry {
    /// As stored.
    pub(crate) fn resolve(self, now: impl FnOnce() -> u64) -> Result<u64> {
        let resolved = match self {
            Expiry::Never => return Ok(0),
            Expiry::After(after) => millis(after).and_then(|after| now().checked_add(after)),
            // Before the epoch is as good as at its beginning (3).
            Expiry::At(at) => {
                let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
                millis(since).map(|at| at.max(1))
            }
        };
        let has_moment = |&at: &u64| moment(at).is_some();
        resolved.filter(has_moment).ok_or(Error::ExpiryTooFar)
    }

    /// From what is stored.
    pub(crate) fn from_stored(expires: u64) -> Expiry {
        match expires {
            0 => Expiry::Never,
            at => moment(at).map_or(Expiry::Never, Expiry::At),
        }
    }
}

fn moment(millis: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// A duration in milliseconds, rounded up.
pub(crate) fn millis(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).ok()
}

/// Where the time comes from.
#[derive(Clone, Default)]
pub(crate) struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    pub fn new(source: impl Fn() -> SystemTime + Send + Sync + 'static) -> Clock {
        Clock(Some(Arc::new(source)))
    }

    /// Milliseconds since the Unix epoch, rounded down; at least 1 (3).
    pub fn now(&self) -> u64 {
        let now = match &self.0 {
            Some(source) => source(),
            None => SystemTime::now(),
        };
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_own = self.0.is_some();
        f.write_str(if is_own { "a clock" } else { "the system's" })
    }
}

/// The time of one reader (1); 0 before it was needed.
#[derive(Default)]
pub(crate) struct Moment(AtomicU64);

impl Moment {
    /// The time, if the clock was looked at.
    #[inline]
    pub fn known(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&now| now != 0)
    }

    pub fn get(&self, clock: &Clock) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => self.look(clock),
            now => now,
        }
    }

    #[cold]
    fn look(&self, clock: &Clock) -> u64 {
        let now = clock.now();
        // Of several threads the first one counts.
        match (self.0).compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(earlier) => earlier,
        }
    }

    /// Goes by the time of another reader.
    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

/// A value with its moment; a short one takes no memory of its own.
pub(crate) type StoredValue = SmallVec<[u8; 256]>;

/// A value as it is stored in a keyspace whose entries expire.
pub(crate) fn stored(expires: u64, value: &[u8]) -> StoredValue {
    let mut stored = StoredValue::with_capacity(EXPIRY_BYTES + value.len());
    stored.extend_from_slice(&expires.to_le_bytes());
    stored.extend_from_slice(value);
    stored
}

/// An error if a value and its moment together are too long.
pub(crate) fn check_expiring_value(value: &[u8]) -> Result<()> {
    let max = VALUE_BYTES_MAX - EXPIRY_BYTES as u64;
    if value.len() as u64 > max {
        return Err(Error::ValueTooLong {
            bytes: value.len() as u64,
            max,
        });
    }
    Ok(())
}

#[inline]
fn split(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (expires, value) = stored.split_first_chunk::<EXPIRY_BYTES>()?;
    Some((u64::from_le_bytes(*expires), value))
}

/// Whether what expires at `expires` has expired.
#[inline]
pub(crate) fn is_past(expires: u64, now: u64) -> bool {
    expires != 0 && expires <= now
}

/// Takes a stored value apart: when it expires, and what its user wrote. `None` if it has expired.
#[inline]
pub(crate) fn open(stored: &[u8], now: u64) -> Result<Option<(u64, &[u8])>> {
    let (expires, value) = split(stored).ok_or_else(too_short)?;
    Ok((!is_past(expires, now)).then_some((expires, value)))
}

/// As [`open`], without the moment. Not inlined: keyspaces without expiry pass it by.
#[inline(never)]
pub(crate) fn open_value(stored: &[u8], now: u64) -> Result<Option<&[u8]>> {
    Ok(open(stored, now)?.map(|(_, value)| value))
}

#[cold]
fn too_short() -> Error {
    Error::corrupted(DATA_FILE, 0, "a value lacks its moment of expiry")
}

/// Whether a value as it is stored has expired.
pub(crate) fn is_stored_past(stored: &[u8], now: u64) -> bool {
    split(stored).is_some_and(|(expires, _)| is_past(expires, now))
}

/// Entries of a keyspace expire.
const FLAG_EXPIRY: u8 = 1;

/// Writes what the catalog says of a keyspace's expiry: flags u8, with flag 1 the default u64.
pub(crate) fn write_keyspace_expiry(out: &mut Vec<u8>, expiry: Option<u64>) {
    match expiry {
        None => out.push(0),
        Some(after) => {
            out.push(FLAG_EXPIRY);
            out.extend_from_slice(&after.to_le_bytes());
        }
    }
}

/// Reads what [`write_keyspace_expiry`] wrote, and gives what is behind it.
pub(crate) fn read_keyspace_expiry(bytes: &[u8]) -> Option<(Option<u64>, &[u8])> {
    match bytes.split_first()? {
        (0, rest) => Some((None, rest)),
        (&FLAG_EXPIRY, rest) => {
            let (after, rest) = rest.split_first_chunk::<8>()?;
            Some((Some(u64::from_le_bytes(*after)), rest))
        }
        _ => None,
    }
}

/// Tells a merge what has expired.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'p> {
    pager: &'p Pager,
    now: u64,
}

impl<'p> Judge<'p> {
    /// `None` for time 0: a keyspace without expiry.
    pub fn new(pager: &'p Pager, now: u64) -> Option<Judge<'p>> {
        (now != 0).then_some(Judge { pager, now })
    }

    /// Whether a merge may drop it. What is damaged is kept, for readers to find.
    #[inline(never)]
    pub fn is_expired(self, stored: Stored<'_>) -> bool {
        let is_past = |stored| is_stored_past(stored, self.now);
        match stored {
            Stored::Inline(stored) => is_past(stored),
            // Only what seems to have expired is read as a whole, to be sure.
            Stored::External(pointer) => {
                let head = self.pager.value_head(&pointer, EXPIRY_BYTES);
                head.is_some_and(is_past) && self.pager.value(&pointer).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rounded_up_and_do_not_wrap() {
        let after = |duration| Expiry::After(duration).resolve(|| 1000);
        assert_eq!(after(Duration::ZERO).unwrap(), 1000);
        assert_eq!(after(Duration::from_nanos(1)).unwrap(), 1001);
        assert_eq!(after(Duration::from_millis(7)).unwrap(), 1007);
        for far in [Duration::MAX, Duration::from_millis(u64::MAX)] {
            assert!(matches!(after(far), Err(Error::ExpiryTooFar)), "{far:?}");
        }
        let at = |at| Expiry::At(at).resolve(|| unreachable!("it names a moment"));
        assert_eq!(at(UNIX_EPOCH).unwrap(), 1);
        assert_eq!(at(UNIX_EPOCH - Duration::from_secs(9)).unwrap(), 1);
        assert_eq!(at(UNIX_EPOCH + Duration::from_micros(1001)).unwrap(), 2);
        assert_eq!(Expiry::Never.resolve(|| 5).unwrap(), 0);
    }

    #[test]
    fn an_entry_is_there_up_to_its_moment_and_not_at_it() {
        let mut stored = stored(50, b"v");
        assert_eq!(open(&stored, 49).unwrap(), Some((50, &b"v"[..])));
        assert_eq!(open(&stored, 50).unwrap(), None);
        stored[..8].fill(0);
        assert_eq!(open(&stored, u64::MAX).unwrap(), Some((0, &b"v"[..])));
        assert!(open(&stored[..7], 1).is_err());
    }

    #[test]
    fn a_clock_before_the_epoch_stands_at_its_beginning() {
        assert_eq!(Clock::new(|| UNIX_EPOCH).now(), 1);
        assert_eq!(Clock::new(|| UNIX_EPOCH - Duration::from_secs(1)).now(), 1);
    }
}
