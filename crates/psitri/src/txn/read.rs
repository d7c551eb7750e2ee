//! What a transaction reads: its own writes over everything committed.

use super::{Part, WriteTxn};
use crate::{
    Cursor, Expiry, Keyspace, ReadMode, Result,
    buffer::{Found, KeyspaceBuffer, PREFETCH_KEYS_MAX, hash_of, hashes_of},
    expiry,
    layers::{CSN_NEWEST, View, read_large},
    sync::Ordering,
};

/// Where a key of the transaction is looked for first.
#[derive(Clone, Copy)]
pub(crate) struct OwnPlace {
    index: usize,
    hash: u32,
}

impl WriteTxn {
    /// The value of `key`, with the transaction's own writes. The slice is not a copy.
    ///
    /// In a keyspace that the transaction was not begun with, this reads what was committed when it began; or when it outgrew the write buffer for the first
    /// time, or [loaded](WriteTxn::ingest) something, if it did.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(txn.get(&ks, b"k")?, Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn get<'t>(&'t self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&'t [u8]>> {
        let Ok(index) = self.part_index(keyspace) else {
            return self.foreign_view(keyspace)?.get(key);
        };
        let part = &self.parts[index];
        if part.owed.as_ref().is_some_and(|owed| owed.covers(key)) {
            return Ok(None);
        }
        let buffer = part
            .guard
            .buffer
            .as_ref()
            .expect("an open part has a writer");
        match buffer.get(key) {
            Found::Absent => self.view_below(part).get(key),
            Found::Deleted => Ok(None),
            Found::Value(value) if !part.expires => Ok(Some(value)),
            Found::Value(stored) => self.open(stored),
            Found::Large(pointer) => {
                let value = read_large(&self.db.engine.pager, pointer)?;
                if part.expires {
                    return self.open(value);
                }
                Ok(Some(value))
            }
        }
    }

    /// The value in one as it is stored where entries expire. Not inlined, as the next: other keyspaces pass them by.
    #[inline(never)]
    fn open<'v>(&self, stored: &'v [u8]) -> Result<Option<&'v [u8]>> {
        expiry::open_value(stored, self.now())
    }

    /// The time that the transaction goes by (`expiry.rs`).
    #[inline(never)]
    pub(crate) fn now(&self) -> u64 {
        self.now.known().unwrap_or_else(|| self.look_at_clock())
    }

    #[cold]
    fn look_at_clock(&self) -> u64 {
        // In this order: (4) of `expiry.rs`.
        self.tell_merges(1);
        let now = self.now.get(&self.db.engine.options.clock);
        self.tell_merges(now);
        now
    }

    /// Goes by the time of another reader.
    pub(crate) fn set_now(&self, now: u64) {
        self.now.set(now);
        self.tell_merges(now);
    }

    fn tell_merges(&self, now: u64) {
        for part in self.parts.iter().filter(|part| part.expires) {
            part.core().writer_now.store(now, Ordering::SeqCst);
        }
    }

    /// The time that decides what has expired in a part; 0 where nothing does.
    #[inline]
    pub(super) fn part_now(&self, part: &Part) -> u64 {
        if part.expires { self.now() } else { 0 }
    }

    /// When the entry of `key` expires, with the transaction's own writes: [`Expiry::Never`] or [`Expiry::At`]; `None` if it is absent.
    /// Entries of a keyspace without expiry never do.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(txn.expiry(&ks, b"k")?, Some(Expiry::Never));
    /// assert_eq!(txn.expiry(&ks, b"absent")?, None);
    /// # Ok(()) }
    /// ```
    pub fn expiry(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Expiry>> {
        let found = self.get_expiring(keyspace, key)?;
        Ok(found.map(|(expires, _)| Expiry::from_stored(expires)))
    }

    /// A value, and the moment of its expiry as stored: 0 for never.
    pub(crate) fn get_expiring<'t>(
        &'t self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<(u64, &'t [u8])>> {
        if !keyspace.core.expires() {
            return Ok(self.get(keyspace, key)?.map(|value| (0, value)));
        }
        let Ok(index) = self.part_index(keyspace) else {
            return self.foreign_view(keyspace)?.get_expiring(key);
        };
        let part = &self.parts[index];
        let buffer = part.guard.buffer.as_ref();
        match buffer.expect("an open part has a writer").get(key) {
            Found::Absent => self.view_below(part).get_expiring(key),
            Found::Deleted => Ok(None),
            Found::Value(stored) => expiry::open(stored, self.now()),
            Found::Large(pointer) => {
                let stored = read_large(&self.db.engine.pager, pointer)?;
                expiry::open(stored, self.now())
            }
        }
    }

    /// Asks for the line of the own buffer's directory in which the search for a key will begin. What it says is for
    /// [`WriteTxn::prefetch_own_entry`], some steps later.
    #[inline]
    pub(crate) fn prefetch_own_place(&self, keyspace: &Keyspace, key: &[u8]) -> Option<OwnPlace> {
        let index = self.part_index(keyspace).ok()?;
        let hash = hash_of(key);
        self.own_buffer(index).prefetch_directory(&[hash]);
        Some(OwnPlace { index, hash })
    }

    /// Asks for the entry that the directory names for a key. A hint, which may come after the transaction took another buffer.
    #[inline]
    pub(crate) fn prefetch_own_entry(&self, place: OwnPlace) {
        if place.index < self.parts.len() {
            self.own_buffer(place.index).prefetch_entry(place.hash);
        }
    }

    #[inline(always)]
    pub(super) fn own_buffer(&self, index: usize) -> &KeyspaceBuffer {
        let writer = self.parts[index].guard.buffer.as_ref();
        writer.expect("an open part has a writer").buffer()
    }

    /// Announces that these keys will be read or written soon: their cache misses overlap instead of following one another.
    /// What it waits for, [`Database::prefetch`](crate::Database::prefetch) says. A hint; it changes nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.prefetch(&ks, &[b"alice", b"bob"]);
    /// txn.upsert(&ks, b"alice", b"90")?;
    /// txn.upsert(&ks, b"bob", b"30")?;
    /// # txn.commit() }
    /// ```
    #[inline]
    pub fn prefetch(&self, keyspace: &Keyspace, keys: &[&[u8]]) {
        let Ok(index) = self.part_index(keyspace) else {
            return;
        };
        let part = &self.parts[index];
        let own = part
            .guard
            .buffer
            .as_ref()
            .expect("an open part has a writer")
            .buffer();
        let below = self.view_below(part);
        for keys in keys.chunks(PREFETCH_KEYS_MAX) {
            let hashes = &hashes_of(keys)[..keys.len()];
            own.prefetch_directory(hashes);
            below.prefetch_directories(hashes);
            let missing = own.prefetch(keys, hashes, u32::MAX >> (32 - keys.len()));
            if missing != 0 {
                below.prefetch(keys, hashes, missing);
            }
        }
    }

    /// A cursor that sees the transaction's own writes. Nothing can be written while it lives.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// let mut cursor = txn.cursor(&ks)?;
    /// assert!(cursor.seek_first()?);
    /// assert_eq!(cursor.key(), b"k");
    /// # Ok(()) }
    /// ```
    pub fn cursor<'t>(&'t self, keyspace: &Keyspace) -> Result<Cursor<'t>> {
        let Ok(index) = self.part_index(keyspace) else {
            return Ok(Cursor::over(self.foreign_view(keyspace)?));
        };
        let part = &self.parts[index];
        let writer = part.guard.buffer.as_ref();
        let writer = writer.expect("an open part has a writer");
        let cursor = Cursor::over_own(writer.cursor(), writer.buffer(), self.view_below(part));
        Ok(match &part.owed {
            None => cursor,
            Some(owed) => {
                let (first, end) = owed.living();
                cursor.living_within(first, end)
            }
        })
    }

    /// Number of keys in the transaction's view of a range.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(txn.count(&ks, ..)?, 1);
    /// # Ok(()) }
    /// ```
    pub fn count<'k>(
        &self,
        keyspace: &Keyspace,
        range: impl std::ops::RangeBounds<&'k [u8]>,
    ) -> Result<u64> {
        let mut cursor = self.cursor(keyspace)?.with_range(range);
        let mut count = 0;
        let mut found = cursor.seek_first()?;
        while found {
            count += 1;
            found = cursor.next()?;
        }
        Ok(count)
    }

    /// Whether the transaction was begun with a keyspace.
    pub(crate) fn holds(&self, keyspace: &Keyspace) -> bool {
        self.part_index(keyspace).is_ok()
    }

    /// Whether a keyspace of the transaction has a commit newer than `csn`.
    pub(crate) fn is_changed_since(&self, keyspace: &Keyspace, csn: u64) -> Result<bool> {
        let part = &self.parts[self.part_index(keyspace)?];
        let own = part.guard.buffer.as_ref();
        let own = own.map_or(0, |own| own.buffer().stats().csn_last);
        let below = self.view_below(part).buffers();
        let buffered = below.map(|buffer| buffer.stats().csn_last).max();
        let merged = self.state().keyspace(part.slot, part.id);
        let merged = merged.map_or(u64::MAX, |keyspace| keyspace.csn_merged);
        Ok(own.max(buffered.unwrap_or(0)).max(merged) > csn)
    }

    /// What lies below the buffer that the transaction writes to.
    pub(super) fn view_below(&self, part: &Part) -> View<'_> {
        let generations = match self.private {
            Some(_) => &[],
            None => &self.state().generations[1..],
        };
        View {
            pager: &self.db.engine.pager,
            generations,
            slot: part.slot,
            generation_merged: part.generation_merged,
            sliced: None,
            lookups: None,
            csn: CSN_NEWEST,
            root: part.root,
            now: self.part_now(part),
        }
    }

    fn foreign_view(&self, keyspace: &Keyspace) -> Result<View<'_>> {
        self.check_not_undone()?;
        let engine = &self.db.engine;
        let state = self.state();
        let core = &keyspace.core;
        let found = engine.keyspace_state(state, core)?;
        let now = if core.expires() { self.now() } else { 0 };
        Ok(View::new(
            &engine.pager,
            state,
            found,
            core.slot,
            self.csn,
            ReadMode::Latest,
            now,
        ))
    }
}
