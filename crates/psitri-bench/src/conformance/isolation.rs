//! Batches are seen whole, snapshots stay, nothing of several threads is lost.
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a check waits for a commit that an open snapshot may keep out; the check is weaker if it does, not wrong.
const COMMIT_WAIT: Duration = Duration::from_millis(500);

/// Commits and reads, at the most, that run beside one another. Engines that keep old versions walk over all of them.
const PAIRED_COMMITS: u64 = 3_000;
const PAIRED_READS: u64 = 400;

/// Rule (2): a batch becomes visible as a whole. A thread commits batches that write the same number to two keys, and a third key while
/// the number is odd. Another thread reads: in one snapshot all agree; without snapshots, a later read is never older than an
/// earlier one.
pub fn batch_is_visible_as_a_whole<E: Engine>() -> Result<()> {
    if !E::CAPABILITIES.atomic_batches {
        return Ok(());
    }
    let (first, odd, last) = (&b"first"[..], &b"odd"[..], &b"zlast"[..]);
    let rule = "rule 2: a batch becomes visible as a whole";
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit_map(engine, &random_entries(10, 50))?;
    let write = |number: u64| {
        let value = number.to_be_bytes();
        if number % 2 == 1 {
            commit(engine, &[(first, &value), (odd, b""), (last, &value)], &[])
        } else {
            commit(engine, &[(first, &value), (last, &value)], &[odd])
        }
    };
    write(0)?;
    let number = |value: Option<Vec<u8>>| -> Result<u64> {
        let value = value.with_context(|| format!("{rule}; a key is missing"))?;
        Ok(u64::from_be_bytes(value.as_slice().try_into()?))
    };
    let stop = AtomicBool::new(false);
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let outcome = (1..=PAIRED_COMMITS)
                .take_while(|_| !stop.load(Ordering::Relaxed))
                .try_for_each(write);
            finished.store(true, Ordering::Release);
            outcome
        });
        let read = || -> Result<()> {
            let mut newest = 0;
            let mut round = 0;
            loop {
                let is_last =
                    finished.load(Ordering::Acquire) || (round >= PAIRED_READS && newest > 0);
                round += 1;
                let mut snapshot = engine.snapshot(ReadMode::Latest)?;
                let (one, other) = if round % 2 == 0 {
                    (first, last)
                } else {
                    (last, first)
                };
                let earlier = number(get(&mut snapshot, one)?)?;
                let is_odd = get(&mut snapshot, odd)?.is_some();
                let later = number(get(&mut snapshot, other)?)?;
                ensure!(earlier >= newest, "a snapshot is older than the one before");
                newest = later;
                ensure!(
                    later >= earlier,
                    "{rule}; the keys have {earlier} and {later}"
                );
                if E::CAPABILITIES.snapshots {
                    ensure!(
                        earlier == later && is_odd == (later % 2 == 1),
                        "{rule}; the keys have {earlier} and {later}, a third key is {} there",
                        if is_odd { "" } else { "not" }
                    );
                    let mut entries = 0;
                    snapshot.scan(|_, _| entries += 1)?;
                    ensure!(
                        entries == 52 + later % 2,
                        "{rule}; a scan of the snapshot yields {entries} entries"
                    );
                }
                if is_last {
                    ensure!(newest > 0, "nothing was committed meanwhile");
                    return Ok(());
                }
            }
        };
        let outcome = read();
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends")?;
        outcome
    })
}

