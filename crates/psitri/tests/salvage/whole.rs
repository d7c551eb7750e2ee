//! Nothing damaged, anything damaged, and nothing to salvage.

use std::fs;

use psitri::{Database, Error, KeyspaceOptions, SalvageOptions, salvage};

use super::{
    case::{Case, read},
    common::{Random, seed},
    rounds, spoil,
    story::{Table, copy, logs, options, story, temporary},
};

#[test]
fn a_sound_database_is_copied_whole() {
    let case = Case::new();
    let _ = fs::remove_file(case.damaged().join("lock"));
    let report = case.salvage();
    assert!(report.is_whole(), "{report}");
    assert_eq!(report.log.commits as usize, story().tail.len());
    assert_eq!(case.check(&report), story().state_after(story().tail.len()));
    assert!(report.to_string().ends_with("nothing is lost"), "{report}");
}

#[test]
fn what_is_not_put_back_is_counted() {
    let dir = temporary();
    let (path, target) = (dir.path().join("db"), dir.path().join("target"));
    let db = options().open(&path).unwrap();
    let users = db.create_keyspace("users").unwrap();
    let inbox = db.create_subtree(&users, b"alice").unwrap();
    let mut txn = db.begin(&[&inbox]).unwrap();
    txn.upsert(&inbox, b"1", b"hello").unwrap();
    txn.commit().unwrap();
    db.save_snapshot("monday").unwrap();
    db.save_snapshot("tuesday").unwrap();
    db.drop_snapshot("monday").unwrap();
    // One subtree is in the checkpoint, the other one in the log only.
    db.create_subtree(&users, b"bob").unwrap();
    db.flush().unwrap();
    drop((users, inbox));
    let copied = dir.path().join("copied");
    copy(&path, &copied);
    drop(db);

    let report = salvage(&copied, &target, SalvageOptions::new()).unwrap();
    assert_eq!(report.snapshots_left_out, 1, "{report}");
    assert_eq!(report.subtrees_detached(), 2, "{report}");
    assert!(!report.is_whole());
    let text = report.to_string();
    assert!(text.contains("left out: 1 saved snapshots\n"), "{text}");
    assert!(text.contains("not where they were: 2 subtrees; "), "{text}");
    assert!(text.ends_with("something is lost, or may be"), "{text}");
    let subtree = report
        .keyspaces
        .iter()
        .find(|told| told.was_subtree && told.keys == 1)
        .unwrap();
    assert!(subtree.is_whole());
    let hello = Table::from([(b"1".to_vec(), b"hello".to_vec())]);
    let found = read(&target);
    assert_eq!(found[&subtree.name], hello);
    assert_eq!(found["users"], Table::new());
}

#[test]
fn anything_anywhere_is_no_panic_and_no_wrong_answer() {
    let mut random = Random::new(seed(8));
    for _ in 0..rounds(20) {
        let case = Case::new();
        let mut names = logs(&case.damaged());
        names.push("data".to_owned());
        for _ in 0..random.between(1, 12) {
            let name = random.pick(&names).clone();
            case.edit(&name, |bytes| {
                let all = 0..bytes.len();
                spoil(bytes, &all, &mut random);
            });
        }
        let report = case.salvage();
        case.check(&report);
        let past = SalvageOptions::new().past_damage(true);
        fs::remove_dir_all(case.target()).unwrap();
        case.salvage_with(past);
    }
}

#[test]
fn what_cannot_be_salvaged_is_said() {
    let dir = temporary();
    let (empty, target) = (dir.path().join("empty"), dir.path().join("target"));
    fs::create_dir(&empty).unwrap();
    let none = salvage(&empty, &target, SalvageOptions::new());
    assert!(matches!(none, Err(Error::NotFound { .. })), "{none:?}");
    assert!(!target.exists());

    let case = Case::new();
    fs::create_dir(case.target()).unwrap();
    fs::write(case.target().join("file"), "taken").unwrap();
    let taken = salvage(case.damaged(), case.target(), SalvageOptions::new());
    assert!(taken.unwrap_err().to_string().contains("not empty"));

    let live = dir.path().join("live");
    let db = options().open(&live).unwrap();
    let used = salvage(&live, &target, SalvageOptions::new());
    assert!(used.unwrap_err().to_string().contains("locked"));
    drop(db);
}

