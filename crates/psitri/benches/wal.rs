//! The log: what a commit in mode `none` costs, and what durability adds. Needs a directory on a real disk for the latter
//! (`TMPDIR`).
use divan::{Bencher, counter::BytesCount};
use psitri::{
    storage::{MemoryStorage, OsStorage, Storage},
    wal::{Wal, WalOptions, ops::OpsBuilder},
};
use std::sync::Arc;

const PAYLOAD_BYTES: usize = 120;
/// Records between two calls of the maintenance that a background thread would make.
const RECORDS_PER_ROUND: usize = 1000;

fn main() {
    divan::main();
}

fn maintain(wal: &Wal) {
    let shared = wal.shared();
    let full = shared.appended_lsn();
    shared.release_below(full).unwrap();
    while shared.prepare_spare(true).unwrap() {}
}

fn append(bencher: Bencher<'_, '_>, storage: Arc<dyn Storage>, payload_bytes: usize) {
    let mut wal = Wal::create(storage, WalOptions::default()).unwrap();
    let payload = vec![7; payload_bytes];
    let mut csn = 0;
    // One iteration is a thousand records: a single one is near the resolution of the clock.
    bencher
        .counter(BytesCount::new(payload_bytes * RECORDS_PER_ROUND))
        .bench_local(|| {
            for _ in 0..RECORDS_PER_ROUND {
                csn += 1;
                divan::black_box(wal.append(csn, 1, &payload).unwrap());
            }
            if csn.is_multiple_of(100 * RECORDS_PER_ROUND as u64) {
                maintain(&wal);
            }
        });
}

#[divan::bench(args = [PAYLOAD_BYTES, 600])]
fn append_1000_memory(bencher: Bencher<'_, '_>, payload_bytes: usize) {
    append(bencher, Arc::new(MemoryStorage::new()), payload_bytes);
}

#[divan::bench(args = [PAYLOAD_BYTES, 600])]
fn append_1000_disk(bencher: Bencher<'_, '_>, payload_bytes: usize) {
    let dir = tempfile::tempdir().unwrap();
    append(
        bencher,
        Arc::new(OsStorage::open(dir.path()).unwrap()),
        payload_bytes,
    );
}

/// The appender alone: every page has been touched, no segment ends within the measurement.
#[divan::bench(args = [PAYLOAD_BYTES, 600])]
fn append_1000_touched(bencher: Bencher<'_, '_>, payload_bytes: usize) {
    let payload = vec![7; payload_bytes];
    bencher
        .with_inputs(|| {
            let options = WalOptions {
                segment_bytes: 1 << 20,
                ..WalOptions::default()
            };
            let mut wal = Wal::create(
                Arc::new(MemoryStorage::with_file_bytes_max(1 << 20)),
                options,
            )
            .unwrap();
            wal.shared().prepare_spare(true).unwrap();
            // Fill the untouched first segment.
            wal.append(1, 1, &vec![0; (1 << 20) - 4096 - 24]).unwrap();
            wal
        })
        .bench_local_values(|mut wal| {
            for csn in 0..RECORDS_PER_ROUND as u64 {
                divan::black_box(wal.append(csn, 1, &payload).unwrap());
            }
            wal
        });
}

#[divan::bench(sample_count = 50, sample_size = 20)]
fn append_and_flush_disk(bencher: Bencher<'_, '_>) {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(OsStorage::open(dir.path()).unwrap());
    let mut wal = Wal::create(
        storage,
        WalOptions {
            populate: false,
            ..WalOptions::default()
        },
    )
    .unwrap();
    let payload = [7; PAYLOAD_BYTES];
    bencher.bench_local(|| {
        let place = wal.append(1, 1, &payload).unwrap();
        wal.shared().wait_durable(place.end_lsn).unwrap();
    });
}

#[divan::bench]
fn encode_5_puts(bencher: Bencher<'_, '_>) {
    let mut ops = OpsBuilder::new();
    let (key, value) = ([3; 12], [4; 8]);
    bencher.bench_local(|| {
        ops.clear();
        for keyspace in [1, 1, 2, 2, 2] {
            ops.put(keyspace, divan::black_box(&key), divan::black_box(&value));
        }
        divan::black_box(ops.payload().len())
    });
}