/// Rules (2) and (3): a snapshot does not see what is committed after it was taken, and one that is taken when `commit` has returned
/// does, whichever thread committed. An engine without snapshots is asked for the second only.
pub fn snapshot_stays_as_it_was_and_a_new_one_is_fresh<E: Engine>() -> Result<()> {
    let rule = "rule 3: a snapshot sees the same state for as long as it lives";
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    commit(engine, &[(b"changed", b"0"), (b"deleted", b"0")], &[])?;
    if E::CAPABILITIES.snapshots {
        let mut snapshot = engine.snapshot(ReadMode::Latest)?;
        let committed = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(|| {
                let puts: [(&[u8], &[u8]); 2] = [(b"changed", b"1"), (b"new", b"1")];
                let outcome = commit(engine, &puts, &[b"deleted"]);
                committed.store(true, Ordering::Release);
                outcome
            });
            let start = Instant::now();
            let mut look = || -> Result<()> {
                loop {
                    // Looked at before reading, so that the last round comes after the commit.
                    let is_last =
                        committed.load(Ordering::Acquire) || start.elapsed() > COMMIT_WAIT;
                    for key in [b"changed", b"deleted"] {
                        let value = get(&mut snapshot, key)?;
                        ensure!(value.as_deref() == Some(b"0"), "{rule}; a value changed");
                    }
                    let value = get(&mut snapshot, b"new")?;
                    ensure!(value.is_none(), "{rule}; a key appeared");
                    let mut entries = 0;
                    snapshot.scan(|_, value| entries += u64::from(value == b"0"))?;
                    ensure!(entries == 2, "{rule}; a scan sees a later commit");
                    let count = snapshot.count()?;
                    ensure!(count == 2, "{rule}; the count includes a later commit");
                    if is_last {
                        return Ok(());
                    }
                    thread::yield_now();
                }
            };
            let outcome = look();
            drop(snapshot);
            writer.join().expect("the writer ends")?;
            outcome
        })?;
    } else {
        commit(engine, &[(b"changed", b"1"), (b"new", b"1")], &[b"deleted"])?;
    }
    let expected = Map::from([
        (b"changed".to_vec(), b"1".to_vec()),
        (b"new".to_vec(), b"1".to_vec()),
    ]);
    expect(engine, &expected, "a snapshot taken after a commit")?;
    for number in 0..200u32 {
        let value = number.to_be_bytes();
        commit(engine, &[(b"changed", &value)], &[])?;
        let seen = get_latest(engine, b"changed")?;
        ensure!(
            seen.as_deref() == Some(&value[..]),
            "rule 2: a snapshot that is taken when commit has returned misses the commit"
        );
    }
    Ok(())
}

/// Blind batches of four threads at once: every put and every delete is kept.
pub fn blind_writes_of_several_threads_are_all_kept<E: Engine>() -> Result<()> {
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let key = |thread: u64, batch: u64, number: u64| format!("{thread}/{batch:03}/{number:02}");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || -> Result<()> {
                    for batch in 0..50 {
                        let mut writes = engine.begin_writes()?;
                        for number in 0..10 {
                            let key = key(thread, batch, number);
                            engine::Writes::put(&mut writes, key.as_bytes(), key.as_bytes())?;
                        }
                        if batch > 0 {
                            engine::Writes::delete(
                                &mut writes,
                                key(thread, batch - 1, 3).as_bytes(),
                            )?;
                        }
                        engine::Writes::commit(writes)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let mut expected = Map::new();
    for (thread, batch) in (0..4).flat_map(|thread| (0..50).map(move |batch| (thread, batch))) {
        for number in (0..10).filter(|&number| number != 3 || batch == 49) {
            let key = key(thread, batch, number).into_bytes();
            expected.insert(key.clone(), key);
        }
    }
    expect(engine, &expected, "after blind writes of four threads")
}

/// Rule (2) for reads without a snapshot: [`Engine::read_latest`] sees every commit that has returned, in the thread that committed and
/// in others, and no value that was deleted.
pub fn newest_reads_are_fresh<E: Engine>() -> Result<()> {
    const COMMITS: u64 = 300;
    const READERS: usize = 2;
    let key = &b"key"[..];
    let fresh = Fresh::<E>::new()?;
    let engine = &fresh.engine;
    let newest = || engine.read_latest(key, |value| value.map(<[u8]>::to_vec));
    ensure!(newest()?.is_none(), "a value before the first commit");
    let committed = AtomicU64::new(0);
    let finished = AtomicBool::new(false);
    let number = || -> Result<u64> {
        let value = newest()?.map(|value| value.as_slice().try_into());
        Ok(value.transpose()?.map_or(0, u64::from_be_bytes))
    };
    thread::scope(|scope| {
        let read = || -> Result<()> {
            loop {
                let is_last = finished.load(Ordering::Acquire);
                let at_least = committed.load(Ordering::Acquire);
                let found = number()?;
                ensure!(
                    found >= at_least,
                    "rule 2: {found} is read after {at_least} was committed"
                );
                if is_last {
                    return Ok(());
                }
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let outcome = (1..=COMMITS).try_for_each(|sequence| {
            commit(engine, &[(key, &sequence.to_be_bytes())], &[])?;
            committed.store(sequence, Ordering::Release);
            let found = number()?;
            ensure!(
                found == sequence,
                "rule 2: own commit {sequence}, read {found}"
            );
            Ok(())
        });
        // The readers end in any case.
        finished.store(true, Ordering::Release);
        for reader in readers {
            reader.join().expect("readers do not panic")?;
        }
        outcome
    })?;
    commit(engine, &[], &[key])?;
    ensure!(newest()?.is_none(), "rule 2: a deleted value is read");
    fresh.engine.close()
}
