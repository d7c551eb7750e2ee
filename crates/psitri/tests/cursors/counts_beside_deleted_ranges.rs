//! Story: counts, ranks and the n-th key are asked for where ranges were deleted that wait for a merge, in several buffers, beside and over one another.

use std::{collections::BTreeMap, ops::Bound, time::Duration};

use psitri::Options;

use crate::common::{self, Random};

fn key(n: usize) -> Vec<u8> {
    match n % 3 {
        0 => format!("{n:04}").into_bytes(),
        _ => format!("{n:04} and more").into_bytes(),
    }
}

#[test]
fn they_are_those_of_a_map() {
    let mut random = Random::new(common::seed(31));
    let db = Options::new()
        .buffer_bytes(256 << 10)
        .idle_flush(Duration::from_secs(3600))
        .in_memory()
        .unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut model = BTreeMap::new();
    for round in 0..60 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        for _ in 0..random.between(1, 300) {
            let n = random.below(3000);
            match random.below(30) {
                0 => {
                    let (lo, hi) = (key(n), key(n + random.between(1, 60)));
                    txn.remove_range(&keyspace, &lo, Some(&hi)).unwrap();
                    model.retain(|k, _| *k < lo || *k >= hi);
                }
                1 => {
                    txn.remove(&keyspace, &key(n)).unwrap();
                    model.remove(&key(n));
                }
                _ => {
                    // Long enough to fill buffers now and then.
                    let value = vec![round; random.between(0, 400)];
                    txn.upsert(&keyspace, &key(n), &value).unwrap();
                    model.insert(key(n), value);
                }
            }
        }
        if round % 20 == 19 {
            let lo = key(2990);
            txn.remove_range(&keyspace, &lo, None).unwrap();
            model.retain(|k, _| *k < lo);
        }
        txn.commit().unwrap();
        let snapshot = db.snapshot();
        for _ in 0..40 {
            let lo = key(random.below(3000));
            let hi = key(random.below(3000));
            let hi = (random.below(5) > 0).then_some(hi.max(lo.clone()));
            let end = hi.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let expected = model.range::<[u8], _>((Bound::Included(&lo[..]), end));
            let found = snapshot.count(&keyspace, (Bound::Included(&lo[..]), end));
            assert_eq!(found.unwrap(), expected.count() as u64);
            let rank = model.range(..lo.clone()).count();
            assert_eq!(snapshot.rank(&keyspace, &lo).unwrap(), rank as u64);
            let nth = snapshot.nth(&keyspace, rank as u64).unwrap();
            assert_eq!(nth.as_ref(), model.keys().nth(rank));
        }
        assert_eq!(snapshot.len(&keyspace).unwrap(), model.len() as u64);
    }
}
