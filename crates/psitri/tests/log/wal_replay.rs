//! Story: the log is read back. A torn tail ends it, damage to what was durable is reported, and no bytes make the reader panic.
use proptest::prelude::*;
use psitri::{
    storage::{MemoryStorage, OpenMode, OsStorage, Storage, StorageError, sim::SimStorage},
    wal::{Referred, ReplayEnd, Wal, WalError, WalOptions, WalShared, replay},
};
use std::sync::{Arc, Mutex, OnceLock, Weak};

const SEGMENT_BYTES: u64 = 16 * 1024;
const DATA_OFFSET: u64 = 4096;

fn options() -> WalOptions {
    WalOptions {
        segment_bytes: SEGMENT_BYTES,
        spares_max: 2,
        populate: false,
        store_by_call: false,
        nonce_seed: Some(5),
    }
}

fn memory() -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::with_file_bytes_max(1 << 20))
}

fn payload(csn: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (csn as usize * 13 + i * 3) as u8)
        .collect()
}

type Seen = Vec<(u64, u32, Vec<u8>)>;

fn read(
    storage: &dyn Storage,
    from_lsn: u64,
    durable_lsn: u64,
) -> Result<(Seen, ReplayEnd), WalError> {
    let mut seen = Vec::new();
    let end = replay(storage, from_lsn, durable_lsn, |record| {
        seen.push((record.csn, record.op_count, record.payload.to_vec()));
        Ok(())
    })?;
    Ok((seen, end))
}

fn overwrite(storage: &dyn Storage, name: &str, offset: u64, bytes: &[u8]) {
    storage
        .open(name, OpenMode::ReadWrite)
        .unwrap()
        .write_at(bytes, offset)
        .unwrap();
}

fn bytes_of(storage: &dyn Storage, name: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    storage
        .open(name, OpenMode::Read)
        .unwrap()
        .read_at(&mut bytes, offset)
        .unwrap();
    bytes
}

#[test]
fn records_of_all_sizes_come_back_from_memory_and_disk() {
    let dir = tempfile::tempdir().unwrap();
    let storages: [Arc<dyn Storage>; 2] =
        [memory(), Arc::new(OsStorage::open(dir.path()).unwrap())];
    for storage in storages {
        let mut wal = Wal::create(Arc::clone(&storage), options()).unwrap();
        let capacity = (SEGMENT_BYTES - DATA_OFFSET) as usize;
        let around = (capacity - 64..capacity + 64).step_by(7);
        let sizes: Vec<usize> = [0, 1, 7, 8, 120, 5000, 40_000, 100_000]
            .into_iter()
            .chain(around)
            .collect();
        let mut expected = Vec::new();
        let mut places = Vec::new();
        for (csn, &size) in (1..).zip(&sizes) {
            let payload = payload(csn, size);
            places.push(wal.append(csn, size as u32, &payload).unwrap());
            expected.push((csn, size as u32, payload));
        }
        let (seen, end) = read(&*storage, 0, 0).unwrap();
        assert!(seen == expected);
        assert_eq!(
            (end.end_lsn, end.records),
            (wal.end_lsn(), sizes.len() as u64)
        );
        // From any record boundary.
        for (at, place) in places.iter().enumerate() {
            let (seen, _) = read(&*storage, place.end_lsn, 0).unwrap();
            assert!(seen == expected[at + 1..]);
        }
        drop(wal);
        // And on from there.
        let mut wal = Wal::resume(Arc::clone(&storage), options(), end).unwrap();
        wal.append(1000, 1, b"more").unwrap();
        let (seen, _) = read(&*storage, 0, wal.shared().durable_lsn()).unwrap();
        assert_eq!(seen.len(), sizes.len() + 1);
    }
}

#[test]
fn every_end_of_room_in_a_segment() {
    // The first record leaves 0, 8, 16 ... bytes; records of all small sizes must cross over from there.
    for left in (0..96usize).step_by(8) {
        for size in 0..48usize {
            let storage = memory();
            let mut wal = Wal::create(storage.clone(), options()).unwrap();
            wal.append(
                1,
                1,
                &payload(1, (SEGMENT_BYTES - DATA_OFFSET) as usize - 24 - left),
            )
            .unwrap();
            wal.append(2, 2, &payload(2, size)).unwrap();
            wal.append(3, 3, &payload(3, 5)).unwrap();
            let (seen, end) = read(&*storage, 0, 0).unwrap();
            assert_eq!(seen.len(), 3, "left {left} size {size}");
            assert_eq!(seen[1], (2, 2, payload(2, size)));
            assert_eq!(end.end_lsn, wal.end_lsn());
        }
    }
}

