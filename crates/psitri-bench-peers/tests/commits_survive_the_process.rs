//! What `SyncMode::None` promises: what was committed is there when the process died without closing anything.
//!
//! Each test starts this program again for one of the engines. The child commits batches, writes the number of each to a file of its own,
//! and aborts; the parent opens the database and looks for everything. sled and bf-tree are not here: their adapters say that they
//! are weaker than this. Nor is Redis: its server is a process of its own, which outlives the child, so that nothing would be lost
//! whatever it had written, and it would go on holding the database.
use psitri_bench::engine::{Batch, Engine, ReadMode, Settings, Snapshot, Writes};
use std::path::Path;
use std::process::{Command, Stdio};

const DATABASE: &str = "PSITRI_BENCH_TEST_DATABASE";
const COMMITS: u32 = 50;

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 100 + number as usize]
}

/// Commits in both ways and dies.
fn child<E: Engine>(path: &Path) -> ! {
    let commit_all = || -> anyhow::Result<()> {
        let engine = E::create(path, &Settings::default())?;
        for number in (0..COMMITS).step_by(2) {
            let mut batch = engine.begin()?;
            Batch::put(&mut batch, &number.to_be_bytes(), &value(number))?;
            Batch::commit(batch)?;
            let number = number + 1;
            let mut writes = engine.begin_writes()?;
            writes.put(&number.to_be_bytes(), &value(number))?;
            Writes::commit(writes)?;
        }
        std::fs::write(path.with_extension("committed"), "all")?;
        // Engine and threads are left as they are.
        std::process::abort();
    };
    panic!("{:?}", commit_all());
}

fn check<E: Engine>(test: &str) -> anyhow::Result<()> {
    if let Some(path) = std::env::var_os(DATABASE) {
        child::<E>(Path::new(&path));
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("db");
    let status = Command::new(std::env::current_exe()?)
        .args([test, "--exact", "--nocapture"])
        .env(DATABASE, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    assert!(!status.success(), "the child died");
    assert!(
        path.with_extension("committed").exists(),
        "the child committed everything"
    );
    let engine = E::open(&path, &Settings::default())?;
    let mut snapshot = engine.snapshot(ReadMode::Latest)?;
    for number in 0..COMMITS {
        let kept = snapshot.read(&number.to_be_bytes(), |found| {
            found == Some(value(number).as_slice())
        })?;
        assert!(kept, "commit {number} of {COMMITS} was lost");
    }
    assert_eq!(snapshot.count()?, u64::from(COMMITS));
    Ok(())
}

macro_rules! survives {
    ($($(#[$attribute:meta])* $name:ident: $engine:ty),* $(,)?) => {
        $($(#[$attribute])*
        #[test]
        fn $name() -> anyhow::Result<()> {
            check::<$engine>(stringify!($name))
        })*
    };
}

survives! {
    psitri: psitri_bench::engines::psitri::Psitri,
    psitri_direct: psitri_bench::engines::psitri::PsitriDirect,
    #[cfg(feature = "redb")]
    redb: psitri_bench_peers::engines::redb::Redb,
    #[cfg(feature = "lmdb")]
    lmdb: psitri_bench_peers::engines::lmdb::Lmdb,
    #[cfg(feature = "mdbx")]
    mdbx: psitri_bench_peers::engines::mdbx::Mdbx,
    #[cfg(feature = "mdbx")]
    mdbx_safe: psitri_bench_peers::engines::mdbx::MdbxSafe,
    #[cfg(feature = "canopydb")]
    canopydb: psitri_bench_peers::engines::canopydb::Canopydb,
    #[cfg(feature = "fjall")]
    fjall: psitri_bench_peers::engines::fjall::Fjall,
    #[cfg(feature = "emdb")]
    emdb: psitri_bench_peers::engines::emdb::Emdb,
    #[cfg(feature = "emdb")]
    emdb_ranges: psitri_bench_peers::engines::emdb::EmdbRanges,
    #[cfg(feature = "rocksdb")]
    rocksdb: psitri_bench_peers::engines::rocksdb::RocksDb,
    #[cfg(feature = "rocksdb")]
    rocksdb_txn: psitri_bench_peers::engines::rocksdb::RocksDbTxn,
    #[cfg(feature = "tidesdb")]
    tidesdb: psitri_bench_peers::engines::tidesdb::TidesDb,
    #[cfg(feature = "sqlite")]
    sqlite: psitri_bench_peers::engines::sqlite::Sqlite,
}
