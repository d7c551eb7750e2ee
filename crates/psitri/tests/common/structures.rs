//! What a client does with trees that share their nodes: clones, saved snapshots, subtrees.
//!
//! In the content that the oracle keeps, `t` is the keyspace with subtrees, `t/key` is one of them, and `@name/keyspace` is a keyspace in a saved
//! snapshot.
use super::{Client, Content, Step, changes::change, oracle::is_saved, waits};
use std::{collections::BTreeMap, sync::Arc};

const PARENT: &str = "t";
const KEYS: u64 = 4;

fn path(key: &str) -> String {
    format!("{PARENT}/{key}")
}

impl Client<'_> {
    fn some_subtree(&mut self) -> String {
        format!("s{}", self.random.below(KEYS))
    }

    /// Makes a subtree, or takes one away, moves it, clones it, or writes to it.
    pub(super) fn subtree(&mut self) -> Step {
        let mut next = self.oracle.newest().clone();
        if !next.contains_key(PARENT) {
            next.insert(PARENT.to_owned(), Arc::default());
            self.try_for(next, "create the keyspace with subtrees".to_owned());
            let result = self.db.create_keyspace(PARENT).map(drop);
            return self.committed(result, waits(self.durability));
        }
        let (key, other) = (self.some_subtree(), self.some_subtree());
        let (exists, other_exists) = (
            next.contains_key(&path(&key)),
            next.contains_key(&path(&other)),
        );
        let parent = self.db.open_keyspace(PARENT);
        let parent = self.check(parent)?;
        let (from, to) = (key.as_bytes(), other.as_bytes());
        let draw = self.random.below(8);
        if self.random.one_in(8) {
            self.subtree_where_entries_expire(&parent, exists.then_some(from))?;
        }
        if !exists {
            self.put(&mut next, &key, Arc::default());
            self.try_for(next, format!("create subtree {key}"));
            let result = self.db.create_subtree(&parent, from).map(drop);
            return self.committed(result, waits(self.durability));
        }
        match draw {
            0 => {
                self.take(&mut next, &key);
                self.try_for(next, format!("delete subtree {key}"));
                let result = self.db.delete_subtree(&parent, from).map(drop);
                self.committed(result, waits(self.durability))
            }
            1 | 2 if !other_exists => {
                let map = self.take(&mut next, &key);
                self.put(&mut next, &other, map);
                self.try_for(next, format!("move subtree {key} to {other}"));
                let result = self.db.move_subtree(&parent, from, &parent, to);
                self.committed(result, waits(self.durability))
            }
            3 if !other_exists => {
                let map = Arc::clone(&next[&path(&key)]);
                self.put(&mut next, &other, map);
                self.try_for(next, format!("clone subtree {key} to {other}"));
                let result = self.db.clone_subtree(&parent, from, &parent, to);
                self.committed(result.map(drop), true)
            }
            _ => {
                let subtree = self.db.subtree(&parent, from);
                let subtree = self.check(subtree)?.expect("the subtree is there");
                let map = Arc::make_mut(next.get_mut(&path(&key)).expect("it was found"));
                let txn = self.db.begin(&[&parent, &subtree]);
                let mut txn = self.check(txn)?;
                for _ in 0..1 + self.random.below(8) {
                    let result = change(&mut txn, &subtree, map, self.random, false);
                    self.check(result)?;
                }
                self.try_for(next, format!("transaction on subtree {key}"));
                let result = txn.commit();
                self.committed(result, waits(self.durability))
            }
        }
    }

    fn put(&self, content: &mut Content, key: &str, map: Arc<super::Map>) {
        content.insert(path(key), map);
        let parent = content.get_mut(PARENT).expect("the parent is there");
        Arc::make_mut(parent).put(key.as_bytes().to_vec(), Vec::new());
    }

    fn take(&self, content: &mut Content, key: &str) -> Arc<super::Map> {
        let parent = content.get_mut(PARENT).expect("the parent is there");
        Arc::make_mut(parent).remove(key.as_bytes());
        content.remove(&path(key)).expect("the subtree is there")
    }

    /// Clones a keyspace.
    pub(super) fn clone_keyspace(&mut self) -> Step {
        let names = self.names();
        let to = format!("k{}", self.random.below(12));
        let Some(from) = self.pick_free_keyspace() else {
            return Ok(());
        };
        if names.len() >= 8 || names.contains(&to) {
            return Ok(());
        }
        let mut next = self.oracle.newest().clone();
        let map = next.get_mut(&from).expect("it was listed");
        Arc::make_mut(map).share();
        let map = Arc::clone(map);
        next.insert(to.clone(), map);
        self.try_for(next, format!("clone {from} to {to}"));
        let result = self.db.clone_keyspace(&from, &to).map(drop);
        self.committed(result, true)
    }

    /// Saves a snapshot, drops one, or makes a keyspace of one.
    pub(super) fn saved_snapshot(&mut self) -> Step {
        if self.long.is_some() {
            // It would wait for the open transaction.
            return Ok(());
        }
        let name = format!("m{}", self.random.below(2));
        let prefix = format!("@{name}/");
        let mut next = self.oracle.newest().clone();
        let inside: BTreeMap<String, _> = next
            .iter()
            .filter_map(|(path, map)| Some((path.strip_prefix(&prefix)?.to_owned(), map.clone())))
            .collect();
        if inside.is_empty() {
            let mut saved = Content::new();
            let now = self.oracle.clock.now();
            for (path, map) in next.iter_mut().filter(|(path, _)| !is_saved(path)) {
                Arc::make_mut(map).share();
                let mut map = Arc::clone(map);
                Arc::make_mut(&mut map).go_by(now);
                saved.insert(format!("{prefix}{path}"), map);
            }
            if saved.is_empty() {
                return Ok(());
            }
            next.extend(saved);
            self.try_for(next, format!("save snapshot {name}"));
            let result = self.db.save_snapshot(&name);
            return self.committed(result, true);
        }
        let kept: Vec<&String> = inside.keys().filter(|path| path.starts_with('k')).collect();
        let to = format!("k{}", self.random.below(12));
        if self.random.one_in(2) && !kept.is_empty() && !next.contains_key(&to) {
            let from = kept[self.random.below(kept.len() as u64) as usize];
            next.insert(to.clone(), inside[from].clone());
            self.try_for(next, format!("restore {from} of {name} to {to}"));
            let result = self.db.restore_keyspace(&name, from, &to).map(drop);
            return self.committed(result, true);
        }
        next.retain(|path, _| !path.starts_with(&prefix));
        self.try_for(next, format!("drop snapshot {name}"));
        let result = self.db.drop_snapshot(&name);
        self.committed(result, true)
    }
}
