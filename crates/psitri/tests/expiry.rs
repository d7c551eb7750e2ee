//! Story: entries with a moment at which they expire. A clock that the test moves says what time it is. Expired entries are absent for every
//! kind of read and write, at once; a snapshot and a transaction go by one time; merges and compaction drop them, and nothing older comes back
//! in their place. Moments survive closing, crashes, backups, bulk loads and spills.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use psitri::{
    Database, Error, Expiry, Isolation, Keyspace, KeyspaceOptions, Options, ReadMode, WriteBatch,
    storage::sim::SimStorage,
};

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

#[test]
fn an_entry_is_there_up_to_its_moment_and_not_at_it() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let moment = hand.now() + Duration::from_millis(10);
    put(&db, &ks, b"a", b"1", after(10));
    put(&db, &ks, b"b", b"2", Expiry::At(moment));
    put(&db, &ks, b"c", b"3", Expiry::Never);
    put(&db, &ks, b"d", b"4", Expiry::At(UNIX_EPOCH));
    assert_eq!(
        db.snapshot().expiry(&ks, b"a").unwrap(),
        Some(Expiry::At(moment))
    );
    hand.pass(9);
    assert_eq!(keys(&db, &ks), [b"a", b"b", b"c"]);
    assert_eq!(db.get(&ks, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    hand.pass(1);
    assert_eq!(keys(&db, &ks), [b"c"]);
    assert_eq!(db.get(&ks, b"a").unwrap(), None);
    assert_eq!(db.snapshot().expiry(&ks, b"a").unwrap(), None);
    assert_eq!(
        db.snapshot().expiry(&ks, b"c").unwrap(),
        Some(Expiry::Never)
    );
}

#[test]
fn every_kind_of_read_passes_by_what_has_expired() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        hand.pass(50);
        let snapshot = db.snapshot();
        let even: Vec<u8> = (0..100).filter(|n| n % 2 == 0).collect();

        let mut cursor = snapshot.cursor(&ks).unwrap();
        let mut forward = Vec::new();
        let mut found = cursor.seek_first().unwrap();
        while found {
            forward.push(cursor.key()[0]);
            assert_eq!(cursor.value(), [cursor.key()[0]; 20]);
            assert_eq!(cursor.expiry(), Some(Expiry::Never));
            found = cursor.next().unwrap();
        }
        assert_eq!(forward, even, "{layer:?}");
        let mut backward = Vec::new();
        let mut found = cursor.seek_last().unwrap();
        while found {
            backward.push(cursor.key()[0]);
            found = cursor.prev().unwrap();
        }
        backward.reverse();
        assert_eq!(backward, even, "{layer:?}");
        assert!(cursor.seek(&[31]).unwrap());
        assert_eq!(cursor.key(), [32], "{layer:?}");
        assert!(cursor.prev().unwrap());
        assert_eq!(cursor.key(), [30], "{layer:?}");
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.key(), [32], "{layer:?}");
        assert!(cursor.seek_back(&[31]).unwrap());
        assert_eq!(cursor.key(), [30], "{layer:?}");
        assert!(!cursor.seek(&[99]).unwrap(), "{layer:?}");

        assert_eq!(
            keys(&db, &ks).concat(),
            even,
            "{layer:?}: for_each, which reads leaves whole"
        );
        let (two, three) = ([2], [3]);
        let many = snapshot.get_many(&ks, &[&two, &three]).unwrap();
        assert_eq!(many, [Some(&[2; 20][..]), None], "{layer:?}");
        assert_eq!(snapshot.count(&ks, ..).unwrap(), 50, "{layer:?}");
        let (lo, hi) = ([11], [21]);
        assert_eq!(snapshot.count(&ks, &lo[..]..&hi[..]).unwrap(), 5);
        assert_eq!(snapshot.count(&ks, &lo[..]..=&lo[..]).unwrap(), 0);
        assert_eq!(snapshot.rank(&ks, &[31]).unwrap(), 16, "{layer:?}");
        assert_eq!(snapshot.nth(&ks, 16).unwrap(), Some(vec![32]), "{layer:?}");
        assert_eq!(snapshot.nth(&ks, 50).unwrap(), None, "{layer:?}");

        let txn = db.begin(&[&ks]).unwrap();
        assert_eq!(txn.get(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.get(&ks, &[4]).unwrap(), Some(&[4; 20][..]));
        assert_eq!(txn.expiry(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.count(&ks, ..).unwrap(), 50, "{layer:?}");
    }
}

