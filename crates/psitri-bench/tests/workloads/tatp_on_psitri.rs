//! TATP on the native engine passes its own checks, and the checks find an engine that does something else.
use anyhow::Result;
use psitri_bench::sql::engine::SqlSettings;
use psitri_bench::tatp::TatpConfig;
use psitri_bench::tatp::check::{self, Tallies};
use psitri_bench::tatp::mix::{Distribution, Kind, Mix, Transaction};
use psitri_bench::tatp::model::Model;
use psitri_bench::tatp::native::Native;
use psitri_bench::tatp::population::{Rows, population};
use psitri_bench::tatp::store::{Outcome, Store, Sums};
use psitri_bench::workload::RunOptions;
use std::process::Command;

const SUBSCRIBERS: u32 = 2_000;
const TRANSACTIONS: usize = 20_000;

fn config(distribution: Distribution) -> TatpConfig {
    TatpConfig {
        subscribers: SUBSCRIBERS,
        duration: 1,
        transactions: Some(TRANSACTIONS as u64),
        distribution,
        load_seed: 12345,
        seed: 42,
        settings: SqlSettings::default(),
        run: RunOptions {
            engine: "psitri".to_owned(),
            repeat: 1,
            db_path: None,
            overwrite: false,
            json: None,
        },
    }
}

/// Loads the store, runs the transactions, and compares with the model.
fn failures<S: Store>(store: &mut S, config: &TatpConfig) -> Result<Vec<String>> {
    let rows: Vec<Rows> = population(config.subscribers, config.load_seed).collect();
    for rows in rows.chunks(500) {
        store.load(rows)?;
    }
    let mut tallies = Tallies::default();
    let mix = Mix::new(config.subscribers, config.distribution, config.seed);
    for (kind, transaction) in mix.take(TRANSACTIONS) {
        tallies[kind as usize].add(&store.run(&transaction)?);
    }
    check::compare(config, &tallies, &store.sums()?)
}

#[test]
fn psitri_does_what_the_model_does() -> Result<()> {
    for distribution in [Distribution::NonUniform, Distribution::Uniform] {
        let directory = tempfile::tempdir()?;
        let config = config(distribution);
        let mut store = Native::create(&directory.path().join("db"), &config.settings)?;
        assert_eq!(failures(&mut store, &config)?, [""; 0]);
        store.close()?;
    }
    Ok(())
}

/// The model with one defect.
struct Faulty {
    model: Model,
    defect: fn(&mut Model, &Transaction) -> Result<Outcome>,
}

impl Store for Faulty {
    fn load(&mut self, rows: &[Rows]) -> Result<()> {
        self.model.load(rows)
    }

    fn run(&mut self, transaction: &Transaction) -> Result<Outcome> {
        (self.defect)(&mut self.model, transaction)
    }

    fn sums(&mut self) -> Result<Sums> {
        self.model.sums()
    }
}

fn failures_of(defect: fn(&mut Model, &Transaction) -> Result<Outcome>) -> Result<String> {
    let mut store = Faulty {
        model: Model::default(),
        defect,
    };
    Ok(failures(&mut store, &config(Distribution::NonUniform))?.join("\n"))
}

#[test]
fn a_lost_update_is_found() -> Result<()> {
    let found = failures_of(|model, transaction| match transaction {
        Transaction::UpdateLocation { .. } => Ok(Outcome::Done(true)),
        _ => model.run(transaction),
    })?;
    assert!(
        found.contains("get_subscriber_data: other values"),
        "{found}"
    );
    assert!(found.contains("the tables hold"), "{found}");
    Ok(())
}

#[test]
fn a_transaction_that_claims_to_succeed_is_found() -> Result<()> {
    let found = failures_of(|model, transaction| match transaction {
        Transaction::UpdateSubscriberData { .. } => {
            model.run(transaction)?;
            Ok(Outcome::Done(true))
        }
        _ => model.run(transaction),
    })?;
    assert!(found.contains("update_subscriber_data:"), "{found}");
    Ok(())
}

#[test]
fn a_model_without_a_defect_is_not_accused() -> Result<()> {
    assert_eq!(
        failures_of(|model, transaction| model.run(transaction))?,
        ""
    );
    Ok(())
}

#[test]
fn kinds_count_from_zero() {
    assert_eq!(Kind::GetSubscriberData as usize, 0);
    assert_eq!(Kind::DeleteCallForwarding as usize, 6);
}

#[test]
fn the_program_runs_it_and_passes() {
    let output = Command::new(env!("CARGO_BIN_EXE_psitri-bench"))
        .args(["tatp", "--subscribers=2000", "--transactions=20000"])
        .output()
        .expect("psitri-bench starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("get_new_destination") && text.contains("PASS"),
        "{text}"
    );
}
