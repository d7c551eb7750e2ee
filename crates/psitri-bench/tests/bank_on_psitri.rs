//! PsiTri passes the bank workload: published counts, every balance and log entry, fresh snapshots, audits while transfers run.
use clap::Parser;
use psitri_bench::bank::BankConfig;
use psitri_bench::clock::Clock;
use psitri_bench::engine::Engine;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::workload::{self, Run};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    config: BankConfig,
}

fn assert_passes<E: Engine>(arguments: &[&str]) {
    let config = Command::parse_from(std::iter::once(&"test").chain(arguments)).config;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    let report = workload::run::<_, E>(&config, &run).expect("no error");
    assert_eq!(report.failures, Vec::<String>::new());
}

#[test]
fn published_counts_hold_with_buffered_transactions() {
    assert_passes::<Psitri>(&["--num-accounts=100000", "--num-transactions=500000"]);
}

#[test]
fn audits_pass_while_batches_commit() {
    for batch in ["1", "100", "10000"] {
        assert_passes::<Psitri>(&[
            "--num-accounts=2000",
            "--num-transactions=60000",
            "--audit",
            "--batch-size",
            batch,
        ]);
    }
}

#[test]
fn every_read_mode_finds_every_account() {
    for mode in ["latest", "buffered", "trie"] {
        assert_passes::<Psitri>(&[
            "--num-accounts=2000",
            "--num-transactions=40000",
            "--audit",
            "--read-mode",
            mode,
        ]);
    }
}

#[test]
fn direct_transactions_pass() {
    assert_passes::<PsitriDirect>(&[
        "--num-accounts=2000",
        "--num-transactions=20000",
        "--batch-size=10",
        "--audit",
    ]);
}

#[test]
fn durable_commits_pass() {
    for mode in ["async", "sync", "write-through"] {
        assert_passes::<Psitri>(&[
            "--num-accounts=500",
            "--num-transactions=1000",
            "--batch-size=10",
            "--sync-every=20",
            "--sync-mode",
            mode,
        ]);
    }
}
