//! Story: many clients, each with a read-modify-write of its own on one keyspace. What they may not do to each other: overwrite what was not
//! read (lost updates), decide on what the other changes (write skew), overlook what the other adds (phantoms).
//!
//! Besides the textbook cases, histories of random transactions are checked: every value says who wrote it over which one, so that the order of
//! the versions of every key is known, and with it which transaction comes before which. Serializable means that this has no circle.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Bound, ControlFlow},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use crate::common::Random;
use psitri::{Database, Durability, Error, Isolation, Keyspace, OptimisticTxn, Options};

fn open() -> (tempfile::TempDir, Database, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(1 << 20)
        .open(dir.path())
        .unwrap();
    let keyspace = db.keyspace("k").unwrap();
    (dir, db, keyspace)
}

fn put(db: &Database, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    txn.upsert(keyspace, key, value).unwrap();
    txn.commit().unwrap();
}

fn keys_of(txn: &OptimisticTxn, keyspace: &Keyspace) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    txn.for_each(keyspace, .., visit).unwrap();
    keys
}

#[track_caller]
fn assert_conflict(result: Result<(), Error>) {
    match result {
        Err(Error::Conflict { keyspace }) => assert_eq!(keyspace, "k"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_updates() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (_dir, db, keyspace) = open();
        put(&db, &keyspace, b"x", b"10");
        let mut one = db.begin_optimistic(isolation);
        let mut two = db.begin_optimistic(isolation);
        for (txn, value) in [(&mut one, b"11"), (&mut two, b"12")] {
            assert_eq!(txn.get(&keyspace, b"x").unwrap(), Some(&b"10"[..]));
            txn.upsert(&keyspace, b"x", value).unwrap();
        }
        two.commit().unwrap();
        assert_conflict(one.commit());
        assert_eq!(
            db.get(&keyspace, b"x").unwrap().as_deref(),
            Some(&b"12"[..])
        );
    }
}

#[test]
fn write_skew_is_let_through_by_snapshot_isolation_only() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (_dir, db, keyspace) = open();
        put(&db, &keyspace, b"alice", b"on call");
        put(&db, &keyspace, b"bob", b"on call");
        let mut one = db.begin_optimistic(isolation);
        let mut two = db.begin_optimistic(isolation);
        for (txn, own, other) in [
            (&mut one, b"alice".as_slice(), b"bob".as_slice()),
            (&mut two, b"bob", b"alice"),
        ] {
            if txn.get(&keyspace, other).unwrap().is_some() {
                assert!(txn.remove(&keyspace, own).unwrap());
            }
        }
        one.commit().unwrap();
        let left = match isolation {
            Isolation::Snapshot => {
                two.commit().unwrap();
                0
            }
            Isolation::Serializable => {
                assert_conflict(two.commit());
                1
            }
        };
        assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), left);
    }
}

#[test]
fn phantoms() {
    let (_dir, db, keyspace) = open();
    for key in [b"a", b"c", b"e"] {
        put(&db, &keyspace, key, b"1");
    }
    let changes: [fn(&Database, &Keyspace); 3] = [
        |db, keyspace| put(db, keyspace, b"d", b"new"),
        |db, keyspace| put(db, keyspace, b"c", b"changed"),
        |db, keyspace| {
            let mut txn = db.begin(&[keyspace]).unwrap();
            txn.remove_range(keyspace, b"a", Some(b"b")).unwrap();
            txn.commit().unwrap();
        },
    ];
    for change in changes {
        let mut txn = db.begin_optimistic(Isolation::Serializable);
        let keys = keys_of(&txn, &keyspace);
        txn.upsert(&keyspace, b"z total", &[keys.len() as u8])
            .unwrap();
        change(&db, &keyspace);
        assert_conflict(txn.commit());
    }
    // A reader that stopped at a key does not depend on what lies behind it.
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    txn.for_each(&keyspace, .., |_, _| ControlFlow::Break(()))
        .unwrap();
    txn.upsert(&keyspace, b"first", b"c").unwrap();
    put(&db, &keyspace, b"cc", b"new");
    txn.commit().unwrap();
}

