//! The bank workload arrives at the published counts with a correct engine, and finds out engines that are not.
use anyhow::Result;
use clap::Parser;
use psitri_bench::bank::BankConfig;
use psitri_bench::clock::Clock;
use psitri_bench::engine::{
    Batch, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot, Writer,
};
use psitri_bench::engines::model::{Model, ModelBatch, ModelCursor, ModelSnapshot};
use psitri_bench::report::{Report, Validation};
use psitri_bench::workload::{self, Run};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Parser)]
#[command(args_override_self = true)]
struct Command {
    #[command(flatten)]
    config: BankConfig,
}

fn config(arguments: &[&str]) -> BankConfig {
    Command::parse_from(std::iter::once(&"test").chain(arguments)).config
}

fn run<E: Engine>(arguments: &[&str]) -> Report {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    workload::run::<_, E>(&config(arguments), &run).expect("no engine error")
}

fn successes(report: &Report) -> Vec<u64> {
    report
        .phases
        .iter()
        .filter_map(|phase| phase.successes)
        .collect()
}

const PUBLISHED: &[&str] = &["--num-accounts=100000", "--num-transactions=500000"];
const SMALL: &[&str] = &["--num-accounts=1000", "--num-transactions=20000"];

fn with<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

#[test]
fn published_counts_hold_at_batch_1() {
    let report = run::<Model>(PUBLISHED);
    assert_eq!(report.failures, Vec::<String>::new());
    assert_eq!(successes(&report), [347_804, 325_993]);
}

#[test]
fn published_counts_hold_at_a_batch_that_does_not_divide_the_attempts() {
    let report = run::<Model>(&with(PUBLISHED, &["--batch-size=7777"]));
    assert_eq!(report.failures, Vec::<String>::new());
    assert_eq!(successes(&report), [347_804, 325_993]);
}

/// The larger published row, for a machine with a minute to spare: `cargo test -p psitri-bench -- --ignored`.
#[test]
#[ignore = "takes a minute"]
fn published_counts_hold_for_a_million_accounts() {
    let report = run::<Model>(&["--num-accounts=1000000", "--num-transactions=1000000"]);
    assert_eq!(report.failures, Vec::<String>::new());
    assert_eq!(successes(&report), [811_292, 715_997]);
}

#[test]
fn audits_and_the_limit_pass_with_a_correct_engine() {
    let report = run::<Model>(&with(SMALL, &["--audit", "--limit", "--batch-size=10"]));
    assert_eq!(report.failures, Vec::<String>::new());
    assert!(report.limit_share.is_some_and(|share| share > 0.0));
    assert!(report.checks.iter().any(|check| check.contains("audits")));
}

#[test]
fn odd_and_tiny_numbers_of_accounts_work() {
    for accounts in ["2", "3", "5"] {
        let report = run::<Model>(&[
            "--num-accounts",
            accounts,
            "--num-transactions=1000",
            "--initial-balance=10",
        ]);
        assert_eq!(report.failures, Vec::<String>::new(), "{accounts} accounts");
    }
}

#[test]
fn no_attempts_at_all_still_pass() {
    let report = run::<Model>(&["--num-accounts=10", "--num-transactions=0"]);
    assert_eq!(report.failures, Vec::<String>::new());
}

/// Ways in which a [`Faulty`] engine is wrong.
const LOSE_A_PUT: u8 = 1;
const FORGET_OWN_WRITES: u8 = 2;
const STALE_SNAPSHOTS: u8 = 3;
const MISS_READS: u8 = 4;
const SCAN_SKIPS: u8 = 5;
const TORN_SNAPSHOTS: u8 = 6;

/// The model with one defect.
struct Faulty<const DEFECT: u8> {
    model: Model,
    puts: AtomicU64,
    reads: AtomicU64,
}

struct FaultyBatch<'a, const DEFECT: u8> {
    engine: &'a Faulty<DEFECT>,
    batch: ModelBatch<'a>,
}

struct FaultySnapshot<'a, const DEFECT: u8> {
    engine: &'a Faulty<DEFECT>,
    snapshot: ModelSnapshot<'a>,
}

