//! When a merge or a checkpoint that failed is tried again: after pauses that grow, or when somebody asks for it.

use std::time::{Duration, Instant};

use crate::Result;

/// The first pause.
const PAUSE: Duration = Duration::from_millis(100);
/// Each is twice as long as the one before, up to this.
const PAUSE_MAX: Duration = Duration::from_millis(3_200);
/// What else the thread does waits no longer than this meanwhile.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Retry {
    /// The next attempt, and the pause before it, if the last one failed.
    due: Option<(Instant, Duration)>,
}

impl Retry {
    /// How long the thread may wait, which knows of a failure.
    pub fn wait(&self) -> Duration {
        self.due.map_or(PAUSE, |(at, _)| {
            at.saturating_duration_since(Instant::now()).min(LOOK)
        })
    }

    /// Whether to try now.
    pub fn is_due(&self, is_asked_for: bool) -> bool {
        is_asked_for || self.due.is_none_or(|(at, _)| at <= Instant::now())
    }

    /// Notes how an attempt went. Only pauses that came to their end make the next one longer: who asks again and again makes none.
    pub fn note<T>(&mut self, result: &Result<T>) {
        let now = Instant::now();
        self.due = match (result, self.due) {
            (Ok(_), _) => None,
            (Err(_), None) => Some((now + PAUSE, PAUSE)),
            (Err(_), Some((at, pause))) if at <= now => {
                let pause = (2 * pause).min(PAUSE_MAX);
                Some((now + pause, pause))
            }
            (Err(_), due) => due,
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Error;

    fn failed() -> Result<()> {
        Err(Error::ReadOnly)
    }

    #[test]
    fn pauses_grow_and_who_asks_does_not_wait() {
        let mut retry = Retry::default();
        assert!(retry.is_due(false));
        retry.note(&failed());
        assert!(!retry.is_due(false) && retry.is_due(true));
        for _ in 0..20 {
            retry.note(&failed());
        }
        assert!(retry.due.unwrap().1 == PAUSE, "none of them was waited for");
        for _ in 0..20 {
            retry.due.as_mut().unwrap().0 = Instant::now();
            assert!(retry.is_due(false));
            retry.note(&failed());
        }
        assert_eq!(retry.due.unwrap().1, PAUSE_MAX);
        assert!(retry.wait() <= LOOK);
        retry.note(&Ok(()));
        assert!(retry.is_due(false));
    }
}
