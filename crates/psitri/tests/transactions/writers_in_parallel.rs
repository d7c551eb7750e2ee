//! Story: each keyspace has one writer at a time, different keyspaces have theirs side by side, and some transactions span
//! several. Every snapshot sees those whole, whatever order their keyspaces are named in nobody waits for ever, and nothing
//! of what many writers leave behind is lost.

use crate::common::{Random, SetAtEnd, seed, within_seconds};
use psitri::{Database, Error, Keyspace, Options, ReadMode};
use std::sync::atomic::{AtomicBool, Ordering};

const KEYSPACES: usize = 5;

fn database(dir: &tempfile::TempDir) -> (Database, Vec<Keyspace>) {
    let options = Options::new().buffer_bytes(256 << 10).frozen_buffers(1);
    let db = options.open(dir.path()).unwrap();
    let all = (0..KEYSPACES).map(|i| db.keyspace(&format!("k{i}")).unwrap());
    let all = all.collect();
    (db, all)
}

#[test]
fn transactions_over_several_keyspaces_are_seen_whole() {
    let seed = seed(5);
    within_seconds(120, "writers over several keyspaces", move || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        let writers = 4u64;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (db, all, done) = (&db, &all, &done);
            let end = SetAtEnd(done);
            let workers: Vec<_> = (0..writers)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed + writer);
                        for round in 1..=3000u64 {
                            // A counter of the writer in every keyspace, named in any order, and filler in one of them.
                            let mut order: Vec<&Keyspace> = all.iter().collect();
                            for i in (1..order.len()).rev() {
                                order.swap(i, random.below(i + 1));
                            }
                            let whole = random.percent(30);
                            let named = if whole { &order[..] } else { &order[..1] };
                            let mut txn = db.begin(named).unwrap();
                            let filler = [writer, round].map(u64::to_be_bytes).concat();
                            txn.upsert(named[0], &filler, &[1; 60]).unwrap();
                            if whole {
                                for keyspace in named {
                                    txn.upsert(keyspace, &[writer as u8], &round.to_be_bytes())
                                        .unwrap();
                                }
                            }
                            if random.percent(5) {
                                txn.abort();
                            } else {
                                txn.commit().unwrap();
                            }
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(move || {
                let mut seen = vec![0; writers as usize];
                while !done.load(Ordering::Acquire) {
                    let snapshot = db.snapshot();
                    for writer in 0..writers as u8 {
                        let counters = all.iter().map(|k| snapshot.get(k, &[writer]).unwrap());
                        let counters: Vec<_> = counters.collect();
                        assert!(
                            counters.windows(2).all(|two| two[0] == two[1]),
                            "torn: {counters:?}"
                        );
                        let now =
                            counters[0].map_or(0, |v| u64::from_be_bytes(v.try_into().unwrap()));
                        assert!(now >= seen[usize::from(writer)], "a commit disappeared");
                        seen[usize::from(writer)] = now;
                    }
                }
            });
            let checkpoints = scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    db.checkpoint().unwrap();
                }
            });
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            drop(end);
            reader.join().unwrap();
            checkpoints.join().unwrap();
        });
        db.checkpoint().unwrap();
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        let (latest, trie) = (db.snapshot(), db.snapshot_with(ReadMode::Trie));
        for keyspace in &all {
            let number = latest.count(keyspace, ..).unwrap();
            assert_eq!(trie.count(keyspace, ..).unwrap(), number);
            assert!(number > 1000);
        }
    });
}

/// Each writer keeps the count of what it committed to a keyspace that only it writes to; direct and buffered mixed.
#[test]
fn writers_of_different_keyspaces_do_not_lose_each_others_work() {
    within_seconds(120, "one writer a keyspace", || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        std::thread::scope(|scope| {
            for (number, keyspace) in all.iter().enumerate() {
                let db = &db;
                scope.spawn(move || {
                    for round in 0..600u64 {
                        let direct = number == 0 || (number == 1 && round % 50 == 0);
                        let mut txn = match direct {
                            true if round % 10 != 0 => continue,
                            true => db.begin_direct(&[keyspace]).unwrap(),
                            false => db.begin(&[keyspace]).unwrap(),
                        };
                        let before = txn.count(keyspace, &b"n"[..]..).unwrap();
                        for key in 0..20u64 {
                            let key =
                                [b"n".to_vec(), (round * 20 + key).to_be_bytes().to_vec()].concat();
                            txn.insert(keyspace, &key, &[0; 40]).unwrap();
                        }
                        assert_eq!(txn.count(keyspace, ..).unwrap(), before + 20);
                        txn.commit().unwrap();
                    }
                });
            }
        });
        let expected = [600 * 2, 600 * 20, 600 * 20, 600 * 20, 600 * 20];
        for reopened in [false, true] {
            for (keyspace, expected) in all.iter().zip(expected) {
                assert_eq!(
                    db.snapshot().count(keyspace, ..).unwrap(),
                    expected,
                    "{reopened}"
                );
            }
            db.checkpoint().unwrap();
        }
    });
}

