//! What a keyspace holds, and until when.
//!
//! An entry that has expired is absent. Whether it is still on the disk is the business of merges: to one whose clock is set back it may show again, or
//! not. It is kept here as a ghost. What was older under its key shows to nobody.
use super::clock::from_system;
use psitri::{Expiry, KeyspaceOptions};
use std::{collections::BTreeMap, ops::Deref, sync::Arc};

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub value: Arc<[u8]>,
    /// In milliseconds since the Unix epoch; 0 is never.
    pub expires: u64,
}

impl Entry {
    fn is_past(&self, now: u64) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// The time at which a database is looked at, and the latest that it may have gone by: what had expired then may have been dropped.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    pub now: u64,
    pub latest: u64,
}

impl Time {
    /// The clock was never set back.
    pub fn exactly(now: u64) -> Time {
        Time { now, latest: now }
    }
}

/// Reads like a map of what was there at `now`; what is written counts from then.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map {
    pub options: KeyspaceOptions,
    live: BTreeMap<Vec<u8>, Entry>,
    /// More than one for a key, if it is not known which.
    ghosts: BTreeMap<Vec<u8>, Vec<Entry>>,
    /// Its leaves may be those of others, too: what has expired there stays.
    is_shared: bool,
    /// The time that the last one who wrote went by; in a saved snapshot, when it was saved.
    now: u64,
}

impl Deref for Map {
    type Target = BTreeMap<Vec<u8>, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.live
    }
}

impl Map {
    pub fn new(options: KeyspaceOptions) -> Map {
        Map {
            options,
            ..Map::default()
        }
    }

    pub fn expires(&self) -> bool {
        self.options.do_entries_expire()
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// Somebody goes by this time from now on.
    pub fn go_by(&mut self, now: u64) {
        self.now = now;
        let past = self.live.iter().filter(|(_, entry)| entry.is_past(now));
        let past: Vec<_> = past.map(|(key, _)| key.clone()).collect();
        for key in past {
            let (key, entry) = self.live.remove_entry(&key).expect("it was found");
            self.ghosts.insert(key, vec![entry]);
        }
    }

    /// What is there at a time that is not before `now`.
    pub fn at(&self, now: u64) -> impl Iterator<Item = (&[u8], &Entry)> {
        let all = self.live.iter().map(|(key, entry)| (&key[..], entry));
        all.filter(move |(_, entry)| !entry.is_past(now))
    }

    /// Whether a database that holds this may be found to hold `found`.
    pub fn shows(&self, found: &Map, time: Time) -> bool {
        if !self.expires() {
            return self.options == found.options && self.live == found.live;
        }
        let is_due = |entry: &Entry| !entry.is_past(time.latest);
        let is_known = |key: &Vec<u8>, entry: &Entry| {
            let ghosts = self.ghosts.get(key);
            self.live.get(key) == Some(entry) || ghosts.is_some_and(|ghosts| ghosts.contains(entry))
        };
        let mut shown = found.live.iter();
        let mut due = self.live.iter().filter(|(_, entry)| is_due(entry));
        self.options == found.options
            && shown.all(|(key, entry)| !entry.is_past(time.now) && is_known(key, entry))
            && due.all(|(key, _)| found.live.contains_key(key))
    }

    /// As it was read.
    pub fn found(&mut self, key: &[u8], value: &[u8], expires: u64) {
        let value = Arc::from(value);
        self.live.insert(key.to_vec(), Entry { value, expires });
    }

    /// Until the keyspace's default.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let expiry = match self.options.expires_after() {
            Some(after) => Expiry::After(after),
            None => Expiry::Never,
        };
        self.put_until(key, value, expiry);
    }

    pub fn put_until(&mut self, key: Vec<u8>, value: Vec<u8>, expiry: Expiry) {
        let expires = self.moment(expiry);
        let value = Arc::from(value);
        let entry = Entry { value, expires };
        if entry.is_past(self.now) {
            self.live.remove(&key);
            self.ghosts.insert(key, vec![entry]);
        } else {
            self.ghosts.remove(&key);
            self.live.insert(key, entry);
        }
    }

    pub fn moment(&self, expiry: Expiry) -> u64 {
        match expiry {
            Expiry::Never => 0,
            Expiry::After(after) => {
                assert!(self.now != 0, "the time is known");
                self.now + after.as_millis() as u64
            }
            Expiry::At(at) => from_system(at),
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        self.live.remove(key)
    }

    pub fn pop_first(&mut self) -> Option<(Vec<u8>, Entry)> {
        self.live.pop_first()
    }

    pub fn pop_last(&mut self) -> Option<(Vec<u8>, Entry)> {
        self.live.pop_last()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        self.live.retain(|key, _| keep(key));
    }

    /// Those that have expired, too.
    pub fn remove_range(&mut self, lo: &[u8], hi: Option<&[u8]>) {
        let keep = |key: &[u8]| key < lo || hi.is_some_and(|hi| key >= hi);
        self.live.retain(|key, _| keep(key));
        self.ghosts.retain(|key, _| keep(key));
    }

    /// Others have the same leaves from now on.
    pub fn share(&mut self) {
        self.is_shared = true;
    }

    /// All that had expired was dropped.
    pub fn drop_expired(&mut self, now: u64) {
        if !self.is_shared {
            self.go_by(now);
            self.ghosts.clear();
        }
    }

    /// It is not known which of both it is; both show the same.
    pub fn or(&mut self, other: &Map) {
        self.is_shared |= other.is_shared;
        for (key, entries) in &other.ghosts {
            let known = self.ghosts.entry(key.clone()).or_default();
            for entry in entries {
                if !known.contains(entry) {
                    known.push(entry.clone());
                }
            }
        }
    }
}
