//! The write buffer by itself: against a model, its cursors, and readers beside its writer. `loom_buffer` explores its interleavings.
#![cfg(not(loom))]

mod buffer_cursors;
mod buffer_model;
mod buffer_readers_beside_the_writer;
