//! Optimistic transactions: any number at a time on one keyspace, checked when they commit.
//!
//! A transaction reads one snapshot, keeps what it writes to itself, and takes the write locks only to commit: then it compares what it
//! depends on in the snapshot with what is there now, and writes if nothing has changed.
//!
//! # Invariants
//! (1) Between the comparison and the commit the transaction holds the write locks of every keyspace that it read (if that counts) or wrote.
//! (2) What was read is kept as keys and as ranges: a range is all keys between its bounds, those that were not there included, so that a new
//!     key in it is a change (a phantom).
//! (3) A key has changed if its value has, or the moment of its expiry. A value that was changed and changed back makes no difference to anyone, so that the outcome is
//!     the same as if the transactions had run one after the other, in the order of their commits.
//! (4) A keyspace without a commit newer than the snapshot has not changed; nothing of it is compared.
//!
//! (5) All of it goes by the time of the snapshot: an entry that expires meanwhile is no change, unless a merge has dropped it; then it is taken
//!     for one.
//!
//! # Failure modes
//! [`Error::Conflict`]: nothing was written. The transaction is gone; [`Database::transact`] begins it again.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow, RangeBounds},
};

use crate::{
    Database, Durability, Expiry, Keyspace, Result, Snapshot, WriteTxn,
    cursor::key_range,
    error::Error,
    expiry::{check_expiring_value, is_past},
    sync::Arc,
    txn::{check_expires, check_key, check_value},
};

/// What an optimistic transaction is kept apart from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Nobody else may have changed what the transaction writes. Lost updates cannot happen. Two transactions that read what the other one
    /// writes may both commit (write skew).
    Snapshot,
    /// Nobody else may have changed what the transaction read or writes, new keys in ranges that it read included. The outcome is that of
    /// the transactions one after the other, in the order of their commits.
    #[default]
    Serializable,
}

/// A transaction that takes no lock before it commits. Made by [`Database::begin_optimistic`]; forgotten when dropped.
///
/// What it writes is kept in memory until it commits. It belongs to one thread at a time.
pub struct OptimisticTxn {
    db: Database,
    snapshot: Snapshot,
    isolation: Isolation,
    written: Vec<Written>,
    read: RefCell<Vec<Read>>,
}

/// What was written to one keyspace: values, and `None` for removed keys and those that have expired.
struct Written {
    keyspace: Keyspace,
    changes: BTreeMap<Vec<u8>, Option<NewValue>>,
}

struct NewValue {
    bytes: Vec<u8>,
    /// Moment of its expiry as stored; 0 for never.
    expires: u64,
}

/// What was read of one keyspace (2).
struct Read {
    keyspace: Keyspace,
    keys: BTreeSet<Vec<u8>>,
    ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn is_same(a: &Keyspace, b: &Keyspace) -> bool {
    Arc::ptr_eq(&a.core, &b.core)
}

impl Database {
    /// Begins a transaction that takes no locks before it commits: for many transactions at a time that read and write a few keys each of one
    /// keyspace. It may fail to commit, with [`Error::Conflict`], where one made by [`Database::begin`] would have waited.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let stock = db.create_keyspace("stock")?;
    /// use psitri::{Error, Isolation};
    /// let mut one = db.begin_optimistic(Isolation::Serializable);
    /// let mut two = db.begin_optimistic(Isolation::Serializable);
    /// for txn in [&mut one, &mut two] {
    ///     if txn.get(&stock, b"last seat")?.is_none() {
    ///         txn.upsert(&stock, b"last seat", b"taken")?;
    ///     }
    /// }
    /// one.commit()?;
    /// assert!(matches!(two.commit(), Err(Error::Conflict { .. })));
    /// # Ok(()) }
    /// ```
    pub fn begin_optimistic(&self, isolation: Isolation) -> OptimisticTxn {
        OptimisticTxn {
            db: self.clone(),
            snapshot: self.snapshot(),
            isolation,
            written: Vec::new(),
            read: RefCell::default(),
        }
    }

