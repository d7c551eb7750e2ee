//! What users of the command see: the last line, exit codes, the JSON file, and that nothing of theirs is removed unasked.
use std::fs;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args(["bank", "--engine=model", "--num-accounts=100"])
        .args(arguments)
        .output()
        .expect("psitri-bench starts")
}

#[test]
fn a_run_ends_with_pass_and_writes_its_figures() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("report.json");
    let file_text = file.to_str().expect("a text path");
    let output = bench(&["--num-transactions=5000", "--json", file_text, "--limit"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with("PASS")),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("written")).expect("JSON");
    assert_eq!(json["validation"], "pass");
    let names: Vec<_> = json["phases"]
        .as_array()
        .expect("phases")
        .iter()
        .map(|phase| &phase["name"])
        .collect();
    for name in ["bulk_load", "write_only", "write_read", "scan"] {
        assert!(
            names.iter().any(|&found| found == name),
            "no phase {name} in {names:?}"
        );
    }
    let write_read = json["phases"]
        .as_array()
        .and_then(|phases| phases.iter().find(|phase| phase["name"] == "write_read"));
    let write_read = write_read.expect("found above");
    assert!(
        write_read["latency_us"]["p999"].is_number() && write_read["reads_per_second"].is_number()
    );
    assert!(json["limit_share"].is_number() && json["size"]["raw_bytes"].is_number());
}

#[test]
fn what_is_at_the_path_stays_unless_overwritten() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let precious = directory.path().join("precious");
    fs::write(&precious, "mine").expect("written");
    let path = directory.path().to_str().expect("a text path");
    let output = bench(&["--num-transactions=10", "--db-path", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--overwrite"));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("FAIL\n"));
    assert!(precious.exists());
    assert!(
        bench(&["--num-transactions=10", "--db-path", path, "--overwrite"])
            .status
            .success()
    );
    assert!(!precious.exists());
}

#[test]
fn impossible_parameters_are_wrong_usage() {
    for argument in [
        "--num-accounts=1",
        "--batch-size=0",
        "--initial-balance=0",
        "--overwrite",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
            .args(["bank", argument])
            .output();
        assert_eq!(
            output.expect("psitri-bench starts").status.code(),
            Some(2),
            "{argument}"
        );
    }
}
