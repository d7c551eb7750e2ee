//! What was written is there, once and in order; what was deleted is not.
use super::*;

/// A report names the version and how the engine was set up.
pub fn description_names_a_version<E: Engine>() -> Result<()> {
    let description = E::describe(&Settings::default());
    ensure!(
        description.version.contains(|c: char| c.is_ascii_digit()),
        "the version is '{}'",
        description.version
    );
    ensure!(
        !description.settings.is_empty(),
        "the description says nothing of the settings"
    );
    Ok(())
}

/// What was put and committed is read, by a snapshot and by the next batch; what was not is absent.
pub fn committed_values_are_read<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    expect(engine, &Map::new(), "a new database")?;
    commit(engine, &[(b"key", b"value")], &[])?;
    expect(
        engine,
        &Map::from([(b"key".to_vec(), b"value".to_vec())]),
        "after a commit",
    )?;
    for absent in [&b"ke"[..], b"key\0", b"kez", b"a", b"z"] {
        let found = get_latest(engine, absent)?;
        ensure!(found.is_none(), "a key that was never put has a value");
    }
    let mut found = Vec::new();
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    snapshot.read_many(&[b"kez", b"key", b"a", b"key"], |value| {
        found.push(value.map(<[u8]>::to_vec));
    })?;
    drop(snapshot);
    let value = Some(b"value".to_vec());
    ensure!(
        found == [None, value.clone(), None, value],
        "several keys read at once, some of them absent: {found:?}"
    );
    let mut batch = engine.begin()?;
    let seen = batch.read(b"key", |value| value == Some(b"value"))?;
    ensure!(seen, "a batch does not read what an earlier one committed");
    let absent = batch.read(b"kez", |value| value.is_none())?;
    ensure!(absent, "a batch reads a key that was never put");
    batch.commit().context("commit of a batch that only read")
}

/// The last put of a key counts, in one batch and over several, with values that shrink and grow.
pub fn overwriting_replaces<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    for bytes in [10, 1_000, 0, 500, 3] {
        let value = vec![bytes as u8; bytes];
        commit(&fresh.engine, &[(b"key", b"first"), (b"key", &value)], &[])?;
        let when = format!("after overwriting with {bytes} bytes");
        expect(&fresh.engine, &Map::from([(b"key".to_vec(), value)]), &when)?;
    }
    Ok(())
}

/// A deleted key is gone, deleting one that is not there is no error, and a deleted key can be put again.
pub fn deleting_removes<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[], &[b"never there"])?;
    commit(engine, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], &[])?;
    commit(engine, &[], &[b"b", b"never there", b"b"])?;
    let mut expected = Map::from([
        (b"a".to_vec(), b"1".to_vec()),
        (b"c".to_vec(), b"3".to_vec()),
    ]);
    expect(engine, &expected, "after a delete")?;
    commit(engine, &[(b"b", b"again"), (b"d", b"4")], &[b"d"])?;
    expected.insert(b"b".to_vec(), b"again".to_vec());
    expect(engine, &expected, "after putting what was deleted")?;
    let mut writes = engine.begin_writes()?;
    engine::Writes::put(&mut writes, b"e", b"5")?;
    engine::Writes::delete(&mut writes, b"a")?;
    engine::Writes::commit(writes)?;
    expected.remove(&b"a"[..]);
    expected.insert(b"e".to_vec(), b"5".to_vec());
    expect(engine, &expected, "after a blind delete")
}

/// Rule (1): a read in a batch sees the batch's own earlier writes.
pub fn batch_reads_its_own_writes<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"old", b"before"), (b"gone", b"before")], &[])?;
    let keys: u32 = if E::CAPABILITIES.atomic_batches {
        500
    } else {
        1
    };
    let mut batch = engine.begin()?;
    let rule = "rule 1: a read in a batch sees the batch's own earlier writes";
    for number in 0..keys {
        let key = format!("new {number}").into_bytes();
        for value in [&b"first"[..], b"second"] {
            batch.put(&key, value)?;
            let seen = batch.read(&key, |found| found == Some(value))?;
            ensure!(seen, "{rule}; a put is not seen");
        }
    }
    if E::CAPABILITIES.atomic_batches {
        batch.put(b"old", b"after")?;
        batch.delete(b"gone")?;
        let seen = batch.read(b"old", |found| found == Some(b"after"))?;
        ensure!(seen, "{rule}; an overwrite is not seen");
        let seen = batch.read(b"gone", |found| found.is_none())?;
        ensure!(seen, "{rule}; a delete is not seen");
        batch.put(b"gone", b"back")?;
        let seen = batch.read(b"gone", |found| found == Some(b"back"))?;
        ensure!(seen, "{rule}; a put after a delete is not seen");
        for number in 0..keys {
            let key = format!("new {number}").into_bytes();
            let seen = batch.read(&key, |found| found == Some(b"second"))?;
            ensure!(seen, "{rule}; the first of many writes is not seen");
        }
    }
    batch.commit()?;
    let kept = get_latest(engine, b"new 0")?;
    ensure!(
        kept.as_deref() == Some(b"second"),
        "the last put of a batch is not what it committed"
    );
    Ok(())
}

