//! What was closed is opened again, outside of all figures: closing is timed, and the size of closed files is published, so neither may come from
//! leaving something out.
use crate::engine::{Engine, ReadMode, Settings, Snapshot};
use anyhow::{Context, Result};
use std::path::Path;

/// How many keys an engine has.
pub fn keys<E: Engine>(engine: &E) -> Result<u64> {
    engine.snapshot(ReadMode::Latest)?.count()
}

/// Opens a database that was closed with so many keys, if it can be opened at all, and notes what was looked at and what is wrong with it.
pub fn check<E: Engine>(
    path: &Path,
    settings: &Settings,
    expected: u64,
    checks: &mut Vec<String>,
    failures: &mut Vec<String>,
) -> Result<()> {
    if !E::CAPABILITIES.persistent {
        return Ok(());
    }
    let engine = E::open(path, settings).context("cannot open the closed database")?;
    let found = keys(&engine)?;
    engine
        .close()
        .context("cannot close what was opened again")?;
    checks.push("the number of keys when it was opened again".to_owned());
    if found != expected {
        failures.push(format!(
            "opened again, the database has {found} keys; it was closed with {expected}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Batch, Writer};

    #[test]
    fn a_key_that_is_missing_is_noticed() {
        use crate::engines::psitri::Psitri;
        let directory = tempfile::tempdir().expect("a directory");
        let settings = Settings::default();
        let engine = Psitri::create(directory.path(), &settings).expect("a database");
        let mut batch = engine.begin().expect("a transaction");
        Batch::put(&mut batch, b"k", b"v").expect("a put");
        Batch::commit(batch).expect("a commit");
        assert_eq!(keys(&engine).expect("a count"), 1);
        engine.close().expect("closing");
        for (expected, is_failure) in [(1, false), (2, true)] {
            let (mut checks, mut failures) = (Vec::new(), Vec::new());
            check::<Psitri>(
                directory.path(),
                &settings,
                expected,
                &mut checks,
                &mut failures,
            )
            .expect("it opens");
            assert_eq!((checks.len(), !failures.is_empty()), (1, is_failure));
        }
    }
}
