//! The list of benchmarks passes on correct engines in any order, and finds engines out that are not correct.
use crate::faulty::*;
use psitri_bench::db_bench::DbBenchConfig;
use psitri_bench::engine::Engine;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::report::Report;

const SMALL: &[&str] = &["--num=5000"];

fn passes<E: Engine>(more: &[&str]) -> Report {
    assert_passes::<DbBenchConfig, E>(&[SMALL, more].concat())
}

fn found_out(defect: Defect, benchmarks: &str, failure: &str) {
    let arguments = ["--num=5000", "--batch-size=10", "--benchmarks", benchmarks];
    assert_found_out::<DbBenchConfig>(defect, &arguments, failure);
}

fn the_whole_list_passes<E: Engine>() {
    passes::<E>(&[]);
    passes::<E>(&[
        "--threads=3",
        "--batch-size=100",
        "--seek-nexts=5",
        "--reads-per-snapshot=1",
    ]);
    passes::<E>(&[
        "--compressible",
        "--key-size=10",
        "--value-size=8",
        "--batch-size=64",
    ]);
}

#[test]
fn psitri_passes_the_whole_list() {
    the_whole_list_passes::<Psitri>();
}

#[test]
fn psitri_passes_with_direct_transactions() {
    the_whole_list_passes::<PsitriDirect>();
}

#[test]
fn the_model_passes_the_whole_list() {
    the_whole_list_passes::<Model>();
}

#[test]
fn found_shares_are_those_of_the_keys_that_exist() {
    let report = passes::<Psitri>(&[
        "--benchmarks=fillrandom,readrandom,fillseq,readrandom,readmissing,deleterandom,readrandom,readseq,readreverse",
    ]);
    assert_eq!(
        phase_names(&report),
        [
            "fillrandom",
            "readrandom",
            "fillseq",
            "readrandom_2",
            "readmissing",
            "deleterandom",
            "readrandom_3",
            "readseq",
            "readreverse",
            "checkpoint"
        ]
    );
    let share = |name| report.phase(name).expect("a phase").figures["found_share"];
    assert!((share("readrandom") - 0.632).abs() < 0.03);
    assert_eq!((share("readrandom_2"), share("readmissing")), (1.0, 0.0));
    assert!((share("readrandom_3") - 0.368).abs() < 0.03);
    let left = report.phase("readseq").expect("a phase").ops;
    assert_eq!(report.phase("readreverse").expect("a phase").ops, left);
    assert!((1_700..2_000).contains(&left), "{left}");
}

#[test]
fn an_empty_database_has_nothing_to_find() {
    let report = passes::<Psitri>(&["--benchmarks=readrandom,seekrandom,readseq,readreverse"]);
    assert_eq!(report.phases[0].figures["found_share"], 0.0);
    assert_eq!(report.phases[2].ops, 0);
}

#[test]
fn point_operations_have_latencies() {
    let report = passes::<Psitri>(&[
        "--benchmarks=fillseq,readrandom,seekrandom,readwhilewriting,deleterandom",
    ]);
    for name in [
        "fillseq",
        "readrandom",
        "seekrandom",
        "readwhilewriting",
        "deleterandom",
    ] {
        let phase = report.phase(name).expect("a phase");
        assert_eq!(phase.latency_us.expect("samples").count, 5_000, "{name}");
    }
    assert!(report.phases[3].figures["writes_per_second"] > 0.0);
}

#[test]
fn faulty_engines_are_found_out() {
    found_out(Defect::LosesAPut, "fillseq", "expected 5000");
    found_out(
        Defect::ChangesAValue,
        "fillseq,readrandom",
        "do not have the last value",
    );
    found_out(
        Defect::KeepsFirstValues,
        "fillseq,overwrite",
        "do not have the last value",
    );
    found_out(
        Defect::MissesARead,
        "fillseq,readrandom",
        "finds are not those expected",
    );
    found_out(
        Defect::MissesARead,
        "fillseq,readwhilewriting",
        "finds are not those expected",
    );
    found_out(
        Defect::LosesADelete,
        "fillseq,deleterandom",
        "a full scan finds",
    );
    found_out(
        Defect::SeeksTooFar,
        "fillseq,seekrandom",
        "finds are not those expected",
    );
    found_out(Defect::CursorSkips, "fillseq,readseq", "expected 5000");
    found_out(Defect::CursorSkips, "fillseq,readreverse", "expected 5000");
    found_out(
        Defect::CursorSkips,
        "fillseq,scanwhilewriting",
        "finds are not those expected",
    );
    found_out(Defect::ScanSkips, "fillseq", "expected 5000");
}
