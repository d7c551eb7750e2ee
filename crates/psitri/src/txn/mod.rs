//! Write transactions: atomic over any set of keyspaces, nested to any depth.
//!
//! A transaction holds the write locks of its keyspaces, so that nobody else writes there; readers go on. What it writes
//! goes in place into the active buffer as uncommitted versions that nobody else sees. A *direct* transaction, and one that
//! outgrows the buffer, writes into a buffer of its own that is merged into a private tree root.
//!
//! # Invariants
//! (1) The write locks are taken in the order of keyspace ids: no two transactions can wait for each other.
//! (2) All keyspaces of a transaction write to the generation that was active when it held all its locks.
//! (3) `touched` lists every step of every keyspace in order; undoing it backwards restores what was before.
//! (4) Uncommitted versions of a private buffer and nodes below a private root are reachable by their transaction only.
//!
//! # Failure modes
//! Any error of an operation leaves the transaction as it was before the operation; it can go on, commit or abort. The
//! exceptions are a spill that fails, for want of space say: it undoes the transaction, whose later operations and commit
//! fail with [`Error::Undone`]; and [`WriteTxn::extract`] and [`WriteTxn::retain`] (`extract.rs`). A failed commit undoes the transaction. Dropping it aborts it.

mod commit;
mod direct;
mod extract;
mod ingest;
mod nested;
mod pop;
mod read;
mod run;
mod structure;
mod write;

use smallvec::SmallVec;

use crate::{
    Durability, Keyspace, Result,
    buffer::Watermark,
    database::DatabaseCore,
    error::{Error, Failure},
    expiry::Moment,
    keyspace::KeyspaceCore,
    node::ValuePointer,
    pager::Changes,
    pins::RawPin,
    state::{Generation, State},
    sync::{Arc, Ordering},
    tree::Root,
    wal::ops::OpsBuilder,
    writer_guard::WriterGuard,
};

pub(crate) use direct::NO_GENERATION;
pub use nested::NestedTxn;
pub(crate) use pop::Ends;
pub use pop::Entry;
use pop::Owed;
pub(crate) use structure::{Committed, Content, NewKeyspace, Structure};
pub(crate) use write::{
    check_expires, check_key, check_key_bytes, check_value, check_value_bytes, outgrows_buffer,
};

/// Values longer than this are written straight to the data file and not to the buffer and the log.
pub(crate) const VALUE_BUFFERED_BYTES_MAX: usize = 16 << 10;

/// How much a transaction may write before it looks for the first time how full the buffer is.
const LOOK_FIRST_BYTES: u64 = 16 << 10;

/// A write transaction. Made by [`Database::begin`](crate::Database::begin); aborted when dropped.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// let db = psitri::Options::new().in_memory()?;
/// let accounts = db.create_keyspace("accounts")?;
/// let mut txn = db.begin(&[&accounts])?;
/// txn.insert(&accounts, b"alice", b"100")?;
/// assert_eq!(txn.get(&accounts, b"alice")?, Some(&b"100"[..]));
/// txn.commit()?;
/// assert_eq!(db.get(&accounts, b"alice")?.as_deref(), Some(&b"100"[..]));
/// # Ok(()) }
/// ```
pub struct WriteTxn {
    db: Arc<DatabaseCore>,
    pin: Option<RawPin<State>>,
    /// Newest commit visible when the transaction began; for keyspaces it does not write to.
    csn: u64,
    parts: SmallVec<[Part; 1]>,
    frames: Vec<Frame>,
    private: Option<Box<Private>>,
    /// Bytes written since the last spill.
    bytes: u64,
    /// How many there may be before it is looked at them again.
    look_at_bytes: u64,
    /// Values that this transaction wrote to the data file, by part.
    large_values: Vec<(u32, ValuePointer)>,
    /// Why the transaction was undone before its end. It has no parts and no pin then.
    undone: Option<Box<Failure>>,
    /// Its time, for keyspaces whose entries expire.
    now: Moment,
}

