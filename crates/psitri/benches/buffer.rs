//! The write buffer and the pins: nanoseconds per operation.
//!
//! `cargo bench -p psitri --bench buffer`

// Neither module is public; the benchmark is the only other user of this interface.
#[path = "../src/pins.rs"]
#[allow(unused_imports)] // its tests do not run here
mod pins;
#[path = "../src/sync.rs"]
mod sync;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use psitri::buffer::{Arena, BufferWriter, Found, KeyspaceBuffer, Kind};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

fn main() {
    divan::main();
}

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
const OPERATIONS: usize = 20_000;

/// Pronounceable names of natural length, all different, shuffled.
fn names(count: usize) -> Vec<Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(7);
    let mut seen = std::collections::HashSet::new();
    while seen.len() < count {
        let mut name = Vec::new();
        for _ in 0..random.random_range(2..6) {
            name.push(
                *b"bcdfghjklmnprstvwz"
                    .get(random.random_range(0..18))
                    .unwrap(),
            );
            name.push(b"aeiou"[random.random_range(0..5)]);
            if random.random_bool(0.3) {
                name.push(b"nrslt"[random.random_range(0..5)]);
            }
        }
        seen.insert(name);
    }
    let mut names: Vec<_> = seen.into_iter().collect();
    names.sort();
    names.shuffle(&mut random);
    names
}

fn random_keys(count: usize) -> Vec<Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(8);
    (0..count)
        .map(|_| random.random::<u64>().to_be_bytes().to_vec())
        .collect()
}

fn log_key(sequence: u64) -> [u8; 11] {
    let mut key = *b"\0TX\0\0\0\0\0\0\0\0";
    key[3..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// Keys of a commit.
const COMMIT: usize = 100;

fn filled(keys: &[Vec<u8>]) -> (Arc<KeyspaceBuffer>, BufferWriter) {
    let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(1 << 30).unwrap()));
    let mut writer = buffer.writer().unwrap();
    put_all(&mut writer, keys);
    (buffer, writer)
}

fn put_all(writer: &mut BufferWriter, keys: &[Vec<u8>]) {
    let floor = writer.watermark();
    let mut versions = Vec::with_capacity(COMMIT);
    for keys in keys.chunks(COMMIT) {
        for key in keys {
            let (_, outcome) = writer.put(key, Kind::Value, &[1; 8], floor).unwrap();
            versions.push(outcome.version);
        }
        for version in versions.drain(..) {
            writer.stamp(version, 1);
        }
    }
}

