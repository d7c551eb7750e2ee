//! Loads, reopening, settings, and what must change nothing.
use super::*;

const SYNC_MODES: [SyncMode; 4] = [
    SyncMode::None,
    SyncMode::Async,
    SyncMode::Sync,
    SyncMode::WriteThrough,
];

/// A bulk load of entries in any order, into an empty database and into one that is not.
pub fn bulk_load_writes_everything<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let load = |entries: &Map, seed: u64| -> Result<()> {
        let mut shuffled: Vec<_> = slices(entries).collect();
        let mut draws = Draws::new(seed);
        for position in (1..shuffled.len()).rev() {
            shuffled.swap(position, draws.below(position as u64 + 1) as usize);
        }
        engine.bulk_load(shuffled.into_iter()).context("bulk_load")
    };
    let mut expected = awkward_entries(&E::CAPABILITIES);
    expected.extend(random_entries(11, 3_000));
    load(&expected, 12)?;
    expect(engine, &expected, "after a bulk load")?;
    commit(engine, &[(b"between", b"loads")], &[b"\x00"])?;
    expected.insert(b"between".to_vec(), b"loads".to_vec());
    expected.remove(&b"\x00"[..]);
    let more = random_entries(13, 1_000);
    load(&more, 14)?;
    expected.extend(more);
    expect(engine, &expected, "after a bulk load into a used database")?;
    engine.bulk_load(std::iter::empty())?;
    expect(engine, &expected, "after a bulk load of nothing")
}

/// What was committed is there after closing and opening, twice, and the database can be written again.
pub fn reopened_database_has_everything<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.persistent {
        return Ok(());
    }
    let Fresh {
        mut engine,
        path,
        directory,
    } = Fresh::<E>::new()?;
    let mut expected = awkward_entries(&E::CAPABILITIES);
    engine.bulk_load(slices(&expected))?;
    for round in 0..2u64 {
        let more = random_entries(20 + round, 500);
        commit_map(&engine, &more)?;
        expected.extend(more);
        let deleted: Vec<Vec<u8>> = expected.keys().step_by(5).cloned().collect();
        let deletes: Vec<&[u8]> = deleted.iter().map(Vec::as_slice).collect();
        commit(&engine, &[], &deletes)?;
        expected.retain(|key, _| !deleted.contains(key));
        engine.close().context("close")?;
        engine = E::open(&path, &Settings::default()).context("open")?;
        expect(&engine, &expected, "after close and open")?;
    }
    engine.close()?;
    Ok(directory.close()?)
}

/// Every sync mode opens, commits, flushes, and keeps what it committed.
pub fn every_sync_mode_commits<E: Engine>() -> Result<()> {
    for sync_mode in SYNC_MODES {
        let settings = Settings {
            sync_mode,
            ..Settings::default()
        };
        let when = format!("sync mode {sync_mode:?}");
        let fresh = Fresh::<E>::with(&settings).context(when.clone())?;
        let expected = random_entries(30, 20);
        for (key, value) in &expected {
            commit(&fresh.engine, &[(key, value)], &[]).context(when.clone())?;
        }
        fresh.engine.sync().context(when.clone())?;
        expect(&fresh.engine, &expected, &when)?;
        if E::CAPABILITIES.persistent {
            fresh.engine.close().context(when.clone())?;
            let engine = E::open(&fresh.path, &settings).context(when.clone())?;
            expect(&engine, &expected, &format!("{when}, reopened"))?;
            engine.close()?;
        }
    }
    Ok(())
}

/// An engine works with all settings given.
pub fn settings_are_accepted<E: Engine>() -> Result<()> {
    let settings = Settings {
        sync_mode: SyncMode::None,
        cache_bytes: Some(64 << 20),
        write_buffer_bytes: Some(16 << 20),
        merge_threads: Some(1),
        file_slack_percent: Some(100),
        compression: Compression::Lz4,
        data_bytes_expected: Some(64 << 20),
    };
    let fresh = Fresh::<E>::with(&settings)?;
    let expected = random_entries(40, 2_000);
    commit_map(&fresh.engine, &expected)?;
    expect(&fresh.engine, &expected, "with all settings given")?;
    fresh.engine.close()
}

/// Making the files small changes nothing else, and what is written afterwards is kept as well.
pub fn compact_keeps_the_contents<E: Engine>() -> Result<()> {
    let Fresh {
        mut engine,
        path,
        directory,
    } = Fresh::<E>::new()?;
    let mut expected = random_entries(50, 2_000);
    engine.bulk_load(slices(&expected))?;
    let deleted: Vec<Vec<u8>> = expected.keys().step_by(2).cloned().collect();
    let deletes: Vec<&[u8]> = deleted.iter().map(Vec::as_slice).collect();
    commit(&engine, &[], &deletes)?;
    deleted.iter().for_each(|key| drop(expected.remove(key)));
    for _ in 0..2 {
        engine.compact().context("compact")?;
        expect(&engine, &expected, "after compact")?;
    }
    commit(&engine, &[(b"after", b"compact")], &[])?;
    expected.insert(b"after".to_vec(), b"compact".to_vec());
    expect(&engine, &expected, "after a commit after compact")?;
    engine.close()?;
    if E::CAPABILITIES.persistent {
        let engine = E::open(&path, &Settings::default()).context("open")?;
        expect(&engine, &expected, "reopened after compact and a commit")?;
        engine.close()?;
    }
    Ok(directory.close()?)
}

/// A checkpoint changes nothing.
pub fn checkpoint_keeps_the_contents<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    fresh.engine.checkpoint().context("checkpoint of nothing")?;
    let mut expected = Map::new();
    for seed in 60..63 {
        let more = random_entries(seed, 500);
        commit_map(&fresh.engine, &more)?;
        expected.extend(more);
        fresh.engine.checkpoint().context("checkpoint")?;
        expect(&fresh.engine, &expected, "after a checkpoint")?;
    }
    Ok(())
}

/// Sizes can be asked for at any time, and a database that holds something is not said to be empty.
pub fn sizes_are_known_or_absent<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    fresh.engine.sizes().context("sizes of an empty database")?;
    commit_map(&fresh.engine, &random_entries(70, 500))?;
    fresh.engine.checkpoint()?;
    let sizes = fresh.engine.sizes().context("sizes")?;
    ensure!(
        sizes.reachable_bytes != Some(0),
        "no byte is said to be reachable in a database that holds entries"
    );
    Ok(())
}