#[test]
fn every_kind_of_write_takes_what_has_expired_for_absent() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        hand.pass(50);
        let mut txn = db.begin(&[&ks]).unwrap();
        assert!(!txn.remove(&ks, &[1]).unwrap(), "{layer:?}");
        assert!(matches!(
            txn.update(&ks, &[1], b"new"),
            Err(Error::KeyAbsent)
        ));
        txn.insert(&ks, &[1], b"new").unwrap();
        assert_eq!(txn.get(&ks, &[1]).unwrap(), Some(&b"new"[..]));
        assert!(
            !txn.compare_and_swap(&ks, &[3], Some(&[3; 20]), None)
                .unwrap()
        );
        assert!(txn.compare_and_swap(&ks, &[3], None, Some(b"x")).unwrap());
        assert!(txn.remove(&ks, &[3]).unwrap());
        let first = txn.pop_first(&ks).unwrap().unwrap();
        assert_eq!(first, (vec![0], vec![0; 20]), "{layer:?}");
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [1]);
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [2]);
        assert_eq!(txn.pop_first(&ks).unwrap().unwrap().0, [4]);
        assert_eq!(txn.pop_last(&ks).unwrap().unwrap().0, [98], "{layer:?}");
        let (lo, hi) = ([10], [20]);
        let extracted = txn.extract(&ks, &lo[..]..&hi[..], |_, _| true).unwrap();
        assert_eq!(extracted.len(), 5, "{layer:?}");
        assert_eq!(txn.retain(&ks, .., |key, _| key[0] < 30).unwrap(), 34);
        txn.commit().unwrap();
        assert_eq!(
            keys(&db, &ks).concat(),
            [6, 8, 20, 22, 24, 26, 28],
            "{layer:?}"
        );
    }
}

#[test]
fn readers_go_by_the_time_of_their_first_look() {
    for layer in LAYERS {
        let hand = Hand::new();
        let (db, ks) = hundred(&hand, layer);
        let (early, late) = (db.snapshot(), db.snapshot());
        assert!(early.get(&ks, &[1]).unwrap().is_some());
        let mut txn = db.begin(&[&ks]).unwrap();
        assert!(txn.get(&ks, &[1]).unwrap().is_some());
        hand.pass(50);
        assert_eq!(early.count(&ks, ..).unwrap(), 100, "{layer:?}");
        assert_eq!(early.get(&ks, &[3]).unwrap(), Some(&[3; 20][..]));
        assert_eq!(late.count(&ks, ..).unwrap(), 50, "{layer:?}");
        assert_eq!(db.get(&ks, &[3]).unwrap(), None);
        assert_eq!(txn.count(&ks, ..).unwrap(), 100, "{layer:?}");
        // The time of the transaction counts for what it writes, too.
        txn.upsert_expiring(&ks, b"mine", b"-", after(20)).unwrap();
        assert!(txn.get(&ks, b"mine").unwrap().is_some());
        txn.commit().unwrap();
        assert_eq!(db.get(&ks, b"mine").unwrap(), None, "it ended 30 ms ago");
        // What merges drop stays for those who have seen it.
        put(&db, &ks, &[0], b"-", Expiry::Never);
        db.drop_expired(&ks).unwrap();
        assert_eq!(held(&db, &ks).0, 50, "{layer:?}");
        assert_eq!(early.count(&ks, ..).unwrap(), 100, "{layer:?}");
        assert_eq!(early.get(&ks, &[99]).unwrap(), Some(&[99; 20][..]));
        assert_eq!(late.count(&ks, ..).unwrap(), 50, "{layer:?}");
        assert_sound(&db);
    }
}

