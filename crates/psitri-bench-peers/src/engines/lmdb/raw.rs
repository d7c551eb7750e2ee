//! The functions of LMDB that the adapter needs, with lifetimes and errors: environment, transactions, cursors.
//!
//! Invariants: (1) a transaction is used while its environment is open, and a cursor while its transaction is, both by lifetimes, but for
//! readers, whose pool ends before the environment; (2) bytes that were read are lent until the transaction changes or ends: reads in a
//! write transaction take `&self` and writes `&mut self`, and a reader's pages do not change while it lives; (3) a write transaction ends
//! in the thread that began it, since it is not `Send`; (4) the environment is opened with MDB_NOTLS, so that a reader has its slot from
//! its begin to its end, whichever thread renews it; (5) nobody else changes the mapped file: it is in a directory that only this process
//! uses, and is open once.
//! Failures: every code but success is an error with LMDB's message; "not found" is `None` where it can be.
#![allow(unsafe_code)] // The C API of LMDB.
use anyhow::{Result, bail};
use lmdb_master_sys as ffi;
use std::ffi::{CStr, CString, c_int, c_uint};
use std::fs::File;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

fn check(code: c_int) -> Result<()> {
    if code == ffi::MDB_SUCCESS {
        return Ok(());
    }
    // SAFETY: the message is a constant string, or one for the system's error that stays until the next call in this thread.
    let message = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    bail!("LMDB: {} ({code})", message.to_string_lossy())
}

#[inline]
fn value(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val {
        mv_size: bytes.len(),
        mv_data: bytes.as_ptr().cast_mut().cast(),
    }
}

const NOTHING: ffi::MDB_val = ffi::MDB_val {
    mv_size: 0,
    mv_data: ptr::null_mut(),
};

/// # Safety
/// The value came from LMDB and stays for `'a`.
#[inline]
unsafe fn bytes<'a>(value: &ffi::MDB_val) -> &'a [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise; LMDB gives the address of as many bytes.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

pub struct Environment {
    raw: NonNull<ffi::MDB_env>,
    table: ffi::MDB_dbi,
}

// SAFETY: LMDB synchronises everything that is done to an environment, readers and the one writer included.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

impl Environment {
    /// Opens the database in the directory at `path` and its main table. It is created if it is not there.
    pub fn open(path: &Path, flags: c_uint, map_bytes: usize, readers_max: c_uint) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let mut raw = ptr::null_mut();
        // SAFETY: LMDB writes one pointer.
        check(unsafe { ffi::mdb_env_create(&mut raw) })?;
        let Some(raw) = NonNull::new(raw) else {
            bail!("LMDB made no environment");
        };
        // From here on it is closed when dropped, as LMDB asks also after an opening that failed.
        let mut this = Self { raw, table: 0 };
        // SAFETY: the environment exists and is not open.
        check(unsafe { ffi::mdb_env_set_mapsize(raw.as_ptr(), map_bytes) })?;
        // SAFETY: as above.
        check(unsafe { ffi::mdb_env_set_maxreaders(raw.as_ptr(), readers_max) })?;
        let flags = flags | ffi::MDB_NOTLS;
        // SAFETY: as above; the name ends with a zero. Invariant (5).
        check(unsafe { ffi::mdb_env_open(raw.as_ptr(), name.as_ptr(), flags, 0o600) })?;
        let reader = this.begin_read()?;
        let mut table = 0;
        // SAFETY: the transaction is active; without a name it is the main table, which is always there and stays open.
        check(unsafe { ffi::mdb_dbi_open(reader.raw.as_ptr(), ptr::null(), 0, &mut table) })?;
        drop(reader);
        this.table = table;
        Ok(this)
    }

    /// Flushes everything that was committed.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the environment is open.
        check(unsafe { ffi::mdb_env_sync(self.raw.as_ptr(), 1) })
    }

    fn begin(&self, flags: c_uint) -> Result<NonNull<ffi::MDB_txn>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open; LMDB writes one pointer.
        check(unsafe { ffi::mdb_txn_begin(self.raw.as_ptr(), ptr::null_mut(), flags, &mut raw) })?;
        match NonNull::new(raw) {
            Some(raw) => Ok(raw),
            None => bail!("LMDB began no transaction"),
        }
    }

    /// Waits for the writer before.
    #[inline]
    pub fn begin_write(&self) -> Result<WriteTransaction<'_>> {
        Ok(WriteTransaction {
            raw: self.begin(0)?,
            environment: self,
            is_open: true,
        })
    }

    pub fn begin_read(&self) -> Result<ReadTransaction> {
        Ok(ReadTransaction {
            raw: self.begin(ffi::MDB_RDONLY)?,
            table: self.table,
        })
    }

    pub fn info(&self) -> Result<ffi::MDB_envinfo> {
        // SAFETY: the structure is integers and an address, for which zero is a value.
        let mut info: ffi::MDB_envinfo = unsafe { std::mem::zeroed() };
        // SAFETY: the environment is open; LMDB writes the structure.
        check(unsafe { ffi::mdb_env_info(self.raw.as_ptr(), &mut info) })?;
        Ok(info)
    }

    /// Writes what is newest to a file, without free pages.
    pub fn copy_compacted(&self, file: &File) -> Result<()> {
        // SAFETY: the environment and the file are open.
        check(unsafe {
            ffi::mdb_env_copyfd2(self.raw.as_ptr(), file.as_raw_fd(), ffi::MDB_CP_COMPACT)
        })
    }
}

