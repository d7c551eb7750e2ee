//! Any bytes give an error or a node whose every accessor works: no panic, no read outside (debug assertions and, under Miri or
//! ASan, the tools watch). Images are damaged in random places and sealed again, so that only validation stands in the way.

use proptest::collection::vec;
use proptest::prelude::*;
use psitri::node::{
    Delta, DeltaPacker, Inner, InnerPacker, Leaf, LeafCursor, LeafPacker, Mark, NodeError, NodeRef,
    Stored, ValuePointer, Visited, birth, check, is_leaf, level, patch_child, patch_value, seal,
    units, validate, validate_deep,
};
use std::ops::ControlFlow;

/// Uses everything a node offers.
fn exercise(bytes: &[u8], probes: &[Vec<u8>]) {
    let _ = (
        birth(bytes),
        level(bytes),
        units(bytes),
        is_leaf(bytes),
        validate_deep(bytes),
    );
    let mut copy = bytes.to_vec();
    for i in [0, 1, 7, 4096] {
        let _ = patch_value(&mut copy, i, Stored::Inline(b"12345678"));
        let _ = patch_value(
            &mut copy,
            i,
            Stored::External(ValuePointer::new(1, 128, 3, 4, 5)),
        );
        let _ = patch_child(&mut copy, i, NodeRef::new(1, 2, 3), 9);
    }
    if let Ok(delta) = Delta::open(bytes) {
        let entries = delta.entries();
        let _ = (delta.base(), delta.keys(), delta.spent());
        let _ = (
            delta.entries_bytes(),
            delta.index_with_changes(3, entries.len()),
        );
        for i in 0..entries.len() {
            let _ = (delta.mark(i), entries.value(i));
        }
        exercise_leaf(entries, probes);
        assert!(Leaf::open(bytes).is_err() && Inner::open(bytes).is_err());
    }
    if let Ok(leaf) = Leaf::open(bytes) {
        exercise_leaf(leaf, probes);
        if validate_deep(bytes).is_ok() {
            let mut packer = LeafPacker::new();
            packer.push_range(&leaf, 0..usize::MAX);
            while let Some(image) = packer.pop_last(false) {
                validate(image.bytes).unwrap();
            }
        }
    }
    exercise_inner(bytes, probes);
}

fn exercise_leaf(leaf: Leaf<'_>, probes: &[Vec<u8>]) {
    for leaf in [leaf, leaf.up_to(leaf.len().div_ceil(2))] {
        let mut key = Vec::new();
        let mut sum = 0usize;
        for i in 0..leaf.len() {
            leaf.copy_key(i, &mut key);
            let _ = (
                leaf.find(&key),
                leaf.lower_bound(&key),
                leaf.lower_bound_from(i / 2, &key),
                leaf.cmp_key(i, &key),
            );
            sum += match leaf.value(i) {
                Stored::Inline(value) => value.iter().map(|byte| usize::from(*byte)).sum(),
                Stored::External(pointer) => pointer.len as usize,
            };
        }
        for probe in probes {
            let _ = (
                leaf.find(probe),
                leaf.lower_bound(probe),
                leaf.lower_bound_from(leaf.len() / 2, probe),
                leaf.lower_bound_from(usize::MAX, probe),
                leaf.cmp_key(0, probe),
            );
        }
        let mut cursor = LeafCursor::new(leaf, 0..usize::MAX);
        let mut keys = 0;
        while let Some((key, _)) = cursor.next() {
            keys += 1;
            sum += key.len();
        }
        assert_eq!(keys, leaf.len());
        let mut index = 0;
        while let Visited::External(at) = leaf.visit(index..usize::MAX, &mut key, |key, value| {
            sum += key
                .iter()
                .chain(value)
                .map(|byte| usize::from(*byte))
                .sum::<usize>();
            ControlFlow::Continue(())
        }) {
            index = at + 1;
        }
        std::hint::black_box(sum);
    }
}