#[test]
fn a_keyspace_has_a_default_and_writes_without_a_moment_take_it() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let hour = Duration::from_secs(3600);
    let ks = db
        .create_keyspace_with("ks", KeyspaceOptions::new().expire_after(hour))
        .unwrap();
    assert_eq!(ks.options().expires_after(), Some(hour));
    let moment = Some(Expiry::At(hand.now() + hour));
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"upsert", b"-").unwrap();
    txn.insert(&ks, b"insert", b"-").unwrap();
    txn.upsert(&ks, b"update", b"-").unwrap();
    txn.update(&ks, b"update", b"=").unwrap();
    txn.compare_and_swap(&ks, b"swap", None, Some(b"-"))
        .unwrap();
    txn.upsert_expiring(&ks, b"never", b"-", Expiry::Never)
        .unwrap();
    txn.upsert_expiring(&ks, b"sooner", b"-", after(1000))
        .unwrap();
    txn.nested().upsert(&ks, b"undone", b"-").unwrap();
    txn.commit().unwrap();
    let mut batch = WriteBatch::new();
    batch.upsert(&ks, b"batch", b"-");
    batch.upsert_expiring(&ks, b"batch sooner", b"-", after(1000));
    batch.upsert_expiring(&ks, b"batch never", b"-", Expiry::Never);
    db.write(batch).unwrap();
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    txn.upsert(&ks, b"optimistic", b"-").unwrap();
    txn.upsert_expiring(&ks, b"optimistic never", b"-", Expiry::Never)
        .unwrap();
    txn.commit().unwrap();
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.upsert(&ks, b"direct", b"-").unwrap();
    txn.ingest(&ks, [(b"ingest", b"-")]).unwrap();
    txn.ingest_expiring(&ks, [(b"ingest sooner", b"-", after(1000))])
        .unwrap();
    let mut inner = txn.nested();
    inner.ingest(&ks, [(b"nested ingest", b"-")]).unwrap();
    inner
        .ingest_expiring(&ks, [(b"nested ingest never", b"-", Expiry::Never)])
        .unwrap();
    inner.commit();
    txn.commit().unwrap();

    let snapshot = db.snapshot();
    for (key, count) in [("sooner", 3), ("never", 4)] {
        let wanted = match key {
            "never" => Some(Expiry::Never),
            _ => Some(Expiry::At(hand.now() + Duration::from_secs(1))),
        };
        let all = keys(&db, &ks);
        let of = all.iter().filter(|k| k.ends_with(key.as_bytes()));
        assert_eq!(of.clone().count(), count, "{key}");
        for key in of {
            assert_eq!(snapshot.expiry(&ks, key).unwrap(), wanted, "{key:?}");
        }
    }
    for key in [
        "upsert",
        "insert",
        "update",
        "swap",
        "batch",
        "optimistic",
        "direct",
        "ingest",
        "nested ingest",
    ] {
        let found = snapshot.expiry(&ks, key.as_bytes()).unwrap();
        assert_eq!(found, moment, "{key}");
    }
    hand.pass(3_600_000);
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4);
    // Another write starts the time anew.
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.upsert(&ks, b"never", b"no more").unwrap();
    txn.commit().unwrap();
    hand.pass(3_600_000);
    assert_eq!(db.get(&ks, b"never").unwrap(), None);
}

#[test]
fn keyspaces_without_expiry_say_what_to_do() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    assert!(!plain.options().do_entries_expire());
    let refused = |result: Result<(), Error>| {
        let error = result.expect_err("entries do not expire here");
        assert!(matches!(error, Error::NoExpiry { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("KeyspaceOptions::entries_expire")
        );
    };
    let mut txn = db.begin(&[&plain]).unwrap();
    refused(txn.upsert_expiring(&plain, b"k", b"v", Expiry::Never));
    refused(
        txn.ingest_expiring(&plain, [(b"k", b"v", Expiry::Never)])
            .map(drop),
    );
    txn.upsert(&plain, b"k", b"v").unwrap();
    assert_eq!(txn.expiry(&plain, b"k").unwrap(), Some(Expiry::Never));
    txn.commit().unwrap();
    assert_eq!(
        db.snapshot().expiry(&plain, b"k").unwrap(),
        Some(Expiry::Never)
    );
    let mut batch = WriteBatch::new();
    batch.upsert_expiring(&plain, b"k", b"w", Expiry::Never);
    refused(db.write(batch));
    let mut txn = db.begin_optimistic(Isolation::Snapshot);
    refused(txn.upsert_expiring(&plain, b"k", b"w", Expiry::Never));
    assert_eq!(db.get(&plain, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.drop_expired(&plain).unwrap();
    assert_eq!(db.snapshot().count(&plain, ..).unwrap(), 1);

    for after in [Duration::ZERO, Duration::MAX] {
        let options = KeyspaceOptions::new().expire_after(after);
        let made = db.create_keyspace_with("never made", options);
        assert!(matches!(made, Err(Error::BadOption { .. })), "{after:?}");
    }
    assert_eq!(db.keyspaces(), ["plain"]);
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    for far in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let error = txn.upsert_expiring(&ks, b"k", b"v", Expiry::After(far));
        assert!(matches!(error, Err(Error::ExpiryTooFar)), "{far:?}");
    }
    assert_eq!(txn.get(&ks, b"k").unwrap(), None);
}

/// The value that an expired one replaced must not be seen again: not while the expired one is in a buffer, nor after it was merged.
#[test]
fn nothing_older_comes_back_in_the_place_of_what_has_expired() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for n in 0..100u8 {
        put(&db, &ks, &[n], b"old, and for ever", Expiry::Never);
    }
    db.checkpoint().unwrap();
    // Of the same length, so that the leaf could be patched; of others; out of line; written straight to the file.
    for (n, bytes) in [(10u8, 17), (20, 5), (30, 600), (40, 20_000)] {
        put(&db, &ks, &[n], &vec![n; bytes], after(50));
    }
    let gone = [10u8, 20, 30, 40];
    hand.pass(50);
    let check = |when: &str| {
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 96, "{when}");
        for n in gone {
            assert_eq!(db.get(&ks, &[n]).unwrap(), None, "{when}");
        }
    };
    check("before the merge");
    db.checkpoint().unwrap();
    assert_eq!(held(&db, &ks), (96, 0));
    check("after the merge");
    // What the merge dropped stays so.
    hand.set_back(50);
    check("with the clock set back");
    assert_sound(&db);
}

