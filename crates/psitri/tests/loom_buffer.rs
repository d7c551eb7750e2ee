//! The write buffer under loom: the same tree code over an arena of loom atomics.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p psitri --test loom_buffer`
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use psitri::buffer::{Arena, BufferWriter, Found, KeyspaceBuffer, Kind, Watermark};
use psitri::pins::Registry;
use std::sync::Arc;

fn buffer() -> Arc<KeyspaceBuffer> {
    KeyspaceBuffer::new(Arc::new(Arena::new(1 << 16).unwrap()))
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(test);
}

/// Writes and commits one key.
fn commit(writer: &mut BufferWriter, floor: Watermark, key: &[u8], csn: u64, visible: &AtomicU64) {
    let value = csn.to_le_bytes();
    let (_, outcome) = writer.put(key, Kind::Value, &value, floor).unwrap();
    writer.stamp(outcome.version, csn);
    visible.store(csn, Ordering::Release);
}

fn value(found: Found<'_>) -> Option<u64> {
    match found {
        Found::Value(bytes) => Some(u64::from_le_bytes(bytes.try_into().unwrap())),
        Found::Absent => None,
        other => panic!("{other:?}"),
    }
}

/// Keys committed one after the other, at numbers 1, 2, ..; a reader must see exactly those of its number. `before` of them are there
/// when the reader begins.
fn reader_sees_a_prefix(keys: &'static [&'static [u8]], before: usize) {
    model(move || {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        let mut csn = 0;
        for key in &keys[..before] {
            csn += 1;
            commit(&mut writer, floor, key, csn, &visible);
        }
        let reader = {
            let (buffer, visible) = (buffer.clone(), visible.clone());
            thread::spawn(move || {
                let csn = visible.load(Ordering::Acquire);
                for (at, key) in keys.iter().enumerate().skip(before.saturating_sub(1)) {
                    let number = at as u64 + 1;
                    let expected = (number <= csn).then_some(number);
                    assert_eq!(value(buffer.get(key, csn)), expected, "{key:?} at {csn}");
                }
            })
        };
        for key in &keys[before..] {
            csn += 1;
            commit(&mut writer, floor, key, csn, &visible);
        }
        reader.join().unwrap();
    });
}

#[test]
fn first_keys_and_prefix_splits() {
    reader_sees_a_prefix(&[b"abcd", b"abce", b"ax"], 0);
}

#[test]
fn keys_that_end_at_a_node() {
    reader_sees_a_prefix(&[b"abc", b"abcd", b"ab", b""], 2);
}

#[test]
fn growth_of_a_node() {
    reader_sees_a_prefix(&[b"a", b"b", b"c", b"d", b"e", b"f"], 4);
}

#[test]
fn keys_of_a_bucket_that_grows_and_bursts() {
    reader_sees_a_prefix(&[b"a", b"b1", b"b3", b"c", b"b2"], 3);
}

#[test]
fn a_cursor_sees_all_of_its_snapshot_during_growth() {
    for forward in [true, false] {
        cursor_beside_writer(&[b"a", b"b", b"d", b"e", b"c", b"bb"], 4, forward);
    }
}

/// There are three places in a bucket here: the first key goes between others, the second one makes the bucket larger.
#[test]
fn a_cursor_sees_all_of_its_snapshot_in_a_bucket() {
    for forward in [true, false] {
        cursor_beside_writer(&[b"a", b"d", b"bb", b"c"], 2, forward);
    }
}

/// The first key has less in common with those of the bucket than they have, the second one nothing.
#[test]
fn a_cursor_sees_all_of_its_snapshot_while_a_bucket_comes_to_agree_in_less() {
    for forward in [true, false] {
        cursor_beside_writer(&[b"cca", b"ccb", b"cb", b"d"], 2, forward);
    }
}

/// Four places are the most there are: a node takes the place of the bucket, with an entry, a bucket, and what comes then.
#[test]
fn a_cursor_sees_all_of_its_snapshot_while_a_bucket_bursts() {
    for forward in [true, false] {
        cursor_beside_writer(&[b"b", b"c1", b"c3", b"d", b"c2", b"c"], 4, forward);
    }
}

