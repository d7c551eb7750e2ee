//! Who waits for whom: nobody for ever, and the background threads not in circles.
//!
//! A test that hangs is stopped by its own watchdog.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use psitri::{
    Database, Durability, Keyspace, Options, WriteBatch,
    storage::{
        LockMode, OpenMode, ReadMap, Storage, StorageError, StorageFile, StorageLock, WriteMap,
        sim::SimStorage,
    },
};

const HANGS_AFTER: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options::new()
        .buffer_bytes(256 << 10)
        .frozen_buffers(1)
        .wal_segment_bytes(1 << 20)
        .idle_flush(Duration::from_secs(3600))
}

/// Runs a test in a thread of its own, so that a deadlock fails it.
fn within_time(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).expect("the test waits");
    });
    match wait.recv_timeout(HANGS_AFTER) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => thread.join().expect("the test passes"),
    }
}

fn put(db: &Database, ks: &Keyspace, key: &[u8], value: &[u8]) {
    let mut txn = db.begin(&[ks]).unwrap();
    txn.upsert(ks, key, value).unwrap();
    txn.commit().unwrap();
}

/// A batch that spills needs the merge of batches that its leader logged before it, but has not flushed yet.
#[test]
fn a_leader_of_durable_batches_does_not_wait_for_itself() {
    within_time(|| {
        let db = Database::open_on(Arc::new(SimStorage::new(1)), options()).unwrap();
        let ks = db.keyspace("k").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                let (db, ks) = (&db, &ks);
                scope.spawn(move || {
                    for round in 0..20u8 {
                        let mut batch = WriteBatch::new();
                        batch.durability(Durability::Sync);
                        let entries = if thread % 2 == 0 { 1 } else { 200 };
                        for entry in 0..entries {
                            batch.upsert(ks, &[thread, round, entry], &[round; 1000]);
                        }
                        db.write(batch).unwrap();
                    }
                });
            }
        });
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 4 * 20 * 201);
    });
}

/// A disk whose writes to the data file, and flushes of the log, can be held up.
#[derive(Debug, Clone)]
struct GateStorage {
    inner: SimStorage,
    gate: Arc<Gate>,
    log_gate: Arc<Gate>,
}

impl GateStorage {
    fn new(seed: u64) -> GateStorage {
        GateStorage {
            inner: SimStorage::new(seed),
            gate: Arc::default(),
            log_gate: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
    panics: AtomicBool,
}

impl Gate {
    fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        if self.panics.load(Ordering::SeqCst) {
            panic!("a defect in the storage");
        }
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
    }

    /// Waits until somebody stands before the closed gate.
    fn wait_for_somebody(&self) {
        let mut state = self.state.lock().unwrap();
        while state.1 == 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// Also where an assertion fails before that.
struct OpenedAtEnd<'g>(&'g Gate);

impl Drop for OpenedAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Storage for GateStorage {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn StorageFile>, StorageError> {
        let file = self.inner.open(name, mode)?;
        let is_data = name == "data";
        Ok(Arc::new(GateFile {
            file,
            gate: is_data.then(|| Arc::clone(&self.gate)),
            log_gate: (!is_data).then(|| Arc::clone(&self.log_gate)),
        }))
    }
    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        self.inner.exists(name)
    }
    fn list(&self) -> Result<Vec<String>, StorageError> {
        self.inner.list()
    }
    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self) -> Result<(), StorageError> {
        self.inner.sync_dir()
    }
    fn lock(&self, mode: LockMode) -> Result<StorageLock, StorageError> {
        self.inner.lock(mode)
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn boot_id(&self) -> Option<[u8; 16]> {
        self.inner.boot_id()
    }
}

#[derive(Debug)]
struct GateFile {
    file: Arc<dyn StorageFile>,
    gate: Option<Arc<Gate>>,
    log_gate: Option<Arc<Gate>>,
}

impl StorageFile for GateFile {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> Result<u64, StorageError> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        self.file.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        self.file.allocate(offset, len)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
        self.file.write_at(bytes, offset)
    }
    fn sync_data(&self) -> Result<(), StorageError> {
        if let Some(gate) = &self.log_gate {
            gate.pass();
        }
        self.file.sync_data()
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        self.file.punch_hole(offset, len)
    }
    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        self.file.allocated_bytes()
    }
    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        self.file.map_read(reserve_bytes)
    }
    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        self.file.map_write(offset, len)
    }
}

/// An empty transaction leaves an empty buffer, which the merge is at work on when `meanwhile` runs.
fn during_the_merge_of_an_empty_buffer(meanwhile: fn(&Database, &Keyspace)) {
    let storage = GateStorage::new(5);
    let gate = Arc::clone(&storage.gate);
    let db = Database::open_on(Arc::new(storage), options()).unwrap();
    let (ks, other) = (db.keyspace("k").unwrap(), db.keyspace("other").unwrap());
    for number in 0..200u8 {
        put(&db, &ks, &[number], &[number; 100]);
    }
    db.begin_direct(&[&ks]).unwrap().abort();
    db.begin(&[&ks]).unwrap().abort();
    put(&db, &other, b"key", b"value");
    gate.close();
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| db.begin_direct(&[&other]).unwrap().abort());
        gate.wait_for_somebody();
        let other_work = scope.spawn(|| meanwhile(&db, &ks));
        std::thread::sleep(Duration::from_millis(200));
        gate.open();
        merging.join().unwrap();
        other_work.join().unwrap();
    });
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
    // The merge thread is still there.
    put(&db, &other, b"key", b"value");
    db.begin_direct(&[&other]).unwrap().abort();
    db.checkpoint().unwrap();
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
}