fn exercise_inner(bytes: &[u8], probes: &[Vec<u8>]) {
    if let Ok(inner) = Inner::open(bytes) {
        let mut separator = Vec::new();
        for i in 0..inner.len() {
            inner.separator(i, &mut separator);
            let _ = (
                inner.search(&separator),
                inner.child(i),
                inner.child_keys(i),
                inner.keys_before(i),
            );
        }
        for probe in probes {
            assert!(inner.search(probe) < inner.len());
        }
        let _ = (
            inner.total_keys(),
            inner.find_rank(u64::MAX),
            inner.find_rank(3),
            inner.level(),
        );
    }
}

/// Writes a plausible header over the front, so that validation goes past it.
fn forge_header(bytes: &mut [u8], kind: u8, level: u8, flags: u8, count: u32) {
    let units = (bytes.len() / 64) as u32;
    bytes[4..8].copy_from_slice(&[kind, level, flags, 0]);
    bytes[16..20].copy_from_slice(&units.to_le_bytes());
    bytes[20..24].copy_from_slice(&count.to_le_bytes());
}

fn leaf_image(shape: u8, n: u64) -> Vec<u8> {
    let mut packer = LeafPacker::new();
    for i in 0..n {
        let key = match shape % 5 {
            0 => (i * 3).to_be_bytes().to_vec(),
            1 => [&b"log"[..], &i.to_be_bytes()].concat(),
            2 => vec![7; i as usize],
            _ => format!("{i:05}{}", "x".repeat((i % 4) as usize)).into_bytes(),
        };
        let length = if shape.is_multiple_of(2) {
            8
        } else {
            (i % 9) as usize
        };
        if shape >= 10 && (i % 3 == 0 || shape >= 15) {
            packer.push(&key, Stored::External(ValuePointer::new(i, 64, 2, 3, 4)));
        } else {
            packer.push(&key, Stored::Inline(&[9; 16][..length]));
        }
    }
    packer
        .pop_last(false)
        .map(|image| image.bytes.to_vec())
        .unwrap_or_default()
}

fn delta_image(shape: u8, n: u64) -> Vec<u8> {
    let leaf = leaf_image(shape, n);
    let leaf = Leaf::open(&leaf).unwrap();
    let mut packer = DeltaPacker::default();
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.copy_key(i, &mut key);
        match i % 3 {
            0 => packer.push(&key, leaf.value(i), Mark::New),
            1 => packer.push(&key, leaf.value(i), Mark::Replaces),
            _ => packer.push(&key, Stored::Inline(b""), Mark::Removes),
        }
    }
    let base = NodeRef::new(9, 0, 64);
    packer.finish(base, 100, 7).unwrap().to_vec()
}

