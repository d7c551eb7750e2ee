//! Segment: one file of the log. Its first page holds the header and the durable marks, the rest is a piece of the record stream.
//!
//! Thread safety: `SegmentHeader` is plain data. The header page of a live segment is written by the appender before the segment
//! joins the chain, afterwards only by the flusher (marks), which holds the flush lock.
//!
//! Invariants:
//! 1. Header and marks lie in one 512-byte sector each, so a power loss leaves the old or the new one.
//! 2. Two marks are written in turn, each self-checking and bound to the nonce: a torn one leaves the other.
//! 3. A mark is the end of a record. A flushed piece of a record whose rest is lost proves nothing: the log ends before that record and
//!    goes on from there with another.
//!
//! Failure modes: a header that is not valid makes the file no part of the log; a newer version is an error.
#![allow(unsafe_code)] // stores through the mapping
use super::{SEGMENT_BYTES_MAX, WalError, mix, record::ALIGNMENT_BYTES};
use crate::{
    storage::{OpenMode, Storage, StorageError, StorageFile, WriteMap},
    sync::{AtomicBool, Ordering},
};
use std::sync::Arc;

/// The record stream begins here.
pub(super) const DATA_OFFSET: u64 = 4096;
/// Newest format that this code reads and the one that it writes.
pub(super) const FORMAT_VERSION: u32 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"PSITRIWL");
const HEADER_BYTES: usize = 64;
/// The marks have a sector of their own.
const MARK_OFFSET: u64 = 512;
/// In the header.
const NONCE_OFFSET: usize = 32;
const MARK_BYTES: usize = 16;
const MARK_SLOTS: u64 = 2;
const FILE_NAME_PREFIX: &str = "log-";
/// How much is written at once when a file is filled with zeros. Systems keep a file in memory in the pieces in which it was written, and flush
/// a whole piece for every mapped store to it: pieces of 1 MiB made a durable commit take 450 microseconds, pages 130. Where nobody
/// waits for flushes, larger pieces bring 4 MiB into memory and into the address space in 0.7 ms, pages in 3.5, which is what touching
/// them one by one costs, too.
const DURABLE_ZEROS_BYTES: u64 = 4096;
const CACHED_ZEROS_BYTES: u64 = 64 << 10;
/// They are flushed in pieces, of this size or a sixteenth of the file: a commit that waits for the disk meanwhile waits for one of them.
const FLUSHED_ZEROS_BYTES_MIN: u64 = 256 << 10;
const FLUSHED_ZEROS_SHARE: u64 = 16;
/// A fragment of this size or more is stored with a system call: it costs a quarter of touching the pages of a new file or less, and
/// no more than a copy where they have been touched. In tests most are.
const STORE_BY_CALL_FROM_BYTES: usize = if cfg!(debug_assertions) {
    256
} else {
    64 << 10
};

// magic u64, version u32, checksum u32, sequence u64, start u64, nonce u64, durable u64, file bytes u64, zero u64
const _: () = assert!(HEADER_BYTES == 8 + 4 + 4 + 6 * 8);
const _: () = assert!(HEADER_BYTES <= 512 && MARK_OFFSET + MARK_SLOTS * MARK_BYTES as u64 <= 1024);
const _: () = assert!(DATA_OFFSET.is_multiple_of(ALIGNMENT_BYTES));

pub(super) fn file_name(id: u32) -> String {
    format!("{FILE_NAME_PREFIX}{id:08x}")
}

/// Sizes of the log's files, spare ones included, in a directory where it may not be open.
pub fn files_bytes(storage: &dyn Storage) -> Result<u64, StorageError> {
    let mut bytes = 0;
    for name in storage.list()? {
        if file_id(&name).is_some() {
            // A writer may have removed it meanwhile.
            bytes += storage
                .open(&name, OpenMode::Read)
                .and_then(|file| file.len())
                .unwrap_or(0);
        }
    }
    Ok(bytes)
}