#[test]
fn a_tail_torn_at_any_byte_ends_the_log_before_it() {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    for csn in 1..=3 {
        wal.append(csn, 1, &payload(csn, 50)).unwrap();
    }
    let last = wal.append(4, 1, &payload(4, 117)).unwrap();
    let at = DATA_OFFSET + last.start_lsn;
    let whole = bytes_of(&*storage, "log-00000000", at, 24 + 117);
    for cut in 0..whole.len() {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        if torn == whole {
            continue;
        }
        overwrite(&*storage, "log-00000000", at, &torn);
        let (seen, end) = read(&*storage, 0, 0).unwrap();
        assert_eq!(
            (seen.len(), end.end_lsn),
            (3, last.start_lsn),
            "cut at {cut}"
        );
        // The same bytes are damage when the caller knows that they were durable.
        let error = read(&*storage, 0, last.end_lsn).unwrap_err();
        assert!(
            matches!(error, WalError::Corrupted { offset, .. } if offset == at),
            "{error}"
        );
        // Up to the tail they prove nothing.
        read(&*storage, 0, last.start_lsn).unwrap();
    }
    overwrite(&*storage, "log-00000000", at, &whole);
    assert_eq!(read(&*storage, 0, last.end_lsn).unwrap().0.len(), 4);
}

#[test]
fn a_flush_proves_what_came_before_it() {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    let first = wal.append(1, 1, &payload(1, 100)).unwrap();
    wal.append(2, 1, &payload(2, 100)).unwrap();
    wal.shared().wait_durable(wal.end_lsn()).unwrap();
    wal.append(3, 1, &payload(3, 100)).unwrap();
    drop(wal);
    overwrite(
        &*storage,
        "log-00000000",
        DATA_OFFSET + first.end_lsn + 40,
        b"damage",
    );
    let error = read(&*storage, 0, 0).unwrap_err();
    let place = DATA_OFFSET + first.end_lsn;
    assert!(
        matches!(&error, WalError::Corrupted { file, offset, .. } if file == "log-00000000" && *offset == place),
        "{error}"
    );
}

/// The header of the last segment: without it nothing says that there is more of the log, but the marks that flushes left behind it.
#[test]
fn a_header_that_is_damaged_behind_a_flush_is_reported() {
    const NONCE: std::ops::Range<usize> = 32..40;
    for flushes in [false, true] {
        let storage = memory();
        let mut wal = Wal::create(storage.clone(), options()).unwrap();
        wal.append(1, 1, &payload(1, 100)).unwrap();
        if flushes {
            wal.shared().wait_durable(wal.end_lsn()).unwrap();
        }
        drop(wal);
        let header = bytes_of(&*storage, "log-00000000", 0, 64);
        for byte in (0..64).filter(|byte| !NONCE.contains(byte)) {
            let mut damaged = header.clone();
            damaged[byte] ^= 4;
            overwrite(&*storage, "log-00000000", 0, &damaged);
            match read(&*storage, 0, 0) {
                Ok((seen, _)) => assert!(!flushes && seen.is_empty(), "byte {byte}"),
                Err(WalError::UnsupportedVersion { .. }) => assert!((8..12).contains(&byte)),
                Err(WalError::Corrupted { file, offset, .. }) => {
                    assert_eq!((file.as_str(), offset, flushes), ("log-00000000", 0, true));
                }
                Err(error) => panic!("{error}"),
            }
        }
        overwrite(&*storage, "log-00000000", 0, &header);
        assert_eq!(read(&*storage, 0, 0).unwrap().0.len(), 1);
    }
}

