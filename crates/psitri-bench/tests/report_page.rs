//! The report says what the results say: who is faster and by how much, what did not pass, and nothing else.
mod fabricated;

use psitri_bench::page;
use std::collections::BTreeSet;
use std::fs;

struct Written {
    html: String,
    markdown: String,
    charts: BTreeSet<String>,
}

fn written() -> Written {
    let results = tempfile::tempdir().expect("a temporary directory");
    let out = tempfile::tempdir().expect("a temporary directory");
    fabricated::write(results.path());
    let out = out.path().join("new");
    page::write(results.path(), &out).expect("a report");
    let charts = fs::read_dir(out.join("charts")).expect("charts");
    Written {
        html: fs::read_to_string(out.join("index.html")).expect("the page"),
        markdown: fs::read_to_string(out.join("report.md")).expect("the file"),
        charts: charts
            .map(|file| {
                file.expect("a file")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect(),
    }
}

/// The text from `from` to the next `to`.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let start = text.find(from).unwrap_or_else(|| panic!("no {from}")) + from.len();
    let end = text[start..]
        .find(to)
        .unwrap_or_else(|| panic!("no {to} after {from}"));
    &text[start..start + end]
}

/// The rows of a part of the Markdown file.
fn rows<'a>(markdown: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let part = between(markdown, heading, "\n#");
    let cells = |line: &'a str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    part.lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect()
}

#[test]
fn what_others_do_better_comes_first_and_is_complete() {
    let Written { html, markdown, .. } = written();
    let first = html.find("id=\"others-faster\"").expect("losses");
    assert!(
        html.find("<section")
            .is_some_and(|section| first - section < 20),
        "another section comes first"
    );

    let lost = rows(
        &markdown,
        "## Where others are faster\n\n### Throughput, time, size\n",
    );
    let write_only: Vec<_> = lost
        .iter()
        .filter(|row| row[2] == "write only: operations a second")
        .collect();
    assert_eq!(write_only.len(), fabricated::BATCHES.len(), "{lost:?}");
    assert!(
        write_only
            .iter()
            .all(|row| row[0] == "1.40×" && row[3] == "emdb"),
        "{write_only:?}"
    );
    let single = lost.iter().find(|row| {
        row[1].contains(" 1 transfers") && row[2].starts_with("write only: operations a")
    });
    // Medians of three runs: 0.98, 0.99 and 1.00 of the speed.
    let single = single.expect("the case of single transfers");
    assert_eq!(single[3..5], ["emdb", "415,800/s"]);
    assert!(
        single[5].starts_with("297,000/s; psitri-direct "),
        "{single:?}"
    );
    assert_eq!(single[6], "none");
    for row in &lost {
        assert_ne!(row[3], "model", "a check of the harness is no competitor");
        assert_ne!(row[3], "psitri-direct", "ours is no other");
    }
    // Lower is better for sizes and times.
    assert!(
        lost.iter()
            .any(|row| row[2] == "compacted size: size on disk"),
        "{lost:?}"
    );
    let upkeep = rows(&markdown, "\n### Opening, filling, checkpoints, closing\n");
    assert!(
        upkeep.iter().any(|row| row[2] == "checkpoint: time"),
        "{upkeep:?}"
    );
    assert!(
        lost.iter().all(|row| row[2] != "checkpoint: time"),
        "{lost:?}"
    );
    let ratios: Vec<f64> = lost.iter().map(|row| ratio(row[0])).collect();
    assert!(
        ratios.windows(2).all(|pair| pair[0] >= pair[1]),
        "{ratios:?}"
    );
    assert!(ratios.iter().all(|&ratio| ratio >= 1.0));

    let latency = rows(&markdown, "\n### Latency, memory, processor time\n");
    assert!(
        latency
            .iter()
            .any(|row| row[2] == "write only: latency, p99" && row[3] == "emdb")
    );
    assert!(
        latency.iter().any(
            |row| row[2] == "peak memory without mapped files" && row[3] == "redis (networked)"
        )
    );
    let won = rows(
        &markdown,
        "## Where ours is first\n\n### Throughput, time, size\n",
    );
    assert!(
        won.iter()
            .any(|row| row[3] == "sqlite" && row[5].ends_with("(psitri-sqlite)")),
        "{won:?}"
    );
    let counts = between(&html, "class=\"counts\"", "</div>");
    assert!(
        counts.contains(&format!("<strong>{}</strong>", lost.len())),
        "{counts}"
    );
    assert!(
        counts.contains(&format!("<strong>{}</strong>", won.len())),
        "{counts}"
    );
}

fn ratio(cell: &str) -> f64 {
    let number = cell.split('×').next().unwrap_or_default().replace(',', "");
    number.parse().unwrap_or(f64::INFINITY)
}

