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
