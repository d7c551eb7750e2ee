//! PsiTri: an embedded, transactional, ordered key-value store.
#![deny(unsafe_code)]

pub mod buffer;
pub mod node;
mod pins;
pub mod storage;
mod sync;
pub mod wal;
