//! Reads the log back and finds its end.
//!
//! Thread safety: reads only; nobody writes the log meanwhile (the directory's lock).
//!
//! Invariants:
//! 1. A record is given to the visitor only when all of its fragments are valid and in their places.
//! 2. The log ends at the first fragment that is not valid. When a durable mark, a segment header or the caller proves that the log
//!    was once durable beyond that point, it is damage and an error, never the end.
//! 3. A segment holds nothing beyond the start of the next one in sequence.
//!
//! Failure modes: `Corrupted`, `UnsupportedVersion`, errors of the storage and of the visitor. Any bytes give one of these or an end.
use super::{
    WalError,
    record::{self, FRAGMENT_BYTES_MIN, Kind, padded_bytes},
    segment::{DATA_OFFSET, SegmentHeader, file_id},
};
use crate::storage::{OpenMode, Storage, StorageError, StorageFile};
use std::sync::Arc;

/// One record, as given to the visitor.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Commit sequence number.
    pub csn: u64,
    /// Number of operations in the payload.
    pub op_count: u32,
    /// The operations.
    pub payload: &'a [u8],
    /// First byte of the record in the log.
    pub lsn: u64,
    /// Byte after the last.
    pub end_lsn: u64,
}

/// What replay found out; [`Wal::resume`](super::Wal::resume) continues from it.
#[derive(Clone, Debug)]
pub struct ReplayEnd {
    /// End of the last valid record.
    pub end_lsn: u64,
    /// Number of records visited.
    pub records: u64,
    /// Everything below was durable before this replay.
    pub proven_lsn: u64,
    /// The segments that hold the log from the caller's position to the end.
    pub(super) chain: Vec<Link>,
    /// Other segment files: orphans behind a torn tail, spares, released ones.
    pub(super) others: Vec<String>,
    pub(super) id_max: Option<u32>,
    pub(super) sequence_max: Option<u64>,
}

/// A segment that was replayed.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub name: String,
    pub header: SegmentHeader,
}

pub(super) struct Candidate {
    pub file: Arc<dyn StorageFile>,
    pub header: SegmentHeader,
    /// Bytes of the record area that the file really has.
    pub data_bytes: u64,
}

impl Candidate {
    /// Reads the header of a segment, and the highest LSN that it proves durable; `None` if the file is no part of the log.
    fn read(storage: &dyn Storage, name: &str) -> Result<Option<(Candidate, u64)>, WalError> {
        let file = storage.open(name, OpenMode::Read)?;
        let file_bytes = file.len()?;
        let mut page = vec![0; file_bytes.min(DATA_OFFSET) as usize];
        file.read_at(&mut page, 0)?;
        let Some(header) = SegmentHeader::decode(&page, name)? else {
            // Marks are made behind a header, and wiped before another one.
            if SegmentHeader::has_marks(&page) {
                return Err(WalError::Corrupted {
                    file: name.to_owned(),
                    offset: 0,
                    what: "the header of a segment that was flushed is not valid",
                });
            }
            return Ok(None);
        };
        let candidate = Candidate {
            file,
            header,
            data_bytes: header
                .file_bytes
                .min(file_bytes)
                .saturating_sub(DATA_OFFSET),
        };
        Ok(Some((candidate, header.proven_lsn(&page))))
    }

    fn corrupted(&self, at: u64, what: &'static str) -> WalError {
        WalError::Corrupted {
            file: self.file.name().to_owned(),
            offset: DATA_OFFSET + at,
            what,
        }
    }
}

