//! Story: the simulated disk is as unkind as it says, and no more.
use psitri::storage::{
    OpenMode, Storage, StorageFile,
    sim::{CallKind, Fault, FaultError, SimStorage},
};
use std::collections::BTreeSet;

fn content(storage: &SimStorage, name: &str) -> Option<Vec<u8>> {
    let file = storage.open(name, OpenMode::Read).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

fn durable_file(storage: &SimStorage, name: &str, bytes: &[u8]) -> std::sync::Arc<dyn StorageFile> {
    let file = storage.open(name, OpenMode::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    storage.sync_dir().unwrap();
    file
}

#[test]
fn synced_content_survives_and_unsynced_sectors_come_in_any_combination() {
    let storage = SimStorage::new(1);
    let file = durable_file(&storage, "a", &[1; 2048]);
    storage.set_early_write_back(false);
    // One sector by a write, one through a mapping.
    let grown = durable_file(&storage, "b", &[1; 16_384]);
    file.write_at(&[2; 512], 512).unwrap();
    file.write_at(&[3; 512], 1536).unwrap();
    let map = grown.map_write(0, 16_384).unwrap();
    // SAFETY: nobody else is there.
    unsafe { map.copy_in(512, &[4; 512]) };
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let after = storage.crash(seed);
        let (a, b) = (content(&after, "a").unwrap(), content(&after, "b").unwrap());
        assert!(
            a[..512]
                .iter()
                .chain(&a[1024..1536])
                .chain(&b[1024..])
                .all(|&byte| byte == 1)
        );
        for sector in a.chunks(512).chain(b.chunks(512)) {
            assert!(
                sector.iter().all(|&byte| byte == sector[0]),
                "a sector is written whole or not"
            );
        }
        outcomes.insert((a[512], a[1536], b[512]));
    }
    assert_eq!(outcomes.len(), 8, "{outcomes:?}");
    // The end of the process loses nothing.
    let after = storage.process_crash(0);
    assert_eq!(content(&after, "a").unwrap()[512], 2);
    assert_eq!(after.boot_id(), storage.boot_id());
    assert_ne!(storage.crash(0).boot_id(), storage.boot_id());
}

#[test]
fn names_need_the_directory_synced() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let storage = SimStorage::new(seed);
        storage.set_early_write_back(false);
        durable_file(&storage, "old", b"o");
        durable_file(&storage, "renamed", b"r");
        storage
            .open("new", OpenMode::Create)
            .unwrap()
            .sync_data()
            .unwrap();
        storage.remove("old").unwrap();
        storage.rename("renamed", "target").unwrap();
        let names = storage.crash(seed).list().unwrap();
        // A rename is atomic: one of the two names, never none.
        let has = |name: &str| names.iter().any(|other| other == name);
        assert!(has("renamed") != has("target"), "{names:?}");
        outcomes.insert(names);
        storage.sync_dir().unwrap();
        assert_eq!(storage.crash(seed).list().unwrap(), ["new", "target"]);
    }
    assert_eq!(outcomes.len(), 8);
}

#[test]
fn early_write_back_happens() {
    let storage = SimStorage::new(4);
    let file = durable_file(&storage, "a", &[1; 4096]);
    let other = durable_file(&storage, "b", &[1; 512]);
    file.write_at(&[2; 4096], 0).unwrap();
    for _ in 0..200 {
        other.write_at(&[1], 0).unwrap();
    }
    let least = (0..50)
        .map(|seed| {
            content(&storage.crash(seed), "a")
                .unwrap()
                .iter()
                .filter(|&&b| b == 2)
                .count()
        })
        .min();
    assert_eq!(least, Some(4096), "everything was written back by and by");
}

