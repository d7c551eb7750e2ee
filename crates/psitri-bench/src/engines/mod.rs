//! The engines that workloads run on. One file each.
pub mod hash;
pub mod model;
pub mod noop;
pub mod pending;
pub mod psitri;
