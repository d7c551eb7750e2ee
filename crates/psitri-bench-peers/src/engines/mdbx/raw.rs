//! The functions of libmdbx that the adapter needs, with lifetimes and errors: environment, transactions, cursors.
//!
//! The crates with a safe interface begin and end every write transaction in a thread of their own, which costs two changes of thread
//! a commit; an application in C does not pay them, so neither does this.
//!
//! Invariants: (1) a transaction is used while its environment is open, and a cursor while its transaction is, both by lifetimes;
//! (2) bytes that were read are lent until the transaction changes or ends: reads in a write transaction take `&self` and writes
//! `&mut self`, and a reader's pages do not change while it lives; (3) a write transaction ends in the thread that began it, since it
//! is not `Send`; (4) the environment is opened with MDBX_NOSTICKYTHREADS, so that a reader may be renewed by another thread.
//! Failures: every code but success is an error with libmdbx's message; "not found" is `None` where it can be.
#![allow(unsafe_code)] // The C API of libmdbx.
use anyhow::{Result, bail};
use mdbx_sys as ffi;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// How the file may grow, in bytes.
#[derive(Clone, Copy)]
pub struct Geometry {
    pub lower: u64,
    /// Of a file that is made; one that exists stays as it is without.
    pub now: Option<u64>,
    pub upper: u64,
    pub growth_step: u64,
    pub shrink_threshold: u64,
}

/// Whether an environment with these flags is flushed by nothing but being asked to.
pub fn never_flushes(flags: ffi::MDBX_env_flags_t) -> bool {
    // The flag contains that of SAFE_NOSYNC.
    flags & ffi::MDBX_UTTERLY_NOSYNC == ffi::MDBX_UTTERLY_NOSYNC
}

fn check(code: c_int) -> Result<()> {
    if code == ffi::MDBX_SUCCESS {
        return Ok(());
    }
    // SAFETY: the message is a constant string, or one for the system's error that stays until the next call in this thread.
    let message = unsafe { CStr::from_ptr(ffi::mdbx_strerror(code)) };
    bail!("libmdbx: {} ({code})", message.to_string_lossy())
}

