//! Operations: what a record's payload says.
//!
//! Each operation is a tag byte and its fields; lengths and ids are variable-length integers of 7 bits a byte, low bits first. The
//! keyspace is written only when it differs from that of the operation before. `docs/format.md` has the byte boxes.
//!
//! Thread safety: plain data.
//!
//! Failure modes: any bytes give operations or an error, never a panic: they may come from a damaged file with a lucky checksum.
use std::fmt;

/// Longest key that is accepted.
const KEY_BYTES_MAX: u64 = 65_536;
/// Longest value.
const VALUE_BYTES_MAX: u64 = u32::MAX as u64;
/// Bytes of the address of a value that is stored outside of the log.
pub const POINTER_BYTES: usize = 24;

const KIND_MASK: u8 = 0x0f;
/// `DeleteRange`: there is an upper bound.
const FLAG_HAS_HIGH: u8 = 0x40;
/// `CreateKeyspace`: its entries expire.
const FLAG_EXPIRY: u8 = 0x40;
/// The keyspace is that of the operation before.
const FLAG_SAME_KEYSPACE: u8 = 0x80;

const PUT: u8 = 1;
const PUT_LARGE: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const CREATE_KEYSPACE: u8 = 5;
const DROP_KEYSPACE: u8 = 6;
const RENAME_KEYSPACE: u8 = 7;
const PLACE_SUBTREE: u8 = 8;

