//! The part of the log that every thread may use: flushing, spare segments, release of old ones.
//!
//! Thread safety: all methods from any thread. Locks are taken in the order `flushing`, `preparing`, `table`; no file operation
//! happens under `table`, so the appender, which needs it at rotation, never waits for a disk because of another thread.
//!
//! Invariants:
//! 1. `table.live` is the chain (oldest first), never empty; its last segment is the one being appended to. A segment joins before
//!    `appended` says that it has bytes.
//! 2. `durable` <= `appended`, both ends of records; everything below `durable` was covered by a successful flush of its segment, which has a
//!    durable name, or is covered by a durable checkpoint.
//! 3. Only the holder of `flushing` flushes, stores marks and takes segments out of the chain; so a mark never hits a file that has
//!    begun another life.
//! 4. Once `poison` is set, nothing is appended, flushed or released any more.
//!
//! Failure modes: a failed flush poisons the log for good (what is on disk is then unknown). A failure to make or remove a spare is
//! reported and changes nothing.
use super::{
    GroupCommit, WalError, WalOptions, mix,
    segment::{DATA_OFFSET, Fill, Segment, SegmentFile, SegmentHeader},
};
use crate::{
    storage::{Storage, StorageError},
    sync::{AtomicBool, AtomicU64, Mutex, Ordering},
};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

/// A mark is stored after the first flush of a segment, then whenever so many bytes were flushed since the last one,
const MARK_BYTES: u64 = 64 << 10;
/// or so many flushes were made.
const MARK_FLUSHES: u64 = 16;
/// Where a flush has more than this to write, on average, new segments are not written ahead for commits that wait. For pages that were never
/// written a file system notes with the flush that they have been now, which took a commit 140 microseconds longer, however many pages there
/// were; zeros in their place cost as much of the drive as the records.
const WRITTEN_AHEAD_FLUSH_BYTES_MAX: u64 = 32 << 10;
/// The last flush counts for a share of the average.
const FLUSH_AVERAGE_SHARE: u64 = 4;
/// Holes are made of whole pages.
const PAGE_BYTES: u64 = 4096;

/// The first failure, given to everyone who comes later.
type Cause = Arc<StorageError>;

/// What records refer to and the log does not hold. It was written before the record that refers to it was appended.
pub trait Referred: std::fmt::Debug + Send + Sync {
    /// Makes durable what was written so far; returns at once if it is.
    fn sync(&self) -> Result<(), StorageError>;
}

/// The shared half of the log; see the module.
#[derive(Debug)]
pub struct WalShared {
    referred: OnceLock<Arc<dyn Referred>>,
    storage: Arc<dyn Storage>,
    options: WalOptions,
    appended: AtomicU64,
    durable: AtomicU64,
    /// Somebody waited for a flush.
    waited: AtomicBool,
    /// What flushes made durable lately, in bytes, on average. Stored by the holder of `flushing`.
    flush_bytes: AtomicU64,
    poisoned: AtomicBool,
    poison: Mutex<Option<Cause>>,
    group: GroupCommit<Cause>,
    flushing: Mutex<Flushes>,
    preparing: Mutex<()>,
    table: Mutex<Table>,
}

/// How many flushes there were, for when and where marks are stored.
#[derive(Debug, Default)]
struct Flushes {
    count: u64,
    marks: u64,
    marked_lsn: u64,
    marked_at: u64,
    /// Start of the segment that has the last mark.
    marked_segment: Option<u64>,
}

/// A file for [`Wal::go_on_in`](super::Wal::go_on_in).
#[derive(Debug)]
pub struct SmallSegment(pub(super) Arc<SegmentFile>);

#[derive(Debug)]
struct Table {
    live: VecDeque<Arc<Segment>>,
    spares: Vec<Arc<SegmentFile>>,
    id_next: u32,
    sequence_next: u64,
    nonce_seed: u64,
    /// The log went on from the segment that it was opened with, or came to rest in.
    has_moved_on: bool,
}

