//! The content of a database after every commit.
//!
//! After a crash the database must be in exactly one of these states: not before the last commit that was acknowledged as
//! durable, and after the mere end of a process not before the last that was acknowledged at all. The commit that was under way
//! may be there or not.
use psitri::{Database, Error, Keyspace, Snapshot};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

pub type Map = BTreeMap<Vec<u8>, Arc<[u8]>>;
/// Everything in a database: keyspaces by name.
pub type Content = BTreeMap<String, Arc<Map>>;

/// What the world outside remembers.
pub struct Oracle {
    /// Content after each commit, from the state that was last seen to be there.
    history: Vec<Content>,
    /// Newest commit that returned, and newest that was durable by then: indices of `history`.
    acknowledged: usize,
    durable: usize,
    /// No power loss since the database was last looked at.
    pub complete: bool,
    /// What each state of `history` came from, for messages.
    steps: Vec<String>,
}

impl Oracle {
    pub fn new() -> Oracle {
        Oracle {
            history: vec![Content::new()],
            acknowledged: 0,
            durable: 0,
            complete: true,
            steps: vec!["the beginning".into()],
        }
    }

    pub fn newest(&self) -> &Content {
        self.history
            .last()
            .expect("there is always a state to begin with")
    }

    /// Whether a living process may show this content: everything acknowledged, and no more than was tried.
    pub fn check_shown(&self, content: &Content, context: &str) {
        let allowed = &self.history[self.acknowledged..];
        assert!(
            allowed.contains(content),
            "{context}: differs from what was acknowledged by {}; the last step was {:?}",
            difference(&allowed[0], content),
            self.steps.last()
        );
    }

    /// What a crash point has to be judged by: the indices of the newest acknowledged and durable states, how many there are, and what is
    /// under way.
    pub fn note(&self, operation: usize) -> [u64; 4] {
        [
            self.acknowledged as u64,
            self.durable as u64,
            self.history.len() as u64,
            operation as u64,
        ]
    }

    /// Whether this is one of the states from `least` to before `end`.
    pub fn check_within(&self, found: &Content, least: u64, end: u64, context: &str) {
        let allowed = &self.history[least as usize..end as usize];
        if allowed.contains(found) {
            return;
        }
        let at = self.history.iter().position(|state| state == found);
        panic!(
            "{context}: recovered state {at:?}; allowed are {least} to {}; from the newest of them it differs by {}, from the oldest by {}; the \
             states came from {:#?}",
            end - 1,
            difference(&allowed[allowed.len() - 1], found),
            difference(&allowed[0], found),
            self.steps.iter().enumerate().collect::<Vec<_>>()
        );
    }

    pub fn push(&mut self, content: Content, step: String) {
        self.history.push(content);
        self.steps.push(step);
    }

    pub fn acknowledge(&mut self, durable: bool) {
        self.acknowledged = self.history.len() - 1;
        // A transaction that changed nothing leaves no record, and makes nothing durable.
        let changed = self.history.iter().rev().take(2).collect::<Vec<_>>();
        if durable && changed[0] != changed[1] {
            self.durable = self.acknowledged;
        }
    }

    /// Everything acknowledged is durable now.
    pub fn flushed(&mut self, how: &str) {
        let last = self.steps.last_mut().expect("one for each state");
        *last = format!("{last}, then {how}");
        self.durable = self.acknowledged;
    }

    /// The disk lied: any state that ever was may come back.
    pub fn forget_what_is_durable(&mut self) {
        (self.durable, self.complete) = (0, false);
    }

