//! The workloads of redb and emdb find out engines that are wrong, and leave out phases that an engine without order cannot have.
use anyhow::Result;
use clap::Parser;
use psitri_bench::clock::Clock;
use psitri_bench::emdb::{
    Comparative, ConcurrentReads, GroupCommit, IndexHotpath, Kv, WriteThrough,
};
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, End, Engine, EngineSizes, ReadMode, Settings,
    Snapshot, Writer,
};
use psitri_bench::engines::model::{Model, ModelBatch, ModelCursor, ModelSnapshot};
use psitri_bench::lmdb_style::LmdbStyle;
use psitri_bench::pairs::{KEY_BYTES, PAIR_BYTES};
use psitri_bench::report::{Report, Validation};
use psitri_bench::workload::{self, Run, Workload};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The defects of a [`Faulty`] engine. The first is none.
const UNORDERED: u8 = 0;
const LOSE_A_PUT: u8 = 1;
const KEEP_A_DELETED_KEY: u8 = 2;
const WRONG_READ: u8 = 3;
const CURSOR_SKIPS: u8 = 4;

/// The model with one defect, which shows once in `EVERY` calls.
struct Faulty<const DEFECT: u8> {
    model: Model,
    calls: AtomicU64,
}

const EVERY: u64 = 30;

impl<const DEFECT: u8> Faulty<DEFECT> {
    fn shows(&self, defect: u8) -> bool {
        defect == DEFECT && self.calls.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
    }
}

struct FaultyBatch<'a, const DEFECT: u8> {
    engine: &'a Faulty<DEFECT>,
    batch: ModelBatch<'a>,
}

struct FaultySnapshot<'a, const DEFECT: u8> {
    engine: &'a Faulty<DEFECT>,
    snapshot: ModelSnapshot<'a>,
}

struct FaultyCursor<'a, 'c, const DEFECT: u8> {
    engine: &'a Faulty<DEFECT>,
    cursor: ModelCursor<'c>,
}

impl<const DEFECT: u8> Writer for Faulty<DEFECT> {
    type Batch<'a> = FaultyBatch<'a, DEFECT>;

    fn begin(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        Ok(FaultyBatch {
            engine: self,
            batch: self.model.begin()?,
        })
    }

    fn sync(&self) -> Result<()> {
        self.model.sync()
    }
}

impl<const DEFECT: u8> Batch for FaultyBatch<'_, DEFECT> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.batch.read(key, look)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.engine.shows(LOSE_A_PUT) {
            return Ok(());
        }
        Batch::put(&mut self.batch, key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if self.engine.shows(KEEP_A_DELETED_KEY) {
            return Ok(());
        }
        Batch::delete(&mut self.batch, key)
    }

    fn pop(&mut self, end: End, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        if self.engine.shows(KEEP_A_DELETED_KEY) {
            look(&[0; KEY_BYTES], &[0; PAIR_BYTES - KEY_BYTES]);
            return Ok(true);
        }
        self.batch.pop(end, look)
    }

    fn commit(self) -> Result<()> {
        Batch::commit(self.batch)
    }
}

impl<const DEFECT: u8> Engine for Faulty<DEFECT> {
    const CAPABILITIES: Capabilities = Capabilities {
        ordered: DEFECT != UNORDERED,
        ..Model::CAPABILITIES
    };

    type Snapshot<'a> = FaultySnapshot<'a, DEFECT>;
    type Writes<'a> = FaultyBatch<'a, DEFECT>;

    fn describe(settings: &Settings) -> Description {
        Model::describe(settings)
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self {
            model: Model::create(path, settings)?,
            calls: AtomicU64::new(0),
        })
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self {
            model: Model::open(path, settings)?,
            calls: AtomicU64::new(0),
        })
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        self.model.bulk_load(entries)
    }

    fn snapshot(&self, mode: ReadMode) -> Result<FaultySnapshot<'_, DEFECT>> {
        Ok(FaultySnapshot {
            engine: self,
            snapshot: self.model.snapshot(mode)?,
        })
    }

    fn begin_writes(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        self.model.checkpoint()
    }

    fn compact(&mut self) -> Result<bool> {
        self.model.compact()
    }

    fn sizes(&self) -> Result<EngineSizes> {
        self.model.sizes()
    }

    fn close(self) -> Result<()> {
        self.model.close()
    }
}

impl<'a, const DEFECT: u8> Snapshot for FaultySnapshot<'a, DEFECT> {
    type Cursor<'c>
        = FaultyCursor<'a, 'c, DEFECT>
    where
        Self: 'c;

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if self.engine.shows(WRONG_READ) {
            return Ok(look(Some(b"something else")));
        }
        self.snapshot.read(key, look)
    }

    fn scan(&mut self, each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.snapshot.scan(each)
    }

    fn cursor(&mut self) -> Result<FaultyCursor<'a, '_, DEFECT>> {
        Ok(FaultyCursor {
            engine: self.engine,
            cursor: self.snapshot.cursor()?,
        })
    }
}

