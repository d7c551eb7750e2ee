//! `BufferWriter`: the one writer of a buffer: inserting keys, pushing, undoing and stamping versions.
//!
//! # Thread safety
//! Keep it inside the keyspace's write lock. Readers run beside it at all times. Threads that only look may share it: what waits for its place
//! in the tree (`placing.rs`) comes there under a lock of its own.
//!
//! # Invariants
//! 1. One writer a buffer (`KeyspaceBuffer::has_writer`), so plain reads of what only the writer changes are up to date.
//! 2. Within one writer, and from a writer to its successor, memory is handed out at growing offsets. An uncommitted version that lies at or
//!    above the watermark that was taken when a level began is of that level, or of one inside it.
//! 3. Everything a change needs is allocated before the first visible store, and the last store makes it reachable: a change
//!    happens completely or, if memory runs out, not at all.
//! 4. The newest version of an entry is overwritten in place only if it is uncommitted and of the present level: nobody
//!    else reads its payload (invariant 3 of `entry.rs`), and no outer level wants it back. A replay, which nobody reads and nobody takes back,
//!    writes over others, too; one that was committed is uncommitted first.
//! 5. A version in memory that was used before, or in the room of another one, may lie below the watermark of its level: then it is not
//!    overwritten in place, but for the outermost level, whose watermark is the default. There every uncommitted version is of the level.
//!
//! # Failure modes
//! `BufferError::Full`, `KeyTooLong`, `ValueTooLong`. An entry may stay behind without a version: it reads as absent.
#![allow(unsafe_code)] // own reads, tied to a borrow of the writer; two `unsafe fn`

mod grow;
mod insert;
mod placing;
mod run;

use super::arena::{Memory, UNIT_BYTES};
use super::cursor::BufferCursor;
use super::entry::{
    CSN_UNCOMMITTED, Entry, EntryRef, Found, Kind, LARGE_BYTES, PAYLOAD_BYTES_MAX, ROOM, Version,
    VersionRef, version_bytes, wants_room,
};
use super::error::BufferError;
use super::keyspace::KeyspaceBuffer;
use super::node;
use super::range_tombstones::{TombstoneRef, Written};
use super::walk::Walk;
use crate::sync::{Arc, Mutex, Ordering};
use placing::{Inserter, Placing};

/// Memory that was used again is charged in portions.
const CHARGE_BYTES: u64 = 1 << 10;
/// Versions are written before it is asked again what all readers see. Few in tests, so that memory is used again everywhere.
const SEEN_VERSIONS_MAX: u32 = if cfg!(debug_assertions) { 3 } else { 256 };
/// Entries that it takes less to pass one by one than to look for where they end. Few in tests.
const MANY_ENTRIES: u32 = if cfg!(any(loom, debug_assertions)) {
    2
} else {
    64
};
/// What a range tombstone takes beside its bounds, about: itself, its set, its places in the runs that were folded.
const RANGE_TOMBSTONE_BYTES: u64 = 1 << 10;

/// A moment in the life of a writer. Versions written later lie above it, but for those in rooms and in memory that was used before. The
/// default: the outermost level, to which all uncommitted versions belong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(u32);

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The version that holds the write.
    pub version: VersionRef,
    /// Whether the version is new. Otherwise an earlier one of the same level was overwritten, which the caller knows already; or, in a replay,
    /// whatever there was.
    pub pushed: bool,
}

/// The one writer of a buffer. See the module text.
#[derive(Debug)]
pub struct BufferWriter {
    buffer: Arc<KeyspaceBuffer>,
    /// Locked by those who only look, and want all entries to be in the tree.
    placing: Mutex<Placing>,
    /// A commit that all readers see.
    csn_seen: u64,
    /// Versions until it is out of date.
    seen_versions_left: u32,
    /// Memory that was used again and is not charged yet.
    reused_bytes: u64,
    /// Nobody reads the buffer while it writes.
    is_replay: bool,
}

impl BufferWriter {
    pub(super) fn claim(buffer: &Arc<KeyspaceBuffer>) -> Option<BufferWriter> {
        if buffer.has_writer.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(BufferWriter {
            buffer: buffer.clone(),
            placing: Mutex::new(Placing::new(buffer)),
            csn_seen: 0,
            seen_versions_left: 0,
            reused_bytes: 0,
            is_replay: false,
        })
    }

