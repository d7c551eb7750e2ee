//! Story: a snapshot is held while everything is overwritten again and again. The file grows by what the snapshot sees, once, and not by
//! what is written meanwhile; when the snapshot is gone, so is that space, although nothing more is written.
use psitri::Options;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const ITEMS: u64 = 200_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn the_file_grows_by_what_the_snapshot_sees_and_shrinks_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new()
        .buffer_bytes(4 << 20)
        .wal_segment_bytes(1 << 20)
        .idle_flush(Duration::from_millis(50))
        .open(dir.path())
        .unwrap();
    let keyspace = db.keyspace("values").unwrap();
    let write = |round: u8| {
        for start in (0..ITEMS).step_by(100) {
            let mut txn = db.begin(&[&keyspace]).unwrap();
            for number in start..start + 100 {
                // Neighbours in a batch are far apart in the tree.
                txn.upsert(&keyspace, &key(number), &[round; 100]).unwrap();
            }
            txn.commit().unwrap();
        }
    };
    write(0);
    db.checkpoint().unwrap();
    let seen = db.stats().unwrap().reachable_bytes;
    let snapshot = db.snapshot();
    for round in 1..=6 {
        write(round);
        let stats = db.stats().unwrap();
        let allowed = stats.reachable_bytes + stats.reachable_bytes / 4 + seen + 12 * MIB;
        assert!(stats.file_bytes <= allowed, "round {round}: {stats:?}");
    }
    db.checkpoint().unwrap();
    let held = db.stats().unwrap();
    // All that it sees was replaced.
    assert!(held.pending_bytes >= seen / 10 * 9, "{held:?}");
    assert!(held.pending_bytes <= seen + MIB, "{held:?}");
    for number in (0..ITEMS).step_by(1_000) {
        let value = snapshot.get(&keyspace, &key(number)).unwrap();
        assert_eq!(value, Some(&[0; 100][..]));
    }

    drop(snapshot);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let stats = db.stats().unwrap();
        let allowed = stats.reachable_bytes + stats.reachable_bytes / 4 + 4 * MIB;
        if stats.pending_bytes < MIB && stats.file_bytes <= allowed {
            break;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(db.get(&keyspace, &key(1)).unwrap(), Some(vec![6; 100]));
}