/// The same where several buffers are merged at once, the newest with the expired version: recovery makes several of one log.
#[test]
fn nothing_older_comes_back_from_buffers_that_are_merged_together() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(2));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let other = db.create_keyspace("other").unwrap();
    put(&db, &ks, b"k", b"oldest", Expiry::Never);
    db.checkpoint().unwrap();
    let fill = || {
        let mut txn = db.begin(&[&other]).unwrap();
        for n in 0..100u32 {
            txn.upsert(&other, &n.to_be_bytes(), &[7; 2000]).unwrap();
        }
        txn.commit().unwrap();
    };
    put(&db, &ks, b"k", b"older", Expiry::Never);
    fill();
    put(&db, &ks, b"k", b"newest", after(50));
    fill();
    assert_eq!(held(&db, &ks), (1, 1), "nothing was merged meanwhile");
    hand.pass(50);
    let left = disk.process_crash(2);
    let options = hand.options().buffer_bytes(256 << 10);
    let db = Database::open_on(Arc::new(left), options).unwrap();
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
    db.checkpoint().unwrap();
    assert_eq!(held(&db, &ks), (0, 0));
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
    hand.set_back(50);
    assert_eq!(db.get(&ks, b"k").unwrap(), None);
}

#[test]
fn merges_drop_what_they_come_by_and_a_sweep_drops_the_rest() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    let entries = (0..20_000u32).map(|n| {
        let expiry = if n % 10 == 0 {
            Expiry::Never
        } else {
            after(50)
        };
        (n.to_be_bytes(), [n as u8; 100], expiry)
    });
    txn.ingest_expiring(&ks, entries).unwrap();
    txn.commit().unwrap();
    assert_eq!(held(&db, &ks), (20_000, 0));
    hand.pass(50);
    // One leaf is taken apart: it loses its expired entries, others keep theirs.
    put(&db, &ks, &7000u32.to_be_bytes(), b"short", Expiry::Never);
    db.checkpoint().unwrap();
    let (merged, _) = held(&db, &ks);
    assert!((10_000..19_999).contains(&merged), "{merged}");
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2000);
    assert_sound(&db);
    let before = db.stats().unwrap().reachable_bytes;
    db.drop_expired(&ks).unwrap();
    assert_eq!(held(&db, &ks), (2000, 0));
    let after = db.stats().unwrap().reachable_bytes;
    assert!(after < before / 5, "{after} of {before} bytes");
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2000);
    assert_sound(&db);
    // Nothing is left to do: no checkpoint.
    let checkpoints = db.stats().unwrap().checkpoints;
    db.drop_expired(&ks).unwrap();
    assert_eq!(db.stats().unwrap().checkpoints, checkpoints);
}

#[test]
fn compaction_drops_everything_that_has_expired() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let all_gone = db.create_keyspace_with("gone", expiring()).unwrap();
    for keyspace in [&ks, &all_gone] {
        let mut txn = db.begin_direct(&[keyspace]).unwrap();
        for n in 0..3000u32 {
            let keeps = n % 100 == 0 && keyspace.name() == "ks";
            let expiry = if keeps { Expiry::Never } else { after(50) };
            // In leaves, out of line, in pages of their own.
            let bytes = [50, 1000, 20_000][usize::from(n % 10 == 1) + usize::from(n % 100 == 1)];
            let value = vec![n as u8; bytes];
            txn.upsert_expiring(keyspace, &n.to_be_bytes(), &value, expiry)
                .unwrap();
        }
        txn.commit().unwrap();
    }
    db.checkpoint().unwrap();
    let before = db.stats().unwrap().file_bytes;
    hand.pass(50);
    db.compact().unwrap();
    assert_eq!((held(&db, &ks), held(&db, &all_gone)), ((30, 0), (0, 0)));
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes < before / 20, "{stats:?}");
    assert_sound(&db);
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 30);
}

