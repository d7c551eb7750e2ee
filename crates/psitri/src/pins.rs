//! `Registry`: the published state of the engine, and who still looks at older ones.
//!
//! One immutable `T` is current. A reader *pins* it: it claims a cell, writes the pointer into it, and checks that the pointer is
//! still the current one (hazard pointers: Michael, "Hazard pointers: safe memory reclamation for lock-free objects", 2004). No
//! lock, no reference count, no store to a line that other readers use. Cells are claimed by pins, not by threads: a pin
//! may be moved to any thread and dropped there, and there may be any number of them.
//!
//! # Thread safety
//! Everything may be called from any thread at any time. `publish` and `reclaim` take a short lock among themselves.
//!
//! # Invariants
//! 1. A cell is null (free) or holds a pointer that its owner is about to check or has checked. Free cells are claimed by
//!    compare-and-swap; afterwards only the owner stores to the cell.
//! 2. A reader dereferences a pointer only after it was in the cell, and after that was seen to be the current one. A state is freed
//!    only after it ceased to be current and after that was found in no cell. All these accesses are `SeqCst`, so
//!    either the reader sees that the state is not current any more, or `reclaim` sees the cell.
//! 3. The floor of a cell that is not free is at most the number that its owner reads at: it is that of an earlier owner, or was read
//!    before that number. Numbers only grow. The claim of the cell and the look at the newest number are `SeqCst`, so either the owner sees what
//!    `seen_by_all` was told, or a later one, or `seen_by_all` sees the cell.
//! 4. Blocks of cells live as long as the registry, and so do the states that are pinned or current.
//!
//! # Failure modes
//! None but memory for cells.
#![allow(unsafe_code)] // hazard pointers
#![allow(dead_code)] // the whole of the interface, whichever part the engine uses

use crate::sync::{
    AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, fence,
    fence_of_seq_cst_operation as full_fence,
};
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

/// Cells of the first block; every further block doubles the number of cells.
#[cfg(not(loom))]
const FIRST_BLOCK_CELLS: usize = 64;
#[cfg(loom)]
const FIRST_BLOCK_CELLS: usize = 2;
/// Enough for 2^32 cells.
const BLOCKS: usize = 27;

/// A reader's announcement, alone in its cache lines (two, because they are fetched in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Cell<T> {
    state: AtomicPtr<T>,
    /// Commits after this one may be needed one by one (invariant 3).
    floor: AtomicU64,
}

/// Cells that were added together.
#[derive(Debug)]
struct Block<T> {
    cells: Box<[Cell<T>]>,
}

/// The published state and its readers. See the module text.
#[derive(Debug)]
pub struct Registry<T> {
    current: AtomicPtr<T>,
    blocks: [AtomicPtr<Block<T>>; BLOCKS],
    /// States that are not current any more. Pointers made by `Box::into_raw`.
    retired: Mutex<Vec<NonNull<T>>>,
    /// Where threads begin to look for a free cell.
    next_hint: AtomicU32,
}

// SAFETY: the registry owns the states like a `Box` each, and hands out only shared references to them.
unsafe impl<T: Send + Sync> Send for Registry<T> {}
// SAFETY: as above; `publish` and `reclaim` move states between threads, hence `Send`.
unsafe impl<T: Send + Sync> Sync for Registry<T> {}

#[cfg(not(loom))]
const HINT_UNSET: u32 = u32::MAX;

#[cfg(not(loom))]
thread_local! {
    /// The cell that this thread used last, in whichever registry.
    static HINT: std::cell::Cell<u32> = const { std::cell::Cell::new(HINT_UNSET) };
}

impl<T> Registry<T> {
    /// A registry with its first state.
    pub fn new(first: Box<T>) -> Registry<T> {
        let registry = Registry {
            current: AtomicPtr::new(Box::into_raw(first)),
            blocks: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
            retired: Mutex::new(Vec::new()),
            next_hint: AtomicU32::new(0),
        };
        registry.add_block(0);
        registry
    }

    /// Pins the current state, and reads the number of the newest commit: after the state was announced and before it is confirmed to be current
    /// (and again if it was not), so the commit belongs to that state or is newer.
    #[inline]
    pub fn acquire(&self, newest: &AtomicU64) -> (Pin<'_, T>, u64) {
        let (raw, csn) = self.acquire_raw(newest);
        let registry = std::marker::PhantomData;
        (Pin { raw, registry }, csn)
    }