#[test]
fn a_visit_that_panics_has_read_its_range() {
    let (_dir, db, keyspace) = open();
    put(&db, &keyspace, b"a", b"1");
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    let mut seen = Vec::new();
    let visit = catch_unwind(AssertUnwindSafe(|| {
        txn.for_each(&keyspace, .., |_, value| {
            // A read of its own in between, which stops.
            let nested = txn.for_each(&keyspace, .., |_, _| ControlFlow::Break(()));
            nested.unwrap();
            seen = value.to_vec();
            panic!("a bug of the caller's")
        })
    }));
    assert!(visit.is_err());
    assert_eq!(seen, b"1");
    put(&db, &keyspace, b"b", b"1");
    txn.upsert(&keyspace, b"c", &seen).unwrap();
    assert_conflict(txn.commit());
}

#[test]
fn what_does_not_matter_is_no_conflict() {
    let (_dir, db, keyspace) = open();
    let other = db.keyspace("other").unwrap();
    put(&db, &keyspace, b"x", b"1");
    // Reads alone.
    let reader = db.begin_optimistic(Isolation::Serializable);
    assert_eq!(reader.get(&keyspace, b"x").unwrap(), Some(&b"1"[..]));
    // Other keys, other keyspaces, a value that was changed and changed back.
    let mut writer = db.begin_optimistic(Isolation::Serializable);
    assert_eq!(writer.get(&keyspace, b"x").unwrap(), Some(&b"1"[..]));
    writer.upsert(&keyspace, b"w", b"2").unwrap();
    put(&db, &keyspace, b"x", b"9");
    put(&db, &keyspace, b"y", b"9");
    put(&db, &other, b"x", b"9");
    put(&db, &keyspace, b"x", b"1");
    // After a merge the versions that say when are gone.
    db.checkpoint().unwrap();
    writer.commit().unwrap();
    put(&db, &keyspace, b"x", b"3");
    assert_eq!(reader.get(&keyspace, b"x").unwrap(), Some(&b"1"[..]));
    reader.commit().unwrap();
}

#[test]
fn its_own_writes_are_read_in_order() {
    let (_dir, db, keyspace) = open();
    for key in [b"b", b"d", b"f"] {
        put(&db, &keyspace, key, b"old");
    }
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    for key in [b"a", b"d", b"e", b"g"] {
        txn.upsert(&keyspace, key, b"new").unwrap();
    }
    assert!(txn.remove(&keyspace, b"b").unwrap());
    assert!(!txn.remove(&keyspace, b"c").unwrap());
    assert_eq!(keys_of(&txn, &keyspace), [b"a", b"d", b"e", b"f", b"g"]);
    let mut seen = Vec::new();
    let range = (Bound::Excluded(&b"a"[..]), Bound::Included(&b"f"[..]));
    txn.for_each(&keyspace, range, |key, value| {
        seen.push((key[0], value == b"new"));
        if key == b"e" {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .unwrap();
    assert_eq!(seen, [(b'd', true), (b'e', true)]);
    let nothing = &b"f"[..]..&b"a"[..];
    txn.for_each(&keyspace, nothing, |_, _| panic!("an empty range"))
        .unwrap();
    txn.commit().unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 5);
}

#[test]
fn transact_succeeds_under_contention() {
    contend(Durability::None, 500);
    contend(Durability::Sync, 60);
}

fn contend(durability: Durability, rounds: u64) {
    const THREADS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .durability(durability)
        .open(dir.path())
        .unwrap();
    let keyspace = db.keyspace("k").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..rounds {
                    db.transact(Isolation::Serializable, |txn| {
                        let before = txn
                            .get(&keyspace, b"n")?
                            .map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
                        txn.upsert(&keyspace, b"n", &(before + 1).to_le_bytes())
                    })
                    .unwrap();
                }
            });
        }
    });
    let total = db.get(&keyspace, b"n").unwrap().unwrap();
    assert_eq!(total, (THREADS * rounds).to_le_bytes());
}

/// Version of a key: who wrote it (0: nobody yet).
type Version = u32;

/// What one committed transaction did.
struct Done {
    id: Version,
    /// Version of every key that it read, those that it overwrote included.
    read: BTreeMap<u8, Version>,
    wrote: Vec<u8>,
}

const KEYS: u8 = 12;

