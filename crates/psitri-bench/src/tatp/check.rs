//! What a run must show before its figures count.
//!
//! (1) The same transactions on the model have the same outcomes, kind by kind: how many succeeded, and a checksum of everything that was
//! read. (2) At the end the tables hold as many rows as the model, and the sums of what transactions change are the same.
//! (3) The shares of success are those that follow from the definition's proportions, within what chance allows. The last guards the
//! population and the mix, the others the engine.
use super::config::TatpConfig;
use super::mix::{DEFINITIONS, Definition, Mix};
use super::model::Model;
use super::store::{Outcome, Store, Sums};
use anyhow::Result;

/// How many standard deviations are still chance.
const SIGMAS: f64 = 6.0;

/// Of one kind of transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub count: u64,
    pub successes: u64,
    /// Of what was read, in order.
    pub digest: u64,
}

impl Tally {
    #[inline]
    pub fn add(&mut self, outcome: &Outcome) {
        self.count += 1;
        self.successes += u64::from(outcome.is_success());
        // The constant is odd, so no earlier outcome is forgotten.
        self.digest = self
            .digest
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(outcome.digest());
    }

    pub fn success_share(&self) -> f64 {
        self.successes as f64 / self.count as f64
    }
}

pub type Tallies = [Tally; DEFINITIONS.len()];

/// Compares a run with the model; returns what is different.
pub fn compare(config: &TatpConfig, found: &Tallies, sums: &Sums) -> Result<Vec<String>> {
    let mut model = Model::loaded(config.subscribers, config.load_seed);
    let mix = Mix::new(config.subscribers, config.distribution, config.seed);
    let transactions: u64 = found.iter().map(|tally| tally.count).sum();
    let mut expected = Tallies::default();
    for (kind, transaction) in mix.take(transactions as usize) {
        expected[kind as usize].add(&model.run(&transaction)?);
    }
    let mut failures = Vec::new();
    for (definition, (found, expected)) in DEFINITIONS.iter().zip(found.iter().zip(&expected)) {
        let name = definition.name;
        if (found.count, found.successes) != (expected.count, expected.successes) {
            failures.push(format!(
                "{name}: {} of {} succeeded, in the model {} of {}",
                found.successes, found.count, expected.successes, expected.count
            ));
        } else if found != expected {
            failures.push(format!("{name}: other values were read than in the model"));
        }
    }
    let expected = model.sums()?;
    if *sums != expected {
        failures.push(format!(
            "the tables hold {sums:?}, in the model {expected:?}"
        ));
    }
    Ok(failures)
}

/// Whether the share of success is one that the definition explains.
pub fn is_explained(definition: &Definition, tally: &Tally, mix: &Mix) -> bool {
    let (low, high) = definition.success_share;
    // A run can be no surer than the population that it meets: each subscriber is one draw of it, and is met again and again.
    let draws = (tally.count as f64).min(mix.subscribers_effective());
    let chance = |share: f64| SIGMAS * (share * (1.0 - share) / draws).sqrt() + 0.0005;
    (low - chance(low)..=high + chance(high)).contains(&tally.success_share())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tatp::mix::Distribution;

    #[test]
    fn the_model_has_the_success_shares_of_the_definition() -> Result<()> {
        let subscribers = 20_000;
        for distribution in [Distribution::Uniform, Distribution::NonUniform] {
            let mut model = Model::loaded(subscribers, 1);
            let mut tallies = Tallies::default();
            let mix = || Mix::new(subscribers, distribution, 7);
            for (kind, transaction) in mix().take(300_000) {
                tallies[kind as usize].add(&model.run(&transaction)?);
            }
            for (definition, tally) in DEFINITIONS.iter().zip(&tallies) {
                assert!(
                    is_explained(definition, tally, &mix()),
                    "{distribution:?} {}: {} instead of {:?}",
                    definition.name,
                    tally.success_share(),
                    definition.success_share
                );
                let percent = tally.count as f64 / 3_000.0;
                assert!(
                    (percent - definition.percent as f64).abs() < 0.5,
                    "{percent}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn a_share_that_the_definition_does_not_explain_is_found() {
        let mix = Mix::new(20_000, Distribution::Uniform, 7);
        let tally = Tally {
            count: 20_000,
            successes: 10_000,
            digest: 0,
        };
        assert!(!is_explained(&DEFINITIONS[1], &tally, &mix));
    }
}