    /// A writer that puts back what a log has: it writes over versions of the same size, and leaves no room behind others, so that it needs no
    /// more memory than those who wrote the log; and entries wait for their places in the tree across commits.
    ///
    /// # Safety
    /// As for [`BufferWriter::set_seen`], with the newest commit there will be: nobody reads the buffer as long as this writer lives.
    pub unsafe fn for_replay(mut self) -> BufferWriter {
        self.is_replay = true;
        self.csn_seen = CSN_UNCOMMITTED - 1;
        self
    }

    /// Whether a later commit than [`BufferWriter::set_seen`] was told is probably seen by all readers.
    #[inline(always)]
    pub fn wants_seen(&self) -> bool {
        self.seen_versions_left == 0
    }

    /// Tells a commit that all readers see, present and coming ones. An earlier one than before takes nothing back.
    ///
    /// # Safety
    /// Versions older than what that commit left are overwritten from now on: nobody looks, or will look, at an earlier commit, or holds
    /// what was found at one.
    pub unsafe fn set_seen(&mut self, csn: u64) {
        debug_assert!(csn < CSN_UNCOMMITTED);
        self.csn_seen = self.csn_seen.max(csn);
        self.seen_versions_left = SEEN_VERSIONS_MAX;
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<KeyspaceBuffer> {
        &self.buffer
    }

    /// Take one when a nested level begins, and pass it to the writes of that level. The outermost level has the default.
    pub fn watermark(&mut self) -> Watermark {
        Watermark((self.placing.get_mut().chunk.start / UNIT_BYTES as u64) as u32)
    }

    #[inline(always)]
    fn inserter(&mut self) -> Inserter<'_> {
        Inserter {
            buffer: &self.buffer,
            placing: self.placing.get_mut(),
        }
    }

    /// Puts all entries into the tree, which is what cursors and merges go by: before versions are stamped. Until then some may wait.
    #[inline(always)]
    pub fn settle(&mut self) {
        self.inserter().settle();
    }

