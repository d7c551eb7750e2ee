//! The page as a browser shows it, on a desktop and on a phone, light and dark: no error, every chart visible, nothing wider than the screen.
//!
//! A window cannot be as narrow as a phone, so the page is shown in a frame of the width that is asked for.
//!
//! Needs Chromium: the program named by `CHROMIUM`, else `/usr/bin/chromium`. Screenshots go to the directory named by
//! `PSITRI_BENCH_SCREENSHOTS`, else to a temporary one that is removed. Only a copy of the page has a script: the one that measures it.
mod fabricated;

use psitri_bench::page;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Width, dark.
const SCREENS: [(u32, bool); 4] = [(1280, false), (1280, true), (390, false), (390, true)];
/// Of the frame: enough of the page to see all kinds of sections.
const FRAME_HEIGHT: u32 = 12_000;

const WATCH: &str = "<script>window.problems = [];\
    addEventListener('error', event => problems.push('error: ' + event.message));\
    console.error = console.warn = (...words) => problems.push(words.join(' '));</script>";

const MEASURE: &str = "<script>addEventListener('load', () => {\
    const box = element => { const at = element.getBoundingClientRect(); return [at.left, at.right, at.width, at.height]; };\
    const heights = [...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height);\
    const result = { problems, width: innerWidth, scroll_width: document.documentElement.scrollWidth,\
        dark: matchMedia('(prefers-color-scheme: dark)').matches, page_colour: getComputedStyle(document.body).backgroundColor,\
        charts: [...document.querySelectorAll('svg')].map(box), scrolling: [...document.querySelectorAll('.scroll')].map(box),\
        text_height_min: Math.min(...heights),\
        requests: performance.getEntriesByType('resource').map(entry => entry.name) };\
    parent.document.getElementById('measured').textContent = JSON.stringify(result); });</script>";

#[derive(Deserialize)]
struct Measured {
    problems: Vec<String>,
    width: f64,
    scroll_width: f64,
    dark: bool,
    page_colour: String,
    /// Left, right, width, height.
    charts: Vec<[f64; 4]>,
    scrolling: Vec<[f64; 4]>,
    text_height_min: f64,
    requests: Vec<String>,
}

/// The page in a frame, with the scripts that watch and measure it.
fn framed(html: &str, width: u32) -> String {
    let watched = html
        .replacen("<head>", &format!("<head>{WATCH}"), 1)
        .replacen("</body>", &format!("{MEASURE}</body>"), 1);
    let attribute = watched.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!DOCTYPE html><html style=\"color-scheme:light dark\"><body style=\"margin:0\"><pre id=\"measured\" hidden></pre>\
         <iframe style=\"border:0;display:block\" width=\"{width}\" height=\"{FRAME_HEIGHT}\" srcdoc=\"{attribute}\"></iframe></body></html>"
    )
}

/// Shows the file, makes a screenshot, and returns what the page measured of itself.
fn shown(directory: &Path, file: &Path, screenshot: &Path, screen: (u32, bool)) -> Measured {
    let program = std::env::var_os("CHROMIUM")
        .map_or_else(|| PathBuf::from("/usr/bin/chromium"), PathBuf::from);
    let (width, dark) = screen;
    let output = Command::new(&program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
        ])
        .args([
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            directory.join("profile").display()
        ))
        .arg(format!("--window-size={},{FRAME_HEIGHT}", width.max(500)))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u32::from(!dark)
        ))
        .arg(format!("--screenshot={}", screenshot.display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let console: Vec<&str> = errors
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(console.is_empty(), "{console:?}");
    let dom = String::from_utf8_lossy(&output.stdout);
    let json = dom
        .split_once("id=\"measured\" hidden=\"\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .unwrap_or_else(|| panic!("nothing measured: {errors}"))
        .0;
    let json = json
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

#[test]
fn every_chart_is_visible_and_nothing_is_wider_than_the_screen() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = temporary.path();
    fabricated::write(directory);
    page::write(directory, directory).expect("a report");
    let html = fs::read_to_string(directory.join("index.html")).expect("the page");
    let charts = html.matches("<svg").count();
    let screenshots = std::env::var_os("PSITRI_BENCH_SCREENSHOTS")
        .map_or_else(|| directory.join("screenshots"), PathBuf::from);
    fs::create_dir_all(&screenshots).expect("created");

    let mut colours = Vec::new();
    for screen in SCREENS {
        let (width, dark) = screen;
        let file = directory.join("framed.html");
        fs::write(&file, framed(&html, width)).expect("written");
        let scheme = if dark { "-dark" } else { "" };
        let screenshot = screenshots.join(format!("report-{width}{scheme}.png"));
        let measured = shown(directory, &file, &screenshot, screen);
        let size = fs::metadata(&screenshot).expect("a screenshot").len();
        assert!(size > 50_000, "{screen:?}: a screenshot of {size} bytes");
        assert_eq!(measured.problems, Vec::<String>::new(), "{screen:?}");
        assert_eq!(measured.requests, Vec::<String>::new(), "{screen:?}");
        assert_eq!(
            (measured.width, measured.dark),
            (f64::from(width), dark),
            "{screen:?}"
        );
        assert!(
            measured.scroll_width <= measured.width,
            "{screen:?}: {} wide",
            measured.scroll_width
        );
        assert_eq!(measured.charts.len(), charts, "{screen:?}");
        for [left, right, chart_width, height] in measured.charts {
            assert!(
                chart_width >= 300.0 && height >= 40.0,
                "{screen:?}: {chart_width} by {height}"
            );
            assert!(
                left >= 0.0 && right <= measured.width,
                "{screen:?}: from {left} to {right}"
            );
        }
        // Those in closed details have no box.
        for [left, right, ..] in measured.scrolling {
            assert!(
                left >= 0.0 && right <= measured.width,
                "{screen:?}: a table from {left} to {right}"
            );
        }
        assert!(
            measured.text_height_min >= 10.0,
            "{screen:?}: text {} high",
            measured.text_height_min
        );
        colours.push((dark, measured.page_colour));
    }
    let [light, dark] = [false, true].map(|wanted| {
        colours
            .iter()
            .find(|(dark, _)| *dark == wanted)
            .expect("both")
            .1
            .clone()
    });
    assert_ne!(light, dark);
}