/// One keyspace of a transaction.
struct Part {
    guard: WriterGuard,
    floor: Watermark,
    /// The merged tree below the buffers, or the private root.
    root: Root,
    generation_merged: u64,
    /// What was popped and is still to be removed.
    owed: Option<Box<Owed>>,
    id: u32,
    slot: u32,
    /// Values begin with the moment of their expiry.
    expires: bool,
    /// Keys whose values are subtrees are not to be written to.
    has_subtrees: bool,
}

/// A nesting level: how each part was when it began.
struct Frame {
    marks: SmallVec<[Mark; 1]>,
    large_values: usize,
}

#[derive(Default)]
struct Mark {
    /// Steps in the list.
    touched: usize,
    floor: Watermark,
    owed: Option<Box<Owed>>,
}

/// What a direct transaction works in.
struct Private {
    generation: Generation,
    changes: Changes,
    /// Something was merged already: the buffer is not all that the transaction wrote.
    merged: bool,
    /// Operations that were merged, for the log. `None` once they are too many: then the commit takes a checkpoint.
    ops: Option<OpsBuilder>,
}

/// How a transaction is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxnKind {
    Buffered,
    Direct,
}

impl WriteTxn {
    pub(crate) fn begin(
        db: &Arc<DatabaseCore>,
        keyspaces: &[&Keyspace],
        kind: TxnKind,
    ) -> Result<WriteTxn> {
        let mut txn = WriteTxn::new(db);
        let has_begun = txn.start(keyspaces, kind, true)?;
        debug_assert!(has_begun, "gives up only if it may not wait");
        Ok(txn)
    }

    /// Begins a transaction. `None`: a write lock is taken and `waits` is false.
    pub(crate) fn begin_or_give_up(
        db: &Arc<DatabaseCore>,
        keyspaces: &[&Keyspace],
        kind: TxnKind,
        waits: bool,
    ) -> Result<Option<WriteTxn>> {
        let mut txn = WriteTxn::new(db);
        Ok(txn.start(keyspaces, kind, waits)?.then_some(txn))
    }

    #[inline(always)]
    fn new(db: &Arc<DatabaseCore>) -> WriteTxn {
        WriteTxn {
            db: Arc::clone(db),
            pin: None,
            csn: 0,
            parts: SmallVec::new(),
            frames: Vec::new(),
            private: None,
            bytes: 0,
            look_at_bytes: LOOK_FIRST_BYTES,
            large_values: Vec::new(),
            undone: None,
            now: Moment::default(),
        }
    }

    /// Takes the write locks and begins to write. False if one of them is taken and it may not wait.
    #[inline]
    fn start(&mut self, keyspaces: &[&Keyspace], kind: TxnKind, waits: bool) -> Result<bool> {
        let engine = &self.db.engine;
        engine.check_writable()?;
        if keyspaces.iter().any(|k| k.core.database != engine.id) {
            return Err(Error::ForeignKeyspace);
        }
        if kind == TxnKind::Buffered {
            engine.admit()?;
        }
        let stood_aside = if let [keyspace] = keyspaces {
            self.enlist(&keyspace.core, waits)?
        } else {
            self.enlist_in_order(keyspaces, waits)?
        };
        let Some(stood_aside) = stood_aside else {
            return Ok(false);
        };
        match kind {
            TxnKind::Buffered => self.enter_active(stood_aside)?,
            TxnKind::Direct => self.enter_private()?,
        }
        Ok(true)
    }

    /// Invariant (1).
    #[inline(never)]
    fn enlist_in_order(&mut self, keyspaces: &[&Keyspace], waits: bool) -> Result<Option<bool>> {
        let mut cores: SmallVec<[&Arc<KeyspaceCore>; 4]> =
            keyspaces.iter().map(|k| &k.core).collect();
        cores.sort_unstable_by_key(|core| core.id);
        for pair in cores.windows(2) {
            if pair[0].id == pair[1].id {
                return Err(Error::NamedTwice {
                    name: pair[0].title(),
                });
            }
        }
        let mut stood_aside = false;
        for core in cores {
            match self.enlist(core, waits)? {
                Some(aside) => stood_aside |= aside,
                None => return Ok(None),
            }
        }
        Ok(Some(stood_aside))
    }

