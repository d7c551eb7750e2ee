//! The writing side: attempts transfers, commits every batch, and times each batch from what is done for it first to the end of its commit: engines
//! differ in what they do before.
//!
//! One thread. The harness allocates nothing per transfer. Attempts are drawn a block ahead and their names asked for then: they have come by the
//! time they are needed, and an engine is charged for its own cache misses only.
//!
//! The accounts of several transfers are announced at once, for engines that can make use of it: as many as are asked for, and none of the next
//! commit, since what a commit answers for must have arrived before it. Those that a commit begins with are announced before it begins.
use super::attempts::{Attempt, Attempts};
use super::encoding::{self, LogValue};
use crate::clock::Clock;
use crate::engine::{Batch, Writer};
use crate::latency::Latency;
use crate::names::Name;
use crate::prefetch::prefetch;
use crate::progress::Progress;
use crate::throughput::Throughput;
use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK_ATTEMPTS: usize = 16;
/// At most the accounts of so many transfers are announced at once.
pub const ANNOUNCE_MAX: u64 = 8;
/// A phase is divided into so many rounds of the same number of attempts.
const ROUNDS: u64 = 10;
/// In a batch that is long, the clock is looked at after so many attempts.
const LOOK_EVERY_ATTEMPTS: u64 = 256;

/// One phase of writing.
pub struct Plan<'a> {
    pub names: &'a [Name],
    pub attempts: u64,
    pub seed: u64,
    pub amount_max: u64,
    /// Log entries are numbered from the one after this.
    pub sequence_start: u64,
    pub batch_size: u64,
    /// Commits between two syncs; 0 for none.
    pub sync_every: u64,
    /// The accounts of so many transfers of a batch are announced at once, at most [`ANNOUNCE_MAX`]; 0 is none.
    pub announce: u64,
}

pub struct Outcome {
    pub seconds: f64,
    pub successes: u64,
    pub commits: u64,
    pub commit_latency: Latency,
    pub throughput: Throughput,
    /// Attempts a second of each round; none if there are fewer attempts than rounds.
    pub rounds: Vec<f64>,
}

/// An attempt with the names fetched.
#[derive(Clone, Copy)]
struct Transfer {
    source: Name,
    destination: Name,
    amount: u64,
}

impl Transfer {
    const EMPTY: Self = Self {
        source: Name::EMPTY,
        destination: Name::EMPTY,
        amount: 0,
    };

    #[inline]
    fn new(names: &[Name], attempt: Attempt) -> Self {
        Self {
            source: names[attempt.source as usize],
            destination: names[attempt.destination as usize],
            amount: attempt.amount,
        }
    }

    #[inline]
    fn accounts(&self) -> [&[u8]; 2] {
        [self.source.as_bytes(), self.destination.as_bytes()]
    }

    /// Moves the amount if the source has it. False if not, or if an account is missing: the counts would show it.
    #[inline]
    fn execute<B: Batch>(&self, batch: &mut B, sequence: u64) -> Result<bool> {
        let [source, destination] = self.accounts();
        let balance_of = |value: Option<&[u8]>| value.and_then(encoding::balance);
        let Some(source_balance) = batch.read(source, balance_of)? else {
            return Ok(false);
        };
        if source_balance < self.amount {
            return Ok(false);
        }
        let Some(destination_balance) = batch.read(destination, balance_of)? else {
            return Ok(false);
        };
        batch.put(source, &(source_balance - self.amount).to_le_bytes())?;
        batch.put(
            destination,
            &(destination_balance + self.amount).to_le_bytes(),
        )?;
        let log_value = LogValue::new(&self.source, &self.destination, self.amount);
        batch.put(&encoding::log_key(sequence), log_value.as_bytes())?;
        Ok(true)
    }
}

/// The transfers of a phase, one after the other.
struct Transfers<'a> {
    names: &'a [Name],
    attempts: Attempts,
    /// The block after the present one.
    coming: [Attempt; BLOCK_ATTEMPTS],
    block: [Transfer; BLOCK_ATTEMPTS],
    position: usize,
    /// Up to where the block was announced.
    announced: usize,
}

impl<'a> Transfers<'a> {
    fn start(plan: &Plan<'a>) -> Self {
        let mut transfers = Self {
            names: plan.names,
            attempts: Attempts::new(plan.seed, plan.names.len(), plan.amount_max),
            coming: [Attempt::default(); BLOCK_ATTEMPTS],
            block: [Transfer::EMPTY; BLOCK_ATTEMPTS],
            position: BLOCK_ATTEMPTS,
            announced: BLOCK_ATTEMPTS,
        };
        transfers.draw();
        transfers
    }

