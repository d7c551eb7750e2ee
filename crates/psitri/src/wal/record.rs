//! Fragment: the unit of the log. A record is one fragment, or several when it crosses segments.
//!
//! Thread safety: pure functions of bytes.
//!
//! Invariants:
//! 1. A fragment starts at an LSN that is a multiple of 8 and ends, padded, at another.
//! 2. The checksum covers everything but itself and the padding, and starts from a salt made of the segment's nonce and the LSN: a
//!    fragment is valid in one place of one life of a segment only.
//!
//! Failure modes: any bytes give a fragment or the reason why they are none.
use super::mix;

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 24;
/// Fragments start at multiples of this.
pub(super) const ALIGNMENT_BYTES: u64 = 8;
/// A fragment of a longer record is not started in less room than this.
pub(super) const FRAGMENT_BYTES_MIN: u64 = HEADER_BYTES as u64 + ALIGNMENT_BYTES;

const CHECKSUM_END: usize = 4;

// checksum u32, payload length u32, csn u64, op count u32, kind u8, zero [u8; 3]
const _: () = assert!(
    HEADER_BYTES == 4 + 4 + 8 + 4 + 1 + 3 && (HEADER_BYTES as u64).is_multiple_of(ALIGNMENT_BYTES)
);

/// Which part of a record a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Full),
            2 => Some(Kind::First),
            3 => Some(Kind::Middle),
            4 => Some(Kind::Last),
            _ => None,
        }
    }
}

/// A valid fragment, as read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment<'a> {
    pub kind: Kind,
    pub csn: u64,
    pub op_count: u32,
    pub payload: &'a [u8],
}

/// Bytes that a fragment takes in the log.
#[inline]
pub(super) const fn padded_bytes(payload_bytes: usize) -> u64 {
    (HEADER_BYTES as u64 + payload_bytes as u64).next_multiple_of(ALIGNMENT_BYTES)
}

#[inline]
fn salt(nonce: u64, lsn: u64) -> u32 {
    let mixed = mix(nonce ^ lsn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (mixed ^ (mixed >> 32)) as u32
}

/// What a fragment says of itself beside its payload, and where it is put.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub nonce: u64,
    pub lsn: u64,
    pub kind: Kind,
    pub csn: u64,
    pub op_count: u32,
}

impl Head {
    /// The header, without its checksum. The payload's length fits because a segment does.
    #[inline(always)]
    fn unchecked(self, payload_bytes: usize) -> [u8; HEADER_BYTES] {
        debug_assert!(
            u32::try_from(payload_bytes).is_ok() && self.lsn.is_multiple_of(ALIGNMENT_BYTES)
        );
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        header[8..16].copy_from_slice(&self.csn.to_le_bytes());
        header[16..20].copy_from_slice(&self.op_count.to_le_bytes());
        header[20] = self.kind as u8;
        header
    }

    /// The header of a fragment with this payload.
    #[inline]
    pub fn header(self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = self.unchecked(payload.len());
        let checksum = checksum(self.nonce, self.lsn, &header, payload);
        header[..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
        header
    }
}

/// A whole fragment of at most [`Small::PAYLOAD_BYTES_MAX`] bytes of payload, put together where its checksum is taken and its bytes are
/// copied in one go: for few bytes that costs less than once for the header and once for the payload.
#[repr(align(8))]
pub(super) struct Small([u8; Small::START + Small::BYTES_MAX]);

impl Small {
    const BYTES_MAX: usize = 256;
    /// What the checksum covers begins at a multiple of 8, which saves it a prologue.
    const START: usize = CHECKSUM_END;
    pub const PAYLOAD_BYTES_MAX: usize = Small::BYTES_MAX - HEADER_BYTES;

    #[inline(always)]
    pub fn new() -> Small {
        Small([0; Small::START + Small::BYTES_MAX])
    }

    /// The fragment: the header that [`Head::header`] makes, and the payload.
    #[inline(always)]
    pub fn fragment(&mut self, head: Head, payload: &[u8]) -> &[u8] {
        let fragment = &mut self.0[Small::START..][..HEADER_BYTES + payload.len()];
        fragment[..HEADER_BYTES].copy_from_slice(&head.unchecked(payload.len()));
        fragment[HEADER_BYTES..].copy_from_slice(payload);
        let salt = salt(head.nonce, head.lsn);
        let checksum = crc32c::crc32c_append(salt, &fragment[CHECKSUM_END..]);
        fragment[..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
        fragment
    }
}

#[inline]
fn checksum(nonce: u64, lsn: u64, header: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c_append(salt(nonce, lsn), &header[CHECKSUM_END..]),
        payload,
    )
}

/// Reads the fragment at the start of `bytes`, which ends where the segment's valid range ends.
pub(super) fn read(bytes: &[u8], nonce: u64, lsn: u64) -> Result<Fragment<'_>, &'static str> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err("no room for a record header");
    };
    let u32_at = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let Some(kind) = Kind::from_byte(header[20]) else {
        return Err("not a record");
    };
    let payload_bytes = u32_at(4) as usize;
    if padded_bytes(payload_bytes) > bytes.len() as u64 {
        return Err("record passes the end of the segment");
    }
    let payload = &rest[..payload_bytes];
    if u32_at(0) != checksum(nonce, lsn, header, payload) {
        return Err("record checksum does not match");
    }
    if header[21..] != [0; 3] {
        return Err("reserved bytes of a record header are not zero");
    }
    let csn = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
    Ok(Fragment {
        kind,
        csn,
        op_count: u32_at(16),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(nonce: u64, lsn: u64) -> Head {
        Head {
            nonce,
            lsn,
            kind: Kind::Full,
            csn: 7,
            op_count: 3,
        }
    }

    fn image(nonce: u64, lsn: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = head(nonce, lsn).header(payload).to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(padded_bytes(payload.len()) as usize, 0xee);
        bytes
    }

    #[test]
    fn reads_what_was_written() {
        for len in [0, 1, 7, 8, 9, 120, 4096] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let bytes = image(11, 64, &payload);
            let fragment = read(&bytes, 11, 64).unwrap();
            assert_eq!(
                (fragment.kind, fragment.csn, fragment.op_count),
                (Kind::Full, 7, 3)
            );
            assert_eq!(fragment.payload, payload);
        }
    }

    #[test]
    fn small_fragments_are_as_others() {
        for bytes in 0..=Small::PAYLOAD_BYTES_MAX {
            let payload: Vec<u8> = (0..bytes).map(|i| (i * 31) as u8).collect();
            let mut small = Small::new();
            let fragment = small.fragment(head(11, 64), &payload);
            let header = head(11, 64).header(&payload);
            assert_eq!(fragment, [&header[..], &payload].concat());
        }
    }

    #[test]
    fn is_bound_to_its_place_and_life() {
        let bytes = image(11, 64, b"payload");
        assert!(read(&bytes, 12, 64).is_err());
        assert!(read(&bytes, 11, 72).is_err());
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let bytes = image(11, 64, b"payload!");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&changed, 11, 64).is_err(), "bit {bit}");
        }
    }
}
