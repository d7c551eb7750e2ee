//! Story: disk, memory and simulated disk behave alike where the engine can see it.
use psitri::storage::{
    LockMode, MAP_ALIGNMENT_BYTES, MemoryStorage, OpenMode, OsStorage, Storage, StorageError,
    sim::SimStorage,
};
use std::{
    io::{Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

fn each(test: impl Fn(Arc<dyn Storage>)) {
    let dir = tempfile::tempdir().unwrap();
    test(Arc::new(OsStorage::open(dir.path()).unwrap()));
    test(Arc::new(MemoryStorage::new()));
    test(Arc::new(SimStorage::new(1)));
}

#[test]
fn names() {
    each(|storage| {
        assert!(matches!(
            storage.open("a", OpenMode::Read),
            Err(StorageError::NotFound { .. })
        ));
        assert!(matches!(
            storage.open("a", OpenMode::ReadWrite),
            Err(StorageError::NotFound { .. })
        ));
        let a = storage.open("a", OpenMode::Create).unwrap();
        assert!(matches!(
            storage.open("a", OpenMode::Create),
            Err(StorageError::AlreadyExists { .. })
        ));
        a.write_at(b"one", 0).unwrap();
        storage
            .open("b", OpenMode::Create)
            .unwrap()
            .write_at(b"two", 0)
            .unwrap();
        assert_eq!(storage.list().unwrap(), ["a", "b"]);
        storage.rename("a", "b").unwrap();
        assert_eq!(storage.list().unwrap(), ["b"]);
        assert!(!storage.exists("a").unwrap() && storage.exists("b").unwrap());
        let mut bytes = [0; 3];
        storage
            .open("b", OpenMode::Read)
            .unwrap()
            .read_at(&mut bytes, 0)
            .unwrap();
        assert_eq!(&bytes, b"one");
        storage.remove("b").unwrap();
        assert!(matches!(
            storage.remove("b"),
            Err(StorageError::NotFound { .. })
        ));
        // An open file outlives its name.
        a.read_at(&mut bytes, 0).unwrap();
        storage.sync_dir().unwrap();
        assert_eq!(storage.boot_id(), storage.boot_id());
    });
}

#[test]
fn content() {
    each(|storage| {
        let file = storage.open("a", OpenMode::Create).unwrap();
        assert!(file.is_empty().unwrap());
        file.write_at(b"xyz", 10_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_003);
        let mut bytes = [9; 4];
        file.read_at(&mut bytes, 9_997).unwrap();
        assert_eq!(bytes, [0, 0, 0, b'x']);
        assert!(file.read_at(&mut bytes, 10_000).is_err());
        file.set_len(10_001).unwrap();
        file.set_len(10_003).unwrap();
        file.read_at(&mut bytes, 9_999).unwrap();
        assert_eq!(bytes, [0, b'x', 0, 0]);
        file.allocate(0, 1 << 20).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
        assert!(file.allocated_bytes().unwrap() >= 1 << 20);
        file.sync_data().unwrap();
        file.punch_hole(0, 1 << 19).unwrap();
        assert!(file.allocated_bytes().unwrap() <= (1 << 19) + 8192);
        file.read_at(&mut bytes, 9_999).unwrap();
        assert_eq!(bytes, [0; 4]);
        assert_eq!(file.len().unwrap(), 1 << 20);
    });
}

#[test]
fn mappings_see_the_file_and_its_growth() {
    each(|storage| {
        let file = storage.open("a", OpenMode::Create).unwrap();
        file.write_at(b"first", 0).unwrap();
        let read = file.map_read(1 << 26).unwrap();
        assert!(read.len() >= 1 << 20);
        file.allocate(0, 1 << 20).unwrap();
        file.write_at(b"later", 900_000).unwrap();
        let write = file.map_write(2 * MAP_ALIGNMENT_BYTES, 65_536).unwrap();
        write.populate(0, write.len()).unwrap();
        write.populate(5, 1).unwrap();
        assert!(write.populate(1, write.len()).is_err());
        // SAFETY: the ranges are below the file's length and no other thread is there.
        unsafe {
            write.copy_in(7, b"stored");
            assert_eq!(read.slice(0, 5), Some(&b"first"[..]));
            assert_eq!(read.slice(900_000, 5), Some(&b"later"[..]));
            assert_eq!(
                read.slice(2 * MAP_ALIGNMENT_BYTES + 7, 6),
                Some(&b"stored"[..])
            );
            assert_eq!(read.slice(read.len() - 1, 2), None);
            assert_eq!(read.slice(u64::MAX, 2), None);
        }
        read.will_need(0, 1 << 20);
        assert!(read.lock(u64::MAX, 1).is_err());
        let mut bytes = [0; 6];
        file.read_at(&mut bytes, 2 * MAP_ALIGNMENT_BYTES + 7)
            .unwrap();
        assert_eq!(&bytes, b"stored");
        for (offset, len) in [
            (0, 0),
            (1, 10),
            (0, (1 << 20) + 1),
            (MAP_ALIGNMENT_BYTES, u64::MAX),
        ] {
            assert!(matches!(
                file.map_write(offset, len),
                Err(StorageError::OutOfRange { .. })
            ));
        }
        // A mapping outlives the file.
        drop(file);
        storage.remove("a").unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { read.slice(0, 5) }, Some(&b"first"[..]));
    });
}

#[test]
fn locks() {
    each(|storage| {
        let owner = storage.lock(LockMode::Exclusive).unwrap();
        for mode in [LockMode::Shared, LockMode::Exclusive] {
            match storage.lock(mode) {
                Err(StorageError::Locked { holder, .. }) => {
                    assert_eq!(holder, Some(std::process::id()))
                }
                other => panic!("{other:?}"),
            }
        }
        drop(owner);
        let first = storage.lock(LockMode::Shared).unwrap();
        let second = storage.lock(LockMode::Shared).unwrap();
        assert!(storage.lock(LockMode::Exclusive).is_err());
        drop((first, second));
        drop(storage.lock(LockMode::Exclusive).unwrap());
        assert!(storage.list().unwrap().is_empty());
    });
}

#[test]
fn address_space_that_cannot_be_had_is_halved() {
    each(|storage| {
        let file = storage.open("a", OpenMode::Create).unwrap();
        file.write_at(b"x", 0).unwrap();
        let map = file.map_read(u64::MAX / 2).unwrap();
        assert!(map.len() >= 1 << 20);
    });
}

const CHILD_DIR: &str = "PSITRI_TEST_LOCK_DIR";

/// Not a test of its own: the other process of the next one.
#[test]
fn lock_holder_child() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let _lock = OsStorage::open(dir)
        .unwrap()
        .lock(LockMode::Exclusive)
        .unwrap();
    println!("locked");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_killed_owner_leaves_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let storage = OsStorage::open(dir.path()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "storage_contract::lock_holder_child",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD_DIR, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("locked") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0,
            "the child ended"
        );
    }
    match storage.lock(LockMode::Exclusive) {
        Err(StorageError::Locked { holder, .. }) => assert_eq!(holder, Some(child.id())),
        other => panic!("{other:?}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    storage.lock(LockMode::Exclusive).unwrap();
}

/// While a thread starts a program, the child has every file open that its parent has, from `fork` to `exec`.
#[test]
fn a_child_that_is_being_started_keeps_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let storage = OsStorage::open(dir.path()).unwrap();
    let lock = storage.lock(LockMode::Exclusive).unwrap();
    let slot = storage.take_reader_slot().unwrap();
    slot.pin(7).unwrap();
    let (mut ours, childs) = UnixStream::pair().unwrap();
    let patience = Some(Duration::from_secs(30));
    childs.set_read_timeout(patience).unwrap();
    ours.set_read_timeout(patience).unwrap();
    let mut command = Command::new("true");
    #[expect(unsafe_code, reason = "contract of pre_exec")]
    // SAFETY: a read and a write of an open file, which a child may do before `exec`.
    unsafe {
        command.pre_exec(move || {
            (&childs).write_all(b"forked")?;
            (&childs).read_exact(&mut [0])
        });
    }
    let starting = std::thread::spawn(move || command.status().unwrap());
    ours.read_exact(&mut [0; b"forked".len()]).unwrap();
    drop((lock, slot));
    let again = storage.lock(LockMode::Exclusive);
    let pins = storage.reader_pins();
    ours.write_all(b"x").unwrap();
    assert!(starting.join().unwrap().success());
    again.expect("the lock ended with its owner");
    assert_eq!(pins.unwrap(), []);
}

#[test]
fn names_with_separators_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = OsStorage::open(dir.path()).unwrap();
    for name in ["", ".", "..", "a/b", "../a"] {
        assert!(storage.open(name, OpenMode::Create).is_err(), "{name:?}");
    }
    assert!(matches!(
        OsStorage::open(dir.path().join("none")),
        Err(StorageError::NotFound { .. })
    ));
    OsStorage::create(dir.path().join("new/deeper")).unwrap();
}
