//! What the bank must look like: the same attempts, computed on a plain vector of balances.
//!
//! It knows every balance and every log entry of a run with any parameters, so an engine that loses or doubles a single transfer
//! is found even where no published count exists.
use super::attempts::{Attempt, Attempts};
use super::config::{BankConfig, Successes};

#[derive(Clone)]
pub struct Balances {
    balances: Vec<u64>,
}

impl Balances {
    fn new(config: &BankConfig) -> Self {
        Self {
            balances: vec![config.initial_balance; config.num_accounts as usize],
        }
    }

    /// Does the transfer if the source has the amount.
    fn transfer(&mut self, attempt: &Attempt) -> bool {
        let (source, destination) = (attempt.source as usize, attempt.destination as usize);
        if self.balances[source] < attempt.amount {
            return false;
        }
        self.balances[source] -= attempt.amount;
        self.balances[destination] += attempt.amount;
        true
    }

    fn run(&mut self, config: &BankConfig, seed: u64, count: u64) -> u64 {
        let mut attempts = attempts(config, seed);
        (0..count)
            .map(|_| u64::from(self.transfer(&attempts.draw())))
            .sum()
    }

    pub fn as_slice(&self) -> &[u64] {
        &self.balances
    }
}

fn attempts(config: &BankConfig, seed: u64) -> Attempts {
    Attempts::new(seed, config.num_accounts as usize, config.initial_balance)
}

/// The expected outcome of a run.
pub struct Oracle {
    pub successes: Successes,
    pub balances: Balances,
    after_warm_up: Balances,
}

impl Oracle {
    pub fn new(config: &BankConfig) -> Self {
        let mut balances = Balances::new(config);
        let warm_up = balances.run(config, config.warm_up_seed(), config.warm_up_attempts());
        let after_warm_up = balances.clone();
        let write_only = balances.run(config, config.write_only_seed(), config.num_transactions);
        let write_read = balances.run(config, config.write_read_seed(), config.num_transactions);
        Self {
            successes: Successes {
                warm_up,
                write_only,
                write_read,
            },
            balances,
            after_warm_up,
        }
    }

    /// The transfers of the two measured phases in the order of their log entries: sequence numbers 1, 2, 3 and so on.
    pub fn transfers(&self, config: &BankConfig) -> impl Iterator<Item = Attempt> {
        let mut balances = self.after_warm_up.clone();
        let count = config.num_transactions;
        [config.write_only_seed(), config.write_read_seed()]
            .map(|seed| attempts(config, seed))
            .into_iter()
            .flat_map(move |mut attempts| (0..count).map(move |_| attempts.draw()))
            .filter(move |attempt| balances.transfer(attempt))
    }
}
