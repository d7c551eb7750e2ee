//! Flushes of the data file, for everybody who needs one.
//!
//! # Thread safety
//! Everything from any thread; one flush runs at a time.
//!
//! # Invariants
//! (1) After a flush that failed every later one fails: the system may call pages clean that it never wrote, so that a
//!     second flush proves nothing.
//! (2) `values_synced <= values_written`, and every value up to the former is durable.
//!
//! # Failure modes
//! The first failure, and a repetition of it to everybody who comes later.

use crate::{
    storage::{StorageError, StorageFile},
    sync::{Arc, AtomicU64, Mutex, Ordering},
    wal::Referred,
};

#[derive(Debug)]
pub(crate) struct DataSync {
    file: Arc<dyn StorageFile>,
    failed: Mutex<bool>,
    /// Values that the log may refer to, written straight to the data file, and how many of them are known to be durable.
    values_written: AtomicU64,
    values_synced: AtomicU64,
}

impl DataSync {
    pub fn new(file: Arc<dyn StorageFile>) -> DataSync {
        DataSync {
            file,
            failed: Mutex::new(false),
            values_written: AtomicU64::new(0),
            values_synced: AtomicU64::new(0),
        }
    }

    /// Notes a value that was written and that a record of the log is going to refer to.
    pub fn note_value(&self) {
        self.values_written.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes every page written so far durable.
    pub fn sync(&self) -> Result<(), StorageError> {
        let mut failed = self.failed.lock();
        if *failed {
            let cause = std::io::Error::other("an earlier flush of the file failed");
            return Err(StorageError::io("sync_data", self.file.name(), cause));
        }
        let values = self.values_written.load(Ordering::Acquire);
        let result = self.file.sync_data();
        match &result {
            Ok(()) => self.values_synced.store(values, Ordering::Release),
            Err(_) => *failed = true,
        }
        result
    }
}

impl Referred for DataSync {
    fn sync(&self) -> Result<(), StorageError> {
        let written = self.values_written.load(Ordering::Acquire);
        if self.values_synced.load(Ordering::Acquire) >= written {
            return Ok(());
        }
        DataSync::sync(self)
    }
}
