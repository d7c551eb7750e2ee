//! Story: a program with a `metrics` recorder watches a database work. Every metric that `docs/observability.md` promises arrives.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use psitri::Options;

#[derive(Clone)]
enum Metric {
    Counter(Arc<AtomicU64>),
    /// The bits of a float.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Values>),
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

/// Keeps the metrics of every database, by the label `database` and the name.
#[derive(Clone, Default)]
struct Shelf {
    metrics: Arc<Mutex<BTreeMap<(String, String), Metric>>>,
    described: Arc<Mutex<BTreeMap<String, Option<Unit>>>>,
}

impl Shelf {
    fn metric(&self, key: &Key, new: impl FnOnce() -> Metric) -> Metric {
        let label = key.labels().find(|label| label.key() == "database");
        let database = label.expect("every metric has it").value().to_owned();
        let mut metrics = self.metrics.lock().unwrap();
        let metric = metrics.entry((database, key.name().to_owned()));
        metric.or_insert_with(new).clone()
    }

    fn describe(&self, key: KeyName, unit: Option<Unit>) {
        let name = key.as_str().to_owned();
        self.described.lock().unwrap().insert(name, unit);
    }

    fn get(&self, database: &str, name: &str) -> Option<Metric> {
        let metrics = self.metrics.lock().unwrap();
        metrics
            .get(&(database.to_owned(), name.to_owned()))
            .cloned()
    }

    fn number(&self, database: &str, name: &str) -> Option<f64> {
        Some(match self.get(database, name)? {
            Metric::Counter(value) => value.load(Ordering::Relaxed) as f64,
            Metric::Gauge(bits) => f64::from_bits(bits.load(Ordering::Relaxed)),
            Metric::Histogram(values) => values.0.lock().unwrap().iter().sum(),
        })
    }
}

impl Recorder for Shelf {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.metric(key, || Metric::Counter(Arc::default())) {
            Metric::Counter(value) => Counter::from_arc(value),
            _ => panic!("{key} is of two kinds"),
        }
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.metric(key, || Metric::Gauge(Arc::default())) {
            Metric::Gauge(bits) => Gauge::from_arc(bits),
            _ => panic!("{key} is of two kinds"),
        }
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.metric(key, || Metric::Histogram(Arc::default())) {
            Metric::Histogram(values) => Histogram::from_arc(values),
            _ => panic!("{key} is of two kinds"),
        }
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// In one test: there is one recorder for all threads of a process.
#[test]
fn everything_that_is_promised_arrives() {
    let shelf = Shelf::default();
    metrics::set_global_recorder(shelf.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let name = path.to_str().unwrap();
    let options = || {
        Options::new()
            .buffer_bytes(256 << 10)
            .frozen_buffers(1)
            .idle_flush(Duration::from_secs(3600))
    };
    let db = options().open(&path).unwrap();
    let snapshot = db.snapshot();
    let keyspace = db.keyspace("k").unwrap();
    let mut n = 0u32;
    // Until a writer was made to wait.
    while db.stats().unwrap().stalls == 0 && n < 2_000_000 {
        let mut txn = db.begin(&[&keyspace]).unwrap();
        let key = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        txn.upsert(&keyspace, &key, &[1; 200]).unwrap();
        txn.commit().unwrap();
        n += 1;
    }
    db.checkpoint().unwrap();
    wait_until("a pin", || shelf.number(name, "psitri_pins") == Some(1.0));
    let aged = || shelf.number(name, "psitri_oldest_pin_seconds") > Some(0.0);
    wait_until("the age of the pin", aged);
    drop((snapshot, keyspace));
    db.close().unwrap();

    // The last figures are pushed by the close.
    let number = |metric: &str| shelf.number(name, metric).unwrap_or(f64::NAN);
    assert_eq!(number("psitri_commits_total"), f64::from(n) + 1.0);
    assert_eq!(number("psitri_merged_entries_total"), f64::from(n));
    assert_eq!(number("psitri_pins"), 0.0);
    // Counters go on where the database is opened again.
    let db = options().open(&path).unwrap();
    db.keyspace("another").unwrap();
    db.close().unwrap();
    assert_eq!(number("psitri_commits_total"), f64::from(n) + 2.0);
    for metric in [
        "psitri_merges_total",
        "psitri_merged_bytes_total",
        "psitri_written_bytes_total",
        "psitri_log_appended_bytes_total",
        "psitri_checkpoints_total",
        "psitri_stalls_total",
        "psitri_stalled_microseconds_total",
        "psitri_file_bytes",
        "psitri_reachable_bytes",
        "psitri_log_bytes",
        "psitri_checkpoint_seconds",
        "psitri_merge_seconds",
        "psitri_stall_seconds",
    ] {
        assert!(number(metric) > 0.0, "{metric}: {}", number(metric));
    }
    let fill = number("psitri_buffer_fill");
    assert!((0.0..=1.0).contains(&fill), "{fill}");

    // All that the page names, and nothing else.
    let page = include_str!("../../../docs/observability.md");
    let mut documented: Vec<&str> = page
        .split('`')
        .filter(|word| word.starts_with("psitri_"))
        .collect();
    documented.sort_unstable();
    documented.dedup();
    let known = shelf.metrics.lock().unwrap();
    let arrived: Vec<&str> = known
        .keys()
        .filter(|(database, _)| database == name)
        .map(|(_, metric)| metric.as_str())
        .collect();
    assert_eq!(arrived, documented);
    let described = shelf.described.lock().unwrap();
    assert!(arrived.iter().all(|name| described.contains_key(*name)));

    // A database in memory has its figures pushed too.
    drop((known, described));
    let memory = options().in_memory().unwrap();
    memory.keyspace("k").unwrap();
    wait_until("a database in memory", || {
        let known = shelf.metrics.lock().unwrap();
        known.keys().any(|(database, _)| database != name)
    });
}
