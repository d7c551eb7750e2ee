//! The write buffer against an oracle: a map of keys to versions plus a list of range deletions.
//!
//! Random transactions (nested levels, aborts, range deletions) run against both; afterwards every key and every walk must agree
//! at every commit sequence number from the one on that the writer was told that all readers see, and the writer's own view must agree in the
//! middle of a transaction.

use proptest::prelude::*;
use psitri::buffer::{
    Arena, BufferError, BufferWriter, CSN_UNCOMMITTED, EntryRef, Found, KEY_BYTES_MAX,
    KeyspaceBuffer, Kind, LARGE_BYTES, TombstoneRef, VersionRef, Watermark,
};
use std::collections::BTreeMap;
use std::sync::Arc;

fn buffer() -> Arc<KeyspaceBuffer> {
    KeyspaceBuffer::new(Arc::new(Arena::new(16 << 20).unwrap()))
}

/// One point or range write of the oracle: (sequence in its transaction, csn, value).
#[derive(Debug, Clone)]
enum ModelWrite {
    Point(Vec<u8>, Option<Vec<u8>>),
    Range(Vec<u8>, Option<Vec<u8>>),
}

#[derive(Debug, Clone, Default)]
struct Model {
    /// In order of time; uncommitted ones at the end with `CSN_UNCOMMITTED`.
    log: Vec<(u64, ModelWrite)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Absent,
    Deleted,
    Value(Vec<u8>),
}

impl Model {
    fn get(&self, key: &[u8], csn: u64) -> Seen {
        let mut seen = Seen::Absent;
        for (at, write) in &self.log {
            if *at > csn {
                continue;
            }
            match write {
                ModelWrite::Point(k, value) if k == key => {
                    seen = value.clone().map_or(Seen::Deleted, Seen::Value);
                }
                ModelWrite::Range(lo, hi)
                    if &lo[..] <= key && hi.as_ref().is_none_or(|hi| key < &hi[..]) =>
                {
                    seen = Seen::Deleted;
                }
                _ => {}
            }
        }
        seen
    }

    /// Keys with a point version that is visible at all, with what they are.
    fn walk(&self, csn: u64) -> Vec<(Vec<u8>, Seen)> {
        let mut keys = BTreeMap::new();
        for (at, write) in &self.log {
            if let ModelWrite::Point(key, _) = write
                && *at <= csn
            {
                keys.insert(key.clone(), self.get(key, csn));
            }
        }
        keys.into_iter().collect()
    }
}

fn seen(found: Found<'_>) -> Seen {
    match found {
        Found::Absent => Seen::Absent,
        Found::Deleted => Seen::Deleted,
        Found::Value(value) => Seen::Value(value.to_vec()),
        Found::Large(pointer) => Seen::Value(pointer.to_vec()),
    }
}

enum Touched {
    Point(EntryRef, VersionRef),
    Range(TombstoneRef),
}

/// A transaction as the engine runs it.
struct Transaction<'w> {
    writer: &'w mut BufferWriter,
    touched: Vec<Touched>,
    levels: Vec<(Watermark, usize, usize)>,
}

impl<'w> Transaction<'w> {
    fn begin(writer: &'w mut BufferWriter, model: &Model) -> Self {
        let levels = vec![(Watermark::default(), 0, model.log.len())];
        Transaction {
            writer,
            touched: Vec::new(),
            levels,
        }
    }

    fn floor(&self) -> Watermark {
        self.levels.last().unwrap().0
    }

    fn write(&mut self, entry: EntryRef, kind: Kind, payload: &[u8]) {
        let outcome = self
            .writer
            .write(entry, kind, payload, self.floor())
            .unwrap();
        if outcome.pushed {
            self.touched.push(Touched::Point(entry, outcome.version));
        }
    }

    fn remove_range(&mut self, lo: &[u8], hi: Option<&[u8]>) {
        let mut own = Vec::new();
        assert!(
            self.writer
                .uncommitted_in_range(lo, hi, usize::MAX, &mut own)
        );
        for entry in own {
            self.write(entry, Kind::Tombstone, &[]);
        }
        let tombstone = self.writer.add_range_tombstone(lo, hi);
        self.touched.push(Touched::Range(tombstone));
    }

