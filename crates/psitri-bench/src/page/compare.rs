//! The figures of a case side by side, and who is faster.
//!
//! Medians of the runs that passed are compared, within one case, which one machine ran with one durability. Ours is `psitri`, or the first
//! engine whose name begins with `psitri-` in cases that have no `psitri`; no engine of that family counts as another, and neither does an
//! engine that only checks the harness. An engine whose commits survive less than those of the others is shown beside them and compared
//! with nobody: it has no ratio, and is never the best. One behind a socket is compared like any other.
use super::figures::{self, Better, Kind, Name, Rank};
use super::format;
use crate::engine::Capabilities;
use crate::registry::NOT_IN_ALL;
use crate::report::Report;
use crate::suite::results::{Case, Results};
use crate::summary::Spread;
use std::ops::RangeInclusive;

pub const OURS: &str = "psitri";

/// Ratios of which nothing is known where one of the two was run once: machines are shared, and runs differ by so much.
const WITHIN_ONE_RUN: RangeInclusive<f64> = 0.8..=1.25;

/// Of the family of PsiTri.
pub fn is_ours(engine: &str) -> bool {
    engine
        .strip_prefix(OURS)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// An engine to be compared with.
pub fn is_other(engine: &str) -> bool {
    !is_ours(engine) && engine != "noop" && !NOT_IN_ALL.contains(&engine)
}

/// A figure of all engines of a case.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: Name,
    /// In the order of [`Comparison::engines`].
    pub cells: Vec<Option<Spread>>,
}

impl Row {
    pub fn kind(&self) -> &'static Kind {
        self.name.kind()
    }

    pub fn rank(&self) -> Rank {
        self.kind().rank
    }
}

/// All figures of a case.
pub struct Comparison<'r> {
    pub case: &'r Case,
    /// Those that were to run, and those that did.
    pub engines: Vec<&'r str>,
    /// Of each engine, whether its commits survive less than the others' do.
    pub weaker: Vec<bool>,
    /// Of each engine, whether a power failure may cost its whole database after commits in mode `none`.
    pub risky: Vec<bool>,
    /// The position of ours.
    pub ours: Option<usize>,
    pub rows: Vec<Row>,
    /// Of the runs that passed, in all phases together; the same in all runs.
    pub durability: String,
    /// The runs that passed, by engine.
    pub reports: Vec<Vec<&'r Report>>,
}

/// A figure in which ours is compared with the best of the others.
#[derive(Clone, Debug)]
pub struct Verdict<'r> {
    pub case: &'r Case,
    pub durability: String,
    pub name: Name,
    pub other: &'r str,
    pub others_median: f64,
    pub ours: &'r str,
    pub ours_median: f64,
    /// How many times better the other is; less than one if ours is better.
    pub ratio: f64,
    /// How many others are better than ours.
    pub better_others: usize,
    /// The runs of both do not all lie apart, or there is one of a side and the ratio is not large: which one is better, they do not say.
    pub overlap: bool,
    /// Runs of the other and of ours.
    pub runs: [usize; 2],
    /// The best median of our other ways to commit.
    pub sibling: Option<(&'r str, f64)>,
    /// Where a power failure may cost the best other its database: the best of those that keep theirs, and its ratio.
    pub keeper: Option<(&'r str, f64)>,
}

/// What a verdict says of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Behind,
    /// Within the spread of the runs.
    Even,
    First,
}

impl Verdict<'_> {
    pub fn standing(&self) -> Standing {
        if self.overlap {
            Standing::Even
        } else if self.ratio > 1.0 {
            Standing::Behind
        } else {
            Standing::First
        }
    }

    /// How many times better the better one is, and which one if that is not plain from the list it stands in.
    pub fn ratio_words(&self) -> String {
        let ahead = self.ratio <= 1.0;
        let times = format::times(if ahead { 1.0 / self.ratio } else { self.ratio });
        match self.standing() {
            Standing::Even if self.ratio == 1.0 => times,
            Standing::Even if ahead => format!("{times} ours"),
            Standing::Even => format!("{times} theirs"),
            Standing::Behind | Standing::First => times,
        }
    }

    /// The runs of the other and of ours.
    pub fn runs_words(&self) -> String {
        let [theirs, ours] = self.runs;
        format!("{theirs} : {ours}")
    }

    /// What is said of the best that a power failure does not cost its database, if that is not the best of all.
    pub fn keeper_words(&self) -> Option<String> {
        let (keeper, ratio) = self.keeper?;
        Some(if ratio > 1.0 {
            format!("without †: {keeper}, {} better", format::times(ratio))
        } else {
            format!("without †: {keeper}, ours {}", format::times(1.0 / ratio))
        })
    }
}

