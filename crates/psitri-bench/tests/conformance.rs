//! The engines of a plain build keep the rules, and the checks find an engine that does not.
use anyhow::Result;
use psitri_bench::conformance;
use psitri_bench::engine::{
    Batch, Capabilities, Description, Engine, EngineSizes, ReadMode, Settings, Writer,
};
use psitri_bench::engines::model::{Model, ModelBatch, ModelSnapshot};
use std::path::Path;

mod psitri {
    psitri_bench::conformance_tests!(psitri_bench::engines::psitri::Psitri);
}

mod psitri_direct {
    psitri_bench::conformance_tests!(psitri_bench::engines::psitri::PsitriDirect);
}

mod model {
    psitri_bench::conformance_tests!(
        psitri_bench::engines::model::Model,
        lacks "reopening a database"
    );
}

/// Ways in which [`Faulty`] is wrong.
const PUBLISH_EACH_WRITE: u8 = 1;
const FORGET_OWN_WRITES: u8 = 2;
const IGNORE_DELETES: u8 = 3;

/// The model with one defect.
struct Faulty<const DEFECT: u8>(Model);

struct FaultyBatch<'a, const DEFECT: u8> {
    model: &'a Model,
    batch: ModelBatch<'a>,
}

impl<const DEFECT: u8> Writer for Faulty<DEFECT> {
    type Batch<'a> = FaultyBatch<'a, DEFECT>;

    fn begin(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        Ok(FaultyBatch {
            model: &self.0,
            batch: self.0.begin()?,
        })
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

impl<const DEFECT: u8> Batch for FaultyBatch<'_, DEFECT> {
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if DEFECT == FORGET_OWN_WRITES {
            return self.model.begin()?.read(key, look);
        }
        self.batch.read(key, look)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(key, value)?;
        if DEFECT == PUBLISH_EACH_WRITE {
            std::mem::replace(&mut self.batch, self.model.begin()?).commit()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if DEFECT == IGNORE_DELETES {
            return Ok(());
        }
        self.batch.delete(key)
    }

    fn commit(self) -> Result<()> {
        self.batch.commit()
    }
}

impl<const DEFECT: u8> Engine for Faulty<DEFECT> {
    const CAPABILITIES: Capabilities = Model::CAPABILITIES;

    type Snapshot<'a> = ModelSnapshot<'a>;
    type Writes<'a> = FaultyBatch<'a, DEFECT>;

    fn describe(settings: &Settings) -> Description {
        Model::describe(settings)
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self(Model::create(path, settings)?))
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self(Model::open(path, settings)?))
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        self.0.bulk_load(entries)
    }

    fn snapshot(&self, mode: ReadMode) -> Result<ModelSnapshot<'_>> {
        self.0.snapshot(mode)
    }

    fn begin_writes(&self) -> Result<FaultyBatch<'_, DEFECT>> {
        self.begin()
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&mut self) -> Result<bool> {
        self.0.compact()
    }

    fn sizes(&self) -> Result<EngineSizes> {
        self.0.sizes()
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

fn assert_found_out(check: Result<()>, words: &str) {
    let error = check.expect_err("a defect is found").to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_batch_that_is_visible_in_parts_is_found() {
    type Engine = Faulty<PUBLISH_EACH_WRITE>;
    // A reader has to look at the right moment, which a busy machine may keep it from.
    let found = (0..100)
        .map(|_| conformance::batch_is_visible_as_a_whole::<Engine>())
        .find(Result::is_err);
    assert_found_out(found.unwrap_or(Ok(())), "rule 2");
    assert_found_out(
        conformance::dropped_batch_leaves_nothing::<Engine>(),
        "rule 4",
    );
}

#[test]
fn a_batch_that_does_not_see_its_own_writes_is_found() {
    type Engine = Faulty<FORGET_OWN_WRITES>;
    assert_found_out(
        conformance::batch_reads_its_own_writes::<Engine>(),
        "rule 1",
    );
}

#[test]
fn deletes_that_do_nothing_are_found() {
    type Engine = Faulty<IGNORE_DELETES>;
    assert_found_out(conformance::deleting_removes::<Engine>(), "after a delete");
}

#[test]
fn what_is_missing_is_named() {
    let nothing = Capabilities {
        ordered: false,
        backwards: false,
        pops: false,
        snapshots: false,
        atomic_batches: false,
        persistent: false,
        record_bytes_max: Some(1_000),
        ..Capabilities::FULL
    };
    assert_eq!(conformance::missing(&nothing).len(), 7);
    assert_eq!(conformance::missing(&Capabilities::FULL), [""; 0]);
}
