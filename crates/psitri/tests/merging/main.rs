//! Merges: when there are any, and what they make of trees that are large beside the write buffer.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod a_counter_is_overwritten_for_ever;
mod changes_in_front_of_leaves;
mod long_separators;
mod merged_while_idle;
mod merges_wait_for_more;
mod reading_in_order_pays_for_a_merge;
mod values_leave_their_leaves;