/// A thread that waits for its second keyspace must not keep the first from being merged.
#[test]
fn a_transaction_that_waits_for_a_keyspace_does_not_hold_the_merge_of_its_others() {
    within_seconds(60, "merge beside a waiting transaction", || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        let mut txn = db.begin(&[&all[0]]).unwrap();
        txn.upsert(&all[0], b"k", b"v").unwrap();
        txn.commit().unwrap();
        let open = db.begin(&[&all[1]]).unwrap();
        let waiting = {
            let (db, a, b) = (db.clone(), all[0].clone(), all[1].clone());
            std::thread::spawn(move || {
                let mut txn = db.begin(&[&b, &a]).unwrap();
                txn.upsert(&a, b"k", b"later").unwrap();
                txn.upsert(&b, b"k", b"later").unwrap();
                txn.commit().unwrap();
            })
        };
        std::thread::sleep(std::time::Duration::from_millis(100));
        db.checkpoint().unwrap();
        let merged = db.snapshot_with(ReadMode::Trie);
        assert_eq!(merged.get(&all[0], b"k").unwrap(), Some(&b"v"[..]));
        open.abort();
        waiting.join().unwrap();
        assert_eq!(
            db.get(&all[0], b"k").unwrap().as_deref(),
            Some(&b"later"[..])
        );
        db.checkpoint().unwrap();
        let merged = db.snapshot_with(ReadMode::Trie);
        assert_eq!(merged.get(&all[0], b"k").unwrap(), Some(&b"later"[..]));
    });
}

/// Dropping and creating beside writers: they get a clear error or succeed, and the next keyspace of the name is empty.
#[test]
fn keyspaces_come_and_go_beside_writers() {
    within_seconds(120, "drop and create beside writers", || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (db, done, stable) = (&db, &done, &all[0]);
            let _end = SetAtEnd(done);
            for thread in 0..2u8 {
                scope.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        let keyspace = db.keyspace("volatile").unwrap();
                        let result = db.begin(&[&keyspace, stable]).and_then(|mut txn| {
                            txn.upsert(&keyspace, &[thread], &[1; 2000])?;
                            txn.upsert(stable, &[thread], &[1; 2000])?;
                            txn.commit()
                        });
                        match result {
                            Ok(()) | Err(Error::KeyspaceGone { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
            for _ in 0..100 {
                match db.drop_keyspace("volatile") {
                    Ok(()) | Err(Error::KeyspaceNotFound { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                if let Ok(new) = db.create_keyspace("volatile") {
                    assert!(db.snapshot().count(&new, ..).unwrap() <= 2);
                }
            }
        });
        db.checkpoint().unwrap();
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    });
}

/// A transaction that is still open has filled the buffer's address space but for a little. The next one, elsewhere, has a buffer of its own.
#[test]
fn an_open_transaction_leaves_room_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(8 << 20)
        .open(dir.path())
        .unwrap();
    let keyspaces = ["long", "next"].map(|name| db.create_keyspace(name).unwrap());
    let [long, next] = &keyspaces;
    let value = vec![7; 16 << 10];
    let fill = |txn: &mut psitri::WriteTxn, keyspace, bytes: usize| {
        for n in 0..(bytes / value.len()) as u32 {
            txn.upsert(keyspace, &n.to_be_bytes(), &value).unwrap();
        }
    };
    let mut open = db.begin(&[long]).unwrap();
    let mut nested = open.nested();
    fill(&mut nested, long, 58 << 20);
    let mut second = db.begin(&[next]).unwrap();
    fill(&mut second, next, 7 << 19);
    second.commit().unwrap();
    nested.commit();
    open.commit().unwrap();
    let snapshot = db.snapshot();
    let counts = keyspaces.each_ref().map(|k| snapshot.count(k, ..).unwrap());
    assert_eq!(counts, [58 * 64, 7 * 32]);
}

#[test]
fn a_begin_that_fails_gives_back_what_it_had_locked() {
    within_seconds(30, "a failed begin", || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        db.drop_keyspace("k3").unwrap();
        for named in [
            &[&all[0], &all[1], &all[3]][..],
            &[&all[3], &all[0]],
            &[&all[3]],
        ] {
            let gone = db.begin(named).err().unwrap();
            assert!(matches!(gone, Error::KeyspaceGone { .. }), "{gone}");
            let gone = db.begin_direct(named).err().unwrap();
            assert!(matches!(gone, Error::KeyspaceGone { .. }), "{gone}");
        }
        let mut txn = db.begin(&[&all[0], &all[1]]).unwrap();
        txn.upsert(&all[1], b"key", b"value").unwrap();
        txn.commit().unwrap();
        assert_eq!(db.get(&all[1], b"key").unwrap().unwrap(), b"value");
    });
}

#[test]
fn a_transaction_is_passed_from_thread_to_thread() {
    within_seconds(60, "transactions that travel", || {
        let dir = tempfile::tempdir().unwrap();
        let (db, all) = database(&dir);
        let (first, second) = (&all[0], &all[1]);
        std::thread::scope(|scope| {
            for round in 0..500u32 {
                let mut txn = db.begin(&[first, second]).unwrap();
                txn.upsert(first, b"round", &round.to_be_bytes()).unwrap();
                // Somebody waits for the lock, which a thread gives up that did not take it.
                let waiting = scope.spawn(|| {
                    let txn = db.begin(&[second]).unwrap();
                    txn.get(second, b"round").unwrap().map(<[u8]>::to_vec)
                });
                let ending = scope.spawn(move || {
                    txn.upsert(second, b"round", &round.to_be_bytes()).unwrap();
                    match round % 2 {
                        0 => txn.commit().unwrap(),
                        _ => drop(txn),
                    }
                });
                ending.join().unwrap();
                let committed = round - round % 2;
                let seen = waiting.join().unwrap();
                assert_eq!(seen.as_deref(), Some(&committed.to_be_bytes()[..]));
            }
        });
    });
}
