//! A section of the page for each published page: what it measures, a glance at all ratios, sweeps, then each case with its charts and tables.
use super::cards::{self, Card};
use super::compare::{Comparison, Row, is_other};
use super::figures::{LATENCIES, Name, Rank, Unit};
use super::format;
use super::palette::Palette;
use super::sweep::{self, Sweep};
use crate::suite::results::Page;
use maud::{Markup, html};

/// In the order of the page.
pub const PAGES: [Page; 6] = [
    Page::Bank,
    Page::Upsert,
    Page::Emdb,
    Page::Sqlite,
    Page::Tides,
    Page::DbBench,
];

/// The anchor, the heading, and what the page measures.
pub fn words(page: Page) -> (&'static str, &'static str, &'static str) {
    match page {
        Page::Bank => (
            "bank",
            "Bank transfers",
            "A transfer reads two balances, writes both and appends a log entry, in one transaction. Some accounts are hot. Every engine gets the \
             same attempts, and the balances and log entries are checked afterwards. Engines with a call for it, which is psitri, are told the accounts \
             of up to eight transfers of the same commit at once; the reader hands over 32 reads at a time, which psitri and rocksdb look up at \
             once. The case that has each transfer and each read on its own shows what that brings.",
        ),
        Page::Upsert => (
            "upsert",
            "Random upserts",
            "Rounds of upserts of random keys into a growing database: what counts is how throughput holds as the data grows, and how bad \
             the worst round is.",
        ),
        Page::Emdb => (
            "emdb",
            "Key-value phases",
            "Loads, single and batched commits, reads by one and by many threads, scans, removals, and the size before and after compaction.",
        ),
        Page::Sqlite => (
            "sqlite",
            "SQL",
            "The bank, inserts of one row and TATP, beside SQLite. SQLite is given statements; psitri has no SQL and runs the same transactions \
             through its own interface.",
        ),
        Page::Tides => (
            "tides",
            "Mixed key-value loads",
            "Writes, reads, deletes, seeks and range scans by several threads, over patterns of keys, batch sizes and value sizes, with latency and \
             amplification.",
        ),
        Page::DbBench => (
            "db-bench",
            "db_bench",
            "The benchmarks of RocksDB's db_bench, written anew for this suite: every engine runs them through its own interface.",
        ),
    }
}

/// The section of a page, if it has cases.
pub fn section(page: Page, comparisons: &[Comparison<'_>], palette: &Palette) -> Markup {
    let of_page: Vec<&Comparison<'_>> = comparisons
        .iter()
        .filter(|comparison| comparison.case.page == page)
        .collect();
    let (anchor, heading, about) = words(page);
    html! {
        @if !of_page.is_empty() {
            section id=(anchor) {
                h2 { (heading) }
                p.about { (about) }
                (glance(&of_page, palette))
                @for sweep in sweeps(&of_page) {
                    (sweep_article(&sweep.0, &sweep.1, palette))
                }
                @for comparison in &of_page {
                    (case_article(comparison, palette))
                }
            }
        }
    }
}

/// The sweeps among the cases, each with the comparisons of its cases.
pub fn sweeps<'a, 'r>(
    comparisons: &[&'a Comparison<'r>],
) -> Vec<(Sweep<'r>, Vec<&'a Comparison<'r>>)> {
    let cases: Vec<_> = comparisons
        .iter()
        .map(|comparison| comparison.case)
        .collect();
    let with_comparisons = |sweep: Sweep<'r>| {
        let of_case = |id: &str| {
            comparisons
                .iter()
                .find(|comparison| comparison.case.id == id)
                .copied()
        };
        let found = sweep
            .cases
            .iter()
            .filter_map(|(_, case)| of_case(&case.id))
            .collect();
        (sweep, found)
    };
    sweep::find(&cases)
        .into_iter()
        .map(with_comparisons)
        .collect()
}

/// Figures of throughput and time: what the glance shows.
fn is_speed(row: &Row) -> bool {
    row.rank() == Rank::Primary
        && row.kind().unit != Unit::Bytes
        && row.name.figure != "worst_second"
}

