//! Advisory locks on files, between processes.
//!
//! An `flock` belongs to the open file, and with it to every process that has it open: also to a child that another thread has forked a
//! moment ago and that has not yet called `exec`, which closes it. If closing alone ended the lock, a database that was closed and opened
//! again meanwhile would find itself in use by nobody. So the owner unlocks, which ends the lock for all who have the file.
//!
//! # Invariants
//! (1) The lock ends with its owner's drop, or when the last process that has the file is gone, however that ends.
//! (2) A child that is forked and goes on as a copy of its parent does not end the parent's lock: only the process that took it unlocks, by
//!     its process id. The other way round a copy is not protected: the parent's drop ends the lock for both. Handles are not for use
//!     in a copy, which has none of the background threads either ([`Database`](crate::Database) says so).

use super::transfer::uninterrupted;
use rustix::fs::{self, FlockOperation};
use std::{fs::File, io, process};

/// A file and the lock on it, until dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    owner: u32,
}

impl FileLock {
    /// Takes a lock without waiting. Gives the file back where somebody has a lock that excludes it.
    pub fn try_take(file: File, operation: FlockOperation) -> io::Result<Result<FileLock, File>> {
        match uninterrupted(|| fs::flock(&file, operation)) {
            Ok(()) => Ok(Ok(FileLock {
                file,
                owner: process::id(),
            })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Err(file)),
            Err(error) => Err(error),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // (2)
        if process::id() == self.owner {
            // If it cannot be, closing the file does it as soon as nobody else has it.
            let _ = uninterrupted(|| fs::flock(&self.file, FlockOperation::Unlock));
        }
    }
}