#[test]
fn a_failed_sync_drops_what_it_calls_clean() {
    let mut lost = 0;
    for seed in 0..50 {
        let storage = SimStorage::new(seed);
        storage.set_early_write_back(false);
        let file = durable_file(&storage, "a", &[1; 4096]);
        file.write_at(&[2; 4096], 0).unwrap();
        storage.inject(Fault::nth(CallKind::Sync, 1, FaultError::Io));
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        assert_eq!(content(&storage, "a").unwrap(), [2; 4096], "still seen");
        lost += usize::from(content(&storage.crash(seed), "a").unwrap() != [2; 4096]);
        // Written again, it is dirty again.
        file.write_at(&[2; 4096], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(content(&storage.crash(seed), "a").unwrap(), [2; 4096]);
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_crash_point_stops_everything_and_keeps_the_moment() {
    let storage = SimStorage::new(9);
    let file = durable_file(&storage, "a", &[1; 16_384]);
    let map = file.map_write(0, 16_384).unwrap();
    storage.crash_at_call(storage.calls() + 2);
    file.write_at(&[2; 512], 0).unwrap();
    let error = file.sync_data().unwrap_err();
    assert!(error.to_string().contains("crashed"), "{error}");
    assert!(storage.is_crashed());
    // SAFETY: nobody else is there.
    unsafe { map.copy_in(8192, &[7; 512]) };
    assert!(
        storage.open("a", OpenMode::Read).is_err()
            && storage.list().is_err()
            && file.len().is_err()
    );
    for seed in 0..20 {
        assert_eq!(
            content(&storage.crash(seed), "a").unwrap()[8192],
            1,
            "stores after the crash are not there"
        );
    }
    let after = content(&storage.process_crash(0), "a").unwrap();
    assert_eq!((after[0], after[8192]), (2, 1));
}

#[test]
fn capacity_and_random_faults() {
    let storage = SimStorage::new(2);
    let file = durable_file(&storage, "a", &[1; 4096]);
    storage.set_capacity_bytes(Some(8192));
    file.allocate(4096, 4096).unwrap();
    assert!(file.allocate(8192, 1).unwrap_err().is_out_of_space());
    assert!(file.write_at(&[1], 8192).unwrap_err().is_out_of_space());
    file.write_at(&[5; 8192], 0).unwrap();
    file.punch_hole(0, 4096).unwrap();
    file.allocate(8192, 1).unwrap();
    storage.set_capacity_bytes(None);
    storage.inject(Fault::random(CallKind::Write, 3, FaultError::OutOfSpace));
    let failed = (0..300).filter(|_| file.write_at(&[1], 0).is_err()).count();
    assert!((50..150).contains(&failed), "{failed}");
    storage.clear_faults();
    file.write_at(&[1], 0).unwrap();
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let run = |seed| {
        let storage = SimStorage::new(seed);
        let file = storage.open("a", OpenMode::Create).unwrap();
        for i in 0..50u8 {
            file.write_at(&[i; 700], u64::from(i) * 300).unwrap();
        }
        content(&storage.crash(seed), "a")
    };
    assert_eq!(run(5), run(5));
    assert!((0..20).any(|seed| run(seed) != run(5)));
}

#[test]
fn interrupted_and_short_transfers_are_gone_on_with() {
    let storage = SimStorage::new(7);
    storage.set_rough_transfers(Some(2));
    let file = storage.open("a", OpenMode::Create).unwrap();
    let bytes: Vec<u8> = (0..40_000u32).map(|i| (i / 7) as u8).collect();
    for _ in 0..20 {
        file.write_at(&bytes, 300).unwrap();
        file.sync_data().unwrap();
    }
    let parts = storage.calls();
    assert!(parts > 60, "a write is one call for each part: {parts}");
    for _ in 0..20 {
        let mut read = vec![0; bytes.len()];
        file.read_at(&mut read, 300).unwrap();
        assert_eq!(read, bytes);
    }
    let mut beyond = [0; 100];
    assert!(file.read_at(&mut beyond, 40_250).is_err());
    storage.set_rough_transfers(None);
    let before = storage.calls();
    file.write_at(&bytes, 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(storage.calls(), before + 2);
    // The power fails between two parts of a write.
    storage.set_rough_transfers(Some(1));
    storage.crash_at_call(storage.calls() + 3);
    file.write_at(&[9; 40_000], 0).unwrap_err();
    let after = content(&storage.process_crash(0), "a").unwrap();
    assert!(after[0] == 9 && after[39_999] != 9, "a part is there");
}

#[test]
fn a_full_disk_takes_what_there_is_room_for() {
    let storage = SimStorage::new(8);
    storage.set_rough_transfers(None);
    let file = durable_file(&storage, "a", &[1; 4096]);
    storage.set_capacity_bytes(Some(3 * 4096));
    let error = file.write_at(&[2; 5 * 4096], 2048).unwrap_err();
    assert!(error.is_out_of_space(), "{error}");
    let written = content(&storage, "a").unwrap();
    let twos = written.iter().filter(|&&byte| byte == 2).count();
    assert!(
        (4096..=3 * 4096).contains(&twos) && written[..2048] == [1; 2048],
        "{twos} of {}",
        written.len()
    );
}

#[test]
fn stores_through_mappings_are_cut_off_and_written_back_in_their_middle() {
    let (mut torn, mut whole, mut none, mut pages) = (0, 0, 0, 0);
    for seed in 0..300 {
        let storage = SimStorage::new(seed);
        storage.set_early_write_back(seed % 2 == 0);
        let file = durable_file(&storage, "a", &[1; 65_536]);
        let map = file.map_write(0, 65_536).unwrap();
        storage.crash_at_call(storage.calls() + 1);
        // SAFETY: nobody else is there.
        unsafe { map.copy_in(100, &[2; 30_000]) };
        assert!(storage.is_crashed(), "a store is a crash point");
        let point = storage.crash_point().unwrap();
        assert_eq!((point.kind, point.offset), (CallKind::Store, 100));
        let before = content(&storage.process_crash(0), "a").unwrap();
        let stored = before.iter().filter(|&&byte| byte == 2).count();
        assert!(before[100..100 + stored].iter().all(|&byte| byte == 2));
        match stored {
            0 => none += 1,
            30_000 => whole += 1,
            _ => torn += 1,
        }
        let after = content(&storage.crash(seed), "a").unwrap();
        // Where a system writes pages, whole pages are old or new; 100 and the end of what was stored lie inside of one.
        let last = (100 + stored) / 4096;
        let by_pages = after[..last.max(1) * 4096]
            .chunks(4096)
            .skip(1)
            .all(|page| page.iter().all(|&byte| byte == page[0]));
        let changed = after.contains(&2);
        pages += usize::from(by_pages && changed && after != before);
    }
    assert!(
        torn > 50 && whole > 30 && none > 30,
        "{torn} {whole} {none}"
    );
    assert!(pages > 20, "page by page: {pages}");
}

#[test]
fn captures_are_the_disk_of_their_moment() {
    let storage = SimStorage::new(3);
    storage.set_early_write_back(false);
    storage.set_rough_transfers(None);
    let file = durable_file(&storage, "a", &[0; 512]);
    storage.capture_every(2, 3);
    for round in 1..=20u8 {
        storage.set_note([u64::from(round), 0, 0, 0]);
        file.write_at(&[round; 512], 0).unwrap();
    }
    let captures = storage.take_captures();
    assert_eq!(captures.len(), 3, "no more than are asked for at a time");
    for capture in &captures {
        let point = capture.point();
        assert_eq!((point.kind, point.file.as_str()), (CallKind::Write, "a"));
        // It was taken before the call did anything.
        let shown = content(&capture.process_crash(0), "a").unwrap();
        assert_eq!(u64::from(shown[0]) + 1, point.note[0]);
        let left: BTreeSet<u8> = (0..20)
            .map(|seed| content(&capture.crash(seed), "a").unwrap()[0])
            .collect();
        assert_eq!(left, BTreeSet::from([0, shown[0]]));
    }
    assert!(!storage.is_crashed() && storage.take_captures().is_empty());
    for _ in 0..2 {
        file.write_at(&[0; 512], 0).unwrap();
    }
    assert_eq!(storage.take_captures().len(), 1, "there is room again");
}

#[test]
fn a_lie_is_made_up_for_by_the_next_honest_flush() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..40 {
        let storage = SimStorage::new(seed);
        storage.set_early_write_back(false);
        let file = durable_file(&storage, "a", &[1; 4096]);
        storage.lie_about_sync(2);
        file.write_at(&[2; 4096], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(storage.lied_about(), None);
        file.write_at(&[3; 4096], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(storage.lied_about().as_deref(), Some("a"));
        let after = content(&storage.crash(seed), "a").unwrap();
        assert!(after.iter().all(|&byte| byte == 2 || byte == 3));
        lost += usize::from(after.contains(&2));
        kept += usize::from(after.contains(&3));
        file.sync_data().unwrap();
        assert_eq!(content(&storage.crash(seed), "a").unwrap(), [3; 4096]);
    }
    assert!(lost > 10 && kept > 10, "{lost} {kept}");
}
