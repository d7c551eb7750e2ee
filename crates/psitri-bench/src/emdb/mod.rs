//! The small benchmarks of the emdb project, for any engine: `kv`, `comparative`, `concurrent-reads`, `group-commit`, `write-through`
//! and `index-hotpath`.
//!
//! Keys, values, counts and threads are those of the originals. Each file says where it departs from its original; for all of them:
//! - opening and removing a database is not part of an operation's time, it is a figure of its own where the original timed it;
//! - every value that is read is compared, and what a database holds is counted;
//! - an engine that is measured by one way to write there is measured by every way here, and all engines by the same.
mod comparative;
mod concurrent_reads;
mod databases;
mod entries;
mod group_commit;
mod index_hotpath;
mod kv;
mod write_through;

pub use comparative::Comparative;
pub use concurrent_reads::ConcurrentReads;
pub use group_commit::GroupCommit;
pub use index_hotpath::IndexHotpath;
pub use kv::Kv;
pub use write_through::WriteThrough;
