//! The report as Markdown, with its charts as files beside it.
use super::cards::{self, Card};
use super::chart;
use super::compare::{Comparison, OURS, Standing, Verdict, standing};
use super::figures::{LATENCIES, Name, RANKS, Unit};
use super::status::{self, Status};
use super::{
    CHARTS_DIRECTORY, Compared, DURABILITY, command, format, measured, overview, palette, sections,
};
use crate::report::mebibytes;
use std::fmt::Display;

/// Lines, and the charts that they show: name and text of each.
struct Document {
    lines: Vec<String>,
    drawings: Vec<(String, String)>,
}

/// The text, and name and content of each chart.
pub fn write(report: &Compared<'_>) -> (String, Vec<(String, String)>) {
    let info = &report.results.info;
    let mut document = Document {
        lines: Vec::new(),
        drawings: Vec::new(),
    };
    document.heading(1, "PsiTri beside other engines");
    document.paragraph(&measured(info));
    document.paragraph(DURABILITY);
    if overview::has_risky(info) {
        document.paragraph(overview::RISKY);
    }
    document.losses(report);
    document.even(report);
    document.wins(report);
    for page in sections::PAGES {
        let of_page: Vec<_> = report
            .comparisons
            .iter()
            .filter(|comparison| comparison.case.page == page)
            .collect();
        if !of_page.is_empty() {
            let (_, heading, about) = sections::words(page);
            document.heading(2, heading);
            document.paragraph(about);
            document.page(report, &of_page);
        }
    }
    document.validation(report);
    document.heading(2, "Machine");
    let machine = &info.machine;
    let memory = mebibytes(machine.memory_bytes);
    let rows = [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.to_string()),
        ("memory", memory),
        ("kernel", machine.kernel.clone()),
        ("file system", machine.filesystem.clone()),
        ("compiler", machine.rustc.clone()),
        (
            "commit",
            info.commit
                .clone()
                .unwrap_or_else(|| "not known".to_owned()),
        ),
        ("profile", info.profile.clone()),
        ("started", info.started.clone()),
        (
            "finished",
            info.finished
                .clone()
                .unwrap_or_else(|| "not finished".to_owned()),
        ),
    ];
    document.table(
        &["what", "value"],
        rows.map(|(name, value)| vec![name.to_owned(), value]),
    );
    document.engines(report);
    document.heading(2, "Run it again");
    for case in &info.cases {
        document.paragraph(&escaped(&case.title));
        document.lines.extend([
            "```sh".to_owned(),
            command(case, info.repeat),
            "```".to_owned(),
            String::new(),
        ]);
    }
    let mut text = document.lines.join("\n");
    text.truncate(text.trim_end().len());
    text.push('\n');
    (text, document.drawings)
}

/// Text of others, so that it cannot be taken for a link, a tag or the end of a cell.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' => escaped.extend(['\\', letter]),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped.trim().to_owned()
}

impl Document {
    fn heading(&mut self, level: usize, text: &str) {
        self.lines.extend([
            format!("{} {}", "#".repeat(level), escaped(text)),
            String::new(),
        ]);
    }

    fn paragraph(&mut self, text: &str) {
        self.lines.extend([text.to_owned(), String::new()]);
    }

    /// Cells are escaped here.
    fn table<H: Display>(&mut self, headings: &[H], rows: impl IntoIterator<Item = Vec<String>>) {
        let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        self.lines.push(row(headings
            .iter()
            .map(|heading| escaped(&heading.to_string()))
            .collect()));
        self.lines
            .push(row(headings.iter().map(|_| "---".to_owned()).collect()));
        for cells in rows {
            self.lines
                .push(row(cells.iter().map(|cell| escaped(cell)).collect()));
        }
        self.lines.push(String::new());
    }