impl<const DEFECT: u8> Writer for Faulty<DEFECT> {
    type Batch<'a> = FaultyBatch<'a, DEFECT>;

    fn begin(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        let batch = self.model.begin()?;
        Ok(FaultyBatch {
            engine: self,
            batch,
        })
    }

    fn sync(&self) -> Result<()> {
        self.model.sync()
    }
}

impl<const DEFECT: u8> Batch for FaultyBatch<'_, DEFECT> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if DEFECT == FORGET_OWN_WRITES {
            return self.engine.model.begin()?.read(key, look);
        }
        self.batch.read(key, look)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.engine.puts.fetch_add(1, Ordering::Relaxed);
        if DEFECT == LOSE_A_PUT && put == 9_000 {
            return Ok(());
        }
        self.batch.put(key, value)?;
        if DEFECT == TORN_SNAPSHOTS {
            // Publishes every write at once.
            let batch = std::mem::replace(&mut self.batch, self.engine.model.begin()?);
            batch.commit()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.delete(key)
    }

    fn commit(self) -> Result<()> {
        self.batch.commit()
    }
}

impl<const DEFECT: u8> Engine for Faulty<DEFECT> {
    type Snapshot<'a> = FaultySnapshot<'a, DEFECT>;
    type Writes<'a> = FaultyBatch<'a, DEFECT>;

    fn describe(settings: &Settings) -> Description {
        Model::describe(settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::create(path, settings)
    }

    fn begin_writes(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        self.begin()
    }

    fn compact(&mut self) -> Result<bool> {
        self.model.compact()
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self {
            model: Model::create(path, settings)?,
            puts: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        })
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        self.model.bulk_load(entries)
    }

    fn snapshot(&self, mode: ReadMode) -> Result<FaultySnapshot<'_, DEFECT>> {
        let snapshot = self.model.snapshot(mode)?;
        Ok(FaultySnapshot {
            engine: self,
            snapshot,
        })
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn sizes(&self) -> Result<EngineSizes> {
        self.model.sizes()
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<const DEFECT: u8> Snapshot for FaultySnapshot<'_, DEFECT> {
    type Cursor<'c>
        = ModelCursor<'c>
    where
        Self: 'c;

    fn cursor(&mut self) -> Result<ModelCursor<'_>> {
        self.snapshot.cursor()
    }

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let read = self.engine.reads.fetch_add(1, Ordering::Relaxed);
        let stale = DEFECT == STALE_SNAPSHOTS && key.len() == 11;
        if stale || (DEFECT == MISS_READS && read == 50) {
            return Ok(look(None));
        }
        self.snapshot.read(key, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut position = 0;
        self.snapshot.scan(|key, value| {
            position += 1;
            if !(DEFECT == SCAN_SKIPS && position == 500) {
                each(key, value);
            }
        })
    }
}

fn assert_found_out<const DEFECT: u8>(arguments: &[&str], failure: &str) {
    let report = run::<Faulty<DEFECT>>(&with(SMALL, arguments));
    assert_eq!(report.validation, Validation::Fail);
    assert!(
        report.failures.iter().any(|found| found.contains(failure)),
        "{:?}",
        report.failures
    );
    assert!(report.phases.is_empty(), "a failed run has no figures");
}

#[test]
fn a_lost_put_is_found() {
    assert_found_out::<LOSE_A_PUT>(&[], "expected");
}

#[test]
fn a_batch_that_does_not_see_its_own_writes_is_found() {
    assert_found_out::<FORGET_OWN_WRITES>(&["--batch-size=1000"], "successful transfers");
}

#[test]
fn stale_snapshots_are_found() {
    assert_found_out::<STALE_SNAPSHOTS>(&[], "missed a commit");
}

#[test]
fn a_read_that_misses_is_found() {
    assert_found_out::<MISS_READS>(&[], "found their account");
}

#[test]
fn a_scan_that_skips_is_found() {
    assert_found_out::<SCAN_SKIPS>(&[], "the number of");
}

#[test]
fn a_snapshot_in_the_middle_of_a_transfer_is_found() {
    assert_found_out::<TORN_SNAPSHOTS>(&["--audit", "--num-accounts=200"], "audit");
}