#[test]
fn values_of_every_size_keep_their_moment() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let sizes = [
        0usize,
        1,
        503,
        504,
        505,
        512,
        4087,
        4088,
        16_375,
        16_376,
        16_377,
        16_384,
        100_000,
        3 << 20,
    ];
    let db = hand.options().open(&path).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    let mut txn = db.begin(&[&ks]).unwrap();
    for (n, &bytes) in sizes.iter().enumerate() {
        let value = vec![n as u8; bytes];
        txn.upsert_expiring(&ks, &[n as u8], &value, after(50))
            .unwrap();
        assert_eq!(txn.get(&ks, &[n as u8]).unwrap(), Some(&value[..]));
    }
    txn.commit().unwrap();
    let moment = Some(Expiry::At(hand.now() + Duration::from_millis(50)));
    let check = |db: &Database, when: &str| {
        let ks = db.open_keyspace("ks").unwrap();
        let snapshot = db.snapshot();
        for (n, &bytes) in sizes.iter().enumerate() {
            let value = snapshot.get(&ks, &[n as u8]).unwrap();
            assert_eq!(value, Some(&vec![n as u8; bytes][..]), "{when}");
            assert_eq!(snapshot.expiry(&ks, &[n as u8]).unwrap(), moment);
        }
    };
    check(&db, "in the buffer");
    db.checkpoint().unwrap();
    check(&db, "in the tree");
    db.close().unwrap();
    let db = hand.options().open(&path).unwrap();
    check(&db, "after opening");
    assert_sound(&db);
    hand.pass(50);
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(keys(&db, &ks), [[0u8; 0]; 0]);
    db.compact().unwrap();
    assert_eq!(held(&db, &ks), (0, 0));
    let stats = db.stats().unwrap();
    assert!(stats.reachable_bytes <= 16 << 10, "{stats:?}");
    assert_sound(&db);
}

/// Values that transactions wrote to the file, and that expire before they are merged: their space is given back, and the log that names them
/// can be replayed.
#[test]
fn large_values_that_expire_in_the_buffer_leave_nothing_behind() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(7));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    put(&db, &ks, b"never", b"-", Expiry::Never);
    // A direct transaction merges what it wrote, and logs it: the value has expired by then.
    let mut txn = db.begin_direct(&[&ks]).unwrap();
    txn.upsert_expiring(&ks, b"direct", &[1; 50_000], after(0))
        .unwrap();
    txn.commit().unwrap();
    for n in 0..20u8 {
        put(&db, &ks, &[n], &vec![n; 50_000], after(50));
    }
    hand.pass(50);
    let after_crash = disk.process_crash(1);
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let kept = db.stats().unwrap();
    assert!(kept.reachable_bytes < 100_000, "{kept:?}");
    assert_eq!(keys(&db, &ks), [b"never"]);
    assert_sound(&db);

    let again = Database::open_on(Arc::new(after_crash), hand.options()).unwrap();
    let ks = again.open_keyspace("ks").unwrap();
    assert_eq!(keys(&again, &ks), [b"never"]);
    again.checkpoint().unwrap();
    assert_eq!(keys(&again, &ks), [b"never"]);
    assert_sound(&again);
}

#[test]
fn moments_and_options_survive_closing_and_crashes() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(3));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    let day = Duration::from_secs(86_400);
    let options = KeyspaceOptions::new().expire_after(day);
    let merged = db.create_keyspace_with("merged", options).unwrap();
    let mut txn = db.begin(&[&merged]).unwrap();
    txn.upsert(&merged, b"k", b"v").unwrap();
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    let logged = db.create_keyspace_with("logged", options).unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    let mut txn = db.begin(&[&merged, &logged, &plain]).unwrap();
    txn.upsert(&logged, b"k", b"v").unwrap();
    txn.upsert(&plain, b"k", b"v").unwrap();
    txn.upsert_expiring(&merged, b"soon", b"v", after(10))
        .unwrap();
    txn.commit().unwrap();
    let created = hand.now();
    db.flush().unwrap();
    for power in [false, true] {
        let left = if power {
            disk.crash(5)
        } else {
            disk.process_crash(5)
        };
        let db = Database::open_on(Arc::new(left), hand.options()).unwrap();
        for name in ["merged", "logged"] {
            let ks = db.open_keyspace(name).unwrap();
            assert_eq!(ks.options(), options, "{name}");
            let found = db.snapshot().expiry(&ks, b"k").unwrap();
            assert_eq!(found, Some(Expiry::At(created + day)), "{name}");
            assert_eq!(db.get(&ks, b"k").unwrap().as_deref(), Some(&b"v"[..]));
        }
        let plain = db.open_keyspace("plain").unwrap();
        assert_eq!(plain.options(), KeyspaceOptions::new());
        assert_eq!(db.get(&plain, b"k").unwrap().as_deref(), Some(&b"v"[..]));
        hand.pass(10);
        let merged = db.open_keyspace("merged").unwrap();
        assert_eq!(db.get(&merged, b"soon").unwrap(), None);
        assert_sound(&db);
        db.close().unwrap();
        hand.set_back(10);
    }
}

