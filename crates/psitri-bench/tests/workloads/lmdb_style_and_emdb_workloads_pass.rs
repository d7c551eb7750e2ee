//! The workloads of redb and emdb pass on every engine of a plain build, with all of their phases, and name what does not apply.
use clap::Parser;
use psitri_bench::clock::Clock;
use psitri_bench::emdb::{
    Comparative, ConcurrentReads, GroupCommit, IndexHotpath, Kv, WriteThrough,
};
use psitri_bench::engine::Engine;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::lmdb_style::LmdbStyle;
use psitri_bench::report::Report;
use psitri_bench::workload::{self, Run, Workload};

#[derive(Parser)]
#[command(args_override_self = true)]
struct Command<W: Workload> {
    #[command(flatten)]
    workload: W,
}

fn run<W: Workload, E: Engine>(arguments: &[&str]) -> anyhow::Result<Report> {
    let workload = Command::<W>::parse_from(std::iter::once(&"test").chain(arguments)).workload;
    let directory = tempfile::tempdir()?;
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    workload::run::<_, E>(&workload, &run)
}

/// The names of the phases of a run that passes, each of which took time and has a rate if it has operations.
fn phases<W: Workload, E: Engine>(arguments: &[&str]) -> Vec<String> {
    let report = run::<W, E>(arguments).expect("no error");
    assert_eq!(report.failures, Vec::<String>::new());
    for phase in &report.phases {
        assert!(phase.seconds > 0.0, "{phase:?}");
        assert_eq!(phase.ops > 0, phase.ops_per_second > 0.0, "{phase:?}");
    }
    report.phases.into_iter().map(|phase| phase.name).collect()
}

/// The samples that are asked for, and none because there is time.
fn at_once<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &["--warm-up-seconds=0", "--sample-seconds=0"]].concat()
}

fn phases_everywhere<W: Workload>(arguments: &[&str], expected: &[&str]) {
    assert_eq!(phases::<W, Model>(arguments), expected);
    assert_eq!(phases::<W, Psitri>(arguments), expected);
    assert_eq!(phases::<W, PsitriDirect>(arguments), expected);
}

const SMALL: &[&str] = &[
    "--records=3000",
    "--individual-writes=20",
    "--batches=5",
    "--batch-size=100",
    "--nosync-writes=100",
    "--reads=5000",
    "--range-reads=1000",
];

