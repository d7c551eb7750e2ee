//! A damaged copy of the story, what salvage makes of it, and what must hold of that, whatever the damage is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use psitri::{Database, SalvageOptions, SalvageReport, SalvagedFrom, SalvagedKeyspace, salvage};

use super::story::{NAMES, State, Table, copy, files, story, temporary, was_stored};

/// A damaged copy of the story, and what salvage makes of it.
pub struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    pub fn new() -> Case {
        let case = Case { dir: temporary() };
        copy(&story().path(), &case.damaged());
        case
    }

    pub fn damaged(&self) -> PathBuf {
        self.dir.path().join("damaged")
    }

    pub fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.damaged().join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    pub fn salvage(&self) -> SalvageReport {
        self.salvage_with(SalvageOptions::new())
    }

    pub fn salvage_with(&self, options: SalvageOptions<'_>) -> SalvageReport {
        let before = files(&self.damaged());
        let report = salvage(self.damaged(), self.target(), options).unwrap();
        assert!(before == files(&self.damaged()), "the damaged one changed");
        report
    }

    /// All that holds whatever the damage is. Returns the new database.
    pub fn check(&self, report: &SalvageReport) -> State {
        let story = story();
        let found = read(&self.target());
        let expected = story.state_after(report.log.commits as usize);
        let nothing = Table::new();
        for told in &report.keyspaces {
            let name = &told.name;
            if let Some(possibly_old) = &told.possibly_old_in {
                for (key, value) in &found[possibly_old] {
                    let is_lost = told.lost.iter().any(|range| {
                        *key >= range.from && range.to.as_ref().is_none_or(|to| key < to)
                    });
                    assert!(is_lost, "{name}: a key that is not lost is possibly old");
                    let whose = NAMES
                        .iter()
                        .any(|name| was_stored(name, key, value, story.versions));
                    assert!(whose, "{name}: a value that never was\n{report}");
                }
            }
            if told.from == SalvagedFrom::Checkpoint {
                self.check_certain(told, &found[name], &expected, report);
            } else {
                for (key, value) in found.get(name).unwrap_or(&nothing) {
                    let whose = NAMES
                        .iter()
                        .any(|name| was_stored(name, key, value, story.versions));
                    assert!(whose, "{name}: a value that never was\n{report}");
                }
            }
        }
        found
    }

    fn check_certain(
        &self,
        told: &SalvagedKeyspace,
        found: &Table,
        expected: &State,
        report: &SalvageReport,
    ) {
        let story = story();
        let name = told.name.as_str();
        let (base, expected) = (&story.base[name], &expected[name]);
        for (key, value) in found {
            assert_eq!(expected.get(key), Some(value), "{name}: {key:?}\n{report}");
        }
        let lost = |key: &Vec<u8>| {
            told.values_lost.contains(key)
                || told
                    .lost
                    .iter()
                    .any(|range| *key >= range.from && range.to.as_ref().is_none_or(|to| key < to))
        };
        for key in expected.keys().filter(|key| !found.contains_key(*key)) {
            assert!(lost(key), "{name}: {key:?} is lost and not named\n{report}");
        }
        for range in &told.lost {
            let inside = base
                .keys()
                .filter(|key| **key >= range.from && range.to.as_ref().is_none_or(|to| *key < to));
            assert_eq!(inside.count() as u64, range.keys, "{name}\n{report}");
        }
        let all = told.keys + told.keys_lost() + told.values_lost.len() as u64;
        assert_eq!(all, base.len() as u64, "{name}\n{report}");
    }
}

pub fn read(path: &Path) -> State {
    let db = Database::open(path).unwrap();
    assert_eq!(db.verify().unwrap().errors, Vec::<String>::new());
    let snapshot = db.snapshot();
    let mut state = State::new();
    for name in db.keyspaces() {
        let keyspace = db.open_keyspace(&name).unwrap();
        let mut table = Table::new();
        let visit = |key: &[u8], value: &[u8]| {
            table.insert(key.to_vec(), value.to_vec());
            true
        };
        for_each(&snapshot, &keyspace, visit);
        state.insert(name, table);
    }
    state
}

fn for_each(
    snapshot: &psitri::Snapshot,
    keyspace: &psitri::Keyspace,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) {
    let mut cursor = snapshot.cursor(keyspace).unwrap();
    let mut found = cursor.seek_first().unwrap();
    while found && visit(cursor.key(), cursor.value()) {
        found = cursor.next().unwrap();
    }
}
