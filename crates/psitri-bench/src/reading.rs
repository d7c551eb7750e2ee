//! Point reads at snapshots that are no older than a given number of reads.
use crate::engine::{Engine, ReadMode, Snapshot};
use anyhow::Result;

pub struct FreshReads<'e, E: Engine> {
    engine: &'e E,
    snapshot: Option<E::Snapshot<'e>>,
    reads_per_snapshot: u64,
    left: u64,
}

impl<'e, E: Engine> FreshReads<'e, E> {
    /// `reads_per_snapshot` is at least one.
    pub fn new(engine: &'e E, reads_per_snapshot: u64) -> Self {
        assert!(reads_per_snapshot > 0, "a snapshot serves a read");
        Self {
            engine,
            snapshot: None,
            reads_per_snapshot,
            left: 0,
        }
    }

    /// Reads, at a new snapshot when the last one has served its reads; one that would serve a single read is left to the engine.
    #[inline]
    pub fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if self.reads_per_snapshot == 1 {
            return self.engine.read_latest(key, look);
        }
        if self.left == 0 {
            // The old one first: an engine may have room for one a thread.
            self.snapshot = None;
            self.left = self.reads_per_snapshot;
        }
        self.left -= 1;
        let snapshot = match &mut self.snapshot {
            Some(snapshot) => snapshot,
            none => none.insert(self.engine.snapshot(ReadMode::Latest)?),
        };
        snapshot.read(key, look)
    }
}
