//! Story: entries with a moment at which they expire. A clock that the test moves says what time it is. Expired entries are absent for every
//! kind of read and write, at once; a snapshot and a transaction go by one time; merges and compaction drop them, and nothing older comes back
//! in their place. Moments survive closing, crashes, backups, bulk loads and spills.

mod lasting;
mod merges;
mod reads;
mod writes;

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use psitri::{Database, Expiry, Keyspace, KeyspaceOptions, Options};

/// A clock that stands until it is moved.
#[derive(Clone)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn new() -> Hand {
        Hand(Arc::new(AtomicU64::new(1_000_000)))
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn pass(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }

    fn set_back(&self, millis: u64) {
        self.0.fetch_sub(millis, Ordering::SeqCst);
    }

    /// Nothing is merged unless the test asks for it.
    fn options(&self) -> Options {
        let hand = self.clone();
        Options::new()
            .clock(move || hand.now())
            .buffer_bytes(1 << 20)
            .idle_flush(Duration::from_secs(3600))
    }
}

fn expiring() -> KeyspaceOptions {
    KeyspaceOptions::new().entries_expire()
}

fn after(millis: u64) -> Expiry {
    Expiry::After(Duration::from_millis(millis))
}

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8], expiry: Expiry) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert_expiring(ks, key, value, expiry).unwrap();
    txn.commit().unwrap();
}

fn keys(db: &Database, ks: &Keyspace) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let note = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    db.snapshot().for_each(ks, .., note).unwrap();
    keys
}

/// Entries in the tree and in the buffers, expired ones too.
fn held(db: &Database, ks: &Keyspace) -> (u64, u64) {
    let stats = db.stats().unwrap();
    let of = stats.keyspaces.iter().find(|k| k.name == ks.name());
    of.map(|k| (k.keys_merged, k.entries_buffered)).unwrap()
}

fn assert_sound(db: &Database) {
    assert_eq!(db.verify().unwrap().errors, [""; 0]);
}

/// Where the entries under test are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layer {
    Active,
    Tree,
    /// Half of them in the tree, all of them in the buffer.
    Both,
}

const LAYERS: [Layer; 3] = [Layer::Active, Layer::Tree, Layer::Both];

/// A hundred entries, of which those with odd numbers expire after 50 ms.
fn hundred(hand: &Hand, layer: Layer) -> (Database, Keyspace) {
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let fill = |numbers: std::ops::Range<u8>| {
        let mut txn = db.begin(&[&ks]).unwrap();
        for n in numbers {
            let expiry = if n % 2 == 1 { after(50) } else { Expiry::Never };
            txn.upsert_expiring(&ks, &[n], &[n; 20], expiry).unwrap();
        }
        txn.commit().unwrap();
    };
    if layer == Layer::Both {
        fill(0..50);
        db.checkpoint().unwrap();
    }
    fill(0..100);
    if layer == Layer::Tree {
        db.checkpoint().unwrap();
    }
    let expected = match layer {
        Layer::Active => (0, 100),
        Layer::Tree => (100, 0),
        Layer::Both => (50, 100),
    };
    assert_eq!(held(&db, &ks), expected, "{layer:?}");
    (db, ks)
}