    /// Takes the write lock of one keyspace more. Whether it stood aside for that; `None` if the lock is taken and it may not wait.
    #[inline(always)]
    fn enlist(&mut self, core: &Arc<KeyspaceCore>, waits: bool) -> Result<Option<bool>> {
        let mut stood_aside = false;
        let guard = match core.try_lock()? {
            Some(guard) => guard,
            None if !waits => return Ok(None),
            None => {
                stood_aside = self.stand_aside();
                core.lock()?
            }
        };
        self.parts.push(Part {
            id: core.id,
            slot: core.slot,
            expires: core.expires(),
            has_subtrees: core.has_subtrees.load(Ordering::Relaxed),
            guard,
            floor: Watermark::default(),
            root: Root::default(),
            generation_merged: 0,
            owed: None,
        });
        Ok(Some(stood_aside))
    }

    /// Lets the merge have the keyspaces that are locked so far, while the transaction waits for another one. False if there
    /// are none.
    #[cold]
    fn stand_aside(&mut self) -> bool {
        for part in &self.parts {
            part.core()
                .generation_open
                .store(NO_GENERATION, Ordering::SeqCst);
        }
        !self.parts.is_empty()
    }

    /// Pins the current state, in place of an older one.
    fn pin_current(&mut self) -> Result<()> {
        let engine = &self.db.engine;
        let (pin, csn) = engine.states.acquire_raw(&engine.visible_csn);
        self.unpin();
        let state = self.pin.insert(pin);
        #[expect(
            unsafe_code,
            reason = "the pin and its registry live together in this structure"
        )]
        // SAFETY: the registry lives in the engine, which `self.db` keeps alive longer than the pin.
        let state = unsafe { state.get() };
        self.csn = csn.max(state.csn_direct);
        for part in &mut self.parts {
            let keyspace = state
                .keyspace(part.slot, part.id)
                .ok_or_else(|| part.core().gone())?;
            part.root = keyspace.root;
            part.generation_merged = keyspace.generation_merged;
        }
        Ok(())
    }

    fn unpin(&mut self) {
        if let Some(pin) = self.pin.take() {
            #[expect(
                unsafe_code,
                reason = "the pin and its registry live together in this structure"
            )]
            // SAFETY: the registry lives in the engine, which `self.db` keeps alive; nothing borrowed from the state
            // outlives a call that takes `&mut self`.
            unsafe {
                pin.release();
            }
        }
    }

    /// The state pinned at the begin.
    #[inline]
    fn state(&self) -> &State {
        let pin = self.pin.as_ref().expect("a transaction has a pin");
        #[expect(
            unsafe_code,
            reason = "the pin and its registry live together in this structure"
        )]
        // SAFETY: the registry lives in the engine, which `self.db` keeps alive longer than the pin.
        unsafe {
            pin.get()
        }
    }

    /// Takes up writing in the active generation (invariant 2). `stood_aside`: the merge may take the keyspaces' buffers
    /// for released until it is told otherwise.
    fn enter_active(&mut self, stood_aside: bool) -> Result<()> {
        let told = if stood_aside {
            Ordering::SeqCst
        } else {
            Ordering::Release
        };
        loop {
            self.pin_current()?;
            let generation = Arc::as_ptr(self.state().active());
            #[expect(unsafe_code, reason = "a borrow of the pinned state beside the parts")]
            // SAFETY: the pinned state, which is not exchanged before the end of this round, holds the generation.
            let generation = unsafe { &*generation };
            let mut fresh = stood_aside;
            for part in &mut self.parts {
                part.core().generation_open.store(generation.id, told);
                fresh |= part.enter(generation);
            }
            // A buffer that was made after its generation was frozen might be overlooked by the merge, or be in its hands.
            if !fresh || self.db.engine.generation_active.load(Ordering::SeqCst) == generation.id {
                break;
            }
        }
        if self.parts.iter_mut().any(|part| part.writer().wants_seen()) {
            self.tell_seen();
        }
        Ok(())
    }

    /// Tells the writers what all readers see. Those of private buffers, which nobody reads, have no use for it.
    #[inline(never)]
    fn tell_seen(&mut self) {
        let seen = self.db.engine.seen_by_all();
        for part in &mut self.parts {
            #[expect(unsafe_code, reason = "readers are known to the engine")]
            // SAFETY: whoever reads the buffers has a pin, which is as old as the commit that he looks at, or older; but for merges, which read
            // buffers without a writer.
            unsafe {
                part.writer().set_seen(seen);
            }
        }
    }

    /// The part of a keyspace, by index.
    #[inline]
    fn part_index(&self, keyspace: &Keyspace) -> Result<usize> {
        let core = &keyspace.core;
        match self
            .parts
            .iter()
            .position(|part| Arc::ptr_eq(part.core(), core))
        {
            Some(index) => Ok(index),
            None if self.undone.is_some() => self.check_not_undone().map(|()| 0),
            None if core.database != self.db.engine.id => Err(Error::ForeignKeyspace),
            None => Err(Error::NotInTransaction { name: core.title() }),
        }
    }

    /// An error if a failed spill undid the transaction.
    fn check_not_undone(&self) -> Result<()> {
        match &self.undone {
            None => Ok(()),
            Some(failure) => Err(failure.undone()),
        }
    }

    /// Undoes everything; the transaction is gone.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// txn.abort();
    /// assert_eq!(db.get(&ks, b"k")?, None);
    /// # Ok(()) }
    /// ```
    pub fn abort(self) {
        drop(self);
    }

    /// Commits with the database's durability. On an error the transaction is undone, but for [`Error::Poisoned`]: if the disk failed
    /// when this commit was made durable, the next opening may find it or not. Look before you do it again.
    ///
    /// When this returns, every later snapshot sees the transaction, and it survives the death of the process. What else
    /// it survives is said by [`Durability`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"k", b"v")?;
    /// assert_eq!(db.get(&ks, b"k")?, None, "nobody else sees it before");
    /// txn.commit()?;
    /// assert!(db.get(&ks, b"k")?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn commit(self) -> Result<()> {
        let durability = self.db.engine.options.durability;
        self.commit_with(durability)
    }

    /// Commits with this durability. One that waits for the disk waits for the commits before it as well, also if this transaction wrote nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("db");
    /// use psitri::{Database, Durability};
    /// let db = Database::open(&path)?; // durability `none`
    /// let ks = db.keyspace("ks")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert(&ks, b"payment", b"done")?;
    /// txn.commit_with(Durability::Sync)?; // this one, and all before it, are on the disk
    /// # Ok(()) }
    /// ```
    pub fn commit_with(mut self, durability: Durability) -> Result<()> {
        self.frames.clear();
        self.commit_parts(durability)
    }

    /// Whether nothing was written.
    fn is_untouched(&self) -> bool {
        self.is_buffer_untouched() && self.private.as_ref().is_none_or(|private| !private.merged)
    }

    fn is_buffer_untouched(&self) -> bool {
        self.parts.iter().all(|part| part.guard.touched.is_empty())
    }
}