pub const GLANCE_NOTE: &str = "Speed as a multiple of ours: more than 1 is faster than psitri, whatever the figure's direction.";

/// The columns of the glance: whoever has figures and is compared with ours.
pub fn glance_engines<'r>(comparisons: &[&Comparison<'r>]) -> Vec<&'r str> {
    let is_compared = |comparison: &&Comparison<'_>, engine: &str| {
        let mut positions = 0..comparison.engines.len();
        positions.any(|position| {
            comparison.engines[position] == engine
                && !comparison.weaker[position]
                && !comparison.reports[position].is_empty()
        })
    };
    cards::sweep_engines(comparisons)
        .into_iter()
        .filter(|engine| {
            comparisons
                .iter()
                .all(|c| c.ours.is_none_or(|ours| c.engines[ours] != *engine))
        })
        .filter(|engine| comparisons.iter().any(|c| is_compared(c, engine)))
        .collect()
}

/// The rows of a case in the glance.
pub fn speeds<'a>(comparison: &'a Comparison<'_>) -> impl Iterator<Item = &'a Row> {
    comparison.rows.iter().filter(|row| is_speed(row))
}

pub fn glance_ratio(comparison: &Comparison<'_>, row: &Row, engine: &str) -> Option<f64> {
    let position = comparison.engines.iter().position(|known| *known == engine);
    position.and_then(|position| comparison.ratio(row, position))
}