/// The number in a segment's file name; `None` for other files.
pub(super) fn file_id(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(FILE_NAME_PREFIX)?;
    let lower_hex = digits
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if digits.len() == 8 && lower_hex {
        u32::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub sequence: u64,
    pub start_lsn: u64,
    pub nonce: u64,
    /// Durable LSN known when the header was written.
    pub durable_lsn: u64,
    pub file_bytes: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let fields = [
            self.sequence,
            self.start_lsn,
            self.nonce,
            self.durable_lsn,
            self.file_bytes,
        ];
        for (field, place) in fields.iter().zip(bytes[16..].chunks_exact_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let checksum = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `Ok(None)`: these bytes are no header (a spare that was never used, or a torn one).
    pub fn decode(page: &[u8], file: &str) -> Result<Option<SegmentHeader>, WalError> {
        let Some(bytes) = page.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let u64_at = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        let u32_at = |at: usize| (u64_at(at) & u64::from(u32::MAX)) as u32;
        if u64_at(0) != MAGIC {
            return Ok(None);
        }
        let version = u32_at(8);
        if version == 0 {
            return Ok(None);
        }
        if version != FORMAT_VERSION {
            return Err(WalError::UnsupportedVersion {
                file: file.to_owned(),
                found: version,
                supported: FORMAT_VERSION,
            });
        }
        if u32_at(12) != header_checksum(bytes) {
            return Ok(None);
        }
        let header = SegmentHeader {
            sequence: u64_at(16),
            start_lsn: u64_at(24),
            nonce: u64_at(NONCE_OFFSET),
            durable_lsn: u64_at(40),
            file_bytes: u64_at(48),
        };
        let sane = header.start_lsn.is_multiple_of(ALIGNMENT_BYTES)
            && header.start_lsn < u64::MAX / 2
            && header.sequence < u64::MAX / 2
            && header.file_bytes > DATA_OFFSET
            && header.file_bytes <= SEGMENT_BYTES_MAX
            && header.file_bytes.is_multiple_of(ALIGNMENT_BYTES)
            && u64_at(56) == 0;
        Ok(sane.then_some(header))
    }

    /// The highest LSN that this header page proves durable.
    pub fn proven_lsn(&self, page: &[u8]) -> u64 {
        marks(page, self.nonce).fold(self.durable_lsn, u64::max)
    }

    /// Whether a header page whose header is not valid has marks that were made when it was, as far as its nonce tells.
    pub fn has_marks(page: &[u8]) -> bool {
        let nonce = page.get(NONCE_OFFSET..).and_then(<[u8]>::first_chunk);
        nonce.is_some_and(|nonce| marks(page, u64::from_le_bytes(*nonce)).next().is_some())
    }
}

/// The marks of a header page that are valid with a nonce.
fn marks(page: &[u8], nonce: u64) -> impl Iterator<Item = u64> {
    (0..MARK_SLOTS).filter_map(move |slot| {
        let at = (MARK_OFFSET + slot * MARK_BYTES as u64) as usize;
        let mark = page.get(at..at + MARK_BYTES)?;
        let (lsn, check) = mark.split_at(8);
        let lsn = u64::from_le_bytes(lsn.try_into().ok()?);
        let check = u64::from_le_bytes(check.try_into().ok()?);
        (check == mark_check(nonce, lsn)).then_some(lsn)
    })
}

fn header_checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

fn mark_check(nonce: u64, lsn: u64) -> u64 {
    mix(nonce.wrapping_add(mix(lsn ^ MAGIC)))
}

/// A segment's file, mapped, in use or spare.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub file: Arc<dyn StorageFile>,
    pub map: WriteMap,
    /// The file's name is known to be durable.
    pub name_durable: AtomicBool,
    /// The pages have been touched since the file was last used.
    pub populated: AtomicBool,
}

/// What is done for a new segment's file beyond reserving its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Its first page is written, which the header comes to.
    FirstPage,
    /// It is written once, so that its pages are in memory.
    Cached,
    /// It is written once, so that later flushes happen in place; the first one, and that of the name, are the caller's.
    Written,
    /// The same, all of it flushed, and by the caller the name: later flushes change no metadata.
    Durable,
}

