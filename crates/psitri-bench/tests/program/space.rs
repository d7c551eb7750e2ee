//! What users of `psitri-bench space` get: a table and two charts for each workload, and a line of JSON for each phase.
use std::{fs, process::Command};

#[test]
fn every_workload_leaves_a_table_charts_and_rows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("out");
    let output = Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args([
            "space",
            "--scale=0.002",
            "--sample-ms=5",
            "--write-buffer-mib=1",
        ])
        .arg("--out")
        .arg(&out)
        .arg("--db-dir")
        .arg(directory.path())
        .output()
        .expect("psitri-bench starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.ends_with("PASS\n"), "{text}");
    let rows: Vec<serde_json::Value> = fs::read_to_string(out.join("space.json"))
        .expect("rows")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    for workload in ["bank", "overwrite", "delete", "drop", "reader", "values"] {
        let phases: Vec<_> = rows
            .iter()
            .filter(|row| row["workload"] == workload)
            .collect();
        let last = phases.last().expect("a phase");
        assert_eq!(last["phase"], "compact");
        // Too small for a ratio that says something.
        assert!(last["ratio_end"].is_null() && last["end"]["data_bytes"].is_u64());
        let table = fs::read_to_string(out.join(format!("{workload}.csv"))).expect("a table");
        assert!(table.starts_with("second,phase,data_bytes,"), "{table}");
        // One sample at the begin and one at the end of each phase.
        assert!(table.lines().count() > 2 * phases.len(), "{table}");
        for chart in [format!("{workload}.svg"), format!("{workload}-ratio.svg")] {
            let drawing = fs::read_to_string(out.join(chart)).expect("a chart");
            assert!(drawing.contains("</svg>"));
        }
    }
}

#[test]
fn a_scale_of_nothing_is_wrong_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args(["space", "--scale=0"])
        .output()
        .expect("psitri-bench starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--scale"));
}