    fn abort_level(&mut self, model: &mut Model) {
        let (_, touched_len, model_len) = *self.levels.last().unwrap();
        for touched in self.touched.drain(touched_len..).rev() {
            match touched {
                Touched::Point(entry, version) => self.writer.undo(entry, version),
                Touched::Range(tombstone) => self.writer.undo_range_tombstone(&tombstone),
            }
        }
        model.log.truncate(model_len);
    }

    fn commit(self, model: &mut Model, csn: u64) {
        for touched in &self.touched {
            match touched {
                Touched::Point(_, version) => self.writer.stamp(*version, csn),
                Touched::Range(tombstone) => self.writer.stamp_range_tombstone(tombstone, csn),
            }
        }
        for (at, _) in model
            .log
            .iter_mut()
            .filter(|(at, _)| *at == CSN_UNCOMMITTED)
        {
            *at = csn;
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    PutLarge(Vec<u8>, [u8; LARGE_BYTES]),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
    InsertOnly(Vec<u8>),
    Nest,
    NestCommit,
    NestAbort,
    Commit,
    Abort,
    /// All readers see the commit at this share of those there are.
    Seen(u8),
    /// A commit, the last of this writer.
    Successor,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Few letters: prefixes of each other, the empty key.
        4 => prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0x80), Just(0xff)], 0..6),
        // All bytes at one place: the wide node kinds.
        3 => any::<u8>().prop_map(|byte| vec![b'w', b'i', b'd', b'e', byte]),
        // Few: overwritten again and again.
        4 => (0u8..4).prop_map(|byte| vec![b'h', byte]),
        2 => (any::<u8>(), 0u8..3).prop_map(|(byte, tail)| vec![byte, tail]),
        1 => (0usize..40, any::<u8>()).prop_map(|(len, byte)| {
            let mut key = vec![b'l'; len];
            key.push(byte);
            key
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (key(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(k, v)| Op::Put(k, v)),
        3 => (key(), any::<[u8; LARGE_BYTES]>()).prop_map(|(k, v)| Op::PutLarge(k, v)),
        5 => key().prop_map(Op::Delete),
        1 => (key(), prop::option::of(key())).prop_map(|(lo, hi)| Op::DeleteRange(lo, hi)),
        1 => key().prop_map(Op::InsertOnly),
        2 => Just(Op::Nest),
        1 => Just(Op::NestCommit),
        1 => Just(Op::NestAbort),
        3 => Just(Op::Commit),
        1 => Just(Op::Abort),
        2 => prop_oneof![any::<u8>(), Just(u8::MAX)].prop_map(Op::Seen),
        1 => Just(Op::Successor),
    ]
}

fn check(buffer: &KeyspaceBuffer, model: &Model, probes: &[Vec<u8>], csn: u64) {
    for key in probes {
        assert_eq!(
            seen(buffer.get(key, csn)),
            model.get(key, csn),
            "{key:?} at {csn}"
        );
    }
    let expected = model.walk(csn);
    let mut cursor = buffer.cursor();
    let mut forward = Vec::new();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut more = cursor.first();
    while more {
        keys.push(cursor.key().to_vec());
        let found = seen(cursor.resolve(csn));
        if model
            .log
            .iter()
            .any(|(at, w)| *at <= csn && matches!(w, ModelWrite::Point(k, _) if k == cursor.key()))
        {
            forward.push((cursor.key().to_vec(), found));
        }
        more = cursor.next();
    }
    assert!(!cursor.is_valid());
    assert_eq!(forward, expected);
    assert!(keys.is_sorted_by(|a, b| a < b));
    let mut backward = Vec::new();
    let mut more = cursor.last();
    while more {
        backward.push(cursor.key().to_vec());
        more = cursor.prev();
    }
    backward.reverse();
    assert_eq!(backward, keys);
    for probe in probes {
        let at = keys.partition_point(|key| key < probe);
        let after = keys.partition_point(|key| key <= probe);
        let here = |found: bool, cursor: &psitri::buffer::BufferCursor<'_>| {
            found.then(|| cursor.key().to_vec())
        };
        let found = cursor.seek_ge(probe);
        assert_eq!(here(found, &cursor).as_ref(), keys.get(at), "ge {probe:?}");
        let found = found && cursor.next();
        assert_eq!(here(found, &cursor).as_ref(), keys.get(at + 1));
        let found = cursor.seek_gt(probe);
        assert_eq!(
            here(found, &cursor).as_ref(),
            keys.get(after),
            "gt {probe:?}"
        );
        let found = cursor.seek_le(probe);
        let le = after.checked_sub(1);
        assert_eq!(
            here(found, &cursor).as_ref(),
            le.map(|i| &keys[i]),
            "le {probe:?}"
        );
        let found = found && cursor.prev();
        let before = after.checked_sub(2);
        assert_eq!(here(found, &cursor).as_ref(), before.map(|i| &keys[i]));
        let found = cursor.seek_lt(probe);
        let lt = at.checked_sub(1);
        assert_eq!(
            here(found, &cursor).as_ref(),
            lt.map(|i| &keys[i]),
            "lt {probe:?}"
        );
    }
}

