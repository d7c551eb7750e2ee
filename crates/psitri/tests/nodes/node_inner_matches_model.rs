//! Inner nodes against a sorted vector of separators: routing, separators, addresses and key counts.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use psitri::node::{
    Inner, InnerPacker, NODE_BYTES_SOFT_MAX, NodeRef, UNIT_BYTES, check, patch_child, seal,
    shortest_separator, validate_deep,
};

type Child = (Vec<u8>, NodeRef, u64);

fn pack(children: &[Child]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut packer = InnerPacker::new(3);
    let mut images = Vec::new();
    for (separator, node, keys) in children {
        packer.push(separator, *node, *keys);
        while let Some(image) = packer.pop_full() {
            images.push((image.first_separator.to_vec(), image.bytes.to_vec()));
        }
    }
    while let Some(image) = packer.pop_last() {
        images.push((image.first_separator.to_vec(), image.bytes.to_vec()));
    }
    assert!(packer.is_empty());
    images
}

fn check_node(bytes: &mut [u8], children: &[Child], probes: &[Vec<u8>]) {
    assert!(bytes.len().is_multiple_of(UNIT_BYTES));
    assert!(bytes.len() <= NODE_BYTES_SOFT_MAX || children.len() <= 4);
    let at = NodeRef::new(9, 0, (bytes.len() / UNIT_BYTES) as u32);
    seal(bytes, at, 5);
    check(bytes, at).unwrap();
    validate_deep(bytes).unwrap();
    let inner = Inner::open(bytes).unwrap();
    assert_eq!((inner.len(), inner.level()), (children.len(), 3));
    let (mut separator, mut before) = (Vec::new(), 0u64);
    for (i, (expected, node, keys)) in children.iter().enumerate() {
        assert_eq!(
            (inner.child(i), inner.child_keys(i), inner.keys_before(i)),
            (*node, *keys, before)
        );
        if *keys > 0 {
            assert_eq!(inner.find_rank(before), Some((i, 0)));
        }
        before = before.saturating_add(*keys);
        inner.separator(i, &mut separator);
        let expected = if i == 0 { &[][..] } else { expected };
        assert_eq!(separator, expected);
    }
    assert_eq!(inner.total_keys(), before);
    assert_eq!(inner.find_rank(before), None);
    let search = |key: &[u8]| {
        let expected = children[1..].partition_point(|(separator, ..)| separator.as_slice() <= key);
        assert_eq!(inner.search(key), expected, "{key:?}");
    };
    for (separator, ..) in children {
        search(separator);
        search(&[separator, &b"\0"[..]].concat());
        search(&[separator, &b"\xff\xff\xff\xff\xff\xff"[..]].concat());
        search(&separator[..separator.len() / 2]);
        if let Some((last, front)) = separator.split_last() {
            search(front);
            search(&[front, &[last.wrapping_sub(1), 0xff, 0xff, 0xff, 0xff]].concat());
        }
    }
    probes.iter().for_each(|probe| search(probe));
}

fn check_children(children: &[Child], probes: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut at = 0;
    let images = pack(children);
    let many = images.len() > 1;
    let mut out = Vec::new();
    for (first, mut bytes) in images {
        let n = Inner::open(&bytes).unwrap().len();
        assert!(n >= 2 || !many, "no lone children");
        assert_eq!(first, children[at].0);
        check_node(&mut bytes, &children[at..at + n], probes);
        at += n;
        out.push(bytes);
    }
    assert_eq!(at, children.len());
    out
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xff)], 0..9),
        2 => vec(any::<u8>(), 0..12),
        1 => vec(any::<u8>(), 1..3).prop_map(|tail| [&b"some/long/common/prefix/"[..], &tail].concat()),
        1 => (200usize..1500, any::<u8>()).prop_map(|(n, byte)| { let mut key = vec![b'x'; n]; key.push(byte); key }),
    ]
}

fn keys_count() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..70_000, 1 => 0u64..1 << 33, 1 => 0u64..1 << 50]
}

fn children(separators: impl IntoIterator<Item = Vec<u8>>, keys: &[u64]) -> Vec<Child> {
    let child = |(i, separator)| {
        (
            separator,
            NodeRef::new(i as u64 + 1, 1, 2),
            keys[i % keys.len()],
        )
    };
    separators.into_iter().enumerate().map(child).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn any_separators(separators in btree_set(key(), 1..500), keys in vec(keys_count(), 1..5), probes in vec(key(), 0..60)) {
        check_children(&children(separators, &keys), &probes);
    }

    #[test]
    fn routed_by_one_byte(bytes in btree_set(any::<u8>(), 1..256), prefix in vec(any::<u8>(), 0..5), probes in vec(key(), 0..40)) {
        let separators = bytes.iter().map(|byte| [&prefix[..], &[*byte]].concat());
        check_children(&children(separators, &[9]), &probes);
    }

    #[test]
    fn separators_separate(a in key(), b in key()) {
        prop_assume!(a != b);
        let (left, right) = if a < b { (a, b) } else { (b, a) };
        let mut out = vec![1, 2, 3];
        shortest_separator(&left, &right, &mut out);
        prop_assert!(left < out && out <= right);
    }

    #[test]
    fn patches_change_one_child(separators in btree_set(key(), 1..40), keys in vec(keys_count(), 1..5), pick in any::<prop::sample::Index>(), new in keys_count()) {
        let images = pack(&children(separators, &keys));
        let (_, image) = &images[0];
        let inner = Inner::open(image).unwrap();
        let i = pick.index(inner.len());
        let mut copy = image.clone();
        let node = NodeRef::new(12345, 6, 7);
        let done = patch_child(&mut copy, i, node, new);
        prop_assert!(!patch_child(&mut copy, inner.len(), node, new));
        prop_assert!(done || new > u64::from(u16::MAX));
        let patched = Inner::open(&copy).unwrap();
        for j in 0..inner.len() {
            let expected = if j == i && done { (node, new) } else { (inner.child(j), inner.child_keys(j)) };
            prop_assert_eq!((patched.child(j), patched.child_keys(j)), expected);
        }
    }
}

#[test]
fn separators_of_64_kib() {
    let separators = (0..11u8).map(|i| [&vec![b's'; 65_530][..], &[i, 1, 2, 3, 4, i]].concat());
    let images = check_children(&children(separators, &[1]), &[vec![b's'; 65_536], vec![]]);
    assert!(
        images.iter().all(|image| image.len() < 80 << 10),
        "the prefix is stored once"
    );
    let separators = (0..11u8).map(|i| [&[i][..], &vec![b's'; 65_535][..]].concat());
    let images = check_children(
        &children(separators, &[u64::MAX / 16]),
        &[vec![3; 65_536], vec![]],
    );
    assert!(
        images
            .iter()
            .all(|image| Inner::open(image).unwrap().len() >= 3)
    );
}

#[test]
fn a_huge_separator_after_a_full_node_leaves_no_lone_child() {
    let mut all: Vec<Vec<u8>> = (0..240u32)
        .map(|i| (i * 977).to_be_bytes().to_vec())
        .collect();
    for cut in 150..240 {
        all.truncate(cut);
        all.push(vec![0xff; 60_000]);
        check_children(&children(all.clone(), &[3]), &[]);
        all.pop();
        all.extend((cut as u32..240).map(|i| (i * 977).to_be_bytes().to_vec()));
    }
}
