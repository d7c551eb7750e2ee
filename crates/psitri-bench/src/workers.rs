//! Threads that start at the same moment and are timed together: latencies and throughput of each, merged.
//!
//! The time of a phase runs from the begin of the first thread to the end of the last one; all are ready then. The threads themselves look at
//! the clock: one that watched them might get no processor while they run.
//! A thread that fails ends alone; its error is that of the phase, once the others are through.
use crate::clock::Clock;
use crate::latency::Latency;
use crate::throughput::Throughput;
use anyhow::{Result, anyhow};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells others to stop when it goes away, a panic included: without, they would go on for ever, and whoever joins them would wait.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What one thread notes down.
pub struct Recorder<'c> {
    clock: &'c Clock,
    latency: Latency,
    throughput: Throughput,
    done: u64,
}

impl<'c> Recorder<'c> {
    pub fn start(clock: &'c Clock) -> Self {
        Self {
            clock,
            latency: Latency::new(),
            throughput: Throughput::start(clock, clock.ticks()),
            done: 0,
        }
    }

    /// Does something that counts for so many operations and is one sample of latency.
    #[inline]
    pub fn timed<R>(&mut self, operations: u64, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let before = self.clock.ticks();
        let result = work()?;
        let after = self.clock.ticks();
        self.latency.record(self.clock.nanoseconds(before, after));
        self.done += operations;
        self.throughput.at(after, self.done);
        Ok(result)
    }

    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    pub fn throughput(&self) -> &Throughput {
        &self.throughput
    }

    /// Counts operations without a sample. For many at a time: it looks at the clock.
    pub fn count(&mut self, operations: u64) {
        self.done += operations;
        self.throughput.at(self.clock.ticks(), self.done);
    }
}

/// What all threads of a phase did.
pub struct Outcome<T> {
    pub seconds: f64,
    pub operations: u64,
    pub latency: Latency,
    pub throughput: Throughput,
    /// In the order of the inputs.
    pub results: Vec<T>,
}

/// Runs `work` on one thread for each input. There is at least one.
pub fn run<I: Send, T: Send>(
    clock: &Clock,
    inputs: Vec<I>,
    work: impl Fn(I, &mut Recorder<'_>) -> Result<T> + Sync,
) -> Result<Outcome<T>> {
    assert!(!inputs.is_empty(), "there is work for a thread");
    let barrier = Barrier::new(inputs.len());
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = inputs
            .into_iter()
            .map(|input| {
                scope.spawn(|| {
                    barrier.wait();
                    let start = clock.ticks();
                    let mut recorder = Recorder::start(clock);
                    let result = work(input, &mut recorder);
                    (result, recorder, start, clock.ticks())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let (mut start, mut end) = (u64::MAX, 0);
    let (mut operations, mut results) = (0, Vec::new());
    let mut latency = Latency::new();
    let mut throughput: Option<Throughput> = None;
    for thread in ended {
        let (result, recorder, began, ended) = thread.map_err(|_| anyhow!("a thread panicked"))?;
        results.push(result?);
        start = start.min(began);
        end = end.max(ended);
        operations += recorder.done;
        latency.merge(&recorder.latency);
        match &mut throughput {
            Some(throughput) => throughput.merge(&recorder.throughput),
            None => throughput = Some(recorder.throughput),
        }
    }
    Ok(Outcome {
        seconds: clock.seconds(start, end),
        operations,
        latency,
        throughput: throughput.expect("at least one thread"),
        results,
    })
}

/// The part of `total` positions that thread `thread` of `threads` does.
pub fn share(total: u64, thread: usize, threads: usize) -> std::ops::Range<u64> {
    let bound = |thread: usize| (u128::from(total) * thread as u128 / threads as u128) as u64;
    bound(thread)..bound(thread + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_whole() {
        let shares: Vec<_> = (0..3).map(|thread| share(10, thread, 3)).collect();
        assert_eq!(shares, [0..3, 3..6, 6..10]);
    }

    #[test]
    fn what_threads_did_is_added_up() {
        let clock = Clock::new();
        let outcome = run(&clock, vec![1u64, 2, 3], |input, recorder| {
            for _ in 0..input {
                recorder.timed(10, || Ok(()))?;
            }
            recorder.count(1);
            Ok(input)
        })
        .expect("no error");
        assert_eq!(outcome.operations, 63);
        assert_eq!(outcome.latency.summary().expect("samples").count, 6);
        assert_eq!(outcome.results, [1, 2, 3]);
    }

    #[test]
    fn an_error_of_one_thread_is_that_of_all() {
        let failed = run(&Clock::new(), vec![0, 1], |input, _| {
            anyhow::ensure!(input == 0, "no luck");
            Ok(())
        });
        assert_eq!(failed.err().expect("an error").to_string(), "no luck");
    }
}