    /// Runs an optimistic transaction, again and again until it commits or `body` fails. Gives what `body` gave the last time.
    ///
    /// After a conflict it takes the write locks of the keyspaces that it used before it begins again, so that it cannot lose a second time,
    /// unless it then uses others. `body` therefore must not begin another transaction on them, nor write to them in another way, nor drop them.
    /// Where somebody else drops one of them before the commit, `body` begins again, too, and finds that it is gone, or another one of its name; and where it uses
    /// a keyspace that was created after the snapshot of the transaction was taken, by itself or by somebody else.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let counters = db.create_keyspace("counters")?;
    /// use psitri::Isolation;
    /// let total = db.transact(Isolation::Snapshot, |txn| {
    ///     let before = txn.get(&counters, b"visits")?.map_or(0, |value| value[0]);
    ///     txn.upsert(&counters, b"visits", &[before + 1])?;
    ///     Ok(before + 1)
    /// })?;
    /// assert_eq!(total, 1);
    /// # Ok(()) }
    /// ```
    pub fn transact<R>(
        &self,
        isolation: Isolation,
        mut body: impl FnMut(&mut OptimisticTxn) -> Result<R>,
    ) -> Result<R> {
        let mut used: Vec<Keyspace> = Vec::new();
        loop {
            let locks = match used.as_slice() {
                [] => None,
                used => match self.begin(&used.iter().collect::<Vec<_>>()) {
                    // `body` finds another one of that name, or says what is missing.
                    Err(Error::KeyspaceGone { .. }) => None,
                    locks => Some(locks?),
                },
            };
            // After the locks: the snapshot has the commits of those who held them before, once they are visible.
            if locks.is_some() {
                self.core.engine.flush_unseen()?;
            }
            let mut txn = self.begin_optimistic(isolation);
            let result = match body(&mut txn) {
                // The next snapshot knows it.
                Err(Error::KeyspaceGone { name }) if txn.is_older_than(&name) => {
                    used.clear();
                    continue;
                }
                result => result?,
            };
            let durability = self.core.engine.options.durability;
            let parts = txn.keyspaces();
            match txn.commit_holding(locks, durability) {
                Err(Error::Conflict { .. }) => used = parts,
                // All were there at the snapshot: one was dropped since, which the next snapshot knows.
                Err(Error::KeyspaceGone { .. }) => used.clear(),
                other => return other.map(|()| result),
            }
        }
    }
}

impl OptimisticTxn {
    /// The value of `key`: as this transaction wrote it, or as of the snapshot that it began with.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// assert_eq!(txn.get(&ks, b"k")?, None);
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(txn.get(&ks, b"k")?, Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    pub fn get<'t>(&'t self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<&'t [u8]>> {
        let value = self.snapshot.get(keyspace, key)?;
        if let Some(own) = self.changes(keyspace).and_then(|changes| changes.get(key)) {
            return Ok(own.as_ref().map(|own| &own.bytes[..]));
        }
        if self.isolation == Isolation::Serializable {
            self.note_read(keyspace, |read| {
                if !read.keys.contains(key) {
                    read.keys.insert(key.to_vec());
                }
            });
        }
        Ok(value)
    }

    /// Sets the value of `key`, present or not.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// assert_eq!(db.get(&ks, b"k")?.as_deref(), Some(&b"v"[..]));
    /// # Ok(()) }
    /// ```
    pub fn upsert(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let expiry = match keyspace.options().expires_after() {
            Some(after) => Expiry::After(after),
            None => Expiry::Never,
        };
        self.upsert_until(keyspace, key, value, expiry)
    }

    /// Sets the value of `key`, present or not, until it expires; see [`WriteTxn::upsert_expiring`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(Duration::from_secs(60)))?;
    /// txn.commit()?;
    /// assert!(db.get(&ks, b"k")?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn upsert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<()> {
        check_expires(keyspace)?;
        self.upsert_until(keyspace, key, value, expiry)
    }

    fn upsert_until(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<()> {
        if keyspace.core.expires() {
            check_expiring_value(value)?;
        } else {
            check_value(value)?;
        }
        let expires = expiry.resolve(|| self.snapshot.now())?;
        let has_expired = expires != 0 && is_past(expires, self.snapshot.now());
        let new = (!has_expired).then(|| NewValue {
            bytes: value.to_vec(),
            expires,
        });
        self.change(keyspace, key, new)
    }

    /// Removes `key`. Says whether it was there.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert!(txn.remove(&ks, b"k")?);
    /// assert!(!txn.remove(&ks, b"k")?);
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        let was_there = self.get(keyspace, key)?.is_some();
        if was_there {
            self.change(keyspace, key, None)?;
        }
        Ok(was_there)
    }