    /// A cursor that sees the newest versions, committed or not.
    pub fn cursor(&self) -> BufferCursor<'_> {
        Inserter {
            buffer: &self.buffer,
            placing: &mut self.placing.lock(),
        }
        .settle();
        BufferCursor::new(&self.buffer, CSN_UNCOMMITTED)
    }

    /// The entry of a key.
    #[inline]
    pub fn find_entry(&self, key: &[u8]) -> Option<EntryRef> {
        self.buffer.find(key).map(Entry::reference)
    }

    /// The entry of a key, inserted without versions (absent to everybody) if need be.
    #[inline]
    pub fn entry(&mut self, key: &[u8]) -> Result<EntryRef, BufferError> {
        self.inserter().find_or_insert(key, 0)
    }

    /// Writes an uncommitted version to the entry of a key.
    #[inline]
    pub fn put(
        &mut self,
        key: &[u8],
        kind: Kind,
        payload: &[u8],
        floor: Watermark,
    ) -> Result<(EntryRef, WriteOutcome), BufferError> {
        check_payload(kind, payload)?;
        let room_bytes = first_bytes(payload, self.has_room(kind, payload));
        let entry = self.inserter().find_or_insert(key, room_bytes)?;
        Ok((entry, self.write(entry, kind, payload, floor)?))
    }

    /// Writes an uncommitted version to an entry. `floor` is the watermark of the present level. Payload: the value, nothing
    /// for a tombstone, 24 bytes for `Kind::Large`.
    #[inline]
    pub fn write(
        &mut self,
        entry: EntryRef,
        kind: Kind,
        payload: &[u8],
        floor: Watermark,
    ) -> Result<WriteOutcome, BufferError> {
        check_payload(kind, payload)?;
        let memory = self.buffer.memory();
        if kind != Kind::Tombstone {
            self.buffer.range_tombstones.note_written(memory, entry);
        }
        let head = Entry::of(memory, entry).head();
        self.seen_versions_left = self.seen_versions_left.saturating_sub(1);
        let version = if head == 0 {
            let has_room = self.has_room(kind, payload);
            let at = self
                .inserter()
                .allocate_between(first_bytes(payload, has_room))?;
            let previous = if has_room { ROOM } else { 0 };
            Version::create(self.memory(), at, previous, kind, payload).reference()
        } else {
            let newest = Version::of(memory, VersionRef(head));
            let csn = newest.csn();
            let is_own = csn == CSN_UNCOMMITTED && head >= floor.0;
            let fits = payload.len() <= newest.capacity();
            // Invariant 4. A smaller one would leave no room for those that come behind it.
            let is_over = fits && version_bytes(payload.len()) == version_bytes(newest.capacity());
            if is_own && fits || self.is_replay && is_over {
                if !is_own {
                    newest.stamp(CSN_UNCOMMITTED);
                }
                newest.fill(kind, payload);
                let version = newest.reference();
                if !is_own {
                    self.charge(version_bytes(payload.len()));
                }
                return Ok(WriteOutcome {
                    version,
                    pushed: false,
                });
            }
            match newest.create_next_near(csn, self.csn_seen, kind, payload) {
                Some((version, reuses)) => {
                    let version = version.reference();
                    if reuses {
                        self.charge(version_bytes(payload.len()));
                    }
                    version
                }
                None => {
                    let at = self
                        .inserter()
                        .allocate_between(version_bytes(payload.len()))?;
                    Version::create(self.memory(), at, head, kind, payload).reference()
                }
            }
        };
        Entry::of(self.memory(), entry).set_head(version.0);
        Ok(WriteOutcome {
            version,
            pushed: true,
        })
    }

    /// Makes sure that tombstones can be written to these entries, whose newest versions are uncommitted: to all of them, or none is.
    pub fn reserve_tombstones(
        &mut self,
        entries: &[EntryRef],
        floor: Watermark,
    ) -> Result<(), BufferError> {
        let memory = self.buffer.memory();
        // The others are overwritten in place, where a tombstone always fits.
        let is_outer = |entry: &&EntryRef| Entry::of(memory, **entry).head() < floor.0;
        let versions = entries.iter().filter(is_outer).count();
        if versions == 0 {
            return Ok(());
        }
        let mut inserter = self.inserter();
        inserter.settle();
        inserter.reserve(versions * version_bytes(0))
    }

    /// Whether the first version of an entry gets room behind it.
    #[inline(always)]
    fn has_room(&self, kind: Kind, payload: &[u8]) -> bool {
        !self.is_replay && wants_room(kind, payload)
    }

    /// Memory that was used again fills the buffer as fresh memory does: the log grows by it, and is let go of when the buffer is merged.
    #[inline(always)]
    fn charge(&mut self, bytes: usize) {
        self.reused_bytes += bytes as u64;
        if self.reused_bytes >= CHARGE_BYTES {
            self.buffer.arena().charge(self.reused_bytes);
            self.reused_bytes = 0;
        }
    }

    /// Takes back the newest version of an entry, which must be uncommitted. Undo several in reverse order.
    #[inline]
    pub fn undo(&mut self, entry: EntryRef, version: VersionRef) {
        let entry = Entry::of(self.memory(), entry);
        let version = Version::of(self.memory(), version);
        debug_assert_eq!(entry.head(), version.reference().0, "undo in reverse order");
        debug_assert_eq!(version.csn(), CSN_UNCOMMITTED);
        entry.set_head(version.previous());
    }

    /// Gives a version the number of its commit. Nobody sees it before the visible number is published.
    #[inline]
    pub fn stamp(&mut self, version: VersionRef, csn: u64) {
        debug_assert!(csn != 0 && csn != CSN_UNCOMMITTED);
        if !self.is_replay {
            self.settle();
        }
        Version::of(self.memory(), version).stamp(csn);
        self.raise_csn_last(csn);
    }

    /// Deletes a range, uncommitted. Versions of the same transaction inside of the range go on to win over it:
    /// turn those that are older than the deletion into tombstones (see `uncommitted_in_range`).
    pub fn add_range_tombstone(&mut self, lo: &[u8], hi: Option<&[u8]>) -> TombstoneRef {
        let written = match self.has_many(lo, hi) {
            true => Written::nothing(),
            false => Written::unknown(),
        };
        self.add_range(lo, hi, written)
    }

    /// The same for a transaction that is written anew, its steps in any order: versions that win over the deletion may be there already.
    pub fn put_back_range_tombstone(&mut self, lo: &[u8], hi: Option<&[u8]>) -> TombstoneRef {
        self.add_range(lo, hi, Written::unknown())
    }

    /// Whether there are so many entries in a range that those who come upon them should not have to pass all of them.
    fn has_many(&mut self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        self.settle();
        let memory = self.memory();
        // Not a cursor: nobody reads.
        let mut walk = Walk::new(&self.buffer);
        walk.seek_ge(self.buffer.root.load(Ordering::Relaxed), lo);
        let is_inside = |entry: u32| {
            let key = || Entry::new(memory, node::offset(entry)).key();
            entry != 0 && hi.is_none_or(|hi| key() < hi)
        };
        let mut steps = 0;
        // Most ranges have few.
        while is_inside(walk.entry()) {
            if steps == MANY_ENTRIES {
                return true;
            }
            let stride = (steps + 1).min(MANY_ENTRIES - steps);
            for _ in 0..stride {
                walk.step(true);
            }
            steps += stride;
        }
        false
    }

    fn add_range(&mut self, lo: &[u8], hi: Option<&[u8]>, written: Written) -> TombstoneRef {
        let bounds = lo.len() + hi.map_or(0, <[u8]>::len);
        let runs = 1 + u64::from(written.is_known());
        let bytes = bounds as u64 + runs * RANGE_TOMBSTONE_BYTES;
        self.buffer.arena().charge(bytes);
        self.buffer.range_tombstones.add(lo, hi, written)
    }

    /// Gives a range deletion the number of its commit.
    pub fn stamp_range_tombstone(&mut self, tombstone: &TombstoneRef, csn: u64) {
        self.buffer.range_tombstones.stamp(tombstone, csn);
        self.raise_csn_last(csn);
    }

    /// Takes an uncommitted range deletion back.
    pub fn undo_range_tombstone(&mut self, tombstone: &TombstoneRef) {
        self.buffer.range_tombstones.undo(tombstone);
    }

    /// Appends the entries in `lo..hi` whose newest version is uncommitted, in key order. Costs a walk over the range: with more than `most` entries
    /// there it is given up, and false is returned.
    pub fn uncommitted_in_range(
        &self,
        lo: &[u8],
        hi: Option<&[u8]>,
        most: usize,
        out: &mut Vec<EntryRef>,
    ) -> bool {
        let mut cursor = self.cursor();
        let mut more = cursor.seek_ge(lo);
        let mut left = most;
        while more && hi.is_none_or(|hi| cursor.key() < hi) {
            if left == 0 {
                return false;
            }
            left -= 1;
            if let Some(entry) = cursor.entry()
                && let Some(newest) = self.newest(entry)
                && self.csn(newest) == CSN_UNCOMMITTED
            {
                out.push(entry);
            }
            more = cursor.next();
        }
        true
    }

    /// The newest version of a key, committed or not.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Found<'_> {
        // SAFETY: we are the writer, and the result borrows from `self` (invariant 2 of `keyspace.rs`).
        unsafe { self.buffer.get_own(key) }
    }

    /// What the newest version of an entry says, range deletions included.
    #[inline]
    pub fn resolve(&self, entry: EntryRef) -> Found<'_> {
        let entry = Entry::of(self.memory(), entry);
        self.buffer.resolve(entry, CSN_UNCOMMITTED).0
    }

    /// The newest version of an entry, if it has any.
    #[inline]
    pub fn newest(&self, entry: EntryRef) -> Option<VersionRef> {
        let head = Entry::of(self.memory(), entry).head();
        (head != 0).then_some(VersionRef(head))
    }

    #[inline]
    pub fn key(&self, entry: EntryRef) -> &[u8] {
        Entry::of(self.memory(), entry).key()
    }

    #[inline]
    pub fn kind(&self, version: VersionRef) -> Kind {
        Version::of(self.memory(), version).kind()
    }

    #[inline]
    pub fn payload(&self, version: VersionRef) -> &[u8] {
        Version::of(self.memory(), version).payload()
    }

    #[inline]
    pub fn csn(&self, version: VersionRef) -> u64 {
        Version::of(self.memory(), version).csn()
    }

    #[inline(always)]
    fn memory(&self) -> Memory<'_> {
        self.buffer.memory()
    }

    #[inline(always)]
    fn raise_csn_last(&self, csn: u64) {
        if csn > self.buffer.written.csn_last.load(Ordering::Relaxed) {
            self.buffer.written.csn_last.store(csn, Ordering::Relaxed);
        }
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        self.settle();
        self.buffer.has_writer.store(false, Ordering::Release);
    }
}

/// Bytes of the first version of an entry, with the room behind it.
#[inline(always)]
fn first_bytes(payload: &[u8], has_room: bool) -> usize {
    version_bytes(payload.len()) << u32::from(has_room)
}

#[inline(always)]
fn check_payload(kind: Kind, payload: &[u8]) -> Result<(), BufferError> {
    let fits = match kind {
        Kind::Value => payload.len() <= PAYLOAD_BYTES_MAX,
        Kind::Tombstone => payload.is_empty(),
        Kind::Large => payload.len() == LARGE_BYTES,
    };
    if fits {
        Ok(())
    } else {
        Err(BufferError::ValueTooLong {
            bytes: payload.len(),
        })
    }
}
