//! Entries that are written in no order, a hundred in a batch, and a map of what there should be.
use super::Random;
use psitri::{Database, Keyspace, Snapshot, WriteBatch};
use std::collections::BTreeMap;

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Writes `count` entries; one in `remove_one_in` removes its key instead.
pub fn write(
    db: &Database,
    keyspace: &Keyspace,
    model: &mut Model,
    random: &mut Random,
    (count, remove_one_in): (usize, usize),
    draw_key: impl Fn(&mut Random) -> Vec<u8>,
    draw_value: impl Fn(&mut Random) -> Vec<u8>,
) {
    for _ in 0..count / 100 {
        let mut batch = WriteBatch::new();
        for _ in 0..100 {
            let key = draw_key(random);
            if random.below(remove_one_in) == 0 {
                batch.remove(keyspace, &key);
                model.remove(&key);
            } else {
                let value = draw_value(random);
                batch.upsert(keyspace, &key, &value);
                model.insert(key, value);
            }
        }
        db.write(batch).unwrap();
    }
}

/// Reads everything in both directions.
pub fn check(snapshot: &Snapshot, keyspace: &Keyspace, model: &Model) {
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut is_at_entry = cursor.seek_first().unwrap();
    for (key, value) in model {
        assert!(is_at_entry);
        assert_eq!(cursor.entry(), Some((key.as_slice(), value.as_slice())));
        is_at_entry = cursor.next().unwrap();
    }
    assert!(!is_at_entry);
    is_at_entry = cursor.seek_last().unwrap();
    for (key, value) in model.iter().rev() {
        assert!(is_at_entry);
        assert_eq!(cursor.entry(), Some((key.as_slice(), value.as_slice())));
        is_at_entry = cursor.prev().unwrap();
    }
    assert!(!is_at_entry);
}

/// Drops the last keyspace: nothing that it had is reachable any more.
pub fn drop_last(db: &Database, keyspace: Keyspace, name: &str) {
    drop(keyspace);
    db.drop_keyspace(name).unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let left = db.stats().unwrap().reachable_bytes;
    assert!(
        left < 1 << 20,
        "{left} bytes are reachable in an empty database"
    );
}
