//! Leaves against a sorted vector: whatever the packer makes of a set of entries, every accessor gives the entries back, searches
//! agree with a binary search of the vector, and sizes keep to the limits.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use psitri::node::{
    Leaf, LeafCursor, LeafEncoding, LeafPacker, NODE_BYTES_SOFT_MAX, NodeRef, Stored, UNIT_BYTES,
    ValuePointer, Visited, check, patch_value, seal, validate_deep,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Inline(Vec<u8>),
    External(ValuePointer),
}

impl Value {
    fn stored(&self) -> Stored<'_> {
        match self {
            Value::Inline(bytes) => Stored::Inline(bytes),
            Value::External(pointer) => Stored::External(*pointer),
        }
    }
}

type Model = BTreeMap<Vec<u8>, Value>;

fn pack(model: &Model, eager: bool) -> Vec<Vec<u8>> {
    let mut packer = LeafPacker::new();
    let mut images = Vec::new();
    for (key, value) in model {
        packer.push(key, value.stored());
        if eager {
            while let Some(image) = packer.pop_full() {
                images.push(image.bytes.to_vec());
            }
        }
    }
    while let Some(image) = packer.pop_last(false) {
        images.push(image.bytes.to_vec());
    }
    assert!(packer.is_empty() && packer.pending_bytes() == 0);
    images
}

fn check_leaf(bytes: &mut [u8], entries: &[(&Vec<u8>, &Value)], probes: &[Vec<u8>]) {
    assert!(bytes.len().is_multiple_of(UNIT_BYTES));
    assert!(
        bytes.len() <= NODE_BYTES_SOFT_MAX || entries.len() == 1,
        "{} bytes",
        bytes.len()
    );
    let at = NodeRef::new(5, 0, (bytes.len() / UNIT_BYTES) as u32);
    seal(bytes, at, 77);
    check(bytes, at).unwrap();
    assert!(
        check(bytes, NodeRef::new(6, 0, at.units())).is_err(),
        "a misdirected node is found out"
    );
    validate_deep(bytes).unwrap();
    let leaf = Leaf::open(bytes).unwrap();
    assert_eq!(leaf.len(), entries.len());
    let mut key_buffer = Vec::new();
    let mut loaded = Vec::new();
    leaf.load_prefix(&mut loaded);
    for (i, (key, value)) in entries.iter().enumerate() {
        assert_eq!(leaf.find(key), Some(i));
        assert_eq!(leaf.lower_bound(key), i);
        for from in 0..=i {
            assert_eq!(leaf.lower_bound_from(from, key), i);
        }
        assert_eq!(leaf.get(key), Some(value.stored()));
        leaf.copy_key(i, &mut key_buffer);
        leaf.load_suffix(i, &mut loaded);
        assert_eq!((&key_buffer, &loaded), (*key, *key));
        assert!(leaf.cmp_key(i, key).is_eq());
        let mut longer = key.to_vec();
        longer.push(0);
        assert!(leaf.cmp_key(i, &longer).is_lt());
        assert_eq!(leaf.lower_bound(&longer), i + 1);
        if entries.get(i + 1).is_none_or(|(next, _)| **next != longer) {
            assert_eq!(leaf.find(&longer), None);
        }
        longer.push(0xff);
        if let Some(last) = key.len().checked_sub(1) {
            let shorter = &key[..last];
            let expected = entries.partition_point(|(k, _)| k.as_slice() < shorter);
            assert_eq!(leaf.lower_bound(shorter), expected);
            assert_eq!(
                leaf.find(shorter),
                entries.iter().position(|(k, _)| k.as_slice() == shorter)
            );
        }
    }
    for probe in probes {
        assert_eq!(
            leaf.find(probe),
            entries.iter().position(|(k, _)| *k == probe)
        );
        let expected = entries.partition_point(|(k, _)| *k < probe);
        assert_eq!(leaf.lower_bound(probe), expected);
        for from in 0..=expected {
            assert_eq!(leaf.lower_bound_from(from, probe), expected);
        }
        for (i, (key, _)) in entries.iter().enumerate() {
            assert_eq!(leaf.cmp_key(i, probe), key.cmp(&probe));
        }
    }
    let (start, end) = (entries.len() / 3, entries.len());
    let mut cursor = LeafCursor::new(leaf, start..end + 9);
    for (key, value) in &entries[start..] {
        assert_eq!(cursor.next(), Some((key.as_slice(), value.stored())));
    }
    assert_eq!(cursor.next(), None);
    // Carried over as ranges, the entries make the same leaf again.
    let mut packer = LeafPacker::new();
    packer.push_range(&leaf, 0..start);
    packer.push_range(&leaf, start..usize::MAX);
    let again = packer.pop_last(false).unwrap();
    assert_eq!(again.bytes[24..], bytes[24..]);
    let mut seen = 0;
    loop {
        let visited = leaf.visit(seen..usize::MAX, &mut key_buffer, |key, value| {
            let (expected, stored) = &entries[seen];
            assert_eq!(
                (key, Stored::Inline(value)),
                (expected.as_slice(), stored.stored())
            );
            seen += 1;
            ControlFlow::Continue(())
        });
        match visited {
            Visited::All => break,
            Visited::Broken => unreachable!("nobody breaks"),
            Visited::External(at) => {
                assert_eq!(at, seen);
                assert!(matches!(entries[seen].1.stored(), Stored::External(_)));
                seen += 1;
            }
        }
    }
    assert_eq!(seen, entries.len());
}