/// Every speed of the page as a ratio to ours.
fn glance(comparisons: &[&Comparison<'_>], palette: &Palette) -> Markup {
    let engines = glance_engines(comparisons);
    html! {
        @if !engines.is_empty() {
            h3 { "At a glance" }
            p.note { (GLANCE_NOTE) }
            div.scroll tabindex="0" {
                table.glance {
                    thead { tr { th { "case" } @for engine in &engines { th.figure { (palette.label(engine)) } } } }
                    tbody {
                        @for comparison in comparisons {
                            @for row in speeds(comparison) {
                                tr {
                                    th scope="row" { a href=(format!("#{}", comparison.case.id)) { (comparison.case.title) } br; small { (row.name.words()) } }
                                    @for engine in &engines { (glance_cell(comparison, row, engine)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn glance_cell(comparison: &Comparison<'_>, row: &Row, engine: &str) -> Markup {
    let ratio = glance_ratio(comparison, row, engine);
    let class = match ratio {
        Some(ratio) if ratio > 1.0 && is_other(engine) => "figure faster",
        _ => "figure",
    };
    html! { td class=(class) { @match ratio { Some(ratio) => (format::times(ratio)), None => "–" } } }
}

fn sweep_article(sweep: &Sweep<'_>, comparisons: &[&Comparison<'_>], palette: &Palette) -> Markup {
    let engines = cards::sweep_engines(comparisons);
    let option = sweep.words();
    html! {
        article.sweep {
            h3 { "By " (option) }
            p.note { code { (sweep.common) } }
            (grid(&cards::of_sweep(sweep, comparisons, palette)))
            @for name in cards::sweep_figures(comparisons) {
                details {
                    summary { (name.words()) " by " (option) ", in figures" }
                    div.scroll tabindex="0" { table {
                        thead { tr { th { "engine" } @for (number, _) in &sweep.cases { th.figure { (format::plain(*number)) } } th { "durability" } } }
                        tbody { @for engine in &engines { (sweep_row(comparisons, &name, engine, palette)) } }
                    } }
                }
            }
        }
    }
}

fn sweep_row(
    comparisons: &[&Comparison<'_>],
    name: &Name,
    engine: &str,
    palette: &Palette,
) -> Markup {
    let ours = comparisons.iter().any(|comparison| {
        comparison
            .ours
            .is_some_and(|ours| comparison.engines[ours] == engine)
    });
    html! {
        tr.ours[ours] {
            th scope="row" { (palette.label(engine)) }
            @for comparison in comparisons {
                td.figure { @match cards::median(comparison, name, engine) {
                    Some(value) => (format::text(name.kind().unit, value)),
                    None => "–",
                } }
            }
            td { @for comparison in comparisons.iter().take(1) { (comparison.durability_of(name.phase.as_deref())) } }
        }
    }
}

fn grid(cards: &[Card]) -> Markup {
    html! {
        div.grid {
            @for card in cards {
                figure.card {
                    figcaption { strong { (card.title) } span.note { (card.note) } }
                    (card.drawing)
                }
            }
        }
    }
}

fn case_article(comparison: &Comparison<'_>, palette: &Palette) -> Markup {
    let case = comparison.case;
    let empty = comparison.rows.is_empty();
    let (compared, context): (Vec<&Row>, Vec<&Row>) = comparison
        .rows
        .iter()
        .filter(|row| !is_only_latency(row))
        .partition(|row| row.rank() != Rank::Context);
    html! {
        article id=(case.id) {
            h3 { (case.title) }
            p.chips {
                span.chip { "durability: " (comparison.durability) }
                span.chip { "workload: " (case.workload) }
                span.chip { code { (case.id) } }
            }
            @if empty {
                p.empty { "No run of this case has passed: there are no figures." }
            } @else {
                (grid(&cards::of_case(comparison, palette)))
                (impact(comparison, palette))
                (figures(comparison, &compared, palette))
                (latencies(comparison, palette))
                @if !context.is_empty() {
                    details { summary { "Further figures" } (figures(comparison, &context, palette)) }
                }
            }
        }
    }
}

/// Shown in the table of latencies and in no other.
pub fn is_only_latency(row: &Row) -> bool {
    let is_latency = LATENCIES
        .iter()
        .any(|(figure, _)| row.name.figure == *figure);
    is_latency && row.rank() == Rank::Context
}

/// The medians of an engine in a phase.
pub struct LatencyRow<'a> {
    pub phase: &'a str,
    /// As a position.
    pub engine: usize,
    /// In the order of [`LATENCIES`].
    pub values: [Option<f64>; LATENCIES.len()],
}

/// All latencies of a case, engine by engine in each phase.
pub fn latency_rows<'a>(comparison: &'a Comparison<'_>) -> Vec<LatencyRow<'a>> {
    let mut phases: Vec<&str> = Vec::new();
    for row in &comparison.rows {
        let Some(phase) = row.name.phase.as_deref() else {
            continue;
        };
        if row.name.figure == "latency_p50" && !phases.contains(&phase) {
            phases.push(phase);
        }
    }
    let mut found = Vec::new();
    for phase in phases {
        let rows = LATENCIES.map(|(figure, _)| {
            let is_it =
                |row: &&Row| row.name.figure == figure && row.name.phase.as_deref() == Some(phase);
            comparison.rows.iter().find(is_it)
        });
        for engine in 0..comparison.engines.len() {
            let values = rows.map(|row| Some(row?.cells[engine]?.median));
            if values.iter().any(Option::is_some) {
                found.push(LatencyRow {
                    phase,
                    engine,
                    values,
                });
            }
        }
    }
    found
}

fn latencies(comparison: &Comparison<'_>, palette: &Palette) -> Markup {
    let rows = latency_rows(comparison);
    html! {
        @if !rows.is_empty() {
            details {
                summary { "Latency, in figures" }
                div.scroll tabindex="0" { table {
                    thead { tr { th { "phase and engine" } @for (_, heading) in LATENCIES { th.figure { (heading) } } th { "durability" } } }
                    tbody { @for row in &rows {
                        tr.ours[comparison.ours == Some(row.engine)] {
                            th scope="row" { (palette.label(comparison.engines[row.engine])) br; small { (row.phase.replace('_', " ")) } }
                            @for value in row.values {
                                td.figure { @match value { Some(value) => (format::text(Unit::Microseconds, value)), None => "–" } }
                            }
                            td { (comparison.durability_of(Some(row.phase))) }
                        }
                    } }
                } }
            }
        }
    }
}

/// What a reader costs the writer of an engine.
pub struct Impact {
    /// As a position.
    pub engine: usize,
    pub alone: f64,
    pub beside: f64,
    pub reads: Option<f64>,
}

impl Impact {
    pub fn change(&self) -> String {
        format!("{:+.1} %", (self.beside / self.alone - 1.0) * 100.0)
    }
}

pub const IMPACT_TITLE: &str = "What a reader costs the writer";
pub const IMPACT_HEADINGS: [&str; 6] = [
    "engine",
    "write only",
    "beside a reader",
    "change",
    "reader",
    "durability",
];

/// Of the engines of which the workload measured both.
pub fn impacts(comparison: &Comparison<'_>) -> Vec<Impact> {
    let name = |phase: &str, figure: &str| Name {
        phase: Some(phase.to_owned()),
        figure: figure.to_owned(),
    };
    let rate = |phase: &str, figure: &str, engine: &str| {
        cards::median(comparison, &name(phase, figure), engine)
    };
    let of = |engine: usize| {
        let label = comparison.engines[engine];
        // Not all attempts succeed, and in the second phase fewer: those that do not write nothing.
        let both = |figure: &str| {
            Some((
                rate("write_only", figure, label)?,
                rate("write_read", figure, label)?,
            ))
        };
        let (alone, beside) = both("successes_per_second").or_else(|| both("ops_per_second"))?;
        Some(Impact {
            engine,
            alone,
            beside,
            reads: rate("write_read", "reads_per_second", label),
        })
    };
    (0..comparison.engines.len()).filter_map(of).collect()
}

fn impact(comparison: &Comparison<'_>, palette: &Palette) -> Markup {
    let rows = impacts(comparison);
    let [engine, figures @ .., durability] = IMPACT_HEADINGS;
    html! {
        @if !rows.is_empty() {
            h4 { (IMPACT_TITLE) }
            div.scroll tabindex="0" { table {
                thead { tr { th { (engine) } @for heading in figures { th.figure { (heading) } } th { (durability) } } }
                tbody { @for row in &rows {
                    tr.ours[comparison.ours == Some(row.engine)] {
                        th scope="row" { (palette.label(comparison.engines[row.engine])) }
                        td.figure { (format::text(Unit::PerSecond, row.alone)) }
                        td.figure { (format::text(Unit::PerSecond, row.beside)) }
                        td.figure { (row.change()) }
                        td.figure { @match row.reads { Some(reads) => (format::text(Unit::PerSecond, reads)), None => "–" } }
                        td { (comparison.durability) }
                    }
                } }
            } }
        }
    }
}

/// A row for each figure, a column for each engine: median, spread and ratio.
fn figures(comparison: &Comparison<'_>, rows: &[&Row], palette: &Palette) -> Markup {
    let shown: Vec<usize> = (0..comparison.engines.len())
        .filter(|&engine| !comparison.reports[engine].is_empty())
        .collect();
    html! {
        div.scroll tabindex="0" { table.figures {
            thead { tr {
                th { "figure" small { " (durability " (comparison.durability) ")" } }
                @for &engine in &shown { th.figure.ours[comparison.ours == Some(engine)] { (palette.label(comparison.engines[engine])) } }
            } }
            tbody { @for row in rows {
                @let best = comparison.best(row);
                tr {
                    th scope="row" { (row.name.words()) }
                    @for &engine in &shown {
                        td.figure.ours[comparison.ours == Some(engine)].best[best == Some(engine)] { (figure_cell(comparison, row, engine)) }
                    }
                }
            } }
        } }
    }
}

fn figure_cell(comparison: &Comparison<'_>, row: &Row, engine: usize) -> Markup {
    let unit = row.kind().unit;
    let own = comparison
        .ours
        .and_then(|ours| row.cells[ours])
        .filter(|own| own.median > 0.0 && !comparison.weaker[engine]);
    html! {
        @match row.cells[engine] {
            None => "–",
            Some(spread) => {
                (format::text(unit, spread.median))
                @if let Some(own) = own.filter(|_| comparison.ours != Some(engine)) {
                    " " span.ratio { (format::times(spread.median / own.median)) }
                }
                @if spread.runs > 1 {
                    br; small { (format::text(unit, spread.min)) " – " (format::text(unit, spread.max)) }
                }
            }
        }
    }
}