/// One logged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are what their names say
pub enum Op<'a> {
    /// Sets a value.
    Put {
        keyspace: u32,
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Sets a value that lies in the data file.
    PutLarge {
        keyspace: u32,
        key: &'a [u8],
        pointer: [u8; POINTER_BYTES],
    },
    /// Removes a key.
    Delete { keyspace: u32, key: &'a [u8] },
    /// Removes the keys from `lo` to below `hi`, or to the end.
    DeleteRange {
        keyspace: u32,
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
    },
    /// Names a new keyspace. With `expiry` its entries expire, after so many milliseconds if they do not say themselves; 0 is never.
    CreateKeyspace {
        id: u32,
        expiry: Option<u64>,
        name: &'a [u8],
    },
    /// Removes a keyspace and its keys.
    DropKeyspace { id: u32 },
    /// Gives a keyspace another name.
    RenameKeyspace { id: u32, name: &'a [u8] },
    /// Makes a keyspace the subtree at a key of another one; a new keyspace, if there is none with the id.
    PlaceSubtree { id: u32, parent: u32, key: &'a [u8] },
}

/// Collects the operations of a transaction; reused from one to the next.
///
/// ```
/// use psitri::wal::ops::{Op, OpsBuilder, OpsIter};
/// let mut ops = OpsBuilder::new();
/// ops.put(1, b"key", b"value");
/// let read: Vec<_> = OpsIter::new(ops.payload(), ops.op_count()).collect::<Result<_, _>>()?;
/// assert_eq!(read, [Op::Put { keyspace: 1, key: b"key", value: b"value" }]);
/// # Ok::<(), psitri::wal::ops::OpsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpsBuilder {
    bytes: Vec<u8>,
    op_count: u32,
    keyspace: Option<u32>,
}

/// A place in a builder to come back to.
#[derive(Clone, Copy, Debug)]
pub struct OpsMark {
    bytes: usize,
    op_count: u32,
    keyspace: Option<u32>,
}

impl OpsBuilder {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        OpsBuilder::default()
    }

    /// Forgets all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.op_count = 0;
        self.keyspace = None;
    }

    /// Memory that it holds.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Makes room for about so many bytes more.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Number of operations.
    #[must_use]
    pub fn op_count(&self) -> u32 {
        self.op_count
    }

    /// True when no further operation can be counted; the caller refuses it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.op_count == u32::MAX
    }

    /// The encoded operations.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of the payload.
    #[must_use]
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// True when there is no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.op_count == 0
    }

    /// The current end, for [`OpsBuilder::rewind`].
    #[must_use]
    pub fn mark(&self) -> OpsMark {
        OpsMark {
            bytes: self.bytes.len(),
            op_count: self.op_count,
            keyspace: self.keyspace,
        }
    }

    /// Drops everything since the mark, which was made here and not before a `clear`.
    pub fn rewind(&mut self, mark: OpsMark) {
        debug_assert!(mark.bytes <= self.bytes.len() && mark.op_count <= self.op_count);
        self.bytes.truncate(mark.bytes);
        self.op_count = mark.op_count;
        self.keyspace = mark.keyspace;
    }

    /// Adds [`Op::Put`].
    #[inline]
    pub fn put(&mut self, keyspace: u32, key: &[u8], value: &[u8]) {
        self.bytes.reserve(key.len() + value.len() + 24);
        self.begin(PUT, keyspace);
        self.field(key);
        self.field(value);
    }

    /// Adds [`Op::PutLarge`].
    pub fn put_large(&mut self, keyspace: u32, key: &[u8], pointer: &[u8; POINTER_BYTES]) {
        self.begin(PUT_LARGE, keyspace);
        self.field(key);
        self.bytes.extend_from_slice(pointer);
    }

    /// Adds [`Op::Delete`].
    #[inline]
    pub fn delete(&mut self, keyspace: u32, key: &[u8]) {
        self.begin(DELETE, keyspace);
        self.field(key);
    }

    /// Adds [`Op::DeleteRange`].
    pub fn delete_range(&mut self, keyspace: u32, lo: &[u8], hi: Option<&[u8]>) {
        self.begin(
            DELETE_RANGE | if hi.is_some() { FLAG_HAS_HIGH } else { 0 },
            keyspace,
        );
        self.field(lo);
        if let Some(hi) = hi {
            self.field(hi);
        }
    }

    /// Adds an operation on an entry or a range of them.
    #[inline]
    pub fn write(&mut self, keyspace: u32, key: &[u8], write: Write<'_>) {
        match write {
            Write::Put(value) => self.put(keyspace, key, value),
            Write::PutLarge(pointer) => self.put_large(keyspace, key, pointer),
            Write::Delete => self.delete(keyspace, key),
            Write::DeleteRange(hi) => self.delete_range(keyspace, key, hi),
        }
    }

    /// Adds [`Op::CreateKeyspace`].
    pub fn create_keyspace(&mut self, id: u32, expiry: Option<u64>, name: &[u8]) {
        let flag = if expiry.is_some() { FLAG_EXPIRY } else { 0 };
        self.begin_on_keyspace(CREATE_KEYSPACE | flag, id);
        if let Some(after) = expiry {
            self.bytes.extend_from_slice(&after.to_le_bytes());
        }
        self.field(name);
    }

    /// Adds [`Op::DropKeyspace`].
    pub fn drop_keyspace(&mut self, id: u32) {
        self.begin_on_keyspace(DROP_KEYSPACE, id);
    }

    /// Adds [`Op::RenameKeyspace`].
    pub fn rename_keyspace(&mut self, id: u32, name: &[u8]) {
        self.begin_on_keyspace(RENAME_KEYSPACE, id);
        self.field(name);
    }

    /// Adds [`Op::PlaceSubtree`].
    pub fn place_subtree(&mut self, id: u32, parent: u32, key: &[u8]) {
        self.begin_on_keyspace(PLACE_SUBTREE, id);
        self.number(u64::from(parent));
        self.field(key);
    }

    /// Takes the operations of another list over, behind its own, and leaves it empty.
    pub fn take(&mut self, other: &mut OpsBuilder) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            // A list names a keyspace where it first has one.
            self.bytes.extend_from_slice(&other.bytes);
            self.op_count = self.op_count.saturating_add(other.op_count);
            self.keyspace = other.keyspace.or(self.keyspace);
        }
        other.clear();
    }

    /// The operation on entries that begins at a byte of the payload, where that ended when the operation was added. None of the list is on keyspaces as a whole.
    /// Without the checks of [`OpsIter`]: these bytes were written here.
    ///
    /// # Panics
    /// If that is not so.
    #[inline]
    #[must_use]
    pub fn entry_at(&self, at: usize) -> EntryOp<'_> {
        let (tag, mut at) = (self.bytes[at], at + 1);
        let keyspace = (tag & FLAG_SAME_KEYSPACE == 0).then(|| self.number_at(&mut at) as u32);
        let key = self.field_at(&mut at);
        let write = match tag & KIND_MASK {
            PUT => Write::Put(self.field_at(&mut at)),
            DELETE => Write::Delete,
            DELETE_RANGE if tag & FLAG_HAS_HIGH == 0 => Write::DeleteRange(None),
            DELETE_RANGE => Write::DeleteRange(Some(self.field_at(&mut at))),
            PUT_LARGE => {
                let pointer = self.bytes[at..at + POINTER_BYTES].try_into();
                at += POINTER_BYTES;
                Write::PutLarge(pointer.expect("a pointer has a fixed size"))
            }
            _ => panic!("no operation on entries begins here"),
        };
        EntryOp {
            keyspace,
            key,
            write,
            end: at,
        }
    }

    #[inline(always)]
    fn field_at(&self, at: &mut usize) -> &[u8] {
        let bytes = self.number_at(at) as usize;
        let field = &self.bytes[*at..*at + bytes];
        *at += bytes;
        field
    }

    #[inline(always)]
    fn number_at(&self, at: &mut usize) -> u64 {
        let mut number = 0;
        let mut shift = 0;
        loop {
            let byte = self.bytes[*at];
            *at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    }

    /// Adds any operation.
    pub fn push(&mut self, op: Op<'_>) {
        match op {
            Op::Put {
                keyspace,
                key,
                value,
            } => self.put(keyspace, key, value),
            Op::PutLarge {
                keyspace,
                key,
                pointer,
            } => self.put_large(keyspace, key, &pointer),
            Op::Delete { keyspace, key } => self.delete(keyspace, key),
            Op::DeleteRange { keyspace, lo, hi } => self.delete_range(keyspace, lo, hi),
            Op::CreateKeyspace { id, expiry, name } => self.create_keyspace(id, expiry, name),
            Op::DropKeyspace { id } => self.drop_keyspace(id),
            Op::RenameKeyspace { id, name } => self.rename_keyspace(id, name),
            Op::PlaceSubtree { id, parent, key } => self.place_subtree(id, parent, key),
        }
    }

    #[inline]
    fn begin(&mut self, tag: u8, keyspace: u32) {
        debug_assert!(!self.is_full());
        self.op_count = self.op_count.saturating_add(1);
        if self.keyspace == Some(keyspace) {
            self.bytes.push(tag | FLAG_SAME_KEYSPACE);
        } else {
            self.bytes.push(tag);
            self.number(u64::from(keyspace));
            self.keyspace = Some(keyspace);
        }
    }

    fn begin_on_keyspace(&mut self, tag: u8, id: u32) {
        self.op_count = self.op_count.saturating_add(1);
        self.bytes.push(tag);
        self.number(u64::from(id));
    }

    #[inline]
    fn field(&mut self, field: &[u8]) {
        self.number(field.len() as u64);
        self.bytes.extend_from_slice(field);
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

/// An operation on an entry or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOp<'a> {
    /// If it is another one than that of the operation before.
    pub keyspace: Option<u32>,
    /// The key, or the first of a range.
    pub key: &'a [u8],
    /// What becomes of it.
    pub write: Write<'a>,
    /// Where it ends in the payload.
    pub end: usize,
}

/// What an operation on an entry does, or on a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a value.
    Put(&'a [u8]),
    /// Sets a value that lies in the data file.
    PutLarge(&'a [u8; POINTER_BYTES]),
    /// Removes the key.
    Delete,
    /// Removes the keys from this one to below another, or to the end.
    DeleteRange(Option<&'a [u8]>),
}

/// Why a payload is no list of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpsError {
    /// Byte in the payload.
    pub offset: usize,
    /// What was found.
    pub what: &'static str,
}

impl fmt::Display for OpsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {} of a log record", self.what, self.offset)
    }
}

