//! Story: values that are written straight to the data file, in commits that do not wait for the disk. The power fails while the log
//! has reached the disk and the values have not. The database opens; what is there is a prefix of the commits, each with its value.
//!
//! `PSITRI_SEED` replays one seed.

use std::{sync::Arc, time::Duration};

use crate::{options, seeds};
use psitri::{Database, storage::sim::SimStorage};

const COMMITS: u32 = 12;

/// Every third value is large; the others are in the log, and fill segments of it.
fn value(n: u32) -> Vec<u8> {
    let bytes = if n.is_multiple_of(3) { 40_000 } else { 9_000 };
    (0..bytes as u32).map(|i| (i * 31 + n) as u8).collect()
}

#[test]
fn what_survives_is_a_prefix_with_its_values() {
    for seed in seeds() {
        let mut storage = SimStorage::new(seed);
        storage.set_early_write_back(true);
        let mut written = 0u32;
        // The second round continues what the first power loss left.
        for round in 0..2 {
            let db = Database::open_on(Arc::new(storage.clone()), options())
                .unwrap_or_else(|e| panic!("round {round}, PSITRI_SEED={seed}: {e}"));
            let ks = db.keyspace("ks").unwrap();
            let mut survived = 0;
            for n in 0..=written {
                match db.get(&ks, &n.to_be_bytes()).unwrap() {
                    Some(found) => {
                        assert_eq!(survived, n, "a hole in the commits; PSITRI_SEED={seed}");
                        assert!(found == value(n), "a wrong value; PSITRI_SEED={seed}");
                        survived += 1;
                    }
                    None => continue,
                }
            }
            db.flush().unwrap();
            for n in survived..survived + COMMITS {
                let mut txn = db.begin(&[&ks]).unwrap();
                txn.upsert(&ks, &n.to_be_bytes(), &value(n)).unwrap();
                txn.commit().unwrap();
                if n % 4 == 3 {
                    std::thread::sleep(Duration::from_millis(4)); // the log thread flushes full segments
                }
            }
            written = survived + COMMITS;
            storage.crash_now();
            drop((ks, db));
            storage = storage.crash(seed * 100 + round);
        }
        Database::open_on(Arc::new(storage), options())
            .unwrap_or_else(|e| panic!("PSITRI_SEED={seed}: {e}"));
    }
}

/// A value that was overwritten and merged is dead in the tree, but the log still has the record that refers to it: until a
/// checkpoint lets go of the log, its space must not be used again.
#[test]
fn overwritten_values_stay_while_the_log_refers_to_them() {
    for seed in seeds().into_iter().take(4) {
        let storage = SimStorage::new(seed);
        let small = || {
            options().buffer_bytes(256 << 10).checkpoint_bytes(1 << 30) // none but the one that creation takes
        };
        let db = Database::open_on(Arc::new(storage.clone()), small()).unwrap();
        let ks = db.keyspace("ks").unwrap();
        for round in 0..6u32 {
            for n in 0..4 {
                let mut txn = db.begin(&[&ks]).unwrap();
                txn.upsert(&ks, b"large", &value(3 * (4 * round + n)))
                    .unwrap();
                txn.commit().unwrap();
            }
            // Fills buffers, so that what is in them is merged.
            for n in 0..600u32 {
                let mut txn = db.begin(&[&ks]).unwrap();
                txn.upsert(&ks, &n.to_be_bytes(), &[round as u8; 500])
                    .unwrap();
                txn.commit().unwrap();
            }
            while db.stats().unwrap().frozen_buffers > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let merges = db.stats().unwrap().merges;
        assert!(merges >= 3, "only {merges} merges, nothing is shown");
        storage.crash_now();
        drop((ks, db));
        let db = Database::open_on(Arc::new(storage.process_crash(seed)), small())
            .unwrap_or_else(|e| panic!("PSITRI_SEED={seed}: {e}"));
        let ks = db.open_keyspace("ks").unwrap();
        assert!(
            db.get(&ks, b"large").unwrap() == Some(value(3 * 23)),
            "PSITRI_SEED={seed}"
        );
        assert_eq!(
            db.snapshot().count(&ks, ..).unwrap(),
            601,
            "PSITRI_SEED={seed}"
        );
        db.checkpoint().unwrap();
        assert!(db.verify().unwrap().errors.is_empty(), "PSITRI_SEED={seed}");
    }
}