/// Runs random transactions on several threads; every write overwrites a version that was read.
fn history(isolation: Isolation, seed: u64) -> Vec<Done> {
    let (_dir, db, keyspace) = open();
    let (history, seeds) = (Mutex::new(Vec::new()), Random::new(seed));
    let seeds = Mutex::new(seeds);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (db, keyspace, history, seeds) = (&db, &keyspace, &history, &seeds);
            scope.spawn(move || {
                let mut random = Random::new(seeds.lock().unwrap().next());
                for round in 0..400 {
                    let id = thread * 1000 + round + 1;
                    let mut txn = db.begin_optimistic(isolation);
                    let done = act(&mut txn, keyspace, id, &mut random);
                    if random.percent(20) {
                        std::thread::yield_now();
                    }
                    match txn.commit() {
                        Ok(()) => history.lock().unwrap().push(done),
                        Err(Error::Conflict { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                    if round % 100 == 50 && thread == 0 {
                        db.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    history.into_inner().unwrap()
}

fn act(txn: &mut OptimisticTxn, keyspace: &Keyspace, id: Version, random: &mut Random) -> Done {
    let mut read = BTreeMap::new();
    let version = |value: &[u8]| Version::from_le_bytes(value.try_into().unwrap());
    if random.percent(30) {
        let (a, b) = (
            random.below(KEYS as usize) as u8,
            random.below(KEYS as usize) as u8,
        );
        let (lo, hi) = (a.min(b), a.max(b));
        // What is not there is version 0, and read as such.
        read.extend((lo..hi).map(|key| (key, 0)));
        txn.for_each(keyspace, &[lo][..]..&[hi][..], |key, value| {
            read.insert(key[0], version(value));
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    for _ in 0..random.between(1, 3) {
        let key = random.below(KEYS as usize) as u8;
        let found = txn.get(keyspace, &[key]).unwrap().map_or(0, version);
        assert_eq!(*read.entry(key).or_insert(found), found, "one snapshot");
    }
    let mut wrote = Vec::new();
    for _ in 0..random.between(1, 2) {
        let known: Vec<u8> = read.keys().copied().collect();
        let key = *random.pick(&known);
        if !wrote.contains(&key) {
            txn.upsert(keyspace, &[key], &id.to_le_bytes()).unwrap();
            wrote.push(key);
        }
    }
    Done { id, read, wrote }
}

/// Every version is overwritten once: else an update was lost. Gives who overwrote which version of which key.
fn overwrites(history: &[Done]) -> HashMap<(u8, Version), Version> {
    let mut next = HashMap::new();
    for done in history {
        for &key in &done.wrote {
            let lost = next.insert((key, done.read[&key]), done.id);
            assert_eq!(lost, None, "an update of key {key} was lost");
        }
    }
    next
}

/// A transaction that comes before itself, if there is one.
fn circle(history: &[Done]) -> Option<Version> {
    let next = overwrites(history);
    let mut after: HashMap<Version, Vec<Version>> = HashMap::new();
    for done in history {
        for (&key, &version) in &done.read {
            // Who wrote what was read comes before; who overwrote it, after.
            if version != 0 {
                after.entry(version).or_default().push(done.id);
            }
            match next.get(&(key, version)) {
                Some(&overwriter) if overwriter != done.id => {
                    after.entry(done.id).or_default().push(overwriter);
                }
                _ => {}
            }
        }
    }
    // Those that nothing comes before any more are taken away, until none is left, or a circle.
    let mut before: HashMap<Version, usize> = history.iter().map(|done| (done.id, 0)).collect();
    for id in after.values().flatten() {
        *before.get_mut(id).expect("only what was committed is read") += 1;
    }
    let free = |(&id, &count): (&Version, &usize)| (count == 0).then_some(id);
    let mut ready: Vec<Version> = before.iter().filter_map(free).collect();
    while let Some(id) = ready.pop() {
        before.remove(&id);
        for later in after.remove(&id).unwrap_or_default() {
            let count = before.get_mut(&later).expect("still there");
            *count -= 1;
            if *count == 0 {
                ready.push(later);
            }
        }
    }
    before.keys().next().copied()
}

#[test]
fn random_histories_are_serializable() {
    for seed in 1..=5 {
        let history = history(Isolation::Serializable, seed);
        assert!(history.len() > 100, "{} commits", history.len());
        assert_eq!(circle(&history), None, "seed {seed}");
    }
}

#[test]
fn random_histories_under_snapshot_isolation_lose_no_update_but_are_not_serializable() {
    let mut circles = 0;
    for seed in 1..=5 {
        let history = history(Isolation::Snapshot, seed);
        circles += usize::from(circle(&history).is_some());
    }
    // The checker can find what it looks for.
    assert!(circles > 0);
}

/// A handle that is refused counts for nothing.
#[test]
fn a_visit_of_a_foreign_keyspace_is_no_read() {
    let (_dir, db, keyspace) = open();
    let (_other_dir, _other, foreign) = open();
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    let visit = |_: &[u8], _: &[u8]| ControlFlow::Continue(());
    let error = txn.for_each(&foreign, .., visit).unwrap_err();
    assert!(matches!(error, Error::ForeignKeyspace), "{error:?}");
    txn.upsert(&keyspace, b"k", b"v").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.get(&keyspace, b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// The second attempt finds the keyspace that took the name.
#[test]
fn a_keyspace_that_is_dropped_and_created_again_meanwhile_is_no_end() {
    let (_dir, db, _) = open();
    db.create_keyspace("cache").unwrap();
    let mut attempts = 0;
    db.transact(Isolation::Serializable, |txn| {
        attempts += 1;
        let cache = db.open_keyspace("cache")?;
        assert_eq!(txn.get(&cache, b"k")?, None);
        txn.upsert(&cache, b"k", b"v")?;
        if attempts == 1 {
            db.drop_keyspace("cache")?;
            db.create_keyspace("cache")?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(attempts, 2);
    let cache = db.open_keyspace("cache").unwrap();
    assert_eq!(db.get(&cache, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    // Nobody creates it again.
    let result = db.transact(Isolation::Snapshot, |txn| {
        txn.upsert(&cache, b"k", b"w")?;
        if db.open_keyspace("cache").is_ok() {
            db.drop_keyspace("cache")?;
        }
        Ok(())
    });
    assert!(
        matches!(result, Err(Error::KeyspaceGone { .. })),
        "{result:?}"
    );
}

/// The conflict comes first, the drop before the locks are taken.
#[test]
fn a_keyspace_may_be_dropped_between_a_conflict_and_the_next_attempt() {
    let (_dir, db, other) = open();
    let doomed = db.create_keyspace("doomed").unwrap();
    let mut attempts = 0;
    let result = db.transact(Isolation::Serializable, |txn| {
        attempts += 1;
        txn.get(&doomed, b"k")?;
        txn.upsert(&other, b"k", b"v")?;
        let mut rival = db.begin(&[&doomed])?;
        rival.upsert(&doomed, b"k", b"w")?;
        rival.commit()?;
        db.drop_keyspace("doomed")
    });
    assert!(
        matches!(result, Err(Error::KeyspaceGone { .. })),
        "{result:?}"
    );
    assert_eq!(attempts, 2);
}

/// Snapshots of attempts before are older than they.
#[test]
fn keyspaces_that_the_transaction_creates_are_found_at_the_next_attempt() {
    let (_dir, db, _) = open();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut attempts = 0;
        db.transact(isolation, |txn| {
            attempts += 1;
            for n in 0..3 {
                let created = db.keyspace(&format!("{isolation:?} {n}"))?;
                txn.upsert(&created, b"k", b"v")?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(attempts, 4);
    }
}

#[test]
fn a_keyspace_that_is_gone_is_not_asked_for_again_and_again() {
    let (_dir, db, other) = open();
    let gone = db.create_keyspace("gone").unwrap();
    db.drop_keyspace("gone").unwrap();
    // Another one of its name is created in the middle of the first attempt: the second one might have found it.
    for is_replaced in [false, true] {
        let mut attempts = 0;
        let result = db.transact(Isolation::Snapshot, |txn| {
            attempts += 1;
            put(&db, &other, b"k", b"v");
            if is_replaced {
                db.keyspace("gone")?;
            }
            txn.get(&gone, b"k").map(drop)
        });
        assert!(
            matches!(result, Err(Error::KeyspaceGone { .. })),
            "{result:?}"
        );
        assert_eq!(attempts, 1 + u32::from(is_replaced));
    }
}
