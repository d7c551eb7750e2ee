//! What was stored before the damage: made once, and copied for each case.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use psitri::Options;

use super::common::Random;

pub type Table = BTreeMap<Vec<u8>, Vec<u8>>;
pub type State = BTreeMap<String, Table>;
/// Keyspace, key, and the value that was put; `None`: removed.
type Write = (String, Vec<u8>, Option<Vec<u8>>);

pub const NAMES: [&str; 3] = ["accounts", "journal", "photos"];

/// What was stored: the state of the checkpoint and the commits after it.
pub struct Story {
    dir: tempfile::TempDir,
    pub base: State,
    pub tail: Vec<Vec<Write>>,
    pub versions: u32,
}

impl Story {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    pub fn state_after(&self, commits: usize) -> State {
        let mut state = self.base.clone();
        for (name, key, value) in self.tail[..commits].iter().flatten() {
            let table = state.get_mut(name).unwrap();
            match value {
                Some(value) => drop(table.insert(key.clone(), value.clone())),
                None => drop(table.remove(key)),
            }
        }
        state
    }
}

pub fn temporary() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.unwrap()
}

pub fn options() -> Options {
    Options::new()
        // The last commits stay in the log, whatever takes how long.
        .buffer_bytes(64 << 20)
        .file_slack_percent(10_000)
        .wal_segment_bytes(64 << 10)
        .map_reserve_bytes(64 << 20)
        .idle_flush(Duration::from_secs(3600))
        .stats_file(false)
}

fn key_of(name: &str, number: usize) -> Vec<u8> {
    match name {
        "accounts" => (number as u64 * 3).to_be_bytes().to_vec(),
        "journal" => format!("entry {number:05} of the journal").into_bytes(),
        _ => format!("{:04x}", number * 7919 % 65_536).into_bytes(),
    }
}

/// The value that a key has in a version: nothing else was ever stored for it.
fn value_of(name: &str, key: &[u8], version: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(version) << 32 | u64::from(crc(key)));
    let len = match name {
        "accounts" => 8,
        "journal" => random.between(0, 100),
        _ => *random.pick(&[10, 600, 3000, 9000, 20_000]),
    };
    let mut value = version.to_le_bytes().to_vec();
    value.extend((0..len).map(|_| random.next() as u8));
    value
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash: u32, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

pub fn was_stored(name: &str, key: &[u8], value: &[u8], versions: u32) -> bool {
    let Some(version) = value.first_chunk::<4>() else {
        return false;
    };
    let version = u32::from_le_bytes(*version);
    version < versions && value == value_of(name, key, version)
}

/// Made once: several checkpoints with overwrites between them, so that there are old nodes, and commits that are in the log only.
pub fn story() -> &'static Story {
    static STORY: OnceLock<Story> = OnceLock::new();
    STORY.get_or_init(|| {
        let dir = temporary();
        let live = dir.path().join("live");
        let db = options().open(&live).unwrap();
        let mut random = Random::new(7);
        let mut state = State::new();
        let mut version = 0;
        for name in NAMES {
            db.create_keyspace(name).unwrap();
            state.insert(name.to_owned(), Table::new());
        }
        let counts = [4000, 2500, 120];
        for round in 0..4 {
            for (name, count) in NAMES.into_iter().zip(counts) {
                let ks = db.open_keyspace(name).unwrap();
                let mut txn = db.begin(&[&ks]).unwrap();
                let table = state.get_mut(name).unwrap();
                for number in 0..count {
                    if round > 0 && !random.percent(12) {
                        continue;
                    }
                    let key = key_of(name, number);
                    if round > 0 && random.percent(10) {
                        txn.remove(&ks, &key).unwrap();
                        table.remove(&key);
                    } else {
                        let value = value_of(name, &key, version);
                        txn.upsert(&ks, &key, &value).unwrap();
                        table.insert(key, value);
                    }
                }
                txn.commit().unwrap();
            }
            db.checkpoint().unwrap();
            version += 1;
        }
        let base = state.clone();
        let mut tail = Vec::new();
        for _ in 0..60 {
            let spaces: Vec<_> = NAMES
                .iter()
                .map(|name| db.open_keyspace(name).unwrap())
                .collect();
            let refs: Vec<_> = spaces.iter().collect();
            let mut txn = db.begin(&refs).unwrap();
            let mut ops = Vec::new();
            for _ in 0..random.between(1, 30) {
                let at = random.below(3);
                let key = key_of(NAMES[at], random.below(counts[at] + 50));
                if random.percent(20) {
                    txn.remove(&spaces[at], &key).unwrap();
                    ops.push((NAMES[at].to_owned(), key, None));
                } else {
                    let value = value_of(NAMES[at], &key, version);
                    txn.upsert(&spaces[at], &key, &value).unwrap();
                    ops.push((NAMES[at].to_owned(), key, Some(value)));
                }
            }
            txn.commit().unwrap();
            tail.push(ops);
            version += 1;
        }
        db.flush().unwrap();
        copy(&live, &dir.path().join("db"));
        drop(db);
        fs::remove_dir_all(&live).unwrap();
        Story {
            dir,
            base,
            tail,
            versions: version,
        }
    })
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    });
    entries.collect()
}

pub fn logs(dir: &Path) -> Vec<String> {
    let names = files(dir).into_keys();
    names.filter(|name| name.starts_with("log-")).collect()
}
