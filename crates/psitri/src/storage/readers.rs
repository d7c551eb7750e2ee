//! Readers beside a writer in another process: which versions of the tree they see, so that the writer keeps those.
//!
//! A reader owns a *slot*, the file `reader-<3 digits>`, as long as it lives: it holds an exclusive `flock` on it, which ends with the
//! process, however that ends. In the file stands the version that it sees. Files are made in the order of their numbers and never removed:
//! the first number without a file ends the list. `docs/format.md` has the bytes.
//!
//! # Protocol
//! A reader takes a slot, and then, until steps 3 and 5 find what step 1 found:
//! 1. reads the newest superblock;
//! 2. writes its tree version into the slot;
//! 3. reads the newest superblock again: from now on nodes and values of that version are kept, and may be read through a mapping;
//! 4. reads page map and log of that checkpoint;
//! 5. reads the newest superblock a third time: they were whole.
//!
//! The writer looks at the slots whenever it gives space back, and when it opens:
//! 1. notes which version is durable;
//! 2. reads every slot that somebody holds;
//! 3. gives back what neither the version noted, nor one written in a slot, nor a later superblock reaches.
//!
//! # Thread safety
//! Everything may be called from any thread and process at any time.
//!
//! # Invariants
//! (1) A slot has one owner, by its lock. Whoever finds the lock free knows that the pin in the file counts no more.
//! (2) A full fence stands between a reader's write of the slot and its second look at the superblock, and between the writer's note of
//!     what is durable (its superblock was written before) and its look at the slots. So either the writer sees the pin, or the reader
//!     sees that there is a newer superblock, and begins again. A pin that is not there yet, or is being written, needs no attention: its
//!     reader has not looked a second time.
//! (3) A pin keeps nodes and values; page map and log of a checkpoint are used again whatever is pinned, but only after a newer superblock
//!     was written, and the third look would have seen that. Both are read by calls, and have checksums.
//! (4) A slot that is held and holds neither a pin nor nothing is damaged: it counts as a pin of everything.
//! (5) Versions that were not durable when the writer opened are in no list of dead nodes, as that is in memory. As long as a pin of one
//!     is there, no page that was there at the opening is used again (the pager's quarantine).
//!
//! # Failure modes
//! A reader that is stopped keeps its version: the file grows. A slot file that the writer may not open keeps everything. On a network
//! file system neither locks nor the caches of two machines keep (1) and (2).

use super::{StorageError, file_lock::FileLock};
use rustix::fs::FlockOperation;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{Ordering, fence},
};

/// Readers beside a writer at a time.
pub const READER_SLOTS_MAX: u32 = 256;

const MAGIC: [u8; 8] = *b"PsiTriRd";
const SLOT_BYTES: usize = 64;
const CHECKED_BYTES: usize = 60;
const _: () = assert!(CHECKED_BYTES + 4 == SLOT_BYTES);

/// A slot that this process owns (1).
#[derive(Debug)]
pub struct ReaderSlot {
    lock: FileLock,
    shown: String,
}

/// What a held slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderPin {
    /// Its number.
    pub slot: u32,
    /// The tree version that its owner sees; `None` if it cannot be read (4).
    pub version: Option<u64>,
}

impl ReaderSlot {
    /// Takes the first slot that is free.
    pub(super) fn take(dir: &Path) -> Result<ReaderSlot, StorageError> {
        for slot in 0..READER_SLOTS_MAX {
            let path = slot_path(dir, slot);
            let shown = path.display().to_string();
            let wrap = |error: io::Error| StorageError::io("take_reader_slot", &shown, error);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(wrap)?;
            let operation = FlockOperation::NonBlockingLockExclusive;
            // Without it: another reader, or a writer that looks whether there is one.
            if let Ok(lock) = FileLock::try_take(file, operation).map_err(wrap)? {
                return Ok(ReaderSlot { lock, shown });
            }
        }
        Err(StorageError::NoReaderSlot {
            path: dir.display().to_string(),
            max: READER_SLOTS_MAX,
        })
    }

