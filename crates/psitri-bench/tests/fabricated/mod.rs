//! Results that nobody measured, for tests of the report. They have one of everything: sweeps, series, long stalls, an engine behind a
//! socket, one whose commits survive less, one that does not apply, one that failed its checks, one that crashed, text that must be escaped, and more engines than colours.
use psitri_bench::driver::write_json;
use psitri_bench::engine::{Capabilities, Description};
use psitri_bench::latency::LatencyMicroseconds;
use psitri_bench::registry::Entry;
use psitri_bench::report::{Phase, Report, Series, Size, Validation};
use psitri_bench::suite::results::{
    Case, Machine, Page, SuiteInfo, case_directory, failed_file, report_file,
};
use psitri_bench::throughput::Steadiness;
use std::fs;
use std::path::Path;

/// Names, and how fast each is beside the first.
pub const ENGINES: [(&str, f64); 16] = [
    ("psitri", 1.0),
    ("psitri-direct", 0.4),
    ("rocksdb", 0.31),
    ("lmdb", 0.42),
    ("mdbx", 0.55),
    ("redb", 0.2),
    ("fjall", 0.36),
    ("sled", 0.17),
    ("emdb", 1.4),
    ("tidesdb", 0.66),
    ("sqlite", 0.11),
    ("leveldb", 0.24),
    ("canopydb", 0.33),
    ("redis", 0.05),
    // Faster than all others, and of weaker durability.
    ("bf-tree", 3.0),
    ("model", 2.0),
];
const REPEAT: u32 = 3;
pub const BATCHES: [u64; 4] = [1, 100, 10_000, 1_000_000];

/// A number between 0.95 and 1.05 that depends on nothing but its arguments.
fn noise(engine: &str, round: u32, salt: u64) -> f64 {
    let mut state = salt ^ u64::from(round).wrapping_mul(0x9E37_79B9);
    for byte in engine.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    }
    state ^= state >> 29;
    0.95 + (state % 1_000) as f64 / 10_000.0
}

fn case(id: &str, page: Page, title: &str, arguments: &[&str]) -> Case {
    Case {
        id: id.to_owned(),
        page,
        title: title.to_owned(),
        workload: arguments[0].to_owned(),
        arguments: arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect(),
        engines: ENGINES
            .iter()
            .map(|(engine, _)| (*engine).to_owned())
            .collect(),
    }
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = BATCHES
        .iter()
        .map(|batch| {
            let batch = batch.to_string();
            let title = format!("100,000 accounts, {batch} transfers a commit");
            let arguments = ["bank", "--num-accounts", "100000", "--batch-size", &batch];
            case(
                &format!("bank-100k-batch-{batch}"),
                Page::Bank,
                &title,
                &arguments,
            )
        })
        .collect();
    cases.push(case(
        "upsert-20m",
        Page::Upsert,
        "20 rounds of a million upserts",
        &["upsert", "--rounds", "20", "--db-path", "somewhere"],
    ));
    cases.push(case(
        "lmdb-style",
        Page::Emdb,
        "As redb measures & <others>",
        &["lmdb-style"],
    ));
    let mut sql = case(
        "sql-insert",
        Page::Sqlite,
        "Single inserts",
        &["sql-insert"],
    );
    sql.engines = vec!["psitri-sqlite".to_owned(), "sqlite".to_owned()];
    cases.push(sql);
    cases.extend([1, 100, 1_000].map(tides));
    cases
}