impl Flushes {
    /// Notes in a segment what is durable, now and then: a mark is another page for the next flush to write. `last`: the segment takes no
    /// more records.
    fn mark(&mut self, segment: &Segment, durable_lsn: u64, last: bool) {
        let due = self.marked_segment != Some(segment.start_lsn)
            || self.count - self.marked_at >= MARK_FLUSHES
            || durable_lsn - self.marked_lsn >= MARK_BYTES;
        if due || last {
            segment.mark_durable(durable_lsn, self.marks);
            self.marks += 1;
            self.marked_segment = Some(segment.start_lsn);
            (self.marked_lsn, self.marked_at) = (durable_lsn, self.count);
        }
    }
}

/// Where a log continues.
pub(super) struct Continuation {
    /// Kept segments, oldest first, without the new tail.
    pub replayed: VecDeque<Arc<Segment>>,
    pub tail: Arc<Segment>,
    pub id_next: u32,
    pub sequence_next: u64,
    pub nonce_seed: u64,
}

/// Nonce of the segment with this sequence number.
pub(super) fn nonce(seed: u64, sequence: u64) -> u64 {
    mix(seed ^ mix(sequence))
}

impl WalShared {
    /// The tail is durable and empty.
    pub(super) fn new(storage: Arc<dyn Storage>, options: WalOptions, from: Continuation) -> Self {
        let lsn = from.tail.start_lsn;
        let mut live = from.replayed;
        live.push_back(from.tail);
        let table = Table {
            live,
            spares: Vec::new(),
            id_next: from.id_next,
            sequence_next: from.sequence_next,
            nonce_seed: from.nonce_seed,
            has_moved_on: false,
        };
        WalShared {
            referred: OnceLock::new(),
            storage,
            options,
            appended: AtomicU64::new(lsn),
            durable: AtomicU64::new(lsn),
            waited: AtomicBool::new(false),
            flush_bytes: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: Mutex::new(None),
            group: GroupCommit::new(lsn),
            flushing: Mutex::default(),
            preparing: Mutex::new(()),
            table: Mutex::new(table),
        }
    }

    /// Names, once, what every flush has to make durable first.
    pub fn set_referred(&self, referred: Arc<dyn Referred>) {
        let known = self.referred.set(referred);
        debug_assert!(known.is_ok(), "named once, before the first record");
    }

