//! Pins under loom: a state is never given out for freeing while a reader looks at it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p psitri --test loom_pins`
#![cfg(loom)]

#[path = "../src/pins.rs"]
mod pins;
#[path = "../src/sync.rs"]
mod sync;

use loom::thread;
use pins::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A state with a flag of its own that outlives it: loom need not follow it, threads run one at a time.
struct State {
    number: usize,
    freed: Arc<AtomicBool>,
}

fn state(number: usize) -> (Box<State>, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    let state = State {
        number,
        freed: freed.clone(),
    };
    (Box::new(state), freed)
}

/// Marks what `reclaim` gives out as freed, and keeps the memory until the end of the run so that a mistake is seen and not undefined.
#[expect(clippy::vec_box, reason = "the states stay where readers have them")]
fn reclaim(registry: &Registry<State>, kept: &mut Vec<Box<State>>) {
    for state in registry.reclaim(|pinned| assert!(!pinned.freed.load(Ordering::Relaxed))) {
        state.freed.store(true, Ordering::Relaxed);
        kept.push(state);
    }
}

#[test]
fn a_pinned_state_is_not_reclaimed() {
    loom::model(|| {
        let registry = Arc::new(Registry::new(state(0).0));
        let reader = {
            let registry = registry.clone();
            thread::spawn(move || {
                let pin = registry.current();
                let number = pin.number;
                assert!(!pin.freed.load(Ordering::Relaxed));
                thread::yield_now();
                assert!(!pin.freed.load(Ordering::Relaxed));
                number
            })
        };
        let mut kept = Vec::new();
        registry.publish(state(1).0);
        reclaim(&registry, &mut kept);
        let seen = reader.join().unwrap();
        assert!(seen <= 1);
        reclaim(&registry, &mut kept);
        assert_eq!(kept.len(), 1);
        assert_eq!(registry.current().number, 1);
    });
}

#[test]
fn two_readers_take_different_cells_and_a_pin_may_end_elsewhere() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let registry = Arc::new(Registry::new(state(0).0));
        let other = {
            let registry = registry.clone();
            thread::spawn(move || {
                let (pin, _) = registry.acquire_raw(&loom::sync::atomic::AtomicU64::new(0));
                pin
            })
        };
        let mut kept = Vec::new();
        {
            let pin = registry.current();
            assert!(!pin.freed.load(Ordering::Relaxed));
            registry.publish(state(1).0);
            reclaim(&registry, &mut kept);
            assert!(!pin.freed.load(Ordering::Relaxed));
        }
        let pin = other.join().unwrap();
        reclaim(&registry, &mut kept);
        // SAFETY: the registry is alive, and the pin is released below.
        let pinned = unsafe { pin.get() };
        assert!(!pinned.freed.load(Ordering::Relaxed));
        assert_eq!(kept.len(), pinned.number);
        // SAFETY: `pinned` is not used any more.
        unsafe { pin.release() };
        reclaim(&registry, &mut kept);
        assert_eq!(kept.len(), 1);
    });
}

#[test]
fn what_is_read_with_a_pin_is_not_older_than_its_state() {
    loom::model(|| {
        let registry = Arc::new(Registry::new(state(0).0));
        let csn = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let reader = {
            let (registry, csn) = (registry.clone(), csn.clone());
            thread::spawn(move || {
                let (pin, csn) = registry.acquire(&csn);
                assert!(csn >= pin.number as u64);
            })
        };
        csn.store(1, Ordering::Release);
        registry.publish(state(1).0);
        reader.join().unwrap();
    });
}

/// A state that nobody pins may be published again, at the same address, as another one: it is not taken for what it was.
#[test]
fn a_state_at_the_address_of_another_is_not_taken_for_it() {
    loom::model(|| {
        let registry = Arc::new(Registry::new(state(0).0));
        let csn = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let reader = {
            let (registry, csn) = (registry.clone(), csn.clone());
            thread::spawn(move || {
                let (pin, csn) = registry.acquire(&csn);
                assert!(csn >= pin.number as u64);
            })
        };
        csn.store(1, Ordering::Release);
        registry.publish(state(1).0);
        let mut freed = registry.reclaim(|_| {});
        csn.store(2, Ordering::Release);
        if let Some(mut again) = freed.pop() {
            again.number = 2;
            registry.publish(again);
        }
        reader.join().unwrap();
    });
}
