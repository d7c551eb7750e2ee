//! Other engines behind the traits of [`psitri_bench::engine`], one file each.
//!
//! Every adapter says in its header which settings it uses and why: those that its engine documents as fast, at the durability that the
//! run asks for, with snapshots that are fresh. An adapter is timed only if it passes the conformance tests.
#![deny(unsafe_code)]

use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};

pub mod engines;
pub mod flusher;
#[cfg(any(feature = "lmdb", feature = "mdbx"))]
pub mod reader_pool;

psitri_bench::engines! {
    /// PsiTri and every engine that this program was built with.
    pub struct Peers {
        "psitri" => Psitri,
        "psitri-direct" => PsitriDirect,
        #[cfg(feature = "redb")]
        "redb" => engines::redb::Redb,
        #[cfg(feature = "lmdb")]
        "lmdb" => engines::lmdb::Lmdb,
        #[cfg(feature = "canopydb")]
        "canopydb" => engines::canopydb::Canopydb,
        #[cfg(feature = "fjall")]
        "fjall" => engines::fjall::Fjall,
        #[cfg(feature = "sled")]
        "sled" => engines::sled::Sled,
        #[cfg(feature = "bf-tree")]
        "bf-tree" => engines::bf_tree::BfTree,
        #[cfg(feature = "emdb")]
        "emdb" => engines::emdb::Emdb,
        #[cfg(feature = "emdb")]
        "emdb-ranges" => engines::emdb::EmdbRanges,
        #[cfg(feature = "rocksdb")]
        "rocksdb" => engines::rocksdb::RocksDb,
        #[cfg(feature = "rocksdb")]
        "rocksdb-txn" => engines::rocksdb::RocksDbTxn,
        #[cfg(feature = "mdbx")]
        "mdbx" => engines::mdbx::Mdbx,
        #[cfg(feature = "mdbx")]
        "mdbx-safe" => engines::mdbx::MdbxSafe,
        #[cfg(feature = "tidesdb")]
        "tidesdb" => engines::tidesdb::TidesDb,
        #[cfg(feature = "sqlite")]
        "sqlite" => engines::sqlite::Sqlite,
        #[cfg(feature = "redis")]
        "redis" => engines::redis::Redis,
        "model" => Model,
    } sql {
        #[cfg(feature = "sqlite")]
        "sqlite" => engines::sqlite::sql::SqliteSql,
    }
}