impl Drop for Environment {
    /// Flushes nothing. All transactions are over: readers hold no reference, so this is the owner's promise to keep.
    fn drop(&mut self) {
        // SAFETY: nothing else refers to the environment, which is not used again.
        unsafe { ffi::mdb_env_close(self.raw.as_ptr()) };
    }
}

/// The version of the library.
pub fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: LMDB writes three integers.
    unsafe { ffi::mdb_version(&mut major, &mut minor, &mut patch) };
    format!("{major}.{minor}.{patch}")
}

pub struct WriteTransaction<'e> {
    // Not `Send`, by the pointer: invariant (3).
    raw: NonNull<ffi::MDB_txn>,
    environment: &'e Environment,
    is_open: bool,
}

impl WriteTransaction<'_> {
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        // SAFETY: the transaction is open, and the bytes stay until it is written to: invariant (2).
        unsafe { get(self.raw, self.environment.table, key) }
    }

    /// The greatest key.
    pub fn last_key(&self) -> Result<Option<Vec<u8>>> {
        let mut cursor = Entries::open(self.raw, self.environment.table)?;
        cursor.last()?;
        Ok(cursor.entry().map(|(key, _)| key.to_vec()))
    }

    #[inline]
    pub fn put(&mut self, key: &[u8], data: &[u8]) -> Result<()> {
        self.put_with(key, data, 0)
    }

    /// Adds an entry behind all others, without a search; an error if there is one that is not before it.
    #[inline]
    pub fn append(&mut self, key: &[u8], data: &[u8]) -> Result<()> {
        self.put_with(key, data, ffi::MDB_APPEND)
    }

    #[inline]
    fn put_with(&mut self, key: &[u8], data: &[u8], flags: c_uint) -> Result<()> {
        let (mut key, mut data) = (value(key), value(data));
        // SAFETY: the transaction is open; LMDB copies both.
        check(unsafe {
            ffi::mdb_put(
                self.raw.as_ptr(),
                self.environment.table,
                &mut key,
                &mut data,
                flags,
            )
        })
    }

    #[inline]
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        let mut key = value(key);
        // SAFETY: the transaction is open; without data the entry goes whatever its value.
        let code = unsafe {
            ffi::mdb_del(
                self.raw.as_ptr(),
                self.environment.table,
                &mut key,
                ptr::null_mut(),
            )
        };
        if code == ffi::MDB_NOTFOUND {
            return Ok(());
        }
        check(code)
    }

    /// Deletes the first or the last entry, and shows it before. False if there is none.
    #[inline]
    pub fn pop(&mut self, first: bool, look: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        let mut cursor = Entries::open(self.raw, self.environment.table)?;
        let found = match first {
            true => cursor.first()?,
            false => cursor.last()?,
        };
        let Some((key, value)) = cursor.entry().filter(|_| found) else {
            return Ok(false);
        };
        look(key, value);
        // SAFETY: the transaction is borrowed for writing, and what was shown is not looked at any more.
        unsafe { cursor.delete()? };
        Ok(true)
    }

    /// Deletes the entries, all or those of a range, for which `is_unwanted` holds, and says how many they were. By one cursor, which
    /// asks about the entries in their order.
    pub fn remove_where(
        &mut self,
        range: Option<Range<&[u8]>>,
        mut is_unwanted: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let mut cursor = Entries::open(self.raw, self.environment.table)?;
        match &range {
            Some(range) => cursor.seek(range.start)?,
            None => cursor.first()?,
        };
        let end = range.map(|range| range.end);
        let mut removed = 0;
        while let Some((key, value)) = cursor.entry() {
            if end.is_some_and(|end| key >= end) {
                break;
            }
            if is_unwanted(key, value) {
                // SAFETY: as in `pop`.
                unsafe { cursor.delete()? };
                removed += 1;
                cursor.after_deletion()?;
            } else {
                cursor.next()?;
            }
        }
        Ok(removed)
    }

    #[inline]
    pub fn commit(mut self) -> Result<()> {
        self.is_open = false;
        // SAFETY: the transaction is open, and gone afterwards whatever the outcome.
        check(unsafe { ffi::mdb_txn_commit(self.raw.as_ptr()) })
    }
}