#[inline]
fn value(bytes: &[u8]) -> ffi::MDBX_val {
    ffi::MDBX_val {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

const NOTHING: ffi::MDBX_val = ffi::MDBX_val {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// # Safety
/// The value came from libmdbx and stays for `'a`.
#[inline]
unsafe fn bytes<'a>(value: &ffi::MDBX_val) -> &'a [u8] {
    if value.iov_len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise; libmdbx gives the address of as many bytes.
    unsafe { std::slice::from_raw_parts(value.iov_base.cast(), value.iov_len) }
}

pub struct Environment {
    raw: NonNull<ffi::MDBX_env>,
    table: ffi::MDBX_dbi,
    /// Closing leaves the newest pages to the system as well.
    closes_without_flush: bool,
}

// SAFETY: libmdbx synchronises everything that is done to an environment, readers and the one writer included.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

impl Environment {
    /// Opens the database file at `path` and its main table. It is created if `creates` and must be there otherwise.
    pub fn open(
        path: &Path,
        flags: ffi::MDBX_env_flags_t,
        geometry: &Geometry,
        readers_max: u64,
        creates: bool,
    ) -> Result<Self> {
        if !creates && !path.exists() {
            bail!("there is no database at {}", path.display());
        }
        let name = CString::new(path.as_os_str().as_bytes())?;
        // Failures come as codes. What it would print besides is not about failures: an opening "after an unclean shutdown" is any
        // that follows a closing without a flush.
        // SAFETY: sets a level and no function.
        unsafe { ffi::mdbx_setup_debug(ffi::MDBX_LOG_ERROR, ffi::MDBX_DBG_DONTCHANGE, None) };
        let mut raw = ptr::null_mut();
        // SAFETY: libmdbx writes one pointer.
        check(unsafe { ffi::mdbx_env_create(&mut raw) })?;
        let Some(raw) = NonNull::new(raw) else {
            bail!("libmdbx made no environment");
        };
        // From here on it is closed when dropped.
        let mut this = Self {
            raw,
            table: 0,
            closes_without_flush: never_flushes(flags),
        };
        this.set_geometry(geometry)?;
        this.set_option(ffi::MDBX_opt_max_readers, readers_max)?;
        let flags = flags | ffi::MDBX_NOSUBDIR | ffi::MDBX_NOSTICKYTHREADS;
        // SAFETY: as above; the name ends with a zero.
        check(unsafe { ffi::mdbx_env_open(this.raw.as_ptr(), name.as_ptr(), flags, 0o600) })?;
        let begun = this.begin_write()?;
        let mut table = 0;
        // SAFETY: the transaction is open; without a name it is the main table, which is always there.
        check(unsafe {
            ffi::mdbx_dbi_open(
                begun.raw.as_ptr(),
                ptr::null(),
                ffi::MDBX_DB_DEFAULTS,
                &mut table,
            )
        })?;
        begun.commit()?;
        this.table = table;
        Ok(this)
    }

    /// May be called before the environment is opened and afterwards, while this thread has no transaction.
    pub fn set_geometry(&self, geometry: &Geometry) -> Result<()> {
        // SAFETY: the environment exists; a size of -1 stays as it is or is left to libmdbx.
        check(unsafe {
            ffi::mdbx_env_set_geometry(
                self.raw.as_ptr(),
                geometry.lower as isize,
                geometry.now.map_or(-1, |bytes| bytes as isize),
                geometry.upper as isize,
                geometry.growth_step as isize,
                geometry.shrink_threshold as isize,
                -1,
            )
        })
    }

    pub fn set_option(&self, option: ffi::MDBX_option_t, value: u64) -> Result<()> {
        // SAFETY: the environment exists; libmdbx refuses what has to be set before it is opened.
        check(unsafe { ffi::mdbx_env_set_option(self.raw.as_ptr(), option, value) })
    }

    /// Flushes everything that was committed.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the environment is open.
        let code = unsafe { ffi::mdbx_env_sync_ex(self.raw.as_ptr(), true, false) };
        // There was nothing to flush.
        if code == ffi::MDBX_RESULT_TRUE {
            return Ok(());
        }
        check(code)
    }

    fn begin(&self, flags: ffi::MDBX_txn_flags_t) -> Result<NonNull<ffi::MDBX_txn>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open; libmdbx writes one pointer.
        check(unsafe {
            ffi::mdbx_txn_begin_ex(
                self.raw.as_ptr(),
                ptr::null_mut(),
                flags,
                &mut raw,
                ptr::null_mut(),
            )
        })?;
        match NonNull::new(raw) {
            Some(raw) => Ok(raw),
            None => bail!("libmdbx began no transaction"),
        }
    }

    /// Waits for the writer before.
    #[inline]
    pub fn begin_write(&self) -> Result<WriteTransaction<'_>> {
        Ok(WriteTransaction {
            raw: self.begin(ffi::MDBX_TXN_READWRITE)?,
            environment: self,
            is_open: true,
        })
    }

    #[inline]
    pub fn begin_read(&self) -> Result<ReadTransaction> {
        Ok(ReadTransaction {
            raw: self.begin(ffi::MDBX_TXN_RDONLY)?,
            table: self.table,
        })
    }

    pub fn info(&self) -> Result<ffi::MDBX_envinfo> {
        // SAFETY: the structure is integers, for which zero is a value, and its size is given.
        let mut info: ffi::MDBX_envinfo = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the environment is open.
        check(unsafe {
            ffi::mdbx_env_info_ex(
                self.raw.as_ptr(),
                ptr::null(),
                &mut info,
                size_of::<ffi::MDBX_envinfo>(),
            )
        })?;
        Ok(info)
    }

    /// Writes what is newest to a file at `path`, without free pages, and replaces what is there.
    pub fn copy_compacted(&self, path: &Path, flushes: bool) -> Result<()> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let mut flags = ffi::MDBX_CP_COMPACT | ffi::MDBX_CP_OVERWRITE;
        if !flushes {
            flags |= ffi::MDBX_CP_DONT_FLUSH;
        }
        // SAFETY: the environment is open; the name ends with a zero.
        check(unsafe { ffi::mdbx_env_copy(self.raw.as_ptr(), name.as_ptr(), flags) })
    }

    /// Flushes, except in the mode without any, and closes. All transactions are over: readers hold no reference, so this is the
    /// caller's promise to keep.
    pub fn close(self) -> Result<()> {
        let (raw, dont_sync) = (self.raw, self.closes_without_flush);
        std::mem::forget(self);
        // SAFETY: nothing else refers to the environment, which is not used again.
        check(unsafe { ffi::mdbx_env_close_ex(raw.as_ptr(), dont_sync) })
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: as in `close`. The outcome goes to whoever calls `close`.
        unsafe { ffi::mdbx_env_close_ex(self.raw.as_ptr(), self.closes_without_flush) };
    }
}

