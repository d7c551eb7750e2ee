//! What a database says about itself.

use std::ops::ControlFlow;

use crate::{
    Database, Progress, ProgressUnit, Result,
    engine::{Engine, frozen_count},
    error::Error,
    expiry::EXPIRY_BYTES,
    node::{UNIT_BYTES, UNITS_PER_PAGE},
    pager::DATA_FILE,
    progress::{Report, Watch},
    sync::{AtomicU64, Ordering},
    tree::{TreeCheck, verify_tree},
    wal,
};

/// Figures of one moment. Bytes are bytes on disk or in memory, as named.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How long the database has been open, in microseconds.
    pub uptime_us: u64,
    /// Blocks of the data file.
    pub file_bytes: u64,
    /// Sizes of the log's files, spare ones included. Where they have holes they take less on disk. The other figures of the log are 0 where the
    /// database is open for reading.
    pub wal_bytes: u64,
    /// Records in the segments that are kept.
    pub wal_retained_bytes: u64,
    /// Segments with records, that being written to included.
    pub wal_segments: u64,
    /// Files ready for the segments to come.
    pub wal_spares: u64,
    /// Records appended to the log since the database was opened.
    pub wal_appended_bytes: u64,
    /// Log that a recovery would replay: what was appended since the position that the last checkpoint stored. Before the first checkpoint after an
    /// opening it counts from the start of the oldest segment that is kept.
    pub wal_replay_bytes: u64,
    /// Log that a power loss may cut off: what was not flushed yet.
    pub wal_undurable_bytes: u64,
    /// Nodes and values reachable from the newest roots.
    pub reachable_bytes: u64,
    /// Free pages in the data file.
    pub free_bytes: u64,
    /// Runs of neighbouring free pages. Many short ones are a scattered file: [`Database::compact`] packs it.
    pub free_runs: u64,
    /// The longest of them: a value that is longer makes the file grow.
    pub free_run_max_bytes: u64,
    /// Of the free pages, those whose blocks were given back to the file system.
    pub hole_bytes: u64,
    /// Dead nodes and values that a snapshot or the durable checkpoint still holds.
    pub pending_bytes: u64,
    /// Pages written to the data file since the database was opened.
    pub written_bytes: u64,
    /// How full the active buffer is: memory in use, and what was written to memory that was used before.
    pub buffer_bytes: u64,
    /// What the active buffer takes before it is frozen: [`Options::buffer_bytes`](crate::Options::buffer_bytes).
    pub buffer_bytes_max: u64,
    /// Buffers that wait for the merge.
    pub frozen_buffers: u64,
    /// How many may wait before writers do: [`Options::frozen_buffers`](crate::Options::frozen_buffers).
    pub frozen_buffers_max: u64,
    /// Buffers that cannot be merged because an open transaction holds them back. They are not among those that wait.
    pub blocked_buffers: u64,
    /// The same as `buffer_bytes`, of the buffers that wait and those held back.
    pub frozen_bytes: u64,
    /// Newest visible commit.
    pub csn: u64,
    /// Commits since the database was opened, creations of keyspaces and the like included.
    pub commits: u64,
    /// Version of the tree.
    pub tree_version: u64,
    /// Merges since the database was opened.
    pub merges: u64,
    /// Entries merged since the database was opened.
    pub merged_entries: u64,
    /// Memory of the buffers merged since the database was opened.
    pub merged_bytes: u64,
    /// How long all merges took, in microseconds.
    pub merge_us: u64,
    /// How long the merge at work has taken so far, in microseconds; zero if there is none.
    pub merging_us: u64,
    /// Checkpoints since the database was opened.
    pub checkpoints: u64,
    /// How long all checkpoints took, in microseconds.
    pub checkpoint_us: u64,
    /// How long the last one took.
    pub checkpoint_last_us: u64,
    /// How long the one at work has taken so far; zero if there is none.
    pub checkpointing_us: u64,
    /// Times that a writer had to wait for the merge.
    pub stalls: u64,
    /// How long writers waited for the merge, in microseconds.
    pub stalled_us: u64,
    /// Times that a writer was slowed down, so that it need not wait: buffers were merged, and at most one more could be frozen.
    pub paced: u64,
    /// How long writers were slowed down, in microseconds.
    pub paced_us: u64,
    /// Snapshots and transactions alive.
    pub pins: u64,
    /// How long ago the oldest state that one of them sees was replaced, in microseconds. Zero if all see the newest.
    pub oldest_pin_us: u64,
    /// Readers in other processes beside this writer ([`Options::open_beside_writer`](crate::Options::open_beside_writer)). Their
    /// pins count in `oldest_pin_us`, by the age of the checkpoint that followed theirs.
    pub readers_beside: u64,
    /// Memory of tables that say where keys are: see [`Options::lookup_table_bytes`](crate::Options::lookup_table_bytes).
    pub lookup_table_bytes: u64,
    /// Why the last merge or checkpoint failed, if it did, or why space could not be given back.
    pub failure: Option<String>,
    /// Every keyspace.
    pub keyspaces: Vec<KeyspaceStats>,
}