    /// End of what has been appended.
    #[must_use]
    pub fn appended_lsn(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Everything below survives a power loss.
    #[must_use]
    #[inline]
    pub fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Waits until everything below `lsn` survives a power loss, sharing flushes with other threads. `lsn` is at most
    /// [`WalShared::appended_lsn`]. Not to be called under the lock that guards the appender.
    pub fn wait_durable(&self, lsn: u64) -> Result<(), WalError> {
        debug_assert!(lsn <= self.appended_lsn());
        if self.durable_lsn() >= lsn {
            return Ok(());
        }
        self.note_wait();
        let flush = || self.flush_below(u64::MAX);
        self.group
            .wait_durable(lsn, flush)
            .map_err(|cause| WalError::Poisoned { cause })
    }

    /// Makes everything below `upto_lsn` durable that has been appended (`u64::MAX`: all of it) and returns the durable LSN. Does
    /// nothing when that is so already. `upto_lsn` is the end of a record.
    pub fn flush(&self, upto_lsn: u64) -> Result<u64, WalError> {
        self.flush_below(upto_lsn)
            .map_err(|cause| WalError::Poisoned { cause })
    }

    /// Makes sure that the segment which holds the end of a record at `lsn`, the newest of them if the end of one is the start of the next, is
    /// found after a power loss, whatever becomes of the records. Returns the durable LSN.
    pub fn secure_segment_of(&self, lsn: u64) -> Result<u64, WalError> {
        let mut flushes = self.flushing.lock();
        self.check_poison()?;
        self.secured_segment_of(lsn, &mut flushes)?;
        Ok(self.durable_lsn())
    }

    /// Flushes the segments that take no more records, so that a durable commit has only the current one to wait for.
    pub fn flush_full_segments(&self) -> Result<(), WalError> {
        let whole_lsn = self
            .table
            .lock()
            .live
            .back()
            .map_or(0, |segment| segment.whole_lsn);
        self.flush(whole_lsn).map(drop)
    }

    /// The first failure of a flush, if there was one.
    #[must_use]
    pub fn poison_cause(&self) -> Option<Arc<StorageError>> {
        self.poison.lock().clone()
    }

    /// Notes that somebody waits for a flush of his own.
    pub fn note_wait(&self) {
        self.waited.store(true, Ordering::Relaxed);
    }

    /// Whether anybody ever waited for a flush. As long as nobody did, full segments need not be flushed ahead of time.
    #[must_use]
    pub fn was_waited_for(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    /// True when [`WalShared::prepare_spare`] would do something.
    #[must_use]
    pub fn needs_spare(&self) -> bool {
        if self.poisoned.load(Ordering::Relaxed) {
            return false;
        }
        let table = self.table.lock();
        let unready = |spare: &Arc<SegmentFile>| {
            self.options.populate && !spare.populated.load(Ordering::Relaxed)
        };
        table.spares.len() < self.options.spares_max || table.spares.iter().any(unready)
    }

    /// Whether spare segments are not needed for a while: nothing was appended since the log was opened or came to rest. Where they are made
    /// for flushes, not in the first half of a segment either, unless there is none at hand and nobody is flushing: those who wait for the
    /// disk are not made to wait for spares too, and those who write little never need them.
    #[must_use]
    pub fn is_at_leisure(&self, for_flushes: bool) -> bool {
        let is_flushing = self.flushing.try_lock().is_none();
        let table = self.table.lock();
        table.live.back().is_some_and(|current| {
            let used = self.appended_lsn().saturating_sub(current.start_lsn);
            let suffices = used < (current.file_bytes - DATA_OFFSET) / 2;
            if table.has_moved_on {
                for_flushes && suffices && (is_flushing || !table.spares.is_empty())
            } else {
                used == 0 || for_flushes && suffices
            }
        })
    }

    /// Makes one spare segment, or touches the pages of one. `false`: all spares are ready. With `for_flushes` a new file is written and
    /// flushed, so that later flushes of it are quick; not where these are large, unless its pages are touched, which has them written anyway.
    /// The first flush of a file that was not flushed here makes its name durable, too.
    pub fn prepare_spare(&self, for_flushes: bool) -> Result<bool, WalError> {
        let _preparing = self.preparing.lock();
        let (unpopulated, missing) = {
            let table = self.table.lock();
            let unpopulated = table
                .spares
                .iter()
                .find(|spare| !spare.populated.load(Ordering::Relaxed))
                .cloned();
            (
                unpopulated.filter(|_| self.options.populate),
                table.spares.len() < self.options.spares_max,
            )
        };
        if let Some(spare) = unpopulated {
            // The appender may take the file meanwhile: touching pages does not change them.
            self.populate(&spare)?;
            return Ok(true);
        }
        if !missing || self.poisoned.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let id = self.take_id();
        let are_small = self.flush_bytes.load(Ordering::Relaxed) <= WRITTEN_AHEAD_FLUSH_BYTES_MAX;
        let written_ahead = for_flushes && (are_small || self.options.populate);
        let fill = match (written_ahead, self.options.populate) {
            (true, _) => Fill::Durable,
            (false, true) => Fill::Cached,
            (false, false) => Fill::FirstPage,
        };
        let spare = self.create_segment(id, self.options.segment_bytes, fill)?;
        if self.options.populate {
            self.populate(&spare)?;
        }
        self.table.lock().spares.push(Arc::new(spare));
        Ok(true)
    }

    /// Gives back the segments wholly below `lsn`: some become spares, the others are removed. A durable checkpoint covers
    /// everything below `lsn`.
    pub fn release_below(&self, lsn: u64) -> Result<(), WalError> {
        let mut released = Vec::new();
        {
            let mut flushes = self.flushing.lock();
            self.check_poison()?;
            // After a power loss the log must still begin somewhere: without what is released, at the header of the first segment kept.
            let Some(first_kept) = self.secured_segment_of(lsn, &mut flushes)? else {
                return Ok(());
            };
            // Invariant 2: what a durable checkpoint covers is as durable as if it had been flushed. The log may end here, in a segment
            // without a record of its own.
            self.durable.fetch_max(lsn, Ordering::AcqRel);
            let mut table = self.table.lock();
            while table
                .live
                .front()
                .is_some_and(|front| !Arc::ptr_eq(front, &first_kept))
            {
                released.extend(table.live.pop_front());
            }
        }
        // One that cannot be removed stays until the next opening, and is in nobody's way.
        let results = released.iter().map(|segment| self.recycle(segment));
        Ok(results.fold(Ok(()), Result::and)?)
    }

    /// Removes the spare segments.
    pub fn shrink(&self) -> Result<(), WalError> {
        let _preparing = self.preparing.lock();
        let spares = std::mem::take(&mut self.table.lock().spares);
        let results = (spares.iter()).map(|spare| self.storage.remove(spare.file.name()));
        Ok(results.fold(Ok(()), Result::and)?)
    }

    /// A file for a segment of the size that a log begins with, if that is smaller than the current one.
    pub fn make_small_segment(&self) -> Result<Option<SmallSegment>, WalError> {
        let bytes = self.options.first_segment_bytes();
        let current = self.table.lock().live.back().map(|s| s.file_bytes);
        if current.is_none_or(|current| current <= bytes) {
            return Ok(None);
        }
        let for_flushes = !self.options.populate || self.was_waited_for();
        let id = self.take_id();
        let fill = if for_flushes {
            Fill::Durable
        } else {
            Fill::FirstPage
        };
        let file = self.create_segment(id, bytes, fill)?;
        Ok(Some(SmallSegment(Arc::new(file))))
    }

    /// A new file. Its name is durable as well where it is to be: if that fails, what the directory holds is as unknown as after a flush that fails.
    fn create_segment(&self, id: u32, bytes: u64, fill: Fill) -> Result<SegmentFile, WalError> {
        let file = SegmentFile::create(&*self.storage, id, bytes, fill)?;
        if fill == Fill::Durable {
            if let Err(error) = self.storage.sync_dir() {
                let _ = self.storage.remove(file.file.name());
                return Err(self.set_poison(error));
            }
            file.name_durable.store(true, Ordering::Release);
        }
        Ok(file)
    }

    /// Gives space of the current segment back: that of records below `lsn`, which a durable checkpoint covers, and what has no records yet.
    /// Nothing will be appended any more.
    pub fn trim(&self, lsn: u64) -> Result<(), WalError> {
        let mut flushes = self.flushing.lock();
        self.check_poison()?;
        let Some(current) = self.table.lock().live.back().cloned() else {
            return Ok(());
        };
        let Some(mapped) = &current.mapped else {
            return Ok(());
        };
        let end = self.appended_lsn();
        // Should the newest superblock be damaged, replay from where the one before says finds zeros: this tells them from the end of the log.
        let covered = lsn.clamp(current.start_lsn, end);
        if covered > flushes.marked_lsn {
            flushes.mark(&current, covered, true);
        }
        let place = |lsn: u64| DATA_OFFSET + lsn.saturating_sub(current.start_lsn);
        let needed = if lsn < end {
            place(lsn) / PAGE_BYTES * PAGE_BYTES..place(end).next_multiple_of(PAGE_BYTES)
        } else {
            mapped.bytes()..mapped.bytes()
        };
        for unneeded in [DATA_OFFSET..needed.start, needed.end..mapped.bytes()] {
            if !unneeded.is_empty() {
                let bytes = unneeded.end - unneeded.start;
                mapped.file.punch_hole(unneeded.start, bytes)?;
            }
        }
        Ok(())
    }

    /// Number of segments that a recovery would look into.
    #[must_use]
    pub fn live_segments(&self) -> usize {
        self.table.lock().live.len()
    }

    /// Those of them that have anything from `lsn` on.
    #[must_use]
    pub fn live_segments_from(&self, lsn: u64) -> usize {
        let table = self.table.lock();
        let starts = table.live.iter().skip(1).map(|segment| segment.start_lsn);
        let passed = starts.take_while(|&start| start <= lsn).count();
        table.live.len() - passed
    }

    /// Number of files kept for segments to come.
    #[must_use]
    pub fn spare_segments(&self) -> usize {
        self.table.lock().spares.len()
    }

    /// Bytes of records from the oldest kept segment to the end.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        let oldest = self
            .table
            .lock()
            .live
            .front()
            .map_or(0, |segment| segment.start_lsn);
        self.appended_lsn().saturating_sub(oldest)
    }

    /// Bytes of all files of the log, spares included.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        let table = self.table.lock();
        let live: u64 = table.live.iter().map(|segment| segment.file_bytes).sum();
        live + table.spares.iter().map(|spare| spare.bytes()).sum::<u64>()
    }

