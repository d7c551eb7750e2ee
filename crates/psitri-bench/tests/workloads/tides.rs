//! The tides pass on correct engines with every pattern and workload, fill their file of rows, and find engines out that are not correct.
use crate::faulty::*;
use clap::Parser;
use psitri_bench::engine::Engine;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::report::Report;
use psitri_bench::tides::{self, TidesConfig};

const SMALL: &[&str] = &["--operations=6000", "--threads=3", "--range-size=20"];
const PATTERNS: [&str; 8] = [
    "seq",
    "random",
    "random32",
    "permutation",
    "zipfian",
    "uniform",
    "timestamp",
    "reverse",
];
const WORKLOADS: [&str; 6] = ["write", "read", "mixed", "delete", "seek", "range"];

fn passes<E: Engine>(more: &[&str]) -> Report {
    assert_passes::<TidesConfig, E>(&[SMALL, more].concat())
}

fn found_out(defect: Defect, more: &[&str], failure: &str) {
    assert_found_out::<TidesConfig>(defect, &[SMALL, more].concat(), failure);
}

fn every_workload_passes<E: Engine>() {
    for workload in WORKLOADS {
        for pattern in PATTERNS {
            passes::<E>(&["--batch=100", "--workload", workload, "--pattern", pattern]);
        }
    }
    passes::<E>(&["--batch=1", "--workload=mixed", "--values=compressible"]);
    passes::<E>(&[
        "--workload=read",
        "--key-size=64",
        "--value-size=2000",
        "--reads-per-snapshot=50",
    ]);
}

#[test]
fn psitri_passes_every_workload_with_every_pattern() {
    every_workload_passes::<Psitri>();
}

#[test]
fn psitri_passes_with_direct_transactions() {
    every_workload_passes::<PsitriDirect>();
}

#[test]
fn the_model_passes() {
    every_workload_passes::<Model>();
}

#[test]
fn phases_have_stable_names() {
    for (workload, names) in [
        ("write", &["put", "iter", "close", "total"][..]),
        ("mixed", &["put", "get", "iter", "close", "total"]),
        ("read", &["populate", "get", "iter", "close", "total"]),
        ("delete", &["populate", "delete", "iter", "close", "total"]),
        ("seek", &["populate", "seek", "iter", "close", "total"]),
        ("range", &["populate", "range", "iter", "close", "total"]),
    ] {
        let report = passes::<Psitri>(&["--workload", workload]);
        assert_eq!(phase_names(&report), names);
    }
}

#[test]
fn a_sample_of_latency_is_a_batch_or_an_operation() {
    let report = passes::<Psitri>(&["--workload=mixed", "--batch=100"]);
    let count = |name| {
        let phase = report.phase(name).expect("a phase");
        phase.latency_us.expect("samples").count
    };
    assert_eq!((count("put"), count("get")), (60, 6_000));
}

#[test]
fn repeated_keys_are_counted_once() {
    let report = passes::<Psitri>(&["--workload=write", "--pattern=uniform"]);
    let iter = report.phase("iter").expect("a scan");
    // About 63 in a hundred.
    assert!((3_600..4_000).contains(&iter.ops), "{}", iter.ops);
}

#[test]
fn all_rows_have_all_columns() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rows.csv");
    let argument = format!("--csv={}", file.display());
    passes::<Psitri>(&[
        &argument,
        "--workload=mixed",
        "--batch=10",
        "--test-name=one",
    ]);
    passes::<Psitri>(&[
        &argument,
        "--workload=delete",
        "--sync-mode=sync",
        "--batch=1000",
    ]);
    let text = std::fs::read_to_string(&file).expect("written");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let heading = "engine,test_name,operation,ops_per_sec,duration_sec,avg_latency_us,stddev_us,cv_percent,p50_us,\
        p95_us,p99_us,min_us,max_us,peak_rss_mb,peak_vms_mb,disk_read_mb,disk_write_mb,cpu_user_sec,cpu_sys_sec,\
        cpu_percent,db_size_mb,write_amp,read_amp,space_amp,workload,pattern,threads,num_operations,batch_size,\
        key_size,value_size,range_size,sync_enabled";
    assert_eq!(rows[0].join(","), heading);
    let column = |name: &str| {
        rows[0]
            .iter()
            .position(|&column| column == name)
            .expect("a column")
    };
    let of = |name: &str| -> Vec<&str> { rows[1..].iter().map(|row| row[column(name)]).collect() };
    assert_eq!(of("operation"), ["PUT", "GET", "ITER", "DELETE", "ITER"]);
    assert_eq!(of("sync_enabled"), ["0", "0", "0", "1", "1"]);
    assert_eq!(of("batch_size"), ["10", "10", "10", "1000", "1000"]);
    assert!(rows.iter().all(|row| row.len() == 33), "{text}");
}

#[test]
fn the_cases_of_the_script_run() {
    for (name, arguments) in tides::cases(0.0005) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let report = assert_passes::<TidesConfig, Psitri>(&arguments);
        assert_eq!(report.config["test_name"], name.as_str());
    }
}

#[test]
fn faulty_engines_are_found_out() {
    found_out(
        Defect::LosesAPut,
        &["--workload=write", "--pattern=seq"],
        "expected 6000",
    );
    found_out(
        Defect::LosesAPut,
        &["--workload=mixed", "--pattern=seq"],
        "did not find a key",
    );
    found_out(
        Defect::ChangesAValue,
        &["--workload=write", "--pattern=seq"],
        "none that were written",
    );
    found_out(
        Defect::ChangesAValue,
        &["--workload=read", "--pattern=seq"],
        "was not written",
    );
    found_out(
        Defect::MissesARead,
        &["--workload=read"],
        "did not find a key",
    );
    found_out(
        Defect::ScanSkips,
        &["--workload=seek"],
        "the timed scan finds",
    );
    found_out(
        Defect::LosesADelete,
        &["--workload=delete", "--pattern=seq"],
        "expected 0",
    );
    found_out(
        Defect::SeeksTooFar,
        &["--workload=seek"],
        "did not find a key",
    );
    found_out(
        Defect::CursorSkips,
        &["--workload=range"],
        "ranges left out",
    );
}

#[test]
fn numbers_that_have_no_room_in_a_key_are_wrong_usage() {
    #[derive(Parser, Debug)]
    struct Command {
        #[command(flatten)]
        _config: TidesConfig,
    }
    for argument in [
        "--key-size=10",
        "--operations=0",
        "--threads=0",
        "--batch=0",
    ] {
        assert!(
            Command::try_parse_from(["test", argument]).is_err(),
            "{argument}"
        );
    }
}
