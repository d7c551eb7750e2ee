//! Buffers that wait to be merged, as many as a test wants.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use psitri::{Database, Event, Keyspace, Options};

/// Freezes buffers and keeps them from being merged: the merge thread is held up where it tells of its first merge.
pub struct Pile {
    /// Whether the merge thread is to be held up, and whether it is.
    holds: Arc<AtomicBool>,
    is_held: Arc<AtomicBool>,
    keyspaces: Vec<Keyspace>,
    waiting: Vec<JoinHandle<()>>,
}

impl Pile {
    /// A database in memory whose buffers pile up.
    pub fn open(options: Options) -> (Arc<Database>, Pile) {
        let [holds, is_held] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let seen = (Arc::clone(&holds), Arc::clone(&is_held));
        let options = options.frozen_buffers(16).on_event(move |event| {
            if matches!(event, Event::Merged { .. }) {
                let (holds, is_held) = &seen;
                while holds.load(Ordering::SeqCst) {
                    is_held.store(true, Ordering::SeqCst);
                    thread::sleep(Duration::from_micros(200));
                }
                is_held.store(false, Ordering::SeqCst);
            }
        });
        let db = Arc::new(options.in_memory().unwrap());
        let create = |n| db.create_keyspace(&format!("other {n}")).unwrap();
        let keyspaces = (0..8).map(create).collect();
        let pile = Pile {
            holds,
            is_held,
            keyspaces,
            waiting: Vec::new(),
        };
        (db, pile)
    }

    /// Freezes the buffer: the first one is merged, which holds up the merge thread, those after it wait.
    pub fn freeze(&mut self, db: &Arc<Database>) {
        let Some(keyspace) = self.keyspaces.get(self.waiting.len()).cloned() else {
            return;
        };
        self.holds.store(true, Ordering::SeqCst);
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"key", b"value").unwrap();
        txn.commit().unwrap();
        let before = self
            .is_held
            .load(Ordering::SeqCst)
            .then(|| db.stats().unwrap().frozen_buffers);
        let beside = Arc::clone(db);
        // It freezes what has the keyspace, and waits for the merge.
        self.waiting.push(thread::spawn(move || {
            beside.begin_direct(&[&keyspace]).unwrap().abort()
        }));
        let started = Instant::now();
        while match before {
            Some(before) => db.stats().unwrap().frozen_buffers <= before,
            None => !self.is_held.load(Ordering::SeqCst),
        } {
            assert!(started.elapsed() < Duration::from_secs(60), "not frozen");
            thread::yield_now();
        }
    }

    /// Lets all of them be merged.
    pub fn release(&mut self) {
        self.holds.store(false, Ordering::SeqCst);
        for thread in self.waiting.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Pile {
    fn drop(&mut self) {
        self.release();
    }
}