/// A cursor that goes from the second key on, or back from the third one of the first `before`, while the others are committed.
fn cursor_beside_writer(keys: &'static [&'static [u8]], before: usize, forward: bool) {
    let mut first = keys[..before].to_vec();
    first.sort();
    let from = match forward {
        true => first[1],
        false => first[before.min(3) - 1],
    };
    model(move || {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        for (at, key) in keys[..before].iter().enumerate() {
            commit(&mut writer, floor, key, at as u64 + 1, &visible);
        }
        let reader = {
            let (buffer, visible) = (buffer.clone(), visible.clone());
            thread::spawn(move || {
                let csn = visible.load(Ordering::Acquire);
                let mut cursor = buffer.cursor();
                let mut passed: Vec<&[u8]> = Vec::new();
                let mut seen = Vec::new();
                let mut more = if forward {
                    cursor.seek_ge(from)
                } else {
                    cursor.seek_le(from)
                };
                while more {
                    passed.push(cursor.key());
                    if cursor.resolve(csn) != Found::Absent {
                        seen.push(cursor.key());
                    }
                    more = if forward {
                        cursor.next()
                    } else {
                        cursor.prev()
                    };
                }
                let mut expected: Vec<&[u8]> = keys[..csn as usize].to_vec();
                expected.sort();
                if forward {
                    expected.retain(|key| *key >= from);
                } else {
                    expected.retain(|key| *key <= from);
                    expected.reverse();
                    passed.reverse();
                }
                assert!(passed.is_sorted_by(|a, b| a < b));
                assert_eq!(seen, expected);
            })
        };
        for (at, key) in keys.iter().enumerate().skip(before) {
            commit(&mut writer, floor, key, at as u64 + 1, &visible);
        }
        reader.join().unwrap();
    });
}

/// Two keys of one commit come into the tree together, while a reader looks for them and goes over all keys.
#[test]
fn keys_that_waited_are_visible_with_the_published_number() {
    model(|| {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        commit(&mut writer, floor, b"b", 1, &visible);
        commit(&mut writer, floor, b"f", 1, &visible);
        let reader = {
            let (buffer, visible) = (buffer.clone(), visible.clone());
            thread::spawn(move || {
                let csn = visible.load(Ordering::Acquire);
                let expected = (csn == 2).then_some(2);
                for key in [b"d", b"h"] {
                    assert_eq!(value(buffer.get(key, csn)), expected);
                }
                let mut cursor = buffer.cursor();
                let mut seen = Vec::new();
                let mut more = cursor.first();
                while more {
                    if cursor.resolve(csn) != Found::Absent {
                        seen.push(cursor.key());
                    }
                    more = cursor.next();
                }
                let expected: &[&[u8]] = match csn {
                    1 => &[b"b", b"f"],
                    _ => &[b"b", b"d", b"f", b"h"],
                };
                assert_eq!(seen, expected);
            })
        };
        let number = 2u64.to_le_bytes();
        let puts = [b"d", b"h"].map(|key| writer.put(key, Kind::Value, &number, floor).unwrap().1);
        for put in puts {
            writer.stamp(put.version, 2);
        }
        visible.store(2, Ordering::Release);
        reader.join().unwrap();
    });
}

/// Threads that only look share the writer: both want its keys in order, one looks for them meanwhile.
#[test]
fn keys_that_wait_come_into_the_tree_once_whoever_asks() {
    model(|| {
        let buffer = buffer();
        let visible = AtomicU64::new(0);
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        commit(&mut writer, floor, b"b", 1, &visible);
        commit(&mut writer, floor, b"f", 1, &visible);
        for key in [b"d", b"h"] {
            writer.put(key, Kind::Value, &[0; 8], floor).unwrap();
        }
        let writer = Arc::new(writer);
        let walk = |writer: &BufferWriter| {
            let mut cursor = writer.cursor();
            let mut seen = Vec::new();
            let mut more = cursor.first();
            while more {
                seen.push(cursor.key());
                more = cursor.next();
            }
            assert_eq!(seen, [b"b", b"d", b"f", b"h"]);
        };
        let other = {
            let writer = writer.clone();
            thread::spawn(move || {
                assert_eq!(value(writer.get(b"d")), Some(0));
                walk(&writer);
            })
        };
        walk(&writer);
        assert_eq!(value(writer.get(b"h")), Some(0));
        other.join().unwrap();
    });
}

