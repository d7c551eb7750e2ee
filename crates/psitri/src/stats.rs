//! What a database says about itself.

use crate::{
    Database, Result,
    engine::frozen_count,
    error::Error,
    node::UNITS_PER_PAGE,
    pager::DATA_FILE,
    sync::Ordering,
    tree::{TreeCheck, verify_tree},
};

/// Figures of one moment. Bytes are bytes on disk or in memory, as named.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks of the data file.
    pub file_bytes: u64,
    /// Blocks of the log's segments, spare ones included.
    pub wal_bytes: u64,
    /// Log that a recovery would read.
    pub wal_retained_bytes: u64,
    /// Nodes and values reachable from the newest roots.
    pub reachable_bytes: u64,
    /// Free pages in the data file.
    pub free_bytes: u64,
    /// Dead nodes that a snapshot or the durable checkpoint still holds.
    pub pending_bytes: u64,
    /// Memory in use by the active buffer.
    pub buffer_bytes: u64,
    /// Buffers that wait for the merge.
    pub frozen_buffers: u64,
    /// Newest visible commit.
    pub csn: u64,
    /// Version of the tree.
    pub tree_version: u64,
    /// Merges since the database was opened.
    pub merges: u64,
    /// Entries merged since the database was opened.
    pub merged_entries: u64,
    /// Checkpoints since the database was opened.
    pub checkpoints: u64,
    /// Times that a writer had to wait for the merge.
    pub stalls: u64,
    /// How long writers waited for the merge, in microseconds.
    pub stalled_us: u64,
    /// Snapshots and transactions alive.
    pub pins: u64,
    /// How long ago the oldest state that one of them sees was replaced, in microseconds. Zero if all see the newest.
    pub oldest_pin_us: u64,
    /// Readers in other processes beside this writer ([`Options::open_beside_writer`](crate::Options::open_beside_writer)). Their
    /// pins count in `oldest_pin_us`, by the age of the checkpoint that followed theirs.
    pub readers_beside: u64,
    /// Why the last merge or checkpoint failed, if it did.
    pub failure: Option<String>,
    /// Every keyspace.
    pub keyspaces: Vec<KeyspaceStats>,
}

/// Figures of one keyspace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Keys in the merged tree.
    pub keys_merged: u64,
    /// Entries in the buffers, one for each key and buffer.
    pub entries_buffered: u64,
}

/// What [`Database::verify`] found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Keyspaces looked at.
    pub keyspaces: u64,
    /// Nodes read and checked.
    pub nodes: u64,
    /// Keys in them.
    pub keys: u64,
    /// Values outside the leaves, read and checked.
    pub values_out_of_line: u64,
    /// Every damage found; empty if the database is sound.
    pub errors: Vec<String>,
}

impl Database {
    /// Figures of this moment.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// let stats = db.stats()?;
    /// let ks = &stats.keyspaces[0];
    /// assert_eq!((ks.name.as_str(), ks.keys_merged + ks.entries_buffered), ("ks", 3));
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Result<Stats> {
        let engine = &self.core.engine;
        let space = engine.pager.space_use()?;
        // Before this method takes a pin of its own.
        let pins = engine.states.pinned_count() as u64;
        let state = engine.states.current();
        let (wal_bytes, wal_retained_bytes) = engine
            .log
            .as_ref()
            .map_or((0, 0), |log| (log.allocated_bytes(), log.retained_bytes()));
        let mut keyspaces: Vec<KeyspaceStats> = state
            .keyspaces
            .iter()
            .flatten()
            .map(|keyspace| KeyspaceStats {
                name: keyspace.core.name(),
                keys_merged: keyspace.root.keys,
                entries_buffered: state
                    .generations
                    .iter()
                    .filter(|generation| generation.id > keyspace.generation_merged)
                    .filter_map(|generation| generation.buffer(keyspace.core.slot))
                    .map(|buffer| buffer.stats().entries)
                    .sum(),
            })
            .collect();
        keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Stats {
            file_bytes: space.file_bytes,
            wal_bytes,
            wal_retained_bytes,
            reachable_bytes: space.reachable_bytes,
            free_bytes: space.free_bytes,
            pending_bytes: space.pending_bytes,
            buffer_bytes: state.active().bytes_used(),
            frozen_buffers: frozen_count(&state) as u64,
            csn: engine.visible_csn.load(Ordering::Acquire),
            tree_version: state.tree_version,
            merges: engine.counters.merges.load(Ordering::Relaxed),
            merged_entries: engine.counters.merged_entries.load(Ordering::Relaxed),
            checkpoints: engine.counters.checkpoints.load(Ordering::Relaxed),
            stalls: engine.counters.stalls.load(Ordering::Relaxed),
            stalled_us: engine.counters.stalled_us.load(Ordering::Relaxed),
            pins,
            oldest_pin_us: engine.oldest_pin_age().as_micros() as u64,
            readers_beside: engine.readers_beside().0,
            failure: engine.signals.lock.lock().failure.clone(),
            keyspaces,
        })
    }

    /// Reads everything that is merged and checks it: checksums, structure, order, bounds, counts, and that the page map
    /// agrees. Commits and merges go on meanwhile; it sees the newest tree of the moment when it began.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// # let ks = db.create_keyspace("ks")?;
    /// # let mut txn = db.begin(&[&ks])?;
    /// # for key in [b"a", b"b", b"c"] {
    /// #     txn.upsert(&ks, key, b"1")?;
    /// # }
    /// # txn.commit()?;
    /// db.checkpoint()?;
    /// let report = db.verify()?;
    /// assert!(report.errors.is_empty());
    /// assert_eq!(report.keys, 3);
    /// # Ok(()) }
    /// ```
    pub fn verify(&self) -> Result<VerifyReport> {
        let engine = &self.core.engine;
        // Under `tree` no version is published, so that roots and page map belong together.
        let tree = engine.tree.lock();
        let state = engine.states.current();
        let live = engine.pager.live_units();
        let catalog = tree.catalog;
        drop(tree);
        let mut report = VerifyReport::default();
        let mut check = TreeCheck::default();
        let mut roots = vec![("the catalog".to_owned(), catalog)];
        for keyspace in state.keyspaces.iter().flatten() {
            report.keyspaces += 1;
            roots.push((
                format!("keyspace {:?}", keyspace.core.name()),
                keyspace.root,
            ));
        }
        for (name, root) in roots {
            match verify_tree(&engine.pager, root, &mut check) {
                Ok(()) => {}
                Err(error @ Error::Corrupted { .. }) => {
                    report.errors.push(format!("{name}: {error}"))
                }
                Err(error) => return Err(error),
            }
        }
        report.nodes = check.nodes;
        report.keys = check.keys - catalog.keys.min(check.keys);
        report.values_out_of_line = check.values_out_of_line;
        if report.errors.is_empty() {
            let mut counted = vec![0u32; live.len()];
            for extent in &check.extents {
                let mut left = extent.units;
                let mut page = extent.page as usize;
                while left > 0 && page < counted.len() {
                    let here = left.min(UNITS_PER_PAGE as u32);
                    counted[page] += here;
                    (left, page) = (left - here, page + 1);
                }
            }
            let differs = counted
                .iter()
                .zip(&live)
                .position(|(&counted, &live)| counted != u32::from(live));
            if let Some(page) = differs {
                report.errors.push(format!(
                    "{DATA_FILE}: the page map counts {} units in page {page}, the trees use {}",
                    live[page], counted[page]
                ));
            }
        }
        Ok(report)
    }
}
