//! What can go wrong in the write buffer.

/// Errors of the write buffer. After any of them the buffer holds exactly what it held before the call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The arena of this generation is at its limit: freeze the generation, or spill the transaction.
    #[error("the write buffer is full: freeze it and continue in a new one")]
    Full,
    /// Keys are at most 65,536 bytes.
    #[error("a key of {bytes} bytes is longer than the limit of 65536 bytes")]
    KeyTooLong { bytes: usize },
    /// Values of this size must be stored out of line before they come here.
    #[error("a value of {bytes} bytes does not fit into the write buffer: store it out of line")]
    ValueTooLong { bytes: usize },
    /// The operating system gave no address space or memory.
    #[error("cannot reserve {bytes} bytes of address space for the write buffer")]
    Map {
        bytes: usize,
        #[source]
        source: std::io::Error,
    },
}
