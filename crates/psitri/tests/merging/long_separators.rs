//! Story: keys of several KB that begin alike, as paths do. Few of them make an inner node, and a change of one place costs what lies there.

use psitri::Options;

const KEYS: u32 = 3_000;
const PREFIX_BYTES: usize = 6_000;

fn key(number: u32) -> Vec<u8> {
    let mut key = vec![b'p'; PREFIX_BYTES];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

#[test]
fn an_insert_does_not_rewrite_what_lies_to_its_right() {
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    for number in 0..KEYS {
        txn.upsert(&keyspace, &key(2 * number), b"v").unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let mut most = 0;
    for number in 100..120 {
        let before = db.stats().unwrap().written_bytes;
        let mut txn = db.begin(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, &key(2 * number + 1), &[7; 700])
            .unwrap();
        txn.commit().unwrap();
        db.checkpoint().unwrap();
        most = most.max(db.stats().unwrap().written_bytes - before);
    }
    let reachable = db.stats().unwrap().reachable_bytes;
    assert!(most < 1 << 20, "{most} bytes for one of {reachable}");
    assert!(most < reachable / 4, "{most} bytes for one of {reachable}");
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), u64::from(KEYS) + 20);
    let report = db.verify().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}
