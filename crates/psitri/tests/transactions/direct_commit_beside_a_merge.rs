//! Story: a keyspace's buffer holds nothing, as a transaction there wrote nothing. It is frozen and merged together with a full
//! buffer of another keyspace, which takes a while. Meanwhile a direct transaction commits a new root for the first keyspace.
//! The merge must not put the old root back.
use psitri::Options;
use std::time::Duration;

#[test]
fn a_merge_of_nothing_does_not_undo_a_direct_commit() {
    let db = Options::new().buffer_bytes(1 << 20).in_memory().unwrap();
    let quiet = db.create_keyspace("quiet").unwrap();
    let busy = db.create_keyspace("busy").unwrap();
    for round in 0..150u64 {
        let mut txn = db.begin(&[&busy]).unwrap();
        for key in 0..1500u64 {
            let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            txn.upsert(&busy, &key, &round.to_le_bytes()).unwrap();
        }
        txn.commit().unwrap();
        // An empty buffer in the active generation.
        db.begin(&[&quiet]).unwrap().abort();
        let mut direct = db.begin_direct(&[&quiet]).unwrap();
        direct
            .upsert(&quiet, b"round", &round.to_le_bytes())
            .unwrap();
        std::thread::scope(|scope| {
            let merge = scope.spawn(|| db.checkpoint().unwrap());
            std::thread::sleep(Duration::from_micros(round % 30 * 40));
            direct.commit().unwrap();
            merge.join().unwrap();
        });
        let found = db.get(&quiet, b"round").unwrap();
        assert_eq!(
            found.as_deref(),
            Some(&round.to_le_bytes()[..]),
            "round {round}"
        );
    }
    assert!(db.verify().unwrap().errors.is_empty());
}
