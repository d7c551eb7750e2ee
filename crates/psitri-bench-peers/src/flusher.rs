//! Flushes an engine in a thread, again and again, for engines that have no such thread of their own.
//!
//! This is what `SyncMode::Async` asks for. The interval is the one that PsiTri has by default, so that all lose about as much.
use anyhow::{Context, Result, anyhow};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between the end of one flush and the start of the next.
pub const INTERVAL: Duration = Duration::from_millis(100);

pub struct Flusher {
    /// Dropped to stop the thread.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Flusher {
    /// The thread ends with the first flush that fails.
    pub fn new(flush: impl FnMut() -> Result<()> + Send + 'static) -> Result<Self> {
        Self::every(INTERVAL, flush)
    }

    fn every(
        interval: Duration,
        mut flush: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("flusher".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    flush().context("background flush")?;
                }
                Ok(())
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    fn join(&mut self) -> Result<()> {
        self.stop = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(anyhow!("the flushing thread panicked")),
        }
    }

    /// Stops the thread and says whether all its flushes succeeded.
    pub fn finish(mut self) -> Result<()> {
        self.join()
    }
}

impl Drop for Flusher {
    /// For engines that are dropped without being closed, where nobody is left to tell of an error.
    fn drop(&mut self) {
        let _unheard = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    const SHORT: Duration = Duration::from_millis(2);

    #[test]
    fn flushes_until_it_is_finished() -> Result<()> {
        let flushes = Arc::new(AtomicU32::new(0));
        let flusher = Flusher::every(SHORT, {
            let flushes = Arc::clone(&flushes);
            move || {
                flushes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        })?;
        while flushes.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(SHORT);
        }
        flusher.finish()?;
        let at_the_end = flushes.load(Ordering::Relaxed);
        std::thread::sleep(3 * SHORT);
        assert_eq!(flushes.load(Ordering::Relaxed), at_the_end);
        Ok(())
    }

    #[test]
    fn an_error_is_told_at_the_end() -> Result<()> {
        let flusher = Flusher::every(SHORT, || Err(anyhow!("disk full")))?;
        std::thread::sleep(5 * SHORT);
        assert!(flusher.finish().is_err());
        Ok(())
    }
}