    // ---- for the appender

    pub(super) fn set_appended(&self, lsn: u64) {
        self.appended.store(lsn, Ordering::Release);
    }

    #[inline]
    pub(super) fn check_poison(&self) -> Result<(), WalError> {
        if self.poisoned.load(Ordering::Acquire)
            && let Some(cause) = self.poison_cause()
        {
            return Err(WalError::Poisoned { cause });
        }
        Ok(())
    }

    /// Whether records are stored with system calls.
    pub(super) fn stores_by_call(&self) -> bool {
        self.options.store_by_call
    }

    /// Bytes of records that a new segment holds.
    pub(super) fn segment_capacity(&self) -> u64 {
        self.options.segment_bytes - DATA_OFFSET
    }

    /// Files for `count` more segments, all or none: spares, and new files where there are too few.
    pub(super) fn take_files(&self, count: usize) -> Result<Vec<Arc<SegmentFile>>, WalError> {
        let mut files = Vec::with_capacity(count);
        while files.len() < count {
            if let Some(spare) = self.take_spare() {
                files.push(spare);
                continue;
            }
            let id = self.take_id();
            match SegmentFile::create(
                &*self.storage,
                id,
                self.options.segment_bytes,
                Fill::FirstPage,
            ) {
                Ok(file) => files.push(Arc::new(file)),
                Err(error) => {
                    self.put_back(files);
                    return Err(error.into());
                }
            }
        }
        Ok(files)
    }