/// A pop removes the first or the last entry that a batch sees, its own among them, and shows it.
pub fn pops_remove_what_is_outermost<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.pops {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let mut expected = random_entries(11, 300);
    commit_map(engine, &expected)?;
    let mut batch = engine.begin()?;
    for turn in 0..400 {
        if turn % 7 == 3 {
            let first = vec![0, turn as u8 ^ 0xff];
            batch.put(&first, b"a new first")?;
            expected.insert(first, b"a new first".to_vec());
        }
        if turn % 11 == 5
            && let Some(last) = expected.keys().next_back().cloned()
        {
            batch.delete(&last)?;
            expected.remove(&last);
        }
        let (end, wanted) = match turn % 2 {
            0 => (End::First, expected.pop_first()),
            _ => (End::Last, expected.pop_last()),
        };
        let mut popped = None;
        let found = batch.pop(end, |key, value| {
            popped = Some((key.to_vec(), value.to_vec()));
        })?;
        ensure!(
            popped == wanted,
            "a pop of the {end:?} entry shows another than the one that is there"
        );
        ensure!(found == wanted.is_some(), "a pop does not know if it found");
        if turn == 350 {
            ensure!(expected.is_empty(), "the check leaves no pop of nothing");
        }
    }
    batch.put(b"left", b"1")?;
    batch.commit()?;
    expected.insert(b"left".to_vec(), b"1".to_vec());
    expect(engine, &expected, "after pops")
}

/// What is retained, or extracted from a range, is asked about entry by entry, in the order of the keys.
pub fn retaining_and_extracting_remove_the_others<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.ordered {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let mut expected = random_entries(13, 1_000);
    commit_map(engine, &expected)?;
    let (from, to) = (vec![0x40], vec![0xb0]);
    let mut asked = Vec::new();
    let extracted = engine.extract(&from[..]..&to[..], |key, value| {
        asked.push((key.to_vec(), value.to_vec()));
        asked.len().is_multiple_of(3)
    })?;
    let in_range: Vec<_> = (expected.range(from.clone()..to))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    ensure!(
        asked == in_range,
        "an extraction asks about other entries than those of the range, or in another order"
    );
    for (key, _) in in_range.iter().skip(2).step_by(3) {
        expected.remove(key);
    }
    ensure!(
        extracted == in_range.len() as u64 / 3,
        "an extraction says that it took {extracted} entries out"
    );
    expect(engine, &expected, "after an extraction")?;
    let mut position = 0;
    engine.retain(|_, _| {
        position += 1;
        position % 4 != 0
    })?;
    let gone: Vec<_> = expected.keys().skip(3).step_by(4).cloned().collect();
    for key in gone {
        expected.remove(&key);
    }
    expect(engine, &expected, "after retaining a part")?;
    engine.retain(|_, _| false)?;
    expect(engine, &Map::new(), "after retaining nothing")
}

/// Rule (4): a batch that is dropped leaves nothing behind.
pub fn dropped_batch_leaves_nothing<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"kept", b"1"), (b"also kept", b"2")], &[])?;
    let expected = Map::from([
        (b"kept".to_vec(), b"1".to_vec()),
        (b"also kept".to_vec(), b"2".to_vec()),
    ]);
    let rule = "rule 4: a batch that is dropped leaves nothing behind";
    let mut batch = engine.begin()?;
    batch.put(b"kept", b"other")?;
    if E::CAPABILITIES.atomic_batches {
        for number in 0..500u32 {
            batch.put(&number.to_be_bytes(), b"dropped")?;
        }
        batch.delete(b"also kept")?;
    }
    drop(batch);
    expect(engine, &expected, rule)?;
    let mut writes = engine.begin_writes()?;
    engine::Writes::put(&mut writes, b"blind", b"dropped")?;
    drop(writes);
    expect(engine, &expected, rule)?;
    commit(engine, &[], &[])?;
    expect(engine, &expected, "after an empty batch")
}

