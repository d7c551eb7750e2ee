//! The charts of a case and of a sweep, each with its heading: what the page and the Markdown file both show.
use super::chart::bars::{self, Bar};
use super::chart::lines::{self, Axis, Line, Lines};
use super::chart::ranges::{self, Range};
use super::compare::{Comparison, Row};
use super::figures::{Better, Name, Rank, Unit};
use super::format;
use super::palette::Palette;
use super::sweep::Sweep;
use crate::report::{Phase, Report, Series};
use maud::Markup;

pub struct Card {
    pub title: String,
    /// Unit, direction, durability.
    pub note: String,
    pub drawing: Markup,
    /// The name of the chart as a file, without its ending.
    pub file: String,
}

/// Seconds that a phase must have for a chart over time.
const SECONDS_MIN: usize = 3;

/// All charts of a case: throughput and time, then what is over time, latency, size and memory.
pub fn of_case(comparison: &Comparison<'_>, palette: &Palette) -> Vec<Card> {
    let is_size = |row: &Row| row.kind().unit == Unit::Bytes;
    let in_bars = |row: &&Row| row.rank() == Rank::Primary && row.name.figure != "worst_second";
    let bars = |row: &Row| bar_card(comparison, palette, row);
    let rows = &comparison.rows;
    let mut cards: Vec<Card> = rows
        .iter()
        .filter(in_bars)
        .filter(|row| !is_size(row))
        .filter_map(bars)
        .collect();
    cards.extend(over_time(comparison, palette));
    cards.extend(series(comparison, palette));
    cards.extend(latencies(comparison, palette));
    cards.extend(
        rows.iter()
            .filter(in_bars)
            .filter(|row| is_size(row))
            .filter_map(bars),
    );
    cards.extend(
        rows.iter()
            .filter(|row| row.rank() == Rank::Secondary && is_size(row))
            .filter_map(bars),
    );
    cards
}

fn direction(better: Option<Better>) -> &'static str {
    match better {
        Some(Better::Higher) => "higher is better",
        Some(Better::Lower) => "lower is better",
        None => "",
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// A title as a part of a file's name.
fn file_part(text: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    text.chars().map(plain).collect()
}

fn file_of(comparison: &Comparison<'_>, name: &Name) -> String {
    let phase = name.phase.as_deref().unwrap_or("run");
    file_part(&format!("{}-{phase}-{}", comparison.case.id, name.figure))
}

fn bar_card(comparison: &Comparison<'_>, palette: &Palette, row: &Row) -> Option<Card> {
    let kind = row.kind();
    let ours = comparison.ours;
    let own = ours.and_then(|ours| row.cells[ours]);
    let mut bars: Vec<Bar> = row
        .cells
        .iter()
        .enumerate()
        .filter_map(|(engine, cell)| {
            let spread = (*cell)?;
            let remark = own
                .filter(|own| own.median > 0.0 && !comparison.weaker[engine])
                .map(|own| format::times(spread.median / own.median));
            Some(Bar {
                mark: palette.mark(comparison.engines[engine], ours == Some(engine)),
                spread,
                value: format::text(kind.unit, spread.median),
                remark: remark.unwrap_or_default(),
            })
        })
        .collect();
    if bars.is_empty() {
        return None;
    }
    bars.sort_by(|a, b| match kind.better {
        Some(Better::Lower) => a.spread.median.total_cmp(&b.spread.median),
        _ => b.spread.median.total_cmp(&a.spread.median),
    });
    let title = capitalised(&row.name.words());
    let label = format!("{}. {title}", comparison.case.title);
    Some(Card {
        note: note(&[
            direction(kind.better),
            &durability(comparison, row.name.phase.as_deref()),
        ]),
        drawing: bars::draw(&label, &bars),
        file: file_of(comparison, &row.name),
        title,
    })
}

fn note(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(" · ")
}

fn durability(comparison: &Comparison<'_>, phase: Option<&str>) -> String {
    format!("durability {}", comparison.durability_of(phase))
}

/// The run that stands for an engine where runs cannot be put together: the one whose time is in the middle.
fn middle<'r>(reports: &[&'r Report]) -> Option<&'r Report> {
    let mut reports = reports.to_vec();
    reports.sort_by(|a, b| a.wall_seconds.total_cmp(&b.wall_seconds));
    reports.get(reports.len() / 2).copied()
}

