//! What can be wrong with a node image. The caller knows the file and the offset and adds them.

/// A node image that cannot be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The bytes are not a whole node: too short, or not as long as the address or the header says.
    #[error("node has {found} bytes where {expected} are expected")]
    Length {
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// The checksum over address and content does not match: a torn, stale, misdirected or damaged node.
    #[error("node checksum is {found:#010x} where {expected:#010x} is expected")]
    Checksum {
        /// Checksum computed from the content.
        expected: u32,
        /// Checksum stored in the node.
        found: u32,
    },
    /// The kind byte names no known node encoding.
    #[error("node kind {0} is unknown to this version")]
    Kind(u8),
    /// The content contradicts itself.
    #[error("node is malformed: {0}")]
    Malformed(&'static str),
}

impl NodeError {
    /// A short description without figures, for a `Corrupted { what, where }` of the layer above.
    pub fn what(&self) -> &'static str {
        match self {
            NodeError::Length { .. } => "node length",
            NodeError::Checksum { .. } => "node checksum",
            NodeError::Kind(_) => "node kind",
            NodeError::Malformed(what) => what,
        }
    }
}