#[test]
fn damage_in_a_full_flushed_segment_is_reported_and_a_missing_one_too() {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    for csn in 1..=100 {
        wal.append(csn, 1, &payload(csn, 500)).unwrap();
    }
    wal.shared().flush_full_segments().unwrap();
    drop(wal);
    let middle = "log-00000001";
    let old = bytes_of(&*storage, middle, 5000, 1);
    overwrite(&*storage, middle, 5000, &[old[0] ^ 1]);
    assert!(matches!(
        read(&*storage, 0, 0),
        Err(WalError::Corrupted { .. })
    ));
    overwrite(&*storage, middle, 5000, &old);
    assert_eq!(read(&*storage, 0, 0).unwrap().0.len(), 100);
    storage.rename("log-00000000", "elsewhere").unwrap();
    assert!(matches!(
        read(&*storage, 0, 0),
        Err(WalError::Corrupted { .. })
    ));
    storage.rename("elsewhere", "log-00000000").unwrap();
    storage.remove(middle).unwrap();
    assert!(matches!(
        read(&*storage, 0, 0),
        Err(WalError::Corrupted { .. })
    ));
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let storage = memory();
    drop(Wal::create(storage.clone(), options()).unwrap());
    overwrite(&*storage, "log-00000000", 8, &4u32.to_le_bytes());
    let error = read(&*storage, 0, 0).unwrap_err();
    assert!(matches!(
        error,
        WalError::UnsupportedVersion {
            found: 4,
            supported: 3,
            ..
        }
    ));
}

#[test]
fn recycled_segments_do_not_show_their_past() {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    let mut kept_from = 0;
    for csn in 1..=1000 {
        wal.append(csn, 1, &payload(7, 500)).unwrap();
        if csn % 100 == 50 {
            kept_from = wal.end_lsn();
            wal.shared().flush(kept_from).unwrap();
            wal.shared().release_below(kept_from).unwrap();
        }
    }
    let shared = wal.shared();
    assert!(storage.list().unwrap().len() <= 8, "{:?}", storage.list());
    assert_eq!(
        storage.list().unwrap().len() as u64 * SEGMENT_BYTES,
        shared.allocated_bytes()
    );
    assert!(shared.retained_bytes() <= 50 * 528 + SEGMENT_BYTES);
    let (seen, end) = read(&*storage, kept_from, kept_from).unwrap();
    let csns: Vec<u64> = seen.iter().map(|record| record.0).collect();
    assert_eq!(csns, (951..=1000).collect::<Vec<_>>());
    assert_eq!(end.end_lsn, wal.end_lsn());
    shared.shrink().unwrap();
    assert_eq!(
        storage.list().unwrap().len() as u64 * SEGMENT_BYTES,
        shared.allocated_bytes()
    );
}

/// The disk may be full when the log is resumed: what was given back of a segment stays given back, whatever the ones behind it hold.
#[test]
fn resuming_takes_no_room_in_segments_that_are_full() {
    let storage = Arc::new(SimStorage::new(1));
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    let first = wal.append(1, 1, &payload(1, 100)).unwrap();
    wal.shared().trim(0).unwrap();
    drop(wal);
    let trimmed = storage.open("log-00000000", OpenMode::Read).unwrap();
    let bytes = trimmed.allocated_bytes().unwrap();
    assert!(bytes < SEGMENT_BYTES);

    let (_, end) = read(&*storage, 0, 0).unwrap();
    let mut wal = Wal::resume(storage.clone(), options(), end).unwrap();
    wal.append(2, 1, &payload(2, 6000)).unwrap();
    drop(wal);
    for from_lsn in [0, first.end_lsn - 24] {
        let (seen, end) = read(&*storage, 0, from_lsn).unwrap();
        assert_eq!(seen.len(), 2);
        Wal::resume(storage.clone(), options(), end).unwrap();
        assert_eq!(trimmed.allocated_bytes().unwrap(), bytes);
    }
}

#[test]
fn maintenance_comes_to_rest() {
    let storage = memory();
    let mut wal = Wal::create(
        storage,
        WalOptions {
            populate: true,
            ..options()
        },
    )
    .unwrap();
    for csn in 1..=200 {
        wal.append(csn, 1, &payload(csn, 500)).unwrap();
    }
    let shared = wal.shared();
    assert!(shared.needs_spare());
    shared.flush_full_segments().unwrap();
    while shared.prepare_spare(true).unwrap() {}
    assert!(!shared.needs_spare());
}

