//! The colour of each engine, the same all over the page.
//!
//! Ours are orange, which no other is. The others have the hues of a qualitative palette that the colour-blind can tell apart; when there
//! are more engines than hues, dashes tell lines apart, and labels everything else. Names come first everywhere: colour is never the only
//! sign.
use super::chart::Mark;
use super::compare::{is_other, is_ours};
use crate::engine::Capabilities;
use crate::suite::results::Results;
use std::fmt::Write;

/// In the light and the dark scheme.
const OTHERS: [(&str, &str); 9] = [
    ("#2f9a8c", "#4fc3b3"),
    ("#3b3a98", "#908ff0"),
    ("#b89b2e", "#dcc66a"),
    ("#4ba3d0", "#7cc8ee"),
    ("#1c7a3e", "#58b87c"),
    ("#8a2a5c", "#d070a0"),
    ("#85882a", "#bcbf5c"),
    ("#9c4a9c", "#d08ad0"),
    ("#c2697a", "#ee98a6"),
];
const OURS: [(&str, &str); 3] = [
    ("#e2571b", "#ff7d45"),
    ("#f0a27c", "#b9623c"),
    ("#c98b3c", "#e0b070"),
];
const CHECKS: (&str, &str) = ("#9a9ea6", "#70757e");

/// The engines of the page in the order in which they got their colours.
pub struct Palette {
    others: Vec<String>,
    ours: Vec<String>,
    /// What is said of some engines wherever they are named.
    remarks: Vec<(String, String)>,
    /// Engines that a power failure may cost their database in mode `none`.
    risky: Vec<String>,
}

/// What a reader has to know of an engine beside its figures; empty for most.
pub fn remark(capabilities: &Capabilities) -> String {
    let remarks = [
        (capabilities.networked, "networked"),
        (capabilities.weaker_durability, "weaker durability"),
    ];
    let words: Vec<&str> = remarks
        .into_iter()
        .filter_map(|(holds, words)| holds.then_some(words))
        .collect();
    words.join(", ")
}

impl Palette {
    pub fn new(results: &Results) -> Self {
        let mut palette = Self {
            others: Vec::new(),
            ours: vec!["psitri".to_owned(), "psitri-direct".to_owned()],
            remarks: Vec::new(),
            risky: Vec::new(),
        };
        for entry in &results.info.engines {
            palette.add(&entry.name);
            if entry.capabilities.none_risks_database {
                palette.risky.push(entry.name.clone());
            }
            let remark = remark(&entry.capabilities);
            if !remark.is_empty() {
                palette.remarks.push((entry.name.clone(), remark));
            }
        }
        for case in &results.info.cases {
            case.engines.iter().for_each(|engine| palette.add(engine));
        }
        palette
    }

    fn add(&mut self, engine: &str) {
        let list = if is_ours(engine) {
            &mut self.ours
        } else if is_other(engine) {
            &mut self.others
        } else {
            return;
        };
        if !list.iter().any(|known| known == engine) {
            list.push(engine.to_owned());
        }
    }

    /// The name, and that it is behind a socket or less durable than the others. A dagger: [`RISKY`](super::overview::RISKY).
    pub fn label(&self, engine: &str) -> String {
        let dagger = if self.risky.iter().any(|known| known == engine) {
            "†"
        } else {
            ""
        };
        match self.remarks.iter().find(|(known, _)| known == engine) {
            Some((_, remark)) => format!("{engine}{dagger} ({remark})"),
            None => format!("{engine}{dagger}"),
        }
    }

    pub fn class(&self, engine: &str) -> String {
        let position = |list: &[String]| list.iter().position(|known| known == engine);
        if let Some(position) = position(&self.ours) {
            format!("ours-{}", position % OURS.len())
        } else if let Some(position) = position(&self.others) {
            format!("other-{}", position % OTHERS.len())
        } else {
            "check".to_owned()
        }
    }

    /// `highlight` is the engine that stands out: ours.
    pub fn mark(&self, engine: &str, highlight: bool) -> Mark {
        let position = self.others.iter().position(|known| known == engine);
        Mark {
            label: self.label(engine),
            class: self.class(engine),
            ours: highlight,
            dashed: position.is_some_and(|position| position >= OTHERS.len()),
        }
    }
}

const LIGHT: &str = "--page:#fbfaf8;--card:#fff;--text:#22262b;--muted:#666c75;--line:#e7e4de;--track:#f2f0eb;--band:#fdeee6;--accent:#c2430c;--good:#1c7a3e;--bad:#b3261e;";
const DARK: &str = "--page:#14161a;--card:#1b1e23;--text:#e6e7e9;--muted:#9aa0a9;--line:#2d3138;--track:#24282e;--band:#33241c;--accent:#ff9465;--good:#6fcf97;--bad:#ff8a80;";

/// Variables and colour classes in both schemes.
pub fn css() -> String {
    let mut css = format!(":root{{color-scheme:light dark;{LIGHT}}}");
    let mut dark = format!(":root{{{DARK}}}");
    let groups: [(&str, &[(&str, &str)]); 2] = [("other", &OTHERS), ("ours", &OURS)];
    let classes = groups.iter().flat_map(|(name, colours)| {
        colours
            .iter()
            .enumerate()
            .map(move |(position, colours)| (format!("{name}-{position}"), *colours))
    });
    for (class, (on_light, on_dark)) in classes.chain([("check".to_owned(), CHECKS)]) {
        // Writing into a text cannot fail.
        let _ = write!(css, ".{class}{{--ink:{on_light}}}");
        let _ = write!(dark, ".{class}{{--ink:{on_dark}}}");
    }
    format!("{css}@media (prefers-color-scheme:dark){{{dark}}}")
}