    /// Keeps files that were not needed, as spares: as many as there are to be, and for the others somebody else has use of their space.
    fn put_back(&self, mut files: Vec<Arc<SegmentFile>>) {
        let excess = {
            let mut table = self.table.lock();
            table.spares.append(&mut files);
            let kept = table.spares.len().min(self.options.spares_max);
            table.spares.split_off(kept)
        };
        for file in excess {
            // One that stays is removed at the next opening.
            let _ = self.storage.remove(file.file.name());
        }
    }

    /// The next segment of the chain, which begins at `start_lsn`, inside of the record that begins at `whole_lsn`; it becomes the
    /// current one.
    pub(super) fn begin_segment(
        &self,
        file: Arc<SegmentFile>,
        start_lsn: u64,
        whole_lsn: u64,
    ) -> Arc<Segment> {
        let mut table = self.table.lock();
        let sequence = table.sequence_next;
        table.sequence_next += 1;
        table.has_moved_on = true;
        let header = SegmentHeader {
            sequence,
            start_lsn,
            nonce: nonce(table.nonce_seed, sequence),
            durable_lsn: self.durable_lsn(),
            file_bytes: file.bytes(),
        };
        let segment = Arc::new(Segment::begin(file, header, whole_lsn));
        table.live.push_back(Arc::clone(&segment));
        segment
    }

    /// Begins a segment for a log that comes to rest.
    pub(super) fn begin_small_segment(&self, small: SmallSegment, lsn: u64) -> Arc<Segment> {
        let segment = self.begin_segment(small.0, lsn, lsn);
        self.table.lock().has_moved_on = false;
        segment
    }

    // ---- inside

    fn take_id(&self) -> u32 {
        let mut table = self.table.lock();
        let id = table.id_next;
        table.id_next = id.wrapping_add(1);
        id
    }

    /// A spare, one with touched pages first.
    fn take_spare(&self) -> Option<Arc<SegmentFile>> {
        let mut table = self.table.lock();
        let populated = table
            .spares
            .iter()
            .position(|spare| spare.populated.load(Ordering::Relaxed));
        let at = populated.or_else(|| table.spares.len().checked_sub(1))?;
        Some(table.spares.swap_remove(at))
    }