/// Spares that are written and flushed first are not made while those who wait for the disk have room.
#[test]
fn spares_for_flushes_are_made_when_they_are_needed() {
    let mut wal = Wal::create(memory(), options()).unwrap();
    let shared = Arc::clone(wal.shared());
    let mut csn = 0;
    let mut fill = |wal: &mut Wal, parts: u64| {
        let room = SEGMENT_BYTES - DATA_OFFSET;
        for _ in 0..parts {
            csn += 1;
            wal.append(csn, 1, &payload(csn, (room / 16) as usize - 24))
                .unwrap();
        }
    };
    assert!(shared.is_at_leisure(true) && shared.is_at_leisure(false));
    // The first segment has the size of the others here.
    fill(&mut wal, 7);
    assert!(shared.is_at_leisure(true) && !shared.is_at_leisure(false));
    fill(&mut wal, 1);
    assert!(!shared.is_at_leisure(true) && !shared.is_at_leisure(false));
    // In another segment, without a spare, with one, and past its half.
    fill(&mut wal, 9);
    assert_eq!(shared.live_segments(), 2);
    assert!(!shared.is_at_leisure(true) && !shared.is_at_leisure(false));
    assert!(shared.prepare_spare(true).unwrap());
    assert_eq!(shared.spare_segments(), 1);
    assert!(shared.is_at_leisure(true) && !shared.is_at_leisure(false));
    fill(&mut wal, 7);
    assert!(!shared.is_at_leisure(true) && !shared.is_at_leisure(false));
}

/// Zeros ahead of their use would cost large flushes as much of the drive as the records do.
#[test]
fn spares_for_large_flushes_are_not_written_ahead() {
    let storage = SimStorage::new(1);
    let options = WalOptions {
        segment_bytes: 64 * SEGMENT_BYTES,
        ..options()
    };
    let mut wal = Wal::create(Arc::new(storage.clone()), options).unwrap();
    let shared = Arc::clone(wal.shared());
    let mut csn = 0;
    let mut calls_for_a_spare = |flushes: u64, bytes: usize| {
        for _ in 0..flushes {
            csn += 1;
            wal.append(csn, 1, &payload(csn, bytes)).unwrap();
            shared.wait_durable(shared.appended_lsn()).unwrap();
        }
        let before = storage.calls();
        assert!(shared.prepare_spare(true).unwrap());
        storage.calls() - before
    };
    let pages = 64 * SEGMENT_BYTES / 4096;
    assert!(calls_for_a_spare(10, 200) >= pages);
    assert!(calls_for_a_spare(10, 48 << 10) < pages);
    assert!(calls_for_a_spare(30, 200) >= pages);
}

/// Asks, in the midst of a flush, whether spares are needed.
#[derive(Debug, Default)]
struct AskedInAFlush {
    shared: OnceLock<Weak<WalShared>>,
    answers: Mutex<Vec<bool>>,
}

impl Referred for AskedInAFlush {
    fn sync(&self) -> Result<(), StorageError> {
        let shared = self.shared.get().and_then(Weak::upgrade).unwrap();
        let answer = shared.is_at_leisure(true);
        self.answers.lock().unwrap().push(answer);
        Ok(())
    }
}

#[test]
fn spares_wait_for_a_flush_as_long_as_there_is_room() {
    let mut wal = Wal::create(memory(), options()).unwrap();
    let shared = Arc::clone(wal.shared());
    let asked = Arc::new(AskedInAFlush::default());
    asked.shared.set(Arc::downgrade(&shared)).unwrap();
    shared.set_referred(asked.clone());
    let part = (SEGMENT_BYTES - DATA_OFFSET) / 16;
    let mut fill_and_flush = |from: u64, to: u64| {
        for csn in from..=to {
            wal.append(csn, 1, &payload(csn, part as usize - 24))
                .unwrap();
        }
        shared.flush(u64::MAX).unwrap();
    };
    // One part of the second segment, then half of it; there is no spare.
    fill_and_flush(1, 17);
    assert!(!shared.is_at_leisure(true), "nobody is flushing any more");
    fill_and_flush(18, 24);
    let answers = asked.answers.lock().unwrap();
    assert_eq!(
        (answers.first(), answers.last()),
        (Some(&true), Some(&false))
    );
}

