//! The same work on several threads at once, timed as a whole.
//!
//! Threads wait for one another before they begin. The time is from before the first is started until the last has ended: a thread that the
//! system starts late cannot run outside of the timer, and the price is a few microseconds a thread.
//! A thread that fails does not stop the others; the first error is the outcome. A thread that panics is an error.
use crate::clock::Clock;
use anyhow::{Context, Result, anyhow};
use std::sync::Barrier;

/// Runs `work` with the numbers from 0 to `threads - 1`; seconds, and what each returned.
pub fn fan_out<T: Send>(
    clock: &Clock,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<(f64, Vec<T>)> {
    let barrier = Barrier::new(threads);
    let start = clock.ticks();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join()).collect()
    });
    let seconds = clock.seconds(start, clock.ticks());
    let outcomes = outcomes
        .into_iter()
        .enumerate()
        .map(|(thread, outcome)| {
            outcome
                .map_err(|_| anyhow!("thread {thread} panicked"))?
                .with_context(|| format!("thread {thread} failed"))
        })
        .collect::<Result<_>>()?;
    Ok((seconds, outcomes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::time::Duration;

    #[test]
    fn threads_run_side_by_side_and_errors_come_out() {
        // Each waits for the other: one after another would never end.
        let barrier = Barrier::new(2);
        let (seconds, outcomes) = fan_out(&Clock::new(), 2, |thread| {
            barrier.wait();
            std::thread::sleep(Duration::from_millis(20));
            Ok(thread)
        })
        .expect("no error");
        assert_eq!(outcomes, [0, 1]);
        assert!(seconds >= 0.019, "{seconds}");
        let failed = fan_out(&Clock::new(), 3, |thread| {
            if thread == 1 {
                bail!("no");
            }
            Ok(())
        });
        assert!(format!("{:#}", failed.expect_err("one failed")).contains("thread 1 failed: no"));
    }
}
