//! Entries and versions: what hangs at the leaves of the radix tree.
//!
//! ```text
//! entry    0 head u32 (shared: newest version, in units; 0 none)   4 key length u32   8 key, padded to 8
//! version  0 csn u64 (shared)   8 previous u32 (shared; in units; 0 none, 1 << 31 none and room)   12 kind 4 bits | length 28 bits
//!         16 payload, padded to 8
//! ```
//! The first version usually lies right behind its entry, in the same cache lines. Behind a small one there is room for a second one of
//! its size: a value that is overwritten now and then alternates between the two places, as long as nobody reads what is older. One that
//! is overwritten sooner than the writer asks what its readers see takes fresh memory.
//!
//! # Thread safety
//! One writer, any number of readers that neither lock nor write.
//!
//! # Invariants
//! 1. Key and key length never change.
//! 2. `previous` changes only to 0, when nobody is left to follow it (5), or the room is taken. Along a chain commit sequence numbers do not
//!    grow; uncommitted ones come first.
//! 3. A version is written completely before `head` leads to it (release). Its payload, kind and length change afterwards only
//!    while its commit sequence number is `CSN_UNCOMMITTED`, and nobody but the writer reads them before having seen
//!    another number there (acquire); and when it is used again (5).
//! 4. An undone version is unlinked and never used again: a reader may stand on it.
//! 5. A version that is followed by one which every reader sees, present and coming ones, is used again for the next: readers stop at the
//!    one that they see.
//! 6. A replay, beside which nobody reads, makes the newest version an uncommitted one again and fills it with what followed it (3).
//!
//! # Failure modes
//! None here; memory is allocated by the caller.

use super::arena::{LINE_BYTES, Memory, UNIT_BYTES};
use crate::sync::Ordering;

/// Commit sequence number of a version that is not committed.
pub const CSN_UNCOMMITTED: u64 = u64::MAX;
/// Bytes of a reference to an out-of-line value.
pub const LARGE_BYTES: usize = 24;

const HEAD: usize = 0;
const KEY_LEN: usize = 4;
const KEY: usize = 8;
const CSN: usize = 0;
const PREVIOUS: usize = 8;
const META: usize = 12;
const PAYLOAD: usize = 16;
const LEN_BITS: u32 = 28;
/// `previous` of a first version with room behind it.
pub(super) const ROOM: u32 = 1 << 31;
/// Payloads up to this size have room behind their first version.
const ROOM_PAYLOAD_BYTES_MAX: usize = 16;
/// Longest payload of a version. Values of this size belong elsewhere long before.
pub(super) const PAYLOAD_BYTES_MAX: usize = (1 << LEN_BITS) - 1;

const _: () = assert!(KEY.is_multiple_of(UNIT_BYTES) && PAYLOAD.is_multiple_of(UNIT_BYTES));

/// What a version says about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The payload is the value.
    Value = 1,
    /// The key is deleted; the payload is empty.
    Tombstone = 2,
    /// The payload is 24 bytes that say where the value is.
    Large = 3,
}

impl Kind {
    #[inline(always)]
    fn from_meta(meta: u32) -> Kind {
        match meta >> LEN_BITS {
            1 => Kind::Value,
            3 => Kind::Large,
            _ => Kind::Tombstone,
        }
    }
}

/// What a buffer knows about a key at a commit sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// Nothing: look in older layers.
    Absent,
    /// The key does not exist, whatever older layers say.
    Deleted,
    /// The value.
    Value(&'a [u8]),
    /// Where the value is.
    Large(&'a [u8; LARGE_BYTES]),
}

/// An entry of one buffer. Meaningful only together with the buffer that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryRef(pub(super) u32);

/// A version of one buffer. Meaningful only together with the buffer that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionRef(pub(super) u32);

/// Bytes of an entry without versions.
#[inline(always)]
pub(super) fn entry_bytes(key_len: usize) -> usize {
    KEY + key_len.next_multiple_of(UNIT_BYTES)
}

/// Bytes of a version.
#[inline(always)]
pub(super) fn version_bytes(payload_len: usize) -> usize {
    PAYLOAD + payload_len.next_multiple_of(UNIT_BYTES)
}

/// Whether there is to be room for another version behind the first one of an entry. Few delete a key twice.
#[inline(always)]
pub(super) fn wants_room(kind: Kind, payload: &[u8]) -> bool {
    kind == Kind::Value && payload.len() <= ROOM_PAYLOAD_BYTES_MAX
}

/// What keys are expected to begin with.
#[cfg(not(loom))]
pub(crate) struct Prefix<'p> {
    bytes: &'p [u8],
    /// The first 8 bytes as a big-endian number, and which of its bits there are.
    word: u64,
    mask: u64,
}

