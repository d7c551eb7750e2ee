//! The damaged data file: what is read from it is checked, and what does not pass is said to be unreadable.
//!
//! Reads go through `pread` and not through a mapping: a sector that the disk cannot read is an error then, and not a signal.

use crate::{
    Result,
    error::Error,
    node::{self, NodeRef, PAGE_BYTES, Stored, ValuePointer},
    pager::{DATA_FILE, FORMAT_VERSION, Pager, SUPERBLOCK_PAGES, SlotError, Superblock},
    storage::{OpenMode, Storage, StorageFile},
    sync::Arc,
};

/// Why something cannot be read.
pub(super) type Unreadable = String;

/// The data file of a damaged database; empty if there is none.
pub(super) struct DamagedFile {
    file: Option<Arc<dyn StorageFile>>,
    len: u64,
}

/// What the two slots hold.
pub(super) struct Superblocks {
    pub newest: Option<Superblock>,
    /// A slot that should hold something holds nothing valid: it may have been the newer one.
    pub is_one_damaged: bool,
}

impl DamagedFile {
    pub fn open(storage: &dyn Storage) -> Result<DamagedFile> {
        if !storage.exists(DATA_FILE)? {
            return Ok(DamagedFile { file: None, len: 0 });
        }
        let file = storage.open(DATA_FILE, OpenMode::Read)?;
        let len = file.len()?;
        Ok(DamagedFile {
            file: Some(file),
            len,
        })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Unreadable> {
        let end = offset.checked_add(len as u64);
        let Some(file) = self.file.as_ref().filter(|_| end <= Some(self.len)) else {
            return Err("it lies behind the end of the file".to_owned());
        };
        let mut bytes = vec![0; len];
        file.read_at(&mut bytes, offset)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// The bytes of a node, checked in every way that a node can be by itself.
    pub fn node(&self, at: NodeRef) -> Result<Vec<u8>, Unreadable> {
        if at.page() < SUPERBLOCK_PAGES || at.units() == 0 {
            return Err("the reference to it names no node".to_owned());
        }
        let bytes = self.read(at.byte_offset(), at.bytes())?;
        node::check(&bytes, at)
            .and_then(|()| node::validate_deep(&bytes))
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// The bytes of a value, wherever it is. None if they cannot be read.
    pub fn stored(&self, stored: Stored<'_>) -> Option<Vec<u8>> {
        match stored {
            Stored::Inline(value) => Some(value.to_vec()),
            Stored::External(pointer) => self.value(&pointer).ok(),
        }
    }

    pub fn value(&self, pointer: &ValuePointer) -> Result<Vec<u8>, Unreadable> {
        let bytes = self.read(pointer.byte_offset(), pointer.len as usize)?;
        if crc32c::crc32c(&bytes) != pointer.crc {
            return Err("value checksum does not match".to_owned());
        }
        Ok(bytes)
    }

    pub fn superblocks(&self) -> Result<Superblocks> {
        let mut newest: Option<Superblock> = None;
        let mut is_one_damaged = false;
        let mut is_one_empty = false;
        for slot in 0..2 {
            let Ok(bytes) = self.read(Superblock::offset(slot), 512) else {
                is_one_damaged = true;
                continue;
            };
            match Superblock::decode(&bytes) {
                Ok(found) if newest.is_none_or(|best| found.generation > best.generation) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(SlotError::Version(found)) => {
                    return Err(Error::UnsupportedVersion {
                        found,
                        supported: FORMAT_VERSION,
                    });
                }
                Err(SlotError::Invalid(_)) if bytes.iter().all(|&byte| byte == 0) => {
                    is_one_empty = true;
                }
                Err(SlotError::Invalid(_)) => is_one_damaged = true,
            }
        }
        // A database that was just created has written one slot.
        let is_new = newest.is_some_and(|newest| newest.generation == 1);
        Ok(Superblocks {
            newest,
            is_one_damaged: is_one_damaged || (is_one_empty && !is_new),
        })
    }

    /// What is wrong with the page map, which salvage does not need.
    pub fn page_map_damage(&self, superblock: &Superblock) -> Option<String> {
        let file = self.file.as_ref()?;
        let loaded = Pager::load_map(file.as_ref(), superblock);
        loaded.err().map(|error| match error {
            Error::Corrupted { what, offset, .. } => format!("{what} at offset {offset}"),
            other => other.to_string(),
        })
    }

    /// Pages of the file, the last one perhaps in part.
    pub fn pages(&self) -> u64 {
        self.len.div_ceil(PAGE_BYTES as u64)
    }
}
