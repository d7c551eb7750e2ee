//! Story: somebody waits for a long call and wants to see how far it is, or has waited long enough.

use std::{ops::ControlFlow, path::Path};

use psitri::{BackupOptions, Database, Error, Keyspace, Options, Progress, ProgressUnit, Result};

const KEYS: u32 = 40_000;

/// A database with two keyspaces: one with holes, and one with large values.
fn database(path: &Path) -> Database {
    let db = Options::new().buffer_bytes(1 << 20).open(path).unwrap();
    let (scattered, large) = (keyspace(&db, "scattered"), keyspace(&db, "large"));
    for n in 0..KEYS {
        let mut txn = db.begin(&[&scattered]).unwrap();
        txn.upsert(&scattered, &n.to_be_bytes(), &[n as u8; 100])
            .unwrap();
        txn.commit().unwrap();
    }
    let mut txn = db.begin(&[&scattered, &large]).unwrap();
    for n in (0..KEYS).filter(|n| n % 5 > 0) {
        txn.remove(&scattered, &n.to_be_bytes()).unwrap();
    }
    for n in 0..50u32 {
        txn.upsert(&large, &n.to_be_bytes(), &vec![n as u8; 50_000])
            .unwrap();
    }
    txn.commit().unwrap();
    db.checkpoint().unwrap();
    db
}

fn keyspace(db: &Database, name: &str) -> Keyspace {
    db.keyspace(name).unwrap()
}

/// Everything that is reported of a call.
#[derive(Default)]
struct Reports(Vec<Progress>);

impl Reports {
    fn note(&mut self, progress: Progress) -> ControlFlow<()> {
        let before = self.0.last().copied().unwrap_or(progress);
        assert!(progress.done <= progress.total);
        assert!(before.done <= progress.done && before.total <= progress.total);
        assert_eq!(before.unit, progress.unit);
        self.0.push(progress);
        ControlFlow::Continue(())
    }

    /// The last report says that all is done, and of how much.
    #[track_caller]
    fn total(&self, unit: ProgressUnit) -> u64 {
        let last = self.0.last().expect("there are reports");
        assert_eq!((last.done, last.unit), (last.total, unit));
        last.total
    }
}

#[track_caller]
fn assert_cancelled<T>(result: Result<T>, name: &str) {
    match result {
        Err(Error::Cancelled { call }) => assert_eq!(call, name),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not cancelled"),
    }
}

/// Breaks at the report with this number.
fn break_at(report: usize) -> impl FnMut(Progress) -> ControlFlow<()> {
    let mut seen = 0;
    move |_| {
        seen += 1;
        match seen >= report {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

#[test]
fn verify_counts_every_byte_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir.path().join("db"));
    let mut reports = Reports::default();
    let mut last_but_one = None;
    let report = db
        .verify_with(|progress| {
            last_but_one = reports.0.last().copied();
            reports.note(progress)
        })
        .unwrap();
    assert!(report.errors.is_empty());
    let stats = db.stats().unwrap();
    assert_eq!(reports.total(ProgressUnit::Bytes), stats.reachable_bytes);
    // What was counted came near the total before the call said that it had ended.
    let counted = last_but_one.unwrap().done;
    assert!(counted + (2 << 20) > stats.reachable_bytes, "{counted}");
    for at in [1, reports.0.len()] {
        assert_cancelled(db.verify_with(break_at(at)), "verify");
    }
    assert!(db.verify().unwrap().errors.is_empty());
}

#[test]
fn compact_counts_entries_and_can_be_cancelled_at_any_report() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir.path().join("db"));
    let content = |db: &Database| {
        let snapshot = db.snapshot();
        let count = |name| snapshot.count(&keyspace(db, name), ..).unwrap();
        (count("scattered"), count("large"))
    };
    let expected = (u64::from(KEYS / 5), 50);
    assert_eq!(content(&db), expected);
    for at in 1..=3 {
        assert_cancelled(db.compact_with(break_at(at)), "compact");
        assert_eq!(content(&db), expected);
        assert!(db.verify().unwrap().errors.is_empty());
    }
    // What a cancelled pass wrote was given back: packing it now makes it as small as ever.
    let mut reports = Reports::default();
    db.compact_with(|progress| reports.note(progress)).unwrap();
    assert!(reports.total(ProgressUnit::Entries) >= expected.0 + expected.1);
    let stats = db.stats().unwrap();
    assert!(stats.file_bytes < stats.reachable_bytes * 11 / 10 + (128 << 10));
    assert_eq!(content(&db), expected);
    assert!(db.verify().unwrap().errors.is_empty());
}

#[test]
fn backup_and_restore_count_entries_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let db = database(&at("db"));
    let all = u64::from(KEYS / 5) + 50;
    let mut reports = Reports::default();
    let mut note = |progress| reports.note(progress);
    db.backup_with(at("full"), BackupOptions::new().progress(&mut note))
        .unwrap();
    assert_eq!(reports.total(ProgressUnit::Entries), all);
    let report_count = reports.0.len();
    for report in [1, 2, report_count] {
        let (path, mut end) = (at(&format!("cancelled {report}")), break_at(report));
        let options = BackupOptions::new().progress(&mut end);
        assert_cancelled(db.backup_with(&path, options), "backup");
        assert!(Database::backup_info(&path).is_err(), "it is no backup");
    }

    let mut txn = db.begin(&[&keyspace(&db, "large")]).unwrap();
    txn.upsert(&keyspace(&db, "large"), b"new", b"1").unwrap();
    txn.commit().unwrap();
    let (chain, mut end) = ([at("full")], break_at(1));
    let options = BackupOptions::new().since(&chain).progress(&mut end);
    assert_cancelled(db.backup_with(at("none"), options), "backup");

    let mut reports = Reports::default();
    Database::restore_with(&chain, at("again"), |progress| reports.note(progress)).unwrap();
    assert_eq!(reports.total(ProgressUnit::Entries), all);
    let again = Database::open(at("again")).unwrap();
    assert_eq!(
        again
            .snapshot()
            .count(&keyspace(&again, "large"), ..)
            .unwrap(),
        50
    );
    let result = Database::restore_with(&chain, at("not"), break_at(2));
    assert_cancelled(result, "restore");
    assert!(!at("not").exists());
}
