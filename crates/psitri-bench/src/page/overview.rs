//! What stands before the charts and after them: where others are faster, where ours is, what the runs were checked for, and on what and
//! how they were made.
use super::command;
use super::compare::{Comparison, Standing, Verdict, standing};
use super::figures::{RANKS, Rank};
use super::format;
use super::palette::{self, Palette};
use super::status::{self, Status};
use crate::report::mebibytes;
use crate::suite::results::{Results, SuiteInfo};
use maud::{Markup, html};

/// Rows that are shown at once; the rest can be opened.
const ROWS_OPEN: usize = 30;

pub fn losses(
    info: &SuiteInfo,
    comparisons: &[Comparison<'_>],
    verdicts: &[Verdict<'_>],
    palette: &Palette,
) -> Markup {
    let lost = |rank: Rank| standing(verdicts, rank, Standing::Behind);
    let missing: Vec<_> = comparisons
        .iter()
        .filter(|comparison| comparison.ours_is_missing())
        .collect();
    html! {
        section #others-faster {
            h2 { "Where others are faster" }
            @if has_risky(info) { p.about { (RISKY) } }
            p.about {
                "Every figure in which all runs of the best other engine are better than ours, the worst first. "
                "Beside each ratio stands the number of runs, theirs and ours. "
                "Throughput, time and size first, then latency, memory and processor time, then what comes before and after the work."
            }
            @if !missing.is_empty() {
                p.warning {
                    "Without a figure of ours: "
                    @for (position, comparison) in missing.iter().enumerate() {
                        @if position > 0 { ", " }
                        a href=(format!("#{}", comparison.case.id)) { (comparison.case.title) }
                    }
                    ". The reasons are under " a href="#validation" { "validation" } "."
                }
            }
            @for (rank, title) in RANKS {
                h3 { (title) }
                (verdict_rows(&lost(rank), verdicts, "others", palette))
            }
        }
    }
}

fn verdict_rows(
    rows: &[&Verdict<'_>],
    all: &[Verdict<'_>],
    class: &str,
    palette: &Palette,
) -> Markup {
    let (open, closed) = rows.split_at(rows.len().min(ROWS_OPEN));
    html! {
        @if all.is_empty() {
            p.empty { "Nothing was compared: no case has figures of ours and of another engine." }
        } @else if rows.is_empty() {
            p.empty { "None." }
        } @else {
            (verdict_table(open, class, palette))
            @if !closed.is_empty() {
                details { summary { (closed.len()) " more" } (verdict_table(closed, class, palette)) }
            }
        }
    }
}

fn verdict_table(rows: &[&Verdict<'_>], class: &str, palette: &Palette) -> Markup {
    html! {
        div.scroll tabindex="0" { table.verdicts.(class) {
            thead { tr {
                th.figure { "ratio" } th { "case and figure" } th { "best other" } th.figure { "theirs" } th.figure { "ours" } th { "durability" }
            } }
            tbody { @for verdict in rows { (verdict_row(verdict, palette)) } }
        } }
    }
}

fn verdict_row(verdict: &Verdict<'_>, palette: &Palette) -> Markup {
    let unit = verdict.name.kind().unit;
    html! {
        tr {
            td.figure.factor { (verdict.ratio_words()) br; small { (verdict.runs_words()) } }
            td { a href=(format!("#{}", verdict.case.id)) { (verdict.case.title) } br; small { (verdict.name.words()) } }
            td { (palette.label(verdict.other)) @if verdict.better_others > 1 { br; small { "and " (verdict.better_others - 1) " more" } }
                @if let Some(words) = verdict.keeper_words() { br; small { (words) } } }
            td.figure { (format::text(unit, verdict.others_median)) }
            td.figure {
                (format::text(unit, verdict.ours_median))
                @if verdict.ours != super::compare::OURS { br; small { (verdict.ours) } }
                @if let Some((sibling, median)) = verdict.sibling { br; small { (sibling) " " (format::text(unit, median)) } }
            }
            td { (verdict.durability) }
        }
    }
}

pub fn even(verdicts: &[Verdict<'_>], palette: &Palette) -> Markup {
    let even = RANKS.map(|(rank, title)| (title, standing(verdicts, rank, Standing::Even)));
    html! {
        section #even {
            h2 { "Where the runs do not say" }
            p.about {
                "Figures in which the runs of the best other engine and ours overlap, with whose median is better; and those of which one side was run once, where neither is better by more than a quarter."
            }
            @if even.iter().all(|(_, rows)| rows.is_empty()) { p.empty { "None." } }
            @for (title, rows) in &even {
                @if !rows.is_empty() {
                    details { summary { (title) ": " (rows.len()) " figures" } (verdict_table(rows, "even", palette)) }
                }
            }
        }
    }
}

pub fn wins(verdicts: &[Verdict<'_>], palette: &Palette) -> Markup {
    let share = |rank: Rank| {
        let [won, of] = [Some(Standing::First), None].map(|wanted| {
            let counts = |verdict: &&Verdict<'_>| {
                verdict.name.kind().rank == rank
                    && wanted.is_none_or(|wanted| verdict.standing() == wanted)
            };
            verdicts.iter().filter(counts).count()
        });
        format!("{won} of {of}")
    };
    html! {
        section #ours-faster {
            h2 { "Where ours is first" }
            p.about {
                "In " strong { (share(Rank::Primary)) } " figures of throughput, time and size, and in "
                strong { (share(Rank::Secondary)) } " of latency, memory and processor time, all runs of ours are better than those of the best other engine. The ratio is to that one."
            }
            @for (rank, title) in RANKS {
                @let won = standing(verdicts, rank, Standing::First);
                @if !won.is_empty() {
                    details { summary { (title) ": " (won.len()) " figures" } (verdict_table(&won, "ours-first", palette)) }
                }
            }
        }
    }
}

pub fn validation(results: &Results, comparisons: &[Comparison<'_>], palette: &Palette) -> Markup {
    html! {
        section #validation {
            h2 { "Validation" }
            p.about { "A run has figures only if all checks of its workload passed. Medians are over the runs that passed." }
            @let matrix = status::matrix(results, comparisons);
            div.scroll tabindex="0" { table.validation {
                thead { tr { th { "case" } @for engine in &matrix.engines { th.figure { (palette.label(engine)) } } } }
                tbody { @for (comparison, row) in comparisons.iter().zip(&matrix.rows) {
                    tr {
                        th scope="row" { a href=(format!("#{}", comparison.case.id)) { (comparison.case.title) } }
                        @for status in row { (status_cell(status)) }
                    }
                } }
            } }
            @let problems = status::problems(results, comparisons);
            @if problems.is_empty() {
                p.note { "Every run passed." }
            } @else {
                h3 { "Runs without figures" }
                div.scroll tabindex="0" { table.problems {
                    thead { tr { th { "case" } th { "engine" } th { "rounds" } th { "what" } th { "reason" } } }
                    tbody { @for problem in &problems { tr {
                        td { a href=(format!("#{}", problem.case)) { (problem.case) } }
                        td { (problem.engine) }
                        td { (problem.rounds()) }
                        td { (problem.what) }
                        td.reason { (problem.reason) }
                    } } }
                } }
            }
            details {
                summary { "What was checked" }
                @for comparison in comparisons { (checks(comparison)) }
            }
        }
    }
}

fn checks(comparison: &Comparison<'_>) -> Markup {
    html! {
        h4 { (comparison.case.title) }
        ul.checks {
            @for (engine, reports) in comparison.engines.iter().zip(&comparison.reports) {
                @if let Some(report) = reports.first() {
                    li { strong { (engine) } ": " (if report.checks.is_empty() { "nothing is listed".to_owned() } else { report.checks.join("; ") }) }
                }
            }
        }
    }
}

fn status_cell(status: &Status) -> Markup {
    let (class, text) = match status {
        Status::NotPlanned => ("figure absent", String::new()),
        Status::Pending => ("figure absent", "not run".to_owned()),
        Status::NotApplicable => ("figure absent", "n/a".to_owned()),
        Status::Ran { passed, runs } if passed == runs => {
            ("figure passed", format!("✓ {passed}/{runs}"))
        }
        Status::Ran { passed, runs } => ("figure failed", format!("✗ {passed}/{runs}")),
    };
    html! { td class=(class) { (text) } }
}

pub fn machine(info: &SuiteInfo) -> Markup {
    let machine = &info.machine;
    let memory = mebibytes(machine.memory_bytes);
    let cores = machine.cores.to_string();
    let facts = [
        ("processor", machine.cpu.as_str()),
        ("cores", &cores),
        ("memory", &memory),
        ("kernel", &machine.kernel),
        ("file system", &machine.filesystem),
        ("compiler", &machine.rustc),
        ("commit", info.commit.as_deref().unwrap_or("not known")),
        ("profile", &info.profile),
        ("started", &info.started),
        (
            "finished",
            info.finished
                .as_deref()
                .unwrap_or("not finished: what is here is what there was"),
        ),
    ];
    html! {
        section #machine {
            h2 { "Machine" }
            dl.facts { @for (name, value) in facts { dt { (name) } dd { (value) } } }
        }
    }
}

/// Said where an engine is named so.
pub const WEAKER: &str = "Weaker durability: commits survive less than the name of the sync mode promises, so the figures are shown \
     beside those of the others and compared with none.";

/// Said where an engine has the dagger.
pub const RISKY: &str = "† In mode none a power failure may cost this engine its whole database, as it writes pages in place or in no order; the others lose the \
     newest commits at most. It is compared all the same, and where it is the best in that mode, the best of those without a dagger is named, too.";

pub fn has_risky(info: &SuiteInfo) -> bool {
    let mut entries = info.engines.iter();
    entries.any(|entry| entry.capabilities.none_risks_database)
}

pub fn has_weaker(info: &SuiteInfo) -> bool {
    let mut entries = info.engines.iter();
    entries.any(|entry| entry.capabilities.weaker_durability)
}

pub fn engines(info: &SuiteInfo, comparisons: &[Comparison<'_>], palette: &Palette) -> Markup {
    html! {
        section #engines {
            h2 { "Engines and their settings" }
            p.about { "Every engine gets the same durability, the same bytes, fresh readers and a process of its own. " (super::DURABILITY) }
            @if has_risky(info) { p.about { (RISKY) } }
            @if has_weaker(info) { p.about { (WEAKER) } }
            div.engines { @for entry in &info.engines {
                div.engine {
                    h4 { span.swatch.(palette.class(&entry.name)) {} (entry.name) " " small { (entry.description.version) }
                        @let remark = palette::remark(&entry.capabilities);
                        @if !remark.is_empty() { " " span.chip { (remark) } } }
                    ul { @for line in &entry.description.settings { li { (line) } } }
                    @for (cases, lines) in status::other_settings(comparisons, entry) {
                        details { summary { "In " (cases.join(", ")) } ul { @for line in &lines { li { (line) } } } }
                    }
                }
            } }
        }
    }
}

pub fn commands(info: &SuiteInfo) -> Markup {
    html! {
        section #reproduce {
            h2 { "Run it again" }
            p.about { "Each case alone, with the engines beside one another:" }
            @for case in &info.cases {
                h4 { (case.title) }
                div.scroll tabindex="0" { pre { code { (command(case, info.repeat)) } } }
            }
        }
    }
}
