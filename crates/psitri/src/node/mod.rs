//! Node codecs: the packed, immutable leaves, deltas and inner nodes of the tree, as pure functions of bytes.
//!
//! Nothing here does I/O. A node is a byte image whose length is a multiple of 64 bytes; [`NodeRef`] says where in the data file
//! it lives. `docs/format.md` draws every encoding.
//!
//! Thread safety: images are immutable once sealed, views are `Copy` borrows of them, so everything here may be shared freely.
//!
//! Trust: bytes from a file are *checked* (checksum and address, [`check`]) and *validated* (structure, [`validate`]) on first
//! touch. Views made afterwards rely on the validated structure and do not check again; see the invariants in `leaf.rs` and
//! `inner.rs`. Any bytes that do not validate give a [`NodeError`], never a panic.
//!
//! Failure modes: a torn, misdirected or damaged image fails [`check`]; an image that was damaged before it was sealed, or that
//! was made by a defect, fails [`validate`] or [`validate_deep`].

mod bytes;
mod delta;
mod error;
mod header;
mod inner;
mod inner_pack;
mod inner_validate;
mod leaf;
mod leaf_cursor;
mod leaf_encode;
mod leaf_pack;
pub(crate) mod leaf_search;
mod leaf_validate;
mod reference;
mod simd;

pub(crate) use bytes::common_prefix;
#[cfg(not(loom))]
pub(crate) use bytes::compare_keys;
pub(crate) use bytes::head;
pub use bytes::shortest_separator;
pub use delta::{Delta, DeltaPacker, Mark};
pub use error::NodeError;
pub use header::{
    NodeKind, birth, check, is_delta, is_leaf, level, seal, units, validate, validate_deep,
};
pub use inner::{Inner, leads_to_deltas, patch_child};
pub use inner_pack::{InnerImage, InnerPacker};
pub use leaf::{Leaf, LeafEncoding, patch_value};
pub use leaf_cursor::{LeafCursor, Visited};
pub use leaf_pack::{LeafImage, LeafPacker};
#[cfg(not(loom))]
pub(crate) use leaf_search::Stepwise;
pub use reference::{NodeRef, Stored, SubtreeRef, ValuePointer};

/// Unit of space allocation in the data file, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Unit of node addresses and lengths, in bytes.
pub const UNIT_BYTES: usize = 64;
/// Units in a page.
pub const UNITS_PER_PAGE: usize = PAGE_BYTES / UNIT_BYTES;
/// Packers keep nodes at or below this size unless a single entry (leaf) or four children (inner) need more.
pub const NODE_BYTES_SOFT_MAX: usize = PAGE_BYTES;
/// Longest value, in bytes, that may be stored inside a leaf; longer ones are [`Stored::External`].
pub const VALUE_INLINE_BYTES_MAX: usize = 512;
/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 65_536;
