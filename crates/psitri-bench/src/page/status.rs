//! How the runs ended: which passed, which did not and why, and with which settings they ran.
use super::compare::Comparison;
use crate::registry::Entry;
use crate::report::Validation;
use crate::suite::results::{CaseRun, Outcome, Results};

/// Of an engine in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The case leaves the engine out.
    NotPlanned,
    /// No run has left anything yet.
    Pending,
    NotApplicable,
    /// So many of so many runs passed.
    Ran {
        passed: usize,
        runs: usize,
    },
}

pub struct Matrix<'r> {
    pub engines: Vec<&'r str>,
    /// For each comparison, for each engine.
    pub rows: Vec<Vec<Status>>,
}

pub fn matrix<'r>(results: &'r Results, comparisons: &[Comparison<'r>]) -> Matrix<'r> {
    let all: Vec<&Comparison<'r>> = comparisons.iter().collect();
    let engines = super::cards::sweep_engines(&all);
    let row = |comparison: &Comparison<'r>| {
        engines
            .iter()
            .map(|engine| status(results, comparison, engine))
            .collect()
    };
    Matrix {
        rows: comparisons.iter().map(row).collect(),
        engines,
    }
}

fn status(results: &Results, comparison: &Comparison<'_>, engine: &str) -> Status {
    if !comparison.engines.contains(&engine) {
        return Status::NotPlanned;
    }
    let runs: Vec<&CaseRun> = results
        .runs(comparison.case)
        .iter()
        .filter(|run| run.engine == engine)
        .collect();
    if runs.is_empty() {
        Status::Pending
    } else if runs.iter().all(|run| is_not_applicable(run)) {
        Status::NotApplicable
    } else {
        Status::Ran {
            passed: runs.iter().filter(|run| run.passed().is_some()).count(),
            runs: runs.len(),
        }
    }
}

fn is_not_applicable(run: &CaseRun) -> bool {
    matches!(&run.outcome, Outcome::Report(report) if report.validation == Validation::NotApplicable)
}

/// Runs of an engine that have no figures for the same reason.
pub struct Problem<'r> {
    pub case: &'r str,
    pub engine: &'r str,
    rounds: Vec<u32>,
    pub what: &'static str,
    pub reason: String,
}

impl Problem<'_> {
    pub fn rounds(&self) -> String {
        let rounds: Vec<String> = self.rounds.iter().map(u32::to_string).collect();
        rounds.join(", ")
    }
}

pub fn problems<'r>(results: &'r Results, comparisons: &[Comparison<'r>]) -> Vec<Problem<'r>> {
    let mut problems: Vec<Problem<'r>> = Vec::new();
    for case in comparisons.iter().map(|comparison| comparison.case) {
        for run in results.runs(case) {
            let (what, reason) = match &run.outcome {
                Outcome::Lost(reason) => ("no report", reason.clone()),
                Outcome::Report(report) => match report.validation {
                    Validation::Pass => continue,
                    Validation::Fail => ("failed", report.failures.join("; ")),
                    Validation::NotApplicable => ("not applicable", report.failures.join("; ")),
                },
            };
            let same = |known: &&mut Problem<'r>| {
                known.case == case.id
                    && known.engine == run.engine
                    && known.what == what
                    && known.reason == reason
            };
            match problems.iter_mut().find(same) {
                Some(known) => known.rounds.push(run.round),
                None => problems.push(Problem {
                    case: &case.id,
                    engine: &run.engine,
                    rounds: vec![run.round],
                    what,
                    reason,
                }),
            }
        }
    }
    problems
}

/// Settings of an engine in cases where they are not those it has by default, with the cases of each.
pub fn other_settings<'r>(
    comparisons: &[Comparison<'r>],
    entry: &Entry,
) -> Vec<(Vec<&'r str>, Vec<String>)> {
    let mut found: Vec<(Vec<&'r str>, Vec<String>)> = Vec::new();
    for comparison in comparisons {
        let position = comparison
            .engines
            .iter()
            .position(|engine| *engine == entry.name);
        let report = position.and_then(|position| comparison.reports[position].first());
        let Some(description) = report.and_then(|report| report.description.as_ref()) else {
            continue;
        };
        if description.settings == entry.description.settings {
            continue;
        }
        match found
            .iter_mut()
            .find(|(_, settings)| *settings == description.settings)
        {
            Some((cases, _)) => cases.push(&comparison.case.id),
            None => found.push((vec![&comparison.case.id], description.settings.clone())),
        }
    }
    found
}
