//! Every atomic and lock of the engine comes from here, so that loom can take their place (`--cfg loom`).
//!
//! Atomics and locks only: `Arc` is always the one of `std`, because loom's cannot hold trait objects and no
//! algorithm of the engine depends on the ordering of reference counts.
//!
//! Locks have the signatures of `parking_lot` in both builds (no poisoning, `Condvar::wait(&mut guard)`).
#![allow(unused_imports)] // each name is part of the set that modules may ask for, used today or not

pub use std::sync::Arc;

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub use self::model::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// A value in cache lines that hold nothing else (two, because they are fetched in pairs): who writes it does not take from others what lies beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
#[allow(dead_code)] // for the modules that use it
pub struct OwnLines<T>(pub T);

impl<T> std::ops::Deref for OwnLines<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The fence that a `SeqCst` read-modify-write already is.
///
/// The C++ and Rust memory models order `SeqCst` operations among themselves, so the callers need nothing more than
/// `SeqCst` on both sides. Loom treats `SeqCst` operations as `AcqRel` and gives full strength to fences only:
/// there the fence is spelled out, elsewhere this is nothing.
#[inline(always)]
#[allow(dead_code)] // for the modules that use it
pub fn fence_of_seq_cst_operation() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Loom's locks behind the signatures of `parking_lot`.
#[cfg(loom)]
#[allow(dead_code)] // the whole of the parking_lot surface that the engine may use
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    /// The inner guard is absent only while a [`Condvar`] holds it.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("loom locks are not poisoned")))
        }
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect("loom locks are not poisoned")
        }
        pub fn into_inner(self) -> T {
            self.0.into_inner().expect("loom locks are not poisoned")
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Mutex::new(T::default())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("guard is present outside of wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("guard is present outside of wait")
        }
    }

    #[derive(Debug)]
    pub struct Condvar(loom::sync::Condvar);

    #[derive(Debug, Clone, Copy)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("guard is present outside of wait");
            guard.0 = Some(self.0.wait(inner).expect("loom locks are not poisoned"));
        }
        pub fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            timeout: Duration,
        ) -> WaitTimeoutResult {
            let inner = guard.0.take().expect("guard is present outside of wait");
            let (inner, result) = self
                .0
                .wait_timeout(inner, timeout)
                .expect("loom locks are not poisoned");
            guard.0 = Some(inner);
            WaitTimeoutResult(result.timed_out())
        }
        pub fn notify_one(&self) -> bool {
            self.0.notify_one();
            true
        }
        pub fn notify_all(&self) -> usize {
            self.0.notify_all();
            0
        }
    }

    impl Default for Condvar {
        fn default() -> Self {
            Condvar::new()
        }
    }

    #[derive(Debug)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            RwLock(loom::sync::RwLock::new(value))
        }
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("loom locks are not poisoned")
        }
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("loom locks are not poisoned")
        }
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect("loom locks are not poisoned")
        }
        pub fn into_inner(self) -> T {
            self.0.into_inner().expect("loom locks are not poisoned")
        }
    }

    impl<T: Default> Default for RwLock<T> {
        fn default() -> Self {
            RwLock::new(T::default())
        }
    }
}