#[test]
fn the_visitor_can_stop_and_options_are_checked() {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    wal.append(1, 1, b"x").unwrap();
    let stopped = replay(&*storage, 0, 0, |_| Err(WalError::Visitor("enough".into())));
    assert!(matches!(stopped, Err(WalError::Visitor(_))));
    // A log with records is not a new one.
    assert!(matches!(
        Wal::create(storage, options()),
        Err(WalError::Corrupted { .. })
    ));
    for segment_bytes in [0, 4096, SEGMENT_BYTES + 8, 2 << 30] {
        let made = Wal::create(
            memory(),
            WalOptions {
                segment_bytes,
                ..options()
            },
        );
        assert!(matches!(made, Err(WalError::InvalidOption { .. })));
    }
}

#[test]
fn many_threads_commit_durably() {
    let dir = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(OsStorage::open(dir.path()).unwrap());
    let wal = Wal::create(Arc::clone(&storage), options()).unwrap();
    let shared = Arc::clone(wal.shared());
    let wal = std::sync::Mutex::new((wal, 0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let end = {
                        let mut wal = wal.lock().unwrap();
                        wal.1 += 1;
                        let csn = wal.1;
                        wal.0.append(csn, 1, &payload(csn, 300)).unwrap().end_lsn
                    };
                    shared.wait_durable(end).unwrap();
                    assert!(shared.durable_lsn() >= end);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                shared.prepare_spare(true).unwrap();
                shared.flush_full_segments().unwrap();
            }
        });
    });
    assert_eq!(
        read(&*storage, 0, shared.durable_lsn()).unwrap().0.len(),
        200
    );
}

/// A log of two segments and a bit, to be damaged.
fn sample() -> Vec<(String, Vec<u8>)> {
    let storage = memory();
    let mut wal = Wal::create(storage.clone(), options()).unwrap();
    for csn in 1..=8 {
        wal.append(
            csn,
            csn as u32,
            &payload(csn, if csn % 4 == 0 { 14_000 } else { 200 }),
        )
        .unwrap();
    }
    let names = storage.list().unwrap();
    names
        .into_iter()
        .map(|name| {
            (
                name.clone(),
                bytes_of(&*storage, &name, 0, SEGMENT_BYTES as usize),
            )
        })
        .collect()
}

fn with_files(files: &[(String, Vec<u8>)]) -> Arc<MemoryStorage> {
    let storage = memory();
    for (name, bytes) in files {
        storage
            .open(name, OpenMode::Create)
            .unwrap()
            .write_at(bytes, 0)
            .unwrap();
    }
    storage
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens to the files: an error, or a prefix of the records, never others; and then the log can go on.
    #[test]
    fn damaged_logs_give_a_prefix_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..SEGMENT_BYTES as usize, any::<u8>()), 1..5),
        near_start in any::<bool>(),
        cut in prop::option::of((any::<prop::sample::Index>(), 0usize..SEGMENT_BYTES as usize)),
    ) {
        let mut files = sample();
        let expected = read(&*with_files(&files), 0, 0).unwrap().0;
        for (file, at, byte) in changes {
            let bytes = &mut files[file.index(3)].1;
            let at = if near_start { at % 600 } else { at };
            bytes[at] = byte;
        }
        if let Some((file, len)) = cut {
            files[file.index(3)].1.truncate(len);
        }
        let storage = with_files(&files);
        if let Ok((seen, end)) = read(&*storage, 0, 0) {
            prop_assert!(expected.starts_with(&seen));
            let mut wal = Wal::resume(storage.clone(), options(), end).unwrap();
            wal.append(77, 1, b"next").unwrap();
            let (again, _) = read(&*storage, 0, 0).unwrap();
            prop_assert_eq!(again.len(), seen.len() + 1);
        }
    }

    #[test]
    fn any_bytes_are_survived(
        files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 0..3),
        from_lsn in prop_oneof![Just(0u64), 0u64..40_000, any::<u64>()],
        durable_lsn in prop_oneof![Just(0u64), any::<u64>()],
    ) {
        let files: Vec<_> = files.into_iter().enumerate().map(|(i, bytes)| (format!("log-{i:08x}"), bytes)).collect();
        if let Ok((seen, _)) = read(&*with_files(&files), from_lsn, durable_lsn) {
            prop_assert!(seen.is_empty());
        }
        // And any position in a good log.
        let _ = read(&*with_files(&sample()), from_lsn, durable_lsn);
    }
}