#[test]
fn progress_is_told() {
    let case = Case::new();
    let mut calls = Vec::new();
    let mut told = |phase, done, all| calls.push((phase, done, all));
    case.salvage_with(SalvageOptions::new().progress(&mut told));
    let trees = calls
        .iter()
        .rfind(|(phase, ..)| *phase == psitri::SalvagePhase::Trees)
        .unwrap();
    let keys: usize = story().base.values().map(Table::len).sum();
    assert_eq!((trees.1, trees.2), (keys as u64, keys as u64));
    let log = calls.last().unwrap();
    assert_eq!(log.1, story().tail.len() as u64);
}

/// Two trees of one keyspace whose entries expire share a leaf that is spoiled. The counts of what they share, and catalogs, are no entries.
#[test]
fn what_only_looks_like_entries_is_left_out() {
    for expires in [false, true] {
        let dir = temporary();
        let (path, target) = (dir.path().join("db"), dir.path().join("target"));
        let db = options().open(&path).unwrap();
        let kind = match expires {
            true => KeyspaceOptions::new().entries_expire(),
            false => KeyspaceOptions::new(),
        };
        let cache = db.create_keyspace_with("cache", kind).unwrap();
        let mut txn = db.begin(&[&cache]).unwrap();
        for key in 0..20u8 {
            txn.upsert(&cache, &[key], b"a value of some length")
                .unwrap();
        }
        txn.commit().unwrap();
        db.clone_keyspace("cache", "copy").unwrap();
        drop(cache);
        db.close().unwrap();
        let file = path.join("data");
        let mut data = fs::read(&file).unwrap();
        let needle = b"a value of some length";
        let mut spoiled = 0;
        for at in 0..data.len() - needle.len() {
            if data[at..].starts_with(needle) {
                data[at] ^= 1;
                spoiled += 1;
            }
        }
        assert!(spoiled > 0, "no leaf was found");
        fs::write(&file, data).unwrap();
        let report = salvage(&path, &target, SalvageOptions::new()).unwrap();
        assert!(!report.is_whole(), "{report}");
        assert!(
            report.keyspaces.iter().all(|told| told.possibly_old == 0),
            "{report}"
        );
        let rebuilt = Database::open(&target).unwrap();
        assert_eq!(rebuilt.verify().unwrap().errors, Vec::<String>::new());
        assert_eq!(rebuilt.keyspaces(), ["cache", "copy"]);
    }
}

/// A keyspace that only the log has is whole, as it says all of it; a commit whose value cannot be read is not, though nothing comes behind it.
#[test]
fn the_newest_commits_are_whole_or_named() {
    for is_damaged in [false, true] {
        let dir = temporary();
        let (path, work, target) = (
            dir.path().join("db"),
            dir.path().join("work"),
            dir.path().join("target"),
        );
        let db = options().open(&work).unwrap();
        db.checkpoint().unwrap();
        let late = db.create_keyspace("late").unwrap();
        let mut txn = db.begin(&[&late]).unwrap();
        txn.upsert(&late, b"key", &[0x5a; 100_000]).unwrap();
        txn.commit().unwrap();
        copy(&work, &path);
        drop(late);
        db.close().unwrap();
        if is_damaged {
            let file = path.join("data");
            let mut data = fs::read(&file).unwrap();
            let at = data
                .windows(64)
                .position(|bytes| bytes == [0x5a; 64])
                .unwrap();
            data[at + 1] ^= 1;
            fs::write(&file, data).unwrap();
        }
        let report = salvage(&path, &target, SalvageOptions::new()).unwrap();
        assert_eq!(report.is_whole(), !is_damaged, "{report}");
        assert_eq!(report.log.damage.is_empty(), !is_damaged, "{report}");
    }
}