/// As the original names its runs.
fn tides(batch: u64) -> Case {
    let name = format!("batch_{batch}_10M_t8");
    let arguments = [
        "tides".to_owned(),
        format!("--test-name={name}"),
        "--workload=write".to_owned(),
        "--pattern=random".to_owned(),
        "--operations=200000".to_owned(),
        "--threads=8".to_owned(),
        format!("--batch={batch}"),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let id = format!("tides-batch-{batch}");
    case(&id, Page::Tides, &name, &arguments)
}

fn latency(p50: f64) -> Option<LatencyMicroseconds> {
    Some(LatencyMicroseconds {
        min: p50 * 0.4,
        p50,
        p95: p50 * 1.6,
        p99: p50 * 4.0,
        p999: p50 * 40.0,
        max: p50 * 900.0,
        mean: p50 * 1.2,
        stddev: p50,
        count: 1_000_000,
    })
}

/// A report of an engine `speed` times as fast as ours.
fn report(case: &Case, engine: &str, speed: f64, round: u32) -> Report {
    let config = match case.workload.as_str() {
        "lmdb-style" => serde_json::json!({ "records": 300_000 }),
        "sql-insert" => serde_json::json!({ "synchronous": "off" }),
        _ => serde_json::json!({ "sync_mode": "none" }),
    };
    let mut report = Report::new(&case.workload, engine, config);
    report.checks = vec!["1,000 balances against the oracle".to_owned()];
    report.wall_seconds = 30.0 * noise(engine, round, 9) / speed;
    let timed = |name: &str, rate: f64, salt: u64| {
        let rate = rate * speed * noise(engine, round, salt);
        Phase::new(name, 1_000_000, 1e6 / rate)
    };
    match case.page {
        Page::Bank => bank(&mut report, case, engine, speed, round),
        Page::Upsert => {
            let points = (1..=20).map(|at| {
                let at = f64::from(at);
                (
                    at,
                    1.5e6 * speed / (1.0 + at * (1.1 - speed.min(1.0)) / 10.0)
                        * noise(engine, at as u32, 3),
                )
            });
            report.series.push(Series {
                name: "throughput".to_owned(),
                x_label: "keys (millions)".to_owned(),
                y_label: "upserts a second".to_owned(),
                points: points.collect(),
            });
            let worst = 9e5 * speed * noise(engine, round, 4);
            report
                .phases
                .push(timed("upsert", 1.1e6, 5).with("worst_round_ops_per_second", worst));
        }
        Page::Emdb => {
            let pairs = noise(engine, round, 8) / 10.0;
            report
                .phases
                .push(Phase::new("generate_pairs", 450_000, pairs));
            for (salt, name) in [
                "bulk_load",
                "individual_writes",
                "batch_writes",
                "nosync_writes",
                "random_reads",
                "removals",
            ]
            .iter()
            .enumerate()
            {
                report
                    .phases
                    .push(timed(name, 4e5 * (salt + 1) as f64, salt as u64));
            }
            let bytes = (6e8 / speed.sqrt()) as u64;
            report.phases.push(Phase {
                file_bytes: Some(bytes),
                ..Phase::new("compacted_size", 0, 0.2 / speed)
            });
            let sizes = [1.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];
            report.series.push(Series {
                name: "writes by batch size".to_owned(),
                x_label: "batch size".to_owned(),
                y_label: "writes/s".to_owned(),
                points: sizes
                    .map(|size: f64| (size, 2e5 * speed * (1.0 + size.log10())))
                    .to_vec(),
            });
        }
        _ => report.phases.push(timed("autocommit", 7e5, 6)),
    }
    let bytes = (3.1e8 / speed.powf(0.4)) as u64;
    report.size = Some(Size {
        file_bytes: bytes,
        file_length_bytes: bytes,
        reachable_bytes: Some(bytes / 2),
        raw_bytes: 1 << 27,
        ..Size::default()
    });
    report.peak_rss_bytes = Some((4e8 * speed.powf(0.3)) as u64);
    report.peak_anonymous_bytes = Some((1.5e8 * speed.powf(0.3)) as u64);
    report
}

fn bank(report: &mut Report, case: &Case, engine: &str, speed: f64, round: u32) {
    let batch: f64 = case.arguments[4].parse().expect("a batch size");
    let gain = 1.0 + batch.log10() * (0.15 + (1.0 - speed).max(0.0) * 0.4);
    for (name, share, salt) in [
        ("bulk_load", 6.0, 1),
        ("write_only", 1.0, 2),
        ("write_read", 0.9, 3),
    ] {
        // In exact numbers for two engines, so that a test knows the ratios.
        let noise = match engine {
            "psitri" | "emdb" => f64::from(round) * 0.01 + 0.98,
            _ => noise(engine, round, salt),
        };
        let rate = 300_000.0 * share * gain * speed * noise;
        let mut phase = Phase::new(name, 1_000_000, 1e6 / rate);
        phase.ops_per_second = rate;
        if name != "bulk_load" {
            let stall = |second: u32| {
                if second == 5 && engine == "rocksdb" {
                    0.2
                } else {
                    1.0
                }
            };
            let per_second = (0..12)
                .map(|second| (rate * stall(second) * self::noise(engine, second, 7)) as u64)
                .collect();
            phase.latency_us = latency(1.2 * batch.sqrt() / speed);
            phase.steadiness = Some(Steadiness {
                worst_second: Some(if engine == "rocksdb" {
                    0
                } else {
                    (rate * 0.7) as u64
                }),
                median_second: Some(rate as u64),
                worst_to_median: Some(0.7),
                per_second,
            });
        }
        if name == "write_read" {
            phase.reads_per_second = Some(1.5e6 * speed.sqrt() * noise);
        }
        report.phases.push(phase);
    }
    report.phases.push(Phase::new("checkpoint", 0, 0.4 / speed));
}

pub fn write(directory: &Path) {
    let entry = |&(name, _): &(&str, f64)| Entry {
        name: name.to_owned(),
        capabilities: Capabilities {
            networked: name == "redis",
            weaker_durability: name == "bf-tree",
            ..Capabilities::FULL
        },
        description: Description {
            version: "1.2.3".to_owned(),
            settings: vec![format!("a setting of {name}, <b>and why</b>")],
        },
    };
    let info = SuiteInfo {
        profile: "standard".to_owned(),
        started: "2000-01-31T12:00:00Z".to_owned(),
        finished: Some("2000-01-31T14:00:00Z".to_owned()),
        commit: None,
        machine: Machine {
            cpu: "a processor that nobody has".to_owned(),
            cores: 2,
            memory_bytes: 8 << 30,
            kernel: "Linux 6".to_owned(),
            filesystem: "ext4".to_owned(),
            rustc: "rustc 1".to_owned(),
        },
        engines: ENGINES.iter().map(entry).collect(),
        repeat: REPEAT,
        repeat_short: REPEAT,
        short_seconds: 15,
        cases: cases(),
    };
    info.save(directory).expect("written");
    for case in &info.cases {
        fs::create_dir_all(case_directory(directory, &case.id)).expect("created");
        for engine in &case.engines {
            let known = ENGINES.iter().find(|(name, _)| name == engine);
            for round in 0..REPEAT {
                run(
                    directory,
                    case,
                    engine,
                    known.map_or(0.9, |known| known.1),
                    round,
                );
            }
        }
    }
}

fn run(directory: &Path, case: &Case, engine: &str, speed: f64, round: u32) {
    // Of one case the runs do not say who is faster.
    let speed = match (engine, case.id.as_str()) {
        ("emdb", "tides-batch-1000") => 1.01,
        _ => speed,
    };
    let mut report = report(case, engine, speed, round);
    match (case.page, engine) {
        (Page::Bank, "tidesdb") if case.id.ends_with("batch-10000") => {
            report.fail(vec!["the sum of balances is <wrong>".to_owned()]);
        }
        (Page::Bank, "leveldb") if round == 1 => {
            let file = failed_file(directory, &case.id, engine, round);
            fs::write(file, "killed by signal 9 | after 60 s").expect("written");
            return;
        }
        (Page::Emdb, "redis") => {
            report.validation = Validation::NotApplicable;
            report.failures = vec!["redis does not have ordered keys".to_owned()];
            report.phases.clear();
            report.size = None;
        }
        _ => {}
    }
    write_json(&report, &report_file(directory, &case.id, engine, round)).expect("written");
}
