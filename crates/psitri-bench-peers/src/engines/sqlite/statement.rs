//! A prepared statement of SQLite with as little around it as possible: bind, step, look at the row, reset.
//!
//! The adapter needs rows that stay while the cursor over them is a value of its own, which borrows would not allow. Values that are
//! bound are copied by SQLite; a row's columns are lent only until the next step or reset.
//!
//! Invariants: (1) a statement is dropped before the connection that it was prepared on, which [`super::Connected`] sees to by the order
//! of its fields; (2) a connection and its statements are used by one thread at a time, since all of it goes through `&mut` or a lock.
//! Failures: whatever SQLite returns other than a row or the end is an error with SQLite's own message.
#![allow(unsafe_code)] // The C API of SQLite.
use anyhow::{Result, bail};
use rusqlite::{Connection, ffi};
use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};

pub struct Statement {
    raw: NonNull<ffi::sqlite3_stmt>,
}

// SAFETY: invariant (2); SQLite itself does not care which thread uses a connection, only that no two do at once.
unsafe impl Send for Statement {}

impl Statement {
    pub fn prepare(connection: &Connection, sql: &str) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is that of an open connection, the text is given with its length, and SQLite writes one pointer to `raw`.
        let code = unsafe {
            ffi::sqlite3_prepare_v3(
                connection.handle(),
                sql.as_ptr().cast(),
                sql.len() as c_int,
                ffi::SQLITE_PREPARE_PERSISTENT,
                &mut raw,
                ptr::null_mut(),
            )
        };
        match NonNull::new(raw) {
            Some(raw) if code == ffi::SQLITE_OK => Ok(Self { raw }),
            _ => bail!("cannot prepare `{sql}`: code {code}"),
        }
    }

    /// Binds bytes to parameter `index`, counted from one. The statement must be reset.
    #[inline]
    pub fn bind(&mut self, index: c_int, bytes: &[u8]) -> Result<()> {
        // An empty slice's pointer is not null, so that the value is an empty blob and not NULL.
        // SAFETY: pointer and length are those of a slice, and SQLITE_TRANSIENT makes SQLite copy it before it returns.
        let code = unsafe {
            ffi::sqlite3_bind_blob(
                self.raw.as_ptr(),
                index,
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
                ffi::SQLITE_TRANSIENT(),
            )
        };
        self.check(code, ffi::SQLITE_OK)
    }

    /// To the next row; false at the end.
    #[inline]
    pub fn step(&mut self) -> Result<bool> {
        // SAFETY: invariant (1): the statement is prepared and its connection open.
        match unsafe { ffi::sqlite3_step(self.raw.as_ptr()) } {
            ffi::SQLITE_ROW => Ok(true),
            code => self.check(code, ffi::SQLITE_DONE).map(|()| false),
        }
    }

    /// Runs to the end and makes ready for the next time. The outcome of the step counts, and the statement is reset in any case.
    #[inline]
    pub fn run(&mut self) -> Result<()> {
        let outcome = self.step().and_then(|is_row| {
            if is_row {
                bail!("a statement without result returned a row");
            }
            Ok(())
        });
        self.reset();
        outcome
    }

    /// A column of the row that the last step arrived at, counted from zero.
    #[inline]
    pub fn column(&self, index: c_int) -> &[u8] {
        // SAFETY: the bytes stay until the statement steps or is reset, both of which need `&mut self`; SQLite asks for the pointer before
        // the length, and gives null for an empty blob.
        unsafe {
            let bytes = ffi::sqlite3_column_blob(self.raw.as_ptr(), index).cast::<u8>();
            let length = ffi::sqlite3_column_bytes(self.raw.as_ptr(), index);
            if bytes.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(bytes, length as usize)
            }
        }
    }

    pub fn integer(&self, index: c_int) -> i64 {
        // SAFETY: as in `column`.
        unsafe { ffi::sqlite3_column_int64(self.raw.as_ptr(), index) }
    }

    /// Ends the reading of rows. What the code says was said by the last step already.
    #[inline]
    pub fn reset(&mut self) {
        // SAFETY: invariant (1).
        unsafe { ffi::sqlite3_reset(self.raw.as_ptr()) };
    }

    fn check(&self, code: c_int, wanted: c_int) -> Result<()> {
        if code == wanted {
            return Ok(());
        }
        // SAFETY: invariant (1); the message is a string that stays until the next call on the connection.
        let message = unsafe {
            let connection = ffi::sqlite3_db_handle(self.raw.as_ptr());
            CStr::from_ptr(ffi::sqlite3_errmsg(connection)).to_string_lossy()
        };
        bail!("SQLite: {message} (code {code})")
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: invariant (1). The code repeats that of the last step.
        unsafe { ffi::sqlite3_finalize(self.raw.as_ptr()) };
    }
}