impl Part {
    /// Its keyspace.
    #[inline(always)]
    fn core(&self) -> &Arc<KeyspaceCore> {
        self.guard.core()
    }

    /// Makes the writer write to `generation`. True if the keyspace had no buffer there before.
    fn enter(&mut self, generation: &Generation) -> bool {
        let mut fresh = false;
        if self.guard.generation != generation.id || self.guard.buffer.is_none() {
            fresh = generation.buffer(self.slot).is_none();
            if let Some(last) = self.guard.buffer.take() {
                self.guard.entries_last = last.buffer().entries_expected_next();
            }
            let buffer = generation.buffer_or_new(self.slot, self.guard.entries_last);
            self.guard.buffer = Some(buffer.writer().expect("the write lock is held"));
            self.guard.generation = generation.id;
        }
        self.floor = Watermark::default();
        fresh
    }
}

impl Drop for WriteTxn {
    #[inline]
    fn drop(&mut self) {
        // A commit has left already.
        if self.pin.is_some() || !self.parts.is_empty() || self.private.is_some() {
            self.abandon();
        }
    }
}

impl WriteTxn {
    #[inline(never)]
    fn abandon(&mut self) {
        self.undo_to(None);
        // Once the keyspaces are released, merges read their buffers, which nobody changes then.
        for part in &mut self.parts {
            if let Some(writer) = &mut part.guard.buffer {
                writer.settle();
            }
        }
        self.leave();
    }

