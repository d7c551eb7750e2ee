//! The upsert workload passes on correct engines, reports what it promises, and finds engines out that are not correct.
use crate::faulty::*;
use psitri_bench::engine::Engine;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::upsert::UpsertConfig;

const SMALL: &[&str] = &["--rounds=3", "--items=5000", "--value-size=40"];

fn passes<E: Engine>(more: &[&str]) -> psitri_bench::report::Report {
    assert_passes::<UpsertConfig, E>(&[SMALL, more].concat())
}

fn found_out(defect: Defect, more: &[&str], failure: &str) {
    assert_found_out::<UpsertConfig>(defect, &[SMALL, more].concat(), failure);
}

#[test]
fn correct_engines_pass_with_and_without_readers() {
    passes::<Psitri>(&[]);
    passes::<PsitriDirect>(&[]);
    passes::<Model>(&["--batch=777"]);
    for more in [
        &["--readers=2"][..],
        &["--readers=2", "--true-overwrite", "--reads-per-snapshot=7"],
    ] {
        passes::<Psitri>(more);
        passes::<PsitriDirect>(more);
        passes::<Model>(more);
    }
}

#[test]
fn keys_that_repeat_leave_as_many_as_were_drawn() {
    let plain = passes::<Psitri>(&[]).size.expect("sizes");
    assert_eq!(plain.raw_bytes, 15_000 * 48);
    let space = ["--true-overwrite", "--key-space=100"];
    let repeated = passes::<Psitri>(&space).size.expect("sizes");
    assert_eq!(repeated.raw_bytes, 100 * 48);
    assert_eq!(
        passes::<Model>(&space).size.expect("sizes").raw_bytes,
        100 * 48
    );
}

#[test]
fn the_report_has_the_curve_and_the_time_to_close() {
    let report = passes::<Psitri>(&["--readers=1"]);
    assert_eq!(phase_names(&report), ["upserts", "close", "total"]);
    let (upserts, total) = (&report.phases[0], &report.phases[2]);
    assert_eq!((upserts.ops, upserts.commits), (15_000, Some(150)));
    let mean = upserts.figures["harmonic_mean_per_second"];
    assert!((mean / upserts.ops_per_second - 1.0).abs() < 1e-6);
    assert!(upserts.figures["worst_round_per_second"] <= mean);
    assert!(total.seconds > upserts.seconds && total.figures["space_amplification"] > 0.0);
    let names: Vec<_> = report
        .series
        .iter()
        .map(|series| series.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["upserts by round", "file size by round", "reads by round"]
    );
    assert!(report.series.iter().all(|series| series.points.len() == 3));
}

#[test]
fn rows_of_all_rounds_are_added_to_the_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rows.csv");
    let argument = format!("--csv={}", file.display());
    passes::<Model>(&[&argument]);
    passes::<Psitri>(&[&argument, "--compressible"]);
    let text = std::fs::read_to_string(&file).expect("written");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 3, "{text}");
    assert!(lines[0].starts_with("engine,round,upserts_total,seconds,upserts_per_second"));
    assert!(lines[6].starts_with("test,3,15000,"), "{text}");
}

#[test]
fn faulty_engines_are_found_out() {
    found_out(Defect::LosesAPut, &[], "expected 15000");
    found_out(Defect::ChangesAValue, &[], "not the last one written");
    found_out(Defect::MissesARead, &[], "gets of known keys");
    found_out(Defect::ScanSkips, &[], "expected 15000");
    found_out(
        Defect::KeepsFirstValues,
        &["--true-overwrite"],
        "not the last one written",
    );
    found_out(
        Defect::KeepsFirstValues,
        &[
            "--true-overwrite",
            "--key-space=10",
            "--readers=1",
            "--rounds=20",
        ],
        "older than a commit",
    );
}