/// How many times better `theirs` is than `ours`. Nothing where one of them says nothing: a size or a time of zero was not measured.
pub fn advantage(better: Better, theirs: f64, ours: f64) -> Option<f64> {
    match better {
        Better::Higher if theirs <= 0.0 && ours <= 0.0 => None,
        // A second in which nothing was done is infinitely worse than one in which something was.
        Better::Higher => Some(theirs / ours),
        Better::Lower if theirs <= 0.0 || ours <= 0.0 => None,
        Better::Lower => Some(ours / theirs),
    }
}

impl<'r> Comparison<'r> {
    pub fn new(results: &'r Results, case: &'r Case) -> Self {
        let mut engines: Vec<&str> = case.engines.iter().map(String::as_str).collect();
        for run in results.runs(case) {
            if !engines.contains(&run.engine.as_str()) {
                engines.push(&run.engine);
            }
        }
        let mut reports = vec![Vec::new(); engines.len()];
        let mut values: Vec<(Name, Vec<Vec<f64>>)> = Vec::new();
        let mut durability = None;
        for run in results.runs(case) {
            let Some(report) = run.passed() else { continue };
            let Some(engine) = engines.iter().position(|engine| *engine == run.engine) else {
                continue;
            };
            reports[engine].push(report);
            durability = durability.or_else(|| figures::durability(&report.config));
            let mut at = 0;
            for (name, value) in figures::of(report) {
                // A figure that only some engines have stands where it stands in their reports.
                at = match values.iter().position(|(known, _)| *known == name) {
                    Some(known) => known,
                    None => {
                        let place = if values.is_empty() { 0 } else { at + 1 };
                        values.insert(place, (name, vec![Vec::new(); engines.len()]));
                        place
                    }
                };
                values[at].1[engine].push(value);
            }
        }
        let rows = values
            .into_iter()
            .map(|(name, cells)| Row {
                name,
                cells: cells.iter().map(|values| Spread::of(values)).collect(),
            })
            .collect();
        let ours = engines
            .iter()
            .position(|engine| *engine == OURS)
            .or_else(|| engines.iter().position(|engine| is_ours(engine)));
        let each = |holds: fn(&Capabilities) -> bool| {
            let of = |engine: &&str| {
                let mut entries = results.info.engines.iter();
                entries.any(|entry| entry.name == **engine && holds(&entry.capabilities))
            };
            engines.iter().map(of).collect::<Vec<bool>>()
        };
        let weaker = each(|it| it.weaker_durability);
        let risky = each(|it| it.none_risks_database);
        let durability =
            durability.or_else(|| figures::own_durability(&case.workload, None).map(str::to_owned));
        Self {
            case,
            engines,
            weaker,
            risky,
            ours,
            rows,
            durability: durability.unwrap_or_else(|| "not known".to_owned()),
            reports,
        }
    }

    /// How durable the commits of a phase are.
    pub fn durability_of(&self, phase: Option<&str>) -> &str {
        figures::own_durability(&self.case.workload, phase).unwrap_or(&self.durability)
    }

    /// How many times better than ours an engine is: more than one is better.
    pub fn ratio(&self, row: &Row, engine: usize) -> Option<f64> {
        if self.weaker[engine] {
            return None;
        }
        let ours = row.cells[self.ours?]?;
        advantage(row.kind().better?, row.cells[engine]?.median, ours.median)
    }

    /// The engine with the best median.
    pub fn best(&self, row: &Row) -> Option<usize> {
        let better = row.kind().better?;
        (0..self.engines.len())
            .filter(|&engine| is_ours(self.engines[engine]) || is_other(self.engines[engine]))
            .filter(|&engine| !self.weaker[engine])
            .filter_map(|engine| Some((engine, row.cells[engine]?.median)))
            .reduce(|best, next| match better {
                Better::Higher if next.1 > best.1 => next,
                Better::Lower if next.1 < best.1 => next,
                _ => best,
            })
            .map(|(engine, _)| engine)
    }