#[cfg(not(loom))]
impl<'p> Prefix<'p> {
    #[inline(always)]
    pub fn new(bytes: &'p [u8]) -> Prefix<'p> {
        Prefix {
            bytes,
            word: crate::node::head(bytes),
            mask: !u64::MAX.unbounded_shr(bytes.len() as u32 * 8),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    memory: Memory<'a>,
    at: usize,
}

impl<'a> Entry<'a> {
    #[inline(always)]
    pub fn new(memory: Memory<'a>, offset: usize) -> Entry<'a> {
        Entry { memory, at: offset }
    }

    #[inline(always)]
    pub fn of(memory: Memory<'a>, entry: EntryRef) -> Entry<'a> {
        Entry::new(memory, entry.0 as usize * UNIT_BYTES)
    }

    /// Writes an entry without versions to `offset` (`entry_bytes` fresh bytes).
    pub fn create(memory: Memory<'a>, offset: usize, key: &[u8]) -> Entry<'a> {
        memory.a32(offset + HEAD).store(0, Ordering::Relaxed);
        memory.write_u32(offset + KEY_LEN, key.len() as u32);
        memory.write_bytes(offset + KEY, key);
        Entry { memory, at: offset }
    }

    #[inline(always)]
    pub fn reference(self) -> EntryRef {
        EntryRef((self.at / UNIT_BYTES) as u32)
    }

    #[inline(always)]
    pub fn key(self) -> &'a [u8] {
        let len = self.memory.read_u32(self.at + KEY_LEN) as usize;
        self.memory.bytes(self.at + KEY, len)
    }

    /// If the key begins with a prefix: the 8 bytes behind it, as a big-endian number, filled with zeros.
    ///
    /// Words of the padded key are loaded, whatever its length: branches on it would not be foreseen.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn head_behind(self, prefix: &Prefix<'_>) -> Option<u64> {
        let len = self.memory.read_u32(self.at + KEY_LEN) as usize;
        let skip = prefix.bytes.len();
        if len < skip {
            return None;
        }
        if len == 0 {
            return Some(0);
        }
        let word = |at: usize| self.memory.read_u64_be(self.at + KEY + at);
        let first = word(0);
        if (first ^ prefix.word) & prefix.mask != 0 {
            return None;
        }
        let (word_at, first) = match skip < UNIT_BYTES {
            true => (0, first),
            false => {
                if self.key()[..skip] != *prefix.bytes {
                    return None;
                }
                if len == skip {
                    return Some(0);
                }
                let word_at = skip / UNIT_BYTES * UNIT_BYTES;
                (word_at, word(word_at))
            }
        };
        let next_at = word_at + UNIT_BYTES;
        let next_at = std::hint::select_unpredictable(next_at < len, next_at, word_at);
        let bits = (skip - word_at) as u32 * 8;
        // What is not of the key is cut off.
        let head = first << bits | word(next_at).unbounded_shr(64 - bits);
        Some(head & !u64::MAX.unbounded_shr((len - skip) as u32 * 8))
    }

    #[inline(always)]
    pub fn head(self) -> u32 {
        self.memory.a32(self.at + HEAD).load(Ordering::Acquire)
    }

    /// Asks for the cache lines of an entry whose key is this long, and of two small versions behind it.
    #[inline(always)]
    pub fn prefetch(self, key_len: usize) {
        self.memory.prefetch(self.at);
        self.memory
            .prefetch(self.at + entry_bytes(key_len) + 2 * version_bytes(UNIT_BYTES) - 1);
    }

    /// Asks for the cache lines that the first `bytes` bytes of the newest version lie in, at least one.
    #[inline(always)]
    pub fn prefetch_newest(self, bytes: usize) {
        let at = self.head() as usize * UNIT_BYTES;
        debug_assert!(bytes > 0);
        // Both ends, whether in one line or in two: no branch would foresee that.
        self.memory.prefetch(at);
        self.memory.prefetch(at + bytes - 1);
        if bytes > LINE_BYTES + 1 {
            for line in (LINE_BYTES..bytes - 1).step_by(LINE_BYTES) {
                self.memory.prefetch(at + line);
            }
        }
    }

    /// Bytes of the newest version, if it is committed.
    pub fn newest_bytes(self) -> Option<usize> {
        let head = self.head();
        let newest = (head != 0).then(|| Version::of(self.memory, VersionRef(head)))?;
        // Invariant 3.
        (newest.csn() != CSN_UNCOMMITTED).then(|| version_bytes(newest.len()))
    }

    /// What the entry says at a number, in a buffer without deleted ranges up to that number.
    #[inline(always)]
    pub fn resolve_alone(self, csn_max: u64) -> Found<'a> {
        let visible = self.visible(csn_max);
        visible.map_or(Found::Absent, |(version, _)| version.found())
    }

    #[inline(always)]
    pub fn set_head(self, version: u32) {
        self.memory
            .a32(self.at + HEAD)
            .store(version, Ordering::Release);
    }

    /// The newest version with a number of at most `csn_max`, and its number.
    #[inline(always)]
    pub fn visible(self, csn_max: u64) -> Option<(Version<'a>, u64)> {
        let mut next = self.head();
        while next != 0 {
            let version = Version::of(self.memory, VersionRef(next));
            let csn = version.csn();
            if csn <= csn_max {
                return Some((version, csn));
            }
            next = version.previous();
        }
        None
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Version<'a> {
    memory: Memory<'a>,
    at: usize,
}

impl<'a> Version<'a> {
    #[inline(always)]
    pub fn of(memory: Memory<'a>, version: VersionRef) -> Version<'a> {
        Version {
            memory,
            at: version.0 as usize * UNIT_BYTES,
        }
    }

    /// Writes an uncommitted version to `offset` (`version_bytes` bytes that are fresh or of no use to anybody).
    #[inline(always)]
    pub fn create(
        memory: Memory<'a>,
        offset: usize,
        previous: u32,
        kind: Kind,
        payload: &[u8],
    ) -> Version<'a> {
        let version = Version { memory, at: offset };
        memory
            .a64(offset + CSN)
            .store(CSN_UNCOMMITTED, Ordering::Relaxed);
        version.set_previous(previous);
        version.fill(kind, payload);
        version
    }

    /// Makes the version that follows this one where it needs no fresh memory, if it fits: in the room behind this one, or in place of the one
    /// before it, if all readers see this one (`csn`, up to `csn_seen`). True for the latter.
    #[inline(always)]
    pub fn create_next_near(
        self,
        csn: u64,
        csn_seen: u64,
        kind: Kind,
        payload: &[u8],
    ) -> Option<(Version<'a>, bool)> {
        let previous = self.previous_word();
        let has_room = previous == ROOM;
        let (at, capacity) = if has_room {
            (self.at + version_bytes(self.len()), self.capacity())
        } else if previous != 0 && csn <= csn_seen {
            let before = Version::of(self.memory, VersionRef(previous));
            (before.at, before.capacity())
        } else {
            return None;
        };
        if payload.len() > capacity {
            return None;
        }
        self.set_previous(0);
        let this = self.reference().0;
        let next = Version::create(self.memory, at, this, kind, payload);
        Some((next, !has_room))
    }

    #[inline(always)]
    fn set_previous(self, previous: u32) {
        self.memory
            .a32(self.at + PREVIOUS)
            .store(previous, Ordering::Relaxed);
    }

    #[inline(always)]
    fn previous_word(self) -> u32 {
        self.memory.a32(self.at + PREVIOUS).load(Ordering::Relaxed)
    }

    /// Writes kind and payload. Only while the version is uncommitted (invariant 3), and within its capacity.
    #[inline(always)]
    pub fn fill(self, kind: Kind, payload: &[u8]) {
        debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX && self.csn() == CSN_UNCOMMITTED);
        self.memory.write_u32(
            self.at + META,
            (kind as u32) << LEN_BITS | payload.len() as u32,
        );
        self.memory.write_bytes(self.at + PAYLOAD, payload);
    }

    #[inline(always)]
    pub fn reference(self) -> VersionRef {
        VersionRef((self.at / UNIT_BYTES) as u32)
    }

    #[inline(always)]
    pub fn csn(self) -> u64 {
        self.memory.a64(self.at + CSN).load(Ordering::Acquire)
    }

    #[inline(always)]
    pub fn stamp(self, csn: u64) {
        self.memory.a64(self.at + CSN).store(csn, Ordering::Release);
    }

    #[inline(always)]
    pub fn previous(self) -> u32 {
        self.previous_word() & !ROOM
    }

    #[inline(always)]
    pub fn kind(self) -> Kind {
        Kind::from_meta(self.memory.read_u32(self.at + META))
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.memory.read_u32(self.at + META) & PAYLOAD_BYTES_MAX as u32) as usize
    }

    /// Payload bytes that fit in place of the present ones.
    #[inline(always)]
    pub fn capacity(self) -> usize {
        self.len().next_multiple_of(UNIT_BYTES)
    }

    #[inline(always)]
    pub fn payload(self) -> &'a [u8] {
        self.memory.bytes(self.at + PAYLOAD, self.len())
    }

    #[inline(always)]
    pub fn found(self) -> Found<'a> {
        match self.kind() {
            Kind::Value => Found::Value(self.payload()),
            Kind::Tombstone => Found::Deleted,
            Kind::Large => match self.payload().try_into() {
                Ok(pointer) => Found::Large(pointer),
                // `write` accepts no other length; a wrong one must not become a wrong value.
                Err(_) => Found::Deleted,
            },
        }
    }
}
