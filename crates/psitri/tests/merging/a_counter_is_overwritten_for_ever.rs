//! Story: a few counters are overwritten all day. Their versions take no memory, but the log grows: the buffer has to be merged all
//! the same, so that checkpoints can let go of the log. Somebody who looks at the counters keeps the numbers that he looks at.
use psitri::{Database, Keyspace, Options, Snapshot, storage::sim::SimStorage};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Counters in groups; a commit writes to all of a group.
const GROUPS: u64 = 128;
const IN_GROUP: u64 = 4;
const COMMITS: u64 = 20_000;
const BUFFER_BYTES: usize = 1 << 20;
const CHECKPOINT_BYTES: u64 = 1 << 20;

fn keys(group: u64) -> impl Iterator<Item = [u8; 8]> {
    (0..IN_GROUP).map(move |counter| (group * IN_GROUP + counter).to_be_bytes())
}

fn count(db: &Database, keyspace: &Keyspace, number: u64) {
    let mut txn = db.begin(&[keyspace]).unwrap();
    for key in keys(number % GROUPS) {
        txn.upsert(keyspace, &key, &number.to_le_bytes()).unwrap();
    }
    txn.commit().unwrap();
}

/// Every counter has the number of the last commit to its group.
fn assert_at(snapshot: &Snapshot, keyspace: &Keyspace, number: u64) {
    for number in number + 1 - GROUPS..=number {
        for key in keys(number % GROUPS) {
            let found = snapshot.get(keyspace, &key).unwrap();
            assert_eq!(found, Some(&number.to_le_bytes()[..]));
        }
    }
}

#[test]
fn the_log_is_let_go_of() {
    let options = Options::new()
        .buffer_bytes(BUFFER_BYTES)
        .checkpoint_bytes(CHECKPOINT_BYTES)
        .idle_flush(Duration::from_secs(3600));
    let storage = SimStorage::new(1);
    let db = Database::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
    let keyspace = db.create_keyspace("counters").unwrap();
    let mut held = Vec::new();
    let mut replay_max = 0;
    for number in 0..COMMITS {
        count(&db, &keyspace, number);
        if number % 3_001 == 3_000 {
            held.push((db.snapshot(), number));
        }
        if number % 500 == 0 {
            replay_max = replay_max.max(db.stats().unwrap().wal_replay_bytes);
            for (snapshot, number) in &held {
                assert_at(snapshot, &keyspace, *number);
            }
        }
        if number % 8_000 == 7_999 {
            held.clear();
        }
    }
    // The checkpoint that is due may still be on its way.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut stats = db.stats().unwrap();
    while stats.checkpoints == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        stats = db.stats().unwrap();
    }
    assert!(stats.merges >= 2, "{} merges", stats.merges);
    assert!(stats.checkpoints >= 1, "no checkpoint");
    let appended = stats.wal_appended_bytes;
    assert!(
        replay_max < appended,
        "{replay_max} of {appended} bytes to replay"
    );
    let enough = CHECKPOINT_BYTES + BUFFER_BYTES as u64;
    assert!(replay_max < enough, "{replay_max} bytes to replay");
    assert_at(&db.snapshot(), &keyspace, COMMITS - 1);
    storage.crash_now();
    drop((held, keyspace, db));

    let storage = storage.process_crash(2);
    let db = Database::open_on(Arc::new(storage), options).unwrap();
    let keyspace = db.open_keyspace("counters").unwrap();
    assert_at(&db.snapshot(), &keyspace, COMMITS - 1);
}
