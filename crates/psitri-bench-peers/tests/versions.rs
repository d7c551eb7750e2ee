//! The versions that reports name are the ones that are linked.
use psitri_bench_peers::engines;

/// The version of a package in the workspace's lock file, which has one of each engine.
fn locked(package: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
    let lock = std::fs::read_to_string(file).expect("the lock file is readable");
    let name = format!("name = \"{package}\"");
    let mut versions = lock
        .split("[[package]]")
        .filter(|entry| entry.lines().any(|line| line == name))
        .filter_map(|entry| {
            entry
                .lines()
                .find_map(|line| line.strip_prefix("version = "))
        })
        .map(|version| version.trim_matches('"').to_owned());
    let version = versions.next().expect("the package is locked");
    assert_eq!(versions.next(), None, "{package} is linked once");
    version
}

#[test]
fn reported_versions_are_the_locked_ones() {
    #[cfg(feature = "redb")]
    assert_eq!(engines::redb::VERSION, locked("redb"));
    #[cfg(feature = "canopydb")]
    assert_eq!(engines::canopydb::VERSION, locked("canopydb"));
    #[cfg(feature = "fjall")]
    assert_eq!(engines::fjall::VERSION, locked("fjall"));
    #[cfg(feature = "sled")]
    assert_eq!(engines::sled::VERSION, locked("sled"));
    #[cfg(feature = "bf-tree")]
    assert_eq!(engines::bf_tree::VERSION, locked("bf-tree"));
    #[cfg(feature = "emdb")]
    assert_eq!(engines::emdb::VERSION, locked("emdb"));
}

/// LMDB says it of itself, and the declarations that it is called by are of the same version.
#[cfg(feature = "lmdb")]
#[test]
fn the_linked_lmdb_is_the_declared_one() {
    use lmdb_master_sys::{MDB_VERSION_MAJOR, MDB_VERSION_MINOR, MDB_VERSION_PATCH};
    use psitri_bench::engine::{Engine, Settings};
    let declared = format!("{MDB_VERSION_MAJOR}.{MDB_VERSION_MINOR}.{MDB_VERSION_PATCH}");
    let described = engines::lmdb::Lmdb::describe(&Settings::default());
    assert_eq!(described.version, declared);
}
