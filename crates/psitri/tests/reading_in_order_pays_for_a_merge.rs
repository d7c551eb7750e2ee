//! Story: a report that is run again and again over what was just written. Reading a buffer in order costs more than reading a tree; once
//! that has cost as much as a merge would have, the buffer is merged, although it is neither full nor idle.
#![cfg(not(loom))]

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use psitri::Options;

const ENTRIES: u32 = 20_000;

#[test]
fn and_points_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().idle_flush(Duration::from_secs(3600));
    let db = options.open(dir.path()).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for n in 0..ENTRIES {
        let key = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        txn.upsert(&keyspace, &key, &n.to_le_bytes()).unwrap();
    }
    txn.commit().unwrap();

    let snapshot = db.snapshot();
    for n in 0..20 * ENTRIES {
        let key = (n % ENTRIES).wrapping_mul(0x9e37_79b9).to_be_bytes();
        assert!(snapshot.get(&keyspace, &key).unwrap().is_some());
    }
    drop(snapshot);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(db.stats().unwrap().merges, 0, "lookups ask for no merge");

    let deadline = Instant::now() + Duration::from_secs(60);
    while db.stats().unwrap().merges == 0 {
        assert!(Instant::now() < deadline, "scans ask for a merge");
        let mut passed = 0;
        let cursor = db.snapshot();
        let cursor = cursor.cursor(&keyspace).unwrap();
        cursor
            .for_each(|_, _| {
                passed += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(passed, ENTRIES);
    }
    let stats = db.stats().unwrap();
    assert_eq!(
        (stats.merges, stats.merged_entries),
        (1, u64::from(ENTRIES))
    );
    db.close().unwrap();
}
