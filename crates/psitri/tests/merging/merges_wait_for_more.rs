//! Story: entries all over a tree that is large beside the write buffer are overwritten as fast as they come. A merge rewrites most of the tree
//! whatever it merges, so it waits until as many buffers are full as there may be, or all but one, and not for those that never come.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use psitri::{Database, Event, Keyspace, Options, WriteBatch};

const ENTRIES: u32 = 20_000;
const BUFFER_BYTES: u64 = 256 << 10;

fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(0x9e37_79b9).to_be_bytes()
}

/// Counts merges that ended.
type Merged = Arc<AtomicU64>;

fn load() -> (tempfile::TempDir, Database, Keyspace, Merged) {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace, merged) = load_by(ENTRIES, BUFFER_BYTES, |options| options.open(dir.path()));
    (dir, db, keyspace, merged)
}

fn load_by(
    entries: u32,
    buffer_bytes: u64,
    open: impl FnOnce(Options) -> Result<Database, psitri::Error>,
) -> (Database, Keyspace, Merged) {
    let merged = Merged::default();
    let counter = Arc::clone(&merged);
    let options = Options::new()
        .buffer_bytes(buffer_bytes as usize)
        .frozen_buffers(4)
        .idle_flush(Duration::from_secs(3600))
        .checkpoint_on_close(false)
        .on_event(move |event| {
            if matches!(event, Event::Merged { .. }) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
    let db = open(options).unwrap();
    let keyspace = db.keyspace("entries").unwrap();
    let mut txn = db.begin_direct(&[&keyspace]).unwrap();
    txn.ingest(&keyspace, (0..entries).map(|n| (key(n), [0; 400])))
        .unwrap();
    txn.commit().unwrap();
    (db, keyspace, merged)
}

/// Overwrites, so many entries a commit, until so many bytes have been written to buffers.
fn overwrite(db: &Database, keyspace: &Keyspace, batch_len: u64, bytes: u64) {
    let mut n = 0u32;
    for _ in 0..bytes / (batch_len * 400) {
        let mut batch = WriteBatch::new();
        for _ in 0..batch_len {
            n = n.wrapping_add(7_919) % ENTRIES;
            batch.upsert(keyspace, &key(n), &[1; 400]);
        }
        db.write(batch).unwrap();
    }
}

/// How long a merge waits is of debug builds here. A machine that is busy may take longer over a buffer than that.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "merges wait for less than a buffer takes"
)]
fn while_they_come_quickly() {
    let mut folds = (0..3).map(|_| {
        let (_dir, db, keyspace, _) = load();
        let before = db.stats().unwrap();
        overwrite(&db, &keyspace, 100, 40 * BUFFER_BYTES);
        let stats = db.stats().unwrap();
        let merges = stats.merges - before.merges;
        let buffers = (stats.merged_bytes - before.merged_bytes) / BUFFER_BYTES;
        assert!(
            merges > 0 && buffers >= 12,
            "{merges} merges, {buffers} buffers"
        );
        buffers as f64 / merges as f64
    });
    let is_enough = |fold: f64| {
        println!("{fold} buffers a merge");
        fold >= 3.0
    };
    assert!(folds.any(is_enough), "merges do not wait");
}

/// Those who write faster than that are slowed down from when the merge begins, and hardly ever stopped before it ends. In memory: no
/// checkpoint comes between merges.
#[test]
fn and_writers_go_on_meanwhile() {
    // Buffers are filled in chunks, of 64 KiB here, by which writers are looked at.
    let buffer_bytes = 2 << 20;
    let mut runs = (0..3).map(|_| {
        let (db, keyspace, _) = load_by(3 * ENTRIES, buffer_bytes, Options::in_memory);
        overwrite(&db, &keyspace, 5, 30 * buffer_bytes);
        let stats = db.stats().unwrap();
        (stats.paced_us, stats.stalled_us)
    });
    let is_smooth = |(paced_us, stalled_us): (u64, u64)| {
        println!("slowed down for {paced_us} us, stopped for {stalled_us} us");
        paced_us > 2 * stalled_us
    };
    assert!(runs.any(is_smooth), "writers wait for whole merges");
}

/// The same with several writers, each with a keyspace of its own: all of them get on.
#[test]
fn and_so_do_several_writers() {
    let buffer_bytes = 2 << 20;
    let mut runs = (0..3).map(|_| {
        let (db, keyspace, _) = load_by(3 * ENTRIES, buffer_bytes, Options::in_memory);
        let start = Instant::now();
        let ratio = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|number| {
                    let (db, mut own) = (&db, keyspace.clone());
                    if number > 0 {
                        own = db.keyspace(&format!("entries {number}")).unwrap();
                    }
                    scope.spawn(move || {
                        overwrite(db, &own, 5, 10 * buffer_bytes);
                        Instant::now()
                    })
                })
                .collect();
            let ends = writers.into_iter().map(|writer| writer.join().unwrap());
            let ends: Vec<_> = ends.map(|end| end - start).collect();
            let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
            last.as_secs_f64() / first.as_secs_f64()
        });
        let stats = db.stats().unwrap();
        (ratio, stats.paced_us, stats.stalled_us / 4)
    });
    let is_fair = |(ratio, paced_us, stalled_us): (f64, u64, u64)| {
        println!(
            "slowed down for {paced_us} us, stopped for {stalled_us} us each, the last took {ratio:.2} times as long as the first"
        );
        ratio < 2.0 && paced_us > stalled_us
    };
    assert!(runs.any(is_fair), "writers wait for whole merges");
}

/// One buffer is merged soon, though the next never comes.
#[test]
fn but_not_for_ever() {
    let (_dir, db, keyspace, merged) = load();
    let before = merged.load(Ordering::Relaxed);
    overwrite(&db, &keyspace, 100, 2 * BUFFER_BYTES);
    let start = Instant::now();
    while merged.load(Ordering::Relaxed) == before {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "nothing is merged"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Closing starts no merge of what may stay in the log. One that the writer was too slow for may be at work.
#[test]
fn and_not_for_those_who_close() {
    let mut unmerged = 0;
    for _ in 0..4 {
        let (dir, db, keyspace, merged) = load();
        // Three buffers are frozen then, each with 300 entries, and the fourth is not full.
        overwrite(&db, &keyspace, 100, 400_000);
        let frozen = db.stats().unwrap().frozen_buffers;
        let before = merged.load(Ordering::Relaxed);
        drop(keyspace);
        db.close().unwrap();
        unmerged += u32::from(frozen > 1 && merged.load(Ordering::Relaxed) == before);
        let db = Options::new().open(dir.path()).unwrap();
        let keyspace = db.open_keyspace("entries").unwrap();
        let count = db.snapshot().count(&keyspace, ..).unwrap();
        assert_eq!(count, u64::from(ENTRIES));
    }
    assert!(unmerged > 0, "it was merged at every close");
}