/// The engines with the run that stands for each.
fn middles<'a, 'r>(
    comparison: &'a Comparison<'r>,
) -> impl Iterator<Item = (usize, &'r Report)> + 'a {
    comparison
        .reports
        .iter()
        .enumerate()
        .filter_map(|(engine, reports)| Some((engine, middle(reports)?)))
}

/// Without duplicates, in the order of first appearance.
fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

fn over_time(comparison: &Comparison<'_>, palette: &Palette) -> Vec<Card> {
    let per_second = |phase: &Phase| {
        let seconds = &phase.steadiness.as_ref()?.per_second;
        (seconds.len() >= SECONDS_MIN).then(|| seconds.clone())
    };
    let phases = distinct(middles(comparison).flat_map(|(_, report)| {
        report
            .phases
            .iter()
            .filter(|phase| per_second(phase).is_some())
            .map(|phase| phase.name.clone())
    }));
    let card = |phase: &String| {
        let lines = middles(comparison)
            .filter_map(|(engine, report)| {
                let seconds = per_second(report.phase(phase)?)?;
                let point = |(second, &ops): (usize, &u64)| ((second + 1) as f64, ops as f64);
                Some(Line {
                    mark: palette.mark(comparison.engines[engine], comparison.ours == Some(engine)),
                    points: seconds.iter().enumerate().map(point).collect(),
                })
            })
            .collect();
        let title = format!(
            "{}, second by second",
            capitalised(&phase.replace('_', " "))
        );
        Card {
            note: note(&[
                "operations in each second",
                "the middle run",
                &durability(comparison, Some(phase)),
            ]),
            drawing: lines::draw(Lines {
                label: &format!("{}. {title}", comparison.case.title),
                x_label: "seconds from the start",
                axis: Axis::Number,
                unit: Unit::PerSecond,
                lines,
            }),
            file: file_part(&format!("{}-{phase}-over-time", comparison.case.id)),
            title,
        }
    };
    phases.iter().map(card).collect()
}

/// Larger ranges of x are drawn by decades, if a linear axis would crowd most points at its beginning.
const LINEAR_RANGE_MAX: f64 = 50.0;
/// The part of a linear axis in which half of the points are too many.
const CROWDED: f64 = 0.2;

/// Sizes that grow tenfold from point to point need decades; two hundred rounds, one after another, do not.
fn axis_of(found: &[(usize, &Series)]) -> Axis {
    let mut x: Vec<f64> = found
        .iter()
        .flat_map(|(_, series)| &series.points)
        .map(|point| point.0)
        .collect();
    x.sort_by(f64::total_cmp);
    let (Some(&min), Some(&max)) = (x.first(), x.last()) else {
        return Axis::Number;
    };
    let is_wide = min > 0.0 && max / min > LINEAR_RANGE_MAX;
    if is_wide && x[x.len() / 2] <= max * CROWDED {
        Axis::Decades
    } else {
        Axis::Number
    }
}

fn series(comparison: &Comparison<'_>, palette: &Palette) -> Vec<Card> {
    let names = distinct(
        middles(comparison)
            .flat_map(|(_, report)| report.series.iter().map(|series| series.name.clone())),
    );
    let card = |name: &String| {
        let found: Vec<_> = middles(comparison)
            .filter_map(|(engine, report)| {
                Some((
                    engine,
                    report.series.iter().find(|series| series.name == *name)?,
                ))
            })
            .filter(|(_, series)| !series.points.is_empty())
            .collect();
        let (_, first) = found.first()?;
        let lines = found
            .iter()
            .map(|(engine, series)| Line {
                mark: palette.mark(
                    comparison.engines[*engine],
                    comparison.ours == Some(*engine),
                ),
                points: series.points.clone(),
            })
            .collect();
        let title = capitalised(&name.replace('_', " "));
        Some(Card {
            note: note(&[
                &first.y_label.replace('_', " "),
                "the middle run",
                &durability(comparison, None),
            ]),
            drawing: lines::draw(Lines {
                label: &format!("{}. {title}", comparison.case.title),
                x_label: &first.x_label.replace('_', " "),
                axis: axis_of(&found),
                unit: Unit::Plain,
                lines,
            }),
            file: file_part(&format!("{}-series-{name}", comparison.case.id)),
            title,
        })
    };
    names.iter().filter_map(card).collect()
}

fn latencies(comparison: &Comparison<'_>, palette: &Palette) -> Vec<Card> {
    let row = |phase: &Option<String>, figure: &str| {
        comparison
            .rows
            .iter()
            .find(|row| row.name.figure == figure && row.name.phase == *phase)
    };
    let card = |median: &Row| {
        let phase = &median.name.phase;
        let [p99, p999, max] =
            ["latency_p99", "latency_p999", "latency_max"].map(|figure| row(phase, figure));
        let (p99, p999, max) = (p99?, p999?, max?);
        let mut ranges: Vec<Range> = (0..comparison.engines.len())
            .filter_map(|engine| {
                Some(Range {
                    mark: palette.mark(comparison.engines[engine], comparison.ours == Some(engine)),
                    p50: median.cells[engine]?.median,
                    p99: p99.cells[engine]?.median,
                    p999: p999.cells[engine]?.median,
                    max: max.cells[engine]?.median,
                })
            })
            .collect();
        ranges.sort_by(|a, b| a.p99.total_cmp(&b.p99));
        let title = capitalised(&format!("{}: latency", median.name.phase_words()?));
        Some(Card {
            note: note(&[
                "median, p99, p99.9, longest",
                "lower is better",
                &durability(comparison, phase.as_deref()),
            ]),
            drawing: ranges::draw(&format!("{}. {title}", comparison.case.title), &ranges),
            file: file_of(comparison, &median.name),
            title,
        })
    };
    comparison
        .rows
        .iter()
        .filter(|row| row.name.figure == "latency_p50")
        .filter_map(card)
        .collect()
}

/// The figures of a sweep: primary ones that an engine has in at least two cases.
pub fn sweep_figures(comparisons: &[&Comparison<'_>]) -> Vec<Name> {
    let mut names: Vec<(Name, usize)> = Vec::new();
    for row in comparisons.iter().flat_map(|comparison| &comparison.rows) {
        if row.rank() != Rank::Primary || row.name.figure == "worst_second" {
            continue;
        }
        match names.iter_mut().find(|(name, _)| *name == row.name) {
            Some((_, cases)) => *cases += 1,
            None => names.push((row.name.clone(), 1)),
        }
    }
    names
        .into_iter()
        .filter(|(_, cases)| *cases >= 2)
        .map(|(name, _)| name)
        .collect()
}

/// All engines of some cases, in the order of their first appearance.
pub fn sweep_engines<'r>(comparisons: &[&Comparison<'r>]) -> Vec<&'r str> {
    let mut engines = Vec::new();
    for engine in comparisons
        .iter()
        .flat_map(|comparison| &comparison.engines)
    {
        if !engines.contains(engine) {
            engines.push(*engine);
        }
    }
    engines
}