/// Visits every record from `from_lsn` (a record boundary: 0 or the end of a record) to the end of the log. `durable_lsn` is what
/// the caller knows to have been durable (0: nothing). Changes nothing.
pub fn replay(
    storage: &dyn Storage,
    from_lsn: u64,
    durable_lsn: u64,
    mut visitor: impl FnMut(Record<'_>) -> Result<(), WalError>,
) -> Result<ReplayEnd, WalError> {
    replay_while(storage, from_lsn, durable_lsn, |record| {
        visitor(record).map(|()| true)
    })
}

/// As [`replay`], but the visitor may answer `false`: what the record refers to is not there, so that the log ends before it, as if
/// its checksum did not match.
pub fn replay_while(
    storage: &dyn Storage,
    from_lsn: u64,
    durable_lsn: u64,
    mut visitor: impl FnMut(Record<'_>) -> Result<bool, WalError>,
) -> Result<ReplayEnd, WalError> {
    let mut end = ReplayEnd {
        end_lsn: from_lsn,
        records: 0,
        chain: Vec::new(),
        others: Vec::new(),
        proven_lsn: 0,
        id_max: None,
        sequence_max: None,
    };
    let (candidates, proven_lsn) = scan(storage, &mut end)?;
    // What lies before the caller's position is not needed, so nothing has to be known about it.
    let proven_lsn = proven_lsn.max(durable_lsn).max(from_lsn);
    end.proven_lsn = proven_lsn;
    let missing = |what| WalError::Corrupted {
        file: storage.describe(),
        offset: 0,
        what,
    };

    let Some(first) = candidates
        .iter()
        .rposition(|candidate| candidate.header.start_lsn <= from_lsn)
    else {
        if from_lsn == 0 && proven_lsn == 0 && candidates.is_empty() {
            return Ok(end);
        }
        return Err(missing(
            "the log segment that continues the last checkpoint is missing",
        ));
    };
    if from_lsn - candidates[first].header.start_lsn > candidates[first].data_bytes {
        return Err(missing(
            "the log segment that continues the last checkpoint is missing",
        ));
    }

    let mut reader = Reader::at(from_lsn);
    let mut stop = None;
    let mut used = first;
    for (at, candidate) in candidates.iter().enumerate().skip(first) {
        if candidate.header.start_lsn != reader.lsn && at != first {
            break; // an orphan behind a torn tail
        }
        let next_start = candidates.get(at + 1).map(|next| next.header.start_lsn);
        if next_start.is_some_and(|next| next < candidate.header.start_lsn) {
            return Err(candidate.corrupted(0, "segments overlap"));
        }
        used = at;
        stop = Some(reader.read_segment(candidate, next_start, &mut visitor)?);
        if stop.as_ref().is_some_and(|stop| !stop.at_segment_end) {
            break;
        }
    }
    end.records = reader.records;
    end.end_lsn = reader
        .pending
        .map_or(reader.lsn, |pending| pending.start_lsn);
    if end.end_lsn < proven_lsn {
        let (at, what) = stop.map_or((0, "not a record"), |stop| (stop.at, stop.what));
        return Err(candidates[used].corrupted(at, what));
    }
    for (at, candidate) in candidates.into_iter().enumerate() {
        let name = candidate.file.name().to_owned();
        if (first..=used).contains(&at) {
            end.chain.push(Link {
                name,
                header: candidate.header,
            });
        } else {
            end.others.push(name);
        }
    }
    Ok(end)
}

/// Visits the records from `from_lsn` up to `to_lsn`, both ends of records that are durable, while another process may be writing behind
/// `to_lsn`, and may be removing segments that end before `from_lsn`.
pub fn replay_between(
    storage: &dyn Storage,
    from_lsn: u64,
    to_lsn: u64,
    mut visitor: impl FnMut(Record<'_>) -> Result<(), WalError>,
) -> Result<(), WalError> {
    if to_lsn <= from_lsn {
        return Ok(());
    }
    let missing = || WalError::Corrupted {
        file: storage.describe(),
        offset: 0,
        what: "a log segment of the last checkpoint is missing",
    };
    let mut candidates = Vec::new();
    for name in storage.list()? {
        if file_id(&name).is_none() {
            continue;
        }
        match Candidate::read(storage, &name) {
            Ok(found) => candidates.extend(found.map(|(candidate, _)| candidate)),
            Err(WalError::Storage(StorageError::NotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    candidates.sort_by_key(|candidate| candidate.header.sequence);
    let first = candidates
        .iter()
        .rposition(|candidate| candidate.header.start_lsn <= from_lsn)
        .filter(|&at| from_lsn - candidates[at].header.start_lsn <= candidates[at].data_bytes)
        .ok_or_else(missing)?;
    let mut reader = Reader::at(from_lsn);
    for (at, candidate) in candidates.iter().enumerate().skip(first) {
        if at != first && candidate.header.start_lsn != reader.lsn {
            return Err(missing());
        }
        let next_start = candidates.get(at + 1).map(|next| next.header.start_lsn);
        if next_start.is_some_and(|next| next < candidate.header.start_lsn) {
            return Err(candidate.corrupted(0, "segments overlap"));
        }
        let mut is_behind = false;
        let stop = reader.read_segment(candidate, next_start, &mut |record| {
            is_behind = record.end_lsn > to_lsn;
            if !is_behind {
                visitor(record)?;
            }
            Ok(!is_behind)
        })?;
        if is_behind || reader.lsn >= to_lsn {
            return Ok(());
        }
        if !stop.at_segment_end {
            return Err(candidate.corrupted(stop.at, stop.what));
        }
    }
    Err(missing())
}

/// Reads every header: the segments in order of their sequence, and the highest LSN that they prove durable.
fn scan(storage: &dyn Storage, end: &mut ReplayEnd) -> Result<(Vec<Candidate>, u64), WalError> {
    let mut candidates = Vec::new();
    let mut proven_lsn = 0;
    for name in storage.list()? {
        let Some(id) = file_id(&name) else { continue };
        end.id_max = end.id_max.max(Some(id));
        let Some((candidate, proven)) = Candidate::read(storage, &name)? else {
            end.others.push(name);
            continue;
        };
        proven_lsn = proven.max(proven_lsn);
        end.sequence_max = end.sequence_max.max(Some(candidate.header.sequence));
        candidates.push(candidate);
    }
    candidates.sort_by_key(|candidate| candidate.header.sequence);
    for pair in candidates.windows(2) {
        if pair[0].header.sequence == pair[1].header.sequence {
            return Err(pair[1].corrupted(0, "two segments have the same sequence number"));
        }
    }
    Ok((candidates, proven_lsn))
}

/// A record whose last fragment has not come yet.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub start_lsn: u64,
    csn: u64,
    op_count: u32,
}

#[derive(Default)]
pub(super) struct Reader {
    pub lsn: u64,
    pub pending: Option<Pending>,
    assembled: Vec<u8>,
    records: u64,
}

impl Reader {
    pub fn at(lsn: u64) -> Reader {
        Reader {
            lsn,
            ..Reader::default()
        }
    }
}

/// Why reading a segment stopped.
pub(super) struct Stop {
    /// Byte of the record area.
    pub at: u64,
    pub what: &'static str,
    /// Nothing is wrong; the log may go on in the next segment.
    pub at_segment_end: bool,
}

impl Reader {
    pub fn read_segment(
        &mut self,
        candidate: &Candidate,
        next_start: Option<u64>,
        visitor: &mut impl FnMut(Record<'_>) -> Result<bool, WalError>,
    ) -> Result<Stop, WalError> {
        let SegmentHeader {
            start_lsn, nonce, ..
        } = candidate.header;
        // Invariant 3.
        let to_next = next_start.map_or(u64::MAX, |next| next - start_lsn);
        let limit = candidate.data_bytes.min(to_next);
        let begin = self.lsn - start_lsn;
        let mut bytes = vec![0; usize::try_from(limit.saturating_sub(begin)).unwrap_or(0)];
        if !bytes.is_empty() {
            // A file whose length was not durable may be shorter than its header page.
            candidate.file.read_at(&mut bytes, DATA_OFFSET + begin)?;
        }
        let mut at = 0;
        loop {
            let offset = begin + at as u64;
            let rest = &bytes[at..];
            if rest.is_empty() && offset >= to_next {
                return Ok(Stop {
                    at: offset,
                    what: "the next segment is empty",
                    at_segment_end: true,
                });
            }
            let fragment = match record::read(rest, nonce, self.lsn) {
                Ok(fragment) => fragment,
                Err(what) => {
                    // Too little room for a fragment of a longer record: the appender went on in the next segment.
                    let full = (rest.len() as u64) < FRAGMENT_BYTES_MIN;
                    return Ok(Stop {
                        at: offset,
                        what,
                        at_segment_end: full,
                    });
                }
            };
            let stop = |what| {
                Ok(Stop {
                    at: offset,
                    what,
                    at_segment_end: false,
                })
            };
            let pending = match (fragment.kind, self.pending) {
                (Kind::Full | Kind::First, None) => {
                    self.assembled.clear();
                    Pending {
                        start_lsn: self.lsn,
                        csn: fragment.csn,
                        op_count: fragment.op_count,
                    }
                }
                (Kind::Middle | Kind::Last, Some(pending)) => {
                    if pending.csn != fragment.csn || pending.op_count != fragment.op_count {
                        return stop("part of another record");
                    }
                    pending
                }
                _ => return stop("part of a record out of its place"),
            };
            at += padded_bytes(fragment.payload.len()) as usize;
            self.lsn += padded_bytes(fragment.payload.len());
            let payload = match fragment.kind {
                Kind::Full => fragment.payload,
                Kind::First | Kind::Middle | Kind::Last => {
                    self.assembled.extend_from_slice(fragment.payload);
                    &self.assembled
                }
            };
            if matches!(fragment.kind, Kind::First | Kind::Middle) {
                self.pending = Some(pending);
                continue;
            }
            self.pending = None;
            let Pending {
                start_lsn: lsn,
                csn,
                op_count,
            } = pending;
            let counts = visitor(Record {
                csn,
                op_count,
                payload,
                lsn,
                end_lsn: self.lsn,
            })?;
            if !counts {
                self.lsn = lsn;
                return stop("what the record refers to is missing");
            }
            self.records += 1;
        }
    }
}
