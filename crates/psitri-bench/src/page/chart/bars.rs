//! A bar for each engine, the best first, with its figure and its ratio to ours in text. A thin line spans the runs.
use super::{Mark, WIDTH, coordinate, line, nothing, svg, text};
use crate::summary::Spread;
use maud::{Markup, html};

pub struct Bar {
    pub mark: Mark,
    pub spread: Spread,
    /// The median with its unit.
    pub value: String,
    /// Beside the value, muted.
    pub remark: String,
}

const ROW: f64 = 38.0;
const BAR_HEIGHT: f64 = 10.0;
const MARGIN: f64 = 8.0;

pub fn draw(label: &str, bars: &[Bar]) -> Markup {
    let max = bars.iter().map(|bar| bar.spread.max).fold(0.0, f64::max);
    let full = WIDTH - 2.0 * MARGIN;
    let x = |value: f64| MARGIN + if max > 0.0 { full * value / max } else { 0.0 };
    let height = ROW * bars.len() as f64 + 4.0;
    let rows = html! {
        @for (row, bar) in bars.iter().enumerate() {
            @let top = ROW * row as f64 + 2.0;
            @let bar_top = top + 21.0;
            @let middle = bar_top + BAR_HEIGHT / 2.0;
            g.ours[bar.mark.ours] {
                title { (bar.mark.label) ": " (bar.value) " " (bar.remark) }
                @if bar.mark.ours {
                    rect.band x="0" y=(coordinate(top)) width=(coordinate(WIDTH)) height=(coordinate(ROW - 1.0)) rx="5" {}
                }
                (text("name", MARGIN, top + 15.0, &bar.mark.label))
                text.value x=(coordinate(WIDTH - MARGIN)) y=(coordinate(top + 15.0)) {
                    (bar.value) @if !bar.remark.is_empty() { tspan.remark dx="7" { (bar.remark) } }
                }
                rect.track x=(coordinate(MARGIN)) y=(coordinate(bar_top)) width=(coordinate(full)) height=(coordinate(BAR_HEIGHT)) rx="3" {}
                rect.bar.(bar.mark.class) x=(coordinate(MARGIN)) y=(coordinate(bar_top)) rx="3"
                    width=(coordinate((x(bar.spread.median) - MARGIN).max(2.0))) height=(coordinate(BAR_HEIGHT)) {}
                @if bar.spread.runs > 1 {
                    (line("spread", (x(bar.spread.min), middle), (x(bar.spread.max), middle)))
                } @else {
                    (nothing())
                }
            }
        }
    };
    svg(height, label, rows)
}
