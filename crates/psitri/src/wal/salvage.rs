//! Reads a damaged log as far as it can be read, for `salvage`. [`replay`](super::replay) gives an error where this goes on.
//!
//! Thread safety: reads only; nobody writes the log meanwhile.
//!
//! Invariants:
//! 1. Records are given to the visitor in the order of the log, each with a valid checksum for its place.
//! 2. After the first damage the visitor sees nothing more, unless the caller asked for what lies behind it: later commits may depend
//!    on those that are lost. What is there and was not given is counted.
//! 3. The log ends without damage only if nothing proves that it went on: no mark, no header, no record, no segment behind the end.
//!
//! Failure modes: a segment of a newer release, and errors of the visitor. All else is reported as damage.
use super::{
    Record, WalError,
    record::{self, ALIGNMENT_BYTES},
    replay::{Candidate, Reader},
    segment::{DATA_OFFSET, SegmentHeader, file_id},
};
use crate::storage::{OpenMode, Storage, StorageError};

/// A place where the log cannot be read.
#[derive(Clone, Debug)]
pub struct LogDamage {
    /// Segment; the directory if a segment is missing.
    pub file: String,
    /// Byte in the file.
    pub offset: u64,
    /// What was found.
    pub what: String,
}

/// What became of a log.
#[derive(Clone, Debug, Default)]
pub struct SalvagedLog {
    /// Records that the visitor took.
    pub visited: u64,
    /// Records behind damage that it was not asked about.
    pub passed_by: u64,
    /// End of the last record that the visitor took; 0 if there was none.
    pub end_lsn: u64,
    /// In the order of the log; files that cannot be placed come first.
    pub damage: Vec<LogDamage>,
}

/// Bytes at the head of a file that a spare segment has all zero.
const SPARE_BYTES: u64 = DATA_OFFSET + 64;

/// Visits the records from `from_lsn` on; `None` if that is not known: from the first segment of the newest unbroken row of them.
/// `durable_lsn` is what the caller knows to have been durable. `past_damage`: goes on behind what cannot be read. The visitor
/// answers `false` if what the record refers to is not there, so that the log ends before it.
pub fn salvage(
    storage: &dyn Storage,
    from_lsn: Option<u64>,
    durable_lsn: u64,
    past_damage: bool,
    mut visitor: impl FnMut(Record<'_>) -> Result<bool, WalError>,
) -> Result<SalvagedLog, WalError> {
    let mut log = SalvagedLog::default();
    let (candidates, proven_lsn) = scan(storage, &mut log.damage)?;
    let proven_lsn = proven_lsn.max(durable_lsn).max(from_lsn.unwrap_or(0));
    let missing = |what: &str| LogDamage {
        file: storage.describe(),
        offset: 0,
        what: what.to_owned(),
    };
    let holds = |candidate: &Candidate, lsn: u64| {
        candidate.header.start_lsn <= lsn
            && lsn - candidate.header.start_lsn <= candidate.data_bytes
    };
    let mut stopped = false;
    let first = match from_lsn {
        Some(lsn) => {
            let before = candidates.iter().rposition(|c| c.header.start_lsn <= lsn);
            match before.filter(|&at| holds(&candidates[at], lsn)) {
                Some(at) => at,
                None if candidates.is_empty() && proven_lsn == 0 => return Ok(log),
                None => {
                    let what = "the log segment that continues the checkpoint is missing";
                    log.damage.push(missing(what));
                    stopped = !past_damage;
                    before.map_or(0, |at| at + 1)
                }
            }
        }
        None if candidates.is_empty() => {
            log.damage.push(missing("there is no segment of the log"));
            return Ok(log);
        }
        None => newest_row(&candidates),
    };
    let mut reader = Reader::at(from_lsn.unwrap_or(0));
    for (at, candidate) in candidates.iter().enumerate().skip(first) {
        let name = candidate.file.name();
        let start_lsn = candidate.header.start_lsn;
        let next_start = candidates.get(at + 1).map(|next| next.header.start_lsn);
        if next_start.is_some_and(|next| next < start_lsn) {
            log.damage.push(damage(name, 0, "segments overlap"));
            return Ok(log);
        }
        if at > first && start_lsn != reader.lsn {
            let what = format!(
                "the log goes on {} bytes behind its end",
                start_lsn.abs_diff(reader.lsn)
            );
            log.damage.push(damage(name, DATA_OFFSET, &what));
            stopped = !past_damage;
        }
        if !(at == first && holds(candidate, reader.lsn)) && start_lsn != reader.lsn {
            reader.lsn = start_lsn;
            reader.pending = None;
        }
        loop {
            let mut visit = |record: Record<'_>| {
                if stopped {
                    log.passed_by += 1;
                    return Ok(true);
                }
                let taken = visitor(record)?;
                if taken {
                    log.visited += 1;
                    log.end_lsn = record.end_lsn;
                }
                Ok(taken)
            };
            let (offset, what) = match reader.read_segment(candidate, next_start, &mut visit) {
                Ok(stop) if stop.at_segment_end => break,
                Ok(stop) => (stop.at, stop.what.to_owned()),
                Err(WalError::Storage(error)) => {
                    (reader.lsn.saturating_sub(start_lsn), error.to_string())
                }
                Err(error) => return Err(error),
            };
            let behind = next_record(candidate, next_start, offset + ALIGNMENT_BYTES);
            let is_end = behind.is_none() && next_start.is_none();
            if !is_end {
                log.damage.push(damage(name, DATA_OFFSET + offset, &what));
                stopped = !past_damage;
            }
            let Some(behind) = behind else { break };
            reader.lsn = start_lsn + behind;
            reader.pending = None;
        }
    }
    let end = reader.pending.map_or(reader.lsn, |p| p.start_lsn);
    if end < proven_lsn && log.damage.is_empty() {
        let last = candidates.last();
        let (file, offset) = last.map_or((storage.describe(), 0), |last| {
            let offset = end.saturating_sub(last.header.start_lsn);
            (last.file.name().to_owned(), DATA_OFFSET + offset)
        });
        let what = format!(
            "the log was durable for {} bytes more than can be read",
            proven_lsn - end
        );
        log.damage.push(damage(&file, offset, &what));
    }
    Ok(log)
}