    /// The next transfer. It is announced here, with others that come next, if it was not yet: `most` of them, this one included.
    #[inline]
    fn next<B: Batch>(&mut self, batch: &B, most: u64) -> &Transfer {
        if self.position == self.announced {
            self.announce(most, |keys| batch.announce(keys));
        }
        self.position += 1;
        &self.block[self.position - 1]
    }

    /// Announces the first transfers of a batch that is not begun yet.
    #[inline]
    fn foretell<W: Writer>(&mut self, writer: &W, most: u64) {
        if most > 0 {
            self.announce(most, |keys| writer.foretell(keys));
        }
    }

    /// Tells the accounts of the next transfers, of `most` of them at most; nothing if that is 0.
    #[inline]
    fn announce(&mut self, most: u64, tell: impl FnOnce(&[&[u8]])) {
        if self.position == BLOCK_ATTEMPTS {
            self.block = self.coming.map(|it| Transfer::new(self.names, it));
            self.position = 0;
            self.announced = 0;
            self.draw();
        }
        let coming = &self.block[self.position..];
        let count = most.min(ANNOUNCE_MAX.min(coming.len() as u64)) as usize;
        if count <= 1 {
            // One transfer a commit: as cheap as if there were no others.
            if count == 1 {
                tell(&coming[0].accounts());
            }
            self.announced = self.position + 1;
            return;
        }
        let mut keys = [&[][..]; 2 * ANNOUNCE_MAX as usize];
        for (pair, next) in keys.chunks_exact_mut(2).zip(&coming[..count]) {
            pair.copy_from_slice(&next.accounts());
        }
        tell(&keys[..2 * count]);
        self.announced = self.position + count;
    }

    fn draw(&mut self) {
        self.coming.fill_with(|| self.attempts.draw());
        for attempt in &self.coming {
            prefetch(&self.names[attempt.source as usize]);
            prefetch(&self.names[attempt.destination as usize]);
        }
    }
}

/// The moments at which rounds end. What is committed with the end of the phase belongs to the last one.
struct Rounds {
    attempts: u64,
    each: u64,
    /// After how many attempts the present round ends; 0 for the last one, and if there are fewer attempts than rounds.
    end: u64,
    ticks: Vec<u64>,
}

impl Rounds {
    fn start(attempts: u64, start: u64) -> Self {
        Self {
            attempts,
            each: attempts / ROUNDS,
            end: attempts / ROUNDS,
            ticks: vec![start],
        }
    }

    #[cold]
    fn next(&mut self, clock: &Clock) {
        self.ticks.push(clock.ticks());
        let is_last = self.ticks.len() as u64 == ROUNDS;
        self.end = if is_last { 0 } else { self.end + self.each };
    }

    fn finish(&mut self, end: u64) {
        self.ticks.push(end);
    }

    fn rates(&self, clock: &Clock) -> Vec<f64> {
        if self.each == 0 {
            return Vec::new();
        }
        let last = self.attempts - (ROUNDS - 1) * self.each;
        self.ticks
            .windows(2)
            .zip(1..)
            .map(|(ends, round)| {
                let attempts = if round == ROUNDS { last } else { self.each };
                attempts as f64 / clock.seconds(ends[0], ends[1])
            })
            .collect()
    }
}