#[test]
fn versions_become_visible_with_the_published_number() {
    model(|| {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        commit(&mut writer, floor, b"x", 1, &visible);
        commit(&mut writer, floor, b"y", 1, &visible);
        let reader = {
            let (buffer, visible) = (buffer.clone(), visible.clone());
            thread::spawn(move || {
                let csn = visible.load(Ordering::Acquire);
                // Both keys are always written by the same transaction.
                assert_eq!(value(buffer.get(b"x", csn)), Some(csn));
                assert_eq!(value(buffer.get(b"y", csn)), Some(csn));
            })
        };
        // One transaction over both keys, overwriting itself in place, after one that is aborted.
        let floor = writer.watermark();
        let (entry, aborted) = writer.put(b"x", Kind::Value, &[9; 8], floor).unwrap();
        writer.undo(entry, aborted.version);
        let floor = writer.watermark();
        writer.put(b"x", Kind::Value, &[7; 8], floor).unwrap();
        let (_, y) = writer
            .put(b"y", Kind::Value, &2u64.to_le_bytes(), floor)
            .unwrap();
        let (_, x) = writer
            .put(b"x", Kind::Value, &2u64.to_le_bytes(), floor)
            .unwrap();
        assert!(!x.pushed);
        writer.stamp(x.version, 2);
        writer.stamp(y.version, 2);
        visible.store(2, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn a_range_tombstone_becomes_visible_with_the_published_number() {
    model(|| {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let mut writer = buffer.writer().unwrap();
        let floor = writer.watermark();
        commit(&mut writer, floor, b"x", 1, &visible);
        let reader = {
            let (buffer, visible) = (buffer.clone(), visible.clone());
            thread::spawn(move || {
                let csn = visible.load(Ordering::Acquire);
                match buffer.get(b"x", csn) {
                    Found::Value(_) => assert_eq!(csn, 1),
                    Found::Deleted => assert_eq!(csn, 2),
                    other => panic!("{other:?}"),
                }
                assert_eq!(buffer.cover(b"y", csn), if csn == 2 { 2 } else { 0 });
            })
        };
        let undone = writer.add_range_tombstone(b"", None);
        writer.undo_range_tombstone(&undone);
        let tombstone = writer.add_range_tombstone(b"x", Some(b"z"));
        writer.stamp_range_tombstone(&tombstone, 2);
        visible.store(2, Ordering::Release);
        reader.join().unwrap();
    });
}

/// A value that is overwritten again and again, in memory that is used again: a reader sees that of its number, for as long as it looks.
#[test]
fn memory_is_not_used_again_while_a_reader_may_look_at_it() {
    model(|| {
        let buffer = buffer();
        let visible = Arc::new(AtomicU64::new(0));
        let readers = Arc::new(Registry::new(Box::new(())));
        let mut writer = buffer.writer().unwrap();
        let floor = Watermark::default();
        commit(&mut writer, floor, b"x", 1, &visible);
        commit(&mut writer, floor, b"x", 2, &visible);
        // An earlier reader leaves its number behind in the cell.
        drop(readers.acquire(&visible));
        let reader = {
            let (buffer, visible, readers) = (buffer.clone(), visible.clone(), readers.clone());
            thread::spawn(move || {
                let (_pin, csn) = readers.acquire(&visible);
                let found = buffer.get(b"x", csn);
                assert_eq!(value(found), Some(csn));
                thread::yield_now();
                assert_eq!(value(found), Some(csn));
            })
        };
        for csn in 3..=5 {
            // SAFETY: the reader has a pin.
            unsafe { writer.set_seen(readers.seen_by_all(visible.load(Ordering::Acquire))) };
            commit(&mut writer, floor, b"x", csn, &visible);
        }
        reader.join().unwrap();
    });
}

#[test]
fn the_first_key_that_is_left_out_of_the_directory() {
    reader_sees_a_prefix(&[b"a", b"b", b"c", b"d", b"e"], 3);
}

#[test]
fn keys_left_out_over_a_split_and_an_extension() {
    const KEYS: [&[u8]; 7] = [
        b"\0\xfe",
        b"\0\xff",
        b"\x01\0",
        b"\x01\x01",
        b"\x01\x02",
        b"\x01\x02x",
        b"\x01\x03",
    ];
    reader_sees_a_prefix(&KEYS, 5);
}
