//! Which transfers are attempted: a stream that depends on nothing but the phase's seed, the number of accounts and the initial balance.
use crate::rng::Draws;

/// One attempt, accounts as indexes into the list of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    pub source: u32,
    pub destination: u32,
    pub amount: u64,
}

pub struct Attempts {
    draws: Draws,
    accounts: u64,
    amount_max: u64,
}

impl Attempts {
    /// At least two accounts, and amounts from one to `amount_max`.
    pub fn new(seed: u64, accounts: usize, amount_max: u64) -> Self {
        assert!(
            accounts >= 2 && u32::try_from(accounts).is_ok(),
            "two accounts to four thousand million"
        );
        assert!(amount_max >= 1, "an amount is at least one");
        Self {
            draws: Draws::new(seed),
            accounts: accounts as u64,
            amount_max,
        }
    }

    #[inline]
    pub fn draw(&mut self) -> Attempt {
        let source = self.draws.triangular(self.accounts);
        let mut destination = self.draws.triangular(self.accounts);
        let amount = 1 + self.draws.below(self.amount_max);
        if destination == source {
            destination = (source + 1) % self.accounts;
        }
        Attempt {
            source: source as u32,
            destination: destination as u32,
            amount,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_never_has_one_account_on_both_sides() {
        let mut attempts = Attempts::new(3, 3, 10);
        for _ in 0..1_000 {
            let attempt = attempts.draw();
            assert_ne!(attempt.source, attempt.destination);
            assert!((1..=10).contains(&attempt.amount));
        }
    }
}
