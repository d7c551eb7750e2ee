//! Story: a superblock whose checksum is right names a catalog where the file has no page. That is damage, and said to be: nothing is read
//! behind the end of the file, neither for writing nor for reading only.
use psitri::{Database, Error, Options};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The page to name in a file of so many.
type PageOf = fn(u64) -> u64;

const CATALOG_AT: usize = 40;
const CHECKSUM_AT: usize = 124;
const PAGE_BYTES: usize = 4096;
/// Of a reference: what is below the number of the page.
const PAGE_SHIFT: u32 = 24;

fn database(dir: &Path) -> PathBuf {
    let path = dir.join("db");
    let db = Options::new().open(&path).unwrap();
    let ks = db.keyspace("k").unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"a", b"1").unwrap();
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    db.close().unwrap();
    path
}

/// Lets both superblocks name another page, and as many units.
fn name_page(path: &Path, page: PageOf, units: u64) {
    let file = path.join("data");
    let mut bytes = fs::read(&file).unwrap();
    let page = page((bytes.len() / PAGE_BYTES) as u64);
    for slot in bytes.chunks_mut(PAGE_BYTES).take(2) {
        let catalog = page << PAGE_SHIFT | units;
        slot[CATALOG_AT..CATALOG_AT + 8].copy_from_slice(&catalog.to_le_bytes());
        let checksum = crc32c::crc32c(&slot[..CHECKSUM_AT]);
        slot[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
}

fn is_damage(opened: Result<Database, Error>, what: &str) {
    match opened {
        Err(Error::Corrupted { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: opened"),
    }
}

#[test]
fn is_damage_however_it_is_opened() {
    let cases: [(&str, PageOf, u64); 7] = [
        ("far behind the end", |_| 1 << 30, 4),
        ("as far as can be named", |_| (1 << 40) - 1, (1 << 18) - 1),
        ("the first page behind the end", |end| end, 1),
        ("nothing behind the end", |end| end, 0),
        ("nothing", |_| 2, 0),
        ("over the end", |end| end - 1, 65),
        ("all that can be named, over the end", |_| 2, (1 << 18) - 1),
    ];
    for (what, page, units) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = database(dir.path());
        name_page(&path, page, units);
        is_damage(Options::new().open_read_only(&path), what);
        is_damage(Options::new().open_beside_writer(&path), what);
        is_damage(Options::new().open(&path), what);
        is_damage(Options::new().map_reserve_bytes(16 << 20).open(&path), what);
    }
}