/// Keys in another random order than that of insertion.
fn probes(keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(9);
    (0..OPERATIONS)
        .map(|_| keys[random.random_range(0..keys.len())].clone())
        .collect()
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn insert_names(bencher: Bencher<'_, '_>, count: usize) {
    insert(bencher, &names(count));
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn insert_random(bencher: Bencher<'_, '_>, count: usize) {
    insert(bencher, &random_keys(count));
}

/// Into recycled memory, as generations after the first few find it.
fn insert(bencher: Bencher<'_, '_>, keys: &[Vec<u8>]) {
    let mut arena = Arena::new(1 << 30).unwrap();
    arena.populate(0, 200 * keys.len() as u64);
    bencher
        .counter(ItemsCount::new(keys.len()))
        .bench_local(|| {
            arena.reset();
            let shared = Arc::new(std::mem::replace(&mut arena, Arena::new(1 << 16).unwrap()));
            let buffer = KeyspaceBuffer::new(shared.clone());
            let mut writer = buffer.writer().unwrap();
            put_all(&mut writer, keys);
            drop(writer);
            drop(buffer);
            arena = Arc::try_unwrap(shared).unwrap();
        });
}

/// Keys in ascending order.
#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn append_log(bencher: Bencher<'_, '_>, count: usize) {
    let keys: Vec<_> = (0..count as u64).map(|at| log_key(at).to_vec()).collect();
    insert(bencher, &keys);
}

#[divan::bench(args = SIZES, sample_count = 20)]
fn get_hit_names(bencher: Bencher<'_, '_>, count: usize) {
    let keys = names(count);
    let (buffer, _writer) = filled(&keys);
    get(bencher, &buffer, &probes(&keys));
}

#[divan::bench(args = SIZES, sample_count = 20)]
fn get_hit_random(bencher: Bencher<'_, '_>, count: usize) {
    let keys = random_keys(count);
    let (buffer, _writer) = filled(&keys);
    get(bencher, &buffer, &probes(&keys));
}

#[divan::bench(args = SIZES, sample_count = 20)]
fn get_miss_names(bencher: Bencher<'_, '_>, count: usize) {
    let keys = names(count);
    let (buffer, _writer) = filled(&keys);
    let mut probes = probes(&keys);
    for key in &mut probes {
        key.push(b'q');
    }
    get(bencher, &buffer, &probes);
}

fn get(bencher: Bencher<'_, '_>, buffer: &KeyspaceBuffer, probes: &[Vec<u8>]) {
    bencher
        .counter(ItemsCount::new(probes.len()))
        .bench_local(|| {
            let mut found = 0;
            for key in probes {
                found += usize::from(black_box(buffer.get(key, 1)) != Found::Absent);
            }
            found
        });
}

/// Find the entry, push a version, stamp it.
#[divan::bench(args = SIZES, sample_count = 20)]
fn update_names(bencher: Bencher<'_, '_>, count: usize) {
    let keys = names(count);
    let (_buffer, mut writer) = filled(&keys);
    let probes = probes(&keys);
    let mut csn = 1;
    bencher
        .counter(ItemsCount::new(probes.len()))
        .bench_local(|| {
            for key in &probes {
                let floor = writer.watermark();
                csn += 1;
                if let Ok((_, outcome)) = writer.put(key, Kind::Value, &[2; 8], floor) {
                    writer.stamp(outcome.version, csn);
                }
            }
        });
}

/// Push and stamp only; the entries are known.
#[divan::bench(sample_count = 20)]
fn push_version(bencher: Bencher<'_, '_>) {
    let keys = names(1000);
    let (_buffer, mut writer) = filled(&keys);
    let entries: Vec<_> = keys
        .iter()
        .map(|key| writer.find_entry(key).unwrap())
        .collect();
    let mut csn = 1;
    bencher
        .counter(ItemsCount::new(entries.len()))
        .bench_local(|| {
            for entry in &entries {
                let floor = writer.watermark();
                csn += 1;
                if let Ok(outcome) = writer.write(*entry, Kind::Value, &[2; 8], floor) {
                    writer.stamp(outcome.version, csn);
                }
            }
        });
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn iterate_names(bencher: Bencher<'_, '_>, count: usize) {
    let keys = names(count);
    let (buffer, _writer) = filled(&keys);
    iterate(bencher, &buffer, count);
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn iterate_log(bencher: Bencher<'_, '_>, count: usize) {
    let keys: Vec<_> = (0..count as u64).map(|at| log_key(at).to_vec()).collect();
    let (buffer, _writer) = filled(&keys);
    iterate(bencher, &buffer, count);
}

fn iterate(bencher: Bencher<'_, '_>, buffer: &KeyspaceBuffer, count: usize) {
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let mut cursor = buffer.cursor();
        let mut bytes = 0;
        let mut more = cursor.first();
        while more {
            if let Found::Value(value) = cursor.resolve(1) {
                bytes += value.len() + cursor.key().len();
            }
            more = cursor.next();
        }
        bytes
    });
}

#[divan::bench(args = SIZES, sample_count = 10)]
fn seek_names(bencher: Bencher<'_, '_>, count: usize) {
    let keys = names(count);
    let (buffer, _writer) = filled(&keys);
    let probes = probes(&keys);
    bencher
        .counter(ItemsCount::new(probes.len()))
        .bench_local(|| {
            let mut cursor = buffer.cursor();
            probes.iter().filter(|key| cursor.seek_ge(key)).count()
        });
}

#[divan::bench(threads = [1, 2])]
fn pin_acquire_release(bencher: Bencher<'_, '_>) {
    let registry = pins::Registry::new(Box::new(1u64));
    let csn = sync::AtomicU64::new(1);
    bencher.bench(|| {
        let (pin, csn) = registry.acquire(&csn);
        black_box(*pin + csn)
    });
}