#[test]
fn runs_without_figures_are_shown_with_their_reasons() {
    let Written { html, markdown, .. } = written();
    let problems = rows(&markdown, "### Runs without figures\n");
    let find = |engine: &str| {
        problems
            .iter()
            .find(|row| row[1] == engine)
            .unwrap_or_else(|| panic!("no {engine}: {problems:?}"))
    };
    assert_eq!(
        find("tidesdb")[2..],
        ["0, 1, 2", "failed", "the sum of balances is &lt;wrong&gt;"]
    );
    assert_eq!(find("leveldb")[2..4], ["1", "no report"]);
    assert_eq!(find("redis")[3], "not applicable");
    let section = between(&html, "id=\"validation\"", "</section>");
    assert!(section.contains("✗ 2/3") && section.contains("✗ 0/3") && section.contains("n/a"));
    assert!(section.contains("1,000 balances against the oracle"));
    // One of three runs of leveldb is missing; its figures are of the other two.
    let case = between(
        &html,
        "<article id=\"bank-100k-batch-10000\">",
        "</article>",
    );
    assert!(case.contains("leveldb") && !case.contains("tidesdb"));
}

#[test]
fn text_of_others_is_escaped() {
    let Written { html, markdown, .. } = written();
    for text in ["<others>", "<wrong>", "<b>and why"] {
        assert!(!html.contains(text) && !markdown.contains(text), "{text}");
    }
    assert!(html.contains("As redb measures &amp; &lt;others&gt;"));
    assert!(markdown.contains(r"killed by signal 9 \| after 60 s"));
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let Written { html, .. } = written();
    let addresses: Vec<&str> = html
        .match_indices("http")
        .map(|(at, _)| &html[at..at + 27])
        .filter(|address| !address.starts_with("http://www.w3.org/2000/svg"))
        .collect();
    assert!(addresses.is_empty(), "{addresses:?}");
    for loader in ["src=", "<link", "@import", "url(", "<script"] {
        assert!(!html.contains(loader), "{loader}");
    }
}

#[test]
fn every_page_and_case_has_its_charts_and_its_command() {
    let Written {
        html,
        markdown,
        charts,
    } = written();
    for anchor in [
        "bank",
        "upsert",
        "emdb",
        "sqlite",
        "lmdb-style",
        "bank-100k-batch-1",
        "machine",
        "engines",
    ] {
        assert_eq!(
            html.matches(&format!("id=\"{anchor}\"")).count(),
            1,
            "{anchor}"
        );
    }
    assert!(!html.contains("id=\"tides\""), "a page without cases");
    let sweep = between(&html, "<article class=\"sweep\">", "</article>");
    assert!(
        sweep.contains("By batch size")
            && sweep.contains("<code>bank --num-accounts 100000</code>")
    );
    assert_eq!(html.matches("<svg").count(), charts.len());
    for chart in &charts {
        assert!(markdown.contains(&format!("(charts/{chart})")), "{chart}");
    }
    for reference in markdown.match_indices("(charts/") {
        let name = between(&markdown[reference.0..], "(charts/", ")");
        assert!(charts.contains(name), "{name}");
    }
    assert!(
        markdown.contains("psitri-bench upsert --rounds 20 --engine psitri,psitri-direct,rocksdb,")
    );
    assert!(!html.contains("somewhere"), "the place of a database");
    assert!(html.contains("redis (networked)"));
}

#[test]
fn an_engine_has_one_colour_and_ours_stands_out() {
    // An empty class is none.
    let html = written().html.replace("<g class=\"\">", "<g>");
    let mut seen = BTreeSet::new();
    for chart in html.split("<g class=\"ours\"><title>").skip(1) {
        let name = chart.split([':', '<']).next().unwrap_or_default();
        seen.insert(name.to_owned());
        let drawn = &chart[..chart.find("</g>").expect("an end")];
        assert!(
            drawn.contains("ours-0") || name == "psitri-sqlite",
            "{drawn}"
        );
    }
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        ["psitri", "psitri-sqlite"]
    );
    let colours = |engine: &str| -> BTreeSet<&str> {
        html.split("<g>")
            .map(|group| group.split("</g>").next().unwrap_or_default())
            .filter(|group| group.contains(&format!("<title>{engine}: ")))
            .flat_map(|group| {
                group
                    .split("class=\"bar ")
                    .skip(1)
                    .map(|bar| bar.split('"').next().unwrap_or_default())
            })
            .collect()
    };
    assert_eq!(colours("mdbx").len(), 1, "{:?}", colours("mdbx"));
    assert_ne!(colours("mdbx"), colours("lmdb"));
}