    fn populate(&self, spare: &SegmentFile) -> Result<(), StorageError> {
        spare.map.populate(0, spare.bytes())?;
        spare.populated.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn recycle(&self, segment: &Segment) -> Result<(), StorageError> {
        if let Some(file) = &segment.mapped
            && file.bytes() == self.options.segment_bytes
        {
            let mut table = self.table.lock();
            if table.spares.len() < self.options.spares_max {
                table.spares.push(Arc::clone(file));
                return Ok(());
            }
        }
        self.storage.remove(&segment.name)
    }

    fn set_poison(&self, error: StorageError) -> WalError {
        WalError::Poisoned {
            cause: self.set_poison_cause(error),
        }
    }

    fn set_poison_cause(&self, error: StorageError) -> Cause {
        let mut poison = self.poison.lock();
        let cause = Arc::clone(poison.get_or_insert_with(|| Arc::new(error)));
        self.poisoned.store(true, Ordering::Release);
        cause
    }

    /// The caller holds `flushing`.
    fn sync_segment(&self, segment: &Segment) -> Result<(), StorageError> {
        let Some(mapped) = &segment.mapped else {
            return Ok(());
        };
        mapped.file.sync_data()?;
        if !mapped.name_durable.load(Ordering::Acquire) {
            self.storage.sync_dir()?;
            mapped.name_durable.store(true, Ordering::Release);
        }
        segment.header_durable.store(true, Ordering::Release);
        Ok(())
    }

    /// The newest segment that begins at or before `lsn`, its header made durable. The caller holds `flushing`.
    fn secured_segment_of(
        &self,
        lsn: u64,
        flushes: &mut Flushes,
    ) -> Result<Option<Arc<Segment>>, WalError> {
        let holds = |segment: &&Arc<Segment>| segment.start_lsn <= lsn;
        let segment = self.table.lock().live.iter().rev().find(holds).cloned();
        if let Some(segment) = &segment
            && !segment.header_durable.load(Ordering::Acquire)
        {
            self.sync_segment(segment)
                .map_err(|error| self.set_poison(error))?;
            flushes.count += 1;
        }
        Ok(segment)
    }

    fn flush_below(&self, upto_lsn: u64) -> Result<u64, Cause> {
        if self.durable_lsn() >= upto_lsn {
            return Ok(self.durable_lsn());
        }
        let mut flushes = self.flushing.lock();
        if let Some(cause) = self.poison_cause() {
            return Err(cause);
        }
        // The order matters (invariant 1): the chain read afterwards holds everything below `appended`.
        let appended = self.appended_lsn();
        let target = appended.min(upto_lsn);
        let mut durable = self.durable_lsn();
        if durable >= target {
            return Ok(durable);
        }
        // What the records below `appended` refer to was written before they were.
        if let Some(referred) = self.referred.get() {
            referred
                .sync()
                .map_err(|error| self.set_poison_cause(error))?;
        }
        let durable_before = durable;
        let segments: Vec<_> = self.table.lock().live.iter().cloned().collect();
        for (at, segment) in segments.iter().enumerate() {
            let next = segments.get(at + 1);
            let end = next.map_or(appended, |next| next.start_lsn);
            if end <= durable || segment.start_lsn >= target {
                continue;
            }
            if let (Some(_), Some(full)) = (next, &segment.mapped) {
                full.map.unload();
            }
            self.sync_segment(segment)
                .map_err(|error| self.set_poison_cause(error))?;
            flushes.count += 1;
            // Only whole records count (marks must be ends of records).
            let whole = next.map_or(appended, |next| next.whole_lsn).min(appended);
            if whole > durable {
                durable = whole;
                self.durable.store(durable, Ordering::Release);
                flushes.mark(segment, durable, next.is_some());
            }
        }
        let average = self.flush_bytes.load(Ordering::Relaxed);
        let added = (durable - durable_before) / FLUSH_AVERAGE_SHARE;
        let average = average - average / FLUSH_AVERAGE_SHARE + added;
        self.flush_bytes.store(average, Ordering::Relaxed);
        Ok(durable)
    }
}
