//! Random draws for tests that can be replayed.
#![allow(dead_code)] // each test binary uses its part

pub mod in_no_order;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// From `lo` up to and including `hi`.
    pub fn between(&mut self, lo: usize, hi: usize) -> usize {
        lo + self.below(hi - lo + 1)
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}

/// A number from the environment.
pub fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of a test that runs one: `PSITRI_SEED`, or `default`. Printed, so that a failure can be replayed.
pub fn seed(default: u64) -> u64 {
    let seed = env_number("PSITRI_SEED").unwrap_or(default);
    println!("PSITRI_SEED={seed}");
    seed
}

/// Is set when this is dropped: threads that go on until then come to their end in a test that fails, too.
pub struct SetAtEnd<'f>(pub &'f std::sync::atomic::AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }
}

/// Runs `body` on a thread of its own and fails if it is not done in time: a deadlock must not hang the suite.
pub fn within_seconds<T: Send + 'static>(
    seconds: u64,
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(body());
    });
    match wait.recv_timeout(std::time::Duration::from_secs(seconds)) {
        Ok(result) => {
            thread.join().expect("the body is done");
            result
        }
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
            panic!("{what}: not done in {seconds} s")
        }
        Err(_) => panic!("{what}: failed, see above"),
    }
}

/// Takes checkpoints until nothing dead is held any more: for a moment, the engine's own threads may look at the state before the last one.
pub fn checkpoint_and_let_go(db: &psitri::Database) -> psitri::Stats {
    for attempt in 1.. {
        db.checkpoint().unwrap();
        let stats = db.stats().unwrap();
        if stats.pending_bytes == 0 {
            return stats;
        }
        assert!(attempt < 100, "{stats:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    unreachable!()
}