impl<const DEFECT: u8> Cursor for FaultyCursor<'_, '_, DEFECT> {
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.cursor.seek(key)
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.cursor.seek_first()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.cursor.seek_last()
    }

    fn next(&mut self) -> Result<bool> {
        if self.engine.shows(CURSOR_SKIPS) {
            self.cursor.next()?;
        }
        self.cursor.next()
    }

    fn prev(&mut self) -> Result<bool> {
        self.cursor.prev()
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.cursor.entry()
    }
}

#[derive(Parser)]
struct Command<W: Workload> {
    #[command(flatten)]
    workload: W,
}

fn run<W: Workload, E: Engine>(arguments: &[&str]) -> Report {
    let workload = Command::<W>::parse_from(std::iter::once(&"test").chain(arguments)).workload;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    workload::run::<_, E>(&workload, &run).expect("no error of the engine")
}

fn assert_found<W: Workload, E: Engine>(arguments: &[&str], what: &str) {
    let report = run::<W, E>(arguments);
    assert_eq!(report.validation, Validation::Fail, "{what}");
    assert!(report.phases.is_empty() && report.size.is_none(), "{what}");
    assert!(
        report.failures.iter().any(|failure| failure.contains(what)),
        "{what} is not in {:?}",
        report.failures
    );
}

const PAIRS: &[&str] = &[
    "--records=500",
    "--individual-writes=10",
    "--batches=5",
    "--batch-size=20",
    "--nosync-writes=10",
    "--reads=700",
    "--range-reads=100",
    "--sorted-inserts=50",
];

#[test]
fn lmdb_style_finds_lost_puts() {
    assert_found::<LmdbStyle, Faulty<LOSE_A_PUT>>(PAIRS, "len");
}

#[test]
fn lmdb_style_finds_deleted_keys() {
    assert_found::<LmdbStyle, Faulty<KEEP_A_DELETED_KEY>>(PAIRS, "removals");
}

#[test]
fn lmdb_style_finds_wrong_reads() {
    assert_found::<LmdbStyle, Faulty<WRONG_READ>>(PAIRS, "random_reads_32_threads");
}

#[test]
fn lmdb_style_finds_cursors_that_skip() {
    assert_found::<LmdbStyle, Faulty<CURSOR_SKIPS>>(PAIRS, "random_range_reads");
    assert_found::<LmdbStyle, Faulty<CURSOR_SKIPS>>(PAIRS, "after retain");
}

#[test]
fn lmdb_style_passes_without_order() {
    let report = run::<LmdbStyle, Faulty<UNORDERED>>(PAIRS);
    assert_eq!(report.failures, Vec::<String>::new());
    for absent in ["random_range_reads", "retain", "extract_if", "pop"] {
        assert!(report.phase(absent).is_none(), "{absent}");
    }
    assert!(report.phase("removals").is_some() && report.phase("sorted_inserts").is_some());
}

const ONE: &[&str] = &["--samples=1", "--warm-up-seconds=0", "--sample-seconds=0"];

fn few() -> Vec<&'static str> {
    [ONE, &["--records=300"]].concat()
}

#[test]
fn emdb_workloads_find_lost_puts() {
    let few = &few();
    assert_found::<Kv, Faulty<LOSE_A_PUT>>(few, "kv_insert");
    assert_found::<Comparative, Faulty<LOSE_A_PUT>>(few, "compare_insert_single");
    assert_found::<Comparative, Faulty<LOSE_A_PUT>>(few, "compare_insert_batch");
    assert_found::<IndexHotpath, Faulty<LOSE_A_PUT>>(
        &[ONE, &["--records=1000", "--operations=500"]].concat(),
        "single_replace",
    );
    let group = ["--samples=1", "--threads=4"];
    assert_found::<GroupCommit, Faulty<LOSE_A_PUT>>(&group, "one_thread");
    assert_found::<GroupCommit, Faulty<LOSE_A_PUT>>(&group, "many_threads");
    let writes = ["--samples=1", "--writes=50"];
    assert_found::<WriteThrough, Faulty<LOSE_A_PUT>>(&writes, "write_through");
}

#[test]
fn emdb_workloads_find_deleted_keys() {
    let few = &few();
    assert_found::<Kv, Faulty<KEEP_A_DELETED_KEY>>(few, "kv_remove");
}

#[test]
fn emdb_workloads_find_wrong_reads() {
    let few = &few();
    assert_found::<Kv, Faulty<WRONG_READ>>(few, "kv_get");
    assert_found::<Comparative, Faulty<WRONG_READ>>(few, "compare_read");
    assert_found::<ConcurrentReads, Faulty<WRONG_READ>>(few, "newest_per_get_8_threads");
    assert_found::<ConcurrentReads, Faulty<WRONG_READ>>(few, "snapshot_per_thread_1_threads");
    assert_found::<IndexHotpath, Faulty<WRONG_READ>>(few, "concurrent_mixed_80r_20w_8_threads");
}