    /// Lets go of locks and pin. Everything is committed or undone.
    fn leave(&mut self) {
        let is_private = self.private.is_some();
        let engine = &self.db.engine;
        let mut held_back_merge = false;
        if !is_private && self.pin.is_some() {
            let active = self.state().active();
            held_back_merge = active.id != engine.generation_active.load(Ordering::Relaxed);
            engine.note_filled(active);
        }
        for part in &mut self.parts {
            debug_assert!(part.guard.touched.is_empty() && part.owed.is_none());
            part.guard.shrink(self.bytes);
            if is_private {
                part.guard.buffer = None;
                part.guard.generation = 0;
            }
            if let Some(ends) = &mut part.guard.ends {
                ends.forget_coming();
            }
            part.core().generation_open.store(0, Ordering::Release);
            if part.expires {
                part.core().writer_now.store(0, Ordering::Release);
            }
        }
        self.parts.clear();
        self.unpin();
        self.private = None;
        if held_back_merge {
            self.db.engine.wake();
        }
    }

    /// Undoes everything since a nesting level began, or since the begin.
    fn undo_to(&mut self, frame: Option<&Frame>) {
        for (index, part) in self.parts.iter_mut().enumerate() {
            match frame {
                Some(frame) => part.undo_to(&frame.marks[index]),
                None => part.undo_to(&Mark::default()),
            }
        }
        let kept = frame.map_or(0, |frame| frame.large_values);
        if self.large_values.len() > kept {
            let extents: Vec<_> = self
                .large_values
                .drain(kept..)
                .map(|(_, pointer)| crate::pager::value_extent(&pointer))
                .collect();
            self.db.engine.pager.discard(&extents);
        }
        if frame.is_none()
            && let Some(private) = &mut self.private
        {
            // (4): nobody but this transaction knew of what it merged.
            self.db.engine.pager.discard(&private.changes.births);
            self.db.engine.pager.discard(&private.changes.adopted);
            private.changes = Changes::default();
            if private.merged {
                for part in &mut self.parts {
                    part.guard.ends = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, Options};

    const COUNTERS: u32 = 512;

    /// Overwrites all counters, few in a transaction, and returns what the buffer has taken of its arena.
    fn round(db: &Database, keyspace: &Keyspace, value: u64) -> u64 {
        for part in 0..COUNTERS / 8 {
            let mut txn = db.begin(&[keyspace]).unwrap();
            for counter in 0..8 {
                let key = (part * 8 + counter).to_be_bytes();
                txn.upsert(keyspace, &key, &value.to_le_bytes()).unwrap();
            }
            txn.commit().unwrap();
        }
        let state = db.core.engine.states.current();
        let buffer = state.active().buffer(keyspace.core.slot).unwrap();
        buffer.stats().bytes
    }

    /// Counters that are overwritten take memory once, and while somebody looks at old ones, each time.
    #[test]
    fn overwriting_takes_no_memory_without_readers() {
        let db = Options::new().in_memory().unwrap();
        let keyspace = db.create_keyspace("counters").unwrap();
        let first = round(&db, &keyspace, 0);
        let chunk_bytes = 256 << 10;
        let mut alone = 0;
        for value in 1..200 {
            alone = round(&db, &keyspace, value);
        }
        assert!(alone <= first + chunk_bytes, "{first} then {alone} bytes");
        let snapshot = db.snapshot();
        let mut beside = 0;
        for value in 200..300 {
            beside = round(&db, &keyspace, value);
        }
        let versions = 90 * u64::from(COUNTERS) * 24;
        assert!(beside > alone + versions, "{alone} then {beside} bytes");
        for counter in 0..COUNTERS {
            let found = snapshot.get(&keyspace, &counter.to_be_bytes()).unwrap();
            assert_eq!(found, Some(&199u64.to_le_bytes()[..]));
        }
    }
}
