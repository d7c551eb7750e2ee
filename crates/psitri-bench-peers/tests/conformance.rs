//! Every engine keeps the rules that it declares to keep, and reports the version that is linked.
#[cfg(feature = "redb")]
mod redb {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::redb::Redb);
}

#[cfg(feature = "lmdb")]
mod lmdb {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::lmdb::Lmdb);
}

#[cfg(feature = "canopydb")]
mod canopydb {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::canopydb::Canopydb);
}

#[cfg(feature = "fjall")]
mod fjall {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::fjall::Fjall);
}

#[cfg(feature = "sled")]
mod sled {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::sled::Sled,
        lacks "pops", "snapshots"
    );
}

#[cfg(feature = "bf-tree")]
mod bf_tree {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::bf_tree::BfTree,
        lacks "backward cursors", "pops", "snapshots", "atomic batches", "reopening a database", "large values"
    );
}

#[cfg(feature = "emdb")]
mod emdb {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::emdb::Emdb,
        lacks "ordered keys", "backward cursors", "pops", "snapshots", "atomic batches"
    );
}

#[cfg(feature = "emdb")]
mod emdb_ranges {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::emdb::EmdbRanges,
        lacks "backward cursors", "pops", "snapshots", "atomic batches"
    );
}

#[cfg(feature = "rocksdb")]
mod rocksdb {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::rocksdb::RocksDb,
        lacks "pops"
    );
}

#[cfg(feature = "rocksdb")]
mod rocksdb_txn {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::rocksdb::RocksDbTxn);
}

#[cfg(feature = "mdbx")]
mod mdbx {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::mdbx::Mdbx);
}

#[cfg(feature = "mdbx")]
mod mdbx_safe {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::mdbx::MdbxSafe);
}

#[cfg(feature = "tidesdb")]
mod tidesdb {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::tidesdb::TidesDb,
        lacks "pops"
    );
}

#[cfg(feature = "sqlite")]
mod sqlite {
    psitri_bench::conformance_tests!(psitri_bench_peers::engines::sqlite::Sqlite);
}

/// Needs `redis-server`, which `scripts/setup-peers` installs; fails with that advice without it.
#[cfg(feature = "redis")]
mod redis {
    psitri_bench::conformance_tests!(
        psitri_bench_peers::engines::redis::Redis,
        lacks "ordered keys", "backward cursors", "pops", "snapshots"
    );
}
