//! Story: a direct transaction writes to a tree of its own while the merge folds a buffer that its keyspace took part in
//! without writing to it. Both end in a new root; neither may undo the other or free a page twice.

use psitri::{Options, ReadMode};

#[test]
fn an_empty_buffer_does_not_touch_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .open(dir.path())
        .unwrap();
    let (direct, other) = (
        db.keyspace("direct").unwrap(),
        db.keyspace("other").unwrap(),
    );
    let mut txn = db.begin(&[&direct]).unwrap();
    for key in 0..1000u32 {
        txn.upsert(&direct, &key.to_be_bytes(), b"before").unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    for round in 0..10u32 {
        // A buffer without entries in the active generation.
        db.begin(&[&direct]).unwrap().abort();
        let mut txn = db.begin_direct(&[&direct]).unwrap();
        for key in (0..1000u32).step_by(3) {
            txn.upsert(&direct, &key.to_be_bytes(), &round.to_be_bytes())
                .unwrap();
        }
        let mut beside = db.begin(&[&other]).unwrap();
        beside.upsert(&other, &round.to_be_bytes(), b"x").unwrap();
        beside.commit().unwrap();
        db.checkpoint().unwrap();
        txn.commit().unwrap();
        for mode in [ReadMode::Latest, ReadMode::Trie] {
            let snapshot = db.snapshot_with(mode);
            for key in 0..1000u32 {
                let wanted = if key % 3 == 0 {
                    &round.to_be_bytes()[..]
                } else {
                    b"before"
                };
                let found = snapshot.get(&direct, &key.to_be_bytes()).unwrap();
                assert_eq!(found, Some(wanted), "{mode}, key {key}, round {round}");
            }
        }
        let report = db.verify().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
}
