//! What a run of the suite leaves in its directory, and how it is read back.
//!
//! `suite.json` holds a [`SuiteInfo`]; `runs/<case>/<engine>.<round>.json` a [`Report`] for each run that left one, and
//! `runs/<case>/<engine>.<round>.failed.txt` the reason for each run that did not: a crash, a limit of time or memory. Where both are
//! there the reason counts, for a process that died after its report is not one that passed. A file that cannot be read is a run
//! without figures, never a reason to lose the others. A run that is not there yet is not there: a suite can be looked at while it runs.
use crate::driver::{read_json, write_json};
use crate::registry::Entry;
use crate::report::{Report, Validation};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const INFO_FILE: &str = "suite.json";
const RUNS_DIRECTORY: &str = "runs";
const REPORT_SUFFIX: &str = ".json";
const FAILED_SUFFIX: &str = ".failed.txt";

/// What the figures were measured on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
    pub kernel: String,
    /// Of the directory of the databases.
    pub filesystem: String,
    pub rustc: String,
}

/// The published page that a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Page {
    Bank,
    Upsert,
    Emdb,
    Sqlite,
    Tides,
    DbBench,
}

/// A workload with its arguments, on some engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Letters, digits and hyphens: it is the name of a directory.
    pub id: String,
    pub page: Page,
    pub title: String,
    pub workload: String,
    /// The command line without the program, and without engine and output.
    pub arguments: Vec<String>,
    pub engines: Vec<String>,
}

/// What was to be run, where, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuiteInfo {
    pub profile: String,
    /// In UTC, as `2000-01-31T12:00:00Z`.
    pub started: String,
    /// Absent while the suite runs, and when it was stopped.
    pub finished: Option<String>,
    pub commit: Option<String>,
    pub machine: Machine,
    pub engines: Vec<Entry>,
    /// Runs of each engine in each case.
    pub repeat: u32,
    /// Runs of those that took no more than [`short_seconds`](Self::short_seconds) the first time, if that is more.
    #[serde(default)]
    pub repeat_short: u32,
    #[serde(default)]
    pub short_seconds: u64,
    pub cases: Vec<Case>,
}

/// How one run ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    Report(Box<Report>),
    /// No report was left; why.
    Lost(String),
}

/// One engine in one round of a case.
#[derive(Clone, Debug)]
pub struct CaseRun {
    pub engine: String,
    pub round: u32,
    pub outcome: Outcome,
}

impl CaseRun {
    /// The report, if the run passed all of its checks.
    pub fn passed(&self) -> Option<&Report> {
        match &self.outcome {
            Outcome::Report(report) if report.validation == Validation::Pass => Some(report),
            _ => None,
        }
    }

    /// Why the run has no figures although it should have: nothing for one that passed or that does not apply to its engine.
    pub fn trouble(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Report(report) if report.validation == Validation::Fail => {
                Some(report.failures.join("; "))
            }
            Outcome::Report(_) => None,
            Outcome::Lost(reason) => Some(reason.clone()),
        }
    }
}

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Results {
    pub info: SuiteInfo,
    /// By the id of the case, in the order of engines and rounds.
    runs: BTreeMap<String, Vec<CaseRun>>,
}

impl SuiteInfo {
    pub fn load(directory: &Path) -> Result<Self> {
        let info: Self = read_json(&directory.join(INFO_FILE))?;
        for case in &info.cases {
            let plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
            if case.id.is_empty() || !case.id.chars().all(plain) {
                bail!(
                    "the id '{}' of a case is not of letters, digits and hyphens",
                    case.id
                );
            }
        }
        Ok(info)
    }

    /// Rounds of all cases. After the first [`repeat`](Self::repeat) of them only what is short is run.
    pub fn rounds(&self) -> u32 {
        self.repeat.max(self.repeat_short)
    }

    pub fn save(&self, directory: &Path) -> Result<()> {
        write_json(self, &directory.join(INFO_FILE))
    }
}

/// Where the reports of a case are.
pub fn case_directory(directory: &Path, case: &str) -> PathBuf {
    directory.join(RUNS_DIRECTORY).join(case)
}

/// Where a run leaves its report.
pub fn report_file(directory: &Path, case: &str, engine: &str, round: u32) -> PathBuf {
    case_directory(directory, case).join(format!("{engine}.{round}{REPORT_SUFFIX}"))
}

/// Where the reason stands when a run left no report.
pub fn failed_file(directory: &Path, case: &str, engine: &str, round: u32) -> PathBuf {
    case_directory(directory, case).join(format!("{engine}.{round}{FAILED_SUFFIX}"))
}

impl Results {
    pub fn load(directory: &Path) -> Result<Self> {
        let info = SuiteInfo::load(directory)?;
        let mut runs = BTreeMap::new();
        for case in &info.cases {
            runs.insert(case.id.clone(), load_case(directory, case)?);
        }
        Ok(Self { info, runs })
    }

