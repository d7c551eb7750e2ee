//! How a buffer's writer finds the entry of a key, or inserts it: in the directory, or left out of it. What the tree does is in `grow.rs`.
//!
//! Thread safety and invariants are those of `writer.rs` and `placing.rs`; the order of the stores that readers rely on is in `directory.rs`.

use super::super::directory::{self, Table};
use super::super::entry::EntryRef;
use super::super::error::BufferError;
use super::super::keyspace::hash_of;
use super::grow::New;
use super::placing::Inserter;
use super::run::Step;
use crate::sync::Ordering;

/// Address space for each entry that is expected, at least: a table takes no more than a fiftieth of it at first.
const ADDRESS_BYTES_PER_ENTRY: u64 = 512;

impl Inserter<'_> {
    /// Finds or inserts the entry of a key; `room_bytes` are reserved for what is put behind a new one, and right behind it
    /// but where a bucket bursts.
    #[inline]
    pub fn find_or_insert(
        &mut self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<EntryRef, BufferError> {
        let new = New::Key { room_bytes };
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            let before = self.entries();
            let entry = self.find_or_insert_in_tree(key, new, self.top(), false)?;
            if self.entries() != before && self.entries() == directory::ENTRIES_MIN {
                self.build_directory();
            }
            return Ok(entry);
        };
        let step = self.placing.run.step(self.memory(), key);
        let is_left_out = step != Step::Other && self.leaves_out(key);
        let hash = match step == Step::Beside && is_left_out {
            true => 0,
            false => hash_of(key),
        };
        let inserted = if step == Step::Beside {
            // The neighbour's place in the tree was gone to a moment ago; that in the directory of a key that was never there is in no cache.
            if !is_left_out {
                table.prefetch(hash);
            }
            self.settle_key(key);
            self.make_room(key, room_bytes);
            self.insert_beside_run(key, new)?
        } else if let Some(entry) = self.buffer.find_in(table, key, hash) {
            return Ok(entry.reference());
        } else if step == Step::Other
            && let Some(entry) = self.insert_waiting(key, room_bytes)?
        {
            self.placing.run.inserted(self.memory(), step, entry, 0);
            self.add_to_directory(hash, entry);
            return Ok(entry);
        } else {
            self.make_room(key, room_bytes);
            None
        };
        let entry = match inserted {
            Some(entry) => entry,
            None => {
                let before = self.entries();
                let is_beside = step == Step::Beside;
                let entry = self.find_or_insert_in_tree(key, new, self.top(), is_beside)?;
                if self.entries() == before {
                    return Ok(entry);
                }
                entry
            }
        };
        let parent = self.placing.parent;
        self.placing
            .run
            .inserted(self.memory(), step, entry, parent);
        if is_left_out {
            self.leave_out(entry);
        } else {
            self.add_to_directory(hash, entry);
        }
        Ok(entry)
    }

    /// Whether a key of the run, if it is new, does without a place in the directory.
    #[inline(always)]
    fn leaves_out(&self, key: &[u8]) -> bool {
        let last = &self.buffer.written.sequence_last;
        self.placing.run.is_long(self.memory())
            && self
                .buffer
                .directory_entries()
                .max(self.buffer.entries_expected)
                >= directory::SEQUENCE_FROM
            && self.buffer.sequence.takes(self.memory(), last, key)
    }

    #[inline(always)]
    fn leave_out(&self, entry: EntryRef) {
        let written = &self.buffer.written;
        let last = &written.sequence_last;
        self.buffer.sequence.append(self.memory(), last, entry);
        let entries = written.sequence_entries.load(Ordering::Relaxed) + 1;
        written.sequence_entries.store(entries, Ordering::Relaxed);
    }

    #[inline]
    fn add_to_directory(&mut self, hash: u32, entry: EntryRef) {
        let Some(table) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        if table.is_too_small(self.buffer.directory_entries(), entry) {
            self.grow_directory(hash, entry);
        } else {
            table.insert(hash, entry);
        }
    }

    fn entries(&self) -> u64 {
        self.buffer.written.entries.load(Ordering::Relaxed)
    }

    /// An empty table; `None` if there is no room.
    fn claim_table(&self, lines: u64) -> Option<Table<'_>> {
        let bytes = directory::table_bytes(lines);
        let chunk = self.buffer.arena().claim(bytes, bytes).ok()?;
        let taken = self.buffer.written.bytes.load(Ordering::Relaxed) + bytes;
        self.buffer.written.bytes.store(taken, Ordering::Relaxed);
        let at = chunk.start as usize;
        Some(Table::create(self.memory(), at, lines))
    }

    #[cold]
    fn build_directory(&self) {
        // However many there were in a buffer that was larger.
        let most = self.buffer.arena().bytes_max() / ADDRESS_BYTES_PER_ENTRY;
        let expected = self.buffer.entries_expected.min(most);
        let lines = directory::lines_for(self.entries().max(expected));
        let Some(table) = self.claim_table(lines) else {
            return;
        };
        let mut cursor = self.buffer.cursor();
        let mut more = cursor.first();
        while more {
            if let Some(entry) = cursor.entry() {
                table.insert(hash_of(cursor.key()), entry);
            }
            more = cursor.next();
        }
        self.buffer.directory.publish(table);
    }

    /// A table with a new entry, in the place of one that has no room for it.
    #[cold]
    fn grow_directory(&mut self, hash: u32, entry: EntryRef) {
        let Some(old) = self.buffer.directory.table(self.memory()) else {
            return;
        };
        match self.claim_table(old.lines_after(self.buffer.directory_entries())) {
            Some(table) => {
                table.insert_all(old);
                table.insert(hash, entry);
                self.buffer.directory.publish(table);
            }
            None => {
                // Nothing else finds them.
                self.settle();
                self.buffer.directory.give_up();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::entry::Entry;
    use super::super::placing::WAITING_MAX;
    use super::*;
    use crate::buffer::{Arena, BufferWriter, KEY_BYTES_MAX, KeyspaceBuffer, Kind};
    use crate::sync::Arc;
    use std::collections::BTreeMap;

    /// Puts keys, and checks that each has one entry, in one place: in the directory, or in what was left out of it.
    struct Checked {
        buffer: Arc<KeyspaceBuffer>,
        writer: BufferWriter,
        entries: BTreeMap<Vec<u8>, EntryRef>,
    }

    impl Checked {
        fn new() -> Checked {
            let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(4 << 20).unwrap()));
            Checked {
                writer: buffer.writer().unwrap(),
                buffer,
                entries: BTreeMap::new(),
            }
        }

        fn put(&mut self, key: &[u8]) {
            let entry = self.writer.entry(key).unwrap();
            assert_eq!(*self.entries.entry(key.to_vec()).or_insert(entry), entry);
        }

        /// Returns how many were left out.
        fn check(&mut self) -> u64 {
            self.writer.settle();
            let buffer = &self.buffer;
            assert_eq!(buffer.stats().entries, self.entries.len() as u64);
            let table = buffer.directory.table(buffer.memory());
            let mut left_out = 0;
            for (key, &entry) in &self.entries {
                assert_eq!(self.writer.find_entry(key), Some(entry));
                let places = table.iter().flat_map(|it| it.candidates(hash_of(key)));
                match places.filter(|&place| place == entry.0).count() {
                    0 => left_out += 1,
                    places => assert_eq!(places, 1),
                }
                let above = [key, &[0][..]].concat();
                let found = self.entries.get(&above).copied();
                assert_eq!(self.writer.find_entry(&above), found);
                let in_tree = |key: &[u8]| buffer.find_in_tree(key).map(Entry::reference);
                assert_eq!((in_tree(key), in_tree(&above)), (Some(entry), found));
            }
            let (mut cursor, mut back) = (buffer.cursor(), buffer.cursor());
            let (mut more, mut less) = (cursor.first(), back.last());
            for (key, &entry) in &self.entries {
                assert!(more && cursor.key() == key && cursor.entry() == Some(entry));
                more = cursor.next();
            }
            for (key, &entry) in self.entries.iter().rev() {
                assert!(less && back.key() == key && back.entry() == Some(entry));
                less = back.prev();
            }
            assert!(!more && !less);
            if table.is_some() {
                let in_directory = self.entries.len() as u64 - left_out;
                assert_eq!(buffer.directory_entries(), in_directory);
            }
            left_out
        }
    }

    fn random_key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    #[test]
    fn new_keys_wait_are_found_and_come_into_the_tree_together() {
        let mut checked = Checked::new();
        let mut most = 0;
        for number in 0..2000 {
            let key = random_key(number);
            checked.put(&key);
            let waiting = checked.writer.inserter().placing.waiting();
            most = most.max(waiting);
            let buffer = checked.buffer.clone();
            assert_eq!(buffer.find_in_tree(&key).is_none(), waiting > 0);
            assert!(checked.writer.find_entry(&key).is_some());
            match number % 97 {
                // Keys that are there make nobody wait.
                0 => checked.put(&random_key(number / 2)),
                // Who wants them in order has them all.
                1 => {
                    let mut cursor = checked.writer.cursor();
                    let mut count = usize::from(cursor.first());
                    while cursor.next() {
                        count += 1;
                    }
                    assert_eq!(count, checked.entries.len());
                    assert!(checked.writer.inserter().placing.is_settled());
                }
                _ => {}
            }
        }
        assert_eq!(most, WAITING_MAX);
        checked.check();
    }

    /// A key that is not the first of a run, as it is below the last one, waits; then a lesser one begins a run, in which it is the next.
    #[test]
    fn a_run_comes_upon_keys_that_wait() {
        let mut checked = Checked::new();
        let mut randoms = (0..).map(random_key);
        for number in (0..40_000_u32).rev().step_by(100) {
            for key in randoms.by_ref().take(number as usize % 23) {
                checked.put(&key);
            }
            checked.put(&(number + 2).to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&number.to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&(number + 2).to_be_bytes());
        }
        checked.check();
    }

    /// Memory ends with a key, with a version, or with a table, while others wait: nothing is lost that was said to be there.
    #[test]
    fn what_waits_when_memory_ends_has_its_place() {
        for value_bytes in (0..400).step_by(16) {
            let reserve = (64 << 10) + 512 * value_bytes;
            let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(reserve).unwrap()));
            let mut checked = Checked {
                writer: buffer.writer().unwrap(),
                buffer,
                entries: BTreeMap::new(),
            };
            let value = vec![7; value_bytes];
            let (mut failures, mut gave_up) = (0, false);
            for number in 0.. {
                let key = random_key(number);
                let floor = checked.writer.watermark();
                match checked.writer.put(&key, Kind::Value, &value, floor) {
                    Ok((entry, _)) => drop(checked.entries.insert(key.to_vec(), entry)),
                    // The entry may be there without a version.
                    Err(_) => {
                        failures += 1;
                        if let Some(entry) = checked.writer.find_entry(&key) {
                            checked.entries.insert(key.to_vec(), entry);
                        }
                    }
                }
                let memory = checked.buffer.memory();
                gave_up |= number > 100 && checked.buffer.directory.table(memory).is_none();
                if failures == 20 {
                    break;
                }
            }
            checked.check();
            let buffer = checked.buffer.clone();
            drop(checked);
            assert!(buffer.writer().is_some(), "{gave_up}");
        }
    }

    #[test]
    fn a_writer_that_goes_leaves_no_key_without_a_place() {
        let mut checked = Checked::new();
        for number in 0..1001 {
            checked.put(&random_key(number));
            if number % 10 == 3 {
                let Checked {
                    buffer,
                    writer,
                    entries,
                } = checked;
                drop(writer);
                for key in entries.keys() {
                    assert!(buffer.find_in_tree(key).is_some());
                }
                checked = Checked {
                    writer: buffer.writer().unwrap(),
                    buffer,
                    entries,
                };
            }
        }
        checked.check();
    }

    #[test]
    fn a_sequence_has_every_key_once() {
        let mut checked = Checked::new();
        (0..1000u32)
            .step_by(4)
            .for_each(|n| checked.put(&n.to_be_bytes()));
        assert!(checked.check() > 200);
        for number in (1..1000u32).step_by(4) {
            checked.put(&number.to_be_bytes());
            checked.put(&(number + 1).to_be_bytes());
            checked.put(&(number + 3).to_be_bytes());
        }
        (500..3000u32).for_each(|n| checked.put(&n.to_be_bytes()));
        assert!(checked.check() > 2000);
    }

    /// Keys that end where others go on, with zeros behind; random ones of few letters; words over one stem; keys as long as may be.
    #[test]
    fn buckets_have_every_key_once_whatever_keys_have_in_common() {
        let random = |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        for seed in 1..40u64 {
            let mut checked = Checked::new();
            let letters = 2 + random(seed) % 5;
            for number in 0..1500u64 {
                let mut word = random(seed << 32 | number);
                let mut key = match word % 4 {
                    0 => b"a stem in common ".to_vec(),
                    1 => vec![0; (word >> 60) as usize],
                    _ => Vec::new(),
                };
                for _ in 0..(word >> 8) % 12 {
                    word = random(word);
                    key.push([0, b'a', 1, 0xff, b'b', b'c', b'd'][(word % letters) as usize]);
                }
                checked.put(&key);
                if number % 500 == 0 {
                    key.resize(KEY_BYTES_MAX, number as u8);
                    checked.put(&key);
                    *key.last_mut().unwrap() ^= 1;
                    checked.put(&key);
                }
            }
            checked.check();
        }
    }

    #[test]
    fn decimal_numbers_are_found_and_have_their_places() {
        let mut checked = Checked::new();
        for number in 0..5000 {
            checked.put(format!("user:{number:09}").as_bytes());
        }
        assert!(checked.check() < 50, "they are not dense");
    }

    /// A log among accounts that are new as well, a second log, and keys that others are prefixes of.
    #[test]
    fn a_sequence_among_others_is_left_out() {
        let mut checked = Checked::new();
        for number in 0..3000u64 {
            checked.put(&[b"log", &number.to_be_bytes()[..]].concat());
            checked.put(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            if number % 3 == 0 {
                checked.put(&[b"lot", &number.to_be_bytes()[..]].concat());
                checked.put(&[b"log", &number.to_be_bytes()[..], b"x"].concat());
            }
            if number > 2500 {
                checked.put(&[b"log", &(2 * number).to_be_bytes()[..]].concat());
            }
            if number % 7 == 0 {
                checked.put(&vec![7; number as usize / 50]);
            }
        }
        assert!(checked.check() > 1000);
    }
}
