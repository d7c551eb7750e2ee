//! The superblock: where a checkpoint's tree, page map and log begin. Two slots, written in turn.
//!
//! # Invariants
//! (1) A slot fits in one 512-byte sector and carries a checksum: a torn write leaves it invalid, and the other slot,
//!     which is not touched by that write, still names the previous checkpoint.
//! (2) Checkpoint `g` goes to slot `g % 2`; the newest valid slot wins at open.
//! (3) Everything a slot refers to was flushed before the slot was written.

use crate::node::{NodeRef, PAGE_BYTES};

pub(crate) const FORMAT_VERSION: u32 = 3;
const MAGIC: [u8; 8] = *b"PsiTriDB";
/// Bytes of a slot that carry something.
pub(crate) const SUPERBLOCK_BYTES: usize = 128;
const _: () = assert!(SUPERBLOCK_BYTES <= 512);
/// Numbers that count up, and positions in the log, are less: no database comes to there.
const NUMBER_MAX: u64 = 1 << 62;
const TREE_CSN_AT: usize = 112;
const _: () = assert!(TREE_CSN_AT + 8 <= SUPERBLOCK_BYTES - 4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Checkpoint number; also chooses the slot.
    pub generation: u64,
    /// Version of the tree that the checkpoint holds.
    pub tree_version: u64,
    /// Newest commit known when the checkpoint was taken.
    pub csn: u64,
    /// No tree of a keyspace has anything of a commit after this one. At most `csn`.
    pub tree_csn: u64,
    /// Tree of keyspaces.
    pub catalog: NodeRef,
    pub catalog_keys: u64,
    /// Catalog changes up to this CSN are in the catalog tree.
    pub catalog_csn: u64,
    /// Next keyspace id; ids are never used twice.
    pub keyspace_next: u32,
    /// Pages in the data file.
    pub page_end: u64,
    /// First page of the table of map pieces, number of pieces, checksum of the table.
    pub map_table_page: u64,
    pub map_pieces: u32,
    pub map_table_crc: u32,
    /// Replay begins here.
    pub wal_start_lsn: u64,
    /// The log was flushed up to here when the checkpoint was taken.
    pub wal_durable_lsn: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotError {
    /// Never written, or torn.
    Invalid(&'static str),
    /// Written by another release.
    Version(u32),
}

impl Superblock {
    /// File offset of the slot that this generation is written to.
    pub fn offset(generation: u64) -> u64 {
        generation % 2 * PAGE_BYTES as u64
    }

    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = Vec::with_capacity(SUPERBLOCK_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        for field in [
            self.generation,
            self.tree_version,
            self.csn,
            self.catalog.to_bits(),
            self.catalog_keys,
            self.catalog_csn,
            self.page_end,
            self.map_table_page,
            self.wal_start_lsn,
            self.wal_durable_lsn,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for field in [self.keyspace_next, self.map_pieces, self.map_table_crc] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        debug_assert!(self.tree_csn <= self.csn);
        out.resize(TREE_CSN_AT, 0);
        out.extend_from_slice(&self.tree_csn.to_le_bytes());
        out.resize(SUPERBLOCK_BYTES - 4, 0);
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.try_into().expect("the fields fill the slot")
    }

    pub fn decode(bytes: &[u8]) -> Result<Superblock, SlotError> {
        let Some(bytes) = bytes.get(..SUPERBLOCK_BYTES) else {
            return Err(SlotError::Invalid("slot is cut short"));
        };
        if bytes[..8] != MAGIC {
            return Err(SlotError::Invalid("no PsiTri superblock"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        // The checksum's place is part of every version's format, so that damage is told from a newer version.
        if u32_at(SUPERBLOCK_BYTES - 4) != crc32c::crc32c(&bytes[..SUPERBLOCK_BYTES - 4]) {
            return Err(SlotError::Invalid("superblock checksum does not match"));
        }
        if u32_at(8) != FORMAT_VERSION {
            return Err(SlotError::Version(u32_at(8)));
        }
        if u32_at(12) != PAGE_BYTES as u32 {
            return Err(SlotError::Invalid("page size is not 4096"));
        }
        let field = |index: usize| u64_at(16 + 8 * index);
        let superblock = Superblock {
            generation: field(0),
            tree_version: field(1),
            csn: field(2),
            tree_csn: u64_at(TREE_CSN_AT).min(field(2)),
            catalog: NodeRef::from_bits(field(3)),
            catalog_keys: field(4),
            catalog_csn: field(5),
            page_end: field(6),
            map_table_page: field(7),
            wal_start_lsn: field(8),
            wal_durable_lsn: field(9),
            keyspace_next: u32_at(96),
            map_pieces: u32_at(100),
            map_table_crc: u32_at(104),
        };
        let numbers = [
            superblock.generation,
            superblock.tree_version,
            superblock.csn,
            superblock.catalog_csn,
            superblock.wal_start_lsn,
            superblock.wal_durable_lsn,
        ];
        if numbers.iter().any(|&number| number >= NUMBER_MAX)
            || superblock.keyspace_next == u32::MAX
        {
            return Err(SlotError::Invalid("a number that no database comes to"));
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Superblock {
        Superblock {
            generation: 7,
            tree_version: 12,
            csn: 99,
            tree_csn: 98,
            catalog: NodeRef::new(5, 3, 9),
            catalog_keys: 2,
            catalog_csn: 40,
            keyspace_next: 3,
            page_end: 1000,
            map_table_page: 17,
            map_pieces: 1,
            map_table_crc: 0xdead_beef,
            wal_start_lsn: 4096,
            wal_durable_lsn: 8192,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn numbers_that_cannot_be_counted_on_from_are_refused() {
        let far = NUMBER_MAX;
        let forged = [
            Superblock {
                generation: far,
                ..sample()
            },
            Superblock {
                tree_version: far,
                ..sample()
            },
            Superblock {
                csn: u64::MAX,
                ..sample()
            },
            Superblock {
                catalog_csn: far,
                ..sample()
            },
            Superblock {
                wal_start_lsn: far,
                ..sample()
            },
            Superblock {
                wal_durable_lsn: far,
                ..sample()
            },
            Superblock {
                keyspace_next: u32::MAX,
                ..sample()
            },
        ];
        for superblock in forged {
            let decoded = Superblock::decode(&superblock.encode());
            assert!(
                matches!(decoded, Err(SlotError::Invalid(_))),
                "{superblock:?}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = sample().encode();
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..SUPERBLOCK_BYTES - 4]);
        bytes[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Err(SlotError::Version(9)));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_error_or_a_checksummed_superblock(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Superblock::decode(&bytes).is_err());
        }

        #[test]
        fn every_bit_flip_is_noticed(bit in 0..SUPERBLOCK_BYTES * 8) {
            let mut bytes = sample().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes).is_err());
        }
    }
}
