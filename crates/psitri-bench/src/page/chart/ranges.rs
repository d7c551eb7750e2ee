//! Latencies of each engine on one logarithmic axis: a thick line from the median to p99, a thin one on to the longest.
use super::{Mark, WIDTH, coordinate, line, svg, text};
use crate::page::figures::Unit;
use crate::page::format;
use maud::{Markup, html};

/// In microseconds.
pub struct Range {
    pub mark: Mark,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

const ROW: f64 = 38.0;
const MARGIN: f64 = 12.0;
/// A nanosecond: what is shorter than the clock can tell is drawn there.
const SHORTEST: f64 = 0.001;

pub fn draw(label: &str, ranges: &[Range]) -> Markup {
    let values = || {
        ranges
            .iter()
            .flat_map(|range| [range.p50, range.p99, range.p999, range.max])
    };
    let decade = |value: f64| value.max(SHORTEST).log10();
    let low = values().map(decade).fold(f64::INFINITY, f64::min).floor();
    let high = values().map(decade).fold(low + 1.0, f64::max).ceil();
    let x = |value: f64| MARGIN + (WIDTH - 2.0 * MARGIN) * (decade(value) - low) / (high - low);
    let bottom = ROW * ranges.len() as f64 + 4.0;
    let decades: Vec<i32> = (low as i32..=high as i32).collect();
    let every = decades.len().div_ceil(6);
    let content = html! {
        @for (position, &power) in decades.iter().enumerate() {
            @let value = 10f64.powi(power);
            (line("grid", (x(value), 2.0), (x(value), bottom)))
            @if position % every == 0 {
                @let anchor = if position == 0 { "tick" } else if x(value) > WIDTH - 24.0 { "tick end" } else { "tick middle" };
                (text(anchor, x(value), bottom + 15.0, &format::text(Unit::Microseconds, value)))
            }
        }
        @for (row, range) in ranges.iter().enumerate() {
            @let top = ROW * row as f64 + 2.0;
            @let middle = top + 26.0;
            g.ours[range.mark.ours] {
                title { (range.mark.label) ": " (summary(range)) }
                @if range.mark.ours {
                    rect.band x="0" y=(coordinate(top)) width=(coordinate(WIDTH)) height=(coordinate(ROW - 1.0)) rx="5" {}
                }
                (text("name", 8.0, top + 15.0, &range.mark.label))
                text.value x=(coordinate(WIDTH - 8.0)) y=(coordinate(top + 15.0)) {
                    (format::text(Unit::Microseconds, range.p50))
                    tspan.remark dx="7" { "p99 " (format::text(Unit::Microseconds, range.p99)) }
                }
                line.thin.(range.mark.class) x1=(coordinate(x(range.p50))) y1=(coordinate(middle)) x2=(coordinate(x(range.max))) y2=(coordinate(middle)) {}
                line.thick.(range.mark.class) x1=(coordinate(x(range.p50))) y1=(coordinate(middle)) x2=(coordinate(x(range.p99))) y2=(coordinate(middle)) {}
                circle.dot.(range.mark.class) cx=(coordinate(x(range.p50))) cy=(coordinate(middle)) r="4" {}
                circle.dot.(range.mark.class) cx=(coordinate(x(range.p999))) cy=(coordinate(middle)) r="2.5" {}
                circle.dot.(range.mark.class) cx=(coordinate(x(range.max))) cy=(coordinate(middle)) r="1.5" {}
            }
        }
    };
    svg(bottom + 20.0, label, content)
}

fn summary(range: &Range) -> String {
    let time = |value: f64| format::text(Unit::Microseconds, value);
    format!(
        "median {}, p99 {}, p99.9 {}, longest {}",
        time(range.p50),
        time(range.p99),
        time(range.p999),
        time(range.max)
    )
}
