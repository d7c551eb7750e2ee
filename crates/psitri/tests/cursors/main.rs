//! Cursors and pops over everything that they have to join, against maps.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod a_visitor_panics;
mod beside_a_merge;
mod counts_beside_deleted_ranges;
mod cursors_join_all_ways;
mod cursors_walk_at_random;
mod pile;
mod pops_match_a_map;
mod seeks_stay_near;
