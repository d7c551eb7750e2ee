//! Results say which commit they are of, wherever the program is started.
use std::fs;
use std::process::Command;

/// The commit that is checked out where the sources are, if they are in a repository and there is git.
fn checked_out() -> Option<String> {
    let arguments = ["rev-parse", "--short=12", "HEAD"];
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments);
    let output = git.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[test]
fn the_commit_is_that_of_the_sources_and_not_of_the_directory() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args(["suite", "--engine=psitri", "--only=kv", "--repeat=1"])
        .args(["--out=results", "--db-dir=."])
        .current_dir(directory.path())
        .output()
        .expect("psitri-bench starts");
    assert!(output.status.success(), "{output:?}");
    let file = directory.path().join("results/suite.json");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(file).expect("written")).expect("JSON");
    let commit = json["commit"].as_str();
    let commit = commit.map(|commit| commit.trim_end_matches(" with changes").to_owned());
    assert_eq!(commit, checked_out());
}
