//! Story: a thousand small keyspaces. Each costs a few hundred bytes on disk and not pages, one transaction may span all of
//! them, and creating and dropping does not use anything up.

use psitri::{Database, Keyspace, Options, ReadMode};

const COUNT: usize = 1000;

fn fill(db: &Database, all: &[Keyspace], round: u32) {
    let named: Vec<&Keyspace> = all.iter().collect();
    let mut txn = db.begin(&named).unwrap();
    for (number, keyspace) in all.iter().enumerate() {
        for key in [&b"a"[..], b"b", b"c"] {
            txn.upsert(
                keyspace,
                key,
                &[number as u32, round].map(u32::to_be_bytes).concat(),
            )
            .unwrap();
        }
    }
    txn.commit().unwrap();
}

fn check(db: &Database, all: &[Keyspace], round: u32, mode: ReadMode) {
    let snapshot = db.snapshot_with(mode);
    for (number, keyspace) in all.iter().enumerate() {
        let wanted = [number as u32, round].map(u32::to_be_bytes).concat();
        assert_eq!(snapshot.get(keyspace, b"b").unwrap(), Some(&wanted[..]));
        assert_eq!(snapshot.count(keyspace, ..).unwrap(), 3);
    }
}

#[test]
fn a_thousand_keyspaces_are_small_and_atomic_together() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(1 << 20)
        .merge_threads(2)
        .open(dir.path())
        .unwrap();
    let all: Vec<_> = (0..COUNT)
        .map(|i| db.create_keyspace(&format!("keyspace {i}")).unwrap())
        .collect();
    for round in 0..4 {
        fill(&db, &all, round);
        check(&db, &all, round, ReadMode::Latest);
        if round % 2 == 1 {
            db.checkpoint().unwrap();
            check(&db, &all, round, ReadMode::Trie);
        }
    }
    let stats = db.stats().unwrap();
    let bytes = stats.reachable_bytes / COUNT as u64;
    assert!(bytes < 512, "{bytes} bytes for a keyspace of three keys");
    assert!(stats.file_bytes < 2 << 20, "{stats:?}");
    let report = db.verify().unwrap();
    assert!(
        report.errors.is_empty() && report.keyspaces == COUNT as u64,
        "{report:?}"
    );
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    assert_eq!(db.keyspaces().len(), COUNT);
    let all: Vec<_> = (0..COUNT)
        .map(|i| db.open_keyspace(&format!("keyspace {i}")).unwrap())
        .collect();
    check(&db, &all, 3, ReadMode::Latest);
    for i in 0..COUNT {
        db.drop_keyspace(&format!("keyspace {i}")).unwrap();
    }
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes <= 128 << 10, "{stats:?}");
    drop(db);
    assert!(Database::open(dir.path()).unwrap().keyspaces().is_empty());
}

#[test]
fn creating_and_dropping_uses_nothing_up() {
    let db = Options::new().in_memory().unwrap();
    let other = db.create_keyspace("other").unwrap();
    for round in 0..70_000u32 {
        let keyspace = db.create_keyspace("short-lived").unwrap();
        if round == 69_999 {
            let mut txn = db.begin(&[&keyspace, &other]).unwrap();
            txn.upsert(&keyspace, b"k", b"v").unwrap();
            txn.upsert(&other, &round.to_be_bytes(), b"v").unwrap();
            txn.commit().unwrap();
        } else {
            assert_eq!(
                db.snapshot().count(&keyspace, ..).unwrap(),
                0,
                "round {round}"
            );
        }
        db.drop_keyspace("short-lived").unwrap();
    }
    assert_eq!(db.snapshot().count(&other, ..).unwrap(), 1);
}