/// The median of a figure of an engine in a case.
pub fn median(comparison: &Comparison<'_>, name: &Name, engine: &str) -> Option<f64> {
    let row = comparison.rows.iter().find(|row| row.name == *name)?;
    let position = comparison
        .engines
        .iter()
        .position(|known| *known == engine)?;
    Some(row.cells[position]?.median)
}

/// A chart for each figure of a sweep. `comparisons` are those of the sweep's cases, in its order.
pub fn of_sweep(
    sweep: &Sweep<'_>,
    comparisons: &[&Comparison<'_>],
    palette: &Palette,
) -> Vec<Card> {
    let labels: Vec<String> = sweep
        .cases
        .iter()
        .map(|(number, _)| format::compact(*number))
        .collect();
    let card = |name: Name| {
        let lines = sweep_engines(comparisons)
            .into_iter()
            .filter_map(|engine| {
                let points: Vec<(f64, f64)> = comparisons
                    .iter()
                    .enumerate()
                    .filter_map(|(at, comparison)| {
                        Some((at as f64, median(comparison, &name, engine)?))
                    })
                    .collect();
                let ours = comparisons
                    .iter()
                    .any(|c| c.ours.is_some_and(|ours| c.engines[ours] == engine));
                (!points.is_empty()).then(|| Line {
                    mark: palette.mark(engine, ours),
                    points,
                })
            })
            .collect();
        let option = sweep.words();
        let title = format!("{} by {option}", capitalised(&name.words()));
        let durability = comparisons
            .first()
            .map(|comparison| durability(comparison, name.phase.as_deref()))
            .unwrap_or_default();
        Card {
            note: note(&[direction(name.kind().better), &durability]),
            drawing: lines::draw(Lines {
                label: &title,
                x_label: &option,
                axis: Axis::Labels(labels.clone()),
                unit: name.kind().unit,
                lines,
            }),
            file: file_part(&format!(
                "sweep-{}-{}-{}",
                sweep.cases[0].1.id,
                sweep.option,
                name.words()
            )),
            title,
        }
    };
    sweep_figures(comparisons).into_iter().map(card).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_by_decades_and_rounds_are_not() {
        let is_by_decades = |x: &[f64]| {
            let series = Series {
                name: String::new(),
                x_label: String::new(),
                y_label: String::new(),
                points: x.iter().map(|&x| (x, 1.0)).collect(),
            };
            matches!(axis_of(&[(0, &series)]), Axis::Decades)
        };
        assert!(is_by_decades(&[1.0, 100.0, 1_000.0, 10_000.0, 1_000_000.0]));
        assert!(!is_by_decades(&[1.0, 2.0, 4.0, 8.0]));
        assert!(!is_by_decades(&[0.0, 100.0, 1_000.0]));
        let rounds: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!(!is_by_decades(&rounds));
    }
}
