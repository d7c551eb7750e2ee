//! Story: blind batches from many threads queue behind one leader. None is lost or torn, a batch that must wait for an open
//! transaction stops nobody else, and who holds that transaction may write batches of its own.

use crate::common::{Random, seed, within_seconds};
use psitri::{Durability, Error, KeyspaceOptions, Options, WriteBatch};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, SystemTime};

const PATIENCE: Duration = Duration::from_secs(60);
const THREADS: u64 = 8;
const BATCHES: u64 = 150;

#[test]
fn every_batch_is_there_and_whole() {
    let seed = seed(11);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let tables: Vec<_> = (0..4)
        .map(|i| db.keyspace(&format!("t{i}")).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, tables) = (&db, &tables);
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                for number in 0..BATCHES {
                    let mut batch = WriteBatch::new();
                    // The same counter in two keyspaces, and a key of its own in a third.
                    let first = random.below(4);
                    let (a, b) = (&tables[first], &tables[(first + 1) % 4]);
                    let pair = format!("pair of {}", first);
                    let stamp = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    batch.upsert(a, pair.as_bytes(), &stamp);
                    batch.upsert(b, pair.as_bytes(), &stamp);
                    batch.upsert(&tables[thread as usize % 4], &stamp, &number.to_be_bytes());
                    if number.is_multiple_of(50) {
                        batch.durability(Durability::Sync);
                    }
                    db.write(batch).unwrap();
                }
            });
        }
        for _ in 0..200 {
            let snapshot = db.snapshot();
            for first in 0..4 {
                let pair = format!("pair of {first}");
                let one = snapshot.get(&tables[first], pair.as_bytes()).unwrap();
                let other = snapshot
                    .get(&tables[(first + 1) % 4], pair.as_bytes())
                    .unwrap();
                assert_eq!(one, other, "a batch is torn");
            }
        }
    });
    let snapshot = db.snapshot();
    for thread in 0..THREADS {
        for number in 0..BATCHES {
            let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
            let value = snapshot.get(&tables[thread as usize % 4], &key).unwrap();
            assert_eq!(value, Some(&number.to_be_bytes()[..]));
        }
    }
}

#[test]
fn a_batch_that_waits_for_a_transaction_stops_no_other() {
    within_seconds(30, "batches beside an open transaction", || {
        let db = Options::new().in_memory().unwrap();
        let busy = db.create_keyspace("busy").unwrap();
        let free = db.create_keyspace("free").unwrap();
        let mut txn = db.begin(&[&busy]).unwrap();
        txn.upsert(&busy, b"k", b"transaction").unwrap();
        let (done, wait) = mpsc::channel();
        let waiting = {
            let (db, busy) = (db.clone(), busy.clone());
            std::thread::spawn(move || {
                let mut batch = WriteBatch::new();
                batch.upsert(&busy, b"k", b"batch");
                db.write(batch).unwrap();
                done.send(()).unwrap();
            })
        };
        std::thread::sleep(Duration::from_millis(100));
        // From the thread that holds the transaction, and from others.
        let mut batch = WriteBatch::new();
        batch.upsert(&free, b"own", b"1");
        db.write(batch).unwrap();
        std::thread::scope(|scope| {
            for i in 0..4u8 {
                let (db, free) = (&db, &free);
                scope.spawn(move || {
                    let mut batch = WriteBatch::new();
                    batch.upsert(free, &[i], b"1");
                    db.write(batch).unwrap();
                });
            }
        });
        assert_eq!(db.snapshot().count(&free, ..).unwrap(), 5);
        assert!(
            wait.try_recv().is_err(),
            "the batch did not wait for the transaction"
        );
        txn.commit().unwrap();
        waiting.join().unwrap();
        assert_eq!(db.get(&busy, b"k").unwrap().as_deref(), Some(&b"batch"[..]));
    });
}

#[test]
fn a_batch_that_fails_changes_nothing_and_fails_alone() {
    let db = Options::new().in_memory().unwrap();
    let good = db.create_keyspace("good").unwrap();
    let gone = db.create_keyspace("gone").unwrap();
    db.drop_keyspace("gone").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (db, good, gone) = (&db, &good, &gone);
            scope.spawn(move || {
                for number in 0..100u32 {
                    let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    let mut batch = WriteBatch::new();
                    batch.upsert(good, &key, b"");
                    let fails = number.is_multiple_of(3);
                    if fails && number.is_multiple_of(2) {
                        batch.upsert(gone, b"x", b"");
                    } else if fails {
                        batch.remove(good, &vec![0; psitri::KEY_BYTES_MAX + 1]);
                    }
                    match db.write(batch) {
                        Ok(()) => assert!(!fails),
                        Err(Error::KeyspaceGone { .. } | Error::KeyTooLong { .. }) => {
                            assert!(fails)
                        }
                        Err(other) => panic!("{other}"),
                    }
                    assert_eq!(db.get(good, &key).unwrap().is_some(), !fails);
                }
            });
        }
    });
}

/// Whoever writes the batches of others may panic, in the clock that the database was given: the others are written all the same.
#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    // The clock waits when it is asked first, and panics when it is asked again.
    let (asked, is_asked) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let calls = AtomicU32::new(0);
    let may_go_on = Mutex::new(may_go_on);
    let clock = move || {
        match calls.fetch_add(1, Ordering::SeqCst) {
            0 => {
                asked.send(()).unwrap();
                let _ = may_go_on.lock().unwrap().recv_timeout(PATIENCE);
            }
            1 => panic!("the clock is broken"),
            _ => {}
        }
        SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30)
    };
    let db = Options::new().clock(clock).in_memory().unwrap();
    let expiring = KeyspaceOptions::new().expire_after(Duration::from_secs(60));
    let keyspace = db.create_keyspace_with("k", expiring).unwrap();
    let (done, is_done) = mpsc::channel();
    for number in 0..4u8 {
        let (db, keyspace, done) = (db.clone(), keyspace.clone(), done.clone());
        std::thread::spawn(move || {
            let mut batch = WriteBatch::new();
            batch.upsert(&keyspace, &[number], b"v");
            let written = catch_unwind(AssertUnwindSafe(|| db.write(batch)));
            done.send(written.is_ok_and(|written| written.is_ok()))
                .unwrap();
        });
        if number == 0 {
            is_asked.recv_timeout(PATIENCE).unwrap();
        }
    }
    // Long enough for the others to queue up behind the first, most of the time.
    std::thread::sleep(Duration::from_millis(200));
    go_on.send(()).unwrap();
    let outcomes: Vec<bool> = (0..4)
        .map(|_| {
            is_done
                .recv_timeout(PATIENCE)
                .expect("somebody waits forever")
        })
        .collect();
    let written = outcomes.iter().filter(|&&written| written).count();
    assert!(written >= 3, "{outcomes:?}");
    let found = db.snapshot().count(&keyspace, ..).unwrap();
    assert_eq!(found, written as u64);
}