fn small(more: &[&'static str]) -> Vec<&'static str> {
    [SMALL, more].concat()
}

#[test]
fn redb_variant_has_all_phases() {
    let arguments = small(&["--pops=501", "--sorted-inserts=700"]);
    let expected = [
        "generate_pairs",
        "bulk_load",
        "individual_writes",
        "batch_writes",
        "nosync_writes",
        "len",
        "random_reads",
        "random_range_reads",
        "random_reads_4_threads",
        "random_reads_8_threads",
        "random_reads_16_threads",
        "random_reads_32_threads",
        "removals",
        "retain",
        "extract_if",
        "pop",
        "uncompacted_size",
        "compacted_size",
        "sorted_inserts",
    ];
    assert_eq!(phases::<LmdbStyle, Psitri>(&arguments), expected);
    assert_eq!(phases::<LmdbStyle, PsitriDirect>(&arguments), expected);
    let in_memory: Vec<_> = expected
        .into_iter()
        .filter(|name| !["nosync_writes", "uncompacted_size", "compacted_size"].contains(name))
        .collect();
    assert_eq!(phases::<LmdbStyle, Model>(&arguments), in_memory);
}

#[test]
fn emdb_variant_has_its_phases() {
    let arguments = small(&["--variant=emdb", "--read-iterations=1"]);
    let expected = [
        "generate_pairs",
        "bulk_load",
        "individual_writes",
        "batch_writes",
        "nosync_writes",
        "len",
        "random_reads",
        "random_range_reads",
        "random_reads_4_threads",
        "random_reads_8_threads",
        "removals",
        "uncompacted_size",
        "compacted_size",
    ];
    assert_eq!(phases::<LmdbStyle, Psitri>(&arguments), expected);
    assert_eq!(phases::<LmdbStyle, PsitriDirect>(&arguments), expected);
}

#[test]
fn pops_of_more_than_there_is_empty_the_database() {
    let report = run::<LmdbStyle, Psitri>(&small(&["--sorted-inserts=0"])).expect("no error");
    assert_eq!(report.failures, Vec::<String>::new());
    // Half of all pairs is left by the removals, and retain and extract_if put back what they take.
    assert_eq!(report.phase("removals").map(|phase| phase.ops), Some(1_810));
    assert_eq!(report.phase("retain").map(|phase| phase.ops), Some(905));
    assert_eq!(report.phase("pop").map(|phase| phase.ops), Some(1_810));
    assert!(report.phase("sorted_inserts").is_none());
    assert!(report.phase("compacted_size").is_some());
}

#[test]
fn options_of_the_other_variant_are_refused() {
    let error = run::<LmdbStyle, Model>(&small(&["--variant=emdb", "--pops=5"]));
    let text = error.expect_err("not an option of emdb's").to_string();
    assert!(text.contains("--pops"), "{text}");
}

#[test]
fn kv_passes() {
    phases_everywhere::<Kv>(
        &at_once(&["--records=100", "--samples=2", "--warm-up-samples=0"]),
        &["kv_insert", "kv_get", "kv_remove"],
    );
}

#[test]
fn comparative_passes() {
    phases_everywhere::<Comparative>(
        &at_once(&["--records=200", "--samples=2", "--warm-up-samples=0"]),
        &[
            "compare_insert_single",
            "compare_insert_batch",
            "compare_insert_bulk",
            "compare_read",
        ],
    );
}

#[test]
fn concurrent_reads_pass_in_both_groups() {
    let arguments = at_once(&["--records=1000", "--samples=2", "--reads-per-thread=1500"]);
    phases_everywhere::<ConcurrentReads>(
        &arguments,
        &[
            "newest_per_get_1_threads",
            "newest_per_get_2_threads",
            "newest_per_get_4_threads",
            "newest_per_get_8_threads",
            "snapshot_per_thread_1_threads",
            "snapshot_per_thread_2_threads",
            "snapshot_per_thread_4_threads",
            "snapshot_per_thread_8_threads",
        ],
    );
    let report = run::<ConcurrentReads, Psitri>(&arguments).expect("no error");
    let points: Vec<_> = report
        .series
        .iter()
        .map(|series| series.points.len())
        .collect();
    assert_eq!(points, [4, 4]);
}

#[test]
fn group_commit_passes_and_survives_opening_again() {
    let arguments = [
        "--threads=4",
        "--per-thread=10",
        "--samples=2",
        "--warm-up-samples=0",
    ];
    phases_everywhere::<GroupCommit>(&arguments, &["one_thread", "many_threads"]);
    let report = run::<GroupCommit, Psitri>(&arguments).expect("no error");
    let many = report.phase("many_threads").expect("found above");
    assert_eq!((many.ops, many.figures["threads"]), (40, 4.0));
    assert!(many.figures["speedup"] > 0.0);
}

#[test]
fn write_through_passes_and_says_what_it_ran_with() {
    let arguments = ["--writes=20", "--samples=1", "--warm-up-samples=0"];
    phases_everywhere::<WriteThrough>(&arguments, &["sync", "write_through"]);
    let report = run::<WriteThrough, Psitri>(&arguments).expect("no error");
    assert!(
        report
            .checks
            .iter()
            .any(|check| check.contains("WriteThrough"))
    );
}

#[test]
fn index_hotpath_passes() {
    phases_everywhere::<IndexHotpath>(
        &at_once(&[
            "--records=1000",
            "--operations=150",
            "--operations-per-thread=100",
            "--samples=2",
            "--threads=1,3",
        ]),
        &[
            "single_get",
            "single_replace",
            "single_mixed_80r_20w",
            "concurrent_get_1_threads",
            "concurrent_get_3_threads",
            "concurrent_mixed_80r_20w_1_threads",
            "concurrent_mixed_80r_20w_3_threads",
        ],
    );
}
