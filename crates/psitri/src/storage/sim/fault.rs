//! Faults that a test plans for a simulated disk.
//!
//! Thread safety: plain data behind the disk's lock.
use super::Random;
use std::io;

/// Kinds of calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named after the calls
pub enum CallKind {
    Open,
    Create,
    Remove,
    Rename,
    SyncDir,
    Read,
    Write,
    SetLen,
    Allocate,
    Sync,
    PunchHole,
    Map,
    /// A store through a mapping. It cannot fail.
    Store,
    /// `len`, `exists`, `list`, `lock`, `allocated_bytes`.
    Look,
}

impl CallKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            CallKind::Open | CallKind::Create => "open",
            CallKind::Remove => "remove",
            CallKind::Rename => "rename",
            CallKind::SyncDir => "sync_dir",
            CallKind::Read => "read_at",
            CallKind::Write => "write_at",
            CallKind::SetLen => "set_len",
            CallKind::Allocate => "allocate",
            CallKind::Sync => "sync_data",
            CallKind::PunchHole => "punch_hole",
            CallKind::Map => "map",
            CallKind::Store => "store",
            CallKind::Look => "look",
        }
    }

    /// These are the crash points.
    pub(super) fn changes_disk(self) -> bool {
        !matches!(
            self,
            CallKind::Open | CallKind::Read | CallKind::Map | CallKind::Look
        )
    }
}

/// What a failing call reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// EIO.
    Io,
    /// ENOSPC.
    OutOfSpace,
    /// EOPNOTSUPP.
    Unsupported,
}

impl FaultError {
    pub(super) fn into_io(self) -> io::Error {
        match self {
            FaultError::Io => rustix::io::Errno::IO.into(),
            FaultError::OutOfSpace => rustix::io::Errno::NOSPC.into(),
            FaultError::Unsupported => rustix::io::Errno::OPNOTSUPP.into(),
        }
    }
}

/// One planned fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    kind: CallKind,
    error: FaultError,
    when: When,
}

#[derive(Clone, Copy, Debug)]
enum When {
    /// Calls of the kind that still pass.
    After(u64),
    OneIn(u64),
}

impl Fault {
    /// The `nth` call of the kind from now on fails (1: the next), once.
    #[must_use]
    pub fn nth(kind: CallKind, nth: u64, error: FaultError) -> Fault {
        Fault {
            kind,
            error,
            when: When::After(nth.saturating_sub(1)),
        }
    }

    /// Each call of the kind fails with this chance.
    #[must_use]
    pub fn random(kind: CallKind, one_in: u64, error: FaultError) -> Fault {
        Fault {
            kind,
            error,
            when: When::OneIn(one_in),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    faults: Vec<Fault>,
}

impl FaultPlan {
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub fn next(&mut self, kind: CallKind, random: &mut Random) -> Option<FaultError> {
        let mut hit = None;
        self.faults.retain_mut(|fault| {
            if fault.kind != kind {
                return true;
            }
            match &mut fault.when {
                When::OneIn(count) => {
                    if random.one_in(*count) {
                        hit = hit.or(Some(fault.error));
                    }
                    true
                }
                When::After(0) => {
                    hit = hit.or(Some(fault.error));
                    false
                }
                When::After(passes) => {
                    *passes -= 1;
                    true
                }
            }
        });
        hit
    }
}