impl std::error::Error for OpsError {}

/// Reads operations back. The first error ends it.
#[derive(Clone, Debug)]
pub struct OpsIter<'a> {
    payload: &'a [u8],
    at: usize,
    remaining: u32,
    keyspace: Option<u32>,
    done: bool,
}

impl<'a> OpsIter<'a> {
    /// Reads `op_count` operations, which must fill the payload exactly.
    #[must_use]
    pub fn new(payload: &'a [u8], op_count: u32) -> Self {
        OpsIter {
            payload,
            at: 0,
            remaining: op_count,
            keyspace: None,
            done: false,
        }
    }

    fn error(&self, what: &'static str) -> OpsError {
        OpsError {
            offset: self.at,
            what,
        }
    }

    fn byte(&mut self) -> Result<u8, OpsError> {
        let byte = *self
            .payload
            .get(self.at)
            .ok_or(self.error("the payload ends inside an operation"))?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self, max: u64) -> Result<u64, OpsError> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // One number has one encoding.
                let shortest = byte != 0 || shift == 0;
                return if number <= max && shortest {
                    Ok(number)
                } else {
                    Err(self.error("number out of range"))
                };
            }
        }
        Err(self.error("number out of range"))
    }

    fn id(&mut self) -> Result<u32, OpsError> {
        let number = self.number(u64::from(u32::MAX))?;
        u32::try_from(number).map_err(|_| self.error("number out of range"))
    }

    fn field(&mut self, bytes_max: u64) -> Result<&'a [u8], OpsError> {
        let len = self.number(bytes_max)?;
        self.bytes(usize::try_from(len).map_err(|_| self.error("number out of range"))?)
    }

    fn word(&mut self) -> Result<u64, OpsError> {
        let bytes = self.bytes(8)?.try_into().expect("8 bytes were asked for");
        Ok(u64::from_le_bytes(bytes))
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], OpsError> {
        let end = self
            .at
            .checked_add(len)
            .filter(|&end| end <= self.payload.len());
        let end = end.ok_or(self.error("the payload ends inside an operation"))?;
        let bytes = &self.payload[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn op(&mut self) -> Result<Op<'a>, OpsError> {
        let tag = self.byte()?;
        let kind = tag & KIND_MASK;
        let allowed = match kind {
            PUT | PUT_LARGE | DELETE => FLAG_SAME_KEYSPACE,
            DELETE_RANGE => FLAG_SAME_KEYSPACE | FLAG_HAS_HIGH,
            CREATE_KEYSPACE => FLAG_EXPIRY,
            _ => 0,
        };
        if tag & !KIND_MASK & !allowed != 0 {
            return Err(self.error("unknown flag of an operation"));
        }
        if (CREATE_KEYSPACE..=PLACE_SUBTREE).contains(&kind) {
            let id = self.id()?;
            return Ok(match kind {
                PLACE_SUBTREE => Op::PlaceSubtree {
                    id,
                    parent: self.id()?,
                    key: self.field(KEY_BYTES_MAX)?,
                },
                CREATE_KEYSPACE => Op::CreateKeyspace {
                    id,
                    expiry: match tag & FLAG_EXPIRY {
                        0 => None,
                        _ => Some(self.word()?),
                    },
                    name: self.field(KEY_BYTES_MAX)?,
                },
                DROP_KEYSPACE => Op::DropKeyspace { id },
                _ => Op::RenameKeyspace {
                    id,
                    name: self.field(KEY_BYTES_MAX)?,
                },
            });
        }
        if !matches!(kind, PUT | PUT_LARGE | DELETE | DELETE_RANGE) {
            return Err(self.error("unknown operation"));
        }
        if tag & FLAG_SAME_KEYSPACE == 0 {
            self.keyspace = Some(self.id()?);
        }
        let keyspace = self
            .keyspace
            .ok_or(self.error("operation without a keyspace"))?;
        let key = self.field(KEY_BYTES_MAX)?;
        Ok(match kind {
            PUT => Op::Put {
                keyspace,
                key,
                value: self.field(VALUE_BYTES_MAX)?,
            },
            PUT_LARGE => {
                let mut pointer = [0; POINTER_BYTES];
                pointer.copy_from_slice(self.bytes(POINTER_BYTES)?);
                Op::PutLarge {
                    keyspace,
                    key,
                    pointer,
                }
            }
            DELETE => Op::Delete { keyspace, key },
            _ => {
                let hi = if tag & FLAG_HAS_HIGH != 0 {
                    Some(self.field(KEY_BYTES_MAX)?)
                } else {
                    None
                };
                Op::DeleteRange {
                    keyspace,
                    lo: key,
                    hi,
                }
            }
        })
    }
}

impl<'a> Iterator for OpsIter<'a> {
    type Item = Result<Op<'a>, OpsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.remaining == 0 {
            self.done = true;
            let rest = self.at < self.payload.len();
            return rest.then(|| Err(self.error("the payload goes on after its last operation")));
        }
        self.remaining -= 1;
        let op = self.op();
        self.done = op.is_err();
        Some(op)
    }
}