impl Drop for WriteTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: the transaction is open and is not used again.
            unsafe { ffi::mdb_txn_abort(self.raw.as_ptr()) };
        }
    }
}

/// A reader that is either active or reset. It must not outlive its environment, which holds for the one pool that they live in.
pub struct ReadTransaction {
    raw: NonNull<ffi::MDB_txn>,
    table: ffi::MDB_dbi,
}

// SAFETY: invariant (4).
unsafe impl Send for ReadTransaction {}

impl ReadTransaction {
    /// Gives its snapshot up and keeps its slot.
    #[inline]
    pub fn reset(&mut self) {
        // SAFETY: the transaction exists; nothing that was read is borrowed, by `&mut`.
        unsafe { ffi::mdb_txn_reset(self.raw.as_ptr()) };
    }

    /// Takes the newest snapshot, after a reset. It has its slot, so no lock is taken.
    #[inline]
    pub fn renew(&mut self) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { ffi::mdb_txn_renew(self.raw.as_ptr()) })
    }

    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        // SAFETY: the pages of a snapshot do not change until it is reset, which needs `&mut`.
        unsafe { get(self.raw, self.table, key) }
    }

    #[inline]
    pub fn cursor(&self) -> Result<Entries<'_>> {
        Entries::open(self.raw, self.table)
    }

    pub fn stat(&self) -> Result<ffi::MDB_stat> {
        // SAFETY: the structure is integers, for which zero is a value.
        let mut stat: ffi::MDB_stat = unsafe { std::mem::zeroed() };
        // SAFETY: the transaction is active; LMDB writes the structure.
        check(unsafe { ffi::mdb_stat(self.raw.as_ptr(), self.table, &mut stat) })?;
        Ok(stat)
    }
}

impl Drop for ReadTransaction {
    fn drop(&mut self) {
        // SAFETY: the transaction exists and is not used again.
        unsafe { ffi::mdb_txn_abort(self.raw.as_ptr()) };
    }
}

