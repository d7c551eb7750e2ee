//! Cost of the node codecs on warm 4 KiB nodes. "Per call" numbers of whole leaves name the entry count in the group.

use divan::{Bencher, black_box};
use psitri::node::{
    Inner, InnerPacker, Leaf, LeafPacker, NodeRef, Stored, check, patch_value, seal, validate,
};
use std::ops::ControlFlow;

fn main() {
    divan::main();
}

const SHAPES: [Shape; 4] = [Shape::Words, Shape::Fixed, Shape::Log, Shape::Hashes];

/// What the leaf holds.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Words of 4 to 13 letters with 8-byte values: slotted.
    Words,
    /// 8-byte random keys with 8-byte values: fixed.
    Fixed,
    /// Consecutive log keys of 11 bytes with values of 26 to 40 bytes: dense.
    Log,
    /// 32-byte random keys with values of 20 to 35 bytes: fixed keys with offsets.
    Hashes,
}

fn mix(i: u64) -> u64 {
    let x = (i ^ (i >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

fn word(i: u64) -> Vec<u8> {
    let random = mix(i);
    let letters = 4 + random % 10;
    let mut key = b"un".to_vec();
    key.extend((0..letters).map(|j| b'a' + (mix(random ^ j) % 26) as u8));
    key
}

/// More than one leaf's worth of entries in order.
fn entries(shape: Shape) -> Entries {
    let mut entries: Vec<_> = (0..600u64)
        .map(|i| match shape {
            Shape::Words => (word(i), mix(i).to_le_bytes().to_vec()),
            // Leading bytes as in a leaf out of a million keys.
            Shape::Fixed => (
                (0x00ab_c000_0000_0000 | mix(i) >> 20)
                    .to_be_bytes()
                    .to_vec(),
                mix(i).to_le_bytes().to_vec(),
            ),
            Shape::Log => (
                [&b"\0TX"[..], &(1_000_000 + i).to_be_bytes()].concat(),
                vec![7; 26 + (mix(i) % 15) as usize],
            ),
            Shape::Hashes => {
                let key = [0, 1, 2, 3].map(|j| mix(i * 4 + j).to_be_bytes()).concat();
                (key, vec![7; 20 + (mix(i) % 16) as usize])
            }
        })
        .collect();
    entries.sort();
    entries.dedup_by(|a, b| a.0 == b.0);
    entries
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The first full leaf and its entries.
fn leaf(shape: Shape) -> (Vec<u8>, Entries) {
    let mut entries = entries(shape);
    let mut packer = LeafPacker::new();
    entries
        .iter()
        .for_each(|(key, value)| packer.push(key, Stored::Inline(value)));
    let image = packer
        .pop_full()
        .map(|image| (image.bytes.to_vec(), image.count as usize));
    let (bytes, count) = image.unwrap_or_else(|| {
        let image = packer.pop_last(false).expect("there are entries");
        (image.bytes.to_vec(), image.count as usize)
    });
    entries.truncate(count);
    (bytes, entries)
}

/// A pseudo-random order of probes, so that the branch predictor does not learn it.
fn order(n: usize) -> Vec<usize> {
    (0..4096u64).map(|i| (mix(i) % n as u64) as usize).collect()
}

fn view(bytes: &[u8]) -> Leaf<'_> {
    Leaf::open(bytes).expect("a packed leaf is valid")
}

const PROBES: usize = 4096;

#[divan::bench(args = SHAPES, counters = [divan::counter::ItemsCount::new(PROBES)])]
fn get_hit(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    view(&bytes);
    let order = order(entries.len());
    bencher.bench_local(|| {
        for i in &order {
            let leaf = unvalidated(black_box(&bytes));
            black_box(leaf.get(&entries[*i].0));
        }
    });
}

#[divan::bench(args = SHAPES, counters = [divan::counter::ItemsCount::new(PROBES)])]
fn get_miss(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let order = order(entries.len());
    let keys: Vec<Vec<u8>> = entries
        .iter()
        .map(|(key, _)| {
            let mut key = key.clone();
            *key.last_mut().expect("keys are not empty") ^= 0x55;
            key
        })
        .collect();
    bencher.bench_local(|| {
        for i in &order {
            black_box(unvalidated(black_box(&bytes)).get(&keys[*i]));
        }
    });
}

#[divan::bench(args = SHAPES, counters = [divan::counter::ItemsCount::new(PROBES)])]
fn lower_bound(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let order = order(entries.len());
    bencher.bench_local(|| {
        for i in &order {
            black_box(unvalidated(black_box(&bytes)).lower_bound(&entries[*i].0));
        }
    });
}

#[divan::bench(args = SHAPES)]
fn scan_leaf(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let leaf = view(&bytes);
    let mut buffer = Vec::new();
    bencher
        .counter(divan::counter::ItemsCount::new(entries.len()))
        .bench_local(|| {
            let mut sum = 0u64;
            let _ = leaf.visit(0..usize::MAX, &mut buffer, |key, value| {
                sum += u64::from(black_box(key)[0]) + black_box(value).len() as u64;
                ControlFlow::Continue(())
            });
            sum
        });
}

#[divan::bench(args = SHAPES)]
fn scan_cursor(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let leaf = view(&bytes);
    let mut buffer = Some(Vec::new());
    bencher
        .counter(divan::counter::ItemsCount::new(entries.len()))
        .bench_local(|| {
            let mut sum = 0u64;
            let mut cursor = psitri::node::LeafCursor::with_buffer(
                leaf,
                0..usize::MAX,
                buffer.take().unwrap_or_default(),
            );
            while let Some((key, value)) = cursor.next() {
                if let Stored::Inline(value) = value {
                    sum += u64::from(black_box(key)[0]) + black_box(value).len() as u64;
                }
            }
            buffer = Some(cursor.into_buffer());
            sum
        });
}

/// Decode a full leaf and encode it again: what a merge does.
#[divan::bench(args = SHAPES)]
fn repack_leaf(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let leaf = view(&bytes);
    let (mut buffer, mut packer) = (Vec::new(), LeafPacker::new());
    bencher
        .counter(divan::counter::ItemsCount::new(entries.len()))
        .bench_local(|| {
            let _ = leaf.visit(0..usize::MAX, &mut buffer, |key, value| {
                packer.push(key, Stored::Inline(value));
                ControlFlow::Continue(())
            });
            let mut written = 0;
            while let Some(image) = packer.pop_last(false) {
                written += black_box(image.bytes).len();
            }
            written
        });
}

/// The same, carrying the entries over as a range.
#[divan::bench(args = SHAPES)]
fn repack_range(bencher: Bencher, shape: Shape) {
    let (bytes, entries) = leaf(shape);
    let leaf = view(&bytes);
    let mut packer = LeafPacker::new();
    bencher
        .counter(divan::counter::ItemsCount::new(entries.len()))
        .bench_local(|| {
            packer.push_range(black_box(&leaf), 0..usize::MAX);
            let mut written = 0;
            while let Some(image) = packer.pop_last(false) {
                written += black_box(image.bytes).len();
            }
            written
        });
}

/// Pack entries that lie ready.
#[divan::bench(args = SHAPES)]
fn pack_entries(bencher: Bencher, shape: Shape) {
    let entries = entries(shape);
    let mut packer = LeafPacker::new();
    bencher
        .counter(divan::counter::ItemsCount::new(entries.len()))
        .bench_local(|| {
            let mut written = 0;
            for (key, value) in &entries {
                packer.push(key, Stored::Inline(value));
                while let Some(image) = packer.pop_full() {
                    written += black_box(image.bytes).len();
                }
            }
            while let Some(image) = packer.pop_last(false) {
                written += black_box(image.bytes).len();
            }
            written
        });
}

#[divan::bench(args = SHAPES)]
fn validate_leaf(bencher: Bencher, shape: Shape) {
    let (bytes, _) = leaf(shape);
    bencher.bench_local(|| validate(black_box(&bytes)));
}

#[divan::bench]
fn check_leaf(bencher: Bencher) {
    let (mut bytes, _) = leaf(Shape::Words);
    let at = NodeRef::new(7, 0, (bytes.len() / 64) as u32);
    seal(&mut bytes, at, 3);
    bencher.bench_local(|| check(black_box(&bytes), at));
}

#[divan::bench]
fn patch_leaf(bencher: Bencher) {
    let (mut bytes, entries) = leaf(Shape::Words);
    let n = entries.len();
    let mut i = 0;
    bencher.bench_local(|| {
        i = (i + 37) % n;
        patch_value(black_box(&mut bytes), i, Stored::Inline(b"eight ch"))
    });
}

/// An inner node of words or of random 8-byte keys' separators, as many as fit a page.
fn inner(words: bool) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut keys: Vec<Vec<u8>> = (0..700u64)
        .map(|i| {
            if words {
                word(i)[2..6].to_vec()
            } else {
                mix(i).to_be_bytes()[..3].to_vec()
            }
        })
        .collect();
    keys.sort();
    keys.dedup();
    let mut packer = InnerPacker::new(1);
    for (i, key) in keys.iter().enumerate() {
        packer.push(key, NodeRef::new(i as u64 + 1, 0, 64), 200);
    }
    let (bytes, count) = packer
        .pop_full()
        .map(|image| (image.bytes.to_vec(), image.count as usize))
        .expect("two nodes");
    keys.truncate(count);
    (bytes, keys)
}

#[divan::bench(args = [true, false], counters = [divan::counter::ItemsCount::new(PROBES)])]
fn inner_search(bencher: Bencher, words: bool) {
    let (bytes, keys) = inner(words);
    validate(&bytes).expect("a packed node is valid");
    let order = order(keys.len());
    let probes: Vec<Vec<u8>> = keys
        .iter()
        .map(|key| [key, &b"tail"[..]].concat())
        .collect();
    bencher.bench_local(|| {
        for i in &order {
            // SAFETY: validated above.
            let inner = unsafe { Inner::new_validated(black_box(&bytes)) };
            black_box(inner.child(inner.search(&probes[*i])));
        }
    });
}

#[divan::bench]
fn inner_keys_before(bencher: Bencher) {
    let (bytes, keys) = inner(false);
    let inner = Inner::open(&bytes).expect("a packed node is valid");
    bencher.bench_local(|| inner.keys_before(black_box(keys.len())));
}

fn unvalidated(bytes: &[u8]) -> Leaf<'_> {
    // SAFETY: the bytes come from the packer unchanged, and its images are valid.
    unsafe { Leaf::new_validated(bytes) }
}