    /// Checks what a reopened database holds and goes on from there.
    pub fn settle(&mut self, found: Content, context: &str) {
        let least = if self.complete {
            self.acknowledged
        } else {
            self.durable
        };
        let Some(at) = (least..self.history.len()).find(|&at| self.history[at] == found) else {
            let older = self.history.iter().position(|state| *state == found);
            let newest = difference(self.newest(), &found);
            let oldest = difference(&self.history[least], &found);
            panic!(
                "{context}: recovered state {older:?} of {} (acknowledged {}, durable {}, complete {}); from the newest it \
                 differs by {newest}; from the oldest allowed by {oldest}; the states came from {:#?}",
                self.history.len(),
                self.acknowledged,
                self.durable,
                self.complete,
                self.steps.iter().enumerate().collect::<Vec<_>>()
            );
        };
        self.history.drain(..at);
        self.history.truncate(1);
        self.steps = vec!["the last opening".into()];
        (self.acknowledged, self.durable) = (0, 0);
        self.complete = true;
    }

    /// A commit failed for good: nothing of it may be there.
    pub fn undo(&mut self) {
        self.history.pop();
        self.steps.pop();
    }
}

/// A few words about how two contents differ.
fn difference(expected: &Content, found: &Content) -> String {
    let mut words = Vec::new();
    for name in expected
        .keys()
        .chain(found.keys().filter(|n| !expected.contains_key(*n)))
    {
        match (expected.get(name), found.get(name)) {
            (Some(_), None) => words.push(format!("keyspace {name} missing")),
            (None, Some(_)) => words.push(format!("keyspace {name} too many")),
            (Some(e), Some(f)) if e != f => {
                let missing = e.keys().filter(|k| !f.contains_key(*k)).count();
                let more = f.keys().filter(|k| !e.contains_key(*k)).count();
                let other = e
                    .iter()
                    .filter(|(k, v)| f.get(*k).is_some_and(|w| w != *v))
                    .count();
                words.push(format!(
                    "keyspace {name}: {missing} missing, {more} too many, {other} other values"
                ));
            }
            _ => {}
        }
    }
    if words.is_empty() {
        "nothing".into()
    } else {
        words.join("; ")
    }
}

/// Reads everything, and checks that counts agree with what is read.
pub fn read_all(db: &Database) -> Result<Content, Error> {
    let mut content = Content::new();
    read_into(&mut content, "", &db.snapshot())?;
    for saved in db.saved_snapshots() {
        let snapshot = db.saved_snapshot(&saved.name)?;
        read_into(&mut content, &format!("@{}/", saved.name), &snapshot)?;
    }
    Ok(content)
}

/// Whether a name of a content is that of a keyspace in a saved snapshot.
pub fn is_saved(path: &str) -> bool {
    path.starts_with('@')
}

fn read_into(content: &mut Content, prefix: &str, snapshot: &Snapshot) -> Result<(), Error> {
    let mut keyspaces: Vec<(String, Keyspace)> = Vec::new();
    for name in snapshot.keyspaces() {
        let keyspace = snapshot.keyspace(&name)?;
        keyspaces.push((name, keyspace));
    }
    while let Some((name, keyspace)) = keyspaces.pop() {
        let mut map = Map::new();
        let mut last: Option<Vec<u8>> = None;
        snapshot.for_each(&keyspace, .., |key, value| {
            assert!(
                last.as_deref().is_none_or(|last| last < key),
                "keys come in order"
            );
            last = Some(key.to_vec());
            map.insert(key.to_vec(), Arc::from(value));
            ControlFlow::Continue(())
        })?;
        assert_eq!(
            snapshot.count(&keyspace, ..)?,
            map.len() as u64,
            "count of {name}"
        );
        if let Some((key, value)) = map.iter().nth(map.len() / 2) {
            assert_eq!(snapshot.get(&keyspace, key)?, Some(&value[..]), "get");
        }
        for (key, _) in map.iter().filter(|(_, value)| value.is_empty()) {
            if let Some(subtree) = snapshot.subtree(&keyspace, key)? {
                keyspaces.push((format!("{name}/{}", key.escape_ascii()), subtree));
            }
        }
        content.insert(format!("{prefix}{name}"), Arc::new(map));
    }
    Ok(())
}