/// Expired entries that are in the tree in part only, because the process ended in the middle of a merge that is published in slices.
#[test]
fn a_merge_that_was_cut_short_brings_nothing_back() {
    for crash in 0..6 {
        let hand = Hand::new();
        let disk = Arc::new(SimStorage::new(crash));
        let options = || hand.options().buffer_bytes(256 << 10);
        let db = Database::open_on(Arc::clone(&disk) as _, options()).unwrap();
        let ks = db.create_keyspace_with("ks", expiring()).unwrap();
        let mut txn = db.begin_direct(&[&ks]).unwrap();
        let old = (0..5000u32).map(|n| (n.to_be_bytes(), b"old", Expiry::Never));
        txn.ingest_expiring(&ks, old).unwrap();
        txn.commit().unwrap();
        for n in 0..600u32 {
            let key = (n * 8).to_be_bytes();
            put(&db, &ks, &key, b"new", after(50));
        }
        hand.pass(50);
        let start = disk.calls();
        disk.crash_at_call(start + 3 + crash * 9);
        let _ = db.checkpoint();
        let left = disk.process_crash(crash);
        drop((ks, db));
        let db = Database::open_on(Arc::new(left), options()).unwrap();
        let ks = db.open_keyspace("ks").unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        db.checkpoint().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        hand.set_back(50);
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4400, "crash {crash}");
        assert_sound(&db);
    }
}

#[test]
fn pops_pass_what_has_expired_and_find_it_again_if_the_clock_is_set_back() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for n in 0..10u8 {
        let expiry = if n < 5 { after(50) } else { Expiry::Never };
        put(&db, &ks, &[n], &[n], expiry);
    }
    hand.pass(50);
    let pop = || {
        let mut txn = db.begin(&[&ks]).unwrap();
        let popped = txn.pop_first(&ks).unwrap().map(|(key, _)| key[0]);
        txn.commit().unwrap();
        popped
    };
    assert_eq!((pop(), pop()), (Some(5), Some(6)));
    hand.set_back(50);
    assert_eq!((pop(), pop()), (Some(0), Some(1)));
    hand.pass(50);
    assert_eq!(
        (pop(), pop(), pop(), pop()),
        (Some(7), Some(8), Some(9), None)
    );
}

#[test]
fn optimistic_transactions_read_expired_entries_as_absent() {
    let hand = Hand::new();
    let db = hand.options().in_memory().unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    put(&db, &ks, b"a", b"1", after(50));
    put(&db, &ks, b"b", b"2", Expiry::Never);
    hand.pass(50);
    // Two that see it absent and take its place: one of them wins.
    let mut one = db.begin_optimistic(Isolation::Serializable);
    let mut two = db.begin_optimistic(Isolation::Serializable);
    for txn in [&mut one, &mut two] {
        assert_eq!(txn.get(&ks, b"a").unwrap(), None);
        assert!(!txn.remove(&ks, b"a").unwrap());
        let mut seen = 0;
        txn.for_each(&ks, .., |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, 1);
        txn.upsert_expiring(&ks, b"a", b"taken", after(50)).unwrap();
        assert_eq!(txn.get(&ks, b"a").unwrap(), Some(&b"taken"[..]));
    }
    one.commit().unwrap();
    assert!(matches!(two.commit(), Err(Error::Conflict { .. })));
    assert_eq!(db.get(&ks, b"a").unwrap().as_deref(), Some(&b"taken"[..]));

    // What expires while a transaction runs is no change by somebody else.
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    assert_eq!(txn.get(&ks, b"a").unwrap(), Some(&b"taken"[..]));
    put(&db, &ks, b"c", b"3", Expiry::Never);
    hand.pass(50);
    txn.upsert(&ks, b"b", b"4").unwrap();
    txn.commit().unwrap();
    assert_eq!(keys(&db, &ks), [b"b", b"c"]);

    // A longer life is a change, though the value stays.
    put(&db, &ks, b"d", b"5", after(50));
    let mut txn = db.begin_optimistic(Isolation::Snapshot);
    assert!(txn.get(&ks, b"d").unwrap().is_some());
    put(&db, &ks, b"d", b"5", after(500));
    txn.upsert_expiring(&ks, b"d", b"5", after(60)).unwrap();
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));

    // Own writes that are expired when they are written.
    let mut txn = db.begin_optimistic(Isolation::Serializable);
    txn.upsert_expiring(&ks, b"d", b"6", after(0)).unwrap();
    assert_eq!(txn.get(&ks, b"d").unwrap(), None);
    txn.commit().unwrap();
    assert_eq!(db.get(&ks, b"d").unwrap(), None);
}