/// Names the figures of [`Stats`] that are plain numbers, in the order in which the statistics file has them.
macro_rules! figures {
    ($($name:ident),* $(,)?) => {
        /// Number of figures.
        pub(crate) const FIGURES: usize = [$(stringify!($name)),*].len();

        impl Stats {
            /// Every figure that is a number, with the name of its field: for programs that pass on what there is.
            ///
            /// ```
            /// # fn main() -> Result<(), psitri::Error> {
            /// # let db = psitri::Options::new().in_memory()?;
            /// for (name, value) in db.stats()?.figures() {
            ///     println!("{name} {value}");
            /// }
            /// # Ok(()) }
            /// ```
            pub fn figures(&self) -> [(&'static str, u64); FIGURES] {
                [$((stringify!($name), self.$name)),*]
            }

            pub(crate) fn figures_mut(&mut self) -> [&mut u64; FIGURES] {
                [$(&mut self.$name),*]
            }
        }
    };
}

figures!(
    uptime_us,
    file_bytes,
    reachable_bytes,
    free_bytes,
    free_runs,
    free_run_max_bytes,
    hole_bytes,
    pending_bytes,
    written_bytes,
    wal_bytes,
    wal_retained_bytes,
    wal_segments,
    wal_spares,
    wal_appended_bytes,
    wal_replay_bytes,
    wal_undurable_bytes,
    buffer_bytes,
    buffer_bytes_max,
    frozen_buffers,
    frozen_buffers_max,
    blocked_buffers,
    frozen_bytes,
    csn,
    commits,
    tree_version,
    merges,
    merged_entries,
    merged_bytes,
    merge_us,
    merging_us,
    checkpoints,
    checkpoint_us,
    checkpoint_last_us,
    checkpointing_us,
    stalls,
    stalled_us,
    paced,
    paced_us,
    pins,
    oldest_pin_us,
    readers_beside,
    lookup_table_bytes,
);

impl Engine {
    /// Why the last merge or checkpoint failed, or why space cannot be given back.
    fn failure(&self) -> Option<String> {
        let failure = self.signals.lock.lock().failures().next().cloned();
        failure
            .map(|failure| failure.cause)
            .or_else(|| self.readers_failure())
    }
}

impl Stats {
    /// The figures, without that which changes by itself.
    pub(crate) fn figures_but_time(&self) -> [(&'static str, u64); FIGURES] {
        let mut figures = self.figures();
        debug_assert_eq!(figures[0].0, "uptime_us");
        figures[0].1 = 0;
        figures
    }
}

/// Figures of one keyspace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name; of a subtree, `subtree` and its key.
    pub name: String,
    /// Keys in the merged tree. Those that have expired count until a merge comes by them.
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
    /// Of them: changes of a leaf that lie in front of it.
    pub deltas: u64,
    /// Keys in them.
    pub keys: u64,
    /// Values outside the leaves, read and checked.
    pub values_out_of_line: u64,
    /// The first damage in each tree, of keyspaces and of what leads to them, and what else does not agree; empty if the database is sound. With
    /// damage in trees the space of the file is not looked at. [`salvage`](crate::salvage) finds out how much is lost.
    pub errors: Vec<String>,
}

impl Engine {
    /// Everything but the figures of keyspaces.
    pub fn figures(&self) -> Result<Stats> {
        let space = self.pager.space_use()?;
        // Before this method takes a pin of its own.
        let pins = self.states.pinned_count() as u64;
        let oldest_pin_us = self.oldest_pin_age().as_micros() as u64;
        let csn = self.visible_csn.load(Ordering::Acquire);
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Stats {
            uptime_us: counters.opened_at.elapsed().as_micros() as u64,
            file_bytes: space.file_bytes,
            reachable_bytes: space.reachable_bytes,
            free_bytes: space.free_bytes,
            free_runs: space.free_runs,
            free_run_max_bytes: space.free_run_max_bytes,
            hole_bytes: space.hole_bytes,
            pending_bytes: space.pending_bytes,
            written_bytes: self.pager.written_total(),
            buffer_bytes_max: self.options.buffer_bytes as u64,
            frozen_buffers_max: self.options.frozen_buffers_max() as u64,
            csn,
            commits: csn.saturating_sub(counters.opened_csn),
            merges: count(&counters.merges),
            merged_entries: count(&counters.merged_entries),
            merged_bytes: count(&counters.merged_bytes),
            merge_us: count(&counters.merging.total_us),
            merging_us: counters.merging.now_us(),
            checkpoints: count(&counters.checkpoints),
            checkpoint_us: count(&counters.checkpointing.total_us),
            checkpoint_last_us: count(&counters.checkpointing.last_us),
            checkpointing_us: counters.checkpointing.now_us(),
            stalls: count(&counters.stalls),
            stalled_us: count(&counters.stalled_us),
            paced: count(&counters.paced),
            paced_us: count(&counters.paced_us),
            pins,
            oldest_pin_us,
            readers_beside: self.readers_beside().0,
            lookup_table_bytes: self.pager.lookups.bytes(),
            failure: self.failure(),
            ..Stats::default()
        };
        if let Some(log) = &self.log {
            let end = log.appended_lsn();
            stats.wal_bytes = log.allocated_bytes();
            stats.wal_retained_bytes = log.retained_bytes();
            stats.wal_segments = log.live_segments() as u64;
            stats.wal_spares = log.spare_segments() as u64;
            stats.wal_appended_bytes = end.saturating_sub(counters.opened_lsn);
            stats.wal_replay_bytes = end.saturating_sub(count(&self.replay_from));
            stats.wal_undurable_bytes = end.saturating_sub(log.durable_lsn());
        } else if !self.in_memory {
            stats.wal_bytes = wal::files_bytes(self.storage.as_ref())?;
        }
        let state = self.states.current();
        let frozen = &state.generations[1..];
        stats.tree_version = state.tree_version;
        stats.buffer_bytes = state.active().bytes_used();
        stats.frozen_buffers = frozen_count(&state) as u64;
        stats.blocked_buffers = frozen.len() as u64 - stats.frozen_buffers;
        stats.frozen_bytes = state.frozen_bytes();
        Ok(stats)
    }
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
        let figures = engine.figures()?;
        let state = engine.states.current();
        let mut keyspaces: Vec<KeyspaceStats> = state
            .keyspaces
            .iter()
            .flatten()
            .map(|keyspace| KeyspaceStats {
                name: keyspace.core.title(),
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
            keyspaces,
            ..figures
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
        self.verify_watched(None)
    }

    /// As [`Database::verify`], and tells how far it is. [`ControlFlow::Break`] ends it with [`Error::Cancelled`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use std::{ops::ControlFlow, time::{Duration, Instant}};
    /// let until = Instant::now() + Duration::from_secs(60);
    /// let report = db.verify_with(|_| match Instant::now() < until {
    ///     true => ControlFlow::Continue(()),
    ///     false => ControlFlow::Break(()),
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn verify_with(
        &self,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<VerifyReport> {
        self.verify_watched(Some(&mut progress))
    }

    pub(crate) fn verify_watched(&self, report: Option<&mut Report<'_>>) -> Result<VerifyReport> {
        trace_span!(INFO, "verify");
        let engine = &self.core.engine;
        // Under `tree` no version is published, so that roots and page map belong together.
        let tree = engine.tree.lock();
        let state = engine.states.current();
        let live = engine.pager.live_units();
        let shares = engine.pager.shares.counts();
        let catalog = tree.catalog;
        let mut roots = vec![
            ("the catalog".to_owned(), catalog, 0),
            ("the counts of shared nodes".to_owned(), tree.shares, 0),
        ];
        let own_keys = catalog.keys + tree.shares.keys;
        for (name, saved) in &tree.saved {
            for (id, keyspace) in &saved.keyspaces {
                let what = format!("keyspace {id} in the saved snapshot {name:?}");
                let value_bytes_min = keyspace.expiry.map_or(0, |_| EXPIRY_BYTES);
                roots.push((what, keyspace.root, value_bytes_min));
            }
        }
        drop(tree);
        let mut watch = Watch::new("verify", report, ProgressUnit::Bytes);
        watch.expect(live.iter().map(|&units| u64::from(units)).sum::<u64>() * UNIT_BYTES as u64);
        let mut check = TreeCheck::new(shares, state.tree_version, &mut watch);
        let mut report = VerifyReport::default();
        for keyspace in state.keyspaces.iter().flatten() {
            report.keyspaces += 1;
            roots.push((
                format!("keyspace {:?}", keyspace.core.title()),
                keyspace.root,
                if keyspace.core.expires() {
                    EXPIRY_BYTES
                } else {
                    0
                },
            ));
        }
        for (name, root, value_bytes_min) in roots {
            check.value_bytes_min = value_bytes_min;
            match verify_tree(&engine.pager, root, &mut check) {
                Ok(()) => {}
                Err(error @ Error::Corrupted { .. }) => {
                    report.errors.push(format!("{name}: {error}"))
                }
                Err(error) => return Err(error),
            }
        }
        report.nodes = check.nodes;
        report.keys = check.keys - own_keys.min(check.keys);
        report.deltas = check.deltas;
        report.values_out_of_line = check.values_out_of_line;
        if report.errors.is_empty() {
            report.errors.extend(check.wrong_count());
            let mut counted = vec![0u32; live.len()];
            for extent in &check.extents {
                let mut left = extent.units;
                let mut page = extent.page() as usize;
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
        watch.finish()?;
        Ok(report)
    }
}
