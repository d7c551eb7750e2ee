//! Commits, from the log record to visibility.
//!
//! A commit appends one record to the log, stamps its versions with the commit sequence number and publishes the number.
//! That is a copy into mapped memory and one store, unless it must wait for the disk.
//!
//! # Invariants
//! (1) Numbers are given and records appended under the commit lock: the log is in CSN order. There are no gaps: a number that
//!     has no record is that of a transaction whose checkpoint was durable before the next number was given. Recovery relies on it.
//! (2) A commit becomes visible after all its versions are stamped, and not before every earlier commit is visible.
//! (3) A commit that waits for the disk becomes visible when the log is durable up to its end; commits after it wait too.
//! (4) Values that commits wrote straight to the data file are flushed by the log before the record that refers to them
//!     counts as durable; recovery ends the log at a record whose values did not make it.
//!
//! # Failure modes
//! No space for the log: the commit fails with nothing appended, the transaction is undone, the database stays usable.
//! A failed flush poisons the engine: stamped but invisible versions are never published.

use std::ops::Range;

use crate::{
    Durability, Result,
    engine::{Commits, Engine},
    error::Error,
    sync::{MutexGuard, Ordering},
    wal::{WalError, WalShared},
};

/// A commit on its way.
pub(crate) struct Logged {
    pub csn: u64,
    /// End of its record in the log, if it must wait until the log is durable up to there.
    wait_until: Option<u64>,
    own_flush: bool,
}

impl Engine {
    /// Appends a record and publishes the commit, or queues it behind the disk. `stamp` puts the number on the versions;
    /// it is called once, after the record is in the log, with the CSN and where the record is.
    pub fn log_commit(
        &self,
        commits: &mut MutexGuard<'_, Commits>,
        op_count: u32,
        payload: &[u8],
        durability: Durability,
        stamp: impl FnOnce(u64, Range<u64>),
    ) -> Result<Logged> {
        self.check_writable()?;
        let csn = commits.csn_next;
        let (start, end) = match &mut commits.log {
            None => (0, 0),
            Some(log) => match log.append(csn, op_count, payload) {
                Ok(appended) => (appended.start_lsn, appended.end_lsn),
                Err(error) => return Err(self.log_failed(error)),
            },
        };
        self.note_async(durability);
        commits.csn_next = csn + 1;
        stamp(csn, start..end);
        let waits = commits.log.is_some() && (durability.waits() || !commits.waiting.is_empty());
        if waits {
            commits.waiting.push_back((csn, end));
        } else {
            self.visible_csn.store(csn, Ordering::Release);
        }
        Ok(Logged {
            csn,
            wait_until: waits.then_some(end),
            own_flush: waits && durability == Durability::WriteThrough,
        })
    }

    /// Has the log thread flush what was appended, if that is how a commit is to become durable.
    pub fn note_async(&self, durability: Durability) {
        if durability == Durability::Async
            && let Some(log) = &self.log
        {
            self.async_end
                .fetch_max(log.appended_lsn(), Ordering::Relaxed);
        }
    }

    /// Whether a commit waits for a flush in the background.
    pub fn is_flush_wanted(&self, log: &WalShared) -> bool {
        self.async_end.load(Ordering::Relaxed) > log.durable_lsn()
    }

    /// The error of the log, which poisons the engine if no flush can be relied on any more.
    pub fn log_failed(&self, error: WalError) -> Error {
        let poisons = matches!(error, WalError::Poisoned { .. });
        let error = Error::from(error);
        if poisons {
            self.poison(&error);
        }
        error
    }

    /// Waits until a commit is durable, if it has to be, and makes it visible. Call without the commit lock.
    #[inline]
    pub fn finish_commit(&self, logged: Logged) -> Result<()> {
        let Some(lsn) = logged.wait_until else {
            return Ok(());
        };
        let log = self.log.as_ref().expect("only logged commits wait");
        let flushed = if logged.own_flush {
            log.note_wait();
            log.flush(lsn).map(drop)
        } else {
            log.wait_durable(lsn)
        };
        flushed.map_err(|error| self.log_failed(error))?;
        self.publish_durable(&mut self.commits.lock(), log.durable_lsn());
        debug_assert!(self.visible_csn.load(Ordering::Acquire) >= logged.csn);
        Ok(())
    }

    fn publish_durable(&self, commits: &mut MutexGuard<'_, Commits>, durable_lsn: u64) {
        while let Some(&(csn, end)) = commits.waiting.front() {
            if end > durable_lsn {
                break;
            }
            commits.waiting.pop_front();
            self.visible_csn.store(csn, Ordering::Release);
        }
    }

    /// Makes everything logged so far durable and visible, with the commit lock held.
    pub fn flush_under_lock(&self, commits: &mut MutexGuard<'_, Commits>) -> Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        log.note_wait();
        let durable = log
            .flush(u64::MAX)
            .map_err(|error| self.log_failed(error))?;
        self.publish_durable(commits, durable);
        Ok(())
    }

    /// Makes everything visible that was committed so far, with a flush if it waits for one.
    pub fn flush_unseen(&self) -> Result<()> {
        if self.commits.lock().waiting.is_empty() {
            return Ok(());
        }
        self.flush_log()
    }

    /// Makes every commit that returned durable.
    pub fn flush_log(&self) -> Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        if self.read_only {
            return Ok(());
        }
        self.check_writable()?;
        let end = log.appended_lsn();
        log.wait_durable(end)
            .map_err(|error| self.log_failed(error))?;
        self.publish_durable(&mut self.commits.lock(), log.durable_lsn());
        Ok(())
    }
}
