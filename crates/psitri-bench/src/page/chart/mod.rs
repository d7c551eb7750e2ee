//! Charts as SVG: bars ([`bars`]), lines ([`lines`]) and ranges on a logarithmic axis ([`ranges`]).
//!
//! Drawn here and not by a plotting crate, because the same chart must be readable 360 pixels wide on a phone and follow the light or
//! dark scheme of its reader: text is text in the page's font, colours are the page's variables, and every mark has a title that says
//! its figure. A drawing is [`WIDTH`] units wide and is shown at about that many pixels. [`standalone`] makes a file of a drawing.
pub mod bars;
pub mod lines;
pub mod ranges;

use super::figures::Unit;
use super::palette;
use maud::{Markup, PreEscaped, html};

pub const WIDTH: f64 = 360.0;

/// How an engine is drawn.
#[derive(Clone, Debug)]
pub struct Mark {
    pub label: String,
    /// The class that carries the colour.
    pub class: String,
    /// Ours, which stands out.
    pub ours: bool,
    /// More engines than colours: dashes tell the second use of a colour from the first.
    pub dashed: bool,
}

/// The drawing in its frame. `label` is what is read aloud.
fn svg(height: f64, label: &str, content: Markup) -> Markup {
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) xmlns="http://www.w3.org/2000/svg" {
            (content)
        }
    }
}

/// A drawing as a file of its own, with the colours in it.
pub fn standalone(drawing: &Markup) -> String {
    let style = format!(
        "<style>{}{}</style>",
        palette::css(),
        include_str!("chart.css")
    );
    let text = drawing.0.replacen('>', &format!(">{style}"), 1);
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}\n")
}

/// Two decimals are a hundredth of a pixel.
fn coordinate(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Round numbers from zero to at least `max`: at most six.
fn ticks(max: f64) -> Vec<f64> {
    if max <= 0.0 || !max.is_finite() {
        return vec![0.0, 1.0];
    }
    let rough = max / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let count = (max / step - 1e-9).ceil() as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
}

/// The same, round in the unit that the labels are in.
fn ticks_of(unit: Unit, max: f64) -> Vec<f64> {
    if unit != Unit::Bytes {
        return ticks(max);
    }
    let mut scale = 1.0;
    while max / scale >= 1024.0 {
        scale *= 1024.0;
    }
    let scaled = ticks(max / scale).into_iter();
    scaled.map(|tick| tick * scale).collect()
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! {
        line class=(class) x1=(coordinate(from.0)) y1=(coordinate(from.1)) x2=(coordinate(to.0)) y2=(coordinate(to.1)) {}
    }
}

fn text(class: &str, x: f64, y: f64, content: &str) -> Markup {
    html! { text class=(class) x=(coordinate(x)) y=(coordinate(y)) { (content) } }
}

/// About how wide a label is, for a legend that wraps.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.6
}

fn nothing() -> Markup {
    PreEscaped(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        assert_eq!(ticks(100.0), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        for max in [0.003, 1.0, 7.3, 376_691.0, 1.06e6] {
            let ticks = ticks(max);
            assert!(
                *ticks.last().expect("ticks") >= max * 0.999 && ticks.len() <= 6,
                "{max}: {ticks:?}"
            );
        }
    }

    #[test]
    fn ticks_of_sizes_are_round_in_their_unit() {
        const MIB: f64 = 1_048_576.0;
        assert_eq!(
            ticks_of(Unit::Bytes, 47.3 * MIB),
            [0.0, 20.0 * MIB, 40.0 * MIB, 60.0 * MIB]
        );
        assert_eq!(ticks_of(Unit::Bytes, 0.0), [0.0, 1.0]);
        assert_eq!(ticks_of(Unit::Seconds, 4.0), ticks(4.0));
    }

    #[test]
    fn a_file_of_a_drawing_has_its_own_style() {
        let text = standalone(&svg(10.0, "a < b", nothing()));
        assert!(text.contains("aria-label=\"a &lt; b\""));
        assert!(
            text.contains("xmlns=\"http://www.w3.org/2000/svg\"><style>"),
            "{text}"
        );
    }
}
