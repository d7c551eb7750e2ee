//! Where keyspaces are, in words that hold for any database: names, and keys of subtrees below them.

use std::collections::HashMap;

use crate::{
    Cursor, Database, Keyspace, KeyspaceOptions, Result, Snapshot,
    expiry::is_stored_past,
    keyspace::{self, KeyspaceCore, Names},
    sync::Arc,
};

/// A keyspace's name, or that of the one above it and the keys on the way. What is above sorts before what is below.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    pub name: String,
    pub keys: Vec<Vec<u8>>,
}

impl Path {
    /// The length and bytes of the name, then of each key; lengths are u32, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for part in std::iter::once(self.name.as_bytes()).chain(self.keys.iter().map(Vec::as_slice))
        {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    pub fn decode(mut bytes: &[u8]) -> Option<Path> {
        let mut parts = Vec::new();
        while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
            let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            parts.push(part.to_vec());
            bytes = rest;
        }
        if parts.is_empty() || !bytes.is_empty() {
            return None;
        }
        let name = String::from_utf8(parts.remove(0)).ok()?;
        Some(Path { name, keys: parts })
    }

    /// For messages.
    pub fn title(&self) -> String {
        let keys = self
            .keys
            .iter()
            .map(|key| format!(" / {}", key.escape_ascii()));
        format!("{:?}{}", self.name, keys.collect::<String>())
    }

    /// Makes the keyspace. What is above it has been made, and is in `made`.
    pub fn create(
        &self,
        db: &Database,
        made: &HashMap<Path, Keyspace>,
        options: KeyspaceOptions,
    ) -> Result<Keyspace> {
        let Some((last, above)) = self.keys.split_last() else {
            return db.create_keyspace_with(&self.name, options);
        };
        let above = Path {
            name: self.name.clone(),
            keys: above.to_vec(),
        };
        db.create_subtree(&made[&above], last)
    }
}

/// All keyspaces, with where they are.
pub fn all_of(names: &Names) -> Vec<(Path, Keyspace)> {
    let path_of = |core: &Arc<KeyspaceCore>| {
        let mut keys = Vec::new();
        let mut core = core;
        loop {
            match core.place() {
                keyspace::Place::Named(name) => {
                    keys.reverse();
                    let name = name.to_string();
                    return Some(Path { name, keys });
                }
                keyspace::Place::Subtree { parent, key } => {
                    keys.push(key.to_vec());
                    core = names.by_id.get(&parent)?;
                }
            }
        }
    };
    let mut all: Vec<_> = names
        .by_id
        .values()
        .filter_map(|core| {
            let keyspace = Keyspace {
                core: Arc::clone(core),
            };
            Some((path_of(core)?, keyspace))
        })
        .collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

/// The entries of a keyspace with their values as they are stored, but for subtrees: those are keyspaces of their own in a backup.
pub struct Values<'s> {
    snapshot: &'s Snapshot,
    keyspace: Keyspace,
    cursor: Cursor<'s>,
    /// Entries that have expired by then are passed over; none, if 0.
    now: u64,
}

impl<'s> Values<'s> {
    /// Those that have not expired.
    pub fn of(snapshot: &'s Snapshot, keyspace: &Keyspace) -> Result<Values<'s>> {
        let now = if keyspace.core.expires() {
            snapshot.now()
        } else {
            0
        };
        let values = Values::all(snapshot, keyspace)?;
        Ok(Values { now, ..values })
    }

    pub fn all(snapshot: &'s Snapshot, keyspace: &Keyspace) -> Result<Values<'s>> {
        Ok(Values {
            snapshot,
            keyspace: keyspace.clone(),
            cursor: Cursor::over(snapshot.view_stored(keyspace)?),
            now: 0,
        })
    }

    pub fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    pub fn value(&self) -> &'s [u8] {
        self.cursor.value()
    }

    pub fn first(&mut self) -> Result<bool> {
        let found = self.cursor.seek_first()?;
        self.settle(found)
    }

    pub fn next(&mut self) -> Result<bool> {
        let found = self.cursor.next()?;
        self.settle(found)
    }

    fn settle(&mut self, mut found: bool) -> Result<bool> {
        while found && self.is_passed_over()? {
            found = self.cursor.next()?;
        }
        Ok(found)
    }

    fn is_passed_over(&self) -> Result<bool> {
        let value = self.cursor.value();
        if self.now != 0 {
            return Ok(is_stored_past(value, self.now));
        }
        // A subtree reads as an empty value.
        if !value.is_empty() {
            return Ok(false);
        }
        let view = self.snapshot.view_stored(&self.keyspace)?;
        Ok(view.subtree(self.cursor.key())?.is_some())
    }
}
