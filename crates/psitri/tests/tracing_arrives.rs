//! Story: a program with a `tracing` subscriber watches a database work. Every span and event that `docs/observability.md` promises arrives.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use psitri::{
    Database, Options,
    storage::sim::{CallKind, Fault, FaultError, SimStorage},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

type Fields = BTreeMap<String, String>;

/// Level, name of the span or message of the event, fields.
type Seen = Vec<(Level, String, Fields)>;

/// Keeps what has the target `psitri`.
#[derive(Clone, Default)]
struct Ear {
    seen: Arc<Mutex<Seen>>,
    ids: Arc<AtomicU64>,
}

#[derive(Default)]
struct Collect(Fields);

impl Visit for Collect {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "psitri"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Collect::default();
        span.record(&mut fields);
        let metadata = span.metadata();
        let seen = (*metadata.level(), metadata.name().to_owned(), fields.0);
        self.seen.lock().unwrap().push(seen);
        Id::from_u64(self.ids.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Collect::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").expect("events have a message");
        let seen = (*event.metadata().level(), message, fields.0);
        self.seen.lock().unwrap().push(seen);
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

impl Ear {
    #[track_caller]
    fn wait_for(&self, level: Level, what: &str, fields: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let found = {
                let seen = self.seen.lock().unwrap();
                let found = seen.iter().find(|seen| seen.1 == what);
                found.cloned()
            };
            if let Some((found, _, has)) = found {
                assert_eq!(found, level, "{what}");
                let has: Vec<&str> = has.keys().map(String::as_str).collect();
                let mut fields = fields.to_vec();
                fields.sort_unstable();
                assert_eq!(has, fields, "{what}");
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what} is not among {:?}",
                self.seen
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn write(db: &Database, from: u32, to: u32) -> psitri::Result<()> {
    let keyspace = db.keyspace("k")?;
    for n in from..to {
        let mut txn = db.begin(&[&keyspace])?;
        let key = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        txn.upsert(&keyspace, &key, &[1; 200])?;
        txn.commit()?;
    }
    Ok(())
}

/// In one test: there is one subscriber for all threads of a process.
#[test]
fn everything_that_is_promised_arrives() {
    let ear = Ear::default();
    tracing::subscriber::set_global_default(ear.clone()).unwrap();
    let options = || {
        Options::new()
            .buffer_bytes(256 << 10)
            .frozen_buffers(1)
            .idle_flush(Duration::from_secs(3600))
            .slow_reader_after(Duration::from_millis(50))
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    ear.wait_for(Level::INFO, "open", &["path", "read_only"]);
    ear.wait_for(Level::INFO, "recover", &["from_lsn"]);
    ear.wait_for(Level::INFO, "the log was read", &["csn", "csn_checkpoint"]);

    // Single operations say nothing.
    let keyspace = db.keyspace("k").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let before = ear.count();
    write(&db, 0, 100).unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&keyspace, ..).unwrap(), 100);
    assert!(db.get(&keyspace, b"none").unwrap().is_none());
    assert_eq!(ear.count(), before);

    write(&db, 100, 20_000).unwrap();
    db.checkpoint().unwrap();
    ear.wait_for(Level::DEBUG, "merge", &["buffers", "keyspaces"]);
    ear.wait_for(Level::DEBUG, "merged", &["entries", "took_us"]);
    ear.wait_for(Level::DEBUG, "checkpoint", &[]);
    ear.wait_for(Level::DEBUG, "checkpoint is durable", &["took_us"]);
    let slow = "a snapshot is held for long";
    ear.wait_for(Level::WARN, slow, &["age_us", "pending_bytes"]);
    drop(snapshot);
    db.verify().unwrap();
    ear.wait_for(Level::INFO, "verify", &[]);
    db.compact_with(|_| ControlFlow::Continue(())).unwrap();
    ear.wait_for(Level::INFO, "compact", &[]);
    let backup = dir.path().join("backup");
    db.backup(&backup).unwrap();
    ear.wait_for(Level::INFO, "backup", &["path"]);
    Database::restore(&[&backup], dir.path().join("again")).unwrap();
    ear.wait_for(Level::INFO, "restore", &["path"]);
    drop(keyspace);
    db.close().unwrap();
    ear.wait_for(Level::INFO, "close", &["path"]);

    let storage = SimStorage::new(2);
    let db = Database::open_on(Arc::new(storage.clone()), options()).unwrap();
    write(&db, 0, 100).unwrap();
    storage.set_capacity_bytes(Some(storage.allocated_bytes()));
    let _ = write(&db, 100, 20_000);
    let failed = "a merge or checkpoint failed, and is tried again";
    ear.wait_for(Level::WARN, failed, &["cause"]);
    ear.wait_for(Level::WARN, "a writer waited for the merge", &["waited_us"]);
    storage.set_capacity_bytes(None);
    db.checkpoint().unwrap();
    write(&db, 0, 1).unwrap();
    storage.inject(Fault::nth(CallKind::Sync, 1, FaultError::Io));
    assert!(db.flush().is_err());
    ear.wait_for(Level::ERROR, "the database refuses writes", &["cause"]);

    let page = include_str!("../../../docs/observability.md");
    for (level, what, fields) in ear.seen.lock().unwrap().iter() {
        assert!(
            page.contains(&format!("`{what}`")),
            "{level} {what} is not documented"
        );
        for field in fields.keys() {
            assert!(
                page.contains(&format!("`{field}`")),
                "{field} is not documented"
            );
        }
    }
}
