//! `WriterGuard`: the write lock of a keyspace, held, with the reference to the keyspace that its holder needs.
//!
//! A guard of parking_lot's own that can be owned would count one reference more, to the lock alone: two atomic operations for every transaction.
//!
//! # Thread safety
//! As a `MutexGuard`: lent to one thread at a time, and dropped by any, which parking_lot allows where its `send_guard` is asked for.
//!
//! # Invariants
//! 1. The lock was taken by the one guard that was forgotten in `of`, and is held until `drop`.
//! 2. The keyspace, and so the lock, lives as long as the guard.
#![allow(unsafe_code)] // what the lock protects, without its guard

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::{
    keyspace::{KeyspaceCore, WriterSlot},
    sync::{Arc, MutexGuard},
};

/// See the module text.
pub(crate) struct WriterGuard {
    core: Arc<KeyspaceCore>,
    /// It may be sent and shared as this may be.
    held: PhantomData<MutexGuard<'static, WriterSlot>>,
}

const _: () = {
    const fn is_as_a_transaction_must_be<T: Send + Sync>() {}
    is_as_a_transaction_must_be::<WriterGuard>();
};

impl WriterGuard {
    /// Takes over from the lock's own guard.
    #[inline(always)]
    pub fn of(core: &Arc<KeyspaceCore>, held: MutexGuard<'_, WriterSlot>) -> WriterGuard {
        debug_assert!(std::ptr::eq(MutexGuard::mutex(&held), &*core.writer));
        std::mem::forget(held);
        WriterGuard {
            core: Arc::clone(core),
            held: PhantomData,
        }
    }

    /// Whose lock it is.
    #[inline(always)]
    pub fn core(&self) -> &Arc<KeyspaceCore> {
        &self.core
    }
}

impl Deref for WriterGuard {
    type Target = WriterSlot;

    #[inline(always)]
    fn deref(&self) -> &WriterSlot {
        // SAFETY: 1, 2.
        unsafe { &*self.core.writer.data_ptr() }
    }
}

impl DerefMut for WriterGuard {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut WriterSlot {
        // SAFETY: 1, 2; what is lent is tied to the borrow of the one guard.
        unsafe { &mut *self.core.writer.data_ptr() }
    }
}

impl Drop for WriterGuard {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: 1; the reference to the keyspace is given up after this (2).
        unsafe { self.core.writer.force_unlock() }
    }
}
