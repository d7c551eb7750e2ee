//! The model with one defect, to see that a workload finds it.
use anyhow::{Result, bail};
use clap::{Args, Parser};
use psitri_bench::clock::Clock;
use psitri_bench::engine::{
    Batch, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot, Writer,
};
use psitri_bench::engines::model::{Model, ModelBatch, ModelCursor, ModelSnapshot};
use psitri_bench::report::{Report, Validation};
use psitri_bench::workload::{self, Run, Workload};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The thousandth put does not happen.
    LosesAPut,
    /// The thousandth put writes a wrong last byte.
    ChangesAValue,
    /// The fiftieth read by key finds nothing.
    MissesARead,
    /// A full scan leaves out the fifth entry.
    ScanSkips,
    /// One delete of a hundred does not happen.
    LosesADelete,
    /// The five hundredth step of cursors goes over an entry.
    CursorSkips,
    /// The fiftieth seek arrives one entry too far.
    SeeksTooFar,
    /// Once keys are overwritten, they keep their first value.
    KeepsFirstValues,
}

thread_local! {
    /// The defect of engines that this thread creates. Not a type parameter: each would compile every workload once more.
    static DEFECT: Cell<Option<Defect>> = const { Cell::new(None) };
}

pub struct Faulty {
    defect: Option<Defect>,
    model: Model,
    /// Operations so far of the kind that the defect is in.
    operations: AtomicU64,
}

pub struct FaultyBatch<'a> {
    engine: &'a Faulty,
    batch: ModelBatch<'a>,
}

pub struct FaultySnapshot<'a> {
    engine: &'a Faulty,
    snapshot: ModelSnapshot<'a>,
}

pub struct FaultyCursor<'c> {
    engine: &'c Faulty,
    cursor: ModelCursor<'c>,
}

impl Faulty {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}

fn is_turn(operations: &AtomicU64, turn: u64) -> bool {
    operations.fetch_add(1, Ordering::Relaxed) + 1 == turn
}

impl Writer for Faulty {
    type Batch<'a> = FaultyBatch<'a>;

    fn begin(&self) -> Result<FaultyBatch<'_>> {
        Ok(FaultyBatch {
            engine: self,
            batch: self.model.begin()?,
        })
    }

    fn sync(&self) -> Result<()> {
        self.model.sync()
    }
}

impl Batch for FaultyBatch<'_> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.batch.read(key, look)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let operations = &self.engine.operations;
        if self.engine.has(Defect::LosesAPut) && is_turn(operations, 1_000) {
            return Ok(());
        }
        if self.engine.has(Defect::KeepsFirstValues)
            && self.batch.read(key, |value| value.is_some())?
        {
            return Ok(());
        }
        if self.engine.has(Defect::ChangesAValue) && is_turn(operations, 1_000) {
            let mut changed = value.to_vec();
            if let Some(last) = changed.last_mut() {
                *last ^= 1;
            }
            return self.batch.put(key, &changed);
        }
        self.batch.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if self.engine.has(Defect::LosesADelete) {
            let deletes = self.engine.operations.fetch_add(1, Ordering::Relaxed);
            if deletes.is_multiple_of(100) {
                return Ok(());
            }
        }
        self.batch.delete(key)
    }

    fn commit(self) -> Result<()> {
        self.batch.commit()
    }
}

impl Engine for Faulty {
    const CAPABILITIES: psitri_bench::engine::Capabilities = Model::CAPABILITIES;

    type Snapshot<'a> = FaultySnapshot<'a>;
    type Writes<'a> = FaultyBatch<'a>;

    fn describe(settings: &Settings) -> Description {
        Model::describe(settings)
    }

    fn create(_path: &Path, _settings: &Settings) -> Result<Self> {
        Ok(Self {
            defect: DEFECT.get(),
            model: Model::default(),
            operations: AtomicU64::new(0),
        })
    }

    fn open(_path: &Path, _settings: &Settings) -> Result<Self> {
        bail!("it keeps nothing")
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        self.model.bulk_load(entries)
    }

    fn snapshot(&self, mode: ReadMode) -> Result<FaultySnapshot<'_>> {
        Ok(FaultySnapshot {
            engine: self,
            snapshot: self.model.snapshot(mode)?,
        })
    }

    fn begin_writes(&self) -> Result<FaultyBatch<'_>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
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

impl Snapshot for FaultySnapshot<'_> {
    type Cursor<'c>
        = FaultyCursor<'c>
    where
        Self: 'c;

    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if self.engine.has(Defect::MissesARead) && is_turn(&self.engine.operations, 50) {
            return Ok(look(None));
        }
        self.snapshot.read(key, look)
    }

    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut position = 0;
        self.snapshot.scan(|key, value| {
            position += 1;
            if !(self.engine.has(Defect::ScanSkips) && position == 5) {
                each(key, value);
            }
        })
    }

    fn cursor(&mut self) -> Result<FaultyCursor<'_>> {
        Ok(FaultyCursor {
            engine: self.engine,
            cursor: self.snapshot.cursor()?,
        })
    }
}

impl Cursor for FaultyCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        let found = self.cursor.seek(key)?;
        if self.engine.has(Defect::SeeksTooFar) && is_turn(&self.engine.operations, 50) {
            return self.cursor.next();
        }
        Ok(found)
    }

    fn seek_first(&mut self) -> Result<bool> {
        self.cursor.seek_first()
    }

    fn seek_last(&mut self) -> Result<bool> {
        self.cursor.seek_last()
    }

    fn next(&mut self) -> Result<bool> {
        if self.engine.has(Defect::CursorSkips) && is_turn(&self.engine.operations, 500) {
            self.cursor.next()?;
        }
        self.cursor.next()
    }

    fn prev(&mut self) -> Result<bool> {
        if self.engine.has(Defect::CursorSkips) && is_turn(&self.engine.operations, 500) {
            self.cursor.prev()?;
        }
        self.cursor.prev()
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.cursor.entry()
    }
}

#[derive(Parser)]
#[command(args_override_self = true)]
struct Command<W: Args> {
    #[command(flatten)]
    workload: W,
}

/// A run of a workload with these arguments.
pub fn run<W: Workload, E: Engine>(arguments: &[&str]) -> Report {
    let arguments = std::iter::once(&"test").chain(arguments);
    let workload = Command::<W>::parse_from(arguments).workload;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = Run {
        engine: "test",
        path: &directory.path().join("db"),
        clock: &Clock::new(),
    };
    workload::run::<W, E>(&workload, &run).expect("no engine error")
}

pub fn assert_passes<W: Workload, E: Engine>(arguments: &[&str]) -> Report {
    let report = run::<W, E>(arguments);
    assert_eq!(report.failures, Vec::<String>::new(), "{arguments:?}");
    assert_eq!(report.validation, Validation::Pass);
    report
}

pub fn assert_found_out<W: Workload>(defect: Defect, arguments: &[&str], failure: &str) {
    DEFECT.set(Some(defect));
    let report = run::<W, Faulty>(arguments);
    assert_eq!(report.validation, Validation::Fail, "{arguments:?}");
    assert!(
        report.failures.iter().any(|found| found.contains(failure)),
        "{:?}",
        report.failures
    );
    assert!(
        report.phases.is_empty() && report.series.is_empty(),
        "a failed run has no figures"
    );
}

pub fn phase_names(report: &Report) -> Vec<&str> {
    report
        .phases
        .iter()
        .map(|phase| phase.name.as_str())
        .collect()
}
