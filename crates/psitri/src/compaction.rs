//! Compaction: packing half-empty leaves together and moving what lies at the end of the file to free space before it.
//!
//! A keyspace is compacted by a direct transaction that changes nothing in it: it holds the write lock, rewrites parts of the tree into
//! free pages, and publishes the new root with a checkpoint. What readers have pinned stays where it is.
//!
//! # Invariants
//! (1) Between two passes a checkpoint is durable, so that the space that the first one left can be used by the second.
//! (2) A pass that finds nothing to do in a keyspace publishes nothing.

use crate::{Database, Keyspace, Result, error::Error, node::UNITS_PER_PAGE, tree::Rewrite};

/// All leaves are packed anew if pages in use are this share (one in so many) more than what they hold would fill. Only some of them would
/// leave a part of a leaf at the end of each run.
const WASTE_SHARE: u64 = 32;
/// The end of the file moves if that cuts off at least one page in so many.
const GAIN_SHARE: u64 = 64;
/// What moves is written to where something else was; two rounds are enough, more are for readers that come and go.
const ROUNDS_MAX: usize = 4;

impl Database {
    /// Drops the entries of a keyspace that have expired, from memory and from the data file. Merges drop those that they come by; this visits
    /// all. Nothing happens in a keyspace whose entries do not expire.
    ///
    /// It reads all leaves of the keyspace, rewrites those that have something to drop, and takes a checkpoint if there were any. Readers go on;
    /// the keyspace takes no writes meanwhile, and it waits for the transaction that is open on it: do not call this in the thread of an open
    /// transaction.
    ///
    /// # Errors
    /// Those of writing: no space, I/O errors, damage. Nothing was dropped then.
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
        self.core.engine.check_writable()?;
        if !keyspace.core.expires() {
            return Ok(());
        }
        self.rewrite(keyspace, Rewrite::Expired)
    }

    /// Makes the data file as small as its content allows, and drops all entries that have expired. Takes as long as copying the file, and needs no space beyond it.
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
        let engine = &self.core.engine;
        engine.check_writable()?;
        self.rewrite_all(Rewrite::Expired)?;
        engine.checkpoint_fully()?;
        if engine.in_memory {
            return Ok(());
        }
        let (used, live_units, _) = engine.pager.packing();
        if used * UNITS_PER_PAGE as u64 > live_units + live_units / WASTE_SHARE {
            self.rewrite_all(Rewrite::Leaves)?;
            engine.checkpoint_fully()?;
        }
        for _ in 0..ROUNDS_MAX {
            let end = engine.pager.page_end();
            let (_, _, cut) = engine.pager.packing();
            if end - cut <= end / GAIN_SHARE {
                break;
            }
            self.rewrite_all(Rewrite::From(cut))?;
            engine.checkpoint_fully()?;
            if engine.pager.page_end() >= end {
                break;
            }
        }
        Ok(())
    }

    fn rewrite_all(&self, rewrite: Rewrite) -> Result<()> {
        for name in self.keyspaces() {
            match self.open_keyspace(&name) {
                Ok(keyspace) if matches!(rewrite, Rewrite::Expired) => {
                    self.drop_expired(&keyspace)?;
                }
                Ok(keyspace) => self.rewrite(&keyspace, rewrite)?,
                // Dropped or renamed meanwhile: it is compacted the next time.
                Err(Error::KeyspaceNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn rewrite(&self, keyspace: &Keyspace, rewrite: Rewrite) -> Result<()> {
        let mut transaction = match self.begin_direct(&[keyspace]) {
            Err(Error::KeyspaceGone { .. }) => return Ok(()),
            other => other?,
        };
        if transaction.rewrite(rewrite)? {
            transaction.commit()
        } else {
            transaction.abort();
            Ok(())
        }
    }
}
