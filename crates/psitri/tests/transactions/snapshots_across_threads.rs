//! Story: snapshots are values. They move to other threads, are shared by many, are dropped anywhere and outlive handles,
//! transactions, keyspaces and merges; what each sees never changes. And what nobody can see any more takes no space.

use crate::common::{Random, checkpoint_and_let_go, seed};
use psitri::{Database, Keyspace, Options, Snapshot};
use std::sync::{Arc, mpsc};

fn commit(db: &Database, keyspace: &Keyspace, round: u64) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    for key in 0..50u64 {
        txn.upsert(keyspace, &key.to_be_bytes(), &round.to_be_bytes())
            .unwrap();
    }
    txn.upsert(keyspace, &(1000 + round).to_be_bytes(), b"")
        .unwrap();
    txn.commit().unwrap();
}

fn check(snapshot: &Snapshot, keyspace: &Keyspace, round: u64) {
    for key in [0, 17, 49u64] {
        let found = snapshot.get(keyspace, &key.to_be_bytes()).unwrap();
        assert_eq!(found, Some(&round.to_be_bytes()[..]));
    }
    assert_eq!(snapshot.count(keyspace, ..).unwrap(), 51 + round);
}

#[test]
fn a_snapshot_moves_is_shared_and_is_dropped_anywhere() {
    let seed = seed(3);
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let (send, receive) = mpsc::channel::<(Arc<Snapshot>, u64)>();
    let receive = std::sync::Mutex::new(receive);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (receive, keyspace) = (&receive, &keyspace);
            scope.spawn(move || {
                let mut random = Random::new(seed + reader);
                let mut held: Vec<(Arc<Snapshot>, u64)> = Vec::new();
                loop {
                    let next = receive.lock().unwrap().recv();
                    let Ok(next) = next else { break };
                    held.push(next);
                    let (snapshot, round) = random.pick(&held);
                    check(snapshot, keyspace, *round);
                    if held.len() > 20 {
                        held.swap_remove(random.below(held.len()));
                    }
                }
                held.iter()
                    .for_each(|(snapshot, round)| check(snapshot, keyspace, *round));
            });
        }
        for round in 0..1500 {
            commit(&db, &keyspace, round);
            let snapshot = Arc::new(db.snapshot());
            send.send((Arc::clone(&snapshot), round)).unwrap();
            if round % 100 == 0 {
                send.send((snapshot, round)).unwrap();
            }
        }
        drop(send);
    });
    checkpoint_and_let_go(&db);
}

#[test]
fn a_snapshot_outlives_the_handle_and_the_keyspace() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot;
    let keyspace;
    {
        let db = Database::open(dir.path()).unwrap();
        keyspace = db.create_keyspace("k").unwrap();
        commit(&db, &keyspace, 0);
        snapshot = db.snapshot();
        commit(&db, &keyspace, 1);
        db.drop_keyspace("k").unwrap();
        db.checkpoint().unwrap();
    }
    check(&snapshot, &keyspace, 0);
    // The directory is locked as long as the snapshot lives.
    assert!(Database::open(dir.path()).is_err());
    std::thread::spawn(move || drop(snapshot)).join().unwrap();
    assert!(Database::open(dir.path()).unwrap().keyspaces().is_empty());
}

/// The complaint about LMDB: one old reader, and the file grows with all that is written since.
#[test]
fn one_old_reader_pins_what_it_sees_and_not_what_came_later() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new()
        .buffer_bytes(1 << 20)
        .checkpoint_bytes(1 << 20);
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut random = Random::new(1);
    let fill = |round: u8| {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for key in 0..10_000u32 {
            txn.upsert(&keyspace, &key.to_be_bytes(), &[round; 100])
                .unwrap();
        }
        txn.commit().unwrap();
    };
    fill(0);
    db.checkpoint().unwrap();
    let live = db.stats().unwrap().reachable_bytes;
    let old = db.snapshot();
    for round in 1..=40 {
        fill(round);
        let key = (random.below(10_000) as u32).to_be_bytes();
        assert_eq!(old.get(&keyspace, &key).unwrap(), Some(&[0; 100][..]));
    }
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    // Its own version and the newest one; forty versions were written.
    assert!(stats.pending_bytes <= live + live / 8, "{stats:?}");
    assert!(
        stats.file_bytes <= 3 * live + (1 << 20),
        "live {live}: {stats:?}"
    );
    let mut number = 0;
    old.for_each(&keyspace, .., |_, value| {
        assert_eq!(value, [0; 100]);
        number += 1;
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(number, 10_000);
    drop(old);
    let stats = checkpoint_and_let_go(&db);
    assert!(
        stats.file_bytes <= live + live / 4 + (256 << 10),
        "live {live}: {stats:?}"
    );
}
