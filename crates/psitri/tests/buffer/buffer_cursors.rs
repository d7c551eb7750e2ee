//! Cursors over one write buffer walk ahead of their position: they must be able to turn and to be cloned anywhere, over nodes of all sizes.

use psitri::buffer::{Arena, BufferCursor, KeyspaceBuffer, Kind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

fn buffer() -> Arc<KeyspaceBuffer> {
    KeyspaceBuffer::new(Arc::new(Arena::new(16 << 20).unwrap()))
}

/// A cursor walks ahead of its position by 1, 2, 4 and so on to 32 entries: it must be able to turn at any of them, and at the ends.
#[test]
fn a_cursor_turns_anywhere() {
    for count in [0usize, 1, 2, 3, 31, 32, 33, 34, 63, 64, 65, 200] {
        let buffer = buffer();
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        let key = |number: usize| (number as u16 * 3).to_be_bytes();
        for number in (0..count).rev() {
            writer.put(&key(number), Kind::Value, &[], floor).unwrap();
        }
        writer.settle();
        for start in (0..count).step_by(count.div_ceil(20).max(1)) {
            for steps in 0..=70 {
                for forward in [true, false] {
                    let mut cursor = buffer.cursor();
                    assert!(cursor.seek_ge(&key(start)));
                    let mut at = Some(start);
                    let moves = [(forward, steps), (!forward, 3), (forward, 3)];
                    for (forward, steps) in moves {
                        for _ in 0..steps {
                            // A cursor that left the entries stays outside.
                            at = match (at, forward) {
                                (Some(at), true) => Some(at + 1).filter(|at| *at < count),
                                (Some(at), false) => at.checked_sub(1),
                                (None, _) => None,
                            };
                            let moved = if forward {
                                cursor.next()
                            } else {
                                cursor.prev()
                            };
                            assert_eq!(moved, at.is_some(), "{count} {start} {steps} {forward}");
                            let expected = at.map(key);
                            let expected = expected.as_ref().map_or(&[][..], |key| &key[..]);
                            assert_eq!(cursor.key(), expected);
                        }
                    }
                }
            }
        }
    }
}

/// Keys that end at nodes, nodes of all sizes, and children of both kinds side by side; the moves, and clones in the middle of them, are
/// compared with those in a sorted list.
#[test]
fn cursors_walk_at_random_over_nodes_of_all_sizes() {
    let mut random = SmallRng::seed_from_u64(1);
    for (count, bytes, len_max) in [
        (300, 60, 2),
        (600, 20, 4),
        (1000, 256, 3),
        (2000, 50, 3),
        (3000, 256, 2),
    ] {
        let buffer = buffer();
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            let len = random.random_range(1..=len_max);
            let key = (0..len).map(|_| random.random_range(0..bytes) as u8);
            keys.push(key.collect());
        }
        for key in &keys {
            writer.put(key, Kind::Value, &[], floor).unwrap();
        }
        writer.settle();
        keys.sort_unstable();
        keys.dedup();
        let check = |cursor: &BufferCursor, at: Option<usize>| {
            assert_eq!(cursor.is_valid(), at.is_some());
            assert_eq!(cursor.key(), at.map_or(&[][..], |at| &keys[at]));
        };
        // Cursors, and the place of the entry of each among the keys.
        let mut walks = vec![(buffer.cursor(), None::<usize>)];
        for _ in 0..3000 {
            let chosen = random.random_range(0..walks.len());
            let (mut cursor, mut at) = walks.swap_remove(chosen);
            let wanted = &keys[random.random_range(0..keys.len())];
            match random.random_range(0..8) {
                0 => {
                    cursor.first();
                    at = Some(0);
                }
                1 => {
                    cursor.last();
                    at = Some(keys.len() - 1);
                }
                2 => {
                    cursor.seek_gt(wanted);
                    at = Some(keys.partition_point(|key| key <= wanted));
                }
                3 => {
                    cursor.seek_lt(wanted);
                    at = keys.partition_point(|key| key < wanted).checked_sub(1);
                }
                way => {
                    let forward = way % 2 == 0;
                    let steps_max = if way < 6 { 150 } else { 6 };
                    for _ in 0..random.random_range(0..steps_max) {
                        at = match forward {
                            true => at.map(|at| at + 1).filter(|at| *at < keys.len()),
                            false => at.and_then(|at| at.checked_sub(1)),
                        };
                        let moved = match forward {
                            true => cursor.next(),
                            false => cursor.prev(),
                        };
                        assert_eq!(moved, at.is_some());
                        check(&cursor, at);
                    }
                }
            }
            at = at.filter(|at| *at < keys.len());
            check(&cursor, at);
            if walks.len() < 4 {
                walks.push((cursor.clone(), at));
            }
            walks.push((cursor, at));
        }
    }
}
