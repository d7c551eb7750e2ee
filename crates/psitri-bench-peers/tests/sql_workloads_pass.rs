//! The workloads in SQL pass their own checks on every SQL engine, one by one and several side by side.
#![cfg(feature = "sqlite")]
use std::process::{Command, Output};

fn peers(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_psitri-bench-peers"))
        .args(arguments)
        .output()
        .expect("psitri-bench-peers starts")
}

fn assert_passes(arguments: &[&str]) -> String {
    let output = peers(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}{errors}");
    text
}

#[test]
fn inserts_pass_in_every_mode() {
    for arguments in [
        &["sql-insert", "--rows=1000"][..],
        &["sql-insert", "--rows=500", "--synchronous=normal"],
        &["sql-insert", "--rows=100", "--synchronous=full"],
        &["sql-insert", "--rows=100", "--journal=delete"],
    ] {
        let text = assert_passes(arguments);
        assert!(text.contains("text_autocommit"), "{text}");
    }
}

#[test]
fn tatp_passes_on_sqlite() {
    for distribution in ["non-uniform", "uniform"] {
        let distribution = format!("--distribution={distribution}");
        let text = assert_passes(&[
            "tatp",
            "--engine=sqlite",
            "--subscribers=1000",
            "--transactions=10000",
            &distribution,
        ]);
        assert!(text.contains("delete_call_forwarding"), "{text}");
    }
}

#[test]
fn engines_run_side_by_side() {
    let text = assert_passes(&[
        "tatp",
        "--engine=psitri,sqlite",
        "--repeat=2",
        "--subscribers=500",
        "--transactions=1000",
    ]);
    assert!(text.contains("psitri") && text.contains("sqlite"), "{text}");
}

#[test]
fn an_engine_without_sql_is_named_as_unknown() {
    let output = peers(&["sql-insert", "--engine=psitri"]);
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("there are: sqlite"), "{errors}");
}