#[test]
fn a_keyspace_is_not_dropped_under_the_merge() {
    within_time(|| {
        during_the_merge_of_an_empty_buffer(|db, _| db.drop_keyspace("k").unwrap());
    });
}

#[test]
fn a_direct_transaction_does_not_begin_under_the_merge() {
    within_time(|| {
        during_the_merge_of_an_empty_buffer(|db, ks| {
            let mut txn = db.begin_direct(&[ks]).unwrap();
            txn.upsert(ks, b"key", b"value").unwrap();
            txn.commit().unwrap();
        });
    });
}

/// A direct transaction fills no shared buffer: that all are full is nothing to it, unless they have something of its keyspaces.
#[test]
fn a_direct_transaction_does_not_wait_for_room_in_the_buffer() {
    within_time(|| {
        let storage = GateStorage::new(9);
        let gate = Arc::clone(&storage.gate);
        let db = Database::open_on(Arc::new(storage), options()).unwrap();
        let (ks, other) = (db.keyspace("k").unwrap(), db.keyspace("other").unwrap());
        gate.close();
        std::thread::scope(|scope| {
            let opened = OpenedAtEnd(&gate);
            let filling = scope.spawn(|| {
                for number in 0..2000u32 {
                    put(&db, &ks, &number.to_be_bytes(), &[7; 1000]);
                }
            });
            gate.wait_for_somebody();
            while db.stats().unwrap().buffer_bytes < 256 << 10 {
                std::thread::yield_now();
            }
            let mut txn = db.begin_direct(&[&other]).unwrap();
            txn.upsert(&other, b"key", b"value").unwrap();
            assert_eq!(db.stats().unwrap().merges, 0);
            assert!(!filling.is_finished(), "there is no room");
            drop(opened);
            txn.commit().unwrap();
            filling.join().unwrap();
        });
        assert_eq!(db.snapshot().count(&ks, ..).unwrap(), 2000);
        assert_eq!(
            db.get(&other, b"key").unwrap().as_deref(),
            Some(&b"value"[..])
        );
    });
}

/// A transaction sees what the one before it in its keyspace committed, before that is durable. If it only reads, it must
/// not report it before either.
#[test]
fn a_transaction_that_only_read_waits_for_what_it_read() {
    within_time(|| {
        let storage = GateStorage::new(6);
        let gate = Arc::clone(&storage.log_gate);
        let db = Database::open_on(Arc::new(storage), options()).unwrap();
        let ks = db.keyspace("k").unwrap();
        gate.close();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut txn = db.begin(&[&ks]).unwrap();
                txn.upsert(&ks, b"key", b"value").unwrap();
                txn.commit_with(Durability::Sync).unwrap();
            });
            gate.wait_for_somebody();
            let reading = scope.spawn(|| {
                let txn = loop {
                    let txn = db.begin(&[&ks]).unwrap();
                    if txn.get(&ks, b"key").unwrap().is_some() {
                        break txn;
                    }
                };
                txn.commit().unwrap();
                assert!(
                    db.get(&ks, b"key").unwrap().is_some(),
                    "committed, hence visible"
                );
            });
            std::thread::sleep(Duration::from_millis(300));
            assert!(
                !reading.is_finished(),
                "it reported what a power loss may take back"
            );
            assert_eq!(db.get(&ks, b"key").unwrap(), None);
            gate.open();
            writing.join().unwrap();
            reading.join().unwrap();
        });
    });
}

/// Those who wait for a merge hear of it when the merge thread is gone.
#[test]
fn a_panic_in_the_background_is_an_error_of_writers() {
    within_time(|| {
        let storage = GateStorage::new(7);
        let gate = Arc::clone(&storage.gate);
        let db = Database::open_on(Arc::new(storage), options()).unwrap();
        let ks = db.keyspace("k").unwrap();
        put(&db, &ks, b"key", b"value");
        gate.panics.store(true, Ordering::SeqCst);
        assert!(db.begin_direct(&[&ks]).is_err());
        assert!(matches!(
            db.begin(&[&ks]),
            Err(psitri::Error::Poisoned { .. })
        ));
        assert_eq!(db.get(&ks, b"key").unwrap().as_deref(), Some(&b"value"[..]));
    });
}

/// Range deletes take memory too: they fill the buffer, which is frozen and merged then.
#[test]
fn range_deletes_fill_the_buffer() {
    within_time(|| {
        let db = Database::open_on(Arc::new(SimStorage::new(8)), options()).unwrap();
        let ks = db.keyspace("k").unwrap();
        for number in 0..3000u32 {
            let mut txn = db.begin(&[&ks]).unwrap();
            let lo = number.to_be_bytes();
            txn.remove_range(&ks, &lo, Some(&[&lo[..], &[1; 100]].concat()))
                .unwrap();
            txn.commit().unwrap();
        }
        let stats = db.stats().unwrap();
        assert!(stats.merges > 0, "{stats:?}");
        assert!(stats.buffer_bytes < 1 << 20, "{stats:?}");
    });
}