/// # Safety
/// The transaction is active, and what was read stays for `'a`.
#[inline]
unsafe fn get<'a>(
    transaction: NonNull<ffi::MDB_txn>,
    table: ffi::MDB_dbi,
    key: &[u8],
) -> Result<Option<&'a [u8]>> {
    let (mut key, mut data) = (value(key), NOTHING);
    // SAFETY: the caller's promise; LMDB writes where the value is.
    let code = unsafe { ffi::mdb_get(transaction.as_ptr(), table, &mut key, &mut data) };
    if code == ffi::MDB_NOTFOUND {
        return Ok(None);
    }
    check(code)?;
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { bytes(&data) }))
}

/// A cursor over the entries that a transaction sees, which does not write for `'t` but by this cursor.
pub struct Entries<'t> {
    raw: NonNull<ffi::MDB_cursor>,
    entry: Option<(&'t [u8], &'t [u8])>,
    transaction: PhantomData<&'t ffi::MDB_txn>,
}

impl<'t> Entries<'t> {
    /// The transaction is active and borrowed for `'t`, which the callers' signatures say.
    #[inline]
    fn open(transaction: NonNull<ffi::MDB_txn>, table: ffi::MDB_dbi) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the transaction is active; LMDB writes one pointer.
        check(unsafe { ffi::mdb_cursor_open(transaction.as_ptr(), table, &mut raw) })?;
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                entry: None,
                transaction: PhantomData,
            }),
            None => bail!("LMDB opened no cursor"),
        }
    }

    #[inline]
    pub fn entry(&self) -> Option<(&'t [u8], &'t [u8])> {
        self.entry
    }

    /// LMDB has no empty keys and refuses to look for one; all keys are behind it.
    #[inline]
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if key.is_empty() {
            return self.first();
        }
        self.step(value(key), ffi::MDB_SET_RANGE)
    }

    pub fn first(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDB_FIRST)
    }

    pub fn last(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDB_LAST)
    }

    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        // A cursor that is nowhere would start over.
        if self.entry.is_none() {
            return Ok(false);
        }
        self.step(NOTHING, ffi::MDB_NEXT)
    }

    #[inline]
    pub fn previous(&mut self) -> Result<bool> {
        if self.entry.is_none() {
            return Ok(false);
        }
        self.step(NOTHING, ffi::MDB_PREV)
    }

    /// Deletes the entry that it is on, and is on none then.
    ///
    /// # Safety
    /// The transaction is borrowed for writing, and nothing that was read in it is looked at any more.
    #[inline]
    unsafe fn delete(&mut self) -> Result<()> {
        self.entry = None;
        // SAFETY: cursor and transaction are open, and the caller's promise.
        check(unsafe { ffi::mdb_cursor_del(self.raw.as_ptr(), 0) })
    }

    /// To the entry behind the one that was just deleted: its place is where the cursor is, also if pages were merged, and the first step
    /// forward stays there. In a table that became empty the step starts over and finds nothing.
    #[inline]
    fn after_deletion(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDB_NEXT)
    }

    #[inline]
    fn step(&mut self, mut key: ffi::MDB_val, operation: ffi::MDB_cursor_op) -> Result<bool> {
        let mut data = NOTHING;
        // SAFETY: cursor and transaction are open; LMDB writes where key and value are.
        let code =
            unsafe { ffi::mdb_cursor_get(self.raw.as_ptr(), &mut key, &mut data, operation) };
        self.entry = None;
        if code == ffi::MDB_NOTFOUND {
            return Ok(false);
        }
        check(code)?;
        // SAFETY: the pages of the snapshot do not change while the transaction is borrowed.
        self.entry = Some(unsafe { (bytes(&key), bytes(&data)) });
        Ok(true)
    }
}

impl Drop for Entries<'_> {
    fn drop(&mut self) {
        // SAFETY: the cursor is open and is not used again.
        unsafe { ffi::mdb_cursor_close(self.raw.as_ptr()) };
    }
}
