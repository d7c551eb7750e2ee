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
    #[cfg(feature = "lmdb")]
    assert!(engines::lmdb::VERSION.ends_with(&format!("(heed {})", locked("heed"))));
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

/// heed passes on what LMDB says of itself.
#[cfg(feature = "lmdb")]
#[test]
fn the_reported_lmdb_is_the_linked_one() {
    let version = heed::lmdb_version();
    let linked = format!("{}.{}.{} ", version.major, version.minor, version.patch);
    assert!(engines::lmdb::VERSION.starts_with(&linked), "{linked}");
}
