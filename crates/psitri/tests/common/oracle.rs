//! The content of a database after every commit.
//!
//! After a crash the database must be in exactly one of these states: not before the last commit that was acknowledged as
//! durable, and after the mere end of a process not before the last that was acknowledged at all. The commit that was under way
//! may be there or not.
//!
//! What expires is in all of them, and shows up to its moment. In a saved snapshot it shows for ever.
use super::{
    Random,
    clock::{Clock, from_system, some_time_later},
    entries::{Entry, Map, Time},
};
use psitri::{Database, Error, Expiry, Keyspace, Snapshot};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

/// Everything in a database: keyspaces by name.
pub type Content = BTreeMap<String, Arc<Map>>;

/// What a crash point has to be judged by.
#[derive(Clone, Copy)]
pub struct Note {
    /// Indices of the newest acknowledged and durable states, and how many states there are.
    pub acknowledged: u64,
    pub durable: u64,
    pub end: u64,
    /// What is under way.
    pub operation: usize,
    /// The time.
    pub now: u64,
}

impl Note {
    pub fn words(self) -> [u64; 4] {
        assert!(self.acknowledged < 1 << 32 && self.durable < 1 << 32);
        let known = self.durable << 32 | self.acknowledged;
        [known, self.end, self.operation as u64, self.now]
    }

    pub fn of([known, end, operation, now]: [u64; 4]) -> Note {
        Note {
            acknowledged: known & u64::from(u32::MAX),
            durable: known >> 32,
            end,
            operation: operation as usize,
            now,
        }
    }
}

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
    /// The one that the database goes by. It is not set back.
    pub clock: Clock,
}

impl Oracle {
    pub fn new() -> Oracle {
        Oracle {
            history: vec![Content::new()],
            acknowledged: 0,
            durable: 0,
            complete: true,
            steps: vec!["the beginning".into()],
            clock: Clock::new(),
        }
    }

    /// Time passes between one process and the next.
    pub fn wait(&self, random: &mut Random) {
        let later = some_time_later(self.newest(), self.clock.now(), random);
        self.clock.set(later);
    }