fn damage(file: &str, offset: u64, what: &str) -> LogDamage {
    LogDamage {
        file: file.to_owned(),
        offset,
        what: what.to_owned(),
    }
}

/// Where the last run of segments with neighbouring sequence numbers begins: released ones that still lie about come before it.
fn newest_row(candidates: &[Candidate]) -> usize {
    let breaks = |pair: &[Candidate]| pair[0].header.sequence + 1 != pair[1].header.sequence;
    candidates
        .windows(2)
        .rposition(breaks)
        .map_or(0, |at| at + 1)
}

/// The next place of the record area at or after `from` with a valid fragment.
fn next_record(candidate: &Candidate, next_start: Option<u64>, from: u64) -> Option<u64> {
    let SegmentHeader {
        start_lsn, nonce, ..
    } = candidate.header;
    let to_next = next_start.map_or(u64::MAX, |next| next - start_lsn);
    let limit = candidate.data_bytes.min(to_next);
    let mut bytes = vec![0; usize::try_from(limit.checked_sub(from)?).ok()?];
    candidate
        .file
        .read_at(&mut bytes, DATA_OFFSET + from)
        .ok()?;
    (0..bytes.len())
        .step_by(ALIGNMENT_BYTES as usize)
        .find(|&at| record::read(&bytes[at..], nonce, start_lsn + from + at as u64).is_ok())
        .map(|at| from + at as u64)
}

/// Reads every header: the segments in order of their sequence, and the highest LSN that they prove durable.
fn scan(
    storage: &dyn Storage,
    damaged: &mut Vec<LogDamage>,
) -> Result<(Vec<Candidate>, u64), WalError> {
    let mut candidates = Vec::new();
    let mut proven_lsn = 0;
    for name in storage.list()? {
        if file_id(&name).is_none() {
            continue;
        }
        let head = || -> Result<_, StorageError> {
            let file = storage.open(&name, OpenMode::Read)?;
            let file_bytes = file.len()?;
            let mut head = vec![0; file_bytes.min(SPARE_BYTES) as usize];
            file.read_at(&mut head, 0)?;
            Ok((file, file_bytes, head))
        };
        let (file, file_bytes, head) = match head() {
            Ok(read) => read,
            Err(error) => {
                damaged.push(damage(&name, 0, &error.to_string()));
                continue;
            }
        };
        let Some(header) = SegmentHeader::decode(&head, &name)? else {
            if file_bytes < SPARE_BYTES || head.iter().any(|&byte| byte != 0) {
                let what = "the header is not valid: if records followed, they cannot be read";
                damaged.push(damage(&name, 0, what));
            }
            continue;
        };
        proven_lsn = header.proven_lsn(&head).max(proven_lsn);
        let data_bytes = header
            .file_bytes
            .min(file_bytes)
            .saturating_sub(DATA_OFFSET);
        candidates.push(Candidate {
            file,
            header,
            data_bytes,
        });
    }
    candidates.sort_by_key(|candidate| candidate.header.sequence);
    Ok((candidates, proven_lsn))
}
