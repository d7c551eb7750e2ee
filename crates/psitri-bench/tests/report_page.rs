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
    assert_eq!(single[6..], ["none", "3 : 3"]);
    for row in &lost {
        assert_ne!(row[3], "model", "a check of the harness is no competitor");
        assert_ne!(row[3], "psitri-direct", "ours is no other");
        assert!(!row[3].contains("bf-tree"), "weaker durability: {row:?}");
        assert!(
            !row[2].contains("generate pairs"),
            "of the harness: {row:?}"
        );
    }
    // Lower is better for sizes and times.
    assert!(
        lost.iter()
            .any(|row| row[2] == "compacted size: size on disk"),
        "{lost:?}"
    );
    let upkeep = rows(
        &markdown,
        "\n### Opening, filling, checkpoints, compaction, closing\n",
    );
    for figure in ["checkpoint: time", "compacted size: time"] {
        assert!(upkeep.iter().any(|row| row[2] == figure), "{upkeep:?}");
        assert!(lost.iter().all(|row| row[2] != figure), "{lost:?}");
    }
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
    let even = rows(
        &markdown,
        "## Where the runs do not say\n\n### Throughput, time, size\n",
    );
    assert!(!even.is_empty());
    for row in &even {
        let says =
            ratio(row[0]) == 1.0 || row[0].ends_with("× ours") || row[0].ends_with("× theirs");
        assert!(says, "{row:?}");
        let same = |other: &&Vec<&str>| other[1..3] == row[1..3];
        assert!(
            !lost.iter().chain(&won).any(|other| same(&other)),
            "{row:?}"
        );
    }
    let counts = between(&html, "class=\"counts\"", "</div>");
    assert!(
        counts.contains(&format!("<strong>{}</strong>", even.len())),
        "{counts}"
    );
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
fn an_engine_of_weaker_durability_is_shown_and_compared_with_nobody() {
    let Written { html, markdown, .. } = written();
    let label = "bf-tree (weaker durability)";
    let case = between(&html, "<article id=\"bank-100k-batch-1\">", "</article>");
    assert!(case.contains(label));
    for section in ["id=\"others-faster\"", "id=\"even\"", "id=\"ours-faster\""] {
        let section = between(&html, section, "</section>");
        assert!(!section.contains("bf-tree"), "{section}");
    }
    let glance = between(&html, "<table class=\"glance\">", "</table>");
    assert!(glance.contains("redis (networked)") && !glance.contains("bf-tree"));
    // It would be the best, and has no ratio.
    let figures = between(case, "<table class=\"figures\">", "</table>");
    let heads = between(figures, "<thead>", "</thead>");
    let column = heads
        .split("<th")
        .position(|head| head.contains(label))
        .expect("a column");
    let row = figures
        .split("<tr>")
        .find(|row| row.contains("write only: operations a second"))
        .expect("a row");
    // The first column has no cell: it is the name of the figure.
    let cell = row.split("<td").nth(column - 1).expect("a cell");
    assert!(
        cell.starts_with(" class=\"figure\"") && cell.contains("/s"),
        "{cell}"
    );
    assert!(!cell.contains('×'), "{cell}");
    assert!(row.contains("class=\"figure best\""), "{row}");

    let settings = between(&html, "id=\"engines\"", "</section>");
    assert!(settings.contains("<span class=\"chip\">weaker durability</span>"));
    assert!(markdown.contains("**bf-tree** 1.2.3, weaker durability"));
    assert!(settings.contains("Weaker durability: ") && markdown.contains("\nWeaker durability: "));
}