    /// A verdict for each figure that ranks and that ours and another engine have.
    pub fn verdicts(&self) -> Vec<Verdict<'r>> {
        self.rows
            .iter()
            .filter_map(|row| self.verdict(row))
            .collect()
    }

    fn verdict(&self, row: &Row) -> Option<Verdict<'r>> {
        let kind = row.kind();
        if kind.rank == Rank::Context {
            return None;
        }
        let ours = self.ours?;
        let own = row.cells[ours]?;
        let mut others: Vec<(usize, f64)> = (0..self.engines.len())
            .filter(|&engine| is_other(self.engines[engine]))
            .filter_map(|engine| Some((engine, self.ratio(row, engine)?)))
            .collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        let is_apart = |engine: usize, ratio: f64| {
            row.cells[engine].is_some_and(|theirs| {
                let is_known = theirs.runs > 1 && own.runs > 1;
                let is_apart = theirs.min > own.max || own.min > theirs.max;
                is_apart && (is_known || !WITHIN_ONE_RUN.contains(&ratio))
            })
        };
        // One that is better in all its runs counts before one whose median is better still, and whose runs say nothing.
        let behind = others
            .iter()
            .find(|&&(engine, ratio)| ratio > 1.0 && is_apart(engine, ratio));
        let &(best, ratio) = behind.or(others.first())?;
        let theirs = row.cells[best]?;
        let sibling = (0..self.engines.len())
            .filter(|&engine| engine != ours && is_ours(self.engines[engine]))
            .filter_map(|engine| Some((engine, self.ratio(row, engine)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .and_then(|(engine, _)| Some((self.engines[engine], row.cells[engine]?.median)));
        let durability = self.durability_of(row.name.phase.as_deref());
        let keeper = (durability.starts_with("none") && self.risky[best])
            .then(|| others.iter().find(|(engine, _)| !self.risky[*engine]))
            .flatten()
            .map(|&(engine, ratio)| (self.engines[engine], ratio));
        Some(Verdict {
            case: self.case,
            durability: durability.to_owned(),
            name: row.name.clone(),
            other: self.engines[best],
            others_median: theirs.median,
            ours: self.engines[ours],
            ours_median: own.median,
            ratio,
            better_others: others.iter().filter(|(_, ratio)| *ratio > 1.0).count(),
            overlap: !is_apart(best, ratio),
            runs: [theirs.runs, own.runs],
            sibling,
            keeper,
        })
    }

    /// Ours has no figures, but another engine has.
    pub fn ours_is_missing(&self) -> bool {
        let has = |engine: usize| !self.reports[engine].is_empty();
        let ours = self.ours.is_some_and(has);
        let planned = self.ours.is_some();
        planned
            && !ours
            && (0..self.engines.len()).any(|engine| is_other(self.engines[engine]) && has(engine))
    }
}

/// The figures that say so of ours: those of which the most is to be seen first, be it a lead of the others or of ours.
pub fn standing<'a, 'r>(
    verdicts: &'a [Verdict<'r>],
    rank: Rank,
    standing: Standing,
) -> Vec<&'a Verdict<'r>> {
    let mut those: Vec<_> = verdicts
        .iter()
        .filter(|verdict| verdict.name.kind().rank == rank && verdict.standing() == standing)
        .collect();
    those.sort_by(|a, b| match standing {
        Standing::First => a.ratio.total_cmp(&b.ratio),
        Standing::Behind | Standing::Even => b.ratio.total_cmp(&a.ratio),
    });
    those
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantage_knows_directions_and_what_was_not_measured() {
        assert_eq!(advantage(Better::Higher, 30.0, 10.0), Some(3.0));
        assert_eq!(advantage(Better::Lower, 10.0, 30.0), Some(3.0));
        assert_eq!(advantage(Better::Higher, 5.0, 0.0), Some(f64::INFINITY));
        assert_eq!(advantage(Better::Lower, 0.0, 30.0), None);
        assert_eq!(advantage(Better::Higher, 0.0, 0.0), None);
    }

    #[test]
    fn the_family_is_ours_and_checks_of_the_harness_are_nobodys() {
        assert!(is_ours("psitri") && is_ours("psitri-direct") && !is_ours("psitrix"));
        assert!(is_other("rocksdb") && !is_other("model") && !is_other("psitri-direct"));
    }
}
