use std::iter;

use super::*;
use crate::storage::{
    MemoryStorage, OpenMode, Storage,
    sim::{CallKind, Fault, FaultError, SimStorage},
};

fn pager() -> Pager {
    pager_on(&MemoryStorage::new())
}

/// A pager of an empty data file.
fn pager_on(disk: &dyn Storage) -> Pager {
    let file = disk.open(DATA_FILE, OpenMode::Create).unwrap();
    file.allocate(0, SUPERBLOCK_PAGES * PAGE_BYTES as u64)
        .unwrap();
    let map = PageMap::new(SUPERBLOCK_PAGES);
    Pager::new(file, map, 0, 1 << 20, 0, true).unwrap()
}

/// Pages that a writer filled and nobody refers to any more.
fn dead(pager: &Pager, pages: u64, birth: u64, death: u64) {
    let page = pager.reserve_run(pages as usize).unwrap();
    for page in page..page + pages {
        pager.space.lock().map.settle(page, 64);
    }
    let units = pages as u32 * 64;
    pager.abandon(&[Extent::of_pages(page, units, birth)], death);
}

fn pending(pager: &Pager) -> u64 {
    pager.space_use().unwrap().pending_bytes / PAGE_BYTES as u64
}

#[test]
fn others_keep_what_they_reach_and_values_that_their_log_may_name() {
    let pager = pager();
    pager.set_durable(20);
    dead(&pager, 1, 3, 12);
    dead(&pager, 1, 9, 12);
    // Born after the version that is seen, but the log that goes with that may be longer.
    dead(&pager, 8, 9, 12);
    pager.reclaim(&[20], &[20, 5]);
    assert_eq!(pending(&pager), 1 + 8);
    pager.reclaim(&[20], &[20, 11]);
    assert_eq!(pending(&pager), 1 + 8);
    pager.reclaim(&[20], &[20, 12]);
    assert_eq!(pending(&pager), 0);
}

#[test]
fn in_quarantine_no_page_is_used_again() {
    let pager = pager();
    // In use at the opening, and replaced by the first version after it.
    dead(&pager, 4, 1, 6);
    pager.set_durable(5);
    let end = pager.page_end();
    pager.quarantine();
    pager.reclaim(&[6], &[5]);
    assert_eq!(pager.space_use().unwrap().free_bytes, 0);
    assert!(pager.reserve_run(1).unwrap() >= end);
    let free_before = pager.space_use().unwrap().free_bytes;
    pager.end_quarantine();
    let freed = pager.space_use().unwrap().free_bytes - free_before;
    assert_eq!(freed / PAGE_BYTES as u64, end - SUPERBLOCK_PAGES - 4);
    pager.set_durable(6);
    pager.reclaim(&[6], &[6]);
    assert_eq!(pending(&pager), 0);
}

#[test]
fn a_tail_of_holes_is_cut() {
    let pager = pager();
    let page = pager.reserve_run(8).unwrap();
    for page in page..page + 8 {
        pager.space.lock().map.settle(page, 0);
    }
    let end = pager.page_end();
    // While a superblock is being written the file keeps its length: its free pages become holes.
    pager.space.lock().in_flight_version = Some(1);
    assert_eq!(pager.give_back(1, 0, 0).unwrap(), 0);
    assert_eq!(pager.page_end(), end);
    pager.space.lock().in_flight_version = None;
    let slack = (end - SUPERBLOCK_PAGES) * PAGE_BYTES as u64;
    pager.give_back(1, slack, 0).unwrap();
    assert_eq!(pager.page_end(), end, "no more than may be there");
    pager.give_back(1, slack - 1, 0).unwrap();
    assert_eq!(pager.page_end(), SUPERBLOCK_PAGES);
    let bytes = pager.file.len().unwrap();
    assert_eq!(bytes, SUPERBLOCK_PAGES * PAGE_BYTES as u64);
}

