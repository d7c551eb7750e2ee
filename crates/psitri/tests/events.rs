//! Story: an operator who wants to hear why the database is slow, or refuses writes, before the users call.
#![cfg(not(loom))]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use psitri::{
    Database, Durability, Error, Event, Options, WriteBatch,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};

type Heard = Arc<Mutex<Vec<Event>>>;

fn options() -> (Options, Heard) {
    let heard = Heard::default();
    let ear = Arc::clone(&heard);
    let options = Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(1)
        .wal_segment_bytes(64 << 10)
        .slow_reader_after(Duration::from_millis(50))
        .on_event(move |event| ear.lock().unwrap().push(event.clone()));
    (options, heard)
}

fn write(db: &Database, from: u32, to: u32) -> Result<(), Error> {
    let keyspace = db.keyspace("k")?;
    for n in from..to {
        let mut txn = db.begin(&[&keyspace])?;
        txn.upsert(
            &keyspace,
            &n.wrapping_mul(0x9e37_79b9).to_be_bytes(),
            &[1; 200],
        )?;
        txn.commit()?;
    }
    Ok(())
}

#[track_caller]
fn wait_for(heard: &Heard, what: impl Fn(&Event) -> bool) -> Event {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(event) = heard.lock().unwrap().iter().find(|event| what(event)) {
            return event.clone();
        }
        assert!(
            Instant::now() < deadline,
            "heard {:?}",
            heard.lock().unwrap()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn work_and_waiting_are_told() {
    let (options, heard) = options();
    let db = Database::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let snapshot = db.snapshot();
    write(&db, 0, 5_000).unwrap();
    db.checkpoint().unwrap();
    let merged = wait_for(&heard, |event| matches!(event, Event::Merged { .. }));
    assert!(matches!(merged, Event::Merged { entries, .. } if entries > 0));
    wait_for(&heard, |event| matches!(event, Event::Checkpoint { .. }));
    let slow = wait_for(&heard, |event| matches!(event, Event::SlowReader { .. }));
    let Event::SlowReader { age, .. } = slow else {
        unreachable!()
    };
    assert!(age >= Duration::from_millis(50));
    assert!(db.stats().unwrap().oldest_pin_us >= 50_000);
    // Once for each state that is held.
    std::thread::sleep(Duration::from_millis(200));
    let is_slow = |event: &&Event| matches!(event, Event::SlowReader { .. });
    assert_eq!(heard.lock().unwrap().iter().filter(is_slow).count(), 1);
    drop(snapshot);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(db.stats().unwrap().oldest_pin_us, 0);
    assert!(
        db.stats().unwrap().stalls == 0
            || heard
                .lock()
                .unwrap()
                .iter()
                .any(|event| matches!(event, Event::Stalled { .. }))
    );
}

/// Somebody has to make room on the disk; until then the processor and the disk have better things to do.
#[test]
fn what_fails_is_tried_less_and_less_often() {
    let (options, heard) = options();
    let storage = SimStorage::new(3);
    let db = Database::open_on(Arc::new(storage.clone()), options).unwrap();
    write(&db, 0, 100).unwrap();
    storage.set_capacity_bytes(Some(storage.allocated_bytes()));
    let _ = write(&db, 100, 20_000);
    wait_for(&heard, |event| matches!(event, Event::Failed { .. }));
    // Behind the first few pauses, a second of which there is one attempt at most.
    std::thread::sleep(Duration::from_millis(1_600));
    let before = storage.calls();
    std::thread::sleep(Duration::from_secs(1));
    let calls = storage.calls() - before;
    storage.set_capacity_bytes(None);
    db.checkpoint().unwrap();
    assert!(calls <= 6, "{calls} calls in a second");
}

#[test]
fn failures_are_told_once() {
    let (options, heard) = options();
    let storage = SimStorage::new(2);
    let db = Database::open_on(Arc::new(storage.clone()), options).unwrap();
    write(&db, 0, 100).unwrap();
    storage.set_capacity_bytes(Some(storage.allocated_bytes()));
    // Until the log or the merge has no space either.
    let _ = write(&db, 100, 20_000);
    let Event::Failed { cause } = wait_for(&heard, |event| matches!(event, Event::Failed { .. }))
    else {
        unreachable!()
    };
    assert!(cause.contains("data"), "{cause}");
    std::thread::sleep(Duration::from_millis(300));
    let failures = |heard: &Heard| {
        let is_failure = |event: &&Event| matches!(event, Event::Failed { .. });
        heard.lock().unwrap().iter().filter(is_failure).count()
    };
    assert_eq!(failures(&heard), 1);
    storage.set_capacity_bytes(None);
    db.checkpoint().unwrap();

    write(&db, 0, 1).unwrap();
    storage.inject(Fault::nth(CallKind::Sync, 1, FaultError::Io));
    assert!(db.flush().is_err());
    let Event::Poisoned { cause } =
        wait_for(&heard, |event| matches!(event, Event::Poisoned { .. }))
    else {
        unreachable!()
    };
    assert!(!cause.is_empty());
    assert!(matches!(db.begin(&[]), Err(Error::Poisoned { .. })));
}

/// A handler that panics is its own misfortune: those who wait together get their answers, and closing gives the directory back.
#[test]
fn a_handler_that_panics_keeps_nobody_waiting() {
    let disk = SimStorage::new(1);
    let options = Options::new()
        .durability(Durability::Sync)
        .on_event(|_| panic!("this is said by a test"));
    let db = Database::open_on(Arc::new(disk.clone()), options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let write_all = || {
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4u8)
                .map(|writer| {
                    let (db, keyspace) = (&db, &keyspace);
                    scope.spawn(move || {
                        let write = |n: u8| {
                            let mut batch = WriteBatch::new();
                            batch.upsert(keyspace, &[writer, n], b"v");
                            db.write(batch)
                        };
                        (0..50).map(write).filter(Result::is_ok).count()
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|it| it.join().unwrap())
                .sum::<usize>()
        })
    };
    assert_eq!(write_all(), 200);
    db.checkpoint().unwrap();
    disk.inject(Fault::nth(CallKind::Sync, 1, FaultError::Io));
    assert!(write_all() < 200, "the flush failed");
    disk.clear_faults();
    drop((keyspace, db));
    let again = Database::open_on(Arc::new(disk), Options::new()).unwrap();
    let keyspace = again.open_keyspace("k").unwrap();
    assert_eq!(again.snapshot().count(&keyspace, ..).unwrap(), 200);
}