fn check_model(model: &Model, probes: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut images = pack(model, true);
    let lazy = pack(model, false);
    assert_eq!(images, lazy, "when leaves are fetched makes no difference");
    let entries: Vec<_> = model.iter().collect();
    let mut at = 0;
    for image in &mut images {
        let n = Leaf::open(image).unwrap().len();
        check_leaf(image, &entries[at..at + n], probes);
        at += n;
    }
    assert_eq!(at, entries.len(), "every entry is in a leaf");
    images
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => vec(any::<u8>(), 0..40).prop_map(Value::Inline),
        1 => vec(any::<u8>(), 0..=512).prop_map(Value::Inline),
        1 => (0u64..1 << 40, 0u32..64, any::<u32>(), any::<u32>(), any::<u64>())
            .prop_map(|(page, offset, len, crc, birth)| Value::External(ValuePointer::new(page, offset * 64, len, crc, birth))),
    ]
}

fn uniform_value() -> impl Strategy<Value = Value> {
    (any::<u64>(), Just(8)).prop_map(|(word, _)| Value::Inline(word.to_le_bytes().to_vec()))
}

/// Keys from a small alphabet: prefixes of each other, zero bytes, long common prefixes.
fn tricky_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xff)], 0..12),
        2 => vec(any::<u8>(), 0..24),
        1 => vec(prop_oneof![Just(0u8), Just(7)], 0..4).prop_map(|mut tail| {
            let mut key = b"a long common prefix, longer than a head/".to_vec();
            key.append(&mut tail);
            key
        }),
        1 => (250usize..310, any::<u8>()).prop_map(|(n, byte)| { let mut key = vec![b'x'; n]; key.push(byte); key }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn tricky_keys(model in btree_map(tricky_key(), value(), 1..400), probes in vec(tricky_key(), 0..30)) {
        check_model(&model, &probes);
    }

    #[test]
    fn keys_of_one_length(
        width in 1usize..20, seeds in btree_map(vec(any::<u8>(), 20), uniform_value(), 1..700), probes in vec(tricky_key(), 0..20),
        mixed in any::<bool>(), value in value(),
    ) {
        let mut model: Model = seeds.into_iter().map(|(mut key, value)| { key.truncate(width); (key, value) }).collect();
        if mixed && let Some(first) = model.values_mut().next() {
            *first = value;
        }
        let images = check_model(&model, &probes);
        for image in &images {
            prop_assert!(Leaf::open(image).unwrap().encoding() != LeafEncoding::Slotted);
        }
    }

    #[test]
    fn consecutive_integers(
        start in any::<u64>(), n in 2u64..600, values in vec(value(), 1..10), probes in vec(tricky_key(), 0..20), gap in any::<u64>(),
    ) {
        let key = |i: u64| [&b"\0TX"[..], &start.saturating_add(i).to_be_bytes()].concat();
        let mut model: Model = (0..n).map(|i| (key(i), values[i as usize % values.len()].clone())).collect();
        let mut probes = probes;
        probes.extend([key(n), key(u64::MAX), key(0)[..7].to_vec(), [&key(1)[..], b"\0"].concat(), b"\0TX".to_vec()]);
        let images = check_model(&model, &probes);
        if start < u64::MAX - 600 {
            prop_assert_eq!(Leaf::open(&images[0]).unwrap().encoding(), LeafEncoding::Dense);
        }
        // One missing number in the middle: no more dense than on its two sides.
        model.remove(&key(gap % n));
        check_model(&model, &probes);
    }

    #[test]
    fn patches_change_one_value(model in btree_map(tricky_key(), value(), 1..200), pick in any::<prop::sample::Index>(), new in value()) {
        let images = pack(&model, true);
        let image = &images[pick.index(images.len())];
        let leaf = Leaf::open(image).unwrap();
        let i = pick.index(leaf.len());
        let fits = match (leaf.value(i), &new) {
            (Stored::Inline(old), Value::Inline(new)) => old.len() == new.len(),
            (Stored::External(_), Value::External(_)) => true,
            _ => false,
        };
        let mut copy = image.clone();
        prop_assert_eq!(patch_value(&mut copy, i, new.stored()), fits);
        prop_assert!(!patch_value(&mut copy, leaf.len(), new.stored()));
        validate_deep(&copy).unwrap();
        let patched = Leaf::open(&copy).unwrap();
        for j in 0..leaf.len() {
            let expected = if j == i && fits { new.stored() } else { leaf.value(j) };
            prop_assert_eq!(patched.value(j), expected);
        }
    }
}