#[test]
fn holes_that_could_not_be_made_are_tried_again() {
    for (fault, is_error) in [(FaultError::Io, true), (FaultError::OutOfSpace, false)] {
        let disk = SimStorage::new(1);
        let pager = pager_on(&disk);
        let page = pager.reserve_run(9).unwrap();
        // Three runs with something between, and behind the last.
        for offset in 0..9 {
            let units = if offset % 3 == 2 { 64 } else { 0 };
            pager.space.lock().map.settle(page + offset, units);
        }
        disk.inject(Fault::nth(CallKind::PunchHole, 2, fault));
        let free = || pager.space.lock().map.unpunched_pages();
        assert_eq!(pager.give_back(1, 0, 0).is_err(), is_error);
        assert_eq!(free(), 4, "one hole of two pages was made");
        pager.give_back(1, 0, 0).unwrap();
        assert_eq!(free(), 0);
    }
}

#[test]
fn a_cut_that_failed_is_tried_again() {
    let disk = SimStorage::new(1);
    let pager = pager_on(&disk);
    let page = pager.reserve_run(1).unwrap();
    pager.space.lock().map.settle(page, 0);
    let end = pager.page_end();
    disk.inject(Fault::nth(CallKind::SetLen, 1, FaultError::Io));
    assert!(pager.give_back(1, 0, 0).is_err());
    assert_eq!(pager.page_end(), end, "the file is as it was");
    pager.give_back(1, 0, 0).unwrap();
    assert_eq!(pager.page_end(), SUPERBLOCK_PAGES);
}

/// The system gives a part of what it has no room for. Whether a smaller step does or none, nothing of the disk is left with nobody.
#[test]
fn a_growth_that_failed_leaves_nothing_behind_the_file() {
    for room_pages in 0..24 {
        let disk = SimStorage::new(1);
        let pager = pager_on(&disk);
        let room = room_pages * PAGE_BYTES as u64;
        disk.set_capacity_bytes(Some(disk.allocated_bytes() + room));
        let check = || {
            let end = pager.page_end() * PAGE_BYTES as u64;
            assert_eq!(pager.file.len().unwrap(), end);
            assert_eq!(disk.allocated_bytes(), end, "room for {room_pages} pages");
        };
        let mut pages = 0;
        while pager.reserve_run(1).is_ok() {
            check();
            pages += 1;
        }
        assert_eq!(pages, room_pages, "the disk is used to its end");
        check();
    }
}

/// Large files grow by whole blocks, as long as there is room for them.
#[test]
fn a_large_file_uses_the_disk_to_its_end() {
    let large = || {
        let disk = SimStorage::new(1);
        let pager = pager_on(&disk);
        pager.reserve_run(5000).unwrap();
        while pager.space.lock().map.free_pages() > 0 {
            pager.reserve_run(1).unwrap();
        }
        assert_eq!(pager.page_end() % 512, 0);
        (disk, pager)
    };
    for room_pages in [0, 1, 3, 100, 511, 512, 513, 1500] {
        let room = room_pages as u64 * PAGE_BYTES as u64;
        let (disk, pager) = large();
        disk.set_capacity_bytes(Some(disk.allocated_bytes() + room));
        let runs = iter::from_fn(|| pager.reserve_run(1).ok());
        assert_eq!(runs.count(), room_pages, "one by one");
        let (disk, pager) = large();
        disk.set_capacity_bytes(Some(disk.allocated_bytes() + room));
        let extents = iter::from_fn(|| pager.reserve_extent().ok());
        let pages: usize = extents.map(|(_, count)| count).sum();
        assert_eq!(pages, room_pages, "in extents");
    }
}

