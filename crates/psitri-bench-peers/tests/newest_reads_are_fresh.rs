//! `Engine::read_latest` sees every commit that has returned, in the thread that committed and in others, however an engine reads.
use psitri_bench::engine::{Batch, Engine, Settings};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

const KEY: &[u8] = b"key";
const COMMITS: u32 = 300;
const READERS: usize = 2;

/// The number that the key has, zero if it has none.
fn newest<E: Engine>(engine: &E) -> anyhow::Result<u32> {
    engine.read_latest(KEY, |found| match found {
        Some(value) => u32::from_be_bytes(value.try_into().expect("four bytes")),
        None => 0,
    })
}

fn check<E: Engine>() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let engine = E::create(&directory.path().join("db"), &Settings::default())?;
    let committed = AtomicU32::new(0);
    thread::scope(|scope| {
        let read = || -> anyhow::Result<()> {
            loop {
                let at_least = committed.load(Ordering::Acquire);
                let found = newest(&engine)?;
                assert!(found >= at_least, "{found} after {at_least} was committed");
                if at_least == COMMITS {
                    return Ok(());
                }
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let write = || -> anyhow::Result<()> {
            for number in 1..=COMMITS {
                let mut batch = engine.begin()?;
                Batch::put(&mut batch, KEY, &number.to_be_bytes())?;
                Batch::commit(batch)?;
                committed.store(number, Ordering::Release);
                assert_eq!(newest(&engine)?, number);
            }
            Ok(())
        };
        let outcome = write();
        // The readers end in any case.
        if outcome.is_err() {
            committed.store(COMMITS, Ordering::Release);
        }
        outcome?;
        for reader in readers {
            reader.join().expect("the reader does not panic")?;
        }
        anyhow::Ok(())
    })?;
    let mut batch = engine.begin()?;
    Batch::delete(&mut batch, KEY)?;
    Batch::commit(batch)?;
    assert!(engine.read_latest(KEY, |found| found.is_none())?);
    engine.close()
}

macro_rules! fresh {
    ($($(#[$attribute:meta])* $name:ident: $engine:ty),* $(,)?) => {
        $($(#[$attribute])*
        #[test]
        fn $name() -> anyhow::Result<()> {
            check::<$engine>()
        })*
    };
}

fresh! {
    psitri: psitri_bench::engines::psitri::Psitri,
    psitri_direct: psitri_bench::engines::psitri::PsitriDirect,
    #[cfg(feature = "redb")]
    redb: psitri_bench_peers::engines::redb::Redb,
    #[cfg(feature = "lmdb")]
    lmdb: psitri_bench_peers::engines::lmdb::Lmdb,
    #[cfg(feature = "canopydb")]
    canopydb: psitri_bench_peers::engines::canopydb::Canopydb,
    #[cfg(feature = "fjall")]
    fjall: psitri_bench_peers::engines::fjall::Fjall,
    #[cfg(feature = "sled")]
    sled: psitri_bench_peers::engines::sled::Sled,
    #[cfg(feature = "bf-tree")]
    bf_tree: psitri_bench_peers::engines::bf_tree::BfTree,
    #[cfg(feature = "emdb")]
    emdb: psitri_bench_peers::engines::emdb::Emdb,
    #[cfg(feature = "emdb")]
    emdb_ranges: psitri_bench_peers::engines::emdb::EmdbRanges,
    #[cfg(feature = "rocksdb")]
    rocksdb: psitri_bench_peers::engines::rocksdb::RocksDb,
    #[cfg(feature = "rocksdb")]
    rocksdb_txn: psitri_bench_peers::engines::rocksdb::RocksDbTxn,
    #[cfg(feature = "mdbx")]
    mdbx: psitri_bench_peers::engines::mdbx::Mdbx,
    #[cfg(feature = "tidesdb")]
    tidesdb: psitri_bench_peers::engines::tidesdb::TidesDb,
    #[cfg(feature = "sqlite")]
    sqlite: psitri_bench_peers::engines::sqlite::Sqlite,
    #[cfg(feature = "redis")]
    redis: psitri_bench_peers::engines::redis::Redis,
}
