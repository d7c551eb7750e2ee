//! How far a long call is, told to its caller, who may end it.

use std::{fmt, ops::ControlFlow};

use crate::{Result, error::Error};

/// What [`Progress`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressUnit {
    /// Bytes of nodes and values in the data file.
    Bytes,
    /// Keys with their values.
    Entries,
}

impl fmt::Display for ProgressUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgressUnit::Bytes => "bytes",
            ProgressUnit::Entries => "entries",
        })
    }
}

/// How far a call is. It is reported often enough for a bar on a screen, and once more at the end of a call that was not ended, with `done` equal to
/// `total`.
///
/// ```
/// # fn main() -> Result<(), psitri::Error> {
/// # let db = psitri::Options::new().in_memory()?;
/// use std::ops::ControlFlow;
/// let report = db.verify_with(|progress| {
///     println!("{} of {} {}", progress.done, progress.total, progress.unit);
///     ControlFlow::Continue(())
/// })?;
/// assert!(report.errors.is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What was done. Never falls, and is never greater than `total`.
    pub done: u64,
    /// All there is to do, as far as is known: it may grow.
    pub total: u64,
    /// What is counted. The same in all reports of one call.
    pub unit: ProgressUnit,
}

/// The caller's function. [`ControlFlow::Break`] ends the call with [`Error::Cancelled`].
pub(crate) type Report<'r> = dyn FnMut(Progress) -> ControlFlow<()> + 'r;

/// Counts what is done and reports it now and then.
pub(crate) struct Watch<'r, 'f> {
    report: Option<&'r mut Report<'f>>,
    call: &'static str,
    progress: Progress,
    /// Work between two reports.
    step: u64,
    next: u64,
}

impl<'r, 'f> Watch<'r, 'f> {
    /// `call`: what [`Error::Cancelled`] names.
    pub fn new(
        call: &'static str,
        report: Option<&'r mut Report<'f>>,
        unit: ProgressUnit,
    ) -> Watch<'r, 'f> {
        let step = match unit {
            ProgressUnit::Bytes => 1 << 20,
            ProgressUnit::Entries => 4096,
        };
        Watch {
            report,
            call,
            progress: Progress {
                done: 0,
                total: 0,
                unit,
            },
            step,
            next: 0,
        }
    }

    /// More to do than was known.
    pub fn expect(&mut self, more: u64) {
        self.progress.total += more;
    }

    /// Notes that `amount` was done.
    pub fn advance(&mut self, amount: u64) -> Result<()> {
        self.reach(self.progress.done + amount)
    }

    /// Notes that what is done is at least `done`.
    pub fn reach(&mut self, done: u64) -> Result<()> {
        self.progress.done = self.progress.done.max(done);
        if self.progress.done < self.next {
            return Ok(());
        }
        self.tell()
    }

    /// What was done.
    pub fn done(&self) -> u64 {
        self.progress.done
    }

    /// Reports now, whether or not there is news.
    pub fn tell(&mut self) -> Result<()> {
        self.next = self.progress.done + self.step;
        self.progress.total = self.progress.total.max(self.progress.done);
        let Some(report) = &mut self.report else {
            return Ok(());
        };
        match report(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled { call: self.call }),
        }
    }

    /// Reports that all is done.
    pub fn finish(&mut self) -> Result<()> {
        self.progress.total = self.progress.total.max(self.progress.done);
        self.progress.done = self.progress.total;
        self.tell()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_few_and_end_with_everything() {
        let mut seen = Vec::new();
        let mut report = |progress: Progress| {
            seen.push((progress.done, progress.total));
            ControlFlow::Continue(())
        };
        let mut watch = Watch::new("test", Some(&mut report), ProgressUnit::Entries);
        watch.expect(10_000);
        for _ in 0..9_000 {
            watch.advance(1).unwrap();
        }
        watch.finish().unwrap();
        assert_eq!(
            seen,
            [
                (1, 10_000),
                (4097, 10_000),
                (8193, 10_000),
                (10_000, 10_000)
            ]
        );
    }

    #[test]
    fn more_than_was_expected_is_no_more_than_all() {
        let mut last = None;
        let mut report = |progress: Progress| {
            assert!(progress.done <= progress.total);
            last = Some(progress);
            ControlFlow::Continue(())
        };
        let mut watch = Watch::new("test", Some(&mut report), ProgressUnit::Bytes);
        watch.expect(1);
        watch.advance(5 << 20).unwrap();
        watch.finish().unwrap();
        assert_eq!(
            last.map(|last| (last.done, last.total)),
            Some((5 << 20, 5 << 20))
        );
    }

    #[test]
    fn the_caller_can_end_it() {
        let mut report = |_| ControlFlow::Break(());
        let mut watch = Watch::new("verify", Some(&mut report), ProgressUnit::Bytes);
        let error = watch.advance(1).unwrap_err();
        assert!(
            matches!(error, Error::Cancelled { call: "verify" }),
            "{error}"
        );
    }
}
