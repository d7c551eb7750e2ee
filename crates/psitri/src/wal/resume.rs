//! Continues a log after replay: recovery's writing half.
//!
//! Thread safety: nobody else uses the log meanwhile.
//!
//! Invariants:
//! 1. The replayed part is durable before anything is removed or begun: what the caller has seen stays.
//! 2. So is its end: no segment of the chain has a valid fragment there any more. A record may have been refused for a reason outside of
//!    the log, which need not last (a value that was lost, a number that does not follow): neither it nor what is behind it ever counts
//!    again, whatever the caller knows by then, and whatever becomes of the new tail.
//! 3. Everything that is not part of the chain is removed, durably, before the new tail exists; so a segment behind a torn tail
//!    can never be taken for the continuation of the new log.
//! 4. The new tail is durable before the first record enters it. It starts where the valid log ends, with a sequence number above
//!    all that were ever seen; the old tail's garbage lies beyond its start and is not read. Older segments without a record that start
//!    there too stay until then.
//!
//! Every step may be the last before another crash: once (2) was reached, replay finds the same records again. Before that nothing was
//! removed, and the caller has changed nothing on which its refusal depends, so that it refuses the same record again.
//!
//! Failure modes: an error of the storage; the log is then as it was, or without its garbage.
use super::{
    ReplayEnd, Wal, WalError, WalOptions, WalShared,
    record::HEADER_BYTES,
    replay::Link,
    segment::{DATA_OFFSET, Fill, Segment, SegmentFile, SegmentHeader, file_name},
    shared::{Continuation, nonce},
};
use crate::{
    storage::{OpenMode, Storage},
    sync::{AtomicBool, Ordering},
};
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

impl Wal {
    /// Continues the log where [`replay`](super::replay) found its end. Afterwards everything replayed is durable.
    ///
    /// The checkpoint whose position replay began at must be durable: after the end of a process it may have been read from the
    /// system's cache only, so the caller flushes it first. Segments before that position are removed here. All names in the directory are
    /// durable afterwards.
    pub fn resume(
        storage: Arc<dyn Storage>,
        options: WalOptions,
        end: ReplayEnd,
    ) -> Result<Wal, WalError> {
        options.check()?;
        for (index, link) in end.chain.iter().enumerate() {
            let next = end.chain.get(index + 1);
            // Behind the start of the next one it holds nothing: room that may have been given back, on a disk that may be full now.
            let next_lsn = next.map_or(u64::MAX, |next| next.header.start_lsn);
            secure(&*storage, link, &end, next_lsn)?;
        }
        if !end.chain.is_empty() {
            storage.sync_dir()?;
        }
        for name in &end.others {
            storage.remove(name)?;
        }
        // Segments that hold only pieces of a record which ran over several of them. They would overlap the new tail.
        let (kept, torn): (Vec<_>, Vec<_>) = end
            .chain
            .into_iter()
            .partition(|link| link.header.start_lsn <= end.end_lsn);
        for link in &torn {
            storage.remove(&link.name)?;
        }
        if !(end.others.is_empty() && torn.is_empty()) {
            storage.sync_dir()?;
        }

        let id = end.id_max.map_or(0, |id| id.wrapping_add(1));
        let sequence = end.sequence_max.map_or(0, |sequence| sequence + 1);
        let nonce_seed = options
            .nonce_seed
            .unwrap_or_else(|| RandomState::new().hash_one(sequence));
        let file_bytes = options.first_segment_bytes();
        // Where commits do not wait for flushes, neither do they gain by blocks that were written before.
        let fill = if options.populate {
            Fill::FirstPage
        } else {
            Fill::Written
        };
        let file = Arc::new(SegmentFile::create(&*storage, id, file_bytes, fill)?);
        let header = SegmentHeader {
            sequence,
            start_lsn: end.end_lsn,
            nonce: nonce(nonce_seed, sequence),
            durable_lsn: end.end_lsn,
            file_bytes: file.bytes(),
        };
        let tail = Segment::begin(Arc::clone(&file), header, end.end_lsn);
        if let Err(error) = file.file.sync_data().and_then(|()| storage.sync_dir()) {
            // A header of unknown state must not stay behind under a name; the next opening would have to cope with it anyway.
            let _ = storage.remove(&file_name(id));
            return Err(error.into());
        }
        file.name_durable.store(true, Ordering::Release);
        tail.header_durable.store(true, Ordering::Release);

        let mut replayed = std::collections::VecDeque::new();
        for link in kept {
            if link.header.start_lsn >= end.end_lsn {
                // The log begins in the new tail just as well.
                storage.remove(&link.name)?;
                continue;
            }
            replayed.push_back(Arc::new(Segment {
                mapped: None,
                name: link.name,
                start_lsn: link.header.start_lsn,
                whole_lsn: link.header.start_lsn,
                nonce: link.header.nonce,
                file_bytes: link.header.file_bytes,
                header_durable: AtomicBool::new(true),
            }));
        }
        let tail = Arc::new(tail);
        let continuation = Continuation {
            replayed,
            tail: Arc::clone(&tail),
            id_next: id.wrapping_add(1),
            sequence_next: sequence + 1,
            nonce_seed,
        };
        Ok(Wal::new(
            Arc::new(WalShared::new(storage, options, continuation)),
            tail,
        ))
    }
}

/// Makes the replayed part of a segment durable, and its end. What is not proven to be so is written again first: after a flush that failed
/// before the process ended, the system may hold pages that it calls clean but never wrote. `next_lsn` is where the next segment begins.
fn secure(
    storage: &dyn Storage,
    link: &Link,
    end: &ReplayEnd,
    next_lsn: u64,
) -> Result<(), WalError> {
    let file = storage.open(&link.name, OpenMode::ReadWrite)?;
    let start = link.header.start_lsn;
    let file_bytes = file.len()?;
    let place = |lsn: u64| (DATA_OFFSET + lsn.saturating_sub(start)).min(file_bytes);
    let held_to = end.end_lsn.min(next_lsn);
    let unproven = place(end.proven_lsn.min(held_to))..place(held_to);
    for range in [0..DATA_OFFSET.min(file_bytes), unproven] {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_at(&mut bytes, range.start)?;
        file.write_at(&bytes, range.start)?;
    }
    if (start..=held_to).contains(&end.end_lsn) {
        // Invariant 2: zeros are no record. They may lie in two sectors; either of them makes the header invalid, or both are to be written yet.
        let at = place(end.end_lsn);
        let len = (file_bytes - at).min(HEADER_BYTES as u64);
        file.write_at(&[0; HEADER_BYTES][..len as usize], at)?;
    }
    file.sync_data()?;
    Ok(())
}