#[test]
fn keys_of_64_kib_get_leaves_of_their_own() {
    let mut model = Model::new();
    for i in 0..6u8 {
        let mut key = vec![b'k'; 65_536];
        key[65_535] = i;
        model.insert(key, Value::Inline(vec![i; 512]));
        model.insert(vec![i], Value::Inline(vec![i; 3]));
    }
    let images = check_model(&model, &[vec![b'k'; 65_536], vec![b'k'; 100], vec![]]);
    assert_eq!(images.len(), 7);
}

#[test]
fn each_key_a_prefix_of_the_next() {
    let model: Model = (0..300)
        .map(|n| (vec![0; n], Value::Inline(vec![1; n % 5])))
        .collect();
    check_model(&model, &[vec![0; 301], vec![1], vec![0, 1]]);
}

#[test]
fn empty_values_of_many_integers_stay_bounded() {
    let model: Model = (0..10_000u32)
        .map(|i| (i.to_be_bytes().to_vec(), Value::Inline(vec![])))
        .collect();
    let images = check_model(&model, &[]);
    assert!(images.len() >= 3);
}

#[test]
fn the_last_two_leaves_are_balanced() {
    let mut packer = LeafPacker::new();
    for i in 0..300u32 {
        // Not consecutive; suffixes of 2 bytes and values of 12: about 290 to a leaf.
        packer.push(&(i * 3).to_be_bytes(), Stored::Inline(&[7; 12]));
    }
    let mut counts = Vec::new();
    while let Some(image) = packer.pop_last(false) {
        counts.push(image.count);
        assert!(image.first_key < image.last_key);
    }
    assert_eq!(counts, [150, 150]);
}

#[test]
fn full_leaves_are_full() {
    let mut packer = LeafPacker::new();
    let mut fill = Vec::new();
    for i in 0..100_000u64 {
        packer.push(
            &(i * 7).to_be_bytes(),
            Stored::Inline(&i.to_le_bytes()[..(i % 8) as usize]),
        );
        while let Some(image) = packer.pop_full() {
            fill.push(image.bytes.len());
        }
    }
    assert!(
        fill.iter().all(|bytes| *bytes > 4096 * 95 / 100),
        "leaves are packed 95 % and more"
    );
}