    pub fn runs(&self, case: &Case) -> &[CaseRun] {
        self.runs.get(&case.id).map_or(&[], Vec::as_slice)
    }
}

fn load_case(directory: &Path, case: &Case) -> Result<Vec<CaseRun>> {
    let path = case_directory(directory, &case.id);
    let mut runs: Vec<CaseRun> = Vec::new();
    if !path.is_dir() {
        return Ok(runs);
    }
    let files = fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for file in files {
        let file = file?.path();
        let Some((engine, round, failed)) = parse_name(&file) else {
            continue;
        };
        let run = CaseRun {
            outcome: load_outcome(&file, failed),
            engine,
            round,
        };
        match runs
            .iter_mut()
            .find(|known| (&known.engine, known.round) == (&run.engine, run.round))
        {
            Some(known) if failed => *known = run,
            Some(_) => {}
            None => runs.push(run),
        }
    }
    let position = |engine: &str| case.engines.iter().position(|known| known == engine);
    runs.sort_by(|a, b| {
        let key = |run: &CaseRun| (position(&run.engine).unwrap_or(usize::MAX), run.round);
        key(a).cmp(&key(b)).then_with(|| a.engine.cmp(&b.engine))
    });
    Ok(runs)
}

/// Engine, round, and whether the file holds a reason; nothing for files that are neither.
fn parse_name(file: &Path) -> Option<(String, u32, bool)> {
    let name = file.file_name()?.to_str()?;
    let (stem, failed) = match name.strip_suffix(FAILED_SUFFIX) {
        Some(stem) => (stem, true),
        None => (name.strip_suffix(REPORT_SUFFIX)?, false),
    };
    let (engine, round) = stem.rsplit_once('.')?;
    Some((engine.to_owned(), round.parse().ok()?, failed))
}

fn load_outcome(file: &Path, failed: bool) -> Outcome {
    if failed {
        return Outcome::Lost(match fs::read(file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => format!("the reason cannot be read: {error}"),
        });
    }
    match read_json(file) {
        Ok(report) => Outcome::Report(Box::new(report)),
        Err(error) => Outcome::Lost(format!(
            "the report cannot be read: {:#}",
            error.root_cause()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> SuiteInfo {
        SuiteInfo {
            profile: "smoke".to_owned(),
            started: "2000-01-31T12:00:00Z".to_owned(),
            finished: None,
            commit: None,
            machine: Machine::default(),
            engines: Vec::new(),
            repeat: 2,
            repeat_short: 0,
            short_seconds: 0,
            cases: vec![Case {
                id: "bank-1".to_owned(),
                page: Page::Bank,
                title: "one".to_owned(),
                workload: "bank".to_owned(),
                arguments: vec!["bank".to_owned()],
                engines: vec!["psitri".to_owned(), "a.b".to_owned()],
            }],
        }
    }

    #[test]
    fn runs_come_back_in_order_and_a_reason_beats_a_report() -> Result<()> {
        let temporary = tempfile::tempdir()?;
        let directory = temporary.path();
        info().save(directory)?;
        assert!(Results::load(directory)?.runs(&info().cases[0]).is_empty());
        fs::create_dir_all(case_directory(directory, "bank-1"))?;
        let write = |engine: &str, round| {
            let report = Report::new("bank", engine, serde_json::Value::Null);
            write_json(&report, &report_file(directory, "bank-1", engine, round))
        };
        write("a.b", 1)?;
        write("psitri", 2)?;
        write("psitri", 1)?;
        fs::write(failed_file(directory, "bank-1", "a.b", 1), "crashed\n")?;
        fs::write(report_file(directory, "bank-1", "a.b", 2), "{")?;
        fs::write(case_directory(directory, "bank-1").join("notes.txt"), "")?;

        let results = Results::load(directory)?;
        let runs = results.runs(&results.info.cases[0]);
        let order: Vec<_> = runs
            .iter()
            .map(|run| (run.engine.as_str(), run.round, run.passed().is_some()))
            .collect();
        assert_eq!(
            order,
            [
                ("psitri", 1, true),
                ("psitri", 2, true),
                ("a.b", 1, false),
                ("a.b", 2, false)
            ]
        );
        let Outcome::Lost(reason) = &runs[2].outcome else {
            panic!("a reason was left");
        };
        assert_eq!(reason, "crashed");
        Ok(())
    }

    #[test]
    fn an_id_that_is_no_name_of_a_directory_is_refused() -> Result<()> {
        let temporary = tempfile::tempdir()?;
        let mut info = info();
        info.cases[0].id = "../elsewhere".to_owned();
        info.save(temporary.path())?;
        assert!(Results::load(temporary.path()).is_err());
        Ok(())
    }
}
