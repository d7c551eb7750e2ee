//! A line for each engine over time or over a parameter, from zero upwards, with a legend in the order in which the lines end.
use super::{Mark, WIDTH, coordinate, line, svg, text, text_width, ticks};
use crate::page::figures::Unit;
use crate::page::format;
use maud::{Markup, html};

pub struct Line {
    pub mark: Mark,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
}

/// What x means.
pub enum Axis {
    /// A number; ticks are round.
    Number,
    /// Positions 0, 1, 2 ... with these labels: equal steps, whatever the numbers.
    Labels(Vec<String>),
}

pub struct Lines<'a> {
    /// What is read aloud.
    pub label: &'a str,
    pub x_label: &'a str,
    pub axis: Axis,
    pub unit: Unit,
    pub lines: Vec<Line>,
}

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const PLOT_HEIGHT: f64 = 176.0;
const AXIS_HEIGHT: f64 = 38.0;
const LEGEND_ROW: f64 = 19.0;
/// More points than these are a line without dots.
const DOTS_MAX: usize = 16;

pub fn draw(mut chart: Lines<'_>) -> Markup {
    let end = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    // Ours last, so that nothing is drawn over it.
    chart.lines.sort_by(|a, b| {
        a.mark
            .ours
            .cmp(&b.mark.ours)
            .then(end(b).total_cmp(&end(a)))
    });
    let values = || chart.lines.iter().flat_map(|line| &line.points);
    let y_ticks = ticks(values().map(|point| point.1).fold(0.0, f64::max));
    let y_max = y_ticks.last().copied().unwrap_or(1.0);
    let x_min = values().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let x_max = values()
        .map(|point| point.0)
        .fold(f64::NEG_INFINITY, f64::max);
    let (x_min, x_span) = match chart.axis {
        // Half a step on both sides.
        Axis::Labels(ref labels) => (-0.5, labels.len().max(1) as f64),
        Axis::Number if x_max > x_min => (x_min, x_max - x_min),
        Axis::Number => (x_min.min(0.0), 1.0),
    };
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value - x_min) / x_span;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - value / y_max);
    let bottom = TOP + PLOT_HEIGHT;
    let x_ticks: Vec<(f64, String)> = match &chart.axis {
        Axis::Labels(labels) => labels
            .iter()
            .enumerate()
            .map(|(at, label)| (at as f64, label.clone()))
            .collect(),
        Axis::Number => (0..=4)
            .map(|tick| x_min + x_span * f64::from(tick) / 4.0)
            .map(|at| {
                (
                    at,
                    format::compact(if x_span > 8.0 { at.round() } else { at }),
                )
            })
            .collect(),
    };
    let (legend, legend_rows) = legend(&chart.lines, bottom + AXIS_HEIGHT);
    let content = html! {
        @for &tick in &y_ticks {
            (line("grid", (LEFT, y(tick)), (WIDTH - RIGHT, y(tick))))
            (text("tick end", LEFT - 6.0, y(tick) + 4.0, &format::tick(chart.unit, tick)))
        }
        @for (at, label) in &x_ticks {
            (text("tick middle", x(*at), bottom + 16.0, label))
        }
        (text("tick middle", LEFT + (WIDTH - LEFT - RIGHT) / 2.0, bottom + 31.0, chart.x_label))
        @for drawn in &chart.lines {
            g.ours[drawn.mark.ours].dashed[drawn.mark.dashed] {
                title { (drawn.mark.label) }
                @if drawn.points.len() > 1 {
                    polyline.line.(drawn.mark.class) points=(points(drawn, x, y)) {}
                }
                @if drawn.points.len() <= DOTS_MAX {
                    @for point in &drawn.points {
                        circle.dot.(drawn.mark.class) cx=(coordinate(x(point.0))) cy=(coordinate(y(point.1))) r="3" {
                            title { (drawn.mark.label) ": " (format::text(chart.unit, point.1)) }
                        }
                    }
                }
            }
        }
        (legend)
    };
    svg(
        bottom + AXIS_HEIGHT + legend_rows * LEGEND_ROW + 4.0,
        chart.label,
        content,
    )
}

fn points(line: &Line, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let texts: Vec<String> = line
        .points
        .iter()
        .map(|point| format!("{},{}", coordinate(x(point.0)), coordinate(y(point.1))))
        .collect();
    texts.join(" ")
}

/// The legend below `top`, and how many rows it has.
fn legend(lines: &[Line], top: f64) -> (Markup, f64) {
    let mut entries: Vec<&Line> = lines.iter().collect();
    // As they end, so that the eye finds the names in the order of the lines.
    let end = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    entries.sort_by(|a, b| end(b).total_cmp(&end(a)));
    let (mut left, mut row) = (8.0, 0.0);
    let mut placed = Vec::new();
    for entry in entries {
        let width = 26.0 + text_width(&entry.mark.label) + 12.0;
        if left > 8.0 && left + width > WIDTH {
            (left, row) = (8.0, row + 1.0);
        }
        placed.push((left, top + row * LEGEND_ROW + 8.0, entry));
        left += width;
    }
    let markup = html! {
        @for (left, middle, entry) in &placed {
            g.ours[entry.mark.ours].dashed[entry.mark.dashed] {
                line.line.(entry.mark.class) x1=(coordinate(*left)) y1=(coordinate(*middle)) x2=(coordinate(left + 18.0)) y2=(coordinate(*middle)) {}
                (text("name", left + 24.0, middle + 4.0, &entry.mark.label))
            }
        }
    };
    (markup, row + 1.0)
}
