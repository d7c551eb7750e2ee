//! Runs that are short are repeated more often, those that are not are not; and results can be given more rounds, but not fewer.
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn suite(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args(["suite", "--engine=psitri", "--only=kv", "--db-dir=."])
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("psitri-bench starts")
}

fn reports(results: &Path) -> Vec<String> {
    let files = fs::read_dir(results.join("runs/kv")).expect("there were runs");
    let mut names: Vec<String> = files
        .map(|file| file.expect("readable").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn and_goes_on_with_more_rounds() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path();

    let output = suite(
        path,
        &["--out=none", "--repeat-short=3", "--short-seconds=0"],
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(reports(&path.join("none")), ["psitri.0.json"]);

    let all = [
        "--out=all",
        "--repeat=1",
        "--repeat-short=2",
        "--short-seconds=3600",
    ];
    let output = suite(path, &["--out=all", "--repeat=1", "--short-seconds=3600"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(reports(&path.join("all")), ["psitri.0.json"]);
    let first = fs::read(path.join("all/runs/kv/psitri.0.json")).expect("it is there");
    let output = suite(path, &all);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        reports(&path.join("all")),
        ["psitri.0.json", "psitri.1.json"]
    );
    let again = fs::read(path.join("all/runs/kv/psitri.0.json")).expect("it is there");
    assert!(first == again, "the first round is run once");

    let output = suite(path, &["--out=all", "--repeat=1", "--short-seconds=3600"]);
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("more rounds"), "{said}");
}
