//! Group commit: many threads wait for the log to be durable, one flush serves all who arrived before it began.
//!
//! Thread safety: every method from any thread. There is no timer: a flush starts as soon as the one before it has ended and
//! somebody waits, so a lone committer waits for one flush and a crowd shares.
//!
//! Invariants:
//! 1. At most one flush runs; whoever runs it holds the `flushing` flag and no lock.
//! 2. `durable` only grows, and only to a position that a flush reported.
//! 3. Everybody who waits sleeps on `changed`, and whoever clears `flushing` wakes all of them: nobody sleeps while nobody flushes.
//!
//! Failure modes: the first error stays and is given to everyone who waits for more than what was durable by then. If a flush
//! panics, the flag is cleared and the next waiter tries.
use crate::sync::{Condvar, Mutex};

/// Shares flushes between waiting threads. `E` is the error that a failed flush leaves for everybody.
#[derive(Debug)]
pub struct GroupCommit<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<E> {
    durable: u64,
    flushing: bool,
    error: Option<E>,
}

impl<E: Clone> GroupCommit<E> {
    /// Everything below `durable` needs no flush.
    pub fn new(durable: u64) -> Self {
        GroupCommit {
            state: Mutex::new(State {
                durable,
                flushing: false,
                error: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns when everything below `lsn` is durable. `flush` makes durable all that was appended before it is called and returns
    /// the position it reached, which is not below `lsn`: the caller appended that before.
    pub fn wait_durable(
        &self,
        lsn: u64,
        mut flush: impl FnMut() -> Result<u64, E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= lsn {
                return Ok(());
            }
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.flushing {
                self.changed.wait(&mut state);
                continue;
            }
            state.flushing = true;
            drop(state);
            let turn = Turn { group: self };
            let outcome = flush();
            state = self.state.lock();
            match outcome {
                Ok(reached) => {
                    debug_assert!(
                        reached >= lsn,
                        "a flush must cover what was appended before it"
                    );
                    state.durable = state.durable.max(reached);
                }
                Err(error) => {
                    state.error.get_or_insert(error);
                }
            }
            drop(state);
            drop(turn);
            state = self.state.lock();
        }
    }
}

/// The right to flush; given back on drop, also when the flush panics.
struct Turn<'a, E> {
    group: &'a GroupCommit<E>,
}

impl<E> Drop for Turn<'_, E> {
    fn drop(&mut self) {
        self.group.state.lock().flushing = false;
        self.group.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn one_flush_serves_many() {
        let group = GroupCommit::<String>::new(0);
        let (appended, flushes) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lsn = appended.fetch_add(1, Ordering::SeqCst) + 1;
                        let flush = || {
                            let reached = appended.load(Ordering::SeqCst);
                            flushes.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_micros(200));
                            Ok(reached)
                        };
                        group.wait_durable(lsn, flush).unwrap();
                    }
                });
            }
        });
        assert!(flushes.load(Ordering::SeqCst) < 400, "no flush was shared");
    }

    #[test]
    fn the_first_error_stays() {
        let group = GroupCommit::<&str>::new(10);
        assert_eq!(group.wait_durable(20, || Err("first")), Err("first"));
        assert_eq!(group.wait_durable(20, || Ok(20)), Err("first"));
        assert_eq!(group.wait_durable(10, || Ok(20)), Ok(()));
    }

    #[test]
    fn a_panicking_flush_leaves_the_turn() {
        let group = GroupCommit::<&str>::new(0);
        let call = || group.wait_durable(1, || panic!("flush"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert_eq!(group.wait_durable(1, || Ok(1)), Ok(()));
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p psitri --lib --release group`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    /// Every interleaving of `threads` committers: nobody hangs, nobody returns before a flush covered it, never two flushes at once.
    fn committers(threads: u64, preemptions_max: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions_max;
        model.check(move || {
            let group = Arc::new(GroupCommit::<()>::new(0));
            let appended = Arc::new(AtomicU64::new(0));
            let durable = Arc::new(AtomicU64::new(0));
            let running = Arc::new(AtomicU64::new(0));
            let commit = move || {
                let lsn = appended.fetch_add(1, Ordering::AcqRel) + 1;
                let flush = || {
                    assert_eq!(
                        running.fetch_add(1, Ordering::AcqRel),
                        0,
                        "two flushes at once"
                    );
                    let reached = appended.load(Ordering::Acquire);
                    durable.store(reached, Ordering::Release);
                    running.fetch_sub(1, Ordering::AcqRel);
                    Ok(reached)
                };
                group.wait_durable(lsn, flush).unwrap();
                assert!(
                    durable.load(Ordering::Acquire) >= lsn,
                    "returned before it was durable"
                );
            };
            let others: Vec<_> = (1..threads)
                .map(|_| loom::thread::spawn(commit.clone()))
                .collect();
            commit();
            for other in others {
                other.join().unwrap();
            }
        });
    }

    #[test]
    fn two_committers() {
        committers(2, None);
    }

    #[test]
    fn three_committers() {
        // All interleavings of three would take hours; two preemptions find most defects.
        committers(3, Some(2));
    }

    #[test]
    fn a_failed_flush_reaches_everybody() {
        loom::model(|| {
            let group = Arc::new(GroupCommit::<()>::new(0));
            let other = {
                let group = Arc::clone(&group);
                loom::thread::spawn(move || assert_eq!(group.wait_durable(1, || Err(())), Err(())))
            };
            assert_eq!(group.wait_durable(1, || Err(())), Err(()));
            other.join().unwrap();
        });
    }
}