/// The version of the library.
pub fn version() -> String {
    // SAFETY: a constant of the library.
    let version = unsafe { &*ptr::addr_of!(ffi::mdbx_version) };
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}

pub struct WriteTransaction<'e> {
    // Not `Send`, by the pointer: invariant (3).
    raw: NonNull<ffi::MDBX_txn>,
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
        self.put_with(key, data, ffi::MDBX_UPSERT)
    }

    /// Adds an entry behind all others, without a search; an error if there is one that is not before it.
    #[inline]
    pub fn append(&mut self, key: &[u8], data: &[u8]) -> Result<()> {
        self.put_with(key, data, ffi::MDBX_APPEND | ffi::MDBX_NOOVERWRITE)
    }

    #[inline]
    fn put_with(&mut self, key: &[u8], data: &[u8], flags: ffi::MDBX_put_flags_t) -> Result<()> {
        let (key, mut data) = (value(key), value(data));
        // SAFETY: the transaction is open; libmdbx copies both.
        check(unsafe {
            ffi::mdbx_put(
                self.raw.as_ptr(),
                self.environment.table,
                &key,
                &mut data,
                flags,
            )
        })
    }

    #[inline]
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        let key = value(key);
        // SAFETY: the transaction is open; without data the entry goes whatever its value.
        let code =
            unsafe { ffi::mdbx_del(self.raw.as_ptr(), self.environment.table, &key, ptr::null()) };
        if code == ffi::MDBX_NOTFOUND {
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
        let code = unsafe { ffi::mdbx_txn_commit_ex(self.raw.as_ptr(), ptr::null_mut()) };
        // There was nothing to commit.
        if code == ffi::MDBX_RESULT_TRUE {
            bail!("libmdbx had to abort the transaction");
        }
        check(code)
    }
}

impl Drop for WriteTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: the transaction is open and is not used again.
            unsafe { ffi::mdbx_txn_abort_ex(self.raw.as_ptr(), ptr::null_mut()) };
        }
    }
}

/// A reader that is either active or reset. It must not outlive its environment, which holds for the one pool that they live in.
pub struct ReadTransaction {
    raw: NonNull<ffi::MDBX_txn>,
    table: ffi::MDBX_dbi,
}

// SAFETY: invariant (4).
unsafe impl Send for ReadTransaction {}

impl ReadTransaction {
    /// Gives its snapshot up and keeps its slot.
    #[inline]
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: the transaction exists; nothing that was read is borrowed, by `&mut`.
        check(unsafe { ffi::mdbx_txn_reset(self.raw.as_ptr()) })
    }

    /// Takes the newest snapshot, after a reset.
    #[inline]
    pub fn renew(&mut self) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { ffi::mdbx_txn_renew(self.raw.as_ptr()) })
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

    pub fn stat(&self) -> Result<ffi::MDBX_stat> {
        // SAFETY: the structure is integers, and its size is given.
        let mut stat: ffi::MDBX_stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the transaction is active.
        check(unsafe {
            ffi::mdbx_dbi_stat(
                self.raw.as_ptr(),
                self.table,
                &mut stat,
                size_of::<ffi::MDBX_stat>(),
            )
        })?;
        Ok(stat)
    }
}

impl Drop for ReadTransaction {
    fn drop(&mut self) {
        // SAFETY: the transaction exists and is not used again.
        unsafe { ffi::mdbx_txn_abort_ex(self.raw.as_ptr(), ptr::null_mut()) };
    }
}

/// # Safety
/// The transaction is active, and what was read stays for `'a`.
#[inline]
unsafe fn get<'a>(
    transaction: NonNull<ffi::MDBX_txn>,
    table: ffi::MDBX_dbi,
    key: &[u8],
) -> Result<Option<&'a [u8]>> {
    let (key, mut data) = (value(key), NOTHING);
    // SAFETY: the caller's promise; libmdbx writes where the value is.
    let code = unsafe { ffi::mdbx_get(transaction.as_ptr(), table, &key, &mut data) };
    if code == ffi::MDBX_NOTFOUND {
        return Ok(None);
    }
    check(code)?;
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { bytes(&data) }))
}