#[test]
fn spills_and_direct_transactions_keep_moments() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let options = || hand.options().buffer_bytes(256 << 10);
    let db = options().open(dir.path().join("db")).unwrap();
    let ks = db.create_keyspace_with("ks", expiring()).unwrap();
    for direct in [false, true] {
        let mut txn = if direct {
            db.begin_direct(&[&ks]).unwrap()
        } else {
            db.begin(&[&ks]).unwrap()
        };
        // Several times the buffer.
        for n in 0..10_000u32 {
            let expiry = if n % 2 == 1 { after(50) } else { Expiry::Never };
            txn.upsert_expiring(&ks, &n.to_be_bytes(), &[direct as u8; 100], expiry)
                .unwrap();
        }
        assert_eq!(txn.count(&ks, ..).unwrap(), 10_000);
        hand.pass(50);
        assert_eq!(
            txn.count(&ks, ..).unwrap(),
            10_000,
            "one time for all its life"
        );
        txn.commit().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 5000);
        let value = db.get(&ks, &4u32.to_be_bytes()).unwrap();
        assert_eq!(value, Some(vec![direct as u8; 100]));
        assert_sound(&db);
    }
    db.close().unwrap();
    let db = options().open(dir.path().join("db")).unwrap();
    let ks = db.open_keyspace("ks").unwrap();
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 5000);
}

/// A transaction that spills merges what is committed, and reads that from then on: entries that expired while it ran must still be there.
#[test]
fn a_transaction_that_spills_keeps_its_time() {
    for ingests in [false, true] {
        let hand = Hand::new();
        let options = hand.options().buffer_bytes(256 << 10);
        let db = options.in_memory().unwrap();
        let ks = db.create_keyspace_with("ks", expiring()).unwrap();
        for n in 0..100u8 {
            let expiry = if n % 2 == 1 { after(50) } else { Expiry::Never };
            put(&db, &ks, &[n], &[n; 20], expiry);
        }
        db.checkpoint().unwrap();
        // The leaf is taken apart by the next merge.
        put(&db, &ks, &[0], b"shorter", Expiry::Never);
        let mut txn = db.begin(&[&ks]).unwrap();
        assert_eq!(txn.count(&ks, ..).unwrap(), 100);
        hand.pass(50);
        let more = (0..2000u32).map(|n| (n.to_be_bytes(), [7; 100]));
        if ingests {
            txn.ingest(&ks, more).unwrap();
        } else {
            for (key, value) in more {
                txn.upsert(&ks, &key, &value).unwrap();
            }
        }
        assert_eq!(txn.count(&ks, ..).unwrap(), 2100, "ingests: {ingests}");
        txn.commit().unwrap();
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2050);
        db.drop_expired(&ks).unwrap();
        assert_eq!(held(&db, &ks), (2050, 0));
        assert_sound(&db);
    }
}

#[test]
fn read_modes_and_range_deletes_know_of_expiry() {
    let hand = Hand::new();
    let (db, ks) = hundred(&hand, Layer::Tree);
    let count = |mode| db.snapshot_with(mode).count(&ks, ..).unwrap();
    assert_eq!(count(ReadMode::Trie), 100);
    let mut txn = db.begin(&[&ks]).unwrap();
    txn.remove_range(&ks, &[0], Some(&[10])).unwrap();
    txn.upsert_expiring(&ks, &[5], b"again", after(100))
        .unwrap();
    txn.upsert_expiring(&ks, &[6], b"again", after(20)).unwrap();
    txn.commit().unwrap();
    assert_eq!(count(ReadMode::Latest), 92);
    hand.pass(50);
    assert_eq!((count(ReadMode::Latest), count(ReadMode::Trie)), (46, 50));
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(&ks).unwrap();
    assert!(cursor.seek_first().unwrap());
    assert_eq!(cursor.key(), [5]);
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.key(), [10]);
    assert!(cursor.prev().unwrap());
    assert_eq!(cursor.value(), b"again");
    db.checkpoint().unwrap();
    assert_eq!((count(ReadMode::Latest), count(ReadMode::Trie)), (46, 46));
    assert_sound(&db);
}

