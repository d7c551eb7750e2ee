//! Where what lies in the data file of the story: what to damage.

use std::{collections::BTreeMap, ops::Range};

use psitri::node::{self, Inner, Leaf, NodeRef, Stored, ValuePointer};

/// What lies where in the data file, by the newest superblock.
pub struct Layout {
    pub slot: usize,
    pub map_table: Range<usize>,
    pub map_piece: Range<usize>,
    pub catalog: Vec<Place>,
    pub trees: BTreeMap<String, Vec<Place>>,
    pub values: Vec<Range<usize>>,
}

#[derive(Clone)]
pub struct Place {
    pub bytes: Range<usize>,
    pub level: u8,
    pub is_root: bool,
}

impl Layout {
    pub fn of(data: &[u8]) -> Layout {
        let u64_at = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        let slot = if u64_at(16) > u64_at(4096 + 16) {
            0
        } else {
            4096
        };
        let table = u64_at(slot + 72) as usize * 4096;
        let piece = u64_at(table) as usize * 4096;
        let mut layout = Layout {
            slot,
            map_table: table..table + 16,
            map_piece: piece..piece + 4096,
            catalog: Vec::new(),
            trees: BTreeMap::new(),
            values: Vec::new(),
        };
        let mut entries = Vec::new();
        let (mut places, mut values) = (Vec::new(), Vec::new());
        let catalog = NodeRef::from_bits(u64_at(slot + 40));
        walk(
            data,
            catalog,
            true,
            &mut places,
            &mut values,
            &mut |value| {
                let root = u64::from_le_bytes(value[..8].try_into().unwrap());
                // Behind the flags, the parent and the number of aliases, all 0.
                let name = String::from_utf8(value[33..].to_vec()).unwrap();
                entries.push((name, NodeRef::from_bits(root)));
            },
        );
        layout.catalog = places;
        for (name, root) in entries {
            let mut places = Vec::new();
            walk(data, root, true, &mut places, &mut values, &mut |_| ());
            layout.trees.insert(name, places);
        }
        let at = |value: &ValuePointer| value.byte_offset() as usize;
        layout.values = values
            .iter()
            .map(|value| at(value)..at(value) + value.len as usize)
            .collect();
        layout
    }
}

fn walk(
    data: &[u8],
    at: NodeRef,
    is_root: bool,
    places: &mut Vec<Place>,
    values: &mut Vec<ValuePointer>,
    each: &mut impl FnMut(&[u8]),
) {
    if at.is_null() {
        return;
    }
    let start = at.byte_offset() as usize;
    let bytes = &data[start..start + at.bytes()];
    places.push(Place {
        bytes: start..start + at.bytes(),
        level: node::level(bytes),
        is_root,
    });
    if let Ok(inner) = Inner::open(bytes) {
        for index in 0..inner.len() {
            walk(data, inner.child(index), false, places, values, each);
        }
        return;
    }
    let leaf = Leaf::open(bytes).unwrap();
    for index in 0..leaf.len() {
        match leaf.value(index) {
            Stored::Inline(value) => each(value),
            Stored::External(pointer) => values.push(pointer),
        }
    }
}