    /// Calls `visit` for every entry of a range in order, until it breaks: those of the snapshot, with this transaction's own writes.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// use std::ops::ControlFlow;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert(&ks, b"b", b"2")?;
    /// txn.upsert(&ks, b"a", b"1")?;
    /// let mut keys = Vec::new();
    /// txn.for_each(&ks, .., |key, _value| {
    ///     keys.push(key.to_vec());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(keys, [b"a", b"b"]);
    /// # Ok(()) }
    /// ```
    pub fn for_each<'k>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<&'k [u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (lo, hi) = key_range(&range);
        if hi.as_ref().is_some_and(|hi| *hi <= lo) {
            return Ok(());
        }
        // A handle that is refused was not read.
        self.snapshot.view(keyspace)?;
        // All of it, as an error or a panic of `visit` may come at any place, and who calls may go on.
        let is_noted = self.isolation == Isolation::Serializable;
        let mut place = 0;
        if is_noted {
            self.note_read(keyspace, |read| {
                place = read.ranges.len();
                read.ranges.push((lo.clone(), hi.clone()));
            });
        }
        let stopped_at = self.visit(keyspace, &lo, hi.as_deref(), &mut visit)?;
        // What lies behind the place where the reader stopped made no difference to it.
        if let Some(key) = stopped_at.filter(|_| is_noted) {
            let end = [key.as_slice(), &[0]].concat();
            self.note_read(keyspace, |read| read.ranges[place].1 = Some(end));
        }
        Ok(())
    }