    /// Pins the current state, for those who look at no commit in particular, and not for long: the cell keeps the floor of an earlier owner.
    #[inline]
    pub fn current(&self) -> Pin<'_, T> {
        let (raw, _) = self.pin(None);
        let registry = std::marker::PhantomData;
        Pin { raw, registry }
    }

    /// As [`Registry::acquire`], without a lifetime: for owners that keep the registry alive by other means. A raw pin that is
    /// never released keeps its state forever, and what commits since have overwritten.
    #[inline]
    pub fn acquire_raw(&self, newest: &AtomicU64) -> (RawPin<T>, u64) {
        self.pin(Some(newest))
    }

    #[inline(always)]
    fn pin(&self, newest: Option<&AtomicU64>) -> (RawPin<T>, u64) {
        let mut state = self.current.load(Ordering::Acquire);
        let (index, cell) = self.claim_cell(state);
        if let Some(newest) = newest {
            // Release: whoever sees it sees that the owner before is done.
            let floor = newest.load(Ordering::Acquire);
            cell.floor.store(floor, Ordering::Release);
        }
        loop {
            full_fence();
            let mut now = self.current.load(Ordering::SeqCst);
            if now == state {
                // From here on it is not freed, and its address is that of no other: before, one that was published there since may have been taken for it.
                let csn = newest.map_or(0, |newest| newest.load(Ordering::SeqCst));
                if newest.is_some() {
                    now = self.current.load(Ordering::SeqCst);
                }
                if now == state {
                    // SAFETY: states are never null.
                    let state = unsafe { NonNull::new_unchecked(state) };
                    let cell = NonNull::from(&cell.state);
                    return (RawPin { state, cell, index }, csn);
                }
            }
            state = now;
            cell.state.swap(state, Ordering::SeqCst);
        }
    }

    /// A commit that every reader sees, those who come among them: versions older than what it left are needed by nobody. `newest`: the number
    /// of the newest commit, read before the call.
    pub fn seen_by_all(&self, newest: u64) -> u64 {
        // Whoever claims a cell after this has passed it looks at the newest commit after that: at `newest` or a later one. A fence of its own,
        // as `newest` was read in any way; on the other side are two `SeqCst` operations.
        fence(Ordering::SeqCst);
        let mut seen = newest;
        self.for_each_cell(|cell| {
            if !cell.state.load(Ordering::SeqCst).is_null() {
                seen = seen.min(cell.floor.load(Ordering::Acquire));
            }
        });
        seen
    }

    /// Makes a state current. The one before is kept until [`Registry::reclaim`] finds it unpinned.
    pub fn publish(&self, state: Box<T>) {
        let mut retired = self.retired.lock();
        let before = self.current.swap(Box::into_raw(state), Ordering::SeqCst);
        full_fence();
        retired.extend(NonNull::new(before));
    }

    /// Takes out the former states that nobody pins, and visits those that somebody does. Drop or recycle the returned ones at leisure.
    pub fn reclaim(&self, mut visit_pinned: impl FnMut(&T)) -> Vec<Box<T>> {
        let mut retired = self.retired.lock();
        let mut free = Vec::new();
        if retired.is_empty() {
            return free;
        }
        full_fence();
        let mut pinned: Vec<*mut T> = Vec::new();
        self.for_each_cell(|cell| {
            let state = cell.state.load(Ordering::SeqCst);
            if !state.is_null() {
                pinned.push(state);
            }
        });
        pinned.sort_unstable();
        retired.retain(|state| {
            if pinned.binary_search(&state.as_ptr()).is_ok() {
                // SAFETY: retired states are alive, and only this function, under the lock, takes them out.
                visit_pinned(unsafe { state.as_ref() });
                return true;
            }
            // SAFETY: from `Box::into_raw`, taken out once (under the lock), not current, and in no cell (invariant 2).
            free.push(unsafe { Box::from_raw(state.as_ptr()) });
            false
        });
        free
    }

    /// Visits the former states that somebody pins, once for each pin.
    pub fn visit_pinned(&self, mut visit: impl FnMut(&T)) {
        let retired = self.retired.lock();
        full_fence();
        self.for_each_cell(|cell| {
            let state = cell.state.load(Ordering::SeqCst);
            if let Some(state) = retired.iter().find(|retired| retired.as_ptr() == state) {
                // SAFETY: retired states are alive, and only `reclaim`, under the lock, takes them out.
                visit(unsafe { state.as_ref() });
            }
        });
    }

    /// Number of former states that are still kept.
    pub fn retired_len(&self) -> usize {
        self.retired.lock().len()
    }

    /// Number of pins, which may be out of date at once.
    pub fn pinned_count(&self) -> usize {
        let mut count = 0;
        self.for_each_cell(|cell| {
            count += usize::from(!cell.state.load(Ordering::Relaxed).is_null());
        });
        count
    }

    /// Claims a free cell and announces a state in it.
    #[inline]
    fn claim_cell(&self, state: *mut T) -> (u32, &Cell<T>) {
        let hint = self.hint();
        if let Some(cell) = self.cell(hint)
            && cell.claim(state)
        {
            return (hint, cell);
        }
        self.claim_other_cell(state)
    }

    #[cold]
    fn claim_other_cell(&self, state: *mut T) -> (u32, &Cell<T>) {
        let from = self.hint();
        // Once around from the hint, then again and again over what there is and one more block.
        let mut index = from.wrapping_add(1);
        let mut tried = 0;
        loop {
            match self.cell(index) {
                Some(cell) => {
                    if cell.state.load(Ordering::Relaxed).is_null() && cell.claim(state) {
                        set_hint(index);
                        return (index, cell);
                    }
                    index += 1;
                    tried += 1;
                }
                None => {
                    let len = self.cell_count();
                    if tried >= len as usize {
                        self.add_block(block_of(len).0);
                        index = len;
                    } else {
                        index = 0;
                    }
                }
            }
        }
    }

    #[inline]
    fn cell(&self, index: u32) -> Option<&Cell<T>> {
        let (block, at) = block_of(index);
        // SAFETY: null or made by `add_block`, and alive as long as the registry (invariant 4).
        // SeqCst, as the claim that follows: a scan that does not see the block comes before both.
        let block = unsafe { self.blocks.get(block)?.load(Ordering::SeqCst).as_ref() }?;
        block.cells.get(at)
    }

    fn cell_count(&self) -> u32 {
        let mut count = 0;
        for (number, block) in self.blocks.iter().enumerate() {
            if block.load(Ordering::Acquire).is_null() {
                break;
            }
            count += FIRST_BLOCK_CELLS << number;
        }
        count as u32
    }

    #[cold]
    fn add_block(&self, number: usize) {
        let Some(slot) = self.blocks.get(number) else {
            return;
        };
        let cells = (0..FIRST_BLOCK_CELLS << number)
            .map(|_| Cell {
                state: AtomicPtr::new(null_mut()),
                floor: AtomicU64::new(0),
            })
            .collect();
        let block = Box::into_raw(Box::new(Block { cells }));
        // SeqCst: a scan that does not see the block comes before every claim in it.
        if slot
            .compare_exchange(null_mut(), block, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            // SAFETY: made above and not published; another thread was faster.
            drop(unsafe { Box::from_raw(block) });
        }
    }

    fn for_each_cell(&self, mut visit: impl FnMut(&Cell<T>)) {
        for block in &self.blocks {
            // SAFETY: as in `cell`.
            let Some(block) = (unsafe { block.load(Ordering::SeqCst).as_ref() }) else {
                break;
            };
            block.cells.iter().for_each(&mut visit);
        }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn hint(&self) -> u32 {
        match HINT.get() {
            HINT_UNSET => {
                // Threads begin in different cells of the first block.
                let hint = self.next_hint.fetch_add(1, Ordering::Relaxed);
                let hint = hint % FIRST_BLOCK_CELLS as u32;
                HINT.set(hint);
                hint
            }
            hint => hint,
        }
    }

    #[cfg(loom)]
    fn hint(&self) -> u32 {
        0
    }
}