/// A checkpoint that finds the disk full does not make the next one larger.
#[test]
fn a_checkpoint_that_failed_stores_again_what_it_had_to_store() {
    let disk = SimStorage::new(1);
    let pager = pager_on(&disk);
    // Three pieces of the map.
    let first = pager.reserve_run(10_000).unwrap();
    for page in first..first + 10_000 {
        pager.space.lock().map.settle(page, 1);
        pager.space.lock().map.born(Extent::of_pages(page, 1, 1));
    }
    let write = |version: u64| {
        let captured = pager.capture(version);
        let record = CheckpointRecord::of_nothing(version);
        (
            captured.pieces(),
            pager.write_checkpoint(&captured, &record),
        )
    };
    let (pieces, result) = write(1);
    result.unwrap();
    assert_eq!(pieces, 3);
    let one = Extent::of_pages(first, 1, 1);
    pager.space.lock().map.died(one);
    for version in 2..4 {
        disk.inject(Fault::nth(CallKind::Write, 1, FaultError::OutOfSpace));
        let (pieces, result) = write(version);
        result.unwrap_err();
        assert_eq!(pieces, 1);
    }
    let (pieces, result) = write(4);
    result.unwrap();
    assert_eq!((pieces, write(5).0), (1, 0));
}

/// What is announced goes on in these only.
#[test]
fn nodes_are_known_that_were_written_or_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let is_known = |db: &crate::Database, keyspace: &crate::Keyspace| {
        let snapshot = db.snapshot();
        let view = snapshot.view(keyspace).unwrap();
        view.pager.known_node(view.root.node).is_some()
    };
    let db = crate::Database::open(&path).unwrap();
    let keyspace = db.create_keyspace("k").unwrap();
    let mut txn = db.begin(&[&keyspace]).unwrap();
    txn.upsert(&keyspace, b"key", b"value").unwrap();
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    assert!(is_known(&db, &keyspace), "this process wrote it");
    drop((keyspace, db));
    let db = crate::Database::open(&path).unwrap();
    let keyspace = db.open_keyspace("k").unwrap();
    assert!(!is_known(&db, &keyspace), "nobody has read it");
    let found = db.snapshot().get(&keyspace, b"key").unwrap().is_some();
    assert!(found && is_known(&db, &keyspace));
}

/// References that somebody forged. What they name is in the file.
#[test]
fn nothing_begins_inside_a_page_and_ends_in_another() {
    let pager = pager();
    let page = pager.reserve_run(2).unwrap();
    let why = |error: Error| error.to_string();
    let node = why(pager.recheck_node(NodeRef::new(page, 60, 10)).unwrap_err());
    assert!(node.contains("ends in another"), "{node}");
    let node = why(pager.recheck_node(NodeRef::new(page, 0, 70)).unwrap_err());
    assert!(!node.contains("ends in another"), "{node}");
    let zeros = vec![0; 2 * PAGE_BYTES];
    let value = |offset: u32, len: usize| {
        ValuePointer::new(page, offset, len as u32, crc32c::crc32c(&zeros[..len]), 1)
    };
    for (offset, len) in [(0, 0), (0, 2 * PAGE_BYTES), (33, 4063), (64, 4032)] {
        pager.recheck_value(&value(offset, len)).unwrap();
    }
    let behind = ValuePointer::new(pager.page_end(), 0, 0, crc32c::crc32c(&[]), 1);
    pager.recheck_value(&behind).unwrap_err();
    for (offset, len) in [(33, 4064), (64, 4033)] {
        let value = why(pager.recheck_value(&value(offset, len)).unwrap_err());
        assert!(value.contains("ends in another"), "{value}");
    }
}

/// What they name is not freed, or not before nobody can see it.
#[test]
fn forged_values_free_nothing_that_is_not_theirs() {
    let pager = pager();
    let page = pager.reserve_run(1).unwrap();
    let end = pager.page_end();
    let mut sink = Sink::new(&pager, 7);
    for (page, offset, birth) in [(0, 64, 1), (end, 0, 1), (end - 1, 4032, 1), (page, 0, 9)] {
        sink.kill_value(&ValuePointer::new(page, offset, 65, 0, birth));
    }
    let deaths = sink.finish().unwrap().deaths;
    let named: Vec<(u64, u64)> = deaths
        .iter()
        .map(|dead| (dead.page(), dead.birth))
        .collect();
    assert_eq!(named, [(page, 0)]);
}
