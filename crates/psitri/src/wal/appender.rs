//! The appender: puts records at the end of the log.
//!
//! Thread safety: `&mut self`; the engine keeps it under its commit lock. Other threads use [`WalShared`].
//!
//! Invariants:
//! 1. Bytes at and above `end_lsn` of the current segment are nobody's: only this appender stores there, and nothing valid is there,
//!    because the nonce is new.
//! 2. All files that a record needs are at hand before its first byte is stored, so `append` does all or nothing.
//!
//! Failure modes: no space for a new segment, or a poisoned log: an error, and the log is as before.
#![allow(unsafe_code)] // stores into the log
use super::{
    WalError, WalOptions, WalShared,
    record::{FRAGMENT_BYTES_MIN, HEADER_BYTES, Head, Kind, Small, padded_bytes},
    replay::replay,
    segment::Segment,
    shared::SmallSegment,
};
use crate::storage::Storage;
use std::sync::Arc;

/// Where a record lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// First byte.
    pub start_lsn: u64,
    /// Byte after the last; what [`WalShared::wait_durable`] takes.
    pub end_lsn: u64,
}

/// The appender; see the module.
#[derive(Debug)]
pub struct Wal {
    shared: Arc<WalShared>,
    current: Arc<Segment>,
    end_lsn: u64,
    limit_lsn: u64,
}

impl Wal {
    /// Starts the log of a new database at LSN 0. A log that already has records is an error: it belongs to somebody. Files that a
    /// crash during creation left are cleared away.
    ///
    /// ```
    /// use psitri::{storage::MemoryStorage, wal::{Wal, WalOptions, replay}};
    /// use std::sync::Arc;
    /// let storage = Arc::new(MemoryStorage::new());
    /// let mut wal = Wal::create(storage.clone(), WalOptions::default())?;
    /// let place = wal.append(1, 1, b"first")?;
    /// wal.shared().wait_durable(place.end_lsn)?;
    /// let mut seen = Vec::new();
    /// replay(&*storage, 0, 0, |record| {
    ///     seen.push((record.csn, record.payload.to_vec()));
    ///     Ok(())
    /// })?;
    /// assert_eq!(seen, [(1, b"first".to_vec())]);
    /// # Ok::<(), psitri::wal::WalError>(())
    /// ```
    pub fn create(storage: Arc<dyn Storage>, options: WalOptions) -> Result<Wal, WalError> {
        let end = replay(&*storage, 0, 0, |_| Ok(()))?;
        if end.end_lsn != 0 {
            let file = end
                .chain
                .first()
                .map_or_else(|| storage.describe(), |link| link.name.clone());
            return Err(WalError::Corrupted {
                file,
                offset: 0,
                what: "a new database has a log with records",
            });
        }
        Wal::resume(storage, options, end)
    }

    pub(super) fn new(shared: Arc<WalShared>, tail: Arc<Segment>) -> Wal {
        let (end_lsn, limit_lsn) = (tail.start_lsn, tail.limit_lsn());
        Wal {
            shared,
            current: tail,
            end_lsn,
            limit_lsn,
        }
    }

    /// End of the log.
    #[must_use]
    pub fn end_lsn(&self) -> u64 {
        self.end_lsn
    }

    /// The half that other threads use.
    #[must_use]
    pub fn shared(&self) -> &Arc<WalShared> {
        &self.shared
    }

    /// Puts a record at the end of the log. It then survives the end of the process, and a power loss once
    /// [`WalShared::wait_durable`] of its `end_lsn` has returned. After an error nothing was appended.
    #[inline]
    pub fn append(
        &mut self,
        csn: u64,
        op_count: u32,
        payload: &[u8],
    ) -> Result<Appended, WalError> {
        self.shared.check_poison()?;
        let start_lsn = self.end_lsn;
        if padded_bytes(payload.len()) <= self.limit_lsn - start_lsn {
            self.store(Kind::Full, csn, op_count, payload);
        } else {
            self.append_across(csn, op_count, payload)?;
        }
        self.shared.set_appended(self.end_lsn);
        Ok(Appended {
            start_lsn,
            end_lsn: self.end_lsn,
        })
    }

    /// Goes on in another segment, so that a checkpoint which covers everything can give the present one back.
    pub fn go_on_in(&mut self, segment: SmallSegment) {
        self.current = self.shared.begin_small_segment(segment, self.end_lsn);
        self.limit_lsn = self.current.limit_lsn();
    }

    /// Appends a record that does not fit into the current segment.
    #[cold]
    fn append_across(&mut self, csn: u64, op_count: u32, payload: &[u8]) -> Result<(), WalError> {
        let room = self.limit_lsn - self.end_lsn;
        let here = if room >= FRAGMENT_BYTES_MIN {
            room as usize - HEADER_BYTES
        } else {
            0
        };
        debug_assert!(here < payload.len() || here == 0);
        let (head, mut rest) = payload.split_at(here.min(payload.len()));
        let segment_payload = self.shared.segment_capacity() as usize - HEADER_BYTES;
        let count = rest.len().div_ceil(segment_payload).max(1);
        let record_lsn = self.end_lsn;
        // Invariant 2: from here on nothing can fail.
        let files = self.shared.take_files(count)?;
        let mut started = !head.is_empty();
        if started {
            self.store(Kind::First, csn, op_count, head);
        }
        for file in files {
            self.current = self.shared.begin_segment(file, self.end_lsn, record_lsn);
            self.limit_lsn = self.current.limit_lsn();
            let capacity = (self.limit_lsn - self.end_lsn) as usize - HEADER_BYTES;
            let (part, after) = rest.split_at(rest.len().min(capacity));
            let kind = match (started, after.is_empty()) {
                (false, true) => Kind::Full,
                (false, false) => Kind::First,
                (true, false) => Kind::Middle,
                (true, true) => Kind::Last,
            };
            self.store(kind, csn, op_count, part);
            (started, rest) = (true, after);
        }
        debug_assert!(rest.is_empty());
        Ok(())
    }

    /// Stores a fragment that fits. A torn one fails its checksum, in whatever order its bytes arrive.
    #[inline]
    fn store(&mut self, kind: Kind, csn: u64, op_count: u32, payload: &[u8]) {
        let lsn = self.end_lsn;
        let head = Head {
            nonce: self.current.nonce,
            lsn,
            kind,
            csn,
            op_count,
        };
        let by_call = self.shared.stores_by_call();
        if payload.len() <= Small::PAYLOAD_BYTES_MAX {
            let mut small = Small::new();
            let fragment = small.fragment(head, payload);
            // SAFETY: we are the one appender and store at the end of the log (invariant 1).
            unsafe { self.current.store(lsn, fragment, by_call) };
        } else {
            let header = head.header(payload);
            // SAFETY: as above.
            unsafe {
                let payload_lsn = lsn + HEADER_BYTES as u64;
                self.current.store(payload_lsn, payload, by_call);
                self.current.store(lsn, &header, by_call);
            }
        }
        self.end_lsn = lsn + padded_bytes(payload.len());
        debug_assert!(self.end_lsn <= self.limit_lsn);
        self.current
            .prefetch_ahead(self.end_lsn, HEADER_BYTES + payload.len());
    }
}