impl SegmentFile {
    /// Makes a file with reserved blocks. Leaves nothing behind when it fails.
    pub fn create(
        storage: &dyn Storage,
        id: u32,
        bytes: u64,
        fill: Fill,
    ) -> Result<SegmentFile, StorageError> {
        let name = file_name(id);
        let file = storage.open(&name, OpenMode::Create)?;
        let made = Self::fill(&*file, bytes, fill).and_then(|()| file.map_write(0, bytes));
        match made {
            Ok(map) => Ok(SegmentFile {
                file,
                map,
                name_durable: AtomicBool::new(false),
                populated: AtomicBool::new(false),
            }),
            Err(error) => {
                // The first error is the one to report; a file that stays is removed at the next opening.
                let _ = storage.remove(&name);
                Err(error)
            }
        }
    }

    fn fill(file: &dyn StorageFile, bytes: u64, fill: Fill) -> Result<(), StorageError> {
        file.allocate(0, bytes)?;
        let chunk = match fill {
            // The first store to a mapped page that was not written yet has the system read what lies around it.
            Fill::FirstPage => return file.write_at(&[0; DATA_OFFSET as usize], 0),
            Fill::Cached => CACHED_ZEROS_BYTES,
            Fill::Written | Fill::Durable => DURABLE_ZEROS_BYTES,
        };
        let zeros = vec![0; chunk.min(bytes) as usize];
        let piece = (bytes / FLUSHED_ZEROS_SHARE).max(FLUSHED_ZEROS_BYTES_MIN);
        let (mut at, mut flushed) = (0, 0);
        while at < bytes {
            let chunk = (bytes - at).min(zeros.len() as u64);
            file.write_at(&zeros[..chunk as usize], at)?;
            at += chunk;
            if fill == Fill::Durable && (at - flushed >= piece || at == bytes) {
                file.sync_data()?;
                flushed = at;
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.map.len()
    }
}

/// A segment that is part of the chain.
#[derive(Debug)]
pub(super) struct Segment {
    /// `None` for segments that were replayed: they are read no more and removed when released.
    pub mapped: Option<Arc<SegmentFile>>,
    pub name: String,
    pub start_lsn: u64,
    /// Start of the record that runs on into this segment, or `start_lsn`: what is whole without this segment.
    pub whole_lsn: u64,
    pub nonce: u64,
    pub file_bytes: u64,
    pub header_durable: AtomicBool,
}

impl Segment {
    /// Gives a spare file its place in the chain. The caller is the only one who knows the file.
    pub fn begin(file: Arc<SegmentFile>, header: SegmentHeader, whole_lsn: u64) -> Segment {
        let SegmentHeader {
            start_lsn,
            nonce,
            file_bytes,
            ..
        } = header;
        debug_assert!(start_lsn.is_multiple_of(ALIGNMENT_BYTES) && file_bytes == file.bytes());
        debug_assert!(header.durable_lsn <= whole_lsn && whole_lsn <= start_lsn);
        // SAFETY: a spare's pages are touched by nobody else (populating them does not change content).
        unsafe {
            file.map
                .copy_in(MARK_OFFSET, &[0; MARK_BYTES * MARK_SLOTS as usize]);
            file.map.copy_in(0, &header.encode());
        }
        file.populated.store(false, Ordering::Relaxed);
        Segment {
            name: file.file.name().to_owned(),
            mapped: Some(file),
            start_lsn,
            whole_lsn,
            nonce,
            file_bytes,
            header_durable: AtomicBool::new(false),
        }
    }

    /// LSN after the last byte that fits.
    pub fn limit_lsn(&self) -> u64 {
        self.start_lsn + (self.file_bytes - DATA_OFFSET)
    }

    /// Notes what is durable. The caller holds the flush lock, so marks have one writer; `turn` alternates the slots.
    pub fn mark_durable(&self, lsn: u64, turn: u64) {
        let Some(mapped) = &self.mapped else { return };
        let mut mark = [0; MARK_BYTES];
        mark[..8].copy_from_slice(&lsn.to_le_bytes());
        mark[8..].copy_from_slice(&mark_check(self.nonce, lsn).to_le_bytes());
        // SAFETY: only the flusher stores here, one at a time; the appender stays in the data area.
        unsafe {
            mapped
                .map
                .copy_in(MARK_OFFSET + turn % MARK_SLOTS * MARK_BYTES as u64, &mark)
        };
    }

    /// Asks for the memory of a record that is as long as one that ended here.
    #[inline(always)]
    pub fn prefetch_ahead(&self, end_lsn: u64, bytes: usize) {
        if let Some(mapped) = &self.mapped {
            let at = (DATA_OFFSET + (end_lsn - self.start_lsn)) as usize;
            crate::prefetch::ahead(mapped.map.as_ptr().wrapping_add(at), bytes);
        }
    }

    /// Copies bytes to a place in the stream that this segment holds; `by_call`, and where they are many: with a system call, if that succeeds.
    ///
    /// # Safety
    /// The caller is the one appender, and `lsn` is not below its end of log.
    #[inline(always)]
    pub unsafe fn store(&self, lsn: u64, bytes: &[u8], by_call: bool) {
        debug_assert!(lsn >= self.start_lsn && lsn + bytes.len() as u64 <= self.limit_lsn());
        if let Some(mapped) = &self.mapped {
            let at = DATA_OFFSET + (lsn - self.start_lsn);
            let by_call = by_call || bytes.len() >= STORE_BY_CALL_FROM_BYTES;
            if by_call && mapped.file.write_at(bytes, at).is_ok() {
                return;
            }
            // SAFETY: nobody else stores into or reads the data area beyond the end of the log (contract).
            unsafe {
                mapped.map.copy_in(at, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        sequence: 3,
        start_lsn: 800,
        nonce: 99,
        durable_lsn: 160,
        file_bytes: 65536,
    };

    #[test]
    fn header_round_trip_and_damage() {
        let bytes = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&bytes, "f").unwrap(), Some(HEADER));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            match SegmentHeader::decode(&changed, "f") {
                Ok(None) => {}
                Err(WalError::UnsupportedVersion { .. }) => {
                    assert!((64..96).contains(&bit), "bit {bit}")
                }
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        for version in [1, 2, 9] {
            let mut bytes = HEADER.encode();
            bytes[8] = version;
            let error = SegmentHeader::decode(&bytes, "f").unwrap_err();
            let WalError::UnsupportedVersion {
                found, supported, ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((found, supported), (u32::from(version), FORMAT_VERSION));
        }
    }

    #[test]
    fn marks_raise_the_proof_and_torn_ones_do_not() {
        let mut page = vec![0; DATA_OFFSET as usize];
        page[..HEADER_BYTES].copy_from_slice(&HEADER.encode());
        assert_eq!(HEADER.proven_lsn(&page), 160);
        page[512..520].copy_from_slice(&480u64.to_le_bytes());
        assert_eq!(HEADER.proven_lsn(&page), 160);
        page[520..528].copy_from_slice(&mark_check(99, 480).to_le_bytes());
        assert_eq!(HEADER.proven_lsn(&page), 480);
    }

    #[test]
    fn names() {
        assert_eq!(file_id(&file_name(0xab)), Some(0xab));
        for other in [
            "log-",
            "log-1",
            "log-0000000G",
            "log-0000000A",
            "data",
            "log-000000001",
        ] {
            assert_eq!(file_id(other), None, "{other}");
        }
    }
}