fn inner_image(shape: u8, n: u64) -> Vec<u8> {
    let mut packer = InnerPacker::new(1);
    for i in 0..n.min(200) {
        let separator = match shape % 3 {
            0 => vec![i as u8],
            1 => i.to_be_bytes().to_vec(),
            _ => format!("{}{i:05}", "p".repeat(9)).into_bytes(),
        };
        packer.push(&separator, NodeRef::new(i + 1, 0, 1), i << (shape % 50));
    }
    packer
        .pop_last()
        .map(|image| image.bytes.to_vec())
        .unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(mut bytes in vec(any::<u8>(), 0..700), probes in vec(vec(any::<u8>(), 0..10), 0..3)) {
        exercise(&bytes, &probes);
        bytes.truncate(bytes.len() / 64 * 64);
        prop_assert!(check(&bytes, NodeRef::new(1, 0, (bytes.len() / 64) as u32)).is_err());
    }

    #[test]
    fn forged_headers(
        units in 1usize..6, fill in prop_oneof![Just(0u8), any::<u8>()], edits in vec((24usize..384, any::<u8>()), 0..40),
        kind in prop_oneof![1u8..4, Just(8u8), 16u8..18], flags in 0u8..16, count in prop_oneof![1u32..40, any::<u32>()],
        prefix in prop_oneof![0u32..40, any::<u32>()], widths in prop_oneof![Just((0u16, 0u16)), (0u16..20, 0u16..30), any::<(u16, u16)>()],
        probes in vec(vec(any::<u8>(), 0..10), 0..3),
    ) {
        let mut bytes = vec![fill; units * 64];
        bytes[24..28].copy_from_slice(&prefix.to_le_bytes());
        bytes[28..30].copy_from_slice(&widths.0.to_le_bytes());
        bytes[30..32].copy_from_slice(&widths.1.to_le_bytes());
        for (at, byte) in edits {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        forge_header(&mut bytes, kind, u8::from(kind >= 16), flags, count);
        exercise(&bytes, &probes);
    }

    #[test]
    fn damaged_images(
        kind in 0u8..3, shape in 0u8..60, n in 1u64..120,
        edits in vec((prop_oneof![0usize..40, 64usize..104, 0usize..4096], any::<u8>()), 1..4), probes in vec(vec(any::<u8>(), 0..10), 0..3),
    ) {
        let mut bytes = match kind {
            0 => leaf_image(shape % 20, n),
            1 => delta_image(shape % 20, n),
            _ => inner_image(shape, n),
        };
        let at = NodeRef::new(3, 0, (bytes.len() / 64) as u32);
        seal(&mut bytes, at, 8);
        check(&bytes, at).unwrap();
        exercise(&bytes, &probes);
        let good = bytes.clone();
        for (offset, byte) in edits {
            let offset = offset % bytes.len();
            bytes[offset] = byte;
        }
        if bytes != good {
            prop_assert!(matches!(check(&bytes, at), Err(NodeError::Checksum { .. })), "damage is found out");
        }
        seal(&mut bytes, at, 8);
        exercise(&bytes, &probes);
    }
}

#[test]
fn a_torn_or_misplaced_node_is_found_out() {
    let mut bytes = leaf_image(3, 100);
    let at = NodeRef::new(8, 4, (bytes.len() / 64) as u32);
    seal(&mut bytes, at, 1);
    assert_eq!((check(&bytes, at), birth(&bytes)), (Ok(()), 1));
    assert!(check(&bytes, NodeRef::new(8, 5, at.units())).is_err());
    assert!(check(&bytes[..bytes.len() - 64], at).is_err());
    assert!(check(&[], NodeRef::NULL).is_err());
    for at_bit in (0..bytes.len() * 8).step_by(37) {
        bytes[at_bit / 8] ^= 1 << (at_bit % 8);
        assert!(check(&bytes, at).is_err());
        bytes[at_bit / 8] ^= 1 << (at_bit % 8);
    }
}

#[test]
fn deep_validation_finds_disorder() {
    // Swap two values' worth of key bytes in a fixed leaf.
    let mut bytes = leaf_image(0, 50);
    validate_deep(&bytes).unwrap();
    bytes[32..48].rotate_left(1);
    assert!(validate(&bytes).is_ok() && validate_deep(&bytes).is_err());
    // A wrong fingerprint in a slotted leaf.
    let mut bytes = leaf_image(3, 50);
    bytes[33] ^= 1;
    assert!(validate(&bytes).is_ok() && validate_deep(&bytes).is_err());
}

#[test]
fn forged_nodes_that_validate_are_safe() {
    let mut valid = [0u32; 18];
    for kind in [1u8, 2, 3, 16, 17] {
        for (flags, count) in
            (0..16u8).flat_map(|flags| [1u32, 2, 3, 9, 15].map(|count| (flags, count)))
        {
            for (prefix, suffix, value) in [
                (0u32, 0u16, 0u16),
                (3, 1, 0),
                (0, 1, 8),
                (5, 8, 1),
                (1, 4, 24),
                (9, 0, 24),
            ] {
                let mut bytes = vec![0u8; 256];
                bytes[24..28].copy_from_slice(&prefix.to_le_bytes());
                if kind < 16 {
                    bytes[28..30].copy_from_slice(&suffix.to_le_bytes());
                    bytes[30..32].copy_from_slice(&value.to_le_bytes());
                }
                forge_header(&mut bytes, kind, u8::from(kind >= 16), flags, count);
                valid[usize::from(kind)] += u32::from(validate(&bytes).is_ok());
                exercise(
                    &bytes,
                    &[
                        vec![],
                        vec![0],
                        vec![0; 4],
                        vec![0; 9],
                        vec![0; 40],
                        vec![1; 5],
                    ],
                );
            }
        }
    }
    // Slotted leaves need offsets, which zeros are not; the other kinds must have been reached.
    assert!(
        valid[2] > 0 && valid[3] > 0 && valid[16] > 0 && valid[17] > 0,
        "{valid:?}"
    );
}