    /// Visits a range that is not empty. Gives the key at which `visit` broke.
    fn visit(
        &self,
        keyspace: &Keyspace,
        lo: &[u8],
        hi: Option<&[u8]>,
        visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>> {
        let bounds = bounds(lo, hi);
        let mut cursor = self.snapshot.cursor(keyspace)?.with_range(bounds);
        let mut found = cursor.seek_first()?;
        let changes = self.changes(keyspace);
        let mut own = changes.map(|changes| changes.range::<[u8], _>(bounds).peekable());
        loop {
            let next_own = own.as_mut().and_then(|own| own.peek().copied());
            match next_own {
                Some((key, change)) if !found || key.as_slice() <= cursor.key() => {
                    if found && key.as_slice() == cursor.key() {
                        found = cursor.next()?;
                    }
                    if let Some(own) = &mut own {
                        own.next();
                    }
                    if let Some(value) = change
                        && visit(key, &value.bytes).is_break()
                    {
                        return Ok(Some(key.clone()));
                    }
                }
                _ if !found => return Ok(None),
                _ => {
                    if visit(cursor.key(), cursor.value()).is_break() {
                        return Ok(Some(cursor.key().to_vec()));
                    }
                    found = cursor.next()?;
                }
            }
        }
    }

    /// Commits with the database's durability. [`Error::Conflict`] if somebody else changed what this transaction depends on; nothing was
    /// written then.
    ///
    /// A transaction that wrote nothing always succeeds: what it read was all there at one moment.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit()?;
    /// # Ok(()) }
    /// ```
    pub fn commit(self) -> Result<()> {
        let durability = self.db.core.engine.options.durability;
        self.commit_with(durability)
    }

    /// Commits with this durability; see [`OptimisticTxn::commit`]. One that waits for the disk waits for the commits before it as well, also if this
    /// transaction wrote nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// use psitri::Durability;
    /// let mut txn = db.begin_optimistic(Default::default());
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.commit_with(Durability::Sync)?;
    /// # Ok(()) }
    /// ```
    pub fn commit_with(self, durability: Durability) -> Result<()> {
        if self.written.is_empty() && durability.waits() {
            return self.db.core.engine.flush_log();
        }
        self.commit_holding(None, durability)
    }

    /// Whether there is a keyspace of this name that its snapshot does not know.
    fn is_older_than(&self, keyspace: &str) -> bool {
        let there = self.db.open_keyspace(keyspace);
        there.is_ok_and(|keyspace| self.snapshot.view(&keyspace).is_err())
    }

    /// Commits through `locks`, if that transaction was begun with all keyspaces that matter.
    fn commit_holding(self, locks: Option<WriteTxn>, durability: Durability) -> Result<()> {
        if self.written.is_empty() {
            return Ok(());
        }
        let keyspaces = self.keyspaces();
        let mut txn = match locks {
            Some(txn) if keyspaces.iter().all(|keyspace| txn.holds(keyspace)) => txn,
            // Waiting for more locks with some in hand could be waiting for each other.
            other => {
                drop(other);
                self.db.begin(&keyspaces.iter().collect::<Vec<_>>())?
            }
        };
        // (5)
        if keyspaces.iter().any(|keyspace| keyspace.core.expires()) {
            txn.set_now(self.snapshot.now());
        }
        self.check(&txn)?;
        for Written { keyspace, changes } in &self.written {
            for (key, change) in changes {
                match change {
                    Some(new) => txn.upsert_until(keyspace, key, &new.bytes, new.expires)?,
                    None => txn.remove_blind(keyspace, key)?,
                }
            }
        }
        txn.commit_with(durability)
    }

    /// Compares what the transaction depends on (1).
    fn check(&self, txn: &WriteTxn) -> Result<()> {
        let conflict = |keyspace: &Keyspace| Error::Conflict {
            keyspace: keyspace.core.title(),
        };
        let same = |keyspace: &Keyspace, key: &[u8]| -> Result<bool> {
            let then = self.snapshot.view(keyspace)?.get_expiring(key)?;
            Ok(then == txn.get_expiring(keyspace, key)?)
        };
        let csn = self.snapshot.csn();
        for Written { keyspace, changes } in &self.written {
            if !txn.is_changed_since(keyspace, csn)? {
                continue; // (4)
            }
            for key in changes.keys() {
                if !same(keyspace, key)? {
                    return Err(conflict(keyspace));
                }
            }
        }
        for read in self.read.borrow().iter() {
            if !txn.is_changed_since(&read.keyspace, csn)? {
                continue;
            }
            for key in &read.keys {
                if !same(&read.keyspace, key)? {
                    return Err(conflict(&read.keyspace));
                }
            }
            for (lo, hi) in &read.ranges {
                let bounds = bounds(lo, hi.as_deref());
                let mut then = self.snapshot.cursor(&read.keyspace)?.with_range(bounds);
                let mut now = txn.cursor(&read.keyspace)?.with_range(bounds);
                let (mut found_then, mut found_now) = (then.seek_first()?, now.seek_first()?);
                while found_then
                    && found_now
                    && then.entry() == now.entry()
                    && then.expiry() == now.expiry()
                {
                    (found_then, found_now) = (then.next()?, now.next()?);
                }
                if found_then || found_now {
                    return Err(conflict(&read.keyspace));
                }
            }
        }
        Ok(())
    }

    /// Those whose write locks a commit takes.
    fn keyspaces(&self) -> Vec<Keyspace> {
        let written = self.written.iter().map(|written| &written.keyspace);
        let mut keyspaces: Vec<Keyspace> = written.cloned().collect();
        for read in self.read.borrow().iter() {
            if !keyspaces.iter().any(|known| is_same(known, &read.keyspace)) {
                keyspaces.push(read.keyspace.clone());
            }
        }
        keyspaces
    }

    fn changes(&self, keyspace: &Keyspace) -> Option<&BTreeMap<Vec<u8>, Option<NewValue>>> {
        let found = self.written.iter().find(|w| is_same(&w.keyspace, keyspace));
        found.map(|written| &written.changes)
    }

    fn change(&mut self, keyspace: &Keyspace, key: &[u8], change: Option<NewValue>) -> Result<()> {
        check_key(key)?;
        // A handle of another database, or of a keyspace that was dropped, is refused at once.
        self.snapshot.view(keyspace)?;
        let known = (self.written.iter()).position(|w| is_same(&w.keyspace, keyspace));
        let index = known.unwrap_or_else(|| {
            self.written.push(Written {
                keyspace: keyspace.clone(),
                changes: BTreeMap::new(),
            });
            self.written.len() - 1
        });
        self.written[index].changes.insert(key.to_vec(), change);
        Ok(())
    }

    fn note_read(&self, keyspace: &Keyspace, note: impl FnOnce(&mut Read)) {
        let mut reads = self.read.borrow_mut();
        let known = reads.iter().position(|r| is_same(&r.keyspace, keyspace));
        let index = known.unwrap_or_else(|| {
            reads.push(Read {
                keyspace: keyspace.clone(),
                keys: BTreeSet::new(),
                ranges: Vec::new(),
            });
            reads.len() - 1
        });
        note(&mut reads[index]);
    }
}

fn bounds<'k>(lo: &'k [u8], hi: Option<&'k [u8]>) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
    (
        Bound::Included(lo),
        hi.map_or(Bound::Unbounded, Bound::Excluded),
    )
}

impl std::fmt::Debug for OptimisticTxn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OptimisticTxn")
            .field("csn", &self.snapshot.csn())
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}
