//! bf-tree 0.5. An ordered index of pages and smaller pages of hot records, in a cache and a file; many threads, no transactions.
//!
//! Settings: bf-tree's defaults but for the sizes of keys and records, the cache if asked for, and its file (its default is memory).
//!
//! Not kept: rules (2) and (4) for more than one key, for operations are single ones; a map of the batch's writes stands in front and is
//! applied key by key. Rule (3): a scan sees what is written while it runs. Cursors do not move backwards. A key and its value have up to
//! 1799 bytes together. It takes no empty values, so that each value is stored behind one byte of the adapter's.
//!
//! Durability: none in any sync mode. This version writes a log but cannot read it back (`BfTree::recovery` says so), and flushes
//! nothing; a database cannot be opened again other than from a snapshot file. No log is written, therefore, and no mode is kept.
use anyhow::{Result, anyhow, bail};
use bf_tree::{Config, LeafInsertResult, LeafReadResult, ScanIter, ScanReturnField};
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot,
    Writer,
};
use psitri_bench::engines::pending::Pending;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Checked against the lock file by a test.
pub const VERSION: &str = "0.5.7";

const KEY_BYTES_MAX: usize = 128;
/// As much as two records in a page of 4 KiB leave.
const RECORD_BYTES_MAX: usize = 1_800;
/// In front of every value.
const TAG: u8 = 0;
/// No key is smaller: none is empty.
const FIRST_KEY: &[u8] = &[0];

pub struct BfTree {
    tree: bf_tree::BfTree,
    file: PathBuf,
    /// Held by the batch that reads and writes.
    batch: Mutex<()>,
}

pub struct BfTreeBatch<'a> {
    writes: BfTreeWrites<'a>,
    buffer: [u8; RECORD_BYTES_MAX],
    _one_at_a_time: MutexGuard<'a, ()>,
}

/// Blind writes need no turn.
pub struct BfTreeWrites<'a> {
    tree: &'a bf_tree::BfTree,
    pending: Pending,
}

pub struct BfTreeSnapshot<'a> {
    tree: &'a bf_tree::BfTree,
    buffer: [u8; RECORD_BYTES_MAX],
}

pub struct BfTreeCursor<'c> {
    tree: &'c bf_tree::BfTree,
    entries: Option<ScanIter<'c, 'c>>,
    /// A key, the tag and a value.
    buffer: Box<[u8]>,
    /// Bytes of the key and of tag and value, if there is an entry.
    at: Option<(usize, usize)>,
}

thread_local! {
    /// For reads of the newest state, so that not each of them has to clear one.
    static BUFFER: Cell<Option<Box<[u8; RECORD_BYTES_MAX]>>> = const { Cell::new(None) };
}

/// The cache has to be a power of two.
fn cache_bytes(settings: &Settings) -> u64 {
    1 << settings.cache_bytes_or_common().max(1 << 20).ilog2()
}

/// The value is copied into `buffer`, there is no other way to read one.
#[inline]
fn read<R>(
    tree: &bf_tree::BfTree,
    key: &[u8],
    buffer: &mut [u8; RECORD_BYTES_MAX],
    look: impl FnOnce(Option<&[u8]>) -> R,
) -> Result<R> {
    match tree.read(key, buffer) {
        LeafReadResult::Found(bytes) => Ok(look(Some(&buffer[1..bytes as usize]))),
        LeafReadResult::Deleted | LeafReadResult::NotFound => Ok(look(None)),
        LeafReadResult::InvalidKey => bail!("a key of {} bytes is not possible", key.len()),
    }
}

#[inline]
fn insert(tree: &bf_tree::BfTree, key: &[u8], value: &[u8], tagged: &mut Vec<u8>) -> Result<()> {
    tagged.clear();
    tagged.push(TAG);
    tagged.extend_from_slice(value);
    match tree.insert(key, tagged) {
        LeafInsertResult::Success => Ok(()),
        LeafInsertResult::InvalidKV(why) => Err(anyhow!(why)),
    }
}

fn scan_from<'t>(tree: &'t bf_tree::BfTree, key: &[u8]) -> Result<ScanIter<'t, 't>> {
    tree.scan_with_count(key, usize::MAX, ScanReturnField::KeyAndValue)
        .map_err(|error| anyhow!("cannot scan: {error:?}"))
}