fn check_own(writer: &BufferWriter, model: &Model, probes: &[Vec<u8>]) {
    for key in probes {
        let expected = model.get(key, CSN_UNCOMMITTED);
        assert_eq!(seen(writer.get(key)), expected, "own {key:?}");
        if let Some(entry) = writer.find_entry(key) {
            assert_eq!(seen(writer.resolve(entry)), expected);
            assert_eq!(writer.key(entry), key);
        }
    }
}

/// Puts the writes among the operations back as a log has them, each a commit. Returns the last one.
fn replay(buffer: &Arc<KeyspaceBuffer>, ops: &[Op], model: &mut Model) -> u64 {
    // SAFETY: nobody looks before it is done.
    let mut writer = unsafe { buffer.writer().unwrap().for_replay() };
    let mut csn = 0;
    for op in ops {
        let (key, kind, payload) = match op {
            Op::Put(key, value) => (key, Kind::Value, &value[..]),
            Op::PutLarge(key, pointer) => (key, Kind::Large, &pointer[..]),
            Op::Delete(key) => (key, Kind::Tombstone, &[][..]),
            Op::DeleteRange(lo, hi) => {
                csn += 1;
                let tombstone = writer.put_back_range_tombstone(lo, hi.as_deref());
                writer.stamp_range_tombstone(&tombstone, csn);
                let write = ModelWrite::Range(lo.clone(), hi.clone());
                model.log.push((csn, write));
                continue;
            }
            _ => continue,
        };
        csn += 1;
        let floor = writer.watermark();
        let (_, outcome) = writer.put(key, kind, payload, floor).unwrap();
        writer.stamp(outcome.version, csn);
        let value = (kind != Kind::Tombstone).then(|| payload.to_vec());
        model.log.push((csn, ModelWrite::Point(key.clone(), value)));
    }
    csn
}

