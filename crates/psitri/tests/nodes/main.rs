//! What a node of the tree is: leaves and inner nodes against models, and against any bytes.
#![cfg(not(loom))]

mod node_any_bytes_are_safe;
mod node_inner_matches_model;
mod node_leaf_matches_model;