/// Runs the phase. After each commit, `committed` holds the sequence number of the newest log entry that every later snapshot must see.
pub fn run<W: Writer>(
    writer: &W,
    plan: &Plan<'_>,
    clock: &Clock,
    progress: &Progress,
    committed: &AtomicU64,
) -> Result<Outcome> {
    let mut transfers = Transfers::start(plan);
    let mut latency = Latency::new();
    let (mut successes, mut commits, mut batched) = (0u64, 0u64, 0u64);

    let start = clock.ticks();
    let mut throughput = Throughput::start(clock, start);
    let mut rounds = Rounds::start(plan.attempts, start);
    let mut began = start;
    let most_of = |left: u64| plan.announce.min(plan.batch_size).min(left);
    transfers.foretell(writer, most_of(plan.attempts));
    let mut batch = writer.begin()?;
    for done in 1..=plan.attempts {
        let sequence = plan.sequence_start + successes + 1;
        let left = (plan.batch_size - batched).min(plan.attempts - done + 1);
        let transfer = transfers.next(&batch, plan.announce.min(left));
        successes += u64::from(transfer.execute(&mut batch, sequence)?);
        if done == rounds.end {
            rounds.next(clock);
        }
        batched += 1;
        if batched == plan.batch_size {
            batch.commit()?;
            let after = clock.ticks();
            latency.record(clock.nanoseconds(began, after));
            began = after;
            committed.store(plan.sequence_start + successes, Ordering::Release);
            commits += 1;
            batched = 0;
            if plan.sync_every > 0 && commits.is_multiple_of(plan.sync_every) {
                writer.sync()?;
            }
            // What comes next is known as soon as this was answered for.
            transfers.foretell(writer, most_of(plan.attempts - done));
            if throughput.at(after, done) {
                progress.at(done);
            }
            batch = writer.begin()?;
        } else if batched.is_multiple_of(LOOK_EVERY_ATTEMPTS) && throughput.at(clock.ticks(), done)
        {
            progress.at(done);
        }
    }
    // The last batch may be short or empty; it belongs to the phase but not to the latencies.
    batch.commit()?;
    committed.store(plan.sequence_start + successes, Ordering::Release);
    let end = clock.ticks();
    throughput.at(end, plan.attempts);
    rounds.finish(end);
    Ok(Outcome {
        seconds: clock.seconds(start, end),
        successes,
        commits,
        commit_latency: latency,
        throughput,
        rounds: rounds.rates(clock),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::End;
    use crate::names;
    use std::cell::RefCell;

    /// What a commit was told of, and what it asked for.
    #[derive(Default)]
    struct Told {
        is_foretold: bool,
        announced: Vec<Vec<u8>>,
        read: Vec<Vec<u8>>,
    }

    fn owned(keys: &[&[u8]]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| key.to_vec()).collect()
    }

    /// The commits, and what the next one was told before it began.
    #[derive(Default)]
    struct Listener(RefCell<Vec<Told>>, RefCell<Vec<Vec<u8>>>);

    impl Writer for Listener {
        type Batch<'a> = &'a Listener;

        fn begin(&self) -> Result<&Listener> {
            let foretold = self.1.take();
            self.0.borrow_mut().push(Told {
                is_foretold: !foretold.is_empty(),
                announced: foretold,
                ..Told::default()
            });
            Ok(self)
        }

        fn foretell(&self, keys: &[&[u8]]) {
            assert_eq!(self.1.replace(owned(keys)).len(), 0, "told twice");
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    impl Batch for &Listener {
        fn announce(&self, keys: &[&[u8]]) {
            let mut all = self.0.borrow_mut();
            let told = all.last_mut().unwrap();
            assert_eq!(told.announced.len(), told.read.len(), "too early");
            told.announced.extend(owned(keys));
        }

        fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
            self.0
                .borrow_mut()
                .last_mut()
                .unwrap()
                .read
                .push(key.to_vec());
            Ok(look(Some(&1000u64.to_le_bytes()[..])))
        }

        fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
            Ok(())
        }

        fn delete(&mut self, _: &[u8]) -> Result<()> {
            Ok(())
        }

        fn pop(&mut self, _: End, _: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
            Ok(false)
        }

        fn commit(self) -> Result<()> {
            Ok(())
        }
    }

    /// Each commit is told of all accounts that it reads, once, in their order, and of no others.
    #[test]
    fn a_commit_is_told_of_its_own_accounts() {
        let names = names::names(100, 1);
        for (batch_size, announce) in [
            (1, 8),
            (1, 0),
            (7, 8),
            (100, 8),
            (100, 3),
            (100, 1),
            (100, 0),
            (1000, 8),
        ] {
            let listener = Listener::default();
            let plan = Plan {
                names: &names,
                attempts: 250,
                seed: 1,
                amount_max: 1,
                sequence_start: 0,
                batch_size,
                sync_every: 0,
                announce,
            };
            let progress = Progress::new("transfers", plan.attempts);
            let outcome = run(
                &listener,
                &plan,
                &Clock::new(),
                &progress,
                &AtomicU64::new(0),
            );
            assert_eq!(outcome.unwrap().successes, plan.attempts);
            let commits = listener.0.into_inner();
            assert_eq!(
                commits.iter().map(|told| told.read.len()).sum::<usize>(),
                500
            );
            for told in commits {
                if announce == 0 {
                    assert!(told.announced.is_empty() && !told.is_foretold);
                    continue;
                }
                assert_eq!(told.announced, told.read);
                assert_eq!(told.is_foretold, !told.read.is_empty());
            }
        }
    }
}