    fn verdicts(&mut self, report: &Compared<'_>, verdicts: &[&Verdict<'_>]) {
        if verdicts.is_empty() {
            return self.paragraph("None.");
        }
        let headings = [
            "ratio",
            "case",
            "figure",
            "best other",
            "theirs",
            "ours",
            "durability",
            "runs, theirs : ours",
        ];
        self.table(
            &headings,
            verdicts.iter().map(|verdict| {
                let unit = verdict.name.kind().unit;
                let mut other = report.palette.label(verdict.other);
                if let Some(words) = verdict.keeper_words() {
                    other = format!("{other}; {words}");
                }
                let mut ours = format::text(unit, verdict.ours_median);
                if verdict.ours != OURS {
                    ours = format!("{ours} ({})", verdict.ours);
                }
                if let Some((sibling, median)) = verdict.sibling {
                    ours = format!("{ours}; {sibling} {}", format::text(unit, median));
                }
                vec![
                    verdict.ratio_words(),
                    verdict.case.title.clone(),
                    verdict.name.words(),
                    other,
                    format::text(unit, verdict.others_median),
                    ours,
                    verdict.durability.clone(),
                    verdict.runs_words(),
                ]
            }),
        );
    }

    fn losses(&mut self, report: &Compared<'_>) {
        self.heading(2, "Where others are faster");
        for comparison in report
            .comparisons
            .iter()
            .filter(|comparison| comparison.ours_is_missing())
        {
            self.paragraph(&format!(
                "Without a figure of ours: {}.",
                escaped(&comparison.case.title)
            ));
        }
        self.standing(report, Standing::Behind);
    }

    fn even(&mut self, report: &Compared<'_>) {
        self.heading(2, "Where the runs do not say");
        self.standing(report, Standing::Even);
    }

    fn wins(&mut self, report: &Compared<'_>) {
        self.heading(2, "Where ours is first");
        self.standing(report, Standing::First);
    }

    /// The figures that say so of ours, in the order of their ranks.
    fn standing(&mut self, report: &Compared<'_>, wanted: Standing) {
        for (rank, title) in RANKS {
            self.heading(3, title);
            self.verdicts(report, &standing(&report.verdicts, rank, wanted));
        }
    }

    fn charts(&mut self, cards: Vec<Card>) {
        for card in cards {
            let title = escaped(&card.title);
            self.paragraph(&format!("**{title}** ({})", escaped(&card.note)));
            self.paragraph(&format!("![{title}]({CHARTS_DIRECTORY}/{}.svg)", card.file));
            self.drawings
                .push((card.file, chart::standalone(&card.drawing)));
        }
    }

    fn page(&mut self, report: &Compared<'_>, comparisons: &[&Comparison<'_>]) {
        self.glance(report, comparisons);
        for (sweep, of_sweep) in sections::sweeps(comparisons) {
            self.heading(3, &format!("By {}", sweep.words()));
            self.paragraph(&format!("`{}`", sweep.common));
            self.charts(cards::of_sweep(&sweep, &of_sweep, &report.palette));
            for name in cards::sweep_figures(&of_sweep) {
                let durability = of_sweep.first().map_or("not known", |first| {
                    first.durability_of(name.phase.as_deref())
                });
                let words = format!("{} (durability {durability})", name.words());
                self.paragraph(&escaped(&words));
                let mut headings = vec!["engine".to_owned()];
                headings.extend(sweep.cases.iter().map(|(number, _)| format::plain(*number)));
                let rows = cards::sweep_engines(&of_sweep)
                    .into_iter()
                    .map(|engine| sweep_row(report, &of_sweep, &name, engine));
                self.table(&headings, rows.collect::<Vec<_>>());
            }
        }
        for comparison in comparisons {
            self.case(report, comparison);
        }
    }

    fn case(&mut self, report: &Compared<'_>, comparison: &Comparison<'_>) {
        self.heading(3, &comparison.case.title);
        self.paragraph(&format!(
            "Durability: {}. Case `{}`.",
            escaped(&comparison.durability),
            comparison.case.id
        ));
        if comparison.rows.is_empty() {
            return self.paragraph("No run of this case has passed: there are no figures.");
        }
        self.charts(cards::of_case(comparison, &report.palette));
        let shown: Vec<usize> = (0..comparison.engines.len())
            .filter(|&engine| !comparison.reports[engine].is_empty())
            .collect();
        let mut headings = vec!["figure".to_owned()];
        headings.extend(
            shown
                .iter()
                .map(|&engine| report.palette.label(comparison.engines[engine])),
        );
        let rows = comparison.rows.iter();
        let rows = rows.filter(|row| !sections::is_only_latency(row));
        let rows = rows.map(|row| {
            let mut cells = vec![row.name.words()];
            cells.extend(shown.iter().map(|&engine| match row.cells[engine] {
                None => "–".to_owned(),
                Some(spread) => {
                    let text = |value: f64| format::text(row.kind().unit, value);
                    match spread.runs {
                        1 => text(spread.median),
                        _ => format!(
                            "{} ({} – {})",
                            text(spread.median),
                            text(spread.min),
                            text(spread.max)
                        ),
                    }
                }
            }));
            cells
        });
        self.impact(report, comparison);
        self.table(&headings, rows.collect::<Vec<_>>());
        self.latencies(report, comparison);
    }

    /// Every speed of the page as a ratio to ours.
    fn glance(&mut self, report: &Compared<'_>, comparisons: &[&Comparison<'_>]) {
        let engines = sections::glance_engines(comparisons);
        if engines.is_empty() {
            return;
        }
        self.heading(3, "At a glance");
        self.paragraph(sections::GLANCE_NOTE);
        let mut headings = vec!["case".to_owned(), "figure".to_owned()];
        headings.extend(engines.iter().map(|engine| report.palette.label(engine)));
        let mut rows = Vec::new();
        for comparison in comparisons {
            for row in sections::speeds(comparison) {
                let mut cells = vec![comparison.case.title.clone(), row.name.words()];
                cells.extend(engines.iter().map(|engine| {
                    sections::glance_ratio(comparison, row, engine)
                        .map_or_else(|| "–".to_owned(), format::times)
                }));
                rows.push(cells);
            }
        }
        self.table(&headings, rows);
    }

    fn impact(&mut self, report: &Compared<'_>, comparison: &Comparison<'_>) {
        let rows = sections::impacts(comparison);
        if rows.is_empty() {
            return;
        }
        self.heading(4, sections::IMPACT_TITLE);
        let rate = |rate: f64| format::text(Unit::PerSecond, rate);
        let cells = |row: &sections::Impact| {
            vec![
                report.palette.label(comparison.engines[row.engine]),
                rate(row.alone),
                rate(row.beside),
                row.change(),
                row.reads.map_or_else(|| "–".to_owned(), rate),
                comparison.durability.clone(),
            ]
        };
        self.table(&sections::IMPACT_HEADINGS, rows.iter().map(cells));
        self.heading(4, "Figures");
    }

    fn latencies(&mut self, report: &Compared<'_>, comparison: &Comparison<'_>) {
        let rows = sections::latency_rows(comparison);
        if rows.is_empty() {
            return;
        }
        self.heading(4, "Latency");
        let mut headings = vec!["phase", "engine"];
        headings.extend(LATENCIES.map(|(_, heading)| heading));
        headings.push("durability");
        let time = |value: f64| format::text(Unit::Microseconds, value);
        let cells = |row: &sections::LatencyRow<'_>| {
            let mut cells = vec![
                row.phase.replace('_', " "),
                report.palette.label(comparison.engines[row.engine]),
            ];
            let times = row.values.iter();
            cells.extend(times.map(|value| value.map_or_else(|| "–".to_owned(), time)));
            cells.push(comparison.durability_of(Some(row.phase)).to_owned());
            cells
        };
        self.table(&headings, rows.iter().map(cells));
    }

    fn validation(&mut self, report: &Compared<'_>) {
        self.heading(2, "Validation");
        self.paragraph("A run has figures only if all checks of its workload passed. Medians are over the runs that passed.");
        let matrix = status::matrix(report.results, &report.comparisons);
        let mut headings = vec!["case".to_owned()];
        headings.extend(
            matrix
                .engines
                .iter()
                .map(|engine| report.palette.label(engine)),
        );
        let rows = report
            .comparisons
            .iter()
            .zip(&matrix.rows)
            .map(|(comparison, row)| {
                let mut cells = vec![comparison.case.title.clone()];
                cells.extend(row.iter().map(|status| match status {
                    Status::NotPlanned => String::new(),
                    Status::Pending => "not run".to_owned(),
                    Status::NotApplicable => "n/a".to_owned(),
                    Status::Ran { passed, runs } => format!("{passed} of {runs} passed"),
                }));
                cells
            });
        self.table(&headings, rows.collect::<Vec<_>>());
        let problems = status::problems(report.results, &report.comparisons);
        if !problems.is_empty() {
            self.heading(3, "Runs without figures");
            self.table(
                &["case", "engine", "rounds", "what", "reason"],
                problems.iter().map(|problem| {
                    let words = [
                        problem.case,
                        problem.engine,
                        &problem.rounds(),
                        problem.what,
                        &problem.reason,
                    ];
                    words.map(str::to_owned).to_vec()
                }),
            );
        }
        self.heading(3, "What was checked");
        for comparison in &report.comparisons {
            for (engine, reports) in comparison.engines.iter().zip(&comparison.reports) {
                for first in reports.iter().take(1) {
                    let checks = escaped(&first.checks.join("; "));
                    self.lines.push(format!(
                        "- {}, {}: {checks}",
                        escaped(&comparison.case.title),
                        escaped(engine)
                    ));
                }
            }
        }
        self.lines.push(String::new());
    }

    fn engines(&mut self, report: &Compared<'_>) {
        self.heading(2, "Engines and their settings");
        if overview::has_weaker(&report.results.info) {
            self.paragraph(overview::WEAKER);
        }
        for entry in &report.results.info.engines {
            let remark = match palette::remark(&entry.capabilities) {
                remark if remark.is_empty() => remark,
                remark => format!(", {remark}"),
            };
            self.paragraph(&format!(
                "**{}** {}{remark}",
                escaped(&entry.name),
                escaped(&entry.description.version)
            ));
            let lines = entry
                .description
                .settings
                .iter()
                .map(|line| format!("- {}", escaped(line)));
            self.lines.extend(lines);
            for (cases, settings) in status::other_settings(&report.comparisons, entry) {
                self.lines.push(format!(
                    "- in {}: {}",
                    escaped(&cases.join(", ")),
                    escaped(&settings.join("; "))
                ));
            }
            self.lines.push(String::new());
        }
    }
}

fn sweep_row(
    report: &Compared<'_>,
    comparisons: &[&Comparison<'_>],
    name: &Name,
    engine: &str,
) -> Vec<String> {
    let cell = |comparison: &&Comparison<'_>| match cards::median(comparison, name, engine) {
        Some(value) => format::text(name.kind().unit, value),
        None => "–".to_owned(),
    };
    let mut cells = vec![report.palette.label(engine)];
    cells.extend(comparisons.iter().map(cell));
    cells
}