#[test]
fn durability_stands_beside_figures_of_workloads_that_have_no_option_for_it() {
    let Written { html, markdown, .. } = written();
    assert!(!html.contains("set by the workload") && !markdown.contains("set by the workload"));
    let case = |id: &str| between(&html, &format!("<article id=\"{id}\">"), "</article>");
    let durability = |id: &str| between(case(id), "durability: ", "<");
    assert_eq!(durability("lmdb-style"), "sync, and none in nosync writes");
    assert_eq!(durability("sql-insert"), "none (synchronous off)");
    let note = |figure: &str| {
        let card = between(case("lmdb-style"), &format!("<strong>{figure}"), "</span>");
        card.rsplit(" · ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(note("Nosync writes: operations"), "durability none");
    assert_eq!(note("Individual writes: operations"), "durability sync");
    let lost = rows(
        &markdown,
        "## Where others are faster\n\n### Throughput, time, size\n",
    );
    for (figure, durability) in [("nosync", "none"), ("individual", "sync")] {
        let figure = format!("{figure} writes: operations a second");
        let row = lost.iter().find(|row| row[2] == figure).expect("a row");
        assert_eq!(row[6], durability);
    }
}

#[test]
fn a_size_that_took_time_is_a_chart_and_the_time_of_the_harness_is_none() {
    let Written { html, markdown, .. } = written();
    let case = between(&html, "<article id=\"lmdb-style\">", "</article>");
    let chart = between(case, "<strong>Compacted size: size on disk", "</figure>");
    assert!(chart.contains("lower is better") && chart.contains("MiB"));
    assert!(!html.contains("enerate pairs") && !markdown.contains("enerate pairs"));
}

#[test]
fn sections_do_not_claim_what_was_not_run() {
    let Written { html, .. } = written();
    let sql = between(&html, "<section id=\"sqlite\">", "</p>");
    assert!(sql.contains("psitri has no SQL"), "{sql}");
    assert!(!html.contains("own benchmark program") && !html.contains("same statements"));
}

#[test]
fn the_glance_and_the_cost_of_a_reader_are_in_the_markdown_file_too() {
    let Written { html, markdown, .. } = written();
    let bank = between(&markdown, "\n## Bank transfers\n", "\n## ");
    let glance = rows(bank, "### At a glance\n");
    let html_rows = between(&html, "<table class=\"glance\">", "</table>");
    // One row is the head.
    assert_eq!(glance.len(), html_rows.matches("<tr>").count() - 1);
    let row = glance
        .iter()
        .find(|row| row[1] == "write only: operations a second")
        .expect("a row");
    // Beside rocksdb, lmdb, mdbx, redb, fjall, sled and emdb; ours is not among them.
    let heads = between(bank, "### At a glance\n", "| ---");
    let heads = &heads[heads.find("| case").expect("a head")..];
    let heads: Vec<&str> = heads.split('|').map(str::trim).collect();
    let emdb = heads.iter().position(|head| *head == "emdb");
    // There is nothing before the first bar of the head.
    assert_eq!(row[emdb.expect("a column") - 1], "1.40×");
    assert!(!heads.contains(&"psitri"));

    let impact = rows(bank, "#### What a reader costs the writer\n");
    let ours = impact.iter().find(|row| row[0] == "psitri");
    let ours = ours.expect("a row of ours");
    assert_eq!(ours[1..4], ["297,000/s", "267,300/s", "-10.0 %"]);
    assert_eq!(ours[5], "none");
    assert!(html.contains("<h4>What a reader costs the writer</h4>"));
}

#[test]
fn latencies_have_a_table_with_mean_and_p95() {
    let Written { html, markdown, .. } = written();
    let heads = "| phase | engine | mean | median | p95 | p99 | p99.9 | longest | durability |";
    assert!(markdown.contains(heads));
    let bank = between(&markdown, "\n## Bank transfers\n", "\n## ");
    let latency = rows(bank, "#### Latency\n");
    let ours = latency
        .iter()
        .find(|row| row[0] == "write only" && row[1] == "psitri")
        .expect("a row of ours");
    // 1.2 µs is the median of ours.
    let expected = ["1.44 µs", "1.2 µs", "1.92 µs", "4.8 µs", "48 µs", "1.08 ms"];
    assert_eq!(ours[2..8], expected);
    let case = between(&html, "<article id=\"bank-100k-batch-1\">", "</article>");
    let table = between(case, "Latency, in figures", "</table>");
    for expected in expected {
        assert!(table.contains(expected), "{expected}");
    }
    // Nobody is ranked by them.
    assert!(!markdown.contains("latency, p95") && !markdown.contains("latency, mean"));
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
    assert!(!html.contains("id=\"db-bench\""), "a page without cases");
    let sweep = between(&html, "<article class=\"sweep\">", "</article>");
    assert!(
        sweep.contains("By batch size")
            && sweep.contains("<code>bank --num-accounts 100000</code>")
    );
    let tides = between(&html, "<section id=\"tides\">", "</section>");
    let sweep = between(tides, "<article class=\"sweep\">", "</article>");
    assert!(sweep.contains("By batch size") && !sweep.contains("test-name"));
    assert!(sweep.contains("Autocommit: operations a second by batch size"));
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
