//! Random upserts, round after round: how an engine keeps up while its database grows beyond caches and memory.
//!
//! Keys are hashes of a counter, so each lands somewhere else; as in the benchmark that this one is modelled on, hardly any key comes
//! twice unless `--true-overwrite` asks for it. Values begin with the counter and can be checked without knowing which write they are of.
mod config;
mod reader;
mod run;
mod verify;

pub use config::UpsertConfig;