    /// The time for one who looks now.
    fn time(&self) -> Time {
        Time::exactly(self.clock.now())
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
            allowed
                .iter()
                .any(|state| shows(state, content, self.time())),
            "{context}: differs from what was acknowledged by {}; the last step was {:?}",
            difference(&allowed[0], content, self.time()),
            self.steps.last()
        );
    }

    /// Whether the newest state is shown.
    pub fn is_newest(&self, found: &Content) -> bool {
        shows(self.newest(), found, self.time())
    }

    pub fn note(&self, operation: usize) -> Note {
        Note {
            acknowledged: self.acknowledged as u64,
            durable: self.durable as u64,
            end: self.history.len() as u64,
            operation,
            now: self.clock.now(),
        }
    }

    /// The newest state of a crash point.
    pub fn newest_of(&self, note: Note) -> &Content {
        &self.history[note.end as usize - 1]
    }

    /// Whether this is one of the states from `least` to before `end`, looked at when it is `time`.
    pub fn check_within(
        &self,
        found: &Content,
        (least, end): (u64, u64),
        time: Time,
        context: &str,
    ) {
        let allowed = &self.history[least as usize..end as usize];
        if allowed.iter().any(|state| shows(state, found, time)) {
            return;
        }
        let at = (self.history.iter()).position(|state| shows(state, found, time));
        panic!(
            "{context}: recovered state {at:?}; allowed are {least} to {}; from the newest of them it differs by {}, from the oldest by {}; the \
             states came from {:#?}",
            end - 1,
            difference(&allowed[allowed.len() - 1], found, time),
            difference(&allowed[0], found, time),
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
        if durable && !are_same(changed[0], changed[1], self.clock.now()) {
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
        let time = self.time();
        let states = least..self.history.len();
        let mut possible = states.filter(|&at| shows(&self.history[at], &found, time));
        let Some(at) = possible.next() else {
            let older = (self.history.iter()).position(|state| shows(state, &found, time));
            let newest = difference(self.newest(), &found, time);
            let oldest = difference(&self.history[least], &found, time);
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
        let mut state = self.history[at].clone();
        let others: Vec<usize> = possible.collect();
        for (path, map) in state.iter_mut().filter(|(_, map)| map.expires()) {
            let map = Arc::make_mut(map);
            if !is_saved(path) {
                map.go_by(time.now);
            }
            for &other in &others {
                let mut other = Map::clone(&self.history[other][path]);
                other.go_by(time.now);
                map.or(&other);
            }
        }
        self.history = vec![state];
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

/// Whether a database with this content may be found to hold `found`.
pub fn shows(state: &Content, found: &Content, time: Time) -> bool {
    let is_shown = |(path, map): (&String, &Arc<Map>), shown: (&String, &Arc<Map>)| {
        let time = time_in(path, map, time);
        let saved_when = !is_saved(path) || !map.expires() || map.now() == shown.1.now();
        path == shown.0 && saved_when && map.shows(shown.1, time)
    };
    let mut both = state.iter().zip(found);
    state.len() == found.len() && both.all(|(map, shown)| is_shown(map, shown))
}

/// The time that somebody sees a keyspace at: in a saved snapshot the one at which it was saved.
fn time_in(path: &str, map: &Map, time: Time) -> Time {
    match is_saved(path) {
        true => Time::exactly(map.now()),
        false => time,
    }
}

/// Whether nobody who looks now can tell them apart.
fn are_same(one: &Content, other: &Content, now: u64) -> bool {
    let is_same = |(path, map): (&String, &Arc<Map>), (path2, map2): (&String, &Arc<Map>)| {
        let now = time_in(path, map, Time::exactly(now)).now;
        path == path2 && map.options == map2.options && map.at(now).eq(map2.at(now))
    };
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_same(a, b))
}

/// A few words about how two contents differ.
fn difference(expected: &Content, found: &Content, time: Time) -> String {
    let mut words = Vec::new();
    for name in expected
        .keys()
        .chain(found.keys().filter(|n| !expected.contains_key(*n)))
    {
        match (expected.get(name), found.get(name)) {
            (Some(_), None) => words.push(format!("keyspace {name} missing")),
            (None, Some(_)) => words.push(format!("keyspace {name} too many")),
            (Some(e), Some(f)) if e.options != f.options => {
                words.push(format!(
                    "keyspace {name}: {:?}, not {:?}",
                    f.options, e.options
                ));
            }
            (Some(e), Some(f)) if !e.shows(f, time_in(name, e, time)) => {
                let time = time_in(name, e, time);
                let missing: Vec<_> = (e.at(time.latest))
                    .filter(|(key, _)| !f.contains_key(*key))
                    .collect();
                let e: BTreeMap<_, _> = e.at(time.now).collect();
                let shown = f.iter().map(|(key, entry)| (&key[..], entry));
                let (known, more): (Vec<_>, Vec<_>) =
                    shown.partition(|(key, _)| e.contains_key(key));
                let other: Vec<_> = (known.into_iter())
                    .filter(|(key, entry)| e[key] != *entry)
                    .collect();
                words.push(format!(
                    "keyspace {name} at {time:?}: {}, {}, {}; expected {:?}",
                    some(&missing, "missing"),
                    some(&more, "too many"),
                    some(&other, "other values"),
                    other.first().map(|(key, _)| in_short(e[key])),
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

/// How many entries, and the first of them.
fn some(entries: &[(&[u8], &Entry)], what: &str) -> String {
    let first = entries.first().map(|(key, entry)| {
        let key = key[..key.len().min(16)].escape_ascii();
        format!(", first {key}: {}", in_short(entry))
    });
    format!("{} {what}{}", entries.len(), first.unwrap_or_default())
}

fn in_short(entry: &Entry) -> String {
    let start = &entry.value[..entry.value.len().min(4)];
    let (bytes, until) = (entry.value.len(), entry.expires);
    format!("{bytes} bytes {start:x?}, until {until}")
}

/// Reads everything, and checks that counts agree with what is read.
pub fn read_all(db: &Database) -> Result<Content, Error> {
    let mut content = Content::new();
    read_into(&mut content, "", &db.snapshot(), 0)?;
    for saved in db.saved_snapshots() {
        let snapshot = db.saved_snapshot(&saved.name)?;
        let prefix = format!("@{}/", saved.name);
        read_into(&mut content, &prefix, &snapshot, from_system(saved.saved))?;
    }
    Ok(content)
}

/// Whether a name of a content is that of a keyspace in a saved snapshot.
pub fn is_saved(path: &str) -> bool {
    path.starts_with('@')
}

fn read_into(
    content: &mut Content,
    prefix: &str,
    snapshot: &Snapshot,
    saved_at: u64,
) -> Result<(), Error> {
    let mut keyspaces: Vec<(String, Keyspace)> = Vec::new();
    for name in snapshot.keyspaces() {
        let keyspace = snapshot.keyspace(&name)?;
        keyspaces.push((name, keyspace));
    }
    while let Some((name, keyspace)) = keyspaces.pop() {
        let mut map = Map::new(keyspace.options());
        map.go_by(saved_at);
        let mut last: Option<Vec<u8>> = None;
        // Values from one reader, moments from another.
        let mut cursor = snapshot.cursor(&keyspace)?;
        let mut has_next = map.expires() && cursor.seek_first()?;
        let mut failure = None;
        snapshot.for_each(&keyspace, .., |key, value| {
            assert!(
                last.as_deref().is_none_or(|last| last < key),
                "keys come in order"
            );
            last = Some(key.to_vec());
            let mut expires = 0;
            if map.expires() {
                assert!(has_next, "a cursor ends early");
                assert_eq!(cursor.entry(), Some((key, value)), "a cursor");
                if let Some(Expiry::At(moment)) = cursor.expiry() {
                    expires = from_system(moment);
                }
                match cursor.next() {
                    Ok(more) => has_next = more,
                    Err(error) => {
                        failure = Some(error);
                        return ControlFlow::Break(());
                    }
                }
            }
            map.found(key, value, expires);
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        assert!(!has_next, "a cursor goes on");
        assert_eq!(
            snapshot.count(&keyspace, ..)?,
            map.len() as u64,
            "count of {name}"
        );
        if let Some((key, entry)) = map.iter().nth(map.len() / 2) {
            let found = snapshot.get(&keyspace, key)?;
            assert_eq!(found, Some(&entry.value[..]), "get");
        }
        for (key, _) in map.iter().filter(|(_, entry)| entry.value.is_empty()) {
            if let Some(subtree) = snapshot.subtree(&keyspace, key)? {
                keyspaces.push((format!("{name}/{}", key.escape_ascii()), subtree));
            }
        }
        content.insert(format!("{prefix}{name}"), Arc::new(map));
    }
    Ok(())
}
