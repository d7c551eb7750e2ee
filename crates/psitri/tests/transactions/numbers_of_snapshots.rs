//! Story: commits that are in no buffer come with their trees. A snapshot that sees one says its number, or a greater one, at whatever moment it is taken.
use std::thread;

use psitri::Options;

const COMMITS: u64 = 3_000;

#[test]
fn a_snapshot_says_which_commit_it_sees() {
    let db = Options::new().in_memory().unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let write = |number: u64| {
        let mut txn = db.begin_direct(&[&keyspace]).unwrap();
        txn.upsert(&keyspace, b"key", &number.to_be_bytes())
            .unwrap();
        txn.commit().unwrap();
    };
    write(0);
    let first = db.snapshot().csn();
    let look = || {
        let snapshot = db.snapshot();
        let value = snapshot.get(&keyspace, b"key").unwrap().unwrap();
        let number = u64::from_be_bytes(value.try_into().unwrap());
        assert_eq!(snapshot.csn(), first + number);
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| (1..=COMMITS).for_each(write));
        while !writer.is_finished() {
            look();
        }
        writer.join().unwrap();
        look();
    });
}