impl Writer for BfTree {
    type Batch<'a> = BfTreeBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<BfTreeBatch<'_>> {
        Ok(BfTreeBatch {
            writes: self.begin_writes()?,
            buffer: [0; RECORD_BYTES_MAX],
            _one_at_a_time: self.batch.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// There is nothing that a flush would make durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Batch for BfTreeBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        match self.writes.pending.get(key) {
            Some(own) => Ok(look(own)),
            None => read(self.writes.tree, key, &mut self.buffer, look),
        }
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writes.pending.put(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.writes.pending.delete(key);
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.writes.apply()
    }
}

impl BfTreeWrites<'_> {
    fn apply(self) -> Result<()> {
        let mut tagged = Vec::new();
        for (key, value) in self.pending.iter() {
            match value {
                Some(value) => insert(self.tree, key, value, &mut tagged)?,
                None => self.tree.delete(key),
            }
        }
        Ok(())
    }
}

impl psitri_bench::engine::Writes for BfTreeWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pending.put(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.pending.delete(key);
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.apply()
    }
}

impl Engine for BfTree {
    const CAPABILITIES: Capabilities = Capabilities {
        pops: false,
        backwards: false,
        snapshots: false,
        atomic_batches: false,
        persistent: false,
        weaker_durability: true,
        record_bytes_max: Some(RECORD_BYTES_MAX - 1),
        ..Capabilities::FULL
    };

    type Snapshot<'a> = BfTreeSnapshot<'a>;
    type Writes<'a> = BfTreeWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        Description {
            version: VERSION.to_owned(),
            settings: vec![
                "weaker than asked: nothing survives the process, the engine cannot read its log"
                    .to_owned(),
                format!("circular buffer of {} bytes", cache_bytes(settings)),
                format!("keys of up to {KEY_BYTES_MAX} bytes, records of {RECORD_BYTES_MAX}"),
                "no write buffer, merges or compression: the engine has none".to_owned(),
            ],
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let file = path.join("bf-tree");
        let mut config = Config::new(&file, usize::try_from(cache_bytes(settings))?);
        config
            .cb_max_key_len(KEY_BYTES_MAX)
            .cb_min_record_size(2)
            .cb_max_record_size(RECORD_BYTES_MAX);
        let tree = bf_tree::BfTree::with_config(config, None)
            .map_err(|error| anyhow!("cannot create: {error:?}"))?;
        Ok(Self {
            tree,
            file,
            batch: Mutex::new(()),
        })
    }

    fn open(_path: &Path, _settings: &Settings) -> Result<Self> {
        bail!("bf-tree cannot open a database again other than from a snapshot file")
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut tagged = Vec::new();
        for (key, value) in entries {
            insert(&self.tree, key, value, &mut tagged)?;
        }
        Ok(())
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<BfTreeSnapshot<'_>> {
        Ok(BfTreeSnapshot {
            tree: &self.tree,
            buffer: [0; RECORD_BYTES_MAX],
        })
    }

    #[inline]
    fn read_latest<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let mut buffer = BUFFER
            .take()
            .unwrap_or_else(|| Box::new([0; RECORD_BYTES_MAX]));
        let result = read(&self.tree, key, &mut buffer, look);
        BUFFER.set(Some(buffer));
        result
    }

    #[inline]
    fn begin_writes(&self) -> Result<BfTreeWrites<'_>> {
        Ok(BfTreeWrites {
            tree: &self.tree,
            pending: Pending::new(),
        })
    }

    /// There is nothing that a checkpoint would make durable.
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn sizes(&self) -> Result<EngineSizes> {
        Ok(EngineSizes {
            reachable_bytes: None,
            data_bytes: std::fs::metadata(&self.file).ok().map(|file| file.len()),
            log_bytes: None,
        })
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Snapshot for BfTreeSnapshot<'_> {
    type Cursor<'c>
        = BfTreeCursor<'c>
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        read(self.tree, key, &mut self.buffer, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.cursor()?;
        let mut more = cursor.seek_first()?;
        while more {
            if let Some((key, value)) = cursor.entry() {
                each(key, value);
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<BfTreeCursor<'_>> {
        Ok(BfTreeCursor {
            tree: self.tree,
            entries: None,
            buffer: vec![0; RECORD_BYTES_MAX].into(),
            at: None,
        })
    }
}

impl Cursor for BfTreeCursor<'_> {
    #[inline]
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        // The lock of the page that the old scan stands on goes first, the new scan may need it.
        self.entries = None;
        self.entries = Some(scan_from(self.tree, key)?);
        self.next()
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.seek(FIRST_KEY)
    }

    fn seek_last(&mut self) -> Result<bool> {
        bail!("bf-tree does not scan backwards")
    }

    #[inline]
    fn next(&mut self) -> Result<bool> {
        self.at = self
            .entries
            .as_mut()
            .and_then(|entries| entries.next(&mut self.buffer));
        if self.at.is_none() {
            self.entries = None;
        }
        Ok(self.at.is_some())
    }

    fn prev(&mut self) -> Result<bool> {
        bail!("bf-tree does not scan backwards")
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, tagged) = self.at?;
        Some((&self.buffer[..key], &self.buffer[key + 1..key + tagged]))
    }
}