    /// Says which version its owner is going to see. What is read of the database afterwards is read after this (2).
    pub fn pin(&self, version: u64) -> Result<(), StorageError> {
        let written = self.lock.file().write_all_at(&encode(version), 0);
        written.map_err(|error| StorageError::io("pin", &self.shown, error))?;
        fence(Ordering::SeqCst);
        Ok(())
    }
}

/// The pins of every slot that somebody holds. What the caller noted before was noted before this (2).
pub(super) fn pins(dir: &Path) -> Result<Vec<ReaderPin>, StorageError> {
    fence(Ordering::SeqCst);
    let mut pins = Vec::new();
    for slot in 0..READER_SLOTS_MAX {
        let path = slot_path(dir, slot);
        let wrap =
            |error: io::Error| StorageError::io("reader_pins", &path.display().to_string(), error);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(wrap(error)),
        };
        // (1): if the lock can be had, nobody holds it.
        let operation = FlockOperation::NonBlockingLockShared;
        let Err(file) = FileLock::try_take(file, operation).map_err(wrap)? else {
            continue;
        };
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        let mut reader = io::Read::take(&file, SLOT_BYTES as u64 + 1);
        io::Read::read_to_end(&mut reader, &mut bytes).map_err(wrap)?;
        if !bytes.is_empty() {
            let version = decode(&bytes);
            pins.push(ReaderPin { slot, version });
        }
    }
    Ok(pins)
}

fn slot_path(dir: &Path, slot: u32) -> PathBuf {
    dir.join(format!("reader-{slot:03}"))
}

fn encode(version: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..CHECKED_BYTES]);
    bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; SLOT_BYTES] = bytes.try_into().ok()?;
    let (checked, crc) = bytes.split_at(CHECKED_BYTES);
    let is_valid = checked[..8] == MAGIC && crc32c::crc32c(checked).to_le_bytes() == *crc;
    let version = checked[8..16].try_into().ok()?;
    is_valid.then(|| u64::from_le_bytes(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_counts_as_long_as_its_slot_is_held() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pins(dir.path()).unwrap(), []);
        let first = ReaderSlot::take(dir.path()).unwrap();
        assert_eq!(pins(dir.path()).unwrap(), [], "nothing was pinned yet");
        first.pin(7).unwrap();
        let second = ReaderSlot::take(dir.path()).unwrap();
        second.pin(9).unwrap();
        let pin = |slot, version| ReaderPin {
            slot,
            version: Some(version),
        };
        assert_eq!(pins(dir.path()).unwrap(), [pin(0, 7), pin(1, 9)]);
        drop(first);
        assert_eq!(pins(dir.path()).unwrap(), [pin(1, 9)]);
        let third = ReaderSlot::take(dir.path()).unwrap();
        third.pin(11).unwrap();
        assert_eq!(pins(dir.path()).unwrap(), [pin(0, 11), pin(1, 9)]);
    }

    #[test]
    fn a_damaged_slot_counts_as_a_pin_of_everything() {
        let dir = tempfile::tempdir().unwrap();
        let slot = ReaderSlot::take(dir.path()).unwrap();
        slot.pin(7).unwrap();
        slot.lock.file().write_all_at(&[0x55], 9).unwrap();
        let damaged = ReaderPin {
            slot: 0,
            version: None,
        };
        assert_eq!(pins(dir.path()).unwrap(), [damaged]);
    }

    #[test]
    fn slots_run_out() {
        let dir = tempfile::tempdir().unwrap();
        let taken: Vec<_> = (0..READER_SLOTS_MAX)
            .map(|_| ReaderSlot::take(dir.path()).unwrap())
            .collect();
        let error = ReaderSlot::take(dir.path()).unwrap_err();
        assert!(error.to_string().contains("256 readers"), "{error}");
        drop(taken);
        ReaderSlot::take(dir.path()).unwrap();
    }
}
