//! A line for each engine over time or over a parameter, from zero upwards, with a legend in the order in which the lines end.
use super::{Mark, WIDTH, coordinate, line, svg, text, text_width, ticks_of};
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
    /// A positive number on a logarithmic axis; ticks are powers of ten.
    Decades,
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

/// At least, for short labels of the y axis.
const LEFT_MIN: f64 = 46.0;
/// Between a label of the y axis and the plot.
const LABEL_GAP: f64 = 6.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const PLOT_HEIGHT: f64 = 176.0;
const AXIS_HEIGHT: f64 = 38.0;
const LEGEND_ROW: f64 = 19.0;
/// More decades than these are not all labelled.
const DECADES_MAX: usize = 8;
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
    let is_logarithmic = matches!(chart.axis, Axis::Decades);
    if is_logarithmic {
        for point in chart.lines.iter_mut().flat_map(|line| &mut line.points) {
            point.0 = point.0.max(f64::MIN_POSITIVE).log10();
        }
    }
    let values = || chart.lines.iter().flat_map(|line| &line.points);
    let y_ticks = ticks_of(
        chart.unit,
        values().map(|point| point.1).fold(0.0, f64::max),
    );
    let y_labels = y_ticks.iter().map(|&tick| format::tick(chart.unit, tick));
    let left = y_labels
        .map(|label| text_width(&label) + LABEL_GAP)
        .fold(LEFT_MIN, f64::max);
    let y_max = y_ticks.last().copied().unwrap_or(1.0);
    let x_min = values().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let x_max = values()
        .map(|point| point.0)
        .fold(f64::NEG_INFINITY, f64::max);
    let (x_min, x_span) = match chart.axis {
        // Half a step on both sides.
        Axis::Labels(ref labels) => (-0.5, labels.len().max(1) as f64),
        Axis::Number | Axis::Decades if x_max > x_min => (x_min, x_max - x_min),
        Axis::Number | Axis::Decades => (x_min.min(0.0), 1.0),
    };
    let x = |value: f64| left + (WIDTH - left - RIGHT) * (value - x_min) / x_span;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - value / y_max);
    let bottom = TOP + PLOT_HEIGHT;
    let x_ticks: Vec<(f64, String)> = match &chart.axis {
        Axis::Labels(labels) => labels
            .iter()
            .enumerate()
            .map(|(at, label)| (at as f64, label.clone()))
            .collect(),
        Axis::Decades => {
            let (first, last) = (x_min.ceil() as i32, (x_min + x_span + 1e-9).floor() as i32);
            let every = (last - first + 1).max(1) as usize;
            (first..=last)
                .step_by(every.div_ceil(DECADES_MAX))
                .map(|power| (f64::from(power), format::compact(10f64.powi(power))))
                .collect()
        }
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
            (line("grid", (left, y(tick)), (WIDTH - RIGHT, y(tick))))
            (text("tick end", left - LABEL_GAP, y(tick) + 4.0, &format::tick(chart.unit, tick)))
        }
        @for (at, label) in &x_ticks {
            (text("tick middle", x(*at), bottom + 16.0, label))
        }
        (text("tick middle", left + (WIDTH - left - RIGHT) / 2.0, bottom + 31.0, chart.x_label))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the dots and the ticks of the x axis are.
    fn drawn(axis: Axis, x: &[f64]) -> (Vec<f64>, Vec<String>) {
        let mark = Mark {
            label: "psitri".to_owned(),
            class: "ours-0".to_owned(),
            ours: true,
            dashed: false,
        };
        let points = x.iter().map(|&x| (x, 1.0)).collect();
        let markup = draw(Lines {
            label: "a",
            x_label: "b",
            axis,
            unit: Unit::Plain,
            lines: vec![Line { mark, points }],
        });
        let after = |text: &str, part: &str, end: char| {
            let found = text.split(part).skip(1);
            let found = found.filter_map(|rest| Some(rest.split(end).next()?.to_owned()));
            found.collect::<Vec<_>>()
        };
        let dots = after(&markup.0, "cx=\"", '"');
        let dots = dots.iter().map(|x| x.parse().expect("a number")).collect();
        let ticks = after(&markup.0, "class=\"tick middle\"", '<');
        let ticks = ticks
            .iter()
            .filter_map(|tick| Some(tick.split_once('>')?.1.to_owned()))
            .collect();
        (dots, ticks)
    }

    #[test]
    fn decades_are_equal_steps() {
        let (dots, ticks) = drawn(Axis::Decades, &[1.0, 100.0, 10_000.0, 1_000_000.0]);
        for pair in dots.windows(2) {
            assert!(
                (pair[1] - pair[0] - (dots[3] - dots[0]) / 3.0).abs() < 0.05,
                "{dots:?}"
            );
        }
        assert_eq!(ticks, ["1", "10", "100", "1k", "10k", "100k", "1M", "b"]);
        let (dots, _) = drawn(Axis::Number, &[1.0, 100.0, 10_000.0, 1_000_000.0]);
        assert!(dots[2] - dots[0] < 10.0, "{dots:?}");
    }
}
