//! PsiTri passes the bank workload: published counts, every balance and log entry, fresh snapshots, audits while transfers run.
use clap::Parser;
use psitri_bench::bank::BankConfig;
use psitri_bench::clock::Clock;
use psitri_bench::engine::Engine;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::report::Report;
use psitri_bench::workload::{self, Run};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    config: BankConfig,
}

fn assert_passes<E: Engine>(arguments: &[&str]) -> Report {
    let config = Command::parse_from(std::iter::once(&"test").chain(arguments)).config;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    let report = workload::run::<_, E>(&config, &run).expect("no error");
    assert_eq!(report.failures, Vec::<String>::new());
    report
}

#[test]
fn published_counts_hold_with_buffered_transactions() {
    assert_passes::<Psitri>(&["--num-accounts=100000", "--num-transactions=500000"]);
}

/// Ten rounds a phase, whose times are that of the phase together; the worst of them is a figure.
#[test]
fn rounds_are_the_phase_in_ten_parts() {
    let report = assert_passes::<Psitri>(&[
        "--num-accounts=1000",
        "--num-transactions=20009",
        "--batch-size=7",
    ]);
    for name in ["write_only", "write_read"] {
        let series = report
            .series
            .iter()
            .find(|series| series.name == format!("{name} per round"))
            .expect("a curve");
        let rates: Vec<f64> = series.points.iter().map(|point| point.1).collect();
        assert_eq!(rates.len(), 10);
        let seconds: f64 = rates[..9].iter().map(|rate| 2_000.0 / rate).sum();
        let seconds = seconds + 2_009.0 / rates[9];
        let phase = report.phase(name).expect("a phase");
        assert!((seconds / phase.seconds - 1.0).abs() < 1e-6, "{name}");
        let worst = rates.iter().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(phase.figures["worst_round_per_second"], worst);
    }
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