#[cfg(not(loom))]
#[inline(always)]
fn set_hint(index: u32) {
    HINT.set(index);
}

#[cfg(loom)]
fn set_hint(_index: u32) {}

/// Block of a cell, and its place there.
#[inline(always)]
fn block_of(index: u32) -> (usize, usize) {
    let from = index as usize + FIRST_BLOCK_CELLS;
    let block = (from / FIRST_BLOCK_CELLS).ilog2() as usize;
    (block, from - (FIRST_BLOCK_CELLS << block))
}

impl<T> Cell<T> {
    #[inline(always)]
    fn claim(&self, state: *mut T) -> bool {
        self.state
            .compare_exchange(null_mut(), state, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }
}

impl<T> Drop for Registry<T> {
    fn drop(&mut self) {
        let current = self.current.load(Ordering::Relaxed);
        // SAFETY: from `Box::into_raw`; pins borrow the registry, or their owners keep it alive.
        drop(unsafe { Box::from_raw(current) });
        for state in self.retired.get_mut().drain(..) {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(state.as_ptr()) });
        }
        for block in &self.blocks {
            let block = block.load(Ordering::Relaxed);
            if !block.is_null() {
                // SAFETY: made by `add_block`, and nobody claims cells any more.
                drop(unsafe { Box::from_raw(block) });
            }
        }
    }
}

/// A pinned state without a lifetime. See [`Registry::acquire_raw`].
#[derive(Debug)]
pub struct RawPin<T> {
    state: NonNull<T>,
    cell: NonNull<AtomicPtr<T>>,
    index: u32,
}

// SAFETY: a pin is a shared reference to the state, and a cell that any thread may clear.
unsafe impl<T: Send + Sync> Send for RawPin<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for RawPin<T> {}

