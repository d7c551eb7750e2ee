//! Readers that were given back, for the next snapshot of the same thread.
//!
//! Each thread has a list of its own, on cache lines of its own: a lock that all threads share would cost them more than the reader does.
//! A reader that another thread gives back than took it changes lists, so a thread that only takes would begin new ones again and again;
//! nobody here does. The list of a thread that ends is the next new thread's, so that there are no more readers than were out at once in
//! each of the threads that lived at the same time.
use std::cell::RefCell;
use thread_local::ThreadLocal;

/// Two cache lines, for they are fetched in pairs.
#[repr(align(128))]
struct List<R>(RefCell<Vec<R>>);

pub struct ReaderPool<R: Send>(ThreadLocal<List<R>>);

impl<R: Send> ReaderPool<R> {
    #[must_use]
    pub const fn new() -> Self {
        Self(ThreadLocal::new())
    }

    /// The list of this thread. Not `get`: that does not know a thread which has not been here yet, whose list may be that of one that ended.
    #[inline]
    fn list(&self) -> &RefCell<Vec<R>> {
        &self.0.get_or(|| List(RefCell::new(Vec::new()))).0
    }

    #[inline]
    pub fn take(&self) -> Option<R> {
        self.list().borrow_mut().pop()
    }

    #[inline]
    pub fn give(&self, reader: R) {
        self.list().borrow_mut().push(reader);
    }

    /// Ends those of all threads.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<R: Send> Default for ReaderPool<R> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_thread_takes_what_it_gave() {
        let pool = ReaderPool::new();
        assert_eq!(pool.take(), None);
        pool.give(1);
        pool.give(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(pool.take(), None);
                pool.give(3);
                assert_eq!(pool.take(), Some(3));
            });
            other.join().expect("the other thread finds only its own");
        });
        assert_eq!(pool.take(), Some(2));
        assert_eq!(pool.take(), Some(1));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn threads_that_follow_one_another_use_the_same_readers() {
        let pool = ReaderPool::new();
        let made = AtomicU32::new(0);
        let use_one = || {
            let reader = pool.take();
            pool.give(reader.unwrap_or_else(|| made.fetch_add(1, Ordering::Relaxed)));
        };
        for _ in 0..1_000 {
            std::thread::scope(|scope| {
                scope.spawn(use_one);
            });
        }
        // A thread may end a little later than its closure.
        let made = made.into_inner();
        assert!(made < 100, "{made} readers");
    }

    #[test]
    fn clearing_ends_the_readers_of_all_threads() {
        let reader = Arc::new(());
        let mut pool = ReaderPool::new();
        pool.give(Arc::clone(&reader));
        std::thread::scope(|scope| {
            scope.spawn(|| pool.give(Arc::clone(&reader)));
        });
        assert_eq!(Arc::strong_count(&reader), 3);
        pool.clear();
        assert_eq!(Arc::strong_count(&reader), 1);
        assert_eq!(pool.take(), None);
        pool.give(Arc::clone(&reader));
        assert!(pool.take().is_some());
    }
}
