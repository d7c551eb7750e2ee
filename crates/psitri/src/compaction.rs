//! Compaction: packing half-empty leaves together and moving what lies at the end of the file to free space before it.
//!
//! A keyspace is compacted by a direct transaction that changes nothing in it: it holds the write lock, rewrites parts of the tree into
//! free pages, and publishes the new root with a checkpoint. What readers have pinned stays where it is.
//!
//! # Invariants
//! (1) Between two passes a checkpoint is durable, so that the space that the first one left can be used by the second.
//! (2) A pass that finds nothing to do in a keyspace publishes nothing, and neither does one that its caller ends.

use std::ops::ControlFlow;

use crate::{
    Database, Keyspace, Progress, ProgressUnit, Result,
    error::Error,
    keyspace::KeyspaceCore,
    node::UNITS_PER_PAGE,
    progress::{Report, Watch},
    sync::Arc,
    tree::Rewrite,
};

/// All leaves are packed anew if pages in use are this share (one in so many) more than what they hold would fill. Only some of them would
/// leave a part of a leaf at the end of each run.
const WASTE_SHARE: u64 = 64;
/// The end of the file moves if that cuts off at least one page in so many.
const GAIN_SHARE: u64 = 256;
/// What moves is written to where something else was; two rounds are enough, more are for readers that come and go.
const ROUNDS_MAX: usize = 4;

impl Database {
    /// Drops the entries of a keyspace that have expired, from memory and from the data file. Merges drop those that they come by; this visits
    /// all. Nothing happens in a keyspace whose entries do not expire.
    ///
    /// What clones and saved snapshots share stays where it is. It reads all other leaves of the keyspace, rewrites those that have something to drop, and takes a checkpoint if there were any. Readers go on;
    /// the keyspace takes no writes meanwhile, and it waits for the transaction that is open on it: do not call this in the thread of an open
    /// transaction.
    ///
    /// # Errors
    /// Those of writing: no space, I/O errors, damage. Nothing was dropped then. [`Error::KeyspaceGone`] and [`Error::ForeignKeyspace`].
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let db = psitri::Options::new().in_memory()?;
    /// use psitri::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    /// let ks = db.create_keyspace_with("ks", KeyspaceOptions::new().entries_expire())?;
    /// let mut txn = db.begin(&[&ks])?;
    /// txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(Duration::ZERO))?;
    /// txn.commit()?;
    /// db.drop_expired(&ks)?;
    /// let left = &db.stats()?.keyspaces[0];
    /// assert_eq!((left.keys_merged, left.entries_buffered), (0, 0));
    /// # Ok(()) }
    /// ```
    pub fn drop_expired(&self, keyspace: &Keyspace) -> Result<()> {
        let engine = &self.core.engine;
        engine.check_writable()?;
        engine.keyspace_state(&engine.states.current(), &keyspace.core)?;
        if !keyspace.core.expires() {
            return Ok(());
        }
        let mut watch = Watch::new("drop_expired", None, ProgressUnit::Entries);
        self.rewrite(keyspace, Rewrite::Expired, &mut watch)
    }