impl<T> RawPin<T> {
    /// The cell that it has.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The state.
    ///
    /// # Safety
    /// The registry must be alive for `'a`, and the pin must not be released within it.
    #[inline(always)]
    pub unsafe fn get<'a>(&self) -> &'a T {
        // SAFETY: pinned, hence alive (invariant 2); the caller vouches for the rest.
        unsafe { self.state.as_ref() }
    }

    /// Frees the cell.
    ///
    /// # Safety
    /// The registry must be alive, and no reference from [`RawPin::get`] may be used any more.
    #[inline(always)]
    pub unsafe fn release(self) {
        // SAFETY: cells live as long as the registry (invariant 4), for which the caller vouches.
        unsafe { self.cell.as_ref() }.store(null_mut(), Ordering::Release);
        set_hint(self.index);
    }

    #[inline(always)]
    fn duplicate(&self) -> RawPin<T> {
        RawPin { ..*self }
    }
}

/// A pinned state.
#[derive(Debug)]
pub struct Pin<'r, T> {
    raw: RawPin<T>,
    registry: std::marker::PhantomData<&'r Registry<T>>,
}

impl<T> Deref for Pin<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the registry is borrowed, and the pin is released only by `drop`.
        unsafe { self.raw.get() }
    }
}

impl<T> Drop for Pin<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the registry is borrowed; references from `deref` borrow from `self`.
        unsafe { self.raw.duplicate().release() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, AtomicBool, AtomicUsize};

    struct State {
        number: usize,
        check: usize,
        live: Arc<AtomicUsize>,
    }

    impl State {
        fn boxed(number: usize, live: &Arc<AtomicUsize>) -> Box<State> {
            live.fetch_add(1, Ordering::Relaxed);
            Box::new(State {
                number,
                check: !number,
                live: live.clone(),
            })
        }
    }

    impl Drop for State {
        fn drop(&mut self) {
            self.check = 0;
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_state_lives_as_long_as_its_pins() {
        let live = Arc::default();
        let registry = Registry::new(State::boxed(0, &live));
        let first = registry.current();
        registry.publish(State::boxed(1, &live));
        let mut seen = Vec::new();
        assert!(registry.reclaim(|state| seen.push(state.number)).is_empty());
        assert_eq!(seen, [0]);
        assert_eq!((first.number, registry.current().number), (0, 1));
        drop(first);
        let free = registry.reclaim(|_| unreachable!("nothing is pinned"));
        assert_eq!(
            free.iter().map(|state| state.number).collect::<Vec<_>>(),
            [0]
        );
        drop(free);
        registry.publish(State::boxed(2, &live));
        drop(registry);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn any_number_of_pins() {
        let live = Arc::default();
        let registry = Registry::new(State::boxed(0, &live));
        let mut pins: Vec<_> = (0..1000).map(|_| registry.current()).collect();
        assert_eq!(registry.pinned_count(), 1000);
        let cells: std::collections::HashSet<_> = pins.iter().map(|pin| pin.raw.index).collect();
        assert_eq!(cells.len(), 1000);
        pins.truncate(7);
        assert_eq!(registry.pinned_count(), 7);
        registry.publish(State::boxed(1, &live));
        assert!(registry.reclaim(|_| ()).is_empty());
        // Dropped on another thread.
        std::thread::scope(|scope| scope.spawn(move || drop(pins)).join().unwrap());
        assert_eq!(registry.reclaim(|_| ()).len(), 1);
        assert_eq!(registry.pinned_count(), 0);
    }

    #[test]
    fn blocks_double() {
        assert_eq!(block_of(0), (0, 0));
        assert_eq!(block_of(63), (0, 63));
        assert_eq!(block_of(64), (1, 0));
        assert_eq!(block_of(191), (1, 127));
        assert_eq!(block_of(192), (2, 0));
    }

    #[test]
    fn readers_never_see_a_freed_state() {
        let live = Arc::default();
        let registry = Registry::new(State::boxed(0, &live));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    let mut held = std::collections::VecDeque::new();
                    while !stop.load(Ordering::Relaxed) {
                        let pin = registry.current();
                        assert_eq!(pin.number, !pin.check);
                        assert!(pin.number >= last);
                        last = pin.number;
                        held.push_back(pin);
                        if held.len() > 5 {
                            let pin = held.pop_front().unwrap();
                            assert_eq!(pin.number, !pin.check);
                        }
                    }
                });
            }
            for number in 1..20_000 {
                registry.publish(State::boxed(number, &live));
                registry.reclaim(|state| assert_eq!(state.number, !state.check));
            }
            stop.store(true, Ordering::Relaxed);
        });
        registry.reclaim(|_| unreachable!("all readers are gone"));
        assert_eq!(registry.retired_len(), 0);
        assert_eq!(live.load(Ordering::Relaxed), 1);
        drop(registry);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }
}