/// `replayed`: what the buffer has before others write to it and look.
fn run(replayed: &[Op], ops: &[Op], probes: &[Vec<u8>]) {
    let buffer = buffer();
    let mut model = Model::default();
    let mut csn = replay(&buffer, replayed, &mut model);
    let mut csn_seen = csn;
    let mut writer = buffer.writer().unwrap();
    assert!(buffer.writer().is_none());
    // SAFETY: nothing is looked at before `csn_seen`.
    unsafe { writer.set_seen(csn_seen) };
    let mut transaction = Transaction::begin(&mut writer, &model);
    for op in ops {
        let uncommitted = |write| (CSN_UNCOMMITTED, write);
        match op {
            Op::Put(key, value) => {
                let floor = transaction.floor();
                let (entry, outcome) = transaction
                    .writer
                    .put(key, Kind::Value, value, floor)
                    .unwrap();
                if outcome.pushed {
                    transaction
                        .touched
                        .push(Touched::Point(entry, outcome.version));
                }
                assert_eq!(transaction.writer.payload(outcome.version), value);
                assert_eq!(transaction.writer.kind(outcome.version), Kind::Value);
                model.log.push(uncommitted(ModelWrite::Point(
                    key.clone(),
                    Some(value.clone()),
                )));
            }
            Op::PutLarge(key, pointer) => {
                let entry = transaction.writer.entry(key).unwrap();
                transaction.write(entry, Kind::Large, pointer);
                model.log.push(uncommitted(ModelWrite::Point(
                    key.clone(),
                    Some(pointer.to_vec()),
                )));
            }
            Op::Delete(key) => {
                let entry = transaction.writer.entry(key).unwrap();
                transaction.write(entry, Kind::Tombstone, &[]);
                model
                    .log
                    .push(uncommitted(ModelWrite::Point(key.clone(), None)));
            }
            Op::DeleteRange(lo, hi) => {
                transaction.remove_range(lo, hi.as_deref());
                model
                    .log
                    .push(uncommitted(ModelWrite::Range(lo.clone(), hi.clone())));
            }
            Op::InsertOnly(key) => {
                transaction.writer.entry(key).unwrap();
            }
            Op::Nest => {
                let level = (
                    transaction.writer.watermark(),
                    transaction.touched.len(),
                    model.log.len(),
                );
                transaction.levels.push(level);
            }
            Op::NestCommit if transaction.levels.len() > 1 => {
                transaction.levels.pop();
            }
            Op::NestAbort if transaction.levels.len() > 1 => {
                transaction.abort_level(&mut model);
                transaction.levels.pop();
            }
            Op::NestCommit | Op::NestAbort => {}
            Op::Commit => {
                csn += 1;
                transaction.commit(&mut model, csn);
                transaction = Transaction::begin(&mut writer, &model);
            }
            Op::Seen(share) => {
                for at in csn_seen..=csn {
                    check(&buffer, &model, probes, at);
                }
                csn_seen = csn_seen.max(csn * u64::from(*share) / u64::from(u8::MAX));
                // SAFETY: nothing is looked at before `csn_seen` any more.
                unsafe { transaction.writer.set_seen(csn_seen) };
            }
            Op::Successor => {
                csn += 1;
                transaction.commit(&mut model, csn);
                drop(writer);
                writer = buffer.writer().unwrap();
                // SAFETY: as above.
                unsafe { writer.set_seen(csn_seen) };
                transaction = Transaction::begin(&mut writer, &model);
            }
            Op::Abort => {
                transaction.levels.truncate(1);
                transaction.abort_level(&mut model);
                transaction = Transaction::begin(&mut writer, &model);
            }
        }
        if probes.len() < 40 {
            check_own(transaction.writer, &model, probes);
        }
    }
    check_own(transaction.writer, &model, probes);
    for at in csn_seen..=csn + 1 {
        check(&buffer, &model, probes, at);
    }
    assert_eq!(
        buffer.stats().csn_last,
        model
            .log
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| *at != CSN_UNCOMMITTED)
            .max()
            .unwrap_or(0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_the_oracle(
        replayed in prop_oneof![Just(Vec::new()), prop::collection::vec(op(), 0..80)],
        ops in prop::collection::vec(op(), 0..120),
        mut probes in prop::collection::vec(key(), 0..20),
    ) {
        for op in replayed.iter().chain(&ops) {
            if let Op::Put(key, _) | Op::PutLarge(key, _) | Op::Delete(key) | Op::InsertOnly(key) = op {
                probes.push(key.clone());
            }
        }
        run(&replayed, &ops, &probes);
    }
}

#[test]
fn keys_that_are_prefixes_of_each_other_need_no_stack() {
    let buffer = buffer();
    let mut writer = buffer.writer().unwrap();
    let floor = writer.watermark();
    let mut keys = Vec::new();
    for len in (0..3000).chain([KEY_BYTES_MAX - 1, KEY_BYTES_MAX]) {
        let key = vec![b'a'; len];
        writer.put(&key, Kind::Value, &[1], floor).unwrap();
        keys.push(key);
    }
    for key in &keys {
        assert_eq!(writer.get(key), Found::Value(&[1]));
    }
    writer.settle();
    let mut cursor = buffer.cursor();
    let mut more = cursor.first();
    for key in &keys {
        assert!(more);
        assert_eq!(cursor.key(), &key[..]);
        more = cursor.next();
    }
    assert!(!more);
    let long = vec![b'a'; KEY_BYTES_MAX + 1];
    assert!(matches!(
        writer.entry(&long),
        Err(BufferError::KeyTooLong { bytes: 65_537 })
    ));
    assert_eq!(buffer.get(&long, 9), Found::Absent);
    assert!(cursor.seek_le(&long));
    assert_eq!(cursor.key().len(), KEY_BYTES_MAX);
}

#[test]
fn a_full_arena_is_an_error_that_changes_nothing() {
    let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(1 << 16).unwrap()));
    let mut writer = buffer.writer().unwrap();
    let floor = writer.watermark();
    let mut stored: Vec<Vec<u8>> = Vec::new();
    for i in 0u64.. {
        let key = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .to_be_bytes()
            .to_vec();
        match writer.put(&key, Kind::Value, &key, floor) {
            Ok(_) => stored.push(key),
            Err(BufferError::Full) => {
                assert_eq!(writer.get(&key), Found::Absent);
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(stored.len() > 500);
    for key in &stored {
        assert_eq!(writer.get(key), Found::Value(key));
    }
    // Overwriting in place needs no memory.
    assert!(
        !writer
            .put(&stored[0], Kind::Value, b"x", floor)
            .unwrap()
            .1
            .pushed
    );
}

#[test]
fn large_pointers_and_wrong_payloads() {
    let buffer = buffer();
    let mut writer = buffer.writer().unwrap();
    let floor = writer.watermark();
    let (_, outcome) = writer.put(b"k", Kind::Large, &[7; 24], floor).unwrap();
    writer.stamp(outcome.version, 1);
    assert_eq!(buffer.get(b"k", 1), Found::Large(&[7; 24]));
    assert!(writer.put(b"k", Kind::Large, &[7; 23], floor).is_err());
    assert!(writer.put(b"k", Kind::Tombstone, &[7], floor).is_err());
    assert_eq!(buffer.get(b"k", u64::MAX), Found::Large(&[7; 24]));
}

#[test]
fn readers_never_see_uncommitted_versions() {
    let buffer = buffer();
    let mut writer = buffer.writer().unwrap();
    let floor = writer.watermark();
    writer.put(b"k", Kind::Value, b"v", floor).unwrap();
    assert_eq!(buffer.get(b"k", CSN_UNCOMMITTED), Found::Absent);
    let mut cursor = buffer.cursor();
    assert!(cursor.first());
    assert_eq!(cursor.resolve(CSN_UNCOMMITTED), Found::Absent);
    assert_eq!(writer.get(b"k"), Found::Value(b"v"));
}

/// What nobody reads any more is overwritten: no memory is taken, but the buffer fills, as the log does. What somebody reads stays.
#[test]
fn values_that_are_overwritten_take_no_memory_without_readers() {
    const KEYS: u64 = 100;
    const ROUNDS: u64 = 1000;
    let buffer = buffer();
    let mut writer = buffer.writer().unwrap();
    let round = |writer: &mut BufferWriter, csn: u64, readers_see: u64| {
        // SAFETY: nothing is looked at before `readers_see`.
        unsafe { writer.set_seen(readers_see) };
        let mut pushed = Vec::new();
        for number in 0..KEYS {
            let value = (csn + number).to_le_bytes();
            let key = number.to_be_bytes();
            let floor = Watermark::default();
            let (_, outcome) = writer.put(&key, Kind::Value, &value, floor).unwrap();
            assert!(outcome.pushed);
            pushed.push(outcome.version);
        }
        for version in pushed {
            writer.stamp(version, csn);
        }
    };
    let check = |csn: u64| {
        for number in 0..KEYS {
            let value = (csn + number).to_le_bytes();
            let found = buffer.get(&number.to_be_bytes(), csn);
            assert_eq!(found, Found::Value(&value));
        }
    };
    round(&mut writer, 1, 0);
    let (first, used) = (buffer.stats().bytes, buffer.arena().bytes_used());
    for csn in 2..ROUNDS {
        round(&mut writer, csn, csn - 1);
        check(csn);
        // A reader of the commit before.
        check(csn - 1);
    }
    assert_eq!(buffer.stats().bytes, first);
    let version_bytes = 16 + 8;
    let charged = buffer.arena().bytes_used() - used;
    // The second version is in the room; the last kilobyte may not be charged yet.
    let reused = (ROUNDS - 3) * KEYS * version_bytes;
    assert!((reused - 1024..=reused).contains(&charged), "{charged}");
    // A reader stays at commit `ROUNDS - 1`.
    for csn in ROUNDS..ROUNDS + 100 {
        round(&mut writer, csn, ROUNDS - 1);
        check(csn);
    }
    (ROUNDS - 1..ROUNDS + 100).for_each(check);
    let held = buffer.stats().bytes;
    assert!(held > first + 90 * KEYS * version_bytes, "{held}");
    // It is gone. The versions that were made for it stay, the last two are used again.
    for csn in ROUNDS + 100..2 * ROUNDS {
        round(&mut writer, csn, csn - 1);
        check(csn);
    }
    assert_eq!(buffer.stats().bytes, held);
}

/// A replay writes each version over the one before: the buffer takes the memory of one version a key, and fills as it did for those who wrote the log.
#[test]
fn a_replay_takes_the_memory_of_the_newest_versions() {
    const KEYS: u64 = 100;
    const ROUNDS: u64 = 50;
    let buffer = buffer();
    // SAFETY: nobody looks before it is done.
    let mut writer = unsafe { buffer.writer().unwrap().for_replay() };
    let mut first = (0, 0);
    for csn in 1..=ROUNDS {
        for number in 0..KEYS {
            let floor = writer.watermark();
            let value = (csn + number).to_le_bytes();
            let key = number.to_be_bytes();
            let (_, outcome) = writer.put(&key, Kind::Value, &value, floor).unwrap();
            writer.stamp(outcome.version, csn);
        }
        let taken = (buffer.stats().bytes, buffer.arena().bytes_used());
        match csn {
            1 => first = taken,
            _ => assert_eq!(taken.0, first.0, "round {csn}"),
        }
    }
    let charged = buffer.arena().bytes_used() - first.1;
    let overwritten = (ROUNDS - 1) * KEYS * (16 + 8);
    assert!((overwritten - 1024..=overwritten).contains(&charged));
    // A lock that is taken and released, and values of two sizes: two places each, as those who wrote the log had.
    let mut csn = ROUNDS;
    for payloads in [[&[7; 200][..], &[]], [&[8; 90], &[9; 200]]] {
        let mut taken = Vec::new();
        for round in 0..100 {
            csn += 1;
            let payload = payloads[round % 2];
            let kind = match payload {
                [] => Kind::Tombstone,
                _ => Kind::Value,
            };
            let floor = writer.watermark();
            let (_, outcome) = writer.put(&[0; 8], kind, payload, floor).unwrap();
            writer.stamp(outcome.version, csn);
            taken.push(outcome.version);
        }
        taken.sort_unstable();
        taken.dedup();
        assert!(taken.len() <= 3, "{taken:?}");
    }
    drop(writer);
    assert_eq!(buffer.get(&[0; 8], csn), Found::Value(&[9; 200]));
    for number in 1..KEYS {
        let value = (ROUNDS + number).to_le_bytes();
        let found = buffer.get(&number.to_be_bytes(), ROUNDS);
        assert_eq!(found, Found::Value(&value));
    }
}