    /// Makes the data file as small as its content allows. All entries that have expired are dropped, and values of up to 512 bytes that left their leaves
    /// come back where these are packed anew. Takes as long as copying the file. A keyspace whose leaves are packed anew is
    /// there twice until its turn is over.
    ///
    /// Readers go on. A keyspace takes no writes while it is its turn, and its turn waits for the transaction that is open on it: do not call
    /// this in the thread of an open transaction. Space that snapshots hold stays taken: compact again when they
    /// are gone.
    ///
    /// # Errors
    /// Those of writing: no space, I/O errors, damage. What was done before stays done.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = psitri::Database::open(dir.path().join("db"))?;
    /// let ks = db.keyspace("log")?;
    /// let mut txn = db.begin(&[&ks])?;
    /// for number in 0u32..10_000 {
    ///     txn.upsert(&ks, &number.to_be_bytes(), &[7; 100])?;
    /// }
    /// txn.commit()?;
    /// db.checkpoint()?;
    /// let before = db.stats()?.file_bytes;
    /// let mut txn = db.begin(&[&ks])?;
    /// for number in (0u32..10_000).filter(|number| number % 10 != 0) {
    ///     txn.remove(&ks, &number.to_be_bytes())?;
    /// }
    /// txn.commit()?;
    /// db.compact()?;
    /// assert!(db.stats()?.file_bytes < before / 5);
    /// # Ok(()) }
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.compact_watched(None)
    }

    /// As [`Database::compact`], and tells how far it is, in entries of each pass over the trees. `total` grows when another pass is found to
    /// be worth while. [`ControlFlow::Break`] ends it with [`Error::Cancelled`]: keyspaces that had their turn stay packed, the others are as
    /// they were.
    ///
    /// ```
    /// # fn main() -> Result<(), psitri::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = psitri::Database::open(dir.path().join("db"))?;
    /// use std::ops::ControlFlow;
    /// db.compact_with(|progress| {
    ///     eprintln!("{} of {} {}", progress.done, progress.total, progress.unit);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn compact_with(
        &self,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        self.compact_watched(Some(&mut progress))
    }

    fn compact_watched(&self, report: Option<&mut Report<'_>>) -> Result<()> {
        trace_span!(INFO, "compact");
        let engine = &self.core.engine;
        let mut watch = Watch::new("compact", report, ProgressUnit::Entries);
        engine.check_writable()?;
        let expires = |core: &Arc<KeyspaceCore>| core.expires();
        if engine.keyspaces.read().by_id.values().any(expires) {
            self.rewrite_all(Rewrite::Expired, &mut watch)?;
        }
        engine.checkpoint_fully()?;
        if engine.in_memory {
            return watch.finish();
        }
        let (used, live_units, _) = engine.pager.packing();
        if used * UNITS_PER_PAGE as u64 > live_units + live_units / WASTE_SHARE {
            self.rewrite_all(Rewrite::Leaves, &mut watch)?;
            engine.checkpoint_fully()?;
        }
        for _ in 0..ROUNDS_MAX {
            let end = engine.pager.page_end();
            let (_, _, cut) = engine.pager.packing();
            if end - cut <= end / GAIN_SHARE {
                break;
            }
            self.rewrite_all(Rewrite::From(cut), &mut watch)?;
            engine.pager.move_map(cut);
            engine.checkpoint_fully()?;
            if engine.pager.page_end() >= end {
                break;
            }
        }
        // What a checkpoint keeps for the next writes, too. While one is being written the end of the file stays.
        let checkpointing = engine.checkpointing.lock();
        engine.check_writable()?;
        engine.pager.give_back(1, 0, 0)?;
        drop(checkpointing);
        watch.finish()
    }

    fn rewrite_all(&self, rewrite: Rewrite, watch: &mut Watch<'_, '_>) -> Result<()> {
        let keys: u64 = {
            let state = self.core.engine.states.current();
            let keyspaces = state.keyspaces.iter().flatten();
            keyspaces.map(|keyspace| keyspace.root.keys).sum()
        };
        let end = watch.done() + keys;
        watch.expect(keys);
        let all: Vec<Keyspace> = {
            let names = self.core.engine.keyspaces.read();
            let cores = names.by_id.values().map(Arc::clone);
            cores.map(|core| Keyspace { core }).collect()
        };
        let expires =
            |keyspace: &&Keyspace| !matches!(rewrite, Rewrite::Expired) || keyspace.core.expires();
        for keyspace in all.iter().filter(expires) {
            match self.rewrite(keyspace, rewrite, watch) {
                // It was dropped meanwhile.
                Err(Error::KeyspaceGone { .. }) => {}
                result => result?,
            }
            // Between two keyspaces the caller is asked in any case.
            watch.tell()?;
        }
        watch.reach(end)
    }

    fn rewrite(
        &self,
        keyspace: &Keyspace,
        rewrite: Rewrite,
        watch: &mut Watch<'_, '_>,
    ) -> Result<()> {
        let mut transaction = self.begin_direct(&[keyspace])?;
        if transaction.rewrite(rewrite, watch)? {
            transaction.commit()
        } else {
            transaction.abort();
            Ok(())
        }
    }
}
