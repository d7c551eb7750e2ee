//! Real threads: readers check that every snapshot is consistent while the writer inserts, overwrites, aborts and deletes ranges. It uses
//! memory again as soon as the readers let it.
//!
//! `PSITRI_STRESS_SECONDS` makes it run longer than the default of two seconds.

use psitri::buffer::{Arena, Found, KeyspaceBuffer, Kind, Watermark};
use psitri::pins::Registry;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ACCOUNTS: u64 = 300;
const INITIAL: i64 = 1000;

fn account(number: u64) -> Vec<u8> {
    // Lengths and bytes vary, and some are prefixes of others.
    let mut key = format!("account {}", number.wrapping_mul(0x9e37_79b9) % 100_003).into_bytes();
    key.push((number % 256) as u8);
    key
}

fn balance(found: Found<'_>) -> i64 {
    match found {
        Found::Value(bytes) => i64::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("an account is {other:?}"),
    }
}

#[test]
fn every_snapshot_conserves_the_total() {
    let seconds: u64 = std::env::var("PSITRI_STRESS_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(2);
    let seed: u64 = std::env::var("PSITRI_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(42);
    println!("PSITRI_SEED={seed}");
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    while Instant::now() < until {
        one_generation(seed + round, until);
        round += 1;
    }
}

fn one_generation(seed: u64, until: Instant) {
    let buffer = KeyspaceBuffer::new(Arc::new(Arena::new(16 << 20).unwrap()));
    let visible = AtomicU64::new(0);
    let readers = Registry::new(Box::new(()));
    let stop = AtomicBool::new(false);
    let mut writer = buffer.writer().unwrap();
    let floor = writer.watermark();
    for number in 0..ACCOUNTS {
        let (_, outcome) = writer
            .put(&account(number), Kind::Value, &INITIAL.to_le_bytes(), floor)
            .unwrap();
        writer.stamp(outcome.version, 1);
    }
    visible.store(1, Ordering::Release);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (buffer, visible, readers, stop) = (&buffer, &visible, &readers, &stop);
            scope.spawn(move || {
                let mut rounds = 0u64;
                // At least once, also where the scheduler lets no reader in before the writer is done.
                loop {
                    let (_pin, csn) = readers.acquire(visible);
                    let points: i64 = (0..ACCOUNTS)
                        .map(|number| balance(buffer.get(&account(number), csn)))
                        .sum();
                    assert_eq!(points, ACCOUNTS as i64 * INITIAL);
                    let mut cursor = buffer.cursor();
                    let (mut sum, mut accounts, mut logs) = (0, 0, 0);
                    let forward = (rounds + reader).is_multiple_of(2);
                    let mut more = if forward {
                        cursor.first()
                    } else {
                        cursor.last()
                    };
                    while more {
                        match cursor.resolve(csn) {
                            Found::Value(_) if cursor.key().starts_with(b"log") => logs += 1,
                            found @ Found::Value(_) => {
                                sum += balance(found);
                                accounts += 1;
                            }
                            _ => {}
                        }
                        more = if forward {
                            cursor.next()
                        } else {
                            cursor.prev()
                        };
                    }
                    assert_eq!((accounts, sum), (ACCOUNTS, ACCOUNTS as i64 * INITIAL));
                    // One log key a commit; each hundredth commit deletes all logs and writes its own.
                    let expected = if csn < 100 { csn - 1 } else { csn % 100 + 1 };
                    assert_eq!(logs, expected, "at {csn}");
                    rounds += 1;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut random = SmallRng::seed_from_u64(seed);
        let mut csn = 1u64;
        while Instant::now() < until && buffer.arena().bytes_used() < 14 << 20 {
            let (from, to) = (
                random.random_range(0..ACCOUNTS),
                random.random_range(0..ACCOUNTS),
            );
            let amount = random.random_range(1..100i64);
            let abort = random.random_bool(0.1);
            let next = csn + 1;
            let floor = Watermark::default();
            if random.random_bool(0.5) {
                // SAFETY: the readers have pins.
                unsafe { writer.set_seen(readers.seen_by_all(visible.load(Ordering::Acquire))) };
            }
            let mut touched = Vec::new();
            let tombstone = next
                .is_multiple_of(100)
                .then(|| writer.add_range_tombstone(b"log", Some(b"loh")));
            for (number, change) in [(from, -amount), (to, amount)] {
                let key = account(number);
                let new = balance(writer.get(&key)) + change;
                let (entry, outcome) = writer
                    .put(&key, Kind::Value, &new.to_le_bytes(), floor)
                    .unwrap();
                if outcome.pushed {
                    touched.push((entry, outcome.version));
                }
            }
            let mut log = b"log".to_vec();
            log.extend_from_slice(&next.to_be_bytes());
            let (entry, outcome) = writer.put(&log, Kind::Value, &[1; 8], floor).unwrap();
            touched.push((entry, outcome.version));
            if abort {
                for (entry, version) in touched.into_iter().rev() {
                    writer.undo(entry, version);
                }
                if let Some(tombstone) = &tombstone {
                    writer.undo_range_tombstone(tombstone);
                }
                continue;
            }
            for (_, version) in touched {
                writer.stamp(version, next);
            }
            if let Some(tombstone) = &tombstone {
                writer.stamp_range_tombstone(tombstone, next);
            }
            csn = next;
            visible.store(csn, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
