//! One file for each engine.
#[cfg(feature = "bf-tree")]
pub mod bf_tree;
#[cfg(feature = "canopydb")]
pub mod canopydb;
#[cfg(feature = "emdb")]
pub mod emdb;
#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "sled")]
pub mod sled;