/// A cursor over the entries that a transaction sees, which does not write for `'t` but by this cursor.
pub struct Entries<'t> {
    raw: NonNull<ffi::MDBX_cursor>,
    entry: Option<(&'t [u8], &'t [u8])>,
    transaction: PhantomData<&'t ffi::MDBX_txn>,
}

impl<'t> Entries<'t> {
    /// The transaction is active and borrowed for `'t`, which the callers' signatures say.
    #[inline]
    fn open(transaction: NonNull<ffi::MDBX_txn>, table: ffi::MDBX_dbi) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the transaction is active; libmdbx writes one pointer.
        check(unsafe { ffi::mdbx_cursor_open(transaction.as_ptr(), table, &mut raw) })?;
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                entry: None,
                transaction: PhantomData,
            }),
            None => bail!("libmdbx opened no cursor"),
        }
    }

    #[inline]
    pub fn entry(&self) -> Option<(&'t [u8], &'t [u8])> {
        self.entry
    }

    #[inline]
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.step(value(key), ffi::MDBX_SET_RANGE)
    }

    /// All entries, some hundreds for each call of libmdbx.
    pub fn all(self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut pairs = [NOTHING; 512];
        let mut operation = ffi::MDBX_FIRST;
        loop {
            let mut count = 0;
            // SAFETY: the cursor is open, and nobody has moved it; libmdbx writes no more values than there is room for.
            let code = unsafe {
                let pairs = pairs.as_mut_ptr();
                ffi::mdbx_cursor_get_batch(self.raw.as_ptr(), &mut count, pairs, 512, operation)
            };
            if code == ffi::MDBX_NOTFOUND || code == ffi::MDBX_ENODATA {
                return Ok(());
            }
            let is_last = code == ffi::MDBX_RESULT_TRUE;
            if !is_last {
                check(code)?;
            }
            for pair in pairs[..count].chunks_exact(2) {
                // SAFETY: they were read in the transaction, which is borrowed for `'t`: invariant (2).
                unsafe { each(bytes(&pair[0]), bytes(&pair[1])) };
            }
            if is_last {
                return Ok(());
            }
            operation = ffi::MDBX_NEXT;
        }
    }

    pub fn first(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDBX_FIRST)
    }

    pub fn last(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDBX_LAST)
    }

    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        // A cursor that is nowhere would start over.
        if self.entry.is_none() {
            return Ok(false);
        }
        self.step(NOTHING, ffi::MDBX_NEXT)
    }

    #[inline]
    pub fn previous(&mut self) -> Result<bool> {
        if self.entry.is_none() {
            return Ok(false);
        }
        self.step(NOTHING, ffi::MDBX_PREV)
    }

    /// Deletes the entry that it is on, and is on none then.
    ///
    /// # Safety
    /// The transaction is borrowed for writing, and nothing that was read in it is looked at any more.
    #[inline]
    unsafe fn delete(&mut self) -> Result<()> {
        self.entry = None;
        // SAFETY: cursor and transaction are open, and the caller's promise.
        check(unsafe { ffi::mdbx_cursor_del(self.raw.as_ptr(), ffi::MDBX_CURRENT) })
    }

    /// To the entry behind the one that was just deleted: its place is where the cursor is, also if pages were merged, and the first step
    /// forward stays there.
    #[inline]
    fn after_deletion(&mut self) -> Result<bool> {
        self.step(NOTHING, ffi::MDBX_NEXT)
    }

    #[inline]
    fn step(&mut self, mut key: ffi::MDBX_val, operation: ffi::MDBX_cursor_op) -> Result<bool> {
        let mut data = NOTHING;
        // SAFETY: cursor and transaction are open; libmdbx writes where key and value are.
        let code =
            unsafe { ffi::mdbx_cursor_get(self.raw.as_ptr(), &mut key, &mut data, operation) };
        self.entry = None;
        if code == ffi::MDBX_NOTFOUND {
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
        unsafe { ffi::mdbx_cursor_close(self.raw.as_ptr()) };
    }
}
