//! What the database must hold: a map of keys to versions for every keyspace that ever was.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

pub type Key = Rc<[u8]>;
pub type Entries = Vec<(Key, Value)>;
pub type Overlay = BTreeMap<Key, Option<Value>>;

/// A value that can be made again from a few bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    pub tag: u64,
    pub len: usize,
    /// In milliseconds of the model's clock; 0 for never.
    pub expires: u64,
}

impl Value {
    pub fn is_live(&self, time: u64) -> bool {
        self.expires == 0 || self.expires > time
    }

    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len + 8);
        let mut word = self.tag;
        while bytes.len() < self.len {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            bytes.extend_from_slice(&(word >> 5).to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

/// Order-independent digest of one entry.
pub fn digest(key: &[u8], value: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ (key.len() as u64) << 32 ^ value.len() as u64;
    for part in [key, value] {
        for chunk in part.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
    }
    hash
}

/// One keyspace, from its creation on.
pub struct Table {
    /// Every version of every key: step and value.
    versions: BTreeMap<Key, Vec<(u64, Option<Value>)>>,
    pub now: BTreeMap<Key, Value>,
    /// Digest of the content after each commit that changed it, beginning with the empty keyspace.
    pub digests: Vec<(u64, u64)>,
    pub born: u64,
    pub name: String,
    /// `Some` if entries expire: after so many milliseconds, if they do not say themselves; 0 if they stay.
    pub expiry: Option<u64>,
    pub dropped: bool,
    /// Step of the drop.
    pub died: u64,
    /// The oldest commit that merged readers, and readers of frozen buffers, may still stand at.
    pub seen_trie: usize,
    pub seen_buffered: usize,
}

impl Table {
    fn new(name: &str, expiry: Option<u64>, born: u64) -> Table {
        Table {
            versions: BTreeMap::new(),
            now: BTreeMap::new(),
            digests: vec![(born, 0)],
            born,
            name: name.to_owned(),
            expiry,
            dropped: false,
            died: u64::MAX,
            seen_trie: 0,
            seen_buffered: 0,
        }
    }

    fn apply(&mut self, step: u64, overlay: &Overlay) {
        let mut sum = self.digests.last().expect("never empty").1;
        let digest_of = |key: &[u8], value: &Value| digest(key, &value.bytes());
        for (key, value) in overlay {
            let before = match value {
                Some(value) => self.now.insert(key.clone(), *value),
                None => self.now.remove(key),
            };
            if before == *value {
                continue;
            }
            if let Some(before) = before {
                sum = sum.wrapping_sub(digest_of(key, &before));
            }
            if let Some(value) = value {
                sum = sum.wrapping_add(digest_of(key, value));
            }
            let versions = self.versions.entry(key.clone()).or_default();
            versions.push((step, *value));
        }
        self.digests.push((step, sum));
    }

    /// When an entry written at `time` expires if it does not say itself.
    pub fn expires_by_default(&self, time: u64) -> u64 {
        match self.expiry {
            None | Some(0) => 0,
            Some(after) => time + after,
        }
    }

    /// Content after commit `step` for a reader who looked at the clock at `time`.
    pub fn at(&self, step: u64, time: u64) -> Entries {
        self.versions
            .iter()
            .filter_map(|(key, versions)| {
                let seen = versions.partition_point(|&(at, _)| at <= step);
                Some((key.clone(), versions[..seen].last()?.1?))
            })
            .filter(|(_, value)| value.is_live(time))
            .collect()
    }

    /// Value of a key after commit `step`.
    pub fn value_at(&self, key: &[u8], step: u64) -> Option<Value> {
        let versions = self.versions.get(key)?;
        let seen = versions.partition_point(|&(at, _)| at <= step);
        versions[..seen].last()?.1
    }

    /// Whether a range has the content that it had after commit `step`.
    pub fn is_same_since(&self, lo: &[u8], hi: Option<&[u8]>, step: u64) -> bool {
        let inside = |key: &[u8]| key >= lo && hi.is_none_or(|hi| key < hi);
        self.versions.keys().filter(|key| inside(key)).all(|key| {
            let (then, now) = (self.value_at(key, step), self.now.get(key));
            then.map(Value::bytes) == now.map(|value| value.bytes())
        })
    }

    /// Whether a snapshot taken after `step` knows it.
    pub fn exists_at(&self, step: u64) -> bool {
        (self.born..self.died).contains(&step)
    }

    pub fn entries(&self, time: u64) -> Entries {
        let live = self.now.iter().filter(|(_, value)| value.is_live(time));
        live.map(|(k, v)| (k.clone(), *v)).collect()
    }

    /// Content with the changes of an open transaction on top.
    pub fn with(&self, overlay: &Overlay, time: u64) -> Entries {
        let mut content = self.now.clone();
        for (key, value) in overlay {
            match value {
                Some(value) => content.insert(key.clone(), *value),
                None => content.remove(key),
            };
        }
        let all = content.into_iter();
        all.filter(|(_, value)| value.is_live(time)).collect()
    }

    pub fn get(&self, overlay: &Overlay, key: &[u8], time: u64) -> Option<Value> {
        let found = match overlay.get(key) {
            Some(value) => *value,
            None => self.now.get(key).copied(),
        };
        found.filter(|value| value.is_live(time))
    }

    /// Removes a range in an overlay.
    pub fn remove_range(&self, overlay: &mut Overlay, lo: &[u8], hi: Option<&[u8]>) {
        let inside = |key: &[u8]| key >= lo && hi.is_none_or(|hi| key < hi);
        let mut gone: Vec<Key> = self.now.keys().filter(|k| inside(k)).cloned().collect();
        gone.extend(overlay.keys().filter(|k| inside(k)).cloned());
        overlay.extend(gone.into_iter().map(|key| (key, None)));
    }
}

#[derive(Default)]
pub struct Oracle {
    /// Keyspaces in order of creation, dropped ones too.
    pub tables: Vec<Table>,
    pub step: u64,
}

impl Oracle {
    pub fn live(&self) -> Vec<usize> {
        (0..self.tables.len())
            .filter(|&table| !self.tables[table].dropped)
            .collect()
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.live()
            .into_iter()
            .find(|&table| self.tables[table].name == name)
    }

    pub fn create(&mut self, name: &str, expiry: Option<u64>) -> usize {
        self.step += 1;
        self.tables.push(Table::new(name, expiry, self.step));
        self.tables.len() - 1
    }

    pub fn drop_table(&mut self, table: usize) {
        self.step += 1;
        self.tables[table].dropped = true;
        self.tables[table].died = self.step;
    }

    pub fn commit(&mut self, changes: &HashMap<usize, Overlay>) {
        self.step += 1;
        for (&table, overlay) in changes {
            if !overlay.is_empty() {
                self.tables[table].apply(self.step, overlay);
            }
        }
    }
}
