//! Known defects of other engines that must not be here, a test for each.
#![cfg(not(loom))]

#[path = "../common/defects.rs"]
mod defects;

#[path = "../common/mod.rs"]
mod common;

mod emdb_defects;
mod tidesdb_defects;
mod upstream_defects;
