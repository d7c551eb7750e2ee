//! The report of a run of the suite: one page that needs nothing but itself, and the same as Markdown with its charts beside it.
//!
//! [`write()`] reads a directory of results and writes `index.html`, `report.md` and `charts/`. What can be compared, and which direction is
//! better, is the table in `figures.rs`; who is compared with whom is in `compare.rs`. Only what was measured is shown: no figure of another
//! machine, none of a run that failed its checks. What others do better comes first.
//!
//! The page has no script, and no style or picture from elsewhere.
mod cards;
pub(crate) mod chart;
mod compare;
pub(crate) mod figures;
mod format;
mod markdown;
mod overview;
mod palette;
mod sections;
mod status;
mod sweep;

use crate::suite::results::{Case, Results, SuiteInfo};
use anyhow::{Context, Result};
use clap::Args;
use compare::{Comparison, Standing, Verdict};
use figures::Rank;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use palette::Palette;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
pub struct ReportConfig {
    /// The directory that the suite wrote
    pub results: PathBuf,

    /// Where the report goes; into the directory of the results without
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

impl ReportConfig {
    pub fn run(&self) -> Result<bool> {
        let out = self.out.as_ref().unwrap_or(&self.results);
        write(&self.results, out)?;
        println!("{}", out.join(PAGE_FILE).display());
        Ok(true)
    }
}

const PAGE_FILE: &str = "index.html";
const MARKDOWN_FILE: &str = "report.md";
const CHARTS_DIRECTORY: &str = "charts";

/// What the names of the sync modes mean.
const DURABILITY: &str = "Durability: after none, a commit survives the death of the process; async adds a flush in the background; sync flushes before \
     a commit returns, together with those that wait; write-through does so without waiting for others to join.";

/// The report of the results in `directory`, into `out`, which is created.
pub fn write(directory: &Path, out: &Path) -> Result<()> {
    let results = Results::load(directory)?;
    let report = Compared::new(&results);
    let charts = out.join(CHARTS_DIRECTORY);
    fs::create_dir_all(&charts).with_context(|| format!("cannot create {}", charts.display()))?;
    save(&out.join(PAGE_FILE), &report.page().0)?;
    let (markdown, drawings) = markdown::write(&report);
    save(&out.join(MARKDOWN_FILE), &markdown)?;
    for (name, drawing) in drawings {
        save(&charts.join(format!("{name}.svg")), &drawing)?;
    }
    Ok(())
}

fn save(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Everything that both forms of the report say.
struct Compared<'r> {
    results: &'r Results,
    comparisons: Vec<Comparison<'r>>,
    verdicts: Vec<Verdict<'r>>,
    palette: Palette,
}

impl<'r> Compared<'r> {
    fn new(results: &'r Results) -> Self {
        let cases = results.info.cases.iter();
        let comparisons: Vec<_> = cases.map(|case| Comparison::new(results, case)).collect();
        // Cases of the published pages that differ in their name alone count once.
        let mut counted = HashSet::new();
        let first = comparisons.iter().filter(|comparison| {
            let case = comparison.case;
            counted.insert((&case.workload, &case.engines, sweep::settings(case)))
        });
        let verdicts = first.flat_map(Comparison::verdicts).collect();
        Self {
            results,
            comparisons,
            verdicts,
            palette: Palette::new(results),
        }
    }

    fn page(&self) -> Markup {
        let info = &self.results.info;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { "PsiTri beside other engines" }
                    style { (PreEscaped(palette::css())) (PreEscaped(include_str!("page.css"))) (PreEscaped(include_str!("chart/chart.css"))) }
                }
                body {
                    (self.header(info))
                    main {
                        (overview::losses(info, &self.comparisons, &self.verdicts, &self.palette))
                        (overview::even(&self.verdicts, &self.palette))
                        (overview::wins(&self.verdicts, &self.palette))
                        @for page in sections::PAGES { (sections::section(page, &self.comparisons, &self.palette)) }
                        (overview::validation(self.results, &self.comparisons, &self.palette))
                        (overview::machine(info))
                        (overview::engines(info, &self.comparisons, &self.palette))
                        (overview::commands(info))
                    }
                }
            }
        }
    }

    fn header(&self, info: &SuiteInfo) -> Markup {
        let [behind, even, ahead] = [Standing::Behind, Standing::Even, Standing::First]
            .map(|standing| compare::standing(&self.verdicts, Rank::Primary, standing).len());
        let shown = |page: &crate::suite::results::Page| {
            self.comparisons
                .iter()
                .any(|comparison| comparison.case.page == *page)
        };
        html! {
            header {
                h1 { "PsiTri beside other engines" }
                p.about {
                    (measured(info))
                }
                div.counts {
                    a.count href="#others-faster" { strong { (behind) } " figures where another is faster or smaller" }
                    a.count href="#even" { strong { (even) } " where the runs do not say" }
                    a.count href="#ours-faster" { strong { (ahead) } " figures where none is" }
                }
                nav {
                    @for page in sections::PAGES.iter().filter(|page| shown(page)) {
                        @let (anchor, heading, _) = sections::words(*page);
                        a href=(format!("#{anchor}")) { (heading) }
                    }
                    a href="#validation" { "Validation" }
                    a href="#machine" { "Machine" }
                    a href="#engines" { "Settings" }
                    a href="#reproduce" { "Commands" }
                }
            }
        }
    }
}

/// What was measured, when, and on what.
fn measured(info: &SuiteInfo) -> String {
    let of = |repeat| match repeat {
        1 => "one run".to_owned(),
        repeat => format!("the median of {repeat} runs"),
    };
    let runs = match info.rounds() {
        rounds if rounds == info.repeat => format!("{} each", of(rounds)),
        rounds => format!(
            "{} of each engine in each case, or, where one takes no more than {} s, {}",
            of(info.repeat),
            info.short_seconds,
            of(rounds)
        ),
    };
    format!(
        "Measured {} on {}, {} cores. {} cases, {} engines, {runs}. Ratios hold for this machine.",
        info.started.split('T').next().unwrap_or_default(),
        info.machine.cpu,
        info.machine.cores,
        info.cases.len(),
        info.engines.len(),
    )
}

/// The command that runs a case again, without the place of its database.
fn command(case: &Case, repeat: u32) -> String {
    let mut words = vec!["psitri-bench".to_owned()];
    let mut arguments = case.arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--db-path" {
            arguments.next();
        } else if !argument.starts_with("--db-path=") && argument != "--overwrite" {
            words.push(quoted(argument));
        }
    }
    words.extend([
        "--engine".to_owned(),
        quoted(&case.engines.join(",")),
        "--repeat".to_owned(),
        repeat.to_string(),
    ]);
    words.join(" ")
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=,.:/+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::results::Page;

    #[test]
    fn a_command_can_be_pasted() {
        let case = Case {
            id: "a".to_owned(),
            page: Page::Bank,
            title: String::new(),
            workload: "bank".to_owned(),
            arguments: [
                "bank",
                "--db-path",
                "there",
                "--text",
                "it's",
                "--overwrite",
            ]
            .map(str::to_owned)
            .to_vec(),
            engines: vec!["psitri".to_owned(), "redb".to_owned()],
        };
        assert_eq!(
            command(&case, 3),
            r"psitri-bench bank --text 'it'\''s' --engine psitri,redb --repeat 3"
        );
    }
}