#[test]
fn backups_keep_moments_and_options() {
    let hand = Hand::new();
    let dir = tempfile::tempdir().unwrap();
    let db = hand.options().open(dir.path().join("db")).unwrap();
    let day = KeyspaceOptions::new().expire_after(Duration::from_secs(86_400));
    let ks = db.create_keyspace_with("ks", day).unwrap();
    let plain = db.create_keyspace("plain").unwrap();
    put(&db, &ks, b"gone", b"-", after(10));
    put(&db, &ks, b"later", b"1", after(1000));
    put(&db, &ks, b"same", b"1", after(2000));
    let mut txn = db.begin(&[&ks, &plain]).unwrap();
    txn.upsert(&ks, b"default", b"1").unwrap();
    txn.upsert(&plain, b"k", b"1").unwrap();
    txn.commit().unwrap();
    hand.pass(10);
    let (full, more) = (dir.path().join("full"), dir.path().join("more"));
    assert_eq!(db.backup(&full).unwrap().entries, 4, "but not what is gone");
    put(&db, &ks, b"later", b"1", after(5000));
    let late = db.create_keyspace_with("late", expiring()).unwrap();
    put(&db, &late, b"k", b"1", after(700));
    let since = psitri::BackupOptions::new().since(&[&full]);
    let info = db.backup_with(&more, since).unwrap();
    assert_eq!(info.entries, 2, "another moment is a difference");

    for (chain, name) in [(vec![&full], "a"), (vec![&full, &more], "b")] {
        let path = dir.path().join(name);
        Database::restore(&chain, &path).unwrap();
        let again = hand.options().open(&path).unwrap();
        let restored = again.open_keyspace("ks").unwrap();
        assert_eq!(restored.options(), day);
        assert_eq!(
            keys(&again, &restored),
            [&b"default"[..], b"later", b"same"]
        );
        for key in [&b"default"[..], b"same"] {
            let wanted = db.snapshot().expiry(&ks, key).unwrap();
            assert_eq!(again.snapshot().expiry(&restored, key).unwrap(), wanted);
        }
        let later = again.snapshot().expiry(&restored, b"later").unwrap();
        let is_newer = later == db.snapshot().expiry(&ks, b"later").unwrap();
        assert_eq!(is_newer, name == "b");
        let plain = again.open_keyspace("plain").unwrap();
        assert_eq!(plain.options(), KeyspaceOptions::new());
        assert_eq!(again.get(&plain, b"k").unwrap().as_deref(), Some(&b"1"[..]));
        if name == "b" {
            let late = again.open_keyspace("late").unwrap();
            assert_eq!(late.options(), expiring());
            assert!(again.get(&late, b"k").unwrap().is_some());
            hand.pass(700);
            assert_eq!(again.get(&late, b"k").unwrap(), None);
        }
        assert_sound(&again);
    }
}

/// A dropped keyspace leaves nothing of its kind to the next one in its place.
#[test]
fn a_name_may_come_back_with_other_options() {
    let hand = Hand::new();
    let disk = Arc::new(SimStorage::new(11));
    let db = Database::open_on(Arc::clone(&disk) as _, hand.options()).unwrap();
    for (round, options) in [expiring(), KeyspaceOptions::new(), expiring()]
        .into_iter()
        .enumerate()
    {
        let ks = db.create_keyspace_with("ks", options).unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, b"k", &[round as u8; 3]).unwrap();
        txn.commit().unwrap();
        assert_eq!(db.get(&ks, b"k").unwrap(), Some(vec![round as u8; 3]));
        let left = disk.process_crash(round as u64);
        let again = Database::open_on(Arc::new(left), hand.options()).unwrap();
        let reopened = again.open_keyspace("ks").unwrap();
        assert_eq!(reopened.options(), options);
        assert_eq!(
            again.get(&reopened, b"k").unwrap(),
            Some(vec![round as u8; 3])
        );
        drop((reopened, again));
        db.drop_keyspace("ks").unwrap();
    }
}

#[test]
fn several_threads_of_one_snapshot_see_one_time() {
    let hand = Hand::new();
    let (db, ks) = hundred(&hand, Layer::Both);
    for _ in 0..20 {
        let snapshot = db.snapshot();
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| snapshot.count(&ks, ..).unwrap()))
                .collect();
            hand.pass(5);
            readers.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
    assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 50);
}