/// Rule (5), as far as a scan shows it, with values of all sizes; in any order if the engine is not ordered.
pub fn scan_is_complete_and_ordered<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let mut entries = awkward_entries(&E::CAPABILITIES);
    commit_map(&fresh.engine, &entries)?;
    let rule = "rule 5: keys are ordered bytewise, a prefix before what it is a prefix of";
    expect(&fresh.engine, &entries, rule)?;
    let more = random_entries(5, 2_000);
    commit_map(&fresh.engine, &more)?;
    entries.extend(more);
    expect(&fresh.engine, &entries, rule)
}

/// Rule (5), as far as a cursor shows it.
pub fn cursor_seeks_and_moves<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.ordered {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    let mut entries = awkward_entries(&E::CAPABILITIES);
    entries.extend(random_entries(6, 1_000));
    commit_map(&fresh.engine, &entries)?;
    let sorted: Vec<(&[u8], &[u8])> = slices(&entries).collect();
    let mut snapshot = fresh.engine.snapshot(ReadMode::Latest)?;
    let mut cursor = snapshot.cursor()?;
    ensure!(cursor.entry().is_none(), "a new cursor is on an entry");

    let mut at = cursor.seek_first()?;
    for &entry in &sorted {
        ensure!(at, "next ends before the last entry");
        ensure!(
            cursor.entry() == Some(entry),
            "next skips or repeats entries"
        );
        at = cursor.next()?;
    }
    ensure!(!at && cursor.entry().is_none(), "next goes past the end");
    ensure!(!cursor.next()?, "next at the end begins again");

    if E::CAPABILITIES.backwards {
        let mut at = cursor.seek_last()?;
        for &entry in sorted.iter().rev() {
            ensure!(at, "prev ends before the first entry");
            ensure!(
                cursor.entry() == Some(entry),
                "prev skips or repeats entries"
            );
            at = cursor.prev()?;
        }
        ensure!(!at && cursor.entry().is_none(), "prev goes past the start");
    }

    let mut targets: Vec<Vec<u8>> = entries.keys().step_by(7).cloned().collect();
    let probes: [&[u8]; 6] = [
        b"\x00",
        b"a",
        b"a\x00\x01",
        b"a\xff\xff",
        b"\xff",
        b"\xff\xff",
    ];
    targets.extend(probes.map(<[u8]>::to_vec));
    targets.extend(random_entries(8, 100).into_keys());
    targets.push(vec![0xff; 20]);
    for target in &targets {
        let position = sorted.partition_point(|(key, _)| *key < target.as_slice());
        let expected = sorted.get(position).copied();
        ensure!(
            cursor.seek(target)? == expected.is_some() && cursor.entry() == expected,
            "seek to {target:02x?} is not on the first key at or after it"
        );
        for expected in sorted.iter().skip(position + 1).take(5) {
            ensure!(
                cursor.next()? && cursor.entry() == Some(*expected),
                "next after seek to {target:02x?} is not on the following key"
            );
        }
    }
    Ok(())
}

/// A cursor finds nothing where there is nothing, also after everything was deleted.
pub fn cursor_in_an_empty_database_is_nowhere<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.ordered {
        return Ok(());
    }
    let fresh = Fresh::<E>::new()?;
    for when in ["in a new database", "after everything was deleted"] {
        let mut snapshot = fresh.engine.snapshot(ReadMode::Latest)?;
        let mut cursor = snapshot.cursor()?;
        ensure!(!cursor.seek_first()?, "seek_first finds an entry {when}");
        if E::CAPABILITIES.backwards {
            ensure!(!cursor.seek_last()?, "seek_last finds an entry {when}");
        }
        ensure!(!cursor.seek(b"a")?, "seek finds an entry {when}");
        ensure!(cursor.entry().is_none(), "the cursor is on an entry {when}");
        drop(cursor);
        drop(snapshot);
        commit(&fresh.engine, &[(b"a", b"1"), (b"b", b"2")], &[])?;
        commit(&fresh.engine, &[], &[b"b", b"a"])?;
    }
    Ok(())
}

/// The count follows puts, overwrites and deletes.
pub fn count_is_exact<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let count = |expected: u64| -> Result<()> {
        let found = engine.snapshot(ReadMode::Latest)?.count()?;
        ensure!(found == expected, "the count is {found}, not {expected}");
        Ok(())
    };
    count(0)?;
    let entries = random_entries(9, 300);
    commit_map(engine, &entries)?;
    count(300)?;
    commit_map(engine, &entries)?;
    count(300)?;
    let deleted: Vec<&[u8]> = entries.keys().step_by(3).map(Vec::as_slice).collect();
    commit(engine, &[], &deleted)?;
    count(200)?;
    commit(engine, &[], &deleted)?;
    count(200)
}
